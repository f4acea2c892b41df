"""Stand-ins for the compactors of several processes that share limits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from scene import PRICES, ROLE

from compactor import InMemoryStore, Limit, LimitReached, SharedLimits, SummarizerError, Summary, SummaryRequest
from compactor.cost import Prices
from compactor.cost.shared_limits import SharedPermit, SharedTicket
from compactor.testing import FakeClock
from memory import Store

ONE = [Limit(max_concurrency=1)]
#: A dollar for each token of an answer.
BY_ANSWER = Prices(summarizer_input=0.0, summarizer_output=1.0, per_token=1.0)


def answering(tokens: int, read: int = 0) -> Summary:
    return Summary(PRICES, {"input_tokens": read, "output_tokens": tokens})


class Model:
    """Says where it is, and answers as it is told."""

    def __init__(self, endpoint: str = "", model: str = "") -> None:
        self.endpoint, self.model = endpoint, model
        self.answer: Any = answering(10)

    def __call__(self, _request: SummaryRequest) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Actor:
    """Stands for a compactor in a process: asks, waits, is woken."""

    def __init__(self, limits: SharedLimits, session: str = "s", model: Model | None = None) -> None:
        self.model = model if model is not None else Model()
        self.ticket: SharedTicket = limits.make_ticket(self.model, self._call)
        self.session = session
        self.woken = 0
        self.gone = False
        self.permit: SharedPermit | None = None

    def _call(self) -> bool:
        self.woken += 1
        return not self.gone

    def ask(self, tokens: int = 10) -> LimitReached | None:
        """Begin a cycle that asks; return what stands against it."""
        if isinstance(clock := self.ticket.limits._clock, FakeClock):
            clock.advance(1e-6)  # whoever comes later is later
        if self.permit is None:
            self.permit = self.ticket.take_permit(self.session, ROLE)
        try:
            self.permit.reserve(SummaryRequest(target_tokens=tokens), len)
        except LimitReached as limit:
            self.permit.release()
            self.permit = None
            self.ticket.wait(limit)
            return limit
        return None

    def queue(self, tokens: int = 10) -> LimitReached:
        """Begin a cycle that may not ask; return what stands against it."""
        refused = self.ask(tokens)
        assert refused is not None
        return refused

    def end(self, answer: Any = None) -> None:
        """Make the call, and end the cycle."""
        assert self.permit is not None
        permit, self.permit = self.permit, None
        if answer is not None:
            self.model.answer = answer
        try:
            permit.ask(self.model, SummaryRequest())
        except SummarizerError:
            pass
        permit.release()


class Jobs:
    """A dispatcher that keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def due(self, session: str, role: str, not_before: datetime | None = None) -> None:
        assert not_before is not None, "room is there now"
        self.asked.append((session, role))


class Scene:
    """Limits on a store whose time a test decides."""

    def __init__(self, limits: list[Limit], **more: Any) -> None:
        self.clock = FakeClock()
        self.store: Store = InMemoryStore(self.clock.monotonic)
        self._limits, self._more = limits, more
        self.limits = self.process()

    def process(self, **more: Any) -> SharedLimits:
        """Return the limits as another process has them."""
        return SharedLimits(self.store, self._limits, clock=self.clock, **{**self._more, **more})
