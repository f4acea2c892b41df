"""Every decision of a compactor, as a typed event: facts only, no text of a conversation, a summary or an error.

The one exception is ``unknown_identifiers``: names that a summarizer made up, at level debug only.
"""

import logging
import re
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, Self, TextIO

from memory.events import Event, EventHook, HookFailed
from memory.hooks import describe, renew_after_fork
from memory.patterns import compile_later
from memory.rounds import FieldMapping, copy_with, create_unchecked

from .errors import FailureKind
from .timers import SYSTEM_CLOCK, Clock

#: An event that is not made yet: its class, the names of its fields but the time, their values and the time, and
#: whether it repeats.
DeferredEvent = tuple[type[Event], tuple[str, ...], tuple[Any, ...], bool]


class Hook(NamedTuple):
    call: EventHook
    #: It gets events of these classes.
    kinds: tuple[type[Event], ...]


class EventHooks:
    """Hooks with the kinds of events that they get. Several event logs may share one such list.

    The list is replaced, never changed: calling the hooks needs no lock.
    """

    hooks: tuple[Hook, ...] = ()
    #: Whether any of them hears of evaluations, which are many: of ``Evaluated`` and ``Skipped``.
    hear_evaluations = False
    _heir: "EventHooks | None" = None

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the replacing
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()

    def add(self, call: EventHook, kinds: tuple[type[Event], ...] = (Event,)) -> Callable[[], None]:
        """Call *call* with each event of these *kinds* from now on; return a function that stops that."""
        added = Hook(call, kinds)
        with self._lock:
            self._set_hooks((*self.hooks, added))

        def remove() -> None:
            hooks: EventHooks | None = self
            while hooks is not None:
                with hooks._lock:
                    hooks._set_hooks(tuple(one for one in hooks.hooks if one is not added))
                hooks = hooks._heir

        return remove

    def hand_over(self, heir: Self) -> None:
        """Have *heir* call the hooks that were added here, until they are removed."""
        with self._lock, heir._lock:
            self._heir, known = heir, [one.call for one in heir.hooks]
            heir._set_hooks(heir.hooks + tuple(one for one in self.hooks if one.call not in known))

    def _set_hooks(self, hooks: tuple[Hook, ...]) -> None:
        self.hooks = hooks
        self.hear_evaluations = any(issubclass(kind, one.kinds) for one in hooks for kind in (Evaluated, Skipped))


class EventLog(EventHooks):
    """The newest *size* events, and the hooks that are called with each. No error of a hook gets out."""

    def __init__(self, clock: Clock, size: int, session: str = "") -> None:
        self._clock = clock
        self._size = size
        #: The session of all events.
        self.session = session
        #: Called before the hooks: keeps some events in the compactor's journal.
        self.recorder = Hook(lambda _event: None, ())
        #: Hooks that other compactors have as well.
        self.shared = _NO_HOOKS
        #: The context variables of the call that led to what happens now: hooks see them. None: no call did.
        self.context: Context | None = None
        #: The newest events; some as class and fields, until somebody reads them. A list: an empty deque takes more
        #: memory than the events of most compactors.
        self._events: list[Event | DeferredEvent] = []
        self._lock = threading.RLock()  # guards _events, and the replacing of hooks
        #: Threads that run the compactor's own code, hooks included: one that waited for the compactor would wait for
        #: itself. One that has entered twice is in it twice. Not thread-local, which costs memory in each.
        self.threads_inside: list[int] = []
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._lock, self.threads_inside = threading.RLock(), []

    @property
    def events(self) -> tuple[Event, ...]:
        """The newest events, oldest first."""
        with self._lock:
            newest = self._events[max(len(self._events) - self._size, 0) :]
        return tuple([self._make_event(one) if isinstance(one, tuple) else one for one in newest])

    def _make_event(self, deferred: DeferredEvent) -> Event:
        kind, names, values, _ = deferred
        fields = dict(zip((*names, "at"), values, strict=True))
        return create_unchecked(kind, {"session": self.session, "seconds": 0.0, **fields})

    def emit_later(
        self, kind: type[Event], names: tuple[str, ...], values: tuple[object, ...], *, repeats: bool = False
    ) -> None:
        """Emit an event with these fields, unchecked. If no hook gets it, it is created when somebody reads it, which
        spares the thread that appends. One that *repeats* replaces the last but one if that is of the same class and
        repeats, too: so the two events of an evaluation that found nothing do not push out all others."""
        later = kind, names, (*values, self._clock.now()), repeats
        if self.hear_evaluations or self.shared.hear_evaluations:
            self.emit(self._make_event(later))
            return
        with self._lock:
            before = self._events[-2] if repeats and len(self._events) > 1 else None
            if isinstance(before, tuple) and before[0] is kind and before[3]:
                del self._events[-2]
            self._events.append(later)
            if len(self._events) >= 2 * self._size:
                del self._events[: len(self._events) - self._size]

    def emit(self, event: Event) -> None:
        """Keep *event*, with the session and the clock's time, and call the hooks with it, on this thread."""
        if isinstance(event, CompactionEvent):
            event = copy_with(event, session=self.session)
        if self._clock is not SYSTEM_CLOCK:  # else it has the time from when it was made
            event = copy_with(event, at=self._clock.now())
        # A child that is forked in a hook has another list: its thread is not inside.
        inside, thread = self.threads_inside, threading.get_ident()
        inside.append(thread)
        try:
            with self._lock:
                self._events.append(event)
                if len(self._events) >= 2 * self._size:
                    del self._events[: len(self._events) - self._size]
            for hook, kinds in (self.recorder, *self.hooks, *self.shared.hooks):
                if not isinstance(event, kinds):
                    continue
                context = self.context
                try:
                    if context is None:
                        hook(event)
                    else:
                        context.copy().run(hook, event)  # a copy: no context can be entered twice at a time
                except BaseException as error:  # noqa: BLE001  (SystemExit, a native panic: it has happened all the same)
                    # Kept only: a hook that is called with its own failure would fail at that, too.
                    failed = HookFailed(
                        at=self._clock.now(), session=self.session, hook=describe(hook), error=type(error).__name__
                    )
                    with self._lock:
                        self._events.append(failed)
        finally:
            inside.remove(thread)


