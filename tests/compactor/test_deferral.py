"""A compaction that is prepared and deferred: who sees it, what goes on from it, and what takes it away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deferred_session import DEAR, FullStore, Scene, long_round, requests, text
from executors import SOON, ManualExecutor
from scene import CONFIG, ROLE, Heard, add_round, in_thread, of_kind, prices

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Deferred,
    Discarded,
    ExtractiveSummarizer,
    Published,
    Reduced,
    Skip,
    State,
    after_rounds,
    compact_rounds,
    compose,
    deferred,
    offload_large,
    over_tokens,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, open_store

# -- who sees what ----------------------------------------------------------------------------------------------------


def test_what_is_deferred_is_shown_to_nobody() -> None:
    """Not to who asks for the compaction, the role's rounds or a prompt: they are what they were."""
    scene = Scene()
    plain = Memory("plain")
    for _ in range(10):
        add_round(plain)
    assert scene.compactor.get_compaction() is None
    assert scene.memory.get_role_rounds(ROLE)[1] is None
    assert compose(scene.memory, ROLE, budget=8_000).messages == compose(plain, ROLE, budget=8_000).messages
    scene.executor.run_all()
    assert (scene.deferred.shows, scene.deferred.reason, scene.deferred.end) == (False, "saving", 7)
    status = scene.compactor.status()
    assert (status.generation, status.end_index, status.failures) == (0, 0, 0)
    (kept,) = scene.records("compaction prepared")
    assert (kept.compaction.end_index, kept.seen_round_id, kept.seen_post) == (7, "r10", 2)
    assert scene.compactor.wait_idle(0)


def test_by_default_nothing_is_deferred() -> None:
    """What is ready is shown."""
    scene = Scene(publish="immediately")
    assert scene.end == 7
    assert not scene.events(Deferred)
    assert scene.compactor.publish_deferred() is False


def test_trigger_and_plan_go_on_from_its_end() -> None:
    """As if it were shown: of twenty rounds seven are covered, then five more each time, from the summary before."""
    scene = Scene()
    scene.add(10)
    assert requests(scene) == [
        (1, 7, None), (8, 12, "Summary of rounds 1-7."), (13, 17, "Summary of rounds 1-12."),
    ]  # fmt: skip
    assert (scene.end, scene.deferred.end) == (0, 17)
    assert [len(one.round_ids) for one in scene.records("compaction prepared")] == [7, 12, 17]


def test_what_is_not_asked_of_a_model_is_deferred_as_well() -> None:
    """It has to be found again later: so it is kept, though it cost nothing."""
    scene = Scene(summarizer=ExtractiveSummarizer())
    assert (scene.end, scene.deferred.end) == (0, 7)
    assert len(scene.records("compaction prepared")) == 1
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


# -- when it is lost --------------------------------------------------------------------------------------------------


def test_a_covered_round_that_fails_takes_it_away() -> None:
    """What failed must not reach a prompt through it: that is told, and it is made anew."""
    scene = Scene()
    scene.memory.finish_round("r3", state="failed")
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.end, scene.deferred.end, requests(scene)[1:]) == (0, 6, [(1, 6, None)])
    scene.add()
    assert len(scene.events(Discarded)) == 1, "told once"
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 6


def test_a_round_that_fails_leaves_what_does_not_cover_it() -> None:
    """It was extended: what it was before is still there, and goes on to be deferred."""
    scene = Scene()
    scene.add(5)
    assert scene.deferred.end == 12
    scene.memory.finish_round("r9", state="failed")
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.deferred.end, scene.deferred.shows) == (7, False)
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


def test_a_redaction_takes_it_away() -> None:
    """It may hold the text."""
    scene = Scene(summarizer=ScriptedSummarizer(["Item-2 costs 22."]))
    scene.memory.redact("r2.p2")
    scene.add()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert all("Item-2 costs 22." not in entry.body for entry in scene.store.read("session"))
    assert (scene.end, scene.deferred.end) == (0, 8)


def test_a_revert_takes_away_what_was_made_from_the_reverted() -> None:
    """Nothing is compacted then until there is a new round, and nothing of what was deferred is shown."""
    scene = Scene()
    scene.clock.advance(300)
    scene.executor.run_all()
    scene.add(5)
    assert (scene.end, scene.deferred.end) == (7, 12)
    assert scene.compactor.revert() is None
    scene.clock.advance(300)
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert (scene.end, scene.compactor.status().skip_reason) == (0, Skip.REVERTED)
    scene.add()
    assert (scene.end, scene.deferred.end) == (0, 13)


