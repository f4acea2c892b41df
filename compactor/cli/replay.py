"""A user's transcript put through a Memory and a compactor: reads the file, replays it, and reports the figures."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console, Group

from memory import Memory, MessageError
from memory.events import EventHook
from memory.messages import ASSISTANT, parse

from ..background import ContextCompactor
from ..compose import Prompt, compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded
from ..events import Failed, escape_controls
from ..runner import State
from ..strategies import compact_rounds
from ..timers import SystemClock
from ..tokens import PROMPT_TOKENS, count_message, count_prompt, get_counter
from .plot import draw_plot
from .savings import (
    Figures,
    Messages,
    StatsCollector,
    add_figures,
    count_open_calls,
    count_orphaned_calls,
    is_verbatim,
    make_level_table,
    make_strategy_table,
)
from .terminal import (
    NARROW,
    CommandError,
    is_lasting,
    make_one_line,
    make_table,
    name_options,
    render_percent,
    render_quantity,
    show_progress,
)

#: Its ``id`` in the file, or else its number there; and its messages in OpenAI's format, all accepted by Memory.
NamedConversation = tuple[str, Messages]

_SHAPES = 'a list of messages, {"messages": [...]}, a list of such conversations, or one message or conversation a line'
#: Maximum budget if none is given.
MAX_BUDGET = 8_000
#: The replay ends when the summarizer has failed this many times in a row.
MAX_FAILURES = 3
#: Seconds of one wait. Waits are short so that an interrupt ends them on every platform.
_WAIT = 0.5
#: Maximum number of conversations that get a row each. Of more, only the totals are printed.
_MAX_ROWS = 20
#: Maximum characters of a message that ``--show`` prints. Summaries are printed in full.
_MAX_SHOWN = 400


def read_transcript(path: str) -> list[NamedConversation]:
    """Return the conversations in the file at *path* (``-``: standard input), at least one.

    Raises ``CommandError`` with the line, conversation and message that cannot be used.
    """
    name = "standard input" if path == "-" else path
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the path contains NUL
        reason = "is a folder" if Path(path).is_dir() else getattr(error, "strerror", None) or "no such file"
        raise CommandError(f"{name}: cannot be read ({reason}); give the path of a JSON or JSONL file") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if "\0" in text:
        raise CommandError(f"{name}: is binary, not text; give a JSON or JSONL file")
    if not text.strip():
        raise CommandError(f"{name}: is empty; it needs {_SHAPES}")
    values = _parse_values(text, name)
    if values and all(_is_message(value) for _, value in values):  # one message a line
        return [("1", [_check_message(value, f"{name}, {where}") for where, value in values])]
    conversations = [
        _make_conversation(value, number, f"{name}, {where}" if where else name)
        for number, (where, value) in enumerate(values, 1)
    ]
    if not conversations:
        raise CommandError(f"{name}: holds no conversation; it needs {_SHAPES}")
    return conversations


class BudgetTooSmall(CommandError):
    """A prompt does not fit, however short its texts."""


def choose_budget(conversations: Sequence[NamedConversation], model: str) -> int:
    """Return a budget at which something happens: the system messages that open the longest conversation, and a quarter
    of the rest of it; at most ``MAX_BUDGET``."""
    count = get_counter(model)
    messages = max((messages for _, messages in conversations), key=lambda messages: count_prompt(messages, count))
    header = sum(count_message(one, count) for one in takewhile(lambda one: one["role"] == "system", messages))
    return min(MAX_BUDGET, header + (count_prompt(messages, count) - header) // 4 + 1)


def join_conversations(conversations: Sequence[NamedConversation]) -> NamedConversation:
    """Return one conversation with all messages in order, later system messages included."""
    name = conversations[0][0] if len(conversations) == 1 else f"1-{len(conversations)} joined"
    return name, [message for _, messages in conversations for message in messages]


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
        raise CommandError(f"{name}: is not JSON (line {line}, column {error.colno}: {error.msg})") from None
    except RecursionError:
        raise CommandError(f"{name}: is nested too deeply to be read (line {first_line})") from None
    except ValueError:  # a number with thousands of digits
        raise CommandError(f"{name}: holds a number too long to be read (line {first_line})") from None


def _make_conversation(value: Any, number: int, where: str) -> NamedConversation:
    given_id, messages = (value.get("id"), value.get("messages")) if isinstance(value, dict) else (None, value)
    if _is_message(value):
        raise CommandError(f"{where}: is a message among conversations; the file must hold only one of the two")
    if not isinstance(messages, list):
        kinds = {dict: "an object without a list of messages", str: "a text", bool: "true or false", type(None): "null"}
        raise CommandError(f"{where}: is no conversation but {kinds.get(type(value), 'a number')}; it needs {_SHAPES}")
    name = make_one_line(str(given_id), 40) if isinstance(given_id, (str, int)) else str(number)
    return name, [_check_message(message, f"{where}, message {index}") for index, message in enumerate(messages, 1)]


def _check_message(message: Any, where: str) -> Mapping[str, Any]:
    try:
        parse(message)
    except MessageError as error:
        raise CommandError(f"{where}: {error}") from error
    return message  # type: ignore[no-any-return]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "messages" not in value


class NextMessageClock(SystemClock):
    """The machine's time, but a timer ends when the replay says so: a back-off is counted in messages, not seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[object, Callable[[], None]] = {}

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], object]:  # noqa: ARG002
        key = object()
        self._pending[key] = callback
        return lambda: self._pending.pop(key, None)

    def make_calls(self) -> None:
        for key in list(self._pending):
            if callback := self._pending.pop(key, None):
                callback()


