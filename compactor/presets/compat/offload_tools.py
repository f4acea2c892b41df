"""The two tools over offloaded files as a model sees them: their schemas, its arguments, pages of text, lines found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from memory.recall import HUGE, Parameters, number_in, read_arguments, schema, text_in
from memory.references import cut_after, cut_before

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

    pass

#: The names of the tools.
OFFLOAD_TOOLS = ("read_file", "grep")
#: No answer is much longer, in characters: about 1,500 tokens, so that it is not offloaded again at once.
LONGEST_ANSWER = 6_000
#: Lines that ``read_file`` gives where no limit is named, and matches that ``grep`` does; also the most of each.
MAX_LINES, MAX_MATCHES = 1_000, 100
#: The longest pattern, and how many characters are shown on either side of where it stands in a long line.
LONGEST_PATTERN, AROUND = 200, 80
#: Characters looked at between two looks at the clock.
_WINDOW = 1 << 16

#: What each tool is for; its parameters: JSON type, whether it must be given, and what it means.
_TOOLS: dict[str, tuple[str, Parameters]] = {
    "read_file": (
        "Return lines of a file to which a long text of this conversation was moved. Use it when you need the exact"
        " words, numbers or ids.",
        {
            "path": ("string", True, "The file, as the message names it that stands for the text."),
            "offset": ("integer", False, "Line to start at, counted from 0, which is the default."),
            "limit": ("integer", False, f"Most lines to return: {MAX_LINES} by default and at most."),
            "column": ("integer", False, "Characters of the first line to pass over: an answer says when to give it."),
        },
    ),
    "grep": (
        "Search the files to which long texts of this conversation were moved. Returns the lines that hold the"
        " pattern, with the names of their files and their numbers, counted from 0 as read_file takes them.",
        {
            "pattern": ("string", True, "Literal text to look for, capitals or not; no regular expression."),
            "path": ("string", False, "The one file to search. Default: all."),
            "glob": ("string", False, "Which files, by their names, such as *.json. Default: all."),
            "limit": ("integer", False, f"Most lines to return: {MAX_MATCHES} by default and at most."),
        },
    ),
}
#: What a parameter is called where many prompts come from.
_OTHER_NAMES = {"absolute_path": "path"}
_ANSWER = re.compile(r"\[(?:file [\w.-]+: lines |grep: )")


class TimeOver(Exception):
    """A search has taken all of its time."""


def schemas() -> list[ChatCompletionFunctionToolParam]:
    """Return the tools' schemas in OpenAI's format, fit for strict mode: what may be left out may be null."""
    return [schema(name, *_TOOLS[name]) for name in OFFLOAD_TOOLS]


def given_fields(tool: str, arguments: object) -> dict[str, Any]:
    """Return what a model's call of *tool* gives, checked. Raises ``Refused``."""
    parameters = _TOOLS[tool][1]
    given = read_arguments(arguments, parameters, _OTHER_NAMES)
    return {
        name: text_in(given, name) if kind == "string" else number_in(given, name, None, 0, HUGE)
        for name, (kind, required, _) in parameters.items()
        if required or given.get(name) is not None
    }


def is_file_answer(text: str) -> bool:
    """Return whether *text* looks like what one of the tools answered."""
    return len(text) <= 2 * LONGEST_ANSWER and _ANSWER.match(text) is not None


def page(lines: list[str], start: int, stop: int, column: int) -> tuple[str, int, int]:
    """Return the text of *lines* from *start* to before *stop* as far as an answer holds it; then the line and the
    column at which the next page begins.

    *column* leaves out the beginning of the first of them. A line that is longer than an answer is cut.
    """
    shown: list[str] = []
    room = LONGEST_ANSWER
    stop = min(stop, len(lines))
    for number in range(start, stop):
        line = lines[number][column:] if number == start else lines[number]
        if len(line) > room:
            if shown:
                return "\n".join(shown), number, 0
            end = cut_before(line, room)
            return line[:end], number, column + end
        shown.append(line)
        room -= len(line) + 1
    return "\n".join(shown), stop, 0


def lines_with(pattern: str, text: str, is_over: Callable[[], bool]) -> Iterator[tuple[int, str]]:
    """Give the lines of *text* that hold *pattern*, in any case of letters, with their numbers.

    Raises ``TimeOver`` when the time *is over*, which is asked often enough however long a line is.
    """
    needle = re.compile(re.escape(pattern), re.IGNORECASE)
    at = counted = number = 0
    while at < len(text):
        if is_over():
            raise TimeOver
        match = needle.search(text, at, at + _WINDOW + len(pattern))
        if match is None:
            at += _WINDOW
            continue
        number += text.count("\n", counted, match.start())
        counted = match.start()
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        at = len(text) if end < 0 else end
        yield number, _excerpt(text, begin, at, match.start(), match.end())


def _excerpt(text: str, begin: int, end: int, first: int, last: int) -> str:
    """Return a line, or what stands around the match in one that is long."""
    start, stop = max(begin, cut_before(text, first - AROUND)), min(end, cut_after(text, last + AROUND))
    shown = text[start:stop].replace("\n", " ")
    before = f"(from column {start - begin}) ..." if start > begin else ""
    return f"{before}{shown}{'...' if stop < end else ''}"
