"""Pinned posts, and the provider's own counts of prompts, which correct ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .messages import join_text_with_calls
from .references import make_reference
from .rounds import USER, Round
from .values import ValueObject


class Pinned(NamedTuple):
    """A pinned post. They sort as they stand in the log."""

    #: Number of its round, and its own in the round; 0 is the user's query.
    round: int
    number: int
    round_id: str
    #: Its words, with the sender; empty if there is no such post.
    text: str
    #: Sender and recipient; empty: every role sees it.
    ends: tuple[str, ...] = ()

    def is_shown_to(self, role: str) -> bool:
        """Return whether *role* sees its words; the empty role sees everything."""
        return bool(self.text) and (not role or not self.ends or role in self.ends)


def read_pinned(round_: Round, number: int) -> Pinned:
    """Return the post of that *number* in *round_* as a pinned one."""
    if number == 0:
        return Pinned(round_.number, 0, round_.id, f"{USER}: {round_.user_query}")
    for post in round_.post_list:
        if post.number == number:
            text = f"{post.send_from}: {join_text_with_calls(post)}"
            return Pinned(round_.number, number, round_.id, text, (post.send_from, post.send_to))
    return Pinned(round_.number, number, round_.id, "")


def make_unreadable_pin(round_id: str, round_number: int, number: int) -> Pinned:
    """Return the substitute for a damaged pinned post in the round *round_number*, so that prompts can go on."""
    return Pinned(round_number, number, round_id, f"{make_reference(round_number, number)}: cannot be read any more")


#: Counts are corrected in whole steps, so that prompts stay stable. A larger difference is not the tokenizer's.
STEP = 0.05
MAX_STEPS = 40
#: Providers cache prompts of at least so many tokens, up to a multiple of so many.
MIN_CACHED = 1_024
CACHED_STEP = 128
#: Weight of the newest prompt in the share of tokens that missed the cache.
_WEIGHT = 1 / 16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Usage(ValueObject):
    """A role's newest usage by its provider's count."""

    #: Tokens of the newest prompt; None: not reported, or overlays have changed since.
    input_tokens: int | None = None
    #: Steps of 5% by which our own count was too low, at its worst.
    steps: int = 0
    #: Share of tokens that the provider had read before and did not find in its cache, weighted towards the newest
    #: prompts; 0: not reported.
    cold: float = 0.0
    #: Factor for our own count.
    correction: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "correction", 1 + STEP * self.steps)

    def with_prompt(
        self, input_tokens: int, counted: int | None, *, current: bool, cached_tokens: int | None = None
    ) -> Usage:
        """Return the usage after a prompt of *input_tokens* by the provider's count, *cached_tokens* of them from its
        cache, and *counted* by ours."""
        steps = max(0, -(-(input_tokens - counted) * 20 // counted)) if counted else 0  # rounded up
        known, cold = input_tokens if current else None, self.cold
        if cached_tokens is not None and known is not None and self.input_tokens is not None:
            # The prompt before had the same beginning: no overlay has changed since.
            before = min(self.input_tokens, known)
            cacheable = before - before % CACHED_STEP if before >= MIN_CACHED else 0
            missed = max(cacheable - cached_tokens, 0) / cacheable if cacheable else 0.0
            cold += _WEIGHT * (missed - cold)
        return Usage(known, min(MAX_STEPS, max(self.steps, steps)), cold)