def test_another_processs_publication_takes_it_away() -> None:
    """Unless it is the very same: then it is shown, and nothing is lost."""
    scene = Scene()
    other = Memory("session", store=scene.store)
    made = CompactedMessage(start_index=1, end_index=8, summary=prices("Theirs"), end_round_id="r8")
    other.journal(ROLE).publish(made, base=0, round_ids=[f"r{number}" for number in range(1, 9)])
    scene.add()
    assert [event.reason for event in scene.events(Discarded)] == ["generation"]
    assert scene.end == 8
    assert scene.compactor.status().failures == 0


def test_what_a_host_does_in_between_is_noticed_when_it_is_shown() -> None:
    """A round fails between the look and the publication: that is not shown, and it is looked at again."""
    scene = Scene()
    publish = scene.compactor._journal.publish

    def failing(*what: Any, **how: Any) -> CompactedMessage:
        scene.compactor._journal.publish = publish  # type: ignore[method-assign]
        scene.memory.finish_round("r3", state="failed")
        return publish(*what, **how)

    scene.compactor._journal.publish = failing  # type: ignore[method-assign]
    scene.clock.advance(300)
    scene.executor.run_all()
    assert [event.reason for event in scene.events(Discarded)] == ["rounds_changed"]
    assert (scene.end, requests(scene)) == (6, [(1, 7, None), (1, 6, None)])
    assert scene.compactor.status().failures == 0


def test_what_others_publish_while_a_model_is_asked_makes_the_answer_stale() -> None:
    """It was made from another beginning: it is discarded, and asked for anew from theirs."""
    made = CompactedMessage(start_index=1, end_index=8, summary=prices("Theirs"), end_round_id="r8")
    ids = [f"r{number}" for number in range(1, 9)]

    def theirs(_request: object) -> str:
        scene.memory.journal(ROLE).publish(made, base=0, round_ids=ids)
        return prices("Ours")

    scene = Scene(summarizer=ScriptedSummarizer([prices("First"), theirs, prices("Third")]))
    scene.add(5)
    assert {event.reason for event in scene.events(Discarded)} == {"generation"}
    assert (scene.end, scene.records("compaction prepared")[-1].text) == (8, prices("First"))
    scene.add()
    assert (scene.deferred.end, requests(scene)[-1]) == (13, (9, 13, prices("Theirs")))


def test_an_answer_after_stop_is_deferred_by_who_comes_next() -> None:
    """It was paid for."""

    def stopping(_request: object) -> str:
        scene.compactor.stop(0)
        return prices("Late")

    clock, store = FakeClock(), InMemoryStore()
    scene = Scene(0, store=store, clock=clock, summarizer=ScriptedSummarizer([stopping]))
    scene.add(10)
    assert [event.reason for event in scene.events(Discarded)] == ["stopped"]
    after = Scene(0, store=store, clock=clock)
    assert (after.deferred.end, after.summarizer.requests) == (5, [])


# -- one process after another, and beside it -------------------------------------------------------------------------


def test_who_resumes_goes_on_holding() -> None:
    """By the same numbers: they follow from the log and the time of day."""
    scene = Scene()
    scene.add(4)
    scene.clock.advance(100)
    assert scene.compactor.stop(0)
    after = Scene(0, store=scene.store, clock=scene.clock)
    assert (after.end, after.summarizer.requests) == (0, [])
    numbers = {"calls", "missed_saving", "price", "end", "tokens_before", "tokens_after", "retained"}
    assert after.deferred.model_dump(include=numbers) == scene.deferred.model_dump(include=numbers)
    assert (after.deferred.calls, after.deferred.idle, after.clock.pending) == (4, 100.0, [200.0])
    after.clock.advance(200)
    after.executor.run_all()
    assert after.end == 7


def test_who_resumes_after_a_while_shows_it_at_once() -> None:
    """The cache is cold by then; nobody is asked."""
    scene = Scene()
    scene.compactor.stop(0)
    scene.clock.advance(3_600)
    after = Scene(0, store=scene.store, clock=scene.clock)
    assert (after.end, after.deferred.reason, after.summarizer.requests) == (7, "cold", [])


