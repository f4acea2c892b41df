"""AutoContextMemory: one role's side of a Memory, with the methods that users of the class of that name know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from memory import Memory, Recall
from memory.errors import ContextError, MessageError, StaleCompaction, UnknownReference
from memory.events import Event, Redacted
from memory.messages import ASSISTANT, from_post, parse, query_message, repeats_query
from memory.overlays import Reduction
from memory.references import messages_behind, parsed, posts_reference, range_reference
from memory.rounds import USER, Round
from memory.visibility import sees

from ...background import ContextCompactor
from ...prompt.accounting import ledger_of
from ...prompt.groups import TOLD, Message, MessageGroup
from ...strategies.tail import Placed, Tail
from ...tokens import counter_for
from ...view import View
from ..auto_context import auto_context
from .compression_events import CompressionEvent, CompressionEvents
from .explicit_offloads import ExplicitOffloads

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam


class NotDeleted(ContextError, ValueError):
    """A message is shown as before; the text says why."""


@dataclass(frozen=True)
class _Shown:
    """A message that ``get_messages`` gave, and where it is from; system messages are from no round."""

    message: Message
    round_: Round | None = None
    group: MessageGroup | None = None
    #: What reloads the originals; empty where it reads as it came.
    ref: str = ""
    usage: Mapping[str, int] | None = None


class AutoContextMemory:
    """One role's side of a Memory, with the methods that AutoContextMemory has.

    *options* are those of ``auto_context``; or hand in a *compactor* of the role that was made already. Nothing runs
    before ``compactor.start()`` or ``with``. What is offloaded by ``offload()`` is kept in *offloads*, a Memory of its
    own: give one on a store that lasts, and it outlives the process; by default it lasts as long as this object.
    """

    def __init__(
        self,
        memory: Memory,
        role: str = ASSISTANT,
        *,
        offloads: Memory | None = None,
        compactor: ContextCompactor | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(memory, Memory) or not isinstance(role, str):
            raise TypeError(
                "AutoContextMemory takes a Memory, then a role; settings are given by their names, as in auto_context,"
                " and the model as summarizer="
            )
        if offloads is not None:
            _check_offloads(offloads, memory)
        if compactor is None:
            compactor = ContextCompactor.for_role(memory, role, **auto_context(**options))
        elif options:
            raise TypeError(f"the compactor is made already; give {', '.join(options)} to auto_context() for that")
        elif not isinstance(compactor, ContextCompactor):
            raise TypeError(f"compactor must be a ContextCompactor, or None, not {type(compactor).__name__}")
        elif compactor.role != role:
            raise ValueError(f"the compactor is that of {compactor.role!r}, not of {role!r}; give one of the same role")
        elif memory.provider(role) is not compactor:
            raise ValueError(
                "the compactor serves another memory; make it by ContextCompactor.for_role(memory, role, ...)"
            )
        self.memory = memory
        self.role = role
        self.compactor = compactor
        self._offloads = ExplicitOffloads(offloads if offloads is not None else Memory(f"{memory.session_id}/offloads"))
        self._shown: list[_Shown] | None = None
        self._events = CompressionEvents(memory, role)
        compactor.on_event(self._events)
        memory.on_event(self._hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Redacted):
            self._shown = None  # which held the text

    def __enter__(self) -> Self:
        self.compactor.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.compactor.stop()

    # -- messages -----------------------------------------------------------------------------------------------------

    def add_message(self, message: Mapping[str, Any]) -> None:
        """Add one chat message to the log; multi-agent hosts add posts to ``memory`` instead."""
        if self.role != ASSISTANT:
            raise ValueError(f"chat messages have no {self.role!r}; add its posts by memory.add_post()")
        self.memory.append(message)

    def get_messages(self, *, metadata: bool = False) -> list[Message]:
        """Return what the role sees now: header, compaction, and the messages after it as they read now.

        Without a budget: for a prompt that fits, use ``compose``. With *metadata*, which is not for providers, messages
        that do not read as they came have a ``metadata`` with ``_compress_meta``, whose ``offloaduuid`` reloads the
        originals, and with ``_chat_usage`` where a model was asked.
        """
        self._shown = self._now()
        return [self._with_metadata(shown) if metadata else shown.message for shown in self._shown]

    def references(self, index: int) -> tuple[str, ...]:
        """Return what reloads the originals of a message; nothing where it reads as it came.

        The index counts the list that ``get_messages`` gave last, less what was deleted since.
        """
        ref = self._at(index).ref
        return (ref,) if ref else ()

    def _with_metadata(self, shown: _Shown) -> Message:
        if not shown.ref:
            return shown.message
        metadata: dict[str, Any] = {"_compress_meta": {"offloaduuid": shown.ref}}
        if shown.usage is not None:
            metadata["_chat_usage"] = {
                "inputTokens": shown.usage.get("input_tokens", 0),
                "outputTokens": shown.usage.get("output_tokens", 0),
                "time": self._events.seconds(shown.ref),
            }
        return {**shown.message, "metadata": metadata}

    def get_original_memory_msgs(self) -> list[Message]:
        """Return every message as it came, tool calls and results included."""
        return self.memory.messages(self.role)

    def get_interaction_msgs(self) -> list[Message]:
        """Return what the user said and what the role answered the user, as it came: no tool calls, no results."""
        return [message for round_ in self.memory.rounds_getter(self.role)() for message in self._said(round_)]

    def delete_message(self, index: int) -> None:
        """Hide a message from all prompts; the log keeps it. A call goes with its results, a result with its call.

        The index counts the list that ``get_messages`` gave last, less what was deleted since. Raises ``IndexError``,
        and ``NotDeleted`` for a system message, the newest question, a call that waits for its results, a pinned
        message, and what has been reduced since the list was given.
        """
        one = self._at(index)
        self._drop(one, index)
        self._shown = [other for other in self._shown or () if other.group is not one.group]

    def _at(self, index: int) -> _Shown:
        """Return the message at *index* of the list that was given last."""
        if self._shown is None:
            self._shown = self._now()
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"index is the place of a message, a whole number, not {type(index).__name__}")
        if not 0 <= index < len(self._shown):
            raise IndexError(f"there is no message {index}; get_messages() gave {len(self._shown)}, from 0 on")
        return self._shown[index]

    def _view(self) -> View:
        rounds, compaction = self.memory.get_role_rounds(self.role)
        counter = counter_for(self.compactor.config.model)
        return View(rounds, compaction, ledger_of(self.memory, self.role, counter))

    def _now(self) -> list[_Shown]:
        view = self._view()
        shown = [_Shown(from_post(post, self.role)) for post in self.memory.header if sees(self.role, post)]
        if view.compaction is not None:
            message: Message = {"role": "system", "content": view.compaction.to_prompt()}
            covered = view.rounds[: view.end]
            ref = range_reference(covered[0].number, covered[-1].number) if covered else ""
            shown.append(_Shown(message, ref=ref, usage=view.compaction.usage))
        for place in view.places:
            for round_, group in view.groups(place):
                reductions = [one for one in view.reductions.of(round_.id) if one.kind != "dropped"]
                for message, post in zip(group.messages, group.posts, strict=True):
                    number = post.number if post is not None else 0
                    found = next((one for one in reductions if one.covers(number)), None)
                    ref = posts_reference(round_, found.first_number, found.last_number) if found is not None else ""
                    shown.append(_Shown(message, round_, group, ref, found.usage if found is not None else None))
        return shown

    def _drop(self, shown: _Shown, index: int) -> None:
        """Publish what hides the unit of *shown*. Raises ``NotDeleted`` where it has to stay."""
        view = self._view()
        tail = Tail(view)
        one = self._deletable(shown, index, tail)
        live = view.reductions.of(one.round_.id)
        numbers = {number for _, number in one.places}
        covers = [reduction for reduction in live if any(map(reduction.covers, numbers))]
        numbers |= {end for reduction in covers for end in (reduction.first_number, reduction.last_number)}
        first, last = min(numbers), max(numbers)
        others = (other for other in tail.groups if other.round_.id == one.round_.id and other is not one)
        if any(first <= number <= last for other in others for _, number in other.places):
            raise NotDeleted(f"message {index} and its results have other messages among them, which would go as well")
        journal, raw = self.memory.journal(self.role), view.rounds[one.place]
        posts = [post for post in raw.post_list if first <= post.number <= last]
        dropped = Reduction.over(raw, [None, *posts] if first == 0 else posts, "dropped", extra={TOLD: False})
        for reduction in covers:
            if (reduction.first_number, reduction.last_number) == (first, last):
                journal.withdraw(reduction)  # what covers the same posts would have *dropped* ignored
        try:
            published = journal.reduce(dropped, base=journal.read().generation)
        except StaleCompaction as stale:
            raise NotDeleted(
                f"message {index} is covered by now ({stale.reason}); call get_messages() again"
            ) from stale
        if published is None:
            raise NotDeleted(f"message {index} is covered by now; call get_messages() again")

    @staticmethod
    def _deletable(shown: _Shown, index: int, tail: Tail) -> Placed:
        """Return what *shown* is in the tail as it reads now. Raises ``NotDeleted`` where it has to stay."""
        if shown.round_ is None or shown.group is None:
            raise NotDeleted(f"message {index} is a system message or the summary; only what was said can be deleted")
        round_id, ids = shown.round_.id, _ids(shown.group)
        one = next((one for one in tail.groups if one.round_.id == round_id and _ids(one.group) == ids), None)
        if one is None:
            raise NotDeleted(f"message {index} reads otherwise by now; call get_messages() again")
        if one.group.pending:
            raise NotDeleted(f"message {index} waits for a result or an approval; delete it when that has come")
        if tail.view.is_pinned(one.round_, one.group):
            raise NotDeleted(f"message {index} is pinned; unpin it first")
        if one.group.from_user and one.place == tail.asked:
            raise NotDeleted(
                f"message {index} is the newest question, which each prompt asks; it can go behind a newer one"
            )
        return one

    def _said(self, round_: Round) -> Iterator[Message]:
        asked = query_message(round_)
        if asked is not None:
            yield asked
        for place, post in enumerate(round_.post_list):
            if place == 0 and asked is not None and repeats_query(post, round_):
                continue
            answered = post.send_from == self.role and post.send_to == USER and not post.tool_calls
            if post.send_from == USER or answered:
                yield from_post(post, self.role)

    # -- offloads and events ------------------------------------------------------------------------------------------

    def offload(self, ref_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Keep *messages* under *ref_id*. The same ones again: nothing happens.

        Raises ``MessageError`` where *ref_id* has other ones, which stay; where it looks like a place in the log, as
        ``r12.p3`` does; and for what is not a chat message.
        """
        if not isinstance(ref_id, str) or not ref_id or _is_reference(ref_id):
            raise MessageError("an offload's id is any text, but neither empty nor one of the log's own, like r12.p3")
        self._offloads.keep(ref_id, messages)

    def reload(self, ref_id: str) -> list[Message]:
        """Return the messages that were offloaded under *ref_id*, or those at that place in the log, as they came.

        Raises ``UnknownReference``, a ``KeyError``, where there are none that the role may see.
        """
        kept = self._offloads.get(ref_id)
        if kept is None and not _is_reference(ref_id):
            raise UnknownReference(
                f"nothing is offloaded under {ref_id!r:.80}, and it is no place in the log, like r12.p3"
            )
        return kept if kept is not None else self._from_log(ref_id)

    def clear(self, ref_id: str) -> None:
        """Forget what was offloaded under *ref_id*, if anything was; the id may be used again."""
        self._offloads.clear(ref_id)

    def get_offload_context(self) -> dict[str, list[Message]]:
        """Return all that is offloaded now, by its reference: by ``offload()``, and by the six steps from the log."""
        return {ref: self.reload(ref) for ref in (*self._offloads, *self._references())}

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the schemas of the recall tools, in OpenAI's format; their answers come from ``call``.

        ``context_reload`` takes places in the log, and the ids that ``offload`` was given.
        """
        return Recall(self.memory, self.role).tools()

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call of one of the tools: as ``Recall.call`` does, and what is offloaded under
        an id. ``working_context_offload_uuid`` is understood as ``ref``."""
        given = _mapping(arguments)
        if name != "context_reload" or given is None:
            return Recall(self.memory, self.role).call(name, arguments)
        if _OTHER_NAME in given:
            given.setdefault("ref", given.pop(_OTHER_NAME))
        ref = given.get("ref")
        kept = self._offloads.get(ref) if isinstance(ref, str) else None
        if kept is None:
            return Recall(self.memory, self.role).call(name, given)
        aside = Memory("offloaded")
        if not kept or parse(kept[0]).is_header:  # else those would be in no round
            aside.create_round("")
        for message in kept:
            aside.append(message)
        everything = range_reference(1, len(aside.conversation.rounds))
        return Recall(aside, references={str(ref): everything}).call(name, given)

    @property
    def compression_events(self) -> list[CompressionEvent]:
        """What the six steps did in this session, before a restart as well, oldest first."""
        return list(self._events.heard)

    def _references(self) -> Iterator[str]:
        view = self._view()
        if view.compaction is not None and view.end:
            yield range_reference(view.rounds[0].number, view.rounds[view.end - 1].number)
        for place in view.places:
            round_ = view.rounds[place]
            for one in view.reductions.of(round_.id):
                if one.kind != "dropped":
                    yield posts_reference(round_, one.first_number, one.last_number)

    def _from_log(self, ref: str) -> list[Message]:
        return messages_behind(
            self.memory.snapshot.rounds(self.role, include_failed=True), ref, self.role, hide_failed=True
        )


#: What the id of ``context_reload`` is called elsewhere.
_OTHER_NAME = "working_context_offload_uuid"


def _mapping(arguments: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a model's arguments as a dict; None where they are none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None


def _check_offloads(offloads: object, memory: Memory) -> None:
    """Raise ``TypeError`` for what keeps no offloads, and ``ValueError`` for the conversation itself."""
    if not isinstance(offloads, Memory):
        raise TypeError(f"offloads must be a Memory(...) of its own, not {type(offloads).__name__}")
    if offloads.is_same_session(memory):
        raise ValueError(
            f"offloads must be a Memory of its own, not the conversation; give Memory('{memory.session_id}/offloads',"
            " store=...)"
        )


def _is_reference(text: object) -> bool:
    try:
        parsed(text)  # type: ignore[arg-type]
    except (UnknownReference, TypeError):
        return False
    return True


def _ids(group: MessageGroup) -> tuple[tuple[int, str], ...]:
    return tuple((post.number, post.id) if post is not None else (0, "") for post in group.posts)
