"""Out of the box: a compactor that was told nothing but its summarizer works as somebody who knows would set it up."""

from __future__ import annotations

import random
from itertools import cycle
from typing import Any

import pytest
from chats import calls, result
from newcomer import MODEL, Client, Session
from scene import of_kind

from compactor import (
    CompactorConfig,
    ContextCompactor,
    CostEvaluated,
    Deferred,
    Discarded,
    ExtractiveSummarizer,
    Failed,
    OpenAISummarizer,
    Reduced,
    Rejected,
    SummaryRequest,
    after_rounds,
    compact_rounds,
    compose,
    count_prompt,
    count_tokens,
)
from compactor.cost import Prices
from compactor.testing import ScriptedSummarizer
from memory import InMemoryStore, Memory

pytestmark = pytest.mark.timeout(120)


def assert_sound(session: Session) -> None:
    """No prompt was over its budget, nothing failed, and each fact stands in the summary or behind it."""
    for prompt in session.prompts:
        assert count_prompt(prompt.messages, count_tokens) == prompt.tokens
    assert of_kind(session.events, Failed) == of_kind(session.events, Discarded) == []
    shown = "\n".join(str(message["content"]) for message in session.prompts[-1].messages)
    for number in range(1, len(session.prompts) + 1):
        assert f"KEY-{number:04}" in shown, f"the fact of round {number} is lost"


# Two lines


def test_two_lines_are_all_that_it_takes() -> None:
    """Prompts keep to their budget, rounds are compacted, and no fact is lost; without a thread of the host's."""
    memory = Memory("s")
    client = Client(hit=0.9)
    with ContextCompactor.for_role(memory, "assistant", summarizer=OpenAISummarizer(MODEL, client=client)) as compactor:
        for number in range(1, 61):
            memory.append(
                {"role": "user", "content": f"KEY-{number:04} is VQ{number}Z. " + "Where is the parcel? " * 25}
            )
            assert compose(memory, budget=8_000).tokens <= 8_000
            memory.append({"role": "assistant", "content": f"It is in depot {number}. " * 25})
            assert compactor.wait_idle(20)
        made = compactor.get_compaction()
    assert made is not None
    assert made.end_index > 20
    assert all(f"KEY-{number:04}=VQ{number}Z" in made.summary for number in range(1, made.end_index + 1))


@pytest.mark.parametrize(
    ("hit", "agent", "makes_changes"),
    [
        (0.0, "", True),
        (0.9, MODEL, True),
        pytest.param(0.9, "", False, marks=pytest.mark.slow),
        pytest.param(0.0, MODEL, False, marks=pytest.mark.slow),
        pytest.param(0.9, "gpt-4o", False, marks=pytest.mark.slow),
    ],
)
def test_no_prompt_is_over_budget_and_no_fact_is_lost(hit: float, agent: str, makes_changes: bool) -> None:
    """Whichever way the model is asked, and whatever it keeps to."""
    session = Session(Client(hit=hit, makes_changes=makes_changes), agent=agent).turns(100)
    assert max(prompt.tokens for prompt in session.prompts) <= 8_000
    assert len(session.published) >= 4
    assert_sound(session)


@pytest.mark.slow
def test_it_compacts_when_that_is_cheapest_and_not_after_ten_rounds() -> None:
    """Each compaction covers at least the number of tokens that its event names, and no earlier look was due."""
    session = Session(Client(hit=0.9), agent=MODEL, budget=16_000).turns(18)
    assert session.published == [], "TaskWeaver's rule would have compacted twice"
    session.turns(80)
    looks = of_kind(session.events, CostEvaluated)
    due = [look for look in looks if look.is_due]
    assert len(due) == len(session.published) >= 3
    assert {look.reason for look in due} == {"grown"}
    assert all(look.best is not None and look.grown >= max(look.best, look.floor) for look in due)
    waiting = [look for look in looks if not look.is_due and look.reason == "below_best"]
    assert waiting
    assert all(look.best is not None and look.grown < max(look.best, look.floor) for look in waiting)


