"""Rounds and an earlier summary as statements: single lines, each of which may stand alone in a summary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import cast

import yaml

from memory.messages import repeats_query, results_apart
from memory.references import beginning
from memory.rounds import USER, Attachment, Post, Round, ToolCall

from ..acceptance.content import CJK, is_code
from ..prompt.groups import is_summary
from .actions import field_lines, structures
from .instructions import instruction_strength, is_prohibition

#: What is left of a clause has at least so many characters, or it stays whole.
MIN_REST = 12
#: Scripts that are written without spaces: what follows a phrase need not begin with one.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3005-\u30ff\u3400-\u9fff]")


def without_padding(clause: str) -> str:
    """Return *clause* without what leads up to what it says; it is the end of what was said, word for word."""
    phrases, read = _phrases(), clause.replace("’", "'")
    start = 0
    while (match := phrases.match(read, start)) and len(read) - match.end() >= MIN_REST:
        start = match.end()
    return clause[start:]


def has_reason(clause: str) -> bool:
    """Return whether the clause before says why *clause* is so: "so I prefer ..."."""
    return _starts("so").match(clause) is not None


def without_link(clause: str) -> str:
    """Return *clause* without the "and" or "so" that ties it to the clause before, and without a comma at its end."""
    match = _starts("links").match(clause) or _starts("so").match(clause)
    start = match.end() if match and len(clause) - match.end() >= MIN_REST else 0
    return clause[start:].rstrip(",;，；、،؛ ")


@cache
def _phrases() -> re.Pattern[str]:
    """Return the pattern of all phrases of all languages."""
    return re.compile("|".join(map(_of_language, _tables().values())), re.IGNORECASE)


@cache
def _starts(kind: str) -> re.Pattern[str]:
    """Return the pattern of the words of one *kind* in all languages, as a clause begins with them."""
    found = (word for table in _tables().values() for word in table.get(kind, ()))
    # Of one letter, one language's link is another's pronoun: "i" is "and" in Polish.
    words = sorted((word for word in found if len(word) > 1 or not word.isascii()), key=len, reverse=True)
    return re.compile("|".join(map(_word, words)), re.IGNORECASE)


@cache
def _tables() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the phrases by language: read when the first clause is looked at, and once."""
    text = files(__package__).joinpath("padding.yaml").read_text(encoding="utf-8")
    tables = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  (either is the safe one)
    return cast(Mapping[str, Mapping[str, Sequence[str]]], tables)


def _of_language(table: Mapping[str, Sequence[str]]) -> str:
    calls = "|".join(map(re.escape, table["calls"]))
    links = "|".join(map(_word, table.get("links", ())))
    asks = "|".join("".join(map(_word, ask.split())) for ask in table.get("asks", ()))
    wanted = rf"|(?:{links}){{0,3}}(?:{asks})(?=\S)" if links else rf"|(?:{asks})(?=\S)" if asks else ""
    return rf"(?:{calls})[,.!،，、。！]{{1,3}}\s?(?=\w){wanted}"


def _word(written: str) -> str:
    """Return the pattern of a word and the space behind it."""
    bare = written.strip("()")
    found = rf"(?:{'|'.join(map(re.escape, bare.split('|')))})\s{'?' if _UNSPACED.search(bare) else ''}"
    return f"(?:{found})?" if written != bare else found


# --- rounds and an earlier summary as statements: single lines, each of which may stand alone in a summary --------


class Section(StrEnum):
    """The headings of a summary, in their order; the next summary is told apart by them."""

    #: What the user came for: their first message.
    GOAL = "Goal:"
    INSTRUCTIONS = "Instructions from the user:"
    #: One item per message, oldest first; ``GAP`` stands where words of it are left out.
    SAID = "What the user said:"
    #: Statements of a summary that this module did not write.
    EARLIER = "From an earlier summary:"
    FACTS = "Facts and results:"
    DONE = "What was done:"
    FILES = "Files and ids in play:"
    OPEN = "Open items:"
    #: The newest round: the user's words after ``User: ``, those of agents after their names.
    NOW = "Where we are:"


#: Before the user's words where others' stand as well.
USER_SAYS = "User: "
#: Stands for words that a message has and its item does not; an item that begins with it lacks the message's opening.
GAP = "…"
#: A summary of rounds in which nothing was said. Short: an empty round is, too.
NOTHING = "(No words were said.)"
#: What may stand last in a summary.
END = "(End of the summary.)"


