"""Keep a user's prohibitions word for word across compactions, even if a summarizer drops them.

Only a user's post can give an instruction. So in a stored summary, the text below ``HEADING`` is always the user's:
``Heard.attribute`` moves a model's own words elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

from memory.overlays import CompactedMessage, Note
from memory.references import beginning
from memory.rounds import USER, Round, cached_property

from ..summarizers.base import Summary
from ..summarizers.instructions import is_prohibition, may_prohibit
from ..summarizers.statements import Section, sentences
from ..tokens import TokenCounter
from .content import Terms, find_identifiers

#: Minimum names to measure a share of; from the second number on, a missing identifier is enough. Lost prohibitions
#: are restored separately.
_FEW, _FEWEST = 4, 2
#: Minimum different words found only in the previous summary to measure, and the minimum share of them to keep.
_WORDS, _WORDS_KEPT = 8, 0.1
#: Share of words that two lines must have in common to say the same, or a summary to keep a prohibition.
_ALIKE = 0.6
_LONGEST = 400
#: Maximum lines and prohibitions to compare.
_MAX_LINES, _MAX_PROHIBITIONS = 200, 40
#: Characters of a summary to search for prohibitions, and of one line; no real summary is longer.
_MAX_READ, _LONGEST_LINE = 10_000, 2_000


class Missing(NamedTuple):
    kept: int
    total: int
    names: tuple[str, ...]


def find_missing(before: Terms, after: Terms, source: Terms, least: float) -> Missing | None:
    """Return the names of *before* that *after* lost, if it keeps less than the share *least*; else None.

    A value counts as superseded, not missing, if a line of *after* says the same with another value from *source*.
    Names that *source* repeats do not prove that the summarizer read *before*. So *after* must also keep the share
    *least* of the names found only in *before*, and a small share of the words found only there.
    """
    forbidden = {rule: Terms(rule) for rule in _prohibitions(before.text)}
    named = before.identifiers | before.numbers
    there = after.identifiers | after.numbers
    lost = {name for name in named - there if name not in after.folded}
    gone = [rule for rule, terms in forbidden.items() if not _says(after.words, terms.words)]
    superseded: set[str] | None = None
    for measured, rules, broken in ((named, len(forbidden), gone), (_not_in(source, named if lost else ()), 0, [])):
        kept = len(measured - lost) + rules - len(broken)
        if kept >= least * (len(measured) + rules):
            continue
        if superseded is None:
            superseded = _superseded(lost, before, after, (source.identifiers | source.numbers) - named)
        missing = (lost & measured) - superseded
        total = len(measured - superseded) + rules
        if kept < least * total and (total >= _FEW or (total >= _FEWEST and missing & before.identifiers)):
            return Missing(kept, total, (*sorted(missing), *broken))
    return _missing_words(before, after, source, _not_in(source, named) - lost, least)


def _not_in(source: Terms, names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if name not in source.folded)


def _missing_words(before: Terms, after: Terms, source: Terms, named: frozenset[str], least: float) -> Missing | None:
    """Return a ``Missing`` if *after* keeps too few words found only in *before*; kept names, *named*, count too."""
    only = before.words - before.words_in(source)
    if len(only) < _WORDS or not after.is_in_the_language_of(before):
        return None
    kept, total = len(only & after.words) + len(named), len(only) + len(named)
    return Missing(kept, total, ()) if kept < min(_WORDS_KEPT, least) * total else None


def _prohibitions(text: str) -> Iterator[str]:
    text = text[:_MAX_READ]
    if may_prohibit(text):
        found = (sentence for sentence in sentences(text, _LONGEST) if is_prohibition(sentence))
        yield from (sentence for sentence, _ in zip(found, range(_MAX_PROHIBITIONS), strict=False))


def _superseded(lost: set[str], before: Terms, after: Terms, new: frozenset[str]) -> set[str]:
    """Return the *lost* names that *after* replaced with *new* ones, by comparing lines."""
    lines = [(line, values) for line in _lines(after.text) if (values := line.named & new)]
    found: set[str] = set()
    for line in _lines(before.text) if lines else ():
        here = sorted(line.named & lost)
        if not here or len(line.words) < _FEW:
            continue
        alike = max(lines, key=lambda one: len(one[0].words & line.words))
        if _says(alike[0].words, line.words):
            found.update(here[: len(alike[1])])
            lines.remove(alike)  # one line replaces one line
            if not lines:
                break
    return found


class _Line(NamedTuple):
    named: frozenset[str]
    #: Its words outside names: a mere list of names says nothing about them.
    words: frozenset[str]


def _lines(text: str) -> list[_Line]:
    found = []
    for line in (line[:_LONGEST_LINE] for line in text.splitlines()[:_MAX_LINES] if line.strip()):
        terms, rest = Terms(line), line
        for name in find_identifiers(line):
            rest = rest.replace(name, " ")
        found.append(_Line(terms.identifiers | terms.numbers, Terms(rest).words))
    return found


def _says(words: frozenset[str], of: frozenset[str]) -> bool:
    return len(words & of) >= _ALIKE * len(of)


# --- keep a user's prohibitions word for word across compactions ------------------------------------------------------


#: Key in a compaction's ``extra`` for the carried prohibitions, oldest first.
PROHIBITIONS = "standing"
#: Maximum prohibitions to carry (the newest), and characters of each. A longer text is a document.
MOST = 32
LONGEST = 400
#: Their heading at the end of a summary. The extractive summarizer uses the same one.
HEADING = Section.INSTRUCTIONS.value

#: Headings that attribute the text below to the user.
_ATTRIBUTING = {
    "".join(filter(str.isalnum, one.casefold())): one for one in (Section.INSTRUCTIONS, Section.SAID, Section.NOW)
}
#: Maximum length of a heading, in characters.
_LONGEST_HEADING = 80
_LIST_MARK = re.compile(r"\s*(?:[-*+•]|\d{1,4}[.)])\s+(?=\S)", re.ASCII)

#: A message with more sentences is pasted material, except for this many at its beginning and end.
_LONG_MESSAGE, _FRAME = 40, 6
#: Code and quoted lines of another person's message: the user only shows them.
_SHOWN = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|^[ \t]*>[^\n]*", re.MULTILINE | re.DOTALL)
# A sentence that continues on the next line.
_WRAPPED = re.compile(r"(?<=[^\s.!?:;。！？])[ \t]*\r?\n(?=[ \t]*[a-z(])")


def find_prohibitions(rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return the user's prohibitions: the newest ``MOST`` sentences, oldest first, without repetitions.

    Only the user's words count: a tool's result or another agent forbids nothing. This is a guess by cue words.
    """
    return _newest(found for round_ in rounds for text in _said(round_) for found in _user_prohibitions(text))


