"""Split rounds and an earlier summary into statements: single lines that make sense alone in a summary."""

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

from memory.messages import repeats_query, split_results
from memory.references import beginning
from memory.rounds import USER, Attachment, Post, Round, ToolCall

from ..acceptance.content import CJK, is_code
from ..prompt.groups import is_summary
from .cues import instruction_strength, is_prohibition
from .results import field_lines, structures

#: Minimum characters left of a shortened clause; otherwise it stays whole.
MIN_REST = 12
#: Scripts without spaces: no space need follow a phrase.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3005-\u30ff\u3400-\u9fff]")


def without_padding(clause: str) -> str:
    """Return *clause* without its introductory phrases; the rest is unchanged."""
    phrases, read = _phrases(), clause.replace("’", "'")
    start = 0
    while (match := phrases.match(read, start)) and len(read) - match.end() >= MIN_REST:
        start = match.end()
    return clause[start:]


def has_reason(clause: str) -> bool:
    """Return whether *clause* gives a consequence of the clause before it: "so I prefer ..."."""
    return _starts("so").match(clause) is not None


def without_link(clause: str) -> str:
    """Return *clause* without a leading "and" or "so" and without a trailing comma."""
    match = _starts("links").match(clause) or _starts("so").match(clause)
    start = match.end() if match and len(clause) - match.end() >= MIN_REST else 0
    return clause[start:].rstrip(",;，；、،؛ ")


@cache
def _phrases() -> re.Pattern[str]:
    """Return the pattern of all introductory phrases in all languages."""
    return re.compile("|".join(map(_of_language, _tables().values())), re.IGNORECASE)


@cache
def _starts(kind: str) -> re.Pattern[str]:
    """Return the pattern of the words of one *kind* in all languages, at the beginning of a clause."""
    found = (word for table in _tables().values() for word in table.get(kind, ()))
    # Skip single letters: "i" is "and" in Polish, but a pronoun in English.
    words = sorted((word for word in found if len(word) > 1 or not word.isascii()), key=len, reverse=True)
    return re.compile("|".join(map(_word, words)), re.IGNORECASE)


@cache
def _tables() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the phrases by language. Loaded once, for the first clause."""
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
    """Return the pattern of a word and the space after it."""
    bare = written.strip("()")
    found = rf"(?:{'|'.join(map(re.escape, bare.split('|')))})\s{'?' if _UNSPACED.search(bare) else ''}"
    return f"(?:{found})?" if written != bare else found


# --- statements: single lines that make sense alone in a summary ------------------------------------------------------


class Section(StrEnum):
    """The headings of a summary, in order; the next compaction parses the summary by them."""

    #: The user's first message, which states the goal.
    GOAL = "Goal:"
    INSTRUCTIONS = "Instructions from the user:"
    #: One item per message, oldest first; ``GAP`` marks omitted words.
    SAID = "What the user said:"
    #: Statements of a summary that this module did not write.
    EARLIER = "From an earlier summary:"
    FACTS = "Facts and results:"
    DONE = "What was done:"
    FILES = "Files and ids in play:"
    OPEN = "Open items:"
    #: The newest round: the user's words after ``User: ``, agents' words after their names.
    NOW = "Where we are:"


#: Label of the user's words in a section with several speakers.
USER_SAYS = "User: "
#: Marks words of a message omitted from its item; an item that begins with it lacks the message's opening.
GAP = "…"
#: The summary of rounds without words. Short, because such rounds are short too.
NOTHING = "(No words were said.)"
#: Optional last line of a summary.
END = "(End of the summary.)"


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of a possible summary."""

    #: Printed form, on one line.
    text: str
    section: Section
    #: Weight of its kind: a user's words count more than a tool's.
    weight: float
    #: The round it comes from, counted from 1 in this request; 0 for the earlier summary.
    round: int
    #: The post it comes from: statements of one post never replace each other. Below 0 for the earlier summary.
    source: int
    #: Its place in a user's message, from 0; a summary prints the statements of one message as one item.
    place: int = 0
    #: True for code and for text from a code block: a summary quotes it in backticks.
    code: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _printable(self.text))

    @property
    def of_user(self) -> bool:
        return self.section in _OF_USER

    @property
    def in_message(self) -> bool:
        """True if it shares an item with other clauses of its message."""
        return self.section is Section.SAID or self.section is Section.GOAL

    @property
    def spoken(self) -> bool:
        """True if it quotes an agent."""
        return self.section is Section.FACTS and self.text[-1:] == '"' and ': "' in self.text


# Weights by kind of statement. Only the order matters: results can be found again, the user's words cannot; an agent's
# report to the user is distilled already, agents' messages to each other are not.
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

#: A user message with more sentences is pasted material, except for this many at its beginning and end.
_LONG_MESSAGE, _FRAME = 40, 6
#: Approximate maximum characters of a line: from the user or an earlier summary, and from anything else.
_SENTENCE, _LINE = 400, 240
#: Maximum characters of a user's sentence before splitting into clauses; an endless one is cut here.
_MESSAGE = 4_000
#: In a longer sentence, a cue does not make the whole sentence a rule.
_RULE = 280
#: List items up to the first length are joined to lines up to the second: alone they would lose their subject.
_ITEM, _LIST = 80, 160
#: Maximum characters of a word; anything longer is data.
_BLOB = 160


