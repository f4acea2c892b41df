"""Everything a program needs: sessions, stores, background compaction, and prompts that always fit.

A wrong argument raises ``ValueError``, usually a ``ConfigError`` that names it, or ``TypeError``. Docstrings name the
other errors.

``memory`` and ``prompts`` are top-level names that a host may have taken too. So the import first checks that it gets
the packages that were installed with this one.
"""

from __future__ import annotations

from ._interrupt import install_hook

install_hook()

from typing import TYPE_CHECKING

from ._siblings import ShadowedModule, require_siblings

require_siblings("memory", "prompts")

from memory import (
    RECALL_TOOLS,
    USER,
    Appended,
    ArchiveBusy,
    Attachment,
    CheckpointFailed,
    CompactedMessage,
    CompactionProvider,
    CompactionRecord,
    Conflict,
    ContextError,
    Conversation,
    EntriesLost,
    Entry,
    Event,
    EventHook,
    HistoryDiverged,
    Hit,
    HookFailed,
    InMemoryStore,
    Journal,
    JournalState,
    Memory,
    MessageError,
    NewerVersion,
    Note,
    OlderVersion,
    Origin,
    Overlay,
    Post,
    ProviderFailed,
    Recall,
    Redacted,
    Reduction,
    Reductions,
    Rewound,
    Round,
    RoundClosed,
    Rounds,
    SessionPurged,
    SessionRow,
    StaleCompaction,
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
    delete_files,
    expire,
    list_expired,
    open_store,
    purge_tenant,
)
from memory.arguments import ConfigError

from .compose import BudgetStatus, OverBudget, Prompt, acompose, budget_status, compose, warm_up
from .errors import (
    BudgetExceeded,
    CompactionFailed,
    CompactionTimeout,
    FailureKind,
    LimitReached,
    SpendExceeded,
    SummaryRejected,
)
from .lazy_imports import import_lazily
from .prompt.fit import Report
from .prompt.groups import MessageGroup
from .prompt.layout import ShortenedPart, Source
from .tokens import TokenCounter, count_message, count_prompt, count_tokens, get_counter, window_of
from .view import View

if TYPE_CHECKING:
    from prompts import PromptError, PromptTemplate

    from .background import CompactorStatus, ContextCompactor
    from .config import CompactorConfig, Limit, Settings
    from .cost import Decision, Moment, Prices, Publication, cost_optimal, deferred
    from .cost.limits import Limits, LimitsStatus
    from .cost.shared_limits import SharedLimits
    from .cycle import Strategy
    from .difference import Difference, compare
    from .events import (
        CompactionEvent,
        CostEvaluated,
        Deferred,
        Discarded,
        Evaluated,
        Exhausted,
        Failed,
        IndexingFailed,
        ModelUnknown,
        PersistFailed,
        PlanFailed,
        Prepared,
        PublicationFailed,
        Published,
        Reduced,
        Rejected,
        Reverted,
        Skip,
        Skipped,
        Started,
        Stopped,
        StrategyFailed,
        SummaryEvent,
        log_events,
        make_logger,
    )
    from .health import Health, RoleHealth
    from .models import Dollars, ModelFacts, find_model
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
        ContinuedPrompt,
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
    from .triggers import Condition, Trigger, Verdict, after_rounds, over_messages, over_tokens, over_usage, when
else:
    _LAZY_NAMES = {
        "background": "CompactorStatus ContextCompactor",
        "config": "CompactorConfig Limit PromptError PromptTemplate Settings",
        "cost": "Decision Moment Prices Publication cost_optimal deferred",
        "cost.limits": "Limits LimitsStatus",
        "cost.shared_limits": "SharedLimits",
        "cycle": "Strategy",
        "difference": "Difference compare",
        "events": "CompactionEvent CostEvaluated Deferred Discarded Evaluated Exhausted Failed"
        " IndexingFailed ModelUnknown PersistFailed PlanFailed Prepared PublicationFailed Published"
        " Reduced Rejected Reverted Skip Skipped Started Stopped StrategyFailed SummaryEvent"
        " log_events make_logger",
        "health": "Health RoleHealth",
        "models": "Dollars ModelFacts find_model",
        "plan": "Plan",
        "runner": "State",
        "sessions": "Session Sessions SessionsStatus",
        "strategies": "compact_notes compact_rounds compact_view compress_tool_runs drop offload_large pin_system",
        "summarizers": "AnthropicSummarizer ContinuedPrompt ExtractiveSummarizer GeminiSummarizer OpenAISummarizer"
        " Summarizer SummarizerError Summary SummaryRequest from_chat_model",
        "timers": "DaemonExecutor",
        "triggers": "Condition Trigger Verdict after_rounds over_messages over_tokens over_usage when",
    }
    __getattr__, __dir__ = import_lazily(__name__, _LAZY_NAMES)

