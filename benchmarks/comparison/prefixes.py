"""What a provider's prefix cache would have found of each request: 1,024 tokens, and then in steps of 128."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from compactor import count_message, count_tokens
from compactor.tokens import MESSAGE_TOKENS, PROMPT_TOKENS

__all__ = ["LEAST", "LIFETIME", "STEP", "Prefixes", "reusable", "shown"]

#: No shorter beginning is found again; longer ones by so many tokens more.
LEAST, STEP = 1_024, 128
#: Seconds for which a beginning that nobody asks for is kept.
LIFETIME = 300.0


def reusable(tokens: int) -> int:
    """Return how many of *tokens* that two requests share the cache gives."""
    return LEAST + (tokens - LEAST) // STEP * STEP if tokens >= LEAST else 0


def shown(message: Mapping[str, Any]) -> str:
    """Return a message as the model reads it: the same for content as text and as parts of text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in content)
    calls = "".join(
        f"\n{call.get('id')} {call['function'].get('name')}({call['function'].get('arguments')})"
        for call in message.get("tool_calls") or ()
    )
    answers = f" {message['tool_call_id']}" if message.get("tool_call_id") else ""
    return f"{message.get('role')}{answers}\n{content or ''}{calls}"


@dataclass(slots=True)
class _Place:
    """What followed one beginning, so far."""

    next: dict[str, _Place] = field(default_factory=dict)
    asked: float = 0.0


class Prefixes:
    """Remembers the requests to each model, and says how much of a new one they began with."""

    def __init__(self, lifetime: float = LIFETIME) -> None:
        self._lifetime = lifetime
        self._models: dict[str, _Place] = {}

    def taken(
        self, model: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], now: float
    ) -> tuple[int, int]:
        """Return the input tokens of a request, and how many of them the cache had; remember it."""
        defined = json.dumps(list(tools))
        parts = [(defined, _tool_tokens(defined))] if tools else []
        parts += [(shown(message), _tokens(message)) for message in messages]
        place = self._models.setdefault(model, _Place())
        found, still = 0, True
        for text, tokens in parts:
            known = place.next.get(text)
            if still and known is not None and now - known.asked <= self._lifetime:
                found += tokens
            elif still:
                found += min(self._partly(place, text, now), tokens)
                still = False
            if known is None:
                known = place.next[text] = _Place()
            known.asked = now
            place = known
        return sum(tokens for _, tokens in parts) + PROMPT_TOKENS, reusable(found)

    def _partly(self, place: _Place, text: str, now: float) -> int:
        """Return the tokens that *text* has in common with the beginning of what else stood there."""
        head = text[:64]
        longest = 0
        for other, known in place.next.items():
            if other[:64] == head and now - known.asked <= self._lifetime:
                longest = max(longest, _common(other, text))
        return count_tokens(text[:longest]) if longest else 0


def _common(first: str, second: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _tokens(message: Mapping[str, Any]) -> int:
    return _counted(json.dumps(message, sort_keys=True))


@lru_cache(maxsize=65_536)
def _counted(message: str) -> int:
    return count_message(json.loads(message), count_tokens)


@lru_cache(maxsize=64)
def _tool_tokens(tools: str) -> int:
    """Return what the definitions of tools take: counted one by one, as ``compose`` does."""
    return sum(MESSAGE_TOKENS + count_tokens(json.dumps(tool, ensure_ascii=False)) for tool in json.loads(tools))
