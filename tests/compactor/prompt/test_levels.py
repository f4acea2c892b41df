"""The levels that shorten a text and leave its message: what they touch, and what they make of it."""

from __future__ import annotations

import pytest
from chats import answer, calls, memory_of, result, user, words
from views import OVERLAY, spans

from compactor import MessageGroup, TokenCounter, count_message, count_tokens
from compactor.prompt.groups import group_messages
from compactor.prompt.layout import PromptPart
from compactor.prompt.shorten import OffloadRule, clip_message, clip_text, shorten_part
from compactor.prompt.token_cache import TokenCache, is_pinned
from memory import Attachment, Memory, Post, Round
from memory.rounds import freeze_mapping

LARGE = "\n".join(f"{number:04} one row of a large table" for number in range(400))
SMALL = "\n".join(f"{number:04} a small one" for number in range(40))


def round_of(*messages: dict[str, object]) -> Round:
    return Memory.from_messages(messages).conversation.rounds[0]


def costs_of(group: MessageGroup, count: TokenCounter = count_tokens) -> tuple[int, ...]:
    return tuple(count_message(message, count) for message in group.messages)


def shortened(round_: Round, group: MessageGroup, count: TokenCounter = count_tokens) -> tuple[PromptPart, ...]:
    costs = costs_of(group, count)
    return shorten_part(PromptPart(round_, group, group.messages, costs, sum(costs)), count)


def changed_places(level: PromptPart) -> list[int]:
    return [place for place, message in enumerate(level.messages) if message != level.group.messages[place]]


def shortened_on(level: PromptPart) -> list[str]:
    return [one.ref for one in level.reductions]


def test_the_first_level_takes_large_texts_and_the_last_results() -> None:
    """What is not large stays on the first level; on the last, every result of some length is a line."""
    round_ = round_of(user(), calls("a", "b"), result("a", LARGE), result("b", SMALL), answer(LARGE))
    _, called, said = group_messages(round_, "assistant")

    first, _, last = shortened(round_, called)
    answered = shortened(round_, said)

    assert (shortened_on(first), shortened_on(last)) == (["r1.p2"], ["r1.p2", "r1.p3"])
    assert [shortened_on(level) for level in answered] == [["r1.p4"]] * 3
    assert changed_places(first) == [1]
    assert first.messages[1]["content"].startswith(LARGE[:150])
    assert changed_places(last) == [1, 2]
    assert last.messages[1]["content"] == f"[{len(LARGE):,} characters left out; reload r1.p2]"
    assert answered[0] is answered[2], "an answer is not cleared"
    assert [(one.by, one.tokens_before) for one in last.reductions] == [
        ("cleared", costs_of(called)[1]),
        ("cleared", costs_of(called)[2]),
    ]
    for level in (first, last, *answered):
        assert level.costs == tuple(count_message(message, count_tokens) for message in level.messages)
        assert level.tokens == sum(level.costs)


def test_a_group_of_which_nothing_is_shortened_has_no_levels() -> None:
    """Nothing is made for what stays as it is."""
    round_ = round_of(user(LARGE), calls("a"), result("a", "short"))
    assert [shortened(round_, group) for group in group_messages(round_, "assistant")] == [(), ()]


def test_a_call_that_stands_for_a_missing_result_is_shortened_once() -> None:
    """The note in the place of a result comes from the call's post, and is not taken for its text."""
    said = calls("a", "b")
    said["content"] = LARGE
    round_ = round_of(user(), said, answer())
    group = group_messages(round_, "assistant")[1]

    first = shortened(round_, group)[0]

    assert shortened_on(first) == ["r1.p1"]
    assert changed_places(first) == [0]
    assert first.messages[0]["tool_calls"] == said["tool_calls"]


def test_nothing_is_replaced_by_what_costs_more() -> None:
    """A counter by which the line is longer than the text keeps the text."""
    round_ = round_of(user(), calls("a"), result("a", "x" * 200))
    group = group_messages(round_, "assistant")[1]

    def counter(text: str) -> int:
        return 1 if text.startswith("xx") else len(text)

    assert shortened(round_, group, counter) == ()