@dataclass(frozen=True)
class Replay:
    """Replays conversations, each in a Memory of its own, with a prompt for each answer in it."""

    config: CompactorConfig
    budget: int
    #: None: the extractive summarizer.
    summarizer: object | None = None
    hooks: Sequence[EventHook] = ()
    #: Name of a function in ``compactor.presets``; "": the default strategies and the configuration above.
    preset: str = ""

    def make_options(self) -> dict[str, Any]:
        """Return a compactor's options. Each compactor needs its own: strategies may have state."""
        if not self.preset:
            return {"config": self.config, "summarizer": self.summarizer, "strategies": (compact_rounds,)}
        from .. import presets  # here, so that other commands do not wait for it

        config = CompactorConfig(model=self.config.model)
        make = getattr(presets, self.preset)
        return dict(make(max_token=self.budget, summarizer=self.summarizer, config=config))

    def run(self, conversation: NamedConversation, step: Callable[[], None] = lambda: None) -> tuple[Figures, Prompt]:
        """Replay *conversation*, and return its figures and its last prompt. *step* is called after each message.

        Waits for the compactor after each message: with a deterministic summarizer all figures but times are
        repeatable. Raises ``CommandError`` if the budget is too small, or after ``MAX_FAILURES`` failures of the
        summarizer in a row.
        """
        name, messages = conversation
        memory, options = Memory(), self.make_options()
        stats, event_seen = StatsCollector(options["strategies"]), threading.Event()
        failures: list[Failed] = []
        clock = NextMessageClock() if self.summarizer is None else None
        compactor = ContextCompactor.for_role(memory, ASSISTANT, **options, on_event=stats, clock=clock)
        hooks: tuple[EventHook, ...] = (*self.hooks, partial(_add_failure, failures), lambda _: event_seen.set())
        for hook in hooks:
            compactor.on_event(hook)
        count = get_counter(self.config.model)
        raw_tokens, longest_ms = PROMPT_TOKENS, 0.0
        queries: list[Mapping[str, Any]] = []

        def compose_next(index: int) -> Prompt:
            nonlocal longest_ms
            began = time.perf_counter()
            try:
                prompt = compose(memory, ASSISTANT, budget=self.budget, model=self.config.model)
            except BudgetExceeded as error:
                raise BudgetTooSmall(f"conversation {name}, message {index + 1}: {error}") from error
            longest_ms = max(longest_ms, round(1000 * (time.perf_counter() - began), 3))
            open_calls = count_open_calls(prompt.messages) - count_open_calls(messages[:index])
            orphaned = count_orphaned_calls(prompt.messages) + max(open_calls, 0)
            has_query = not queries or is_verbatim(queries[-1], prompt.messages, queries[:-1])
            tokens = count_prompt(prompt.messages, count)
            stats.add_prompt(prompt, tokens, raw_tokens, budget=self.budget, orphaned=orphaned, has_query=has_query)
            return prompt

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
                    _wait_for_model(compactor, event_seen, failures)
                else:
                    if backing_off:
                        clock.make_calls()
                    _wait_for_cycle(compactor)
                step()
            prompt = compose_next(len(messages))
            covered = compactor.status().end_index
        figures = {
            "name": name,
            "messages": len(messages),
            "rounds": len(memory.conversation.rounds),
            "covered_rounds": covered,
            "longest_compose_ms": longest_ms,
        }
        return figures | stats.get_figures(), prompt

    def run_all(self, conversations: Sequence[NamedConversation], console: Console) -> list[tuple[Figures, Prompt]]:
        """Replay *conversations*, with a progress bar if *console* can redraw."""
        total = sum(len(messages) for _, messages in conversations)
        with show_progress("replaying", total, "messages", console, self.hooks) as step:
            return [self.run(conversation, step) for conversation in conversations]

    def make_document(self, file: str, results: Sequence[Figures], *, joined: bool) -> dict[str, Any]:
        config = self.make_options()["config"]
        return {
            "file": file,
            "joined": joined,
            "budget": self.budget,
            "preset": self.preset or None,
            "threshold": None if self.preset else config.threshold,  # presets have their own triggers
            "retain_recent": config.retain_recent,
            "prompt": config.prompt.name,
            "summarizer": "extractive" if self.summarizer is None else "openai",
            "conversations": results,
            "totals": sum_results(results),
        }


