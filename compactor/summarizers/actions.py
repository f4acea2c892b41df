"""What an agent did, as lines ``call(arguments) → outcome``, and such lines read back.

A call's outcome is put together of what stands at the places that tell: how the result begins, what failed, values that
later calls take, how it ends; of JSON the fields that are new. It holds no word that the result does not hold, apart
from the marks: ``failed:``, ``last:`` (only the last of several like calls had this outcome), ``×3``, ``…`` (something
is left out) and ``(no result)``. A stored line reads back as the action that it was printed from.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memory.rounds import Post, Round, ToolCall

__all__ = ["Action", "choose_lines", "find_actions", "merge_actions", "parse_action"]

Count = Callable[[str], int]

ARROW, MORE = " → ", "…"
_FAILED, _LAST, _LAST_FAILED, _OPEN = "failed: ", "last: ", "last failed: ", "(no result)"
_BETWEEN = " · "

#: Bytes of a line: its arguments and its outcome, at first and where room is short.
_ARGUMENTS, _OUTCOME = 96, 120
_BRIEF_ARGUMENTS, _BRIEF_OUTCOME = 60, 64
#: Of what failed more is kept: it is what must not be tried again.
_FAILURE = 112
#: What a result begins with says what kind of result it is; more of it tells little.
_OPENING = 40
#: Arguments that a group of like calls names, and how long each may be.
_NAMED, _NAMED_LENGTH = 4, 32
#: Characters of a result's beginning and end that are looked through for what failed, and of one line of it.
_LOOKED_AT, _LINE = 16_000, 400
#: A longer word is data: its beginning is enough.
_WORD = 72


@dataclass(frozen=True)
class Action:
    """A call and what came of it, or several like calls."""

    name: str
    #: What it was called with, shortened; of several like calls one each, the newest last.
    arguments: tuple[str, ...]
    #: Empty: nothing came back, or nothing yet.
    outcome: str
    failed: bool = False
    count: int = 1
    #: Whether all calls had this outcome; else only the last.
    shared: bool = True

    @cached_property
    def line(self) -> str:
        mark = (_FAILED if self.shared else _LAST_FAILED) if self.failed else "" if self.shared else _LAST
        times = f" ×{self.count}" if self.count > 1 else ""
        return f"{self.name}({_BETWEEN.join(self.arguments)}){times}{ARROW}{mark}{self.outcome or _OPEN}"

    @cached_property
    def changes(self) -> bool:
        """Whether it changed something, by what the tool or the command is called."""
        return _is_change(self.name, self.arguments[-1] if self.arguments else "")


def parse_action(line: str) -> Action | None:
    """Return the action that *line* was printed from, or None if it is no action's line."""
    head, arrow, outcome = line.partition(ARROW)
    times = 1
    call, sign, number = head.rpartition(" ×")
    if sign and number.isdecimal() and call.endswith(")"):
        head, times = call, int(number[:9])
    name, bracket, inner = head.partition("(")
    if not (arrow and bracket and name and inner.endswith(")")) or " " in name:
        return None
    for mark, failed, shared in ((_FAILED, True, True), (_LAST_FAILED, True, False), (_LAST, False, False)):
        if outcome.startswith(mark):
            outcome = outcome[len(mark) :]
            break
    else:
        failed, shared = False, True
    arguments = tuple(inner[:-1].split(_BETWEEN))
    return Action(name, arguments, "" if outcome == _OPEN else outcome, failed, max(1, times), shared)


# --- calls and their results ------------------------------------------------------------------------------------------


def find_actions(rounds: Sequence[Round]) -> list[Action]:
    """Return the calls of *rounds* with their outcomes, oldest first."""
    calls = _paired(rounds)
    later: list[set[str]] = [set()]
    for call, _ in reversed(calls):
        later.append(later[-1] | _identifiers(call.arguments) if call else later[-1])
    later.reverse()
    seen: set[str] = set()
    actions = []
    for place, (call, result) in enumerate(calls):
        taken = later[place + 1]
        actions.append(_action(call, result, seen, taken))
        seen |= _identifiers(call.arguments)
    return actions


