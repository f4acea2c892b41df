"""The comparison measures what it says: the model server, the driver, the controls, ours, and what is printed of them."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from benchmarks.comparison import command, environments, playing, settling
from benchmarks.comparison.adapter import Adapter, Message, Setting
from benchmarks.comparison.conversations import Absent, Scenario, airline, chat, outage, tools
from benchmarks.comparison.dialogues import answered, tools_of
from benchmarks.comparison.door import Door, virtual_sleep
from benchmarks.comparison.driver import TICK, Played, alone, play
from benchmarks.comparison.environments import Unavailable, made, python_for, requirements_of
from benchmarks.comparison.facts import planted, raw_in, told, told_in
from benchmarks.comparison.fake_model import FakeModel, asks_for_changes
from benchmarks.comparison.model_server import MODEL, Answered, ModelServer, Outage
from benchmarks.comparison.money import LISTS, cost_of
from benchmarks.comparison.page import RESULTS, beside, read
from benchmarks.comparison.playing import Contender, Outcome, job_of, played
from benchmarks.comparison.plot import plotted
from benchmarks.comparison.prefixes import Prefixes, reusable
from benchmarks.comparison.report import cpu_table, least_table, numbers, quantile, related, table, waiting
from benchmarks.comparison.shapes import shape_of
from benchmarks.comparison.virtual_time import VirtualTime
from benchmarks.peers import nothing, ours, sliding_window
from compactor.changes import changes_in
from compactor.tokens import count_tokens
from prompts import contract

LONG = "word " * 600
#: To make them takes a while.
CHAT, TOOLS = cache(chat), cache(tools)


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def client_of(url: str) -> openai.OpenAI:
    """Return one that is made quickly: it knows no certificates."""
    return openai.OpenAI(
        base_url=url, api_key="none", max_retries=0, http_client=openai.DefaultHttpxClient(verify=False)
    )


def setting_of(server: ModelServer) -> Setting:
    return Setting(f"{server.url}/v1", MODEL, 8_000, "", (), 8_000)


def ask(server: ModelServer, messages: list[Message], **more: Any) -> Any:
    with client_of(f"{server.url}/v1") as client:
        return client.chat.completions.create(model=MODEL, messages=messages, **more)  # type: ignore[call-overload]


# -- the cache --------------------------------------------------------------------------------------------------------


def test_the_cache_gives_a_thousand_tokens_and_then_steps() -> None:
    """As OpenAI's does: nothing below 1,024, then 128 more at a time."""
    assert [reusable(tokens) for tokens in (0, 1_023, 1_024, 1_151, 1_152, 5_000)] == [0, 0, 1_024, 1_024, 1_152, 4_992]


