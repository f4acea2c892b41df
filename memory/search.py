"""Search in what was said: which texts there are, what words are looked for, and which match is the best.

Where the texts come from is left to ``texts``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from math import log
from typing import TYPE_CHECKING, NamedTuple

from .entries import PostRedacted
from .errors import SessionPurged, StoreBusy, StoreDamaged, StoreFull, StoreReadOnly
from .log.redaction import without
from .log.round_store import PURGED
from .messages import repeats_query, text_of, text_with_calls
from .references import beginning, cut_before, folded, label_of, place_reference
from .rounds import USER, Post, Round
from .stores.base import Store, StoredText, storable

if TYPE_CHECKING:
    from .log.state import Snapshot
    from .visibility import Rounds

#: The names of recall's tools: a search does not find earlier searches.
RECALL_TOOLS = ("context_reload", "read_rounds", "search_history")

#: How much of a query is searched: characters, and words.
LONGEST_QUERY, MAX_WORDS = 2_000, 32
#: Characters of a text that are shown, and of a name.
SNIPPET, LONGEST_NAME = 240, 40

#: Scripts that are written without spaces between words, and Korean, whose words change at their ends.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")
_PUNCTUATION = " .,;:!?\"'`()[]{}<>。、，！？「」『』（）"
#: Who stands for a sender and a receiver without names, which would mean everybody.
_NOBODY = "\0"
#: The usual constants of Okapi BM25: how soon more of the same word counts for less, and how much length matters.
K1, B = 1.2, 0.75


class Hit(NamedTuple):  # of which there can be one for every text
    """A place in which words were found, the length of its text, and how often each word is in it."""

    round: int
    #: Of the post in the round; 0 is the user's query.
    number: int
    length: int
    counts: tuple[int, ...]

    @property
    def ref(self) -> str:
        return place_reference(self.round, self.number)

    def score(self, weights: Sequence[float], mean: float) -> float:
        """Return how well it matches by Okapi BM25; *mean* is the mean length of all texts."""
        norm, score = K1 * (1 - B + B * self.length / mean), 0.0
        for weight, n in zip(weights, self.counts, strict=True):
            score += weight * n * (K1 + 1) / (n + norm)
        return score

    def line(self, round_: Round, words: Sequence[str]) -> str:
        """Return a line with its reference and the part of its text where its longest word first stands."""
        who, text = _shown(round_, self.number)
        longest = max((word for word, n in zip(words, self.counts, strict=True) if n), key=len)
        start = cut_before(text, max(searchable(text).find(longest) - SNIPPET // 3, 0))
        stop = cut_before(text, start + SNIPPET)
        part = " ".join(text[start:stop].split())
        size = f"{len(text)} characters" + (f", shown from offset {start}" if start else "")
        return f"{self.ref} ({who}; {size}): {'...' * (start > 0)}{part}{'...' * (stop < len(text))}"


def searchable(text: str) -> str:
    """Return *text* as words are looked for in it: folded, and what not every store can hold replaced, each character
    in its place."""
    lowered = folded(text)
    return lowered if lowered.isascii() and "\0" not in lowered else storable(lowered)


def words_of(query: str) -> tuple[str, ...]:
    """Return the words of *query*, folded and each once; what is written without spaces also as pairs of characters."""
    words: dict[str, None] = {}
    for word in searchable(query[:LONGEST_QUERY]).split():
        words[word.strip(_PUNCTUATION) or word] = None
        for run in _UNSPACED.findall(word):
            words.update(dict.fromkeys(run[place : place + 2] for place in range(len(run) - 1)))
        if _UNSPACED.search(word):
            words.update(dict.fromkeys(filter(None, (rest.strip(_PUNCTUATION) for rest in _UNSPACED.split(word)))))
    return tuple(words)[:MAX_WORDS]


def texts_of(round_: Round, role: str = "", *, apart_from: Collection[str] = RECALL_TOOLS) -> Iterator[StoredText]:
    """Give the texts of a round that are searched, of those that *role* sees; the empty role sees all.

    Give the whole round: what is searched of it is the same for every role. Calls of the tools *apart_from* are not
    searched, nor are their results.
    """
    if round_.user_query:
        yield StoredText(round_.number, 0, "", "", searchable(round_.user_query))
    skipped: set[tuple[str, str]] = set()  # the caller and id of calls whose results are not searched
    for place, post in enumerate(round_.post_list):
        if post.tool_call_id is not None and not skipped.isdisjoint(
            ((post.send_to, post.tool_call_id), (post.send_from, post.tool_call_id))
        ):
            continue
        for call in post.tool_calls:  # an id that is used again means the newest call of that id
            (skipped.add if call.name in apart_from else skipped.discard)((post.send_from, call.id))
        if role and role not in (post.send_from, post.send_to):
            continue
        said = _said(post, round_, apart_from, opening=place == 0)
        if said:
            sender = post.send_from if post.send_from or post.send_to else _NOBODY
            yield StoredText(round_.number, post.number, sender, post.send_to, searchable(said))


def hit_in(text: StoredText, words: Sequence[str]) -> Hit | None:
    """Return what is found of *words* in *text*, also inside of a longer one; None where none of them is."""
    counts = tuple(map(text.text.count, words))
    return Hit(text.round, text.number, len(text.text), counts) if any(counts) else None


def ranked(hits: Iterable[Hit], total: int, characters: int) -> list[Hit]:
    """Return *hits* by Okapi BM25, then the newest first. The rarer a word is, the more it counts.

    *total* and *characters*: how many texts were searched, those without hits included, and their length in all.
    """
    by_place = sorted(hits, key=lambda hit: (hit.round, hit.number), reverse=True)
    having = [sum(1 for n in column if n) for column in zip(*(hit.counts for hit in by_place), strict=True)]
    weights = tuple(log(1 + (total - n + 0.5) / (n + 0.5)) for n in having)
    mean = max(characters / total, 1) if total else 1
    return sorted(by_place, key=lambda hit: hit.score(weights, mean), reverse=True)


def _said(post: Post, round_: Round, apart_from: Collection[str], *, opening: bool) -> str:
    """Return what is searched of a post; *opening*: of the round's first, which may repeat the query."""
    if opening and repeats_query(post, round_):  # it is found as the query
        if not (post.attachment_list or post.tool_calls):
            return ""
        post = post.model_copy(update={"message": ""})
    own = bool(post.tool_calls) and all(call.name in apart_from for call in post.tool_calls)
    return text_of(post) if own else text_with_calls(post)


