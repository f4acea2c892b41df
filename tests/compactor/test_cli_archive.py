"""``compactor archive``, ``archived`` and ``restore``, and what erases archived sessions."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import refusal, run
from stored_sessions import SECRET, session, url_of

from memory import Memory, open_store
from memory.transfer.archive import find_archived, restore_session

ACME = "acme\x1fa"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a session of 40 days, one of a tenant's of 50, and one of today."""
    url = url_of(tmp_path / "chats.db")
    for name, days in (("old", 40), (ACME, 50)):
        with closing(open_store(url)) as store:
            then = datetime.now(UTC) - timedelta(days=days)
            Memory(name, store=store, clock=lambda then=then: then).append({"role": "user", "content": SECRET})
    with session(url, "new", rounds=1):
        pass
    return url


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def listed(url: str) -> list[str]:
    return [one["session"] for one in run("sessions", "--store", url, "--json").document["sessions"]]


def test_old_sessions_go_to_an_archive_and_come_back(url: str, where: Path, tmp_path: Path) -> None:
    """What is written to the file is what comes back, and no text of it is shown."""
    run("export", "old", "--store", url, "--to", tmp_path / "before.jsonl")
    archive = ("archive", "--to", where, "--older-than", "30d", "--store", url)
    assert run(*archive, "--dry-run", "--json").document == {"would_archive": [ACME, "old"]}
    assert run(*archive, "--dry-run").out.splitlines()[0] == "2 sessions would be archived"
    assert not where.exists()
    assert run(*archive, "--tenant", "acme", "--json").document == {"archived": [ACME], "skipped": {}}
    assert run(*archive).out == "1 session archived\n"
    assert run(*archive).out == "0 sessions archived\n"
    assert listed(url) == ["new"]

    rows = run("archived", where, "--json").document
    assert {one["session"] for one in rows["sessions"]} == {"old", ACME}
    assert rows["unreadable"] == []
    (row,) = run("archived", where, "--tenant", "acme", "--json").document["sessions"]
    assert (row["tenant"], row["rounds"]) == ("acme", 1)
    assert (where / row["object"]).is_file()
    assert re.fullmatch(r"[0-9a-f]{64}/[0-9a-f]{64}\.jsonl\.gz", row["object"])
    assert "old" in run("archived", where).out
    assert SECRET not in run("archived", where).out

    assert run("restore", "old", "--from", where, "--store", url).out == "1 entry restored; session old\n"
    assert run("export", "old", "--store", url, "--to", tmp_path / "after.jsonl").code == 0
    assert (tmp_path / "after.jsonl").read_text() == (tmp_path / "before.jsonl").read_text()
    assert [one["session"] for one in run("archived", where, "--json").document["sessions"]] == [ACME]


