"""A Memory as plain JSON values, and back: a file, a column or a message of the host's can hold it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..entries import Entry
from ..errors import Conflict, MessageError, NewerVersion, SessionPurged, StoreDamaged, StoreError
from ..log.round_store import PURGED
from ..rounds import freeze
from ..stores import InMemoryStore, Store
from .validate import REMEDY, Fitting

if TYPE_CHECKING:
    from ..memory import Memory

M = TypeVar("M", bound="Memory")

#: What a state says that it is; and the newest version that this code writes and reads.
STATE_FORMAT = "context-compactor state"
STATE_VERSION = 1

PRESENT = (
    "there is a session {!r} in this store already, and it was left as it is: give another name, or purge that session"
    " first"
)
#: A body nests a little deeper than what a record in it may hold.
_BODY_DEPTH = -16


def state_of(memory: Memory) -> dict[str, Any]:
    """Return all that *memory* holds, as plain JSON values: ``json.loads(json.dumps(state))`` is the same.

    Its ``version`` is that of the format, its ``entries`` are the log as it is at this moment. Nothing in it is shared
    with the Memory. Raises ``StoreError`` where the log cannot be read.
    """
    now = memory.snapshot
    number = now.number
    entries = [value_of(entry) for entry in memory._store.read(memory.session_id, 0, number)] if number else []
    if len(entries) != number or (entries and entries[-1]["id"] != now.last):
        raise SessionPurged(PURGED.format(number))
    return {
        "format": STATE_FORMAT,
        "version": STATE_VERSION,
        "session": memory.session_id,
        "own_rounds": [one for one in (memory._own_round, *memory._taken_over) if one],  # which the next one finishes
        "entries": entries,
    }


def memory_from(
    cls: type[M], state: Mapping[str, Any], session_id: str | None = None, *, store: Store | None = None, **options: Any
) -> M:
    """Return a Memory that holds what *state* says, and behaves as the one that it was taken from.

    Its name is *session_id*, or the one in the state; *store* and *options* are those of ``Memory``. Everything is
    checked first, and written in one append: where anything is raised, nothing was written. Raises ``NewerVersion``
    for a state that a newer version made, ``StoreDamaged`` for one that cannot be read, and ``StoreError`` where the
    store has a session of that name already.
    """
    if not isinstance(state, Mapping):
        _damaged("the state", f"it is a {type(state).__name__} and not a mapping")
    own = check_head(state, "the state", STATE_FORMAT)
    session = own if session_id is None else session_id
    own_rounds, values = state.get("own_rounds", ()), state.get("entries")
    if not isinstance(own_rounds, (list, tuple)) or not all(isinstance(one, str) for one in own_rounds):
        _damaged("the state", "its own_rounds are no list of ids")
    if not isinstance(values, (list, tuple)):
        _damaged("the state", "it has no list of entries")
    fitting, entries = Fitting(), []
    for value in values:
        entry = entry_of(value, f"entry {fitting.number + 1} of the state")
        fitting.take(entry)
        entries.append(entry)
    kept = InMemoryStore() if store is None else store
    refuse_present(kept, session)
    cls(session, store=kept, **options)  # wrong options are refused before anything is written
    append_new(kept, session, entries)
    memory = cls(session, store=kept, **options)
    memory._taken_over = (*memory._taken_over, *own_rounds)
    return memory


def refuse_present(store: Store, session: str) -> None:
    """Raise ``StoreError`` where *store* has that session."""
    if next(iter(store.read(session, 0, 1)), None) is not None:
        raise StoreError(PRESENT.format(session[:40]))


def append_new(store: Store, session: str, entries: Sequence[Entry]) -> None:
    """Write a new session in one append. Raises ``StoreError`` where there is one of that name."""
    if not entries:
        return
    try:
        store.append(session, entries, 0)
    except Conflict as conflict:  # somebody was faster
        raise StoreError(PRESENT.format(session[:40])) from conflict


def check_head(head: Mapping[str, Any], where: str, format_: str) -> str:
    """Return the name of the session. Raises ``StoreDamaged`` where *head* is of another format, and
    ``NewerVersion`` where it is of a newer version."""
    if head.get("format") != format_:
        _damaged(where, f"it does not say that it is a {format_}")
    version = number_of(head, "version", where)
    if version > STATE_VERSION:
        raise NewerVersion(
            f"{where} was written by a newer version of context-compactor, and nothing was stored; upgrade to read it"
        )
    session = head.get("session")
    if version < 1 or not isinstance(session, str):
        _damaged(where, "its version or its session's name is missing")
    return session


def value_of(entry: Entry) -> dict[str, Any]:
    """Return *entry* as plain JSON values, its body as the JSON value that it is.

    Raises ``StoreDamaged`` where the body is no JSON.
    """
    try:
        body = json.loads(entry.body, parse_float=_finite, parse_constant=_finite)
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


def entry_of(value: Any, where: str) -> Entry:
    """Return the entry that *value* stands for. Raises ``StoreDamaged`` for what ``value_of`` never gives."""
    if not isinstance(value, Mapping):
        _damaged(where, "it is no mapping")
    try:
        body = json.dumps(freeze(value.get("body"), _BODY_DEPTH), separators=(",", ":"))
        created_at = datetime.fromisoformat(value.get("created_at", ""))
        if created_at.tzinfo is not None:
            created_at.astimezone(UTC)  # a store may have to do that
    except (MessageError, TypeError, ValueError, OverflowError) as error:
        _damaged(where, "its body or its time stamp cannot be read", error)
    return Entry(
        _word(value, "kind", where),
        body=body,
        id=_word(value, "id", where),
        created_at=created_at,
        number=number_of(value, "number", where),
        round=number_of(value, "round", where) if "round" in value else 0,
        version=max(1, number_of(value, "version", where)),
    )


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError("JSON has no such number")
    return number


def _word(value: Mapping[str, Any], field: str, where: str) -> str:
    found = value.get(field)
    if not isinstance(found, str) or not 1 <= len(found) <= 200 or not found.isprintable():
        _damaged(where, f"its {field} is missing or no plain text")
    return found


def number_of(value: Mapping[str, Any], field: str, where: str) -> int:
    found = value.get(field)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 53:
        _damaged(where, f"its {field} is missing or no number")
    return found


def _damaged(where: str, what: str, cause: Exception | None = None) -> NoReturn:
    raise StoreDamaged(f"{where} cannot be read: {what}; {REMEDY}") from cause
