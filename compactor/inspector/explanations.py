"""Sentences for events and checks: each decision, and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..acceptance.checks import CHECKS

#: Why a compactor did nothing, by reason.
SKIPS = {
    "disabled": "it is disabled",
    "empty": "there is no round yet",
    "reverted": "a summary was reverted, and no newer round has come since",
    "below_trigger": "its trigger is not due",
    "nothing_closed": "all rounds after the summary are open, or follow an open one",
    "nothing_new": "the newest rounds are retained, and too few others are new",
    "too_little": "the new rounds say too little to be summarized",
    "leased": "another process is compacting this session",
    "limited": "the shared limits have no room; it waits in the queue",
    "paused": "the event loop of its coroutines is not running",
    "dispatched": "a worker was asked to compact",
}
COSTS = {
    "grown": "the new rounds have grown enough to pay for a summary",
    "pause": "a pause is likely to outlast the provider's cache",
    "budget": "the budget is near",
    "configured": "the host's own threshold is passed",
    "below_best": "the new rounds would not pay for a summary yet",
    "nothing_to_cover": "there is nothing to cover",
    "ends_soon": "the conversation ends soon",
}


def describe_check(name: str) -> str:
    """Return why a summary was refused; empty if no check has that name."""
    return CHECKS.get(name, "")


def describe_event(name: str, facts: Mapping[str, Any]) -> str:  # noqa: PLR0912  (a branch a kind)
    """Return a sentence for an event; without a sentence, list its fields."""
    get = facts.get
    match name:
        case "compaction.evaluated":
            due = "a compaction is due" if get("is_due") else "no compaction is due"
            return f"Evaluated {get('rounds')} rounds, {get('tail')} after the summary: {due}."
        case "compaction.skipped":
            return f"Did nothing: {SKIPS.get(str(get('reason')), get('reason'))}."
        case "compaction.cost_evaluated":
            due = "Worth its price" if get("is_due") else "Not worth its price"
            return f"{due}: {COSTS.get(str(get('reason')), get('reason'))} ({_number(get('tokens'))} tokens now)."
        case "compaction.deferred":
            shown = "Shows the prepared summary" if get("shows") else "Defers the prepared summary"
            return f"{shown}: {get('reason')}."
        case "compaction.started":
            return (
                f"Requests a summary of rounds {get('start')} to {get('end')}, {_number(get('tokens_before'))} tokens."
            )
        case "compaction.prepared":
            return f"A summary of rounds {get('start')} to {get('end')} passed its checks."
        case "compaction.rejected":
            attempt = f"Refused attempt {get('attempt')} of {get('attempts')} at rounds {get('start')} to {get('end')}"
            unknown = ", ".join(tuple(get("unknown_identifiers") or ())[:5])
            return f"{attempt}: {describe_check(str(get('check')))}{f', such as {unknown}' if unknown else ''}."
        case "compaction.published":
            saved = f"{_number(get('tokens_before'))} to {_number(get('tokens_after'))} tokens"
            return f"A summary now replaces rounds {get('start')} to {get('end')}: {saved}."
        case "compaction.reduced":
            saved = f"{_number(get('tokens_before'))} to {_number(get('tokens_after'))} tokens"
            return f"{get('strategy')} {get('kind')} posts: {saved}."
        case "compaction.failed":
            error = str(get("error"))
            retry = f" Tries again in {get('retry_in'):.0f} s." if isinstance(get("retry_in"), int | float) else ""
            return f"No summary: {describe_check(error) or error}.{retry}"
        case "compaction.discarded":
            return f"Discarded a result: {str(get('reason')).replace('_', ' ')}."
        case "compaction.reverted":
            return f"Reverted: the summary covers rounds 1 to {get('end')}." if get("end") else "Reverted: no summary."
        case "compaction.stopped":
            return f"Stopped: {str(get('reason')).replace('_', ' ')}."
        case _:
            skip = ("at", "session", "role", "generation")
            return ", ".join(f"{key} {value}" for key, value in facts.items() if key not in skip) or name


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
