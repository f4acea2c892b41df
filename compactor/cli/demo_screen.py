"""How the demo looks: a display that redraws itself, or plain lines, and a table at the end."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..events import visible
from ..runner import State
from . import savings_tables
from .pressure import Pressure
from .stage import BUDGET, Agent, Stage
from .terminal import counted, milliseconds, one_line, percent

#: Pictures a second of the live display.
_RATE = 12
#: Pauses in a round, at most: one wherever a model would be thinking.
_PAUSES = 5
_BAR = 44
_FULL, _PART, _NONE = "█▒·"
_FULL_ASCII, _PART_ASCII, _NONE_ASCII = "#=."


def play_live(demo: Stage, count: int, pace: float, console: Console) -> None:
    """Play *count* rounds of about *pace* seconds each and show what happens, redrawn in place."""
    with Live(console=console, auto_refresh=False) as live:

        def pause() -> None:
            until = time.monotonic() + pace / _PAUSES
            while True:
                # Here and not on a thread of its own: drawing must not hold up what is measured.
                live.update(_frame(demo, count, console), refresh=True)
                left = until - time.monotonic()
                if left <= 0:
                    return
                time.sleep(min(left, 1 / _RATE))

        demo.play(count, pause)
        demo.settle(_patience(demo))
        live.update(_frame(demo, count, console), refresh=True)


def play_plainly(demo: Stage, count: int, pace: float, console: Console | None) -> None:
    """Play likewise, a line on *console* for each thing that a compactor did; silently where it is None."""
    told = None if console is None else _Told(demo, console)

    def pause() -> None:
        if told is not None:
            told.go_on()
        if pace:
            time.sleep(pace / _PAUSES)

    demo.play(count, pause)
    demo.settle(_patience(demo))
    if told is not None:
        told.go_on()


def _patience(demo: Stage) -> float:
    """Return the seconds to wait at the end for compactions in flight."""
    return demo.latency + 5


class _Told:
    """Prints what has happened since the last time: what compactors did, and each tenth round's tokens."""

    def __init__(self, demo: Stage, console: Console) -> None:
        self._demo, self._console = demo, console
        self._tenths = 0

    def go_on(self) -> None:
        done = len(self._demo.held_up)
        for agent in self._demo.agents:
            for said in agent.watch.news():
                self._line(done, agent.role, said)
        if done // 10 > self._tenths:
            self._tenths = done // 10
            for agent in self._demo.agents:
                self._line(done, agent.role, f"prompt: {agent.prompt_tokens:,} tokens of {agent.raw_tokens:,}")

    def _line(self, done: int, role: str, text: str) -> None:
        # Not wrapped: a line for each thing is what another program can be made to read.
        self._console.print(visible(f"round {done:>3}  {role:<15}  {text}"), soft_wrap=True)


# -- the display ------------------------------------------------------------------------------------------------------


def _frame(demo: Stage, count: int, console: Console) -> Panel:
    done = len(demo.held_up)
    width = max(20, min(console.width, 100) - 6)
    talk = Text(f"User: {one_line(demo.asked, width - 6)}\n{one_line(demo.doing, width)}", style="dim")
    parts: list[Text | Rule | Padding] = [talk]
    for agent in demo.agents:
        parts += [Text(""), *_agent_lines(agent, done, count, console)]
    longest = max(demo.held_up, default=0.0)
    parts += [
        Text(""),
        Text.assemble("longest time that a turn was held up  ", (milliseconds(longest), "bold green"), style="default"),
        Text(
            f"A summary takes {demo.latency:g} s longer here, as a model would. No turn waits.",
            style="dim",
        ),
    ]
    return Panel(
        Group(*parts),
        title=f"{demo.command} - round {min(done + 1, count)} of {count}",
        title_align="left",
        border_style="cyan",
        padding=(0, 2),
        width=min(console.width, 100),
    )


def _agent_lines(agent: Agent, done: int, count: int, console: Console) -> list[Text]:
    status = agent.compactor.status()
    busy = status.state is State.COMPACTING and agent.watch.last.startswith("compacting")
    end = status.end_index
    covered = f"1-{end} summarised, {done - end} as they are" if end else f"{done} as they are"
    label = Text.assemble(
        (f"{agent.role:<16}", "bold"),
        (" compacting " if busy else f" {status.state} ", "black on yellow" if busy else "green"),
    )
    label.append(f"  {counted(agent.watch.compactions, 'compaction')}", style="default")
    bar = min(_BAR, max(10, console.width - 50))
    raw = max(agent.raw_tokens, 1)
    savings = agent.watch.savings
    saved = [
        Text(
            f"{name:<28} {counted(saving.overlays, 'overlay'):<13}"
            f"{saving.tokens_before:>7,} -> {saving.tokens_after:,} tokens"
        )
        for name, saving in savings.items()
        if len(savings) > 1
    ]
    return [
        label,
        Text.assemble("rounds  ", _bar(end / count, done / count, bar, console), f"  {covered}"),
        Text.assemble(
            "tokens  ",
            _bar(agent.prompt_tokens / raw, 1.0, bar, console),
            f"  {agent.prompt_tokens:,} of {agent.raw_tokens:,}",
        ),
        *saved,
        Text(one_line(agent.watch.last, 90), style="dim"),
    ]


