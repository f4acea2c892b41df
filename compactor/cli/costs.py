"""What compaction has spent and saved, by the logs of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from rich.table import Table

from memory.entries import CompactionPublished, Entry, UsageRecorded, list_kinds
from memory.errors import NewerVersion, StoreDamaged
from memory.journal import HISTORY_KINDS, CompactionRecord, history_of
from memory.stores import Store

from ..cost.spent import SPENT_KINDS, find_spent
from .sessions import list_active
from .terminal import make_one_line, make_table

By = Literal["day", "role", "model"]
_KINDS = HISTORY_KINDS | SPENT_KINDS | list_kinds(UsageRecorded)


class Spending(NamedTuple):
    """One answer that was paid for, or one prompt that was shorter."""

    at: datetime
    role: str
    model: str
    #: What was paid; None: this is a saving.
    usage: Mapping[str, int] | None
    #: Input tokens saved, and how many of them the provider would have found in its cache, by the prompt's share.
    saved: int = 0
    saved_cached: int = 0


def measure_costs(store: Store, by: By, since: datetime | None, model: str) -> dict[str, Any]:
    """Return the JSON document of ``costs``. Sessions that cannot be read are counted as ``unread``."""
    groups: dict[str, dict[str, Any]] = {}
    total, seen, sessions, unread = _make_group(), set[tuple[object, ...]](), 0, 0
    for row in list_active(store, since):
        try:
            found = [*_read_spendings(store, row.name, model)]
        except (StoreDamaged, NewerVersion):
            unread += 1
            continue
        sessions += 1
        for key, one in found:
            if (since is None or one.at >= since) and key not in seen:
                seen.add(key)
                label = {"day": f"{one.at.astimezone(UTC):%Y-%m-%d}", "role": one.role, "model": one.model}[by]
                for group in (groups.setdefault(label, _make_group()), total):
                    _add(group, one)
    rows = [{by: label, **groups[label]} for label in sorted(groups)]
    return {"by": by, "rows": rows, "total": total, "sessions": sessions, "unread": unread}


def _make_group() -> dict[str, Any]:
    counts = ("answers", "input_tokens", "cached_tokens", "output_tokens", "unpriced_answers", "prompts")
    return dict.fromkeys(counts, 0) | {"spent": 0.0, "saved_tokens": 0, "unpriced_saved_tokens": 0, "saved": 0.0}


def _add(group: dict[str, Any], one: Spending) -> None:
    from ..models import compute_price  # here: it takes 0.2 s to import, which other commands need not wait for

    if one.usage is None:
        sign = -1 if one.saved < 0 else 1
        price = compute_price(one.model, {"input_tokens": sign * one.saved, "cached_tokens": sign * one.saved_cached})
        group["prompts"] += 1
        group["saved_tokens"] += one.saved
        group["unpriced_saved_tokens"] += one.saved if price is None else 0
        group["saved"] = round(group["saved"] + sign * (price or 0.0), 9)
        return
    price = compute_price(one.model, one.usage)
    group["answers"] += 1
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        group[name] += one.usage.get(name, 0)
    group["unpriced_answers"] += price is None
    group["spent"] = round(group["spent"] + (price or 0.0), 9)


def _read_spendings(store: Store, session: str, model: str) -> Iterator[tuple[tuple[object, ...], Spending]]:
    """Yield what the session's log tells, each with a key: forks and imports copy entries."""
    entries = [*store.read_kinds(session, _KINDS)]
    roles = {role for entry in entries if (role := getattr(entry.record, "role", None)) is not None}
    for role in sorted(roles):
        own = [entry for entry in entries if getattr(entry.record, "role", role) == role]
        history = history_of(own, role, partial(store.find_round_number, session))
        spent = [(one.entry, Spending(one.entry.created_at, role, one.model, one.usage)) for one in find_spent(own)]
        for entry, one in (*spent, *_find_saved(own, history, model)):
            key = entry.created_at, entry.kind, role, getattr(entry.record, "digest", ""), one.usage is None
            yield key, one


def _find_saved(
    entries: list[Entry], history: tuple[CompactionRecord, ...], model: str
) -> Iterator[tuple[Entry, Spending]]:
    """Yield the saving of each prompt that the log counts; without any, of one prompt for each publication."""
    counts_prompts = any(isinstance(entry.record, UsageRecorded) for entry in entries)
    changes: dict[int, list[CompactionRecord]] = {}
    for one in history:
        if one.happened != "prepared":
            changes.setdefault(one.number, []).append(one)
    in_force: list[tuple[int, str]] = []  # tokens that each publication takes off a prompt, and its model
    for entry in entries:
        for one in changes.get(entry.number, ()):
            if one.happened == "published":
                before, after = one.tokens_before, one.tokens_after
                in_force.append((before - after if before is not None and after is not None else 0, one.model or ""))
            elif in_force:
                in_force.pop()
        record = entry.record
        is_prompt = isinstance(record, UsageRecorded if counts_prompts else CompactionPublished)
        saved = sum(tokens for tokens, _ in in_force)
        if not is_prompt or not saved:
            continue
        cached = 0
        if isinstance(record, UsageRecorded) and record.cached_tokens and record.input_tokens:
            cached = saved * min(record.cached_tokens, record.input_tokens) // record.input_tokens
        role = getattr(record, "role", "")
        yield entry, Spending(entry.created_at, role, model or in_force[-1][1], None, saved, cached)


def make_cost_table(document: Mapping[str, Any]) -> Table | str:
    by, rows = document["by"], document["rows"]
    if not rows:
        return "nothing was spent or saved"
    columns = (by, "answers", "input", "output", "spent", "not sent", "saved")  # of 80 columns, none is broken
    shown = [(make_one_line(row[by]) or "(unknown)", *_make_cells(row)) for row in rows]
    total, style = document["total"], {}
    if total["unpriced_answers"] or total["unpriced_saved_tokens"]:
        style = {"caption": "* without models whose price is unknown"}
    return make_table(columns, [*shown, ("total", *_make_cells(total))], **style)


def _make_cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    spent, saved = (
        f"${row[name]:,.4f}{'*' if row[f'unpriced_{what}'] else ''}"
        for name, what in (("spent", "answers"), ("saved", "saved_tokens"))
    )
    return row["answers"], row["input_tokens"], row["output_tokens"], spent, row["saved_tokens"], saved
