"""Sessions: what a server holds. One Memory per id, nothing lost by eviction, one deadline for the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from executors import SOON, ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import wait_until

from compactor import (
    CompactorConfig,
    ContextCompactor,
    DaemonExecutor,
    Event,
    InMemoryStore,
    Limits,
    Published,
    Redacted,
    Rewound,
    Session,
    SessionPurged,
    Sessions,
    State,
    View,
    when,
)
from compactor.testing import FakeClock, ScriptedSummarizer

CONFIG = CompactorConfig(threshold=2, retain_recent=1)


def talk(session: Session, rounds: int = 1) -> None:
    for _ in range(rounds):
        number = len(session.memory.conversation.rounds) + 1
        session.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
        session.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 3})


def sessions_with(**options: Any) -> Sessions:
    """Return sessions whose cycles run when a test says so, and whose time stands still."""
    return Sessions(**{"executor": ManualExecutor(), "clock": FakeClock(), "config": CONFIG, **options})


def test_a_session_is_opened_once_for_all_who_use_it() -> None:
    """The second user of an id gets the same memory while the first still has it."""
    with sessions_with() as sessions, sessions.open("a") as one, sessions.open("a") as two, sessions.open("b") as three:
        assert one.memory is two.memory
        assert three.memory is not one.memory
        assert one.id == "a"


def test_threads_that_ask_at_once_get_one_memory() -> None:
    """Whoever comes first opens it, and the others wait for that."""
    with Sessions() as sessions, ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)

        def take() -> Session:
            barrier.wait(SOON)
            with sessions.open("a") as session:
                return session

        assert len({id(one.memory) for one in pool.map(lambda _: take(), range(8))}) == 1


def test_prompts_keep_the_budget_of_the_sessions() -> None:
    """``budget=`` of one call goes before that; without either, the error names both."""
    with sessions_with(budget=500) as sessions, sessions.open("a") as session:
        talk(session, 40)
        assert session.compose(system="Be brief.").tokens <= 500
        assert session.compose(budget=300).tokens <= 300
    with sessions_with() as sessions, sessions.open("a") as session, pytest.raises(ValueError, match="budget="):
        session.compose()


def test_each_role_has_a_compactor_that_is_started() -> None:
    """``compactor`` is that of the first role."""
    with sessions_with(roles=("Planner", "Coder")) as sessions, sessions.open("a") as session:
        assert [*session.compactors] == ["Planner", "Coder"]
        assert session.compactor.role == "Planner"
        assert State.NEW not in {one.status().state for one in session.compactors.values()}


def test_a_wrong_setting_is_refused_by_the_constructor() -> None:
    """And not when the first user comes."""
    with pytest.raises(ValueError, match="budget"):
        Sessions(budget=0)
    with pytest.raises(ValueError, match="max_open"):
        Sessions(max_open=0)
    with pytest.raises(TypeError, match="open_store"):
        Sessions(store=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limits"):
        Sessions(limits=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="strategies"):
        Sessions(strategies=[1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="roles"):
        Sessions(roles=())
    with pytest.raises(ValueError, match="journal"):
        Sessions(journal=InMemoryStore())  # type: ignore[arg-type]


def test_the_least_recently_used_is_closed_first() -> None:
    """Its memory is another one when it is opened again; what was said is the same."""
    with sessions_with(max_open=2) as sessions:
        first = use(sessions, "a")
        use(sessions, "b")
        assert use(sessions, "a") is first
        use(sessions, "c")
        assert sessions.status().open == 2
        assert use(sessions, "a") is first, "b was used before it"


def use(sessions: Sessions, session_id: str, act: Callable[[Session], None] = lambda _: None) -> Any:
    with sessions.open(session_id) as session:
        act(session)
        settle(sessions)
        return session.memory


def settle(sessions: Sessions) -> None:
    if isinstance(sessions._executor, ManualExecutor):
        sessions._executor.run_all()


def test_a_session_in_use_is_not_evicted() -> None:
    """However many others are opened meanwhile."""
    with sessions_with(max_open=1) as sessions, sessions.open("a") as session:
        for number in range(5):
            use(sessions, f"b{number}")
        assert use(sessions, "a") is session.memory


def test_an_idle_session_is_closed_after_its_time() -> None:
    """By a timer, which is set for the session that is due first; each use begins the time anew."""
    clock = FakeClock()
    with sessions_with(clock=clock, idle_seconds=60) as sessions:
        use(sessions, "a")
        clock.advance(40)
        use(sessions, "b")
        clock.advance(20)
        settle(sessions)
        assert sessions.status().open == 1
        clock.advance(40)
        settle(sessions)
        assert sessions.status().open == 0


def test_a_timer_that_fires_at_once_is_followed_by_others() -> None:
    """It may fire before the thread that set it goes on."""

    class Fast(FakeClock):
        has_fired = False

        def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
            if self.has_fired:
                return super().call_later(seconds, callback)
            self.has_fired = True
            callback()
            return lambda: None

    clock = Fast()
    with sessions_with(clock=clock, idle_seconds=60) as sessions:
        use(sessions, "a")
        settle(sessions)
        clock.advance(61)
        settle(sessions)
        assert sessions.status().open == 0


def test_what_was_said_survives_eviction_in_every_store(tmp_path: Path) -> None:
    """Also in the default one: the log is in the store, which the sessions share."""
    for store in (None, f"sqlite:///{tmp_path / 'chat.db'}"):
        with sessions_with(store=store, max_open=1, budget=5_000) as sessions:
            use(sessions, "a", lambda session: talk(session, 2))
            use(sessions, "b")
            with sessions.open("a") as session:
                assert len(session.compose().messages) == 4


def test_a_running_compaction_keeps_its_session() -> None:
    """It is closed after that, and the compaction is shown when it is opened again."""
    model = ScriptedSummarizer()
    model.hold()
    with sessions_with(executor=DaemonExecutor(2), summarizer=model, max_open=1) as sessions:
        with sessions.open("a") as session:
            talk(session, 4)
        assert model.started.wait(SOON)
        use(sessions, "b")
        with sessions.open("a") as again:
            assert again.memory is session.memory, "its call was in flight"
        model.release()
        assert session.compactor.wait_idle(SOON)
        made = session.compactor.get_compaction()
        assert made is not None
        use(sessions, "c")
        with sessions.open("a") as again:
            assert again.memory is not session.memory
            assert again.compactor.get_compaction() == made


def test_the_status_counts_compactions_and_not_what_looks_whether_one_is_due() -> None:
    """With every round that is added, a compactor looks."""
    seen: list[tuple[str, int]] = []

    def trigger(view: View) -> bool:
        seen.append(("trigger", sessions.status().running))
        return view.total > 3

    def model(_request: object) -> str:
        seen.append(("model", sessions.status().running))
        return "The user asked what items cost."

    with sessions_with(summarizer=model, trigger=when(trigger)) as sessions, sessions.open("a") as session:
        talk(session, 3)
        settle(sessions)
        assert set(seen) == {("trigger", 0)}
        talk(session)
        settle(sessions)
        assert ("model", 1) in seen
        assert sessions.status().running == 0


def test_a_deferred_compaction_survives_eviction() -> None:
    """It is in the log: opened again, the session goes on deferring it, and no model is asked again."""
    model = ScriptedSummarizer()
    with sessions_with(summarizer=model, publish="deferred", max_open=1) as sessions:
        use(sessions, "a", lambda session: talk(session, 4))
        assert len(model.requests) == 1
        use(sessions, "b")
        with sessions.open("a") as session:
            settle(sessions)
            assert session.compactor.get_compaction() is None
            assert session.compactor.publish_deferred()
        assert len(model.requests) == 1


def test_a_round_that_was_open_at_the_eviction_is_finished_by_the_next() -> None:
    """As without eviction: else no compaction could ever cover it."""
    with sessions_with(max_open=1) as sessions:
        use(sessions, "a", lambda session: session.memory.create_round("Where is order 17?"))  # type: ignore[arg-type]
        use(sessions, "b")
        with sessions.open("a") as session:
            session.memory.create_round("And order 18?")
            assert [one.state for one in session.memory.conversation.rounds] == ["finished", "created"]


def open_round(session: Session) -> None:
    session.memory.create_round("Where is it?")  # type: ignore[arg-type]


def test_a_failed_opening_leaves_no_round_open_and_no_compactor_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second role's compactor could not start: the next opening finds all as it was."""
    started: list[ContextCompactor] = []
    start = ContextCompactor.start

    def start_one(compactor: ContextCompactor) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(compactor)
        start(compactor)

    with sessions_with(max_open=1, roles=("Planner", "Coder")) as sessions:
        use(sessions, "a", open_round)
        use(sessions, "b")
        with monkeypatch.context() as patch:
            patch.setattr(ContextCompactor, "start", start_one)
            with pytest.raises(RuntimeError, match="new thread"), sessions.open("a"):
                pass
        assert started[0].status().state is State.STOPPED
        with sessions.open("a") as session:
            open_round(session)
            assert [one.state for one in session.memory.conversation.rounds] == ["finished", "created"]


