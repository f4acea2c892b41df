"""Bundles of trigger, strategies and configuration under the names and defaults that users of other systems know."""

from __future__ import annotations

from .archives import NotAnArchive, archive_of, messages_in
from .auto_context import PLAN_NOTEBOOK_TOOLS, STEPS, PromptConfig, Prompts, auto_context
from .auto_context_memory import AutoContextMemory, NotDeleted
from .compression_events import CompressionEvent
from .context_offload import context_offload
from .memory_with_compress import (
    CompressionFailed,
    MemoryCompressed,
    MemoryCompressionSchema,
    MemoryWithCompress,
    NotAMessage,
    NotCompressed,
    NotKept,
    StateError,
    count_words,
    format_msgs,
    memory_with_compress,
)
from .message_storage import MessageStorage
from .offload_context import OffloadResult, offload_context
from .offload_files import FilesNotErased, OffloadError, OffloadFiles, expire_files
from .selective import selective
from .structured import DEFAULT_COMPRESSION_PROMPT_TEMPLATE

__all__ = [
    "DEFAULT_COMPRESSION_PROMPT_TEMPLATE",
    "PLAN_NOTEBOOK_TOOLS",
    "STEPS",
    "AutoContextMemory",
    "CompressionEvent",
    "CompressionFailed",
    "FilesNotErased",
    "MemoryCompressed",
    "MemoryCompressionSchema",
    "MemoryWithCompress",
    "MessageStorage",
    "NotAMessage",
    "NotAnArchive",
    "NotCompressed",
    "NotDeleted",
    "NotKept",
    "OffloadError",
    "OffloadFiles",
    "OffloadResult",
    "PromptConfig",
    "Prompts",
    "StateError",
    "archive_of",
    "auto_context",
    "context_offload",
    "count_words",
    "expire_files",
    "format_msgs",
    "memory_with_compress",
    "messages_in",
    "offload_context",
    "selective",
]
