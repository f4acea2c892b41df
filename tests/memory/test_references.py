"""References name places in the log, and what is behind them is read in pages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
from chats import answer, memory_of, result, user
from hypothesis import given
from hypothesis import strategies as st
from recalled import pages

from compactor import count_tokens
from compactor.plan import render_plan
from compactor.prompt.shorten import clip_text
from compactor.prompt.shorten import cut_text as preview
from compactor.tokens import clip_to_tokens
from compactor.transcript import StepLimit, split_into_steps
from memory import Attachment, Memory, Post, Recall, Round, ToolCall, UnknownReference
from memory.references import (
    MAX_GRAPHEME,
    QUOTED,
    Passage,
    Reference,
    find_ceil_boundary,
    find_floor_boundary,
    fold_case,
    make_post_reference,
    make_posts_reference,
    make_range_reference,
    make_reference,
    parse_reference,
    reload_messages,
    reload_passage,
    reload_text,
    take_beginning,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
LETTERS = st.text("aAbBİıσςΣß退\ud800\n", max_size=6)


def round_of_posts(count: int) -> Memory:
    """One round with a query that its first post repeats, and then calls and results in turn."""
    memory = Memory()
    round_ = memory.create_round("fix it")
    memory.add_post(round_, send_from="User", send_to="Planner", message="fix it")
    for number in range(2, count + 1):
        memory.add_post(round_, send_from="Planner", send_to="tool", message=f"post {number}")
    return memory


def test_references_say_which_posts_of_a_round() -> None:
    """One post, the query, or several; each in the form that reloads it."""
    round_ = Round(user_query="q", number=12)
    assert make_posts_reference(round_, 3, 17) == "r12.p3-p17"
    assert (
        make_posts_reference(round_, 3, 3)
        == "r12.p3"
        == make_post_reference(round_, Post(send_from="a", send_to="b", number=3))
    )
    assert make_posts_reference(round_, 0, 0) == "r12.p0" == make_post_reference(round_, None)
    assert make_posts_reference(round_, 0, 2) == "r12.p0-p2"
    assert (make_range_reference(12, 12), make_range_reference(3, 9)) == ("r12", "r3-r9")


@pytest.mark.parametrize(
    ("ref", "meant"),
    [
        ("r12", Reference(12, 12)),
        ("r3-r9", Reference(3, 9)),
        ("r3-9", Reference(3, 9)),
        ("r9-r3", Reference(9, 3)),
        ("r12.p3", Reference(12, 12, 3, 3)),
        ("r12.p0", Reference(12, 12, 0, 0)),
        ("r12.p3-p17", Reference(12, 12, 3, 17)),
        ("r12.p3-r12.p17", Reference(12, 12, 3, 17)),
    ],
)
def test_a_reference_is_read_without_looking_at_the_log(ref: str, meant: Reference) -> None:
    """What it names need not be there."""
    assert parse_reference(ref) == meant


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_what_is_written_as_a_reference_is_read_as_it_was_meant(number: int, first: int, last: int) -> None:
    """Each way in which this library writes one."""
    round_ = Round(user_query="", number=number)
    assert parse_reference(make_reference(number, first)) == Reference(number, number, first, first)
    assert parse_reference(make_posts_reference(round_, first, last)) == Reference(number, number, first, last)
    assert parse_reference(make_range_reference(first, last)) == Reference(first, last)


@pytest.mark.parametrize("ref", ["", "12", "R1", "r1.p", "r1-", "r1.p1-r2.p2", "r1 ", "r" + "1" * 13])
def test_what_is_not_written_like_a_reference_is_unknown(ref: str) -> None:
    """Whatever there is in the log."""
    with pytest.raises(UnknownReference, match="is not a reference"):
        parse_reference(ref)


def test_several_posts_are_reloaded_in_one() -> None:
    """Each with who said it to whom, under a line that says which they are; nothing outside of them."""
    memory = round_of_posts(5)
    assert memory.reload("r1.p2-p4") == (
        "[Round 1, posts 2 to 4]\nPlanner to tool: post 2\nPlanner to tool: post 3\nPlanner to tool: post 4"
    )


@pytest.mark.parametrize("ref", ["r1.p2-p4", "r1.p2-4", "r1.p2-r1.p4"])
def test_several_posts_are_named_in_the_ways_that_models_write(ref: str) -> None:
    """All of them mean the same posts."""
    memory = round_of_posts(5)
    assert memory.reload(ref) == memory.reload("r1.p2-p4")


def test_posts_from_the_query_on_show_it_once() -> None:
    """The post that repeats the query is left out where the query is shown, and only there."""
    memory = round_of_posts(2)
    assert memory.reload("r1.p0-p2") == "[Round 1, posts 0 to 2]\nUser: fix it\nPlanner to tool: post 2"
    assert memory.reload("r1.p1-p2") == (
        "[Round 1, posts 1 to 2]\nUser to Planner: fix it\nPlanner to tool: post 2"
    )  # fmt: skip


def test_a_repeated_query_with_something_attached_is_shown_with_it() -> None:
    """The attachment is nowhere else."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(
        round_, send_from="User", send_to="P", message="q", attachment_list=(Attachment(type="file", content="a,b"),)
    )
    assert memory.reload("r1.p0-p1") == "[Round 1, posts 0 to 1]\nUser: q\nUser to P: q\n\n[file]\na,b"


