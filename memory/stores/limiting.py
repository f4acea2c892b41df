"""What shared limits keep in a store: rows of a few kinds, all read and changed in one transaction at a time.

The store knows nothing of limits; ``compactor.cost.shared_limits`` says what the rows mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple


class LimitRow(NamedTuple):
    """One row. Kind, key, lane and session are printable ASCII of at most 200 characters; the body is ASCII."""

    kind: str
    #: Unique in its kind.
    key: str
    #: Rows of one lane are read together, or one after the other.
    lane: str
    #: Seconds since 1970 by the store's clock. What that time means depends on the kind.
    at: float
    body: str = ""
    #: The key of the session that it names (``key_of``): purging that drops the row. None: it names none.
    session: str | None = None


class LimitRows(ABC):
    """The rows during one transaction, which nobody else reads or changes meanwhile. Rows come by time, then key."""

    #: Seconds since 1970 by the store's clock.
    now: float

    @abstractmethod
    def read(self, kinds: Collection[str], lanes: Collection[str] | None = None) -> Sequence[LimitRow]:
        """Return the rows of these kinds; with *lanes*, those of these lanes."""

    @abstractmethod
    def find(self, kind: str, key: str) -> LimitRow | None:
        """Return the row with that key."""

    @abstractmethod
    def read_firsts(self, kind: str) -> Sequence[LimitRow]:
        """Return the first row of each lane."""

    @abstractmethod
    def count(self, kind: str, lane: str | None = None, before: float | None = None) -> int:
        """Return the number of rows; with *lane* and *before*, of that lane and with an earlier time."""

    @abstractmethod
    def put(self, row: LimitRow) -> None:
        """Insert *row*, or replace the row of its kind and key."""

    @abstractmethod
    def drop(self, kind: str, keys: Collection[str]) -> None:
        """Delete the rows with these keys; unknown ones are ignored."""

    @abstractmethod
    def drop_before(self, kind: str, at: float) -> None:
        """Delete the rows of a kind with an earlier time."""

    @abstractmethod
    def notify(self, name: str) -> None:
        """Call who listens to the session *name* in other processes (``Store.listen``), if the store can."""


class ResidentLimitRows(LimitRows):
    """Rows in dicts, by kind and key."""

    def __init__(self, kinds: dict[str, dict[str, LimitRow]], now: float) -> None:
        self._kinds = kinds
        self.now = now

    def read(self, kinds: Collection[str], lanes: Collection[str] | None = None) -> Sequence[LimitRow]:
        rows = [row for kind in kinds for row in self._kinds.get(kind, {}).values()]
        return sorted((row for row in rows if lanes is None or row.lane in lanes), key=place_of)

    def find(self, kind: str, key: str) -> LimitRow | None:
        return self._kinds.get(kind, {}).get(key)

    def read_firsts(self, kind: str) -> Sequence[LimitRow]:
        firsts = dict[str, LimitRow]()
        for row in self.read([kind]):
            firsts.setdefault(row.lane, row)
        return [*firsts.values()]

    def count(self, kind: str, lane: str | None = None, before: float | None = None) -> int:
        rows = self._kinds.get(kind, {}).values()
        return sum(lane in (None, row.lane) and (before is None or row.at < before) for row in rows)

    def put(self, row: LimitRow) -> None:
        self._kinds.setdefault(row.kind, {})[row.key] = row

    def drop(self, kind: str, keys: Collection[str]) -> None:
        for key in keys:
            self._kinds.get(kind, {}).pop(key, None)

    def drop_before(self, kind: str, at: float) -> None:
        self.drop(kind, [row.key for row in self._kinds.get(kind, {}).values() if row.at < at])

    def notify(self, name: str) -> None:
        """Do nothing: there is no other process."""


def place_of(row: LimitRow) -> tuple[float, str]:
    return row.at, row.key