def test_open_rounds_of_evicted_sessions_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the sessions that were evicted first are forgotten, as after a restart."""
    monkeypatch.setattr("compactor.sessions.MAX_LEFT", 1)
    with sessions_with(max_open=1) as sessions:
        for name in "abc":
            use(sessions, name, open_round)
        states = {}
        for name in "ba":
            with sessions.open(name) as session:
                open_round(session)
                states[name] = [one.state for one in session.memory.conversation.rounds]
        assert states == {"b": ["finished", "created"], "a": ["created", "created"]}


def test_a_failed_opening_is_told_to_all_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was away for a moment: nothing of that stays."""
    with sessions_with() as sessions:
        with monkeypatch.context() as patch:
            patch.setattr(sessions.store, "read", lambda *_args, **_more: 1 / 0)
            with pytest.raises(ZeroDivisionError), sessions.open("a"):
                pass
        assert sessions.status().open == 0
        use(sessions, "a", talk)


def test_a_session_that_could_not_be_closed_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction that fails is the session's own affair: nobody waits for it, and nobody else hears of it."""
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: reported.append(raised.exc_type))
    stopped: list[str] = []

    def stop(compactor: ContextCompactor, _timeout: float) -> bool:
        stopped.append(compactor.role)
        raise OSError(compactor.role)

    with sessions_with(max_open=1, roles=("Planner", "Coder")) as sessions:
        first = use(sessions, "a", talk)
        with monkeypatch.context() as patch:
            patch.setattr(ContextCompactor, "stop", stop)
            use(sessions, "b")
        assert (sorted(stopped), reported) == (["Coder", "Planner"], [OSError])
        again: list[Any] = []
        opening = threading.Thread(target=lambda: again.append(use(sessions, "a")), daemon=True)
        opening.start()
        opening.join(SOON)
        assert [memory.messages() for memory in again] == [first.messages()]
        assert again[0] is not first