def test_one_post_by_its_two_ends_is_that_post() -> None:
    """To the character, without the line above; the query likewise."""
    memory = round_of_posts(3)
    assert memory.reload("r1.p2-p2") == "post 2"
    assert memory.reload("r1.p0-p0") == memory.reload("r1.p0") == "fix it"


def test_posts_beyond_the_last_are_passed_over() -> None:
    """What is there of those asked for is given."""
    memory = round_of_posts(3)
    assert memory.reload("r1.p3-p99").endswith("]\nPlanner to tool: post 3")


@pytest.mark.parametrize("ref", ["r1.p4-p9", "r1.p3-p2", "r1.p99"])
def test_no_post_there_is_an_unknown_reference(ref: str) -> None:
    """The error names what can be asked for instead."""
    with pytest.raises(UnknownReference, match="give r1 for the whole round"):
        round_of_posts(3).reload(ref)


def test_a_query_alone_is_something_to_see() -> None:
    """A role that sees no post of the round sees what the user asked; of a round without a query there is nothing."""
    memory = round_of_posts(3)
    assert memory.reload("r1.p0-p3", role="Stranger") == "[Round 1, posts 0 to 3]\nUser: fix it"
    memory.create_round("")
    assert memory.reload("r2.p0") == ""
    with pytest.raises(UnknownReference):
        memory.reload("r2.p0-p3")


@pytest.mark.parametrize("ref", ["r1.p1-r2.p3", "r1.p1-r11.p3", "r1.p1-", "r1.p1-p", "r1.p1-pp2", "r1-p2", "r1.p1-r2"])
def test_posts_of_two_rounds_are_no_reference(ref: str) -> None:
    """A span of posts lies inside one round."""
    with pytest.raises(UnknownReference, match="is not a reference"):
        round_of_posts(3).reload(ref)


def test_posts_of_a_failed_round_are_hidden_from_roles() -> None:
    """In whatever way they are asked for."""
    memory = round_of_posts(3)
    memory.finish_round(memory.conversation.rounds[0], state="failed")
    assert memory.reload("r1.p1-p3")
    with pytest.raises(UnknownReference, match="failed and undone rounds are hidden"):
        memory.reload("r1.p1-p3", role="Planner")


def test_a_role_reads_only_its_own_of_several_posts() -> None:
    """Those in between that it does not see are passed over."""
    memory = Memory()
    round_ = memory.create_round("q")
    for sender, receiver in [("A", "B"), ("B", "C"), ("C", "B"), ("B", "A")]:
        memory.add_post(round_, send_from=sender, send_to=receiver, message=f"{sender} tells {receiver}")
    assert memory.reload("r1.p1-p4", role="A") == "[Round 1, posts 1 to 4]\nA to B: A tells B\nB to A: B tells A"
    with pytest.raises(UnknownReference):
        memory.reload("r1.p2-p3", role="A")