def from_summary(summary: str) -> Iterator[Statement]:
    """Yield the statements of an earlier summary: this module's own items unchanged, other text by sentences."""
    section = Section.EARLIER
    lines = summary.strip().split("\n")
    for number, line in enumerate(map(str.strip, lines)):
        source = number - len(lines)
        heading = _HEADINGS.get(line.lstrip("# ").removesuffix(":"))
        if heading is not None and (heading is not Section.GOAL or line == heading):  # "## Goal" is a model's heading
            section = heading
        elif not line or line.startswith("#"):  # text without a heading of ours has another author
            section = Section.EARLIER
        elif line in {NOTHING, END}:
            continue
        elif section is not Section.EARLIER and (item := _ITEM_MARK.match(line)):
            yield from _of_item(line[item.end() :], section, source)
        elif not (line.endswith(":") and len(line) < 60):
            # Below a heading of ours too, a line without a bullet has another author.
            for sentence in sentences(_LIST_MARK.sub("", line), _SENTENCE):
                yield Statement(sentence, Section.EARLIER, _EARLIER, 0, source)


def _of_item(item: str, section: Section, source: int) -> Iterator[Statement]:
    if section is Section.NOW:
        # The newest round is now an older one; the labels name the speakers.
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


#: List marks of this module and of notes.
_ITEM_MARK = re.compile(r"(?:-|\d+\.) ")
#: Headings without the colon, because notes format them differently.
_HEADINGS = {section.removesuffix(":"): section for section in Section}


def from_rounds(rounds: Sequence[Round], *, queries: bool = True) -> Iterator[Statement]:
    """Yield the statements of *rounds*, oldest first. Skips the rounds' user queries if *queries* is False."""
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
                for part in split_results(post):
                    yield from _posted(part, calls, plans, number, source)
            elif not (queries and place == 0 and repeats_query(post, round_)):
                yield from _said(post.message, number, source)
        question = _question(next((post.message for post in reversed(round_.post_list) if post.message), ""))


def _reduced(summary: str, number: int, source: int) -> Iterator[Statement]:
    """Yield the statements of a summary post. Nobody said these words, so none is a user's instruction."""
    for one in from_summary(summary):
        section = Section.EARLIER if one.of_user else one.section
        yield replace(one, section=section, weight=_OF_SECTION[section], round=number, source=source, place=0)


def as_facts(action: Statement) -> Iterator[Statement]:
    """Yield the outcome in an action's line as facts, parsed like the result itself."""
    call, _, outcome = action.text.partition(" → ")
    for line in _result_lines(outcome, call):
        yield replace(action, text=line, section=Section.FACTS, weight=_RESULT)


def _said(message: str, number: int, source: int, question: str = "") -> Iterator[Statement]:
    found = list(_user_sentences(message)) or [(signs, False, False) for signs in _signs(message)]
    # Skip code: a summary has no room for a usable amount of it. Keep its messages and comments in words.
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
    """Yield (clause of *sentence*, True for a standing instruction).

    A rule stays whole; a long sentence counts as a rule only if it forbids something. In "I'm setting up X, and I
    prefer Y, can you ...?" only the clause with the wish is an instruction. The clause before it joins it if that gives
    the reason.
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
    """Yield (sentence, is it a list item below an instruction and so an instruction itself, is it code)."""
    for number, part in enumerate(message.split(_FENCE)):
        if number % 2:
            # The language name follows the fence.
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
    """Yield the emoji of a message without words: a thumbs-up is an answer."""
    signs = _printable(message[:_BLOB]).replace("\ufffd", "")
    if any(unicodedata.category(sign) == "So" for sign in signs):
        yield signs


def _question(message: str) -> str:
    """Return the short question at the end of *message*, or "": an answer such as "yes" means nothing without it."""
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
    """Yield the lines of an agent's prose, without its code: that is in files, and useless without the prose."""
    prose = "\n".join(part for part in message.split(_FENCE)[::2])
    lines = list(sentences(_BOLD.sub(r"\1", _HEADING.sub("", prose)), _LINE))
    worded = [line for line in lines if not is_code(line)]
    yield from worded or lines or sentences(message, _LINE)


#: Headings are dropped: alone they say nothing.
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
#: Three words in a row in a code block are a message or a comment.
_WORDED = re.compile(r"(?:[^\W\d_]{2,30} ){2}[^\W\d_]{2}")
_CODE_KINDS = frozenset(("thought", "code", "python", "reply", "sql", "verification", "reason", "status"))
_WORD_OF_KIND = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_BOLD = re.compile(r"(?<![\w*])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![\w*])")


def _words_of(kind: str) -> set[str]:
    """Return the words of a *kind* such as ``init_plan`` or ``currentPlan``, so that ``explanation`` is no plan."""
    return {word.lower() for word in _WORD_OF_KIND.findall(kind[:_BLOB])}


