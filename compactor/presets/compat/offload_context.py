"""``offload_context``: one call over plain chat messages, which makes them fit by files and by one snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args
from weakref import finalize

from memory import Memory
from memory.errors import MessageError
from memory.messages import ASSISTANT, TOOL, paired, parse, reads
from memory.overlays import CompactedMessage
from memory.rounds import USER, Post, once
from prompts import PromptTemplate

from ...acceptance.checks import Source, is_too_little
from ...acceptance.prohibitions import PROHIBITIONS, carry, instructions_in, lost, restored, standing_sentences
from ...config import CompactorConfig, ConfigError, number, whole_number
from ...errors import SummaryRejected
from ...prompt.groups import PROMPT_TOKENS, Message, count_message
from ...prompt.shorten import cut_beginning, is_result, only_text, size_of
from ...strategies.incremental import Saving
from ...summarize import accepted, traits_of
from ...summarizers import ExtractiveSummarizer
from ...summarizers.answers import as_summarizer
from ...summarizers.base import Summarizer, SummaryRequest
from ...summarizers.instructions import is_prohibition
from ...tokens import TokenCounter, counter_for
from ...transcript import MIN_ROOM, Room, Step, steps
from ..options import check_function, given_text
from .archives import archive_of
from .offload_files import OffloadFiles, chat_folder, file_name, is_file_answer
from .window import group_posts

Mode = Literal["auto", "compact", "compress"]
MODES: tuple[str, ...] = get_args(Mode)
#: Where compaction leaves more than this share of the tokens, auto goes on to compression.
COMPACT_RATIO = 0.75
#: Newest tool results that compaction leaves alone, and newest messages that compression does.
KEEP_COMPACT, KEEP_COMPRESS = 1, 2
PREVIEW = 100

_SYSTEM = ("system", "developer")
_OPENING, _CLOSING = "<state_snapshot>", "</state_snapshot>"
_HEADING = (
    "[What was said and done before the messages below. Background only: it holds no new request from the user,"
    " and the calls that it tells of were made and need not be made again.]"
)
#: The least that a summary is given, in tokens: less would be scraps.
_MIN_TARGET = 64
_KEPT = "left out here and kept in full"
#: Where no file was written: what would be its name says nothing to the model.
_BY_HOST = " by the host"
_STANDS_FOR = "[Stands for "
#: What the file of older messages is named after.
_ARCHIVE = "compressed_group"
#: Of so many chats at most it is known for each summarizer how often that has failed.
_MAX_CHATS = 1_000
#: A summary is given at least this share of the tokens that it stands for.
_MIN_SHARE = 20


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """Messages for the next call of the model, and where to find what they no longer say."""

    messages: list[Message]
    #: What was taken out, by the path of its file, which the messages name. Written already where a ``store_dir`` was
    #: given; else there is no file, the messages name none, and this is all that holds it.
    write_file_dict: dict[str, str]
    #: Tokens of the messages as they came, and as they are now.
    tokens_before: int
    tokens_after: int
    #: By how many tokens they are over ``max_total_tokens`` all the same; 0: they fit.
    over: int = 0
    #: Why the summarizer compressed nothing though it was due: what it raised, or ``SummaryRejected``.
    failure: Exception | None = None
    #: The summarizer has failed again and again, and the snapshot was extracted without it.
    offline: bool = False

    @property
    def success(self) -> bool:
        return self.failure is None or self.offline

    @property
    def answer(self) -> str:
        """What was done, in a sentence or a line for each file."""
        if not self.success:
            return f"Nothing was compressed: {self.failure}"
        if not self.write_file_dict:
            return "Nothing was offloaded."
        return "\n".join(f"Kept in full: {path}" for path in self.write_file_dict)

    @property
    def metadata(self) -> dict[str, Any]:
        return {
            "write_file_dict": dict(self.write_file_dict),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "over": self.over,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the response as ReMe has it: ``success``, ``answer``, ``messages`` and ``metadata``, as plain JSON."""
        return {
            "success": self.success,
            "answer": self.answer,
            "messages": deepcopy(self.messages),
            "metadata": self.metadata,
        }


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
    """Return *messages* in at most *max_total_tokens*, or by how much more; those given stay as they are.

    Nothing happens to messages that fit. Else ``compact`` puts the beginning of each tool result of more than
    *max_tool_message_tokens* and the name of a file in its place; ``compress`` puts one summary, a user message in
    ``<state_snapshot>`` tags, in the place of older messages, an earlier snapshot included; ``auto`` compacts first,
    and compresses what that left where it is more than *compact_ratio_threshold* of the tokens or still does not fit.

    *keep_recent_count* messages stay: the newest tool results for compact (None: 1), the newest messages for compress
    (None: 2). Always stay system messages, what the user said last, and a call that waits for its results; calls and
    results are never parted. Summaries are made of at most *group_token_threshold* tokens at a time, each going on from
    the one before; None or 0: of as many as a request holds. Without a *summarizer*, the same messages always give the
    same result. One that fails leaves the messages as they were, and the result says so. After
    ``circuit_breaker_failures`` failed calls in a row (5; counted for each summarizer object and *chat_id*), messages
    over the limit are summarised offline until it answers again.

    No summary is aimed at less than the earlier snapshot says, as long as that is a fair part of the limit. Where the
    newest messages alone are too much, so that no summary would make them fit, the older ones stay as they are.

    What is taken out is in ``write_file_dict``, and in files below *store_dir*, in a folder for *chat_id*, where it is
    given: then the messages name the file, and the tools of ``OffloadFiles``. Older messages go to one plain text,
    which ``OffloadFiles.messages`` reads back. Raises ``OffloadError`` where files cannot be written, ``MessageError``
    for what is no message.
    """
    mode, most, ratio = context_manage_mode, max_total_tokens, compact_ratio_threshold
    check_settings(
        mode, most, max_tool_message_tokens, group_token_threshold, keep_recent_count, ratio, preview_char_length
    )
    whole_number("target_tokens", target_tokens, 1)
    check_function("counter", counter)
    given_text("chat_id", chat_id)
    made = None if summarizer is None else as_summarizer(summarizer)
    config = CompactorConfig(prompt_template_path=prompt, target_tokens=target_tokens, model=model)
    talk = _Talk.of(messages, counter if counter is not None else counter_for(model))
    vault = _Vault(None if store_dir is None else OffloadFiles(store_dir, chat_id), chat_folder(chat_id))
    before, failure, offline = talk.tokens, None, False
    due = before > most
    if due and mode != "compress":
        keep = KEEP_COMPACT if keep_recent_count is None else keep_recent_count
        talk = _compacted(talk, keep, max_tool_message_tokens, preview_char_length, vault)
        due = mode == "auto" and (talk.tokens > most or talk.tokens > ratio * before)
    if due:
        keep = KEEP_COMPRESS if keep_recent_count is None else keep_recent_count
        group = group_token_threshold or config.summarizer_input_tokens
        made = made if made is not None else ExtractiveSummarizer(count=talk.count)
        asking = _Asking(made, config.prompt, target_tokens, group, traits_of(made).attempts(config))
        compressed, failure = _compressed(talk, keep, most, asking, vault)
        if compressed is not talk:
            _failures.reset(summarizer, chat_id)
        failures = _failures.failed(summarizer, chat_id) if failure is not None else 0
        if talk.tokens > most and failures >= config.circuit_breaker_failures:
            instead = replace(asking, summarizer=ExtractiveSummarizer(count=talk.count), attempts=1)
            compressed, _ = _compressed(talk, keep, most, instead, vault)
            offline = compressed is not talk
        talk = compressed
    after = talk.tokens
    over = max(after - most, 0)
    return OffloadResult(deepcopy(talk.messages), dict(vault.contents), before, after, over, failure, offline)


