"""A Memory as plain JSON values, for the host to keep in a file, a column or a message; and checks of imported logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..entries import (
    HEADER_PART,
    CompactionPublished,
    CompactionReverted,
    Entry,
    HeaderAdded,
    PostAdded,
    PostPinned,
    PostRedacted,
    ReductionPublished,
    RoundFailed,
    RoundFinished,
    RoundOpened,
    RoundUndone,
)
from ..errors import Conflict, MessageError, NewerVersion, SessionPurged, StoreDamaged, StoreError
from ..rounds import Record, freeze
from ..stores import InMemoryStore, Store

if TYPE_CHECKING:
    from ..memory import Memory

M = TypeVar("M", bound="Memory")

#: Ends every error about an imported log.
REMEDY = "nothing was stored, take an undamaged copy"
#: The state's ``format``, and the newest ``version`` that this code writes and reads.
STATE_FORMAT = "context-compactor state"
STATE_VERSION = 1

_EXISTS = "there is a session {!r} in this store already, left as it is: give another name, or purge that session first"
#: A body nests a little deeper than its record's values may.
_BODY_DEPTH = -16


def dump_memory(memory: Memory) -> dict[str, Any]:
    """Return the whole *memory* as plain JSON values: ``json.loads(json.dumps(state))`` equals the state."""
    now = memory.snapshot
    entries = (
        [write_value(entry) for entry in memory._store.read(memory.session_id, 0, now.number)] if now.number else []
    )
    if len(entries) != now.number or (entries and entries[-1]["id"] != now.last):
        raise SessionPurged.at(now.number)
    return {
        "format": STATE_FORMAT,
        "version": STATE_VERSION,
        "session": memory.session_id,
        "own_rounds": [*memory._own_rounds],
        "entries": entries,
    }


def load_memory(
    cls: type[M], state: Mapping[str, Any], session_id: str | None = None, *, store: Store | None = None, **options: Any
) -> M:
    """Return a Memory with the content of *state*. Everything is checked first and written in one append.

    Raises ``NewerVersion`` for the state of a newer version, ``StoreDamaged`` for an unreadable one, and ``StoreError``
    if the store has the session already.
    """
    if not isinstance(state, Mapping):
        _raise_damaged("the state", f"it is a {type(state).__name__} and not a mapping")
    own = check_head(state, "the state", STATE_FORMAT)
    session = own if session_id is None else session_id
    own_rounds, values = state.get("own_rounds", ()), state.get("entries")
    if not isinstance(own_rounds, (list, tuple)) or not all(isinstance(one, str) for one in own_rounds):
        _raise_damaged("the state", "its own_rounds are no list of ids")
    if not isinstance(values, (list, tuple)):
        _raise_damaged("the state", "it has no list of entries")
    validator, entries = LogValidator(), []
    for value in values:
        entry = read_entry(value, f"entry {validator.number + 1} of the state")
        validator.add(entry)
        entries.append(entry)
    target = InMemoryStore() if store is None else store
    refuse_existing(target, session)
    cls(session, store=target, **options)  # refuses wrong options before anything is written
    append_session(target, session, entries)
    memory = cls(session, store=target, **options)
    memory.adopt_rounds(own_rounds)
    return memory


def refuse_existing(store: Store, session: str) -> None:
    """Raise ``StoreError`` if *store* has that session."""
    if next(iter(store.read(session, 0, 1)), None) is not None:
        raise StoreError(_EXISTS.format(session[:40]))


def append_session(store: Store, session: str, entries: Sequence[Entry]) -> None:
    """Write a new session in one append. Raises ``StoreError`` if the session exists."""
    if not entries:
        return
    try:
        store.append(session, entries, 0)
    except Conflict as conflict:  # another writer was faster
        raise StoreError(_EXISTS.format(session[:40])) from conflict


def check_head(head: Mapping[str, Any], where: str, format_: str) -> str:
    """Return the name of the session. Raises ``StoreDamaged`` for another format, ``NewerVersion`` for a newer one."""
    if head.get("format") != format_:
        _raise_damaged(where, f"it does not say that it is a {format_}")
    version = require_number(head, "version", where)
    if version > STATE_VERSION:
        raise NewerVersion(
            f"{where} was written by a newer version of context-compactor, and nothing was stored; upgrade to read it"
        )
    session = head.get("session")
    if version < 1 or not isinstance(session, str):
        _raise_damaged(where, "its version or its session's name is missing")
    return session


def write_value(entry: Entry) -> dict[str, Any]:
    """Return *entry* as plain JSON values, with a parsed body. Raises ``StoreDamaged`` if the body is no JSON."""
    try:
        body = json.loads(entry.body, parse_float=_parse_finite, parse_constant=_parse_finite)
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(
            f"entry {entry.number} ({entry.kind}) of the log cannot be read; nothing was changed: restore the session"
            f" from a backup"
        ) from error
    return {
        "id": entry.id,
        "kind": entry.kind,
        "number": entry.number,
        "round": entry.round,
        "created_at": entry.created_at.isoformat(),
        "version": entry.version,
        "body": body,
    }


def read_entry(value: Any, where: str) -> Entry:
    """Return the entry of a ``write_value``. Raises ``StoreDamaged`` for any other value."""
    if not isinstance(value, Mapping):
        _raise_damaged(where, "it is no mapping")
    try:
        body = json.dumps(freeze(value.get("body"), _BODY_DEPTH), separators=(",", ":"))
        created_at = datetime.fromisoformat(value.get("created_at", ""))
        if created_at.tzinfo is not None:
            created_at.astimezone(UTC)  # raises now instead of in a store
    except (MessageError, TypeError, ValueError, OverflowError) as error:
        _raise_damaged(where, "its body or its time stamp cannot be read", error)
    return Entry(
        _require_word(value, "kind", where),
        body=body,
        id=_require_word(value, "id", where),
        created_at=created_at,
        number=require_number(value, "number", where),
        round=require_number(value, "round", where) if "round" in value else 0,
        version=max(1, require_number(value, "version", where)),
    )


def _parse_finite(text: str) -> float:
    if not isfinite(float(text)):
        raise ValueError("JSON has no such number")
    return float(text)


def _require_word(value: Mapping[str, Any], field: str, where: str) -> str:
    word = value.get(field)
    if not isinstance(word, str) or not 1 <= len(word) <= 200 or not word.isprintable():
        _raise_damaged(where, f"its {field} is missing or no plain text")
    return word


def require_number(value: Mapping[str, Any], field: str, where: str) -> int:
    number = value.get(field)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 53:
        _raise_damaged(where, f"its {field} is missing or no number")
    return number


def _raise_damaged(where: str, what: str, cause: Exception | None = None) -> NoReturn:
    raise StoreDamaged(f"{where} cannot be read: {what}; {REMEDY}") from cause


def find_round_id(record: Record | None) -> str | None:
    """Return the id of the round that *record* belongs to, or None."""
    owner = record.reduction if type(record) is ReductionPublished else record
    round_id: str | None = getattr(owner, "round_id", None)
    return round_id


class LogValidator:
    """Checks the entries of one log in order, and finds the round of each.

    Stricter than a replay: it refuses everything that no Memory writes. It holds no text, so logs may be of any length.
    """

    def __init__(self) -> None:
        #: Number of the last entry.
        self.number = 0
        self._ids: set[str] = set()
        self._rounds: dict[str, int] = {}
        self._open: set[int] = set()
        #: The number of the last post of each round, by the round's number.
        self._last_post: dict[int, int] = {}
        self._generations: dict[str, int] = {}
        self._redactions = 0

    def add(self, entry: Entry) -> None:
        """Add *entry* as the next one, and set the number of its round.

        Raises ``StoreDamaged`` if it does not fit those before, ``NewerVersion`` for a body of a newer version.
        """
        if entry.number != self.number + 1:
            raise StoreDamaged(
                f"entry {self.number + 1} is missing, there is one numbered {entry.number} in its place; {REMEDY}"
            )
        if entry.id in self._ids:
            raise StoreDamaged(f"entry {entry.number} has the id of an entry before it; {REMEDY}")
        try:
            record = entry.record
        except StoreDamaged as error:
            raise StoreDamaged(f"entry {entry.number} ({entry.kind}) cannot be read; {REMEDY}") from error
        round_id = find_round_id(record)
        fault = self._find_fault(record, round_id, entry.number)
        if fault:
            raise StoreDamaged(f"entry {entry.number} ({entry.kind}) does not fit those before it: {fault}; {REMEDY}")
        self.number = entry.number
        self._ids.add(entry.id)
        # A kind that this version does not know keeps the number from the newer version.
        if record is not None or not 0 <= entry.round <= len(self._rounds):
            entry.round = self._rounds.get(round_id or "", 0)

    def _find_fault(self, record: Record | None, round_id: str | None, number: int) -> str:  # noqa: PLR0912  (a branch a kind)
        """Return why *record* cannot be the next one; empty if it can: then it counts."""
        round_number = 0 if round_id is None else self._rounds.get(round_id, 0)
        last = self._last_post.get(round_number, 0)
        match record:
            case RoundOpened(round_id=opened):
                if round_number:
                    return "there is a round of that id"
                round_number = self._rounds[opened] = len(self._rounds) + 1
                self._open.add(round_number)
                self._last_post[round_number] = 0
            case _ if round_id is not None and not round_number:
                return "there is no round of that id"
            case HeaderAdded(post=post) if self._rounds and not post.kind.startswith(HEADER_PART):
                return "the header is before the first round"
            case PostAdded(post=post):
                if round_number not in self._open:
                    return "the round is closed"
                # Not "last + 1": an entry may have been erased with its number. Bounded: a store has to hold it.
                if not last < post.number <= number:
                    return "the post's number is not the next"
                self._last_post[round_number] = post.number
            case RoundFinished() | RoundFailed() | RoundUndone():
                self._open.discard(round_number)
            case PostPinned(number=pinned) if not 0 <= pinned <= last:
                return "there is no such post"
            case PostRedacted(numbers=numbers):
                if not all(0 <= one <= last for one in numbers):
                    return "there is no such post"
                self._generations = {role: generation + 1 for role, generation in self._generations.items()}
                self._redactions += 1
            case ReductionPublished(reduction=reduction):
                if not reduction.first_number <= reduction.last_number <= last:
                    return "there are no such posts"
                if reduction.kind == "offloaded" and reduction.first_number != reduction.last_number:
                    return "it replaces more than one post"
            case CompactionPublished(role=role, compaction=compaction, round_ids=round_ids):
                end = self._rounds.get(compaction.end_round_id or "", 0)
                if not end or compaction.end_number != end or not self._rounds.keys() >= set(round_ids):
                    return "it covers rounds that are not there"
                if any(round_number <= end for round_number in self._open):
                    return "it covers a round that is open"
                return self._advance_generation(role, compaction.generation)
            case CompactionReverted(role=role, generation=generation):
                return self._advance_generation(role, generation)
        return ""

    def _advance_generation(self, role: str, generation: int) -> str:
        if generation <= self._generations.get(role, self._redactions):
            return "its generation is behind"
        self._generations[role] = generation
        return ""
