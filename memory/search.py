"""Search in the conversation: the words of a query, the searchable texts, the store's index and the ranking."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from math import log
from typing import TYPE_CHECKING

from .entries import PostRedacted
from .errors import SessionPurged, StoreBusy, StoreDamaged, StoreFull, StoreReadOnly
from .log.redaction import erase_posts
from .messages import join_text, join_text_with_calls, repeats_query
from .patterns import compile_later
from .references import find_floor_boundary, fold_case, make_label, make_reference, take_beginning
from .rounds import USER, Post, Round, copy_with
from .stores.base import FoundText, Store, StoredText, make_storable

if TYPE_CHECKING:
    from .log.state import Snapshot
    from .visibility import Rounds

#: The names of recall's tools: a search does not find earlier searches.
RECALL_TOOLS = ("context_reload", "read_rounds", "search_history")

#: The part of a query that is searched, in characters and in words.
MAX_QUERY, MAX_WORDS = 2_000, 32
#: Characters of a text in a hit's line, and of a name.
MAX_SNIPPET, MAX_NAME = 240, 40
#: Rounds that are read and indexed at a time. An append to a SQLite file waits for one batch: a tenth of a second.
BATCH = 25
#: Rounds that a search indexes first: each round beyond costs every later search more than indexing it.
MAX_ROUNDS = 2_000

#: Scripts without spaces between words, and Korean, which inflects its words at their ends.
_UNSPACED = compile_later(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
_PUNCTUATION = " .,;:!?\"'`()[]{}<>。、，！？「」『』（）"
#: The sender of a post without sender and receiver: two empty names would mean that everybody sees it.
_NOBODY = "\0"
#: The usual constants of Okapi BM25: saturation of repeated words, and influence of a text's length.
K1, B = 1.2, 0.75


class Hit(FoundText):
    """A text that matches, with its length and the occurrences of each word."""

    __slots__ = ()

    @property
    def ref(self) -> str:
        """The reference of the post, which ``reload`` takes: ``r12.p3``."""
        return make_reference(self.round, self.number)

    def score(self, weights: Sequence[float], mean: float) -> float:
        """Return the score by Okapi BM25; *mean* is the mean length of all texts."""
        norm = K1 * (1 - B + B * self.length / mean)
        return sum(weight * n * (K1 + 1) / (n + norm) for weight, n in zip(weights, self.counts, strict=True))

    def make_match_line(self, round_: Round, words: Sequence[str]) -> str:
        """Return one line: the reference, the speaker and the text around the first match of the longest word."""
        if self.number == 0:
            speaker, text = USER, round_.user_query
        else:
            post: Post = next(post for post in round_.post_list if post.number == self.number)
            speaker = " to ".join(make_label(take_beginning(name, MAX_NAME)) for name in (post.send_from, post.send_to))
            text = join_text_with_calls(post)
        longest = max((word for word, n in zip(words, self.counts, strict=True) if n), key=len)
        start = find_floor_boundary(text, max(normalize(text).find(longest) - MAX_SNIPPET // 3, 0))
        stop = find_floor_boundary(text, start + MAX_SNIPPET)
        part = " ".join(text[start:stop].split())
        size = f"{len(text)} characters" + (f", shown from offset {start}" if start else "")
        return f"{self.ref} ({speaker}; {size}): {'...' * (start > 0)}{part}{'...' * (stop < len(text))}"


def normalize(text: str) -> str:
    """Return *text* for comparing words: folded, with unstorable characters replaced, each character in its place."""
    lowered = fold_case(text)
    return lowered if lowered.isascii() and "\0" not in lowered else make_storable(lowered)


def split_query(query: str) -> tuple[str, ...]:
    """Return the distinct words of *query*, folded; text without spaces also as pairs of characters."""
    words: dict[str, None] = {}
    for word in normalize(query[:MAX_QUERY]).split():
        words[word.strip(_PUNCTUATION) or word] = None
        for run in _UNSPACED.findall(word):
            words.update(dict.fromkeys(run[place : place + 2] for place in range(len(run) - 1)))
        if _UNSPACED.search(word):
            words.update(dict.fromkeys(filter(None, (rest.strip(_PUNCTUATION) for rest in _UNSPACED.split(word)))))
    return tuple(words)[:MAX_WORDS]


def list_texts(round_: Round, role: str = "") -> Iterator[StoredText]:
    """Yield the searchable texts of a round that *role* sees; the empty role sees all.

    Pass the round with all its posts. Calls of recall's tools and their results are not searched.
    """
    if round_.user_query:
        yield StoredText(round_.number, 0, "", "", normalize(round_.user_query))
    skipped: set[tuple[str, str]] = set()  # caller and id of calls of recall's tools
    for place, post in enumerate(round_.post_list):
        if post.tool_call_id is not None and not skipped.isdisjoint(
            ((post.send_to, post.tool_call_id), (post.send_from, post.tool_call_id))
        ):
            continue
        for call in post.tool_calls:  # an id may be used again; it means the newest call
            (skipped.add if call.name in RECALL_TOOLS else skipped.discard)((post.send_from, call.id))
        if role and role not in (post.send_from, post.send_to):
            continue
        if place == 0 and repeats_query(post, round_):  # found as the query already
            if not (post.attachment_list or post.tool_calls):
                continue
            post = copy_with(post, message="")  # noqa: PLW2901
        hides_calls = bool(post.tool_calls) and all(call.name in RECALL_TOOLS for call in post.tool_calls)
        text = join_text(post) if hides_calls else join_text_with_calls(post)
        if text:
            sender = post.send_from if post.send_from or post.send_to else _NOBODY
            yield StoredText(round_.number, post.number, sender, post.send_to, normalize(text))


def rank_hits(hits: Iterable[Hit], total: int, characters: int) -> list[Hit]:
    """Return *hits* by Okapi BM25, which weights rare words higher; equal ones newest first.

    *total* and *characters* are the number and the length of all searched texts.
    """
    by_place = sorted(hits, key=lambda hit: (hit.round, hit.number), reverse=True)
    having = [sum(1 for n in column if n) for column in zip(*(hit.counts for hit in by_place), strict=True)]
    weights = tuple(log(1 + (total - n + 0.5) / (n + 0.5)) for n in having)
    mean = max(characters / total, 1) if total else 1
    return sorted(by_place, key=lambda hit: hit.score(weights, mean), reverse=True)


def find_hits(store: Store, session: str, snapshot: Snapshot, words: Sequence[str], role: str = "") -> list[Hit]:
    """Return the texts that contain any of *words* and that *role* sees, best match first, without hidden rounds.

    *words* come from ``split_query``. Indexes at most ``MAX_ROUNDS`` first. Raises ``StoreError`` if the store cannot
    be read; a read-only store is searched all the same.
    """
    hits: list[Hit] = []
    reach = total = characters = 0
    if "searchable" in store.capabilities:
        with suppress(StoreBusy, StoreFull, StoreReadOnly):  # rounds missing in the index are searched in memory
            sync_index(store, session, snapshot, most_rounds=MAX_ROUNDS)
        # Another process may have indexed rounds that are still open in this snapshot, or newer than it.
        reach = min(store.get_last_indexed_round(session), snapshot.closed_prefix)
        texts, total, characters = store.find_texts(session, words, role)
        hidden = frozenset(snapshot.hidden)  # a store may not know why
        hits.extend(Hit._make(text) for text in texts if text.round <= reach and text.round not in hidden)
    rounds = snapshot.get_rounds(include_hidden=True)
    for first in range(reach, len(rounds), BATCH):
        for round_ in _skip_damaged(rounds, first, first + BATCH):
            for text in list_texts(round_, role) if not round_.is_hidden else ():
                total += 1
                characters += len(text.text)
                counts = tuple(map(text.text.count, words))  # also inside longer words
                if any(counts):
                    hits.append(Hit(text.round, text.number, len(text.text), counts))
    return rank_hits(hits, total, characters)


def sync_index(store: Store, session: str, snapshot: Snapshot, *, most_rounds: int | None = None) -> bool:
    """Index the texts of closed rounds, at most *most_rounds* of them, in a searchable *store*, and return whether the
    index has them all."""
    rounds, reach = snapshot.get_rounds(include_hidden=True), store.get_last_indexed_round(session)
    closed, last_entry = snapshot.closed_prefix, snapshot.number
    stop = closed if most_rounds is None else min(closed, reach + most_rounds)
    # The texts of this snapshot must not get into a new session of the same name.
    if reach < stop and last_entry and [one.id for one in store.read(session, last_entry - 1, 1)] != [snapshot.last]:
        raise SessionPurged.at(last_entry)
    for first in range(reach, stop, BATCH):
        last = min(first + BATCH, stop)
        store.save_texts(session, first + 1, last, _list_stored_texts(_skip_damaged(rounds, first, last)))
        # Look for redactions after indexing: a later one finds the texts in the index and removes them itself.
        erased: dict[int, set[int]] = {}
        for entry in store.read(session, last_entry):
            if isinstance(record := entry.record, PostRedacted):
                erased.setdefault(entry.round, set()).update(record.numbers)
        for number, posts in erased.items():
            if first < number <= last:
                store.save_texts(session, number, number, _list_stored_texts([erase_posts(rounds[number - 1], posts)]))
    return stop >= closed


def forget_texts(store: Store, session: str, snapshot: Snapshot, numbers: Collection[int]) -> None:
    """Index these rounds again, after a redaction in them.

    Call it before erasing from the log: if it is interrupted, the log still holds the task.
    """
    if not numbers or "searchable" not in store.capabilities:
        return
    rounds, reach = snapshot.get_rounds(include_hidden=True), store.get_last_indexed_round(session)
    for number in sorted(set(numbers)):
        if number <= min(reach, len(rounds)):
            store.save_texts(session, number, number, _list_stored_texts(rounds[number - 1 : number]))


def _list_stored_texts(rounds: Iterable[Round]) -> list[StoredText]:
    """Return the texts of the *rounds* that are not hidden; a hidden round never comes back."""
    return [text for round_ in rounds if not round_.is_hidden for text in list_texts(round_)]


def _skip_damaged(rounds: Rounds, first: int, stop: int) -> Sequence[Round]:
    """Return the rounds without the damaged ones, which contain nothing to find; reading such a round raises.

    A round of a newer version does raise here: skipping it would leave it out of the index for ever.
    """
    with suppress(StoreDamaged):
        return rounds[first:stop]
    readable = []
    for place in range(first, min(stop, len(rounds))):
        with suppress(StoreDamaged):
            readable.append(rounds[place])
    return readable
