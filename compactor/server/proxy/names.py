"""Finds a request's session: the one it names, else the one whose history it continues."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from memory.fingerprints import SIZE, Fingerprinter

from ...integrations.base import join_names

Message = Mapping[str, Any]
#: Conversations that are found without asking the store; older ones are found in the store again.
MAX_KNOWN = 10_000
#: Maximum sessions in the store that are compared with one conversation, of those that begin like it.
MAX_CANDIDATES = 20
MAX_NAME = 128
#: Headers that name a session, by precedence. A thread or an agent within a session has its own history.
SESSION_HEADERS = (
    *("x-session-id", "x-conversation-id", "x-thread-id"),
    *("x-litellm-session-id", "helicone-session-id", "langfuse-session-id", "x-langfuse-session-id"),
    *("x-claude-code-session-id", "x-opencode-session", "x-session-affinity"),
    *("thread-id", "thread_id", "conversation_id", "conversation-id", "session-id", "session_id"),  # Codex
)
AGENT_HEADER = "x-claude-code-agent-id"
#: Fields of a body, or of its ``metadata``, that name a session.
SESSION_FIELDS = ("session_id", "litellm_session_id", "conversation_id", "thread_id", "chat_id")
_CLAUDE_USER = re.compile(r"_session_([0-9a-fA-F-]{8,})$")
_PRINTABLE = re.compile("[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def read_name(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Return the session name in a request; empty if it has none. A long name is replaced by its hash.

    The name is safe in a path: ``/``, ``%`` and a leading dot are percent-encoded.
    """
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    given: list[object] = [_decode(headers.get(name, "")) for name in SESSION_HEADERS]
    given += [metadata.get(name) for name in SESSION_FIELDS] + [body.get(name) for name in SESSION_FIELDS]
    given.append(_read_claude_session(metadata.get("user_id")))
    name = next((one for one in given if isinstance(one, str) and _PRINTABLE.fullmatch(one)), "")
    if name and (agent := _decode(headers.get(AGENT_HEADER, ""))) and _PRINTABLE.fullmatch(agent):
        name = f"{name}.{agent}"
    name = join_names(name)  # make it safe in a path
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    return name if len(name) <= MAX_NAME else blake2b(name.encode(), digest_size=16).hexdigest()


def _decode(value: str) -> str:
    """Return a header's *value*, which was read as latin-1, as UTF-8 if it is."""
    with suppress(UnicodeDecodeError):
        return value.encode("latin-1").decode()
    return value


def read_session_headers(headers: Mapping[str, str]) -> list[str]:
    """Return all headers that name a session or an agent; empty ones are missing."""
    return [headers.get(name, "") for name in (*SESSION_HEADERS, AGENT_HEADER)]


def _read_claude_session(user_id: object) -> str | None:
    """Return the session in Claude Code's ``user_id``, which is JSON or, in older versions, ends with it."""
    if not isinstance(user_id, str):
        return None
    if found := _CLAUDE_USER.search(user_id):
        return found[1]
    try:
        metadata = json.loads(user_id)
    except ValueError:
        return None
    return metadata.get("session_id") if isinstance(metadata, dict) else None


class Callers:
    """Identifies callers by a slow hash of their keys. No key is stored, and none can be recovered from a store.

    The hash needs no secret, so other processes and later ones find the same sessions.
    """

    def __init__(self) -> None:
        secret = os.urandom(32)
        self._tags: OrderedDict[bytes, bytes] = OrderedDict()  # by keyed hash; its secret ends with the process
        #: A fast hash that nobody can compute in another process.
        self.hash: Callable[[str], bytes] = lambda text: blake2b(text.encode(), key=secret).digest()

    def tag(self, key: str, user: str) -> bytes:
        """Return the tag of a caller with that *key*, acting for its end *user*. Takes 50 ms the first time."""
        given = json.dumps([key, user])
        if (tag := self._tags.get(known := self.hash(given))) is None:
            tag = self._tags[known] = hashlib.scrypt(
                given.encode(), salt=b"context-compactor", n=2**14, r=8, p=1, dklen=16
            )
            if len(self._tags) > MAX_KNOWN:
                self._tags.popitem(last=False)
        return tag


@dataclass(frozen=True, slots=True)
class History:
    """A conversation as fingerprints, 16 bytes per message."""

    prints: bytes
    #: Indexes of the model's messages.
    answers: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.prints) // SIZE

    def count_shared(self, other: bytes) -> int:
        """Return how many leading messages it shares with *other*."""
        low, high = 0, min(len(self.prints), len(other)) // SIZE
        while low < high:
            half = (low + high + 1) // 2
            is_same = self.prints[low * SIZE : half * SIZE] == other[low * SIZE : half * SIZE]
            low, high = (half, high) if is_same else (low, half - 1)
        return low

    def follows(self, known: History) -> int:
        """Return how many messages of *known* this history continues; 0 if it is another conversation.

        Either all of them, or all but the host's last messages: many clients append a reminder to each request and omit
        it from the next, where the model's answer follows instead.
        """
        shared = self.count_shared(known.prints)
        if shared == known.size:
            return shared
        return shared if shared in self.answers and (not known.answers or shared > known.answers[-1]) else 0

    def shares_any(self, prints: bytes) -> bool:
        return not _split(prints).isdisjoint(_split(self.prints))


