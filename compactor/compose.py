"""The prompt: log and overlays merged, at most the budget, and the same beginning for as long as it can be."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, TypeVar, cast

from memory import Memory
from memory.arguments import check_whole_number, require, require_role
from memory.events import ProviderFailed
from memory.hooks import describe
from memory.messages import ASSISTANT, SYSTEM, from_post, keep_known
from memory.rounds import USER, Post, build_models, copy_with
from memory.values import ValueObject
from memory.visibility import sees

from .errors import BudgetExceeded
from .prompt.fit import Report, fit, list_published
from .prompt.groups import Message, MessageGroup, copy_messages, is_summary
from .prompt.layout import Layout, PromptPart, Source, SummaryAs, count_added, place_in_front
from .prompt.shorten import is_result
from .prompt.token_cache import TIMED_ROUNDS, HostParts, TokenCache, get_token_cache
from .tokens import PROMPT_TOKENS, TokenCounter, count_message, count_prompt, count_tools, get_counter
from .view import LastPrompt, View

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

P = ParamSpec("P")
R = TypeVar("R")
#: Cuts fall on multiples of this share of the budget, counted in tail tokens from the compaction's end.
GRID = 0.3
#: Heads the plan in a prompt: it is not the user who speaks there.
PLAN_FRAME = "[The plan as it stands now. Background, and no message from the user.]"


class OverBudget(UserWarning):
    """A prompt is longer than its budget, and was asked for all the same."""


@dataclass(frozen=True, eq=False, repr=False)
class Prompt(ValueObject):
    """Chat messages in OpenAI's format, and their tokens."""

    #: Ready for ``client.chat.completions.create(messages=...)``. You may change them: no later prompt shows it. The
    #: prompts of one long open round share its older messages: to keep earlier prompts as they were, change a copy.
    messages: list[ChatCompletionMessageParam]
    #: Of the messages and of the tools that were given.
    tokens: int
    report: Report
    #: No field: what copies or stores the fields of a prompt has no use for it.
    _layout: ClassVar[Layout | None] = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """For each message as it was composed, where it comes from; empty if ``compose`` did not make the prompt.

        A host that keeps messages of its own gives those back where ``kind`` is ``original``. Found out when it is
        asked for, and remembered: composing takes no longer.
        """
        return self._layout.sources if self._layout is not None else ()


