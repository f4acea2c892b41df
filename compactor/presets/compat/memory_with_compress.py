"""``MemoryWithCompress`` as its users know it, over a log that keeps everything; and the same in the background."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, NoReturn

from pydantic import BaseModel

from memory import Memory
from memory.errors import ContextError, StoreError
from memory.events import Event
from memory.hooks import renewed_after_fork
from memory.messages import ASSISTANT, parse
from memory.overlays import CompactedMessage
from memory.rounds import Round, freeze_mapping, thaw

from ...acceptance.checks import Source
from ...acceptance.prohibitions import standing_sentences
from ...config import CompactorConfig, ConfigError
from ...errors import SummaryRejected
from ...prompt.groups import PROMPT_TOKENS, Message, count_message
from ...strategies import compact_rounds, compress_tool_runs
from ...strategies.incremental import Saving
from ...summarize import TOO_LONG, accepted, traits_of
from ...summarizers import ExtractiveSummarizer, Summarizer, SummarizerError, SummaryRequest
from ...tokens import TokenCounter, count_tokens
from ...transcript import quote
from ...triggers import over_tokens, when
from ...view import View
from ..options import check_function, given_config
from .message_storage import ChatHistoryStorage, MemoryStorage, MessageStorage
from .pairs import blocks, end_of_answered, is_orphan, stretches, waits
from .shown import Item, Made, NotAMessage, Shown, Window, originals, places_of, references, to_messages
from .shown_state import State, encoded, encoded_beside
from .structured import is_told_target, structured

CompressFunc = Callable[[list[Message]], "Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]"]
TriggerFunc = Callable[[list[Message]], "bool | Awaitable[bool]"]
FilterFunc = Callable[[int, Message], "bool | Awaitable[bool]"]
Part = Literal["past", "work"]
Reason = Literal["failed", "no_progress", "stale", "over_limit"]

#: The memories within whose compression this code runs.
_COMPRESSED: ContextVar[tuple[object, ...]] = ContextVar("_COMPRESSED", default=())
_OPENED, _CLOSED = "<compressed_memory>", "</compressed_memory>"
_TAG = re.compile(r"<(?=\s*+(?:/\s*+)?compressed_memory\b)", re.IGNORECASE)
#: In tokens: of a summary, and of the sentences in which the user forbade something and which it lost.
_MIN_TARGET, _MIN_ROOM = 16, 64


#: What there is here for what the class of that name elsewhere is given.
_INSTEAD = {
    "formatter": ": messages have one form, OpenAI's; leave it out",
    "chat_history_storage": ": give memory=Memory(session, store=...), whose log keeps every message",
    "memory_storage": ": give memory=Memory(session, store=...), whose log keeps what is shown as well",
}


class CompressionFailed(ContextError, ValueError):
    """What should stand for the messages cannot; what is shown is as it was, and the next reading tries again."""


class MemoryCompressed(Event):
    """Messages were replaced by shorter ones in what is shown."""

    name: ClassVar[str] = "memory.compressed"
    #: ``past``: what lies before the open question. ``work``: what was done about it.
    part: Part
    messages_before: int
    messages_after: int
    #: Of the messages that were replaced, and of those that stand there now: by the token counter, or in characters.
    size_before: int
    size_after: int
    seconds: float
    #: The check that the summarizer's last answer failed, where its answers were too long and the text was extracted
    #: offline instead.
    check: str | None = None


class NotCompressed(Event):
    """What is shown stayed as it was, or longer than it should be."""

    name: ClassVar[str] = "memory.not_compressed"
    level: ClassVar[str] = "warning"
    #: ``failed``; ``no_progress``: what came is no shorter; ``stale``: what it was made from is no longer shown;
    #: ``over_limit``: what may not be compressed is over the limit by itself.
    reason: Reason
    size: int
    limit: int
    #: The class of the error, or the check that the summarizer's last answer failed.
    error: str | None = None


class NotKept(Event):
    """The store failed: what is shown is as it is, and is written with the next change."""

    name: ClassVar[str] = "memory.not_kept"
    level: ClassVar[str] = "warning"
    #: The class of the error.
    error: str


class MemoryWithCompress:
    """A conversation that is compressed when it is read and longer than *max_token*.

    ``memory`` is the log and keeps every message that was added: compressed and deleted ones too, behind the references
    that ``references`` gives. Messages are in OpenAI's format; those that a host appends to ``memory`` are shown as
    well. The log also keeps what is shown: made anew over the same session, it hides what was hidden, shows what was
    compressed, and pays for nothing twice.

    *token_counter* counts messages (an object with ``count(messages)``) or texts (any ``TokenCounter``); without one,
    the size is the length of the messages as JSON. *compress_func* gets the messages to replace and returns those that
    stand for them; without one, *summarizer* makes one user message, offline where there is no summarizer either: then
    no prompt is read. *model* is another name of *summarizer*. *compression_trigger_func* gets all shown messages.
    ``count`` and both functions may be async; a summarizer is not, and may wait: *compress_func* and the summarizer
    are called in a thread.
    Safe to use from several tasks and threads.
    """

    def __init__(
        self,
        max_token: int = 28_000,
        token_counter: Any = None,
        compress_func: CompressFunc | None = None,
        compression_trigger_func: TriggerFunc | None = None,
        compression_on_add: bool = False,
        compression_on_get: bool = True,
        customized_compression_prompt: str | None = None,
        *,
        summarizer: object | None = None,
        model: object | None = None,
        schema: type[BaseModel] | None = None,
        memory: Memory | None = None,
        **elsewhere: object,
    ) -> None:
        for name in elsewhere:
            raise TypeError(f"MemoryWithCompress takes no {name}{_INSTEAD.get(name, '')}")
        if summarizer is not None and model is not None:
            raise TypeError("model is another name of summarizer; give one of the two")
        if memory is not None and not isinstance(memory, Memory):
            raise ConfigError(("memory", f"must be a Memory(...), not {type(memory).__name__}"))
        check_counter(token_counter)
        check_function("compress_func", compress_func)
        check_function("compression_trigger_func", compression_trigger_func)
        asked = summarizer if model is None else model
        self._ask = structured(asked, customized_compression_prompt, schema, max_token)
        self.memory = memory if memory is not None else Memory()
        self.max_token = max_token
        self.token_counter = token_counter
        self.compress_func = compress_func
        self.compression_trigger_func = compression_trigger_func
        self.compression_on_add = compression_on_add
        self.compression_on_get = compression_on_get
        self._window = Window(self.memory)
        self._unkept = False  # whether the store failed to take what is shown
        self._after_fork()
        renewed_after_fork(self)

    def _after_fork(self) -> None:
        # One add(), load_state_dict() or clear() at a time: so calls and results stay together, and so does a history.
        self._adding = threading.RLock()

    # -- what its users call ------------------------------------------------------------------------------------------

    async def add(
        self,
        messages: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None,
        compress_func: CompressFunc | None = None,
        compression_trigger_func: TriggerFunc | None = None,
    ) -> None:
        """Add one message or several, all of them or none. Raises ``NotAMessage``, a ``TypeError``.

        With ``compression_on_add`` it compresses where that is due; if that raises, the messages are stored already.
        """
        check_function("compress_func", compress_func)
        check_function("compression_trigger_func", compression_trigger_func)
        if messages is None:
            return
        new = to_messages(messages)
        with self._adding:
            for message in new:
                self.memory.append(message)
        if self.compression_on_add:
            await self._compress_while_due(compress_func, compression_trigger_func)

    async def get_memory(
        self,
        recent_n: int | None = None,
        filter_func: FilterFunc | None = None,
        compress_func: CompressFunc | None = None,
        compression_trigger_func: TriggerFunc | None = None,
    ) -> list[Message]:
        """Return what is shown: those for which ``filter_func(index, message)`` is true, the newest *recent_n* of them.

        Compresses first where that is due; raises ``CompressionFailed``, and what *compress_func* and the summarizer
        raise, with everything as it was. A summarizer whose answer is too long is asked again; where that is no use,
        the text is extracted offline, or all stays as it was, and an event tells of the check.

        A call whose result the filter leaves out is left out too, and the reverse; where *recent_n* would part a result
        from its call, the call comes with it.
        """
        for name, func in (
            ("filter_func", filter_func),
            ("compress_func", compress_func),
            ("compression_trigger_func", compression_trigger_func),
        ):
            check_function(name, func)
        if recent_n is not None and (isinstance(recent_n, bool) or not isinstance(recent_n, int)):
            raise TypeError(f"recent_n is a whole number, or None for all messages, not {recent_n!r}")
        if self.compression_on_get:
            await self._compress_while_due(compress_func, compression_trigger_func)
        messages = self.shown()
        if filter_func is not None:
            given = [(at, copy.deepcopy(message)) for at, message in enumerate(messages)]
            refused = {one[0] for one in given if not await _called(filter_func, *one)}
            paired = zip(messages, blocks(messages), strict=True)
            messages = [message for message, block in paired if not block & refused]
        return messages if recent_n is None or recent_n <= 0 else _newest(messages, recent_n)

    async def check_and_compress(
        self,
        compress_func: CompressFunc | None = None,
        compression_trigger_func: TriggerFunc | None = None,
        memory: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Message]]:
        """Compress where that is due, whatever ``compression_on_get`` says; return whether anything was, and what is
        shown. Of *memory*, where it is given, and then neither the log nor what is shown changes."""
        if memory is None:
            return await self._compress_while_due(compress_func, compression_trigger_func), self.shown()
        other = MemoryWithCompress(
            self.max_token,
            self.token_counter,
            self.compress_func,
            self.compression_trigger_func,
            summarizer=self._ask,
        )
        await other.add(memory)
        return await other.check_and_compress(compress_func, compression_trigger_func)

    async def retrieve(self, *_args: object, **_options: object) -> NoReturn:
        """Raises ``NotImplementedError``, as there: ``get_memory`` returns what is shown."""
        raise NotImplementedError("retrieve() finds nothing here; get_memory() returns what is shown")

    def shown(self) -> list[Message]:
        """Return what is shown as it is, and compress nothing."""
        return [one.message for one in self._window.now()]

    def keep(self) -> None:
        """Write what is shown, where the store did not take it before. Raises ``StoreError``."""
        if self._unkept:
            self._window.keep()
            self._unkept = False

    def history(self) -> list[Message]:
        """Return all messages since the last ``clear``, as they were added."""
        log = self._window.log()
        return [message for item in self._window.history(log) if (message := log.message(item)) is not None]

    @property
    def chat_history_storage(self) -> MessageStorage:
        """What was said, as a storage."""
        return ChatHistoryStorage(self)

    @property
    def memory_storage(self) -> MessageStorage:
        """What is shown, as a storage."""
        return MemoryStorage(self)

    async def direct_update_memory(self, messages: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None) -> None:
        """Show *messages* instead of what is shown. The log stays; ``direct_updates`` keeps what is not in it."""
        if messages is None:
            return
        new = to_messages(messages)
        with self._window.changing(), self._window.lock:
            log = self._window.log()
            known = [*self._window.now(log), *(Shown(place, log.message(place) or {}) for place in log.places())]
            items: list[Item] = []
            for message in new:
                same = next((one.item for one in known if one.message == message and one.item not in items), None)
                if same is None:
                    same = Made(freeze_mapping(message))
                    self._window.direct = (*self._window.direct, same)
                items.append(same)
            self._window.show(items, log)

    async def delete(self, indices: Iterable[int] | int) -> None:
        """Show the messages at *indices* no more; a call goes with its results. They stay in the log.

        Raises ``IndexError`` where there is no such message, and ``StoreError``; nothing is deleted then.
        """
        with self._window.changing(), self._window.lock:
            log = self._window.log()
            shown = self._window.now(log)
            gone = _places(indices, len(shown))
            block = blocks([one.message for one in shown])
            going = set().union(*(block[index] for index in gone))
            self._window.show((one.item for at, one in enumerate(shown) if at not in going), log)

    async def size(self) -> int:
        """Return how many messages were added since the last ``clear``, shown or not."""
        return len(self._window.history(self._window.log()))

    async def clear(self) -> None:
        """Show nothing, and count from 0. The log keeps what it has; to forget for good, ``memory.redact``."""
        with self._window.changing(), self._adding:
            self._window.clear()

    def references(self, index: int) -> tuple[str, ...]:
        """Return what the shown message at *index* is or stands for, each for ``memory.reload``.

        None for a system message before the first round, which no compression covers, and for what is not in the log.
        """
        with self._window.lock:
            shown = self._window.now()
            (place,) = _places([index], len(shown))
            return references(places_of([shown[place].item]), self._window.log())

    @property
    def direct_updates(self) -> list[Message]:
        """The messages that only ``direct_update_memory`` brought, oldest first, whatever became of them."""
        return [thaw(made.message) for made in self._window.direct]

    @property
    def compression_events(self) -> list[MemoryCompressed]:
        """What was compressed, oldest first, before a restart as well. Reads the log; may raise ``StoreError``."""
        notes = self.memory.journal(ASSISTANT).notes(MemoryCompressed.name)
        return [MemoryCompressed.model_validate(facts) for facts in notes]

    # -- its state ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        with self._window.lock:
            log = self._window.log()
            shown = self._window.now(log)
            history = self._window.history(log)
            numbers: dict[Item, int] = {item: number for number, item in enumerate(history)}
            return {
                "max_token": self.max_token,
                "chat_history_storage": [log.message(item) for item in history],
                "memory_storage": [log.read(one.item) for one in shown],
                "sources": [encoded(one.item, numbers, log) for one in shown],
                "beside": [encoded_beside(one.item, numbers) for one in shown],
                "direct_updates": self.direct_updates,
            }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Go on from what ``state_dict`` gave. Raises ``StateError`` for a state that cannot be used.

        Where the log begins with the state's history it is left alone, and what it says further is shown as well; else
        everything is cleared, and the history added. With *strict*, ``max_token`` and both storages have to be there,
        and nothing that is not known; without, what is missing stays as it is. Raises ``StoreError``: then all is as it
        was, but for what the log has taken of the history, which stands behind what is shown.
        """
        state = State.of(state_dict, strict=strict)
        window = self._window
        with window.changing(), self._adding:
            log = window.log()
            history = window.history(log)
            known = len(history) if state.history is None else len(state.history)
            state.check_sources(known)
            if state.history is not None and [log.message(item) for item in history[:known]] != state.history:
                window.clear()
                for message in state.history:
                    self.memory.append(message)
            with window.lock:  # not before: hooks hear of what is appended
                log = window.log()
                history = window.history(log)
                if state.history is not None or state.shown is not None:
                    items = state.items(history[:known], log)
                    window.show([*items, *history[known:]] if state.history is not None else items, log)
                if state.direct is not None:
                    window.direct = tuple(Made(freeze_mapping(message)) for message in state.direct)
        self.max_token = state.max_token or self.max_token

    # -- compressing --------------------------------------------------------------------------------------------------

    async def _compress_while_due(self, compress_func: CompressFunc | None, trigger: TriggerFunc | None) -> bool:
        """Compress stretch by stretch, oldest first, until it is not due any more; return whether any was.

        Others may do so at the same time: where their result comes first, ours is stale, and is discarded.
        """
        outer = _COMPRESSED.get()
        if self in outer:  # a compress_func of this memory reads it: it is shown what there is
            return False
        token = _COMPRESSED.set((*outer, self))
        try:
            return await self._compress_stretches(
                compress_func or self.compress_func, trigger or self.compression_trigger_func
            )
        finally:
            with contextlib.suppress(ValueError):  # thrown away unfinished, it ends in somebody else's context
                _COMPRESSED.reset(token)

    async def _compress_stretches(self, compress_func: CompressFunc | None, trigger: TriggerFunc | None) -> bool:
        done, compressed = 0, False
        while True:
            with self._window.lock:
                shown, redactions = self._window.now(), self._window.redactions
            size = await self._size(shown)
            if size <= self.max_token and not (trigger and await _called(trigger, _copies(shown))):
                return compressed
            due = [span for span in stretches(shown) if self._is_worth(shown[slice(*span)])]
            if not due and size > self.max_token:
                self._emit("over_limit", size)
            # Each once: what was added meanwhile to a stretch that was compressed is the next reading's.
            span = next((span for span in due if span[0] >= done), None)
            if span is None:
                return compressed
            part: Part = "past" if span[0] < end_of_answered(shown) else "work"
            stretch = shown[slice(*span)]
            prohibitions = await self._compress(stretch, part, compress_func, redactions)
            compressed |= prohibitions is not None
            done = span[0] + (len(stretch) if prohibitions is None else prohibitions)

    def _is_worth(self, stretch: Sequence[Shown]) -> bool:
        """Return whether there is anything in a stretch that was not compressed before, or in vain."""
        return not all(one.compressed for one in stretch) and tuple(one.item for one in stretch) != self._window.in_vain

    async def _compress(
        self, stretch: Sequence[Shown], part: Part, func: CompressFunc | None, redactions: int
    ) -> int | None:
        """Replace a stretch, and return how many messages stand there then; None where it stays."""
        began, size = time.monotonic(), await self._size(stretch)
        new, refused = await self._made(stretch, part, func, size)
        size_after = await self._size(new)
        old = tuple(one.item for one in stretch)
        # By the host's own measure: the checks count tokens.
        if func is None and size_after >= size:
            with self._window.lock:
                self._window.in_vain = old
            self._emit("no_progress", size, refused)
            self._keep()
            return None
        if not self._window.replace(old, [one.item for one in new], redactions):
            self._emit("stale", size)
            return None
        compressed = MemoryCompressed(
            part=part,
            messages_before=len(stretch),
            messages_after=len(new),
            size_before=size,
            size_after=size_after,
            seconds=time.monotonic() - began,
            check=refused,
        )
        self._keep(compressed)
        self.memory.emit(compressed)
        return len(new)

    def _keep(self, event: MemoryCompressed | None = None) -> None:
        """Write what is shown to the log; where the store fails, what was paid for is shown all the same."""
        try:
            self._window.keep(event)
            self._unkept = False
        except StoreError as error:
            self._unkept = True
            self.memory.emit(NotKept(error=type(error).__name__))

    async def _made(
        self, stretch: Sequence[Shown], part: Part, func: CompressFunc | None, size: int
    ) -> tuple[Sequence[Shown], str | None]:
        """Return what is to stand for a stretch, the stretch itself where its summary is no shorter; and the check that
        the last answer failed, where answers were too long for what was asked."""
        refused: list[str] = []
        try:
            if func is not None:
                return _with_sources(stretch, _checked(await _called_in_thread(func, _copies(stretch)))), None
            return _with_sources(
                stretch, [await asyncio.to_thread(self._summarised, stretch, part, self._ask, refused)]
            ), None
        except SummaryRejected as error:
            # What was chosen offline from very little may be all of it: that is nobody's mistake.
            if isinstance(self._ask, ExtractiveSummarizer):
                return stretch, None
            if error.check in ("larger", "no_progress") and "oversized" not in refused:
                return stretch, error.check
            if TOO_LONG.isdisjoint(refused):
                self._emit("failed", size, error.check)
                raise CompressionFailed(str(error)) from error
        except Exception as error:
            self._emit("failed", size, type(error).__name__)
            if isinstance(error, SummarizerError):
                raise CompressionFailed(str(error)) from error
            raise
        with contextlib.suppress(SummaryRejected):
            extracted = await asyncio.to_thread(self._summarised, stretch, part, ExtractiveSummarizer(), [])
            return _with_sources(stretch, [extracted]), refused[-1]
        return stretch, refused[-1]

    def _summarised(self, stretch: Sequence[Shown], part: Part, ask: Summarizer, refused: list[str]) -> Message:
        """Return the message that *ask* has stand for a stretch, with the checks that its answers failed in *refused*.

        Raises what it raises, and ``SummaryRejected``.
        """
        previous = "\n\n".join(_bare(one.message) for one in stretch if one.compressed)
        rounds = _rounds_of(one.message for one in stretch if not one.compressed)
        target = max(self.max_token // (16 if self.token_counter is None else 4), _MIN_TARGET)
        request = SummaryRequest(
            role=ASSISTANT,
            kind="rounds" if part == "past" else "tool_run",
            previous=CompactedMessage(start_index=1, end_index=1, summary=previous) if previous else None,
            rounds=rounds,
            end_index=len(rounds),
            target_tokens=target if is_told_target(ask) else self.max_token,
            messages=[{"role": "user", "content": ""}],  # the prompt is the summarizer's; why it is refused goes below
        )
        log, items = self._window.log(), [one.item for one in stretch]
        read = map(log.read, originals(items))
        prohibitions = standing_sentences(_rounds_of(message for message in read if message is not None))
        refs = ", ".join(references(places_of(items), log))
        saving = Saving(
            before=sum(count_message(one.message, count_tokens) for one in stretch),
            frame=count_message(_message("", part, refs), count_tokens),
            previous=count_tokens(previous),
        )
        source = Source("\n".join(map(quote, rounds)), saving.new, saving.previous, previous=previous)
        made = accepted(
            ask,
            request,
            source,
            count_tokens,
            attempts=traits_of(ask).attempts(CompactorConfig()),
            prohibitions=prohibitions,
            room=max(target // 2, _MIN_ROOM),
            length_setting="max_token",
            emit=lambda rejected, *_: refused.append(rejected.check),
        )
        return _message(made.summary.text, part, refs)

    async def _size(self, shown: Sequence[Shown]) -> int:
        return await count_words(self.token_counter, _copies(shown))

    def _emit(self, reason: Reason, size: int, error: str | None = None) -> None:
        self.memory.emit(NotCompressed(reason=reason, size=size, limit=self.max_token, error=error))


def _rounds_of(messages: Iterable[Message]) -> tuple[Round, ...]:
    return Memory.from_messages(messages).conversation.rounds[:]


def _places(indices: Iterable[int] | int, shown: int) -> list[int]:
    """Return *indices* as a list. Raises ``IndexError`` where one is not among those of the *shown* messages."""
    found: list[Any] = [indices]
    if isinstance(indices, Iterable) and not isinstance(indices, str | bytes):
        found = list(indices)
    if any(isinstance(index, bool) or not isinstance(index, int) for index in found):
        raise TypeError("indices are whole numbers: places in the list that get_memory() returns, from 0")
    if wrong := [index for index in found if not 0 <= index < shown]:
        raise IndexError(f"no message at {wrong[:5]}: {shown} are shown, counted from 0")
    return found


def _newest(messages: list[Message], number: int) -> list[Message]:
    """Return the newest *number* messages, and the calls that results among them answer."""
    block = blocks(messages)
    start = max(len(messages) - number, 0)
    while (earliest := min(map(min, block[start:]), default=start)) < start:
        start = earliest
    return messages[start:]


async def count_words(token_counter: Any, text: str | Sequence[Mapping[str, Any]]) -> int:
    """Return the size of a text, or of messages, as a ``MemoryWithCompress`` with that *token_counter* measures it."""
    check_counter(token_counter)
    if isinstance(text, str):
        if token_counter is None:
            return len(text)
        return _whole(await _called(getattr(token_counter, "count", token_counter), text))
    messages = to_messages(text)
    if token_counter is None:
        return len(json.dumps(messages, ensure_ascii=False)) if messages else 0
    if callable(getattr(token_counter, "count", None)):
        return _whole(await _called(token_counter.count, messages))
    return PROMPT_TOKENS + sum(count_message(message, _counted(token_counter)) for message in messages)


def check_counter(counter: object) -> None:
    """Raise ``ConfigError`` for what counts neither messages nor texts."""
    if counter is None or callable(counter):
        return
    if isinstance(counter, Sequence) or not callable(getattr(counter, "count", None)):  # lists count as well
        raise ConfigError(
            ("token_counter", f"counts texts, or has count(messages); {type(counter).__name__} does neither")
        )


def _counted(counter: TokenCounter) -> TokenCounter:
    return lambda text: _whole(counter(text))


def _whole(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < math.inf:
        raise TypeError(f"the token_counter returned {size!r}; it must return a number of tokens, from 0 on")
    return int(size)


def format_msgs(msgs: object) -> list[Message]:
    """Return one message or several as a list of plain mappings. Raises ``NotAMessage``, a ``TypeError``."""
    return to_messages(msgs)


async def _called(func: Callable[..., Any], *args: Any) -> Any:
    answer = func(*args)
    return await answer if inspect.isawaitable(answer) else answer


async def _called_in_thread(func: Callable[..., Any], *args: Any) -> Any:
    """Call what may take long without holding up the event loop; a coroutine runs on the loop itself."""
    answer = func(*args) if inspect.iscoroutinefunction(func) else await asyncio.to_thread(func, *args)
    return await answer if inspect.isawaitable(answer) else answer


def _copies(shown: Sequence[Shown]) -> list[Message]:
    return [copy.deepcopy(one.message) for one in shown]


def _checked(answer: object) -> list[Message]:
    """Return what a *compress_func* gave. Raises ``CompressionFailed`` where it may not stand for messages."""
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes) or not answer:
        raise CompressionFailed(
            f"compress_func returned {type(answer).__name__}; it must return a list of at least one message"
        )
    try:
        messages = to_messages(answer)
    except NotAMessage as error:
        raise CompressionFailed(f"compress_func returned what is no message: {error}") from error
    for message, block in zip(messages, blocks(messages), strict=True):
        if is_orphan(message, block) or waits(message, block):
            raise CompressionFailed("compress_func parted a tool call from its result; keep or leave out both")
    return messages


def _with_sources(stretch: Sequence[Shown], made: Sequence[Message]) -> list[Shown]:
    """Return *made* as what is shown; what it ends in of the stretch, word for word, is still what was said."""
    kept = 0
    while kept < min(len(made), len(stretch)) and made[-1 - kept] == stretch[-1 - kept].message:
        kept += 1
    items = tuple(one.item for one in stretch)
    sources, beside = items[: len(items) - kept], items[len(items) - kept :]
    new = [Shown(Made(freeze_mapping(message), sources, beside), message) for message in made[: len(made) - kept]]
    return [*new, *stretch[len(stretch) - kept :]]


def _message(text: str, part: Part, refs: str) -> Message:
    """Return the message that stands for others."""
    said = "These tool calls were made. " if part == "work" else ""
    where = f"; reload {refs}" if refs else ""
    text = f"{_OPENED}\n{_TAG.sub('&lt;', text)}\n{_CLOSED}\n[{said}Background, no new request{where}]"
    return {"role": "user", "content": text}


def _bare(message: Message) -> str:
    """Return the text of a message that stands for others, without what was put around it."""
    text = parse(message).post.message
    start, end = text.find(_OPENED), text.rfind(_CLOSED)
    return text[start + len(_OPENED) : end].strip() if 0 <= start < end else text


def memory_with_compress(
    max_token: int = 28_000,
    summarizer: object | None = None,
    *,
    compression_trigger_func: TriggerFunc | None = None,
    customized_compression_prompt: str | None = None,
    schema: type[BaseModel] | None = None,
    config: CompactorConfig | None = None,
) -> dict[str, Any]:
    """Return what ``ContextCompactor.for_role(memory, role, **preset)`` takes to keep prompts below *max_token* tokens.

    All closed rounds are compressed, by a thread of their own, when the prompt is longer or *compression_trigger_func*
    says so; then finished calls of the open round. What else there is to set comes from *config*.
    """
    asked = structured(summarizer, customized_compression_prompt, schema, max_token)
    trigger = over_tokens(max_token)
    check_function("compression_trigger_func", compression_trigger_func)
    if compression_trigger_func is not None:
        func = compression_trigger_func
        trigger = trigger | when(lambda view: func(_tail_of(view)))
    given = given_config(config).filled(retain_recent=0, target_tokens=min(1_000, max(max_token // 4, _MIN_TARGET)))
    return {
        "config": given.merged(max_tokens=max_token, token_ratio=1.0),
        "trigger": trigger,
        "strategies": (compact_rounds, compress_tool_runs(scope="current")),
        **({} if summarizer is None else {"summarizer": asked}),
    }


def _tail_of(view: View) -> list[Message]:
    return [
        copy.deepcopy(message) for place in view.places for _, group in view.groups(place) for message in group.messages
    ]
