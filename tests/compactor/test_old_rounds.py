"""Composing and compacting cost what lies behind the compaction: rounds that it covers are not even read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from chats import answer, calls, result, user, words
from views import TokenCache, view_of

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Prompt,
    View,
    compact_rounds,
    compose,
    compress_tool_runs,
    count_tokens,
    drop,
    offload_large,
)
from compactor.host_rounds import HostRounds
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, Reduction, Round
from memory.log.state import Snapshot

ROLE = "assistant"
ROUNDS, END = 46, 40


@contextmanager
def reading() -> Iterator[list[int]]:
    """Give the numbers of the rounds that are read, each as often as it is."""
    numbers: list[int] = []
    read = Snapshot.get_round_at

    def noted(self: Snapshot, number: int) -> Round:
        numbers.append(number)
        return read(self, number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Snapshot, "get_round_at", noted)
        yield numbers


def covered(numbers: list[int]) -> list[int]:
    return [number for number in numbers if number <= END]


def session(store: InMemoryStore, *, pins: bool = False) -> Memory:
    """Return a session most of whose rounds are covered: some have failed, some are reduced, two perhaps pinned."""
    memory = Memory("s", store=store)
    journal = memory.journal(ROLE)
    for number in range(1, ROUNDS + 1):
        for message in (user(f"q{number}"), calls(f"c{number}"), result(f"c{number}", words(40)), answer(f"a{number}")):
            memory.append(message)
        if number in (7, 33):
            memory.finish_round(memory.conversation.rounds[-1], "failed")
    for number in (20, 21, END - 1, END + 3):
        round_ = memory.conversation.rounds[number - 1]
        assert journal.reduce(Reduction.over(round_, round_.post_list[1:2], "offloaded", "short"), base=0) is not None
    if pins:
        memory.pin("r5.p1")
        memory.pin("r30.p0")
    rounds, _ = memory.get_role_rounds(ROLE)
    last = memory.conversation.rounds[END - 1]
    ids = [round_.id for round_ in rounds if round_.number <= END]
    made = CompactedMessage(start_index=1, end_index=len(ids), summary="What was.", end_round_id=last.id)
    journal.publish(made, base=0, round_ids=ids)
    return memory


def compactor(memory: Memory, **more: Any) -> ContextCompactor:
    config = more.pop("config", CompactorConfig(threshold=3, retain_recent=2))
    return ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer(), **more)


def turn(memory: Memory, number: int) -> None:
    memory.append(user(f"later {number}"))
    memory.append(answer(words(number)))


# -- what a prompt and a cycle read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [100_000, 1_200, 300])
@pytest.mark.parametrize("resumed", [False, True], ids=["same process", "resumed"])
def test_a_prompt_reads_nothing_that_is_covered(budget: int, resumed: bool) -> None:
    """Whether all of the tail fits or hardly any of it, in the first prompt of a process and in all later ones."""
    store = InMemoryStore()
    memory = session(store)
    if resumed:
        memory = Memory("s", store=store)

    with reading() as numbers:
        prompts = []
        for number in range(3):
            prompts.append(compose(memory, ROLE, budget=budget))
            turn(memory, number)

    assert numbers
    assert covered(numbers) == []
    assert "What was." in str(prompts[0].messages)


def test_what_the_report_tells_is_told_of_the_tail() -> None:
    """Its figures count from the compaction on, so they need no covered round either."""
    memory = session(InMemoryStore())
    with reading() as numbers:
        whole, short = (compose(memory, ROLE, budget=budget).report for budget in (100_000, 300))

    assert whole.tokens_before == whole.tokens_after == short.tokens_before
    assert short.omitted_rounds
    assert min(short.omitted_rounds) == END + 1
    assert covered(numbers) == []


@pytest.mark.parametrize("resumed", [False, True], ids=["same process", "resumed"])
@pytest.mark.parametrize(
    "strategies",
    [
        (compact_rounds,),
        (offload_large(10), drop("tool_result", 1), compress_tool_runs(1, 1), compact_rounds),
    ],
    ids=["compact_rounds", "light to heavy"],
)
def test_a_cycle_reads_nothing_that_is_covered(strategies: tuple[Any, ...], resumed: bool) -> None:
    """It counts, judges, reduces, summarises and publishes by what lies behind the compaction alone."""
    store = InMemoryStore()
    memory = session(store)
    if resumed:
        memory = Memory("s", store=store)
    config = CompactorConfig(threshold=3, retain_recent=2, max_tokens=100_000)
    made = compactor(memory, config=config, strategies=strategies)

    with reading() as numbers:
        first = made.compact_now(20)
        for number in range(6):
            turn(memory, number)
            compose(memory, ROLE, budget=900)
        second = made.compact_now(20)

    assert first is not None
    assert second is not None
    assert END < (first.end_number or 0) < (second.end_number or 0)
    assert covered(numbers) == []


def test_a_round_that_takes_several_requests_is_folded_in_without_reading_what_is_covered() -> None:
    """After the first of them the summary ends where it did before."""
    store = InMemoryStore()
    memory = session(store)
    memory.append(user("long"))
    memory.append(answer(words(3_000)))
    before = compactor(memory, config=CompactorConfig(threshold=3, retain_recent=1)).compact_now(20)
    assert before is not None
    assert before.end_number == ROUNDS
    for number in range(3):
        turn(memory, number)
    config, summarizer = (
        CompactorConfig(threshold=2, retain_recent=1, summarizer_input_tokens=1_500),
        ScriptedSummarizer(),
    )
    made = ContextCompactor.for_role(Memory("s", store=store), ROLE, config, summarizer)

    with reading() as numbers:
        after = made.compact_now(20)

    assert after is not None
    assert after.end_number == ROUNDS + 3
    previous = [request.previous for request in summarizer.requests if request.previous is not None]
    assert [one.end_number for one in previous][:3] == [ROUNDS] * 3, "between the pieces of the long round"
    assert len({one.end_round_id for one in previous[:3]}) == 1
    assert min(numbers) == ROUNDS + 1


def test_what_is_pinned_among_the_covered_is_shown_without_reading_its_round() -> None:
    """Its words are at hand since the session was opened."""
    store = InMemoryStore()
    session(store, pins=True)
    memory = Memory("s", store=store)
    with reading() as numbers:
        prompt = compose(memory, ROLE, budget=100_000)
        compactor(memory).compact_now(20)

    assert covered(numbers) == []
    assert "q30" in str(prompt.messages[0])


def test_the_newest_query_is_found_where_it_is_covered() -> None:
    """Where nothing after the compaction was said by the user: the rounds before its end are read until he speaks,
    once, and that round whenever a prompt is made."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(1, 11):
        if number <= 4:
            memory.append(user(f"q{number}"))
        memory.append(answer(f"a{number}"))
        memory.finish_round(memory.conversation.rounds[-1])
    ids = [round_.id for round_ in memory.conversation.rounds[:7]]
    made = CompactedMessage(start_index=1, end_index=7, summary="What was.", end_round_id=ids[-1])
    memory.journal(ROLE).publish(made, base=0, round_ids=ids)
    memory = Memory("s", store=store)

    with reading() as numbers:
        first = compose(memory, ROLE, budget=10_000)
    with reading() as again:
        second = compose(memory, ROLE, budget=10_000)

    assert [message["content"] for message in first.messages[1:]] == ["q4", "a8", "a9", "a10"]
    assert second == first
    assert [number for number in numbers if number <= 7] == [7, 6, 5, 4, 4]
    assert [number for number in again if number <= 7] == [4]