#: Why ``cost_optimal`` is due, or is not.
CostReason = Literal["grown", "pause", "budget", "configured", "below_best", "nothing_to_cover", "ends_soon"]


class Skip(StrEnum):
    """Why a compactor did nothing."""

    DISABLED = "disabled"
    """``config.enabled`` is False."""
    EMPTY = "empty"
    """There is no round."""
    REVERTED = "reverted"
    """No round is newer than the revert."""
    BELOW_TRIGGER = "below_trigger"
    """The trigger is not due."""
    NOTHING_CLOSED = "nothing_closed"
    """All rounds after the compaction are open, or follow an open one."""
    NOTHING_NEW = "nothing_new"
    """Retaining the recent rounds leaves none to cover, or too few for a summary to make prompts shorter."""
    TOO_LITTLE = "too_little"
    """The new rounds say too little to be summarized. More rounds may change that."""
    LEASED = "leased"
    """Another process compacts this history, or did when it ended. Its lease lasts 4 seconds and is renewed while it
    does; the compactor evaluates again when it would expire, or at the next event."""
    LIMITED = "limited"
    """The shared limits have no room for a call. The compactor queues, and evaluates again when its turn comes."""
    PAUSED = "paused"
    """The host's event loop, on which its coroutines run, does not run. The compactor evaluates again when it does."""
    DISPATCHED = "dispatched"
    """A compaction is due, and the dispatcher has a worker do it. The compactor evaluates again after a minute."""


class CompactionEvent(Event):
    """An event of one role's compactor."""

    generation: int = 0
    """The generation that the decision was based on."""


class SummaryEvent(CompactionEvent):
    """An event about the answer to a summarizer's request."""

    strategy: str = ""
    """The strategy that asked for it."""
    start: int
    """First round summarized."""
    end: int
    """Last round summarized, inclusive."""
    seconds: float
    """Time taken from the first request on, checks included."""
    usage: FieldMapping[str, int] | None = None
    """Token usage of all requests."""
    price: float | None = None
    """Dollars that *usage* costs, by the list price of *model*; None: unknown."""
    model: str | None = None
    """The model that answered."""


class Evaluated(CompactionEvent):
    """The trigger was evaluated."""

    name: ClassVar[str] = "compaction.evaluated"
    level: ClassVar[str] = "debug"
    is_due: bool
    """Whether a compaction is due."""
    forced: bool = False
    """Whether ``compact_now`` asked for it; the trigger is ignored then."""
    rounds: int
    """Visible rounds."""
    tail: int
    """Visible rounds after the compaction's end."""


