"""The presets that the command line knows, each under the same pressure: the prompt's budget is its ``max_token``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from ..presets import auto_context, context_offload, memory_with_compress, selective

__all__ = ["Preset", "preset_options"]


class Preset(StrEnum):
    AUTO_CONTEXT = "auto_context"
    SELECTIVE = "selective"
    MEMORY_WITH_COMPRESS = "memory_with_compress"
    CONTEXT_OFFLOAD = "context_offload"


_MAKE: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    Preset.AUTO_CONTEXT: auto_context,
    Preset.SELECTIVE: selective,
    Preset.MEMORY_WITH_COMPRESS: memory_with_compress,
    Preset.CONTEXT_OFFLOAD: context_offload,
}


def preset_options(name: str, budget: int, summarizer: object | None = None, model: str = "") -> dict[str, Any]:
    """Return what a compactor with the preset *name* is made with, its tokens counted as *model* counts them."""
    options = dict(_MAKE[name](max_token=budget, summarizer=summarizer))
    if model:
        options["config"] = options["config"].merged(model=model)
    return options
