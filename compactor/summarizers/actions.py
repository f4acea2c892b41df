"""Print an agent's calls as lines ``call(arguments) → outcome``, and parse such lines.

An outcome combines the informative parts of a result: its beginning, its errors, values that later calls use, its end;
of JSON the new fields. Its words all come from the result, except the marks: ``failed:``, ``last:`` (only the last of
several similar calls had this outcome), ``×3``, ``…`` (omission), ``(no result)`` and ``(empty)``. Parsing a stored
line restores its action.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from memory.messages import split_results
from memory.rounds import USER, Round, ToolCall, cached_property

from ..acceptance.content import assignment

Count = Callable[[str], int]
#: Returns whether a later call uses a value.
Taken = Callable[[str], bool]

ARROW = " → "
MORE = "…"
_FAILED, _LAST, _LAST_FAILED = "failed: ", "last: ", "last failed: "
#: Outcomes of a call without a result yet, and of an empty result.
_OPEN, _EMPTY = "(no result)", "(empty)"
#: Marks before an outcome: (did it fail, did all calls of the line have it).
_MARKS = {_FAILED: (True, True), _LAST_FAILED: (True, False), _LAST: (False, False)}
_BETWEEN = " · "

#: Bytes of a line's arguments and outcome: normally, and if room is short.
_ARGUMENTS, _OUTCOME = 96, 120
_BRIEF_ARGUMENTS, _BRIEF_OUTCOME, _BRIEF_OPENING = 54, 56, 28
#: The same for failures: longer, so that the agent does not repeat them.
_BRIEF_FAILURE, _BRIEF_SIGN = 124, 68
#: Number of newest calls to print without shortening.
_RECENT = 3
#: Bytes of a result's beginning: enough to show its kind.
_OPENING = 40
#: Maximum arguments to print for a group of similar calls, and bytes of each.
_NAMED, _NAMED_LENGTH = 6, 32
#: Characters to search for errors at a result's beginning and end, and characters of one line.
_LOOKED_AT, _LINE = 16_000, 400
#: Maximum characters of a word; a longer one is data, and its beginning is enough.
_WORD = 72


@dataclass(frozen=True)
class Action:
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
        mark = (_FAILED if self.shared else _LAST_FAILED) if self.failed else "" if self.shared else _LAST
        times = f" ×{self.count}" if self.count > 1 else ""
        return f"{self.name}({_BETWEEN.join(self.arguments)}){times}{ARROW}{mark}{self.outcome or _OPEN}"

    @cached_property
    def changes(self) -> bool:
        """True if the tool or command changes something, judged by its name."""
        return _is_change(self.name, self.arguments[-1] if self.arguments else "")


def parse_action(line: str) -> Action | None:
    """Return the action that *line* shows, or None if *line* shows none."""
    head, arrow, outcome = line.partition(ARROW)
    times = 1
    call, sign, number = head.rpartition(" ×")
    if sign and number.isdecimal() and call.endswith(")"):
        head, times = call, int(number[:9])
    name, bracket, inner = head.partition("(")
    if not (arrow and bracket and name and inner.endswith(")")) or " " in name:
        return None
    mark = next((mark for mark in _MARKS if outcome.startswith(mark)), "")
    failed, shared = _MARKS.get(mark, (False, True))
    outcome = outcome[len(mark) :]
    arguments = tuple(inner[:-1].split(_BETWEEN))
    return Action(name, arguments, "" if outcome == _OPEN else outcome, failed, max(1, times), shared)


# --- calls and their results ------------------------------------------------------------------------------------------


def find_actions(rounds: Sequence[Round]) -> Iterator[Action]:
    """Yield the calls of *rounds* with their outcomes, oldest first."""
    calls, _ = _paired(rounds)
    takes = [_identifiers(call.arguments) for call, _ in calls]
    last_taken = {value: place for place, values in enumerate(takes) for value in values}
    seen: set[str] = set()
    for place, (call, result) in enumerate(calls):

        def is_taken(value: str, place: int = place) -> bool:
            return last_taken.get(value, -1) > place

        yield _action(call, result, seen, is_taken)
        seen |= takes[place]


def answer_open(stored: Sequence[Action], rounds: Sequence[Round]) -> list[Action]:
    """Return the *stored* actions, with the open call's outcome filled in from the result at the start of *rounds*.

    This happens when a long round arrives in pieces. Unless exactly one call is open and one result is left over, the
    actions stay unchanged: the match would be a guess.
    """
    waiting = [place for place, action in enumerate(stored) if not action.outcome and action.count == 1]
    _, results = _paired(rounds)
    answered = list(stored)
    if len(waiting) == len(results) == 1:
        action = stored[waiting[0]]
        outcome, failed = _outcome(results[0], " ".join(action.arguments), set(), lambda _: False)
        answered[waiting[0]] = replace(action, outcome=outcome, failed=failed)
    return answered


def _paired(rounds: Sequence[Round]) -> tuple[list[tuple[ToolCall, str | None]], list[str]]:
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


def _action(call: ToolCall, result: str | None, seen: set[str], taken: Taken) -> Action:
    name = _clipped(_printable(call.name[:120]).replace(" ", "_").replace("(", "["), 48) or "call"
    arguments = _short_arguments(call.arguments)
    if result is None:
        return Action(name, (arguments,), "")
    outcome, failed = _outcome(result, call.arguments, seen, taken)
    return Action(name, (arguments,), outcome, failed)


# --- arguments --------------------------------------------------------------------------------------------------------


def _short_arguments(arguments: str) -> str:
    fields = _fields(arguments)
    if fields is None:
        return _clipped(_printable(arguments[: 4 * _ARGUMENTS]), _ARGUMENTS)
    if len(fields) == 1:
        return _clipped(_printable(fields[0][1][: 8 * _ARGUMENTS]), _ARGUMENTS)
    room = max(24, _ARGUMENTS // max(1, min(4, len(fields))))
    # If the first value is an id or a file, it needs no field name.
    keys = ["" if place == 0 and _is_identifier(value) else f"{key}: " for place, (key, value) in enumerate(fields)]
    values = [_clipped(_printable(value[: 8 * room]), room) for _, value in fields[:12]]
    parts = [f"{key}{value}" for key, value in zip(keys, values, strict=False)]
    return _clipped(", ".join(parts), _ARGUMENTS)


def _fields(text: str) -> list[tuple[str, str]] | None:
    """Return (field name, value) for the scalars of JSON, in order; None if *text* is no JSON."""
    if text[:1] not in {"{", "["} and text[:_LINE].lstrip()[:1] not in {"{", "["}:
        return None
    values: list[object] = []
    rest = text
    try:
        while rest and len(values) < _MAX_VALUES:
            value, end = _DECODER.raw_decode(rest := rest.lstrip())
            values.append(value)
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError):
        return None
    found: list[tuple[str, str]] = []
    waiting: list[tuple[str, object]] = [("", value) for value in reversed(values)]
    while waiting and len(found) < _MAX_FIELDS:
        key, item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend((str(name), inner) for name, inner in reversed(item.items()))
        elif isinstance(item, list):
            waiting.extend((key, inner) for inner in reversed(item[:_MAX_FIELDS]))
        elif item is not None and item != "":
            found.append((key, item if isinstance(item, str) else json.dumps(item)))
    return found


_MAX_FIELDS, _MAX_VALUES = 400, 100
_DECODER = json.JSONDecoder(strict=False)


def has_failed(result: str) -> bool:
    """Return whether a tool's *result* reports that its call failed."""
    return _outcome(result, "", set(), lambda _: False)[1]


