"""The events in a stored session's history, in order: facts only, and no text of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from rich.console import Console
from rich.table import Table

from memory.entries import (
    KINDS,
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    EventRecorded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    ReductionWithdrawn,
)
from memory.references import place_reference, range_reference
from memory.stores import Store

from .sessions import format_time
from .terminal import one_line

_SHOWN = (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    ReductionPublished,
    ReductionWithdrawn,
    PostPinned,
    PostRedacted,
    EventRecorded,
)
_KINDS = tuple(kind for kind, record in KINDS.items() if issubclass(record, _SHOWN))
#: Facts of recorded events that are shown elsewhere, and the one that may contain words of a summary.
_HIDDEN_FACTS = frozenset({"at", "session", "role", "generation", "strategy", "model", "usage", "unknown_identifiers"})
#: Longer texts among an event's facts are not shown: they may quote the conversation.
_MAX_FACT = 200
#: The facts about each event, unless its entry says more. Rounds and posts are references (``r1-r9``,
#: ``r12.p3``); tokens are those of the replaced text and of its replacement; ``facts`` are all others by name.
_UNKNOWN: Mapping[str, Any] = {
    "role": None,  # it concerns no single role
    "generation": None,
    "rounds": None,
    "strategy": None,
    "tokens_before": None,
    "tokens_after": None,
    "model": None,
    "usage": None,
    "checks": (),
    "facts": {},
}


def read_events(
    store: Store, session: str, *, role: str | None = None, after: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield at most *limit* events after entry *after*; with *role*, only those of that role or of no single one."""
    entries = (entry for entry in store.read_kinds(session, _KINDS) if entry.number > after)
    found = (_describe(entry, partial(store.round_number, session)) for entry in entries)
    return islice((one for one in found if role is None or one["role"] in (None, role)), limit)


def _describe(entry: Entry, number_of: Callable[[str], int]) -> dict[str, Any]:
    def make(*, what: str = entry.kind, **known: Any) -> dict[str, Any]:
        event = {"number": entry.number, "at": entry.created_at.isoformat(), "what": what, **_UNKNOWN, **known}
        event["usage"] = None if event["usage"] is None else dict(event["usage"])
        return event | {"checks": list(event["checks"])}

    def refer(round_id: str, *numbers: int) -> str:
        round_number = entry.round or number_of(round_id)
        return " ".join(place_reference(round_number, number) for number in numbers)

    def refer_range(round_id: str, first: int, last: int) -> str:
        return refer(round_id, first) + (f"-p{last}" if last != first else "")

    record = entry.record
    match record:
        case CompactionPrepared(compaction=one):
            return make(
                role=record.role,
                generation=record.base,
                rounds=None if one is None else range_reference(one.start_index, one.last_round),
                strategy=record.strategy or None,
                model=record.model,
                usage=record.usage,
                checks=record.checks,
                facts={"kind": record.kind},
            )
        case CompactionPublished(compaction=one):
            return make(
                role=record.role,
                generation=one.generation,
                rounds=range_reference(one.start_index, one.last_round),
                strategy=record.strategy or None,
                tokens_before=record.tokens_before,
                tokens_after=record.tokens_after,
                model=one.model,
                usage=one.usage,
                checks=record.checks,
            )
        case CompactionReverted():
            return make(role=record.role, generation=record.generation)
        case ReductionPublished(reduction=one):
            return make(
                role=record.role,
                generation=one.generation,
                rounds=refer_range(one.round_id, one.first_number, one.last_number),
                model=one.model,
                usage=one.usage,
                facts={"kind": one.kind},
            )
        case ReductionWithdrawn():
            rounds = refer_range(record.round_id, record.first_number, record.last_number)
            return make(role=record.role, rounds=rounds)
        case PostPinned():
            return make(what="pinned" if record.pinned else "unpinned", rounds=refer(record.round_id, record.number))
        case PostRedacted():
            return make(rounds=refer(record.round_id, *record.numbers))
    assert isinstance(record, EventRecorded)  # noqa: S101  (the only kind left)
    facts = record.facts
    usage, generation, strategy, model = map(facts.get, ("usage", "generation", "strategy", "model"))
    return make(
        what=record.name,
        role=record.role,
        generation=generation if isinstance(generation, int) else None,
        strategy=strategy if isinstance(strategy, str) and strategy else None,
        model=model if isinstance(model, str) and model else None,
        usage=usage if isinstance(usage, Mapping) else None,
        facts={name: value for name, value in facts.items() if name not in _HIDDEN_FACTS and _is_short(value)},
    )


def _is_short(value: object) -> bool:
    return (
        value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _MAX_FACT)
    )


def print_events(found: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print a row for each."""
    table = Table(pad_edge=False)
    table.add_column("entry", justify="right")
    table.add_column("time (UTC)", no_wrap=True)
    for name in ("role", "what", "about"):
        table.add_column(name, overflow="fold")
    for one in found:
        at, about = format_time(datetime.fromisoformat(one["at"])), ", ".join(_about(one))
        table.add_row(f"{one['number']}", at, one_line(one["role"] or ""), one_line(one["what"]), about)
    console.print(table if table.row_count else "nothing has happened to the history")


def _about(one: Mapping[str, Any]) -> Iterator[str]:
    if one["rounds"]:
        yield one["rounds"]
    if one["generation"] is not None:
        yield f"generation {one['generation']}"
    for name in (one["strategy"], one["model"]):
        if name:
            yield one_line(name, 60)
    for name, value in one["facts"].items():
        if value not in (None, ""):
            yield f"{one_line(name)} {one_line(str(value), 80)}"
    if one["tokens_before"] is not None and one["tokens_after"] is not None:
        yield f"{one['tokens_before']:,} -> {one['tokens_after']:,} tokens"
    if one["usage"]:
        yield ", ".join(f"{one_line(name)} {value}" for name, value in one["usage"].items())
    if one["checks"]:
        yield f"passed {one_line(' '.join(one['checks']), 200)}"
