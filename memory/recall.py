"""Recall: three tools with which an agent reads back text that its prompt no longer shows.

Every answer is bounded and says how to get the rest. A wrong argument raises nothing; the answer tells the model how to
correct it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .arguments import require, require_role
from .errors import NewerVersion, StoreDamaged, StoreError, UnknownReference
from .messages import ASSISTANT
from .patterns import compile_later
from .references import QUOTED, Passage, make_range_reference, reload_passage
from .rounds import FrozenMapping
from .search import RECALL_TOOLS, split_query

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

    from .memory import Memory
    from .visibility import Rounds

#: Larger numbers count as this one.
MAX_NUMBER = 10**12

#: By name: the JSON type, whether the parameter is required, and its description.
Parameters = Mapping[str, tuple[str, bool, str]]

_INTEGER = compile_later(r"\s*[-+]?\d{1,30}\s*", re.ASCII)


class Refused(Exception):
    """The arguments are wrong; the message tells the model what to give instead."""


def make_schema(name: str, description: str, parameters: Parameters) -> ChatCompletionFunctionToolParam:
    """Return a tool's schema. It satisfies strict mode: every parameter is required, and optional ones may be null."""
    properties = {
        parameter: {"type": kind if required else [kind, "null"], "description": meaning}
        for parameter, (kind, required, meaning) in parameters.items()
    }
    wanted = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": wanted}}


