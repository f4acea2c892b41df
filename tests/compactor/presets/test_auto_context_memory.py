"""``AutoContextMemory``: the messages that a role sees, those that may be deleted, and the events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import answer, calls, memory_of, result, user
from small_auto_context import LONG, ROLE, context_of, long_text, past, small, summary, tool_run, worked

from compactor import ContextCompactor, compose
from compactor.presets import AutoContextMemory, NotDeleted
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, Memory, Reduction, open_store

# -- messages ---------------------------------------------------------------------------------------------------------


def test_without_pressure_messages_come_out_as_they_came() -> None:
    """Header included."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 3)), user("And now?")]
    context = context_of()
    for message in messages:
        context.add_message(message)

    assert context.get_messages() == context.get_original_memory_msgs() == messages


def test_messages_are_what_the_role_sees_and_originals_what_came() -> None:
    """Compressed there, complete here."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 6)), *past(), *past(), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=2))

    shown = context.get_messages()
    assert shown[0] == messages[0]
    assert shown[1]["content"].startswith("[Conversation History Summary]")
    assert shown[-1] == messages[-1]
    assert len(shown) < len(messages)
    assert context.get_original_memory_msgs() == messages


def test_interaction_messages_are_what_the_user_said_and_was_answered() -> None:
    """Unchanged, also when they were compressed; no tool calls, no results, no header."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 6)), *past(), user("A"), user("B")]
    context = worked(small(memory_of(*messages), msg_threshold=2))

    plain = past()
    assert context.get_interaction_msgs() == [*plain, *plain, user("A"), user("B")]
    assert context_of(answer("Hello."), user("Q")).get_interaction_msgs() == [answer("Hello."), user("Q")]


def test_between_agents_only_what_the_user_hears_is_interaction() -> None:
    """The user's query stands once though a post repeats it; a post to another agent is not the answer."""
    memory = Memory()
    round_ = memory.create_round("How many?")
    memory.add_post(round_, send_from="User", send_to="Planner", message="How many?")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="Count them.")
    memory.add_post(round_, send_from="Coder", send_to="Planner", message="Nine.")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Nine of them.")
    context = AutoContextMemory(memory, "Planner")

    assert context.get_interaction_msgs() == [user("How many?"), answer("Nine of them.")]
    with pytest.raises(ValueError, match="'Planner'"):
        context.add_message(user("More?"))


def test_it_starts_and_stops_its_compactor() -> None:
    """Making one starts nothing; ``with`` does."""
    context = context_of()

    assert context.compactor.status().state == "new"
    with context:
        assert context.compactor.status().state != "new"
    assert context.compactor.status().state == "stopped"


def test_a_compactor_made_already_is_taken_as_it_is() -> None:
    """With options beside it there would be two that know them."""
    memory = Memory()
    compactor = ContextCompactor.for_role(memory, ROLE)

    assert AutoContextMemory(memory, compactor=compactor).compactor is compactor
    with pytest.raises(TypeError, match="last_keep to auto_context"):
        AutoContextMemory(memory, compactor=compactor, last_keep=3)
    with pytest.raises(ValueError, match="'Planner'"):
        AutoContextMemory(memory, "Planner", compactor=compactor)


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_a_deleted_message_is_hidden_and_stays_in_the_log() -> None:
    """No prompt shows it, the log and its reference do."""
    messages = [*past(), user("And now?"), answer("Now this.")]
    context = context_of(*messages)
    context.delete_message(1)

    assert context.get_messages() == [messages[0], *messages[2:]]
    assert compose(context.memory, budget=1_000).messages == [messages[0], *messages[2:]]
    assert context.get_original_memory_msgs() == messages
    assert context.memory.reload("r1.p1") == "That of it."


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_call_goes_with_its_results_and_a_result_with_its_call(index: int) -> None:
    """Parallel ones too: no torn call is left, which providers would refuse."""
    messages = past(calls("a", "b"), result("a"), result("b"))
    context = context_of(*messages)
    context.delete_message(index)

    assert context.get_messages() == [messages[0], messages[-1]]


