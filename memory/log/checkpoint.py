"""Checkpoints: the snapshot after one entry, without texts. With the entries behind it, a session can be opened.

A checkpoint holds numbers of entries, and texts are read from there. So erasing a text never changes a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Annotated

from pydantic import Field

from ..entries import CompactionPrepared, HeaderAdded, from_ascii, to_ascii
from ..errors import NewerVersion, StoreDamaged
from ..overlays import JournalState, Reductions
from ..rounds import FieldMapping, Record, Text, run_dump
from ..stores.base import Checkpoint
from ..usage import Pinned, Usage, make_unreadable_pin, read_pinned
from .round_store import rebuild_rounds
from .state import ClosedRounds, OpenRound, Snapshot

#: Version of the body. A checkpoint of another version is ignored, and the log is read instead.
VERSION = 1

OF_ANOTHER_LOG = "the checkpoint of this session is of another log; it is ignored"

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Reductions(Record):
    version: Count
    #: By round id: the round's number, and the numbers of the entries.
    entries: FieldMapping[Text, tuple[Count, tuple[Count, ...]]] = Field(alias="places")  # as it is stored


class _Role(Record):
    generation: Count | None = None
    revert_round_id: Text | None = Field(None, alias="held_round_id")  # as it is stored
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
    closed_prefix: Count = Field(alias="settled")  # as it is stored
    failed: tuple[Count, ...]
    #: Older versions do not know these fields: they ignore the checkpoint then, and read the log.
    undone: tuple[Count, ...] = ()
    continued: tuple[tuple[Count, Text, Count], ...] = ()
    #: By role.
    roles: FieldMapping[Text, _Role]
    #: Round id, number of the post, and of the round.
    pins: tuple[tuple[Text, Count, Count], ...]
    redactions: Count


def make_checkpoint(now: Snapshot) -> Checkpoint:
    """Return *now* as a checkpoint. Reads nothing. Its length does not depend on the length of texts."""
    names = dict.fromkeys([*now.journals, *now.prepared, *now.reductions, *now.usages])
    body = _Body(
        version=VERSION,
        last=now.last,
        header=now.header_entries,
        total=now.total,
        settled=now.closed_prefix,
        failed=tuple(sorted(now.failed)),
        undone=tuple(one for one in now.hidden if one not in now.failed),
        continued=tuple((number, *copies) for number, copies in now.continued.items()),
        roles={name: _make_role(now, name) for name in names},
        pins=tuple((one.round_id, one.number, one.round) for one in now.pinned),
        redactions=now.redactions,
    )
    return Checkpoint(now.number, to_ascii(run_dump(partial(body.model_dump, exclude_defaults=True, by_alias=True))))


def _make_role(now: Snapshot, role: str) -> _Role:
    state, reductions, usage = now.journals.get(role), now.reductions.get(role), now.usages.get(role)
    entries, known = now.reduction_entries.get(role, {}), (usage.input_tokens, usage.steps) if usage else None
    return _Role(
        generation=state.generation if state else None,
        held_round_id=state.revert_round_id if state else None,
        published=now.publications.get(role, ()),
        prepared=tuple(now.prepared.get(role, ())),
        reductions=_Reductions(version=reductions.version, places=entries) if reductions else None,
        # Two values, as older versions read them, if that loses nothing.
        usage=(*known, usage.cold) if usage and known and usage.cold else known,
    )


def resume_from(checkpoint: Checkpoint, archive: ClosedRounds) -> Snapshot | None:
    """Return the snapshot after the entry that *checkpoint* names; None if *checkpoint* cannot be used.

    Reads the header, the rounds that may still change and the current overlays. May raise ``StoreError``.
    """
    try:
        body = _Body.model_validate(from_ascii(checkpoint.body))
    except (ValueError, RecursionError):
        return None
    entries = archive.store.read(archive.session, checkpoint.number - 1, 1)
    if body.version != VERSION or [entry.id for entry in entries] != [body.last]:
        return None
    try:
        return _restore(checkpoint.number, body, archive)
    except StoreDamaged:
        return None  # if it is the log that is damaged, reading it will tell


def _restore(number: int, body: _Body, archive: ClosedRounds) -> Snapshot:
    """Return the snapshot after the entry of that *number*, with the records that *body* names read from the log."""
    first, total = body.closed_prefix + 1, body.total
    open_rounds = _read_rounds(archive, first, total, number) if first <= total else {}
    if sorted(open_rounds) != list(range(first, total + 1)) or (open_rounds and open_rounds[first].state != "created"):
        raise StoreDamaged(OF_ANOTHER_LOG)
    archive.numbers.update((item.opened.round_id, number) for number, item in open_rounds.items())
    archive.numbers.update((round_id, number) for round_id, _, number in body.pins)
    roles = body.roles.items()
    header = archive.read_records(body.header, HeaderAdded)
    now = Snapshot(
        number=number,
        last=body.last,
        header=tuple([header[entry].post for entry in body.header]),
        header_entries=body.header,
        archive=archive,
        closed_prefix=body.closed_prefix,
        open_rounds=open_rounds,
        total=total,
        hidden=tuple(sorted(body.failed + body.undone)),
        failed=frozenset(body.failed),
        continued={number: (round_id, copied) for number, round_id, copied in body.continued},
        redactions=body.redactions,
        journals={name: JournalState(role.generation) for name, role in roles if role.generation is not None},
        reductions={name: Reductions(role.reductions.version) for name, role in roles if role.reductions},
        reduction_entries={name: role.reductions.entries for name, role in roles if role.reductions},
    ).with_pinned(_read_pinned(number, body, archive, open_rounds))
    for name, role in roles:
        if role.generation is not None:
            now = now.with_publications(name, role.generation, role.published, revert_round_id=role.revert_round_id)
            current = now.get_journal(name).current
            if current is not None and current.end_round_id is not None and current.end_number:
                archive.numbers[current.end_round_id] = current.end_number
        elif role.reductions is not None:
            shown = Reductions(role.reductions.version, now.list_shown_reductions(name, None))
            now = now.copy_with(reductions={**now.reductions, name: shown})
    return now.copy_with(
        usages={name: Usage(*role.usage) for name, role in roles if role.usage is not None},
        prepared={
            name: archive.read_records(role.prepared, CompactionPrepared) for name, role in roles if role.prepared
        },
    )


def _read_rounds(archive: ClosedRounds, first: int, last: int, number: int) -> dict[int, OpenRound]:
    """Return these rounds as the entries up to that *number* make them."""
    entries = archive.store.read_rounds(archive.session, first, last)
    return rebuild_rounds(entry for entry in entries if entry.number <= number)


def _read_pinned(
    number: int, body: _Body, archive: ClosedRounds, open_rounds: Mapping[int, OpenRound]
) -> Iterator[Pinned]:
    """Yield the pinned posts, read now so that prompts do not need the store later."""
    for round_number, pins in groupby(sorted(body.pins, key=itemgetter(2)), key=itemgetter(2)):
        posts = [(round_id, post) for round_id, post, _ in pins]
        try:
            is_open = round_number in open_rounds
            rounds = open_rounds if is_open else _read_rounds(archive, round_number, round_number, number)
            yield from [read_pinned(rounds[round_number].round, post) for _, post in posts]
        except (StoreDamaged, NewerVersion):
            yield from [make_unreadable_pin(round_id, round_number, post) for round_id, post in posts]
        except KeyError as error:
            raise StoreDamaged(OF_ANOTHER_LOG) from error