class CostEvaluated(CompactionEvent):
    """``cost_optimal`` compared the cost of a compaction with its saving. In tokens, except prices."""

    name: ClassVar[str] = "compaction.cost_evaluated"
    level: ClassVar[str] = "debug"
    is_due: bool
    """Whether a compaction is due."""
    reason: CostReason
    """Due: the new rounds have ``grown`` enough, a ``pause`` is likely to outlast the provider's cache, the ``budget``
    is near, or a threshold that the host has ``configured`` is passed. Not due: they are ``below_best``, there is
    ``nothing_to_cover``, or the conversation ``ends_soon``."""
    grown: int
    """Tokens that a compaction would newly cover now."""
    best: float | None
    """Tokens to cover at which a compaction costs least; None: more is always cheaper."""
    floor: int
    """Fewer tokens are never covered, except to keep the budget."""
    ceiling: int
    """A prompt of so many tokens makes a compaction due whatever it costs."""
    tokens: int
    """The whole prompt now: system messages and tools, the summary, the tail."""
    per_call: float
    """Tokens by which the conversation grows with each call of the agent's model."""
    system: int
    """Tokens of system messages and tools."""
    summary: int
    """Tokens of the newest summary, or of the target length before there is one."""
    retained: int
    """Tokens that stay as they are, including those that arrive while a compaction is made."""
    latency_calls: float
    """Calls of the agent's model while a compaction is made."""
    price: float
    """The cost of one compaction, in uncached input tokens."""
    cached_price: float
    """The price of a cached token, where an uncached one costs 1."""
    calls_left: float | None = None
    """Calls still to come, if known."""
    likely_cold: float = 0.0
    """How likely a pause goes on until the provider's cache has expired, by the session's earlier pauses; 0 before it
    is time to compact for that."""


class Skipped(CompactionEvent):
    """There was a reason to do nothing."""

    name: ClassVar[str] = "compaction.skipped"
    level: ClassVar[str] = "debug"
    reason: Skip
    """The reason."""
    rounds: int
    """Visible rounds; 0 if none were read because the compactor is disabled, as in ``tail`` and ``closed``."""
    tail: int
    """Visible rounds after the compaction's end."""
    closed: int
    """Rounds before the first open one."""
    retry_in: float | None = None
    """Seconds until another process's lease expires, or until the limits have room for the first in the queue; None
    where only the end of a call makes room, and for other reasons."""


class Started(CompactionEvent):
    """A summarizer is about to be called."""

    name: ClassVar[str] = "compaction.started"
    strategy: str = ""
    """The strategy that calls it."""
    start: int
    """First round to summarize."""
    end: int
    """Last round to summarize, inclusive."""
    tokens_before: int
    """Tokens of the previous summary and the new rounds, as prompts show them; as the summarizer reads them if the
    answer is an intermediate result."""
    waited: float = 0.0
    """Seconds since a compaction became due: in the queue of the limits, or for another process's lease."""


class Prepared(SummaryEvent):
    """A summary passed its checks. It is not shown yet."""

    name: ClassVar[str] = "compaction.prepared"
    level: ClassVar[str] = "debug"
    tokens_before: int
    """Tokens of what it summarizes, as in ``Started``."""
    tokens_after: int
    """Tokens of the summary."""
    restored: int = 0
    """Number of user prohibitions that the summary had dropped and that were restored."""
    unknown_identifiers: tuple[str, ...] = ()
    """Identifiers that its source does not contain; too few to reject it."""
    reused: bool = False
    """Nobody was asked: the same request was answered before, and *usage* was spent then."""
    major: bool = False
    """Existing notes were rewritten in full, perhaps from rounds sent before."""
    sent_tokens: int = 0
    """Tokens of the rounds sent for it, in all attempts."""


class Deferred(CompactionEvent):
    """The publication policy decided whether to show a prepared compaction. In tokens, except times and prices."""

    name: ClassVar[str] = "compaction.deferred"
    level: ClassVar[str] = "debug"
    shows: bool
    """Whether it is shown now. If the prompt stays too long even so, it is extended first."""
    reason: str
    """Shown: the provider's cache is ``cold``, the ``budget`` needs it, or longer prompts have ``repaid`` the price of
    a new prefix. Deferred: there is ``no_gain``, or it is ``saving`` still. ``failed``: the policy raised. Or the word
    of a policy of the host's."""
    end: int
    """Last round that it covers, inclusive."""
    tokens_before: int
    """The whole prompt as it is shown."""
    tokens_after: int
    """The whole prompt with this compaction."""
    summary: int
    """Tokens of the compaction in a prompt."""
    retained: int
    """Tokens behind its end when it was prepared."""
    calls: int
    """Calls of the agent's model since it was prepared."""
    missed_saving: int
    """Tokens by which the prompts of these calls were longer than with it, in total."""
    saving: float
    """What showing it would have saved so far, in uncached input tokens."""
    price: float
    """What a new prefix costs, in uncached input tokens."""
    idle: float
    """Seconds since the newest post."""
    recheck_in: float | None = None
    """Seconds until it is evaluated again if nothing happens before."""


