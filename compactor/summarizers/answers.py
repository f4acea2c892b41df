"""Read the summary from a model's answer. Everything is checked: endpoints return anything."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from memory.arguments import takes
from memory.errors import ContextError
from memory.hooks import describe
from memory.patterns import compile_later

from ..coroutines import wait_for
from .base import ASSUMED, Summarizer, SummarizerError, Summary, SummaryRequest

#: Maximum characters of a reply; a longer text that begins with "Hello" is something else.
_MAX_REPLY = 400
#: The same for a reply recognised only by its end: "It is done. Is there anything else I can help you with?"
_MAX_CLOSING = 200
#: Maximum characters of remarks below a summary.
_MAX_REMARKS = 400

_REPLIES = "replies.yaml"
_SENTENCE = compile_later(r"(?<=[.!?])\s+|\n+")
_LEADING = compile_later(r"\A\W+")
_GREETING = r"(?:(?:%s)\b(?: (?:there|again|back|so much|everyone|all))?[^\w<]*)+"
_REMARK = r"\W{0,10}(?:%s)"


def is_greeting(text: str) -> bool:
    """Return whether *text* only greets or thanks. A guess, for English only."""
    from .cues import load_pattern  # here, as below: a process without a summary needs none

    greeting = load_pattern(_REPLIES, "greeting", _GREETING)
    return len(text) <= _MAX_REPLY and greeting.fullmatch(text.strip()) is not None


def is_reply(text: str) -> bool:
    """Return whether *text* greets, offers help or refuses instead of summarising.

    A cautious guess: a good summary mistaken for a reply would be rejected at every attempt.
    """
    if len(text) > _MAX_REPLY:
        return False
    from .cues import load_pattern

    text, offer = _LEADING.sub("", text).rstrip(), load_pattern(_REPLIES, "offer")
    greeting = load_pattern(_REPLIES, "greeting", _GREETING).match(text)
    rest = text[greeting.end() :] if greeting else text
    if not rest or offer.match(rest) or load_pattern(_REPLIES, "refusal").match(rest):
        return True
    if load_pattern(_REPLIES, "abroad").match(text) or load_pattern(_REPLIES, "refusal_abroad").match(text):
        return True
    if greeting and load_pattern(_REPLIES, "promise").match(rest):
        return True
    return len(text) <= _MAX_CLOSING and offer.match(_SENTENCE.split(text)[-1]) is not None


def is_remark(text: str) -> bool:
    """Return whether *text* contains only a model's remarks to its reader: hopes, offers, a report of its work.

    A cautious guess: an extra sentence in a summary does no harm, a missing one may.
    """
    said = text.strip(" \t\r\n*_`~-=#>")
    if not said or len(said) > _MAX_REMARKS:
        return not said
    from .cues import load_pattern

    remark, sentences = load_pattern(_REPLIES, "remark", _REMARK), filter(str.strip, _SENTENCE.split(said))
    return is_reply(said) or all(remark.match(one) or is_reply(one) for one in sentences)


# A tag's attributes, bounded: an unclosed tag is scanned once.
_WITH = r"(?:[\s/][^<>]{0,200})?"
_NAMES = "(think|thinking|reasoning)"
_LEADING_THOUGHT = compile_later(rf"\s*<{_NAMES}{_WITH}>", re.IGNORECASE)
_LEADING_END = compile_later(rf"\s*</{_NAMES}>", re.IGNORECASE)
_THOUGHT = compile_later(f"<{_NAMES}{_WITH}>", re.IGNORECASE)
# Alone on its line, or before an empty line.
_LOOSE_END = compile_later(rf"^[ \t]*</{_NAMES}>[ \t]*$|</{_NAMES}>[ \t]*\n[ \t]*\n", re.IGNORECASE | re.MULTILINE)
#: Other names of thoughts. Summaries may have sections of these names, so the closing tag must end its line.
_DRAFTS = "(analysis|scratchpad|reflection|draft|thoughts?)"
_LEADING_DRAFT = compile_later(rf"\s*<{_DRAFTS}{_WITH}>", re.IGNORECASE)
_BEHIND = r"[ \t]{0,20}(?=\n|<summary\b)"

#: The tags of a summary, and code, inside which tags are only mentioned.
_TOKEN = compile_later(
    rf"""(?P<fence>^[ \t]{{0,3}}(?:`{{3,10}}|~{{3,10}})[^\n`<]{{0,80}}$) | `[^`\n]{{1,300}}`
      | (?P<opens><summary{_WITH}>) | (?P<closes></[ ]?summary[ ]?>)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_FENCE_BEFORE = compile_later(r"(?:```|~~~)[^\n`<]{0,80}\s{1,10}\Z")
_CLOSES = compile_later(r"</ ?summary ?>", re.IGNORECASE)
_SUMMARY_NEXT = compile_later(r"\s{0,20}<summary\b", re.IGNORECASE)
#: The text right before a wrapping tag: an introduction ending in a colon, or closing tags.
_INTRODUCES = compile_later(rf"(?:[:：][*_]{{0,4}}|</(?:{_NAMES}|{_DRAFTS})>)\s{{0,20}}\Z", re.IGNORECASE)
_FOLDED = compile_later(r"<details[^<>]{0,200}>\s{0,20}\Z", re.IGNORECASE)
#: Maximum characters of an introduction.
_MAX_INTRODUCTION = 300

_FENCED = compile_later(r"(```|~~~)(?:markdown|md|text|txt|plain|plaintext)?[ \t]{0,20}\n", re.IGNORECASE)
_NAMED = compile_later(
    rf"<((?!previous_)[a-z]{{1,30}}[_-]summary|answer|output|response|result){_WITH}>", re.IGNORECASE
)
_OBJECT = compile_later(r'\{\s*"summary"\s*:')
_LANGUAGE = compile_later(r"[\w-]*")
#: Maximum layers of wrapping to remove.
_MAX_LAYERS = 8


