"""The entries of a session's log, one typed record for each kind: the durable format of stores and exporters."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field

from .errors import NewerVersion, StoreDamaged
from .messages import NO_FIELDS
from .overlays import CompactedMessage, Reduction, UsageCounts
from .patterns import compile_later
from .rounds import EMPTY, Extra, Post, Record, Stamp, Text, make_id, run_dump, utc_now

#: Number of a round, 0 for the header; number of its post, 0 for the user's query.
Location = tuple[int, int]

#: The first character of an id in a run; a place begins with a digit.
_ID = "="
#: No round has more posts, and no session more rounds.
_MAX_NUMBER = 1 << 31


def pack_spans(items: Iterable[Location | str]) -> tuple[str, ...]:
    """Return *items* as short texts: one for neighbouring posts of a round, and one for each id."""
    runs: list[str] = []
    first: Location = (-1, -1)
    last: Location = (-1, -1)
    for item in items:
        if isinstance(item, str):
            runs.append(f"{_ID}{item}")
            last = (-1, -1)
        elif item == (last[0], last[1] + 1):
            last = item
            runs[-1] = f"{first[0]}.{first[1]}-{last[1]}"
        else:
            first = last = item
            runs.append(f"{item[0]}.{item[1]}")
    return tuple(runs)


def unpack_spans(spans: Iterable[str]) -> Iterator[Location | str]:
    """Yield the items from which ``pack_spans`` made *spans*."""
    for run in spans:
        if run.startswith(_ID):
            yield run[len(_ID) :]
        else:
            number, first, last = _parse_run(run)
            yield from ((number, post) for post in range(first, last + 1))


def covers(spans: Iterable[str], sources: Mapping[str, Iterable[str]], erased: Mapping[int, Iterable[int]]) -> bool:
    """Return whether *spans* contain one of the posts in *erased*, by round number, or an id that stands for one.
    *sources* has the runs for each id."""
    seen: set[str] = set()
    todo = list(spans)
    while todo:
        run = todo.pop()
        if run.startswith(_ID):
            if run not in seen:
                seen.add(run)
                todo.extend(sources.get(run[len(_ID) :], ()))
            continue
        number, first, last = _parse_run(run)
        if any(first <= post <= last for post in erased.get(number, ())):
            return True
    return False


def _check_spans(spans: tuple[str, ...]) -> tuple[str, ...]:
    """Return *spans*. Raises ``ValueError`` if ``pack_spans`` cannot have made them."""
    for run in spans:
        if not run.startswith(_ID):
            number, first, last = _parse_run(run)
            if not 0 <= number < _MAX_NUMBER or not 0 <= first <= last < _MAX_NUMBER:
                raise ValueError("a run of posts ends before it begins")
    return spans


def _parse_run(run: str) -> tuple[int, int, int]:
    number, _, posts = run.partition(".")
    first, _, last = posts.partition("-")
    return int(number), int(first), int(last or first)


#: The newest version of a body that this code reads. Each record is written with the version in which its kind came,
#: so that an older version of this library reads a session up to the first entry that it cannot know.
BODY_VERSION = 2
#: Prefix of the kind of a named header part; a newer part of that name replaces an older one.
HEADER_PART = "header:"
#: With a number behind it, the kind of a part that replaces that one of the header's messages that have no name.
HEADER_MESSAGE = f"{HEADER_PART}message "


class HeaderAdded(Record):
    """A system message before the first user message."""

    post: Post


class RoundOpened(Record):
    """A round begins with the user's query."""

    round_id: Text
    user_query: Text
    created_at: Stamp
    extra: Extra = EMPTY


class PostAdded(Record):
    """A post joins an open round."""

    round_id: Text
    post: Post


class RoundFinished(Record):
    """A round is complete."""

    round_id: Text


class RoundFailed(Record):
    """A round is hidden, with the compactions that cover it."""

    round_id: Text


class RoundUndone(Record):
    """A round is hidden, with the compactions that cover it, because the conversation goes on from an earlier place.
    One append holds an entry for each round behind that place, oldest first."""

    round_id: Text
    #: Of the first one, if the place is inside it: the round that goes on, which begins with copies of so many posts.
    continued_in: Text = ""
    copied: int = 0


