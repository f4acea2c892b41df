"""What a large post reads as: its beginning, and a line with its size and the reference that reloads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.graphemes import cut_after, cut_before
from memory.messages import ASSISTANT, FUNCTION, KEPT, result_of_text, text_of
from memory.overlays import Reduction
from memory.reading.references import post_reference
from memory.rounds import USER, Post, Round

from ..config import whole_number
from ..tokens import TokenCounter
from .kinds import ATTACHMENT
from .overlaid import ARGUMENTS, OVERLAY

__all__ = ["LEFT_OUT", "OffloadRule", "cut_beginning", "is_kind", "is_result", "kept_line", "only_text", "size_of"]

#: The key of what says how much of a call's arguments is left out.
LEFT_OUT = "left_out"
#: Instructions, however long; they are offloaded only where a rule names their kind.
_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class OffloadRule:
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
            whole_number(name, getattr(self, name))

    def applied(
        self, round_: Round, post: Post | None, count: TokenCounter, *, cost: int | None = None
    ) -> Reduction | None:
        """Return the ``offloaded`` reduction of a large *post*, None for the round's query. None for any other post.

        None also where it would not be shorter, in tokens; where *post* is an overlay's, unless ``again``; where its
        round is in no log, so that nothing reloads it; and where it holds what is no text, an image say, which no
        reference gives back. *cost* is what its message takes, where that was counted before.
        """
        text, arguments = self.large_text(round_, post, count), self._large_arguments(round_, post, count)
        if text is None and not arguments:
            return None
        reference = post_reference(round_, post)
        if text is None:
            shown: str | None = None
        else:
            before = count(text) if cost is None else cost
            shown = self._shorten(text, before, reference, count, again=post is not None and OVERLAY in post.extra)
            shown = shown if count(shown) < before else None
        if shown is None and not arguments:
            return None
        left = {str(number): left_out(call, self.preview, reference) for number, call in arguments.items()}
        said = "" if post is None else text_of(post)
        extra = {ARGUMENTS: left} if left else {}
        return Reduction.over(round_, [post], "offloaded", said if shown is None else shown, extra=extra)

    def _shorten(self, text: str, tokens: int, reference: str, count: TokenCounter, *, again: bool) -> str:
        """Return what is shown of *text*, of so many *tokens*; *again*: how long it was at first is not known."""
        measure = count if self.tokens else None
        head = cut_beginning(text, self.preview, measure)
        tail = end_of(text[len(head) :], self.ending, measure)
        if not head and not tail and again:
            return f"[Left out; reload {reference}]"
        if not head and not tail:
            return f"[{len(text):,} characters left out; reload {reference}]"
        size = size_of(len(text) - len(head) - len(tail), max(tokens - count(head) - count(tail), 1))
        return "\n".join(part for part in (head, kept_line(size, reference), tail) if part)

    def _large_arguments(self, round_: Round, post: Post | None, count: TokenCounter) -> dict[int, str]:
        """Return the arguments of *post*'s calls that are large, by the call's number."""
        if not self.arguments or post is None or not post.tool_calls or not self._covers(round_, post):
            return {}
        return {
            number: call.arguments
            for number, call in enumerate(post.tool_calls)
            if len(call.arguments) > self.threshold or (self.tokens and count(call.arguments) > self.threshold)
        }

    def large_text(self, round_: Round, post: Post | None, count: TokenCounter) -> str | None:
        """Return the whole text of *post* where the rule covers it and it is large; else None."""
        text = round_.user_query if post is None else text_of(post)
        if not text or (not self.tokens and len(text) <= self.threshold) or not self._covers(round_, post):
            return None
        size = count(text) if self.tokens else len(text)
        return text if self.threshold < size and (self.up_to is None or size <= self.up_to) else None

    def _covers(self, round_: Round, post: Post | None) -> bool:
        extra = round_.extra if post is None else post.extra
        if not round_.number or not only_text(extra):
            return False
        if OVERLAY in extra and not (self.again and extra[OVERLAY] == "offloaded"):
            return False
        if post is None or post.send_from == USER:
            return self.users_too
        if self.kinds is None:
            return post.send_from not in _INSTRUCTIONS
        return any(is_kind(post, kind, self.role) for kind in self.kinds)


def left_out(arguments: str, preview: int, reference: str) -> str:
    """Return what stands for a call's *arguments*: JSON with their beginning, their size and the reference."""
    shown = {LEFT_OUT: f"{len(arguments):,} characters; reload {reference}"}
    if begins := cut_beginning(arguments, preview):
        shown["begins"] = begins
    return json.dumps(shown, ensure_ascii=False)


def is_kind(post: Post, kind: str, role: str) -> bool:
    """Return whether *post* is of that kind: ``tool_result``, ``assistant`` (what *role* said itself, with calls or
    without), ``attachment:<type>``, or the host's own ``Post.kind``."""
    if kind == "tool_result":
        return is_result(post)
    if kind == "assistant":
        return post.send_from == role and not is_result(post)
    if kind.startswith(ATTACHMENT):
        return any(attachment.type == kind.removeprefix(ATTACHMENT) for attachment in post.attachment_list)
    return post.kind == kind


def is_result(post: Post) -> bool:
    """Return whether *post* is what a tool gave, also in the form that came before tool calls."""
    return post.tool_call_id is not None or post.send_from == FUNCTION


def only_text(extra: Mapping[str, Any]) -> bool:
    """Return whether what has this ``extra`` came in as text alone: then its reference gives back all of it."""
    kept = extra.get(KEPT)
    content = kept.get("content") if isinstance(kept, Mapping) else None
    if isinstance(content, str) or not isinstance(content, Sequence):
        return True
    return all(map(_is_text, content)) or result_of_text(content) is not None


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and any(isinstance(part.get(key), str) for key in ("text", "refusal"))
    )


def kept_line(what: str, reference: str) -> str:
    """Return the line that stands where *what* stood."""
    return f"[{what}, left out here and kept in full; reload {reference}]"


def size_of(characters: int, tokens: int) -> str:
    """Return how long a text is, in words."""
    return f"{characters:,} characters, about {_rounded(tokens):,} tokens"


def _rounded(number: int) -> int:
    """Return *number* to two digits: models count tokens each in their own way."""
    digits = len(str(number))
    return round(number, min(2 - digits, 0))


def end_of(text: str, length: int, count: TokenCounter | None = None) -> str:
    """Return at most the last *length* characters of *text*, or *length* tokens by *count*, cut between characters."""
    size = min(len(text), length if count is None else 6 * length)
    while size:
        shown = text[cut_after(text, len(text) - size) :]
        if count is None or (found := count(shown)) <= length:
            return shown
        size = min(size - 1, size * length // found)
    return ""


def cut_beginning(text: str, length: int, count: TokenCounter | None = None) -> str:
    """Return at most the first *length* characters of *text*, or *length* tokens by *count*, cut between characters.

    Neither the halves of a surrogate pair are torn apart, nor what readers see as one: letters and their marks, flags,
    joined emoji. Only a few times as much of *text* is looked at as is returned.
    """
    if count is None:
        return text[: cut_before(text, length)]
    size = min(len(text), 6 * length)
    while size:
        shown = text[: cut_before(text, size)]
        found = count(shown)
        if found <= length:
            return shown
        size = min(size - 1, size * length // found)
    return ""
