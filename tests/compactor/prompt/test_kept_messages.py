"""Messages that are kept from one prompt to the next read as they do now, and are no host's."""

from __future__ import annotations

from chats import Message, answer, calls, result, user

from compactor import compose
from memory import Memory, Reduction

PARTS = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


def composed(memory: Memory) -> list[Message]:
    return compose(memory, budget=4_000).messages


def test_what_a_host_does_to_its_messages_is_not_in_the_next_prompt() -> None:
    """Hosts mark messages for a provider's cache, and cut parts out of them: each prompt is theirs alone."""
    looked = [user("look") | {"content": PARTS}, calls("c1"), result("c1", "seen"), user("and now?")]
    memory = Memory.from_messages(looked)
    first, second = composed(memory), composed(memory)
    assert first == second
    for message in second:
        if isinstance(parts := message["content"], list):
            parts[1]["image_url"]["url"] = "another"
        for asked in message.get("tool_calls") or ():
            asked["function"]["name"] = "another"
        message["cache_control"] = {"type": "ephemeral"}
    assert composed(memory) == first


def test_a_round_that_reads_otherwise_now_is_not_shown_as_it_was() -> None:
    """A reduction, a pin's end, an erasure and a failure each show at once."""
    said = [(user(f"question {number}"), answer(f"answer {number}")) for number in range(1, 5)]
    memory = Memory.from_messages([message for round_ in said for message in round_])
    memory.finish_round(memory.conversation.rounds[-1])
    assert [one["content"] for one in composed(memory)][2:4] == ["question 2", "answer 2"]
    round_ = memory.conversation.rounds[1]
    memory.journal("assistant").reduce(Reduction.over(round_, round_.post_list, "dropped"), base=0)
    assert "answer 2" not in [one["content"] for one in composed(memory)]
    memory.redact("r3.p1")
    assert "answer 3" not in [one["content"] for one in composed(memory)]
    memory.finish_round(memory.conversation.rounds[0], state="failed")
    assert "question 1" not in [one["content"] for one in composed(memory)]