class CompactionPrepared(Record):
    """An accepted answer of the summarizer that is not shown yet. It was paid for, so the same question is not asked
    again."""

    role: Text
    #: SHA-256 of the request's messages, in hexadecimal digits: it identifies the question.
    digest: Text
    #: The generation it was made from; at a later one it is stale.
    base: int
    #: The kind of request: ``rounds``, ``changes``, ``tool_run`` or ``large_post``; and the strategy that asked.
    kind: Text = "rounds"
    strategy: Text = ""
    #: The accepted answer, and its cost.
    text: Text
    model: Text | None = None
    usage: UsageCounts | None = None
    #: Names of the checks that it passed.
    checks: tuple[Text, ...] = ()
    #: The compaction that it becomes when it is published; None for an intermediate step.
    compaction: CompactedMessage | None = None
    #: The rounds that are newly covered by that.
    round_ids: tuple[Text, ...] = ()
    #: The newest round that its role saw when it was made, and the number of its newest post. Calls of the agent's
    #: model are counted from there. Empty: not known.
    seen_round_id: Text = ""
    seen_post: int = 0


class CompactionPublished(Record):
    """The compaction is its role's current one from then on."""

    role: Text
    compaction: CompactedMessage
    #: The rounds that it newly covers, behind those of the compaction that it replaces.
    round_ids: tuple[Text, ...] = ()
    #: Digest of the prepared answer that it publishes, if there was one.
    digest: Text = ""
    checks: tuple[Text, ...] = ()
    strategy: Text = ""
    #: Tokens of the messages that it replaces in prompts, and its own; None: not counted.
    tokens_before: int | None = None
    tokens_after: int | None = None


class CompactionReverted(Record):
    """The role's newest compaction is taken back; ``generation`` is the new one."""

    role: Text
    generation: int


class ReductionPublished(Record):
    """The reduction is live from then on. It replaces those that it contains."""

    role: Text
    reduction: Reduction


class ReductionWithdrawn(Record):
    """The live reduction of that span is withdrawn. Reductions that it had replaced do not come back."""

    role: Text
    round_id: Text
    first_number: int
    last_number: int


class PostPinned(Record):
    """The post keeps its words through every compaction, or no longer does."""

    round_id: Text
    #: Of the post in its round; 0 is the user's query.
    number: int
    pinned: bool = True


class PostRedacted(Record):
    """The words of these posts are erased, here and in everything made from them."""

    round_id: Text
    #: Of the posts in their round; 0 is the user's query.
    numbers: tuple[int, ...]


class UsageRecorded(Record):
    """The provider's count of a prompt, beside our own."""

    role: Text
    input_tokens: int = Field(ge=0)
    counted: int | None = Field(default=None, ge=0)
    #: Whether no overlay was published between the prompt and its answer.
    current: bool = True
    #: Tokens that the provider found in its cache; None: not known.
    cached_tokens: int | None = Field(default=None, ge=0)


#: Places in the log and ids of messages that are not in it, as ``pack_spans`` makes them.
Spans = Annotated[tuple[Text, ...], AfterValidator(_check_spans)]


class StandIn(Record):
    """A message that is not in the log, and is shown in place of some that are."""

    id: Text
    message: Extra
    #: The messages that it replaces; empty if the host put it there.
    sources: Spans = ()
    #: Messages that its author had read as well, so it may repeat them. They are still shown.
    beside: Spans = ()


class ShownRecorded(Record):
    """The messages that a conversation with hidden and replaced messages shows from then on."""

    role: Text
    #: New stand-ins, which no earlier entry holds.
    made: tuple[StandIn, ...] = ()
    shown: Spans = ()
    #: Ids of messages that the host put there, behind as many earlier ones as stay.
    direct: tuple[Text, ...] = ()
    direct_before: int = 0
    #: Messages that could not be made shorter.
    in_vain: Spans = ()
    #: The part of the log that it takes into account: so many whole rounds, and later rounds up to a post.
    settled: int = 0
    taken: tuple[tuple[int, int], ...] = ()
    #: The place of the last cleared message.
    cleared: tuple[int, int] = (0, 0)


