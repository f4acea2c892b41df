"""The log of a session: its raw rounds, unchanged, and the overlays over them. Imports no other package of ours."""

from __future__ import annotations

from .entries import Entry
from .errors import (
    ArchiveBusy,
    Conflict,
    ContextError,
    EntriesLost,
    HistoryDiverged,
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
from .events import CheckpointFailed, Event, EventHook, HookFailed, ProviderFailed, Redacted, Rewound
from .journal import CompactionRecord, Journal
from .memory import Appended, Conversation, Memory
from .overlays import CompactedMessage, CompactionProvider, JournalState, Note, Origin, Overlay, Reduction, Reductions
from .places import Synced
from .recall import Recall
from .rounds import USER, Attachment, Post, Round, ToolCall
from .search import RECALL_TOOLS, Hit
from .stores import InMemoryStore, SessionRow, Store, delete_files, expire, list_expired, open_store, purge_tenant
from .usage import Usage
from .visibility import Rounds

__all__ = [
    "RECALL_TOOLS",
    "USER",
    "Appended",
    "ArchiveBusy",
    "Attachment",
    "CheckpointFailed",
    "CompactedMessage",
    "CompactionProvider",
    "CompactionRecord",
    "Conflict",
    "ContextError",
    "Conversation",
    "EntriesLost",
    "Entry",
    "Event",
    "EventHook",
    "HistoryDiverged",
    "Hit",
    "HookFailed",
    "InMemoryStore",
    "Journal",
    "JournalState",
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
    "Rewound",
    "Round",
    "RoundClosed",
    "Rounds",
    "SessionPurged",
    "SessionRow",
    "StaleCompaction",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnreachable",
    "Synced",
    "ToolCall",
    "UnknownReference",
    "UnknownRound",
    "Usage",
    "delete_files",
    "expire",
    "list_expired",
    "open_store",
    "purge_tenant",
]
