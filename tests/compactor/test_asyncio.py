"""asyncio: prompts, summarizers, getters and triggers of a host that never leaves its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, SOON, add_round, end_of, memory_of

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Memory,
    Summary,
    SummaryRequest,
    View,
    acompose,
    compose,
    open_store,
)
from compactor.presets import MemoryWithCompress
from compactor.testing import FakeClock


class Later:
    """An asynchronous summarizer; it answers when it is told to, and names the threads and loops that it ran on."""

    model = "a-model"

    def __init__(self, *, answers: bool = True) -> None:
        self.begun, self.cancelled = threading.Semaphore(0), threading.Event()
        self.answers = answers
        self.threads: set[str] = set()
        self.loops: set[int] = set()

    async def __call__(self, request: SummaryRequest) -> Summary:
        self.threads.add(threading.current_thread().name)
        self.loops.add(id(asyncio.get_running_loop()))
        self.begun.release()
        try:
            await asyncio.sleep(0)
            if not self.answers:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Summary(PRICES, model=self.model)


def test_asynchronous_summarizers_share_one_loop_on_one_thread() -> None:
    """A host without a loop of its own may give an ``async def``: twenty compactors start one thread for them."""
    later = Later()
    compactors = [ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, later) for _ in range(20)]
    for compactor in compactors:
        compactor.start()
    assert all(compactor.wait_idle(SOON) for compactor in compactors)
    assert [end_of(compactor) for compactor in compactors] == [6] * 20
    assert all(compactor.stop() for compactor in compactors)
    assert (later.threads, len(later.loops)) == ({"compactor-loop"}, 1)


def test_within_async_with_everything_of_the_hosts_runs_on_its_loop() -> None:
    """Clients that belong to a loop can be used: summarizer, getter and trigger run where the host runs."""
    later, loops = Later(), set()
    memory = memory_of(9)

    async def rounds() -> Sequence[Any]:
        loops.add(id(asyncio.get_running_loop()))
        return memory.get_role_rounds(ROLE)[0]

    async def many(view: View) -> bool:
        loops.add(id(asyncio.get_running_loop()))
        return view.tail_length > 7

    async def serve() -> int:
        async with ContextCompactor(CONFIG, later, rounds, role=ROLE, trigger=many) as compactor:
            assert await asyncio.to_thread(compactor.wait_idle, SOON)
            assert end_of(compactor) == 6
        assert compactor.status().state == "stopped"
        return id(asyncio.get_running_loop())

    assert {asyncio.run(serve())} == later.loops == loops


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    """``call_timeout`` holds; and unlike a thread that hangs, nothing of it is left."""
    clock, later = FakeClock(), Later(answers=False)
    config = CompactorConfig(threshold=7, retain_recent=3, call_timeout=30)
    with ContextCompactor.for_role(memory_of(9), ROLE, config, later, clock=clock) as compactor:
        assert later.begun.acquire(timeout=SOON)
        clock.advance(30)
        assert later.cancelled.wait(SOON)
        compactor.wait_idle(SOON)
        status = compactor.status()
        assert (status.failures, "call_timeout=30" in str(status.last_error)) == (1, True)


def test_a_host_that_leaves_cancels_the_call_and_nothing_hangs() -> None:
    """A loop that ends takes its coroutines along: that is a failed call, and the next one runs elsewhere."""
    later = Later(answers=False)
    memory = memory_of(9)
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, later)

    async def serve() -> None:
        await compactor.__aenter__()
        await asyncio.to_thread(later.begun.acquire)

    asyncio.run(serve())
    assert later.cancelled.wait(SOON)
    compactor.wait_idle(SOON)
    assert "cancelled" in str(compactor.status().last_error)
    later.answers = True
    compaction = compactor.compact_now(SOON)
    assert compaction is not None
    assert compaction.summary.startswith(PRICES)
    assert compactor.stop()


def test_the_presets_async_memory_asks_on_the_hosts_loop() -> None:
    """``MemoryWithCompress`` is used with ``await``: an asynchronous model is asked on the loop that awaits it."""
    later = Later()
    talk = [{"role": ("user", "assistant")[number % 2], "content": "Item costs. " * 40} for number in range(12)]

    async def serve() -> int:
        memory = MemoryWithCompress(900, summarizer=later)
        await memory.add(talk)
        assert "11 euros" in str(await memory.get_memory())
        return id(asyncio.get_running_loop())

    assert later.loops == {asyncio.run(serve())}


def test_waiting_on_the_loop_is_refused() -> None:
    """It would wait for coroutines that it keeps from running: the error says what to await instead."""

    async def serve() -> None:
        async with ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, Later()) as compactor:
            with pytest.raises(RuntimeError, match=r"asyncio.to_thread\(compactor.compact_now"):
                compactor.compact_now(SOON)
            with pytest.raises(RuntimeError, match=r"asyncio.to_thread\(compactor.wait_idle"):
                compactor.wait_idle(SOON)
            assert await asyncio.to_thread(compactor.compact_now, SOON) is not None

    asyncio.run(serve())


def test_acompose_gives_the_prompt_of_compose(tmp_path: Path) -> None:
    """With the same arguments and the same errors, wherever the session is kept."""

    async def serve(memory: Memory) -> None:
        prompt = await acompose(memory, ROLE, budget=4_000, system="Be brief.")
        assert prompt == compose(memory, ROLE, budget=4_000, system="Be brief.")
        assert prompt.messages[0] == {"role": "system", "content": "Be brief."}
        with pytest.raises(TypeError, match="memory: must be a Memory"):
            await acompose([], budget=4_000)  # type: ignore[arg-type]

    asyncio.run(serve(memory_of(5)))
    store = open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    stored = Memory("s", store=store)
    for _ in range(5):
        add_round(stored)
    asyncio.run(serve(stored))
    store.close()