def _split(prints: bytes) -> set[bytes]:
    return {prints[at : at + SIZE] for at in range(0, len(prints), SIZE)}


def read_history(messages: Iterable[Message]) -> History:
    """Return the fingerprints of chat *messages*."""
    read, prints, answers = Fingerprinter(), list[bytes](), list[int]()
    for message in messages:
        if message["role"] == "assistant":
            answers.append(len(prints))
        prints.append(read(message))
    return History(b"".join(prints), answers)


class SessionNames:
    """Finds the sessions of conversations.

    *read_prints* opens a session and returns the fingerprints of its log; *list_candidates* returns the ids of some
    sessions in the store that begin with a text.
    """

    def __init__(
        self, read_prints: Callable[[str, str], bytes], list_candidates: Callable[[str, str, int], Iterable[str]]
    ) -> None:
        self._read_prints, self._list_candidates = read_prints, list_candidates
        self._lock = threading.Lock()  # guards all below; never held during a callback
        self._known: OrderedDict[tuple[str, str], History] = OrderedDict()  # by tenant and session
        # Sessions by the start of their ids.
        self._by_prefix: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def find(self, tenant: str, tag: bytes, name: str, history: History, *, is_long: bool = False) -> str:
        """Return the session of a *history*; empty if it needs none yet: before the model's first answer, only one that
        *is_long* does. May raise ``StoreError``."""
        if name:
            return self._find_named(tenant, f"{name}~{tag.hex()[:12]}", history)
        ends = [history.answers[0] + 1] if history.answers else []
        if is_long:  # the answer may have come since
            ends.append(1)
        # The id's prefix hashes the messages up to the model's first answer, or the first message.
        hashed = (blake2b(history.prints[: end * SIZE], key=tag, digest_size=10).hexdigest() for end in ends)
        prefixes = list(dict.fromkeys(f"auto-{one}-" for one in hashed))
        for prefix in prefixes:
            if (found := self._take_known(tenant, prefix, history)) is not None:
                return found
        for prefix in prefixes:
            for session in self._list_candidates(tenant, prefix, MAX_CANDIDATES):
                if not self._is_known(tenant, session):
                    prints = self._read_prints(tenant, session)
                    if prints and history.count_shared(prints) * SIZE == len(prints):
                        with self._lock:
                            self._remember(tenant, session, prefix, History(prints, ()))
            if (found := self._take_known(tenant, prefix, history)) is not None:
                return found
        if not prefixes:
            return ""
        # Another thread may have made one meanwhile.
        return self._take_known(tenant, prefixes[0], history, new=prefixes[0] + os.urandom(4).hex()) or ""

    def _find_named(self, tenant: str, session: str, history: History) -> str:
        """Return *session*, or a sibling session if the history shares nothing with it: agents also ask for titles, or
        run subagents, under their session's name."""
        with self._lock:
            known = self._known.get((tenant, session))
        prints = known.prints if known is not None else self._read_prints(tenant, session)
        if prints and history.prints and not history.shares_any(prints):
            return f"{session}.{history.prints[:5].hex()}"
        with self._lock:
            self._remember(tenant, session, "", history)
        return session

    def _is_known(self, tenant: str, session: str) -> bool:
        with self._lock:
            return (tenant, session) in self._known

    def _take_known(self, tenant: str, prefix: str, history: History, new: str | None = None) -> str | None:
        """Return the session with the longest history that *history* continues, else *new*. Remember *history* as its
        history."""
        with self._lock:
            sessions = [(self._known[tenant, one], one) for one in self._by_prefix.get((tenant, prefix), ())]
            follows = [
                (count, known.size == count, one) for known, one in sessions if (count := history.follows(known))
            ]
            session = max(follows)[-1] if follows else new
            if session is not None:
                self._remember(tenant, session, prefix, history)
            return session

    def _remember(self, tenant: str, session: str, prefix: str, history: History) -> None:
        if prefix and (tenant, session) not in self._known:
            self._by_prefix[tenant, prefix].append(session)
        self._known[tenant, session] = history
        self._known.move_to_end((tenant, session))
        if len(self._known) > MAX_KNOWN:
            (owner, old), _ = self._known.popitem(last=False)
            key = owner, old[: old.rfind("-") + 1]
            if old in self._by_prefix.get(key, ()):
                self._by_prefix[key].remove(old)
                if not self._by_prefix[key]:
                    del self._by_prefix[key]
