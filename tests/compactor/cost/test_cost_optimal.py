"""``cost_optimal`` weighs what longer prompts cost against what a compaction costs, and says with which numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from chats import answer, calls, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from scene import of_kind
from views import TokenCache

from compactor import (
    CompactorConfig,
    ContextCompactor,
    CostEvaluated,
    Evaluated,
    Prices,
    Published,
    Trigger,
    View,
    after_rounds,
    compose,
    cost_optimal,
    over_messages,
)
from compactor.cost import CostOptimal, Sizes, find_best_interval, price_compaction
from compactor.cost.cost_optimal import HALF_LIFE, measure_growth
from compactor.cost.publication import find_prices
from compactor.testing import ScriptedSummarizer
from compactor.tokens import MESSAGE_TOKENS, PROMPT_TOKENS
from memory import CompactedMessage, Memory
from prompts import ABOVE, load_contract

#: A round of these is 500 tokens with what the format adds.
ROUND = 500
CONFIG = CompactorConfig(retain_recent=2, target_tokens=400)


def count(text: str) -> int:
    """Count words: quick, and what a test says is what there is."""
    return text.count(" ") + 1 if text else 0


def chat(rounds: int, tokens: int = ROUND, *, memory: Memory | None = None) -> Memory:
    """Return rounds of a question and an answer, the newest still open."""
    memory = memory if memory is not None else Memory("s")
    for _ in range(rounds):
        memory.append(user(words(tokens // 5)))
        memory.append(answer(words(tokens - tokens // 5 - 2 * MESSAGE_TOKENS)))
    return memory


def view_of(memory: Memory, end: int = 0, **more: Any) -> View:
    """Return what a compactor sees with the first *end* rounds covered by a summary of 400 tokens."""
    rounds, _ = memory.get_role_rounds("assistant")
    summary = None
    if end:
        last = rounds[end - 1].id
        summary = CompactedMessage(start_index=1, end_index=end, end_round_id=last, summary=words(400))
    return View(rounds, summary, TokenCache("assistant", count), **more)


def growth_of(view: View, end: int) -> Sizes:
    return measure_growth(view, end)[1]


def trigger(config: CompactorConfig = CONFIG, **terms: Any) -> CostOptimal:
    return cost_optimal(**({"min_new_tokens": 0, "latency_calls": 0} | terms)).within(config)


def cost_evaluation(trigger: Trigger, view: View) -> CostEvaluated:
    """Return the numbers behind a verdict, which say the same as it does."""
    verdict = trigger.verdict(view)
    assert verdict.cost_evaluation is not None
    assert verdict.cost_evaluation.is_due is verdict.is_due is trigger(view)
    return verdict.cost_evaluation


# -- when it holds --------------------------------------------------------------------------------------------------------


def test_it_holds_from_the_interval_on_where_the_conversation_costs_least() -> None:
    """Not a round before; what it goes by are the sizes of the conversation as it is."""
    due = trigger()
    memory, said = chat(3), []
    while not said or not said[-1].is_due:
        chat(1, memory=memory)
        said.append(cost_evaluation(due, view_of(memory)))

    last, sizes = said[-1], due.measure_sizes(view_of(memory))
    assert len(said) > 5
    assert {one.reason for one in said[:-1]} == {"below_best"}
    assert last.reason == "grown"
    assert last.best == pytest.approx(find_best_interval(Prices(), sizes))
    assert last.price == pytest.approx(price_compaction(Prices(), sizes))
    assert last.grown - ROUND < last.best <= last.grown


def test_the_numbers_are_those_of_the_prompt() -> None:
    """Together they are the prompt as the agent's model reads it, tools included."""
    memory = chat(12)
    view = view_of(memory, 4, header_tokens=100)
    one = cost_evaluation(trigger(latency_calls=3), view)

    assert one.system == PROMPT_TOKENS + 100
    assert one.summary == view.compaction_tokens
    assert one.grown == 6 * ROUND
    assert one.retained == 2 * ROUND + 3 * ROUND
    assert one.per_call == ROUND
    assert one.tokens == view.tokens == one.system + one.summary + one.grown + one.retained - 3 * ROUND


