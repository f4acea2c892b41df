"""The benchmark of the host's path measures what it says, at sizes that take no time; and the path does no work twice."""

from __future__ import annotations

import gc
import re

import pytest

from benchmarks import host_path
from compactor import compose
from compactor.ledger import ledger_of
from compactor.tokens import count_tokens
from memory import Memory


def test_each_round_that_is_asked_for_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its times, and its ratio to the first; then the waits for Python's lock."""
    monkeypatch.setattr(host_path, "INPUT_TOKENS", 2_000)
    monkeypatch.setattr(host_path, "LONGEST_POST", 4_000)
    monkeypatch.setattr(host_path, "held", lambda post: 1.5 + post)
    host_path.main(["--rounds", "4", "30", "--turns", "10"])
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]
    first = ["at round", "--:", "4", "30", "compacted on the compactor's thread", "---"]
    assert [row[0] for row in rows] == [*first, "2,000 tokens", "and a post of 4,000 characters"]
    assert rows[2][6] == "1.00"
    for row in rows[2:4]:
        assert all(float(cell.split()[0]) > 0 for cell in row[1:7])
        assert re.fullmatch(r"\d+ ms", row[7])
    assert [row[1:] for row in rows[6:]] == [["1.5 ms"], ["4001.5 ms"]]


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


def test_a_compaction_is_looked_at_step_by_step() -> None:
    """With and without a long post: its texts are read in steps of the thread that compacts."""
    assert host_path.held(0, 4_000) > 0
    assert host_path.held(3_000, 4_000) > 0


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
    ledger = ledger_of(memory, host_path.ROLE, count)
    counted.clear()
    host_path.add_round(memory, 41)
    compose(memory, host_path.ROLE, system="Be brief.", budget=100_000, counter=count)
    query, answer = memory.conversation.rounds[-1].post_list
    assert sorted(counted) == sorted([query.message, answer.message])
    assert ledger.count is count


def test_a_round_of_the_past_is_a_few_objects_to_the_garbage_collector() -> None:
    """Its pause grows with those: a round and its two posts are two each, what holds these one, its entries four."""
    memory = Memory()
    host_path.add_round(memory, 1)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(2, 202):
        host_path.add_round(memory, number)
    gc.collect()
    assert (len(gc.get_objects()) - before) / 200 < 11.5
