"""Tables get partitions while others use them: nothing is lost, nothing is there twice, and it can stop at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from executors import SOON
from sql_stores import MIGRATIONS, SqlStore, bodies, dialect_of, entry, log_of, on, opened, turn
from sqlalchemy import Connection
from test_schema import ADD_ENTRY_1, ADD_SESSION_1
from test_store_contract import Complete

from compactor.testing import NotifyingStoreContract
from memory import Memory, NewerVersion, Store, StoreBusy, StoreError, open_store
from memory.stores import StoredText, partitions

ROOT = Path(__file__).resolve().parents[2]
#: The newest version without partitions.
PLAIN = MIGRATIONS[:4]

_INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename IN ('compactor_entries', 'compactor_texts') ORDER BY 1"


def rows_of(store: SqlStore) -> tuple[Any, Any]:
    return (
        on(store, "SELECT * FROM compactor_entries ORDER BY session, number"),
        on(store, "SELECT * FROM compactor_texts ORDER BY session, id"),
    )


def kinds_of(store: SqlStore) -> dict[str, str]:
    """Return the kinds of our tables: r for an ordinary one, p for one with partitions."""
    found = "SELECT relname, relkind::text FROM pg_class WHERE relname LIKE 'compactor%' AND relkind IN ('r', 'p')"
    return dict(on(store, found))


def are_partitioned(store: SqlStore) -> bool:
    """And nothing is left of the migration."""
    kinds = kinds_of(store)
    functions = on(store, "SELECT proname FROM pg_proc WHERE proname LIKE 'compactor%'")
    left = functions or [name for name in kinds if name.endswith(("_copy", "_copied"))]
    return not left and kinds["compactor_entries"] == kinds["compactor_texts"] == "p"


def fill(store: Store, *sessions: str, rounds: int = 10) -> None:
    for session in sessions:
        memory = Memory(session, store=store)
        for number in range(rounds):
            turn(memory, str(number))
        memory.index_texts()


def make_plain(url: str, *sessions: str) -> None:
    """Make a store of the newest version with plain tables, as one of version 4 that was opened again."""
    with opened(url, migrations=PLAIN) as store:
        fill(store, "first", *sessions)


@pytest.mark.slow
class TestPlainTables(Complete, NotifyingStoreContract):
    """Until the migration is run, everything is promised on the tables that there are."""

    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> None:
        self.url = postgres_url
        make_plain(self.url)
        with opened(self.url) as store:
            store.purge("first")
            assert kinds_of(store)["compactor_entries"] == "r"


@pytest.mark.slow
class TestHalfMigrated(Complete, NotifyingStoreContract):
    """While it runs too; and at its end, the tables have the rows that they had."""

    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        make_plain(self.url)
        with opened(self.url) as store:
            next(iter(store.partition()))
            store.purge("first")
            yield
            before = rows_of(store)
            assert [*store.partition()][-1] == 1
            assert are_partitioned(store)
            assert rows_of(store) == before


def test_a_new_store_has_partitions(postgres_url: str) -> None:
    """There is nothing to migrate, and each partition has sessions."""
    with opened(postgres_url) as store:
        assert are_partitioned(store)
        assert [*store.partition()] == []
        for number in range(60):
            store.append(f"s{number}", [entry()], after=0)
        used = on(store, "SELECT DISTINCT tableoid FROM compactor_entries")
        assert len(used) == partitions.PARTITIONS


def test_a_file_has_none(tmp_path: Path) -> None:
    with opened(f"sqlite:///{(tmp_path / 'chat.db').as_posix()}") as store:
        fill(store, "s")
        assert [*store.partition()] == []


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_store_of_each_older_version_is_partitioned(postgres_url: str, version: int) -> None:
    """Opening it does not do that. The older version refuses it from then on, before and after."""
    with opened(postgres_url, migrations=MIGRATIONS[:version]) as store:
        for name in ("a", "b"):
            on(store, ADD_SESSION_1, key=name, name=name)
            for number in range(1, 4):
                at = "2026-01-31T12:00:00+00:00"
                on(store, ADD_ENTRY_1, key=name, number=number, id=f"e{number}", at=at)
    for _ in range(2):
        with opened(postgres_url) as store:
            before, names = rows_of(store), on(store, _INDEXES)
            assert len(before[0]) == 6
            partitioned = [*store.partition()]
            assert rows_of(store) == before
            assert on(store, _INDEXES) == names
            assert are_partitioned(store)
            store.append("a", [entry("new")], after=3)
            assert bodies(store, "a") == ["{}", "{}", "{}", "new"]
            on(store, "DELETE FROM compactor_entries WHERE body = 'new'")
        with closing(SqlStore(dialect_of(postgres_url))) as older, pytest.raises(NewerVersion, match="upgrade to open"):
            older.open(MIGRATIONS[:version])
    assert partitioned == []


def test_the_owner_and_the_grants_stay(postgres_url: str) -> None:
    """A host may have another role than who migrates."""
    make_plain(postgres_url)
    owned = "SELECT relowner::regrole::text, relacl::text FROM pg_class WHERE relname = 'compactor_entries'"
    with opened(postgres_url) as store:
        on(store, 'DROP ROLE IF EXISTS "a role"')
        on(store, 'CREATE ROLE "a role"')
        on(store, 'GRANT SELECT, INSERT ON compactor_entries TO "a role"')
        on(store, "GRANT SELECT ON compactor_entries TO PUBLIC")
        on(store, 'ALTER TABLE compactor_entries OWNER TO "a role"')
        ((owner, before),) = on(store, owned)
        assert [*store.partition()]
        ((same_owner, after),) = on(store, owned)
        assert same_owner == owner == '"a role"'
        assert sorted(after.strip("{}").split(",")) == sorted(before.strip("{}").split(","))


class Writer(threading.Thread):
    """Writes to sessions of its own until told to stop: appends, redactions, searches and purges."""

    def __init__(self, url: str, number: int, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url, self._done = url, done
        self._rng = random.Random(number)
        self.names = [f"w{number}.{place}" for place in range(4)]
        #: What is to be there at the end: bodies by session.
        self.bodies: dict[str, list[str]] = {name: [] for name in self.names}
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(open_store(self._url)) as store:
                while not self._done.is_set():
                    self._act(store, self._rng.choice(self.names))
        except BaseException as fault:
            self.fault = fault

    def _act(self, store: Store, name: str) -> None:
        there = self.bodies[name]
        match self._rng.choices(["append", "redact", "texts", "purge"], [12, 3, 2, 1])[0]:
            case "append":
                new = [f'"{self._rng.random()}"' for _ in range(self._rng.choice([1, 1, 3, 30]))]
                store.append(name, [entry(body) for body in new], after=len(there))
                there += new
            case "redact" if there:
                place = self._rng.randrange(len(there))
                store.redact(name, place + 1, '"redacted"')
                there[place] = '"redacted"'
            case "texts":
                first = self._rng.randint(1, store.get_last_indexed_round(name) + 1)
                store.save_texts(name, first, first, [StoredText(first, 0, "", "", f"text {self._rng.random()}")])
            case "purge":
                store.purge(name)
                there.clear()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_writers_go_on_while_the_tables_are_partitioned(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither loses anything, sees anything twice, or gets an error; what they erase does not come back."""
    monkeypatch.setattr(partitions, "BATCH", 20)
    make_plain(postgres_url, *(f"old{number}" for number in range(12)))
    done = threading.Event()
    with opened(postgres_url) as store:
        old = {name: bodies(store, name) for name in store.sessions()}
        writers = [Writer(postgres_url, number, done) for number in range(3)]
        for writer in writers:  # so that there is something of theirs to copy
            for name in writer.names:
                for _ in range(30):
                    writer._act(store, name)
            writer.start()
        shares = [*store.partition()]
        done.set()
        for writer in writers:
            writer.join(SOON)
            assert writer.fault is None
        assert are_partitioned(store)
        assert len(shares) > 20
        assert shares == sorted(shares)
        expected = old | {name: found for writer in writers for name, found in writer.bodies.items()}
        for name, found in expected.items():
            assert bodies(store, name) == found
        for name in old:
            log_of(store, name)
        assert len(store.find_texts("old3", ["answer"], "").texts) == 10
        for name in expected.keys() - old.keys():  # one text a round
            assert len(store.find_texts(name, ["text"], "").texts) == store.get_last_indexed_round(name)
        assert on(store, "SELECT count(*) FROM compactor_entries")[0][0] == sum(map(len, expected.values()))