def _add_failure(failures: list[Failed], event: object) -> None:
    if isinstance(event, Failed):
        failures.append(event)


def _wait_for_model(compactor: ContextCompactor, event_seen: threading.Event, failures: Sequence[Failed]) -> None:
    """Wait until *compactor* is done, through ``MAX_FAILURES`` failures at most and none that lasts.

    Its events set *event_seen*, and *failures* are those among them.
    """
    while True:
        event_seen.clear()
        if _wait_for_cycle(compactor):
            return
        status = compactor.status()
        reason = name_options(status.last_error or "no reason is known")
        if status.failures and failures and is_lasting(failures[-1].kind, failures[-1].status):
            raise CommandError(reason)
        if status.failures >= MAX_FAILURES:
            raise CommandError(f"the summarizer failed {render_quantity(status.failures, 'time')} in a row: {reason}")
        event_seen.wait(_WAIT)


def _wait_for_cycle(compactor: ContextCompactor) -> bool:
    """Wait for the running cycle; return False if it failed and will be retried."""
    while not compactor.wait_idle(timeout=_WAIT):
        if compactor.status().state not in (State.EVALUATING, State.COMPACTING):
            return False
    return True


def sum_results(results: Sequence[Figures]) -> Figures:
    """Return the totals of all figures; of ``longest_compose_ms``, the maximum."""
    totals: Figures = {"conversations": len(results)}
    for figures in results:
        add_figures(totals, figures)
    return totals | {"longest_compose_ms": max(figures["longest_compose_ms"] for figures in results)}