def test_the_event_is_the_same_as_one_that_is_checked() -> None:
    """Hosts give whole numbers where fractions are meant."""
    whole = Prices(cached_input=0, cache_write=1, output=5)
    for prices, left in ((whole, 20), (Prices(), None)):
        one = cost_evaluation(
            cost_optimal(prices, calls_left=left, latency_calls=2).within(CONFIG), view_of(chat(12), 4)
        )
        checked = CostEvaluated.model_validate(one.model_dump())
        assert (repr(one), one.model_dump_json()) == (repr(checked), checked.model_dump_json())


def test_before_the_first_summary_it_is_as_long_as_is_wished_for() -> None:
    assert cost_evaluation(trigger(), view_of(chat(5))).summary == 400
    assert cost_evaluation(trigger(CompactorConfig(target_tokens=None)), view_of(chat(5))).summary == 1_000


def test_continuing_and_asking_for_changes_are_due_earlier() -> None:
    """They cost less, so they are worth while more often."""
    view = view_of(chat(12), 4)
    dear = Prices(cache_write=1.25, summarizer_output=5)
    separate, behind, changes = (
        cost_evaluation(trigger(prices=dear, **how), view).best
        for how in ({}, {"style": "continue"}, {"style": "continue", "delta_tokens": 100})
    )
    assert separate is not None
    assert behind is not None
    assert changes is not None
    assert changes < behind < separate


def test_cold_caches_make_it_due_earlier() -> None:
    """By what the provider says that it had in its cache: then a long prompt is paid for in full again and again."""
    memory = chat(12)
    warm = cost_evaluation(trigger(), view_of(memory, 4))
    for _ in range(20):
        memory.record_usage("assistant", 6_000, counted=6_000, cached_tokens=0)
    cold = cost_evaluation(trigger(), view_of(memory, 4))

    assert warm.cached_price == 0.1
    assert cold.cached_price > 0.5
    assert cold.best is not None
    assert warm.best is not None
    assert cold.best < warm.best / 2


def test_where_cached_tokens_cost_nothing_only_the_budget_makes_it_due() -> None:
    free = trigger(prices=Prices(cached_input=0), budget=20_000)
    assert cost_evaluation(free, view_of(chat(30))).best is None
    assert cost_evaluation(free, view_of(chat(30))).reason == "below_best"
    assert cost_evaluation(free, view_of(chat(41))).reason == "budget"


# -- its bounds -------------------------------------------------------------------------------------------------------------


def test_it_never_holds_for_fewer_tokens_than_the_least() -> None:
    """However cheap a compaction would be: each one more is one more that facts pass through."""
    cheap = Prices(summarizer_input=0, summarizer_output=0.01)
    early = next(n for n in range(3, 40) if trigger(prices=cheap)(view_of(chat(n))))
    late = next(n for n in range(3, 40) if trigger(prices=cheap, min_new_tokens=6_000)(view_of(chat(n))))

    assert early < late
    assert cost_evaluation(trigger(prices=cheap, min_new_tokens=6_000), view_of(chat(late))).grown == 6_000


def test_the_budget_is_kept_whatever_is_cheapest() -> None:
    """It is due while there is room for what comes until the compaction is ready; and of the newest rounds as few are
    kept as it takes."""
    due = trigger(CompactorConfig(retain_recent=6), min_new_tokens=100_000, budget=5_000, latency_calls=2)
    first = next(n for n in range(1, 20) if due(view_of(chat(n))))
    verdict = due.verdict(view_of(chat(first)))

    assert verdict.cost_evaluation is not None
    assert verdict.cost_evaluation.reason == "budget"
    assert verdict.token_threshold == verdict.cost_evaluation.ceiling
    assert verdict.cost_evaluation.ceiling == pytest.approx(5_000 - 3 * ROUND, abs=1), "one more: the prompt between"
    assert verdict.cost_evaluation.ceiling <= verdict.cost_evaluation.tokens < 5_000 - ROUND
    assert view_of(chat(first)).find_due_end(CompactorConfig(retain_recent=6), verdict.token_threshold) > 0


