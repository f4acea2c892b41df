"""Drops old posts from the prompt, by kind. A tool call and its results are dropped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import groupby
from typing import Any

from memory import Memory
from memory.messages import text_of
from memory.overlays import Reduction
from memory.references import post_reference
from memory.rounds import Post

from ..config import whole_number
from ..prompt.groups import ATTACHMENT, FAILED_CALL, MessageGroup, is_summary, kind_named
from ..prompt.shorten import is_kind, is_result, omission_note
from ..summarizers.actions import has_failed
from ..tokens import count_message
from ..view import View
from .incremental import attachments_line
from .tail import Location, Tail, TailGroup


def drop(
    kind: str | Enum | Iterable[tuple[str, int]], keep_recent: int = 0, *, keep_rounds: int = 0
) -> Callable[[View], Iterator[Reduction]]:
    """Return a strategy that drops the posts of *kind*, oldest first, except the newest *keep_recent*.

    *kind* is one of these, in any spelling (``TOOL_RESULT``):

    * ``tool_result``: a call with all its results; together they count as one;
    * ``failed_call``: a call with all its results, if every result reports a failure;
    * ``assistant``: messages of the role without tool calls;
    * ``user``: user messages, except those that forbid something;
    * ``attachment:<type>``: only the attachments; their posts stay, with a line that tells how to reload them;
    * a host's own ``Post.kind``. A call and its results are dropped if the call, or every result, is of that kind.

    *kind* may also be a list of rules ``(kind, keep_recent)`` in order of priority. Some posts always stay: the newest
    query, the latest answer to the user, the newest post of an open round, summaries, pinned posts, calls without an
    answer, and results that the role has not read yet. In the newest *keep_rounds* rounds only calls and results are
    dropped.

    A strategy applies all its rules, because the trigger is checked only between strategies. To check it between
    rules, make one strategy for each: ``strategies=[*(drop(*rule) for rule in rules), compact_rounds]``.

    The prompt mentions all dropped posts in one line. While no prompt has this line, posts are dropped only if together
    they are longer than the line. This does not apply if the prompt exceeds only its limit of messages.
    """
    rules: list[tuple[Any, int]] = [(kind, keep_recent)] if isinstance(kind, str | Enum) else pairs_of(kind)
    if not isinstance(kind, str | Enum) and keep_recent:
        raise ValueError("with several rules each has its own keep_recent: drop([('tool_result', 3), ('user', 5)])")
    rules = [(kind_named(name), whole_number("keep_recent", kept)) for name, kept in rules]
    protected = whole_number("keep_rounds", keep_rounds)
    types = {name.removeprefix(ATTACHMENT): kept for name, kept in rules if name.startswith(ATTACHMENT)}

    def strategy(view: View) -> Iterator[Reduction]:
        work = view.work
        needs_tokens = work is None or work.exceeds is None or "tokens" in work.exceeds
        dropping = _Dropping(Tail(view), protected)
        # Removing attachments does not lower the number of messages.
        waiting = bool(types) and needs_tokens
        found: list[Reduction] = []
        for name, kept in rules:
            if not name.startswith(ATTACHMENT):
                found += dropping.posts(name, kept)
            elif waiting:  # all types at once: only one overlay of a post takes effect
                found += dropping.attachments(types)
                waiting = False
        if needs_tokens and not dropping.outweighs_line():
            found = [*_Dropping(Tail(view), protected).attachments(types)]
        yield from found

    strategy.__name__ = strategy.__qualname__ = f"drop({', '.join(name for name, _ in rules)})"
    return strategy


def pairs_of(rules: object) -> list[tuple[Any, Any]]:
    """Return *rules* as a list. Raises ``TypeError`` unless they are pairs."""
    pairs: list[Any] = list(rules) if isinstance(rules, Iterable) else [rules]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            "kind is one name, such as 'tool_result', or a list of pairs of a name and how many of its newest stay:"
            " [('tool_result', 3), ('user', 5)]"
        )
    return [(kind, kept) for kind, kept in pairs]


class _Dropping:
    """Applies the rules of one strategy to a tail, one after the other."""

    def __init__(self, tail: Tail, keep_rounds: int) -> None:
        self._tail = tail
        self._protected_from = tail.view.total - keep_rounds
        self._by_round = {place: list(groups) for place, groups in groupby(tail.groups, lambda group: group.place)}
        self._posts = {
            (place, post.number): post
            for place, groups in self._by_round.items()
            for post in groups[0].round_.post_list
        }
        #: Positions of the posts dropped so far.
        self._gone: set[Location] = set()
        #: Existing overlays: the round's place, and the numbers of the first and the last post.
        self._overlaid = {
            _span(place, reduction)
            for place, groups in self._by_round.items()
            for reduction in tail.view.reductions.of(groups[0].round_.id)
        }
        #: Tokens of the dropped posts, and the log number of the first round that loses any.
        self._tokens, self._first = 0, 0

    def posts(self, kind: str, keep_recent: int) -> Iterator[Reduction]:
        """Yield the reductions that drop message groups of *kind*: one for each contiguous run in a round."""
        role = self._tail.view.role
        found = [group for group in self._shown() if _is_of(group.group, kind, role)]
        old = [group for group in found[: max(len(found) - keep_recent, 0)] if not self._stays(group)]
        for place, groups in groupby(old, lambda group: group.place):
            for stretch in self._stretches(place, list(groups)):
                yield from self._dropped(stretch)

    def attachments(self, types: Mapping[str, int]) -> Iterator[Reduction]:
        """Yield the reductions that remove attachments of *types* (each with the number of newest posts that stay)."""
        posts = [(group, post) for group in self._shown() for post in group.posts if post is not None]
        going: dict[Location, set[str]] = {}
        for type_, keep_recent in types.items():
            found = [group.of(post) for group, post in posts if is_kind(post, ATTACHMENT + type_, "")]
            for where in found[: max(len(found) - keep_recent, 0)]:
                going.setdefault(where, set()).add(type_)
        for group, post in posts:
            if group.of(post) in going and not self._stays(group):
                yield from self._without(group, post, going[group.of(post)])

    def outweighs_line(self) -> bool:
        """Return whether dropping saves more than the line about it costs, or prompts have that line already."""
        view = self._tail.view
        if not self._gone or view.first_dropped:
            return True
        return self._tokens > count_message(omission_note((), dropped_from=self._first), view.ledger.count)

    def _shown(self) -> list[TailGroup]:
        return [group for group in self._tail.groups if not group.places <= self._gone]

    def _stays(self, placed: TailGroup) -> bool:
        """Return whether a message group always stays, regardless of the rules."""
        tail = self._tail
        if placed.group.from_user and (placed.place == tail.asked or placed.forbids):
            return True
        if placed.place >= self._protected_from and not _has_calls(placed.group):
            return True
        if tail.latest_answer in placed.places or placed.places & tail.unread:
            return True
        if any(post and is_summary(post) for post in placed.group.posts):
            return True
        return not tail.view.reducible(placed.round_, placed.group)

    def _stretches(self, place: int, groups: list[TailGroup]) -> Iterator[list[TailGroup]]:
        """Yield *groups* of one round as runs of adjacent posts: no other shown post lies between them, by number.

        A group that spans several runs is left out, such as a call with a late result behind another message.
        """
        shown = sorted(where for group in self._by_round[place] for where in group.places if where not in self._gone)
        while groups:
            going = {where for group in groups for where in group.places}
            runs = [list(run) for goes, run in groupby(shown, going.__contains__) if goes]
            run_of = {where: number for number, run in enumerate(runs) for where in run}
            stretches: dict[int, list[TailGroup]] = {}
            for group in groups:
                first, *others = {run_of[where] for where in group.places}
                if not others:
                    stretches.setdefault(first, []).append(group)
            whole = [group for stretch in stretches.values() for group in stretch]
            if len(whole) == len(groups):
                yield from stretches.values()
                return
            groups = whole

    def _dropped(self, stretch: list[TailGroup]) -> Iterator[Reduction]:
        round_ = stretch[0].round_
        places = {where for group in stretch for where in group.places}
        reduction = Reduction.over(round_, map(self._posts.get, places), "dropped")
        if _span(stretch[0].place, reduction) not in self._overlaid:  # the log would ignore it
            self._gone |= places
            self._tokens += sum(sum(self._tail.view.costs(round_, group.group)) for group in stretch)
            self._first = min(self._first or round_.number, round_.number)
            yield reduction

    def _without(self, placed: TailGroup, post: Post, types: set[str]) -> Iterator[Reduction]:
        reference = post_reference(placed.round_, post)
        going = [attachment for attachment in post.attachment_list if attachment.type in types]
        kept = tuple(attachment for attachment in post.attachment_list if attachment.type not in types)
        lines = [
            attachments_line([one for one in going if one.type == type_], reference)
            for type_ in dict.fromkeys(one.type for one in going)
        ]
        rest = text_of(post.model_copy(update={"attachment_list": kept}))
        text = "\n\n".join([*([rest] if rest else []), *lines])
        reduction = Reduction.over(placed.round_, [post], "offloaded", text)
        count = self._tail.view.ledger.count
        if count(text) < count(text_of(post)):
            self._overlaid.add(_span(placed.place, reduction))
            yield reduction


def _span(place: int, reduction: Reduction) -> tuple[int, int, int]:
    return place, reduction.first_number, reduction.last_number


def _has_calls(group: MessageGroup) -> bool:
    return any(post is not None and (post.tool_calls or is_result(post)) for post in group.posts)


def _is_of(group: MessageGroup, kind: str, role: str) -> bool:
    first = group.posts[0]
    if kind == "user":
        return group.from_user
    if first is None:
        return False
    results = [post for post in group.posts if post is not None and is_result(post)]
    calls = bool(first.tool_calls) and first.send_from == role
    if kind == "tool_result":
        return calls or bool(results)
    if kind == FAILED_CALL:
        return bool(results) and all(has_failed(post.message) for post in results)
    if kind == "assistant":
        return not calls and not results and first.send_from == role
    return first.kind == kind or (bool(results) and all(post.kind == kind for post in results))


# --- pin_system: system messages in the conversation stay word for word when their rounds are summarized -----------


#: Senders that speak for the host.
_SYSTEM = ("system", "developer")


def pin_system() -> Callable[[View], Iterator[Reduction]]:
    """Return a strategy that pins the system messages in the tail's closed rounds; put it before ``compact_rounds``.

    It reduces nothing. A pinned message stays in every later prompt, so a host that adds one each turn should use the
    header instead (``memory.set_header``). The strategy does nothing if the rounds are not in a ``Memory``.
    """
    return _PinSystem(None)


class _PinSystem:
    __name__ = "pin_system"

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory

    def for_memory(self, memory: Memory) -> _PinSystem:
        return _PinSystem(memory)

    def __call__(self, view: View) -> Iterator[Reduction]:
        if self._memory is not None:
            for round_ in view.rounds[view.end : view.closed]:
                for post in round_.post_list:
                    if post.send_from in _SYSTEM and post.number not in view.pinned.get(round_.id, ()):
                        self._memory.pin(post_reference(round_, post))
        return iter(())
