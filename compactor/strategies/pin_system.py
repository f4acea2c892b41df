"""System messages within the conversation stay word for word when their rounds are summarised."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memory import Memory
from memory.overlays import Reduction
from memory.reading.references import post_reference

from ..view import View

__all__ = ["pin_system"]

#: Who speaks there for the host.
_SYSTEM = ("system", "developer")


def pin_system() -> Callable[[View], Iterator[Reduction]]:
    """Return the strategy that pins the system messages in the tail's closed rounds; put it before ``compact_rounds``.

    It reduces nothing. Every pin stays in each prompt from then on, so it is not for hosts that add such a message each
    turn: a part of the header (``memory.set_header``) is. Over another host's rounds it does nothing.
    """
    return _PinSystem(None)


class _PinSystem:
    __name__ = "pin_system"

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory

    def for_memory(self, memory: Memory) -> _PinSystem:
        return _PinSystem(memory)

    def __call__(self, view: View) -> Iterator[Reduction]:
        if self._memory is not None:
            for round_ in view.rounds[view.end : view.closed]:
                for post in round_.post_list:
                    if post.send_from in _SYSTEM and post.number not in view.pinned.get(round_.id, ()):
                        self._memory.pin(post_reference(round_, post))
        return iter(())
