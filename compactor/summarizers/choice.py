"""The choice of lines for ``extractive``, which says how it is made."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from memory.messages import repeats_query
from memory.patterns import compile_later

from ..prompt.shorten import strip_round
from ..tokens import TokenCounter
from .actions import ARROW, Action, answer_open, choose_files, choose_lines, find_actions, parse_action
from .answers import is_greeting, is_reply
from .base import Summary, SummaryRequest
from .content import CJK, read_content
from .cues import is_prohibition
from .sentences import Section
from .statements import (
    END,
    GAP,
    NOTHING,
    USER_SAYS,
    Statement,
    as_facts,
    from_rounds,
    from_summary,
    without_old_plans,
    write_bare,
)
from .weights import Line, breathe, weigh

#: Minimum tokens for a summary of few rounds: half of them would be scraps. Capped at what the rounds take.
_MIN_TOKENS = 64
#: Minimum tokens of a message besides its text.
_MESSAGE = 8
#: Maximum shares of a summary for actions, and for files and ids in play, if an agent works alone.
_DONE_SHARE, _FILES_SHARE = 0.7, 0.08
#: Weight of a user's message relative to a call.
_MESSAGE_WEIGHT = 1.5
#: Extra cost of a line: without it, scraps of two words would win. A clause next to a chosen one has no extra cost.
_COST = 6
#: Minimum gain of a line; below it, the line is left out even if there is room.
_MIN_GAIN = 0.2

#: With at most this many user messages, the first and newest get no heading of their own; nor with a smaller target:
#: a short summary, where headings and bullets would take the room of messages.
_FEW_MESSAGES, _SHORT_TARGET = 5, 400
_ENDING = f"\n\n{END}"
#: Short replacement for a heading that does not fit.
_SHORT = "Said: "

_TOKEN = compile_later(rf"[{CJK}]|[^\s{CJK}]+|\s+")
_LABEL = compile_later(r'[^":]{1,40}: "(?=.)|[^→]{1,120} → (?=.)')
#: No space follows these.
_WIDE_STOPS = frozenset("，；、。！？")


def choose(request: SummaryRequest, target: int, count: TokenCounter) -> Summary:
    """Return a summary of *request* within *target* tokens, by *count*."""
    previous = request.previous.summary if request.previous else ""
    rounds = list(map(strip_round, breathe(request.rounds)))
    new = list(breathe(from_rounds(rounds, queries=request.kind == "rounds")))
    earlier = without_old_plans(from_summary(previous), new)
    called = list(breathe(find_actions(rounds)))
    if earlier and not (new or called) and count(previous) <= target:
        return Summary(previous, extracted=True)
    budget = min(target, count(previous) + _count_allowed_growth(request, count))
    files = [one.text for one in (*earlier, *new) if one.section is Section.FILES]
    earlier, stored = _split_actions(earlier)
    new, reduced = _split_actions(new)  # reductions describe actions too
    actions = [*answer_open(list(stored.values()), rounds), *reduced.values(), *called]
    calls = sum(action.count for action in actions)
    messages = {one.source for one in (*earlier, *new) if one.in_message}
    share = budget * (calls / (calls + _MESSAGE_WEIGHT * len(messages))) if calls else 0.0
    # A reduction's line is short already, so it gets extra room.
    own_room = sum(count(one.text) + 2 for one in reduced)
    acts = choose_lines(actions, int(min(share * _DONE_SHARE + own_room, budget * _DONE_SHARE)), count)
    given = [one.text for one in new if one.of_user] if actions else []
    shown = "\n".join(acts)
    in_play = choose_files(actions, files, given, shown, int(share * _FILES_SHARE), count)
    new += chain.from_iterable(as_facts(one) for one in reduced if one.text.partition(ARROW)[0] not in shown)
    short = target < _SHORT_TARGET
    lines = weigh([*earlier, *new], count, short=short)
    done = {section: items for section, items in ((Section.DONE, acts), (Section.FILES, in_play)) if items}
    if not (lines or done):
        return Summary(_cut(NOTHING, target, count), extracted=True)
    return Summary(_Draft(lines, done, count, short=short).fit(budget), extracted=True)


def _count_allowed_growth(request: SummaryRequest, count: TokenCounter) -> int:
    """Return the allowed growth of a summary in tokens: half of the new rounds, to save enough."""
    tokens = sum(count(text) + _MESSAGE for text in _list_texts(request) if text)
    return max(tokens // 2, min(_MIN_TOKENS, tokens))


def _split_actions(statements: Iterable[Statement]) -> tuple[list[Statement], dict[Statement, Action]]:
    """Return *statements* without actions and files in play, and the action of each removed statement."""
    rest: list[Statement] = []
    actions: dict[Statement, Action] = {}
    for statement in statements:
        if statement.section is Section.DONE and (action := parse_action(statement.text)):
            actions[statement] = action
        elif statement.section is not Section.FILES:
            rest.append(statement)
    return rest, actions


def _list_texts(request: SummaryRequest) -> Iterator[str]:
    for round_ in request.rounds:
        if request.kind == "rounds":
            yield round_.user_query
        for place, post in enumerate(round_.post_list):
            if not (request.kind == "rounds" and place == 0 and repeats_query(post, round_)):
                yield post.message
            yield from (attachment.content for attachment in post.attachment_list)
            yield from (f"{call.name} {call.arguments}" for call in post.tool_calls)


class _Draft:
    """A summary of *lines* beside those of actions and files, *done*; and the lines chosen so far, with their cost."""

    def __init__(
        self, lines: Sequence[Line], done: Mapping[Section, Sequence[str]], count: TokenCounter, *, short: bool
    ) -> None:
        self._lines, self._done, self._count, self._short = lines, done, count, short
        #: Costs of the headings of unused sections.
        self._headings = {section: count(f"{section}\n\n") for section in Section}
        if short:
            self._headings[Section.SAID] = self._headings[Section.SAID_SHORT]
        #: Terms in chosen lines; and these with those of actions, which do not cover the user's words: they say
        #: different things about a name.
        self._covered: set[str] = set()
        self._covered_or_done = set(read_content("\n".join(chain.from_iterable(done.values()))).terms)
        self._spent = self._spent_on_talk = 0
        messages = ((place, line.statement) for place, line in enumerate(lines) if line.statement.in_message)
        self._clauses = {(one.source, one.index): place for place, one in messages}
        self._joined: set[int] = set()  # neighbours of chosen clauses
        self._chosen: dict[int, None] = {}

    def fit(self, budget: int) -> str:
        """Return the summary of *done* and the best lines, at most *budget* tokens counted as one text."""
        left = budget - self._count(self._render(())) if self._done else budget
        for_rules = budget * 2 // 5 if self._done else budget // 3
        rules = [place for place, line in enumerate(self._lines) if line.statement.is_rule]
        # The compactor puts lost prohibitions back, within as much room, and then asks for a shorter summary.
        prohibitions = (place for place in rules if is_prohibition(self._lines[place].statement.text))
        self._choose(prohibitions, min(budget // 2, left), left)
        self._choose(rules, min(for_rules, left), left)
        # Limit talk first, so that results get a place; then give talk the room that results did not use.
        for for_talk in (left - self._reserve_for_results(left), left):
            self._choose(range(len(self._lines)), left, for_talk)
        chosen = list(self._chosen)
        if not (chosen or self._done):
            # No line has enough gain. Take the best one: an empty summary would be rejected.
            chosen = sorted(range(len(self._lines)), key=self._rank)
        text = self._fill(chosen, budget)
        ending = self._count(_ENDING)
        if budget > 2 * ending and is_reply(text):
            # A quoted offer of help as one of few last lines would pass for the summarizer's own reply.
            return self._fill(chosen, budget - ending) + _ENDING
        return text

    def _reserve_for_results(self, left: int) -> int:
        """Return how many of *left* tokens talk must leave to results: a quarter, if each new message has one.

        With fewer new results it is less, but never less than the results of the earlier summary take: they would be
        lost for good to a few rounds of chat.
        """
        results = [line for line in self._lines if not line.talk]
        new = len({line.statement.source for line in results if line.statement.round})
        messages = {line.statement.source for line in self._lines if line.statement.of_user and line.statement.round}
        earlier = sum(line.cost for line in results if not line.statement.round)
        return min(left // 4, max(left * new // (4 * max(1, len(messages))), earlier))

    def _choose(self, places: Iterable[int], budget: int, for_talk: int) -> None:
        """Choose from *places* while all lines stay within *budget*, and talk within *for_talk*."""
        left = set(places).difference(self._chosen)
        # Bounded, but far more than fit: otherwise a long history of similar lines is re-weighed after each choice.
        heap = heapq.nsmallest(1000 + budget, [(-self._rate(place), -place) for place in breathe(left)])
        while heap:
            worth, place = heapq.heappop(heap)
            place = -place
            line = self._lines[place]
            cost = line.cost + self._headings.get(line.statement.section, 0)
            if place in self._chosen or self._spent + cost > budget:
                continue
            if line.talk and self._spent_on_talk + line.talk > for_talk:
                continue
            covered = self._get_covered(place)
            gain = line.compute_gain(covered)
            if gain < _MIN_GAIN:
                continue
            if not line.statement.of_user and covered.issuperset(term for term, _ in line.terms):
                continue  # only the user's lines may say something new in known words
            present = -self._rate(place, gain)
            if present > worth:
                # Lines chosen since then cover part of it; it may still be the best.
                heapq.heappush(heap, (present, -place))
                continue
            self._take(place, cost)
            beside = ((line.statement.source, line.statement.index + step) for step in (-1, 1))
            neighbours = {self._clauses[at] for at in beside if line.statement.in_message and at in self._clauses}
            for neighbour in neighbours & left - self._chosen.keys() - self._joined:
                self._joined.add(neighbour)
                heapq.heappush(heap, (-self._rate(neighbour), -neighbour))

    def _take(self, index: int, cost: int) -> None:
        line = self._lines[index]
        self._chosen[index] = None
        self._spent += cost
        self._spent_on_talk += line.talk
        self._headings.pop(line.statement.section, None)
        terms = [term for term, _ in line.terms]
        self._covered.update(terms)
        self._covered_or_done.update(terms)

    def _rate(self, index: int, gain: float | None = None) -> float:
        """Return the gain of a line per token. A clause next to a chosen one has no extra cost: context is there."""
        line = self._lines[index]
        gain = line.compute_gain(self._get_covered(index)) if gain is None else gain
        return line.factor * gain / (line.cost + (index not in self._joined) * _COST)

    def _get_covered(self, index: int) -> set[str]:
        return self._covered if self._lines[index].statement.of_user else self._covered_or_done

    def _rank(self, index: int) -> float:
        """Return a sort key, best first, for one line that must be kept."""
        return -self._lines[index].factor * self._lines[index].compute_gain(set())

    def _fill(self, chosen: Sequence[int], budget: int) -> str:
        """Return *done* and as many of *chosen*, best first, as fit into *budget* tokens.

        If nothing fits, returns the beginning of the best line.
        """

        def fits(number: int) -> bool:
            return self._count(self._render(chosen[:number])) <= budget

        number = len(chosen)
        if number and not fits(number):
            number = _find_largest(range(1, number), fits)
        if number or (self._done and fits(0)):
            return self._render(chosen[:number])
        if not self._lines:
            return _cut(next(iter(self._done.values()))[0], budget, self._count)
        return _clip(self._lines[min(range(len(self._lines)), key=self._rank)].statement, budget, self._count)

    def _render(self, places: Iterable[int]) -> str:
        sections: dict[Section, list[str]] = {section: [] for section in Section}
        statements = [self._lines[place].statement for place in sorted(places)]
        for section, item in _group_items(statements, short=self._short):
            sections[section].append(item)
        for section, items in self._done.items():
            sections[section] += items
        write = write_bare if sections[Section.SAID_SHORT] else "- {}".format
        return "\n\n".join("\n".join([section, *map(write, items)]) for section, items in sections.items() if items)


def _group_items(statements: Sequence[Statement], *, short: bool) -> Iterator[tuple[Section, str]]:
    """Yield (section, item) of a summary; the chosen clauses of a user's message form one item."""
    messages: dict[int, list[Statement]] = defaultdict(list)
    for statement in statements:
        if statement.in_message:
            messages[statement.source].append(statement)
    many = len(messages) > _FEW_MESSAGES and not short
    newest = max((statement.round for statement in statements), default=0)
    goal = next((source for source, of in messages.items() if of[0].section is Section.GOAL), None)
    if goal is None and many:
        openings = (
            source for source, of in messages.items() if of[0].index == 0 and not is_greeting(_join_message(of))
        )
        goal = next(openings, None)
    for source, of in messages.items():
        if source == goal:
            yield Section.GOAL, _join_message(of)
        elif many and of[0].round == newest:
            yield Section.NOW, USER_SAYS + _join_message(of)
        else:
            yield Section.SAID_SHORT if short else Section.SAID, _join_message(of)
    for statement in statements:
        if not statement.in_message:
            now = many and statement.spoken and newest and statement.round == newest
            yield Section.NOW if now else statement.section, statement.text


