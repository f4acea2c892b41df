"""The Memory of a chat: one that ends with it, or a stored session that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memory import Memory
from memory.messages import ASSISTANT

from .stores import opened
from .terminal import CannotRun, counted, one_line


@contextmanager
def memory_at(url: str | None, session: str | None) -> Iterator[Memory]:
    """Give the Memory of *session* in the store at *url*, new where there is none of that name; without a store one
    that is not kept. Raises ``CannotRun`` for a session without a store."""
    if not url:
        if session is not None:
            raise CannotRun("--session is the name of one in a store: pass --store, or set COMPACTOR_STORE")
        yield Memory()
        return
    with opened(url, create=True) as store:
        yield Memory(session, store=store)


def begin(memory: Memory, system: str) -> None:
    """Put *system* in front of a new session. Raises ``CannotRun`` for one that has begun without it."""
    if not system or system in [post.message for post in memory.header]:
        return
    if memory.header or len(memory.conversation.rounds):
        raise CannotRun(
            f"session '{one_line(memory.session_id, 80)}' has begun without this system message; leave --system out, or"
            f" give another --session"
        )
    memory.append({"role": "system", "content": system})


def where(memory: Memory) -> str:
    """Return which session it is, and what there is of it."""
    said = f"session {one_line(memory.session_id)}"
    rounds, compaction = memory.get_role_rounds(ASSISTANT)
    if not len(rounds):
        return f"{said} is new"
    said = f"{said} goes on after {counted(len(rounds), 'round')}"
    if compaction is not None and compaction.end_index:
        said += f", 1-{compaction.end_index} of these as a summary"
    return said if answered(memory) else f"{said}; the last message has no answer, /retry asks for it"


def answered(memory: Memory) -> bool:
    """Return whether nothing that the user said waits for an answer."""
    rounds = memory.conversation.rounds
    if len(rounds) == 0 or rounds[-1].state == "failed":
        return True
    return any(post.send_from == ASSISTANT for post in rounds[-1].post_list)