def _newest_plans(rounds: Sequence[Round]) -> set[str]:
    """Return the ids of the newest plans, one per role and type."""
    newest = {
        (post.send_from, attachment.type): attachment.id
        for round_ in rounds
        for post in round_.post_list
        for attachment in post.attachment_list
        if "plan" in _words_of(attachment.type)
    }
    return set(newest.values())


def without_old_plans(earlier: Iterable[Statement], new: Iterable[Statement]) -> list[Statement]:
    """Return *earlier* without the plans that *new* replaces with one of the same type."""
    planned = {_planned_by(one) for one in new if one.section is Section.OPEN}
    return [one for one in earlier if one.section is not Section.OPEN or _planned_by(one) not in planned]


#: Separates a plan's type from its text.
_PLANS = " → "


def _planned_by(statement: Statement) -> str:
    return statement.text.partition(_PLANS)[0]


def _name(name: str) -> str:
    """Return a role's, tool's or attachment's name as a label: one short line, for any name that the host chose.

    Never the user's label, which would attribute the text to the user.
    """
    label = beginning(_printable(beginning(name, 80)), 40).rstrip(": ") or "unnamed"
    return f"{label} (not the user)" if label == USER_SAYS.rstrip(": ") else label


def _call_label(call: ToolCall) -> str:
    arguments = call.arguments.strip()
    found = field_lines(arguments) if arguments[:1] in {"{", "["} else None
    lines = found[0] if found else []
    brief = _printable(lines[0]) if lines else ""
    return f"{_name(call.name)}({brief})" if 0 < len(brief) <= 60 else _name(call.name)


#: Beginnings of a summary's own lines; a tool's result must not pass for one of them.
_OWN_WORDS = tuple(words.strip().casefold() for words in (*Section, USER_SAYS))


def _result_lines(text: str, label: str) -> Iterator[str]:
    """Yield the lines of a result.

    A line begins with its call's label if it means little alone, looks like a summary's own line or gives an order: a
    tool's order must not read as a fact or as the user's wish.
    """
    name, _, brief = label.partition("(")
    for prose, fields in structures(text):
        for line in sentences(prose, _LINE, listed=False):
            alone = " " in line and _PLAIN_WORD.search(line) and not line.casefold().startswith(_OWN_WORDS)
            yield line if alone and instruction_strength(line) < 1 else f"{label} → {line}"
        for field in fields:
            for line in sentences(field, _LINE):
                # The first field often repeats the arguments; then the call's name is enough.
                yield f"{name if brief[:-1] in line else label} → {line}"


# --- sentences --------------------------------------------------------------------------------------------------------

# Control sequences: a terminal or browser acts on them, nobody reads them.
_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Code that strips thoughts from answers would drop all text before a closing tag.
_THOUGHT_TAG = re.compile(r"<(/?(?:think|thinking|reasoning|summary))>", re.IGNORECASE)

_LIST_MARK = re.compile(r"^(?:[-*•–]|\(?\d{1,3}[.)])\s{1,8}(?=\S)")
# The pattern starts with all possible end characters, so the search skips other text quickly.
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
    """Yield the sentences of *text*, and the fields of any JSON in it, each on one line of about *limit* characters.

    Short list items are joined; without *listed*, only to the line that introduces them.
    """
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
    """Yield *lines* without list marks; short list items are joined to each other and to their introduction.

    An introduction without short items is left out: alone it says nothing.
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
    """Yield *sentence* in pieces of about *limit* characters, cut between words; nothing without letters or digits."""
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
    """Yield *sentence* split at commas and semicolons outside brackets and quotes, without short parts."""
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


#: Minimum characters of a clause; a shorter one joins its neighbour. Characters of scripts without spaces count twice.
_CLAUSE = 40
_CLAUSE_MARK = re.compile(r"[,;](?= (?:[^\W\d]|[¿¡]))|[，；、،؛]|[()\[\]{}（）「」『』“”«»\"]")
_OPENED, _CLOSED = frozenset("([{（「『“«"), frozenset(")]}）」』”»")


def _width(text: str) -> int:
    return len(text) + len(_CJK_CHAR.findall(text))


def _marked(item: str) -> Iterator[tuple[str, bool]]:
    """Yield (clause, is it code) for the text between two gaps of a message's item."""
    if len(item) > 2 and item[0] == item[-1] == "`" and "`" not in item[1:-1]:
        yield item[1:-1], True
        return
    for sentence in _split(item, len(item)):
        yield from ((clause, False) for clause in clauses(sentence))


def _parts(word: str) -> Iterator[str]:
    """Yield *word*, split if it is long text without spaces; of other overlong data, only the beginning."""
    if len(word) <= _BLOB:
        yield word
    elif _CJK_CHAR.search(word, 0, _BLOB):
        yield from (word[i : i + _BLOB] for i in range(0, len(word), _BLOB))
    else:
        yield f"{beginning(word, 40)}…"


def _printable(text: str) -> str:
    # A space, not an empty string: two numbers must not merge.
    seen = " ".join(_CONTROL.sub(" ", text).split())
    return _THOUGHT_TAG.sub(r"[\1]", _SURROGATE.sub("\ufffd", seen))
