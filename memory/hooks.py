"""A list of callbacks, each isolated from the others' failures."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, Protocol
from weakref import WeakSet

from .arguments import require_callable
from .errors import ContextError


class _Renewable(Protocol):
    def _after_fork(self) -> None: ...


_renewables: WeakSet[_Renewable] = WeakSet()


def renewed_after_fork(what: _Renewable) -> None:
    """Have ``what._after_fork()`` called in every child that is forked while *what* lives."""
    _renewables.add(what)


def _renew_all() -> None:
    for what in tuple(_renewables):
        what._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)


# --- a list of callbacks, each isolated from the others' failures -------------------------------------------------


P = ParamSpec("P")


def describe(callback: object) -> str:
    """Return a name for *callback* that is fit for an event: never its arguments or state."""
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__


def describe_error(error: BaseException) -> str:
    """Return what *error* is, fit for an event: in our words, or by its class where they are somebody else's, which may
    hold what was said."""
    return str(error) if isinstance(error, ContextError) else type(error).__name__


class Hooks(Generic[P]):
    """Callbacks in the order they were added. One that raises is reported, and the next is called.

    The list is replaced, never changed, so calling needs no lock: a callback may add or remove others, which takes
    effect from the next call on.
    """

    def __init__(self, on_error: Callable[[Callable[P, object], Exception], None]) -> None:
        self._on_error = on_error
        self._entries: tuple[tuple[object, Callable[P, object]], ...] = ()
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards the replacing of _entries, and is held over nothing else

    def add(self, callback: Callable[P, object]) -> Callable[[], None]:
        """Add *callback*; return a function that takes it out again, however often that is called."""
        require_callable("callback", callback, "a function that is called with what has happened")
        key = object()
        with self._lock:
            self._entries = (*self._entries, (key, callback))

        def unsubscribe() -> None:
            with self._lock:
                self._entries = tuple(entry for entry in self._entries if entry[0] is not key)

        return unsubscribe

    def __len__(self) -> int:
        return len(self._entries)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for _, callback in self._entries:
            try:
                callback(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (anything a callback raises is its own affair)
                self._on_error(callback, error)


class Notifications:
    """Calls that wait for the one in progress on the same thread: what a hook writes is notified after."""

    def __init__(self) -> None:
        self._local = threading.local()

    def send(self, notify: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call *notify* now, or, within another notification of this thread, as soon as that is through."""
        waiting: deque[Callable[[], object]] | None = getattr(self._local, "waiting", None)
        if waiting is not None:
            waiting.append(partial(notify, *args, **kwargs))
            return
        waiting = self._local.waiting = deque()
        try:
            notify(*args, **kwargs)
            while waiting:
                waiting.popleft()()
        finally:
            self._local.waiting = None
