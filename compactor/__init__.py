"""What the agent sees instead: compaction in the background, and prompts that always fit.

Ours are top-level names that a host may have taken, so this looks first whether it gets the ``memory`` and ``prompts``
that were installed with it.
"""

from __future__ import annotations

from ._siblings import ShadowedModule, require_siblings

require_siblings("memory", "prompts")

from memory.overlays import CompactedMessage, CompactionProvider

from .background import CompactorStatus, ContextCompactor
from .compose import BudgetStatus, OverBudget, Prompt, Report, budget_status, compose
from .config import CompactorConfig, ConfigError, Settings
from .cost import Prices, cost_optimal, deferred
from .cost.limits import Limits, LimitsStatus
from .cycle import Strategy
from .errors import (
    BudgetExceeded,
    CompactionFailed,
    CompactionTimeout,
    LimitReached,
    SpendExceeded,
    SummaryRejected,
)
from .events import Skip, log_events
from .plan import Plan
from .runner import State
from .strategies import compact_notes, compact_rounds, compact_view, compress_tool_runs, drop, offload_large, pin_system
from .summarizers import (
    OpenAISummarizer,
    Summarizer,
    SummarizerError,
    Summary,
    SummaryRequest,
)
from .summarizers.extractive import ExtractiveSummarizer
from .timers import DaemonExecutor
from .tokens import TokenCounter, count_tokens
from .triggers import Condition, Trigger, after_rounds, over_messages, over_tokens, over_usage, when
from .view import View

__all__ = [
    "BudgetExceeded",
    "BudgetStatus",
    "CompactedMessage",
    "CompactionFailed",
    "CompactionProvider",
    "CompactionTimeout",
    "CompactorConfig",
    "CompactorStatus",
    "Condition",
    "ConfigError",
    "ContextCompactor",
    "DaemonExecutor",
    "ExtractiveSummarizer",
    "LimitReached",
    "Limits",
    "LimitsStatus",
    "OpenAISummarizer",
    "OverBudget",
    "Plan",
    "Prices",
    "Prompt",
    "Report",
    "Settings",
    "ShadowedModule",
    "Skip",
    "SpendExceeded",
    "State",
    "Strategy",
    "Summarizer",
    "SummarizerError",
    "Summary",
    "SummaryRejected",
    "SummaryRequest",
    "TokenCounter",
    "Trigger",
    "View",
    "after_rounds",
    "budget_status",
    "compact_notes",
    "compact_rounds",
    "compact_view",
    "compose",
    "compress_tool_runs",
    "cost_optimal",
    "count_tokens",
    "deferred",
    "drop",
    "log_events",
    "offload_large",
    "over_messages",
    "over_tokens",
    "over_usage",
    "pin_system",
    "when",
]
