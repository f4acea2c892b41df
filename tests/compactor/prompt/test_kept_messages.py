"""Messages that are kept from one prompt to the next: as they read now, bounded, and nobody else's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import (
    View,
    compose,
    count_tokens,
)
from compactor.prompt import token_cache as kept
from compactor.prompt.groups import copy_messages, measure_depth
from compactor.prompt.token_cache import (
    TokenCache,
    get_token_cache,
)
from memory import CompactedMessage, Memory, Reduction

ROLE = "assistant"
PARTS = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


def talked(rounds: int) -> Memory:
    memory = Memory()
    for number in range(1, rounds + 1):
        memory.append({"role": "user", "content": f"question {number}"})
        memory.append({"role": "assistant", "content": f"answer {number}"})
    memory.finish_round(memory.conversation.rounds[-1])
    return memory


def view_of(memory: Memory) -> View:
    rounds, compaction = memory.get_role_rounds(ROLE)
    return View(rounds, compaction, get_token_cache(memory, ROLE, count_tokens))


def composed(memory: Memory) -> list[dict[str, object]]:
    return compose(memory, ROLE, budget=4_000).messages


def test_what_a_host_does_to_its_messages_is_not_in_the_next_prompt() -> None:
    """Hosts mark messages for a provider's cache, and cut parts out of them: each prompt is theirs alone."""
    memory = Memory()
    memory.append({"role": "user", "content": PARTS})
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    memory.append({"role": "assistant", "content": None, "tool_calls": [call]})
    memory.append({"role": "tool", "tool_call_id": "c1", "content": "seen"})
    memory.append({"role": "user", "content": "and now?"})
    first, second = composed(memory), composed(memory)
    assert first == second
    for message in second:
        if isinstance(parts := message["content"], list):
            parts[1]["image_url"]["url"] = "another"
        for asked in message.get("tool_calls") or ():  # type: ignore[attr-defined]
            asked["function"]["name"] = "another"
        message["cache_control"] = {"type": "ephemeral"}
    assert composed(memory) == first


def test_a_round_that_reads_otherwise_now_is_not_shown_as_it_was() -> None:
    """A reduction, a pin's end, an erasure and a failure each show at once."""
    memory = talked(4)
    assert [one["content"] for one in composed(memory)][2:4] == ["question 2", "answer 2"]
    round_ = memory.conversation.rounds[1]
    memory.journal(ROLE).reduce(Reduction.over(round_, round_.post_list, "dropped"), base=0)
    assert "answer 2" not in [one["content"] for one in composed(memory)]
    memory.redact("r3.p1")
    assert "answer 3" not in [one["content"] for one in composed(memory)]
    memory.finish_round(memory.conversation.rounds[0], state="failed")
    assert "question 1" not in [one["content"] for one in composed(memory)]


def test_what_was_erased_is_not_kept() -> None:
    """From the next look on, nothing here holds it."""
    memory = talked(4)
    composed(memory)
    memory.redact("r3.p1")
    token_cache = view_of(memory).token_cache
    composed(memory)
    texts = [str(part) for counted in token_cache._kept.values() for part in counted.parts or ()]
    assert texts
    assert not any("answer 3" in text for text in texts)


def test_closed_rounds_of_the_tail_are_kept_and_covered_ones_let_go() -> None:
    """So the memory that this takes does not grow with the conversation."""
    memory = talked(8)
    composed(memory)
    view = view_of(memory)
    assert [counted.parts is not None for counted in view.prefix_sums.round_tokens] == [True] * 8
    end = memory.conversation.rounds[5]
    made = {"start_index": 1, "end_index": 6, "summary": "six", "end_round_id": end.id}
    memory.journal(ROLE).publish(CompactedMessage(**made), base=0, round_ids=[end.id])
    composed(memory)
    assert len(view_of(memory).token_cache._kept) == 2


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounds and by tokens; the newest stays, however long it is, and the prompts are the same."""
    before = composed(talked(6))
    monkeypatch.setattr(kept, "MAX_ROUNDS", 3)
    memory = talked(6)
    assert composed(memory) == before
    assert len(view_of(memory).token_cache._kept) == 3
    monkeypatch.setattr(kept, "MAX_TOKENS", 1)
    memory = talked(6)
    assert composed(memory) == before
    assert len(view_of(memory).token_cache._kept) == 1


def test_texts_that_stand_in_every_prompt_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where there were too many of them since."""
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    count_again = TokenCache(ROLE, count).count_again
    assert [count_again("one"), count_again("one"), count_again("three")] == [3, 3, 5]
    assert counted == ["one", "three"]
    monkeypatch.setattr(kept, "MAX_TEXTS", 2)
    assert [count_again("seven"), count_again("one")] == [5, 3]
    assert counted == ["one", "three", "seven", "one"]


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.recursive(
            st.none() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=3,
    )
)
def test_a_message_of_ones_own_says_the_same_and_shares_nothing(message: dict[str, object]) -> None:
    """Lists and mappings in it are others."""
    mine = copy_messages([message], [measure_depth(message)])[0]
    assert mine == message
    shared = {id(value) for value in message.values() if isinstance(value, (list, dict))}
    assert mine is not message
    assert shared.isdisjoint(id(value) for value in mine.values())
