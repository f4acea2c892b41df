"""Messages that an ``AutoContextMemory`` keeps on request reload unchanged, and only for their role."""

from __future__ import annotations

from typing import Any

import pytest
from chats import calls, memory_of, result, user
from small_auto_context import context_of, long_text, past, small, tool_run, worked

from compactor.presets import AutoContextMemory
from memory import InMemoryStore, Memory, MessageError, UnknownReference

KEPT = [user("Monday?"), calls("a", arguments='{"day": "é\\ud83d"}'), result("a", "{braces} </summary> \x00 \ud800")]


def test_what_is_offloaded_reloads_as_it_was() -> None:
    """Under any id that is a text; the messages are data."""
    context = context_of()
    for ref_id in ("one", "../../etc/passwd", "é{}\ud800\x00", "r1x", "[1]"):
        context.offload(ref_id, KEPT)
        assert context.reload(ref_id) == KEPT

    context.reload("one")[0]["content"] = "changed"
    assert context.reload("one") == KEPT
    assert context.memory.conversation.rounds == ()


def test_an_earlier_offload_is_never_overwritten() -> None:
    """The same again changes nothing; other messages under the same id are refused, and the first stay."""
    context = context_of()
    context.offload("one", KEPT)
    context.offload("one", iter(KEPT))

    with pytest.raises(MessageError, match=r"clear\(\) it first, or use another id"):
        context.offload("one", KEPT[:1])
    assert context.reload("one") == KEPT


def test_a_cleared_id_may_be_used_again() -> None:
    """Twice, too; clearing an unknown id does nothing."""
    context = context_of()
    for messages in (KEPT, KEPT[:1], KEPT[1:]):
        context.offload("one", messages)
        assert context.reload("one") == messages
        context.clear("one")
        context.clear("one")
        with pytest.raises(UnknownReference):
            context.reload("one")
    assert context.get_offload_context() == {}


@pytest.mark.parametrize("ref_id", ["", None, 7, "r12", "r3-r9", "r12.p3", "r12.p3-p17"])
def test_ids_that_look_like_places_in_the_log_are_refused(ref_id: Any) -> None:
    """A reference in a prompt reloads the original, even if an offload imitates it."""
    with pytest.raises(MessageError, match=r"like r12\.p3"):
        context_of().offload(ref_id, KEPT)


def test_what_is_no_chat_message_is_not_offloaded() -> None:
    """Nothing is kept then, of the messages before it neither."""
    context = context_of()

    deep: Any = "x"
    for _ in range(199):  # as deep as a value may be, but not where it is to be kept
        deep = [deep]
    for wrong in ("text", {"role": "nobody"}, {**user(), "at": object()}, {**user(), "at": deep}):
        with pytest.raises(MessageError):
            context.offload("one", [user(), wrong])  # type: ignore[list-item]
    assert context.get_offload_context() == {}


def test_offloads_outlive_the_process_where_their_memory_does() -> None:
    """And two processes with one store do not overwrite each other's."""
    store = InMemoryStore()
    first, second = (context_of(offloads=Memory("session/offloads", store=store)) for _ in range(2))
    first.offload("one", KEPT)

    with pytest.raises(MessageError, match="use another id"):
        second.offload("one", KEPT[:1])
    second.offload("two", KEPT[:1])
    later = context_of(offloads=Memory("session/offloads", store=store))
    assert later.get_offload_context() == {"one": KEPT, "two": KEPT[:1]}


def test_what_the_steps_offloaded_reloads_by_its_reference() -> None:
    """Each reference that the role sees reloads the messages unchanged."""
    messages = [
        *past(question="First?"),
        *past(*tool_run(1, 6)),
        *past(calls("big"), result("big", long_text("big", 3_000))),
        user("And now?"),
    ]
    context = worked(small(memory_of(*messages), msg_threshold=2, max_token=1_000))
    context.offload("mine", KEPT)

    kept = context.get_offload_context()
    assert list(kept) == ["mine", "r1-r2", "r3.p2"]
    assert kept["r1-r2"] == messages[:16]
    assert kept["r3.p2"] == [messages[18]] == context.reload("r3.p2")
    assert context.reload("r3") == messages[16:20]
    assert context.reload("r3.p0") == [messages[16]]
    assert context.reload("r3.p0-p1") == messages[16:18]
    assert context.reload("r3.p1-r3.p2") == messages[17:19]


def test_nothing_reloads_that_the_role_may_not_see() -> None:
    """Of other roles' posts, failed rounds and missing posts."""
    memory = Memory()
    round_ = memory.create_round("Q")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="Between us.")
    memory.finish_round(memory.create_round("Gone"), "failed")
    context = AutoContextMemory(memory, "Reviewer")

    assert context.reload("r1") == [user("Q")]
    for ref in ("r1.p1", "r2", "r3", "r0", "unknown"):
        with pytest.raises(UnknownReference):
            context.reload(ref)
