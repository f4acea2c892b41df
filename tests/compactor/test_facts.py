"""What one line says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.summarizers.content import find_assignment, read_content


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
