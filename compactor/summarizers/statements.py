"""Read rounds and an earlier summary as statements: single lines that make sense alone in a summary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

from memory.messages import repeats_query, split_results
from memory.patterns import compile_later
from memory.references import take_beginning
from memory.rounds import USER, Post, Round, ToolCall, copy_with
from memory.values import ValueObject

from ..prompt.groups import is_summary
from .actions import ARROW, name_words
from .answers import is_greeting
from .content import CJK, UNSPACED, is_code, load_table
from .cues import is_prohibition, rate_instruction
from .results import find_field_lines, find_structures, flatten
from .sentences import (
    LIST_MARK,
    LONG_MESSAGE,
    MAX_WORD,
    MESSAGE_ENDS,
    Section,
    is_heading,
    keep_letters,
    split_clauses,
    split_line,
    split_lines,
    split_sentences,
    strip_list_mark,
    wrap,
)

#: Label of the user's words in a section with several speakers.
USER_SAYS = "User: "
#: Marks words of a message omitted from its item; an item that begins with it lacks the message's opening.
GAP = "…"
#: The summary of rounds without words. Short, because such rounds are short too.
NOTHING = "(No words were said.)"
#: Optional last line of a summary.
END = "(End of the summary.)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Statement(ValueObject):
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
    index: int = 0
    #: True for code and for text from a code block: a summary quotes it in backticks.
    code: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _clean(self.text))

    @property
    def of_user(self) -> bool:
        return self.section in _OF_USER

    @property
    def in_message(self) -> bool:
        """True if it shares an item with other clauses of its message."""
        return self.section is Section.SAID or self.section is Section.GOAL

    @property
    def is_rule(self) -> bool:
        """True if it is a user's instruction, or reads like a rule in a foreign summary."""
        foreign = self.section is Section.EARLIER and rate_instruction(self.text) == 1
        return foreign or self.section is Section.INSTRUCTIONS

    @property
    def spoken(self) -> bool:
        """True if it quotes an agent."""
        return self.section is Section.FACTS and self.text[-1:] == '"' and ': "' in self.text


# Weights by kind of statement. Only the order matters: results can be found again, the user's words cannot; an agent's
# report to the user is distilled already, agents' messages to each other are not.
_USER, _EARLIER, _REPORT, _RESULT = 2.5, 1.5, 1.1, 1.0
_TALK, _PASTED, _PLAN, _CALL, _THOUGHT, _CODE = 0.8, 0.8, 0.6, 0.45, 0.35, 0.3
_OF_USER = frozenset({Section.GOAL, Section.INSTRUCTIONS, Section.SAID})
_OTHERS = {Section.EARLIER: _EARLIER, Section.DONE: _CALL, Section.OPEN: _PLAN, Section.NOW: _REPORT}
_OF_SECTION = dict.fromkeys(Section, _RESULT) | dict.fromkeys(_OF_USER, _USER) | _OTHERS

#: Approximate maximum characters of a line: from the user or an earlier summary, and from anything else.
_SENTENCE, _LINE = 400, 240
#: Maximum characters of a user's sentence before splitting into clauses; an endless one is cut here.
_MESSAGE = 4_000
#: In a longer sentence, a cue does not make the whole sentence a rule.
_RULE = 280
#: Minimum characters left of a shortened clause; otherwise it stays whole.
_MIN_REST = 12
#: List marks of this module and of notes.
_ITEM_MARK = compile_later(r"(?:-|\d+\.) ")
#: Headings without the colon, because notes format them differently.
_HEADINGS = {section.removesuffix(":"): section for section in Section}
#: A reader takes a line with a heading's letters for that heading, however it is written.
_HEADING_LETTERS = frozenset(map(keep_letters, Section))
#: Beginnings of a summary's own lines; a tool's result must not pass for one of them.
_OWN_WORDS = tuple(words.strip().casefold() for words in (*Section, USER_SAYS))
#: They still pass for one with these marks.
_MARKS = str.maketrans("：", ":", "*_#>`")
_FENCE = "```"
_FENCES = (_FENCE, "~~~")
#: Three words in a row in a code block are a message or a comment.
_WORDED = compile_later(r"(?:[^\W\d_]{2,30} ){2}[^\W\d_]{2}")
#: Headings are dropped: alone they say nothing.
_HEADING = compile_later(r"^ {0,3}(?:#{1,6} |\*\*[^*\n]{1,100}\*\*[ :]{0,3}$)[^\n]{0,200}", re.MULTILINE)
_BOLD = compile_later(r"(?<![\w*])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![\w*])")
_CODE_KINDS = frozenset(("thought", "code", "python", "reply", "sql", "verification", "reason", "status"))
_PLAIN_WORD = compile_later(rf"[{CJK}]{{2}}|\b[^\W\d_]{{3,40}}\b")
# Code that strips thoughts from answers would drop all text before a closing tag.
_THOUGHT_TAG = compile_later(r"<(/?(?:think|thinking|reasoning|summary))>", re.IGNORECASE)


