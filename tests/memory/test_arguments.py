"""What a host passes in the wrong place or of the wrong kind is an error that says so, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from logged import record
from pydantic import ValidationError

from memory import (
    Attachment,
    CompactedMessage,
    InMemoryStore,
    Memory,
    MessageError,
    Post,
    ProviderFailed,
    Recall,
    Round,
    ToolCall,
    open_store,
)

ANY: Any = None


def memory_of(rounds: int = 3) -> Memory:
    memory = Memory("s")
    for number in range(rounds):
        memory.finish_round(memory.create_round(f"question {number}"))
    return memory


# -- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CompactedMessage(7, 1, "S"), r"end_index.*1.*before.*7.*CompactedMessage\(1, 7"),
        (lambda: CompactedMessage(start_index=7, end_index=5, summary="S"), "end_index"),
        (lambda: CompactedMessage(0, 1, "S"), "start_index: should be greater than or equal to 1;"),
        (lambda: CompactedMessage(ANY, 7, "S"), "start_index: should be a valid integer, not NoneType"),
        (lambda: CompactedMessage(1, 7, ANY), "summary: should be an instance of str, not NoneType"),
        (lambda: CompactedMessage(*[1, 7]), "summary: is missing"),
        (lambda: CompactedMessage(1, 7, "S", sumary="S"), "sumary: unknown; did you mean 'summary'"),
        (lambda: Post(message="m", **{}), "send_from: is missing; send_to: is missing"),
        (lambda: Post(send_from="a", send_to="b", mesage="m"), "mesage: unknown; did you mean 'message'"),
        (lambda: Post(send_from="a", send_to="b", attachment_list=[3]), r"attachment_list\.0: should be .*Attachment"),
        (lambda: Attachment(type="plan", content=ANY), "content: should be an instance of str"),
        (lambda: ToolCall(id="c", name="n", arguments={}), "arguments: should be an instance of str, not dict"),
        (lambda: Round(user_query=ANY), "user_query: should be an instance of str"),
    ],
)
def test_a_record_that_cannot_be_made_names_the_field_and_the_remedy(make: Callable[[], object], says: str) -> None:
    """In our words, with pydantic's as the cause: a ``ValueError``, whoever makes it."""
    with pytest.raises(MessageError, match=says) as raised:
        make()
    assert isinstance(raised.value, ValueError)
    assert "pydantic.dev" not in str(raised.value)


@pytest.mark.parametrize("make", [lambda: Attachment("plan", "1. load"), lambda: CompactedMessage(1, 7, "S", "x")])
def test_values_by_place_that_have_none_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="by name"):
        make()


def test_a_compaction_may_cover_nothing() -> None:
    """So one looks of whose rounds all have failed since."""
    assert CompactedMessage(1, 0, "S").end_index == 0


def test_a_stored_compaction_is_read_whatever_its_numbers_say() -> None:
    """What was refused only later must not make a session unreadable."""
    made = CompactedMessage(1, 7, "S").model_copy(update={"start_index": 7, "end_index": 1})
    read = record("compaction published", role="Planner", compaction=made.model_dump())
    assert (read.compaction.start_index, read.compaction.end_index) == (7, 1)


@pytest.mark.parametrize("record", [CompactedMessage(1, 7, "S"), Post(send_from="a", send_to="b")])
def test_a_record_that_is_written_to_says_how_to_make_another(record: Any) -> None:
    """As a frozen dataclass it raises ``AttributeError``, and holds what it held."""
    before = record.model_dump()
    for field in [*type(record).model_fields, "other"]:
        with pytest.raises(AttributeError, match="model_copy"):
            setattr(record, field, "S")
        with pytest.raises(AttributeError, match="model_copy"):
            delattr(record, field)
    assert record.model_dump() == before


# -- memory ----------------------------------------------------------------------------------------------------------


class OnlyGets:
    def get_compaction(self) -> None: ...


