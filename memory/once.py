"""A property that is worked out when it is first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["once"]

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801  (read as @property is)
    """What *make* gives of an instance that has a ``__dict__``, frozen or not.

    ``functools.cached_property`` without its lock, which it takes before Python 3.12 for all instances together: two
    threads that ask at once may both work it out, so it must give each the same. Once 3.12 is the oldest Python that
    is supported, this may go, and that one take its place.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        made = instance.__dict__[self._name] = self._make(instance)  # found there from now on, before this is
        return made
