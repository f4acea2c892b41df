"""A round as it reads now: overlays applied, and what was to be seen once left out."""

from __future__ import annotations

from typing import Any

import pytest
from chats import answer, calls, result, user
from hypothesis import given
from hypothesis import strategies as st

from compactor.prompt.groups import EPHEMERAL, OVERLAY, apply_overlays, group_messages, is_summary
from memory import Attachment, Memory, Post, Reduction, Round
from memory.messages import ASSISTANT
from memory.overlays import merge_reductions


def round_of(*messages: dict[str, Any]) -> Round:
    return Memory.from_messages(messages).conversation.rounds[0]


def over(round_: Round, first: int, last: int, kind: Any, text: str = "") -> Reduction:
    """Return a reduction of the posts of those numbers; 0 is the query."""
    posts: list[Post | None] = [post for post in round_.post_list if first <= post.number <= last]
    return Reduction.over(round_, [*([None] if first == 0 else []), *posts], kind, text)


def said(round_: Round, *reductions: Reduction) -> list[tuple[str, str]]:
    messages = [
        message
        for group in group_messages(apply_overlays(round_, reductions, ASSISTANT), ASSISTANT)
        for message in group.messages
    ]
    return [
        (message["role"], message["content"] or "+".join(call["id"] for call in message["tool_calls"]))
        for message in messages
    ]


WORK = round_of(user("q"), calls("a"), result("a", "one"), calls("b"), result("b", "two"), answer("done"))


def test_a_round_that_nothing_covers_is_itself() -> None:
    """No overlay of it: the very object, so that nothing is made or counted anew."""
    assert apply_overlays(WORK, (), ASSISTANT) is WORK


def test_an_offloaded_post_reads_as_its_text_and_keeps_all_else() -> None:
    """The message, its calls and ids stay; the post says what it is."""
    reduction = over(WORK, 2, 2, "offloaded", "[reload r1.p2]")

    read = apply_overlays(WORK, [reduction], ASSISTANT)

    assert said(WORK, reduction)[2] == ("tool", "[reload r1.p2]")
    assert read.post_list[1].tool_call_id == "a"
    assert read.post_list[1].extra[OVERLAY] == "offloaded"
    assert [post for post in read.post_list if post.number != 2] == [
        post for post in WORK.post_list if post.number != 2
    ]


def test_content_in_parts_and_attachments_go_with_the_text_that_is_offloaded() -> None:
    """What a message kept of its own form would bring the text back."""
    parts = {"role": "assistant", "content": [{"type": "text", "text": "long"}], "name": "bot"}
    round_ = round_of(user("q"), parts)
    rich = round_.model_copy(
        update={
            "post_list": (
                Post(
                    send_from=ASSISTANT,
                    send_to="User",
                    message="m",
                    number=1,
                    attachment_list=(Attachment(type="t", content="long"),),
                ),
            )
        }
    )

    (_, group) = group_messages(
        apply_overlays(round_, [over(round_, 1, 1, "offloaded", "short")], ASSISTANT), ASSISTANT
    )

    assert group.messages == ({"role": "assistant", "content": "short", "name": "bot"},)
    assert said(rich, over(rich, 1, 1, "offloaded", "short"))[1] == ("assistant", "short")


def test_dropped_posts_are_not_there() -> None:
    """A call with its results, and nothing in their place."""
    assert said(WORK, over(WORK, 1, 2, "dropped")) == [
        ("user", "q"),
        ("assistant", "b"),
        ("tool", "two"),
        ("assistant", "done"),
    ]


def test_summarised_posts_read_as_one_message_that_nobody_said() -> None:
    """In the place of the first, with its number, and never in the agent's own voice."""
    reduction = over(WORK, 1, 4, "summarised", "Two were read.")

    read = apply_overlays(WORK, [reduction], ASSISTANT)

    assert said(WORK, reduction) == [("user", "q"), ("user", "Two were read."), ("assistant", "done")]
    assert is_summary(read.post_list[0])
    assert (read.post_list[0].number, read.post_list[0].send_from) == (1, "context")
    assert not group_messages(read, ASSISTANT)[1].from_user


def test_two_summaries_side_by_side_are_two_messages() -> None:
    """Each stands for its own posts, though no other post is between them."""
    assert said(WORK, over(WORK, 1, 2, "summarised", "First."), over(WORK, 3, 4, "summarised", "Second."))[1:3] == [
        ("user", "First."),
        ("user", "Second."),
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("offloaded", "[reload r1.p0]", [("user", "[reload r1.p0]"), ("assistant", "done")]),
        ("dropped", "", [("assistant", "done")]),
        ("summarised", "It was asked.", [("user", "It was asked."), ("assistant", "done")]),
    ],
)
def test_the_query_reads_otherwise_too(kind: str, text: str, expected: list[tuple[str, str]]) -> None:
    """The query is p0: offloaded it is still the user's, dropped it is gone, summarised it stands before all posts."""
    round_ = round_of(user("q"), answer("done"))

    assert said(round_, over(round_, 0, 0, kind, text)) == expected


def test_a_summary_from_the_query_on_is_said_once() -> None:
    """One message in the place of the query and the posts after it."""
    assert said(WORK, over(WORK, 0, 4, "summarised", "All of it.")) == [("user", "All of it."), ("assistant", "done")]


