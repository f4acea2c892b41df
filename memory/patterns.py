"""Regular expressions that are compiled when they are first used: a program needs few of them, and none to start."""

from __future__ import annotations

import re
from typing import Any, cast


class _LatePattern:
    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags
        self._pattern: re.Pattern[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_later, (self._text, self._flags)

    def __getattr__(self, name: str) -> Any:
        if self._pattern is None:  # two threads may both compile it; one of the two is kept
            self._pattern = re.compile(self._text, self._flags)
        value = getattr(self._pattern, name)
        setattr(self, name, value)
        return value


def compile_later(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return the pattern that ``re.compile`` gives, to be compiled when its first method is called."""
    return cast("re.Pattern[str]", _LatePattern(text, flags))
