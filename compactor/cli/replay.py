"""A user's transcript put through a Memory and a compactor: reads the file, replays it, and reports the figures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memory import Memory, MessageError
from memory.events import EventHook
from memory.messages import ASSISTANT, parse

from ..background import ContextCompactor
from ..compose import Prompt, Report, compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded
from ..events import visible
from ..runner import State
from ..strategies import compact_rounds
from ..testing import FakeClock
from ..tokens import PROMPT_TOKENS, count_message, count_prompt, counter_for
from .savings import (
    LevelSaving,
    PromptFigures,
    Saving,
    Watch,
    count_open_calls,
    count_torn_calls,
    is_whole,
    level_table,
    saving_figures,
    strategy_table,
    sum_by_name,
)
from .terminal import CannotRun, make_table, milliseconds, name_options, one_line, percent, quantity

_SHAPES = 'a list of messages, {"messages": [...]}, a list of such conversations, or one message or conversation a line'
#: The replay ends when the summarizer has failed this many times in a row.
MAX_FAILURES = 3
#: Seconds of one wait. Waits are short so that an interrupt ends them on every platform.
_WAIT = 0.5
#: Maximum number of conversations that get a row each. Of more, only the totals are printed.
_MAX_ROWS = 20
#: Maximum characters of a message that ``--show`` prints. Summaries are printed in full.
_MAX_SHOWN = 400


# --- transcripts ---


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's format, all accepted by Memory."""

    #: Its ``id`` in the file, or else its number there.
    name: str
    messages: tuple[Mapping[str, Any], ...]


