"""What leads up to what somebody says is left out of a summary; what they say is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import ExtractiveSummarizer, Round, SummaryRequest
from compactor.summarizers.statements import Section, from_summary, without_padding


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("I'm trying to move the database to Render.com,", "move the database to Render.com,"),
        ("Hi! So, I’d like to fly to Oslo on May 3.", "fly to Oslo on May 3."),
        ("hmm, what about requests that time out?", "what about requests that time out?"),
        ("and could you please help me with the invoice of May?", "the invoice of May?"),
        ("Ich möchte gerne einen Flug nach Oslo buchen.", "einen Flug nach Oslo buchen."),
        ("Hola, quiero reservar un vuelo a Oslo.", "reservar un vuelo a Oslo."),
        ("Bonjour, je voudrais réserver une table.", "réserver une table."),
        ("请帮我预订一张五月三日去北京的机票。", "预订一张五月三日去北京的机票。"),
        ("Здравствуйте, я хочу забронировать номер.", "забронировать номер."),
        ("Czy możesz mi pomóc zarezerwować lot do Oslo?", "zarezerwować lot do Oslo?"),
        ("سلام، من می‌خواهم یک بلیط به اسلو رزرو کنم", "یک بلیط به اسلو رزرو کنم"),
    ],
)
def test_what_leads_up_to_what_is_said_is_left_out(said: str, left: str) -> None:
    """In any of the languages, spelt with either apostrophe, several of them in a row."""
    assert without_padding(said) == left


@pytest.mark.parametrize(
    "said",
    [
        "I don't want to fly on Mondays.",
        "I'm not trying to move the database.",
        "I've moved the database to Render.com.",
        "I wanted to become a nurse once.",
        "I want to go.",
        "Can I use a gift card for the rest?",
        "Would you go there again in winter?",
        "I think the deadline was in March.",
        "Ich will.",
        "No quiero volar los lunes por la mañana.",
        "Okayama is where my cousin lives.",
        "Sofia and Ben come on Friday.",
    ],
)
def test_what_says_something_stays(said: str) -> None:
    """Refusals, what is so or was so, questions that are no requests, and what would leave next to nothing."""
    assert without_padding(said) == said


@given(
    st.lists(st.sampled_from(["hi, ", "and ", "I want to ", "please ", "Oslo ", "don't ", "我想要", "x"])).map("".join)
)
def test_what_is_left_is_the_end_of_what_was_said(said: str) -> None:
    left = without_padding(said)
    assert said.endswith(left)
    assert bool(left) == bool(said)
    assert without_padding(left) == left


def test_an_instruction_stands_as_it_was_said() -> None:
    """With its courtesies: it is quoted."""
    rule = "Please never book anything before noon."
    rounds = [Round(user_query=f"I want to see the fjords around Oslo. {rule}", state="finished")]
    request = SummaryRequest(rounds=rounds, previous=None, target_tokens=200)
    found = list(from_summary(ExtractiveSummarizer()(request).text))
    assert [one.text for one in found if one.section is Section.INSTRUCTIONS] == [rule]
    assert "see the fjords around Oslo." in [one.text for one in found]
