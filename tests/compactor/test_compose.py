"""Compose: log and compaction merged into a prompt that fits, with a beginning that rarely changes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from chats import (
    answer,
    assert_legal,
    assert_paired,
    calls,
    left_out_texts,
    note_of,
    result,
    user,
    words,
)

from compactor import BudgetExceeded, CompactorConfig, ContextCompactor, Prompt, compose
from compactor.clipping import clip_message, clip_text
from compactor.compose import GRID, PLAN_FRAME, OverBudget
from compactor.events import PlanFailed
from compactor.plan import Plan
from compactor.testing import ScriptedSummarizer
from compactor.tokens import count_tokens
from compactor.units import MESSAGE_TOKENS, NO_RESULT, PROMPT_TOKENS, count_message
from memory import Attachment, CompactedMessage, InMemoryStore, Memory, Round, ToolCall
from memory.entries import Entry, RoundFinished, RoundOpened
from memory.visibility import Rounds


def compacted(memory: Memory, end: int, summary: str = "They greeted.", role: str = "assistant") -> None:
    """Publish a compaction of the first *end* visible rounds."""
    rounds, current = memory.get_role_rounds(role)
    new = rounds[current.end_index if current else 0 : end]
    made = CompactedMessage(start_index=1, end_index=end, summary=summary, end_round_id=new[-1].id)
    base = memory.journal(role).read().generation
    memory.journal(role).publish(made, base=base, round_ids=[round_.id for round_ in new])


def chat(rounds: int, tokens: int = 20) -> Memory:
    """Return a session of *rounds* rounds, two messages each, all of one length but the numbers in them."""
    memory = Memory()
    for number in range(1, rounds + 1):
        memory.append(user(f"question {number:05} {words(tokens)}"))
        memory.append(answer(f"answer {number:05} {words(tokens)}"))
    return memory


def contents(prompt: Prompt) -> list[Any]:
    return [message.get("content") for message in prompt.messages]


# -- without pressure -------------------------------------------------------------------------------------------------


def test_without_pressure_all_of_the_tail_is_shown() -> None:
    """Header, compaction and tail, in that order; nothing is reported."""
    memory = Memory()
    memory.append({"role": "system", "content": "Be brief."})
    for message in (user("q1"), answer("a1"), user("q2"), answer("a2"), user("q3")):
        memory.append(message)
    compacted(memory, 1, "They greeted.")

    prompt = compose(memory, budget=1_000)

    summary = memory.get_role_rounds("assistant")[1]
    assert summary is not None
    assert contents(prompt) == ["Be brief.", summary.to_prompt(), "q2", "a2", "q3"]
    assert [message["role"] for message in prompt.messages] == ["system", "system", "user", "assistant", "user"]
    assert prompt.report.omitted_rounds == ()
    assert prompt.report.reductions == ()
    assert prompt.report.tokens_before == prompt.report.tokens_after == prompt.tokens


def test_an_empty_session_gives_an_empty_prompt() -> None:
    """Nothing was said, so nothing is sent."""
    assert compose(Memory(), budget=PROMPT_TOKENS).messages == []


def test_a_budget_that_is_just_met_is_enough() -> None:
    """The budget is the number of tokens that is never exceeded, not one that is never reached."""
    memory = chat(5)
    tokens = compose(memory, budget=10_000).tokens

    assert compose(memory, budget=tokens).report.omitted_rounds == ()
    assert compose(memory, budget=tokens - 1).report.omitted_rounds == (1, 2)


def test_changing_a_prompt_changes_no_other() -> None:
    """A host may add to the messages it was given."""
    memory = Memory.from_messages([{"role": "user", "content": [{"type": "text", "text": "q"}]}])
    system = [{"role": "system", "content": "s"}]
    first = compose(memory, budget=100, system=system)
    first.messages[0]["content"] = first.messages[1]["content"] = "changed"
    first.messages.clear()

    assert contents(compose(memory, budget=100, system=system)) == ["s", [{"type": "text", "text": "q"}]]


class Holder:
    """A compactor that has something to publish whenever it is asked, and never says otherwise."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.asked = 0

    def publish_held(self) -> bool:
        self.asked += 1
        compacted(self.memory, 4 * self.asked)
        return True

    def get_compaction(self) -> CompactedMessage | None:
        return self.memory.journal("assistant").read().current

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Nothing to do."""


def test_what_is_held_is_shown_once_where_the_prompt_would_not_fit() -> None:
    """Then the prompt is made anew of what is there now; the host's plan is asked for once, and where the second is
    too long as well, it goes down the ladder."""
    memory, plans = chat(12), []
    holder = Holder(memory)
    memory.register_compaction_provider("assistant", holder)
    wide = compose(memory, budget=10_000).tokens
    assert holder.asked == 0
    prompt = compose(memory, budget=wide - 1, plan=lambda: plans.append(1) or "1. [ ] go")
    assert (holder.asked, len(plans)) == (1, 1)
    assert not prompt.report.omitted_rounds
    assert "Covers rounds 1-4." in prompt.messages[0]["content"]
    assert compose(memory, budget=120).report.omitted_rounds
    assert holder.asked == 2


# -- room for the answer, tools, and the provider's own count ---------------------------------------------------------


TOOLS = [
    {"type": "function", "function": {"name": "look_up", "description": words(60), "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "book", "description": "Buche einen Flug: 予約", "parameters": {}}},
]


def test_room_is_kept_for_the_answer() -> None:
    """The prompt is as if the budget were that much smaller, and the error speaks of the whole."""
    memory = chat(40)

    prompt = compose(memory, budget=2_000, reserve=700)

    assert prompt.tokens <= 1_300
    assert_legal(prompt, 1_300)
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=700, reserve=690)
    assert exceeded.value.needed == compose(memory, budget=exceeded.value.needed, reserve=690).tokens + 690


@pytest.mark.parametrize("reserve", [-1, True, 1.5, None])
def test_nonsense_is_no_reserve(reserve: object) -> None:
    """A number of tokens, from 0 on."""
    with pytest.raises(ValueError, match="reserve: must be a whole number from 0 on"):
        compose(Memory(), budget=100, reserve=reserve)  # type: ignore[arg-type]


def test_tools_count() -> None:
    """Schemas go with every request: the messages take what they leave, and the prompt's tokens are of both."""
    memory = chat(40)
    alone = [MESSAGE_TOKENS + count_tokens(json.dumps(tool, ensure_ascii=False)) for tool in TOOLS]

    full, prompt = compose(memory, budget=50_000, tools=TOOLS), compose(memory, budget=1_000, tools=TOOLS)

    assert full.tokens == compose(memory, budget=50_000).tokens + sum(alone)
    assert full.report.tokens_before == full.report.tokens_after == full.tokens
    messages = sum(count_message(message, count_tokens) for message in prompt.messages)
    assert prompt.tokens == PROMPT_TOKENS + messages + sum(alone) <= 1_000
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=60, tools=TOOLS)
    assert compose(memory, budget=exceeded.value.needed, tools=TOOLS).tokens == exceeded.value.needed


