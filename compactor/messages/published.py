"""The published reductions that a prompt shows, told as those of the prompt's own ladder are."""

from __future__ import annotations

from collections.abc import Iterator

from memory.messages import text_of
from memory.overlays import Reduction
from memory.reading.references import posts_reference
from memory.rounds import Post, Round

from ..tokens import TokenCounter
from ..view import View
from .ledger import MOST_OPEN_UNITS
from .overlaid import ARGUMENTS
from .pieces import Fitted, Reduced

__all__ = ["published_reductions"]


def published_reductions(view: View, fitted: Fitted) -> tuple[Reduced, ...]:
    """Return what stands for posts of the tail in the prompt *fitted*, in the order of the log.

    Without what the ladder has shortened further, which it tells of itself, and what is left out with its round. Each
    is counted once; takes time in proportion to the reductions of the tail.
    """
    if not view.reductions.by_round:
        return ()
    own, omitted = {one.ref for one in fitted.reductions}, frozenset(fitted.omitted_rounds)
    found = [one for one in _in_tail(view) if one[1].ref not in own]
    shown = {str(message.get("content")) for message in fitted.messages} if omitted else set()
    return tuple(told for round_, told, text in found if round_.number not in omitted or (text and text in shown))


def _in_tail(view: View) -> Iterator[tuple[Round, Reduced, str]]:
    """Give each reduction of the tail with its round and the text that it shows."""
    known, redactions = view.ledger.reduced, view.rounds.redactions
    places = {round_id: (view.rounds.end_of(round_id) or 0) - 1 for round_id in view.reductions.by_round}
    for round_id, place in sorted(places.items(), key=lambda item: item[1]):
        if place not in view.places:
            continue
        round_ = view.rounds[place]
        for reduction in view.reductions.of(round_id):
            key = (round_id, reduction.first_number, reduction.last_number, redactions, hash(reduction.text))
            told = known.get(key)
            if told is None:
                if len(known) >= MOST_OPEN_UNITS:
                    known.clear()
                told = known[key] = _told(round_, reduction, view.ledger.count)
            yield round_, told, reduction.text


def _told(round_: Round, reduction: Reduction, count: TokenCounter) -> Reduced:
    posts = [post for post in round_.post_list if reduction.covers(post.number)]
    before = sum(count(text) for post in posts for text in (text_of(post), *_arguments(post)))
    if reduction.covers(0) and not any(post.message == round_.user_query for post in posts):
        before += count(round_.user_query)
    after = count(reduction.text)
    if reduction.kind == "offloaded":
        left = reduction.extra.get(ARGUMENTS, {})
        after += sum(
            count(left.get(str(number), arguments))
            for post in posts
            for number, arguments in enumerate(_arguments(post))
        )
    ref = posts_reference(round_, reduction.first_number, reduction.last_number)
    return Reduced(ref, before, after, reduction.kind, published=True)


def _arguments(post: Post) -> list[str]:
    return [call.arguments for call in post.tool_calls]