def test_close_during_an_opening_is_told_to_all_who_wait_for_it() -> None:
    """Nobody gets a session whose compactors do not run."""
    sessions, begun, go = sessions_with(), threading.Event(), threading.Event()
    make, told = sessions._make, list[str]()

    def slow(*args: Any) -> Session:
        begun.set()
        assert go.wait(SOON)
        return make(*args)

    def take() -> None:
        try:
            with sessions.open("a"):
                told.append("open")
        except RuntimeError as error:
            told.append(str(error))

    sessions._make = slow  # type: ignore[method-assign]
    first, second = threading.Thread(target=take), threading.Thread(target=take)
    first.start()
    assert begun.wait(SOON)
    second.start()
    wait_until(lambda: sessions._entries["a"].users == 2)
    sessions.close()
    go.set()
    for thread in (first, second):
        thread.join(SOON)
    assert [text.startswith("these sessions were closed") for text in told] == [True, True]


def test_a_purged_session_begins_anew() -> None:
    """Whoever still has the old memory is told, and nothing of the old is in the new one."""
    with sessions_with(budget=1_000) as sessions:
        with sessions.open("a") as session:
            talk(session)
            sessions.purge("a")
            with pytest.raises(SessionPurged):
                talk(session)
        with sessions.open("a") as session:
            assert session.compose().messages == []