# --- outcomes ---------------------------------------------------------------------------------------------------------


def _outcome(result: str, arguments: str, seen: set[str], taken: Taken) -> tuple[str, bool]:
    """Return a result's outcome in a few words, and True if it reports a failure."""
    fields = _fields(result)
    if fields is None:
        outcome, failed = _outcome_of_text(result, arguments, seen, taken)
    else:
        outcome, failed = _outcome_of_fields(fields, arguments, seen, taken)
    while mark := next((mark for mark in _MARKS if outcome.startswith(mark)), ""):
        outcome, failed = outcome[len(mark) :], failed or _MARKS[mark][0]
    return (_EMPTY if outcome in {"", _OPEN} else outcome), failed


def _outcome_of_fields(fields: list[tuple[str, str]], arguments: str, seen: set[str], taken: Taken) -> tuple[str, bool]:
    values: dict[str, list[str]] = {}
    ranks: dict[str, int] = {}
    failed = False
    # The result's record. A known id is known everywhere; any other value only for the same record and field.
    about = next((value for _, value in fields[:3] if _is_identifier(value)), "")
    for key, value in fields:
        failure = _is_failure_field(key, value)
        if len(value) > _LINE or "\n" in value:
            said, failure = _outcome_of_text(value, arguments, seen, taken)
            rank = 0 if failure else 3
        else:
            known = value if _is_identifier(value) else f"{about} {key} {value}"
            rank = 0 if failure else _rank(value, known, arguments, seen, taken)
            said, rank = _printable(value), 1 if rank and value == about and value not in arguments else rank
            seen.add(known)
        failed = failed or failure
        of = values.setdefault(key, []) if said else []
        if said and said not in of and len(of) < _VALUES and (rank < _KNOWN or not of):
            of.append(_clipped(said, _OUTCOME if rank == 0 else 48))
            ranks[key] = min(rank, ranks.get(key, _KNOWN))
    told = [key for key in values if ranks[key] < _KNOWN] or list(values)
    # A change usually appends its new field to the record.
    last = next((key for key in reversed(told) if ranks[key] > 1), "")
    order = sorted(told, key=lambda key: 1.5 if key == last and ranks[key] > 1 else ranks[key])
    outcome, left = "", _OUTCOME
    for key in order:
        text = ", ".join(values[key])
        text = f"{_clipped(_printable(key), 40)}: {text}" if key else text
        if not outcome or len(text) + 2 <= left:
            outcome = f"{outcome}, {text}" if outcome else text
            left -= len(text) + 2
    return _clipped(outcome, 2 * _OUTCOME), failed


