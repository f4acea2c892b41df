"""What a replay prints: progress while it runs, a table, the last prompt, or one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..events import visible
from . import savings_tables
from .replay import Replayed, Setup, replay, saved, shortened, totals
from .terminal import counted, milliseconds, one_line, percent
from .transcripts import Conversation

#: So many conversations get a line each; of more only the totals are printed.
_FEW = 20
#: Characters of a message that --show prints; a summary is printed whole.
_SHOWN = 400


def replay_all(conversations: Sequence[Conversation], setup: Setup, console: Console | None) -> list[Replayed]:
    """Return what came of each of *conversations*, with a progress bar on *console* where there is one."""
    if console is None:
        return [replay(conversation, setup) for conversation in conversations]
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("messages"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(len(conversation.messages) for conversation in conversations))
        return [replay(conversation, setup, lambda: progress.advance(task)) for conversation in conversations]


def document(file: str, results: Sequence[Replayed], setup: Setup, *, joined: bool) -> dict[str, Any]:
    """Return everything as one JSON document."""
    config = setup.options()["config"]
    return {
        "file": file,
        "joined": joined,
        "budget": setup.budget,
        "preset": setup.preset or None,
        "threshold": None if setup.preset else config.threshold,  # presets have triggers of their own
        "retain_recent": config.retain_recent,
        "prompt": config.prompt.name,
        "summarizer": "extractive" if setup.summarizer is None else "openai",
        "conversations": [result.figures() for result in results],
        "totals": totals(results),
    }


def table(results: Sequence[Replayed], console: Console) -> None:
    """Print a row for each result, if they are few, the totals, and what was saved by what."""
    sums = totals(results)
    if 1 < len(results) <= _FEW:
        console.print(_rows(results))
    said = f"conversation {results[0].name}" if len(results) == 1 else f"{len(results)} conversations"
    summary = Table(title=f"{said}: {counted(sums['messages'], 'message')}", title_justify="left", show_header=False)
    summary.add_column("")
    summary.add_column("", justify="right")
    for name, value in _summary(sums):
        summary.add_row(name, value)
    console.print(summary)
    console.print(savings_tables.strategies(saved(results)))
    if any(level.prompts for level in shortened(results).values()):
        console.print(savings_tables.ladder(shortened(results)))
    if sums["failures"]:
        console.print(
            f"{counted(sums['failures'], 'attempt')} at a summary failed; what was there before stayed in place."
        )


def _summary(sums: Mapping[str, Any]) -> list[tuple[str, str]]:
    last = "last prompt" if sums["conversations"] == 1 else "last prompts, together"
    return [
        ("rounds", f"{sums['rounds']:,}"),
        ("rounds summarised", f"{sums['covered_rounds']:,}"),
        ("compactions", f"{sums['compactions']:,}"),
        ("reductions", f"{sums['reductions']:,}"),
        (f"{last}: raw tokens", f"{sums['raw_tokens']:,}"),
        (f"{last}: composed tokens", f"{sums['prompt_tokens']:,}"),
        ("saved", percent(sums["prompt_tokens"], sums["raw_tokens"])),
        (f"all {sums['prompts']:,} prompts: raw tokens", f"{sums['raw_tokens_of_all_prompts']:,}"),
        (f"all {sums['prompts']:,} prompts: composed tokens", f"{sums['tokens_of_all_prompts']:,}"),
        ("saved", percent(sums["tokens_of_all_prompts"], sums["raw_tokens_of_all_prompts"])),
        ("prompts over the budget", f"{sums['prompts_over_budget']:,}"),
        ("tool calls parted from their results", f"{sums['torn_calls']:,}"),
        ("newest user messages not whole", f"{sums['queries_not_whole']:,}"),
        ("longest time to compose", milliseconds(sums["longest_compose_ms"] / 1000)),
        ("compacting, in the background", f"{sums['background_seconds']:.1f} s"),
    ]


def _rows(results: Sequence[Replayed]) -> Table:
    rows = Table()
    rows.add_column("conversation", overflow="fold")
    for name in ("rounds", "summarised", "compactions", "raw", "composed", "saved"):
        rows.add_column(name, justify="right")
    for one in results:
        rows.add_row(
            one.name,
            f"{one.rounds:,}",
            f"{one.covered_rounds:,}",
            f"{one.compactions:,}",
            f"{one.raw_tokens:,}",
            f"{one.prompt_tokens:,}",
            percent(one.prompt_tokens, one.raw_tokens),
        )
    return rows


def show_prompt(results: Sequence[Replayed], console: Console) -> None:
    """Print the last prompt of the conversation that is longest, its texts shortened but for the summary."""
    longest = max(results, key=lambda result: result.raw_tokens)
    prompt = longest.last_prompt
    of = f", the longest of {len(results)} conversations" if len(results) > 1 else ""
    console.print(f"The last prompt of conversation {longest.name}{of}: {prompt.tokens:,} tokens\n", soft_wrap=True)
    for message in prompt.messages:
        console.print(f"[{message['role']}]", style="bold")
        console.print(_shown(message), soft_wrap=True)
        console.print()


def _shown(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    if not text.startswith("[Conversation History Summary]") and len(text) > _SHOWN:
        text = f"{text[:_SHOWN]} [... {len(text) - _SHOWN:,} more characters]"
    calls = [
        one_line(f"calls {call['function']['name']}({call['function']['arguments']})", _SHOWN)
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), Mapping)
    ]
    return "\n".join([*([visible(text)] if text else []), *calls])
