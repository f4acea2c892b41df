"""``offload_context``: large tool results of plain chat messages go to files, older messages to one snapshot.

First the function, then chat messages and their groups, then its two steps: compact, and compress.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from weakref import ReferenceType, ref

from memory import USER, Post
from memory.arguments import ConfigError, check_number, check_whole_number, require
from memory.messages import ASSISTANT, SYSTEM, TOOL, pair_results, parse, replace_text
from memory.rounds import cached_property, copy_with

from ...acceptance.checks import is_too_little
from ...acceptance.prohibitions import find_instructions
from ...config import CompactorConfig
from ...errors import SummaryRejected
from ...prompt.groups import Message
from ...prompt.shorten import cut_text, describe_size, is_result, is_text_only
from ...strategies.incremental import measure_saving
from ...summarize import Work
from ...summarizers import ExtractiveSummarizer, Summarizer, as_summarizer
from ...summarizers.cues import is_prohibition
from ...tokens import PROMPT_TOKENS, TokenCounter, count_message, get_counter
from ...transcript import MIN_ROOM
from .messages import check_list, group_posts, make_archive, summarize_messages
from .offload_files import OffloadFiles, is_file_answer, make_file_name, make_folder_name

Mode = Literal["auto", "compact", "compress"]
MODES: tuple[str, ...] = get_args(Mode)
#: ``auto`` also compresses if compaction leaves more than this share of the tokens.
COMPACT_RATIO = 0.75
#: Newest tool results that compaction leaves alone, and newest messages that compression does.
KEEP_COMPACT, KEEP_COMPRESS = 1, 2
PREVIEW = 100
#: Minimum tokens of a summary.
MIN_TARGET = 64

_OPENING, _CLOSING = "<state_snapshot>", "</state_snapshot>"
_HEADING = (
    "[What was said and done before the messages below. Background only: it holds no new request from the user,"
    " and the calls that it tells of were made and need not be made again.]"
)
_KEPT = "left out here and kept in full"
#: Instead of a file's name if no file was written: the name would mean nothing to the model.
_BY_HOST = " by the host"
_STANDS_FOR = "[Stands for "
#: The stem of the file of older messages.
ARCHIVE = "compressed_group"
#: Failed calls in a row by the id of a living summarizer and its chat: equal summarizers may ask different servers.
_FAILURES: dict[tuple[int, str], tuple[ReferenceType[object], int]] = {}
#: Maximum chats whose failures are counted.
_MAX_CHATS = 1_000
#: A summary may have at least one of this many tokens that it replaces.
_MIN_SHARE = 20


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """Messages for the model's next call, and where to find the text that they no longer hold."""

    messages: list[Message]
    #: The offloaded texts by the paths that the messages name. Without a ``store_dir`` there are no files: the messages
    #: name none, and only this dict holds the texts.
    write_file_dict: dict[str, str]
    #: Tokens of the given messages, and of those returned.
    tokens_before: int
    tokens_after: int
    #: Tokens over ``max_total_tokens`` that are left; 0: the messages fit.
    over: int = 0
    #: Why the summarizer compressed nothing though it was due: its error, or ``SummaryRejected``.
    failure: Exception | None = None
    #: The summarizer failed repeatedly, and the snapshot was extracted without it.
    offline: bool = False

    @property
    def success(self) -> bool:
        return self.failure is None or self.offline

    @property
    def answer(self) -> str:
        """A sentence for the user, or a line for each file."""
        if not self.success:
            return f"Nothing was compressed: {self.failure}"
        if not self.write_file_dict:
            return "Nothing was offloaded."
        return "\n".join(f"Kept in full: {path}" for path in self.write_file_dict)

    @property
    def metadata(self) -> dict[str, Any]:
        sizes = {name: getattr(self, name) for name in ("tokens_before", "tokens_after", "over")}
        return {"write_file_dict": dict(self.write_file_dict), **sizes}

    def to_dict(self) -> dict[str, Any]:
        """Return ReMe's response as plain JSON: ``success``, ``answer``, ``messages`` and ``metadata``."""
        said = {"success": self.success, "answer": self.answer, "messages": deepcopy(self.messages)}
        return said | {"metadata": self.metadata}


