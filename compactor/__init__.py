"""Everything a program needs: sessions, stores, background compaction, and prompts that always fit.

``memory`` and ``prompts`` are top-level names that a host may have taken too. So the import first checks that it gets
the packages that were installed with this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._interrupt import install_hook
from ._siblings import ShadowedModule, require_siblings

install_hook()
require_siblings("memory", "prompts")

from memory import (
    RECALL_TOOLS,
    USER,
    Appended,
    Attachment,
    CompactedMessage,
    CompactionProvider,
    Conflict,
    ContextError,
    Conversation,
    EntriesLost,
    Event,
    EventHook,
    HistoryDiverged,
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
    Rewound,
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
    Synced,
    ToolCall,
    UnknownReference,
    UnknownRound,
    Usage,
    expire,
    open_store,
)
from memory.arguments import ConfigError

from .compose import BudgetStatus, OverBudget, Prompt, Report, Source, acompose, budget_status, compose, warm_up
from .errors import BudgetExceeded, CompactionFailed, CompactionTimeout, LimitReached, SpendExceeded, SummaryRejected
from .lazy_imports import import_lazily
from .tokens import TokenCounter, count_tokens
from .view import View

if TYPE_CHECKING:
    from .background import CompactorStatus, ContextCompactor
    from .config import CompactorConfig, Limit, Settings
    from .cost import Prices, cost_optimal, deferred
    from .cost.limits import Limits, LimitsStatus
    from .cost.shared_limits import SharedLimits
    from .cycle import Strategy
    from .events import Skip, log_events
    from .health import Health, RoleHealth
    from .plan import Plan
    from .runner import State
    from .sessions import Session, Sessions, SessionsStatus
    from .strategies import (
        compact_notes,
        compact_rounds,
        compact_view,
        compress_tool_runs,
        drop,
        offload_large,
        pin_system,
    )
    from .summarizers import (
        AnthropicSummarizer,
        ExtractiveSummarizer,
        GeminiSummarizer,
        OpenAISummarizer,
        Summarizer,
        SummarizerError,
        Summary,
        SummaryRequest,
        from_chat_model,
    )
    from .timers import DaemonExecutor
    from .triggers import Condition, Trigger, after_rounds, over_messages, over_tokens, over_usage, when
else:
    _LAZY_NAMES = {
        "background": "CompactorStatus ContextCompactor",
        "config": "CompactorConfig Limit Settings",
        "cost": "Prices cost_optimal deferred",
        "cost.limits": "Limits LimitsStatus",
        "cost.shared_limits": "SharedLimits",
        "cycle": "Strategy",
        "events": "Skip log_events",
        "health": "Health RoleHealth",
        "plan": "Plan",
        "runner": "State",
        "sessions": "Session Sessions SessionsStatus",
        "strategies": "compact_notes compact_rounds compact_view compress_tool_runs drop offload_large pin_system",
        "summarizers": "AnthropicSummarizer ExtractiveSummarizer GeminiSummarizer OpenAISummarizer Summarizer"
        " SummarizerError Summary SummaryRequest from_chat_model",
        "timers": "DaemonExecutor",
        "triggers": "Condition Trigger after_rounds over_messages over_tokens over_usage when",
    }
    __getattr__, __dir__ = import_lazily(__name__, _LAZY_NAMES)

# Sessions, and what reads and keeps them.
__all__ = ["RECALL_TOOLS", "USER", "Appended", "Attachment", "CompactedMessage", "CompactionProvider", "Conversation"]
__all__ += ["Event", "EventHook", "Hit", "InMemoryStore", "Memory", "Note", "Overlay", "Post", "Recall", "Redacted"]
__all__ += ["Reduction", "Rewound", "Round", "Rounds", "Session", "Sessions", "SessionsStatus", "Store", "Synced"]
__all__ += ["Health", "RoleHealth", "ToolCall", "Usage", "expire", "open_store"]
# The compactor, and when it runs.
__all__ += ["CompactorConfig", "CompactorStatus", "Condition", "ContextCompactor", "DaemonExecutor", "Limit", "Limits"]
__all__ += ["LimitsStatus", "Plan", "Prices", "Settings", "SharedLimits", "Skip", "State", "Trigger", "after_rounds"]
__all__ += ["cost_optimal", "deferred", "log_events", "over_messages", "over_tokens", "over_usage", "when"]
# What it makes, and of what.
__all__ += [
    "AnthropicSummarizer",
    "ExtractiveSummarizer",
    "GeminiSummarizer",
    "OpenAISummarizer",
    "Strategy",
    "Summarizer",
    "Summary",
    "SummaryRequest",
    "from_chat_model",
]
__all__ += ["TokenCounter", "View", "compact_notes", "compact_rounds", "compact_view", "compress_tool_runs"]
__all__ += ["count_tokens", "drop", "offload_large", "pin_system"]
# Prompts.
__all__ += [
    "BudgetStatus",
    "OverBudget",
    "Prompt",
    "Report",
    "Source",
    "acompose",
    "budget_status",
    "compose",
    "warm_up",
]
# Errors.
__all__ += ["BudgetExceeded", "CompactionFailed", "CompactionTimeout", "ConfigError", "Conflict", "ContextError"]
__all__ += ["EntriesLost", "HistoryDiverged", "LimitReached", "MessageError", "NewerVersion", "OlderVersion"]
__all__ += ["RoundClosed", "SessionPurged"]
__all__ += ["ShadowedModule", "SpendExceeded", "StoreBusy", "StoreClosed", "StoreDamaged", "StoreError", "StoreFull"]
__all__ += ["StoreReadOnly", "StoreUnreachable", "SummarizerError", "SummaryRejected", "UnknownReference"]
__all__ += ["UnknownRound"]
