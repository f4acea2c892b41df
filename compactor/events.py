"""Every decision of a compactor, as a typed event. Facts only: no text of a conversation, a summary or an error.

But for ``unknown_identifiers``, which no conversation holds: words that a summarizer made up. At level debug alone.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Literal, TextIO, TypeVar

from memory.events import Event, EventHook, HookFailed
from memory.hooks import Hooks, describe, renewed_after_fork
from memory.rounds import copy_with, create_unchecked, utc_now

from .timers import Clock

__all__ = [
    "CompactionEvent",
    "CostEvaluated",
    "Deferred",
    "Discarded",
    "Evaluated",
    "EventLog",
    "Exhausted",
    "Failed",
    "IndexingFailed",
    "ModelUnknown",
    "PersistFailed",
    "PlanFailed",
    "Prepared",
    "PublicationFailed",
    "Published",
    "Reduced",
    "Rejected",
    "Reverted",
    "Skip",
    "Skipped",
    "Started",
    "Stopped",
    "StrategyFailed",
    "log_events",
    "logger_to",
    "routine_event",
    "visible",
]


class EventLog:
    """The newest *size* events, and the hooks that hear of each. Nothing that a hook raises gets out."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._hooks: Hooks[[Event]] = Hooks(self._hook_failed)
        self._size = size
        self._events: list[Event] = []  # no deque, whose first block is as large as all that most compactors tell
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # guards _events
        self._inside: set[int] = set()  # threads; thread-locals of many compactors are many

    @property
    def events(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events[max(len(self._events) - self._size, 0) :])

    def add_hook(self, hook: EventHook) -> Callable[[], None]:
        """Call *hook* with each event from now on; return a function that stops that."""
        return self._hooks.add(hook)

    def emit(self, event: Event) -> None:
        """Keep *event*, stamped with the clock's time, and tell it to the hooks, on this thread."""
        event = copy_with(event, at=self._clock.now())
        with self._lock:
            self._keep(event)
        with self.own_code():
            try:
                self._hooks(event)
            except BaseException as error:  # noqa: BLE001  (SystemExit, a native extension's panic: it has happened all the same)
                self._hook_failed(self._hooks, error)

    def _keep(self, event: Event) -> None:
        """Called with the lock held."""
        self._events.append(event)
        if len(self._events) >= 2 * self._size:
            del self._events[: len(self._events) - self._size]

    def _hook_failed(self, hook: object, error: BaseException) -> None:
        failed = HookFailed(at=self._clock.now(), hook=describe(hook), error=type(error).__name__)
        with self._lock:
            self._keep(failed)  # and no hook is told: the same one would fail at that

    @property
    def inside(self) -> bool:
        """Whether this thread runs the compactor's own code, hooks included: what waits for that waits for itself."""
        return threading.get_ident() in self._inside

    def own_code(self) -> _OwnCode:
        return _OwnCode(self._inside)  # a child that is forked in there gets another


class _OwnCode:
    """While it lasts, this thread is *inside*; the outermost ends that. A class, since every event there is needs one:
    a generator takes thrice as long."""

    __slots__ = ("_inside", "_thread", "_was_inside")

    def __init__(self, inside: set[int]) -> None:
        self._inside = inside

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._was_inside = self._thread in self._inside
        self._inside.add(self._thread)

    def __exit__(self, *_exc: object) -> None:
        if not self._was_inside:
            self._inside.discard(self._thread)


# --- every decision of a compactor, as a typed event. Facts only: no text of a conversation, a summary or an error


#: Why ``cost_optimal`` holds, or does not.
Why = Literal["grown", "budget", "chosen", "growing", "nothing_to_cover", "ends_soon"]


class Skip(StrEnum):
    """Why a compactor did nothing."""

    DISABLED = "disabled"  # config.enabled is False
    EMPTY = "empty"  # there is no round
    REVERTED = "reverted"  # no round is newer than the revert
    BELOW_TRIGGER = "below_trigger"  # the trigger does not hold
    NOTHING_CLOSED = "nothing_closed"  # all rounds after the compaction are open, or behind an open one
    #: Retaining the recent rounds leaves none to cover, or so few that no summary of them would make prompts shorter.
    NOTHING_NEW = "nothing_new"
    TOO_LITTLE = "too_little"  # what was to be summarised cannot be said in less; it can with what is said next
    #: Another process is at it, or was when it ended, which nobody knows: its lease lasts ``call_timeout`` and 30
    #: seconds. It is looked at again when that expires, or at the next event.
    LEASED = "leased"
    #: The limits that it shares with others have no room for a call; it is looked at again when its turn comes.
    LIMITED = "limited"