def test_the_replacement_itself_may_be_longer_than_it_looks() -> None:
    """Only the whole message tells: what it carries besides its text counts on both sides."""
    round_ = round_of(user(), calls("a"), result("a", words(130)))
    group = group_messages(round_, "assistant")[1]

    assert shorten_part(PromptPart(round_, group, group.messages, (9, 5), 14), count_tokens) == ()


def test_each_level_has_its_costs() -> None:
    """Each message on each level; a level never costs more than the one before."""
    round_ = round_of(user(), calls("a", "b"), result("a", LARGE), result("b", SMALL))
    group = group_messages(round_, "assistant")[1]

    first, _, last = (level.costs for level in shortened(round_, group))

    assert costs_of(group)[2] == first[2] > last[2]
    assert costs_of(group)[1] > first[1] > last[1]
    assert costs_of(group)[0] == first[0] == last[0]


@pytest.mark.parametrize("pinned", [False, True])
def test_a_rounds_costs_are_those_of_its_groups_without_what_must_stay(pinned: bool) -> None:
    """Pinned groups keep their cost on the heaviest level."""
    memory = Memory.from_messages([user(), calls("a"), result("a", LARGE), calls("b", "c"), result("b", LARGE)])
    memory.finish_round(memory.conversation.rounds[0])
    if pinned:
        memory.pin("r1.p2")
    rounds, _ = memory.get_role_rounds("assistant")
    groups = group_messages(rounds[0], "assistant")

    counted = TokenCache("assistant", count_tokens).compute_prefix_sums(rounds, 1, rounds.reductions).round_tokens[0]

    whole = [sum(costs_of(group)) for group in groups]
    shortest = [shortened(rounds[0], group)[-1].tokens for group in groups[1:]]
    assert counted.totals.shortest == whole[0] + (whole[1] if pinned else shortest[0]) + shortest[1]


def test_a_group_is_pinned_by_any_of_its_posts() -> None:
    """The query has the number 0; where nothing is pinned, no post is looked at."""
    round_ = round_of(user(), calls("a"), result("a"))
    query, called = group_messages(round_, "assistant")

    assert is_pinned(query, {0})
    assert is_pinned(called, {2, 7})
    assert not is_pinned(called, {0})
    assert not is_pinned(called, set())


# -- clipping --------------------------------------------------------------------------------------------------------


TEXTS = (
    words(1_000),
    "漢字かな" * 500,
    "🎉👩‍👩‍👧" * 300,
    " " * 20_000,
    "a" * 20_000,
    "\x00\x1b[31m" * 800,
    "\ud800 lone " * 500,
    "\n".join(f"{number:05},{number * 7}" for number in range(800)),
)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:4]))
@pytest.mark.parametrize("limit", [40, 100, 500])
def test_a_clipped_text_is_head_and_tail_of_the_original(text: str, limit: int) -> None:
    """Both ends are verbatim, the line between them counts what is missing, and the whole is within the limit."""
    clipped = clip_text(text, limit, "r1.p1", count_tokens)

    head, rest = clipped.split("\n[... ", 1)
    said, tail = rest.split(" ...]\n", 1)
    assert text.startswith(head)
    assert text.endswith(tail)
    missing = len(text) - len(head) - len(tail)
    assert said == f"{missing:,} of {len(text):,} characters left out; reload r1.p1"
    assert count_tokens(clipped) <= limit


def test_clipping_never_makes_a_message_longer() -> None:
    """A text that is shorter than the line that would stand in its place stays."""
    for tokens in range(1, 60):
        message = user(words(tokens))
        clipped = clip_message(message, 24, "r1.p1", count_tokens)
        assert count_message(clipped, count_tokens) <= count_message(message, count_tokens)


def test_a_message_within_the_limit_is_left_alone() -> None:
    """The very object is returned, so nobody takes it for a reduction."""
    message = {"role": "assistant", "content": words(20), "tool_calls": calls("c")["tool_calls"]}

    assert clip_message(message, 100, "r1.p1", count_tokens) is message


