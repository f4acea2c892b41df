"""Limits that processes share, tried with processes: never exceeded, and free again when one is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from scene import CONFIG, ROLE, SOON, add_round, end_of

from compactor import ContextCompactor, Limit, SharedLimits, SummaryRequest
from compactor.cost import admission, shared_limits
from compactor.testing import ScriptedSummarizer
from memory import Memory, open_store

TESTS = Path(__file__).resolve().parents[2]
#: A killed process's permit is free after so many seconds: its lease, and a look.
FREE_AFTER = admission.LEASE_SECONDS + shared_limits.RENEW_SECONDS
#: Maximum seconds of what two processes do, beside other tests.
PATIENCE = 100
SETUP = """
    import os, sys, threading, time
    from pathlib import Path
    from compactor import ContextCompactor, Limit, Memory, SharedLimits, open_store
    from compactor.testing import summarize_by_terms
    from scene import CONFIG, ROLE, add_round
    url, folder, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    store = open_store(url)
    limits = SharedLimits(store, [Limit(max_concurrency=most)])
    def compactor_of(name, model):
        memory = Memory(name, store=store)
        for _ in range(10):
            add_round(memory)
        return ContextCompactor.for_role(memory, ROLE, CONFIG, model, limits=limits)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for child in begun:
        child.kill()
        child.communicate()


def begin(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", dedent(SETUP) + dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_calls_of_two_processes_never_exceed_the_limit(
    url: str, tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    """And all their sessions are compacted."""
    open_store(url).close()
    for number in range(2):
        code = f"""
            def model(request):
                here = folder / f"{{os.getpid()}} {{threading.get_ident()}}"
                here.touch()
                os.write(1, b"%d\\n" % len([*folder.glob("* *")]))  # in one piece: threads print at once
                time.sleep(0.03)
                here.unlink()
                return summarize_by_terms(request)
            compactors = [compactor_of(f"{number} {{n}}", model) for n in range(8)]
            for compactor in compactors:
                compactor.start()
            for compactor in compactors:
                assert compactor.wait_idle({PATIENCE})
            assert all(compactor.get_compaction().end_index == 7 for compactor in compactors)
            for compactor in compactors:
                compactor.stop()
            print("done", limits.status().in_use <= 3)
        """
        children.append(begin(code, url, tmp_path, 3))
    said = [child.communicate(timeout=PATIENCE) for child in children]
    assert all(not errors for _, errors in said), said
    *counts, end = said[0][0].splitlines()
    assert end == "done True"
    assert len(counts) == 8
    most = max(int(count) for out, _ in said for count in out.splitlines()[:-1])
    assert most <= 3


@pytest.mark.slow
def test_the_permit_of_a_killed_process_is_free_within_seconds(
    url: str, tmp_path: Path, children: list[subprocess.Popen[str]]
) -> None:
    """A session of another process is then compacted."""
    with closing(open_store(url)) as store:
        code = """
            def model(request):
                print("in the call", flush=True)
                time.sleep(1_000)
            compactor_of("killed", model).start()
            time.sleep(1_000)
        """
        child = begin(code, url, tmp_path, 1)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "in the call\n"
        limits = SharedLimits(store, [Limit(max_concurrency=1)])
        assert limits.status().in_use == 1
        memory = Memory("waits", store=store)
        for _ in range(10):
            add_round(memory)
        with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), limits=limits) as compactor:
            assert compactor.wait_idle(0) is False
            child.kill()
            killed_at = time.monotonic()
            assert compactor.compact_now(SOON) is not None
            assert end_of(compactor) == 7
            assert time.monotonic() - killed_at < FREE_AFTER + 5


@pytest.mark.slow
def test_a_process_hears_by_a_notice_that_its_turn_has_come(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: it does not look."""

    class Elsewhere(dict[str, Any]):
        """No limits are of this process."""

        def __setitem__(self, name: str, limits: Any) -> None:
            pass

    monkeypatch.setattr(shared_limits, "_LIMITS_BY_HOLDER", Elsewhere())
    monkeypatch.setattr(shared_limits, "RENEW_SECONDS", 10_000.0)
    monkeypatch.setattr(admission, "LEASE_SECONDS", 10_000.0)
    listens = threading.Event()
    with closing(open_store(postgres_url)) as store, closing(open_store(postgres_url)) as other:
        one, two = (SharedLimits(place, [Limit(max_concurrency=1)]) for place in (store, other))
        woken = threading.Event()
        holds = one.make_ticket(ScriptedSummarizer(), lambda: True).take_permit("s", ROLE)
        holds.reserve(SummaryRequest(), len)
        waits = two.make_ticket(ScriptedSummarizer(), lambda: woken.set() or True)
        with pytest.raises(shared_limits.LimitReached):
            waits.take_permit("t", ROLE).reserve(SummaryRequest(), len)
        other.listen("x", listens.set)
        assert listens.wait(SOON)
        assert not woken.is_set()
        holds.release()
        assert woken.wait(SOON)
        waits.leave()