def strip_tags(text: str) -> str:
    """Return the answer in *text* without a model's wrapping.

    Leading thoughts are removed. If the answer has summary tags, the last closed block is the answer; the text before
    it is an introduction, an analysis or a draft. Text after the tags stays, unless it is a remark to the reader ("I
    hope this helps!"). A summary that mentions tags, in a sentence or in code, stays whole.

    Some servers cut off an opening tag. A closing tag alone ends the thoughts if it ends a line. It ends the summary if
    only remarks follow.
    """
    bare = text.strip()
    if "<" not in bare and not bare.startswith(("```", "~~~", "{")):
        return bare
    for _ in range(_MAX_LAYERS):
        before, text = text, _unwrap(_find_last_block(_drop_thoughts(text)))
        if text == before:
            break
    return text


def _drop_thoughts(text: str) -> str:
    start = 0
    while True:
        if leading := _LEADING_END.match(text, start):
            end = leading.end()
        elif leading := _LEADING_THOUGHT.match(text, start):
            end = _find_end(leading[1], text, leading.end()) or len(text)
        elif (end := _find_loose_end(text, start)) == start:
            leading = _LEADING_DRAFT.match(text, start)
            end = _find_end(leading[1], text, leading.end(), _BEHIND) if leading else 0
            if not end:
                return text[start:].strip()
        start = end


def _find_end(name: str, text: str, start: int, behind: str = "") -> int:
    """Return the end of the first closing tag of *name* from *start*; 0 if there is none."""
    closing = re.compile(f"</{name}>{behind}", re.IGNORECASE).search(text, start)
    return closing.end() if closing else 0


def _find_loose_end(text: str, start: int) -> int:
    """Return the end of thoughts without an opening tag; *start* if there are none."""
    opening = _THOUGHT.search(text, start)  # closing tags after this one have an opening tag
    end = seen = start
    fences = 0
    for closing in _LOOSE_END.finditer(text, start, opening.start() if opening else len(text)):
        fences += text.count("```", seen, closing.start())
        seen = closing.start()
        end = end if fences % 2 else closing.end()
    return end


#: A block in summary tags: start of its opening tag, start and end of its text, end of its closing tag (or of the
#: opening one, if it is not closed).
_Block = tuple[int, int, int, int]


