"""Tables of what strategies and the prompt's ladder saved."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.table import Table

from .savings import LADDER, Rung, Saving
from .terminal import one_line

#: So long is a name on one line: the numbers beside it shall have their room on a terminal of 80 columns.
_WIDTH = 18


def strategies(savings: Mapping[str, Saving]) -> Table:
    """Return a row for each strategy: the tokens of the rounds that it reduced, before and after, and what it took."""
    table = Table(title="what strategies saved in the background", title_justify="left", pad_edge=False)
    table.add_column("strategy", overflow="fold")
    for name in ("overlays", "before", "after", "saved", "requests", "time"):
        table.add_column(name, justify="right")
    for name, saving in savings.items():
        table.add_row(
            _folded(one_line(name)),
            f"{saving.overlays:,}",
            f"{saving.tokens_before:,}",
            f"{saving.tokens_after:,}",
            f"{saving.tokens_saved:,}",
            f"{saving.requests:,}",
            f"{saving.seconds:.1f} s",
        )
    return table


def ladder(levels: Mapping[str, Rung]) -> Table:
    """Return a row for each rung: what it had to do anew for each prompt where overlays were not enough."""
    table = Table(title="what prompts still had shortened", title_justify="left")
    table.add_column("rung", overflow="fold")
    for name in ("prompts", "times", "tokens saved"):
        table.add_column(name, justify="right")
    for name, level in levels.items():
        table.add_row(LADDER[name], f"{level.prompts:,}", f"{level.times:,}", f"{level.tokens_saved:,}")
    return table


def _folded(name: str) -> str:
    """Return *name* on as many lines as it takes, parted behind its underscores where it has some."""
    lines = [""]
    for word in re.findall(r"[^_]*_+|[^_]+", name):
        if lines[-1] and len(lines[-1] + word) > _WIDTH:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)