def by_the_provider(prompt: Prompt) -> int:
    """Count as a provider does that needs 17% more tokens."""
    return -(-prompt.tokens * 117 // 100)


def test_what_the_provider_counts_fits_the_budget() -> None:
    """After one usage the prompt fits by the provider's own count, with tools and room for the answer."""
    memory = chat(60)
    prompt = compose(memory, budget=2_000, tools=TOOLS)
    memory.record_usage("assistant", by_the_provider(prompt))

    for budget, reserve in ((2_000, 0), (1_000, 200), (3_000, 0)):
        after = compose(memory, budget=budget, tools=TOOLS, reserve=reserve)
        assert by_the_provider(after) + reserve <= budget
    assert memory.usage("assistant").steps == 4


def test_the_correction_only_grows_and_in_steps() -> None:
    """A usage that is lower, or within the same step of 5%, leaves the prompt as it is."""
    memory = chat(60)
    memory.record_usage("assistant", 1_120, counted=1_000)
    first = compose(memory, budget=1_500)

    for tokens in (800, 1_000, 1_149):
        memory.record_usage("assistant", tokens, counted=1_000)
        assert compose(memory, budget=1_500) == first
    memory.record_usage("assistant", 2_100, counted=1_000)
    assert compose(memory, budget=1_500).tokens < first.tokens


def test_the_correction_is_the_same_after_a_resume() -> None:
    """It is in the log: a process that takes over composes the same prompt."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(40):
        memory.append(user(f"{number} {words(30)}"))
    compose(memory, budget=1_000)
    memory.record_usage("assistant", 1_400)

    assert compose(Memory("s", store=store), budget=1_000) == compose(memory, budget=1_000)


def test_a_refusal_counts_as_the_provider_does() -> None:
    """What is needed is given by its count; with exactly that there is a prompt."""
    memory = chat(3)
    memory.record_usage("assistant", 1_300, counted=1_000)
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=20, reserve=7, tools=TOOLS)

    needed = exceeded.value.needed

    assert compose(memory, budget=needed, reserve=7, tools=TOOLS)
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=needed - 1, reserve=7, tools=TOOLS)


# -- prompts that do not fit ------------------------------------------------------------------------------------------


def test_a_host_may_ask_for_the_shortest_prompt_instead_of_an_error() -> None:
    """With a warning, and a report of how much it is over: what is sent then is the host's affair."""
    memory = chat(6)
    memory.append(user(words(200)))

    with pytest.warns(OverBudget, match=r"takes 207 tokens, the budget is 100"):
        prompt = compose(memory, budget=100, on_overflow="warn")

    assert contents(prompt) == [words(200)]
    assert prompt.tokens == 207
    assert prompt.report.tokens_over == 107
    assert prompt.report.omitted_rounds == (1, 2, 3, 4, 5, 6)


def test_what_is_over_is_counted_as_the_budget_is() -> None:
    """With the room for the answer, the tools and the provider's correction: all that the budget has to hold."""
    memory = Memory.from_messages([user(words(200))])
    memory.record_usage("assistant", 1_100, counted=1_000)
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=100, reserve=50, tools=TOOLS)

    with pytest.warns(OverBudget):
        prompt = compose(memory, budget=100, reserve=50, tools=TOOLS, on_overflow="warn")

    assert prompt.report.tokens_over == exceeded.value.needed - 100


def test_where_it_fits_nobody_is_warned() -> None:
    """The same prompt as with the error, and nothing over."""
    memory = chat(6)

    assert compose(memory, budget=200, on_overflow="warn") == compose(memory, budget=200)
    assert compose(memory, budget=200).report.tokens_over == 0


def test_another_word_for_overflow_is_refused() -> None:
    """A typing mistake is not taken for leave to send too much."""
    with pytest.raises(ValueError, match="'raise' or 'warn', not 'ignore'"):
        compose(Memory(), budget=100, on_overflow="ignore")  # type: ignore[arg-type]


# -- the plan ---------------------------------------------------------------------------------------------------------


PLAN = Plan("Trip", "A flight to Rome.", [("search", "done"), ("book", "in_progress"), ("pay", "pending")])


def framed(plan: object) -> dict[str, Any]:
    return {"role": "user", "content": f"{PLAN_FRAME}\n{plan}"}


