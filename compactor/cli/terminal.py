"""Terminal input and output for all commands: safe text, refusals, questions, numbers, and the screen of a chat."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from memory.errors import ContextError
from memory.events import EventHook

from ..errors import FailureKind
from ..events import escape_controls, log_events, make_logger

_PROMPT = "you> "
#: What an error says of the library's parameters, and what the user of a command can do instead.
_OPTIONS = {
    "in api_key= or ": "in ",
    "raise max_output_tokens= (it includes a reasoning model's thoughts), or ask": "choose another --model, or ask",
    ", and raise max_output_tokens= if set": "",
    ", or use ExtractiveSummarizer(), which needs no model": "",
    ", or give Prices(...)": "",
    "api_key=": "OPENAI_API_KEY",
    "base_url=": "--base-url",
    "model=": "--model",
}


class CommandError(ContextError):
    """The command cannot run. The message is the one line that the user reads."""


def make_one_line(text: str, limit: int = 10_000) -> str:
    """Return *text* on one line of at most *limit* characters, with control characters made visible."""
    line = " ".join(escape_controls(text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def make_url(host: str, port: int, path: str = "") -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"


def name_options(text: str) -> str:
    """Replace the names of the library's parameters in an error's *text* by the options that set them."""
    for parameter, option in _OPTIONS.items():
        text = text.replace(parameter, option)
    return text


def is_lasting(kind: FailureKind, status: int | None) -> bool:
    """Return whether an endpoint fails so until somebody changes the key, the model or the address."""
    return kind is FailureKind.AUTHENTICATION or status in (404, 405)


def render_quantity(number: int, noun: str, plural: str = "") -> str:
    """Return "1 round" or "2,000 rounds". Pass *plural* for a noun that takes no "s"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def render_percent(part: float, total: float) -> str:
    """Return how many percent smaller *part* is than *total*."""
    return f"{100 * (1 - part / total):.0f}%" if total else "-"


class Screen(Console):
    """A console that prints plain text: no markup, and control characters are made visible."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def make_console(file: TextIO | None = None) -> Console:
    """Return a console on *file* (default: standard output). What is printed cannot control the terminal."""
    return Screen(file=file if file is not None else sys.stdout)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], **style: Any) -> Table:
    """Return a table with the first column on the left and figures on the right. No number is ever shortened."""
    table, rows = Table(title_justify="left", **style), list(rows)
    for index, name in enumerate(columns):
        table.add_column(
            name,
            justify="right" if index else "left",
            overflow="ellipsis" if index else "fold",
            no_wrap=any(isinstance(row[index], int) for row in rows),
        )
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    return table


#: For a table with many figures on a terminal of 80 columns.
NARROW: dict[str, Any] = {"pad_edge": False, "padding": (0, 1, 0, 0)}


def can_redraw(console: Console, hooks: Sequence[EventHook]) -> bool:
    """Return whether a live display may use *console*: it is a terminal, and no hook logs to the same one."""
    return console.is_terminal and not console.is_dumb_terminal and not (hooks and sys.stderr.isatty())


@contextlib.contextmanager
def show_progress(
    what: str, total: int, item_name: str, console: Console, hooks: Sequence[EventHook]
) -> Iterator[Callable[[], None]]:
    """Show a progress bar if *console* can redraw, and provide a function that moves it on by one *item_name*."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(item_name), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not can_redraw(console, hooks)) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def make_event_hooks(log_format: str | None) -> list[EventHook]:
    """Return the hooks that log events to standard error as ``json`` or ``console`` text; none for None."""
    return [] if log_format is None else [log_events(make_logger(sys.stderr, json=log_format == "json"))]


def confirm(question: str, otherwise: str, *, yes: bool) -> None:
    """Return if *yes* is set or the user answers yes to *question*.

    Raises ``CommandError(otherwise)`` for any other answer, and without a terminal to ask at.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{otherwise}: there is no terminal to ask at; --yes does it without asking")
    make_console(sys.stderr).print(f"{escape_controls(question)} [y/N] ", end="", soft_wrap=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(otherwise)


class Interrupts:
    """Ctrl-C that ends the command between two pictures, never inside one: half a control sequence would spoil the
    terminal. A context manager for the main thread; pressed again, it changes nothing."""

    def __init__(self) -> None:
        self._pressed = self._sleeping = False
        self._previous_handler: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        if (
            self._previous_handler is not None and not self._pressed
        ):  # else the command ends, and is not to be disturbed
            signal.signal(signal.SIGINT, self._previous_handler)

    def _handle(self, *_signal: object) -> None:
        pressed_before, self._pressed = self._pressed, True
        if self._sleeping and not pressed_before:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._pressed:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        self._sleeping = True
        try:
            self.check()
            time.sleep(seconds)
        finally:
            self._sleeping = False


class ConversationScreen:
    """The screen of a chat: asks for messages, streams answers, and shows notes from other threads.

    ``note`` is thread-safe; call the other methods from one thread.
    """

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors
        self._interactive = sys.stdin.isatty() and console.is_terminal
        if self._interactive:
            with contextlib.suppress(ImportError):  # Windows has none; its console edits lines itself
                import readline  # noqa: F401  (gives input() line editing and a history)
        self._lock = threading.RLock()  # guards the output and the three below
        self._is_prompting = False
        self._answering = False
        self._pending: list[str] = []  # notes that arrived during an answer

    def ask(self) -> str | None:
        """Return the next line that the user types, stripped; None at the end of input."""
        with self._lock:
            self._is_prompting = True
        try:
            line = input(_PROMPT) if self._interactive else sys.stdin.readline()
        except EOFError:
            self._console.print()
            return None
        finally:
            with self._lock:
                self._is_prompting = False
        return line.strip() if line or self._interactive else None

    @contextlib.contextmanager
    def write_answer(self) -> Iterator[Callable[[str], None]]:
        """Provide a function that writes a piece of the answer. Notes wait until the answer is complete."""
        with self._lock:
            self._answering = True
        try:
            yield self._write
        finally:
            with self._lock:
                self._answering = False
                self._console.print()
                pending, self._pending = self._pending, []
                for text in pending:
                    self._print_note(text)

    def note(self, text: str) -> None:
        """Show a note above the line being typed, or after the answer being written."""
        with self._lock:
            if self._answering:
                self._pending.append(text)
            else:
                self._print_note(text)

    def emit(self, text: str) -> None:
        with self._lock:
            self._console.print(escape_controls(text))

    def complain(self, text: str) -> None:
        """Print an error on one line of standard error."""
        with self._lock:
            self._errors.print(escape_controls(text), soft_wrap=True)

    def _write(self, text: str) -> None:
        with self._lock:
            self._console.print(escape_controls(text), end="", soft_wrap=True)

    def _print_note(self, text: str) -> None:
        retype = self._is_prompting and self._interactive
        if retype:  # overwrite the line being typed; it is written again below the note
            self._console.file.write("\n" if self._console.legacy_windows else "\r\x1b[K")
        self._console.print(f"  [{escape_controls(text)}]", style="dim", soft_wrap=True)
        if retype:
            readline = sys.modules.get("readline")
            self._console.file.write(_PROMPT + (readline.get_line_buffer() if readline is not None else ""))
            self._console.file.flush()
