"""One cycle, in the caller's thread: look, plan, ask, check, publish. No thread, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, add_round, kinds, memory_of, of_kind
from views import TokenCache

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Evaluated,
    Event,
    Exhausted,
    PlanFailed,
    Prepared,
    Published,
    Reduced,
    Rejected,
    Skip,
    Skipped,
    Started,
    StrategyFailed,
    Summary,
    SummaryRejected,
    SummaryRequest,
    View,
    after_rounds,
    compact_rounds,
    compose,
    count_tokens,
    when,
)
from compactor.acceptance.checks import Source
from compactor.cycle import Cycle, StrategyPass
from compactor.journal import JournalWriter
from compactor.summarize import Run, SummaryTask
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, Memory, Reduction, StaleCompaction


class Table:
    """A cycle and what lies around it."""

    def __init__(self, memory: Memory, config: CompactorConfig = CONFIG, **more: Any) -> None:
        self.memory = memory
        self.events: list[Event] = []
        self.time = 100.0
        journal = more.pop("journal", memory.journal(ROLE))
        options: dict[str, Any] = {
            "config": config,
            "rounds_getter": memory.rounds_getter(ROLE),
            "journal": JournalWriter(journal, ROLE, self.events.append),
            "trigger": after_rounds(config.threshold),
            "token_cache": TokenCache(ROLE, count_tokens),
            "emit": self.events.append,
            "emit_later": lambda kind, *pairs, **_: self.events.append(kind(**dict(zip(*pairs, strict=True)))),
            "monotonic": lambda: self.time,
        }
        strategies = more.pop("strategies", (compact_rounds,))
        self.cycle = Cycle(given_strategies=strategies, **options | more)

    def run(
        self,
        ask: Callable[[SummaryRequest], Any] = lambda request: PRICES,
        *,
        stopping: bool = False,
        forced: bool = False,
    ) -> CompactedMessage | None:
        return self.cycle.run(Run(ask, forced, stopping=stopping))


def test_a_cycle_publishes_what_is_due() -> None:
    """And returns it; a second one has nothing to do."""
    table = Table(memory_of(10))
    published = table.run()
    assert published is not None
    assert (published.end_index, published.summary) == (7, PRICES)
    assert table.memory.get_role_rounds(ROLE)[1] == published
    assert table.run() is None
    assert kinds(table.events) == ["evaluated", "started", "prepared", "published", "evaluated", "skipped"]


def test_a_forced_cycle_does_not_ask_the_trigger() -> None:
    """It is told as evaluated all the same, with the reason."""
    table = Table(memory_of(5), trigger=after_rounds(100))
    assert table.run() is None
    assert table.run(forced=True) is not None
    plain, forced = of_kind(table.events, Evaluated)
    assert (plain.is_due, plain.forced) == (False, False)
    assert (forced.is_due, forced.forced) == (True, True)


def test_a_run_that_is_stopped_while_the_summarizer_answers_publishes_nothing() -> None:
    """That is looked at after the answer, just before the publication."""
    table = Table(memory_of(10))

    def ask(_request: SummaryRequest) -> str:
        run.stopping = True
        return PRICES

    run = Run(ask)
    with pytest.raises(StaleCompaction) as caught:
        table.cycle.run(run)
    assert caught.value.reason == "stopped"
    assert kinds(table.events)[-1] == "prepared"
    assert table.memory.get_role_rounds(ROLE)[1] is None


@pytest.mark.parametrize("raised", [ValueError(), SystemExit(), StaleCompaction("late")], ids=repr)
def test_what_the_summarizer_raises_goes_out(raised: BaseException) -> None:
    """Nothing is published."""
    table = Table(memory_of(10))

    def ask(_request: SummaryRequest) -> str:
        raise raised

    with pytest.raises(type(raised)):
        table.run(ask)
    assert table.memory.get_role_rounds(ROLE)[1] is None


def test_a_refused_answer_is_told_by_the_check_it_failed() -> None:
    """``SummaryRejected``."""
    with pytest.raises(SummaryRejected) as caught:
        Table(memory_of(10)).run(lambda request: "")
    assert caught.value.check == "empty"


def test_rounds_that_come_while_it_runs_are_the_next_ones() -> None:
    """One pass works on one snapshot, and a result made before they came is not stale."""
    table = Table(memory_of(10))

    def ask(_request: SummaryRequest) -> str:
        for _ in range(20):
            add_round(table.memory)
        return PRICES

    published = table.run(ask)
    assert published is not None
    assert published.end_index == 7
    assert table.run(lambda request: f"{PRICES} Up to {request.end_index}.").end_index == 27  # type: ignore[union-attr]


def test_a_round_that_fails_after_it_was_covered_is_told_nowhere() -> None:
    """The summary of it gives way to none, and the next is made from the log without it."""
    table, summarizer = Table(memory_of(10)), ScriptedSummarizer()
    table.run(summarizer)
    table.memory.finish_round("r3", state="failed")
    for _ in range(5):
        add_round(table.memory)
    published = table.run(summarizer)
    assert published is not None
    assert (published.end_index, published.end_round_id) == (11, "r12")
    assert summarizer.requests[1].previous is None
    assert (summarizer.requests[1].start_index, summarizer.requests[1].end_index) == (1, 11)
    assert [round_.id for round_ in summarizer.requests[1].rounds] == [f"r{n}" for n in range(1, 13) if n != 3]


@pytest.mark.parametrize(
    ("during", "requests"),
    [
        (lambda memory: memory.rewind("r1"), 1),
        (lambda memory: memory.finish_round("r10", state="failed"), 1),
        (lambda memory: memory.redact("r2.p1"), 1),
        (lambda memory: memory.finish_round(add_round(memory, close=False), state="failed"), 2),
    ],
    ids=["rewound", "failed", "redacted", "of no concern"],
)
def test_no_later_request_tells_of_what_was_hidden_while_a_model_answered(
    during: Callable[[Memory], object], requests: int
) -> None:
    """The cycle stops before the next one. It does not for a round that it never read."""
    table, asked = Table(memory_of(10)), list[SummaryRequest]()

    def ask(request: SummaryRequest) -> str:
        asked.append(request)
        if len(asked) == 1:
            during(table.memory)
            return ""  # refused, so that it is asked for again
        return PRICES

    with pytest.raises(StaleCompaction, match="rounds_changed") if requests == 1 else nullcontext():
        table.run(ask)
    assert len(asked) == requests


def test_seconds_run_from_the_first_request_to_the_publication() -> None:
    """By the clock that is passed in."""
    table = Table(memory_of(10))

    def ask(_request: SummaryRequest) -> str:
        table.time += 2.5
        return PRICES

    table.run(ask)
    assert of_kind(table.events, Published)[0].seconds == 2.5


def test_the_plan_is_asked_once_in_a_cycle_that_does_something() -> None:
    """And not in one that does nothing."""
    asked: list[int] = []
    table = Table(memory_of(10), plan=lambda: asked.append(1) or "The plan.")
    summarizer = ScriptedSummarizer()
    table.run(summarizer)
    table.run(summarizer)
    assert len(asked) == 1
    assert summarizer.requests[0].plan == "The plan."


def test_the_header_is_counted_in_every_view() -> None:
    """Triggers by tokens mean the whole prompt."""
    seen: list[int] = []
    table = Table(memory_of(2), header_tokens=lambda: 1_234, trigger=after_rounds(100))
    table.cycle = replace(table.cycle, trigger=_Spy(seen))
    table.run()
    assert seen == [1_234]


class _Spy:
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def verdict(self, view: View) -> Any:
        self.seen.append(view.header_tokens)
        return after_rounds(100).verdict(view)


# Why nothing is done


@pytest.mark.parametrize("forced", [False, True])
def test_disabled_comes_before_all_else(forced: bool) -> None:
    """Whoever asks."""
    table = Table(memory_of(30), CompactorConfig(enabled=False))
    assert table.run(forced=forced) is None
    assert [event.facts() for event in table.events] == [
        {
            "session": "",
            "role": ROLE,
            "generation": 0,
            "seconds": 0.0,
            "reason": Skip.DISABLED,
            "rounds": 30,
            "tail": 30,
            "closed": 30,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("forced", [False, True])
def test_without_a_round_the_trigger_is_not_asked(forced: bool) -> None:
    """So a trigger may rely on there being one."""
    table = Table(Memory("s"), trigger=None)
    assert table.run(forced=forced) is None
    assert of_kind(table.events, Skipped)[0].reason is Skip.EMPTY


def test_a_revert_holds_until_a_round_is_newer() -> None:
    """One that is open counts as newer; a forced cycle does not wait."""
    table = Table(memory_of(10))
    table.run()
    table.cycle.journal.revert()
    assert table.run() is None
    assert of_kind(table.events, Skipped)[-1].reason is Skip.REVERTED
    assert table.run(forced=True) is not None
    table.cycle.journal.revert()
    add_round(table.memory, close=False)
    published = table.run()
    assert published is not None
    assert published.end_index == 8


# Strategies


def covering(end: int, summary: str = "By hand.", **more: Any) -> Callable[[View], Iterator[CompactedMessage]]:
    def strategy(_view: View) -> Iterator[CompactedMessage]:
        yield CompactedMessage(start_index=1, end_index=end, summary=summary, **more)

    return strategy


def test_a_strategy_of_the_hosts_need_not_know_of_ids() -> None:
    """The compaction is anchored to its last round for it."""
    table = Table(memory_of(10), strategies=(covering(4),))
    published = table.run()
    assert published is not None
    assert (published.end_index, published.end_round_id, published.end_number) == (4, "r4", 4)
    assert of_kind(table.events, Published)[0].requests == 0


def test_strategies_run_in_order_until_the_trigger_no_longer_holds() -> None:
    """Light to heavy; what is not needed is not done."""
    ran: list[str] = []

    def named(name: str, strategy: Callable[[View], Iterable[Any]]) -> Callable[[View], Iterable[Any]]:
        def run(view: View) -> Iterable[Any]:
            ran.append(f"{name} at {view.end}")
            return strategy(view)

        return run

    light, middle, heavy = named("light", covering(2)), named("middle", covering(5)), named("heavy", covering(9))
    table = Table(memory_of(10), strategies=(light, middle, heavy), trigger=after_rounds(5))
    published = table.run()
    assert published is not None
    assert published.end_index == 5
    assert ran == ["light at 0", "middle at 2"]
    assert [event.generation for event in of_kind(table.events, Published)] == [1, 2]


def test_events_name_the_strategy_whose_work_they_tell_of() -> None:
    """Who asked, who was refused and who published: each by the function's name, in one cycle."""
    table = Table(memory_of(10), strategies=(covering(2), compact_rounds), trigger=after_rounds(5))
    answers = iter(["", PRICES])
    table.run(lambda _request: next(answers))
    assert [event.strategy for event in of_kind(table.events, Published)] == ["strategy", "compact_rounds"]
    for kind in (Started, Rejected, Prepared):
        assert [event.strategy for event in of_kind(table.events, kind)] == ["compact_rounds"]