def test_a_request_finds_what_it_has_in_common_with_one_before() -> None:
    """Up to the first difference, within a message too; of the same model, with the same tools, and not for ever."""
    cache = Prefixes(lifetime=300)
    beginning = [said("system", LONG), said("user", LONG)]
    assert cache.taken("a", beginning, (), 0.0) == (1_213, 0)
    longer = [*beginning, said("assistant", "yes")]
    assert cache.taken("a", longer, (), 1.0)[1] == 1_152
    assert cache.taken("a", [said("system", LONG), said("user", LONG + "and more")], (), 2.0)[1] == 1_152
    assert cache.taken("a", [said("system", LONG), said("user", "else" + LONG)], (), 2.0)[1] == 0
    assert cache.taken("b", beginning, (), 2.0)[1] == 0
    assert cache.taken("a", beginning, [{"type": "function", "function": {"name": "f"}}], 2.0)[1] == 0
    parts = [said("system", LONG), {"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert cache.taken("a", parts, (), 2.0)[1] == 1_152
    assert cache.taken("a", beginning, (), 302.5)[1] == 0


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_summary_keeps_every_fact_that_its_request_shows() -> None:
    """In the user's words and in a summary's; it is as long as asked for, and counts what went through it."""
    facts = planted(8, seed=1)
    model = FakeModel(400)
    first = model.answered({"messages": [said("user", " ".join(told(*fact) for fact in facts[:5]))]})["content"]
    assert told_in(first) == dict(facts[:5])
    assert abs(count_tokens(first) - 400) < 10
    assert set(model.depths.of.values()) == {1}
    second = model.answered({"messages": [said("user", f"{first}\n{told(*facts[5])}")]})["content"]
    assert told_in(second) == dict(facts[:6])
    assert [model.depths.of[key] for key, _ in facts[:6]] == [2] * 5 + [1]
    assert raw_in(second) == {}


@pytest.mark.parametrize("structured", [False, True])
def test_asked_for_changes_the_model_names_what_is_new(structured: bool) -> None:
    """In the form that was asked for; what stood before goes through no summary again."""
    facts = planted(3, seed=2)
    model = FakeModel()
    model.answered({"messages": [said("user", told(*facts[0]))]})
    noted = f"1. {facts[0][0]}={facts[0][1]}\n{told(*facts[1])}\n"
    body: dict[str, Any] = {"messages": [said("user", noted + contract("changes").content)]}
    assert asks_for_changes(body)
    if structured:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "changes", "schema": {}}}
    changes = changes_in(model.answered(body)["content"])
    assert [change.op for change in changes] == ["add", "add"]
    assert told_in(changes[0].text) == dict(facts[1:2])
    assert model.depths.of == {facts[0][0]: 1, facts[1][0]: 1}


