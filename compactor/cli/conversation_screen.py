"""A terminal that two threads write to: what is said, and above the line being typed, what happens behind it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from ..events import visible

_PROMPT = "you> "


class ConversationScreen:
    """Asks, answers, and notes. ``note`` may be called from any thread, the rest from one."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors
        self._typed_here = sys.stdin.isatty() and console.is_terminal
        if self._typed_here:
            with contextlib.suppress(ImportError):  # not on Windows, whose console edits lines itself
                import readline  # noqa: F401  (makes input() edit lines, and remember them)
        self._lock = threading.RLock()  # guards the two below, and that only one thread writes
        self._asking = False
        self._answering = False
        self._waiting: list[str] = []  # notes that came while an answer was being written

    def ask(self) -> str | None:
        """Return the next line typed, without white space around it; None at the end of input."""
        with self._lock:
            self._asking = True
        try:
            # A prompt is for somebody who types; input() also gives him an editable line and its history.
            line = input(_PROMPT) if self._typed_here else sys.stdin.readline()
        except EOFError:
            self._console.print()
            return None
        finally:
            with self._lock:
                self._asking = False
        return line.strip() if line or self._typed_here else None

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        """Give a function that writes a piece of the answer; notes wait until it is complete."""
        with self._lock:
            self._answering = True
        try:
            yield self._write
        finally:
            with self._lock:
                self._answering = False
                self._console.print()
                waiting, self._waiting = self._waiting, []
                for text in waiting:
                    self._print_note(text)

    def note(self, text: str) -> None:
        """Show that something happened: above the line that is being typed, after the answer that is being written."""
        with self._lock:
            if self._answering:
                self._waiting.append(text)
            else:
                self._print_note(text)

    def emit(self, text: str) -> None:
        with self._lock:
            self._console.print(visible(text))

    def complain(self, text: str) -> None:
        """Show, on standard error and on one line, that something did not work."""
        with self._lock:
            self._errors.print(visible(text), soft_wrap=True)

    def _write(self, piece: str) -> None:
        with self._lock:
            self._console.print(visible(piece), end="", soft_wrap=True)

    def _print_note(self, text: str) -> None:
        retype = self._asking and self._typed_here
        if retype:
            # Over the prompt and what is typed, which follow again below.
            self._console.file.write("\n" if self._console.legacy_windows else "\r\x1b[K")
        self._console.print(f"  [{visible(text)}]", style="dim", soft_wrap=True)
        if retype:
            self._console.file.write(_PROMPT + _typed())
            self._console.file.flush()


def _typed() -> str:
    """Return what stands in the line that is being typed, where the platform's line editor tells."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline is not None else ""