def compose(
    memory: Memory,
    role: str = ASSISTANT,
    *,
    budget: int,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    model: str = "",
    counter: TokenCounter | None = None,
    reserve: int = 0,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: Any = None,
    plan: object = None,
    on_overflow: Literal["raise", "warn"] = "raise",
    summary_as: SummaryAs = "system",
) -> Prompt:
    """Return *role*'s prompt: system messages, compaction, tail; at most *budget* tokens less *reserve* for the answer.

    Never waits for a model. If the tail does not fit, the role's compactor publishes its deferred compaction. If that
    is not enough, the tail is shortened, only as far as needed: large payloads become a preview with a reference, old
    tool results a line; the oldest rounds are left out with a line that says which, then the oldest posts of the newest
    round; at last its largest texts are clipped. Cuts are made in steps of ``GRID``, so that the beginning rarely
    changes. A tool call keeps its results, pinned posts stay, and the newest user query is whole. If even that does not
    fit, raises ``BudgetExceeded``, or, with ``on_overflow="warn"``, returns the shortest prompt and warns with
    ``OverBudget``.

    *tools* are the schemas that go with the request: they count. A summarizer may go on from this prompt, with them and
    *tool_choice*: give both as they are sent. *plan* is text or a ``Plan``, a callable that gives one, or True for that
    of the role's compactor; while anything in it is pending, it stands before the newest query. The provider's own
    counts, given to ``memory.record_usage``, correct the budget. *counter* takes the place of *model*'s tokenizer; give
    the same one each time, since counts are remembered with it.

    *summary_as* says where the summary stands, and the line about what is left out: as ``system`` messages behind
    *system*, as ``user`` messages there, or at the end of the ``header``, the last system message, for providers that
    take only one.
    """
    began = time.perf_counter()
    token_cache, host, front = _read_arguments(memory, role, system, tools, model, counter, summary_as)
    if type(budget) is not int or type(reserve) is not int or budget < 1 or reserve < 0:
        check_whole_number("budget", budget, 1)
        check_whole_number("reserve", reserve)
    if on_overflow not in ("raise", "warn"):
        raise ValueError(f"on_overflow is 'raise' or 'warn', not {on_overflow!r}")
    reminder = _make_plan_message(memory, role, plan) if plan is not None else None
    header_tokens = sum([count_message(message, token_cache.count_again) for message in front])
    tool_tokens = count_tools(tools, token_cache.count_again) if tools else 0
    provider, limits = memory.provider(role), token_cache.prompt_limits
    before = token_cache.header_tokens, token_cache.tool_tokens, max(limits.budgets, default=0), limits.model
    limits.budgets, limits.model, limits.host = (
        (*limits.budgets[-1:], budget - reserve),
        model,
        HostParts(host, reminder, summary_as),
    )
    token_cache.header_tokens, token_cache.tool_tokens = header_tokens, tool_tokens  # for the role's compactor alone
    if (refresh := getattr(provider, "refresh_if_behind", None)) is not None:
        _call_provider(memory, role, refresh)
    for attempt in range(2):
        rounds, compaction = memory.get_role_rounds(role)
        view = View(rounds, compaction, token_cache, header_tokens + tool_tokens, model)
        limit = math.floor((budget - reserve) / rounds.usage.correction)
        whole = show_all(view, front, limit, summary_as) if reminder is None else None
        messages, report, layout = whole or fit(view, front, reminder, limit, max(1, int(budget * GRID)), summary_as)
        publish = getattr(provider, "publish_deferred", None)
        # Once: what another thread may defer by then waits for the next prompt.
        if report.tokens_before <= limit or attempt or _call_provider(memory, role, publish) is not True:
            break
    if report.tokens_over:
        needed = math.ceil(report.tokens_after * rounds.usage.correction) + reserve
        _refuse_or_warn(needed, budget, on_overflow)
        report = copy_with(report, tokens_over=needed - budget)
    memory.note_prompt(role, report.tokens_after)
    if report.tokens_before <= limit:
        in_log, shown_plan = (messages, None) if reminder is None else _take_out(reminder, messages)
        ahead = len(front) + (compaction is not None)
        if whole is None or summary_as == "header":  # covered rounds may be there, or summary and header are one
            ahead = len(in_log) - view.messages
        limits.last_prompt = LastPrompt(
            rounds,
            compaction,
            model,
            front=tuple([dict(message) for message in in_log[:ahead]]),
            plan=shown_plan,
            tools=tuple(tools),
            tool_choice=tool_choice,
        )
    else:  # nothing can go on from it, nor from those before
        limits.last_prompt = None
    if view.reductions.by_round:
        published = list_published(view, messages, report)
        report = copy_with(report, reductions=(*published, *report.reductions))
    prompt = Prompt(cast("list[ChatCompletionMessageParam]", messages), report.tokens_after, report)
    prompt.__dict__["_layout"] = layout
    if (
        limits.is_watched
        and provider is not None
        and before != (header_tokens, tool_tokens, max(limits.budgets), model)
    ):
        _call_provider(memory, role, provider.notify_rounds_changed, rounds.total)
    newest, seconds = memory.snapshot.total, limits.seconds
    seconds[newest] = max(time.perf_counter() - began, seconds.get(newest, 0.0))
    for old in [*seconds][:TIMED_ROUNDS] if len(seconds) > 2 * TIMED_ROUNDS else ():
        seconds.pop(old, None)
    return prompt


