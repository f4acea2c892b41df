"""What one line says, found by its form alone: which names, numbers and words, and which value of what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CJK", "Assignment", "Content", "assignment", "content", "is_code"]

#: Han and Kana: scripts without spaces, whose words are taken to be pairs of characters.
CJK = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"

_BREAK = r"\s\"'`()<>{}\[\],;!?|=→“”‘’«»…\u3000-\u3004\u3008-\u3020、。！？：；，（）"
# One character at a time, no choice to go back to: linear on anything.
_CHUNK = re.compile(rf"[{CJK}]+|(?:[^{_BREAK}{CJK}]|(?<=\d),(?=\d)|(?<=\w)['’](?=\w))+")
_CJK_CHAR = re.compile(f"[{CJK}]")
#: What follows a word that is a whole value, such as the "done" of "state: done".
_VALUE_END = frozenset(["", ",", ";", ")", "."])
_SENTENCE_END = frozenset(".!?:。！？")
_STOP_WORDS = """
    a about after again all also am an and any are as at be because been before being but by can could did do does doing
    done for from get go going got had has have having he her here hers him his how i if in into is it its just let like
    may me might more most much my no not now of off ok okay on once one only or other our ours out over own please same
    say see she should so some such take than thank thanks that the their them then there these they this those through
    to too up us very want was we well were what when where which while who why will with would yes you your yours i'm
    i'd i'll i've it's that's let's don't doesn't didn't can't won't isn't we're you're sure need help know look
"""
_STOP = frozenset(_STOP_WORDS.split())
_CALENDAR_WORDS = """
    monday tuesday wednesday thursday friday saturday sunday january february march april june july august september
    october november december today tomorrow noon midnight
"""
_CALENDAR = frozenset(_CALENDAR_WORDS.split())


@dataclass(frozen=True, slots=True)
class Content:
    """The terms of one line."""

    #: Each identifier, number, name and content word, in lower case, with how much its kind tells: 0.15 to 1.
    terms: Mapping[str, float]
    #: The line with its identifiers and numbers masked: lines of one shape come from one template.
    shape: str
    #: The same with its words masked as well: the rows of one table have one form.
    form: str


def content(text: str, *, starts: bool = True) -> Content:
    """Return what *text* is made of; *starts*: at its beginning a capital is no sign of a name."""
    terms: dict[str, float] = {}
    shape: list[str] = []
    form: list[str] = []
    end = 0
    for match in _CHUNK.finditer(text):
        raw = match[0]
        between = text[end : match.start()]
        valued = "=" in between or text[end - 1 : end] == ":"
        starts = starts or not _SENTENCE_END.isdisjoint(between)
        end = match.end()
        chunk = raw.strip(".:-*~#&+")
        if not chunk:
            continue
        low = chunk.casefold()
        weight = _weight(chunk, low)
        if weight == _CJK:
            terms.update(dict.fromkeys((low[i : i + 2] for i in range(max(1, len(low) - 1))), _CJK))
        else:
            if valued and (weight == _WORD or (low in _STOP and text[end : end + 1] in _VALUE_END)):
                weight = _VALUE
            elif weight == _WORD and not starts and chunk[0].isupper():
                weight = _NAME
            if weight:
                terms[low] = weight
        shape.append("0" if weight > _VALUE else low)
        form.append("0" if weight > _VALUE else "w")
        starts = raw[-1] in _SENTENCE_END
    return Content(terms, " ".join(shape), "".join(form))


def is_code(line: str) -> bool:
    """Return whether *line* has the form of code, a comment or markup. A guess by its signs: prose has few of them."""
    if _COMMENT.match(line) or line[-1:] in {"{", "}"}:
        return True
    signs = len(_CODE_SIGN.findall(line))
    return signs > 2 and _CODE_FORM.search(line) is not None and 12 * signs > len(line)


_COMMENT = re.compile(r"\s*(?:#|//|--|/\*|\*/|<!|</?\w+[ />]|@\w+\()")
_CODE_SIGN = re.compile(r"[{}()\[\];=<>|&\\$_]")
_CODE_FORM = re.compile(r"[={};]|\w\(|\)\.|->|</|/>")

_CJK, _WORD, _VALUE, _NAME, _IDENTIFIER = 0.3, 0.4, 0.5, 0.7, 1.0


def _weight(chunk: str, low: str) -> float:
    """Return how much the form of *chunk* tells: identifiers most, then amounts, dates and numbers, names, words."""
    if low in _STOP:
        return 0.0
    if low in _CALENDAR:
        return _NAME
    if chunk.isalpha() and (chunk == low or chunk[1:] == low[1:]):
        if chunk[0] > "\u2e7f" and _CJK_CHAR.match(chunk):
            return _CJK
        return _WORD if len(chunk) > 2 else 0.0
    digits = sum(map(str.isdigit, chunk))
    letters = sum(map(str.isalpha, chunk))
    if digits:
        return _number_weight(chunk, digits, letters)
    if letters < 2:
        return 0.0
    inner = chunk[1:-1]
    if "_" in inner or "@" in inner or "::" in inner or "\\" in inner:
        return _IDENTIFIER
    if "/" in chunk and (chunk[0] in "/.~" or chunk.count("/") > 1 or "." in chunk):
        return _IDENTIFIER
    if "." in inner and letters > 4:
        return 0.9
    if chunk.isupper():
        return _NAME
    # A capital inside, as in camelCase.
    return 0.9 if chunk[1:] != low[1:] and not chunk.istitle() else _WORD


def _number_weight(chunk: str, digits: int, letters: int) -> float:
    if letters and (digits > 1 or letters > 2):
        return 0.7 if letters < 3 and chunk[-1].islower() else _IDENTIFIER
    if digits == 1 and len(chunk) == 1:
        return 0.45
    if not chunk.isdigit():
        return 0.9
    return 0.6 if digits < 4 else 0.8


# --- what has which value ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """A line that says which value something has."""

    #: The words and identifiers of what it is about; equal for a newer value of the same thing.
    subject: frozenset[str]
    #: The value's plain words: lines about the same thing may still say different things of it.
    words: frozenset[str]
    #: Whether the line itself says that something changed.
    change: bool


_IS = re.compile(
    r" (?:is|are|was|were|will be)(?: now| currently)?(?= )|(?<=\S) ?(?:[:=：](?=\s)|(?<=\w)=|：)|(?<=[^\s:])是|は"
)
_CHANGE_TO = re.compile(
    r"\b(?:change|set|raise|lower|increase|decrease|reduce|move|switch|update|push|bump|extend|shift|correct|make|rename)"
    r"(?:d|ed|s)? (?P<what>.{1,60}?) (?:to|by|as) (?=\S)",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"\b(?:now|actually|instead|no longer|changed?|moved|updated?|correction|sorry|new|raised?|lowered?|increased?|"
    r"reduced?|extended?|postponed|switch(?:ed)?|rather|not anymore|any more|rescheduled|turns out)\b"
    r"|改成|改为|现在|变成",
    re.IGNORECASE,
)
_FILL_WORDS = """
    actually correction sorry instead currently new current latest final remember note that change set raise lower move
    moved changed update updated hm oh wait switch rather fyi longer they us
