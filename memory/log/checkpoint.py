"""Checkpoints: the snapshot after one entry, without texts. With the entries behind it, a session can be opened.

A checkpoint holds places in the log, and texts are read from there. So erasing a text never changes a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Annotated

from pydantic import Field, ValidationError

from ..entries import CompactionPrepared, Entry, HeaderAdded, from_ascii, to_ascii
from ..errors import NewerVersion, StoreDamaged
from ..overlays import JournalState, Reductions
from ..rounds import Record, Text, run_dump
from ..stores.base import Checkpoint, Store
from ..usage import Pinned, Usage, read_pinned, unreadable_pin
from .round_store import StoredRounds, rebuild
from .state import OpenRound, Publication, ReductionPlaces, Snapshot, record_at

#: Version of the body. A checkpoint of another version is ignored, and the log is read instead.
VERSION = 1

OF_ANOTHER_LOG = "the checkpoint of this session is of another log; it is ignored"

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Reductions(Record):
    version: Count
    #: By round id: the round's number, and the numbers of the entries.
    places: Mapping[Text, tuple[Count, tuple[Count, ...]]]


class _Role(Record):
    generation: Count | None = None
    #: The revert_round_id of its JournalState, by its stored name.
    held_round_id: Text | None = None
    #: Entries of publications that were not reverted, each with the last round that it covers.
    published: tuple[tuple[Count, Count], ...] = ()
    prepared: tuple[Count, ...] = ()
    reductions: _Reductions | None = None
    #: Tokens, steps, and the share that missed the cache, which older checkpoints lack.
    usage: tuple[Count | None, Count] | tuple[Count | None, Count, Share] | None = None


class _Body(Record):
    version: int
    #: Id of its entry.
    last: Text
    header: tuple[Count, ...]
    total: Count
    settled: Count
    failed: tuple[Count, ...]
    #: By role.
    roles: Mapping[Text, _Role]
    #: Round id, number of the post, and of the round.
    pins: tuple[tuple[Text, Count, Count], ...]
    redactions: Count


def checkpoint_of(now: Snapshot) -> Checkpoint:
    """Return *now* as a checkpoint. Reads nothing. Its length does not depend on the length of texts."""
    names = dict.fromkeys([*now.journals, *now.prepared_entries, *now.reductions, *now.usages])
    body = _Body(
        version=VERSION,
        last=now.last,
        header=now.header_entries,
        total=now.total,
        settled=now.closed_prefix,
        failed=now.failed,
        roles={name: _role_of(now, name) for name in names},
        pins=tuple((one.round_id, one.number, one.round) for one in now.pinned),
        redactions=now.redactions,
    )
    return Checkpoint(now.number, to_ascii(run_dump(partial(body.model_dump, exclude_defaults=True))))


def _role_of(now: Snapshot, role: str) -> _Role:
    state, held, usage = now.journals.get(role), now.reductions.get(role), now.usages.get(role)
    places = now.reduction_places.get(role, {})
    return _Role(
        generation=None if state is None else state.generation,
        held_round_id=None if state is None else state.revert_round_id,
        published=now.published.get(role, ()),
        prepared=now.prepared_entries.get(role, ()),
        reductions=None if held is None else _Reductions(version=held.version, places=places),
        usage=None if usage is None else _usage_of(usage),
    )


def _usage_of(usage: Usage) -> tuple[int | None, int] | tuple[int | None, int, float]:
    """Return *usage* in the form that older versions read, if that loses nothing."""
    known = (usage.input_tokens, usage.steps)
    return (*known, usage.cold) if usage.cold else known


def resume_from(kept: Checkpoint, store: Store, session: str, archive: StoredRounds) -> Snapshot | None:
    """Return the snapshot after the entry that *kept* names; None if *kept* cannot be used.

    Reads the header, the rounds that may still change and the current overlays. May raise ``StoreError``.
    """
    try:
        body = _Body.model_validate(from_ascii(kept.body))
    except (ValueError, ValidationError, RecursionError):
        return None
    if body.version != VERSION or [entry.id for entry in store.read(session, kept.number - 1, 1)] != [body.last]:
        return None
    try:
        return _Reading(store, session, archive).snapshot(kept.number, body)
    except StoreDamaged:
        return None  # if it is the log that is damaged, reading it will tell


class _Reading:
    """Reads the parts of a session's log that a checkpoint names."""

    def __init__(self, store: Store, session: str, archive: StoredRounds) -> None:
        self._store = store
        self._session = session
        self._archive = archive

    def snapshot(self, number: int, body: _Body) -> Snapshot:
        live = {}
        if body.settled < body.total:
            entries = self._store.read_rounds(self._session, body.settled + 1, body.total)
            live = rebuild(entry for entry in entries if entry.number <= number)
        first = live.get(body.settled + 1)
        if sorted(live) != list(range(body.settled + 1, body.total + 1)) or (
            first is not None and first.state != "created"
        ):
            raise StoreDamaged(OF_ANOTHER_LOG)
        for place, item in live.items():
            self._archive.numbers[item.opened.round_id] = place
        for round_id, _, place in body.pins:
            self._archive.numbers[round_id] = place
        now = Snapshot(
            number=number,
            last=body.last,
            header=tuple(record_at(self._store, self._session, entry, HeaderAdded).post for entry in body.header),
            header_entries=body.header,
            archive=self._archive,
            closed_prefix=body.settled,
            live=tuple(live[place] for place in sorted(live)),
            total=body.total,
            failed=body.failed,
            redactions=body.redactions,
            journals={
                name: JournalState(role.generation) for name, role in body.roles.items() if role.generation is not None
            },
            reductions={
                name: Reductions(role.reductions.version)
                for name, role in body.roles.items()
                if role.reductions is not None
            },
            reduction_places={
                name: {round_id: ReductionPlaces(*places) for round_id, places in role.reductions.places.items()}
                for name, role in body.roles.items()
                if role.reductions is not None
            },
            usages={name: Usage(*role.usage) for name, role in body.roles.items() if role.usage is not None},
            prepared={name: self._prepared(role) for name, role in body.roles.items() if role.prepared},
            prepared_entries={name: role.prepared for name, role in body.roles.items() if role.prepared},
        ).with_pinned(self._pinned(number, body, live))
        for name, role in body.roles.items():
            kept = tuple(Publication(*one) for one in role.published)
            if role.generation is not None:
                now = now.with_publications(name, role.generation, kept, revert_round_id=role.held_round_id)
                current = now.journal(name).current
                if current is not None and current.end_round_id is not None and current.end_number:
                    self._archive.numbers[current.end_round_id] = current.end_number
            elif role.reductions is not None:
                now = now.with_shown_reductions(name)
        return now

    def _pinned(self, number: int, body: _Body, live: Mapping[int, OpenRound]) -> list[Pinned]:
        """Return the pinned posts, read now so that prompts do not need the store later."""
        found: list[Pinned] = []
        for place, pins in groupby(sorted(body.pins, key=itemgetter(2)), key=itemgetter(2)):
            posts = [(round_id, post) for round_id, post, _ in pins]
            try:
                rounds = live if place in live else rebuild(self._of_round(place, number))
                found += [read_pinned(rounds[place].round, post) for _, post in posts]
            except (StoreDamaged, NewerVersion):
                found += [unreadable_pin(round_id, place, post) for round_id, post in posts]
            except KeyError as error:
                raise StoreDamaged(OF_ANOTHER_LOG) from error
        return found

    def _of_round(self, place: int, number: int) -> Iterator[Entry]:
        return (one for one in self._store.read_rounds(self._session, place, place) if one.number <= number)

    def _prepared(self, role: _Role) -> tuple[CompactionPrepared, ...]:
        return tuple(record_at(self._store, self._session, entry, CompactionPrepared) for entry in role.prepared)
