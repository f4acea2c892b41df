"""Bundles of trigger, strategies and configuration under the names and defaults that users of other systems know."""

from __future__ import annotations

from .auto_context import PLAN_NOTEBOOK_TOOLS, STEPS, PromptConfig, Prompts, auto_context
from .compat.auto_context_memory import AutoContextMemory, CompressionEvent, NotDeleted
from .compat.memory_with_compress import (
    CompressionFailed,
    MemoryCompressed,
    MemoryWithCompress,
    MessageStorage,
    NotCompressed,
    NotKept,
    count_words,
)
from .compat.messages import NotAMessage, NotAnArchive, format_msgs, make_archive, read_archive
from .compat.offload_context import OffloadResult, offload_context
from .compat.offload_files import FilesNotErased, OffloadError, OffloadFiles, expire_files
from .compat.window import StateError
from .context_offload import context_offload
from .memory_with_compress import DEFAULT_COMPRESSION_PROMPT_TEMPLATE, MemoryCompressionSchema, memory_with_compress
from .selective import SELECTIVE_RULES, selective

__all__ = [
    "DEFAULT_COMPRESSION_PROMPT_TEMPLATE",
    "PLAN_NOTEBOOK_TOOLS",
    "SELECTIVE_RULES",
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
    "auto_context",
    "context_offload",
    "count_words",
    "expire_files",
    "format_msgs",
    "make_archive",
    "memory_with_compress",
    "offload_context",
    "read_archive",
    "selective",
]
