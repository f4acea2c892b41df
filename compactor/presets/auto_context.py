"""``auto_context``: six steps from light to heavy, with the names and numbers of AutoContextMemory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from memory.arguments import ConfigError, check_number, check_whole_number, require
from memory.overlays import Overlay, Reduction
from prompts import PromptTemplate, load

from ..acceptance.checks import MIN_SAVING
from ..config import CompactorConfig, check_config
from ..cycle import Strategy
from ..strategies import compact_view, compress_tool_runs, offload_large
from ..triggers import over_messages, over_tokens
from ..view import View

#: The six steps in order. In capitals, they are the types of compression events.
STEPS = (
    "tool_invocation_compress",
    "large_message_offload_with_protection",
    "large_message_offload",
    "previous_round_conversation_summary",
    "current_round_large_message_summary",
    "current_round_message_compress",
)
#: The tools of AgentScope's PlanNotebook. The prompt shows its plan anew each time.
PLAN_NOTEBOOK_TOOLS = (
    "create_plan",
    "update_plan_info",
    "revise_current_plan",
    "update_subtask_state",
    "finish_subtask",
    "view_subtasks",
    "get_subtask_count",
    "finish_plan",
    "view_historical_plans",
    "recover_historical_plan",
)
#: The newest answered round and the open one stay, as in AutoContextMemory's heaviest step.
RETAIN_RECENT = 2
#: A prompt's name or path. ASCII only: many languages write a whole instruction without a space.
_NAME_OR_PATH = re.compile(r"[\w./\\~:-]*|[^\n]*\.ya?ml", re.ASCII)


class Prompts:
    """The names of the shipped prompts of the steps that ask a model; ``prompts.load(name)`` loads one.

    *COMPRESSION_MESSAGE_LIST_END* ends the conversation in each request.
    """

    PREVIOUS_ROUND_TOOL_INVOCATION_COMPRESS_PROMPT = "tool_run"
    PREVIOUS_ROUND_CONVERSATION_SUMMARY_PROMPT = "default"
    CURRENT_ROUND_LARGE_MESSAGE_SUMMARY_PROMPT = "large_post"
    CURRENT_ROUND_MESSAGE_COMPRESS_PROMPT = "current_round"
    COMPRESSION_MESSAGE_LIST_END = "</conversation>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig:
    """Your own prompt for each step that asks a model; None: the shipped one.

    Each is a ``PromptTemplate``, the name or path of one, or its text. A path ends in ``.yaml`` or ``.yml``, or is a
    ``Path``; a name is one ASCII word; all else is text. A text without ``{content}`` is an instruction, and the
    conversation precedes it.
    """

    previous_round_tool_compress_prompt: str | os.PathLike[str] | PromptTemplate | None = None
    previous_round_summary_prompt: str | os.PathLike[str] | PromptTemplate | None = None
    current_round_large_message_prompt: str | os.PathLike[str] | PromptTemplate | None = None
    current_round_compress_prompt: str | os.PathLike[str] | PromptTemplate | None = None

    def get_template(self, name: str) -> PromptTemplate | None:
        """Return the prompt in field *name*. Raises ``PromptError`` if it cannot be used."""
        given = getattr(self, name)
        wanted = "a text, the name or path of a prompt, or a template"
        require(f"custom_prompt.{name}", given, str | os.PathLike | PromptTemplate | None, wanted)
        if not isinstance(given, str) or _NAME_OR_PATH.fullmatch(given):
            return load(given) if isinstance(given, str | os.PathLike) else given
        return PromptTemplate(name, given if "{content}" in given else f"{{content}}\n\n{given}")


def auto_context(
    msg_threshold: int = 100,
    max_token: int = 128 * 1024,
    token_ratio: float = 0.75,
    last_keep: int = 50,
    large_payload_threshold: int = 5 * 1024,
    offload_single_preview: int = 200,
    min_consecutive_tool_messages: int = 6,
    current_round_compression_ratio: float = 0.3,
    custom_prompt: PromptConfig | Mapping[str, Any] | None = None,
    summarizer: object | None = None,
    *,
    plan: Callable[[], object] | None = None,
    plan_tools: str | Iterable[str] = PLAN_NOTEBOOK_TOOLS,
    exempt_tools: str | Iterable[str] = (),
    config: CompactorConfig | None = None,
) -> dict[str, Any]:
    """Return options for ``ContextCompactor.for_role(memory, role, **auto_context(...))``.

    Due at *msg_threshold* messages, or over *token_ratio* of *max_token*. Until neither holds, the steps run in order:
    runs of tool calls in past rounds become summaries; large posts of past rounds become previews, first all but the
    newest *last_keep* messages, then these too; past rounds are compacted; large posts of the open round become
    summaries, and last its tool calls. Results that the role has not read yet stay, and so do the calls and results of
    *exempt_tools*, such as tools that load skills. Calls of *plan_tools* are one line in a request.

    All other settings come from *config*. Raises ``ConfigError`` for invalid settings.
    """
    check_whole_number("msg_threshold", msg_threshold, 1)
    check_whole_number("max_token", max_token, 1)
    check_whole_number("last_keep", last_keep)
    check_whole_number("large_payload_threshold", large_payload_threshold)
    check_whole_number("offload_single_preview", offload_single_preview)
    check_whole_number("min_consecutive_tool_messages", min_consecutive_tool_messages)
    check_number("token_ratio", token_ratio, maximum=1.0, above=True)
    ratio = current_round_compression_ratio
    check_number("current_round_compression_ratio", ratio, maximum=MIN_SAVING - 0.01, above=True)
    plan_tools = _check_names("plan_tools", plan_tools)
    prompts = _make_prompts(custom_prompt)
    offload = partial(offload_large, large_payload_threshold, preview=offload_single_preview)
    tool_prompt = prompts.get_template("previous_round_tool_compress_prompt")
    large_prompt = prompts.get_template("current_round_large_message_prompt") or "large_post"
    current_prompt = prompts.get_template("current_round_compress_prompt")
    steps: tuple[Strategy, ...] = (
        compress_tool_runs(min_consecutive_tool_messages, last_keep, prompt=tool_prompt, plan_tools=plan_tools),
        _limit_to_past(offload(keep_last=last_keep)),
        _limit_to_past(offload()),
        compact_view,
        offload(summarize=True, prompt=large_prompt),
        compress_tool_runs(scope="current", ratio=ratio, prompt=current_prompt, plan_tools=plan_tools),
    )
    settings = check_config(config).with_defaults(retain_recent=RETAIN_RECENT)
    settings = settings.copy_with(max_tokens=max_token, token_ratio=token_ratio)
    if names := _check_names("exempt_tools", exempt_tools):
        settings = settings.copy_with(exempt_tools=names)
    if (template := prompts.get_template("previous_round_summary_prompt")) is not None:
        settings = settings.with_prompt(template)
    optional: dict[str, Any] = {"summarizer": summarizer, "plan": plan}
    return {
        "config": settings,
        "trigger": over_messages(msg_threshold - 1) | over_tokens(max(1, int(max_token * token_ratio))),
        "strategies": tuple(map(_rename, STEPS, steps)),
        **{name: value for name, value in optional.items() if value is not None},
    }


def _check_names(name: str, value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    for one in names:
        require(name, one, str, "a name or several, such as ('load_skill',)")
    return names


def _make_prompts(given: PromptConfig | Mapping[str, Any] | None) -> PromptConfig:
    if isinstance(given, PromptConfig):
        return given
    require("custom_prompt", given, Mapping | None, "a PromptConfig(...) or a mapping")
    known = [field.name for field in fields(PromptConfig)]
    unknown = sorted(set(given or ()) - set(known))
    if unknown:
        raise ConfigError(*((f"custom_prompt.{name}", f"unknown; there are {', '.join(known)}") for name in unknown))
    return PromptConfig(**(given or {}))


def _limit_to_past(strategy: Strategy) -> Strategy:
    """Return *strategy* without its reductions in open rounds."""

    def reduce_past(view: View) -> Iterator[Overlay]:
        still_open = {view.rounds[place].id for place in range(view.closed, view.total)}
        for overlay in strategy(view):
            if not (isinstance(overlay, Reduction) and overlay.round_id in still_open):
                yield overlay

    return reduce_past


def _rename(name: str, strategy: Strategy) -> Strategy:
    """Return *strategy* under *name*, which events show."""

    def step(view: View) -> Iterable[Overlay]:
        return strategy(view)

    step.__name__ = step.__qualname__ = name
    return step
