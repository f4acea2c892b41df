"""What a code block of the documentation sets up, run as it stands there up to where its compactor starts.

Endpoint and key are in the environment, and the clock is the comparison's. All else is what a reader would have.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import compactor
from compactor import ContextCompactor
from compactor.testing import FakeClock
from memory import Memory

__all__ = ["Documented", "Section", "run"]

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
#: Arguments of ``compose`` that are the conversation's.
_GIVEN = ("budget", "system")


@dataclass(frozen=True)
class Section:
    """A page below the root, and the heading above the block: its first one in Python."""

    page: str
    heading: str

    @property
    def code(self) -> str:
        """The block. Raises ``LookupError`` if there is none."""
        text = (ROOT / self.page).read_text(encoding="utf-8")
        heading = re.search(rf"^#+ {re.escape(self.heading)}$", text, re.MULTILINE)
        block = _BLOCK.search(text, heading.end()) if heading else None
        if block is None:
            raise LookupError(f"{self.page} has no block of Python below a heading {self.heading!r}")
        return block["code"]


@dataclass(frozen=True)
class Documented:
    """What a block has set up; its compactor is not started yet."""

    memory: Memory
    compactor: ContextCompactor
    #: What the block gives ``compose``, without budget and system message.
    composing: Mapping[str, Any]
    #: Whether the block finishes a round after the agent's answer, and records the usage that came with it.
    finishes: bool
    records: bool
    names: Mapping[str, Any]

    def close(self) -> None:
        """Close the stores and clients that the block has opened."""
        for name, value in self.names.items():
            if not isinstance(value, type) and not name.startswith("_") and callable(getattr(value, "close", None)):
                value.close()


class _Starts(BaseException):
    """The block starts its compactor."""

    def __init__(self, started: ContextCompactor) -> None:
        self.started = started


def run(section: Section, *, url: str, folder: str, clock: FakeClock) -> Documented:
    """Run the block of *section* in *folder* up to where its compactor starts, and return what it has set up."""
    code = section.code
    names: dict[str, Any] = {"__name__": "__main__"}
    with _reader(url, folder, clock):
        try:
            exec(compile(code, section.page, "exec"), names)  # noqa: S102  (our own pages)
        except _Starts as starts:
            started = starts.started
        else:
            raise LookupError(f"the block of {section.page} below {section.heading!r} starts no compactor")
    calls = {_name_of(call): call for call in ast.walk(ast.parse(code)) if isinstance(call, ast.Call)}
    composing = {
        str(given.arg): eval(compile(ast.Expression(given.value), section.page, "eval"), names)  # noqa: S307  (likewise)
        for given in calls["compose"].keywords
        if given.arg not in _GIVEN
    }
    memory = started.rounds_getter.memory  # type: ignore[attr-defined]  (``for_role`` made it)
    return Documented(memory, started, composing, "finish_round" in calls, "record_usage" in calls, names)


@contextlib.contextmanager
def _reader(url: str, folder: str, clock: FakeClock) -> Iterator[None]:
    """Be a reader's process: in *folder*, with endpoint and key in its environment; its time is *clock*'s."""

    class Timed(ContextCompactor):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **{"clock": clock, "rng": lambda: 0.5} | options)

        def __enter__(self) -> Any:
            raise _Starts(self)

    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}),
        mock.patch.object(compactor, "ContextCompactor", Timed),
        mock.patch.object(compactor, "Memory", partial(Memory, clock=clock.now)),
    ):
        yield


def _name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
