"""What a compactor promises its host: which rounds it covers, when it looks, and what it is made of."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, SOON, ManualExecutor, add_round, end_of, memory_of, on_command, prices, text_of

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Skip,
    State,
    View,
    compose,
    over_tokens,
)
from compactor.testing import ScriptedSummarizer
from memory import Memory

pytestmark = pytest.mark.timeout(30)

EAGER = CompactorConfig(threshold=0, retain_recent=0)


# Which rounds


@pytest.mark.parametrize("closed", [True, False], ids=["after the newest round closed", "while it is open"])
def test_the_end_is_the_same_whether_the_newest_round_is_open_or_closed(closed: bool) -> None:
    """Rounds 1 to 10, threshold 7, retain 3: it ends at 7; at 15 rounds at 12; at 20 at 17."""
    memory, summarizer = memory_of(10, close_last=closed), ScriptedSummarizer()
    ends = []
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        for total in range(10, 21):
            while len(memory.conversation.rounds) < total:
                add_round(memory, close=closed)
            assert compactor.wait_idle(SOON)
            ends.append(end_of(compactor))
    assert ends == [7] * 5 + [12] * 5 + [17]
    assert len(summarizer.requests) == 3


def test_the_input_is_the_previous_summary_and_only_the_new_rounds() -> None:
    """Covered rounds are never sent again: old summary + new rounds -> new summary."""
    memory, summarizer = memory_of(10), ScriptedSummarizer([prices("Seven"), prices("Twelve")])
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
    first, second = summarizer.requests
    assert (first.previous, first.start_index, first.end_index) == (None, 1, 7)
    assert [round_.id for round_ in first.rounds] == [f"r{n}" for n in range(1, 8)]
    assert second.previous is not None
    assert (second.previous.summary, second.start_index, second.end_index) == (prices("Seven"), 8, 12)
    assert [round_.id for round_ in second.rounds] == [f"r{n}" for n in range(8, 13)]
    assert prices("Seven") in text_of(second)
    assert "item-8?" in text_of(second)
    assert "item-7?" not in text_of(second)
    assert "item-13?" not in text_of(second)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert (compaction.start_index, compaction.end_index, compaction.end_round_id) == (1, 12, "r12")
    assert (compaction.summary, compaction.generation) == (prices("Twelve"), 2)


@pytest.mark.parametrize(
    ("threshold", "retain", "total", "ends"),
    [(2, 5, 10, 5), (2, 5, 5, 0), (2, 5, 4, 0), (0, 0, 3, 3), (0, 1, 1, 0), (9, 0, 10, 10), (10, 3, 10, 0)],
)
def test_the_end_retains_the_recent_rounds(threshold: int, retain: int, total: int, ends: int) -> None:
    """``min(closed, total - retain_recent)`` once more than ``threshold`` rounds stand behind the old end; retaining
    more than the threshold is no contradiction."""
    config = CompactorConfig(threshold=threshold, retain_recent=retain)
    with ContextCompactor.for_role(memory_of(total), ROLE, config, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == ends


def test_the_open_round_is_never_compacted() -> None:
    """Not even with nothing to retain: what is said in it is still to come."""
    memory, summarizer = memory_of(3, close_last=False), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, EAGER, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 2
        assert compactor.status().skip_reason is Skip.NOTHING_CLOSED
        memory.finish_round("r3")
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3
    assert [round_.id for request in summarizer.requests for round_ in request.rounds] == ["r1", "r2", "r3"]


def test_it_stops_before_the_first_open_round_wherever_that_is() -> None:
    """A round that another writer left open is not jumped over."""
    memory = memory_of(2)
    Memory.create_round(memory, "left open", id="r3")
    memory._own_rounds = ()  # as if another process had opened it
    for _ in range(4):
        add_round(memory)
    with ContextCompactor.for_role(memory, ROLE, EAGER, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 2


def test_another_roles_posts_reach_neither_request_nor_rounds() -> None:
    """A role's compactor sees what that role sent or received."""
    memory, summarizer = Memory("s"), ScriptedSummarizer()
    round_ = memory.create_round("The user's question")
    memory.add_post(round_, send_from="User", send_to="Planner", message="for the planner")
    memory.add_post(round_, send_from="Planner", send_to="CodeInterpreter", message="please compute " * 40)
    memory.add_post(round_, send_from="CodeInterpreter", send_to="WebSearch", message="SECRET-BETWEEN-OTHERS")
    memory.finish_round(round_)
    with ContextCompactor.for_role(memory, "Planner", EAGER, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
    (request,) = summarizer.requests
    assert request.role == "Planner"
    assert "please compute" in text_of(request)
    assert "SECRET" not in text_of(request)
    assert "SECRET" not in repr(request.rounds)


def test_raw_rounds_stay_as_they_are() -> None:
    """Compaction is an overlay: nothing is taken out of the log."""
    memory = memory_of(12)
    before = list(memory.conversation.rounds)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
    assert list(memory.conversation.rounds) == before
    rounds, compaction = memory.get_role_rounds(ROLE)
    assert compaction is not None
    assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r10", "r11", "r12"]


def test_the_next_summary_is_made_in_the_background_without_what_failed() -> None:
    """As soon as it fails, for then all is due again: nobody has to say anything more."""
    memory, summarizer = memory_of(12), ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 9
        for covered in ("r2", "r9"):  # one in the middle, and the very last
            memory.finish_round(covered, state="failed")
            assert compactor.wait_idle(SOON)
        rounds, compaction = memory.get_role_rounds(ROLE)
        assert compaction is not None
        assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r10", "r11", "r12"]
        assert end_of(compactor) == 7
    assert [round_.id for round_ in summarizer.requests[-1].rounds] == ["r1", *(f"r{n}" for n in range(3, 9))]
    assert all(request.previous is None for request in summarizer.requests)


def test_prompts_keep_their_budget_while_nothing_tells_of_what_is_left() -> None:
    """Between a failure and the next summary the tail is long again: compose shortens it, and what failed is gone."""
    memory = memory_of(12)
    summarizer = ScriptedSummarizer([f"A summary of {ROLE}'s work on question 5, which was undone.", OSError("down")])
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer)
    compactor.compact_now(SOON)
    budget = compose(memory, ROLE, budget=100_000).tokens
    memory.finish_round("r5", state="failed")
    with pytest.raises(CompactionFailed):
        compactor.compact_now(SOON)
    prompt = compose(memory, ROLE, budget=budget)
    assert prompt.tokens <= budget < prompt.report.tokens_before
    text = str(prompt.messages)
    assert "undone" not in text
    assert "Item-5 costs" not in text
    assert "Item-12 costs" in text


