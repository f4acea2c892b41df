"""Print an agent's calls as lines ``call(arguments) → outcome``, and parse such lines.

An outcome combines the informative parts of a result: its beginning, its errors, values that later calls use, its end;
of JSON the new fields. Its words all come from the result, except the marks: ``failed:``, ``last:`` (only the last of
several similar calls had this outcome), ``×3``, ``…`` (omission), ``(no result)`` and ``(empty)``. Parsing a stored
line restores its action.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from memory.messages import split_results
from memory.patterns import compile_later
from memory.rounds import USER, Round, ToolCall, cached_property, copy_with
from memory.values import ValueObject

from ..tokens import TokenCounter
from .content import find_assignment
from .cues import load_pattern
from .results import (
    EMPTY,
    MORE,
    OPEN,
    SLACK,
    clip,
    find_files,
    find_identifiers,
    get_words,
    is_identifier,
    read_json,
    read_outcome,
    shorten_words,
)

ARROW = " → "
_BETWEEN = " · "
#: Separates files and ids.
_NEXT = "; "
#: Marks before an outcome by (did it fail, did all calls of the line have it).
_MARKS = {(True, True): "failed: ", (True, False): "last failed: ", (False, False): "last: ", (False, True): ""}

#: Bytes of a line's arguments.
_ARGUMENTS = 96
#: Bytes of arguments, an outcome and its beginning if room is short; more for failures, which must not be repeated.
_BRIEF_ARGUMENTS, _BRIEF_OUTCOME, _BRIEF_OPENING = 54, 56, 28
_BRIEF_FAILURE, _BRIEF_SIGN = 124, 68
#: Maximum arguments to print for a group of similar calls, and bytes of each.
_MAX_ARGUMENTS, _ARGUMENT = 6, 32
#: Number of newest calls that may have lines of their own, and of those that are shortened last.
_MAX_LINES, _RECENT = 300, 3
#: Maximum actions to try on lines of their own after errors and changes.
_MAX_TRIES = 60
#: Failures count most, unless the same call also succeeded; then changes.
_FAILED_WEIGHT, _CHANGE_WEIGHT = 5.0, 3.0

_NAME_WORD = compile_later(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_A-Za-z]+")
_COMMAND = compile_later(r"sudo |cd \S{1,200} && ", re.IGNORECASE)
_WRITES = compile_later(r"(?<![-=<>&\d])>{1,2} ?[\w./~$-]")
_DIGITS = compile_later(r"\d+")


@dataclass(frozen=True, eq=False, repr=False)
class Action(ValueObject):
    """A call and its outcome, or several similar calls."""

    name: str
    #: The shortened arguments; for several similar calls, the first and the newest.
    arguments: tuple[str, ...]
    #: Empty: no result yet.
    outcome: str
    failed: bool = False
    count: int = 1
    #: True if all calls had this outcome; else only the last had it.
    shared: bool = True

    @cached_property
    def line(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        outcome = _MARKS[self.failed, self.shared] + (self.outcome or OPEN)
        return f"{self.name}({_BETWEEN.join(self.arguments)}){times}{ARROW}{outcome}"

    @cached_property
    def matters(self) -> bool:
        """True if it failed, or if its tool or command changes something, judged by the name."""
        return self.failed or _is_change(self.name, self.arguments[-1] if self.arguments else "")


def parse_action(line: str) -> Action | None:
    """Return the action that *line* shows, or None if *line* shows none."""
    head, arrow, outcome = line.partition(ARROW)
    call, sign, times = head.rpartition(" ×")
    if not (sign and times.isdecimal() and call.endswith(")")):
        call, times = head, "1"
    name, bracket, inner = call.partition("(")
    if not (arrow and bracket and name and inner.endswith(")")) or " " in name:
        return None
    failed, shared = next(key for key, mark in _MARKS.items() if outcome.startswith(mark))
    outcome = outcome.removeprefix(_MARKS[failed, shared])
    arguments = tuple(inner[:-1].split(_BETWEEN))
    return Action(name, arguments, "" if outcome == OPEN else outcome, failed, max(1, int(times[:9])), shared)


def find_actions(rounds: Sequence[Round]) -> Iterator[Action]:
    """Yield the calls of *rounds* with their outcomes, oldest first."""
    calls, _ = _pair_results(rounds)
    used = [find_identifiers(call.arguments) for call, _ in calls]
    last_use = {value: place for place, values in enumerate(used) for value in values}
    seen: set[str] = set()
    later = set(last_use)
    for place, (call, result) in enumerate(calls):
        later.difference_update([value for value in used[place] if last_use[value] == place])
        name = clip(shorten_words(call.name[:120]).replace(" ", "_").replace("(", "["), 48) or "call"
        outcome, failed = ("", False) if result is None else read_outcome(result, call.arguments, seen, later)
        yield Action(name, (_shorten_arguments(call.arguments),), outcome, failed)
        seen |= used[place]


def answer_open(stored: Sequence[Action], rounds: Sequence[Round]) -> list[Action]:
    """Return the *stored* actions, with the open call's outcome filled in from the result at the start of *rounds*.

    This happens when a long round arrives in pieces. Unless exactly one call is open and one result is left over, the
    actions stay unchanged: the match would be a guess.
    """
    waiting = [place for place, action in enumerate(stored) if not action.outcome and action.count == 1]
    _, results = _pair_results(rounds)
    actions = list(stored)
    if len(waiting) == len(results) == 1:
        action = actions[waiting[0]]
        outcome, failed = read_outcome(results[0], " ".join(action.arguments))
        actions[waiting[0]] = copy_with(action, outcome=outcome, failed=failed)
    return actions


def _pair_results(rounds: Sequence[Round]) -> tuple[list[tuple[ToolCall, str | None]], list[str]]:
    """Return the calls of *rounds* with their results' texts, and earlier results that answer none of these calls.

    A result belongs to the newest call with its id. If calls of one post share an id, results match them in order.
    Pieces of one post are one result.
    """
    calls: list[tuple[ToolCall, str | None]] = []
    waiting: dict[str, deque[int]] = {}
    others: dict[str, str] = {}
    answered: dict[str, int] = {}
    posts = (post for round_ in rounds for post in round_.post_list)
    for post in chain.from_iterable(map(split_results, posts)):
        if post.tool_call_id is not None:
            places = waiting.get(post.tool_call_id)
            if places and post.id not in answered:
                answered[post.id] = places.popleft()
            if (place := answered.get(post.id)) is not None:
                calls[place] = (calls[place][0], (calls[place][1] or "") + post.message)
            elif not calls:
                others[post.id] = others.get(post.id, "") + post.message
        waiting.update((call.id, deque()) for call in post.tool_calls)
        for call in post.tool_calls:
            waiting[call.id].append(len(calls))
            calls.append((call, None))
    return calls, list(others.values())


def _shorten_arguments(arguments: str) -> str:
    fields = read_json(arguments)
    if fields is None:
        return clip(shorten_words(arguments[: 4 * _ARGUMENTS]), _ARGUMENTS)
    if len(fields) == 1:
        return clip(shorten_words(fields[0][1][: 8 * _ARGUMENTS]), _ARGUMENTS)
    room = max(24, _ARGUMENTS // max(1, min(4, len(fields))))
    parts: list[str] = []
    for key, value in fields[:12]:
        text = clip(shorten_words(value[: 8 * room]), room)
        # If the first value is an id or a file, it needs no field name.
        parts.append(text if not parts and is_identifier(value) else f"{key}: {text}")
    return clip(", ".join(parts), _ARGUMENTS)


def _is_change(name: str, arguments: str) -> bool:
    words = name_words(name)
    for word in words:
        if word in get_words("looks") or word in get_words("changes"):
            return word in get_words("changes")
    if words and words[0] not in get_words("shells"):
        return False
    prefix = _COMMAND.match(arguments)
    changes = load_pattern("tools.yaml", "change in a command")
    if changes.match(arguments) or (prefix and changes.match(arguments, prefix.end())):
        return True
    return _WRITES.search(arguments) is not None


def name_words(name: str) -> list[str]:
    """Return the words of a name such as ``open_file`` or ``openFile``, in lower case."""
    return [word.casefold() for word in _NAME_WORD.findall(name)]


def merge_actions(actions: Iterable[Action]) -> list[Action]:
    """Return *actions* with repeated calls merged at the place of the last; failures and successes stay apart."""
    return _merge(_merge(actions, lambda one: (one.name, one.arguments, one.failed)), _record_of)


def _record_of(action: Action) -> Hashable:
    """Return a key for the record that *action* looked up, or None: newer values of a record replace older ones."""
    said = None if action.matters or ", " not in action.outcome else find_assignment(action.outcome)
    return said and (action.name, said.subject)


def _merge(actions: Iterable[Action], key: Callable[[Action], Hashable]) -> list[Action]:
    """Return *actions* merged by *key* at the place of the last; an action with key None stays separate."""
    merged: dict[Hashable, Action] = {}
    for place, action in enumerate(actions):
        group = key(action)
        group = place if group is None else group
        earlier = merged.pop(group, None)
        merged[group] = action if earlier is None else _merge_two(earlier, action)
    return list(merged.values())


def _merge_two(earlier: Action, action: Action) -> Action:
    shared = earlier.shared and action.shared and earlier.outcome == action.outcome
    arguments = action.arguments
    if earlier.arguments != arguments:
        first, *others = earlier.arguments
        # Shortened arguments of another group are only readable after that group's first argument.
        whole = [argument for argument in arguments if not argument.startswith(MORE)]
        added = [_without_common_beginning(argument, first) for argument in whole if argument != first]
        left_out = MORE in others or len(whole) < len(arguments)
        others = [*(other for other in others if other != MORE and other not in added), *added]
        left_out = left_out or len(others) >= _MAX_ARGUMENTS
        gap = [MORE] if left_out else []
        arguments = (clip(first, _BRIEF_ARGUMENTS), *gap, *others[1 - _MAX_ARGUMENTS :])
    return copy_with(action, arguments=arguments, count=earlier.count + action.count, shared=shared)


def _without_common_beginning(argument: str, first: str) -> str:
    same = next((place for place, (one, other) in enumerate(zip(first, argument, strict=False)) if one != other), 0)
    begin = max(argument.rfind(" ", 0, same), argument.rfind("/", 0, same)) + 1
    return clip(f"{MORE}{argument[begin:]}" if begin > 6 else argument, _ARGUMENT)


def _read_tool(action: Action) -> tuple[str, str, bool]:
    """Return a key for the tool of *action*; for a shell it includes the program."""
    shell = not get_words("shells").isdisjoint(name_words(action.name)[:1])
    return action.name, action.arguments[0].partition(" ")[0] if shell else "", action.failed


def _shorten(action: Action) -> Action:
    """Return *action* shortened; a short one stays unchanged."""
    arguments = tuple(clip(argument, _BRIEF_ARGUMENTS) for argument in action.arguments)
    limit, first = (_BRIEF_FAILURE, _BRIEF_SIGN) if action.failed else (_BRIEF_OUTCOME, _BRIEF_OPENING)
    outcome = action.outcome
    if len(outcome.encode()) > limit + SLACK:
        opening, between, rest = outcome.partition(f" {MORE} ")
        if between:
            opening = clip(opening, first).removesuffix(MORE).rstrip()
            outcome = f"{opening}{between}{clip(rest, limit - len(opening.encode()) - 5)}"
        else:
            outcome = clip(outcome, limit)
    return copy_with(action, arguments=arguments, outcome=outcome)


def choose_lines(actions: Sequence[Action], budget: int, count: TokenCounter) -> list[str]:
    """Return lines of *actions* within *budget* tokens: errors and changes, then the rest, each part in order."""
    chosen = merge_actions(actions)
    chosen = [*_merge(chosen[:-_MAX_LINES], _read_tool), *chosen[-_MAX_LINES:]]
    if _count_cost(chosen, count) > budget:
        chosen = [*map(_shorten, chosen[:-_RECENT]), *chosen[-_RECENT:]]
    if _count_cost(chosen, count) > budget:
        # Read-only calls of one tool with the same outcome.
        chosen = _merge(
            map(_shorten, chosen), lambda one: None if one.matters or not one.shared else (_read_tool(one), one.outcome)
        )
    if _count_cost(chosen, count) > budget:
        chosen = _choose_best(chosen, budget, count)
    return [action.line for action in sorted(chosen, key=lambda action: not action.matters)]


def _count_cost(actions: Iterable[Action], count: TokenCounter) -> int:
    return sum(count(f"- {action.line}\n") for action in actions)


def _choose_best(actions: Sequence[Action], budget: int, count: TokenCounter) -> list[Action]:
    """Return *actions* within *budget* tokens: the best on lines of their own, the rest as one line per tool."""
    succeeded = {(action.name, action.arguments) for action in actions if not action.failed}
    # Outcomes of a tool that differ only in numbers: each further one tells less.
    forms = [one if one.matters else (one.name, _DIGITS.sub("0", one.outcome)) for one in actions]
    frequency: Counter[Hashable] = Counter(forms)
    worths = []
    for place, action in enumerate(actions):
        resolved = not action.failed or (action.name, action.arguments) in succeeded
        weight = 1.0 if not action.matters else _CHANGE_WEIGHT if resolved else _FAILED_WEIGHT
        weight *= (0.5 if action.outcome in {"", EMPTY} else 1.0) * math.sqrt(min(action.count, _MAX_ARGUMENTS))
        worths.append(weight * (0.5 + 0.5 * (place + 1) / len(actions)) / math.sqrt(frequency[forms[place]]))
    costs = [count(f"- {action.line}\n") for action in actions]
    order = sorted(range(len(actions)), key=lambda index: -worths[index] / (costs[index] + 8))
    left = budget * 3 // 4
    alone = set()
    for place in order:
        if costs[place] <= left and actions[place].matters:
            alone.add(place)
            left -= costs[place]
    lines = _add_groups(actions, alone, worths, budget, count)
    for place in order[:_MAX_TRIES]:
        if place not in alone and _count_cost(lines, count) + 12 < budget:
            more = _add_groups(actions, alone | {place}, worths, budget, count)
            if _count_cost(more, count) <= budget and sum(one.count for one in more) >= sum(one.count for one in lines):
                lines, alone = more, alone | {place}
    return lines


def _add_groups(
    actions: Sequence[Action], alone: set[int], worths: Sequence[float], budget: int, count: TokenCounter
) -> list[Action]:
    """Return the actions *alone* and, within *budget*, one line for the other actions of each tool."""
    chosen = {place: actions[place] for place in alone}
    left = budget - _count_cost(chosen.values(), count)
    groups: dict[Hashable, list[int]] = {}
    for place, action in enumerate(actions):
        if place not in alone:
            groups.setdefault(_read_tool(action), []).append(place)
    for places in sorted(groups.values(), key=lambda places: -sum(worths[place] for place in places)):
        (group,) = _merge([actions[place] for place in places], lambda _: ())
        cost = count(f"- {group.line}\n")
        if cost <= left:
            chosen[places[-1]] = group
            left -= cost
    return [chosen[place] for place in sorted(chosen)]


def choose_files(
    actions: Iterable[Action], stored: Iterable[str], given: Iterable[str], shown: str, budget: int, count: TokenCounter
) -> list[str]:
    """Return the files and ids in play within *budget* tokens, as items ``tool, tool: file; file``.

    They come from the arguments of *actions*, from earlier items, *stored*, and from the user's texts, *given*. Values
    in the text *shown* are left out.
    """
    users: dict[str, dict[str, None]] = {}
    uses: Counter[str] = Counter()

    def add(value: str, user: str) -> None:
        users.setdefault(value, {})[user] = None
        uses[value] += 1

    for item in stored:
        names, _, values = item.partition(": ")
        for value in values.split(_NEXT):
            for name in names.split(", "):
                add(value, name)
    for text in given:
        for value in find_files(text, short=_BRIEF_ARGUMENTS):
            add(value, USER)
    for action in actions:
        for value in find_files(" ".join(action.arguments), short=_BRIEF_ARGUMENTS):
            add(value, action.name)
    costs = {value: count(_NEXT + value) for value in users if value and value not in shown}
    places = {value: place / len(users) for place, value in enumerate(users)}
    grouped: dict[str, list[str]] = {}
    worths = {value: uses[value] + places[value] + _is_file(value) for value in users}
    for value in sorted(costs, key=lambda value: -worths[value] / (costs[value] + 4)):
        names = ", ".join(users[value])
        cost = costs[value] + (0 if names in grouped else count(f"- {names}: \n"))
        if cost <= budget:
            budget -= cost
            grouped.setdefault(names, []).append(value)
    return [f"{names}: {_NEXT.join(values)}" for names, values in grouped.items()]


def _is_file(value: str) -> bool:
    """Return whether *value* ends like a file's name."""
    stem, dot, ending = value.rpartition(".")
    return bool(stem and dot) and 0 < len(ending) < 6 and ending[0].isalpha() and ending.isalnum()
