"""A session goes into a file of lines and comes back the same, or not at all."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from histories import eventful, everything
from hypothesis import settings
from test_overlays_machine import ROLES, Overlays, overlays

from memory import ContextError, Entry, InMemoryStore, Memory, NewerVersion, Store, StoreDamaged, StoreError, open_store
from memory.entries import BODY_VERSION
from memory.transfer.jsonl import JSONL_FORMAT, Imported, export_session, import_session


def lines_of(store: Store, session: str = "s") -> list[str]:
    stream = io.StringIO()
    count = export_session(store, session, stream)
    lines = stream.getvalue().splitlines(keepends=True)
    assert len(lines) == count + 1
    return lines


STORE = InMemoryStore()
eventful(STORE)
LINES = lines_of(STORE)


def changed(line: int, **fields: object) -> list[str]:
    value = json.loads(LINES[line - 1]) | fields
    return [*LINES[: line - 1], json.dumps(value) + "\n", *LINES[line:]]


def test_a_session_comes_back_as_it_was() -> None:
    """Through a file, under its name or another; entries keep their ids and stamps."""
    store = InMemoryStore()
    assert import_session(store, io.StringIO("".join(LINES))) == Imported("s", len(LINES) - 1)
    assert import_session(store, LINES, "other") == ("other", len(LINES) - 1)
    for name in ("s", "other"):
        assert everything(Memory(name, store=store)) == everything(Memory("s", store=STORE))
        assert list(store.read(name)) == list(STORE.read("s"))
        assert [one.created_at for one in store.read(name)] == [one.created_at for one in STORE.read("s")]
        assert [one.round for one in store.read(name) if one.kind == "round opened"] == [1, 2, 3, 4, 5, 6]


def test_a_session_goes_from_database_to_database(tmp_path: Path) -> None:
    """The files are the same, whichever store they are of."""
    with closing(open_store(f"sqlite:///{tmp_path / 'chat.db'}")) as store:
        assert import_session(store, LINES, "other") == ("other", len(LINES) - 1)
        assert everything(Memory("other", store=store)) == everything(Memory("s", store=STORE))
        with pytest.raises(StoreError, match="already"):
            import_session(store, LINES, "other")
        again = InMemoryStore()
        import_session(again, lines_of(store, "other"), "s")
        assert lines_of(again)[1:] == lines_of(store, "other")[1:]


def test_a_file_is_ascii_and_says_what_it_holds() -> None:
    """One JSON object a line, whatever the texts: the first tells the format, its version, the session and how many."""
    assert "".join(LINES).isascii()
    head = {"format": JSONL_FORMAT, "version": 1, "session": "s", "entries": len(LINES) - 1}
    assert json.loads(LINES[0]) == head
    entry = json.loads(LINES[-1])
    assert entry.keys() == {"id", "kind", "number", "round", "created_at", "version", "body"}
    assert entry["number"] == len(LINES) - 1


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_on_disk_comes_back(tmp_path: Path, newline: str) -> None:
    """With the line ends of any system, and with blank lines."""
    path = tmp_path / "s.jsonl"
    path.write_text("".join([*LINES, "\n", "\n"]), encoding="utf-8", newline=newline)
    with path.open(encoding="utf-8") as stream:
        assert import_session(InMemoryStore(), stream).entries == len(LINES) - 1


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9])
def test_logs_of_any_length_are_whole(length: int) -> None:
    """How long it is, is found by a few looks."""
    store = InMemoryStore()
    store.append("s", [Entry("starred", body="{}") for _ in range(length)], 0)
    assert import_session(InMemoryStore(), lines_of(store)) == ("s", length)


def test_what_is_written_meanwhile_is_not_in_the_file() -> None:
    """It holds as many entries as its first line says."""

    class Growing(io.StringIO):
        def write(self, text: str) -> int:
            store.append("s", [Entry("starred", body="{}")], len(list(store.read("s"))))
            return super().write(text)

    store = InMemoryStore()
    store.append("s", [Entry("starred", body="{}")], 0)
    stream = Growing()
    assert export_session(store, "s", stream) == 1
    assert len(stream.getvalue().splitlines()) == 2


def test_a_session_that_is_not_there_is_not_exported() -> None:
    """Nor one that is purged meanwhile: the file that is left is refused."""

    class Purging(io.StringIO):
        def write(self, text: str) -> int:
            store.purge("s")
            return super().write(text)

    store = InMemoryStore()
    with pytest.raises(StoreError, match="no session 's'"):
        export_session(store, "s", io.StringIO())
    store.append("s", [Entry("starred", body="{}")], 0)
    stream = Purging()
    with pytest.raises(StoreError, match="purged"):
        export_session(store, "s", stream)
    with pytest.raises(StoreDamaged, match="cut off"):
        import_session(store, io.StringIO(stream.getvalue()))


def test_a_session_that_is_there_is_left_alone() -> None:
    """The remedy is another name."""
    before = list(STORE.read("s"))
    with pytest.raises(StoreError, match=r"'s' in this store already.* another name"):
        import_session(STORE, LINES)
    assert list(STORE.read("s")) == before


@pytest.mark.parametrize("cut", range(len(LINES)))
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    """Between two lines or within one, and nothing is written."""
    for lines in (LINES[:cut], [*LINES[:cut], LINES[cut][:-9]]):
        store = InMemoryStore()
        with pytest.raises(StoreDamaged, match=r"cut off|line \d+ is not whole"):
            import_session(store, lines)
        assert store.sessions() == []


@pytest.mark.parametrize(
    ("lines", "error", "match"),
    [
        (["[]\n"], StoreDamaged, "line 1 is not the head"),
        (["\x89PNG\n"], StoreDamaged, "line 1 is not whole, or no JSON"),
        (['{"messages": []}\n'], StoreDamaged, "line 1 cannot be read: it does not say that it is"),
        (["[" * 100_000 + "\n"], StoreDamaged, "line 1 is not whole"),
        (["1" * 5_000 + "\n"], StoreDamaged, "line 1 is not whole"),
        (changed(1, entries="many"), StoreDamaged, "line 1 cannot be read: its entries"),
        (changed(1, entries=3), StoreDamaged, "line 5 is one more than line 1 says"),
        (changed(1, version=2), NewerVersion, "line 1 .*newer version"),
        (changed(4, body=[]), StoreDamaged, r"line 4: entry 3 \(post added\) .*cannot be read"),
        (changed(4, number=7), StoreDamaged, "line 4: entry 3 is missing"),
        (changed(4, version=BODY_VERSION + 1), NewerVersion, "entry 3 .*newer version"),
        (changed(4, created_at=0), StoreDamaged, "line 4 cannot be read: its body or its time stamp"),
        ([*LINES[:5], *LINES[6:]], StoreDamaged, "line 6: entry 5 is missing"),
        ([*LINES[:6], LINES[5], *LINES[6:]], StoreDamaged, "line 7: entry 6 is missing"),
    ],
    ids=range(14),
)
def test_a_damaged_file_is_refused_with_its_line(lines: list[str], error: type[ContextError], match: str) -> None:
    """And with the remedy; it shows nothing of what was said, and nothing is written."""
    store = InMemoryStore()
    with pytest.raises(error, match=match) as raised:
        import_session(store, lines)
    assert store.sessions() == []
    assert "half" not in str(raised.value)
    assert any(word in str(raised.value) for word in ("take", "export", "upgrade"))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """By the same type of error as any other damage."""
    path = tmp_path / "s.jsonl"
    path.write_bytes("".join(LINES[:3]).encode() + b"\xff\xfe\n")
    with path.open(encoding="utf-8") as stream, pytest.raises(StoreDamaged, match="no text"):
        import_session(InMemoryStore(), stream)


class Streaming(InMemoryStore):
    """Takes entries one by one, as a database does, and keeps none of them."""

    taken = 0

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        assert (entries[-1].number, entries[1:3][0].number, len(entries)) == (len(entries), 2, len(entries))
        for number, entry in enumerate(entries, 1):
            assert (entry.number, entry.round) == (number, min(number, 1))
            assert entry.record is not None
            self.taken += 1
        return self.taken


def test_a_long_file_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries are kept aside until all are checked, and reach the store in one append."""
    monkeypatch.setattr("memory.transfer.jsonl.MAX_IN_MEMORY", 100_000)
    message, count, store = "m" * 100_000, 60, Streaming()
    first = json.loads(LINES[2]) | {"number": 1}

    def lines() -> Iterator[str]:
        yield json.dumps({"format": JSONL_FORMAT, "version": 1, "session": "s", "entries": count})
        yield json.dumps(first)
        for number in range(2, count + 1):
            post = {"id": f"p{number}", "send_from": "Planner", "send_to": "User", "message": message}
            body = {"round_id": "round-1", "post": post | {"number": number - 1}}
            yield json.dumps(first | {"id": f"e{number}", "kind": "post added", "number": number, "body": body})

    assert peak(lambda: import_session(store, lines())) < 3_000_000
    assert store.taken == count


