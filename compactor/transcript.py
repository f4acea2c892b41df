"""Rounds as quoted text for a summarizer, in steps that fit its input: all of the text, and none of it twice.

A tool's result names its place in the log and, unless its call stands right above it, the tool and its arguments: a
result alone says nothing to a reader who has not seen the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from memory.errors import ContextError
from memory.messages import repeats_query, split_results
from memory.references import beginning, ceil_boundary, floor_boundary
from memory.rounds import USER, Attachment, Post, Round, ToolCall
from prompts import escape_tags

from .prompt.groups import is_summary
from .prompt.shorten import strip_marks
from .tokens import TokenCounter

__all__ = ["Calls", "Room", "Step", "StepsTooSmall", "answered_calls", "quote", "steps"]

#: Minimum room for conversation in one request; below it a summarizer would see little but its instructions.
MIN_ROOM = 64
#: Maximum characters of a call's arguments beside its result.
MAX_ARGUMENTS = 160
#: Maximum bytes of a name or an id in a tag, each of which may be a token; in little room, as many as providers allow
#: in the name of a tool.
MAX_ATTRIBUTE, MIN_ATTRIBUTE = 320, 64
#: With less room for a request, in tokens, arguments do not stand beside results.
ROOM_FOR_ARGUMENTS = 512

#: The call that each result in a round answers, by the id of the result's post.
Calls = Mapping[str, ToolCall]

_HEAD = "<conversation>\n"
_TAIL = "\n</conversation>"


class StepsTooSmall(ContextError, ValueError):
    """A request has no room for the conversation beside the instructions and the previous summary."""


@dataclass(slots=True)
class Step:
    """What one request folds in: whole rounds, or a part of one that is too long for a request."""

    rounds: list[Round] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    #: How many rounds, from the first of all steps on, are folded in entirely after this step.
    whole: int = 0
    #: Whether the step ends at the end of a round, so that its summary may be published.
    at_boundary: bool = True

    @property
    def text(self) -> str:
        return _HEAD + "\n".join(self.texts) + _TAIL

    def add(self, round_: Round, text: str, tokens: int) -> None:
        self.rounds.append(round_)
        self.texts.append(text)
        self.tokens += tokens


class Room:
    """The tokens of conversation that the next request can hold; they change with the summary that it starts from."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    @property
    def checked(self) -> int:
        if self.tokens < MIN_ROOM:
            raise StepsTooSmall(
                "the prompt and the previous summary leave no room for the conversation;"
                " raise summarizer_input_tokens or lower target_tokens"
            )
        return self.tokens


def answered_calls(round_: Round) -> Calls:
    """Return the call that each result in *round_* answers: the newest before it of that id."""
    return _match_calls(_split_results(round_))


def _match_calls(posts: Sequence[Post]) -> Calls:
    made: dict[str, ToolCall] = {}
    answered: dict[str, ToolCall] = {}
    for post in posts:
        if post.tool_call_id in made:
            answered[post.id] = made[post.tool_call_id]
        for call in post.tool_calls:
            made[call.id] = call
    return answered


def _split_results(round_: Round) -> Sequence[Post]:
    """Return the posts of *round_*, each with one result at most."""
    posts: list[Post] = []
    for post in round_.post_list:
        if post.tool_call_id is None:
            posts.append(post)
        else:
            posts.extend(split_results(post))
    return posts


def steps(rounds: Sequence[Round], room: Room, count: TokenCounter, *, calls: Calls | None = None) -> Iterator[Step]:
    """Yield *rounds* in steps of at most ``room.tokens``, which the caller may change after each.

    *calls* are those that the results answer, if the rounds are parts of others; None: those in the rounds. A round
    that fits is kept whole; a longer one is split between posts, and a longer post within its text. Raises
    ``StepsTooSmall`` if there is too little room to go on.
    """
    step = Step()
    for done, round_ in enumerate(rounds):
        waiting = deque([round_])  # the round, or the pieces of it that no step has taken yet
        answered = answered_calls(round_) if calls is None else calls
        if room.tokens < ROOM_FOR_ARGUMENTS:
            answered = {post_id: call.model_copy(update={"arguments": ""}) for post_id, call in answered.items()}
        begun = False
        while waiting:
            piece = waiting[0]
            most = _bytes_of_names(room.tokens)
            text = quote(piece, partial=piece is not round_, calls=answered, most=most)
            tokens = count(text) + 1
            if step.rounds and step.tokens + tokens > room.checked:
                step.whole, step.at_boundary = done, not begun
                yield step
                step = Step()
                continue  # with the room that this step's summary leaves
            if tokens > room.checked and len(parts := list(_parts(piece, room.checked, count, answered))) > 1:
                waiting.popleft()
                waiting.extendleft(reversed(parts))
                continue
            step.add(waiting.popleft(), text, tokens)
            begun = True
    if step.rounds:
        step.whole = len(rounds)
        yield step


