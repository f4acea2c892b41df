"""Parts of a log, and checkpoints."""

from __future__ import annotations

from ...entries import Entry
from ..base import Checkpoint
from ._samples import NAMES, list_fields, make_entry, make_round
from .logs import StoreContract


class IndexedStoreContract(StoreContract):
    """For a store from which part of a log can be read."""

    capability = "indexed"

    def test_the_rounds_of_a_stretch_are_read_without_the_others(self) -> None:
        """Both ends included, in the order of the log, even if their entries are scattered."""
        rounds = (1, 1, 0, 2, 3, 2, 1, 0, 4, 3, 5)
        written = [make_entry(f"{place}", round=round_) for place, round_ in enumerate(rounds)]
        self.store.append("s", written, after=0)
        self.store.append("t", [make_entry("other", round=2)], after=0)
        for first, last in ((1, 1), (2, 3), (1, 5), (4, 9), (6, 9), (3, 2)):
            found = list(self.reopen().read_rounds("s", first, last))
            assert [one.number for one in found] == [
                place for place, round_ in enumerate(rounds, 1) if first <= round_ <= last
            ]
            assert list(map(list_fields, found)) == [list_fields(written[one.number - 1]) for one in found]
        assert list(self.store.read_rounds("none", 1, 9)) == []

    def test_many_rounds_are_read_in_order(self) -> None:
        """Across the store's pages, and while others append."""
        self.store.append("s", [make_entry(round=place % 7 + 1) for place in range(1_600)], after=0)
        reader = self.store.read_rounds("s", 2, 6)
        found = [next(reader).number]
        self.reopen().append("s", [make_entry(round=9)], after=1_600)
        found += [one.number for one in reader]
        assert found == [place + 1 for place in range(1_600) if 2 <= place % 7 + 1 <= 6]

    def test_a_round_is_found_by_its_id(self) -> None:
        """For any text as an id, and only in its own session."""
        written = [make_round(name, number) for number, name in enumerate(NAMES, 1)]
        self.store.append("s", written, after=0)
        self.store.append("t", [make_entry(), make_round("in t", 7)], after=0)
        for number, name in enumerate(NAMES, 1):
            assert self.reopen().find_round_number("s", name) == number
        assert self.store.find_round_number("t", "in t") == 7
        assert self.store.find_round_number("s", "in t") == 0
        assert self.store.find_round_number("t", NAMES[0]) == 0
        assert self.store.find_round_number("none", "in t") == 0

    def test_a_redacted_entry_stays_with_its_round(self) -> None:
        """It loses its words and nothing else."""
        self.store.append(
            "s", [make_round("r", 1), make_entry("swordfish", round=1), make_entry("c", round=1)], after=0
        )
        self.store.redact("s", 1, make_round("r", 1, "erased").body)
        self.store.redact("s", 2)
        assert self.reopen().find_round_number("s", "r") == 1
        found = list(self.reopen().read_rounds("s", 1, 1))
        assert [(one.number, one.kind) for one in found] == [(1, "round opened"), (2, "redacted"), (3, "round closed")]
        assert [one.number for one in self.store.read_kinds("s", ["round closed"])] == [3]

    def test_entries_are_read_by_their_kinds(self) -> None:
        """In the order of the log, for any number of kinds, unknown ones included."""
        kinds = ("header", "a", "b", "a", "it's", "header", "b")
        self.store.append("s", [Entry(kind, body="{}") for kind in kinds], after=0)
        self.store.append("t", [Entry("a", body="{}")], after=0)
        for asked in (["a"], {"b", "a"}, ("it's", "none"), [], ["none"], {*kinds}):
            found = list(self.reopen().read_kinds("s", asked))
            assert [one.number for one in found] == [place for place, kind in enumerate(kinds, 1) if kind in asked]
        assert list(self.store.read_kinds("none", ["a"])) == []

    def test_the_newest_checkpoint_is_kept(self) -> None:
        """To the letter; one that comes late does not replace a newer one."""
        self.store.append("s", [make_entry() for _ in range(5)], after=0)
        self.store.append("t", [make_entry()], after=0)
        store, other = self.store, self.reopen()
        assert store.get_checkpoint("s") is None
        for number, newest in ((2, 2), (4, 4), (3, 4), (5, 5)):
            other.save_checkpoint("s", Checkpoint(number, f'{{"of": "\\ud800 \\u0000 {number}"}}'))
            assert store.get_checkpoint("s") == Checkpoint(newest, f'{{"of": "\\ud800 \\u0000 {newest}"}}')
        assert store.get_checkpoint("t") is None
        store.redact("s", 1)
        assert other.get_checkpoint("s") is not None

    def test_a_checkpoint_goes_with_its_session(self) -> None:
        """It creates no session, and a session that starts again starts without one."""
        store = self.store
        store.save_checkpoint("s", Checkpoint(1, "{}"))
        assert store.get_checkpoint("s") is None
        store.append("s", [make_round("r", 1)], after=0)
        store.save_checkpoint("s", Checkpoint(1, "{}"))
        store.purge("s")
        store.save_checkpoint("s", Checkpoint(1, "{}"))
        assert (store.get_checkpoint("s"), store.sessions(), store.find_round_number("s", "r")) == (None, [], 0)
        store.append("s", [make_entry()], after=0)
        assert store.get_checkpoint("s") is None