@pytest.mark.parametrize("plan", [PLAN, str(PLAN), lambda: PLAN, lambda: str(PLAN)])
def test_the_plan_stands_before_the_newest_query(plan: object) -> None:
    """As text, as a Plan, or from a callable; framed, so that nobody takes it for the user's words."""
    memory = chat(3)
    memory.append(calls("c"))

    prompt = compose(memory, budget=1_000, plan=plan)

    without = compose(memory, budget=1_000)
    assert prompt.messages == [*without.messages[:4], framed(PLAN), *without.messages[4:]]
    assert prompt.tokens == without.tokens + count_message(framed(PLAN), count_tokens)


def test_of_several_words_of_the_user_the_plan_stands_before_the_last() -> None:
    """The newest thing that was said is what the agent answers."""
    prompt = compose(Memory.from_messages([user("first"), user("second")]), budget=1_000, plan="1. go")

    assert contents(prompt) == ["first", framed("1. go")["content"], "second"]


def test_without_any_words_of_the_user_the_plan_is_shown_all_the_same() -> None:
    """An agent that works by itself, or has not begun."""
    assert contents(compose(Memory(), budget=1_000, plan="1. go")) == [framed("1. go")["content"]]
    alone = Memory.from_messages([answer("Thinking.")])
    assert contents(compose(alone, budget=1_000, plan="1. go")) == [framed("1. go")["content"], "Thinking."]


@pytest.mark.parametrize(
    "plan", [None, False, "", "  ", lambda: None, Plan("done", subtasks=[("all", "done"), ("rest", "abandoned")])]
)
def test_a_plan_in_which_nothing_is_pending_is_not_shown(plan: object) -> None:
    """It is background, and no longer needed."""
    assert compose(chat(2), budget=1_000, plan=plan) == compose(chat(2), budget=1_000)


def test_the_role_s_own_plan_is_the_compactor_s() -> None:
    """``plan=True`` asks the same callable that the summaries are made by; who has none shows none."""
    memory = chat(2)
    assert compose(memory, budget=1_000, plan=True) == compose(memory, budget=1_000)
    ContextCompactor.for_role(memory, "assistant", CompactorConfig(), ScriptedSummarizer(), plan=lambda: PLAN)

    assert framed(PLAN) in compose(memory, budget=1_000, plan=True).messages


class Unspeakable:
    def __str__(self) -> str:
        raise OSError("the disk is gone")


def broken() -> object:
    raise OSError("the disk is gone")


@pytest.mark.parametrize("plan", [broken, Unspeakable(), Unspeakable])
def test_a_plan_that_nobody_can_tell_is_an_event_and_the_chat_goes_on(plan: object) -> None:
    """The event names the error's class, and nothing of what was said."""
    memory, heard = chat(2), []
    memory.on_event(heard.append)

    assert compose(memory, budget=1_000, plan=plan) == compose(memory, budget=1_000)

    (event,) = heard
    assert isinstance(event, PlanFailed)
    assert (event.role, event.error) == ("assistant", "OSError")


def test_a_plan_that_leaves_no_room_is_dropped_before_the_prompt_is_refused() -> None:
    """What the user asked is worth more; with room for it the plan counts in the budget."""
    memory = chat(40)
    needed = compose(memory, budget=60).tokens

    tight = compose(memory, budget=needed, plan="1. " + words(100))
    enough = compose(memory, budget=600, plan="1. " + words(100))

    assert PLAN_FRAME not in "".join(map(str, contents(tight)))
    assert framed("1. " + words(100)) in enough.messages
    assert_legal(enough, 600)


# -- what stands at the head ------------------------------------------------------------------------------------------


def test_the_system_text_stands_before_the_header() -> None:
    """What the host gives with the call comes first, and counts."""
    memory = Memory.from_messages([{"role": "system", "content": "header"}, user()])
    plain = compose(memory, budget=100)

    prompt = compose(memory, budget=100, system="from the host")

    assert contents(prompt) == ["from the host", "header", "q"]
    assert prompt.tokens == plain.tokens + count_message({"content": "from the host"}, count_tokens)


def test_the_system_messages_are_passed_on_as_they_are() -> None:
    """A developer message with keys of its own stays what it is."""
    system = [{"role": "developer", "content": "d", "name": "host"}, {"role": "system", "content": "s"}]

    assert compose(Memory.from_messages([user()]), budget=100, system=system).messages == [*system, user()]


def test_an_empty_system_text_is_none() -> None:
    """A setting that is left empty adds no empty message."""
    assert contents(compose(Memory.from_messages([user()]), budget=100, system="")) == ["q"]


def test_one_system_message_by_itself_is_refused() -> None:
    """A mapping is no list of messages, and the error says what to do."""
    with pytest.raises(TypeError, match="into a list"):
        compose(Memory(), budget=100, system={"role": "system", "content": "s"})  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "8000", None, float("nan")])
def test_nonsense_is_no_budget(budget: object) -> None:
    """A budget that is no number of tokens is refused with what it was."""
    with pytest.raises(ValueError, match=r"budget: must be a whole number from 1 on, not "):
        compose(Memory(), budget=budget)  # type: ignore[arg-type]


# -- calls and results ------------------------------------------------------------------------------------------------


def test_after_a_crash_the_prompt_is_one_that_providers_accept() -> None:
    """A call that was never answered and a result whose call is elsewhere come out in a legal form."""
    memory = Memory.from_messages([user("q1"), calls("c1", "c2"), result("c2", "r2"), user("q2"), result("c1", "late")])

    prompt = compose(memory, budget=1_000)

    assert_legal(prompt, 1_000)
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert contents(prompt)[2:4] == ["r2", NO_RESULT]
    assert contents(prompt)[5].endswith("late")


def test_open_calls_stay_open() -> None:
    """The host composes while its tools run: nothing is put in the place of their results."""
    given = [user(), calls("c1", "c2"), result("c2")]

    assert compose(Memory.from_messages(given), budget=1_000).messages == given


