"""The promises of an adapter, as a pytest class: subclass it in the test suite of your own adapter.

This module imports neither pytest nor a framework. The model is scripted: ``answer`` returns its reply to the user's
newest message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from structlog.testing import capture_logs

from ..summarizers.base import SummaryRequest
from ..summarizers.extractive import ExtractiveSummarizer
from .base import Conversations

__all__ = ["BUDGET", "PATIENCE", "STEPS", "TIMEOUT", "TURNS"]
__all__ += ["AdapterContract", "Host", "Reply", "answer", "ask", "fail", "look"]

#: Turns of a conversation.
TURNS = 25
#: Maximum tokens of its prompts, and maximum messages that the model may see.
BUDGET = 1_200
MAX_SEEN = 30
#: Steps of the turn that calls many tools, and calls in each.
STEPS = 9
CALLS = 3
#: Maximum seconds until a summary, and of a turn that waits for none.
TIMEOUT = 30.0
PATIENCE = 10.0
#: A summary that passes the checks, and its part that is not in the conversation.
SUMMARY, FACT = (
    "To each question about rows of the table there was an answer. The key is under a stone.",
    "under a stone",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the scripted model: a text, or tool calls as name and row."""

    text: str = ""
    calls: tuple[tuple[str, int], ...] = ()


#: Steps taken for each question that asks for many calls; counted here because the model may not see all results.
_asked: Counter[str] = Counter()


def answer(question: str, results: int) -> Reply:
    """Return the model's reply to the user's newest *question*, after *results* tool results in this turn.

    ``two`` in the question asks for two calls at once, ``fails`` for a call that fails, ``many`` for calls in several
    steps, the first time that it is asked; other questions ask for none.
    """
    if "many" in question and _asked[question] <= STEPS:
        _asked[question] += 1
        if (step := _asked[question]) <= STEPS:
            return Reply(calls=tuple(("look", step * CALLS + place) for place in range(CALLS)))
    if not results and "two" in question:
        return Reply(calls=(("look", 1), ("look", 2)))
    if not results and "fails" in question:
        return Reply(calls=(("fail", 1),))
    return Reply(f"answer to {question}")


def look(row: int) -> str:
    """Look up a row."""
    return f"row {row} of the table: " + "word " * 100


def fail(row: int) -> str:
    """Look up a row that does not exist."""
    raise ValueError(f"there is no row {row}")


class Host(Protocol):
    """A small application on the framework: an agent with the tools above, whose model follows ``answer``."""

    #: The requests to the model, oldest first: each as the framework's own messages, without system messages.
    seen: list[Sequence[Any]]
    #: The system prompt of each of these requests: the texts of all its system messages.
    systems: list[str]

    async def say(self, session: str, text: str) -> str:
        """Return the agent's answer to the user's *text*."""

    async def stream(self, session: str, text: str) -> str:
        """Return the agent's streamed answer."""

    async def list_history(self, session: str) -> Sequence[Any]:
        """Return the messages that the framework keeps, in its own form."""

    async def go_back(self, session: str, turns: int) -> None:
        """Continue from before the newest *turns*, as the framework's users do."""

    def read_text(self, message: Any) -> str:
        """Return all text in a message, calls and results included, but no ids."""

    def list_call_ids(self, message: Any) -> tuple[list[str], list[str]]:
        """Return the ids of the calls in a message, and of the calls that it answers."""


