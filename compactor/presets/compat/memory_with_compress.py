"""``MemoryWithCompress`` as its users know it, over a log that keeps everything.

From top to bottom: the class, its two storages, a host's arguments and functions.
"""

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
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import BaseModel

from memory import ContextError, Event, Memory, StoreError
from memory.arguments import ConfigError, require
from memory.hooks import renew_after_fork
from memory.messages import ASSISTANT, parse

from ...acceptance.prohibitions import find_prohibitions
from ...coroutines import Coroutines, HostLoop, coroutines_used
from ...errors import SummaryRejected
from ...events import Rejected
from ...prompt.groups import Message
from ...summarize import TOO_LONG, Work
from ...summarizers import ExtractiveSummarizer, Summarizer, SummarizerError
from ...tokens import count_message, count_prompt, count_tokens
from ..memory_with_compress import MIN_TARGET, TriggerFunc, make_structured, names_target
from .messages import (
    NotAMessage,
    check_indices,
    check_list,
    format_msgs,
    group_messages,
    is_torn,
    summarize_messages,
    take_newest,
)
from .window import SavedWindow, Window, WindowMessage, find_compressible

Messages = Sequence[Mapping[str, Any]] | Mapping[str, Any] | None
CompressFunc = Callable[[list[Message]], "Sequence[Mapping[str, Any]] | Awaitable[Sequence[Mapping[str, Any]]]"] | None
FilterFunc = Callable[[int, Message], "bool | Awaitable[bool]"] | None
Part = Literal["past", "work"]
Reason = Literal["failed", "no_progress", "stale", "over_limit"]

#: The memories that this code is compressing.
_COMPRESSING: ContextVar[tuple[object, ...]] = ContextVar("_COMPRESSING", default=())
_OPENED, _CLOSED = "<compressed_memory>", "</compressed_memory>"
_TAG = re.compile(r"<(?=\s*+(?:/\s*+)?compressed_memory\b)", re.IGNORECASE)
#: Minimum tokens for restored prohibitions.
_MIN_ROOM = 64
#: The remedy for each parameter that only the original class has.
_REMEDIES = {
    "formatter": ": messages have one form, OpenAI's; leave it out",
    "chat_history_storage": ": give memory=Memory(session, store=...), whose log keeps every message",
    "memory_storage": ": give memory=Memory(session, store=...), whose log keeps what is shown as well",
}


class CompressionFailed(ContextError, ValueError):
    """A compression failed; the shown messages are unchanged, and the next reading tries again."""


class MemoryCompressed(Event):
    """Shorter messages replaced some of the shown ones."""

    name: ClassVar[str] = "memory.compressed"
    #: ``past``: messages before the open question. ``work``: the calls made for it.
    part: Part
    messages_before: int
    messages_after: int
    #: Size of the replaced messages and of their replacement: by the token counter, or in characters.
    size_before: int
    size_after: int
    seconds: float
    #: The check that the summarizer's last answer failed, if its answers were too long and the text was extracted
    #: offline instead.
    check: str | None = None


class NotCompressed(Event):
    """The shown messages are unchanged, or still too long."""

    name: ClassVar[str] = "memory.not_compressed"
    level: ClassVar[str] = "warning"
    #: ``failed``; ``no_progress``: the new messages are no shorter; ``stale``: the old ones are no longer shown;
    #: ``over_limit``: the messages that may not be compressed exceed the limit.
    reason: Reason
    size: int
    limit: int
    #: The class of the error, or the check that the summarizer's last answer failed.
    error: str | None = None


class NotKept(Event):
    """The store failed: the shown messages are written with the next change."""

    name: ClassVar[str] = "memory.not_kept"
    level: ClassVar[str] = "warning"
    #: The class of the error.
    error: str


