"""Read the summary from a model's answer. Everything is checked: endpoints return anything."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from memory.arguments import takes

from .base import Summarizer, SummarizerError, Summary, SummaryRequest
from .response_limits import MAX_ANSWER_BYTES, TOO_LARGE, Limit

#: Maximum characters of a reply; a longer text that begins with "Hello" is something else.
_LONGEST = 400
#: The same for a reply recognised only by its end: "It is done. Is there anything else I can help you with?"
_LONGEST_CLOSING = 200

# The beginning of a reply, alone or before an offer, a promise or a refusal.
_GREETING = re.compile(
    r"""(?: (?: hello | hi | hey | greetings | welcome | good\ (?:morning|afternoon|evening) | sure(?:\ thing)?
      | certainly | of\ course | absolutely | great | thanks? | thank\ you | you['’]re\ welcome | no\ problem
      | i\ understand | understood | got\ it | okay | ok | noted | alright )
      \b (?:\ (?:there|again|back|so\ much|everyone|all))? [^\w<]* )+""",
    re.IGNORECASE | re.VERBOSE,
)
# Each names the speaker or the reader: quoted standing instructions say "please" as well.
_OFFER = re.compile(
    r"""how\ (?:can|may|could|should)\ i\ (?:help|assist|be\ of)\b
      | how\ would\ you\ like\ to\ (?:proceed|continue)\b
      | what\ (?:can|may|could|should)\ i\ (?:do|help)\b [^.!?\n]{0,60}? \b you\b
      | what\ (?:would|do)\ you\ (?:like|want|need)\ (?:me|to)\b
      | (?:is\ there|do\ you\ need)\ (?:any|some)thing\b [^.!?\n]{0,60}? \b(?:i|you|me)\b
      | anything\ else\ (?:that\ )?(?:i|you|we)\b | let\ me\ know\ (?:[^.!?\n]{0,80}? \b(?:you|i)\b | \W*\Z)
      | feel\ free\ to\ (?:ask|reach|share|let|tell|contact)\b
      | have\ a\ (?:great|nice|good|lovely)\ (?:day|time|trip|flight|evening|night|weekend|one)\b
      | please\ (?:(?:tell|let)\ me\b
          | (?:provide|share|send|paste|upload)\ (?:me\b|your\b|more\b|it\ here\b|the\ (?:conversation|text
            |transcript|messages?|content|details|files?|documents?|information)\b))
      | i(?:['’]m|\ am)\ (?:here|happy|glad|ready)\ to\ (?:help|assist|answer)\b
      | i(?:['’]d|\ would)\ be\ (?:happy|glad)\ to\b""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL = re.compile(
    r"""as\ an\ ai\b
      | (?:i(?:['’]m|\ am)\ (?:very\ |so\ )?sorry|sorry|apologies) [\s,.]* (?:but\ )? i\b
      | (?:unfortunately,?\ )? i\ (?: can['’]t | can\ ?not | am\ (?:not\ able|unable)\ to | won['’]t )
        \ (?:help|assist|comply|fulfill?|provide|summari[sz]e|do\ th(?:at|is)|continue|engage
          |access\ (?:the|this|any)\ con)""",
    re.IGNORECASE | re.VERBOSE,
)
# Counts as a reply only after a greeting. A summary in the first person may say it too, but then it names things.
_PROMISE = re.compile(r"i(?:['’]ll|['’]ve| will| have| understand)\b[^:\n\d]{0,80}\Z", re.IGNORECASE)
# A greeting in another language, followed closely by an offer.
_ABROAD = re.compile(
    r"""(?: bonjour | salut | hola | hallo | guten | ciao | ol[áa] | привет | здравствуйте | 你好 | 您好 | こんにちは
      | 안녕 ) .{0,80}? (?: (?:comment|que)\ puis-je | en\ qu[ée]\ puedo | c[óo]mo\ puedo | wie\ (?:kann|darf)\ ich
      | (?:come|cosa)\ posso | como\ posso | чем\ (?:я\ )?могу | 可以帮 | 能帮 | 帮助您 | お手伝い | 도와 )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LEADING = re.compile(r"\A\W+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def is_greeting(text: str) -> bool:
    """Return whether *text* only greets or thanks. A guess, for English only."""
    return len(text) <= _LONGEST and _GREETING.fullmatch(text.strip()) is not None


def is_reply(text: str) -> bool:
    """Return whether *text* greets, offers help or refuses instead of summarising.

    A cautious guess: a good summary mistaken for a reply would be rejected at every attempt.
    """
    if len(text) > _LONGEST:
        return False
    text = _LEADING.sub("", text).rstrip()
    greeting = _GREETING.match(text)
    rest = text[greeting.end() :] if greeting else text
    if not rest or _OFFER.match(rest) or _REFUSAL.match(rest) or _ABROAD.match(text):
        return True
    if greeting and _PROMISE.match(rest):
        return True
    return len(text) <= _LONGEST_CLOSING and bool(_OFFER.match(_SENTENCE.split(text)[-1]))


# A model's remarks to its reader below a summary; no fact of a conversation begins like this.
_REMARK = re.compile(
    r"""\W{0,10} (?:
        (?:i\ (?:really\ |do\ )?)?hope\ (?:this|that|it|the\ summary)\b
      | i(?:['’]ve|\ have)?\ (?:also\ )?(?:tried|included|summari[sz]ed|covered|preserved|omitted|condensed|left\ out)\b
      | (?:this|the)(?:\ above)?\ summary\ (?:above\ )?(?:covers|captures|includes|preserves|reflects|contains|keeps|is
          |was|should|has)\b
      | (?:this|that|the\ above)\ (?:should\ (?:cover|give|help|capture|be)|covers|captures|concludes|completes
          |is\ (?:all|it|the\ end))\b
      | (?:that['’]s|that\ is)\ (?:all|it|the\ (?:end|summary))\b
      | (?:end|conclusion)\ of\ (?:the\ )?summary\b | (?:summary|output)\ (?:ends|complete)
      | note:?\ (?:that\ )?(?:i|this\ summary|the\ (?:above|summary))\b
      | if\ you(?:['’]d)?\ (?:need|want|would|like|have)\b | (?:would|do)\ you\ (?:like|want|need)\b | shall\ i\b
      | (?:please\ )?(?:let\ me\ know|feel\ free)\b | is\ there\ anything\b | happy\ to\b | good\ luck\b
      | (?:many\ )?thank(?:s|\ you)\b | (?:word|token|character)\ count\b
      | (?:approx(?:imately|\.)?|about|~|≈)?\ ?\d{1,5}\ (?:words|tokens|characters)\W{0,5}\Z
      | ich\ hoffe\b | hoffentlich\b | j['’]esp[èe]re\b | espero\ que\b | spero\ che\b | ik\ hoop\b | надеюсь\b
      | 希望(?:这|這|以上|对|對) | 如(?:需|果您|有) | お役に立 | 以上です | 도움이
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_LONGEST_REMARKS = 400


def is_remark(text: str) -> bool:
    """Return whether *text* contains only a model's remarks to its reader: hopes, offers, a report of its work.

    A cautious guess: an extra sentence in a summary does no harm, a missing one may.
    """
    said = text.strip(" \t\r\n*_`~-=#>")
    if not said:
        return True
    if len(said) > _LONGEST_REMARKS:
        return False
    return is_reply(said) or all(_REMARK.match(one) or is_reply(one) for one in _SENTENCE.split(said) if one.strip())


# --- strip the wrapping of an answer: thoughts, drafts, tags, code blocks, and remarks to the reader ------------------


# A tag's attributes, bounded: an unclosed tag is scanned once.
_WITH = r"(?:[\s/][^<>]{0,200})?"
_NAMES = "(think|thinking|reasoning)"
_LEADING_THOUGHT = re.compile(rf"\s*<{_NAMES}{_WITH}>", re.IGNORECASE)
_LEADING_END = re.compile(rf"\s*</{_NAMES}>", re.IGNORECASE)
_THOUGHT = re.compile(f"<{_NAMES}{_WITH}>", re.IGNORECASE)
_END = re.compile(f"</{_NAMES}>", re.IGNORECASE)
# Alone on its line, or before an empty line.
_LOOSE_END = re.compile(rf"^[ \t]*</{_NAMES}>[ \t]*$|</{_NAMES}>[ \t]*\n[ \t]*\n", re.IGNORECASE | re.MULTILINE)
#: Other names of thoughts. Summaries may have sections of these names, so the closing tag must end its line.
_DRAFTS = "(analysis|scratchpad|reflection|draft|thoughts?)"
_LEADING_DRAFT = re.compile(rf"\s*<{_DRAFTS}{_WITH}>", re.IGNORECASE)
_DRAFT_END = re.compile(rf"</{_DRAFTS}>[ \t]{{0,20}}(?=\n|<summary\b)", re.IGNORECASE)

#: The tags of a summary, and code, inside which tags are only mentioned.
_TOKEN = re.compile(
    rf"""(?P<fence>^[ \t]{{0,3}}(?:`{{3,10}}|~{{3,10}})[^\n`<]{{0,80}}$) | `[^`\n]{{1,300}}`
      | (?P<opens><summary{_WITH}>) | (?P<closes></[ ]?summary[ ]?>)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_FENCE_BEFORE = re.compile(r"(?:```|~~~)[^\n`<]{0,80}\s{1,10}\Z")
_SUMMARY_NEXT = re.compile(r"\s{0,20}<summary\b", re.IGNORECASE)
#: The text right before a wrapping tag: an introduction ending in a colon, or closing tags.
_INTRODUCES = re.compile(rf"(?:[:：][*_]{{0,4}}|</(?:{_NAMES}|{_DRAFTS})>)\s{{0,20}}\Z", re.IGNORECASE)
_FOLDED = re.compile(r"<details[^<>]{0,200}>\s{0,20}\Z", re.IGNORECASE)
#: Maximum characters of an introduction.
_LONGEST_INTRODUCTION = 300

_FENCED = re.compile(r"(```|~~~)(?:markdown|md|text|txt|plain|plaintext)?[ \t]{0,20}\n", re.IGNORECASE)
_NAMED = re.compile(rf"<((?!previous_)[a-z]{{1,30}}[_-]summary|answer|output|response|result){_WITH}>", re.IGNORECASE)
_OBJECT = re.compile(r'\{\s*"summary"\s*:')
_LANGUAGE = re.compile(r"[\w-]*")
#: Maximum layers of wrapping to remove.
_LAYERS = 8


def strip_tags(text: str) -> str:
    """Return the answer in *text* without a model's wrapping.

    Leading thoughts are removed. If the answer has summary tags, the last closed block is the answer; the text before
    it is an introduction, an analysis or a draft. Text after the tags stays, unless it is a remark to the reader ("I
    hope this helps!"). A summary that mentions tags, in a sentence or in code, stays whole.

    Some servers cut off an opening tag. A closing tag alone ends the thoughts if it ends a line. It ends the summary if
    only remarks follow.
    """
    for _ in range(_LAYERS):
        before, text = text, _unwrapped(_last_block(_without_thoughts(text)))
        if text == before:
            break
    return text


# -- thoughts ---------------------------------------------------------------------------------------------------------


def _without_thoughts(text: str) -> str:
    start = 0
    while True:
        if found := _LEADING_END.match(text, start):
            start = found.end()
        elif found := _LEADING_THOUGHT.match(text, start):
            start = next(_ends_of(found[1], _END, text, found.end()), len(text))
        elif (end := _loose_end(text, start)) > start or (
            (found := _LEADING_DRAFT.match(text, start))
            and (end := next(_ends_of(found[1], _DRAFT_END, text, found.end()), 0))
        ):
            start = end
        else:
            return text[start:].strip()


def _ends_of(name: str, ends: re.Pattern[str], text: str, start: int) -> Iterator[int]:
    return (end.end() for end in ends.finditer(text, start) if end[1].lower() == name.lower())


def _loose_end(text: str, start: int) -> int:
    """Return the end of thoughts without an opening tag; *start* if there are none."""
    opening = _THOUGHT.search(text, start)  # closing tags after this one have an opening tag
    found = seen = start
    fences = 0
    for end in _LOOSE_END.finditer(text, start, opening.start() if opening else len(text)):
        fences += text.count("```", seen, end.start())
        seen = end.start()
        if fences % 2 == 0:
            found = end.end()
    return found


# -- tags of a summary ------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A block in summary tags: its text from *start* to *end*, and with the tags from *opened* to *closed*."""

    opened: int
    start: int
    end: int
    closed: int
    is_closed: bool


def _last_block(text: str) -> str:
    """Return the last closed, non-empty block of *text*, and the text after it unless that is a remark.

    Without a closed block, the last open one counts. Returns *text* unchanged if its tags do not wrap the answer.
    """
    tags = list(_tags(text))
    blocks = list(_blocks(text, tags))
    if not blocks:
        return _up_to_loose_end(text, tags)
    filled = [block for block in blocks if text[block.start : block.end].strip()]
    chosen = next((block for block in reversed(filled) if block.is_closed), filled[-1] if filled else blocks[-1])
    fence = _FENCE_BEFORE.search(text[max(0, chosen.opened - 100) : chosen.opened])
    behind = text[blocks[-1].closed :].strip() if blocks[-1].is_closed else ""
    behind = behind.removeprefix(fence[0][:3]).strip() if fence else behind
    behind = "" if is_remark(behind) else behind
    leads = tags[0].start() == blocks[0].opened and not _FENCE_BEFORE.sub("", text[: blocks[0].opened]).strip()
    if not leads and (behind or not filled or not _wraps(text, chosen)):
        return text
    return "\n\n".join(part for part in (text[chosen.start : chosen.end].strip(), behind) if part)


def _tags(text: str) -> Iterator[re.Match[str]]:
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


def _blocks(text: str, tags: list[re.Match[str]]) -> Iterator[_Block]:
    """Yield the blocks in *text*.

    An opening tag inside a block belongs to it, unless it begins a line: then the model gave up the earlier text.
    """
    block: _Block | None = None
    depth = 0
    for tag in tags:
        between = text[block.closed : tag.start()].strip() if block else ""
        if tag.lastgroup == "closes":
            if block and (between or not block.is_closed):  # an earlier closing tag was only mentioned
                block = block._replace(end=tag.start())
            depth = max(0, depth - 1)
            block = block and block._replace(closed=tag.end(), is_closed=True)
        elif depth and between and not _begins_line(text, tag.start()):
            depth += 1
        else:
            if block and not depth:
                yield block
            opened = block.opened if block and depth and not between else tag.start()
            block, depth = _Block(opened, tag.end(), len(text), tag.end(), is_closed=False), 1
    if block:
        yield block


def _begins_line(text: str, start: int) -> bool:
    return not text[text.rfind("\n", 0, start) + 1 : start].strip()


def _wraps(text: str, block: _Block) -> bool:
    """Return whether *block*, at the end of *text*, is the whole answer and not a part of it."""
    head = text[max(0, block.opened - _LONGEST_INTRODUCTION) : block.opened]
    if _FOLDED.search(head):
        return False
    head, leads_a_line = _FENCE_BEFORE.sub("", head), _begins_line(text, block.opened)
    short = block.opened <= _LONGEST_INTRODUCTION or head.rstrip().endswith(">")
    introduced = short and _INTRODUCES.search(head) is not None
    return (block.is_closed and leads_a_line) or (introduced and (block.is_closed or leads_a_line))


def _up_to_loose_end(text: str, tags: list[re.Match[str]]) -> str:
    """Return *text* up to a closing tag that ends a line, where nothing follows but remarks."""
    for tag in tags:
        behind = text[tag.end() :]
        if behind[:1] in ("", "\n") or not behind.strip():
            behind = re.sub(r"</ ?summary ?>", "", behind, flags=re.IGNORECASE).strip()
            return text[: tag.start()].rstrip() if is_remark(behind) else text
    return text


# -- wrapping of the whole answer -------------------------------------------------------------------------------------


def _unwrapped(text: str) -> str:
    """Return *text* without a wrapper around all of it: a fenced block, a tag of another name, a JSON object."""
    if (found := _FENCED.match(text)) and text.endswith(found[1]) and len(text) >= found.end() + len(found[1]):
        inside = text[found.end() : -len(found[1])]
        if found[1] not in inside and inside.endswith("\n"):
            text = inside.strip()
    if (found := _NAMED.match(text)) and text.lower().endswith(f"</{found[1].lower()}>"):
        text = text[found.end() : -len(found[1]) - 3].strip()
    bare = unfenced(text)
    if _OBJECT.match(bare):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            return text
        if value.keys() == {"summary"} and isinstance(value["summary"], str):
            return str(value["summary"]).strip()
    return text


def unfenced(text: str) -> str:
    """Return the content if *text* is one code block, else *text*."""
    bare = text.strip()
    if len(bare) < 6 or not (bare.startswith("```") and bare.endswith("```")):
        return text
    opened = _LANGUAGE.match(bare, 3)
    return bare[opened.end() if opened else 3 : -3].strip()


# --- read a chat completion -------------------------------------------------------------------------------------------


#: Beginning of a tool call that a server left in the text; each model family has its own form.
_CALL_BEGINS = re.compile(
    r"\s*(?:<(?:\w+:)?(?:tool_call|function_calls?)>|<function=|<invoke |<\|(?:python_tag|tool_call)"
    r"|\[TOOL_CALLS\]|<｜tool|functions\.\w+\()"
)
#: Fields of a tool call in the form of a JSON object.
_CALL_KEYS = {"id", "type", "name", "tool", "tool_name", "function", "action"} | {
    *("arguments", "parameters", "args", "input", "tool_input", "action_input")
}
_CALL_ENDS = re.compile(r"</(?:\w+:)?(?:tool_call|function_calls?|function)>\s*$")


class NoSummary(SummarizerError):
    """The answer contains no summary; a request in another form may get one."""

    def __init__(
        self, message: str, usage: Mapping[str, int] | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        #: Token usage of the failed request, if known.
        self.usage = usage


def read_answer(answer: Any, model: str | None) -> Summary:
    """Return the summary in a chat completion, given as an object or as JSON.

    Raises ``NoSummary`` if it contains none, and ``SummarizerError`` if the answer was cut off.
    """
    choices, usage = _field(answer, "choices"), _usage(_field(answer, "usage"))
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        inside = "an error" if _field(answer, "error") is not None else "no choices"
        raise NoSummary(f"the answer holds {inside}: check that model= and base_url= are right", usage)
    finish, message = _field(choices[0], "finish_reason"), _field(choices[0], "message")
    if message is None:
        raise NoSummary("the answer's first choice holds no message: check that base_url= is a chat endpoint", usage)
    text = strip_tags(_text(_field(message, "content")))
    called = finish in ("tool_calls", "function_call") or _field(message, "tool_calls")
    if called or _field(message, "function_call") or _is_call(text):  # before its length: a call may be cut off
        raise NoSummary("the model called a tool instead of answering: do not offer tools in extra=", usage)
    if finish == "length":
        raise SummarizerError(
            "the answer was cut off at its limit of tokens: raise max_output_tokens= (a reasoning model's thoughts"
            " count), or ask for a shorter summary"
        )
    if finish == "content_filter" or _field(message, "refusal"):
        raise NoSummary("the model refused, or a filter stopped it: choose another model= or another prompt", usage)
    if not text:
        raise NoSummary("empty answer: check that model= is a chat model, and raise max_output_tokens= if set", usage)
    named = _field(answer, "model")
    return Summary(text, usage, named if isinstance(named, str) and named else model)


def _is_call(text: str) -> bool:
    """Return whether *text* is a tool call or ends in one."""
    if _CALL_BEGINS.match(text) or _CALL_ENDS.search(text):
        return True
    said = unfenced(text)
    try:
        value = json.loads(said) if said.startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(isinstance(call, dict) and call and call.keys() <= _CALL_KEYS for call in calls)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text(content: Any) -> str:
    """Return the text parts of *content*; some servers answer in parts, including thoughts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    parts = (_field(part, "text") for part in content if _field(part, "type") in ("text", "output_text"))
    return "".join(part for part in parts if isinstance(part, str))


def _usage(usage: Any) -> dict[str, int] | None:
    """Return the valid token counts in *usage*; None if there are none."""
    counts = {
        "input_tokens": _field(usage, "prompt_tokens"),
        "output_tokens": _field(usage, "completion_tokens"),
        "cached_tokens": _field(_field(usage, "prompt_tokens_details"), "cached_tokens"),
    }
    return {name: n for name, n in counts.items() if type(n) is int and n >= 0} or None


def read_body(chunks: Iterable[bytes], limit: Limit) -> bytes:
    """Return a response's body. Raises ``SummarizerError`` if it is too late or too large."""
    body = bytearray()
    for chunk in chunks:
        limit.left()
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise SummarizerError(TOO_LARGE)
    return bytes(body)


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


# --- other libraries' model APIs as summarizers -----------------------------------------------------------------------


def as_summarizer(source: Any) -> Summarizer:
    """Return a summarizer that calls *source*'s ``chat_completion(messages)``, or *source* itself if it is a function.

    TaskWeaver calls an object with ``chat_completion`` an LLM API. Raises ``TypeError`` for anything else, including
    classes and asynchronous functions.
    """
    chat = getattr(source, "chat_completion", None)
    if isinstance(source, type):
        raise TypeError(f"{source.__name__} is a class; make a summarizer of it: {source.__name__}(...)")
    if any(inspect.iscoroutinefunction(call) for call in (source, getattr(source, "__call__", None), chat)):  # noqa: B004
        raise TypeError(f"{type(source).__name__} is asynchronous; pass a plain function, which may wait")
    if callable(chat):  # checked first: a mock is callable too
        return _ChatSummarizer(chat)
    if callable(source):
        if not takes(source, None):
            raise TypeError("a summarizer is called with one SummaryRequest, whose messages are those to send")
        return source  # type: ignore[no-any-return]
    raise TypeError(
        f"{type(source).__name__} is no summarizer; pass a function of a SummaryRequest that returns text,"
        " an object with chat_completion(messages), OpenAISummarizer(...) or ExtractiveSummarizer()"
    )


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
            if isinstance(_field(answer, "choices"), Sequence):
                return read_answer(answer, None)
            in_pieces = isinstance(answer, Iterator) and _field(answer, "content") is None
            text = "".join(map(_content, answer)) if in_pieces else _content(answer)
        except SummarizerError:
            raise
        except Exception as exc:  # any exception of a foreign API is a failure of this call only
            raise SummarizerError(
                f"chat_completion failed ({type(exc).__name__}): check the LLM API's own configuration"
            ) from exc
        text = strip_tags(text)
        if not text:
            raise SummarizerError("chat_completion gave an empty answer: check the LLM API's model and token limit")
        return Summary(text)


def _content(message: Any) -> str:
    """Return the text of a message or of a piece. Raises ``SummarizerError`` for a tool call or other content."""
    if isinstance(message, str):
        return message
    if _field(message, "role") == "function":  # TaskWeaver's mark of a tool call; the content is its JSON
        raise SummarizerError("chat_completion answered with a tool call: configure it without tools")
    content = _field(message, "content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise SummarizerError(
            f"chat_completion answered with {type(content).__name__} as content: it must return"
            " text, or a message whose content is text"
        )
    return content
