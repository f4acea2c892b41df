"""What happened to a stored session's history, in order: facts only, and no text of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
from memory.overlays import CompactedMessage
from memory.references import place_reference, range_reference
from memory.rounds import Record
from memory.stores import Store

from .sessions import when
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


@dataclass(frozen=True, slots=True)
class Happening:
    """One entry of the log that says how the history reads from there on, or why it does not."""

    #: Of the entry in the log.
    number: int
    at: datetime
    #: The entry's kind, or the name of a recorded event.
    what: str
    #: None where it is no role's.
    role: str | None = None
    generation: int | None = None
    #: The rounds or posts it is about, as references: ``r1-r9``, ``r12.p3``.
    rounds: str | None = None
    strategy: str | None = None
    #: Of what is replaced in prompts, and of what stands there instead, where they were counted.
    tokens_before: int | None = None
    tokens_after: int | None = None
    model: str | None = None
    usage: Mapping[str, int] | None = None
    checks: tuple[str, ...] = ()
    #: What else there is to say, by name.
    facts: Mapping[str, Any] | None = None

    def figures(self) -> dict[str, Any]:
        usage, facts = (None if held is None else dict(held) for held in (self.usage, self.facts))
        plain = asdict(replace(self, usage=None, facts=None))
        return plain | {"at": self.at.isoformat(), "usage": usage, "checks": list(self.checks), "facts": facts or {}}


def happenings(
    store: Store, session: str, *, role: str | None = None, after: int = 0, limit: int | None = None
) -> Iterator[Happening]:
    """Give what happened behind entry *after*, at most *limit*; with *role*, what happened to that role and to all.

    On an indexed store only entries of these kinds are read.
    """
    entries = (entry for entry in store.read_kinds(session, _KINDS) if entry.number > after)
    told = (_told(entry, partial(store.round_number, session)) for entry in entries)
    return islice((one for one in told if role is None or one.role in (None, role)), limit)


def _told(entry: Entry, number_of: Callable[[str], int]) -> Happening:
    plain = Happening(entry.number, entry.created_at, entry.kind)

    def posts(round_id: str, *numbers: int) -> str:
        number = entry.round or number_of(round_id)
        return " ".join(place_reference(number, one) for one in numbers)

    def several(round_id: str, first: int, last: int) -> str:
        return posts(round_id, first) if first == last else f"{posts(round_id, first)}-p{last}"

    record = entry.record
    match record:
        case CompactionPrepared():
            rounds = _rounds_of(record.compaction) if record.compaction is not None else None
            made = replace(plain, role=record.role, generation=record.base, rounds=rounds, checks=record.checks)
            made = replace(made, strategy=record.strategy or None, facts={"kind": record.kind})
            return replace(made, model=record.model, usage=record.usage)
        case CompactionPublished(compaction=one):
            made = replace(plain, role=record.role, generation=one.generation, rounds=_rounds_of(one))
            made = replace(made, strategy=record.strategy or None, checks=record.checks)
            made = replace(made, tokens_before=record.tokens_before, tokens_after=record.tokens_after)
            return replace(made, model=one.model, usage=one.usage)
        case CompactionReverted():
            return replace(plain, role=record.role, generation=record.generation)
        case ReductionPublished(reduction=one):
            about = several(one.round_id, one.first_number, one.last_number)
            made = replace(plain, role=record.role, generation=one.generation, rounds=about, facts={"kind": one.kind})
            return replace(made, model=one.model, usage=one.usage)
        case ReductionWithdrawn():
            about = several(record.round_id, record.first_number, record.last_number)
            return replace(plain, role=record.role, rounds=about)
        case PostPinned():
            what = "pinned" if record.pinned else "unpinned"
            return replace(plain, what=what, rounds=posts(record.round_id, record.number))
        case PostRedacted():
            return replace(plain, rounds=posts(record.round_id, *record.numbers))
        case _:
            return _recorded(plain, record)


def _rounds_of(made: CompactedMessage) -> str:
    return range_reference(made.start_index, made.last_round)


#: Facts that every event has or that have a place of their own, and the one that may hold words of a summarizer's.
_ELSEWHERE = frozenset({"at", "session", "role", "generation", "strategy", "model", "usage", "unknown_identifiers"})


def _recorded(plain: Happening, record: Record | None) -> Happening:
    """Return what a recorded event says: its numbers and names. Whoever recorded it, no long text is shown."""
    assert isinstance(record, EventRecorded)  # noqa: S101  (no other kind is read)
    facts = record.facts
    usage, generation = facts.get("usage"), facts.get("generation")
    return replace(
        plain,
        what=record.name,
        role=record.role,
        generation=generation if isinstance(generation, int) else None,
        strategy=_word(facts.get("strategy")),
        model=_word(facts.get("model")),
        usage=usage if isinstance(usage, Mapping) else None,
        facts={name: value for name, value in facts.items() if name not in _ELSEWHERE and _is_short(value)},
    )


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_short(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 200)


# -- for reading ------------------------------------------------------------------------------------------------------


def table(found: Iterable[Happening], console: Console) -> None:
    """Print a row for each."""
    rows = Table(pad_edge=False)
    rows.add_column("entry", justify="right")
    rows.add_column("time (UTC)", no_wrap=True)
    for name in ("role", "what", "about"):
        rows.add_column(name, overflow="fold")
    for one in found:
        rows.add_row(
            f"{one.number}", when(one.at), one_line(one.role or ""), one_line(one.what), ", ".join(_about(one))
        )
    console.print(rows if rows.row_count else "nothing has happened to the history")


def _about(one: Happening) -> Iterator[str]:
    if one.rounds:
        yield one.rounds
    if one.generation is not None:
        yield f"generation {one.generation}"
    for said in (one.strategy, one.model):
        if said:
            yield one_line(said, 60)
    for name, value in (one.facts or {}).items():
        if value not in (None, ""):
            yield f"{one_line(name)} {one_line(str(value), 80)}"
    if one.tokens_before is not None and one.tokens_after is not None:
        yield f"{one.tokens_before:,} -> {one.tokens_after:,} tokens"
    if one.usage:
        yield ", ".join(f"{one_line(name)} {value}" for name, value in one.usage.items())
    if one.checks:
        yield f"passed {one_line(' '.join(one.checks), 200)}"
