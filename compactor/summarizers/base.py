"""What a summarizer is asked and what it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memory.errors import ContextError
from memory.overlays import CompactedMessage, Note
from memory.rounds import Round

from .replies import is_reply

__all__ = [
    "Continued",
    "RequestKind",
    "Style",
    "Summarizer",
    "SummarizerError",
    "Summary",
    "SummaryRequest",
    "added",
    "strip_tags",
    "unfenced",
]

RequestKind = Literal["rounds", "changes", "tool_run", "large_post"]
#: How a summary is asked for: with a transcript of its own, or behind the beginning of the agent's last prompt, which
#: its provider has in its cache.
Style = Literal["separate", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The same question as a continuation of the agent's own last prompt, most of which its provider has in its cache.

    Its repr shows no conversation.
    """

    #: The messages that the agent's last prompt began with, as they were sent, up to the last round that is summarised,
    #: and what was said in that since; then one user message, the instruction.
    messages: list[dict[str, Any]] = field(repr=False)
    #: The rest of what the provider's cache goes by, as it was sent.
    tools: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    tool_choice: Any = None
    #: The agent's model, as configured; empty: not known.
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """Everything a summarizer may want to know. A model needs only ``messages``. Its repr shows no conversation."""

    role: str = ""
    kind: RequestKind = "rounds"
    #: What the summary replaces, together with ``rounds``. None the first time.
    previous: CompactedMessage | None = field(default=None, repr=False)
    #: The new rounds only, with the posts that ``role`` sees. A round too long for one request is split over several
    #: requests: then each holds a slice of its posts, and of a long post's text.
    rounds: Sequence[Round] = field(default=(), repr=False)
    #: The span of ``rounds``, from 1, both inclusive, in the numbering of the role's visible rounds.
    start_index: int = 1
    end_index: int = 0
    #: How long the answer should be, in tokens; None: no wish.
    target_tokens: int | None = None
    #: The agent's plan as text, where there is one.
    plan: str | None = field(default=None, repr=False)
    #: The chat messages to send: what the prompt template rendered.
    messages: list[dict[str, Any]] = field(default_factory=list, repr=False)
    #: Where the agent's last prompt shows in full what is to be summarised: the same question behind its beginning.
    #: Not made for a summarizer that says ``takes_continued = False``.
    continued: Continued | None = field(default=None, repr=False)
    #: The notes that changes are asked for, where ``kind`` is "changes"; the first is number 1.
    notes: Sequence[Note] = field(default=(), repr=False)
    #: The JSON schema of the answer, where it is not plain text.
    schema: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summarizer's answer, with what it cost where that is known."""

    text: str
    #: ``input_tokens``, ``output_tokens``, ``cached_tokens``.
    usage: Mapping[str, int] | None = None
    model: str | None = None
    #: What ``text`` says, note by note, where it was made so.
    notes: tuple[Note, ...] = ()
    #: Whether it holds nothing but what was said, each line below the heading of whoever said it. A text that a model
    #: wrote is no such summary: what it has below the user's heading is looked for in the user's words.
    extracted: bool = False

    def __post_init__(self) -> None:
        # As answers say it: what is no count there is not worth an answer that was paid for.
        object.__setattr__(self, "usage", _counts(self.usage))


#: Whoever counted more tokens has not counted.
MOST_TOKENS = 2**53


def _counts(usage: object) -> Mapping[str, int] | None:
    """Return what of *usage* says how many; None where nothing is said."""
    if not isinstance(usage, Mapping):
        return None
    return {
        name: count
        for name, count in usage.items()
        if isinstance(name, str) and type(count) is int and 0 <= count <= MOST_TOKENS
    }


Summarizer = Callable[[SummaryRequest], "str | Summary"]