def test_a_summary_comes_in_the_form_that_a_request_insists_on() -> None:
    """As JSON of a schema, references followed, or as the call of a tool."""
    schema = {
        "$defs": {"part": {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}},
        "type": "object",
        "properties": {
            "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
            "kind": {"enum": ["a", "b"]},
            "sure": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    model = FakeModel(60)
    asked: dict[str, Any] = {"messages": [said("user", "Summarise.")]}
    formed = model.answered({**asked, "response_format": {"json_schema": {"schema": schema}}})["content"]
    found = json.loads(formed)
    assert found["parts"][0]["text"].startswith("## ")
    assert {**found, "parts": []} == {"parts": [], "kind": "a", "sure": False, "note": ""}
    tool = {"type": "function", "function": {"name": "save", "parameters": schema}}
    for choice in ("required", {"type": "function", "function": {"name": "save"}}):
        (call,) = model.answered({**asked, "tools": [tool], "tool_choice": choice})["tool_calls"]
        assert call["function"]["name"] == "save"
    assert "tool_calls" not in model.answered({**asked, "tools": [tool], "tool_choice": "auto"})


# -- the server and its time ------------------------------------------------------------------------------------------


def test_a_blocking_adapters_request_is_answered_at_once_and_charged() -> None:
    """0.3 seconds, 0.02 ms for a token of input, 15 ms for one of output; what goes by is on the clock as well."""
    with ModelServer(summary_tokens=100) as server:
        door = Door(server.url)
        door.ask("/begin", {"turn": 3})
        answer = ask(server, [said("user", LONG)])
        charge = door.ask("/end", {})
        door.close()
        (one,) = server.log
    assert (one.by, one.turn, one.input, one.cached) == ("summarizer", 3, 608, 0)
    assert answer.usage.prompt_tokens == 608
    assert (
        answer.usage.completion_tokens == one.output == count_tokens(f"assistant\n{answer.choices[0].message.content}")
    )
    assert charge["waited"] == pytest.approx(0.3 + 608 * 0.000_02 + one.output * 0.015)
    assert server.time.now == pytest.approx(charge["waited"])
    assert charge["served"] > 0


def test_a_library_that_pauses_between_its_attempts_is_charged_and_nobody_waits() -> None:
    """Two minutes of virtual time, by the server's clock."""
    with ModelServer() as server, contextlib.closing(Door(server.url)) as door:
        door.ask("/begin", {"turn": 1})
        virtual_sleep(setting_of(server))(120.0)
        assert door.ask("/end", {})["waited"] == 120.0
        assert server.time.now == 120.0


def test_a_streamed_answer_is_the_same() -> None:
    """Piece by piece, with what it took where that is asked for."""
    with ModelServer() as server:
        whole = list(ask(server, [said("user", LONG)], stream=True, stream_options={"include_usage": True}))
        plain = list(ask(server, [said("user", LONG)], stream=True))
    assert whole[0].choices[0].delta.content.startswith("## ")
    assert whole[1].choices[0].finish_reason == "stop"
    assert whole[2].usage.prompt_tokens == 608
    assert len(plain) == 2


def test_a_background_adapters_request_waits_for_the_conversation() -> None:
    """It is held until as much virtual time has gone by as it takes, and nothing is charged."""
    with ModelServer(summary_tokens=100) as server:
        server.time.serves(background=True)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(ask(server, [said("user", LONG)])))
        asking.start()
        door = Door(server.url)
        assert server.time.until_held(20)
        prompt = {"messages": [said("user", LONG)], "answer": said("assistant", "Yes.")}
        first = door.ask("/agent", prompt)
        assert (first["until"], first["cached"]) == (pytest.approx(first["now"] + first["seconds"]), 0)
        assert door.ask("/pass", {"until": first["until"]}) == {"now": first["until"], "due": False}
        assert door.ask("/held") == {"held": 1, "now": first["until"]}
        passed = door.ask("/pass", {"until": 60.0})
        assert passed == {"now": pytest.approx(server.log[0].seconds), "due": True}
        assert door.ask("/held") == {"held": 1, "now": passed["now"]}
        door.ask("/answer", {})
        asking.join(20)
        assert door.ask("/held") == {"held": 0, "now": passed["now"]}
        door.close()
    assert found
    assert server.time.end().waited == 0.0


def test_a_background_adapter_that_waits_all_the_same_is_charged() -> None:
    """The server notices after a moment, answers, and adds what was left; the moment itself is not the adapter's."""
    clock = VirtualTime(grace=0.01)
    clock.serves(background=True)
    clock.begin()
    clock.wait(7.0)
    charge = clock.end()
    assert (charge.waited, clock.now, clock.held) == (7.0, 7.0, 0)
    assert charge.served >= 0.01


def test_a_request_that_takes_no_time_is_never_held() -> None:
    """There would be no moment at which it is answered."""
    clock = VirtualTime()
    clock.serves(background=True)
    clock.wait(0.0)
    assert clock.held == 0
    assert clock.passed(3.0) == (3.0, False)


def test_a_request_to_warm_up_leaves_no_trace() -> None:
    """What a client imports for its first request has been imported then; cache, clock and log know nothing of it."""
    with ModelServer() as server, client_of(f"{server.url}/warm") as client:
        asked = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}])
        assert asked.choices[0].message.content
        assert (server.log, server.time.now) == ([], 0.0)
        ask(server, [said("user", LONG)])
        assert server.log[0].cached == 0


def test_requests_held_at_the_end_are_let_go() -> None:
    """Nobody waits for a clock that has stopped."""
    clock = VirtualTime()
    clock.serves(background=True)
    waiting_one = threading.Thread(target=clock.wait, args=(5.0,))
    waiting_one.start()
    assert clock.until_held(10)
    clock.close()
    waiting_one.join(10)
    assert not waiting_one.is_alive()


@pytest.mark.parametrize(("how", "status", "seconds"), [("fails", 500, 0.3), ("hangs", 504, 60.0)])
def test_an_outage_is_over_after_its_turns(how: Any, status: int, seconds: float) -> None:
    """It fails at once, or keeps who asks waiting for a minute; a client that says so waits for less."""
    with ModelServer(outage=Outage(2, 3, how)) as server:
        for turn in (1, 2, 3, 4):
            server.begin(turn)
            with contextlib.suppress(openai.InternalServerError):
                ask(server, [said("user", "Summarise.")])
        if how == "hangs":
            server.begin(2)
            with pytest.raises(openai.InternalServerError):
                ask(server, [said("user", "Summarise.")], timeout=5)
        found = [(one.status, one.seconds) for one in server.log]
    assert [found[place][0] for place in range(4)] == [200, status, status, 200]
    assert found[1] == (status, pytest.approx(seconds))
    assert found[4:] == ([] if how == "fails" else [(504, 5.0)])


