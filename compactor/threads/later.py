"""One call to come: who asks for another has that one instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakMethod

from .clock import Clock

__all__ = ["Later"]


class Later:
    """Has *method* called once, some time from now, on another thread.

    Guarded by the lock of *wake*. What the method belongs to is held weakly: what nobody holds any more is not kept
    alive by what it waits for.
    """

    def __init__(self, clock: Clock, wake: threading.Condition, method: Callable[..., object]) -> None:
        self._clock = clock
        self._wake = wake
        self._method = WeakMethod(method)
        self._cancel: Callable[[], object] = _nothing

    @property
    def cancel(self) -> Callable[[], object]:
        """What cancels the call that is to come now, and none that is asked for after this. Not to be called with the
        lock held."""
        return self._cancel

    def call_in(self, seconds: float | None, *args: object) -> None:
        """Have it called in so many *seconds*, with *args*; None: not at all. What was to come before does not."""
        cancel: Callable[[], object] = _nothing
        if seconds is None and self._cancel is _nothing:
            return
        if seconds is not None:
            cancel = self._clock.call_later(seconds, partial(_call, self._method, args))
        with self._wake:
            before, self._cancel = self._cancel, cancel
        before()


def _call(method: WeakMethod[Callable[..., object]], args: tuple[object, ...]) -> None:
    if (call := method()) is not None:
        call(*args)


def _nothing() -> None:
    """There is no call to cancel."""
