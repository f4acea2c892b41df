"""The benchmark of the host's path measures what it says, at sizes that take no time; and the path does no work twice."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from functools import partial

import pytest
from views import get_token_cache

from benchmarks import host_path
from compactor import SummaryRequest, compose, count_tokens
from memory import Memory, Post, Round


@pytest.mark.slow
def test_each_round_that_is_asked_for_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its times, and its ratio to the first; then the waits for Python's lock."""
    monkeypatch.setattr(host_path, "INPUT_TOKENS", 2_000)
    monkeypatch.setattr(host_path, "LONGEST_POST", 4_000)
    monkeypatch.setattr(host_path, "held", lambda post: 1.5 + post)
    host_path.main(["--rounds", "4", "30", "--turns", "10", "--pause", "0.0001"])
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    first = ["at round", "--:", "4", "30", "compacted on the compactor's thread", "---"]
    assert [row[0] for row in rows] == [*first, "2,000 tokens", "and a post of 4,000 characters"]
    assert rows[2][7] == "1.00"
    for row in rows[2:4]:
        assert all(float(cell.split()[0]) > 0 for cell in row[1:8])
        assert re.fullmatch(r"\d+ ms", row[8])
    assert [row[1:] for row in rows[6:]] == [["1.5 ms"], ["4001.5 ms"]]


@pytest.mark.slow
def test_the_turns_are_behind_the_rounds_that_were_asked_for_and_most_of_those_are_covered() -> None:
    """So what is measured there is a session of that length."""
    found = host_path.at_rounds([40], 6)
    assert [(one.at, len(one.cpu), len(one.own), len(one.wall)) for one in found] == [(40, 6, 6, 6)]
    memory = Memory()
    for number in range(1, 12):
        host_path.add_round(memory, number)
    host_path.cover(memory)
    _, compaction = memory.get_role_rounds(host_path.ROLE)
    assert compaction is not None
    assert compaction.end_index == 11 - host_path.RETAINED


def test_the_longest_step_is_that_of_a_call_in_which_no_python_runs() -> None:
    """A call that goes back to Python lets go of the lock there; what follows is another step."""
    steps = host_path.Steps()
    times = iter([0.0, 2.0, 3.0, 4.0, 5.0, 9.0, 10.0])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_path.time, "thread_time", lambda: next(times))
        for event in ("c_call", "call", "c_call", "c_return", "return", "c_return", "c_return"):
            steps(None, event, None)  # type: ignore[arg-type]
    assert steps.longest == 4.0


@pytest.mark.slow
@pytest.mark.parametrize("post", [0, 3_000])
def test_a_compaction_is_looked_at_step_by_step(post: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the thread that compacts, and with the long post in what is summarised."""
    threads, read = set(), []

    host_path_summary = host_path.summarized

    class Seen(host_path.Steps):
        def __call__(self, *_event: object) -> None:
            threads.add(threading.get_ident())
            self.longest = 0.25

    def summarized(request: SummaryRequest) -> str:
        read.append(str(request.messages))
        return host_path_summary(request)

    monkeypatch.setattr(host_path, "Steps", Seen)
    monkeypatch.setattr(host_path, "summarized", summarized)
    assert host_path.held(post, 4_000) == 250.0
    assert threads
    assert threading.get_ident() not in threads
    assert any("4711-AX" in text for text in read) is bool(post)


def test_a_turn_counts_the_tokens_of_what_is_new_and_of_nothing_else() -> None:
    """However long the conversation is: of a turn, its two texts, each once."""
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    memory = Memory()
    for number in range(1, 41):
        host_path.add_round(memory, number)
        compose(memory, host_path.ROLE, system="Be brief.", budget=100_000, counter=count)
    token_cache = get_token_cache(memory, host_path.ROLE, count)
    counted.clear()
    host_path.add_round(memory, 41)
    compose(memory, host_path.ROLE, system="Be brief.", budget=100_000, counter=count)
    query, answer = memory.conversation.rounds[-1].post_list
    assert sorted(counted) == sorted([query.message, answer.message])
    assert token_cache.count is count


@pytest.mark.slow
def test_a_round_of_the_past_is_a_few_objects_to_the_garbage_collector() -> None:
    """Its pause grows with those. A record and its fields are two, here as in any class; a round and its posts are that,
    what holds the posts, and a line of the log for each."""

    def grown(add: Callable[[int], object]) -> int:
        add(1)
        gc.collect()
        before = len(gc.get_objects())
        for number in range(2, 202):
            add(number)
        gc.collect()
        return len(gc.get_objects()) - before

    memory = Memory()
    least: list[object] = []
    ours = grown(partial(host_path.add_round, memory))
    rounds = iter(memory.conversation.rounds)

    def add_plain(_number: int) -> None:
        round_ = next(rounds)
        posts = tuple(Plain(post) for post in round_.post_list)
        lines = ((round_.extra,), *((post,) for post in posts))
        least.extend((Plain(round_, post_list=posts), *lines))

    assert ours < grown(add_plain) * 1.05


class Plain:
    """A record with nothing about it."""

    def __init__(self, record: Post | Round, **fields: object) -> None:
        self.__dict__ = {**record.__dict__, **fields}