def test_it_is_deferred_in_a_database_as_well(tmp_path: Path) -> None:
    """Where old rounds are read when somebody asks, from a checkpoint: the numbers are the same."""
    url, clock = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}?synchronous=normal", FakeClock()
    store = open_store(url)
    scene = Scene(store=store, clock=clock)
    scene.add(9)
    assert scene.compactor.stop(0)
    store.close()
    again = open_store(url)
    after = Scene(0, store=again, clock=clock)
    numbers = {"calls", "missed_saving", "price", "end", "tokens_before", "tokens_after", "retained"}
    assert after.deferred.model_dump(include=numbers) == scene.deferred.model_dump(include=numbers)
    assert after.deferred.missed_saving > after.deferred.calls > 0
    compose(after.memory, ROLE, budget=500)
    assert (after.end, after.summarizer.requests) == (12, [])
    again.close()


def test_a_process_that_shows_what_is_ready_shows_what_another_has_deferred() -> None:
    scene = Scene()
    scene.compactor.stop(0)
    assert Scene(0, store=scene.store, clock=scene.clock, publish="immediately").end == 7


def test_a_compactor_that_is_stopped_shows_nothing() -> None:
    """Its timer is gone; when it is started again, it goes on."""
    scene = Scene()
    assert scene.compactor.stop(0)
    assert scene.clock.pending == []
    scene.clock.advance(1_000)
    assert scene.executor.run_all() == 0
    assert scene.end == 0
    scene.compactor.start()
    scene.executor.run_all()
    assert (scene.end, scene.deferred.reason) == (7, "cold")


@pytest.mark.parametrize("first", [0, 1])
def test_two_processes_hold_the_same_and_one_shows_it(first: int) -> None:
    """Whoever looks first; the other finds it shown, and has lost nothing."""
    one = Scene()
    two = Scene(0, store=one.store, clock=one.clock)
    assert two.summarizer.requests == []
    assert (two.deferred.end, two.deferred.reason) == (7, "saving")
    scenes = (one, two)
    one.clock.advance(300)
    scenes[first].executor.run_all()
    scenes[1 - first].executor.run_all()
    for scene in scenes:
        scene.memory.refresh()
        scene.executor.run_all()
        assert scene.end == 7
        assert not scene.events(Discarded)
        assert scene.compactor.status().failures == 0
    assert len(one.records("compaction published")) == 1


def test_what_another_process_has_extended_is_deferred_here_as_well() -> None:
    one = Scene()
    two = Scene(0, store=one.store, clock=one.clock)
    one.add(5)
    two.memory.refresh()
    two.executor.run_all()
    assert (two.deferred.end, two.summarizer.requests) == (12, [])
    assert not two.events(Discarded)


def test_an_answer_that_the_log_does_not_take_is_deferred_in_this_process() -> None:
    """The store has no room for it: it is shown from here when it is time."""
    store = FullStore()
    store.refused = frozenset({"compaction prepared"})
    scene = Scene(store=store)
    assert (scene.deferred.end, scene.records("compaction prepared")) == (7, [])
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7


def test_a_timer_of_its_own_shows_it_though_nothing_happens() -> None:
    """On the compactor's own thread, by the machine's clock."""
    memory, heard = Memory("session"), Heard()
    for _ in range(10):
        add_round(memory)
    publish = deferred(DEAR, cache_seconds=0.2)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(), publish=publish, on_event=heard):
        heard.until(Published)
        assert heard.until(Deferred, where=lambda event: event.shows).reason == "cold"
    assert memory.get_role_rounds(ROLE)[1] is not None


# -- another host's rounds --------------------------------------------------------------------------------------------


def host_round(number: int, state: str = "finished") -> SimpleNamespace:
    said = f"Item-{number} costs {number * 11} euros. " * 3
    post = SimpleNamespace(send_from=ROLE, send_to="User", message=said)
    return SimpleNamespace(id=f"h{number}", user_query=f"Question {number}?", state=state, post_list=[post])


