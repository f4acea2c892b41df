"""What the adapters share: a framework's history goes into a session, and the model reads that session's prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Generic, Self, TypeVar

from memory import Store, Synced
from memory.messages import SYSTEM
from memory.sync import rename_calls

from ..compose import Prompt
from ..formats.native import list_calls, read_arguments, read_call, read_part_text
from ..sessions import Session, Sessions
from ..summarizers.chat_models import from_chat_model

Item = TypeVar("Item")
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group(Generic[Item]):
    """Objects of a framework, and the chat messages that say the same. Neither is split without the other."""

    items: Sequence[Item]
    messages: Sequence[Message]


class Conversations(Generic[Item]):
    """Fits what a framework is about to send into *budget* tokens. An adapter derives its ``Compaction`` from it.

    *store* is a store or its URL; by default the sessions live as long as this object. *summarizer* is by default the
    agent's own model, where the framework gives it, else the offline one. *options* are those of ``Sessions``; or
    give *sessions* that are open already. ``close`` stops the compactors; exit waits for none.
    """

    def __init__(
        self,
        budget: int,
        *,
        store: Store | str | None = None,
        summarizer: object | None = None,
        sessions: Sessions | None = None,
        **options: Any,
    ) -> None:
        self.budget = budget
        self._store, self._summarizer, self._options = store, summarizer, options
        self._sessions, self._lock = sessions, threading.Lock()

    def read(self, items: Sequence[Item]) -> Iterable[Group[Item]]:
        """Return what *items* say, in order."""
        raise NotImplementedError

    def write(self, messages: Sequence[Message]) -> Iterable[Item]:
        """Return new objects of the framework that say *messages*."""
        raise NotImplementedError

    def sessions(self, model: object | None = None) -> Sessions:
        """Return the sessions. The first call makes them; the agent's *model* summarizes if no summarizer was given."""
        with self._lock:
            if self._sessions is None:
                chosen = self._summarizer
                if chosen is None and model is not None:
                    chosen = from_chat_model(model)
                self._sessions = Sessions(self._store, summarizer=chosen, budget=self.budget, **self._options)
            return self._sessions

    def fit(
        self, session_id: str, items: Sequence[Item], *, model: object | None = None, **options: Any
    ) -> tuple[str, list[Item]]:
        """Return the system prompt and the objects that the model is to read. *options* are those of ``compose``.

        Objects that are shown whole are the framework's own.
        """
        with self.sessions(model).open(session_id) as session:
            return self._fit(session, items, options)

    async def afit(
        self, session_id: str, items: Sequence[Item], *, model: object | None = None, **options: Any
    ) -> tuple[str, list[Item]]:
        """``fit``, without holding up the event loop."""
        async with self.sessions(model).open(session_id) as session:
            return await session.memory.to_thread(self._fit, session, items, options)

    def _fit(self, session: Session, items: Sequence[Item], options: Mapping[str, Any]) -> tuple[str, list[Item]]:
        groups = _join_silent(self.read(items))
        synced = session.memory.sync(_list_messages(groups))
        prompt = session.compose(budget=self.budget, summary_as="header", **options)
        return self._show(groups, synced, prompt)

    def _show(self, groups: Sequence[Group[Item]], synced: Synced, prompt: Prompt) -> tuple[str, list[Item]]:
        """Return *prompt* as the framework has it: whole groups as its own objects, all else as new ones."""
        begins = list(accumulate([len(group.messages) for group in groups], initial=0))
        owners = dict(zip(begins, groups, strict=False))
        # For each message, which of the host's it stands for; None: none.
        places = [synced.find(source.ref) if source.ref else None for source in prompt.sources]
        same = [
            place if source.kind == "original" else None for place, source in zip(places, prompt.sources, strict=True)
        ]
        messages = _take_ids(prompt.messages, places, _list_messages(groups))
        system, at = read_system(prompt)
        shown: list[Item] = []
        made: list[Message] = []
        while at < len(same):
            first = same[at]
            group = owners.get(first) if first is not None else None
            count = len(group.messages) if group is not None else 1
            if group is None or first is None or same[at : at + count] != [*range(first, first + count)]:
                made.append(messages[at])
                at += 1
                continue
            shown += [*self.write(made), *group.items]
            made = []
            at += count
        return system, [*shown, *self.write(made)]

    def close(self, timeout: float | None = 5.0) -> bool:
        """Stop all compactors, and return whether no worker is left: ``Sessions.close``."""
        return self._sessions.close(timeout) if self._sessions is not None else True

    async def aclose(self, timeout: float | None = 5.0) -> bool:
        return await self._sessions.aclose(timeout) if self._sessions is not None else True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        Conversations.close(self)  # a framework may have a method of that name


