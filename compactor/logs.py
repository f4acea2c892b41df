"""Events as structured log lines. Nothing is logged unless a host asks for it."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

from memory.events import Event, EventHook

__all__ = ["log_events", "logger_to"]


def log_events(logger: Any | None = None) -> EventHook:
    """Return a hook that writes each event to *logger*, by default structlog's: ``compactor.on_event(log_events())``.

    The event's name is the message and its facts are the fields. Events never hold what was said.
    """
    import structlog

    log = logger if logger is not None else structlog.get_logger("compactor")

    def write(event: Event) -> None:
        getattr(log, event.level)(event.name, **event.facts())

    return write


def logger_to(stream: TextIO | None = None, *, json: bool = False, level: str = "info") -> Any:
    """Return a logger that writes JSON lines, or lines for a console, to *stream* (standard error by default).

    structlog's global configuration is left as it is. Raises ``ValueError`` for a *level* that logging does not have.
    """
    import structlog

    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ValueError(f"there is no level {level!r}; give one of debug, info, warning and error")
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str) if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    return structlog.wrap_logger(
        structlog.PrintLogger(stream if stream is not None else sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(known[level.upper()]),
    )
