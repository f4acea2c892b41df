"""Summarizers: they write the text of a summary. None imports a model's client before its first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_imports import import_lazily
from .base import ContinuedPrompt as ContinuedPrompt
from .base import Summarizer as Summarizer
from .base import SummarizerError as SummarizerError
from .base import Summary as Summary
from .base import SummaryRequest as SummaryRequest

if TYPE_CHECKING:
    from .answers import as_summarizer as as_summarizer
    from .anthropic import AnthropicSummarizer as AnthropicSummarizer
    from .chat_models import from_chat_model as from_chat_model
    from .extractive import ExtractiveSummarizer as ExtractiveSummarizer
    from .gemini import GeminiSummarizer as GeminiSummarizer
    from .openai import OpenAISummarizer as OpenAISummarizer
else:
    _LAZY_NAMES = {
        "answers": "as_summarizer",
        "anthropic": "AnthropicSummarizer",
        "chat_models": "from_chat_model",
        "extractive": "ExtractiveSummarizer",
        "gemini": "GeminiSummarizer",
        "openai": "OpenAISummarizer",
    }
    __getattr__, __dir__ = import_lazily(__name__, _LAZY_NAMES)
