"""Rounds as quoted text for a summarizer, in steps that fit its input: all of the text, and none of it twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memory.messages import repeats_query
from memory.rounds import USER, Attachment, Post, Round, ToolCall
from prompts import escape_tags

from .tokens import TokenCounter

__all__ = ["Step", "StepsTooSmall", "quote", "steps"]

#: The least room for conversation in one request; below it a summarizer would see little but its instructions.
LEAST_ROOM = 64
#: No text has fewer characters a token than this many tokens a character: a slice never needs more tries than that.
_HEAD = "<conversation>\n"
_TAIL = "\n</conversation>"


class StepsTooSmall(ValueError):
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
    """How much conversation the next request holds, in tokens; changes with the summary that it starts from."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def steps(rounds: Sequence[Round], room: Room, count: TokenCounter) -> Iterator[Step]:
    """Give *rounds* in steps of at most ``room.tokens``, which the caller may change after each.

    A round that fits is kept whole; a longer one is split between posts, and a longer post within its text. Raises
    ``StepsTooSmall`` where the room is too little to go on.
    """
    step, done = Step(), 0
    for round_ in rounds:
        text = quote(round_)
        tokens = count(text) + 1
        if step.rounds and step.tokens + tokens > _checked(room):
            step.whole = done
            yield step
            step = Step()
        if tokens <= _checked(room):
            step.add(round_, text, tokens)
        else:
            # A step is given out when the next part comes, so the last part of this round is followed by new rounds.
            for part in _parts(round_, room, count):
                if step.rounds:
                    step.whole, step.at_boundary = done, False
                    yield step
                    step = Step()
                part_text = quote(part, partial=True)
                step.add(part, part_text, count(part_text) + 1)
        done += 1
    if step.rounds:
        step.whole = done
        yield step


def _checked(room: Room) -> int:
    available = room.tokens - 8  # the tags around the conversation
    if available < LEAST_ROOM:
        raise StepsTooSmall(
            "the prompt and the previous summary leave no room for the conversation;"
            " raise summarizer_input_tokens or lower target_tokens"
        )
    return available


def _parts(round_: Round, room: Room, count: TokenCounter) -> Iterator[Round]:
    """Give a round as several that each fit, every text in exactly one of them."""
    empty = round_.model_copy(update={"user_query": "", "post_list": ()})
    pending: list[Post] = []
    queries = list(_slices(round_.user_query, _payload(empty, room, count), count)) if round_.user_query else []
    for query in queries:
        yield empty.model_copy(update={"user_query": query})
    for post in round_.post_list[1 if _says_query_again(round_) else 0 :]:
        for piece in _post_parts(post, empty, room, count):
            grown = empty.model_copy(update={"post_list": (*pending, piece)})
            if pending and count(quote(grown, partial=True)) > _checked(room):
                yield empty.model_copy(update={"post_list": tuple(pending)})
                pending = []
            pending.append(piece)
    if pending:
        yield empty.model_copy(update={"post_list": tuple(pending)})


def _payload(around: Round, room: Room, count: TokenCounter) -> int:
    """Return the tokens left for one text in a request that holds nothing else of the round."""
    return max(_checked(room) - count(quote(around, partial=True)) - 32, LEAST_ROOM // 2)


def _post_parts(post: Post, empty: Round, room: Room, count: TokenCounter) -> Iterator[Post]:
    """Give a post as several, where one request cannot hold it: first its message, then what it carries."""
    whole = empty.model_copy(update={"post_list": (post,)})
    if count(quote(whole, partial=True)) <= _checked(room):
        yield post
        return
    bare = post.model_copy(update={"message": "", "attachment_list": (), "tool_calls": ()})
    room_for_text = _payload(empty.model_copy(update={"post_list": (bare,)}), room, count)
    for text in _slices(post.message, room_for_text, count):
        yield bare.model_copy(update={"message": text})
    for attachment in post.attachment_list:
        for text in _slices(attachment.content, room_for_text, count):
            part = attachment.model_copy(update={"content": text})
            yield bare.model_copy(update={"attachment_list": (part,)})
    for call in post.tool_calls:
        for text in _slices(call.arguments, room_for_text, count) or iter(("",)):
            yield bare.model_copy(update={"tool_calls": (call.model_copy(update={"arguments": text}),)})


def _slices(text: str, tokens: int, count: TokenCounter) -> Iterator[str]:
    """Give *text* in consecutive slices of at most *tokens* each, as they stand once their tags are escaped."""
    start = 0
    while start < len(text):
        length = min(len(text) - start, 4 * tokens)
        while length > 1 and count(escape_tags(text[start : start + length])) > tokens:
            length //= 2
        yield text[start : start + length]
        start += length


def quote(round_: Round, *, partial: bool = False) -> str:
    """Return a round as quoted text: every post's message, attachments, tool calls and results.

    Text from the conversation cannot open or close one of the tags.
    """
    lines = [f'<round number="{round_.number}" part="yes">' if partial else f'<round number="{round_.number}">']
    if round_.user_query:
        lines += _element("message", round_.user_query, {"from": USER})
    for post in round_.post_list[1 if _says_query_again(round_) else 0 :]:
        lines += _post_lines(post)
    return "\n".join([*lines, "</round>"])


def _says_query_again(round_: Round) -> bool:
    """Return whether the first post is nothing but the query again."""
    posts = round_.post_list
    return bool(posts) and repeats_query(posts[0], round_) and not (posts[0].attachment_list or posts[0].tool_calls)


def _post_lines(post: Post) -> Iterator[str]:
    ends = {"from": post.send_from, "to": post.send_to}
    if post.tool_call_id is not None:
        yield from _element("tool_result", post.message, ends | {"id": post.tool_call_id})
    elif post.message:
        yield from _element("message", post.message, ends)
    for attachment in post.attachment_list:
        yield from _attachment_lines(attachment, ends)
    for call in post.tool_calls:
        yield from _call_lines(call, ends)


def _attachment_lines(attachment: Attachment, ends: dict[str, str]) -> Iterator[str]:
    return _element("attachment", attachment.content, ends | {"type": attachment.type})


def _call_lines(call: ToolCall, ends: dict[str, str]) -> Iterator[str]:
    return _element("tool_call", call.arguments, {"from": ends["from"], "name": call.name, "id": call.id})


def _element(tag: str, text: str, attributes: dict[str, str]) -> Iterator[str]:
    said = "".join(f' {name}="{_attribute(value)}"' for name, value in attributes.items() if value)
    yield f"<{tag}{said}>"
    yield escape_tags(text)
    yield f"</{tag}>"


def _attribute(value: str) -> str:
    return " ".join(value.split()).replace('"', "'").replace("<", "‹").replace(">", "›")