def test_the_index_counts_the_list_that_was_given() -> None:
    """A compaction or a message in the background does not make it mean another message."""
    memory = memory_of(
        *(message for number in range(4) for message in past(question=f"Question {number}?", reply=LONG))
    )
    context = small(memory, msg_threshold=2)
    shown = context.get_messages()
    memory.append(user("And now?"))
    worked(context)
    assert context.compactor.status().end_index == 3

    context.delete_message(shown.index(user("Question 3?")))
    assert context.get_messages()[1:] == [answer(LONG), user("And now?")]


def test_the_index_goes_on_in_what_is_left_of_the_list() -> None:
    """As in a list from which items are deleted."""
    context = context_of(*past(calls("a"), result("a")), *past(question="Next?"))
    context.get_messages()
    context.delete_message(1)
    context.delete_message(1)

    assert context.get_messages() == [user("What of it?"), *past(question="Next?")]


def test_what_was_covered_since_the_list_was_given_is_not_deleted() -> None:
    """The summary covers it already; the caller has to read the list again first."""
    memory = memory_of(
        *(message for number in range(4) for message in past(question=f"Question {number}?", reply=LONG))
    )
    context = small(memory, msg_threshold=2)
    shown = context.get_messages()
    worked(context)

    with pytest.raises(NotDeleted, match=r"get_messages\(\) again"):
        context.delete_message(shown.index(user("Question 0?")))


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_the_list_is_an_error(index: int) -> None:
    """It names how many there are."""
    with pytest.raises(IndexError, match=f"no message at {index}: the list has 2, counted from 0"):
        context_of(*past()).delete_message(index)


def test_header_and_summary_are_not_deleted() -> None:
    """Nobody said them in the conversation."""
    header = {"role": "system", "content": "You help."}
    memory = memory_of(header, *(message for _ in range(4) for message in past(reply=LONG)))
    context = worked(small(memory, msg_threshold=2))

    for index in (0, 1):
        assert context.get_messages()[index]["role"] == "system"
        with pytest.raises(NotDeleted, match="system message or the summary"):
            context.delete_message(index)


def test_the_newest_question_is_not_deleted_before_there_is_a_newer_one() -> None:
    """Without it a prompt would ask for nothing."""
    context = context_of(*past(), user("And now?"), calls("a"), result("a"))

    for message in (answer("Now this."), user("And then?")):
        with pytest.raises(NotDeleted, match="newest question"):
            context.delete_message(2)
        context.add_message(message)
        context.get_messages()
    context.delete_message(2)
    context.delete_message(0)
    assert user("And now?") not in context.get_messages()


def test_a_call_that_waits_for_its_results_is_not_deleted() -> None:
    """They are about to come, and would answer nothing."""
    context = context_of(user("Q"), calls("a", "b"), result("a"))

    for index in (1, 2):
        with pytest.raises(NotDeleted, match="waits for a result"):
            context.delete_message(index)


def test_a_pinned_message_is_not_deleted() -> None:
    """A pin keeps it word for word."""
    context = context_of(*past())
    context.memory.pin("r1.p1")

    with pytest.raises(NotDeleted, match="pinned"):
        context.delete_message(1)
    context.memory.unpin("r1.p1")
    context.delete_message(1)
    assert context.get_messages() == [user("What of it?")]


def test_a_call_is_not_deleted_where_others_would_go_with_it() -> None:
    """Between it and its late result stands something else, which a span would hide as well."""
    context = context_of(user("Q"), calls("a"), answer("While we wait:"), result("a"), answer("Done."))
    before = context.get_messages()

    with pytest.raises(NotDeleted, match="other messages among them"):
        context.delete_message(1)
    assert context.get_messages() == before


