"""The parts of a prompt: the messages in front, the groups of the tail, and the source of each message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memory.log.redaction import REDACTED
from memory.messages import ASSISTANT, SPEAK_FOR_NO_AGENT, SYSTEM, from_post, make_query_message
from memory.overlays import CompactedMessage
from memory.references import make_post_reference, make_posts_reference, make_range_reference
from memory.rounds import Post, Round, cached_property, copy_with
from memory.values import ValueObject

from ..tokens import TokenCounter, count_message
from .groups import LAST_NUMBER, OVERLAY, Message, MessageGroup, is_summary

#: Where the summary stands, and the line about what is left out: as system messages behind those of the host, as user
#: messages there, or at the end of the host's last system message.
SummaryAs = Literal["system", "user", "header"]


def place_in_front(system: Sequence[Message], added: Sequence[Message], summary_as: SummaryAs) -> list[Message]:
    """Return the host's messages in front, *system*, and those *added*: the summary, the line about omitted rounds.
    The parts that change stand last, so that a provider's cache keeps the beginning."""
    if summary_as == "user":
        return [*system, *[{**one, "role": "user"} for one in added]]
    if summary_as == "system" or not added:
        return [*system, *added]
    texts, at = [one["content"] for one in added], find_header(system)
    if at is None:
        return [{"role": "system", "content": "\n\n".join(texts)}, *system]
    content = system[at].get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = [*content, *[{"type": "text", "text": text} for text in texts]]
    else:
        content = "\n\n".join([*([content] if content else []), *texts])
    return [*system[:at], {**system[at], "content": content}, *system[at + 1 :]]


def find_header(system: Sequence[Message]) -> int | None:
    """Return the place of the last system message in *system*; None if there is none."""
    return next((at for at in reversed(range(len(system))) if system[at].get("role") in SYSTEM), None)


def count_added(system: Sequence[Message], added: Sequence[Message], summary_as: SummaryAs, count: TokenCounter) -> int:
    """Return how many tokens *added* adds to *system*."""
    if summary_as != "header":
        return sum([count_message(one, count) for one in added])
    after = place_in_front(system, added, summary_as)
    return sum([count_message(one, count) for one in after]) - sum([count_message(one, count) for one in system])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(ValueObject):
    """The source of one message of a prompt."""

    #: Reloads what the message stands for: ``r3.p2``, ``r3.p0`` for the user's query, ``r1-r7`` for a summary or the
    #: line about what is left out, or both. None for the system messages in front and the plan: no round has them.
    ref: str | None
    #: ``original``: what was appended, less keys of the host's own. So are the host's system messages in front.
    #: ``shortened``: it stands for one post, but reads otherwise: shorter, erased, or as a user message that names the
    #: agent who speaks, or says that a result came late.
    #: ``ours``: nobody said it. A summary, the line about what is left out, or a system message with these at its end;
    #: the plan; the note in the place of a result that is missing.
    kind: Literal["original", "shortened", "ours"]


