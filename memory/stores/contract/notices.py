"""Notices of what was published."""

from __future__ import annotations

import threading

from ...entries import CompactionPublished, Entry
from ...overlays import CompactedMessage
from ._samples import NAMES, make_entry
from .logs import StoreContract

_SOON = 30.0


class NotifyingStoreContract(StoreContract):
    """For a store that tells a process of what another publishes."""

    capability = "notifying"

    def _publish(self, name: str) -> None:
        made = CompactedMessage(start_index=1, end_index=1, summary="s", generation=1)
        record = CompactionPublished(role="r", compaction=made, round_ids=("r",))
        extent = self.store.get_extent(name)
        self.store.append(name, [Entry.of(record)], extent.number if extent is not None else 0)

    def test_a_publication_is_heard_of(self) -> None:
        """In its session alone, under any name, until nobody listens."""
        listening, other = self.reopen(), threading.Event()
        heard = {name: threading.Event() for name in NAMES}
        ends = [listening.listen(name, event.set) for name, event in heard.items()]
        ends.append(listening.listen("another", other.set))
        for event in (*heard.values(), other):
            assert event.wait(_SOON), "all are called once, when it begins"
            event.clear()
        for name, event in heard.items():
            self._publish(name)
            assert event.wait(_SOON), name
        assert not other.is_set()
        for end in ends:
            end()
            end()
        heard[NAMES[0]].clear()
        self._publish(NAMES[0])
        again = threading.Event()
        listening.listen(NAMES[1], again.set)
        self._publish(NAMES[1])
        assert again.wait(_SOON)
        assert not heard[NAMES[0]].is_set()

    def test_what_is_only_said_makes_no_notice(self) -> None:
        """There is too much of that, and hosts write it themselves."""
        began, heard = threading.Event(), list[int]()
        listening = self.reopen()

        def listen() -> None:
            heard.append(1)
            began.set()

        listening.listen("s", listen)
        assert began.wait(_SOON)
        before = len(heard)
        self.store.append("s", [make_entry()], 0)
        told = threading.Event()
        listening.listen("t", told.set)
        self._publish("t")
        assert told.wait(_SOON)
        assert len(heard) == before
