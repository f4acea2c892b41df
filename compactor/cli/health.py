"""The health of a store's sessions, as ``compactor health`` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich.table import Table

from memory.stores import SessionRow, Store

from ..health import Health, examine_session, sort_worst_first
from .terminal import make_one_line, make_table, render_quantity

_PAGE = 500


def examine_store(store: Store, since: datetime, max_uncovered: int | None) -> Health:
    """Return the health of the sessions that were written to after *since*."""
    rows = [*list_active(store, since)]
    found = (one for row in rows for one in examine_session(store, row, max_uncovered))
    return Health(sessions=len(rows), worst=sort_worst_first(found))


def list_active(store: Store, since: datetime | None) -> Iterator[SessionRow]:
    """Yield the sessions that were written to after *since*, or all."""
    after: str | None = None
    while rows := store.list_sessions(after=after, limit=_PAGE, order="activity"):
        for row in rows:
            if since is not None and row.last_activity < since.replace(second=0, microsecond=0):
                return
            yield row
        after = rows[-1].cursor


def make_health_document(health: Health) -> dict[str, Any]:
    worst = [asdict(one) | {"since": one.since and one.since.isoformat()} for one in health.worst]
    counts = {name: getattr(health, name) for name in ("sessions", "behind", "failing", "circuits_open")}
    return {"healthy": health.healthy, **counts, "worst": worst}


def make_health_table(health: Health) -> Table | str:
    if health.healthy:
        return f"healthy: {render_quantity(health.sessions, 'session')} looked at"
    rows = [
        (
            make_one_line(one.session),
            make_one_line(one.role),
            ", ".join(word for word, is_so in (("circuit open", one.circuit_open), ("behind", one.behind)) if is_so),
            one.failures,
            make_one_line(one.error or "", 60),
            one.uncovered,
        )
        for one in health.worst
    ]
    title = f"{health.failing:,} failing, {health.circuits_open:,} with an open circuit, {health.behind:,} behind"
    columns = ("session", "role", "state", "failures", "error", "uncovered rounds")
    return make_table(columns, rows, title=f"{title}, of {render_quantity(health.sessions, 'session')}")
