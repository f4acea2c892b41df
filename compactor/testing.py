"""Test doubles for hosts: a scripted summarizer, a clock that moves only on demand, and the contract of a store.

The contract is a class of pytest tests for authors of stores. Subclass it and implement one method:

    from compactor.testing import DurableStoreContract

    class TestMyStore(DurableStoreContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.path = tmp_path / "log"

        def open(self):
            return MyStore(self.path)

``StoreContract`` is for a store that loses everything on close. Add ``IndexedStoreContract``,
``SearchableStoreContract``, ``LeasingStoreContract``, ``LimitingStoreContract``, ``ErasingStoreContract``,
``MarkingStoreContract``, ``MeasuredStoreContract`` and ``NotifyingStoreContract`` as base classes for the capabilities
that the store has. With ``pytest.register_assert_rewrite("memory.stores.contract")`` in ``conftest.py``, failures show
their values.
"""

from __future__ import annotations

import itertools
import sched
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Self

from memory.rounds import Round
from memory.stores.contract.erasing import ErasingStoreContract
from memory.stores.contract.leases import LeasingStoreContract
from memory.stores.contract.limiting import LimitingStoreContract
from memory.stores.contract.logs import DurableStoreContract, StoreContract
from memory.stores.contract.marks import MarkingStoreContract
from memory.stores.contract.measures import MeasuredStoreContract
from memory.stores.contract.notices import NotifyingStoreContract
from memory.stores.contract.parts import IndexedStoreContract
from memory.stores.contract.texts import SearchableStoreContract

from .integrations.contract import AdapterContract
from .summarizers.base import Summary, SummaryRequest
from .summarizers.content import find_telling_terms

__all__ = [
    "AdapterContract",
    "DurableStoreContract",
    "ErasingStoreContract",
    "FakeClock",
    "IndexedStoreContract",
    "LeasingStoreContract",
    "LimitingStoreContract",
    "MarkingStoreContract",
    "MeasuredStoreContract",
    "NotifyingStoreContract",
    "ScriptedSummarizer",
    "SearchableStoreContract",
    "StoreContract",
    "summarize_by_terms",
]

#: Maximum terms of ``summarize_by_terms`` in all, and new ones per request; characters of conversation per new term.
_MAX_TERMS, _MAX_NEW_TERMS, _CHARACTERS_PER_TERM = 24, 8, 60
_NAMED = " Named: "


def summarize_by_terms(request: SummaryRequest) -> str:
    """Return a short summary that passes the checks: a few terms of the previous summary and of the new rounds."""
    said = [text for round_ in request.rounds for text in _list_texts(round_) if text]
    before = request.previous.summary if request.previous else ""
    known = [*find_telling_terms(before.partition(_NAMED)[2] or before)]
    most = min(_MAX_NEW_TERMS, max(2, sum(map(len, said)) // _CHARACTERS_PER_TERM))
    new = (term for text in said for term in find_telling_terms(text[:10_000]) if term not in known)
    terms = [*known[-(_MAX_TERMS - most) :], *itertools.islice(dict.fromkeys(new), most)]
    return f"Summary of rounds 1-{request.end_index}." + (f"{_NAMED}{', '.join(terms)}." if terms else "")


def _list_texts(round_: Round) -> Iterator[str]:
    yield round_.user_query
    for post in round_.post_list:
        yield post.message
        yield from (attachment.content for attachment in post.attachment_list)
        yield from (f"{call.name} {call.arguments}" for call in post.tool_calls)


ScriptedAnswer = str | Summary | BaseException | Callable[[SummaryRequest], "str | Summary"]


class ScriptedSummarizer:
    """Returns *answers* in turn (texts, exceptions to raise, or functions of the request), then *default*.

    None stands for the answer of ``summarize_by_terms``, which passes every check.

    It records every request and the maximum number of concurrent calls. After ``hold()``, calls block until
    ``release()``; ``started`` is set once a call has begun.
    """

    def __init__(self, answers: Iterable[ScriptedAnswer] = (), *, default: ScriptedAnswer | None = None) -> None:
        self._answers = iter(tuple(answers))
        self._default = default
        self._lock = threading.Lock()  # guards the counters and the script
        self._gate = threading.Event()
        self._gate.set()
        #: Set once a call has begun.
        self.started = threading.Event()
        self.requests: list[SummaryRequest] = []
        self.in_flight = 0
        self.most_in_flight = 0

    def __call__(self, request: SummaryRequest) -> str | Summary:
        with self._lock:
            self.requests.append(request)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            answer = next(self._answers, self._default)
        self.started.set()
        try:
            self._gate.wait()
            if isinstance(answer, BaseException):
                raise answer
            if answer is None:
                return summarize_by_terms(request)
            return answer(request) if callable(answer) else answer
        finally:
            with self._lock:
                self.in_flight -= 1

    def hold(self) -> Self:
        """Block calls from now on; no effect if they are blocked already."""
        if self._gate.is_set():
            self.started.clear()
            self._gate.clear()
        return self

    def release(self) -> None:
        """Unblock waiting and later calls."""
        self._gate.set()

    def __enter__(self) -> Self:
        return self.hold()

    def __exit__(self, *_exc: object) -> None:
        self.release()


class FakeClock:
    """A ``Clock`` that moves only by ``advance``, which makes due calls in order, in the caller's thread."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._calls = sched.scheduler(lambda: self._elapsed)

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        call = self._calls.enter(seconds, 0, callback)

        def cancel() -> None:
            with suppress(ValueError):  # it was made, or cancelled
                self._calls.cancel(call)

        return cancel

    @property
    def pending(self) -> list[float]:
        """Seconds until each pending call, the next one first."""
        return [call.time - self._elapsed for call in self._calls.queue]

    def advance(self, seconds: float) -> None:
        """Move the clock by *seconds*, and make the calls that fall due."""
        if seconds < 0:
            raise ValueError(f"time does not go back, by {-seconds:g} seconds")
        until = self._elapsed + seconds
        while (calls := self._calls.queue) and calls[0].time <= until:
            self._elapsed = max(self._elapsed, calls[0].time)
            self._calls.run(blocking=False)
        self._elapsed = until
