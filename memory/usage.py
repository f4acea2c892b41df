"""What the provider itself counted of a role's prompts, and by how much that corrects our own count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .messages import text_with_calls
from .references import place_reference
from .rounds import USER, Round


class Pinned(NamedTuple):
    """A pinned post. They sort as they stand in the log."""

    #: Number of its round, and its own in the round; 0 is the user's query.
    round: int
    number: int
    round_id: str
    #: What it says, and who says it; empty where there is no such post.
    text: str
    #: Who sent and who received it; empty: every role sees it.
    ends: tuple[str, ...] = ()

    def shown_to(self, role: str) -> bool:
        """Return whether *role* sees that it says something; the empty role sees everything."""
        return bool(self.text) and (not role or not self.ends or role in self.ends)


def said_at(round_: Round, number: int) -> Pinned:
    """Return what *round_* says in the post of that *number*."""
    if number == 0:
        return Pinned(round_.number, 0, round_.id, f"{USER}: {round_.user_query}")
    for post in round_.post_list:
        if post.number == number:
            text = f"{post.send_from}: {text_with_calls(post)}"
            return Pinned(round_.number, number, round_.id, text, (post.send_from, post.send_to))
    return Pinned(round_.number, number, round_.id, "")


def unreadable(round_id: str, place: int, number: int) -> Pinned:
    """Return what is shown of a pinned post that is damaged, of the round at that *place*: nobody is stopped by it."""
    return Pinned(place, number, round_id, f"{place_reference(place, number)}: cannot be read any more")


# --- what the provider itself counted of a role's prompts, and by how much that corrects our own count ------------


#: A count is corrected by whole steps, so that prompts do not wobble; more than so many say nothing about a tokenizer.
STEP = 0.05
MAX_STEPS = 40
#: Providers keep no prompts that are shorter, in tokens; and what they keep ends at a multiple of so many.
MIN_CACHED = 1_024
CACHED_STEP = 128
#: What the newest prompt weighs in the share of tokens that were not in the cache.
_WEIGHT = 1 / 16


@dataclass(frozen=True, slots=True)
class Usage:
    """A role's newest usage by its provider's count."""

    #: Tokens of the newest prompt; None where none was told of, or overlays have changed since.
    input_tokens: int | None = None
    #: Steps of 5% by which our own count was too low, at its worst.
    steps: int = 0
    #: The share of tokens that the provider had read before and did not find in its cache, the newest prompts counting
    #: for more; 0 where nobody told.
    cold: float = 0.0

    @property
    def correction(self) -> float:
        """By what to multiply our own count."""
        return 1 + STEP * self.steps

    def after(
        self, input_tokens: int, counted: int | None, *, current: bool, cached_tokens: int | None = None
    ) -> Usage:
        """Return the usage after a prompt that the provider counted as *input_tokens*, *cached_tokens* of them in its
        cache, and we as *counted*."""
        steps = 0
        if counted:
            steps = max(0, -(-(input_tokens - counted) * 20 // counted))  # the least that suffices, in whole numbers
        told, cold = input_tokens if current else None, self.cold
        if cached_tokens is not None and told is not None and self.input_tokens is not None:
            # The prompt before had the same beginning: no overlay has changed since.
            cold += _WEIGHT * (_missed(min(self.input_tokens, input_tokens), cached_tokens) - cold)
        return Usage(told, min(MAX_STEPS, max(self.steps, steps)), cold)


def _missed(known: int, cached_tokens: int) -> float:
    """Return the share of the *known* tokens that were not in the cache, of those that it might keep."""
    if known < MIN_CACHED:
        return 0.0
    kept = known - known % CACHED_STEP
    return max(kept - cached_tokens, 0) / kept
