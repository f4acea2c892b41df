"""JSON-like text as lines of fields."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.summarizers.results import find_field_lines, find_structures


def lines_of(text: str) -> list[str]:
    found = find_field_lines(text)
    assert found is not None
    return found[0]


def test_a_record_is_one_line_of_its_fields() -> None:
    """A value stands beside its key and its neighbours."""
    assert lines_of('{"reservation_id": "EHGLP3", "total": 45, "paid": true}') == [
        "reservation_id: EHGLP3, total: 45, paid: true"
    ]


def test_a_short_inner_record_stands_in_the_line_of_the_outer() -> None:
    text = '{"name": {"first": "Mia", "last": "Li"}, "tags": ["a", "b"], "only": ["x"], "age": 7}'
    assert lines_of(text) == ["name (first: Mia, last: Li), tags (a, b), only: x, age: 7"]


def test_a_long_inner_record_is_a_line_of_its_own_that_names_its_key() -> None:
    inner = {f"field_{i}": f"value number {i}" for i in range(5)}
    lines = lines_of(json.dumps({"id": "A1", "address": inner}))
    assert lines[0] == "id: A1"
    assert lines[1].startswith("address (field_0: value number 0, ")


def test_each_line_of_a_long_record_begins_with_its_first_field() -> None:
    """A record's first field usually names it; without it the other lines would be about nothing."""
    record = {"order_id": "Z-9", **{f"key_{i}": "some longer value" for i in range(20)}}
    lines = lines_of(json.dumps(record))
    assert len(lines) > 2
    assert all(line.startswith("order_id: Z-9, ") for line in lines)


def test_a_long_list_does_not_repeat_its_first_item() -> None:
    lines = lines_of(json.dumps([f"item number {i}" for i in range(40)]))
    assert len(lines) > 2
    assert "\n".join(lines).count("item number 0") == 1


def test_numbers_are_left_as_they_were_written() -> None:
    """Nothing is parsed into a float and printed differently."""
    assert lines_of('{"a": 1.10, "b": 1e5, "c": 00012, "d": 123456789012345678901234567890}') == [
        "a: 1.10, b: 1e5, c: 00012, d: 123456789012345678901234567890"
    ]


def test_escapes_of_strings_are_undone() -> None:
    assert lines_of(r'{"city": "S\u00e3o Paulo", "path": "C:\\tmp", "say": "\"hi\""}') == [
        'city: São Paulo, path: C:\\tmp, say: "hi"'
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'id': 5, 'name': \"O'Neil\", 'none': None}", ["id: 5, name: O'Neil"]),
        ('{"a": {id: 5, when: 12:30}}', ["a (id: 5, when: 12:30)"]),
        ('{"a": "it\'s"}', ["a: it's"]),
        ('{"empty": "", "nothing": null, "list": [], "x": 1}', ["x: 1"]),
        ('{"a": "bad \\q escape"}', ["a: bad q escape"]),
    ],
)
def test_what_is_nearly_json_is_read_too(text: str, expected: list[str]) -> None:
    assert lines_of(text) == expected


@pytest.mark.parametrize("cut", range(1, 47))
def test_json_cut_off_anywhere_is_read_as_far_as_it_goes(cut: int) -> None:
    """Long results are often clipped, and then no JSON any more."""
    whole = '{"id": "A1", "list": [1, 2], "text": "x \\"y\\" z"}'
    joined = " ".join(lines_of(whole[:cut]))
    assert ("id: A1" in joined) == (cut >= 10)


def test_a_long_string_is_a_line_of_its_own_with_its_line_breaks() -> None:
    lines = lines_of(json.dumps({"status": "ok", "stdout": "one\ntwo"}))
    assert sorted(lines) == ["status: ok", "stdout: one\ntwo"]


def test_prose_and_structures_alternate() -> None:
    text = 'Result: {"a": 1} and {"b": 2}. Done.'
    assert list(find_structures(text)) == [("Result: ", ["a: 1"]), (" and ", ["b: 2"]), (". Done.", [])]


def test_brackets_of_prose_are_prose() -> None:
    text = "see [1] and {this}, f(x) = [a, b]"
    assert list(find_structures(text)) == [(text, [])]


def test_a_comma_without_a_value_does_no_harm() -> None:
    assert lines_of('{"a": , "b": 2,, : 3}') == ["b: 2"]


def test_what_is_nested_too_deep_is_left_as_text() -> None:
    text = "[" * 100 + '"x"' + "]" * 100
    assert find_field_lines(text) is None
    assert list(find_structures(text)) == [(text, [])]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.integers(0, 60))
def test_any_json_and_any_beginning_of_it_is_read(value: object, cut: int) -> None:
    """Reading never fails, and reads to the end."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)[:cut], repr(value)):
        for prose, lines in find_structures(text):
            assert prose in text
            assert all(lines)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(), min_size=1, max_size=6))
def test_no_field_is_lost(record: dict[str, int]) -> None:
    joined = ", ".join(lines_of(json.dumps(record)))
    assert all(f"{key}: {value}" in joined for key, value in record.items())