def test_short_turns_go_on_for_long_before_anything_is_summarised() -> None:
    """Rounds are no measure: forty of them may be less than a summary is worth."""
    session = Session(Client()).turns(30, said=10, answered=15)
    assert session.published == []
    assert session.client.continued == []


def test_the_budget_is_kept_where_it_is_too_small_to_wait() -> None:
    """What is cheapest comes second: the compaction is ready before prompts reach the budget."""
    session = Session(Client(hit=0.9), agent=MODEL, budget=3_000).turns(60)
    due = [look for look in of_kind(session.events, CostEvaluated) if look.is_due]
    assert "budget" in {look.reason for look in due}
    assert max(prompt.tokens for prompt in session.prompts) <= 3_000
    assert not any(prompt.report.omitted_rounds for prompt in session.prompts), "nothing had to be left out"


@pytest.mark.parametrize(("model", "write"), [("gpt-4o", 1.0), ("claude-sonnet-4-5", 1.25)])
def test_what_is_deferred_is_weighed_by_the_prices_and_the_budget_that_were_found(model: str, write: float) -> None:
    """They are known long after the compactor was made; a prompt that grows long shows what is deferred at the latest."""
    session = Session(Client(hit=0.9), agent=model, budget=6_000, model=model, publish="deferred").turns(80)
    weighed = [event for event in of_kind(session.events, Deferred) if event.price]
    found = Prices.of_model(model)
    assert found.cache_write == pytest.approx(write)
    for event in weighed:
        assert event.price == pytest.approx((event.summary + event.retained) * (write - found.cached_input))
        assert event.shows == (event.reason in ("budget", "repaid", "cold"))
        if event.reason == "saving":
            assert event.tokens_before <= 0.95 * 6_000
    assert {"saving"} < {event.reason for event in weighed}
    assert max(prompt.tokens for prompt in session.prompts) <= 6_000


def test_until_a_prompt_was_composed_the_rule_of_rounds_decides() -> None:
    """A host that makes its prompts itself tells no budget: it is compacted as TaskWeaver's document says."""
    session = Session(Client())
    for number in range(1, 13):
        round_ = session.memory.create_round(f"KEY-{number:04} is VQ{number}Z. " + session.words(60))
        session.memory.add_post(round_, send_from="assistant", send_to="User", message=session.words(90))
        session.memory.finish_round(round_)
        session.executor.run_all()
    (published,) = session.published
    assert published.end == 8, "eleven rounds, of which three are retained"
    assert "Budget: unknown" in session.compactor.describe()


def test_it_says_in_five_lines_what_was_chosen() -> None:
    """From the first prompt on, and with what its model has answered."""
    session = Session(Client(hit=0.9)).turns(1)
    beginnings = ["Budget", "Prices", "Due", "Asks", "Strategies, in this order"]
    assert [line.partition(":")[0] for line in session.compactor.describe().splitlines()] == beginnings
    session.turns(59)
    said = session.compactor.describe().splitlines()
    assert [line.partition(":")[0] for line in said] == beginnings
    assert "after the agent's last prompt" in said[3]
    assert "lists of changes refused" in said[3]


# Tool results


def test_tool_results_are_offloaded_before_any_model_is_asked() -> None:
    """A preview and a reference take the place of what is large; the reference reloads it."""
    session, asked_before = Session(Client(), budget=32_000), []
    session.compactor.on_event(
        lambda event: asked_before.append(len(session.client.continued)) if isinstance(event, Reduced) else None
    )
    texts = [session.words(2_500) for _ in range(20)]
    for number, text in enumerate(texts):
        if not asked_before:
            session.turn(calls(f"c{number}"), result(f"c{number}", text))
    assert asked_before
    assert set(asked_before) == {0}
    assert session.published == []
    assert session.client.continued == [], "shorter results were enough"
    shown = compose(session.memory, budget=32_000).messages
    assert not any(texts[0] in str(message["content"]) for message in shown)
    assert texts[0] in session.memory.reload("r1.p2")