class CompactionEvent(Event):
    role: str = ""
    #: The generation that the decision was based on.
    generation: int = 0


E = TypeVar("E", bound=CompactionEvent)


def routine_event(kind: type[E], /, **facts: Any) -> E:
    """Return an event of a *kind* that is told at every look, with all the *facts* that it must have, none of which is
    checked: they are values of ours. A fraction of what checking takes."""
    return create_unchecked(kind, {**_defaults(kind), **facts, "at": utc_now()})


@cache
def _defaults(kind: type[CompactionEvent]) -> dict[str, Any]:
    """Return each field's default, in the order of the fields: so it prints as any other does."""
    return {name: field.default for name, field in kind.model_fields.items()}


class Evaluated(CompactionEvent):
    """The trigger was looked at."""

    name: ClassVar[str] = "compaction.evaluated"
    level: ClassVar[str] = "debug"
    is_due: bool
    forced: bool = False
    #: Visible rounds in all, and behind the compaction's end.
    rounds: int
    tail: int


class CostEvaluated(CompactionEvent):
    """``cost_optimal`` compared the cost of a compaction with its saving. In tokens, except prices."""

    name: ClassVar[str] = "compaction.cost_evaluated"
    level: ClassVar[str] = "debug"
    is_due: bool
    #: It holds: what is new has ``grown`` enough, the ``budget`` is near, or a mark is passed that somebody has
    #: ``chosen``. Not: it is ``growing`` still, there is ``nothing_to_cover``, or the conversation ``ends_soon``.
    reason: Why
    #: What a compaction would newly cover now, and how much that should be where it costs least; None: any more is
    #: cheaper still.
    grown: int
    best: float | None
    #: It is never less than this, but for the budget's sake; and is due whatever it costs at a prompt of so many.
    floor: int
    ceiling: int
    #: The whole prompt now: system messages and tools, the summary, what stands behind it.
    tokens: int
    #: By how much the conversation grows with each call of the agent's model.
    per_call: float
    system: int
    #: Of the newest summary, or as wished for before there is one.
    summary: int
    #: What stays as it is, with what comes while a compaction is made, for as many calls.
    retained: int
    latency_calls: float
    #: What one compaction costs, and a token that the provider may have in its cache: an uncached one costs 1.
    price: float
    cached: float
    #: Calls that are still to come, where somebody knows.
    calls_left: float | None = None


class Skipped(CompactionEvent):
    """There was a reason to do nothing."""

    name: ClassVar[str] = "compaction.skipped"
    level: ClassVar[str] = "debug"
    reason: Skip
    #: What there was to see; all 0 where no rounds were read, for the compactor is disabled.
    rounds: int
    tail: int
    closed: int
    #: Seconds until another process's lease expires, or until the shared limits have room for the first that waits,
    #: where that is the reason; None where only a call's end can make room.
    retry_in: float | None = None


class Started(CompactionEvent):
    """A summarizer is about to be asked for rounds *start* to *end*."""

    name: ClassVar[str] = "compaction.started"
    #: The strategy that asks.
    strategy: str = ""
    start: int
    end: int
    #: Tokens of the previous summary and the new rounds, as prompts show them; as the summarizer reads them where
    #: what it answers is not yet published.
    tokens_before: int


class Prepared(CompactionEvent):
    """A summary has passed its checks; nobody sees it yet."""

    name: ClassVar[str] = "compaction.prepared"
    level: ClassVar[str] = "debug"
    strategy: str = ""
    start: int
    end: int
    tokens_before: int
    tokens_after: int
    seconds: float
    #: Of all attempts.
    usage: Mapping[str, int] | None = None
    model: str | None = None
    #: How many of the user's prohibitions it had lost, and has again.
    restored: int = 0
    #: Identifiers that stand nowhere in what it was made from; too few to refuse it.
    unknown_identifiers: tuple[str, ...] = ()
    #: Nobody was asked: the same question was answered before, and *usage* was spent then.
    reused: bool = False
    #: Notes that stood before were written anew in full, perhaps from rounds that had been sent before.
    major: bool = False
    #: Tokens of the rounds that were sent for it, in all attempts.
    sent_tokens: int = 0


