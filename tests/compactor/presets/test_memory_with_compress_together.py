"""Tasks and threads that use one memory at the same time: nobody waits for a summary, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, result, user
from compressed_memory import SHORT, filled, heard, reasons, run, shortened, shown, turn, turns
from threads import at_once

from compactor.presets import MemoryWithCompress
from memory import Memory


class Waiting:
    """An async compress_func that lets a test do something while it is at work."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.seen: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> list[Message]:
        self.seen.append(messages)
        self.begun.set()
        await self.go_on.wait()
        return [SHORT]


def test_what_is_added_meanwhile_stays() -> None:
    """No lock is held while waiting: others add, read and count, and the result is used all the same."""

    async def work() -> None:
        compress = Waiting()
        memory = MemoryWithCompress(10, compress_func=compress)
        await memory.add(turns(1))
        reading = asyncio.create_task(memory.get_memory())
        await compress.begun.wait()
        await memory.add(turn(2))
        assert await memory.size() == 8
        compress.go_on.set()
        assert await reading == [SHORT, *turn(2)]
        assert await memory.get_memory() == [SHORT]
        assert compress.seen == [turns(1), [SHORT, *turn(2)]]

    run(work())


@pytest.mark.parametrize("change", ["delete", "direct_update_memory", "clear", "redact", "load"])
def test_a_result_made_from_what_is_no_longer_shown_is_discarded(change: str) -> None:
    """A stale result never brings back a deleted, replaced or erased message."""

    other = filled([user("other")]).state_dict()

    async def work() -> None:
        compress = Waiting()
        memory = MemoryWithCompress(10, compress_func=compress, compression_on_get=False)
        events = heard(memory)
        await memory.add(turns(1))
        expected = await memory.get_memory()
        memory.compression_on_get = True
        reading = asyncio.create_task(memory.get_memory())
        await compress.begun.wait()
        if change == "delete":
            await memory.delete(3)
            expected = turns(1)[:3]
        elif change == "direct_update_memory":
            await memory.direct_update_memory(expected := [turn(1)[0]])
        elif change == "clear":
            await memory.clear()
            expected = []
        elif change == "redact":
            memory.memory.redact("r1.p3")
            expected = [*turns(1)[:3], answer("[Redacted]")]
        else:
            memory.load_state_dict(other)
            expected = [user("other")]
        memory.compression_on_get = False
        memory.max_token = 10_000
        compress.go_on.set()
        assert await reading == expected
        assert reasons(events) == ["stale"]

    run(work())


def test_of_two_readers_the_first_result_is_used() -> None:
    """Both ask, neither waits for the other, and the second result is discarded with an event."""

    async def work() -> None:
        first, second = Waiting(), Waiting()
        memory = MemoryWithCompress(100)
        events = heard(memory)
        await memory.add(turns(1))
        readers = [asyncio.create_task(memory.get_memory(compress_func=each)) for each in (first, second)]
        await asyncio.gather(first.begun.wait(), second.begun.wait())
        second.go_on.set()
        assert await readers[1] == [SHORT]
        await memory.add(turn(2))
        memory.max_token = 10_000
        first.go_on.set()
        assert await readers[0] == [SHORT, *turn(2)]
        assert reasons(events) == ["stale"]

    run(work())


def test_a_reader_that_is_thrown_away_leaves_the_next_to_do_it() -> None:
    """A loop that was given up in the middle holds nothing."""
    loop = asyncio.new_event_loop()

    async def never(_messages: list[Message]) -> list[Message]:
        await asyncio.Event().wait()
        return []

    memory = filled(turns(1), compress_func=never)
    reading = memory.get_memory()
    task = loop.create_task(reading)
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task
    reading.close()

    assert shown(memory, compress_func=shortened) == [SHORT]