@pytest.mark.parametrize("ways", ["with", "async with", "caught"])
def test_a_session_that_another_process_purged_begins_anew(ways: str) -> None:
    """After the error that tells of it. Another session that was open around that one stays the same."""
    store = InMemoryStore()

    async def fail_in_a_loop(sessions: Sessions) -> None:
        async with sessions.open("a") as session:
            await session.aappend({"role": "user", "content": "Hello?"})

    with sessions_with(store=store) as sessions, sessions.open("other") as other:
        old = use(sessions, "a", talk)
        talk(other)
        store.purge("a")
        if ways == "caught":
            with sessions.open("a") as session, pytest.raises(SessionPurged):
                talk(session)
        elif ways == "async with":
            with pytest.raises(SessionPurged):
                asyncio.run(fail_in_a_loop(sessions))
        else:
            with pytest.raises(SessionPurged), sessions.open("other"):
                use(sessions, "a", talk)
        assert use(sessions, "a", talk) is not old
        assert use(sessions, "other") is other.memory
        with sessions.open("a") as session:
            assert len(session.memory.messages()) == 2


def test_a_session_that_is_open_gets_the_model_that_is_named_first() -> None:
    """With the same memory, and nothing that was said is lost; the old compactors end."""
    one, other = ScriptedSummarizer(), ScriptedSummarizer()
    some = sessions_with(executor=None, roles=("Planner", "assistant"))
    with some as sessions, sessions.open("a") as session:
        talk(session, 4)
        before = [*session.compactors.values()]
        for model in (one, None, other):
            with sessions.open("a", model=model) as same:
                assert same is session
        assert {compactor.status().state for compactor in before} <= {State.STOPPING, State.STOPPED}
        assert [compactor.summarizer for compactor in session.compactors.values()] == [one, one]
        assert [*session.compactors] == ["Planner", "assistant"]
        assert session.compactors["assistant"].compact_now(SOON) is not None
        assert len(session.memory.messages()) == 8
    assert one.requests
    assert not other.requests


def test_hooks_of_a_compactor_hear_of_the_one_that_takes_its_place() -> None:
    """Each once, those given to ``Sessions`` too, and until they are removed."""
    to_all, added, removed = list[Event](), list[Event](), list[Event]()
    with sessions_with(executor=None, on_event=to_all.append) as sessions, sessions.open("a") as session:
        session.compactor.on_event(added.append)
        remove = session.compactor.on_event(removed.append)
        with sessions.open("a", model=ScriptedSummarizer()):
            talk(session, 4)
            session.compactor.compact_now(SOON)
            assert session.compactor.wait_idle(SOON)
        heard = [*removed]
        remove()
        talk(session, 4)
        session.compactor.compact_now(SOON)
    of_all, of_one = ([one.generation for one in each if isinstance(one, Published)] for each in (to_all, added))
    assert of_all == of_one
    assert len({*of_one}) == len(of_one) > 1
    assert removed == heard != []


def test_a_hook_of_the_sessions_hears_of_those_open_and_of_those_opened_later() -> None:
    """Each event once, with its session's name; also of compactors that were replaced, until it is removed."""
    heard = list[Event]()
    with sessions_with(executor=None) as sessions, sessions.open("a") as first:
        remove = sessions.on_event(heard.append, (Published,))
        with sessions.open("b", model=ScriptedSummarizer()) as second:
            for session in (first, second):
                talk(session, 4)
                session.compactor.compact_now(SOON)
                assert session.compactor.wait_idle(SOON)
        told = sorted((one.session, one.generation) for one in heard if isinstance(one, Published))
        assert told == sorted({*told})
        assert {name for name, _ in told} == {"a", "b"}
        remove()
        talk(first, 4)
        first.compactor.compact_now(SOON)
    assert len(heard) == len(told)