def _find_last_block(text: str) -> str:
    """Return the last closed, non-empty block of *text*, and the text after it unless that is a remark.

    Without a closed block, the last open one counts. Returns *text* unchanged if its tags do not wrap the answer.
    """
    tags = list(_find_tags(text))
    blocks = _find_blocks(text, tags)
    if not blocks:
        # A closing tag that ends a line, where nothing follows but remarks, ends the summary.
        for tag in tags:
            behind = text[tag.end() :]
            if behind[:1] in ("", "\n") or not behind.strip():
                return text[: tag.start()].rstrip() if is_remark(_CLOSES.sub("", behind).strip()) else text
        return text
    filled = [(opened, start, end, closed) for opened, start, end, closed in blocks if text[start:end].strip()]
    complete = [(opened, start, end, closed) for opened, start, end, closed in filled if closed > end]
    opened, start, end, closed = (complete or filled or blocks)[-1]
    first, *_ = blocks[0]
    *_, last_end, last_closed = blocks[-1]
    fence = _FENCE_BEFORE.search(text[max(0, opened - 100) : opened])
    behind = text[last_closed:].strip() if last_closed > last_end else ""
    behind = behind.removeprefix(fence[0][:3]).strip() if fence else behind
    behind = "" if is_remark(behind) else behind
    leads = tags[0].start() == first and not _FENCE_BEFORE.sub("", text[:first]).strip()
    if not leads and (behind or not filled or not _wraps(text, opened, closed > end)):
        return text
    return "\n\n".join(part for part in (text[start:end].strip(), behind) if part)


def _find_tags(text: str) -> Iterator[re.Match[str]]:
    """Yield the summary tags in *text*, except in code. A code block wrapped around the tags does not count as code."""
    fence, around, depth = "", False, 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "fence":
            mark = token[0].lstrip()[:3]
            if fence:
                fence = "" if mark == fence else fence
            elif around and not depth:
                around = False
            elif not depth and _SUMMARY_NEXT.match(text, token.end()):
                around = True
            else:
                fence = mark
        elif token.lastgroup and not fence:
            depth = max(0, depth + (1 if token.lastgroup == "opens" else -1))
            yield token


def _find_blocks(text: str, tags: list[re.Match[str]]) -> list[_Block]:
    """Return the blocks in *text*.

    An opening tag inside a block belongs to it, unless it begins a line: then the model gave up the earlier text.
    """
    blocks: list[_Block] = []
    depth = 0
    for tag in tags:
        opened, start, end, closed = blocks[-1] if blocks else (0, 0, 0, 0)
        between = text[closed : tag.start()].strip() if blocks else ""
        if tag.lastgroup == "closes":
            depth = max(0, depth - 1)
            if blocks:  # an earlier closing tag was only mentioned
                blocks[-1] = opened, start, tag.start() if between or closed <= end else end, tag.end()
        elif depth and between and not _begins_line(text, tag.start()):
            depth += 1
        else:
            if depth:
                blocks.pop()
            blocks.append((opened if depth and not between else tag.start(), tag.end(), len(text), tag.end()))
            depth = 1
    return blocks


def _begins_line(text: str, start: int) -> bool:
    return not text[text.rfind("\n", 0, start) + 1 : start].strip()


def _wraps(text: str, opened: int, is_closed: bool) -> bool:
    """Return whether the block at the end of *text* is the whole answer and not a part of it."""
    head = text[max(0, opened - _MAX_INTRODUCTION) : opened]
    if _FOLDED.search(head):
        return False
    head = _FENCE_BEFORE.sub("", head)
    short = opened <= _MAX_INTRODUCTION or head.rstrip().endswith(">")
    introduced = short and _INTRODUCES.search(head) is not None
    # Two of three: it is closed, begins a line, follows an introduction.
    return is_closed + _begins_line(text, opened) + introduced > 1


def _unwrap(text: str) -> str:
    """Return *text* without a wrapper around all of it: a fenced block, a tag of another name, a JSON object."""
    if (fence := _FENCED.match(text)) and text.endswith(fence[1]) and len(text) >= fence.end() + len(fence[1]):
        inside = text[fence.end() : -len(fence[1])]
        if fence[1] not in inside and inside.endswith("\n"):
            text = inside.strip()
    if (tag := _NAMED.match(text)) and text.lower().endswith(f"</{tag[1].lower()}>"):
        text = text[tag.end() : -len(tag[1]) - 3].strip()
    bare = strip_fence(text)
    if _OBJECT.match(bare):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            return text
        if value.keys() == {"summary"} and isinstance(value["summary"], str):
            return str(value["summary"]).strip()
    return text


