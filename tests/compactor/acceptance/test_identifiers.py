"""Identifiers: found in a summary whatever stands around them, and in their source however that writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compactor import compare
from memory import CompactedMessage


def gone(before: str, after: str = "") -> list[str]:
    """Return the identifiers of a summary that a later one lacks."""
    old, new = (CompactedMessage(start_index=1, end_index=1, summary=text) for text in (before, after))
    return list(compare(old, new).gone)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("User mia_li_3668 booked HAT103.", ["mia_li_3668", "HAT103"]),
        ("**NO6JO3**, `HXDUBJ` and (UM3OG5)", ["NO6JO3", "HXDUBJ", "UM3OG5"]),
        ("order #48213; id=7734, ticket:9951", ["48213", "7734", "9951"]),
        ("RES-48213, JIRA-1042, INV-2024-001", ["RES-48213", "JIRA-1042", "INV-2024-001"]),
        ("commit 3f2a9bc of 550e8400-e29b-41d4-a716-446655440000", ["3f2a9bc", "550e8400-e29b-41d4-a716-446655440000"]),
        ("Write to mia.li3818@example.com.", ["mia.li3818@example.com"]),
        ("See https://x.org/a?b=1. Or www.foo.org/bar!", ["https://x.org/a?b=1", "www.foo.org/bar"]),
        ("/srv/app/config.yaml, src/main.rs and out.csv", ["/srv/app/config.yaml", "src/main.rs", "out.csv"]),
        (r"\\host\share\x and ~/.ssh/id_rsa", [r"\\host\share\x", "/.ssh/id_rsa"]),
        ("call get_user_name(x)", ["get_user_name"]),
        ("version v1.2.3 on 10.0.0.17", ["v1.2.3", "10.0.0.17"]),
        ("Phone: +1-555-0100", ["1-555-0100"]),
        ("订单4412已退款,航班HAT001。", ["4412", "HAT001"]),
        ("HAT103/HAT201 and 4412A", ["HAT103", "HAT201", "4412A"]),
        ("hat103 HAT103", ["hat103"]),
        ("12,345 rows", ["12345"]),
    ],
)
def test_what_names_one_thing_is_an_identifier(text: str, names: list[str]) -> None:
    """Ids, long numbers, codes, paths, addresses, hashes, names with underscores; each once."""
    assert gone(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "The user wants a window seat and/or an aisle seat; he/she is 18 years old.",
        "2024-05-15, 05/20/2024, 20.05.2024, May 20th, 20-May-2024, 15:00, 2024-05-15T15:00:00Z, 20240515, 2023-2024",
        "in 2024, the 1990s, mid-2024, 2024/Q3",
        "$1,234.50, 1234 USD, EUR 5678, 4321 dollars, € 9999, 1,250 euros, $2468",
        "25%, 1234%, 4321 percent, 1st, 22nd, 10k, 24h, 3pm, 2GB, 1920x1080, 5kg, 48-hour, 18-year-old",
        "r12.p3, r12-r14, r3.p4-p9, r12.p3-p17, (reload r7)",
        "Q3, A4, B2B, v2, Python3, item-3, step2, COVID-19, GPT-4",
        "card ending in 7447, card ••••1167, the last four digits 4486",
        "3000 users, 12,000 rows, 3.14159, 1234.56, 4-10",
        "SEA to JFK, JSON, IMPORTANT, PENDING, e.g. U.S., Node.js",
        "self-service check-in, rock'n'roll, C++, F#, ... --- ===",
        "x" * 300 + "_1234",
        "a@b @home foo@",
        r"\frac \times \text x^2 60^\circ and c^2\ ",
        "",
    ],
)
def test_what_may_be_said_in_another_way_is_none(text: str) -> None:
    """Dates, money, percentages, ordinals, quantities, references, ordinary words, capitals and formulas."""
    assert gone(text) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("HAT103", "flight hat103."),
        ("HAT103", "flight HAT-103"),
        ("HAT 103 RES-48213", "HAT103 and RES 48213"),
        ("12345", "12,345 rows"),
        ("12,345", "12345"),
        ("1234567", "1.234.567 Zeilen"),
        ("4421486", "gift_card_4421486"),
        ("gift_card_4421486", "gift card 4421486"),
        ("3f2a9bc", "commit 3f2a9bc0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6"),
        ("4412", "订单4412已退款"),
        ("HAT001", '{"text": "one\\\\nHAT001\\\\ntwo"}'),
        ("https://x.org/a", '{"url": "https:\\/\\/x.org\\/a\\/b?c"}'),
        ("get_user_name", "getUserName is get-user-name"),
        ("MIA.LI@Example.com", "mia.li@example.com"),
        ("+1-555-0100", "+1 (555) 0100"),
    ],
)
def test_an_identifier_written_another_way_is_known(name: str, source: str) -> None:
    """Case, separators, thousands separators, scripts without spaces, escapes inside of JSON, shortened hashes."""
    assert gone(name)
    assert gone(name, source) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("HAT104", "HAT103"),
        ("HAT103", "HAT1034 CHAT103"),
        ("4821", "order 48213"),
        ("8213", "order 48213"),
        ("mia_li_3669", "mia_li_3668"),
        ("/srv/app/prod.yaml", "/srv/app/dev.yaml and prod"),
        ("bob@example.org", "bob@example.com"),
        ("HXDUBK", "HXDUBJ"),
        ("3f2a9bd", "3f2a9bc0d1e2f3a4"),
        ("a1b2c3d4", ""),
    ],
)
def test_an_identifier_that_is_nearly_there_is_not_there(name: str, source: str) -> None:
    """One digit more, less or other names another thing."""
    assert gone(name, source) == [name]


NUMBERS = st.integers(1_000, 99_999)
NAMES = NUMBERS.map(lambda number: f"HAT{number}") | NUMBERS.map(lambda number: f"mia_li_{number}")


@pytest.mark.slow
@given(st.lists(NAMES, max_size=12), st.text(max_size=200))
def test_what_is_copied_from_the_source_is_always_known(names: list[str], noise: str) -> None:
    """Whatever else the source holds."""
    source = f"{noise} " + " | ".join(names) + f" {noise}"
    assert gone(" ".join(names), source) == []


@given(st.text(max_size=400))
def test_every_text_knows_its_own_identifiers(text: str) -> None:
    """Nothing that is found in a text is missing from it."""
    found = gone(text)
    assert gone(text, text) == []
    assert len({name.casefold() for name in found}) == len(found)


@given(st.text(st.characters(categories=["Lu", "Ll", "Lt"]), min_size=1, max_size=24))
def test_a_word_of_letters_names_nothing_unless_all_are_capitals(word: str) -> None:
    """Alone or beside another."""
    assert word.isupper() or gone(word) == gone(f"{word}/{word}") == []


@given(
    st.lists(st.sampled_from(["hat", "103", "4821", "12345", "1234567"]), min_size=1, max_size=3),
    st.lists(
        st.sampled_from(["HAT", "103", "48", "21", "12", "345", "1", "234", "567", ",", "-", " ", "x"]), max_size=12
    ),
)
def test_a_name_whose_parts_stand_nowhere_is_unknown(runs: list[str], parts: list[str]) -> None:
    """And a name is known where all of them stand, with nothing between but what may."""
    source = "".join(parts)
    apart = (r"[.,' ]?".join(re.findall(r"\d{1,3}(?=(?:\d{3})*$)", run)) if run.isdecimal() else run for run in runs)
    written = r"[\W_]{0,6}".join(apart)
    folded = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", source.casefold())
    known = re.search(rf"(?<![a-z0-9]){written}(?![a-z0-9])", folded) is not None
    name = "-".join(runs)
    assume(gone(name) == [name])
    assert gone(name, source) == ([] if known else [name])


def test_only_so_many_are_looked_at() -> None:
    """A table of thousands of ids is judged by its beginning."""
    assert len(gone(" ".join(f"id_{number}" for number in range(10_000, 12_000)))) == 500
