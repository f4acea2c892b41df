"""The tables of the comparison, in Markdown, and the same numbers as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .conversations import Scenario
from .money import LISTS
from .playing import Outcome

__all__ = ["BASELINE", "cpu_table", "least_table", "numbers", "quantile", "related", "table", "waiting", "words_table"]

#: To whose cost that of all is relative: no compaction.
BASELINE = "nothing"

CPU_ABOUT = (
    "Of the whole process, background included, where the model takes no time; the mean of the 100 turns up to each."
)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of *values* that at least *share* of them do not pass."""
    ordered = sorted(values)
    return ordered[max(-int(-len(ordered) * share // 1), 1) - 1]


def waiting(seconds: float) -> str:
    """Return a time as people write it: three digits, in ms below a second."""
    if seconds < 1:
        return f"{seconds * 1_000:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"
    return f"{seconds:.{1 if seconds < 100 else 0}f} s"


def numbers(scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """Return everything that is shown of *outcome* by itself, and what the tables have no room for."""
    agent, asked = outcome.agent, outcome.summarizer
    answered = [one for one in asked if one.status == 200]
    read, given = sum(one.input for one in agent), sum(one.cached for one in agent)
    sent, found = sum(one.input for one in answered), sum(one.cached for one in answered)
    tokens, later = scenario.tokens, outcome.held[1:] or outcome.held
    return {
        "name": outcome.name,
        "version": outcome.version,
        "settings": outcome.settings,
        "background": outcome.background,
        "held_first": outcome.held[0],
        "held_p50": quantile(later, 0.5),
        "held_p99": quantile(later, 0.99),
        "held_max": max(later),
        "held_total": sum(outcome.held),
        "held_cpu": sum(outcome.busy),
        "beside_cpu": max(sum(outcome.cpu) - sum(outcome.busy), 0.0),
        "cpu_total": sum(outcome.cpu),
        "cost": [cost.total for cost in outcome.costs],
        "per_token": [(cost.total - cost.agent_output) / tokens for cost in outcome.costs],
        "agent_input": read,
        "agent_cached": given / read if read else 0.0,
        "summarizer_requests": len(asked),
        "summarizer_input": sent,
        "summarizer_cached": found / sent if sent else 0.0,
        "summarizer_output": sum(one.output for one in answered),
        "amplification": sent / tokens,
        "peak_prompt": max((one.input for one in agent), default=0),
        "over_budget": outcome.over_budget,
        "failed_turns": len(outcome.failed),
        "failures": list(outcome.failed[:3]),
        "until_again": _until_again(scenario, outcome),
        "facts": len(scenario.facts),
        "facts_in_prompt": outcome.facts_in_prompt,
        "facts_kept": outcome.facts_kept,
        "change_words": scenario.change_words[0],
        "depth": statistics.fmean(outcome.depths.values()) if outcome.depths else None,
        "measures": outcome.measures,
    }


def related(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *rows* with their cost relative to that of no compaction, where this is among them."""
    nothing = next((row["cost"] for row in rows if row["label"] == BASELINE), None)
    return [_relate(row, nothing) for row in rows]


def _relate(row: Mapping[str, Any], nothing: Sequence[float] | None) -> dict[str, Any]:
    by_words = {words: _relate(one, nothing) for words, one in row.get("by_words", {}).items()}
    return {**row, "by_words": by_words, "relative": nothing and _shares(row["cost"], nothing)}


def _shares(costs: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [cost / whole for cost, whole in zip(costs, wholes, strict=True)]


def _until_again(scenario: Scenario, outcome: Outcome) -> int | None:
    """Return how many turns after an outage a summary was asked for and given; None where that never was."""
    if scenario.outage is None:
        return None
    last = scenario.outage.last
    return min((one.turn - last for one in outcome.summarizer if one.status == 200 and one.turn > last), default=None)


def table(scenario: Scenario, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one scenario as a table; *rows* are ``numbers``."""
    rows = list(rows)
    relative = any(row["relative"] for row in rows)
    cost = "cost, no compaction = 1" if relative else "cost per token of conversation, without the agent's output"
    heads = [
        "",
        "held up: first turn",
        "later ones: p50",
        "p99",
        "max",
        "total",
        "CPU beside the turns",
        f"{cost}<br>{' / '.join(one.name for one in LISTS)}",
        "agent's input, of it cached",
        "summarizer: requests, input per token of conversation, of it cached",
        "peak prompt",
        "over budget",
    ]
    if scenario.outage is not None:
        heads += ["failed turns", "turns until the next summary"]
    if scenario.facts:
        heads += ["facts in the last prompt / kept raw", "summaries each went through"]
    lines = [_line(heads), _line(["---", *["--:"] * (len(heads) - 1)])]
    body = [_line(_cells(scenario, row)) for row in rows]
    return "\n".join([f"### {scenario.name}", "", f"{scenario.about}.", "", *lines, *body, ""])


def _cells(scenario: Scenario, row: Mapping[str, Any]) -> list[str]:
    costs = row["relative"] or row["per_token"]
    asked = "–"
    if row["summarizer_requests"]:
        asked = f"{row['summarizer_requests']}, {row['amplification']:.2f}, {row['summarizer_cached']:.0%}"
    cells = [
        row["name"],
        waiting(row["held_first"]),
        waiting(row["held_p50"]),
        waiting(row["held_p99"]),
        waiting(row["held_max"]),
        waiting(row["held_total"]),
        waiting(row["beside_cpu"]),
        " / ".join(f"{cost:.2f}" for cost in costs),
        f"{row['agent_input']:,}, {row['agent_cached']:.0%}",
        asked,
        f"{row['peak_prompt']:,}",
        str(row["over_budget"]),
    ]
    if scenario.outage is not None:
        cells += [str(row["failed_turns"]), "–" if row["until_again"] is None else str(row["until_again"])]
    if scenario.facts:
        cells.append(f"{row['facts_in_prompt']}/{row['facts']}, {row['facts_kept']}/{row['facts']}")
        cells.append("–" if row["depth"] is None else f"{row['depth']:.1f}")
    return cells


def words_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the relative cost of those that were played with several lengths of the model's changes, by the first list
    of prices, and how many summaries each fact went through."""
    found = [(row, {row["change_words"]: row} | {int(at): one for at, one in row["by_words"].items()}) for row in rows]
    lengths = sorted({words for _, by_words in found if len(by_words) > 1 for words in by_words})
    if not lengths:
        return ""
    lines = [_line(["changes of so many words: cost, and summaries each fact went through", *map(str, lengths)])]
    lines.append(_line(["---", *["--:"] * len(lengths)]))
    for row, by_words in found:
        if len(by_words) > 1:
            lines.append(_line([row["name"], *(_cost_and_depth(by_words.get(words)) for words in lengths)]))
    return "\n".join([*lines, ""])


def _cost_and_depth(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    cost = (row["relative"] or row["per_token"])[0]
    return f"{cost:.2f}" + (f" ({row['depth']:.1f})" if row["depth"] is not None else "")


def least_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return for each of ours what a token of conversation cost, without the agent's output, beside the least that the
    formula gives for the sizes that were met."""
    names = [one.name for one in LISTS]
    sent = "covered tokens sent, times (minor)"
    lines = [_line(["", *(f"J, {name}" for name in names), *(f"W*, {name}" for name in names), sent, "majors"])]
    lines.append(_line(["---", *["--:"] * 2 * (len(names) + 1)]))
    for row in rows:
        if "least" in row:
            paid = zip(row["per_token"], row["least"], strict=True)
            shares = [f"{cost:.2f} of {best['least']:.2f} ({cost / best['least']:.2f})" for cost, best in paid]
            every = (f"{best['every']:,.0f}" for best in row["least"])
            measured = row["measures"]
            times = f"{measured['sent_times']:.3f}" if "sent_times" in measured else "–"
            lines.append(_line([row["name"], *shares, *every, times, f"{measured.get('majors', 0):.0f}"]))
    return "\n".join([*lines, ""])


def cpu_table(marks: Sequence[int], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the CPU of a turn at each of *marks*, for results of ``driver.alone``."""
    heads = ["", *(f"turn {mark:,}" for mark in marks), "all turns"]
    lines = [_line(heads), _line(["---", *["--:"] * (len(heads) - 1)])]
    for row in rows:
        cells = [waiting(row["cpu"][str(mark)]) if str(mark) in row["cpu"] else "–" for mark in marks]
        lines.append(_line([row["name"], *cells, f"{waiting(row['seconds'])} for {row['reached']:,}"]))
    return "\n".join(["### own CPU per turn", "", CPU_ABOUT, "", *lines, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
