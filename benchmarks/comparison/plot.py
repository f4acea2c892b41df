"""Cost and waiting of every adapter in one picture: SVG, written by hand, so that nothing has to be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["plotted"]

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 56, 64
_OURS, _OTHERS = "#0b6e4f", "#8a8f98"
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .title { font-size: 16px; font-weight: 600; } .tick { fill: #57606a; font-size: 12px; }
  .grid { stroke: #d8dee4; stroke-width: 1; } .ground { fill: #ffffff; }
"""


def plotted(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of *rows*, ``numbers`` with a relative cost: cost to the right, waiting upwards, in powers of
    ten. What is best stands at the bottom left."""
    points: list[tuple[str, float, float]] = [
        (row["name"], row["relative"][0], max(row["held_total"], 1e-4)) for row in rows if row["relative"]
    ]
    if not points:
        raise ValueError("nothing to plot: no row has a cost relative to the control")
    right = math.ceil(max(cost for _, cost, _ in points) * 5 + 0.01) / 5
    low = math.floor(math.log10(min(held for _, _, held in points)))
    high = math.ceil(math.log10(max(held for _, _, held in points)) + 1e-9)
    high = max(high, low + 1)

    def across(cost: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * cost / right

    def upwards(held: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * float((math.log10(held) - low) / (high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
    ]
    for step in range(round(right * 5) + 1):
        x = across(step / 5)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{step / 5:.1f}</text>'
        )
    for power in range(low, high + 1):
        y = upwards(10.0**power)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(_tick(_LEFT - 8, y + 4, "end", _seconds(power)))
    below = "cost of the conversation, no compaction = 1"
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 16}" text-anchor="middle">{below}</text>')
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">chat loop held up, in total</text>'
    )
    taken: list[tuple[float, float]] = []
    for name, cost, held in sorted(points, key=lambda point: -point[2]):
        parts += _point(name, across(cost), upwards(held), taken)
    return "\n".join([*parts, "</svg>", ""])


def _point(name: str, x: float, y: float, taken: list[tuple[float, float]]) -> list[str]:
    """Return a dot and its name, which stands lower where others already stand."""
    colour = _OURS if name.startswith("ours") else _OTHERS
    label = y + 4
    while any(abs(label - other) < 14 and abs(x - beside) < 190 for beside, other in taken):
        label += 14
    taken.append((x, label))
    left = x > _WIDTH - _RIGHT - 190
    anchor, at = ("end", x - 9) if left else ("start", x + 9)
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
        f'<text x="{at:.1f}" y="{label:.1f}" text-anchor="{anchor}" style="fill:{colour}">{escape(name)}</text>',
    ]


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _seconds(power: int) -> str:
    return f"{10**power:,} s" if power >= 0 else f"{10 ** (power + 3):g} ms"