@dataclass(frozen=True, slots=True)
class Statement:
    """One line that a summary may hold."""

    #: As it is printed, on one line.
    text: str
    section: Section
    #: How much its kind counts: a user's words more than a tool's.
    weight: float
    #: The round it comes from, counted from 1 in this request; 0 for the earlier summary.
    round: int
    #: The post it comes from: statements of one post never replace each other. Below 0 for the earlier summary.
    source: int
    #: Its place in a message of the user, from 0; the statements of one message stand in one item of the summary.
    place: int = 0
    #: Whether it is code, or was shown in a block of code: a summary quotes it in backticks.
    code: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _printable(self.text))

    @property
    def of_user(self) -> bool:
        return self.section in _OF_USER

    @property
    def in_message(self) -> bool:
        """Whether it stands with other clauses of its message, in one item."""
        return self.section is Section.SAID or self.section is Section.GOAL

    @property
    def spoken(self) -> bool:
        """Whether it quotes an agent."""
        return self.section is Section.FACTS and self.text[-1:] == '"' and ': "' in self.text


# How much a kind of statement counts. The order is what matters: what the user said cannot be found out again, results
# can; what an agent tells the user is distilled already, what agents tell each other is not.
_USER, _EARLIER, _REPORT, _RESULT = 2.5, 1.5, 1.1, 1.0
_TALK, _PASTED, _PLAN, _CALL, _THOUGHT, _CODE = 0.8, 0.8, 0.6, 0.45, 0.35, 0.3
_OF_SECTION = {
    Section.GOAL: _USER,
    Section.INSTRUCTIONS: _USER,
    Section.SAID: _USER,
    Section.EARLIER: _EARLIER,
    Section.FACTS: _RESULT,
    Section.DONE: _CALL,
    Section.FILES: _RESULT,
    Section.OPEN: _PLAN,
    Section.NOW: _REPORT,
}
_OF_USER = frozenset({Section.GOAL, Section.INSTRUCTIONS, Section.SAID})

#: A user message of more sentences is pasted material, except for its beginning and end.
_LONG_MESSAGE, _FRAME = 40, 6
#: About how many characters a line has at most: of what the user or an earlier summary says, of anything else.
_SENTENCE, _LINE = 400, 240
#: A sentence of the user is parted into clauses before it is cut; without an end, it is cut there.
_MESSAGE = 4_000
#: A longer sentence is no rule because it has the sign of one.
_RULE = 280
#: Items up to this long are joined, to lines up to that long: alone they would lose what they are about.
_ITEM, _LIST = 80, 160
#: A longer word is none.
_BLOB = 160


def from_summary(summary: str) -> Iterator[Statement]:
    """Yield the statements of an earlier summary: this module's own items as they were, other text by sentences."""
    section = Section.EARLIER
    lines = summary.strip().split("\n")
    for number, line in enumerate(map(str.strip, lines)):
        source = number - len(lines)
        heading = _HEADINGS.get(line.lstrip("# ").removesuffix(":"))
        if heading is not None and (heading is not Section.GOAL or line == heading):  # "## Goal" heads a model's words
            section = heading
        elif not line or line.startswith("#"):  # what follows without a heading of ours was written by somebody else
            section = Section.EARLIER
        elif line in {NOTHING, END}:
            continue
        elif section is not Section.EARLIER and (item := _ITEM_MARK.match(line)):
            yield from _of_item(line[item.end() :], section, source)
        elif not (line.endswith(":") and len(line) < 60):
            # Under a heading of ours too: what is no bullet there was written by somebody else.
            for sentence in sentences(_LIST_MARK.sub("", line), _SENTENCE):
                yield Statement(sentence, Section.EARLIER, _EARLIER, 0, source)


def _of_item(item: str, section: Section, source: int) -> Iterator[Statement]:
    if section is Section.NOW:
        # What was newest is not any more; the names in front say whose words they are.
        section = Section.SAID if item.startswith(USER_SAYS) else Section.FACTS
        item = item.removeprefix(USER_SAYS)
    if section not in {Section.GOAL, Section.SAID}:
        yield Statement(item, section, _OF_SECTION[section], 0, source)
        return
    place = 0
    for part in item.split(f" {GAP} "):
        place += part.startswith(f"{GAP} ")
        for text, code in _marked(part.removeprefix(f"{GAP} ")):
            yield Statement(text, section, _OF_SECTION[section], 0, source, place, code)
            place += 1
        place += 1