def _join_message(of: Sequence[Statement]) -> str:
    """Return the statements *of* one message in order, with marks at the gaps."""
    text, end = "", 0
    for statement in sorted(of, key=lambda one: one.index):
        adjoining = statement.index == end and not statement.code
        if statement.index and not adjoining:
            text += f" {GAP} " if text else f"{GAP} "
        elif text and text[-1] not in _WIDE_STOPS:
            text += " "
        text += f"`{statement.text}`" if statement.code else statement.text
        end = -1 if statement.code else statement.index + 1
    return text


def _clip(statement: Statement, budget: int, count: TokenCounter) -> str:
    """Return the beginning of *statement*; a speaker's name only with some words after it."""
    label = _LABEL.match(statement.text) if statement.section in {Section.FACTS, Section.DONE} else None
    said = statement.text[label.end() :] if label else statement.text
    heading = f"{statement.section}\n- "
    # The heading makes it a summary: without it, "hi" is a greeting and "Book it" an echo.
    for head in (heading + label[0] if label else heading, heading, "" if said.startswith(_SHORT) else _SHORT, ""):
        if text := _cut(said, budget, count, head):
            return text
    return ""


def _cut(text: str, budget: int, count: TokenCounter, head: str = "") -> str:
    """Return *head* and as much of *text* as fits, cut between words, or inside the first word if that is too long."""
    for ends in ([piece.end() for piece in _TOKEN.finditer(text)], range(1, len(text) + 1)):
        if end := _find_largest(ends, lambda end: count(head + text[:end].rstrip()) <= budget):
            return head + text[:end].rstrip()
    return ""


def _find_largest(numbers: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Return the largest of the ascending *numbers* that *fits*, where smaller ones fit too; 0 if none does."""
    place = bisect_left(numbers[::-1], True, key=fits)
    return numbers[-1 - place] if place < len(numbers) else 0
