"""Everything a program needs: sessions, stores, background compaction, and prompts that always fit.

``memory`` and ``prompts`` are top-level names that a host may have taken too. So the import first checks that it gets
the packages that were installed with this one.
"""

from __future__ import annotations

from ._interrupt import install_hook
from ._siblings import ShadowedModule, require_siblings

install_hook()
require_siblings("memory", "prompts")

from memory import (
    RECALL_TOOLS,
    USER,
    Attachment,
    CompactedMessage,
    CompactionProvider,
    Conflict,
    ContextError,
    Conversation,
    Event,
    EventHook,
    Hit,
    InMemoryStore,
    Memory,
    MessageError,
    NewerVersion,
    Note,
    OlderVersion,
    Overlay,
    Post,
    Recall,
    Redacted,
    Reduction,
    Round,
    RoundClosed,
    Rounds,
    SessionPurged,
    Store,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    ToolCall,
    UnknownReference,
    UnknownRound,
    Usage,
    expire,
    open_store,
)

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
    "RECALL_TOOLS",
    "USER",
    "Attachment",
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
    "Conflict",
    "ContextCompactor",
    "ContextError",
    "Conversation",
    "DaemonExecutor",
    "Event",
    "EventHook",
    "ExtractiveSummarizer",
    "Hit",
    "InMemoryStore",
    "LimitReached",
    "Limits",
    "LimitsStatus",
    "Memory",
    "MessageError",
    "NewerVersion",
    "Note",
    "OlderVersion",
    "OpenAISummarizer",
    "OverBudget",
    "Overlay",
    "Plan",
    "Post",
    "Prices",
    "Prompt",
    "Recall",
    "Redacted",
    "Reduction",
    "Report",
    "Round",
    "RoundClosed",
    "Rounds",
    "SessionPurged",
    "Settings",
    "ShadowedModule",
    "Skip",
    "SpendExceeded",
    "State",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
    "Strategy",
    "Summarizer",
    "SummarizerError",
    "Summary",
    "SummaryRejected",
    "SummaryRequest",
    "TokenCounter",
    "ToolCall",
    "Trigger",
    "UnknownReference",
    "UnknownRound",
    "Usage",
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
    "expire",
    "log_events",
    "offload_large",
    "open_store",
    "over_messages",
    "over_tokens",
    "over_usage",
    "pin_system",
    "when",
]
