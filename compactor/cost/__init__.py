"""What a conversation costs, and when it is cheapest to compact it and to show what was compacted."""

from __future__ import annotations

from .prices import Prices

__all__ = ["Prices"]