# -- messages ----------------------------------------------------------------------------------------------------------


def messages_of(memory: Memory, ref: str, role: str = "Planner") -> list[dict[str, object]]:
    return reload_messages(memory.snapshot.get_rounds(role, include_hidden=True), ref, role)


def test_messages_behind_whole_rounds_are_those_of_the_conversation() -> None:
    """In order, as the role would send them; without what failed."""
    memory = round_of_posts(3)
    memory.finish_round(memory.create_round("in vain"), state="failed")
    memory.create_round("next")
    assert messages_of(memory, "r1") == memory.messages("Planner")[:3]
    assert messages_of(memory, "r1-r3") == memory.messages("Planner")


def test_messages_behind_posts_from_the_query_on_have_it_once() -> None:
    """As in the text: the post that repeats it is left out where the query is there, and only there."""
    memory = round_of_posts(3)
    asked, second, third = memory.messages("Planner")
    assert messages_of(memory, "r1.p0") == messages_of(memory, "r1.p0-p1") == messages_of(memory, "r1.p1") == [asked]
    assert messages_of(memory, "r1.p0-p2") == messages_of(memory, "r1.p1-p2") == [asked, second]
    assert messages_of(memory, "r1.p2-p9") == [second, third]


def test_messages_behind_a_query_have_what_was_attached_to_it() -> None:
    """Where the post that repeats it is asked for, which has the attachment."""
    memory = Memory()
    file = Attachment(type="file", content="a,b")
    memory.add_post(memory.create_round("q"), send_from="User", send_to="P", message="q", attachment_list=(file,))
    assert messages_of(memory, "r1.p0-p1", "P") == [{"role": "user", "content": "q\n\n[file]\na,b"}]
    assert messages_of(memory, "r1.p0", "P") == [{"role": "user", "content": "q"}]


@pytest.mark.parametrize("role", ["", "Planner"])
@pytest.mark.parametrize("ref", ["r2", "r2.p0", "r2.p1", "r2.p1-p2", "r3", "r1.p9", "r1.p3-p2", "p1"])
def test_messages_that_nobody_may_see_are_an_unknown_reference(ref: str, role: str) -> None:
    """What failed, what is not there, and what is no reference."""
    memory = round_of_posts(3)
    failed = memory.create_round("in vain")
    memory.add_post(failed, send_from="User", send_to="Planner", message="in vain")
    memory.finish_round(failed, state="failed")
    with pytest.raises(UnknownReference):
        messages_of(memory, ref, role)


# -- passages ----------------------------------------------------------------------------------------------------------


def test_a_passage_is_the_text_behind_the_reference() -> None:
    """The same text, with calls, results and attachments, read page by page."""
    memory = round_of_posts(3)
    round_ = memory.conversation.rounds[0]
    call = ToolCall(id="c1", name="run", arguments="{}")
    memory.add_post(round_, Post(send_from="Planner", send_to="python", message="so", tool_calls=(call,)))
    memory.add_post(round_, Post(send_from="python", send_to="Planner", message="ok", tool_call_id="c1"))
    memory.create_round("next")
    rounds = memory.conversation.rounds
    for ref in ("r1", "r1-r2", "r1.p0", "r1.p4", "r1.p4-p5"):
        passage = reload_passage(rounds, ref)
        assert passage.quote(0, len(passage)).replace(QUOTED, "") == reload_text(rounds, ref) == memory.reload(ref)
    assert reload_text(rounds, "r1-r2") == reload_text(rounds, "r1") + "\n\n" + reload_text(rounds, "r2")
    assert reload_text(rounds, "r1").endswith(
        "Planner to python: so\nPlanner calls run({}) as c1\npython (result of c1): ok"
    )


def test_a_passage_that_is_not_there_is_refused_at_once() -> None:
    """Not when its first page is read."""
    with pytest.raises(UnknownReference):
        reload_passage(Memory().conversation.rounds, "r1")


