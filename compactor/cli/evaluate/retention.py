"""The items of a conversation that a summary should keep, and a test whether it does: words are compared with words.

Identifiers and numbers count if people or the agent say them: a tool's result may hold thousands, and people name those
that matter. A result itself counts by its outcome.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from memory.rounds import Round, cached_property, copy_with

from ...acceptance.prohibitions import read_user_words
from ...summarizers.actions import find_actions
from ...summarizers.content import (
    UNSPACED_LETTERS,
    Assignment,
    SearchableText,
    Terms,
    find_assignment,
    find_identifiers,
    list_comparison_keys,
    read_content,
)
from ...summarizers.cues import is_prohibition, rate_instruction
from ...summarizers.results import read_json
from ...summarizers.sentences import keep_letters, split_sentences

#: Kinds of what is said, with their names for people.
KINDS = {one: one for one in ("ids", "numbers", "paths", "instructions", "prohibitions")}
KINDS |= {"outcomes": "tool outcomes", "newest": "newest values"}

#: Words of a summary among which everything that belongs to one thing must stand.
WINDOW = 40
#: Share of the words of an instruction, of an outcome, and of a value's subject, that must stand there.
MIN_INSTRUCTION_SHARE, MIN_OUTCOME_SHARE, MIN_SUBJECT_SHARE = 1 / 2, 1 / 3, 1 / 2
#: Likewise of the words beside a number, and the most words that must stand.
MIN_NUMBER_SHARE, MAX_BESIDE = 1 / 3, 4
#: Maximum earlier values of one subject that a newer one is compared with.
MAX_EARLIER = 8
#: Maximum characters of a sentence.
_MAX_SENTENCE = 400
#: Between two texts: no name has so many separators in a row.
_BETWEEN = "\n" * 8
#: Weight of a name; identifiers and numbers weigh more, plain words less.
_NAME_WEIGHT = 0.6

_TOKEN = re.compile(rf"\d+(?:[.:]\d+)*|[{UNSPACED_LETTERS}]+|[^\W\d_{UNSPACED_LETTERS}]+")
_FENCED = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"[/\\]|\.[A-Za-z]{1,5}\Z")
#: A mark before an item of a list, a reference to a place in the log, and how often the same call was made.
_NO_NUMBER = re.compile(r"^\s*\d+[.)] |\br\d+(?:\.p\d+)?\b|×\d+\b", re.MULTILINE)

#: Words of which a number must stand within one stretch of a summary.
Group = tuple[frozenset[str], int]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was said."""

    #: One of ``KINDS``.
    kind: str
    #: As it was said.
    text: str
    #: Number of the round that says it, from 1.
    round: int
    #: Things of one kind in one round with the same key are one thing.
    key: str
    #: An identifier that must stand anywhere; empty: none.
    name: str = ""
    groups: tuple[Group, ...] = ()
    #: Number of the round that says something newer instead; None: none does.
    until: int | None = None


class Sentence(NamedTuple):
    """A sentence of the user or of the agent."""

    round: int
    text: str
    by_user: bool


