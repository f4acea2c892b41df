"""Random histories that providers accept, for Hypothesis: in each format, with everything that a chat message lacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from compactor import Memory, compose

MANY = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
PLENTY = 10_000_000


def keep(messages: Iterable[Mapping[str, Any]]) -> Memory:
    """Return a Memory with *messages*, as it is after it was stored and loaded."""
    memory = Memory()
    memory.extend(messages)
    return Memory.from_state_dict(json.loads(json.dumps(memory.state_dict())))


def come_back(module: Any, messages: list[Item]) -> Any:
    """Return the request made of *messages* that went through a Memory and a prompt."""
    return module.from_chat(compose(keep(messages), budget=PLENTY).messages)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
TEXTS = st.one_of(
    WORDS.filter(str.strip), st.integers(20, 900).map(lambda count: "The build fails on line 4711 again. " * count)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(WORDS, JSON, max_size=2)
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
MARK = {"cache_control": {"type": "ephemeral"}}
UPLOAD = {"type": "container_upload", "file_id": "file_1"}

Item = dict[str, Any]


def _shuffled(draw: st.DrawFn, item: Item) -> Item:
    """Return *item* with its keys in another order, now and then."""
    return dict(reversed(item.items())) if draw(st.integers(0, 5)) == 0 else item


def find_marked(content: Any) -> list[Item]:
    """Return the blocks in *content* that mark the end of what is cached, also within results."""
    found: list[Item] = []
    for block in content if isinstance(content, list) else ():
        found += [block] if "cache_control" in block else []
        found += find_marked(block.get("content"))
    return found


@st.composite
def anthropic_histories(draw: st.DrawFn) -> tuple[list[Item], Any]:
    """Give messages and ``system``."""
    number = 0
    messages: list[Item] = []

    def text(said: str) -> Item:
        return {"type": "text", "text": said} | (MARK if draw(st.integers(0, 4)) == 0 else {})

    def picture() -> Item:
        source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
        other = {"type": "url", "url": "https://example.org/a.png"}
        return {
            "type": "image",
            "source": draw(st.sampled_from([source, other, {"type": "file", "file_id": "file_1"}])),
        }

    def paper() -> Item:
        source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"}
        given = draw(st.sampled_from([source, {"type": "text", "media_type": "text/plain", "data": "A long report."}]))
        return {"type": "document", "source": given, "title": "Report"} | (MARK if draw(st.booleans()) else {})

    def thinking() -> list[Item]:
        said = draw(WORDS)
        blocks = [{"type": "thinking", "thinking": said, "signature": f"signed {said}"}]
        return draw(st.sampled_from([[], blocks, [*blocks, {"type": "redacted_thinking", "data": "c2VjcmV0"}]]))

    def written(said: str) -> Item:
        return {"type": "text", "text": said}

    def served() -> list[Item]:
        """What tools on the provider's side were asked and gave, and a text that cites it."""
        nonlocal number
        number += 1
        found = {
            "type": "web_search_result",
            "title": "Oslo",
            "url": "https://example.org",
            "encrypted_content": "c2U=",
        }
        asked: Item = {"type": "server_tool_use", "id": f"srvtoolu_{number}"}
        page = {"type": "web_search_result_location", "url": "https://example.org", "title": "Oslo"}
        code: Item = {"type": "code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}
        return draw(
            st.sampled_from(
                [
                    [
                        {**asked, "name": "web_search", "input": {"query": "Oslo"}},
                        {"type": "web_search_tool_result", "tool_use_id": asked["id"], "content": [found]},
                        text("It rains.")
                        | {"citations": [{**page, "cited_text": "rain", "encrypted_index": "aW5kZXg="}]},
                    ],
                    [
                        {**asked, "name": "code_execution", "input": {"code": "print(1)"}},
                        {"type": "code_execution_tool_result", "tool_use_id": asked["id"], "content": code},
                    ],
                ]
            )
        )

    for _ in range(draw(st.integers(1, 5))):
        content: Any = draw(TEXTS)
        if draw(st.booleans()):
            content = [text(content), *draw(st.sampled_from([[], [picture()], [paper(), text("And this?")], [UPLOAD]]))]
        messages.append(_shuffled(draw, {"role": "user", "content": content}))
        if draw(st.integers(0, 6)) == 0:
            messages.append({"role": "user", "content": draw(TEXTS)})
        for _ in range(draw(st.integers(0, 3))):
            ids = [f"toolu_{number + step}" for step in range(draw(st.integers(1, 3)))]
            number += len(ids)
            said = [text(draw(TEXTS))] if draw(st.booleans()) else []
            calls = [
                _shuffled(draw, {"type": "tool_use", "id": one, "name": "look", "input": draw(ARGUMENTS)})
                for one in ids
            ]
            messages.append({"role": "assistant", "content": [*thinking(), *said, *calls]})
            results: list[Item] = []
            for one in draw(st.permutations(ids)):
                result: Item = {"type": "tool_result", "tool_use_id": one}
                given = draw(st.one_of(st.none(), TEXTS, st.sampled_from([[], [text("See:"), picture()]])))
                if draw(st.integers(0, 4)) == 0 and isinstance(given, str):
                    given = [text(given)]
                result |= {} if given is None else {"content": given}
                result |= draw(st.sampled_from([{}, {"is_error": True}, MARK]))
                results.append(_shuffled(draw, result))
            if draw(st.integers(0, 4)) == 0:
                messages += [{"role": "user", "content": [result]} for result in results]
            else:
                more = [text(draw(TEXTS))] if draw(st.integers(0, 4)) == 0 else []
                messages.append({"role": "user", "content": [*results, *more]})
        answer: Any = draw(TEXTS)
        if draw(st.booleans()):
            more = [text("Also.")] if draw(st.booleans()) else []
            answer = [*thinking(), *(served() if draw(st.booleans()) else []), text(answer), *more]
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": "And now?"})
    marked = [block for message in messages for block in find_marked(message["content"])]
    for block in marked[:-3]:  # Anthropic takes four, one of them in the system prompt
        del block["cache_control"]
    system = draw(st.one_of(st.none(), TEXTS, st.lists(TEXTS.map(written), min_size=1, max_size=2)))
    if isinstance(system, list):
        system[-1] |= MARK
    return messages, system


@st.composite
def responses_histories(draw: st.DrawFn) -> tuple[list[Item], str | None]:
    """Give items and ``instructions``."""
    number = 0
    items: list[Item] = []

    def sealed() -> list[Item]:
        nonlocal number
        number += 1
        said = [{"type": "summary_text", "text": draw(WORDS)}]
        one = {"type": "reasoning", "id": f"rs_{number}", "summary": said, "encrypted_content": f"sealed rs_{number}"}
        return [one] if draw(st.booleans()) else []

    def said(text: str) -> Item:
        nonlocal number
        number += 1
        part = {"type": "output_text", "text": text, "annotations": []} | draw(st.sampled_from([{}, {"logprobs": []}]))
        message: Item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        return draw(
            st.sampled_from(
                [
                    {"role": "assistant", "content": text},
                    {**message, "content": [part]},
                    {**message, "content": [part, {"type": "output_text", "text": "Also.", "annotations": []}]},
                    {**message, "content": [{"type": "refusal", "refusal": "No."}]},
                ]
            )
        )

    def served() -> list[Item]:
        """What tools on the provider's side did."""
        nonlocal number
        number += 1
        listed = {"server_label": "mail", "tools": [{"name": "send", "input_schema": {"type": "object"}}]}
        code = {"code": "print(1)", "container_id": "cntr_1", "outputs": [{"type": "logs", "logs": "1"}]}
        called = {"server_label": "mail", "name": "send", "arguments": "{}", "output": "sent"}
        one = draw(
            st.sampled_from(
                [
                    {"type": "web_search_call", "id": "ws_", "action": {"type": "search", "query": "Oslo"}},
                    {"type": "file_search_call", "id": "fs_", "queries": ["Oslo"], "results": None},
                    {"type": "code_interpreter_call", "id": "ci_", **code},
                    {"type": "image_generation_call", "id": "ig_", "result": PICTURE},
                    {"type": "mcp_list_tools", "id": "mcpl_", **listed},
                    {"type": "mcp_call", "id": "mcp_", **called},
                    {"type": "compaction", "id": "cmp_", "encrypted_content": "c2VhbGVk"},
                ]
            )
        )
        status = {} if one["type"].startswith(("mcp", "compaction")) else {"status": "completed"}
        return [{**one, "id": f"{one['id']}{number}", **status}] if draw(st.booleans()) else []

    def asked(text: str) -> Item:
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}", "detail": "low"}
        parts = [{"type": "input_text", "text": text}, *draw(st.sampled_from([[], [picture]]))]
        item = {"role": "user", "content": draw(st.sampled_from([text, parts]))}
        return draw(st.sampled_from([item, {"type": "message", **item}]))

    for _ in range(draw(st.integers(1, 5))):
        items.append(_shuffled(draw, asked(draw(TEXTS))))
        for _ in range(draw(st.integers(0, 3))):
            items += sealed()
            items += [said(draw(TEXTS))] if draw(st.booleans()) else []
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                call: Item = {"type": "function_call", "call_id": f"call_{number}", "name": "look"}
                if draw(st.integers(0, 3)) == 0:
                    call |= {"type": "custom_tool_call", "input": draw(TEXTS)}
                else:
                    call |= {"arguments": json.dumps(draw(ARGUMENTS))}
                call |= draw(st.sampled_from([{}, {"id": f"fc_{number}", "status": "completed"}]))
                calls.append(_shuffled(draw, call))
                items += [*sealed(), calls[-1]]
            for call in draw(st.permutations(calls)):
                output: Any = draw(st.one_of(TEXTS, st.just([{"type": "input_text", "text": "See."}])))
                result = {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}
                items.append(
                    _shuffled(draw, result | draw(st.sampled_from([{}, {"id": "fco", "status": "completed"}])))
                )
        items += [*sealed(), *served(), said(draw(TEXTS))]
    items.append({"role": "user", "content": "And now?"})
    return items, draw(st.none() | TEXTS)


