"""Formats a summary as a list of notes in sections, and parses it.

The text of a note is data. It is normalized on input. In the list, a note is one item with its further lines indented,
so its text cannot end the note, open a section or begin another note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from memory.overlays import Note
from memory.patterns import compile_later
from memory.rounds import Round, copy_with

from .acceptance.prohibitions import HEADING
from .summarizers.sentences import Section, is_heading
from .tokens import TokenCounter, replace_surrogates

#: Log numbers of the first and the last source round.
Span = tuple[int, int]

_INDENT = "  "
_BULLET = compile_later(r"(?:[-*+•]|(\d+)[.)])[ \t]+(?=\S)", re.ASCII)
#: Indentation of a continuation line; models vary.
_INDENTED = compile_later(r" {2}|\s")
_FENCES = ("```", "~~~")
_HEADINGS_IN_PROMPT = compile_later(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)


def normalize_text(text: str) -> str:
    """Return *text* normalized for a note: no lone surrogates, uniform line ends, stripped."""
    return "\n".join(line.rstrip() for line in replace_surrogates(text).splitlines()).strip()


def normalize_heading(heading: str) -> str:
    """Return the normalized name of a section: one line, without Markdown marks around it."""
    return " ".join(normalize_text(heading).split()).strip("#*:： ")


#: Section of restored prohibitions of the user, and of the summarizer's own notes under that heading.
INSTRUCTIONS = normalize_heading(HEADING)
#: Section of notes that the last full rewriting left out. If the next one leaves them out again, they are gone.
EARLIER = normalize_heading(Section.EARLIER)


def find_headings(prompt: str) -> tuple[str, ...]:
    """Return the headings in *prompt*, in order: the sections of its notes."""
    return tuple(dict.fromkeys(filter(None, map(normalize_heading, _HEADINGS_IN_PROMPT.findall(prompt)))))


def find_span(rounds: Sequence[Round], first: int, last: int) -> Span:
    """Return the first and last log number of *rounds*; *first* and *last* replace missing numbers."""
    return (rounds[0].number or first, rounds[-1].number or last) if rounds else (first, last)


def sort_notes(notes: Iterable[Note], order: Sequence[str]) -> tuple[Note, ...]:
    """Return *notes* grouped by section; within a section, the order stays.

    Notes without a section come first, then the user's instructions, which seldom change. The sections in *order*
    follow, then other sections as they first appear.
    """
    found = tuple(notes)
    known = dict.fromkeys(("", INSTRUCTIONS, *order, *(note.section for note in found)))
    rank = {section: place for place, section in enumerate(known)}
    return tuple(sorted(found, key=lambda note: rank[note.section]))


def append_notes(notes: Iterable[Note], new: Iterable[Note], order: Sequence[str]) -> tuple[Note, ...]:
    """Return *notes* unchanged, with the *new* ones after all of them.

    An insertion in between would invalidate the provider's prompt cache from there on. The new notes are grouped by
    section; those of the last section come first and continue it. Notes without a section stand before all sections,
    because nothing would end the section above them.
    """
    known = tuple(notes)
    last = known[-1].section if known else ""
    more = sorted(sort_notes(new, order), key=lambda note: note.section != last)
    return tuple(sorted((*known, *more), key=lambda note: bool(note.section)))


def render_notes(notes: Sequence[Note]) -> str:
    """Return the text of *notes* in prompts, numbered from 1; notes without a section must come first.

    A model refers to these numbers in its edits, so the notes need not be sent a second time. A number changes only
    after another change before it, so the provider's prompt cache loses nothing more. ``read_notes`` parses the text.
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
    """Return the notes in *text*, a summary of the rounds of *span*; empty if it has none.

    A note with the same section and text as one in *known* is that note. Parses the format of ``render_notes``, and
    free text of a model as well as possible: each bullet with the indented lines below it is a note, and so is each
    paragraph.
    """
    again = {(note.section, note.text): note for note in known}
    return tuple(
        again.get((section, said), Note(text=said, section=section, first_round=span[0], last_round=span[1]))
        for section, said in _read_items(normalize_text(text))
    )


def carry_over(
    notes: Sequence[Note], dropped: Iterable[Note], max_tokens: int, count: TokenCounter, *, behind: bool = False
) -> tuple[Note, ...]:
    """Return *notes* with the newest of *dropped* in the section ``EARLIER``, as many as fit into *max_tokens* tokens.

    They stand as ``add_instructions`` says. What was carried over before is not carried on: two rewritings left it out.
    """
    result, carried = tuple(notes), list[Note]()
    for note in sorted(dropped, key=lambda note: note.last_round, reverse=True):
        if note.section not in (EARLIER, INSTRUCTIONS):
            more = [copy_with(note, section=EARLIER), *carried]
            longer = _insert(notes, more, behind=behind)
            if count(render_notes(longer)) <= max_tokens:
                result, carried = longer, more
    return result


def add_instructions(
    notes: Sequence[Note], sentences: Iterable[str], span: Span, *, behind: bool = False
) -> tuple[Note, ...]:
    """Return *notes* with each of *sentences* as a note after the user's other instructions.

    *behind*: after all notes. An insertion before notes that prompts show already would invalidate the provider's
    prompt cache from there on.
    """
    added = tuple(
        Note(text=text, section=INSTRUCTIONS, first_round=span[0], last_round=span[1])
        for text in filter(None, map(normalize_text, sentences))
    )
    return _insert(notes, added, behind=behind)


def _insert(notes: Sequence[Note], more: Iterable[Note], *, behind: bool) -> tuple[Note, ...]:
    """Return *notes* with *more* after the user's instructions, or *behind* all."""
    if behind:
        return (*notes, *more)
    end = max((place for place, note in enumerate(notes, 1) if note.section in ("", INSTRUCTIONS)), default=0)
    return (*notes[:end], *more, *notes[end:])


def _read_items(text: str) -> Iterator[tuple[str, str]]:
    """Yield the section and the text of each note in *text*."""
    notes: list[tuple[str, list[str]]] = []
    section, fence, blanks = "", "", 0
    lines: list[str] = []  # of the current note; empty if none is open
    read = text.split("\n")
    is_short = Section.SAID_SHORT in read  # a short extract: each line is an item
    for line in read:
        continues, said = bool(fence), line
        if fence:
            fence = "" if line.startswith(fence) else fence
        elif not line:
            blanks += 1  # they belong to the current note if it continues
            continue
        elif lines and line[0].isspace():
            continues, said = True, _INDENTED.sub("", line, count=1)
        elif item := _read_item(line.lstrip(), len(notes) + 1):
            said = item
        elif is_heading(line) and (heading := normalize_heading(line)):
            section, lines, blanks = heading, [], 0
            continue
        else:  # it continues a note, or begins a paragraph
            said = line.strip()
            fence = next((mark for mark in _FENCES if said.startswith(mark)), "")
            continues = bool(lines) and not (blanks or is_short)
            if not (continues or fence or any(map(str.isalnum, said))):  # a horizontal rule
                continue
        if continues:
            lines += [""] * blanks + [said]
        else:
            lines = [said]
            notes.append((section, lines))
        blanks = 0
    texts = ((section, normalize_text("\n".join(lines))) for section, lines in notes)
    yield from ((section, text) for section, text in texts if text)


def _read_item(line: str, number: int) -> str:
    """Return the text of *line* after a list mark; empty if it has none.

    A number of three or more digits is a mark only if it is *number*, the next in the count, so a year is none.
    """
    mark = _BULLET.match(line)
    if mark is None or (mark[1] and len(mark[1]) > 2 and mark[1] != str(number)):
        return ""
    return line[mark.end() :]
