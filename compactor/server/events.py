"""Server-sent events. Each client has a bounded queue; a slow client misses events and is told how many."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import suppress

from memory.events import Event
from memory.stores.tenants import split_name

#: Maximum events queued for one client; seconds until a silent stream gets a comment.
MAX_QUEUED, HEARTBEAT_SECONDS = 256, 15.0
#: Clients woken at a time; seconds between two batches, in which the loop serves requests.
WAKE_BATCH, PAUSE_SECONDS = 16, 0.002


class _Client:
    def __init__(self, tenant: str, session: str | None) -> None:
        self.tenant, self.session = tenant, session
        self.queue: deque[bytes] = deque()
        self.lost = 0
        self.is_scheduled = False
        self.wake_up = asyncio.Event()


class EventHub:
    """Delivers events from any thread to the clients of the session's tenant."""

    def __init__(self, *, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self.heartbeat = heartbeat
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: defaultdict[str, set[_Client]] = defaultdict(set)  # from here on: used on the loop only
        self._scheduled: deque[_Client] = deque()  # clients to wake

    def start(self) -> None:
        """Deliver events on the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End each stream once its queued events are delivered. Call this on the event loop."""
        self._loop = None
        for client in [one for clients in self._clients.values() for one in clients]:
            client.wake_up.set()

    def publish(self, event: Event) -> None:
        """Queue *event* for the clients of its session's tenant. Never blocks, from any thread."""
        if (loop := self._loop) is not None and self._clients:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: Event) -> None:
        tenant, session = split_name(getattr(event, "session", ""))
        clients = [one for one in self._clients.get(tenant, ()) if one.session in (None, session)]
        if not clients:
            return
        facts = event.facts() | {"session": session}
        text = json.dumps({"at": event.at.isoformat(), "level": event.level, **facts}, default=str)
        sent, was_waking = f"event: {event.name}\ndata: {text}\n\n".encode(), bool(self._scheduled)
        for client in clients:
            if len(client.queue) == MAX_QUEUED:
                client.queue.popleft()
                client.lost += 1
            client.queue.append(sent)
            if not client.is_scheduled:
                client.is_scheduled = True
                self._scheduled.append(client)
        if not was_waking:
            self._wake()

    def _wake(self) -> None:
        for _ in range(min(WAKE_BATCH, len(self._scheduled))):
            client = self._scheduled.popleft()
            client.is_scheduled = False
            client.wake_up.set()
        if self._scheduled:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._wake)

    async def listen(self, tenant: str, session: str | None = None) -> AsyncIterator[bytes]:
        """Yield server-sent events of *tenant*'s sessions, or of one *session*, until the hub is closed.

        An event ``lost`` carries the number of events that a slow client missed. Comments keep a silent stream alive.
        """
        client = _Client(tenant, session)
        self._clients[tenant].add(client)
        try:
            yield b": connected\n\n"
            while True:
                if client.lost:
                    lost, client.lost = client.lost, 0
                    yield f'event: lost\ndata: {{"lost": {lost}}}\n\n'.encode()
                if client.queue:
                    queued, client.queue = client.queue, deque()
                    yield b"".join(queued)
                if client.lost:
                    continue
                if self._loop is None:
                    return
                client.wake_up.clear()
                try:
                    await asyncio.wait_for(client.wake_up.wait(), self.heartbeat)
                except TimeoutError:
                    yield b": alive\n\n"
        finally:
            self._clients[tenant].discard(client)
            if not self._clients[tenant]:
                del self._clients[tenant]