def print_report(results: Sequence[Figures], budget: int, console: Console, *, is_chosen: bool = False) -> None:
    """Print a row for each result if there are few, the totals, the savings, and a plot of the longest one.

    *is_chosen*: the *budget* is the smallest that ``choose_budget`` and the prompts allow, and not the user's.
    """
    if 1 < len(results) <= _MAX_ROWS:
        columns = ("conversation", "rounds", "summarised", "compactions", "raw", "composed", "saved")
        names = ("name", "rounds", "covered_rounds", "compactions", "raw_tokens", "prompt_tokens")
        few = [(*map(one.get, names), render_percent(one["prompt_tokens"], one["raw_tokens"])) for one in results]
        console.print(make_table(columns, few, **NARROW))
    totals = sum_results(results)
    composed, raw = totals["tokens_of_all_prompts"], totals["raw_tokens_of_all_prompts"]
    name, last = f"{len(results)} conversations", "last prompts, together"
    if len(results) == 1:
        name, last = f"conversation {results[0]['name']}", "last prompt"
    every = f"all {totals['prompts']:,} prompts"
    rows = [
        ("budget", f"{budget:,} tokens"),
        ("rounds", totals["rounds"]),
        ("rounds summarised", totals["covered_rounds"]),
        ("compactions", totals["compactions"]),
        ("reductions", totals["reductions"]),
        (f"{last}: raw tokens", totals["raw_tokens"]),
        (f"{last}: composed tokens", totals["prompt_tokens"]),
        (f"{last}: saved", render_percent(totals["prompt_tokens"], totals["raw_tokens"])),
        (f"{every}: raw tokens", raw),
        (f"{every}: composed tokens", composed),
        (f"{every}: saved", render_percent(composed, raw)),
        ("prompts over the budget", totals["prompts_over_budget"]),
        ("tool calls parted from their results", totals["orphaned_calls"]),
        ("newest user messages not verbatim", totals["queries_not_verbatim"]),
        ("longest time to compose", f"{totals['longest_compose_ms']:.1f} ms"),
        ("compacting, in the background", f"{totals['background_seconds']:.1f} s"),
    ]
    title = f"{name}: {render_quantity(totals['messages'], 'message')}"
    console.print(make_table(("", ""), rows, title=title, show_header=False))
    console.print(make_strategy_table(totals["strategies"]))
    if any(level["prompts"] for level in totals["levels"].values()):
        console.print(make_level_table(totals["levels"]))
    console.print(_plot(max(results, key=lambda one: one["raw_tokens"]), console))
    if not totals["compactions"] + totals["reductions"] + sum(level["prompts"] for level in totals["levels"].values()):
        advice = "this conversation fits. Try a smaller --budget."
        if is_chosen:
            advice = "the system messages and the newest message are nearly all there is. Try a longer conversation."
        console.print(f"Nothing had to be shortened: {advice}")
    if totals["failures"]:
        attempts = render_quantity(totals["failures"], "attempt")
        console.print(f"{attempts} at a summary failed; what was there before stayed in place.")


def _plot(one: Figures, console: Console) -> Group:
    raw, composed = ([size[index] for size in one["sizes"]] for index in (0, 1))
    what = f"tokens of prompts 1 to {len(raw)}, conversation {one['name']}"
    both = ("everything", "red", raw), ("composed", "green", composed)
    return Group(*draw_plot(what, both, len(raw), console.width, 8, ascii_only=console.options.ascii_only))


def print_last_prompt(results: Sequence[tuple[Figures, Prompt]], console: Console) -> None:
    """Print the last prompt of the longest conversation, with all texts but the summary shortened."""
    figures, prompt = max(results, key=lambda result: result[0]["raw_tokens"])
    of = f", the longest of {len(results)} conversations" if len(results) > 1 else ""
    title, soft_wrap = f"The last prompt of conversation {figures['name']}{of}", not console.record  # a page is narrow
    console.print(f"{title}: {prompt.tokens:,} tokens\n", soft_wrap=soft_wrap)
    for message in prompt.messages:
        console.print(f"[{message['role']}]", style="bold")
        console.print(_shorten_message(message), soft_wrap=soft_wrap)
        console.print()


def _shorten_message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    if not text.startswith("[Conversation History Summary]") and len(text) > _MAX_SHOWN:
        text = f"{text[:_MAX_SHOWN]} [... {len(text) - _MAX_SHOWN:,} more characters]"
    functions = [call.get("function") for call in message.get("tool_calls") or ()]
    calls = [f"calls {one['name']}({one['arguments']})" for one in functions if isinstance(one, Mapping)]
    return "\n".join([*([escape_controls(text)] if text else []), *(make_one_line(call, _MAX_SHOWN) for call in calls)])
