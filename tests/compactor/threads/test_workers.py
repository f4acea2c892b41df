"""The compactor's own thread: jobs in order, one at a time, and an end when nobody needs it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
from scene import SOON, PanicException

from compactor import DaemonExecutor

pytestmark = pytest.mark.timeout(30)


def ended(name: str) -> bool:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(SOON)
    return name not in [thread.name for thread in threading.enumerate()]


def test_jobs_run_in_order_on_one_daemon_thread_of_that_name() -> None:
    """It starts with the first job."""
    seen: list[tuple[int, str, bool]] = []

    def job(number: int) -> Callable[[], None]:
        def run() -> None:
            thread = threading.current_thread()
            seen.append((number, thread.name, thread.daemon))

        return run

    worker = DaemonExecutor(1, "in-order")
    assert ended("in-order"), "none yet"
    for number in range(5):
        worker.submit(job(number))
    worker.shutdown(wait=False)
    assert worker.join(SOON)
    assert seen == [(number, "in-order", True) for number in range(5)]


def test_a_thread_without_a_job_ends_and_the_next_job_starts_another() -> None:
    """And no job is lost between the two, whenever it comes."""
    names: list[str] = []
    worker = DaemonExecutor(2, "resting", idle_seconds=0.0)
    for _ in range(200):
        worker.submit(lambda: names.append(threading.current_thread().name)).result(SOON)
    assert names == ["resting"] * 200
    assert ended("resting")
    assert worker.submit(lambda: 17).result(SOON) == 17
    worker.shutdown()
    assert ended("resting")


def test_a_job_never_waits_behind_another_while_a_thread_may_start() -> None:
    """However many threads have ended before."""
    worker, gate = DaemonExecutor(3, "spare", idle_seconds=0.0), threading.Barrier(3)
    for _ in range(20):
        for future in [worker.submit(gate.wait, SOON) for _ in range(3)]:
            future.result(SOON)
    worker.shutdown()


def test_closing_lets_it_finish_what_it_was_given() -> None:
    """And takes no time."""
    gate, done = threading.Event(), threading.Event()
    worker = DaemonExecutor(1, "closing")
    worker.submit(lambda: gate.wait(SOON))
    worker.submit(done.set)
    worker.shutdown(wait=False)
    assert worker.join(0.01) is False
    gate.set()
    assert worker.join(SOON)
    assert done.is_set()


def test_joining_what_never_started_or_from_within_does_not_wait() -> None:
    """One cannot wait for oneself."""
    worker = DaemonExecutor(1, "within")
    assert worker.join(None) is True
    results: list[bool] = []
    worker.submit(lambda: results.append(worker.join(None)))
    worker.shutdown(wait=False)
    assert worker.join(SOON)
    assert results == [False]


@pytest.mark.parametrize("error", [ValueError("x"), PanicException(), SystemExit(), KeyboardInterrupt()], ids=repr)
def test_a_job_that_raises_does_not_end_the_thread(error: BaseException) -> None:
    """Its future tells it, and the next job runs."""
    done = threading.Event()

    def raising() -> None:
        raise error

    worker = DaemonExecutor(1, "raising")
    told = worker.submit(raising)
    worker.submit(done.set)
    worker.shutdown(wait=False)
    assert worker.join(SOON)
    assert done.is_set()
    assert told.exception() is error


@pytest.mark.slow
def test_a_dropped_worker_takes_its_thread_along() -> None:
    """A compactor that nobody stopped leaks none."""
    done = threading.Event()
    worker = DaemonExecutor(1, "forgotten")
    worker.submit(done.set)
    assert done.wait(SOON)
    del worker
    gc.collect()
    assert ended("forgotten")


def test_it_holds_on_to_nothing_while_it_waits() -> None:
    """Nothing of the last job: it may be a compactor."""

    class Job:
        def __call__(self) -> None:
            pass

    job, freed = Job(), threading.Event()
    weakref.finalize(job, freed.set)
    worker = DaemonExecutor(1, "holder")
    worker.submit(job)
    del job
    assert freed.wait(SOON)
    worker.shutdown(wait=False)
    assert worker.join(SOON)


def test_a_thread_that_cannot_start_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told; once it can, the next one is taken."""
    worker, done = DaemonExecutor(1, "refused"), threading.Event()
    with monkeypatch.context() as patched:

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            worker.submit(lambda: pytest.fail("was refused"))
    worker.submit(done.set)
    worker.shutdown(wait=False)
    assert worker.join(SOON)
    assert done.is_set()


@pytest.mark.slow
def test_the_interpreter_is_exiting_once_its_exit_handlers_run() -> None:
    """Before modules are taken apart."""
    code = "import atexit; from compactor.timers import interpreter_is_exiting as it; print(it());"
    order = "import compactor.timers; atexit._run_exitfuncs(); print(it())"
    told = subprocess.run([sys.executable, "-c", code + order], capture_output=True, text=True, check=True)
    assert told.stdout == "False\nTrue\n"
