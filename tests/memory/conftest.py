"""What tests of stores get: a database of either kind, and where a file of SQLite's is."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_stores import QUICK, sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else sqlite_url(tmp_path, QUICK)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of ``sqlite_url(tmp_path)`` is."""
    return tmp_path / "chat.db"
