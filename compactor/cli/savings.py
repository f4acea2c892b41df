"""What strategies and the prompt's ladder saved, added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self, TypeVar

from ..compose import Prompt


@dataclass(frozen=True, slots=True)
class _Sums:
    def __add__(self, other: Self) -> Self:
        return type(self)(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Saving(_Sums):
    """What one strategy saved.

    Tokens were counted when each overlay was published: of the rounds that a compaction took in and the summary before
    it, or of the round that a reduction lies in, as they read before and as they read then.
    """

    #: Compactions or reductions that were published.
    overlays: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    #: To the summarizer, refused answers included.
    requests: int = 0
    seconds: float = 0.0

    @property
    def tokens_saved(self) -> int:
        return self.tokens_before - self.tokens_after

    def figures(self) -> dict[str, Any]:
        return {
            "overlays": self.overlays,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "tokens_saved": self.tokens_saved,
            "requests": self.requests,
            "background_seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Rung(_Sums):
    """What one rung of the ladder had still to do for prompts: it writes nothing, so it does the same for each."""

    prompts: int = 0
    #: Texts that were shown shorter, or rounds that were left out, entirely or in part.
    times: int = 0
    tokens_saved: int = 0

    def figures(self) -> dict[str, Any]:
        return {"prompts": self.prompts, "times": self.times, "tokens_saved": self.tokens_saved}


#: The rungs from light to heavy by their names, and what each did.
LADDER = {
    "offloaded": "large texts shown as a preview",
    "cleared": "old tool results shown as a line",
    "left_out": "rounds left out, entirely or in part",
    "clipped": "texts clipped to head and tail",
}


def rungs_of(prompt: Prompt) -> dict[str, Rung]:
    """Return what each rung did for *prompt*: the heaviest that a text was taken to counts for it."""
    report = prompt.report
    found: dict[str, list[int]] = {name: [] for name in LADDER}
    for reduced in report.reductions:
        if reduced.published:  # the strategy that made it tells of it
            continue
        found[reduced.by].append(reduced.tokens_before - reduced.tokens_after)
    levels = {name: Rung(int(bool(saved)), len(saved), sum(saved)) for name, saved in found.items()}
    if report.omitted_rounds:
        rest = report.tokens_before - report.tokens_after - sum(level.tokens_saved for level in levels.values())
        levels["left_out"] = Rung(1, len(report.omitted_rounds), rest)
    return levels


SumsT = TypeVar("SumsT", bound=_Sums)


def by_name(parts: Iterable[Mapping[str, SumsT]]) -> dict[str, SumsT]:
    """Return the sums of what has the same name, in the order in which names come."""
    sums: dict[str, SumsT] = {}
    for part in parts:
        for name, more in part.items():
            sums[name] = sums[name] + more if name in sums else more
    return sums