@pytest.mark.slow
def test_a_long_run_of_tools_stays_within_its_budget() -> None:
    """Results of several times the budget in all."""
    session = Session(Client(hit=0.9), budget=32_000)
    for number in range(40):
        session.turn(calls(f"c{number}"), result(f"c{number}", session.words(4_000)))
    assert max(prompt.tokens for prompt in session.prompts) <= 32_000
    assert len(session.published) >= 2
    assert_sound(session)


# How the model is asked


@pytest.mark.slow
def test_an_unknown_agents_model_is_gone_on_from_while_the_cache_has_its_prompt() -> None:
    """Tried once, and kept because the answer reports a hit."""
    session = Session(Client(hit=0.9)).turns(100)
    assert len(session.client.continued) >= 4
    assert all(session.client.continued)


@pytest.mark.slow
@pytest.mark.parametrize("usage", [..., None, {"prompt_tokens": 5_000, "completion_tokens": 100}])
def test_continuing_is_given_up_if_no_hit_is_reported(usage: Any) -> None:
    """After one attempt: the agent's model is another, or nobody tells. Whole prompts uncached would be dear."""
    session = Session(Client(hit=0.0, usage=usage)).turns(100)
    assert session.client.continued[0]
    assert len(session.client.continued) >= 4
    assert not any(session.client.continued[1:])


def test_to_try_the_cache_again_does_not_change_what_is_asked_for() -> None:
    """Most likely, it has not the agent's prompt this time either: longer notes would be all that comes of it."""

    class Wordy(Client):
        def _write(self, text: str, *, for_changes: bool) -> str:
            return super()._write(text, for_changes=for_changes) + f" {'We looked at a gate. ' * 100}" * for_changes

    client = Wordy(hit=0.0)
    session = Session(client)
    while len(client.continued) < 16 and len(session.prompts) < 600:
        session.turn(every=3)
    later = [*zip(client.continued, client.changes, strict=True)][1:]
    assert any(changes for _, changes in later), "they are longer than notes on new rounds, and known to be"
    assert any(continued for continued, _ in later), "it is tried again"
    assert (True, True) not in later


def test_another_model_named_for_the_prompt_is_never_gone_on_from() -> None:
    """Its prompt is in no cache that the summarizer reads."""
    session = Session(Client(hit=0.9), agent="gpt-4o").turns(60)
    assert session.client.continued
    assert not any(session.client.continued)


def test_the_same_model_is_gone_on_from_whatever_the_cache_reports() -> None:
    """It is known to share the cache; a miss now and then is no proof against it."""
    session = Session(Client(hit=0.0), agent=MODEL).turns(60)
    assert session.client.continued
    assert all(session.client.continued)


@pytest.mark.slow
def test_a_session_learns_for_itself_though_the_summarizer_is_shared() -> None:
    """One session's agent shares the summarizer's cache, and the other's does not."""
    warm, cold = Client(hit=0.9), Client(hit=0.0)
    answering = [warm]

    class Shared(Client):
        def _create(self, **arguments: Any) -> dict[str, Any]:
            return answering[0]._create(**arguments)

    summarizer = OpenAISummarizer(MODEL, client=Shared())
    first, second = Session(warm, summarizer=summarizer), Session(cold, summarizer=summarizer)
    for _ in range(80):
        for client, session in ((warm, first), (cold, second)):
            answering[0] = client
            session.turn()
    assert len(warm.continued) >= 3
    assert all(warm.continued)
    assert len(cold.continued) >= 3
    assert cold.continued == [True, *[False] * (len(cold.continued) - 1)]
    assert_sound(first)
    assert_sound(second)


