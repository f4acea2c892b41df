"""The promises of a dispatcher and its jobs, as a pytest class: subclass it in the tests of a queue's adapter."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

from memory import StoreUnreachable

from ..timers import Dispatcher
from .due import Outcome

#: Maximum seconds until a job runs.
_SOON = 30.0
#: Names that queues and databases may stumble over.
_NAMES = ("", "a b", "\0", "\ud800", "\U0001f600", "日本", "%s {} $1", "'; DROP TABLE jobs; --", "../..", "x" * 2_000)


class RecordingWorker:
    """A ``Worker`` that records its calls, and returns or raises each of *outcomes* in turn."""

    def __init__(self, *outcomes: Outcome | Exception) -> None:
        self._outcomes = [*outcomes]
        self._changed = threading.Condition()
        self.calls: list[tuple[str, str, float]] = []
        #: What ``wake_by`` was given.
        self.woken_by: Dispatcher | None = None

    def run(self, session: str, role: str) -> Outcome:
        with self._changed:
            self.calls.append((session, role, time.time()))
            outcome = self._outcomes.pop(0) if self._outcomes else Outcome()
            self._changed.notify_all()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wake_by(self, dispatcher: Dispatcher) -> None:
        self.woken_by = dispatcher

    def sweep(self, _dispatcher: Dispatcher, _limit: int = 0) -> int:
        return 0

    def wait_for(self, is_so: Callable[[list[tuple[str, str, float]]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: is_so(self.calls), _SOON), f"no job came: {len(self.calls)} calls"


class DispatcherContract(ABC):
    """Implement ``run_engine``."""

    @abstractmethod
    def run_engine(self, worker: RecordingWorker) -> AbstractContextManager[Dispatcher]:
        """Return a context manager that gives a dispatcher, and runs its jobs with *worker* until it exits."""

    def test_what_is_due_is_run_with_its_names(self) -> None:
        """A job runs with its session and role, whichever characters they contain."""
        worker = RecordingWorker()
        with self.run_engine(worker) as dispatcher:
            for name in _NAMES:
                dispatcher.due(name, f"role of {name}", None)
            worker.wait_for(lambda calls: {name for name, _, _ in calls} == {*_NAMES})
        assert all(role == f"role of {name}" for name, role, _ in worker.calls)

    def test_the_worker_is_given_a_dispatcher_before_its_first_job(self) -> None:
        """Otherwise jobs that wait for shared limits would run half a minute after there is room."""
        worker = RecordingWorker()
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a")
            worker.wait_for(lambda calls: len(calls) == 1)
            assert worker.woken_by is not None
            worker.woken_by.due("s", "b", datetime.now(UTC))
            worker.wait_for(lambda calls: {role for _, role, _ in calls} == {"a", "b"})

    def test_roles_of_a_session_are_not_mistaken_for_each_other(self) -> None:
        worker = RecordingWorker()
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a")
            dispatcher.due("s", "b")
            worker.wait_for(lambda calls: {role for _, role, _ in calls} == {"a", "b"})

    def test_a_job_does_not_run_before_its_time(self) -> None:
        """A job runs neither before its time nor much later."""
        worker = RecordingWorker()
        at = datetime.now(UTC) + timedelta(seconds=2)
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a", at)
            worker.wait_for(lambda calls: len(calls) == 1)
        assert worker.calls[0][2] >= at.timestamp() - 0.05

    def test_a_job_that_is_due_now_waits_for_no_later_one_of_its_role(self) -> None:
        """It may be that of a killed worker, while another waits out a failure."""
        worker = RecordingWorker()
        now = datetime.now(UTC)
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a", now + timedelta(hours=1))
            dispatcher.due("s", "a", now)
            worker.wait_for(lambda calls: len(calls) == 1)

    def test_what_is_to_be_tried_again_is_run_again(self) -> None:
        """A job is retried at the time that its outcome names."""
        worker = RecordingWorker(Outcome(reason="failed", retry_in=1.0))
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a")
            worker.wait_for(lambda calls: len(calls) == 2)
        assert worker.calls[1][2] - worker.calls[0][2] >= 0.95

    def test_a_job_that_raises_is_tried_again(self) -> None:
        """The store may be reachable by then."""
        worker = RecordingWorker(StoreUnreachable("the server is gone; start it"))
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a")
            worker.wait_for(lambda calls: len(calls) == 2)

    def test_a_job_that_comes_while_another_runs_is_run_after_it(self) -> None:
        """The later job may announce rounds that the running one has not seen."""
        inside, go_on = threading.Event(), threading.Event()

        class Slow(RecordingWorker):
            def run(self, session: str, role: str) -> Outcome:
                outcome = super().run(session, role)
                inside.set()
                go_on.wait(_SOON)
                return outcome

        worker = Slow()
        with self.run_engine(worker) as dispatcher:
            dispatcher.due("s", "a")
            assert inside.wait(_SOON)
            dispatcher.due("s", "a")
            go_on.set()
            worker.wait_for(lambda calls: len(calls) >= 2)
