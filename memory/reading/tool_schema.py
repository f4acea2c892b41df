"""What tools for a model have in common: schemas in OpenAI's format, and arguments as models write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HUGE", "Parameters", "Refused", "number_in", "read_arguments", "schema", "text_in"]

#: Numbers beyond are taken for this one.
HUGE = 10**12

#: By name: the JSON type, whether it must be given, and what it means.
Parameters = Mapping[str, tuple[str, bool, str]]

_WHOLE = re.compile(r"\s*[-+]?\d{1,30}\s*", re.ASCII)


class Refused(Exception):
    """The arguments are no good; the message tells the model what to give instead."""


def schema(name: str, description: str, parameters: Parameters) -> dict[str, Any]:
    """Return a tool's schema. It satisfies strict mode, where every parameter is required and what may be left out is
    given as null."""
    properties = {
        parameter: {"type": kind if required else [kind, "null"], "description": meaning}
        for parameter, (kind, required, meaning) in parameters.items()
    }
    wanted = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": wanted}}


def read_arguments(
    arguments: object, parameters: Parameters, other_names: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Return *arguments*, an object or its JSON, by the names of *parameters*, of which *other_names* are also known.

    Raises ``Refused`` for what is no object, and for a name that is not known.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise Refused(f"the arguments are not JSON; give an object with {', '.join(parameters)}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise Refused(f"the arguments are not an object; give one with {', '.join(parameters)}")
    given = {(other_names or {}).get(name, name): value for name, value in arguments.items()}
    if any(name not in parameters for name in given):
        raise Refused(f"there are arguments that this tool does not have; it has {', '.join(parameters)}")
    return given


def text_in(given: Mapping[str, Any], name: str) -> str:
    """Return what must be a string. Raises ``Refused``."""
    value = given.get(name)
    if not isinstance(value, str):
        raise Refused(f"{name} must be given, as a string" if value is None else f"{name} must be a string")
    return value


def number_in(given: Mapping[str, Any], name: str, default: int | None, least: int, most: int) -> int:
    """Return a whole number, brought between *least* and *most*; the default where none is given. 4.0 and "4" are 4.
    Raises ``Refused``."""
    value: Any = given.get(name)
    if value is None and default is not None:
        return default
    written = isinstance(value, str) and _WHOLE.fullmatch(value)
    if written or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{name} must be a whole number, such as {max(least, 1)}")
    return min(max(value, least), most)
