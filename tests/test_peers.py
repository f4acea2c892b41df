"""The adapters of what is compared: what can be said of them where their libraries are not installed."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.comparison.adapter import Adapter, Message
from benchmarks.comparison.agent_loop import AgentLoop

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
COMPARISON = PEERS.parent / "comparison"
NAMES = sorted(file.stem for file in PEERS.glob("*.txt"))
PINNED = re.compile(r"(?P<name>[a-z0-9-]+)(\[[a-z,]+\])?==(?P<version>\d+(\.\d+)+)")

USER: Message = {"role": "user", "content": "How are you?"}
FINE: Message = {"role": "assistant", "content": "Fine."}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.peers.{name}")


def requirements(name: str) -> list[str]:
    lines = (PEERS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def imported_at_once(file: Path) -> Iterator[str]:
    """Give what *file* imports when it is imported itself."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module if node.level == 0 and node.module else "benchmarks"


def test_every_peer_that_is_promised_is_there() -> None:
    """Eight libraries are compared; each has an adapter and its requirements."""
    assert {"langchain", "langmem", "agent_framework", "strands", "openhands"} < set(NAMES)
    assert {"google_adk", "pydantic_ai", "sawtooth"} < set(NAMES)
    assert [name for name in NAMES if not (PEERS / f"{name}.py").is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_peer_is_installed_in_versions_that_stay_the_same(name: str) -> None:
    """Every requirement is pinned, so that a run next year compares with the same."""
    lines = requirements(name)
    assert lines
    assert [line for line in lines if PINNED.fullmatch(line) is None] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_says_which_version_and_which_settings_it_measures(name: str) -> None:
    """Its docstring names the version that is pinned first, the settings, and where they are documented."""
    told = ast.get_docstring(ast.parse((PEERS / f"{name}.py").read_text(encoding="utf-8"))) or ""
    pinned = PINNED.fullmatch(requirements(name)[0])
    assert pinned is not None
    assert f" {pinned['version']})." in told.splitlines()[0]
    assert "Settings" in told
    assert re.search(r"https://\S+", told)
    assert all(f"`{variant}`" in told for variant in getattr(module(name), "VARIANTS", ()) if variant)


@pytest.mark.parametrize("file", [*(PEERS / f"{name}.py" for name in NAMES), *COMPARISON.glob("a*.py")], ids=str)
def test_an_adapter_can_be_looked_at_without_its_library(file: Path) -> None:
    """Importing it needs the standard library alone: the rest waits for ``make``."""
    modules = {name.split(".")[0] for name in imported_at_once(file)}
    assert modules - sys.stdlib_module_names <= {"benchmarks"}


@pytest.mark.parametrize("name", NAMES)
def test_an_adapter_can_be_made_and_says_who_it_is(name: str) -> None:
    """It has ``make``; its class fills in what every adapter must, and has a name and settings for the tables."""
    peer = module(name)
    assert list(peer.make.__annotations__) == ["setting", "return"]
    classes = [one for one in vars(peer).values() if isinstance(one, type) and issubclass(one, Adapter)]
    made = [one for one in classes if one is not Adapter]
    assert made
    assert all(one.name for one in made)
    for one in made:
        assert all(getattr(one, method) is not getattr(Adapter, method) for method in ("prompt", "answered", "kept"))
    assert getattr(peer, "VARIANTS", ("",))[0] == ""


# -- an agent's loop, stopped where it calls its model ----------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["in turns", "in a thread"])
def loop(request: pytest.FixtureRequest) -> Iterator[AgentLoop]:
    made = AgentLoop(background=request.param)
    yield made
    made.close()


class Agent:
    """The smallest agent: asks its model, calls the tools that it names, and asks again."""

    def __init__(self, loop: AgentLoop) -> None:
        self.loop = loop
        self.history: list[Message] = []
        self.cancelled = 0

    async def run(self, said: str) -> None:
        try:
            await self._run(said)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def _run(self, said: str) -> None:
        if said == "fail":
            raise LookupError("no such agent")
        if said == "say nothing":
            return
        self.history.append({"role": "user", "content": said})
        while True:
            answer = await self.loop.answer_to(list(self.history))
            self.history.append(answer)
            if not answer.get("tool_calls"):
                return
            ids = [call["id"] for call in answer["tool_calls"]]
            results = await asyncio.gather(*map(self.loop.result_of, ids))
            self.history += [
                {"role": "tool", "tool_call_id": call, "content": result}
                for call, result in zip(ids, results, strict=True)
            ]


def calls(*ids: str) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call} for call in ids]}


def result(call: str) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": f"result of {call}"}


