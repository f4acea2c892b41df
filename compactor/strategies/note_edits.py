"""Parses a model's edits of numbered notes, and applies them.

All edits of an answer are applied, or none. One wrong number suggests that others are wrong too, and a note replaced by
mistake is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from memory.overlays import Note
from memory.patterns import compile_later
from memory.rounds import copy_with

from ..errors import SummaryRejected
from ..notes import EARLIER, INSTRUCTIONS, Span, append_notes, normalize_heading, normalize_text
from ..summarizers.sentences import MAX_HEADING, keep_letters

Op = Literal["add", "replace", "remove"]


class NoteEdit(NamedTuple):
    op: Op
    #: Number of the note, from 1; 0 for an addition.
    number: int = 0
    #: Heading of the section that an addition goes to.
    section: str = ""
    text: str = ""


_FENCE = compile_later(r"```[\w-]*[ \t]*")
_NOTHING = compile_later(
    r"\W*(?:none|nothing|no changes?)(?: (?:to (?:add|note|change)|needed|necessary))?\W*", re.IGNORECASE
)
_MARK = r"(?:[-*+•][ \t]+)?"
_WHICH = r"(?:note[ \t]+)?[#\[]?(\d{1,6})\]?"
# Possessive quantifiers prevent backtracking over spaces.
_ADD = compile_later(rf"{_MARK}add\b[ \t]*+(?:\[([^\]]*+)\])?[ \t]*+:[ \t]*+(.*)", re.IGNORECASE)
_REPLACE = compile_later(rf"{_MARK}replace[ \t]+{_WHICH}[ \t]*(?:with[ \t]*:?|:)[ \t]*(.*)", re.IGNORECASE | re.ASCII)
_REMOVE = compile_later(rf"{_MARK}remove[ \t]+({_WHICH}(?:[ \t]*,[ \t]*{_WHICH})*)[ \t]*\.?", re.IGNORECASE | re.ASCII)
_DIGITS = compile_later(r"\d+", re.ASCII)
_NUMBER_TEXT = compile_later(rf"\s*{_WHICH}\s*", re.IGNORECASE | re.ASCII)


def parse_edits(answer: str) -> tuple[NoteEdit, ...]:
    """Return the edits in *answer*, from JSON or plain lines; empty if it says that nothing changes.

    Raises ``SummaryRejected("malformed")`` for anything else.
    """
    text = _unfence(answer.strip())
    if text.startswith(("{", "[")):
        edits = tuple(_read_json(text))
    else:
        edits = () if _NOTHING.fullmatch(text) else tuple(_read_lines(text))
    if any(len(normalize_heading(edit.section)) > MAX_HEADING for edit in edits):
        raise _make_malformed_error("it gives a text as a heading")
    return edits


def is_edits(answer: str) -> bool:
    """Return whether *answer* consists of edits only, or says that nothing changes.

    Taken as notes, such an answer would lose all others. A single line that looks like an edit may be part of a note.
    """
    text = _unfence(answer.strip())
    if not text.startswith(("{", "[")) and not _NOTHING.fullmatch(text) and not _read_line(text.partition("\n")[0]):
        return False
    try:
        parse_edits(answer)
    except SummaryRejected:
        return False
    return True


def apply_edits(
    notes: Sequence[Note], edits: Iterable[NoteEdit], *, order: Sequence[str] = (), span: Span = (0, 0)
) -> tuple[Note, ...]:
    """Return *notes* with *edits* applied; all other notes stay byte for byte.

    New notes come from the rounds of *span*. They follow the existing notes, in sections of the given *order*. Raises
    ``SummaryRejected("malformed")`` if an edit names no existing note, if two edits conflict, or if no note would be
    left.
    """
    texts: dict[int, str] = {}
    removed: set[int] = set()
    added: list[tuple[str, str]] = []
    names = {keep_letters(name): name for name in (*order, *(note.section for note in reversed(notes)))}
    for op, number, section, said in edits:
        text, name = normalize_text(said), normalize_heading(section)
        if op == "add":
            if text:
                added.append((names.setdefault(keep_letters(name), name), text))
        elif not 1 <= number <= len(notes):
            raise _make_malformed_error(f"it names note {number}, and there are {len(notes)}")
        elif number in texts or (op == "replace" and number in removed):
            raise _make_malformed_error(f"it changes note {number} twice")
        elif op == "remove":
            removed.add(number)
        elif text:
            texts[number] = text
        else:
            raise _make_malformed_error(f"it replaces note {number} with nothing")
    kept: list[Note] = []
    for number, note in enumerate(notes, 1):
        if (text := texts.get(number, note.text)) != note.text:
            first, last = note.first_round or span[0], max(note.last_round, span[1])
            kept.append(copy_with(note, text=text, first_round=first, last_round=last))
        elif number not in removed:
            kept.append(note)
    # A note without a section joins the last one: at the top, it would change the number of every note.
    last_section = next((note.section for note in reversed(kept) if note.section not in (EARLIER, INSTRUCTIONS)), "")
    known = {(note.section, note.text) for note in kept}
    new = dict.fromkeys((section or last_section, text) for section, text in added)
    more = [
        Note(text=text, section=section, first_round=span[0], last_round=span[1])
        for section, text in new
        if (section, text) not in known
    ]
    if not kept and not more:
        raise _make_malformed_error("it leaves no note")
    return append_notes(kept, more, order)


def _unfence(answer: str) -> str:
    """Return the content of a code block if it is the whole answer, or JSON after an introduction."""
    if "```" not in answer:
        return answer
    lines = answer.split("\n")
    start = next((place for place, line in enumerate(lines) if _FENCE.fullmatch(line)), len(lines))
    ends = (place for place in range(start + 1, len(lines)) if lines[place].rstrip(" \t") == "```")
    inside = "\n".join(lines[start + 1 : next(ends, start)]).strip()
    return inside if answer.startswith("```") or inside.startswith(("{", "[")) else answer


def _read_lines(text: str) -> list[NoteEdit]:
    """Return the edits in *text*, one a line.

    Lines that follow an edit without an empty line, or indented, belong to it. Lines before the first edit are an
    introduction.
    """
    edits: list[NoteEdit] = []
    is_apart = True
    for line in text.splitlines():
        found = _read_line(line)
        if not found and edits and line.strip():
            last = edits.pop()
            if last.op == "remove" or (is_apart and not line[0].isspace()):
                raise _make_malformed_error("one of its lines is no edit")
            found = [copy_with(last, text=f"{last.text}\n{line.removeprefix('  ')}")]
        edits += found
        is_apart = not line.strip()
    if not edits:
        raise _make_malformed_error("it contains none, and does not say so")
    return edits


def _read_line(line: str) -> list[NoteEdit]:
    if add := _ADD.fullmatch(line):
        return [NoteEdit("add", section=add[1] or "", text=add[2])]
    if replace := _REPLACE.fullmatch(line):
        return [NoteEdit("replace", int(replace[1]), text=replace[2])]
    if remove := _REMOVE.fullmatch(line):
        return [NoteEdit("remove", int(number)) for number in _DIGITS.findall(remove[1])]
    return []


def _read_json(text: str) -> list[NoteEdit]:
    """Return the edits in *text*: lists "add", "replace" and "remove" as JSON, or a list of objects with an ``op``."""
    try:
        value, end = json.JSONDecoder(strict=False, object_pairs_hook=_read_object).raw_decode(text)
    except (ValueError, RecursionError):
        raise _make_malformed_error("it is no JSON") from None
    if text[end:].strip():
        raise _make_malformed_error("something follows its JSON")
    edits: list[NoteEdit] = []
    for key, items in ({"changes": value} if isinstance(value, list) else value).items():
        if key not in ("changes", "add", "replace", "remove") or not isinstance(items, list):
            raise _make_malformed_error("its JSON has another form")
        for item in items:
            if isinstance(item, str) and key != "changes" and (found := _read_text(key, item)):
                edits += found
                continue
            # A bare value is the text of an addition, or the number of a note.
            fields = item if isinstance(item, dict) else {"text" if key == "add" else "number": item}
            edits.append(_read_edit(fields if key == "changes" else {**fields, "op": key}))
    return edits


def _read_text(op: str, text: str) -> list[NoteEdit]:
    """Return the edits in a *text* that says what a line would say after its first word: ``[Done]: It was paid.``"""
    first, _, more = text.partition("\n")
    return [copy_with(one, text=f"{one.text}\n{more}") if more else one for one in _read_line(f"{op} {first}")]


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ``SummaryRejected`` for a duplicate key, because one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _make_malformed_error("its JSON has a key twice")
    return found


def _read_edit(fields: Mapping[str, Any]) -> NoteEdit:
    op, number, section, text = (fields.get(key) for key in ("op", "number", "section", "text"))
    if op not in ("add", "replace", "remove"):
        raise _make_malformed_error("an edit is neither add, replace nor remove")
    if not all(one is None or isinstance(one, str) for one in (section, text)):
        raise _make_malformed_error("an edit has something else than text")
    if op == "add":
        if text is None:  # perhaps it is under another key, and would be lost
            raise _make_malformed_error("an addition has no text")
        return NoteEdit("add", 0, section or "", text)
    if isinstance(number, str) and (match := _NUMBER_TEXT.fullmatch(number)):
        number = int(match[1])
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number % 1 != 0:  # models also write 3.0
        raise _make_malformed_error("an edit names no note")
    return NoteEdit(op, int(number), section or "", text or "")


def _make_malformed_error(reason: str) -> SummaryRejected:
    return SummaryRejected("malformed", f"the answer is no list of edits: {reason}")
