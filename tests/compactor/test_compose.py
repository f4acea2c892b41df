"""Compose: header, compaction and tail merged into one legal prompt, for each role and by any counter."""

from __future__ import annotations

import sys
import threading
from itertools import count
from types import FrameType
from typing import Any

import pytest
from chats import (
    answer,
    assert_legal,
    assert_paired,
    calls,
    chat,
    compacted,
    contents,
    result,
    user,
    words,
)

from compactor import compose, count_prompt, count_tokens
from memory import CompactedMessage, InMemoryStore, Memory, Round, ToolCall

# -- without pressure -------------------------------------------------------------------------------------------------

NO_RESULT = "[No result was recorded for this tool call.]"


def test_without_pressure_all_of_the_tail_is_shown() -> None:
    """Header, compaction and tail, in that order; nothing is reported."""
    memory = Memory()
    memory.append({"role": "system", "content": "Be brief."})
    for message in (user("q1"), answer("a1"), user("q2"), answer("a2"), user("q3")):
        memory.append(message)
    compacted(memory, 1, "They greeted.")

    prompt = compose(memory, budget=1_000)

    summary = memory.get_role_rounds("assistant")[1]
    assert summary is not None
    assert contents(prompt) == ["Be brief.", summary.to_prompt(), "q2", "a2", "q3"]
    assert [message["role"] for message in prompt.messages] == ["system", "system", "user", "assistant", "user"]
    assert prompt.report.omitted_rounds == ()
    assert prompt.report.reductions == ()
    assert prompt.report.tokens_before == prompt.report.tokens_after == prompt.tokens


def test_an_empty_session_gives_an_empty_prompt() -> None:
    """Nothing was said, so nothing is sent."""
    assert compose(Memory(), budget=count_prompt([], count_tokens)).messages == []


def test_a_budget_that_is_just_met_is_enough() -> None:
    """The budget is the number of tokens that is never exceeded, not one that is never reached."""
    memory = chat(5)
    tokens = compose(memory, budget=10_000).tokens

    assert compose(memory, budget=tokens).report.omitted_rounds == ()
    assert compose(memory, budget=tokens - 1).report.omitted_rounds == (1, 2)


def test_changing_a_prompt_changes_no_other() -> None:
    """A host may add to the messages it was given."""
    memory = Memory.from_messages([{"role": "user", "content": [{"type": "text", "text": "q"}]}])
    system = [{"role": "system", "content": "s"}]
    first = compose(memory, budget=100, system=system)
    first.messages[0]["content"] = first.messages[1]["content"] = "changed"
    first.messages.clear()

    assert contents(compose(memory, budget=100, system=system)) == ["s", [{"type": "text", "text": "q"}]]


class Holder:
    """A compactor that has something to publish whenever it is asked, and never says otherwise."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.asked = 0

    def publish_deferred(self) -> bool:
        self.asked += 1
        compacted(self.memory, 4 * self.asked)
        return True

    def get_compaction(self) -> CompactedMessage | None:
        return self.memory.journal("assistant").read().current

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Nothing to do."""


def test_what_is_deferred_is_shown_once_where_the_prompt_would_not_fit() -> None:
    """Then the prompt is made anew of what is there now; the host's plan is asked for once, and where the second is
    too long as well, it is shortened further."""
    memory, plans = chat(12), []
    holder = Holder(memory)
    memory.register_compaction_provider("assistant", holder)
    wide = compose(memory, budget=10_000).tokens
    assert holder.asked == 0
    prompt = compose(memory, budget=wide - 1, plan=lambda: plans.append(1) or "1. [ ] go")
    assert (holder.asked, len(plans)) == (1, 1)
    assert not prompt.report.omitted_rounds
    assert "Covers rounds 1-4, kept in full: reload r1-r4." in prompt.messages[0]["content"]
    assert compose(memory, budget=120).report.omitted_rounds
    assert holder.asked == 2


# -- calls and results ------------------------------------------------------------------------------------------------


def test_after_a_crash_the_prompt_is_one_that_providers_accept() -> None:
    """A call that was never answered and a result whose call is elsewhere come out in a legal form."""
    memory = Memory.from_messages([user("q1"), calls("c1", "c2"), result("c2", "r2"), user("q2"), result("c1", "late")])

    prompt = compose(memory, budget=1_000)

    assert_legal(prompt, 1_000)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert contents(prompt)[2:4] == ["r2", NO_RESULT]
    assert contents(prompt)[5].endswith("late")


def test_open_calls_stay_open() -> None:
    """The host composes while its tools run: nothing is put in the place of their results."""
    given = [user(), calls("c1", "c2"), result("c2")]

    assert compose(Memory.from_messages(given), budget=1_000).messages == given


