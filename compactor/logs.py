"""Events as structured log lines. Nothing is logged unless a host asks for it."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO

from memory.events import Event, EventHook

__all__ = ["log_events", "logger_to", "visible"]

# Everything that a terminal acts on instead of showing it, line ends and tabs aside: C0 and C1 controls, line and
# paragraph separators, what turns the direction of writing around, lone surrogates.
_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return *text* as it may be printed: what a terminal would act on stands there as ``\\x1b``."""
    return _ACTED_ON.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


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
    rendering: list[Any] = [renderer] if json else [_on_one_line, renderer]
    return structlog.wrap_logger(
        structlog.PrintLogger(stream if stream is not None else sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(known[level.upper()]),
    )


def _on_one_line(_logger: Any, _name: str, facts: Any) -> Any:
    """Return *facts* whose texts neither begin a line that looks like another event nor make a terminal do anything."""
    return {name: " ".join(visible(fact).split()) if isinstance(fact, str) else fact for name, fact in facts.items()}
