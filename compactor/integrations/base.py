"""What the adapters share: a framework's history goes into a session, and the model reads that session's prompt."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import takewhile
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import structlog

from memory import Memory, Recall, Store, Synced
from memory.arguments import find_near, require, whole_number
from memory.io_threads import Lane, to_thread
from memory.messages import NATIVE, SYSTEM
from memory.sync import rename_calls, sync_messages

from ..background import Options
from ..formats.native import read_native
from ..formats.parts import make_text, read_text
from ..prompt.layout import SummaryAs
from ..sessions import Session, Sessions
from .history import Group, Item, Message, Turn, keep_turns, list_ids, list_messages, read_turns
from .unnamed import Unnamed

__all__ = ["Conversations", "Converted", "Fitted", "Group", "Message", "join_names", "report_errors"]

R = TypeVar("R")
#: Calls that undo what another wrote, less those that undo nothing, until a session counts as shared; and messages that
#: a call may write in place of those without counting, as an agent does that begins anew each time.
MAX_RETURNS, MAX_NEW = 5, 3


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Item]):
    """What the model is to read."""

    #: The whole system prompt, and what of it stands behind the one that was given: a summary, what is left out.
    system: str
    added: str
    #: Those shown whole are the framework's own objects.
    items: list[Item]

    def extend(self, given: str | Sequence[Any]) -> Any:
        """Return the *given* system prompt with what is added: blocks stay, with their marks for a cache."""
        return self.system if isinstance(given, str) else [*given, make_text(self.added)]


class Conversations(ABC, Generic[Item]):
    """Fits what a framework is about to send into *budget* tokens. An adapter derives its ``Compaction`` from it.

    *session_id* names the session: a text, or a function of what the adapter says. By default, and where the function
    returns None, the framework's own name does; a conversation without a name has a session of its own. *store* is a
    store or its URL; by default the sessions live as long as this object. *summarizer* is by default the first model
    that the agent of a session has, where the framework gives it, else the offline one. *options* are those of
    ``Sessions``; or give *sessions*, which are used as they are. The constructor opens a store that is given as a URL.
    ``close`` stops the compactors; exit waits for none.
    """

    #: The format of the payloads that ``write`` shows; empty: of none, so that all summaries are text.
    provider = ""
    #: Makes of a text the one that the log and summarizers get in its place; None: they get it as it is.
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
        whole_number("budget", budget, 1)
        require("session_id", session_id, str | Callable | None, "a text, or a function that returns one")
        require("sessions", sessions, Sessions | None, "open Sessions")
        _check_options(type(self).__name__, options)
        self.budget = budget
        self._session_id = session_id
        self._owns_sessions = sessions is None
        self._sessions = sessions or Sessions(store, summarizer=summarizer, budget=budget, **options)
        self._unnamed = Unnamed(self._sessions.purge)
        self._returns: WeakKeyDictionary[Memory, int] = WeakKeyDictionary()
        self._lanes: WeakValueDictionary[tuple[int, str], Lane] = WeakValueDictionary()
        self._known: WeakKeyDictionary[Memory, list[Turn[Item]]] = WeakKeyDictionary()
        self._redacted: WeakKeyDictionary[Memory, list[tuple[Message, Message]]] = WeakKeyDictionary()

    @abstractmethod
    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        """Return what *items* say, in order. They may be the newest alone, from words of the user's on that are behind
        an answer of the model's, if no call before is open."""

    @abstractmethod
    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        """Return new objects of the framework that say *messages*."""

    def name_session(self, context: object, own: object | None) -> str:
        """Return the session's name for what the framework tells of a call: *own* is the framework's. Empty: nobody has
        named the conversation."""
        given = self._session_id(context) if callable(self._session_id) else self._session_id
        return str(next((one for one in (given, own) if one is not None and one != ""), ""))

    def require_name(self, session_id: str) -> str:
        """Return *session_id*. Raises ``ValueError`` if it is empty: recall reads the session of that name alone."""
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
        """Return the system prompt and the objects that the model is to read. *model* is the agent's, or its name;
        *summarizer* is this session's, if nothing else was chosen; *options* are those of ``compose``. Without a
        *session_id*, the session is that of this very history."""
        if not session_id:
            with self._unnamed.find(list_messages(self.read(items))) as found:
                return self.fit(found, items, system=system, model=model, summarizer=summarizer, **options)
        if isinstance(model, str):
            options["model"] = model
        elif summarizer is None and self._owns_sessions:  # those that were given have their own
            summarizer = model
        with self._sessions.open(session_id, model=summarizer) as session:
            return self._fit(session, items, system, options)

    async def afit(
        self, session_id: str, items: Sequence[Item], *, system: str = "", model: object | None = None, **options: Any
    ) -> Fitted[Item]:
        """``fit``, without holding up the event loop."""
        call = partial(self.fit, session_id, list(items), system=system, model=model, **options)
        return await self._run_in_turn(session_id, call)

    async def _run_in_turn(self, session_id: str, call: Callable[[], R]) -> R:
        # Always on a thread: even a short history may hold megabytes. But callers of one session wait for its turn
        # without one: few threads serve all sessions. A forked child has lanes of its own.
        key = (os.getpid(), session_id)
        lane = self._lanes.setdefault(key, Lane()) if session_id else Lane()
        self._sessions.follow_loop()
        return await lane.run(call)

    def keep(self, session_id: str, answer: Sequence[Item]) -> None:
        """Add the model's *answer* to the log at once, if it calls no tool; all else gets there with the next call, and
        so does every answer in a conversation without a name.

        Raises nothing: an answer that was paid for is not lost where the log cannot be written now.
        """
        with report_errors("answer.not_kept", session_id=session_id):
            if session_id and (messages := self._read_answer(answer)):
                with self._sessions.open(session_id) as session, session.turn:  # or it would be in another's prompt
                    session.memory.extend(messages)

    async def akeep(self, session_id: str, answer: Sequence[Item]) -> None:
        """``keep``, without holding up the event loop."""
        await self._run_in_turn(session_id, partial(self.keep, session_id, answer))

    def _read_answer(self, answer: Sequence[Item]) -> list[Message]:
        messages = list_messages(self.read(answer))
        return messages if all(one["role"] == "assistant" and "tool_calls" not in one for one in messages) else []

    def describe_tools(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the name, the description and the parameters' schema of each tool of ``Recall``."""
        for tool in Recall(Memory()).tools():
            told: Any = tool["function"]
            yield told["name"], told["description"], told["parameters"]

    def call_tool(self, session_id: str, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the answer to a call of one of these tools, in the session's own log: ``Recall.call``. Raises
        ``ValueError`` without a *session_id*."""
        with self._sessions.open(self.require_name(session_id)) as session:
            return Recall(session.memory, session.compactor.role).call(name, arguments)

    async def acall_tool(self, session_id: str, name: str, arguments: str | Mapping[str, Any]) -> str:
        """``call_tool``, without holding up the event loop."""
        self._sessions.follow_loop()
        return await to_thread(partial(self.call_tool, session_id, name, arguments))

    def _fit(self, session: Session, items: Sequence[Item], given: str, options: Mapping[str, Any]) -> Fitted[Item]:
        summary_as: SummaryAs = "system" if self.provider else "header"
        items = [*items]
        with session.turn:  # or another caller's history would come in between
            turns = read_turns(self._known.get(session.memory, ()), items, self.read)
            self._known[session.memory] = keep_turns(turns)
            messages = [message for turn in turns for message in turn.messages]
            if all(one["role"] in SYSTEM for one in messages):  # forgotten; to sync, an empty list says nothing
                session.memory.rewind("r0")
            # No host can edit these messages in place: those of the last call need not be compared.
            synced = sync_messages(session.memory, self._redact(session.memory, messages), "rewind", newest=0)
            options = {"budget": self.budget, "summary_as": summary_as, **options}
            prompt = session.compose(system=given, **options)
            sources = prompt.sources
            self._watch(session, synced)
        texts = [read_text(one) for one in takewhile(self._is_system, prompt.messages)]
        # For each message, which of the host's it stands for; None: none.
        places = [synced.find(source.ref) if source.ref else None for source in sources]
        whole = [place if source.kind == "original" else None for place, source in zip(places, sources, strict=True)]
        own = _find_own(turns, items, whole)
        shown, at, system = _take_newest(prompt.messages, places, whole, messages), len(texts), "\n\n".join(texts)
        return Fitted(system, system.removeprefix(given).strip(), self._show(items, own, shown[at:], whole[at:]))

    def _redact(self, memory: Memory, messages: Sequence[Message]) -> Sequence[Message]:
        """Return *messages* for the log. Those that were given before are the objects of then: ``sync`` knows them."""
        if (redactor := self.redactor) is None:
            return messages
        known, made = self._redacted.get(memory, []), list[tuple[Message, Message]]()
        for place, one in enumerate(messages):
            same = place < len(known) and known[place][0] is one
            made.append(known[place] if same else (one, redact(one, redactor)))
        self._redacted[memory] = made
        return [redacted for _, redacted in made]

    def _watch(self, session: Session, synced: Synced) -> None:
        """Warn once where long histories take turns: as those of two agents do that write to one session."""
        times = self._returns.get(session.memory, 0)
        is_return = bool(synced.undone) and synced.appended > MAX_NEW
        if times < MAX_RETURNS and (is_return or (times and not synced.undone)):
            self._returns[session.memory] = times = times + (1 if is_return else -1)
            if times == MAX_RETURNS:
                log = structlog.get_logger("compactor")
                remedy = "give each conversation of each agent a session_id of its own"
                log.warning("sessions.shared", session_id=session.id, remedy=remedy)

    def _is_system(self, message: Message) -> bool:
        return message["role"] in SYSTEM and not (self.provider and "payload" in read_native(message, self.provider))

    def _show(
        self,
        _items: Sequence[Item],
        own: Mapping[int, Group[Item]],
        messages: Sequence[Message],
        whole: Sequence[int | None],
    ) -> list[Item]:
        """Return *messages* as the framework has them: whole groups as its *own* objects, all else as new ones. *whole*
        says which of the host's messages each one is; None: none. *own* has the groups by their first message."""
        shown: list[Item] = []
        made: list[Message] = []
        at = 0
        while at < len(whole):
            first = whole[at]
            group = own.get(first) if first is not None else None
            count = len(group.messages) if group is not None else 1
            if group is None or first is None or whole[at : at + count] != [*range(first, first + count)]:
                made.append(messages[at])
                at += 1
                continue
            shown += [*self._make(made), *group.items]
            made = []
            at += count
        return [*shown, *self._make(made)]

    def _make(self, messages: Sequence[Message]) -> Iterable[Item]:
        # Copies: a framework may change what it is given, and the next call goes on from the messages.
        return self.write(deepcopy(messages)) if messages else ()

    def close(self, timeout: float | None = 5.0) -> bool:
        """Stop all compactors, and return whether no worker is left: ``Sessions.close``. Those of given *sessions* go
        on."""
        return self._sessions.close(timeout) if self._owns_sessions else True

    async def aclose(self, timeout: float | None = 5.0) -> bool:
        return await self._sessions.aclose(timeout) if self._owns_sessions else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        Conversations.close(self)  # a framework may have a method of that name


class Converted(Conversations[Item]):
    """For frameworks whose items are converted all together: what their names and ids mean is in other items."""

    def write_for(self, _items: Sequence[Item], messages: Sequence[Message]) -> Iterable[Item]:
        """Return new objects that say *messages*, for a host that has *items*."""
        return self.write(messages)

    def print_item(self, item: Item) -> str:
        """Return a text that equal objects share, and no others."""
        return repr(item)

    def _show(
        self,
        items: Sequence[Item],
        own: Mapping[int, Group[Item]],
        messages: Sequence[Message],
        whole: Sequence[int | None],
    ) -> list[Item]:
        groups, first = own.values(), whole[0] if whole else None
        follows = first is not None and [*whole] == [*range(first, first + len(whole))]
        # Most: what is shown are the newest, all of them whole.
        if follows and sum(len(group.messages) for group in groups) == len(whole):
            if first == 0 and sum(len(group.items) for group in groups) == len(items):
                return [*items]
            if messages[0]["role"] == "user":  # else a format may have to put something in front
                return [item for group in groups for item in group.items]
        found = defaultdict[str, deque[Item]](deque)
        for item in (item for group in own.values() for item in group.items):
            found[self.print_item(item)].append(item)
        made = self.write_for(items, messages)
        return [same.popleft() if (same := found[self.print_item(one)]) else deepcopy(one) for one in made]


#: Keys of which the values are no text that anybody said.
_NOT_SAID = frozenset(("role", "type", "id", "tool_call_id", "call_id", "tool_use_id", "format", "signature", "data"))
#: A file as a URL. Words may begin with ``data:``, too.
_match_file: Any = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.=-]+)*;base64,[A-Za-z0-9+/=_-]*", re.ASCII).fullmatch