def read_user_words(rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return the user's words in *rounds*, post by post, without shown material: code, another person's mail."""
    return tuple(_SHOWN.sub("", text) for round_ in rounds for text in _said(round_))


def read_prohibitions(previous: CompactedMessage | None) -> tuple[str, ...]:
    """Return the prohibitions that *previous* carries."""
    before = previous.extra.get(PROHIBITIONS, ()) if previous is not None else ()
    return tuple(text for text in before if isinstance(text, str)) if isinstance(before, (list, tuple)) else ()


def collect_prohibitions(previous: CompactedMessage | None, rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return the prohibitions that *previous* carries and those in *rounds*: the newest ``MOST``, oldest first."""
    return _newest((*read_prohibitions(previous), *find_prohibitions(rounds)))


def add_quoted_instructions(prohibitions: Iterable[str], summary: Summary) -> tuple[str, ...]:
    """Return the sentences for the next compaction to carry: *prohibitions* and the instructions that *summary* quotes.

    *summary* is accepted. Only a model's summary adds quotes: an extractive one chose them by cue words already.
    """
    quoted = () if summary.extracted else instructions_in(summary.text)
    return _newest((*prohibitions, *(text for text in quoted if len(text) <= LONGEST)))


def find_lost(prohibitions: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return the *prohibitions* that no text of *kept* contains.

    Compares letters and digits only, so a summary's quotation style does not matter.
    """
    prohibitions = tuple(prohibitions)
    if not prohibitions:
        return ()
    texts = [bare(text) for text in kept]
    return tuple(sentence for sentence in prohibitions if not any(bare(sentence) in text for text in texts))


def restore_sentences(text: str, sentences: Sequence[str], room: int, count: TokenCounter) -> tuple[str, int]:
    """Return *text* with *sentences* added, and the number added: the newest that take at most *room* tokens.

    They join the user's instructions in *text*, or follow it under ``HEADING`` if it has none.
    """
    lines: list[str] = []
    for sentence in reversed(sentences):
        if count("\n".join([HEADING, *lines, line := f"- {sentence}"])) > room:
            break
        lines.insert(0, line)
    if not lines:
        return text, 0
    before, items, behind = _parted(text)
    if not items:
        return "\n".join([f"{text}\n\n{HEADING}", *lines]), len(lines)
    return "\n".join([*before, HEADING, *items, *lines, *([""] if behind and behind[0].strip() else []), *behind]), len(
        lines
    )


def instructions_in(text: str) -> tuple[str, ...]:
    """Return the items below ``HEADING`` in a stored summary."""
    _, items, _ = _parted(text)
    return tuple(item_in(line) for line in items)


def item_in(line: str) -> str:
    """Return *line* without its list mark, if any."""
    mark = _LIST_MARK.match(line)
    return line[mark.end() :] if mark else line.strip()


def heading_in(line: str) -> Section | None:
    """Return this library's heading if *line* attributes the words below to the user, with any markup; else None.

    The goal's heading must match exactly: models also use it for their own words.
    """
    if line.strip() == Section.GOAL:
        return Section.GOAL
    return _ATTRIBUTING.get(bare(line)) if len(line) <= _LONGEST_HEADING else None


def is_heading(line: str) -> bool:
    """Return whether *line* looks like a heading: it has Markdown marks, or is short and ends in a colon."""
    line = line.strip()
    named = line.endswith((":", "：")) and len(line) <= _LONGEST_HEADING and not _LIST_MARK.match(line)
    return named or line.startswith("#") or (line.startswith("**") and line.endswith("**"))


def bare(text: str) -> str:
    """Return the letters and digits of *text* in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _parted(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines of *text* before the user's instructions, the instructions, and the lines after them.

    With several such sections, the first counts. It ends at an empty line or another heading. Without one, all lines
    come before.
    """
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if heading_in(line) is Section.INSTRUCTIONS), len(lines))
    end = start + 1
    while end < len(lines) and lines[end].strip() and not is_heading(lines[end]):
        end += 1
    return lines[:start], lines[start + 1 : end], lines[end:]


def _newest(found: Iterable[str]) -> tuple[str, ...]:
    """Return the last ``MOST`` of *found*; a repeated sentence keeps its last position."""
    latest: dict[str, str] = {}
    for sentence in found:
        key = bare(sentence)
        latest.pop(key, None)
        latest[key] = sentence
    return tuple(latest.values())[-MOST:]


def _said(round_: Round) -> Iterator[str]:
    """Yield the user's texts in *round_*. A query usually repeats as the first post; equal neighbours yield once."""
    said = [round_.user_query, *(post.message for post in round_.post_list if post.send_from == USER)]
    yield from (text for text, _ in groupby(said))


def _user_prohibitions(text: str) -> Iterator[str]:
    text = _SHOWN.sub("", text)
    if not may_prohibit(text):
        return
    own = list(sentences(_WRAPPED.sub(" ", text) if "\n" in text else text, LONGEST))
    for place, sentence in enumerate(own):
        if len(own) > _LONG_MESSAGE and min(place, len(own) - 1 - place) >= _FRAME:
            continue
        if is_prohibition(sentence):
            yield beginning(sentence, LONGEST)


# --- attribution: check the instructions in a model's summary against the user's own words ----------------------------


#: Heading for instructions in the summarizer's words, instead of ``HEADING``.
UNSAID = "Instructions in the summary's own words:"
#: Heading for words of others, or text that the user only showed.
OTHERS = "Words of others, which are no instruction:"
_IN_OTHER_WORDS = " (in the summary's words)"
#: Minimum letters of a quote that proves anything; the second is for scripts other than Latin, with shorter words.
_MIN_LETTERS, _MIN_OTHERS = 12, 4
#: Maximum quotes of one summary to search for in all of the user's words.
MAX_QUOTES = 1_000
# No quote contains its own opening mark, so unclosed marks do not cost quadratic time.
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』')


@dataclass(frozen=True)  # no slots: the cached properties need a __dict__
class _Post:
    """One text of the user."""

    text: str

    @cached_property
    def letters(self) -> str:
        return bare(self.text)

    @cached_property
    def sentences(self) -> list[str]:
        return list(sentences(self.text, LONGEST))

    @cached_property
    def said(self) -> str:
        """The letters of its sentences, joined; ``ends`` holds the end of each."""
        return "".join(map(bare, self.sentences))

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate(len(bare(sentence)) for sentence in self.sentences))


class Heard:
    """The user's words, searchable for quotes."""

    def __init__(self, rounds: Iterable[Round], carried: Iterable[str] = (), previous: str = "") -> None:
        """Take the *rounds* of a request, the instructions *carried* from earlier ones and the *previous* summary."""
        self._rounds, self._previous = tuple(rounds), previous
        self._posts = [_Post(text) for text in (*carried, *read_user_words(self._rounds))]
        self._quotes_left = MAX_QUOTES

    @cached_property
    def _letters_of_all(self) -> str:
        return "\n".join(map(bare, (*_texts(self._rounds), *_of_others(self._previous))))

    def find_sentence(self, quote: str) -> str:
        """Return the user's whole sentence that contains *quote* word for word, or "" if none does.

        The whole sentence, because a part may say the opposite. A quote across several sentences returns all of them.
        After ``MAX_QUOTES`` quotes, the result is always "".
        """
        letters = bare(quote)
        if not letters or self._quotes_left == 0:
            return ""
        self._quotes_left -= 1
        for post in reversed(self._posts):
            start = post.said.find(letters) if letters in post.letters else -1
            if start < 0:
                continue
            first, last = bisect_right(post.ends, start), bisect_left(post.ends, start + len(letters))
            whole = " ".join(post.sentences[first : last + 1])
            if _is_long(letters) or 2 * len(letters) >= len(bare(whole)):
                return whole
        return ""

    def attribute(self, text: str) -> str:
        """Return a model's *text* with only the user's sentences below ``HEADING``; the rest moves below ``OTHERS`` or
        ``UNSAID``. Any other heading that attributes words to the user is marked as the summary's own words."""
        lines = text.split("\n")
        if not any(map(heading_in, lines)):
            return text
        made: list[str] = []
        found: dict[str, None] = {}
        place, inside, unsaid = len(lines), False, ""
        for line in lines:
            heading = heading_in(line)
            if heading is Section.INSTRUCTIONS:
                place, inside = min(place, len(made)), True
            elif heading is not None or is_heading(line):
                made.append(_marked(line))
                inside, unsaid = False, ""
            elif not inside or not line.strip():
                made.append(line)
            else:
                said, whole = self._split_quotes(line)
                found.update(dict.fromkeys(said))
                if not whole:
                    before, unsaid = unsaid, self._heading_for(line)
                    made += [line] if unsaid == before else [unsaid, line]
        if found:
            made[place:place] = [HEADING, *(f"- {sentence}" for sentence in found), ""]
        return "\n".join(made).strip()

    def attribute_notes(self, notes: Sequence[Note]) -> tuple[Note, ...]:
        """Return a model's *notes*; only the user's own sentences remain the user's instructions."""
        return tuple(map(self._attributed, notes))

    def _attributed(self, note: Note) -> Note:
        heading, text = heading_in(note.section), "\n".join(map(_marked, note.text.split("\n")))
        changes = {"text": text} if text != note.text else {}
        if heading is Section.INSTRUCTIONS:
            said, whole = self._split_quotes(note.text)
            if not whole:
                changes["section"] = self._heading_for(note.text).rstrip(":")
            elif bare(" ".join(said)) != bare(note.text):
                changes["text"] = " ".join(said)
        elif heading is not None:
            changes["section"] = f"{note.section}{_IN_OTHER_WORDS}"
        return note.model_copy(update=changes) if changes else note

    def _heading_for(self, item: str) -> str:
        """Return the heading for *item*, which is not the user's: ``OTHERS`` or ``UNSAID``."""
        item = item_in(item)
        asked = map(bare, (*_quotes_in(item), item)) if self._quotes_left else ()
        return OTHERS if any(_is_long(one) and one in self._letters_of_all for one in asked) else UNSAID

    def _split_quotes(self, item: str) -> tuple[list[str], bool]:
        """Return the user's sentences that *item* quotes, and True if it contains hardly anything else."""
        item = item_in(item)
        quotes = _quotes_in(item) or [item]
        found = [sentence for quote in quotes if (sentence := self.find_sentence(quote))]
        if not found and (sentence := self.find_sentence(item)):  # the user's sentence itself contains a quotation
            return [sentence], True
        letters = sum(len(bare(quote)) for quote in quotes)
        return found, len(found) == len(quotes) and 2 * letters >= len(bare(item))


def _marked(line: str) -> str:
    """Return *line*; mark a heading that attributes words to the user as the summary's own words."""
    return line if heading_in(line) is None else f"{line.rstrip(' :*')}{_IN_OTHER_WORDS}:"


def _quotes_in(item: str) -> list[str]:
    return ["".join(groups) for groups in _QUOTED.findall(item)]


def _texts(rounds: Iterable[Round]) -> Iterator[str]:
    for round_ in rounds:
        yield round_.user_query
        for post in round_.post_list:
            yield post.message
            yield from (attachment.content for attachment in post.attachment_list)
            yield from (call.arguments for call in post.tool_calls)


def _of_others(summary: str) -> Iterator[str]:
    """Yield the items of *summary* below ``OTHERS``."""
    inside = False
    for line in summary.split("\n"):
        if is_heading(line):
            inside = bare(line) == bare(OTHERS)
        elif inside:
            yield item_in(line)


def _is_long(letters: str) -> bool:
    return len(letters) >= (_MIN_LETTERS if letters.isascii() else _MIN_OTHERS)
