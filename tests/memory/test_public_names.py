"""What the public functions of the package take and return has a public name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import openai.types.chat

import memory

#: For who writes a store or a journal of their own, in ``memory.entries``, ``memory.rounds`` and ``memory.stores``.
OF_STORES = {
    "CompactionPrepared",
    "Record",
    "Checkpoint",
    "DueSession",
    "Extent",
    "FoundTexts",
    "LimitRows",
}
OF_STORES |= {"StoredText"}
#: What is known by another name: ``Journal``, a callable, and what ``Rounds`` shows.
KNOWN = {"RoleJournal", "RoundsGetter", "Snapshot"}


def test_what_public_functions_take_and_return_can_be_imported() -> None:
    """From ``memory`` itself, so that who annotates with it needs no other module."""
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "memory"]
    # Types of openai are named for type checkers alone: importing it would take longer than all the rest.
    names = dict(vars(openai.types.chat))
    names |= {name: one for module in ours for name, one in vars(module).items() if isinstance(one, type)}
    used = {
        cls.__name__
        for function in functions()
        for hint in get_type_hints(function, localns=names).values()
        for cls in classes(hint)
        if cls.__module__.partition(".")[0] == "memory"
    }
    assert "Hit" in used
    assert used - set(memory.__all__) <= OF_STORES | KNOWN


def functions() -> Iterator[Any]:
    """Give the public functions of the package and of its classes."""
    for name in memory.__all__:
        one = getattr(memory, name)
        if inspect.isfunction(one):
            yield one
        for member, found in tuple(vars(one).items()) if inspect.isclass(one) else ():
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if not member.startswith("_") and inspect.isfunction(function):
                yield function


def classes(hint: object) -> Iterator[type]:
    """Give the classes that a type is made of."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        for one in part if isinstance(part, list) else (part,):
            yield from classes(one)