MIGRATE = """
    import sys
    from memory import open_store
    from memory.stores import partitions

    partitions.BATCH = 20
    for share in open_store(sys.argv[1]).partition():
        print(share, flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_migration_that_is_killed_goes_on_where_it_was(postgres_url: str) -> None:
    """It may be killed after any batch, with writes in between."""
    make_plain(postgres_url, *(f"s{number}" for number in range(5)))
    shares = []
    with opened(postgres_url) as store:
        for kill in range(100):
            with subprocess.Popen(
                [sys.executable, "-c", dedent(MIGRATE), postgres_url],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as other:
                assert other.stdin is not None
                assert other.stdout is not None
                for _ in range(1 + kill % 7):
                    if share := other.stdout.readline():
                        shares.append(float(share))
                        other.stdin.write("\n")
                        other.stdin.flush()
                other.kill()  # in the middle of a batch, or between two
            if are_partitioned(store):
                break
            end = len(bodies(store, "s1"))
            store.append("s1", [entry(f'"{kill}"')], after=end)
            store.redact("s2", kill + 1, '"redacted"')
        assert kill > 1
        assert shares == sorted(shares)
        assert bodies(store, "s1")[-kill:] == [f'"{number}"' for number in range(kill)]
        assert bodies(store, "s2")[:kill] == ['"redacted"'] * kill
        log_of(store, "s4")
        assert len(store.find_texts("s2", ["answer"], "").texts) == 10


def test_two_that_migrate_at_once_share_the_work(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copies what the other has not."""
    monkeypatch.setattr(partitions, "BATCH", 10)
    make_plain(postgres_url, "s")
    with opened(postgres_url) as store, opened(postgres_url) as other:
        before = rows_of(store)
        first, second = iter(store.partition()), iter(other.partition())
        assert next(first) <= next(second) < 1
        assert [*first][-1] == 1
        assert [*second][-1] == 1
        assert are_partitioned(store)
        assert rows_of(store) == before


