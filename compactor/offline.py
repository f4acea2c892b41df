"""Rounds folded in without a model while none answers: behind the model's text, until its next good answer replaces
both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memory.overlays import OFFLINE, CompactedMessage
from memory.rounds import Round

from .checks.standing import STANDING, in_force, lost, restored
from .summarizers.base import Summary, SummaryRequest

if TYPE_CHECKING:
    from .view import View

__all__ = ["LINE", "OFFLINE_SHARE", "STRATEGY", "fold_in", "without_offline"]

#: Stands between the model's text and what was extracted. It never changes, so that the prompt's beginning does not.
LINE = "[Extracted without a model, from the rounds since the summary above:]"
_BETWEEN = f"\n\n{LINE}\n"
#: What was extracted takes at most this share of ``target_tokens``, beside the model's text.
OFFLINE_SHARE = 0.5
#: What such a publication names as its strategy.
STRATEGY = "offline"
#: Minimum tokens for what was extracted, and for the prohibitions restored in it.
MIN_TOKENS = 128

Summarizer = Callable[[SummaryRequest], "str | Summary"]


def fold_in(view: View, end: int, target_tokens: int | None, summarize: Summarizer) -> CompactedMessage | None:
    """Return the compaction of the first *end* rounds: *view*'s as it stands, and behind it what *summarize* makes of
    the rounds since; None where there are none.

    ``extra[OFFLINE]`` says how many characters at the head are the model's text, how many rounds were folded in since,
    and the last round before them, by id and number.
    """
    current, rounds = view.compaction, view.rounds[view.end : end]
    if not rounds:
        return None
    model_text, extracted, place = _parts(current)
    target = max(MIN_TOKENS, int(OFFLINE_SHARE * target_tokens)) if target_tokens is not None else None
    text = _extracted(view, extracted, rounds, target, summarize)
    standing = in_force(current, rounds)
    pinned = current.pinned if current is not None else ()
    missing = lost(standing, (model_text, text, *pinned))
    text, _ = restored(text, missing, max(MIN_TOKENS, (target or 0) // 2), view.ledger.count)
    return CompactedMessage(
        start_index=1,
        end_index=end,
        summary=f"{model_text}{_BETWEEN}{text}" if model_text else text,
        end_round_id=rounds[-1].id,
        end_number=rounds[-1].number or None,
        generation=current.generation if current is not None else 0,
        notes=current.notes if current is not None else (),
        extra={
            **(current.extra if current is not None else {}),
            **({STANDING: standing} if standing else {}),
            OFFLINE: {**place, "rounds": place["rounds"] + len(rounds)},
        },
    )


def without_offline(view: View) -> View:
    """Return *view* as the summarizer is to go on from it: the model's text alone, and all rounds since, raw.

    As it is where nothing was folded in offline, and where not all of those rounds are there still, as with hosts that
    drop old ones: then what was extracted is all that is left of them.
    """
    current = view.compaction
    if current is None or not current.is_offline:
        return view
    text, _, place = _parts(current)
    end = (view.rounds.end_of(place["end_round_id"]) or 0) if text else 0
    if view.end - end != place["rounds"] or (text and not end):
        return view
    model = current.model_copy(
        update={
            "end_index": end,
            "summary": text,
            "end_round_id": place["end_round_id"],
            "end_number": place["end_number"],
            "extra": {key: value for key, value in current.extra.items() if key != OFFLINE},
        }
    )
    return replace(view, compaction=model if text else None, least_end=view.end)


def _parts(current: CompactedMessage | None) -> tuple[str, str, dict[str, Any]]:
    """Return the model's text, what was extracted behind it, and the place where the model's text ends."""
    if current is None:
        return "", "", {"characters": 0, "rounds": 0, "end_round_id": None, "end_number": None}
    if not current.is_offline:
        last = {"end_round_id": current.end_round_id, "end_number": current.end_number}
        return current.summary, "", {"characters": len(current.summary), "rounds": 0, **last}
    place = current.extra[OFFLINE]
    length = place["characters"]
    extracted = current.summary[length:].removeprefix(_BETWEEN) if length else current.summary
    return current.summary[:length], extracted, dict(place)


def _extracted(view: View, extracted: str, rounds: Sequence[Round], target: int | None, summarize: Summarizer) -> str:
    previous = None
    if extracted:
        previous = CompactedMessage(start_index=1, end_index=max(view.end, 1), summary=extracted)
    made = summarize(
        SummaryRequest(
            role=view.role,
            kind="rounds",
            previous=previous,
            rounds=tuple(rounds),
            start_index=view.end + 1,
            end_index=view.end + len(rounds),
            target_tokens=target,
            plan=None,
            messages=[],
        )
    )
    return made.text if isinstance(made, Summary) else made