def _paired(rounds: Sequence[Round]) -> list[tuple[ToolCall, str | None]]:
    """Return the calls of *rounds*, each with the text of its result, by id; an id that is used again means the newest
    call of that id, and of several calls of one post with the same id each has the result at its place."""
    calls: list[tuple[ToolCall, str | None]] = []
    waiting: dict[str, deque[int]] = {}
    for post in (post for round_ in rounds for post in round_.post_list):
        if post.tool_call_id is not None:
            _answer(post, calls, waiting)
        waiting.update((call.id, deque()) for call in post.tool_calls)
        for call in post.tool_calls:
            waiting[call.id].append(len(calls))
            calls.append((call, None))
    return calls


def _answer(post: Post, calls: list[tuple[ToolCall, str | None]], waiting: dict[str, deque[int]]) -> None:
    places = waiting.get(post.tool_call_id or "")
    if places:
        place = places.popleft()
        calls[place] = (calls[place][0], post.message)


def _action(call: ToolCall, result: str | None, seen: set[str], taken: set[str]) -> Action:
    name = _clipped(_printable(call.name[:120]).replace(" ", "_").replace("(", "["), 48) or "call"
    arguments = _short_arguments(call.arguments)
    if result is None:
        return Action(name, (arguments,), "")
    outcome, failed = _outcome(result, call.arguments, seen, taken)
    return Action(name, (arguments,), outcome, failed)


# --- what it was called with ------------------------------------------------------------------------------------------