class Host:
    """Rounds of its own, no Memory."""

    def __init__(self, *, renewed: bool = False) -> None:
        self.renewed = renewed
        self.rounds = [host_round(number) for number in range(1, 11)]
        self.clock, self.executor, self.summarizer = FakeClock(), ManualExecutor(), ScriptedSummarizer()
        self.compactor = ContextCompactor(
            CONFIG, self.summarizer, self.read, role=ROLE, publish="deferred", prices=DEAR,
            executor=self.executor, clock=self.clock, rng=lambda: 1.0,
        )  # fmt: skip
        self.compactor.start()
        self.executor.run_all()

    def read(self) -> list[SimpleNamespace]:
        if self.renewed:  # each time under other ids
            self.rounds = [SimpleNamespace(**{**vars(one), "id": f"{one.id}'"}) for one in self.rounds]
        return self.rounds

    def add(self, count: int) -> None:
        for _ in range(count):
            self.rounds.append(host_round(len(self.rounds) + 1))
            self.compactor.notify_rounds_changed()
            self.executor.run_all()

    @property
    def deferred(self) -> Deferred:
        newest: Deferred = of_kind(self.compactor.events, Deferred)[-1]
        return newest


def test_without_a_memory_it_is_deferred_in_this_process() -> None:
    """And extended, and shown when the cache is cold: going by when this process saw the newest post."""
    host = Host()
    assert host.compactor.get_compaction() is None
    host.clock.advance(200)
    host.add(5)
    assert (host.deferred.end, host.deferred.calls, host.deferred.idle) == (12, 0, 0.0)
    host.clock.advance(299)
    host.compactor.notify_rounds_changed()
    host.executor.run_all()
    assert host.deferred.idle == 299.0
    host.clock.advance(1)
    host.executor.run_all()
    assert host.compactor.get_compaction().end_index == 12  # type: ignore[union-attr]
    assert len(host.summarizer.requests) == 2


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_hosts_round_that_is_gone_or_another_takes_it_away(place: int) -> None:
    """Its rounds may change as they like; it is made anew."""
    host = Host()
    host.rounds[place] = host_round(100 + place)
    host.compactor.notify_rounds_changed()
    host.executor.run_all()
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["rounds_changed"]
    assert (host.deferred.end, len(host.summarizer.requests)) == (7, 2)


def test_rounds_that_are_others_at_every_reading_are_not_paid_for_without_end() -> None:
    """What is made of them fits nothing: it is discarded, and then the compactor backs off."""
    host = Host(renewed=True)
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["rounds_changed"] * 2
    assert len(host.summarizer.requests) == 1, "the same question is found again"
    assert host.compactor.status().state is State.BACKING_OFF


def test_without_a_memory_a_revert_takes_it_away_and_compact_now_shows_it() -> None:
    host = Host()
    wait = in_thread(lambda: host.compactor.compact_now(SOON))
    host.executor.run_coming()
    assert wait().end_index == 7
    host.executor.run_all()
    host.add(5)
    assert host.deferred.end == 12
    assert host.compactor.revert() is None
    host.add(1)
    assert [event.reason for event in of_kind(host.compactor.events, Discarded)] == ["generation"]
    assert host.deferred.end == 13
    assert host.compactor.publish_deferred() is True
    assert host.compactor.get_compaction().end_index == 13  # type: ignore[union-attr]


# -- beside other overlays --------------------------------------------------------------------------------------------


def test_reductions_are_shown_at_once_while_a_compaction_is_deferred() -> None:
    """They lie in rounds behind its end, and do not make it stale."""
    config = CompactorConfig(threshold=7, retain_recent=3)
    strategies = (offload_large(threshold=200, preview=20, keep_last=0), compact_rounds)
    scene = Scene(config=config, strategies=strategies, trigger=after_rounds(7) | over_tokens(600))
    assert scene.deferred.end == 7
    long_round(scene.memory)
    add_round(scene.memory)
    scene.executor.run_all()
    assert [event.kind for event in scene.events(Reduced)] == ["offloaded"]
    assert scene.deferred.end == 7
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end == 7
    assert not scene.events(Discarded)


def test_a_pinned_post_that_it_covers_counts_in_what_it_would_be() -> None:
    """And stands in the prompt, word for word, when it is shown."""
    scene = Scene()
    after = scene.deferred.tokens_after
    scene.memory.pin("r2.p2")
    scene.add()
    grown = scene.deferred.tokens_after - after
    scene.clock.advance(300)
    scene.executor.run_all()
    prompt = compose(scene.memory, ROLE, budget=8_000)
    assert "Item-2 costs 22 euros." in text(prompt.messages)
    assert grown > prompt.report.tokens_before - after - 1 > 40
