"""What to reduce: functions from a View to overlays, one file each, light to heavy."""

from __future__ import annotations

from .compact_notes import compact_notes
from .compact_rounds import compact_rounds, compact_view
from .compress_tool_runs import compress_tool_runs
from .drop import drop
from .offload_large import OffloadRule, offload_large
from .pin_system import pin_system

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

#: Those that are called to get a strategy: passed as they are, they would take the view for their first option.
FACTORIES = (compress_tool_runs, drop, offload_large, pin_system)
