"""What a store keeps of an entry is ASCII text, and gives the very same record back."""

from __future__ import annotations

import ast
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, PlainSerializer

import compactor
import memory
import prompts
from memory import Attachment, CompactedMessage, Entry, NewerVersion, Post, Reduction, StoreError, ToolCall
from memory.entries import (
    BODY_VERSION,
    KINDS,
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    EventRecorded,
    HeaderAdded,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    RoundUndone,
    ShownRecorded,
    StandIn,
    UsageRecorded,
    from_ascii,
)
from memory.messages import NO_FIELDS
from memory.rounds import EMPTY, MAX_BITS, MAX_DEPTH, Record, copy_with, run_dump

NOON = datetime(2026, 2, 3, 12, 0, 0, 123456, tzinfo=UTC)
POST = Post(
    id="p",
    send_from="Planner",
    send_to="User",
    message="m",
    attachment_list=(Attachment(id="a", type="plan", content="c", extra={"k": [1, None, {"x": 1.5}]}),),
    tool_calls=(ToolCall(id="c", name="f", arguments="{}"),),
    tool_call_id="c0",
    kind="tool_result",
    number=3,
    created_at=NOON,
    extra={"unknown": True},
)
RECORDS: list[Record] = [
    HeaderAdded(post=POST),
    RoundOpened(round_id="r", user_query="q", created_at=NOON, extra={"openai": {}}),
    PostAdded(round_id="r", post=POST),
    RoundFinished(round_id="r"),
    RoundFailed(round_id="r"),
    RoundUndone(round_id="r", continued_in="q", copied=2),
    CompactionPublished(
        role="Planner",
        compaction=CompactedMessage(
            start_index=1, end_index=4, summary="s", end_round_id="r", generation=2, end_number=5, created_at=NOON,
            model="m", usage={"input_tokens": 1}, extra={"k": 1},
        ),
        round_ids=("q", "r"), digest="0f", checks=("empty",), strategy="compact_rounds",
    ),
    CompactionPrepared(
        role="Planner", digest="0f", base=1, kind="rounds", text="s", model="m", usage={"input_tokens": 1},
        checks=("empty",), compaction=CompactedMessage(start_index=1, end_index=4, summary="s"), round_ids=("q", "r"),
    ),
    CompactionReverted(role="Planner", generation=3),
    ReductionPublished(
        role="Planner",
        reduction=Reduction(
            round_id="r", first_post_id="", last_post_id="p", kind="summarised", text="t", generation=2, last_number=3,
            created_at=NOON, model="m", usage={"input_tokens": 1}, extra={"k": 1},
        ),
    ),
    ReductionWithdrawn(role="Planner", round_id="r", first_number=0, last_number=3),
    PostPinned(round_id="r", number=0, pinned=False),
    PostRedacted(round_id="r", numbers=(0, 1)),
    UsageRecorded(role="Planner", input_tokens=9, counted=8, current=False),
    ShownRecorded(
        role="assistant", made=(StandIn(id="a", message={"role": "user", "content": "t"}, sources=("1.0-3", "2.1")),),
        shown=("=a", "3.0-2"), direct=("b",), direct_before=1, in_vain=("=a",), settled=2, taken=((3, 2),),
        cleared=(1, 0),
    ),
    EventRecorded(role="Planner", name="compaction.failed", facts={"failures": 2}),
]  # fmt: skip

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
#: Many high and low halves of characters, in every order.
halves = st.text(st.sampled_from('\ud83d\ude00\ud800\udfff😀\\u"é\0a'), max_size=12)


def reread(record: Record) -> Record | None:
    """Return what becomes of *record* on its way through a store that keeps text."""
    entry = Entry.of(record)
    assert entry.body.isascii()
    assert "\0" not in entry.body
    return Entry(entry.kind, body=entry.body).record


def test_a_body_of_a_newer_version_is_refused_and_says_so() -> None:
    """It is not read as if it were one of ours: upgrading is the remedy, and nothing was changed."""
    known = Entry.of(RoundFinished(round_id="r"))
    newer = Entry(known.kind, body=known.body, number=7, version=BODY_VERSION + 1)
    with pytest.raises(NewerVersion, match=r"entry 7 \(round closed\) .* newer version .* upgrade"):
        newer.record  # noqa: B018


def test_every_kind_of_entry_is_tried_here() -> None:
    """A kind that is added is added to these tests."""
    assert {type(record) for record in RECORDS} == set(KINDS.values())


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_an_entry_gives_its_record_back(record: Record) -> None:
    """Ids, numbers, stamps and nested values survive saving and loading."""
    again = reread(record)
    assert again == record
    assert hash(again) == hash(record)
    json.loads(Entry.of(record).body)


@given(st.one_of(any_text, halves), st.dictionaries(halves, st.lists(halves, max_size=2), max_size=2))
@settings(deadline=None, max_examples=60)
def test_any_text_survives(text: str, extra: dict[str, list[str]]) -> None:
    """Also a character whose two halves were joined again, as streaming does: JSON alone would merge them into one."""
    record = PostAdded(round_id=text, post=Post(send_from=text, send_to="", message=text, extra=extra))
    assert reread(record) == record


