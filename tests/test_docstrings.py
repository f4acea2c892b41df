"""What a program imports explains itself: in an editor, in ``help()`` and on the reference pages."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import compactor
from compactor import CompactorConfig, Event

CLASSES = [one for name in compactor.__all__ if inspect.isclass(one := getattr(compactor, name))]
FUNCTIONS = [one for name in compactor.__all__ if inspect.isfunction(one := getattr(compactor, name))]


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that *cls* itself defines."""
    for name, found in vars(cls).items():
        one = getattr(found, "fget", None) or getattr(found, "__func__", None) or getattr(found, "func", found)
        if not name.startswith("_") and inspect.isfunction(one) and one.__name__ == name:
            yield name, one


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_a_function_says_first_what_it_returns(function: Any) -> None:
    """Or what it does, if it returns nothing of interest."""
    first = (inspect.getdoc(function) or "").partition("\n\n")[0]
    assert first
    returns = inspect.signature(function).return_annotation not in (None, "None")
    assert first.startswith("Yield") or "eturn" in first or not returns, first


@pytest.mark.parametrize("cls", CLASSES, ids=lambda one: one.__name__)
def test_a_class_and_each_of_its_methods_has_a_docstring(cls: type) -> None:
    """Its own, or that of the method which it overrides."""
    assert cls.__doc__
    missing = [name for name, one in members(cls) if not (one.__doc__ or inspect.getdoc(getattr(cls, name)))]
    assert missing in ([], ["submit"]), "submit is the standard library's"


@pytest.mark.parametrize(
    "cls", [CompactorConfig, *(cls for cls in CLASSES if issubclass(cls, Event))], ids=lambda one: one.__name__
)
def test_each_field_of_the_configuration_and_of_events_has_a_docstring(cls: type[BaseModel]) -> None:
    """A text below the field, which editors show."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    for place, field in enumerate(node.body):
        name = ast.unparse(getattr(field, "target", field))
        if isinstance(field, ast.AnnAssign) and name in cls.model_fields:
            below = node.body[place + 1] if place + 1 < len(node.body) else None
            assert isinstance(getattr(below, "value", None), ast.Constant), name
