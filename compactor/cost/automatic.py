"""The trigger of a compactor without settings: it finds prices, budget and the length of notes itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields

from memory.arguments import ConfigError

from ..config import CompactorConfig
from ..tokens import DEFAULT_WINDOW, window_of
from ..triggers import Bounds, Verdict, default_trigger
from ..view import View
from .cost_optimal import USABLE, CostOptimal
from .prices import Prices

#: Settings that ask for the configuration's own rule: a number of rounds, and a number of retained ones.
RULE = frozenset({"threshold", "retain_recent", "token_ratio"})
#: Share of the budget for rounds at which a compaction is due at the latest.
USED = 0.95
#: Share of the budget for rounds that notes may take; its minimum and maximum in tokens; the maximum assumed tokens of
#: the first notes.
TARGET_SHARE, MIN_TARGET, MAX_TARGET, FIRST_SUMMARY = 0.2, 600, 4_000, 500
#: Maximum tokens of a request to the summarizer.
MAX_INPUT = 100_000


class Automatic(CostOptimal):
    """The trigger of a compactor with no settings but its summarizer.

    It is cost-optimal by the prices of the models in use, and it completes the configuration: only the open round is
    retained, and the length of notes follows from the prompt budget that the system messages leave. Until a budget is
    known, the configuration's rule decides; or, if the session resumes from a compaction, the model's window, because a
    restart is no reason for the next compaction.
    """

    def __init__(self, model: str) -> None:
        super().__init__(Prices())
        self.name = f"automatic({model!r})"
        self._model = model
        self._given, self._rule = self._config, default_trigger(self._config)
        #: The agent's model at the last price lookup, and the models that the prices belong to.
        self._agent: str | None = None
        self._price_source = ""
        #: The budget that completed the configuration, and its part for rounds.
        self._sizes: tuple[int, int] | None = None
        #: Whether there was a compaction at the first evaluation.
        self._is_resumed: bool | None = None

    def within(self, config: CompactorConfig) -> Automatic:
        trigger = super().within(config)
        trigger.config = trigger._agent = trigger._sizes = trigger._is_resumed = None
        trigger._given, trigger._rule = config, default_trigger(config)
        return trigger

    @property
    def _first_summary(self) -> int:
        return min(super()._first_summary, FIRST_SUMMARY)

    def _weigh(self, view: View) -> Verdict:
        limits = view.token_cache.prompt_limits
        budget = max(limits.budgets, default=self._given.max_tokens)
        if self._is_resumed is None:
            self._is_resumed = view.compaction is not None
        if budget is None and not self._is_resumed:
            return self._rule.verdict(view)
        if self._agent is None or limits.model not in ("", self._agent):
            self._agent = limits.model or self._given.model or self._model
            self.prices, self._price_source = find_prices(self._agent, self._model)
        budget = budget or int(USABLE * (window_of(self._model) or DEFAULT_WINDOW))
        left = max(budget - view.header_tokens, 1)
        if self._sizes != (budget, left):
            self.budget, self._sizes = max(int(budget - (1 - USED) * left), 1), (budget, left)
            self.config = self._config = complete_config(self._given, left, self._model)
        return super()._weigh(view)

    def _may_be_due(self, bounds: Bounds) -> bool:
        asks_rule = self._is_resumed is False and self._sizes is None  # a new budget is evaluated anyway
        return self._rule.may_be_due(bounds) if asks_rule else super()._may_be_due(bounds)

    def _is_likely_due(self, bounds: Bounds) -> bool:
        return self._sizes is not None and super()._is_likely_due(bounds)

    def describe(self, config: CompactorConfig) -> list[str]:
        if self._sizes is None or self.config is None:
            return [
                "Budget: unknown until compose is called. Then it compacts when that costs least.",
                *self._rule.describe(config),
            ]
        source = f"of {self._price_source}" if self._price_source else f"defaults; those of {self._model} are unknown"
        named = [(one.name.replace("_", " "), getattr(self.prices, one.name)) for one in fields(self.prices)]
        prices = ", ".join(f"{name} {price:.3g}" for name, price in named if name != "per token")
        budget, left = self._sizes
        return [
            f"Budget: {budget:,} tokens, of which system messages and tools leave {left:,}.",
            f"Prices: {source}, relative to an input token: {prices}.",
            *super().describe(self.config),
        ]


def complete_config(config: CompactorConfig, budget: int, model: str) -> CompactorConfig:
    """Return *config* completed for rounds of *budget* tokens in a prompt, and a summarizer that asks *model*."""
    target = min(max(int(TARGET_SHARE * budget), MIN_TARGET), MAX_TARGET, max(budget // 3, 1))
    max_input = min((window_of(model) or DEFAULT_WINDOW) // 2, MAX_INPUT)
    return config.with_defaults(retain_recent=1, target_tokens=target, summarizer_input_tokens=max_input)


def find_prices(agent: str, summarizer: str) -> tuple[Prices, str]:
    """Return the prices for both models, and the models they belong to.

    An unknown model takes the other's prices; if both are unknown, the defaults.
    """
    for one, other in ((agent, summarizer), (summarizer, summarizer), (agent, agent)):
        with suppress(ConfigError):
            return Prices.of_model(one, summarizer=other), " and ".join(dict.fromkeys((one, other)))
    return Prices(), ""
