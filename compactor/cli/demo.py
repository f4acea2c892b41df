"""How a demo looks: a live display or plain lines while it runs, and tables at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ..events import visible
from ..runner import State
from .savings import level_table, strategy_table
from .scenario import BUDGET, Agent, Demo
from .terminal import make_table, milliseconds, one_line, percent, quantity

#: Frames a second of the live display.
_RATE = 12
#: Maximum pauses in a round: one wherever a model would be thinking.
_PAUSES = 5
_MAX_BAR = 44
#: A full sign, a lighter one and an empty one, in Unicode and in ASCII.
_SIGNS, _ASCII_SIGNS = "█▒·", "#=."


def play_live(demo: Demo, count: int, pace: float, console: Console) -> None:
    """Play *count* rounds of about *pace* seconds each, on a display that redraws itself."""
    with Live(console=console, auto_refresh=False) as live:

        def draw() -> None:
            live.update(_draw(demo, count, console), refresh=True)

        def pause() -> None:
            until = time.monotonic() + pace / _PAUSES
            draw()  # here, not on a thread: drawing must not slow down the calls that are timed
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 1 / _RATE))
                draw()

        _play(demo, count, pause)
        draw()


def play_plainly(demo: Demo, count: int, pace: float, console: Console | None) -> None:
    """Play likewise, with a line on *console* for each thing that a compactor did; None prints nothing."""
    printed_tens = 0

    def print_news() -> None:
        nonlocal printed_tens
        if console is None:
            return
        done = len(demo.turn_seconds)
        news = [(role, text) for role, agent in demo.agents.items() for text in agent.watch.take_news()]
        if done // 10 > printed_tens:
            printed_tens = done // 10
            for role, agent in demo.agents.items():
                figures = agent.watch.figures()
                news.append((role, f"prompt: {figures['prompt_tokens']:,} tokens of {figures['raw_tokens']:,}"))
        for role, text in news:
            # Not wrapped, so that each thing is one line for other programs.
            console.print(visible(f"round {done:>3}  {role:<15}  {text}"), soft_wrap=True)

    def pause() -> None:
        print_news()
        if pace:
            time.sleep(pace / _PAUSES)

    _play(demo, count, pause)
    print_news()


def _play(demo: Demo, count: int, pause: Callable[[], None]) -> None:
    demo.play(count, pause)
    demo.settle(demo.latency + 5)


def _draw(demo: Demo, count: int, console: Console) -> Panel:
    done = len(demo.turn_seconds)
    width = max(20, min(console.width, 100) - 6)
    lines = [Text(f"User: {one_line(demo.asked, width - 6)}\n{one_line(demo.doing, width)}", style="dim")]
    for role, agent in demo.agents.items():
        lines += [Text(""), *_draw_agent(role, agent, done, count, console)]
    longest = milliseconds(max(demo.turn_seconds, default=0.0))
    lines += [
        Text(""),
        Text.assemble("longest time that a turn was held up  ", (longest, "bold green"), style="default"),
        Text(f"A summary takes {demo.latency:g} s longer here, as a model would. No turn waits.", style="dim"),
    ]
    title = f"{demo.scenario.command} - round {min(done + 1, count)} of {count}"
    width = min(console.width, 100)
    return Panel(Group(*lines), title=title, title_align="left", border_style="cyan", padding=(0, 2), width=width)


def _draw_agent(role: str, agent: Agent, done: int, count: int, console: Console) -> list[Text]:
    status, figures, last = agent.compactor.status(), agent.watch.figures(), agent.watch.last
    busy = status.state is State.COMPACTING and last.startswith("compacting")
    end, tokens, raw = status.end_index, figures["prompt_tokens"], max(figures["raw_tokens"], 1)
    covered = f"1-{end} summarised, {done - end} as they are" if end else f"{done} as they are"
    lines = [
        Text.assemble(
            (f"{role:<16}", "bold"),
            (" compacting " if busy else f" {status.state} ", "black on yellow" if busy else "green"),
            (f"  {quantity(figures['compactions'], 'compaction')}", "default"),
        ),
        Text.assemble("rounds  ", _draw_bar(end / count, done / count, console), f"  {covered}"),
        Text.assemble("tokens  ", _draw_bar(tokens / raw, 1.0, console), f"  {tokens:,} of {raw:,}"),
    ]
    if len(figures["strategies"]) > 1:
        for name, saving in figures["strategies"].items():
            overlays = quantity(saving["overlays"], "overlay")
            cost = f"{saving['tokens_before']:>7,} -> {saving['tokens_after']:,} tokens"
            lines.append(Text(f"{name:<28} {overlays:<13}{cost}"))
    return [*lines, Text(one_line(last, 90), style="dim")]


def _draw_bar(full: float, part: float, console: Console) -> Text:
    """Return a bar that is full up to the share *full* and lighter up to the share *part*."""
    width = min(_MAX_BAR, max(10, console.width - 50))
    signs = _ASCII_SIGNS if console.options.ascii_only else _SIGNS
    first = min(width, round(full * width))
    second = min(width, max(first, round(part * width)))
    return Text.assemble(
        (signs[0] * first, "green"), (signs[1] * (second - first), "yellow"), (signs[2] * (width - second), "dim")
    )


def print_summary(demo: Demo, console: Console) -> None:
    covered = [agent.compactor.status().end_index for agent in demo.agents.values()]
    figures = [agent.watch.figures() for agent in demo.agents.values()]
    saved = [percent(one["prompt_tokens"], one["raw_tokens"]) for one in figures]
    saved_in_all = [percent(one["tokens_of_all_prompts"], one["raw_tokens_of_all_prompts"]) for one in figures]
    rows = {
        "compactions": [one["compactions"] for one in figures],
        "reductions": [one["reductions"] for one in figures],
        "rounds summarised": [f"1-{end}" if end else "none" for end in covered],
        "tokens of everything said": [one["raw_tokens"] for one in figures],
        "tokens of the last prompt": [one["prompt_tokens"] for one in figures],
        "saved in the last prompt": saved,
        "saved in all prompts": saved_in_all,
        "prompts over the budget": [f"{one['prompts_over_budget']} of {one['prompts']}" for one in figures],
        "tool calls parted from their results": [one["torn_calls"] for one in figures],
        "newest queries not whole": [one["queries_not_whole"] for one in figures],
        "compacting, in the background": [f"{one['background_seconds']:.1f} s" for one in figures],
    }
    count = "one agent" if len(figures) == 1 else "two agents"
    title = f"{len(demo.turn_seconds)} rounds in one Memory, {count}"
    console.print(make_table(("", *demo.agents), [(name, *cells) for name, cells in rows.items()], title=title))
    if demo.scenario.recalls:
        _print_promises(demo, console)
    console.print(
        f"All calls of one turn together took {milliseconds(max(demo.turn_seconds, default=0.0))} at most, the longest"
        f" single call {milliseconds(demo.longest_call)}.\n"
        f"Summarising took {sum(one['background_seconds'] for one in figures):.1f} s, all of it in the background:"
        f" extracted offline, with\n{demo.latency:g} s added to each call that a model would take.\n"
        f"{demo.scenario.rule}\nNo prompt may exceed {BUDGET:,} tokens."
    )
    console.print(
        "\nWith a conversation of yours:  compactor replay FILE --show"
        "\nWith a model:                  compactor chat --help"
    )


def _print_promises(demo: Demo, console: Console) -> None:
    (agent,) = demo.agents.values()
    figures = agent.watch.figures()
    console.print(strategy_table(figures["strategies"]))
    console.print(level_table(figures["ladder"]))
    right = [one for one in demo.lookups if one["right"]]
    rows = [
        ("prompts without what is pinned", f"{demo.pins_lost} of {figures['prompts']}"),
        ("prompts without the plan, while it was not done", f"{demo.plans_lost} of {figures['prompts']}"),
        ("references in prompts", len(demo.references)),
        ("that do not give back the original", demo.wrong_references),
        ("ids needed again, and read back", f"{len(right)} of {len(demo.lookups)}"),
        ("of these, gone from the prompt before", sum(not one["in_prompt"] for one in right)),
    ]
    console.print(make_table(("", ""), rows, title="what must not be lost", show_header=False))
