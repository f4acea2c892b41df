"""The agent's last prompt. A summarizer may go on from it, since the provider has most of it in its cache.

Its messages are not kept but made again from their snapshot. So a prompt costs no memory, and a host may change the
messages that it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from memory import Memory
from memory.overlays import CompactedMessage
from memory.rounds import Round

from ..summarizers.base import Continued
from ..tokens import TokenCounter, count_prompt
from ..view import View
from .fit import Head
from .groups import Message, group_messages

#: At most so many messages stand between the head and the tail: a line about what strategies have dropped, and of the
#: newest round in which the user speaks, where it is covered, his first words and his last.
MAX_BETWEEN = 3


@dataclass(frozen=True, slots=True)
class LastPrompt:
    """A prompt that shows all of the tail, nothing shortened or left out. Its repr shows no conversation."""

    #: What it was made from.
    view: View = field(repr=False)
    #: Its first messages: all that stand before the tail are among them.
    first: tuple[Message, ...] = field(repr=False)
    #: How many messages it has. Neither this nor the first ones reckon with the plan, which is not in the log.
    length: int
    #: How many messages stand before the plan, and that itself; None: none was shown.
    plan: tuple[int, Message] | None = field(repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    tool_choice: Any = None

    def beginning(self, rounds: Sequence[Round]) -> list[Message] | None:
        """Return its messages up to the end of *rounds*, the first of the tail; None if it shows any of them otherwise.

        It need not show all of the last round: later posts, such as the agent's answer, are added.
        """
        view = self.view
        messages = [dict(message) for message in self.first[: self.length - view.messages]]
        if view.end + len(rounds) > view.total:
            return None
        for place, round_ in enumerate(rounds, view.end):
            # As a round reads that is closed: every call has a result, or a line that says that there was none.
            asked = [message for group in group_messages(round_, view.role, last=False) for message in group.messages]
            same = place < view.total - 1 and view.round(place) is round_  # as most are: they need not be made twice
            shown = asked if same else [message for _, group in view.groups(place) for message in group.messages]
            whole = shown == asked or (round_ is rounds[-1] and shown == asked[: len(shown)])
            if not whole:
                return None
            messages += asked
        if self.plan is not None and self.plan[0] < len(messages):
            messages.insert(self.plan[0], dict(self.plan[1]))
        return messages


def continued(
    last: LastPrompt | None,
    previous: CompactedMessage | None,
    rounds: Sequence[Round],
    instruction: str,
    *,
    model: str = "",
    count: TokenCounter,
    limit: int,
) -> Continued | None:
    """Return the question that *instruction* asks as a continuation of the agent's *last* prompt, cut behind *rounds*.
    It was for *model* if ``compose`` was given none.

    None unless that prompt shows *previous*, and behind it *rounds* word for word, of the last one at least the
    beginning. None too if it would take over *limit* tokens, or if its tool choice makes the model call a tool.
    """
    if last is None or not rounds or last.tool_choice not in (None, "auto", "none"):
        return None
    if _said(last.view.compaction) != _said(previous):
        return None
    messages = last.beginning(rounds)
    if messages is None:
        return None
    messages.append({"role": "user", "content": instruction})
    if count_prompt(messages, count, last.tools) > limit:
        return None
    return Continued(messages=messages, tools=last.tools, tool_choice=last.tool_choice, model=last.view.model or model)


def _said(compaction: CompactedMessage | None) -> str:
    return compaction.to_prompt() if compaction is not None else ""


_prompts: WeakKeyDictionary[Memory, dict[str, LastPrompt]] = WeakKeyDictionary()


def remember(
    memory: Memory,
    view: View,
    head: Head,
    messages: Sequence[Message],
    *,
    whole: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: Any = None,
) -> None:
    """Take note that *head* and *view* became *messages*, its role's prompt, which goes with *tools* and *tool_choice*.

    Unless they show the *whole* tail, nothing can go on from them, nor from those before.
    """
    prompts = _prompts.setdefault(memory, {})
    if not whole:
        prompts.pop(view.role, None)
        return
    plan, found = head.plan, None
    if plan is not None:
        found = next(((n, dict(message)) for n, message in enumerate(messages) if message is plan), None)
    in_front = len(head.system) + (head.compaction is not None)
    first = messages[: in_front + MAX_BETWEEN + 1]
    prompts[view.role] = LastPrompt(
        replace(view),  # the same, without what it has worked out: the messages of the open round
        first=tuple([dict(message) for message in first if message is not plan]),
        length=len(messages) - (found is not None),
        plan=found,
        tools=tuple(tools),
        tool_choice=tool_choice,
    )


def last_prompt_of(memory: object, role: str) -> LastPrompt | None:
    """Return *role*'s newest prompt from *memory*. None if none is known, or if something was erased since: then the
    prompt is forgotten."""
    prompts = _prompts.get(memory, {}) if isinstance(memory, Memory) else {}
    found = prompts.get(role)
    if found is not None and isinstance(memory, Memory) and found.view.rounds.redactions != memory.snapshot.redactions:
        prompts.pop(role, None)
        return None
    return found