def test_a_forced_cycle_runs_all_strategies() -> None:
    """There is no trigger to stop it."""
    table = Table(memory_of(10), strategies=(covering(2), covering(5)), trigger=after_rounds(100))
    published = table.run(forced=True)
    assert published is not None
    assert published.end_index == 5


def test_a_strategy_that_gives_nothing_lets_the_next_one_try() -> None:
    """Nothing is no failure."""
    table = Table(memory_of(10), strategies=(lambda view: (), covering(3)))
    assert table.run() is not None


def test_without_a_strategy_nothing_is_done_and_said_why() -> None:
    """A host may have none."""
    table = Table(memory_of(10), strategies=())
    assert table.run() is None
    assert of_kind(table.events, Skipped)[0].reason is Skip.NOTHING_NEW


@pytest.mark.parametrize("end", [0, 10, 11])
def test_a_strategy_can_cover_neither_an_open_round_nor_nothing(end: int) -> None:
    """The error says what it may."""
    memory = memory_of(10, close_last=False)
    with pytest.raises(ValueError, match=rf"ends at round {end}; it must end behind 0 and at most at 9"):
        Table(memory, strategies=(covering(end),)).run()
    assert memory.get_role_rounds(ROLE)[1] is None


def test_what_is_no_overlay_is_an_error_that_says_so() -> None:
    """Not something that is lost in silence."""
    with pytest.raises(TypeError, match="a strategy gave str; it must give overlays"):
        Table(memory_of(10), strategies=(lambda view: ["summary"],)).run()


