"""When to compact: conditions on a View that combine with ``&`` and ``|``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from memory.arguments import check_whole_number, require
from memory.values import ValueObject

from .config import CompactorConfig
from .coroutines import wait_for
from .events import CostEvaluated
from .summarize import Size
from .view import View

_MESSAGES: frozenset[Size] = frozenset({"messages"})
_TOKENS: frozenset[Size] = frozenset({"tokens"})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verdict(ValueObject):
    """A trigger's verdict on a view."""

    is_due: bool
    #: The number of tokens that the prompt has passed, if that is why it is due.
    token_threshold: int | None = None
    #: The numbers behind it, if costs were weighed: an event that still lacks role and generation.
    cost_evaluation: CostEvaluated | None = None
    #: The sizes that are over their thresholds, so that a strategy can tell whether it helps; None: unknown.
    exceeds: frozenset[Size] | None = field(default=None, compare=False)
    #: Seconds until it is to be asked again if nothing happens before; None: it need not be.
    recheck_in: float | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return self.is_due


class Bounds(NamedTuple):
    """What is known of a view without making it: its rounds, and numbers that the rest cannot exceed."""

    #: Visible rounds after the compaction's end.
    tail_length: int
    #: Messages of the tail, tokens of the tail and of the whole prompt as its provider would count them.
    messages: float
    tail_tokens: float
    tokens: float
    #: The compactor's model.
    model: str


Condition = Callable[[View], "bool | Verdict | Awaitable[bool]"]


@dataclass(eq=False, repr=False)
class Trigger:
    """A condition on a view. ``trigger(view)`` is a bool; ``a & b`` and ``a | b`` take any callable as the other."""

    verdict: Callable[[View], Verdict]
    name: str
    #: The triggers that it combines, and how.
    parts: tuple[Trigger, ...] = ()
    combine: Callable[[Trigger, Trigger], Trigger] | None = None
    #: Returns whether it may be due within these bounds, at once: if not, no view is made. By default it always may.
    may_be_due: Callable[[Bounds], bool] = lambda _bounds: True
    #: Returns whether it is probably due at these sizes, which are estimates; at once. By default it never is.
    is_likely_due: Callable[[Bounds], bool] = lambda _bounds: False
    #: Whether it may go by prompts: their budget, their model, what stands before the rounds.
    goes_by_prompts: bool = True
    #: Whether it calls a condition of the host's own, which may block.
    calls_host: bool = False
    #: The ``Prices`` that it goes by, and the prompt's limit in tokens, if it has any: publication goes by them too.
    prices: object = field(default=None, init=False)
    budget: int | None = field(default=None, init=False)
    #: The configuration that strategies go by; None: the compactor's own.
    config: CompactorConfig | None = field(default=None, init=False)

    def within(self, config: CompactorConfig) -> Trigger:
        """Return the trigger for a compactor of that configuration."""
        parts = tuple([part.within(config) for part in self.parts])
        return self if self.combine is None or parts == self.parts else self.combine(*parts)

    def __call__(self, view: View) -> bool:
        return self.verdict(view).is_due

    def __or__(self, other: Condition) -> Trigger:
        return _either(self, when(other))

    def __ror__(self, other: Condition) -> Trigger:
        return _either(when(other), self)

    def __and__(self, other: Condition) -> Trigger:
        return _both(self, when(other))

    def __rand__(self, other: Condition) -> Trigger:
        return _both(when(other), self)

    def __repr__(self) -> str:
        return self.name

    def describe(self, config: CompactorConfig) -> list[str]:
        """Return lines that say when a compactor of that configuration compacts."""
        return [f"Due: {self.name}; the newest {config.retain_recent} rounds stay."]


def after_rounds(n: int) -> Trigger:
    """Return a trigger that is due when more than *n* visible rounds follow the compaction's end."""
    check_whole_number("rounds", n)

    def is_over(bounds: Bounds) -> bool:
        return bounds.tail_length > n

    return Trigger(
        lambda view: Verdict(view.tail_length > n),
        f"after_rounds({n})",
        may_be_due=is_over,
        is_likely_due=is_over,
        goes_by_prompts=False,
    )


def over_messages(n: int) -> Trigger:
    """Return a trigger that is due when the tail has more than *n* chat messages."""
    check_whole_number("messages", n)
    return Trigger(
        lambda view: Verdict(view.messages > n, exceeds=_MESSAGES),
        f"over_messages({n})",
        may_be_due=lambda bounds: bounds.messages > n,
        goes_by_prompts=False,
    )


def over_tokens(n: float) -> Trigger:
    """Return a trigger that is due when the whole prompt has over *n* tokens, as its provider counts.

    A float up to 1.0 is a share of the model's window.
    """
    share = isinstance(n, float) and n <= 1
    if share and not n > 0:
        raise ValueError(f"a share of the window lies between 0 and 1, not at {n}; for tokens give a whole number")
    if not share:
        check_whole_number("tokens", n, 1)

    thresholds: dict[str, int] = {}  # by model: to look up a window may take a moment
    unknown = 0 if share else int(n)

    def judge(view: View) -> Verdict:
        threshold = thresholds[view.model] = int(n * view.window) if share else int(n)
        return Verdict(True, threshold, exceeds=_TOKENS) if view.corrected_tokens > threshold else Verdict(False)

    def is_over(bounds: Bounds) -> bool:
        return bounds.tokens > thresholds.get(bounds.model, unknown)

    return Trigger(judge, f"over_tokens({n})", may_be_due=is_over, is_likely_due=is_over)


