"""Planted facts: how a user tells one, how a summary does, and how many summaries it went through."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

__all__ = ["Depths", "planted", "raw_in", "told", "told_in"]

_RAW = re.compile(r"(KEY-\d{3}) is ([A-Z0-9]{6})\b")
_TOLD = re.compile(r"(KEY-\d{3})=([A-Z0-9]{6})\b")
#: No vowels, nor digits that look like letters: no value is a word.
_CHARACTERS = "BCDFGHJKLMNPQRSTVWXZ2345679"


def planted(count: int, seed: int) -> list[tuple[str, str]]:
    """Return *count* facts, the same for the same *seed*: a key and a value that nobody could guess."""
    rng = random.Random(seed)
    return [(f"KEY-{number:03}", "".join(rng.choices(_CHARACTERS, k=6))) for number in range(1, count + 1)]


def told(key: str, value: str) -> str:
    """Return the sentence in which the user tells a fact."""
    return f"Please remember: {key} is {value}."


def raw_in(text: str) -> dict[str, str]:
    """Return the facts that *text* has in the user's words."""
    return dict(_RAW.findall(text))


def told_in(text: str) -> dict[str, str]:
    """Return the facts that *text* has in a summary's words."""
    return dict(_TOLD.findall(text))


class Depths:
    """How many summaries each fact went through: 1 in the first, one more each time it is told from a summary."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def written(self, keys: Iterable[str], raw: Iterable[str]) -> None:
        """Take note that a summary tells of *keys*, and that its request had *raw* in the user's words."""
        raw = set(raw)
        for key in keys:
            self.of[key] = 1 if key in raw else 1 + self.of.get(key, 0)