class AdapterContract:
    """Implement ``make_host`` and ``make_compaction``, and give the class a ``_path`` (pytest's ``tmp_path``)."""

    # The methods are not abstract: pytest silently collects nothing from an abstract class.

    _path: Path
    #: Whether the framework passes an adapter its own objects rather than copies.
    gives_own_objects = True
    #: Whether the framework passes an adapter the model's answer, and not only the next request.
    tells_answers = True
    #: Whether the framework asks an adapter before each model call rather than once a turn.
    fits_each_call = True

    def make_host(self, compaction: Conversations[Any] | None, previous: Host | None = None) -> Host:
        """Return an application whose model calls go through *compaction*; None: unchanged.

        It continues with the persistence of *previous*, as after a restart.
        """
        raise NotImplementedError("give your test class a method make_host() that returns your application")

    def make_compaction(self, **options: Any) -> Conversations[Any]:
        """Return the adapter's ``Compaction`` with these arguments."""
        raise NotImplementedError("give your test class a method make_compaction() that returns your Compaction")

    # The tests.

    def test_the_agent_says_the_same_and_reads_less(self) -> None:
        """Covers tools, parallel and failing calls; the framework's history stays whole."""
        asyncio.run(self._compare(stream=False))

    def test_a_stream_says_the_same(self) -> None:
        asyncio.run(self._compare(stream=True))

    async def _compare(self, *, stream: bool) -> None:
        plain = self.make_host(None)
        with self._compaction() as compaction:
            host = self.make_host(compaction)
            was: list[Any] = []
            for number in range(TURNS):
                said = [await (one.stream if stream else one.say)("s", ask(number)) for one in (plain, host)]
                assert said[0] == said[1], f"turn {number}"
                await _wait_until_idle(compaction, "s")
                now = [_describe(message) for message in await host.list_history("s")]
                assert now[: len(was)] == was, f"turn {number} changed what the framework keeps"
                was = now
        kept, expected = await host.list_history("s"), await plain.list_history("s")
        assert [*map(host.read_text, kept)] == [*map(plain.read_text, expected)], "the framework's history has changed"
        assert _count_characters(host, host.seen[-1]) < _count_characters(plain, plain.seen[-1]) / 2
        for seen in host.seen:
            assert len(seen) < MAX_SEEN, f"the model saw {len(seen)} messages"
            _check_pairs(host, seen)

    def test_many_calls_in_one_turn_stay_within_the_budget(self) -> None:
        """After other turns, the turn's own oldest calls are left out with their results. If the framework asks an
        adapter only once a turn, the model sees all of them."""

        async def run() -> None:
            plain = self.make_host(None)
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                for number in range(3):
                    assert await host.say("s", ask(number)) == await plain.say("s", ask(number))
                said = []
                for one in (plain, host):
                    _asked.clear()
                    said.append(await one.say("s", "Question, many rows."))
                assert said[0] == said[1] == "answer to Question, many rows."
                kept = [host.read_text(message) for message in await host.list_history("s")]
            rows = [f"row {row} of the table" for row in range(CALLS, CALLS * (STEPS + 1))]
            assert all(any(row in text for text in kept) for row in rows), "the framework's history has changed"
            for place, seen in enumerate(host.seen):
                _check_pairs(host, seen)
                if self.fits_each_call:
                    assert len(seen) < MAX_SEEN, f"the model saw {len(seen)} messages"
                    assert _count_characters(host, seen) < _count_characters(plain, plain.seen[-1]) / 2
                if place > len(host.seen) - STEPS:
                    assert "many rows" in _read_request(host, place), "the model does not see the question"
            assert rows[-1] in _read_request(host, -1), "the model does not see the newest result"

        asyncio.run(run())

    def test_what_is_shown_whole_is_the_frameworks_own(self) -> None:
        async def run() -> None:
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                for number in range(TURNS):
                    await host.say("s", ask(number))
                    await _wait_until_idle(compaction, "s")
                kept = await host.list_history("s")
                with compaction.sessions().open("s") as session:
                    given = list(compaction.write(session.memory.messages()))
                fitted = await compaction.afit("s", given)
            told = [_read(compaction, one) for one in given]
            whole = [one for one in fitted.items if _read(compaction, one) in told]
            assert whole
            assert {*map(id, whole)} <= {*map(id, given)}, "afit returned copies"
            newest = host.seen[-1]
            assert newest
            if self.gives_own_objects:
                own = {id(message) for message in kept}
                shown = [message for message in newest if id(message) in own]
            else:
                shown = [message for message in newest if any(message == one for one in kept)]
            said = set(map(host.read_text, kept))
            assert len(shown) == sum(host.read_text(message) in said for message in newest) > 0

        asyncio.run(run())

    def test_the_log_has_the_answer_when_the_turn_ends(self) -> None:
        """The answer is there once, also after the next call."""

        async def run() -> None:
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                said = []
                for number in range(6):
                    said.append(await (host.stream if number % 2 else host.say)("s", ask(number)))
                    with compaction.sessions().open("s") as session:
                        log = session.memory.messages()
                    told = [one["content"] for one in log if one["role"] == "assistant" and not one.get("tool_calls")]
                    assert told == said if self.tells_answers else told == said[:-1]

        asyncio.run(run())

    def test_sessions_are_apart(self) -> None:
        """Twenty sessions run at once."""

        async def run() -> None:
            with self._compaction() as compaction:
                host = self.make_host(compaction)

                async def talk(number: int) -> None:
                    for turn in range(5):
                        await host.say(f"s{number}", f"two questions {turn} of guest{number:02}")
                        await _wait_until_idle(compaction, f"s{number}")

                await asyncio.gather(*map(talk, range(20)))
                for number in range(20):
                    with compaction.sessions().open(f"s{number}") as session:
                        said = json.dumps(session.memory.messages())
                    assert {f"guest{one:02}" for one in range(20) if f"guest{one:02}" in said} == {f"guest{number:02}"}
            for place in range(len(host.seen)):
                said = _read_request(host, place)
                assert sum(f"guest{one:02}" in said for one in range(20)) == 1

        asyncio.run(run())

    def test_a_restart_duplicates_nothing(self) -> None:
        """Uses the framework's own persistence, and sessions in SQLite."""

        async def run() -> None:
            url = f"sqlite:///{(self._path / 'sessions.db').as_posix()}"
            with self._compaction(store=url) as compaction:
                host = self.make_host(compaction)
                for number in range(6):
                    await host.say("s", ask(number))
            with self._compaction(store=url) as compaction:
                with compaction.sessions().open("s") as session:  # before the host gives its history again
                    log = json.dumps(session.memory.messages())
                for number in range(6):
                    assert log.count(f'"{ask(number)}"') == 1, f"question {number} before the first call"
                again = self.make_host(compaction, host)
                await again.say("s", ask(6))
                await again.say("s", ask(7))
                said = [again.read_text(message) for message in await again.list_history("s")]
                with compaction.sessions().open("s") as session:
                    log = json.dumps(session.memory.messages())
            for number in range(8):
                assert log.count(f'"{ask(number)}"') == 1, f"question {number}"
                assert sum(text == ask(number) for text in said) == 1

        asyncio.run(run())

    def test_a_conversation_without_a_name_stays_one_session(self) -> None:
        """The host takes a question back, drops its oldest messages, and restarts with the same store."""

        async def run() -> None:
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                for number in range(12):
                    await host.say("s", ask(number))
                with compaction.sessions().open("s") as session:
                    log = session.memory.messages()
            asked = [place for place, message in enumerate(log) if message["role"] == "user"]
            url = f"sqlite:///{(self._path / 'unnamed.db').as_posix()}"
            for life in (range(7), range(7, 12)):
                with self._compaction(store=url) as compaction:
                    for number in life:
                        given = log[asked[max(number - 5, 0)] : asked[number] + 1]
                        if number > 3:  # which was taken back
                            given = [*log[asked[max(number - 6, 0)] : asked[3]], *log[asked[4] : asked[number] + 1]]
                        await compaction.afit("", list(compaction.write(given)))
                    names = compaction.sessions().store.sessions()
                    assert len(names) == 1, f"{len(names)} sessions after {life}"

        asyncio.run(run())

    def test_a_replay_with_other_ids_adds_nothing(self) -> None:
        """Another application had the same conversation."""

        async def run() -> None:
            other = self.make_host(None)
            await other.say("other", ask(0))  # some applications number their calls
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                for number in range(6):
                    assert await other.say("s", ask(number)) == await host.say("s", ask(number))
                await self.make_host(compaction, other).say("s", ask(6))
                with compaction.sessions().open("s") as session:
                    log = json.dumps(session.memory.messages())
            for number in range(7):
                assert log.count(f'"{ask(number)}"') == 1, f"question {number}"

        asyncio.run(run())

    def test_going_back_shows_no_word_of_what_was_undone(self) -> None:
        """Goes back into rounds that a summary covers."""

        async def run() -> None:
            with self._compaction() as compaction:
                host = self.make_host(compaction)
                for number in range(TURNS):
                    await host.say("s", ask(number, "taken-back" if number >= 5 else "kept"))
                    await _wait_until_idle(compaction, "s")
                await host.go_back("s", TURNS - 5)
                before = len(host.seen)
                for number in range(TURNS, TURNS + 12):
                    await host.say("s", ask(number))
                    await _wait_until_idle(compaction, "s")
                asked: list[tuple[str, dict[str, Any]]] = [
                    ("search_history", {"query": "Question"}),
                    ("read_rounds", {"start": 1, "end": TURNS}),
                    *(("context_reload", {"ref": f"r{number + 1}"}) for number in range(TURNS)),
                ]
                for name, arguments in asked:
                    assert "taken-back" not in compaction.call_tool("s", name, arguments), f"{name} tells it"
            assert any("taken-back" in _read_request(host, place) for place in range(before))
            for place in range(before, len(host.seen)):
                assert "taken-back" not in _read_request(host, place)

        asyncio.run(run())

    def test_the_model_reads_a_summary_that_no_turn_waits_for(self) -> None:
        ended = threading.Event()
        asked: list[bool] = []

        def summarize(_request: SummaryRequest) -> str:
            asked.append(ended.wait(PATIENCE))
            return SUMMARY

        async def run() -> None:
            with self.make_compaction(budget=BUDGET, summarizer=summarize) as compaction:
                host = self.make_host(compaction)
                for number in range(TURNS):
                    ended.clear()
                    await host.say("s", ask(number))
                    ended.set()
                    assert all(asked), f"turn {number} waited for a summary"
                    await _wait_until_idle(compaction, "s")
            assert asked, "the summarizer was never asked"
            assert FACT in _read_request(host, -1), "the model was not given the summary"

        asyncio.run(run())

    def test_a_summarizer_that_fails_changes_nothing_for_the_agent(self) -> None:
        asked: list[SummaryRequest] = []

        def refuse(request: SummaryRequest) -> str:
            asked.append(request)
            raise RuntimeError("no model answers")

        async def run() -> None:
            plain = self.make_host(None)
            with self.make_compaction(budget=BUDGET, summarizer=refuse) as compaction:
                host = self.make_host(compaction)
                for number in range(TURNS):
                    if number == TURNS // 2:
                        await _wait_until_idle(compaction, "s")
                        assert asked, "the summarizer was never asked"
                    before = len(host.seen)
                    assert await host.say("s", ask(number)) == await plain.say("s", ask(number)), f"turn {number}"
                    if number:
                        said = _read_request(host, before)
                        assert ask(number - 1) in said, f"turn {number} does not show the turn before"
            for seen in host.seen:
                _check_pairs(host, seen)

        asyncio.run(run())

    def test_no_log_holds_what_was_said(self) -> None:
        """Checks messages, other fields and tracebacks of all records from level info, and of the adapter's and ours
        from level debug."""
        logs = _LogCapture()

        async def run() -> None:
            with self._compaction() as compaction:
                logs.watch(type(compaction).__module__)
                host = self.make_host(compaction)
                for number in range(TURNS):
                    await host.say("s", ask(number, "unmistakable"))
                    await _wait_until_idle(compaction, "s")

        logs.watch("compactor", "memory")
        logger = logging.getLogger()
        logger.addHandler(logs)
        level = logger.level
        logger.setLevel(logging.INFO)
        try:
            with capture_logs() as events:
                asyncio.run(run())
        finally:
            logger.setLevel(level)
            logger.removeHandler(logs)
            logs.restore()
        assert "unmistakable" not in repr(events) + "".join(logs.texts)

    def _compaction(self, **options: Any) -> Conversations[Any]:
        return self.make_compaction(budget=BUDGET, summarizer=ExtractiveSummarizer(), **options)


