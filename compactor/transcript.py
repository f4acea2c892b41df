"""Rounds as quoted text for a summarizer, in steps that fit its input: all of the text, and none of it twice.

A tool's result names its place in the log and, unless its call stands right above it, the tool and its arguments: a
result alone says nothing to a reader who has not seen the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from memory.errors import ContextError
from memory.messages import repeats_query, split_results
from memory.patterns import compile_later
from memory.references import find_ceil_boundary, find_floor_boundary, take_beginning
from memory.rounds import USER, Attachment, Post, Round, ToolCall, copy_with
from prompts import escape_tags

from .prompt.groups import is_summary
from .prompt.shorten import strip_marks
from .tokens import TokenCounter

#: Minimum room for conversation in one request; below it a summarizer would see little but its instructions.
MIN_ROOM = 64
#: Maximum characters of a text of which only one line is shown, such as a call's arguments beside its result.
MAX_LINE = 160
#: Maximum bytes of a name or an id in a tag, each of which may be a token; in little room, those of a tool's name.
MAX_ATTRIBUTE, MIN_ATTRIBUTE = 320, 64
#: With less room for a request, in tokens, arguments do not stand beside results.
ROOM_FOR_ARGUMENTS = 512

#: Attributes that are shown without their names if their value is one word.
_BARE = frozenset({"number", "from"})
_WORD = compile_later(r"[\w.-]+")

#: The call that each result in a round answers, by the id of the result's post.
Calls = Mapping[str, ToolCall]


class StepsTooSmall(ContextError, ValueError):
    """A request has no room for the conversation beside the instructions and the previous summary."""


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """What one request summarizes: whole rounds, or a part of one that is too long for a request."""

    rounds: list[Round] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    #: How many rounds, from the first of all steps on, are summarized entirely after this step.
    whole_rounds: int = 0
    #: Whether the step ends at the end of a round, so that its summary may be published.
    at_boundary: bool = True

    @property
    def text(self) -> str:
        return "<conversation>\n" + "\n".join(self.texts) + "\n</conversation>"


@dataclass(slots=True, eq=False, repr=False)
class StepLimit:
    """The tokens of conversation that the next request can hold; they change with the summary that it starts from."""

    tokens: int


def find_answered_calls(round_: Round) -> Calls:
    """Return the call that each result in *round_* answers: the newest before it of that id."""
    calls: dict[str, ToolCall] = {}
    answered: dict[str, ToolCall] = {}
    for post in _list_posts(round_):
        if post.tool_call_id in calls:
            answered[post.id] = calls[post.tool_call_id]
        for call in post.tool_calls:
            calls[call.id] = call
    return answered


def split_into_steps(
    rounds: Sequence[Round], limit: StepLimit, count: TokenCounter, *, calls: Calls | None = None
) -> Iterator[Step]:
    """Yield *rounds* in steps of at most ``limit.tokens``, which the caller may change after each.

    *calls* are those that the results answer; None: those in the rounds. A round that fits is kept whole; a longer one
    is split between posts, and a longer post within its text. Raises ``StepsTooSmall`` if there is too little room.
    """
    step = Step()
    for done, round_ in enumerate(rounds):
        waiting = deque([round_])  # the round, or the pieces of it that no step has taken yet
        answered = find_answered_calls(round_) if calls is None else calls
        if limit.tokens < ROOM_FOR_ARGUMENTS:
            answered = {post_id: copy_with(call, arguments="") for post_id, call in answered.items()}
        begun = False
        while waiting:
            if limit.tokens < MIN_ROOM:
                raise StepsTooSmall(
                    "the prompt and the previous summary leave no room for the conversation;"
                    " raise summarizer_input_tokens or lower target_tokens"
                )
            piece = waiting[0]
            # The names of a post take half of the room at most.
            most = min(MAX_ATTRIBUTE, max(MIN_ATTRIBUTE, limit.tokens // 12))
            text = quote(piece, partial=piece is not round_, calls=answered, max_attribute=most)
            tokens = count(text) + 1
            if step.rounds and step.tokens + tokens > limit.tokens:
                step.whole_rounds, step.at_boundary = done, not begun
                yield step
                step = Step()
                continue  # with the room that this step's summary leaves
            if (
                tokens > limit.tokens
                and len(parts := list(_split_round(piece, limit.tokens, count, answered, most))) > 1
            ):
                waiting.popleft()
                waiting.extendleft(reversed(parts))
                continue
            step.rounds.append(waiting.popleft())
            step.texts.append(text)
            step.tokens += tokens
            begun = True
    if step.rounds:
        step.whole_rounds = len(rounds)
        yield step


def _split_round(
    round_: Round, max_tokens: int, count: TokenCounter, calls: Calls, max_attribute: int
) -> Iterator[Round]:
    """Yield a round as several of at most *max_tokens*, every text in exactly one of them."""
    empty = copy_with(round_, user_query="", post_list=())
    wrapper, query_wrapper = (count(quote(copy_with(empty, user_query=text), partial=True)) + 1 for text in ("", "x"))
    for query in _slice_text(round_.user_query, max_tokens - query_wrapper, count):
        yield copy_with(empty, user_query=query)

    def count_post(post: Post) -> int:
        return count("\n".join(_quote_post(post, round_.number, calls.get(post.id), max_attribute))) + 1

    pending: list[Post] = []
    tokens = wrapper
    for post in _list_posts(round_):
        for piece in _split_post(post, max_tokens - wrapper, count, count_post):
            piece_tokens = count_post(piece)
            if pending and tokens + piece_tokens > max_tokens:
                yield copy_with(empty, post_list=tuple(pending))
                pending, tokens = [], wrapper
            pending.append(piece)
            tokens += piece_tokens
    if pending:
        yield copy_with(empty, post_list=tuple(pending))


def _split_post(post: Post, max_tokens: int, count: TokenCounter, cost: Callable[[Post], int]) -> Iterator[Post]:
    """Yield a post as several of at most *max_tokens*: first its message, then attachments and calls."""
    if cost(post) <= max_tokens:
        yield post
        return
    texts: list[tuple[str, Attachment | ToolCall | None]] = []
    if post.message or post.tool_call_id is not None:
        texts.append((post.message, None))
    texts += [(attachment.content, attachment) for attachment in post.attachment_list]
    texts += [(call.arguments, call) for call in post.tool_calls]
    bare = copy_with(post, message="", attachment_list=(), tool_calls=())
    for text, source in texts:
        slices = _slice_text(text, max_tokens - cost(_fill(bare, source, "x")), count) if text else [""]
        for part in slices:
            yield _fill(bare, source, part)
        bare = copy_with(bare, tool_call_id=None)  # or each piece would look like a result of its own


def _fill(post: Post, source: Attachment | ToolCall | None, text: str) -> Post:
    """Return *post* with *text* in a copy of *source*, or as its message."""
    if isinstance(source, Attachment):
        return copy_with(post, attachment_list=(copy_with(source, content=text),))
    if source is not None:
        return copy_with(post, tool_calls=(copy_with(source, arguments=text),))
    return copy_with(post, message=text)


def _slice_text(text: str, tokens: int, count: TokenCounter) -> Iterator[str]:
    """Yield *text* in consecutive slices of at most *tokens* each, counted with escaped tags."""
    tokens = max(tokens, MIN_ROOM // 4)  # beside names and ids that are longer than they should be
    start = 0
    while start < len(text):
        length = min(len(text) - start, 4 * tokens)
        stop = _find_end(text, start, length)
        while length > 1 and (size := count(escape_tags(text[start:stop]))) > tokens:
            # By a sixteenth at least: where spaces end a slice, a step in proportion may take nothing off.
            length = max(1, min(length * tokens // size, length * 15 // 16))
            stop = _find_end(text, start, length)
        yield text[start:stop]
        start = stop


def _find_end(text: str, start: int, length: int) -> int:
    """Return the end of at most *length* code points from *start*, not within a character if that is possible."""
    stop = find_floor_boundary(text, start + length)
    return stop if stop > start else start + length


def quote(
    round_: Round, *, partial: bool = False, calls: Calls | None = None, max_attribute: int = MAX_ATTRIBUTE
) -> str:
    """Return a round as quoted text: every post's message, attachments, tool calls and results.

    A tag opens each, and the next tag ends it: text from the conversation cannot open one, and closing tags would cost
    tokens with every message. So would a tag of the round before that of its query. *partial*: the round is a part of
    one. *calls* are those that its results answer; None: those in it. Names and ids of more than *max_attribute* bytes
    are shortened.
    """
    query = round_.user_query
    which = {"number": str(round_.number), "from": USER if query else "", "part": "yes" if partial else ""}
    lines = _quote_element("round", query, which)[: 2 if query else 1]
    posts, answers = _list_posts(round_), False
    known = find_answered_calls(round_) if calls is None else calls
    for post, following in zip_longest(posts, posts[1:]):
        # A call and its result, the next post, are as clear without the id. Another part may hold the rest of a part;
        # and several calls need their ids, because some hosts begin them anew with each message.
        answered = (
            not partial
            and following is not None
            and len(post.tool_calls) == 1
            and post.tool_calls[0].id == following.tool_call_id
        )
        lines += _quote_post(post, round_.number, known.get(post.id), max_attribute, answers=answers, answered=answered)
        answers = answered
    return "\n".join(lines)


def _list_posts(round_: Round) -> list[Post]:
    """Return the posts, each with one result at most, without the first if that only repeats the query."""
    posts: list[Post] = []
    for post in round_.post_list:
        if post.tool_call_id is None:
            posts.append(post)
        else:
            posts += split_results(post)
    if not posts or (first := posts[0]).send_from != USER or not repeats_query(first, round_):
        return posts
    return posts if first.attachment_list or first.tool_calls or first.tool_call_id is not None else posts[1:]


def _quote_post(
    post: Post,
    round_number: int,
    call: ToolCall | None,
    max_attribute: int,
    *,
    answers: bool = False,
    answered: bool = False,
) -> list[str]:
    """Return the lines of *post*, which answers *call*. *answers*: that is in the post before; *answered*: the next
    post answers it."""
    # Most posts go to the user, so only other receivers are named.
    ends = {"from": post.send_from, "to": "" if post.send_to == USER else post.send_to}
    lines: list[str] = []
    if post.tool_call_id is not None:
        # A result goes to the caller: no receiver is named.
        attributes = {"from": post.send_from}
        if not answers:
            attributes["id"] = post.tool_call_id
            if call is not None:
                attributes |= {"tool": call.name, "arguments": begin_line(call.arguments)}
        if round_number and post.number:
            attributes["at"] = f"r{round_number}.p{post.number}"
        lines += _quote_element("tool_result", post.message, attributes, max_attribute)
    elif post.message and post.extra and is_summary(post):  # nobody said it
        place = {"at": f"r{round_number}.p{post.number}"} if round_number else {}
        lines += _quote_element("summary", strip_marks(post.message), place, max_attribute)
    elif post.message:
        lines += _quote_element("message", post.message, ends, max_attribute)
    for attachment in post.attachment_list:
        lines += _quote_element("attachment", attachment.content, ends | {"type": attachment.type}, max_attribute)
    for made in post.tool_calls:
        which = {"from": post.send_from, "name": made.name, "id": "" if answered else made.id}
        lines += _quote_element("tool_call", made.arguments, which, max_attribute)
    return lines


def begin_line(text: str) -> str:
    """Return *text* on one line, if it is longer only its beginning."""
    line = " ".join(text[: 4 * MAX_LINE].split())
    return line if len(line) <= MAX_LINE and len(text) <= 4 * MAX_LINE else f"{take_beginning(line, MAX_LINE)} [...]"


def _quote_element(tag: str, text: str, attributes: Mapping[str, str], max_attribute: int = MAX_ATTRIBUTE) -> list[str]:
    """Return the line of a tag, whose attributes are without the characters of a tag, and its text.

    Of those that nearly every tag has, only the value is shown: a name for it would cost tokens with every message.
    """
    opening = tag
    for name, value in attributes.items():
        if value:
            shown = value if 4 * len(value) <= max_attribute else shorten_name(value, max_attribute)
            shown = " ".join(shown.split()).replace('"', "'").replace("<", "‹").replace(">", "›")
            opening += f" {shown}" if name in _BARE and _WORD.fullmatch(shown) else f' {name}="{shown}"'
    return [f"<{opening}>", escape_tags(text) if "<" in text else text]


def shorten_name(name: str, max_bytes: int) -> str:
    """Return *name*; if it has more than *max_bytes* bytes, its beginning, end and length: it could fill a request."""
    if len(name.encode("utf-8", "surrogatepass")) <= max_bytes:
        return name
    begins, ends = (
        _count_fitting(name[:max_bytes], max_bytes // 2),
        _count_fitting(name[: -max_bytes - 1 : -1], max_bytes // 8),
    )
    end = name[find_ceil_boundary(name, len(name) - ends) :]
    return f"{take_beginning(name, begins)} [... {len(name):,} characters ...] {end}"


def _count_fitting(text: str, size: int) -> int:
    """Return how many of the first characters of *text* take no more than *size* bytes."""
    return len(text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore"))
