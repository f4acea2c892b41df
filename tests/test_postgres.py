"""The server that tests start is theirs alone, and survives what they do to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres import Postgres

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'context-compactor[postgresql]'")


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return list(connection.execute(statement).fetchall())


@pytest.mark.slow
def test_a_server_that_crashed_is_back_where_it_was(own_postgres: Postgres) -> None:
    """At the same URL, with all that it had acknowledged; and it listens on loopback alone."""
    url = own_postgres.url()
    own_postgres.execute("CREATE TABLE kept AS SELECT 42 AS number")
    own_postgres.crash()
    with pytest.raises(psycopg.OperationalError):
        rows(url, "SELECT 1")
    own_postgres.start()
    own_postgres.restart()
    assert rows(url, "SELECT number FROM kept") == [(42,)]
    assert rows(url, "SHOW listen_addresses") == [("127.0.0.1",)]
    assert rows(url, "SHOW fsync") == [("on",)]


@pytest.mark.slow
def test_a_database_is_gone_after_its_test(postgres_server: Postgres) -> None:
    """Whoever is still connected; and each is another one."""
    with postgres_server.database() as url, postgres_server.database() as other:
        assert url != other
        left_open = psycopg.connect(url.replace("+psycopg", ""))
    left_open.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        rows(url, "SELECT 1")


@pytest.mark.slow
def test_a_removed_server_leaves_nothing_behind(own_postgres: Postgres) -> None:
    """No process and no folder, also where nobody stopped it; to remove it twice does no harm."""
    ((folder,),) = rows(own_postgres.url(), "SHOW data_directory")
    assert Path(str(folder)).name == "data"
    own_postgres.remove()
    own_postgres.remove()
    assert not Path(str(folder)).parent.exists()
    with pytest.raises(psycopg.OperationalError):
        rows(own_postgres.url(), "SELECT 1")