#: How this module lists, and how notes are.
_ITEM_MARK = re.compile(r"(?:-|\d+\.) ")
#: Without what stands around them, which is not the same where a summary is written as notes.
_HEADINGS = {section.removesuffix(":"): section for section in Section}


def from_rounds(rounds: Sequence[Round], *, queries: bool = True) -> Iterator[Statement]:
    """Yield the statements of *rounds*, oldest first; without the rounds' user queries where *queries* is False."""
    calls: dict[str, str] = {}
    plans = _newest_plans(rounds)
    question = ""
    source = 0
    for number, round_ in enumerate(rounds, 1):
        source += 1
        if queries:
            yield from _said(round_.user_query, number, source, question)
        for place, post in enumerate(round_.post_list):
            source += 1
            calls.update((call.id, _call_label(call)) for call in post.tool_calls)
            if is_summary(post):
                yield from _reduced(post.message, number, source)
            elif post.send_from != USER:
                for part in results_apart(post):
                    yield from _posted(part, calls, plans, number, source)
            elif not (queries and place == 0 and repeats_query(post, round_)):
                yield from _said(post.message, number, source)
        question = _question(next((post.message for post in reversed(round_.post_list) if post.message), ""))


def _reduced(summary: str, number: int, source: int) -> Iterator[Statement]:
    """Yield what stands for posts that were summarised: nobody said it, so it gives no instruction of the user's."""
    for one in from_summary(summary):
        section = Section.EARLIER if one.of_user else one.section
        yield replace(one, section=section, weight=_OF_SECTION[section], round=number, source=source, place=0)


def as_facts(action: Statement) -> Iterator[Statement]:
    """Yield the outcome that an action's line names as facts, just as the result itself would be read."""
    call, _, outcome = action.text.partition(" → ")
    for line in _result_lines(outcome, call):
        yield replace(action, text=line, section=Section.FACTS, weight=_RESULT)


def _said(message: str, number: int, source: int, question: str = "") -> Iterator[Statement]:
    found = list(_user_sentences(message)) or [(signs, False, False) for signs in _signs(message)]
    # Of code itself a summary of the same length holds nothing that can be used: only what it says in words.
    found = [one for one in found if not (is_code(one[0]) or (one[2] and not _WORDED.search(one[0])))] or found
    place = 0
    for index, (sentence, listed, code) in enumerate(found):
        pasted = len(found) > _LONG_MESSAGE and min(index, len(found) - 1 - index) >= _FRAME
        weight = _CODE if code else _PASTED if pasted else _USER
        if question and len(found) == 1 and len(sentence) <= 40 and sentence[-1] not in "?？":
            parts = [(f'{sentence} (asked: "{question}")', _ruled(sentence))]
        else:
            parts = [(sentence, False)] if code else list(_clauses_ruled(sentence, listed))
        for text, ruled in parts:
            section = Section.INSTRUCTIONS if ruled and not pasted else Section.SAID
            told = text if code or section is Section.INSTRUCTIONS else without_padding(text)
            yield Statement(told, section, weight, number, source, place, code)
            place += 1


def _clauses_ruled(sentence: str, listed: bool) -> Iterator[tuple[str, bool]]:
    """Yield the clauses of *sentence*, and whether each is a standing instruction.

    A rule stands whole; a long sentence is one only where it forbids something. Of "I'm setting up X, and I prefer Y,
    can you ...?" only the clause with the wish is an instruction, with the clause before it where that is its reason.
    """
    if listed or (len(sentence) <= _RULE and instruction_strength(sentence) == 1) or is_prohibition(sentence):
        yield from ((piece, True) for piece in _wrapped(sentence, _SENTENCE))
        return
    before = ""
    for clause in clauses(sentence):
        for piece in (clause,) if len(clause) <= _SENTENCE else _wrapped(clause, _SENTENCE):
            ruled = _ruled(piece)
            whole = f"{before} {piece}" if ruled and before and has_reason(piece) else piece
            if before and whole == piece:
                yield before, False
            before = ""
            if ruled:
                yield (without_link(whole) if len(whole) < len(sentence) else whole), True
            else:
                before = piece
    if before:
        yield before, False


def _ruled(text: str) -> bool:
    return instruction_strength(text) > 0


