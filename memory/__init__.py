"""What happened: the raw rounds of a session, unchanged, for ever. Imports nothing else of ours."""

from __future__ import annotations

from .errors import (
    Conflict,
    ContextError,
    MessageError,
    NewerVersion,
    OlderVersion,
    RoundClosed,
    SessionPurged,
    StaleCompaction,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
    UnknownReference,
    UnknownRound,
)
from .events import CheckpointFailed, Event, EventHook, HookFailed, ProviderFailed, Redacted
from .history import CompactionRecord
from .journal import LastingJournal
from .memory import Conversation, Memory
from .overlays import (
    CompactedMessage,
    CompactionProvider,
    Journal,
    JournalState,
    Note,
    Origin,
    Overlay,
    Reduction,
    Reductions,
)
from .reading.search import Hit
from .recall import RECALL_TOOLS, Recall
from .rounds import USER, Attachment, Post, Round, ToolCall
from .stores import (
    IndexedStore,
    InMemoryStore,
    LeasingStore,
    SearchableStore,
    Store,
    delete_files,
    expire,
    expired,
    open_store,
)
from .usage import Usage
from .visibility import Rounds

__all__ = [
    "RECALL_TOOLS",
    "USER",
    "Attachment",
    "CheckpointFailed",
    "CompactedMessage",
    "CompactionProvider",
    "CompactionRecord",
    "Conflict",
    "ContextError",
    "Conversation",
    "Event",
    "EventHook",
    "Hit",
    "HookFailed",
    "InMemoryStore",
    "IndexedStore",
    "Journal",
    "JournalState",
    "LastingJournal",
    "LeasingStore",
    "Memory",
    "MessageError",
    "NewerVersion",
    "Note",
    "OlderVersion",
    "Origin",
    "Overlay",
    "Post",
    "ProviderFailed",
    "Recall",
    "Redacted",
    "Reduction",
    "Reductions",
    "Round",
    "RoundClosed",
    "Rounds",
    "SearchableStore",
    "SessionPurged",
    "StaleCompaction",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
    "ToolCall",
    "UnknownReference",
    "UnknownRound",
    "Usage",
    "delete_files",
    "expire",
    "expired",
    "open_store",
]