def test_a_reduction_of_what_is_not_there_is_discarded_and_the_next_strategy_has_its_turn() -> None:
    """A strategy that goes wrong keeps no other from compacting."""
    reduction = Reduction(round_id="r1", first_post_id="p", last_post_id="p", kind="dropped")
    memory = memory_of(10)
    table = Table(memory, strategies=(lambda view: [reduction], compact_rounds))
    table.run()
    assert [event.reason for event in of_kind(table.events, Discarded)] == ["rounds_changed"]
    compaction = memory.get_role_rounds(ROLE)[1]
    assert compaction is not None
    assert compaction.end_index == 7


def test_a_plan_that_is_no_text_is_told_as_text() -> None:
    """A host's own record of a plan will do, if it can say what it is."""

    class Plan:
        def __str__(self) -> str:
            return "1. load; 2. fit"

    asked: list[SummaryRequest] = []
    Table(memory_of(10), plan=Plan).run(lambda request: asked.append(request) or PRICES)
    assert asked[0].plan == "1. load; 2. fit"


def test_a_strategy_may_ask_the_summarizer_through_the_views_work() -> None:
    """Checked and told like any other request."""

    def strategy(view: View) -> Iterator[CompactedMessage]:
        assert view.work is not None
        request = SummaryRequest(role=view.role, rounds=view.rounds[:2], start_index=1, end_index=2)
        summary = view.work.summarize(SummaryTask(request, Source("word " * 50, 50)))
        yield CompactedMessage(start_index=1, end_index=2, summary=summary.text)

    table = Table(memory_of(10), strategies=(strategy,))
    published = table.run(lambda request: Summary(f"<summary>{PRICES}</summary>"))
    assert published is not None
    assert published.summary == PRICES
    assert of_kind(table.events, Started)[0].facts() == {
        "session": "", "role": ROLE, "generation": 0, "seconds": 0.0, "strategy": "strategy",
        "start": 1, "end": 2, "tokens_before": 50, "waited": 0.0,
    }  # fmt: skip
    assert of_kind(table.events, Published)[0].requests == 1


