"""Weigh the statements of a summary against the whole conversation; without superseded and repeated ones."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from memory.patterns import compile_later
from memory.rounds import copy_with
from memory.values import ValueObject

from ..tokens import TokenCounter
from .content import Assignment, Content, find_assignment, read_content
from .cues import rate_instruction
from .sentences import Section
from .statements import Statement

Item = TypeVar("Item")

#: Seconds to hold the interpreter (GIL), and to release it.
_HOLD, _BREATH = 0.001, 0.00005

#: Maximum instructions to compare with one another (the newest).
_MAX_RULES = 100
#: Maximum assignments of one subject to compare with older ones.
_MAX_NEWER = 8
#: Identifiers, numbers and dates weigh more than this.
_EXACT_KIND = 0.65
#: Factor for a term that a chosen line already contains.
_COVERED_FACTOR = 0.7
_RECURRING, _SHARED = 0.1, 0.4
#: A message opens with its subject. The clauses of a long one count 1 + 8, 1 + 8/2, 1 + 8/3 ... times; with fewer
#: clauses than the second number, all count nearer to 1 + 8.
_OPENING, _LONG = 8.0, 8
#: If a conversation is all work, an agent's line counts 1 + 16 times if it has a term of at least this weight.
_REPORTED, _EXACT = 16.0, 0.9
_RULE, _COURTESY, _KEPT, _OLDEST = 1.6, 0.4, 1.6, 0.7
#: Minimum factor for agents that say much more than the user.
_MIN_TALK = 0.1
_WORDS = compile_later(r"\w+")
_POLITE = compile_later(
    r"\b(?:let me know|feel free|(?:i am|i['’]m) here|happy to (?:help|assist)|welcome|have a (?:great|nice|good)"
    r"|anything else|(?:can|may|could) i (?:help|assist)|i can (?:help|assist)|thank you|thanks|sorry|i understand)\b"
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Line(ValueObject):
    statement: Statement
    #: Its terms with their values in this conversation.
    terms: Sequence[tuple[str, float]]
    #: Product of all weights on its gain.
    factor: float
    cost: int

    def compute_gain(self, covered: Set[str]) -> float:
        """Return the gain of the line if chosen lines contain the terms *covered*."""
        return sum([worth * _COVERED_FACTOR if term in covered else worth for term, worth in self.terms])

    @property
    def talk(self) -> int:
        """Its cost if somebody said it, else 0."""
        return self.cost if self.statement.of_user or self.statement.spoken else 0


def breathe(items: Iterable[Item]) -> Iterator[Item]:
    """Yield *items*, and let other threads run between them.

    Pure Python code holds the GIL: a chat loop in another thread would wait a whole switch interval (5 ms) after each
    write. ``sleep(0)`` is too short for the other thread to wake up.
    """
    last = time.perf_counter()
    for item in items:
        if time.perf_counter() - last > _HOLD:
            time.sleep(_BREATH)
            last = time.perf_counter()
        yield item


def weigh(all_of_them: Sequence[Statement], count: TokenCounter, *, short: bool) -> list[Line]:
    """Return the current statements as lines of a *short* or long summary, weighed against the whole conversation."""
    said_in = {text: read_content(text) for text in breathe(dict.fromkeys(one.text for one in all_of_them))}
    strength = cache(rate_instruction)
    statements = _drop_repeated_wishes(_drop_superseded(_drop_repeated(all_of_them)), said_in, strength)
    contents = [said_in[statement.text] for statement in statements]
    others = [said for statement, said in zip(statements, contents, strict=True) if not statement.of_user]
    shapes, forms = Counter(said.shape for said in others), Counter(said.form for said in others)
    last = max((statement.round for statement in statements), default=0) or 1
    of_user = sum(len(one.text) for one in statements if one.of_user)
    spoken = sum(len(one.text) for one in statements if one.spoken)
    # Agents' words count less, the more they say beyond the user's.
    talk = min(1.0, max(_MIN_TALK, of_user / spoken)) if of_user and spoken else 1.0
    # The share of work, not talk: of results among results and the user's messages.
    messages = {one.source for one in statements if one.of_user}
    results = {one.source for one in statements if one.section is Section.FACTS and not one.spoken}
    worked = len(results) / (len(results) + len(messages)) if results else 0.0
    worths = _weigh_terms(all_of_them, [said_in[statement.text] for statement in all_of_them], 1 + min(1, 3 * worked))
    sizes = Counter(statement.source for statement in statements if statement.in_message)
    lines = []
    for statement, said in breathe(zip(statements, contents, strict=True)):
        cost = count(f"{statement.text}\n" if short else f"- {statement.text}\n")
        weight = statement.weight
        if statement.section is Section.INSTRUCTIONS:
            weight *= _RULE * max(0.6, strength(statement.text))
        elif statement.of_user:
            of_rest = min(1, (sizes[statement.source] - 1) / _LONG)
            weight *= 1 if statement.code else 1 + _OPENING * (1 - worked) / (1 + statement.index * of_rest)
        else:
            weight *= _KEPT if statement.round == 0 else 1
            # Each statement of a foreign summary counts like an opening.
            weight *= 1 + _OPENING if statement.section is Section.EARLIER else 1
            weight *= _OLDEST + (1 - _OLDEST) * statement.round / last
            if statement.spoken:
                weight *= 2 * talk * (_COURTESY if _POLITE.search(statement.text.lower()) else 1)
                weight *= 1 + _REPORTED * worked if max(said.terms.values(), default=0) >= _EXACT else 1
            weight /= shapes[said.shape] ** 0.5 * (1 if statement.spoken else forms[said.form] ** 0.25)
        terms = [(term, kind * worths[term]) for term, kind in said.terms.items()]
        lines.append(Line(statement, terms, weight, cost))
    return lines


def _drop_repeated(statements: Iterable[Statement]) -> list[Statement]:
    """Return *statements* without repetitions: each at its last place, as an instruction if it ever was one."""
    latest: dict[tuple[bool, str], Statement] = {}
    for statement in breathe(statements):
        key = (statement.of_user, " ".join(_WORDS.findall(statement.text.casefold())) or statement.text)
        earlier = latest.pop(key, None)
        ruled = earlier is not None and earlier.section is Section.INSTRUCTIONS
        latest[key] = copy_with(statement, section=Section.INSTRUCTIONS) if ruled else statement
    return list(latest.values())


def _drop_superseded(statements: Sequence[Statement]) -> list[Statement]:
    """Return *statements* without superseded values; the replacement of an instruction is an instruction."""
    known: defaultdict[tuple[bool, frozenset[str]], list[tuple[int, Assignment]]] = defaultdict(list)
    current: dict[int, Statement] = dict(enumerate(statements))
    for place in breathe(range(len(statements) - 1, -1, -1)):
        statement = statements[place]
        said = find_assignment(statement.text)
        if said is None:
            continue
        newer = known[statement.of_user, said.subject]
        replacement = None
        for by, other in newer:
            same = 3 * len(other.words & said.words) >= 2 * len(other.words | said.words)
            if statements[by].source != statement.source and (other.change or same):
                replacement = by
                break
        if replacement is not None:
            del current[place]
            if statement.section is Section.INSTRUCTIONS:
                current[replacement] = copy_with(statements[replacement], section=Section.INSTRUCTIONS)
        elif len(newer) < _MAX_NEWER:
            newer.append((place, said))
    return list(current.values())


def _drop_repeated_wishes(
    statements: Sequence[Statement], contents: Mapping[str, Content], strength: Callable[[str], float]
) -> list[Statement]:
    """Return *statements* without wishes that another instruction repeats.

    Of two similar wishes the newer stays, or the one that says more. A wish stays if it has an identifier or number
    that the other lacks.
    """
    rules = [place for place, one in enumerate(statements) if one.section is Section.INSTRUCTIONS and one.of_user]
    rules = rules[-_MAX_RULES:]
    terms = {place: contents[statements[place].text].terms for place in rules}
    gone: set[int] = set()
    for place in rules:
        if strength(statements[place].text) == 1:
            continue
        for other in rules:
            says_so = other != place and other not in gone and _covers(terms[other], terms[place])
            if says_so and (other > place or not _covers(terms[place], terms[other])):
                gone.add(place)
                break
    return [one for place, one in enumerate(statements) if place not in gone]


def _covers(terms: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return whether *terms* contain two thirds of *others*, including every identifier and number."""
    if any(kind > _EXACT_KIND and term not in terms for term, kind in others.items()):
        return False
    return 3 * sum(term in terms for term in others) >= 2 * len(others)


def _weigh_terms(statements: Sequence[Statement], contents: Sequence[Content], power: float) -> dict[str, float]:
    """Return the value of each term: its rarity among posts and, for identifiers and numbers, its recurrence."""
    frequency: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    speakers: defaultdict[str, set[str]] = defaultdict(set)
    in_post: dict[str, int] = {}
    in_round: dict[str, int] = {}
    for statement, said in breathe(zip(statements, contents, strict=True)):
        speaker = "User" if statement.of_user else "agent" if statement.spoken else statement.section
        for term, kind in said.terms.items():
            if in_post.get(term) != statement.source:
                in_post[term] = statement.source
                frequency[term] += 1
            if kind > _EXACT_KIND:
                speakers[term].add(speaker)
                if in_round.get(term) != statement.round:
                    in_round[term] = statement.round
                    rounds[term] += 1
    total = len({statement.source for statement in statements}) + 1
    worths = {term: (math.log(total / times) / math.log(total)) ** power for term, times in frequency.items()}
    for term, times in rounds.items():
        worths[term] *= 1 + _RECURRING * math.log2(times) + _SHARED * (len(speakers[term]) - 1)
    return worths
