"""Two processes write rounds to one session at once, each with a compactor, and a third follows: all see the same.

    python -m benchmarks.two_writers                        # SQLite, in a temporary folder
    python -m benchmarks.two_writers --postgres             # a server of its own
    python -m benchmarks.two_writers --store URL --rounds 100

Prints a table in Markdown; the exit code is 1 where something is missing, is there twice or is seen in another order,
where a process was told of a round twice or not at all, or where two paid for the same summary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.sessions import (
    CONFIG,
    ROLE,
    Call,
    Found,
    PaidSummarizer,
    calls_in,
    found_in,
    opened,
    processes,
    server,
    write_round,
)
from compactor import ContextCompactor, Published
from memory import Conflict, Event, Memory, Round, open_store

#: In seconds; only something that is broken ever takes so long.
PATIENCE = 600.0


@dataclass(frozen=True)
class Task:
    url: str
    session: str
    name: str
    #: How many it writes; 0: it follows.
    rounds: int
    #: How many there are in the end.
    total: int
    #: Where calls to the summarizer are counted.
    paid: Path


@dataclass
class Seen:
    """What one process saw of the session."""

    name: str
    #: Ids of all rounds in their order, and a digest of all that is in them.
    order: list[str] = field(default_factory=list)
    digest: str = ""
    #: What its hook was called with.
    announced: list[int] = field(default_factory=list)
    #: Of the compactions that it published.
    generations: list[int] = field(default_factory=list)
    #: The tag of each post that it wrote, by id.
    posts: dict[str, str] = field(default_factory=dict)
    conflicts: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def digest_of(rounds: Iterable[Round]) -> str:
    """Return what tells conversations apart."""
    digest = hashlib.sha256()
    for round_ in rounds:
        digest.update(json.dumps(round_.model_dump(), default=str).encode())
    return digest.hexdigest()


def take_part(task: Task, together: Barrier, pipe: Connection) -> None:
    """Write or follow, and send what was seen: in a process of its own."""
    seen = Seen(task.name)
    store = open_store(task.url)
    append = store.append

    def counted(*arguments: Any) -> int:
        try:
            return append(*arguments)
        except Conflict:
            seen.conflicts += 1
            raise

    store.append = counted  # type: ignore[method-assign, assignment]
    memory = Memory(task.session, store=store)
    memory.on_round_added(seen.announced.append)
    together.wait(PATIENCE)
    if task.rounds:
        _write(task, memory, seen)
    else:
        _follow(task, memory)
    together.wait(PATIENCE)
    memory.refresh()
    rounds = list(memory.conversation.rounds)
    seen.order, seen.digest = [round_.id for round_ in rounds], digest_of(rounds)
    store.close()
    pipe.send(seen)
    pipe.close()


def _write(task: Task, memory: Memory, seen: Seen) -> None:
    def heard(event: Event) -> None:
        if isinstance(event, Published):
            seen.generations.append(event.generation)
        elif event.name.endswith((".failed", ".rejected")):
            seen.failures.append(f"{event.name}: {event.facts()}")

    def emit(what: str, id_: str, tag: str) -> None:
        if what == "post":
            seen.posts[id_] = tag

    summarizer = PaidSummarizer(task.paid, task.name)
    with ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard) as compactor:
        began = time.monotonic()
        for number in range(1, task.rounds + 1):
            write_round(memory, f"{task.name}.{number}", emit)
        seen.seconds = time.monotonic() - began
        compactor.wait_idle(PATIENCE)


def _follow(task: Task, memory: Memory) -> None:
    """Read what the others write until they are through."""
    while len(memory.conversation.rounds) < task.total or memory.open_rounds:
        memory.refresh()
        time.sleep(0.005)  # the processor is theirs


# -- what is found -----------------------------------------------------------------------------------------------------


@dataclass
class Result:
    found: Found
    seen: list[Seen]
    calls: list[Call]
    faults: list[str]


def run(url: str, rounds: int, folder: Path, *, writers: int = 2, followers: int = 1) -> Result:
    """Have *writers* write *rounds* in all to a new session, and return what became of it."""
    context: Any = processes()
    session, paid = f"two-writers-{time.time_ns():x}", folder / "paid"
    together = context.Barrier(writers + followers)
    names = [f"w{number}" for number in range(writers)] + [f"f{number}" for number in range(followers)]
    total = rounds // writers * writers
    pipes, started = [], []
    for number, name in enumerate(names):
        reader, writer = context.Pipe(duplex=False)
        task = Task(url, session, name, rounds // writers if number < writers else 0, total, paid)
        process = context.Process(target=take_part, args=(task, together, writer), daemon=True)
        process.start()
        writer.close()
        pipes.append(reader)
        started.append(process)
    try:
        seen: list[Seen] = [reader.recv() for reader in pipes]
        for process in started:
            process.join(PATIENCE)
    finally:
        for process in started:  # where one has failed, the others wait for it
            process.kill()
    with opened(url) as store:
        found = found_in(store, session, random.Random(rounds))
    result = Result(found, seen, calls_in(paid), list(found.faults))
    _compare(result, total)
    return result


def _compare(result: Result, total: int) -> None:
    found, faults = result.found, result.faults

    def expect(is_due: bool, fault: str) -> None:
        if not is_due:
            faults.append(fault)

    order, digest = [round_.id for round_ in found.rounds], digest_of(found.rounds)
    expect(len(order) == total, f"there are {len(order)} rounds, and {total} were written")
    expect(all(round_.state == "finished" for round_ in found.rounds), "a round is open")
    written = {id_: tag for seen in result.seen for id_, tag in seen.posts.items()}
    expect(found.posts == written, "the posts are not those that were written")
    for seen in result.seen:
        expect(seen.order == order, f"{seen.name} sees another order")
        expect(seen.digest == digest, f"{seen.name} sees other posts")
        expect(sorted(seen.announced) == list(range(1, total + 1)), f"{seen.name} was not told of each round once")
        expect(seen.generations == sorted(set(seen.generations)), f"{seen.name}: generations do not grow")
        faults.extend(f"{seen.name}: {failure}" for failure in seen.failures)
    published = [generation for seen in result.seen for generation in seen.generations]
    expect(sorted(published) == list(range(1, found.generation + 1)), "a generation was published twice or not told of")
    answers = [text for texts in found.answers.values() for text in texts]
    expect(all(len(texts) == 1 for texts in found.answers.values()), "an answer was kept twice")
    asked = Counter(call.digest for call in result.calls)
    expect(all(times == 1 for times in asked.values()), "the same was paid for twice")
    expect(len(answers) == len(result.calls), f"{len(result.calls)} calls were made, and {len(answers)} answers kept")


def report(result: Result) -> None:
    found, writers = result.found, [seen for seen in result.seen if seen.seconds]
    seconds = max(seen.seconds for seen in writers)
    rows = {
        "rounds": f"{len(found.rounds):,}",
        "posts": f"{len(found.posts):,}",
        "entries": f"{found.entries:,}",
        "rounds a second, both": f"{len(found.rounds) / seconds:.0f}",
        "entries a second, both": f"{found.entries / seconds:.0f}",
        "conflicts": f"{sum(seen.conflicts for seen in writers):,}",
        "changes of writer from round to round": f"{_changes(found):,}",
        "compactions published, by each": " + ".join(str(len(seen.generations)) for seen in writers),
        "calls to the summarizer": f"{len(result.calls):,}",
        "violations": str(len(result.faults)),
    }
    print("| | |\n|---|--:|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    for fault in result.faults:
        print(f"\n{fault}")


def _changes(found: Found) -> int:
    """Return how often the next round is another process's: 0 would be one after the other, and show little."""
    names = [round_.user_query.partition(".")[0] for round_ in found.rounds]
    return sum(one != other for one, other in pairwise(names))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="", help="the URL of a database; default: a SQLite file, gone afterwards")
    parser.add_argument("--postgres", action="store_true", help="start a server")
    parser.add_argument("--rounds", type=int, default=2_000, help="by both together")
    parser.add_argument("--followers", type=int, default=1)
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = given.store or f"sqlite:///{(folder / 'log.db').as_posix()}"
        if given.postgres:
            url = stack.enter_context(server()).url()
        result = run(url, given.rounds, folder, followers=given.followers)
    report(result)
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