# several strategies: reductions, failures, and what is not enough


def dropping(*places: int) -> Callable[[View], Iterator[Reduction]]:
    """Return a strategy that drops the last post of the rounds at *places*."""

    def strategy(view: View) -> Iterator[Reduction]:
        for place in places:
            round_ = view.rounds[place]
            yield Reduction.over(round_, round_.post_list[-1:], "dropped")

    strategy.__name__ = "dropping"
    return strategy


def failing(view: View) -> Iterator[Reduction]:
    raise ValueError("what was said")
    yield


def test_a_reduction_is_told_of_with_its_neighbours_and_what_it_saved() -> None:
    """Ids, counts and tokens, for whoever shows what was done; no text."""
    memory = memory_of(5)
    posts = memory.conversation.rounds[1].post_list
    table = Table(memory, trigger=when(lambda view: not view.reductions.by_round), strategies=(dropping(1),))
    whole = StrategyPass(table.cycle).view.tokens
    assert table.run() is None
    (event,) = of_kind(table.events, Reduced)
    assert (event.strategy, event.kind, event.posts) == ("dropping", "dropped", 1)
    assert (event.round_id, event.first_post_id, event.last_post_id) == (
        memory.conversation.rounds[1].id,
        posts[-1].id,
        posts[-1].id,
    )
    assert event.previous_post_id == (posts[-2].id if len(posts) > 1 else "")
    assert event.next_post_id == ""
    assert event.tokens_after == 0
    assert StrategyPass(table.cycle).view.tokens == whole - event.tokens_before


def test_the_view_is_measured_again_after_each_strategy() -> None:
    """Light ones first, and no heavier one than it takes."""
    memory = memory_of(10)
    enough = when(lambda view: len(view.reductions.by_round) < 2)
    table = Table(memory, trigger=enough, strategies=(dropping(0), dropping(1), compact_rounds))
    assert table.run() is None
    assert [event.strategy for event in of_kind(table.events, Reduced)] == ["dropping", "dropping"]
    assert not of_kind(table.events, Exhausted)


def test_a_strategy_that_fails_is_skipped_and_the_next_is_tried() -> None:
    """With an event that names it and not what it said; where the next is enough, that was all."""
    table = Table(memory_of(10), strategies=(failing, compact_rounds))
    assert table.run() is not None
    assert [(event.strategy, event.error) for event in of_kind(table.events, StrategyFailed)] == [
        ("failing", "ValueError")
    ]
    assert not of_kind(table.events, Exhausted)


def test_where_all_were_not_enough_that_is_told_and_the_failure_goes_out() -> None:
    """What was published stays; the runner tries again later."""
    memory = memory_of(10)
    table = Table(memory, trigger=when(lambda view: True), strategies=(dropping(0), failing))
    with pytest.raises(ValueError, match="what was said"):
        table.run()
    (exhausted,) = of_kind(table.events, Exhausted)
    assert exhausted.strategies == 2
    assert memory.rounds_getter(ROLE)().reductions.by_round


