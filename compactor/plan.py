"""An agent's plan: state that summarizers and prompts are told anew each time, so that no summary has to keep it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from memory.arguments import require
from memory.references import beginning

__all__ = ["LONGEST", "Plan", "SubtaskState", "is_pending", "plan_text"]

SubtaskState = Literal["pending", "in_progress", "done", "abandoned"]

#: No plan's text is longer, in characters, whoever made it.
LONGEST = 4_000
#: Of which its name, its description, each open subtask and each line of finished ones take at most this many.
_NAME, _DESCRIPTION, _SUBTASK, _FINISHED = 200, 1_000, 200, 300
_CUT = " [...]"

#: What hosts call a state, without what separates words. All else is pending.
_SPELLINGS: dict[str, SubtaskState] = {
    **dict.fromkeys(("inprogress", "doing", "active", "current", "ongoing", "running", "started"), "in_progress"),
    **dict.fromkeys(("done", "complete", "completed", "finished", "success", "succeeded", "closed"), "done"),
    **dict.fromkeys(("abandoned", "cancelled", "canceled", "dropped", "skipped", "obsolete", "deleted"), "abandoned"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as data: its texts are shown as they are, only clipped where they are long."""

    name: str
    description: str = ""
    #: Name and state of each, in the host's order. A host's spellings ("Doing", "completed", an enum) are understood;
    #: a state that is none we know, and a name that stands alone, is ``pending``.
    subtasks: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        require("name", self.name, str, "a text")
        require("description", self.description, str, "a text")
        require("subtasks", self.subtasks, Iterable, "a list of pairs of a name and a state")
        object.__setattr__(self, "subtasks", tuple(map(_subtask, self.subtasks)))

    @property
    def pending(self) -> bool:
        """Whether anything is left to do: an open subtask, or all of a plan that was not divided into any."""
        if self.subtasks:
            return any(state in ("in_progress", "pending") for _, state in self.subtasks)
        return bool(self.name.strip() or self.description.strip())

    def __str__(self) -> str:
        """Return the plan as text of at most ``LONGEST`` characters: the open subtasks first, a line of those done."""
        head = [f"Plan: {_line(self.name, _NAME)}"] if self.name.strip() else []
        if self.description.strip():
            head.append(_clipped(self.description.strip(), _DESCRIPTION))
        finished = [*self._in_a_line("Done", "done"), *self._in_a_line("Abandoned", "abandoned")]
        lines = [f"- [in progress] {_line(name, _SUBTASK)}" for name in self._of("in_progress")]
        lines += [f"- [pending] {_line(name, _SUBTASK)}" for name in self._of("pending")]
        room = LONGEST - sum(len(line) + 1 for line in (*head, *finished))
        return "\n".join([*head, *_fitting(lines, room), *finished])

    def _of(self, state: SubtaskState) -> list[str]:
        return [name for name, its_state in self.subtasks if its_state == state]

    def _in_a_line(self, heading: str, state: SubtaskState) -> Iterator[str]:
        names = self._of(state)
        if names:
            yield _line(f"{heading} ({len(names)}): {'; '.join(names)}", _FINISHED)


def plan_text(value: object) -> str | None:
    """Return the plan that a host gave as text of at most ``LONGEST`` characters; None where it says nothing.

    Text, a ``Plan``, or whatever else has a ``str()`` that tells of it.
    """
    text = "" if value is None else str(value)
    return _clipped(text, LONGEST) if text.strip() else None


def is_pending(value: object) -> bool:
    """Return whether a plan that a host gave has anything left to do. Of a text nobody can tell, so it has."""
    return value.pending if isinstance(value, Plan) else plan_text(value) is not None


def _subtask(item: Any) -> tuple[str, SubtaskState]:
    if isinstance(item, str):
        return item, "pending"
    try:
        name, state = item
    except (TypeError, ValueError):
        known = ", ".join(get_args(SubtaskState))
        raise TypeError(f"a subtask is a pair of a name and a state ({known}), not {type(item).__name__}") from None
    spelled = re.sub(r"[\W_]+", "", str(getattr(state, "value", state)).lower())
    return str(name), _SPELLINGS.get(spelled, "pending")


def _fitting(lines: Sequence[str], room: int) -> Iterator[str]:
    """Give as many of *lines* as fit into *room* characters, and say how many do not."""
    room -= len(_left_out(len(lines)))
    for place, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            yield _left_out(len(lines) - place)
            return
        yield line


def _left_out(count: int) -> str:
    return f"- and {count} more that are open"


def _line(text: str, longest: int) -> str:
    return _clipped(" ".join(text.split()), longest)


def _clipped(text: str, longest: int) -> str:
    return text if len(text) <= longest else beginning(text, longest - len(_CUT)) + _CUT
