"""Which of two overlays on a round stands, and what may not be covered at all: torn calls, and the newest query."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .messages import paired, query_message, repeats_query
from .overlays import Reduction
from .rounds import USER, Round

__all__ = ["Ties", "hides_words", "is_over", "laid", "newest_asked", "ties_of", "without_posts", "without_span"]


def laid(live: Sequence[Reduction], new: Reduction) -> tuple[Reduction, ...] | None:
    """Return a round's *live* reductions with *new* among them, in the order of their posts; None: *new* is ignored.

    It takes the place of those that it strictly contains. One that equals a live one, lies inside it or partly
    overlaps it is ignored: a late result never hides a newer one.
    """
    # No two live ones overlap, so those that *new* meets stand side by side.
    start = bisect_left(live, new.first_number, key=lambda one: one.last_number)
    stop = bisect_right(live, new.last_number, key=lambda one: one.first_number)
    if not all(_contains(new, one) for one in live[start:stop]):
        return None
    return (*live[:start], new, *live[stop:])


def _contains(new: Reduction, old: Reduction) -> bool:
    wider = new.first_number < old.first_number or new.last_number > old.last_number
    return wider and new.first_number <= old.first_number and new.last_number >= old.last_number


def without_span(live: Iterable[Reduction], first: int, last: int) -> tuple[Reduction, ...]:
    """Return a round's *live* reductions without the one from post *first* to *last*."""
    return tuple(one for one in live if (one.first_number, one.last_number) != (first, last))


def without_posts(live: Iterable[Reduction], numbers: Iterable[int]) -> tuple[Reduction, ...]:
    """Return a round's *live* reductions without those that cover any post of these *numbers*."""
    erased = tuple(numbers)
    return tuple(one for one in live if not any(map(one.covers, erased)))


def newest_asked(newest_first: Iterable[Round]) -> Round | None:
    """Return the first of these rounds in which the user speaks."""
    return next((round_ for round_ in newest_first if _is_asked(round_)), None)


def _is_asked(round_: Round) -> bool:
    return query_message(round_) is not None or any(post.send_from == USER for post in round_.post_list)


def hides_words(reduction: Reduction, round_: Round) -> bool:
    """Return whether *reduction* is on anything that the user said in *round_*."""
    posts = round_.post_list[: reduction.last_number]
    said = (post.send_from == USER and reduction.covers(post.number) for post in posts)
    return (reduction.covers(0) and query_message(round_) is not None) or any(said)


def is_over(reduction: Reduction, number: int, round_: Round) -> bool:
    """Return whether *reduction* is on the post of that *number*; a query and a post that repeats it are one."""
    again = number == 0 and round_.post_list and repeats_query(round_.post_list[0], round_)
    return reduction.covers(number) or bool(again and reduction.covers(round_.post_list[0].number))


@dataclass(frozen=True, slots=True)
class Ties:
    """What holds the posts of a round together as one role sees it, and where its posts stand. No text is in it."""

    #: The posts' numbers, ascending, and their ids.
    ids: Mapping[int, str]
    numbers: Sequence[int]
    #: The number of each id's newest post.
    newest: Mapping[str, int]
    #: The first and the last number of the call and the results that a post belongs to, by the post's number.
    spans: Mapping[int, tuple[int, int]]
    #: The number of the call at the end of an open round that waits for its results; None where none does.
    waiting: int | None

    def number_of(self, post_id: str, number: int) -> int:
        """Return the number of the post of that id; -1 where there is none, and 0 for the query, which has no id.

        *number* decides where ids are used twice.
        """
        if not post_id:
            return 0
        return number if self.ids.get(number) == post_id else self.newest.get(post_id, -1)

    def torn_by(self, reduction: Reduction) -> bool:
        """Return whether *reduction* hides a call and not all of its results, or a result and not its call.

        A call at the end of an open round that waits for its results counts as torn.
        """
        if reduction.kind == "offloaded":
            return False  # message and calls stay, only the text is another
        if self.waiting is not None and reduction.covers(self.waiting):
            return True
        start = bisect_left(self.numbers, reduction.first_number)
        stop = bisect_right(self.numbers, reduction.last_number)
        spans = (self.spans.get(number, (number, number)) for number in self.numbers[start:stop])
        return not all(reduction.covers(first) and reduction.covers(last) for first, last in spans)


def ties_of(round_: Round, role: str) -> Ties:
    """Return the ties of *round_*, which is as *role* sees it."""
    posts = round_.post_list
    pairs = paired(posts, role)
    spans: dict[int, tuple[int, int]] = {}
    for place, results in pairs.items():
        together = [posts[at].number for at in (place, *results.values())]
        spans |= dict.fromkeys(together, (min(together), max(together)))
    answers = {at for results in pairs.values() for at in results.values()}
    last = max((at for at in range(len(posts)) if at not in answers), default=-1)
    waits = not round_.closed and last in pairs and len(pairs[last]) < len(posts[last].tool_calls)
    return Ties(
        ids={post.number: post.id for post in posts},
        numbers=[post.number for post in posts],
        newest={post.id: post.number for post in posts},
        spans=spans,
        waiting=posts[last].number if waits else None,
    )