class Rejected(SummaryEvent):
    """A summary failed a check. Unless this was the last attempt, the summarizer is asked again at once.

    Its time and usage are those of this attempt. At level debug: the failure that follows is an event of its own,
    ``Failed`` or ``StrategyFailed``, and names the check.
    """

    name: ClassVar[str] = "compaction.rejected"
    level: ClassVar[str] = "debug"
    check: str
    """The name of the check, one of ``acceptance.CHECKS``."""
    attempt: int
    """Counts from 1."""
    attempts: int
    """Maximum number of attempts."""
    unknown_identifiers: tuple[str, ...] = ()
    """Identifiers that its source does not contain, if that was the fault."""


class Published(SummaryEvent):
    """A compaction is shown from now on; *generation* is its own."""

    name: ClassVar[str] = "compaction.published"
    first_round_id: str = ""
    """First round that the previous compaction did not cover; empty: none."""
    last_round_id: str = ""
    """Last round that the previous compaction did not cover; empty: none."""
    tokens_before: int
    """Tokens of the previous summary and the newly covered rounds, as prompts showed them."""
    tokens_after: int
    """Tokens of the new summary in a prompt."""
    requests: int = 1
    """Requests to the summarizer."""
    reused: bool = False
    """It was paid for in an earlier cycle, perhaps another process's; *usage* is of that cycle."""
    major: bool = False
    """Existing notes were rewritten in full, perhaps from rounds sent before. Otherwise the newly covered rounds were
    sent once, apart from rejected attempts. False for a *reused* one: see its ``Prepared``."""
    sent_tokens: int = 0
    """Tokens of the rounds sent for it in this cycle, in all *requests*, rejected ones included."""
    offline: bool = False
    """No model answers: new rounds were added to its text by extraction, and the text stays as it was."""


class Failed(CompactionEvent):
    """A cycle failed; the published compaction stands."""

    name: ClassVar[str] = "compaction.failed"
    level: ClassVar[str] = "warning"
    error: str
    """The class of the error, or the name of the check that a summary failed."""
    failures: int
    """Failures in a row."""
    retry_in: float
    """Seconds until the next attempt."""
    circuit_open: bool = False
    """Whether attempts are rare from now on."""
    kind: FailureKind = FailureKind.OTHER
    """The kind of failure."""
    status: int | None = None
    """The endpoint's HTTP status, if it answered with an error."""


class Discarded(CompactionEvent):
    """A result was not published, and never will be."""

    name: ClassVar[str] = "compaction.discarded"
    reason: str
    """``stopped``, ``late``, ``generation``, ``rounds_changed``, ``behind``, ``interpreter_exit``; of a reduction also
    ``torn``, ``pinned``, ``newest_query``, or ``already_covered``: by another overlay; also if no Memory keeps
    reductions. After ``stopped``, an
    accepted answer stays in the log, and the next start publishes it without asking again."""


class Reverted(CompactionEvent):
    """The previous compaction became current again; *generation* is the new one."""

    name: ClassVar[str] = "compaction.reverted"
    end: int
    """Last round covered now; 0: there is no compaction."""


class Stopped(CompactionEvent):
    """The compactor stopped by itself."""

    name: ClassVar[str] = "compaction.stopped"
    level: ClassVar[str] = "warning"
    reason: str
    """``executor_shut_down`` or ``session_purged``."""


class PlanFailed(CompactionEvent):
    """The host's ``plan`` raised; the prompt or the cycle goes on without a plan."""

    name: ClassVar[str] = "plan.failed"
    level: ClassVar[str] = "warning"
    error: str
    """The class of the error."""


class PublicationFailed(CompactionEvent):
    """The host's ``publish`` policy raised or returned no ``Decision``; what makes prompts shorter is shown."""

    name: ClassVar[str] = "publication.failed"
    level: ClassVar[str] = "warning"
    error: str
    """The class of the error."""