def test_a_session_is_restored_under_another_name_or_as_a_copy(
    url: str, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken name is refused; a missing database is not made."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    run("archive", "--to", where, "--older-than", "30d", "--store", url)
    with session(url, "old", rounds=1):
        pass
    restore = ("restore", "old", "--from", where)
    assert "give another name" in refusal(run(*restore, "--store", url))
    done = run(*restore, "--as", "old again", "--keep", "--store", url, "--json")
    assert done.document == {"session": "old again", "entries": 1}
    assert "old" in [one["session"] for one in run("archived", where, "--json").document["sessions"]]
    assert "there is no database file" in refusal(run(*restore, "--store", url_of(where / "none.db")))
    assert "`compactor archived`" in refusal(run("restore", "nope", "--from", where, "--store", url))
    assert "needs fsspec" in refusal(run("restore", "old", "--from", "s3://b/c", "--store", url))


def test_what_stays_is_told_with_its_reason(url: str, where: Path, tmp_path: Path) -> None:
    """The exit code is 0: the next run may do it."""
    run("export", "old", "--store", url, "--to", tmp_path / "old.jsonl")
    run("archive", "--to", where, "--older-than", "30d", "--tenant", "", "--store", url)
    (row,) = run("archived", where, "--json").document["sessions"]
    (where / row["object"]).write_bytes(b"torn")
    run("import", tmp_path / "old.jsonl", "--store", url)
    done = run("archive", "--to", where, "--older-than", "30d", "--store", url)
    assert done.code == 0
    assert done.out.startswith("1 session archived\n  old was not: the archive has another session of that name")
    done = run("archive", "--to", where, "--older-than", "30d", "--store", url, "--json")
    assert done.document == {"archived": [], "skipped": {"old": "name_taken"}}
    assert "put an undamaged copy of the object back" in run("archived", where).out.replace("\n", " ")
    assert len(run("archived", where, "--json").document["unreadable"]) == 1
    wrong = run("archive", "--to", where, "--older-than", "soon", "--store", url)
    assert "whole number and a unit" in refusal(wrong)
    (where.parent / "file").write_text("no folder")
    assert "no session was lost" in refusal(
        run("archive", "--to", where.parent / "file", "--older-than", "30d", "--store", url)
    )


def test_erasing_reaches_the_archive_where_it_is_named(url: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session, a tenant, and what is old; after a question."""
    monkeypatch.chdir(where.parent)
    where = Path(where.name)  # a question clips what is longer
    run("archive", "--to", where, "--older-than", "30d", "--store", url)
    purge = ("purge", "old", "--archive", where, "--store", url)
    assert "its copy in" in run(*purge, typed=True, said="n\n").err
    assert run(*purge, "--yes", "--json").document == {"purged": None, "archived": True}
    assert "neither" in refusal(run(*purge, "--yes"))
    assert run("purge", "new", "--archive", where, "--store", url, "--yes").out.endswith("and not in the archive\n")

    with session(url, "acme\x1fb", rounds=1):
        pass
    tenant = ("purge-tenant", "acme", "--archive", where, "--store", url)
    assert f"acme and in {where}, for good?" in run(*tenant, typed=True, said="n\n", COLUMNS="500").err
    done = run(*tenant, "--yes", "--json")
    assert done.document == {"tenant": "acme", "purged": 1, "archived": 1}
    assert run(*tenant, "--yes").out == "0 sessions erased, and 0 in the archive\n"
    assert run("archived", where, "--json").document == {"sessions": [], "unreadable": []}


def test_a_session_is_not_erased_while_it_is_restored(url: str, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is erased, and the command says what to do; one that came back after the question is erased, too."""
    run("archive", "--to", where, "--older-than", "30d", "--store", url)
    purge = ("purge", "old", "--archive", where, "--store", url, "--yes", "--json")
    with closing(open_store(url)) as store:
        append, told = type(store).append, []

        def late(*call: Any) -> int:
            told.append(refusal(run(*purge)))
            return append(*call)

        with monkeypatch.context() as patched:
            patched.setattr(type(store), "append", late)
            restore_session(store, where, "old", keep=True)
        assert ["try again in" in one for one in told] == [True]
        assert find_archived(where, "old") is not None
        store.purge("old")

        def restored(*_: object, **_more: object) -> None:
            restore_session(store, where, "old")

        monkeypatch.setattr("compactor.cli.session_commands.confirm", restored)
        done = run(*purge).document
        assert (done["purged"]["rounds"], done["archived"]) == (1, False)
        assert store.get_extent("old") is None


def test_archived_sessions_expire(url: str, where: Path) -> None:
    """By age and tenant, instead of those of a store."""
    run("archive", "--to", where, "--older-than", "30d", "--store", url)
    expire = ("expire", "--archive", where, "--older-than")
    assert "nothing was erased" in refusal(run(*expire, "45d"))
    assert run(*expire, "45d", "--tenant", "", "--yes", "--json").document == {"expired": []}
    assert run(*expire, "45d", "--yes", "--json").document == {"expired": [ACME]}
    assert run(*expire, "1d", "--yes").out == "1 session erased\n"
    assert "run this once for each" in refusal(run(*expire, "1d", "--files", where, "--yes"))
    assert json.loads(run("archived", where, "--json").out)["sessions"] == []
