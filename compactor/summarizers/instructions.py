"""Find a user's standing instructions: rules, prohibitions, preferences, limits, deadlines.

The search goes by cue words and can err. ``cues.yaml`` holds one table of cues per language.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import yaml

from .cues import Cues

_FORBIDS, _RULES, _WISHES = "forbids", "rules", "wishes"
_ANY, _ONLY_FORBIDS = frozenset((_FORBIDS, _RULES, _WISHES)), frozenset((_FORBIDS,))

_POLITE = re.compile(r"(?:and |so |also )?(?:please|can|could|would|will) (?:you|we)\b", re.IGNORECASE)
#: Signs that fill code and are rare in other lines.
_CODE_SIGNS = frozenset("(){}[]=<>;_/\\$#|+*&%^~`@")
_CODE = re.compile(
    r"(?:#|//|/\*|\*/|<[/!a-z]|@\w|\$ |>>>|\{|\}|(?:def|class|import|from|return|const|let|var|function|async|elif"
    r"|else|try|raise|throw|except|public|private|export|select|insert|update|create|curl|pip|npm|git|sudo)\b(?=.*[(){};=:]))"
)


@cache
def _cues() -> Cues:
    """Return the cues of all languages. Loaded once, for the first sentence."""
    text = files(__package__).joinpath("cues.yaml").read_text(encoding="utf-8")
    tables = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (either is the safe one)
    return Cues(tables, (_FORBIDS, _RULES, _WISHES))


def instruction_strength(sentence: str) -> float:
    """Return 1 if *sentence* reads as a rule or prohibition, 0.6 for a wish or a limit, 0 for anything else.

    A question counts only if it is polite ("could you never ..."). A line of code never counts.
    """
    kinds = _kinds_of(sentence, _ANY)
    if _FORBIDS in kinds or _RULES in kinds:
        return 1.0
    return 0.6 if _WISHES in kinds else 0.0


def is_prohibition(sentence: str) -> bool:
    """Return whether *sentence* forbids something, or asks not to do it without the user.

    A refusal such as "I don't want any insurance" counts. A question counts only if it is polite ("could you never
    ...").
    """
    return _FORBIDS in _kinds_of(sentence, _ONLY_FORBIDS)


def may_prohibit(text: str) -> bool:
    """Return whether *text* may contain a prohibition; False is certain.

    One scan usually returns False and costs less than splitting *text* into sentences.
    """
    # Splitting unescapes JSON and cuts overlong words, so a sentence may then have other words than this scan.
    as_in_sentences = (
        "{" not in text and "[" not in text and len(max(text.split(), key=len, default="")) < _LONGEST_WORD
    )
    return not as_in_sentences or _cues().may_stand_in(text, _ONLY_FORBIDS)


#: Splitting a text into sentences may cut a longer word.
_LONGEST_WORD = 80


def _kinds_of(sentence: str, wanted: frozenset[str]) -> frozenset[str]:
    if sentence.rstrip().endswith(("?", "？", "؟")) and not _POLITE.match(sentence):
        return frozenset()
    kinds = _cues().kinds_in(sentence, wanted)
    return frozenset() if kinds and _is_code(sentence) else kinds


def _is_code(line: str) -> bool:
    """Return whether *line* reads as code rather than as a sentence about code."""
    line = line.strip()
    signs = sum(map(_CODE_SIGNS.__contains__, line))
    if line.endswith(("{", ";", "};", ");")) or (signs and _CODE.match(line.lower())):
        return signs >= 1
    return signs * 8 > len(line)
