"""How a demo looks: both sides on a live screen or as plain lines while it runs, and figures at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import set_cell_size
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..events import escape_controls
from ..runner import State
from .plot import draw_plot
from .savings import make_level_table, make_strategy_table
from .scenario import BUDGET, Demo
from .sides import Agent
from .terminal import Interrupts, make_one_line, make_table, render_percent, render_quantity

#: Frames a second of the live display.
_RATE = 12
#: Maximum pauses in a round: one wherever a model would be thinking.
_PAUSES = 5
WITHOUT, WITH = "without", "with context-compactor"
_STYLES = {WITHOUT: "red", WITH: "green"}
#: Narrower screens have shorter labels.
_FULL_WIDTH = 80
_SENTENCE_MARKS = {"came in": ("+", "green"), "stayed": (" ", "default"), "dropped": ("-", "red")}
#: Lines of the screen beside both panels' texts, the plot and the notes below.
_FRAME = 10
_MIN_ROWS = 3


def play_on_screen(demo: Demo, count: int, pace: float, console: Console, interrupts: Interrupts) -> None:
    """Play *count* rounds of about *pace* seconds each, on a screen of its own that redraws itself."""
    next_frame = 0.0
    with Live(console=console, auto_refresh=False, screen=True) as screen:

        def draw() -> None:
            nonlocal next_frame
            interrupts.check()
            if (began := time.monotonic()) < next_frame:
                return
            screen.update(draw_screen(demo, count, console, console.height), refresh=True)
            # A slow terminal takes half of the time at most, or the demo would last for minutes.
            next_frame = max(began + 1 / _RATE, 2 * time.monotonic() - began)

        def pause() -> None:
            until = time.monotonic() + pace / _PAUSES
            draw()  # here, not on a thread: drawing must not slow down the calls that are timed
            while (left := until - time.monotonic()) > 0:
                interrupts.sleep(min(left, 1 / _RATE))
                draw()

        _play(demo, count, pause, draw)


def play_as_lines(demo: Demo, count: int, pace: float, console: Console | None, interrupts: Interrupts) -> None:
    """Play likewise, with a line on *console* for each thing that a compactor did; None prints nothing."""
    printed_tens = 0

    def print_news() -> None:
        nonlocal printed_tens
        if console is None:
            return
        news = [(role, text) for role, agent in demo.agents.items() for text in agent.stats.take_news()]
        if demo.played // 10 > printed_tens:
            printed_tens = demo.played // 10
            for role, agent in demo.agents.items():
                figures = agent.stats.get_figures()
                news.append((role, f"prompt: {figures['prompt_tokens']:,} tokens of {figures['raw_tokens']:,}"))
        for role, text in news:
            # Not wrapped, so that each thing is one line for other programs.
            console.print(escape_controls(f"round {demo.played:>3}  {role:<15}  {text}"), soft_wrap=True)

    def pause() -> None:
        print_news()
        interrupts.sleep(pace / _PAUSES)

    _play(demo, count, pause, interrupts.check)
    print_news()


def _play(demo: Demo, count: int, pause: Callable[[], None], tick: Callable[[], None]) -> None:
    demo.play(count, pause, tick)
    until = time.monotonic() + demo.latency + 5
    while not demo.settle(1 / _RATE) and time.monotonic() < until:
        tick()
    demo.ask()
    tick()


def draw_screen(demo: Demo, count: int, console: Console, height: int) -> Group:
    """Return a picture of both sides, as wide as *console* and *height* lines high."""
    width, role = console.width, demo.scenario.focus
    notes = _wrap(_explain(demo), width, console, 3 if height < 30 else 6)
    spare = max(2 * _MIN_ROWS, height - _FRAME - len(notes) - bool(demo.answers))
    plot = min(16, max(_MIN_ROWS, spare // 3))
    asked = f"{demo.asked}  (said in round 2)" if demo.answers else demo.asked
    lines: list[RenderableType] = [
        _clip(f"{demo.scenario.command}: round {min(demo.played + 1, count)} of {count}. Prompts of {role}:", "bold"),
        _clip(f"User: {make_one_line(asked)}", "default"),
        Columns([_draw_side(demo, name, width // 2, spare - plot) for name in _STYLES], padding=0),
    ]
    sides = zip(_STYLES.items(), _choose_focus(demo), strict=True)
    series = [(_shorten_name(name, width), style, [*agent.longest]) for (name, style), agent in sides]
    what = f"longest prompt in tokens, rounds 1-{count}"
    ascii_only = console.options.ascii_only
    lines += draw_plot(what, (series[0], series[1]), count, width, plot, ascii_only=ascii_only)
    return Group(*lines, _make_score_table(demo, width), *notes)


def _choose_focus(demo: Demo) -> tuple[Agent, Agent]:
    """Return both sides' agent whose prompts are shown."""
    role = demo.scenario.focus
    return demo.baseline.agents[role], demo.agents[role]


