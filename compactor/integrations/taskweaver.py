"""TaskWeaver: adds compaction hooks to its memory, and a compactor for its roles."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from memory.overlays import CompactedMessage

from ..background import ContextCompactor
from ..config import CompactorConfig
from ..host_rounds import HostRounds
from .base import report_errors

__all__ = ["CompactionMemory", "RoleCompactor"]


class RoleCompactor(ContextCompactor):
    """A role's compactor, which the role registers and starts: ``planner.compactor = RoleCompactor(config, llm_api)``.

    *config* may be TaskWeaver's, *rounds_getter* be replaced, and ``llm_alias`` and ``logger`` be among *options*.
    """

    def __init__(self, config: Any = None, llm_api: Any = None, rounds_getter: Any = list, **options: Any) -> None:
        own = config if isinstance(config, CompactorConfig | None) else CompactorConfig(**vars(config))
        if llm_alias := options.pop("llm_alias", ""):
            llm_api = SimpleNamespace(chat_completion=partial(llm_api.chat_completion, llm_alias=llm_alias))
        if (logger := options.pop("logger", None)) is not None:
            options["on_event"] = lambda event: logger(f"{event.name} {event.facts()}")
        super().__init__(own, llm_api, lambda: self.rounds_getter(), **options)  # noqa: PLW0108  (it is replaced)
        self.rounds_getter = rounds_getter

    def compress_rounds(self, rounds: list[Any], *_args: Any, **_options: Any) -> tuple[str | None, list[Any]]:
        """Return the summary, if any, and the *rounds* after it, as a role's ``round_compressor`` does."""
        self.rounds_getter = partial(list, rounds)
        self.start()
        self.notify_rounds_changed()
        found = HostRounds(rounds, "").find_valid(self.get_compaction())
        return (found.summary, list(rounds[found.end_index :])) if found else (None, list(rounds))


class CompactionMemory:
    """TaskWeaver's *memory* with its roles' hooks: ``session.memory = CompactionMemory(session.memory)``."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._compaction_providers: dict[str, Any] = {}  # roles check whether they are registered

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("_memory"), name)  # copying looks up names before it is set

    def create_round(self, user_query: str) -> Any:
        round_ = self._memory.create_round(user_query)
        for role, provider in self._compaction_providers.copy().items():  # a role on another thread may register
            with report_errors("provider.not_notified", role=role):  # the round exists already
                provider.notify_rounds_changed()
        return round_

    def register_compaction_provider(self, role: str, provider: Any, rounds_getter: Any = None) -> None:
        """Take *role*'s compactions from *provider*. A ``RoleCompactor`` without a getter reads what *role* sees."""
        if isinstance(provider, RoleCompactor):
            own = provider.rounds_getter if provider.rounds_getter is not list else partial(self._list_rounds, role)
            provider.rounds_getter = rounds_getter or own
        elif rounds_getter is not None:
            raise TypeError("rounds_getter= is for a RoleCompactor; give other compactors theirs when you make them")
        self._compaction_providers[role] = provider

    def get_role_rounds_with_compaction(self, role: str, include_failure_rounds: bool = False) -> tuple[list[Any], Any]:
        """Return the rounds that *role* sees, and its compaction, whose ``end_index`` counts these rounds; None while
        it covers a failed one."""
        provider = self._compaction_providers.get(role)
        compaction = provider.get_compaction() if provider else None  # before the rounds, which may only grow
        rounds = self._memory.get_role_rounds(role, include_failure_rounds)
        is_ours = isinstance(compaction, CompactedMessage)  # other providers keep no round ids
        return rounds, HostRounds(rounds, "").find_valid(compaction) if is_ours else compaction

    def _list_rounds(self, role: str) -> HostRounds:
        return HostRounds([one for one in self._memory.conversation.rounds if one.state != "failed"], role)
