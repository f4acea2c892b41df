"""Read a text by its form alone: names, numbers, words, assigned values, and whether it says anything."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from memory.patterns import compile_later
from memory.rounds import cached_property
from memory.values import ValueObject

#: Han and Kana: scripts without spaces. Pairs of characters stand in for words.
CJK = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
#: All scripts without spaces: also Thai, Lao, Burmese and Khmer.
UNSPACED_LETTERS = CJK + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
CJK_CHAR = compile_later(f"[{CJK}]")

_BREAK = r"\s\"'`()<>{}\[\],;!?|=→“”‘’«»…\u3000-\u3004\u3008-\u3020、。！？：；，（）"
# Nothing follows the repetition, so it never backtracks: linear on any input.
_CHUNK = compile_later(rf"([{CJK}]+|(?:[^{_BREAK}{CJK}]++|(?<=\d),(?=\d)|(?<=\w)['’](?=\w))+)")
# The same for ASCII, in half the time.
_RUN_OF_ASCII = r"[^\s\"'`()<>{}\[\],;!?|=]++"
_ASCII_CHUNK = compile_later(rf"({_RUN_OF_ASCII}(?:[,'](?:(?<=\d,)(?=\d)|(?<=\w')(?=\w)){_RUN_OF_ASCII})*)")
#: Maximum chunks in the cache, and characters of a text whose chunks go there.
MAX_CACHED_CHUNKS, MAX_CACHED_TEXT = 10_000, 500
#: Characters that may follow a one-word value, such as "done" in "state: done".
_VALUE_END = frozenset(["", ",", ";", ")", "."])
_SENTENCE_END = frozenset(".!?:。！？")


@cache
def load_table(name: str) -> Mapping[str, Any]:
    """Return what a YAML file of this package holds."""
    from importlib.resources import files

    import yaml

    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    tables: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (safe too)
    return tables


class _WordLists:
    """The lists in ``words.yaml``, each made when it is first asked for."""

    def __getattr__(self, name: str) -> frozenset[str]:
        lists = load_table("words.yaml")
        if name not in lists:
            raise AttributeError(name)
        words = frozenset(lists[name].split())
        setattr(self, name, words)
        return words


_WORDS = _WordLists()
#: Weights of terms, by kind.
_CJK, _WORD, _VALUE, _NAME, _IDENTIFIER = 0.3, 0.4, 0.5, 0.7, 1.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Content(ValueObject):
    """The terms of one line."""

    #: Weight of each identifier, number, name and content word, in lower case: 0.3 to 1, by kind.
    terms: Mapping[str, float]
    #: The line with its identifiers and numbers masked: equal for lines from one template.
    shape: str
    #: The same with words masked too: equal for the rows of one table.
    form: str


def read_content(text: str, *, starts: bool = True) -> Content:
    """Return the terms of *text*. With *starts*, a capital at its beginning is no sign of a name."""
    terms: dict[str, float] = {}
    shape: list[str] = []
    form: list[str] = []
    after_colon = False
    read = _read if len(text) <= MAX_CACHED_TEXT else _read.__wrapped__
    pieces = (_ASCII_CHUNK if text.isascii() else _CHUNK).split(text)
    for place in range(1, len(pieces), 2):  # a chunk; before and after it is what separates chunks
        between = pieces[place - 1]
        valued = after_colon or "=" in between
        starts = starts or (between != " " and not _SENTENCE_END.isdisjoint(between))
        low, weight, is_capital, ends, after_colon = read(pieces[place])
        if not low:
            continue
        if weight == _CJK:
            terms.update(dict.fromkeys((low[i : i + 2] for i in range(max(1, len(low) - 1))), _CJK))
        else:
            if valued and weight != _WORD:
                valued = low in _WORDS.stop and "".join(pieces[place + 1 : place + 3])[:1] in _VALUE_END
            if valued:
                weight = _VALUE
            elif weight == _WORD and is_capital and not starts:
                weight = _NAME
            if weight:
                terms[low] = weight
        is_exact = weight > _VALUE
        shape.append("0" if is_exact else low)
        form.append("0" if is_exact else "w")
        starts = ends
    return Content(terms, " ".join(shape), "".join(form))


@lru_cache(MAX_CACHED_CHUNKS)
def _read(raw: str) -> tuple[str, float, bool, bool, bool]:
    """Return a chunk in lower case, without marks around it, and its weight; then whether it begins with a capital,
    ends a sentence, ends in a colon."""
    chunk = raw.strip(".:-*~#&+")
    low = chunk.casefold()
    return low, _weigh(chunk, low) if low else 0.0, chunk[:1].isupper(), raw[-1] in _SENTENCE_END, raw[-1] == ":"


def _weigh(chunk: str, low: str) -> float:
    """Return the weight of *chunk* by its form: identifiers most, then amounts, dates and numbers, names, words."""
    if low in _WORDS.stop:
        return 0.0
    if low in _WORDS.calendar:
        return _NAME
    if chunk.isalpha() and (chunk == low or chunk[1:] == low[1:]):
        if chunk[0] > "\u2e7f" and CJK_CHAR.match(chunk):
            return _CJK
        return _WORD if len(chunk) > 2 else 0.0
    digits, letters = sum(map(str.isdigit, chunk)), sum(map(str.isalpha, chunk))
    if digits:
        if letters and (digits > 1 or letters > 2):
            return 0.7 if letters < 3 and chunk[-1].islower() else _IDENTIFIER
        if not chunk.isdigit():
            return 0.9
        return 0.45 if digits == 1 else 0.6 if digits < 4 else 0.8
    if letters < 2:
        return 0.0
    inner = chunk[1:-1]
    if any(mark in inner for mark in ("_", "@", "::", "\\")):
        return _IDENTIFIER
    if "/" in chunk and (chunk[0] in "/.~" or chunk.count("/") > 1 or "." in chunk):
        return _IDENTIFIER
    if "." in inner and letters > 4:
        return 0.9
    if chunk.isupper():
        return _NAME
    # Inner capital, as in camelCase.
    return 0.9 if chunk[1:] != low[1:] and not chunk.istitle() else _WORD


_COMMENT = compile_later(r"\s*(?:#(?!#*\w+##)|//|--|/\*|\*/|<!|</?\w+[ />]|@\w+\()")
_CODE_SIGN = compile_later(r"[{}()\[\];=<>|&\\$_]")
_CODE_FORM = compile_later(r"[={};]|\w\(|\)\.|->|</|/>")


def is_code(line: str) -> bool:
    """Return whether *line* looks like code, a comment or markup. A guess by punctuation: prose has little of it."""
    if _COMMENT.match(line) or line[-1:] in {"{", "}"}:
        return True
    signs = len(_CODE_SIGN.findall(line))
    return signs > 2 and _CODE_FORM.search(line) is not None and 12 * signs > len(line)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Assignment(ValueObject):
    """A line that assigns a value to a subject."""

    #: Words and identifiers of its subject; equal in a later line with a new value for the same subject.
    subject: frozenset[str]
    #: Plain words of the value: lines about one subject may still say different things.
    words: frozenset[str]
    #: True if the line itself says that something changed.
    change: bool


# Each branch begins with one character, so the search skips all others quickly.
_IS = compile_later(
    r" (?:(?:is|are|was|were|will be)(?: now| currently)?(?= )|(?<=\S )(?:[:=](?=\s)|：))"
    r"|:(?<=\S:)(?=\s)|=(?:(?<=\w=)|(?<=\S=)(?=\s))|：(?<=\S：)|是(?<=[^\s:]是)|は"
)
_CHANGE_TO = compile_later(
    r"\b(?:change|set|raise|lower|increase|decrease|reduce|move|switch|update|push|bump|extend|shift|correct|make|rename)"
    r"(?:d|ed|s)? (?P<what>.{1,60}?) (?:to|by|as) (?=\S)",
    re.IGNORECASE,
)
_OLD_TO_NEW = compile_later(
    r"\b(?:now|actually|instead|no longer|changed?|moved|updated?|correction|sorry|new|raised?|lowered?|increased?|"
    r"reduced?|extended?|postponed|switch(?:ed)?|rather|not anymore|any more|rescheduled|turns out)\b"
    r"|改成|改为|现在|变成",
    re.IGNORECASE,
)
# An ASCII text in lower case that has none of these matches neither: at a tenth of the cost.
_CHANGE_SIGNS = compile_later(
    "change|set|raise|lower|increase|decrease|reduce|move|switch|update|push|bump|extend|shift|correct|make|rename|now"
    "|actually|instead|no longer|sorry|new|postponed|rather|not anymore|any more|rescheduled|turns out"
)
_WHOSE = frozenset({"his", "her", "their", "your"})
_VERB = compile_later(r" [a-z]|是|は")
_FIELD = compile_later(r"(?:^|[(,] ?)([\w.-]{1,40}): ([^,()]{1,60})")
_ID_KEY = compile_later(r"id|.*(?:_id|name|number)")
_QUOTED = compile_later(r'[^":]{1,40}: "(.*)"$', re.DOTALL)
_NO_NAME = compile_later(r"[-\d.,:/%$€£ T]+")


def find_assignment(text: str) -> Assignment | None:
    """Return the assignment in *text*, or None if there is none or its form does not show one."""
    label, arrow, body = text.partition(" → ")
    if not arrow:
        label, body = "", text
    if quoted := _QUOTED.match(body):
        body = quoted[1]
    fields = [(key.casefold(), value) for key, value in _FIELD.findall(body)] if ": " in body else []
    if len(fields) > 1:  # a record: its id-like values identify it, or else the ids of its call
        ids = {f"{key}: {value}" for key, value in fields if _ID_KEY.fullmatch(key) or _find_ids(value)}
        ids = ids or set(_find_ids(label))
        return Assignment(frozenset(ids.union(key for key, _ in fields)), frozenset(), True) if ids else None
    may_change = not body.isascii() or _CHANGE_SIGNS.search(body.lower())
    subject: set[str] = set()
    value, stated = "", False
    for match in [*(_CHANGE_TO.finditer(body) if may_change else ()), *_IS.finditer(body, 0, 120)][:4]:
        is_change = "what" in match.re.groupindex
        head = (match["what"] if is_change else body[: match.start()]).lower()
        subject = {word for word in read_content(head).terms if not _is_fill(word)} | _WHOSE.intersection(head.split())
        value, stated = body[match.end() :], is_change or not _VERB.match(match[0])
        if subject:
            break
    if not 1 <= len(subject) <= 6 or not value.strip():
        return None
    said = {} if stated else read_content(value, starts=False).terms
    change = bool(may_change) and _OLD_TO_NEW.search(body) is not None
    if not (stated or change or any(weight > _WORD for weight in said.values())):
        return None
    words = (term for term, weight in said.items() if weight == _WORD and not _is_fill(term))
    return Assignment(frozenset(subject.union(_find_ids(label))), frozenset(words), change)


def _is_fill(word: str) -> bool:
    return word in _WORDS.stop or word in _WORDS.fill


def _find_ids(text: str) -> list[str]:
    return [term for term, weight in read_content(text).terms.items() if weight >= 0.9 and not _NO_NAME.fullmatch(term)]


# Identifiers, and those absent from the sources: a summary may have invented them.

#: Maximum identifiers to read; no real summary has more.
MAX_IDENTIFIERS = 500
#: Length limits in characters: a longer chunk is a blob, a shorter one names nothing.
_LONGEST, _SHORTEST = 200, 4

_URL = compile_later(r"(?:(?:https?|ftp|file|wss?)://|\bwww\.)[^\s<>\"'`“”|{}\\^*]+", re.IGNORECASE)
_IDENTIFIER_CHUNK = compile_later(rf"[^\s\"'`´“”‘’„«»<>(){{}}\[\]|,;:=*…→←–—、。，：；（）「」『』！？{CJK}]+")
_THOUSANDS = compile_later(r"[,'’\u00a0\u202f](?<=\d.)(?=\d{3}(?!\d))")

_MONEY = "$€£¥₹₩₽฿"
_AROUND = ".-+#&?!_~%" + _MONEY
_CURRENCY = (
    r"(?:usd|eur|gbp|chf|jpy|cny|inr|cad|aud|us-?dollars?|dollars?|euros?|pounds?|yen|yuan|francs?|cents?|bucks)\b"
)
#: Behind a number, and before one: it is an amount, a percentage, or the end of a longer number.
_UNIT_BEHIND = compile_later(rf"\s?[{_MONEY}%]|\s?{_CURRENCY}|\s?percent", re.IGNORECASE)
_UNIT_BEFORE = compile_later(
    rf"(?:[{_MONEY}]|\b{_CURRENCY})\s?\Z"
    r"|(?:(?:ending|ends)(?: in| with)?:? ?|last (?:four|4)(?: digits)?:? ?|[*•x….]{2,} ?)\Z",
    re.IGNORECASE,
)
_REFERENCE = compile_later(r"r\d+(?:\.p\d+)?(?:-(?:r\d+(?:\.p\d+)?|p?\d+))?|p\d+")
_YEAR = r"(?:19|20)\d\d"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]{0,6}"
_DATE = compile_later(
    rf"""{_YEAR}s? | {_YEAR}[-/.](?:{_YEAR}|\d\d?|q\d)(?:[-/.]\d\d?)?(?:t[\d.:+-]*z?)?
      | \d\d?[-/.]\d\d?(?:[-/.]\d{{2,4}})?
      | {_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:t\d{{2,6}}z?)? | (?:[a-z]{{2,9}}-)?{_YEAR}
      | (?:{_YEAR}[-/.]?)?(?:\d\d?(?:st|nd|rd|th)?[-/.]?)?{_MONTH}[-/.]?\d{{0,4}}(?:st|nd|rd|th)?(?:[-/.]{_YEAR})?""",
    re.VERBOSE,
)
# 1st, 10k, 24h, 300USD, 1920x1080; Q3, A4, v2; item1, Python3.
_QUANTITY = compile_later(r"[\d.]+(?:st|nd|rd|th|[a-z]{1,3}|min|sec|hrs|days?|hours?)|\d+x\d+|[a-z]{1,2}\d\d?|[a-z]+\d")
_VERSION = compile_later(r"v?\d+(?:\.\d+){2,}(?:[-.]?[a-z]+\.?\d*)?")
_EMAIL = compile_later(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+")
_FILE = compile_later(
    r"[\w.-]*\w\.(?:py|pyi|ipynb|rs|go|java|kt|c|h|cc|cpp|hpp|cs|rb|php|ts|tsx|jsx|sh|sql|html?|css|json|jsonl|ya?ml|toml"
    r"|ini|cfg|conf|env|lock|log|txt|md|rst|csv|tsv|xml|xlsx?|docx?|pptx?|pdf|png|jpe?g|gif|svg|zip|tar|gz|tgz|db|sqlite"
    r"|parquet|pem|key|bak|exe|dll|so|bin)"
)
_SEPARATORS = compile_later(r"[-.#+&@~%/\\]+")
_SLASHES = compile_later(r"[/\\]+")
_RUN = compile_later(r"[^\W\d_]+|\d+")
_NO_MARKS = {code: None for code in range(128) if not chr(code).isalnum()}
_THREE_DIGITS = compile_later(r"\d{1,3}(?=(?:\d{3})*\Z)")
_HASH = compile_later(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}")
# Scripts without spaces write a number right beside a word. An escaped line break (JSON inside JSON) ends in a letter.
_STARTS = compile_later(r"(?<![0-9A-Za-z])|(?<=\\[nrt])")
_STOPS = compile_later(r"(?![0-9A-Za-z])")


def find_identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers in *text*, each once: numbers of four digits and more, codes, snake_case names, paths and
    file names, e-mail addresses, URLs, hashes, versions.

    Leaves out values that a summary may rephrase or compute: dates, years, times, amounts of money, percentages,
    ordinals, quantities with a unit, decimals, round thousands. Also leaves out references to rounds and posts.
    """
    text = _THOUSANDS.sub("", text)
    found: dict[str, str] = {}
    if "://" in text or "www." in text.lower():
        for url in _URL.findall(text):
            if len(url) <= _LONGEST:
                name = url.rstrip(".,;:!?)]/_")
                found.setdefault(name.casefold(), name)
        text = _URL.sub(" ", text)
    for match in _IDENTIFIER_CHUNK.finditer(text):
        if len(found) >= MAX_IDENTIFIERS:
            break
        chunk = match[0]
        if chunk.isalpha() and not chunk.isupper():
            continue  # fast path for a plain word: the checks below agree, at ten times the cost
        chunk = chunk.strip(_AROUND)
        if not _SHORTEST <= len(chunk) <= _LONGEST or (chunk.isalpha() and not chunk.isupper()):
            continue
        start = match.start() + match[0].index(chunk)
        if chunk[0].isdigit() and (
            _UNIT_BEHIND.match(text, start + len(chunk)) or _UNIT_BEFORE.search(text[max(0, start - 24) : start])
        ):
            continue
        for name in _split_names(chunk):
            found.setdefault(name.casefold(), name)
    return tuple(found.values())[:MAX_IDENTIFIERS]


