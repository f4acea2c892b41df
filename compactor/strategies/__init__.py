"""What to reduce: functions from a View to overlays, one file each, light to heavy."""

from __future__ import annotations

from .compact_rounds import compact_rounds

__all__ = ["compact_rounds"]