# -- the conversations ------------------------------------------------------------------------------------------------


def texts_of(scenario: Scenario) -> str:
    return "\n".join(message["content"] or "" for turn in scenario.turns for step in turn for message in step["new"])


def test_conversations_are_the_same_each_time_and_as_long_as_they_say() -> None:
    """Every fact is told once, by the user; a tool's results are as long as is said, and answer its calls."""
    plain = CHAT()
    assert chat(20).turns == chat(20).turns
    assert (len(plain.turns), len(plain.facts)) == (200, 50)
    assert 65_000 < plain.tokens < 67_000
    assert raw_in(texts_of(plain)) == dict(plain.facts)
    called = TOOLS()
    assert 430_000 < called.tokens < 450_000
    assert raw_in(texts_of(called)) == dict(called.facts)
    sizes = [count_tokens(turn[1]["new"][0]["content"]) for turn in called.turns]
    assert 1_900 < min(sizes) < 2_300
    assert 7_500 < max(sizes) < 8_300
    for first, second in called.turns:
        assert first["answer"]["tool_calls"][0]["id"] == second["new"][0]["tool_call_id"]
    failing = outage("hangs", 20)
    assert (failing.outage, failing.turns) == (Outage(8, 27, "hangs"), chat(20).turns)


def test_real_dialogues_are_one_conversation() -> None:
    """Each turn begins with the user, each result of a tool follows its call, and each tool that is called is there."""
    try:
        scenario = airline(3)
    except Absent as absent:
        pytest.skip(str(absent))
    asked: set[str] = set()
    defined = {tool["function"]["name"] for tool in scenario.tools}
    for turn in scenario.turns:
        assert turn[0]["new"][-1]["role"] == "user"
        for step in turn:
            for message in step["new"]:
                assert message["role"] != "tool" or message["tool_call_id"] in asked
            calls = step["answer"].get("tool_calls") or ()
            assert {call["function"]["name"] for call in calls} <= defined
            asked |= {call["id"] for call in calls}
    assert asked


def test_the_agent_has_the_last_word_after_a_tool() -> None:
    """So the next dialogue begins after an answer, and not after a result that nobody has read."""
    plain, result = [said("user", "Hi."), said("assistant", "Good day.")], {"role": "tool", "content": "Transferred."}
    assert answered(plain) == plain
    assert answered([*plain, result]) == [*plain, result, said("assistant", "Done.")]


def test_the_tools_of_dialogues_are_told_by_their_calls() -> None:
    """Every argument that any call has, with its type where that is a plain one."""

    def called(tool: str, **arguments: Any) -> Message:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}

    book, find = tools_of(
        [said("user", "Hi."), called("find", name="a"), called("book", seats=2), called("find", at=[])]
    )
    assert (book["function"]["name"], find["function"]["name"]) == ("book", "find")
    assert find["function"]["parameters"]["properties"] == {"name": {"type": "string"}, "at": {}}
    assert book["function"]["parameters"]["properties"] == {"seats": {"type": "integer"}}


