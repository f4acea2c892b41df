"""TaskWeaver: its memory with the hooks of its compaction, and a compactor for its roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from memory.overlays import CompactedMessage

from ..background import ContextCompactor
from ..config import CompactorConfig
from ..host_rounds import HostRounds

__all__ = ["CompactionMemory", "RoleCompactor"]

Getter = Callable[[], Sequence[Any]]


class RoleCompactor:
    """A role's compactor, which the role registers and starts: ``planner.compactor = RoleCompactor(config, llm_api)``.

    *rounds_getter* returns what the role sees; it may be replaced at any time. *logger* gets the names of events.
    *options* are those of ``ContextCompactor``.
    """

    def __init__(
        self,
        config: CompactorConfig | None = None,
        llm_api: Any = None,
        rounds_getter: Getter = list,
        logger: Callable[[str], object] | None = None,
        llm_alias: str = "",
        **options: Any,
    ) -> None:
        if llm_alias:
            llm_api = SimpleNamespace(chat_completion=partial(llm_api.chat_completion, llm_alias=llm_alias))
        self.rounds_getter = rounds_getter
        rounds_now = lambda: self.rounds_getter()  # noqa: E731, PLW0108  (it may be replaced)
        self.compactor = one = ContextCompactor(config, llm_api, rounds_now, **options)
        if logger is not None:
            one.on_event(lambda event: logger(event.name))
        self.start, self.stop, self.get_compaction = one.start, one.stop, one.get_compaction
        self.notify_rounds_changed = one.notify_rounds_changed

    def compress_rounds(self, rounds: Sequence[Any], *_args: Any, **_options: Any) -> tuple[str | None, list[Any]]:
        """Return the summary, if there is one, and the *rounds* behind it: a role's ``round_compressor``."""
        self.rounds_getter = partial(list, rounds)
        self.start()
        self.notify_rounds_changed()
        found = _anchor(self.get_compaction(), rounds)
        return (found.summary, list(rounds[found.end_index :])) if found else (None, list(rounds))


class CompactionMemory:
    """TaskWeaver's *memory*, with what its roles ask for: ``session.memory = CompactionMemory(session.memory)``."""

    _memory: Any = None  # for copies, which look for names before it is set

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._compaction_providers: dict[str, Any] = {}  # roles look whether they are in it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def create_round(self, user_query: str) -> Any:
        made = self._memory.create_round(user_query)
        for provider in self._compaction_providers.values():
            provider.notify_rounds_changed()
        return made

    def register_compaction_provider(self, role: str, provider: Any, rounds_getter: Getter | None = None) -> None:
        """Take *role*'s compactions from *provider*. Without a getter, a ``RoleCompactor`` reads what *role* sees."""
        if isinstance(provider, RoleCompactor):
            provider.rounds_getter = rounds_getter or partial(self._list_rounds, role)
        elif rounds_getter is not None:
            raise TypeError("rounds_getter= is for a RoleCompactor; give other compactors theirs when you make them")
        self._compaction_providers[role] = provider

    def get_role_rounds_with_compaction(
        self, role: str, include_failure_rounds: bool = False
    ) -> tuple[list[Any], CompactedMessage | None]:
        """Return the rounds that *role* sees, and its compaction; ``end_index`` counts these rounds. It is None also
        while the summary speaks of a round that has failed."""
        provider = self._compaction_providers.get(role)
        compaction = provider.get_compaction() if provider else None  # before the rounds, which may only grow
        rounds = self._memory.get_role_rounds(role, include_failure_rounds)
        return rounds, _anchor(compaction, rounds)

    def _list_rounds(self, role: str) -> list[Any]:
        # TaskWeaver's own raises IndexError where no round is left.
        is_there = any(one.state != "failed" for one in self._memory.conversation.rounds)
        return list(self._memory.get_role_rounds(role)) if is_there else []


def _anchor(compaction: CompactedMessage | None, rounds: Sequence[Any]) -> CompactedMessage | None:
    if not isinstance(compaction, CompactedMessage):
        return compaction  # none, or of a provider that keeps no ids
    if (there := HostRounds(rounds, "")).has_lost(compaction):
        return None
    found = there.anchor(compaction)
    return found if found and found.end_index else None