def from_summary(summary: str) -> Iterator[Statement]:
    """Yield the statements of an earlier summary: this module's own items unchanged, other text by sentences."""
    section = Section.EARLIER
    lines = summary.strip().split("\n")
    is_short = Section.SAID_SHORT in lines
    for number, line in enumerate(map(str.strip, lines)):
        source = number - len(lines)
        heading = _find_heading(line)
        if heading is not None:
            section = heading
        elif not line or line.startswith("#"):  # text without a heading of ours has another author
            section = Section.EARLIER
        elif line in {NOTHING, END}:
            continue
        elif section is not Section.EARLIER and ((item := _ITEM_MARK.match(line)) or is_short):
            yield from _read_item(line[item.end() if item else 0 :], section, source)
        elif not (line.endswith(":") and len(line) < 60):
            # Below a heading of ours too, a line without a bullet has another author.
            for sentence in split_sentences(strip_list_mark(line), _SENTENCE):
                yield Statement(sentence, Section.EARLIER, _EARLIER, 0, source)


def write_bare(item: str) -> str:
    """Return *item* as a line without a bullet; with one if it would read as something else."""
    listed = _ITEM_MARK.match(item) or LIST_MARK.match(item)
    heads = item.startswith("#") or is_heading(item) or keep_letters(item) in _HEADING_LETTERS
    return f"- {item}" if listed or heads or item.startswith(_FENCES) or item in {NOTHING, END} else item


def _find_heading(line: str) -> Section | None:
    heading = _HEADINGS.get(line.lstrip("# ").removesuffix(":"))
    return heading if heading is not Section.GOAL or line == heading else None  # "## Goal" is a model's heading


def _read_item(item: str, section: Section, source: int) -> Iterator[Statement]:
    if section is Section.NOW:
        # The newest round is now an older one; the labels name the speakers.
        section = Section.SAID if item.startswith(USER_SAYS) else Section.FACTS
        item = item.removeprefix(USER_SAYS)
    elif section is Section.SAID_SHORT:
        section = Section.SAID
    if section not in {Section.GOAL, Section.SAID}:
        yield Statement(item, section, _OF_SECTION[section], 0, source)
        return
    place = 0
    for part in item.split(f" {GAP} "):
        run = part.removeprefix(f"{GAP} ")
        place += run != part
        code = len(run) > 2 and run[0] == run[-1] == "`" and "`" not in run[1:-1]
        for text in [run[1:-1]] if code else chain.from_iterable(map(split_clauses, split_line(run, len(run)))):
            yield Statement(text, section, _OF_SECTION[section], 0, source, place, code)
            place += 1
        place += 1


def from_rounds(rounds: Sequence[Round], *, queries: bool = True) -> Iterator[Statement]:
    """Yield the statements of *rounds*, oldest first. Skips the rounds' user queries if *queries* is False."""
    calls: dict[str, str] = {}
    plans = _find_newest_plans(rounds)
    question = ""
    source = 0
    for number, round_ in enumerate(rounds, 1):
        source += 1
        if queries:
            yield from _read_user(round_.user_query, partial(Statement, round=number, source=source), question)
        for place, post in enumerate(round_.post_list):
            source += 1
            make = partial(Statement, round=number, source=source)
            calls.update((call.id, _call_label(call)) for call in post.tool_calls)
            if is_summary(post):
                # Nobody said these words, so none is a user's instruction.
                for one in from_summary(post.message):
                    section = Section.EARLIER if one.of_user else one.section
                    yield make(one.text, section, _OF_SECTION[section], code=one.code)
            elif post.send_from != USER:
                for part in split_results(post):
                    yield from _read_post(part, calls, plans, make)
            elif not (queries and place == 0 and repeats_query(post, round_)):
                yield from _read_user(post.message, make)
        last = next((post.message for post in reversed(round_.post_list) if post.message), "")
        # An answer such as "yes" means nothing without its question.
        *_, question = "", *split_sentences(last[-400:], _LINE)
        question = question if question[-1:] in {"?", "？"} and len(question) <= 160 else ""


def as_facts(action: Statement) -> Iterator[Statement]:
    """Yield the outcome in an action's line as facts, parsed like the result itself."""
    call, _, outcome = action.text.partition(ARROW)
    for line in _list_result_lines(outcome, call):
        yield copy_with(action, text=line, section=Section.FACTS, weight=_RESULT)