#: Maximum values to print for one field name.
_VALUES = 6
_KNOWN = 4


def _rank(value: str, known: str, arguments: str, seen: set[str], taken: Taken) -> int:
    """Return a value's rank, most informative first: 1 later calls use it, 2 new id, 3 other new value, 4 known."""
    if known in seen or value in arguments:
        return _KNOWN
    return 1 if taken(value) else 2 if _is_identifier(value) else 3


def _outcome_of_text(result: str, arguments: str, seen: set[str], taken: Taken) -> tuple[str, bool]:
    lines = _telling_lines(result)
    if not lines:
        return "", False
    failures = _failures(lines, arguments)
    pieces = [] if lines[0] in failures else [_clipped(lines[0], _OPENING if len(lines) > 1 else _OUTCOME)]
    pieces += [_clipped(line, 96) for line in failures]
    found = _identifiers(result)
    wanted = {value for value in found if taken(value) and value not in seen and value not in arguments}
    seen |= found
    for line in lines[1:]:
        if not wanted or sum(map(len, pieces)) > _OUTCOME:
            break
        if here := [value for value in wanted if value in line]:
            wanted.difference_update(here)
            pieces.append(line if len(line) <= 60 else ", ".join(sorted(here, key=line.index)))
    ending = "" if failures else _ending(lines)
    if ending and ending not in seen:
        seen.add(ending)  # a tool's standard ending tells nothing
        pieces.append(_clipped(ending, 60))
    outcome = f" {MORE} ".join(dict.fromkeys(piece.removesuffix(MORE).rstrip() for piece in pieces))
    # Keep the mark: otherwise a cut path at the end would pass for a whole path.
    return outcome + MORE * pieces[-1].endswith(MORE), bool(failures)


def _telling_lines(result: str) -> list[str]:
    """Return the lines with letters or digits from a result's beginning and end."""
    if len(result) > 2 * _LOOKED_AT:
        result = f"{result[:_LOOKED_AT]}\n{result[-_LOOKED_AT:]}"
    lines = (_printable(line[:_LINE]) for line in result.splitlines())
    return [line for line in lines if any(map(str.isalnum, line))]


def _ending(lines: list[str]) -> str:
    """Return the last line that is neither markup nor quoted from a file; empty if there is none."""
    for line in reversed(lines[-4:]):
        if line is not lines[0] and line[0] not in "<{}[]()#|-=" and not _QUOTED.match(line) and line.count(" ") < 24:
            return line
    return ""


# --- signs of failure -------------------------------------------------------------------------------------------------

#: A file's line as tools print it: after its number, or after path and number.
_QUOTED = re.compile(r"\d{1,7} ?[:|│]|[^\s:]{1,200}[:-]\d{1,7}[:-]")
#: An error name followed by its description.
_CAUSE = re.compile(r"(?:error|exception)(?:\(s\)|s)? ?: ?\S", re.IGNORECASE)
#: Signs of a failure anywhere in a result.
_STRONG = re.compile(
    r"error(?:\(s\)|s)? ?[:!\]]|exception ?:|traceback \(|\b(?:fatal|panic) ?:|\bHTTP/[\d.]{1,3} [45]\d\d\b"
    r"|\b[1-9]\d{0,5} (?:failed|failures?|errors?)\b"
    r"|\b(?:exit(?:ed)?|return)[ _-]?(?:with )?(?:code|status|value)?:? ?\[?[1-9]\d{0,4}\b",
    re.IGNORECASE,
)
_SHOUTED = re.compile(r"\b(?:ERROR|FATAL|FAILED|FAILURE|CRITICAL)\b")
#: Signs of a failure in a message: a short result, or the first or the last two lines of any.
_MESSAGE = re.compile(
    r"\b(?:errors?|exceptions?|failed|failures?|fatal|panic|aborted|timed out|timeout|cannot|can't|couldn't|unable"
    r"|denied|refused|rejected|forbidden|unauthorized|no such|not found|segmentation fault|could not|does not exist"
    r"|doesn't exist)\b",
    re.IGNORECASE,
)
#: Signs of a failure only at the beginning of a result.
_WORDS = """
    invalid illegal missing unknown unexpected unsupported exceeded
    fehler fehlgeschlagen erreur échec introuvable fallo falló erro falhou errore fallito fout mislukt niepowodzenie
    błąd chyba fel misslyckades feil fejl virhe hata başarısız ошибка сбой помилка σφάλμα gagal kesalahan
    שגיאה خطأ فشل خطا ناموفق त्रुटि विफल
"""
_PHRASES = """
    not available|not enough|not allowed|not permitted|not supported|not a valid|too many|too large|no matching
    |nicht gefunden|konnte nicht|no se pudo|não encontrado|non trovato|не удалось|не найден|nie znaleziono|bulunamadı
    |错误|失败|錯誤|失敗|未找到|不存在|无法|エラー|見つかりません|오류|실패|ผิดพลาด|ล้มเหลว|lỗi|thất bại
"""
_ALONE = re.compile(
    rf"\b(?:{'|'.join(map(re.escape, _WORDS.split()))})\b"
    rf"|{'|'.join(re.escape(phrase.strip()) for phrase in _PHRASES.split('|'))}",
    re.IGNORECASE,
)
_SAYS_NONE = re.compile(
    r"\b(?:no|0|zero|without(?: any)?) (?:\w{1,20} )?(?:errors?|failures?|failed|exceptions?)\b", re.IGNORECASE
)
#: Characters before a file's line.
_NUMBERING = "0123456789 :|│→-+>"
_LETTERS = re.compile(r"\w+")
_CODE = re.compile(
    r"(?:except|raise|throw|catch|return|def|class|if|for|while|print|import|from|log|logger|assert)\b|[}{#]|//|/\*|\* "
)


