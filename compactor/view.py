"""A View: the log and its overlays as one role sees them, with token counts; and the last prompt made of one."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memory.messages import NATIVE, NATIVE_VERSION, SPEAK_FOR_NO_AGENT
from memory.overlays import CompactedMessage, Reductions
from memory.rounds import Round, cached_property, copy_with, thaw
from memory.usage import Usage
from memory.values import ValueObject
from memory.visibility import Rounds

from .host_rounds import HostRounds
from .prompt.groups import Message, MessageGroup, apply_overlays, group_messages
from .prompt.open_rounds import OpenRoundTokens
from .prompt.shorten import is_result
from .prompt.token_cache import PrefixSums, TokenCache, group_pins, is_pinned
from .tokens import DEFAULT_WINDOW, PROMPT_TOKENS, count_message, count_prompt, window_of

if TYPE_CHECKING:
    from .config import CompactorConfig
    from .summarize import Work
    from .summarizers.base import ContinuedPrompt

_NO_PINS: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False, repr=False)
class View(ValueObject):
    """The log and its overlays as one role sees them, at one moment."""

    rounds: Rounds | HostRounds
    #: The published compaction, its indices in the numbering of ``rounds``.
    compaction: CompactedMessage | None
    token_cache: TokenCache
    #: Tokens of what always stands in front: system messages, and the tools that go with the prompt.
    header_tokens: int = 0
    #: Whose window counts; empty: the default's.
    model: str = ""
    #: What a strategy that asks a model may use; None where no model may be asked.
    work: Work | None = None
    #: Whether reductions are kept: a strategy need not make any where nothing keeps them.
    keeps_reductions: bool = True
    #: Whether overlays are what they were in the newest prompt, as far as is known.
    as_composed: bool = True
    #: The reductions as they are now, where that is not as in the snapshot: a cycle has published some.
    given_reductions: Reductions | None = None
    #: Tools whose calls and results no strategy reduces, by name.
    exempt_tools: frozenset[str] = frozenset()
    #: Where prompts begin, while the compaction is deferred and they show what it covers: that stays counted.
    counted_from: int | None = None
    #: The next compaction reaches at least so far: what was extracted offline is shown already.
    least_end: int = 0

    #: Visible rounds, the open one included.
    total: int = field(init=False, repr=False, compare=False)
    #: Closed rounds before the first open one: as far as a compaction may reach.
    closed: int = field(init=False, repr=False, compare=False)
    #: Counts the publications up to the compaction; 0: there is none.
    generation: int = field(init=False, repr=False, compare=False)
    #: Visible rounds that the compaction covers, and those behind it.
    end: int = field(init=False, repr=False, compare=False)
    tail_length: int = field(init=False, repr=False, compare=False)
    role: str = field(init=False, repr=False, compare=False)
    #: What stands in prompts instead of posts of the tail.
    reductions: Reductions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__  # it is frozen
        put(self, "total", self.rounds.total)
        put(self, "closed", self.rounds.closed)
        put(self, "end", self.compaction.end_index if self.compaction is not None else 0)
        put(self, "generation", self.compaction.generation if self.compaction is not None else 0)
        put(self, "tail_length", self.total - self.end)
        put(self, "role", self.token_cache.role)
        put(self, "reductions", self.rounds.reductions if self.given_reductions is None else self.given_reductions)

    @property
    def tail(self) -> tuple[Round, ...]:
        """The rounds after the compaction, as the log has them."""
        return self.rounds[self.end :]

    @property
    def places(self) -> range:
        """The places of the tail's rounds."""
        return range(min(self.end, self.total), self.total)

    @property
    def is_offline(self) -> bool:
        """Whether the compaction's end was extracted without a model."""
        return self.compaction is not None and self.compaction.is_offline

    @cached_property
    def pinned(self) -> Mapping[str, frozenset[int]]:
        """The numbers of pinned posts by the id of their round; 0 is the query."""
        return group_pins(self.rounds.pins)

    @cached_property
    def summary(self) -> Message | None:
        """The message that shows the compaction; None if there is none. Under ``native`` it has the form of a provider,
        if the compaction has one that ``model`` may read."""
        if self.compaction is None:
            return None
        message: Message = {"role": "system", "content": self.compaction.to_prompt()}
        payload = self.compaction.payload
        if payload is not None and payload.get("model", "") in ("", self.model):
            message[NATIVE] = {"format": payload["provider"], "v": NATIVE_VERSION, "payload": thaw(payload["data"])}
            if "tokens" in payload:
                message[NATIVE]["tokens"] = payload["tokens"]
        return message

    @cached_property
    def compaction_tokens(self) -> int:
        """Tokens of the compaction in a prompt; 0 without one."""
        return count_message(self.summary, self.token_cache.count_again) if self.summary is not None else 0

    def count_tokens_before(self, compaction: CompactedMessage | None) -> int:
        """Return the tokens that prompts would show before the tail with *compaction*: its message, the pinned posts of
        the rounds that it covers, and the user's newest query if it covers that."""
        if compaction is None:
            return 0
        view = copy_with(self, compaction=self.rounds.anchor(compaction))
        if not self.end <= self.newest_query < view.end:
            return view.compaction_tokens
        spoken = [
            sum(self.list_costs(round_, group))
            for round_, group in self.list_groups(self.newest_query)
            if group.from_user
        ]
        return view.compaction_tokens + sum(spoken[:1]) + sum(spoken[1:][-1:])

    @property
    def tokens(self) -> int:
        """Tokens of the whole prompt: header, compaction and tail."""
        return PROMPT_TOKENS + self.header_tokens + self.compaction_tokens + self.count_tokens_after(self.end)

    @property
    def usage(self) -> Usage:
        """The provider's count of the newest prompt, and the factor by which it corrects our own count."""
        usage = self.rounds.usage
        as_shown = self.as_composed and self.counted_from is None
        return usage if as_shown else copy_with(usage, input_tokens=None)

    @property
    def corrected_tokens(self) -> int:
        """The tokens of the whole prompt as the provider would count them, going by what it counted before."""
        return math.ceil(self.tokens * self.usage.correction)

    @property
    def messages(self) -> int:
        """Messages of the tail."""
        totals, start = self.prefix_sums.totals, self.prefix_sums.start
        closed = totals[self.closed - start].messages - totals[min(self.end, self.closed) - start].messages
        return closed + sum([one.totals.messages for one in self.open_tail])

    @property
    def window(self) -> int:
        """The model's context window in tokens."""
        return window_of(self.model) or DEFAULT_WINDOW

    @cached_property
    def prefix_sums(self) -> PrefixSums:
        """The tokens of the tail's closed rounds. Counts those that are new."""
        start = self.end if self.counted_from is None else min(self.counted_from, self.end)
        return self.token_cache.compute_prefix_sums(self.rounds, self.closed, self.reductions, start)

    @cached_property
    def newest_query(self) -> int:
        """The place of the newest round in which the user speaks, covered or not; -1 if there is none."""
        for place in range(self.total - 1, self.closed - 1, -1):
            if self.open_rounds[place - self.closed].totals.last_query is not None:
                return place
        sums = self.prefix_sums
        last_query = sums.totals[self.closed - sums.start].last_query
        if last_query is not None:
            return last_query
        if sums.query_before is None:  # seldom: he is silent in all of the tail, and no other covered round is read
            before = range(sums.start - 1, -1, -1)
            spoken = (place for place in before if any(group.from_user for _, group in self.list_groups(place)))
            sums.query_before = next(spoken, -1)
        return sums.query_before

    def count_tokens_after(self, end: int) -> int:
        """Return the tokens of all rounds after the first *end*."""
        return self.count_closed_tokens(end, self.closed) + sum([one.totals.tokens for one in self.open_tail])

    def count_calls_after(self, end: int) -> int:
        """Return how often the role's model was called behind the first *end* rounds, none of them before the tail."""
        closed = self.prefix_sums[self.closed].calls - self.prefix_sums[min(end, self.closed)].calls
        return closed + sum([one.totals.calls for one in self.open_rounds[max(end - self.closed, 0) :]])

    def find_due_end(self, config: CompactorConfig, token_threshold: int | None = None) -> int:
        """Return how many visible rounds the next compaction should cover, as many as the present one at least.

        All closed ones but the newest ``retain_recent``, the open round counted among those retained. If the prompt has
        passed *token_threshold*, fewer are retained: as few as it takes to reach half of it, and ``retain_at_least``.
        """
        end = max(min(self.closed, self.total - config.retain_recent), self.end, self.least_end)
        if token_threshold is not None:
            ahead = self.header_tokens + (config.target_tokens or self.compaction_tokens)
            last = min(self.closed, self.total - config.retain_at_least)
            while end < last and ahead + self.count_tokens_after(end) > token_threshold // 2:
                end += 1
        return end

    def count_closed_tokens(self, start: int, stop: int) -> int:
        """Return the tokens of the closed ones among rounds *start* to *stop*, as a slice counts them."""
        stop = min(stop, self.closed)
        if start >= stop:
            return 0
        sums = self.prefix_sums
        if start < sums.start:
            sums = self.token_cache.compute_prefix_sums(self.rounds, self.closed, self.reductions, start)
        return sums.totals[stop - sums.start].tokens - sums.totals[start - sums.start].tokens

    def get_round(self, index: int) -> Round:
        """Return a round as it reads now."""
        raw = self.rounds[index]
        return apply_overlays(raw, self.reductions.of(raw.id), self.role)

    def list_groups(self, index: int) -> list[tuple[Round, MessageGroup]]:
        """Return the message groups of one round as it reads now, each with the round."""
        if index >= self.closed:
            round_ = self.get_round(index)
            return [(round_, part.group) for part in self.open_rounds[index - self.closed].parts]
        sums: PrefixSums | None = self.__dict__.get("prefix_sums")  # nothing is counted for this
        if sums is not None and sums.start <= index:
            parts = sums.round_tokens[index - sums.start].parts
            if parts is not None:
                return [(part.round_, part.group) for part in parts]
        round_ = self.get_round(index)
        return [(round_, group) for group in group_messages(round_, self.role, last=index == self.total - 1)]

    @cached_property
    def open_rounds(self) -> tuple[OpenRoundTokens, ...]:
        """The tokens of the rounds from the first open one on, covered ones included, as they read now."""
        counted = []
        for place in range(self.closed, self.total):
            raw = self.rounds[place]
            pinned = self.pinned.get(raw.id, _NO_PINS) if self.rounds.pins else _NO_PINS
            overlays = self.reductions.by_round.get(raw.id, ()), pinned, ()
            # Nobody promises that another host's posts stay as they are.
            is_last, keeps = place == self.total - 1, self.rounds.snapshot is not None
            counted.append(self.token_cache.count_open(raw, overlays, is_last=is_last, keeps=keeps))
        return tuple(counted)

    @property
    def open_tail(self) -> tuple[OpenRoundTokens, ...]:
        """Those of ``open_rounds`` that the tail has."""
        return self.open_rounds[max(self.end - self.closed, 0) :]

    def list_costs(self, round_: Round, group: MessageGroup) -> tuple[int, ...]:
        """Return the tokens of each message of a group."""
        if self.rounds.snapshot is not None:
            return self.token_cache.list_costs(round_, [group])[0]
        # Nobody promises that another host's posts stay as they are.
        return tuple([count_message(message, self.token_cache.count) for message in group.messages])

    def is_pinned(self, round_: Round, group: MessageGroup) -> bool:
        """Return whether one of a group's posts is pinned."""
        return is_pinned(group, self.pinned.get(round_.id, frozenset()))

    def is_reducible(self, round_: Round, group: MessageGroup) -> bool:
        """Return whether a strategy may reduce a group: not one that waits for something or is pinned, nor what was
        reloaded in the newest round, nor results that the role has yet to read, nor the calls of exempt tools."""
        if group.pending or self.is_pinned(round_, group) or self.read_back(round_, group):
            return False
        if self.exempt_tools and not self.exempt_tools.isdisjoint(group.tools):
            return False
        return not self.is_unread(round_, group)

    def is_unread(self, round_: Round, group: MessageGroup) -> bool:
        """Return whether a group has a result that came after the role spoke last, so that no model has read it."""
        unread = self._unread
        return bool(unread) and any(post is not None and (round_.id, post.number) in unread for post in group.posts)

    @cached_property
    def _unread(self) -> frozenset[tuple[str, int]]:
        unread = set()
        for place in reversed(self.places):
            round_ = self.rounds[place]
            for post in reversed(round_.post_list):
                if is_result(post):
                    unread.add((round_.id, post.number))
                elif post.send_from == self.role or (not self.role and post.send_from not in SPEAK_FOR_NO_AGENT):
                    return frozenset(unread)
        return frozenset(unread)

    def read_back(self, round_: Round, group: MessageGroup) -> bool:
        """Return whether a group is a recall in the newest round: the agent still works with its result."""
        return group.recalls and round_.id == self.newest_id

    @cached_property
    def newest_id(self) -> str:
        """The id of the newest round; empty if there is none."""
        return self.rounds[self.total - 1].id if self.total else ""

    @cached_property
    def first_dropped(self) -> int:
        """The log number of the tail's first round with dropped posts that prompts mention; 0: none."""
        if not self.reductions.version:
            return 0
        sums, start = self.prefix_sums, min(self.end, self.closed)
        covered = sums[start].dropped
        if covered != sums[self.closed].dropped:
            closed = range(start, self.closed)
            place = start + bisect_right(closed, covered, key=lambda index: sums[index + 1].dropped)
            return sums.round_tokens[place - sums.start].number
        places = range(max(self.end, self.closed), self.total)
        return next((self.rounds[at].number for at in places if self.open_rounds[at - self.closed].totals.dropped), 0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LastPrompt(ValueObject):
    """A prompt that shows all of the tail, nothing shortened or left out: a summarizer may go on from it, since the
    provider has most of it in its cache. Its repr shows no conversation.

    The messages of the tail are not kept but made again from the snapshot: so a prompt costs no memory, and a host may
    change the messages that it was given.
    """

    rounds: Rounds = field(repr=False)
    compaction: CompactedMessage | None = field(repr=False)
    model: str
    #: Its messages before the tail, without the plan, which is not in the log.
    front: tuple[Message, ...] = field(repr=False)
    #: How many messages stand before the plan, and that itself; None: none was shown.
    plan: tuple[int, Message] | None = field(repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    tool_choice: Any = None

    def go_on(
        self,
        view: View,
        previous: CompactedMessage | None,
        rounds: Sequence[Round],
        instruction: str,
        *,
        limit: int,
        reads: Callable[[Mapping[str, Any]], bool] = lambda _payload: False,
    ) -> ContinuedPrompt | None:
        """Return the question that *instruction* asks as a continuation of this prompt, cut behind *rounds* of *view*.
        If ``compose`` was given no model, it was for that of *view*.

        None unless this prompt shows *previous*, as text or in a form that the model *reads*, and behind it *rounds*
        word for word, of the last one at least the beginning. None too if it would take over *limit* tokens, if its
        tool choice makes the model call a tool, or if anything was erased since.
        """
        if view.rounds.redactions != self.rounds.redactions:
            return None
        payload = self.compaction.payload if self.compaction is not None else None
        if any("payload" in (message.get(NATIVE) or ()) for message in self.front) and not (payload and reads(payload)):
            return None
        shown, wanted = (one.to_prompt() if one is not None else "" for one in (self.compaction, previous))
        if not rounds or self.tool_choice not in (None, "auto", "none") or shown != wanted:
            return None
        messages = self._show_up_to(rounds, view.token_cache)
        if messages is None:
            return None
        messages.append({"role": "user", "content": instruction})
        if count_prompt(messages, view.token_cache.count, self.tools) > limit:
            return None
        from .summarizers.base import ContinuedPrompt

        return ContinuedPrompt(
            messages=messages, tools=self.tools, tool_choice=self.tool_choice, model=self.model or view.model
        )

    def _show_up_to(self, rounds: Sequence[Round], token_cache: TokenCache) -> list[Message] | None:
        """Return the messages up to the end of *rounds*, the first of the tail; None if it shows any of them otherwise.

        It need not show all of the last round: later posts, such as the agent's answer, are added.
        """
        view = View(self.rounds, self.compaction, token_cache)
        messages = [dict(message) for message in self.front]
        if view.end + len(rounds) > view.total:
            return None
        for place, round_ in enumerate(rounds, view.end):
            # As a round reads that is closed: every call has a result, or a line that says that there was none.
            closed = [message for group in group_messages(round_, view.role, last=False) for message in group.messages]
            if place >= view.total - 1 or view.get_round(place) is not round_:  # else, as mostly, both read the same
                shown = [message for _, group in view.list_groups(place) for message in group.messages]
                if shown != closed and (round_ is not rounds[-1] or shown[: len(closed)] != closed[: len(shown)]):
                    return None
            messages += closed
        if self.plan is not None and self.plan[0] < len(messages):
            messages.insert(self.plan[0], dict(self.plan[1]))
        return messages
