"""Real dialogues of an agent with tools: each step's prompt fits, is legal, keeps the question, and loses nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from chats import Message, assert_legal, left_out_texts, note_of

from compactor import Prompt, compose
from memory import CompactedMessage, InMemoryStore, Memory

pytestmark = pytest.mark.slow

BUDGETS = (1_500, 3_000, 8_000)
#: All steps where one asks for them; else each has one of the budgets, and the joined conversation is composed at one
#: in so many messages, but for its last part.
ALL = os.environ.get("ALL_STEPS") == "1"
ONE_IN = 1 if ALL else 12


def steps(data: list[dict[str, Any]]) -> Iterator[tuple[int, Memory, list[Message]]]:
    """Give each step of each dialogue: its number, the session so far, and the messages so far."""
    number = 0
    for dialogue in data:
        memory, given = Memory(), []
        for message in dialogue["messages"]:
            memory.append(message)
            given.append(message)
            yield number, memory, given
            number += 1


def joined(data: list[dict[str, Any]], **options: Any) -> Iterator[tuple[int, Memory]]:
    """Give each step of all dialogues as one conversation of 580,000 tokens, with one system header."""
    memory, number = Memory("joined", **options), 0
    for place, dialogue in enumerate(data):
        for message in dialogue["messages"][place > 0 :]:
            memory.append(message)
            number += 1
            yield number, memory


def asked(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "user"][-1:]


def assert_complete(memory: Memory, prompt: Prompt, given: list[Message]) -> None:
    """What is not in the prompt is behind its references."""
    gone = [str(message["content"]) for message in given if message not in prompt.messages and message["content"]]
    shortened = [memory.reload(reduced.ref) for reduced in prompt.report.reductions]
    behind = "\n".join((left_out_texts(memory, prompt), *shortened))
    assert all(text in behind for text in gone)


def test_every_step_of_every_dialogue_fits(data: list[dict[str, Any]]) -> None:
    """Within the budget, calls paired, the question whole, nothing lost; and without pressure equal to what came in."""
    cut = 0
    for step, memory, given in steps(data):
        for budget in BUDGETS if ALL else (BUDGETS[step % 3],):
            prompt = compose(memory, budget=budget)
            assert_legal(prompt, budget)
            assert prompt.messages[0] == given[0]
            assert asked(prompt.messages) == asked(given)
            if prompt.report.tokens_before <= budget:
                assert prompt.messages == given
                continue
            cut += 1
            if cut % 7 == 0 or ALL:
                assert_complete(memory, prompt, given)
    assert cut > 500, "the budgets must be tight enough to show anything"


def test_without_pressure_each_dialogue_comes_out_as_it_came_in(data: list[dict[str, Any]]) -> None:
    """Calls, ids and all: equal to what append was given, for all of them, and as one conversation."""
    for dialogue in data:
        assert compose(Memory.from_messages(dialogue["messages"]), budget=10**6).messages == dialogue["messages"]
    said = [message for place, dialogue in enumerate(data) for message in dialogue["messages"][place > 0 :]]
    assert compose(Memory.from_messages(said), budget=10**7).messages == said


def test_as_one_conversation_it_fits_and_rarely_changes_its_beginning(data: list[dict[str, Any]]) -> None:
    """At 8,000 tokens without any compaction: at most one prompt in ten breaks a provider's prefix cache."""
    before: list[Message] = []
    composed = changed = last = 0
    for number, memory in joined(data):
        if number % ONE_IN and number < 2_800:
            continue
        prompt = compose(memory, budget=8_000)
        assert_legal(prompt, 8_000)
        if number == last + 1:
            composed += 1
            changed += prompt.messages[: len(before)] != before
        before, last = prompt.messages, number
    assert composed > 500
    assert changed <= composed / 10
    assert prompt.tokens >= 8_000 * 0.4


@pytest.mark.parametrize("budget", [3_000, 5_000])
def test_the_beginning_changes_only_where_a_step_is_due(data: list[dict[str, Any]], budget: int) -> None:
    """At tighter budgets, on a part of it: no more changes than there are marks of the grid in what was added, and one
    for each result that is shown whole until the agent has read it, and then as any other text."""
    before: list[Message] = []
    changed, read, tokens = 0, 0, []
    for number, memory in joined(data):
        if not ALL and not 1_500 < number <= 2_100:
            continue
        prompt = compose(memory, budget=budget)
        changed += bool(before) and prompt.messages[: len(before)] != before
        read += bool(before) and is_shortened(before[-1], prompt.messages)
        before = prompt.messages
        tokens.append(prompt.report.tokens_before)
    assert_legal(prompt, budget)
    assert 0 < changed <= (tokens[-1] - tokens[0]) / (budget * 0.3) + 2 + read
    assert read <= len(tokens) / 200, "it is for large results alone"


def is_shortened(result: Message, messages: list[Message]) -> bool:
    """Return whether *result* stands in *messages* with another text alone."""
    id_ = result.get("tool_call_id")
    return id_ is not None and result not in messages and any(m.get("tool_call_id") == id_ for m in messages)


def test_the_end_of_it_costs_little_and_is_the_same_after_a_resume(data: list[dict[str, Any]]) -> None:
    """With compactions published on the way, and none: the last prompt is a function of the log, made in no time."""
    store = InMemoryStore()
    *_, (_, memory) = joined(data, store=store)
    first = compose(memory, budget=8_000)
    assert compose(Memory("joined", store=store), budget=8_000) == first

    took = []
    for _ in range(30):
        began = time.perf_counter()
        compose(memory, budget=8_000)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.050, "measured at about 3 ms; the margin is for machines that are busy"

    rounds, _ = memory.get_role_rounds("assistant")
    covered = [round_.id for round_ in rounds[:600]]
    made = CompactedMessage(start_index=1, end_index=600, summary="Flights were booked.", end_round_id=covered[-1])
    memory.journal("assistant").publish(made, base=0, round_ids=covered)
    after = compose(memory, budget=8_000)
    assert_legal(after, 8_000)
    assert after.report.omitted_rounds[0] == 601
    assert "r601" in note_of(after)
    assert compose(Memory("joined", store=store), budget=8_000) == after
