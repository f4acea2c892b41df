"""Split text into sentences and clauses, each on one line; and the headings of a summary."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from enum import StrEnum

from memory.patterns import compile_later
from memory.references import take_beginning

from .content import CJK_CHAR
from .results import find_structures

#: List items up to the first length are joined to lines up to the second: alone they would lose their subject.
_ITEM, _LIST = 80, 160
#: Minimum characters of a clause; a shorter one joins its neighbour. Characters of scripts without spaces count twice.
_CLAUSE = 40
#: Maximum characters of a word; anything longer is data.
MAX_WORD = 160

# Months behind a day in German, Danish, Norwegian and Swedish: "8. Januar". "Des" and "sept" are French words, too.
_MONTHS = (
    r"(?i:jan(?:uari?)?|feb(?:ruari?)?|märz|mars|apr(?:il)?|ma[ij]|juni?|juli?|aug(?:ust)?|september|sept(?=\.)"
    r"|okt(?:ober)?|nov(?:ember)?|de[zcs]ember|de[zc]|des(?=\.))\b"
)
LIST_MARK = compile_later(rf"^(?:[-*+•–]|\(?\d{{1,3}}[.)](?! {_MONTHS}))\s{{1,8}}(?=\S)")
#: Maximum characters of a heading that has no Markdown marks.
MAX_HEADING = 80
_HEADING = compile_later(r"#{1,6}[ \t]+.+|\*\*[^*]+\*\*:?")
# The pattern starts with all possible end characters, so the search skips other text quickly.
_END = compile_later(
    r"[.!?…。！？；](?:(?<=[.!?…])[.!?…]{0,3}[\"'”’)\]*]{0,3} (?=\S)|(?<=[。！？；])[。！？；]{0,3}[」』”）]{0,2})"
)
_ABBREVIATION = compile_later(
    r"(?:\b(?:mr|mrs|ms|dr|st|no|vs|etc|approx|fig|inc|ltd|jr|sr|prof|nr|ca|bzw|z\.b|e\.g|i\.e|u\.s|(?<!['’])\w)|^\(?\d{1,3})\.$",
    re.IGNORECASE,
)
_CLAUSE_MARK = compile_later(r"[,;](?= (?:[^\W\d]|[¿¡]))|[，；、،؛]|[()\[\]{}（）「」『』“”«»\"]")
_OPENED, _CLOSED = frozenset("([{（「『“«"), frozenset(")]}）」』”»")
_DAY = compile_later(r"(?:^|[^\w.,])\d{1,2}\.$")
_MONTH = compile_later(_MONTHS)
#: A user message with more sentences is pasted material, except for this many at its beginning and end.
LONG_MESSAGE, MESSAGE_ENDS = 40, 6


class Section(StrEnum):
    """The headings of a summary, in order; the next compaction parses the summary by them."""

    #: The user's first message, which states the goal.
    GOAL = "Goal:"
    INSTRUCTIONS = "Instructions from the user:"
    #: One item per message, oldest first; ``GAP`` marks omitted words.
    SAID = "What the user said:"
    #: The same in a short summary, whose items have no bullets.
    SAID_SHORT = "User said:"
    #: Statements of a summary that this module did not write.
    EARLIER = "From an earlier summary:"
    FACTS = "Facts and results:"
    DONE = "What was done:"
    FILES = "Files and ids in play:"
    OPEN = "Open items:"
    #: The newest round: the user's words after ``User: ``, agents' words after their names.
    NOW = "Where we are:"


def split_sentences(text: str, limit: int, *, listed: bool = True) -> Iterator[str]:
    """Yield the sentences of *text*, and the fields of any JSON in it, each on one line of about *limit* characters.

    Short list items are joined; without *listed*, only to the line that introduces them.
    """
    for prose, fields in find_structures(text):
        for line in _join_items(split_lines(prose), min(limit, _LIST), listed):
            yield from split_line(line, limit)
        for field in fields:
            for line in split_lines(field):
                yield from split_line(line, limit)


def split_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line and not line.isspace():
            yield " ".join(line.split())


def strip_list_mark(line: str) -> str:
    """Return *line* without white space around it and without its list mark, if any."""
    return LIST_MARK.sub("", line.strip())


def is_heading(line: str) -> bool:
    """Return whether *line* looks like a heading: it has Markdown marks, or is short and ends in a colon."""
    line = line.strip()
    named = line.endswith((":", "：")) and len(line) <= MAX_HEADING and not LIST_MARK.match(line)
    return named or _HEADING.fullmatch(line) is not None


def keep_letters(text: str) -> str:
    """Return the letters and digits of *text* in lower case."""
    return "".join(filter(str.isalnum, text.casefold()))


def _join_items(lines: Iterator[str], limit: int, listed: bool) -> Iterator[str]:
    """Yield *lines* without list marks; short list items are joined to each other and to their introduction.

    An introduction without short items is left out: alone it says nothing.
    """
    opening, items = "", ""
    for line in lines:
        mark = LIST_MARK.match(line)
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


def split_line(line: str, limit: int) -> Iterator[str]:
    """Yield the sentences of a *line*, in pieces of about *limit* characters."""
    start = 0
    for match in _END.finditer(line):
        before = line[max(start, match.start() - 12) : match.start() + 1]
        if match[0] == ". " and _ABBREVIATION.search(before):
            continue
        if match[0] == ". " and _DAY.search(before) and _MONTH.match(line, match.end()):
            continue
        if len(match[0]) > 3 and line[match.end() : match.end() + 1].islower():
            continue  # "well... maybe"
        yield from wrap(line[start : match.end()].strip(), limit)
        start = match.end()
    yield from wrap(line[start:].strip(), limit)


def wrap(sentence: str, limit: int) -> list[str]:
    """Return *sentence* in pieces of about *limit* characters, cut between words; none without letters or digits."""
    if not any(map(str.isalnum, sentence)):
        return []
    if len(sentence) <= limit:
        return [sentence]
    words = " ".join(part for word in sentence.split(" ") for part in _cut_word(word))
    return textwrap.wrap(words, limit, break_long_words=False, break_on_hyphens=False)


def _cut_word(word: str) -> list[str]:
    """Return *word*, split if it is long text without spaces; of other overlong data, only the beginning."""
    if len(word) <= MAX_WORD:
        return [word]
    if CJK_CHAR.search(word, 0, MAX_WORD):
        return [word[i : i + MAX_WORD] for i in range(0, len(word), MAX_WORD)]
    return [f"{take_beginning(word, 40)}…"]


def split_clauses(sentence: str) -> Iterator[str]:
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
            if min(map(_measure_width, (sentence[start:end], sentence[end : end + _CLAUSE]))) >= _CLAUSE:
                yield sentence[start:end]
                start = end + (sentence[end] == " ")
    yield sentence[start:]


def _measure_width(text: str) -> int:
    return len(text) + len(CJK_CHAR.findall(text))