def test_content_in_parts_is_clipped_as_text_with_a_mark_for_each_other_part() -> None:
    """Where an image cannot stay, its place is named; parts may also be plain text."""
    image = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    message = {"role": "user", "content": [{"type": "text", "text": "Look:"}, image, "and " + words(400)]}

    clipped = clip_message(message, 60, "r1.p0", count_tokens)

    assert clipped["content"].startswith("Look:\n[image_url]\nand word")
    assert "reload r1.p0" in clipped["content"]


def test_a_call_in_another_form_is_left_as_it_is() -> None:
    """Only a function's arguments are known to be text that may be replaced."""
    custom = {"id": "c", "type": "custom", "custom": {"name": "f", "input": words(300)}}
    message = {"role": "assistant", "content": words(300), "tool_calls": [custom, *calls("d")["tool_calls"]]}

    assert clip_message(message, 60, "r1.p1", count_tokens)["tool_calls"] == message["tool_calls"]


BIG = "Row 1: 17 euros.\n" * 400
ROLE = "assistant"


def with_result(text: str = BIG) -> Memory:
    """One closed round with a call and its result *text*, and a new question."""
    return memory_of(user("Prices?"), calls("a"), result("a", text), answer("17 euros."), user("And now?"))


# -- offloading one post ----------------------------------------------------------------------------------------------


def only_post(memory: Memory, number: int) -> tuple[Round, Post]:
    round_ = memory.conversation.rounds[0]
    return round_, next(post for post in round_.post_list if post.number == number)


def test_a_large_post_reads_as_its_beginning_and_the_line_that_reloads_it() -> None:
    """Preview, size, reference: what a model needs to decide whether it needs the rest."""
    memory = with_result()
    reduction = OffloadRule().apply(*only_post(memory, 2), count_tokens)

    assert reduction is not None
    assert (reduction.kind, spans([reduction])) == ("offloaded", [(2, 2)])
    rest = len(BIG) - 200
    assert reduction.text.startswith(f"{BIG[:200]}\n[{rest:,} characters, about ")
    assert reduction.text.endswith(" tokens, left out here and kept in full; reload r1.p2]")
    assert memory.reload("r1.p2") == BIG


@pytest.mark.parametrize(
    ("rule", "text", "large"),
    [
        (OffloadRule(threshold=600), "x y " * 150, False),
        (OffloadRule(threshold=599), "x y " * 150, True),
        (OffloadRule(threshold=100, preview=10, tokens=True), words(100), False),
        (OffloadRule(threshold=100, preview=10, tokens=True), words(101), True),
        (OffloadRule(threshold=0), "", False),
    ],
)
def test_more_than_the_threshold_is_large(rule: OffloadRule, text: str, large: bool) -> None:
    """In characters, or in tokens; what is just as long is not."""
    memory = with_result(text)

    assert (rule.apply(*only_post(memory, 2), count_tokens) is not None) is large


def test_a_preview_in_tokens_has_that_many() -> None:
    """By the counter that is given, as the threshold is."""
    rule = OffloadRule(threshold=100, preview=30, tokens=True)
    reduction = rule.apply(*only_post(with_result(words(500)), 2), count_tokens)

    assert reduction is not None
    assert 25 <= count_tokens(reduction.text.partition("\n[")[0]) <= 30


def test_without_a_preview_there_is_only_a_short_line() -> None:
    """As compose clears old tool results: even one of a few lines gets shorter."""
    rule = OffloadRule(threshold=120, preview=0, kinds=("tool_result",))
    memory = with_result("The booking HX7-221 is confirmed for two, " * 3)
    reduction = rule.apply(*only_post(memory, 2), count_tokens)

    assert reduction is not None
    assert reduction.text == "[126 characters left out; reload r1.p2]"


def test_what_would_not_get_shorter_stays() -> None:
    """A million spaces are few tokens; a line about them would be more."""
    memory = with_result(" " * 6_000)

    assert count_tokens(" " * 6_000) < 100
    assert OffloadRule(preview=5_000).apply(*only_post(memory, 2), count_tokens) is None
    assert OffloadRule(threshold=3, preview=0).apply(*only_post(with_result("four"), 2), count_tokens) is None


