"""Standing instructions in 25 languages: found by cues, which are data; and the data is what it should be."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from compactor.acceptance.prohibitions import find_prohibitions
from compactor.summarizers.cues import (
    EXCEPT,
    MAX_SENTENCE,
    Cues,
    is_prohibition,
    may_prohibit,
    rate_instruction,
    split_words,
)
from memory import Round

#: By language: sentences that give a standing instruction and ordinary ones; those "unseen" were not looked at while the
#: cues were written.
SENTENCES: dict[str, dict[str, list[str]]] = {}
for path in sorted((Path(__file__).parent / "languages").glob("*.yaml")):
    SENTENCES |= yaml.safe_load(path.read_text(encoding="utf-8"))
CUES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    files("compactor.summarizers").joinpath("cues.yaml").read_text(encoding="utf-8")
)
KINDS = ("forbids", "rules", "wishes", EXCEPT)


def of(kind: str) -> list[tuple[str, str]]:
    return [(language, sentence) for language, said in SENTENCES.items() for sentence in said[kind]]


def test_a_standing_instruction_is_found() -> None:
    """A prohibition, a rule or a preference."""
    assert [pair for pair in of("standing") if rate_instruction(pair[1]) <= 0] == []


def test_an_ordinary_sentence_is_none() -> None:
    """Telling, asking, asking for something once."""
    assert [pair for pair in of("ordinary") if rate_instruction(pair[1]) or is_prohibition(pair[1])] == []


def test_sentences_of_which_the_cues_know_nothing_are_told_apart() -> None:
    """Of those that were not looked at, at least nine of ten of either kind."""
    prohibitions, ordinary = of("unseen_standing"), of("unseen_ordinary")
    missed = [pair for pair in prohibitions if not rate_instruction(pair[1])]
    alarms = [pair for pair in ordinary if rate_instruction(pair[1])]
    assert len(missed) * 10 <= len(prohibitions), missed
    assert len(alarms) * 10 <= len(ordinary), alarms


def test_every_language_has_its_table_and_its_sentences() -> None:
    """Twelve that give an instruction, eight that do not."""
    assert len(CUES) >= 20
    assert set(CUES) == {language.lower() for language in SENTENCES}
    for language, said in SENTENCES.items():
        assert len(set(said["standing"])) >= 12, language
        assert len(set(said["ordinary"])) >= 8, language
        assert len(set(said["unseen_standing"])) >= 4, language


def test_a_table_holds_phrases_alone() -> None:
    """A word such as "no" without quotation marks is another thing in YAML, and a mistake in a phrase is told."""
    for language, table in CUES.items():
        assert all(isinstance(written, str) for listed in table.values() for written in listed), language
        assert set(KINDS) <= set(table), language
        for kind in KINDS:
            Cues({language: {**table, **{other: [] for other in KINDS if other != kind}}}, KINDS[:3])


@pytest.mark.parametrize("written", ["... never", "never ...", ".... never", "never ....", "", "*", "!it", "^ *", "$"])
def test_a_phrase_that_could_stand_anywhere_is_refused(written: str) -> None:
    """It would be looked for at every word."""
    with pytest.raises(ValueError, match="the cue"):
        Cues({"any": {"forbids": [written]}}, ("forbids",))


def test_of_two_phrases_the_longer_counts() -> None:
    """So what only looks like a cue is known by the words around it."""
    cues = Cues(
        {"any": {"forbids": [", never", "must never"], "except": ["never mind", "she must never"]}}, ("forbids",)
    )
    said = (
        "never pay",
        "but never",
        "x, never pay",
        "never mind",
        "she must never",
        "he must never",
    )
    wanted = frozenset({"forbids"})
    assert [bool(cues.find_kinds(text, wanted)) for text in said] == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    ("phrase", "yes", "no"),
    [
        ("do not|never *ing", "we do never running", "do not run"),
        ("please (only) use", "please only use; please use", "please also use"),
        ("leave ... alone", "leave all of it alone", "leave it, alone"),
        ("use .... / never", "use “this” or that, never those", "use this and never those"),
        ("use .... never", "use this, that, never those", "use a1 b1 c1 d1 e1 f1 g1 h1 i1 never"),
        ("^ only", "please only me", "it is only me"),
        (", only", "well, only me", "it is only me"),
        ("only me $", "it is only me!", "only me here"),
        ("un*ed", "unasked", "unask"),
        ("no !idea|need", "so no pears", "so no need"),
        ("no !<kin>|need", "no pears", "no brother"),
        ("no <kin>|pears", "no pears", "no need"),
        ("don't go", "DON’T go", "do go"),
        ("不要 ... 我", "请不要告诉我", "不要。我来"),
        ("? *me $", "şu gelme", "call me"),
        ("l' eau", "L’eau", "leau"),
        ("no / but", "no, but yes", "no but yes"),
    ],
)
def test_a_phrase_is_read_as_it_is_written(phrase: str, yes: str, no: str) -> None:
    """As the head of the tables says."""
    cues = Cues(
        {"any": {"rules": [phrase], "begin": ["please"], "marks": ["ş"], "kin": ["brother", "sis*"]}}, ("rules",)
    )
    assert [bool(cues.find_kinds(text, frozenset({"rules"}))) for text in (yes, no)] == [True, False]


def test_a_long_order_without_spaces_or_full_stops_stays_whole() -> None:
    """Thai has neither."""
    order = "ห้ามโอนเงินออกจากบัญชีของบริษัทโดยไม่ได้รับอนุญาตจากฉันเป็นลายลักษณ์อักษร" * 3
    assert 200 < len(order) < 400
    assert find_prohibitions([Round(user_query=order)]) == (order,)
    assert find_prohibitions([Round(user_query=f"สวัสดี\n{order}\nขอบคุณ")]) == (order,)


def test_a_line_of_code_is_no_instruction() -> None:
    """Whatever words are in it; a sentence that names some code is one."""
    for code in (
        "tracker = BudgetTracker('budget.db')",
        "raise ValueError('must be positive')",
        "# never call this twice",
        "if (must_not_exceed(limit)) { return; }",
        "assert user must be None;",
        "<p>Do not reply to this mail.</p>",
        "// don't touch",
    ):
        assert rate_instruction(code) == 0, code
    assert rate_instruction("Never call BudgetTracker('budget.db') in tests.") == 1
    assert rate_instruction("Do not change src/app/main.py or config_v2.yaml.") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece", ["never ", "不要", "न करें ", "please do not ... ", "ห้าม", "非 必 ", ", ", "n't", "''", "a' "]
)
def test_a_megabyte_is_judged_in_no_time(piece: str) -> None:
    """In time that grows with its length; and what is longer than a sentence is judged by its beginning."""
    text = piece * (1_000_000 // len(piece))
    began = time.thread_time()
    rate_instruction(text)
    is_prohibition(text)
    may_prohibit(text)
    assert time.thread_time() - began < 60
    assert rate_instruction("x " * MAX_SENTENCE + "never pay") == 0


@given(st.text())
def test_any_text_has_words(text: str) -> None:
    """None of which is empty, and signs that are spelt differently are the same."""
    assert all(split_words(text))
    assert split_words("L’été") == split_words("l'e\u0301te\u0301")
