"""A compactor knows the budget of its role's prompts, however their tokens are counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from compactor import ContextCompactor, Memory, OpenAISummarizer, TokenCounter, compose

CLIENT = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: None)))


@pytest.mark.parametrize("model", ["", "gpt-4o", "gpt-4"])
@pytest.mark.parametrize("counter", [None, len])
def test_the_budget_is_that_of_the_last_prompt(model: str, counter: TokenCounter | None) -> None:
    memory = Memory()
    summarizer = OpenAISummarizer("gpt-4", client=CLIENT)
    with ContextCompactor.for_role(memory, "assistant", summarizer=summarizer) as compactor:
        assert "unknown until compose is called" in compactor.describe()
        for budget in (8_000, 6_000, 500, 6_000, 6_000):
            memory.append({"role": "user", "content": "Where is my parcel?"})
            compose(memory, budget=budget, model=model, counter=counter)
            memory.append({"role": "assistant", "content": "It is on its way."})
            assert compactor.wait_idle(30)
            assert not compactor.describe().startswith("Budget: 500"), "a short prompt now and then is another matter"
        assert compactor.describe().startswith("Budget: 6,000 tokens")
