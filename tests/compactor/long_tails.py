"""Tails that are too long for a prompt."""

from __future__ import annotations

from chats import answer, calls, contents, result, user, words

from compactor import Prompt
from memory import InMemoryStore, Memory

ROLE = "assistant"


def texts(prompt: Prompt) -> str:
    return "\n".join(str(content) for content in contents(prompt))


def step(memory: Memory, number: int, text: str) -> None:
    """One call of a tool, and what it gave."""
    memory.append(calls(f"c{number}"))
    memory.append(result(f"c{number}", text))


def agent_run(steps: int, tokens: int = 40, store: InMemoryStore | None = None) -> Memory:
    memory = Memory("s", store=store)
    memory.append(user("Find the fault."))
    for number in range(steps):
        step(memory, number, f"{number:05} {words(tokens)}")
    return memory


def chat(rounds: int, tokens: int = 30, store: InMemoryStore | None = None) -> Memory:
    memory = Memory("s", store=store)
    for number in range(1, rounds + 1):
        memory.append(user(f"question {number:04} {words(tokens)}"))
        memory.append(answer(f"answer {number:04} {words(tokens)}"))
    return memory


#: A payload that is offloaded, and a result that is at most cleared.
LARGE = "\n".join(f"{number:04} one row of a large table" for number in range(400))
SMALL = "\n".join(f"{number:04} a small one" for number in range(40))
