"""The default summarizer, without a model: it keeps the most informative lines, word for word.

A line is a clause of the user's messages, or a sentence, field or record of any other text. The summary prints each
user message as one item: the chosen clauses in order, with a mark at each gap (``statements``). It rewords nothing, but
drops greetings and introductory phrases of the user ("I'm trying to", "could you please"; ``padding.yaml``).

How a line is chosen:

* Its *gain* is the sum of ``kind x rarity`` over its terms: identifiers, amounts, dates, names, content words (see
  ``content``). Rarity is the inverse document frequency over posts, scaled to 0..1. It is squared if a third or more of
  the conversation is work with tools, which print the same words again and again. The weight of identifiers and numbers
  grows by 0.1 for each doubling of the rounds they recur in, and by 0.4 for each further kind of speaker.
* A term in an already chosen line counts less, so further lines add new content instead of repeating it. This is
  summarisation as a submodular function (Lin and Bilmes 2011), chosen greedily with lazy evaluation (Minoux 1978).
* The gain is multiplied by a weight for the kind of line. The user's words count most, above all at the beginning of a
  message: people state their wish first. Agents' words count as much as the user's if both say as much, and less the
  more agents say: a long explanation is easy to ask for again. Results come between. The larger the share of work with
  tools, the less openings count, and the more agents' reports with ids.
* The product is divided by the tokens that the line adds. A clause next to a chosen one of its message adds only its
  own tokens, so a message survives in a few runs with context, not in scraps.
* Prohibitions come first, whole, in up to half of the space; other standing instructions as long as all of them take no
  more than a third, or two fifths beside tool calls. Up to a quarter is reserved for results: less if few messages have
  one, but never less than the results of the earlier summary take. A newer value of a thing removes the older one.
* Tool calls have lines of their own, ``call(arguments) → outcome`` (``actions``), and so have files and ids in play.
  Their share of the space grows with the number of calls relative to the user's messages.

The next compaction parses the summary's own items again. Each keeps its message and place, so fifty small compactions
choose about the same lines as a single one.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor
from contextlib import nullcontext

from memory.arguments import check_whole_number

from ..tokens import TokenCounter, count_tokens
from .base import Summary, SummaryRequest

#: Lets one extract of the process work at a time. Several would take as long in all: the interpreter runs one thread,
#: and each more that wants it adds a switch interval (5 ms) to the waits of an event loop. Guards nothing.
_extract_lock = threading.Lock()


def _after_fork() -> None:
    global _extract_lock  # noqa: PLW0603  (a thread of the parent may hold it)
    _extract_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class ExtractiveSummarizer:
    """Summarise by choosing lines: deterministic, offline, in any language, without a word that nobody said.

    With *executor*, a ``ProcessPoolExecutor`` of the host's, another process does the work, and the chat keeps the
    interpreter to itself; *count* must be picklable then. Not the executor of a compactor: its job would wait for
    another one there. What the executor raises is raised here.
    """

    #: The same request returns the same summary, so a retry is useless.
    deterministic = True
    #: It writes whole summaries, not edits of notes.
    takes_changes = False
    #: It reads rounds, not messages.
    takes_continued = False

    def __init__(
        self, *, target_tokens: int = 1000, count: TokenCounter | None = None, executor: Executor | None = None
    ) -> None:
        self._target = check_whole_number("target_tokens", target_tokens, 1)
        self._count = count or count_tokens
        self._executor = executor

    def __call__(self, request: SummaryRequest) -> Summary:
        """Return a summary within the target, well below the size of the rounds; ``NOTHING`` if they have no words."""
        if self._executor is None:
            from .choice import choose  # with all that it needs, which a process pays for at its first summary

            target = self._target if request.target_tokens is None else request.target_tokens
            # A host's counter may block, or wait for another extract.
            with _extract_lock if self._count is count_tokens else nullcontext():
                return choose(request, max(1, target), self._count)
        # What is read and no more: the messages repeat the rounds.
        read = SummaryRequest(
            kind=request.kind, previous=request.previous, rounds=request.rounds, target_tokens=request.target_tokens
        )
        worker = ExtractiveSummarizer(target_tokens=self._target, count=self._count)
        return self._executor.submit(worker, read).result()
