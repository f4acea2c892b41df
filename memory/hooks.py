"""Callbacks: those of a fork, and lists whose members cannot break each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec
from weakref import WeakSet

from .arguments import require
from .errors import ContextError

_renewables: WeakSet[Any] = WeakSet()
#: ``renew_after_fork(owner)`` has ``owner._after_fork()`` called in every child that is forked while *owner* lives.
renew_after_fork: Callable[[Any], None] = _renewables.add


def _renew_all() -> None:
    for owner in tuple(_renewables):
        owner._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)


P = ParamSpec("P")


def describe(callback: object) -> str:
    """Return a name for *callback* that may stand in an event: never its arguments or state."""
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def describe_error(error: BaseException) -> str:
    """Return the text for an event about *error*: our own message, or only the class of an error that is not ours,
    because its message may quote the conversation."""
    return str(error) if isinstance(error, ContextError) else type(error).__name__


class Hooks(Generic[P]):
    """Callbacks in the order they were added. One that raises is reported, and the next is called.

    The list is replaced, never changed, so calling needs no lock. A callback may add or remove others; that takes
    effect from the next call on.
    """

    def __init__(self, on_error: Callable[[Callable[P, object], Exception], None]) -> None:
        self._on_error = on_error
        #: The callbacks, each with a key that tells it from the same one added again.
        self.entries: tuple[tuple[object, Callable[P, object]], ...] = ()
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards the replacing of entries, and is held over nothing else

    def add(self, callback: Callable[P, object]) -> Callable[[], None]:
        """Add *callback*; return a function that removes it, and may be called again."""
        require("callback", callback, Callable, "a function that is called with what has happened")
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
