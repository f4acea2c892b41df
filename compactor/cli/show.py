"""What a stored session is now: its rounds, and what each role's next prompt would be made of. No texts unasked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from memory import USER, Memory
from memory.messages import FUNCTION, TOOL, from_post
from memory.overlays import CompactedMessage
from memory.references import range_reference
from memory.visibility import sees

from ..events import visible
from ..prompt.accounting import ledger_of
from ..prompt.groups import count_message
from ..tokens import counter_for
from ..view import View
from .sessions import SessionFacts, when
from .terminal import CannotRun, counted, one_line

#: So many of the newest rounds are looked through for who speaks in them.
_LOOKED_THROUGH = 200
#: A tail of more rounds is not counted: that would mean to read it all.
MAX_COUNTED = 10_000
#: Those who speak in a session without being an agent.
_NO_AGENTS = frozenset({USER, TOOL, FUNCTION, "system", "developer"})


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """What one role's prompt would be made of. Rounds are counted as the role sees them: without the failed ones."""

    role: str
    #: Counts publications and reverts.
    generation: int
    #: That of the summary itself, by which it can be compared; it is less where a revert has brought it back.
    summary_generation: int | None
    covered_rounds: int
    #: The last covered round's number in the log; None where there is no compaction.
    last_covered_round: int | None
    summary_tokens: int
    model: str | None
    published_at: str | None
    tail_rounds: int
    #: None where the tail is too long to be counted.
    tail_tokens: int | None
    #: Of the whole prompt before anything is cut: system messages, compaction and tail.
    prompt_tokens: int | None
    reductions: int
    #: Answers of a summarizer that were paid for and wait to be published.
    prepared: int
    #: The provider's count of the newest prompt; None where it is not known, or overlays have changed since.
    last_usage: int | None


def roles_of(memory: Memory) -> list[str]:
    """Return the roles of which something was published, and those that speak or are spoken to in the newest rounds."""
    now, rounds = memory.snapshot, memory.conversation.rounds
    found = {*now.journals, *now.reductions, *now.usages, *now.prepared}
    for round_ in rounds[-_LOOKED_THROUGH:]:
        for post in round_.post_list:
            found |= {post.send_from, post.send_to} - _NO_AGENTS
    return sorted(found)


def facts_of_role(memory: Memory, role: str, model: str = "") -> tuple[RoleFacts, CompactedMessage | None]:
    """Return what *role*'s prompt would be made of, counted as *model* counts, and its compaction."""
    now = memory.snapshot
    rounds, compaction = memory.get_role_rounds(role)
    count = counter_for(model)
    header = sum(count_message(from_post(post, role), count) for post in memory.header if sees(role, post))
    view = View(rounds, compaction, ledger_of(memory, role, count), header, model)
    counted = view.tail_length <= MAX_COUNTED
    made_at = compaction.created_at if compaction is not None else None
    facts = RoleFacts(
        role=role,
        generation=now.journal(role).generation,
        summary_generation=compaction.generation if compaction is not None else None,
        covered_rounds=view.end,
        last_covered_round=compaction.last_round if compaction is not None else None,
        summary_tokens=view.compaction_tokens,
        model=compaction.model if compaction is not None else None,
        published_at=made_at.isoformat() if made_at is not None else None,
        tail_rounds=view.tail_length,
        tail_tokens=view.tokens_behind(view.end) if counted else None,
        prompt_tokens=view.tokens if counted else None,
        reductions=now.count_reductions(role),
        prepared=len(now.prepared.get(role, ())),
        last_usage=memory.usage(role).input_tokens,
    )
    return facts, compaction


def document(
    memory: Memory,
    facts: SessionFacts,
    *,
    role: str | None = None,
    model: str = "",
    summary: bool = False,
    rounds: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return all that is shown as one JSON document; texts only where *summary* or *rounds* ask for them."""
    found = [facts_of_role(memory, one, model) for one in (roles_of(memory) if role is None else [role])]
    every = memory.conversation.rounds
    shown = facts.figures() | {
        "open_rounds": [one.number for one in memory.open_rounds],
        "failed_rounds": list(memory.snapshot.failed),
        "system_messages": len(memory.header),
        "pins": list(memory.pins()),
        "roles": [
            asdict(one) | ({"summary": made.summary if made is not None else None} if summary else {})
            for one, made in found
        ],
    }
    if rounds is not None:
        first, last = rounds
        if last > len(every):
            raise CannotRun(f"there is no round {max(first, len(every) + 1)}; this session has {len(every)}")
        shown["texts"] = [
            {"round": number, "state": every[number - 1].state, "text": memory.reload(range_reference(number, number))}
            for number in range(first, last + 1)
        ]
    return shown


def span(text: str) -> tuple[int, int]:
    """Return the first and the last of the rounds that *text* names: ``12`` or ``3-9``, or as references are written.

    Raises ``CannotRun`` for anything else.
    """
    found = re.fullmatch(r"r?(\d{1,12})(?:-r?(\d{1,12}))?", text.strip(), re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise CannotRun(f"--rounds takes a round or the first and the last of several, as in 12 or 3-9, not '{text}'")
    return first, last


# -- for reading ------------------------------------------------------------------------------------------------------


def report(shown: Mapping[str, Any], facts: SessionFacts, console: Console) -> None:
    """Print the *document* for reading."""

    def say(name: str, value: str) -> None:
        console.print(f"{name:<17}{value}", soft_wrap=True)

    say("session", one_line(facts.session))
    say("rounds", f"{facts.rounds:,} ({len(shown['open_rounds'])} open, {len(shown['failed_rounds'])} failed)")
    say("entries", f"{facts.entries:,}")
    say("last activity", f"{when(facts.last_activity)} UTC")
    say("system messages", f"{shown['system_messages']}")
    say("pinned posts", " ".join(shown["pins"]) or "none")
    for one in shown["roles"]:
        console.print()
        say("role", one_line(one["role"]) or "(sees everything)")
        for name, value in _lines(one):
            say(f"  {name}", value)
        if one.get("summary") is not None:
            console.print(visible(one["summary"]), soft_wrap=True)
    for one in shown.get("texts", ()):
        console.print()
        console.print(f"{visible(one['text'])}{' (failed)' if one['state'] == 'failed' else ''}", soft_wrap=True)


def _lines(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    end, reductions = one["last_covered_round"], one["reductions"]
    made = f"generation {one['summary_generation']}" + (f", by {one_line(one['model'], 60)}" if one["model"] else "")
    yield "summarised", f"rounds 1-{end}, in {one['summary_tokens']:,} tokens ({made})" if end else "nothing"
    shorter = f", {counted(reductions, 'post')} read shorter" if reductions else ""
    yield "behind that", f"{counted(one['tail_rounds'], 'round')}, {_tokens(one['tail_tokens'])}{shorter}"
    yield "whole prompt", f"{_tokens(one['prompt_tokens'])}, before anything is cut"
    if one["last_usage"] is not None:
        yield "last usage", f"{one['last_usage']:,} tokens, by the provider's count"
    if one["prepared"]:
        yield "prepared", f"{counted(one['prepared'], 'answer')} paid for and not published"


def _tokens(value: int | None) -> str:
    return "tokens not counted" if value is None else counted(value, "token")
