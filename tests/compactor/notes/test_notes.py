"""Notes: what they say is data, written so that it can be read back, and what nobody changes stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import count_tokens
from compactor.notes import (
    EARLIER,
    INSTRUCTIONS,
    add_instructions,
    carry_over,
    find_headings,
    find_span,
    normalize_heading,
    normalize_text,
    read_notes,
    render_notes,
    sort_notes,
)
from compactor.strategies.compact_notes import parse_notes
from compactor.summarizers.answers import strip_tags
from compactor.summarizers.statements import Section, from_summary
from memory import Note, Round
from prompts import load

#: Text of all kinds, and what could be taken for the marks around notes.
TRAPS = st.sampled_from(
    ["- ", "* ", "## ", "1. ", "  ", "\n", "\n\n", "```", "**", ":", "{text}", "\r\n", "\u2028", "\x1c"]
)
TEXTS = st.lists(st.text(max_size=12) | TRAPS, min_size=1, max_size=8).map("".join)
SECTIONS = st.sampled_from(["", "Goal", "Done", "Open", INSTRUCTIONS]) | TEXTS.map(normalize_heading)
NOTES = st.lists(st.builds(Note, text=TEXTS.map(normalize_text).filter(bool), section=SECTIONS), max_size=8).map(
    lambda notes: sort_notes(notes, ("Goal", "Done"))
)


def said(text: str) -> list[tuple[str, str]]:
    return [(note.section, note.text) for note in read_notes(text, (1, 4))]


# Written and read


@given(NOTES)
def test_what_is_written_is_read_back(notes: tuple[Note, ...]) -> None:
    """Whatever a note says: headings, bullets, braces, code, empty lines."""
    assert read_notes(render_notes(notes), (0, 0)) == notes


@given(NOTES.filter(bool), st.sampled_from(["</think>", "</summary>", "<think>"]))
def test_no_note_is_taken_for_a_tag_around_the_summary(notes: tuple[Note, ...], tag: str) -> None:
    """Tags are taken off an answer before it is read, never off what was read."""
    answer = render_notes(
        sort_notes((*notes, Note(text=f"It said\n{tag}\nand more.", section="Done")), ("Goal", "Done"))
    )
    assert parse_notes((), ("Goal", "Done"), (0, 0), answer).text == answer


@given(TEXTS)
def test_a_text_is_brought_into_form_once(text: str) -> None:
    """And so it stays the same from then on."""
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert normalize_heading(normalize_heading(text)) == normalize_heading(text)
    once.encode()  # no lone surrogate


def test_a_lone_surrogate_becomes_a_mark() -> None:
    """A provider's client would refuse the whole prompt for it; two halves that meet are one character."""
    assert normalize_text("a\ud800b \ud83d\ude00") == "a\ufffdb 😀"


def test_one_note_is_one_item() -> None:
    """Its further lines are indented, so that nothing in it ends it."""
    note = Note(text="# a\n\n- b\n## c\n  {d}", section="Done")
    assert render_notes([note]) == "## Done\n1. # a\n\n  - b\n  ## c\n    {d}"


def test_sections_stand_in_their_order_and_what_seldom_changes_first() -> None:
    """So that what a provider has in its cache reaches as far as can be."""
    sections = ["Odd", "Open", "Done", "", INSTRUCTIONS, "Done", "Odder"]
    notes = [Note(text=str(place), section=section) for place, section in enumerate(sections)]
    found = sort_notes(notes, ("Done", "Open"))
    assert [(note.section, note.text) for note in found] == [
        ("", "3"), (INSTRUCTIONS, "4"), ("Done", "2"), ("Done", "5"), ("Open", "1"), ("Odd", "0"), ("Odder", "6"),
    ]  # fmt: skip
    assert sort_notes(found, ("Done", "Open")) == found


def test_notes_are_numbered_through() -> None:
    """From 1, over all sections: as a model is to name them. However many there are."""
    notes = (Note(text="a"), Note(text="b", section="Done"), Note(text="c", section="Open"))
    assert render_notes(notes) == "1. a\n\n## Done\n2. b\n\n## Open\n3. c"
    assert render_notes(()) == ""
    many = tuple(Note(text=f"1990. {number}.", section="Years") for number in range(1_100))
    assert read_notes(render_notes(many), (0, 0)) == many


def test_the_sections_are_the_headings_of_the_prompt() -> None:
    """A role's own prompt says what its notes are about."""
    assert find_headings(load("default").content) == ("Goal", "Instructions from the user", "Done", "Decisions", "Open")
    assert find_headings("No heading\n#tag\n# One:\n### Two\n# One") == ("One", "Two")


# Summaries that somebody else wrote


