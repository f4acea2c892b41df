"""What a prompt costs to make: each closed round is counted once, whatever counts, and no more is read as the tail
grows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from chats import (
    answer,
    assert_legal,
    calls,
    chat,
    contents,
    result,
    user,
    words,
)
from logged import entry

from compactor import compose, count_tokens
from memory import InMemoryStore, Memory, Round, Rounds

# -- counters ---------------------------------------------------------------------------------------------------------


def test_a_model_is_counted_in_its_own_encoding() -> None:
    """gpt-4 splits text otherwise than the newer models do."""
    text = "".join(f"ünïcödé {number} 漢字 " for number in range(40))
    memory = Memory.from_messages([user(text)])

    old, new = compose(memory, budget=5_000, model="gpt-4"), compose(memory, budget=5_000, model="gpt-4o")

    assert old.tokens == 3 + 4 + count_tokens(text, "cl100k_base")
    assert new.tokens == 3 + 4 + count_tokens(text, "o200k_base")
    assert old.tokens != new.tokens


class Characters:
    """Counts characters, and how often it is asked. Two are equal, and cannot be hashed."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, text: str) -> int:
        self.asked += 1
        return len(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Characters)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("named", [lambda counter: counter, lambda counter: counter.__call__])
def test_a_counter_of_the_hosts_own_counts_each_closed_round_once(named: Callable[[Any], Any]) -> None:
    """A counter that cannot be hashed, and a method, which is another object each time, are known again."""
    memory, counter = chat(50), Characters()
    first = compose(memory, budget=3_000, counter=named(counter))
    assert_legal(first, 3_000, len)
    counter.asked = 0

    assert compose(memory, budget=3_000, counter=named(counter)) == first
    assert counter.asked < 20


# -- cost -------------------------------------------------------------------------------------------------------------


def asked(rounds: int) -> Memory:
    """Return a session of *rounds* questions, read from a store that was filled in one go."""
    store, entries = InMemoryStore(), []
    for number in range(rounds):
        query = f"question {number:05} {words(20)}"
        opened = entry("round opened", round_id=str(number), user_query=query, created_at=datetime.now(UTC))
        entries += [opened, entry("round closed", round_id=str(number))]
    store.append("s", entries, 0)
    return Memory("s", store=store)


@pytest.fixture(scope="module")
def long_chats() -> dict[int, Memory]:
    """Sessions of very different length whose newest rounds are as long."""
    return {rounds: asked(rounds) for rounds in (100, 10_000)}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["assistant", "User"])
def test_the_cost_does_not_grow_with_the_uncovered_tail(
    long_chats: dict[int, Memory], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3: at 10,000 uncovered rounds a prompt counts as few texts and reads as few rounds as at 100."""
    read: list[int] = []
    at = Rounds.__getitem__
    monkeypatch.setattr(Rounds, "__getitem__", lambda self, place: read.append(place) or at(self, place))
    effort = []
    for memory in long_chats.values():
        counter = Characters()
        compose(memory, role, budget=2_000, counter=counter)
        read.clear()
        counter.asked = 0
        prompt = compose(memory, role, budget=2_000, counter=counter)
        assert prompt.report.omitted_rounds
        effort.append((counter.asked, len(read)))

    (counted, rounds), (counted_later, rounds_later) = effort
    assert counted_later <= counted + 2
    assert rounds_later <= rounds + 10


@pytest.mark.slow
def test_a_prompt_of_a_hundred_times_the_rounds_takes_about_as_long(long_chats: dict[int, Memory]) -> None:
    """The same in time, with a margin for slow machines: a hundred times would be the fault."""
    took = {}
    for rounds, memory in long_chats.items():
        compose(memory, budget=2_000)
        took[rounds] = min(_seconds(lambda memory=memory: compose(memory, budget=2_000)) for _ in range(7))

    assert took[10_000] < 10 * took[100]


def _seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def test_a_query_long_ago_is_found_without_reading_all_rounds_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that works on for thousands of rounds after one question does not pay for them."""
    memory = Memory()
    for number in range(500):
        round_ = memory.create_round("" if number else "The only question.")
        memory.add_post(round_, send_from="assistant", send_to="User", message=words(20))
    compose(memory, budget=500)
    read: list[int] = []
    at = Rounds.__getitem__
    monkeypatch.setattr(Rounds, "__getitem__", lambda self, place: read.append(place) or at(self, place))

    prompt = compose(memory, budget=500)

    assert "The only question." in contents(prompt)
    assert len(read) < 50


def test_a_huge_result_is_counted_once_and_then_only_its_ends() -> None:
    """Ten megabytes in the open round do not slow down each turn that follows."""
    memory, counted = Memory.from_messages([user(), calls("c"), result("c", "0123456789 " * 1_000_000)]), []

    def counter(text: str) -> int:
        counted.append(len(text))
        return count_tokens(text)

    compose(memory, budget=2_000, counter=counter)
    memory.append(answer("I see."))
    counted.clear()

    prompt = compose(memory, budget=2_000, counter=counter)

    assert prompt.report.reductions[0].tokens_before > 1_000_000
    assert sum(counted) < 100_000
    assert_legal(prompt, 2_000)


def test_a_growing_round_is_kept_once_however_many_prompts_show_it() -> None:
    """What prompts remember of its parts keeps no earlier state of the round alive: that would grow with its square."""
    memory = Memory()
    memory.append({"role": "user", "content": "Read all of them."})
    for number in range(60):
        function = {"name": "read", "arguments": "{}"}
        call = {"id": f"c{number}", "type": "function", "function": function}
        memory.append({"role": "assistant", "content": None, "tool_calls": [call]})
        memory.append({"role": "tool", "tool_call_id": call["id"], "content": f"{number} " + "row " * 300})
        compose(memory, budget=1_500)
    gc.collect()
    mine = {id(post) for post in memory.conversation.rounds[0].post_list}
    rounds = [found for found in gc.get_objects() if type(found) is Round]
    posts = sum(len(found.post_list) for found in rounds if any(id(post) in mine for post in found.post_list))
    assert posts <= 4 * len(mine)
