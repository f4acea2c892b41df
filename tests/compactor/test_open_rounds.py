"""An open round that grows: what prompts keep of it from post to post never shows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
from chats import calls, result, user, words
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from compactor import BudgetExceeded, InMemoryStore, Memory, Post, Prompt, Reduction, compose, count_tokens
from compactor.prompt import open_rounds, token_cache
from memory import StaleCompaction, UnknownReference

SAYS: dict[str, Any] = {"role": "assistant", "content": "ok"}
ids = st.sampled_from(["c0", "c1", "c2"])
#: Short in the report of a failure; ``take`` says them at length.
LONG = {"some": words(30), "many": words(200), "far too many": "row " * 2_000}
texts = st.sampled_from(["", "ok", *LONG])


def results(one: str, other: str, text: str) -> dict[str, Any]:
    """One message with the results of two calls."""
    parts = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_ in (one, other)]
    return {"role": "tool", "tool_call_id": one, "content": parts}


places = st.integers(0, 40)
posts = st.one_of(
    st.builds(calls, ids),
    st.builds(calls, ids, ids),
    st.builds(lambda name: calls(name) | {"tool_calls": [named(name)]}, ids),
    st.builds(result, ids, texts),
    st.builds(result, ids, texts),
    st.builds(lambda text: {"role": "assistant", "content": text}, texts),
    st.builds(lambda text: {"role": "function", "name": "look_up", "content": text}, texts),
    st.builds(results, ids, ids, texts),
)
kinds = st.sampled_from(["ephemeral:screen", "approval_request", "approval_response", "message"])
steps = st.one_of(
    posts,
    posts,
    posts,
    st.tuples(st.just("say"), kinds, st.integers(0, 2), texts),
    st.tuples(st.sampled_from(["offloaded", "dropped", "summarised"]), places, places, texts),
    st.tuples(st.sampled_from(["pin", "unpin", "redact"]), places),
)


def named(id_: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "recall", "arguments": "{}"}}


def take(memory: Memory, step: Any) -> None:
    """Do what *step* says with the newest round."""
    round_ = memory.conversation.rounds[-1]
    if isinstance(step, dict):
        content = step["content"]
        if isinstance(content, list):
            content = [part | {"content": LONG.get(part["content"], part["content"])} for part in content]
        memory.append(step | {"content": LONG.get(content, content) if isinstance(content, str) else content})
    elif step[0] == "say":
        _, kind, keep, text = step
        text = LONG.get(text, text)
        memory.add_post(round_, send_from="tool", send_to="assistant", message=text, kind=kind, extra={"keep": keep})
    elif step[0] in ("pin", "unpin", "redact"):
        with suppress(UnknownReference):
            getattr(memory, step[0])(f"r{round_.number}.p{step[1]}")
    else:
        kind, first, more, text = step
        last = first if kind == "offloaded" else first + more % 8
        covered: list[Post | None] = [None, *round_.post_list][first : last + 1]
        if covered:
            journal = memory.journal("assistant")
            text = "" if kind == "dropped" else LONG.get(text, text)
            with suppress(StaleCompaction):
                journal.reduce(Reduction.over(round_, covered, kind, text), base=journal.read().generation)


def compose_or_refuse(memory: Memory, budget: int) -> Prompt | str:
    try:
        return compose(memory, budget=budget)
    except BudgetExceeded as error:
        return str(error)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with patch.multiple(token_cache, MIN_BLOCK=2, MIN_REST=1), patch.multiple(open_rounds, MIN_BLOCK=2, MIN_REST=1):
        yield


@example(said=[calls("c0"), *[SAYS] * 5, result("c0", "late")], budget=4_000, after_another=False)
@example(
    said=[("say", "ephemeral:screen", 1, "some"), *[SAYS] * 5, ("say", "ephemeral:screen", 0, "")],
    budget=4_000,
    after_another=True,
)
@example(
    said=[("say", "approval_request", 0, ""), *[SAYS] * 5, ("say", "approval_response", 0, "")],
    budget=4_000,
    after_another=True,
)
@example(said=[*[SAYS] * 11, result("c1", ""), ("summarised", 12, 0, "")], budget=150, after_another=False)
@example(
    said=[
        *[SAYS, ("say", "approval_request", 0, ""), *[SAYS] * 6, ("say", "approval_response", 0, ""), *[SAYS] * 4],
        *[
            calls("c1"),
            calls("c1", "c0"),
            SAYS,
            calls("c0"),
            results("c0", "c1", "ok"),
            SAYS,
            result("c0", "late"),
            SAYS,
        ],
        ("summarised", 17, 1, "some"),
    ],
    budget=4_000,
    after_another=True,
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(steps, min_size=12, max_size=40), st.integers(150, 6_000), st.booleans())
def test_a_prompt_is_the_same_as_if_nothing_had_been_kept(said: list[Any], budget: int, after_another: bool) -> None:
    """Whatever comes, in whatever order, and whatever is reduced, pinned or erased meanwhile: every prompt reads as
    that of a Memory which has just been opened, and which reads the round in one piece."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for message in [user("before"), {"role": "assistant", "content": words(60)}] if after_another else []:
        memory.append(message)
    memory.append(user("Do all of it."))
    for step in said:
        take(memory, step)
        found = [compose_or_refuse(memory, limit) for limit in (budget, 10**6)]
        with patch.object(token_cache, "MIN_BLOCK", 10**9), patch.object(open_rounds, "MIN_BLOCK", 10**9):
            anew = Memory("s", store=store)
            assert found == [compose_or_refuse(anew, limit) for limit in (budget, 10**6)]