class Deferred(CompactionEvent):
    """It was weighed whether to show a compaction that is prepared, or to hold it. Tokens, but for times and prices."""

    name: ClassVar[str] = "compaction.deferred"
    level: ClassVar[str] = "debug"
    #: Whether it is shown now; where it makes prompts too long even so, it is extended first.
    shows: bool
    #: To show it: the provider's cache is ``cold``, the ``budget`` needs it, or what longer prompts have cost has
    #: ``repaid`` a new beginning. To hold it: there is ``no_gain``, or it is ``saving`` still. Or a policy's own word,
    #: and ``failed`` where that fails.
    reason: str
    #: Where it ends.
    end: int
    #: The whole prompt as it is shown, and as it would be.
    tokens_before: int
    tokens_after: int
    summary: int
    retained: int
    #: Calls of the agent's model since it was prepared, and by how much their prompts were longer, all in all.
    calls: int
    missed_saving: int
    #: What that has cost, and what a new beginning costs, where an uncached token costs 1.
    saving: float
    price: float
    #: Seconds since the newest post, and until it is looked at again if nothing happens before.
    idle: float
    recheck_in: float | None = None


class Rejected(CompactionEvent):
    """A summary did not pass a check; unless this was the last attempt, it is asked for again at once.

    Quiet, since what fails for want of a summary tells so itself: ``Failed`` or ``StrategyFailed``, naming the check.
    """

    name: ClassVar[str] = "compaction.rejected"
    level: ClassVar[str] = "debug"
    strategy: str = ""
    start: int
    end: int
    #: The name of the check, one of ``acceptance.CHECKS``.
    check: str
    #: From 1; and how many there may be.
    attempt: int
    attempts: int
    #: Identifiers in it that stand nowhere in what it was made from, where that is what was wrong.
    unknown_identifiers: tuple[str, ...] = ()
    seconds: float
    usage: Mapping[str, int] | None = None
    model: str | None = None


class Published(CompactionEvent):
    """A compaction became the one that views show; *generation* is its own."""

    name: ClassVar[str] = "compaction.published"
    #: The strategy that made it.
    strategy: str = ""
    start: int
    end: int
    #: The first and last round that it covers and the one before it did not; empty: none.
    first_round_id: str = ""
    last_round_id: str = ""
    tokens_before: int
    tokens_after: int
    #: From the first request to publication.
    seconds: float
    #: How many requests it took.
    requests: int = 1
    usage: Mapping[str, int] | None = None
    model: str | None = None
    #: It was paid for in an earlier cycle, perhaps another process's, whose *usage* it tells.
    reused: bool = False
    #: Notes that stood before were written anew in full, perhaps from rounds that had been sent before. Else what is
    #: newly covered was sent once, but for what was refused. Of what is *reused*, ``Prepared`` told it.
    major: bool = False
    #: Tokens of the rounds that were sent for it now, in all *requests*, refused ones included.
    sent_tokens: int = 0
    #: No model answers: new rounds were folded in without one, behind its text, which stands as it was.
    offline: bool = False


class Failed(CompactionEvent):
    """A cycle failed; the published compaction stands and the next try is *retry_in* seconds away."""

    name: ClassVar[str] = "compaction.failed"
    level: ClassVar[str] = "warning"
    #: The class of the error, or the name of the check that a summary did not pass.
    error: str
    failures: int
    retry_in: float
    circuit_open: bool = False


class Discarded(CompactionEvent):
    """A result came that nobody may see any more."""

    name: ClassVar[str] = "compaction.discarded"
    #: After ``stopped``, an accepted answer is kept, and whoever starts next publishes it without asking again.
    #: ``stopped``, ``late``, ``generation``, ``rounds_changed``, ``behind``, ``interpreter_exit``; of a reduction also
    #: ``torn``, or ``overlaid``: another covers these posts, or there is no Memory to keep it.
    reason: str


class Reverted(CompactionEvent):
    """The compaction before became current again; *generation* is the new one."""

    name: ClassVar[str] = "compaction.reverted"
    #: Where the compaction ends now; 0 where there is none.
    end: int


class Stopped(CompactionEvent):
    """The compactor stopped by itself."""

    name: ClassVar[str] = "compaction.stopped"
    level: ClassVar[str] = "warning"
    #: ``executor_shut_down``, ``session_purged``.
    reason: str


