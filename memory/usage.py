"""What the provider itself counted of a role's prompts, and by how much that corrects our own count."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOST_STEPS", "STEP", "Usage"]

#: A count is corrected by whole steps, so that prompts do not wobble; more than so many say nothing about a tokenizer.
STEP = 0.05
MOST_STEPS = 40


@dataclass(frozen=True, slots=True)
class Usage:
    """A role's newest usage by its provider's count."""

    #: Tokens of the newest prompt; None where none was told of, or overlays have changed since.
    input_tokens: int | None = None
    #: Steps of 5% by which our own count was too low, at its worst.
    steps: int = 0

    @property
    def correction(self) -> float:
        """By what to multiply our own count."""
        return 1 + STEP * self.steps

    def after(self, input_tokens: int, counted: int | None, *, current: bool) -> Usage:
        """Return the usage after a prompt that the provider counted as *input_tokens* and we as *counted*."""
        steps = 0
        if counted:
            steps = max(0, -(-(input_tokens - counted) * 20 // counted))  # the least that suffices, in whole numbers
        return Usage(input_tokens if current else None, min(MOST_STEPS, max(self.steps, steps)))