@pytest.mark.parametrize(
    ("terms", "config", "view", "budget"),
    [
        ({"budget": 9_000}, CompactorConfig(max_tokens=8_000), {}, 9_000),
        ({}, CompactorConfig(max_tokens=8_000), {}, 8_000),
        ({}, CompactorConfig(), {"model": "gpt-4"}, int(0.9 * 8_192)),
    ],
)
def test_without_a_budget_it_is_that_of_the_configuration_or_of_the_model(
    terms: dict[str, Any], config: CompactorConfig, view: dict[str, str], budget: int
) -> None:
    assert cost_evaluation(trigger(config, **terms), view_of(chat(2), **view)).ceiling == budget - ROUND


def test_the_providers_own_count_is_what_the_budget_limits() -> None:
    """Where it counts more than we do, by as much earlier."""
    memory, due = chat(7), trigger(budget=5_000, min_new_tokens=100_000)
    assert not due(view_of(memory))
    memory.record_usage("assistant", 4_500, counted=3_000)
    one = cost_evaluation(due, view_of(memory))
    assert one.reason == "budget"
    assert one.ceiling == pytest.approx(5_000 - 1.5 * ROUND, abs=1)
    assert one.tokens == math.ceil(1.5 * view_of(memory).tokens)


def test_it_does_not_hold_where_nothing_would_be_covered() -> None:
    """The newest rounds are retained, and one that is open cannot be covered: it would run again and again for nothing."""
    memory = Memory.from_messages([user(words(30_000)), answer(words(10))])
    retained = trigger(CompactorConfig(retain_recent=20), prices=Prices(summarizer_output=0))

    assert cost_evaluation(trigger(budget=5_000), view_of(memory)).reason == "nothing_to_cover"
    assert cost_evaluation(retained, view_of(chat(15))).reason == "nothing_to_cover"
    assert cost_evaluation(trigger(budget=5_000), view_of(Memory("empty"))).reason == "nothing_to_cover"


rounds_of_tokens = st.lists(st.integers(20, 4_000), min_size=1, max_size=25)


@given(rounds_of_tokens, st.integers(0, 8), st.integers(0, 6_000), st.integers(1_000, 40_000), st.integers(0, 4))
def test_it_holds_between_its_bounds(tokens: list[int], covered: int, least: int, budget: int, latency: int) -> None:
    """Never below the least, but for the budget's sake; always at the ceiling, where something can be covered."""
    memory = Memory("s")
    for number in tokens:
        chat(1, number, memory=memory)
    due = trigger(min_new_tokens=least, budget=budget, latency_calls=latency)
    view = view_of(memory, min(covered, len(tokens) - 1))
    one = cost_evaluation(due, view)

    assert budget // 2 <= one.ceiling <= budget
    can_cover = view.find_due_end(CONFIG, one.ceiling) > view.end
    if one.tokens >= one.ceiling and can_cover:
        assert one.reason == "budget"
    elif one.is_due:
        assert one.grown >= max(least, one.best or 0, 1)
    else:
        assert one.grown < max(least, one.best or 0, 1)


# -- the end ----------------------------------------------------------------------------------------------------------------


def test_a_conversation_that_ends_soon_is_not_compacted() -> None:
    """What the calls that are left would save does not repay it; the budget is kept all the same."""
    view, due = view_of(chat(40), 4), cost_evaluation(trigger(), view_of(chat(40), 4))
    enough = due.price / (due.cached_price * due.grown)

    assert cost_evaluation(trigger(calls_left=enough - 0.01), view).reason == "ends_soon"
    assert cost_evaluation(trigger(calls_left=enough + 0.01), view).reason == "grown"
    assert cost_evaluation(trigger(calls_left=0, budget=10_000), view).reason == "budget"


