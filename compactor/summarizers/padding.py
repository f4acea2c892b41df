"""What people say before they say what they want: "Hi,", "I'm trying to", "could you please help me".

``padding.yaml`` has the phrases, a table for each language. They hold about a tenth of what users write and nothing
that a reader of "What the user said" would miss.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import cast

import yaml

__all__ = ["has_reason", "without_link", "without_padding"]

#: What is left of a clause has at least so many characters, or it stays whole.
MIN_REST = 12
#: Scripts that are written without spaces: what follows a phrase need not begin with one.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3005-\u30ff\u3400-\u9fff]")


def without_padding(clause: str) -> str:
    """Return *clause* without what leads up to what it says; it is the end of what was said, word for word."""
    phrases, read = _phrases(), clause.replace("’", "'")
    start = 0
    while (match := phrases.match(read, start)) and len(read) - match.end() >= MIN_REST:
        start = match.end()
    return clause[start:]


def has_reason(clause: str) -> bool:
    """Return whether the clause before says why *clause* is so: "so I prefer ..."."""
    return _starts("so").match(clause) is not None


def without_link(clause: str) -> str:
    """Return *clause* without the "and" or "so" that ties it to the clause before, and without a comma at its end."""
    match = _starts("links").match(clause) or _starts("so").match(clause)
    start = match.end() if match and len(clause) - match.end() >= MIN_REST else 0
    return clause[start:].rstrip(",;，；、،؛ ")


@cache
def _phrases() -> re.Pattern[str]:
    """Return the pattern of all phrases of all languages."""
    return re.compile("|".join(map(_of_language, _tables().values())), re.IGNORECASE)


@cache
def _starts(kind: str) -> re.Pattern[str]:
    """Return the pattern of the words of one *kind* in all languages, as a clause begins with them."""
    found = (word for table in _tables().values() for word in table.get(kind, ()))
    # Of one letter, one language's link is another's pronoun: "i" is "and" in Polish.
    words = sorted((word for word in found if len(word) > 1 or not word.isascii()), key=len, reverse=True)
    return re.compile("|".join(map(_word, words)), re.IGNORECASE)


@cache
def _tables() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the phrases by language: read when the first clause is looked at, and once."""
    text = files(__package__).joinpath("padding.yaml").read_text(encoding="utf-8")
    tables = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (either is the safe one)
    return cast(Mapping[str, Mapping[str, Sequence[str]]], tables)


def _of_language(table: Mapping[str, Sequence[str]]) -> str:
    calls = "|".join(map(re.escape, table["calls"]))
    links = "|".join(map(_word, table.get("links", ())))
    asks = "|".join("".join(map(_word, ask.split())) for ask in table.get("asks", ()))
    wanted = rf"|(?:{links}){{0,3}}(?:{asks})(?=\S)" if links else rf"|(?:{asks})(?=\S)" if asks else ""
    return rf"(?:{calls})[,.!،，、。！]{{1,3}}\s?(?=\w){wanted}"


def _word(written: str) -> str:
    """Return the pattern of a word and the space behind it."""
    bare = written.strip("()")
    found = rf"(?:{'|'.join(map(re.escape, bare.split('|')))})\s{'?' if _UNSPACED.search(bare) else ''}"
    return f"(?:{found})?" if written != bare else found