def _failures(lines: list[str], arguments: str) -> list[str]:
    """Return the first line that reports the failure and the line with the best reason: none, one or two lines."""
    asked = set(_LETTERS.findall(arguments[: 2 * _LOOKED_AT].casefold()))
    found: dict[str, int] = {}
    for place, line in enumerate(lines):
        if _CODE.match(line.lstrip(_NUMBERING)) or line[-1] in "{;," or _SAYS_NONE.search(line):
            continue  # most likely code that handles errors
        if _QUOTED.match(line):
            sign = None if line[0].isdigit() else _CAUSE.search(line)
        else:
            sign = _STRONG.search(line) or _SHOUTED.search(line)
            if sign is None and (place == 0 or len(lines) - place <= 2 or len(lines) <= 3):
                sign = _MESSAGE.search(line[:200])
            if sign is None and place == 0 and line[0] not in "-*•":
                sign = _ALONE.search(line[:80])
        # A search for "error" that finds it has not failed.
        if sign and asked.isdisjoint(_LETTERS.findall(sign[0].casefold())):
            found.setdefault(line, 2 if _CAUSE.search(line) else 0 if line[-1] in ":：" else 1)
    if not found:
        return []
    first = next(iter(found))
    best = max(reversed(found), key=lambda line: found[line])
    return [first] if found[first] == found[best] == 2 and _leads(first) else list(dict.fromkeys((first, best)))


def _leads(line: str) -> bool:
    """Return whether *line* begins with the error's name."""
    sign = _CAUSE.search(line)
    return sign is not None and line.count(" ", 0, sign.start()) <= 1


_FAILURE_KEYS = frozenset(["err", "errors", "exception", "failed", "failure", "failures", "fault", "iserror"])
_SUCCESS_KEYS = frozenset(["ok", "passed", "succeeded", "success", "successful"])
_EXIT_KEYS = frozenset(["exit_code", "exit_status", "exitcode", "return_code", "returncode"])
_STATUS_KEYS = frozenset(["code", "outcome", "result", "state", "status", "status_code"])
_FAILED_STATUSES = frozenset(["denied", "error", "fail", "failed", "failure", "rejected"])
#: Values that mean: no error.
_NOTHING = frozenset(["", "0", "false", "no", "none", "null", "ok"])


def _is_failure_field(key: str, value: str) -> bool:
    low, said = key.casefold(), value[:_WORD].casefold()
    if low in _FAILURE_KEYS or low.endswith("error"):
        return said not in _NOTHING
    if low in _SUCCESS_KEYS:
        return said in _NOTHING - {"ok"}
    if low in _EXIT_KEYS:
        return said.lstrip("-").isdecimal() and said != "0"
    if low in _STATUS_KEYS:
        return said in _FAILED_STATUSES or (len(said) == 3 and said.isdecimal() and said[0] in "45")
    return not low and _STRONG.search(value[:200]) is not None


# --- changes ----------------------------------------------------------------------------------------------------------