def test_dialogues_that_are_not_there_are_said_to_be(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(Absent, match=r"nowhere\.jsonl"):
        airline(path=tmp_path / "nowhere.jsonl")


# -- the driver, the controls and ours --------------------------------------------------------------------------------


def small(turns: int = 24) -> Scenario:
    plain = CHAT()
    facts = tuple(fact for fact in plain.facts if told(*fact) in texts_of(replace(plain, turns=plain.turns[:turns])))
    return replace(plain, turns=plain.turns[:turns], budget=3_000, facts=facts, summary_tokens=200)


def through(scenario: Scenario, make: Any, variant: str = "", module: str = "ours") -> tuple[dict[str, Any], Any]:
    """Return what the driver measured and the server's log, both in this process."""
    with ModelServer(
        summary_tokens=scenario.summary_tokens, values=dict(scenario.facts), outage=scenario.outage
    ) as server:
        job = job_of(scenario, Contender(module, variant), server.url, "")
        adapter = make(Setting(**job["setting"]))
        door = Door(server.url)
        try:
            return play(adapter, door, job), server.log
        finally:
            door.close()
            adapter.close()
            assert not server.errors


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
    """Raw in the log and told in the prompt, whatever way it compacts; and it did compact, and waited for nobody."""
    scenario, result, log = forty_turns(variant)
    assert result["failed"] == []
    assert result["measures"]["compactions"] >= 1
    assert max(one.input for one in log if one.by == "agent") <= scenario.budget
    assert [one.facts for one in log if one.by == "agent"][-1] == len(scenario.facts)
    assert raw_in("\n".join(result["kept"])) == dict(scenario.facts)
    assert sum(turn["waited"] for turn in result["turns"]) == 0.0
    assert result["background"]


def test_two_runs_are_equal_to_the_token() -> None:
    """Threads or none: what was asked, when, and what the cache had of it."""
    scenario, _, first = forty_turns("notes_continue")
    assert through(scenario, ours.make, "notes_continue")[1] == first


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


# -- money ------------------------------------------------------------------------------------------------------------


def test_what_requests_cost_follows_the_prices() -> None:
    """Cached and written input, output; a summarizer that continues writes to the cache; what failed costs nothing."""
    log = [
        Answered("agent", 1, 1_000, 400, 10, 0.0),
        Answered("summarizer", 1, 500, 0, 20, 0.0),
        Answered("summarizer", 1, 500, 300, 20, 0.0),
        Answered("summarizer", 1, 500, 0, 0, 0.0, status=500),
    ]
    cost = cost_of(log, LISTS[2].prices)
    assert cost.agent_input == pytest.approx(400 * 0.1 + 600 * 1.25)
    assert cost.agent_output == 50
    assert cost.summarizer_input == pytest.approx(500 + 300 * 0.1 + 200 * 1.25)
    assert cost.summarizer_output == 200
    assert cost.total == cost.agent_input + cost.agent_output + cost.summarizer_input + cost.summarizer_output


# -- what is printed --------------------------------------------------------------------------------------------------


def outcome_of(name: str, log: list[Answered], **more: Any) -> Outcome:
    return Outcome(
        **{
            "name": name,
            "version": "1",
            "settings": "",
            "background": False,
            "held": (0.001, 0.002, 6.5),
            "busy": (0.001,) * 3,
            "cpu": (0.001,) * 3,
            "log": tuple(log),
            "costs": tuple(cost_of(log, one.prices) for one in LISTS),
            "over_budget": 0,
            "failed": (),
            "facts_in_prompt": 2,
            "facts_kept": 3,
            "depths": {"KEY-001": 1, "KEY-002": 2},
            "measures": {},
        }
        | more
    )


def test_a_table_has_a_row_for_each() -> None:
    """With as many cells as the head."""
    scenario = small(3)
    log = [Answered("agent", 1, 2_000, 1_024, 50, 1.0), Answered("summarizer", 1, 900, 0, 400, 6.3)]
    base = outcome_of("no compaction", log[:1])
    outcomes = {"nothing": base, "ours:default": outcome_of("ours, by default", log), "x": outcome_of("x<y", log)}
    rows = related([{"label": label} | numbers(scenario, one) for label, one in outcomes.items()])
    assert related(rows[1:])[0]["relative"] is None
    assert rows[0]["relative"] == [1.0, 1.0, 1.0]
    assert (rows[1]["depth"], rows[1]["held_p50"], rows[1]["held_p99"]) == (1.5, 0.002, 6.5)
    failing = replace(scenario, outage=Outage(1, 2, "fails"))
    assert numbers(failing, outcome_of("a", log))["until_again"] is None
    later = [*log, Answered("summarizer", 5, 900, 0, 400, 6.3)]
    assert numbers(failing, outcome_of("a", later))["until_again"] == 3
    printed = table(failing, rows).splitlines()
    assert {line.count("|") for line in printed if line.startswith("|")} == {15}
    assert "| 2.00 ms | 6.5 s |" in printed[-2]


def drawn(*told: tuple[str, float, float]) -> ET.Element:
    """Return the picture of those of such names, relative costs and seconds held up."""
    rows = [
        {"name": name, "relative": [cost] * 3, "held_total": held, "facts_in_prompt": 4, "facts": 5}
        for name, cost, held in told
    ]
    return ET.fromstring(plotted("how they <do>", [*rows, {"relative": None}]))  # noqa: S314  (made here)


def parts_of(picture: ET.Element, tag: str) -> list[ET.Element]:
    return [element for element in picture.iter() if element.tag.endswith(f"}}{tag}")]


def test_the_picture_has_a_line_for_each_the_cheapest_first() -> None:
    """With what it cost, waited for and still tells; ours are marked, and a scale of powers is called that."""
    picture = drawn(("no compaction", 1.0, 0.001), ("x<y", 0.5, 100.0), ("ours, by default", 0.4, 0.1))
    lines = parts_of(picture, "g")
    assert [[text.text for text in parts_of(line, "text")] for line in lines] == [
        ["ours, by default", "0.40", "100 ms", "4 of 5"],
        ["x<y", "0.50", "100 s", "4 of 5"],
        ["no compaction", "1.00", "1.00 ms", "4 of 5"],
    ]
    assert [line.get("class") for line in lines] == ["ours", None, None]
    widths = [float(parts_of(line, "rect")[0].get("width", 0)) for line in lines]
    assert widths == pytest.approx([widths[2] * cost for cost in (0.4, 0.5, 1.0)], abs=0.1)
    tenth, hundred, least = (float(parts_of(line, "circle")[0].get("cx", 0)) for line in lines)
    assert (hundred - tenth) / 3 == pytest.approx((tenth - least) / 2, abs=0.1)
    texts = {text.text for text in parts_of(picture, "text")}
    assert {"how they <do>", "cost, no compaction = 1", "chat loop held up in all, log scale"} <= texts
    assert {"0.5", "1 ms", "1 s", "1,000 s"} <= texts


def test_nothing_in_the_picture_stands_on_something_else() -> None:
    """However many there are, and close to each other: texts of one line end before the next begins, within the
    picture; and the ground is painted, in light and in dark."""
    picture = drawn(*((f"ours, in the {place}th way of many", 0.4 + place / 9_000, 0.2) for place in range(30)))
    *_, width, height = map(float, picture.get("viewBox", "").split())
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in parts_of(picture, "text"):
        x, long = float(text.get("x", 0)), 7 * len(text.text or "")
        begins = x - long * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "")]
        lines.setdefault(float(text.get("y", 0)), []).append((begins, begins + long))
    heights = sorted(lines)
    assert all(after - before >= 16 for before, after in pairwise(heights))
    assert heights[-1] < height
    for spans in lines.values():
        assert all(end < begin for (_, end), (begin, _) in pairwise(sorted(spans)))
        assert min(spans)[0] >= 0
        assert max(spans)[1] <= width
    style = parts_of(picture, "style")[0].text or ""
    assert style.count(".ground") == 2
    assert "prefers-color-scheme: dark" in style


