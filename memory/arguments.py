"""Checks of arguments: each error names the argument, what it must be, and the class of what was given.

A value itself may hold words of the conversation; only numbers are quoted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from .errors import ContextError


class ConfigError(ContextError, ValueError):
    """A setting is invalid; the message names it, the fault and the remedy."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__(*problems)
        #: Name and fault of each invalid setting.
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{name}: {wrong}" for name, wrong in self.problems)


class WrongType(ConfigError, TypeError):
    """An argument is of the wrong type."""


def name_kind(value: object) -> str:
    """Return the class of *value* for an error message, or say that it is a class itself."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def find_near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the one of the *known* words that *word* is most likely meant to be; None if none is near."""
    import difflib  # here: no program should pay for mistakes that it does not make

    return next(iter(difflib.get_close_matches(word, list(known), 1, cutoff)), None)


def require(name: str, value: object, kind: Any, wanted: str) -> None:
    """Raise ``WrongType`` unless *value* is of *kind*: a type or a union, or a tuple of methods that an object, not a
    class, must have. *wanted* describes it in words."""
    if not isinstance(kind, tuple):
        fault = "" if isinstance(value, kind) else f", not {name_kind(value)}"
    elif isinstance(value, type):
        fault = f", not {name_kind(value)}; make one of it: {value.__name__}(...)"
    else:
        missing = [method for method in kind if not callable(getattr(value, method, None))]
        fault = f"; a {name_kind(value)} has no {' and no '.join(missing)}" if missing else ""
    if fault:
        raise WrongType((name, f"must be {wanted}{fault}"))


def require_role(role: object) -> None:
    """Raise ``WrongType`` unless *role* is a text. Everybody is the empty text, not None."""
    if not isinstance(role, str):
        require("role", role, str, 'the name of an agent, or "" to let it read every post')


def require_model(model: object) -> None:
    """Raise ``WrongType`` unless *model* is a text."""
    if not isinstance(model, str):
        require("model", model, str, "the name of a model")


def check_whole_number(name: str, value: object, minimum: int = 0) -> int:
    """Return *value*. Raises ``ConfigError``, a ``ValueError``, unless it is a whole number of at least *minimum*."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise _make_number_error(name, value, f"a whole number from {minimum} on")
    return value


def check_number(
    name: str, value: object, maximum: float = math.inf, *, above: bool = False, finite: bool = False
) -> float:
    """Return *value*. Raises ``ConfigError``, a ``ValueError``, unless it is a number from 0 (or *above* it) to
    *maximum*, and *finite* if that is asked for."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= maximum
        or (above and value == 0)
        or (finite and value == math.inf)
    ):
        least_text = "above 0" if above else "of at least 0"
        most_text = f" and at most {maximum:g}" if maximum < math.inf else ""
        raise _make_number_error(name, value, f"a {'finite ' if finite else ''}number {least_text}{most_text}")
    return value


def _make_number_error(name: str, value: object, wanted: str) -> ConfigError:
    if isinstance(value, int | float):
        return ConfigError((name, f"must be {wanted}, not {value!r}"))
    return WrongType((name, f"must be {wanted}, not {name_kind(value)}"))


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


def read_round_id(round_: Any) -> str:
    """Return the id of a round, or the id that it is. Raises ``WrongType`` for anything else."""
    round_id = round_ if isinstance(round_, str) else getattr(round_, "id", None)
    if not isinstance(round_id, str):
        raise WrongType(
            ("round_", f"must be the round that create_round() returned, or its id, not {name_kind(round_)}")
        )
    return round_id