def _user_sentences(message: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield (sentence, whether it is an item below a line of instruction, and so an instruction, too; whether code)."""
    for number, part in enumerate(message.split(_FENCE)):
        if number % 2:
            # Behind the fence stands the language.
            body = part.partition("\n")[2] if "\n" in part else part
            yield from ((line, False, True) for line in sentences(body, _LINE))
        else:
            yield from ((sentence, listed, False) for sentence, listed in _prose_sentences(part))


def _prose_sentences(message: str) -> Iterator[tuple[str, bool]]:
    ruling = False
    for prose, fields in structures(message):
        for line in _lines(prose):
            item = _LIST_MARK.match(line)
            ruling = ruling and item is not None
            yield from ((sentence, ruling) for sentence in _split(line[item.end() :] if item else line, _MESSAGE))
            if line[-1] in ":：" and not item:
                ruling = instruction_strength(line) > 0
        for field in fields:
            yield from ((line, False) for line in sentences(field, _LINE))


def _signs(message: str) -> Iterator[str]:
    """Yield what a message without words says in emoji: a thumb up is an answer."""
    signs = _printable(message[:_BLOB]).replace("\ufffd", "")
    if any(unicodedata.category(sign) == "So" for sign in signs):
        yield signs


def _question(message: str) -> str:
    """Return the question that *message* ends with, if it is short: an answer such as "yes" means nothing without."""
    asked = list(sentences(message[-400:], _LINE))[-1:]
    return asked[0] if asked and asked[0][-1] in "?？" and len(asked[0]) <= 160 else ""


# --- agents and tools -------------------------------------------------------------------------------------------------


def _posted(post: Post, calls: dict[str, str], plans: set[str], number: int, source: int) -> Iterator[Statement]:
    sender = _name(post.send_from)
    if post.tool_call_id is not None:
        for line in _result_lines(post.message, calls.get(post.tool_call_id, sender)):
            yield Statement(line, Section.FACTS, _RESULT, number, source)
    else:
        weight = _REPORT if post.send_to == USER else _TALK
        for line in _told(post.message):
            yield Statement(f'{sender}: "{line}"', Section.FACTS, weight, number, source)
    for attachment in post.attachment_list:
        yield from _attached(attachment, plans, number, source)


def _told(message: str) -> Iterator[str]:
    """Yield what an agent tells in words: its code is in files, and without what is said of it of no use."""
    prose = "\n".join(part for part in message.split(_FENCE)[::2])
    lines = list(sentences(_BOLD.sub(r"\1", _HEADING.sub("", prose)), _LINE))
    worded = [line for line in lines if not is_code(line)]
    yield from worded or lines or sentences(message, _LINE)


#: A heading says nothing alone.
_HEADING = re.compile(r"^ {0,3}(?:#{1,6} |\*\*[^*\n]{1,100}\*\*[ :]{0,3}$)[^\n]{0,200}", re.MULTILINE)


def _attached(attachment: Attachment, plans: set[str], number: int, source: int) -> Iterator[Statement]:
    label, words = _name(attachment.type), _words_of(attachment.type)
    if "plan" in words:
        if attachment.id in plans:
            steps = "; ".join(sentences(attachment.content, _LINE))
            yield from (
                Statement(f"{label}{_PLANS}{s}", Section.OPEN, _PLAN, number, source)
                for s in _wrapped(steps, _SENTENCE)
            )
    elif words & _CODE_KINDS:
        for line in sentences(attachment.content, _LINE):
            yield Statement(f"{label} → {line}", Section.DONE, _THOUGHT, number, source)
    else:
        for line in _result_lines(attachment.content, label):
            yield Statement(line, Section.FACTS, _RESULT, number, source)


_FENCE = "```"
#: In a block of code three words in a row are a message or a remark.
_WORDED = re.compile(r"(?:[^\W\d_]{2,30} ){2}[^\W\d_]{2}")
_CODE_KINDS = frozenset(("thought", "code", "python", "reply", "sql", "verification", "reason", "status"))
_WORD_OF_KIND = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_BOLD = re.compile(r"(?<![\w*])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![\w*])")


def _words_of(kind: str) -> set[str]:
    """Return the words of a *kind* such as ``init_plan`` or ``currentPlan``; an ``explanation`` is no plan."""
    return {word.lower() for word in _WORD_OF_KIND.findall(kind[:_BLOB])}


def _newest_plans(rounds: Sequence[Round]) -> set[str]:
    """Return the ids of the plans that no later plan of the same role and type replaces."""
    newest = {
        (post.send_from, attachment.type): attachment.id
        for round_ in rounds
        for post in round_.post_list
        for attachment in post.attachment_list
        if "plan" in _words_of(attachment.type)
    }
    return set(newest.values())


def without_old_plans(earlier: Iterable[Statement], new: Iterable[Statement]) -> list[Statement]:
    """Return *earlier* without the plans in whose place *new* has one of the same type."""
    planned = {_planned_by(one) for one in new if one.section is Section.OPEN}
    return [one for one in earlier if one.section is not Section.OPEN or _planned_by(one) not in planned]


#: Stands between the type of a plan and what it says.
_PLANS = " → "


def _planned_by(statement: Statement) -> str:
    return statement.text.partition(_PLANS)[0]


def _name(name: str) -> str:
    """Return a role's, tool's or attachment's name as a label: one short line, whatever the host called it, and not the
    user's name, which says whose words follow."""
    label = beginning(_printable(beginning(name, 80)), 40).rstrip(": ") or "unnamed"
    return f"{label} (not the user)" if label == USER_SAYS.rstrip(": ") else label


def _call_label(call: ToolCall) -> str:
    arguments = call.arguments.strip()
    found = field_lines(arguments) if arguments[:1] in {"{", "["} else None
    lines = found[0] if found else []
    brief = _printable(lines[0]) if lines else ""
    return f"{_name(call.name)}({brief})" if 0 < len(brief) <= 60 else _name(call.name)


#: How lines of a summary begin that are not a tool's: a result that begins so is not to be taken for one.
_OWN_WORDS = tuple(words.strip().casefold() for words in (*Section, USER_SAYS))


def _result_lines(text: str, label: str) -> Iterator[str]:
    """Yield the lines of a result; those that mean little alone, look like another's or give an order begin with their
    call: what a tool says to do is not to be read as a fact, or as the user's wish."""
    name, _, brief = label.partition("(")
    for prose, fields in structures(text):
        for line in sentences(prose, _LINE, listed=False):
            alone = " " in line and _PLAIN_WORD.search(line) and not line.casefold().startswith(_OWN_WORDS)
            yield line if alone and instruction_strength(line) < 1 else f"{label} → {line}"
        for field in fields:
            for line in sentences(field, _LINE):
                # The first field often says what was asked for: no need to say it twice.
                yield f"{name if brief[:-1] in line else label} → {line}"


# --- sentences --------------------------------------------------------------------------------------------------------

# What a terminal or a browser acts on, but nobody reads.
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# A closing tag of thoughts would make whoever strips thoughts from answers drop all that stands before it.
_THOUGHT_TAG = re.compile(r"<(/?(?:think|thinking|reasoning|summary))>", re.IGNORECASE)

_LIST_MARK = re.compile(r"^(?:[-*•–]|\(?\d{1,3}[.)])\s{1,8}(?=\S)")
# All that may end one stands at the pattern's head: so the places where none does are passed over quickly.
_END = re.compile(
    r"[.!?…。！？；](?:(?<=[.!?…])[.!?…]{0,3}[\"'”’)\]*]{0,3} (?=\S)|(?<=[。！？；])[。！？；]{0,3}[」』”）]{0,2})"
)
_ABBREVIATION = re.compile(
    r"(?:\b(?:mr|mrs|ms|dr|st|no|vs|etc|approx|fig|inc|ltd|jr|sr|prof|nr|ca|bzw|z\.b|e\.g|i\.e|u\.s|(?<!['’])\w)|^\(?\d{1,3})\.$",
    re.IGNORECASE,
)
_CJK_CHAR = re.compile(f"[{CJK}]")
_PLAIN_WORD = re.compile(rf"[{CJK}]{{2}}|\b[^\W\d_]{{3,40}}\b")


def sentences(text: str, limit: int, *, listed: bool = True) -> Iterator[str]:
    """Yield the sentences of *text*, and the fields of what it holds in JSON, each on one line of about *limit*
    characters; short items of a list are joined, where not *listed* only to the line that introduces them."""
    for prose, fields in structures(text):
        for line in _with_items(_lines(prose), min(limit, _LIST), listed):
            yield from _split(line, limit)
        for field in fields:
            for line in _lines(field):
                yield from _split(line, limit)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line and not line.isspace():
            yield " ".join(line.split())


def _with_items(lines: Iterator[str], limit: int, listed: bool) -> Iterator[str]:
    """Yield *lines* without list marks, short items of a list joined to each other and to what introduces them.

    A line that introduces a list says nothing alone, and is left out where there are no short items.
    """
    opening, items = "", ""
    for line in lines:
        mark = _LIST_MARK.match(line)
        text = line[mark.end() :] if mark else line
        if mark and len(text) <= _ITEM and (listed or opening):
            if items and len(opening) + len(items) + len(text) > limit:
                yield opening + items
                items = ""
            items = f"{items}; {text}" if items else text
            continue
        if items:
            yield opening + items
        opening, items = (f"{line} ", "") if line[-1] in ":：" and not mark else ("", "")
        if not opening:
            yield text
    if items:
        yield opening + items


def _split(line: str, limit: int) -> Iterator[str]:
    start = 0
    for match in _END.finditer(line):
        before = line[max(start, match.start() - 12) : match.start() + 1]
        if match[0] == ". " and _ABBREVIATION.search(before):
            continue
        if len(match[0]) > 3 and line[match.end() : match.end() + 1].islower():
            continue  # "well... maybe"
        yield from _wrapped(line[start : match.end()].strip(), limit)
        start = match.end()
    yield from _wrapped(line[start:].strip(), limit)


def _wrapped(sentence: str, limit: int) -> Iterator[str]:
    """Yield *sentence* in pieces of at most about *limit* characters, cut between words, if it says anything."""
    if not any(map(str.isalnum, sentence)):
        return
    if len(sentence) <= limit:
        yield sentence
        return
    piece: list[str] = []
    size = 0
    for part in (part for word in sentence.split(" ") for part in _parts(word)):
        if piece and size + len(part) > limit:
            yield " ".join(piece)
            piece, size = [], 0
        piece.append(part)
        size += len(part) + 1
    yield " ".join(piece)


def clauses(sentence: str) -> Iterator[str]:
    """Yield *sentence* in parts that end with a comma or semicolon outside brackets and quotes, none of them short."""
    start, depth, quoted = 0, 0, False
    for mark in _CLAUSE_MARK.finditer(sentence):
        sign = mark[0]
        if sign in _OPENED:
            depth += 1
        elif sign in _CLOSED:
            depth = max(0, depth - 1)
        elif sign == '"':
            quoted = not quoted
        elif not depth and not quoted:
            end = mark.end()
            if _width(sentence[start:end]) >= _CLAUSE and _width(sentence[end : end + _CLAUSE]) >= _CLAUSE:
                yield sentence[start:end]
                start = end + (sentence[end] == " ")
    yield sentence[start:]


#: A clause with fewer characters goes with its neighbour. Those of scripts without spaces count twice.
_CLAUSE = 40
_CLAUSE_MARK = re.compile(r"[,;](?= (?:[^\W\d]|[¿¡]))|[，；、،؛]|[()\[\]{}（）「」『』“”«»\"]")
_OPENED, _CLOSED = frozenset("([{（「『“«"), frozenset(")]}）」』”»")


def _width(text: str) -> int:
    return len(text) + len(_CJK_CHAR.findall(text))


def _marked(item: str) -> Iterator[tuple[str, bool]]:
    """Yield the clauses of what stands between two gaps of a message's item, and whether they are code."""
    if len(item) > 2 and item[0] == item[-1] == "`" and "`" not in item[1:-1]:
        yield item[1:-1], True
        return
    for sentence in _split(item, len(item)):
        yield from ((clause, False) for clause in clauses(sentence))


def _parts(word: str) -> Iterator[str]:
    """Yield *word*; what is too long for one is text without spaces, or data of which the beginning is enough."""
    if len(word) <= _BLOB:
        yield word
    elif _CJK_CHAR.search(word, 0, _BLOB):
        yield from (word[i : i + _BLOB] for i in range(0, len(word), _BLOB))
    else:
        yield f"{beginning(word, 40)}…"


def _printable(text: str) -> str:
    # A space rather than nothing: what it parts must not become one number.
    seen = " ".join(_CONTROL.sub(" ", text).split())
    return _THOUGHT_TAG.sub(r"[\1]", _SURROGATE.sub("\ufffd", seen))