class SummarizerError(ContextError):
    """A summarizer could not answer; the published compaction stays, and the compactor tries again later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds the endpoint asked to be left alone, where it did.
        self.retry_after = retry_after


def added(usage: Mapping[str, int] | None, more: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Return *usage* and *more* of it, as far as they are known."""
    if usage is None or more is None:
        return more if usage is None else usage
    return {key: usage.get(key, 0) + more.get(key, 0) for key in {**usage, **more}}


_NAMES = "(think|thinking|reasoning)"
# An attribute or two: what opens a tag and never closes it is read once.
_WITH = r"(?:\s[^<>]{0,200})?"
_SUMMARY = re.compile(rf"\s*<summary{_WITH}>", re.IGNORECASE)
_END_OF_SUMMARY = re.compile(r"</summary>", re.IGNORECASE)
_LEADING_THOUGHT = re.compile(rf"\s*<{_NAMES}{_WITH}>", re.IGNORECASE)
_LEADING_END = re.compile(rf"\s*</{_NAMES}>", re.IGNORECASE)
_THOUGHT = re.compile(f"<{_NAMES}{_WITH}>", re.IGNORECASE)
_END = re.compile(f"</{_NAMES}>", re.IGNORECASE)
# Alone on its line, or before an empty line.
_LOOSE_END = re.compile(rf"^[ \t]*</{_NAMES}>[ \t]*$|</{_NAMES}>[ \t]*\n[ \t]*\n", re.IGNORECASE | re.MULTILINE)
#: Characters of what a model may say before the summary that it has put in tags.
_LONGEST_PREAMBLE = 300
_ANALYSIS = re.compile(rf"<analysis{_WITH}>", re.IGNORECASE)
_ANALYSED = re.compile(
    rf"</analysis>\s{{0,100}}(?:(?:```|~~~)[^\n<]{{0,80}}\s{{1,10}})?(?=<summary{_WITH}>)", re.IGNORECASE
)
# "Here is the summary:", "**Summary:**", the line that opens a block of code.
_PREAMBLE = re.compile(
    rf"(?:[:：][ \t*_]{{0,10}}\s{{0,20}}|\A\s{{0,20}})(?:(?:```|~~~)[^\n<]{{0,80}}\s{{1,10}})?(?=<summary{_WITH}>)",
    re.IGNORECASE,
)
# Tags in a row: a block that follows another, openings at the head, closings at the end.
_NEXT_BLOCK = re.compile(rf"</summary>\s{{0,100}}<summary{_WITH}>", re.IGNORECASE)
_OPENINGS = re.compile(rf"\A(?:\s*<summary{_WITH}>)+", re.IGNORECASE)
_CLOSINGS = re.compile(r"</summary>(?:\s{0,100}</summary>){0,100}\Z", re.IGNORECASE)
_FENCED = re.compile(r"(```|~~~)(?:markdown|md|text|txt|plain|plaintext)?[ \t]{0,20}\n", re.IGNORECASE)
_LONGER = re.compile(rf"<((?!previous_)[a-z]{{1,30}}[_-]summary){_WITH}>", re.IGNORECASE)
# At the end of its line.
_DANGLING = re.compile(r"</summary>[ \t]{0,20}(?=\n|\Z)", re.IGNORECASE)
_OBJECT = re.compile(r'\{\s*"summary"\s*:')
_LANGUAGE = re.compile(r"[\w-]*")