def _split_names(chunk: str) -> list[str]:
    """Return the names in *chunk*: itself, the parts between its slashes, the ends of a span, or none."""
    low = chunk.casefold()
    if _REFERENCE.fullmatch(low) or _DATE.fullmatch(low):
        return []
    if "/" in chunk or "\\" in chunk:
        parts = [part for part in _SLASHES.split(chunk) if part]
        is_formula = "\\" in chunk and (len(parts) < 2 or "^" in chunk)  # \frac, 60^\circ
        if not is_formula and any(part[0].isalpha() or part[0] in "._" for part in parts):
            is_rooted = chunk[0] in "/\\.~" or "\\" in chunk
            if is_rooted or _FILE.fullmatch(parts[-1].casefold()) or ("_" in chunk and len(parts) > 1):
                return [chunk]
        # "HAT103/HAT201", "and/or".
        return [name for part in parts if len(part) >= _SHORTEST for name in _split_names(part)]
    if not _is_name(chunk, low):
        return []
    ends = chunk.split("-")  # "HAT101-HAT108" are two
    is_span = len(ends) == 2 and all(len(end) >= _SHORTEST and _is_name(end, end.casefold()) for end in ends)
    return ends if is_span else [chunk]


def _is_name(chunk: str, low: str) -> bool:
    digits, letters = sum(map(str.isdecimal, chunk)), sum(map(str.isalpha, chunk))
    if not letters:
        if chunk.isdecimal():
            return digits >= _SHORTEST and not chunk.endswith("000")
        # "+1-555-0100", "10.0.0.17"; but not "4-10", "3.14159" or "2024.05"
        return (digits >= 7 and "-" in chunk and "." not in chunk) or chunk.count(".") > 2
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
    if len(parts) > 1:  # a code: RES-48213, a UUID; not COVID-19 or mid-2024
        if any(len(part) >= _SHORTEST and _split_names(part) for part in parts):
            return True
        return any(map(str.isupper, parts)) and sum(map(len, filter(str.isdecimal, parts))) >= 3
    if _QUANTITY.fullmatch(low):
        return chunk.isupper() and digits > 3  # 4412A
    return digits > 1 or chunk.upper() == chunk


