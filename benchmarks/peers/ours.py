"""This library, set up by the code blocks of its documentation: each variant is one of them, run as it stands there.

The conversation gives the budget, the system message and the tools. What else a variant knows stands in its block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from statistics import fmean

from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.documented import Section, run
from compactor import CostEvaluated, Failed, Prepared, Published, State, compose, count_tokens
from compactor.testing import FakeClock
from memory import Event

__all__ = ["VARIANTS", "Ours", "make"]

_AT_WORK = (State.EVALUATING, State.COMPACTING)

VARIANTS: Mapping[str, Section] = {
    "messages": Section("README.md", "OpenAI messages"),
    "long_runs": Section("README.md", "Long runs and lasting sessions"),
    "all_at_once": Section("docs/cost.md", "All of it at once"),
    "offline": Section("docs/index.md", "context-compactor"),
}


class Ours(Adapter):
    """What a block sets up, in a conversation; time is the server's."""

    background = True

    def __init__(self, setting: Setting, section: Section) -> None:
        self.name = f"ours: {section.page}, {section.heading}"
        self.version = _version()
        self._setting = setting
        self._clock = FakeClock()
        folder = setting.folder or tempfile.mkdtemp()
        self._block = block = run(section, url=setting.base_url, folder=folder, clock=self._clock)
        self.tools = block.composing.get("tools", ())
        self._memory, self._compactor = block.memory, block.compactor
        self._composing = {"budget": setting.budget, "system": setting.system} | block.composing
        self._composing["tools"] = [*setting.tools, *self.tools]
        self._published: list[Published] = []
        self._weighed: list[CostEvaluated] = []
        self._asked: list[range] = []
        self._failures = 0
        self._compactor.on_event(self._note)
        self._compactor.start()

    def _note(self, event: Event) -> None:
        if isinstance(event, Published):
            self._published.append(event)
        elif isinstance(event, Prepared) and not event.major and not event.reused:
            self._asked.append(range(event.start - 1, event.end))
        elif isinstance(event, CostEvaluated):
            self._weighed.append(event)
        elif isinstance(event, Failed):
            self._failures += 1

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._memory.append(message)
        return compose(self._memory, self._compactor.role, **self._composing).messages

    def billed(self, tokens: int, cached: int) -> None:
        if self._block.records:
            self._memory.record_usage(self._compactor.role, tokens, cached_tokens=cached)

    def answered(self, message: Message) -> None:
        self._memory.append(message)
        if self._block.finishes and not message.get("tool_calls"):
            self._memory.finish_round(self._memory.conversation.rounds[-1])

    def wait_idle(self, timeout: float) -> bool:
        # While it backs off, all that it can do now is done.
        return self._compactor.wait_idle(timeout) or self._compactor.status().state not in _AT_WORK

    def advanced(self, now: float) -> None:
        self._clock.advance(max(now - self._clock.monotonic(), 0.0))

    def wakes_at(self) -> float | None:
        return next((self._clock.monotonic() + seconds for seconds in self._clock.pending), None)

    def kept(self) -> list[str]:
        return [message["content"] or "" for message in self._memory.messages()]

    def measures(self) -> dict[str, float]:
        made = self._published
        minor = [one for one in made if not one.major]
        sizes = [one for one in self._weighed if one.is_due]
        found: dict[str, float] = {
            "compactions": len(made),
            "majors": len(made) - len(minor),
            "failures": self._failures,
            "sent_minor": sum(one.sent_tokens for one in minor),
            "sent_major": sum(one.sent_tokens for one in made if one.major),
        }
        if self._asked:
            found["sent_times"] = self._sent_times()
        if sizes:
            found |= {
                "retained": fmean(one.retained for one in sizes),
                "summary": fmean(one.summary for one in sizes),
                "price": fmean(one.price for one in sizes),
                "best": fmean(one.best or 0 for one in sizes),
                "grown": fmean(one.grown for one in sizes),
                "latency_calls": fmean(one.latency_calls for one in sizes),
                "per_call": fmean(one.per_call for one in sizes),
            }
        return found

    def _sent_times(self) -> float:
        """Return how often a token that a minor compaction covered was sent for that, on average."""
        rounds = self._memory.conversation.rounds
        length = [sum(count_tokens(post.message) for post in round_.post_list) for round_ in rounds]
        sent = sum(length[place] for places in self._asked for place in places)
        return sent / max(sum(length[place] for place in set().union(*self._asked)), 1)

    def close(self) -> None:
        self._compactor.stop(timeout=0)  # a request that is held is answered when the server ends, which waits for us
        if callable(close := getattr(self._compactor.summarizer, "close", None)):
            close()
        self._block.close()


def _version() -> str:
    try:
        return version("context-compactor")
    except PackageNotFoundError:
        return "this tree"


def make(setting: Setting) -> Adapter:
    return Ours(setting, VARIANTS[setting.variant or "messages"])
