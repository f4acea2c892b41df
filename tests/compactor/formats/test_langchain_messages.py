"""LangChain's messages as chat messages and back, by their attributes alone: LangChain need not be installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from compactor.formats import UnknownFormat
from compactor.formats.langchain import from_chat, to_chat
from compactor.formats.parts import dump_json, make_content, make_jsonable, read_calls, read_file
from memory.messages import NATIVE


@dataclass
class Said:
    """A message with the attributes that LangChain's have."""

    type: str
    content: Any = ""
    name: str | None = None
    role: str = ""
    tool_calls: Any = ()
    invalid_tool_calls: Any = ()
    additional_kwargs: dict[str, Any] = field(default_factory=dict)
    response_metadata: dict[str, Any] = field(default_factory=dict)
    tool_call_id: str = ""
    status: str = "success"


CALL = {"name": "look", "args": {"row": 1}, "id": "c1"}
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"row": 1}'}}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (Said("human", "What?"), {"role": "user", "content": "What?"}),
        (Said("human", "What?", name="Ann"), {"role": "user", "content": "What?", "name": "Ann"}),
        (Said("HumanMessageChunk", "What?"), {"role": "user", "content": "What?"}),
        (Said("system", "Be brief."), {"role": "system", "content": "Be brief."}),
        (Said("chat", "x", role="assistant"), {"role": "assistant", "content": "x"}),
        (Said("chat", "x", role="critic"), {"role": "user", "content": "x"}),
        (Said("function", "y", name="f"), {"role": "function", "content": "y", "name": "f"}),
        (Said("tool", "row", tool_call_id="c1"), {"role": "tool", "content": "row", "tool_call_id": "c1"}),
        (Said("ai", [{"type": "text", "text": "Yes."}]), {"role": "assistant", "content": "Yes."}),
        (Said("ai", "", tool_calls=[CALL]), {"role": "assistant", "content": "", "tool_calls": [LOOK]}),
        (
            Said("ai", [{"type": "tool_use", "id": "c1", "name": "look", "input": {"row": 1}}]),
            {"role": "assistant", "content": "", "tool_calls": [LOOK]},
        ),
        (
            Said("ai", [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}], tool_calls=[CALL]),
            {"role": "assistant", "content": "", "tool_calls": [LOOK]},
        ),
        (
            Said("ai", "No.", additional_kwargs={"refusal": "No."}),
            {"role": "assistant", "content": "No.", "refusal": "No."},
        ),
        (Said("human", ["Look:", {"cachePoint": {}}]), {"role": "user", "content": "Look:"}),
        (
            Said("human", [{"type": "search", "title": "T"}]),
            {"role": "user", "content": '{"type": "search", "title": "T"}'},
        ),
    ],
)
def test_a_message_is_read_by_what_it_says(said: Said, message: dict[str, Any]) -> None:
    assert to_chat([said]) == [message]


def test_a_call_without_an_id_stands_in_the_text() -> None:
    """No result can answer it."""
    (read,) = to_chat([Said("ai", "I look.", tool_calls=[{**CALL, "id": None}])])
    assert read["content"] == [
        {"type": "text", "text": "I look."},
        {"type": "text", "text": '[call of look({"row": 1})]'},
    ]
    assert "tool_calls" not in read


def test_a_call_that_could_not_be_parsed_is_a_call() -> None:
    """Its result answers it."""
    broken = {"name": "look", "args": '{"row": ', "id": "c1", "type": "invalid_tool_call"}
    (read,) = to_chat([Said("ai", [broken], invalid_tool_calls=[broken])])
    assert [(call["id"], call["function"]["arguments"]) for call in read["tool_calls"]] == [("c1", '{"row": ')]


