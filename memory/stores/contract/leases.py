"""Leases."""

from __future__ import annotations

import threading

from ...errors import StoreError
from ._samples import NAMES, make_entry, run_together
from .logs import StoreContract


class LeasingStoreContract(StoreContract):
    """For a store that gives leases. No test waits for one to expire: one for no time at all has expired at once."""

    capability = "leasing"

    def test_a_lease_is_held_by_one(self) -> None:
        """The other is told how long that lasts, and nothing more."""
        assert self.store.lease("s", "compact:a", "one", 60) == 0.0
        assert 0 < self.reopen().lease("s", "compact:a", "two", 900) <= 60
        assert 0 < self.store.lease("s", "compact:a", "two", 0) <= 60

    def test_a_lease_is_renewed_by_its_holder(self) -> None:
        """For longer or shorter; the time counts from the renewal."""
        one, two = self.store, self.reopen()
        one.lease("s", "n", "one", 60)
        assert one.lease("s", "n", "one", 900) == 0.0
        assert 60 < two.lease("s", "n", "two", 60) <= 900
        assert two.lease("s", "n", "one", 30) == 0.0
        assert 0 < two.lease("s", "n", "two", 60) <= 30

    def test_an_expired_lease_is_taken_by_the_next(self) -> None:
        """The one who held it is then told to wait, and may not give it back."""
        one, two = self.store, self.reopen()
        for seconds in (0, 0.0, -5):
            assert one.lease("s", "n", "one", seconds) == 0.0
            assert two.lease("s", "n", "two", 60) == 0.0
            assert 0 < one.lease("s", "n", "one", 60) <= 60
            one.release("s", "n", "one")
            assert 0 < one.lease("s", "n", "one", 60) <= 60
            two.release("s", "n", "two")

    def test_a_lease_may_be_taken_over(self) -> None:
        """By a caller who knows that its holder is dead; a holder who is alive waits, and takes nothing back."""
        one, two = self.store, self.reopen()
        one.lease("s", "n", "one", 900)
        assert two.lease("s", "n", "two", 60, take_over=True) == 0.0
        assert 0 < one.lease("s", "n", "one", 900) <= 60
        one.release("s", "n", "one")
        assert one.lease("s", "n", "one", 900) > 0
        assert two.lease("s", "other", "two", 60, take_over=True) == 0.0

    def test_a_released_lease_is_free(self) -> None:
        """At once. Giving back a lease of another holder is no error, and changes nothing."""
        one, two = self.store, self.reopen()
        one.release("s", "n", "one")
        one.lease("s", "n", "one", 60)
        two.release("s", "n", "two")
        assert two.lease("s", "n", "two", 60) > 0
        one.release("s", "n", "one")
        one.release("s", "n", "one")
        assert two.lease("s", "n", "two", 60) == 0.0

    def test_a_session_is_evicted_by_the_holder_of_a_lease(self) -> None:
        """Though it has expired, unless another has taken it since; an empty holder has none. Or the store evicts
        nothing."""
        one, two = self.store, self.reopen()
        entry = make_entry()
        one.append("s", [entry], 0)
        one.lease("s", "n", "one", 0)
        try:
            evicted = [
                one.evict("s", 1, entry.id, lease_name=name, holder=holder)
                for name, holder in (("n", "two"), ("other", "one"), ("n", ""), ("other", ""))
            ]
        except StoreError:
            assert [found.id for found in two.read("s")] == [entry.id]
            return
        two.lease("s", "n", "two", 0)
        assert not any([*evicted, one.evict("s", 1, entry.id, lease_name="n", holder="one")])
        assert [found.id for found in two.read("s")] == [entry.id]
        assert not one.evict("s", 2, entry.id, lease_name="n", holder="two")
        assert one.evict("s", 1, entry.id, lease_name="n", holder="two")
        assert one.sessions() == []

    def test_leases_of_other_names_and_sessions_are_others(self) -> None:
        """For any text as a name."""
        one, two = self.store, self.reopen()
        for name in NAMES:
            assert one.lease(name, "n", "one", 60) == one.lease("s", name, f"one {name}", 60) == 0.0
        for name in NAMES:
            assert two.lease(name, "n", "two", 60) > 0
            assert two.lease("s", name, "two", 60) > 0
            two.release("s", name, f"one {name}")
            assert two.lease("s", name, "two", 60) == 0.0

    def test_a_lease_is_no_session(self) -> None:
        """It makes none, needs none, and is no entry."""
        self.store.lease("s", "n", "one", 60)
        assert self.store.sessions() == []
        assert self.store.append("s", [make_entry()], after=0) == 1

    def test_of_many_that_ask_at_once_one_gets_it(self) -> None:
        """And all others are told to wait."""
        start, waits = threading.Barrier(4), []

        def ask() -> None:
            store, holder = self.reopen(), f"{threading.get_ident()}"
            for number in range(10):
                start.wait(60)
                waits.append((number, store.lease("s", f"{number}", holder, 60)))

        run_together(*[ask] * 4)
        assert sorted(number for number, wait in waits if wait == 0.0) == list(range(10))
        assert all(0 < wait <= 60 for _, wait in waits if wait)