def test_a_compactor_goes_on_from_what_the_log_holds() -> None:
    """What another compactor of the role published is where this one starts."""
    memory = memory_of(10)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer([prices("First")])) as compactor:
        assert compactor.wait_idle(SOON)
    summarizer = ScriptedSummarizer()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor:
        assert compactor.wait_idle(SOON)
        assert summarizer.requests == []
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
    (request,) = summarizer.requests
    assert request.previous is not None
    assert request.previous.summary == prices("First")


# When it looks


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda memory: memory.create_round("next"), id="a round is added"),
        pytest.param(
            lambda memory: memory.add_post("r3", send_from="User", send_to=ROLE, message="more"), id="a post is added"
        ),
        pytest.param(lambda memory: memory.finish_round("r3"), id="a round is closed"),
        pytest.param(lambda memory: memory.finish_round("r3", state="failed"), id="a round fails"),
        pytest.param(lambda memory: memory.finish_round("r1", state="failed"), id="a closed round fails"),
    ],
)
def test_the_trigger_is_looked_at_after_every_event(happens: Callable[[Memory], object]) -> None:
    """Whatever could make it true."""
    looks: list[int] = []
    memory = memory_of(3, close_last=False)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), trigger=lambda view: looks.append(view.total))
    compactor.start()
    assert executor.run_all() == 1, "start() looks at what is there"
    happens(memory)
    assert executor.run_all() == 1
    assert len(looks) == 2


def test_an_event_while_the_rounds_are_read_is_looked_at_again() -> None:
    """The pending mark is cleared before the getter is called; after it, this round would wait for the next event."""
    memory = memory_of(2)
    seen: list[int] = []

    def getter() -> object:
        rounds = memory.get_role_rounds(ROLE)[0]
        seen.append(len(rounds))
        if len(seen) == 1:
            add_round(memory)
        return rounds

    config = CompactorConfig(threshold=2, retain_recent=1)
    executor = ManualExecutor()
    compactor = ContextCompactor(config, ScriptedSummarizer(), getter, role=ROLE, executor=executor)
    memory.register_compaction_provider(ROLE, compactor)
    compactor.start()
    executor.run_all()
    assert seen[:2] == [2, 3]
    assert end_of(compactor) == 2