def _shorten_name(name: str, width: int) -> str:
    return name if width >= _FULL_WIDTH else name.partition(" ")[0]


def _clip(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="crop")


def _wrap(sentences: Sequence[str], width: int, console: Console, max_lines: int) -> list[Text]:
    """Return as many whole *sentences* as take at most *max_lines*."""
    lines: list[Text] = []
    for number in range(1, len(sentences) + 1):
        more = list(Text(" ".join(sentences[:number]), style="dim").wrap(console, max(20, width)))
        lines = more if len(more) <= max_lines else lines
    return lines


def _draw_side(demo: Demo, name: str, width: int, rows: int) -> Panel:
    agent = dict(zip(_STYLES, _choose_focus(demo), strict=True))[name]
    blocked_since = demo.baseline.blocked_since if name == WITHOUT else None
    answer = demo.answers.get("with" if name == WITH else "without")
    compacts = name == WITH and agent.compactor.status().state is State.COMPACTING
    style, name = _STYLES[name], _shorten_name(name, 2 * width)
    title = f"{name}: sends"
    if blocked_since is not None:
        title, style = f"{name}: STOPPED for {time.perf_counter() - blocked_since:.1f} s", "bold reverse red"
    elif compacts:
        title = f"{name}: compacts"  # and sends
    tokens = sum(tokens for _, tokens in agent.prompt)
    lines = list(_list_prompt(agent, rows, width - 4))
    if answer:
        text = answer["answer"] or "not in its prompt"
        lines[rows - 1 :] = [Text(f"answers: {text}", style="bold")]
    return Panel(
        Group(*lines),
        title=Text(title, style=style),
        title_align="left",
        subtitle=Text(f"{tokens:,} tokens"),
        subtitle_align="right",
        border_style=style.split()[-1],
        width=width,
        height=rows + 2,
    )


