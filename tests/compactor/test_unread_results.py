"""Results that the agent has yet to read stay as they are, whatever strategy runs, and tools can be exempted for good."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from chats import Message, answer, calls, memory_of, result, user
from executors import ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_runs import work_of
from views import reduced, view_of

from compactor import (
    CompactorConfig,
    ContextCompactor,
    View,
    compress_tool_runs,
    drop,
    offload_large,
    over_messages,
    over_tokens,
)
from compactor.presets import STEPS, AutoContextMemory, auto_context
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory, ToolCall

BIG = " ".join(f"row{number}" for number in range(400))
SUMMARY = "f was called, and gave 400 rows."

STRATEGIES = {
    "offload_large": offload_large(100),
    "offload_large summarize": offload_large(100, summarize=True),
    "drop": drop("tool_result"),
    "compress_tool_runs past": compress_tool_runs(0),
    "compress_tool_runs current": compress_tool_runs(scope="current"),
}


def big_results(*ids: str) -> list[Message]:
    return [calls(*ids), *(result(id_, f"{id_} {BIG}") for id_ in ids)]


def shown_results(memory: Memory, role: str = "assistant") -> list[Any]:
    view = view_of(memory, role=role)
    messages = [message for place in view.places for _, unit in view.list_groups(place) for message in unit.messages]
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("interrupted", [False, True])
def test_no_strategy_reduces_what_the_agent_has_not_read(name: str, interrupted: bool) -> None:
    """Every result since the agent spoke last, of parallel calls too, and also where the user speaks before the agent
    does; those before are reduced."""
    messages = [
        user(),
        *big_results("a"),
        *big_results("b"),
        *big_results("c", "d"),
        *([user("?")] if interrupted else []),
    ]
    memory = memory_of(*messages)
    reduced(memory, STRATEGIES[name], work=work_of(ScriptedSummarizer(default=SUMMARY)))

    assert shown_results(memory)[-2:] == [f"c {BIG}", f"d {BIG}"]
    if interrupted != ("current" in name) or "tool_runs" not in name:  # these take closed rounds, or the open one
        assert f"a {BIG}" not in shown_results(memory)


@pytest.mark.parametrize("name", STRATEGIES)
def test_once_the_agent_has_spoken_they_may_go(name: str) -> None:
    """A word of its own, or its next call, and the results before it are read."""
    for spoken in (answer("Thanks."), calls("w")):
        memory = memory_of(user(), *big_results("a"), *big_results("b"), spoken)
        assert reduced(memory, STRATEGIES[name], work=work_of(ScriptedSummarizer(default=SUMMARY))) or "past" in name


def test_an_agent_among_others_reads_by_its_own_posts() -> None:
    """That another agent has spoken since is not that this one has read."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="Coder", send_to="tool", tool_calls=[ToolCall(id="a", name="f", arguments="{}")])
    memory.add_post(round_, send_from="tool", send_to="Coder", message=BIG, tool_call_id="a")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="And?")

    assert reduced(memory, offload_large(100), role="Coder") == []
    memory.add_post(round_, send_from="Coder", send_to="Planner", message="400 rows.")
    assert len(reduced(memory, offload_large(100), role="Coder")) == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_results_of_exempted_tools_stay(name: str) -> None:
    """The text of a skill, say, that the agent works by all the time."""
    memory = memory_of(user(), *big_results("a"), *big_results("b"), answer())
    if "current" not in name:
        memory.finish_round(memory.conversation.rounds[-1])
    work = work_of(ScriptedSummarizer(default=SUMMARY))

    assert reduced(memory, STRATEGIES[name], work=work, exempt_tools=frozenset({"f"})) == []
    assert reduced(memory, STRATEGIES[name], work=work, exempt_tools=frozenset({"g"}))


# -- in a compactor ---------------------------------------------------------------------------------------------------


def compacted(memory: Memory, **options: Any) -> ContextCompactor:
    executor = ManualExecutor()
    compactor = ContextCompactor.for_role(memory, "assistant", **options, executor=executor, clock=FakeClock())
    compactor.start()
    executor.run_all()
    return compactor