def test_calls_that_another_process_left_open_are_closed_where_others_follow() -> None:
    """Two Memories on one store, each with an open round: only what stands last may wait for its results."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    crashed = first.create_round("q1")
    first.add_post(crashed, send_from="assistant", send_to="tool", tool_calls=(ToolCall(id="c", name="f"),))
    second.create_round("q2")

    prompt = compose(second, budget=1_000)

    assert contents(prompt)[2:] == [NO_RESULT, "q2"]
    assert_legal(prompt, 1_000)


@pytest.mark.parametrize("budget", range(60, 400, 20))
def test_a_cut_never_parts_a_call_from_its_results(budget: int) -> None:
    """Wherever the cut falls, a call goes with all its results."""
    memory = Memory.from_messages([user()])
    for number in range(12):
        memory.append(calls(f"c{number}", f"d{number}"))
        memory.append(result(f"d{number}", words(number)))
        memory.append(result(f"c{number}", words(9)))

    assert_legal(compose(memory, budget=budget), budget)


# -- leaving out rounds -----------------------------------------------------------------------------------------------


def test_cuts_fall_on_a_fixed_grid() -> None:
    """Promise 2: what is left out ends at the first round behind a whole number of steps, however the tail grows."""
    memory, budget = Memory(), 1_000
    step = int(budget * GRID)
    ends = []
    for number in range(60):
        memory.append(user(f"{number:05} {words(10 + 7 * (number % 5))}"))
        memory.append(answer(f"{number:05} {words(20)}"))
        prompt = compose(memory, budget=budget)
        ends.append(len(prompt.report.omitted_rounds))
    costs = [count_message(message, count_tokens) for message in memory.messages()]
    before = [sum(costs[: 2 * rounds]) for rounds in range(61)]

    assert len(set(ends)) > 5
    for end in set(ends) - {0}:
        crossed = before[end] // step
        assert crossed > before[end - 1] // step, "the cut is not at the first round behind a mark"


def test_a_cut_is_made_rarely_and_by_a_whole_step() -> None:
    """Between two cuts the prompt only grows, until the next is due."""
    memory, before, changes = Memory(), compose(Memory(), budget=1_000), []
    for number in range(200):
        memory.append(user(f"{number:05} {words(8)}"))
        prompt = compose(memory, budget=1_000)
        if prompt.messages[: len(before.messages)] != before.messages:
            changes.append(number)
            assert before.tokens > 1_000 - 120
            assert prompt.tokens <= 1_000 * (1 - GRID) + 60
        before = prompt
    assert 5 < len(changes) < 15


def test_the_line_says_what_is_left_out_and_how_to_read_it() -> None:
    """Promise 4: the report and the line name the same rounds, and the reference reloads them in full."""
    memory = chat(40)

    prompt = compose(memory, budget=500)

    omitted = prompt.report.omitted_rounds
    assert omitted == tuple(range(1, omitted[-1] + 1))
    assert note_of(prompt).endswith(f"rounds 1 to {omitted[-1]} (reload r1-r{omitted[-1]}).]")
    assert prompt.messages[0]["content"] == note_of(prompt)
    for number in omitted:
        assert f"question {number:05}" in left_out_texts(memory, prompt)
    assert contents(prompt)[1].startswith(f"question {omitted[-1] + 1:05}")
    assert prompt.report.tokens_before > 500 >= prompt.report.tokens_after


def test_one_round_that_is_left_out_is_named_by_its_own_reference() -> None:
    """A range of one is no range."""
    memory = Memory.from_messages([user(words(80)), answer(), user(words(10))])

    assert "rounds 1 to 1 (reload r1)" in note_of(compose(memory, budget=100))


def test_failed_rounds_are_neither_shown_nor_reported() -> None:
    """A failed round is hidden; the others keep the numbers of the log."""
    memory = chat(12)
    rounds = memory.conversation.rounds
    memory.finish_round(rounds[1], "failed")
    memory.finish_round(rounds[9], "failed")

    prompt = compose(memory, budget=300)

    omitted = prompt.report.omitted_rounds
    assert 1 in omitted
    assert 2 not in omitted
    assert all("00002" not in str(text) and "00010" not in str(text) for text in contents(prompt))
    assert_legal(prompt, 300)


def test_a_round_that_fails_after_it_was_counted_costs_nothing_any_more() -> None:
    """What is hidden later makes room again: counts are those of the rounds that are there."""
    memory = chat(12)
    full = compose(memory, budget=10_000)
    memory.finish_round(memory.conversation.rounds[3], "failed")

    prompt = compose(memory, budget=10_000)

    assert_legal(prompt, 10_000)
    assert prompt.tokens < full.tokens


def test_what_is_left_out_is_counted_from_the_end_of_the_compaction() -> None:
    """Covered rounds are not left out: they read as the summary."""
    memory = chat(40)
    compacted(memory, 10, "Ten questions were answered.")

    prompt = compose(memory, budget=600)

    assert prompt.report.omitted_rounds[0] == 11
    assert prompt.tokens > 600 * (1 - 2 * GRID)
    assert "Ten questions" in prompt.messages[0]["content"]
    assert prompt.messages[1]["content"] == note_of(prompt)
    assert_legal(prompt, 600)


def test_the_compaction_keeps_what_changes_for_its_last_line() -> None:
    """A provider's cache keeps all of a prompt whose summary begins as it did before."""
    memory = chat(6)
    compacted(memory, 2, "One.")
    first = compose(memory, budget=5_000).messages[0]["content"].splitlines()
    compacted(memory, 4, "One.")
    second = compose(memory, budget=5_000).messages[0]["content"].splitlines()

    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]


# -- the newest query -------------------------------------------------------------------------------------------------