@given(st.one_of(any_text, halves), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_record_of_every_turn_is_written_with_all_its_fields(text: str, asked: bool) -> None:
    """They take a short way of their own, and older versions read what it writes: no field may be missing there."""
    extra = NO_FIELDS if asked else EMPTY
    post = Post(id=text, send_from=text, send_to="b", message=text, tool_call_id=text or None, number=2, kind=text)
    opened = RoundOpened(round_id=text, user_query=text, created_at=NOON)
    for record in (
        RoundFinished(round_id=text),
        copy_with(opened, extra=extra),
        PostAdded(round_id=text, post=copy_with(post, created_at=NOON, extra=extra)),
    ):
        stamp = NOON.isoformat().replace("+00:00", "Z")
        assert set_stamps(from_ascii(Entry.of(record).body), stamp) == set_stamps(record.model_dump(), stamp)


def set_stamps(value: Any, stamp: str) -> Any:
    """Return *value* as JSON has it, with *stamp* as every time: Z and +00:00 are the same zone."""
    if isinstance(value, dict):
        return {key: stamp if key == "created_at" else set_stamps(item, stamp) for key, item in value.items()}
    return [*value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("message", ["plain", "é", "\ud800"])
def test_a_stamp_in_a_zone_of_odd_seconds_keeps_its_moment(message: str) -> None:
    """Local mean times of old have such offsets, which no text form says: they are kept in UTC."""
    stamp = NOON.astimezone(timezone(timedelta(minutes=19, seconds=32)))
    again = reread(PostAdded(round_id="r", post=Post(send_from="a", send_to="b", message=message, created_at=stamp)))
    assert isinstance(again, PostAdded)
    assert again.post.created_at == NOON
    assert again.post.created_at.utcoffset() == timedelta(0)


def test_values_at_the_limits_survive() -> None:
    """What a record takes, a store can keep: the deepest nesting, the longest integer, a stamp of any zone."""
    deep: dict[str, object] = {}
    for _ in range(MAX_DEPTH - 1):
        deep = {"in": deep}
    zone = timezone(timedelta(hours=5, minutes=30))
    post = Post(
        send_from="a", send_to="b", created_at=NOON.astimezone(zone), extra={"deep": deep, "long": (1 << MAX_BITS) - 1}
    )
    assert reread(PostAdded(round_id="r", post=post)) == PostAdded(round_id="r", post=post)


def test_the_record_an_entry_was_made_of_is_not_copied() -> None:
    """A store in memory pays for no text."""
    entry = Entry.of(RECORDS[0])
    assert entry.record is RECORDS[0]
    assert entry.with_number(4).record is RECORDS[0]


def test_text_is_made_once() -> None:
    """Numbering an entry does not print it again."""
    entry = Entry.of(RECORDS[0])
    assert entry.body is entry.body is entry.with_number(2).body


def test_an_entry_keeps_its_id_and_stamp_when_it_is_numbered() -> None:
    """By its id a commit whose reply was lost is recognised."""
    entry = Entry("round closed", body='{"round_id":"r"}', id="", created_at=NOON)
    numbered = entry.with_number(7)
    assert (numbered.id, numbered.created_at, numbered.number, entry.number) == ("", NOON, 7, 0)
    assert numbered == entry
    assert hash(numbered) == hash(entry)


def test_entries_of_the_same_record_are_two() -> None:
    """The same thing may happen twice; each gets an id of its own."""
    first, second = Entry.of(RECORDS[3]), Entry.of(RECORDS[3])
    assert first != second
    assert first.body == second.body
    assert first != "round closed"


def test_an_entry_shows_no_content() -> None:
    """Entries end up in logs and assertion messages."""
    entry = Entry.of(RoundOpened(round_id="r", user_query="swordfish", created_at=NOON))
    assert "swordfish" in entry.body
    assert "swordfish" not in repr(entry)
    assert "round opened" in repr(entry)


def test_a_kind_of_a_newer_version_is_no_error() -> None:
    """A session stays readable by the version before; what it does not know it leaves alone."""
    entry = Entry("starred", body='{"post_id":"p"}', number=3)
    assert entry.record is None
    assert entry.body == '{"post_id":"p"}'


@pytest.mark.parametrize(
    "body",
    ["", "{", "null", "[]", "7", '"text"', '"\\u00e9"', "{}", '{"round_id":7}', '{"round_id":"r","swordfish":1}', "[" * 100_000],
    ids=["empty", "cut off", "null", "list", "number", "string", "non-ASCII string", "no field", "wrong type", "unknown field", "deep"],
)  # fmt: skip
def test_a_broken_body_is_an_error_with_the_remedy(body: str) -> None:
    """It names the entry, keeps the cause, and shows nothing of what the entry holds."""
    with pytest.raises(StoreError, match=r"entry 12 \(round closed\).*backup") as raised:
        _ = Entry("round closed", body=body, number=12).record
    assert raised.value.__cause__ is not None
    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("method", ["model_dump", "model_dump_json"])
def test_an_interrupt_while_a_record_is_written_out_is_an_interrupt(raised: type[BaseException], method: str) -> None:
    """And no error of pydantic's, which a host would take for a fault in what it stores."""

    def interrupted(_value: object) -> object:
        raise raised

    class Interrupted(BaseModel):
        value: Annotated[int, PlainSerializer(interrupted)] = 1

    with pytest.raises(raised):
        run_dump(getattr(Interrupted(), method))


@pytest.mark.slow
def test_whatever_is_dumped_lets_interrupts_out() -> None:
    """A dumping method of pydantic's is called by ``run_dump`` alone, but in the server, whose records hold plain JSON:
    no Python code runs while they are dumped."""
    calls = {
        f"{path.name}:{node.lineno}"
        for package in (memory, compactor, prompts)
        for path in Path(package.__file__ or "").parent.rglob("*.py")
        if path.parent.name != "server"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "model_dump" in node.func.attr
    }
    # At the import it comes before whoever could take it for something else.
    assert {call.partition(":")[0] for call in calls} == {"events.py"}, calls
