"""When to compact: conditions on a View that combine with ``&`` and ``|``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from memory.arguments import require_callable

from .config import CompactorConfig, whole_number

if TYPE_CHECKING:
    from .events import CostEvaluated
    from .view import View

__all__ = [
    "Condition",
    "Size",
    "Trigger",
    "Verdict",
    "after_rounds",
    "default_trigger",
    "over_messages",
    "over_tokens",
    "over_usage",
    "when",
]


#: What a trigger measures. Shorter texts mean fewer tokens but no fewer messages.
Size = Literal["messages", "tokens"]
_MESSAGES: frozenset[Size] = frozenset({"messages"})
_TOKENS: frozenset[Size] = frozenset({"tokens"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trigger's verdict on a view."""

    is_due: bool
    #: The number of tokens that the prompt has passed, if that is why it is due.
    mark: int | None = None
    #: The numbers behind it, if costs were weighed: an event that still lacks role and generation.
    cost_evaluation: CostEvaluated | None = None
    #: The sizes that are over their marks, so that a strategy can tell whether it helps; None: unknown.
    exceeds: frozenset[Size] | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return self.is_due


Condition = Callable[["View"], "bool | Verdict | Awaitable[bool]"]


class Trigger:
    """A condition on a view. ``trigger(view)`` is a bool; ``a & b`` and ``a | b`` take any callable as the other."""

    def __init__(self, judge: Callable[[View], Verdict], name: str, parts: tuple[Trigger, ...] = ()) -> None:
        self._judge = judge
        self._name = name
        #: The triggers that it combines.
        self.parts = parts

    def within(self, config: CompactorConfig) -> Trigger:  # noqa: ARG002  (for triggers that use more than the view)
        """Return the trigger for a compactor of that configuration."""
        return self

    def verdict(self, view: View) -> Verdict:
        return self._judge(view)

    def __call__(self, view: View) -> bool:
        return self._judge(view).is_due

    def __or__(self, other: Condition) -> Trigger:
        return _Either(self, when(other))

    def __ror__(self, other: Condition) -> Trigger:
        return _Either(when(other), self)

    def __and__(self, other: Condition) -> Trigger:
        return _Both(self, when(other))

    def __rand__(self, other: Condition) -> Trigger:
        return _Both(when(other), self)

    def __repr__(self) -> str:
        return self._name


def after_rounds(n: int) -> Trigger:
    """Be due when more than *n* visible rounds follow the compaction's end."""
    whole_number("rounds", n)
    return Trigger(lambda view: Verdict(view.tail_length > n), f"after_rounds({n})")


def over_messages(n: int) -> Trigger:
    """Be due when the tail has more than *n* chat messages."""
    whole_number("messages", n)
    return Trigger(lambda view: Verdict(view.messages > n, exceeds=_MESSAGES), f"over_messages({n})")


def over_tokens(n: float) -> Trigger:
    """Be due when the whole prompt has over *n* tokens as its provider counts; a float up to 1.0 is a share of the
    model's window."""
    share = isinstance(n, float) and n <= 1
    if share and not n > 0:
        raise ValueError(f"a share of the window lies between 0 and 1, not at {n}; for tokens give a whole number")
    if not share:
        whole_number("tokens", n, 1)

    def judge(view: View) -> Verdict:
        mark = int(n * view.window) if share else int(n)
        return Verdict(True, mark, exceeds=_TOKENS) if view.corrected_tokens > mark else Verdict(False)

    return Trigger(judge, f"over_tokens({n})")


def over_usage(n: int, until: int | None = None) -> Trigger:
    """Be due from *n* tokens on: of the last response's prompt as its provider counted it, or else as we count.

    Once a pass has published something, stay due until there are fewer than *until* tokens, if that is given. So the
    next pass, which changes the prompt again, comes later.
    """
    whole_number("tokens", n, 1)
    least = n if until is None else min(whole_number("until", until, 1), n)

    def judge(view: View) -> Verdict:
        counted = view.usage.input_tokens
        bound = n if view.as_composed else least
        is_due = (view.corrected_tokens if counted is None else counted) >= bound
        return Verdict(is_due, n if is_due else None, exceeds=_TOKENS)

    return Trigger(judge, f"over_usage({n})")


#: Functions that return a trigger. Passed themselves as a trigger, they would take the view for their number.
FACTORIES: tuple[object, ...] = (after_rounds, over_messages, over_tokens, over_usage)


def when(condition: Condition) -> Trigger:
    """Be due when *condition*, any callable ``View -> bool``, returns True; an async one is run to its end."""
    if isinstance(condition, Trigger):
        return condition
    if condition in FACTORIES:
        raise TypeError(f"a trigger is what {condition.__name__}(...) gives, not the function itself")
    require_callable("a trigger", condition, "a callable View -> bool")

    def judge(view: View) -> Verdict:
        said = condition(view)
        if inspect.isawaitable(said):
            import asyncio

            said = asyncio.run(_awaited(said))
        return said if isinstance(said, Verdict) else Verdict(bool(said))

    return Trigger(judge, getattr(condition, "__name__", type(condition).__name__))


def default_trigger(config: CompactorConfig) -> Trigger:
    """Return the trigger of *config*: more rounds than its threshold, or a prompt near its token limit."""
    rounds = after_rounds(config.threshold)
    if config.max_tokens is None:
        return rounds
    return rounds | over_tokens(max(1, int(config.max_tokens * config.token_ratio)))


async def _awaited(said: Awaitable[bool]) -> bool:
    return await said


class _Either(Trigger):
    def __init__(self, first: Trigger, second: Trigger) -> None:
        super().__init__(self._either, f"({first!r} | {second!r})", (first, second))

    def within(self, config: CompactorConfig) -> Trigger:
        return _Either(*(part.within(config) for part in self.parts))

    def _either(self, view: View) -> Verdict:
        said = [part.verdict(view) for part in self.parts]
        holding = [verdict for verdict in said if verdict.is_due]
        return Verdict(bool(holding), _lowest(holding), _weighed(said), _exceeded(holding))


class _Both(Trigger):
    def __init__(self, first: Trigger, second: Trigger) -> None:
        super().__init__(self._both, f"({first!r} & {second!r})", (first, second))

    def within(self, config: CompactorConfig) -> Trigger:
        return _Both(*(part.within(config) for part in self.parts))

    def _both(self, view: View) -> Verdict:
        said = [self.parts[0].verdict(view)]
        if said[0].is_due:
            said.append(self.parts[1].verdict(view))
        is_due = all(verdict.is_due for verdict in said)
        return Verdict(is_due, _lowest(said) if is_due else None, _weighed(said), _exceeded(said))


def _lowest(said: list[Verdict]) -> int | None:
    return min((verdict.mark for verdict in said if verdict.mark is not None), default=None)


def _exceeded(said: list[Verdict]) -> frozenset[Size] | None:
    """Return all sizes that are exceeded; None if one of the verdicts does not say."""
    known = [verdict.exceeds for verdict in said if verdict.exceeds is not None]
    return frozenset[Size]().union(*known) if len(known) == len(said) else None


def _weighed(said: list[Verdict]) -> CostEvaluated | None:
    return next((verdict.cost_evaluation for verdict in said if verdict.cost_evaluation is not None), None)
