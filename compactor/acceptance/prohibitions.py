"""Keep a user's prohibitions word for word across compactions, even if a summarizer drops them.

Only a user's post can give an instruction. So in a stored summary, the text below ``HEADING`` is always the user's:
``UserWords.attribute`` moves a model's own words elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate, groupby, islice

from memory.overlays import CompactedMessage, Note
from memory.patterns import compile_later
from memory.references import take_beginning
from memory.rounds import USER, Round, cached_property, copy_with

from ..summarizers.base import Summary
from ..summarizers.content import Terms, find_identifiers
from ..summarizers.cues import is_prohibition, may_prohibit
from ..summarizers.sentences import (
    LIST_MARK,
    LONG_MESSAGE,
    MAX_HEADING,
    MESSAGE_ENDS,
    Section,
    is_heading,
    keep_letters,
    split_sentences,
    strip_list_mark,
)
from ..tokens import TokenCounter

#: Key in a compaction's ``extra`` for its prohibitions, oldest first, as it is stored.
PROHIBITIONS = "standing"
#: Maximum prohibitions to keep (the newest), and characters of each. A longer text is a document.
MAX_PROHIBITIONS, MAX_SENTENCE = 32, 400
#: Their heading at the end of a summary. The extractive summarizer uses the same one.
HEADING = Section.INSTRUCTIONS.value

#: Headings that attribute the text below to the user.
_ATTRIBUTING = {keep_letters(one): one for one in (Section.INSTRUCTIONS, Section.SAID, Section.SAID_SHORT, Section.NOW)}

#: Code and quoted lines of another person's message: the user only shows them.
_SHOWN = compile_later(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|^[ \t]*>[^\n]*", re.MULTILINE | re.DOTALL)
# A sentence that continues on the next line.
_WRAPPED = compile_later(r"(?<=[^\s.!?:;。！？])[ \t]*\r?\n(?=[ \t]*[a-z(])")


def collect_prohibitions(previous: CompactedMessage | None, rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return the user's prohibitions that *previous* keeps, and those in *rounds*: the newest ``MAX_PROHIBITIONS``,
    oldest first, without repetitions.

    Only the user's words count: a tool's result or another agent forbids nothing. This is a guess by cue words.
    """
    found = [*read_prohibitions(previous)] if previous is not None else []
    for text in read_user_words(rounds):
        if not may_prohibit(text):
            continue
        said = list(split_sentences(_WRAPPED.sub(" ", text), MAX_SENTENCE))
        if len(said) > LONG_MESSAGE:
            said = said[:MESSAGE_ENDS] + said[-MESSAGE_ENDS:]
        found += [take_beginning(sentence, MAX_SENTENCE) for sentence in said if is_prohibition(sentence)]
    return _keep_newest(found) if found else ()


#: Return the user's prohibitions in rounds.
find_prohibitions: Callable[[Iterable[Round]], tuple[str, ...]] = partial(collect_prohibitions, None)


def read_user_words(rounds: Iterable[Round]) -> list[str]:
    """Return the user's words in *rounds*, post by post, without shown material: code, another person's mail."""
    texts: list[str] = []
    for round_ in rounds:
        said = [round_.user_query, *[post.message for post in round_.post_list if post.send_from == USER]]
        texts += [_SHOWN.sub("", text) for text, _ in groupby(said)]  # the first post usually repeats the query
    return texts


def read_prohibitions(previous: CompactedMessage) -> tuple[str, ...]:
    """Return the prohibitions that *previous* keeps."""
    before = previous.extra.get(PROHIBITIONS)
    return tuple([text for text in before if isinstance(text, str)]) if isinstance(before, (list, tuple)) else ()


def add_quoted_instructions(prohibitions: Iterable[str], summary: Summary) -> tuple[str, ...]:
    """Return the sentences for the next compaction to keep: *prohibitions* and the instructions that *summary* quotes.

    *summary* is accepted. Only a model's summary adds quotes: an extractive one chose them by cue words already.
    """
    _, items, _ = _split_at_instructions(summary.text)
    quoted = [] if summary.extracted else [text for text in map(strip_list_mark, items) if len(text) <= MAX_SENTENCE]
    found = (*prohibitions, *quoted)
    return _keep_newest(found) if found else ()