def test_an_agents_run_stops_where_it_calls_its_model(loop: AgentLoop) -> None:
    """The driver gets the messages of that call, and the run goes on with the driver's answer, to its end."""
    agent = Agent(loop)
    assert loop.prompt([USER], agent.run) == [USER]
    loop.answered(FINE)
    assert agent.history == [USER, FINE]
    assert loop.prompt([USER], agent.run) == [USER, FINE, USER]


def test_an_agents_tools_wait_for_the_drivers_results(loop: AgentLoop) -> None:
    """Several calls of one answer too, in whatever order their results come."""
    agent = Agent(loop)
    loop.prompt([USER], agent.run)
    loop.answered(calls("a", "b"))
    prompt = loop.prompt([result("b"), result("a")], agent.run)
    assert prompt == [USER, calls("a", "b"), result("a"), result("b")]
    loop.answered(FINE)
    assert agent.history[-1] == FINE


def test_an_agent_that_asks_again_by_itself_is_heard() -> None:
    """Where it refuses a call, say, and asks anew before the driver has given the result: nobody waits for ever."""
    loop, asked = AgentLoop(background=True), threading.Event()

    async def run(said: str) -> None:
        await loop.answer_to([USER])
        asked.set()
        await loop.answer_to([USER, FINE])

    assert loop.prompt([USER], run) == [USER]
    loop.answered(calls("a"))
    assert asked.wait(30)
    assert loop.prompt([result("a")], run) == [USER, FINE]
    loop.close()


def test_what_an_agents_run_raises_is_a_failed_turn_and_the_next_goes_on(loop: AgentLoop) -> None:
    """The library's own error comes out, and says nothing of the next turn."""
    agent = Agent(loop)
    with pytest.raises(LookupError, match="no such agent"):
        loop.prompt([{"role": "user", "content": "fail"}], agent.run)
    assert loop.prompt([USER], agent.run) == [USER]


def test_a_run_whose_answer_never_came_is_over_when_the_user_speaks_again(loop: AgentLoop) -> None:
    """As a chat does after a failed call of the model: two runs never write to one history."""
    agent = Agent(loop)
    loop.prompt([USER], agent.run)
    loop.prompt([{"role": "user", "content": "Hello?"}], agent.run)
    assert agent.cancelled == 1
    loop.answered(FINE)
    assert agent.history[-1] == FINE


def test_a_run_that_never_calls_its_model_is_an_error(loop: AgentLoop) -> None:
    """Rather than the prompt of the turn before."""
    with pytest.raises(RuntimeError, match="without a call"):
        loop.prompt([{"role": "user", "content": "say nothing"}], Agent(loop).run)


def test_answers_and_results_that_nobody_waits_for_are_errors(loop: AgentLoop) -> None:
    """A driver that mixes them up is told so."""
    with pytest.raises(RuntimeError, match="waits for no answer"):
        loop.answered(FINE)
    with pytest.raises(RuntimeError, match="no run waits"):
        loop.prompt([result("a")], Agent(loop).run)


def test_background_work_goes_on_between_the_drivers_calls() -> None:
    """In a thread of its own the event loop needs no driver to get on."""
    loop, done = AgentLoop(background=True), threading.Event()

    async def begin() -> None:
        asyncio.get_running_loop().call_later(0.001, done.set)

    loop.do(begin())
    assert done.wait(timeout=30)
    loop.close()


# -- messages of OpenAI's as others have them -------------------------------------------------------------------------


def test_strands_gets_the_results_of_one_answers_calls_in_one_message() -> None:
    """As its loop has them: every call of a message is answered in the next one."""
    strands = module("strands")
    both = strands._read_all([result("a"), result("b")])
    assert [message["role"] for message in both] == ["user"]
    assert [block["toolResult"]["toolUseId"] for block in both[0]["content"]] == ["a", "b"]
    assert strands._read_all([USER]) == [{"role": "user", "content": [{"text": "How are you?"}]}]


def test_strands_gets_calls_with_their_arguments() -> None:
    """Read from the JSON that they came as; an answer without text has no empty block."""
    call = {"id": "a", "function": {"name": "look_up", "arguments": '{"table": "t"}'}}
    read = module("strands")._read({"role": "assistant", "content": None, "tool_calls": [call]})
    assert read == {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "a", "name": "look_up", "input": {"table": "t"}}}],
    }


def test_a_message_of_litellms_goes_over_the_wire_without_what_it_leaves_open() -> None:
    """No field that is None is sent."""
    assert module("google_adk")._plain({"role": "assistant", "content": "Fine.", "tool_calls": None}) == FINE