def test_the_size_is_that_of_the_whole_post() -> None:
    """Attachments count, and the reference gives them back."""
    memory = Memory("s")
    round_ = memory.create_round("Plan it")
    attachment = Attachment(type="plan", content="Step. " * 1_000)
    post = memory.add_post(round_, send_from=ROLE, send_to="User", message="Here.", attachment_list=(attachment,))
    reduction = OffloadRule().apply(memory.conversation.rounds[0], post, count_tokens)

    assert reduction is not None
    assert reduction.text.startswith("Here.\n\n[plan]\nStep. Step.")
    assert memory.reload("r1.p1") == f"Here.\n\n[plan]\n{attachment.content}"


@pytest.mark.parametrize(
    ("kinds", "covered"),
    [
        (None, {1, 2, 3, 4, 5, 8}),
        (("tool_result",), {2, 3, 8}),
        (("assistant",), {1, 5}),
        (("attachment:plan",), {4}),
        (("note",), {4}),
        (("note", "tool_result"), {2, 3, 4, 8}),
        (("system",), set()),
        ((), set()),
    ],
)
def test_kinds_say_which_posts_are_meant(kinds: tuple[str, ...] | None, covered: set[int]) -> None:
    """Tools' results, what the role said, an attachment's type, or the host's own kind."""
    plan = (Attachment(type="plan", content=BIG),)
    posts = (
        Post(number=1, send_from=ROLE, send_to="User", message=BIG),
        Post(number=2, send_from="tool", send_to=ROLE, message=BIG, tool_call_id="a"),
        Post(number=3, send_from="function", send_to=ROLE, message=BIG),
        Post(number=4, send_from="Coder", send_to=ROLE, kind="note", attachment_list=plan),
        Post(number=5, send_from=ROLE, send_to="Coder", message=BIG),
        Post(number=6, send_from="system", send_to=ROLE, message=BIG),
        Post(number=7, send_from="User", send_to=ROLE, message=BIG),
        Post(
            number=8, send_from=ROLE, send_to=ROLE, message=BIG, tool_call_id="b"
        ),  # of a tool that is the role itself
    )
    round_ = Round(user_query="q", post_list=posts, number=1)
    rule = OffloadRule(kinds=kinds)

    assert {post.number for post in posts if rule.apply(round_, post, count_tokens)} == covered


def test_instructions_and_the_user_go_only_where_they_are_named() -> None:
    """A system message in the middle is no payload; what the user said is asked for by name."""
    round_ = Round(user_query=BIG, number=1)
    system = Post(number=1, send_from="system", send_to=ROLE, message=BIG, kind="manual")
    said = Post(number=2, send_from="User", send_to=ROLE, message=BIG)

    assert OffloadRule(kinds=("manual",)).apply(round_, system, count_tokens)
    for post in (said, None):
        assert OffloadRule().apply(round_, post, count_tokens) is None
        assert OffloadRule(users_too=True).apply(round_, post, count_tokens)


def test_what_no_reference_gives_back_stays() -> None:
    """An image beside the text, a round that is in no log, and a post that an overlay has replaced."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    shown = memory_of(user(), {"role": "assistant", "content": [{"type": "text", "text": BIG}, image]})
    plain = memory_of(user(), {"role": "assistant", "content": [{"type": "text", "text": BIG}]})
    replaced = Post(number=1, send_from=ROLE, send_to="User", message=BIG, extra=freeze_mapping({OVERLAY: "offloaded"}))
    post = replaced.model_copy(update={"extra": freeze_mapping({})})

    assert OffloadRule().apply(*only_post(shown, 1), count_tokens) is None
    assert OffloadRule().apply(*only_post(plain, 1), count_tokens) is not None
    assert OffloadRule().apply(Round(user_query="q", number=1), replaced, count_tokens) is None
    assert OffloadRule().apply(Round(user_query="q", number=1), post, count_tokens) is not None
    assert OffloadRule().apply(Round(user_query="q"), post, count_tokens) is None
