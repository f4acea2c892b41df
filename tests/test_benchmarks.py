"""The benchmarks of stores measure what they say, at sizes that take no time."""

from __future__ import annotations

import asyncio
import importlib
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import postgres
import pytest

import compactor
from benchmarks import aims, capacity, capacity_plan, durable_append, opening, own_compaction
from benchmarks.long_session import ROLE, build, entries_of
from benchmarks.sessions import Plain
from compactor import ContextCompactor, compose
from memory import Memory, open_store


def sqlite_in(folder: Path) -> str:
    return f"sqlite:///{(folder / 'long.db').as_posix()}"


def rows_of(printed: str) -> list[list[str]]:
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in Path(aims.__file__).parent.glob("*.py")))
def test_each_benchmark_can_be_started(name: str) -> None:
    """A name that one of them takes from another is not renamed behind its back."""
    assert importlib.import_module(f"benchmarks.{name}").__doc__


def test_a_long_session_is_one_that_a_chat_and_a_compactor_could_have_left(tmp_path: Path) -> None:
    """It opens, by the log and by what is kept of it; its compactions cover it, and it goes on."""
    store = open_store(sqlite_in(tmp_path))
    assert build(store, "s", 40) == 40 * 5 + 4 * 2
    memory, whole = Memory("s", store=store), Memory("s", store=Plain(store))
    rounds = list(memory.conversation.rounds)
    assert rounds == list(whole.conversation.rounds)
    assert [round_.number for round_ in rounds if round_.closed and len(round_.post_list) == 3] == [*range(1, 41)]
    compactor = ContextCompactor.for_role(memory, ROLE)
    assert [(one.happened, one.rounds) for one in compactor.history()] == [
        ("published", (1, end)) for end in (8, 16, 24, 32)
    ]
    assert len(compose(memory, ROLE, budget=100_000).messages) == 1 + 8 * 4
    opening.add_round(memory)
    assert compactor.compact_now(timeout=60)
    store.close()


def test_the_same_session_is_built_each_time_but_for_its_ids() -> None:
    """So what is measured today can be compared with tomorrow's."""

    def bodies() -> list[str]:
        return [re.sub(r"[0-9a-f]{32}", "", entry.body) for entry in entries_of(20)]

    first, second = bodies(), bodies()
    assert len(first) == 20 * 5 + 2 * 2
    assert [re.sub(r'"created_at":"[^"]*"', "", body) for body in first] == [
        re.sub(r'"created_at":"[^"]*"', "", body) for body in second
    ]


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_copied_sessions_are_ones_that_a_store_could_have_made(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """They are listed, open with their compaction, go on, and are due as the benchmark says."""
    url = request.getfixturevalue("postgres_url") if name == "postgresql" else sqlite_in(tmp_path)
    filled = capacity.build(url, 200)
    store = filled.store
    assert [row.name for row in store.list_sessions(limit=1_000)] == [capacity.name_of(n) for n in range(200)]
    assert len(store.list_sessions("tenant-7", order="activity")) == 2
    memory = Memory(capacity.name_of(117), store=store)
    rounds, compaction = memory.get_role_rounds(capacity.ROLE)
    assert len(rounds) == capacity.ROUNDS
    assert compaction is not None
    memory.append({"role": "user", "content": "And now?"})
    assert len(Memory(capacity.name_of(117), store=store).conversation.rounds) == capacity.ROUNDS + 1
    assert len(Memory(capacity.name_of(116), store=store).conversation.rounds) == capacity.ROUNDS
    assert len(store.list_due(datetime.now(UTC), 1_000)) == 199  # a session that was just written to has time
    assert filled.bytes > 0
    store.close()


@pytest.mark.slow
def test_each_row_of_capacity_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "FEW", 100)
    capacity.main(["--sessions", "1000", "2000", "--times", "2"])
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == 3 + 2 * (len(capacity.ACTS) + 5)
    assert {row[0] for row in rows} == {"100 sessions", "1,000 sessions", "2,000 sessions"}


