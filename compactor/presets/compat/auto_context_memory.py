"""``AutoContextMemory``: one role's side of a Memory, with the methods of the class of that name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from memory import USER, Event, Memory, Recall, Redacted, Reduction, Round
from memory.arguments import require
from memory.errors import ContextError, MessageError, StaleCompaction, StoreError, UnknownReference
from memory.messages import ASSISTANT, SYSTEM, from_post, from_round, make_query_message, parse, repeats_query
from memory.references import make_posts_reference, make_range_reference, parse_reference, reload_messages
from memory.rounds import freeze, thaw
from memory.visibility import sees

from ...background import ContextCompactor
from ...events import Published, Reduced
from ...prompt.groups import TELLS_DROP, Message
from ...prompt.token_cache import get_token_cache
from ...strategies.tail import Tail, TailGroup
from ...timers import interpreter_is_exiting
from ...tokens import get_counter
from ...view import View
from ..auto_context import auto_context
from .messages import check_indices, check_list

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

#: The name of ``context_reload``'s id in prompts of AutoContextMemory.
_OTHER_NAME = "working_context_offload_uuid"
#: The log's name for the events.
_EVENT_NAME = "memory.shortened"
#: Keys in the ``extra`` of a round that holds an offload.
_REF_ID, _MESSAGES = "ref_id", "messages"
#: A message of ``get_messages``; its group, unless it is a system message or the summary; the reference that reloads
#: its originals, empty if it is unchanged; the usage of the model that shortened it.
_Shown = tuple[Message, TailGroup | None, str, Mapping[str, int] | None]


class NotDeleted(ContextError, ValueError):
    """A message is shown as before; the text gives the reason."""


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
        require("memory", memory, Memory, "a Memory, before role; give settings by name, a model as summarizer=")
        require("role", role, str, "the name of an agent, after a Memory; give settings by name")
        own = f"{memory.session_id}/offloads"
        if offloads is None:
            offloads = Memory(own)
        require("offloads", offloads, Memory, "a Memory(...) of its own")
        if offloads.is_same_session(memory):
            raise ValueError(f"offloads are not the conversation; give a Memory of its own: Memory('{own}', store=...)")
        require("compactor", compactor, ContextCompactor | None, "a ContextCompactor, or None")
        if compactor is None:
            compactor = ContextCompactor.for_role(memory, role, **auto_context(**options))
        elif options:
            raise TypeError(f"the compactor is made already; give {', '.join(options)} to auto_context() for that")
        elif compactor.role != role:
            raise ValueError(f"the compactor is that of {compactor.role!r}, not of {role!r}; give one of the same role")
        elif memory.provider(role) is not compactor:
            raise ValueError("the compactor serves another memory; make it by ContextCompactor.for_role(memory, role)")
        self.memory = memory
        self.role = role
        self.compactor = compactor
        self._offloads = offloads
        self._shown: list[_Shown] | None = None
        self._events = [
            CompressionEvent(**{**facts, "timestamp": datetime.fromisoformat(facts["timestamp"])})
            for facts in memory.journal(role).notes(_EVENT_NAME)
        ]
        compactor.on_event(self._record)
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
        return [self._add_metadata(shown) if metadata else shown[0] for shown in self._shown]

    def references(self, index: int) -> tuple[str, ...]:
        """Return the reference that reloads the originals of a message; nothing if it is unchanged.

        *index* counts the list that ``get_messages`` returned last, without messages deleted since.
        """
        _, _, ref, _ = self._find(index)
        return (ref,) if ref else ()

    def _add_metadata(self, shown: _Shown) -> Message:
        message, _, ref, usage = shown
        if not ref:
            return message
        metadata: dict[str, Any] = {"_compress_meta": {"offloaduuid": ref}}
        if usage is not None:
            end = _find_end(ref)
            times = (event.time for event in reversed(self._events) if event.ref and _find_end(event.ref) == end)
            metadata["_chat_usage"] = {
                "inputTokens": usage.get("input_tokens", 0),
                "outputTokens": usage.get("output_tokens", 0),
                "time": next(times, 0.0),
            }
        return {**message, "metadata": metadata}

    def get_original_memory_msgs(self) -> list[Message]:
        """Return every message unchanged, tool calls and results included."""
        return self.memory.messages(self.role)

    def get_interaction_msgs(self) -> list[Message]:
        """Return the user's messages and the role's answers to the user, unchanged: no tool calls, no results."""
        messages: list[Message] = []
        for round_ in self.memory.rounds_getter(self.role)():
            query = make_query_message(round_)
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
        _, group, _, _ = self._find(index)
        if group is None:
            raise NotDeleted(f"message {index} is a system message or the summary; only what was said can be deleted")
        tail = Tail(self._view())
        target = next((one for one in tail.groups if _identify(one) == _identify(group)), None)
        if target is None:
            raise NotDeleted(f"message {index} reads otherwise by now; call get_messages() again")
        if target.group.pending:
            raise NotDeleted(f"message {index} waits for a result or an approval; delete it when that has come")
        if tail.view.is_pinned(target.round_, target.group):
            raise NotDeleted(f"message {index} is pinned; unpin it first")
        if target.group.from_user and target.round_index == tail.view.newest_query:
            raise NotDeleted(f"message {index} is the newest question, which each prompt asks; add a newer one first")
        self._hide(target, tail, index)
        self._shown = [other for other in self._shown or () if other[1] is None or other[1].group is not group.group]

    def _hide(self, target: TailGroup, tail: Tail, index: int) -> None:
        """Publish a reduction that hides *target*. Raises ``NotDeleted`` if it would hide other messages as well."""
        view = tail.view
        numbers = {number for _, number in target.locations}
        covers = [one for one in view.reductions.of(target.round_.id) if any(map(one.covers, numbers))]
        numbers |= {end for one in covers for end in (one.first_number, one.last_number)}
        first, last = min(numbers), max(numbers)
        others = (other for other in tail.groups if other.round_.id == target.round_.id and other is not target)
        if any(first <= number <= last for other in others for _, number in other.locations):
            raise NotDeleted(f"message {index} and its results have other messages among them, which would go as well")
        journal, raw = self.memory.journal(self.role), view.rounds[target.round_index]
        posts = [post for post in raw.post_list if first <= post.number <= last]
        reduction = Reduction.over(raw, [None, *posts] if first == 0 else posts, "dropped", extra={TELLS_DROP: False})
        for one in covers:
            if (one.first_number, one.last_number) == (first, last):
                journal.withdraw(one)  # of two reductions over the same posts, the second would be ignored
        reason = ""
        try:
            published = journal.reduce(reduction, base=journal.read().generation)
        except StaleCompaction as stale:
            published, reason = None, f" ({stale.reason})"
        if published is None:
            raise NotDeleted(f"message {index} is covered by now{reason}; call get_messages() again")

    def _find(self, index: int) -> _Shown:
        """Return the message at *index* of the last list."""
        if self._shown is None:
            self._shown = self._read()
        (place,) = check_indices([index], len(self._shown))
        return self._shown[place]

    def _view(self) -> View:
        rounds, compaction = self.memory.get_role_rounds(self.role)
        return View(
            rounds, compaction, get_token_cache(self.memory, self.role, get_counter(self.compactor.config.model))
        )

    def _read(self) -> list[_Shown]:
        view = self._view()
        shown: list[_Shown] = [
            (from_post(post, self.role), None, "", None) for post in self.memory.header if sees(self.role, post)
        ]
        if view.compaction is not None:
            summary: Message = {"role": "system", "content": view.compaction.to_prompt()}
            shown.append((summary, None, _make_range(view.rounds[: view.end]), view.compaction.usage))
        for place in view.places:
            for round_, group in view.list_groups(place):
                reductions = [one for one in view.reductions.of(round_.id) if one.kind != "dropped"]
                for message, post in zip(group.messages, group.posts, strict=True):
                    number = post.number if post is not None else 0
                    cover = next((one for one in reductions if one.covers(number)), None)
                    ref = make_posts_reference(round_, cover.first_number, cover.last_number) if cover else ""
                    shown.append((message, TailGroup(place, round_, group), ref, cover.usage if cover else None))
        return shown

    # -- offloads: each in a round of a Memory of their own; none is overwritten, also by another process --------------

    def offload(self, ref_id: str, messages: Iterable[Mapping[str, Any]]) -> None:
        """Keep *messages* under *ref_id*; the same ones again change nothing.

        Raises ``MessageError`` if *ref_id* has others, which stay; if it looks like a reference to the log, as
        ``r12.p3`` does; and for a value that is not a chat message.
        """
        if not isinstance(ref_id, str) or not ref_id or _is_reference(ref_id):
            raise MessageError("an offload's id is any text, but neither empty nor one of the log's own, like r12.p3")
        extra = {_REF_ID: ref_id, _MESSAGES: freeze(check_list(messages))}
        round_id, present = self._find_offload(ref_id)
        while present is None:
            try:
                present = self._offloads.create_round("", id=round_id, extra=extra)
                self._offloads.finish_round(present)
            except MessageError:  # another process was faster; its round is known now
                if (present := self._find_offload(ref_id)[1]) is None:
                    raise
        if present.extra[_MESSAGES] != extra[_MESSAGES]:
            raise MessageError("other messages are offloaded under this id; clear() it first, or use another id")

    def reload(self, ref_id: str) -> list[Message]:
        """Return the messages offloaded under *ref_id*, or those at that reference in the log, unchanged.

        Raises ``UnknownReference``, a ``KeyError``, if there are none that the role may see.
        """
        if (round_ := self._find_offload(ref_id)[1]) is not None:
            messages: list[Message] = thaw(round_.extra[_MESSAGES])
            return messages
        if not _is_reference(ref_id):
            raise UnknownReference(f"nothing is offloaded under {ref_id!r:.80}, and it is no place in the log (r12.p3)")
        rounds = self.memory.snapshot.get_rounds(self.role, include_hidden=True)
        return reload_messages(rounds, ref_id, self.role)

    def clear(self, ref_id: str) -> None:
        """Forget the offload under *ref_id*, if any; the id may be used again."""
        if (round_ := self._find_offload(ref_id)[1]) is not None:
            self._offloads.finish_round(round_, state="failed")

    def get_offload_context(self) -> dict[str, list[Message]]:
        """Return all offloaded messages by reference: those of ``offload()``, and those of the six steps."""
        rounds = self._offloads.rounds_getter("")()
        refs = [round_.extra[_REF_ID] for round_ in rounds if _REF_ID in round_.extra]
        refs += (ref for _, _, ref, _ in self._read() if ref)
        return {ref: self.reload(ref) for ref in refs}

    def _find_offload(self, ref_id: object) -> tuple[str, Round | None]:
        """Return the id of the round for *ref_id*, and the round if it exists. A cleared round stays in the log as
        failed, and the next has another id."""
        place = 1
        while True:
            round_id = json.dumps([ref_id, place]) if isinstance(ref_id, str) else ""
            round_ = self._offloads.snapshot.find_round(round_id)
            if round_ is None or round_.state != "failed":
                return round_id, round_
            place += 1

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the schemas of the recall tools in OpenAI's format; ``call`` answers them.

        ``context_reload`` takes references to the log, and the ids of ``offload``.
        """
        return Recall(self.memory, self.role).tools()

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call: that of ``Recall.call``, or an offload. The argument
        ``working_context_offload_uuid`` means ``ref``."""
        given = arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                given = json.loads(arguments)
        if name != "context_reload" or not isinstance(given, Mapping):
            return Recall(self.memory, self.role).call(name, arguments)
        given = dict(given)
        if _OTHER_NAME in given:
            given.setdefault("ref", given.pop(_OTHER_NAME))
        ref = given.get("ref")
        if self._find_offload(ref)[1] is None:
            return Recall(self.memory, self.role).call(name, given)
        messages, offloaded = self.reload(str(ref)), Memory("offloaded")
        if not messages or parse(messages[0]).send_from in SYSTEM:  # else these messages would be in no round
            offloaded.create_round("")
        for message in messages:
            offloaded.append(message)
        everything = make_range_reference(1, len(offloaded.conversation.rounds))
        return Recall(offloaded, references={str(ref): everything}).call(name, given)

    # -- what the six steps did ----------------------------------------------------------------------------------------

    @property
    def compression_events(self) -> list[CompressionEvent]:
        """All events of the six steps in this session, oldest first, also of earlier processes."""
        return list(self._events)

    def _record(self, event: Event) -> None:
        """Keep a compactor's event as a compression event, in the log as well."""
        if isinstance(event, Reduced):
            round_ = self.memory.snapshot.find_round(event.round_id)
            assert round_ is not None  # noqa: S101  (a reduction in it has just been published)
            numbers = {"": 0} | {post.id: post.number for post in round_.post_list}
            ref = make_posts_reference(round_, numbers[event.first_post_id], numbers[event.last_post_id])
            count, before, behind = event.posts, event.previous_post_id or None, event.next_post_id or None
        elif isinstance(event, Published):
            rounds = self.memory.rounds_getter(self.role)()
            end = rounds.find_end(event.last_round_id) or 0
            start = max((rounds.find_end(event.first_round_id) or 0) - 1, 0)
            covered = rounds[start:end]
            ref, count = _make_range(covered), sum(len(list(from_round(round_, self.role))) for round_ in covered)
            before = next((post.id for post in rounds[start - 1].post_list[-1:]), None) if start else None
            behind = next((post.id for post in rounds[end].post_list[:1]), None) if end < len(rounds) else None
        else:
            return
        usage = event.usage or {}
        new = CompressionEvent(
            event_type=event.strategy.upper(),
            timestamp=event.at,
            compressed_message_count=count,
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
        self._events.append(new)
        if not interpreter_is_exiting():
            with suppress(StoreError):  # this object still has it
                self.memory.journal(self.role).note(_EVENT_NAME, asdict(new) | {"timestamp": new.timestamp.isoformat()})


def _identify(placed: TailGroup) -> tuple[str, list[tuple[int, str]]]:
    return placed.round_.id, [(post.number, post.id) if post is not None else (0, "") for post in placed.group.posts]


def _is_reference(text: object) -> bool:
    try:
        parse_reference(text)  # type: ignore[arg-type]
    except (UnknownReference, TypeError):
        return False
    return True


def _make_range(rounds: Sequence[Round]) -> str:
    return make_range_reference(rounds[0].number, rounds[-1].number) if rounds else ""


def _find_end(text: str) -> tuple[int, int | None, int | None]:
    """Return the end of a reference. A compaction's event names only the newly covered rounds, and the shown summary
    all, so the two have only their end in common."""
    ref = parse_reference(text)
    return ref.last, ref.first_post, ref.last_post