_CHANGE_WORDS = """
    add append apply assign book build cancel change clear close commit copy create delete deploy disable drop edit
    enable insert install kill make merge mkdir modify move mv overwrite patch pay post publish purchase push put refund
    register remove rename replace reserve reset restart revert rm rmdir save schedule send set start stop store submit
    touch transfer undo uninstall update upgrade upload write
"""
_LOOK_WORDS = """
    calculate cat check count describe explain fetch find get grep head inspect list load look ls open preview print
    query read search select show tail test tests think view
"""
_CHANGE_VERBS, _LOOK_VERBS = frozenset(_CHANGE_WORDS.split()), frozenset(_LOOK_WORDS.split())
_SHELL_CHANGES = re.compile(
    r"(?:sudo |cd \S{1,200} && )?(?:rm|mv|cp|mkdir|rmdir|touch|chmod|chown|ln|tee|kill|pkill|patch|unzip|tar|sed -i"
    r"|git (?:add|commit|push|checkout|merge|rebase|reset|apply|stash|clone|pull|rm|mv|tag|switch|restore)"
    r"|(?:pip3?|apt|apt-get|npm|yarn|pnpm|cargo|brew|conda|gem|go|uv)(?: -\S{1,20})?"
    r" (?:install|add|remove|uninstall|update|upgrade)"
    r"|(?:docker|kubectl|systemctl|terraform) (?:run|rm|stop|start|restart|apply|delete|create|build|up|down|scale)"
    r"|insert into|update \S{1,80} set|delete from|create (?:table|index|view|database)|drop |alter )\b",
    re.IGNORECASE,
)
_WRITES = re.compile(r"(?<![-=<>&\d])>{1,2} ?[\w./~$-]")


def _is_change(name: str, arguments: str) -> bool:
    words = _NAME_WORD.findall(name)
    for word in (word.casefold() for word in words):
        if word in _LOOK_VERBS:
            return False
        if word in _CHANGE_VERBS:
            return True
    shell = not words or words[0].casefold() in _SHELLS
    return shell and (_SHELL_CHANGES.match(arguments) is not None or _WRITES.search(arguments) is not None)


_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_A-Za-z]+")
_SHELL_NAMES = "bash cmd command console database db exec execute powershell query run sh shell sql terminal"
_SHELLS = frozenset(_SHELL_NAMES.split())


# --- merging similar calls --------------------------------------------------------------------------------------------


def merge_actions(actions: Iterable[Action]) -> list[Action]:
    """Return *actions* with repeated calls merged at the place of the last; failures and successes stay apart."""
    return _merged(_merged(actions, lambda one: (one.name, one.arguments, one.failed)), _record)


def _record(action: Action) -> Hashable:
    """Return a key for the record that *action* looked up, or None: newer values of a record replace older ones."""
    if action.failed or action.changes:
        return None
    said = assignment(action.outcome) if ", " in action.outcome else None
    return said and (action.name, said.subject)


def _merged(actions: Iterable[Action], key: Callable[[Action], Hashable]) -> list[Action]:
    """Return *actions* merged by *key* at the place of the last; an action with key None stays separate."""
    merged: dict[Hashable, Action] = {}
    for place, action in enumerate(actions):
        group = key(action)
        group = place if group is None else group
        earlier = merged.pop(group, None)
        merged[group] = action if earlier is None else _joined(earlier, action)
    return list(merged.values())


def _joined(earlier: Action, action: Action) -> Action:
    shared = earlier.shared and action.shared and earlier.outcome == action.outcome
    count = earlier.count + action.count
    if earlier.arguments == action.arguments:
        return replace(action, count=count, shared=shared)
    first, *others = earlier.arguments
    # Shortened arguments of another group are only readable after that group's first argument.
    whole = [argument for argument in action.arguments if not argument.startswith(MORE)]
    added = [_behind(first, argument) for argument in whole if argument != first]
    left_out = MORE in others or len(whole) < len(action.arguments)
    others = [*(other for other in others if other != MORE and other not in added), *added]
    left_out = left_out or len(others) >= _NAMED
    arguments = (_clipped(first, _BRIEF_ARGUMENTS), *([MORE] if left_out else []), *others[1 - _NAMED :])
    return replace(action, arguments=arguments, count=count, shared=shared)


def _behind(first: str, argument: str) -> str:
    """Return *argument* without its common beginning with *first*, for printing after *first*."""
    same = next((place for place, (one, other) in enumerate(zip(first, argument, strict=False)) if one != other), 0)
    begin = max(argument.rfind(" ", 0, same), argument.rfind("/", 0, same)) + 1
    return _clipped(f"{MORE}{argument[begin:]}" if begin > 6 else argument, _NAMED_LENGTH)


def _same_outcome(action: Action) -> Hashable:
    """Return a key for read-only calls of one tool with the same outcome; None for other calls."""
    return None if action.failed or action.changes or not action.shared else (_tool(action), action.outcome)


def _tool(action: Action) -> tuple[str, str, bool]:
    """Return a key for the tool of *action*; for a shell it includes the program."""
    words = _NAME_WORD.findall(action.name)
    shell = bool(words) and words[0].casefold() in _SHELLS
    return action.name, action.arguments[0].partition(" ")[0] if shell else "", action.failed


