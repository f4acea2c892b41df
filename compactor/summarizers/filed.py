"""Whether one of many patterns matches, without trying those that cannot: each is filed under the cues it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Filed", "folded"]

# What matches another letter's small form where case is ignored, but is not made that by ``lower``.
_SAME = str.maketrans("İıſᲀᲁᲂᲃᲄᲅᲆ", "iisвдосттъ")


class Filed:
    """Patterns that ignore case. Of a pattern's cues one stands in every text that it matches, in small letters."""

    def __init__(self, patterns: Iterable[tuple[str, str]]) -> None:
        """Take pairs of cues, with ``|`` between them, and the pattern they belong to."""
        filed: dict[str, list[re.Pattern[str]]] = {}
        for cues, pattern in patterns:
            compiled = re.compile(pattern, re.IGNORECASE)
            for cue in cues.split("|"):
                filed.setdefault(cue, []).append(compiled)
        self._all = _Cues(filed)
        self._ascii = _Cues({cue: found for cue, found in filed.items() if cue.isascii()})

    def matches(self, text: str) -> bool:
        """Return whether one of the patterns matches somewhere in *text*."""
        low = folded(text)
        cues = self._cues_for(low)
        return cues.any_in(low) is not None and any(
            pattern.search(text) for cue, patterns in cues.filed if cue in low for pattern in patterns
        )

    def has_cue(self, text: str) -> bool:
        """Return whether a cue stands in *text*: else no pattern matches any part of it."""
        low = folded(text)
        return self._cues_for(low).any_in(low) is not None

    def _cues_for(self, low: str) -> _Cues:
        return self._ascii if low.isascii() else self._all


class _Cues:
    def __init__(self, filed: Mapping[str, Sequence[re.Pattern[str]]]) -> None:
        self.filed = tuple(filed.items())
        #: Most texts hold none: one look for all of them is several times cheaper than one for each.
        self.any_in = re.compile(_one_of(filed)).search


def folded(text: str) -> str:
    """Return *text* in small letters, as patterns that ignore case read it."""
    return text.lower() if text.isascii() else text.translate(_SAME).lower()


def _one_of(words: Iterable[str]) -> str:
    """Return a pattern of any of *words* in which none begins as another does: so few are tried at each place."""
    begun: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""
        begun.setdefault(word[0], []).append(word[1:])
    return f"(?:{'|'.join(re.escape(first) + _one_of(rest) for first, rest in begun.items())})"