@pytest.mark.slow
def test_a_model_that_makes_no_changes_is_asked_for_them_twice_at_most() -> None:
    """What it wrote instead was paid for; from then on every compaction is one request."""
    for agent in (MODEL, "gpt-4o"):
        session = Session(Client(hit=0.9, makes_changes=False), agent=agent).turns(120)
        assert sum(session.client.changes) == 2
        assert len(of_kind(session.events, Rejected)) == 2
        assert [event.requests for event in session.published].count(2) == 2
        assert session.client.changes[-3:] == [False] * 3
        assert_sound(session)


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "makes_changes"), [("", True), (MODEL, False), ("gpt-4o", True)])
def test_while_there_is_room_a_fact_passes_through_three_summaries_on_average(agent: str, makes_changes: bool) -> None:
    """Over sixty compactions: they may be cheaper in full, but each time everything passes through the model again."""
    client = Client(hit=0.9 if agent != "gpt-4o" else 0.0, makes_changes=makes_changes)
    session, full = Session(client, budget=60_000, agent=agent), 0
    while len(session.published) < 60:
        session.turns(5, said=200, answered=700, every=10)
        covered = session.published[-1].end if session.published else 0
        depths = [client.depths[f"KEY-{number:04}=VQ{number * 37 % 1000:03}Z"] for number in range(10, covered + 1, 10)]
        if covered >= 100:  # so that a tenth of the rounds tells of all of them
            assert sum(depths) <= 3 * len(depths), f"{covered} rounds after {len(session.published)} compactions"
        full = max(depths, default=full)
        assert len(session.prompts) < 2_000
    assert full > 1, "now and then, all notes are written anew"
    assert of_kind(session.events, Failed) == []


# What is given counts


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"threshold": 10}, {"retain_recent": 3}, {"threshold": 7, "retain_recent": 2}])
def test_a_threshold_that_is_given_is_taskweavers_rule_as_it_stands_there(given: dict[str, int]) -> None:
    """The same compactions at the same moments, by the same requests, as of a summarizer that names no model."""
    config = CompactorConfig(**given)

    def nameless(request: SummaryRequest) -> str:
        return OpenAISummarizer(MODEL, client=other.client, style="separate")(request).text

    plain = Session(Client(), config=config, agent=MODEL)
    other = Session(Client(), config=config, agent=MODEL, summarizer=nameless)
    by_hand = Session(
        Client(), config=config, agent=MODEL, trigger=after_rounds(config.threshold), strategies=(compact_rounds,)
    )
    for session in (plain, other, by_hand):
        session.turns(40)
    assert [event.end for event in plain.published] == [event.end for event in other.published]
    assert [event.end for event in plain.published] == [event.end for event in by_hand.published]
    step = config.threshold + 1 - config.retain_recent
    assert [event.end for event in plain.published] == list(range(step, 41 - config.retain_recent, step))
    assert plain.client.changes == [False] * len(plain.published)
    assert of_kind(plain.events, CostEvaluated) == []
    assert plain.compactor.get_compaction().notes == ()  # type: ignore[union-attr]


def test_a_ratio_or_a_trigger_that_is_given_is_not_replaced() -> None:
    """Nor are strategies."""
    config = CompactorConfig(max_tokens=4_000, token_ratio=0.5)
    session = Session(Client(), config=config).turns(30)
    assert session.published
    assert of_kind(session.events, CostEvaluated) == []
    session = Session(Client(), trigger=after_rounds(5)).turns(8)
    assert len(session.published) == 1
    session = Session(Client(hit=0.9), strategies=(compact_rounds,)).turns(60)
    assert session.published
    assert of_kind(session.events, CostEvaluated), "the trigger is still its own"
    assert session.client.changes == [False] * len(session.client.changes)
    assert session.compactor.get_compaction().notes == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("summarizer", [ExtractiveSummarizer(), ScriptedSummarizer(), lambda request: "Prices."])
def test_a_summarizer_that_names_no_model_has_the_rule_of_rounds(summarizer: Any) -> None:
    """Nobody could say what it costs."""
    session = Session(Client(), summarizer=summarizer).turns(12)
    assert of_kind(session.events, CostEvaluated) == []
    assert "after_rounds(10)" in session.compactor.describe()


@pytest.mark.parametrize(
    ("model", "agent"),
    [("house-model-7b", ""), ("x" * 5_000, "nobody-knows-this-one"), ("gpt-5-mini\n{role}", "модель")],
)
def test_models_that_nobody_knows_work_at_usual_prices(model: str, agent: str) -> None:
    """As a local server's. The description says so."""
    session = Session(Client(hit=0.9), model=model, agent=agent).turns(40)
    assert session.published
    assert_sound(session)
    assert "defaults; those" in session.compactor.describe()
    looks = of_kind(session.events, CostEvaluated)
    assert {look.cached_price for look in looks} == {Prices().cached_input}


