"""Users of another system find each of its features in a table, with a line of code that proves its counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest
from coming_from import NO_CODE, NOT_HERE, Row, rows, setups
from fenced import Block

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("row", rows(), ids=str)
def test_code_of_a_row_does_what_the_row_says(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's line of code runs by itself behind its page's setup; a row without one says why."""
    if row.code == NO_CODE:
        assert row.here.startswith(NOT_HERE)
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none-is-needed-on-loopback")
    row.run(setups()[row.page])


@pytest.mark.parametrize(
    "code",
    [
        "print('done') is None",
        "made = dict(); assert made.clear() is None",
        "all(one > 0 for one in [one for one in range(0)])",
        "isinstance(Row('', 0, '', '', ''), Row)",
        "isinstance(Row('', 0, '', '', '').there, str) and 1 + 1 == 2",
    ],
)
def test_a_row_that_cannot_fail_is_refused(code: str) -> None:
    """It would prove nothing: a line of code shows an effect."""
    with pytest.raises(AssertionError, match="cannot fail"):
        Row("", 1, "it", "it", f"`{code}`").run(Block("", 1, "python", "", ""))


def test_each_thing_has_one_row_on_its_page() -> None:
    """Who looks for a name of the other system finds one answer."""
    found = [(row.page, row.there) for row in rows()]
    assert len(found) == len(set(found))
