"""Every prompt of real tool-calling dialogues under small budgets, by compose alone and with each preset.

Prints a table in Markdown: prompts, how many were over their budget, had a call without its result or not the newest
question (0, or the run fails), how many changed the beginning of the one before, and what composing took.

    python -m benchmarks.pressure ../shared/data/airline.jsonl [--presets] [--every 1]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.preset_differences import PRESETS, is_whole
from compactor import ContextCompactor, ExtractiveSummarizer, Prompt, compose, count_prompt, count_tokens, presets
from memory import Memory

BUDGETS = (1_500, 3_000, 8_000)
JOINED_BUDGET = 8_000
#: Composed so often at the end of the joined conversation, for the 99th percentile.
TIMES = 1_000
REFERENCE = re.compile(r"reload (r\d+(?:\.p\d+(?:-p\d+)?|-r\d+)?)")

Message = dict[str, Any]


@dataclass
class Tally:
    prompts: int = 0
    over_budget: int = 0
    torn: int = 0
    without_question: int = 0
    changed: int = 0
    references: int = 0
    milliseconds: list[float] = field(default_factory=list)
    before: Sequence[Message] = ()

    def look(self, prompt: Prompt, memory: Memory, budget: int, asked: object) -> None:
        """Count *prompt*, with nothing of what it says of itself. Raises ``KeyError`` for a reference to nothing."""
        counted = count_prompt(prompt.messages, count_tokens)
        self.prompts += 1
        self.over_budget += counted > budget
        self.torn += not is_whole(prompt.messages)
        self.without_question += asked is not None and not any(
            message["role"] == "user" and message["content"] == asked for message in prompt.messages
        )
        self.changed += list(prompt.messages[: len(self.before)]) != list(self.before)
        self.before = prompt.messages
        for message in prompt.messages:
            for reference in REFERENCE.findall(str(message.get("content"))):
                memory.reload(reference)
                self.references += 1

    @property
    def failed(self) -> int:
        return self.over_budget + self.torn + self.without_question


def played(conversation: Sequence[Message], preset: str, budget: int, every: int, tally: Tally) -> Memory:
    """Take one conversation through a Memory, and look at a prompt after each *every* messages."""
    memory, asked = Memory(), None
    tally.before = ()
    with ExitStack() as stack:
        compactor = None
        if preset:
            options = getattr(presets, preset)(max_token=budget, summarizer=ExtractiveSummarizer())
            compactor = stack.enter_context(ContextCompactor.for_role(memory, "assistant", **options))
        for number, message in enumerate(conversation):
            memory.append(message)
            asked = message["content"] if message["role"] == "user" else asked
            if number % every:
                continue
            if compactor is not None:
                compactor.wait_idle(30)  # so that each prompt sees all that is published; a chat loop does not wait
            began = time.perf_counter()
            prompt = compose(memory, budget=budget)
            tally.milliseconds.append((time.perf_counter() - began) * 1_000)
            tally.look(prompt, memory, budget, asked)
    return memory


def rows(dialogues: Sequence[Sequence[Message]], chosen: Sequence[str], every: int) -> Iterator[tuple[str, int]]:
    """Give each row of the table, and how many of its prompts failed."""
    joined = [message for dialogue in dialogues for message in dialogue]
    for preset in chosen:
        name = preset or "compose alone"
        for budget in BUDGETS:
            tally = Tally()
            for dialogue in dialogues:
                played(dialogue, preset, budget, every, tally)
            yield row(f"{name}, each by itself", budget, tally), tally.failed
        tally = Tally()
        memory = played(joined, preset, JOINED_BUDGET, every, tally)
        yield row(f"{name}, all as one", JOINED_BUDGET, tally), tally.failed
        tally.milliseconds = []
        for _ in range(TIMES):
            began = time.perf_counter()
            compose(memory, budget=JOINED_BUDGET)
            tally.milliseconds.append((time.perf_counter() - began) * 1_000)
        yield f"| {name}, at the end of that | {JOINED_BUDGET:,} | {TIMES:,} | | | | | |{times(tally)}", 0


def row(name: str, budget: int, tally: Tally) -> str:
    share = tally.changed / max(tally.prompts, 1)
    return (
        f"| {name} | {budget:,} | {tally.prompts:,} | {tally.over_budget} | {tally.torn} | {tally.without_question}"
        f" | {tally.references:,} | {share:.1%} |{times(tally)}"
    )


def times(tally: Tally) -> str:
    found = sorted(tally.milliseconds)
    return f" {found[len(found) // 2]:.1f} | {found[int(len(found) * 0.99)]:.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help='JSONL, one {"messages": [...]} a line')
    parser.add_argument("--presets", action="store_true", help="with each preset too, which takes some minutes")
    parser.add_argument("--every", type=int, default=1, help="look at a prompt after so many messages")
    given = parser.parse_args()
    lines = given.file.read_text(encoding="utf-8").splitlines()
    dialogues = [json.loads(line)["messages"] for line in lines if line.strip()]
    print("| | budget | prompts | over | torn | no question | references | beginnings changed | ms p50 | ms p99 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    failed = 0
    for text, wrong in rows(dialogues, ("", *PRESETS) if given.presets else ("",), max(given.every, 1)):
        print(text, flush=True)
        failed += wrong
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
