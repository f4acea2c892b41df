"""A planner and a code interpreter work through a long task while their histories are compacted in the background."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from memory import USER, Attachment, Memory, Post, Round, ToolCall
from memory.events import EventHook

from ..background import ContextCompactor
from ..compose import compose
from ..config import CompactorConfig
from ..ledger import ledger_of
from ..summarizers.base import Summary, SummaryRequest
from ..summarizers.extractive import ExtractiveSummarizer
from ..tokens import counter_for
from ..units import count_message
from ..view import View
from .script import Turn, turns
from .watch import Watch

__all__ = ["AGENTS", "BUDGET", "Agent", "Demo", "SlowSummarizer"]

PLANNER, INTERPRETER = "Planner", "CodeInterpreter"
#: Each agent with its shipped prompt and its system message.
AGENTS = {
    PLANNER: ("planner", "You plan the user's data project, hand single steps to CodeInterpreter and report to User."),
    INTERPRETER: ("code_interpreter", "You write and run Python for Planner with the tool run_python, and report."),
}
#: Tokens that no prompt exceeds.
BUDGET = 4_000
THRESHOLD, RETAIN, TARGET = 8, 3, 600


class SlowSummarizer:
    """The extractive summarizer, made to take as long as a model would; the wait ends at once when *closing* is set."""

    def __init__(self, latency: float, closing: threading.Event) -> None:
        self._latency = latency
        self._closing = closing
        self._extract = ExtractiveSummarizer()

    def __call__(self, request: SummaryRequest) -> Summary:
        self._closing.wait(self._latency)
        return self._extract(request)


@dataclass(eq=False)
class Agent:
    """One role's compactor, and what its prompts have cost so far."""

    role: str
    compactor: ContextCompactor
    watch: Watch
    #: Tokens of its last prompt, and of the same with nothing compacted.
    prompt_tokens: int = 0
    raw_tokens: int = 0
    prompts: int = 0
    over_budget: int = 0
    #: Tokens of all its prompts, and of the same with nothing compacted.
    sent: int = 0
    raw_sent: int = 0