def test_where_nothing_failed_and_it_is_not_enough_that_is_told_once() -> None:
    """Not again at every event, while there is nothing more to do."""
    table = Table(memory_of(10), trigger=when(lambda view: True), strategies=(dropping(0), dropping(1)))
    table.run()
    assert len(of_kind(table.events, Exhausted)) == 1
    table.run()
    assert len(of_kind(table.events, Exhausted)) == 1
    assert of_kind(table.events, Skipped)


def test_no_reduction_is_published_that_is_not_allowed_any_more() -> None:
    """The compactor was stopped while the strategy was at work."""
    memory = memory_of(5)
    table = Table(memory, trigger=when(lambda view: True), strategies=(dropping(0), dropping(1)))
    with pytest.raises(StaleCompaction) as raised:
        table.run(stopping=True)
    assert raised.value.reason == "stopped"
    assert not memory.rounds_getter(ROLE)().reductions.by_round


def test_a_revert_in_the_middle_makes_a_reduction_stale() -> None:
    """It was made beside another summary, so the whole pass is made again."""
    memory = memory_of(10)
    table = Table(memory)
    table.run()

    def reverting(view: View) -> Iterator[Reduction]:
        memory.journal(ROLE).revert()
        yield from dropping(8)(view)

    later = Table(memory, trigger=when(lambda view: True), strategies=(reverting, compact_rounds))
    with pytest.raises(StaleCompaction) as raised:
        later.run()
    assert raised.value.reason == "generation"


def test_a_plan_that_raises_is_told_of_and_the_summary_is_made_without() -> None:
    """By the class of the error alone."""

    def plan() -> str:
        raise KeyError("what was planned")

    table = Table(memory_of(10), plan=plan)
    assert table.run() is not None
    assert [event.error for event in of_kind(table.events, PlanFailed)] == ["KeyError"]


def test_a_journal_that_keeps_no_reductions_is_given_none() -> None:
    """A host's own may know of compactions alone; what a strategy makes all the same is discarded."""
    memory = memory_of(10)
    inner = memory.journal(ROLE)

    class Plain:
        read, publish, revert = inner.read, inner.publish, inner.revert

    table = Table(memory, journal=Plain(), strategies=(dropping(0), compact_rounds))
    assert table.run() is not None
    assert [event.reason for event in of_kind(table.events, Discarded)] == ["already_covered"]
    assert not of_kind(table.events, Reduced)


def test_no_summary_is_published_that_makes_prompts_longer() -> None:
    """It is measured by what prompts show of the rounds and around the summary, not by a transcript with its markup."""
    memory = Memory("s")
    for number in range(8):
        memory.append({"role": "user", "content": f"How is item {number}, then?"})
        memory.append({"role": "assistant", "content": f"Item {number} is sold for {number} euros."})
    memory.finish_round(memory.conversation.rounds[-1])
    config = CompactorConfig(threshold=0, retain_recent=0, target_tokens=None)
    before = compose(memory, budget=10_000).tokens
    lengths, published = list[int](), list[bool]()
    for words in range(12):
        told = " ".join(f"Item {number} is sold{' by us' * words} for {number} euros." for number in range(8))
        compactor = ContextCompactor.for_role(memory, "assistant", config, ScriptedSummarizer(default=told))
        with suppress(CompactionFailed):
            compactor.compact_now(20)
        lengths.append(compose(memory, budget=10_000).tokens)
        events = of_kind(compactor.events, Published)
        published.append(bool(events))
        for event in events:
            assert event.tokens_before - event.tokens_after == before - lengths[-1]
        if compactor.get_compaction() is not None:
            compactor.revert()
    assert max(lengths) <= before
    assert (published[0], published[-1]) == (True, False)


def test_a_model_is_not_asked_where_no_summary_can_make_prompts_shorter() -> None:
    """What stands around it takes more than all that is new: it is looked at again when there is more."""
    table, summarizer = Table(Memory("s")), ScriptedSummarizer()
    for _ in range(9):
        table.memory.append({"role": "user", "content": "?"})
        table.memory.append({"role": "assistant", "content": "!"})
    table.run(summarizer, forced=True)
    assert summarizer.requests == []
    assert of_kind(table.events, Published) == []


