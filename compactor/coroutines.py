"""Runs a host's coroutines for the compactors' threads, on the host's event loop or on a shared one."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from memory.errors import ContextError
from memory.hooks import renew_after_fork

from .errors import CompactionTimeout

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

R = TypeVar("R")
#: Calls a function once after that many seconds; returns a function that cancels the call.
CallLater = Callable[[float, Callable[[], None]], Callable[[], object]]


class SharedLoop:
    """An event loop on its own daemon thread. It starts with the first coroutine and serves the whole process."""

    def __init__(self) -> None:
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards the loop, which is created once
        self._loop: AbstractEventLoop | None = None

    def get(self) -> AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import asyncio

                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="compactor-loop", daemon=True).start()
                self._loop = loop  # not before: a failed start is retried
            return self._loop


_shared_loop = SharedLoop()


class HostLoop:
    """The event loop of a host's clients; the compactors of a server share one.

    A client that is used on two loops fails on both. So coroutines run on this loop until it is closed, and not at all
    while it is not running, such as between two calls of ``run_until_complete``.
    """

    #: None: the host has none, or this is a forked child, where the loop does not run.
    loop: AbstractEventLoop | None = None

    def enter(self, loop: AbstractEventLoop) -> None:
        """Run coroutines on *loop* from now on."""
        if loop is not self.loop:
            self.loop = loop
            renew_after_fork(self)

    def follow(self) -> None:
        """Enter the loop that runs on this thread, if any, unless the loop entered before is still running."""
        events = sys.modules.get("asyncio.events")  # absent: no loop runs, and asyncio need not be imported
        loop = events._get_running_loop() if events is not None else None
        if loop is not None and not self.is_running:
            self.enter(loop)

    @property
    def is_running(self) -> bool:
        return self.loop is not None and self.loop.is_running()

    def _after_fork(self) -> None:
        self.loop = None


@dataclass(eq=False, repr=False)
class Coroutines:
    """Runs one compactor's coroutines, with a time limit."""

    #: Schedules the end of *timeout* seconds; None: no time limit.
    call_later: CallLater | None = None
    timeout: float = 0.0
    host: HostLoop = field(default_factory=HostLoop)

    def refuse_to_block(self, name: str) -> None:
        """Raise ``RuntimeError`` on the host's event loop, because a cycle's coroutines could not run meanwhile."""
        import asyncio

        if asyncio._get_running_loop() is self.host.loop:
            raise RuntimeError(f"{name}() would block the event loop; await asyncio.to_thread(compactor.{name})")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of *function*, awaited if it is awaitable."""
        answer = function(*args)
        return self.wait_for(answer) if inspect.isawaitable(answer) else answer

    def wait_for(self, awaitable: Awaitable[R]) -> R:
        """Return the result of *awaitable*. After the time limit, cancel it and raise ``CompactionTimeout``."""
        import asyncio

        loop = self.host.loop
        # A loop would wait for itself on its own thread, and a closed one runs nothing.
        if loop is None or loop.is_closed() or asyncio._get_running_loop() is loop:
            loop = _shared_loop.get()
        elif not loop.is_running():
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise LoopPaused(loop)
        future: Future[R] | None = None
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            is_late = True
            if future is not None:
                future.cancel()

        cancel = self.call_later(self.timeout, give_up) if self.call_later is not None else None
        try:
            running = _await(awaitable)
            try:
                future = asyncio.run_coroutine_threadsafe(running, loop)
            except RuntimeError:  # the loop was closed just now
                future = asyncio.run_coroutine_threadsafe(running, _shared_loop.get())
            if is_late:
                future.cancel()
            return future.result()
        except CancelledError:
            if is_late:
                within = f"within call_timeout={self.timeout:g} seconds"
                raise CompactionTimeout(f"a coroutine did not end {within}, and was cancelled") from None
            raise Cancelled("a coroutine was cancelled by its host, or its event loop was closed") from None
        finally:
            if cancel is not None:
                cancel()


class LoopPaused(ContextError):
    """The host's event loop is not running now, and its coroutines run nowhere else."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(
            "the event loop for the host's coroutines is not running; the compactor tries again when it runs"
        )
        self.loop = loop


class Cancelled(ContextError):
    """A host's coroutine was cancelled before it returned."""


#: On the shared loop, without a time limit.
_UNBOUND = Coroutines()
#: The coroutines of the compactor whose cycle runs on this thread.
coroutines_used: ContextVar[Coroutines] = ContextVar("coroutines", default=_UNBOUND)


def wait_for(awaitable: Awaitable[R]) -> R:
    """Return the result of *awaitable*, run by ``coroutines_used``."""
    return coroutines_used.get().wait_for(awaitable)


async def _await(awaitable: Awaitable[R]) -> R:
    return await awaitable