def test_without_the_control_there_is_no_picture() -> None:
    """Costs are relative to it."""
    with pytest.raises(ValueError, match="nothing to plot"):
        drawn()


def test_what_ours_cost_stands_beside_the_least() -> None:
    """For the sizes that were met; for a run that compacted nothing there is none."""
    scenario = small(3)
    agent = Answered("agent", 1, 2_000, 1_024, 50, 1.0)
    for continues, style in ((0.0, "separate"), (1.0, "continue")):
        log = [agent, Answered("summarizer", 1, 900, 0, 400, 6.3)]
        outcome = outcome_of("ours", log, measures={"continues": continues})
        met = shape_of(scenario, outcome)
        assert met is not None
        assert (met.style, met.sizes.delta) == (style, 400)
        row = {"relative": None} | numbers(scenario, outcome) | {"least": [met.told(one.prices) for one in LISTS]}
        assert least_table([row]).count("|") == 3 * 10
    assert shape_of(scenario, outcome_of("ours", [agent])) is None
    retaining = shape_of(replace(scenario, retained=700), outcome)
    assert retaining is not None
    assert retaining.sizes.retained == 700


def test_times_are_written_as_people_do() -> None:
    """And a quantile is one of the values."""
    assert [waiting(seconds) for seconds in (0.000_012, 0.0123, 0.123, 6.44, 189.2)] == [
        "0.01 ms",
        "12.3 ms",
        "123 ms",
        "6.4 s",
        "189 s",
    ]
    assert [quantile([3, 1, 2], share) for share in (0.5, 0.99, 0.0)] == [2, 3, 1]
    printed = cpu_table((10, 100), [{"name": "a", "cpu": {"10": 0.001}, "seconds": 2.0, "reached": 50}])
    assert "| a | 1.00 ms | – | 2.0 s for 50 |" in printed


