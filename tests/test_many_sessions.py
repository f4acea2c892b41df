"""Many sessions in one process: what the benchmark claims, at a size that takes little time."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from benchmarks import many_sessions
from benchmarks.many_sessions import Measured
from compactor import ContextCompactor, View
from compactor.testing import ScriptedSummarizer
from memory import Memory

pytestmark = pytest.mark.slow

SESSIONS, THREADS, CONCURRENT = 40, 4, 2


@pytest.fixture(scope="module")
def measured() -> tuple[Measured, int]:
    """What was measured, and how many threads there were before, beside the main one."""
    others = threading.active_count() - 1
    return many_sessions.measure(SESSIONS, THREADS, CONCURRENT, latency=0.0), others


def test_there_are_never_more_calls_than_the_limit_allows(measured: tuple[Measured, int]) -> None:
    """And every compactor had one at least: none was left out."""
    assert 1 <= measured[0].calls_at_once <= CONCURRENT
    assert measured[0].calls >= 2 * SESSIONS


def test_sessions_add_no_threads(measured: tuple[Measured, int]) -> None:
    """The executor's, and one timer."""
    assert measured[0].threads <= measured[1] + THREADS + 1


def test_a_busy_session_takes_no_ones_turn(measured: tuple[Measured, int]) -> None:
    """However much it has to do, it stands in line behind the others each time."""
    assert 1 <= measured[0].busy_turns <= 4


def test_a_hundred_notifications_are_few_evaluations(measured: tuple[Measured, int]) -> None:
    """One that was on its way, one when its turn had come, and one at what was added meanwhile."""
    assert measured[0].evaluations <= 3


def test_the_table_has_a_column_for_each_size(
    measured: tuple[Measured, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, Any]] = []

    def in_a_process(sessions: int, arguments: Any) -> Measured:
        asked.append((sessions, arguments.max_concurrency))
        return measured[0]

    monkeypatch.setattr(many_sessions, "in_a_process", in_a_process)
    many_sessions.main(["--sessions", "10", "20", "--max-concurrency", "3"])
    assert asked == [(10, 3), (20, 3)]
    lines = capsys.readouterr().out.splitlines()
    assert {line.count("|") for line in lines} == {4}
    assert lines[2].startswith("| memory, all compacted |")


def test_each_size_is_a_process_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    many_sessions.main(["--sessions", "3", "--threads", "2", "--latency", "0"])
    assert "| 3 sessions |" in capsys.readouterr().out


def test_what_a_cycle_worked_with_is_freed_when_it_ends() -> None:
    """At once, and not when the garbage collector comes by, which it does rarely where sessions are many."""
    memory = Memory("session")
    many_sessions.add_rounds(memory, 1)
    compactor = ContextCompactor.for_role(memory, "Planner", many_sessions.CONFIG, ScriptedSummarizer())
    gc.collect()
    before = views()  # of other tests, which still hold them
    gc.disable()
    try:
        assert compactor.compact_now(60)
        assert compactor.stop(60)
        assert len(views()) == len(before)
    finally:
        gc.enable()


def views() -> list[View]:
    return [one for one in gc.get_objects() if isinstance(one, View)]
