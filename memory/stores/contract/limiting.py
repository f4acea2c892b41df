"""The rows of shared limits."""

from __future__ import annotations

import threading

from ..base import make_key
from ..limiting import LimitRow, LimitRows
from ._samples import NAMES, make_entry, run_together
from .logs import StoreContract


def _make_row(key: str, lane: str = "l", at: float = 1.0, body: str = "", session: str | None = None) -> LimitRow:
    return LimitRow("k", key, lane, at, body, session)


class LimitingStoreContract(StoreContract):
    """For a store whose processes share limits."""

    capability = "limiting"

    def _put(self, *rows: LimitRow) -> None:
        def put(inside: LimitRows) -> None:
            for row in rows:
                inside.put(row)

        self.store.change_limits(put)

    def _list_keys(self) -> list[str]:
        return [row.key for row in self.reopen().change_limits(lambda rows: rows.read(["k"]))]

    def test_what_one_puts_another_reads(self) -> None:
        """Rows come complete, ordered by time and then by key. A new row replaces that of the same kind and key."""
        rows = [
            _make_row("b", at=2.5),
            _make_row("a", at=2.5),
            _make_row("z", at=-1.0),
            _make_row("c", "l 2", 1e10, '{"a": "b\\\\u0000"}'),
        ]
        self._put(*rows, LimitRow("other", "a", "l", 0.0))
        assert self.reopen().change_limits(lambda inside: inside.read(["k"])) == [rows[2], rows[1], rows[0], rows[3]]
        self._put(_make_row("a", "l 2", 0.5, "new"))
        assert self.reopen().change_limits(lambda inside: inside.read(["k"], ["l 2"])) == [
            _make_row("a", "l 2", 0.5, "new"),
            rows[3],
        ]
        assert self.store.change_limits(lambda inside: inside.read(["k"], [])) == []
        assert self.store.change_limits(lambda inside: inside.find("k", "b")) == rows[0]
        assert self.store.change_limits(lambda inside: inside.find("k", "l 2")) is None
        assert self.store.change_limits(lambda inside: inside.read(["none"])) == []
        both = self.store.change_limits(lambda inside: inside.read(["k", "other"], ["l"]))
        assert both == [rows[2], LimitRow("other", "a", "l", 0.0), rows[0]]

    def test_the_first_of_each_lane_is_found(self) -> None:
        """Works for any lane name, such as names that differ only in case."""
        lanes = ["a", "A", "_", "a b", '["x", "\\\\u00e9", ""]', "~"]
        self._put(*(_make_row(f"{lane} {n}", lane, 10.0 - n) for lane in lanes for n in range(3)))
        self._put(_make_row("tie b", "tie", 3.0), _make_row("tie a", "tie", 3.0), LimitRow("other", "x", "b", 0.0))
        found = self.reopen().change_limits(lambda rows: rows.read_firsts("k"))
        assert {row.key for row in found} == {"tie a", *(f"{lane} 2" for lane in lanes)}
        assert self.store.change_limits(lambda rows: rows.read_firsts("none")) == []

    def test_rows_are_counted(self) -> None:
        """Counts all rows of a kind, those of one lane, and those before a time."""
        self._put(*(_make_row(f"{lane}{n}", lane, float(n)) for lane in "ab" for n in range(4)))
        count = self.reopen().change_limits(
            lambda rows: (rows.count("k"), rows.count("k", "a"), rows.count("k", "a", 2.0), rows.count("none"))
        )
        assert count == (8, 4, 2, 0)

    def test_rows_are_dropped_by_key_and_by_time(self) -> None:
        """Works for more than a thousand rows; unknown keys are ignored."""
        self._put(*(_make_row(f"{n}", f"l{n}", float(n)) for n in range(1_100)))
        assert len(self.store.change_limits(lambda rows: rows.read(["k"], {f"l{n}" for n in range(1_050)}))) == 1_050
        self.store.change_limits(lambda rows: rows.drop("k", {*(f"{n}" for n in range(1_090)), "none"}))
        assert self._list_keys() == [f"{n}" for n in range(1_090, 1_100)]
        self.store.change_limits(lambda rows: rows.drop_before("k", 1_098.0))
        self.store.change_limits(lambda rows: rows.drop("k", []))
        assert self._list_keys() == ["1098", "1099"]

    def test_a_change_that_fails_changes_nothing(self) -> None:
        """The caller gets the original error."""

        def fail(rows: LimitRows) -> None:
            rows.put(_make_row("new"))
            rows.drop("k", ["old"])
            raise LookupError("half way")

        self._put(_make_row("old"))
        try:
            self.store.change_limits(fail)
        except LookupError:
            pass
        else:
            raise AssertionError("the original error was not raised")
        assert self._list_keys() == ["old"]

    def test_changes_come_one_after_the_other(self) -> None:
        """Concurrent read-modify-writes lose no update, and the store's clock does not go back."""
        start, times = threading.Barrier(4), list[float]()

        def count(rows: LimitRows) -> float:
            (before,) = rows.read(["k"]) or [_make_row("n", body="0")]
            rows.put(_make_row("n", body=str(int(before.body) + 1)))
            return rows.now

        def add() -> None:
            store = self.reopen()
            start.wait(60)
            times.extend([store.change_limits(count) for _ in range(10)])

        run_together(*[add] * 4)
        (row,) = self.store.change_limits(lambda rows: rows.read(["k"]))
        assert (row.body, len(times)) == ("40", 40)
        assert self.store.change_limits(lambda rows: rows.now) >= max(times)

    def test_purging_a_session_drops_the_rows_that_name_it(self) -> None:
        """Drops no other rows. Works for a session without entries, too."""
        for name in NAMES:
            self._put(
                _make_row(f"of {make_key(name)}", session=make_key(name)),
                _make_row("other", session="other"),
                _make_row("none"),
            )
        self.store.append(NAMES[0], [make_entry()], after=0)
        for name in NAMES:
            self.reopen().purge(name)
        assert self._list_keys() == ["none", "other"]
