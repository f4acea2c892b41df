"""What all commands share of a terminal: text shown as text, one line for what is wrong, numbers to read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from memory.errors import ContextError
from memory.events import EventHook

from ..events import log_events, logger_to, visible


class CannotRun(ContextError):
    """A command cannot do what it was asked; its message is the one line that the user reads."""


def one_line(text: str, limit: int = 10_000) -> str:
    """Return *text* visible, on one line, of at most *limit* characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def in_options(text: str) -> str:
    """Return an error's *text*, in which the library names its parameters, with the options that set them."""
    for parameter, option in (("base_url=", "--base-url"), ("api_key=", "OPENAI_API_KEY"), ("model=", "--model")):
        text = text.replace(parameter, option)
    return text


class _Screen(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def screen(file: TextIO | None = None) -> Console:
    """Return a console on *file*, standard output by default, that takes what it prints as plain text: nothing that
    comes from outside, such as a model's name, can make a terminal do anything."""
    return _Screen(file=file if file is not None else sys.stdout, markup=False, highlight=False, emoji=False)


def shown_live(console: Console, log_format: str | None) -> bool:
    """Return whether a display may redraw itself on *console*: where nothing else writes to the same terminal."""
    logs_there = log_format is not None and sys.stderr.isatty()
    return console.is_terminal and not console.is_dumb_terminal and not logs_there


def event_log(log_format: str | None) -> list[EventHook]:
    """Return the hooks that write events to standard error: one for ``json`` and ``console``, none for None."""
    if log_format is None:
        return []
    return [log_events(logger_to(sys.stderr, json=log_format == "json"))]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return *number* of what *noun* names, in words: "1 round", "2,000 rounds". *plural*: where no "s" makes it."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def percent(part: int, whole: int) -> str:
    """Return how much less *part* is than *whole*."""
    return f"{100 * (1 - part / whole):.0f}%" if whole else "-"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"