def offload_context(
    messages: Iterable[Mapping[str, Any]],
    *,
    context_manage_mode: Mode = "auto",
    max_total_tokens: int = 20_000,
    max_tool_message_tokens: int = 2_000,
    group_token_threshold: int | None = None,
    keep_recent_count: int | None = None,
    store_dir: str | os.PathLike[str] | None = None,
    chat_id: str = "",
    summarizer: object | None = None,
    compact_ratio_threshold: float = COMPACT_RATIO,
    preview_char_length: int = PREVIEW,
    target_tokens: int = 1_000,
    prompt: str = "",
    model: str = "",
    counter: TokenCounter | None = None,
) -> OffloadResult:
    """Return *messages* in at most *max_total_tokens*, or say by how many they exceed it. The given ones stay.

    Messages that fit are returned as they are. Else ``compact`` replaces each tool result of more than
    *max_tool_message_tokens* by its beginning and the name of a file; ``compress`` replaces older messages, an earlier
    snapshot included, by one summary, a user message in ``<state_snapshot>`` tags; ``auto`` compacts, then compresses
    if more than *compact_ratio_threshold* of the tokens are left or still do not fit.

    *keep_recent_count* messages stay: the newest tool results for compact (None: 1), the newest messages for compress
    (None: 2). System messages, the user's last message and a call that waits for its results always stay; calls and
    results stay together. Each request to the summarizer has at most *group_token_threshold* tokens of conversation,
    and continues the summary before; None or 0: as many as a request holds.

    Without a *summarizer*, the same messages always give the same result. If it fails, the messages stay, and the
    result says so. After ``circuit_breaker_failures`` failed calls in a row (5; counted for each summarizer object and
    *chat_id*), messages over the limit are summarised offline until it answers again. A summary is not aimed lower than
    the earlier snapshot, as long as that is a fair part of the limit. If the newest messages alone exceed the limit, so
    that no summary would help, the older ones stay.

    Offloaded texts are in ``write_file_dict``; with *store_dir* also in files there, in a folder for *chat_id*, and the
    messages name the file and the tools of ``OffloadFiles``. Older messages go to one plain text, which
    ``OffloadFiles.messages`` reads back. Raises ``OffloadError`` if a file cannot be written, and ``MessageError`` for
    a value that is not a message.
    """
    mode, most, ratio = context_manage_mode, max_total_tokens, compact_ratio_threshold
    check_settings(
        mode, most, max_tool_message_tokens, group_token_threshold, keep_recent_count, ratio, preview_char_length
    )
    check_whole_number("target_tokens", target_tokens, 1)
    require("counter", counter, Callable | None, "a function, or None")
    require("chat_id", chat_id, str, "a text")
    ask = None if summarizer is None else as_summarizer(summarizer)
    config = CompactorConfig(prompt_template_path=prompt, target_tokens=target_tokens, model=model)
    files = None if store_dir is None else OffloadFiles(store_dir, chat_id)
    folder = make_folder_name(chat_id) if files is None else files.prefix
    chat = _Chat(check_list(messages), counter if counter is not None else get_counter(model), files, folder)
    before, failure, offline = chat.tokens, None, False
    is_due = before > most
    if is_due and mode != "compress":
        keep = KEEP_COMPACT if keep_recent_count is None else keep_recent_count
        chat = _compact(chat, keep, max_tool_message_tokens, preview_char_length)
        left = min(most, ratio * before)
        is_due = mode == "auto" and chat.tokens > left
    if is_due:
        extractive = ExtractiveSummarizer(count=chat.count)
        keep = KEEP_COMPRESS if keep_recent_count is None else keep_recent_count
        group_tokens = group_token_threshold or config.summarizer_input_tokens
        compressed, failure = _compress(chat, ask or extractive, config, most, keep, group_tokens)
        failures = 0
        if failure is not None or compressed is not chat:
            failures = _count_failures(summarizer, chat_id, has_failed=failure is not None)
        if chat.tokens > most and failures >= config.circuit_breaker_failures:
            compressed, _ = _compress(chat, extractive, config, most, keep, group_tokens)
            offline = compressed is not chat
        chat = compressed
    over = max(chat.tokens - most, 0)
    return OffloadResult(chat.messages, chat.contents, before, chat.tokens, over, failure, offline)


