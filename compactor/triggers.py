"""When to compact: conditions on a View that combine with ``&`` and ``|``."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import CompactorConfig, whole_number

if TYPE_CHECKING:
    from .view import View

__all__ = [
    "Condition",
    "Trigger",
    "Verdict",
    "after_rounds",
    "default_trigger",
    "over_messages",
    "over_tokens",
    "over_usage",
    "when",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trigger says of a view."""

    holds: bool
    #: The number of tokens that the prompt has passed, where that is why it holds.
    mark: int | None = None

    def __bool__(self) -> bool:
        return self.holds


Condition = Callable[["View"], "bool | Verdict | Awaitable[bool]"]


class Trigger:
    """A condition on a view. ``trigger(view)`` is a bool; ``a & b`` and ``a | b`` take any callable as the other."""

    def __init__(self, judge: Callable[[View], Verdict], name: str) -> None:
        self._judge = judge
        self._name = name

    def verdict(self, view: View) -> Verdict:
        return self._judge(view)

    def __call__(self, view: View) -> bool:
        return self._judge(view).holds

    def __or__(self, other: Condition) -> Trigger:
        return _either(self, when(other))

    def __ror__(self, other: Condition) -> Trigger:
        return _either(when(other), self)

    def __and__(self, other: Condition) -> Trigger:
        return _both(self, when(other))

    def __rand__(self, other: Condition) -> Trigger:
        return _both(when(other), self)

    def __repr__(self) -> str:
        return self._name


def after_rounds(n: int) -> Trigger:
    """Hold when more than *n* visible rounds stand after the compaction's end."""
    whole_number("rounds", n)
    return Trigger(lambda view: Verdict(view.tail_length > n), f"after_rounds({n})")


def over_messages(n: int) -> Trigger:
    """Hold when the tail is more than *n* chat messages."""
    whole_number("messages", n)
    return Trigger(lambda view: Verdict(view.messages > n), f"over_messages({n})")


def over_tokens(n: float) -> Trigger:
    """Hold when the whole prompt is over *n* tokens as its provider counts; a float up to 1.0: over that share of the
    model's window."""
    share = isinstance(n, float) and n <= 1
    if share and not n > 0:
        raise ValueError(f"a share of the window lies between 0 and 1, not at {n}; for tokens give a whole number")
    if not share:
        whole_number("tokens", n, 1)

    def judge(view: View) -> Verdict:
        mark = int(n * view.window) if share else int(n)
        return Verdict(True, mark) if view.corrected_tokens > mark else Verdict(False)

    return Trigger(judge, f"over_tokens({n})")


def over_usage(n: int, until: int | None = None) -> Trigger:
    """Hold from *n* tokens on: of the last response's prompt as its provider counted it, or else as we do.

    Within a pass, once something was published, hold until there are fewer than *until*, if that is given: so that the
    next pass, which changes the prompt again, is some way off.
    """
    whole_number("tokens", n, 1)
    least = n if until is None else min(whole_number("until", until, 1), n)

    def judge(view: View) -> Verdict:
        counted = view.usage.input_tokens
        bound = n if view.as_composed else least
        holds = (view.corrected_tokens if counted is None else counted) >= bound
        return Verdict(holds, n if holds else None)

    return Trigger(judge, f"over_usage({n})")


def when(condition: Condition) -> Trigger:
    """Hold when *condition*, any callable ``View -> bool``, says so; an async one is run to its end."""
    if isinstance(condition, Trigger):
        return condition
    if not callable(condition):
        raise TypeError(f"a trigger is a callable View -> bool, not {type(condition).__name__}")

    def judge(view: View) -> Verdict:
        said = condition(view)
        if inspect.isawaitable(said):
            import asyncio

            said = asyncio.run(_awaited(said))
        return said if isinstance(said, Verdict) else Verdict(bool(said))

    return Trigger(judge, getattr(condition, "__name__", type(condition).__name__))


def default_trigger(config: CompactorConfig) -> Trigger:
    """Return what *config* asks for: more rounds than its threshold, or a prompt near its token limit."""
    rounds = after_rounds(config.threshold)
    if config.max_tokens is None:
        return rounds
    return rounds | over_tokens(max(1, int(config.max_tokens * config.token_ratio)))


async def _awaited(said: Awaitable[bool]) -> bool:
    return await said


def _either(first: Trigger, second: Trigger) -> Trigger:
    def judge(view: View) -> Verdict:
        said = [verdict for verdict in (first.verdict(view), second.verdict(view)) if verdict.holds]
        return Verdict(bool(said), _lowest(said))

    return Trigger(judge, f"({first!r} | {second!r})")


def _both(first: Trigger, second: Trigger) -> Trigger:
    def judge(view: View) -> Verdict:
        said = [first.verdict(view)]
        if said[0].holds:
            said.append(second.verdict(view))
        holds = all(verdict.holds for verdict in said)
        return Verdict(holds, _lowest(said) if holds else None)

    return Trigger(judge, f"({first!r} & {second!r})")


def _lowest(said: list[Verdict]) -> int | None:
    return min((verdict.mark for verdict in said if verdict.mark is not None), default=None)
