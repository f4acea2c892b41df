"""Threads for slow requests, shared among the tenants so that none can hold up another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread

if TYPE_CHECKING:
    from .settings import ServerSettings

R = TypeVar("R")
#: Seconds after which a client may try again.
RETRY_AFTER = 5


class Busy(Exception):
    """All of the tenant's threads were taken for as long as the request could wait."""

    def __init__(self) -> None:
        super().__init__("too many of your requests of this kind are running; try again later")


class TenantThreads:
    """*count* threads, divided equally among the tenants of *settings*; each tenant has at least one of its own."""

    def __init__(self, settings: ServerSettings, count: int) -> None:
        tenants = max(len(settings.tokens), 1)
        self._each = max(count // tenants, 1)
        self._threads = CapacityLimiter(self._each * tenants)
        self._permits: dict[str, asyncio.Semaphore] = {}

    async def run(self, tenant: str, call: Callable[[float], R], seconds: float) -> R:
        """Return the result of *call*, which runs on a thread and gets the rest of *seconds* that waiting has left.

        Raises ``Busy`` if no thread became free in that time.
        """
        until = time.monotonic() + seconds
        permits = self._permits.setdefault(tenant, asyncio.Semaphore(self._each))
        try:
            async with asyncio.timeout(seconds):
                await permits.acquire()
        except TimeoutError:
            raise Busy from None
        try:
            left = max(until - time.monotonic(), 1e-3)
            return await to_thread.run_sync(call, left, limiter=self._threads)
        finally:
            permits.release()