def read_arguments(
    arguments: object, parameters: Parameters, other_names: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Return *arguments*, an object or its JSON, by the names of *parameters*; *other_names* are aliases of those.

    Raises ``Refused`` if they are no object or have an unknown name.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise Refused(f"the arguments are not JSON; give an object with {', '.join(parameters)}") from error
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise Refused(f"the arguments are not an object; give one with {', '.join(parameters)}")
    given = {(other_names or {}).get(name, name): value for name, value in arguments.items()}
    if any(name not in parameters for name in given):
        raise Refused(f"there are arguments that this tool does not have; it has {', '.join(parameters) or 'none'}")
    return given


def read_text(given: Mapping[str, Any], name: str) -> str:
    """Return a required string. May raise ``Refused``."""
    value = given.get(name)
    if not isinstance(value, str):
        raise Refused(f"{name} must be given, as a string" if value is None else f"{name} must be a string")
    return value


def read_number(given: Mapping[str, Any], name: str, default: int | None, minimum: int, maximum: int) -> int:
    """Return a whole number, clamped between *minimum* and *maximum*, or the default; 4.0 and "4" are 4. May raise
    ``Refused``."""
    value: Any = given.get(name)
    if value is None and default is not None:
        return default
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{name} must be a whole number, such as {max(minimum, 1)}")
    return min(max(value, minimum), maximum)


#: Characters of text in an answer by default and at most. Headings included, no answer is longer than 20,000.
DEFAULT_PAGE, MAX_PAGE = 4_000, 19_500
#: The longest pattern; the characters shown on either side of a match; the number of matches that are counted, so that
#: one letter does not take seconds in a megabyte.
MAX_PATTERN, MARGIN, MAX_COUNTED = 200, 80, 1_000
#: Characters of a speaker's name in a heading.
MAX_SPEAKER = 100
#: Hits of a search by default and at most.
DEFAULT_HITS, MAX_HITS = 5, 20

_PAGED = {
    "offset": ("integer", False, "Character to start at, from 0 (the default). An answer says with which to go on."),
    "limit": ("integer", False, f"Most characters to return: {DEFAULT_PAGE} by default, at most {MAX_PAGE}."),
}
#: The description and the parameters of each tool.
_TOOLS: dict[str, tuple[str, Parameters]] = {
    "context_reload": (
        "Return the original text behind a reference such as r12.p3, which stands in the conversation wherever a text"
        " was shortened, summarised or left out. Use it when you need the exact words, numbers or ids.",
        {
            "ref": ("string", True, "The reference: r12 a round, r3-r9 rounds, r12.p3 a message, r12.p3-p17 messages."),
            "pattern": (
                "string",
                False,
                "Literal text to look for in there, capitals or not. Returns the places where it stands, with their"
                f" offsets, instead of the text. At most {MAX_PATTERN} characters.",
            ),
            **_PAGED,
        },
    ),
    "read_rounds": (
        "Return earlier rounds of this conversation word for word. A round is one request of the user and all that"
        " happened until the next; rounds are numbered from 1.",
        {
            "start": ("integer", True, "Number of the first round to read."),
            "end": ("integer", False, "Number of the last round to read. Default: only the first."),
            **_PAGED,
        },
    ),
    "search_history": (
        "Search all earlier messages of this conversation for words, best match first. Returns for each the reference"
        " by which context_reload gives it in full, and a part of its text.",
        {
            "query": ("string", True, "Words to look for, each taken literally, capitals or not: names, ids, topics."),
            "limit": ("integer", False, f"Most messages to return: {DEFAULT_HITS} by default, at most {MAX_HITS}."),
            "offset": ("integer", False, "How many of the best messages to pass over, from 0, which is the default."),
        },
    ),
}


class Recall:
    """Answers the recall tools for one role, from the posts that it sees, without hidden rounds.

    The empty role sees every post. Quoted lines begin with the speaker's name or with ``> ``.
    """

    def __init__(
        self, memory: Memory, role: str = ASSISTANT, *, references: Mapping[str, str] = FrozenMapping()
    ) -> None:
        """*references* maps further names that ``context_reload`` understands to references.

        Raises ``TypeError`` if *role* is no string: None does not mean "everybody".
        """
        require("memory", memory, ("search", "reload"), "a Memory")
        require_role(role)
        self._memory = memory
        self._role = role
        self._references = references

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the tools' schemas in OpenAI's format.

        They satisfy strict mode: every parameter is required, and optional ones may be null. ``call`` treats a missing
        parameter like null.
        """
        return [make_schema(name, *_TOOLS[name]) for name in RECALL_TOOLS]

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call, at most 20,000 characters; *arguments* are its JSON text or an object.

        If the call is wrong, the answer begins with ``Error:`` and says why.
        """
        if name not in RECALL_TOOLS:
            return f"Error: there is no such tool; there are {', '.join(RECALL_TOOLS)}."
        try:
            given = read_arguments(arguments, _TOOLS[name][1])
            match name:
                case "context_reload":
                    return self._context_reload(given)
                case "read_rounds":
                    return self._read_rounds(given)
                case _:
                    return self._search_history(given)
        except (Refused, UnknownReference) as refused:
            return f"Error: {refused}."
        except (StoreDamaged, NewerVersion) as fault:
            what = f"some of that is stored in a way that cannot be read ({type(fault).__name__})"
            return f"Error: {what}; ask for less, or go on without."
        except StoreError as fault:  # its message is for the store's administrator
            return f"Error: the store of this conversation does not answer ({type(fault).__name__}); try again later."

    def _context_reload(self, given: Mapping[str, Any]) -> str:
        pattern = read_text(given, "pattern") if given.get("pattern") is not None else ""
        if len(pattern) > MAX_PATTERN:
            raise Refused(f"pattern is at most {MAX_PATTERN} characters; give a few words of it")
        ref = read_text(given, "ref")
        if ref not in self._references:  # models capitalise references and copy the signs beside them
            ref = ref.strip(_BESIDE).lower().removeprefix("reload").lstrip(_BESIDE)
        passage = reload_passage(self._get_all_rounds(), self._references.get(ref, ref))
        return _find_pattern(passage, ref, given, pattern) if pattern else _page(passage, ref, given)

    def _read_rounds(self, given: Mapping[str, Any]) -> str:
        rounds = self._get_all_rounds()
        if not rounds:
            raise Refused("there are no rounds yet")
        first = read_number(given, "start", None, 1, MAX_NUMBER)
        last = read_number(given, "end", first, 1, MAX_NUMBER)
        if first > len(rounds):
            raise Refused(f"there is no round {first}; give a start from 1 to {len(rounds)}")
        if last < first:
            raise Refused(f"end is before start; give an end from {first} to {len(rounds)}")
        ref = make_range_reference(first, min(last, len(rounds)))
        return _page(reload_passage(rounds, ref), ref, given)

    def _search_history(self, given: Mapping[str, Any]) -> str:
        query = read_text(given, "query")
        words = split_query(query)
        if not words:
            raise Refused("query is empty; give one or more words to look for")
        skip = read_number(given, "offset", 0, 0, MAX_NUMBER)
        limit = read_number(given, "limit", DEFAULT_HITS, 1, MAX_HITS)
        hits = self._memory.search(query, role=self._role, limit=MAX_NUMBER)
        if not hits:
            return "Nothing in this conversation has any of these words; try other words, or parts of them."
        shown = hits[skip : skip + limit]
        if not shown:
            return f"Messages with any of these words: {len(hits)}; give an offset below that."
        more = f"; for more, give offset={skip + limit}" if skip + limit < len(hits) else ""
        places = f"best first, {skip + 1} to {skip + len(shown)}{more}"
        heading = f"[messages with any of these words: {len(hits)}; {places}]"
        rounds, lines = self._get_all_rounds(), [heading]
        for hit in shown:
            try:
                lines.append(hit.make_match_line(rounds[hit.round - 1], words))
            except (StoreDamaged, NewerVersion):  # damaged since it was indexed
                lines.append(f"{hit.ref}: cannot be read any more")
        return "\n".join(lines)

    def _get_all_rounds(self) -> Rounds:
        return self._memory.snapshot.get_rounds(self._role, include_hidden=True)


#: Signs that models copy along with a reference.
_BESIDE = "\t\n\r []()<>`'\".,;:"


def _page(passage: Passage, ref: str, given: Mapping[str, Any]) -> str:
    """Return a heading with the place and the speaker, then the quoted text."""
    start = read_number(given, "offset", 0, 0, MAX_NUMBER)
    limit = read_number(given, "limit", DEFAULT_PAGE, 1, MAX_PAGE)
    if not len(passage):
        return f"[{ref} is empty: there is no text in it]"
    if start >= len(passage):
        return f"[{ref} has {len(passage)} characters and ends before offset {start}; give a smaller one]"
    start = passage.find_floor_boundary(start)
    # At least one character, even a longer one than the limit: the next page begins behind it.
    shortest = passage.find_ceil_boundary(start + 1)
    stop = max(passage.find_floor_boundary(start + limit), shortest)
    text = passage.quote(start, stop)
    while len(text) > MAX_PAGE + len(QUOTED) and stop > start + 1:  # each line adds a mark
        shorter = start + max((stop - start) * MAX_PAGE // len(text), 1)
        stop = min(max(passage.find_floor_boundary(shorter), shortest), stop - 1)
        text = passage.quote(start, stop)
    more = f"; go on with offset={stop}" if stop < len(passage) else "; this is the end"
    return f"[{ref}{_speaker_at(passage, start)}, characters {start} to {stop} of {len(passage)}{more}]\n{text}"


def _speaker_at(passage: Passage, offset: int) -> str:
    speaker = passage.find_speaker(offset)
    return f", {speaker[:MAX_SPEAKER]}" if speaker else ""


def _find_pattern(passage: Passage, ref: str, given: Mapping[str, Any], pattern: str) -> str:
    """Return the matches of *pattern*, each with its offset and the text around it."""
    start = read_number(given, "offset", 0, 0, MAX_NUMBER)
    width = MARGIN + len(pattern) + MARGIN
    room = max(read_number(given, "limit", DEFAULT_PAGE, 1, MAX_PAGE) // (width + 40), 1)
    count, seen = 0, start
    shown: list[int] = []
    go_on: int | None = None
    for place in passage.find_offsets(pattern, start):
        count += 1
        if place + len(pattern) <= seen:  # shown with the match before
            continue
        if len(shown) < room:
            shown.append(place)
            seen = place + len(pattern) + MARGIN
        elif go_on is None:
            go_on = place
        elif count >= MAX_COUNTED:
            break
    if not count:
        missing = "the pattern, which is literal text, does not stand there"
        return f"[{ref}, {len(passage)} characters: {missing} from offset {start} on; try a shorter one]"
    parts: list[str] = []
    for place in shown:
        begin, end = (
            passage.find_floor_boundary(max(place - MARGIN, 0)),
            passage.find_ceil_boundary(place - MARGIN + width),
        )
        part = f"[offset {place}{_speaker_at(passage, begin)}]\n{passage.quote(begin, end)}"
        if parts and sum(map(len, parts)) + len(part) > MAX_PAGE:  # each line adds a mark
            go_on = place
            break
        parts.append(part)
    more = f"; for more, give offset={go_on}" if go_on is not None else ""
    places = f"{count}" if count < MAX_COUNTED else f"{MAX_COUNTED} or more"
    heading = f"[{ref}, {len(passage)} characters; places of the pattern from offset {start} on: {places}{more}]"
    return "\n\n".join([heading, *parts])
