"""The tail as strategies go through it: unit by unit, oldest first, with what stays whatever a rule says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memory.messages import repeats_query, text_of
from memory.rounds import USER, Post, Round, once

from ..acceptance.prohibitions import standing_sentences
from ..prompt.groups import MessageGroup
from ..view import View

#: A post's round, by its place in the view, and its number in there; 0 is the user's query.
Place = tuple[int, int]


class Placed(NamedTuple):
    """A unit of the tail, and where it stands."""

    place: int
    round_: Round
    group: MessageGroup

    def of(self, post: Post | None) -> Place:
        return self.place, post.number if post is not None else 0

    def text_of(self, post: Post | None) -> str:
        """Return the whole text of one of its posts."""
        return self.round_.user_query if post is None else text_of(post)

    def alone(self, post: Post | None) -> Round:
        """Return its round with nothing in it but one of its posts."""
        if post is None:
            return self.round_.model_copy(update={"post_list": ()})
        return self.round_.model_copy(update={"user_query": "", "post_list": (post,)})

    @property
    def forbids(self) -> tuple[str, ...]:
        """The sentences in which the user forbids something; none where somebody else speaks."""
        return standing_sentences(map(self.alone, self.posts)) if self.group.from_user else ()

    @property
    def posts(self) -> tuple[Post | None, ...]:
        """Its posts, each once: where a call lacks an answer, the unit names the call for that too."""
        return tuple({self.of(post): post for post in self.group.posts}.values())

    @property
    def places(self) -> frozenset[Place]:
        """Where its posts stand; the query stands twice where a post hands it to the agent."""
        found = frozenset(map(self.of, self.group.posts))
        first = self.round_.post_list[0] if self.round_.post_list else None
        if self.group.from_user and first is not None and repeats_query(first, self.round_):
            twice = frozenset((self.of(None), self.of(first)))
            return found | twice if found & twice else found
        return found


@dataclass(frozen=True)
class Tail:
    """The rounds after the compaction, as they read now."""

    view: View

    @once
    def groups(self) -> tuple[Placed, ...]:
        """Its units, oldest first; none where no reduction of them would be kept."""
        view = self.view
        if not view.keeps_reductions:
            return ()
        return tuple(Placed(place, round_, group) for place in view.places for round_, group in view.groups(place))

    def newest(self, number: int) -> frozenset[Place]:
        """Return where the newest *number* posts stand."""
        places = sorted(placed.of(post) for placed in self.groups for post in placed.posts)
        return frozenset(places[max(len(places) - number, 0) :])

    @once
    def latest_answer(self) -> Place | None:
        """Where the newest post stands in which the role answers the user."""
        role = self.view.role
        return next((placed.of(placed.posts[0]) for placed in reversed(self.groups) if _is_answer(placed, role)), None)

    @once
    def asked(self) -> int:
        """The place of the newest round in which the user speaks, which is the newest query; -1 where there is none."""
        return max((placed.place for placed in self.groups if placed.group.from_user), default=-1)

    @once
    def unread(self) -> frozenset[Place]:
        """Where the end of the newest round stands while that is open: what the role has not gone on from yet.

        The newest post's unit, and the unit that begins last: were that left out, a call before it would seem to wait.
        """
        newest = [placed for placed in self.groups if placed.place == self.view.total - 1 and not placed.round_.closed]
        return frozenset().union(*(end.places for end in (*newest[-1:], *sorted(newest, key=_end)[-1:])))


def _end(placed: Placed) -> Place:
    return max(placed.places)


def _is_answer(placed: Placed, role: str) -> bool:
    post, *more = placed.posts
    if post is None or more or post.tool_calls:  # a function's result answers a call that its post does not show
        return False
    return post.send_from == role and post.send_to == USER
