"""Erasing several entries at once."""

from __future__ import annotations

from ._samples import expect_error, make_entry
from .logs import StoreContract


class ErasingStoreContract(StoreContract):
    """For a store that erases several entries at once."""

    capability = "erasing"

    def test_several_entries_are_redacted_at_once(self) -> None:
        """Each to its own body, or to none; the others stay, and so do all ids."""
        written = [make_entry(name) for name in "abcd"]
        self.store.append("s", written, after=0)
        self.store.append("t", [make_entry("other")], after=0)
        changed = make_entry("erased").body
        self.store.redact_all("s", {3: "", 1: changed})
        self.store.redact_all("s", {})
        found = list(self.reopen().read("s"))
        assert [one.body for one in found] == [changed, written[1].body, "{}", written[3].body]
        assert [one.kind == "redacted" for one in found] == [False, False, True, False]
        assert [one.id for one in found] == [one.id for one in written]
        assert len(list(self.store.read("t"))) == 1

    def test_all_are_redacted_or_none(self) -> None:
        """If one of them is missing, nothing is changed."""
        written = [make_entry("a"), make_entry("b")]
        self.store.append("s", written, after=0)
        for session in ("s", "none"):
            with expect_error(KeyError):
                self.store.redact_all(session, {1: "", 3: "", 2: ""})
        assert [one.body for one in self.reopen().read("s")] == [one.body for one in written]
