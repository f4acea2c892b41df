"""The identifiers in a text, and which of them stand nowhere in another: what a summary may have made up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..summarizers.facts import CJK

__all__ = ["MOST_IDENTIFIERS", "identifiers", "unknown"]

#: So many are looked at; a summary of more is no summary.
MOST_IDENTIFIERS = 500
#: What is longer is a blob; what is shorter, and no path or code, names nothing.
_LONGEST, _SHORTEST = 200, 4

_URL = re.compile(r"(?:https?|ftp|file|wss?)://[^\s<>\"'`“”|{}\\^*]+|\bwww\.[^\s<>\"'`“”|{}\\^*]+", re.IGNORECASE)
_CHUNK = re.compile(rf"[^\s\"'`´“”‘’„«»<>(){{}}\[\]|,;:=*…→←–—、。，：；（）「」『』！？{CJK}]+")
_THOUSANDS = re.compile(r"[,'’\u00a0\u202f](?<=\d.)(?=\d{3}(?!\d))")

_MONEY = "$€£¥₹₩₽฿"
_AROUND = ".-+#&?!_~%" + _MONEY
_CURRENCY = (
    r"(?:usd|eur|gbp|chf|jpy|cny|inr|cad|aud|us-?dollars?|dollars?|euros?|pounds?|yen|yuan|francs?|cents?|bucks)\b"
)
_CURRENCY_BEHIND = re.compile(rf"\s?[{_MONEY}%]|\s?{_CURRENCY}|\s?percent", re.IGNORECASE)
_CURRENCY_BEFORE = re.compile(rf"(?:[{_MONEY}]|\b{_CURRENCY})\s?\Z", re.IGNORECASE)
#: Four digits behind this are the end of a longer number.
_ENDING = re.compile(
    r"(?:ending|ends)(?: in| with)?:? ?\Z|last (?:four|4)(?: digits)?:? ?\Z|[*•x….]{2,} ?\Z", re.IGNORECASE
)

_REFERENCE = re.compile(r"r\d+(?:\.p\d+)?(?:-(?:r\d+(?:\.p\d+)?|p?\d+))?|p\d+")
_YEAR = r"(?:19|20)\d\d"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]{0,6}"
_DATE = re.compile(
    rf"""{_YEAR}s? | {_YEAR}[-/.](?:{_YEAR}|\d\d?|q\d)(?:[-/.]\d\d?)?(?:t[\d.:+-]*z?)?
      | \d\d?[-/.]\d\d?(?:[-/.]\d{{2,4}})?
      | {_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:t\d{{2,6}}z?)? | (?:[a-z]{{2,9}}-)?{_YEAR}
      | (?:{_YEAR}[-/.]?)?(?:\d\d?(?:st|nd|rd|th)?[-/.]?)?{_MONTH}[-/.]?\d{{0,4}}(?:st|nd|rd|th)?(?:[-/.]{_YEAR})?""",
    re.VERBOSE,
)
# 1st, 10k, 24h, 300USD, 1920x1080; Q3, A4, v2; item1, Python3.
_QUANTITY = re.compile(r"[\d.]+(?:st|nd|rd|th|[a-z]{1,3}|min|sec|hrs|days?|hours?)|\d+x\d+|[a-z]{1,2}\d\d?|[a-z]+\d")
_VERSION = re.compile(r"v?\d+(?:\.\d+){2,}(?:[-.]?[a-z]+\.?\d*)?")
_EMAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_FILE = re.compile(
    r"[\w.-]*\w\.(?:py|pyi|ipynb|rs|go|java|kt|c|h|cc|cpp|hpp|cs|rb|php|ts|tsx|jsx|sh|sql|html?|css|json|jsonl|ya?ml|toml"
    r"|ini|cfg|conf|env|lock|log|txt|md|rst|csv|tsv|xml|xlsx?|docx?|pptx?|pdf|png|jpe?g|gif|svg|zip|tar|gz|tgz|db|sqlite"
    r"|parquet|pem|key|bak|exe|dll|so|bin)"
)
_SEPARATORS = re.compile(r"[-.#+&@~%/\\]+")
_RUN = re.compile(r"[^\W\d_]+|\d+")
_HASH = re.compile(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}")


def identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers in *text*, each once: numbers of four digits and more, codes, snake_case names, paths and
    file names, e-mail addresses, URLs, hashes, versions.

    Left out is what may be said in another way or worked out: dates, years, times, amounts of money, percentages,
    ordinals, quantities with a unit, decimals, round thousands; and references to rounds and posts.
    """
    found: dict[str, str] = {}
    for name in _found(text):
        found.setdefault(name.casefold(), name)
        if len(found) == MOST_IDENTIFIERS:
            break
    return tuple(found.values())


def unknown(names: Iterable[str], sources: Iterable[str]) -> tuple[str, ...]:
    """Return those of *names* that stand in none of *sources*, however these write them: in other case, with other
    separators, with or without thousands separators. The beginning of a hash stands for it."""
    names = tuple(names)
    if not names:
        return ()
    texts = sorted({_folded(source) for source in sources if source}, key=len)  # most names stand in the shortest
    return tuple(name for name in names if not any(_stands_in(_folded(name), text) for text in texts))


# -- what is an identifier --------------------------------------------------------------------------------------------


