"""Where each message of a prompt comes from: found out when somebody asks, from the parts that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from memory.messages import ASSISTANT, SPEAK_FOR_NO_AGENT, from_post, query_message
from memory.overlays import CompactedMessage
from memory.references import post_reference, posts_reference, range_reference
from memory.rounds import Post, Round, cached_property
from memory.values import ValueObject

from .groups import LAST_NUMBER, OVERLAY, Message, is_summary
from .shorten import PromptPart


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(ValueObject):
    """Where one message of a prompt comes from."""

    #: Reloads what the message stands for: ``r3.p2``, ``r3.p0`` for the user's query, ``r1-r7`` for a summary or the
    #: line about what is left out. None for the system messages in front and the plan: no round has them.
    ref: str | None
    #: ``original``: what was appended, less keys of the host's own. So are the host's system messages in front.
    #: ``shortened``: it stands for one post, but reads otherwise: shorter, or as a user message that names the agent
    #: who speaks, or says that a result came late.
    #: ``ours``: nobody said it. A summary, the line about what is left out, the plan, the note in the place of a result
    #: that is missing.
    kind: Literal["original", "shortened", "ours"]


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """What a prompt was made of."""

    #: How many messages of the host stand in front.
    system: int
    compaction: CompactedMessage | None
    #: The parts of the tail, in order.
    runs: Sequence[Sequence[PromptPart]]
    #: The numbers of the first and the last round that the line about what is left out tells of; None: there is none.
    omitted: tuple[int, int] | None = None
    #: How many messages of the tail stand before the plan; None: there is no plan.
    plan_at: int | None = None

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The source of each message."""
        front = [Source(None, "original")] * self.system
        if self.compaction is not None:
            covered = range_reference(self.compaction.start_index, self.compaction.last_round)
            front.append(Source(covered, "ours"))
        if self.omitted is not None:
            front.append(Source(range_reference(*self.omitted), "ours"))
        tail = [source for run in self.runs for part in run for source in _find_sources(part)]
        if self.plan_at is not None:
            tail.insert(self.plan_at, Source(None, "ours"))
        return (*front, *tail)


def _find_sources(part: PromptPart) -> Iterator[Source]:
    """Yield the source of each message of *part*."""
    posts = part.group.posts
    for place, (post, message) in enumerate(zip(posts, part.messages, strict=True)):
        if post is not None and is_summary(post):
            yield Source(posts_reference(part.round_, post.number, post.extra[LAST_NUMBER]), "ours")
        elif place and post is posts[0]:  # a call stands for each result that it lacks
            yield Source(post_reference(part.round_, post), "ours")
        else:
            overlaid = OVERLAY in (part.round_ if post is None else post).extra
            is_original = not overlaid and message == _restore_message(part.round_, post)
            yield Source(post_reference(part.round_, post), "original" if is_original else "shortened")


def _restore_message(round_: Round, post: Post | None) -> Message | None:
    """Return the message that was appended as *post*, or as the round's query for None, without keys of the host's
    own."""
    if post is None:
        return query_message(round_, only_known=True)
    role = ASSISTANT if post.send_from in SPEAK_FOR_NO_AGENT else post.send_from
    return from_post(post, role, only_known=True)
