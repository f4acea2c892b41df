"""The priority of a tenant's next job: a tenant with few jobs need not wait for all jobs of another."""

from __future__ import annotations

import math
import threading
import time

from memory.stores.tenants import split_name

#: Seconds after which a tenant's job counts half, and maximum tenants that are counted.
HALF_LIFE, MAX_TENANTS = 60.0, 10_000
#: The priority of a job whose time is over, such as one with a permit; others have 0 or less.
FIRST = 1


class Priorities:
    """Counts the recent jobs of each tenant, in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _recent
        self._recent: dict[str, tuple[float, float]] = {}  # by tenant: its jobs, and when they were counted

    def find(self, session: str, *, counts: bool = False) -> int:
        """Return the priority of *session*'s next job: one less each time that its tenant has twice as many. The job is
        one of them from now on if *counts*."""
        tenant, now = split_name(session)[0], time.monotonic()
        with self._lock:
            count, at = self._recent.get(tenant, (0.0, now))
            count = 1.0 + count * 0.5 ** ((now - at) / HALF_LIFE)
            if counts:
                self._recent.pop(tenant, None)  # who had a job last comes last
                self._recent[tenant] = count, now
                if len(self._recent) > MAX_TENANTS:
                    del self._recent[next(iter(self._recent))]
        return -int(math.log2(count))