def _brief(action: Action) -> Action:
    """Return *action* shortened; a short one stays unchanged."""
    arguments = tuple(_clipped(argument, _BRIEF_ARGUMENTS) for argument in action.arguments)
    limit, sign = (_BRIEF_FAILURE, _BRIEF_SIGN) if action.failed else (_BRIEF_OUTCOME, _BRIEF_OPENING)
    return replace(action, arguments=arguments, outcome=_brief_outcome(action.outcome, limit, sign))


def _brief_outcome(outcome: str, limit: int, first: int) -> str:
    """Return about *limit* bytes of *outcome*, with at most *first* bytes of its opening if more follows."""
    if len(outcome.encode()) <= limit + _SLACK:
        return outcome
    opening, between, rest = outcome.partition(f" {MORE} ")
    if not between:
        return _clipped(outcome, limit)
    opening = _clipped(opening, first).removesuffix(MORE).rstrip()
    return f"{opening}{between}{_clipped(rest, limit - len(opening.encode()) - 5)}"


# --- choosing lines ---------------------------------------------------------------------------------------------------


def choose_lines(actions: Sequence[Action], budget: int, count: Count) -> list[str]:
    """Return lines of *actions* within *budget* tokens: errors and changes, then the rest, each part in order."""
    chosen = merge_actions(actions)
    chosen = [*_merged(chosen[:-_MOST], _tool), *chosen[-_MOST:]]
    for shorten in (_older_brief, _all_brief, lambda those: _best(those, budget, count)):
        if _cost(chosen, count) <= budget:
            break
        chosen = shorten(chosen)
    first = [action for action in chosen if action.failed or action.changes]
    return [action.line for action in (*first, *(one for one in chosen if not (one.failed or one.changes)))]


def _older_brief(actions: Sequence[Action]) -> list[Action]:
    return [*map(_brief, actions[:-_RECENT]), *actions[-_RECENT:]]


def _all_brief(actions: Sequence[Action]) -> list[Action]:
    return _merged(map(_brief, actions), _same_outcome)


def _cost(actions: Iterable[Action], count: Count) -> int:
    return sum(count(f"- {action.line}\n") for action in actions)


def _best(actions: Sequence[Action], budget: int, count: Count) -> list[Action]:
    """Return *actions* within *budget* tokens: the best on lines of their own, the rest as one line per tool."""
    resolved = {(action.name, action.arguments) for action in actions if not action.failed}
    forms = Counter(_form(action) for action in actions)
    worths = [
        _worth(action, resolved) * (0.5 + 0.5 * (place + 1) / len(actions)) / math.sqrt(forms[_form(action)])
        for place, action in enumerate(actions)
    ]
    costs = [count(f"- {action.line}\n") for action in actions]
    order = sorted(range(len(actions)), key=lambda place: -worths[place] / (costs[place] + 8))
    left = budget * 3 // 4
    alone = set()
    for place in order:
        if costs[place] <= left and (actions[place].failed or actions[place].changes):
            alone.add(place)
            left -= costs[place]
    lines = _with_groups(actions, alone, worths, budget, count)
    for place in order[:_TRIES]:
        if place not in alone and _cost(lines, count) + 12 < budget:
            more = _with_groups(actions, alone | {place}, worths, budget, count)
            if _cost(more, count) <= budget and _calls(more) >= _calls(lines):
                lines, alone = more, alone | {place}
    return lines


def _calls(actions: Iterable[Action]) -> int:
    return sum(action.count for action in actions)


#: Number of newest calls that may have lines of their own.
_MOST = 300
#: Maximum actions to try on lines of their own after errors and changes.
_TRIES = 60


def _with_groups(
    actions: Sequence[Action], alone: set[int], worths: Sequence[float], budget: int, count: Count
) -> list[Action]:
    """Return the actions *alone* and, within *budget*, one line for the other actions of each tool."""
    chosen = {place: actions[place] for place in alone}
    left = budget - _cost(chosen.values(), count)
    groups: dict[Hashable, list[int]] = {}
    for place, action in enumerate(actions):
        if place not in alone:
            groups.setdefault(_tool(action), []).append(place)
    for places in sorted(groups.values(), key=lambda places: -sum(worths[place] for place in places)):
        (group,) = _merged([actions[place] for place in places], lambda _: ())
        cost = count(f"- {group.line}\n")
        if cost <= left:
            chosen[places[-1]] = group
            left -= cost
    return [chosen[place] for place in sorted(chosen)]


def _worth(action: Action, resolved: set[tuple[str, tuple[str, ...]]]) -> float:
    weight = _FAILED_WEIGHT if action.failed else _CHANGE_WEIGHT if action.changes else 1.0
    if action.failed and (action.name, action.arguments) in resolved:
        weight = _CHANGE_WEIGHT
    return weight * (0.5 if action.outcome in {"", _EMPTY} else 1.0) * math.sqrt(min(action.count, _NAMED))


