"""The inspector's list of sessions, in pages: by last activity or name as the store has them, else by their figures."""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pydantic import BaseModel

from memory import Memory, Store
from memory.arguments import ConfigError
from memory.errors import NewerVersion, StoreDamaged
from memory.stores import SessionRow
from memory.stores.tenants import split_name

from ..cost.spent import SPENT_KINDS, find_spent
from ..health import examine_session
from ..inspector.views import Inspection, find_roles
from ..models import compute_price

#: Maximum sessions on one page of the list.
PAGE = 50
#: Sessions read from the store at a time.
ROWS_READ = 1_000
#: Sessions whose figures are kept, for all tenants together; by figures, a tenant's newest ones are sorted.
MAX_KNOWN = 100_000
#: Seconds after which a request answers with what it has found, or has measured, so far.
SECONDS = 0.4
Order = Literal["activity", "name", "tokens", "cost", "failing"]


class SessionStats(BaseModel):
    """A session in the list. Figures are None until they are computed, and if nobody has spoken in it."""

    session: str
    rounds: int
    last_activity: str
    #: Tokens of the next prompt of the first of ``find_roles``.
    tokens: int | None = None
    #: Tokens that models read and wrote for its summaries, for all roles.
    spent: int | None = None
    #: Their list price in dollars, as far as it is known.
    dollars: float | None = None
    #: Failed compactions in a row, for all roles.
    failures: int | None = None


class SessionsPage(BaseModel):
    #: Fewer than were asked for also if the time was over.
    sessions: list[SessionStats]
    #: Cursor of the next page; None: this is the last.
    after: str | None
    #: Number of sessions whose figures are not computed yet: ask again. By figures, these are sorted last.
    pending: int


class _Known(NamedTuple):
    """A session's row, and its figures at an earlier moment; *measured* is the number of entries that it had then."""

    row: SessionRow
    measured: int = 0
    tokens: int | None = None
    spent: int | None = None
    dollars: float | None = None
    failures: int | None = None

    @property
    def is_pending(self) -> bool:
        return self.measured != self.row.entries


class SessionList:
    """Reads pages of each tenant's sessions. Any number of threads may call it.

    Figures are computed on request, and kept until the session's log grows.
    """

    def __init__(self, get_store: Callable[[], Store], budget: int, roles: Sequence[str]) -> None:
        self._get_store, self._budget, self._roles = get_store, budget, roles
        self._lock = threading.Lock()  # guards the next, not the dictionaries in it
        #: The known sessions by tenant, the least recently used first.
        self._known: OrderedDict[str, dict[str, _Known]] = OrderedDict()
        #: The tenants whose sessions are all known, and the newest activity when they were last read.
        self._read_until: dict[str, datetime] = {}

    def read_page(
        self, tenant: str, order: Order, search: str = "", after: str | None = None, limit: int = PAGE
    ) -> SessionsPage:
        """Return at most *limit* of the sessions whose name contains *search*, in any case. Raises ``StoreError``, and
        ``ConfigError`` if *after* is no cursor of this order."""
        until = time.monotonic() + SECONDS
        words = search.casefold()
        known = self._find_known(tenant)
        if order in ("activity", "name"):
            names, cursor = self._scan(tenant, known, order, words, after, limit, until)
            pending = self._measure(known, names, until)
        else:
            self._read_rows(tenant, known)
            pending = self._measure(known, list(known), until)
            names, cursor = _sort(known, order, words, after, limit)
            store = self._get_store()
            for name in [name for name in names if store.get_extent(name) is None]:
                names.remove(name)  # deleted meanwhile
                known.pop(name, None)
        rows = [one for name in names if (one := known.get(name)) is not None]
        return SessionsPage(sessions=list(map(_describe, rows)), after=cursor, pending=pending)

    def _find_known(self, tenant: str) -> dict[str, _Known]:
        with self._lock:
            while sum(map(len, self._known.values())) > 2 * MAX_KNOWN:
                self._read_until.pop(self._known.popitem(last=False)[0], None)
            known = self._known.setdefault(tenant, {})
            self._known.move_to_end(tenant)
            return known

    def _scan(
        self,
        tenant: str,
        known: dict[str, _Known],
        order: Literal["activity", "name"],
        words: str,
        after: str | None,
        size: int,
        until: float,
    ) -> tuple[list[str], str | None]:
        """Return the names on the page after the cursor, and the cursor of the next page."""
        names, store = list[str](), self._get_store()
        while True:
            limit = ROWS_READ if words else size + 1
            rows = store.list_sessions(tenant, after=after, limit=limit, order=order)
            for row in rows:
                if len(names) == size:
                    return names, after
                after = row.cursor if order == "activity" else row.name
                if words in _get_id(row).casefold():
                    _update(known, row)
                    names.append(row.name)
            if len(rows) < limit:
                return names, None
            if time.monotonic() > until:
                return names, after

    def _read_rows(self, tenant: str, known: dict[str, _Known]) -> None:
        """Bring *known* up to date: the newest sessions first, until nothing has changed.

        Within a minute the store sorts by name, so all sessions of the newest known minute are read.
        """
        before, newest = self._read_until.get(tenant), datetime.min.replace(tzinfo=UTC)
        after, store, count = None, self._get_store(), 0
        while count < MAX_KNOWN:
            rows = store.list_sessions(tenant, after=after, limit=ROWS_READ, order="activity")
            changed = sum(_update(known, row) for row in rows)
            count += len(rows)
            if rows and after is None:
                newest = rows[0].last_activity
            if len(rows) < ROWS_READ or (before is not None and not changed and rows[-1].last_activity < before):
                break
            after = rows[-1].cursor
        self._read_until[tenant] = newest

    def _measure(self, known: dict[str, _Known], names: Iterable[str], until: float) -> int:
        """Compute missing figures, one session at least and until the time is over, and return how many remain."""
        pending = [one for name in names if (one := known.get(name)) is not None and one.is_pending]
        done = 0
        for one in pending:
            if done and time.monotonic() > until:
                break
            known[one.row.name] = _measure(one.row, self._get_store(), self._budget, self._roles)
            done += 1
        return len(pending) - done