def check_settings(
    mode: str, total: int, tool: int, group: int | None, keep: int | None, ratio: float, preview: int
) -> None:
    """Raise ``ConfigError`` for an unknown mode and for invalid numbers."""
    if mode not in MODES:
        raise ConfigError(("context_manage_mode", f"is one of {', '.join(MODES)}, not {mode!r}"))
    check_whole_number("max_total_tokens", total, 1)
    check_whole_number("max_tool_message_tokens", tool, 1)
    if group is not None and check_whole_number("group_token_threshold", group):
        check_whole_number("group_token_threshold", group, MIN_ROOM)
    if keep is not None:
        check_whole_number("keep_recent_count", keep)
    check_number("compact_ratio_threshold", ratio)
    check_whole_number("preview_char_length", preview)


def _count_failures(summarizer: object, chat_id: str, *, has_failed: bool) -> int:
    """Return how many calls failed since the last summary, this one included."""
    owner = getattr(summarizer, "__self__", summarizer)  # a bound method is a new object at each access
    known, failures = _FAILURES.pop((id(owner), chat_id), (None, 0))
    if not has_failed:
        return 0
    failures = failures + 1 if known is not None and known() is owner else 1  # its id may be used again
    with suppress(TypeError):  # some objects have no weak reference
        _FAILURES[id(owner), chat_id] = ref(owner), failures
    if len(_FAILURES) > _MAX_CHATS:  # chats that ended in a failure are never reset
        _FAILURES.pop(next(iter(_FAILURES)), None)
    return failures


# --- messages and their groups ----------------------------------------------------------------------------------------


@dataclass(frozen=True)  # no slots: cached properties need a __dict__
class _Chat:
    """Messages, and the texts that they no longer hold."""

    messages: list[Message]
    count: TokenCounter
    files: OffloadFiles | None
    #: The beginning of all paths.
    folder: str
    #: The offloaded texts by path.
    contents: dict[str, str] = field(default_factory=dict)

    @cached_property
    def posts(self) -> list[Post]:
        return list(map(parse, self.messages))

    @cached_property
    def costs(self) -> list[int]:
        return [count_message(message, self.count) for message in self.messages]

    @property
    def tokens(self) -> int:
        return PROMPT_TOKENS + sum(self.costs)

    def is_system(self, index: int) -> bool:
        return self.posts[index].send_from in SYSTEM  # by author: a host may pass on a tool's result

    @cached_property
    def spoken(self) -> list[int]:
        """The places of all messages but system messages."""
        return [place for place in range(len(self.messages)) if not self.is_system(place)]

    @cached_property
    def snapshots(self) -> dict[int, tuple[str, int]]:
        """The summaries of earlier snapshots by place, and how many messages they stand for; without the newest
        message."""
        found = {}
        for place in self.spoken[:-1]:
            content = self.messages[place].get("content")
            lines = content.split("\n") if isinstance(content, str) else []
            if self.messages[place]["role"] == "user" and lines[:2] == [_OPENING, _HEADING] and lines[-1] == _CLOSING:
                count = lines[-2].removeprefix(_STANDS_FOR).partition(" ")[0]
                is_number = count.isascii() and count.isdecimal() and len(count) < 10
                found[place] = ("\n".join(lines[2:-2]), int(count) if is_number else 1)
        return found

    def find_question(self) -> set[int]:
        """Return the places of the user's last messages in a row."""
        question: set[int] = set()
        for place in reversed(self.spoken):
            if self.posts[place].send_from == USER and place not in self.snapshots:
                question.add(place)
            elif question:
                break
        return question

    def find_kept(self, keep: int) -> set[int]:
        """Return the places that compression leaves alone: the newest *keep* messages, system messages, the question,
        and a newest call that waits for a result, each with its calls and results."""
        kept = {place for place in self.spoken[-keep:] if keep and place not in self.snapshots}
        kept |= self.find_question()
        answers = pair_results(self.posts, ASSISTANT)
        for place in reversed(self.spoken):
            if place in answers and len(answers[place]) < len(self.posts[place].tool_calls):
                kept.add(place)
            if place in answers or self.posts[place].tool_call_id is None:
                break
        groups = group_posts(self.posts)
        kept = kept.union(*(groups[place] for place in kept))
        return kept.union(place for place in range(len(self.messages)) if self.is_system(place))

    def tell_where(self, stem: str, text: str, *, keep: bool) -> str:
        """Return the words that tell a model where *text* is, and *keep* it there.

        Without files, they name no file and no tool.
        """
        if self.files is None:
            path, where = f"{self.folder}/{make_file_name(stem, text)}", _BY_HOST
        else:
            path = self.files.write(stem, text) if keep else self.files.make_path(stem, text)
            where = f" in the file {path}; read_file gives it, grep searches it"
        if keep:
            self.contents[path] = text
        return where