def over_usage(n: int, until: int | None = None) -> Trigger:
    """Return a trigger that is due from *n* tokens on, by the provider's count of the last prompt, or else by ours.

    Once a pass has published something, it stays due until there are fewer than *until* tokens, if that is given. So
    the next pass, which changes the prompt again, comes later.
    """
    check_whole_number("tokens", n, 1)
    least = n if until is None else min(check_whole_number("until", until, 1), n)

    def judge(view: View) -> Verdict:
        counted = view.usage.input_tokens
        bound = n if view.as_composed else least
        is_due = (view.corrected_tokens if counted is None else counted) >= bound
        return Verdict(is_due, n if is_due else None, exceeds=_TOKENS)

    return Trigger(
        judge,
        f"over_usage({n})",
        may_be_due=lambda bounds: bounds.tokens >= least,
        is_likely_due=lambda bounds: bounds.tokens >= n,
    )


#: Functions that return a trigger. Passed themselves as a trigger, they would take the view for their number.
FACTORIES: tuple[object, ...] = (after_rounds, over_messages, over_tokens, over_usage)


def when(condition: Condition) -> Trigger:
    """Return a trigger that is due when *condition*, any callable ``View -> bool``, returns True.

    An async one is run to its end.
    """
    if isinstance(condition, Trigger):
        return condition
    if condition in FACTORIES:
        raise TypeError(f"a trigger is what {condition.__name__}(...) gives, not the function itself")
    require("trigger", condition, Callable, "a callable View -> bool")

    def judge(view: View) -> Verdict:
        answer = condition(view)
        if inspect.isawaitable(answer):
            answer = wait_for(answer)
        return answer if isinstance(answer, Verdict) else Verdict(bool(answer))

    return Trigger(judge, getattr(condition, "__name__", type(condition).__name__), calls_host=True)


def default_trigger(config: CompactorConfig) -> Trigger:
    """Return the trigger of *config*: more rounds than its threshold, or a prompt near its token limit."""
    rounds = after_rounds(config.threshold)
    if config.max_tokens is None:
        return rounds
    return rounds | over_tokens(max(1, int(config.max_tokens * config.token_ratio)))


def _either(first: Trigger, second: Trigger) -> Trigger:
    def judge(view: View) -> Verdict:
        verdicts = [first.verdict(view), second.verdict(view)]  # both, so that a threshold is known
        due = [verdict for verdict in verdicts if verdict.is_due]
        return _combine(verdicts, due, is_due=bool(due))

    def may_be_due(bounds: Bounds) -> bool:
        return first.may_be_due(bounds) or second.may_be_due(bounds)

    def is_likely_due(bounds: Bounds) -> bool:
        return first.is_likely_due(bounds) or second.is_likely_due(bounds)

    return _join(first, second, "|", judge, _either, may_be_due, is_likely_due)


def _both(first: Trigger, second: Trigger) -> Trigger:
    def judge(view: View) -> Verdict:
        verdicts = [first.verdict(view)]
        if verdicts[0].is_due:
            verdicts.append(second.verdict(view))
        return _combine(verdicts, verdicts, is_due=verdicts[-1].is_due)

    def may_be_due(bounds: Bounds) -> bool:
        return first.may_be_due(bounds) and second.may_be_due(bounds)

    def is_likely_due(bounds: Bounds) -> bool:
        return first.is_likely_due(bounds) and second.is_likely_due(bounds)

    return _join(first, second, "&", judge, _both, may_be_due, is_likely_due)


def _join(
    first: Trigger,
    second: Trigger,
    sign: str,
    judge: Callable[[View], Verdict],
    combine: Callable[[Trigger, Trigger], Trigger],
    may_be_due: Callable[[Bounds], bool],
    is_likely_due: Callable[[Bounds], bool],
) -> Trigger:
    goes_by_prompts, calls_host = first.goes_by_prompts or second.goes_by_prompts, first.calls_host or second.calls_host
    name = f"({first!r} {sign} {second!r})"
    return Trigger(judge, name, (first, second), combine, may_be_due, is_likely_due, goes_by_prompts, calls_host)


def _combine(verdicts: list[Verdict], counted: list[Verdict], *, is_due: bool) -> Verdict:
    """Return one verdict for *verdicts*, with the thresholds and sizes of those that are *counted*."""
    thresholds = [verdict.token_threshold for verdict in counted if verdict.token_threshold is not None]
    evaluation = next((verdict.cost_evaluation for verdict in verdicts if verdict.cost_evaluation is not None), None)
    sizes = [verdict.exceeds for verdict in counted]
    exceeds = None if None in sizes else frozenset[Size]().union(*(size for size in sizes if size is not None))
    recheck_in = min((verdict.recheck_in for verdict in verdicts if verdict.recheck_in is not None), default=None)
    return Verdict(is_due, min(thresholds, default=None) if is_due else None, evaluation, exceeds, recheck_in)
