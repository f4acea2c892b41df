"""Bundles of trigger, strategies and configuration under the names and defaults that users of other systems know."""

from __future__ import annotations

from .auto_context import auto_context
from .auto_context_memory import AutoContextMemory
from .context_offload import context_offload
from .memory_with_compress import MemoryWithCompress, memory_with_compress
from .offload_context import OffloadResult, offload_context
from .offload_files import OffloadError, OffloadFiles, expire_files
from .selective import selective

__all__ = [
    "AutoContextMemory",
    "MemoryWithCompress",
    "OffloadError",
    "OffloadFiles",
    "OffloadResult",
    "auto_context",
    "context_offload",
    "expire_files",
    "memory_with_compress",
    "offload_context",
    "selective",
]
