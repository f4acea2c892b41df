"""Equality, hash and repr for frozen dataclasses: one of each, for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter


class ValueObject:
    """What ``@dataclass(frozen=True, eq=False, repr=False)`` inherits to compare, hash and print as without these two.

    A dataclass compiles a source text for each method that it makes. These three are most of what a definition costs,
    and every process that imports the library would pay it for some forty of them.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = self._make_comparison()
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        return hash(self._make_comparison()(self))

    def __repr__(self) -> str:
        shown = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr]  # type: ignore[arg-type]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

    @classmethod
    @cache
    def _make_comparison(cls) -> Callable[[object], object]:
        """Return a function that gives the fields that are compared."""
        return attrgetter(*(one.name for one in fields(cls) if one.compare))  # type: ignore[arg-type]