# -- views, whatever they have seen before ----------------------------------------------------------------------------


def test_a_view_that_is_still_in_use_tells_what_it_told() -> None:
    """Also when others have moved on to a later compaction, or back to an earlier one."""
    memory, token_cache = session(InMemoryStore()), TokenCache(ROLE, count_tokens)
    ends = [0, 10, 20, 35, 38, 10, 37]
    views = [view_of(memory, end, token_cache=token_cache) for end in ends]
    tokens = [view.tokens for view in views]

    assert [view.tokens for view in views] == tokens
    assert tokens == [view_of(memory, end, token_cache=TokenCache(ROLE, count_tokens)).tokens for end in ends]
    assert [view.messages for view in views] == [
        view_of(memory, end, token_cache=TokenCache(ROLE, count_tokens)).messages for end in ends
    ]


def test_a_view_tells_of_covered_rounds_when_a_host_asks() -> None:
    """A strategy of the host's may ask for the tokens behind any place."""
    memory = session(InMemoryStore())
    view = view_of(memory, 30, token_cache=TokenCache(ROLE, count_tokens))
    whole = view_of(memory, 0, token_cache=TokenCache(ROLE, count_tokens))

    assert view.count_tokens_after(30) == whole.count_tokens_after(30)
    assert view.count_tokens_after(20) == whole.count_tokens_after(20)
    assert view.count_closed_tokens(20, 35) == whole.count_closed_tokens(20, 35)
    assert view.count_closed_tokens(0, 10) == whole.count_closed_tokens(0, 10)
    assert view.count_closed_tokens(10, 10) == 0


def test_another_hosts_covered_rounds_are_not_turned_into_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds are in memory as it is, and what is made of them need not be."""
    items = [Round(id=f"r{number}", user_query="q", state="finished") for number in range(100)]
    made: list[int] = []
    read = HostRounds.__getitem__
    monkeypatch.setattr(HostRounds, "__getitem__", lambda self, place: made.append(place) or read(self, place))
    rounds = HostRounds(items, "")
    view = View(rounds, CompactedMessage(start_index=1, end_index=90, summary="s"), TokenCache("", len))

    assert view.tokens > 0
    assert set(made) == set(range(90, 100))


def test_prompts_after_a_revert_are_those_of_a_session_that_knows_nothing_else() -> None:
    """Sums reach back as far as the earlier compaction; and to the beginning where there is none any more."""
    store = InMemoryStore()
    memory = session(store)
    made = compactor(memory)
    first = prompts(memory)
    assert made.compact_now(20) is not None
    later = prompts(memory)
    assert later == prompts(Memory("s", store=store)) != first

    assert made.revert() is not None
    with reading() as numbers:
        assert prompts(memory) == first
    assert covered(numbers) == []

    assert made.revert() is None
    assert prompts(memory) == prompts(Memory("s", store=store))
    assert prompts(memory)[0].report.tokens_before > 3 * first[0].report.tokens_before


def prompts(memory: Memory) -> list[Prompt]:
    return [compose(memory, ROLE, budget=budget) for budget in (100_000, 1_200)]