def test_an_offloaded_message_and_a_summary_of_calls_are_deleted_like_others() -> None:
    """The overlay that stands for them gives way to the deletion."""
    messages = [*past(*tool_run(1, 6)), *past(answer(long_text("big", 3_000)), question="Next?"), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=100, max_token=300))
    shown = context.get_messages()
    assert [("reload" in str(message["content"])) for message in shown] == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]

    context.delete_message(4)
    context.delete_message(1)
    assert context.get_messages() == [*past(), *past(question="Next?"), user("And now?")]
    assert context.get_original_memory_msgs() == messages


def test_a_call_goes_with_its_result_though_that_is_offloaded() -> None:
    """The deletion takes the place of the smaller overlay."""
    messages = [*past(calls("a"), result("a", long_text("big", 3_000))), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=100, max_token=300))
    assert "reload r1.p2" in str(context.get_messages()[2]["content"])

    context.delete_message(1)
    assert context.get_messages() == [*past(), user("And now?")]


def test_a_query_goes_with_the_post_that_hands_it_on() -> None:
    """The user said it once, and it is hidden once."""
    memory = Memory()
    round_ = memory.create_round("How many?")
    memory.add_post(round_, send_from="User", send_to="Planner", message="How many?")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Nine of them.")
    memory.create_round("And now?")
    context = AutoContextMemory(memory, "Planner")
    context.delete_message(0)

    assert context.get_messages() == [answer("Nine of them."), user("And now?")]
    assert context.get_original_memory_msgs() == [user("How many?"), answer("Nine of them."), user("And now?")]


class Racing(Memory):
    """A Memory to which somebody writes just before its journal is asked for."""

    race: Callable[[], object] | None = None

    def journal(self, role: str) -> Any:
        race, self.race = self.race, None
        if race is not None:
            race()
        return super().journal(role)


def test_what_is_compacted_or_reduced_at_that_moment_is_not_deleted() -> None:
    """The first change wins, and no other message is hidden."""
    memory = Racing.from_messages([*past(answer("One."), answer("Two.")), *past()], "session")
    assert isinstance(memory, Racing)
    context, journal = AutoContextMemory(memory), memory.journal(ROLE)
    first = memory.conversation.rounds[0]

    wider = Reduction.over(first, first.post_list[:2], "summarised", "One and two.")
    memory.race = lambda: journal.reduce(wider, base=0)
    with pytest.raises(NotDeleted, match=r"1 is covered by now; call"):
        context.delete_message(1)
    context.get_messages()
    compaction = CompactedMessage(start_index=1, end_index=1, end_round_id=first.id, summary="S.")
    memory.race = lambda: journal.publish(compaction, base=0, round_ids=[first.id])
    with pytest.raises(NotDeleted, match=r"0 is covered by now \(rounds_changed\)"):
        context.delete_message(0)
    assert [message["content"] for message in context.get_messages()[1:]] == ["What of it?", "That of it."]


def test_a_deleted_message_is_in_no_summary() -> None:
    """The compaction is made from the shown messages."""
    summarizer = ScriptedSummarizer(default=summary)
    context = small(
        memory_of(*past(answer("The secret is QX-4711."), question=LONG, reply=LONG), *past(reply=LONG), *past()),
        summarizer,
        msg_threshold=2,
    )
    context.get_messages()
    context.delete_message(1)
    worked(context)

    assert context.compactor.status().end_index >= 1
    assert "QX-4711" not in str([request.messages for request in summarizer.requests])


@pytest.mark.parametrize("index", [True, "0", None, 1.0])
def test_an_index_is_a_whole_number(index: object) -> None:
    """Anything else is a mistake, and deletes nothing."""
    context = context_of(*past(), user("And now?"))
    before = context.get_messages()
    with pytest.raises(TypeError, match="whole number"):
        context.delete_message(index)  # type: ignore[arg-type]
    assert context.get_messages() == before


# -- events -----------------------------------------------------------------------------------------------------------