def test_a_long_reader_is_not_waited_for_at_the_others_cost(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup holds off the end of the migration, and no host; the migration can be run again after it."""
    make_plain(postgres_url)
    monkeypatch.setattr(partitions, "PAUSE", 0.0)
    monkeypatch.setattr(partitions, "ATTEMPTS", 2)
    with opened(postgres_url) as store, opened(postgres_url) as reader:
        before = rows_of(store)

        def read(connection: Connection) -> None:
            connection.exec_driver_sql("SELECT count(*) FROM compactor_entries")
            with pytest.raises(StoreBusy):
                list(store.partition())
            assert not are_partitioned(store)
            assert rows_of(store) == before

        reader._connections.change(read)
        assert [*store.partition()][-1] == 1
        assert rows_of(store) == before


def test_a_newer_version_begins_again(postgres_url: str) -> None:
    """It may add to the tables what their copies lack; who copies meanwhile notices."""
    make_plain(postgres_url, "s")
    with ExitStack() as stack:
        older = stack.enter_context(opened(postgres_url))
        copying = iter(older.partition())
        next(copying)

        def add(connection: Connection, _: Any) -> None:
            connection.exec_driver_sql("ALTER TABLE compactor_entries ADD COLUMN colour TEXT DEFAULT 'red'")

        store = stack.enter_context(opened(postgres_url, migrations=(*MIGRATIONS, add)))
        assert {name for name in kinds_of(store) if "cop" in name} == set()
        with pytest.raises(StoreError, match="run this again"):
            list(copying)
        before = rows_of(store)
        assert [*store.partition()][-1] == 1
        assert rows_of(store) == before
        assert before[0][0].colour == "red"