# -- environments and the command -------------------------------------------------------------------------------------


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the folder, from the requirements beside the adapter, and anew where it was not finished."""
    (tmp_path / "plain.txt").write_text("# nothing to install\n", encoding="utf-8")
    commands: list[list[str]] = []
    monkeypatch.setattr(environments, "_run", lambda command, _module: commands.append(command))
    folder = tmp_path / "made"
    python = Path(made("plain", folder, tmp_path))
    place = python.parents[1]
    assert place.parent == folder
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    (place / "complete").unlink()
    (place / "half").write_text("", encoding="utf-8")
    made("plain", folder, tmp_path)
    assert not (place / "half").exists()
    assert len(commands) == 4
    assert made("plain", folder, tmp_path) == str(python)
    assert len(commands) == 4
    assert made("ours", folder) == sys.executable
    assert requirements_of("ours") is None


def test_an_environment_that_cannot_be_made_is_said_to_be(tmp_path: Path) -> None:
    """With what the command said, and for whom."""
    with pytest.raises(Unavailable, match=r"environment of a peer .*not today"):
        environments._run([sys.executable, "-c", "raise SystemExit('not today')"], "a peer")


def test_a_python_that_fits_is_found_or_missed() -> None:
    """This one, where it does; the message says what is missing."""
    this = sys.version_info.minor
    assert python_for("a==1\n") == python_for(f"# python >= 3.{this}\n") == sys.executable
    with pytest.raises(Unavailable, match=r"Python >= 3\.99"):
        python_for("# python >= 3.99\n")


def driven(job: dict[str, Any], *_where: Any) -> dict[str, Any]:
    """Do in this process what the driver does in one of its own."""
    if job["module"] == "sliding_window":
        raise RuntimeError("it was given up")
    adapter = (nothing if job["module"] == "nothing" else ours).make(Setting(**job["setting"]))
    door = Door(job["setting"]["base_url"].removesuffix("/v1"))
    with contextlib.closing(door), contextlib.closing(adapter):
        return play(adapter, door, job)


def test_the_command_prints_tables_and_writes_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each scenario; what cannot be played is said to be left out. Here all is played in this process."""
    monkeypatch.setattr(playing, "_driven", driven)
    monkeypatch.setitem(command.SCENARIOS, "chat", lambda: small(20))
    monkeypatch.setitem(command.SCENARIOS, "airline", lambda: airline(path=tmp_path / "nowhere"))
    arguments = [
        "--only",
        "nothing",
        "ours:separate",
        "--scenarios",
        "chat",
        "airline",
        "--docs",
        str(tmp_path),
        "--repeat",
        "2",
    ]
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Page\n\n{RESULTS}\nold\n\n## More\n\nkept\n", encoding="utf-8")
    assert command.main(arguments) == 0
    written = page.read_text(encoding="utf-8")
    assert written.startswith(f"# Page\n\n{RESULTS}")
    assert "| ours, cheapest, separate |" in written
    assert "old" not in written
    assert written.endswith("\n\n## More\n\nkept\n")
    printed = capsys.readouterr().out
    assert "| no compaction |" in printed
    assert "| ours, cheapest, separate |" in printed
    assert "Left out: " in printed
    found = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert [row["label"] for row in found["scenarios"]["chat"]] == ["nothing", "ours:separate"]
    assert (tmp_path / "comparison.svg").read_text(encoding="utf-8").startswith("<svg")


