"""What a model wants changed in numbered notes: reading its answer, and making the changes.

An answer is taken as a whole or not at all. Who counts the notes wrongly once may have hit the wrong one elsewhere, and
a note that was replaced by mistake is gone.
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
from .notes import Span, appended, formed, section_named

Op = Literal["add", "replace", "remove"]


class Change(NamedTuple):
    """One thing that is to be done."""

    op: Op
    #: Which note, from 1; of an addition 0.
    number: int = 0
    #: Under which heading it is added.
    section: str = ""
    text: str = ""


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all of *properties* and no other: strict endpoints want it so."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
#: The JSON schema of an answer, for endpoints that keep a model to one.
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
# Possessive: spaces that were passed are not tried again.
_ADD = re.compile(rf"{_MARK}add\b[ \t]*+(?:\[([^\]]*+)\])?[ \t]*+:[ \t]*+(.*)", re.IGNORECASE)
_REPLACE = re.compile(rf"{_MARK}replace[ \t]+{_WHICH}[ \t]*(?:with[ \t]*:?|:)[ \t]*(.*)", re.IGNORECASE | re.ASCII)
_REMOVE = re.compile(rf"{_MARK}remove[ \t]+({_WHICH}(?:[ \t]*,[ \t]*{_WHICH})*)[ \t]*\.?", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)


def changes_in(answer: str) -> tuple[Change, ...]:
    """Return the changes that *answer* names, as JSON or in plain lines; none where it says that there are none.

    Raises ``SummaryRejected("malformed")`` for anything else.
    """
    text = _unfenced(answer.strip())
    if text.startswith(("{", "[")):
        return tuple(_of_json(text))
    if _NOTHING.fullmatch(text):
        return ()
    return tuple(_of_lines(text))


def is_changes(answer: str) -> bool:
    """Return whether *answer* is nothing but changes, or says that there are none: as notes it would lose all others.

    Notes may have a line among them that reads as a change."""
    text = _unfenced(answer.strip())
    if not text.startswith(("{", "[")) and not _NOTHING.fullmatch(text) and not _of_line(text.partition("\n")[0]):
        return False
    try:
        changes_in(answer)
    except SummaryRejected:
        return False
    return True


def changed(
    notes: Sequence[Note], changes: Iterable[Change], *, order: Sequence[str] = (), span: Span = (0, 0)
) -> tuple[Note, ...]:
    """Return *notes* with *changes* made: what they do not name stays as it is, byte for byte.

    What is new comes from the rounds of *span*, and stands behind what there was, in sections of that *order*. Raises
    ``SummaryRejected("malformed")`` where a change names no note or two are at odds, and where no note would be left.
    """
    texts: dict[int, str] = {}
    removed: set[int] = set()
    added: list[Note] = []
    names = {bare(name): name for name in (*order, *(note.section for note in reversed(notes)))}
    for op, number, section, said in changes:
        text = formed(said)
        if op == "add":
            name = section_named(section)
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
    # What names no section goes on with the last: before them all, it would change the number of every note.
    last = kept[-1].section if kept else ""
    added = [note if note.section else note.model_copy(update={"section": last}) for note in added]
    there = {(note.section, note.text) for note in kept}
    new = {key: note for note in added if (key := (note.section, note.text)) not in there}
    if not kept and not new:
        raise _malformed("they leave no note")
    return appended(kept, new.values(), order)


def _replaced(note: Note, text: str | None, span: Span) -> Note:
    if text is None or text == note.text:
        return note
    first, last = note.first_round or span[0], max(note.last_round, span[1])
    return note.model_copy(update={"text": text, "first_round": first, "last_round": last})


def _unfenced(answer: str) -> str:
    """Return what stands in a block of code, where that is the answer: all of it, or JSON with a word before it."""
    inside = _in_first_fence(answer.split("\n")).strip() if "```" in answer else ""
    return inside if answer.startswith("```") or inside.startswith(("{", "[")) else answer


def _in_first_fence(lines: Sequence[str]) -> str:
    opens = next((place for place, line in enumerate(lines) if _FENCE.fullmatch(line)), len(lines))
    closes = (place for place in range(opens + 1, len(lines)) if lines[place].rstrip(" \t") == "```")
    return "\n".join(lines[opens + 1 : next(closes, opens)])


# -- plain lines -------------------------------------------------------------------------------------------------------


def _of_lines(text: str) -> Iterator[Change]:
    """Give the changes in *text*. What follows one without an empty line, or indented, belongs to it; what comes before
    the first is an introduction."""
    found: list[Change] = []
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


def _of_line(line: str) -> list[Change]:
    if add := _ADD.fullmatch(line):
        return [Change("add", section=add[1] or "", text=add[2])]
    if replace := _REPLACE.fullmatch(line):
        return [Change("replace", int(replace[1]), text=replace[2])]
    if remove := _REMOVE.fullmatch(line):
        return [Change("remove", int(number)) for number in _DIGITS.findall(remove[1])]
    return []


# -- JSON --------------------------------------------------------------------------------------------------------------


def _of_json(text: str) -> Iterator[Change]:
    """Give the changes in *text*: as ``SCHEMA`` has them, or as a list of objects with an ``op``."""
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
    """Return an object of JSON, of whose fields none may stand twice: one of them would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _malformed("it is JSON that says the same thing twice")
    return found


def _fields(op: str, item: Any) -> dict[str, Any]:
    """Return the fields of a change; where it is not an object, it is the one that says what *op* is about."""
    if isinstance(item, dict):
        return {key: value for key, value in item.items() if key != "op"}
    return {"text": item} if op == "add" else {"number": item}


def _of_object(item: Any) -> Change:
    fields = item if isinstance(item, dict) else {}
    op, number, section, text = (fields.get(key) for key in ("op", "number", "section", "text"))
    if op not in ("add", "replace", "remove"):
        raise _malformed("there is one that is neither add, replace nor remove")
    if not all(one is None or isinstance(one, str) for one in (section, text)):
        raise _malformed("there is one whose text is none")
    if op == "add" and text is None:  # said under another name, perhaps: then it would be lost
        raise _malformed("there is one that adds no text")
    return Change(op, 0 if op == "add" else _number(number), section or "", text or "")


def _number(value: Any) -> int:
    """Return the number of a note: models also write it as a text, or as 3.0."""
    if isinstance(value, str) and (found := re.fullmatch(rf"\s*{_WHICH}\s*", value, re.IGNORECASE | re.ASCII)):
        return int(found[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise _malformed("there is one that names no note")
    return int(value)


def _malformed(why: str) -> SummaryRejected:
    return SummaryRejected("malformed", f"the answer is not the changes that were asked for: {why}")
