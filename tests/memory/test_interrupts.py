"""An interrupt in the middle of a write: wherever it comes, the next write works, and what was interrupted is whole or
not there."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from executors import SOON
from sql_stores import entry, opened, sqlite_url
from sqlalchemy import Connection

from memory import Entry, InMemoryStore, StoreBusy

pytestmark = pytest.mark.slow


def interrupted(work: Callable[[], object], at: int) -> bool:
    """Return whether *work* was still running when it came to its line number *at*, counted in all that it calls, and
    an interrupt came before that line."""
    left, interrupt = at, KeyboardInterrupt()

    def trace(frame: FrameType, happens: str, _argument: Any) -> Any:
        nonlocal left
        if happens == "line" and not _leaves_with(frame):
            left -= 1
            if left == 0:
                raise interrupt
        return trace

    faults: list[BaseException] = []

    def run() -> None:
        sys.settrace(trace)
        try:
            work()
        except BaseException as fault:
            faults.append(fault)
        finally:
            sys.settrace(None)

    # In a thread of its own: what a trace function raises within an "except" leaves that behind as what is handled.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    cause = faults[0] if faults else interrupt
    while cause is not interrupt:  # SQLAlchemy may raise another while it clears up after this one
        assert cause.__context__ is not None, cause
        cause = cause.__context__
    return left <= 0


def _leaves_with(frame: FrameType) -> bool:
    """Return whether *frame* is about to leave a ``with``: there is a line, and Python lets no signal in there."""
    steps = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 8 : 2]
    return steps.removeprefix(bytes([dis.opmap["SWAP"]])).startswith(bytes([dis.opmap["LOAD_CONST"]] * 3))


# One that comes within a weak reference's callback goes no further: Python tells of it, and goes on. Of nothing else.
@pytest.mark.filterwarnings(r"ignore:(?s).*\nKeyboardInterrupt\s:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("length", [1, 3])
def test_an_interrupt_at_any_line_of_an_append_leaves_the_store_usable(tmp_path: Path, length: int) -> None:
    """By this thread and by others; and what was appended is there as a whole or not at all."""
    with opened(sqlite_url(tmp_path, "?synchronous=normal&timeout=5")) as store:
        store.append("s", [entry("begin")], 0)
        at, end = 1, 1
        while True:
            entries = [entry(f"{at}") for _ in range(length)]
            if not interrupted(partial(store.append, "s", entries, end), at):
                break
            end = went_on(store, end, entries)
            at += 1
        assert at > 60, "it goes into the libraries: ours alone are about 25 lines; caches take some away"
        assert [one.number for one in store.read("s")] == [*range(1, end + len(entries) + 1)]


def went_on(store: Any, end: int, entries: list[Any]) -> int:
    """Append from another thread and from this one, and return where the log ends."""
    found = [one.id for one in store.read("s", after=end)]
    assert found in ([], [one.id for one in entries])
    end += len(found)
    faults: list[BaseException] = []

    def append() -> None:
        try:
            store.append("s", [entry("other")], end)
        except BaseException as fault:
            faults.append(fault)

    other = threading.Thread(target=append)
    other.start()
    other.join(SOON)
    assert not faults
    return store.append("s", [entry("this")], end + 1)


def test_an_interrupted_transaction_is_over_while_its_traceback_is_kept(tmp_path: Path) -> None:
    """The cursor that was read then is in there, and would keep the file locked."""
    with opened(sqlite_url(tmp_path, "?timeout=1")) as store:
        store.append("s", [entry("begin"), entry("more")], 0)

        def read_and_interrupt(connection: Connection) -> None:
            connection.exec_driver_sql("DELETE FROM compactor_entries WHERE number = 2")
            cursors.append(connection.exec_driver_sql("SELECT number FROM compactor_entries"))
            connection.invalidate()  # as SQLAlchemy does with one that it was interrupted in
            raise KeyboardInterrupt

        cursors: list[Any] = []
        with pytest.raises(KeyboardInterrupt):
            store._connections.change(read_and_interrupt)
        assert store.append("s", [entry("next")], 2) == 3
        assert [one.number for one in store.read("s")] == [1, 2, 3]


def test_what_a_signals_handler_writes_in_the_middle_of_a_write_is_refused_at_once(tmp_path: Path) -> None:
    """To another session of the same store, too: nobody waits for himself. The next write works."""
    refused = []
    with opened(sqlite_url(tmp_path, "?timeout=3600")) as store:
        append = store._dialect.append

        def interrupted_append(*values: Any) -> bool:
            if not refused:
                with pytest.raises(StoreBusy, match="set a flag in the handler") as caught:
                    store.append("other", [entry("x")], 0)
                refused.append(caught.value)
            return append(*values)

        store._dialect.append = interrupted_append  # type: ignore[method-assign]
        store.append("s", [entry("a")], 0)
        store.append("other", [entry("b")], 0)
        assert sorted(store.sessions()) == ["other", "s"]
    assert refused


def test_a_store_in_memory_refuses_it_as_well() -> None:
    """Entries that came between would have the same numbers."""
    store, refused = InMemoryStore(), []

    class Interrupted(list[Entry]):
        def __iter__(self) -> Iterator[Entry]:
            for write in (
                lambda: store.append("other", [entry("x")], 0),
                lambda: store.redact("s", 1),
                lambda: store.purge("s"),
            ):
                with pytest.raises(StoreBusy, match="set a flag in the handler") as caught:
                    write()
                refused.append(caught.value)
            return super().__iter__()

    store.append("s", [entry("first")], 0)
    store.append("s", Interrupted([entry("a")]), 1)
    store.append("other", [entry("b")], 0)
    assert len(refused) >= 3
    assert [one.body for one in store.read("s")] == [entry("first").body, entry("a").body]
    assert [one.body for one in store.read("other")] == [entry("b").body]