def _keep_newest(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return the last ``MAX_PROHIBITIONS`` of *sentences*; a repeated sentence keeps its last position."""
    latest: dict[str, str] = {}
    for sentence in sentences:
        key = keep_letters(sentence)
        latest.pop(key, None)
        latest[key] = sentence
    return tuple(latest.values())[-MAX_PROHIBITIONS:]


def find_lost(prohibitions: Iterable[str], texts: Iterable[str]) -> tuple[str, ...]:
    """Return the *prohibitions* that none of *texts* contains.

    Compares letters and digits only, so a summary's quotation style does not matter.
    """
    prohibitions = tuple(prohibitions)
    read = [keep_letters(text) for text in texts] if prohibitions else []
    return tuple([sentence for sentence in prohibitions if not any(keep_letters(sentence) in text for text in read)])


def restore_sentences(text: str, sentences: Sequence[str], max_tokens: int, count: TokenCounter) -> tuple[str, int]:
    """Return *text* with *sentences* added, and the number added: the newest that take at most *max_tokens* tokens.

    They join the user's instructions in *text*, or follow it under ``HEADING`` if it has none.
    """
    lines: list[str] = []
    for sentence in reversed(sentences):
        if count("\n".join([HEADING, *lines, line := f"- {sentence}"])) > max_tokens:
            break
        lines.insert(0, line)
    if not lines:
        return text, 0
    before, items, behind = _split_at_instructions(text)
    if not items:
        return "\n".join([f"{text}\n\n{HEADING}", *lines]), len(lines)
    gap = [""] if behind and behind[0].strip() else []
    return "\n".join([*before, HEADING, *items, *lines, *gap, *behind]), len(lines)


def find_instructions(text: str) -> tuple[str, ...]:
    """Return the items below ``HEADING`` in a stored summary."""
    _, items, _ = _split_at_instructions(text)
    return tuple(map(strip_list_mark, items))


def _split_at_instructions(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines of *text* before the user's instructions, the instructions, and the lines after them.

    With several such sections, the first counts. It ends at an empty line or another heading. Without one, all lines
    come before. An item of another section is no heading: a tool may have said it.
    """
    lines = text.split("\n")
    headings = (at for at, line in enumerate(lines) if _find_heading(line) is Section.INSTRUCTIONS)
    start = next((at for at in headings if not LIST_MARK.match(lines[at])), len(lines))
    end = start + 1
    while end < len(lines) and lines[end].strip() and not is_heading(lines[end]):
        end += 1
    return lines[:start], lines[start + 1 : end], lines[end:]


def _find_heading(line: str) -> Section | None:
    """Return this library's heading if *line* attributes the words below to the user, with any markup; else None.

    The goal's heading must match exactly: models also use it for their own words.
    """
    if line.strip() == Section.GOAL:
        return Section.GOAL
    return _ATTRIBUTING.get(keep_letters(line)) if len(line) <= MAX_HEADING else None


# Attribution: check the instructions in a model's summary against the user's own words.

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
_QUOTED = compile_later(r'"([^"]+)"|“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』')


@dataclass(eq=False, repr=False)
class UserWords:
    """The user's words, searchable for quotes."""

    #: The rounds of a request, the instructions known from earlier ones, and the previous summary.
    rounds: Sequence[Round]
    known: Sequence[str] = ()
    previous: str = ""
    _quotes_left: int = MAX_QUOTES
    _split: Callable[[str], tuple[list[str], str, list[int]]] = field(default_factory=lambda: cache(_split_sentences))

    @cached_property
    def _texts(self) -> list[tuple[str, str]]:
        """The user's texts, newest first, each with its letters."""
        return [(text, keep_letters(text)) for text in (*self.known, *read_user_words(self.rounds))][::-1]

    @cached_property
    def _letters_of_all(self) -> str:
        """The letters of all posts, and of the items below ``OTHERS`` in the previous summary."""
        texts: list[str] = []
        for round_ in self.rounds:
            texts.append(round_.user_query)
            for post in round_.post_list:
                texts += [post.message, *[attachment.content for attachment in post.attachment_list]]
                texts += [call.arguments for call in post.tool_calls]
        is_of_others = False
        for line in self.previous.split("\n"):
            if is_heading(line):
                is_of_others = keep_letters(line) == keep_letters(OTHERS)
            elif is_of_others:
                texts.append(strip_list_mark(line))
        return "\n".join(map(keep_letters, texts))

    def find_sentence(self, quote: str) -> str:
        """Return the user's whole sentence that contains *quote* word for word, or "" if none does.

        The whole sentence, because a part may say the opposite. A quote across several sentences returns all of them.
        After ``MAX_QUOTES`` quotes, the result is always "".
        """
        letters = keep_letters(quote)
        if not letters or self._quotes_left == 0:
            return ""
        self._quotes_left -= 1
        for text, letters_of_text in self._texts:
            if letters not in letters_of_text:
                continue
            said, joined, ends = self._split(text)
            start = joined.find(letters)
            if start < 0:
                continue
            first, last = bisect_right(ends, start), bisect_left(ends, start + len(letters))
            whole = " ".join(said[first : last + 1])
            if _is_long(letters) or 2 * len(letters) >= len(keep_letters(whole)):
                return whole
        return ""

    def attribute(self, text: str) -> str:
        """Return a model's *text* with only the user's sentences below ``HEADING``; the rest moves below ``OTHERS`` or
        ``UNSAID``. Any other heading that attributes words to the user is marked as the summary's own words."""
        lines = text.split("\n")
        if not any(map(_find_heading, lines)):
            return text
        result: list[str] = []
        found: dict[str, None] = {}
        place, inside, unsaid = len(lines), False, ""
        for line in lines:
            heading = _find_heading(line)
            if heading is Section.INSTRUCTIONS:
                place, inside = min(place, len(result)), True
            elif heading is not None or is_heading(line):
                result.append(_mark_heading(line))
                inside, unsaid = False, ""
            elif not inside or not line.strip():
                result.append(line)
            else:
                said, is_all = self._split_quotes(line)
                found.update(dict.fromkeys(said))
                if not is_all:
                    before, unsaid = unsaid, self._choose_heading(line)
                    result += [line] if unsaid == before else [unsaid, line]
        if found:
            result[place:place] = [HEADING, *(f"- {sentence}" for sentence in found), ""]
        return "\n".join(result).strip()

    def attribute_notes(self, notes: Sequence[Note]) -> tuple[Note, ...]:
        """Return a model's *notes*; only the user's own sentences remain the user's instructions."""
        return tuple(map(self._attribute_note, notes))

    def _attribute_note(self, note: Note) -> Note:
        heading, text, section = _find_heading(note.section), note.text, note.section
        text = "\n".join(map(_mark_heading, text.split("\n")))
        if heading is Section.INSTRUCTIONS:
            said, is_all = self._split_quotes(note.text)
            if not is_all:
                section = self._choose_heading(note.text).rstrip(":")
            elif keep_letters(" ".join(said)) != keep_letters(note.text):
                text = " ".join(said)
        elif heading is not None:
            section += _IN_OTHER_WORDS
        is_same = (text, section) == (note.text, note.section)
        return note if is_same else copy_with(note, text=text, section=section)

    def _choose_heading(self, item: str) -> str:
        """Return the heading for *item*, which is not the user's: ``OTHERS`` or ``UNSAID``."""
        item = strip_list_mark(item)
        asked = map(keep_letters, (*_find_quotes(item), item)) if self._quotes_left else ()
        return OTHERS if any(_is_long(one) and one in self._letters_of_all for one in asked) else UNSAID

    def _split_quotes(self, item: str) -> tuple[list[str], bool]:
        """Return the user's sentences that *item* quotes, and True if it contains hardly anything else."""
        item = strip_list_mark(item)
        quotes = _find_quotes(item) or [item]
        found = [sentence for quote in quotes if (sentence := self.find_sentence(quote))]
        if not found and (sentence := self.find_sentence(item)):  # the user's sentence itself contains a quotation
            return [sentence], True
        letters = sum(len(keep_letters(quote)) for quote in quotes)
        return found, len(found) == len(quotes) and 2 * letters >= len(keep_letters(item))


def _split_sentences(text: str) -> tuple[list[str], str, list[int]]:
    """Return the sentences of *text*, their letters joined, and the end of each sentence in these."""
    said = list(split_sentences(text, MAX_SENTENCE))
    parts = list(map(keep_letters, said))
    return said, "".join(parts), list(accumulate(map(len, parts)))


def _mark_heading(line: str) -> str:
    """Return *line*; mark a heading that attributes words to the user as the summary's own words."""
    return line if _find_heading(line) is None else f"{line.rstrip(' :*')}{_IN_OTHER_WORDS}:"


def _find_quotes(item: str) -> list[str]:
    return ["".join(groups) for groups in _QUOTED.findall(item)]


def _is_long(letters: str) -> bool:
    return len(letters) >= (_MIN_LETTERS if letters.isascii() else _MIN_OTHERS)


# What a summary lost of the previous one.

#: Share of words that two lines must have in common to say the same, or a summary to keep a prohibition.
_ALIKE = 0.6


def find_missing(
    previous: Terms, after: Terms, source: Terms, minimum: float
) -> tuple[int, int, tuple[str, ...]] | None:
    """Return how many terms of *previous* the summary *after* keeps, of how many, and the missing names; None if it
    keeps the share *minimum*.

    A value counts as superseded, not missing, if a line of *after* says the same with another value from *source*.
    Names that *source* repeats do not prove that the summarizer read *previous*. So *after* must also keep the share
    *minimum* of the names found only in *previous*, and a small share of the words found only there.
    """
    named = previous.identifiers | previous.numbers
    read = previous.text[:10_000]  # no real summary is longer
    lost = {name for name in named - (after.identifiers | after.numbers) if name not in after.folded}
    rules: list[str] = []
    if may_prohibit(read):
        rules = list(dict.fromkeys(islice(filter(is_prohibition, split_sentences(read, MAX_SENTENCE)), 40)))
    broken = [rule for rule in rules if not _says(after.words, Terms(rule).words)]
    only_before = frozenset(name for name in named if name not in source.folded)
    superseded: set[str] | None = None
    for names, number, gone in ((named, len(rules), broken), (only_before, 0, [])):
        kept = len(names - lost) + number - len(gone)
        if kept >= minimum * (len(names) + number):
            continue
        if superseded is None:
            superseded = _find_superseded(lost, previous, after, (source.identifiers | source.numbers) - named)
        missing = (lost & names) - superseded
        total = len(names - superseded) + number
        # A share of fewer than four names says little, but a lost identifier does.
        if kept < minimum * total and (total >= 4 or (total >= 2 and missing & previous.identifiers)):
            return kept, total, (*sorted(missing), *gone)
    words = previous.words - previous.find_words(source)
    if len(words) < 8 or not after.is_in_the_language_of(previous):
        return None
    kept_names = len(only_before - lost)
    kept, total = len(words & after.words) + kept_names, len(words) + kept_names
    return (kept, total, ()) if kept < min(0.1, minimum) * total else None


def find_dropped(notes: Sequence[Note], after: Terms, source: Terms) -> list[Note]:
    """Return those of *notes* that name something which neither *after*, written in their place, nor a newer value from
    *source* says any more."""
    before = Terms("\n".join(note.text for note in notes))
    named = before.identifiers | before.numbers
    lost = {name for name in named - (after.identifiers | after.numbers) if name not in after.folded}
    if not lost:
        return []
    new = (source.identifiers | source.numbers) - named
    lost -= _find_superseded(lost, before, after, new)
    updates = [names for names, _ in _read_lines(after.text) if not names.isdisjoint(new)]
    found: list[Note] = []
    for note in notes:
        terms = Terms(note.text)
        names = terms.identifiers | terms.numbers
        kept = terms.identifiers - lost
        # A new line about the same identifier, with another value, replaces the note.
        if not lost.isdisjoint(names) and all(kept.isdisjoint(update) for update in updates):
            found.append(note)
    return found


def _find_superseded(lost: set[str], previous: Terms, after: Terms, new: frozenset[str]) -> set[str]:
    """Return the *lost* names that *after* replaced with *new* ones, by comparing lines."""
    lines = [(words, values) for named, words in _read_lines(after.text) if (values := named & new)]
    found: set[str] = set()
    for named, words in _read_lines(previous.text) if lines else ():
        here = sorted(named & lost)
        if not here or len(words) < 4:
            continue
        alike = max(lines, key=lambda line: len(line[0] & words))
        if _says(alike[0], words):
            found.update(here[: len(alike[1])])
            lines.remove(alike)  # one line replaces one line
            if not lines:
                break
    return found


def _read_lines(text: str) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Return the names of each line, and its words outside names: a mere list of names says nothing about them."""
    lines = []
    for line in (line[:2_000] for line in text.splitlines()[:200] if line.strip()):
        terms, rest = Terms(line), line
        for name in find_identifiers(line):
            rest = rest.replace(name, " ")
        lines.append((terms.identifiers | terms.numbers, Terms(rest).words))
    return lines


def _says(words: frozenset[str], of: frozenset[str]) -> bool:
    return len(words & of) >= _ALIKE * len(of)
