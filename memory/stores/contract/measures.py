"""The length of logs."""

from __future__ import annotations

from ..base import Extent
from ._samples import NAMES, make_entry, make_round
from .logs import StoreContract


class MeasuredStoreContract(StoreContract):
    """For a store that knows the length of its logs."""

    capability = "measured"

    def test_it_is_known_how_far_a_log_reaches(self) -> None:
        """Its last entry's number and stamp, and the number of the round that was opened last."""
        assert self.store.get_extent("s") is None
        written = [make_entry(), make_round("a", 1), make_entry(round=1), make_round("b", 2), make_entry(round=1)]
        self.store.append("s", written[:1], after=0)
        assert self.reopen().get_extent("s") == Extent(1, written[0].created_at, 0)
        self.store.append("s", written[1:], after=1)
        self.store.append("t", [make_round("c", 9)], after=0)
        assert self.reopen().get_extent("s") == Extent(5, written[4].created_at, 2)
        self.store.redact("s", 4, make_round("b", 2, "erased").body)
        assert self.reopen().get_extent("s") == Extent(5, written[4].created_at, 2)
        self.store.purge("s")
        assert self.reopen().get_extent("s") is None

    def test_how_far_all_logs_reach_is_known_at_once(self) -> None:
        """Of all sessions, with any name."""
        assert self.store.list_extents() == {}
        for number, name in enumerate(NAMES, 1):
            self.store.append(name, [make_round("r", number)], after=0)
        found = self.reopen().list_extents()
        assert {name: one.rounds for name, one in found.items()} == {n: number for number, n in enumerate(NAMES, 1)}
        assert sorted(found) == self.store.sessions()
        assert all(one == self.store.get_extent(name) for name, one in found.items())
