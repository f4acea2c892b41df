"""Cues: phrases that classify a sentence, in any language, in time linear in its length.

The tables of phrases are data; ``cues.yaml`` documents their syntax. At each gap, a phrase looks at most ``MAX_GAP``
words ahead, so no text makes the search slow.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

#: Kind of a phrase that only looks like a cue: it is never reported, but suppresses shorter phrases that it overlaps.
EXCEPT = "except"
#: Maximum words at a phrase's dots, or letters in scripts that count letters as words.
MAX_GAP, MAX_LETTERS = 8, 24
#: Maximum characters of a sentence to read; a longer one is judged by its beginning.
MAX_SENTENCE = 4_000
#: Maximum words in the lookup cache; above it, the cache is cleared.
MAX_KNOWN = 50_000

#: Gaps in a phrase: other words of the same clause, or also of later clauses.
_GAP, _LATER = "...", "...."

#: Scripts without spaces: each letter counts as a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
#: Combining signs that belong to a letter but do not match ``\w``.
_SIGNS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0d7f"
#: Characters that end a clause.
_BREAKS = ',;:()"«»„“”—–…!?.،؛؟，、；：。！？「」『』（）।·•*'
# Text before an apostrophe is a separate word, as in l'avion and I'd.
_WORD = re.compile(rf"[{_UNSPACED},]|(?:(?![{_UNSPACED}])[\w{_SIGNS}])+'?")
_ASCII_WORD = re.compile(r"\w+'?|,")
#: Spelling variants mapped to one character, and removed marks between letters that are not letters.
_SAME = str.maketrans(
    {
        **dict.fromkeys("’‘ʼ`´", "'"),
        **dict.fromkeys("أإآٱ", "ا"),
        **dict.fromkeys("يىئ", "ی"),
        **dict.fromkeys("ؤ", "و"),
        **dict.fromkeys("كڪ", "ک"),
        **dict.fromkeys("ہۀة", "ه"),
        "ё": "е",
        "Ё": "е",
        **dict.fromkeys(_BREAKS, ","),
        "İ": "i",
        "ſ": "s",
        **dict.fromkeys(
            [*range(0x064B, 0x0653), *range(0x0591, 0x05C8), 0x0640, 0x00AD, *range(0x200B, 0x2010), 0x2060, 0xFEFF]
        ),
    }
)
_ASCII_SAME = str.maketrans(dict.fromkeys(filter(str.isascii, _BREAKS), ","))
#: Marks the end of a clause; not a word.
BREAK = ","


def words_in(text: str) -> list[str]:
    """Return the words of *text* in lower case and uniform spelling, with ``BREAK`` at the end of each clause."""
    if text.isascii():
        return _ASCII_WORD.findall(_apart(text.lower()).translate(_ASCII_SAME))
    return _WORD.findall(_apart(unicodedata.normalize("NFC", text).translate(_SAME).lower()))


def _apart(text: str) -> str:
    """Return *text* with English contractions split: "don't" becomes "do not"."""
    return text.replace("n't", " not").replace("cannot", "can not")


class _Word(NamedTuple):
    """The alternatives for one word of a phrase."""

    exact: frozenset[str]
    beginnings: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    #: Pairs of a beginning and its ending.
    frames: tuple[tuple[str, str], ...] = ()
    #: True for any word at all.
    free: bool = False
    #: True if only ``exact`` words match.
    plain: bool = True
    #: With ``free``: any word except these.
    none_of: _Word | None = None

    @classmethod
    def read(cls, written: Iterable[str]) -> _Word:
        """Parse the alternatives *written* for one word."""
        exact, beginnings, endings, parts, frames, free = [], [], [], [], [], False
        for one in written:
            bare = one.strip("*")
            if not bare:
                free = True
            elif "*" in bare:
                beginning, _, ending = bare.partition("*")
                frames.append((beginning, ending))
            elif one.startswith("*") and one.endswith("*"):
                parts.append(bare)
            elif one.endswith("*"):
                beginnings.append(bare)
            elif one.startswith("*"):
                endings.append(bare)
            else:
                exact.append(one)
        wild = bool(beginnings or endings or parts or frames or free)
        return cls(frozenset(exact), tuple(beginnings), tuple(endings), tuple(parts), tuple(frames), free, not wild)

    def is_one(self, word: str) -> bool:
        if word in self.exact:
            return True
        if self.plain or word == BREAK:
            return False
        if self.none_of is not None:
            return not self.none_of.is_one(word)
        return (
            self.free
            or word.startswith(self.beginnings)
            or (word.endswith(self.endings) and word not in self.endings)
            or any(part in word for part in self.parts)
            or any(word.startswith(begun) and word.endswith(ended) for begun, ended in self.frames)
        )


@dataclass(frozen=True, slots=True)
class _Phrase:
    kind: str
    #: Runs of consecutive words; other words may come between two runs.
    runs: tuple[tuple[_Word, ...], ...]
    #: For each run: True if it may be in a later clause than the run before it.
    later: tuple[bool, ...]
    #: Required position: ``^`` start of the sentence, ``,`` start of a clause, empty anywhere.
    begins: str
    ends: bool
    #: The sentence must contain one of these words: the phrase alone might belong to another language.
    marks: frozenset[str]
    #: Index in the first run of the word used for lookup.
    anchor: int

    @property
    def length(self) -> int:
        return sum(map(len, self.runs))

    def may_stand_among(self, words: Set[str]) -> bool:
        """Return whether *words* contains all its exact words; False rules the phrase out."""
        return not any(word.plain and word.exact.isdisjoint(words) for run in self.runs for word in run)

    def end_at(self, words: Sequence[str], start: int, *, anywhere: bool = False) -> int:
        """Return the end of the phrase if it matches at *start*, else -1. *anywhere* ignores its required end."""
        place = start
        for number, (run, later) in enumerate(zip(self.runs, self.later, strict=True)):
            found = self._find(words, place, run, searching=number > 0, later=later)
            if found < 0:
                return -1
            place = found + len(run)
        if self.ends and not anywhere and any(word != BREAK for word in words[place : place + 4]):
            return -1
        return place

    def _find(self, words: Sequence[str], place: int, run: tuple[_Word, ...], *, searching: bool, later: bool) -> int:
        first, *others = run
        left: float = MAX_GAP
        for start in range(place, len(words) - len(others)):
            word = words[start]
            if first.is_one(word):
                for at, other in enumerate(others, start + 1):
                    if not other.is_one(words[at]):
                        break
                else:
                    return start
            left -= 1 if len(word) > 1 else MAX_GAP / MAX_LETTERS
            if not searching or left < 0 or (word == BREAK and not later):
                break
        return -1


class Cues:
    """Phrases of several kinds and languages; of two overlapping phrases, the one with more words counts."""

    def __init__(self, tables: Mapping[str, Mapping[str, Sequence[str]]], kinds: Sequence[str]) -> None:
        """Take one table per language: the phrases of each of *kinds*, and also ``begin``, ``marks`` and the word lists
        that phrases refer to."""
        self._exact: dict[str, list[_Phrase]] = {}
        self._wild: list[_Phrase] = []
        self._openers: set[str] = set()
        for table in tables.values():
            self._openers.update(word for said in table.get("begin", ()) for word in words_in(said))
            marks = frozenset(word for said in table.get("marks", ()) for word in words_in(said))
            for kind in (EXCEPT, *kinds):
                for written in table.get(kind, ()):
                    for phrase in _read(kind, written, table, marks):
                        self._file(phrase)
        anchors = [phrase.runs[0][phrase.anchor] for phrase in self._wild]
        #: A word without any of these beginnings, endings or parts matches no wildcard anchor.
        self._beginnings = tuple({one for word in anchors for one in (*word.exact, *word.beginnings, *_begun(word))})
        self._endings = tuple({ending for word in anchors for ending in word.endings})
        self._parts = tuple({part for word in anchors for part in word.parts})
        self._known: dict[str, tuple[_Phrase, ...]] = {}

    def kinds_in(self, sentence: str, wanted: frozenset[str]) -> frozenset[str]:
        """Return the kinds of the phrases in *sentence*, without those that a longer phrase overlaps.

        Returns no kinds at all if no phrase of a *wanted* kind matches.
        """
        words = words_in(sentence[:MAX_SENTENCE])
        filed = self._phrases_at(words)
        if not any(phrase.kind in wanted and self._ends(words, at, phrase) for at, found in filed for phrase in found):
            return frozenset()
        found = [
            (-phrase.length, phrase.kind != EXCEPT, at - phrase.anchor, end, phrase.kind)
            for at, phrases in filed
            for phrase in phrases
            if (end := self._ends(words, at, phrase))
        ]
        taken = bytearray(len(words))
        kinds = set()
        for _, _, start, end, kind in sorted(found):
            if not any(taken[start:end]):
                kinds.add(kind)
                taken[start:end] = b"\1" * (end - start)
        return frozenset(kinds - {EXCEPT})

    def may_stand_in(self, text: str, wanted: frozenset[str]) -> bool:
        """Return whether a sentence of *text* may contain a phrase of a *wanted* kind; False is certain."""
        words = words_in(text)
        return any(
            phrase.kind in wanted and self._ends(words, at, phrase, anywhere=True)
            for at, found in self._phrases_at(words)
            for phrase in found
        )

    def _phrases_at(self, words: Sequence[str]) -> list[tuple[int, list[_Phrase]]]:
        """Return (index of a word, phrases with that word as anchor that may match)."""
        different = set(words)
        known = self._known
        if len(known) > MAX_KNOWN:
            known = self._known = {}  # a new dict: another thread may still read the old one
        for word in different.difference(known):
            known[word] = self._found_by(word)
        shown = _Shown(different)
        fit = {
            word: [one for one in found if shown.is_any_of(one.marks) and one.may_stand_among(different)]
            for word in different
            if (found := known[word])
        }
        return [(at, here) for at, word in enumerate(words) if (here := fit.get(word))]

    def _ends(self, words: Sequence[str], at: int, phrase: _Phrase, *, anywhere: bool = False) -> int:
        """Return the end of *phrase* if it matches with its anchor word *at*, else 0.

        *anywhere* ignores its required position in a sentence or clause.
        """
        start = at - phrase.anchor
        if start < 0 or not (anywhere or not phrase.begins or self._may_begin(words, start, phrase.begins)):
            return 0
        end = phrase.end_at(words, start, anywhere=anywhere)
        return max(end, 0)

    def _may_begin(self, words: Sequence[str], start: int, where: str) -> bool:
        if not where or start == 0 or (where == "," and words[start - 1] == BREAK):
            return True
        if where == ",":
            return words[start - 1] in self._openers
        before = start - 1
        while before >= 0 and (words[before] == BREAK or words[before] in self._openers):
            before -= 1
            if start - before > MAX_GAP:
                return False
        return before < 0

    def _found_by(self, word: str) -> tuple[_Phrase, ...]:
        """Return the phrases with *word* as a possible anchor."""
        exact = self._exact.get(word, ())
        may_be = word.startswith(self._beginnings) or word.endswith(self._endings)
        if not may_be and not any(part in word for part in self._parts):
            return tuple(exact)
        return (*exact, *(phrase for phrase in self._wild if phrase.runs[0][phrase.anchor].is_one(word)))

    def _file(self, phrase: _Phrase) -> None:
        anchor = phrase.runs[0][phrase.anchor]
        if not anchor.plain:
            self._wild.append(phrase)
        else:
            for word in anchor.exact:
                self._exact.setdefault(word, []).append(phrase)


def _begun(word: _Word) -> Iterator[str]:
    return (beginning for beginning, _ in word.frames)


class _Shown:
    """The language marks found among *words*: whole words or single letters."""

    def __init__(self, words: Set[str]) -> None:
        self._words = words
        self._found: dict[frozenset[str], bool] = {}

    def is_any_of(self, marks: frozenset[str]) -> bool:
        """Return whether one of *marks* was found, or *marks* is empty."""
        if not marks:
            return True
        found = self._found.get(marks)
        if found is None:
            found = self._found[marks] = not marks.isdisjoint(self._words) or not marks.isdisjoint("".join(self._words))
        return found


def _read(kind: str, written: str, table: Mapping[str, Sequence[str]], marks: frozenset[str]) -> Iterator[_Phrase]:
    """Yield the phrases that *written* describes. Raises ``ValueError`` for an invalid cue."""
    sure = written.startswith("?")
    begins = next((sign for sign in "^," if written.lstrip("? ").startswith(sign)), "")
    body = written.lstrip("?^, ")
    ends = body.endswith("$")
    for said in _expanded(body.rstrip("$ ").split()):
        runs = tuple(tuple(_words(run, table)) for run in _runs(said))
        later = (False, *(part == _LATER for part in said if part in (_GAP, _LATER)))
        if not all(runs):
            raise ValueError(f"the cue {written!r} has no words, or begins or ends with dots")
        anchor = max(range(len(runs[0])), key=lambda at: _specific(runs[0][at]))
        if not any(_specific(runs[0][anchor])):
            raise ValueError(f"the cue {written!r} begins with any words at all; say which")
        yield _Phrase(kind, runs, later, begins, ends, marks if sure else frozenset(), anchor)


def _expanded(parts: Sequence[str]) -> Iterator[list[str]]:
    """Yield *parts* with and without each part in round brackets."""
    ways: list[list[str]] = [[]]
    for part in parts:
        bare = part[1:-1] if part.startswith("(") and part.endswith(")") else ""
        ways = [[*way, bare or part] for way in ways] + ([list(way) for way in ways] if bare else [])
    yield from ways


def _runs(parts: Sequence[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for part in parts:
        if part in (_GAP, _LATER):
            yield run
            run = []
        else:
            run.append(part)
    yield run


def _words(run: Iterable[str], table: Mapping[str, Sequence[str]]) -> Iterator[_Word]:
    for part in run:
        if part.startswith("!"):
            none_of = _Word.read(one for word in part[1:].split("|") for one in _of_list(word, table))
            yield _Word(frozenset(), free=True, plain=False, none_of=none_of)
        elif part.startswith("<"):
            yield _Word.read(one for word in part.split("|") for one in _of_list(word, table))
        elif part == "/":
            yield _Word(frozenset((BREAK,)))
        elif "|" in part or "*" in part:
            yield _Word.read(_alternatives(part))
        else:
            for word in words_in(part):
                yield _Word(frozenset((word,)))


def _of_list(word: str, table: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the alternatives for *word*, or the entries of the list that it names."""
    for one in table[word.strip("<>")] if word.startswith("<") else (word,):
        yield from _alternatives(one)


def _alternatives(part: str) -> Iterator[str]:
    for one in part.split("|"):
        bare = "*".join("".join(words_in(piece)) for piece in one.strip("*").split("*"))
        yield f"{'*' * one.startswith('*')}{bare}{'*' * (one.endswith('*') and len(one) > 1)}" if bare else "*"


def _specific(word: _Word) -> tuple[int, int]:
    """Return how well *word* serves as an anchor: best if it is exact and long."""
    if word.free or BREAK in word.exact:
        return (0, 0)
    return (2, min(map(len, word.exact))) if word.plain else (1, 0)