def test_events_say_what_became_shorter_and_at_what_price() -> None:
    """Counts, ids of the neighbours, tokens before and after, usage and time, and the way back."""
    memory = memory_of(*past(), *past(answer("Let me see."), *tool_run(1, 6)), *past(), user("And now?"))
    context = worked(small(memory))
    (event,) = context.compression_events

    posts = memory.conversation.rounds[1].post_list
    assert event.event_type == "TOOL_INVOCATION_COMPRESS"
    assert event.compressed_message_count == 12
    assert (event.previous_message_id, event.next_message_id) == (posts[0].id, posts[13].id)
    assert event.ref == "r2.p2-p13"
    assert context.reload(event.ref) == memory.messages()[4:16]
    assert event.token_reduction == event.token_before - event.token_after > 0
    assert (event.compress_input_token, event.compress_output_token, event.model) == (90, 9, "tiny")
    assert event.time >= 0
    assert event.timestamp.tzinfo is not None


def test_events_tell_of_compactions_likewise() -> None:
    """Each of the rounds that it was the first to cover; also after a revert, from the beginning then."""
    memory = memory_of(
        *(message for number in range(4) for message in past(question=f"Question {number}?", reply=LONG))
    )
    context = worked(small(memory, msg_threshold=2))
    for message in past(question="More?", reply=LONG):
        memory.append(message)
    worked(context)
    assert context.compactor.revert() is not None
    memory.append(user("And now?"))
    worked(context)

    events = context.compression_events
    rounds = memory.conversation.rounds
    assert {event.event_type for event in events} == {"PREVIOUS_ROUND_CONVERSATION_SUMMARY"}
    assert [event.ref for event in events] == ["r1-r2", "r3", "r3-r4"]
    assert [event.compressed_message_count for event in events] == [4, 2, 4]
    assert [event.previous_message_id for event in events] == [None, *[rounds[1].post_list[0].id] * 2]
    assert [event.next_message_id for event in events] == [rounds[number].post_list[0].id for number in (2, 3, 4)]


def test_no_neighbour_is_none() -> None:
    """Before the first post of a round stands nothing, and behind the last neither."""
    memory = memory_of(user("Q"), *tool_run(1, 7))
    context = worked(small(memory))
    (event,) = context.compression_events
    posts = memory.conversation.rounds[0].post_list

    assert event.event_type == "CURRENT_ROUND_MESSAGE_COMPRESS"
    # The newest call and its result stay: the agent has yet to read them.
    assert (event.previous_message_id, event.next_message_id) == (None, posts[-2].id)

    memory = memory_of(user("Q"), *tool_run(1, 7), answer("Done."), user("And?"))
    (event, *_) = worked(small(memory, last_keep=0)).compression_events

    assert event.event_type == "TOOL_INVOCATION_COMPRESS"
    assert (event.previous_message_id, event.next_message_id) == (None, memory.conversation.rounds[0].post_list[-1].id)


def test_events_after_a_redaction_count_from_what_is_covered_then() -> None:
    """It withdraws the compaction, so the next one begins at the first round again; the list is forgotten."""
    context = context_of(*past(), *past(reply=LONG), *past(reply=LONG), user("And now?"))
    assert context.get_messages()
    assert context.compactor.compact_now(20) is not None
    before = context.compression_events[-1]
    context.memory.redact("r1.p1")
    assert context.compactor.compact_now(20) is not None
    after = context.compression_events[-1]
    assert (after.ref, after.compressed_message_count) == (before.ref, before.compressed_message_count)
    assert "r1" in after.ref


@pytest.mark.parametrize("url", ["memory://", "sqlite:///chat.db"])
def test_events_survive_a_restart(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process on the same store tells of them with the same numbers, and goes on behind them."""
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    memory = Memory("s", store=store)
    for message in [*past(*tool_run(0, 8)), *past(*tool_run(10, 8))]:
        memory.append(message)
    context = worked(small(memory))
    before = context.compression_events
    assert before

    again = small(Memory("s", store=store))
    assert again.compression_events == before
    for message in [*past(*tool_run(20, 8)), *past(*tool_run(30, 8))]:
        again.memory.append(message)
    after = worked(again).compression_events
    assert after[: len(before)] == before
    assert len(after) > len(before)
    assert small(Memory("s", store=store)).compression_events == after
    store.close()
