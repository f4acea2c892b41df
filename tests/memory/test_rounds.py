"""Records are deeply immutable, and give back exactly what was put in."""

from __future__ import annotations

import ast
import copy
import pickle
import sys
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, field, replace
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path
from threading import Barrier
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from compactor import Prices, Usage
from memory import Attachment, CompactedMessage, Event, MessageError, Post, Reduction, Round, ToolCall
from memory.rounds import (
    EMPTY,
    MAX_DEPTH,
    FrozenMapping,
    cached_property,
    copy_with,
    freeze,
    freeze_mapping,
    make_id,
    thaw,
    utc_now,
)
from memory.values import ValueObject

AWKWARD = ["", "{", "}", "{0}", "%s", "</summary>", "<|endoftext|>", "a\0b", "\ud800", "\udfff x", "é😀\u2028\r\n"]

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def a_round() -> Round:
    post = Post(
        id="p1",
        send_from="Planner",
        send_to="User",
        message="done",
        attachment_list=[Attachment(id="a1", type="plan", content="1. look", extra={"rows": [1, {"x": None}]})],
        tool_calls=[ToolCall(id="c1", name="search", arguments='{"q": "x"}')],
        extra={"cost": {"tokens": [1, 2]}},
    )
    return Round(id="r1", user_query="find x", post_list=[post], extra={"tags": ["a"]})


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", AWKWARD)
def test_text_is_kept_to_the_character(text: str) -> None:
    """Braces, tags, NUL and lone surrogates are data like any other."""
    call = ToolCall(id=text, name=text, arguments=text)
    attachment = Attachment(type=text, content=text)
    post = Post(send_from=text, send_to=text, message=text, kind=text, tool_call_id=text,
                attachment_list=(attachment,), tool_calls=(call,), extra={text: text})  # fmt: skip
    round_ = Round(user_query=text, post_list=(post,))
    assert (round_.user_query, post.message, post.kind, post.tool_call_id) == (text,) * 4
    assert (call.id, call.name, call.arguments) == (attachment.type, attachment.content, post.send_to) == (text,) * 3
    assert post.extra == {text: text}
    assert round_.model_copy(update={"state": "finished"}).post_list[0] is post


@pytest.mark.parametrize("record", [Post, Attachment, ToolCall, Round])
def test_text_fields_take_text_only(record: type) -> None:
    """A number that became "7" would not come out as it went in."""
    good = {"send_from": "a", "send_to": "b", "type": "t", "id": "i", "name": "n", "user_query": "q"}
    fields = {name: good[name] for name, field in record.model_fields.items() if field.is_required()}
    assert record(**fields)
    for name in fields:
        for wrong in (7, None, b"bytes", ["text"]):
            with pytest.raises(MessageError):
                record(**fields | {name: wrong})


def test_a_misspelt_field_is_refused() -> None:
    """What is stored is stored for ever, so a typing mistake must not be."""
    with pytest.raises(MessageError):
        Post(send_from="a", send_to="b", mesage="hello")


def test_errors_never_show_what_a_field_held() -> None:
    """Errors end up in logs, and conversations must not."""
    with pytest.raises(MessageError) as raised:
        Round(user_query=["my password is swordfish"], id="r")
    assert "user_query" in str(raised.value)
    assert "swordfish" not in str(raised.value)
    assert isinstance(raised.value.__cause__, ValidationError)
    assert "swordfish" not in str(raised.value.__cause__)
    with pytest.raises(MessageError, match=r"no Post.*send_to: is missing") as raised:
        Post(send_from=b"swordfish")
    assert "swordfish" not in str(raised.value)


@pytest.mark.parametrize("state", ["open", "", None, "Finished"])
def test_a_round_is_created_finished_or_failed(state: object) -> None:
    """There is no fourth state that some part of the library would not know."""
    with pytest.raises(MessageError):
        Round(user_query="q", state=state)


def test_a_round_is_closed_once_it_is_finished_or_failed() -> None:
    """Only a closed round may be compacted."""
    assert not Round(user_query="", state="created").closed
    assert Round(user_query="", state="finished").closed
    assert Round(user_query="", state="failed").closed


# -- immutability -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["user_query", "state", "post_list", "id", "extra"])
def test_no_field_of_a_record_can_be_set(path: str) -> None:
    """Records change by making new ones."""
    round_ = a_round()
    with pytest.raises(AttributeError):
        setattr(round_, path, getattr(round_, path))
    with pytest.raises(AttributeError):
        round_.post_list[0].message = "other"