def _bar(full: float, part: float, width: int, console: Console) -> Text:
    """Return a bar that is *full* up to there, lighter up to *part*, and empty to its end; shares of *width*."""
    signs = (_FULL_ASCII, _PART_ASCII, _NONE_ASCII) if console.options.ascii_only else (_FULL, _PART, _NONE)
    first = min(width, round(full * width))
    second = min(width, max(first, round(part * width)))
    return Text.assemble(
        (signs[0] * first, "green"), (signs[1] * (second - first), "yellow"), (signs[2] * (width - second), "dim")
    )


# -- the end ----------------------------------------------------------------------------------------------------------


def summary(demo: Stage, console: Console) -> None:
    """Print what came of it."""
    agents = "one agent" if len(demo.agents) == 1 else "two agents"
    table = Table(title=f"{len(demo.held_up)} rounds in one Memory, {agents}", title_justify="left")
    table.add_column("")
    for agent in demo.agents:
        table.add_column(agent.role, justify="right")
    for name, cells in _rows(demo.agents):
        table.add_row(name, *cells)
    console.print(table)
    if isinstance(demo, Pressure):
        _under_pressure(demo, console)
    longest = max(demo.held_up, default=0.0)
    background = sum(agent.watch.seconds for agent in demo.agents)
    console.print(
        f"All calls of one turn together took {milliseconds(longest)} at most, the longest single call "
        f"{milliseconds(demo.longest_call)}.\n"
        f"Summarising took {background:.1f} s, all of it in the background: extracted offline, with\n"
        f"{demo.latency:g} s added to each call that a model would take.\n{demo.due}\n"
        f"No prompt may exceed {BUDGET:,} tokens."
    )
    console.print(
        "\nWith a conversation of yours:  compactor replay FILE --show"
        "\nWith a model:                  compactor chat --help"
    )


def _under_pressure(demo: Pressure, console: Console) -> None:
    (agent,) = demo.agents
    console.print(savings_tables.strategies(agent.watch.savings))
    console.print(savings_tables.ladder(agent.ladder))
    table = Table(title="what must not be lost", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    right = [one for one in demo.looked_up if one.right]
    gone = [one for one in right if not one.in_prompt]
    for name, cell in (
        ("prompts without what is pinned", f"{demo.pins_lost} of {agent.prompts}"),
        ("prompts without the plan, while it was not done", f"{demo.plans_lost} of {agent.prompts}"),
        ("references in prompts", f"{demo.references}"),
        ("that do not give back the original", f"{demo.references_wrong}"),
        ("ids needed again, and read back", f"{len(right)} of {len(demo.looked_up)}"),
        ("of these, gone from the prompt before", f"{len(gone)}"),
    ):
        table.add_row(name, cell)
    console.print(table)


def _rows(agents: list[Agent]) -> list[tuple[str, list[str]]]:
    covered = {agent.role: agent.compactor.status().end_index for agent in agents}
    return [
        ("compactions", [str(agent.watch.compactions) for agent in agents]),
        ("reductions", [str(agent.watch.reductions) for agent in agents]),
        ("rounds summarised", [f"1-{covered[agent.role]}" if covered[agent.role] else "none" for agent in agents]),
        ("tokens of everything said", [f"{agent.raw_tokens:,}" for agent in agents]),
        ("tokens of the last prompt", [f"{agent.prompt_tokens:,}" for agent in agents]),
        ("saved", [percent(agent.prompt_tokens, agent.raw_tokens) for agent in agents]),
        ("saved over all prompts", [percent(agent.sent, agent.raw_sent) for agent in agents]),
        ("prompts over the budget", [f"{agent.over_budget} of {agent.prompts}" for agent in agents]),
        ("tool calls parted from their results", [str(agent.torn_calls) for agent in agents]),
        ("newest queries not whole", [str(agent.queries_not_whole) for agent in agents]),
        ("compacting, in the background", [f"{agent.watch.seconds:.1f} s" for agent in agents]),
    ]
