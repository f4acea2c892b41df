"""Threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable


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
