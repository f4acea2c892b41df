"""``selective``: old posts leave by kind, rule by rule, and only then are rounds summarised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memory.arguments import ConfigError, check_number, check_whole_number, require

from ..config import CompactorConfig, check_config
from ..cycle import Strategy
from ..prompt.groups import parse_kind
from ..strategies import compact_rounds, drop, pin_system
from ..strategies.drop import list_pairs
from ..tokens import DEFAULT_WINDOW, window_of
from ..triggers import over_usage

#: Kinds in the order in which they leave, and how many of the newest stay. Skills can be loaded again, so none stays.
SELECTIVE_RULES = (("tool_result", 3), ("skill_prompt", 0), ("assistant", 5), ("skill_metadata", 0), ("user", 5))
#: The share of the model's window at which it is due.
THRESHOLD_RATIO = 0.8
#: Once due, posts leave until the prompt is under this share of the threshold: rarely and many, so that a provider's
#: prefix cache stays useful in between.
RELIEF_SHARE = 0.75

Rules = Mapping[str, Any] | Iterable[tuple[str, Any]]


def selective(
    *,
    model: str = "",
    threshold_ratio: float = THRESHOLD_RATIO,
    windows: Mapping[str, int] | None = None,
    rules: Rules | None = None,
    keep_rounds: int = 0,
    keep_system: bool = True,
    fallback_to_full_summary: bool = True,
    summary_retry_attempts: int = 2,
    cooldown_failures: int = 2,
    cooldown_seconds: float = 8.0,
    summarizer: object | None = None,
    max_token: int | None = None,
    config: CompactorConfig | None = None,
) -> dict[str, Any]:
    """Return options for ``ContextCompactor.for_role(memory, role, **selective(...))``.

    Due when the provider's last response counted *threshold_ratio* of *model*'s window (``memory.record_usage``), or we
    count as much and it has counted nothing since the prompt changed. The window is *max_token*; else the one in
    *windows* by the beginning of the model's name; else the known one, or 128,000 tokens.

    *rules* change how many of the newest posts of a kind stay, None for all: ``{"tool_result": 8}``. Pairs in order of
    priority, ``[("tool_result", 8), ("user", 2)]``, replace all rules. Kinds are those of ``drop``, in any spelling;
    instead of the number a rule may have a ``strategy`` (drop, truncate, none) and ``keep_recent``. Each rule is a
    strategy of its own, so dropping stops as soon as enough is gone; then, with *fallback_to_full_summary*, all closed
    rounds become the one summary.

    All text of the newest *keep_rounds* rounds stays, but not their calls and results. With *keep_system*, system
    messages inside the conversation are pinned before a summary. A refused summary is asked for again up to
    *summary_retry_attempts* times; after *cooldown_failures* failures in a row, compaction pauses for
    *cooldown_seconds*. All other settings come from *config*, also the model if none is given. Raises ``ConfigError``
    for invalid settings.
    """
    check_number("threshold_ratio", threshold_ratio, maximum=1.0, above=True)
    require("windows", windows, Mapping | None, "windows in tokens by model")
    require("model", model, str, "a text")
    for name, tokens in (windows or {}).items():
        check_whole_number(f"windows.{name}", tokens, 1)
    check_whole_number("keep_rounds", keep_rounds)
    check_whole_number("cooldown_failures", cooldown_failures, 1)
    check_number("cooldown_seconds", cooldown_seconds, above=True)
    given = check_config(config).with_defaults(retain_recent=keep_rounds)
    model = model or given.model
    window = window_of(model, windows) or DEFAULT_WINDOW
    if max_token is not None:
        window = check_whole_number("max_token", max_token, 1)
    threshold = max(1, int(window * threshold_ratio))
    drops: tuple[Strategy, ...] = tuple(drop(kind, kept, keep_rounds=keep_rounds) for kind, kept in _merge_rules(rules))
    return {
        "config": given.copy_with(
            model=model,
            retain_at_least=keep_rounds,
            max_tokens=window,
            token_ratio=threshold_ratio,
            summary_attempts=check_whole_number("summary_retry_attempts", summary_retry_attempts) + 1,
            circuit_breaker_failures=cooldown_failures,
            circuit_breaker_reset=cooldown_seconds,
        ),
        "trigger": over_usage(threshold, max(1, int(threshold * RELIEF_SHARE))),
        "strategies": (*drops, *((pin_system(),) if keep_system else ()), compact_rounds)
        if fallback_to_full_summary
        else drops,
        **({} if summarizer is None else {"summarizer": summarizer}),
    }


def _merge_rules(rules: Rules | None) -> list[tuple[str, int]]:
    """Return all rules in order of priority."""
    if rules is not None and not isinstance(rules, Mapping):
        try:
            listed = list_pairs(rules)
        except TypeError:
            raise ConfigError(("rules", "must be rules by kind, {'tool_result': 8}, or a list of such pairs")) from None
        pairs = [(_read_kind(kind), _read_number(kind, rule)) for kind, rule in listed]
        return [(kind, kept) for kind, kept in pairs if kept is not None]
    changed: dict[str, int | None] = {}
    for given, rule in (rules or {}).items():
        kept = _read_number(given, rule)
        kind = _read_kind(given, stays=kept is None)
        if kind in changed:
            raise ConfigError((f"rules.{given}", f"sets the same as another spelling of {kind!r}; keep one"))
        changed[kind] = kept
    every = dict(SELECTIVE_RULES) | changed
    return [(kind, kept) for kind, kept in every.items() if kept is not None]


def _read_number(kind: object, rule: object) -> int | None:
    """Return how many of a kind's newest posts *rule* keeps; None: all."""
    if rule is None or isinstance(rule, int | float):
        return None if rule is None else check_whole_number(f"rules.{kind}.keep_recent", rule)
    strategy, kept = (
        (rule.get("strategy"), rule.get("keep_recent"))
        if isinstance(rule, Mapping)
        else (getattr(rule, "strategy", rule), getattr(rule, "keep_recent", None))
    )
    match str(getattr(strategy, "value", strategy)).lower():
        case "drop":
            return 0
        case "none":
            return None
        case "truncate":
            return check_whole_number(f"rules.{kind}.keep_recent", kept)
    raise ConfigError((f"rules.{kind}", "must be the number that stays, or a strategy: drop, truncate, none"))


def _read_kind(name: object, *, stays: bool = False) -> str:
    try:
        return parse_kind(name, stays=stays)
    except ValueError as error:
        raise ConfigError((f"rules.{name}", str(error))) from None
