"""A conversation that is compressed when it is read: what was added comes out equal, and nothing is lost, torn or taken from
who still has to read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, result, user
from compressed_memory import SHORT, SYSTEM, filled, heard, run, shortened, shown, turn, turns
from hypothesis import given
from hypothesis import strategies as st

from compactor.presets import MemoryCompressed, MemoryWithCompress, NotAMessage
from memory import Memory, MessageError

# -- adding and reading -----------------------------------------------------------------------------------------------


def test_what_was_added_comes_out_equal() -> None:
    """Below the limit nothing changes: names, parts, ids and the order."""
    conversation = [SYSTEM, {**user("hi"), "name": "Ann"}, user([{"type": "text", "text": "more"}]), *turns(2)]
    memory = MemoryWithCompress()

    run(memory.add(conversation[0]))
    run(memory.add(conversation[1:]))
    run(memory.add(None))

    assert shown(memory) == conversation
    assert run(memory.size()) == len(conversation)


def test_callers_get_copies() -> None:
    """Changing a message before or after changes nothing that is shown."""
    said = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    memory = MemoryWithCompress()
    run(memory.add(said))
    said["content"] = "changed"
    shown(memory)[0]["content"][0]["text"] = "changed"

    assert shown(memory) == [user([{"type": "text", "text": "hi"}])]


@pytest.mark.parametrize("wrong", ["hi", 3, ["hi"], [user(), None], {"content": "no role"}, [{"role": "wizard"}]])
def test_what_is_no_message_is_a_type_error(wrong: Any) -> None:
    """As its users know; an error of this library's too, and none of the messages is stored."""
    memory = MemoryWithCompress()

    for call in (memory.add, memory.direct_update_memory):
        with pytest.raises(NotAMessage, match=r"message [12]: ") as raised:
            run(call(wrong))
        assert isinstance(raised.value, TypeError)
        assert isinstance(raised.value, MessageError)
    assert run(memory.size()) == 0
    assert shown(memory) == []


def test_messages_appended_to_the_log_are_shown_too() -> None:
    """A host may go on writing to the Memory it has."""
    log = Memory.from_messages(turns(1))
    memory = MemoryWithCompress(memory=log)
    before = shown(memory)
    log.append(user("and P-200?"))

    assert before == turns(1)
    assert shown(memory) == [*turns(1), user("and P-200?")]


def test_a_round_that_failed_is_not_shown() -> None:
    """A message hidden in the log is hidden here."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))
    memory.memory.finish_round(memory.memory.conversation.rounds[0], state="failed")

    assert shown(memory) == turn(2)


def test_the_newest_messages_come_with_the_calls_they_answer() -> None:
    """recent_n counts messages; a result is never parted from its call."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))

    assert shown(memory, recent_n=1) == turn(2)[-1:]
    assert shown(memory, recent_n=2) == turn(2)[1:]
    assert [shown(memory, recent_n=number) for number in (0, -1, 99, None)] == [turns(2)] * 4


def test_a_result_reaching_far_back_brings_what_lies_between() -> None:
    """Two blocks that interleave come both."""
    conversation = [calls("a"), calls("b"), result("a"), result("b"), answer()]
    memory = MemoryWithCompress()
    run(memory.add(conversation))

    assert shown(memory, recent_n=2) == conversation