class TakesNoNumber(OnlyGets):
    def notify_rounds_changed(self) -> None: ...


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda memory: Memory(ANY or 5), "session_id"),  # type: ignore[arg-type]
        (lambda memory: Memory(open_store()), "session_id: must be .*store="),  # type: ignore[arg-type]
        (lambda memory: Memory("s", store="sqlite:///chat.db"), "store: must be .*open_store"),  # type: ignore[arg-type]
        (lambda memory: Memory("s", store=InMemoryStore), "store: must be .*the class InMemoryStore"),  # type: ignore[arg-type]
        (
            lambda memory: Memory("s", store=[]),
            "store: must be .*a list has no close and no purge and no read and no redact",
        ),  # type: ignore[arg-type]
        (lambda memory: Memory("s", clock=5), "clock"),  # type: ignore[arg-type]
        (lambda memory: Memory("s", new_id="x"), "new_id"),  # type: ignore[arg-type]
        (
            lambda memory: memory.add_post(None, send_from="a", send_to="b"),
            "round_: must be the round that create_round",
        ),
        (lambda memory: memory.add_post({"id": "x"}, send_from="a", send_to="b"), "round_: .*not dict"),
        (lambda memory: memory.add_post("r", "hello"), "ready Post.*not str"),
        (lambda memory: memory.finish_round(5), "round_"),
        (lambda memory: memory.get_role_rounds(None), "role: must be the name"),
        (lambda memory: memory.get_role_rounds(["Planner"]), "role"),
        (lambda memory: memory.rounds_getter(None), "role"),
        (lambda memory: memory.messages(None), "role"),
        (lambda memory: memory.journal(None), "role"),
        (lambda memory: memory.reload("r1", role=None), "role"),
        (lambda memory: memory.search("question", role=None), "role"),
        (lambda memory: memory.reload(5), "ref: must be .*r12"),
        (lambda memory: memory.pin(5), "post: must be .*r12"),
        (lambda memory: memory.redact(None), "post: must be .*r12"),
        (lambda memory: memory.search(5), "query"),
        (lambda memory: memory.on_round_added(5), "callback: must be .*not int"),
        (lambda memory: memory.on_event([print]), "callback: must be .*not list"),
        (lambda memory: memory.register_compaction_provider("Planner", None), "provider"),
        (lambda memory: memory.register_compaction_provider(OnlyGets(), "Planner"), "role"),
        (lambda memory: memory.register_compaction_provider(None, TakesNoNumber()), "role"),
        (lambda memory: memory.register_compaction_provider("Planner", OnlyGets()), "no notify_rounds_changed"),
        (lambda memory: memory.register_compaction_provider("Planner", TakesNoNumber()), "total_rounds"),
        (lambda memory: memory.register_compaction_provider("Planner", OnlyGets), r"OnlyGets\(\.\.\.\)"),
        (lambda memory: Memory.from_messages(5), "give a list of chat messages"),
        (lambda memory: Memory.from_messages({"role": "user", "content": "q"}), "chat messages, not dict.*into a list"),
        (
            lambda memory: Memory.from_state_dict(memory.state_dict(), "x", store="sqlite:///x.db"),
            "store: must be .*open_store",
        ),
        (lambda memory: open_store(5), "url: must be"),  # type: ignore[arg-type]
        (lambda memory: Recall("Planner", memory), "memory: must be a Memory; a str has no search"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(call: Callable[[Any], object], says: str) -> None:
    """And nothing has happened."""
    memory = memory_of()
    with pytest.raises(TypeError, match=says):
        call(memory)
    assert (memory.snapshot.total, memory.provider("Planner")) == (3, None)


class Gives:
    def __init__(self, given: object) -> None:
        self.given = given

    def get_compaction(self) -> Any:
        return self.given

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None: ...


class Summarised:
    def __init__(self, start_index: Any, end_index: Any, summary: Any) -> None:
        self.start_index, self.end_index, self.summary = start_index, end_index, summary


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a text", "None or an object with start_index, end_index and summary"),
        (Summarised(1, "7", "S"), "None or an object with start_index"),
        (Summarised(1, 7, None), "None or an object with start_index"),
        (Summarised(7, 1, "S"), "before start_index"),
        (Summarised(0, 1, "S"), "start_index"),
    ],
)
def test_what_a_provider_may_not_give_is_told_in_words(given: object, says: str) -> None:
    """The chat goes on without it; the event says what is needed, and nothing of what was given."""
    memory, events = memory_of(), []
    memory.on_event(events.append)
    memory.register_compaction_provider("Planner", Gives(given))
    assert memory.get_role_rounds("Planner")[1] is None
    (event,) = events
    assert isinstance(event, ProviderFailed)
    assert says in event.error


def test_an_error_of_a_providers_own_is_told_by_its_class_alone() -> None:
    """Its message may hold what was said."""

    class Raises(Gives):
        def get_compaction(self) -> Any:
            raise ValueError("my password is swordfish")

    memory, events = memory_of(), []
    memory.on_event(events.append)
    memory.register_compaction_provider("Planner", Raises(None))
    assert memory.get_role_rounds("Planner")[1] is None
    assert [event.error for event in events] == ["ValueError"]


def test_the_cause_of_a_refused_record_is_kept() -> None:
    with pytest.raises(MessageError) as raised:
        Post(send_from="a", send_to="b", message=["my password is swordfish"])
    assert isinstance(raised.value.__cause__, ValidationError)
    assert "swordfish" not in str(raised.value) + str(raised.value.__cause__)