class SummaryWords:
    """The words of a summary, searchable for items."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._positions: defaultdict[str, list[int]] = defaultdict(list)
        for position, keys in enumerate(_split_words(text)):
            for key in keys:
                self._positions[key].append(position)

    @cached_property
    def _searchable(self) -> SearchableText:
        return SearchableText(self.text)

    @cached_property
    def _letters(self) -> str:
        return keep_letters(self.text)

    @cached_property
    def _forbidden(self) -> list[frozenset[str]]:
        """The words of each sentence that forbids something."""
        return [_find_keys(one) for one in split_sentences(self.text, _MAX_SENTENCE) if is_prohibition(one)]

    def keeps(self, item: Item) -> bool:
        if item.name:
            return self._searchable.has_name(item.name)
        if item.kind in ("instructions", "prohibitions") and keep_letters(item.text) in self._letters:
            return True
        if item.kind == "prohibitions":  # its words without a "not" would say the opposite
            ((words, minimum),) = item.groups
            return any(len(words & forbidden) >= minimum for forbidden in self._forbidden)
        return self._has_together(item.groups)

    def _has_together(self, groups: Sequence[Group]) -> bool:
        """Return whether a stretch of ``WINDOW`` words has enough words of each group."""
        if any(sum(word in self._positions for word in words) < minimum for words, minimum in groups):
            return False
        # A stretch with enough words still has them if it begins with the first of these.
        starts = sorted(
            {position for words, _ in groups for word in words for position in self._positions.get(word, ())}
        )
        return any(all(self._count(words, start) >= minimum for words, minimum in groups) for start in starts)

    def _count(self, words: Iterable[str], start: int) -> int:
        places = (self._positions.get(word, ()) for word in words)
        return sum(bisect_left(one, start) < bisect_left(one, start + WINDOW) for one in places)


def find_items(rounds: Sequence[Round], role: str) -> list[Item]:
    """Return the items in *rounds*, of the agent *role*, that a summary should keep; each once a round."""
    said = [one for round_ in rounds for one in _read_sentences(round_, role)]
    newer, newest = _find_newer(said)
    items: dict[tuple[str, int, str], Item] = {}
    for position, one in enumerate(said):
        for item in (*_find_items(one, newer.get(position)), *newest.get(position, ())):
            items.setdefault((item.kind, item.round, item.key), item)
    for round_ in rounds:
        for item in (*_find_names(round_, role), *_find_outcomes(round_)):
            items.setdefault((item.kind, item.round, item.key), item)
    return list(items.values())


class _SaidText(SearchableText):
    """What was said between two compactions."""

    @cached_property
    def numeric(self) -> str:
        return Terms(self.text).folded

    @cached_property
    def lower(self) -> str:
        return self.text.casefold()


class Said:
    """What was said until a compaction: grows with each, and reads no text twice."""

    def __init__(self, *texts: str) -> None:
        #: The newest first, because most names of a summary are there.
        self._texts: deque[_SaidText] = deque()
        self.add(texts)

    def add(self, texts: Sequence[str]) -> None:
        self._texts.appendleft(_SaidText(_BETWEEN.join(texts)))

    def find_invented(self, summary: str, known: Set[str] = frozenset()) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the identifiers and numbers of *summary* that are not *known*, and those of them that nobody said.

        A sum or a difference that the summary states is among them, if nobody said it.
        """
        said = Terms(_NO_NUMBER.sub(" ", summary))
        names = [name for name in find_identifiers(said.text) if name not in known]
        numbers = sorted(said.numbers - known)
        unknown = [name for name in names if not any(text.has_name(name) for text in self._texts)]
        unknown += [number for number in numbers if not self._has_number(number)]
        return frozenset((*names, *numbers)), tuple(name for name in unknown if not self._is_beginning(name, summary))

    def _has_number(self, number: str) -> bool:
        written = re.compile(rf"(?<!\d){re.escape(number)}(?!\d)")  # also in 150ms
        return any(number in text.numeric and written.search(text.numeric) for text in self._texts)

    def _is_beginning(self, name: str, summary: str) -> bool:
        """Return whether *summary* marks *name* as cut off, and a longer one was said."""
        is_cut = re.search(rf"{re.escape(name)}\s?(?:…|\.\.\.)", summary) is not None
        return is_cut and any(name.casefold() in text.lower for text in self._texts)


def read_source(round_: Round) -> str:
    """Return everything that was said in *round_*."""
    texts = [round_.user_query]
    for post in round_.post_list:
        texts += [post.message, *(one.content for one in post.attachment_list)]
        texts += [f"{call.name} {call.arguments}" for call in post.tool_calls]
    return "\n".join(dict.fromkeys(filter(None, texts)))  # the first post usually repeats the query


def _read_sentences(round_: Round, role: str) -> Iterator[Sentence]:
    texts = [(text, True) for text in dict.fromkeys(read_user_words([round_]))]
    texts += [(_FENCED.sub("", post.message), False) for post in round_.post_list if post.send_from == role]
    for text, by_user in texts:
        for sentence in split_sentences(text, _MAX_SENTENCE):
            yield Sentence(round_.number, sentence, by_user)


