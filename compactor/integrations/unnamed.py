"""Conversations that nobody has named: each has a session of its own, which is found again by what was said."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from memory import StoreError
from memory.fingerprints import Fingerprinter
from memory.hooks import renew_after_fork

#: Sessions that can be found again; the one that was used least recently is purged.
MAX_UNNAMED = 1_000


class Unnamed:
    """Finds the session of a history that begins with all that the session was given last, and with nothing else.

    A history that was edited, or has lost its oldest messages, gets a new session: it may as well be somebody else's.
    *purge* erases a session that is found no more.
    """

    def __init__(self, purge: Callable[[str], object]) -> None:
        self._purge = purge
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards the sessions
        self._sessions: OrderedDict[bytes, str] = OrderedDict()  # by the histories that they were given last

    @contextmanager
    def find(self, messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Give the id of the session whose history *messages* is from now on. Until the end, nobody else finds it."""
        read, told = Fingerprinter(), blake2b(digest_size=16)
        begins = [told.digest()]
        for message in messages:
            told.update(read(message))
            begins.append(told.digest())
        with self._lock:
            known = next((one for one in reversed(begins) if one in self._sessions), None)
            session_id = self._sessions.pop(known) if known is not None else uuid4().hex
        try:
            yield session_id
        finally:
            with self._lock:
                lost = [self._sessions.pop(begins[-1], None)]  # of another caller who has said the same meanwhile
                self._sessions[begins[-1]] = session_id
                if len(self._sessions) > MAX_UNNAMED:
                    lost.append(self._sessions.popitem(last=False)[1])
            for one in filter(None, lost):
                with suppress(StoreError):
                    self._purge(one)
