"""Texts made shorter: clipped around a reference, offloaded behind a preview, cleared; and the lines that say so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from memory.arguments import check_whole_number
from memory.messages import ASSISTANT, FUNCTION, OPENAI_FIELDS, SYSTEM, find_text_result, join_text, replace_text
from memory.overlays import Reduction
from memory.patterns import compile_later
from memory.references import (
    find_ceil_boundary,
    find_floor_boundary,
    make_post_reference,
    make_posts_reference,
    make_range_reference,
)
from memory.rounds import USER, Attachment, Post, Round, ToolCall, copy_with
from memory.values import ValueObject

from ..tokens import TokenCounter, count_message
from .groups import ARGUMENTS, ATTACHMENT, OVERLAY, Message
from .layout import By, PromptPart, ShortenedPart


def measure_reduction(round_: Round, reduction: Reduction, count: TokenCounter) -> ShortenedPart:
    """Return the tokens that *reduction* replaces in *round_*, and those of its text."""
    posts = [post for post in round_.post_list if reduction.covers(post.number)]
    arguments = [(str(number), call.arguments) for post in posts for number, call in enumerate(post.tool_calls)]
    before = sum(map(count, map(join_text, posts))) + sum(count(text) for _, text in arguments)
    if reduction.covers(0) and not any(post.message == round_.user_query for post in posts):
        before += count(round_.user_query)
    after = count(reduction.text)
    if reduction.kind == "offloaded":
        left = reduction.extra.get(ARGUMENTS, {})
        after += sum(count(left.get(number, text)) for number, text in arguments)
    ref = make_posts_reference(round_, reduction.first_number, reduction.last_number)
    return ShortenedPart(ref, before, after, reduction.kind, published=True)


def clip_message(message: Message, limit: int, ref: str, count: TokenCounter) -> Message:
    """Return *message* with each text of more than *limit* tokens clipped to its head and tail around a reference.

    The same object if nothing is that long. A tool call's arguments stay valid JSON.
    """
    changed: Message = {}
    content = message.get("content")
    if _is_over(limit, content, count):
        parts = content if isinstance(content, list) else []
        kinds = [part.get("type") for part in parts if isinstance(part, Mapping)]
        if "tool_use" in kinds or "tool_result" in kinds:  # neither may go without the other
            changed["content"] = [_clip_part(part, limit, ref, count) for part in parts]
        else:
            changed["content"] = clip_text(_read_text(content), limit, ref, count)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and any(_is_over(limit, _read_arguments(call), count) for call in calls):
        changed["tool_calls"] = [_clip_call(call, limit, ref, count) for call in calls]
    return {**message, **changed} if changed else message


def clip_text(text: str, limit: int, ref: str, count: TokenCounter) -> str:
    """Return head and tail of *text*, about *limit* tokens, with a line between them about the missing part."""
    mark = f"\n[... {{}} of {len(text):,} characters left out; reload {ref} ...]\n"
    room = max(limit - count(mark) - 4, 0)
    head = cut_text(text, room * 2 // 3, count)
    tail = cut_text(text[len(head) :], room // 3, count, from_end=True)
    missing = len(text) - len(head) - len(tail)
    return head + mark.format(f"{missing:,}") + tail if missing else text


def cut_text(text: str, length: int, count: TokenCounter | None = None, *, from_end: bool = False) -> str:
    """Return the beginning of *text*, or its end: at most *length* characters, or *length* tokens by *count*.

    Keeps surrogate pairs together, and characters that readers see as one: letters and their marks, flags, joined
    emoji. Looks at only a few times as much of *text* as it returns.
    """
    size = min(len(text), length if count is None else 6 * length)
    while size > 0:
        shown = (
            text[find_ceil_boundary(text, len(text) - size) :] if from_end else text[: find_floor_boundary(text, size)]
        )
        if count is None or (tokens := count(shown)) <= length:
            return shown
        size = min(size - 1, size * length // tokens)
    return ""


def _is_over(limit: int, content: Any, count: TokenCounter) -> bool:
    """Return whether *content* is more than *limit* tokens; only as much of a long text is counted as it takes."""
    if not isinstance(content, str):
        return count_message({"content": content}, count) > limit
    return count(content[: 8 * limit]) > limit or (len(content) > 8 * limit and count(content) > limit)


def _read_text(content: Any) -> str:
    """Return the text of a message's content, with a mark for each part that is none."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(map(_read_part, content))


