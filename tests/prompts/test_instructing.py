"""The instruction alone, which follows the conversation itself instead of a quotation of it."""

from __future__ import annotations

import pytest

from prompts import ABOVE, CLOSING, PromptTemplate, list_shipped, load

TEMPLATE = PromptTemplate("t", "{content}\nBefore: {previous_summary}\nSummarise for {role} in {target_tokens}.")


def test_a_sentence_stands_in_the_place_of_the_conversation() -> None:
    """It says what is meant; all else reads as it does behind a quotation."""
    assert TEMPLATE.instruct(role="Planner", target_tokens=9) == (
        f"{ABOVE}\nBefore: (none)\nSummarise for Planner in 9."
    )


def test_a_summary_before_is_pointed_at_and_not_repeated() -> None:
    """It stands in the conversation already, so it need not be paid for again."""
    assert "Before: (what stands above, headed [Conversation History Summary])" in TEMPLATE.instruct(previous=True)


def test_the_plan_is_quoted_as_it_is_elsewhere() -> None:
    """It stands in no conversation; where the template does not place it, it follows the sentence."""
    assert TEMPLATE.instruct(plan="1. go <plan>").startswith(f"{ABOVE}\n\n<plan>\n1. go &lt;plan>\n</plan>\nBefore:")
    placed = PromptTemplate("t", "{content} Plan: {plan} Summarise.")
    assert placed.instruct(plan="go") == f"{ABOVE} Plan: <plan>\ngo\n</plan> Summarise."


def test_a_template_that_ends_in_data_is_closed_here_too() -> None:
    """The sentence is no instruction to write anything."""
    assert PromptTemplate("t", "Summarise:\n{content}").instruct().endswith(CLOSING)


@pytest.mark.parametrize("name", list_shipped())
def test_a_shipped_prompt_says_the_same_in_either_form(name: str) -> None:
    """Nothing but the quotation differs."""
    template = load(name)
    (quoted,) = template.render("CONVERSATION", role="R", target_tokens=5, plan="P")
    assert template.instruct(role="R", target_tokens=5, plan="P") == quoted["content"].replace("CONVERSATION", ABOVE)
