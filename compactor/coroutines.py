"""A host's coroutines: compactors' threads wait for them, and they run on the host's event loop or on a shared one."""

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
#: Calls a function once, so many seconds from now; returns a function that cancels the call.
CallLater = Callable[[float, Callable[[], None]], Callable[[], object]]


class SharedLoop:
    """An event loop on a daemon thread of its own, which starts with the first coroutine and serves the process."""

    def __init__(self) -> None:
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards the loop, which is made once
        self._loop: AbstractEventLoop | None = None

    def get(self) -> AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import asyncio

                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="compactor-loop", daemon=True).start()
                self._loop = loop  # not before: a thread that could not be started is tried again
            return self._loop


_shared_loop = SharedLoop()


class HostLoop:
    """The event loop that a host's clients belong to; the compactors of a server share one.

    A client that was used on two loops fails on both. So coroutines run on this loop until it is closed, and not at
    all while it does not run, as between two calls of ``run_until_complete``.
    """

    #: None: the host has none, or this is a forked child, where it does not run.
    loop: AbstractEventLoop | None = None

    def enter(self, loop: AbstractEventLoop) -> None:
        """Run coroutines on *loop* from now on."""
        if loop is not self.loop:
            self.loop = loop
            renew_after_fork(self)

    def follow(self) -> None:
        """Enter the loop that runs on this thread, if any; but not while another one runs that was entered before."""
        events = sys.modules.get("asyncio.events")  # else there is none: most programs need not import it
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
    """Where one compactor's coroutines run, and for how long."""

    #: Tells when *timeout* seconds are over; None: they may take for ever.
    call_later: CallLater | None = None
    timeout: float = 0.0
    host: HostLoop = field(default_factory=HostLoop)

    def refuse_to_block(self, name: str) -> None:
        """Raise ``RuntimeError`` on the host's event loop: coroutines that a cycle waits for could not run."""
        import asyncio

        if asyncio._get_running_loop() is self.host.loop:
            raise RuntimeError(f"{name}() would hold up the event loop; await asyncio.to_thread(compactor.{name})")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what *function* returns, and the result of that if it is awaitable."""
        answer = function(*args)
        return self.wait_for(answer) if inspect.isawaitable(answer) else answer

    def wait_for(self, awaitable: Awaitable[R]) -> R:
        """Return the result of *awaitable*. When its time is over, it is cancelled: raises ``CompactionTimeout``."""
        import asyncio

        loop = self.host.loop
        # On its own thread a loop would wait for itself for ever; one that was closed runs nothing.
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
            except RuntimeError:  # it was closed just now
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
    """The host's event loop does not run now, and its coroutines run nowhere else."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__(
            "the event loop that the host's coroutines belong to does not run; when it does, the compactor looks again"
        )
        self.loop = loop


class Cancelled(ContextError):
    """A host's coroutine was cancelled before it had an answer."""


#: On the shared loop, for as long as they take.
_UNBOUND = Coroutines()
#: Those of the compactor whose cycle this thread runs.
coroutines_used: ContextVar[Coroutines] = ContextVar("coroutines", default=_UNBOUND)


def wait_for(awaitable: Awaitable[R]) -> R:
    """Return the result of *awaitable*, where ``coroutines_used`` says."""
    return coroutines_used.get().wait_for(awaitable)


async def _await(awaitable: Awaitable[R]) -> R:
    return await awaitable
