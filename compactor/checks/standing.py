"""What a user forbade stays word for word: it is carried from compaction to compaction, whatever a summarizer drops.

Only a user's post gives an instruction. So in a stored summary, what stands below ``HEADING`` is the user's, whoever
wrote the summary: ``attributed`` sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from memory.graphemes import beginning
from memory.overlays import CompactedMessage
from memory.rounds import USER, Round

from ..summarizers.base import Summary
from ..summarizers.instructions import is_prohibition, may_prohibit
from ..summarizers.statements import Section, sentences
from ..tokens import TokenCounter

__all__ = [
    "HEADING",
    "LONGEST",
    "MOST",
    "STANDING",
    "bare",
    "carried",
    "carry",
    "heading_in",
    "in_force",
    "instructions_in",
    "is_heading",
    "item_in",
    "lost",
    "own_words",
    "restored",
    "standing_sentences",
]

#: Under this key of its ``extra`` a compaction carries them, oldest first.
STANDING = "standing"
#: As many are carried, the newest; of each as many characters. Who forbids more than that has written a document.
MOST = 32
LONGEST = 400
#: What they stand under at a summary's end. The extractive summarizer knows it from its own summaries.
HEADING = Section.INSTRUCTIONS.value

#: The headings that say: these are the user's words.
_ATTRIBUTING = {
    "".join(filter(str.isalnum, one.casefold())): one for one in (Section.INSTRUCTIONS, Section.SAID, Section.NOW)
}
#: A longer line is no heading, in characters.
_LONGEST_HEADING = 80
_LIST_MARK = re.compile(r"\s*(?:[-*+•]|\d{1,4}[.)])\s+(?=\S)", re.ASCII)

#: A message of more sentences is pasted material, except for its beginning and end.
_LONG_MESSAGE, _FRAME = 40, 6
#: Code, and the lines of somebody else's message: the user only shows them.
_SHOWN = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|^[ \t]*>[^\n]*", re.MULTILINE | re.DOTALL)
# A sentence that goes on in the next line.
_WRAPPED = re.compile(r"(?<=[^\s.!?:;。！？])[ \t]*\r?\n(?=[ \t]*[a-z(])")


def standing_sentences(rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return the sentences in which the user forbids something, the newest ``MOST``, oldest first, each once.

    Only what the user said counts: a tool's result or another agent forbids nothing. A guess by cue words.
    """
    return _newest(found for round_ in rounds for text in _said(round_) for found in _prohibitions(text))


def own_words(rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return what the user said in *rounds*, post by post, without what he only shows: code, somebody else's mail."""
    return tuple(_SHOWN.sub("", text) for round_ in rounds for text in _said(round_))


def carried(previous: CompactedMessage | None) -> tuple[str, ...]:
    """Return the instructions that *previous* carries."""
    before = previous.extra.get(STANDING, ()) if previous is not None else ()
    return tuple(text for text in before if isinstance(text, str)) if isinstance(before, (list, tuple)) else ()


def in_force(previous: CompactedMessage | None, rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return what *previous* carries and what the user forbade in *rounds*, the newest ``MOST``, oldest first."""
    return _newest((*carried(previous), *standing_sentences(rounds)))


def carry(standing: Iterable[str], summary: Summary) -> tuple[str, ...]:
    """Return *standing* and, of an accepted *summary* by a model, the user's instructions that it quotes: all that the
    next compaction carries. What was chosen by cue words is not chosen again for standing below a heading."""
    quoted = () if summary.extracted else instructions_in(summary.text)
    return _newest((*standing, *(text for text in quoted if len(text) <= LONGEST)))


def lost(standing: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return those of *standing* that stand in none of the texts *kept*; only letters and digits are compared, so that
    it does not matter how a summary quotes them."""
    standing = tuple(standing)
    if not standing:
        return ()
    texts = [bare(text) for text in kept]
    return tuple(sentence for sentence in standing if not any(bare(sentence) in text for text in texts))


def restored(text: str, sentences: Sequence[str], room: int, count: TokenCounter) -> tuple[str, int]:
    """Return *text* with *sentences* among the user's instructions in it, or below it, and how many these are: the
    newest that take at most *room* tokens."""
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
    """Return what stands below ``HEADING`` in a stored summary, item by item."""
    _, items, _ = _parted(text)
    return tuple(item_in(line) for line in items)


def item_in(line: str) -> str:
    """Return what *line* says behind its mark of a list, if it has one."""
    mark = _LIST_MARK.match(line)
    return line[mark.end() :] if mark else line.strip()


def heading_in(line: str) -> Section | None:
    """Return the heading of this library that says whose words follow, where *line* is one, however it is marked; that
    of the goal only as it is written here, for models head their own words so as well."""
    if line.strip() == Section.GOAL:
        return Section.GOAL
    return _ATTRIBUTING.get(bare(line)) if len(line) <= _LONGEST_HEADING else None


def is_heading(line: str) -> bool:
    """Return whether *line* seems to open a section: it has a mark of Markdown, or is short and ends in a colon."""
    line = line.strip()
    named = line.endswith((":", "：")) and len(line) <= _LONGEST_HEADING and not _LIST_MARK.match(line)
    return named or line.startswith("#") or (line.startswith("**") and line.endswith("**"))


def bare(text: str) -> str:
    """Return the letters and digits of *text*, in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _parted(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return the lines of *text* before the user's instructions, those of them, and those behind; the first section of
    several, which ends with an empty line or another heading. All stand before where there is none."""
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if heading_in(line) is Section.INSTRUCTIONS), len(lines))
    end = start + 1
    while end < len(lines) and lines[end].strip() and not is_heading(lines[end]):
        end += 1
    return lines[:start], lines[start + 1 : end], lines[end:]


def _newest(found: Iterable[str]) -> tuple[str, ...]:
    """Return the last ``MOST`` of *found*; what is said again stands where it was said last."""
    latest: dict[str, str] = {}
    for sentence in found:
        key = bare(sentence)
        latest.pop(key, None)
        latest[key] = sentence
    return tuple(latest.values())[-MOST:]


def _said(round_: Round) -> Iterator[str]:
    """Yield what the user said in *round_*. A query is mostly posted as well: said twice running, it is read once."""
    said = [round_.user_query, *(post.message for post in round_.post_list if post.send_from == USER)]
    yield from (text for text, _ in groupby(said))


def _prohibitions(text: str) -> Iterator[str]:
    text = _SHOWN.sub("", text)
    if not may_prohibit(text):
        return
    own = list(sentences(_WRAPPED.sub(" ", text) if "\n" in text else text, LONGEST))
    for place, sentence in enumerate(own):
        if len(own) > _LONG_MESSAGE and min(place, len(own) - 1 - place) >= _FRAME:
            continue
        if is_prohibition(sentence):
            yield beginning(sentence, LONGEST)
