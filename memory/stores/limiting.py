"""The rows that shared limits keep in a store. All reads and changes happen in one transaction at a time.

The store does not interpret the rows; ``compactor.cost.shared_limits`` defines their meaning.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple


class LimitRow(NamedTuple):
    """One row. Kind, key, lane and session are printable ASCII of at most 200 characters; the body is ASCII."""

    kind: str
    #: Unique within the kind.
    key: str
    #: Groups rows, which can be read or counted by lane, or the first of each lane.
    lane: str
    #: Seconds since 1970 by the store's clock. Its meaning depends on the kind.
    at: float
    body: str = ""
    #: The key of the session in this row (``make_key``): purging that session drops the row. None: no session.
    session: str | None = None


class LimitRows(ABC):
    """The rows within one transaction, which is isolated from all others. Rows are ordered by time, then by key."""

    #: Seconds since 1970 by the store's clock.
    now: float

    @abstractmethod
    def read(self, kinds: Collection[str], lanes: Collection[str] | None = None) -> Sequence[LimitRow]:
        """Return the rows of these kinds; with *lanes*, only rows in these lanes."""

    @abstractmethod
    def find(self, kind: str, key: str) -> LimitRow | None:
        """Return the row with that key, or None."""

    @abstractmethod
    def read_firsts(self, kind: str) -> Sequence[LimitRow]:
        """Return the first row of this kind in each lane."""

    @abstractmethod
    def count(self, kind: str, lane: str | None = None, cutoff: float = math.inf) -> int:
        """Return the number of rows of this kind; with *lane*, only those in it with a time before *cutoff*."""

    @abstractmethod
    def put(self, row: LimitRow) -> None:
        """Insert *row*, or replace the row of its kind and key."""

    @abstractmethod
    def drop(self, kind: str, keys: Collection[str]) -> None:
        """Delete the rows with these keys; unknown ones are ignored."""

    @abstractmethod
    def drop_before(self, kind: str, at: float) -> None:
        """Delete the rows of this kind whose time is before *at*."""

    @abstractmethod
    def notify(self, name: str) -> None:
        """Notify listeners of the session *name* in other processes (``Store.listen``), if the store supports it."""


class ResidentLimitRows(LimitRows):
    """Rows in dicts, by kind and key."""

    def __init__(self, kinds: dict[str, dict[str, LimitRow]], now: float) -> None:
        self._kinds = kinds
        self.now = now

    def read(self, kinds: Collection[str], lanes: Collection[str] | None = None) -> Sequence[LimitRow]:
        rows = [row for kind in kinds for row in self._kinds.get(kind, {}).values()]
        return sorted((row for row in rows if lanes is None or row.lane in lanes), key=get_sort_key)

    def find(self, kind: str, key: str) -> LimitRow | None:
        return self._kinds.get(kind, {}).get(key)

    def read_firsts(self, kind: str) -> Sequence[LimitRow]:
        firsts = dict[str, LimitRow]()
        for row in self.read([kind]):
            firsts.setdefault(row.lane, row)
        return [*firsts.values()]

    def count(self, kind: str, lane: str | None = None, cutoff: float = math.inf) -> int:
        rows = self._kinds.get(kind, {}).values()
        return sum(lane is None or (row.lane == lane and row.at < cutoff) for row in rows)

    def put(self, row: LimitRow) -> None:
        self._kinds.setdefault(row.kind, {})[row.key] = row

    def drop(self, kind: str, keys: Collection[str]) -> None:
        for key in keys:
            self._kinds.get(kind, {}).pop(key, None)

    def drop_before(self, kind: str, at: float) -> None:
        self.drop(kind, [row.key for row in self._kinds.get(kind, {}).values() if row.at < at])

    def notify(self, name: str) -> None:
        """Do nothing: no other process shares these rows."""


def get_sort_key(row: LimitRow) -> tuple[float, str]:
    return row.at, row.key
