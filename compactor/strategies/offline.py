"""Extending a compaction without a model, behind the model's text, while the model is away."""

from __future__ import annotations

from typing import Any

from memory.overlays import OFFLINE, CompactedMessage
from memory.rounds import copy_with

from ..acceptance.prohibitions import PROHIBITIONS, collect_prohibitions, find_lost, restore_sentences
from ..summarizers.base import Summarizer, Summary, SummaryRequest
from ..view import View

#: Stands between the model's text and what was extracted. It never changes, so that the prompt's beginning does not.
LINE = "[Extracted without a model, from the rounds since the summary above:]"
_BETWEEN = f"\n\n{LINE}\n"
#: What was extracted takes at most this share of ``target_tokens``, beside the model's text.
OFFLINE_SHARE = 0.5
#: What such a publication names as its strategy.
STRATEGY = "offline"
#: Minimum tokens for what was extracted, and for the prohibitions restored in it.
MIN_TOKENS = 128


def extend_offline(view: View, end: int, target_tokens: int | None, summarize: Summarizer) -> CompactedMessage | None:
    """Return the compaction of the first *end* rounds: *view*'s own text, then *summarize*'s about the rounds since.
    None if there are none.

    ``extra[OFFLINE]`` says how many characters at the head are the model's text, how many rounds were added since,
    and the last round before them, by id and number.
    """
    current, rounds = view.compaction, view.rounds[view.end : end]
    if not rounds:
        return None
    model_text, extracted, place = _split(current)
    target = max(MIN_TOKENS, int(OFFLINE_SHARE * target_tokens)) if target_tokens is not None else None
    previous = CompactedMessage(start_index=1, end_index=max(view.end, 1), summary=extracted) if extracted else None
    summary = summarize(
        SummaryRequest(
            role=view.role,
            previous=previous,
            rounds=tuple(rounds),
            start_index=view.end + 1,
            end_index=view.end + len(rounds),
            target_tokens=target,
        )
    )
    text = summary.text if isinstance(summary, Summary) else summary
    prohibitions = collect_prohibitions(current, rounds)
    missing = find_lost(prohibitions, (model_text, text, *(current.pinned if current is not None else ())))
    text, _ = restore_sentences(text, missing, max(MIN_TOKENS, (target or 0) // 2), view.token_cache.count)
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
            **({PROHIBITIONS: prohibitions} if prohibitions else {}),
            OFFLINE: {**place, "rounds": place["rounds"] + len(rounds)},
        },
    )


def drop_offline_end(view: View) -> View:
    """Return *view*, which ``is_offline``, as a model is to go on from it: the model's text alone, and all rounds
    since, raw. The same view if some of those rounds are gone: then only the extract is left."""
    current = view.compaction
    if current is None:
        return view
    text, _, place = _split(current)
    end = (view.rounds.find_end(place["end_round_id"]) or 0) if text else 0
    if view.end - end != place["rounds"] or (text and not end):
        return view
    model = copy_with(
        current,
        end_index=end,
        summary=text,
        end_round_id=place["end_round_id"],
        end_number=place["end_number"],
        extra={key: value for key, value in current.extra.items() if key != OFFLINE},
    )
    return copy_with(view, compaction=model if text else None, least_end=view.end)


def _split(current: CompactedMessage | None) -> tuple[str, str, dict[str, Any]]:
    """Return the model's text, the extracted text behind it, and the end of the model's text."""
    if current is None:
        return "", "", {"characters": 0, "rounds": 0, "end_round_id": None, "end_number": None}
    if not current.is_offline:
        last = {"end_round_id": current.end_round_id, "end_number": current.end_number}
        return current.summary, "", {"characters": len(current.summary), "rounds": 0, **last}
    place = current.extra[OFFLINE]
    length = place["characters"]
    extracted = current.summary[length:].removeprefix(_BETWEEN) if length else current.summary
    return current.summary[:length], extracted, dict(place)
