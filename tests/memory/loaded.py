"""Threads that write and compose while a server fails, and what was acknowledged to them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from executors import SOON
from sql_stores import log_of

from compactor import compose
from memory import Memory, Store, StoreUnreachable

__all__ = ["Host", "run_under"]


@dataclass
class Host:
    """Writes to a session until it is stopped. A question that was not acknowledged is not repeated."""

    name: str
    session: str
    #: Questions that were acknowledged.
    said: list[str] = field(default_factory=list)
    raised: list[Exception] = field(default_factory=list)
    #: Seconds of the longest turn.
    longest: float = 0.0

    def run(self, store: Store, stopped: threading.Event, told: Callable[[], None]) -> None:
        memory = Memory(self.session, store=store)
        number = 0
        while not stopped.is_set():
            number += 1
            text = f"{self.name} asks {number}."
            began = time.monotonic()
            try:
                memory.append({"role": "user", "content": text})
                self.said.append(text)
                told()
                memory.append({"role": "assistant", "content": f"Yes, {self.name}."})
            except Exception as error:
                self.raised.append(error)
            assert compose(memory, budget=8_000)  # whatever the store does
            self.longest = max(self.longest, time.monotonic() - began)


def run_under(store: Store, hosts: int, *faults: Callable[[], object], sessions: int = 0) -> list[Host]:
    """Have *hosts* write, each to a session of its own, or all to so many *sessions*. Between *faults* and after them,
    each goes on. Then all that was acknowledged is there, once, and nothing but ``StoreUnreachable`` was raised."""
    working = [Host(f"h{number}", f"s{number % (sessions or hosts)}") for number in range(hosts)]
    stopped, more = threading.Event(), threading.Condition()

    def told() -> None:
        with more:
            more.notify_all()

    def write_more() -> None:
        goals = [len(host.said) + 10 for host in working]

        def are_reached() -> bool:
            return all(len(host.said) >= goal for host, goal in zip(working, goals, strict=True))

        with more:
            assert more.wait_for(are_reached, 2 * SOON), [host.raised[-1:] for host in working]

    threads = [threading.Thread(target=host.run, args=(store, stopped, told)) for host in working]
    for thread in threads:
        thread.start()
    try:
        write_more()
        for fault in faults:
            fault()
            write_more()
    finally:
        stopped.set()
        for thread in threads:
            thread.join(2 * SOON)
    for host in working:
        assert {type(error) for error in host.raised} <= {StoreUnreachable}, host.raised
        log_of(store, host.session)
        messages = Memory(host.session, store=store).messages("assistant")
        asked = Counter(str(message["content"]) for message in messages if message["role"] == "user")
        assert set(asked.values()) == {1}
        assert [text for text in host.said if text not in asked] == []
    return working