def find_unknown(names: Iterable[str], sources: Iterable[str]) -> tuple[str, ...]:
    """Return the *names* that none of *sources* contains.

    Ignores case, the kind of separators and thousands separators. The beginning of a hash matches the whole hash.
    """
    names = tuple(names)
    if not names:
        return ()
    # Most names are in the shortest text.
    texts = list(map(SearchableText, sorted(set(filter(None, sources)), key=len)))
    return tuple(name for name in names if not any(text.has_name(name) for text in texts))


@dataclass(frozen=True, eq=False, repr=False)
class SearchableText(ValueObject):
    """A text that is read once to be searched for many names."""

    text: str

    def has_name(self, name: str) -> bool:
        """Return whether the text contains *name*, as ``find_unknown`` compares names."""
        text, name = self._folded, _THOUSANDS.sub("", name.casefold())
        at = text.find(name)
        while at >= 0:
            if _STARTS.match(text, at) and (_STOPS.match(text, at + len(name)) or _HASH.fullmatch(name)):
                return True
            at = text.find(name, at + 1)
        # With other separators, or none: "HAT 103", "https:\/\/", "1.234".
        runs = [_THREE_DIGITS.findall(run) if run.isdecimal() else [run] for run in _RUN.findall(name)]
        pieces = [piece for run in runs for piece in run]
        if not all(piece in text for piece in pieces) or "".join(pieces) not in self._joined:
            return False  # before a pattern is compiled, which takes longer than all else here
        written = r"[\W_]{0,6}".join(r"[.,' ]?".join(run) for run in runs)
        return any(
            _STARTS.match(text, one.start()) and _STOPS.match(text, one.end()) for one in re.finditer(written, text)
        )

    @cached_property
    def _folded(self) -> str:
        return _THOUSANDS.sub("", self.text.casefold())

    @cached_property
    def _joined(self) -> str:
        """The letters and digits of the text."""
        text = self._folded  # the first way takes a twentieth of the time
        return text.translate(_NO_MARKS) if text.isascii() else "".join(filter(str.isalnum, text))


