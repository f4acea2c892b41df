"""The comparison's driver: the controls and ours through whole conversations, and what waits for what."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from comparison_parts import LONG, TOOLS, ask, client_of, said, small, through

from benchmarks.comparison import settling
from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.conversations import Scenario
from benchmarks.comparison.door import Door
from benchmarks.comparison.driver import TICK, Played, alone
from benchmarks.comparison.facts import raw_in
from benchmarks.comparison.model_server import ModelServer, Outage
from benchmarks.comparison.playing import Contender, job_of, played
from benchmarks.peers import nothing, ours, sliding_window

pytestmark = pytest.mark.slow


def test_the_controls_do_nothing_and_too_much() -> None:
    """One sends all, over any budget, and finds it in the cache; the other fits, finds little, and forgets."""
    scenario = small(30)
    whole, log = through(scenario, nothing.make)
    assert max(one.input for one in log) > scenario.budget
    assert log[-1].facts == len(scenario.facts)
    assert len(whole["kept"]) == 1 + 60
    _, windowed = through(scenario, sliding_window.make)
    assert max(one.input for one in windowed) <= scenario.budget
    assert windowed[-1].facts < len(scenario.facts)
    assert sum(one.cached for one in log) > 2 * sum(one.cached for one in windowed)
    called = replace(TOOLS(), turns=TOOLS().turns[:12], budget=20_000)
    result, log = through(called, sliding_window.make)
    assert max(one.input for one in log) <= 20_000
    assert result["last_prompt"][1]["role"] == "user"


@cache
def forty_turns(variant: str) -> tuple[Scenario, dict[str, Any], Any]:
    scenario = small(40)
    return scenario, *through(scenario, ours.make, variant)


@pytest.mark.parametrize("variant", sorted(ours.VARIANTS))
def test_ours_keeps_every_fact_within_the_budget(variant: str) -> None:
    """Raw in the log and, where a model summarizes, told in the prompt; it did compact, and waited for nobody."""
    scenario, result, log = forty_turns(variant)
    assert result["failed"] == []
    assert result["measures"]["compactions"] >= 1
    assert max(one.input for one in log if one.by == "agent") <= scenario.budget
    if variant != "offline":
        assert [one.facts for one in log if one.by == "agent"][-1] == len(scenario.facts)
    assert raw_in("\n".join(result["kept"])) == dict(scenario.facts)
    assert sum(turn["waited"] for turn in result["turns"]) == 0.0
    assert result["background"]


def test_two_runs_are_equal_to_the_token() -> None:
    """Threads or none: what was asked, when, and what the cache had of it."""
    scenario, _, first = forty_turns("messages")
    assert through(scenario, ours.make, "messages")[1] == first


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_two_runs_of_an_outage_are_equal_to_the_token(how: Any) -> None:
    """When an answer or a failure is there, and when a back-off is over, is a matter of the virtual time alone; what
    was not compacted is made up for as soon as the circuit's next attempt, and no turn fails or waits."""
    scenario = replace(small(38), outage=Outage(10, 18, how))
    (result, first), (_, second) = (through(scenario, ours.make) for _ in range(2))
    assert first == second
    asked = [one for one in first if one.by == "summarizer"]
    assert any(one.status != 200 for one in asked)
    after = [one.turn for one in asked if one.status == 200 and one.turn > 18]
    assert after[0] <= 18 + 18  # 45 seconds
    assert result["failed"] == []
    assert max(one.input for one in first if one.by == "agent") <= scenario.budget


class Sleeps(Adapter):
    """Looks up at certain times."""

    background = True

    def __init__(self, *times: float) -> None:
        self._times = list(times)
        self.stops: list[float] = []

    def prompt(self, new: list[Message]) -> list[Message]:
        return new

    def answered(self, message: Message) -> None:
        pass

    def advanced(self, now: float) -> None:
        self.stops.append(now)
        self._times = [time for time in self._times if time > now]

    def wakes_at(self) -> float | None:
        return min(self._times, default=None)

    def kept(self) -> list[str]:
        return []


def test_the_time_stops_at_each_moment_that_an_adapter_wakes_at() -> None:
    """What it does then is done before the clock goes on; a moment that is over does not stop the clock for ever."""
    adapter = Sleeps(-1.0, 2.0, 2.5, 90.0)
    with (
        ModelServer() as server,
        contextlib.closing(Door(server.url)) as door,
        contextlib.closing(Played(adapter, door, [])) as played,
    ):
        played.pause(10.0)
    assert adapter.stops == [pytest.approx(TICK), 2.0, 2.5, 10.0]