# --- compact ----------------------------------------------------------------------------------------------------------


def _compact(chat: _Chat, keep: int, threshold: int, preview: int) -> _Chat:
    """Return *chat* with its large tool results, except the newest *keep*, in files."""
    results = [place for place in chat.spoken if is_result(chat.posts[place])]
    asked = min(chat.find_question(), default=0)
    messages = list(chat.messages)
    for place in results[: len(results) - keep] if keep < len(results) else ():
        text = chat.posts[place].message
        if chat.costs[place] <= threshold or not is_text_only(chat.posts[place].extra) or _is_compacted(text, preview):
            continue
        if place > asked and is_file_answer(text):  # in a file again, the model would read it again, and so on
            continue
        stem = chat.posts[place].tool_call_id or str(messages[place].get("name") or TOOL)
        for is_worthwhile in (False, True):  # write no file for a preview that is no shorter
            where = chat.tell_where(stem, text, keep=is_worthwhile)
            content = replace_text(messages[place].get("content"), make_preview(text, preview, where, chat.count))
            shorter = {**messages[place], "content": content}
            if count_message(shorter, chat.count) >= chat.costs[place]:
                break
        else:
            messages[place] = shorter
    return copy_with(chat, messages=messages)


def make_preview(text: str, length: int, where: str, count: TokenCounter) -> str:
    """Return the first *length* characters of *text*, and a line that says how much is left out, and *where* it is."""
    shown = cut_text(text, length)
    size = describe_size(len(text) - len(shown), max(count(text[len(shown) :]), 1))
    line = f"[{size}, {_KEPT}{where}]"
    return f"{shown}\n{line}" if shown else line


def _is_compacted(text: str, preview: int) -> bool:
    last = text.rpartition("\n")[2]
    is_line = last.startswith("[") and last.endswith("]") and len(text) - len(last) <= preview + 1
    return is_line and (f"{_KEPT} in the file " in last or f"{_KEPT}{_BY_HOST}]" in last)


# --- compress ---------------------------------------------------------------------------------------------------------


