"""Print what still stands in summaries after many compactions: surface retention, at equal size. The same each time.

    python -m benchmarks.quality [--seeds 3] [--conversations chat tools airline]

The conversations are those of ``benchmarks/run``. In the turns that the first compaction covers, the user tells facts
and gives standing instructions; it is counted how many of them a summary holds after 1, 5, 20 and 100 compactions, and
how many of the facts told all along the last one holds. Changes of notes are measured beside rewriting, with a model
that, of each fact it reads, says nothing one time in twenty; ``ExtractiveSummarizer`` beside what needs no model
either. ``surface_retention`` says what counts.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, starmap
from statistics import fmean
from typing import Any

from benchmarks.comparison.adapter import Message
from benchmarks.comparison.conversations import Absent, Scenario, airline, chat, tools
from benchmarks.comparison.facts import planted, told
from benchmarks.imperfect_model import KEEPS, ImperfectModel
from benchmarks.plain_summaries import Method, first_user_messages, last_tokens, ours, successive
from benchmarks.planting import ALWAYS, NEVER, USER_FACTS, Wording, fact
from benchmarks.surface_retention import Fact, precision, share_kept
from compactor import (
    CompactorConfig,
    ContextCompactor,
    Published,
    Strategy,
    compact_notes,
    compact_rounds,
    count_tokens,
)
from memory import Memory, Round

__all__ = [
    "AFTER",
    "CONVERSATIONS",
    "Conversation",
    "Run",
    "by_model",
    "conversation",
    "main",
    "measured",
    "tables",
    "without_model",
]

#: So many compactions, after which summaries are looked at.
AFTER = (1, 5, 20, 100)
#: Tokens of a summary: as many as one is asked for where nothing else is said.
SIZE = 1_000
#: The first compaction covers so many turns and so many tokens at the least.
FIRST, FIRST_TOKENS = 6, 3_000
#: What is planted in those turns: facts, and instructions of either kind.
FACTS, INSTRUCTIONS = 12, 6
#: Facts told all along, where a conversation has none of its own.
ALONG = 50
#: The longest request to the summarizer: that of the comparison, and the one that is used where nothing else is said.
LONG, DEFAULT_TRAITS = 100_000, 24_000

#: The comparison's, the second with more turns: a compaction covers one at the least.
CONVERSATIONS: Mapping[str, Callable[[], Scenario]] = {"chat": chat, "tools": lambda: tools(108), "airline": airline}
#: Each is played so often, with other sentences planted; and no more often where that takes long.
SEEDS, MAX_SEEDS = 3, {"tools": 2}
STRATEGIES: dict[str, tuple[Strategy, int]] = {
    "full rewrite": (compact_rounds, LONG),
    "notes and changes": (compact_notes, LONG),
    "the same, requests up to 24k": (compact_notes, DEFAULT_TRAITS),
}
PLAIN: dict[str, Method] = {
    "ExtractiveSummarizer": ours,
    "last tokens": last_tokens,
    "first user messages": first_user_messages,
}


@dataclass(frozen=True)
class Conversation:
    """A conversation in which it is known what was said where."""

    name: str
    #: The messages of each turn.
    turns: tuple[tuple[Message, ...], ...]
    #: How many turns the first compaction covers; what the user says in them, by its kind.
    first: int
    planted: Mapping[str, tuple[Fact, ...]]
    #: The facts that the user tells all along.
    along: tuple[Fact, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        return (*(one for kind in self.planted.values() for one in kind), *self.along)

    def batches(self, compactions: int) -> list[range]:
        """Return the turns that each of so many compactions covers: those of the first, the others cut evenly by their
        tokens."""
        at, ends = self.first, [self.first]
        for left in range(compactions - 1, 0, -1):
            if len(self.tokens) - at < left:
                raise ValueError(f"{len(self.tokens)} turns are not enough for {compactions} compactions; take fewer")
            share = sum(self.tokens[at:]) / left
            at, taken = at + 1, self.tokens[at]
            while taken < share and len(self.tokens) - at >= left:
                at, taken = at + 1, taken + self.tokens[at]
            ends.append(at)
        return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def texts(self) -> list[str]:
        """All that is said in each turn."""
        return ["\n".join(text for message in turn for text in _texts(message)) for turn in self.turns]

    @cached_property
    def tokens(self) -> list[int]:
        return [count_tokens(text) for text in self.texts]


@dataclass(frozen=True)
class Run:
    """The summaries after so many compactions each."""

    conversation: Conversation
    batches: Sequence[range]
    summaries: Mapping[int, str]
    #: Tokens of every summary; and how many of them were written anew where changes would have done.
    tokens: Sequence[int]
    majors: int = 0

    def kept(self, kind: str) -> dict[int, tuple[int, int]]:
        """Return how many of the planted facts of *kind* stand in each, and how many they are."""
        return {after: share_kept(self.conversation.planted[kind], text) for after, text in self.summaries.items()}

    @property
    def along(self) -> tuple[int, int]:
        """How many of the facts told all along stand in the last, and how many were told."""
        return share_kept(self.conversation.along, self.summaries[max(self.summaries)])

    @property
    def all(self) -> tuple[int, int]:
        """Likewise of everything that was planted."""
        return share_kept(self.conversation.facts, self.summaries[max(self.summaries)])

    @property
    def precision(self) -> tuple[int, int]:
        """How many of the numbers, paths and ids in all of them stand in what they were made from, and how many there
        are."""
        found = all_named = 0
        for after, text in self.summaries.items():
            named, unknown = precision(text, self.conversation.texts[: self.batches[after - 1].stop])
            found, all_named = found + named - len(unknown), all_named + named
        return found, all_named


def conversation(scenario: Scenario, seed: int) -> Conversation:
    """Return *scenario* with planted sentences, other ones for each *seed*."""
    rng = random.Random(seed)

    def some(wordings: Sequence[Wording], count: int) -> tuple[Fact, ...]:
        return tuple(fact(rng, wording) for wording in rng.sample(wordings, count))

    kinds = {
        "facts": some(USER_FACTS["held-out"], FACTS),
        "always": some(ALWAYS, INSTRUCTIONS),
        "never": some(NEVER, INSTRUCTIONS),
    }
    turns = _turns(message for turn in scenario.turns for step in turn for message in (*step["new"], step["answer"]))
    first = _first(turns)
    sentences = [one.text for kind in kinds.values() for one in kind]
    rng.shuffle(sentences)
    for place, sentence in enumerate(sentences):
        _say(turns[place * first // len(sentences)], sentence, rng)
    along = scenario.facts
    if not along:
        along = tuple(planted(ALONG, seed=9))
        for place, (key, value) in enumerate(along):
            _say(turns[(2 * place + 1) * len(turns) // (2 * ALONG)], told(key, value), rng)
    return Conversation(scenario.name, tuple(map(tuple, turns)), first, kinds, tuple(starmap(_told_along, along)))


def _turns(messages: Iterable[Message]) -> list[list[Message]]:
    """Return *messages* by turns, each of which the user begins."""
    turns: list[list[Message]] = []
    for message in messages:
        if message["role"] == "user" and not (turns and turns[-1][-1]["role"] == "user"):
            turns.append([])
        turns[-1].append(message)
    return turns


def _first(turns: Sequence[Sequence[Message]]) -> int:
    """Return how many of *turns* the first compaction covers."""
    covered = accumulate(sum(count_tokens(text) for message in turn for text in _texts(message)) for turn in turns)
    return next((n for n, tokens in enumerate(covered, 1) if n >= FIRST and tokens >= FIRST_TOKENS), len(turns))


def _told_along(key: str, value: str) -> Fact:
    question = f"Which value did the user ask to remember for {key}?"
    return Fact(told(key, value).partition(": ")[2], (key, value), question=question)


def _say(turn: list[Message], sentence: str, rng: random.Random) -> None:
    """Have the user say *sentence* as well, somewhere in what begins *turn*."""
    said = re.split(r"(?<=[.!?]) ", turn[0]["content"])
    said.insert(rng.randrange(len(said) + 1), sentence)
    turn[0] = {**turn[0], "content": " ".join(said)}


def _texts(message: Message) -> Iterator[str]:
    yield message.get("content") or ""
    for call in message.get("tool_calls") or ():
        yield f"{call['function']['name']} {call['function']['arguments']}"


# --- compactions ------------------------------------------------------------------------------------------------------


def by_model(
    talk: Conversation,
    strategy: Strategy,
    seed: int,
    after: Sequence[int] = AFTER,
    *,
    longest: int = LONG,
    keeps: float = KEEPS,
) -> Run:
    """Return what a compactor with *strategy* makes of *talk* with an imperfect model, asked for ``SIZE`` tokens.

    Raises ``RuntimeError`` unless each of the compactions was published, one for each batch of turns.
    """
    memory = Memory()
    config = CompactorConfig(retain_recent=0, target_tokens=SIZE, summarizer_input_tokens=longest)
    model = ImperfectModel(talk.facts, seed, keeps)
    compactor = ContextCompactor.for_role(memory, "assistant", config, model, strategies=[strategy])
    published: list[Published] = []
    compactor.on_event(lambda event: published.append(event) if isinstance(event, Published) else None)
    batches = talk.batches(max(after))
    summaries: list[str] = []
    for batch in batches:
        _play(talk.turns[batch.start : batch.stop], memory)
        made = compactor.compact_now()
        count = len(summaries) + 1
        if made is None or (made.generation, made.end_index, len(published)) != (count, batch.stop, count):
            raise RuntimeError(f"{talk.name}: what was published is not compaction {count}, of turns 1 to {batch.stop}")
        summaries.append(made.summary)
    compactor.stop()
    tokens = [count_tokens(text) for text in summaries]
    return Run(talk, batches, {one: summaries[one - 1] for one in after}, tokens, sum(one.major for one in published))


def without_model(talk: Conversation, method: Method, after: Sequence[int] = AFTER) -> Run:
    """Return what *method* makes of *talk*, each summary from the one before and the new turns, in ``SIZE`` tokens.

    It is asked directly: nothing is restored that it loses.
    """
    memory = Memory()
    _play(talk.turns, memory)
    rounds: Sequence[Round] = memory.get_role_rounds("assistant")[0]
    batches = talk.batches(max(after))
    summaries = list(successive(method, [rounds[one.start : one.stop] for one in batches], SIZE))
    tokens = [count_tokens(text) for text in summaries]
    return Run(talk, batches, {one: summaries[one - 1] for one in after}, tokens)


def _play(turns: Iterable[Sequence[Message]], memory: Memory) -> None:
    for turn in turns:
        for message in turn:
            memory.append(message)
        memory.finish_round(memory.conversation.rounds[-1])


# --- tables -----------------------------------------------------------------------------------------------------------


def measured(
    names: Sequence[str] = tuple(CONVERSATIONS),
    seeds: int = SEEDS,
    after: Sequence[int] = AFTER,
    conversations: Mapping[str, Callable[[], Scenario]] = CONVERSATIONS,
) -> Iterator[dict[str, Any]]:
    """Give a row for each conversation of *names* and each way to summarise it, over so many *seeds*.

    Of what is counted it has pairs: how many there are, and of how many. What is not here is left out, with a message.
    """
    for name in names:
        try:
            scenario = conversations[name]()
        except Absent as absent:
            print(f"{name} is left out: {absent}", file=sys.stderr, flush=True)
            continue
        talks = [conversation(scenario, seed) for seed in range(min(seeds, MAX_SEEDS.get(name, seeds)))]
        for label, (strategy, longest) in STRATEGIES.items():
            if longest >= LONG or _fits(talks[0], longest, after):
                runs = [by_model(talk, strategy, seed, after, longest=longest) for seed, talk in enumerate(talks)]
                yield {"conversation": name, "way": label, "model": True} | _row(runs)
        for label, method in PLAIN.items():
            runs = [without_model(talk, method, after) for talk in talks]
            yield {"conversation": name, "way": label, "model": False} | _row(runs)


def _fits(talk: Conversation, longest: int, after: Sequence[int]) -> bool:
    """Return whether what any of the compactions covers fits in one request, so that each makes one summary."""
    sizes = (sum(talk.tokens[one.start : one.stop]) for one in talk.batches(max(after)))
    return max(sizes) < longest - 2 * SIZE


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    kept = {kind: _added(run.kept(kind) for run in runs) for kind in ("facts", "always", "never")}
    return {
        **{kind: {str(after): pair for after, pair in found.items()} for kind, found in kept.items()},
        "along": _sum(run.along for run in runs),
        "all": _sum(run.all for run in runs),
        "precision": _sum(run.precision for run in runs),
        "tokens": fmean(tokens for run in runs for tokens in run.tokens),
        "most_tokens": max(tokens for run in runs for tokens in run.tokens),
        "majors": fmean(run.majors for run in runs),
    }


def _added(found: Iterable[Mapping[int, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    sums: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in found:
        for after, pair in one.items():
            sums[after].append(pair)
    return {after: _sum(pairs) for after, pairs in sums.items()}


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    hits, totals = zip(*pairs, strict=True)
    return sum(hits), sum(totals)


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table for each question that *rows* answer."""
    modelled, plain = ([row for row in rows if row["model"] is one] for one in (True, False))
    last = "told all along, in the last"
    parts = [
        f"### Surface retention: facts, with a model that keeps {KEEPS:.0%} of what it reads",
        _table(
            [*_heads(rows, "facts after"), last, "tokens, mean / most", "written anew in full"],
            [[*_shares(row, "facts"), _share(row["along"]), _size(row), f"{row['majors']:.1f}"] for row in modelled],
            modelled,
        ),
        "### Surface retention: standing instructions, with that model: always / never",
        _table(_heads(rows, "after"), [_shares(row, "always", "never") for row in modelled], modelled),
        "### Surface retention without a model: facts / standing instructions",
        _table(
            [*_heads(rows, "after"), last, "everything, in the last", "tokens, mean / most"],
            [
                [*_shares(row, "facts", ("always", "never")), _share(row["along"]), _share(row["all"]), _size(row)]
                for row in plain
            ],
            plain,
        ),
        "### Precision: numbers, paths and ids in summaries that stand in what these were made from",
        _precisions(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _heads(rows: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    first, *others = rows[0]["facts"]
    return [f"{what} {first}", *others]


def _shares(row: Mapping[str, Any], *kinds: str | tuple[str, ...]) -> list[str]:
    """Return for each number of compactions the share kept, of each of *kinds*."""
    groups = [(kind,) if isinstance(kind, str) else kind for kind in kinds]
    return [" / ".join(_share(_sum(row[kind][after] for kind in group)) for group in groups) for after in row["facts"]]


def _share(pair: tuple[int, int], digits: int = 0) -> str:
    return f"{pair[0] / pair[1]:.{digits}%}" if pair[1] else "–"


def _size(row: Mapping[str, Any]) -> str:
    return f"{row['tokens']:,.0f} / {row['most_tokens']:,}"


def _precisions(rows: Sequence[Mapping[str, Any]]) -> str:
    found = {(row["way"], row["conversation"]): row["precision"] for row in rows}
    ways, names = (list(dict.fromkeys(one[place] for one in found)) for place in (0, 1))
    told = {one: f"{_share(pair, 1)} of {pair[1]:,}" if pair[1] else "none" for one, pair in found.items()}
    return _lines(["", *names], [[way, *(told.get((way, name), "–") for name in names)] for way in ways])


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with a line for each of *rows*, whose *cells* are under *heads*."""
    named = [[row["conversation"], row["way"], *more] for row, more in zip(rows, cells, strict=True)]
    return _lines(["conversation", "", *heads], named, names=2)


def _lines(heads: Sequence[str], cells: Iterable[Sequence[str]], names: int = 1) -> str:
    rule = [*["---"] * names, *["--:"] * (len(heads) - names)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--conversations", nargs="+", choices=[*CONVERSATIONS], default=[*CONVERSATIONS])
    options = parser.parse_args(arguments)
    rows = list(measured(options.conversations, options.seeds))
    if rows:
        print(tables(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
