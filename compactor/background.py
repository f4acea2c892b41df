"""ContextCompactor: the thread and its states. What a cycle does is in ``cycle``."""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Self

from memory import Memory
from memory.errors import ContextError, StaleCompaction
from memory.events import Event, EventHook, HookFailed
from memory.forking import renewed_after_fork
from memory.hooks import Hooks, describe
from memory.memory import RoundsGetter
from memory.messages import from_post
from memory.overlays import CompactedMessage, Journal
from memory.visibility import sees

from .backoff import Backoff
from .clock import SYSTEM_CLOCK, Clock
from .config import CompactorConfig
from .cycle import Cycle, Strategy
from .errors import CompactionFailed, CompactionTimeout, SummaryRejected
from .events import Discarded, Failed, ModelUnknown, Published, Reverted, Skip, Skipped, Stopped
from .journal import LocalJournal
from .ledger import Ledger, ledger_of
from .strategies import compact_rounds
from .summarizers import as_summarizer
from .summarizers.base import Summary, SummaryRequest
from .summarizers.extractive import ExtractiveSummarizer
from .tokens import DEFAULT_ENCODING, TokenCounter, counter_for, encoding_for
from .triggers import Condition, default_trigger, when
from .units import count_message
from .view import rounds_for
from .workers import DaemonThread, interpreter_is_exiting

__all__ = ["CompactorStatus", "ContextCompactor", "State"]

#: With this many calls given up and not ended, no further one is made: each holds a thread, or an executor's slot.
MOST_ABANDONED = 4


class State(StrEnum):
    NEW = "new"
    IDLE = "idle"
    COMPACTING = "compacting"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class CompactorStatus:
    """What a compactor is doing, and why not more."""

    state: State
    #: The reason for the last cycle that did nothing; None when the last one did something, or there was none.
    why_idle: Skip | None
    #: The last failure, as ``ErrorClass: message`` or the name of the check; None after a success.
    last_error: str | None
    #: Failures since the last success.
    failures: int
    circuit_open: bool
    generation: int
    #: Rounds that the published compaction covers.
    end_index: int


@dataclass(eq=False, slots=True)
class _Run:
    """One cycle on its way. Only the compactor's current run may change anything."""

    forced: bool
    #: A worker has taken it up.
    begun: bool = False
    #: Stands for the call to the summarizer that is in flight.
    call: object | None = None
    #: Its outcome is known, or it was given up; nothing more that it does counts.
    over: bool = False
    #: The back-off that it began has ended.
    rested: bool = False


@dataclass(eq=False, slots=True)
class _Waiter:
    """Someone in ``compact_now``."""

    done: bool = False
    result: CompactedMessage | None = None
    error: BaseException | None = None


class _Inside(threading.local):
    """Whether this thread is running the compactor's own code, hooks included."""

    depth = 0


