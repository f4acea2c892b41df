"""AutoContextMemory reloads as messages the references that its Memory reloads as text."""

from __future__ import annotations

import pytest
from chats import answer, user

from compactor.presets import AutoContextMemory
from memory import Memory, UnknownReference


def test_a_query_that_an_agent_was_handed_is_reloaded_once() -> None:
    """As ``memory.reload`` shows it."""
    memory = Memory()
    round_ = memory.create_round("fix it")
    memory.add_post(round_, send_from="User", send_to="Planner", message="fix it")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Done.")
    context = AutoContextMemory(memory, "Planner")
    assert memory.reload("r1.p0-p2").count("fix it") == 1
    assert context.reload("r1.p0-p2") == context.reload("r1") == [user("fix it"), answer("Done.")]


@pytest.mark.parametrize("ref", ["r1", "r1.p0", "r1.p1", "r1.p0-p2", "r1-r1"])
@pytest.mark.parametrize("role", ["", "assistant"])
def test_what_failed_is_an_unknown_reference(role: str, ref: str) -> None:
    """Also to the role that sees everything."""
    memory = Memory.from_messages([user(), answer()])
    memory.finish_round(memory.conversation.rounds[0], state="failed")
    with pytest.raises(UnknownReference):
        AutoContextMemory(memory, role).reload(ref)
