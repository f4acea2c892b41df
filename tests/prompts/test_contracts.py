"""Contracts: in which form an answer has to come, said behind any prompt, which is data to them."""

from __future__ import annotations

import pytest

from prompts import CONTRACTS, PromptError, list_shipped, load, load_contract

CONVERSATION = "<conversation>\n</conversation>"


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("prompt", ["default", "planner", "code_interpreter", "assistant"])
def test_a_contract_follows_whatever_prompt_there_is(name: str, prompt: str) -> None:
    """Word for word; and adds no closing to it."""
    (asked,) = load(prompt).render(CONVERSATION, role="Zoë", target_tokens=700)
    (made,) = load_contract(name).render(asked["content"])
    assert made["content"].startswith(f"{asked['content']}\n\n")
    assert len(made["content"]) - len(asked["content"]) < 1_500
    assert "Now write the summary" not in made["content"]


def test_placeholders_in_a_prompt_are_not_filled_by_its_contract() -> None:
    """What was said there may look like one."""
    assert load_contract("changes").render("{role} {content}")[0]["content"].startswith("{role} {content}\n")


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_is_no_prompt(name: str) -> None:
    """Nobody gets it by being called so."""
    assert name not in list_shipped()
    with pytest.raises(PromptError, match="not found"):
        load(name)


def test_an_unknown_contract_names_those_that_there_are() -> None:
    """As with prompts."""
    with pytest.raises(PromptError, match="no contract 'chnages'; there are changes, notes"):
        load_contract("chnages")
