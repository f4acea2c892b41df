"""The sizes that the formula of the least cost goes by, as a run of ours met them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from compactor import Prices, count_tokens
from compactor.cost import Sizes, compute_cost_per_token, find_best_interval
from compactor.summarizers.base import Style

from .conversations import Scenario
from .playing import Outcome

__all__ = ["Met", "shape_of"]

#: Tokens of the prompts that ask for summaries, about.
INSTRUCTION = 350.0


@dataclass(frozen=True)
class Met:
    """What a run of ours was like, and how its summarizer was asked."""

    sizes: Sizes
    style: Style

    def told(self, prices: Prices) -> dict[str, float | None]:
        """Return W* and J* by *prices*, and the sizes that they follow from."""
        every = find_best_interval(prices, self.sizes, self.style)
        return {"every": every, "least": compute_cost_per_token(every, prices, self.sizes, self.style)} | asdict(
            self.sizes
        )


def shape_of(scenario: Scenario, outcome: Outcome) -> Met | None:
    """Return the sizes of *outcome*; None where nothing was compacted.

    System message and growth are the scenario's. What went by while the summarizer was asked counts as retained: nobody
    could have compacted it in that time.
    """
    answered = [one for one in outcome.summarizer if one.status == 200]
    if not answered or not outcome.agent:
        return None
    sizes = Sizes(
        per_call=scenario.tokens / len(outcome.agent),
        system=count_tokens(scenario.system) + 8,
        summary=outcome.measures.get("summary", float(scenario.summary_tokens)),
        retained=outcome.measures.get("retained", 0.0),
        instruction=INSTRUCTION,
        delta=sum(one.output for one in answered) / len(answered),
    )
    continues = 2 * sum(one.cached for one in answered) > sum(one.input for one in answered)
    return Met(sizes, "continue" if continues else "separate")