@given(st.lists(ANY_TEXT, max_size=6), st.integers(0, 80), st.integers(0, 80))
def test_a_page_is_a_slice_of_the_joined_text(pieces: list[str], start: int, stop: int) -> None:
    """Wherever the pieces end, and also where there are none; each line is marked."""
    passage, whole = Passage(pieces), "".join(pieces)
    assert len(passage) == len(whole)
    assert passage.quote(start, stop).replace(QUOTED, "") == whole[start:stop].replace(QUOTED, "")


@given(st.lists(LETTERS, max_size=8), LETTERS.filter(bool), st.integers(0, 30))
def test_places_are_those_of_the_joined_text(pieces: list[str], pattern: str, start: int) -> None:
    """Each place in order, none overlapping, whatever piece it begins and ends in."""
    whole, expected, at = fold_case("".join(pieces)), [], start
    while (at := whole.find(fold_case(pattern), at)) >= 0:
        expected.append(at)
        at += len(pattern)
    assert list(Passage(pieces).find_offsets(pattern, start)) == expected


def test_a_pattern_is_literal() -> None:
    """What is special to a regular expression is not."""
    passage = Passage(["a.c abc (a+)+$ [x] \\d"])
    assert list(passage.find_offsets("a.c")) == [0]
    assert list(passage.find_offsets("(A+)+$")) == [8]
    assert list(passage.find_offsets("\\D")) == [19]


@pytest.mark.slow
def test_folding_keeps_every_character_in_its_place() -> None:
    """Over all of Unicode, in any neighbourhood: an offset in the case-folded text is one in the text itself."""
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert len(fold_case(everything)) == len(everything)
    assert [char for char in everything if len(fold_case(char)) != 1] == []
    assert fold_case("ΟΔΟΣ") == fold_case("οδος") == fold_case("ΟΔΟΣΑ")[:4]
    assert fold_case("ÀÉÎ STRASSE") == "àéî strasse"


# -- what readers see as one character -------------------------------------------------------------------------------


FAMILY = "👨‍👩‍👧‍👦"
#: What a reader sees as one character each.
SEEN = [
    FAMILY,
    "🇧🇪",
    "👍🏽",
    "e\u0301\u0302",
    "क्षि",
    "각",
    "❤️",
    "1️⃣",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "กำ",
    "\r\n",
    "\ud83d\ude00",
    "a",
    "中",
    " ",
    "\n",
    "👩🏾‍🚀",
]
seen = st.lists(st.sampled_from(SEEN), max_size=40)


def borders(characters: list[str]) -> set[int]:
    """Return where a text of *characters* may be cut. Only such as do not join their neighbours count."""
    places, at = {0}, 0
    for character in characters:
        at += len(character)
        places.add(at)
    return places


@given(seen, st.integers(0, 200))
def test_a_cut_is_the_nearest_border(characters: list[str], place: int) -> None:
    """Flags in a row, too: two letters each, counted from the first."""
    text = "".join(characters)
    legal = borders(characters) - {at + 1 for at in range(len(text) - 1) if text[at : at + 2] == "\r\n"}
    place = min(place, len(text))

    assert find_floor_boundary(text, place) == max(at for at in legal if at <= place)
    assert find_ceil_boundary(text, place) == min(at for at in legal if at >= place)
    assert take_beginning(text, place) == text[: find_floor_boundary(text, place)]


@given(
    st.text(
        st.sampled_from(["a", "\u0301", "\u200d", "🇧", "👨", "\r", "\n", "\ud83d", "\ude00", "क", "्"]), max_size=300
    ),
    st.integers(0, 300),
)
def test_a_cut_of_any_text_is_stable_and_near(text: str, place: int) -> None:
    """Cutting again where it was cut changes nothing, and what is no character at all is cut anyway."""
    before, after = find_floor_boundary(text, place), find_ceil_boundary(text, place)

    assert 0 <= before <= min(place, len(text)) <= after <= len(text) or place > len(text)
    assert after - before <= MAX_GRAPHEME
    assert (find_floor_boundary(text, before), find_ceil_boundary(text, after)) == (before, after)


def torn(part: str, whole: str) -> bool:
    """Return whether *part*, an end or the beginning of families in a row, has a torn one."""
    assert part in 2 * whole
    return len(part) % len(FAMILY) != 0


