"""Workers: compaction where there are processes for it, on an engine that hosts run anyway.

A host's compactors have a ``Dispatcher`` and only look; ``run_due`` is what a job does.
"""

from __future__ import annotations

from ..runner import Dispatcher
from .due import Outcome, Worker, run_due, sweep

__all__ = ["Dispatcher", "Outcome", "Worker", "run_due", "sweep"]
