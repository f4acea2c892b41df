"""What a large post reads as: its beginning, and a line with its size and the reference that reloads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory.graphemes import cut_before
from memory.messages import ASSISTANT, FUNCTION, KEPT, text_of
from memory.overlays import Reduction
from memory.reading.references import post_reference
from memory.rounds import USER, Post, Round

from ..config import whole_number
from ..tokens import TokenCounter
from .overlaid import OVERLAY

__all__ = ["ATTACHMENT", "OffloadRule", "beginning", "is_kind", "is_result", "kept_line", "only_text", "size_of"]

#: How a kind begins that means posts with an attachment of that type: ``attachment:plan``.
ATTACHMENT = "attachment:"
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

    def __post_init__(self) -> None:
        for name in ("threshold", "preview"):
            whole_number(name, getattr(self, name))

    def applied(
        self, round_: Round, post: Post | None, count: TokenCounter, *, cost: int | None = None
    ) -> Reduction | None:
        """Return the ``offloaded`` reduction of a large *post*, None for the round's query. None for any other post.

        None also where it would not be shorter, in tokens; where *post* is an overlay's, unless ``again``; where its
        round is in no log, so that nothing reloads it; and where it holds what is no text, an image say, which no
        reference gives back. *cost* is what its message takes, where that was counted before.
        """
        text = self.large_text(round_, post, count)
        if text is None:
            return None
        before, reference = count(text) if cost is None else cost, post_reference(round_, post)
        shown = beginning(text, self.preview, count if self.tokens else None)
        if shown:
            size = size_of(len(text) - len(shown), max(before - count(shown), 1))
            shorter = f"{shown}\n{kept_line(size, reference)}"
        elif post is not None and OVERLAY in post.extra:
            shorter = f"[Left out; reload {reference}]"  # how long it was is not known here
        else:
            shorter = f"[{len(text):,} characters left out; reload {reference}]"
        return Reduction.over(round_, [post], "offloaded", shorter) if count(shorter) < before else None

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
    return isinstance(content, str) or not isinstance(content, Sequence) or all(map(_is_text, content))


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


def beginning(text: str, length: int, count: TokenCounter | None = None) -> str:
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