def test_what_was_played_before_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adapter's newest run is shown, wherever it was played, relative to the control's; who was given up is named,
    until it is played to the end."""
    monkeypatch.setattr(playing, "_driven", driven)
    monkeypatch.setitem(command.SCENARIOS, "chat", lambda: small(12))
    (tmp_path / "elsewhere").mkdir()
    there, here = str(tmp_path / "elsewhere"), str(tmp_path)
    command.main(["--only", "ours:separate", "sliding_window", "--scenarios", "chat", "--docs", there])
    assert read(Path(there) / "comparison.json")["given_up"] == {"chat": ["sliding_window"]}
    (tmp_path / "benchmarks.md").write_text(f"{RESULTS}\n## More\n", encoding="utf-8")
    command.main(["--only", "nothing", "--scenarios", "chat", "--docs", here])
    command.main(["--scenarios", "--docs", here, "--beside", f"{there}/comparison.json"])
    found = read(tmp_path / "comparison.json")
    assert [(row["label"], bool(row["relative"])) for row in found["scenarios"]["chat"]] == [
        ("nothing", True),
        ("ours:separate", True),
    ]
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| ours, cheapest, separate |" in page
    assert "Given up: sliding_window." in page
    ended = {"scenarios": {"chat": [found["scenarios"]["chat"][1] | {"label": "sliding_window"}]}, "given_up": {}}
    assert beside(found, ended, ["nothing", "sliding_window"])["given_up"] == {"chat": []}


def test_own_cpu_is_beside_what_was_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be measured last and alone: the other tables stay."""
    row = {"name": "no compaction", "cpu": {"10": 0.001}, "seconds": 2.0, "reached": 50}
    results = {"scenarios": {"cpu": [row | {"label": "nothing"}]}, "given_up": {"cpu": ["ours:default"]}}
    (tmp_path / "comparison.json").write_text(json.dumps(results), encoding="utf-8")
    (tmp_path / "benchmarks.md").write_text(f"{RESULTS}\n## More\n", encoding="utf-8")
    monkeypatch.setattr(command, "alone", lambda *_what: row | {"name": "another", "cpu": {"20": 0.002}})
    command.main(["--only", "sliding_window", "--scenarios", "cpu", "--docs", str(tmp_path)])
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| no compaction | 1.00 ms | – | 2.0 s for 50 |" in page
    assert "| another | – | 2.00 ms | 2.0 s for 50 |" in page
    assert "Given up: ours:default." in page


def test_every_adapter_is_known_by_its_file() -> None:
    """The controls and ours first; a name that is none is refused."""
    labels = [":".join(filter(None, one)) for one in command.contenders()]
    assert labels[:3] == ["nothing", "sliding_window", "ours:default"]
    assert command.contenders(["ours:notes"]) == [("ours", "notes")]
    with pytest.raises(SystemExit, match="no such adapter: nobody"):
        command.contenders(["nobody"])