def test_what_is_saved_begins_when_the_compaction_is_there() -> None:
    """After the calls that go by meanwhile; and the first summary adds itself to what it saves."""
    first = view_of(chat(40))
    due = cost_evaluation(trigger(latency_calls=5), first)
    enough = 5 + due.price / (due.cached_price * (due.grown - due.summary))

    assert cost_evaluation(trigger(latency_calls=5, calls_left=enough - 0.01), first).reason == "ends_soon"
    assert cost_evaluation(trigger(latency_calls=5, calls_left=enough + 0.01), first).reason == "grown"


def test_whoever_knows_how_many_calls_are_left_is_asked_each_time() -> None:
    """None: nobody can say, so it goes on."""
    seen: list[View] = []
    answers = iter([0, None, 1e6])

    def left(view: View) -> float | None:
        seen.append(view)
        return next(answers)

    due, view = trigger(calls_left=left), view_of(chat(40), 4)
    said = [due.verdict(view).cost_evaluation for _ in range(3)]
    assert [(one.reason, one.calls_left) for one in said if one] == [("ends_soon", 0), ("grown", None), ("grown", 1e6)]
    assert seen == [view] * 3


# -- what somebody chose ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chosen", "is_due"), [({"threshold": 7}, True), ({"threshold": 8}, False), ({}, False)])
def test_a_threshold_that_somebody_chose_still_holds(chosen: dict[str, int], is_due: bool) -> None:
    """The default is nobody's choice: with that alone, only what is cheapest counts."""
    due = trigger(CompactorConfig(retain_recent=2, **chosen), min_new_tokens=100_000)
    for rounds in (8, 40):
        one = cost_evaluation(due, view_of(chat(rounds, 50)))
        assert one.is_due is (is_due or (rounds == 40 and bool(chosen)))
        assert one.reason == ("configured" if one.is_due else "below_best")


def test_a_number_of_tokens_that_somebody_chose_still_holds() -> None:
    """At its share, with the token threshold, beside a threshold of rounds."""
    config = CompactorConfig(max_tokens=4_000, token_ratio=0.5, threshold=50)
    verdict = trigger(config, min_new_tokens=100_000).verdict(view_of(chat(5)))

    assert verdict.token_threshold == 2_000
    assert verdict.cost_evaluation is not None
    assert verdict.cost_evaluation.reason == "configured"
    assert not trigger(config, min_new_tokens=100_000)(view_of(chat(3)))
    assert trigger(config, min_new_tokens=100_000)(view_of(chat(51, 20)))