"""
_FILL = _STOP | frozenset(_FILL_WORDS.split())
_WHOSE = frozenset({"his", "her", "their", "your"})
_VERB = re.compile(r" [a-z]|是|は")
_FIELD = re.compile(r"(?:^|[(,] ?)([\w.-]{1,40}): ([^,()]{1,60})")
_QUOTED = re.compile(r'[^":]{1,40}: "(.*)"$', re.DOTALL)
_NO_NAME = re.compile(r"[-\d.,:/%$€£ T]+")


def assignment(text: str) -> Assignment | None:
    """Return what *text* gives a value to, or None where it gives none, or where that cannot be told by its form."""
    label, arrow, body = text.partition(" → ")
    if not arrow:
        label, body = "", text
    quoted = _QUOTED.match(body)
    body = quoted[1] if quoted else body
    fields = _FIELD.findall(body)
    if len(fields) > 1:
        return _record(frozenset(_identifiers(label)), fields)
    subject: frozenset[str] = frozenset()
    value, stated = "", False
    for found in [*_CHANGE_TO.finditer(body), *_IS.finditer(body, 0, 120)][:4]:
        head = found["what"] if found.re is _CHANGE_TO else body[: found.start()]
        subject = _subject(head.lower())
        value, stated = body[found.end() :], found.re is _CHANGE_TO or not _VERB.match(found[0])
        if subject:
            break
    said = content(value, starts=False)
    change = _CHANGED.search(body) is not None
    telling = any(weight > _WORD for weight in said.terms.values())
    if not 1 <= len(subject) <= 6 or not value.strip() or not (stated or change or telling):
        return None
    words = frozenset(term for term, weight in said.terms.items() if weight == _WORD and term not in _FILL)
    return Assignment(subject.union(_identifiers(label)), frozenset() if stated else words, change)


def _subject(head: str) -> frozenset[str]:
    words = {word for word in content(head).terms if word not in _FILL}
    return frozenset(words.union(_WHOSE.intersection(head.split())))


def _record(about: frozenset[str], fields: list[tuple[str, str]]) -> Assignment | None:
    """Return what a record is about: the values that look like ids, or what the call that returned it was about."""
    names = frozenset(key.casefold() for key, _ in fields)
    ids = frozenset(f"{key.casefold()}: {value}" for key, value in fields if _names_something(key, value))
    return Assignment((ids or about) | names, frozenset(), True) if ids or about else None


def _names_something(key: str, value: str) -> bool:
    key = key.casefold()
    return key == "id" or key.endswith(("_id", "name", "number")) or bool(_identifiers(value))


def _identifiers(text: str) -> list[str]:
    return [term for term, weight in content(text).terms.items() if weight >= 0.9 and not _NO_NAME.fullmatch(term)]
