"""What happened, for those who look later and for those who asked to be told."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memory.events import Event, EventHook, HookFailed
from memory.forking import renewed_after_fork
from memory.hooks import Hooks, describe
from memory.rounds import changed

from .clock import Clock

__all__ = ["EventLog"]


class _Inside(threading.local):
    depth = 0


class EventLog:
    """The newest *size* events, and the hooks that hear of each. Nothing that a hook raises gets out."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._hooks: Hooks[[Event]] = Hooks(self._hook_failed)
        self._events: deque[Event] = deque(maxlen=size)
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards _events
        self._local = _Inside()

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events)

    def add_hook(self, hook: EventHook) -> Callable[[], None]:
        """Call *hook* with each event from now on; return a function that stops that."""
        return self._hooks.add(hook)

    def tell(self, event: Event) -> None:
        """Keep *event*, stamped with the clock's time, and tell it to the hooks, on this thread."""
        event = changed(event, at=self._clock.now())
        with self._lock:
            self._events.append(event)
        local = self._local  # as in own_code(), for every event there is
        local.depth += 1
        try:
            self._hooks(event)
        except BaseException as error:  # noqa: BLE001  (SystemExit, a native extension's panic: it has happened all the same)
            self._hook_failed(self._hooks, error)
        finally:
            local.depth -= 1

    def _hook_failed(self, hook: object, error: BaseException) -> None:
        failed = HookFailed(at=self._clock.now(), hook=describe(hook), error=type(error).__name__)
        with self._lock:
            self._events.append(failed)  # and no hook is told: the same one would fail at that

    @property
    def inside(self) -> bool:
        """Whether this thread runs the compactor's own code, hooks included: what waits for that waits for itself."""
        return self._local.depth > 0

    @contextmanager
    def own_code(self) -> Iterator[None]:
        local = self._local  # a child that is forked in here gets another
        local.depth += 1
        try:
            yield
        finally:
            local.depth -= 1