def _form(action: Action) -> Hashable:
    """Return an equal key for outcomes of a tool that differ only in numbers: each further one tells less."""
    return action if action.failed or action.changes else (action.name, _DIGITS.sub("0", action.outcome))


_DIGITS = re.compile(r"\d+")
#: Failures count most, unless the same call also succeeded; then changes.
_FAILED_WEIGHT, _CHANGE_WEIGHT = 5.0, 3.0


# --- files and ids ----------------------------------------------------------------------------------------------------


def choose_files(
    actions: Iterable[Action], stored: Iterable[str], given: Iterable[str], shown: str, budget: int, count: Count
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
        for value in _taken(text):
            add(value, USER)
    for action in actions:
        for value in _taken(" ".join(action.arguments)):
            add(value, action.name)
    costs = {value: count(_NEXT + value) for value in users if value and value not in shown}
    places = {value: place / len(users) for place, value in enumerate(users)}
    grouped: dict[str, list[str]] = {}
    for value in sorted(costs, key=lambda value: -(uses[value] + places[value] + _is_file(value)) / (costs[value] + 4)):
        names = ", ".join(users[value])
        cost = costs[value] + (0 if names in grouped else count(f"- {names}: \n"))
        if cost <= budget:
            budget -= cost
            grouped.setdefault(names, []).append(value)
    return [f"{names}: {_NEXT.join(values)}" for names, values in grouped.items()]


_NEXT = "; "


def _taken(text: str) -> Iterator[str]:
    """Yield the files and ids in a call's arguments or a user's text, without names of functions and fields.

    Plain numbers and names with a dot count only in a short text: code is full of them.
    """
    for match in _TOKEN.finditer(text):
        value = match[0].strip(".:!?*-@#")
        named = text[match.end() : match.end() + 1] == "(" or match[0][-1] == ":" or _WORDS_JOINED.fullmatch(value)
        if named or MORE in value or "\\" in value or not _is_identifier(value):
            continue
        clear = "/" in value or "@" in value or (any(map(str.isdigit, value)) and any(map(str.isalpha, value)))
        if len(value) > 3 and (clear or len(text) <= _BRIEF_ARGUMENTS):
            yield value


def _is_file(value: str) -> bool:
    """Return whether *value* ends like a file's name."""
    stem, dot, ending = value.rpartition(".")
    return bool(stem and dot) and 0 < len(ending) < 6 and ending[0].isalpha() and ending.isalnum()


#: Field names, function names and amounts: no ids.
_WORDS_JOINED = re.compile(r"[^\W\d]+|\d+(?:[a-z]{1,2}|-\d+)")


# --- words ------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[^\s\"'`()<>{}\[\],;|=]+")


def _identifiers(text: str) -> set[str]:
    found = set()
    for match in _TOKEN.finditer(text[: 2 * _LOOKED_AT].replace("\\n", "\n").replace('\\"', '"')):
        word = match[0].strip(".:!?*-")
        if 2 < len(word) <= _WORD and _is_identifier(word):
            found.add(word)
    return found


def _is_identifier(word: str) -> bool:
    """Return whether a later call may need *word* exactly: it has digits, or is a path or a name with a dot."""
    if len(word) > _WORD or " " in word:
        return False
    if any(map(str.isdigit, word)):
        return len(word) > 2
    inner = word[1:-1]
    return any(sign in inner for sign in "_/@.\\:")


def _printable(text: str) -> str:
    """Return *text* on one line, without control sequences; long words keep their beginning, long paths their end."""
    words = _CONTROL.sub(" ", text).split()
    line = " ".join(word if len(word) <= _WORD else _short_word(word) for word in words)
    return _SURROGATE.sub("\ufffd", line).replace("→", "->").replace("·", "-").replace("<think", "[think")


def _short_word(word: str) -> str:
    _, slash, tail = word.rpartition("/")
    if slash and 0 < len(tail) <= _WORD:
        return f"{MORE}/{tail}"
    if any(letter > "\u2e7f" for letter in word[:8]):
        return word
    return f"{word[:20]}{MORE}"


_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


#: Bytes that a text may exceed its limit by: half a name is useless.
_SLACK = 12


def _clipped(text: str, limit: int) -> str:
    """Return *text*, or its beginning of about *limit* bytes with a mark, cut between words if possible.

    The limit counts bytes, not characters: in most scripts a character of three bytes costs about three times as many
    tokens.
    """
    if 3 * len(text) <= limit or len(encoded := text.encode()) <= limit + _SLACK:
        return text
    cut = encoded[: limit - 1].decode(errors="ignore")
    space = cut.rfind(" ")
    if space > len(cut) // 2 and not text[len(cut)].isspace():
        cut = cut[:space]
    while cut and (unicodedata.combining(text[len(cut)]) or text[len(cut)] in "\u200d\ufe0f" or cut[-1] == "\u200d"):
        cut = cut[:-1]
    return f"{cut.rstrip(f' {MORE}')}{MORE}"


# --- JSON-like text as short lines ``key: value``: tool results are often one long line, useless when cut -------------


#: About forty tokens: a record with its neighbours, yet small enough to be chosen alone.
LINE = 160
#: A container up to this many characters is printed inside its parent's line.
_INLINE = 72
_DEPTH = 64

_OPEN_BRACKET = re.compile(r"[{\[]\s{0,80}(?=[{\[\"'])")
# Possessive quantifiers never backtrack, so hostile text costs one pass.
_JSON_TOKEN = re.compile(
    r"""\s++|(?P<text>"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z))|(?P<mark>[{}\[\],:])"""
    r"""|(?P<bare>[^\s"'{}\[\],:][^{}\[\],\n]*+)""",
    re.DOTALL,
)


@dataclass(slots=True)
class _Container:
    name: str
    keyed: bool
    place: int
    key: str = ""
    waiting: bool = False
    fields: list[str] = field(default_factory=list)


def structures(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (prose, field lines) pairs in order; either may be empty. Runs in one forward pass."""
    start = 0
    while opening := _OPEN_BRACKET.search(text, start):
        found = field_lines(text, opening.start())
        if found is None:
            break
        lines, end = found
        yield text[start : opening.start()], lines
        start = end
    yield text[start:], []


def field_lines(text: str, start: int = 0) -> tuple[list[str], int] | None:
    """Return the lines of the structure that opens at *start*, and its end; None if it is nested too deep.

    Each long string is one line after ``key: ``, with its line breaks: the caller splits it further.
    """
    stack: list[_Container] = []
    lines: list[tuple[int, str]] = []
    end = len(text)
    for token in _JSON_TOKEN.finditer(text, start):
        mark = token["mark"]
        if mark in {"{", "["}:
            if len(stack) == _DEPTH:
                return None
            name = (stack[-1].key or stack[-1].name) if stack else ""
            stack.append(_Container(name, mark == "{", token.start()))
        elif mark in {"}", "]"}:
            _close(stack, lines)
            if not stack:
                end = token.end()
                break
        elif mark == ":":
            stack[-1].waiting = stack[-1].keyed and bool(stack[-1].key)
        elif mark == ",":
            stack[-1].key, stack[-1].waiting = "", False
        else:
            _scalar(token, stack[-1], lines)
    while stack:
        _close(stack, lines)
    return [line for _, line in sorted(lines, key=lambda item: item[0])], end


def _scalar(token: re.Match[str], top: _Container, lines: list[tuple[int, str]]) -> None:
    quoted, bare = token["text"], token["bare"]
    if quoted is None and bare is None:
        return
    value = _unquoted(quoted) if quoted is not None else bare.strip()
    if top.keyed and not top.waiting:
        # A bare key's token includes its colon: `{id: 5}` gives key `id`, value `5`.
        key, colon, rest = value.partition(":") if quoted is None else (value, "", "")
        top.key = key.strip()
        value = rest.strip()
        if not colon or not value:
            top.waiting = bool(colon)
            return
    if value in {"", "null", "None"}:
        return
    text = f"{top.key}: {value}" if top.key else value
    if len(value) > LINE or "\n" in value:
        lines.append((token.start(), text))
    else:
        top.fields.append(text)


def _close(stack: list[_Container], lines: list[tuple[int, str]]) -> None:
    done = stack.pop()
    if not done.fields:
        return
    joined = ", ".join(done.fields)
    parent = stack[-1] if stack else None
    if parent and len(joined) <= _INLINE:
        name = parent.key if parent.keyed else ""
        inside = joined if len(done.fields) == 1 and not done.keyed else f"({joined})"
        parent.fields.append(f"{name}: {inside}" if name and inside is joined else f"{name} {inside}".strip())
        return
    lines += [(done.place, f"{done.name} ({line})" if done.name else line) for line in _filled(done.fields, done.keyed)]


def _filled(fields: list[str], keyed: bool) -> Iterator[str]:
    """Yield *fields* joined to lines; a record's first field leads each of its lines, since it usually names it."""
    lead = fields[0] if keyed and len(fields[0]) <= 40 else ""
    line = fields[0]
    for item in fields[1:]:
        if len(line) + len(item) > LINE:
            yield line
            line = f"{lead}, {item}" if lead else item
        else:
            line = f"{line}, {item}"
    yield line


def _unquoted(quoted: str) -> str:
    inner = quoted[1:-1] if len(quoted) > 1 and quoted[-1] == quoted[0] else quoted[1:]
    if "\\" not in inner:
        return inner
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError:
        return inner.replace("\\n", "\n").replace("\\", "")