def redact(value: Any, redactor: Callable[[str], str]) -> Any:
    """Return a copy of a message, or of a part of one, with each text as *redactor* returns it. Ids and data of files
    stay."""
    if isinstance(value, str):
        return value if _match_file(value) else redactor(value)
    if isinstance(value, Mapping):
        # The data of a document may be its text.
        kept = _NOT_SAID - {"data"} if value.get("type") == "text" else _NOT_SAID
        return {key: one if key in kept else redact(one, redactor) for key, one in value.items()}
    return [redact(one, redactor) for one in value] if isinstance(value, (list, tuple)) else value


def join_names(*names: object) -> str:
    """Return one name for *names*, with slashes between them; no others have the same, because theirs are escaped."""
    return "/".join(str(one).replace("%", "%25").replace("/", "%2F") for one in names)


def _check_options(name: str, options: Iterable[str]) -> None:
    """Raise ``TypeError`` for an option that ``Sessions`` does not have."""
    known = {*signature(Conversations).parameters, *signature(Sessions).parameters, *Options.__annotations__}
    for option in options:
        if option not in known - {"options"}:
            near = find_near(option, known)
            raise TypeError(f"{name} has no parameter {option!r}" + (f"; did you mean {near!r}?" if near else ""))


@contextmanager
def report_errors(event: str, **facts: str) -> Iterator[None]:
    """Log a warning with *facts* instead of raising an error."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, it is no reason to fail the turn)
        structlog.get_logger("compactor").warning(event, **facts, error=type(error).__name__)


def _find_own(
    turns: Iterable[Turn[Item]], items: Sequence[Item], places: Iterable[int | None]
) -> dict[int, Group[Item]]:
    """Return the groups that begin at *places* of the messages, with the host's *items* of this call."""
    wanted = {place for place in places if place is not None}
    first, own = min(wanted, default=0), {}
    message = item = 0
    for turn in turns:
        if message + len(turn.messages) <= first:  # most of a long history
            message, item = message + len(turn.messages), item + len(turn.items)
            continue
        for group in turn.groups:
            if message in wanted:
                own[message] = Group(items[item : item + len(group.items)], group.messages)
            message, item = message + len(group.messages), item + len(group.items)
    return own


def _take_newest(
    messages: Sequence[Message], places: Sequence[int | None], whole: Sequence[int | None], given: Sequence[Message]
) -> list[Message]:
    """Return *messages* of the log as the framework has them now: what is *whole* as it is in *given*; all else with
    the ids, and with what no chat message says, that it has there. A replay says the same with others."""
    ids: dict[str, str] = {}
    newest = []
    for message, place, same in zip(messages, places, whole, strict=True):
        one = message
        if place is not None:
            own = given[place]
            ids |= zip(list_ids(message), list_ids(own), strict=False)
            native = {NATIVE: own[NATIVE]} if NATIVE in own else {}
            one = own if same is not None else {key: message[key] for key in message if key != NATIVE} | native
        newest.append(rename_calls(one, ids) if ids and same is None else one)
    return newest
