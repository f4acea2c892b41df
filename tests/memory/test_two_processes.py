"""Two processes that write to one session at once: a little of what ``benchmarks/two_writers.py`` does at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.two_writers import Result, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


def agreed(result: Result) -> None:
    assert result.faults == []
    assert (len(result.found.rounds), len(result.found.posts)) == (80, 240)
    assert result.found.generation > 0
    first, second = (set(seen.posts) for seen in result.seen)
    assert len(first) == len(second) == 120


def test_two_processes_write_to_one_session_on_sqlite(tmp_path: Path) -> None:
    """All is there, once, in an order both see; each hears of each round once, and nothing is summarised twice."""
    agreed(run(f"sqlite:///{(tmp_path / 'log.db').as_posix()}", 80, tmp_path, followers=0))


def test_two_processes_write_to_one_session_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    """All is there, once, in an order both see; each hears of each round once, and nothing is summarised twice."""
    agreed(run(postgres_url, 80, tmp_path, followers=0))