@pytest.mark.parametrize(
    ("summary", "notes"),
    [
        ("", []),
        ("One text.\nStill the same.\n\nAnother.", [("", "One text.\nStill the same."), ("", "Another.")]),
        ("## Goal\n* a\n+ b\n• c\n1. d\n12) e", [("Goal", text) for text in "abcde"]),
        ("- a\n  - below it\n\n    and more\n- b", [("", "a\n- below it\n\n  and more"), ("", "b")]),
        ("- a\n\tb\nc", [("", "a\nb\nc")]),
        ("Facts and results:\n- a\n\n**Done:**\n- b\n### Open ###\n- c", [("Facts and results", "a"), ("Done", "b"), ("Open", "c")]),
        ("**Budget:** 400 euros.", [("", "**Budget:** 400 euros.")]),
        ("- a\n\n---\n\n- b", [("", "a"), ("", "b")]),
        ("Run:\n```sh\n# no heading\n\n- no note\n```\nDone.", [("Run", "```sh\n# no heading\n\n- no note\n```\nDone.")]),
        ("1990. A year is no mark.", [("", "1990. A year is no mark.")]),
    ],
)  # fmt: skip
def test_a_summary_in_other_words_is_read_as_notes(summary: str, notes: list[tuple[str, str]]) -> None:
    """One that a model wrote, or that was made before there were notes."""
    assert said(summary) == notes


def test_notes_say_which_rounds_they_come_from() -> None:
    """Those that were there before keep theirs."""
    before = Note(text="a", section="Done", first_round=2, last_round=3)
    assert read_notes("## Done\n- a\n- b", (4, 9), [before]) == (
        before,
        Note(text="b", section="Done", first_round=4, last_round=9),
    )


def test_rounds_are_named_as_the_log_numbers_them() -> None:
    """Where they come from a host that has no numbers, by their places."""
    logged = [Round(id="a", user_query="", number=7), Round(id="b", user_query="", number=9)]
    assert find_span(logged, 1, 2) == (7, 9)
    assert find_span([one.model_copy(update={"number": 0}) for one in logged], 1, 2) == (1, 2)
    assert find_span([], 1, 2) == (1, 2)


def test_an_answer_of_headings_alone_is_a_note() -> None:
    """A summary is never without a word."""
    assert parse_notes((), (), (1, 1), "## Goal").notes == (Note(text="## Goal", first_round=1, last_round=1),)


# What the user forbade


def test_lost_sentences_stand_with_the_other_instructions() -> None:
    """Each is a note of its own, behind those that are there."""
    notes = sort_notes([Note(text="x"), Note(text="Done it.", section="Done")], ("Done",))
    first = add_instructions(notes, ["Never delete files."], (3, 4))
    second = add_instructions(first, ["Do not\npush.", " "], (5, 6))
    assert render_notes(second).split("\n") == [
        "1. x", "", f"## {INSTRUCTIONS}", "2. Never delete files.", "3. Do not", "  push.", "", "## Done", "4. Done it.",
    ]  # fmt: skip
    assert (second[1].first_round, second[2].last_round) == (3, 6)
    assert render_notes(add_instructions((), ["No."], (1, 1))) == f"## {INSTRUCTIONS}\n1. No."
    behind = add_instructions(notes, ["No."], (1, 1), behind=True)
    assert render_notes(behind) == f"{render_notes(notes)}\n\n## {INSTRUCTIONS}\n3. No."


# What a rewriting left out


@given(NOTES, NOTES, st.integers(0, 120))
def test_what_is_carried_over_is_whole_and_within_the_length(
    notes: tuple[Note, ...], dropped: tuple[Note, ...], most: int
) -> None:
    """The other notes stay as they are, in their order, and all can be read back from the text."""
    dropped = tuple(note.model_copy(update={"last_round": place}) for place, note in enumerate(dropped))
    result = carry_over(notes, dropped, most, count_tokens)
    before = {id(note) for note in notes}
    assert [note for note in result if id(note) in before] == list(notes)
    carried = [note for note in result if id(note) not in before]
    assert {note.section for note in carried} <= {EARLIER}
    kept = [note for note in dropped if note.section not in (EARLIER, INSTRUCTIONS)]
    assert [note.text for note in carried] == [note.text for note in kept if note.last_round in _rounds(carried)]
    assert not carried or count_tokens(render_notes(result)) <= most
    assert said(render_notes(result)) == [(note.section, note.text) for note in result]


def _rounds(notes: list[Note]) -> set[int]:
    return {note.last_round for note in notes}


def test_the_extractive_summarizer_knows_its_own_headings_again() -> None:
    """Its summaries are written as notes as well, and it goes on from them."""
    note = Note(text="Never delete files.", section=INSTRUCTIONS)
    for summary in (render_notes([note]), f"{Section.INSTRUCTIONS}\n- {note.text}"):
        (statement,) = from_summary(summary)
        assert (statement.text, statement.section) == (note.text, Section.INSTRUCTIONS)
    assert strip_tags(render_notes([note])) == render_notes([note])


def test_what_people_and_tools_really_say_can_be_noted(data: list[dict[str, Any]]) -> None:
    """Lists, tables, JSON and signatures: each is one note, and all are read back."""
    said = [message.get("content") for dialogue in data for message in dialogue["messages"]]
    found = [Note(text=normalize_text(text), section="Said") for text in said if text and text.strip()]
    assert len(found) > 1_000
    assert read_notes(render_notes(found), (0, 0)) == tuple(found)