# Sessions, and what reads and keeps them.
__all__ = ["RECALL_TOOLS", "USER", "Appended", "Attachment", "CompactedMessage", "CompactionProvider"]
__all__ += ["CompactionRecord", "Conversation", "Entry", "Hit", "InMemoryStore", "Journal", "JournalState", "Memory"]
__all__ += ["Note", "Origin", "Overlay", "Post", "Recall", "Reduction", "Reductions", "Round", "Rounds", "SessionRow"]
__all__ += ["Store", "Synced", "ToolCall", "Usage", "delete_files", "expire", "list_expired", "open_store"]
__all__ += ["purge_tenant"]
# What a server holds.
__all__ += ["Health", "RoleHealth", "Session", "Sessions", "SessionsStatus"]
# The compactor, and when it runs.
__all__ += ["CompactorConfig", "CompactorStatus", "Condition", "ContextCompactor", "DaemonExecutor", "Decision"]
__all__ += ["Dollars", "Limit", "Limits", "LimitsStatus", "ModelFacts", "Moment", "Plan", "Prices", "Publication"]
__all__ += ["Settings", "SharedLimits", "State", "Trigger", "Verdict", "after_rounds", "cost_optimal", "deferred"]
__all__ += ["find_model", "over_messages", "over_tokens", "over_usage", "when"]
# What it makes, and of what.
__all__ += ["AnthropicSummarizer", "ContinuedPrompt", "Difference", "ExtractiveSummarizer", "GeminiSummarizer"]
__all__ += ["MessageGroup", "OpenAISummarizer", "PromptTemplate", "Strategy", "Summarizer", "Summary", "SummaryRequest"]
__all__ += ["TokenCounter", "View", "compact_notes", "compact_rounds", "compact_view", "compare", "compress_tool_runs"]
__all__ += ["count_message", "count_prompt", "count_tokens", "drop", "from_chat_model", "get_counter", "offload_large"]
__all__ += ["pin_system", "window_of"]
# Prompts.
__all__ += ["BudgetStatus", "OverBudget", "Prompt", "Report", "ShortenedPart", "Source", "acompose", "budget_status"]
__all__ += ["compose", "warm_up"]
# Events.
__all__ += ["CheckpointFailed", "CompactionEvent", "CostEvaluated", "Deferred", "Discarded", "Evaluated", "Event"]
__all__ += ["EventHook", "Exhausted", "Failed", "FailureKind", "HookFailed", "IndexingFailed", "ModelUnknown"]
__all__ += ["PersistFailed", "PlanFailed", "Prepared", "ProviderFailed", "PublicationFailed", "Published", "Redacted"]
__all__ += ["Reduced", "Rejected", "Reverted", "Rewound", "Skip", "Skipped", "Started", "Stopped", "StrategyFailed"]
__all__ += ["SummaryEvent", "log_events", "make_logger"]
# Errors.
__all__ += ["ArchiveBusy", "BudgetExceeded", "CompactionFailed", "CompactionTimeout", "ConfigError", "Conflict"]
__all__ += ["ContextError", "EntriesLost", "HistoryDiverged", "LimitReached", "MessageError", "NewerVersion"]
__all__ += ["OlderVersion", "PromptError", "RoundClosed", "SessionPurged", "ShadowedModule", "SpendExceeded"]
__all__ += ["StaleCompaction", "StoreBusy", "StoreClosed", "StoreDamaged", "StoreError", "StoreFull", "StoreReadOnly"]
__all__ += ["StoreUnreachable", "SummarizerError", "SummaryRejected", "UnknownReference", "UnknownRound"]
