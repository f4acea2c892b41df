"""Strategies: functions that take a View and yield overlays, one file each."""

from __future__ import annotations

from ..prompt.shorten import OffloadRule as OffloadRule
from .compact_notes import compact_notes as compact_notes
from .compress_tool_runs import compress_tool_runs as compress_tool_runs
from .drop import drop as drop
from .drop import pin_system as pin_system
from .incremental import compact_rounds as compact_rounds
from .incremental import compact_view as compact_view
from .offload_large import offload_large as offload_large

#: Functions that return a strategy. Passed uncalled by mistake, they would take the view as their first option.
FACTORIES = (compress_tool_runs, drop, offload_large, pin_system)