def _update(known: dict[str, _Known], row: SessionRow) -> bool:
    """Return whether *row* is news; its older figures stay until there are new ones."""
    before = known.get(row.name)
    if before is not None and before.row == row:
        return False
    known[row.name] = _Known(row) if before is None else before._replace(row=row)
    return True


def _sort(
    known: dict[str, _Known], order: Order, words: str, after: str | None, size: int
) -> tuple[list[str], str | None]:
    """Return the names on the page after the cursor, and the cursor of the next page."""
    start = _read_cursor(after)

    def list_keys() -> Iterator[tuple[float, float, float, str]]:
        for name, one in list(known.items()):
            if words in _get_id(one.row).casefold():
                value = {"tokens": one.tokens, "cost": one.spent, "failing": one.failures}[order]
                price = (one.dollars or 0.0) if order == "cost" else 0.0
                key = -price, -(-1 if value is None else value), -one.row.last_activity.timestamp(), name
                if start is None or key > start:
                    yield key

    keys = heapq.nsmallest(size + 1, list_keys())
    shown = keys[:size]
    return [key[-1] for key in shown], json.dumps(shown[-1]) if len(keys) > size else None


def _read_cursor(text: str | None) -> tuple[float, float, float, str] | None:
    if text is None:
        return None
    try:
        price, value, at, name = json.loads(text)
        return float(price), float(value), float(at), str(name)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ConfigError(("after", "is not the cursor of a page in this order; begin at the first page")) from None


def _get_id(row: SessionRow) -> str:
    return split_name(row.name)[1]


def _describe(one: _Known) -> SessionStats:
    row, rounds = one.row, one.row.rounds
    figures = {name: getattr(one, name) for name in ("tokens", "spent", "dollars", "failures")}
    return SessionStats(session=_get_id(row), rounds=rounds, last_activity=row.last_activity.isoformat(), **figures)


def _measure(row: SessionRow, store: Store, budget: int, preferred: Sequence[str]) -> _Known:
    """Return the figures of one session. A damaged one counts as failing."""
    failures = sum(one.failures for one in examine_session(store, row))
    try:
        memory = Memory(row.name, store=store)
        roles = find_roles(memory, preferred)
        if not roles:
            return _Known(row, row.entries)
        tokens = min(Inspection(memory, roles[0]).view.tokens, budget)  # compose omits the rest
        paid = [*find_spent(store.read_kinds(row.name, SPENT_KINDS))]
    except (StoreDamaged, NewerVersion):
        return _Known(row, row.entries, failures=max(failures, 1))
    spent = sum(one.usage.get(name, 0) for one in paid for name in ("input_tokens", "output_tokens"))
    dollars = sum(compute_price(one.model, one.usage) or 0.0 for one in paid)
    return _Known(row, row.entries, tokens, spent, dollars, failures)
