"""Tools for a model: what their schemas say, and what is made of the arguments that models write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.recall import MAX_NUMBER, Parameters, Refused, make_schema, read_arguments, read_number, read_text

PARAMETERS: Parameters = {"path": ("string", True, "Which."), "limit": ("integer", False, "How many.")}


def test_a_schema_satisfies_strict_mode() -> None:
    """Every parameter is required; what may be left out may be null; others there are not."""
    assert make_schema("look", "Looks.", PARAMETERS) == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Which."},
                    "limit": {"type": ["integer", "null"], "description": "How many."},
                },
                "required": ["path", "limit"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (None, {}),
        ("", {}),
        (" ", {}),
        ('{"path": "a"}', {"path": "a"}),
        ({"limit": 3}, {"limit": 3}),
        ({"file": "a"}, {"path": "a"}),
    ],
)
def test_arguments_are_read_from_json_or_taken_as_they_are(arguments: Any, read: dict[str, Any]) -> None:
    """By the parameters' names, whatever others they are known by."""
    assert read_arguments(arguments, PARAMETERS, {"file": "path"}) == read


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        (5, "not an object"),
        ({"file": "a"}, "does not have"),
        ({"path": "a", "other": 1}, "does not have"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_parameters(arguments: Any, wrong: str) -> None:
    """So that the model knows what to give; nothing of what it wrote is repeated."""
    with pytest.raises(Refused, match=f"{wrong}.* path, limit$"):
        read_arguments(arguments, PARAMETERS)


def test_a_text_must_be_given() -> None:
    """Empty is a text; null is none."""
    assert read_text({"path": ""}, "path") == ""
    for missing in ({}, {"path": None}):
        with pytest.raises(Refused, match="path must be given, as a string"):
            read_text(missing, "path")
    with pytest.raises(Refused, match="path must be a string"):
        read_text({"path": 5}, "path")


@given(st.integers(), st.integers(-5, 5), st.integers(5, 2 * MAX_NUMBER))
def test_a_number_is_brought_between_the_least_and_the_most(value: int, least: int, most: int) -> None:
    """Negative ones too."""
    assert read_number({"limit": value}, "limit", None, least, most) == min(max(value, least), most)


@pytest.mark.parametrize("value", [4, 4.0, "4", " +4 "])
def test_a_number_may_be_written_in_other_ways(value: object) -> None:
    """As models do."""
    assert read_number({"limit": value}, "limit", 1, 0, MAX_NUMBER) == 4


@pytest.mark.parametrize("value", [1.5, "x", "1.5", "", True, [], {}, float("nan"), float("inf"), "9" * 31])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    """With one that would do."""
    with pytest.raises(Refused, match="limit must be a whole number, such as 1"):
        read_number({"limit": value}, "limit", 9, 0, MAX_NUMBER)


def test_the_default_stands_where_no_number_is_given() -> None:
    """Where there is one; it is not brought between anything."""
    assert read_number({}, "limit", 7, 0, 5) == read_number({"limit": None}, "limit", 7, 0, 5) == 7
    with pytest.raises(Refused, match="such as 2"):
        read_number({}, "limit", None, 2, 5)