FAMILIES = FAMILY * 400


@pytest.mark.parametrize(
    "cut",
    [
        lambda n: preview(FAMILIES, n),
        lambda n: preview(FAMILIES, n, count_tokens),
        lambda n: clip_to_tokens(FAMILIES, n),
        lambda n: clip_text(FAMILIES, 60 + n, "r1.p1", count_tokens).partition("\n[...")[0],
        lambda n: clip_text(FAMILIES, 60 + n, "r1.p1", count_tokens).rpartition("...]\n")[2],
        lambda n: str(render_plan("x" * n + 2 * FAMILIES)).partition(" [...]")[0].lstrip("x"),
    ],
    ids=["preview", "preview in tokens", "clip_to_tokens", "head of a clip", "tail of a clip", "plan"],
)
def test_no_cut_tears_a_family(cut: Callable[[int], str]) -> None:
    """At none of 120 lengths."""
    assert [n for n in range(120) if torn(cut(n), FAMILIES)] == []


@given(st.lists(st.sampled_from(SEEN), min_size=1, max_size=60), st.integers(1, 30))
def test_pages_give_every_character_once_and_none_torn(characters: list[str], limit: int) -> None:
    """However short they are: a page has at least one character."""
    text = "x" + "".join(characters)
    recall = Recall(Memory.from_messages([user(text)]))
    found = pages(recall, "context_reload", ref="r1.p0", limit=limit)

    assert "".join(found) == text
    legal = borders(["x", *characters])
    assert all(sum(map(len, found[:number])) in legal for number in range(len(found)))


@given(
    st.text(
        st.sampled_from(["a", "\u0301", "\u200d", "🇧", "👨", "\r", "\n", "\ud83d", "\ude00"]), min_size=1, max_size=200
    ),
    st.integers(1, 9),
)
def test_pages_of_any_text_come_to_an_end(text: str, limit: int) -> None:
    """A letter with two hundred marks is no hindrance."""
    assert (
        "".join(pages(Recall(Memory.from_messages([user(text)])), "context_reload", ref="r1.p0", limit=limit)) == text
    )


def test_a_page_that_is_asked_for_inside_of_a_character_begins_with_it() -> None:
    """Models count for themselves; what stands around a pattern is whole, too, and so is what a search shows."""
    recall = Recall(Memory.from_messages([user(FAMILIES + " needle " + FAMILIES)]))

    for offset in range(1, 30):
        page = recall.call("context_reload", {"ref": "r1.p0", "offset": offset, "limit": 50}).split("\n> ", 1)[1]
        assert not torn(page, FAMILIES)
    around = recall.call("context_reload", {"ref": "r1.p0", "pattern": "needle"}).rpartition("]\n> ")[2]
    assert [torn(part, FAMILIES) for part in around.split(" needle ")] == [False, False]
    line = recall.call("search_history", {"query": "needle"}).rpartition("): ")[2].strip(".")
    assert [torn(part, FAMILIES) for part in line.split(" needle ")] == [False, False]


def test_what_a_summarizer_reads_in_parts_is_whole() -> None:
    """A text that is longer than a request is split between characters, and all of it is read."""
    memory = memory_of(user("q"), result("a", FAMILIES), answer())
    read = [
        post.message
        for step in split_into_steps(memory.conversation.rounds[:], StepLimit(300), count_tokens)
        for round_ in step.rounds
        for post in round_.post_list
        if FAMILY in post.message
    ]
    assert "".join(read) == FAMILIES
    assert not any(torn(part, FAMILIES) for part in read)


@pytest.mark.parametrize("character", ["\u0301", "🇧", "\u200d", "👨\u200d", "क्", "\ud83d", "가\u11a8"])
def test_a_cut_costs_little_in_hostile_texts(character: str) -> None:
    """A megabyte of marks, flags or joiners: each cut looks at no more than a run of flags."""
    text = character * (1_000_000 // len(character))
    began = time.process_time()
    for place in range(0, len(text), len(text) // 100):
        find_floor_boundary(text, place)
    assert time.process_time() - began < 5
