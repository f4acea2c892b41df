"""An archive is plain text, and gives back exactly the messages that it was made of."""

from __future__ import annotations

from typing import Any

import pytest
from chats import answer, calls, result, user
from hypothesis import given
from hypothesis import strategies as st

from compactor.presets import NotAnArchive, make_archive, read_archive

texts = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=20),
    st.sampled_from(["", "(below)", "--- message 1 of 1: {}", "content, 3 lines:", "\n", "\r\n", "\x00\ud800", '"\\"']),
)
keys = st.one_of(
    texts, st.sampled_from(["content", "text", "arguments", "tool_calls", "function", "0", "a/b", "?", "x_1"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(keys, values, max_size=4), max_size=4))
def test_any_messages_come_back_equal(messages: list[dict[str, Any]]) -> None:
    """Also of texts with lines that look like the archive's own; the same messages always give the same text."""
    archive = make_archive(messages)
    assert read_archive(archive) == messages
    assert [list(one) for one in read_archive(archive)] == [list(one) for one in messages]
    assert make_archive(read_archive(archive)) == archive


def test_what_was_said_stands_in_lines_of_its_own() -> None:
    """As it was said, in order, under a line that says who said it."""
    said = 'He said "5".\n\tC:\\temp'
    lines = make_archive([user(said), calls("c1", arguments='{"a": "ä"}'), result("c1", "x"), answer("")]).split("\n")
    place = lines.index('--- message 1 of 4: {"role": "user", "content": "(below)"}')
    assert lines[place + 1 : place + 4] == ["content, 2 lines:", 'He said "5".', "\tC:\\temp"]
    assert '{"a": "ä"}' in lines
    assert lines[-2].startswith('--- message 4 of 4: {"role": "assistant", "content": ""')


def test_what_is_no_archive_is_refused() -> None:
    """So is one that was changed: nothing is made up."""
    whole = make_archive([user("one\ntwo"), answer("three")])
    for text in (
        "hello",
        whole.replace("2 lines", "9 lines"),
        whole.replace("content, 2", "other, 2"),
        "content, 1 line:",
    ):
        with pytest.raises(NotAnArchive):
            read_archive(text)
