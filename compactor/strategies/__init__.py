"""Strategies: functions that take a View and yield overlays, one file each."""

from __future__ import annotations

from ..prompt.shorten import OffloadRule
from .compact_notes import compact_notes
from .compress_tool_runs import compress_tool_runs
from .drop import drop, pin_system
from .incremental import compact_rounds, compact_view
from .offload_large import offload_large

__all__ = [
    "FACTORIES",
    "OffloadRule",
    "compact_notes",
    "compact_rounds",
    "compact_view",
    "compress_tool_runs",
    "drop",
    "offload_large",
    "pin_system",
]

#: Functions that return a strategy. Passed uncalled by mistake, they would take the view as their first option.
FACTORIES = (compress_tool_runs, drop, offload_large, pin_system)
