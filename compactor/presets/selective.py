"""``selective``: old posts leave by kind, rule by rule, and only then are rounds summarised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..config import CompactorConfig, ConfigError
from ..cycle import Strategy
from ..strategies import compact_rounds, drop
from ..tokens import DEFAULT_WINDOW, window_of
from ..triggers import Trigger, Verdict
from ..view import View

__all__ = ["RULES", "THRESHOLD_RATIO", "over_usage", "selective", "window_for"]

#: What leaves first, and how many of its newest stay. Skills can be loaded again, so none of their texts has to.
RULES = (("tool_result", 3), ("skill_prompt", 0), ("assistant", 5), ("skill_metadata", 0), ("user", 5))
#: The share of the model's window at which it is due.
THRESHOLD_RATIO = 0.8
#: What the same kinds are called elsewhere.
_KNOWN_AS = {"assistant_message": "assistant", "user_message": "user"}

Rules = Mapping[str, int | None] | Iterable[tuple[str, int]]


def selective(
    *,
    model: str = "",
    threshold_ratio: float = THRESHOLD_RATIO,
    windows: Mapping[str, int] | None = None,
    rules: Rules | None = None,
    fallback_to_full_summary: bool = True,
    summary_retry_attempts: int = 2,
    cooldown_failures: int = 2,
    cooldown_seconds: float = 8.0,
    summarizer: object | None = None,
    max_token: int | None = None,
    **config: Any,
) -> dict[str, Any]:
    """Return what ``ContextCompactor.for_role(memory, role, **selective(...))`` takes beside memory and role.

    Due when the provider counted *threshold_ratio* of *model*'s window at its last response (``memory.record_usage``),
    or we do where it said nothing since the prompt last changed. The window is *max_token*, where that is given; else
    that of *windows*, by the beginning of the model's name; else the known one, or 128,000 tokens.

    *rules* change the number of newest posts that stay, by kind, None for all of them: ``{"tool_result": 8}``; given in
    order of priority, ``[("tool_result", 8), ("user", 2)]``, they are all the rules. Kinds are those of ``drop``. Each
    is a strategy of its own, so it stops as soon as enough is gone; then, with *fallback_to_full_summary*, all closed
    rounds become the one summary. A summary that is refused is asked for again *summary_retry_attempts* times; after
    *cooldown_failures* failures in a row nothing is tried for *cooldown_seconds*. *config* is what else
    ``CompactorConfig`` takes.
    """
    if (
        isinstance(threshold_ratio, bool)
        or not isinstance(threshold_ratio, int | float)
        or not 0 < threshold_ratio <= 1
    ):
        raise ConfigError(("threshold_ratio", f"should be a share, over 0 and at most 1, not {threshold_ratio!r}"))
    if max_token is not None:
        _checked_tokens("max_token", max_token)
    window = window_for(model, windows) if max_token is None else max_token
    settings: dict[str, Any] = {
        "model": model,
        "max_tokens": window,
        "token_ratio": float(threshold_ratio),
        "retain_recent": 0,
        "summary_attempts": _attempts(summary_retry_attempts),
        "circuit_failures": cooldown_failures,
        "circuit_reset": cooldown_seconds,
    }
    drops: tuple[Strategy, ...] = tuple(drop(kind, kept) for kind, kept in _ordered(rules))
    return {
        "config": CompactorConfig(**settings | config),
        "summarizer": summarizer,
        "trigger": over_usage(max(1, int(window * threshold_ratio))),
        "strategies": (*drops, compact_rounds) if fallback_to_full_summary else drops,
    }


def over_usage(mark: int) -> Trigger:
    """Hold from *mark* tokens on: of the last response's prompt as its provider counted it, or else as we do."""

    def judge(view: View) -> Verdict:
        counted = view.usage.input_tokens
        holds = (view.corrected_tokens if counted is None else counted) >= mark
        return Verdict(holds, mark if holds else None)

    return Trigger(judge, f"over_usage({mark})")


def window_for(model: str, windows: Mapping[str, int] | None = None) -> int:
    """Return the context window of *model* in tokens: of *windows*, the longest name that it begins with; else the one
    that this library knows; else 128,000. What stands before the last slash of a name is its provider's."""
    own = {}
    for name, tokens in (windows or {}).items():
        own[name.lower()] = _checked_tokens(f"windows.{name}", tokens)
    full = model.lower()
    fitting = [name for name in own if name and (full.startswith(name) or full.rpartition("/")[2].startswith(name))]
    if fitting:
        return own[max(fitting, key=len)]
    return window_of(model) or DEFAULT_WINDOW


def _ordered(rules: Rules | None) -> list[tuple[str, int]]:
    """Return the rules in order of priority."""
    if rules is not None and not isinstance(rules, Mapping):
        return [(_KNOWN_AS.get(kind, kind), kept) for kind, kept in rules]
    changed = {_KNOWN_AS.get(kind, kind): kept for kind, kept in (rules or {}).items()}
    every = dict(RULES) | changed
    return [(kind, kept) for kind, kept in every.items() if kept is not None]


def _attempts(retries: int) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigError(("summary_retry_attempts", f"should be a whole number from 0 on, not {retries!r}"))
    return retries + 1


def _checked_tokens(name: str, tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError((name, f"should be a whole number of tokens from 1 on, not {tokens!r}"))
    return tokens
