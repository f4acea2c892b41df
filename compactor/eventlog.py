"""What happened, for those who look later and for those who asked to be told."""

from __future__ import annotations

import threading
from collections.abc import Callable

from memory.events import Event, EventHook, HookFailed
from memory.forking import renewed_after_fork
from memory.hooks import Hooks, describe
from memory.rounds import changed

from .threads.clock import Clock

__all__ = ["EventLog"]


class EventLog:
    """The newest *size* events, and the hooks that hear of each. Nothing that a hook raises gets out."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._hooks: Hooks[[Event]] = Hooks(self._hook_failed)
        self._size = size
        self._events: list[Event] = []  # no deque, whose first block is as large as all that most compactors tell
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards _events
        self._inside: set[int] = set()  # threads; thread-locals of many compactors are many

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events[max(len(self._events) - self._size, 0) :])

    def add_hook(self, hook: EventHook) -> Callable[[], None]:
        """Call *hook* with each event from now on; return a function that stops that."""
        return self._hooks.add(hook)

    def tell(self, event: Event) -> None:
        """Keep *event*, stamped with the clock's time, and tell it to the hooks, on this thread."""
        event = changed(event, at=self._clock.now())
        with self._lock:
            self._keep(event)
        with self.own_code():
            try:
                self._hooks(event)
            except BaseException as error:  # noqa: BLE001  (SystemExit, a native extension's panic: it has happened all the same)
                self._hook_failed(self._hooks, error)

    def _keep(self, event: Event) -> None:
        """Called with the lock held."""
        self._events.append(event)
        if len(self._events) >= 2 * self._size:
            del self._events[: len(self._events) - self._size]

    def _hook_failed(self, hook: object, error: BaseException) -> None:
        failed = HookFailed(at=self._clock.now(), hook=describe(hook), error=type(error).__name__)
        with self._lock:
            self._keep(failed)  # and no hook is told: the same one would fail at that

    @property
    def inside(self) -> bool:
        """Whether this thread runs the compactor's own code, hooks included: what waits for that waits for itself."""
        return threading.get_ident() in self._inside

    def own_code(self) -> _OwnCode:
        return _OwnCode(self._inside)  # a child that is forked in there gets another


class _OwnCode:
    """While it lasts, this thread is *inside*; the outermost ends that. A class, since every event there is needs one:
    a generator takes thrice as long."""

    __slots__ = ("_inside", "_thread", "_was_inside")

    def __init__(self, inside: set[int]) -> None:
        self._inside = inside

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._was_inside = self._thread in self._inside
        self._inside.add(self._thread)

    def __exit__(self, *_exc: object) -> None:
        if not self._was_inside:
            self._inside.discard(self._thread)
