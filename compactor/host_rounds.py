"""Another host's rounds, read as ours: objects or mappings with ``user_query`` and ``post_list``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from memory.errors import ContextError
from memory.overlays import CompactedMessage, Reductions
from memory.rounds import Attachment, FrozenMapping, Post, Round, RoundState, ToolCall, cached_property, copy_with
from memory.usage import Usage
from memory.visibility import Rounds, filter_posts

#: Key in a compaction's ``extra`` for the ids of the last rounds that it covers, the newest first.
COVERED = "covered"


class NotARound(ContextError, TypeError):
    """A host's round cannot be read; the message names the field, and quotes no conversation."""


def adapt_rounds(rounds: Sequence[Any], role: str) -> Rounds | HostRounds:
    """Return the rounds of a ``rounds_getter`` as rounds of ours with only the posts that *role* sees."""
    if isinstance(rounds, Rounds):
        return rounds.for_role(role)
    if isinstance(rounds, tuple) and len(rounds) == 2 and isinstance(rounds[0], (Rounds, list, tuple)):
        raise NotARound(
            "rounds_getter gave rounds and a compaction, as get_role_rounds does: give it memory.rounds_getter(role),"
            " or a function that returns get_role_rounds(role)[0]"
        )
    if isinstance(rounds, (str, bytes, Mapping)) or not isinstance(rounds, Iterable):
        raise NotARound(f"rounds_getter gave a {type(rounds).__name__}: have it return the rounds, in a list")
    return HostRounds(rounds, role)