class EventRecorded(Record):
    """An event in a role's history that no other entry records: a failure, or a discarded answer."""

    role: Text
    #: The event's dotted name.
    name: Text
    facts: Extra = EMPTY


KINDS: Mapping[str, type[Record]] = MappingProxyType(
    {
        "header": HeaderAdded,
        "round opened": RoundOpened,
        "post added": PostAdded,
        "round closed": RoundFinished,
        "round failed": RoundFailed,
        "round undone": RoundUndone,
        "compaction prepared": CompactionPrepared,
        "compaction published": CompactionPublished,
        "compaction reverted": CompactionReverted,
        "reduction published": ReductionPublished,
        "reduction withdrawn": ReductionWithdrawn,
        "pinned": PostPinned,
        "post redacted": PostRedacted,
        "usage recorded": UsageRecorded,
        "shown": ShownRecorded,
        "event": EventRecorded,
    }
)
NAMES: Mapping[type[Record], str] = MappingProxyType({record: kind for kind, record in KINDS.items()})
#: The version of bodies by kind; 1 for the others.
_VERSIONS: Mapping[str, int] = {"round undone": 2}


def list_kinds(*records: type[Record]) -> frozenset[str]:
    """Return the kinds of the entries that hold those *records*."""
    return frozenset(NAMES[record] for record in records)


