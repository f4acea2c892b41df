"""What most tests of the compactor need: rounds to compact, an executor that obeys, and ways to wait without sleeping."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from executors import SOON, ManualExecutor

from compactor import CompactorConfig, ContextCompactor, SummaryRequest, compose
from compactor.journal import RETRY_SECONDS
from compactor.testing import FakeClock
from memory import Event, Memory, Round

ROLE = "Planner"
#: The numbers of the example in the README.
CONFIG = CompactorConfig(threshold=7, retain_recent=3)
#: No turn may take longer, in seconds.
LONGEST_TURN = 0.050
ROLES = ("Planner", "CodeInterpreter")

#: Says something of the questions here, whichever of them it covers.
PRICES = "The user asked what items cost: 11 euros times their number."

E = TypeVar("E", bound=Event)


class HurriedClock(FakeClock):
    """One on which whoever waits for a store that is away has waited at once."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        cancel = super().call_later(seconds, callback)
        if seconds == RETRY_SECONDS:
            self.advance(seconds)
        return cancel


class PanicException(BaseException):
    """What a native extension raises when it panics: no ``Exception``, so ``except Exception`` lets it through."""


def prices(name: str) -> str:
    """Return ``PRICES`` as a summary of that name, for tests that tell one from another."""
    return f"{name}: the user asked what items cost, 11 euros times their number."


def add_round(memory: Memory, *, close: bool = True, role: str = ROLE) -> Round:
    """Add the next round: the user asks, the role answers. Its id is ``r`` and its number."""
    number = len(memory.conversation.rounds) + 1
    round_ = memory.create_round(f"Question {number}: what about item-{number}?", id=f"r{number}")
    memory.add_post(round_, send_from="User", send_to=role, message=round_.user_query)
    memory.add_post(round_, send_from=role, send_to="User", message=f"Item-{number} costs {number * 11} euros. " * 3)
    return memory.finish_round(round_) if close else round_


def memory_of(count: int, *, close_last: bool = True) -> Memory:
    memory = Memory("session")
    for number in range(1, count + 1):
        add_round(memory, close=number < count or close_last)
    return memory


def end_of(compactor: ContextCompactor) -> int:
    """Where the published compaction ends; 0 where there is none."""
    compaction = compactor.get_compaction()
    return compaction.end_index if compaction is not None else 0


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.name.rpartition(".")[2] for event in events]


def of_kind(events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def text_of(request: SummaryRequest) -> str:
    return "\n".join(str(message["content"]) for message in request.messages)


class Calls:
    """A summarizer that lets a test wait until it is in a call, and answers when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, _request: SummaryRequest) -> str:
        self.begun.release()
        assert self.go_on.wait(SOON)
        return PRICES


class Heard:
    """A hook that remembers events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._more:
            self.events.append(event)
            self._more.notify_all()

    def until(self, kind: type[E], times: int = 1, *, where: Callable[[E], bool] = lambda event: True) -> E:
        """Wait until there are that many such events; return the last of them."""

        def found() -> list[E]:
            return [event for event in of_kind(self.events, kind) if where(event)]

        with self._more:
            in_time = self._more.wait_for(lambda: len(found()) >= times, SOON)
            assert in_time, f"no {kind.__name__} ({times}) among {kinds(self.events)}"
            return found()[times - 1]


def on_command(
    memory: Memory, summarizer: object, config: CompactorConfig = CONFIG, **more: Any
) -> tuple[ContextCompactor, ManualExecutor, FakeClock]:
    """Return a compactor that does nothing unless its executor or its clock is told to."""
    executor, clock = ManualExecutor(), FakeClock()
    options = {"executor": executor, "clock": clock, "rng": lambda: 1.0} | more
    return ContextCompactor.for_role(memory, ROLE, config, summarizer, **options), executor, clock


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Start *call* on a thread; return what waits for its result, and raises what it raised."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return lambda: future.result(SOON)


def threads_of(role: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"compactor-{role}"]


def joined(role: str) -> bool:
    """Wait until no thread of *role*'s compactor is left."""
    for thread in threads_of(role):
        thread.join(SOON)
    return threads_of(role) == []


def turn(memory: Memory, number: int) -> None:
    """One turn of a chat loop with two agents."""
    round_ = memory.create_round(f"Question {number}: how many of item-{number} are left?")
    memory.add_post(round_, send_from="User", send_to="Planner", message=round_.user_query)
    memory.add_post(round_, send_from="Planner", send_to="CodeInterpreter", message=f"Count item-{number}. " * 5)
    memory.add_post(round_, send_from="CodeInterpreter", send_to="Planner", message=f"There are {number}. " * 20)
    memory.add_post(round_, send_from="Planner", send_to="User", message=f"{number} are left.")
    memory.finish_round(round_)
    for role in ROLES:
        rounds, compaction = memory.get_role_rounds(role)
        assert len(rounds) - (compaction.end_index if compaction else 0) > 0
        assert compose(memory, role, budget=4_000, system="You are an agent.").tokens <= 4_000


@contextmanager
def no_collections() -> Iterator[None]:
    """A full garbage collection looks at every object of the test run, which is not what is measured here."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def least_of_three(measure: Callable[[], list[float]]) -> list[float]:
    """Return the least time of each turn. What the code waits for, it waits for in every run; another process' work
    falls on other turns each time. Runs once where that is good enough."""
    times = measure()
    for _ in range(2):
        if max(times) >= LONGEST_TURN:
            times = list(map(min, times, measure()))
    return times
