"""The sizes that the formula of the least cost goes by, as a run of ours met them."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.cost.prices import Prices

from .conversations import Scenario
from .money import Shape, least
from .playing import Outcome

__all__ = ["Met", "shape_of"]


@dataclass(frozen=True)
class Met:
    """What a run of ours was like, and how its summarizer was asked."""

    shape: Shape
    style: str

    def told(self, prices: Prices) -> dict[str, float]:
        """Return W* and J* by *prices*, and the sizes that they follow from."""
        every, cost = least(self.shape, prices, self.style)
        return {"every": every, "least": cost} | vars(self.shape)


def shape_of(scenario: Scenario, outcome: Outcome) -> Met | None:
    """Return the sizes of *outcome*; None where nothing was compacted.

    System message, growth and summary are the scenario's, and so is what is retained where it says so. What went by
    while the summarizer was asked counts as retained: nobody could have compacted it in that time.
    """
    answered = [one for one in outcome.summarizer if one.status == 200]
    if not answered or not outcome.agent:
        return None
    from compactor.tokens import count_tokens

    growth = scenario.tokens / len(outcome.agent)
    retained = outcome.measures.get("retained", 0.0) if scenario.retained is None else float(scenario.retained)
    output = sum(one.output for one in answered) / len(answered)
    style = "continue" if outcome.measures.get("continues") else "separate"
    shape = Shape(
        growth=growth,
        system=count_tokens(scenario.system) + 8,
        summary=outcome.measures.get("summary", float(scenario.summary_tokens)),
        retained=retained,
        instruction=outcome.measures.get("instruction", Shape.instruction),
        answer=output,
    )
    return Met(shape, style)
