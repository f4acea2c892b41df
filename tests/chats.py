"""Chats for tests, and what every prompt must keep to."""

from __future__ import annotations

import json
import re
from typing import Any

from compactor import Prompt, TokenCounter, count_prompt, count_tokens
from memory import CompactedMessage, Memory

Message = dict[str, Any]


def user(text: str = "q") -> Message:
    return {"role": "user", "content": text}


def answer(text: str = "a") -> Message:
    return {"role": "assistant", "content": text}


def calls(*ids: str, arguments: str = "{}") -> Message:
    made = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": arguments}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id_: str, text: str = "r") -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def words(count: int) -> str:
    """Return a text of exactly *count* tokens."""
    return "word" + " word" * (count - 1) if count else ""


def memory_of(*messages: Message) -> Memory:
    return Memory.from_messages(messages, "session")


def chat(rounds: int, tokens: int = 20) -> Memory:
    """Return a session of *rounds* rounds, two messages each, all of one length but the numbers in them."""
    memory = Memory()
    for number in range(1, rounds + 1):
        memory.append(user(f"question {number:05} {words(tokens)}"))
        memory.append(answer(f"answer {number:05} {words(tokens)}"))
    return memory


def compacted(memory: Memory, end: int, summary: str = "They greeted.", role: str = "assistant") -> None:
    """Publish a compaction of the first *end* visible rounds."""
    rounds, current = memory.get_role_rounds(role)
    new = rounds[current.end_index if current else 0 : end]
    made = CompactedMessage(start_index=1, end_index=end, summary=summary, end_round_id=new[-1].id)
    base = memory.journal(role).read().generation
    memory.journal(role).publish(made, base=base, round_ids=[round_.id for round_ in new])


def ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def assert_paired(messages: list[Message]) -> None:
    """Each call is followed by all its results and nothing else, and each result answers a call; the newest calls may
    wait."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result that answers no call"
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, "a call without its result"
            waiting = ids(message)


def assert_legal(prompt: Prompt, budget: int, count: TokenCounter = count_tokens) -> None:
    """The prompt is within its budget by its own count, which is true, and a provider would take it."""
    assert prompt.tokens == count_prompt(prompt.messages, count)
    assert prompt.report.tokens_after == prompt.tokens <= budget
    assert_paired(prompt.messages)
    for message in prompt.messages:
        for call in message.get("tool_calls") or ():
            if "left_out" in call.get("function", {}).get("arguments", ""):
                json.loads(call["function"]["arguments"])


def contents(prompt: Prompt) -> list[Any]:
    return [message.get("content") for message in prompt.messages]


def note_of(prompt: Prompt) -> str:
    """Return the line that says what is left out; empty where there is none."""
    lines = [message["content"] for message in prompt.messages if message["role"] == "system"]
    return next((line for line in lines if isinstance(line, str) and line.startswith("[Left out here")), "")


def left_out_texts(memory: Memory, prompt: Prompt) -> str:
    """Return all that the line's references reload."""
    note = note_of(prompt)
    refs = re.findall(r"reload (r\d+(?:-r\d+)?)", note)
    if found := re.search(r"posts from r(\d+)\.p(\d+) to r(\d+)\.p(\d+)", note):
        first, start, last, stop = map(int, found.groups())
        for round_ in memory.conversation.rounds[first - 1 : last]:
            places = range(len(round_.post_list) + 1)
            low = start if round_.number == first else 0
            high = stop if round_.number == last else places[-1]
            refs += [f"r{round_.number}.p{place}" for place in places if low <= place <= high]
    return "\n".join(map(memory.reload, refs))