def strip_fence(text: str) -> str:
    """Return the content if *text* is one code block, else *text*."""
    bare = text.strip()
    if len(bare) < 6 or not (bare.startswith("```") and bare.endswith("```")):
        return text
    opened = _LANGUAGE.match(bare, 3)
    return bare[opened.end() if opened else 3 : -3].strip()


#: Beginning of a tool call that a server left in the text; each model family has its own form.
_CALL_BEGINS = compile_later(
    r"\s*(?:<(?:\w+:)?(?:tool_call|function_calls?)>|<function=|<invoke |<\|(?:python_tag|tool_call)"
    r"|\[TOOL_CALLS\]|<｜tool|functions\.\w+\()"
)
#: Fields of a tool call in the form of a JSON object.
_CALL_KEYS = {"id", "type", "name", "tool", "tool_name", "function", "action"} | {
    *("arguments", "parameters", "args", "input", "tool_input", "action_input")
}
_CALL_ENDS = compile_later(r"</(?:\w+:)?(?:tool_call|function_calls?|function)>\s*$")


class NoSummary(SummarizerError):
    """The answer contains no summary; a request in another form may get one."""


def read_answer(answer: Any, model: str | None) -> Summary:
    """Return the summary in a chat completion, given as an object or as JSON. Raises as ``make_summary``."""
    choices, usage = read_field(answer, "choices"), read_field(answer, "usage")
    counts = read_counts(
        input_tokens=read_field(usage, "prompt_tokens"),
        output_tokens=read_field(usage, "completion_tokens"),
        cached_tokens=read_field(read_field(usage, "prompt_tokens_details"), "cached_tokens"),
    )
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        inside = "an error" if read_field(answer, "error") is not None else "no choices"
        raise NoSummary(f"the answer holds {inside}: check model= and base_url=", counts)
    finish, message = read_field(choices[0], "finish_reason"), read_field(choices[0], "message")
    called = finish in ("tool_calls", "function_call") or read_field(message, "tool_calls")
    return make_summary(
        None if message is None else _read_text(read_field(message, "content")),
        counts,
        (read_field(answer, "model"), model),
        has_called=bool(called or read_field(message, "function_call")),
        is_cut=finish == "length",
        is_refused=finish == "content_filter" or bool(read_field(message, "refusal")),
    )


def make_summary(
    said: str | None,
    usage: Mapping[str, int] | None,
    models: Sequence[object],
    *,
    has_called: bool = False,
    is_cut: bool = False,
    is_refused: bool = False,
) -> Summary:
    """Return the summary of an answer that *said* so, without thoughts and tags; None: it holds no message. The first
    of *models* that is a name wrote it.

    Raises ``NoSummary`` if it contains none, and ``SummarizerError`` if the answer was cut off.
    """
    if said is None:
        raise NoSummary("the answer holds no message: check model= and base_url=, a chat endpoint's", usage)
    text = strip_tags(said)
    if has_called or _is_call(text):  # before its length: a call may be cut off
        raise NoSummary("the model called a tool instead of answering: do not offer tools in extra=", usage)
    if is_cut:
        raise SummarizerError(
            "the answer was cut off at its token limit: raise max_output_tokens= (it includes a reasoning model's"
            " thoughts), or ask for a shorter summary",
            usage,
        )
    if is_refused:
        raise NoSummary("the model refused, or a filter stopped it: choose another model= or prompt", usage)
    if not text:
        raise NoSummary("empty answer: check that model= is a chat model, and raise max_output_tokens= if set", usage)
    return Summary(text, usage, next((name for name in models if isinstance(name, str) and name), None))


def _is_call(text: str) -> bool:
    """Return whether *text* is a tool call or ends in one."""
    if _CALL_BEGINS.match(text) or _CALL_ENDS.search(text):
        return True
    said = strip_fence(text)
    try:
        value = json.loads(said) if said.startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(isinstance(call, dict) and call and call.keys() <= _CALL_KEYS for call in calls)


def read_field(value: Any, name: str) -> Any:
    """Return a field of an answer, which is JSON or an object of a client; None if it has none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _read_text(content: Any) -> str:
    """Return the text parts of *content*; some servers answer in parts, including thoughts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (read_field(part, "text") for part in content if read_field(part, "type") in ("text", "output_text"))
    return "".join(part for part in parts if isinstance(part, str))


