"""Conversations that `offload_context` shortens."""

from __future__ import annotations

from typing import Any

from chats import Message, answer, calls, result, user, words

from compactor import count_prompt, count_tokens
from compactor.presets import OffloadResult, offload_context
from compactor.testing import ScriptedSummarizer

SYSTEM = {"role": "system", "content": "Be brief."}
OPENING = "<state_snapshot>\n"


def tokens_of(messages: list[Message]) -> int:
    return count_prompt(messages, count_tokens)


def compress(messages: list[Message], **options: Any) -> OffloadResult:
    return offload_context(messages, **{"context_manage_mode": "compress", "max_total_tokens": 1_000} | options)


def snapshots(messages: list[Message]) -> list[Message]:
    return [message for message in messages if str(message["content"]).startswith(OPENING)]


def agent_at_work(steps: int, size: int = 300) -> list[Message]:
    """A question and that many calls, each with a result of *size* tokens."""
    worked = [SYSTEM, user("Which item is cheapest?")]
    for number in range(steps):
        worked += [calls(f"call_{number}"), result(f"call_{number}", f"item-{number} {words(size)}")]
    return worked


#: Says something of ``chat``, whichever of its rounds it covers.
ASKED = "The user asked numbered questions, and each got its answer."


def chat(rounds: int, size: int = 100) -> list[Message]:
    talk = [SYSTEM]
    for number in range(rounds):
        talk += [user(f"Question {number}? {words(size)}"), answer(f"Answer {number}. {words(size)}")]
    return talk


ORDERS = range(40)
#: A summary of some 800 tokens with a fact in each line.
FACTS = "\n".join(f"- Order A-{number:04} went to depot D{number % 9} for {number * 7} EUR." for number in ORDERS)
LIMITS: Any = {"max_total_tokens": 3_000, "target_tokens": 1_000}


def orders(size: int = 60) -> list[Message]:
    """A conversation that has those facts."""
    talk = [SYSTEM]
    for number in ORDERS:
        talk.append(user(f"Where is order A-{number:04}? {words(size)}"))
        talk.append(answer(f"It is in depot D{number % 9} and costs {number * 7} EUR. {words(size)}"))
    return talk


def summarised() -> list[Message]:
    """A snapshot full of facts, and the newest answer."""
    made = compress(orders(), **LIMITS, summarizer=ScriptedSummarizer([FACTS]))
    assert FACTS in snapshots(made.messages)[0]["content"]
    return made.messages
