"""``compactor health`` and ``Sessions.health``: what fails or is behind, by the log alone and for what is open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, refusal, run
from executors import ManualExecutor
from stored_sessions import SECRET, session, summarise, url_of

from compactor import CompactorConfig, Discarded, Failed, FailureKind, Sessions, StrategyFailed
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Entry, Event, Memory, Reduction, open_store

ROLE = "assistant"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chat.db")


def health(url: str, *words: object) -> Done:
    done = run("health", "--store", url, *words, "--json")
    assert done.code == (0 if done.document["healthy"] else 1)
    return done


def fail(memory: Memory, times: int, *, circuit: int = 5, **facts: Any) -> None:
    """Have the compactor of a role fail so often, as its log tells."""
    for number in range(1, times + 1):
        fields = {"error": "APIStatusError", "kind": FailureKind.SERVER, "status": 503, **facts}
        note(memory, Failed(role=ROLE, failures=number, retry_in=1.0, circuit_open=number >= circuit, **fields))


def note(memory: Memory, event: Event) -> None:
    """Keep *event* in the log, as the compactor of its role does."""
    memory.journal(ROLE).note(event.name, event.facts())


def test_a_store_in_which_nothing_is_wrong_is_healthy(url: str) -> None:
    """For a probe: exit code 0."""
    with session(url) as memory:
        summarise(memory, 3)
    assert health(url).document == {
        "healthy": True,
        "sessions": 1,
        "behind": 0,
        "failing": 0,
        "circuits_open": 0,
        "worst": [],
    }
    assert run("health", "--store", url).out == "healthy: 1 session looked at\n"


def test_failing_sessions_are_told_worst_first(url: str) -> None:
    """From the log alone: an open circuit first, then by failures; and the exit code is 1."""
    for name, times in (("few", 2), ("circuit", 5), ("none", 0)):
        with session(url, name) as memory:
            fail(memory, times)
    found = health(url).document
    assert (found["sessions"], found["failing"], found["circuits_open"], found["behind"]) == (3, 2, 1, 0)
    facts = [(one["session"], one["role"], one["failures"], one["circuit_open"]) for one in found["worst"]]
    assert facts == [("circuit", ROLE, 5, True), ("few", ROLE, 2, False)]
    assert {one["error"] for one in found["worst"]} == {"APIStatusError"}
    plain = run("health", "--store", url)
    assert plain.code == 1
    assert "2 failing, 1 with an open circuit, 0 behind" in plain.out
    assert SECRET not in plain.out


def test_a_success_ends_a_row_of_failures(url: str) -> None:
    """An accepted answer does, and a reduction that a model made; one without a model only if the model did not fail."""
    with session(url) as memory:
        fail(memory, 3)
        round_ = memory.conversation.rounds[0]
        journal = memory.journal(ROLE)
        made = Reduction.over(round_, [round_.post_list[1]], "offloaded", "short", generation=0)
        journal.reduce(made, base=0)
        assert health(url).document["failing"] == 1
        summarise(memory, 2)
        assert health(url).document["failing"] == 0
        fail(memory, 1, kind=FailureKind.STORE, status=None)
        round_ = memory.conversation.rounds[3]
        journal.reduce(Reduction.over(round_, [round_.post_list[1]], "offloaded", "s", generation=1), base=1)
        assert health(url).document["failing"] == 0
        fail(memory, 1)
        round_ = memory.conversation.rounds[4]
        made = Reduction.over(round_, [round_.post_list[1]], "offloaded", "s", generation=1, model="small-1")
        journal.reduce(made, base=1)
        assert health(url).document["failing"] == 0


def test_a_strategy_that_fails_counts(url: str) -> None:
    """And what was only discarded does not."""
    with session(url) as memory:
        note(memory, Discarded(role=ROLE, reason="late"))
        assert health(url).document["healthy"]
        note(memory, StrategyFailed(role=ROLE, strategy="drop", error="KeyError"))
    (one,) = health(url).document["worst"]
    assert (one["failures"], one["error"]) == (1, "KeyError")


def test_a_role_is_behind_by_its_own_steps(url: str) -> None:
    """More than twice what it covered at once, and more than ten rounds; or more than --rounds."""
    with session(url, rounds=7) as memory:
        summarise(memory, 6)
        for number in range(9):
            memory.append({"role": "user", "content": f"And {number}?"})
            memory.append({"role": "assistant", "content": f"{number}."})
        assert health(url).document["healthy"]
        (one,) = health(url, "--rounds", 9).document["worst"]
        assert (one["behind"], one["uncovered"]) == (True, 10)
        for number in range(3):
            memory.append({"role": "user", "content": f"And more {number}?"})
            memory.append({"role": "assistant", "content": f"{number}."})
        (one,) = health(url).document["worst"]
        assert (one["behind"], one["uncovered"]) == (True, 13)
        assert "behind" in run("health", "--store", url).out


def test_only_sessions_of_late_are_looked_at(url: str) -> None:
    """An old failure is nobody's concern; a damaged session is."""
    store, old = open_store(url), datetime.now(UTC) - timedelta(days=3)
    facts = '{"role": "assistant", "name": "compaction.failed", "facts": {"failures": 1, "error": "E"}}'
    store.append("old", [Entry("event", body=facts, created_at=old)], 0)
    store.append("broken", [Entry("event", body='{"role": 1}')], 0)
    store.close()
    (one,) = health(url).document["worst"]
    assert (one["session"], one["failures"], one["error"]) == ("broken", 1, "StoreDamaged")
    assert [one["session"] for one in health(url, "--active", "5d").document["worst"]] == ["broken", "old"]
    assert "--active is a whole number and a unit" in refusal(run("health", "--store", url, "--active", "soon"))


def test_a_hostile_name_does_nothing_to_a_terminal(url: str) -> None:
    """It is escaped."""
    with session(url, "a\x1b[2J\n") as memory:
        fail(memory, 1)
    out = run("health", "--store", url).out
    assert "\x1b" not in out
    assert "a\\x1b[2J" in out


def test_open_sessions_tell_their_health() -> None:
    """Without a store: failures while they last, and what is due but not under way."""
    executor, clock = ManualExecutor(), FakeClock()
    model = ScriptedSummarizer([OSError("down")])
    config = CompactorConfig(threshold=2, retain_recent=1)
    with Sessions(summarizer=model, executor=executor, clock=clock, config=config) as sessions:
        with sessions.open("a") as one:
            assert sessions.health().healthy
            for number in range(4):
                one.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
                one.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 3})
            executor.run_all()
        found = sessions.health()
        assert (found.sessions, found.failing, found.behind, found.circuits_open) == (1, 1, 1, 0)
        (role,) = found.worst
        assert (role.session, role.role, role.failures, role.behind, role.uncovered) == ("a", ROLE, 1, True, 4)
