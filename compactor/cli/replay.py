"""A transcript, message by message, through a Memory and a compactor, with a prompt composed for each answer in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory import Memory
from memory.events import EventHook
from memory.messages import ASSISTANT

from ..background import ContextCompactor
from ..compose import Prompt, Report, compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded
from ..prompt.groups import PROMPT_TOKENS, count_message
from ..runner import State
from ..strategies import compact_rounds
from ..testing import FakeClock
from ..tokens import TokenCounter, counter_for
from . import checks
from .preset import preset_options
from .savings import LADDER, Rung, Saving, by_name, rungs_of
from .terminal import CannotRun, counted, in_options
from .transcripts import Conversation
from .watch import Watch

#: A model that fails so often in a row is given up.
ATTEMPTS = 3
#: Seconds: waits are short, so that an interrupt ends them on every platform.
_WAIT = 0.5


@dataclass(frozen=True)
class Setup:
    """How conversations are replayed."""

    config: CompactorConfig
    budget: int
    #: Makes the summarizer; None for the extractive one, whose failures nothing is gained by waiting for.
    summarizer: object | None = None
    hooks: Sequence[EventHook] = ()
    #: A preset's name. Empty: the default strategies, with the configuration above.
    preset: str = ""

    def options(self) -> dict[str, Any]:
        """Return what a compactor is made with; each has its own, since strategies may remember things."""
        if self.preset:
            return preset_options(self.preset, self.budget, self.summarizer, self.config.model)
        return {"config": self.config, "summarizer": self.summarizer, "strategies": (compact_rounds,)}


@dataclass
class Replayed:
    """What came of one conversation."""

    name: str
    messages: int
    rounds: int = 0
    covered_rounds: int = 0
    compactions: int = 0
    reductions: int = 0
    failures: int = 0
    #: Tokens of the last prompt, and of all the messages that it was made from.
    prompt_tokens: int = 0
    raw_tokens: int = 0
    prompts: int = 0
    prompts_over_budget: int = 0
    #: Tool calls without their result, and results without their call, in any prompt.
    torn_calls: int = 0
    #: Prompts without the newest user message as it was said.
    queries_not_whole: int = 0
    #: Tokens of all prompts, and of all the messages that each was made from.
    tokens_of_all_prompts: int = 0
    raw_tokens_of_all_prompts: int = 0
    longest_compose_ms: float = 0.0
    background_seconds: float = 0.0
    #: What each strategy saved, and what each rung of the ladder had still to do for prompts.
    strategies: dict[str, Saving] = field(default_factory=dict)
    ladder: dict[str, Rung] = field(default_factory=lambda: dict.fromkeys(LADDER, Rung()))
    last_prompt: Prompt = field(default_factory=lambda: Prompt([], 0, Report(0, 0)), repr=False)

    def figures(self) -> dict[str, Any]:
        """Return all but the prompt itself, as JSON has it."""
        plain = {name: value for name, value in vars(self).items() if name != "last_prompt"}
        return plain | _as_figures(self.strategies, self.ladder)


def replay(conversation: Conversation, setup: Setup, step: Callable[[], None] = lambda: None) -> Replayed:
    """Return what came of *conversation*; *step* is called after each message.

    The compactor is waited for after each message. So the figures are the same every time but for those of time, if
    the summarizer is deterministic. Raises ``CannotRun`` where the budget is too small, or the summarizer fails
    ``ATTEMPTS`` times in a row.
    """
    memory, options = Memory(), setup.options()
    watch = Watch(options["strategies"])
    clock = _StepClock() if setup.summarizer is None else None
    compactor = ContextCompactor.for_role(memory, ASSISTANT, **options, on_event=watch, clock=clock)
    for hook in setup.hooks:
        compactor.on_event(hook)
    messages = conversation.messages
    result = Replayed(conversation.name, len(messages))
    raw = _Raw(counter_for(setup.config.model))
    with compactor:
        for place, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                _compose(memory, setup, result, raw, place + 1)
            resting = compactor.status().state is State.BACKING_OFF
            memory.append(message)
            raw.add(message)
            if clock is not None:
                clock.settle(compactor, resting=resting)
            else:
                _wait_for_model(compactor, watch)
            step()
        _compose(memory, setup, result, raw, len(messages))
        result.covered_rounds = compactor.status().end_index
    result.rounds = len(memory.conversation.rounds)
    result.compactions, result.reductions, result.failures = watch.compactions, watch.reductions, watch.failures
    result.background_seconds = round(watch.seconds, 3)
    result.strategies = watch.savings
    return result


class _Raw:
    """The messages that there are so far, as they stand in the file."""

    def __init__(self, count: TokenCounter) -> None:
        self.count = count
        self.messages: list[Mapping[str, Any]] = []
        self.tokens = PROMPT_TOKENS
        self.queries: list[Mapping[str, Any]] = []

    def add(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        self.tokens += count_message(message, self.count)
        if message["role"] == "user":
            self.queries.append(message)


class _StepClock(FakeClock):
    """Back-offs end with the next message, not with time: so a failed compaction is tried again at the same place
    in every run. Durations are real."""

    def monotonic(self) -> float:
        return time.monotonic()

    def settle(self, compactor: ContextCompactor, *, resting: bool) -> None:
        """Wait until *compactor* has looked at everything, or failed at it. *resting*: it was backing off before the
        message came; what it does now may have failed already, and is tried again with the next."""
        if resting:
            self.advance(max(self.waiting, default=0.0))
        _is_idle(compactor)


def _wait_for_model(compactor: ContextCompactor, watch: Watch) -> None:
    """Wait until *compactor* has looked at everything, through its back-offs too, but not for ever."""
    seen = watch.outcomes
    while not _is_idle(compactor):
        status = compactor.status()
        if status.failures >= ATTEMPTS:
            said = in_options(status.last_error or "no reason is known")
            raise CannotRun(f"the summarizer failed {counted(status.failures, 'time')} in a row: {said}")
        watch.wait_for_outcome(seen, timeout=_WAIT)
        seen = watch.outcomes


def _is_idle(compactor: ContextCompactor) -> bool:
    """Wait for the cycle that runs; return False when it has failed, and is to be tried again."""
    while not compactor.wait_idle(timeout=_WAIT):
        if compactor.status().state is not State.COMPACTING:
            return False
    return True


def _compose(memory: Memory, setup: Setup, result: Replayed, raw: _Raw, place: int) -> None:
    began = time.perf_counter()
    try:
        prompt = compose(memory, ASSISTANT, budget=setup.budget, model=setup.config.model)
    except BudgetExceeded as error:
        raise CannotRun(f"conversation {result.name}, message {place}: {error}") from error
    took = time.perf_counter() - began
    # Counted and looked up anew: what compose says of itself is not asked.
    counted = checks.tokens_of(prompt.messages, raw.count)
    result.prompts += 1
    result.prompts_over_budget += counted > setup.budget
    result.torn_calls += checks.torn(prompt.messages)
    result.torn_calls += max(checks.waiting(prompt.messages) - checks.waiting(raw.messages), 0)
    for query in raw.queries[-1:]:
        result.queries_not_whole += not checks.is_whole(query, prompt.messages, raw.queries[:-1])
    result.prompt_tokens, result.raw_tokens, result.last_prompt = counted, raw.tokens, prompt
    result.tokens_of_all_prompts += counted
    result.raw_tokens_of_all_prompts += raw.tokens
    result.longest_compose_ms = max(result.longest_compose_ms, round(1000 * took, 3))
    result.ladder = by_name((result.ladder, rungs_of(prompt)))


def totals(results: Sequence[Replayed]) -> dict[str, Any]:
    """Return sums over *results*, and of times the longest."""
    summed = (
        "messages",
        "rounds",
        "covered_rounds",
        "compactions",
        "reductions",
        "failures",
        "prompt_tokens",
        "raw_tokens",
        "prompts",
        "prompts_over_budget",
        "torn_calls",
        "queries_not_whole",
        "tokens_of_all_prompts",
        "raw_tokens_of_all_prompts",
    )
    return {
        "conversations": len(results),
        **{name: sum(getattr(result, name) for result in results) for name in summed},
        "longest_compose_ms": max(result.longest_compose_ms for result in results),
        "background_seconds": round(sum(result.background_seconds for result in results), 3),
        **_as_figures(saved(results), shortened(results)),
    }


def saved(results: Sequence[Replayed]) -> dict[str, Saving]:
    """Return what each strategy saved in all *results*."""
    return by_name(result.strategies for result in results)


def shortened(results: Sequence[Replayed]) -> dict[str, Rung]:
    """Return what each rung of the ladder had still to do for the prompts of all *results*."""
    return by_name(result.ladder for result in results)


def _as_figures(strategies: Mapping[str, Saving], ladder: Mapping[str, Rung]) -> dict[str, Any]:
    return {
        "strategies": {name: saving.figures() for name, saving in strategies.items()},
        "ladder": {name: level.figures() for name, level in ladder.items()},
    }
