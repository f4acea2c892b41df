"""What a summarizer's answers have been like: whatever it reports, the next estimate is a sound one."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compactor import Summary
from compactor.summarizers.base import MAX_ANSWER, MAX_REFUSED, SummarizerStats

COUNTS = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, 2**53, 2**53 + 1])
NONSENSE = st.none() | st.text(max_size=5) | st.floats() | st.booleans() | st.lists(st.integers(), max_size=2)
NAMES = st.sampled_from(["input_tokens", "output_tokens", "cached_tokens", "else"])
USAGE: Any = st.none() | st.dictionaries(NAMES | st.integers(0, 3), COUNTS | NONSENSE) | NONSENSE
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["rounds", "changes", "tool_run", "large_post"]),
        USAGE,
        st.integers(0, 10**6),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


def noted(*answers: tuple[Any, Any, int, bool, bool]) -> SummarizerStats:
    stats = SummarizerStats()
    for kind, usage, tokens, continued, refused in answers:
        check = "malformed" if refused else ""
        stats.note_answer(kind, Summary("Noted.", usage), tokens, continued=continued, refused=check)
    return stats


@given(ANSWERS)
def test_any_usage_in_any_order_gives_a_sound_estimate(answers: list[Any]) -> None:
    """Nothing raises; shares are shares, and lengths such as a model can write."""
    stats = noted(*answers)
    assert stats.cached_share is None or 0 <= stats.cached_share <= 1
    for length in (stats.full, stats.edits):
        assert length is None or (math.isfinite(length) and 0 <= length <= max(MAX_ANSWER, 10**6))
    assert 0 <= stats.refused_changes <= stats.asked_for_changes == sum(one[0] == "changes" for one in answers)
    assert not any(word in stats.describe() for word in ("nan", "inf "))


@given(
    st.lists(st.tuples(st.integers(1, 200_000), st.floats(0, 1)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_hits_make_up_for_a_miss_and_misses_for_hits(prompts: list[tuple[int, float]], rng: Any) -> None:
    """A pause makes one miss; a cache that had the prompt in none of the last ones is not shared any more."""
    usages = [{"input_tokens": read, "cached_tokens": int(read * share)} for read, share in prompts]
    shares = [usage["cached_tokens"] / usage["input_tokens"] for usage in usages]
    rng.shuffle(usages)
    hit, miss = {"input_tokens": 100, "cached_tokens": 100}, {"input_tokens": 100, "cached_tokens": 0}
    for last, is_shared in (([], None), ([hit, miss], True), ([miss, miss, miss], False)):
        stats = noted(*[("rounds", usage, 10, True, False) for usage in (*usages, *last)])
        assert stats.cached_share is not None
        assert is_shared in (None, stats.shares_cache)
        if not last:
            assert min(shares) <= stats.cached_share <= max(shares)


@given(ANSWERS)
def test_only_requests_behind_the_agents_prompt_tell_of_its_cache(answers: list[Any]) -> None:
    """A transcript is in nobody's cache, and says nothing."""
    separate = [(kind, usage, tokens, False, refused) for kind, usage, tokens, _, refused in answers]
    assert noted(*separate).cached_share is None
    assert noted(*separate).shares_cache


def test_an_answer_without_usage_shows_no_hit() -> None:
    """Whoever tells nothing cannot prove that most of the prompt was cached."""
    assert not noted(("rounds", None, 10, True, False)).shares_cache
    assert not noted(("rounds", {"input_tokens": 900}, 10, True, False)).shares_cache
    assert noted(("rounds", {"input_tokens": 900, "cached_tokens": 800}, 10, True, False)).shares_cache
    assert noted(("rounds", None, 10, True, True)).cached_share is None, "an answer that was none proves nothing"


@given(st.lists(st.booleans(), max_size=20))
def test_a_model_keeps_the_form_unless_it_mostly_does_not(refusals: list[bool]) -> None:
    """One refusal is forgiven; from the second on, most lists have to be good."""
    stats = noted(*[("changes", None, 10, False, refused) for refused in refusals])
    bad = sum(refusals)
    assert stats.keeps_form == (bad < MAX_REFUSED or bad < len(refusals) - bad)


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=20))
def test_mean_lengths_lie_between_the_shortest_and_the_longest(lengths: list[int]) -> None:
    """Of the texts that were accepted; what a model is charged for beyond its text are thoughts."""
    stats = noted(
        *[("changes", {"output_tokens": length + 1_200}, length, False, False) for length in lengths],
        *[("rounds", None, length, False, False) for length in lengths],
        ("changes", {"output_tokens": 10**5}, 7, False, True),
        ("rounds", {"output_tokens": 10**5}, 7, False, True),
    )
    for mean in (stats.edits, stats.full):
        assert mean is not None
        assert min(lengths) <= mean <= max(lengths)
    alone = noted(*[("changes", {"output_tokens": length + 1_200}, length, False, False) for length in lengths])
    assert "thinks 1,200 tokens per answer" in alone.describe()


def test_an_addition_is_no_measure_of_all_notes() -> None:
    """Notes on a few new rounds are short; all notes are not, and what they cost is weighed by their own length."""
    stats = noted(("rounds", None, 900, False, False))
    stats.note_answer("rounds", Summary("Noted."), 40, continued=False, notes="new")
    stats.note_answer("rounds", Summary("Noted."), 400, continued=False, notes="some")
    assert (stats.full, stats.addition) == (900, 40)
    assert "notes on new rounds 40 tokens" in stats.describe()


@given(st.integers(1, 50))
def test_a_model_that_has_written_changes_may_say_that_nothing_changes(times: int) -> None:
    """That is refused after a long conversation, but it says nothing of the form; from one that never wrote any it does."""
    writer, other = noted(("changes", None, 40, False, False)), SummarizerStats()
    for stats in (writer, other):
        for _ in range(times):
            stats.note_answer("changes", Summary("none"), 1, continued=False, refused="hollow")
    assert (writer.keeps_form, writer.refused_changes) == (True, 0)
    assert other.keeps_form == (times < MAX_REFUSED)
    for _ in range(max(MAX_REFUSED, times + 1)):
        writer.note_answer("changes", Summary("Hello!"), 1, continued=False, refused="malformed")
    assert not writer.keeps_form


def test_a_transcript_that_was_sent_instead_says_nothing_of_the_cache() -> None:
    """The summarizer tells that it did not ask behind the agent's prompt, though the request proposed it."""
    stats = noted(("rounds", {"input_tokens": 900, "cached_tokens": 800}, 10, True, False))
    before = stats.cached_share
    sent = Summary("Noted.", {"input_tokens": 900, "cached_tokens": 0}, continued=False)
    stats.note_answer("rounds", sent, 10, continued=True)
    assert stats.cached_share == before
    assert not stats.continued
