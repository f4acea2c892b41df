"""A property that is worked out once."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from memory.rounds import cached_property


@dataclass(frozen=True)
class Sheet:
    numbers: tuple[int, ...]
    read: list[str] = field(default_factory=list, compare=False)

    @cached_property
    def total(self) -> int:
        """The sum of them."""
        self.read.append("read")
        return sum(self.numbers)


def test_it_is_worked_out_when_it_is_first_asked_for_and_kept() -> None:
    """Also on a frozen record; a record that is changed works out its own."""
    sheet = Sheet((1, 2, 3))
    assert sheet.read == []
    assert [sheet.total, sheet.total] == [6, 6]
    assert sheet.read == ["read"]

    assert replace(sheet, numbers=(4,)).total == 4
    assert sheet == Sheet((1, 2, 3))


def test_one_that_fails_is_worked_out_again() -> None:
    """What was raised is not kept."""
    asked = iter(["", "7"])

    class Late:
        @cached_property
        def value(self) -> int:
            return int(next(asked))

    late = Late()
    with pytest.raises(ValueError, match="invalid literal"):
        _ = late.value
    assert late.value == 7


@pytest.mark.slow
@pytest.mark.parametrize("package", ["memory", "prompts", "compactor"])
def test_nothing_else_is_used_for_it(package: str) -> None:
    """``functools.cached_property`` has a lock before Python 3.12: a child that is forked while a thread works one out
    would wait for it for ever."""
    modules = list((Path(__file__).parents[2] / package).rglob("*.py"))
    assert modules
    for path in modules:
        imported = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        others = [node for node in imported if node.module == "functools"]
        assert "cached_property" not in {alias.name for node in others for alias in node.names}, path


def test_the_class_shows_the_property_itself() -> None:
    """With what it says of itself."""
    assert Sheet.total.__doc__ == "The sum of them."
