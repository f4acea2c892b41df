"""Fingerprints of messages, for the host's history and for the log.

Fingerprints cover content but not ids, because frameworks give messages and calls new ids when they replay them. A
fingerprint takes 16 bytes.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json

from . import messages as chat
from .log.redaction import REDACTED
from .log.state import Snapshot
from .places import pack_place, unpack_place
from .rounds import USER, Post, Round, copy_with, thaw
from .values import ValueObject
from .visibility import filter_posts

Message = Mapping[str, Any]

#: Bytes of a fingerprint.
SIZE = 16
#: Kinds of log messages. The host may lack ``OPTIONAL`` ones, which the agent appended with a kind of its own. From
#: ``ERASED`` on, the text was erased: such a message equals any message of the same kind, see ``find_kind``.
USUAL, OPTIONAL, ERASED = 0, 1, 2
_SENDERS = (chat.ASSISTANT, USER, chat.TOOL, chat.FUNCTION, *chat.SYSTEM)
#: Senders of messages that answer no call.
_BEGIN = (chat.ASSISTANT, USER)
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def get_print(prints: bytes, index: int) -> bytes:
    return prints[index * SIZE : (index + 1) * SIZE]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogFingerprints(ValueObject):
    """The fingerprints of the log's messages that the host's agent sees, after the header, up to a snapshot."""

    prints: bytes = b""
    places: array[int] = field(default_factory=lambda: array("Q"))
    kinds: bytes = b""
    #: Numbers of the snapshot that reveal changes: last entry, redactions, hidden rounds.
    number: int = 0
    redactions: int = 0
    hidden: tuple[int, ...] = ()
    #: Number of posts of each round that could still grow, by round number; and the number of rounds.
    growing: tuple[tuple[int, int], ...] = ()
    total: int = 0

    def add(self, prints: bytes, places: array[int]) -> LogFingerprints:
        """Return these with the *prints* of messages that were appended at *places*, without reading them back."""
        if not places:
            return self
        known = bisect_left(places, pack_place(self.total + 1, 0))
        total, newest = unpack_place(places[-1])
        growing = dict(self.growing) | dict(map(unpack_place, places[:known])) | {total: newest}
        return copy_with(
            self,
            prints=self.prints + prints,
            places=self.places + places,
            kinds=self.kinds + bytes([USUAL]) * len(places),
            growing=tuple(growing.items()),
            total=total,
        )


def begins(message: Message) -> bool:
    """Return whether *message* certainly answers no call, so that pairing restarts there."""
    return message.get("role") == chat.ASSISTANT or (
        message.get("role") == "user" and type(message.get("content")) is str
    )


class Fingerprinter:
    """Makes the fingerprints of messages in order. It remembers the calls that later messages may answer."""

    __slots__ = ("_answered", "_calls")

    def __init__(self) -> None:
        self._calls: Mapping[str, int] = {}
        self._answered = 0

    def __call__(self, message: Message) -> bytes:
        role, content = message["role"], message.get("content")
        if role == chat.TOOL and type(content) is str:
            is_plain = self._calls.get(message.get("tool_call_id") or "", self._answered) == self._answered
            self._answered += is_plain
        elif is_plain := len(message) == 2 + (chat.NATIVE in message) and type(content) is str:  # most
            self._calls = {}
        said = f"{role}\n{content}" if is_plain else self._read(role, _list_parts(content), message)
        return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()

    def _read(self, role: str, parts: Sequence[Any], message: Message) -> str:
        """Return the role and text of *message* if there is nothing else in it, otherwise everything as JSON."""
        is_agent = role == chat.ASSISTANT  # in other roles, these keys are the host's own
        calls = (message.get("tool_calls") or ()) if is_agent else ()
        results = list(filter(is_result, parts))
        said: list[Any] = []
        if results or role in (chat.TOOL, chat.FUNCTION):
            ids = [part.get("tool_use_id", part.get("id")) for part in results] or [message.get("tool_call_id")]
            at = [self._calls.get(str(one), self._answered + place) for place, one in enumerate(ids)]
            if at != [*range(self._answered, self._answered + len(at))]:
                said.append(["answers", at])  # out of the order of the calls
            self._answered += len(at)
        else:
            asked = [*calls, *(one for one in parts if isinstance(one, Mapping) and one.get("type") == "tool_use")]
            self._calls, self._answered = (
                {str(call["id"]): place for place, call in enumerate(asked) if "id" in call},
                0,
            )
        said += [_read_call(call.get("function") or call.get("custom") or call) for call in calls]
        if is_agent and (called := message.get("function_call")):
            said.append(["called", *(_read_call(called) if isinstance(called, Mapping) else [called])])
        for key in ("name", "refusal") if role != chat.TOOL else ("refusal",):  # results name their tool only sometimes
            if value := message.get(key):
                said.append([key, value])
        if not said and len(parts) < 2 and all(isinstance(one, str) for one in parts):
            return f"{role}\n{''.join(parts)}"
        whole = [[_read_part(one) for one in parts], said]
        try:
            return f"{role}:\n{_JSON.encode(whole)}"
        except TypeError:  # mappings other than dicts
            return f"{role}:\n{_JSON.encode(thaw(whole))}"


def is_result(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _list_parts(content: Any) -> Sequence[Any]:
    """Return the parts of a message's content; a text is one part."""
    if content is None or content == "":
        return ()
    if isinstance(content, (str, Mapping)):
        content = (content,)
    # A text part equals the same text without a part.
    return [
        one["text"]
        if isinstance(one, Mapping) and one.get("type") == "text" and isinstance(one.get("text"), str)
        else one
        for one in content
    ]


