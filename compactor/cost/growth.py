"""How a conversation grows: what a compaction would cover and retain now, and what each call of the model adds."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages.units import PROMPT_TOKENS
from ..view import View

__all__ = ["Growth", "growth_of"]

#: A call weighs half as much as one that is so many calls newer; older than four times that, it is not looked at.
HALF_LIFE = 32
#: No more rounds are looked at, also where the model was called in none of them.
MOST_ROUNDS = 4 * HALF_LIFE


@dataclass(frozen=True, slots=True)
class Growth:
    """What there is in front of, in, and behind what a compaction would newly cover now, in tokens."""

    #: System messages and tools.
    system: int
    #: Of the compaction that there is; 0 where there is none.
    summary: int
    grown: int
    retained: int
    #: By how much the tail grows with each call of the role's model, the newest calls counting for more.
    per_call: float

    @property
    def tokens(self) -> int:
        """Of the whole prompt."""
        return self.system + self.summary + self.grown + self.retained


def growth_of(view: View, end: int) -> Growth:
    """Return the growth of *view* where a compaction now would reach up to *end*. It costs what the open round does,
    and looks at few of the closed ones."""
    in_open_rounds = view.tokens_behind(view.closed)
    return Growth(
        system=PROMPT_TOKENS + view.header_tokens,
        summary=view.compaction_tokens,
        grown=view.closed_tokens(view.end, end),
        retained=view.closed_tokens(end, view.closed) + in_open_rounds,
        per_call=_per_call(view, in_open_rounds),
    )


def _per_call(view: View, in_open_rounds: int) -> float:
    seen, sums = view.calls_behind(max(view.closed, view.end)), view.sums
    # What nobody has answered is a part of a call's tokens: counted without the call, each would seem to bring more.
    tokens, calls = float(in_open_rounds if seen else 0), float(seen)
    costs, first = sums.costs, sums.start
    for place in range(view.closed - 1, max(view.end, view.closed - MOST_ROUNDS) - 1, -1):
        cost, weight = costs[place - first], 0.5 ** (seen / HALF_LIFE)
        tokens += weight * cost.tokens
        calls += weight * cost.calls
        seen += cost.calls
        if seen > 4 * HALF_LIFE:
            break
    return tokens / calls if calls else tokens + in_open_rounds  # where there were none: the first will read it all
