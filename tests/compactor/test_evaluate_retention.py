"""What a summary should keep of a conversation, and what counts as kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.cli.evaluate.report import measure
from compactor.cli.evaluate.retention import KINDS, Item, Said, SummaryWords, find_items, read_source
from compactor.cli.evaluate.runner import MIN_BATCH, Compaction, Source
from memory import Memory


def items_of(*said: str | dict[str, Any]) -> list[Item]:
    """Return what is to be kept of a conversation in which the user says these texts, each answered with "Fine."."""
    memory = Memory()
    for one in said:
        if isinstance(one, str):
            memory.append({"role": "user", "content": one})
            memory.append({"role": "assistant", "content": "Fine."})
        else:
            memory.append(one)
    return find_items(memory.get_role_rounds("assistant")[0], "assistant")


def call(name: str, result: str, **arguments: object) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]


def kept(items: Sequence[Item], kind: str, summary: str) -> list[bool]:
    words = SummaryWords(summary)
    return [words.keeps(item) for item in items if item.kind == kind]


@pytest.mark.parametrize(
    ("kind", "said", "keeps", "loses"),
    [
        ("ids", "My booking is RES-48213.", "Booking res 48213 is open.", "A booking is open."),
        ("paths", "The log is in /var/log/app.txt now.", "See /var/log/app.txt.", "See /var/log/other.txt."),
        ("numbers", "We ordered 12,000 bolts.", "12000 bolts were ordered.", "The hall has 12000 seats."),
        ("numbers", "We ordered 12,000 bolts.", "Bolts: 12.000, ordered.", "Bolts were ordered."),
        ("instructions", "Always answer in French.", "The user wants French answers, always.", "They talk of France."),
        ("instructions", "Always round to 15 minutes.", "Always round to 15 minutes!", "Always round to 30 minutes."),
        (
            "prohibitions",
            "Never delete the backup tables.",
            "Do not delete backup tables.",
            "Delete the backup tables.",
        ),
    ],
)
def test_what_the_user_says_is_kept_in_other_words(kind: str, said: str, keeps: str, loses: str) -> None:
    """A value counts as kept beside words that it belongs to; a prohibition, in a sentence that forbids."""
    items = items_of(said)
    assert kept(items, kind, keeps) == [True]
    assert kept(items, kind, loses) == [False]


def test_values_without_what_they_are_keep_no_numbers() -> None:
    """A list of numbers answers no question."""
    items = items_of("We ordered 125 bolts for the bridge.", "The pier needs 340 rivets.")
    assert kept(items, "numbers", "125, 340") == [False, False]
    far = "word " * 60
    assert kept(items, "numbers", f"125 {far} bolts bridge rivets pier {far} 340") == [False, False]


def test_a_tools_outcome_is_kept_with_its_call() -> None:
    """What came of it, beside what was asked; a failure as a failure."""
    found = items_of(*call("count_stock", '{"pieces": 592, "hall": "north"}', item="bolts"))
    assert kept(found, "outcomes", "Stock of bolts: 592 pieces in the north hall.") == [True]
    assert kept(found, "outcomes", "The stock was counted.") == [False]
    assert kept(found, "outcomes", "Somewhere north there are 592 pieces in a hall.") == [False]
    failed = items_of(*call("read_file", "PermissionError: access denied to the ledger", path="ledger.csv"))
    assert kept(failed, "outcomes", "Reading ledger.csv failed: PermissionError, access denied.") == [True]
    assert kept(failed, "outcomes", "ledger.csv was read.") == [False]


def test_results_alone_ask_for_no_ids() -> None:
    """A table of a thousand ids is not to be kept; one that the agent speaks of is."""
    table = "\n".join(f"AB-{number:05}" for number in range(1_000))
    (*found,) = items_of(*call("list_parts", table), {"role": "assistant", "content": "AB-00017 is the one."})
    assert [item.name for item in found if item.kind == "ids"] == ["AB-00017"]


def test_the_newest_value_replaces_the_older_one() -> None:
    """Nobody is asked for a value any more once another holds."""
    found = items_of("The budget is 500 euros.", "Fine so far.", "The budget is now 700 euros.")
    (newest,) = [item for item in found if item.kind == "newest"]
    assert (newest.round, newest.until) == (3, None)
    old, new = [item for item in found if item.kind == "numbers"]
    assert (old.round, old.until, new.until) == (1, 3, None)
    assert kept(found, "newest", "Budget: 700 euros.") == [True]
    assert kept(found, "newest", "Budget: 500 euros.") == [False]


def test_a_second_change_replaces_the_first() -> None:
    """Each value holds until the next, also where both are said in one round."""
    found = items_of("The budget is 500 euros.", "The budget is now 700 euros. No, the budget is now 900 euros.")
    assert [(item.round, item.until) for item in found if item.kind == "newest"] == [(2, 2), (2, None)]
    found = items_of(*(f"The budget is now {number} euros." for number in (500, 700, 900)))
    assert [(item.round, item.until) for item in found if item.kind == "newest"] == [(2, 3), (3, None)]
    assert [(item.round, item.until) for item in found if item.kind == "numbers"] == [(1, 2), (2, 3), (3, None)]


def test_what_is_replaced_is_asked_for_until_then() -> None:
    """A summary that still has the old value is not praised for it, and one without it is not blamed."""
    talk = ("The budget is 500 euros.", "Go on.", "The budget is now 700 euros.")
    messages = [
        {"role": role, "content": text} for said in talk for role, text in (("user", said), ("assistant", "ok"))
    ]
    source = Source.from_conversation("x", ("1", messages), 1)
    summaries = [Compaction(end, "Budget: 700 euros.") for end in (1, 2, 2, 2, 2)]
    assert numbers_asked(source, summaries) == [("500", 1), ("500", 5)]
    assert numbers_asked(source, [Compaction(3, "")]) == [("700", 1)]


def numbers_asked(source: Source, summaries: list[Compaction]) -> list[tuple[str, int]]:
    """Return the numbers that *summaries* are asked for, each with the compactions since it was said."""
    items = [pair for one in measure(source, summaries, quotes=True) for pair in one.items]
    return [(item.key, after) for item, after, _ in items if item.kind == "numbers"]


@given(st.lists(st.integers(0, 700), min_size=1, max_size=30), st.integers(1, 20))
def test_parts_cover_every_round_once(sizes: list[int], compactions: int) -> None:
    """At most so many, in order, and none without a round; a huge round is a part and not several."""
    messages = [
        {"role": role, "content": text}
        for size in sizes
        for role, text in (("user", "word " * size), ("assistant", "Fine."))
    ]
    source = Source.from_conversation("x", ("1", messages), compactions)
    assert len(source.rounds) == len(sizes) == source.ends[-1]
    assert list(source.ends) == sorted(set(source.ends))
    assert len(source.ends) <= compactions
    assert len(source.ends) <= max(1, source.tokens // MIN_BATCH)


_SENTENCES = st.lists(
    st.sampled_from(
        [
            "My booking is RES-48213 for 14 people.",
            "Never call me before 10:30.",
            "Always send receipts to /srv/mail/in.txt.",
            "The price rose to 1,299 dollars.",
            "Weather is nice.",
            "Please don't book a seat in row 13.",
            "我们的订单号是 AB12345，数量 250。",
            "Bitte immer auf Deutsch antworten.",
            "The deadline is now May 14.",
        ]
    ),
    min_size=1,
    max_size=6,
)


@given(_SENTENCES, _SENTENCES)
def test_the_text_itself_keeps_everything_and_makes_nothing_up(first: list[str], second: list[str]) -> None:
    """Whatever is lost by the measure alone would be blamed on a summary."""
    memory = Memory()
    for said in (first, second):
        memory.append({"role": "user", "content": " ".join(said)})
        memory.append({"role": "assistant", "content": f"Noted: {said[0]}"})
    rounds = memory.get_role_rounds("assistant")[0]
    whole = "\n".join(map(read_source, rounds))
    words, nothing = SummaryWords(whole), SummaryWords("")
    for item in find_items(rounds, "assistant"):
        assert item.kind in KINDS
        assert words.keeps(item)
        assert not nothing.keeps(item)
    assert Said(whole).find_invented(whole)[1] == ()


def test_names_and_numbers_that_nobody_said_are_made_up() -> None:
    """A name that is marked as cut off is none, if a longer one was said."""
    source = "Order RES-48213 took 150ms on 2024-05-11T02:58:29, for $1,299."
    names, unknown = Said(source).find_invented("1. RES-48213 took 150 ms for 1299 (r12.p3), says QX-99172; 37 times.")
    assert unknown == ("QX-99172", "37")
    assert Said(source).find_invented("It is in RES-48…, and QX-77…")[1] == ("77",)
    assert Said(source).find_invented("look(RES-48213) ×10 → 150ms")[1] == ()  # ten calls were made
    assert {"RES-48213", "QX-99172", "150", "37"} <= names


# -- nothing but identifiers ---------------------------------------------------------------------------------------------


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions *work* calls, Python's own included: the same on a busy machine."""
    made = 0

    def see(frame: object, event: str, arg: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made


def test_a_number_that_a_summary_lost_is_looked_for_in_few_calls() -> None:
    """Its digits stand there apart, and nearly all numbers of a log are lost: no pattern is compiled for each."""
    lost = [Item("ids", name, 1, name, name) for name in (f"{a}{b}" for a in range(200, 210) for b in range(300, 310))]
    words = SummaryWords(" ".join(f"{part} of {part + 1}" for part in range(199, 320, 3)))
    kept: list[bool] = []
    assert count_calls(lambda: kept.extend(map(words.keeps, lost))) < 100 * len(lost)
    assert not any(kept)


def test_twice_as_many_rounds_and_compactions_take_twice_as_long() -> None:
    """No text is read again at each compaction, and no item that is not asked for is looked at."""

    def calls(rounds: int) -> int:
        said = [{"role": role, "content": f"R{n}-4821, {n}."} for n in range(rounds) for role in ("user", "assistant")]
        source = Source.from_conversation("s", ("1", said), 1)
        compactions = [Compaction(end, f"{source.texts[end - 1]} And QX-99172.") for end in range(1, rounds + 1)]
        measure(source, compactions, quotes=False)  # reads the items, and fills caches
        return count_calls(lambda: measure(source, compactions, quotes=False))

    assert calls(80) < 2.5 * calls(40)
