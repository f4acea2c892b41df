"""Copies that nothing checks when they are made have the fields that their records have: looked up in the source."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import BaseModel

import compactor.events
from compactor.inspector.views import SessionView
from compactor.server import ServerSettings
from memory import Attachment, CompactedMessage, Memory, Note, Post, Reduction, Round, ToolCall
from memory.entries import KINDS
from memory.rounds import Record

ROOT = Path(__file__).parents[2]
EVENTS = [one for one in vars(compactor.events).values() if isinstance(one, type) and issubclass(one, BaseModel)]
RECORDS: list[type[BaseModel]] = [
    *KINDS.values(),
    CompactedMessage,
    Reduction,
    Note,
    Attachment,
    ToolCall,
    Post,
    Round,
    *EVENTS,
    ServerSettings,
    SessionView,
]
#: ``copy_with`` checks the names of dataclasses and named tuples itself; they only need to be known here.
CHECKED = {
    name
    for package in ("memory", "compactor")
    for path in sorted((ROOT / package).rglob("[!_]*.py"))
    if path.parent.name != "integrations" or path.stem in ("base", "contract")  # the others need their frameworks
    for kind in vars(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))).values()
    if isinstance(kind, type)
    for name in (*getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "_fields", ()))
}
FIELDS = {
    "record": {name for record in RECORDS for name in record.model_fields} | CHECKED,
    "snapshot": {one.name for one in fields(Memory().snapshot)},
}


def misspelt(source: str, *, methods: bool = True) -> Iterator[str]:
    """Give what calls of ``copy_with`` name that is no field: the function's of any record, the method's of a snapshot.
    The compactor's methods of that name are a configuration's, which checks what it is given."""
    tree = ast.parse(source)
    ours = any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[-1] == "rounds"
        and any(name.name == "copy_with" for name in node.names)
        for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="copy_with"), keywords=given) if ours:
                known = FIELDS["record"]
            case ast.Call(func=ast.Attribute(attr="copy_with"), keywords=given) if methods:
                known = FIELDS["snapshot"]
            case _:
                continue
        yield from (f"{node.lineno}: {one.arg}" for one in given if one.arg not in known)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["memory", "compactor"])
def test_every_field_that_is_changed_is_one(package: str) -> None:
    """A slip of the pen would be kept beside the field that was meant, and nobody would hear of it."""
    sources = [(path, path.read_text(encoding="utf-8")) for path in sorted((ROOT / package).rglob("*.py"))]
    assert [
        (path.name, wrong) for path, source in sources for wrong in misspelt(source, methods=package == "memory")
    ] == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("from ..rounds import copy_with\ncopy_with(post, mesage='x', number=1)", ["2: mesage"]),
        ("from .changes import copy_with\ncopy_with(notes, order=1)", []),
        ("now.copy_with(nubmer=3).copy_with(number=3)", ["1: nubmer"]),
        ("now.copy_with(**changes)", ["1: None"]),
    ],
)
def test_a_slip_of_the_pen_is_found(source: str, wrong: list[str]) -> None:
    """Also what is handed on under names that are not seen here."""
    assert list(misspelt(source)) == wrong


def within(value: object) -> Iterator[Record]:
    """Give the records in *value*, itself included."""
    if isinstance(value, Record):
        yield value
        value = tuple(value.__dict__.values())
    if isinstance(value, tuple):
        for one in value:
            yield from within(one)


def test_records_that_were_put_together_unchecked_have_all_their_fields_and_no_other() -> None:
    """Those of the log, and the rounds that are read from it."""
    memory = Memory("s")
    memory.append({"role": "system", "content": "Be brief."})
    memory.append({"role": "user", "content": "What is there?"})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    memory.append({"role": "assistant", "content": None, "tool_calls": [call]})
    memory.append({"role": "tool", "tool_call_id": "c", "content": "nothing"})
    memory.append({"role": "assistant", "content": "Nothing."})
    round_ = memory.create_round("And now?")
    memory.add_post(round_, send_from="User", send_to="Planner", message="And now?")
    memory.finish_round(round_)
    memory.append({"role": "assistant", "content": "Who asked?"})
    stored = [entry.record for entry in memory._store.read("s")]
    found = [*within((*stored, *memory.conversation.rounds, *memory.snapshot.header))]
    assert {type(one).__name__ for one in found} >= {"RoundOpened", "PostAdded", "RoundFinished", "Post", "Round"}
    for one in found:
        assert one.__dict__.keys() == type(one).model_fields.keys()
