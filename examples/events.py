"""What a compactor does, as JSON lines: each decision is an event with its numbers, and none holds what was said.

Runs offline. The first attempt fails here, so that a failure and its retry are seen too.
"""

from __future__ import annotations

import sys
import threading

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Event,
    ExtractiveSummarizer,
    Memory,
    Summary,
    SummaryRequest,
    log_events,
    make_logger,
)

_extract = ExtractiveSummarizer()
_attempts = iter(range(1_000))


def flaky(request: SummaryRequest) -> Summary:
    """Fail once, then summarise."""
    if next(_attempts) == 0:
        raise ConnectionError("the endpoint is being restarted")
    return _extract(request)


def main() -> None:
    memory = Memory("watched")
    config = CompactorConfig(threshold=4, retain_recent=1, backoff_initial=0.05)
    compactor = ContextCompactor.for_role(memory, "Planner", config, flaky)
    # level="debug" shows every look at the trigger as well, with the reason where nothing was done.
    compactor.on_event(log_events(make_logger(sys.stdout, json=True)))
    published = threading.Event()

    def notice(event: Event) -> None:  # a hook runs in the background, where things happen: be quick
        if event.name == "compaction.published":
            published.set()

    compactor.on_event(notice)
    with compactor:
        for number in range(1, 9):
            round_ = memory.create_round(f"Book a table for {number} at 19:{number:02}")
            memory.add_post(round_, send_from="Planner", send_to="User", message=f"Booked, number T-{100 + number}.")
            memory.finish_round(round_)
        published.wait(timeout=30)
    status = compactor.status()
    print(f"{status.state}: {status.generation} published, covers rounds 1-{status.end_index}", file=sys.stderr)


if __name__ == "__main__":
    main()
