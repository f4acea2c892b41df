"""The summarizer that a configuration names, so that a host needs no code for it."""

from __future__ import annotations

import os
from typing import Any

from memory.arguments import ConfigError

from ..config import CompactorConfig
from .base import SummarizerError
from .extractive import ExtractiveSummarizer

#: Settings that say nothing without a model.
_NEEDS_MODEL = ("provider", "base_url", "api_key_env", "provider_compaction")
#: The newest of each settings, for all compactors that have them.
_shared: dict[tuple[object, ...], Any] = {}


def find_summarizer(config: CompactorConfig) -> Any:
    """Return the summarizer that *config* names: one for all compactors with the same settings, and offline if it names
    none. Another one is made once that was closed, or the environment has another key or address.

    Raises ``SummarizerError`` if there is no key, or if the provider's client is not installed, and ``ConfigError`` for
    an address that is none, for a setting without a model, and for a provider's compaction where it has none.
    """
    provider, model = config.summarizer_provider, config.summarizer_model
    if provider == "extractive":
        return ExtractiveSummarizer()
    if not model:
        for name in _NEEDS_MODEL:
            if f"summarizer_{name}" in config.model_fields_set and getattr(config, f"summarizer_{name}"):
                fault = f"is missing: compaction.summarizer.{name} is set; name a model, or remove that"
                raise ConfigError(("compaction.summarizer.model", fault))
        return ExtractiveSummarizer()
    from . import AnthropicSummarizer, GeminiSummarizer, OpenAISummarizer

    kinds: dict[str, Any] = {"openai": OpenAISummarizer, "anthropic": AnthropicSummarizer, "gemini": GeminiSummarizer}
    base_url, api_key_env, timeout = config.summarizer_base_url, config.summarizer_api_key_env, config.call_timeout
    key = os.environ.get(api_key_env, "").strip() if api_key_env else None
    if key == "":
        raise SummarizerError(
            f"no API key: compaction.summarizer.api_key_env names {api_key_env}, which is not set in the environment"
        )
    more = {"provider_compaction": True} if config.summarizer_provider_compaction else {}
    if more and provider == "gemini":
        fault = "is not for gemini; leave it out, or name openai or anthropic"
        raise ConfigError(("compaction.summarizer.provider_compaction", fault))
    try:  # it reads the environment, and connects when it is first asked
        made = kinds[provider](model, base_url=base_url or None, api_key=key, timeout=timeout, **more)
    except ValueError as error:
        raise ConfigError(("compaction.summarizer.base_url", str(error))) from None
    settings = (provider, model, base_url, api_key_env, bool(more), timeout)
    if settings not in _shared or not _shared[settings].can_replace(made):
        _shared[settings] = made
    return _shared[settings]
