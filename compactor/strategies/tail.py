"""The tail (the rounds after the compaction) as message groups, oldest first, and the posts that always stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memory.messages import join_text, repeats_query
from memory.rounds import USER, Post, Round, cached_property, copy_with
from memory.values import ValueObject

from ..acceptance.prohibitions import find_prohibitions
from ..prompt.groups import MessageGroup
from ..view import View

#: A post's location: the place of its round in the view, and its number in the round; 0 is the user's query.
Location = tuple[int, int]


class TailGroup(NamedTuple):
    """A message group of the tail, and its round."""

    round_index: int
    round_: Round
    group: MessageGroup

    def locate(self, post: Post | None) -> Location:
        return self.round_index, post.number if post is not None else 0

    def read_text(self, post: Post | None) -> str:
        """Return the full text of *post*, which is in this group."""
        return self.round_.user_query if post is None else join_text(post)

    def isolate(self, post: Post | None) -> Round:
        """Return the round reduced to *post*."""
        query, posts = (self.round_.user_query, ()) if post is None else ("", (post,))
        return copy_with(self.round_, user_query=query, post_list=posts)

    @property
    def prohibitions(self) -> tuple[str, ...]:
        """The sentences in which the user forbids something; empty for other senders."""
        return find_prohibitions(map(self.isolate, self.posts)) if self.group.from_user else ()

    @property
    def posts(self) -> tuple[Post | None, ...]:
        """The posts of the group, each once: the group repeats the post of a call in place of a missing answer."""
        return tuple({self.locate(post): post for post in self.group.posts}.values())

    @property
    def locations(self) -> frozenset[Location]:
        """The locations of its posts; a query has two if a post repeats it to the agent."""
        found = frozenset(map(self.locate, self.group.posts))
        first = self.round_.post_list[0] if self.round_.post_list else None
        if self.group.from_user and first is not None and repeats_query(first, self.round_):
            both = frozenset((self.locate(None), self.locate(first)))
            return found | both if found & both else found
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Tail(ValueObject):
    """The rounds after the compaction, with their overlays applied."""

    view: View

    @cached_property
    def groups(self) -> tuple[TailGroup, ...]:
        """The message groups, oldest first; empty if the view keeps no reductions."""
        view = self.view
        if not view.keeps_reductions:
            return ()
        return tuple(
            TailGroup(place, round_, group) for place in view.places for round_, group in view.list_groups(place)
        )

    def find_newest(self, number: int) -> frozenset[Location]:
        """Return the locations of the newest *number* posts."""
        if not number:
            return frozenset()
        locations = sorted(group.locate(post) for group in self.groups for post in group.posts)
        return frozenset(locations[max(len(locations) - number, 0) :])

    @cached_property
    def latest_answer(self) -> Location | None:
        """The location of the role's newest message to the user without calls."""
        for group in reversed(self.groups):
            post, *more = group.posts  # a legacy call is not in tool_calls; *more* is its result
            if post is None or more or post.tool_calls:
                continue
            if post.send_from == self.view.role and post.send_to == USER:
                return group.locate(post)
        return None

    @cached_property
    def open_end(self) -> frozenset[Location]:
        """The locations at the end of the open round that the role has not continued from; empty if none is open.

        These are the group with the newest post and the group that begins last. Without the second, an earlier call
        would seem to wait for its answer.
        """
        newest = [
            group for group in self.groups if group.round_index == self.view.total - 1 and not group.round_.closed
        ]
        if not newest:
            return frozenset()
        return newest[-1].locations | max(reversed(newest), key=lambda group: max(group.locations)).locations