def test_a_reader_that_is_cancelled_leaves_the_next_to_do_it() -> None:
    """Everything is as it was, and nothing waits for ever."""

    async def work() -> None:
        compress = Waiting()
        memory = MemoryWithCompress(10, compress_func=compress)
        await memory.add(turns(1))
        first = asyncio.create_task(memory.get_memory())
        await compress.begun.wait()
        second = asyncio.create_task(memory.get_memory())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        compress.go_on.set()
        assert await second == [SHORT]

    run(work())


@pytest.mark.parametrize("threaded", [True, False])
def test_a_function_that_reads_the_same_memory_does_not_wait_for_itself(threaded: bool) -> None:
    """It reads the shown messages as they are."""
    seen: list[list[Message]] = []

    async def compress(_messages: list[Message]) -> list[Message]:
        seen.append(await memory.get_memory())
        return [SHORT]

    def compress_in_thread(messages: list[Message]) -> list[Message]:
        return run(compress(messages))

    memory = filled(turns(1), compress_func=compress_in_thread if threaded else compress)

    assert shown(memory) == [SHORT]
    assert seen == [turns(1)]


def test_a_plain_function_does_not_hold_up_the_event_loop() -> None:
    """It is called in a thread; a trigger, which should be quick, is not."""
    threads: list[str] = []

    def compress(_messages: list[Message]) -> list[Message]:
        threads.append(threading.current_thread().name)
        return [SHORT]

    def trigger(_messages: list[Message]) -> bool:
        threads.append(threading.current_thread().name)
        return not threads[1:]

    memory = filled(turns(1), max_token=10_000, compress_func=compress, compression_trigger_func=trigger)
    shown(memory)

    assert threads[0] == threading.main_thread().name
    assert threads[1] != threading.main_thread().name


def test_two_memories_may_read_each_other() -> None:
    """Each compresses the other's; neither itself again."""
    one, other = filled(turns(1), compress_func=None), filled(turns(2), compress_func=None)
    seen: list[list[Message]] = []

    async def compress_one(_messages: list[Message]) -> list[Message]:
        return await other.get_memory()

    async def compress_other(_messages: list[Message]) -> list[Message]:
        seen.append(await one.get_memory())
        return [SHORT]

    one.compress_func, other.compress_func = compress_one, compress_other

    assert shown(one) == [SHORT]
    assert seen == [turns(1)]


class Racing(Memory):
    """A Memory to which somebody appends right after its snapshot was taken."""

    race: Callable[[], object] | None = None

    @property
    def snapshot(self) -> Any:
        now, race, self.race = vars(self)["now"], self.race, None
        if race is not None:
            race()
        return now

    @snapshot.setter
    def snapshot(self, now: Any) -> None:
        vars(self)["now"] = now


def test_what_is_appended_at_the_same_moment_is_shown() -> None:
    """It follows the messages that replaced the window."""
    log = Racing.from_messages(turns(1))
    assert isinstance(log, Racing)
    memory = MemoryWithCompress(memory=log)
    log.race = lambda: log.append(user("and P-200?"))

    run(memory.direct_update_memory(turn(1)[0]))

    assert memory.shown() == [turn(1)[0], user("and P-200?")]


def test_threads_with_loops_of_their_own_lose_nothing() -> None:
    """Each adds and reads; all that was added is in the log, calls beside their results."""
    memory = MemoryWithCompress(500, compress_func=lambda messages: [SHORT])

    def work(number: int) -> None:
        for step in range(10):
            call = f"{number}-{step}"
            run(memory.add([calls(call), result(call, "r" * 50), answer(call)]))
            assert_paired(run(memory.get_memory()))

    at_once(*(partial(work, number) for number in range(4)))

    assert run(memory.size()) == 120
    assert_paired(memory.memory.messages())
    said = [message["content"] for message in memory.memory.messages() if message.get("content") and message["role"] == "assistant"]  # fmt: skip
    assert sorted(said) == sorted(f"{number}-{step}" for number in range(4) for step in range(10))
