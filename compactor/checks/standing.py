"""What a user forbade stays word for word: it is carried from compaction to compaction, whatever a summarizer drops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from memory.overlays import CompactedMessage
from memory.rounds import USER, Round

from ..summarizers.instructions import is_prohibition, may_prohibit
from ..summarizers.statements import Section, sentences
from ..tokens import TokenCounter

__all__ = ["HEADING", "LONGEST", "MOST", "STANDING", "bare", "in_force", "lost", "restored", "standing_sentences"]

#: Under this key of its ``extra`` a compaction carries them, oldest first.
STANDING = "standing"
#: As many are carried, the newest; of each as many characters. Who forbids more than that has written a document.
MOST = 32
LONGEST = 400
#: What they stand under at a summary's end. The extractive summarizer knows it from its own summaries.
HEADING = Section.INSTRUCTIONS.value

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


def in_force(previous: CompactedMessage | None, rounds: Iterable[Round]) -> tuple[str, ...]:
    """Return what *previous* carries and what the user forbade in *rounds*, the newest ``MOST``, oldest first."""
    before = previous.extra.get(STANDING, ()) if previous is not None else ()
    kept = (text for text in before if isinstance(text, str)) if isinstance(before, (list, tuple)) else ()
    return _newest((*kept, *standing_sentences(rounds)))


def lost(standing: Iterable[str], kept: Iterable[str]) -> tuple[str, ...]:
    """Return those of *standing* that stand in none of the texts *kept*; only letters and digits are compared, so that
    it does not matter how a summary quotes them."""
    standing = tuple(standing)
    if not standing:
        return ()
    texts = [bare(text) for text in kept]
    return tuple(sentence for sentence in standing if not any(bare(sentence) in text for text in texts))


def restored(text: str, sentences: Sequence[str], room: int, count: TokenCounter) -> tuple[str, int]:
    """Return *text* with *sentences* below it, and how many these are: the newest that take at most *room* tokens."""
    lines: list[str] = []
    for sentence in reversed(sentences):
        if count("\n".join([HEADING, *lines, line := f"- {sentence}"])) > room:
            break
        lines.insert(0, line)
    return ("\n".join([f"{text}\n\n{HEADING}", *lines]) if lines else text), len(lines)


def bare(text: str) -> str:
    """Return the letters and digits of *text*, in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


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
            yield sentence[:LONGEST]