def test_it_combines_with_others() -> None:
    """Each part is told of the configuration, the numbers stay, and so do the prices."""
    prices = Prices(cached_input=0.2)
    either = (cost_optimal(prices) | over_messages(7)).within(CompactorConfig(threshold=5))
    both = (after_rounds(1) & cost_optimal(prices)).within(CompactorConfig(threshold=5))

    assert either.verdict(view_of(chat(4, 50))).cost_evaluation is not None
    assert either(view_of(chat(4, 50)))
    assert not both(view_of(chat(5, 50)))
    assert both(view_of(chat(6, 50)))
    assert both.verdict(view_of(chat(1, 50))).cost_evaluation is None, "the other part alone said no"
    assert find_prices(either) == find_prices(both) == prices
    assert find_prices(over_messages(7)) is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"budget": 0}, "budget"),
        ({"delta_tokens": 0}, "delta_tokens"),
        ({"style": "both"}, "style"),
        ({"latency_calls": -1}, "latency_calls"),
        ({"calls_left": float("nan")}, "calls_left"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        cost_optimal(**wrong)


def test_prices_may_be_named_by_the_model() -> None:
    assert cost_optimal("gpt-4o").prices == Prices.of_model("gpt-4o")


# -- how many calls go by while one is made -------------------------------------------------------------------------------


def test_the_latency_is_measured_by_the_calls_that_go_by() -> None:
    """From when a compaction was due until it is there; earlier ones count for half. What comes meanwhile is retained."""
    due, memory, covered, measured = cost_optimal(min_new_tokens=0).within(CONFIG), Memory("s"), 0, []
    for went_by in (3, 5, 5):
        while not due(view := view_of(memory, covered)):
            chat(1, memory=memory)
        covered = view.find_due_end(CONFIG)
        summary = view_of(memory, covered).compaction
        before = cost_evaluation(due, replace(view, compaction=summary, as_composed=False)).latency_calls
        assert before == (measured[-1] if measured else 1), "within the pass that makes it nobody knows yet"
        chat(went_by, memory=memory)
        one = cost_evaluation(due, view_of(memory, covered))
        assert one.retained == pytest.approx(2 * ROUND + one.latency_calls * one.per_call, abs=1)
        measured.append(one.latency_calls)
    assert measured == [3, 4, 4.5]


def test_the_margin_below_the_budget_is_for_the_longest_of_the_newest_compactions() -> None:
    """A slow one would otherwise be followed by one that begins too late; eight quick ones later it is forgotten."""
    due, memory, covered, margins = cost_optimal(min_new_tokens=0, budget=60_000).within(CONFIG), Memory("s"), 0, []
    for went_by in (5, *[1] * 8):
        while not due(view := view_of(memory, covered)):
            chat(1, memory=memory)
        covered = view.find_due_end(CONFIG)
        chat(went_by, memory=memory)
        one = cost_evaluation(due, view_of(memory, covered))
        margins.append((60_000 - one.ceiling) / one.per_call)
    assert margins == pytest.approx([*[6] * 8, 2], abs=0.02), "and one call more, for the prompt in between"


def test_a_latency_that_is_given_is_not_measured() -> None:
    due, memory = trigger(latency_calls=2), chat(40)
    covered = view_of(memory).find_due_end(CONFIG)
    assert cost_evaluation(due, view_of(memory)).is_due
    assert cost_evaluation(due, view_of(chat(7, memory=memory), covered)).latency_calls == 2


def test_the_summarizers_prompt_is_paid_for_as_well() -> None:
    """And what is said beside it: that changes are wanted, and that the conversation stands above."""
    view, plain = view_of(chat(3)), count(CONFIG.prompt.content)
    changes, above = count(load_contract("changes").content), count(ABOVE)
    assert trigger().measure_sizes(view).instruction == plain > 100
    assert trigger(delta_tokens=60).measure_sizes(view).instruction == plain + changes
    assert trigger(delta_tokens=60, style="continue").measure_sizes(view).instruction == plain + changes + above


# -- growth -----------------------------------------------------------------------------------------------------------------


def test_the_newest_calls_say_most_of_how_fast_it_grows() -> None:
    """So many calls ago counts for half; what has been compacted, for nothing."""
    memory = chat(HALF_LIFE + 1, 100, memory=chat(30, 1_000))
    growth = growth_of(view_of(memory), 0)
    weights = [0.5 ** (place / HALF_LIFE) for place in range(HALF_LIFE + 31)]

    old, new = sum(weights[HALF_LIFE + 1 :]), sum(weights[: HALF_LIFE + 1])
    assert growth.per_call == pytest.approx((1_000 * old + 100 * new) / (old + new), rel=0.03)
    assert growth_of(view_of(memory, 30), 30).per_call == pytest.approx(100)


def test_it_grows_with_calls_of_the_model_not_with_rounds() -> None:
    """Of an agent with tools, each result is read by the next call."""
    turn = [
        user(words(96)),
        calls("c"),
        result("c", words(396)),
        calls("d"),
        result("d", words(396)),
        answer(words(96)),
    ]
    view = view_of(Memory.from_messages(turn * 3))

    assert growth_of(view, 0).per_call == pytest.approx(view.count_tokens_after(0) / 9, rel=0.03)
    assert view.count_calls_after(0) == 9
    assert view.count_calls_after(2) == 3


def test_a_question_does_not_change_how_fast_it_grows() -> None:
    """Only with its answer is it a call's tokens; else a trigger would see another interval after each."""
    memory = chat(3)
    memory.finish_round(memory.conversation.rounds[-1])
    before = growth_of(view_of(memory), 3)
    memory.append(user(words(396)))
    asked = growth_of(view_of(memory), 3)
    assert (asked.per_call, asked.retained) == (before.per_call, before.retained + 400)
    memory.append(answer(words(96)))
    assert before.per_call == growth_of(view_of(memory), 3).per_call == ROUND


def test_what_no_call_has_read_yet_the_first_will_read() -> None:
    view = view_of(Memory.from_messages([user(words(96))]))
    assert growth_of(view, 0).per_call == 100


def silent(rounds: int) -> Memory:
    """Return rounds in which nobody answers."""
    memory = Memory("s")
    for _ in range(rounds):
        memory.finish_round(memory.create_round("word"))
    return memory


@pytest.mark.parametrize(
    ("memory", "most"),
    [
        (chat(400, 20), 4 * HALF_LIFE),
        (silent(400), 4 * HALF_LIFE),
        (Memory.from_messages([user(), *[calls("c"), result("c")] * 9, answer()] * 100), 4 * HALF_LIFE // 10 + 1),
    ],
    ids=["chat", "silent", "tools"],
)
def test_a_long_tail_is_not_read_through_each_time(memory: Memory, most: int) -> None:
    """It is looked at after every post."""
    view, looked = view_of(memory), []

    class Watched(list[Any]):
        def __getitem__(self, place: Any) -> Any:
            looked.append(place)
            return super().__getitem__(place)

    view.prefix_sums.round_tokens = Watched(view.prefix_sums.round_tokens)
    growth_of(view, 0)
    assert looked == [view.closed - 1 - place for place in range(len(looked))]
    assert most / 2 < len(looked) <= most


# -- in a compactor -----------------------------------------------------------------------------------------------------------


def compactor_of(memory: Memory, summarizer: object, **more: Any) -> ContextCompactor:
    more = {"trigger": cost_optimal(min_new_tokens=0), "counter": count, "config": CONFIG} | more
    return ContextCompactor.for_role(memory, "assistant", summarizer=summarizer, history=100_000, **more)


def test_every_decision_is_told_with_its_numbers() -> None:
    """Beside what triggers tell anyway; with the role, and the generation that it was based on."""
    memory = Memory("s")
    said = words(300).replace("word", "term")
    summarizer = ScriptedSummarizer(default=lambda request: f"Up to {request.end_index}: {said}")
    with compactor_of(memory, summarizer) as compactor:
        for _ in range(60):
            chat(1, memory=memory)
            assert compactor.wait_idle(30)
    told, looked = of_kind(compactor.events, CostEvaluated), of_kind(compactor.events, Evaluated)
    published = of_kind(compactor.events, Published)

    assert len(published) > 2
    assert [(one.is_due, one.generation, one.role) for one in told] == [
        (one.is_due, one.generation, "assistant") for one in looked
    ]
    assert sum(one.is_due for one in told) == len(published)
    assert {one.generation for one in told} == set(range(len(published) + 1))


def test_tools_count_once_a_prompt_was_composed_with_them() -> None:
    """They stand in front of every prompt, and nobody else knows them."""
    memory = chat(2)
    compactor = compactor_of(
        memory, ScriptedSummarizer(default=words(300).replace("word", "term")), trigger=cost_optimal()
    )
    compose(memory, budget=10_000, counter=count, tools=[{"name": words(1_000)}])
    with compactor:
        assert compactor.wait_idle(30)
    assert of_kind(compactor.events, CostEvaluated)[-1].system > 1_000


def test_a_compactor_tells_the_trigger_what_was_chosen() -> None:
    """Its own configuration, whichever way the trigger was combined."""
    for one in (cost_optimal(min_new_tokens=100_000), cost_optimal(min_new_tokens=100_000) | over_messages(10_000)):
        memory = chat(9, 50)
        config, summarizer = (
            CONFIG.copy_with(threshold=7),
            ScriptedSummarizer(default=words(20).replace("word", "term")),
        )
        with compactor_of(memory, summarizer, trigger=one, config=config) as compactor:
            assert compactor.wait_idle(30)
            made = compactor.get_compaction()
        assert made is not None
        assert made.end_index == 7
