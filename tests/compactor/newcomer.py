"""A session as a newcomer sets it up, with a client that answers in an endpoint's place."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from chats import answer, user
from executors import ManualExecutor

from compactor import ContextCompactor, OpenAISummarizer, Prompt, Published, compose, count_prompt, count_tokens
from compactor.testing import FakeClock
from memory import Memory

MODEL = "gpt-5-mini"
_WORDS = "order parcel lorry harbour invoice customs depot pallet route driver weight label scale ramp gate"


class Client:
    """Answers ``chat.completions.create``: notes of the facts it reads, or changes if it is asked for them.

    *hit* is the share of a continued prompt that it says was cached; *usage* replaces what it reports.
    """

    def __init__(self, *, hit: float = 0.0, makes_changes: bool = True, usage: Any = ...) -> None:
        self.hit, self.makes_changes, self.usage = hit, makes_changes, usage
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))
        #: Of each request: whether it went on from the agent's prompt, and whether it asked for changes.
        self.continued: list[bool] = []
        self.changes: list[bool] = []
        #: How many summaries each fact has passed through.
        self.depths: dict[str, int] = {}

    def _create(self, *, messages: list[dict[str, Any]], **_arguments: Any) -> dict[str, Any]:
        texts = [str(message.get("content")) for message in messages]
        for_changes = texts[-1].endswith("Answer with the changes alone.")
        self.continued.append("<conversation>" not in texts[-1])
        self.changes.append(for_changes)
        said = self._write("\n".join(texts), for_changes=for_changes)
        read, written = count_prompt(messages, count_tokens), count_tokens(said)
        cached = int(self.hit * read) if self.continued[-1] else 0
        usage: Any = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        message = {"role": "assistant", "content": said}
        usage = usage if self.usage is ... else self.usage
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage, "model": MODEL}

    def _write(self, text: str, *, for_changes: bool) -> str:
        known = dict.fromkeys(re.findall(r"KEY-\d+=\w+", text))
        new = [f"{key}={value}" for key, value in dict.fromkeys(re.findall(r"(KEY-\d+) is (\w+)", text))]
        new = [fact for fact in new if fact not in known]
        depots = re.findall(r"depot (D\d+)", text)
        done = f"Depots {depots[0]} to {depots[-1]} were looked at." if depots else "No depots."
        if for_changes and self.makes_changes:
            self.depths.update(dict.fromkeys(new, 1))
            return "\n".join([*(f"add [Facts]: {fact} was told." for fact in new), f"add [Done]: {done}"])
        if not for_changes:  # else it is refused, and no summary holds it
            self.depths.update({fact: self.depths.get(fact, 0) + 1 for fact in (*known, *new)})
        before = re.findall(r"Depots D\d+ to D\d+ were looked at\.", text)
        facts = [f"- {fact} was told." for fact in (*known, *new)]
        return "\n".join(["## Facts", *facts, "", "## Done", *(f"- {line}" for line in (*before, done))])


class Session:
    """A chat with a compactor that was told nothing but its summarizer."""

    def __init__(self, client: Client, *, budget: int = 8_000, agent: str = "", **more: Any) -> None:
        self.client, self.budget, self.agent = client, budget, agent
        self.memory = more.pop("memory", None) or Memory("s")
        self._rng = random.Random(len(self.memory.conversation.rounds))
        self.executor, self.clock = ManualExecutor(), more.pop("clock", None) or FakeClock()
        summarizer = more.pop("summarizer", None) or OpenAISummarizer(more.pop("model", MODEL), client=client)
        self.compactor = ContextCompactor.for_role(
            self.memory,
            "assistant",
            summarizer=summarizer,
            executor=self.executor,
            clock=self.clock,
            rng=lambda: 1.0,
            **more,
        )
        self.compactor.start()
        self.prompts: list[Prompt] = []
        self.events: list[Any] = []
        self.compactor.on_event(self.events.append)

    def words(self, count: int) -> str:
        return " ".join(self._rng.choices(_WORDS.split(), k=count))

    def turn(self, *messages: Mapping[str, Any], said: int = 90, answered: int = 180, every: int = 1) -> Prompt:
        """The user speaks and tells a fact, in *every* so many rounds; the agent answers; *messages* come in between."""
        number = len(self.memory.conversation.rounds) + 1
        fact = f"KEY-{number:04} is VQ{number * 37 % 1000:03}Z. " if number % every == 0 else ""
        self.memory.append(user(f"{fact}What is at depot D{number:04}? {self.words(said)}"))
        for message in messages:
            self.memory.append(message)
        prompt = compose(self.memory, budget=self.budget, model=self.agent)
        self.prompts.append(prompt)
        self.memory.append(answer(self.words(answered)))
        self.executor.run_all()
        self.clock.advance(60)
        self.executor.run_all()
        return prompt

    def turns(self, count: int, **more: Any) -> Session:
        for _ in range(count):
            self.turn(**more)
        return self

    @property
    def published(self) -> list[Published]:
        return [event for event in self.events if isinstance(event, Published)]