# Attacks


NONSENSE = [
    None,
    {},
    "many",
    {"prompt_tokens": 0, "completion_tokens": 0},
    {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 9_000}},
    {"prompt_tokens": -1, "completion_tokens": "x", "prompt_tokens_details": 7},
    {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2**53}},
    {"prompt_tokens": 2**53, "completion_tokens": 2**53, "prompt_tokens_details": {"cached_tokens": 2**53}},
    {"prompt_tokens": 2**70, "completion_tokens": 2**70},
    {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usage", "agent"),
    [
        pytest.param(usage, agent, id=str(number), marks=[pytest.mark.slow] * (number not in (2, 3)))
        for number, (usage, agent) in enumerate(zip(NONSENSE, cycle(("", MODEL)), strict=False))
    ],
)
def test_nonsense_as_usage_does_no_harm(usage: Any, agent: str) -> None:
    """The answers are taken, and compactions neither stop nor follow one another for nothing."""
    session = Session(Client(usage=usage), agent=agent).turns(80)
    assert 3 <= len(session.published) <= 10
    assert_sound(session)
    assert "nan" not in session.compactor.describe()


@pytest.mark.slow
def test_one_nonsensical_report_is_not_remembered_for_good() -> None:
    """A length that no model writes would be the mean's for many answers, and keep the right form from being chosen."""
    client = Client(usage={"prompt_tokens": 100, "completion_tokens": 2**53})
    session = Session(client, agent="gpt-4o").turns(12)
    assert any(client.changes)
    client.usage, asked = ..., len(client.changes)
    session.turns(60)
    assert any(client.changes[asked:]), "changes are still the cheapest"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_budget_may_change_from_prompt_to_prompt(seed: int) -> None:
    """Each prompt keeps to its own; the compactor goes by the newest."""
    rng, session = random.Random(seed), Session(Client(hit=0.9))
    for _ in range(80):
        session.budget = rng.choice([1_200, 2_000, 8_000, 32_000, 200_000])
        assert session.turn().tokens <= session.budget
    assert session.published
    assert {event.error for event in of_kind(session.events, Failed)} <= {"oversized"}, "notes for a larger budget"
    session.budget, published = 8_000, len(session.published)
    session.turns(60)
    assert len(session.published) >= published + 2


def test_a_prompt_that_cannot_fit_leaves_the_compactor_at_work() -> None:
    """A budget by mistake, of a few tokens: the next prompt's is taken instead."""
    session = Session(Client(hit=0.9)).turns(30)
    session.budget = 1
    for _ in range(3):
        with pytest.raises(Exception, match="budget is 1"):
            session.turn()
        session.executor.run_all()
    session.budget = 8_000
    published = len(session.published)
    session.turns(60)
    assert len(session.published) >= published + 2
    made = session.compactor.get_compaction()
    assert made is not None
    assert all(f"KEY-{number:04}=" in made.summary for number in range(1, made.end_index + 1))


def test_what_was_learned_may_be_lost_with_the_process() -> None:
    """The next one asks as if for the first time, goes on from the same notes, and reads no round again."""
    store, sent = InMemoryStore(), []
    clients = [Client(hit=0.0) for _ in range(3)]
    for client in clients:
        session = Session(client, memory=Memory("s", store=store))
        session.executor.run_all()
        session.turns(50)
        sent += session.published
        assert of_kind(session.events, Failed) == []
        made = session.compactor.get_compaction()
        assert made is not None
        assert all(f"KEY-{number:04}=" in made.summary for number in range(1, made.end_index + 1))
        session.compactor.stop()
    ends = [event.end for event in sent]
    assert ends == sorted(set(ends))
    assert all(sum(client.continued) <= 1 for client in clients), "each tries once to go on from the agent's prompt"
    assert made.extra["passes"] <= 3
