"""The command line, run in this process as a user's terminal or pipe would."""

from __future__ import annotations

import io
import json
import runpy
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

import pytest
import typer.main

# An app's commands are built once, and not by each run, which takes 35 ms.
typer.main.get_command = cache(typer.main.get_command)

#: The variables that decide how a terminal is written to, as a plain one has them.
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "90", "LINES": "40"}


class Stream(io.TextIOWrapper):
    """A standard stream that is, or is not, a terminal."""

    def __init__(self, content: bytes = b"", *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(content), encoding=encoding, write_through=True, newline="\n")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        content = self.buffer.getvalue()  # type: ignore[attr-defined]
        return str(content.decode(self.encoding))


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: object
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def run(
    *words: object,
    said: str | bytes = b"",
    typed: bool = False,
    terminal: bool = False,
    encoding: str = "utf-8",
    stdin: TextIO | None = None,
    **variables: str,
) -> Done:
    """Run ``compactor`` with *words*; *said*, or all of *stdin*, is its input, a terminal where it is *typed*."""
    if stdin is None:
        stdin = Stream(said.encode() if isinstance(said, str) else said, terminal=typed)
    out = Stream(terminal=terminal, encoding=encoding)
    err = Stream(terminal=terminal, encoding=encoding)
    environment = (TERMINAL if terminal else {"COLUMNS": "90"}) | variables
    with (
        patch.object(sys, "argv", ["compactor", *map(str, words)]),
        patch.object(sys, "stdin", stdin),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
        pytest.MonkeyPatch.context() as variable,  # not patch.dict: it removes all, and other threads read them
    ):
        for name, value in environment.items():
            variable.setenv(name, value)
        code: object = None
        try:
            runpy.run_module("compactor", run_name="__main__")
        except SystemExit as end:
            code = end.code
    return Done(code, out.text, err.text)


def refusal(done: Done) -> str:
    """Return the one line in which a command said why it does not run."""
    assert done.code == 2
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("compactor: ")
    return lines[0].removeprefix("compactor: ")


def write_lines(path: Path, values: Iterable[object]) -> Path:
    """Write *values* as JSONL and return the path."""
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values), encoding="utf-8")
    return path


def dialogue(rounds: int, *, about: str = "item") -> list[Mapping[str, Any]]:
    """Return a conversation of so many rounds, each with a call and its result, and some identifiers to keep."""
    messages: list[Mapping[str, Any]] = [{"role": "system", "content": "You keep a stock list."}]
    for number in range(1, rounds + 1):
        arguments = json.dumps({"name": f"{about}-{number}"})
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        messages += [
            {"role": "user", "content": f"How many of {about}-{number} are in hall {number % 7}? Never round figures."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{about}-{number}: {number * 37} pieces, ok"},
            {"role": "assistant", "content": f"There are {number * 37} pieces of {about}-{number} in the hall."},
        ]
    return messages
