"""Drops old posts from the prompt, by kind. A tool call and its results are dropped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import groupby
from typing import Any

from memory import Memory
from memory.arguments import check_whole_number
from memory.messages import SYSTEM, join_text
from memory.overlays import Reduction
from memory.references import make_post_reference
from memory.rounds import Attachment, Post, Round, copy_with

from ..prompt.groups import ATTACHMENT, FAILED_CALL, MessageGroup, is_summary, parse_kind
from ..prompt.shorten import is_kind, is_result, make_attachments_line, make_omission_note
from ..summarizers.results import has_failed
from ..tokens import count_message
from ..view import View
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
    rules: list[tuple[Any, int]] = [(kind, keep_recent)] if isinstance(kind, str | Enum) else list_pairs(kind)
    if not isinstance(kind, str | Enum) and keep_recent:
        raise ValueError("with several rules each has its own keep_recent: drop([('tool_result', 3), ('user', 5)])")
    rules = [(parse_kind(name), check_whole_number("keep_recent", kept)) for name, kept in rules]
    protected = check_whole_number("keep_rounds", keep_rounds)
    types = {name.removeprefix(ATTACHMENT): kept for name, kept in rules if name.startswith(ATTACHMENT)}

    def strategy(view: View) -> Iterator[Reduction]:
        work = view.work
        needs_tokens = work is None or work.exceeds is None or "tokens" in work.exceeds
        dropper, dropped = _Dropper(Tail(view), protected), list[Reduction]()
        left = types if needs_tokens else {}  # removing attachments does not lower the number of messages
        for name, kept in rules:
            if not name.startswith(ATTACHMENT):
                dropped += dropper.drop_posts(name, kept)
            else:  # all types at once: only one overlay of a post takes effect
                dropped += dropper.drop_attachments(left)
                left = {}
        if needs_tokens and not dropper.outweighs_line():
            dropped = _Dropper(Tail(view), protected).drop_attachments(types)
        yield from dropped

    strategy.__name__ = strategy.__qualname__ = f"drop({', '.join(name for name, _ in rules)})"
    return strategy


def list_pairs(rules: object) -> list[tuple[Any, Any]]:
    """Return *rules* as a list. Raises ``TypeError`` unless they are pairs."""
    pairs: list[Any] = list(rules) if isinstance(rules, Iterable) else [rules]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            "kind is one name, such as 'tool_result', or a list of pairs of a name and how many of its newest stay:"
            " [('tool_result', 3), ('user', 5)]"
        )
    return [(kind, kept) for kind, kept in pairs]


class _Dropper:
    """Applies the rules of one strategy to a tail, one after the other."""

    def __init__(self, tail: Tail, keep_rounds: int) -> None:
        self._tail, self._view = tail, tail.view
        self._protected_from = self._view.total - keep_rounds
        self._by_round = {
            place: list(groups) for place, groups in groupby(tail.groups, lambda group: group.round_index)
        }
        #: Locations of the posts dropped so far, their tokens, and the log number of the first round that loses any.
        self._gone: set[Location] = set()
        self._tokens, self._first = 0, 0
        #: Existing overlays: the round's place, and the numbers of the first and the last post.
        self._covered_spans = {
            (place, one.first_number, one.last_number)
            for place, groups in self._by_round.items()
            for one in self._view.reductions.of(groups[0].round_.id)
        }

    def drop_posts(self, kind: str, keep_recent: int) -> list[Reduction]:
        """Drop message groups of *kind*, and return the reductions: one for each contiguous run in a round."""
        found = [group for group in self._find_shown() if _is_of(group.group, kind, self._view.role)]
        old = [group for group in found[: max(len(found) - keep_recent, 0)] if not self._stays(group)]
        reductions: list[Reduction] = []
        for place, groups in groupby(old, lambda group: group.round_index):
            round_ = self._by_round[place][0].round_
            posts = {post.number: post for post in round_.post_list}
            for run in self._find_runs(place, list(groups)):
                locations = {location for group in run for location in group.locations}
                reduction = Reduction.over(round_, [posts.get(number) for _, number in locations], "dropped")
                if (place, reduction.first_number, reduction.last_number) in self._covered_spans:
                    continue  # the log would ignore it
                self._gone |= locations
                self._tokens += sum(sum(self._view.list_costs(round_, group.group)) for group in run)
                self._first = min(self._first or round_.number, round_.number)
                reductions.append(reduction)
        return reductions

    def drop_attachments(self, types: Mapping[str, int]) -> list[Reduction]:
        """Return the reductions that remove attachments of *types*, each with the number of newest posts that stay."""
        posts = [(group, post) for group in self._find_shown() for post in group.posts if post is not None]
        going: dict[Location, set[str]] = {}
        for type_, keep_recent in types.items():
            found = [group.locate(post) for group, post in posts if is_kind(post, ATTACHMENT + type_, "")]
            for location in found[: max(len(found) - keep_recent, 0)]:
                going.setdefault(location, set()).add(type_)
        reductions: list[Reduction] = []
        for group, post in posts:
            if group.locate(post) in going and not self._stays(group):
                text = _describe_without(group.round_, post, going[group.locate(post)])
                if self._view.token_cache.count(text) < self._view.token_cache.count(join_text(post)):
                    reduction = Reduction.over(group.round_, [post], "offloaded", text)
                    self._covered_spans.add((group.round_index, reduction.first_number, reduction.last_number))
                    reductions.append(reduction)
        return reductions

    def outweighs_line(self) -> bool:
        """Return whether dropping saves more than the line about it costs, or prompts have that line already."""
        if not self._gone or self._view.first_dropped:
            return True
        return self._tokens > count_message(
            make_omission_note((), dropped_from=self._first), self._view.token_cache.count
        )

    def _find_shown(self) -> list[TailGroup]:
        return [group for group in self._tail.groups if not group.locations <= self._gone]

    def _stays(self, group: TailGroup) -> bool:
        """Return whether a message group always stays, regardless of the rules."""
        tail, posts = self._tail, [post for post in group.group.posts if post is not None]
        if group.group.from_user and (group.round_index == self._view.newest_query or group.prohibitions):
            return True
        if group.round_index >= self._protected_from and not any(post.tool_calls or is_result(post) for post in posts):
            return True
        if tail.latest_answer in group.locations or group.locations & tail.open_end:
            return True
        return any(map(is_summary, posts)) or not self._view.is_reducible(group.round_, group.group)

    def _find_runs(self, index: int, groups: list[TailGroup]) -> list[list[TailGroup]]:
        """Return *groups* of one round as runs of adjacent posts: no other shown post lies between them, by number.

        A group that spans several runs is left out, such as a call with a late result behind another message.
        """
        shown = sorted(location for group in self._by_round[index] for location in group.locations - self._gone)
        while True:
            going = {location for group in groups for location in group.locations}
            parts = [list(part) for goes, part in groupby(shown, going.__contains__) if goes]
            number_of = {location: number for number, part in enumerate(parts) for location in part}
            runs: dict[int, list[TailGroup]] = {}
            for group in groups:
                first, *others = {number_of[location] for location in group.locations}
                if not others:
                    runs.setdefault(first, []).append(group)
            whole = [group for run in runs.values() for group in run]
            if len(whole) == len(groups):
                return list(runs.values())
            groups = whole


def _describe_without(round_: Round, post: Post, types: set[str]) -> str:
    """Return the text of *post* without its attachments of *types*, with a line that stands for those of each type."""
    kept = tuple(attachment for attachment in post.attachment_list if attachment.type not in types)
    going: dict[str, list[Attachment]] = {}
    for attachment in post.attachment_list:
        if attachment.type in types:
            going.setdefault(attachment.type, []).append(attachment)
    lines = [make_attachments_line(attachments, make_post_reference(round_, post)) for attachments in going.values()]
    rest = join_text(copy_with(post, attachment_list=kept))
    return "\n\n".join([rest, *lines] if rest else lines)


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
                    if post.send_from in SYSTEM and post.number not in view.pinned.get(round_.id, ()):
                        self._memory.pin(make_post_reference(round_, post))
        return iter(())