def test_events_of_conversations_are_passed_on_like_those_of_compactors() -> None:
    """Also past a callback that fails."""
    heard: list[Event] = []
    with sessions_with(executor=None) as sessions:
        sessions.on_event(lambda _event: 1 / 0)
        remove = sessions.on_event(heard.append, (Redacted, Rewound))
        with sessions.open("a") as session:
            session.append({"role": "user", "content": "one"})
            session.memory.redact("r1.p0")
            session.memory.rewind("r0")
            remove()
            session.append({"role": "user", "content": "two"})
            session.memory.rewind("r0")
    assert [(type(one), getattr(one, "session", "")) for one in heard] == [(Redacted, "a"), (Rewound, "a")]


def test_the_status_tells_of_open_circuits_and_of_the_oldest_round_that_waits() -> None:
    """What an alarm goes by, without asking a store; both are gone with the first success."""
    executor, clock = ManualExecutor(), FakeClock()
    config = CONFIG.copy_with(circuit_breaker_failures=1)
    answers = ScriptedSummarizer([OSError()])
    with sessions_with(executor=executor, clock=clock, config=config, summarizer=answers) as sessions:
        with sessions.open("a") as session:
            talk(session, 4)
            executor.run_all()
            status = sessions.status()
            assert status.behind_since == session.memory.conversation.rounds[0].created_at
            assert status.circuits_open == 1
            clock.advance(3_600)
            executor.run_all()
            assert session.compactor.get_compaction() is not None
        assert (sessions.status().behind_since, sessions.status().circuits_open) == (None, 0)


def test_a_model_that_cannot_be_used_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with sessions_with() as sessions:
        with sessions.open("a"), pytest.raises(TypeError, match="int is no summarizer"), sessions.open("a", model=17):
            pass
        with monkeypatch.context() as patch:
            patch.setattr(ContextCompactor, "start", lambda _compactor: 1 / 0)
            with pytest.raises(ZeroDivisionError), sessions.open("a", model=ScriptedSummarizer()):
                pass
        assert sessions.status().in_use == 0
        with sessions.open("a", model=(model := ScriptedSummarizer())) as session:
            assert session.compactor.summarizer is model
            assert session.compactor.status().state is not State.STOPPED


def test_whoever_opens_a_session_while_it_is_purged_waits_for_that() -> None:
    """Else the new memory would be purged with the old one."""

    class Slow(InMemoryStore):
        begun, go = threading.Event(), threading.Event()

        def purge(self, session_id: str) -> None:
            self.begun.set()
            assert self.go.wait(SOON)
            super().purge(session_id)

    store, used = Slow(), list[Any]()
    with sessions_with(store=store) as sessions:
        use(sessions, "a", talk)
        purging = threading.Thread(target=sessions.purge, args=("a",))
        purging.start()
        assert store.begun.wait(SOON)
        opening = threading.Thread(target=lambda: used.append(use(sessions, "a", talk)))
        opening.start()
        wait_until(lambda: "a" in sessions._entries)
        store.go.set()
        for thread in (purging, opening):
            thread.join(SOON)
        assert [len(memory.messages()) for memory in used] == [2]
        use(sessions, "a", talk)


def test_close_stops_all_within_one_deadline() -> None:
    """Not one deadline for each: with hung calls in all of them it takes no longer than with one."""
    model = ScriptedSummarizer()
    model.hold()
    limits = Limits(max_concurrency=10)
    sessions = Sessions(summarizer=model, config=CONFIG, executor=DaemonExecutor(10), limits=limits)
    for number in range(10):
        with sessions.open(f"s{number}") as session:
            talk(session, 4)
    wait_until(lambda: model.in_flight == 10)
    began = time.monotonic()
    assert not sessions.close(timeout=1)
    assert time.monotonic() - began < 9
    model.release()
    assert sessions.close(timeout=SOON)
    with pytest.raises(RuntimeError, match="closed"), sessions.open("s1"):
        pass


