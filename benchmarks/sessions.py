"""What the processes of a benchmark write to one session, and what is looked for in its log afterwards.

Every text begins with a tag that says where it belongs, and follows from the tag: so whoever reads the log can tell
whether a text is whole without having been told what was written.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

from compactor import CompactorConfig, SummaryRequest, count_tokens
from compactor.summarize import compute_digest
from memory import ContextError, Entry, Memory, Post, Round, Store, ToolCall, open_store
from memory.entries import CompactionPrepared, CompactionPublished, PostAdded, RoundOpened

ROLE = "assistant"
#: Compactions are due often, and leave a tail.
CONFIG = CompactorConfig(threshold=3, retain_recent=1)
#: Some of them are what stores and formats stumble over.
WORDS = ("parcel", "tariff", "harbour", "invoice", "\0", "half\ud83d", "{braces}", "</summary>", "漢字", "naïve", "😀")
LENGTHS = (8, 20, 20, 20, 40, 40, 40, 40, 40, 40, 40, 2_000)

count_tokens(".")  # loads its table once, before processes are forked

#: Tells the parent of something that is durable: what it is, its id, and its tag.
Tell = Callable[[str, str, str], None]


def text_of(tag: str) -> str:
    """Return the text that belongs to *tag*."""
    rng = random.Random(tag)
    return " ".join((tag, *rng.choices(WORDS, k=rng.choice(LENGTHS))))


def write_round(memory: Memory, tag: str, emit: Tell = lambda *_: None) -> None:
    """Write a round with a tool call, its result and an answer, and *tell* of each as soon as it is written."""
    round_ = memory.create_round(text_of(f"{tag}.query"))
    emit("round", round_.id, f"{tag}.query")
    for part, fields in (
        ("call", {"send_from": ROLE, "send_to": "User", "tool_calls": (_call(f"{tag}.call"),)}),
        ("result", {"send_from": "tool", "send_to": ROLE, "tool_call_id": f"{tag}.call"}),
        ("answer", {"send_from": ROLE, "send_to": "User"}),
    ):
        post = memory.add_post(round_, message=text_of(f"{tag}.{part}"), **cast("dict[str, Any]", fields))
        emit("post", post.id, f"{tag}.{part}")
    memory.finish_round(round_)
    emit("finished", round_.id, f"{tag}.query")


def _call(tag: str) -> ToolCall:
    return ToolCall(id=tag, name="look_up", arguments=text_of(f"{tag}.arguments"))


def is_whole(post: Post) -> bool:
    """Return whether *post* is to the letter what ``write_round`` writes."""
    tag = _tag_of(post.message)
    calls = (_call(tag),) if tag.endswith(".call") else ()
    answers = f"{tag.rpartition('.')[0]}.call" if tag.endswith(".result") else None
    return (post.message, post.tool_calls, post.tool_call_id) == (text_of(tag), calls, answers)


def _tag_of(text: str) -> str:
    return text.partition(" ")[0]


# -- calls that are paid for -------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One call to the summarizer."""

    #: Who asked, what was asked, and a word that stands in the answer.
    writer: str
    digest: str
    word: str
    began: float
    #: The first word of its rounds: the tag of the text that it begins with.
    tag: str


class PaidSummarizer:
    """Answers after *seconds*; each call is in the file at *path* before, whatever becomes of the process then."""

    def __init__(self, path: Path, writer: str, seconds: float = 0.004) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        self._writer = writer
        self._seconds = seconds

    def __call__(self, request: SummaryRequest) -> str:
        word = str(uuid4().int)  # without letters: those of a hash read like words that the conversation lacks
        tag = _tag_of(request.rounds[0].user_query) or "-"
        os.write(self._file, f"{self._writer} {compute_digest(request)} {word} {time.monotonic()} {tag}\n".encode())
        time.sleep(self._seconds)
        before = request.previous.summary.partition(", in ")[2].partition(";")[0] if request.previous else ""
        tags = ", ".join([before] * bool(before) + [_tag_of(one.user_query) for one in request.rounds])
        return f"They spoke of a parcel, a tariff, a harbour and an invoice, in {tags}; noted down under {word}."


def calls_in(path: Path) -> list[Call]:
    text = path.read_text(encoding="ascii") if path.exists() else ""
    lines = text.splitlines()[: text.count("\n")]  # the last one may be half written
    return [Call(writer, digest, word, float(began), tag) for writer, digest, word, began, tag in map(str.split, lines)]


# -- what is found -----------------------------------------------------------------------------------------------------


class Plain:
    """A store without all that it may have beside its promises: a Memory on it reads the whole log."""

    def __init__(self, store: Store) -> None:
        self.append, self.read, self.sessions = store.append, store.read, store.sessions
        self.redact, self.purge, self.close = store.redact, store.purge, store.close


@dataclass
class Found:
    """What is in a session, and what is wrong with it."""

    rounds: Sequence[Round] = ()
    #: The tag of each post by its id.
    posts: dict[str, str] = field(default_factory=dict)
    #: Words of the summarizer's answers that are in the log, by the request's digest.
    answers: dict[str, list[str]] = field(default_factory=dict)
    entries: int = 0
    publications: int = 0
    generation: int = 0
    covered: int = 0
    faults: list[str] = field(default_factory=list)

    def expect(self, is_due: bool, fault: str) -> None:
        if not is_due:
            self.faults.append(fault)


