"""The metrics: one table that all writers read, and the measurements of each event. No label names a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from memory.events import Event
from memory.rounds import utc_now

from ..background import ContextCompactor
from ..events import Discarded, Failed, Prepared, Published, Reduced, Rejected, Reverted, Started
from ..sessions import Sessions
from ..workers.due import Worker

#: Objects that can be observed.
Target = Sessions | ContextCompactor | Worker
#: Events behind metrics and spans. Evaluations are excluded: they are emitted on the appending thread.
EVENTS: tuple[type[Event], ...] = (Started, Prepared, Rejected, Published, Reduced, Failed, Discarded, Reverted)

_TOKENS = (250.0, 500.0, 1e3, 2e3, 4e3, 8e3, 16e3, 32e3, 64e3, 128e3, 256e3, 512e3, 1e6)
_SECONDS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metric(NamedTuple):
    """One metric, as OpenTelemetry describes it."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    #: Upper bounds of a histogram's buckets.
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus, as OpenTelemetry's exporter writes it, without the ``_total`` of a counter."""
        unit = {"s": "_seconds", "USD": "_USD"}.get(self.unit, "")
        return self.name.replace(".", "_") + unit


COMPACTIONS = Metric(
    "compactor.compactions",
    "counter",
    "{compaction}",
    "Outcomes of compactions: published, offline (published without a model), reduced (some posts shortened),"
    " rejected (an answer failed a check), failed, discarded, reverted.",
    ("outcome", "role"),
)
FAILURES = Metric("compactor.failures", "counter", "{failure}", "Failed compactions by kind.", ("kind", "role"))
TOKENS_BEFORE = Metric(
    "compactor.tokens.before", "histogram", "{token}", "Tokens that a published compaction replaces.", (), _TOKENS
)
TOKENS_AFTER = Metric(
    "compactor.tokens.after", "histogram", "{token}", "Tokens of a published compaction.", (), _TOKENS
)
SAVED = Metric(
    "compactor.tokens.saved", "counter", "{token}", "Tokens by which compactions and reductions made prompts shorter."
)
SPEND = Metric("compactor.spend", "counter", "USD", "List price of the answers, rejected ones included.", ("model",))
DURATION = Metric("compactor.duration", "histogram", "s", "Time to make a compaction that was published.", (), _SECONDS)
WAIT = Metric(
    "compactor.wait", "histogram", "s", "Time from a compaction becoming due to the first request.", (), _SECONDS
)
AGE = Metric(
    "compactor.uncovered.age",
    "gauge",
    "s",
    "Age of the oldest uncovered round in sessions with a due compaction; 0: none is due.",
)
CIRCUITS = Metric("compactor.circuits.open", "gauge", "{circuit}", "Compactors that retry rarely after failures.")
#: All metrics.
METRICS = (COMPACTIONS, FAILURES, TOKENS_BEFORE, TOKENS_AFTER, SAVED, SPEND, DURATION, WAIT, AGE, CIRCUITS)

#: A metric, the value to add, and the values of its labels.
Measurement = tuple[Metric, float, Mapping[str, str]]
_OUTCOMES = {Reduced: "reduced", Rejected: "rejected", Failed: "failed", Discarded: "discarded", Reverted: "reverted"}


class PaidResponse(NamedTuple):
    """One response of a model, accepted or rejected."""

    event: Prepared | Rejected
    started: datetime
    usage: Mapping[str, int]
    #: In dollars; None: unknown.
    price: float | None


class PaidResponses:
    """Extracts the paid responses from the events of any number of compactors."""

    def __init__(self) -> None:
        #: By session and role: rejected responses to a request that may be retried.
        self._rejected: dict[tuple[str, str], list[PaidResponse]] = {}

    def read(self, event: Event) -> PaidResponse | None:
        """Return the response in *event*; None if there is none, or it was free, such as an offline one."""
        if isinstance(event, Started):
            self._rejected.pop((event.session, event.role), None)
        if not isinstance(event, Prepared | Rejected) or (event.usage is None and event.price == 0):
            return None
        if isinstance(event, Prepared) and event.reused:
            return None
        key = event.session, event.role
        if isinstance(event, Prepared):
            # The event's usage, price and time include all attempts.
            rejected = self._rejected.pop(key, [])
            return PaidResponse(
                event,
                max([event.started, *(one.event.at for one in rejected)]),
                _subtract(event.usage or {}, [one.usage for one in rejected]),
                None if event.price is None else max(event.price - sum(one.price or 0.0 for one in rejected), 0.0),
            )
        response = PaidResponse(event, event.started, event.usage or {}, event.price)
        if event.attempt < event.attempts:
            self._rejected.setdefault(key, []).append(response)
        return response


def measure(event: Event, response: PaidResponse | None) -> Iterator[Measurement]:
    """Yield the measurements of *event*; *response* is the response in it, if any."""
    if response is not None and response.price is not None:
        yield SPEND, response.price, {"model": response.event.model or "unknown"}
    if isinstance(event, Started):
        yield WAIT, event.waited, {}
        return
    outcome = _OUTCOMES.get(type(event))
    if isinstance(event, Published):
        outcome = "offline" if event.offline else "published"
        yield TOKENS_BEFORE, event.tokens_before, {}
        yield TOKENS_AFTER, event.tokens_after, {}
        yield DURATION, event.seconds, {}
    if isinstance(event, Failed):
        yield FAILURES, 1, {"kind": event.kind.value, "role": event.role}
    if isinstance(event, Published | Reduced):
        yield SAVED, max(event.tokens_before - event.tokens_after, 0), {}
    if outcome is not None:
        yield COMPACTIONS, 1, {"outcome": outcome, "role": getattr(event, "role", "")}


def read_age(targets: Sequence[Target]) -> float:
    """Return the value of ``AGE`` in seconds. A worker adds nothing: it keeps no sessions open."""
    watched = [target.status() for target in targets if not isinstance(target, Worker)]
    since = [one.behind_since for one in watched if one.behind_since is not None]
    return max((utc_now() - min(since)).total_seconds(), 0.0) if since else 0.0


def count_open_circuits(targets: Sequence[Target]) -> int:
    """Return the value of ``CIRCUITS``. A worker adds nothing."""
    number = 0
    for target in targets:
        if not isinstance(target, Worker):
            number += target.status().circuits_open if isinstance(target, Sessions) else target.circuit_open
    return number


#: The reader of each gauge.
GAUGES = {AGE: read_age, CIRCUITS: count_open_circuits}


def _subtract(usage: Mapping[str, int], parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: max(count - sum(part.get(name, 0) for part in parts), 0) for name, count in usage.items()}
