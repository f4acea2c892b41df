"""The pauses of a conversation: how likely it is that the next prompt finds the provider's cache expired."""

from __future__ import annotations

from dataclasses import dataclass

from memory.visibility import Rounds

from ..view import View

#: Providers keep the beginning of a prompt for this many seconds after reading it.
CACHE_SECONDS = 300.0
#: A summarizer that continues the agent's prompt is asked this many seconds after the newest post: the prompt is still
#: in the cache, and few users write in the time that is left.
LAST_CALL_SECONDS = 0.8 * CACHE_SECONDS
#: A shorter wait is over: added to a clock that has run for long, it may be nothing, and be waited for without end.
MIN_WAIT = 0.001
#: Maximum rounds whose pauses are read when a session is opened.
MAX_ROUNDS = 128


@dataclass(slots=True, eq=False, repr=False)
class Pauses:
    """How long a conversation's users pause, as one compactor has seen it. One thread writes it."""

    #: How many pauses took ``LAST_CALL_SECONDS`` or more, and how many of these outlasted the cache. Only pauses that
    #: have ended count.
    long: int = 0
    cold: int = 0
    #: Number of visible rounds that were read; the newest post's round and number; when it was first seen, in seconds.
    _read: int = 0
    _newest: tuple[str, int] = ("", 0)
    _since: float = 0.0

    def observe(self, view: View) -> float:
        """Take note of *view*'s new rounds, and return the seconds since its newest post was first seen.

        0 for the rounds of another host: these do not say when they came.
        """
        if view.work is None or not view.total or not isinstance(view.rounds, Rounds):
            return 0.0
        for place in range(max(min(self._read, view.total), view.total - MAX_ROUNDS, 1), view.total):
            before, after = view.rounds[place - 1], view.rounds[place]
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
        """Return a sentence on what pauses change; empty: nothing."""
        if not self.cold:
            return ""
        pauses = f"{self.cold} of {self.long} pauses of {LAST_CALL_SECONDS / 60:g} minutes or more"
        return f" Earlier in a pause: so far, {pauses} outlasted the provider's cache."

    def likely_cold(self, idle: float, *, continues: bool) -> tuple[float, float | None]:
        """Return how likely the next prompt finds the cache expired, and the seconds after which to ask again if
        nothing happens before; None: there is no need to.

        The likelihood is 0 except where a compaction is cheap: just before the cache's end for a summarizer that
        *continues* the prompt, and after it for any other. It is never 1: one more pause is counted, after which nobody
        goes on.
        """
        if not self.cold:
            return 0.0, None
        begin, end = (LAST_CALL_SECONDS, CACHE_SECONDS) if continues else (CACHE_SECONDS, float("inf"))
        if (left := begin - idle) > MIN_WAIT:
            return 0.0, left
        return (self.cold / (self.long + 1) if idle < end else 0.0), None
