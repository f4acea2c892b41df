"""What a role's next prompt spends its tokens on, before anything is left out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory import Memory
from memory.messages import ASSISTANT
from memory.rounds import USER, Post

from .compose import header_of, require_prompt_of
from .config import whole_number
from .messages.ledger import ledger_of
from .messages.offloading import is_result
from .messages.overlaid import is_summary
from .messages.units import MESSAGE_TOKENS, PROMPT_TOKENS, Unit, count_message, dump
from .tokens import TokenCounter, counter_for
from .view import View

__all__ = ["BudgetStatus", "budget_status"]


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
        """The part of the budget that is taken; over 1 where something has to be left out. None without a budget."""
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
    header += sum(MESSAGE_TOKENS + ledger.count(dump(tool)) for tool in tools)
    view = View(rounds, compaction, ledger, header, model)
    by_kind: Counter[str] = Counter()
    for place in view.places:
        for round_, unit in view.units(place):
            for post, tokens in zip(unit.posts, view.costs(round_, unit), strict=True):
                by_kind[_kind(post, unit, role)] += tokens
    conversation = by_kind.total()
    return BudgetStatus(
        PROMPT_TOKENS + header + view.compaction_tokens + conversation,
        budget,
        header,
        view.compaction_tokens,
        conversation,
        dict(by_kind.most_common()),
    )


def _kind(post: Post | None, unit: Unit, role: str) -> str:
    if post is None:
        return "user"
    if is_summary(post):
        return "summary"
    if post.kind != "message":
        return post.kind
    if is_result(post):
        return "tool_result"
    if unit.from_user or post.send_from == USER:
        return "user"
    if post.send_from == role:
        return "assistant"
    return "system" if post.send_from in ("system", "developer") else "agent"