def _run_off_loop(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a coroutine function that calls *function*, of a Memory, on that Memory's turn."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        memory: Any = args[0] if args else kwargs.get("memory")
        require("memory", memory, Memory, "a Memory")
        result: R = await memory.to_thread(function, *args, **kwargs)
        return result

    update_wrapper(run, function)
    run.__name__ = run.__qualname__ = f"a{function.__name__}"
    return run


#: Returns what ``compose`` returns, for the same arguments, without holding up the event loop: it may read a database.
acompose = _run_off_loop(compose)


def warm_up(model: str = "") -> None:
    """Load what the first conversations need, in about 0.5 s of CPU: the tokenizer of *model*, what is known of models,
    and the default prompt for summaries.

    For servers that start before their first user comes. Several threads may call it; all but one wait.
    """
    from prompts import load

    from . import cost, cycle, runner, strategies  # noqa: F401  (what the first cycle loads)
    from .models import find_model

    find_model(model)
    load()
    memory = Memory()
    memory.append({"role": "user", "content": "Hello"})
    compose(memory, budget=1_000, model=model)
    build_models()


def show_all(
    view: View, system: Sequence[Message], limit: int, summary_as: SummaryAs = "system"
) -> tuple[list[Message], Report, Layout] | None:
    """Return the prompt of *system*, compaction and the whole tail if that is at most *limit* tokens, and what it is
    made of.

    The fast path. None if the prompt is longer, or if ``fit`` has more to do: with a line about dropped posts, with a
    covered round in front because the user has not spoken since, or with a round that must be made anew.
    """
    start, closed = view.end, view.closed
    if start > closed or (view.reductions.version and view.first_dropped):
        return None
    sums, open_rounds = view.prefix_sums, view.open_rounds  # none of which is covered
    first, last = sums.totals[start - sums.start], sums.totals[closed - sums.start]
    ahead, added = view.compaction_tokens, [view.summary] if view.summary is not None else []
    if added and summary_as == "header":
        ahead = count_added(system, added, summary_as, view.token_cache.count_again)
    tokens = PROMPT_TOKENS + view.header_tokens + ahead + last.tokens - first.tokens
    has_query = last.last_query is not None and last.last_query >= start
    for counted in open_rounds:
        tokens += counted.totals.tokens
        has_query = has_query or counted.totals.last_query is not None
    if not has_query or tokens > limit:
        return None
    messages = [*system, *added] if summary_as == "system" else place_in_front(system, added, summary_as)
    shared: list[Message] = []
    depths = bytearray()
    runs: list[Sequence[PromptPart]] = []
    # Asked once: another thread may drop the parts meanwhile.
    all_parts = [counted.parts for counted in sums.round_tokens[start - sums.start : closed - sums.start]]
    if (
        len(open_rounds) == 1 and not open_rounds[0].blocks.blocks
    ):  # a short round, as mostly, is copied with the closed ones
        all_parts.append(open_rounds[0].rest)
        open_rounds = ()
    for parts in all_parts:
        if parts is None:
            return None
        runs.append(parts)
        for part in parts:
            shared += part.messages
            depths += part.depths
    messages += copy_messages(shared, depths)
    for counted in open_rounds:
        messages += counted.hand_out()
        runs += counted.blocks.parts, counted.rest
    return messages, Report(tokens, tokens), Layout(system, summary_as, view.compaction, runs)


def _read_arguments(
    memory: Memory,
    role: str,
    system: str | Sequence[Mapping[str, Any]] | None,
    tools: Sequence[Mapping[str, Any]],
    model: str,
    counter: TokenCounter | None,
    summary_as: SummaryAs,
) -> tuple[TokenCache, tuple[Message, ...], tuple[Message, ...]]:
    """Return the role's token cache; *system* as messages; these and memory's header as *role* sees it.

    Raises ``TypeError`` if an argument is of the wrong kind, and ``ValueError`` for an unknown *summary_as*.
    """
    if not isinstance(memory, Memory):
        own = " (Memory.from_messages makes one of messages)" if isinstance(memory, list) else ""
        require("memory", memory, Memory, f"a Memory{own}")
    require_role(role)
    wanted = "a list of schemas, each a mapping"
    if type(tools) is not tuple and not isinstance(tools, Sequence):
        require("tools", tools, Sequence, wanted)
    for tool in tools:
        require("tools", tool, Mapping, wanted)
    if type(model) is not str:
        require("model", model, str | None, "the name of a model")
    if counter is not None:
        require("counter", counter, Callable, "a function that counts the tokens of a text")
    if summary_as not in ("system", "user", "header"):
        raise ValueError(f"summary_as is 'system', 'user' or 'header', not {summary_as!r}")
    if isinstance(system, str):
        system = [{"role": "system", "content": system}] if system else []
    elif system is not None:
        wanted = "a text or a list of messages"
        require("system", system, Sequence, f"{wanted}, a single one put into a list")
        for message in system:
            require("system", message, Mapping, wanted)
    host = tuple([keep_known(message) for message in system]) if system else ()
    front = host
    if memory.snapshot.header:
        front = (*host, *[from_post(post, role, only_known=True) for post in memory.header if sees(role, post)])
    return get_token_cache(memory, role, counter if counter is not None else get_counter(model)), host, front


def _take_out(plan: Message, messages: list[Message]) -> tuple[list[Message], tuple[int, Message]]:
    """Return *messages* without that of the *plan*, and the place where it stands with a copy of it."""
    at = next(at for at, one in enumerate(messages) if one is plan)
    return [*messages[:at], *messages[at + 1 :]], (at, dict(plan))


def _refuse_or_warn(needed: int, budget: int, on_overflow: Literal["raise", "warn"]) -> None:
    if on_overflow == "raise":
        raise BudgetExceeded(needed, budget)
    reason = f"the shortest prompt takes {needed} tokens, the budget is {budget}"
    warnings.warn(reason, OverBudget, stacklevel=3)  # of the caller of compose()


def _call_provider(memory: Memory, role: str, method: Callable[..., object] | None, *args: object) -> object:
    """Return what *method* of the role's compactor returns; None if it has none, or if it fails, which is told."""
    try:
        return method(*args) if method is not None else None
    except Exception as error:  # noqa: BLE001  (whatever it fails at, the log included: the prompt is made all the same)
        memory.emit(ProviderFailed(session=memory.session_id, role=role, error=describe(error)))
        return None


def _make_plan_message(memory: Memory, role: str, plan: object) -> Message | None:
    """Return the message that reminds of a plan; None if nothing in it is pending, or if it cannot be read."""
    from .plan import is_pending, render_plan

    if plan is True:
        plan = getattr(memory.provider(role), "current_plan", None)
    try:
        if callable(plan):
            plan = plan()
        text = render_plan(plan) if plan is not False and is_pending(plan) else None
    except Exception as error:  # noqa: BLE001  (the host's; a plan that is missing must not stop the chat)
        from .events import PlanFailed

        memory.emit(PlanFailed(session=memory.session_id, role=role, error=type(error).__name__))
        return None
    return {"role": "user", "content": f"{PLAN_FRAME}\n{text}"} if text else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BudgetStatus(ValueObject):
    """Tokens of a prompt by segment and by kind of message, compactions and reductions applied."""

    #: All of it: what ``Prompt.report.tokens_before`` would be.
    total: int
    #: The limit that was given; None: none.
    budget: int | None
    #: System messages before the first round, and the schemas of tools.
    header: int
    #: The published compaction.
    compaction: int
    #: The rounds behind it.
    conversation: int
    #: Those of the conversation by kind: ``user``, ``assistant``, ``tool_result``, ``system``, ``agent`` (another one),
    #: ``summary`` (of some posts), or the host's own ``Post.kind``.
    by_kind: Mapping[str, int]

    @property
    def share(self) -> float | None:
        """The part of the budget that is taken; over 1 if something has to be left out. None without a budget."""
        return None if self.budget is None else self.total / self.budget


def budget_status(
    memory: Memory,
    role: str = ASSISTANT,
    *,
    budget: int | None = None,
    system: str | Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    model: str = "",
    counter: TokenCounter | None = None,
    summary_as: SummaryAs = "system",
) -> BudgetStatus:
    """Return what *role*'s next prompt takes, by segment and kind, in tokens; asks no model and publishes nothing.

    *system*, *tools* and *summary_as* are those of ``compose``. Takes time in proportion to the tail.
    """
    token_cache, _, front = _read_arguments(memory, role, system, tools, model, counter, summary_as)
    if budget is not None:
        check_whole_number("budget", budget, 1)
    rounds, compaction = memory.get_role_rounds(role)
    header = count_prompt(front, token_cache.count, tools) - PROMPT_TOKENS
    view = View(rounds, compaction, token_cache, header, model)
    by_kind: Counter[str] = Counter()
    for place in view.places:
        for round_, group in view.list_groups(place):
            for post, tokens in zip(group.posts, view.list_costs(round_, group), strict=True):
                by_kind[_name_kind(post, group, role)] += tokens
    conversation = by_kind.total()
    summary = count_added(front, [view.summary], summary_as, token_cache.count) if view.summary is not None else 0
    return BudgetStatus(
        PROMPT_TOKENS + header + summary + conversation,
        budget,
        header,
        summary,
        conversation,
        dict(by_kind.most_common()),
    )


def _name_kind(post: Post | None, group: MessageGroup, role: str) -> str:
    if post is None:
        return "user"
    if is_summary(post):
        return "summary"
    if post.kind != "message":
        return post.kind
    if is_result(post):
        return "tool_result"
    if group.from_user or post.send_from == USER:
        return "user"
    if post.send_from == role:
        return "assistant"
    return "system" if post.send_from in SYSTEM else "agent"
