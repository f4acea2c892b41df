"""A prompt fits its budget, with room for the answer and the tools, by the provider's own count; what cannot fit is
refused with what it needs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import (
    answer,
    assert_legal,
    chat,
    contents,
    user,
    words,
)

from compactor import BudgetExceeded, OverBudget, Prompt, compose, count_prompt, count_tokens
from memory import InMemoryStore, Memory

# -- the budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "8000", None, float("nan")])
def test_nonsense_is_no_budget(budget: object) -> None:
    """A budget that is no number of tokens is refused with what it was."""
    with pytest.raises(ValueError, match=r"budget: must be a whole number from 1 on, not "):
        compose(Memory(), budget=budget)  # type: ignore[arg-type]


def test_rounds_of_several_lengths_all_compose(data: list[dict[str, Any]]) -> None:
    """One real dialogue at every budget from hopeless to ample: refused below the least, legal from there on."""
    memory = Memory.from_messages(max(data, key=lambda dialogue: len(dialogue["messages"]))["messages"])
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=1)
    least = exceeded.value.needed

    for budget in (least, least + 1, least + 60, *range(least + 100, 20_000, 487)):
        assert_legal(compose(memory, budget=budget), budget)


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
    alone = [4 + count_tokens(json.dumps(tool, ensure_ascii=False)) for tool in TOOLS]

    full, prompt = compose(memory, budget=50_000, tools=TOOLS), compose(memory, budget=1_000, tools=TOOLS)

    assert full.tokens == compose(memory, budget=50_000).tokens + sum(alone)
    assert full.report.tokens_before == full.report.tokens_after == full.tokens
    assert prompt.tokens == count_prompt(prompt.messages, count_tokens) + sum(alone) <= 1_000
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=60, tools=TOOLS)
    assert compose(memory, budget=exceeded.value.needed, tools=TOOLS).tokens == exceeded.value.needed


def by_the_provider(prompt: Prompt) -> int:
    """Count as a provider does that needs 17% more tokens."""
    return -(-prompt.tokens * 117 // 100)


def test_prompts_of_one_role_that_are_made_at_once_count_each_its_own_head() -> None:
    """Another caller composes, with other system messages and tools, while what stands in front is being counted."""
    memory = Memory.from_messages([user("q " * 20), answer("a " * 20), user("last")])
    tools, long = [{"type": "function", "function": {"name": "look_up"}}], "words of the system " * 100
    others: list[Prompt] = []

    def count(text: str) -> int:
        if "look_up" in text and not others:
            others.append(compose(memory, budget=10_000, system="s", counter=count))
        return len(text.split())

    prompt = compose(memory, budget=10_000, system=long, counter=count, tools=tools)

    for made, front in ((prompt, long), (others[0], "s")):
        messages = [{"role": "system", "content": front}, *memory.messages()]
        schema = 4 + count(json.dumps(tools[0])) if made is prompt else 0
        assert made.messages == messages
        assert made.tokens == count_prompt(messages, count) + schema
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=400, system=long, counter=count, tools=tools)


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


def test_a_budget_below_the_newest_query_is_refused_with_what_is_needed() -> None:
    """The error names the least budget; with exactly that there is a prompt, and it is the query alone."""
    memory = chat(6)
    memory.append({"role": "user", "content": words(200)})

    with pytest.raises(BudgetExceeded, match="raise the budget") as exceeded:
        compose(memory, budget=100, system="Be brief.")

    needed = exceeded.value.needed
    assert exceeded.value.budget == 100
    assert needed == 3 + 2 * 4 + count_tokens("Be brief.") + 200
    prompt = compose(memory, budget=needed, system="Be brief.")
    assert contents(prompt) == ["Be brief.", words(200)]
    assert prompt.report.omitted_rounds == (1, 2, 3, 4, 5, 6)
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=needed - 1, system="Be brief.")


def test_a_message_over_the_budget_does_not_end_the_conversation() -> None:
    """Its error says to shorten the message. The next one, said in the same round, is shown with what fits of it."""
    memory = chat(6)
    memory.append({"role": "user", "content": words(20_000)})
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=1_000)

    memory.append({"role": "user", "content": "In short: which orders are late?"})
    prompt = compose(memory, budget=1_000)

    assert prompt.tokens <= 1_000
    assert contents(prompt)[-1] == "In short: which orders are late?"
    (shorter,) = [one for one in prompt.report.reductions if one.ref.startswith("r7")]
    assert memory.reload(shorter.ref) == words(20_000)


@pytest.mark.parametrize(("first", "last"), [(600, 300), (300, 600), (900, 1)])
def test_of_two_messages_too_long_together_the_last_stays_whole(first: int, last: int) -> None:
    """The user's first words in the round are shortened as other texts are, and reloadable."""
    memory = Memory()
    memory.extend([{"role": "user", "content": words(first)}, {"role": "user", "content": words(last)}])

    prompt = compose(memory, budget=800)

    assert prompt.tokens <= 800
    assert contents(prompt)[-1] == words(last)
    assert memory.reload(prompt.report.reductions[0].ref) == words(first)


def test_a_header_over_the_budget_is_refused() -> None:
    """Without any round there is still something that must fit."""
    with pytest.raises(BudgetExceeded):
        compose(Memory(), budget=50, system=words(60))
