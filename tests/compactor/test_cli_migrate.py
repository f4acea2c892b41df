"""``compactor migrate``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import cast

from command_line import refusal, run

from memory import Memory, open_store
from memory.stores.postgres import Postgres
from memory.stores.schema import MIGRATIONS
from memory.stores.sql import SqlStore


def write(store: SqlStore) -> None:
    for session in ("one", "two"):
        Memory(session, store=store).append({"role": "user", "content": "Where is my parcel?"})


def test_an_older_store_is_partitioned_once(postgres_url: str) -> None:
    """The command shows how far it is, and does nothing where all is done."""
    with closing(SqlStore(Postgres(postgres_url))) as store:
        store.open(MIGRATIONS[:4])
        write(store)
    done = run("migrate", "--store", postgres_url)
    assert (done.code, done.out) == (0, "the tables are up to date, and have partitions now\n")
    assert "100 % copied" in done.err
    assert run("migrate", "--store", postgres_url).out == "the tables are up to date\n"
    with closing(open_store(postgres_url)) as again:
        assert len(Memory("two", store=again).conversation.rounds) == 1


def test_json_says_whether_it_did_anything(postgres_url: str) -> None:
    with closing(SqlStore(Postgres(postgres_url))) as store:
        store.open(MIGRATIONS[:4])
        write(store)
    for partitioned in (True, False):
        done = run("migrate", "--store", postgres_url, "--json")
        assert (done.document, done.err) == ({"partitioned": partitioned}, "")


def test_a_file_is_brought_up_to_date(tmp_path: Path) -> None:
    """It has no partitions; a mistyped name makes no file."""
    url = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"
    with closing(cast("SqlStore", open_store(url))) as store:
        write(store)
    assert run("migrate", "--store", url, "--json").document == {"partitioned": False}
    assert "no database file" in refusal(run("migrate", "--store", url.replace("chat", "typo")))
