"""Find a user's standing instructions: rules, prohibitions, preferences, limits, deadlines.

The search goes by cues, which are phrases, and can err. ``cues.yaml`` holds one table per language and documents their
syntax. At each gap, a phrase looks at most ``MAX_GAP`` words ahead, so the search takes linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import call

from memory.patterns import compile_later
from memory.values import ValueObject

from .content import is_code, load_table

#: Kind of a phrase that only looks like a cue: it is never reported, but suppresses shorter phrases that it overlaps.
EXCEPT = "except"
#: Maximum words at a phrase's dots, or letters in scripts that count letters as words.
MAX_GAP, MAX_LETTERS = 8, 24
#: Maximum characters of a sentence to read; a longer one is judged by its beginning.
MAX_SENTENCE = 4_000
#: Words that were looked up and are remembered; at one more, all are forgotten.
MAX_CACHED_WORDS = 50_000

_FORBIDS, _RULES, _WISHES = "forbids", "rules", "wishes"
_ANY_KIND, _ONLY_FORBIDS = frozenset((_FORBIDS, _RULES, _WISHES)), frozenset((_FORBIDS,))

_POLITE = compile_later(r"(?:and |so |also )?(?:please|can|could|would|will) (?:you|we)\b", re.IGNORECASE)
#: A statement in code. One sign after its keyword is enough, because a rule in an error message is no instruction.
_STATEMENT = compile_later(
    r"\s*(?:\$ |>>>|(?:def|class|import|from|return|const|let|var|function|async|elif|else|try|raise|throw|except"
    r"|public|private|export|select|insert|update|create|curl|pip|npm|git|sudo)\b(?=.*[(){};=:])|.*;\s*\Z)",
    re.IGNORECASE,
)


#: Splitting a text into sentences may cut a longer word.
_LONGEST_WORD = 80


@cache
def load_pattern(name: str, kind: str, form: str = "%s") -> re.Pattern[str]:
    """Return the pattern of all entries of one *kind* in a YAML file of this package, as *form* embeds it."""
    return re.compile(form % "|".join(load_table(name)[kind]), re.IGNORECASE)


@cache
def load_cues() -> Cues:
    """Return the cues of all languages. Several threads that call this first would each read them."""
    return Cues(load_table("cues.yaml"), (_FORBIDS, _RULES, _WISHES))


def rate_instruction(sentence: str) -> float:
    """Return 1 if *sentence* reads as a rule or prohibition, 0.6 for a wish or a limit, 0 for anything else.

    A question counts only if it is polite ("could you never ..."). A line of code never counts.
    """
    kinds = _find_kinds(sentence, _ANY_KIND)
    return 1.0 if _FORBIDS in kinds or _RULES in kinds else 0.6 if _WISHES in kinds else 0.0


def is_prohibition(sentence: str) -> bool:
    """Return whether *sentence* forbids something, or asks not to do it without the user.

    A refusal such as "I don't want any insurance" counts. A question counts only if it is polite ("could you never
    ...").
    """
    return _FORBIDS in _find_kinds(sentence, _ONLY_FORBIDS)


def may_prohibit(text: str) -> bool:
    """Return whether *text* may contain a prohibition; False is certain.

    One scan usually returns False and costs less than splitting *text* into sentences.
    """
    # Splitting unescapes JSON and cuts overlong words, so a sentence may then have other words than this scan.
    if "{" in text or "[" in text or len(max(text.split(), key=len, default="")) >= _LONGEST_WORD:
        return True
    return any(load_cues().find(split_words(text), _ONLY_FORBIDS, anywhere=True))


def _find_kinds(sentence: str, wanted: frozenset[str]) -> frozenset[str]:
    if sentence.rstrip().endswith(("?", "？", "؟")) and not _POLITE.match(sentence):
        return frozenset()
    kinds = load_cues().find_kinds(sentence, wanted)
    return frozenset() if kinds and (is_code(sentence) or _STATEMENT.match(sentence)) else kinds


#: Scripts without spaces: each letter counts as a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
#: Combining signs that belong to a letter but do not match ``\w``.
_SIGNS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0d7f"
#: Characters that end a clause.
_BREAKS = ',;:()"«»„“”—–…!?.،؛؟，、；：。！？「」『』（）।·•*'
# Text before an apostrophe is a separate word, as in l'avion and I'd.
_WORD = compile_later(rf"[{_UNSPACED},]|(?:(?![{_UNSPACED}])[\w{_SIGNS}])+'?")
_ASCII_WORD = compile_later(r"\w+'?|,")
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


def split_words(text: str) -> list[str]:
    """Return the words of *text* in lower case and uniform spelling, with ``BREAK`` at the end of each clause.

    English contractions are split: "don't" becomes "do not".
    """
    if text.isascii():
        word, text = _ASCII_WORD, text.translate(_ASCII_SAME)
    else:
        word, text = _WORD, unicodedata.normalize("NFC", text).translate(_SAME)
    return word.findall(text.lower().replace("n't", " not").replace("cannot", "can not"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Phrase(ValueObject):
    kind: str
    #: Runs of consecutive words, each a test; other words may come between two runs.
    word_runs: tuple[tuple[Callable[[str], object], ...], ...]
    #: For each run: True if it may be in a later clause than the run before it.
    in_later_clause: tuple[bool, ...]
    #: Required position: ``^`` start of the sentence, ``,`` start of a clause, empty anywhere.
    begins: str
    ends: bool
    #: The sentence must contain one of these words or letters: the phrase alone might belong to another language.
    marks: frozenset[str]
    #: The sentence must contain a word of each of these, beside the anchor.
    needed: tuple[frozenset[str], ...]
    #: Index in the first run of the word used for lookup.
    anchor: int

    def find_end(self, words: Sequence[str], start: int, *, anywhere: bool = False) -> int:
        """Return the end of the phrase if it matches at *start*, else 0. *anywhere* ignores its required end."""
        place, left = start, 0.0
        for run, later in zip(self.word_runs, self.in_later_clause, strict=True):
            while not all(map(call, run, words[place : place + len(run)])):
                left -= 1 if len(words[place]) > 1 else MAX_GAP / MAX_LETTERS
                if left < 0 or (words[place] == BREAK and not later):
                    return 0
                place += 1
            place, left = place + len(run), MAX_GAP
            if place > len(words):
                return 0
        if self.ends and not anywhere and any(word != BREAK for word in words[place : place + 4]):
            return 0
        return place


class Cues:
    """Phrases of several kinds and languages; of two overlapping phrases, the one with more words counts."""

    def __init__(self, tables: Mapping[str, Mapping[str, Sequence[str]]], kinds: Sequence[str]) -> None:
        """Take one table per language: the phrases of each of *kinds*, and also ``begin``, ``marks`` and the word lists
        that phrases refer to."""
        self._exact: dict[str, list[_Phrase]] = {}
        self._wild: list[tuple[re.Pattern[str], _Phrase]] = []
        self._openers: set[str] = set()
        for table in tables.values():
            self._openers.update(chain.from_iterable(map(split_words, table.get("begin", ()))))
            marks = frozenset(chain.from_iterable(map(split_words, table.get("marks", ()))))
            for kind in (EXCEPT, *kinds):
                for written in table.get(kind, ()):
                    for phrase, anchor in _parse(kind, written, table, marks):
                        if isinstance(anchor, re.Pattern):
                            self._wild.append((anchor, phrase))
                        else:
                            for word in anchor:
                                self._exact.setdefault(word, []).append(phrase)
        self._any_wild = re.compile("|".join({anchor.pattern for anchor, _ in self._wild}) or "(?!)")
        self._by_word: dict[str, tuple[_Phrase, ...]] = {}  # the phrases whose anchor a word is, once it was looked up

    def find_kinds(self, sentence: str, wanted: frozenset[str]) -> frozenset[str]:
        """Return the kinds of the phrases in *sentence*, without those that a longer phrase overlaps.

        Returns no kinds at all if no phrase of a *wanted* kind matches.
        """
        words = split_words(sentence[:MAX_SENTENCE])
        if not any(self.find(words, wanted)):
            return frozenset()
        found = [
            (-sum(map(len, phrase.word_runs)), phrase.kind != EXCEPT, start, end, phrase.kind)
            for phrase, start, end in self.find(words)
        ]
        taken = bytearray(len(words))
        kinds = set()
        for _, _, start, end, kind in sorted(found):
            if not any(taken[start:end]):
                kinds.add(kind)
                taken[start:end] = b"\1" * (end - start)
        return frozenset(kinds - {EXCEPT})

    def find(
        self, words: Sequence[str], wanted: frozenset[str] | None = None, *, anywhere: bool = False
    ) -> Iterator[tuple[_Phrase, int, int]]:
        """Yield the phrases of *wanted* kinds in *words*, with their first word and end.

        *anywhere* ignores their required position in a sentence or clause.
        """
        different = set(words)
        letters: set[str] = set()
        fit: dict[str, list[_Phrase]] = {}
        for word in different:
            phrases = self._by_word.get(word)
            if phrases is None:
                wild = self._wild if self._any_wild.fullmatch(word) else ()
                phrases = (*self._exact.get(word, ()), *[phrase for anchor, phrase in wild if anchor.fullmatch(word)])
                if len(self._by_word) >= MAX_CACHED_WORDS:
                    self._by_word = {}
                self._by_word[word] = phrases
            for phrase in phrases:
                if (wanted is not None and phrase.kind not in wanted) or any(map(different.isdisjoint, phrase.needed)):
                    continue
                if phrase.marks and phrase.marks.isdisjoint(letters := letters or different.union(*different)):
                    continue
                fit.setdefault(word, []).append(phrase)
        for at, word in enumerate(words):
            for phrase in fit.get(word, ()):
                start = at - phrase.anchor
                if start < 0 or not (anywhere or self._may_begin(words, start, phrase.begins)):
                    continue
                if end := phrase.find_end(words, start, anywhere=anywhere):
                    yield phrase, start, end

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


#: The alternatives for one word of a phrase: exact words, or a pattern.
_Word = frozenset[str] | re.Pattern[str]
#: Pattern of any word at all.
_ANY = "[^,]+"


def _parse(
    kind: str, cue: str, table: Mapping[str, Sequence[str]], marks: frozenset[str]
) -> Iterator[tuple[_Phrase, _Word]]:
    """Yield the phrases that *cue* describes, with their anchors. Raises ``ValueError`` for an invalid cue."""
    begins = next((sign for sign in "^," if cue.lstrip("? ").startswith(sign)), "")
    body = cue.lstrip("?^, ")
    for parts in _choose_optional(body.rstrip("$ ").split()):
        runs: list[list[_Word]] = [[]]
        later = [False]
        for part in parts:
            if part in {"...", "...."}:
                runs.append([])
                later.append(part == "....")
            else:
                runs[-1] += _parse_words(part, table)
        if not all(runs):
            raise ValueError(f"the cue {cue!r} has no words, or begins or ends with dots")
        anchor = max(range(len(runs[0])), key=lambda at: _rate_specificity(runs[0][at]))
        if not any(_rate_specificity(runs[0][anchor])):
            raise ValueError(f"the cue {cue!r} begins with any words at all; say which")
        tests = tuple(
            tuple(word.fullmatch if isinstance(word, re.Pattern) else word.__contains__ for word in run) for run in runs
        )
        sets = (word for run in runs for word in run if isinstance(word, frozenset) and word is not runs[0][anchor])
        needed = tuple(sorted(sets, key=len))  # who looks it up has the anchor; the rarest word tells most
        only_marked = marks if cue.startswith("?") else frozenset()
        phrase = _Phrase(kind, tests, tuple(later), begins, body.endswith("$"), only_marked, needed, anchor)
        yield phrase, runs[0][anchor]


def _choose_optional(parts: Sequence[str]) -> list[list[str]]:
    """Return *parts* with and without each part in round brackets."""
    ways: list[list[str]] = [[]]
    for part in parts:
        optional = part.startswith("(") and part.endswith(")") and len(part) > 2
        ways = [[*way, part[1:-1] if optional else part] for way in ways] + (ways if optional else [])
    return ways


def _parse_words(part: str, table: Mapping[str, Sequence[str]]) -> list[_Word]:
    if part == "/":
        return [frozenset((BREAK,))]
    if not part.startswith(("!", "<")) and "|" not in part and "*" not in part:
        return [frozenset((word,)) for word in split_words(part)]
    names = part.removeprefix("!").split("|")
    listed = chain.from_iterable(table[name.strip("<>")] if name.startswith("<") else (name,) for name in names)
    word = _read_alternatives(chain.from_iterable(one.split("|") for one in listed))
    if part.startswith("!"):
        inner = word.pattern if isinstance(word, re.Pattern) else "|".join(map(re.escape, word))
        return [re.compile(rf"(?!(?:{inner})\Z){_ANY}")]
    return [word]


def _read_alternatives(alternatives: Iterable[str]) -> _Word:
    exact: set[str] = set()
    patterns: list[str] = []
    endings: list[str] = []
    for one in alternatives:
        first, *others = ("".join(split_words(piece)) for piece in one.split("*"))
        if not (first or any(others)):
            return re.compile(_ANY)
        if not others:
            exact.add(first)
        elif first or len(others) > 1:  # the beginning and the ending may overlap
            patterns.append(f"(?={re.escape(first)})[^,]*" + "[^,]*".join(map(re.escape, others)))
        else:
            endings.append(re.escape(others[0]))
    if endings:
        patterns.append(f"(?!(?:{'|'.join(endings)})\\Z)[^,]*(?:{'|'.join(endings)})")
    return re.compile("|".join([*map(re.escape, exact), *patterns])) if patterns else frozenset(exact)


def _rate_specificity(word: _Word) -> tuple[int, int]:
    """Return how well *word* serves as an anchor: best if it is exact and long."""
    if isinstance(word, re.Pattern):
        return (0, 0) if word.pattern.endswith(_ANY) else (1, 0)
    return (0, 0) if BREAK in word else (2, min(map(len, word)))
