"""Summarizers: they write the text of a summary. None imports a model's client before its first call."""

from .answers import as_summarizer
from .base import Continued, Summarizer, SummarizerError, Summary, SummaryRequest
from .extractive import ExtractiveSummarizer
from .openai import OpenAISummarizer

__all__ = [
    "Continued",
    "ExtractiveSummarizer",
    "OpenAISummarizer",
    "Summarizer",
    "SummarizerError",
    "Summary",
    "SummaryRequest",
    "as_summarizer",
]