def _bytes_of_names(room: int) -> int:
    """Return the bytes that a name may take in a request of *room* tokens: a post's names take half of it at most."""
    return min(MAX_ATTRIBUTE, max(MIN_ATTRIBUTE, room // 12))


def _parts(round_: Round, room: int, count: TokenCounter, calls: Calls) -> Iterator[Round]:
    """Yield a round as several of at most *room* tokens, every text in exactly one of them."""
    empty = round_.model_copy(update={"user_query": "", "post_list": ()})
    frame = count(quote(empty, partial=True)) + 1
    asked = count("\n".join(_query_lines("x"))) + 1
    most = _bytes_of_names(room)
    for query in _slices(round_.user_query, room - frame - asked, count):
        yield empty.model_copy(update={"user_query": query})
    pending: list[Post] = []
    tokens = frame
    for post in _shown_posts(round_):
        tag = _Tag(round_.number, calls.get(post.id), most)
        for piece in _post_parts(post, room - frame, count, tag):
            cost = _cost(piece, count, tag)
            if pending and tokens + cost > room:
                yield empty.model_copy(update={"post_list": tuple(pending)})
                pending, tokens = [], frame
            pending.append(piece)
            tokens += cost
    if pending:
        yield empty.model_copy(update={"post_list": tuple(pending)})


def _post_parts(post: Post, room: int, count: TokenCounter, tag: _Tag) -> Iterator[Post]:
    """Yield a post as several of at most *room* tokens: first its message, then attachments and calls."""
    if _cost(post, count, tag) <= room:
        yield post
        return

    def sliced(text: str, made: Callable[[str], Post]) -> Iterator[Post]:
        if not text:
            yield made("")
        for part in _slices(text, room - _cost(made("x"), count, tag), count):
            yield made(part)

    bare = post.model_copy(update={"message": "", "attachment_list": (), "tool_calls": ()})
    if post.message or post.tool_call_id is not None:
        yield from sliced(post.message, partial(_with_message, bare))
    bare = bare.model_copy(update={"tool_call_id": None})  # or each piece would look like a result of its own
    for attachment in post.attachment_list:
        yield from sliced(attachment.content, partial(_with_attachment, bare, attachment))
    for call in post.tool_calls:
        yield from sliced(call.arguments, partial(_with_call, bare, call))


def _with_message(post: Post, message: str) -> Post:
    return post.model_copy(update={"message": message})


def _with_attachment(post: Post, attachment: Attachment, content: str) -> Post:
    return post.model_copy(update={"attachment_list": (attachment.model_copy(update={"content": content}),)})


def _with_call(post: Post, call: ToolCall, arguments: str) -> Post:
    return post.model_copy(update={"tool_calls": (call.model_copy(update={"arguments": arguments}),)})


def _cost(post: Post, count: TokenCounter, tag: _Tag) -> int:
    return count("\n".join(_post_lines(post, tag))) + 1


def _slices(text: str, tokens: int, count: TokenCounter) -> Iterator[str]:
    """Yield *text* in consecutive slices of at most *tokens* each, counted with escaped tags."""
    tokens = max(tokens, MIN_ROOM // 4)  # beside names and ids that are longer than they should be
    start = 0
    while start < len(text):
        length = min(len(text) - start, 4 * tokens)
        stop = _end_of_slice(text, start, length)
        while length > 1 and (found := count(escape_tags(text[start:stop]))) > tokens:
            # By a sixteenth at least: where spaces end a slice, a step in proportion may take nothing off.
            length = max(1, min(length * tokens // found, length * 15 // 16))
            stop = _end_of_slice(text, start, length)
        yield text[start:stop]
        start = stop


def _end_of_slice(text: str, start: int, length: int) -> int:
    """Return the end of at most *length* code points from *start*, not within a character if that is possible."""
    stop = floor_boundary(text, start + length)
    return stop if stop > start else start + length


class _Tag(NamedTuple):
    """What the tag of a post needs beside the post."""

    round_number: int = 0
    #: The call that it answers, if known.
    call: ToolCall | None = None
    #: The bytes that each of its attributes may take.
    most: int = MAX_ATTRIBUTE


def quote(round_: Round, *, partial: bool = False, calls: Calls | None = None, most: int = MAX_ATTRIBUTE) -> str:
    """Return a round as quoted text: every post's message, attachments, tool calls and results.

    A tag opens each, and the next tag ends it: text from the conversation cannot open one, and closing tags would cost
    tokens with every message. *partial*: the round is a part of one. *calls* are those that its results answer; None:
    those in it. Names and ids of more than *most* bytes are shortened.
    """
    lines = [f'<round number="{round_.number}" part="yes">' if partial else f'<round number="{round_.number}">']
    if round_.user_query:
        lines += _query_lines(round_.user_query)
    posts, answers = _shown_posts(round_), False
    known = answered_calls(round_) if calls is None else calls
    for post, following in zip_longest(posts, posts[1:]):
        # A call and its result, the next post, are as clear without the id. Another part may hold the rest of a part;
        # and several calls need their ids, because some hosts begin them anew with each message.
        answered = (
            not partial
            and following is not None
            and len(post.tool_calls) == 1
            and post.tool_calls[0].id == following.tool_call_id
        )
        lines += _post_lines(post, _Tag(round_.number, known.get(post.id), most), answers=answers, answered=answered)
        answers = answered
    return "\n".join(lines)


def _shown_posts(round_: Round) -> Sequence[Post]:
    """Return the posts, each with one result at most, without the first if that only repeats the query."""
    posts = _split_results(round_)
    if not posts or (first := posts[0]).send_from != USER or not repeats_query(first, round_):
        return posts
    carries = first.attachment_list or first.tool_calls or first.tool_call_id is not None
    return posts if carries else posts[1:]


def _query_lines(query: str) -> Iterator[str]:
    return _element("message", query, {"from": USER})


def _post_lines(post: Post, tag: _Tag, *, answers: bool = False, answered: bool = False) -> Iterator[str]:
    """Yield the lines of *post*. *answers*: it answers the post before; *answered*: the next post answers it."""
    # Most posts go to the user, so only other receivers are named.
    ends = {"from": post.send_from, "to": "" if post.send_to == USER else post.send_to}
    if post.tool_call_id is not None:
        # A result goes to the caller: no receiver is named.
        which = {} if answers else {"id": post.tool_call_id} | _call_attributes(tag.call)
        place = {"at": f"r{tag.round_number}.p{post.number}"} if tag.round_number and post.number else {}
        yield from _element("tool_result", post.message, {"from": post.send_from} | which | place, tag.most)
    elif post.message and post.extra and is_summary(post):  # nobody said it
        place = {"at": f"r{tag.round_number}.p{post.number}"} if tag.round_number else {}
        yield from _element("summary", strip_marks(post.message), place, tag.most)
    elif post.message:
        yield from _element("message", post.message, ends, tag.most)
    for attachment in post.attachment_list:
        yield from _attachment_lines(attachment, ends, tag)
    for call in post.tool_calls:
        yield from _call_lines(call, ends, "" if answered else call.id, tag)


def _attachment_lines(attachment: Attachment, ends: dict[str, str], tag: _Tag) -> Iterator[str]:
    return _element("attachment", attachment.content, ends | {"type": attachment.type}, tag.most)


def _call_lines(call: ToolCall, ends: dict[str, str], which: str, tag: _Tag) -> Iterator[str]:
    return _element("tool_call", call.arguments, {"from": ends["from"], "name": call.name, "id": which}, tag.most)


def _call_attributes(call: ToolCall | None) -> dict[str, str]:
    """Return the tool and the beginning of its arguments; nothing if the call is unknown."""
    if call is None:
        return {}
    arguments = " ".join(call.arguments[: 4 * MAX_ARGUMENTS].split())
    if len(arguments) > MAX_ARGUMENTS or len(call.arguments) > 4 * MAX_ARGUMENTS:
        arguments = f"{beginning(arguments, MAX_ARGUMENTS)} [...]"
    return {"tool": call.name, "arguments": arguments}


def _element(tag: str, text: str, attributes: dict[str, str], most: int = MAX_ATTRIBUTE) -> Iterator[str]:
    said = "".join(f' {name}="{_attribute(value, most)}"' for name, value in attributes.items() if value)
    yield f"<{tag}{said}>"
    yield escape_tags(text) if "<" in text else text


def _attribute(value: str, most: int) -> str:
    """Return *value* on one line, without the characters of a tag."""
    return " ".join(shorten_name(value, most).split()).replace('"', "'").replace("<", "‹").replace(">", "›")


def shorten_name(name: str, most: int) -> str:
    """Return *name*; if it has more than *most* bytes, its beginning, end and length: it could fill a request."""
    if 4 * len(name) <= most or len(name.encode("utf-8", "surrogatepass")) <= most:
        return name
    begins, ends = _fitting(name[:most], most // 2), _fitting(name[: -most - 1 : -1], most // 8)
    end = name[ceil_boundary(name, len(name) - ends) :]
    return f"{beginning(name, begins)} [... {len(name):,} characters ...] {end}"


def _fitting(text: str, size: int) -> int:
    """Return how many of the first characters of *text* take no more than *size* bytes."""
    return len(text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore"))
