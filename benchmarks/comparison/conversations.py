"""The conversations that are compared: scripts, the same each time, of what users, tools and the agent say."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from compactor import count_message, count_tokens

from .adapter import Message
from .dialogues import Step, answered, tools_of, turns_of
from .facts import planted, told
from .model_server import Outage

__all__ = [
    "AIRLINE",
    "SCENARIOS",
    "Absent",
    "Scenario",
    "Step",
    "airline",
    "chat",
    "other_model",
    "outage",
    "paced",
    "task",
    "tools",
    "weeks",
    "window",
]

#: Real dialogues between customers and an airline's agent, one a line, where they are there.
AIRLINE = Path(os.environ.get("COMPACTOR_DATA", Path(__file__).parents[3] / "shared" / "data")) / "airline.jsonl"

#: Words in the model's answers that change notes, for the conversations that are played with several.
CHANGE_WORDS = (100, 50, 200, 400)

_VOCABULARY = (
    "we have seen that the order came late and would like to know what can be done about it before the end of next"
    " week because our own customers wait for these parts and some of them asked whether another supplier could send"
    " them sooner please look into the list of open deliveries and tell us which of them left the store already how"
    " long it will take until they are here and who should be called if one is missing there was also a question about"
    " the price of the new model which is said to be lower than last year if more than ten are taken at once"
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Return the records of a table that match a question.",
        "parameters": {
            "type": "object",
            "properties": {"table": {"type": "string"}, "question": {"type": "string"}},
            "required": ["table", "question"],
        },
    },
}


class Absent(Exception):
    """A conversation cannot be played here; the message says what is missing."""


@dataclass(frozen=True)
class Scenario:
    """One conversation, and what every adapter is told of it."""

    name: str
    #: What is shown above its table.
    about: str
    turns: tuple[tuple[Step, ...], ...]
    system: str
    budget: int
    window: int = 128_000
    tools: tuple[dict[str, Any], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    summary_tokens: int = 400
    outage: Outage | None = None
    #: Virtual seconds that the user takes before each turn but the first; and so many before every so-manieth.
    pause: float = 0.0
    break_: float = 0.0
    every: int = 20
    #: What the agent's requests name as their model; empty: what the summarizer's do.
    agent: str = ""
    #: How many words the model writes beside new facts when it is asked for changes. Who asks for some is played with
    #: each; the tables show the first, and the others beside it.
    change_words: tuple[int, ...] = (100,)
    #: Whether a prompt of all of it can be sent at all.
    fits: bool = True

    def pause_before(self, place: int) -> float:
        """Return how long the user takes before the turn at *place*, from 0."""
        if place == 0:
            return 0.0
        return self.break_ if self.break_ and place % self.every == 0 else self.pause

    @property
    def tokens(self) -> int:
        """How long the conversation is, without the system message."""
        return sum(
            count_message(message, count_tokens)
            for turn in self.turns
            for step in turn
            for message in (*step["new"], step["answer"])
        )


def _text(rng: random.Random, tokens: int) -> str:
    """Return sentences of about *tokens*."""
    words = _VOCABULARY.split()
    sentences: list[str] = []
    while tokens > 0:
        length = min(rng.randint(9, 21), tokens)
        sentence = " ".join(rng.choices(words, k=max(length - 1, 1)))
        sentences.append(f"{sentence.capitalize()}.")
        tokens -= length
    return " ".join(sentences)


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _system(tokens: int) -> str:
    return "You help the customers of a supplier of parts. " + _text(random.Random(1), tokens - 10)


def _talk(turns: int, question: int, answer: int, facts: Sequence[tuple[str, str]], seed: int) -> Iterator[tuple[Step]]:
    """Give *turns* turns of so many tokens each, in some of which the user tells one of *facts*, spread evenly."""
    rng = random.Random(seed)
    for number in range(turns):
        fact = _fact_of(number, turns, facts)
        said = _text(rng, question - 4 - (count_tokens(fact) if fact else 0))
        yield ({"new": [_user(_insert(rng, said, fact))], "answer": _assistant(_text(rng, answer - 4))},)


def _insert(rng: random.Random, said: str, fact: str) -> str:
    """Return *said* with the sentence *fact* between two of its sentences, at its beginning or at its end."""
    if not fact:
        return said
    sentences = re.split(r"(?<=\.) ", said)
    sentences.insert(rng.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def _fact_of(number: int, turns: int, facts: Sequence[tuple[str, str]]) -> str:
    every = turns // len(facts) if facts else 0
    place, rest = divmod(number, every) if every else (0, -1)
    return told(*facts[place]) if rest == every // 2 and place < len(facts) else ""


def chat(turns: int = 200) -> Scenario:
    """A chat of 330 tokens a turn, half of them the agent's; a fact in every fourth."""
    facts = tuple(planted(turns // 4, seed=5))
    return Scenario(
        name="chat",
        about=f"{turns} turns of chat, 330 tokens each; budget 8,000 tokens; {len(facts)} planted facts",
        turns=tuple(_talk(turns, 165, 165, facts, seed=11)),
        system=_system(300),
        budget=8_000,
        facts=facts,
        change_words=CHANGE_WORDS,
    )


def other_model(turns: int = 200) -> Scenario:
    """The chat, where another model summarizes than the agent's: no cache has the agent's prompt for it."""
    plain = chat(turns)
    return replace(
        plain, name="other model", agent="another", about=f"{plain.about}; the agent's model is not the summarizer's"
    )


def paced(turns: int = 200) -> Scenario:
    """The chat, with a user who takes his time, and comes back later."""
    plain = chat(turns)
    return replace(
        plain,
        name="paced",
        pause=10.0,
        break_=600.0,
        about=f"{plain.about}; the user takes 10 seconds before each turn, and 10 minutes before every 20th, when the"
        " provider's cache has forgotten him",
    )


def weeks(turns: int = 588, sitting: int = 21) -> Scenario:
    """Two people who chat for weeks: short turns, *sitting* of them at a time, and a day between sittings."""
    facts = tuple(planted(turns // 12, seed=9))
    return Scenario(
        name="weeks",
        about=f"{turns} turns of 90 tokens between two people, {sitting} at a sitting, a day between sittings; budget"
        f" 8,000 tokens; {len(facts)} planted facts",
        turns=tuple(_talk(turns, 45, 45, facts, seed=13)),
        system=_system(150),
        budget=8_000,
        facts=facts,
        change_words=CHANGE_WORDS,
        pause=30.0,
        break_=86_400.0,
        every=sitting,
    )


def outage(how: Literal["fails", "hangs"], turns: int = 200) -> Scenario:
    """The chat, where the summarizer fails or hangs for 20 turns in the middle."""
    plain, first = chat(turns), turns * 2 // 5
    out = Outage(first, first + 19, how)
    return replace(
        plain,
        name=f"outage, {how}",
        outage=out,
        about=f"the same chat; the summarizer {how} in turns {out.first} to {out.last}",
    )


def tools(turns: int = 80) -> Scenario:
    """A question, a call of a tool whose result has 2,000 to 8,000 tokens, and an answer; a fact in every fourth."""
    rng, facts = random.Random(7), tuple(planted(turns // 4, seed=6))
    sizes = [2_000 + round(6_000 * (place + 0.5) / turns) for place in range(turns)]
    rng.shuffle(sizes)
    played = []
    for number, size in enumerate(sizes):
        fact = _fact_of(number, turns, facts)
        asked = _user(_insert(rng, _text(rng, 90), fact))
        arguments = json.dumps({"table": "deliveries", "question": _text(rng, 20)})
        call = {"id": f"call_{number:04}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": _text(rng, size)}
        played.append(({"new": [asked], "answer": calling}, {"new": [result], "answer": _assistant(_text(rng, 320))}))
    return Scenario(
        name="tools",
        about=f"{turns} turns, each with a tool's result of 2,000 to 8,000 tokens; budget 32,000 tokens;"
        f" {len(facts)} planted facts",
        turns=tuple(played),
        system=_system(300),
        budget=32_000,
        window=450_000,
        tools=(_TOOL,),
        facts=facts,
        change_words=CHANGE_WORDS,
    )


def task(calls: int = 120) -> Scenario:
    """One question, and a call after the other until it is answered: what coding agents do. What the agent says beside
    every fourth call has a fact."""
    rng, facts = random.Random(17), tuple(planted(calls // 4, seed=18))
    steps, new = list[Step](), [_user(_text(rng, 90))]
    for number in range(calls):
        arguments = json.dumps({"table": "deliveries", "question": _text(rng, 20)})
        call = {"id": f"call_{number:04}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        said = _insert(rng, _text(rng, 40), _fact_of(number, calls, facts))
        steps.append({"new": new, "answer": {"role": "assistant", "content": said, "tool_calls": [call]}})
        new = [{"role": "tool", "tool_call_id": call["id"], "content": _text(rng, rng.randint(300, 900))}]
    steps.append({"new": new, "answer": _assistant(_text(rng, 320))})
    return Scenario(
        name="task",
        about=f"one question with {calls} calls of a tool, one after the other, whose results have 300 to 900 tokens;"
        f" budget 32,000 tokens; {len(facts)} planted facts",
        turns=(tuple(steps),),
        system=_system(300),
        budget=32_000,
        window=450_000,
        tools=(_TOOL,),
        facts=facts,
    )


def airline(dialogues: int = 40, path: Path = AIRLINE) -> Scenario:
    """Real dialogues with an airline's agent, one after the other as one conversation."""
    if not path.is_file():
        raise Absent(f"{path} is not there: real dialogues, one JSON object with OpenAI messages a line")
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(dialogues), strict=False)]
    messages = [one for row in rows for one in answered(row["messages"]) if one["role"] != "system"]
    return Scenario(
        name="airline",
        about=f"{len(rows)} real dialogues with an airline's agent, with the tools they call; budget 16,000 tokens",
        turns=tuple(turns_of(messages)),
        system=next(message["content"] for message in rows[0]["messages"] if message["role"] == "system"),
        budget=16_000,
        window=1_000_000,
        tools=tools_of(messages),
    )


def window(turns: int = 2_000) -> Scenario:
    """A long chat in a window of 128,000 tokens: r = 500, s = 3,000, S = 2,000."""
    facts = tuple(planted(min(50, turns // 4), seed=8))
    return Scenario(
        name="window",
        about=f"{turns:,} turns of 500 tokens in a window of 128,000, of which a prompt may take 110,000; system"
        " message 3,000, summary 2,000",
        turns=tuple(_talk(turns, 250, 250, facts, seed=12)),
        system=_system(3_000),
        budget=110_000,
        facts=facts,
        summary_tokens=2_000,
        fits=False,
    )


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "chat": chat,
    "other": other_model,
    "paced": paced,
    "weeks": weeks,
    "tools": tools,
    "task": task,
    "airline": airline,
    "window": window,
    "fails": lambda: outage("fails"),
    "hangs": lambda: outage("hangs"),
}