def _shown(round_: Round, number: int) -> tuple[str, str]:
    """Return who says what in the post of that number; 0 is the query."""
    if number == 0:
        return USER, round_.user_query
    post: Post = next(post for post in round_.post_list if post.number == number)
    ends = (label_of(beginning(name, LONGEST_NAME)) for name in (post.send_from, post.send_to))
    return " to ".join(ends), text_with_calls(post)


# --- the texts of a session in its store's index: kept in step with the log, and searched -------------------------


#: Rounds that are read and handed over at once. Who appends to a SQLite file meanwhile waits for as long: a tenth of
#: a second.
BATCH = 25
#: Rounds that a search hands over before it looks: those that are left cost it more than that each time.
MAX_ROUNDS = 2_000


def found(
    store: Store,
    session: str,
    snapshot: Snapshot,
    words: Sequence[str],
    role: str = "",
    *,
    most_rounds: int = MAX_ROUNDS,
) -> list[Hit]:
    """Return where any of *words* is in the texts that *role* sees, in rounds that have not failed: best match first.

    *words* are those of ``words_of``. At most *most_rounds* are handed to the store's index before. Raises
    ``StoreError`` where the store cannot be read; one that cannot be written is searched all the same.
    """
    hits: list[Hit] = []
    reach = total = characters = 0
    if "searchable" in store.capabilities:
        try:
            in_step(store, session, snapshot, most_rounds=most_rounds)
        except (StoreBusy, StoreFull, StoreReadOnly):
            pass  # what is not in the index is searched in memory
        # Another process may have handed over rounds that are not settled in this snapshot, or that it does not know.
        reach = min(store.texts_reach(session), snapshot.closed_prefix)
        texts, total, characters = store.find_texts(session, words, role)
        hits.extend(Hit._make(text) for text in texts if text.round <= reach)
    for round_ in _rounds_after(snapshot.rounds(include_failed=True), reach):
        for text in texts_of(round_, role):
            total += 1
            characters += len(text.text)
            if (hit := hit_in(text, words)) is not None:
                hits.append(hit)
    return ranked(hits, total, characters)


