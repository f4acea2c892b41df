"""Calls and results as AgentScope and Anthropic write them are shortened like all others, and keep their form."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from chats import Message, answer, user
from views import view_of

from compactor import compose, offload_large
from compactor.presets import AutoContextMemory, OffloadFiles, offload_context
from memory import Memory

ROWS = " ".join(f"row{number}" for number in range(900))
#: Where the text of a result stands, in what form, and who hands it on.
FORMS = [
    ("user", "content", ROWS),
    ("user", "content", [{"type": "text", "text": ROWS}]),
    ("system", "output", ROWS),
    ("system", "output", [{"type": "text", "text": ROWS}]),
]


def call(call_id: str) -> Message:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "find", "input": {"at": 1}}]}


def result(call_id: str, role: str, key: str, text: Any) -> Message:
    id_key = "tool_use_id" if key == "content" else "id"
    return {"role": role, "content": [{"type": "tool_result", id_key: call_id, key: text}]}


def talk(form: tuple[str, str, Any]) -> list[Message]:
    found = [user("Find P-1.")]
    for number in range(4):
        found += [call(f"c{number}"), result(f"c{number}", *form)]
    return [*found, answer("It is in D1."), user("And P-2?"), answer("In D2."), user("And now?")]


def parts(messages: Iterable[Message], kind: str) -> list[dict[str, Any]]:
    found = [message["content"] for message in messages if not isinstance(message["content"], str)]
    return [part for content in found for part in content if part["type"] == kind]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [part.get("tool_use_id", part.get("id")) for part in found]


@pytest.mark.parametrize("form", FORMS)
def test_a_large_result_is_offloaded_in_its_form(form: tuple[str, str, Any]) -> None:
    """Its call is a part, and so it stays one; the reference gives back all of its words."""
    memory = Memory.from_messages(talk(form), "s")
    with AutoContextMemory(
        memory, max_token=8_000, large_payload_threshold=500, min_consecutive_tool_messages=9
    ) as context:
        assert context.compactor.wait_idle(20)
    shown = context.get_messages()
    results = parts(shown, "tool_result")
    assert context.compression_events[0].event_type.startswith("LARGE_MESSAGE_OFFLOAD")
    assert ids(parts(shown, "tool_use")) == ids(results) == ["c0", "c1", "c2", "c3"]
    assert all(part[form[1]].startswith("row0 row1 ") and "reload r1.p" in part[form[1]] for part in results)
    assert context.reload("r1.p2") == [result("c0", *form)]
    assert context.get_original_memory_msgs() == talk(form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("budget", [400, 1_500, 8_000])
def test_a_prompt_that_fits_has_each_result_beside_its_call(form: tuple[str, str, Any], budget: int) -> None:
    """However small it is: no part is left without the other."""
    prompt = compose(Memory.from_messages(talk(form)), budget=budget)
    assert prompt.tokens <= budget
    assert ids(parts(prompt.messages, "tool_use")) == ids(parts(prompt.messages, "tool_result"))


@pytest.mark.parametrize("form", FORMS)
def test_plain_messages_are_compacted_in_their_form(form: tuple[str, str, Any], tmp_path: Path) -> None:
    """The preview and the file's name replace the result."""
    made = offload_context(
        talk(form),
        context_manage_mode="compact",
        max_total_tokens=1_000,
        max_tool_message_tokens=500,
        keep_recent_count=0,
        store_dir=tmp_path,
    )
    results = parts(made.messages, "tool_result")
    assert ids(results) == ["c0", "c1", "c2", "c3"]
    assert made.tokens_after < 2_000 < made.tokens_before
    for part in results:
        assert any(path in part[form[1]] for path in made.write_file_dict)
    assert OffloadFiles(tmp_path).grep("row17 ").startswith("[grep: 4 lines")
    again = offload_context(made.messages, context_manage_mode="compact", max_total_tokens=10, store_dir=tmp_path)
    assert again.messages == made.messages


@pytest.mark.parametrize("form", FORMS)
def test_a_result_is_no_system_message(form: tuple[str, str, Any]) -> None:
    """AgentScope hands results on as system messages; a summary may stand for them all the same."""
    made = offload_context(talk(form), context_manage_mode="compress", max_total_tokens=1_500)
    assert made.over == 0
    assert parts(made.messages, "tool_result") == parts(made.messages, "tool_use") == []


def test_results_that_hold_more_than_text_stay() -> None:
    """A picture is not in any text that would be kept; two results in one message have one place."""
    picture = [{"type": "text", "text": ROWS}, {"type": "image", "source": {"data": "aGk="}}]
    both = [*result("a", "user", "content", ROWS)["content"], *result("b", "user", "content", ROWS)["content"]]
    for told in (result("a", "user", "content", picture), {"role": "user", "content": both}):
        messages = [user("Find P-1."), call("a"), told, answer("It is in D1."), user("And now?")]
        made = offload_context(messages, context_manage_mode="compact", max_total_tokens=10, keep_recent_count=0)
        assert made.messages == messages
        memory = Memory.from_messages(messages)
        assert list(offload_large(500, 0)(view_of(memory))) == []
