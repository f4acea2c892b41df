"""Changes of notes: what a model's answer says, and what becomes of the notes. All of an answer counts, or nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_notes import NOTES, SECTIONS, TEXTS

from compactor import SummaryRejected
from compactor.notes import normalize_text, read_notes, render_notes
from compactor.strategies.note_edits import NoteEdit, apply_edits, is_edits, parse_edits
from memory import Note
from prompts import load_contract

ORDER = ("Goal", "Done", "Open")
BEFORE = (
    Note(text="Sell it.", section="Goal", first_round=1, last_round=1),
    Note(text="Asked Mia.", section="Done", first_round=1, last_round=2),
    Note(text="Price?", section="Open", first_round=2, last_round=2),
)


def after(answer: str) -> str:
    return render_notes(apply_edits(BEFORE, parse_edits(answer), order=ORDER, span=(3, 5)))


def refusal(answer: str) -> str:
    with pytest.raises(SummaryRejected) as caught:
        after(answer)
    assert caught.value.check == "malformed"
    return str(caught.value)


# What an answer says

ALL = (NoteEdit("add", 0, "Done", "Sold."), NoteEdit("replace", 3, "", "Paid?"), NoteEdit("remove", 2))


@pytest.mark.parametrize(
    "answer",
    [
        "add [Done]: Sold.\nreplace 3: Paid?\nremove 2",
        "The changes are:\n\n- Add [Done]: Sold.\n\n- Replace note 3 with: Paid?\n- remove #2.",
        "add [Done]:Sold.\nreplace [3]: Paid?\nremove [2]",
        "```\nadd [Done]: Sold.\nreplace 3: Paid?\nremove 2\n```",
        '{"add": [{"section": "Done", "text": "Sold."}], "replace": [{"number": 3, "text": "Paid?"}], "remove": [2]}',
        '{"add": [{"section": "Done", "text": "Sold."}], "replace": [{"number": "3", "text": "Paid?"}], "remove": ["#2"]}',
        '{"add": ["[Done]: Sold."], "replace": ["3: Paid?"], "remove": ["2"]}',
        '{"changes": [{"op": "add", "section": "Done", "text": "Sold."}, {"op": "replace", "number": 3.0, "text": "Paid?"},'
        ' {"op": "remove", "number": 2, "section": null, "text": null}]}',
        '[{"op": "add", "section": "Done", "text": "Sold.", "number": null}, {"op": "replace", "number": 3, "text": "Paid?"},'
        ' {"op": "remove", "number": 2}]',
        'Here:\n```json\n{"add": [{"section": "Done", "text": "Sold."}],\n"replace": [{"number": 3, "text": "Paid?"}],'
        ' "remove": [{"number": 2}]}\n```\nDone.',
    ],
)  # fmt: skip
def test_changes_are_read_in_every_form_that_models_give_them(answer: str) -> None:
    """Lines or JSON, with an introduction, in a block of code, with marks before them."""
    assert parse_edits(answer) == ALL


@pytest.mark.parametrize(
    "answer", ["none", "None.", "(none)", "No changes needed.", "nothing to add", "{}", "[]", '{"changes": []}']
)
def test_no_changes_are_an_answer(answer: str) -> None:
    """Nothing was worth noting: all notes stay."""
    assert parse_edits(answer) == ()
    assert apply_edits(BEFORE, ()) == BEFORE


def test_a_note_may_have_several_lines() -> None:
    """Those that follow, or are indented, belong to it."""
    (change,) = parse_edits("add [Done]: It runs:\n  ```sh\n    make all\n  ```\nas before\n\n  and after")
    assert change.text == "It runs:\n```sh\n  make all\n```\nas before\nand after"


@given(TEXTS.filter(normalize_text))
def test_the_rest_of_a_text_in_json_belongs_to_its_note(rest: str) -> None:
    """However much it looks like another change."""
    more = f"\nremove 1\n{rest}"
    assert parse_edits(json.dumps({"add": [f"[Done]: Sold.{more}"]})) == (NoteEdit("add", 0, "Done", f"Sold.{more}"),)


def test_a_line_inside_a_note_is_no_change() -> None:
    """It is indented, as the contract says."""
    assert parse_edits("add [Done]: He wrote:\n  remove 1") == (NoteEdit("add", 0, "Done", "He wrote:\nremove 1"),)


def test_several_may_be_removed_in_one_line() -> None:
    """Models do so."""
    assert parse_edits("remove 1, 3") == (NoteEdit("remove", 1), NoteEdit("remove", 3))


def test_an_addition_may_be_text_alone() -> None:
    """It stands under no heading."""
    assert parse_edits("add: Sold.") == parse_edits('{"add": ["Sold."]}') == (NoteEdit("add", text="Sold."),)


@pytest.mark.parametrize(
    "answer",
    [
        "The user sold it.",
        "## Done\n- Sold.",
        "add [Done]: Sold.\n\nI hope that helps!",
        "remove 2\nwhich is done",
        "forget 2",
        "replace: Sold.",
        "...",
        "{",
        '{"add": [}',
        '{"add": ["Sold."]} and more',
        '{"summary": "Sold."}',
        '{"summary": []}',
        '{"add": "Sold."}',
        '["Sold."]',
        '[{"op": "keep", "number": 1}]',
        '[{"op": ["add"], "text": "Sold."}]',
        '{"add": [{"text": 7}]}',
        '{"add": [{"section": "Done", "note": "Sold."}]}',
        '{"add": [null]}',
        '{"changes": [{"op": "add"}]}',
        '{"add": [{"text": "Sold."}], "add": [{"text": "Paid."}]}',
        '{"add": [{"text": "Sold.", "text": "Paid."}]}',
        '{"add": [{"text": "a", "section": []}]}',
        '{"remove": [true]}',
        '{"remove": [1.5]}',
        '{"remove": [Infinity]}',
        '{"remove": [NaN]}',
        '{"remove": ["one"]}',
        '{"remove": [null]}',
        "[" * 100_000,
        '{"remove": [' + "9" * 5_000 + "]}",
        "```json\n{",
    ],
)
def test_what_is_no_list_of_changes_is_malformed(answer: str) -> None:
    """None of it is taken, and the message shows nothing of it."""
    message = refusal(answer)
    assert "Sold" not in message
    assert len(message) < 150


@given(st.text(max_size=60) | TEXTS)
def test_any_answer_is_read_or_malformed(answer: str) -> None:
    """No other error, whatever a model says."""
    try:
        made = apply_edits(BEFORE, parse_edits(answer), order=ORDER)
    except SummaryRejected as rejected:
        refused: SummaryRejected | None = rejected
        made = ()
    else:
        refused = None
    assert refused is None or refused.check == "malformed"
    bare = tuple(note.model_copy(update={"first_round": 0, "last_round": 0}) for note in made)
    assert read_notes(render_notes(made), (0, 0)) == bare


@pytest.mark.parametrize(
    ("answer", "is_one"),
    [
        ("none", True),
        ('{"add":[],"replace":[],"remove":[]}', True),
        ("add [Done]: Sold.", True),
        ("```\nremove 2\n```", True),
        ("## Done\nadd [Done]: Sold.", False),
        ("add: Sold.\n\nHe has sold it.", False),
        ("{Sold.}", False),
        ("Sold.", False),
    ],
)
def test_changes_are_known_where_notes_were_asked_for(answer: str, is_one: bool) -> None:
    """Those that begin the answer: a heading or a sentence before them is that of notes."""
    assert is_edits(answer) is is_one


# What becomes of the notes


def test_what_is_not_named_stays_byte_for_byte() -> None:
    """What is new stands behind all that there was, and a replaced note where it stood."""
    made = apply_edits(BEFORE, ALL, order=ORDER, span=(3, 5))
    assert made == (
        BEFORE[0],
        Note(text="Paid?", section="Open", first_round=2, last_round=5),
        Note(text="Sold.", section="Done", first_round=3, last_round=5),
    )
    assert made[0] is BEFORE[0]


@given(NOTES.filter(bool), st.data())
def test_untouched_notes_survive_any_changes(notes: tuple[Note, ...], data: st.DataObject) -> None:
    """In their order, whatever else is added, replaced or removed."""
    numbers = st.integers(1, len(notes))
    removed = data.draw(st.sets(numbers, max_size=len(notes) - 1))
    replaced = data.draw(st.dictionaries(numbers, TEXTS.filter(normalize_text), max_size=2))
    added = data.draw(st.lists(st.tuples(st.sampled_from(["Done", "New"]), TEXTS), max_size=3))
    changes = [
        *(NoteEdit("replace", number, text=text) for number, text in replaced.items() if number not in removed),
        *(NoteEdit("remove", number) for number in removed),
        *(NoteEdit("add", section=section, text=text) for section, text in added),
    ]
    made = apply_edits(notes, changes, order=("Goal", "Done"))
    stay = [note for number, note in enumerate(notes, 1) if number not in removed and number not in replaced]
    found = iter(made)
    assert all(any(note is other for other in found) for note in stay)
    assert read_notes(render_notes(made), (0, 0)) == made


@given(NOTES.filter(bool), st.lists(st.tuples(SECTIONS, TEXTS), max_size=4))
def test_what_is_added_leaves_the_beginning_as_it_was(notes: tuple[Note, ...], added: list[tuple[str, str]]) -> None:
    """Up to the last byte, and so it stays in the provider's cache; each under its own heading, or under the last where
    it names none."""
    changes = [NoteEdit("add", section=section, text=text) for section, text in added]
    made = apply_edits(notes, changes, order=("Goal", "Done"))
    assert made[: len(notes)] == notes
    assert render_notes(made).startswith(render_notes(notes))


def test_what_goes_on_with_the_last_section_needs_no_heading_again() -> None:
    """Nor does what names none; others follow in their order, each heading once."""
    assert after("add [Done]: x\nadd [Goal]: y\nadd [Done]: z\nadd [Open]: w\nadd: v") == (
        "## Goal\n1. Sell it.\n\n## Done\n2. Asked Mia.\n\n## Open\n3. Price?\n4. w\n5. v"
        "\n\n## Goal\n6. y\n\n## Done\n7. x\n8. z"
    )


@pytest.mark.parametrize(
    ("answer", "section"), [("add [done]: x", "Done"), ("add [## Done:]: x", "Done"), ("add [Else]: x", "Else")]
)
def test_a_heading_is_known_however_it_is_written(answer: str, section: str) -> None:
    """Else one section would become two."""
    (note,) = (note for note in apply_edits(BEFORE, parse_edits(answer), order=ORDER) if note.text == "x")
    assert note.section == section


def test_an_existing_heading_stays_as_it_is_written() -> None:
    """Whatever the prompt calls it today."""
    before = [Note(text="a", section="done")]
    assert {note.section for note in apply_edits(before, [NoteEdit("add", section="DONE", text="b")], order=ORDER)} == {
        "done"
    }


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("replace 4: x", "names note 4, and there are 3"),
        ("remove 0", "names note 0"),
        ("remove 999999", "names note 999999"),
        ("replace 1: x\nreplace 1: y", "changes note 1 twice"),
        ("replace 1: x\nremove 1", "changes note 1 twice"),
        ("remove 1\nreplace 1: x", "changes note 1 twice"),
        ("replace 1:", "replaces note 1 with nothing"),
        ("remove 1, 2, 3", "leaves no note"),
    ],
)
def test_changes_that_are_at_odds_with_the_notes_are_malformed(answer: str, said: str) -> None:
    """A wrong number elsewhere in the answer may be the wrong number here."""
    assert said in refusal(f"{answer}")


def test_what_changes_nothing_is_no_fault() -> None:
    """Removed twice, added though it is there or empty, replaced by the same."""
    assert after("remove 2\nremove 2") == "## Goal\n1. Sell it.\n\n## Open\n2. Price?"
    assert after("add [Goal]: Sell it.\nadd [Open]:\nreplace 3: Price?") == render_notes(BEFORE)
    assert after("add [Done]: x\nadd [Done]: x").count("x") == 1
    assert apply_edits(BEFORE, parse_edits("replace 3: Price?"), span=(3, 5)) == BEFORE


def test_what_was_removed_can_be_said_anew() -> None:
    """At the end, in its section or another."""
    assert after("remove 3\nadd [Done]: Price?") == "## Goal\n1. Sell it.\n\n## Done\n2. Asked Mia.\n3. Price?"


def test_what_the_contract_shows_is_what_is_read() -> None:
    """An example that could not be read would be worse than none."""
    said = load_contract("changes").content
    lines = said.partition("one change a line:\n\n")[2].partition("\n\n")[0]
    assert [change.op for change in parse_edits(lines)] == ["add", "replace", "remove"]
    assert parse_edits("none") == ()
    assert "nothing is worth noting: none" in said
