"""Summarizers: they write the text of a summary. None imports a model's client before its first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_imports import import_lazily
from .base import Continued, Summarizer, SummarizerError, Summary, SummaryRequest

if TYPE_CHECKING:
    from .answers import as_summarizer
    from .anthropic import AnthropicSummarizer
    from .chat_models import from_chat_model
    from .extractive import ExtractiveSummarizer
    from .gemini import GeminiSummarizer
    from .openai import OpenAISummarizer
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

__all__ = [
    "AnthropicSummarizer",
    "Continued",
    "ExtractiveSummarizer",
    "GeminiSummarizer",
    "OpenAISummarizer",
    "Summarizer",
    "SummarizerError",
    "Summary",
    "SummaryRequest",
    "as_summarizer",
    "from_chat_model",
]
