"""The proxy below agents: the official clients call tools through it, streaming and not, and see what they see without
it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic import Anthropic
from model_server import Exchange, ModelServer
from openai import OpenAI
from proxied import KEY, WORDS, proxy

from compactor import count_prompt, get_counter

TURNS = 5
Events = list[dict[str, Any]]
RESPONSES_TOOL: Any = {
    "type": "function",
    "name": "load",
    "description": "Load a part.",
    "parameters": {"type": "object", "properties": {"part": {"type": "integer"}}, "additionalProperties": False},
    "strict": False,
}
MESSAGES_TOOL: Any = {
    "name": "load",
    "description": "Load a part.",
    "input_schema": {"type": "object", "properties": {"part": {"type": "integer"}}},
}


# -- a model that calls a tool after each question, and then answers -------------------------------------------------------


def respond(exchange: Exchange) -> None:
    """Answer like the Responses API."""
    body, number = exchange.request.body, exchange.number
    last = body["input"][-1] if isinstance(body["input"], list) else {"role": "user"}
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAA"}
    if last.get("role") == "user":
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "load"}
        output = [thought, call | {"arguments": '{"part": 1}', "status": "completed"}]
    else:
        part = {"type": "output_text", "text": f"{number} parts are loaded.", "annotations": [], "logprobs": []}
        said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        output = [thought, said | {"content": [part]}]
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m", "output": output}
    whole |= {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}
    if not body.get("stream"):
        exchange.send(200, json.dumps(whole))
        return
    events: Events = [{"type": "response.created", "response": whole | {"output": [], "status": "in_progress"}}]
    for index, item in enumerate(output):
        at = {"output_index": index}
        open_ = {"arguments": ""} if "arguments" in item else {"content": []} if "content" in item else {}
        events.append({"type": "response.output_item.added", "item": item | open_, **at})
        at |= {"item_id": item["id"]}
        if "arguments" in item:
            name = "response.function_call_arguments"
            events += [{"type": f"{name}.delta", "delta": piece, **at} for piece in ('{"part"', ": 1}")]
            events.append({"type": f"{name}.done", "arguments": item["arguments"], "name": "load", **at})
        for part in item.get("content", ()):
            at |= {"content_index": 0}
            text = part["text"]
            events.append({"type": "response.content_part.added", "part": part | {"text": ""}, **at})
            for piece in (text[:5], text[5:]):
                events.append({"type": "response.output_text.delta", "delta": piece, "logprobs": [], **at})
            events.append({"type": "response.output_text.done", "text": text, "logprobs": [], **at})
            events.append({"type": "response.content_part.done", "part": part, **at})
        events.append({"type": "response.output_item.done", "item": item, "output_index": index})
    events.append({"type": "response.completed", "response": whole})
    _stream(exchange, [one | {"sequence_number": place} for place, one in enumerate(events)])


def answer_messages(exchange: Exchange) -> None:
    """Answer like Anthropic's Messages API."""
    body, number = exchange.request.body, exchange.number
    if exchange.request.path.partition("?")[0].endswith("/count_tokens"):
        exchange.send(200, json.dumps({"input_tokens": len(body["messages"])}))
        return
    last = body["messages"][-1]["content"]
    blocks: Events = [{"type": "thinking", "thinking": "Let me see.", "signature": f"sig{number}"}]
    if isinstance(last, list) and last[-1]["type"] == "tool_result":
        blocks.append({"type": "text", "text": f"{number} parts are loaded."})
    else:
        blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": "load", "input": {"part": 1}})
    reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    whole = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    whole |= {"stop_reason": reason, "stop_sequence": None, "usage": usage}
    if not body.get("stream"):
        exchange.send(200, json.dumps(whole))
        return
    events: Events = [{"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}]
    for index, block in enumerate(blocks):
        empty, deltas = {
            "thinking": (
                {"thinking": "", "signature": ""},
                [
                    {"type": "thinking_delta", "thinking": "Let me see."},
                    {"type": "signature_delta", "signature": block.get("signature")},
                ],
            ),
            "text": ({"text": ""}, [{"type": "text_delta", "text": block.get("text")}]),
            "tool_use": (
                {"input": {}},
                [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"pa', 'rt": 1}')],
            ),
        }[block["type"]]
        events += [{"type": "content_block_start", "index": index, "content_block": block | empty}, {"type": "ping"}]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": reason, "stop_sequence": None}
    events += [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
    _stream(exchange, events)


def _stream(exchange: Exchange, events: Events) -> None:
    exchange.start(200, {"Content-Type": "text/event-stream", "Connection": "close"})
    for event in events:
        exchange.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


# -- agents --------------------------------------------------------------------------------------------------------------


def ask_responses(url: str, turns: int, *, stream: bool) -> list[Any]:
    """Return the answers and events that OpenAI's client sees; the agent sends its whole history each time."""
    history, seen = list[Any](), list[Any]()
    with OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            history.append({"role": "user", "content": f"{turn}: load a part. {WORDS * 3}"})
            for _ in range(2):
                given: Any = {"model": "gpt-4o-mini", "input": history, "tools": [RESPONSES_TOOL], "store": False}
                if stream:
                    with client.responses.stream(**given, include=["reasoning.encrypted_content"]) as events:
                        seen += [event.model_dump(warnings=False) for event in events]
                        answer: Any = events.get_final_response()
                else:
                    answer = client.responses.create(**given)
                seen.append(answer.model_dump(warnings=False))
                for item in answer.output:
                    history.append(
                        item.model_dump(mode="json", exclude_none=True, exclude={"parsed_arguments"}, warnings=False)
                    )
                    if item.type == "function_call":
                        result = {"type": "function_call_output", "call_id": item.call_id, "output": WORDS * 2}
                        seen.append(item.arguments)
                if answer.output_text:
                    break
                history.append(result)
    return seen


def ask_messages(url: str, turns: int, *, stream: bool) -> list[Any]:
    """Return the answers and events that Anthropic's client sees."""
    history, seen = list[Any](), list[Any]()
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    with Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        for turn in range(turns):
            history.append({"role": "user", "content": f"{turn}: load a part. {WORDS * 3}"})
            for _ in range(2):
                given: Any = {"model": "claude-haiku-4-5", "messages": history, "tools": [MESSAGES_TOOL]}
                given |= {"system": system, "thinking": {"type": "enabled", "budget_tokens": 1_024}}
                seen.append(client.messages.count_tokens(**given).input_tokens)
                if stream:
                    with client.messages.stream(**given, max_tokens=2_000) as events:
                        seen += [event.model_dump(warnings=False) for event in events]
                        answer: Any = events.get_final_message()
                else:
                    answer = client.messages.create(**given, max_tokens=2_000)
                seen.append(answer.model_dump(warnings=False))
                history.append({"role": "assistant", "content": [one.model_dump() for one in answer.content]})
                if answer.stop_reason != "tool_use":
                    break
                result = {"type": "tool_result", "tool_use_id": answer.content[-1].id, "content": WORDS * 2}
                history.append({"role": "user", "content": [result]})
    return seen


def list_pairs(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the ids of the calls in a request, and of the results."""
    blocks = list[dict[str, Any]]()
    for item in body.get("input", body.get("messages")):
        content = item.get("content")
        blocks += [item, *(content if isinstance(content, list) else ())]
    calls = [one.get("call_id", one.get("id")) for one in blocks if one.get("type") in ("function_call", "tool_use")]
    results = ("function_call_output", "tool_result")
    return calls, [one.get("call_id", one.get("tool_use_id")) for one in blocks if one.get("type") in results]


AGENTS = pytest.mark.parametrize(
    ("ask", "answer"), [(ask_responses, respond), (ask_messages, answer_messages)], ids=["responses", "messages"]
)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@AGENTS
def test_an_agent_with_tools_sees_what_it_sees_without_the_proxy(
    ask: Callable[..., list[Any]], answer: Callable[[Exchange], None], stream: bool
) -> None:
    """Every event and every answer; its requests arrive as they are, or shortened to the budget with whole calls."""
    seen, bodies = list[list[Any]](), list[list[Any]]()
    for budget in (None, 100_000, 600):
        with ModelServer("") as model:
            model.always(answer)
            if budget is None:
                seen.append(ask(model.base_url.removesuffix("/v1"), TURNS, stream=stream))
            else:
                with proxy(model, budget=budget) as (url, _):
                    seen.append(ask(url, TURNS, stream=stream))
            bodies.append([(one.path, one.body) for one in model.requests])
    assert seen[0] == seen[1] == seen[2]
    assert bodies[0] == bodies[1]
    shortened = 0
    for (path, whole), (_, body) in zip(bodies[0], bodies[2], strict=True):
        if path.endswith("count_tokens"):
            assert body == whole
            continue
        key = "input" if "input" in body else "messages"
        calls, results = list_pairs(body)
        assert calls == results
        assert {name: value for name, value in body.items() if name not in (key, "system")} == {
            name: value for name, value in whole.items() if name not in (key, "system")
        }
        assert body[key][-1] == whole[key][-1]
        said = [{"role": "user", "content": json.dumps(body[key])}]
        shortened += count_prompt(said, get_counter("gpt-4o-mini")) < count_prompt(
            [{"role": "user", "content": json.dumps(whole[key])}], get_counter("gpt-4o-mini")
        )
    assert shortened >= 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_that_the_provider_keeps_is_the_providers(stream: bool) -> None:
    """Each request names the one before, and has only what is new."""
    with ModelServer("") as model, proxy(model, budget=300) as (url, state):
        model.always(respond)
        with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
            given: Any = {"model": "gpt-4o-mini", "tools": [RESPONSES_TOOL]}
            before = client.responses.create(**given, input="Load all.")
            for number in range(5):
                (call,) = [one for one in before.output if one.type == "function_call"] or [None]
                new: list[Any] = [{"role": "user", "content": f"And part {number}? {WORDS * 20}"}]
                if call is not None:
                    new.insert(0, {"type": "function_call_output", "call_id": call.call_id, "output": WORDS * 20})
                given["previous_response_id"] = before.id
                if stream:
                    with client.responses.stream(**given, input=new) as events:
                        before = events.get_final_response()
                else:
                    before = client.responses.create(**given, input=new)
                sent = model.requests[-1].body
                assert (sent["previous_response_id"], sent["input"]) == (given["previous_response_id"], new)
        assert list(state.sessions.store.sessions()) == []