def test_what_a_chat_message_cannot_say_comes_back() -> None:
    """Signed thinking, a status, arguments of LangChain's own."""
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    metadata = {"model_provider": "anthropic", "id": "m1"}
    answer = Said("ai", [thought, {"type": "text", "text": "I look."}], tool_calls=[CALL], response_metadata=metadata)
    answer.additional_kwargs = {"parsed": None, "cache": True}
    failed = Said("tool", "no row", tool_call_id="c1", status="error")

    written, result = from_chat(to_chat([answer, failed]))

    assert written["type"] == "ai"
    assert written["data"]["content"] == [thought, {"type": "text", "text": "I look."}]
    assert written["data"]["tool_calls"] == [{"id": "c1", "name": "look", "args": {"row": 1}}]
    assert written["data"]["additional_kwargs"] == {"cache": True}
    assert written["data"]["response_metadata"] == {"model_provider": "anthropic"}
    assert (result["type"], result["data"]["status"], result["data"]["tool_call_id"]) == ("tool", "error", "c1")


def test_reasoning_of_openai_goes_where_its_answer_is_written_anew() -> None:
    """It is refused without the very items that came behind it."""
    reasoning = {"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}
    (written,) = from_chat(to_chat([Said("ai", [reasoning, {"type": "text", "text": "Yes."}])]))
    assert written["data"]["content"] == "Yes."


@pytest.mark.parametrize(("role", "kind"), [("user", "human"), ("developer", "system"), ("function", "function")])
def test_each_role_is_written_as_its_kind(role: str, kind: str) -> None:
    (written,) = from_chat([{"role": role, "content": "x", "name": "f"}])
    assert (written["type"], written["data"]["content"], written["data"]["name"]) == (kind, "x", "f")


def test_a_message_of_another_release_is_refused() -> None:
    (read,) = to_chat([Said("tool", "no", tool_call_id="c1", status="error")])
    with pytest.raises(UnknownFormat, match="another release"):
        from_chat([{**read, NATIVE: {**read[NATIVE], "v": 999}}])


PNG, URL = "iVBORw0KGgo=", "https://example.org/a"


@pytest.mark.parametrize(
    ("block", "kind", "said"),
    [
        ({"type": "image", "base64": PNG, "mime_type": "image/png"}, "image_url", f"data:image/png;base64,{PNG}"),
        ({"type": "image", "url": URL}, "image_url", URL),
        ({"image": {"format": "png", "source": {"bytes": b"\x89PNG\r\n\x1a\n"}}}, "image_url", "data:image/png"),
        ({"type": "media", "data": b"\0", "mime_type": "video/mp4"}, "file", "data:video/mp4;base64,AA=="),
        ({"type": "media", "file_uri": "gs://b/f", "mime_type": "application/pdf"}, "file", "gs://b/f"),
        ({"type": "file", "file_id": "f1"}, "file", "f1"),
        ({"type": "image_url", "image_url": {"url": URL}, "cache_control": {}}, "image_url", URL),
        ({"type": "input_image", "image_url": URL}, "input_image", URL),
    ],
)
def test_a_file_is_found_in_every_providers_words(block: dict[str, Any], kind: str, said: str) -> None:
    part = read_file(block)
    assert part is not None
    assert part["type"] == kind
    assert said in str(part)
    assert "cache_control" not in part


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "x"},
        {"type": "document", "source": {"media_type": "text/plain", "data": "words"}},
        {"type": "image"},
    ],
)
def test_what_holds_no_file_is_none(block: dict[str, Any]) -> None:
    assert read_file(block) is None


def test_what_json_cannot_say_becomes_text() -> None:
    loop: dict[str, Any] = {}
    loop["itself"] = loop
    assert dump_json("as it is") == "as it is"
    assert dump_json({"x": 1}) == '{"x": 1}'
    assert '"itself"' in dump_json(loop)
    assert make_jsonable({1: b"\0", "big": 10**400, "wide": 1e301, "all": (1, None, True)}) == {
        "1": "AA==",
        "big": hex(10**400),
        "wide": "1e+301",
        "all": [1, None, True],
    }


def test_a_content_is_one_text_unless_it_has_files() -> None:
    file = {"type": "image_url", "image_url": {"url": URL}}
    assert make_content("x") == "x"
    assert make_content(["x", "", "y"]) == "xy"
    assert make_content(["x", file]) == [{"type": "text", "text": "x"}, file]


def test_calls_are_read_with_their_arguments() -> None:
    assert read_calls({"role": "assistant", "tool_calls": [LOOK]}) == [("c1", "look", {"row": 1})]
    assert read_calls({"role": "user", "content": "x"}) == []
