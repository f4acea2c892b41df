"""Waiting for an adapter's background work: until there is none, or the server holds what it asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from .adapter import Adapter
from .door import PATIENCE, Door

__all__ = ["Settling"]


class Settling:
    """Two threads: one waits for the adapter, one for the server. Whichever comes first, both are asked anew."""

    def __init__(self, adapter: Adapter, door: Door) -> None:
        self._adapter = adapter
        self._door = door
        self._threads = ThreadPoolExecutor(2, "settling")
        #: What has not come yet is waited for again the next time.
        self._under_way: dict[Callable[[], object], Future[float]] = {}

    def settle(self) -> float:
        """Return when the adapter's background work is done, or waits for the virtual time to pass: the seconds of CPU
        that these two threads have taken, which are not the adapter's."""
        taken, until = 0.0, time.monotonic() + PATIENCE
        while not (self._adapter.wait_idle(0) or self._door.ask("/held")["held"]):
            for event in (self._until_idle, self._until_held):
                if event not in self._under_way:
                    self._under_way[event] = self._threads.submit(_cpu_of, event)
            come, _ = wait(self._under_way.values(), until - time.monotonic(), FIRST_COMPLETED)
            if not come:
                raise TimeoutError(f"{self._adapter.name}: its background work neither ends nor asks the model")
            taken += sum(future.result() for future in come)
            self._under_way = {event: future for event, future in self._under_way.items() if future not in come}
        return taken

    def close(self) -> None:
        """What is still waited for comes when the adapter and the server end."""
        self._threads.shutdown(wait=False)

    def _until_idle(self) -> None:
        self._adapter.wait_idle(PATIENCE)

    def _until_held(self) -> None:
        with contextlib.closing(Door(self._door.url)) as door:
            door.ask("/until_held", {"timeout": PATIENCE / 2})  # before the door itself gives up


def _cpu_of(act: Callable[[], object]) -> float:
    """Do it, and return the seconds of this thread's CPU that it took."""
    began = time.thread_time()
    act()
    return time.thread_time() - began