def _found(text: str) -> Iterator[str]:
    text = _THOUSANDS.sub("", text)
    if "://" in text or "www." in text.lower():
        for url in _URL.finditer(text):
            if len(url[0]) <= _LONGEST:
                yield url[0].rstrip(".,;:!?)]/_")
        text = _URL.sub(" ", text)
    for match in _CHUNK.finditer(text):
        chunk = match[0]
        if chunk.isalpha() and not chunk.isupper():
            continue  # a word, as most are: what follows would find so, for ten times the time
        chunk = chunk.strip(_AROUND)
        if not _SHORTEST <= len(chunk) <= _LONGEST or (chunk.isalpha() and not chunk.isupper()):
            continue
        start = match.start() + match[0].index(chunk)
        if chunk[0].isdigit() and _counted(text, start, start + len(chunk)):
            continue
        yield from _names(chunk)


def _counted(text: str, start: int, end: int) -> bool:
    """Return whether the number there is an amount, a percentage, or the end of a longer number."""
    before = text[max(0, start - 24) : start]
    return bool(_CURRENCY_BEHIND.match(text, end) or _CURRENCY_BEFORE.search(before) or _ENDING.search(before))


def _names(chunk: str) -> Iterator[str]:
    low = chunk.casefold()
    if _REFERENCE.fullmatch(low) or _DATE.fullmatch(low):
        return
    if "/" in chunk or "\\" in chunk:
        if _is_path(chunk):
            yield chunk
        else:  # "HAT103/HAT201", "and/or"
            for part in re.split(r"[/\\]+", chunk):
                if len(part) >= _SHORTEST:
                    yield from _names(part)
    elif _is_name(chunk, low):
        ends = chunk.split("-")  # "HAT101-HAT108" are two
        span = len(ends) == 2 and all(len(end) >= _SHORTEST and _is_name(end, end.casefold()) for end in ends)
        yield from ends if span else (chunk,)


def _is_path(chunk: str) -> bool:
    parts = [part for part in re.split(r"[/\\]+", chunk) if part]
    if "\\" in chunk and (len(parts) < 2 or "^" in chunk):  # \frac, 60^\circ
        return False
    named = any(part[0].isalpha() or part[0] in "._" for part in parts)
    rooted = chunk[0] in "/\\.~" or "\\" in chunk
    return named and (rooted or bool(_FILE.fullmatch(parts[-1].casefold())) or ("_" in chunk and len(parts) > 1))


def _is_name(chunk: str, low: str) -> bool:
    digits, letters = sum(map(str.isdecimal, chunk)), sum(map(str.isalpha, chunk))
    if not letters:
        return _is_number(chunk, digits)
    if "@" in chunk:
        return _EMAIL.fullmatch(low) is not None
    if "_" in chunk:
        return len(_RUN.findall(chunk)) > 1
    if _FILE.fullmatch(low):
        return True
    if not digits:
        return chunk.isupper() and chunk.isalpha() and 6 <= letters <= 8 and sum(map(low.count, "aeiouy")) < 2
    if _VERSION.fullmatch(low):
        return True
    parts = _SEPARATORS.split(chunk)
    if len(parts) > 1:
        return _is_compound(parts)
    if _QUANTITY.fullmatch(low):
        return chunk.isupper() and digits > 3  # 4412A
    return digits > 1 or chunk.upper() == chunk


def _is_number(chunk: str, digits: int) -> bool:
    if chunk.isdecimal():
        return digits >= _SHORTEST and not chunk.endswith("000")
    # "+1-555-0100", "10.0.0.17"; but not "4-10", "3.14159" or "2024.05"
    return (digits >= 7 and chunk.count("-") > 0 and "." not in chunk) or chunk.count(".") > 2


def _is_compound(parts: Sequence[str]) -> bool:
    """Return whether parts that stood between separators are a code: RES-48213, a UUID; not COVID-19 or mid-2024."""
    if any(len(part) >= _SHORTEST and next(_names(part), None) is not None for part in parts):
        return True
    return any(part.isupper() for part in parts) and sum(len(part) for part in parts if part.isdecimal()) >= 3


# -- where it stands --------------------------------------------------------------------------------------------------


def _folded(text: str) -> str:
    return _THOUSANDS.sub("", text.casefold())


def _stands_in(name: str, text: str) -> bool:
    at = text.find(name)
    while at >= 0:
        if _begins(text, at) and (_ends(text, at + len(name)) or _HASH.fullmatch(name)):
            return True
        at = text.find(name, at + 1)
    # With other separators, or none: "HAT 103", "https:\/\/", "1.234".
    runs = [_thousands(run) if run.isdecimal() else [run] for run in _RUN.findall(name)]
    if not all(piece in text for run in runs for piece in run):
        return False
    written = r"[\W_]{0,6}".join(r"[.,' ]?".join(run) for run in runs)
    return any(_begins(text, match.start()) and _ends(text, match.end()) for match in re.finditer(written, text))


def _thousands(digits: str) -> list[str]:
    """Return *digits* in pieces, as they may stand with marks between the thousands."""
    head = len(digits) % 3 or 3
    return [digits[:head], *(digits[at : at + 3] for at in range(head, len(digits), 3))]


def _begins(text: str, at: int) -> bool:
    # A line break that is escaped, in JSON inside of JSON, ends in a letter.
    return at == 0 or not _continues(text[at - 1]) or (text[at - 1] in "nrt" and text[at - 2 : at - 1] == "\\")


def _ends(text: str, end: int) -> bool:
    return end == len(text) or not _continues(text[end])


def _continues(character: str) -> bool:
    # Scripts without spaces write a number right beside a word.
    return character.isascii() and character.isalnum()
