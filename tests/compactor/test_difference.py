"""Two compactions side by side: nothing that was said in either is missing from what is told of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import compare
from memory import CompactedMessage


def made(summary: str, end: int = 7, number: int | None = None) -> CompactedMessage:
    return CompactedMessage(start_index=1, end_index=end, end_number=number, summary=summary)


OLD = "The user flies on HAT103. His budget is 900 dollars.\n- Booked: reservation ZFA04Y\n- He has a dog."
NEW = "The user flies on HAT103.\n- He has a cat.\n- Booked: reservation ZFA04Y"


def test_what_was_dropped_what_came_in_and_what_stayed() -> None:
    """Sentence by sentence; one that only moved has stayed."""
    difference = compare(made(OLD), made(NEW, 12))
    assert difference.dropped == ("His budget is 900 dollars.", "He has a dog.")
    assert difference.came_in == ("He has a cat.",)
    assert difference.stayed == ("The user flies on HAT103.", "Booked: reservation ZFA04Y")
    assert difference.rounds == (8, 12)
    assert difference.gone == ()


def test_identifiers_that_are_gone_are_named() -> None:
    """A sentence may go without a loss; a reservation's number is looked for."""
    difference = compare(made(OLD), made("The user flies on hat 103."))
    assert difference.gone == ("ZFA04Y",)
    assert difference.rounds is None


def test_it_can_be_read() -> None:
    """Like a diff, under a line of numbers."""
    assert str(compare(made(OLD), made("He has a dog. It is called HAT-5512.", 9))).splitlines() == [
        "Covers rounds 8-9 more: 1 came in, 3 dropped, 1 stayed.",
        "- The user flies on HAT103.",
        "- His budget is 900 dollars.",
        "- Booked: reservation ZFA04Y",
        "  He has a dog.",
        "+ It is called HAT-5512.",
        "No longer named: HAT103, ZFA04Y",
    ]
    assert str(compare(None, None)) == "Covers no round more: 0 came in, 0 dropped, 0 stayed."


def test_nothing_before_and_nothing_after() -> None:
    """The first compaction, and the last revert."""
    assert compare(None, made("One. Two.")).came_in == ("One.", "Two.")
    assert compare(None, made("One.")).rounds == (1, 7)
    gone = compare(made("Order ZFA04Y."), None)
    assert (gone.dropped, gone.gone, gone.rounds) == (("Order ZFA04Y.",), ("ZFA04Y",), None)


def test_rounds_are_those_of_the_log() -> None:
    """Where rounds have failed, indices are not the numbers that people know."""
    assert compare(made("a", 5, 6), made("b", 7, 10)).rounds == (7, 10)


@pytest.mark.parametrize("last", ["a", "b"])
def test_data_is_compared_to_its_end(last: str) -> None:
    """A word as long as a blob is not cut to its beginning before it is looked at."""
    difference = compare(made("x" * 500 + "a"), made("x" * 500 + last))
    assert bool(difference.dropped) is (last == "b")


SENTENCES = st.lists(
    st.sampled_from(["One is here.", "Two came.", "Three left!", "- four stays", "HAT103 waits."]), max_size=6
)


@given(old=SENTENCES, new=SENTENCES)
def test_nothing_is_missing_and_nothing_is_told_twice(old: list[str], new: list[str]) -> None:
    """What stayed and was dropped is the old text, what stayed and came in the new one, to the last sentence."""
    difference = compare(made("\n".join(old) or "."), made("\n".join(new) or "."))
    plain = {text: text.removeprefix("- ") for text in (*old, *new)}
    assert Counter([*difference.stayed, *difference.dropped]) == Counter(plain[text] for text in old)
    assert Counter([*difference.stayed, *difference.came_in]) == Counter(plain[text] for text in new)
    assert [text for fate, text in difference.sentences if fate != "dropped"] == [plain[text] for text in new]
    assert not {*difference.dropped} & {*difference.came_in}
