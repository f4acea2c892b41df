"""The embedded default summarizer in another process, and in several threads."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
from scene import in_thread

from compactor import (
    CompactedMessage,
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Round,
    Summary,
    SummaryRequest,
    count_tokens,
)
from memory import Memory

FILLER = [
    "Could you have another look at the chart?",
    "The page loads faster than it used to.",
]


@pytest.mark.slow
def test_a_process_pool_gives_the_same_summary() -> None:
    """The host's pool reads the rounds and writes the text; which process does it makes no difference."""
    rounds = [
        Round(user_query=f"Never call before {hour}:00. Order RES-{hour}813 is late. {filler}")
        for hour, filler in enumerate(FILLER, 10)
    ]
    previous = CompactedMessage(start_index=1, end_index=2, summary="Goal:\n- Ship order RES-48213 by Friday.")
    request = SummaryRequest(role="Planner", rounds=rounds, previous=previous, start_index=3, end_index=7)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = ExtractiveSummarizer(target_tokens=80, executor=pool)(request)
    assert there == ExtractiveSummarizer(target_tokens=80)(request)
    assert "RES-48213" in there.text


def test_a_pool_that_was_shut_down_fails_the_compaction() -> None:
    """Its error is the summarizer's: whoever asks for a compaction hears of it, and nothing is published."""
    pool = ProcessPoolExecutor(1)
    pool.shutdown()
    said = [("user", "Ship order RES-48213 by Friday. " * 20), ("assistant", "It leaves on Thursday.")]
    memory = Memory.from_messages([{"role": role, "content": content} for role, content in said * 3])
    config = CompactorConfig(retain_recent=0)
    compactor = ContextCompactor.for_role(memory, "assistant", config, ExtractiveSummarizer(executor=pool))
    with pytest.raises(CompactionFailed, match="RuntimeError"):
        compactor.compact_now()
    assert compactor.status().end_index == 0


def test_one_extract_works_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each more that wants the interpreter would hold up an event loop, and none would end sooner."""
    lock, other_came, begun = threading.Lock(), threading.Event(), list[Callable[[], object]]()
    log: list[str] = []

    class Turn:
        def __enter__(self) -> None:
            if not lock.acquire(blocking=False):
                other_came.set()
                lock.acquire()

        def __exit__(self, *_exc: object) -> None:
            lock.release()

    def choose(*_args: object) -> Summary:
        log.append("begins")
        if not begun:
            begun.append(in_thread(lambda: ExtractiveSummarizer()(SummaryRequest())))
            assert other_came.wait(30)
        other_came.set()
        log.append("ends")
        return Summary("")

    monkeypatch.setattr("compactor.summarizers.extractive._extract_lock", Turn())
    monkeypatch.setattr("compactor.summarizers.choice.choose", choose)
    ExtractiveSummarizer()(SummaryRequest())
    begun[0]()
    assert log == ["begins", "ends"] * 2


def test_a_hosts_count_may_wait_for_another_extract() -> None:
    """No extract waits for one that calls a host."""
    request = SummaryRequest(rounds=(Round(user_query="Please paint the fence green by Friday."),))

    def count(text: str) -> int:
        in_thread(lambda: ExtractiveSummarizer()(request))()
        return count_tokens(text)

    assert "fence" in ExtractiveSummarizer(count=count)(request).text
