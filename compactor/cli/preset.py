"""The presets that the command line knows, each under the same pressure: the prompt's budget is its ``max_token``."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ..config import CompactorConfig


class Preset(StrEnum):
    """The name of each is that of the function in ``compactor.presets``."""

    AUTO_CONTEXT = "auto_context"
    SELECTIVE = "selective"
    MEMORY_WITH_COMPRESS = "memory_with_compress"
    CONTEXT_OFFLOAD = "context_offload"


def preset_options(name: str, budget: int, summarizer: object | None = None, model: str = "") -> dict[str, Any]:
    """Return what a compactor with the preset *name* is made with, its tokens counted as *model* counts them."""
    from .. import presets  # no other command waits until they are loaded

    config = CompactorConfig(model=model)
    return dict(getattr(presets, Preset(name))(max_token=budget, summarizer=summarizer, config=config))
