"""A transcript, message by message, through a Memory and a compactor, with a prompt composed for each answer in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory import Memory
from memory.events import EventHook
from memory.messages import ASSISTANT

from ..background import ContextCompactor, State
from ..compose import Prompt, Report, compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded
from ..ledger import ledger_of
from ..testing import FakeClock
from ..tokens import counter_for
from ..units import PROMPT_TOKENS, count_message
from ..view import View
from .terminal import CannotRun, in_options
from .transcripts import Conversation
from .watch import Watch

__all__ = ["Replayed", "Setup", "replay", "totals"]

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


@dataclass
class Replayed:
    """What came of one conversation."""

    name: str
    messages: int
    rounds: int = 0
    covered_rounds: int = 0
    compactions: int = 0
    failures: int = 0
    #: Tokens of the last prompt, and of the same with nothing compacted and nothing left out.
    prompt_tokens: int = 0
    raw_tokens: int = 0
    prompts: int = 0
    prompts_over_budget: int = 0
    #: Tokens of all prompts, and of the same with nothing compacted and nothing left out.
    tokens_of_all_prompts: int = 0
    raw_tokens_of_all_prompts: int = 0
    longest_compose_ms: float = 0.0
    background_seconds: float = 0.0
    last_prompt: Prompt = field(default_factory=lambda: Prompt([], 0, Report(0, 0)), repr=False)

    def figures(self) -> dict[str, Any]:
        """Return all but the prompt itself, as JSON has it."""
        return {name: value for name, value in vars(self).items() if name != "last_prompt"}


def replay(conversation: Conversation, setup: Setup, step: Callable[[], None] = lambda: None) -> Replayed:
    """Return what came of *conversation*; *step* is called after each message.

    The compactor is waited for after each message. So the figures are the same every time but for those of time, if
    the summarizer is deterministic. Raises ``CannotRun`` where the budget is too small, or the summarizer fails
    ``ATTEMPTS`` times in a row.
    """
    memory, watch = Memory(), Watch()
    clock = _StepClock() if setup.summarizer is None else None
    compactor = ContextCompactor.for_role(
        memory, ASSISTANT, setup.config, setup.summarizer, on_event=watch, clock=clock
    )
    for hook in setup.hooks:
        compactor.on_event(hook)
    result = Replayed(conversation.name, len(conversation.messages))
    with compactor:
        for place, message in enumerate(conversation.messages, 1):
            if message["role"] == ASSISTANT:
                _compose(memory, setup, result, place)
            memory.append(message)
            if clock is not None:
                clock.settle(compactor)
            else:
                _wait_for_model(compactor, watch)
            step()
        _compose(memory, setup, result, len(conversation.messages))
        result.covered_rounds = compactor.status().end_index
    result.rounds = len(memory.conversation.rounds)
    result.compactions, result.failures = watch.compactions, watch.failures
    result.background_seconds = round(watch.seconds, 3)
    return result


class _StepClock(FakeClock):
    """Back-offs end with the next message, not with time: so a failed compaction is tried again at the same place
    in every run. Durations are real."""

    def monotonic(self) -> float:
        return time.monotonic()

    def settle(self, compactor: ContextCompactor) -> None:
        """Wait until *compactor* has looked at everything, or failed at it."""
        if compactor.status().state is State.BACKING_OFF:
            self.advance(max(self.waiting, default=0.0))
        _is_idle(compactor)


def _wait_for_model(compactor: ContextCompactor, watch: Watch) -> None:
    """Wait until *compactor* has looked at everything, through its back-offs too, but not for ever."""
    seen = watch.outcomes
    while not _is_idle(compactor):
        status = compactor.status()
        if status.failures >= ATTEMPTS:
            said = in_options(status.last_error or "no reason is known")
            raise CannotRun(f"the summarizer failed {status.failures} times in a row: {said}")
        watch.wait_for_outcome(seen, timeout=_WAIT)
        seen = watch.outcomes


def _is_idle(compactor: ContextCompactor) -> bool:
    """Wait for the cycle that runs; return False when it has failed, and is to be tried again."""
    while not compactor.wait_idle(timeout=_WAIT):
        if compactor.status().state is not State.COMPACTING:
            return False
    return True


def _compose(memory: Memory, setup: Setup, result: Replayed, place: int) -> None:
    model = setup.config.model
    began = time.perf_counter()
    try:
        prompt = compose(memory, ASSISTANT, budget=setup.budget, model=model)
    except BudgetExceeded as error:
        raise CannotRun(f"conversation {result.name}, message {place}: {error}") from error
    took = time.perf_counter() - began
    count = counter_for(model)
    header = sum(count_message({"role": post.send_from, "content": post.message}, count) for post in memory.header)
    rounds = memory.rounds_getter(ASSISTANT)()
    raw = View(rounds, None, ledger_of(memory, ASSISTANT, count), header, model).tokens
    counted = PROMPT_TOKENS + sum(count_message(message, count) for message in prompt.messages)
    result.prompts += 1
    result.prompts_over_budget += counted > setup.budget  # counted anew: what compose says of itself is not asked
    result.prompt_tokens, result.raw_tokens, result.last_prompt = counted, raw, prompt
    result.tokens_of_all_prompts += counted
    result.raw_tokens_of_all_prompts += raw
    result.longest_compose_ms = max(result.longest_compose_ms, round(1000 * took, 3))


def totals(results: Sequence[Replayed]) -> dict[str, Any]:
    """Return sums over *results*, and of times the longest."""
    summed = (
        "messages",
        "rounds",
        "covered_rounds",
        "compactions",
        "failures",
        "prompt_tokens",
        "raw_tokens",
        "prompts",
        "prompts_over_budget",
        "tokens_of_all_prompts",
        "raw_tokens_of_all_prompts",
    )
    return {
        "conversations": len(results),
        **{name: sum(getattr(result, name) for result in results) for name in summed},
        "longest_compose_ms": max(result.longest_compose_ms for result in results),
        "background_seconds": round(sum(result.background_seconds for result in results), 3),
    }
