"""Parses a model's edits of numbered notes, and applies them.

All edits of an answer are applied, or none. One wrong number suggests that others are wrong too, and a note replaced by
mistake is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from memory.overlays import Note
from memory.rounds import freeze_mapping

from ..acceptance.prohibitions import bare
from ..errors import SummaryRejected
from .notes import Span, append_notes, normalize_heading, normalize_text

Op = Literal["add", "replace", "remove"]


class NoteEdit(NamedTuple):
    """One edit."""

    op: Op
    #: Number of the note, from 1; 0 for an addition.
    number: int = 0
    #: Heading of the section that an addition goes to.
    section: str = ""
    text: str = ""


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly *properties*, as strict endpoints require."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
#: The JSON schema of an answer, for endpoints that support structured output.
SCHEMA: Mapping[str, Any] = freeze_mapping(
    _object(
        add=_list(_object(section=_TEXT, text=_TEXT)),
        replace=_list(_object(number=_NUMBER, text=_TEXT)),
        remove=_list(_NUMBER),
    )
)

_FENCE = re.compile(r"```[\w-]*[ \t]*")
_NOTHING = re.compile(
    r"\W*(?:none|nothing|no changes?)(?: (?:to (?:add|note|change)|needed|necessary))?\W*", re.IGNORECASE
)
_MARK = r"(?:[-*+•][ \t]+)?"
_WHICH = r"(?:note[ \t]+)?[#\[]?(\d{1,6})\]?"
# Possessive quantifiers prevent backtracking over spaces.
_ADD = re.compile(rf"{_MARK}add\b[ \t]*+(?:\[([^\]]*+)\])?[ \t]*+:[ \t]*+(.*)", re.IGNORECASE)
_REPLACE = re.compile(rf"{_MARK}replace[ \t]+{_WHICH}[ \t]*(?:with[ \t]*:?|:)[ \t]*(.*)", re.IGNORECASE | re.ASCII)
_REMOVE = re.compile(rf"{_MARK}remove[ \t]+({_WHICH}(?:[ \t]*,[ \t]*{_WHICH})*)[ \t]*\.?", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)


def parse_edits(answer: str) -> tuple[NoteEdit, ...]:
    """Return the edits in *answer*, from JSON or plain lines; empty if it says that nothing changes.

    Raises ``SummaryRejected("malformed")`` for anything else.
    """
    text = _unfenced(answer.strip())
    if text.startswith(("{", "[")):
        return tuple(_of_json(text))
    if _NOTHING.fullmatch(text):
        return ()
    return tuple(_of_lines(text))


def is_edits(answer: str) -> bool:
    """Return whether *answer* consists of edits only, or says that nothing changes.

    Taken as notes, such an answer would lose all others. A single line that looks like an edit may be part of a note.
    """
    text = _unfenced(answer.strip())
    if not text.startswith(("{", "[")) and not _NOTHING.fullmatch(text) and not _of_line(text.partition("\n")[0]):
        return False
    try:
        parse_edits(answer)
    except SummaryRejected:
        return False
    return True


def apply_edits(
    notes: Sequence[Note], changes: Iterable[NoteEdit], *, order: Sequence[str] = (), span: Span = (0, 0)
) -> tuple[Note, ...]:
    """Return *notes* with *changes* applied; all other notes stay byte for byte.

    New notes come from the rounds of *span*. They follow the existing notes, in sections of the given *order*. Raises
    ``SummaryRejected("malformed")`` if an edit names no existing note, if two edits conflict, or if no note would be
    left.
    """
    texts: dict[int, str] = {}
    removed: set[int] = set()
    added: list[Note] = []
    names = {bare(name): name for name in (*order, *(note.section for note in reversed(notes)))}
    for op, number, section, said in changes:
        text = normalize_text(said)
        if op == "add":
            name = normalize_heading(section)
            if text:
                note = Note(text=text, section=names.setdefault(bare(name), name))
                added.append(note.model_copy(update={"first_round": span[0], "last_round": span[1]}))
            continue
        if not 1 <= number <= len(notes):
            raise _malformed(f"they name a note that is not there, {number} of {len(notes)}")
        if (op == "remove" and number in texts) or (op == "replace" and (number in removed or number in texts)):
            raise _malformed(f"they change note {number} twice")
        if op == "remove":
            removed.add(number)
        elif text:
            texts[number] = text
        else:
            raise _malformed(f"they replace note {number} by nothing")
    kept = [_replaced(note, texts.get(n), span) for n, note in enumerate(notes, 1) if n not in removed]
    # A note without a section joins the last one: at the top, it would change the number of every note.
    last = kept[-1].section if kept else ""
    added = [note if note.section else note.model_copy(update={"section": last}) for note in added]
    there = {(note.section, note.text) for note in kept}
    new = {key: note for note in added if (key := (note.section, note.text)) not in there}
    if not kept and not new:
        raise _malformed("they leave no note")
    return append_notes(kept, new.values(), order)


def _replaced(note: Note, text: str | None, span: Span) -> Note:
    if text is None or text == note.text:
        return note
    first, last = note.first_round or span[0], max(note.last_round, span[1])
    return note.model_copy(update={"text": text, "first_round": first, "last_round": last})


def _unfenced(answer: str) -> str:
    """Return the content of a code block if it is the whole answer, or JSON after an introduction."""
    inside = _in_first_fence(answer.split("\n")).strip() if "```" in answer else ""
    return inside if answer.startswith("```") or inside.startswith(("{", "[")) else answer


def _in_first_fence(lines: Sequence[str]) -> str:
    opens = next((place for place, line in enumerate(lines) if _FENCE.fullmatch(line)), len(lines))
    closes = (place for place in range(opens + 1, len(lines)) if lines[place].rstrip(" \t") == "```")
    return "\n".join(lines[opens + 1 : next(closes, opens)])


# -- plain lines -------------------------------------------------------------------------------------------------------


def _of_lines(text: str) -> Iterator[NoteEdit]:
    """Yield the edits in *text*.

    Lines that follow an edit without an empty line, or indented, belong to it. Lines before the first edit are an
    introduction.
    """
    found: list[NoteEdit] = []
    apart = True
    for line in text.splitlines():
        read = _of_line(line)
        if not read and found and line.strip():
            last = found.pop()
            if last.op == "remove" or (apart and not line[0].isspace()):
                raise _malformed("there is a line that is none")
            read = [last._replace(text=f"{last.text}\n{line.removeprefix('  ')}")]
        found += read
        apart = not line.strip()
    if not found:
        raise _malformed("there are none in it, nor does it say so")
    yield from found


def _of_line(line: str) -> list[NoteEdit]:
    if add := _ADD.fullmatch(line):
        return [NoteEdit("add", section=add[1] or "", text=add[2])]
    if replace := _REPLACE.fullmatch(line):
        return [NoteEdit("replace", int(replace[1]), text=replace[2])]
    if remove := _REMOVE.fullmatch(line):
        return [NoteEdit("remove", int(number)) for number in _DIGITS.findall(remove[1])]
    return []


# -- JSON --------------------------------------------------------------------------------------------------------------


def _of_json(text: str) -> Iterator[NoteEdit]:
    """Yield the edits in *text*: JSON as in ``SCHEMA``, or a list of objects with an ``op``."""
    try:
        value, end = json.JSONDecoder(strict=False, object_pairs_hook=_each_once).raw_decode(text)
    except (ValueError, RecursionError):
        raise _malformed("it is no JSON") from None
    if text[end:].strip():
        raise _malformed("something follows the JSON")
    if isinstance(value, list):
        yield from map(_of_object, value)
        return
    for key, items in value.items():
        if not isinstance(items, list):
            raise _malformed("it is other JSON than was asked for")
        if key == "changes":
            yield from map(_of_object, items)
        elif key in ("add", "replace", "remove"):
            yield from (_of_object({"op": key} | _fields(key, item)) for item in items)
        else:
            raise _malformed("it is other JSON than was asked for")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ``SummaryRejected`` for a duplicate key, because one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _malformed("it is JSON that says the same thing twice")
    return found


def _fields(op: str, item: Any) -> dict[str, Any]:
    """Return the fields of an edit; a bare value is the text of an addition, or the number of a note."""
    if isinstance(item, dict):
        return {key: value for key, value in item.items() if key != "op"}
    return {"text": item} if op == "add" else {"number": item}


def _of_object(item: Any) -> NoteEdit:
    fields = item if isinstance(item, dict) else {}
    op, number, section, text = (fields.get(key) for key in ("op", "number", "section", "text"))
    if op not in ("add", "replace", "remove"):
        raise _malformed("there is one that is neither add, replace nor remove")
    if not all(one is None or isinstance(one, str) for one in (section, text)):
        raise _malformed("there is one whose text is none")
    if op == "add" and text is None:  # perhaps it is under another key, and would be lost
        raise _malformed("there is one that adds no text")
    return NoteEdit(op, 0 if op == "add" else _number(number), section or "", text or "")


def _number(value: Any) -> int:
    """Return the number of a note; models also write it as text, or as 3.0."""
    if isinstance(value, str) and (found := re.fullmatch(rf"\s*{_WHICH}\s*", value, re.IGNORECASE | re.ASCII)):
        return int(found[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise _malformed("there is one that names no note")
    return int(value)


def _malformed(why: str) -> SummaryRejected:
    return SummaryRejected("malformed", f"the answer is not the changes that were asked for: {why}")
