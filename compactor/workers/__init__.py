"""Workers: compaction in separate processes, on a job queue that the host already runs.

The host's compactors only evaluate triggers and enqueue jobs through a ``Dispatcher``; each job calls ``run_due``.
"""

from __future__ import annotations

from ..timers import DatabaseDispatcher, Dispatcher
from .due import Outcome, Worker, run_due, sweep

__all__ = ["DatabaseDispatcher", "Dispatcher", "Outcome", "Worker", "run_due", "sweep"]
