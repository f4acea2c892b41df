"""The rungs that shorten a text and leave its message: what they touch, and what they make of it."""

from __future__ import annotations

import pytest
from chats import answer, calls, result, user, words

from compactor.prompt.accounting import LEVELS, PromptPart, costs_by_level, is_pinned, lighter, shortened
from compactor.prompt.groups import MessageGroup, count_message, group_messages
from compactor.tokens import count_tokens
from memory import Memory, Round

LARGE = "\n".join(f"{number:04} one row of a large table" for number in range(400))
SMALL = "\n".join(f"{number:04} a small one" for number in range(40))
OFFLOAD, _, CLEAR = LEVELS


def round_of(*messages: dict[str, object]) -> Round:
    return Memory.from_messages(messages).conversation.rounds[0]


def costs_of(group: MessageGroup) -> tuple[int, ...]:
    return tuple(count_message(message, count_tokens) for message in group.messages)


def test_the_first_rung_takes_large_texts_and_the_second_results() -> None:
    """What is not large stays on the first rung; on the second every result of some length is a line."""
    round_ = round_of(user(), calls("a", "b"), result("a", LARGE), result("b", SMALL), answer(LARGE))
    _, called, said = group_messages(round_, "assistant")

    first = shortened(round_, called, costs_of(called), OFFLOAD, count_tokens)
    second = shortened(round_, first.group, first.costs, CLEAR, count_tokens)
    answered = shortened(round_, said, costs_of(said), OFFLOAD, count_tokens)

    assert (first.places, second.places, answered.places) == ((1,), (1, 2), (0,))
    assert first.group.messages[1]["content"].startswith(LARGE[:150])
    assert first.group.messages[2] == called.messages[2]
    assert second.group.messages[1]["content"] == f"[{len(LARGE):,} characters left out; reload r1.p2]"
    assert second.group.messages[0] == called.messages[0]
    assert not shortened(round_, said, costs_of(said), CLEAR, count_tokens).places
    for one in (first, second, answered):
        assert one.costs == costs_of(one.group)


def test_a_unit_of_which_nothing_is_shortened_is_the_same_object() -> None:
    """Nothing is made for what stays as it is."""
    round_ = round_of(user(LARGE), calls("a"), result("a", "short"))
    for group in group_messages(round_, "assistant"):
        for rule in LEVELS:
            found = shortened(round_, group, costs_of(group), rule, count_tokens)
            assert (found.group, found.costs, found.places) == (group, costs_of(group), ())


def test_a_call_that_stands_for_a_missing_result_is_shortened_once() -> None:
    """The note in the place of a result comes from the call's post, and is not taken for its text."""
    said = calls("a", "b")
    said["content"] = LARGE
    round_ = round_of(user(), said, answer())
    group = group_messages(round_, "assistant")[1]

    found = shortened(round_, group, costs_of(group), OFFLOAD, count_tokens)

    assert found.places == (0,)
    assert found.group.messages[1:] == group.messages[1:]
    assert found.group.messages[0]["tool_calls"] == said["tool_calls"]


def test_nothing_is_replaced_by_what_costs_more() -> None:
    """A counter by which the line is longer than the text keeps the text."""
    round_ = round_of(user(), calls("a"), result("a", "x" * 200))
    group = group_messages(round_, "assistant")[1]

    def counter(text: str) -> int:
        return 1 if text.startswith("xx") else len(text)

    costs = tuple(count_message(message, counter) for message in group.messages)
    assert shortened(round_, group, costs, CLEAR, counter).places == ()


def test_the_replacement_itself_may_be_longer_than_it_looks() -> None:
    """Only the whole message tells: what it carries besides its text counts on both sides."""
    round_ = round_of(user(), calls("a"), result("a", words(130)))
    group = group_messages(round_, "assistant")[1]

    found = shortened(round_, group, (9, 5), CLEAR, count_tokens)

    assert (found.costs, found.places) == ((9, 5), ())


def test_each_rung_has_its_costs() -> None:
    """Each message on each rung; a rung never costs more than the one before."""
    round_ = round_of(user(), calls("a", "b"), result("a", LARGE), result("b", SMALL))
    group = group_messages(round_, "assistant")[1]

    first, _, second = lighter(round_, group, costs_of(group), count_tokens)

    assert costs_of(group)[2] == first[2] > second[2]
    assert costs_of(group)[1] > first[1] > second[1]
    assert costs_of(group)[0] == first[0] == second[0]


@pytest.mark.parametrize("pinned", [set(), {0}, {2}, {9}])
def test_a_rounds_costs_are_those_of_its_units_without_what_must_stay(pinned: set[int]) -> None:
    """Pinned units and those that wait for something keep their cost on every rung."""
    round_ = round_of(user(), calls("a"), result("a", LARGE), calls("b", "c"), result("b", LARGE))
    groups = group_messages(round_, "assistant")
    assert [group.pending for group in groups] == [False, False, True]

    pieces = [PromptPart(round_, group, costs_of(group), pinned=is_pinned(group, pinned)) for group in groups]
    found = costs_by_level(pieces, count_tokens)

    whole = [sum(costs_of(group)) for group in groups]
    shorter = whole[1] if 2 in pinned else sum(lighter(round_, groups[1], costs_of(groups[1]), count_tokens)[1])
    assert found[1] == whole[0] + shorter + whole[2]
    assert len(found) == len(LEVELS)


def test_a_unit_is_pinned_by_any_of_its_posts() -> None:
    """The query has the number 0; where nothing is pinned, no post is looked at."""
    round_ = round_of(user(), calls("a"), result("a"))
    query, called = group_messages(round_, "assistant")

    assert is_pinned(query, {0})
    assert is_pinned(called, {2, 7})
    assert not is_pinned(called, {0})
    assert not is_pinned(called, set())