def test_the_newest_query_is_kept_when_everything_is_compacted() -> None:
    """With nothing retained, the prompt is the summary and what the user asked last."""
    memory = chat(3)
    memory.finish_round(memory.conversation.rounds[-1])
    compacted(memory, 3, "All of it.")

    prompt = compose(memory, budget=1_000)

    assert len(prompt.messages) == 2
    assert contents(prompt)[1].startswith("question 00003")
    assert_legal(prompt, 1_000)


def test_the_newest_query_is_kept_when_it_stands_in_an_older_round() -> None:
    """Rounds that the agent opens by itself do not push out what the user asked."""
    memory = chat(4)
    for number in range(30):
        round_ = memory.create_round("")
        memory.add_post(round_, send_from="assistant", send_to="User", message=f"{number} {words(30)}")

    prompt = compose(memory, budget=400)

    assert 4 in prompt.report.omitted_rounds
    assert contents(prompt)[0] == note_of(prompt)
    assert contents(prompt)[1].startswith("question 00004")
    assert sum("question" in str(text) for text in contents(prompt)) == 1
    assert_legal(prompt, 400)


@pytest.mark.parametrize("budget", range(300, 900, 45))
def test_a_long_query_from_an_older_round_has_its_room(budget: int) -> None:
    """What is shown once more is counted once more, wherever the cut falls."""
    memory = Memory()
    memory.create_round(words(150))
    for _ in range(40):
        round_ = memory.create_round("")
        memory.add_post(round_, send_from="assistant", send_to="User", message=words(12))

    prompt = compose(memory, budget=budget)

    assert words(150) in contents(prompt)
    assert len(prompt.messages) > 2
    assert_legal(prompt, budget)


def test_a_session_in_which_the_user_never_speaks_is_cut_like_any_other() -> None:
    """An agent that talks to itself has no query to keep."""
    memory = Memory()
    for number in range(30):
        memory.append(answer(f"{number} {words(30)}"))

    prompt = compose(memory, budget=300)

    assert contents(prompt)[-1].startswith("29")
    assert_legal(prompt, 300)


def test_of_several_user_messages_in_a_row_the_first_and_the_last_stay() -> None:
    """The query of the newest round and the newest words of the user stay whole; what is between may go."""
    memory = Memory.from_messages([user(f"{number} {words(40)}") for number in range(12)])

    prompt = compose(memory, budget=300)

    assert contents(prompt)[1] == f"0 {words(40)}"
    assert contents(prompt)[-1] == f"11 {words(40)}"
    assert prompt.report.omitted_rounds == (1,)
    assert "the posts from r1.p1 to" in note_of(prompt)
    assert_legal(prompt, 300)


def test_a_budget_below_the_newest_query_is_refused_with_what_is_needed() -> None:
    """The error names the least budget; with exactly that there is a prompt, and it is the query alone."""
    memory = chat(6)
    memory.append({"role": "user", "content": words(200)})

    with pytest.raises(BudgetExceeded, match="raise the budget") as exceeded:
        compose(memory, budget=100, system="Be brief.")

    needed = exceeded.value.needed
    assert exceeded.value.budget == 100
    assert needed == PROMPT_TOKENS + 2 * MESSAGE_TOKENS + count_tokens("Be brief.") + 200
    prompt = compose(memory, budget=needed, system="Be brief.")
    assert contents(prompt) == ["Be brief.", words(200)]
    assert prompt.report.omitted_rounds == (1, 2, 3, 4, 5, 6)
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=needed - 1, system="Be brief.")


def test_a_header_over_the_budget_is_refused() -> None:
    """Without any round there is still something that must fit."""
    with pytest.raises(BudgetExceeded):
        compose(Memory(), budget=50, system=words(60))


# -- long rounds ------------------------------------------------------------------------------------------------------


def agent_run(steps: int, tokens: int = 20) -> Memory:
    """Return a session with one query and *steps* calls after it."""
    memory = Memory.from_messages([user("Find the fault.")])
    for number in range(steps):
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", f"{number:05} {words(tokens)}"))
    return memory


def test_the_oldest_posts_of_a_long_round_are_left_out() -> None:
    """Hundreds of small posts after one query: the query and the newest stay, the line says what is gone."""
    memory = agent_run(300)

    prompt = compose(memory, budget=1_000)

    assert contents(prompt)[1] == "Find the fault."
    assert contents(prompt)[-1].startswith("00299")
    assert prompt.tokens > 1_000 * (1 - GRID) - 80
    assert prompt.report.omitted_rounds == (1,)
    assert "00000 word" in left_out_texts(memory, prompt)
    assert_legal(prompt, 1_000)


def test_a_long_round_is_cut_as_rarely_as_a_long_conversation() -> None:
    """Within a round, too, the beginning stays until a whole step is due."""
    memory, before, changed = agent_run(1), [], 0
    for number in range(1, 120):
        for message in (calls(f"c{number}"), result(f"c{number}", words(20))):
            memory.append(message)
            prompt = compose(memory, budget=1_500)
            changed += prompt.messages[: len(before)] != before
            before = prompt.messages
    assert 4 < changed < 20


def test_a_large_result_is_clipped_around_a_reference() -> None:
    """The newest payload is shown with head and tail; the reference between them reloads the original."""
    memory = Memory.from_messages([user(), calls("c")])
    text = "first line\n" + words(5_000) + "\nlast line"
    memory.append(result("c", text))

    prompt = compose(memory, budget=1_000)

    shown = contents(prompt)[-1]
    assert shown.startswith("first line")
    assert shown.endswith("last line")
    (reduced,) = prompt.report.reductions
    assert f"reload {reduced.ref} " in shown
    assert memory.reload(reduced.ref) == text
    assert reduced.tokens_before > 5_000
    assert 450 < reduced.tokens_after == count_message(prompt.messages[-1], count_tokens) <= 520
    assert note_of(prompt) == ""
    assert_legal(prompt, 1_000)


