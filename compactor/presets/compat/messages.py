"""Lists of chat messages: checked, kept together where a call needs its result, and as plain text that people can read
and search, from which exactly the same messages come back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from memory import CompactedMessage, ContextError, Memory, MessageError, Post
from memory.messages import ASSISTANT, FUNCTION, SYSTEM, TOOL, pair_results, parse
from memory.rounds import freeze_mapping, thaw

from ...acceptance.checks import Source
from ...acceptance.prohibitions import PROHIBITIONS, add_quoted_instructions, collect_prohibitions
from ...errors import SummaryRejected
from ...prompt.groups import Message
from ...summarize import SummaryTask, Work
from ...summarizers import SummaryRequest
from ...summarizers.base import RequestKind
from ...transcript import StepLimit, split_into_steps

#: The keys of texts that are never written as JSON in an archive: that would escape them.
_TEXT_KEYS = frozenset({"arguments", "content", "text"})
_BELOW = "(below)"
_HEADING = "--- message "
_UNNAMED = "?"


class NotAMessage(MessageError, TypeError):
    """A value is not a chat message; nothing was stored."""


class NotAnArchive(ContextError, ValueError):
    """A text is not a result of ``make_archive``."""


def format_msgs(msgs: object) -> list[Message]:
    """Return copies of one message or several. Raises ``NotAMessage``, a ``TypeError``."""
    several = isinstance(msgs, Sequence) and not isinstance(msgs, str | bytes)
    messages = []
    for place, message in enumerate(msgs if several else (msgs,), 1):  # type: ignore[arg-type, var-annotated]
        try:
            parse(message)
            messages.append(thaw(freeze_mapping(message)))
        except MessageError as error:
            raise NotAMessage(f"message {place}: {error}; nothing was stored") from error
    return messages


def check_list(messages: object) -> list[Message]:
    """Return copies of several messages. Raises ``NotAMessage``, also for a single one."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise NotAMessage(f"messages is a list of chat messages, not {type(messages).__name__}")
    return format_msgs([*messages])


def check_indices(indices: Iterable[int] | int, count: int) -> list[int]:
    """Return *indices* as a list. Raises ``IndexError`` if one is not below *count*, and ``TypeError``."""
    given: list[Any] = [indices]
    if isinstance(indices, Iterable) and not isinstance(indices, str | bytes):
        given = list(indices)
    if any(isinstance(index, bool) or not isinstance(index, int) for index in given):
        raise TypeError("indices are whole numbers: places in the list of messages that you were given, from 0")
    if wrong := [index for index in given if not 0 <= index < count]:
        missing = ", ".join(map(str, wrong[:5]))
        raise IndexError(f"there is no message at {missing}: the list has {count}, counted from 0")
    return given


# --- which messages belong together -----------------------------------------------------------------------------------


def group_posts(posts: Sequence[Post]) -> list[set[int]]:
    """Return, for each post, the places of its group: a call and its results.

    A result in OpenAI's older function form has no id: it belongs to the agent's message right before it.
    """
    groups = [{place} for place in range(len(posts))]
    pairs = [(call, result) for call, results in pair_results(posts, ASSISTANT).items() for result in results.values()]
    spoken = [place for place, post in enumerate(posts) if post.send_from not in SYSTEM]
    for earlier, place in pairwise(spoken):
        if posts[place].send_from == FUNCTION and posts[earlier].send_from == ASSISTANT:
            pairs.append((earlier, place))
    for one, other in pairs:
        groups[one] |= groups[other]
        for place in groups[one]:
            groups[place] = groups[one]
    return groups


def group_messages(messages: Iterable[Message]) -> list[set[int]]:
    """Return, for each message, the places of its group: a call and its results."""
    return group_posts([parse(message) for message in messages])


def is_torn(message: Message, group: set[int]) -> bool:
    """Return whether *message* is a result without its call, or has a call without its result."""
    return (message["role"] == TOOL and len(group) == 1) or awaits_result(message, group)


def awaits_result(message: Message, group: set[int]) -> bool:
    return count_calls(message) >= len(group)  # the group has the message itself, too


def count_calls(message: Message) -> int:
    if message["role"] != ASSISTANT:
        return 0
    return len(message.get("tool_calls") or ()) or int(bool(message.get("function_call")))


def take_newest(messages: list[Message], number: int) -> list[Message]:
    """Return the newest *number* messages, and the calls of results among them."""
    groups = group_messages(messages)
    start = max(len(messages) - number, 0)
    while (earliest := min(map(min, groups[start:]), default=start)) < start:
        start = earliest
    return messages[start:]


def label_orphan(message: Message, group: set[int]) -> Message:
    """Return *message*; a result without its call becomes a user message that says so, as providers refuse it."""
    if message["role"] != TOOL or len(group) > 1:
        return message
    return {"role": "user", "content": f"[Late result of a tool call]\n{parse(message).message}"}


