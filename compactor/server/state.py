"""The state of a server: its sessions, its settings and the clients that listen to events."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeVar

from fastapi import HTTPException
from prometheus_client import CollectorRegistry

from memory import ContextError, EntriesLost, SessionPurged, Store
from memory.io_threads import to_thread
from memory.stores.tenants import join_name

from ..sessions import Session, SessionContext, Sessions
from ..telemetry.prometheus import make_registry
from .access import Logouts
from .events import EventHub
from .settings import ServerSettings, find_data_folder

R = TypeVar("R")
#: Maximum characters of a session's name.
MAX_NAME = 200


class BadSessionName(ContextError, ValueError):
    """A session's name is empty, too long, or contains control characters."""


class ServerState:
    """The open sessions of all tenants, within ``run``.

    *store* replaces the one in *settings*; *options* go to ``Sessions``.
    """

    def __init__(
        self,
        settings: ServerSettings,
        store: Store | None = None,
        redactor: Callable[[str], str] | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings
        #: Maps each text of a proxied conversation to the text for the log and the summarizers.
        self.redactor = redactor
        self.hub = EventHub()
        self.logouts = Logouts()
        #: The metrics since ``run`` began.
        self.registry = CollectorRegistry()
        self._store, self._options = store, options
        self._sessions: Sessions | None = None

    @property
    def sessions(self) -> Sessions:
        """All tenants' sessions, by their full names. Raises ``RuntimeError`` outside of ``run``."""
        if self._sessions is None:
            raise RuntimeError("the server is not running; its lifespan opens the sessions")
        return self._sessions

    def make_name(self, tenant: str, session_id: str) -> str:
        """Return the full name of *tenant*'s session. Raises ``BadSessionName``."""
        if not 0 < len(session_id) <= MAX_NAME or any(unicodedata.category(one) in ("Cc", "Cs") for one in session_id):
            raise BadSessionName(f"a session's name has 1 to {MAX_NAME} characters, without control characters")
        return join_name(tenant, session_id)

    def open(self, tenant: str, session_id: str) -> SessionContext:
        """Return a context manager, for ``with`` on a thread or ``async with``, that gives *tenant*'s session.

        Raises ``BadSessionName`` and, on entering the block, ``StoreError``.
        """
        return self.sessions.open(self.make_name(tenant, session_id))

    @contextmanager
    def open_existing(self, tenant: str, session_id: str) -> Iterator[Session]:
        """Open a session that has entries, including those of other processes. Raises ``HTTPException``: 404."""
        self.work_on(tenant, session_id, lambda session: session.memory.refresh())
        with self.open(tenant, session_id) as session:
            if not session.memory.snapshot.number:
                raise_unknown()
            yield session

    def work_on(self, tenant: str, session_id: str, work: Callable[[Session], R]) -> R:
        """Return *work*'s result on a session. Do it again if another process has deleted that: with a new session."""
        try:
            with self.open(tenant, session_id) as session:
                return work(session)
        except EntriesLost:
            raise
        except SessionPurged:
            with self.open(tenant, session_id) as session:
                return work(session)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Open the store, on a thread; after the block, stop all compactors, and close the store if this opened it.

        May raise ``StoreError``.
        """
        self.hub.start()
        sessions = await to_thread(self._make_sessions)
        self.registry = make_registry(sessions)
        async with sessions:
            self._sessions = sessions
            try:
                yield
            finally:
                self._sessions = None
                self.hub.close()

    def _make_sessions(self) -> Sessions:
        settings = self.settings
        given: dict[str, Any] = {"config": settings.config, "budget": settings.budget, "roles": settings.roles}
        if self._store is None:
            make_data_folder(settings)
        store = self._store if self._store is not None else settings.store
        sessions = Sessions(store, **given | self._options)
        sessions.on_event(self.hub.publish)
        return sessions


def raise_unknown() -> NoReturn:
    raise HTTPException(404, "there is no session of that name; GET /api/sessions lists them")


def make_data_folder(settings: ServerSettings) -> None:
    """Make this user's folder for the store if *settings* name no other place. Raises ``OSError``."""
    if "store" not in settings.model_fields_set:
        find_data_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
