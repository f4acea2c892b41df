"""Threads that start together, and what they do that nobody is told of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from executors import SOON


def at_once(*works: Callable[[], object]) -> None:
    """Run *works* in threads that start together; raise what any of them raised."""
    start, faults = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until *is_so*; for what no event tells, such as that a thread waits itself."""
    event, until = threading.Event(), time.monotonic() + SOON
    while not is_so():
        assert time.monotonic() < until
        event.wait(0.001)
