"""A plan as text: what is open first, what is done in a line, bounded, and never formatted."""

from __future__ import annotations

import dataclasses
import pickle
from enum import Enum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import Plan
from compactor.plan import MAX_CHARACTERS, is_pending, render_plan

TRIP = Plan(
    "Book the trip",
    "To Oslo and back, at most 400 euros.",
    [
        ("choose dates", "done"),
        ("pay", "pending"),
        ("compare flights", "in_progress"),
        ("rent a car", "abandoned"),
        ("ask for the passport", "done"),
        ("send the ticket", "pending"),
    ],
)


def test_what_is_open_stands_first_and_what_is_done_in_one_line() -> None:
    """In progress, then pending, each in the host's order."""
    assert str(TRIP).splitlines() == [
        "Plan: Book the trip",
        "To Oslo and back, at most 400 euros.",
        "- [in progress] compare flights",
        "- [pending] pay",
        "- [pending] send the ticket",
        "Done (2): choose dates; ask for the passport",
        "Abandoned (1): rent a car",
    ]


def test_a_plan_shows_only_what_it_has() -> None:
    """No empty headings."""
    assert str(Plan("Go")) == "Plan: Go"
    assert str(Plan("", "Only described")) == "Only described"
    assert str(Plan(" ", "\n", [("a", "done")])) == "Done (1): a"
    assert str(Plan("")) == ""


def test_a_plan_is_frozen_and_copies_its_subtasks() -> None:
    """What the host does to its list later changes no plan."""
    subtasks = [("a", "pending")]
    plan = Plan("p", subtasks=subtasks)
    subtasks.clear()
    assert plan.subtasks == (("a", "pending"),)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "q"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
    assert hash(plan) == hash(Plan("p", subtasks=(("a", "todo"),)))


class Word(StrEnum):
    DOING = "doing"


class Coded(Enum):
    FINISHED = "finished"


@pytest.mark.parametrize(
    ("spelled", "state"),
    [
        ("todo", "pending"),
        ("TO-DO", "pending"),
        ("whatever", "pending"),
        ("", "pending"),
        (None, "pending"),
        (3, "pending"),
        ("in progress", "in_progress"),
        ("In-Progress", "in_progress"),
        ("IN_PROGRESS", "in_progress"),
        ("doing", "in_progress"),
        (Word.DOING, "in_progress"),
        ("active", "in_progress"),
        ("Completed", "done"),
        (" done ", "done"),
        (Coded.FINISHED, "done"),
        ("cancelled", "abandoned"),
        ("Abandoned", "abandoned"),
    ],
)
def test_hosts_spellings_of_a_state_are_understood(spelled: Any, state: str) -> None:
    """Whatever is none of them counts as pending: an unfinished task forgotten is worse than one looked at again."""
    assert Plan("p", subtasks=[("a", spelled)]).subtasks == (("a", state),)


def test_a_subtask_that_stands_alone_is_pending() -> None:
    """A list of names is a plan."""
    assert Plan("p", subtasks=["a", ("b", "done")]).subtasks == (("a", "pending"), ("b", "done"))  # type: ignore[list-item]


@pytest.mark.parametrize("wrong", [7, None, ("a", "b", "c"), ("a",)])
def test_what_is_no_subtask_is_refused_with_the_remedy(wrong: Any) -> None:
    """The message says what one is."""
    with pytest.raises(TypeError, match="a pair of a name and a state"):
        Plan("p", subtasks=[wrong])


@pytest.mark.parametrize(
    ("plan", "pending"),
    [
        (TRIP, True),
        (Plan("p", subtasks=[("a", "done"), ("b", "doing")]), True),
        (Plan("p", subtasks=[("a", "done"), ("b", "todo")]), True),
        (Plan("p", subtasks=[("a", "done"), ("b", "abandoned")]), False),
        (Plan("p"), True),
        (Plan("", "described"), True),
        (Plan(" "), False),
        ("1. search", True),
        (" \n", False),
        (None, False),
        (["a", "b"], True),
    ],
)
def test_a_plan_is_pending_while_anything_is_left_to_do(plan: object, pending: bool) -> None:
    """One that was not divided is left as a whole; of a text nobody can tell."""
    assert is_pending(plan) is pending
    if isinstance(plan, Plan):
        assert plan.pending is pending


def test_a_plan_is_text_a_plan_or_anything_that_has_a_text() -> None:
    """None and blanks are no plan."""

    class Host:
        def __str__(self) -> str:
            return "from the host"

    assert render_plan(" 1. {search}\n") == " 1. {search}\n"
    assert render_plan(TRIP) == str(TRIP)
    assert render_plan(Host()) == "from the host"
    assert [render_plan(nothing) for nothing in (None, "", " \n\t", Plan(""))] == [None] * 4


def test_a_long_plan_says_how_much_of_it_is_left_out() -> None:
    """What is in progress has precedence, and the names of what is done take one line at most."""
    many = [(f"step {number} {'x' * 80}", "pending") for number in range(100)]
    plan = Plan("p", "d" * 5_000, [*many, ("the one", "doing"), *((f"old {n}", "done") for n in range(500))])
    lines = str(plan).splitlines()
    assert lines[1] == "d" * 994 + " [...]"
    assert lines[2] == "- [in progress] the one"
    shown = [line for line in lines if line.startswith("- [pending] step")]
    assert f"- and {100 - len(shown)} more that are open" in lines
    assert len(shown) > 15
    assert lines[-1].startswith("Done (500): old 0; old 1;")
    assert len(lines[-1]) == 300
    assert 3_800 < len(str(plan)) <= MAX_CHARACTERS


@pytest.mark.parametrize("length", range(1, 200, 7))
def test_a_plan_is_within_its_bound_whatever_the_length_of_its_lines(length: int) -> None:
    """The line that counts what is left out included."""
    text = str(Plan("p" * length, "d", [("x" * length, "pending")] * 1_000 + [("done", "done")]))
    assert MAX_CHARACTERS - length - 40 < len(text) <= MAX_CHARACTERS


texts = st.text(st.characters(codec=None) | st.sampled_from("{}%\n\ud800 "), max_size=300) | st.sampled_from(
    ["{0}", "{name!r}", "%s", "</plan>", "x" * 5_000, "line\nbreak"]
)
states = st.sampled_from(["todo", "in_progress", "done", "abandoned", "?"])
plans = st.builds(Plan, texts, texts, st.lists(st.tuples(texts, states), max_size=60))


@given(plans)
def test_a_plans_text_is_bounded_and_its_content_is_data(plan: Plan) -> None:
    """Whatever stands in it: never over ``MAX_CHARACTERS``, never formatted, and each subtask on one line at most."""
    text = str(plan)
    assert len(text) <= MAX_CHARACTERS
    assert render_plan(plan) == (text if text.strip() else None)
    lines = text.split("\n")
    opened = [name for wanted in ("in_progress", "pending") for name, state in plan.subtasks if state == wanted]
    shown = [line for line in lines if line.startswith(("- [in progress] ", "- [pending] "))]
    said = " ".join(plan.description.split("\n"))
    if "- [" not in said:
        for line, name in zip(shown, opened, strict=False):
            assert line.partition("] ")[2].removesuffix(" [...]") in " ".join(name.split())
    assert plan.pending == is_pending(plan)


@given(texts)
def test_a_text_is_the_plan_as_it_is_unless_it_is_too_long(text: str) -> None:
    """Bounded: it stands in every compaction's prompt."""
    found = render_plan(text)
    assert found == (
        text[: MAX_CHARACTERS - 6] + " [...]" if len(text) > MAX_CHARACTERS else text if text.strip() else None
    )