def _list_prompt(agent: Agent, rows: int, width: int) -> Iterator[Text]:
    """Yield a line for each message of the last prompt, with its tokens; the summary with its sentences, if any."""
    summary = agent.compaction.summary if agent.compaction is not None else None
    index = next((i for i, (one, _) in enumerate(agent.prompt) if summary and summary in str(one.get("content"))), None)
    first = 0 if index is None else index + 1
    for message, tokens in agent.prompt[: 1 if index is None else index]:
        yield _make_row(_describe(message), tokens, width, "default")
        rows, first = rows - 1, max(first, 1)
    if index is not None and agent.compaction is not None:
        fates = [fate for fate, _ in agent.sentences]
        title = f"summary 1-{agent.compaction.last_round}: {fates.count('came in')} new, {fates.count('stayed')} kept"
        if width > 50:
            title += f", {fates.count('dropped')} gone since the last one"
        yield _make_row(title, agent.prompt[index][1], width, "bold")
        room = min(len(fates), max(1, (rows - 2) * 3 // 4))
        for fate, text in _choose(agent.sentences, room):
            sign, style = _SENTENCE_MARKS[fate]
            yield _clip(f"  {sign} {make_one_line(text, width)}", style)
        rows -= 1 + room
    tail = agent.prompt[first:]
    if len(tail) > rows:
        rest = tail[: len(tail) - max(0, rows - 1)]
        yield _make_row(f"... {len(rest)} messages as they were said", sum(tokens for _, tokens in rest), width, "dim")
        tail = tail[len(rest) :]
    for message, tokens in tail:
        yield _make_row(_describe(message), tokens, width, "default")


def _choose(sentences: Sequence[tuple[Any, str]], limit: int) -> list[tuple[Any, str]]:
    """Return at most *limit* sentences in their order: two thirds of them new, the others those that stayed or went."""
    new = [index for index, (fate, _) in enumerate(sentences) if fate == "came in"]
    old = sorted(set(range(len(sentences))).difference(new), key=lambda index: sentences[index][0] == "dropped")
    some = new[: max(limit - len(old), limit * 2 // 3)]
    return [sentences[index] for index in sorted(some + old[: limit - len(some)])]


def _describe(message: Mapping[str, Any]) -> str:
    calls = "".join(f"calls {call['function']['name']}" for call in message.get("tool_calls") or ())
    return f"{message['role']}: {make_one_line(str(message.get('content') or calls), 300)}"


def _make_row(text: str, tokens: int, width: int, style: str) -> Text:
    return Text(f"{set_cell_size(text, max(1, width - 7))} {tokens:>6,}", style=style, no_wrap=True, overflow="crop")


def _make_score_table(demo: Demo, width: int) -> Table:
    """Return the cost of both sides, for all agents together."""
    sides = [list(one.values()) for one in (demo.baseline.agents, demo.agents)]
    figures = [[agent.stats.get_figures() for agent in side] for side in sides]
    sent = [sum(one["tokens_of_all_prompts"] for one in side) for side in figures]
    bills = [demo.baseline.bill.dollars, demo.bill.dollars]
    number = sum(one["prompts"] for one in figures[1])
    waits = [demo.baseline.clock.longest_turn, demo.clock.longest_turn]
    is_full = width >= _FULL_WIDTH
    less, shares = (" less", (25, 22, 22, 8)) if is_full else ("", (30, 20, 20, 6))
    has_waited = any(agent.compaction for agent in demo.baseline.agents.values())
    waited = _describe_saving(waits, less) if has_waited else ""  # else the difference is chance
    rows = [
        (f"tokens of {render_quantity(number, 'prompt')}", *(f"{one:,}" for one in sent), _describe_saving(sent, less)),
        (f"cost ({demo.model})", *(f"${one:.4f}" for one in bills), _describe_saving(bills, less)),
        ("longest wait in a turn", *(f"{1000 * one:,.0f} ms" for one in waits), waited),
    ]
    if demo.answers:
        grades = (_grade(answer, is_full=is_full) for answer in demo.answers.values())
        rows.append(("what round 2 said", *grades, ""))
    who = "both agents" if len(demo.agents) > 1 else demo.scenario.focus
    table = Table.grid(padding=(0, 1))
    for index, share in enumerate(shares):
        table.add_column(justify="right" if index else "left", width=min(share, max(4, share * width // 80)))
    heads = [Text(_shorten_name(name, width), f"bold {style}") for name, style in _STYLES.items()]
    for row in ((who, *heads, "" if is_full else "less"), *rows):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "crop"
    return table


def _describe_saving(pair: Sequence[float], less: str) -> str:
    without, with_ = pair
    return f"{render_percent(with_, without)}{less}" if without > with_ else ""


def _grade(answer: Mapping[str, Any], *, is_full: bool) -> str:
    if not answer["answer"]:
        return "no answer"
    grade = "right" if answer["right"] else "wrong"
    return f"{grade}, {answer['source']}" if is_full else grade


def _explain(demo: Demo) -> list[str]:
    """Return the meanings of the labels, the most important first."""
    prices, million = demo.prices, 1e6 * (demo.prices.per_token or 0)
    read, cached, written = million, million * prices.cached_input, million * prices.output
    return [
        f"without: sends all, and stops to summarize when its window of {demo.scenario.window:,} tokens is full.",
        f"Both sides summarize offline and wait {demo.latency:g} s more, as for a model.",
        f"$ per million tokens: {read:.2f}, {cached:.2f} cached (as in the last prompt), {written:.2f} for summaries.",
        "A wait is what all calls of one turn took.",
        f"with: no prompt has more than {BUDGET:,} tokens.",
        "Signs: + new in the summary, - gone from it; the others stayed.",
    ]


def print_summary(demo: Demo, console: Console) -> None:
    """Print all figures as tables, and what the labels mean."""
    print_tables(demo, console)
    console.print(_make_score_table(demo, console.width))
    console.print(" ".join(_explain(demo)))


def print_tables(demo: Demo, console: Console) -> None:
    figures = {role: agent.stats.get_figures() for role, agent in demo.agents.items()}
    covered = [agent.compaction.last_round if agent.compaction is not None else 0 for agent in demo.agents.values()]
    names = {
        "compactions": "compactions",
        "reductions": "reductions",
        "tokens of everything said": "raw_tokens",
        "tokens of the last prompt": "prompt_tokens",
        "tool calls parted from their results": "orphaned_calls",
        "newest queries not verbatim": "queries_not_verbatim",
    }
    rows = [(label, *(one[name] for one in figures.values())) for label, name in names.items()]
    rows += [
        ("rounds summarised", *(f"1-{end}" if end else "none" for end in covered)),
        ("prompts over the budget", *(f"{one['prompts_over_budget']} of {one['prompts']}" for one in figures.values())),
        ("compacting, in the background", *(f"{one['background_seconds']:.1f} s" for one in figures.values())),
    ]
    title = f"{demo.played} rounds in one Memory, {'one agent' if len(figures) == 1 else 'two agents'}"
    console.print(make_table(("", *figures), rows, title=title))
    if demo.scenario.recalls:
        print_guarantees(demo, console)
    console.print(demo.scenario.rule)


def print_guarantees(demo: Demo, console: Console) -> None:
    """Print what a scenario with references has to keep, and the savings of each strategy."""
    (agent,) = demo.agents.values()
    figures = agent.stats.get_figures()
    console.print(make_strategy_table(figures["strategies"]))
    console.print(make_level_table(figures["levels"]))
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