def read_counts(**counts: Any) -> dict[str, int] | None:
    """Return the valid ones of token *counts*; None if there are none."""
    return {name: n for name, n in counts.items() if type(n) is int and n >= 0} or None


def parse_body(body: bytes) -> Any:
    """Return the JSON in *body*. Raises ``SummarizerError`` if it is empty, a web page or other text."""
    if not body.strip():
        raise SummarizerError("the answer is empty: check the server's own log")
    if body.lstrip().startswith(b"<"):
        raise SummarizerError("the answer is a web page: check that base_url= is right; it usually ends in /v1")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise SummarizerError(f"the answer is not JSON ({type(exc).__name__}): check the server's own log") from exc


def as_summarizer(source: Any) -> Summarizer:
    """Return a summarizer that calls *source*'s ``chat_completion(messages)``, or *source* itself if it is a function.

    Either may be asynchronous. TaskWeaver calls an object with ``chat_completion`` an LLM API. Raises ``TypeError`` for
    anything else, including classes.
    """
    chat = getattr(source, "chat_completion", None)
    if isinstance(source, type):
        raise TypeError(f"{source.__name__} is a class; make a summarizer of it: {source.__name__}(...)")
    if callable(chat):  # checked first: a mock is callable too
        return _ChatSummarizer(chat)
    if callable(source):
        if not takes(source, None):
            raise TypeError("a summarizer is called with one SummaryRequest, whose messages are those to send")
        if any(inspect.iscoroutinefunction(call) for call in (source, source.__call__)):
            return _AsyncSummarizer(source)
        return source  # type: ignore[no-any-return]
    raise TypeError(
        f"{type(source).__name__} is no summarizer; pass a function of a SummaryRequest that returns text,"
        " an object with chat_completion(messages), OpenAISummarizer(...) or ExtractiveSummarizer()"
    )


class _AsyncSummarizer:
    """Waits for the answer of an asynchronous summarizer, and says of itself what that one says."""

    _source: Callable[[SummaryRequest], Awaitable[str | Summary]]

    def __init__(self, source: Any) -> None:
        told = {name: getattr(source, name) for name in ASSUMED if hasattr(source, name)}
        vars(self).update(told, _source=source)

    def __repr__(self) -> str:
        return f"as_summarizer({describe(self._source)})"

    def __call__(self, request: SummaryRequest) -> str | Summary:
        return wait_for(self._source(request))


class _ChatSummarizer:
    """Calls ``chat_completion(messages)`` and reads its result: a message, a string, or an iterator of pieces."""

    #: It always sends ``request.messages``.
    takes_continued = False

    def __init__(self, chat: Any) -> None:
        self._chat = chat

    def __repr__(self) -> str:
        return f"as_summarizer({type(getattr(self._chat, '__self__', self._chat)).__name__})"

    def __call__(self, request: SummaryRequest) -> Summary:
        try:
            # A copy: some of these APIs insert messages and change roles in the given list.
            answer = self._chat(copy.deepcopy(request.messages))
            if inspect.isawaitable(answer):
                answer = wait_for(answer)
            if isinstance(read_field(answer, "choices"), Sequence):
                return read_answer(answer, None)
            in_pieces = isinstance(answer, Iterator) and read_field(answer, "content") is None
            text = "".join(map(_read_content, answer)) if in_pieces else _read_content(answer)
        except ContextError:
            raise
        except Exception as exc:  # any exception of a foreign API is a failure of this call only
            raise SummarizerError(
                f"chat_completion failed ({type(exc).__name__}): check the LLM API's own configuration"
            ) from exc
        text = strip_tags(text)
        if not text:
            raise SummarizerError("chat_completion gave an empty answer: check the LLM API's model and token limit")
        return Summary(text)


def _read_content(message: Any) -> str:
    """Return the text of a message or of a piece. Raises ``SummarizerError`` for a tool call or other content."""
    if isinstance(message, str):
        return message
    if read_field(message, "role") == "function":  # TaskWeaver's mark of a tool call; the content is its JSON
        raise SummarizerError("chat_completion answered with a tool call: configure it without tools")
    content = read_field(message, "content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise SummarizerError(
            f"chat_completion answered with {type(content).__name__} as content: it must return"
            " text, or a message whose content is text"
        )
    return content
