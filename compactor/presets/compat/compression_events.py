"""What the six steps of ``auto_context`` did, in the fields that its users know."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from memory import Memory
from memory.errors import StoreError
from memory.events import Event
from memory.messages import from_round
from memory.references import Reference, parsed, posts_reference, range_reference

from ...events import Published, Reduced
from ...timers import interpreter_is_exiting


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionEvent:
    """One thing that became shorter."""

    #: One of ``auto_context.STEPS``, in capitals.
    event_type: str
    timestamp: datetime
    #: How many messages read shorter now.
    compressed_message_count: int
    #: Ids of the posts before and behind them; None at the end of the round or the log.
    previous_message_id: str | None
    next_message_id: str | None
    #: What reloads the originals.
    ref: str
    token_before: int
    token_after: int
    #: What the summarizer said that it took, 0 where none was asked or none said.
    compress_input_token: int = 0
    compress_output_token: int = 0
    #: Seconds.
    time: float = 0.0
    model: str | None = None

    @property
    def token_reduction(self) -> int:
        return self.token_before - self.token_after

    @property
    def compressed_message_id(self) -> str:
        """The reference of what reads shorter: it reloads the originals."""
        return self.ref

    @property
    def metadata(self) -> dict[str, Any]:
        """The numbers under the names that AutoContextMemory has for them."""
        return {
            "inputToken": self.compress_input_token,
            "outputToken": self.compress_output_token,
            "time": self.time,
            "tokenBefore": self.token_before,
            "tokenAfter": self.token_after,
        }


#: What the events are kept under in the log.
_KEPT = "memory.shortened"


class CompressionEvents:
    """Hears a compactor's events, and keeps those that made something shorter: in the log, with what it has already."""

    def __init__(self, memory: Memory, role: str) -> None:
        self._memory = memory
        self._role = role
        self._journal = memory.journal(role)
        #: Oldest first.
        self.heard: list[CompressionEvent] = [_read(facts) for facts in self._journal.notes(_KEPT)]

    def __call__(self, event: Event) -> None:
        match event:
            case Reduced():
                self._keep(self._of_reduction(event))
            case Published():
                self._keep(self._of_compaction(event))

    def seconds(self, ref: str) -> float:
        """Return how long it took to make what reads shorter at *ref*; 0.0 where no event tells."""
        place = _end(parsed(ref))
        return next(
            (event.time for event in reversed(self.heard) if event.ref and _end(parsed(event.ref)) == place), 0.0
        )

    def _keep(self, event: CompressionEvent) -> None:
        self.heard.append(event)
        if not interpreter_is_exiting():
            with suppress(StoreError):  # told while this object lasts, at least
                self._journal.note(_KEPT, asdict(event) | {"timestamp": event.timestamp.isoformat()})

    def _of_reduction(self, event: Reduced) -> CompressionEvent:
        round_ = self._memory.snapshot.round(event.round_id)
        assert round_ is not None  # noqa: S101  (a reduction in it has just been published)
        numbers = {"": 0} | {post.id: post.number for post in round_.post_list}
        ref = posts_reference(round_, numbers[event.first_post_id], numbers[event.last_post_id])
        around = event.previous_post_id or None, event.next_post_id or None
        return _event(event, event.strategy.upper(), event.posts, around, ref)

    def _of_compaction(self, event: Published) -> CompressionEvent:
        rounds = self._memory.rounds_getter(self._role)()
        end = rounds.end_of(event.last_round_id) or 0
        start = max((rounds.end_of(event.first_round_id) or 0) - 1, 0)
        covered = rounds[start:end]
        around = [
            rounds[start - 1].post_list[-1:] if start else (),
            rounds[end].post_list[:1] if end < len(rounds) else (),
        ]
        return _event(
            event,
            event.strategy.upper(),
            sum(len(list(from_round(round_, self._role))) for round_ in covered),
            (around[0][0].id if around[0] else None, around[1][0].id if around[1] else None),
            range_reference(covered[0].number, covered[-1].number) if covered else "",
        )


def _end(ref: Reference) -> tuple[int, int | None, int | None]:
    """Return what tells a place from all others: a compaction's event names the rounds that are newly covered, and
    what is shown names them all, so only the last is the same."""
    return ref.last, ref.first_post, ref.last_post


def _read(facts: Mapping[str, Any]) -> CompressionEvent:
    return CompressionEvent(**{**facts, "timestamp": datetime.fromisoformat(facts["timestamp"])})


def _event(
    event: Reduced | Published, event_type: str, messages: int, around: tuple[str | None, str | None], ref: str
) -> CompressionEvent:
    usage = event.usage or {}
    return CompressionEvent(
        event_type=event_type,
        timestamp=event.at,
        compressed_message_count=messages,
        previous_message_id=around[0],
        next_message_id=around[1],
        ref=ref,
        token_before=event.tokens_before,
        token_after=event.tokens_after,
        compress_input_token=usage.get("input_tokens", 0),
        compress_output_token=usage.get("output_tokens", 0),
        time=event.seconds,
        model=event.model,
    )