def _find_items(said: Sentence, until: int | None) -> Iterator[Item]:
    """Yield the items of one sentence; *until* is the round that says something newer."""
    terms, words = Terms(said.text), _find_keys(said.text)
    for name in find_identifiers(said.text):
        kind = "paths" if _PATH.search(name) else "ids"
        yield Item(kind, said.text, said.round, name.casefold(), name, until=until)
    for number in sorted(terms.numbers):
        if number.startswith("0"):  # a part of a date or a time
            continue
        beside = words - {number}
        groups = ((frozenset({number}), 1), (beside, min(MAX_BESIDE, _count_share(MIN_NUMBER_SHARE, beside))))
        yield Item("numbers", f"{number}: {said.text}", said.round, number, groups=groups, until=until)
    if said.by_user and words:
        numbers = frozenset(word for word in words if word[0].isdigit())
        half = (words, _count_share(MIN_INSTRUCTION_SHARE, words))
        if is_prohibition(said.text):
            yield Item("prohibitions", said.text, said.round, said.text, groups=(half,), until=until)
        elif rate_instruction(said.text):
            groups = (half, (numbers, len(numbers)))
            yield Item("instructions", said.text, said.round, said.text, groups=groups, until=until)


def _find_names(round_: Round, role: str) -> Iterator[Item]:
    for post in round_.post_list:
        for call in post.tool_calls if post.send_from == role else ():
            fields = read_json(call.arguments)
            texts = [call.arguments] if fields is None else [value for _, value in fields]
            for name in find_identifiers("\n".join(texts)):
                kind = "paths" if _PATH.search(name) else "ids"
                yield Item(kind, name, round_.number, name.casefold(), name)


def _find_outcomes(round_: Round) -> Iterator[Item]:
    for action in find_actions([round_]):
        words = _find_keys(action.outcome)
        about = _find_keys(" ".join((action.name, *action.arguments)))
        words = words - about or words
        if words and about:
            groups = ((about, 1), (words, _count_share(MIN_OUTCOME_SHARE, words)))
            yield Item("outcomes", action.line, round_.number, action.line, groups=groups)


def _find_newer(said: Sequence[Sentence]) -> tuple[dict[int, int], dict[int, list[Item]]]:
    """Return for each position in *said* the round that replaces its value, and the newest values that replace another.

    A value is replaced by a later one of the same subject that says that it changes, or says nearly the same.
    """
    newer: dict[int, int] = {}
    newest: dict[int, list[Item]] = defaultdict(list)
    known: defaultdict[frozenset[str], deque[tuple[int, Assignment]]] = defaultdict(partial(deque, maxlen=MAX_EARLIER))
    for position, one in enumerate(said):
        assignment = find_assignment(one.text)
        value = _find_value(one.text, assignment)
        if assignment is None or not value or one.text.startswith("#"):  # a heading assigns nothing
            continue
        before = [
            (earlier, other)
            for earlier, other in known[assignment.subject]
            if earlier not in newer
            and _find_value(said[earlier].text, other) != value
            and said[earlier].by_user == one.by_user
            and (assignment.change or _is_alike(other, assignment))
        ]
        newer |= {earlier: one.round for earlier, _ in before}
        if before:
            subject = frozenset(key for word in assignment.subject for key in _find_keys(word)) - value
            groups = ((value, len(value)), (subject, _count_share(MIN_SUBJECT_SHARE, subject)))
            newest[position].append(Item("newest", one.text, one.round, one.text, groups=groups))
        known[assignment.subject].append((position, assignment))
    for position, items in newest.items():
        if position in newer:
            newest[position] = [copy_with(one, until=newer[position]) for one in items]
    return newer, newest


def _find_value(text: str, assignment: Assignment | None) -> frozenset[str]:
    """Return the words of the value that *text* assigns: numbers and names first, else plain words."""
    if assignment is None:
        return frozenset()
    terms = read_content(text).terms
    exact = [term for term, weight in terms.items() if weight >= _NAME_WEIGHT and term not in assignment.subject]
    return frozenset(key for term in exact or assignment.words for key in _find_keys(term))


def _is_alike(one: Assignment, other: Assignment) -> bool:
    """Return whether both say the same of their subject, apart from numbers and names."""
    both = one.words | other.words
    return bool(both) and 3 * len(one.words & other.words) >= 2 * len(both)


def _count_share(share: float, words: frozenset[str]) -> int:
    return max(1, round(share * len(words))) if words else 0


def _find_keys(text: str) -> frozenset[str]:
    """Return the words of *text* by which texts are compared, without words that any text has."""
    return frozenset(key for term in Terms(text).all for keys in _split_words(term) for key in keys)


def _split_words(text: str) -> Iterator[Sequence[str]]:
    """Yield the keys of each word of *text*, in order; none for a word that says nothing."""
    for match in _TOKEN.finditer(Terms(text).folded):
        word = match[0]
        yield ([word] if len(word) > 1 else ()) if word[0].isdigit() else list_comparison_keys(word)
