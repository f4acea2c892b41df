"""Statistics of a summarizer's answers, for estimating the cost of the next."""

from __future__ import annotations

from dataclasses import dataclass

from .summarizers.base import RequestKind, Summary

#: Weight of the newest answer in a mean length.
NEWEST = 0.5
#: Maximum plausible tokens of an answer; a larger count is an error of the endpoint.
MAX_ANSWER = 200_000
#: Minimum tokens reported as thoughts: smaller differences come from other tokenizers.
MIN_THOUGHTS = 100
#: Minimum share of a continued prompt that is read from the provider's cache if the two models share a cache.
MIN_CACHED = 0.25
#: After this many other requests, continuing the prompt is tried again.
TRY_AGAIN = 8
#: After this many refused answers to requests for changes, at least half of all, a model gets no more such requests.
MAX_REFUSED = 2


@dataclass(slots=True, eq=False, repr=False)
class Experience:
    """Statistics of the answers to one compactor; lengths in tokens, None: unknown. Only one thread writes it."""

    #: Length of an answer with all notes, of one with changes, and of one with notes on the new rounds alone.
    full: float | None = None
    edits: float | None = None
    addition: float | None = None
    #: Tokens of an answer that are charged beyond its text, such as a model's thoughts.
    thoughts: float | None = None
    #: When a compaction became due, by the cycle's ``monotonic``, until a model is asked; None: none is due.
    due_at: float | None = None
    #: Requests for changes; of their answers, those refused as no changes, or refused before any was accepted.
    asked_for_changes: int = 0
    refused_changes: int = 0
    #: Share of continued prompts that came from the provider's cache; newer ones count more.
    cached_share: float | None = None
    #: Whether the last request was a continuation, and the number of requests since the last continuation.
    continued: bool = False
    separate: int = 0

    @property
    def keeps_form(self) -> bool:
        """Whether the model mostly answers requests for changes with changes."""
        return self.refused_changes < MAX_REFUSED or 2 * self.refused_changes < self.asked_for_changes

    @property
    def shares_cache(self) -> bool:
        """Whether the summarizer reads the agent's prompt from the provider's cache, or has not tried for long."""
        return self.cached_share is None or self.cached_share >= MIN_CACHED or self.separate >= TRY_AGAIN

    def describe(self) -> list[str]:
        """Return lines about the model's requests and its answers."""
        if not self.continued and not self.separate:
            asks = "nothing so far"
        elif self.continued:
            asks = f"after the agent's last prompt; {self.cached_share or 0:.0%} of it came from the provider's cache"
        else:
            share = self.cached_share
            tried = f"; {share:.0%} of the agent's prompt came from the cache" if share is not None else ""
            asks = f"with a transcript{tried}"
        known = [
            f"{name} {tokens:,.0f} tokens"
            for name, tokens in (
                ("all notes", self.full),
                ("changes of them", self.edits),
                ("notes on new rounds", self.addition),
            )
            if tokens is not None
        ]
        writes = f"Writes: {', '.join(known) or 'nothing so far'}"
        if self.thoughts is not None and self.thoughts >= MIN_THOUGHTS:
            writes += f"; thinks {self.thoughts:,.0f} tokens per answer"
        asked = f"; {self.refused_changes} of {self.asked_for_changes} lists of changes were refused"
        return [f"Asks: {asks}.", f"{writes}{asked if self.asked_for_changes else ''}."]

    def note_answer(
        self,
        kind: RequestKind,
        answer: Summary,
        tokens: int,
        *,
        continued: bool,
        refused: str = "",
        is_addition: bool = False,
    ) -> None:
        """Record an *answer* to a request of that *kind*; its text has *tokens* tokens.

        *refused* is the check that refused it. *is_addition*: the request was for notes on the new rounds alone.
        """
        usage = answer.usage or {}
        continued &= answer.continued is not False
        if kind in ("rounds", "changes") or continued:
            self.continued, self.separate = continued, 0 if continued else self.separate + 1
        if continued and not (refused and usage.get("input_tokens") is None):  # without usage, no hit can be seen
            share = min(usage.get("cached_tokens", 0) / max(usage.get("input_tokens", 0), 1), 1.0)
            self.cached_share = _update_mean(self.cached_share, share)
        if kind == "changes":
            self.asked_for_changes += 1
            # "None" from a model that has written edits before is no failure to keep the form.
            self.refused_changes += bool(refused) and (refused != "hollow" or self.edits is None)
        if refused:
            return
        length, charged = float(tokens), usage.get("output_tokens", 0)
        self.thoughts = _update_mean(self.thoughts, max(charged - length, 0.0) if charged <= MAX_ANSWER else 0.0)
        if kind == "changes":
            self.edits = _update_mean(self.edits, length)
        elif kind == "rounds" and is_addition:
            self.addition = _update_mean(self.addition, length)
        elif kind == "rounds":
            self.full = _update_mean(self.full, length)


def _update_mean(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + NEWEST * (newest - mean)
