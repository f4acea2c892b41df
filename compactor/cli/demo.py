"""A planner and a code interpreter work through a long task while their histories are compacted in the background."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from memory import USER, Round

from ..config import CompactorConfig
from ..strategies import compact_rounds
from .script import Turn, turns
from .stage import Agent, Stage

PLANNER, INTERPRETER = "Planner", "CodeInterpreter"
#: Each agent with its shipped prompt and its system message.
AGENTS = {
    PLANNER: ("planner", "You plan the user's data project, hand single steps to CodeInterpreter and report to User."),
    INTERPRETER: ("code_interpreter", "You write and run Python for Planner with the tool run_python, and report."),
}
THRESHOLD, RETAIN, TARGET = 8, 3, 600


@dataclass(eq=False)
class Demo(Stage):
    """Two agents at a sales forecast: ``with demo: demo.play(...)``, then ``demo.figures()``."""

    command: ClassVar[str] = "compactor demo"
    due: ClassVar[str] = f"Compactions were due after {THRESHOLD} rounds and left the last {RETAIN} as they are."

    def _enter(self) -> None:
        for role, (prompt, system) in AGENTS.items():
            config = CompactorConfig(
                threshold=THRESHOLD, retain_recent=RETAIN, target_tokens=TARGET, prompt_template_path=prompt
            )
            self._cast(role, system, config, [compact_rounds])

    def play(self, count: int, pause: Callable[[], None]) -> None:
        """Go through *count* rounds; *pause* is called wherever a model would be thinking."""
        for turn in turns(count, self.seed):
            self.asked, self._held = turn.user, 0.0
            self._round(turn, pause)
            self.held_up.append(self._held)

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
            call = self._call("run_python", json.dumps({"code": run.code}))
            self._post(round_, INTERPRETER, "tool", tool_calls=(call,))
            self._post(round_, "tool", INTERPRETER, run.result, tool_call_id=call.id)
            self._compose(interpreter)
            pause()
        last = turn.runs[-1]
        self._post(round_, INTERPRETER, PLANNER, turn.report, python=last.code, execution_result=last.result)

    def figures(self) -> dict[str, Any]:
        """Return all figures of the demo, as JSON has them."""
        return super().figures() | {"threshold": THRESHOLD, "retain_recent": RETAIN}