class Reduced(CompactionEvent):
    """A reduction was published: some posts of one round read shorter from now on."""

    name: ClassVar[str] = "compaction.reduced"
    strategy: str
    """The strategy that made it."""
    kind: str
    """``offloaded``, ``dropped`` or ``summarised``."""
    round_id: str
    """The round of the posts."""
    first_post_id: str
    """First post covered; empty: the round's query."""
    last_post_id: str
    """Last post covered, inclusive; empty: the round's query."""
    previous_post_id: str = ""
    """The post before the first one covered; empty: the round's query, or none."""
    next_post_id: str = ""
    """The post after the last one covered; empty: none."""
    posts: int
    """Number of posts covered."""
    tokens_before: int
    """Tokens of these posts before."""
    tokens_after: int
    """Tokens of their replacement."""
    usage: FieldMapping[str, int] | None = None
    """Token usage, if a summarizer was called."""
    price: float | None = None
    """Dollars that *usage* costs, by the list price of *model*; None: unknown."""
    model: str | None = None
    """The model that answered, if any."""


class StrategyFailed(CompactionEvent):
    """A strategy raised; the next one is tried."""

    name: ClassVar[str] = "compaction.strategy_failed"
    level: ClassVar[str] = "warning"
    strategy: str
    """The strategy."""
    error: str
    """The class of the error, or the name of the check that a summary failed."""
    kind: FailureKind = FailureKind.OTHER
    """The kind of failure."""
    status: int | None = None
    """The endpoint's HTTP status, if it answered with an error."""


class Exhausted(CompactionEvent):
    """All strategies ran and the trigger is still due: only the levels of ``compose`` keep prompts within budget."""

    name: ClassVar[str] = "compaction.exhausted"
    level: ClassVar[str] = "warning"
    strategies: int
    """Number of strategies that ran."""
    tokens: int
    """Tokens of the prompt after them."""


class IndexingFailed(CompactionEvent):
    """Old rounds could not be indexed for search; the next search does it."""

    name: ClassVar[str] = "search.indexing_failed"
    level: ClassVar[str] = "warning"
    error: str
    """The class of the error."""


class PersistFailed(CompactionEvent):
    """The journal failed at something optional. Emitted when that begins, and when the error changes."""

    name: ClassVar[str] = "compaction.persist_failed"
    level: ClassVar[str] = "warning"
    what: Literal["answer", "lease", "event"]
    """``answer``: a paid answer is kept in this process only; ``lease``: other processes may ask for the same summary;
    ``event``: an event is not in the log."""
    error: str
    """The class of the error."""


class ModelUnknown(CompactionEvent):
    """The model's tokenizer or window is unknown, or both; a default is used."""

    name: ClassVar[str] = "tokens.model_unknown"
    level: ClassVar[str] = "warning"
    model: str
    """The model."""
    encoding: str
    """The encoding that counts tokens: the model's own, or the default if it is unknown."""
    window: int | None = None
    """The model's window in tokens; None: unknown, and 128,000 count as its window."""


_NO_HOOKS = EventHooks()

# Characters that a terminal acts on instead of showing them, except line ends and tabs: C0 and C1 controls, line and
# paragraph separators, bidirectional controls, lone surrogates.
_CONTROLS = compile_later("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_controls(text: str) -> str:
    """Return *text* safe to print: characters that a terminal would act on are escaped, as ``\\x1b``."""
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def log_events(logger: Any | None = None) -> EventHook:
    """Return a hook that writes each event to *logger*, by default structlog's: ``compactor.on_event(log_events())``.

    The event's name is the message and its facts are the fields.
    """
    import structlog

    log = logger if logger is not None else structlog.get_logger("compactor")

    def write(event: Event) -> None:
        getattr(log, event.level)(event.name, **event.facts())

    return write


def make_logger(stream: TextIO | None = None, *, json: bool = False, level: str = "info") -> Any:
    """Return a logger that writes JSON lines, or lines for a console, to *stream* (standard error by default).

    structlog's global configuration is left as it is. Raises ``ValueError`` for a *level* that logging does not have.
    """
    import structlog

    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise ValueError(f"there is no level {level!r}; give one of debug, info, warning and error")
    if json:
        rendering: list[Any] = [structlog.processors.JSONRenderer(default=str)]
    else:
        rendering = [_escape_texts, structlog.dev.ConsoleRenderer(colors=False)]
    stamps: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    return structlog.wrap_logger(
        structlog.PrintLogger(stream if stream is not None else sys.stderr),
        processors=[*stamps, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(known[level.upper()]),
    )


def _escape_texts(_logger: Any, _name: str, facts: Any) -> Any:
    """Return *facts* with each text on one line and escaped, so that none looks like another event."""
    return {
        name: " ".join(escape_controls(fact).split()) if isinstance(fact, str) else fact for name, fact in facts.items()
    }
