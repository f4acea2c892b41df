"""Read-only copies of JSON-like values, so that a record holds nothing that someone else can still change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from pydantic_core import PydanticSerializationError

from .errors import MessageError

__all__ = ["EMPTY", "FrozenMapping", "dumped", "freeze", "freeze_mapping", "thaw"]

T = TypeVar("T")


class FrozenMapping(dict[str, Any]):
    """A dict that cannot be changed: it compares, copies, pickles and turns into JSON as a dict does."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise TypeError("this mapping belongs to a record and is read-only; change a copy: dict(mapping)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenMapping:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> FrozenMapping:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMapping, (dict(self),)


EMPTY = FrozenMapping()

#: How deep a value may nest. JSON parsers and printers recurse too, and give up near here.
MAX_DEPTH = 200
#: How long an integer may be: Python refuses to print or parse much longer ones.
MAX_BITS = 14_000


def freeze(value: Any, depth: int = 0) -> Any:
    """Return *value* as deeply immutable data: mappings as ``FrozenMapping``, lists as tuples.

    Raises ``MessageError`` for what JSON cannot hold: such a value would be lost when the session is saved.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if depth > MAX_DEPTH:
        raise MessageError(f"this value is nested more than {MAX_DEPTH} deep; flatten it")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise MessageError(f"keys must be strings, not {type(key).__name__}; convert them first")
        return FrozenMapping({key: freeze(item, depth + 1) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item, depth + 1) for item in value)
    raise MessageError(f"{type(value).__name__} cannot be stored as JSON; convert it to text, numbers, lists and dicts")


def _number(value: int | float) -> int | float:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise MessageError(f"an integer of more than {MAX_BITS} bits cannot be stored; convert it to text")
    if isinstance(value, float) and not math.isfinite(value):
        raise MessageError("JSON has no infinite numbers and no NaN; convert them to text or null")
    return value


def freeze_mapping(value: Any) -> FrozenMapping:
    """Return *value*, a mapping, deeply read-only. Raises ``MessageError`` for anything else."""
    if not isinstance(value, Mapping):
        raise MessageError(f"expected a mapping, got {type(value).__name__}")
    if not value:
        return EMPTY
    frozen = freeze(value)
    assert isinstance(frozen, FrozenMapping)  # noqa: S101  (tells mypy what freeze() gives for a mapping)
    return frozen


def dumped(dump: Callable[[], T]) -> T:
    """Return what *dump*, a dumping method of pydantic's, returns; an interrupt in it comes out as what it is."""
    try:
        return dump()
    except PydanticSerializationError as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, Exception):
            raise cause from None
        for interrupt in (KeyboardInterrupt(), SystemExit(1)):  # by name, all that is left; no value is in there
            if type(interrupt).__name__ in str(error):
                raise interrupt from None
        raise


def thaw(value: Any) -> Any:
    """Return a copy of *value* in plain dicts and lists, for callers who may change it."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value
