"""A prompt's report names the published reductions that it shows, with what they save and the reference of each."""

from __future__ import annotations

import pytest
from chats import answer, calls, memory_of, result, user, words
from views import reduced

from compactor import Reduction, compose, count_tokens, drop, offload_large
from memory import Memory

BIG = words(3_000)


def a_run() -> Memory:
    messages = [one for n in range(4) for one in (user(f"q{n}"), calls(f"c{n}"), result(f"c{n}", BIG), answer(f"a{n}"))]
    return memory_of(*messages, user("And now?"))


def test_offloaded_posts_are_reported_with_their_references() -> None:
    """Each reloads its original."""
    memory = a_run()
    assert compose(memory, budget=100_000).report.reductions == ()
    reduced(memory, offload_large(keep_last=0))
    report = compose(memory, budget=100_000).report
    assert [one.ref for one in report.reductions] == ["r1.p2", "r2.p2", "r3.p2", "r4.p2"]
    assert {(one.by, one.tokens_before, one.published) for one in report.reductions} == {("offloaded", 3_000, True)}
    assert all(0 < one.tokens_after < 200 for one in report.reductions)
    assert all(BIG in memory.reload(one.ref) for one in report.reductions)


def test_dropped_and_summarised_posts_are_reported_too() -> None:
    memory = a_run()
    (dropped,) = reduced(memory, drop("tool_result", 3))
    round_ = memory.conversation.rounds[1]
    summary = Reduction.over(round_, round_.post_list[:2], "summarised", "A call was made.")
    memory.journal("assistant").reduce(summary, base=memory.journal("assistant").read().generation)
    first, second = compose(memory, budget=100_000).report.reductions
    assert (first.ref, first.by, first.tokens_after) == ("r1.p1-p2", dropped.kind, 0)
    assert (second.ref, second.by, second.tokens_after) == ("r2.p1-p2", "summarised", count_tokens("A call was made."))
    assert BIG in memory.reload(first.ref)


@pytest.mark.parametrize("budget", [100_000, 2_000])
def test_what_the_prompt_leaves_out_or_covers_is_not_reported_as_shown(budget: int) -> None:
    """Nor is a text twice that was shortened further for this prompt."""
    memory = a_run()
    reduced(memory, offload_large(keep_last=0))
    report = compose(memory, budget=budget).report
    refs = [one.ref for one in report.reductions]
    assert len(refs) == len(set(refs))
    assert not {ref.partition(".")[0] for ref in refs} & {f"r{number}" for number in report.omitted_rounds}


def test_a_reduction_is_counted_once() -> None:
    """However many prompts are composed."""
    memory, counted = a_run(), []

    def count(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    reduced(memory, offload_large(keep_last=0))
    compose(memory, budget=100_000, counter=count)
    counted.clear()
    compose(memory, budget=100_000, counter=count)
    assert BIG not in counted