def test_a_clipped_result_stays_while_there_is_room() -> None:
    """What the agent just read does not vanish with its next step."""
    memory = Memory.from_messages([user(), calls("c"), result("c", words(5_000))])
    first = compose(memory, budget=2_000)
    for message in (answer("I see."), calls("d"), result("d", words(100))):
        memory.append(message)
        prompt = compose(memory, budget=2_000)
        assert prompt.messages[: len(first.messages)] == first.messages
    assert_legal(prompt, 2_000)


def test_a_round_with_a_large_result_is_not_left_out_as_a_whole() -> None:
    """The next question finds the answer to the one before: of a round over the budget, its newest posts stay."""
    memory = chat(10)
    for message in (user("Read it."), calls("c"), result("c", words(5_000)), answer("It says 42."), user("And why?")):
        memory.append(message)

    prompt = compose(memory, budget=1_000)

    assert prompt.report.omitted_rounds == tuple(range(1, 11))
    assert contents(prompt)[-5:][:2] == ["Read it.", None]
    assert contents(prompt)[-2:] == ["It says 42.", "And why?"]
    assert [reduced.ref for reduced in prompt.report.reductions] == ["r11.p2"]
    assert_legal(prompt, 1_000)


def test_many_parallel_calls_are_clipped_together() -> None:
    """Results of one step share the room; all of them are shown, each with its reference."""
    ids = [f"c{number}" for number in range(8)]
    memory = Memory.from_messages([user(), calls(*ids)])
    for number, id_ in enumerate(ids):
        memory.append(result(id_, f"{number} {words(800)}"))

    prompt = compose(memory, budget=2_000)

    assert len(prompt.messages) == 10
    assert len(prompt.report.reductions) == 8
    assert prompt.tokens > 1_000
    assert_legal(prompt, 2_000)


def test_results_are_clipped_to_a_line_before_they_are_left_out() -> None:
    """At a tight budget each still says what is there to reload."""
    ids = [f"c{number}" for number in range(8)]
    memory = Memory.from_messages([user(), calls(*ids), *(result(id_, words(800)) for id_ in ids)])

    prompt = compose(memory, budget=700)

    assert [reduced.ref for reduced in prompt.report.reductions] == [f"r1.p{number}" for number in range(2, 10)]
    assert_legal(prompt, 700)


def test_the_newest_step_stays_though_the_mark_lies_behind_it() -> None:
    """Cuts go by whole steps, but never to the point where nothing is left."""
    memory = Memory.from_messages([user(), answer(words(140)), calls("c", "d")])
    memory.append(result("c", words(420)))
    memory.append(result("d", words(420)))

    prompt = compose(memory, budget=1_000)

    assert contents(prompt)[1:] == ["q", None, words(420), words(420)]
    assert "from r1.p1 to r1.p1" in note_of(prompt)
    assert_legal(prompt, 1_000)


def test_calls_without_number_are_left_out_rather_than_refused() -> None:
    """Where not even the shortest form of the newest step fits, it goes too, and the line says so."""
    ids = [f"c{number}" for number in range(200)]
    memory = Memory.from_messages([user(), calls(*ids), *(result(id_, words(10)) for id_ in ids)])

    prompt = compose(memory, budget=300)

    assert contents(prompt)[1:] == ["q"]
    assert note_of(prompt).endswith("the posts from r1.p1 to r1.p201 (reload each by that name).]")
    assert_legal(prompt, 300)


def test_clipped_arguments_are_valid_json() -> None:
    """Providers parse a call's arguments: they are replaced by an object that names the reference."""
    arguments = json.dumps({"rows": list(range(3_000))})
    memory = Memory.from_messages([user(), calls("c", "d", arguments=arguments), result("c"), result("d")])

    prompt = compose(memory, budget=400)

    shown = [json.loads(call["function"]["arguments"]) for call in prompt.messages[1]["tool_calls"]]
    assert [list(one) for one in shown] == [["left_out"], ["left_out"]]
    assert "reload r1.p1" in shown[0]["left_out"]
    assert arguments in memory.reload("r1.p1")
    assert_legal(prompt, 400)


def test_what_a_user_message_carries_is_behind_its_reference() -> None:
    """A query with attachments that is clipped in an older round can be reloaded with them."""
    memory = Memory()
    round_ = memory.create_round("Look at this.")
    file = Attachment(type="file", content=words(900))
    memory.add_post(round_, send_from="User", send_to="assistant", message="Look at this.", attachment_list=(file,))
    memory.add_post(round_, send_from="assistant", send_to="User", message="Seen.")
    memory.create_round("And now?")

    prompt = compose(memory, budget=500)

    (reduced,) = prompt.report.reductions
    assert words(900) in memory.reload(reduced.ref)
    assert contents(prompt)[-2:] == ["Seen.", "And now?"]


# -- roles ------------------------------------------------------------------------------------------------------------


def team() -> Memory:
    memory = Memory()
    for number in range(20):
        round_ = memory.create_round(f"task {number}")
        memory.add_post(round_, send_from="Planner", send_to="Coder", message=f"load table {number}")
        memory.add_post(round_, send_from="Coder", send_to="Planner", message=f"{number} {words(20)}")
        memory.add_post(round_, send_from="Planner", send_to="User", message=f"reply {number}")
        memory.finish_round(round_)
    return memory


def test_each_role_has_a_prompt_of_its_own() -> None:
    """A role's own words are the assistant's, others' are named, and what it does not see is not there."""
    memory = team()

    planner, coder = (compose(memory, role, budget=10_000) for role in ("Planner", "Coder"))

    assert contents(planner)[:4] == ["task 0", "load table 0", f"Coder: 0 {words(20)}", "reply 0"]
    assert contents(coder)[:3] == ["task 0", "Planner: load table 0", f"0 {words(20)}"]
    assert not any("reply" in text for text in contents(coder))
    assert [message["role"] for message in coder.messages[:3]] == ["user", "user", "assistant"]