def test_no_more_is_asked_for_than_makes_prompts_shorter() -> None:
    """Where prompts show little of the new rounds, the summary is asked to be shorter than ``target_tokens``."""
    table, summarizer = Table(memory_of(8)), ScriptedSummarizer()
    full = replace(StrategyPass(table.cycle).view)
    table.run(summarizer, forced=True)
    (request,) = summarizer.requests
    assert request.target_tokens is not None
    assert 0 < request.target_tokens < full.count_closed_tokens(0, request.end_index) < CONFIG.target_tokens  # type: ignore[operator]
    for number in range(30):
        said = f"Item {number} is one of many, and it is sold for {number} euros a piece. " * 9
        round_ = table.memory.create_round("And the next?")
        table.memory.add_post(round_, send_from=ROLE, send_to="User", message=said)
        table.memory.finish_round(round_)
    table.run(summarizer, forced=True)
    assert summarizer.requests[-1].target_tokens == CONFIG.target_tokens


def test_too_little_to_be_said_in_less_is_no_failure_of_what_would_answer_the_same_again() -> None:
    """The next round may make it enough; time does not."""
    table = Table(memory_of(9))
    said = "Items were asked for, and none of them is left. " * 40
    same: Any = ScriptedSummarizer(default=said)
    same.deterministic = True
    assert table.run(same, forced=True) is None
    assert [event.check for event in of_kind(table.events, Rejected)] == ["larger"]
    assert [event.reason for event in of_kind(table.events, Skipped)] == [Skip.TOO_LITTLE]
    with pytest.raises(SummaryRejected):
        table.run(ScriptedSummarizer(default=said), forced=True)


@pytest.mark.parametrize(("times", "skipped"), [(14, True), (15, False)])
def test_what_nobody_could_say_in_less_is_no_failure_of_a_models_either(times: int, skipped: bool) -> None:
    """An honest summary of less would be longer: nobody is asked before more was said."""
    table = Table(Memory("s"))
    for _ in range(5):
        table.memory.finish_round(table.memory.create_round("Two of the blue ones." + " as ever" * times))
    said = "The user ordered two of the blue ones, as ever, and three of the green ones for their sister. " * 2

    with nullcontext() if skipped else pytest.raises(SummaryRejected):
        assert table.run(ScriptedSummarizer(default=said), forced=True) is None

    assert {event.check for event in of_kind(table.events, Rejected)} == (set() if skipped else {"larger"})
    assert len(of_kind(table.events, Skipped)) == skipped


@pytest.mark.parametrize(
    ("query", "said", "skipped"),
    [
        ("?", "None.", True),
        ("hi", "N/A", True),
        ("42", "None.", False),
        ("?", "502 Bad Gateway", False),
        ("?", "<html><body>Error</body></html>", False),
        ("Where is parcel 4711, and when is it delivered to my sister in the north?", "None.", False),
    ],
)
def test_a_model_that_says_that_nothing_was_said_has_not_failed_where_that_is_so(
    query: str, said: str, skipped: bool
) -> None:
    """Of rounds with hardly a word; an error is one, whatever it should sum up."""
    table = Table(Memory("s"))
    for _ in range(40):
        table.memory.finish_round(table.memory.create_round(query))

    with nullcontext() if skipped else pytest.raises(SummaryRejected):
        assert table.run(ScriptedSummarizer(default=said), forced=True) is None

    assert {event.check for event in of_kind(table.events, Rejected)} == {"hollow"}
    assert [event.reason for event in of_kind(table.events, Skipped)] == [Skip.TOO_LITTLE] * skipped


def test_prohibitions_that_a_summary_lost_do_not_make_prompts_longer() -> None:
    """What is put back counts: such a summary is refused."""
    table = Table(Memory("s"))
    for number in range(2):
        round_ = table.memory.create_round(
            f"Never sell item {number} to anybody in the north, whatever they offer for it."
        )
        table.memory.add_post(round_, send_from=ROLE, send_to="User", message="Understood, I keep to that. " * 6)
        table.memory.finish_round(round_)
    add_round(table.memory)
    before = compose(table.memory, ROLE, budget=10_000).tokens
    for words in range(5, 80, 5):
        with suppress(SummaryRejected):
            table.run(ScriptedSummarizer(default="The user spoke of items 0 and 1: " + "north, " * words), forced=True)
        assert compose(table.memory, ROLE, budget=10_000).tokens <= before