def test_what_was_handed_in_can_change_without_changing_the_record() -> None:
    """Lists and mappings are copied in, all the way down."""
    posts, extra = [a_round().post_list[0]], {"deep": {"list": [1, {"x": 2}]}}
    round_ = Round(user_query="q", post_list=posts, extra=extra)
    posts.clear()
    extra["deep"]["list"][1]["x"] = 3
    extra["more"] = {}
    assert len(round_.post_list) == 1
    assert thaw(round_.extra) == {"deep": {"list": [1, {"x": 2}]}}


def test_what_a_record_gives_out_cannot_be_changed() -> None:
    """Nested lists are tuples, nested mappings refuse every way of changing them."""
    mapping = a_round().post_list[0].attachment_list[0].extra
    assert mapping["rows"] == (1, {"x": None})
    for change in (
        lambda m: m.__setitem__("k", 1),
        lambda m: m.__delitem__("rows"),
        lambda m: m.update(k=1),
        lambda m: m.pop("rows"),
        lambda m: m.popitem(),
        lambda m: m.clear(),
        lambda m: m.setdefault("k", 1),
        lambda m: m.__ior__({"k": 1}),
        lambda m: m["rows"][1].__setitem__("x", 1),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change(mapping)
    with pytest.raises(TypeError):
        mapping["rows"][0] = 2
    assert mapping == {"rows": (1, {"x": None})}
    assert mapping | {"k": 1} == {"rows": (1, {"x": None}), "k": 1}


def test_usage_of_a_compaction_is_read_only_too() -> None:
    """A compaction is shared by every prompt that shows it."""
    usage = {"input_tokens": 10, "output_tokens": 2}
    compaction = CompactedMessage(start_index=1, end_index=3, summary="s", usage=usage)
    usage["input_tokens"] = 0
    assert compaction.usage == {"input_tokens": 10, "output_tokens": 2}
    with pytest.raises(TypeError):
        compaction.usage["input_tokens"] = 0
    assert {compaction: 1}[compaction.model_copy()] == 1
    assert CompactedMessage(start_index=1, end_index=3, summary="s").usage is None


@pytest.mark.parametrize(
    "record",
    [
        a_round(),
        a_round().post_list[0],
        CompactedMessage(start_index=1, end_index=2, summary="\ud800{}", usage={"input_tokens": 1}),
        Reduction(round_id="r", first_post_id="a", last_post_id="b", kind="dropped", extra={"n": [1]}),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_pickle_copy_and_hash(record: object) -> None:
    """They travel between processes, into sets and through deepcopy, and stay what they are."""
    for other in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):  # noqa: S301
        assert other == record
        assert hash(other) == hash(record)
        assert type(other.extra) is FrozenMapping
    assert len({record, copy.deepcopy(record)}) == 1


def test_a_frozen_mapping_copies_as_itself_and_pickles_as_an_equal_one() -> None:
    """Nothing can change it, so a copy would be waste."""
    mapping = freeze_mapping({"a": [1, {"b": 2}]})
    assert copy.copy(mapping) is copy.deepcopy(mapping) is mapping
    restored = pickle.loads(pickle.dumps(mapping))  # noqa: S301
    assert restored == mapping
    assert type(restored["a"][1]) is FrozenMapping
    assert hash(restored) == hash(mapping) != hash(EMPTY)


# -- freezing -----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(any_text, json_values, max_size=4))
@settings(deadline=None, max_examples=30)
def test_freezing_and_thawing_gives_equal_data(value: dict[str, object]) -> None:
    """Whatever JSON can hold comes back as it was, types included."""
    thawed = thaw(freeze_mapping(value))
    assert thawed == value
    assert repr(thawed) == repr(value)


def test_any_mapping_and_sequence_of_json_values_is_taken() -> None:
    """Hosts hand in their own kinds of dict."""
    assert freeze_mapping(UserDict({"a": MappingProxyType({"b": (1, 2)})})) == {"a": {"b": (1, 2)}}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": object()}, "object cannot be stored as JSON"),
        ({"a": [b"x"]}, "bytes cannot be stored"),
        ({"a": {1, 2}}, "set cannot be stored"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "datetime cannot be stored"),
        ({1: "x"}, "keys must be strings, not int"),
        ({"a": {None: "x"}}, "keys must be strings, not NoneType"),
        ({"a": float("nan")}, "no NaN"),
        ({"a": [float("-inf")]}, "infinite"),
        ({"a": 10**5_000}, "bits"),
        ([("a", 1)], "expected a mapping, got list"),
        (None, "expected a mapping, got NoneType"),
        (nested(100_000), f"more than {MAX_DEPTH} deep"),
    ],
    ids=["object", "bytes", "set", "datetime", "int key", "None key", "NaN", "inf", "long int", "list", "None", "deep"],
)
def test_what_json_cannot_hold_is_refused_with_the_remedy(value: object, said: str) -> None:
    """It would be lost, or fail, only when the session is saved."""
    with pytest.raises(MessageError, match=said):
        freeze_mapping(value)