def test_auto_context_leaves_the_newest_result_alone_at_the_hundredth_message() -> None:
    """A count of messages is no reason to shorten one, and what just came has not been read."""
    before = [message for number in range(49) for message in (user(f"Q{number}?"), answer(f"A{number}."))]
    memory = memory_of(*before, user("Now?"), *big_results("a"))
    compactor = compacted(memory, **auto_context(summarizer=ScriptedSummarizer(default="The user asked 48 questions.")))

    assert f"a {BIG}" in [message["content"] for message in AutoContextMemory(memory).get_messages()]
    assert compactor.status().end_index == 48


def test_exempted_tools_are_set_in_the_configuration_and_in_the_preset() -> None:
    """Names as the model calls them; one alone may be a plain text."""
    config = CompactorConfig(exempt_tools=["load_skill"])  # type: ignore[arg-type]
    assert config.exempt_tools == ("load_skill",)
    assert CompactorConfig(exempt_tools="load_skill, f").exempt_tools == ("load_skill", "f")  # type: ignore[arg-type]
    assert auto_context(config=config)["config"].exempt_tools == ("load_skill",)
    assert auto_context(exempt_tools=["f"])["config"].exempt_tools == ("f",)

    memory = memory_of(user(), *big_results("a"), calls("waiting"))
    compacted(memory, **auto_context(max_token=500, large_payload_threshold=100, exempt_tools=["f"]))
    assert f"a {BIG}" in shown_results(memory)


# -- what is exceeded -------------------------------------------------------------------------------------------------


def offloads(memory: Memory, **options: Any) -> list[str]:
    compactor = compacted(memory, **options)
    return [event.strategy for event in compactor.events if event.name == "compaction.reduced"]  # type: ignore[attr-defined]


def long_ago() -> Memory:
    return memory_of(user(), *big_results("a"), answer(), user(), answer(), user("And now?"))


@pytest.mark.parametrize(
    ("trigger", "ran"),
    [
        (over_messages(3), False),
        (over_tokens(100), True),
        (over_messages(3) | over_tokens(100), True),
        (over_messages(3) | over_tokens(100_000), False),
        (over_messages(3) & over_tokens(100), True),
        (lambda _view: True, True),
        (over_messages(3) | (lambda _view: True), True),
    ],
)
def test_what_makes_texts_shorter_runs_only_where_that_helps(trigger: Any, ran: bool) -> None:
    """A number of messages is no less for shorter ones. Of a condition that does not say what it goes by, nobody
    knows."""
    assert bool(offloads(long_ago(), trigger=trigger, strategies=(offload_large(100),))) is ran


def test_what_is_exceeded_is_looked_at_again_after_each_strategy() -> None:
    """Where the first has brought the tokens below their threshold, the second has only messages to go by."""

    def first(view: View) -> Iterable[Any]:
        yield from list(offload_large(100)(view))[:1]

    memory = memory_of(user(), *big_results("a", "b"), answer(), user(), answer(), user("And now?"))
    trigger = over_messages(3) | over_tokens(view_of(memory).tokens - 100)
    assert offloads(memory, trigger=trigger, strategies=(first, offload_large(100))) == ["first"]


# -- any conversation -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=15)
def test_in_any_conversation_unread_results_read_as_they_came(data: st.DataObject) -> None:
    """However calls and results are mixed, and whatever the preset has to do."""
    messages: list[Message] = [user()]
    for number in range(data.draw(st.integers(1, 8))):
        ids = [f"{number}-{part}" for part in range(data.draw(st.integers(1, 3)))]
        messages += [calls(*ids), *(result(id_, f"{id_} {BIG}") for id_ in data.draw(st.permutations(ids)))]
        messages += data.draw(st.sampled_from([[], [], [answer("Ok.")], [user("More.")]]))
    spoken = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    unread = [message["content"] for message in messages[spoken:] if message["role"] == "tool"]
    memory = memory_of(*messages)
    options = {"msg_threshold": 2, "max_token": 60, "last_keep": 0, "large_payload_threshold": 50}
    preset = auto_context(**options, summarizer=ScriptedSummarizer(default=SUMMARY))  # type: ignore[arg-type]
    compacted(memory, **{**preset, "strategies": [step for step in preset["strategies"] if step.__name__ != STEPS[3]]})

    assert [text for text in unread if text not in shown_results(memory)] == []