def _read_part(part: Any) -> Any:
    """Return the content of a message part without ids, cache marks of the provider, and empty fields."""
    if not isinstance(part, Mapping):
        return part
    match part.get("type"):
        case "tool_use":
            return {"call": _read_call(part)}
        case "tool_result":
            given = part.get("output", part.get("content"))
            return {"result": [_read_part(one) for one in _list_parts(given)], "error": bool(part.get("is_error"))}
    return {key: value for key, value in part.items() if key not in ("id", "cache_control") and value is not None}


def _read_call(asked: Mapping[str, Any]) -> list[Any]:
    """Return the name and the arguments of a call; JSON is parsed, because frameworks may format it anew."""
    name, arguments = chat.read_call(asked)
    if isinstance(arguments, str):
        with suppress(ValueError, TypeError):  # or, with half a character, none that can be encoded
            arguments = from_json(arguments or "{}")
    return [name, arguments]


def read_log(now: Snapshot, known: LogFingerprints) -> LogFingerprints:
    """Return the fingerprints of the log's messages at *now*; *known* are those of an earlier moment.

    Reads only rounds that are new or have changed since. Raises ``StoreError``.
    """
    if now.number == known.number:
        return known
    since, post = _find_change(now, known)
    cut = bisect_left(known.places, pack_place(since, post))
    prints, kinds, places = [known.prints[: cut * SIZE]], bytearray(known.kinds[:cut]), known.places[:cut]
    hidden = set(now.hidden)
    for number in range(since, now.total + 1):
        if number in hidden:
            continue
        fingerprint = Fingerprinter()
        for place, kind, message in _list_messages(filter_posts(chat.ASSISTANT, now.get_round_at(number)), post):
            found = (Fingerprinter() if kind == OPTIONAL else fingerprint)(message)
            if place >= post:
                prints.append(found)
                kinds.append(kind)
                places.append(pack_place(number, place))
        post = 0
    growing = tuple((number, one.count) for number, one in now.open_rounds.items())
    return LogFingerprints(
        b"".join(prints), places, bytes(kinds), now.number, now.redactions, now.hidden, growing, now.total
    )


def _find_change(now: Snapshot, known: LogFingerprints) -> tuple[int, int]:
    """Return the numbers of the first round and post at *now* that differ from *known*."""
    if now.redactions != known.redactions or now.number < known.number:
        return 1, 0
    changed = [(known.total + 1, 0)]
    if now.hidden is not known.hidden:
        changed += [(number, 0) for number in set(now.hidden).symmetric_difference(known.hidden)]
    for number, count in known.growing:
        live = now.open_rounds.get(number)
        if (live.count if live is not None else len(now.get_round_at(number).post_list)) != count:
            changed.append((number, count + 1))
    return min(changed)


def _list_messages(round_: Round, first: int) -> Iterator[tuple[int, int, Message]]:
    """Yield number, kind and message of the query and the posts of *round_*, from post number *first* on.

    Begins earlier, at the calls, if that post may answer one.
    """
    asked = chat.make_query_message(round_)
    if asked is not None and first == 0:
        yield 0, find_kind(chat.parse(asked)) if round_.user_query == REDACTED else USUAL, asked
    posts = round_.post_list
    start = bisect_left(posts, first, key=lambda post: post.number)
    while 0 < start < len(posts) and (posts[start].send_from not in _BEGIN or posts[start].kind != chat.MESSAGE):
        start -= 1
    for place in range(start, len(posts)):
        post = posts[place]
        if place == 0 and asked is not None and chat.repeats_query(post, round_):
            continue
        kind = find_kind(post) if post.message == REDACTED else USUAL if post.kind == chat.MESSAGE else OPTIONAL
        yield post.number, kind, chat.from_post(post)


def find_kind(post: Post) -> int:
    """Return the kind of an erased message, by who sends it and how many calls it makes."""
    sender = post.send_from if post.send_from in _SENDERS else USER  # another agent's name
    return ERASED + _SENDERS.index(sender) + len(_SENDERS) * min(len(post.tool_calls), 40)
