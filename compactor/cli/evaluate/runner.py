"""Takes transcripts through a Memory and a compactor, many compactions each, and keeps every summary."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memory import CompactedMessage, Memory
from memory.events import EventHook
from memory.messages import ASSISTANT
from memory.rounds import Round, cached_property, copy_with

from ...background import ContextCompactor
from ...config import CompactorConfig
from ...cycle import Strategy
from ...errors import CompactionFailed, SummaryRejected, classify_failure
from ...strategies import compact_rounds
from ...summarizers.base import Summarizer, SummarizerError, Summary, SummaryRequest
from ...summarizers.extractive import ExtractiveSummarizer
from ...timers import DaemonExecutor
from ...tokens import count_tokens
from ..replay import NamedConversation
from ..terminal import CommandError, is_lasting, name_options
from .metered import SpendReached, Unanswered
from .retention import Item, find_items, read_source

#: Minimum mean tokens of a part: of less, no summary can be shorter.
MIN_BATCH = 200
#: Attempts at a compaction whose endpoint fails, and the seconds of the first wait and of the longest one.
ATTEMPTS, _FIRST_WAIT, _LONGEST_WAIT = 3, 1.0, 60.0
#: Mean characters of a token that no text exceeds.
_MAX_TOKEN = 40
#: Seconds of one wait. Waits are short so that an interrupt ends them on every platform.
_WAIT = 0.5


@dataclass(frozen=True)
class Compaction:
    """A summary, and the last round that it covers."""

    end: int
    summary: str


@dataclass(frozen=True)
class Source:
    """A conversation: its rounds, the items to keep of them, and the ends of its compactions."""

    name: str
    conversation: NamedConversation
    rounds: Sequence[Round]
    #: For each message, the number of rounds there are after it.
    reached: Sequence[int]
    system: str
    ends: Sequence[int]

    @classmethod
    def from_conversation(cls, name: str, conversation: NamedConversation, compactions: int) -> Source:
        """Return *conversation* cut into at most so many parts of about equal length."""
        memory, reached = Memory(), []
        for message in conversation[1]:
            memory.append(message)
            reached.append(len(memory.conversation.rounds))
        rounds = tuple(memory.get_role_rounds(ASSISTANT)[0])
        system = "\n".join(post.message for post in memory.header)
        return cls(name, conversation, rounds, reached, system, _find_ends(rounds, compactions))

    @cached_property
    def texts(self) -> list[str]:
        return [read_source(round_) for round_ in self.rounds]

    @cached_property
    def tokens(self) -> int:
        return sum(map(count_tokens, self.texts))

    @cached_property
    def items(self) -> list[Item]:
        return find_items(self.rounds, ASSISTANT)


def _find_ends(rounds: Sequence[Round], compactions: int) -> list[int]:
    """Return the last round of each of at most so many parts of about equal length."""
    sizes = [count_tokens(read_source(round_)) for round_ in rounds]
    parts = max(1, min(compactions, sum(sizes) // MIN_BATCH))
    ends, left, taken = list[int](), sum(sizes), 0
    for number, size in enumerate(sizes, 1):
        taken += size
        # What is left is shared anew after each part: a huge round takes from all that follow, not from the next.
        if number == len(sizes) or (len(ends) < parts - 1 and taken * (parts - len(ends)) >= left):
            ends.append(number)
            left, taken = left - taken, 0
    return ends


@dataclass(frozen=True)
class EvaluationRunner:
    """Compacts sources with one summarizer and one configuration."""

    config: CompactorConfig
    strategy: Strategy
    summarizer: Summarizer
    hooks: Sequence[EventHook] = ()
    wait: Callable[[float], None] = time.sleep

    def run(self, source: Source, step: Callable[[], None] = lambda: None) -> list[Compaction]:
        """Return the compactions of *source*, oldest first. *step* is called after each part.

        A compaction whose answers are rejected, or contain no summary, is left out, and the next one covers its rounds
        as well. Ends early if the spend is reached. Raises ``CommandError`` if the endpoint fails ``ATTEMPTS`` times in
        a row, or refuses the key or the model, or the model has not yet given a summary.
        """
        memory, strategies = Memory(), (self.strategy,)
        compactor = ContextCompactor.for_role(memory, ASSISTANT, self.config, self.summarizer, strategies=strategies)
        for hook in self.hooks:
            compactor.on_event(hook)
        sent, messages, executor = 0, source.conversation[1], DaemonExecutor(1)
        try:
            for end in source.ends:
                while sent < len(messages) and source.reached[sent] <= end:
                    memory.append(messages[sent])
                    sent += 1
                memory.finish_round(memory.conversation.rounds[-1])
                if not self._compact(compactor, executor):
                    break
                step()
        finally:
            executor.shutdown(wait=False)
            compactor.stop(0)
        published = (one.compaction for one in compactor.history() if one.happened == "published")
        return [Compaction(one.last_round, one.summary) for one in published if one is not None]

    def _compact(self, compactor: ContextCompactor, executor: DaemonExecutor) -> bool:
        """Return False if the spend is reached."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _compact_now(compactor, executor)
                return True
            except CompactionFailed as failed:
                cause: BaseException = failed.__cause__ or failed
                if isinstance(cause, SpendReached):
                    return False
                if isinstance(cause, SummaryRejected) or (isinstance(cause, Unanswered) and attempt == ATTEMPTS):
                    return True
                if isinstance(cause, CommandError):
                    raise cause from None
                reason = name_options(str(cause)) if isinstance(cause, SummarizerError) else type(cause).__name__
                if is_lasting(*classify_failure(cause)):
                    raise CommandError(f"{reason}; then run it again: it continues here") from None
                if attempt == ATTEMPTS:
                    raise CommandError(f"no answer in {ATTEMPTS} attempts: {reason}") from None
                seconds = getattr(cause, "retry_after", None) or _FIRST_WAIT * 2.0 ** (attempt - 1)
                self.wait(min(seconds, _LONGEST_WAIT))
        return True


