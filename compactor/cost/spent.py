"""What a session's answers have cost, from its log alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from memory.entries import (
    CompactionPrepared,
    CompactionPublished,
    Entry,
    EventRecorded,
    ReductionPublished,
    list_kinds,
)

#: The kinds of entries that ``find_spent`` reads.
SPENT_KINDS = list_kinds(CompactionPrepared, CompactionPublished, ReductionPublished, EventRecorded)


class Spent(NamedTuple):
    """An accepted answer with the rejected ones before it, or the rejected answers of a failure."""

    entry: Entry
    role: str
    model: str
    usage: Mapping[str, int]


def find_spent(entries: Iterable[Entry]) -> Iterator[Spent]:
    """Yield each answer that was paid for. A publication of a prepared answer is not paid for again."""
    steps = Counter[str]()  # by role: prepared answers for single posts, which a reduction may be made of
    for entry in entries:
        record, usage, model = entry.record, None, None
        match record:
            case CompactionPrepared():
                usage, model = record.usage, record.model
                steps[record.role] += record.kind not in ("rounds", "changes")
            case CompactionPublished(digest="", compaction=compaction):
                usage, model = compaction.usage, compaction.model
            case ReductionPublished(reduction=reduction) if reduction.usage:
                if steps[record.role]:
                    steps[record.role] -= 1
                else:
                    usage, model = reduction.usage, reduction.model
            case EventRecorded(facts=facts):
                counts = facts.get("usage")
                usage = {
                    name: count
                    for name, count in (counts.items() if isinstance(counts, Mapping) else ())
                    if isinstance(name, str) and type(count) is int and count >= 0
                }
                model = facts.get("model")
        if usage:
            yield Spent(entry, record.role, model if isinstance(model, str) else "", usage)  # type: ignore[union-attr]