class MemoryWithCompress:
    """A conversation that is compressed when it is read and longer than *max_token*.

    ``memory`` is the log and keeps every added message, also compressed and deleted ones; ``references`` tells how to
    reload them. Messages are in OpenAI's format; messages that a host appends to ``memory`` are shown as well. The log
    also keeps what is shown: a new instance over the same session shows the same, and pays for nothing twice.

    *token_counter* counts messages (an object with ``count(messages)``) or texts (any ``TokenCounter``); without one,
    the size is the length of the messages as JSON. *compress_func* takes the messages to replace and returns their
    replacement; without one, *summarizer* makes one user message; without either, it is extracted offline, and
    *customized_compression_prompt* is unused. *model* is another name of *summarizer*. *compression_trigger_func* takes
    all shown messages. ``count`` and both functions may be async; a summarizer may not, but it may block:
    *compress_func* and the summarizer run in a thread. Safe to use from several tasks and threads.
    """

    def __init__(
        self,
        max_token: int = 28_000,
        token_counter: Any = None,
        compress_func: CompressFunc = None,
        compression_trigger_func: TriggerFunc = None,
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
            raise TypeError(f"MemoryWithCompress takes no {name}{_REMEDIES.get(name, '')}")
        if summarizer is not None and model is not None:
            raise TypeError("model is another name of summarizer; give one of the two")
        require("memory", memory, Memory | None, "a Memory(...)")
        _check_counter(token_counter)
        _check_functions(compress_func, compression_trigger_func)
        asked = model if summarizer is None else summarizer
        self._summarizer = make_structured(asked, customized_compression_prompt, schema, max_token)
        self._names_target = names_target(customized_compression_prompt)
        self.memory = memory if memory is not None else Memory()
        self.max_token = max_token
        self.token_counter = token_counter
        self.compress_func = compress_func
        self.compression_trigger_func = compression_trigger_func
        self.compression_on_add = compression_on_add
        self.compression_on_get = compression_on_get
        self._window = Window(self.memory)
        self._is_unwritten = False  # whether the store refused the window
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # One add(), load_state_dict() or clear() at a time keeps calls with their results, and a history together.
        self._adding = threading.RLock()

    async def add(
        self, messages: Messages, compress_func: CompressFunc = None, compression_trigger_func: TriggerFunc = None
    ) -> None:
        """Add one message or several, all or none. Raises ``NotAMessage``, a ``TypeError``.

        With ``compression_on_add`` it then compresses if due; if that raises, the messages are stored already.
        """
        _check_functions(compress_func, compression_trigger_func)
        if messages is None:
            return
        new = format_msgs(messages)
        with self._adding:
            for message in new:
                self.memory.append(message)
        if self.compression_on_add:
            await self._compress_while_due(compress_func, compression_trigger_func)

    async def get_memory(
        self,
        recent_n: int | None = None,
        filter_func: FilterFunc = None,
        compress_func: CompressFunc = None,
        compression_trigger_func: TriggerFunc = None,
    ) -> list[Message]:
        """Return the shown messages that pass ``filter_func(index, message)``, the newest *recent_n* of them.

        Compresses first if due. Raises ``CompressionFailed``, and the errors of *compress_func* and the summarizer;
        nothing changes then. A summarizer whose answer is too long is asked again; if that does not help, the text is
        extracted offline, or everything stays, and an event names the check.

        A call and its results pass the filter together or not at all; a call older than the newest *recent_n* messages
        comes with a result among them.
        """
        require("filter_func", filter_func, Callable | None, "a function, or None")
        _check_functions(compress_func, compression_trigger_func)
        if recent_n is not None and (isinstance(recent_n, bool) or not isinstance(recent_n, int)):
            raise TypeError(f"recent_n is a whole number, or None for all messages, not {recent_n!r}")
        if self.compression_on_get:
            await self._compress_while_due(compress_func, compression_trigger_func)
        messages = self.shown()
        if filter_func is not None:
            given = list(enumerate(copy.deepcopy(messages)))
            refused = {one[0] for one in given if not await _call(filter_func, *one)}
            groups = group_messages(messages)
            messages = [message for message, group in zip(messages, groups, strict=True) if not group & refused]
        return messages if recent_n is None or recent_n <= 0 else take_newest(messages, recent_n)

    async def check_and_compress(
        self,
        compress_func: CompressFunc = None,
        compression_trigger_func: TriggerFunc = None,
        memory: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Message]]:
        """Compress if due, even without ``compression_on_get``; return whether anything was compressed, and the shown
        messages. Given *memory*, compress that list instead; log and window do not change."""
        if memory is None:
            return await self._compress_while_due(compress_func, compression_trigger_func), self.shown()
        other = copy.copy(self)
        other.memory, other.compression_on_add = Memory(), False
        other._window = Window(other.memory)
        await other.add(memory)
        return await other.check_and_compress(compress_func, compression_trigger_func)

    async def retrieve(self, *_args: object, **_options: object) -> NoReturn:
        """Raise ``NotImplementedError``, as the original class does."""
        raise NotImplementedError("retrieve() finds nothing here; get_memory() returns what is shown")

    def shown(self) -> list[Message]:
        """Return the shown messages without compressing any."""
        return [one.message for one in self._window.read()]

    def keep(self) -> None:
        """Write the window if the store refused it before. Raises ``StoreError``."""
        if self._is_unwritten:
            self._window.write()
            self._is_unwritten = False

    def history(self) -> list[Message]:
        """Return all messages since the last ``clear``, as they were added."""
        return self._window.history

    async def size(self) -> int:
        """Return how many messages were added since the last ``clear``, shown or not."""
        return len(self._window.history)

    @property
    def chat_history_storage(self) -> MessageStorage:
        """The history as a storage."""
        return MessageStorage(self, is_history=True)

    @property
    def memory_storage(self) -> MessageStorage:
        """The shown messages as a storage."""
        return MessageStorage(self, is_history=False)

    async def direct_update_memory(self, messages: Messages) -> None:
        """Show *messages* instead. The log stays; ``direct_updates`` lists the messages that are not in it."""
        if messages is not None:
            self._window.update(format_msgs(messages))

    async def delete(self, indices: Iterable[int] | int) -> None:
        """Hide the messages at *indices*, a call with its results. They stay in the log.

        Raises ``IndexError`` if there is no such message, and ``StoreError``; nothing is deleted then.
        """
        with self._window.transaction(), self._window.lock:
            shown = self._window.read()
            deleted = set().union(*(shown[index].group for index in check_indices(indices, len(shown))))
            self._window.show(one.item for at, one in enumerate(shown) if at not in deleted)

    async def clear(self) -> None:
        """Show nothing, and count from 0. The log keeps everything; ``memory.redact`` erases."""
        with self._window.transaction(), self._adding:
            self._window.clear()

    def references(self, index: int) -> tuple[str, ...]:
        """Return references to the shown message at *index*, or to the messages that it replaces, for
        ``memory.reload``.

        None for a system message before the first round, which is never compressed, and for a message that is not in
        the log.
        """
        with self._window.lock:
            shown = self._window.read()
            (place,) = check_indices([index], len(shown))
            return self._window.make_references([shown[place].item])

    @property
    def direct_updates(self) -> list[Message]:
        """All messages that only ``direct_update_memory`` brought, oldest first, shown or not."""
        return self._window.direct

    @property
    def compression_events(self) -> list[MemoryCompressed]:
        """All compressions, oldest first, also of earlier processes. Reads the log; may raise ``StoreError``."""
        notes = self.memory.journal(ASSISTANT).notes(MemoryCompressed.name)
        return [MemoryCompressed.model_validate({**facts, **self._whose()}) for facts in notes]

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {"max_token": self.max_token, **self._window.dump()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Load the result of ``state_dict``. Raises ``StateError`` for a state that cannot be used.

        If the log begins with the state's history it stays, and its later messages are shown as well; else everything
        is cleared, and the history added. With *strict*, ``max_token`` and both storages are required and unknown keys
        refused; without it, missing parts stay unchanged. Raises ``StoreError``; then everything is unchanged, but the
        messages that the log took already follow the shown ones.
        """
        saved = SavedWindow.parse(state_dict, strict=strict)
        with self._window.transaction(), self._adding:
            self._window.load(saved)
        self.max_token = saved.max_token or self.max_token

    # -- compressing ---------------------------------------------------------------------------------------------------

    async def _compress_while_due(self, func: CompressFunc, trigger: TriggerFunc) -> bool:
        """Compress span by span, oldest first, while due; return whether any was compressed.

        A concurrent compression of the same span wins if it ends first; ours is then stale and discarded.
        """
        outer = _COMPRESSING.get()
        if self in outer:  # a compress_func that reads this memory sees it as it is
            return False
        token = _COMPRESSING.set((*outer, self))
        func, trigger = func or self.compress_func, trigger or self.compression_trigger_func
        done, compressed = 0, False
        try:
            while True:
                with self._window.lock:
                    shown, redactions = self._window.read(), self._window.redactions
                size = await count_words(self.token_counter, messages := [one.message for one in shown])
                if size <= self.max_token and not (trigger and await _call(trigger, copy.deepcopy(messages))):
                    return compressed
                spans = [(span, past) for span, past in find_compressible(shown) if self._is_worthwhile(shown[span])]
                if not spans and size > self.max_token:
                    self._emit("over_limit", size)
                # Each span once: messages that were added to a compressed one wait for the next reading.
                spans = [(span, past) for span, past in spans if span.start >= done]
                if not spans:
                    return compressed
                span, is_past = spans[0]
                length = await self._compress(shown[span], "past" if is_past else "work", func, redactions)
                compressed |= length is not None
                done = span.stop if length is None else span.start + length
        finally:
            with contextlib.suppress(ValueError):  # an abandoned coroutine ends in another context
                _COMPRESSING.reset(token)

    def _is_worthwhile(self, span: Sequence[WindowMessage]) -> bool:
        """Return whether *span* has a message that was not yet compressed, and was not tried in vain."""
        return not (all(one.is_compressed for one in span) or self._window.is_in_vain(one.item for one in span))

    async def _compress(
        self, span: Sequence[WindowMessage], part: Part, func: CompressFunc, redactions: int
    ) -> int | None:
        """Replace *span* and return the number of new messages; None if it stays."""
        began, size = time.monotonic(), await count_words(self.token_counter, [one.message for one in span])
        try:
            messages, check = await self._make_replacement(span, part, func)
        except Exception as error:
            self._emit("failed", size, error.check if isinstance(error, SummaryRejected) else type(error).__name__)
            if isinstance(error, SummaryRejected | SummarizerError):
                raise CompressionFailed(str(error)) from error
            raise
        size_after = await count_words(self.token_counter, messages)
        # Measured by the host's counter: the acceptance checks count tokens.
        if func is None and size_after >= size:
            self._window.note_in_vain(one.item for one in span)
            self._emit("no_progress", size, check)
            self._write()
            return None
        if not self._window.substitute(span, messages, redactions):
            self._emit("stale", size)
            return None
        event = MemoryCompressed(
            part=part,
            messages_before=len(span),
            messages_after=len(messages),
            size_before=size,
            size_after=size_after,
            seconds=time.monotonic() - began,
            check=check,
            **self._whose(),
        )
        self._write(event)
        self.memory.emit(event)
        return len(messages)

    def _write(self, event: MemoryCompressed | None = None) -> None:
        """Write the window to the log; if the store fails, a paid result is shown all the same."""
        try:
            self._window.write(event)
            self._is_unwritten = False
        except StoreError as error:
            self._is_unwritten = True
            self.memory.emit(NotKept(error=type(error).__name__, **self._whose()))

    async def _make_replacement(
        self, span: Sequence[WindowMessage], part: Part, func: CompressFunc
    ) -> tuple[list[Message], str | None]:
        """Return messages in the place of *span*, or its own if a summary is no shorter; and the check that the last
        answer failed, if answers were too long."""
        unchanged = [one.message for one in span]
        if func is not None:
            return _check_answer(await _call(func, copy.deepcopy(unchanged), may_block=True)), None
        failed_checks: list[str] = []
        host = HostLoop()
        host.enter(asyncio.get_running_loop())
        token = coroutines_used.set(Coroutines(host=host))
        try:
            return [await asyncio.to_thread(self._summarize, span, part, self._summarizer, failed_checks)], None
        except SummaryRejected as error:
            # An extract of very little text may be all of it.
            if isinstance(self._summarizer, ExtractiveSummarizer):
                return unchanged, None
            if error.check in ("larger", "no_progress") and "oversized" not in failed_checks:
                return unchanged, error.check
            if TOO_LONG.isdisjoint(failed_checks):
                raise
        finally:
            coroutines_used.reset(token)
        with contextlib.suppress(SummaryRejected):
            return [await asyncio.to_thread(self._summarize, span, part, ExtractiveSummarizer(), [])], failed_checks[-1]
        return unchanged, failed_checks[-1]

    def _summarize(
        self, span: Sequence[WindowMessage], part: Part, summarizer: Summarizer, failed_checks: list[str]
    ) -> Message:
        """Return one message by *summarizer* in the place of *span*; the checks that its answers fail are appended to
        *failed_checks*. Raises the summarizer's errors, and ``SummaryRejected``."""
        previous = "\n\n".join(_strip_frame(one.message) for one in span if one.is_compressed)
        target = max(self.max_token // (16 if self.token_counter is None else 4), MIN_TARGET)
        is_told_target = isinstance(summarizer, ExtractiveSummarizer) or self._names_target
        items = [one.item for one in span]
        with self._window.lock:
            originals = [self._window.read_item(item) for item in self._window.find_originals(items)]
            references = ", ".join(self._window.make_references(items))
        before = sum(count_message(one.message, count_tokens) for one in span)
        frame = count_message(_make_message("", part, references), count_tokens)
        work = Work(
            summarizer=summarizer,
            count=count_tokens,
            emit=lambda event: failed_checks.append(event.check) if isinstance(event, Rejected) else None,
        )
        summary = summarize_messages(
            [one.message for one in span if not one.is_compressed],
            work,
            earlier=previous,
            prohibitions=find_prohibitions(Memory.from_messages(filter(None, originals)).conversation.rounds),
            tokens=before - frame - count_tokens(previous),
            target=target if is_told_target else self.max_token,
            reserve=max(target // 2, _MIN_ROOM),
            kind="rounds" if part == "past" else "tool_run",
            length_setting="max_token",
        )
        return _make_message(summary, part, references)

    def _emit(self, reason: Reason, size: int, error: str | None = None) -> None:
        event = NotCompressed(reason=reason, size=size, limit=self.max_token, error=error, **self._whose())
        self.memory.emit(event)

    def _whose(self) -> dict[str, Any]:
        return {"session": self.memory.session_id, "role": ASSISTANT}


class MessageStorage:
    """The history, or the shown messages. ``async with`` it, or use it at once: nothing has to be started.

    Both are one log, so a host cannot replace one of them: give the ``Memory`` a ``Store`` instead.
    """

    def __init__(self, owner: MemoryWithCompress, *, is_history: bool) -> None:
        self._owner = owner
        self._is_history = is_history

    async def start(self) -> None:
        """Read the entries of other processes. Raises ``StoreError`` if the store cannot be read."""
        await asyncio.to_thread(self._owner.memory.refresh)

    async def stop(self) -> None:
        """Write changes that the store refused before. The host closes the store."""
        await asyncio.to_thread(self._owner.keep)

    async def health(self) -> bool:
        """Return whether the store can be read."""
        try:
            await self.start()
        except Exception:  # noqa: BLE001  (a host's store may raise anything)
            return False
        return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def get(self) -> list[Message]:
        """Return all messages; nothing is compressed."""
        return self._owner.history() if self._is_history else self._owner.shown()

    async def add(self, messages: Messages) -> None:
        """Add messages to the history, which are shown as well; or only show them, behind all others."""
        if self._is_history:
            await self._owner.add(messages)
        else:
            await self._owner.direct_update_memory(
                [*self._owner.shown(), *format_msgs([] if messages is None else messages)]
            )

    async def delete(self, indices: Iterable[int] | int) -> None:
        """Hide the shown messages at *indices*. The history only grows: there it raises ``NotImplementedError``."""
        if self._is_history:
            raise NotImplementedError("the history only grows; memory_storage.delete() hides, memory.redact() erases")
        await self._owner.delete(indices)

    async def clear(self) -> None:
        """Show nothing; of the history, also count from 0. The log keeps everything."""
        await (self._owner.clear() if self._is_history else self._owner.direct_update_memory([]))

    async def replace(self, messages: Messages) -> None:
        """Show *messages* instead. Of the history, raise ``NotImplementedError``."""
        if self._is_history:
            raise NotImplementedError("the history keeps what was said; direct_update_memory() shows other messages")
        await self._owner.direct_update_memory([] if messages is None else messages)


# --- arguments, and a host's functions --------------------------------------------------------------------------------


def _check_functions(compress_func: CompressFunc, compression_trigger_func: TriggerFunc) -> None:
    require("compress_func", compress_func, Callable | None, "a function, or None")
    require("compression_trigger_func", compression_trigger_func, Callable | None, "a function, or None")


async def count_words(token_counter: Any, text: str | Sequence[Mapping[str, Any]]) -> int:
    """Return the size of a text or of messages, as a ``MemoryWithCompress`` with that *token_counter* measures it."""
    _check_counter(token_counter)
    if isinstance(text, str):
        if token_counter is None:
            return len(text)
        return _check_size(await _call(getattr(token_counter, "count", token_counter), text))
    messages = format_msgs(text)
    if token_counter is None:
        return len(json.dumps(messages, ensure_ascii=False)) if messages else 0
    if callable(getattr(token_counter, "count", None)):
        return _check_size(await _call(token_counter.count, messages))
    return count_prompt(messages, lambda said: _check_size(token_counter(said)))


def _check_counter(counter: object) -> None:
    if counter is None or callable(counter):
        return
    if isinstance(counter, Sequence) or not callable(getattr(counter, "count", None)):  # lists count as well
        fault = f"counts texts, or has count(messages); {type(counter).__name__} does neither"
        raise ConfigError(("token_counter", fault))


def _check_size(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < math.inf:
        raise TypeError(f"the token_counter returned {size!r}; it must return a number of tokens, from 0 on")
    return int(size)


async def _call(func: Callable[..., Any], *args: Any, may_block: bool = False) -> Any:
    in_thread = may_block and not inspect.iscoroutinefunction(func)
    answer = await asyncio.to_thread(func, *args) if in_thread else func(*args)
    return await answer if inspect.isawaitable(answer) else answer


def _check_answer(answer: object) -> list[Message]:
    """Return the messages of a *compress_func*. Raises ``CompressionFailed`` if they cannot replace others."""
    try:
        messages = check_list(answer)
    except NotAMessage as error:
        raise CompressionFailed(f"compress_func must return a list of messages: {error}") from error
    if not messages:
        raise CompressionFailed("compress_func returned no message; it must return a list of them")
    if any(map(is_torn, messages, group_messages(messages))):
        raise CompressionFailed("compress_func parted a tool call from its result; keep or leave out both")
    return messages


def _make_message(text: str, part: Part, references: str) -> Message:
    """Return the message with *text* in the place of others."""
    calls = "These tool calls were made. " if part == "work" else ""
    where = f"; reload {references}" if references else ""
    text = f"{_OPENED}\n{_TAG.sub('&lt;', text)}\n{_CLOSED}\n[{calls}Background, no new request{where}]"
    return {"role": "user", "content": text}


def _strip_frame(message: Message) -> str:
    text = parse(message).message
    start, end = text.find(_OPENED), text.rfind(_CLOSED)
    return text[start + len(_OPENED) : end].strip() if 0 <= start < end else text