def test_an_answer_within_the_deadline_is_paid_for_once() -> None:
    """It is kept as prepared, and published when the session is opened again."""
    model, store = ScriptedSummarizer(), InMemoryStore()
    model.hold()
    sessions = Sessions(store, summarizer=model, config=CONFIG)
    with sessions.open("a") as session:
        talk(session, 4)
    assert model.started.wait(SOON)
    closing = threading.Thread(target=sessions.close, args=(SOON,))
    closing.start()
    wait_until(lambda: session.compactor.status().state is State.STOPPING)
    model.release()
    closing.join(SOON)
    with Sessions(store, summarizer=model, config=CONFIG) as later, later.open("a") as session:
        assert session.compactor.wait_idle(SOON)
        assert session.compactor.get_compaction() is not None
    assert len(model.requests) == 1


def test_a_store_that_was_given_as_a_url_is_closed_with_them(tmp_path: Path) -> None:
    """One that the host made stays open, since it may have other users."""
    own = Sessions(f"sqlite:///{tmp_path / 'chat.db'}")
    own.close()
    with pytest.raises(Exception, match="closed"):
        list(own.store.sessions())
    store = InMemoryStore()
    with Sessions(store) as sessions:
        use(sessions, "a", talk)
    assert [*store.sessions()] == ["a"]


def test_asyncio_opens_and_closes_without_blocking_the_loop(tmp_path: Path) -> None:
    """A session that is open already is given at once; one that is not is opened in a thread."""

    async def main() -> None:
        async with Sessions(f"sqlite:///{tmp_path / 'chat.db'}", budget=1_000) as sessions:
            async with sessions.open("a") as one:
                assert isinstance(one, Session)
                async with sessions.open("a") as two:
                    assert one.memory is two.memory
            assert sessions.status().in_use == 0

    asyncio.run(main())


def test_a_cancelled_opening_leaves_the_session_unused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else nothing could ever evict it."""

    async def main() -> None:
        sessions, begun, go = (
            sessions_with(store=f"sqlite:///{tmp_path / 'chat.db'}"),
            threading.Event(),
            threading.Event(),
        )
        make = sessions._make

        def slow(*args: Any) -> Session:
            begun.set()
            assert go.wait(SOON)
            return make(*args)

        monkeypatch.setattr(sessions, "_make", slow)

        async def take() -> None:
            async with sessions.open("a"):
                raise AssertionError

        task = asyncio.create_task(take())
        await asyncio.to_thread(begun.wait, SOON)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        while (status := sessions.status()).open != 1 or status.in_use:
            await asyncio.sleep(0)
        await sessions.aclose()

    asyncio.run(asyncio.wait_for(main(), SOON))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["use", "hold", "leave", "wait"])), max_size=30),
    st.integers(1, 3),
)
def test_a_session_is_one_memory_while_it_is_used_and_loses_nothing(steps: list[tuple[str, str]], most: int) -> None:
    """Whatever is opened, held, left and waited for: no more than *most* stay open, but those in use."""
    clock, said, held = FakeClock(), dict.fromkeys("abcd", 0), dict[str, tuple[Any, Session]]()
    with sessions_with(clock=clock, max_open=most, idle_seconds=100, budget=50_000) as sessions:
        for name, step in steps:
            if step == "wait":
                clock.advance(60)
            elif step == "hold" and name not in held:
                using = sessions.open(name)
                held[name] = using, using.__enter__()
            elif step == "leave" and name in held:
                held.pop(name)[0].__exit__(None, None, None)
            elif step == "use":
                with sessions.open(name) as session:
                    assert name not in held or held[name][1] is session
                    talk(session)
                    said[name] += 1
                    assert len(session.memory.conversation.rounds) == said[name]
            settle(sessions)
            assert sessions.status().open <= max(most, len(held))
            assert sessions.status().in_use == len(held)