class Entry:
    """One line of the log: a record, and the text that a store keeps. Each is made from the other on first use.

    So a store in memory never pays for text, and a store on disk never pays for records that nobody reads.
    """

    __slots__ = ("_body", "_record", "created_at", "follows", "id", "kind", "number", "round", "version")

    def __init__(
        self,
        kind: str,
        *,
        record: Record | None = None,
        body: str | None = None,
        id: str | None = None,  # noqa: A002  (the field's name in the log)
        created_at: datetime | None = None,
        number: int = 0,
        round: int = 0,  # noqa: A002
        version: int = 0,
        follows: str = "",
    ) -> None:
        #: Made by the writer, so that a commit whose reply was lost is recognised.
        self.id = make_id() if id is None else id
        #: One of ``KINDS``, or a kind that only a newer version knows.
        self.kind = kind
        #: Place in the session's log, from 1 without gaps; 0: not known yet.
        self.number = number
        #: Number of the round that it is about, by which a store may index it; 0: none, or not known.
        self.round = round
        #: Version of the body; by default the one in which this code writes it.
        self.version = version or _VERSIONS.get(kind, 1)
        #: Id of the entry that the writer expects before this one; empty: not known. It is not stored.
        self.follows = follows
        self.created_at = utc_now() if created_at is None else created_at
        self._record = record
        self._body = body

    @classmethod
    def of(cls, record: Record, *, created_at: datetime | None = None, round: int = 0, follows: str = "") -> Self:  # noqa: A002
        """Return a new entry that holds *record*."""
        return cls(NAMES[type(record)], record=record, created_at=created_at, round=round, follows=follows)

    @property
    def body(self) -> str:
        """The record as ASCII-escaped JSON, which holds lone surrogates and NUL where UTF-8 and SQL would not."""
        if self._body is None:
            assert self._record is not None  # noqa: S101  (one of the two is given)
            self._body = _write_body(self._record)
        return self._body

    @property
    def record(self) -> Record | None:
        """What happened; None for a kind that this version does not know.

        Raises ``StoreDamaged`` for a broken body, and ``NewerVersion`` for one whose version is not known here.
        """
        if self._record is not None and self.version <= BODY_VERSION:
            return self._record
        records: list[Record | None] = []
        decode((self,), records)
        return records[0]

    def with_number(self, number: int) -> Self:
        """Return the same entry at its place in the log."""
        return type(self)(
            self.kind,
            record=self._record,
            body=self._body,
            id=self.id,
            created_at=self.created_at,
            number=number,
            round=self.round,
            version=self.version,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (self.id, self.kind, self.body) == (other.id, other.kind, other.body)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:  # no content: entries end up in logs and assertion messages
        return f"<Entry {self.number} {self.kind!r} id={self.id}>"


#: The two halves of a character beyond the basic plane, apart, as they come of joining text that was cut between them.
_HALVES = compile_later("[\ud800-\udbff][\udc00-\udfff]")
_quote = json.encoder.encode_basestring_ascii
_ENCODER = json.JSONEncoder(default=datetime.isoformat, separators=(",", ":"))


def _write_body(record: Record) -> str:
    body = _write_usual(record)
    if body and "\\ud" not in body:  # two halves of a character may stand side by side, see to_ascii
        return body
    # pydantic is several times as fast, but leaves characters as they are and cannot write what UTF-8 cannot hold.
    try:
        body = run_dump(record.model_dump_json)
    except ValueError:
        body = ""
    return body if body and body.isascii() else to_ascii(run_dump(record.model_dump))


def _write_usual(record: Record) -> str:
    """Return the body of a record that every turn makes, with the fields that most have; empty: it has more.

    Takes a third of pydantic's time, and writes a text beyond ASCII once instead of twice.
    """
    if type(record) is RoundFinished:
        return f'{{"round_id":{_quote(record.round_id)}}}'
    if type(record) is RoundOpened:
        query, end = _quote(record.user_query), _write_end(record)
        return end and f'{{"round_id":{_quote(record.round_id)},"user_query":{query},{end}}}'
    if type(record) is PostAdded and type(post := record.post) is Post:
        texts = f'"id":{_quote(post.id)},"send_from":{_quote(post.send_from)},"send_to":{_quote(post.send_to)}'
        texts += f',"message":{_quote(post.message)},"attachment_list":[],"tool_calls":[]'
        answers = "null" if post.tool_call_id is None else _quote(post.tool_call_id)
        rest = f'"tool_call_id":{answers},"kind":{_quote(post.kind)},"number":{post.number:d}'
        end = "" if post.attachment_list or post.tool_calls else _write_end(post)
        return end and f'{{"round_id":{_quote(record.round_id)},"post":{{{texts},{rest},{end}}}}}'
    return ""


def _write_end(record: RoundOpened | Post) -> str:
    stamp, extra = record.created_at, "{}" if not record.extra else '{"openai":{}}' if record.extra is NO_FIELDS else ""
    if not extra or stamp.tzinfo is not UTC:
        return ""
    return f'"created_at":"{stamp.isoformat()[:-6]}Z","extra":{extra}'


def to_ascii(value: Any) -> str:
    """Return *value* as JSON of ASCII characters alone."""
    body = _ENCODER.encode(value)
    if "\\ud" in body:
        text = json.dumps(value, default=datetime.isoformat, separators=(",", ":"), ensure_ascii=False)
        if _HALVES.search(text):
            # A JSON parser would join the halves. Such a body is a string that holds the JSON, escaped once more.
            body = json.dumps(text.encode("unicode_escape").decode("ascii"))
    return body


def from_ascii(body: str) -> Any:
    value = json.loads(body)
    return json.loads(value.encode("ascii").decode("unicode_escape")) if isinstance(value, str) else value


def decode(entries: Iterable[Entry], records: list[Record | None]) -> None:
    """Append to *records* the record of each entry; None for a kind that this version does not know.

    Raises ``StoreDamaged`` or ``NewerVersion`` at the first that cannot be read, after it has appended those before.
    """
    for entry in entries:
        if entry.version > BODY_VERSION:
            raise NewerVersion(
                f"entry {entry.number} ({entry.kind}) of the log was written by a newer version of context-compactor;"
                f" nothing was changed: upgrade to that version to open the session"
            )
        if entry._record is None and (kind := KINDS.get(entry.kind)) is not None:
            assert entry._body is not None  # noqa: S101  (the record or the body is given)
            try:
                entry._record = kind.model_validate(from_ascii(entry._body))
            except (ValueError, RecursionError) as error:
                raise StoreDamaged(
                    f"entry {entry.number} ({entry.kind}) of the log cannot be read; nothing was changed:"
                    f" restore the session from a backup, or open it with the version that wrote it"
                ) from error
        records.append(entry._record)
