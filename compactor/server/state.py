"""The state of a server: its sessions, its settings and the clients that listen to events."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from memory import ContextError, Store
from memory.io_threads import to_thread
from memory.stores.tenants import join_name

from ..sessions import SessionContext, Sessions
from ..telemetry.prometheus import make_registry
from .access import Logouts
from .events import EventHub
from .settings import ServerSettings, find_data_folder

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


def make_data_folder(settings: ServerSettings) -> None:
    """Make this user's folder for the store if *settings* name no other place. Raises ``OSError``."""
    if "store" not in settings.model_fields_set:
        find_data_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