def _compact_now(compactor: ContextCompactor, executor: DaemonExecutor) -> CompactedMessage | None:
    future = executor.submit(compactor.compact_now)
    while True:
        try:
            return future.result(_WAIT)
        except TimeoutError:
            if future.done():
                raise


# --- what needs no model ----------------------------------------------------------------------------------------------


def summarize_offline(source: Source, like: Sequence[Compaction], runner: EvaluationRunner) -> list[Compaction]:
    """Return the offline summaries of *source*, each about as long as the one of *like* there."""
    lengths = {one.end: count_tokens(one.summary) for one in like}

    def summarize(request: SummaryRequest) -> Summary:
        length = next((length for end, length in lengths.items() if end >= request.end_index), None)
        return ExtractiveSummarizer()(copy_with(request, target_tokens=length or request.target_tokens))

    summarize.deterministic, summarize.takes_changes, summarize.takes_continued = True, False, False  # type: ignore[attr-defined]
    ends = [one.end for one in like]
    return copy_with(runner, summarizer=summarize, strategy=compact_rounds, hooks=()).run(copy_with(source, ends=ends))


def cut_text(source: Source, like: Sequence[Compaction], *, last: bool) -> list[Compaction]:
    """Return the beginning of *source*, or with *last* its end: as many tokens as each of *like* has."""

    def cut(end: int, tokens: int) -> str:
        text = "\n".join(source.texts[:end])
        longest = range(min(len(text), _MAX_TOKEN * tokens) + 1)
        fitting = (
            bisect_right(longest, tokens, key=lambda n: count_tokens(text[len(text) - n :] if last else text[:n])) - 1
        )
        return text[len(text) - fitting :] if last else text[:fitting]

    return [Compaction(one.end, cut(one.end, count_tokens(one.summary))) for one in like]
