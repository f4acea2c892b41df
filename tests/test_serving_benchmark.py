"""The benchmark of a server measures what it says, at a size that takes little time."""

from __future__ import annotations

import pytest

from benchmarks import serving

pytestmark = pytest.mark.slow


def test_the_table_has_threads_memory_stalls_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Sessions add no threads, and hung calls are waited for together."""
    serving.main(["--sessions", "30", "--turns", "100", "--calls", "8"])
    lines = capsys.readouterr().out.splitlines()
    rows = {name.strip(): value.strip() for name, value in (line.strip("|").split("|") for line in lines[2:])}
    assert len(rows) == 9
    assert int(rows["threads with 30 open sessions"]) <= 12
    assert 5 <= float(rows["`aclose(5)` with 8 calls that hang"].split()[0]) < 30
