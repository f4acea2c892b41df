"""One question and very many tool calls, out of the box: what a coding agent's session is."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from chats import Message, assert_paired, calls, result, user
from hypothesis import given, settings
from hypothesis import strategies as st
from newcomer import MODEL, Client, Session
from scene import of_kind

from compactor import CompactionTimeout, CostEvaluated, Reduced, compose, compress_tool_runs, count_prompt, count_tokens

pytestmark = pytest.mark.timeout(120)


def call(session: Session, number: int, size: int, said: str = "") -> list[Message]:
    """The agent reads its prompt, calls a tool and gets a result of *size* words; return the prompt."""
    prompt = compose(session.memory, budget=session.budget, model=session.agent)
    session.prompts.append(prompt)
    assert prompt.tokens == count_prompt(prompt.messages, count_tokens) <= session.budget
    assert_paired(prompt.messages)
    assert any("Find the parcel" in str(message["content"]) for message in prompt.messages)
    session.memory.append({**calls(f"c{number}"), "content": said or None})
    session.memory.append(result(f"c{number}", session.words(size)))
    session.executor.run_all()
    session.clock.advance(5)
    session.executor.run_all()
    return prompt.messages


def task(count: int = 80, size: int = 250, hit: float = 0.9, agent: str = MODEL, **more: Any) -> Session:
    session = Session(Client(hit=hit), agent=agent, budget=16_000, **more)
    session.memory.append(user("Find the parcel."))
    for number in range(count):
        call(session, number, size, f"KEY-{number:04} is VQ{number}Z." if number % 4 == 0 else "")
    return session


def test_calls_of_the_open_round_are_summarised_when_the_prompt_nears_its_budget() -> None:
    """In few whole steps: what the agent said long ago is in the newest prompt, and its calls can be reloaded."""
    session = task()
    shown = "\n".join(str(message["content"]) for message in session.prompts[-1].messages)
    assert all(f"KEY-{number:04}" in shown for number in range(0, 76, 4))
    assert 1 <= len(session.client.continued) <= 4
    assert all(session.client.continued), "the prompt is in the provider's cache"
    assert not any(prompt.report.omitted_rounds for prompt in session.prompts)
    (reference,) = re.findall(r"reload (r1\.p\S+)\]", shown)
    assert "KEY-0004 is VQ4Z." in session.memory.reload(reference)
    looks = of_kind(session.events, CostEvaluated)
    assert {look.reason for look in looks if look.is_due} == {"budget"}
    assert all(look.tokens >= look.ceiling for look in looks if look.is_due)


def test_the_beginning_of_prompts_stays_between_two_steps() -> None:
    """Each of the others is the one before and something more, so the provider has it in its cache."""
    prompts = [[*prompt.messages] for prompt in task().prompts]
    changed = sum(after[: len(before)] != before for before, after in pairwise(prompts))
    assert 1 <= changed <= 4


def test_large_results_of_the_open_round_are_offloaded_first() -> None:
    """Nobody is asked while that is enough; the newest result is shown in full until the agent has read it."""
    session = task(12, 2_000)
    assert {event.kind for event in of_kind(session.events, Reduced)} == {"offloaded"}
    assert session.client.continued == []
    newest = compose(session.memory, budget=16_000).messages[-1]
    assert count_tokens(str(newest["content"])) >= 2_000


def test_a_step_that_does_not_repay_is_not_paid_for() -> None:
    """So few calls fit in the prompt that it costs less to cut it; the compactor says so."""
    session = Session(Client(hit=0.9), agent=MODEL, budget=4_000)
    session.memory.append(user("Find the parcel."))
    for number in range(30):
        call(session, number, 700)
    assert session.client.continued == []
    assert of_kind(session.events, Reduced) == []
    newest = of_kind(session.events, CostEvaluated)[-1]
    assert f"the whole prompt has {newest.tokens:,}, more than {newest.ceiling:,}." in session.compactor.describe()
    assert "compose cuts it to the budget" in session.compactor.describe()
    assert "At the latest" not in session.compactor.describe()


def test_strategies_of_ones_own_get_their_chance_in_the_open_round() -> None:
    """Whoever names one for it pays for it, whether it repays or not."""
    session = Session(Client(), agent="gpt-4o", budget=4_000, strategies=[compress_tool_runs(scope="current")])
    session.memory.append(user("Find the parcel."))
    for number in range(30):
        call(session, number, 300)
    assert {event.kind for event in of_kind(session.events, Reduced)} == {"summarised"}


def test_a_forced_compaction_leaves_the_open_round_as_it_is() -> None:
    """The prompt has room: nobody asked for less of the work at hand."""
    session = task(10)
    with suppress(CompactionTimeout):  # it runs when the executor does
        session.compactor.compact_now(timeout=0)
    session.executor.run_all()
    assert session.client.continued == []


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.lists(st.sampled_from([5, 60, 300, 900, 2_500]), min_size=20, max_size=60),
    st.sampled_from([4_000, 9_000, 24_000]),
    st.sampled_from(["", MODEL, "gpt-4o"]),
    st.sampled_from([0.0, 0.9]),
)
def test_requests_are_few_and_prompts_sound_whatever_comes(
    sizes: list[int], budget: int, agent: str, hit: float
) -> None:
    """No prompt over its budget, no call without its answer, the question always there; each request for as many new
    tokens as a compaction needs at least."""
    session = Session(Client(hit=hit), agent=agent, budget=budget)
    session.memory.append(user("Find the parcel."))
    for number, size in enumerate(sizes):
        call(session, number, size)
    assert all(look.tokens >= look.ceiling for look in of_kind(session.events, CostEvaluated) if look.is_due)
    assert 1_500 * len(session.client.continued) <= count_prompt(session.memory.messages(), count_tokens)
