"""Sample entries and small helpers for the tests of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from ...entries import Entry, RoundFinished, RoundOpened
from ...rounds import Post
from ..base import Store, StoredText

STAMP = datetime(2026, 1, 31, 23, 59, 59, 123_457, tzinfo=UTC)
#: Difficult names: NUL, half a surrogate pair, statements, patterns, paths, two spellings of one letter.
NAMES = (
    "",
    " ",
    "a",
    "A",
    "a ",
    "b",
    "\0",
    "a\0b",
    "\ud800",
    "\ud83d\0\ude00",
    "\U0001f600",
    "\uffff",
    "\u00e9",
    "e\u0301",
    "日本",
    "%",
    "_",
    "\\",
    "../{}",
    "'; DROP TABLE entries; --",
    '"',
    ":name",
    "$1",
    "\n",
    "x" * 300,
)


def make_entry(name: str = "r", *, round: int = 0) -> Entry:  # noqa: A002  (the field's name)
    return Entry.of(RoundFinished(round_id=name), round=round)


def make_round(name: str, number: int, query: str = "q") -> Entry:
    return Entry.of(RoundOpened(round_id=name, user_query=query, created_at=STAMP), round=number)


def make_post(message: str) -> Post:
    return Post(send_from="a", send_to="b", message=message)


def make_text(round_: int, text: str) -> StoredText:
    return StoredText(round_, 1, "a", "b", text)


def list_fields(entry: Entry) -> tuple[Any, ...]:
    """Return every stored field of an entry, the body last."""
    return (entry.id, entry.kind, entry.created_at, entry.round, entry.version, entry.body)


def read_numbers(store: Store, session: str = "s", after: int = 0, limit: int | None = None) -> list[int]:
    return [found.number for found in store.read(session, after, limit)]


@contextmanager
def expect_error(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def run_together(*works: Callable[[], None]) -> None:
    """Run each in its own thread, and raise the first exception of any."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


class Unwritable(Entry):
    """An entry that fails to serialize."""

    __slots__ = ()

    @property
    def body(self) -> str:
        raise RuntimeError("this entry cannot be written; it is there to be refused")
