"""The tail (the rounds after the compaction) as message groups, oldest first, and the posts that always stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memory.messages import repeats_query, text_of
from memory.rounds import USER, Post, Round, cached_property

from ..acceptance.prohibitions import find_prohibitions
from ..prompt.groups import MessageGroup
from ..view import View

#: A post's position: the place of its round in the view, and its number in the round; 0 is the user's query.
Location = tuple[int, int]


class TailGroup(NamedTuple):
    """A message group of the tail, and its round."""

    place: int
    round_: Round
    group: MessageGroup

    def of(self, post: Post | None) -> Location:
        return self.place, post.number if post is not None else 0

    def text_of(self, post: Post | None) -> str:
        """Return the full text of *post*, which is in this group."""
        return self.round_.user_query if post is None else text_of(post)

    def alone(self, post: Post | None) -> Round:
        """Return the round reduced to *post*."""
        if post is None:
            return self.round_.model_copy(update={"post_list": ()})
        return self.round_.model_copy(update={"user_query": "", "post_list": (post,)})

    @property
    def forbids(self) -> tuple[str, ...]:
        """The sentences in which the user forbids something; empty for other senders."""
        return find_prohibitions(map(self.alone, self.posts)) if self.group.from_user else ()

    @property
    def posts(self) -> tuple[Post | None, ...]:
        """The posts of the group, each once: the group repeats the post of a call in place of a missing answer."""
        return tuple({self.of(post): post for post in self.group.posts}.values())

    @property
    def places(self) -> frozenset[Location]:
        """The positions of its posts; a query has two if a post repeats it to the agent."""
        found = frozenset(map(self.of, self.group.posts))
        first = self.round_.post_list[0] if self.round_.post_list else None
        if self.group.from_user and first is not None and repeats_query(first, self.round_):
            twice = frozenset((self.of(None), self.of(first)))
            return found | twice if found & twice else found
        return found


@dataclass(frozen=True)
class Tail:
    """The rounds after the compaction, with their overlays applied."""

    view: View

    @cached_property
    def groups(self) -> tuple[TailGroup, ...]:
        """The message groups, oldest first; empty if the view keeps no reductions."""
        view = self.view
        if not view.keeps_reductions:
            return ()
        return tuple(TailGroup(place, round_, group) for place in view.places for round_, group in view.groups(place))

    def newest(self, number: int) -> frozenset[Location]:
        """Return the positions of the newest *number* posts."""
        places = sorted(placed.of(post) for placed in self.groups for post in placed.posts)
        return frozenset(places[max(len(places) - number, 0) :])

    @cached_property
    def latest_answer(self) -> Location | None:
        """The position of the role's newest answer to the user."""
        role = self.view.role
        return next((placed.of(placed.posts[0]) for placed in reversed(self.groups) if _is_answer(placed, role)), None)

    @cached_property
    def asked(self) -> int:
        """The place of the round with the newest query; -1 if the user said nothing."""
        return max((placed.place for placed in self.groups if placed.group.from_user), default=-1)

    @cached_property
    def unread(self) -> frozenset[Location]:
        """The positions at the end of the open round that the role has not continued from; empty if none is open.

        These are the group with the newest post and the group that begins last. Without the second, an earlier call
        would seem to wait for its answer.
        """
        newest = [placed for placed in self.groups if placed.place == self.view.total - 1 and not placed.round_.closed]
        return frozenset().union(*(end.places for end in (*newest[-1:], *sorted(newest, key=_end)[-1:])))


def _end(placed: TailGroup) -> Location:
    return max(placed.places)


def _is_answer(placed: TailGroup, role: str) -> bool:
    post, *more = placed.posts
    if post is None or more or post.tool_calls:  # legacy function calls are not in tool_calls; more is their result
        return False
    return post.send_from == role and post.send_to == USER