def test_a_cut_counts_only_what_the_role_sees() -> None:
    """Each role's prompt is full of its own; the references are the log's."""
    memory = team()

    for role in ("Planner", "Coder"):
        prompt = compose(memory, role, budget=500)
        assert_legal(prompt, 500)
        assert prompt.tokens > 500 * (1 - 2 * GRID)
        assert prompt.report.omitted_rounds[0] == 1


def test_the_header_is_the_assistants() -> None:
    """System messages that came in by append are sent to the assistant, not to other roles."""
    memory = Memory.from_messages([{"role": "system", "content": "header"}, user()])

    assert contents(compose(memory, "Planner", budget=100)) == ["q"]


# -- overlays from elsewhere ------------------------------------------------------------------------------------------


class Provider:
    """Says what it was told to say."""

    def __init__(self, compaction: CompactedMessage) -> None:
        self.compaction = compaction

    def get_compaction(self) -> CompactedMessage:
        return self.compaction

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("end", [1, 5, 6, 99])
def test_a_host_may_provide_its_own_compaction(end: int) -> None:
    """Whatever a provider says it covers, up to more than there is, the prompt is legal and keeps the query."""
    memory = chat(6)
    memory.register_compaction_provider(
        "assistant", Provider(CompactedMessage(start_index=1, end_index=end, summary="S."))
    )

    prompt = compose(memory, budget=250)

    assert_legal(prompt, 250)
    assert prompt.messages[0]["content"].startswith("[Conversation History Summary]\nS.")
    assert any(str(text).startswith("question 00006") for text in contents(prompt))


