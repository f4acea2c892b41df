"""Each test of an adapter has an event loop of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from event_loops import closing_event_loop


@pytest.fixture(autouse=True)
def _event_loop() -> Iterator[None]:
    with closing_event_loop():
        yield