class Works(Adapter):
    """Asks in a thread of its own with every message, and works on for a while when it has the answer."""

    name, background = "works", True

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._changed = threading.Condition()  # guards _steps
        self._steps: list[str] = []
        self.go_on = threading.Event()

    def prompt(self, new: list[Message]) -> list[Message]:
        self._step("began")
        self.thread = threading.Thread(target=self._work)
        self.thread.start()
        return new

    def _work(self) -> None:
        self.go_on.wait(30)
        ask(self._server, [said("user", LONG)])
        self._step("ended")

    def _step(self, step: str) -> None:
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()

    def answered(self, message: Message) -> None:
        pass

    def wait_idle(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._steps[-1:] != ["began"], timeout)

    def kept(self) -> list[str]:
        return []


def test_background_work_has_settled_when_it_is_done_or_asks() -> None:
    """Not before it asks, though that takes a while, and not before it is done with the answer."""
    with ModelServer() as server, contextlib.closing(Door(server.url)) as door:
        server.time.serves(background=True)
        adapter = Works(server)
        with contextlib.closing(settling.Settling(adapter, door)) as waiting:
            assert waiting.settle() == 0.0
            adapter.prompt([])
            threading.Timer(0.01, adapter.go_on.set).start()
            assert waiting.settle() >= 0.0
            assert (server.time.held, adapter.wait_idle(0)) == (1, False)
            waiting.settle()
            server.time.passed(60.0)
            server.time.answer()
            waiting.settle()
            assert (server.time.held, adapter.wait_idle(0)) == (0, True)


def test_background_work_that_comes_to_no_end_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names whose it is."""
    monkeypatch.setattr(settling, "PATIENCE", 0.02)
    with ModelServer() as server, contextlib.closing(Door(server.url)) as door:
        adapter = Works(server)
        with contextlib.closing(settling.Settling(adapter, door)) as waiting:
            adapter.prompt([])
            with pytest.raises(TimeoutError, match="works: its background work"):
                waiting.settle()
            adapter.go_on.set()
            adapter.thread.join(30)


class Waits(Adapter):
    """Asks the model in the middle of a turn, and fails in the third."""

    name = "waits"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._turn = 0

    def prompt(self, new: list[Message]) -> list[Message]:
        self._turn += 1
        if self._turn == 3:
            raise ValueError("the third is too much")
        with client_of(self._setting.base_url) as client:
            client.chat.completions.create(model=self._setting.model, messages=new)  # type: ignore[arg-type]
        return new

    def answered(self, message: Message) -> None:
        if self._turn == 4:
            raise RuntimeError("nor this")

    def kept(self) -> list[str]:
        return []


def test_who_waits_for_a_model_is_charged_and_who_fails_has_failed_a_turn() -> None:
    """The conversation goes on with the next turn."""
    result, log = through(small(6), Waits)
    waited = [turn["waited"] for turn in result["turns"]]
    assert [place for place, seconds in enumerate(waited, 1) if seconds > 3] == [1, 2, 4, 5, 6]
    assert [one.split(": ")[:2] for one in result["failed"]] == [["turn 3", "ValueError"], ["turn 4", "RuntimeError"]]
    assert [one.turn for one in log if one.by == "agent"] == [1, 2, 4, 5, 6]


def test_cpu_is_measured_without_an_agent() -> None:
    """The mean of the turns up to each mark, as far as time allows."""
    scenario = small(8)
    with ModelServer() as server:
        job = job_of(scenario, Contender("nothing"), server.url, "") | {"marks": [2, 20], "window": 5, "patience": 60}
        found = alone(nothing.make(Setting(**job["setting"])), job)
        short = alone(nothing.make(Setting(**job["setting"])), job | {"patience": -1})
    assert (list(found["cpu"]), found["reached"], short["reached"], short["cpu"]) == (["2", "20"], 20, 1, {})


def test_an_adapter_has_a_process_of_its_own() -> None:
    """What it prints does not matter, and one that breaks is told of with what it said."""
    outcome = played(small(12), Contender("sliding_window"))
    assert len(outcome.held) == 12
    assert all(0 < seconds < 5 for seconds in outcome.held)
    with pytest.raises(RuntimeError, match="no_such_peer"):
        played(small(1), Contender("no_such_peer"))
    with pytest.raises(RuntimeError, match="given up after"):
        played(small(1), Contender("nothing"), timeout=0.01)