def strip_tags(text: str) -> str:
    """Return *text* without what models wrap around an answer: thoughts at its head, and summary tags around it.

    Only what leads the answer is taken off, so a summary that speaks of ``<think>`` in its middle keeps it: tags, a
    block of code that they stand in, an analysis before them, and a short line that announces them. Some
    servers cut the opening tag off; a closing tag alone ends thoughts only where it ends a line, as there, and stands
    in no block of code: a summary that mentions one does not lose its beginning. What follows ``</summary>`` is kept.
    """
    start, wrapped, fenced = 0, False, False
    while True:
        if found := _SUMMARY.match(text, start):
            start, wrapped = found.end(), True
        elif found := _LEADING_END.match(text, start):
            start = found.end()
        elif found := _LEADING_THOUGHT.match(text, start):
            name = found[1].lower()
            ends = (end.end() for end in _END.finditer(text, found.end()) if end[1].lower() == name)
            start = next(ends, len(text))
        elif (end := _loose_end(text, start)) > start:
            start = end
        elif not wrapped and (end := _preamble_end(text, start)) > start:
            fenced = fenced or any(fence in text[max(start, end - 100) : end] for fence in ("```", "~~~"))
            start = end
        else:
            break
    last = [end.span() for end in _END_OF_SUMMARY.finditer(text, start)][-1:] if wrapped else []
    for end, after in last:
        behind = text[after:].strip()
        text = text[:end].rstrip() + (
            text[after:].strip().removeprefix("```").removeprefix("~~~") if fenced and behind else text[after:]
        )
    return _unwrapped(_last_block(text[start:].strip()) if wrapped else text[start:].strip())


def _last_block(text: str) -> str:
    """Return the last block of *text*, which stood in tags of a summary, that is not empty."""
    blocks = [block.strip() for block in _NEXT_BLOCK.split(_OPENINGS.sub("", text))]
    return _CLOSINGS.sub("", next((block for block in reversed(blocks) if block), ""))


def _unwrapped(text: str) -> str:
    """Return *text* without what stands around all of it: a block of prose, a tag of a longer name, an object."""
    if (found := _FENCED.match(text)) and text.endswith(found[1]) and len(text) >= found.end() + len(found[1]):
        inside = text[found.end() : -len(found[1])]
        if found[1] not in inside and inside.endswith("\n"):
            text = inside.strip()
    if (found := _LONGER.match(text)) and text.lower().endswith(f"</{found[1].lower()}>"):
        text = text[found.end() : -len(found[1]) - 3].strip()
    if "<summary" not in text[:-10] and (end := _DANGLING.search(text)) and "```" not in text:
        behind = text[end.end() :].strip()
        if not behind or is_reply(behind):
            text = text[: end.start()].rstrip()
    bare = unfenced(text)
    if _OBJECT.match(bare):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            return text
        if value.keys() == {"summary"} and isinstance(value["summary"], str):
            return str(value["summary"]).strip()
    return text


def _preamble_end(text: str, start: int) -> int:
    """Return where the tag of a summary begins that stands behind a short introduction; *start* where none does."""
    head = text[start : start + _LONGEST_PREAMBLE]
    if _ANALYSIS.search(head) and (found := _ANALYSED.search(text, start)):
        return found.end()
    # A tag that another text follows is one of which the summary speaks.
    found = _PREAMBLE.search(text[start : start + _LONGEST_PREAMBLE + 250])
    closes = text.rfind("</", max(len(text) - 300, 0))
    ends = found is not None and _END_OF_SUMMARY.match(text, closes) and text[closes + 10 :].strip(" \t\r\n`~") == ""
    return start + found.end() if found is not None and ends and found.end() <= _LONGEST_PREAMBLE else start


def unfenced(text: str) -> str:
    """Return what stands in the block of code that *text* is; *text* itself where it is none."""
    bare = text.strip()
    if len(bare) < 6 or not (bare.startswith("```") and bare.endswith("```")):
        return text
    opened = _LANGUAGE.match(bare, 3)
    return bare[opened.end() if opened else 3 : -3].strip()


def _loose_end(text: str, start: int) -> int:
    """Return where thoughts end whose opening tag is missing; *start* where there are none."""
    opening = _THOUGHT.search(text, start)  # from here on, closing tags have one
    found = seen = start
    fences = 0
    for end in _LOOSE_END.finditer(text, start, opening.start() if opening else len(text)):
        fences += text.count("```", seen, end.start())
        seen = end.start()
        if fences % 2 == 0:
            found = end.end()
    return found
