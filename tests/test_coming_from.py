"""Whoever comes from another system finds each of its things in a table, and the code beside it does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from coming_from import NO_CODE, NOT_HERE, Row, rows, setups


@pytest.mark.parametrize("row", rows(), ids=str)
def test_code_of_a_row_does_what_the_row_says(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's line of code runs by itself behind its section's setup; a row without one says why."""
    if row.code == NO_CODE:
        assert row.here.startswith(NOT_HERE)
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none-is-needed-on-loopback")
    row.run(setups()[row.section])


def test_each_thing_has_one_row_in_its_section() -> None:
    """Who looks for a name of the other system finds one answer."""
    found = [(row.section, row.there) for row in rows()]
    assert len(found) == len(set(found))
