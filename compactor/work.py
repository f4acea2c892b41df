"""What a strategy asks with while a cycle lasts: answers are counted and told of, kept before use, and found again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memory.entries import CompactionPrepared
from memory.events import Event
from memory.overlays import CompactedMessage, Origin
from memory.rounds import Round

from .acceptance import CHECKS, Reading, Source
from .asking import USUAL, Answer, Ask, Traits, accepted
from .checks.standing import in_force, lost
from .config import CompactorConfig
from .errors import LimitReached, SummaryRejected
from .events import Prepared, Rejected, Started
from .keeping.keeping import Keeping, digest_of
from .last_prompt import LastPrompt, continued
from .summarizers.base import Continued, RequestKind, Summary, SummaryRequest
from .triggers import Size, Verdict
from .view import View

__all__ = ["CycleWork"]

#: At least so many tokens are there for sentences that a summary lost, however short it should be.
_LEAST_ROOM = 128
#: And so many where no length is wished for.
_USUAL_ROOM = 500


@dataclass
class CycleWork:
    """The ``Work`` of one cycle.

    An accepted answer is kept before anything else is done with it, and the same question is not asked again while it
    is. Not those of a summarizer that would answer the same again for nothing: they would only fill the log.
    """

    config: CompactorConfig
    mark: int | None
    plan: str | None
    _ask: Ask
    _emit: Callable[[Event], None]
    _monotonic: Callable[[], float]
    #: What the summarizer says of itself.
    traits: Traits = USUAL
    #: Where accepted answers are kept, and found again; None: nowhere.
    keeping: Keeping | None = None
    #: Called with this and each request before it is made; what it raises goes out.
    before_asking: Callable[[CycleWork, SummaryRequest], object] = lambda _work, _request: None
    #: The newest round's id and the number of its newest post, as they are when it is called.
    newest_place: Callable[[], tuple[str, int]] = lambda: ("", 0)
    #: The newest prompt of its role, where it is known and shows all of its tail.
    last_prompt: LastPrompt | None = None
    #: The sizes that are over their marks; None: nobody knows.
    exceeds: frozenset[Size] | None = None
    #: How the answer that was accepted last came about.
    origin: Origin = field(default=Origin(), init=False)
    #: The generation that is current, and how many of the view's rounds its compaction covers.
    base: int = field(default=0, init=False)
    covered: int = field(default=0, init=False)
    #: The answers that there were then.
    _known: Sequence[str] = field(default=(), init=False)
    #: Whether that answer was found, and no request was made since the last publication.
    reused: bool = field(default=False, init=False)
    #: The strategy that runs, and since the last publication: when it began, and the requests that were made.
    strategy: str = field(default="", init=False)
    began: float = field(default=0.0, init=False)
    requests: int = field(default=0, init=False)
    #: Likewise: whether what stood before was written anew in full, and the tokens of all rounds that were sent.
    major: bool = field(default=False, init=False)
    sent_tokens: int = field(default=0, init=False)
    _asked_at: float = field(default=0.0, init=False)

    @property
    def takes_changes(self) -> bool:
        return self.traits.takes_changes

    def look(self, verdict: Verdict) -> None:
        """Take note of what is exceeded now."""
        self.mark, self.exceeds = verdict.mark, verdict.exceeds

    def begin(self, strategy: str) -> None:
        """Count requests and time from here on, for *strategy*."""
        self.strategy, self.began, self.requests, self.reused = strategy, self._monotonic(), 0, False
        self.major, self.sent_tokens = False, 0
        self.origin = Origin(strategy=strategy)

    def go_on_from(self, base: int, covered: int) -> None:
        """Take note of what is current now."""
        self.base, self.covered = base, covered
        self._known = self.keeping.known(base)[1] if self.keeping is not None else ()

    def is_current(self) -> bool:
        """Return whether nobody has published since, nor left an answer that need not be asked for again."""
        return self.keeping is None or self.keeping.known(self.base) == (True, self._known)

    @property
    def seconds(self) -> float:
        return self._monotonic() - self.began

    def continued(
        self, view: View, previous: CompactedMessage | None, rounds: Sequence[Round], instruction: str
    ) -> Continued | None:
        if not self.traits.takes_continued:
            return None
        limit, count = self.config.summarizer_input_tokens, view.ledger.count
        return continued(self.last_prompt, previous, rounds, instruction, model=view.model, count=count, limit=limit)

    def summarize(
        self,
        request: SummaryRequest,
        source: Source,
        view: View,
        standing: Sequence[str] | None = None,
        becomes: Callable[[Summary], CompactedMessage] | None = None,
        reading: Reading | None = None,
        *,
        major: bool = False,
    ) -> Summary:
        """What all attempts took is in the answer. Changes are asked for once: who fails at them is better asked for
        something else."""
        before, began, sent = source.previous_tokens + source.tokens + source.frame, self._monotonic(), self.sent_tokens
        generation = view.compaction.generation if view.compaction else 0
        span = {"role": view.role, "generation": generation, "strategy": self.strategy}
        span |= {"start": request.start_index, "end": request.end_index}
        attempts = 1 if request.kind == "changes" else self.traits.attempts(self.config)
        judged = self._judged(request, source, view, standing, reading)
        digest = digest_of(request) if self.keeping is not None else ""
        made = found = self._found(digest, request, judged)
        if made is None:
            self.before_asking(self, request)
            self._emit(Started(**span, tokens_before=before))
            sending = view.ledger.count(source.text) if source.sent is None else source.sent
            made = judged(
                partial(self._counted, sending), attempts=attempts, tell=partial(self._refused, request, span, attempts)
            )
            self.origin = Origin(digest, tuple(CHECKS), self.strategy)
            compaction = becomes(made.summary) if becomes is not None and self.keeping is not None else None
            self.keep(view, replace(made.summary, text=made.said), compaction, request.kind)
        self.origin, self.major = Origin(digest, tuple(CHECKS), self.strategy), major or self.major
        self.reused = found is not None and not self.requests
        self._emit(
            Prepared(
                **span,
                tokens_before=before,
                tokens_after=made.tokens + source.frame,
                seconds=self._monotonic() - began,
                usage=made.summary.usage,
                model=made.summary.model,
                restored=made.restored,
                unknown_identifiers=made.unknown,
                reused=found is not None,
                major=major,
                sent_tokens=self.sent_tokens - sent,
            )
        )
        return made.summary

    def _judged(
        self,
        request: SummaryRequest,
        source: Source,
        view: View,
        standing: Sequence[str] | None,
        reading: Reading | None,
    ) -> Callable[..., Answer]:
        """Return ``accepted``, with all that an answer to *request* is judged by."""
        pinned, previous = _pinned(request, view), request.previous.summary if request.previous else ""
        standing = in_force(request.previous, request.rounds) if standing is None else standing
        return partial(
            accepted,
            request=request,
            source=replace(
                source,
                beside=(*source.beside, request.plan or self.plan or "", *pinned),
                previous=source.previous or previous,
            ),
            count=view.ledger.count,
            standing=lost(standing, pinned) if request.kind in ("rounds", "changes") else (),
            room=_USUAL_ROOM if request.target_tokens is None else max(_LEAST_ROOM, request.target_tokens // 2),
            reading=reading,
        )

    def _found(self, digest: str, request: SummaryRequest, judged: Callable[..., Answer]) -> Answer | None:
        """Return what was answered to *request* before, if it passes the checks of today."""
        kept = self.keeping.answer(digest, request.kind, self.base) if self.keeping is not None else None
        if kept is None:
            return None
        try:
            return judged(lambda _request: Summary(kept.text, kept.usage, kept.model), attempts=1)
        except SummaryRejected:
            return None

    def keep(
        self, view: View, said: Summary, compaction: CompactedMessage | None, kind: RequestKind = "rounds"
    ) -> None:
        """Keep what was *said*, and the *compaction* that could be published of it, if answers are kept at all."""
        if self.keeping is None:
            return
        seen_round_id, seen_post = self.newest_place()
        covered = view.rounds[self.covered : compaction.end_index] if compaction is not None else ()
        self.keeping.prepare(
            CompactionPrepared(
                role=view.role,
                digest=self.origin.digest,
                base=self.base,
                kind=kind,
                strategy=self.origin.strategy,
                text=said.text,
                model=said.model,
                usage=said.usage,
                checks=self.origin.checks,
                compaction=compaction,
                round_ids=tuple(round_.id for round_ in covered),
                seen_round_id=seen_round_id,
                seen_post=seen_post,
            )
        )

    def _counted(self, sending: int, request: SummaryRequest) -> str | Summary:
        self.requests += 1
        self.sent_tokens += sending
        self._asked_at = self._monotonic()
        return self._ask(request)

    def _refused(
        self,
        request: SummaryRequest,
        span: Mapping[str, Any],
        attempts: int,
        rejected: SummaryRejected,
        attempt: int,
        answer: object,
    ) -> None:
        self._emit(
            Rejected(
                **span,
                check=rejected.check,
                attempt=attempt,
                attempts=attempts,
                unknown_identifiers=rejected.identifiers if rejected.check == "invented" else (),
                seconds=self._monotonic() - self._asked_at,
                usage=answer.usage if isinstance(answer, Summary) else None,
                model=answer.model if isinstance(answer, Summary) else None,
            )
        )
        if attempt < attempts:
            try:
                self.before_asking(self, request)
            except LimitReached:  # to begin anew when there is room would pay for the first attempt again and again
                raise rejected from None


def _pinned(request: SummaryRequest, view: View) -> tuple[str, ...]:
    """Return the texts that are shown word for word beside the summary."""
    pins: frozenset[tuple[str, int]] = getattr(view.rounds, "pins", frozenset())
    posts = [
        text
        for round_ in request.rounds
        for number, text in ((0, round_.user_query), *((post.number, post.message) for post in round_.post_list))
        if (round_.id, number) in pins
    ]
    return (*getattr(request.previous, "pinned", ()), *posts)