@st.composite
def gemini_histories(draw: st.DrawFn) -> tuple[list[Item], Any]:
    """Give contents and the system instruction."""
    contents: list[Item] = []
    camel = draw(st.booleans())
    call_key, response_key, signature = (
        ("functionCall", "functionResponse", "thoughtSignature")
        if camel
        else ("function_call", "function_response", "thought_signature")
    )
    blob = {"mimeType": "image/png", "data": PICTURE} if camel else {"mime_type": "image/png", "data": PICTURE}
    picture = {"inlineData" if camel else "inline_data": blob}
    there = ("fileUri", "mimeType") if camel else ("file_uri", "mime_type")
    paper = {"fileData" if camel else "file_data": dict(zip(there, ("files/1", "application/pdf"), strict=True))}
    has_ids = draw(st.booleans())
    number = 0
    for _ in range(draw(st.integers(1, 5))):
        shown = [[], [picture], [picture, {"text": "And this?"}], [paper]]
        parts = [{"text": draw(TEXTS)}, *draw(st.sampled_from(shown))]
        contents.append(_shuffled(draw, {"role": "user", "parts": parts}))
        for _ in range(draw(st.integers(0, 3))):
            said: list[Item] = draw(st.sampled_from([[], [{"text": "Hm.", "thought": True}], [{"text": "I look."}]]))
            calls, responses = [], []
            for step in range(draw(st.integers(1, 3))):
                number += 1
                own = {"id": f"id_{number}"} if has_ids else {}
                name = draw(st.sampled_from(["look", "list"]))
                call: Item = {call_key: {**own, "name": name, "args": draw(ARGUMENTS)}}
                calls.append(call | ({signature: "c2lnbmVk"} if step == 0 else {}))
                given = draw(
                    st.one_of(
                        TEXTS.map(lambda text: {"result": text}),
                        TEXTS.map(lambda text: {"output": text}),
                        st.dictionaries(WORDS, JSON, max_size=3),
                    )
                )
                beside = {"parts": [picture]} if draw(st.integers(0, 5)) == 0 else {}
                responses.append({response_key: {**own, "name": name, "response": given, **beside}})
            contents.append({"role": "model", "parts": [*said, *calls]})
            contents.append({"role": "user", "parts": responses})
        signed = {signature: "c2ln"} if draw(st.booleans()) else {}
        ran: list[Item] = [
            {"executableCode" if camel else "executable_code": {"language": "PYTHON", "code": "print(1)"}},
            {"codeExecutionResult" if camel else "code_execution_result": {"outcome": "OUTCOME_OK", "output": "1"}},
        ]
        contents.append({"role": "model", "parts": [*draw(st.sampled_from([[], ran])), {"text": draw(TEXTS)} | signed]})
    contents.append({"role": "user", "parts": [{"text": "And now?"}]})
    system = draw(st.one_of(st.none(), TEXTS, TEXTS.map(lambda text: {"parts": [{"text": text}]})))
    return contents, system
