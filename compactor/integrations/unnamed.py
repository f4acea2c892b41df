"""Conversations without a name: each has its own session, which is found again by its history."""

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

#: Maximum sessions that can be found again; the least recently used one is purged.
MAX_UNNAMED = 1_000


class Unnamed:
    """Finds the session whose last history is exactly a prefix of the given one.

    An edited or truncated history gets a new session, because it may be another conversation. *purge* erases a session
    that can no longer be found.
    """

    def __init__(self, purge: Callable[[str], object]) -> None:
        self._purge = purge
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # guards the sessions
        self._sessions: OrderedDict[bytes, str] = OrderedDict()  # by their last histories

    @contextmanager
    def find(self, messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Give the id of the session of *messages*, which become its last history. Until the block ends, no other
        caller gets it."""
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
                lost = [self._sessions.pop(begins[-1], None)]  # another caller's session with the same history
                self._sessions[begins[-1]] = session_id
                if len(self._sessions) > MAX_UNNAMED:
                    lost.append(self._sessions.popitem(last=False)[1])
            for one in filter(None, lost):
                with suppress(StoreError):
                    self._purge(one)