@dataclass(eq=False)
class Demo:
    """The conversation: ``with demo: demo.play(...)``, then ``demo.figures()``."""

    latency: float
    seed: int = 0
    hooks: Sequence[EventHook] = ()
    memory: Memory = field(default_factory=Memory)
    #: Rounds done, and how long the host's own calls took in each, in seconds.
    held_up: list[float] = field(default_factory=list)
    #: What is said at this moment, for whoever watches.
    asked: str = ""
    doing: str = ""

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._held = 0.0
        self._calls = 0
        self.agents = [self._agent(role, prompt) for role, (prompt, _) in AGENTS.items()]

    def _agent(self, role: str, prompt: str) -> Agent:
        watch = Watch()
        config = CompactorConfig(
            threshold=THRESHOLD, retain_recent=RETAIN, target_tokens=TARGET, prompt_template_path=prompt
        )
        summarizer = SlowSummarizer(self.latency, self._closing)
        compactor = ContextCompactor.for_role(self.memory, role, config, summarizer, on_event=watch)
        for hook in self.hooks:
            compactor.on_event(hook)
        return Agent(role, compactor, watch)

    def __enter__(self) -> Demo:
        counter_for()("")  # loads the token tables, which a host does at its start too: no turn should pay for that
        for agent in self.agents:
            agent.compactor.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._closing.set()
        for agent in self.agents:
            agent.compactor.stop()

    # -- the conversation ---------------------------------------------------------------------------------------------

    def play(self, count: int, pause: Callable[[], None]) -> None:
        """Go through *count* rounds; *pause* is called wherever a model would be thinking."""
        for turn in turns(count, self.seed):
            self.asked, self._held = turn.user, 0.0
            self._round(turn, pause)
            self.held_up.append(self._held)

    def settle(self, timeout: float) -> bool:
        """Let compactions in flight end, and compose once more; return whether they ended in *timeout* seconds."""
        until = time.monotonic() + timeout
        done = [agent.compactor.wait_idle(max(0.0, until - time.monotonic())) for agent in self.agents]
        for agent in self.agents:
            self._compose(agent)
        return all(done)

    def _round(self, turn: Turn, pause: Callable[[], None]) -> None:
        planner, interpreter = self.agents
        with self._host():
            round_ = self.memory.create_round(turn.user)
        self._post(round_, USER, PLANNER, turn.user)
        self._compose(planner)
        pause()
        if turn.ask:
            self._post(round_, PLANNER, INTERPRETER, turn.ask, plan=turn.plan)
            self._work(round_, turn, interpreter, pause)
            self._compose(planner)
            pause()
        self._post(round_, PLANNER, USER, turn.answer, plan="" if turn.ask else turn.plan)
        with self._host():
            self.memory.finish_round(round_)

    def _work(self, round_: Round, turn: Turn, interpreter: Agent, pause: Callable[[], None]) -> None:
        self._compose(interpreter)
        pause()
        for run in turn.runs:
            self._calls += 1
            call = ToolCall(id=f"call_{self._calls}", name="run_python", arguments=json.dumps({"code": run.code}))
            self._post(round_, INTERPRETER, "tool", tool_calls=(call,))
            self._post(round_, "tool", INTERPRETER, run.result, tool_call_id=call.id)
            self._compose(interpreter)
            pause()
        last = turn.runs[-1]
        self._post(round_, INTERPRETER, PLANNER, turn.report, python=last.code, execution_result=last.result)

    def _post(
        self,
        round_: Round,
        send_from: str,
        send_to: str,
        message: str = "",
        *,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        **attached: str,
    ) -> Post:
        attachments = tuple(Attachment(type=kind, content=text) for kind, text in attached.items() if text)
        self.doing = f"{send_from} to {send_to}: {message or 'run_python(...)'}"
        with self._host():
            return self.memory.add_post(
                round_,
                send_from=send_from,
                send_to=send_to,
                message=message,
                attachment_list=attachments,
                tool_calls=tool_calls,
                tool_call_id=tool_call_id,
            )

    def _compose(self, agent: Agent) -> None:
        system = AGENTS[agent.role][1]
        with self._host():
            prompt = compose(self.memory, agent.role, system=system, budget=BUDGET)
        count = counter_for()
        header = count_message({"role": "system", "content": system}, count)
        rounds = self.memory.rounds_getter(agent.role)()
        agent.raw_tokens = View(rounds, None, ledger_of(self.memory, agent.role, count), header).tokens
        agent.prompt_tokens = prompt.tokens
        agent.prompts += 1
        agent.over_budget += prompt.tokens > BUDGET
        agent.sent += agent.prompt_tokens
        agent.raw_sent += agent.raw_tokens

    @contextmanager
    def _host(self) -> Iterator[None]:
        """Count the time in here as the turn's own: what the chat would have to wait for."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._held += time.perf_counter() - began

    # -- what came of it ----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Return all figures of the demo, as JSON has them."""
        return {
            "rounds": len(self.held_up),
            "budget": BUDGET,
            "threshold": THRESHOLD,
            "retain_recent": RETAIN,
            "summarizer": "extractive",
            "summarizer_latency_seconds": self.latency,
            "longest_turn_ms": round(1000 * max(self.held_up, default=0.0), 3),
            "roles": {agent.role: self._role_figures(agent) for agent in self.agents},
        }

    @staticmethod
    def _role_figures(agent: Agent) -> dict[str, Any]:
        return {
            "covered_rounds": agent.compactor.status().end_index,
            "compactions": agent.watch.compactions,
            "failures": agent.watch.failures,
            "background_seconds": round(agent.watch.seconds, 3),
            "raw_tokens": agent.raw_tokens,
            "prompt_tokens": agent.prompt_tokens,
            "prompts": agent.prompts,
            "prompts_over_budget": agent.over_budget,
            "raw_tokens_of_all_prompts": agent.raw_sent,
            "tokens_of_all_prompts": agent.sent,
        }
