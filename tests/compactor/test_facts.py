"""What one line says, and what JSON-like text says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.summarizers.content import find_assignment, read_content
from compactor.summarizers.results import find_field_lines, find_structures


def kind(term: str, text: str) -> float:
    return read_content(text).terms.get(term.casefold(), 0.0)


@pytest.mark.parametrize(
    "identifier",
    [
        "/srv/data/x.csv",
        "~/notes.md",
        "src/app/main.py",
        "https://example.org/a?b=1",
        "mia.li@example.com",
        "EHGLP3",
        "INV-2291",
        "snake_case_name",
        "camelCase",
        "std::vector",
        "C:\\tmp\\x",
        "db-7.internal",
        "settings.yaml",
        "2024-05-17",
        "1,482.50",
        "$450",
        "1,200",
        "v2.3.1",
    ],
)
def test_identifiers_amounts_and_dates_tell_most(identifier: str) -> None:
    telling = max(read_content(f"look at the thing {identifier} again").terms.values())
    assert telling >= 0.9


def test_kinds_of_terms_are_ranked() -> None:
    """Identifiers before numbers, names, words; function words count nothing."""
    text = "the engineer said that Marta found 317 errors in orders_v3 on Friday"
    ranked = [kind(term, text) for term in ("orders_v3", "317", "engineer", "the")]
    assert ranked == sorted(ranked, reverse=True)
    assert len(set(ranked)) == 4
    assert kind("marta", text) == kind("friday", text) > kind("engineer", text)
    assert kind("7", "take 7 of them") < kind("77", "take 77 of them") < kind("7777", "take 7777 of them")
    assert kind("ab", "so ab it") == kind("&", "a & b") == kind("%", "a % b") == 0


def test_a_capital_at_the_beginning_of_a_sentence_is_no_name() -> None:
    text = "Engineers agree. Engineers wait for Anna"
    assert kind("engineers", text) < kind("anna", text)


def test_a_word_after_a_colon_or_equals_sign_is_a_value() -> None:
    assert kind("pending", "status: pending") > kind("pending", "it is still pending there")
    assert kind("pending", "status = pending") > kind("status", "status = pending")


def test_an_abbreviation_in_capitals_counts_as_a_name() -> None:
    assert kind("jfk", "we land at JFK then") == kind("anna", "we meet Anna then")


def test_scripts_without_spaces_are_taken_in_pairs() -> None:
    terms = read_content("预算是1200元").terms
    assert {"预算", "算是", "1200"} <= set(terms)
    assert terms["1200"] > terms["预算"]


def test_lines_of_one_template_have_one_shape() -> None:
    shapes = {read_content(f"2024-05-{i} INFO worker-{i} did {i}00 rows").shape for i in range(10, 20)}
    assert len(shapes) == 1
    assert read_content("9 rows: fine").shape != read_content("9 rows: broken").shape


def test_rows_of_one_table_have_one_form() -> None:
    assert (
        read_content("a_1 20 red house").form
        == read_content("b_2 30 tall tree").form
        != read_content("a red house").form
    )


@given(st.text())
def test_any_text_has_terms_of_at_most_one(text: str) -> None:
    assert all(0 < weight <= 1 for weight in read_content(text).terms.values())
    find_assignment(text)


def subject(text: str) -> frozenset[str]:
    found = find_assignment(text)
    assert found is not None, text
    return found.subject


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("total: 45", "total: 52"),
        ("status = pending", "status = done"),
        ("retries=3", "retries=5"),
        ("The deadline is Thursday.", "the deadline is now Friday"),
        ("Our budget is $500.", "Actually, raise the budget to $700."),
        ("My phone number is 5551234.", "Sorry, my phone number is 5559876."),
        ("status of MFA39K = open", "status of MFA39K = closed"),
        ('Planner: "The total is 45."', 'Planner: "The total is 52."'),
        ("run(x_1) → total: 45", "run(x_1) → total: 52"),
        ("截止日期是3月5日", "截止日期是4月8日"),
        ("get → id: 7, state: open", "get → id: 7, state: shut"),
        ("get → ticket: T-12, state: open", "poll → ticket: T-12, state: shut"),
        ("stat(a_1.txt) → size: 5, owner: mia", "stat(a_1.txt) → size: 9, owner: tom"),
        ("Note: the limit is 5", "the limit is 6"),
    ],
)
def test_a_newer_value_has_the_same_subject(older: str, newer: str) -> None:
    assert subject(older) == subject(newer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Passenger 1 has the seat: 12A", "Passenger 2 has the seat: 14C"),
        ("The size of /a/x.csv is 3 MB", "The size of /b/y.csv is 4 MB"),
        ("My name is Tom.", "His name is Bob."),
        ("get → id: 7, state: open", "get → id: 8, state: open"),
        ("get → id: 7, state: open", "get → id: 7, owner: mia"),
        ("wc(a_1.txt) → lines: 45", "wc(b_2.txt) → lines: 52"),
    ],
)
def test_values_of_different_things_have_different_subjects(one: str, other: str) -> None:
    """Losing a value because another thing has one would be a lie by omission."""
    assert subject(one) != subject(other)


@pytest.mark.parametrize(
    "text",
    [
        "Thanks a lot.",
        "It is 45.",
        "The weather is quite nice these days",
        "size: 5, owner: mia",
        "is it 5?",
        "total:",
        "",
        "The one two three four five six seven eight things are 9",
    ],
)
def test_what_gives_no_telling_value_to_a_known_thing_is_no_assignment(text: str) -> None:
    assert find_assignment(text) is None


def test_an_assignment_says_whether_something_changed_and_in_which_words() -> None:
    plain, changed = (
        find_assignment("The launch is planned for Tuesday."),
        find_assignment("The launch is now on Friday."),
    )
    assert plain is not None
    assert changed is not None
    assert plain.words == {"planned"}
    assert (plain.change, changed.change) == (False, True)


# -- JSON-like text as lines of fields -------------------------------------------------------------------------------


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