def test_a_filter_never_leaves_half_a_call() -> None:
    """It returns neither a refused message nor one that would stand alone."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))

    only_users = shown(memory, filter_func=lambda _index, message: message["role"] == "user")
    without_results = shown(memory, filter_func=lambda _index, message: message["role"] != "tool")
    later = shown(memory, filter_func=lambda index, _message: index >= 4, recent_n=1)

    assert only_users == [turn(1)[0], turn(2)[0]]
    assert without_results == [turn(1)[0], turn(1)[3], turn(2)[0], turn(2)[3]]
    assert later == turn(2)[3:]


# -- nothing is lost --------------------------------------------------------------------------------------------------


def test_compressed_messages_are_read_by_reference() -> None:
    """Whole rounds in one reference, parts of a round by their posts."""
    memory = filled([*turns(3), user("4"), calls("d"), result("d", "found D9"), calls("e")])
    now = shown(memory)

    assert now == [SHORT, user("4"), SHORT, calls("e")]
    assert [memory.references(index) for index in range(4)] == [("r1-r3",), ("r4.p0",), ("r4.p1-p2",), ("r4.p3",)]
    assert "depot D2" in memory.memory.reload("r1-r3")
    assert "found D9" in memory.memory.reload("r4.p1-p2")


def test_the_message_made_here_names_where_to_read() -> None:
    """Offline by default: from the user's side, with the reference, and no tag of ours opened by the conversation."""
    memory = MemoryWithCompress(2_000)
    run(memory.add([*turns(6), user("What is </compressed_memory>?"), answer("A tag."), user("and now?")]))
    events = heard(memory)

    first, last = shown(memory)

    assert (first["role"], last) == ("user", user("and now?"))
    assert first["content"].startswith("<compressed_memory>\n")
    assert first["content"].endswith("</compressed_memory>\n[Background, no new request; reload r1-r7]")
    assert first["content"].count("</compressed_memory>") == 1
    assert "depot D" in memory.memory.reload("r1-r7")
    [told] = events
    assert isinstance(told, MemoryCompressed)
    assert (told.part, told.messages_before, told.messages_after) == ("past", 26, 1)
    assert told.size_after < told.size_before


def test_finished_work_is_told_as_done() -> None:
    """So that an agent does not make the calls again; and never in its own voice."""
    memory = MemoryWithCompress(1_500)
    steps = [(calls(f"c{number}"), turn(number)[2] | {"tool_call_id": f"c{number}"}) for number in range(1, 9)]
    run(memory.add([user("Where are they?"), *(message for step in steps for message in step)]))

    question, work, *rest = shown(memory)

    assert question == user("Where are they?")
    assert work["role"] == "user"
    assert "[These tool calls were made. Background, no new request; reload r1.p1-p14]" in work["content"]
    assert rest == list(steps[-1])


def test_a_message_is_hidden_by_delete_and_stays_in_the_log() -> None:
    """One index or several; a call goes with its results."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))

    run(memory.delete(2))
    run(memory.delete([0, 1]))

    assert shown(memory) == turn(2)
    assert run(memory.size()) == 8
    assert "depot D1" in memory.memory.reload("r1.p2")


@pytest.mark.parametrize(("indices", "error"), [(4, IndexError), ([0, -1], IndexError), (True, TypeError), (["0"], TypeError)])  # fmt: skip
def test_indices_that_are_wrong_delete_nothing(indices: Any, error: type[Exception]) -> None:
    """A stale index is a mistake, not something to pass over."""
    memory = MemoryWithCompress()
    run(memory.add(turns(1)))

    with pytest.raises(error, match=r"whole numbers|no message at"):
        run(memory.delete(indices))
    assert shown(memory) == turns(1)


def test_a_result_that_comes_after_its_call_was_hidden_is_no_orphan() -> None:
    """Providers refuse a result without its call for ever after."""
    memory = MemoryWithCompress()
    run(memory.add([user("go"), calls("a")]))
    run(memory.delete(1))
    run(memory.add(result("a", "late news")))

    assert shown(memory) == [user("go"), user("[Late result of a tool call]\nlate news")]
    assert memory.memory.messages()[-1] == result("a", "late news")


def test_a_second_result_of_a_call_answers_no_other() -> None:
    """It becomes a message that says so, as in prompts; the call that still waits is not compressed."""
    work = [user("go"), calls("a", "b"), result("a"), result("a", "again"), answer("..."), calls("c")]
    late = user("[Late result of a tool call]\nagain")

    assert shown(filled(work)) == [*work[:3], late, SHORT, calls("c")]


def test_clear_hides_everything_and_counts_anew() -> None:
    """The log keeps it; the next message stands alone."""
    memory = filled([SYSTEM, *turns(2)])
    shown(memory)
    run(memory.clear())
    assert (shown(memory), run(memory.size())) == ([], 0)

    memory.max_token = 10_000
    run(memory.add(turn(3)))

    assert (shown(memory), run(memory.size())) == (turn(3), 4)
    assert "depot D1" in memory.memory.reload("r1")


def test_direct_update_replaces_what_is_shown_and_not_the_log() -> None:
    """Messages of the log keep their places; others are kept beside it, also once they are compressed."""
    memory = MemoryWithCompress(compress_func=shortened)
    run(memory.add(turns(2)))
    note = user("In short: P-100 is found.")

    run(memory.direct_update_memory([note, *turn(2)]))
    run(memory.direct_update_memory(None))

    assert shown(memory) == [note, *turn(2)]
    assert run(memory.size()) == 8
    assert [memory.references(index) for index in (0, 1)] == [(), ("r2.p0",)]
    assert shown(memory, compression_trigger_func=lambda messages: len(messages) > 1) == [SHORT]
    assert memory.references(0) == ("r2",)
    assert memory.direct_updates == [note]


def test_what_is_said_twice_is_matched_once() -> None:
    """Equal messages are told apart by their places."""
    memory = MemoryWithCompress()
    run(memory.add([user("hi"), answer("ok"), user("hi"), answer("ok")]))
    run(memory.direct_update_memory([user("hi"), user("hi"), user("hi")]))

    assert [memory.references(index) for index in range(3)] == [("r1.p0",), ("r2.p0",), ()]


def test_a_redacted_message_leaves_what_was_made_from_it() -> None:
    """The text is erased in the log, and the originals replace a compressed text that may hold it."""
    memory = filled(turns(2), compress_func=lambda _messages: [user("P-100 is in D1")])
    assert shown(memory) == [user("P-100 is in D1")]
    memory.compression_on_get = False

    memory.memory.redact("r1.p2")

    assert shown(memory) == [turn(1)[0], calls("c1", arguments='{"parcel": "P-100"}'), result("c1", "[Redacted]"), *turns(2)[3:]]  # fmt: skip


# -- over anything ----------------------------------------------------------------------------------------------------


TEXTS = st.sampled_from(["", "ok", "Never do that.", "日本語 🙂", "\x00{max_token}</compressed_memory>", "long " * 60])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Questions, parallel calls with results in any order, answers, late questions: as hosts record them."""
    messages: list[Message] = [SYSTEM] if draw(st.booleans()) else []
    made = 0
    for _ in range(draw(st.integers(1, 6))):
        messages += [user(draw(TEXTS)) for _ in range(draw(st.integers(0, 2)))]
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"c{made + number}" for number in range(draw(st.integers(1, 3)))]
            made += len(ids)
            messages += [calls(*ids), *(result(id_, draw(TEXTS)) for id_ in draw(st.permutations(ids)))]
        if draw(st.booleans()):
            messages.append(answer(draw(TEXTS)))
    if draw(st.booleans()):
        messages.append(calls("last"))
    return messages


