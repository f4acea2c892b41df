"""Clipping keeps both ends of a text around a line that says what is missing and how to reload it."""

from __future__ import annotations

import pytest
from chats import calls, user, words

from compactor import count_message, count_tokens
from compactor.prompt.shorten import clip_message, clip_text

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
