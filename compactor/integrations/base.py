"""The common part of all adapters: the framework's history goes into a session, and the model gets its prompt."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import takewhile
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import structlog
from pydantic import BaseModel

from memory import Memory, Recall, Store, Synced
from memory.arguments import check_whole_number, find_near, require
from memory.io_threads import Lane, to_thread
from memory.messages import NATIVE, SYSTEM
from memory.sync import rename_calls, sync_messages

from ..background import Options
from ..formats.native import read_native
from ..formats.parts import make_text, read_text
from ..prompt.layout import SummaryAs
from ..sessions import Session, Sessions
from .history import Group, Item, ItemTurn, Message, keep_turns, list_ids, list_messages, read_turns
from .redaction import redact
from .unnamed import UnnamedSessions

__all__ = ["Conversations", "Converted", "Fitted", "Group", "Message"]

R = TypeVar("R")
#: A session counts as shared once this many more calls rewound it than did not. A rewind that writes at most
#: ``MAX_NEW`` messages does not count: some agents start anew each time.
MAX_REWINDS, MAX_NEW = 5, 3


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Item]):
    """The prompt for the model."""

    #: The whole system prompt, and its part after the given one: a summary, and a note of omitted rounds.
    system: str
    added: str
    #: The messages. Unshortened ones are the framework's own objects.
    items: list[Item]
    #: Tokens of the prompt, corrected by the provider's counts; 0: not counted.
    tokens: int = 0
    #: Id of the last log entry that it shows; empty: unknown, as there were new ones meanwhile.
    last_entry: str = ""

    def extend(self, given: str | Sequence[Any]) -> Any:
        """Return the *given* system prompt with ``added`` at its end: blocks stay, with their cache marks."""
        return self.system if isinstance(given, str) else [*given, make_text(self.added)]


class Conversations(ABC, Generic[Item]):
    """Fits a framework's model calls into *budget* tokens. An adapter derives its ``Compaction`` from it.

    *session_id* names the session: a text, or a function of an argument that the adapter documents. By default, and if
    the function returns None, the framework's own name counts; a conversation without a name gets its own session.
    *store* is a store or its URL; by default the sessions live as long as this object. *summarizer* is by default the
    first model of the session's agent if the framework reveals it, else the offline one. *options* are those of
    ``Sessions``; or give *sessions*, which are used as they are. The constructor opens a store that is given as a URL.
    ``close`` stops the compactors; exit waits for none.
    """

    #: The provider whose payloads ``write`` returns; empty: none, so all summaries are text.
    provider = ""
    #: Maps a text to its replacement for the log and summarizers; None: they get the text itself.
    redactor: Callable[[str], str] | None = None

    def __init__(
        self,
        budget: int,
        *,
        session_id: str | Callable[[Any], str | None] | None = None,
        store: Store | str | None = None,
        summarizer: object | None = None,
        sessions: Sessions | None = None,
        **options: Any,
    ) -> None:
        check_whole_number("budget", budget, 1)
        require("session_id", session_id, str | Callable | None, "a text, or a function that returns one")
        require("sessions", sessions, Sessions | None, "open Sessions")
        _check_options(type(self).__name__, options)
        self.budget = budget
        self._session_id = session_id
        self._owns_sessions = sessions is None
        self._sessions = sessions or Sessions(store, summarizer=summarizer, budget=budget, **options)
        self._unnamed = UnnamedSessions(self._sessions.store, self._sessions.purge)
        self._rewinds: WeakKeyDictionary[Memory, int] = WeakKeyDictionary()
        self._lanes: WeakValueDictionary[tuple[int, str], Lane] = WeakValueDictionary()
        self._converted: WeakKeyDictionary[Memory, list[ItemTurn[Item]]] = WeakKeyDictionary()
        self._redacted: WeakKeyDictionary[Memory, list[tuple[Message, Message]]] = WeakKeyDictionary()

    @abstractmethod
    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        """Return the messages in *items*, in order.

        Callers may pass only the newest items. These then begin with a user message after a model's answer, and no
        earlier call is open.
        """

    @abstractmethod
    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        """Return new objects of the framework for *messages*."""

    def name_session(self, context: object, own: object | None) -> str:
        """Return the session's name for a call's *context*, or "" if there is none. *own* is the framework's name."""
        given = self._session_id(context) if callable(self._session_id) else self._session_id
        return str(next((one for one in (given, own) if one is not None and one != ""), ""))

    def require_name(self, session_id: str) -> str:
        """Return *session_id*. Raises ``ValueError`` if it is empty: recall reads only a session with a name."""
        if not session_id:
            raise ValueError("recall needs the conversation's name: give session_id=, or name it in the framework")
        return session_id

    def sessions(self) -> Sessions:
        return self._sessions

    def fit(
        self,
        session_id: str,
        items: Sequence[Item],
        *,
        system: str = "",
        model: object | None = None,
        summarizer: object | None = None,
        **options: Any,
    ) -> Fitted[Item]:
        """Return the prompt for the model.

        *model* is the agent's model or its name. *summarizer* summarizes this session if nothing else was chosen.
        *options* are those of ``compose``. Without a *session_id*, the session is found by its history.
        """
        if not session_id:
            with self._unnamed.find(list_messages(self.read(items))) as found:
                return self.fit(found, items, system=system, model=model, summarizer=summarizer, **options)
        if isinstance(model, str):
            options["model"] = model
        elif summarizer is None and self._owns_sessions:  # given sessions have their own
            summarizer = model
        with self._sessions.open(session_id, model=summarizer) as session:
            return self._fit(session, items, system, options)

    async def afit(
        self, session_id: str, items: Sequence[Item], *, system: str = "", model: object | None = None, **options: Any
    ) -> Fitted[Item]:
        """``fit``, without blocking the event loop."""
        call = partial(self.fit, session_id, list(items), system=system, model=model, **options)
        return await self._run_in_order(session_id, call)

    async def _run_in_order(self, session_id: str, call: Callable[[], R]) -> R:
        # Always on a thread: even a short history may hold megabytes. But callers of one session wait for its turn
        # without one: few threads serve all sessions. A forked child has lanes of its own.
        self._sessions.follow_loop()
        return await self._get_lane(session_id).run(call)

    def _get_lane(self, session_id: str) -> Lane:
        key = (os.getpid(), session_id)
        return self._lanes.setdefault(key, Lane()) if session_id else Lane()

    def keep(self, session_id: str, answer: Sequence[Item]) -> None:
        """Append the model's *answer* to the log at once, if it calls no tool.

        The next call appends everything else, and every answer of a conversation without a name. Raises nothing: the
        paid answer must not be lost because the log cannot be written now.
        """
        with report_errors("answer.not_kept", session_id=session_id):
            if session_id and (messages := self._read_answer(answer)):
                if (redactor := self.redactor) is not None:
                    messages = [redact(one, redactor) for one in messages]
                with self._sessions.open(session_id) as session, session.lock:  # not into another caller's prompt
                    session.memory.extend(messages)

    async def akeep(self, session_id: str, answer: Sequence[Item]) -> None:
        """``keep``, without blocking the event loop."""
        if any(map(_is_call, answer)):  # nothing to append: no thread for that
            return
        call = partial(self.keep, session_id, answer)
        is_quick = self._sessions.store.is_resident and self.redactor is None
        if is_quick and not self._get_lane(session_id).is_busy:
            call()  # changing threads would take longer
        else:
            await self._run_in_order(session_id, call)

    def _read_answer(self, answer: Sequence[Item]) -> list[Message]:
        messages = list_messages(self.read(answer))
        return messages if all(one["role"] == "assistant" and "tool_calls" not in one for one in messages) else []

    def describe_tools(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the name, the description and the parameters' schema of each tool of ``Recall``."""
        for tool in Recall(Memory()).tools():
            function: Any = tool["function"]
            yield function["name"], function["description"], function["parameters"]

    def bind_tools(self, session_id: str) -> Iterator[tuple[str, str, type[BaseModel], Callable[..., Awaitable[str]]]]:
        """Yield for each tool of ``Recall`` its name, its description, the class of its arguments, and a function that
        takes these by name and returns the answer from that session. Raises ``ValueError`` without a *session_id*."""

        async def call(name: str, /, **arguments: Any) -> str:
            return await self.acall_tool(session_id, name, arguments)

        self.require_name(session_id)
        for name, description, schema in self.describe_tools():
            yield name, description, _make_arguments(schema), partial(call, name)

    def call_tool(self, session_id: str, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the answer to a call of one of these tools, in the session's own log: ``Recall.call``.

        Raises ``ValueError`` without a *session_id*.
        """
        with self._sessions.open(self.require_name(session_id)) as session:
            return Recall(session.memory, session.compactor.role).call(name, arguments)

    async def acall_tool(self, session_id: str, name: str, arguments: str | Mapping[str, Any]) -> str:
        """``call_tool``, without blocking the event loop."""
        self._sessions.follow_loop()
        return await to_thread(partial(self.call_tool, session_id, name, arguments))

    def _fit(self, session: Session, items: Sequence[Item], given: str, options: Mapping[str, Any]) -> Fitted[Item]:
        summary_as: SummaryAs = "system" if self.provider else "header"
        items = [*items]
        with session.lock:  # else another caller's history could come between
            turns = read_turns(self._converted.get(session.memory, ()), items, self.read)
            self._converted[session.memory] = keep_turns(turns)
            messages = [message for turn in turns for message in turn.messages]
            if all(one["role"] in SYSTEM for one in messages):  # the host forgot it; sync ignores an empty list
                session.memory.rewind("r0")
            # The host cannot edit these messages in place, so those of the last call need no comparison.
            synced = sync_messages(session.memory, self._redact(session.memory, messages), "rewind", newest=0)
            options = {"budget": self.budget, "summary_as": summary_as, **options}
            last_entry = session.memory.snapshot.last
            prompt = session.compose(system=given, **options)
            if session.memory.snapshot.last != last_entry:
                last_entry = ""
            sources = prompt.sources
            self._warn_if_shared(session, synced)
        texts = [read_text(one) for one in takewhile(self._is_system, prompt.messages)]
        # For each message, the index of the host's message it stands for, or None.
        find: Callable[[str], int | None] = synced.find
        if 2 * len(sources) > len(messages):  # most of the history is shown: list it instead of searching each time
            find = {ref: index for index, ref in enumerate(synced.references) if ref}.get
        indexes = [find(source.ref) if source.ref else None for source in sources]
        is_original = [source.kind == "original" for source in sources]
        originals = [index if is_same else None for index, is_same in zip(indexes, is_original, strict=True)]
        own = _find_groups(turns, items, originals)
        shown, at = _restore_messages(prompt.messages, indexes, originals, messages), len(texts)
        system = "\n\n".join(texts)
        tokens = math.ceil(prompt.tokens * session.memory.snapshot.get_rounds(session.compactor.role).usage.correction)
        items = self._build_items(items, own, shown[at:], originals[at:])
        return Fitted(system, system.removeprefix(given).strip(), items, tokens, last_entry)

    def _redact(self, memory: Memory, messages: Sequence[Message]) -> Sequence[Message]:
        """Return *messages* for the log. Known messages give the same objects as before, which ``sync`` recognises."""
        if (redactor := self.redactor) is None:
            return messages
        known, pairs = self._redacted.get(memory, []), list[tuple[Message, Message]]()
        for index, one in enumerate(messages):
            same = index < len(known) and known[index][0] is one
            pairs.append(known[index] if same else (one, redact(one, redactor)))
        self._redacted[memory] = pairs
        return [redacted for _, redacted in pairs]

    def _warn_if_shared(self, session: Session, synced: Synced) -> None:
        """Warn once if long histories take turns in one session, as two agents with one session id cause."""
        times = self._rewinds.get(session.memory, 0)
        is_rewind = bool(synced.undone) and synced.appended > MAX_NEW
        if times < MAX_REWINDS and (is_rewind or (times and not synced.undone)):
            self._rewinds[session.memory] = times = times + (1 if is_rewind else -1)
            if times == MAX_REWINDS:
                log = structlog.get_logger("compactor")
                remedy = "give each conversation of each agent a session_id of its own"
                log.warning("sessions.shared", session_id=session.id, remedy=remedy)

    def _is_system(self, message: Message) -> bool:
        return message["role"] in SYSTEM and not (self.provider and "payload" in read_native(message, self.provider))

    def _build_items(
        self,
        _items: Sequence[Item],
        own: Mapping[int, Group[Item]],
        messages: Sequence[Message],
        originals: Sequence[int | None],
    ) -> list[Item]:
        """Return *messages* as the framework's objects: unshortened groups from *own*, all others as new objects.

        *originals* has the index of the host's message for each unshortened one; None: it is shortened or new. *own*
        has the groups by their first message.
        """
        shown: list[Item] = []
        new: list[Message] = []
        at = 0
        while at < len(originals):
            first = originals[at]
            group = own.get(first) if first is not None else None
            count = len(group.messages) if group is not None else 1
            if group is None or first is None or originals[at : at + count] != [*range(first, first + count)]:
                new.append(messages[at])
                at += 1
                continue
            shown += [*self._create_items(new), *group.items]
            new = []
            at += count
        return [*shown, *self._create_items(new)]

    def _create_items(self, messages: Sequence[Message]) -> Iterable[Item]:
        # Copies: the framework may change the objects, and the next call reuses the messages.
        return self.write(deepcopy(messages)) if messages else ()

    def close(self, timeout: float | None = 5.0) -> bool:
        """Stop all compactors, and return whether no worker is left: ``Sessions.close``. Given *sessions* stay open."""
        return self._sessions.close(timeout) if self._owns_sessions else True

    async def aclose(self, timeout: float | None = 5.0) -> bool:
        return await self._sessions.aclose(timeout) if self._owns_sessions else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        Conversations.close(self)  # the framework's class may have a ``close`` too


class Converted(Conversations[Item]):
    """For frameworks whose items must be converted together, because names and ids refer to other items."""

    def write_for(self, _items: Sequence[Item], messages: Sequence[Message]) -> Iterable[Item]:
        """Return new objects for *messages*, for a host that has *items*."""
        return self.write(messages)

    def print_item(self, item: Item) -> str:
        """Return a text that equal objects share, and no others."""
        return repr(item)

    def _build_items(
        self,
        items: Sequence[Item],
        own: Mapping[int, Group[Item]],
        messages: Sequence[Message],
        originals: Sequence[int | None],
    ) -> list[Item]:
        groups, first = own.values(), originals[0] if originals else None
        follows = first is not None and [*originals] == [*range(first, first + len(originals))]
        # Usual case: the newest messages are shown, all unshortened.
        if follows and sum(len(group.messages) for group in groups) == len(originals):
            if first == 0 and sum(len(group.items) for group in groups) == len(items):
                return [*items]
            if messages[0]["role"] == "user":  # else the format may need something before it
                return [item for group in groups for item in group.items]
        found = defaultdict[str, deque[Item]](deque)
        for item in (item for group in own.values() for item in group.items):
            found[self.print_item(item)].append(item)
        items = [*self.write_for(items, messages)]
        return [same.popleft() if (same := found[self.print_item(one)]) else deepcopy(one) for one in items]


def _is_call(item: object) -> bool:
    """Return whether *item* is known, by a field that several frameworks have, to call a tool."""
    return bool(getattr(item, "tool_calls", None)) or getattr(item, "type", None) == "function_call"


def _make_arguments(schema: Mapping[str, Any]) -> type[BaseModel]:
    class Arguments(BaseModel, extra="allow"):
        @classmethod
        def model_json_schema(cls, *_args: Any, **_options: Any) -> dict[str, Any]:
            return deepcopy(dict(schema))

    return Arguments


def join_names(*names: object) -> str:
    """Return one name for *names*, joined by slashes. It is unique, because slashes within names are escaped."""
    return "/".join(str(one).replace("%", "%25").replace("/", "%2F") for one in names)


def _check_options(name: str, options: Iterable[str]) -> None:
    """Raise ``TypeError`` for an option unknown to ``Sessions``."""
    known = {*signature(Conversations).parameters, *signature(Sessions).parameters, *Options.__annotations__}
    for option in options:
        if option not in known - {"options"}:
            near = find_near(option, known)
            raise TypeError(f"{name} has no parameter {option!r}" + (f"; did you mean {near!r}?" if near else ""))


@contextmanager
def report_errors(event: str, **facts: str) -> Iterator[None]:
    """Log errors as a warning with *facts*, and suppress them."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, it is no reason to fail the turn)
        structlog.get_logger("compactor").warning(event, **facts, error=type(error).__name__)


def _find_groups(
    turns: Iterable[ItemTurn[Item]], items: Sequence[Item], indexes: Iterable[int | None]
) -> dict[int, Group[Item]]:
    """Return the groups that begin at *indexes* of the messages, with the host's *items* of this call."""
    wanted = {index for index in indexes if index is not None}
    first, own = min(wanted, default=0), {}
    message = item = 0
    for turn in turns:
        if message + len(turn.messages) <= first:  # the usual case in a long history
            message, item = message + len(turn.messages), item + len(turn.items)
            continue
        for group in turn.groups:
            if message in wanted:
                own[message] = Group(items[item : item + len(group.items)], group.messages)
            message, item = message + len(group.messages), item + len(group.items)
    return own


def _restore_messages(
    messages: Sequence[Message],
    indexes: Sequence[int | None],
    originals: Sequence[int | None],
    given: Sequence[Message],
) -> list[Message]:
    """Return the log's *messages* with the framework's current objects.

    One of *originals* comes from *given*; a shortened one gets the ids and native fields that it has there. After a
    replay, these differ from the log's.
    """
    ids: dict[str, str] = {}
    newest = []
    for message, index, same in zip(messages, indexes, originals, strict=True):
        one = message
        if index is not None:
            own = given[index]
            ids |= zip(list_ids(message), list_ids(own), strict=False)
            native = {NATIVE: own[NATIVE]} if NATIVE in own else {}
            one = own if same is not None else {key: message[key] for key in message if key != NATIVE} | native
        newest.append(rename_calls(one, ids) if ids and same is None else one)
    return newest
