"""``AutoContextMemory``: one role's side of a Memory, with the methods of the class of that name.

Behind it stand the events of the six steps, and the offloads of the host.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from memory import Memory, Recall
from memory.errors import ContextError, MessageError, StaleCompaction, StoreError, UnknownReference
from memory.events import Event, Redacted
from memory.messages import ASSISTANT, SYSTEM, from_post, from_round, parse, query_message, repeats_query
from memory.overlays import Reduction
from memory.references import Reference, messages_behind, parse_reference, posts_reference, range_reference
from memory.rounds import USER, Round, freeze, thaw
from memory.visibility import sees

from ...background import ContextCompactor
from ...events import Published, Reduced
from ...prompt.accounting import ledger_of
from ...prompt.groups import TOLD, Message, MessageGroup
from ...strategies.tail import Tail, TailGroup
from ...timers import interpreter_is_exiting
from ...tokens import counter_for
from ...view import View
from ..auto_context import auto_context

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

#: The name of ``context_reload``'s id in prompts of AutoContextMemory.
_OTHER_NAME = "working_context_offload_uuid"
#: The log's name for the events.
_EVENT_NAME = "memory.shortened"
#: Keys in the ``extra`` of a round that holds an offload.
_REF_ID, _MESSAGES = "ref_id", "messages"


class NotDeleted(ContextError, ValueError):
    """A message is shown as before; the text gives the reason."""


@dataclass(frozen=True)
class _Shown:
    """A message of ``get_messages`` and its origin; a system message has no round."""

    message: Message
    round_: Round | None = None
    group: MessageGroup | None = None
    #: Reloads the originals; empty if the message is unchanged.
    ref: str = ""
    usage: Mapping[str, int] | None = None


class AutoContextMemory:
    """One role's side of a Memory, with the methods of AutoContextMemory.

    *options* are those of ``auto_context``; or pass a *compactor* of the role. Nothing runs before
    ``compactor.start()`` or ``with``. ``offload()`` writes to *offloads*, a Memory of its own: on a lasting store it
    outlives the process; the default one does not.
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
        memory.on_event(self._forget_redacted)

    def _forget_redacted(self, event: Event) -> None:
        if isinstance(event, Redacted):
            self._shown = None  # it may hold the text

    def __enter__(self) -> Self:
        self.compactor.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.compactor.stop()

    # -- messages -----------------------------------------------------------------------------------------------------

    def add_message(self, message: Mapping[str, Any]) -> None:
        """Add one chat message to the log. Hosts with several agents add posts to ``memory`` instead."""
        if self.role != ASSISTANT:
            raise ValueError(f"chat messages have no {self.role!r}; add its posts by memory.add_post()")
        self.memory.append(message)

    def get_messages(self, *, metadata: bool = False) -> list[Message]:
        """Return the messages that the role sees now: header, compaction and tail, with all reductions applied.

        They are not cut to a budget, as ``compose`` does. With *metadata*, a changed message has a ``metadata``, which
        providers refuse: ``_compress_meta`` with the ``offloaduuid`` that reloads the originals, and ``_chat_usage`` if
        a model was asked.
        """
        self._shown = self._read()
        return [self._add_metadata(shown) if metadata else shown.message for shown in self._shown]

    def references(self, index: int) -> tuple[str, ...]:
        """Return the reference that reloads the originals of a message; nothing if it is unchanged.

        *index* counts the list that ``get_messages`` returned last, without messages deleted since.
        """
        ref = self._find(index).ref
        return (ref,) if ref else ()

    def _add_metadata(self, shown: _Shown) -> Message:
        if not shown.ref:
            return shown.message
        metadata: dict[str, Any] = {"_compress_meta": {"offloaduuid": shown.ref}}
        if shown.usage is not None:
            metadata["_chat_usage"] = {
                "inputTokens": shown.usage.get("input_tokens", 0),
                "outputTokens": shown.usage.get("output_tokens", 0),
                "time": self._events.find_seconds(shown.ref),
            }
        return {**shown.message, "metadata": metadata}

    def get_original_memory_msgs(self) -> list[Message]:
        """Return every message unchanged, tool calls and results included."""
        return self.memory.messages(self.role)

    def get_interaction_msgs(self) -> list[Message]:
        """Return the user's messages and the role's answers to the user, unchanged: no tool calls, no results."""
        messages: list[Message] = []
        for round_ in self.memory.rounds_getter(self.role)():
            query = query_message(round_)
            messages += [query] if query is not None else []
            for place, post in enumerate(round_.post_list):
                if place == 0 and query is not None and repeats_query(post, round_):
                    continue
                answers = post.send_from == self.role and post.send_to == USER and not post.tool_calls
                if post.send_from == USER or answers:
                    messages.append(from_post(post, self.role))
        return messages

    def delete_message(self, index: int) -> None:
        """Hide a message from all prompts; the log keeps it. A call and its results are hidden together.

        *index* counts the list that ``get_messages`` returned last, without messages deleted since. Raises
        ``IndexError``, and ``NotDeleted`` for a system message, the newest question, a call that waits for its results,
        a pinned message, and a message that was reduced since the list was returned.
        """
        shown = self._find(index)
        self._drop(shown, index)
        self._shown = [other for other in self._shown or () if other.group is not shown.group]

    def _find(self, index: int) -> _Shown:
        """Return the message at *index* of the last list."""
        if self._shown is None:
            self._shown = self._read()
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"index is the place of a message, a whole number, not {type(index).__name__}")
        if not 0 <= index < len(self._shown):
            raise IndexError(f"there is no message {index}; get_messages() gave {len(self._shown)}, from 0 on")
        return self._shown[index]

    def _view(self) -> View:
        rounds, compaction = self.memory.get_role_rounds(self.role)
        counter = counter_for(self.compactor.config.model)
        return View(rounds, compaction, ledger_of(self.memory, self.role, counter))

    def _read(self) -> list[_Shown]:
        view = self._view()
        shown = [_Shown(from_post(post, self.role)) for post in self.memory.header if sees(self.role, post)]
        if view.compaction is not None:
            summary: Message = {"role": "system", "content": view.compaction.to_prompt()}
            covered = view.rounds[: view.end]
            ref = range_reference(covered[0].number, covered[-1].number) if covered else ""
            shown.append(_Shown(summary, ref=ref, usage=view.compaction.usage))
        for place in view.places:
            for round_, group in view.groups(place):
                reductions = [one for one in view.reductions.of(round_.id) if one.kind != "dropped"]
                for message, post in zip(group.messages, group.posts, strict=True):
                    number = post.number if post is not None else 0
                    cover = next((one for one in reductions if one.covers(number)), None)
                    ref = posts_reference(round_, cover.first_number, cover.last_number) if cover is not None else ""
                    shown.append(_Shown(message, round_, group, ref, cover.usage if cover is not None else None))
        return shown

    def _drop(self, shown: _Shown, index: int) -> None:
        """Publish a reduction that hides the group of *shown*. Raises ``NotDeleted`` if it has to stay."""
        view = self._view()
        tail = Tail(view)
        target = self._find_deletable(shown, index, tail)
        numbers = {number for _, number in target.places}
        covers = [one for one in view.reductions.of(target.round_.id) if any(map(one.covers, numbers))]
        numbers |= {end for one in covers for end in (one.first_number, one.last_number)}
        first, last = min(numbers), max(numbers)
        others = (other for other in tail.groups if other.round_.id == target.round_.id and other is not target)
        if any(first <= number <= last for other in others for _, number in other.places):
            raise NotDeleted(f"message {index} and its results have other messages among them, which would go as well")
        journal, raw = self.memory.journal(self.role), view.rounds[target.place]
        posts = [post for post in raw.post_list if first <= post.number <= last]
        dropped = Reduction.over(raw, [None, *posts] if first == 0 else posts, "dropped", extra={TOLD: False})
        for one in covers:
            if (one.first_number, one.last_number) == (first, last):
                journal.withdraw(one)  # of two reductions over the same posts, the second would be ignored
        try:
            published = journal.reduce(dropped, base=journal.read().generation)
        except StaleCompaction as stale:
            raise NotDeleted(
                f"message {index} is covered by now ({stale.reason}); call get_messages() again"
            ) from stale
        if published is None:
            raise NotDeleted(f"message {index} is covered by now; call get_messages() again")

    @staticmethod
    def _find_deletable(shown: _Shown, index: int, tail: Tail) -> TailGroup:
        """Return *shown* in the current tail. Raises ``NotDeleted`` if it has to stay."""
        if shown.round_ is None or shown.group is None:
            raise NotDeleted(f"message {index} is a system message or the summary; only what was said can be deleted")
        round_id, ids = shown.round_.id, _identify(shown.group)
        same = (one for one in tail.groups if one.round_.id == round_id and _identify(one.group) == ids)
        target = next(same, None)
        if target is None:
            raise NotDeleted(f"message {index} reads otherwise by now; call get_messages() again")
        if target.group.pending:
            raise NotDeleted(f"message {index} waits for a result or an approval; delete it when that has come")
        if tail.view.is_pinned(target.round_, target.group):
            raise NotDeleted(f"message {index} is pinned; unpin it first")
        if target.group.from_user and target.place == tail.asked:
            raise NotDeleted(
                f"message {index} is the newest question, which each prompt asks; it can go behind a newer one"
            )
        return target

    # -- offloads and events ------------------------------------------------------------------------------------------

    def offload(self, ref_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Keep *messages* under *ref_id*; the same ones again change nothing.

        Raises ``MessageError`` if *ref_id* has others, which stay; if it looks like a reference to the log, as
        ``r12.p3`` does; and for a value that is not a chat message.
        """
        if not isinstance(ref_id, str) or not ref_id or _is_reference(ref_id):
            raise MessageError("an offload's id is any text, but neither empty nor one of the log's own, like r12.p3")
        self._offloads.add(ref_id, messages)

    def reload(self, ref_id: str) -> list[Message]:
        """Return the messages offloaded under *ref_id*, or those at that reference in the log, unchanged.

        Raises ``UnknownReference``, a ``KeyError``, if there are none that the role may see.
        """
        kept = self._offloads.get(ref_id)
        if kept is not None:
            return kept
        if not _is_reference(ref_id):
            raise UnknownReference(
                f"nothing is offloaded under {ref_id!r:.80}, and it is no place in the log, like r12.p3"
            )
        rounds = self.memory.snapshot.rounds(self.role, include_failed=True)
        return messages_behind(rounds, ref_id, self.role, hide_failed=True)

    def clear(self, ref_id: str) -> None:
        """Forget the offload under *ref_id*, if any; the id may be used again."""
        self._offloads.clear(ref_id)

    def get_offload_context(self) -> dict[str, list[Message]]:
        """Return all offloaded messages by reference: those of ``offload()``, and those of the six steps."""
        refs, view = list(self._offloads), self._view()
        if view.compaction is not None and view.end:
            refs.append(range_reference(view.rounds[0].number, view.rounds[view.end - 1].number))
        for place in view.places:
            round_ = view.rounds[place]
            refs += (
                posts_reference(round_, one.first_number, one.last_number)
                for one in view.reductions.of(round_.id)
                if one.kind != "dropped"
            )
        return {ref: self.reload(ref) for ref in refs}

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the schemas of the recall tools in OpenAI's format; ``call`` answers them.

        ``context_reload`` takes references to the log, and the ids of ``offload``.
        """
        return Recall(self.memory, self.role).tools()

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call: that of ``Recall.call``, or an offload. The argument
        ``working_context_offload_uuid`` means ``ref``."""
        given = _parse_arguments(arguments)
        if name != "context_reload" or given is None:
            return Recall(self.memory, self.role).call(name, arguments)
        if _OTHER_NAME in given:
            given.setdefault("ref", given.pop(_OTHER_NAME))
        ref = given.get("ref")
        kept = self._offloads.get(ref) if isinstance(ref, str) else None
        if kept is None:
            return Recall(self.memory, self.role).call(name, given)
        offloaded = Memory("offloaded")
        if not kept or parse(kept[0]).send_from in SYSTEM:  # else these messages would be in no round
            offloaded.create_round("")
        for message in kept:
            offloaded.append(message)
        everything = range_reference(1, len(offloaded.conversation.rounds))
        return Recall(offloaded, references={str(ref): everything}).call(name, given)

    @property
    def compression_events(self) -> list[CompressionEvent]:
        """All events of the six steps in this session, oldest first, also of earlier processes."""
        return list(self._events.events)


def _identify(group: MessageGroup) -> tuple[tuple[int, str], ...]:
    return tuple((post.number, post.id) if post is not None else (0, "") for post in group.posts)


def _parse_arguments(arguments: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a model's arguments as a dict; None if they are not one."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None


def _check_offloads(offloads: object, memory: Memory) -> None:
    """Raise ``TypeError`` for anything but a Memory, and ``ValueError`` for the conversation itself."""
    if not isinstance(offloads, Memory):
        raise TypeError(f"offloads must be a Memory(...) of its own, not {type(offloads).__name__}")
    if offloads.is_same_session(memory):
        raise ValueError(
            f"offloads must be a Memory of its own, not the conversation; give Memory('{memory.session_id}/offloads',"
            " store=...)"
        )


def _is_reference(text: object) -> bool:
    try:
        parse_reference(text)  # type: ignore[arg-type]
    except (UnknownReference, TypeError):
        return False
    return True


# --- what the six steps did -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionEvent:
    """One compression, in the fields of AutoContextMemory."""

    #: One of ``auto_context.STEPS``, in capitals.
    event_type: str
    timestamp: datetime
    #: How many messages became shorter.
    compressed_message_count: int
    #: Ids of the posts before and behind them; None at the end of the round or the log.
    previous_message_id: str | None
    next_message_id: str | None
    #: Reloads the originals.
    ref: str
    token_before: int
    token_after: int
    #: The summarizer's own count; 0 if none was asked, or it did not say.
    compress_input_token: int = 0
    compress_output_token: int = 0
    #: Seconds.
    time: float = 0.0
    model: str | None = None

    @property
    def token_reduction(self) -> int:
        return self.token_before - self.token_after

    @property
    def compressed_message_id(self) -> str:
        """The same as ``ref``."""
        return self.ref

    @property
    def metadata(self) -> dict[str, Any]:
        """The numbers under AutoContextMemory's names."""
        return {
            "inputToken": self.compress_input_token,
            "outputToken": self.compress_output_token,
            "time": self.time,
            "tokenBefore": self.token_before,
            "tokenAfter": self.token_after,
        }


class CompressionEvents:
    """Turns a compactor's events into compression events, and keeps them in the log, which may hold earlier ones."""

    def __init__(self, memory: Memory, role: str) -> None:
        self._memory = memory
        self._role = role
        self._journal = memory.journal(role)
        #: Oldest first.
        self.events = [
            CompressionEvent(**{**facts, "timestamp": datetime.fromisoformat(facts["timestamp"])})
            for facts in self._journal.notes(_EVENT_NAME)
        ]

    def __call__(self, event: Event) -> None:
        match event:
            case Reduced():
                self._add(event, *self._describe_reduction(event))
            case Published():
                self._add(event, *self._describe_compaction(event))

    def find_seconds(self, ref: str) -> float:
        """Return how long the compression at *ref* took; 0.0 if no event says."""
        end = _find_end(parse_reference(ref))
        newest = (
            event.time for event in reversed(self.events) if event.ref and _find_end(parse_reference(event.ref)) == end
        )
        return next(newest, 0.0)

    def _describe_reduction(self, event: Reduced) -> tuple[int, str | None, str | None, str]:
        """Return the number of messages, the ids of the posts before and behind them, and their reference."""
        round_ = self._memory.snapshot.round(event.round_id)
        assert round_ is not None  # noqa: S101  (a reduction in it has just been published)
        numbers = {"": 0} | {post.id: post.number for post in round_.post_list}
        ref = posts_reference(round_, numbers[event.first_post_id], numbers[event.last_post_id])
        return event.posts, event.previous_post_id or None, event.next_post_id or None, ref

    def _describe_compaction(self, event: Published) -> tuple[int, str | None, str | None, str]:
        rounds = self._memory.rounds_getter(self._role)()
        end = rounds.end_of(event.last_round_id) or 0
        start = max((rounds.end_of(event.first_round_id) or 0) - 1, 0)
        covered = rounds[start:end]
        before = rounds[start - 1].post_list[-1:] if start else ()
        behind = rounds[end].post_list[:1] if end < len(rounds) else ()
        return (
            sum(len(list(from_round(round_, self._role))) for round_ in covered),
            before[0].id if before else None,
            behind[0].id if behind else None,
            range_reference(covered[0].number, covered[-1].number) if covered else "",
        )

    def _add(self, event: Reduced | Published, messages: int, before: str | None, behind: str | None, ref: str) -> None:
        usage = event.usage or {}
        new = CompressionEvent(
            event_type=event.strategy.upper(),
            timestamp=event.at,
            compressed_message_count=messages,
            previous_message_id=before,
            next_message_id=behind,
            ref=ref,
            token_before=event.tokens_before,
            token_after=event.tokens_after,
            compress_input_token=usage.get("input_tokens", 0),
            compress_output_token=usage.get("output_tokens", 0),
            time=event.seconds,
            model=event.model,
        )
        self.events.append(new)
        if not interpreter_is_exiting():
            with suppress(StoreError):  # this object still has it
                self._journal.note(_EVENT_NAME, asdict(new) | {"timestamp": new.timestamp.isoformat()})


def _find_end(ref: Reference) -> tuple[int, int | None, int | None]:
    """Return the end of *ref*. A compaction's event names only the newly covered rounds, and the shown summary all, so
    the two have only their end in common."""
    return ref.last, ref.first_post, ref.last_post


# --- messages that the host takes out of the conversation -------------------------------------------------------------


class ExplicitOffloads:
    """Messages by id, each in a round of a Memory of their own; none is overwritten, also by another process."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __iter__(self) -> Iterator[str]:
        """Yield the current ids, oldest first."""
        return (round_.extra[_REF_ID] for round_ in self._memory.rounds_getter("")() if _REF_ID in round_.extra)

    def add(self, ref_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Keep *messages* under *ref_id*; the same ones again change nothing.

        Raises ``MessageError`` if *ref_id* has others, which stay, and for a value that is not a chat message.
        """
        if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
            raise MessageError(f"an offload is a list of chat messages, not {type(messages).__name__}")
        given = list(messages)
        for message in given:
            parse(message)
        kept = freeze(given)
        while True:
            round_id, present = self._find_round(ref_id)
            if present is not None:
                if present.extra[_MESSAGES] == kept:
                    return
                raise MessageError("other messages are offloaded under this id; clear() it first, or use another id")
            try:
                new = self._memory.create_round("", id=round_id, extra={_REF_ID: ref_id, _MESSAGES: kept})
            except MessageError:  # another process was faster; its round is known now
                if self._find_round(ref_id)[1] is None:
                    raise
            else:
                self._memory.finish_round(new)
                return

    def get(self, ref_id: object) -> list[Message] | None:
        """Return the messages under *ref_id*; None if there are none."""
        round_ = self._find_round(ref_id)[1] if isinstance(ref_id, str) else None
        return thaw(round_.extra[_MESSAGES]) if round_ is not None else None

    def clear(self, ref_id: object) -> None:
        """Hide the messages under *ref_id*, if any; the id may be used again."""
        round_ = self._find_round(ref_id)[1] if isinstance(ref_id, str) else None
        if round_ is not None:
            self._memory.finish_round(round_, state="failed")

    def _find_round(self, ref_id: str) -> tuple[str, Round | None]:
        """Return the id of the round for *ref_id*, and the round if it exists. A cleared round stays in the log as
        failed, and the next has another id."""
        place = 1
        while True:
            round_id = json.dumps([ref_id, place])
            round_ = self._memory.snapshot.round(round_id)
            if round_ is None or round_.state != "failed":
                return round_id, round_
            place += 1