def test_an_event_while_compacting_is_not_lost() -> None:
    """Rounds that come during a call are looked at when it is over, without another event."""
    memory, summarizer = memory_of(10), ScriptedSummarizer().hold()
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer) as compactor, summarizer:
        assert summarizer.started.wait(SOON)
        for _ in range(5):
            add_round(memory)
        assert compactor.status().state is State.COMPACTING
        assert end_of(compactor) == 0
        summarizer.release()
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12, "new rounds do not make the first result stale, and the second follows"
    assert [request.end_index for request in summarizer.requests] == [7, 12]


def test_a_storm_of_notifications_is_one_evaluation() -> None:
    """A hundred events while one cycle runs are looked at once."""
    memory = memory_of(3)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer())
    compactor.start()
    for _ in range(100):
        compactor.notify_rounds_changed(3)
    assert executor.run_all() == 1
    assert compactor.wait_idle(0)


def test_registering_it_twice_has_it_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One notification an event, however often it was registered."""
    memory, told = memory_of(3), []
    compactor, *_ = on_command(memory, ScriptedSummarizer())
    memory.register_compaction_provider(ROLE, compactor)
    memory.register_compaction_provider(ROLE, compactor)
    monkeypatch.setattr(compactor, "notify_rounds_changed", told.append)
    memory.create_round("once")
    assert told == [4]


def test_the_number_of_a_notification_is_only_a_hint() -> None:
    """Any number, or none, makes it look at what there is."""
    compactor, executor, _ = on_command(memory_of(10), ScriptedSummarizer())
    compactor.start()
    for total in (None, 0, -5, 10**9):
        compactor.notify_rounds_changed(total)
    executor.run_all()
    assert end_of(compactor) == 7


def test_a_token_trigger_looks_at_posts_and_retains_as_few_rounds_as_it_takes() -> None:
    """It cuts at most to ``retain_recent`` rounds, and to fewer until half of the threshold is reached."""
    memory = memory_of(4, close_last=False)
    config = CompactorConfig(threshold=50, retain_recent=3, max_tokens=4_000, token_ratio=0.5, target_tokens=100)
    with ContextCompactor.for_role(memory, ROLE, config, ScriptedSummarizer()) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 0
        memory.add_post("r4", send_from="User", send_to=ROLE, message="word " * 2_500)
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3, "only the open round is left: it alone is over half of the threshold"


def test_a_trigger_may_be_any_callable_asynchronous_ones_included() -> None:
    """``View -> bool``."""
    asked: list[View] = []

    async def many(view: View) -> bool:
        asked.append(view)
        return view.tail_length > 4

    with ContextCompactor.for_role(memory_of(6), ROLE, CONFIG, ScriptedSummarizer(), trigger=many) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 3
    assert asked


# How it is made


def test_the_getter_is_required() -> None:
    """And the message says what it is."""
    with pytest.raises(
        TypeError, match=r"rounds_getter is missing: a callable that returns the rounds, or use for_role"
    ):
        ContextCompactor(CONFIG, ScriptedSummarizer())


def test_summarizer_and_llm_api_are_two_names_of_one_thing() -> None:
    """Both at once is an error."""
    with pytest.raises(TypeError, match="two names of one thing"):
        ContextCompactor(CONFIG, ScriptedSummarizer(), list, llm_api=ScriptedSummarizer())


def test_what_is_no_summarizer_is_refused_when_it_is_made() -> None:
    """Not when it is first asked, in a thread."""
    with pytest.raises(TypeError, match="is no summarizer"):
        ContextCompactor(CONFIG, object(), list)


def test_what_is_no_trigger_is_refused_when_it_is_made() -> None:
    """Likewise."""
    with pytest.raises(TypeError, match="trigger: must be a callable"):
        ContextCompactor(CONFIG, None, list, trigger=7)  # type: ignore[arg-type]


class ChatAPI:
    """What TaskWeaver calls an LLM API."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []

    def chat_completion(self, messages: list[dict[str, Any]], use_backup_engine: bool = True) -> dict[str, str]:
        self.asked.append(messages)
        return {"role": "assistant", "content": PRICES}


