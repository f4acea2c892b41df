"""The tables of ``docs/coming-from.md`` that say of each thing there what it is here, and prove it by a line of code."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fenced import ROOT, Block, blocks

PAGE = "docs/coming-from.md"
HEADER = ["there", "here", "code"]
#: What stands in place of code where there is no counterpart, and how the reason begins.
NO_CODE, NOT_HERE = "–", "Not here:"

_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Row:
    """One row: a thing of another system, its counterpart here, and one line of Python that proves it."""

    section: str
    line: int
    there: str
    here: str
    code: str

    def __str__(self) -> str:
        return f"{PAGE}:{self.line}"

    @property
    def source(self) -> str:
        """The code without its backticks; empty where the row has none."""
        return "" if self.code == NO_CODE else self.code.removeprefix("`").removesuffix("`").replace("\\|", "|")

    def run(self, setup: Block) -> None:
        """Run the row's code after the section's *setup*; an expression must be true. ``await`` is allowed."""
        names = setup.run() | {"raises": _raises}
        tree = ast.parse(self.source)
        is_expression = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
        given = _evaluate(ast.Expression(tree.body[0].value) if is_expression else tree, names, str(self))
        if is_expression and not given:
            raise AssertionError(f"{self}: {self.source} is {given!r}; a row's expression is true")


def _raises(error: type[Exception], call: Callable[[], object]) -> bool:
    try:
        given = call()
        if inspect.iscoroutine(given):
            asyncio.run(given)
    except error:
        return True
    return False


def _evaluate(tree: ast.Expression | ast.Module, names: dict[str, Any], place: str) -> object:
    mode = "eval" if isinstance(tree, ast.Expression) else "exec"
    code = compile(tree, place, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    given = eval(code, names)  # noqa: S307  (our own page)
    if code.co_flags & inspect.CO_COROUTINE:
        return asyncio.run(given)
    return given


def rows() -> list[Row]:
    """Return the rows of all tables with the columns ``there``, ``here`` and ``code``."""
    return list(_rows((ROOT / PAGE).read_text(encoding="utf-8").splitlines()))


def _rows(lines: list[str]) -> Iterator[Row]:
    section, in_table, in_fence = "", False, False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            in_fence = not in_fence
        if in_fence:
            continue
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]] if line.startswith("|") else []
        if cells == HEADER:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and not set("".join(cells)) <= set("-: "):
            if len(cells) != len(HEADER):
                raise AssertionError(f"{PAGE}:{number} has {len(cells)} cells; write | inside a cell as \\|")
            yield Row(section, number, *cells)


def setups() -> dict[str, Block]:
    """Return the block titled "setup" of each section that has one, by the section's heading."""
    headings = [
        (number, line[3:])
        for number, line in enumerate((ROOT / PAGE).read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith("## ")
    ]
    found = [block for block in blocks(PAGE, "python") if block.info == 'title="setup"']
    return {next(title for line, title in reversed(headings) if line < block.line): block for block in found}