# Comparable terms: the one measure of how much a summary keeps of another text.

#: Runs of scripts without spaces, compared by pairs of characters.
UNSPACED = compile_later(f"[{UNSPACED_LETTERS}]+")
_TERM = compile_later(r"[^\W\d_]+")
_FIRST_LETTER = compile_later(r"(?:\A|[.!?:;\n])[\W\d_]{0,20}[^\W\d_]")
_NUMBER = compile_later(r"\d+(?:[.:]\d+)*")
_FOREIGN_DIGIT = compile_later(r"[^\D0-9]")
_DIGIT_GROUPS = compile_later(r"(?<=\d)[,.'’\u00a0\u202f](?=\d{3}(?!\d))")
_CENTS = compile_later(r"(?<=\d)[.,]0{1,2}(?!\d)")
#: Words with this many equal first letters count as one word: inflections differ at the end.
_STEM = 5


@dataclass(frozen=True, eq=False, repr=False)
class Terms(ValueObject):
    """The terms of *text* in comparable forms: 1,200 becomes 1200, and words lose their inflected endings."""

    text: str

    @cached_property
    def identifiers(self) -> frozenset[str]:
        return frozenset(map(_fold_number, find_identifiers(self.text)))

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Numbers of two or more digits that are no identifiers."""
        terms = {_fold_number(term) for term in self.all if not term.isalpha()} - self.identifiers
        return frozenset(number for term in terms for number in _NUMBER.findall(term) if len(number) > 1)

    @cached_property
    def words(self) -> frozenset[str]:
        """All words except generic ones; in scripts without spaces, pairs of characters."""
        return frozenset(key for term in self.all for word in _TERM.findall(term) for key in list_comparison_keys(word))

    @cached_property
    def folded(self) -> str:
        return _fold_number(self.text)

    @cached_property
    def all(self) -> frozenset[str]:
        """All terms as written, in lower case."""
        return frozenset(read_content(self.text).terms)

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(_TERM.findall(self.text.casefold()))

    def find_words(self, other: Terms) -> frozenset[str]:
        """Return the words that both texts write identically: a fast subset of all common words."""
        return self.words & frozenset(
            key for word in self._counts.keys() & other._counts.keys() for key in list_comparison_keys(word)
        )

    def is_in_the_language_of(self, other: Terms) -> bool:
        """Return whether the two texts share a language; a guess by the most frequent words of *other*.

        Words with a capital inside of a sentence do not count, nor single letters: names are the same in any language.
        """
        if any(map(UNSPACED.match, self.words & other.words)):
            return True
        if self._is_unspaced or other._is_unspaced:
            return False
        frequent = {word for word, _ in other._counts.most_common(40) if len(word) > 1}
        text = self.text.lower() if self.text.isupper() else self.text
        own = _TERM.findall(_FIRST_LETTER.sub(lambda found: found[0].lower(), text))
        return sum(word in frequent for word in own) >= 0.06 * len(own)

    @cached_property
    def _is_unspaced(self) -> bool:
        """Whether most letters are of a script without spaces."""
        return 2 * sum(map(len, UNSPACED.findall(self.text))) > sum(map(len, _TERM.findall(self.text)))


def _fold_number(term: str) -> str:
    """Return *term* in lower case, its numbers in digits from 0 to 9, without thousands separators and zero cents."""
    term = term.casefold()
    if not term.isascii():
        term = _FOREIGN_DIGIT.sub(lambda digit: str(int(digit[0])), term)
    return _CENTS.sub("", _DIGIT_GROUPS.sub("", term))


def list_comparison_keys(word: str) -> list[str]:
    """Return the keys under which *word* is compared; none if it is generic."""
    if word in _WORDS.generic:
        return []
    if not word.isascii() and UNSPACED.search(word):
        return [run[at : at + 2] for run in UNSPACED.findall(word) for at in range(max(1, len(run) - 1))]
    if len(word) > 2:
        return [word[:2] if "\uac00" <= word[0] <= "\ud7a3" else (word.rstrip("s") or word)[:_STEM]]
    return [] if word.isascii() else [word]


def find_telling_terms(text: str) -> Iterator[str]:
    """Yield the specific identifiers, numbers, names and words of *text*, in order, each once."""
    for term in read_content(text).terms:
        if any(map(is_telling, _TERM.findall(term))) or any(map(str.isdigit, term)):
            yield term


def is_telling(word: str) -> bool:
    """Return whether *word* is specific: summaries and error messages do not use it about anything at all."""
    return bool(list_comparison_keys(word.casefold()))


# Does a summary say something about its source? "Done." and an error page do not.

#: This many common terms are no coincidence.
_MIN_COMMON_TERMS = 5
#: New identifiers of a long piece of conversation of which a summary must tell something: at least so many, and one in
#: so many tokens. Small talk has numbers, but no identifiers.
_MIN_NAMES, _TOKENS_A_NAME = 3, 350
#: With fewer new words, the rounds repeat what the previous summary tells, and so does an honest summary of them.
_MIN_NEW_WORDS = 20
#: Maximum characters of a short summary; and of how many identifiers and numbers on one that tells none of them says
#: nothing, unless it quotes its sources or consists mostly of their words. For a longer one, a single word of theirs is
#: a quote. So a refusal in any language is no summary, and neither are random letters.
_MAX_SHORT, _MIN_EXACT = 400, 10
# Never a summary, with any words: pages, tracebacks and the status lines of servers.
_PAGE = compile_later(
    r"""\s{0,40}(?: <!doctype\s | <(?:html|head|body)\b | (?:<\?xml[^<>]{0,200}\?>)? \s{0,40}
        <(?:\w{1,20}:)?(?:error|fault)
      | traceback\ \(most\ recent | (?:http(?:/[\d.]{1,4})?\ )?[45]\d\d(?:\ [A-Za-z-]{1,20}){0,5}[.!]?\s{0,40}\Z )""",
    re.IGNORECASE | re.VERBOSE,
)
_ERROR = compile_later(
    r"""\s{0,40}(?: <!doctype | <\?xml | <html | <head | <body | traceback\ \(most
      | (?:\w{1,40}[. ]){0,4}\w{0,40}(?:error|exception|failure)\b | (?:error|code|status)\W{1,3}\d
      | (?:http(?:/[\d.]{1,4})?\ )?[45]\d\d\b | rate\ limit | upstream\b | too\ many\ requests
      | (?:this|the)\ model['’]s\ maximum | maximum\ context | context[ _]length | (?:access|permission)\ denied
      | (?:bad|invalid|unauthorized|forbidden)\ \w | failed\ to\b | unauthorized | connection\ \w
      | (?:the\ )?(?:request|server|service|model|engine|api)\ (?:was|is|had|has|failed|could|timed|does)\b )""",
    re.IGNORECASE | re.VERBOSE,
)
_FENCED = compile_later(r"\s{0,40}(?:```|~~~)\w{0,20}[ \t]*\n")
_LETTERS = compile_later(r"\w+")
_DIGITS = compile_later(r"\d{2,}")


def says_nothing(
    said: Terms, sources: Sequence[Terms], known: int, *, is_part: bool = False, request: Terms | None = None
) -> bool:
    """Return whether *said* says next to nothing about *sources*; *known* is the number of their identifiers it names.

    False if this cannot be measured: the sources have hardly any words, or they name hardly anything and *said* is in
    another language. If *request* asks for the language of *sources*, that can only be its own. *is_part*: *said* need
    not quote them; it is about a part, such as a tool result or a note.
    """
    error = find_error(said.text)
    if error == "page":
        return True
    must_quote = not (is_part or known) and len(said.text) <= _MAX_SHORT
    if not error and not must_quote and len(said.find_words(sources[0])) >= _MIN_COMMON_TERMS:
        return False  # fast path: most summaries leave here
    words = frozenset[str]().union(*(source.words for source in sources))
    if len(words) < 8:  # a summary may use only other words; placeholders and errors can be recognised
        is_placeholder = _WORDS.no_answer.issuperset(_LETTERS.findall(said.text.casefold()))
        return is_placeholder or (bool(error) and not known)
    own = said.words | said.numbers
    shared = own & words.union(*(source.numbers for source in sources))
    told = 2 * known + len(shared)
    rich = len(words) >= 30  # then one common word is too little
    pairs = sum(UNSPACED.match(word) is not None for word in said.words)  # two letters, mostly one word in two
    has_few_words = len(said.words) - pairs // 2 < 8
    if has_few_words or must_quote:  # for many words, the search takes the product of both lengths
        quotes = bool(known) or any(_quotes(said, source) for source in sources)
    else:
        quotes = bool(known or shared)
    if rich and not quotes and _is_a_handful(said.text):  # "Done."
        return True
    # A refusal, in any language: of many exact values it tells none.
    if not (is_part or known or (said.words and quotes)):
        exact = frozenset[str]().union(*(source.numbers | source.identifiers for source in sources))
        if len(exact) >= _MIN_EXACT and 2 * len(shared) <= len(own):
            return True
    if error:  # a summary may begin like an error message, if most of it is about the conversation
        return told < _MIN_COMMON_TERMS or len(shared) < 0.6 * len(own)
    if told >= _MIN_COMMON_TERMS or (told >= (2 if rich else 1) and len(shared) >= 0.25 * len(own)):
        return False
    # A summary in the language of its source would have had more in common; in another one, only names and numbers.
    is_comparable = any(said.is_in_the_language_of(source) for source in sources if source.words)
    if is_comparable or quotes:
        return is_comparable
    return has_few_words or (request is not None and not said.is_in_the_language_of(request))


def had_nothing_to_say(said: Terms, sources: Sequence[Terms]) -> bool:
    """Return whether *sources* contain hardly a word and no exact value to name, and *said* is not an error."""
    if any(source.numbers or source.identifiers for source in sources):
        return False
    words = frozenset[str]().union(*(source.words for source in sources))
    return len(words) <= 3 and not find_error(said.text)


def names_nothing_new(said: Terms, source: Terms, previous: Terms, *, tokens: int = 0) -> tuple[str, ...]:
    """Return the new identifiers of *source*, if it names many new things and *said* mentions none of them; else ().

    New means: *previous* does not name it. If *said* only repeats *previous*, new numbers are returned, too. *tokens*
    are those of a long source, 0 of a short one. In a long one, fewer identifiers are many, and a single word that it
    shares with *said* may be chance: so *previous* in other words is found, too.
    """
    is_same = said.all <= previous.all
    if len(said.find_words(source) - previous.words) > (1 if tokens else 0):
        return ()
    if not (is_same or said.is_in_the_language_of(source)):
        return ()
    if not is_same and len(source.words - previous.words) < _MIN_NEW_WORDS:
        return ()
    before = previous.identifiers | previous.numbers
    names, new = source.identifiers - before, (source.identifiers | source.numbers) - before
    shared = (said.all - previous.all) & source.all
    if (said.identifiers | said.numbers) & new or any(not term.isalpha() and len(term) > 1 for term in shared):
        return ()
    added = said.words - previous.words
    common = added & source.words
    is_reworded = tokens and added and len(common) <= min(1, len(added) // 3)
    if is_reworded and len(names) >= max(_MIN_NAMES, tokens // _TOKENS_A_NAME):
        return tuple(sorted(names))
    if len(new) < 20 or common or shared:
        return ()
    return tuple(sorted(new if is_same else names))


def _is_a_handful(text: str) -> bool:
    """Return whether *text* has at most 4 words, or 6 characters of a script without spaces."""
    unspaced = sum(map(len, UNSPACED.findall(text)))
    spaced = len(_LETTERS.findall(UNSPACED.sub(" ", text)))
    return spaced <= 4 and unspaced <= (0 if spaced else 6)


def _quotes(said: Terms, source: Terms) -> bool:
    """Return whether *said* contains a number or a name of *source*, or 3 of its words or 4 characters in a row."""
    if said.numbers & source.numbers:
        return True
    read = source.text
    if said.numbers and not set(_DIGITS.findall(said.text)).isdisjoint(set(_DIGITS.findall(read)) - {"000"}):
        return True  # "312.40" is "312,40" in another language
    if any(
        row in read for row in {run[at : at + 4] for run in UNSPACED.findall(said.text) for at in range(len(run) - 3)}
    ):
        return True
    words = _LETTERS.findall(UNSPACED.sub(" ", said.text))  # Chinese has no space beside a name either
    rows = dict.fromkeys(zip(words, words[1:], words[2:], strict=False))
    if any(any(map(is_telling, row)) and " ".join(row) in read for row in rows):
        return True
    # A word that the source capitalises in the middle of a sentence is a name.
    names = (word for word in dict.fromkeys(words) if word[0].isupper() and is_telling(word))
    return any(re.search(rf"[\w,;] {re.escape(name)}\b", read) for name in names)


def find_error(text: str) -> Literal["page", "message", ""]:
    """Return ``page`` if *text* is a page, a traceback or a server's error object, with any words; ``message`` if it
    begins like an error message; else ""."""
    if _PAGE.match(text):
        return "page"
    fence = _FENCED.match(text)
    body = text[fence.end() if fence else 0 :].lstrip()
    if body.startswith("{"):
        try:
            value, _ = json.JSONDecoder(strict=False).raw_decode(body)
        except (ValueError, RecursionError):
            value = {}
        keys = {str(key).casefold() for key in value}
        if keys and keys <= _WORDS.fault_fields | _WORDS.error_fields:
            return "message" if keys.isdisjoint(_WORDS.fault_fields) else "page"
    return "message" if _ERROR.match(text) else ""