def in_step(store: Store, session: str, snapshot: Snapshot, *, most_rounds: int | None = None) -> bool:
    """Hand the texts of settled rounds over to the store's index, of at most *most_rounds*, and return whether it has
    them all. None: of all. A store without an index has what it needs."""
    if "searchable" not in store.capabilities:
        return True
    rounds, reach = snapshot.rounds(include_failed=True), store.texts_reach(session)
    settled = snapshot.closed_prefix
    stop = settled if most_rounds is None else min(settled, reach + most_rounds)
    if reach < stop:
        _require_same(store, session, snapshot)
    for first in range(reach, stop, BATCH):
        last = min(first + BATCH, stop)
        store.keep_texts(session, first + 1, last, _texts(_readable(rounds, first, last)))
        # Looked for after that: whoever erases something from now on finds it in the index, and puts it right himself.
        for number, posts in _erased_since(store, session, snapshot):
            if first < number <= last:
                store.keep_texts(session, number, number, _texts([without(rounds[number - 1], posts)]))
    return stop >= settled


def _require_same(store: Store, session: str, snapshot: Snapshot) -> None:
    """Raise ``SessionPurged`` where it was: the texts of *snapshot* are not those of a new one."""
    number = snapshot.number
    if number and [entry.id for entry in store.read(session, number - 1, 1)] != [snapshot.last]:
        raise SessionPurged(PURGED.format(number))


def forgotten(store: Store, session: str, snapshot: Snapshot, numbers: Collection[int]) -> None:
    """Put the texts of these rounds into the store's index anew, as they are after something was erased in them.

    Call it before what was erased is erased from the log: were it interrupted, the log would still know what to do.
    """
    if "searchable" not in store.capabilities:
        return
    rounds, reach = snapshot.rounds(include_failed=True), store.texts_reach(session)
    for number in sorted(set(numbers)):
        if number <= min(reach, len(rounds)):
            store.keep_texts(session, number, number, _texts(rounds[number - 1 : number]))


def _texts(rounds: Iterable[Round]) -> list[StoredText]:
    """Return the texts of those *rounds* that have not failed: a failed one stays so."""
    return [text for round_ in rounds if round_.state != "failed" for text in texts_of(round_)]


def _erased_since(store: Store, session: str, snapshot: Snapshot) -> Iterable[tuple[int, set[int]]]:
    """Return the numbers of rounds in which something was erased since *snapshot*, and those of the posts."""
    erased: dict[int, set[int]] = {}
    for entry in store.read(session, snapshot.number):
        if isinstance(record := entry.record, PostRedacted):
            erased.setdefault(entry.round, set()).update(record.numbers)
    return erased.items()


def _rounds_after(rounds: Rounds, reach: int) -> Iterator[Round]:
    """Give the rounds after the first *reach* that have not failed."""
    for first in range(reach, len(rounds), BATCH):
        yield from (round_ for round_ in _readable(rounds, first, first + BATCH) if round_.state != "failed")


def _readable(rounds: Rounds, first: int, stop: int) -> Sequence[Round]:
    """Return those rounds without the damaged ones, in which nothing can be found: whoever reads one is told.

    One that only a newer version can read is no damage: it would be missing in the index ever after.
    """
    try:
        return rounds[first:stop]
    except StoreDamaged:
        found = []
        for place in range(first, min(stop, len(rounds))):
            with suppress(StoreDamaged):
                found.append(rounds[place])
        return found
