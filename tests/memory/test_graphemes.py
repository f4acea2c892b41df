"""Texts are cut between what readers see as characters, wherever one is cut."""

from __future__ import annotations

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
from memory import Memory, Recall
from memory.references import MAX_GRAPHEME, find_ceil_boundary, find_floor_boundary, take_beginning

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
