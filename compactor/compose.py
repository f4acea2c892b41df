"""The prompt: log and overlays merged, at most the budget, and the same beginning for as long as it can be."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, cast

from memory import Memory
from memory.arguments import kind_of, require, require_callable, require_role
from memory.events import ProviderFailed
from memory.hooks import describe
from memory.messages import ASSISTANT, from_post
from memory.rounds import USER, Post
from memory.visibility import sees

from .config import whole_number
from .errors import BudgetExceeded
from .events import PlanFailed
from .plan import is_pending, plan_text
from .prompt.accounting import ledger_of
from .prompt.fit import GRID, Head, fit, fits_entirely, published_reductions
from .prompt.groups import Message, MessageGroup, is_summary
from .prompt.last_prompt import remember
from .prompt.shorten import Reduced, is_result
from .tokens import PROMPT_TOKENS, TokenCounter, count_message, count_tools, counter_for
from .view import View

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam


class OverBudget(UserWarning):
    """A prompt is longer than its budget, and was asked for all the same."""


@dataclass(frozen=True, slots=True)
class Report:
    """The reductions that make the prompt fit."""

    #: Tokens of the prompt without cuts: system messages, compaction and the whole tail.
    tokens_before: int
    tokens_after: int
    #: Log numbers of the rounds that are left out though no summary tells of them, some in part.
    omitted_rounds: tuple[int, ...] = ()
    #: Published ones first, then what was done for this prompt alone.
    reductions: tuple[Reduced, ...] = ()
    #: By how many tokens the prompt is over the budget: never, but with ``on_overflow="warn"``.
    tokens_over: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages in OpenAI's format, and their tokens."""

    #: Ready for ``client.chat.completions.create(messages=...)``.
    messages: list[ChatCompletionMessageParam]
    #: Of the messages and of the tools that were given.
    tokens: int
    report: Report


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
) -> Prompt:
    """Return *role*'s prompt: system messages, compaction, tail; at most *budget* tokens less *reserve* for the answer.

    Never waits for a model. If the tail does not fit, the role's compactor publishes a deferred compaction, if it has
    one. If that is not enough, the tail is shortened, only as far as needed: large payloads become a preview with a
    reference, old tool results a line; the oldest rounds are left out with a line that says which, then the oldest
    posts of the newest round; at last its largest texts are clipped. Cuts are made in steps of ``GRID``, so that the
    beginning rarely changes. A tool call keeps its results, pinned posts stay, and the newest user query is whole. If
    even that does not fit, raises ``BudgetExceeded``, or, with ``on_overflow="warn"``, returns the shortest prompt that
    there is, with the warning ``OverBudget``.

    *tools* are the schemas that go with the request: they count. They and *tool_choice* are remembered in this process
    for a summarizer that goes on from this prompt: give both as they are sent. *plan* is text or a ``Plan``, a callable
    that gives one, or True for that of the role's compactor; while anything in it is pending, it stands before the
    newest query. The provider's own counts, given to ``memory.record_usage``, correct the budget. *counter*
    takes the place of *model*'s tokenizer; keep one and give it each time, since what it counted is remembered for as
    long as it is the same.
    """
    require_prompt_of(memory, role, tools, model, counter)
    if type(budget) is not int or budget < 1:
        whole_number("budget", budget, 1)
    if type(reserve) is not int or reserve < 0:
        whole_number("reserve", reserve)
    if on_overflow not in ("raise", "warn"):
        raise ValueError(f"on_overflow is 'raise' or 'warn', not {on_overflow!r}")
    ledger = ledger_of(memory, role, counter if counter is not None else counter_for(model))
    recount = ledger.count_again
    front = header_of(memory, role, system)
    reminder = _plan_message(memory, role, plan) if plan is not None else None
    header_tokens = sum([count_message(message, recount) for message in front])
    tool_tokens = count_tools(tools, recount)
    ledger.header_tokens, ledger.tool_tokens = header_tokens, tool_tokens  # for the role's compactor alone
    for attempt in range(2):
        rounds, compaction = memory.get_role_rounds(role)
        summary = {"role": "system", "content": compaction.to_prompt()} if compaction is not None else None
        head = Head(front, summary, reminder)
        view = View(rounds, compaction, ledger, header_tokens + tool_tokens, model)
        correction = rounds.usage.correction
        limit = math.floor((budget - reserve) / correction) - tool_tokens
        whole = fits_entirely(view, head, limit, tool_tokens)
        fitted, over = (whole, 0) if whole is not None else fit(view, head, limit, max(1, int(budget * GRID)))
        shows_all = fitted.tokens_before <= limit
        # Once: what another thread may defer by then waits for the next prompt.
        if shows_all or attempt or not _publish_deferred(memory, role):
            break
    tokens, tokens_over = fitted.tokens + tool_tokens, 0
    if over:
        needed = math.ceil(tokens * correction) + reserve
        if on_overflow == "raise":
            raise BudgetExceeded(needed, budget)
        warnings.warn(f"the shortest prompt takes {needed} tokens, the budget is {budget}", OverBudget, stacklevel=2)
        tokens_over = needed - budget
    memory.note_prompt(role, tokens)
    remember(memory, view, head, fitted.messages, whole=shows_all, tools=tools, tool_choice=tool_choice)
    published = published_reductions(view, fitted) if view.reductions.by_round else ()
    report = Report(
        fitted.tokens_before + tool_tokens,
        tokens,
        fitted.omitted_rounds,
        (*published, *fitted.reductions),
        tokens_over,
    )
    return Prompt(cast("list[ChatCompletionMessageParam]", fitted.messages), tokens, report)


