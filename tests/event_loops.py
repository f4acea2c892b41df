"""Event loops of frameworks that are called without one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing_event_loop() -> Iterator[None]:
    """Give this thread an event loop, and close it: a framework that finds none makes one, and leaves it open. A later
    test would fail when that is collected."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()