@pytest.mark.slow
def test_partitions_are_measured_beside_plain_tables(
    postgres_server: postgres.Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the migration between the two."""
    capacity.main(["--postgres", "--plain", "--sessions", "200", "--times", "2"])
    rows = rows_of(capsys.readouterr().out)
    assert len(rows) == len(capacity.ACTS) + 5 + 3
    assert rows[-3][1].startswith("partitioning them")


def test_the_first_bottleneck_is_where_a_line_grows() -> None:
    """The simulation agrees with the arithmetic: with a tenth more than the first bottleneck can do, only that one has
    a line that grows with time."""
    step = capacity_plan.Step
    plan = capacity_plan.Plan(
        a_round=(step("database", 0.001),),
        opening=(step("database", 0.001),),
        compaction=(step("workers", 0.02), step("model", 0.4)),
        opened=0.5,
        every=4,
        places={"model": 10, "workers": 1, "database": 1},
    )
    assert {name: round(plan.rounds(name)) for name in plan.places} == {"model": 100, "workers": 200, "database": 667}
    assert plan.first == "model"
    calm = plan.simulate(0.8 * plan.rounds("model"), 60).parts
    assert all(len(part.waiting) < 10 for part in calm.values())
    assert calm["model"].busy / 60 / 10 == pytest.approx(0.8, abs=0.05)
    full = plan.simulate(1.1 * plan.rounds("model"), 60).parts
    assert len(full["model"].waiting) > 50
    assert all(len(full[name].waiting) < 10 for name in ("workers", "database"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_appends_are_timed_beside_bare_ones(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four rows for each database and size, with ratios to the bare insert; nothing is left in a database."""
    arguments = ["--rounds", "12", "--times", "3", "--sizes", "300", "4000", "--folder", str(tmp_path)]
    if name == "postgresql":
        url = request.getfixturevalue("postgres_url")
        durable_append.main([*arguments, "--store", url])
        store = open_store(url)
        assert store.sessions() == []
        store.close()
    else:
        durable_append.main(arguments)
    rows = rows_of(capsys.readouterr().out)
    databases = ["PostgreSQL"] if name == "postgresql" else ["SQLite, full", "SQLite, normal"]
    assert [row[:3] for row in rows] == [
        [database, size, what]
        for database in databases
        for size in ("300", "4,000")
        for what in ("bare insert", "`store.append`", "`add_post`", "`append`, a user's message")
    ]
    assert all(float(row[5]) > 0 for row in rows)
    assert {row[5] for row in rows[::4]} == {"1.00"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_each_row_of_opening_is_measured(tmp_path: Path) -> None:
    """On a session that has a checkpoint after the first; and what each does is done in the long session."""
    store = open_store(sqlite_in(tmp_path))
    build(store, opening.SMALL, 20)
    build(store, opening.SESSION, 300)
    for row in opening.ROWS:
        found = opening.measure(row, store, trace=False)
        assert found["seconds"] > 0
        assert found["rounds"] in (300, 301), row
        assert store.get_checkpoint(opening.SESSION) is not None
    assert Memory(opening.SESSION, store=store).snapshot.total == 301
    assert store.get_last_indexed_round(opening.SESSION) >= 300
    store.close()


@pytest.mark.slow
def test_a_row_of_opening_is_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is given the store, and tells what it took; a session that is too short is not taken for the long one."""
    store = open_store(sqlite_in(tmp_path))
    build(store, opening.SMALL, 20)
    build(store, opening.SESSION, 30)
    store.close()
    found = opening.in_a_process(opening.OPEN, sqlite_in(tmp_path), trace=True)
    assert (found["rounds"], 0 < found["traced"] < 10, found["seconds"] > 0) == (30, True, True)
    monkeypatch.setattr(opening, "in_a_process", lambda _row, _url, trace: found)
    arguments = ["--store", sqlite_in(tmp_path), "--rows", opening.OPEN]
    opening.main([*arguments, "--rounds", "30"])
    ((row, milliseconds, _, traced),) = rows_of(capsys.readouterr().out)
    assert (row, milliseconds) == (opening.OPEN, f"{found['seconds'] * 1_000:,.1f}")
    assert traced == f"{found['traced']:.1f}"
    with pytest.raises(AssertionError, match="there is a session of 30"):
        opening.main([*arguments, "--rounds", "31"])


@pytest.mark.slow
def test_figures_of_aims_come_from_a_process_of_each_checkout() -> None:
    """With that checkout's packages; what it cannot measure is left out."""
    code = "import compactor, pathlib; figures = [len(compactor.__all__), 1.5]"

    assert aims.run(code, aims.ROOT) == [len(compactor.__all__), 1.5]
    assert aims.run("import nothing_of_ours", aims.ROOT) == []


def test_the_table_of_aims_shows_medians_of_each_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A cell that nothing was measured for stays empty."""
    taken = iter([9.0, 1.0, 2.0])
    row = "a turn behind 30 ms of pause, p99"
    (tmp_path / "compactor").mkdir()
    monkeypatch.setattr(aims, "figures_of", lambda tree: [(row, next(taken))] if tree == aims.ROOT else [])

    aims.main(["--times", "3", "--tree", str(tmp_path)])

    printed = {cells[0]: cells[1:] for cells in rows_of(capsys.readouterr().out)}
    assert printed.pop(row) == ["< 1 ms of CPU", "2", ""]
    assert all(cells[1:] == ["", ""] for cells in printed.values())
    for code in aims.WARM:
        compile(code, "aims", "exec")
    with pytest.raises(SystemExit):
        aims.main(["--tree", str(tmp_path / "docs")])
    assert "is no checkout" in capsys.readouterr().err


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_counts_as_waited_for_where_its_turn_goes_on_only_then(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever thread asks, so that the adapter's side could be other than 0."""
    monkeypatch.setattr(own_compaction, "PATIENCE", 0.01 if waits else 60.0)
    turns = own_compaction.Turns()
    asking = threading.Thread(target=turns.call)

    class Host:
        async def say(self, _session: str, text: str) -> str:
            asking.start()
            if waits:
                await asyncio.to_thread(asking.join)
            return text

    host: Any = Host()
    assert "Question 007" in asyncio.run(turns.say(host, 7))
    asking.join()
    assert turns.waited == waits