def found_in(store: Store, session: str, rng: random.Random) -> Found:
    """Return what is in *session* as a new Memory shows it, and all that contradicts what a log promises."""
    found = Found()
    memory, replayed = Memory(session, store=store), Memory(session, store=Plain(store))
    while memory.snapshot.number != replayed.snapshot.number:  # what a killed client had sent may come in still
        memory.refresh()
        replayed.refresh()
    log = list(store.read(session, limit=memory.snapshot.number))
    _look_at_log(found, log)
    found.rounds = list(memory.conversation.rounds)
    _look_at_rounds(found, memory)
    _look_at_compactions(found, log, memory)
    here, there = memory.snapshot, replayed.snapshot
    for name in (
        "number",
        "header",
        "closed_prefix",
        "open_rounds",
        "failed",
        "journals",
        "prepared",
        "pins",
        "usages",
    ):
        found.expect(getattr(here, name) == getattr(there, name), f"opened by its checkpoint, {name} is another")
    found.expect(found.rounds == list(replayed.conversation.rounds), "opened by its checkpoint, rounds are others")
    if found.rounds:
        # Words, and a tag, which stands in one place only.
        query = rng.choice([*WORDS, _tag_of(rng.choice(found.rounds).user_query)])
        hits = memory.search(query, role=ROLE)
        found.expect(hits == replayed.search(query, role=ROLE), "the text index gives other answers than the log")
    return found


def _look_at_log(found: Found, log: Sequence[Entry]) -> None:
    found.entries = len(log)
    found.expect([entry.number for entry in log] == list(range(1, len(log) + 1)), "numbers have gaps")
    found.expect(len({entry.id for entry in log}) == len(log), "an entry is there twice")
    for entry in log:
        try:
            record = entry.record
        except ContextError as error:
            found.faults.append(f"entry {entry.number} cannot be read: {error}")
            continue
        match record:
            case RoundOpened(user_query=query):
                found.expect(query == text_of(_tag_of(query)), f"entry {entry.number}: a torn query")
            case PostAdded(post=post):
                found.expect(is_whole(post), f"entry {entry.number}: a torn post")


def _look_at_rounds(found: Found, memory: Memory) -> None:
    tags: Counter[str] = Counter()
    for place, round_ in enumerate(found.rounds, 1):
        tag = _tag_of(round_.user_query)
        tags[tag] += 1
        found.expect(round_.number == place, f"round {round_.number} stands in place {place}")
        found.expect(round_.user_query == text_of(tag), f"round {place}: a torn query")
        parts = [f"{tag.rpartition('.')[0]}.{part}" for part in ("call", "result", "answer")]
        said = [_tag_of(post.message) for post in round_.post_list]
        found.expect(said == parts[: len(said)], f"round {place}: its posts are not those that were written")
        found.expect(all(map(is_whole, round_.post_list)), f"round {place}: a torn post")
        for post, part in zip(round_.post_list, said, strict=True):
            found.expect(post.id not in found.posts, f"round {place}: a post that is there twice")
            found.posts[post.id] = part
    found.expect(all(times == 1 for times in tags.values()), "a round is there twice")
    settled = memory.snapshot.closed_prefix
    found.expect(all(round_.closed for round_ in found.rounds[:settled]), "an open round counts as settled")


def _look_at_compactions(found: Found, log: Iterable[Entry], memory: Memory) -> None:
    ids = [round_.id for round_ in found.rounds]
    for entry in log:
        match entry.record:
            case CompactionPrepared(digest=digest, text=text):
                found.answers.setdefault(digest, []).append(text)
            case CompactionPublished(compaction=made, round_ids=round_ids, digest=digest):
                end, found.publications = made.end_number or 0, found.publications + 1
                found.expect(made.generation == found.generation + 1, f"entry {entry.number}: generations do not grow")
                found.expect(found.covered < end <= len(ids), f"entry {entry.number}: covers what is not there")
                found.expect(
                    list(round_ids) == ids[found.covered : end] and made.end_round_id == ids[end - 1],
                    f"entry {entry.number}: covers other rounds than it says",
                )
                found.expect(
                    made.summary in found.answers.get(digest, ()), f"entry {entry.number}: was not prepared like that"
                )
                found.generation, found.covered = made.generation, end
    state = memory.journal(ROLE).read()
    found.expect(state.generation == found.generation, "the current generation is not that of the log")
    shown = state.current.end_number if state.current is not None else 0
    found.expect(shown == found.covered, "the current compaction is not the newest in the log")


# -- where and by whom -------------------------------------------------------------------------------------------------


def processes() -> BaseContext:
    """Return what starts processes that share nothing with this one, and quickly where this system can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.sessions", "memory.stores.sql", "sqlite3", "psycopg"])
    return context


@contextmanager
def server() -> Iterator[Any]:
    """Give a PostgreSQL server of our own whose writes are durable; it runs, and is gone afterwards."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    postgres = import_module("postgres")
    folder = postgres.binaries()
    if folder is None:
        raise SystemExit("PostgreSQL is not installed: there is no initdb and pg_ctl on PATH; give --store a URL")
    running = postgres.Postgres(folder, postgres.DURABLE)
    try:
        running.start()
        yield running
    finally:
        running.remove()


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()
