"""Where the tokens of the next prompt go: by segment and by kind of message."""

from __future__ import annotations

import pytest
from chats import calls, result, user
from executors import SOON
from hypothesis import given
from hypothesis import strategies as st
from scene import ROLE, memory_of

from compactor import CompactorConfig, ContextCompactor, budget_status, compose
from memory import Memory


def a_chat() -> Memory:
    memory = Memory.from_messages([user("Prices?"), calls("a"), result("a", "row " * 300), user("Thanks")])
    memory.set_header("task", "You help.")
    return memory


def test_tokens_are_told_by_segment_and_kind() -> None:
    """They add up to the prompt that ``compose`` would make of all of it."""
    memory = a_chat()
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    status = budget_status(memory, budget=8_000, system="Be brief.", tools=[tool])
    report = compose(memory, budget=8_000, system="Be brief.", tools=[tool]).report
    assert status.total == report.tokens_before
    assert set(status.by_kind) == {"user", "assistant", "tool_result"}
    assert status.by_kind["tool_result"] > 300 > status.by_kind["user"]
    assert status.conversation == sum(status.by_kind.values())
    assert status.share == status.total / 8_000
    assert budget_status(memory).share is None


def test_what_is_compacted_is_one_segment() -> None:
    memory = memory_of(10)
    before = budget_status(memory, ROLE)
    ContextCompactor.for_role(memory, ROLE, CompactorConfig(7, 3, "")).compact_now(SOON)
    after = budget_status(memory, ROLE)
    assert before.compaction == 0 < after.compaction
    assert after.conversation < before.conversation / 2
    assert after.total == compose(memory, ROLE, budget=100_000).tokens


def test_a_hosts_own_kinds_are_told_apart() -> None:
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="assistant", send_to="User", message="skill " * 50, kind="skill_prompt")
    memory.add_post(round_, send_from="Coder", send_to="assistant", message="done")
    assert set(budget_status(memory).by_kind) == {"user", "skill_prompt", "agent"}


@given(
    st.lists(
        st.sampled_from(["user", "assistant", "system"]).flatmap(
            lambda role: st.text(max_size=40).map(lambda text: {"role": role, "content": text})
        ),
        max_size=12,
    )
)
def test_segments_always_add_up(messages: list[dict[str, str]]) -> None:
    memory = Memory.from_messages(messages)
    status = budget_status(memory)
    assert status.total == compose(memory, budget=1_000_000).report.tokens_before
    assert status.total - status.header - status.compaction - status.conversation == 3


def test_a_budget_is_a_number_of_tokens() -> None:
    with pytest.raises(ValueError, match="budget"):
        budget_status(Memory(), budget=0)