def test_nesting_is_taken_up_to_the_limit() -> None:
    """The limit is where it says."""
    assert thaw(freeze(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(MessageError):
        freeze(nested(MAX_DEPTH + 2))


# -- defaults -----------------------------------------------------------------------------------------------------------


def test_ids_are_random_and_times_are_utc() -> None:
    """Two records made alike are two; stamps compare across machines."""
    assert Post(send_from="a", send_to="b").id != Post(send_from="a", send_to="b").id
    assert len({make_id() for _ in range(1_000)}) == 1_000  # more than are drawn in one go
    assert utc_now().tzinfo is UTC
    assert Round(user_query="q").created_at.utcoffset() is not None


# -- overlays -----------------------------------------------------------------------------------------------------------


def test_a_compaction_names_the_rounds_it_covers_by_the_logs_numbers() -> None:
    """A model that reads "Rounds 1-9" can ask for one of them, though the third has failed and is hidden."""
    compaction = CompactedMessage(start_index=1, end_index=8, end_number=9, summary="They {agreed}.")
    text = compaction.to_system_message()
    assert text.startswith("[Conversation History Summary (Rounds 1-9)]\nThey {agreed}.\n")
    assert "nothing in it is a new request" in text
    assert CompactedMessage(start_index=1, end_index=8, summary="").last_round == 8


def test_what_changes_with_a_publication_stands_on_the_prompts_last_line() -> None:
    """So a provider's prefix cache keeps all that stands before it."""
    older = CompactedMessage(start_index=1, end_index=7, summary="same")
    newer = older.model_copy(update={"end_index": 12})
    *beginning, last = older.to_prompt().splitlines()
    *beginning_after, last_after = newer.to_prompt().splitlines()
    assert beginning == beginning_after
    assert "rounds 1-7, kept in full: reload r1-r7." in last
    assert "rounds 1-12, kept in full: reload r1-r12." in last_after


@pytest.mark.parametrize("wrong", [{"start_index": 0}, {"end_index": -1}, {"generation": -1}, {"summary": None}])
def test_a_compaction_with_impossible_numbers_is_refused(wrong: dict[str, object]) -> None:
    """Rounds are counted from 1, and generations from 0."""
    with pytest.raises(MessageError):
        CompactedMessage(**{"start_index": 1, "end_index": 2, "summary": "s"} | wrong)


def test_a_record_with_other_fields_is_what_pydantic_makes() -> None:
    """It compares, copies, pickles and turns into JSON like one that was checked again."""
    post = Post(send_from="a", send_to="b", message="m", tool_calls=(ToolCall(id="c", name="n"),))
    other = copy_with(post, number=3, message="other")
    assert other == post.model_copy(update={"number": 3, "message": "other"})
    assert (post.number, post.message) == (0, "m")
    assert pickle.loads(pickle.dumps(other)) == copy.deepcopy(other) == other  # noqa: S301  (its own)
    assert Post.model_validate_json(other.model_dump_json()) == other
    assert copy_with(other, number=0).model_copy(update={"message": "m"}) == post
    assert copy_with(post).model_fields_set == set()  # though one that was copied from another says what was set in it
    with pytest.raises(AttributeError, match="does not change"):
        other.number = 4  # type: ignore[misc]


def test_threads_may_be_the_first_to_use_a_record_at_the_same_time() -> None:
    """Each gets a whole record, however the work of preparing its class is divided between them."""
    kinds = [type(f"Measured{n}", (Event,), {"__annotations__": {"value": int, "unit": str}}) for n in range(20)]
    start = Barrier(8)

    def make(kind: type[Event]) -> dict[str, object]:
        return kind(value="7", unit="s").facts()  # type: ignore[call-arg]

    def make_all(_thread: int) -> list[dict[str, object]]:
        start.wait()
        return [make(kind) for kind in kinds]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(make_all, range(8)))
    finally:
        sys.setswitchinterval(before)

    facts = {"session": "", "role": "", "seconds": 0.0, "value": 7, "unit": "s"}
    assert made == [[facts] * 20] * 8


def test_editors_show_the_arguments_of_a_class_that_was_not_used_yet() -> None:
    class Note(Post):
        weight: float = 0.0

    class Remark(Note):
        tone: str = ""

    assert {"send_from", "weight", "tone"} <= signature(Remark).parameters.keys()
    assert {"send_from", "weight"} <= signature(Note).parameters.keys()
    assert "tone" not in signature(Note).parameters


# -- a property that is worked out once ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    numbers: tuple[int, ...]
    read: list[str] = field(default_factory=list, compare=False)

    @cached_property
    def total(self) -> int:
        """The sum of them."""
        self.read.append("read")
        return sum(self.numbers)


def test_it_is_worked_out_when_it_is_first_asked_for_and_kept() -> None:
    """Also on a frozen record; a record that is changed works out its own."""
    sheet = Sheet((1, 2, 3))
    assert sheet.read == []
    assert [sheet.total, sheet.total] == [6, 6]
    assert sheet.read == ["read"]

    assert replace(sheet, numbers=(4,)).total == 4
    assert sheet == Sheet((1, 2, 3))


def test_one_that_fails_is_worked_out_again() -> None:
    """What was raised is not kept."""
    asked = iter(["", "7"])

    class Late:
        @cached_property
        def value(self) -> int:
            return int(next(asked))

    late = Late()
    with pytest.raises(ValueError, match="invalid literal"):
        _ = late.value
    assert late.value == 7


@pytest.mark.slow
@pytest.mark.parametrize("package", ["memory", "prompts", "compactor"])
def test_nothing_else_is_used_for_it(package: str) -> None:
    """``functools.cached_property`` has a lock before Python 3.12: a child that is forked while a thread works one out
    would wait for it for ever."""
    modules = list((Path(__file__).parents[2] / package).rglob("*.py"))
    assert modules
    for path in modules:
        imported = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        others = [node for node in imported if node.module == "functools"]
        assert "cached_property" not in {alias.name for node in others for alias in node.names}, path


def test_the_class_shows_the_property_itself() -> None:
    """With what it says of itself."""
    assert Sheet.total.__doc__ == "The sum of them."


# -- records that are compared and printed as frozen dataclasses -----------------------------------------------------


@dataclass(frozen=True)
class Plain:
    first: int
    second: str = ""
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ours(ValueObject):
    first: int
    second: str = ""
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


FIELDS = st.tuples(st.integers(0, 1), st.sampled_from(["", "a"]), st.integers(0, 1), st.integers(0, 1))


@given(FIELDS, FIELDS)
def test_a_value_object_is_like_a_frozen_dataclass(one: tuple[int, str, int, int], other: tuple[int, str, int, int]):
    """Equal, hashed and printed by the same fields; never equal to another class."""
    assert (Ours(*one) == Ours(*other)) is (Plain(*one) == Plain(*other))
    assert len({Ours(*one), Ours(*other)}) == len({Plain(*one), Plain(*other)})
    assert repr(Ours(*one)) == repr(Plain(*one)).replace("Plain", "Ours")
    assert Ours(*one) != Plain(*one)


def test_a_public_record_copies_pickles_and_refuses_changes() -> None:
    """What hosts do with a record of the library works, and two with the same fields are the same."""
    prices = Prices(cached_input=0.25)

    again = pickle.loads(pickle.dumps(prices))  # noqa: S301 - our own bytes
    assert prices == again == replace(Prices(), cached_input=0.25) == copy.deepcopy(prices)
    assert hash(prices) == hash(Prices(cached_input=0.25))
    assert repr(prices).startswith("Prices(cached_input=0.25")
    assert Usage(1) != Usage(2)
    with pytest.raises(FrozenInstanceError):
        prices.cached_input = 0.5  # type: ignore[misc]
