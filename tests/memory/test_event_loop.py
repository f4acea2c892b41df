"""asyncio: appends that wait for a database hold up no event loop, and land in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar

import pytest
from forks import needs_fork, run
from hypothesis import given
from hypothesis import strategies as st

from memory import Entry, HistoryDiverged, InMemoryStore, Memory, MessageError, io_threads, open_store
from memory.io_threads import MAX_THREADS, Lane, to_thread


class Remote(InMemoryStore):
    """A store that is told when an append may end, as a slow database is; it names the threads that it waits on."""

    is_resident = False

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Semaphore(0), threading.Event()
        self.threads: set[str] = set()

    def append(self, session_id: str, entries: Sequence[Entry], after: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.begun.release()
        assert self.go_on.wait(30)
        super().append(session_id, entries, after)


def said(number: int) -> dict[str, str]:
    return {"role": "user", "content": str(number)}


def contents(memory: Memory) -> list[str]:
    return [message["content"] for message in memory.messages()]


def test_the_loop_goes_on_while_an_append_waits_for_its_store() -> None:
    """A disk that takes its time holds up one conversation, not the server."""

    async def serve() -> None:
        store = Remote()
        memory = Memory(store=store)
        appending = asyncio.create_task(memory.aappend(said(1)))
        await asyncio.to_thread(store.begun.acquire)
        assert not appending.done()
        store.go_on.set()
        await appending
        assert contents(memory) == ["1"]
        assert threading.current_thread().name not in store.threads

    asyncio.run(serve())


def test_a_session_in_memory_is_written_at_once() -> None:
    """Nothing waits there: to change threads would take longer than the append."""

    async def serve() -> None:
        memory = Memory()
        threads: list[threading.Thread] = []
        memory.on_round_added(lambda _total: threads.append(threading.current_thread()))
        await memory.aappend(said(1))
        assert (contents(memory), threads) == (["1"], [threading.current_thread()])

    asyncio.run(serve())


def test_context_variables_go_with_the_call_to_its_thread() -> None:
    """So what a hook logs there names the request, as on the loop."""
    request: ContextVar[str] = ContextVar("request", default="none")

    async def serve() -> None:
        store = Remote()
        store.go_on.set()
        memory, seen = Memory(store=store), list[str]()
        memory.on_round_added(lambda _total: seen.append(request.get()))
        request.set("request 7")
        await memory.aappend(said(1))
        assert (seen, await to_thread(request.get)) == (["request 7"], "request 7")

    asyncio.run(serve())


def test_who_appends_in_memory_lets_others_have_their_turn() -> None:
    """A long history holds up no other task: between two of its messages each of them goes on."""

    async def serve() -> None:
        memory, seen = Memory(), []
        appending = asyncio.create_task(append_all(memory))
        while not appending.done():
            seen.append(len(contents(memory)))
            await asyncio.sleep(0)
        assert len(set(seen)) > 90

    async def append_all(memory: Memory) -> None:
        for number in range(100):
            await memory.aappend(said(number))

    asyncio.run(serve())


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 12))
def test_cancelled_appends_leave_a_whole_log_in_order(cancelled: list[bool], begun: int) -> None:
    """A message is in the log or it is not; those after it follow in the order in which they were given."""

    async def serve() -> None:
        store = Remote()
        memory = Memory(store=store)
        tasks = [asyncio.create_task(memory.aappend(said(number))) for number in range(len(cancelled))]
        await asyncio.to_thread(store.begun.acquire)  # the first waits for its store, the others behind it
        if begun:
            store.go_on.set()
        for task, is_cancelled in zip(tasks, cancelled, strict=True):
            if is_cancelled:
                task.cancel()
        store.go_on.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await memory.aappend(said(99))

        present = list(map(int, contents(memory)))
        assert present == sorted(present)
        assert present[-1] == 99
        assert {at for at, one in enumerate(ended) if one is None} <= set(present)
        again = Memory(memory.session_id, store=store)
        assert contents(again) == contents(memory)

    asyncio.run(serve())


def test_a_lane_stays_one_at_a_time_after_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is made without one. The executor has queued it all the same, and must not serve the lane twice."""
    monkeypatch.setattr(io_threads, "MAX_THREADS", 2)
    monkeypatch.setattr(io_threads, "_io_threads", io_threads._IoThreads())
    begun, go, order = threading.Event(), threading.Event(), list[int]()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def hold() -> None:
        begun.set()
        assert go.wait(30)
        order.append(2)

    async def serve() -> None:
        lane = Lane()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await lane.run(lambda: order.append(1))
        calls = [asyncio.create_task(lane.run(hold)), asyncio.create_task(lane.run(lambda: order.append(3)))]
        while not begun.is_set():
            await asyncio.sleep(0)
        await to_thread(lambda: order.append(0))  # on the other thread, behind all that was queued
        go.set()
        await asyncio.gather(*calls)
        assert order == [1, 0, 2, 3]

    asyncio.run(serve())


