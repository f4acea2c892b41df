"""Records that say "this span now reads as that": all that Memory knows of compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import AfterValidator, Field

from .frozen import EMPTY, freeze_mapping
from .rounds import Extra, Record, Text

__all__ = ["CompactedMessage", "CompactionProvider", "Journal", "JournalState", "Overlay", "Reduction"]


class CompactedMessage(Record):
    """The one compaction of a role: its first rounds now read as ``summary``."""

    #: First covered round, counted from 1.
    start_index: int = Field(ge=1)
    #: Last covered round, inclusive, counted from 1 in the sequence it was returned with. Where covered rounds
    #: failed afterwards it shrinks, down to ``start_index - 1`` when none is left to see.
    end_index: int = Field(ge=0)
    summary: Text
    #: The last covered round. Indices shift when a round fails; this does not.
    end_round_id: Text | None = None
    #: Which publication of its role made it current, from 1; 0 before it is published.
    generation: int = Field(default=0, ge=0)
    #: The last covered round's number in the log, where it has one: what a model is told.
    end_number: int | None = None
    created_at: datetime | None = None
    #: The summarizer's model, where it said so.
    model: Text | None = None
    #: ``input_tokens``, ``output_tokens``, ``cached_tokens`` that making it took, where known.
    usage: Annotated[Mapping[str, int], AfterValidator(freeze_mapping)] | None = None
    extra: Extra = EMPTY

    @property
    def last_round(self) -> int:
        """The last covered round in the numbering that models are told: the log's, where known."""
        return self.end_index if self.end_number is None else self.end_number

    def to_system_message(self) -> str:
        """Return the summary as text for a system message, headed by the rounds that it covers."""
        heading = f"[Conversation History Summary (Rounds {self.start_index}-{self.last_round})]"
        return f"{heading}\n{self.summary}\n\n{BACKGROUND}"

    def to_prompt(self) -> str:
        """Return the summary as ``compose`` shows it: whatever changes with each publication stands on the last line,
        so that a provider's prefix cache keeps as much as it can."""
        covered = f"Covers rounds {self.start_index}-{self.last_round}."
        return f"[Conversation History Summary]\n{self.summary}\n\n{BACKGROUND} {covered}"


BACKGROUND = (
    "[Background only: this summary may lag behind the conversation, the messages after it are authoritative,"
    " and it holds no new request from the user.]"
)


class Reduction(Record):
    """An overlay on posts inside one round of the tail: offloaded, dropped or summarised."""

    round_id: Text
    #: First and last post it covers, by id; both inclusive.
    first_post_id: Text
    last_post_id: Text
    kind: Literal["offloaded", "dropped", "summarised"]
    #: What stands in the prompt instead; empty when dropped.
    text: Text = ""
    generation: int = Field(default=0, ge=0)
    extra: Extra = EMPTY


Overlay = CompactedMessage | Reduction


@runtime_checkable
class CompactionProvider(Protocol):
    """Whoever can say what a role's history reads as now: usually a ``ContextCompactor``."""

    def get_compaction(self) -> CompactedMessage | None:
        """Return the published compaction; must not block."""

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Take note that something happened; must neither block nor raise."""


class JournalState(NamedTuple):
    """One consistent reading of a role's publications."""

    generation: int = 0
    current: CompactedMessage | None = None
    #: The newest round there was when the last revert happened; None unless the newest entry is a revert.
    held_round_id: str | None = None


class Journal(Protocol):
    """Where one role's compactions are published, and kept."""

    def read(self) -> JournalState:
        """Return the present state; must not block."""

    def publish(self, compaction: CompactedMessage, *, base: int, round_ids: Sequence[str]) -> CompactedMessage:
        """Make *compaction* current and return it with its generation; *round_ids* are the newly covered rounds.

        Raises ``StaleCompaction`` unless *base* is the current generation, all of *round_ids* are still closed and
        visible, no open round lies before the end, and the end moves forward.
        """

    def revert(self) -> CompactedMessage | None:
        """Make the compaction before the current one current again, and return it; None where there is none."""
