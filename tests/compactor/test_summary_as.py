"""Where the summary stands, and the line about what is left out: in messages of their own, or at the end of the header."""

from __future__ import annotations

from typing import Any

import pytest
from chats import answer, chat, compacted, memory_of, user

from compactor import budget_status, compose, count_prompt, count_tokens
from memory import Memory

SUMMARY = "[Conversation History Summary]\nThey greeted."


def cut_chat() -> Memory:
    """A session whose prompts have both, if they may take 4,000 tokens."""
    memory = chat(40, tokens=200)
    compacted(memory, 10)
    return memory


@pytest.mark.parametrize("summary_as", ["system", "user"])
def test_both_are_messages_of_their_own(summary_as: Any) -> None:
    """Behind the host's system messages: what changes seldom stands first."""
    prompt = compose(cut_chat(), budget=4_000, system="Be brief.", summary_as=summary_as)

    first, summary, note = prompt.messages[:3]
    assert first == {"role": "system", "content": "Be brief."}
    assert summary["role"] == note["role"] == summary_as
    assert str(summary["content"]).startswith(SUMMARY)
    assert str(note["content"]).startswith("[Left out here")


def test_both_stand_at_the_end_of_the_header_for_providers_that_take_one_system_message() -> None:
    """The host's own text comes first. Its source is ours, and tells of all rounds that are not shown."""
    prompt = compose(cut_chat(), budget=4_000, system="Be brief.", summary_as="header")

    text = str(prompt.messages[0]["content"])
    assert text.startswith(f"Be brief.\n\n{SUMMARY}")
    assert "\n\n[Left out here" in text
    assert [message["role"] for message in prompt.messages].count("system") == 1
    last = prompt.report.omitted_rounds[-1]
    assert (prompt.sources[0].ref, prompt.sources[0].kind) == (f"r1-r{last}", "ours")
    assert len(prompt.sources) == len(prompt.messages)
    assert prompt.tokens == count_prompt(prompt.messages, count_tokens) <= 4_000


def test_a_header_in_parts_gets_parts_and_its_cache_mark_stays() -> None:
    """The mark's part is as it was, so the provider finds what it keeps."""
    part = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    system = [{"role": "system", "content": [part]}, {"role": "user", "content": "An example."}]
    prompt = compose(cut_chat(), budget=4_000, system=system, summary_as="header")

    content: Any = prompt.messages[0]["content"]
    assert content[0] == part
    assert [one["text"].partition("\n")[0][:15] for one in content[1:]] == ["[Conversation H", "[Left out here "]
    assert prompt.messages[1] == system[1]
    assert system[0]["content"] == [part]
    assert [source.kind for source in prompt.sources[:2]] == ["ours", "original"]


def test_without_a_header_they_are_one_system_message() -> None:
    """It stands first, where templates of models expect it."""
    prompt = compose(cut_chat(), budget=4_000, summary_as="header", system=[user("An example.")])

    assert [message["role"] for message in prompt.messages[:2]] == ["system", "user"]
    assert [source.kind for source in prompt.sources[:2]] == ["ours", "original"]


@pytest.mark.parametrize("summary_as", ["system", "user", "header"])
def test_the_beginning_stays_until_a_cut_or_a_publication(summary_as: Any) -> None:
    """A provider's cache finds it, byte for byte."""
    memory = chat(12)
    compacted(memory, 4)
    before = compose(memory, budget=9_000, system="Be brief.", summary_as=summary_as).messages
    memory.append(user("more"))
    memory.append(answer())

    after = compose(memory, budget=9_000, system="Be brief.", summary_as=summary_as).messages
    assert after[: len(before)] == before
    assert [message["role"] for message in after].count("system") == (2 if summary_as == "system" else 1)


@pytest.mark.parametrize("summary_as", ["system", "user", "header"])
def test_the_budget_says_what_the_prompt_takes(summary_as: Any) -> None:
    """To the token, wherever the summary stands."""
    memory = chat(12)
    compacted(memory, 4)
    prompt = compose(memory, budget=9_000, system="Be brief.", summary_as=summary_as)
    status = budget_status(memory, system="Be brief.", summary_as=summary_as)
    assert status.total == prompt.tokens == prompt.report.tokens_before == count_prompt(prompt.messages, count_tokens)


def test_a_place_that_there_is_not_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ValueError, match="'system', 'user' or 'header', not 'assistant'"):
        compose(memory_of(user()), budget=100, summary_as="assistant")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'header'"):
        budget_status(memory_of(user()), summary_as="assistant")  # type: ignore[arg-type]
