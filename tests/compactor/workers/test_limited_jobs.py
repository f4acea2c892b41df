"""Jobs under limits in the store: who may not ask ends, and comes again when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from actors import ONE, Actor, Jobs, answering
from scene import CONFIG, ROLE, add_round

from compactor import (
    CompactorConfig,
    Limit,
    LimitsStatus,
    Settings,
    SharedLimits,
    Skip,
    Skipped,
    Summary,
    SummaryRequest,
    open_store,
)
from compactor.testing import ScriptedSummarizer
from compactor.workers import Outcome, Worker, run_due
from memory import Memory, Store, StoreDamaged
from memory.stores import join_name

#: A job comes again after so many seconds, should nobody wake it; each behind it in the queue a second later.
UNWOKEN = 30.0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory://"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'log.db'}"
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with closing(open_store(url)) as opened:
        yield opened


def write(store: Store, name: str) -> None:
    memory = Memory(name, store=store)
    for _ in range(10):
        add_round(memory)


def test_a_job_that_may_not_ask_ends_and_comes_again_when_there_is_room(store: Store) -> None:
    """It holds no worker; whichever process runs it then takes the permit that waits for it."""
    jobs, held = Jobs(), Actor(SharedLimits(store, ONE), "t")
    workers = [
        Worker(
            store=store,
            roles=(ROLE,),
            settings=Settings(CONFIG),
            summarizer=ScriptedSummarizer(),
            options={"limits": SharedLimits(store, ONE)},
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.wake_by(jobs)
    for name in ("s", "u"):
        write(store, name)
    held.ticket.limits.wake_by(jobs)
    assert held.ask() is None
    outcomes = [workers[0].run(name, ROLE) for name in ("s", "u", "s")]
    assert [outcome.reason for outcome in outcomes] == [Skip.LIMITED] * 3
    waits = [outcome.retry_in for outcome in outcomes]
    assert waits == [UNWOKEN, UNWOKEN + 1, UNWOKEN]
    assert held.ticket.limits.status().queued == 2
    held.end()
    assert {*jobs.asked} == {("s", ROLE)}
    assert workers[1].run("u", ROLE).reason == Skip.LIMITED, "it is not its turn"
    published = workers[1].run("s", ROLE).published
    assert published is not None
    assert published.end_index == 7
    assert [*dict.fromkeys(jobs.asked)] == [("s", ROLE), ("u", ROLE)]
    assert workers[0].run("u", ROLE).published is not None
    assert held.ticket.limits.status() == LimitsStatus(0, 0, 0.0, 0.0)


def run_job(store: Store, limits: SharedLimits, session: str, threshold: int = 7, **more: Any) -> Outcome:
    settings = Settings(CompactorConfig(threshold=threshold, retain_recent=3))
    return run_due(store, session, ROLE, settings=settings, summarizer=ScriptedSummarizer(), limits=limits, **more)


def queue_jobs(store: Store, *names: str) -> tuple[SharedLimits, Jobs, Actor]:
    """Return limits for which a job of each of these sessions waits, what they wake jobs by, and who has the permit."""
    limits = SharedLimits(store, ONE, dispatcher=(jobs := Jobs()))
    held = Actor(limits, "t")
    assert held.ask() is None
    for name in names:
        write(store, name)
        assert run_job(store, limits, name).reason == Skip.LIMITED
    return limits, jobs, held


def test_a_job_is_refused_before_its_session_is_opened(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has many jobs is not to use up the workers' time. The hooks hear of it all the same."""
    limits = SharedLimits(store, ONE, dispatcher=Jobs())
    write(store, "s")
    assert Actor(limits, "t").ask() is None
    told = list[Any]()
    with monkeypatch.context() as patch:
        patch.setattr("compactor.workers.due.Memory", lambda *_, **__: pytest.fail("it was opened"))
        outcome = run_job(store, limits, "s", on_event=told.append)
    assert (outcome.reason, outcome.retry_in) == (Skip.LIMITED, UNWOKEN)
    (skipped,) = told
    assert isinstance(skipped, Skipped)
    assert (skipped.session, skipped.role, skipped.reason) == ("s", ROLE, Skip.LIMITED)


