"""Cost and waiting of every adapter in one picture: SVG, written by hand, so that nothing has to be installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from .money import LISTS
from .report import waiting

__all__ = ["plotted"]

_ROW, _TOP, _BOTTOM, _MARGIN = 24, 96, 40, 20
#: Pixels of a character, about; of the scales; of what stands behind their bars and dots; of the facts.
_CHARACTER, _COSTS, _TIMES, _VALUE, _FACTS = 7.6, 180, 330, 70, 140
#: The ground is painted, so that all is legible on any page; a reader who prefers a dark one gets that.
_LIGHT = """
  .ground { fill: #ffffff; } text { fill: #24292f; } .quiet { fill: #57606a; } .grid { stroke: #d8dee4; }
  .mark { fill: #8c959f; } .ours text { fill: #116329; } .ours .mark { fill: #1a7f37; }
"""
_DARK = """
  .ground { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; } .grid { stroke: #30363d; }
  .mark { fill: #7d8590; } .ours text { fill: #56d364; } .ours .mark { fill: #3fb950; }
"""
_STYLE = f"""
  text {{ font: 13px system-ui, sans-serif; }} .title {{ font-size: 17px; font-weight: 600; }}
  .quiet {{ font-size: 12px; }} .ours text {{ font-weight: 600; }}
{_LIGHT}  @media (prefers-color-scheme: dark) {{{_DARK}  }}
"""


@dataclass(frozen=True)
class _Panel:
    """One scale: what stands above it, where it is, what it means at its ends, and where its lines are."""

    heading: str
    left: float
    width: float
    low: float
    high: float
    lines: Sequence[float]
    tick: Callable[[float], str]

    def at(self, value: float) -> float:
        return self.left + self.width * (value - self.low) / (self.high - self.low)


def plotted(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of *rows*, ``numbers`` with a relative cost: a line for each, the cheapest first, with its
    cost, how long it held up the chat loop, in powers of ten, and what became of the facts."""
    told = sorted((row for row in rows if row["relative"]), key=lambda row: row["relative"][0])
    if not told:
        raise ValueError("nothing to plot: no row has a cost relative to the control")
    left = _MARGIN + _CHARACTER * max(len(row["name"]) for row in told) + 10
    cost = _costs(left, [row["relative"][0] for row in told])
    held = _times(left + _COSTS + _VALUE, [_log(row["held_total"]) for row in told])
    facts = held.left + _TIMES + _VALUE
    width, height = facts + _FACTS, _TOP + _ROW * len(told) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="ground" width="100%" height="{height}"/>',
        _text(_MARGIN, 32, title, "title"),
        _text(_MARGIN, 52, f"cheapest first, by the prices: {LISTS[0].name}; an uncached token of input is 1", "quiet"),
        _text(facts, _TOP - 16, "facts in the prompt", "quiet"),
        *_grid(cost, height),
        *_grid(held, height),
    ]
    for place, row in enumerate(told):
        parts += _line(row, _TOP + _ROW * (place + 0.5), cost, held, facts)
    return "\n".join([*parts, "</svg>", ""])


def _costs(left: float, costs: Sequence[float]) -> _Panel:
    high = math.ceil(max(costs) * 2) / 2
    lines = [step / 2 for step in range(round(high * 2) + 1)]
    return _Panel("cost, no compaction = 1", left, _COSTS, 0.0, high, lines, lambda value: f"{value:g}")


def _times(left: float, powers: Sequence[float]) -> _Panel:
    low, high = math.floor(min(powers)), math.floor(max(powers)) + 1
    lines = range(low, high + 1)
    return _Panel(
        "chat loop held up in all, log scale", left, _TIMES, low, high, lines, lambda power: _seconds(round(power))
    )


def _log(seconds: float) -> float:
    return math.log10(max(seconds, 1e-6))


def _grid(panel: _Panel, height: float) -> Iterator[str]:
    below = height - _BOTTOM
    yield _text(panel.left, _TOP - 16, panel.heading, "quiet")
    for value in panel.lines:
        x = panel.at(value)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{below}"/>'
        yield _text(x, below + 18, panel.tick(value), "quiet", "middle")


def _line(row: Mapping[str, Any], y: float, cost: _Panel, held: _Panel, facts: float) -> Iterator[str]:
    """Give the name, a bar for the cost, and a dot for the waiting: on a scale of powers no bar has a beginning."""
    dear, end, waited = row["relative"][0], cost.at(row["relative"][0]), held.at(_log(row["held_total"]))
    yield '<g class="ours">' if row["name"].startswith("ours") else "<g>"
    yield _text(cost.left - 10, y + 4, row["name"], anchor="end")
    yield f'<rect class="mark" x="{cost.left:.1f}" y="{y - 6:.1f}" width="{end - cost.left:.1f}" height="12"/>'
    yield _text(end + 6, y + 4, f"{dear:.2f}")
    yield f'<circle class="mark" cx="{waited:.1f}" cy="{y:.1f}" r="5"/>'
    yield _text(waited + 10, y + 4, waiting(row["held_total"]))
    yield _text(facts, y + 4, f"{row['facts_in_prompt']} of {row['facts']}")
    yield "</g>"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _seconds(power: int) -> str:
    return f"{10**power:,} s" if power >= 0 else f"{10.0 ** (power + 3):g} ms"
