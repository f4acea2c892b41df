"""What became of a role's compactions, as the log tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from .entries import (
    CompactionPrepared,
    CompactionPublished,
    CompactionReverted,
    Entry,
    PostRedacted,
    RoundFailed,
    kinds_of,
)
from .overlays import CompactedMessage

__all__ = ["KINDS_TOLD", "CompactionRecord", "history_of"]

#: The kinds of entries that tell of it.
KINDS_TOLD = kinds_of(CompactionPrepared, CompactionPublished, CompactionReverted, PostRedacted, RoundFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRecord:
    """One thing that happened to a role's compactions."""

    #: ``published``; ``reverted``: taken back; ``withdrawn``: what it was made from was redacted, or failed;
    #: ``prepared``: paid for and not published, perhaps as a step on the way.
    happened: Literal["prepared", "published", "reverted", "withdrawn"]
    at: datetime
    #: The role's generation from then on; of a prepared one, that which it was made from.
    generation: int
    #: Which it happened to; None for a step on the way. Its text is gone where it was made from what was redacted.
    compaction: CompactedMessage | None
    #: Whether it is what prompts show now: of one record at most.
    current: bool = False
    #: The rounds that it covers and the one before it does not.
    round_ids: tuple[str, ...] = ()
    #: Of the request that was answered, in hexadecimal digits; empty where no model was asked.
    digest: str = ""
    #: Names of the checks that the answer passed.
    checks: tuple[str, ...] = ()
    strategy: str = ""
    model: str | None = None
    usage: Mapping[str, int] | None = None
    #: Tokens of what it replaces in prompts, and its own, where they were counted.
    tokens_before: int | None = None
    tokens_after: int | None = None
    #: Of the log's entry; 0 where there is no log.
    number: int = 0

    @property
    def rounds(self) -> tuple[int, int] | None:
        """The first and the last round that it covers in all, by their numbers in the log; None for a step."""
        return None if self.compaction is None else (self.compaction.start_index, self.compaction.last_round)


def history_of(entries: Iterable[Entry], role: str, number_of: Callable[[str], int]) -> tuple[CompactionRecord, ...]:
    """Return what *entries* tell of *role*'s compactions, oldest first. *number_of* gives a round's number."""
    told = [(entry, entry.record) for entry in entries if entry.kind in KINDS_TOLD]
    told = [(entry, record) for entry, record in told if getattr(record, "role", role) == role]
    published = {
        (record.compaction.generation - 1, digest)
        for _, record in told
        if isinstance(record, CompactionPublished)
        for digest in ("", record.digest)  # the empty one: whatever its steps were
    }
    records: list[CompactionRecord] = []
    standing: list[CompactionRecord] = []  # what was published and not taken back, oldest first
    failed: set[str] = set()
    generation = 0
    for entry, record in told:
        before = len(standing)
        match record:
            case CompactionPrepared(base=base, digest=digest, compaction=made):
                if record.kind in ("rounds", "changes") and (base, digest if made is not None else "") not in published:
                    records.append(_prepared(entry, record))
            case CompactionPublished():
                standing.append(_published(entry, record))
                generation = record.compaction.generation
                records.append(standing[-1])
            case CompactionReverted():
                generation = record.generation
                records.extend(_taken_back(standing[-1:], "reverted", entry, generation))
                del standing[-1:]
            case PostRedacted(round_id=round_id) | RoundFailed(round_id=round_id):
                first = number_of(round_id)
                if isinstance(record, RoundFailed):
                    known, failed = round_id in failed, failed | {round_id}
                    if known or not any(_covers(one, first) for one in standing):
                        continue
                generation += 1  # by a redaction, every role's
                kept = [one for one in standing if not _covers(one, first)]
                records.extend(_taken_back(standing[len(kept) : before], "withdrawn", entry, generation))
                standing = kept
    return tuple(replace(one, current=True) if standing and one is standing[-1] else one for one in records)


def _covers(published: CompactionRecord, number: int) -> bool:
    return published.compaction is None or (published.compaction.end_number or 0) >= number


def _prepared(entry: Entry, record: CompactionPrepared) -> CompactionRecord:
    return CompactionRecord(
        happened="prepared",
        at=entry.created_at,
        generation=record.base,
        compaction=record.compaction,
        round_ids=record.round_ids,
        digest=record.digest,
        checks=record.checks,
        strategy=record.strategy,
        model=record.model,
        usage=record.usage,
        number=entry.number,
    )


def _published(entry: Entry, record: CompactionPublished) -> CompactionRecord:
    return CompactionRecord(
        happened="published",
        at=entry.created_at,
        generation=record.compaction.generation,
        compaction=record.compaction,
        round_ids=record.round_ids,
        digest=record.digest,
        checks=record.checks,
        strategy=record.strategy,
        model=record.compaction.model,
        usage=record.compaction.usage,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        number=entry.number,
    )


def _taken_back(
    records: Iterable[CompactionRecord], how: Literal["reverted", "withdrawn"], entry: Entry, generation: int
) -> Iterator[CompactionRecord]:
    for one in records:
        yield replace(one, happened=how, at=entry.created_at, generation=generation, number=entry.number)
