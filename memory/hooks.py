"""Callbacks: those of a fork, and lists whose members cannot break each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, Protocol
from weakref import WeakSet

from .arguments import require_callable
from .errors import ContextError


class _Renewable(Protocol):
    def _after_fork(self) -> None: ...


_renewables: WeakSet[_Renewable] = WeakSet()


def renewed_after_fork(what: _Renewable) -> None:
    """Call ``what._after_fork()`` in every child that is forked while *what* lives."""
    _renewables.add(what)


def _renew_all() -> None:
    for what in tuple(_renewables):
        what._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)


P = ParamSpec("P")


def describe(callback: object) -> str:
    """Return a name for *callback* that may stand in an event: never its arguments or state."""
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def describe_error(error: BaseException) -> str:
    """Return what may stand in an event about *error*: our own message, or the class of an error that is not ours,
    whose message may hold what was said."""
    return str(error) if isinstance(error, ContextError) else type(error).__name__


class Hooks(Generic[P]):
    """Callbacks in the order they were added. One that raises is reported, and the next is called.

    The list is replaced, never changed, so calling needs no lock. A callback may add or remove others; that takes
    effect from the next call on.
    """

    def __init__(self, on_error: Callable[[Callable[P, object], Exception], None]) -> None:
        self._on_error = on_error
        #: The callbacks, each with what tells it from the same one added again.
        self.entries: tuple[tuple[object, Callable[P, object]], ...] = ()
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards the replacing of entries, and is held over nothing else

    def add(self, callback: Callable[P, object]) -> Callable[[], None]:
        """Add *callback*; return a function that removes it, and may be called again."""
        require_callable("callback", callback, "a function that is called with what has happened")
        key = object()
        with self._lock:
            self.entries = (*self.entries, (key, callback))

        def unsubscribe() -> None:
            with self._lock:
                self.entries = tuple(entry for entry in self.entries if entry[0] is not key)

        return unsubscribe

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for _, callback in self.entries:
            try:
                callback(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (anything a callback raises is its own affair)
                self._on_error(callback, error)