class Converted(Conversations[Item]):
    """For frameworks whose items are converted all together: what their names and ids mean is in other items."""

    def _show(self, groups: Sequence[Group[Item]], _synced: Synced, prompt: Prompt) -> tuple[str, list[Item]]:
        system, count = read_system(prompt)
        items = [item for group in groups for item in group.items]
        return system, self.show_equal(items, self.write(prompt.messages[count:]))

    def show_equal(self, items: Sequence[Item], made: Iterable[Item]) -> list[Item]:
        """Return *made* with each object that equals one of *items* replaced by that one; both are in order."""
        shown: list[Item] = []
        place = 0
        for one in made:
            at = next((at for at in range(place, len(items)) if items[at] == one), None)
            shown.append(one if at is None else items[at])
            place = place if at is None else at + 1
        return shown


def _join_silent(groups: Iterable[Group[Item]]) -> list[Group[Item]]:
    """Return *groups*, each with messages: objects that say nothing go with those before them, or behind."""
    joined: list[Group[Item]] = []
    for group in groups:
        if joined and not (group.messages and joined[-1].messages):
            before = joined.pop()
            joined.append(Group([*before.items, *group.items], [*before.messages, *group.messages]))
        else:
            joined.append(group)
    return joined


def _list_messages(groups: Iterable[Group[Any]]) -> list[Message]:
    return [message for group in groups for message in group.messages]


def _take_ids(messages: Sequence[Message], places: Sequence[int | None], given: Sequence[Message]) -> list[Message]:
    """Return *messages* with the ids that their calls have in what the framework gave: a replay may have new ones.
    *places* are the indexes in that."""
    ids: dict[str, str] = {}
    renamed = []
    for message, place in zip(messages, places, strict=True):
        if place is not None:
            ids |= zip(_list_ids(message), _list_ids(given[place]), strict=False)
        renamed.append(rename_calls(message, ids) if ids else message)
    return renamed


def _list_ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def read_system(prompt: Prompt) -> tuple[str, int]:
    """Return the system prompt, and how many messages of *prompt* it takes."""
    texts = [str(message["content"]) for message in takewhile(lambda one: one["role"] in SYSTEM, prompt.messages)]
    return "\n\n".join(texts), len(texts)


def make_answer(content: object, calls: Iterable[tuple[str, str, object]]) -> Message:
    """Return the model's chat message. *calls*: id, name, and the arguments as JSON text or as what it says."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": dump_json(arguments)}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def dump_json(value: object) -> str:
    """Return *value* as JSON; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def make_content(said: str | Iterable[Any]) -> Any:
    """Return a message's content, of texts and of parts for files: one text if there are no files."""
    given = [said] if isinstance(said, str) else [one for one in said if one]
    if all(isinstance(one, str) for one in given):
        return "".join(given)
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in given]


def make_file(url: str, *, is_image: bool) -> Message:
    """Return the part of a content that shows a file; *url* may hold it as data."""
    if is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url}}


def make_tool(name: str, description: str | None, parameters: object) -> Message:
    """Return a tool's schema, as ``compose`` counts it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def read_text(message: Message) -> str:
    """Return the text of a *message* that is written anew: a mark for each file, which the host has."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(map(read_part_text, content))


def read_calls(message: Message) -> list[tuple[str, str, dict[str, Any]]]:
    """Return id, name and arguments of each call in a *message*."""
    asked = [(call["id"], *read_call(call)) for call in list_calls(message)]
    return [(call_id, name, read_arguments(given)) for call_id, name, given in asked]