class HostRounds(Sequence[Round]):
    """A copy of another host's rounds, each turned into one of ours when it is read.

    Rounds are objects or mappings. They need ``user_query`` and ``post_list``, their posts ``send_from``, ``send_to``
    and ``message``, attachments ``content``, tool calls ``name`` and ``arguments`` or ``input``, on them or in a
    ``function``: reading one that lacks a field raises ``NotARound``, for its text would not reach the summarizer.
    So does an iterator where a list belongs, for it is empty when it is read again, and a ``state`` other than
    ``created``, ``finished`` and ``failed``. A round without ``state`` is closed. Those without ``id`` are told apart
    by their place.
    """

    #: None: nobody promises that they stay as they are. Those of a Memory, ``Rounds``, have one.
    snapshot = None
    #: Only a Memory has them.
    reductions = Reductions()
    usage = Usage()
    redactions = 0
    erased: Mapping[str, tuple[int, ...]] = FrozenMapping()
    pins: frozenset[tuple[str, int]] = frozenset()

    def __init__(self, rounds: Iterable[Any], role: str) -> None:
        # A copy: the host may go on adding to its list.
        self._rounds = tuple(rounds)
        self.total = len(self._rounds)
        self.role = role
        #: Equal to nothing else: another host's rounds may change at any time.
        self.epoch = object()
        states = map(_read_state, self._rounds, range(len(self._rounds)))
        self.closed = next((place for place, state in enumerate(states) if state == "created"), len(self._rounds))

    def __len__(self) -> int:
        return len(self._rounds)

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Round, ...]: ...
    def __getitem__(self, index: int | slice) -> Round | tuple[Round, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        return filter_posts(self.role, _make_round(self._rounds[place], place))

    def get_number(self, index: int) -> int:
        """Return the number of a round: that of its place, from 1."""
        return index + 1

    def find_end(self, round_id: str) -> int | None:
        """Return the number of rounds up to and including *round_id*; None if it is not there."""
        return self._ends.get(round_id)

    def find_place(self, round_id: str) -> int | None:
        """Return the index of *round_id*; None if it is not there."""
        end = self.find_end(round_id)
        return None if end is None else end - 1

    @cached_property
    def _ends(self) -> dict[str, int]:
        return {_read_id(item, place): place + 1 for place, item in enumerate(self._rounds)}

    def anchor(self, compaction: CompactedMessage | None) -> CompactedMessage | None:
        """Return *compaction* with its end at the last covered round that is still there.

        Hosts hide failed rounds, and some drop old ones; the rounds behind them must not be missed.
        """
        if compaction is None:
            return None
        end = min(compaction.end_index, len(self))
        if compaction.end_round_id is not None:
            covered = (compaction.end_round_id, *compaction.extra.get(COVERED, ()))
            end = next(filter(None, map(self.find_end, covered)), 0)
        return copy_with(compaction, end_index=end)

    def has_lost(self, compaction: CompactedMessage) -> bool:
        """Return whether a round that *compaction* covers has failed since, as far as known.

        Its state says so, or it is gone while an older one is still there. If the oldest are gone, the host may have
        dropped them.
        """
        ends = [self.find_end(one) for one in compaction.extra.get(COVERED, ())]
        while ends and ends[-1] is None:
            del ends[-1]
        return any(end is None or _read_state(self._rounds[end - 1], end - 1) in ("failed", "undone") for end in ends)

    def find_valid(self, compaction: CompactedMessage | None) -> CompactedMessage | None:
        """Return *compaction* as ``anchor`` does; None if it covers none of these rounds, or one that failed."""
        if compaction is None or self.has_lost(compaction):
            return None
        anchored = self.anchor(compaction)
        return anchored if anchored and anchored.end_index else None


_STATES: Mapping[str, RoundState] = {
    "created": "created",
    "finished": "finished",
    "failed": "failed",
    "undone": "undone",
}


def _read_state(item: Any, index: int) -> RoundState:
    if _read_field(item, "state") is None:
        return "finished"
    word = _read_word(item, "state")
    if word not in _STATES:  # an open round would be taken for a closed one
        remedy = "give created, finished, failed or undone, or leave it out where the round is closed"
        raise NotARound(f"state of round {index + 1} is {word!r:.40}; {remedy}")
    return _STATES[word]


def _read_id(item: Any, index: int) -> str:
    return str(_read_field(item, "id") or f"#{index + 1}")


def _make_round(item: Any, index: int) -> Round:
    if isinstance(item, Round):
        return item
    name = f"round {index + 1}"
    _require(item, name, "user_query", "post_list")
    posts = (
        _make_post(post, number, f"post {number} of {name}") for number, post in _enumerate(item, "post_list", name)
    )
    return Round(
        id=_read_id(item, index),
        user_query=_read_text(item, "user_query"),
        state=_read_state(item, index),
        post_list=tuple(posts),
        number=index + 1,
    )


def _make_post(item: Any, number: int, name: str) -> Post:
    if isinstance(item, Post):
        return item
    _require(item, name, "send_from", "send_to", "message")
    attachments, calls = [], []
    for at, one in _enumerate(item, "attachment_list", name):
        _require(one, f"attachment {at} of {name}", "content")
        attachments.append(Attachment(id=f"a{at}", type=_read_word(one, "type"), content=_read_text(one, "content")))
    for at, one in _enumerate(item, "tool_calls", name):
        # OpenAI's calls have name and arguments in a function; the arguments of AgentScope and Anthropic are an input.
        asked = _read_field(one, "function") or one
        _require(asked, f"tool call {at} of {name}", "name")
        arguments = _read_text(asked, "arguments") or _read_text(asked, "input")
        calls.append(ToolCall(id=_read_text(one, "id"), name=_read_text(asked, "name"), arguments=arguments))
    return Post(
        id=str(_read_field(item, "id") or f"p{number}"),
        send_from=_read_word(item, "send_from"),
        send_to=_read_word(item, "send_to"),
        message=_read_text(item, "message"),
        attachment_list=tuple(attachments),
        tool_calls=tuple(calls),
        tool_call_id=_read_word(item, "tool_call_id") or None,
        number=number,
        extra=FrozenMapping(),
    )


def _require(item: Any, name: str, *fields: str) -> None:
    """Raise ``NotARound`` unless *item* has all *fields*; they may be None."""
    for field in fields:
        if not (field in item if isinstance(item, Mapping) else hasattr(item, field)):
            raise NotARound(
                f"{name}, a {type(item).__name__}, has no {field}; rounds need user_query and post_list,"
                " posts send_from, send_to and message, attachments content, and tool calls name"
            )


def _enumerate(item: Any, field: str, name: str) -> Iterable[tuple[int, Any]]:
    """Return the items in a list in *field*, counted from 1. Raises ``NotARound`` if it is no list."""
    items = _read_field(item, field) or ()
    if isinstance(items, (Iterator, str, bytes, Mapping)) or not isinstance(items, Iterable):
        why = ", which is empty when it is read again" if isinstance(items, Iterator) else ""
        raise NotARound(f"{field} of {name} is no list but a {type(items).__name__}{why}; give a list or a tuple")
    return enumerate(items, 1)


def _read_field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _read_text(item: Any, name: str) -> str:
    """Return a field as text; mappings and lists as JSON."""
    value = _read_field(item, name)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (Mapping, list)) else str(value)


def _read_word(item: Any, name: str) -> str:
    word = _read_field(item, name)
    return str(getattr(word, "value", word) or "")  # an enum's value