@pytest.mark.parametrize("why", ["nothing is due", "it backs off"])
def test_a_job_that_was_woken_and_needs_no_model_gives_its_permit_back(store: Store, why: str) -> None:
    """At once: the next one need not wait until it is not taken in time."""
    limits, jobs, held = queue_jobs(store, "s", "u")
    if why == "it backs off":  # since another process, without these limits, was refused
        run_due(store, "s", ROLE, settings=Settings(CONFIG), summarizer=ScriptedSummarizer([ConnectionError("no")]))
    held.end()
    assert [*dict.fromkeys(session for session, _ in jobs.asked)] == ["s"]
    outcome = run_job(store, limits, "s", threshold=100)
    assert outcome.reason == ("backing_off" if why == "it backs off" else Skip.BELOW_TRIGGER)
    assert [*dict.fromkeys(session for session, _ in jobs.asked)] == ["s", "u"]


def test_a_job_that_was_woken_and_raises_gives_its_permit_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, jobs, held = queue_jobs(store, "damaged", "u")
    held.end()

    def refuse(*_args: object, **_options: object) -> Memory:
        raise StoreDamaged("the log cannot be read")

    monkeypatch.setattr("compactor.workers.due.Memory", refuse)
    with pytest.raises(StoreDamaged):
        run_job(store, limits, "damaged")
    assert [*dict.fromkeys(session for session, _ in jobs.asked)] == ["damaged", "u"]


def test_a_queued_job_that_is_no_longer_due_leaves_the_queue(store: Store) -> None:
    """Where a call is free and only tokens lack, it runs; what it does not need is not kept for it."""
    limits = SharedLimits(store, [Limit(max_tokens_per_minute=2_000)], dispatcher=Jobs())
    settings = Settings(CompactorConfig(threshold=7, retain_recent=3))
    for session in ("a", "s"):
        write(store, session)

    def summarize(_request: SummaryRequest) -> Summary:
        return answering(10, read=1_900)

    assert run_due(store, "a", ROLE, settings=settings, summarizer=summarize, limits=limits).published is not None
    assert run_due(store, "s", ROLE, settings=settings, summarizer=summarize, limits=limits).reason == Skip.LIMITED
    assert limits.status().queued == 1
    undue = Settings(CompactorConfig(threshold=100, retain_recent=3))
    outcome = run_due(store, "s", ROLE, settings=undue, summarizer=summarize, limits=limits)
    assert outcome.reason == Skip.BELOW_TRIGGER
    assert limits.status().queued == 0


def test_a_job_without_a_model_waits_for_no_permit(store: Store) -> None:
    limits = SharedLimits(store, ONE, dispatcher=Jobs())
    write(store, "s")
    assert Actor(limits, "t").ask() is None
    assert run_due(store, "s", ROLE, settings=Settings(CONFIG), limits=limits).published is not None


def test_a_run_without_a_dispatcher_leaves_no_ticket_behind(store: Store) -> None:
    """Nobody could wake it; it says when to come again."""
    limits = SharedLimits(store, ONE)
    assert Actor(limits).ask() is None
    write(store, "s")
    outcome = run_due(store, "s", ROLE, settings=Settings(CONFIG), summarizer=ScriptedSummarizer(), limits=limits)
    assert (outcome.reason, outcome.retry_in) == (Skip.LIMITED, 5.0)
    assert limits.status().queued == 0


def test_a_purged_session_leaves_the_queue(store: Store) -> None:
    limits = SharedLimits(store, ONE, dispatcher=Jobs())
    assert Actor(limits, "t").ask() is None
    assert Actor(limits, "s").ask() is not None
    store.purge("s")
    assert limits.status().queued == 0


def test_nothing_names_a_tenant_whose_sessions_were_purged(store: Store) -> None:
    """Its usage counts for a while, under a hash."""
    limits = SharedLimits(store, [Limit(max_concurrency=1, max_tokens_per_minute=1_000, per="tenant")])
    for tenant in ("acme", "other"):
        actor = Actor(limits, join_name(tenant, "s"))
        assert actor.ask() is None
        assert Actor(limits, join_name(tenant, "waits")).ask() is not None
        actor.end(answering(10))
    for name in ("s", "waits"):
        store.purge(join_name("acme", name))
    kinds = ("ticket", "permit", "usage", "mark", "alive")
    left = repr(store.change_limits(lambda rows: [*rows.read(kinds)]))
    assert ("acme" in left, "other" in left, "usage" in left) == (False, True, True)