def read_transcript(path: str) -> list[Conversation]:
    """Return the conversations in the file at *path* (``-``: standard input), at least one.

    Raises ``CannotRun`` with the line, conversation and message that cannot be used.
    """
    name = "standard input" if path == "-" else path
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the path contains NUL
        reason = "is a folder" if Path(path).is_dir() else getattr(error, "strerror", None) or "no such file"
        raise CannotRun(f"{name}: cannot be read ({reason}); give the path of a JSON or JSONL file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CannotRun(f"{name}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if "\0" in text:
        raise CannotRun(f"{name}: is binary, not text; give a JSON or JSONL file")
    if not text.strip():
        raise CannotRun(f"{name}: is empty; it needs {_SHAPES}")
    values = _parse_values(text, name)
    if values and all(_is_message(value) for _, value in values):  # one message a line
        return [Conversation("1", tuple(_check_message(value, f"{name}, {where}") for where, value in values))]
    conversations = [
        _make_conversation(value, number, f"{name}, {where}" if where else name)
        for number, (where, value) in enumerate(values, 1)
    ]
    if not conversations:
        raise CannotRun(f"{name}: holds no conversation; it needs {_SHAPES}")
    return conversations


def join_conversations(conversations: Sequence[Conversation]) -> Conversation:
    """Return one conversation with all messages in order, later system messages included."""
    name = conversations[0].name if len(conversations) == 1 else f"1-{len(conversations)} joined"
    return Conversation(name, tuple(message for one in conversations for message in one.messages))


def _parse_values(text: str, name: str) -> list[tuple[str, Any]]:
    """Return the JSON values in *text*, each with its place in the file: one a line, the items of a list, or one."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [(f"line {number}", _parse_json(line, name, number)) for number, line in lines]
    value = _parse_json(text, name, 1)
    if isinstance(value, list) and not (value and _is_message(value[0])):
        return [(f"conversation {number}", one) for number, one in enumerate(value, 1)]
    return [("", value)]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_json(text: str, name: str, first_line: int) -> Any:
    # Errors are raised without their cause, which contains the whole text.
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise CannotRun(f"{name}: is not JSON (line {line}, column {error.colno}: {error.msg})") from None
    except RecursionError:
        raise CannotRun(f"{name}: is nested too deeply to be read (line {first_line})") from None
    except ValueError:  # a number with thousands of digits
        raise CannotRun(f"{name}: holds a number too long to be read (line {first_line})") from None


def _make_conversation(value: Any, number: int, where: str) -> Conversation:
    known_as = value.get("id") if isinstance(value, dict) else None
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        if _is_message(value):
            raise CannotRun(f"{where}: is a message among conversations; the file must hold the one or the other")
        if isinstance(value, dict):
            kind = "an object without a list of messages"
        else:
            kind = {str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
        raise CannotRun(f"{where}: is no conversation but {kind}; needed is {_SHAPES}")
    name = one_line(str(known_as), 40) if isinstance(known_as, (str, int)) else str(number)
    checked = (_check_message(message, f"{where}, message {index}") for index, message in enumerate(messages, 1))
    return Conversation(name, tuple(checked))


def _check_message(message: Any, where: str) -> Mapping[str, Any]:
    try:
        parse(message)
    except MessageError as error:
        raise CannotRun(f"{where}: {error}") from error
    return message  # type: ignore[no-any-return]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "messages" not in value


# --- the replay ---


@dataclass(frozen=True)
class Setup:
    """How conversations are replayed."""

    config: CompactorConfig
    budget: int
    #: None: the extractive summarizer.
    summarizer: object | None = None
    hooks: Sequence[EventHook] = ()
    #: Name of a function in ``compactor.presets``; "": the default strategies and the configuration above.
    preset: str = ""

    def options(self) -> dict[str, Any]:
        """Return a compactor's options. Each compactor needs its own: strategies may have state."""
        if not self.preset:
            return {"config": self.config, "summarizer": self.summarizer, "strategies": (compact_rounds,)}
        from .. import presets  # here, so that other commands do not wait for it

        config = CompactorConfig(model=self.config.model)
        make = getattr(presets, self.preset)
        return dict(make(max_token=self.budget, summarizer=self.summarizer, config=config))


@dataclass
class Replayed:
    """The result of one conversation."""

    name: str
    messages: int
    watch: Watch = field(default_factory=Watch)
    rounds: int = 0
    covered_rounds: int = 0
    #: What all its prompts add up to.
    prompts: PromptFigures = field(default_factory=PromptFigures)
    longest_compose_ms: float = 0.0
    last_prompt: Prompt = field(default_factory=lambda: Prompt([], 0, Report(0, 0)))

    def figures(self) -> dict[str, Any]:
        """Return all figures as the JSON document has them."""
        return {
            "name": self.name,
            "messages": self.messages,
            "rounds": self.rounds,
            "covered_rounds": self.covered_rounds,
            **self.watch.figures(),
            **self.prompts.figures(),
            "longest_compose_ms": self.longest_compose_ms,
            "background_seconds": round(self.watch.seconds, 3),
            **saving_figures(self.watch.savings, self.prompts.levels),
        }


def replay(conversation: Conversation, setup: Setup, step: Callable[[], None] = lambda: None) -> Replayed:
    """Replay *conversation*, with a prompt for each answer in it. *step* is called after each message.

    Waits for the compactor after each message: with a deterministic summarizer all figures but times are repeatable.
    Raises ``CannotRun`` if the budget is too small or the summarizer fails ``MAX_FAILURES`` times in a row.
    """
    memory, options = Memory(), setup.options()
    watch = Watch(options["strategies"])
    clock = _StepClock() if setup.summarizer is None else None
    compactor = ContextCompactor.for_role(memory, ASSISTANT, **options, on_event=watch, clock=clock)
    for hook in setup.hooks:
        compactor.on_event(hook)
    count = counter_for(setup.config.model)
    messages, raw_tokens = conversation.messages, PROMPT_TOKENS
    queries: list[Mapping[str, Any]] = []
    result = Replayed(conversation.name, len(messages), watch)

    def compose_next(index: int) -> None:
        began = time.perf_counter()
        try:
            prompt = compose(memory, ASSISTANT, budget=setup.budget, model=setup.config.model)
        except BudgetExceeded as error:
            raise CannotRun(f"conversation {result.name}, message {index + 1}: {error}") from error
        took = round(1000 * (time.perf_counter() - began), 3)
        open_calls = count_open_calls(prompt.messages) - count_open_calls(messages[:index])
        result.prompts.add(
            prompt,
            count_prompt(prompt.messages, count),
            raw_tokens,
            budget=setup.budget,
            torn=count_torn_calls(prompt.messages) + max(open_calls, 0),
            whole=not queries or is_whole(queries[-1], prompt.messages, queries[:-1]),
        )
        result.last_prompt, result.longest_compose_ms = prompt, max(result.longest_compose_ms, took)

    with compactor:
        for index, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                compose_next(index)
            backing_off = compactor.status().state is State.BACKING_OFF
            memory.append(message)
            raw_tokens += count_message(message, count)
            if message["role"] == "user":
                queries.append(message)
            if clock is None:
                _wait_for_model(compactor, watch)
            else:
                clock.settle(compactor, backing_off=backing_off)
            step()
        compose_next(len(messages))
        result.covered_rounds = compactor.status().end_index
    result.rounds = len(memory.conversation.rounds)
    return result


class _StepClock(FakeClock):
    """Ends a back-off with the next message, so that retries happen at the same message in every run.

    Durations are real.
    """

    def monotonic(self) -> float:
        return time.monotonic()

    def settle(self, compactor: ContextCompactor, *, backing_off: bool) -> None:
        """Wait until *compactor* has looked at everything or failed. *backing_off*: before the message was added."""
        if backing_off:
            self.advance(max(self.waiting, default=0.0))
        _wait_for_cycle(compactor)


def _wait_for_model(compactor: ContextCompactor, watch: Watch) -> None:
    """Wait until *compactor* has looked at everything, through ``MAX_FAILURES`` failures at most."""
    seen = watch.outcomes
    while not _wait_for_cycle(compactor):
        status = compactor.status()
        if status.failures >= MAX_FAILURES:
            reason = name_options(status.last_error or "no reason is known")
            raise CannotRun(f"the summarizer failed {quantity(status.failures, 'time')} in a row: {reason}")
        watch.wait_for_outcome(seen, timeout=_WAIT)
        seen = watch.outcomes


def _wait_for_cycle(compactor: ContextCompactor) -> bool:
    """Wait for the running cycle; return False if it failed and will be retried."""
    while not compactor.wait_idle(timeout=_WAIT):
        if compactor.status().state not in (State.LOOKING, State.COMPACTING):
            return False
    return True


def replay_all(conversations: Sequence[Conversation], setup: Setup, console: Console | None) -> list[Replayed]:
    """Replay *conversations*, with a progress bar on *console* unless it is None."""
    if console is None:
        return [replay(conversation, setup) for conversation in conversations]
    columns = (
        TextColumn("replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("messages"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(len(conversation.messages) for conversation in conversations))
        return [replay(conversation, setup, lambda: progress.advance(task)) for conversation in conversations]


# --- the report ---


def sum_results(results: Sequence[Replayed]) -> dict[str, Any]:
    """Return the sums of all figures; of ``longest_compose_ms``, the maximum."""
    figures = [result.figures() for result in results]
    sums = {
        name: round(sum(one[name] for one in figures), 3)
        for name, value in figures[0].items()
        if isinstance(value, int | float)
    }
    longest = max(result.longest_compose_ms for result in results)
    return {"conversations": len(results), **sums, "longest_compose_ms": longest} | saving_figures(*_savings(results))


def _savings(results: Sequence[Replayed]) -> tuple[dict[str, Saving], dict[str, LevelSaving]]:
    """Return the savings of strategies and levels in all *results*."""
    strategies = sum_by_name(result.watch.savings for result in results)
    return strategies, sum_by_name(result.prompts.levels for result in results)


def make_document(file: str, results: Sequence[Replayed], setup: Setup, *, joined: bool) -> dict[str, Any]:
    """Return everything as one JSON document."""
    config = setup.options()["config"]
    return {
        "file": file,
        "joined": joined,
        "budget": setup.budget,
        "preset": setup.preset or None,
        "threshold": None if setup.preset else config.threshold,  # presets have their own triggers
        "retain_recent": config.retain_recent,
        "prompt": config.prompt.name,
        "summarizer": "extractive" if setup.summarizer is None else "openai",
        "conversations": [result.figures() for result in results],
        "totals": sum_results(results),
    }


def print_report(results: Sequence[Replayed], console: Console) -> None:
    """Print a row for each result if there are few, the totals, and the savings."""
    if 1 < len(results) <= _MAX_ROWS:
        columns = ("conversation", "rounds", "summarised", "compactions", "raw", "composed", "saved")
        few = []
        for one in results:
            composed, raw = one.prompts.prompt_tokens, one.prompts.raw_tokens
            figures = (one.rounds, one.covered_rounds, one.watch.compactions, raw, composed)
            few.append((one.name, *figures, percent(composed, raw)))
        console.print(make_table(columns, few))
    sums = sum_results(results)
    prompts, composed, raw = sums["prompts"], sums["tokens_of_all_prompts"], sums["raw_tokens_of_all_prompts"]
    name = f"conversation {results[0].name}" if len(results) == 1 else f"{len(results)} conversations"
    last = "last prompt" if len(results) == 1 else "last prompts, together"
    rows = [
        ("rounds", sums["rounds"]),
        ("rounds summarised", sums["covered_rounds"]),
        ("compactions", sums["compactions"]),
        ("reductions", sums["reductions"]),
        (f"{last}: raw tokens", sums["raw_tokens"]),
        (f"{last}: composed tokens", sums["prompt_tokens"]),
        (f"{last}: saved", percent(sums["prompt_tokens"], sums["raw_tokens"])),
        (f"all {prompts:,} prompts: raw tokens", raw),
        (f"all {prompts:,} prompts: composed tokens", composed),
        (f"all {prompts:,} prompts: saved", percent(composed, raw)),
        ("prompts over the budget", sums["prompts_over_budget"]),
        ("tool calls parted from their results", sums["torn_calls"]),
        ("newest user messages not whole", sums["queries_not_whole"]),
        ("longest time to compose", milliseconds(sums["longest_compose_ms"] / 1000)),
        ("compacting, in the background", f"{sums['background_seconds']:.1f} s"),
    ]
    title = f"{name}: {quantity(sums['messages'], 'message')}"
    console.print(make_table(("", ""), rows, title=title, show_header=False))
    strategies, levels = _savings(results)
    console.print(strategy_table(strategies))
    if any(level.prompts for level in levels.values()):
        console.print(level_table(levels))
    if sums["failures"]:
        attempts = quantity(sums["failures"], "attempt")
        console.print(f"{attempts} at a summary failed; what was there before stayed in place.")


def print_last_prompt(results: Sequence[Replayed], console: Console) -> None:
    """Print the last prompt of the longest conversation, with all texts but the summary shortened."""
    longest = max(results, key=lambda result: result.prompts.raw_tokens)
    prompt = longest.last_prompt
    of = f", the longest of {len(results)} conversations" if len(results) > 1 else ""
    console.print(f"The last prompt of conversation {longest.name}{of}: {prompt.tokens:,} tokens\n", soft_wrap=True)
    for message in prompt.messages:
        console.print(f"[{message['role']}]", style="bold")
        console.print(_shorten_message(message), soft_wrap=True)
        console.print()


def _shorten_message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    if not text.startswith("[Conversation History Summary]") and len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]} [... {len(text) - _MAX_SHOWN:,} more characters]"
    calls = [
        one_line(f"calls {call['function']['name']}({call['function']['arguments']})", _MAX_SHOWN)
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), Mapping)
    ]
    return "\n".join([*([visible(text)] if text else []), *calls])
