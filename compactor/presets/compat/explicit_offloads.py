"""Messages that a host takes out of the conversation by itself, and keeps under an id of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memory import Memory
from memory.errors import MessageError
from memory.messages import parse
from memory.rounds import Round, freeze, thaw

from ...prompt.groups import Message

#: What an offload is kept under, in the ``extra`` of a round of its own.
_REF_ID, _MESSAGES = "ref_id", "messages"


class ExplicitOffloads:
    """Messages by id, in the log of a Memory that has no other use: none is overwritten, whoever else writes to it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __iter__(self) -> Iterator[str]:
        """Give the ids of what is kept now, oldest first."""
        return (round_.extra[_REF_ID] for round_ in self._memory.rounds_getter("")() if _REF_ID in round_.extra)

    def keep(self, ref_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Keep *messages* under *ref_id*; nothing happens where they are there already.

        Raises ``MessageError`` where others are, which stay, and for what is not a chat message.
        """
        if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
            raise MessageError(f"an offload is a list of chat messages, not {type(messages).__name__}")
        given = list(messages)
        for message in given:
            parse(message)
        kept = freeze(given)
        while True:
            round_id, present = self._place(ref_id)
            if present is not None:
                if present.extra[_MESSAGES] == kept:
                    return
                raise MessageError("other messages are offloaded under this id; clear() it first, or use another id")
            try:
                made = self._memory.create_round("", id=round_id, extra={_REF_ID: ref_id, _MESSAGES: kept})
            except MessageError:  # another process was faster, and what it wrote is known now
                if self._place(ref_id)[1] is None:
                    raise
            else:
                self._memory.finish_round(made)
                return

    def get(self, ref_id: str) -> list[Message] | None:
        """Return the messages under *ref_id*; None where there are none."""
        found = self._find(ref_id)
        return thaw(found.extra[_MESSAGES]) if found is not None else None

    def clear(self, ref_id: str) -> None:
        """Hide what is under *ref_id*, if anything is; the id may be used again."""
        found = self._find(ref_id)
        if found is not None:
            self._memory.finish_round(found, state="failed")

    def _find(self, ref_id: object) -> Round | None:
        return self._place(ref_id)[1] if isinstance(ref_id, str) else None

    def _place(self, ref_id: str) -> tuple[str, Round | None]:
        """Return the round where messages of that id are, or would be, and what is there.

        What was cleared stays in its place, so an id may have had several.
        """
        place = 1
        while True:
            round_id = json.dumps([ref_id, place])
            found = self._memory.snapshot.round(round_id)
            if found is None or found.state != "failed":
                return round_id, found
            place += 1
