"""Events of a Memory: typed and frozen, with facts but never with a message's content."""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from pydantic import Field

from .rounds import FrozenModel, run_dump, utc_now


class Event(FrozenModel):
    """A fact or a decision."""

    #: A dotted name, stable across releases: ``compaction.published``.
    name: ClassVar[str] = "event"
    #: ``debug``, ``info`` or ``warning``.
    level: ClassVar[str] = "info"
    at: datetime = Field(default_factory=utc_now)
    """When it happened, in UTC."""
    session: str = ""
    """The session's name; empty: it has none."""
    role: str = ""
    """The agent role; empty: the event is about the whole session."""
    seconds: float = 0.0
    """Time taken, up to ``at``; 0 for what takes none."""

    @property
    def started(self) -> datetime:
        """When it began."""
        return self.at - timedelta(seconds=self.seconds)

    def facts(self) -> dict[str, object]:
        """Return all fields but the time that are not None."""
        facts = run_dump(partial(self.model_dump, exclude={"at"}))
        return {key: value for key, value in facts.items() if value is not None}


EventHook = Callable[[Event], object]


class HookFailed(Event):
    """A callback raised; the data is stored all the same."""

    name: ClassVar[str] = "memory.hook_failed"
    level: ClassVar[str] = "warning"
    hook: str
    """The name of the callback."""
    error: str
    """The class of the error."""


class Redacted(Event):
    """Posts were erased, with everything derived from them; erase copies of their texts outside the store too."""

    name: ClassVar[str] = "memory.redacted"
    references: tuple[str, ...]
    """``r3.p2``, or ``r3.p0`` for the user's query."""


class Rewound(Event):
    """The conversation went on from an earlier place; the rounds behind it are hidden."""

    name: ClassVar[str] = "memory.rewound"
    references: tuple[str, ...]
    """The rounds that were undone, oldest first: ``r5``."""


class ProviderFailed(Event):
    """A role's compaction provider raised; the prompt comes from the log instead."""

    name: ClassVar[str] = "memory.provider_failed"
    level: ClassVar[str] = "warning"
    role: str
    """The role that the provider serves."""
    error: str
    """The class of the error."""


class CheckpointFailed(Event):
    """A checkpoint could not be stored: nothing is lost, and the next opening reads more. Emitted once per streak."""

    name: ClassVar[str] = "memory.checkpoint_failed"
    level: ClassVar[str] = "warning"
    error: str
    """The class of the error."""


def _prepare() -> None:
    """Use each of pydantic's methods once: on the first use it prepares itself, and a child that is forked meanwhile
    would wait for ever."""
    event = HookFailed(hook="", error="")
    event.facts()
    event.model_dump_json()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_prepare)