def test_a_cancelled_append_that_was_begun_ends_before_the_next() -> None:
    """The task that was cancelled goes on at once; its successor waits for what the store is doing."""

    async def serve() -> None:
        store = Remote()
        memory = Memory(store=store)
        first = asyncio.create_task(memory.aappend(said(1)))
        await asyncio.to_thread(store.begun.acquire)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        second = asyncio.create_task(memory.aappend(said(2)))
        store.go_on.set()
        await second
        assert contents(memory) == ["1", "2"]

    asyncio.run(serve())


def test_any_number_of_appends_share_a_few_threads() -> None:
    """A thousand users who speak at the same time are no thousand threads."""

    async def serve() -> None:
        stores = [Remote() for _ in range(30)]
        memories = [Memory(store=store) for store in stores]
        for store in stores:
            store.go_on.set()
        await asyncio.gather(*(memory.aappend(said(number)) for number in range(5) for memory in memories))
        assert all(contents(memory) == list("01234") for memory in memories)
        assert len(set().union(*(store.threads for store in stores))) <= MAX_THREADS

    asyncio.run(serve())


def test_what_is_no_message_is_refused_at_once() -> None:
    """Nothing is written, and the session goes on."""

    async def serve() -> None:
        memory = Memory(store=Remote())
        with pytest.raises(MessageError):
            await memory.aappend({"role": "nobody"})
        assert contents(memory) == []

    asyncio.run(serve())


def test_other_calls_take_their_turn_behind_appends(url: str) -> None:
    """``to_thread`` is for everything else that reads or writes the session, with its result and its error."""

    async def serve() -> None:
        store = await asyncio.to_thread(open_store, url)
        memory = await asyncio.to_thread(Memory, "s", store=store)
        task = asyncio.create_task(memory.aappend(said(1)))
        await asyncio.sleep(0)
        round_ = await memory.to_thread(memory.create_round, "2", id="two")
        await task
        assert (round_.number, contents(memory)) == (2, ["1", "2"])
        with pytest.raises(KeyError):
            await memory.to_thread(memory.reload, "r7")
        await asyncio.to_thread(store.close)

    asyncio.run(serve())


def test_a_history_is_synced_off_the_loop_and_in_order() -> None:
    """Also in memory, where appends that are begun meanwhile follow it; and it returns what was done."""

    async def serve() -> None:
        memory = Memory()
        threads: list[threading.Thread] = []
        memory.on_round_added(lambda _total: threads.append(threading.current_thread()))
        history = [said(number) for number in range(3)]
        syncing = asyncio.create_task(memory.async_sync(history))
        await asyncio.sleep(0)
        await memory.aappend(said(3))
        assert ((await syncing).appended, contents(memory)) == (3, list("0123"))
        assert threading.current_thread() not in threads
        again = await memory.async_sync([*history, said(3)])
        assert again.appended == 0
        with pytest.raises(HistoryDiverged):
            await memory.async_sync([said(7)], on_divergence="raise")
        assert contents(memory) == list("0123")

    asyncio.run(serve())


def test_a_cancelled_sync_writes_all_of_its_history_or_none_and_the_next_goes_on() -> None:
    """A request that its user broke off: the history of the next one is in the log once."""

    async def serve() -> None:
        store = Remote()
        memory = Memory(store=store)
        history = [said(number) for number in range(5)]
        begun = asyncio.create_task(memory.async_sync(history[:3]))
        await asyncio.to_thread(store.begun.acquire)
        waiting = asyncio.create_task(memory.async_sync(history[:4]))
        await asyncio.sleep(0)
        begun.cancel()
        waiting.cancel()
        store.go_on.set()
        for one in (begun, waiting):
            with suppress(asyncio.CancelledError):
                await one
        synced = await memory.async_sync(history)
        assert (synced.kept + synced.appended, contents(memory)) == (5, list("01234"))

    asyncio.run(serve())


@needs_fork
def test_a_forked_child_appends_in_its_own_loop() -> None:
    """The parent's threads are not there; the child starts its own, and owes nothing to the parent's queue."""
    run(
        """
        import asyncio, threading
        from memory import InMemoryStore, Memory

        class Remote(InMemoryStore):
            is_resident = False

            def append(self, *args):
                begun.set()
                assert go_on.wait(30)
                super().append(*args)
        """,
        """
        begun, go_on = threading.Event(), threading.Event()
        memory = Memory("s", store=Remote())

        async def parent():
            waiting = asyncio.create_task(memory.aappend({"role": "user", "content": "parent"}))
            await asyncio.to_thread(begun.wait)
            code = exit_code(in_child(work))
            go_on.set()
            await waiting
            assert code == 0, code
            assert [message["content"] for message in memory.messages()] == ["parent"]

        def work():
            go_on.set()
            asyncio.run(memory.aappend({"role": "user", "content": "child"}))
            assert [message["content"] for message in memory.messages()] == ["child"]

        asyncio.run(parent())
        print("well")
        """,
    )
