"""What strategies and triggers are given, and what comes of it: views of a Memory, and reductions of them published."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from chats import Message

from compactor import View, count_tokens
from compactor.prompt.groups import OVERLAY
from compactor.prompt.token_cache import TokenCache, get_token_cache
from memory import CompactedMessage, Memory, Reduction

__all__ = ["OVERLAY", "TokenCache", "get_token_cache", "messages_of", "reduced", "spans", "view_of"]


def view_of(
    memory: Memory,
    end: int | None = None,
    *,
    role: str = "assistant",
    token_cache: TokenCache | None = None,
    **more: Any,
) -> View:
    """Return what a compactor of *role* sees: with *end*, behind a compaction of the first *end* rounds (none where that
    is 0) in place of the published one."""
    rounds, compaction = memory.get_role_rounds(role)
    if end is not None:
        compaction = CompactedMessage(start_index=1, end_index=end, summary="S.") if end else None
    return View(rounds, compaction, token_cache or get_token_cache(memory, role, count_tokens), **more)


def messages_of(view: View) -> list[Message]:
    """Return the messages of the tail."""
    return [message for place in view.places for _, unit in view.list_groups(place) for message in unit.messages]


def reduced(
    memory: Memory, strategy: Callable[[View], Iterable[Reduction]], *, role: str = "assistant", **more: Any
) -> list[Reduction]:
    """Return what *strategy* gives, each published as it comes."""
    found = []
    for reduction in strategy(view_of(memory, role=role, **more)):
        generation = memory.journal(role).read().generation
        assert memory.journal(role).reduce(reduction, base=generation) is not None, "ignored: it meets another"
        found.append(reduction)
    return found


def spans(reductions: Iterable[Reduction]) -> list[tuple[int, int]]:
    """Return the numbers of the first and the last post of each."""
    return [(one.first_number, one.last_number) for one in reductions]