class _Failures:
    """How many calls in a row each summarizer has failed in, chat by chat, for as long as there is the summarizer.

    By identity: many summarizers are records, and equal ones may ask different servers.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, dict[str, int]] = {}

    def reset(self, summarizer: object, chat_id: str) -> None:
        """Take note of a call in which it gave a summary."""
        self._by_id.get(id(_owner(summarizer)), {}).pop(chat_id, None)

    def failed(self, summarizer: object, chat_id: str) -> int:
        """Take note of a call in which it failed; return how many those are since it gave a summary."""
        owner = _owner(summarizer)
        known = self._by_id.get(id(owner))
        if known is None:
            try:
                finalize(owner, self._by_id.pop, id(owner), None).atexit = False
            except TypeError:  # it cannot be told when this one goes
                return 1
            known = self._by_id[id(owner)] = {}
        # Of chats that ended in a failure nobody tells: the oldest give way.
        number = known.pop(chat_id, 0) + 1
        if len(known) >= _MAX_CHATS:
            known.pop(next(iter(known)), None)
        known[chat_id] = number
        return number


def _owner(summarizer: object) -> object:
    """Return whose failures are counted: a bound method is another object each time it is named."""
    return getattr(summarizer, "__self__", summarizer)


_failures = _Failures()


def check_settings(
    mode: str, total: int, tool: int, group: int | None, keep: int | None, ratio: float, preview: int
) -> None:
    """Raise ``ConfigError`` for numbers that mean nothing, and for a mode that there is not."""
    if mode not in MODES:
        raise ConfigError(("context_manage_mode", f"is one of {', '.join(MODES)}, not {mode!r}"))
    whole_number("max_total_tokens", total, 1)
    whole_number("max_tool_message_tokens", tool, 1)
    if group is not None and whole_number("group_token_threshold", group):
        whole_number("group_token_threshold", group, MIN_ROOM)
    if keep is not None:
        whole_number("keep_recent_count", keep)
    number("compact_ratio_threshold", ratio)
    whole_number("preview_char_length", preview)


# -- messages and what belongs together --------------------------------------------------------------------------------


@dataclass(frozen=True)  # no slots: what is asked for often is worked out once and kept
class _Talk:
    """Messages, with their posts and tokens by place."""

    messages: list[Message]
    posts: list[Post]
    costs: list[int]
    count: TokenCounter

    @classmethod
    def of(cls, messages: Iterable[Mapping[str, Any]], count: TokenCounter) -> _Talk:
        posts, found = [], []
        if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
            raise MessageError(f"messages is a list of chat messages, not {type(messages).__name__}")
        for place, message in enumerate(messages, 1):
            try:
                posts.append(parse(message).post)
            except MessageError as error:
                raise MessageError(f"message {place}: {error}") from error
            found.append(dict(message))
        return cls(found, posts, [count_message(message, count) for message in found], count)

    @property
    def tokens(self) -> int:
        return PROMPT_TOKENS + sum(self.costs)

    def is_system(self, place: int) -> bool:
        return self.posts[place].send_from in _SYSTEM  # not a tool's result that the host hands on

    @once
    def spoken(self) -> list[int]:
        """The places of all but system messages."""
        return [place for place in range(len(self.messages)) if not self.is_system(place)]

    def snapshot(self, place: int) -> str | None:
        """Return the summary in an earlier snapshot; None for any other message, the newest of all included."""
        content = self.messages[place].get("content")
        if self.messages[place]["role"] != "user" or not isinstance(content, str) or place == self.spoken[-1]:
            return None
        lines = content.split("\n")
        if lines[:2] != [_OPENING, _HEADING] or lines[-1] != _CLOSING:
            return None
        return "\n".join(lines[2:-2])

    def stands_for(self, place: int) -> int:
        """Return how many messages the one at *place* stands for: itself alone, but for a snapshot."""
        if self.snapshot(place) is None:
            return 1
        last = self.messages[place]["content"].split("\n")[-2]
        count = last.removeprefix(_STANDS_FOR).partition(" ")[0]
        return int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 1

    def question(self) -> set[int]:
        """Return the places of what the user said last: the newest message, and those of the user right before it."""
        found: set[int] = set()
        for place in reversed(self.spoken):
            if self.posts[place].send_from == USER and self.snapshot(place) is None:
                found.add(place)
            elif found:
                break
        return found

    def waiting(self) -> set[int]:
        """Return the place of a call that waits for some of its results, with those it has; empty where none does."""
        answers = paired(self.posts, ASSISTANT)
        for place in reversed(self.spoken):
            if place in answers:
                lacks = len(answers[place]) < len(self.posts[place].tool_calls)
                return {place, *answers[place].values()} if lacks else set()
            if self.posts[place].tool_call_id is None:
                break
        return set()


@dataclass(slots=True)
class _Vault:
    """Where payloads go: to files, or only into the result."""

    files: OffloadFiles | None
    folder: str
    contents: dict[str, str] = field(default_factory=dict)

    def path(self, stem: str, content: str) -> str:
        """Return where *content* would go."""
        if self.files is not None:
            return self.files.path_of(stem, content)
        return f"{self.folder}/{file_name(stem, content)}"

    def keep(self, stem: str, content: str) -> str:
        path = self.path(stem, content) if self.files is None else self.files.write(stem, content)
        self.contents[path] = content
        return path

    def where(self, path: str) -> str:
        """Return how a message says where what it lacks is; no file and no tool is named where there is none."""
        if self.files is None:
            return _BY_HOST
        return f" in the file {path}; read_file gives it, grep searches it"


# -- compact -----------------------------------------------------------------------------------------------------------


def _compacted(talk: _Talk, keep: int, threshold: int, preview: int, vault: _Vault) -> _Talk:
    """Return *talk* with large tool results, but for the newest *keep*, in files."""
    results = [place for place in talk.spoken if is_result(talk.posts[place])]
    asked = min(talk.question(), default=0)
    messages, costs = list(talk.messages), list(talk.costs)
    for place in results[: len(results) - keep] if keep < len(results) else ():
        text = talk.posts[place].message
        if talk.costs[place] <= threshold or not only_text(talk.posts[place].extra) or _is_compacted(text, preview):
            continue
        if place > asked and is_file_answer(text):  # moved to a file again, it would be read again, and so on
            continue
        stem = talk.posts[place].tool_call_id or str(messages[place].get("name") or TOOL)
        where = vault.where(vault.path(stem, text))
        said = messages[place].get("content")
        shorter = {**messages[place], "content": reads(said, preview_of(text, preview, where, talk.count))}
        if count_message(shorter, talk.count) < talk.costs[place]:
            where = vault.where(vault.keep(stem, text))  # another file where somebody has changed the first
            messages[place] = {**shorter, "content": reads(said, preview_of(text, preview, where, talk.count))}
            costs[place] = count_message(messages[place], talk.count)
    return _Talk(messages, talk.posts, costs, talk.count)


def preview_of(text: str, length: int, where: str, count: TokenCounter) -> str:
    """Return the first *length* characters of *text*, and the line that says how much is kept in full, and *where*."""
    shown = cut_beginning(text, length)
    size = size_of(len(text) - len(shown), max(count(text[len(shown) :]), 1))
    line = f"[{size}, {_KEPT}{where}]"
    return f"{shown}\n{line}" if shown else line


def _is_compacted(text: str, preview: int) -> bool:
    """Return whether *text* stands for one in a file."""
    last = text.rpartition("\n")[2]
    return (
        last.startswith("[")
        and last.endswith("]")
        and (f"{_KEPT} in the file " in last or f"{_KEPT}{_BY_HOST}]" in last)
        and len(text) - len(last) <= preview + 1
    )


# -- compress ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asking:
    """How a summary is asked for."""

    summarizer: Summarizer
    prompt: PromptTemplate
    target_tokens: int
    group_tokens: int
    attempts: int

    def request(self, step: Step, earlier: str, prohibitions: Sequence[str], target: int) -> SummaryRequest:
        """Return the request to go on from the *earlier* summary, and what it carries, with the rounds of *step*."""
        end = max(step.whole, 1)
        before = CompactedMessage(
            start_index=1, end_index=end, summary=earlier, extra={PROHIBITIONS: tuple(prohibitions)}
        )
        return SummaryRequest(
            role=ASSISTANT,
            previous=before if earlier else None,
            rounds=tuple(step.rounds),
            start_index=step.rounds[0].number,
            end_index=step.rounds[-1].number,
            target_tokens=target,
            messages=self.prompt.render(
                step.text, previous_summary=earlier or None, role=ASSISTANT, target_tokens=target
            ),
        )


def _compressed(talk: _Talk, keep: int, most: int, asking: _Asking, vault: _Vault) -> tuple[_Talk, Exception | None]:
    """Return *talk* with one snapshot instead of its older messages; as it was, with the reason, where that failed."""
    kept = _kept(talk, keep)
    older = [place for place in talk.spoken if place not in kept]
    new = [place for place in older if talk.snapshot(place) is None]
    if not new:
        return talk, None
    archive, stands_for = archive_of(talk.messages[place] for place in older), sum(map(talk.stands_for, older))
    where = vault.where(vault.path(_ARCHIVE, archive))
    frame = count_message(_snapshot("", stands_for, where), talk.count)
    tokens = {place: talk.costs[place] for place in older}
    earlier = "\n\n".join(text for place in older if (text := talk.snapshot(place)) is not None)
    saving = Saving(before=sum(tokens.values()), frame=frame, previous=talk.count(earlier))
    system = sum(cost for place, cost in enumerate(talk.costs) if talk.is_system(place))
    target, room = _aim(
        asking.target_tokens,
        now=most - talk.tokens + saving.before - frame,
        ever=most - PROMPT_TOKENS - system - frame,
        older=saving.before,
        new=sum(tokens[place] for place in new),
        earlier=saving.previous,
    )
    if not target or not saving.is_possible:
        return talk, None
    try:
        summary = _summary([talk.messages[place] for place in new], earlier, saving, target, room, asking, talk.count)
    except SummaryRejected as rejected:
        too_little = is_too_little(rejected, deterministic=traits_of(asking.summarizer).deterministic)
        return talk, None if too_little else rejected
    except Exception as error:  # noqa: BLE001  (whatever a summarizer raises: the agent goes on with what there is)
        return talk, error
    made = _snapshot(summary, stands_for, where)
    # With what was restored, and by a counter that need not add up.
    if count_message(made, talk.count) >= saving.before:
        return talk, None
    made = _snapshot(summary, stands_for, vault.where(vault.keep(_ARCHIVE, archive)))
    first = min((place for place in kept if not talk.is_system(place)), default=len(talk.messages))
    before = [place for place in range(first) if place in kept]
    behind = [place for place in range(first, len(talk.messages)) if place in kept]
    messages = [*(talk.messages[place] for place in before), made, *(talk.messages[place] for place in behind)]
    return _Talk.of(messages, talk.count), None


def _aim(wanted: int, *, now: int, ever: int, older: int, new: int, earlier: int) -> tuple[int, int]:
    """Return how many tokens a summary is to have, and for how many there is room; 0 where it would not help.

    *now* is the room for it beside the messages that stay, and *ever* beside system messages alone. *older* tokens it
    replaces, *new* of them not summed up before; *earlier* are those of the summary that it goes on from.
    """
    # A summary that is aimed lower drops what the earlier one says. One that has become as large as this has to shrink.
    before = min(earlier, max(wanted, ever // 4))
    # Half of the room, since models count badly: what is twice as long as it was to be is still taken.
    target = max(min(wanted, max(now // 2, new // _MIN_SHARE)), before, _MIN_TARGET)
    if target <= now:
        return target, now
    if older <= ever:
        return 0, now  # the newest messages are too much by themselves, and leave the room again when they are older
    return max(min(wanted, ever // 2), _MIN_TARGET), ever


def _kept(talk: _Talk, keep: int) -> set[int]:
    """Return the places of what stays as it is."""
    spoken = talk.spoken
    recent = spoken[max(len(spoken) - keep, 0) :]
    stays = {place for place in recent if talk.snapshot(place) is None} | talk.question() | talk.waiting()
    block = group_posts(talk.posts)
    stays = stays.union(*(block[place] for place in stays))
    return stays.union(place for place in range(len(talk.messages)) if talk.is_system(place))


def _summary(
    messages: Sequence[Message],
    earlier: str,
    saving: Saving,
    target: int,
    room: int,
    asking: _Asking,
    count: TokenCounter,
) -> str:
    """Return one summary of *messages* and of the *earlier* one, with what the user forbade and it lacks, as far as
    there is *room*. Raises what the summarizer raises, or ``SummaryRejected``."""
    summary, taken_in = earlier, 0
    rounds = Memory.from_messages(messages).conversation.rounds
    # Below its heading a summary has the user's words only: ``accepted`` has seen to that. What was chosen by cue words
    # is chosen again; what a model quoted stays, in whatever language.
    prohibitions: tuple[str, ...] = instructions_in(earlier)
    if traits_of(asking.summarizer).deterministic:
        prohibitions = tuple(filter(is_prohibition, prohibitions))
    for step in steps(rounds, Room(asking.group_tokens), count):
        taken_in += step.tokens
        # Only the last one is shown: it has to be shorter than all messages.
        tokens = saving.new if step.whole == len(rounds) else taken_in
        source = Source(step.text, tokens, saving.previous, previous=summary)
        request = asking.request(step, summary, prohibitions, target)
        made = accepted(asking.summarizer, request, source, count, attempts=asking.attempts).summary
        summary, prohibitions = made.text, carry((*prohibitions, *standing_sentences(step.rounds)), made)
    spare = max(min(target, room - count(summary)), _MIN_TARGET)
    return restored(summary, lost(prohibitions, [summary]), spare, count)[0]


def _snapshot(summary: str, stands_for: int, where: str) -> Message:
    """Return the message that stands for older ones: the user's, for nobody is to take it for the agent's own words."""
    text = summary.replace("<state_snapshot", "&lt;state_snapshot").replace("</state_snapshot", "&lt;/state_snapshot")
    last = f"{_STANDS_FOR}{stands_for} messages, {_KEPT}{where}]"
    return {"role": "user", "content": "\n".join([_OPENING, _HEADING, text, last, _CLOSING])}
