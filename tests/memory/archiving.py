"""Sessions that move to an archive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from memory import (
    Memory,
    Store,
)
from memory.transfer.archive import (
    ArchiveResult,
    archive_sessions,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LATER = NOON + 100 * DAY


def write(store: Store, name: str, *said: str, at: datetime = NOON) -> Memory:
    memory = Memory(name, store=store, clock=lambda: at)
    for text in said or ("hello",):
        memory.append({"role": "user", "content": text})
    return memory


def move(store: Store, where: Any, **more: Any) -> ArchiveResult:
    return archive_sessions(store, where, 90 * DAY, **{"now": LATER, **more})
