"""Whose words are they: what a model's summary has among the user's instructions is looked for in the user's words.

A model is asked for standing instructions as verbatim quotes. What it wrote there of its own, or took from a tool's
result, stays in the summary, and is not the user's: only a user's post gives an instruction. What stands word for word
in somebody else's post is told as that.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memory.once import once
from memory.overlays import Note
from memory.rounds import Round

from ..summarizers.statements import Section, sentences
from .standing import HEADING, LONGEST, bare, heading_in, is_heading, item_in, own_words

__all__ = ["OTHERS", "UNSAID", "Heard"]

#: What stands here instead of ``HEADING`` says less: a summarizer put it there.
UNSAID = "Instructions in the summary's own words:"
#: And what stands here, somebody else said, or the user showed.
OTHERS = "Words of others, which are no instruction:"
_IN_OTHER_WORDS = " (in the summary's words)"
#: A shorter quote may stand anywhere; in scripts other than Latin, a word has fewer letters.
_LEAST_LETTERS, _LEAST_OTHERS = 12, 4
#: So many quotes of one summary are looked for, each in all that the user said.
MAX_QUOTES = 1_000
# No mark opens twice: one that is never closed is not looked for to the end, from each one.
_QUOTED = re.compile(r'"([^"]+)"|“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』')


@dataclass(frozen=True)  # no slots: what is asked for often is worked out once and kept
class _Post:
    """What the user said at once."""

    text: str

    @once
    def letters(self) -> str:
        return bare(self.text)

    @once
    def sentences(self) -> list[str]:
        return list(sentences(self.text, LONGEST))

    @once
    def said(self) -> str:
        """The letters of its sentences; ``ends`` says where in it each ends."""
        return "".join(map(bare, self.sentences))

    @once
    def ends(self) -> list[int]:
        return list(accumulate(len(bare(sentence)) for sentence in self.sentences))


class Heard:
    """What the user said, in which quotes are looked for."""

    def __init__(self, rounds: Iterable[Round], carried: Iterable[str] = (), previous: str = "") -> None:
        """Take the *rounds* of a request, the instructions *carried* from earlier ones and the *previous* summary."""
        self._rounds, self._previous = tuple(rounds), previous
        self._posts = [_Post(text) for text in (*carried, *own_words(self._rounds))]
        self._quotes_left = MAX_QUOTES

    @once
    def _letters_of_all(self) -> str:
        return "\n".join(map(bare, (*_texts(self._rounds), *_of_others(self._previous))))

    def find_sentence(self, quote: str) -> str:
        """Return the user's whole sentence that holds *quote*, word for word; empty where none does.

        The whole one, for a part may say the opposite; several where it is a quote of several. Empty for whatever comes
        after ``MAX_QUOTES`` others.
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
        """Return a model's *text* with nothing below ``HEADING`` but the user's sentences; the rest stands below
        ``OTHERS`` or ``UNSAID``. Where it says of other lines that the user said them, it says now that these are its
        words."""
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
        """Return a model's *notes*, of which none is the user's instruction but what the user said."""
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
        """Return below which heading *item* stands, which is not the user's."""
        item = item_in(item)
        asked = map(bare, (*_quotes_in(item), item)) if self._quotes_left else ()
        return OTHERS if any(_is_long(one) and one in self._letters_of_all for one in asked) else UNSAID

    def _split_quotes(self, item: str) -> tuple[list[str], bool]:
        """Return the user's sentences that *item* quotes, and whether it says hardly anything else."""
        item = item_in(item)
        quotes = _quotes_in(item) or [item]
        found = [sentence for quote in quotes if (sentence := self.find_sentence(quote))]
        if not found and (sentence := self.find_sentence(item)):  # a sentence in which the user quotes something
            return [sentence], True
        letters = sum(len(bare(quote)) for quote in quotes)
        return found, len(found) == len(quotes) and 2 * letters >= len(bare(item))


def _marked(line: str) -> str:
    """Return *line*, and where it is a heading that says that the user's words follow, that these are none."""
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
    """Give what a *summary* tells as the words of others."""
    inside = False
    for line in summary.split("\n"):
        if is_heading(line):
            inside = bare(line) == bare(OTHERS)
        elif inside:
            yield item_in(line)


def _is_long(letters: str) -> bool:
    return len(letters) >= (_LEAST_LETTERS if letters.isascii() else _LEAST_OTHERS)