def test_several_open_rounds_are_all_shown_and_counted_once() -> None:
    """Two Memories write to one session: each has its round open, and neither costs more with every prompt."""
    store, counted = InMemoryStore(), []
    memories = [Memory("s", store=store) for _ in range(2)]
    rounds = [memory.create_round(f"q{number}") for number, memory in enumerate(memories)]
    for memory, round_ in zip(memories, rounds, strict=True):
        for _ in range(5):
            memory.add_post(round_, send_from="assistant", send_to="User", message=words(10))
    reader = Memory("s", store=store)

    def counter(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    first = compose(reader, budget=1_000, counter=counter)
    counted.clear()
    again = compose(reader, budget=1_000, counter=counter)

    assert again == first
    assert len(first.messages) == 12
    assert [text for text in counted if "word" in text] == []


# -- counters ---------------------------------------------------------------------------------------------------------


def test_a_model_is_counted_in_its_own_encoding() -> None:
    """gpt-4 splits text otherwise than the newer models do."""
    text = "".join(f"ünïcödé {number} 漢字 " for number in range(40))
    memory = Memory.from_messages([user(text)])

    old, new = compose(memory, budget=5_000, model="gpt-4"), compose(memory, budget=5_000, model="gpt-4o")

    assert old.tokens == PROMPT_TOKENS + MESSAGE_TOKENS + count_tokens(text, "cl100k_base")
    assert new.tokens == PROMPT_TOKENS + MESSAGE_TOKENS + count_tokens(text, "o200k_base")
    assert old.tokens != new.tokens


class Characters:
    """Counts characters, and how often it is asked. Two are equal, and cannot be hashed."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, text: str) -> int:
        self.asked += 1
        return len(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Characters)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("named", [lambda counter: counter, lambda counter: counter.__call__])
def test_a_counter_of_the_hosts_own_counts_each_closed_round_once(named: Callable[[Any], Any]) -> None:
    """A counter that cannot be hashed, and a method, which is another object each time, are known again."""
    memory, counter = chat(50), Characters()
    first = compose(memory, budget=3_000, counter=named(counter))
    assert_legal(first, 3_000, len)
    counter.asked = 0

    assert compose(memory, budget=3_000, counter=named(counter)) == first
    assert counter.asked < 20


# -- cost -------------------------------------------------------------------------------------------------------------


def asked(rounds: int) -> Memory:
    """Return a session of *rounds* questions, read from a store that was filled in one go."""
    store, entries = InMemoryStore(), []
    for number in range(rounds):
        query = f"question {number:05} {words(20)}"
        opened = RoundOpened(round_id=str(number), user_query=query, created_at=datetime.now(UTC))
        entries += [Entry.of(opened), Entry.of(RoundFinished(round_id=str(number)))]
    store.append("s", entries, 0)
    return Memory("s", store=store)


@pytest.fixture(scope="module")
def long_chats() -> dict[int, Memory]:
    """Sessions of very different length whose newest rounds are as long."""
    return {rounds: asked(rounds) for rounds in (100, 10_000)}


@pytest.mark.parametrize("role", ["assistant", "User"])
def test_the_cost_does_not_grow_with_the_uncovered_tail(
    long_chats: dict[int, Memory], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3: at 10,000 uncovered rounds a prompt counts as few texts and reads as few rounds as at 100."""
    read: list[int] = []
    at = Rounds._at
    monkeypatch.setattr(Rounds, "_at", lambda self, place: read.append(place) or at(self, place))
    effort = []
    for memory in long_chats.values():
        counter = Characters()
        compose(memory, role, budget=2_000, counter=counter)
        read.clear()
        counter.asked = 0
        prompt = compose(memory, role, budget=2_000, counter=counter)
        assert prompt.report.omitted_rounds
        effort.append((counter.asked, len(read)))

    (counted, rounds), (counted_later, rounds_later) = effort
    assert counted_later <= counted + 2
    assert rounds_later <= rounds + 10


def test_a_prompt_of_a_hundred_times_the_rounds_takes_about_as_long(long_chats: dict[int, Memory]) -> None:
    """The same in time, with a margin for slow machines: a hundred times would be the fault."""
    took = {}
    for rounds, memory in long_chats.items():
        compose(memory, budget=2_000)
        took[rounds] = min(_seconds(lambda memory=memory: compose(memory, budget=2_000)) for _ in range(7))

    assert took[10_000] < 10 * took[100]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def test_a_query_long_ago_is_found_without_reading_all_rounds_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that works on for thousands of rounds after one question does not pay for them."""
    memory = Memory()
    for number in range(500):
        round_ = memory.create_round("" if number else "The only question.")
        memory.add_post(round_, send_from="assistant", send_to="User", message=words(20))
    compose(memory, budget=500)
    read: list[int] = []
    at = Rounds._at
    monkeypatch.setattr(Rounds, "_at", lambda self, place: read.append(place) or at(self, place))

    prompt = compose(memory, budget=500)

    assert "The only question." in contents(prompt)
    assert len(read) < 50


def test_a_huge_result_is_counted_once_and_then_only_its_ends() -> None:
    """Ten megabytes in the open round do not slow down each turn that follows."""
    memory, counted = Memory.from_messages([user(), calls("c"), result("c", "0123456789 " * 1_000_000)]), []

    def counter(text: str) -> int:
        counted.append(len(text))
        return count_tokens(text)

    compose(memory, budget=2_000, counter=counter)
    memory.append(answer("I see."))
    counted.clear()

    prompt = compose(memory, budget=2_000, counter=counter)

    assert prompt.report.reductions[0].tokens_before > 1_000_000
    assert sum(counted) < 100_000
    assert_legal(prompt, 2_000)


def test_prompts_are_right_while_others_write() -> None:
    """Any number of threads compose while the log grows; each gets a prompt of one moment."""
    memory, prompts, errors = chat(30), [], []
    writing = threading.Event()

    def read() -> None:
        try:
            while not writing.is_set():
                prompts.append(compose(memory, budget=800))
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(100):
        memory.append(user(f"more {number}"))
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(30)))
    writing.set()
    for reader in readers:
        reader.join()

    assert errors == []
    assert prompts
    for prompt in [*prompts[:20], *prompts[-20:]]:
        assert_legal(prompt, 800)


# -- clipping ---------------------------------------------------------------------------------------------------------


TEXTS = (
    words(1_000),
    "漢字かな" * 500,
    "🎉👩‍👩‍👧" * 300,
    " " * 20_000,
    "a" * 20_000,
    "\x00\x1b[31m" * 800,
    "\ud800 lone " * 500,
    "\n".join(f"{number:05},{number * 7}" for number in range(800)),
)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:4]))
@pytest.mark.parametrize("limit", [40, 100, 500])
def test_a_clipped_text_is_head_and_tail_of_the_original(text: str, limit: int) -> None:
    """Both ends are verbatim, the line between them counts what is missing, and the whole is within the limit."""
    clipped = clip_text(text, limit, "r1.p1", count_tokens)

    head, rest = clipped.split("\n[... ", 1)
    said, tail = rest.split(" ...]\n", 1)
    assert text.startswith(head)
    assert text.endswith(tail)
    missing = len(text) - len(head) - len(tail)
    assert said == f"{missing:,} of {len(text):,} characters left out; reload r1.p1"
    assert count_tokens(clipped) <= limit


def test_clipping_never_makes_a_message_longer() -> None:
    """A text that is shorter than the line that would stand in its place stays."""
    for tokens in range(1, 60):
        message = user(words(tokens))
        clipped = clip_message(message, 24, "r1.p1", count_tokens)
        assert count_message(clipped, count_tokens) <= count_message(message, count_tokens)


def test_a_message_within_the_limit_is_left_alone() -> None:
    """The very object is returned, so nobody takes it for a reduction."""
    message = {"role": "assistant", "content": words(20), "tool_calls": calls("c")["tool_calls"]}

    assert clip_message(message, 100, "r1.p1", count_tokens) is message


def test_content_in_parts_is_clipped_as_text_with_a_mark_for_each_other_part() -> None:
    """Where an image cannot stay, its place is named; parts may also be plain text."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    message = {"role": "user", "content": [{"type": "text", "text": "Look:"}, image, "and " + words(400)]}

    clipped = clip_message(message, 60, "r1.p0", count_tokens)

    assert clipped["content"].startswith("Look:\n[image_url]\nand word")
    assert "reload r1.p0" in clipped["content"]


def test_a_call_in_another_form_is_left_as_it_is() -> None:
    """Only a function's arguments are known to be text that may be replaced."""
    custom = {"id": "c", "type": "custom", "custom": {"name": "f", "input": words(300)}}
    message = {"role": "assistant", "content": words(300), "tool_calls": [custom, *calls("d")["tool_calls"]]}

    assert clip_message(message, 60, "r1.p1", count_tokens)["tool_calls"] == message["tool_calls"]


def test_rounds_of_several_lengths_all_compose(data: list[dict[str, Any]]) -> None:
    """One real dialogue at every budget from hopeless to ample: refused below the least, legal from there on."""
    memory = Memory.from_messages(max(data, key=lambda dialogue: len(dialogue["messages"]))["messages"])
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=1)
    least = exceeded.value.needed

    for budget in (least, least + 1, least + 60, *range(least + 100, 20_000, 487)):
        assert_legal(compose(memory, budget=budget), budget)


def test_a_prompt_is_paired_even_where_the_log_is_not() -> None:
    """Results of one call in two rounds, and calls in a round that failed between them."""
    memory = Memory.from_messages(
        [user("q1"), calls("c"), user("q2"), result("c"), calls("c"), result("c"), user("q3")]
    )
    failed: Round = memory.conversation.rounds[1]
    assert_paired(compose(memory, budget=1_000).messages)
    memory.finish_round(failed, "failed")

    assert_paired(compose(memory, budget=1_000).messages)
