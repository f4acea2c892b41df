"""A View: how much there is, where, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from chats import answer, calls, result, user, words

from compactor import View, compose
from compactor.host_rounds import rounds_for
from compactor.ledger import Ledger
from compactor.tokens import DEFAULT_WINDOW, count_tokens
from compactor.units import MESSAGE_TOKENS, PROMPT_TOKENS, count_message
from memory import CompactedMessage, InMemoryStore, Memory


def view_of(memory: Memory, end: int = 0, role: str = "assistant", model: str = "") -> View:
    rounds, _ = memory.get_role_rounds(role)
    compaction = CompactedMessage(start_index=1, end_index=end, summary="S.") if end else None
    return View(rounds, compaction, Ledger(role, count_tokens), model=model)


def chat(rounds: int) -> Memory:
    memory = Memory()
    for number in range(rounds):
        memory.append(user(words(number + 1)))
        memory.append(answer())
    return memory


def cost(*messages: dict[str, object]) -> int:
    return sum(count_message(message, count_tokens) for message in messages)


def test_a_view_says_where_things_are() -> None:
    """Visible rounds, the closed ones before the first open one, and the tail behind the compaction."""
    view = view_of(chat(5), 2)

    assert (view.total, view.closed, view.end, view.tail_length) == (5, 4, 2, 3)
    assert [round_.number for round_ in view.tail] == [3, 4, 5]
    assert view.role == "assistant"


def test_an_empty_session_costs_what_the_format_adds() -> None:
    """There is nothing, and nothing breaks."""
    view = view_of(Memory())

    assert (view.total, view.closed, view.end, view.tail, view.messages) == (0, 0, 0, (), 0)
    assert view.tokens == PROMPT_TOKENS


@pytest.mark.parametrize("end", [0, 1, 4, 5])
def test_its_tokens_are_those_of_the_prompt(end: int) -> None:
    """What a trigger measures is what compose would send: compaction, closed rounds and the open one."""
    memory = chat(5)
    memory.append(calls("c1", "c2"))
    memory.append(result("c2"))
    view = view_of(memory, end)

    messages = memory.messages()[2 * end :] if end < 5 else []
    said = [{"content": view.compaction.to_prompt()}] if view.compaction else []
    assert view.tokens == PROMPT_TOKENS + cost(*said, *messages)
    assert view.messages == len(messages)
    if not end:
        assert view.tokens == compose(memory, budget=10_000).tokens


def test_the_header_counts() -> None:
    """System messages stand in every prompt."""
    view = view_of(chat(2))

    assert replace(view, header_tokens=100).tokens == view.tokens + 100


def test_the_summary_costs_its_text_as_the_prompt_shows_it() -> None:
    """With its framing, and nothing where there is none."""
    assert view_of(chat(3)).compaction_tokens == 0
    view = view_of(chat(3), 1)
    assert view.compaction is not None
    assert view.compaction_tokens == MESSAGE_TOKENS + count_tokens(view.compaction.to_prompt())


def test_tokens_behind_a_place_are_those_of_the_rounds_after_it() -> None:
    """So a plan knows what is left when it covers that many."""
    view = view_of(chat(5))
    costs = [cost(user(words(number + 1)), answer()) for number in range(5)]

    for end in range(5):
        assert view.tokens_behind(end) == sum(costs[end:])


def test_closed_tokens_count_as_a_slice_does() -> None:
    """Backwards is nothing; open rounds, and what lies beyond the end, are not counted."""
    view = view_of(chat(5))
    costs = [cost(user(words(number + 1)), answer()) for number in range(4)]

    assert view.closed_tokens(1, 3) == sum(costs[1:3])
    assert view.closed_tokens(3, 1) == 0
    assert view.closed_tokens(2, 2) == 0
    assert view.closed_tokens(0, 99) == sum(costs)
    assert view.closed_tokens(7, 99) == 0


@pytest.mark.parametrize(
    ("model", "window"), [("gpt-4", 8_192), ("", DEFAULT_WINDOW), ("nobody-knows", DEFAULT_WINDOW)]
)
def test_the_window_is_the_models(model: str, window: int) -> None:
    """Where nobody knows it, the default stands in."""
    assert view_of(Memory(), model=model).window == window


def test_several_open_rounds_are_counted_with_the_closed_ones_between() -> None:
    """Two Memories write to one session: from the first open round on nothing is closed for good."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    first.create_round("open")
    second.create_round("closed")
    second.create_round("open too")

    view = view_of(second)

    assert (view.total, view.closed) == (3, 0)
    assert view.messages == 3
    assert view.tokens == compose(second, budget=1_000).tokens


def test_a_call_in_an_open_round_that_others_follow_is_counted_with_its_note() -> None:
    """The count is of the messages that compose would send."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    first.append(calls("c"))
    second.create_round("next")

    assert view_of(second).messages == 3
    assert view_of(second).tokens == compose(second, budget=1_000).tokens


def test_posts_of_another_host_may_change_while_their_round_is_open() -> None:
    """A host that streams into a message gets it counted as it is now."""
    post = SimpleNamespace(send_from="A", send_to="User", message="so far")
    host = [SimpleNamespace(user_query="q", post_list=[post], state="created")]
    ledger = Ledger("A", count_tokens)

    before = View(rounds_for(host, "A"), None, ledger).tokens
    post.message += words(100)

    assert View(rounds_for(host, "A"), None, ledger).tokens >= before + 100


def test_a_role_sees_and_pays_for_its_own() -> None:
    """Posts between others are neither messages nor tokens of its view."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="A", send_to="B", message=words(50))
    memory.add_post(round_, send_from="B", send_to="User", message="done")

    assert view_of(memory, role="A").messages == 2
    assert view_of(memory, role="B").messages == 3
    assert view_of(memory, role="C").messages == 1
    assert view_of(memory, role="C").tokens == PROMPT_TOKENS + cost(user("q"))
