"""A chat loop in OpenAI's message format, with tool calls: append what happens, compose what the model reads.

Runs offline: ``ask_model`` stands for ``client.chat.completions.create(model=..., messages=messages, tools=...)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from compactor import CompactorConfig, ContextCompactor, Memory, compose

Message = dict[str, Any]


def ask_model(messages: Sequence[Mapping[str, Any]]) -> Message:
    """Answer as a model would: look a number up first, then say what was found."""
    newest = messages[-1]
    if newest["role"] == "tool":
        return {"role": "assistant", "content": f"Order {json.loads(newest['content'])['order']} is on its way."}
    call = {"name": "find_order", "arguments": json.dumps({"order": newest["content"].split()[-1]})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{len(messages)}", "type": "function", "function": call}],
    }


def find_order(arguments: str) -> str:
    return json.dumps({"order": json.loads(arguments)["order"], "state": "shipped", "scans": ["depot", "truck"] * 40})


def turn(memory: Memory, query: str) -> str:
    """Return the assistant's answer to *query*, tools used on the way."""
    memory.append({"role": "user", "content": query})
    while True:
        message = ask_model(compose(memory, budget=3_000).messages)
        memory.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            result = find_order(call["function"]["arguments"])
            memory.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def main() -> None:
    memory = Memory("support")
    memory.append({"role": "system", "content": "You help customers with their orders."})
    config = CompactorConfig(prompt_template_path="assistant", max_tokens=3_000)
    with ContextCompactor.for_role(memory, "assistant", config) as compactor:
        for number in range(1, 25):
            print(turn(memory, f"Where is order 10{number:02}"))
        compactor.wait_idle(timeout=30)  # for the figures below only

    raw = compose(Memory.from_messages(memory.messages()), budget=10**9)
    prompt = compose(memory, budget=3_000)
    print(f"\n{raw.tokens} tokens in all, {prompt.tokens} in the prompt, which begins:")
    for message in prompt.messages[:3]:
        print(f"  {message['role']}: {str(message.get('content'))[:100]!r}")


if __name__ == "__main__":
    main()