# --- as a summary -----------------------------------------------------------------------------------------------------


def summarize_messages(
    messages: Iterable[Message],
    work: Work,
    *,
    earlier: str,
    prohibitions: Sequence[str],
    tokens: int,
    target: int,
    reserve: int,
    request_tokens: int = sys.maxsize,
    kind: RequestKind = "rounds",
    length_setting: str = "target_tokens",
) -> str:
    """Return one accepted summary of the *earlier* one and *messages*, at most *tokens* longer than that.

    Each request has at most *request_tokens* of conversation, and continues the summary before. Lost *prohibitions*,
    and those in *messages*, are put back within *reserve* tokens. Raises the summarizer's errors, and
    ``SummaryRejected``.
    """
    rounds = Memory.from_messages(messages).conversation.rounds
    if not rounds:
        raise SummaryRejected("empty", "system messages alone cannot be summarised")
    summary, sent = earlier, 0
    for step in split_into_steps(rounds, StepLimit(request_tokens), work.count):
        sent += step.tokens
        is_last = step.whole_rounds == len(rounds)
        previous = CompactedMessage(
            start_index=1, end_index=max(step.whole_rounds, 1), summary=summary, extra={PROHIBITIONS: prohibitions}
        )
        prohibitions = collect_prohibitions(previous, step.rounds)
        request = SummaryRequest(
            role=ASSISTANT,
            kind=kind,
            previous=previous if summary else None,
            rounds=tuple(step.rounds),
            start_index=step.rounds[0].number,
            end_index=step.rounds[-1].number,
            target_tokens=target,
            messages=work.config.prompt.render(
                step.text, previous_summary=summary or None, role=ASSISTANT, target_tokens=target
            ),
        )
        # Only the last summary is shown, and has to be shorter than all messages.
        source = Source(step.text, tokens if is_last else sent, work.count(earlier), previous=summary)
        lost = prohibitions if is_last else ()
        task = SummaryTask(request, source, lost, reserve=reserve, length_setting=length_setting)
        answer = work.summarize(task)
        summary, prohibitions = answer.text, add_quoted_instructions(prohibitions, answer)
    return summary


# --- as plain text ----------------------------------------------------------------------------------------------------


def make_archive(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return *messages* as plain text: for each, one line with its fields as JSON, and below it, unescaped, its texts,
    its tool arguments, and all other strings that JSON would escape."""
    given = list(messages)
    lines: list[str] = []
    for place, message in enumerate(given, 1):
        texts: list[tuple[str, str]] = []
        fields = json.dumps(_extract_texts(message, "", texts), ensure_ascii=False, default=str)
        lines.append(f"{_HEADING}{place} of {len(given)}: {fields}")
        for path, text in texts:
            below = text.split("\n")
            lines += [f"{path}, {len(below)} {'line' if len(below) == 1 else 'lines'}:", *below]
    return "\n".join([*lines, ""])


def read_archive(archive: str) -> list[Message]:
    """Return the messages that ``make_archive`` was given. Raises ``NotAnArchive`` for any other text."""
    if not isinstance(archive, str):
        raise NotAnArchive(f"an archive is a text, not {type(archive).__name__}")
    lines = iter(archive.split("\n"))
    messages: list[Message] = []
    try:
        for line in lines:
            if line.startswith(_HEADING):
                messages.append(json.loads(line.partition(": ")[2]))
            elif line:
                path, _, size = line.removesuffix(":").rpartition(", ")
                count = int(size.partition(" ")[0])
                below = list(islice(lines, count))
                if not 0 < len(below) == count:
                    raise ValueError(path)
                *folders, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
                where: Any = messages[-1]
                for key in folders:
                    where = where[key]
                _ = where[last]
                where[last] = "\n".join(below)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise NotAnArchive("this is no archive of messages, or somebody has changed it") from error
    return messages


def _extract_texts(value: Any, path: str, texts: list[tuple[str, str]]) -> Any:
    """Return *value* with a mark instead of each text; the texts are appended to *texts* with their paths."""
    if isinstance(value, Mapping):
        return {key: _extract_texts(one, _join_path(path, key), texts) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [
            _extract_texts(one, path if path == _UNNAMED else f"{path}/{place}", texts)
            for place, one in enumerate(value)
        ]
    if not isinstance(value, str) or not value or path == _UNNAMED:
        return value
    if path.rpartition("/")[2] not in _TEXT_KEYS and json.dumps(value, ensure_ascii=False) == f'"{value}"':
        return value  # JSON would escape nothing in it
    texts.append((path, value))
    return _BELOW


def _join_path(folder: str, key: object) -> str:
    """Return the path of a value. Below a key that is not a plain name it is unknown, and texts stay in the JSON."""
    plain = isinstance(key, str) and key.isascii() and key.replace("_", "").isalnum() and not key.isdecimal()
    if not plain or folder == _UNNAMED:
        return _UNNAMED
    return f"{folder}/{key}" if folder else str(key)