def test_an_older_snapshot_does_not_undo_what_is_kept() -> None:
    """A compactor may still look at the round as it was, while the chat goes on."""
    memory = Memory.from_messages([user("Do all of it.")])
    cache = token_cache.get_token_cache(memory, "assistant", count_tokens)
    for number in range(20):
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(30)))
        if number == 9:
            before = memory.conversation.rounds[0]
    now = memory.conversation.rounds[0]

    kept = cache.count_open(now, ((), frozenset(), ()))
    cache.count_open(before, ((), frozenset(), ()))
    again = cache.count_open(now, ((), frozenset(), ()))

    assert len(kept.blocks.blocks) > 10
    assert kept.blocks is again.blocks
    assert kept == again


def test_a_reduction_leaves_the_other_posts_as_they_were_read() -> None:
    """An agent whose results are offloaded one by one does not have its whole round read anew for each."""
    memory = Memory.from_messages([user("Do all of it.")])
    cache = token_cache.get_token_cache(memory, "assistant", count_tokens)
    for number in range(20):
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(30)))
    round_ = memory.conversation.rounds[0]
    before = cache.count_open(round_, ((), frozenset(), ())).blocks
    reduction = Reduction.over(round_, [round_.post_list[9]], "offloaded", "[short]")

    counted = cache.count_open(round_, ((reduction,), frozenset({3}), ()))

    after = counted.blocks
    assert [one is other for one, other in zip(before.blocks, after.blocks, strict=True)].count(False) == 2
    assert counted.totals.pinned > 0
    assert "[short]" in [message.get("content") for message in after.messages]


class Incomparable:
    """As arrays are: whether two are equal is no question that a truth value answers."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError(other)


def test_what_a_host_changes_in_a_prompt_shows_in_no_later_one() -> None:
    """However old the message and however deep the change; and a prompt with a plan is no other."""
    memory = Memory.from_messages([user("Do all of it.")])
    picture = {"role": "assistant", "content": [{"type": "text", "text": "a picture"}]}
    for number in range(20):
        memory.append(calls(f"c{number}", f"d{number}"))
        memory.append(result(f"c{number}", words(30)))
        memory.append(result(f"d{number}", words(30)))
        memory.append(picture)
        prompts = [compose(memory, budget=10**6, plan=plan).messages for plan in (None, "- [ ] Do all of it.")]
        wanted = [Memory.from_messages(memory.messages()), *[copy.deepcopy(messages) for messages in prompts]]
        for messages in prompts:
            for message in messages:
                for call in message.get("tool_calls", ()):
                    call["function"]["arguments"] = "changed"
                    call["changed"] = True
                if isinstance(message["content"], list):
                    message["content"][0]["text"] = "changed"
                else:
                    message["content"] = Incomparable()
            messages.clear()
        again = [compose(memory, budget=10**6, plan=plan).messages for plan in (None, "- [ ] Do all of it.")]
        assert again == wanted[1:]
        assert again[0] == compose(wanted[0], budget=10**6).messages
