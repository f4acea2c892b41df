"""A store in memory from which parts of a log can be read, and which counts what it hands out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from memory import Entry, InMemoryStore, Memory, StoreError
from memory.entries import RoundOpened
from memory.stores import Checkpoint


class Indexed(InMemoryStore):
    """Hands out entries made anew from their text, as a database does."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: dict[str, Checkpoint] = {}
        self.handed_out = 0
        self.fault: BaseException | None = None
        self.lost_reply: BaseException | None = None

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        self._raise_fault()
        number = super().append(session, entries, after)
        if self.lost_reply is not None:
            fault, self.lost_reply = self.lost_reply, None
            raise fault
        return number

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        return self._out(list(super().read(session, after, limit)))

    def read_rounds(self, session: str, first: int, last: int) -> Iterator[Entry]:
        return self._out([entry for entry in super().read(session) if first <= entry.round <= last])

    def find_round_number(self, session: str, round_id: str) -> int:
        self._raise_fault()
        for entry in super().read(session):
            if entry.kind == "round opened":
                record = entry.record
                assert isinstance(record, RoundOpened)
                if record.round_id == round_id:
                    return entry.round
        return 0

    def read_kinds(self, session: str, kinds: Collection[str]) -> Iterator[Entry]:
        return self._out([entry for entry in super().read(session) if entry.kind in kinds])

    def get_checkpoint(self, session: str) -> Checkpoint | None:
        self._raise_fault()
        return self.checkpoints.get(session)

    def save_checkpoint(self, session: str, checkpoint: Checkpoint) -> None:
        self._raise_fault()
        self.checkpoints[session] = checkpoint

    def redact(self, session: str, number: int, body: str = "") -> None:
        self._raise_fault()
        super().redact(session, number, body)

    def purge(self, session: str) -> None:
        super().purge(session)
        self.checkpoints.pop(session, None)

    def _out(self, entries: list[Entry]) -> Iterator[Entry]:
        self._raise_fault()
        for entry in entries:
            self.handed_out += 1
            yield Entry(
                entry.kind,
                body=entry.body,
                id=entry.id,
                created_at=entry.created_at,
                number=entry.number,
                round=entry.round,
                version=entry.version,
            )

    def _raise_fault(self) -> None:
        if self.fault is not None:
            raise self.fault


class Plain(InMemoryStore):
    """The log of another store, which has nothing but the six methods."""

    def __init__(self, store: InMemoryStore, session: str = "s") -> None:
        super().__init__()
        kept = [
            Entry(one.kind, body=one.body, id=one.id, created_at=one.created_at, round=one.round)
            for one in store.read(session)
        ]
        if kept:
            self.append(session, kept, 0)


class Unreachable(StoreError):
    """What a store raises whose server is gone."""


def forgetful(*memories: Memory) -> None:
    """Have these Memories keep hardly anything that they can read again."""
    for memory in memories:
        archive: Any = memory.snapshot.archive
        archive._max_rounds, archive._max_numbers = 2, 2


def with_rounds(store: InMemoryStore, count: int, *, session: str = "s") -> Memory:
    """Return a Memory of closed rounds "1", "2", ..., each with a question and its answer."""
    memory = Memory(session, store=store)
    for number in range(1, count + 1):
        memory.create_round(f"question {number}", id=str(number))
        memory.add_post(str(number), send_from="Planner", send_to="User", message=f"answer {number}")
        memory.finish_round(str(number))
    return memory


def shown(memory: Memory, *roles: str) -> object:
    """Return all that the public can see of a Memory, with nothing in it that says where it is kept."""
    seen = []
    for role in ("", *roles):
        rounds, compaction = memory.get_role_rounds(role)
        journal = memory.journal(role)
        seen.append(
            (
                list(rounds),
                rounds.closed,
                [rounds.get_number(place) for place in range(len(rounds))],
                compaction,
                journal.read(),
                journal.read().prepared,
                rounds.reductions.version,
                dict(rounds.reductions.by_round),
                [rounds.find_end(round_.id) for round_ in memory.conversation.rounds],
                memory.usage(role),
                memory.messages(role),
            )
        )
    return (
        memory.header,
        list(memory.conversation.rounds),
        memory.pins(),
        memory.open_rounds,
        memory.snapshot.redactions,
        memory.snapshot.number,
        seen,
    )
