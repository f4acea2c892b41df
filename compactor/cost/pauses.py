"""The pauses of a conversation, and the probability that the next prompt finds the provider's cache expired."""

from __future__ import annotations

from dataclasses import dataclass

from ..view import View

#: Seconds that providers keep the beginning of a prompt after reading it.
CACHE_SECONDS = 300.0
#: Seconds after the newest post at which a summarizer that continues the agent's prompt is asked: the prompt is still
#: in the cache, and few users write in the time that is left.
LAST_CALL_SECONDS = 0.8 * CACHE_SECONDS
#: Shorter waits count as over: added to a large clock value, they may vanish and repeat forever.
MIN_WAIT = 0.001
#: Maximum rounds whose pauses are read when a session is opened.
MAX_ROUNDS = 128


@dataclass(slots=True, eq=False, repr=False)
class Pauses:
    """How long a conversation's users pause, as seen by one compactor. Only one thread writes it."""

    #: Number of ended pauses of ``LAST_CALL_SECONDS`` or more; of these, the number that outlasted the cache.
    long: int = 0
    cold: int = 0
    #: Number of visible rounds that were read; the newest post's round and number; when it was first seen, in seconds.
    _read: int = 0
    _newest: tuple[str, int] = ("", 0)
    _since: float = 0.0

    def observe(self, view: View) -> float:
        """Record *view*'s new rounds, and return the seconds since its newest post was first seen.

        Returns 0 for the rounds of another host, because these have no times.
        """
        if view.work is None or not view.total or view.rounds.snapshot is None:
            return 0.0
        for index in range(max(min(self._read, view.total), view.total - MAX_ROUNDS, 1), view.total):
            before, after = view.rounds[index - 1], view.rounds[index]
            last = before.post_list[-1] if before.post_list else before
            try:
                seconds = (after.created_at - last.created_at).total_seconds()
            except TypeError:  # one has a zone, the other has none
                continue
            self.long += seconds >= LAST_CALL_SECONDS
            self.cold += seconds >= CACHE_SECONDS
        self._read = view.total
        newest, now = view.rounds[view.total - 1], view.work.monotonic()
        newest_post = newest.id, newest.post_list[-1].number if newest.post_list else 0
        if newest_post != self._newest:
            self._newest, self._since = newest_post, now
        return now - self._since

    def describe(self) -> str:
        """Return a sentence on the effect of pauses; empty: they have none."""
        if not self.cold:
            return ""
        pauses = f"{self.cold} of {self.long} pauses of {LAST_CALL_SECONDS / 60:g} minutes or more"
        return f" Earlier in a pause: so far, {pauses} outlasted the provider's cache."

    def estimate_likely_cold(self, idle: float, *, continues: bool) -> tuple[float, float | None]:
        """Return the probability that the next prompt finds the cache expired, and the seconds until the next
        evaluation if nothing happens before; None: none is needed.

        The probability is 0 except where a compaction is cheap: just before the cache's end for a summarizer that
        *continues* the prompt, and after it for any other. It is never 1: one more pause is counted, after which nobody
        continues.
        """
        if not self.cold:
            return 0.0, None
        begin, end = (LAST_CALL_SECONDS, CACHE_SECONDS) if continues else (CACHE_SECONDS, float("inf"))
        if (left := begin - idle) > MIN_WAIT:
            return 0.0, left
        return (self.cold / (self.long + 1) if idle < end else 0.0), None