def _short_arguments(arguments: str) -> str:
    fields = _fields(arguments)
    if fields is None:
        return _clipped(_printable(arguments[: 4 * _ARGUMENTS]), _ARGUMENTS)
    if len(fields) == 1:
        return _clipped(_printable(fields[0][1][: 8 * _ARGUMENTS]), _ARGUMENTS)
    room = max(24, _ARGUMENTS // max(1, min(4, len(fields))))
    parts = [f"{key}: {_clipped(_printable(value[: 8 * room]), room)}" for key, value in fields[:12]]
    return _clipped(", ".join(parts), _ARGUMENTS)


def _fields(text: str) -> list[tuple[str, str]] | None:
    """Return the scalars of a JSON text in order, each with the name of its field; None where it is no JSON."""
    if text[:1] not in {"{", "["} and text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    found: list[tuple[str, str]] = []
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting and len(found) < _MAX_FIELDS:
        key, item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend((str(name), inner) for name, inner in reversed(item.items()))
        elif isinstance(item, list):
            waiting.extend((key, inner) for inner in reversed(item[:_MAX_FIELDS]))
        elif item is not None and item != "":
            found.append((key, item if isinstance(item, str) else json.dumps(item)))
    return found


_MAX_FIELDS = 400


# --- what came of it --------------------------------------------------------------------------------------------------


def _outcome(result: str, arguments: str, seen: set[str], taken: set[str]) -> tuple[str, bool]:
    """Return what a result comes to in a few words, and whether it says that the call failed."""
    fields = _fields(result)
    if fields is not None:
        return _outcome_of_fields(fields, arguments, seen, taken)
    return _outcome_of_text(result, arguments, seen, taken)


def _outcome_of_fields(
    fields: list[tuple[str, str]], arguments: str, seen: set[str], taken: set[str]
) -> tuple[str, bool]:
    grouped: dict[str, list[str]] = {}
    ranked: dict[str, int] = {}
    failed = False
    for key, value in fields:
        said = _printable(value[:_LINE])
        if not said:
            continue
        failure = _is_failure_field(key, said)
        failed = failed or failure
        new = value not in seen and value not in arguments
        rank = 0 if failure else 1 if value in taken and new else 2 if new and _is_identifier(value) else 3 if new else 4
        seen.add(value[:_WORD])
        if rank == 4 and key in grouped:
            continue
        values = grouped.setdefault(key, [])
        if said not in values and len(values) < 6:
            values.append(_clipped(said, _OUTCOME if failure else 48))
        ranked[key] = min(rank, ranked.get(key, 4))
    if not grouped:
        return "", False
    places = {key: place for place, key in enumerate(grouped)}
    # Of a record's new fields the last tells most: what a change adds stands at the end.
    last = max((key for key in grouped if ranked[key] in {2, 3}), key=places.__getitem__, default="")
    order = sorted(grouped, key=lambda key: (ranked[key] > 1 and key != last, min(ranked[key], 3), places[key]))
    kept: list[str] = []
    left = _OUTCOME
    for key in order:
        text = _field_text(key, grouped[key])
        if not kept or len(text) + 2 <= left:
            kept.append(key)
            left -= len(text) + 2
    kept.sort(key=places.__getitem__)
    return _clipped(", ".join(_field_text(key, grouped[key]) for key in kept), 2 * _OUTCOME), failed


def _field_text(key: str, values: list[str]) -> str:
    said = ", ".join(values)
    return f"{_clipped(_printable(key[:_WORD]), 40)}: {said}" if key else said


def _outcome_of_text(result: str, arguments: str, seen: set[str], taken: set[str]) -> tuple[str, bool]:
    lines = _looked_at(result)
    if not lines:
        return "", False
    failures = _failures(lines, arguments)
    opening = _clipped(lines[0], _OPENING if len(lines) > 1 else _OUTCOME)
    pieces: list[str] = []
    if failures and failures[0] == lines[0]:
        pieces += [_clipped(line, _OUTCOME if place == 0 else 80) for place, line in enumerate(failures[:2])]
    else:
        pieces += [opening, *(_clipped(line, 80) for line in failures[:2])]
    new = _identifiers(result[:_LOOKED_AT])
    wanted = (new & taken) - seen
    seen |= new
    wanted = {value for value in wanted if value not in arguments}
    for line in lines[1:]:
        if not wanted or sum(map(len, pieces)) > _OUTCOME:
            break
        here = [value for value in wanted if value in line]
        if here:
            wanted.difference_update(here)
            pieces.append(line if len(line) <= 60 else ", ".join(sorted(here, key=line.index)))
    if not failures and len(lines) > 1 and (ending := _ending(lines)) and ending not in seen:
        seen.add(ending)  # what a tool says each time tells nothing
        pieces.append(_clipped(ending, 60))
    return f" {MORE} ".join(dict.fromkeys(piece.removesuffix(MORE).rstrip() for piece in pieces)), bool(failures)


def _looked_at(result: str) -> list[str]:
    """Return the lines of a result's beginning and end that say something."""
    text = result
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    lines = (_printable(line[:_LINE] if len(line) <= _LINE else f"{line[:_LINE]}") for line in text.splitlines())
    return [line for line in lines if any(map(str.isalnum, line))]


def _ending(lines: list[str]) -> str:
    """Return the last line that is more than markup or quoted from a file."""
    for line in reversed(lines[-4:]):
        if line != lines[0] and not _QUOTED.match(line) and line[0] not in "<{}[]()#|" and line.count(" ") < 24:
            return line
    return ""


# --- what says that a call failed -------------------------------------------------------------------------------------

#: A line of a file, as tools show it: with its number, or after its path and number.
_NUMBERED = re.compile(r"\d{1,7}(?: ?[:|│]|  ?\S|->)")
_QUOTED = re.compile(rf"{_NUMBERED.pattern}|[^\s:]{{1,200}}[:-]\d{{1,7}}[:-]")
#: Words that programs say of a failure, whatever else they say.
_STRONG = re.compile(
    r"error(?:\(s\)|s)?(?: ?:|!|\]| \[?[A-Z]{0,3}\d)|exception(?: ?:| in )|traceback|\bfatal\b|\bpanic(?:ked)?\b|\bfailed\b|\bfailures?\b"
    r"|\bcommand not found|no such file|permission denied|segmentation fault|timed out|\btimeout\b"
    r"|connection refused|\bHTTP/[\d.]{1,3} [45]\d\d\b|\b(?:exit(?:ed)?|return)[ _-]?(?:with )?(?:code|status|value)?:? ?\[?[1-9]\d{0,4}\b",
    re.IGNORECASE,
)
_SAYS_NONE = re.compile(r"\b(?:no|0|zero|without(?: any)?) (?:\w{1,20} )?(?:errors?|failures?|failed|exceptions?)\b", re.IGNORECASE)
#: Words that say so in a message, which is short, or stands first.
_WEAK_WORDS = """
    error errors exception cannot can't couldn't unable denied refused invalid illegal missing unknown unexpected
    aborted rejected forbidden unauthorized unsupported exceeded
    fehler fehlgeschlagen erreur échec introuvable fallo falló erro falhou errore fallito fout mislukt niepowodzenie
    błąd chyba fel misslyckades feil fejl virhe hata başarısız ошибка сбой помилка σφάλμα gagal kesalahan
    شیگאה שגיאה خطأ فشل خطا ناموفق त्रुटि विफल
"""
_WEAK_PHRASES = """
    not found|could not|does not exist|doesn't exist|not available|not enough|not allowed|not permitted|not supported
    |not a valid|too many|too large|did not|no matching|nicht gefunden|konnte nicht|no se pudo|não encontrado|non trovato
    |не удалось|не найден|nie znaleziono|bulunamadı|错误|失败|錯誤|失敗|未找到|不存在|无法|エラー|見つかりません|오류|실패
    |ผิดพลาด|ล้มเหลว|lỗi|thất bại
"""
_WEAK = re.compile(
    rf"\b(?:{'|'.join(map(re.escape, _WEAK_WORDS.split()))})\b"
    rf"|{'|'.join(re.escape(phrase.strip()) for phrase in _WEAK_PHRASES.split('|'))}",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?:except|raise|throw|catch|return|def|class|if|for|while|print|import|from|log|logger|assert)\b|//|/\*|\* |#|[}{]")


def _failures(lines: list[str], arguments: str) -> list[str]:
    """Return the line that says first that the call failed and the one that says best why: one, two or none."""
    message = len(lines) <= 4
    asked = arguments.casefold()
    found: dict[str, int] = {}
    for place, line in enumerate(lines):
        if _NUMBERED.match(line) or _CODE.match(line) or line[-1] in "{;,":
            continue  # code that deals with errors, most likely
        match = _STRONG.search(line)
        quoted = _QUOTED.match(line) is not None
        if match is None and not quoted and (message or place in {0, len(lines) - 1}):
            match = _WEAK.search(line[:200])
        if match is None or (quoted and not _CAUSE.search(line)):
            continue
        if not _SAYS_NONE.search(line) and match[0].casefold().strip(" :!]") not in asked:
            found.setdefault(line, 2 if _CAUSE.search(line) else 0 if line[-1] in ":：" else 1)
    if not found:
        return []
    first = next(iter(found))
    best = max(reversed(found), key=lambda line: found[line])
    return [first] if best == first or found[first] == 2 == found[best] and _CAUSE.match(first) else [first, best]


#: What names the error and then says what it is.
_CAUSE = re.compile(r"(?:\S{1,60} ){0,6}\S{0,80}(?:error|exception): ?\S", re.IGNORECASE)
_FAILURE_KEYS = frozenset("error errors exception failure failures err fault".split())
_SUCCESS_KEYS = frozenset("ok success successful succeeded passed".split())
_EXIT_KEYS = frozenset("exit_code exitcode exit_status returncode return_code code".split())
_NOTHING = frozenset(["0", "false", "none", "null", "no", "ok", ""])


def _is_failure_field(key: str, value: str) -> bool:
    low, said = key.casefold(), value.casefold()
    if low in _FAILURE_KEYS or low.endswith(("_error", "error")):
        return said not in _NOTHING
    if low in _SUCCESS_KEYS or low in {"is_ok"}:
        return said in {"false", "no", "0"}
    if low in {"is_error", "iserror", "failed"}:
        return said not in _NOTHING
    if low in _EXIT_KEYS - {"code"}:
        return said.lstrip("-").isdecimal() and said != "0"
    if low in {"status", "state", "result", "outcome", "code", "status_code"}:
        return said in {"error", "failed", "failure", "fail", "denied", "rejected"} or (
            len(said) == 3 and said.isdecimal() and said[0] in "45"
        )
    return not low and _STRONG.search(value[:200]) is not None


# --- what changes something -------------------------------------------------------------------------------------------

_CHANGE_VERBS = frozenset(
    """add append apply assign book build cancel change clear close commit copy create delete deploy disable drop edit
    enable execute_sql insert install kill make merge mkdir modify move mv overwrite patch pay post publish purchase push
    put refund register remove rename replace reserve reset restart revert rm rmdir save schedule send set start stop
    store submit touch transfer undo uninstall update upgrade upload write""".split()
)
_LOOK_VERBS = frozenset(
    """calculate cat check count describe explain fetch find get grep head inspect list load look ls open preview print
    query read run_tests search select show tail test think view""".split()
)
_SHELL_CHANGES = re.compile(
    r"(?:sudo |cd \S{1,200} && )?(?:rm|mv|cp|mkdir|rmdir|touch|chmod|chown|ln|tee|kill|pkill|patch|unzip|tar|make install|sed -i"
    r"|git (?:add|commit|push|checkout|merge|rebase|reset|apply|stash|clone|pull|rm|mv|tag|switch|restore)"
    r"|(?:pip3?|apt|apt-get|npm|yarn|pnpm|cargo|brew|conda|gem|go|uv)(?: -\S{1,20})? (?:install|add|remove|uninstall|update|upgrade)"
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
_SHELLS = frozenset("bash shell sh exec execute run terminal command cmd powershell console sql db database query".split())


# --- like calls -------------------------------------------------------------------------------------------------------


def merge_actions(actions: Iterable[Action]) -> list[Action]:
    """Return *actions* with calls that are the same, or came to the same, as one: where the last of them stood."""
    merged: dict[tuple[object, ...], Action] = {}
    for action in actions:
        same: tuple[object, ...] = (action.name, action.arguments, action.failed)
        if (earlier := merged.pop(same, None)) is not None:
            shared = action.shared and earlier.shared and earlier.outcome == action.outcome
            action = replace(action, count=earlier.count + action.count, shared=shared)
        merged[same] = action
    return list(merged.values())


def _grouped(actions: Sequence[Action]) -> list[Action]:
    """Return *actions* with those of one tool as one line, that names the newest."""
    groups: dict[tuple[str, bool], Action] = {}
    for action in actions:
        key = (action.name, action.failed)
        earlier = groups.pop(key, None)
        named = tuple(_clipped(argument, _NAMED_LENGTH) for argument in action.arguments if argument != MORE)
        if earlier is not None:
            every = [a for a in (*earlier.arguments, *named) if a != MORE]
            every = list(dict.fromkeys(reversed(every)))[::-1]
            left_out = MORE in earlier.arguments or len(every) > _NAMED
            shared = earlier.shared and action.shared and earlier.outcome == action.outcome
            arguments = ((MORE,) if left_out else ()) + tuple(every[-_NAMED:])
            action = replace(action, arguments=arguments, count=earlier.count + action.count, shared=shared)
        groups[key] = action
    return list(groups.values())


def _brief(action: Action) -> Action:
    """Return *action* with fewer words; one that has few already as it is."""
    arguments = tuple(_clipped(argument, _BRIEF_ARGUMENTS) for argument in action.arguments)
    return replace(action, arguments=arguments, outcome=_brief_outcome(action.outcome, _FAILURE if action.failed else _BRIEF_OUTCOME))


def _brief_outcome(outcome: str, limit: int) -> str:
    if len(outcome.encode()) <= limit:
        return outcome
    opening, between, rest = outcome.partition(f" {MORE} ")
    if not between or len(opening) > limit // 2:
        return _clipped(outcome, limit)
    opening = _clipped(opening, 28).removesuffix(MORE).rstrip()
    return f"{opening}{between}{_clipped(rest, limit - len(opening.encode()) - 5)}"


# --- which lines ------------------------------------------------------------------------------------------------------


def choose_lines(actions: Sequence[Action], budget: int, count: Count) -> list[str]:
    """Return the lines of *actions* that *budget* tokens hold: errors and changes first, then the rest, each in order."""
    merged = merge_actions(actions)
    chosen = merged
    if _cost(merged, count) > budget:
        recent = len(merged) - 3
        shorter = [action if place >= recent else _brief(action) for place, action in enumerate(merged)]
        chosen = shorter if _cost(shorter, count) <= budget else _best(shorter, budget, count)
    first = [action for action in chosen if action.failed or action.changes]
    return [action.line for action in (*first, *(one for one in chosen if not (one.failed or one.changes)))]


def _cost(actions: Iterable[Action], count: Count) -> int:
    return sum(count(f"- {action.line}\n") for action in actions)


def _best(actions: Sequence[Action], budget: int, count: Count) -> list[Action]:
    """Return those of *actions* that are worth most for what they cost, and what is left of each tool as one line."""
    costs = [count(f"- {action.line}\n") for action in actions]
    resolved = {(action.name, action.arguments) for action in actions if not action.failed}
    order = sorted(range(len(actions)), key=lambda place: -_worth(place, actions, resolved) / (costs[place] + 8))
    kept: list[int] = []
    left = budget * 7 // 8
    for place in order:
        if costs[place] <= left:
            kept.append(place)
            left -= costs[place]
    left += budget - budget * 7 // 8
    chosen = {place: actions[place] for place in kept}
    others = [action for place, action in enumerate(actions) if place not in chosen]
    for action in reversed(_grouped(others)):
        cost = count(f"- {action.line}\n")
        if cost <= left:
            left -= cost
            chosen[-len(chosen) - 1] = action
    return [chosen[place] for place in sorted(chosen)]


def _worth(place: int, actions: Sequence[Action], resolved: set[tuple[str, tuple[str, ...]]]) -> float:
    action = actions[place]
    recency = 0.5 + 0.5 * (place + 1) / len(actions)
    weight = 3.0 if action.failed or action.changes else 1.0
    if action.failed and (action.name, action.arguments) in resolved:
        weight = 2.0
    if not action.outcome:
        weight *= 0.5
    return weight * recency


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
    """Whether *word* is what a later call may need letter by letter: it has digits, or is a path, a name with a dot."""
    if len(word) > _WORD or " " in word:
        return False
    if any(map(str.isdigit, word)):
        return len(word) > 2
    inner = word[1:-1]
    return any(sign in inner for sign in "_/@.\\:")


def _printable(text: str) -> str:
    """Return *text* on one line, without what a terminal acts on; a long word by its beginning, a long path by its end."""
    words = _CONTROL.sub(" ", text).split()
    line = " ".join(word if len(word) <= _WORD else _short_word(word) for word in words)
    return _SURROGATE.sub("\ufffd", line).replace("→", "->").replace("·", "-").replace("<think", "[think")


def _short_word(word: str) -> str:
    head, slash, tail = word.rpartition("/")
    if slash and 0 < len(tail) <= _WORD:
        return f"{MORE}/{tail}"
    if any("\u2e7f" < letter for letter in word[:8]):
        return word
    return f"{word[:20]}{MORE}"


_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _clipped(text: str, limit: int) -> str:
    """Return *text*, or its beginning of at most *limit* bytes with a mark, cut between words where there are.

    Bytes and not characters: in most scripts a character of three bytes costs about three times as many tokens.
    """
    if 3 * len(text) <= limit or len(encoded := text.encode()) <= limit:
        return text
    cut = encoded[: limit - 1].decode(errors="ignore")
    space = cut.rfind(" ")
    if space > len(cut) // 2 and not text[len(cut)].isspace():
        cut = cut[:space]
    while cut and (unicodedata.combining(text[len(cut)]) or text[len(cut)] in "\u200d\ufe0f" or cut[-1] == "\u200d"):
        cut = cut[:-1]
    return f"{cut.rstrip(f' {MORE}')}{MORE}"
