"""Rounds, and records of the log, as nested tuples of texts and numbers.

The garbage collector stops walking such tuples after its first look, so what is closed costs it nothing, however long a
session grows. They take half the memory of records, and share their texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from .entries import KINDS, NAMES, PostAdded, RoundOpened, from_ascii, to_ascii
from .messages import NO_FIELDS
from .rounds import EMPTY, Attachment, FrozenMapping, Post, Round, ToolCall, create_unchecked, freeze_mapping

_POST, _ROUND, _CALL = tuple(Post.model_fields), tuple(Round.model_fields), tuple(ToolCall.model_fields)
_post_values, _round_values = itemgetter(*_POST), itemgetter(*_ROUND)
#: The ``extra`` of most records, by the number that stands for it.
_SHARED = (EMPTY, NO_FIELDS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The newest stamp that was packed, and its number: an entry and its record have the same one.
_newest = [(_EPOCH, 0)]
_newest_read = [(0, _EPOCH)]


def pack_stamp(stamp: datetime) -> int | datetime:
    """Return *stamp* as a number; itself if it is in another zone than UTC, or of a class of its own."""
    known, packed = _newest[0]
    if known is stamp:
        return packed
    if type(stamp) is not datetime or stamp.tzinfo is not UTC or stamp.fold:
        return stamp
    since = stamp - _EPOCH
    packed = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    _newest[0] = stamp, packed
    return packed


def unpack_stamp(packed: int | datetime) -> datetime:
    if isinstance(packed, datetime):
        return packed
    known, stamp = _newest_read[0]
    if known is not packed:
        stamp = _EPOCH + timedelta(microseconds=packed)
        _newest_read[0] = packed, stamp
    return stamp


def pack_mapping(mapping: Any) -> int | str:
    """Return *mapping*, which is frozen, as a number or a text."""
    return 0 if mapping is EMPTY else 1 if mapping is NO_FIELDS else to_ascii(mapping)


def unpack_mapping(packed: int | str) -> FrozenMapping:
    return _SHARED[packed] if isinstance(packed, int) else freeze_mapping(from_ascii(packed))


def pack_post(post: Post) -> Post | tuple[Any, ...]:
    """Return *post* packed; itself if it is a host's own class, which may hold more."""
    if type(post) is not Post:
        return post
    *head, attachments, calls, answers, kind, number, created_at, extra = _post_values(post.__dict__)
    packed: tuple[Any, ...] = ()
    if attachments or calls:
        if not all(type(one) is Attachment for one in attachments) or not all(type(one) is ToolCall for one in calls):
            return post
        packed = (
            tuple([(one.id, one.type, one.content, pack_mapping(one.extra)) for one in attachments]),
            tuple([(one.id, one.name, one.arguments) for one in calls]),
        )
    return (*head, packed, answers, kind, number, pack_stamp(created_at), pack_mapping(extra))


def unpack_post(packed: Post | tuple[Any, ...]) -> Post:
    """Return the post that was packed, or an equal one."""
    if isinstance(packed, Post):
        return packed
    *head, parts, answers, kind, number, created_at, extra = packed
    attachments, calls = parts or ((), ())
    values = (
        *head,
        tuple([_unpack_attachment(*one) for one in attachments]),
        tuple([create_unchecked(ToolCall, dict(zip(_CALL, one, strict=True))) for one in calls]),
        *(answers, kind, number, unpack_stamp(created_at), unpack_mapping(extra)),
    )
    return create_unchecked(Post, dict(zip(_POST, values, strict=True)))


def _unpack_attachment(id_: str, type_: str, content: str, extra: int | str) -> Attachment:
    fields = {"id": id_, "type": type_, "content": content, "extra": unpack_mapping(extra)}
    return create_unchecked(Attachment, fields)


def pack_round(round_: Round) -> tuple[Any, ...]:
    id_, user_query, state, posts, created_at, number, extra = _round_values(round_.__dict__)
    return (id_, user_query, state, tuple(map(pack_post, posts)), pack_stamp(created_at), number, pack_mapping(extra))


def unpack_round(packed: tuple[Any, ...]) -> Round:
    """Return a round equal to the one that was packed."""
    id_, user_query, state, posts, created_at, number, extra = packed
    posts = tuple([unpack_post(post) for post in posts])
    values = (id_, user_query, state, posts, unpack_stamp(created_at), number, unpack_mapping(extra))
    return create_unchecked(Round, dict(zip(_ROUND, values, strict=True)))


def _unpack_opened(values: Sequence[Any]) -> dict[str, Any]:
    round_id, query, created_at, extra = values
    created_at, extra = unpack_stamp(created_at), unpack_mapping(extra)
    return {"round_id": round_id, "user_query": query, "created_at": created_at, "extra": extra}


_Pack = Callable[[Mapping[str, Any]], Iterable[Any]]
_Unpack = Callable[[Sequence[Any]], dict[str, Any]]


def _keep_values(names: Sequence[str]) -> _Pack:
    return lambda of: map(of.__getitem__, names)


def _name_values(names: Sequence[str]) -> _Unpack:
    return lambda values: dict(zip(names, values, strict=True))


_FIELDS = {kind: tuple(record.model_fields) for kind, record in KINDS.items()}
#: By the kind of an entry: how the fields of its record become texts and numbers. Only rounds and posts are packed; the
#: values of other records stay as they are.
PACK: Mapping[str, _Pack] = {
    **{kind: _keep_values(names) for kind, names in _FIELDS.items()},
    NAMES[RoundOpened]: lambda of: (
        of["round_id"],
        of["user_query"],
        pack_stamp(of["created_at"]),
        pack_mapping(of["extra"]),
    ),
    NAMES[PostAdded]: lambda of: (of["round_id"], pack_post(of["post"])),
}
#: And how they come back.
UNPACK: Mapping[str, _Unpack] = {
    **{kind: _name_values(names) for kind, names in _FIELDS.items()},
    NAMES[RoundOpened]: _unpack_opened,
    NAMES[PostAdded]: lambda values: {"round_id": values[0], "post": unpack_post(values[1])},
}
