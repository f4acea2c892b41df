"""The tables of the pages in ``docs/coming-from``: each row names a thing of another system, its counterpart here, and a proof."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fenced import ROOT, Block, blocks

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/coming-from").glob("*.md"))
HEADER = ["there", "here", "code"]
#: The third cell without a counterpart, and the beginning of the reason.
NO_CODE, NOT_HERE = "–", "Not here:"

_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Row:
    """One row: a thing of another system, its counterpart here, and one line of Python that proves it."""

    page: str
    line: int
    there: str
    here: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def source(self) -> str:
        """The code without its backticks; empty where the row has none."""
        return "" if self.code == NO_CODE else self.code.removeprefix("`").removesuffix("`").replace("\\|", "|")

    def run(self, setup: Block) -> None:
        """Run the row's code after its page's *setup*; an expression must be true. ``await`` is allowed."""
        names = setup.run() | {"raises": _raises}
        tree = ast.parse(self.source)
        if weak := _cannot_fail(tree):
            raise AssertionError(f"{self}: {weak} cannot fail; show what is there afterwards, or what has changed")
        is_expression = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
        given = _evaluate(ast.Expression(tree.body[0].value) if is_expression else tree, names, str(self))
        if is_expression and not given:
            raise AssertionError(f"{self}: {self.source} is {given!r}; a row's expression is true")


def _cannot_fail(tree: ast.Module) -> str:
    """Return the first claim in *tree* that is always true; empty if there is none.

    Such as: a call returns None, as most methods do; ``all`` of a list that may be empty; a constructor's result is of
    its class.
    """
    claims = [node.value for node in tree.body if isinstance(node, ast.Expr)]
    claims += [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    parts = [part for claim in claims for part in (claim.values if isinstance(claim, ast.BoolOp) else [claim])]
    counted = any(isinstance(node, ast.Name) and node.id == "len" for node in ast.walk(tree))
    for part in parts:
        match part:
            case ast.Compare(left=ast.Call(), ops=[ast.Is()], comparators=[ast.Constant(value=None)]) if parts == [
                part
            ]:
                return ast.unparse(part)
            case ast.Call(func=ast.Name(id="all"), args=[ast.GeneratorExp(generators=[over])]):
                if not isinstance(over.iter, ast.Tuple | ast.List) and not counted:
                    return ast.unparse(part)
            case ast.Call(func=ast.Name(id="isinstance"), args=[made, _]) if _is_constructor(made):
                return ast.unparse(part)
    return ""


def _is_constructor(node: ast.expr) -> bool:
    """Return whether *node* calls a class, or reads an attribute of the new object."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper()


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
    return [row for page in PAGES for row in _rows(page, (ROOT / page).read_text(encoding="utf-8").splitlines())]


def _rows(page: str, lines: list[str]) -> Iterator[Row]:
    in_table, in_fence = False, False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            in_fence = not in_fence
        if in_fence:
            continue
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]] if line.startswith("|") else []
        if cells == HEADER:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and not set("".join(cells)) <= set("-: "):
            if len(cells) != len(HEADER):
                raise AssertionError(f"{page}:{number} has {len(cells)} cells; write | inside a cell as \\|")
            yield Row(page, number, *cells)


def setups() -> dict[str, Block]:
    """Return the block titled "setup" of each page that has one."""
    return {block.page: block for page in PAGES for block in blocks(page, "python") if block.info == 'title="setup"'}