class PlanFailed(CompactionEvent):
    """The host's ``plan`` raised; the prompt, or the cycle, goes on without one."""

    name: ClassVar[str] = "plan.failed"
    level: ClassVar[str] = "warning"
    #: The class of the error.
    error: str


class PublicationFailed(CompactionEvent):
    """A policy of the host's, ``publish=``, raised or gave no ``Decision``: what makes prompts shorter is shown."""

    name: ClassVar[str] = "publication.failed"
    level: ClassVar[str] = "warning"
    #: The class of the error.
    error: str


class Reduced(CompactionEvent):
    """A reduction was published: some posts of one round read shorter from now on."""

    name: ClassVar[str] = "compaction.reduced"
    strategy: str
    #: ``offloaded``, ``dropped`` or ``summarised``.
    kind: str
    round_id: str
    #: The first and last post it covers, and their neighbours in the round; empty: the round's query, or none.
    first_post_id: str
    last_post_id: str
    previous_post_id: str = ""
    next_post_id: str = ""
    #: How many posts it covers.
    posts: int
    tokens_before: int
    tokens_after: int
    seconds: float = 0.0
    usage: Mapping[str, int] | None = None
    model: str | None = None


class StrategyFailed(CompactionEvent):
    """A strategy raised; the next one is tried."""

    name: ClassVar[str] = "compaction.strategy_failed"
    level: ClassVar[str] = "warning"
    strategy: str
    #: The class of the error, or the name of the check that a summary did not pass.
    error: str


class Exhausted(CompactionEvent):
    """All strategies ran, and the trigger still holds: prompts are kept within their budget by their ladder alone."""

    name: ClassVar[str] = "compaction.exhausted"
    level: ClassVar[str] = "warning"
    strategies: int
    tokens: int


class IndexingFailed(CompactionEvent):
    """Old rounds could not be made quick to search; that is done when somebody searches."""

    name: ClassVar[str] = "search.indexing_failed"
    level: ClassVar[str] = "warning"
    #: The class of the error.
    error: str


class PersistFailed(CompactionEvent):
    """The journal failed at something that can be done without. Told when that begins, and when the error is another.

    ``answer``: one that was paid for is kept in this process alone; ``lease``: other processes may ask for the same;
    ``event``: it is not in the log.
    """

    name: ClassVar[str] = "compaction.persist_failed"
    level: ClassVar[str] = "warning"
    what: Literal["answer", "lease", "event"]
    #: The class of the error.
    error: str


class ModelUnknown(CompactionEvent):
    """Nobody knows the model's tokenizer or window; the default stands in."""

    name: ClassVar[str] = "tokens.model_unknown"
    level: ClassVar[str] = "warning"
    model: str
    encoding: str


# --- events as structured log lines. Nothing is logged unless a host asks for it ----------------------------------


# Everything that a terminal acts on instead of showing it, line ends and tabs aside: C0 and C1 controls, line and
# paragraph separators, what turns the direction of writing around, lone surrogates.
_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return *text* as it may be printed: what a terminal would act on stands there as ``\\x1b``."""
    return _ACTED_ON.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def log_events(logger: Any | None = None) -> EventHook:
    """Return a hook that writes each event to *logger*, by default structlog's: ``compactor.on_event(log_events())``.

    The event's name is the message and its facts are the fields. Events never hold what was said.
    """
    import structlog

    log = logger if logger is not None else structlog.get_logger("compactor")

    def write(event: Event) -> None:
        getattr(log, event.level)(event.name, **event.facts())

    return write


def logger_to(stream: TextIO | None = None, *, json: bool = False, level: str = "info") -> Any:
    """Return a logger that writes JSON lines, or lines for a console, to *stream* (standard error by default).

    structlog's global configuration is left as it is. Raises ``ValueError`` for a *level* that logging does not have.
    """
    import structlog

    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ValueError(f"there is no level {level!r}; give one of debug, info, warning and error")
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str) if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    rendering: list[Any] = [renderer] if json else [_on_one_line, renderer]
    return structlog.wrap_logger(
        structlog.PrintLogger(stream if stream is not None else sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(known[level.upper()]),
    )


def _on_one_line(_logger: Any, _name: str, facts: Any) -> Any:
    """Return *facts* whose texts neither begin a line that looks like another event nor make a terminal do anything."""
    return {name: " ".join(visible(fact).split()) if isinstance(fact, str) else fact for name, fact in facts.items()}