def _read_part(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    return part["text"] if isinstance(part.get("text"), str) else f"[{part.get('type')}]"


def _clip_part(part: Any, limit: int, ref: str, count: TokenCounter) -> Any:
    """Return a *part* of a content with each text of more than *limit* tokens clipped."""
    if not isinstance(part, Mapping):
        return clip_text(str(part), limit, ref, count)
    clipped = dict(part)
    for key in ("text", "thinking", "output", "content"):
        if key in part and part[key] is not None and _is_over(limit, part[key], count):
            clipped[key] = clip_text(_read_text(part[key]), limit, ref, count)
    for key in ("input", "arguments"):
        if key in part and _is_over(limit, text := json.dumps(part[key], ensure_ascii=False, default=str), count):
            clipped[key] = _describe_arguments(text, ref)
    return clipped


def _read_arguments(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return arguments if isinstance(arguments, str) else ""


def _clip_call(call: Any, limit: int, ref: str, count: TokenCounter) -> Any:
    arguments = _read_arguments(call)
    if not _is_over(limit, arguments, count):
        return call
    return {**call, "function": {**call["function"], "arguments": json.dumps(_describe_arguments(arguments, ref))}}


#: The key of the text that says how much of a call's arguments is left out.
LEFT_OUT = "left_out"


def _describe_arguments(arguments: str, ref: str) -> dict[str, str]:
    return {LEFT_OUT: f"{len(arguments):,} characters; reload {ref}"}


def shorten_arguments(arguments: str, preview: int, reference: str) -> str:
    """Return the replacement of a call's *arguments*: JSON with their beginning, their size and the reference."""
    shown = _describe_arguments(arguments, reference)
    if begins := cut_text(arguments, preview):
        shown["begins"] = begins
    return json.dumps(shown, ensure_ascii=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OffloadRule(ValueObject):
    """Which posts are large, and how much of one is still shown."""

    #: A post whose whole text, attachments included, is longer reads shorter. In characters; in tokens with ``tokens``.
    threshold: int = 5_120
    #: The length of the beginning that is shown, in the same measure; 0: only the line with the reference.
    preview: int = 200
    tokens: bool = False
    #: ``tool_result``, ``assistant``, ``attachment:<type>`` or a host's ``Post.kind``; None: all.
    kinds: tuple[str, ...] | None = None
    #: Whose posts are of the kind ``assistant``.
    role: str = ASSISTANT
    #: Whether what the user said is offloaded as well.
    users_too: bool = False
    #: What is longer is left to another rule; None: nothing is.
    up_to: int | None = None
    #: Whether what was offloaded before is shortened further.
    again: bool = False
    #: The length of the end that is shown, in the same measure: errors stand there.
    ending: int = 0
    #: Whether the arguments of tool calls are offloaded as well, each by itself; they stay valid JSON.
    arguments: bool = False

    def __post_init__(self) -> None:
        for name in ("threshold", "preview", "ending"):
            check_whole_number(name, getattr(self, name))

    def apply(
        self, round_: Round, post: Post | None, count: TokenCounter, *, cost: int | None = None
    ) -> Reduction | None:
        """Return the ``offloaded`` reduction of a large *post*; *post* None is the round's query. None if it is small.

        None also if the reduction would not be shorter in tokens; if *post* is an overlay's, unless ``again``; and if
        no reference gives back all of it: its round is in no log, or it holds more than text. *cost* is the tokens of
        its message, if they are known.
        """
        text = round_.user_query if post is None else join_text(post)
        calls = post.tool_calls if post is not None and self.arguments else ()
        if not (calls or (text and (self.tokens or len(text) > self.threshold))) or not self._covers(round_, post):
            return None
        size = count(text) if self.tokens else len(text)
        is_large = self.threshold < size and (self.up_to is None or size <= self.up_to)
        reference = make_post_reference(round_, post)
        arguments = {
            str(number): shorten_arguments(call.arguments, self.preview, reference)
            for number, call in enumerate(calls)
            if len(call.arguments) > self.threshold or (self.tokens and count(call.arguments) > self.threshold)
        }
        shown = None
        if is_large:
            before = count(text) if cost is None else cost
            shown = self._shorten(text, before, reference, count, again=post is not None and OVERLAY in post.extra)
            shown = shown if count(shown) < before else None
        if shown is None and not arguments:
            return None
        extra = {ARGUMENTS: arguments} if arguments else {}
        return Reduction.over(round_, [post], "offloaded", text if shown is None else shown, extra=extra)

    def _shorten(self, text: str, tokens: int, reference: str, count: TokenCounter, *, again: bool) -> str:
        """Return *text*, of so many *tokens*, shortened; *again*: its original length is not known."""
        measure = count if self.tokens else None
        head = cut_text(text, self.preview, measure)
        tail = cut_text(text[len(head) :], self.ending, measure, from_end=True)
        if not head and not tail:
            return f"[{'Left out' if again else f'{len(text):,} characters left out'}; reload {reference}]"
        size = describe_size(len(text) - len(head) - len(tail), max(tokens - count(head) - count(tail), 1))
        return "\n".join(part for part in (head, make_kept_line(size, reference), tail) if part)

    def _covers(self, round_: Round, post: Post | None) -> bool:
        extra = round_.extra if post is None else post.extra
        if not round_.number or not is_text_only(extra):
            return False
        if OVERLAY in extra and not (self.again and extra[OVERLAY] == "offloaded"):
            return False
        if post is None or post.send_from == USER:
            return self.users_too
        if self.kinds is None:
            return post.send_from not in SYSTEM  # instructions, however long, only where a rule names their kind
        return any(is_kind(post, kind, self.role) for kind in self.kinds)


def is_kind(post: Post, kind: str, role: str) -> bool:
    """Return whether *post* is of that kind: ``tool_result``, ``assistant`` (*role*'s own messages, with calls or
    without), ``attachment:<type>``, or the host's own ``Post.kind``."""
    if kind == "tool_result":
        return is_result(post)
    if kind == "assistant":
        return post.send_from == role and not is_result(post)
    if kind.startswith(ATTACHMENT):
        return any(attachment.type == kind.removeprefix(ATTACHMENT) for attachment in post.attachment_list)
    return post.kind == kind


def is_result(post: Post) -> bool:
    """Return whether *post* is a tool's result, also in the form that came before tool calls."""
    return post.tool_call_id is not None or post.send_from == FUNCTION


def is_text_only(extra: Mapping[str, Any]) -> bool:
    """Return whether a post with this ``extra`` came in as text alone: then its reference gives back all of it."""
    kept = extra.get(OPENAI_FIELDS)
    content = kept.get("content") if isinstance(kept, Mapping) else None
    if isinstance(content, str) or not isinstance(content, Sequence):
        return True
    return find_text_result(content) is not None or all(
        isinstance(part, str)
        or (isinstance(part, Mapping) and any(isinstance(part.get(key), str) for key in ("text", "refusal")))
        for part in content
    )


def make_kept_line(description: str, reference: str) -> str:
    """Return the line in the place of a text, with its *description*."""
    return f"[{description}, left out here and kept in full; reload {reference}]"


def make_attachments_line(attachments: Sequence[Attachment], reference: str) -> str:
    """Return the line that stands for *attachments*, one or more of one type."""
    characters = sum(len(attachment.content) for attachment in attachments)
    times = f"{len(attachments)} × " if len(attachments) > 1 else ""
    return make_kept_line(f"{times}{attachments[0].type}, {characters:,} characters", reference)


def make_summary_text(summary: str, covered: str, reference: str) -> str:
    """Return *summary* as prompts show it, below a line that names the posts it covers."""
    return f"[Summary of {covered}, kept in full; reload {reference}]\n{summary}"


def describe_size(characters: int, tokens: int) -> str:
    """Return how long a text is, in words. The tokens have two digits: each model counts its own."""
    return f"{characters:,} characters, about {round(tokens, min(2 - len(str(tokens)), 0)):,} tokens"


#: Levels of shortening, from light to heavy: they shorten texts and leave every message. Large payloads are offloaded,
#: then smaller tool results; then tool results are cleared, previews of large ones as well: so no small one is shown
#: less of than a large one. The strategies run the same rules in the background.
LARGE = OffloadRule()
LEVELS: tuple[tuple[OffloadRule, By], ...] = (
    (LARGE, "offloaded"),
    (OffloadRule(threshold=400, up_to=LARGE.threshold, kinds=("tool_result",)), "offloaded"),
    (OffloadRule(threshold=120, preview=0, kinds=("tool_result",), again=True), "cleared"),
)


def shorten_part(part: PromptPart, count: TokenCounter) -> tuple[PromptPart, ...]:
    """Return *part* on each level; nothing if none makes it shorter. No text is replaced by a longer one."""
    results = [post for post in part.group.posts if post is not None and is_result(post)]
    is_preview = any(OVERLAY in post.extra or len(join_text(post)) > LARGE.threshold for post in results)
    level, levels = copy_with(part, shows_preview=is_preview), []
    for rule, by in LEVELS:
        level = _apply(rule, by, level, count)
        levels.append(level)
    return tuple(levels) if level.reductions else ()


def _apply(rule: OffloadRule, by: By, level: PromptPart, count: TokenCounter) -> PromptPart:
    """Return the level after *level*; the same object if *rule* shortens nothing."""
    posts = level.group.posts
    changed = {
        place: {**message, "content": replace_text(message.get("content"), reduction.text)}
        for place, (post, message) in enumerate(zip(posts, level.messages, strict=True))
        if post is not None and not (place and post is posts[0])  # a call stands for each result that it lacks
        if (reduction := rule.apply(level.round_, post, count, cost=level.costs[place])) is not None
    }
    return level.with_messages(changed, by, count) if changed else level


def make_omission_note(
    rounds: Sequence[int], first_post: str = "", last_post: str = "", *, dropped_from: int = 0
) -> Message:
    """Return the line that lists omissions, and how to read them: whole rounds, then posts, then posts that were
    dropped here and there from round *dropped_from* on. It names no end of these, which would move with each."""
    omitted: list[str] = []
    if rounds:
        omitted.append(f"rounds {rounds[0]} to {rounds[-1]} (reload {make_range_reference(rounds[0], rounds[-1])})")
    if first_post:
        omitted.append(f"the posts from {first_post} to {last_post} (reload each by that name)")
    if dropped_from:
        omitted.append(
            f"single posts from round {dropped_from} on (reload r{dropped_from} or any other round by its number)"
        )
    return {"role": "system", "content": f"[Left out here to save space, and kept in full: {', '.join(omitted)}.]"}


#: Heads what the user forbade in a message that reads shorter.
FORBIDS = "[In it the user forbids, word for word:]"


def append_prohibitions(text: str, sentences: Sequence[str]) -> str:
    """Return *text* with the user's prohibitions, word for word, below it."""
    return "\n".join([text, FORBIDS, *(f"- {sentence}" for sentence in sentences)])


#: One of these is in each line that stands for what is left out.
_WORDS = ("kept in full", "left out; reload ", "Left out; reload ", "left out now; reload ", FORBIDS)
#: Maximum characters of such a line.
_MAX_MARK = 600

_RELOAD = r"reload r\d{1,12}(?:-r\d{1,12}|\.p\d{1,12}(?:-p\d{1,12})?)?"
_CHARACTERS = r"\d{1,3}(?:,\d{3})* characters"
_SIZE = rf"{_CHARACTERS}, about [\d,]{{1,20}} tokens"
_IN_FILE = rf" in the file .+; (?:{_RELOAD}|read_file gives it, grep searches it)"
#: What the summary of a tool run stands for.
CALLS = "tool calls that were made already and are not to be made again, and of their results"
#: Every form of such a line, strictly: others may say in brackets, too, that something is kept in full.
_FORMS = (
    rf"(?:{_SIZE}|.{{1,200}}, {_CHARACTERS}), left out here and kept in full(?:; {_RELOAD}|{_IN_FILE}| by the host)",
    rf"Summary of (?:{CALLS}|the {_SIZE}, that .{{1,200}} here), kept in full; {_RELOAD}",
    rf"(?:Left out|{_CHARACTERS} left out|Was to be seen once, and is left out now); {_RELOAD}",
    rf"\.\.\. [\d,]{{1,20}} of {_CHARACTERS} left out; {_RELOAD} \.\.\.",
    r"Left out here to save space, and kept in full: .{1,400}\(reload .{1,60}\)\.",
)
_MARK = compile_later(rf"\[(?:{'|'.join(_FORMS)})\]")


def strip_round(round_: Round) -> Round:
    """Return *round_* without the lines that compaction put into it; the same object if there are none.

    The user's words stay as they are, unless an overlay has shortened them.
    """
    query = strip_marks(round_.user_query) if OVERLAY in round_.extra else round_.user_query
    posts = tuple(map(_strip_post, round_.post_list))
    if query == round_.user_query and all(map(is_, posts, round_.post_list)):
        return round_
    return copy_with(round_, user_query=query, post_list=posts)


def strip_marks(text: str) -> str:
    """Return *text* without the lines that compaction put into it."""
    if not any(words in text for words in _WORDS):
        return text
    lines = text.split("\n")
    return "\n".join(line for line in lines if len(line) > _MAX_MARK or not (line == FORBIDS or _MARK.fullmatch(line)))


def _strip_post(post: Post) -> Post:
    if post.send_from == USER and OVERLAY not in post.extra:
        return post
    message, calls = strip_marks(post.message), tuple(map(_strip_call, post.tool_calls))
    if message == post.message and calls == post.tool_calls:
        return post
    return copy_with(post, message=message, tool_calls=calls)


def _strip_call(call: ToolCall) -> ToolCall:
    """Return *call* with the beginning of its arguments, if only that is left of them."""
    if not call.arguments.startswith(f'{{"{LEFT_OUT}": '):
        return call
    try:
        left = json.loads(call.arguments)
    except ValueError:
        return call
    begins = left.get("begins", "")
    if left.keys() - {LEFT_OUT, "begins"} or not isinstance(begins, str):
        return call
    return copy_with(call, arguments=f"{begins}…")