def test_calls_that_another_process_left_open_are_closed_where_others_follow() -> None:
    """Two Memories on one store, each with an open round: only what stands last may wait for its results."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    crashed = first.create_round("q1")
    first.add_post(crashed, send_from="assistant", send_to="tool", tool_calls=(ToolCall(id="c", name="f"),))
    second.create_round("q2")

    prompt = compose(second, budget=1_000)

    assert contents(prompt)[2:] == [NO_RESULT, "q2"]
    assert_legal(prompt, 1_000)


def test_a_prompt_is_paired_even_where_the_log_is_not() -> None:
    """Results of one call in two rounds, and calls in a round that failed between them."""
    memory = Memory.from_messages(
        [user("q1"), calls("c"), user("q2"), result("c"), calls("c"), result("c"), user("q3")]
    )
    failed: Round = memory.conversation.rounds[1]
    assert_paired(compose(memory, budget=1_000).messages)
    memory.finish_round(failed, "failed")

    assert_paired(compose(memory, budget=1_000).messages)


# -- roles ------------------------------------------------------------------------------------------------------------


def team() -> Memory:
    memory = Memory()
    for number in range(20):
        round_ = memory.create_round(f"task {number}")
        memory.add_post(round_, send_from="Planner", send_to="Coder", message=f"load table {number}")
        memory.add_post(round_, send_from="Coder", send_to="Planner", message=f"{number} {words(20)}")
        memory.add_post(round_, send_from="Planner", send_to="User", message=f"reply {number}")
        memory.finish_round(round_)
    return memory


def test_each_role_has_a_prompt_of_its_own() -> None:
    """A role's own words are the assistant's, others' are named, and what it does not see is not there."""
    memory = team()

    planner, coder = (compose(memory, role, budget=10_000) for role in ("Planner", "Coder"))

    assert contents(planner)[:4] == ["task 0", "load table 0", f"Coder: 0 {words(20)}", "reply 0"]
    assert contents(coder)[:3] == ["task 0", "Planner: load table 0", f"0 {words(20)}"]
    assert not any("reply" in text for text in contents(coder))
    assert [message["role"] for message in coder.messages[:3]] == ["user", "user", "assistant"]


def test_a_cut_counts_only_what_the_role_sees() -> None:
    """Each role's prompt is full of its own; the references are the log's."""
    memory = team()

    for role in ("Planner", "Coder"):
        prompt = compose(memory, role, budget=500)
        assert_legal(prompt, 500)
        assert prompt.tokens > 500 * 0.4
        assert prompt.report.omitted_rounds[0] == 1


def test_the_header_is_the_assistants() -> None:
    """System messages that came in by append are sent to the assistant, not to other roles."""
    memory = Memory.from_messages([{"role": "system", "content": "header"}, user()])

    assert contents(compose(memory, "Planner", budget=100)) == ["q"]


# -- overlays from elsewhere ------------------------------------------------------------------------------------------


class Provider:
    """Says what it was told to say."""

    def __init__(self, compaction: CompactedMessage) -> None:
        self.compaction = compaction

    def get_compaction(self) -> CompactedMessage:
        return self.compaction

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("end", [1, 5, 6, 99])
def test_a_host_may_provide_its_own_compaction(end: int) -> None:
    """Whatever a provider says it covers, up to more than there is, the prompt is legal and keeps the query."""
    memory = chat(6)
    memory.register_compaction_provider(
        "assistant", Provider(CompactedMessage(start_index=1, end_index=end, summary="S."))
    )

    prompt = compose(memory, budget=250)

    assert_legal(prompt, 250)
    assert prompt.messages[0]["content"].startswith("[Conversation History Summary]\nS.")
    assert any(str(text).startswith("question 00006") for text in contents(prompt))


def test_several_open_rounds_are_all_shown_and_counted_once() -> None:
    """Two Memories write to one session: each has its round open, and neither costs more with every prompt."""
    store, counted = InMemoryStore(), []
    memories = [Memory("s", store=store) for _ in range(2)]
    rounds = [memory.create_round(f"q{number}") for number, memory in enumerate(memories)]
    for memory, round_ in zip(memories, rounds, strict=True):
        for _ in range(5):
            memory.add_post(round_, send_from="assistant", send_to="User", message=words(10))
    reader = Memory("s", store=store)

    def counter(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    first = compose(reader, budget=1_000, counter=counter)
    counted.clear()
    again = compose(reader, budget=1_000, counter=counter)

    assert again == first
    assert len(first.messages) == 12
    assert [text for text in counted if "word" in text] == []


# -- while others write -----------------------------------------------------------------------------------------------


def test_prompts_are_right_while_others_write() -> None:
    """Any number of threads compose while the log grows; each gets a prompt of one moment."""
    memory, prompts, errors = chat(30), [], []
    writing = threading.Event()

    def read() -> None:
        try:
            while not writing.is_set():
                prompts.append(compose(memory, budget=800))
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(100):
        memory.append(user(f"more {number}"))
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(30)))
    writing.set()
    for reader in readers:
        reader.join()

    assert errors == []
    assert prompts
    for prompt in [*prompts[:20], *prompts[-20:]]:
        assert_legal(prompt, 800)


def test_a_compaction_may_be_published_at_any_line_of_compose() -> None:
    """Other threads publish and compose meanwhile, and so let go of rounds that this prompt still has to show."""
    own, before = compose.__code__.co_filename, sys.gettrace()
    for line in count(1):
        memory, passed = chat(8), count(1)
        prompts = [compose(memory, budget=10_000)]

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and next(passed) == line:  # noqa: B023  (called in this turn of the loop alone)
                sys.settrace(None)
                compacted(memory, 6)  # noqa: B023
                prompts.append(compose(memory, budget=10_000))  # noqa: B023
            return trace if frame.f_code.co_filename == own else None

        sys.settrace(trace)
        try:
            prompt = compose(memory, budget=10_000)
        finally:
            sys.settrace(before)
        assert prompt in prompts
        if len(prompts) == 1:
            assert line > 50
            return
