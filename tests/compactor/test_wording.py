"""The words that stand for what is left out, and beginnings that end between two characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor import count_tokens
from compactor.prompt.shorten import (
    cut_text,
    describe_size,
    is_text_only,
    make_attachments_line,
    make_kept_line,
    make_summary_text,
)
from memory import Attachment
from memory.rounds import freeze_mapping

FAMILY = "👩‍👩‍👧"
GERMANY, FRANCE = "🇩🇪", "🇫🇷"

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
joined_text = st.lists(
    st.sampled_from(
        ["a", " ", "é", "e\u0301", FAMILY, GERMANY, FRANCE, "👍🏽", "\ud83d", "\ude00", "\r\n", "\n", "漢", "क्ष"]
    )
).map("".join)


def test_the_line_names_size_and_reference() -> None:
    """What a model needs to decide whether to reload: how much there is, and by which name."""
    assert (
        make_kept_line(describe_size(12_345, 3_086), "r12.p3")
        == "[12,345 characters, about 3,100 tokens, left out here and kept in full; reload r12.p3]"
    )


@pytest.mark.parametrize(
    ("tokens", "said"), [(1, "1"), (99, "99"), (101, "100"), (3_149, "3,100"), (996_000, "1,000,000")]
)
def test_tokens_are_named_to_two_digits(tokens: int, said: str) -> None:
    """Every model counts them in its own way: more digits would only look exact."""
    assert describe_size(5, tokens) == f"5 characters, about {said} tokens"


def test_a_summary_says_that_it_is_one_and_how_to_read_the_original() -> None:
    """It stands where a tool or the agent spoke: none of them said it."""
    said = make_summary_text("Three users.", "the page that stood here", "r2.p5")

    assert said == "[Summary of the page that stood here, kept in full; reload r2.p5]\nThree users."


def test_the_line_for_attachments_counts_them_and_their_characters() -> None:
    """Several of one type share a line."""
    plan = Attachment(type="plan", content="x" * 1_500)

    assert make_attachments_line([plan], "r1.p2") == make_kept_line("plan, 1,500 characters", "r1.p2")
    assert make_attachments_line([plan, plan], "r1.p2") == make_kept_line("2 × plan, 3,000 characters", "r1.p2")


@pytest.mark.parametrize(
    ("text", "length", "shown"),
    [
        ("abcdef", 3, "abc"),
        ("abc", 3, "abc"),
        ("abc", 9, "abc"),
        ("abc", 0, ""),
        ("ab\ud83d\ude00", 3, "ab"),  # the halves of one character that a broken encoder left apart
        ("ab\ude00\ud83dx", 3, "ab\ude00"),  # halves that do not meet
        ("cafe\u0301s", 4, "caf"),
        ("cafe\u0301s", 5, "cafe\u0301"),
        ("\u2764\ufe0fx", 1, ""),
        (f"x{FAMILY}x", 2, "x"),
        (f"x{FAMILY}x", 3, "x"),
        (f"x{FAMILY}x", 6, f"x{FAMILY}"),
        ("ok👍🏽", 3, "ok"),
        (f"{GERMANY}{FRANCE}", 3, GERMANY),
        (f"{GERMANY}{FRANCE}", 2, GERMANY),
        (f"{GERMANY}{FRANCE}", 1, ""),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f!", 2, ""),  # the flag of England and the like
        ("a\r\nb", 2, "a"),
        ("a\n\nb", 2, "a\n"),
    ],
)
def test_a_beginning_ends_between_two_characters(text: str, length: int, shown: str) -> None:
    """Half an emoji, or a letter without its accent, is not what was said."""
    assert cut_text(text, length) == shown


@given(st.one_of(any_text, joined_text), st.integers(0, 70))
@example("e" + "\u0301" * 60, 50)
def test_a_beginning_is_one_and_tears_no_character(text: str, length: int) -> None:
    """Never longer than asked for, and as long as whole characters allow."""
    shown = cut_text(text, length)

    assert text.startswith(shown)
    assert len(shown) <= length
    rest = text[len(shown) :]
    if shown and rest:
        assert not ("\ud800" <= shown[-1] <= "\udbff" and "\udc00" <= rest[0] <= "\udfff")
    if len(shown) < min(length, len(text)):
        torn = rest[0] + rest[1 : length - len(shown) + 1]
        assert not torn.isascii() or "\r\n" in torn


def test_marks_without_end_do_not_take_the_whole_beginning() -> None:
    """Some write letters under towers of accents: then a tower may be cut."""
    text = "".join("e" + "\u0301" * 500 for _ in range(3))

    assert cut_text(text, 400) == text[:400]
    assert cut_text("\u200d" * 40 + "\ud83d\ude00x", 41) == "\u200d" * 40
    assert cut_text("\U0001f1e9" * 200, 151) == "\U0001f1e9" * 150


@given(st.one_of(any_text, joined_text, st.integers(0, 200).map(lambda n: " " * n)), st.integers(0, 40))
def test_a_beginning_in_tokens_has_at_most_as_many(text: str, tokens: int) -> None:
    """Whatever it takes: the count of the beginning itself is what holds."""
    shown = cut_text(text, tokens, count_tokens)

    assert text.startswith(shown)
    assert count_tokens(shown) <= tokens


def test_a_beginning_in_tokens_comes_near_what_was_asked_for() -> None:
    """Of a text in words, and of one in a script with more tokens than characters."""
    assert 45 <= count_tokens(cut_text("word " * 1_000, 50, count_tokens)) <= 50
    assert 25 <= count_tokens(cut_text("ꙮ" * 1_000, 50, count_tokens)) <= 50


def test_only_a_few_times_as_much_is_counted_as_is_shown() -> None:
    """A preview of a megabyte costs what a preview costs."""
    looked_at: list[int] = []

    def count(text: str) -> int:
        looked_at.append(len(text))
        return count_tokens(text)

    cut_text("word " * 200_000, 50, count)

    assert max(looked_at) <= 6 * 50


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        ("text", True),
        (None, True),
        ([{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "no"}], True),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}], False),
        ([7], False),
    ],
)
def test_what_is_no_text_is_seen(content: object, whole: bool) -> None:
    """The text behind a reference only says ``[image_url]`` where an image was."""
    assert is_text_only(freeze_mapping({"openai": {"content": content}})) is whole
    assert is_text_only(freeze_mapping({"openai": "a host's own"}))
    assert is_text_only(freeze_mapping({}))


def test_the_reference_is_found_by_its_word() -> None:
    """Every line that stands for something says ``reload`` and the name, as others look for it."""
    for line in (make_kept_line("it", "r3.p4"), make_summary_text("s", "it", "r3.p4")):
        assert re.findall(r"reload (r\d+\.p\d+)", line) == ["r3.p4"]
