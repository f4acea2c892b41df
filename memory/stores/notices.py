"""Notices of a PostgreSQL server: what other processes have published, on one connection of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..hooks import renew_after_fork

#: The server's channel; its messages are sessions' keys.
CHANNEL = "compactor"
#: Seconds between two attempts to connect: doubled, up to the second.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

Listener = Callable[[], object]


class Notices:
    """Calls who listens to a session when there is a notice of it, on a thread that starts with the first of them.

    *connect* returns a connection of psycopg in autocommit. While there is none, it is tried again and again. Each
    listener is called once when it is sure to hear of what comes, for it may have missed some. It must be quick.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards all below it
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        self._thread: threading.Thread | None = None
        self._is_connected = False
        self._closing = threading.Event()

    def listen(self, key: str, listener: Listener) -> Callable[[], None]:
        """Call *listener* at each notice of the session *key*; return a function that ends that."""
        with self._lock:
            self._listeners[key] = (*self._listeners.get(key, ()), listener)
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._serve, name="compactor-notices", daemon=True)
                thread.start()
                self._thread = thread  # not before: a thread that could not be started is tried again
            is_connected = self._is_connected
        if is_connected:
            listener()

        def stop_listening() -> None:
            with self._lock:
                left = tuple(one for one in self._listeners.get(key, ()) if one is not listener)
                if left:
                    self._listeners[key] = left
                else:
                    self._listeners.pop(key, None)

        return stop_listening

    @property
    def is_listening(self) -> bool:
        return self._thread is not None

    def close(self) -> None:
        """Listen no more. A thread that waits for a notice is woken by the next one: send one behind this."""
        self._closing.set()

    def _serve(self) -> None:
        closing, wait = self._closing, FIRST_WAIT
        while not closing.is_set():
            # An error: the server is away, or does not take LISTEN, as behind PgBouncer.
            with suppress(Exception), self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                wait = FIRST_WAIT
                with self._lock:
                    self._is_connected, everybody = True, [*self._listeners]
                for key in everybody:
                    self._call_listeners(key)
                for notice in connection.notifies():
                    if closing.is_set():
                        return
                    self._call_listeners(notice.payload)
            self._is_connected = False
            closing.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _call_listeners(self, key: str) -> None:
        with self._lock:
            found = self._listeners.get(key, ())
        for listener in found:
            with suppress(Exception):  # its own affair; the others are to hear of it too
                listener()
