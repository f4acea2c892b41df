"""What the summarizer of the comparison answers: every fact that it reads, and plain words up to one length.

Better than any model at what is counted here, and the same for all: so what is lost was lost by who asked.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from compactor import count_tokens

from .facts import Depths, raw_in, told_in
from .prefixes import shown

__all__ = ["FakeModel", "asks_for_changes"]

_WORDS = (
    "the user asked about a delivery and wanted to know when it comes then the order was found in the list and its"
    " state was told while another question came up that had to wait until more is known of the cause which was"
    " settled later after both had looked at it again and agreed on how to go on with what was left"
)
_WORD = re.compile(r"\b[A-Za-z]{5,}\b")
#: Words in a sentence, at most.
_SENTENCE = 24
#: Where a summary has the facts, and what else happened.
_KEPT, _DONE = "Goal", "Done"
_CHANGES = re.compile(r"\b(add|replace|remove)\b.*\b(add|replace|remove)\b.*\b(add|replace|remove)\b", re.DOTALL)


def asks_for_changes(body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for changes of numbered notes rather than for a summary."""
    last = shown(body["messages"][-1]) if body.get("messages") else ""
    return "numbered" in last.lower() and "notes" in last.lower() and _CHANGES.search(last) is not None


class FakeModel:
    """Answers requests with summaries of *summary_tokens*; with *change_words* beside new facts where it is asked for
    changes."""

    def __init__(self, summary_tokens: int = 400, change_words: int = 100) -> None:
        self.depths = Depths()
        self._summary_tokens, self._change_words = summary_tokens, change_words
        self._answers = 0

    def answered(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message that answers *body*: a text, the JSON or the call of a tool that it insists on."""
        self._answers += 1
        text = "\n".join(shown(message) for message in body.get("messages") or ())
        raw, told = raw_in(text), told_in(text)
        # A model that is told no fact speaks in the conversation's words: what says nothing of it is no summary.
        words = _WORDS if raw or told else " ".join(_WORD.findall(text)) or _WORDS
        if asks_for_changes(body):
            new = {key: value for key, value in raw.items() if told.get(key) != value}
            self.depths.written(new, raw)
            return _said(self._changes(new, words))
        facts = told | raw
        self.depths.written(facts, raw)
        summary = self._summary(facts, words)
        if (tool := _forced_tool(body)) is not None:
            return _called(tool["name"], _filled(tool.get("parameters") or {}, summary), self._answers)
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        return _said(json.dumps(_filled(schema, summary)) if schema else summary)

    def _summary(self, facts: Mapping[str, str], words: str) -> str:
        lines = [f"## {_KEPT}", *_lines(facts), f"## {_DONE}"]
        rng = random.Random(self._answers)
        while (left := self._summary_tokens - count_tokens("\n".join(lines))) > 4:
            lines.append(f"- {_choose(rng, words, min(left - 3, _SENTENCE))}.")
        return "\n".join(lines)

    def _changes(self, facts: Mapping[str, str], vocabulary: str) -> str:
        """Return the new facts and sentences of what was done, as changes of notes."""
        rng, words = random.Random(self._answers), self._change_words
        done = [_choose(rng, vocabulary, min(words - at, _SENTENCE)) for at in range(0, words, _SENTENCE)]
        added = [(_KEPT, line.removeprefix("- ")) for line in _lines(facts)] + [(_DONE, f"{one}.") for one in done]
        return "\n".join(f"add [{section}]: {text}" for section, text in added)


def _choose(rng: random.Random, words: str, count: int) -> str:
    return " ".join(rng.choices(words.split(), k=count))


def _lines(facts: Mapping[str, str]) -> list[str]:
    """Return *facts* as items of a list, four to one."""
    told = [f"{key}={value}" for key, value in sorted(facts.items())]
    return [f"- {', '.join(told[at : at + 4])}" for at in range(0, len(told), 4)]


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _called(name: str, arguments: object, number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_s{number}", "type": "function", "function": function}],
    }


def _forced_tool(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool that the answer has to be a call of; None where a text will do."""
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none") or not body.get("tools"):
        return None
    tools: Sequence[Mapping[str, Any]] = [tool["function"] for tool in body["tools"]]
    wanted = choice["function"]["name"] if isinstance(choice, Mapping) and "function" in choice else tools[0]["name"]
    return next((tool for tool in tools if tool["name"] == wanted), tools[0])


def _filled(schema: Mapping[str, Any], text: str) -> Any:
    """Return an object that fits *schema*, with *text* as the first text in it."""
    left = [text]
    return _value(schema, schema, left)


def _value(schema: Mapping[str, Any], root: Mapping[str, Any], left: list[str]) -> Any:
    if "$ref" in schema:
        found: Any = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return _value(found, root, left)
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return _value(schema[choice][0], root, left)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _value(part, root, left) for name, part in (schema.get("properties") or {}).items()}
        case "array":
            return [_value(schema.get("items") or {"type": "string"}, root, left)] if left else []
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case _:
            return left.pop() if left else ""
