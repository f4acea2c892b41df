"""An agent's plan. Summarizers and prompts get the current one each time, so no summary has to keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from memory.arguments import require
from memory.references import take_beginning
from memory.values import ValueObject

SubtaskState = Literal["pending", "in_progress", "done", "abandoned"]

#: Maximum characters of a plan's text.
MAX_CHARACTERS = 4_000
#: Maximum characters of its name, its description, each open subtask, and each line of finished ones.
_MAX_NAME, _MAX_DESCRIPTION, _MAX_SUBTASK, _MAX_FINISHED = 200, 1_000, 200, 300
_CUT = " [...]"

#: Hosts' names for states, without word separators. Any other state is pending.
_SPELLINGS: dict[str, SubtaskState] = {
    **dict.fromkeys(("inprogress", "doing", "active", "current", "ongoing", "running", "started"), "in_progress"),
    **dict.fromkeys(("done", "complete", "completed", "finished", "success", "succeeded", "closed"), "done"),
    **dict.fromkeys(("abandoned", "cancelled", "canceled", "dropped", "skipped", "obsolete", "deleted"), "abandoned"),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan(ValueObject):
    """A plan as data. Texts are shown unchanged, but clipped if long."""

    name: str
    """The plan's name."""
    description: str = ""
    """What the plan is about."""
    subtasks: Sequence[tuple[str, str]] = ()
    """Name and state of each, in the host's order. Common spellings ("Doing", "completed", an enum) are understood. An
    unknown or missing state means ``pending``."""

    def __post_init__(self) -> None:
        require("name", self.name, str, "a text")
        require("description", self.description, str, "a text")
        require("subtasks", self.subtasks, Iterable, "a list of pairs of a name and a state")
        object.__setattr__(self, "subtasks", tuple(map(_read_subtask, self.subtasks)))

    @property
    def pending(self) -> bool:
        """Whether anything is left to do: an open subtask, or the whole of a plan without subtasks."""
        if self.subtasks:
            return any(state in ("in_progress", "pending") for _, state in self.subtasks)
        return bool(self.name.strip() or self.description.strip())

    def __str__(self) -> str:
        """Return the plan as text, at most ``MAX_CHARACTERS``, open subtasks first."""
        names: dict[str, list[str]] = {state: [] for state in get_args(SubtaskState)}
        for name, state in self.subtasks:
            names[state].append(name)
        head = [f"Plan: {_render_line(self.name, _MAX_NAME)}"] if self.name.strip() else []
        if self.description.strip():
            head.append(_clip(self.description.strip(), _MAX_DESCRIPTION))
        doing = [f"- [in progress] {_render_line(name, _MAX_SUBTASK)}" for name in names["in_progress"]]
        pending = [f"- [pending] {_render_line(name, _MAX_SUBTASK)}" for name in names["pending"]]
        finished = [
            _render_line(f"{state.capitalize()} ({len(names[state])}): {'; '.join(names[state])}", _MAX_FINISHED)
            for state in ("done", "abandoned")
            if names[state]
        ]
        room = MAX_CHARACTERS - sum(len(line) + 1 for line in (*head, *finished))
        return "\n".join([*head, *_fit([*doing, *pending], room), *finished])


def render_plan(value: object) -> str | None:
    """Return the host's plan (a text, a ``Plan`` or any object with a ``str()``) as text; None if it is empty.

    The text has at most ``MAX_CHARACTERS``.
    """
    text = "" if value is None else str(value)
    return _clip(text, MAX_CHARACTERS) if text.strip() else None


def is_pending(value: object) -> bool:
    """Return whether the host's plan has anything left to do. A text always counts as pending: it has no states."""
    return value.pending if isinstance(value, Plan) else render_plan(value) is not None


def _read_subtask(item: Any) -> tuple[str, SubtaskState]:
    if isinstance(item, str):
        return item, "pending"
    try:
        name, state = item
    except (TypeError, ValueError):
        known = ", ".join(get_args(SubtaskState))
        raise TypeError(f"a subtask is a pair of a name and a state ({known}), not {type(item).__name__}") from None
    spelled = re.sub(r"[\W_]+", "", str(getattr(state, "value", state)).lower())
    return str(name), _SPELLINGS.get(spelled, "pending")


def _fit(lines: list[str], characters: int) -> list[str]:
    """Return the first *lines* that fit in *characters* characters, and a line with the number of the rest."""
    more = "- and {} more that are open"
    characters -= len(more.format(len(lines)))
    for place, line in enumerate(lines):
        characters -= len(line) + 1
        if characters < 0:
            return [*lines[:place], more.format(len(lines) - place)]
    return lines


def _render_line(text: str, limit: int) -> str:
    return _clip(" ".join(text.split()), limit)


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else take_beginning(text, limit - len(_CUT)) + _CUT