class ContextCompactor:
    """Keeps one role's compaction up to date on a background thread.

    *rounds_getter* returns the role's visible rounds. *summarizer* (or *llm_api*, another name for it) is a callable
    ``SummaryRequest -> str | Summary`` or an object with ``chat_completion``; without one, summaries are extracted
    offline. *executor*: cycles run there, and no thread of the compactor's own is started. *rng* gives the jitter,
    from 0 to 1. Making one starts nothing.
    """

    def __init__(
        self,
        config: CompactorConfig | None = None,
        summarizer: object | None = None,
        rounds_getter: Callable[[], Sequence[Any]] | None = None,
        *,
        role: str = "",
        trigger: Condition | None = None,
        strategies: Sequence[Strategy] | None = None,
        plan: Callable[[], str | None] | None = None,
        executor: Executor | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        rng: Callable[[], float] = random.random,
        counter: TokenCounter | None = None,
        ledger: Ledger | None = None,
        header_tokens: Callable[[], int] = lambda: 0,
        on_event: EventHook | None = None,
        history: int = 512,
        llm_api: object | None = None,
    ) -> None:
        if rounds_getter is None:
            raise TypeError(
                "rounds_getter is missing: a callable that returns the rounds, or use for_role(memory, ...)"
            )
        if summarizer is not None and llm_api is not None:
            raise TypeError("summarizer= and llm_api= are two names of one thing; give one of them")
        self.config = config if config is not None else CompactorConfig()
        self.role = role
        self._clock: Clock = clock if clock is not None else SYSTEM_CLOCK
        chosen = summarizer if summarizer is not None else llm_api
        self._summarizer = as_summarizer(chosen) if chosen is not None else ExtractiveSummarizer()
        count = counter if counter is not None else counter_for(self.config.model)
        self._history: deque[Event] = deque(maxlen=history)
        self._hooks: Hooks[[Event]] = Hooks(self._hook_failed)
        if on_event is not None:
            self._hooks.add(on_event)
        self._journal: Journal = (
            journal if journal is not None else LocalJournal(lambda: rounds_for(rounds_getter(), role), self._clock.now)
        )
        self._cycle = Cycle(
            config=self.config,
            rounds_getter=rounds_getter,
            journal=self._journal,
            trigger=when(trigger) if trigger is not None else default_trigger(self.config),
            strategies=(compact_rounds,) if strategies is None else tuple(strategies),
            ledger=ledger if ledger is not None else Ledger(role, count),
            emit=self._emit,
            monotonic=self._clock.monotonic,
            header_tokens=header_tokens,
            plan=plan if plan is not None else lambda: None,
        )
        self._rounds_getter = rounds_getter
        self._executor = executor
        self._backoff = Backoff(self.config, rng)
        self._renew()
        renewed_after_fork(self)

    @classmethod
    def for_role(
        cls,
        memory: Memory,
        role: str,
        config: CompactorConfig | None = None,
        summarizer: object | None = None,
        **more: Any,
    ) -> Self:
        """Return the compactor of *role* in *memory*, registered there; its compactions are published in memory's log.

        Takes what the constructor takes. Not started.
        """
        config = config if config is not None else CompactorConfig()
        count = more.get("counter") or counter_for(config.model)

        def header_tokens() -> int:
            return sum(count_message(from_post(post, role), count) for post in memory.header if sees(role, post))

        more.setdefault("journal", memory.journal(role))
        more.setdefault("header_tokens", header_tokens)
        more.setdefault("ledger", ledger_of(memory, role, count))
        compactor = cls(config, summarizer, memory.rounds_getter(role), role=role, **more)
        memory.register_compaction_provider(role, compactor)
        return compactor

    def _renew(self) -> None:
        """Be as new: no thread, no run, no lock held. What is published and what happened stays."""
        self._wake = threading.Condition()  # guards all below it
        self._state = State.NEW
        self._pending = True  # something happened that no cycle has looked at
        self._run: _Run | None = None
        self._restart = False  # start() came while stopping
        self._waiters: list[_Waiter] = []
        self._backing_off_from: _Run | None = None  # tells a back-off that is over from one that was cut short
        self._calls: set[object] = set()  # those to the summarizer that have not ended, given up or not
        self._discards = 0  # results in a row that were no longer current
        self._why_idle: Skip | None = None
        self._last_error: str | None = None
        self._thread: DaemonThread | None = None
        self._inside = _Inside()
        self._backoff.reset()

    _after_fork = _renew

    # -- the host's side ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work, with what is there already. While stopping, it begins when that is through."""
        with self._wake:
            if self._state is State.STOPPING:
                self._restart = True
                return
            if self._state not in (State.NEW, State.STOPPED):
                return
            self._state = State.IDLE if self._run is None else State.COMPACTING  # for compact_now
            self._pending = True
            run = self._claim()
        self._dispatch(run)
        self._tell_unknown_model()

    def stop(self, timeout: float | None = 5.0) -> bool:
        """Stop, and return whether no worker is left; an answer that arrives later is discarded.

        Waits at most *timeout* seconds for a call in flight, one that was given up included. From a hook of this
        compactor it does not wait at all.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        if self._inside.depth:
            until = -math.inf
        with self._wake:
            self._restart = False
            self._state = State.STOPPING
            thread = self._thread
            if self._run is not None and not self._run.begun:
                self._run = None  # no worker took it up; when one does, it finds that it is not wanted
            if self._run is None:
                self._come_to_rest()
            waiters, self._waiters = self._waiters, []
            _resolve(waiters, error=CompactionFailed("the compactor was stopped; start() it and ask again"))
            self._wake.notify_all()
            if not self._wake.wait_for(self._at_rest, _bounded(until - time.monotonic())):
                return False
        return thread is None or thread.join(_bounded(until - time.monotonic()))

    def _at_rest(self) -> bool:
        return self._state is not State.STOPPING and not self._calls

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:  # noqa: ARG002  (a hint, not needed)
        """Take note that rounds or posts were added, closed or failed. Never blocks, never raises."""
        with self._wake:
            self._pending = True
            run = self._claim()
        self._dispatch(run)

    def get_compaction(self) -> CompactedMessage | None:
        """Return the published compaction; never blocks."""
        current = self._journal.read().current
        # A round that failed since then shifts the end. A Memory can say so at once; another host's getter may block.
        return self._rounds_getter().anchored(current) if isinstance(self._rounds_getter, RoundsGetter) else current

    def compact_now(self, timeout: float | None = None) -> CompactedMessage | None:
        """Compact what can be compacted, whatever trigger and back-off say, and return the compaction.

        Joins a run in flight. None: there was nothing to do. Raises ``CompactionTimeout`` after *timeout* seconds,
        ``CompactionFailed`` with the cause where it failed, ``RuntimeError`` within a hook of this compactor.
        """
        self._refuse_inside("compact_now")
        waiter = _Waiter()
        with self._wake:
            self._waiters.append(waiter)
            run = self._claim()
        self._dispatch(run)
        with self._wake:
            try:
                self._wake.wait_for(lambda: waiter.done, _bounded(timeout))
            finally:  # an interrupt from the keyboard included
                if not waiter.done:
                    self._waiters.remove(waiter)
        if not waiter.done:
            raise CompactionTimeout(
                f"no compaction within {timeout} seconds; the run goes on, ask again or give it more time"
            )
        if waiter.error is not None:
            if isinstance(waiter.error, CompactionFailed):
                raise waiter.error
            raise CompactionFailed(
                f"no compaction: {describe_error(waiter.error)}; what was published before still stands"
            ) from waiter.error
        return waiter.result

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Return True once everything that happened so far was looked at and nothing runs.

        False while backing off, while nobody would look (not started), and after *timeout* seconds. Raises
        ``RuntimeError`` within a hook of this compactor.
        """
        self._refuse_inside("wait_idle")
        with self._wake:
            self._wake.wait_for(lambda: self._run is None, _bounded(timeout))
            return self._run is None and not self._pending and self._state is not State.BACKING_OFF

    def revert(self) -> CompactedMessage | None:
        """Make the compaction before the present one current again and return it; None where there is none left.

        The reverted one stays in the log. Nothing is compacted again until a round is newer than those present.
        """
        before = self._journal.read()
        current = self._journal.revert()
        after = self._journal.read()
        if after.generation != before.generation and after.held_round_id is not None:
            end = current.end_index if current else 0
            self._emit(Reverted(role=self.role, generation=after.generation, end=end))
        return current

    def status(self) -> CompactorStatus:
        generation, compaction = self._journal.read().generation, self.get_compaction()
        with self._wake:
            return CompactorStatus(
                state=self._state,
                why_idle=self._why_idle,
                last_error=self._last_error,
                failures=self._backoff.failures,
                circuit_open=self._backoff.circuit_open,
                generation=generation,
                end_index=compaction.end_index if compaction else 0,
            )

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest events, oldest first."""
        with self._wake:
            return tuple(self._history)

    def on_event(self, callback: EventHook) -> Callable[[], None]:
        """Call *callback* with each event, on the thread where it happens; return a function that stops that.

        A callback that calls ``notify_rounds_changed`` at every event has the compactor look again for ever.
        """
        return self._hooks.add(callback)

    # -- the states ---------------------------------------------------------------------------------------------------

    def _claim(self) -> _Run | None:
        """Return the run to dispatch now, made current; None with a reason not to. Called with the lock held."""
        if self._run is not None:  # exactly one at a time; it is looked at again when that one ends
            return None
        if self._waiters:
            return self._begin(forced=True)
        if self._state is not State.IDLE:  # not started, backing off or stopping
            return None
        if not self._pending:
            return None
        return self._begin(forced=False)

    def _begin(self, *, forced: bool) -> _Run:
        self._run = _Run(forced)
        if self._state in (State.IDLE, State.BACKING_OFF):
            self._state = State.COMPACTING
        return self._run

    def _dispatch(self, run: _Run | None) -> None:
        """Hand *run* to a worker. Called without the lock: an executor may do what it likes."""
        if run is None:
            return
        with self._wake:
            if self._run is not run:  # stopped meanwhile: a thread that started now would be one too many
                return
            worker = self._executor if self._executor is not None else self._own_thread()
        try:
            submitted = worker.submit(partial(self._work, run))
        except Exception as error:  # noqa: BLE001  (whatever it is: without a worker the run would never end)
            if isinstance(error, RuntimeError) and self._executor is not None:  # how it says that it is shut down
                self._without_worker(run)
            elif self._close(run):
                self._end(run, None, error)
            return
        if isinstance(submitted, Future):
            submitted.add_done_callback(partial(self._look_for_cancelled, run))

    def _own_thread(self) -> DaemonThread:
        """Called with the lock held."""
        if self._thread is None:
            self._thread = DaemonThread(f"compactor-{self.role or 'role'}")
        return self._thread

    def _look_for_cancelled(self, run: _Run, submitted: Future[object]) -> None:
        """Called by the executor, which may hold its own lock: hooks must wait until it has let go of that."""
        if submitted.cancelled():
            self._clock.call_later(0, partial(self._without_worker, run))

    def _without_worker(self, run: _Run) -> None:
        """Come to rest: the executor was shut down, before *run* or with it."""
        with self._wake:
            if self._run is not run:
                return
            self._run, self._restart = None, False
            self._come_to_rest()
            waiters, self._waiters = self._waiters, []
            _resolve(waiters, error=CompactionFailed("the compactor's executor is shut down; give it another"))
            self._wake.notify_all()
        self._emit(Stopped(role=self.role, reason="executor_shut_down"))

    def _work(self, run: _Run) -> None:
        """One cycle, on a worker."""
        with self._wake:
            if self._run is not run:
                return
            run.begun = True
            self._why_idle = None
            self._pending = False  # before the rounds are read: what comes from now on is looked at again
        with self._own_code():
            self._cycle_once(run)

    def _cycle_once(self, run: _Run) -> None:
        result: CompactedMessage | None = None
        error: BaseException | None = None
        try:
            result = self._cycle.run(partial(self._ask, run), partial(self._forbidden, run), forced=run.forced)
        except BaseException as raised:  # noqa: BLE001  (a native extension's panic is no Exception; the thread goes on)
            error = raised
        if not self._close(run):
            self._emit(Discarded(role=self.role, generation=self._journal.read().generation, reason="late"))
            return
        self._end(run, result, error)

    def _close(self, run: _Run) -> bool:
        """Return whether the caller is the first to know how *run* ended: it, or its deadline."""
        with self._wake:
            if self._run is not run or run.over:
                return False
            run.over = True
            return True

    def _end(self, run: _Run, result: CompactedMessage | None, error: BaseException | None) -> None:
        """Take *run*'s outcome, and go on to what comes next. Whatever fails here, the run ends."""
        delay, can_go_on = None, True
        try:
            delay = self._judge(error)
            if delay is not None:
                self._clock.call_later(delay, partial(_backoff_over, weakref.ref(self), run))
        except BaseException as raised:  # noqa: BLE001  (a journal that cannot be read, a timer that cannot be started)
            error, delay, can_go_on = raised, None, False
        with self._wake:
            if self._run is not run:  # a forked child has begun anew
                return
            self._run = None
            self._settle(run, result, error, backing_off=delay is not None)
            following = self._claim() if can_go_on else None  # else when something happens
            self._wake.notify_all()
        self._dispatch(following)

    def _judge(self, error: BaseException | None) -> float | None:
        """Return the seconds to back off, or None; tell what was discarded or failed."""
        if error is None:
            self._discards = 0
            return None
        generation = self._journal.read().generation
        if isinstance(error, StaleCompaction):
            self._emit(Discarded(role=self.role, generation=generation, reason=error.reason))
            if error.reason in ("stopped", "interpreter_exit"):
                return None
            self._discards += 1
            if self._discards == 1:
                return None
            # Rounds that are others at every reading would be paid for again and again.
        delay = self._backoff.failed(getattr(error, "retry_after", None))
        self._emit(
            Failed(
                role=self.role,
                generation=generation,
                error=error.check if isinstance(error, SummaryRejected) else type(error).__name__,
                failures=self._backoff.failures,
                retry_in=delay,
                circuit_open=self._backoff.circuit_open,
            )
        )
        return delay

    def _settle(
        self, run: _Run, result: CompactedMessage | None, error: BaseException | None, *, backing_off: bool
    ) -> None:
        """Change state after *run*. Called with the lock held."""
        discarded = error.reason if isinstance(error, StaleCompaction) and not backing_off else None
        if error is not None and discarded is None:
            self._last_error = describe_error(error)
        # Look again: at what is current now, and at whether more is due. At exit that would never end.
        again = discarded is not None and discarded != "interpreter_exit"
        if again or result is not None or run.rested:
            self._pending = True
        if result is not None or (not again and (error is not None or run.forced)):
            waiters, self._waiters = self._waiters, []
            _resolve(waiters, result=result, error=error)
        if self._state is State.STOPPING:
            self._come_to_rest()
        elif self._state is State.COMPACTING:
            self._state = State.BACKING_OFF if backing_off and not run.rested else State.IDLE
            self._backing_off_from = run
        elif self._thread is not None:  # compact_now of a compactor that is not started
            self._thread.close()
            self._thread = None

    def _come_to_rest(self) -> None:
        """End STOPPING, and begin anew if start() came meanwhile. Called with the lock held."""
        self._state = State.STOPPED
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        if self._restart:
            self._restart = False
            self._state = State.IDLE
            self._pending = True

    def _go_on(self, run: _Run) -> None:
        """End the back-off that *run* began."""
        with self._wake:
            run.rested = True  # perhaps before this state was even entered, where the machine was asleep
            if self._state is not State.BACKING_OFF or self._backing_off_from is not run:
                return
            self._state = State.IDLE
            self._pending = True
            following = self._claim()
            self._wake.notify_all()
        self._dispatch(following)

    # -- calls to the summarizer --------------------------------------------------------------------------------------

    def _ask(self, run: _Run, request: SummaryRequest) -> str | Summary:
        """Call the summarizer; at its deadline the run is given up, and what it still answers is discarded."""
        call = object()
        with self._wake:
            if reason := self._forbidden(run):
                raise StaleCompaction(reason)
            if len(self._calls) >= MOST_ABANDONED:
                raise CompactionTimeout(f"{len(self._calls)} calls that were given up have not ended; none is made now")
            run.call = call
            self._calls.add(call)
        try:
            cancel = self._clock.call_later(self.config.call_timeout, partial(self._give_up, run, call))
            try:
                answer = self._summarizer(request)
            finally:
                cancel()
        finally:
            with self._wake:
                run.call = None  # from here on it is too late to give it up
                self._calls.discard(call)
                self._wake.notify_all()
        if run.over:
            raise StaleCompaction("late")
        return answer

    def _give_up(self, run: _Run, call: object) -> None:
        """Treat a call as failed. Its thread cannot be stopped: it is left alone, and another takes its place."""
        with self._wake:
            if run.call is not call or not self._close(run):
                return
            outlived, self._thread = self._thread, None
        timeout = CompactionTimeout(
            f"the summarizer did not answer within call_timeout={self.config.call_timeout:g} seconds"
        )
        end = partial(self._end_given_up, run, timeout)
        if outlived is None:  # an executor's; all its slots may hang like this one
            end()
            return
        outlived.close()
        with self._wake:
            thread = self._own_thread()
        try:
            thread.submit(end)  # hooks are not to hold up the timer of every compactor
        except RuntimeError:
            end()

    def _end_given_up(self, run: _Run, timeout: CompactionTimeout) -> None:
        with self._own_code():
            self._end(run, None, timeout)

    def _forbidden(self, run: _Run) -> str | None:
        """Return why *run* may not publish any more."""
        if interpreter_is_exiting():
            return "interpreter_exit"
        with self._wake:
            if self._run is not run or run.over:
                return "late"
            if self._state is State.STOPPING:
                return "stopped"
        return None

    # -- events -------------------------------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        """Tell hooks. Nothing that one of them raises gets out: what is told has happened."""
        event = event.model_copy(update={"at": self._clock.now()})
        with self._wake:
            self._history.append(event)
            if isinstance(event, Skipped):
                self._why_idle = event.reason
            elif isinstance(event, Published):
                self._discards, self._last_error = 0, None
                self._backoff.reset()
        with self._own_code():
            try:
                self._hooks(event)
            except BaseException as error:  # noqa: BLE001  (SystemExit, a native extension's panic)
                self._hook_failed(self._hooks, error)

    def _hook_failed(self, hook: object, error: BaseException) -> None:
        failed = HookFailed(at=self._clock.now(), hook=describe(hook), error=type(error).__name__)
        with self._wake:
            self._history.append(failed)  # and no hook is told: the same one would fail at that

    @contextmanager
    def _own_code(self) -> Iterator[None]:
        inside = self._inside  # a child that is forked in here gets another
        inside.depth += 1
        try:
            yield
        finally:
            inside.depth -= 1

    def _refuse_inside(self, name: str) -> None:
        if self._inside.depth:
            raise RuntimeError(f"{name}() within a hook of the same compactor would wait for itself; call it elsewhere")

    def _tell_unknown_model(self) -> None:
        if self.config.model and encoding_for(self.config.model) is None:
            self._emit(ModelUnknown(role=self.role, model=self.config.model, encoding=DEFAULT_ENCODING))


def _backoff_over(compactor: weakref.ref[ContextCompactor], run: _Run) -> None:
    """A compactor that nobody holds is not kept alive by its back-off."""
    if (waiting := compactor()) is not None:
        waiting._go_on(run)


def _resolve(
    waiters: list[_Waiter], *, result: CompactedMessage | None = None, error: BaseException | None = None
) -> None:
    for waiter in waiters:
        waiter.done, waiter.result, waiter.error = True, result, error


def _bounded(timeout: float | None) -> float | None:
    """Return *timeout* as a wait that every platform's locks accept."""
    return None if timeout is None or timeout == math.inf else min(max(timeout, 0.0), threading.TIMEOUT_MAX)


def describe_error(error: BaseException) -> str:
    """Return what went wrong: an error of ours in its own words, any other by its class, for it may quote the chat."""
    return str(error) if isinstance(error, ContextError) else type(error).__name__