def _compress(
    chat: _Chat, summarizer: Summarizer, config: CompactorConfig, max_tokens: int, keep: int, group_tokens: int
) -> tuple[_Chat, Exception | None]:
    """Return *chat* with one snapshot instead of its older messages; or unchanged, with the error if one occurred."""
    kept = chat.find_kept(keep)
    older = [place for place in chat.spoken if place not in kept]
    new = [place for place in older if place not in chat.snapshots]
    if not new:
        return chat, None
    snapshots = [chat.snapshots[place] for place in older if place in chat.snapshots]
    originals = len(new) + sum(count for _, count in snapshots)
    earlier = "\n\n".join(text for text, _ in snapshots)
    archive = make_archive(chat.messages[place] for place in older)
    where = chat.tell_where(ARCHIVE, archive, keep=False)
    frame = count_message(_make_snapshot("", originals, where), chat.count)
    before, previous = sum(chat.costs[place] for place in older), chat.count(earlier)
    saving = measure_saving(before, frame, previous)
    system = sum(cost for place, cost in enumerate(chat.costs) if chat.is_system(place))
    target, room = _choose_target(
        config.target_tokens or MIN_TARGET,
        now=max_tokens - chat.tokens + before - frame,
        ever=max_tokens - PROMPT_TOKENS - system - frame,
        older=before,
        new=sum(chat.costs[place] for place in new),
        earlier=previous,
    )
    if not target or saving is None:
        return chat, None
    work = Work(summarizer=summarizer, count=chat.count, config=config)
    # Below its heading, an accepted summary has only the user's words. Extracted ones are extracted again; those that a
    # model quoted stay, in any language.
    quoted = find_instructions(earlier)
    try:
        summary = summarize_messages(
            [chat.messages[place] for place in new],
            work,
            earlier=earlier,
            prohibitions=tuple(filter(is_prohibition, quoted)) if work.deterministic else quoted,
            tokens=saving[0],
            target=target,
            reserve=max(min(target, room - target), MIN_TARGET),
            request_tokens=group_tokens,
        )
    except SummaryRejected as rejected:
        too_little = rejected.is_final or is_too_little(rejected, deterministic=work.deterministic)
        return chat, None if too_little else rejected
    except Exception as error:  # noqa: BLE001  (a summarizer may raise anything; the agent goes on without a summary)
        return chat, error
    # With restored sentences, and by a counter that need not add up, it may be no shorter.
    if count_message(_make_snapshot(summary, originals, where), chat.count) >= before:
        return chat, None
    snapshot = _make_snapshot(summary, originals, chat.tell_where(ARCHIVE, archive, keep=True))
    # Behind the system messages at the beginning.
    first = min((place for place in kept if not chat.is_system(place)), default=len(chat.messages))
    left: list[Message | None] = [message if place in kept else None for place, message in enumerate(chat.messages)]
    left.insert(first, snapshot)
    return copy_with(chat, messages=list(filter(None, left))), None


def _choose_target(wanted: int, *, now: int, ever: int, older: int, new: int, earlier: int) -> tuple[int, int]:
    """Return the target tokens of the summary, and its room; target 0: a summary would not help.

    *now* is its room beside the kept messages, *ever* beside system messages alone. It replaces *older* tokens, *new*
    of them not yet summarised; *earlier* are those of the summary that it continues.
    """
    # A lower target would drop facts of the earlier summary, unless that one has grown too large itself.
    before = min(earlier, max(wanted, ever // 4))
    # Half of the room: models count badly, and an answer of twice the target is still accepted.
    target = max(min(wanted, max(now // 2, new // _MIN_SHARE)), before, MIN_TARGET)
    if target <= now:
        return target, now
    if older <= ever:
        return 0, now  # the newest messages alone are too much; the room returns once they are older
    return max(min(wanted, ever // 2), MIN_TARGET), ever


def _make_snapshot(summary: str, originals: int, where: str) -> Message:
    """Return the message with *summary*. It is a user message, so that no agent takes it for its own words."""
    text = summary.replace("<state_snapshot", "&lt;state_snapshot").replace("</state_snapshot", "&lt;/state_snapshot")
    last = f"{_STANDS_FOR}{originals} messages, {_KEPT}{where}]"
    return {"role": "user", "content": "\n".join([_OPENING, _HEADING, text, last, _CLOSING])}