#: What shortened a text: a preview, a line, or its head and tail stand for it. Published reductions also drop posts, or
#: have a summary stand for them.
By = Literal["offloaded", "cleared", "clipped", "dropped", "summarised"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShortenedPart(ValueObject):
    """A text, or several posts, that the prompt shows shortened, or not at all."""

    #: Reloads the original: ``memory.reload(ref)``.
    ref: str
    tokens_before: int
    tokens_after: int
    #: The heaviest that was done to it.
    by: By
    #: It is in the log, so every prompt shows it; else it was done for this prompt alone.
    published: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class PromptPart(ValueObject):
    """A message group of the tail, as it is shown."""

    round_: Round
    group: MessageGroup
    messages: tuple[Message, ...]
    #: Tokens of each message, and of all.
    costs: tuple[int, ...]
    tokens: int
    #: Neither shortened nor left out: one of its posts is pinned, or it is the user's newest query, which is ``fixed``.
    pinned: bool = False
    fixed: bool = False
    #: The part on each level of shortening; empty if none makes it shorter, None if that is unknown.
    levels: tuple[PromptPart, ...] | None = None
    #: One for each message that is shortened.
    reductions: tuple[ShortenedPart, ...] = ()
    #: On a level: before the last one, it shows only the beginning of a result.
    shows_preview: bool = False
    #: How deep copies of each message must be (see ``copy_messages``); a shorter one is never deeper.
    depths: bytes = b""

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The source of each message."""
        return tuple(self._find_sources())

    def _find_sources(self) -> Iterator[Source]:
        posts = self.group.posts
        for place, (post, message) in enumerate(zip(posts, self.messages, strict=True)):
            if post is not None and is_summary(post):
                yield Source(make_posts_reference(self.round_, post.number, post.extra[LAST_NUMBER]), "ours")
            elif place and post is posts[0]:  # a call stands for each result that it lacks
                yield Source(make_post_reference(self.round_, post), "ours")
            else:
                is_original = message == _restore_message(self.round_, post)
                yield Source(make_post_reference(self.round_, post), "original" if is_original else "shortened")

    def with_messages(self, shorter: Mapping[int, Message], by: By, count: TokenCounter) -> PromptPart:
        """Return the part with those *shorter* messages, by place, that take fewer tokens; the same object if none
        does."""
        messages, costs = list(self.messages), list(self.costs)
        reductions = {one.ref: one for one in self.reductions}
        for place, message in shorter.items():
            tokens = count_message(message, count)
            if tokens >= costs[place]:
                continue
            ref = make_post_reference(self.round_, self.group.posts[place])
            before = reductions[ref].tokens_before if ref in reductions else costs[place]
            reductions[ref] = ShortenedPart(ref, before, tokens, by)
            messages[place], costs[place] = message, tokens
        if costs == list(self.costs):
            return self
        return copy_with(
            self, messages=tuple(messages), costs=tuple(costs), tokens=sum(costs), reductions=tuple(reductions.values())
        )


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """The parts of a prompt, in order."""

    #: The host's messages in front.
    system: Sequence[Message]
    summary_as: SummaryAs
    compaction: CompactedMessage | None
    #: The parts of the tail, in order.
    part_runs: Sequence[Sequence[PromptPart]]
    #: The numbers of the rounds that the line about what is left out tells of; empty: there is none.
    omitted: Sequence[int] = ()
    #: How many messages of the tail stand before the plan; None: there is no plan.
    plan_at: int | None = None

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The source of each message."""
        front, compaction = [Source(None, "original")] * len(self.system), self.compaction
        added = [(compaction.start_index, compaction.last_round)] if compaction is not None else []
        added += [(min(self.omitted), max(self.omitted))] if self.omitted else []
        if added and self.summary_as == "header":
            at, both = find_header(self.system), make_range_reference(added[0][0], max(last for _, last in added))
            front[slice(0) if at is None else slice(at, at + 1)] = [Source(both, "ours")]
        else:
            front += [Source(make_range_reference(*rounds), "ours") for rounds in added]
        tail = [source for run in self.part_runs for part in run for source in part.sources]
        if self.plan_at is not None:
            tail.insert(self.plan_at, Source(None, "ours"))
        return (*front, *tail)


def _restore_message(round_: Round, post: Post | None) -> Message | None:
    """Return the message that was appended as *post*, or as the round's query for None, without keys of the host's
    own. None if something stands for it, or if it was erased."""
    text, extra = (round_.user_query, round_.extra) if post is None else (post.message, post.extra)
    if OVERLAY in extra or text == REDACTED:
        return None
    if post is None:
        return make_query_message(round_, only_known=True)
    role = ASSISTANT if post.send_from in SPEAK_FOR_NO_AGENT else post.send_from
    return from_post(post, role, only_known=True)
