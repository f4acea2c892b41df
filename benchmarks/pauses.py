"""What it costs to show compactions when they are ready, and to hold them until that is cheapest.

A chat of 200 turns, with and without pauses in which the provider's cache forgets the prompt. Answers and summaries are
made up, and time is a fake clock's: so it is repeatable to the token. Prints a table in Markdown.

    python -m benchmarks.pauses
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import takewhile
from typing import Any, NamedTuple

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Deferred,
    Prepared,
    Prices,
    Published,
    Summary,
    SummaryRequest,
    compose,
    cost_optimal,
    count_message,
    count_tokens,
)
from compactor.cost.publication import CACHE_SECONDS
from compactor.testing import FakeClock
from memory import Event, Memory

TURNS, BUDGET = 200, 8_000
#: Seconds between two turns, and of a pause.
TURN, PAUSE = 20.0, 600.0
ASKED, ANSWERED, SUMMARY = 170, 150, 380
WORDS = ("alpha", "river", "stone", "cloud", "meadow", "signal", "garden", "window", "bridge", "candle", "forest")
#: A pause after every so many turns; 0: none.
EVERY = (0, 20, 10, 5, 3)


class Outcome(NamedTuple):
    """Prices are in uncached input tokens of the agent."""

    agent: float
    summarizer: float
    published: int
    #: Why each was shown; nothing where they are shown when they are ready.
    reasons: Counter[str]
    #: The longest prompt.
    peak: int


class AtOnce(Executor):
    """Runs each job where it is submitted: an answer is there before the next call."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Provider:
    """Counts what prompts cost: what begins as the one before is cached for as long as it is remembered."""

    def __init__(self, prices: Prices, clock: FakeClock) -> None:
        self._prices = prices
        self._clock = clock
        self._before: list[Any] = []
        self._sent_at = -PAUSE
        self.cost = 0.0

    def send(self, messages: list[Any]) -> None:
        now = self._clock.monotonic()
        before = self._before if now - self._sent_at < CACHE_SECONDS else []
        pairs = zip(before, messages, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tokens = [count_message(message, count_tokens) for message in messages]
        self.cost += self._prices.cached_input * sum(tokens[:same]) + self._prices.cache_write * sum(tokens[same:])
        self._before, self._sent_at = messages, now


def converse(publish: str, every: int, turns: int = TURNS) -> Outcome:
    """Return what *turns* turns cost with a pause after *every* so many."""
    rng, clock, prices, events = random.Random(1), FakeClock(), Prices(), list[Event]()

    def words(number: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(number))

    def summarize(request: SummaryRequest) -> Summary:
        read = sum(count_tokens(str(message["content"])) for message in request.messages)
        said = f"What was said so far: {words(SUMMARY)}"
        return Summary(said, {"input_tokens": read, "output_tokens": count_tokens(said)})

    memory, provider, peak = Memory("session", clock=clock.now), Provider(prices, clock), 0
    config = CompactorConfig(threshold=turns, max_tokens=BUDGET, retain_recent=4, target_tokens=400)
    compactor = ContextCompactor.for_role(
        memory, "assistant", config, summarize,
        trigger=cost_optimal(prices), publish=publish, executor=AtOnce(), clock=clock, on_event=events.append,
    )  # fmt: skip
    with compactor:
        for turn in range(1, turns + 1):
            memory.append({"role": "user", "content": f"{turn}: {words(ASKED)}"})
            prompt = compose(memory, budget=BUDGET, system="You are helpful.")
            provider.send(prompt.messages)
            peak = max(peak, prompt.tokens)
            memory.append({"role": "assistant", "content": words(ANSWERED)})
            clock.advance(TURN + (PAUSE if every and turn % every == 0 else 0.0))
    usages = [event.usage or {} for event in events if isinstance(event, Prepared)]
    read, said = (sum(usage[kind] for usage in usages) for kind in ("input_tokens", "output_tokens"))
    summarizer = prices.summarizer_input * read + prices.summarizer_output * said
    published = sum(isinstance(event, Published) for event in events)
    reasons = Counter(event.reason for event in events if isinstance(event, Deferred) and event.shows)
    return Outcome(provider.cost, summarizer, published, reasons, peak)


def main() -> None:
    print("| a pause after every | immediately | deferred | | shown, and why | longest prompt |")
    print("|---|--:|--:|--:|---|---|")
    for every in EVERY:
        ready, held = converse("immediately", every), converse("deferred", every)
        costs = [one.agent + one.summarizer for one in (ready, held)]
        why = ", ".join(f"{times} {reason}" for reason, times in sorted(held.reasons.items()))
        pause = f"{every} turns" if every else "none"
        more = f"{costs[1] / costs[0]:.2f} | {held.published}: {why} | {ready.peak:,} and {held.peak:,}"
        print(f"| {pause} | {costs[0]:,.0f} | {costs[1]:,.0f} | {more} |")


if __name__ == "__main__":
    main()
