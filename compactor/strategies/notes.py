"""A summary as a list of notes in sections: how it is written, and read again.

What a note says is data. It is brought into form when it comes in, and from then on each note is one item of the list,
its further lines indented, so that nothing in it can end the note, open a section or begin another note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from memory.overlays import Note
from memory.rounds import Round

from ..acceptance.prohibitions import HEADING

#: The first and the last round that something comes from, by their numbers in the log.
Span = tuple[int, int]

#: A longer line is no heading, in characters.
_LONGEST_HEADING = 80
_INDENT = "  "
_HEADING = re.compile(r"#{1,6}[ \t]+(.+)")
_BOLD_HEADING = re.compile(r"\*\*([^*]+)\*\*:?")
_BULLET = re.compile(r"(?:[-*+•]|(\d+)[.)])[ \t]+(?=\S)", re.ASCII)
#: What continues a note of somebody else's is indented somehow.
_INDENTED = re.compile(r" {2}|\s")
_FENCES = ("```", "~~~")
_HEADINGS_IN_PROMPT = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


def formed(text: str) -> str:
    """Return *text* as a note holds it: no lone surrogates, line ends that are all alike, no space around it."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "\n".join(line.rstrip() for line in whole.splitlines()).strip()


def section_named(heading: str) -> str:
    """Return the name of a section as notes hold it: one line, without marks around it."""
    return " ".join(formed(heading).split()).strip("#*:： ")


#: Under it stands what the user forbade and a summary had lost; and whatever a summarizer puts there.
INSTRUCTIONS = section_named(HEADING)


def headings(prompt: str) -> tuple[str, ...]:
    """Return the headings that a prompt asks for, in their order: the sections of its notes."""
    return tuple(dict.fromkeys(filter(None, map(section_named, _HEADINGS_IN_PROMPT.findall(prompt)))))


def span_of(rounds: Sequence[Round], first: int, last: int) -> Span:
    """Return the numbers of *rounds* in the log; *first* and *last* where they have none there."""
    return (rounds[0].number or first, rounds[-1].number or last) if rounds else (first, last)


def arranged(notes: Iterable[Note], order: Sequence[str]) -> tuple[Note, ...]:
    """Return *notes* with those of one section together, and otherwise in their order.

    First those of none, then the user's instructions, which seldom change; then the sections in *order*, and others as
    they came.
    """
    found = tuple(notes)
    known = dict.fromkeys(("", INSTRUCTIONS, *order, *(note.section for note in found)))
    rank = {section: place for place, section in enumerate(known)}
    return tuple(sorted(found, key=lambda note: rank[note.section]))


def appended(notes: Iterable[Note], new: Iterable[Note], order: Sequence[str]) -> tuple[Note, ...]:
    """Return *notes* as they stand, and the *new* ones behind them all: what a provider has in its cache of a prompt
    would end where one of them was put in between.

    The new ones are arranged among themselves, but those that go on with the last section come first. A note without a
    section stands before all sections, since nothing would end the one above it.
    """
    known = tuple(notes)
    last = known[-1].section if known else ""
    more = sorted(arranged(new, order), key=lambda note: note.section != last)
    return tuple(sorted((*known, *more), key=lambda note: bool(note.section)))


def rendered(notes: Sequence[Note]) -> str:
    """Return what prompts show of *notes*, those without a section first: numbered from 1, as a model names those that
    it changes.

    So nothing need be sent again to have them changed. Where a number changes, another note before it has changed as
    well, and a provider's cache ends there anyway. ``read_notes`` gives the notes back.
    """
    lines: list[str] = []
    section = ""
    for number, note in enumerate(notes, 1):
        if note.section != section:
            section = note.section
            lines += [*([""] if lines else []), f"## {section}"]
        first, *more = note.text.split("\n")
        lines.append(f"{number}. {first}")
        lines += [f"{_INDENT}{line}" if line else "" for line in more]
    return "\n".join(lines)


def read_notes(text: str, span: Span, known: Iterable[Note] = ()) -> tuple[Note, ...]:
    """Return the notes in *text*, which comes from the rounds of *span*; of *known* ones those that are there again.

    Reads what ``rendered`` writes, and as well as can be what a model writes: each bullet with what is indented below
    it is a note, and so is each paragraph. None where there is nothing to read.
    """
    reading = _Reading()
    for line in formed(text).split("\n"):
        reading.take(line)
    again = {(note.section, note.text): note for note in known}
    return tuple(
        again.get((section, said), Note(text=said, section=section, first_round=span[0], last_round=span[1]))
        for section, said in reading.found()
    )


def with_sentences(notes: Sequence[Note], sentences: Iterable[str], span: Span) -> tuple[Note, ...]:
    """Return *notes* with *sentences*, each a note of its own, behind the other instructions of the user."""
    added = tuple(
        Note(text=text, section=INSTRUCTIONS, first_round=span[0], last_round=span[1])
        for text in filter(None, map(formed, sentences))
    )
    end = max((place for place, note in enumerate(notes, 1) if note.section in ("", INSTRUCTIONS)), default=0)
    return (*notes[:end], *added, *notes[end:])


@dataclass(slots=True)
class _Reading:
    """The notes of a text, line by line."""

    section: str = ""
    #: Those that are complete, each with its section; and the lines of the one that is not.
    notes: list[tuple[str, list[str]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: Empty lines that may still turn out to be inside it.
    blanks: int = 0
    #: What ends the block of code that the text is in, if it is.
    fence: str = ""

    def take(self, line: str) -> None:
        if self.fence:
            self._go_on(line)
            self.fence = "" if line.startswith(self.fence) else self.fence
        elif not line:
            self.blanks += 1
        elif self.lines and line[0].isspace():
            self._go_on(_INDENTED.sub("", line, count=1))
        elif said := self._item_in(line.lstrip()):
            self._begin(said)
        elif heading := _section_in(line.strip()):
            self._end()
            self.section = heading
        else:
            self._go_on_unmarked(line.strip())

    def found(self) -> Iterator[tuple[str, str]]:
        self._end()
        texts = ((section, formed("\n".join(lines))) for section, lines in self.notes)
        return ((section, text) for section, text in texts if text)

    def _go_on_unmarked(self, line: str) -> None:
        """Take a line that is no heading and has no mark: the next of a paragraph, of a bullet, or the first."""
        self.fence = next((fence for fence in _FENCES if line.startswith(fence)), "")
        if self.lines and not self.blanks:
            self._go_on(line)
        elif self.fence or any(map(str.isalnum, line)):  # else a rule between two parts
            self._begin(line)

    def _item_in(self, line: str) -> str:
        """Return what *line* says behind a mark of a list; empty where it has none. A year is none: large numbers are
        only where one counts so far."""
        mark = _BULLET.match(line)
        counted = len(self.notes) + bool(self.lines) + 1
        if mark is None or (mark[1] and len(mark[1]) > 2 and mark[1] != str(counted)):
            return ""
        return line[mark.end() :]

    def _begin(self, line: str) -> None:
        self._end()
        self.lines.append(line)

    def _go_on(self, line: str) -> None:
        self.lines += [""] * self.blanks + [line]
        self.blanks = 0

    def _end(self) -> None:
        if self.lines:
            self.notes.append((self.section, self.lines))
        self.lines, self.blanks = [], 0


def _section_in(line: str) -> str:
    """Return the name of the section that *line* opens; empty where it is no heading."""
    found = _HEADING.fullmatch(line) or _BOLD_HEADING.fullmatch(line)
    if found:
        return section_named(found[1])
    return section_named(line) if line[-1] in ":：" and len(line) <= _LONGEST_HEADING else ""