def ask(number: int, word: str = "plain") -> str:
    """Return the user's question of that *number*: every third asks for two calls, every fifth for one that fails."""
    kind = "two rows" if number % 3 == 0 else "fails" if number % 5 == 0 else "nothing"
    return f"Question {number:03}, {kind}, {word}."


async def _wait_until_idle(compaction: Conversations[Any], session_id: str) -> None:
    """Wait until the compactor has evaluated everything. Only tests do so."""
    with compaction.sessions().open(session_id) as session:
        await asyncio.to_thread(session.compactor.wait_idle, TIMEOUT)


def _read(compaction: Conversations[Any], item: Any) -> list[Any]:
    return [message for group in compaction.read([item]) for message in group.messages]


def _read_request(host: Host, index: int) -> str:
    return " ".join([host.systems[index], *map(host.read_text, host.seen[index])])


def _describe(value: Any, depth: int = 8) -> Any:
    """Return the full contents of *value*, to compare with its contents later."""
    if isinstance(value, Mapping):
        return {str(key): _describe(one, depth - 1) for key, one in value.items()} if depth else len(value)
    if isinstance(value, (list, tuple)):
        return [_describe(one, depth - 1) for one in value] if depth else len(value)
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict) and not isinstance(value, type):
        return type(value).__name__, _describe(fields | (getattr(value, "__pydantic_extra__", None) or {}), depth)
    return value if isinstance(value, (str, int, float, bytes, type(None))) else type(value).__name__


def _count_characters(host: Host, messages: Sequence[Any]) -> int:
    return sum(len(host.read_text(message)) for message in messages)


def _check_pairs(host: Host, messages: Sequence[Any]) -> None:
    unanswered: list[str] = []
    for message in messages:
        calls, answers = host.list_call_ids(message)
        for one in answers:
            assert one in unanswered, "a result without its call"
            unanswered.remove(one)
        assert calls or answers or not unanswered, "a call without its result"
        unanswered += calls
    assert not unanswered, "a call without its result"


class _LogCapture(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self._levels: dict[str, int] = {}

    def watch(self, *names: str) -> None:
        """Keep also the debug records of the loggers with these *names*."""
        for name in names:
            logger = logging.getLogger(name)
            self._levels.setdefault(name, logger.level)
            logger.setLevel(logging.DEBUG)

    def restore(self) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        is_watched = any(record.name == name or record.name.startswith(f"{name}.") for name in self._levels)
        if record.levelno < logging.INFO and not is_watched:
            return
        self.texts += [logging.Formatter().format(record), repr(vars(record))]