@pytest.mark.parametrize("keyword", ["summarizer", "llm_api"])
@pytest.mark.parametrize("form", ["an object with chat_completion", "a plain function"])
def test_functions_and_chat_apis_summarize_under_either_name(keyword: str, form: str) -> None:
    """``llm_api=`` is what the name is elsewhere."""
    api = ChatAPI()
    source = api if form.startswith("an object") else lambda request: PRICES
    memory = memory_of(10)
    with ContextCompactor(CONFIG, rounds_getter=memory.rounds_getter(ROLE), **{keyword: source}) as compactor:
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert compaction.summary == PRICES


def test_without_a_summarizer_it_extracts_offline() -> None:
    """No key, no network."""
    with ContextCompactor.for_role(memory_of(10), ROLE, CONFIG) as compactor:
        assert compactor.wait_idle(SOON)
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert "item-" in compaction.summary
    assert isinstance(compactor._runner._summarizer, ExtractiveSummarizer)


def test_for_role_registers_it_and_starts_nothing() -> None:
    """Constructors start nothing."""
    memory, before = memory_of(10), {*threading.enumerate()}
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer())
    assert memory.get_role_rounds(ROLE)[1] is None
    assert {*threading.enumerate()} <= before
    assert compactor.status().state is State.NEW
    compactor.compact_now(SOON)
    assert memory.get_role_rounds(ROLE)[1] == compactor.get_compaction()


def test_a_token_trigger_counts_the_header() -> None:
    """System messages stand in front of every prompt."""
    memory = Memory.from_messages([{"role": "system", "content": "rule " * 500}, {"role": "user", "content": "hi"}])
    memory.finish_round(memory.conversation.rounds[-1].id)
    seen: list[int] = []
    compactor, executor, _ = on_command(memory, None, trigger=over_tokens(10_000) | (lambda v: seen.append(v.tokens)))
    compactor.start()
    executor.run_all()
    assert seen[0] < 50, "the Planner sees no message between assistant and user, and no header of theirs"
    other = ContextCompactor.for_role(memory, "assistant", CONFIG, trigger=lambda view: seen.append(view.tokens))
    other.compact_now(SOON)
    with other:
        assert other.wait_idle(SOON)
    assert seen[1] > 500


def test_public_parameters_keep_their_names() -> None:
    """Hosts pass them by keyword."""
    parameters = list(inspect.signature(ContextCompactor.__init__).parameters)
    assert parameters[1:4] == ["config", "summarizer", "rounds_getter"]
    assert {"role", "trigger", "strategies", "plan", "executor", "journal", "clock", "llm_api"} <= set(parameters)


def test_for_role_takes_every_option_of_the_constructor() -> None:
    """Type checkers see the same names and types, and refuse any other."""
    parameters = inspect.signature(ContextCompactor.__init__).parameters.values()
    by_name = {one.name: one.annotation for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    options = vars(inspect.getmodule(ContextCompactor))["Options"].__annotations__
    assert {name: kind.__forward_arg__ for name, kind in options.items()} | {"role": "str"} == by_name


def test_the_end_follows_a_failed_round_also_without_the_logs_journal() -> None:
    """``rounds[end_index:]`` is the tail for whoever merges by hand, too: no round is in neither."""
    memory = memory_of(12)
    compactor = ContextCompactor(
        CompactorConfig(threshold=5, retain_recent=2), ScriptedSummarizer(), memory.rounds_getter(ROLE), role=ROLE
    )
    compactor.compact_now(SOON)
    assert end_of(compactor) == 10
    memory.finish_round("r3", state="failed")
    assert compactor.get_compaction() is None
    assert compactor.status().end_index == 0
    compactor.compact_now(SOON)
    assert end_of(compactor) == compactor.status().end_index == 9
    assert [round_.number for round_ in memory.rounds_getter(ROLE)()[9:]] == [11, 12]


def test_a_registered_compactor_counts_the_system_messages_whoever_gave_its_journal() -> None:
    """The prompts that ``compose`` makes of this memory have them, and the trigger goes by these prompts."""
    memory, executor = memory_of(3), ManualExecutor()
    memory.set_header("rules", "Be brief. " * 400, role=ROLE)
    options: dict[str, Any] = {"trigger": over_tokens(700), "executor": executor, "journal": memory.journal(ROLE)}
    getter = memory.rounds_getter(ROLE)
    compactor = ContextCompactor(EAGER, ScriptedSummarizer(), getter, role=ROLE, **options)
    memory.register_compaction_provider(ROLE, compactor)
    compactor.start()
    executor.run_all()
    assert end_of(compactor) == 3