def handed_on() -> Round:
    """Return a round whose first post hands the query to the agent, as multi-agent hosts do."""
    posts = (
        Post(send_from="User", send_to=ASSISTANT, message="q", number=1),
        Post(send_from=ASSISTANT, send_to="User", message="done", number=2),
    )
    return Round(user_query="q", post_list=posts, number=1)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        ("offloaded", "[reload r1.p0]", [("user", "[reload r1.p0]")]),
        ("dropped", "", []),
        ("summarised", "It was asked.", [("user", "It was asked.")]),
    ],
)
def test_a_post_that_repeats_the_query_stands_or_falls_with_it(
    number: int, kind: str, text: str, first: list[tuple[str, str]]
) -> None:
    """Whichever of the two is covered: the query is neither said in spite of it nor lost."""
    round_ = handed_on()

    assert said(round_, over(round_, number, number, kind, text)) == [*first, ("assistant", "done")]


def test_a_summary_of_the_repeated_query_and_what_follows_is_said_once() -> None:
    """It begins with the post that repeats the query, and ends behind others."""
    round_ = handed_on()

    assert said(round_, over(round_, 1, 2, "summarised", "Asked and answered.")) == [("user", "Asked and answered.")]


@given(st.data())
def test_any_live_reductions_cover_each_post_once(data: st.DataObject) -> None:
    """Every post is shown, offloaded, dropped or part of exactly one summary; nothing is shown twice or out of order."""
    live: tuple[Reduction, ...] = ()
    for _ in range(data.draw(st.integers(0, 5))):
        first = data.draw(st.integers(0, 5))
        last = data.draw(st.integers(first, 5))
        kind = data.draw(st.sampled_from(["offloaded", "dropped", "summarised"]))
        if kind == "offloaded":
            last = first
        live = merge_reductions(live, over(WORK, first, last, kind, f"<{first}-{last}>")) or live

    read = apply_overlays(WORK, live, ASSISTANT)

    numbers = [post.number for post in read.post_list]
    assert numbers == sorted(set(numbers))
    for post in read.post_list:
        covering = [one for one in live if one.covers(post.number)]
        assert len(covering) <= 1
        assert post.message == (covering[0].text if covering else WORK.post_list[post.number - 1].message)
    gone = {
        number for one in live if one.kind != "offloaded" for number in range(one.first_number, one.last_number + 1)
    }
    assert {number for number in range(1, 6) if number not in gone} <= set(numbers)
    summaries = [post.message for post in read.post_list if is_summary(post)]
    assert summaries == [one.text for one in live if one.kind == "summarised"]


# -- what leaves by itself --------------------------------------------------------------------------------------------


def ephemeral(number: int, name: str = "screen", **more: Any) -> Post:
    fields = {"send_from": "tool", "send_to": ASSISTANT, "message": f"{name} {number}"} | more
    return Post(number=number, kind=f"{EPHEMERAL}{name}", **fields)


def spoke(number: int, **more: Any) -> Post:
    return Post(number=number, send_from=ASSISTANT, send_to="User", message=f"said {number}", **more)


def shown(*posts: Post, closed: bool = False, reductions: tuple[Reduction, ...] = ()) -> list[str]:
    round_ = Round(user_query="q", post_list=posts, number=1, state="finished" if closed else "created")
    return [post.message for post in apply_overlays(round_, reductions, ASSISTANT).post_list]


def test_what_came_after_the_agents_last_words_is_shown() -> None:
    """It has not been in a prompt that was answered: not even when there are several."""
    assert shown(spoke(1), ephemeral(2), ephemeral(3)) == ["said 1", "screen 2", "screen 3"]
    assert shown(ephemeral(1), spoke(2), ephemeral(3)) == ["said 2", "screen 3"]


def test_the_words_that_count_are_those_of_the_log() -> None:
    """An answer that was dropped from the prompt was given all the same: what it followed does not come back."""
    posts = (ephemeral(1), spoke(2))
    round_ = Round(user_query="q", post_list=posts, number=1)

    assert shown(*posts, reductions=(over(round_, 2, 2, "dropped"),)) == []


def test_keep_counts_the_newest_of_each_name() -> None:
    """Whether they were seen or not; nonsense keeps none."""
    kept = {"extra": {"keep": 2}}
    posts = [ephemeral(1, **kept), ephemeral(2, **kept), ephemeral(3, "page"), spoke(4), ephemeral(5, **kept)]

    assert shown(*posts) == ["screen 2", "said 4", "screen 5"]
    assert shown(ephemeral(1, extra={"keep": "two"}), spoke(2)) == ["said 2"]
    assert shown(ephemeral(1, extra={"keep": -1}), spoke(2)) == ["said 2"]


def test_with_the_end_of_its_round_all_of_it_leaves() -> None:
    """Also what nobody has seen, and whatever was to be kept."""
    assert shown(ephemeral(1, extra={"keep": 9}), spoke(2), ephemeral(3), closed=True) == ["said 2"]


def test_an_ephemeral_result_stays_as_a_line() -> None:
    """Its call keeps its answer, in open rounds and in closed ones."""
    call = spoke(1, tool_calls=({"id": "c", "name": "f"},))
    for closed in (False, True):
        line = shown(call, ephemeral(2, tool_call_id="c"), spoke(3), closed=closed)[1]
        assert line == "[Was to be seen once, and is left out now; reload r1.p2]"


def test_a_message_with_calls_does_not_leave_by_itself() -> None:
    """Its results would be left without the call."""
    call = spoke(1, tool_calls=({"id": "c", "name": "f"},)).model_copy(update={"kind": f"{EPHEMERAL}step"})

    assert shown(call, spoke(2)) == ["said 1", "said 2"]