def require_prompt_of(memory: object, role: object, tools: object, model: object, counter: object) -> None:
    """Raise ``TypeError`` if one of these arguments, which all functions about prompts share, is of the wrong kind."""
    own = " (Memory.from_messages makes one of messages)" if isinstance(memory, list) else ""
    require("memory", memory, Memory, f"a Memory{own}")
    require_role(role)
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise TypeError(f"tools is a list of schemas, not {kind_of(tools)}; leave it out where there are none")
    for tool in tools:
        require("one of the tools", tool, Mapping, "a schema, as a mapping")
    require("model", model, (str, NoneType), "the name of a model")
    if counter is not None:
        require_callable("counter", counter, "a function that counts the tokens of a text")


def header_of(memory: Memory, role: str, system: str | Sequence[Mapping[str, Any]] | None) -> tuple[Message, ...]:
    """Return the system messages in front: *system*, then memory's header as *role* sees it."""
    if isinstance(system, str):
        system = [{"role": "system", "content": system}] if system else []
    elif isinstance(system, Mapping):
        raise TypeError("system is a text or a list of messages; put the one message into a list")
    elif system is not None:
        require("system", system, Sequence, "a text or a list of messages")
        for message in system:
            require("system", message, Mapping, "a text or a list of messages")
    return (*map(dict, system or ()), *[from_post(post, role) for post in memory.header if sees(role, post)])


def _publish_deferred(memory: Memory, role: str) -> bool:
    """Have the role's compactor publish a deferred compaction, and return whether another one is shown now."""
    publish_deferred = getattr(memory.provider(role), "publish_deferred", None)
    if publish_deferred is None:
        return False
    try:
        return publish_deferred() is True
    except Exception as error:  # noqa: BLE001  (whatever it fails at, the log included: the prompt is cut then)
        memory.emit(ProviderFailed(session=memory.session_id, role=role, error=describe(error)))
        return False


def _plan_message(memory: Memory, role: str, plan: object) -> Message | None:
    """Return the message that reminds of a plan; None if nothing in it is pending, or if it cannot be read."""
    if plan is True:
        plan = getattr(memory.provider(role), "current_plan", None)
    try:
        if callable(plan):
            plan = plan()
        text = plan_text(plan) if plan is not False and is_pending(plan) else None
    except Exception as error:  # noqa: BLE001  (the host's; a plan that is missing must not stop the chat)
        memory.emit(PlanFailed(role=role, error=type(error).__name__))
        return None
    return {"role": "user", "content": f"{PLAN_FRAME}\n{text}"} if text else None


#: Heads the plan in a prompt: it is not the user who speaks there.
PLAN_FRAME = "[The plan as it stands now. Background, and no message from the user.]"


# --- what a role's next prompt spends its tokens on, before anything is left out of it ----------------------------


@dataclass(frozen=True, slots=True)
class BudgetStatus:
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
) -> BudgetStatus:
    """Return what *role*'s next prompt takes, by segment and kind, in tokens; asks no model and publishes nothing.

    *system* and *tools* are those of ``compose``. Takes time in proportion to the tail.
    """
    require_prompt_of(memory, role, tools, model, counter)
    if budget is not None:
        whole_number("budget", budget, 1)
    ledger = ledger_of(memory, role, counter if counter is not None else counter_for(model))
    rounds, compaction = memory.get_role_rounds(role)
    header = sum(count_message(message, ledger.count) for message in header_of(memory, role, system))
    header += count_tools(tools, ledger.count)
    view = View(rounds, compaction, ledger, header, model)
    by_kind: Counter[str] = Counter()
    for place in view.places:
        for round_, group in view.groups(place):
            for post, tokens in zip(group.posts, view.costs(round_, group), strict=True):
                by_kind[_kind(post, group, role)] += tokens
    conversation = by_kind.total()
    return BudgetStatus(
        PROMPT_TOKENS + header + view.compaction_tokens + conversation,
        budget,
        header,
        view.compaction_tokens,
        conversation,
        dict(by_kind.most_common()),
    )


def _kind(post: Post | None, group: MessageGroup, role: str) -> str:
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
    return "system" if post.send_from in ("system", "developer") else "agent"
