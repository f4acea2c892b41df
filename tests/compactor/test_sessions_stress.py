"""Sessions under attack: opened, evicted, cancelled and closed at random; stores that fail and models that hang."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from scene import SOON
from threads import at_once, wait_until

from compactor import CompactorConfig, Event, InMemoryStore, Memory, Published, Session, Sessions, StoreError
from compactor.testing import ScriptedSummarizer

CONFIG = CompactorConfig(threshold=3, retain_recent=1, backoff_initial=0.01)
#: Sessions that are used, and how many of them may be open.
IDS, MAX_OPEN = 200, 9


class Failing(InMemoryStore):
    """A store that waits as a database does, and fails now and then; not while ``rng`` is None."""

    is_resident = False

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng: random.Random | None = rng
        self.answers = threading.Event()
        self.answers.set()

    def append(self, *args: Any) -> None:
        self._answer()
        super().append(*args)

    def read(self, *args: Any, **options: Any) -> Iterator[Any]:
        self._answer()
        return super().read(*args, **options)

    def _answer(self) -> None:
        assert self.answers.wait(SOON)
        if self.rng is not None and self.rng.random() < 0.03:
            raise StoreError("the store is away for a moment; try again")


class Talk:
    """What was said in each session, and what of it was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Failing(random.Random(seed + 1))
        self.model = ScriptedSummarizer([OSError(), None, None] * 40)
        self.sessions = Sessions(self.store, summarizer=self.model, config=CONFIG, max_open=MAX_OPEN, budget=2_000)
        self.acknowledged: dict[str, list[str]] = {f"session-{number}": [] for number in range(IDS)}

    def plan(self, speaker: str, uses: int) -> Iterator[tuple[str, list[str]]]:
        rng = random.Random(f"{speaker} {self.rng.random()}")
        for use in range(uses):
            texts = [f"{speaker}.{use}.{number} costs 17 euros" for number in range(rng.randrange(4))]
            yield f"session-{min(rng.randrange(IDS), rng.randrange(IDS))}", texts

    def check(self) -> None:
        """Nothing that was acknowledged is lost, nobody uses a session, and none is open beyond the limit."""
        wait_until(lambda: self.sessions.status().in_use == 0)
        wait_until(lambda: self.sessions.status().open <= MAX_OPEN)
        assert self.sessions.close(SOON)
        self.store.rng = None
        for session_id, texts in self.acknowledged.items():
            said = "\n".join(str(message["content"]) for message in Memory(session_id, store=self.store).messages())
            assert [text for text in texts if text not in said] == []


def message(number: int, text: str) -> dict[str, str]:
    return {"role": ("user", "assistant")[number % 2], "content": text}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_threads_lose_nothing(seed: int) -> None:
    """Each opens, appends, composes and leaves sessions that the others evict."""
    talk = Talk(seed)

    def speak(speaker: str) -> None:
        for session_id, texts in talk.plan(speaker, 25):
            try:
                with talk.sessions.open(session_id) as session:
                    for number, text in enumerate(texts):
                        session.append(message(number, text))
                        talk.acknowledged[session_id].append(text)
                    if len(texts) == 3:
                        session.compose()
            except StoreError:
                pass

    at_once(*(partial(speak, f"t{number}") for number in range(20)))
    talk.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_two_hundred_tasks_lose_nothing_when_some_are_cancelled(seed: int) -> None:
    """Wherever they are: opening, appending, composing."""
    talk = Talk(seed)

    async def speak(speaker: str) -> None:
        for session_id, texts in talk.plan(speaker, 3):
            try:
                async with talk.sessions.open(session_id) as session:
                    for number, text in enumerate(texts):
                        await session.aappend(message(number, text))
                        talk.acknowledged[session_id].append(text)
                    if len(texts) == 3:
                        await session.acompose()
            except StoreError:
                pass

    async def serve() -> None:
        tasks = [asyncio.create_task(speak(f"t{number}")) for number in range(200)]
        for _ in range(60):
            await asyncio.sleep(0)
            talk.rng.choice(tasks).cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in ended} == {type(None), asyncio.CancelledError}
        await asyncio.to_thread(talk.check)

    asyncio.run(asyncio.wait_for(serve(), 3 * SOON))


def speak(session: Session, rounds: int = 5) -> None:
    for number in range(2 * rounds):
        session.append(message(number, f"Item-{number // 2} costs {number // 2 * 11} euros. " * 3))


def test_too_many_are_closed_as_soon_as_they_are_at_rest() -> None:
    """They were busy when they were left; no further session need be opened."""
    model = ScriptedSummarizer()
    model.hold()
    with Sessions(summarizer=model, config=CONFIG, max_open=1) as sessions:
        for session_id in "abc":
            with sessions.open(session_id) as session:
                speak(session)
        assert model.started.wait(SOON)
        assert sessions.status().open > 1
        model.release()
        wait_until(lambda: sessions.status().open == 1)


def test_a_hook_may_close_the_sessions() -> None:
    """It is not waited for, since it waits itself; all others are."""
    closed: list[bool] = []
    sessions: list[Sessions] = []

    def hook(event: Event) -> None:
        if isinstance(event, Published) and not closed:
            closed.append(sessions[0].close(SOON))

    sessions.append(Sessions(summarizer=ScriptedSummarizer(), config=CONFIG, on_event=hook))
    began = time.monotonic()
    with sessions[0].open("a") as session:
        speak(session)
    wait_until(lambda: closed == [False])
    assert sessions[0].close(SOON)
    assert time.monotonic() - began < SOON


def test_several_may_close_at_once_and_a_cancelled_aclose_goes_on() -> None:
    """Each waits at most its own time, and says what is left then."""
    model = ScriptedSummarizer()
    model.hold()

    async def serve() -> None:
        sessions = Sessions(summarizer=model, config=CONFIG)
        async with sessions.open("a") as session:
            speak(session)
        assert await asyncio.to_thread(model.started.wait, SOON)
        cancelled = asyncio.create_task(sessions.aclose(SOON))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await asyncio.gather(sessions.aclose(0.01), sessions.aclose(0.02)) == [False, False]
        model.release()
        assert await sessions.aclose(SOON)

    asyncio.run(serve())


def test_a_store_that_does_not_answer_holds_up_no_aclose() -> None:
    """All threads for databases wait for it, and the sessions are closed all the same."""

    async def serve() -> None:
        store = Failing(random.Random(0))
        store.rng = None
        sessions = Sessions(store, config=CONFIG)
        store.answers.clear()

        async def use(number: int) -> None:
            async with sessions.open(f"session-{number}"):
                pass

        tasks = [asyncio.create_task(use(number)) for number in range(9)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(sessions.aclose(0.1), SOON / 2)
        store.answers.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {str(one).startswith("these sessions were closed") for one in ended} == {True}

    asyncio.run(serve())


def test_dropped_sessions_leave_no_thread() -> None:
    """A host may forget to close them: they are collected, and their threads end."""
    before = {*threading.enumerate()}
    sessions = Sessions(summarizer=ScriptedSummarizer(), config=CONFIG)
    with sessions.open("a") as session:
        speak(session)
        assert session.compactor.wait_idle(SOON)
    alive = weakref.ref(sessions)
    del sessions, session

    def is_gone() -> bool:
        gc.collect()
        pools = [one.name for one in {*threading.enumerate()} - before if one.name.startswith("compactor-pool")]
        return alive() is None and not pools

    wait_until(is_gone)