def peak(work: Callable[[], object]) -> int:
    """Return how many bytes *work* held at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Copies(Overlays):
    """The machine of overlays: at its end, copies of what came of it are made in every way."""

    def teardown(self) -> None:
        end = len(list(self.store.read("s")))
        memory = next((one for one in self.memories if one.snapshot.number == end), None)
        if memory is None or not end:
            return
        known = overlays(memory)
        assert overlays(Memory.from_state_dict(memory.state_dict())) == known
        elsewhere, stream = InMemoryStore(), io.StringIO()
        export_session(self.store, "s", stream)
        stream.seek(0)
        import_session(elsewhere, stream)
        assert overlays(Memory("s", store=elsewhere)) == known
        for at_round in range(1, memory.snapshot.total + 1):
            self.agrees(memory, memory.fork(at_round, store=InMemoryStore()), at_round)
        if memory.snapshot.total:
            assert overlays(memory.fork(memory.snapshot.total)) == known

    def agrees(self, memory: Memory, fork: Memory, at_round: int) -> None:
        """What *fork* knows is what *memory* knows of those rounds."""
        assert list(fork.conversation.rounds) == list(memory.conversation.rounds[:at_round])
        assert fork.pins() == tuple(pin for pin in memory.pins() if int(pin[1:].split(".")[0]) <= at_round)
        for role in ROLES:
            ends = [end for _, end in memory.snapshot.publications.get(role, ()) if end <= at_round]
            assert [end for _, end in fork.snapshot.publications.get(role, ())] == ends
            assert fork.journal(role).read().generation <= memory.journal(role).read().generation
            before, after = memory.snapshot, fork.snapshot
            for round_ in fork.conversation.rounds:
                left, live = after.list_reductions(role, round_.id), before.list_reductions(role, round_.id)
                assert set(left) <= set(live)
                if round_.number < at_round - 1 and round_.state == "finished":
                    asked_later = any(one.state != "failed" for one in fork.conversation.rounds[round_.number :])
                    assert left == live or not asked_later


TestCopies = Copies.TestCase
TestCopies.pytestmark = [pytest.mark.slow]
TestCopies.settings = settings(deadline=None, max_examples=15, stateful_step_count=25)