def _read_user(message: str, make: Callable[..., Statement], question: str = "") -> Iterator[Statement]:
    found = list(_split_user_sentences(message))
    if not found:  # a thumbs-up is an answer
        signs = _clean(message[:MAX_WORD]).replace("\ufffd", "")
        found = [(signs, False, False)] if any(unicodedata.category(sign) == "So" for sign in signs) else []
    # Skip greetings and thanks, unless that is all.
    found = [one for one in found if not is_greeting(one[0])] or found
    # Skip code: a summary has no room for a usable amount of it. Keep its messages and comments in words.
    found = [one for one in found if not (is_code(one[0]) or (one[2] and not _WORDED.search(one[0])))] or found
    place = 0
    for index, (sentence, listed, code) in enumerate(found):
        pasted = len(found) > LONG_MESSAGE and min(index, len(found) - 1 - index) >= MESSAGE_ENDS
        weight = _CODE if code else _PASTED if pasted else _USER
        if question and len(found) == 1 and len(sentence) <= 40 and sentence[-1] not in "?？":
            parts = [(f'{sentence} (asked: "{question}")', rate_instruction(sentence) > 0)]
        else:
            parts = [(sentence, False)] if code else list(_split_rules(sentence, listed))
        for text, is_rule in parts:
            section = Section.INSTRUCTIONS if is_rule and not pasted else Section.SAID
            shown = text if code or section is Section.INSTRUCTIONS else without_padding(text)
            yield make(shown, section, weight, index=place, code=code)
            place += 1