@pytest.mark.slow
@given(conversations(), st.lists(st.integers(0, 12), max_size=4), st.integers(1, 400), st.booleans())
def test_whatever_happens_nothing_is_lost_or_torn(
    conversation: list[Message], steps: list[int], limit: int, offline: bool
) -> None:
    """Any conversation, read at any point, with deletions between: pairs stay pairs, what the user asked last stays
    whole, the log has every word, references reload, and the state comes back."""

    async def work() -> None:
        memory = MemoryWithCompress(limit, compress_func=None if offline else shortened)
        for place, message in enumerate(conversation):
            await memory.add(message)
            if place in steps:
                now = await memory.get_memory()
                assert_paired(now)
                if message["role"] == "user":
                    assert now[-1] == message
                elif len(now) > 2:
                    await memory.delete(len(now) // 2)
        now = await memory.get_memory()
        assert_paired(now)
        assert memory.memory.messages() == conversation
        for index in range(len(now)):
            for reference in memory.references(index):
                memory.memory.reload(reference)
        other = MemoryWithCompress()
        other.load_state_dict(json.loads(json.dumps(memory.state_dict())))
        assert other.state_dict() == memory.state_dict()

    run(work())


@pytest.mark.slow
def test_every_dialogue_stays_whole_at_a_small_limit(data: list[dict[str, Any]]) -> None:
    """Read after every message: paired, the newest question whole, all of it in the log, and within the limit
    wherever the question, what waits and what is new allow it."""

    async def work(messages: list[Message]) -> None:
        memory = MemoryWithCompress(6_000)
        for message in messages:
            await memory.add(message)
            now = await memory.get_memory(recent_n=200)
            assert_paired(now)
            assert now[0] == messages[0]
            if message["role"] == "user":
                assert now[-1] == message
        assert memory.memory.messages() == messages

    for dialogue in data[::19]:
        run(work(dialogue["messages"]))
