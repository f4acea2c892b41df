"""Erasing the text of a post: from the snapshot, and from every entry of the log that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ..entries import (
    CompactionPrepared,
    CompactionPublished,
    Entry,
    PostAdded,
    PostRedacted,
    ReductionPublished,
    RoundOpened,
    ShownRecorded,
    covers,
    list_kinds,
)
from ..errors import StoreError, UnknownReference
from ..messages import FUNCTION, OPENAI_FIELDS, came_as_message, make_query_message, repeats_query
from ..overlays import without_posts
from ..references import make_reference, parse_reference
from ..rounds import EMPTY, Extra, FrozenMapping, Post, Record, Round, copy_with, freeze_mapping
from ..stores.base import Store

if TYPE_CHECKING:
    from ..visibility import Rounds
    from .state import Snapshot

#: Stands in place of an erased text.
REDACTED = "[Redacted]"

_KINDS_OF_MANY_ROUNDS = list_kinds(CompactionPrepared, CompactionPublished, ShownRecorded)
_KINDS_WITH_TEXT = _KINDS_OF_MANY_ROUNDS | list_kinds(ReductionPublished, RoundOpened, PostAdded)
_REDACTION_KINDS = list_kinds(PostRedacted)


def erase_posts(round_: Round, numbers: Iterable[int]) -> Round:
    """Return *round_* with the posts of these *numbers* erased."""
    numbers = frozenset(numbers)
    posts = tuple(redact_post(post) if post.number in numbers else post for post in round_.post_list)
    query, extra = (REDACTED, strip_extra(round_.extra)) if 0 in numbers else (round_.user_query, round_.extra)
    return copy_with(round_, post_list=posts, user_query=query, extra=extra)


def redact_post(post: Post) -> Post:
    """Return *post* without its text. Ids and names of tools stay, so that no call loses its result."""
    calls = tuple(copy_with(call, arguments="{}") for call in post.tool_calls)
    extra = strip_extra(post.extra, named=post.send_from == FUNCTION)
    return copy_with(post, message=REDACTED, attachment_list=(), tool_calls=calls, extra=extra)


def strip_extra(extra: Extra, *, named: bool = False) -> FrozenMapping:
    """Return only the parts of *extra* that mark a chat message and pair calls of the old form with their results."""
    if not came_as_message(extra):
        return EMPTY
    kept: object = extra[OPENAI_FIELDS]
    left: dict[str, object] = {}
    if isinstance(kept, Mapping):
        call = kept.get("function_call")
        if isinstance(call, Mapping):
            left["function_call"] = {"name": call.get("name"), "arguments": "{}"}
        if named:
            left["name"] = kept.get("name")
    return freeze_mapping({OPENAI_FIELDS: left})


def find_post(rounds: Rounds, what: Post | str) -> tuple[Round, int]:
    """Return the round and the number (0: the user's query) of a post, given itself or by reference. *rounds* are those
    of the log. Raises ``UnknownReference``."""
    if isinstance(what, Post):
        for round_ in reversed(rounds):
            for post in round_.post_list:
                if (post.id, post.created_at) == (what.id, what.created_at) and what.number in (0, post.number):
                    return round_, post.number
        raise UnknownReference("this post is in no round of this session; give one that add_post() returned")
    reference = parse_reference(what)
    number = reference.first_post
    if number is None or number != reference.last_post:
        raise UnknownReference(f"{what[:40]!r} is no reference to a post; they look like r12.p3, or r12.p0 for a query")
    if 1 <= reference.first <= len(rounds):
        found = rounds[reference.first - 1]
        if number <= len(found.post_list) and (number or make_query_message(found) is not None):
            return found, number
    raise UnknownReference(f"there is no {what} in this session")


def create_redaction(round_: Round, number: int) -> PostRedacted:
    """Return the record that erases the post of that *number*, and the query too if the post repeats it."""
    twice = number <= 1 and round_.post_list and repeats_query(round_.post_list[0], round_)
    return PostRedacted(round_id=round_.id, numbers=(0, 1) if twice else (number,))


def create_redactions(now: Snapshot, round_number: int, number: int) -> dict[int, PostRedacted]:
    """Return by round the records that erase a post of a round, there and in its copies: a round from whose
    inside the conversation went on is hidden, and another begins with copies of its posts."""
    erased: dict[int, set[int]] = {}
    todo = [(round_number, number)]
    while todo:
        at, post = todo.pop()
        if post in erased.setdefault(at, set()):
            continue
        erased[at].add(post)
        todo += [(at, one) for one in create_redaction(now.get_round_at(at), post).numbers]
        for old, (round_id, copied) in now.continued.items():
            new = now.find_number(round_id)
            if new and post <= copied and at in (old, new):
                todo.append((new if at == old else old, post))
    return {
        at: PostRedacted(round_id=now.get_round_at(at).id, numbers=tuple(sorted(posts)))
        for at, posts in sorted(erased.items())
    }


def list_references(record: PostRedacted, number: int) -> tuple[str, ...]:
    """Return the references of the posts that *record* erases, in the round of that *number*."""
    return tuple(make_reference(number, post) for post in record.numbers)


def read_erased_references(store: Store, session: str, numbers: Callable[[str], int]) -> tuple[str, ...]:
    """Return the references of all posts that were erased, each once. *numbers* gives those of the rounds."""
    found: dict[str, None] = {}
    for entry in store.read_kinds(session, _REDACTION_KINDS):
        if isinstance(record := entry.record, PostRedacted):
            found |= dict.fromkeys(list_references(record, numbers(record.round_id)))
    return tuple(found)


def has_erased_text(present: Round, record: PostRedacted) -> bool:
    """Return whether *present* still has the text that *record* erases. Posts are erased last, after all overlays."""
    return erase_posts(present, record.numbers) != present


def apply_redaction(now: Snapshot, record: PostRedacted) -> Snapshot:
    """Return *now* without the text, and without everything made from it."""
    posts = (*now.erased.get(record.round_id, ()), *record.numbers)
    after = withdraw_redacted(now, record)
    after = after.copy_with(epoch=after.epoch + 1, erased={**now.erased, record.round_id: posts})
    number = now.find_number(record.round_id)
    now.archive.forget_records()
    if number > now.closed_prefix:
        return after.copy_with(
            open_rounds=now.open_rounds | {number: now.open_rounds[number].apply_record(record, now.number)}
        )
    archive = now.archive.with_change(now.closed_prefix, number, lambda round_: erase_posts(round_, record.numbers))
    return after.copy_with(archive=archive)


def withdraw_redacted(now: Snapshot, record: PostRedacted) -> Snapshot:
    """Return *now* without everything made from the text. This needs no text, so the result is the same when the log is
    read again. Every role gets a new generation, because a compaction in the making may hold the text.

    May raise ``StoreError``, because it reads the compaction to be shown instead. So try it before the redaction is
    written."""
    number = now.find_number(record.round_id)
    if not number:
        raise StoreError(f"entry {now.number} of the log erases in a round that it does not have; restore the session")
    after = now.without_pins(record.round_id, record.numbers).copy_with(
        usages={role: copy_with(usage, input_tokens=None) for role, usage in now.usages.items()},
        prepared={},  # the rounds that went into a step are not known
        redactions=now.redactions + 1,
    )
    for role in now.reductions:
        reductions = now.list_reductions(role, record.round_id)
        left = without_posts(reductions, record.numbers)
        if len(left) < len(reductions):
            after = after.with_reductions(role, record.round_id, left)
    for role, state in now.journals.items():
        after = after.with_publications(role, state.generation + 1, now.list_published_before(role, number))
    return after


def read_affected(store: Store, session: str, rounds: Iterable[int]) -> list[Entry]:
    """Return, in order, the entries that may hold texts of *rounds* or name erased texts: on an indexed store all
    compactions and all entries of these rounds, else the whole log."""
    if "indexed" not in store.capabilities:
        return list(store.read(session))
    found = {entry.number: entry for entry in store.read_kinds(session, _KINDS_OF_MANY_ROUNDS)}
    for number in set(rounds):
        found |= {entry.number: entry for entry in store.read_rounds(session, number, number)}
    return [found[number] for number in sorted(found)]


def find_erasures(log: Iterable[Entry], numbers: Callable[[str], int]) -> list[tuple[int, str]]:
    """Return the number and the new body of each entry that holds an erased text. *numbers* gives a round's number.

    Overlays come first, then posts, so that the post shows whether a redaction was interrupted. An overlay published
    after the redaction was made without the text, and stays."""
    entries = list(log)
    posts: dict[str, frozenset[int]] = {}
    first = None  # the first round in which a later entry erases something
    overlays: list[tuple[int, str]] = []
    texts: list[tuple[int, str]] = []
    shown = (entry.record for entry in entries if entry.kind in list_kinds(ShownRecorded))
    made = [one for record in shown if isinstance(record, ShownRecorded) for one in record.made]
    sources = {one.id: one.sources + one.beside for one in made}
    for entry in reversed(entries):
        record = entry.record if entry.kind in _KINDS_WITH_TEXT | _REDACTION_KINDS else None
        if isinstance(record, PostRedacted):
            posts[record.round_id] = posts.get(record.round_id, frozenset()) | set(record.numbers)
            number = numbers(record.round_id)
            first = number if first is None else min(first, number)
        elif record is not None and first is not None:
            if isinstance(record, ShownRecorded):
                posts_by_round = {numbers(round_id): erased for round_id, erased in posts.items()}
                left: Record = _erase_from_shown(record, sources, posts_by_round)
            else:
                left = _erase_from_record(record, posts, first)
            if left != record:
                bodies = texts if isinstance(record, (RoundOpened, PostAdded)) else overlays
                bodies.append((entry.number, Entry.of(left).body))
    return [*overlays, *texts]


def _erase_from_shown(
    record: ShownRecorded, sources: Mapping[str, tuple[str, ...]], erased: Mapping[int, frozenset[int]]
) -> ShownRecorded:
    """Return *record* without the texts made from a post in *erased*, which has the posts by round number."""
    nothing = freeze_mapping({"role": "user", "content": REDACTED})
    tells = [covers(one.sources + one.beside, sources, erased) for one in record.made]
    made = (copy_with(one, message=nothing) if told else one for one, told in zip(record.made, tells, strict=True))
    return copy_with(record, made=tuple(made))


def _erase_from_record(record: Record, posts: Mapping[str, frozenset[int]], first: int) -> Record:
    match record:
        case RoundOpened(round_id=id_, extra=extra) if 0 in posts.get(id_, ()):
            return copy_with(record, user_query=REDACTED, extra=strip_extra(extra))
        case PostAdded(round_id=id_, post=post) if post.number in posts.get(id_, ()):
            return copy_with(record, post=redact_post(post))
        case CompactionPrepared():
            return copy_with(record, text=REDACTED, compaction=None)
        case CompactionPublished(compaction=made) if (made.end_number or 0) >= first:
            return copy_with(record, compaction=copy_with(made, summary=REDACTED, notes=(), extra=EMPTY))
        case ReductionPublished(reduction=made) if any(map(made.covers, posts.get(made.round_id, ()))):
            text = REDACTED if made.text else ""
            return copy_with(record, reduction=copy_with(made, text=text, extra=EMPTY))
        case _:
            return record