def _split_user_sentences(message: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield (sentence, is it a list item below an instruction and so an instruction itself, is it code)."""
    for number, part in enumerate(message.split(_FENCE)):
        if number % 2:
            # The language name follows the fence.
            body = part.partition("\n")[2] if "\n" in part else part
            yield from ((line, False, True) for line in split_sentences(body, _LINE))
            continue
        below_rule = False
        for prose, fields in find_structures(part):
            for line in split_lines(prose):
                item = LIST_MARK.match(line)
                below_rule = below_rule and item is not None
                text = line[item.end() :] if item else line
                yield from ((sentence, below_rule, False) for sentence in split_line(text, _MESSAGE))
                if line[-1] in ":：" and not item:
                    below_rule = rate_instruction(line) > 0
            for field in fields:
                yield from ((line, False, False) for line in split_sentences(field, _LINE))


def _split_rules(sentence: str, listed: bool) -> Iterator[tuple[str, bool]]:
    """Yield (clause of *sentence*, True for a standing instruction).

    A rule stays whole; a long sentence counts as a rule only if it forbids something. In "I'm setting up X, and I
    prefer Y, can you ...?" only the clause with the wish is an instruction. The clause before it joins it if that gives
    the reason.
    """
    strength = rate_instruction(sentence)
    if listed or (strength == 1 if len(sentence) <= _RULE else is_prohibition(sentence)):
        yield from ((piece, True) for piece in wrap(sentence, _SENTENCE))
        return
    before = ""
    for clause in split_clauses(sentence):
        for piece in (clause,) if len(clause) <= _SENTENCE else wrap(clause, _SENTENCE):
            is_rule = (strength if piece == sentence else rate_instruction(piece)) > 0  # a sentence is often one clause
            # A consequence of the clause before it: "so I prefer ...".
            whole = f"{before} {piece}" if is_rule and before and _compile_first_words("so").match(piece) else piece
            if before and whole == piece:
                yield before, False
            before = "" if is_rule else piece
            if is_rule:
                yield (without_link(whole) if len(whole) < len(sentence) else whole), True
    if before:
        yield before, False


def without_padding(clause: str) -> str:
    """Return *clause* without its introductory phrases; the rest is unchanged."""
    phrases, read = _compile_phrases(), clause.replace("’", "'")
    start = 0
    while (match := phrases.match(read, start)) and len(read) - match.end() >= _MIN_REST:
        start = match.end()
    return clause[start:]


def without_link(clause: str) -> str:
    """Return *clause* without a leading "and" or "so" and without a trailing comma."""
    match = _compile_first_words("links").match(clause) or _compile_first_words("so").match(clause)
    start = match.end() if match and len(clause) - match.end() >= _MIN_REST else 0
    return clause[start:].rstrip(",;，；、،؛ ")


@cache
def _compile_first_words(kind: str) -> re.Pattern[str]:
    """Return the pattern of the words of one *kind* in all languages, at the beginning of a clause."""
    listed = (word for table in load_table("padding.yaml").values() for word in table.get(kind, ()))
    # Skip single letters: "i" is "and" in Polish, but a pronoun in English.
    words = sorted((word for word in listed if len(word) > 1 or not word.isascii()), key=len, reverse=True)
    return re.compile("|".join(map(_write_word, words)), re.IGNORECASE)


@cache
def _compile_phrases() -> re.Pattern[str]:
    """Return the pattern of all introductory phrases in all languages."""
    languages = []
    for table in load_table("padding.yaml").values():
        links = "|".join(map(_write_word, table.get("links", ())))
        asks = "|".join("".join(map(_write_word, ask.split())) for ask in table.get("asks", ()))
        leading = rf"(?:{links}){{0,3}}" if links else ""
        languages.append(rf"(?:{'|'.join(map(re.escape, table['calls']))})[,.!،，、。！]{{1,3}}\s?(?=\w)")
        languages += [rf"{leading}(?:{asks})(?=\S)"] if asks or links else []
    return re.compile("|".join(languages), re.IGNORECASE)


def _write_word(word_form: str) -> str:
    """Return the pattern of a word and the space after it, which scripts without spaces need not have."""
    bare = word_form.strip("()")
    word = rf"(?:{'|'.join(map(re.escape, bare.split('|')))})\s{'?' if UNSPACED.search(bare) else ''}"
    return f"(?:{word})?" if word_form != bare else word


def _read_post(
    post: Post, calls: Mapping[str, str], plans: set[str], make: Callable[..., Statement]
) -> Iterator[Statement]:
    sender = _label(post.send_from)
    if post.tool_call_id is not None:
        for line in _list_result_lines(post.message, calls.get(post.tool_call_id, sender)):
            yield make(line, Section.FACTS, _RESULT)
    else:
        # Without an agent's code: that is in files, and useless without the prose.
        prose = "\n".join(post.message.split(_FENCE)[::2])
        lines = list(split_sentences(_BOLD.sub(r"\1", _HEADING.sub("", prose)), _LINE))
        worded = [line for line in lines if not is_code(line)]
        for line in worded or lines or split_sentences(post.message, _LINE):
            yield make(f'{sender}: "{line}"', Section.FACTS, _REPORT if post.send_to == USER else _TALK)
    for attachment in post.attachment_list:
        label, words = _label(attachment.type), set(name_words(attachment.type[:MAX_WORD]))
        if "plan" in words:
            steps = "; ".join(split_sentences(attachment.content, _LINE)) if attachment.id in plans else ""
            for line in wrap(steps, _SENTENCE):
                yield make(f"{label}{ARROW}{line}", Section.OPEN, _PLAN)
        elif words & _CODE_KINDS:
            for line in split_sentences(attachment.content, _LINE):
                yield make(f"{label}{ARROW}{line}", Section.DONE, _THOUGHT)
        else:
            for line in _list_result_lines(attachment.content, label):
                yield make(line, Section.FACTS, _RESULT)


def _find_newest_plans(rounds: Sequence[Round]) -> set[str]:
    """Return the ids of the newest plans, one per role and type."""
    newest = {
        (post.send_from, attachment.type): attachment.id
        for round_ in rounds
        for post in round_.post_list
        for attachment in post.attachment_list
        if "plan" in name_words(attachment.type[:MAX_WORD])
    }
    return set(newest.values())


def without_old_plans(earlier: Iterable[Statement], new: Iterable[Statement]) -> list[Statement]:
    """Return *earlier* without the plans that *new* replaces with one of the same type."""
    types = {one.text.partition(ARROW)[0] for one in new if one.section is Section.OPEN}
    return [one for one in earlier if one.section is not Section.OPEN or one.text.partition(ARROW)[0] not in types]


def _label(name: str) -> str:
    """Return a role's, tool's or attachment's name as a label: one short line, for any name that the host chose.

    Never the user's label, which would attribute the text to the user.
    """
    label = take_beginning(_clean(take_beginning(name, 80)), 40).rstrip(": ") or "unnamed"
    return f"{label} (not the user)" if label == USER_SAYS.rstrip(": ") else label


def _call_label(call: ToolCall) -> str:
    arguments = call.arguments.strip()
    fields = find_field_lines(arguments) if arguments[:1] in {"{", "["} else None
    brief = _clean(fields[0][0]) if fields and fields[0] else ""
    return f"{_label(call.name)}({brief})" if 0 < len(brief) <= 60 else _label(call.name)


def _list_result_lines(text: str, label: str) -> Iterator[str]:
    """Yield the lines of a result.

    A line begins with its call's label if it means little alone, looks like a summary's own line or gives an order: a
    tool's order must not read as a fact or as the user's wish.
    """
    name, _, brief = label.partition("(")
    for prose, fields in find_structures(text):
        for line in split_sentences(prose, _LINE, listed=False):
            is_own = line.translate(_MARKS).strip().casefold().startswith(_OWN_WORDS)
            alone = " " in line and _PLAIN_WORD.search(line) and not is_own
            yield line if alone and rate_instruction(line) < 1 else f"{label} → {line}"
        for field in fields:
            for line in split_sentences(field, _LINE):
                # The first field often repeats the arguments; then the call's name is enough.
                yield f"{name if brief[:-1] in line else label} → {line}"


def _clean(text: str) -> str:
    line = flatten(text)
    return _THOUGHT_TAG.sub(r"[\1]", line) if "<" in line else line
