"""The events in a stored session's history, in order: facts only, and no text of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

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
    RoundUndone,
)
from memory.overlays import Reduction
from memory.references import make_range_reference, make_reference
from memory.stores import Store

from .sessions import format_time
from .terminal import make_one_line

_COMPACTIONS = (CompactionPrepared, CompactionPublished, CompactionReverted)
_OF_POSTS = (ReductionPublished, ReductionWithdrawn, PostPinned, PostRedacted, RoundUndone)
_SHOWN_EVENTS = (*_COMPACTIONS, *_OF_POSTS, EventRecorded)
_KINDS = tuple(kind for kind, record in KINDS.items() if issubclass(record, _SHOWN_EVENTS))
#: Facts of recorded events that are shown elsewhere, and the one that may contain words of a summary.
_HIDDEN_FACTS = frozenset({"at", "session", "role", "generation", "strategy", "model", "usage", "unknown_identifiers"})
#: Longer texts among an event's facts are not shown: they may quote the conversation.
_MAX_FACT = 200


def read_events(
    store: Store, session: str, *, role: str | None = None, after: int = 0, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield at most *limit* events after entry *after*; with *role*, only those of that role or of no single one.

    Rounds and posts are references (``r1-r9``, ``r12.p3``); tokens are those of the replaced text and of its
    replacement; ``facts`` are all others by name.
    """
    entries = (entry for entry in store.read_kinds(session, _KINDS) if entry.number > after)
    events = (_describe(entry, partial(store.find_round_number, session)) for entry in entries)
    return islice((one for one in events if role is None or one["role"] in (None, role)), limit)


def _describe(entry: Entry, number_of: Callable[[str], int]) -> dict[str, Any]:
    record = entry.record
    event: dict[str, Any] = {
        "number": entry.number,
        "at": entry.created_at.isoformat(),
        "what": entry.kind,
        "role": getattr(record, "role", None),  # None: it concerns no single role
        **dict.fromkeys(("generation", "rounds", "strategy", "tokens_before", "tokens_after", "model", "usage")),
        "checks": (),
        "facts": {},
    }

    def copy(source: object, *names: str) -> None:
        event.update({name: getattr(source, name) for name in names})

    def refer(round_id: str, *numbers: int) -> str:
        round_number = entry.round or number_of(round_id)
        return " ".join(make_reference(round_number, number) for number in numbers)

    def refer_range(posts: Reduction | ReductionWithdrawn) -> str:
        end = f"-p{posts.last_number}" if posts.last_number != posts.first_number else ""
        return refer(posts.round_id, posts.first_number) + end

    match record:
        case CompactionPrepared(compaction=one):
            copy(record, "strategy", "model", "usage", "checks")
            rounds = None if one is None else make_range_reference(one.start_index, one.last_round)
            event |= {"generation": record.base, "rounds": rounds, "facts": {"kind": record.kind}}
        case CompactionPublished(compaction=one):
            copy(record, "strategy", "tokens_before", "tokens_after", "checks")
            copy(one, "generation", "model", "usage")
            event["rounds"] = make_range_reference(one.start_index, one.last_round)
        case CompactionReverted():
            copy(record, "generation")
        case ReductionPublished(reduction=one):
            copy(one, "generation", "model", "usage")
            event |= {"rounds": refer_range(one), "facts": {"kind": one.kind}}
        case ReductionWithdrawn():
            event["rounds"] = refer_range(record)
        case PostPinned():
            event["what"] = "pinned" if record.pinned else "unpinned"
            event["rounds"] = refer(record.round_id, record.number)
        case RoundUndone(round_id=one):
            event["rounds"] = make_range_reference(number := entry.round or number_of(one), number)
        case PostRedacted():
            event["rounds"] = refer(record.round_id, *record.numbers)
        case EventRecorded(name=name, facts=facts):
            event["what"] = name
            for fact, kind in (("generation", int), ("strategy", str), ("model", str), ("usage", Mapping)):
                event[fact] = facts[fact] if isinstance(facts.get(fact), kind) else None
            event["facts"] = {
                fact: value
                for fact, value in facts.items()
                if fact not in _HIDDEN_FACTS
                and (len(value) <= _MAX_FACT if isinstance(value, str) else isinstance(value, int | float | None))
            }
    event |= {name: event[name] or None for name in ("strategy", "model")}
    event["usage"] = None if event["usage"] is None else dict(event["usage"])
    return event | {"checks": list(event["checks"])}


def make_event_table(events: Iterable[Mapping[str, Any]]) -> Table | str:
    table = Table(pad_edge=False)
    table.add_column("entry", justify="right")
    table.add_column("time (UTC)", no_wrap=True)
    for name in ("role", "what", "about"):
        table.add_column(name, overflow="fold")
    for one in events:
        about = ", ".join(_describe_facts(one))
        role, what = make_one_line(one["role"] or ""), make_one_line(one["what"])
        table.add_row(f"{one['number']}", format_time(one["at"]), role, what, about)
    return table if table.row_count else "nothing has happened to the history"


def _describe_facts(one: Mapping[str, Any]) -> Iterator[str]:
    if one["rounds"]:
        yield one["rounds"]
    if one["generation"] is not None:
        yield f"generation {one['generation']}"
    for name in (one["strategy"], one["model"]):
        if name:
            yield make_one_line(name, 60)
    for name, value in one["facts"].items():
        if value not in (None, ""):
            yield f"{make_one_line(name)} {make_one_line(str(value), 80)}"
    if one["tokens_before"] is not None and one["tokens_after"] is not None:
        yield f"{one['tokens_before']:,} -> {one['tokens_after']:,} tokens"
    if one["usage"]:
        yield ", ".join(f"{make_one_line(name)} {value}" for name, value in one["usage"].items())
    if one["checks"]:
        yield f"passed {make_one_line(' '.join(one['checks']), 200)}"
