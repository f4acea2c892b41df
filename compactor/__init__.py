"""What the agent sees instead: compaction in the background, and prompts that always fit.

Ours are top-level names that a host may have taken, so this looks first whether it gets the ``memory`` and ``prompts``
that were installed with it.
"""

from __future__ import annotations

from ._siblings import ShadowedModule, require_siblings

require_siblings("memory", "prompts")

from memory.overlays import CompactedMessage, CompactionProvider  # noqa: E402  (after the check)

from .background import CompactorStatus, ContextCompactor, State  # noqa: E402  (after the check)
from .budget import BudgetStatus, budget_status  # noqa: E402
from .compose import OverBudget, Prompt, Report, compose  # noqa: E402
from .config import CompactorConfig, ConfigError, Settings  # noqa: E402
from .cost import Prices, cheapest, when_cheapest  # noqa: E402
from .cost.limits import Limits, LimitsStatus  # noqa: E402
from .cycle import Strategy  # noqa: E402
from .errors import (  # noqa: E402
    BudgetExceeded,
    CompactionFailed,
    CompactionTimeout,
    LimitReached,
    SpendExceeded,
    SummaryRejected,
)
from .events import Skip  # noqa: E402
from .logs import log_events  # noqa: E402
from .plan import Plan  # noqa: E402
from .strategies import (  # noqa: E402
    compact_notes,
    compact_rounds,
    compact_view,
    compress_tool_runs,
    drop,
    offload_large,
    pin_system,
)
from .summarizers import (  # noqa: E402
    OpenAISummarizer,
    Summarizer,
    SummarizerError,
    Summary,
    SummaryRequest,
)
from .summarizers.extractive import ExtractiveSummarizer  # noqa: E402
from .threads.workers import DaemonExecutor  # noqa: E402
from .tokens import TokenCounter, count_tokens  # noqa: E402
from .triggers import Condition, Trigger, after_rounds, over_messages, over_tokens, over_usage, when  # noqa: E402
from .view import View  # noqa: E402

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
    "cheapest",
    "compact_notes",
    "compact_rounds",
    "compact_view",
    "compose",
    "compress_tool_runs",
    "count_tokens",
    "drop",
    "log_events",
    "offload_large",
    "over_messages",
    "over_tokens",
    "over_usage",
    "pin_system",
    "when",
    "when_cheapest",
]
