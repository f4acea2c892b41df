"""Checks of a host's arguments. An error names the argument, the expected kind and the kind that was given.

It never quotes the value, which may hold words of the conversation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def kind_of(value: object) -> str:
    """Return the class of *value* for an error message, or say that it is a class itself."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def require(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise ``TypeError`` unless *value* is of *kind*. *wanted* describes the argument *name* in words."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {wanted}, not {kind_of(value)}")


def require_callable(name: str, value: object, wanted: str) -> None:
    """Raise ``TypeError`` unless *value* can be called."""
    if not callable(value):
        raise TypeError(f"{name} is {wanted}, not {kind_of(value)}")


def require_methods(name: str, value: object, methods: tuple[str, ...], wanted: str) -> None:
    """Raise ``TypeError`` unless *value* is an object, not a class, that has all *methods*."""
    if isinstance(value, type):
        raise TypeError(f"{name} is {wanted}, not {kind_of(value)}; make one of it: {value.__name__}(...)")
    if missing := [method for method in methods if not callable(getattr(value, method, None))]:
        raise TypeError(f"{name} is {wanted}; a {kind_of(value)} has no {' and no '.join(missing)}")


def require_role(role: object) -> None:
    """Raise ``TypeError`` unless *role* is a text. Everybody is the empty text, not None."""
    if not isinstance(role, str):
        raise TypeError(f'role is the name of an agent, or "" to let it read every post, not {kind_of(role)}')


def takes(function: Callable[..., object], *arguments: object) -> bool:
    """Return whether the signature of *function* accepts *arguments*; true if it has none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have none
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def round_id_of(round_: Any) -> str:
    """Return the id of a round, or the id that it is. Raises ``TypeError`` for anything else."""
    round_id = round_ if isinstance(round_, str) else getattr(round_, "id", None)
    if not isinstance(round_id, str):
        raise TypeError(f"round_ is the round that create_round() returned, or its id, not {kind_of(round_)}")
    return round_id
