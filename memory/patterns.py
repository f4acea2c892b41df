"""Regular expressions that are compiled when they are first used: a program needs few of them, and none to start."""

from __future__ import annotations

import re
from typing import Any, cast


class _LatePattern:
    def __init__(self, text: str, flags: int) -> None:
        self._arguments = (text, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._arguments), name)  # compiled once: it is in the cache of ``re`` from then on
        setattr(self, name, value)
        return value


def compile_later(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return the pattern that ``re.compile`` gives, to be compiled when its first method is called."""
    return cast("re.Pattern[str]", _LatePattern(text, flags))
