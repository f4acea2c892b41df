"""What one compaction's request costs, asked separately and behind the agent's own prompt; and where the two cross.

    python -m benchmarks.crossover

Prints three Markdown tables, the same on every machine: the tokens of either request, as they are sent; their price by
several lists of prices, where uncached input of the agent's is 1, with what the formulas say; and how cheap another
model must be to summarise for less than the agent's own. What a provider's cache finds is worked out as in the
comparison: 1,024 tokens, and then steps of 128.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.comparison.prefixes import Prefixes
from compactor import CompactorConfig, ContextCompactor, SummaryRequest, compose, count_message, count_tokens
from compactor.cost import Prices
from memory import Memory

ROLE, MODEL = "assistant", "the-agents"
#: Tokens of the system message, of a summary, and of a round; the newest rounds are retained.
SYSTEM, SUMMARY, ROUND, RETAINED = 3_000, 2_000, 500, 8
#: Tokens that a compaction newly covers.
COVERED = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000)
#: Of the agent's model, which also summarises: what is cached, and what is written to the cache.
LISTS = (
    Prices(cached_input=0.1, cache_write=1.0, output=4.0),
    Prices(cached_input=0.25, cache_write=1.0, output=4.0),
    Prices(cached_input=0.5, cache_write=1.0, output=4.0),
    Prices(cached_input=0.1, cache_write=1.25, output=5.0),
)


class Asked(NamedTuple):
    """One compaction, asked for in both ways: the tokens of each, and of the instruction alone."""

    covered: int
    separate: int
    behind: int
    #: How many of those behind the prompt the provider has in its cache.
    cached: int
    instruction: int


def asked(covered: int) -> Asked:
    """Let a conversation grow by *covered* tokens behind its first compaction, and compact it again."""
    memory, requests, prefixes = Memory("crossover"), list[SummaryRequest](), Prefixes()

    def summarizer(request: SummaryRequest) -> str:
        requests.append(request)
        told = " ".join(f"question{n} answer{n}" for n in range(1, request.end_index + 1))
        return _text(SUMMARY, f"summary{len(requests)} {told}.")

    def agent_asks() -> None:
        prompt = compose(memory, budget=200_000, system=_text(SYSTEM, "system"))
        prefixes.taken(MODEL, prompt.messages, (), 0)

    config = CompactorConfig(
        threshold=1_000, retain_recent=RETAINED, target_tokens=SUMMARY, summarizer_input_tokens=200_000
    )
    with ContextCompactor.for_role(memory, ROLE, config, summarizer) as compactor:
        _talk(memory, RETAINED + 8)
        compactor.compact_now()
        _talk(memory, covered // ROUND)
        agent_asks()
        compactor.compact_now()
    request = requests[-1]
    assert request.continued_prompt is not None, "the agent's last prompt shows all that is to be summarised"
    separate, none = prefixes.taken(MODEL, request.messages, (), 0)
    behind, cached = prefixes.taken(MODEL, request.continued_prompt.messages, (), 0)
    assert none == 0, "a transcript begins like no prompt of the agent's"
    return Asked(covered, separate, behind, cached, count_message(request.continued_prompt.messages[-1], count_tokens))


def _talk(memory: Memory, rounds: int) -> None:
    for _ in range(rounds):
        number = len(memory.conversation.rounds) + 1
        memory.append({"role": "user", "content": _text(ROUND // 5 - 4, f"question{number}")})
        memory.append({"role": "assistant", "content": _text(ROUND - ROUND // 5 - 4, f"answer{number}")})
        memory.finish_round(memory.conversation.rounds[-1])


def _text(tokens: int, name: str) -> str:
    """Return a text of *tokens* tokens that begins with *name*."""
    return name + " word" * (tokens - count_tokens(name))


# -- prices -----------------------------------------------------------------------------------------------------------


def separately(prices: Prices, read: float) -> float:
    """Return the price of a request that reads *read* tokens, and of its answer, from the summarizer's model."""
    return prices.summarizer_input * read + prices.summarizer_output * SUMMARY


def behind(prices: Prices, cached: float, new: float) -> float:
    """Return the same for one that reads so many *cached* tokens and *new* ones, from the agent's model."""
    return prices.cached_input * cached + prices.cache_write * new + prices.output * SUMMARY


def breaks_even(prices: Prices, one: Asked) -> float:
    """Return the price of a model, input and output in the proportion of the agent's, from which on the agent's own
    summarises for less."""
    own = behind(prices, one.cached, one.behind - one.cached)
    return own / (one.separate + prices.output * SUMMARY)


# -- tables -----------------------------------------------------------------------------------------------------------


def tokens_of(all_asked: Sequence[Asked]) -> Iterator[list[str]]:
    yield [
        "newly covered",
        "sent separately",
        "per covered token",
        "sent behind the prompt",
        "per covered token",
        "of it cached",
    ]
    for one in all_asked:
        yield [
            f"{one.covered:,}",
            f"{one.separate:,}",
            f"{one.separate / one.covered:.2f}",
            f"{one.behind:,}",
            f"{one.behind / one.covered:.2f}",
            f"{one.cached / one.behind:.0%}",
        ]


def prices_of(all_asked: Sequence[Asked]) -> Iterator[list[str]]:
    names = [f"cached {one.cached_input:g}, written {one.cache_write:g}, output {one.output:g}" for one in LISTS]
    yield ["newly covered", *names]
    for one in all_asked:
        row = [f"{one.covered:,}"]
        for prices in LISTS:
            separate = separately(prices, one.separate)
            formula = separately(prices, SUMMARY + one.instruction + one.covered)
            own = behind(prices, one.cached, one.behind - one.cached)
            own_formula = behind(prices, SYSTEM + SUMMARY + one.covered, one.instruction)
            row.append(f"{separate:,.0f} ({formula:,.0f}) / {own:,.0f} ({own_formula:,.0f})")
        yield row


def crossings(all_asked: Sequence[Asked]) -> Iterator[list[str]]:
    names = [f"cached {one.cached_input:g}, written {one.cache_write:g}, output {one.output:g}" for one in LISTS]
    yield ["newly covered", *names]
    for one in all_asked:
        yield [f"{one.covered:,}", *(f"{breaks_even(prices, one):.2f}" for prices in LISTS)]


def table(rows: Iterable[Sequence[Any]]) -> str:
    head, *rest = [f"| {' | '.join(map(str, row))} |" for row in rows]
    rule = "|" + "--:|" * (head.count("|") - 1)
    return "\n".join([head, rule, *rest])


def main(covered: Sequence[int] = COVERED) -> None:
    made = [asked(tokens) for tokens in covered]
    print(
        f"System message {SYSTEM:,} tokens, summary {SUMMARY:,}, rounds of {ROUND}, instruction {made[0].instruction}."
    )
    print("\nTokens of one compaction's request:\n")
    print(table(tokens_of(made)))
    print("\nIts price with the answer's, separately / behind the prompt; in brackets by the formulas:\n")
    print(table(prices_of(made)))
    print("\nA model that costs less than this much of the agent's summarises for less, separately:\n")
    print(table(crossings(made)))


if __name__ == "__main__":
    main()
