"""The token cache counts each closed round once, for everybody, and is right whatever fails meanwhile."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from chats import answer, assert_legal, calls, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from threads import at_once

from compactor import (
    CompactorConfig,
    ContextCompactor,
    TokenCounter,
    View,
    compose,
    count_message,
    count_prompt,
    count_tokens,
)
from compactor.host_rounds import HostRounds
from compactor.prompt import token_cache as token_caches
from compactor.prompt.groups import group_messages
from compactor.prompt.layout import PromptPart
from compactor.prompt.token_cache import (
    MAX_COUNTERS,
    MAX_OPEN_GROUPS,
    Overlays,
    PrefixSums,
    RoundTokens,
    RunningTotals,
    TokenCache,
    count_calls,
    get_token_cache,
)
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, Post, Reduction, Round, Rounds


class Counted:
    """A counter that remembers what it was asked."""

    def __init__(self, count: TokenCounter = len) -> None:
        self.texts: list[str] = []
        self._count = count

    def __call__(self, text: str) -> int:
        self.texts.append(text)
        return self._count(text)


def chat(rounds: int) -> Memory:
    memory = Memory()
    for number in range(rounds):
        memory.append(user(f"q{number}"))
        memory.append(answer(words(number)))
    return memory


def sums_of(token_cache: TokenCache, rounds: Rounds | HostRounds, origin: int = 0) -> PrefixSums:
    return token_cache.compute_prefix_sums(rounds, rounds.closed, rounds.reductions, origin)


def fresh(
    rounds: Rounds | HostRounds, role: str = "assistant", count: TokenCounter = len, origin: int = 0
) -> PrefixSums:
    """Return what a cache says that has seen nothing else."""
    return sums_of(TokenCache(role, count), rounds, origin)


def before(sums: PrefixSums) -> list[RunningTotals]:
    """Return what *sums* say of all places."""
    return [sums[place] for place in range(sums.start, sums.stop + 1)]


def told(sums: PrefixSums, start: int | None = None) -> tuple[list[RunningTotals], list[RoundTokens]]:
    """Return what *sums* say of the rounds from the place *start* on: two that say the same are as good."""
    start = sums.start if start is None else start
    first = sums[start]
    parts = [
        one._replace(
            tokens=one.tokens - first.tokens,
            messages=one.messages - first.messages,
            last_query=one.last_query if one.last_query is not None and one.last_query >= start else None,
            shortest=one.shortest - first.shortest,
            pinned=one.pinned - first.pinned,
            dropped=one.dropped - first.dropped,
            calls=one.calls - first.calls,
        )
        for one in before(sums)[start - sums.start :]
    ]
    return parts, list(sums.round_tokens[start - sums.start :])


# -- sums -------------------------------------------------------------------------------------------------------------


def test_sums_tell_how_often_the_model_was_called() -> None:
    """Each message of the role itself is an answer of its model; what others say, and what tools give, is not."""
    first = [user(), calls("c", "d"), result("c"), result("d"), calls("e"), result("e"), answer()]
    rounds, _ = Memory.from_messages([*first, user(), answer()]).get_role_rounds("assistant")
    sums = fresh(rounds)

    assert [counted.totals.calls for counted in sums.round_tokens] == [3]
    assert sums[1].calls - sums[0].calls == 3
    assert [count_calls(round_, "assistant") for round_ in rounds] == [3, 1]
    assert [count_calls(round_, "Planner") for round_ in rounds] == [0, 0]
    assert [count_calls(round_, "") for round_ in rounds] == [3, 1], "of a host that shows everything to everybody"


def test_sums_tell_of_all_rounds_before_a_place() -> None:
    """Tokens, messages, where the user last spoke, ids and numbers; the open round is not in them."""
    memory = Memory.from_messages([user("one"), calls("c"), result("c", "done")])
    memory.finish_round(memory.conversation.rounds[0])
    closed = memory.create_round("", id="second")
    memory.finish_round(closed)
    memory.append(user("open"))
    rounds, _ = memory.get_role_rounds("assistant")

    sums = fresh(rounds)

    cost = sum(
        count_message(message, len) for group in group_messages(rounds[0], "assistant") for message in group.messages
    )
    assert [one.tokens for one in before(sums)] == [0, cost, cost]
    assert [one.messages for one in before(sums)] == [0, 3, 3]
    assert [one.last_query for one in before(sums)] == [None, 0, 0]
    assert [(counted.round_id, counted.number) for counted in sums.round_tokens] == [(rounds[0].id, 1), ("second", 2)]
    assert sums.list_numbers(range(2)) == [1, 2]


def test_a_round_is_counted_once() -> None:
    """However often it is asked and however many rounds are added."""
    memory, counter = chat(3), Counted()
    token_cache = TokenCache("assistant", counter)
    sums_of(token_cache, memory.get_role_rounds("assistant")[0])
    for number in range(3, 200):
        memory.append(user(f"q{number}"))
        memory.append(answer(words(number)))
        sums = sums_of(token_cache, memory.get_role_rounds("assistant")[0])

    assert sorted(counter.texts) == sorted({*counter.texts})
    assert told(sums) == told(fresh(memory.get_role_rounds("assistant")[0]))


def test_rounds_that_fail_are_taken_out_and_nothing_is_counted_again() -> None:
    """A closed round that fails shifts all later ones; what they cost is known."""
    memory, counter = chat(20), Counted()
    token_cache = TokenCache("assistant", counter)
    earlier = sums_of(token_cache, memory.get_role_rounds("assistant")[0])
    kept = told(earlier)
    memory.finish_round(memory.conversation.rounds[9], "failed")
    counter.texts.clear()

    rounds, _ = memory.get_role_rounds("assistant")
    after = sums_of(token_cache, rounds)

    assert told(after) == told(fresh(rounds))
    assert set(counter.texts) <= {"q19", words(19), "q18", words(18)}, (
        "the newest alone may be another host's that still grows"
    )
    assert told(earlier) == kept, "those who hold the sums of an earlier moment keep them"


@given(st.lists(st.integers(0, 6), max_size=30), st.randoms(use_true_random=False))
def test_the_sums_are_always_those_of_the_rounds_there_are(steps: list[int], random: Random) -> None:
    """Whatever is added, failed, reduced and asked in between, from whatever place on, also by a reader of an older
    moment: sums begin there or before, and say what a cache says that has seen nothing else."""
    memory, token_cache = Memory(), TokenCache("assistant", len)
    older = memory.get_role_rounds("assistant")[0]
    for number, step in enumerate(steps):
        rounds = memory.conversation.rounds
        if step == 0 and len(rounds):
            memory.finish_round(rounds[number % len(rounds)], "failed")
        elif step == 1:
            older = memory.get_role_rounds("assistant")[0]
        elif step == 2:
            assert_right(token_cache, older, random.randint(0, older.closed))
        elif step == 3 and len(rounds) > 1 and rounds[number % (len(rounds) - 1)].state == "finished":
            round_ = rounds[number % (len(rounds) - 1)]
            made = Reduction.over(round_, round_.post_list, "offloaded", "short")
            if memory.journal("assistant").reduce(made, base=0) is None:  # there is one already
                memory.journal("assistant").withdraw(made)
        else:
            memory.append(user(f"q{number}"))
            memory.append(answer(words(number)))
        now = memory.get_role_rounds("assistant")[0]
        assert_right(token_cache, now, random.randint(0, now.closed))


def assert_right(token_cache: TokenCache, rounds: Rounds, origin: int) -> None:
    """Check what *token_cache* says of *rounds* from *origin* on."""
    sums = sums_of(token_cache, rounds, origin)
    assert sums.start <= origin
    totals, counted = told(sums, origin)
    settled = rounds.closed - origin
    assert (totals[: settled + 1], counted[:settled]) == told(fresh(rounds, origin=origin))


def test_rounds_before_the_origin_are_not_counted() -> None:
    """A session of 100,000 rounds costs what lies behind its compaction."""
    memory, counter = chat(50), Counted()
    rounds, _ = memory.get_role_rounds("assistant")

    sums = sums_of(TokenCache("assistant", counter), rounds, 45)

    assert set(counter.texts) == {text for number in range(45, 49) for text in (f"q{number}", words(number))}
    assert (sums.start, sums.stop) == (45, 49)
    assert sums.list_numbers(range(46, 48)) == [47, 48]
    assert sums.list_numbers(range(3, 3)) == []
    assert sums[49].last_query == 48
    with pytest.raises(IndexError, match="begin at place 45, not at 44"):
        sums[44]


def test_what_lies_before_the_origin_is_let_go_when_that_moves_on() -> None:
    """Not at once: a prompt that was begun just before still asks from the origin before, and counts nothing anew."""
    memory, counter = chat(60), Counted()
    token_cache = TokenCache("assistant", counter)
    rounds, _ = memory.get_role_rounds("assistant")
    early = sums_of(token_cache, rounds, 0)
    first = sums_of(token_cache, rounds, 40)
    counter.texts.clear()

    assert first is early
    assert sums_of(token_cache, rounds, 0) is early
    assert sums_of(token_cache, rounds, 40) is early
    second = sums_of(token_cache, rounds, 50)

    assert (second.start, second.stop) == (40, 59)
    assert second[45].last_query == 44
    assert second[40].last_query is None
    assert early[10].messages == 20, "who holds the sums of an earlier moment keeps them"
    assert sums_of(token_cache, rounds, 45) is second
    assert counter.texts == []


def test_a_small_step_forward_copies_nothing() -> None:
    """Where much is retained and each publication covers little, sums are not made anew each time."""
    token_cache = TokenCache("assistant", len)
    rounds, _ = chat(60).get_role_rounds("assistant")
    made = {id(sums) for sums in [sums_of(token_cache, rounds, origin) for origin in range(40)]}
    assert len(made) == 2


def test_sums_reach_back_when_the_origin_does() -> None:
    """As after a revert: only what is new to them is counted, and only as far as the new origin."""
    memory, counter = chat(60), Counted()
    token_cache = TokenCache("assistant", counter)
    rounds, _ = memory.get_role_rounds("assistant")
    later = sums_of(token_cache, rounds, 50)
    counter.texts.clear()

    back = sums_of(token_cache, rounds, 30)

    assert told(back) == told(fresh(rounds, origin=30))
    assert set(counter.texts) == {text for number in range(30, 50) for text in (f"q{number}", words(number))}
    assert later.start == 50


def test_a_round_that_failed_is_not_taken_for_the_one_before_it() -> None:
    """Both end at the same place then, and the sums that are there may begin with the one that failed."""
    memory, token_cache = chat(10), TokenCache("assistant", len)
    sums_of(token_cache, memory.get_role_rounds("assistant")[0], 5)
    memory.finish_round(memory.conversation.rounds[5], "failed")

    rounds, _ = memory.get_role_rounds("assistant")

    assert told(sums_of(token_cache, rounds, 4)) == told(fresh(rounds, origin=4))


def test_a_covered_round_that_fails_shifts_the_sums() -> None:
    """What was counted behind it is not counted again."""
    memory, counter = chat(30), Counted()
    token_cache = TokenCache("assistant", counter)
    sums_of(token_cache, memory.get_role_rounds("assistant")[0], 20)
    memory.finish_round(memory.conversation.rounds[2], "failed")
    counter.texts.clear()

    rounds, _ = memory.get_role_rounds("assistant")

    assert told(sums_of(token_cache, rounds, 19)) == told(fresh(rounds, origin=19))
    assert set(counter.texts) <= {"q28", words(28)}


def test_a_reader_of_an_older_moment_gets_its_sums() -> None:
    """Though those that are there begin behind all that it knows of."""
    memory, token_cache = chat(10), TokenCache("assistant", len)
    older, _ = memory.get_role_rounds("assistant")
    for number in range(10, 30):
        memory.append(user(f"q{number}"))
        memory.append(answer("a"))
    sums_of(token_cache, memory.get_role_rounds("assistant")[0], 25)

    assert told(sums_of(token_cache, older, 3)) == told(fresh(older, origin=3))


def test_rounds_between_what_was_counted_and_the_origin_are_not_counted() -> None:
    """A counter that was not used for long goes on behind the compaction that there is by then."""
    memory, counter = chat(10), Counted()
    token_cache = TokenCache("assistant", counter)
    sums_of(token_cache, memory.get_role_rounds("assistant")[0])
    for number in range(10, 30):
        memory.append(user(f"q{number}"))
        memory.append(answer("a"))
    counter.texts.clear()

    sums = sums_of(token_cache, memory.get_role_rounds("assistant")[0], 25)

    assert (sums.start, sums.stop) == (25, 29)
    assert set(counter.texts) == {"q25", "q26", "q27", "q28", "a"}


def test_a_reduction_changes_the_sums_behind_the_origin_alone() -> None:
    """What reads the same is neither counted nor looked at again before that."""
    memory, counter = chat(60), Counted()
    token_cache = TokenCache("assistant", counter)
    sums_of(token_cache, memory.get_role_rounds("assistant")[0])
    reduce(memory, 55, "offloaded", "short")
    counter.texts.clear()

    rounds, _ = memory.get_role_rounds("assistant")
    sums = sums_of(token_cache, rounds, 50)

    assert told(sums) == told(fresh(rounds, origin=50))
    assert set(counter.texts) <= {"q55", "short", "q58", words(58)}


def test_another_hosts_round_that_grows_though_it_looks_closed_is_counted_again() -> None:
    """Hosts whose rounds have no state go on adding to the newest."""
    token_cache = TokenCache("", len)
    first = [Post(id="p1", send_from="A", send_to="B", message="one")]
    items = [Round(id=f"r{number}", user_query="q", state="finished") for number in range(3)]
    sums_of(token_cache, HostRounds(items, ""))
    items[2] = items[2].model_copy(update={"post_list": tuple(first)})
    items.append(Round(id="r3", user_query="q", state="finished"))

    rounds = HostRounds(items, "")

    assert told(sums_of(token_cache, rounds)) == told(fresh(rounds, ""))


def test_another_hosts_rounds_are_found_by_id_and_not_turned_into_ours_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle over a long session reads only what is new."""
    token_cache = TokenCache("", len)
    items = [Round(id=f"r{number}", user_query="q", state="finished") for number in range(500)]
    sums_of(token_cache, HostRounds(items, ""))
    read: list[object] = []
    monkeypatch.setattr(HostRounds, "__getitem__", lambda self, place: read.append(place) or self._rounds[place])

    sums_of(token_cache, HostRounds(items, ""))

    assert read == [499]


def test_another_host_may_show_fewer_rounds_than_before() -> None:
    """Rounds that are gone are no longer counted."""
    token_cache = TokenCache("", len)
    items = [Round(id=f"r{number}", user_query="q" * number, state="finished") for number in range(9)]
    sums_of(token_cache, HostRounds(items, ""))

    for left in (items[:4], items[2:], []):
        rounds = HostRounds(left, "")
        assert told(sums_of(token_cache, rounds)) == told(fresh(rounds, ""))


def test_threads_that_count_at_once_agree() -> None:
    """Any number of readers of several moments get the sums of theirs."""
    memory = chat(300)
    moments = [memory.get_role_rounds("assistant")[0]]
    memory.finish_round(memory.conversation.rounds[150], "failed")
    moments.append(memory.get_role_rounds("assistant")[0])
    right = [told(fresh(rounds)) for rounds in moments]
    token_cache = TokenCache("assistant", len)

    def read(which: int) -> None:
        for _ in range(5):
            assert told(sums_of(token_cache, moments[which])) == right[which]

    at_once(*(partial(read, number % 2) for number in range(6)))


def test_a_thread_that_was_overtaken_goes_on_from_there() -> None:
    """Two count the same rounds; what the slower one has counted is not added twice."""
    memory = chat(5)
    rounds, _ = memory.get_role_rounds("assistant")
    overtaken: list[PrefixSums] = []

    def count(text: str) -> int:
        if text == "q0" and not overtaken:
            overtaken.append(PrefixSums())
            overtaken[0] = sums_of(token_cache, rounds)
        return len(text)

    token_cache = TokenCache("assistant", count)
    token_cache.compute_prefix_sums(rounds, 0, rounds.reductions)  # from here on the epoch is known
    sums = sums_of(token_cache, rounds)

    assert sums is overtaken[0]
    assert told(sums) == told(fresh(rounds))


@pytest.mark.slow
@pytest.mark.parametrize("withdrawn", [False, True])
def test_two_whose_moments_differ_by_redactions_never_have_one_another_begin_anew(withdrawn: bool) -> None:
    """However they take turns, each round is counted once, and what was erased once more for each of the moments."""
    memory = chat(400)
    older, _ = memory.get_role_rounds("assistant")
    for number in range(10, 20):
        memory.redact(f"r{number}.p1")
    newer, _ = memory.get_role_rounds("assistant")
    read: list[str] = []

    class Watched(TokenCache):
        def _count_round(self, raw: Round, overlays: Overlays, *, keeps: bool) -> RoundTokens:
            read.append(raw.id)
            assert len(read) < 2_000, "each has the other begin anew"
            if len(read) % 50 == 0:  # in the middle of a count: the other one comes in, and is through before
                rounds, origin = (older, 300 if withdrawn else 0) if len(read) % 100 else (newer, 0)
                turn(rounds, origin)
            return super()._count_round(raw, overlays, keeps=keeps)

    inside: list[bool] = []

    def turn(rounds: Rounds, origin: int) -> None:
        if not inside:
            inside.append(True)
            sums_of(token_cache, rounds, origin)
            inside.pop()

    token_cache = Watched("assistant", len)
    for _ in range(5):
        assert told(sums_of(token_cache, newer)) == told(fresh(newer))
        assert told(sums_of(token_cache, older, 300), 300) == told(fresh(older, origin=300))
    assert len(read) <= 2 * 400 + 10 * 20


def test_what_is_remembered_of_closed_rounds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice what the sums hold, and a little: what lies far before their origin is let go."""
    monkeypatch.setattr(token_caches, "MIN_ROUNDS", 10)
    memory, token_cache = chat(5), TokenCache("assistant", len)
    for number in range(5, 200):
        memory.append(user(f"q{number}"))
        memory.append(answer("a"))
        rounds, _ = memory.get_role_rounds("assistant")
        sums = sums_of(token_cache, rounds, max(0, rounds.closed - 5))
        assert len(token_cache._round_tokens) <= 2 * len(sums.round_tokens) + 10


# -- open rounds ------------------------------------------------------------------------------------------------------


def test_groups_of_open_rounds_are_counted_once_each() -> None:
    """A post that is added costs its own count; a result that comes makes its call's group another."""
    memory, counter = Memory.from_messages([user("q"), calls("c")]), Counted()
    token_cache = TokenCache("assistant", counter)

    def tokens() -> int:
        round_ = memory.conversation.rounds[0]
        return sum(map(sum, token_cache.list_costs(round_, group_messages(round_, "assistant"))))

    first = tokens()
    assert tokens() == first
    assert counter.texts.count("q") == 1
    memory.append(result("c", "done"))
    memory.append(answer("a"))

    assert tokens() == first + sum(count_message(message, len) for message in (result("c", "done"), answer("a")))
    assert counter.texts.count("q") == 1


def test_what_is_remembered_of_open_rounds_is_bounded() -> None:
    """A round that never ends does not fill the memory."""
    token_cache, round_ = TokenCache("assistant", len), Round(user_query="q")
    token_cache._open = {(str(number),): (1,) for number in range(MAX_OPEN_GROUPS)}

    token_cache.list_costs(round_, group_messages(round_, "assistant"))

    assert len(token_cache._open) == 1


def test_a_group_is_shortened_once_and_what_is_kept_of_it_is_bounded() -> None:
    """However often a prompt is made; and a round that never ends does not fill the memory with that either."""
    counter = Counted(count_tokens)
    token_cache, round_ = (
        TokenCache("assistant", counter),
        Memory.from_messages([user("q"), answer(words(3_000))]).conversation.rounds[0],
    )
    (_, group) = group_messages(round_, "assistant")

    (costs,) = token_cache.list_costs(round_, [group])
    part = PromptPart(round_, group, group.messages, costs, sum(costs))

    found = token_cache.list_levels(part)
    counter.texts.clear()
    again = token_cache.list_levels(part)

    assert found == again
    assert found[0].tokens < 200
    assert counter.texts == []
    token_cache._shortened = {(str(number),): () for number in range(MAX_OPEN_GROUPS)}
    assert token_cache.list_levels(part) == found
    assert len(token_cache._shortened) == 1


def test_what_is_remembered_of_reductions_is_bounded() -> None:
    """However many a session that never ends has had."""
    memory = Memory.from_messages([user("q"), answer(words(300)), user("and?")])
    first = memory.conversation.rounds[0]
    made = Reduction.over(first, [first.post_list[-1]], "summarised", "[short]")
    memory.journal("assistant").reduce(made, base=0)
    token_cache = get_token_cache(memory, "assistant", count_tokens)
    (told,) = compose(memory, "assistant", budget=10_000, counter=count_tokens).report.reductions
    (key,) = token_cache.reduced
    token_cache.reduced = dict.fromkeys(range(MAX_OPEN_GROUPS), told)
    token_cache.published_reductions.clear()

    assert compose(memory, "assistant", budget=10_000, counter=count_tokens).report.reductions == (told,)
    assert list(token_cache.reduced) == [key]


# -- overlays and pins ------------------------------------------------------------------------------------------------


def reduce(memory: Memory, place: int, kind: str, text: str = "") -> Reduction:
    """Publish a reduction of the answer in the round at *place*."""
    round_ = memory.conversation.rounds[place]
    made = Reduction.over(round_, round_.post_list, kind, text)  # type: ignore[arg-type]
    assert memory.journal("assistant").reduce(made, base=0) is not None
    return made


def test_a_round_that_is_overlaid_costs_what_it_reads_as() -> None:
    """And costs what it did when the overlay is withdrawn; the others are not counted again."""
    memory, counter = chat(20), Counted()
    token_cache = TokenCache("assistant", counter)
    earlier = sums_of(token_cache, memory.get_role_rounds("assistant")[0])
    made = reduce(memory, 5, "offloaded", "short")
    counter.texts.clear()

    after = sums_of(token_cache, memory.get_role_rounds("assistant")[0])

    assert told(after) == told(fresh(memory.get_role_rounds("assistant")[0]))
    assert after[19].tokens == earlier[19].tokens - len(words(5)) + len("short")
    assert set(counter.texts) <= {"q5", "short", "q18", words(18)}, "that round, and the newest"
    memory.journal("assistant").withdraw(made)
    assert told(sums_of(token_cache, memory.get_role_rounds("assistant")[0])) == told(earlier)


def test_what_is_pinned_is_what_stays_of_a_round_that_is_left_out() -> None:
    """And is not lightened on any level: pinning and unpinning changes what a round costs there."""
    memory = Memory()
    for _ in range(3):
        memory.append(user("q"))
        memory.append(answer("x" * 6_000))
    token_cache = TokenCache("assistant", len)
    rounds, _ = memory.get_role_rounds("assistant")
    plain = sums_of(token_cache, rounds)
    memory.pin("r1.p1")

    pinned = sums_of(token_cache, memory.get_role_rounds("assistant")[0])

    cost = count_message(answer("x" * 6_000), len)
    assert [one.pinned for one in before(pinned)] == [0, cost, cost]
    assert [one.pinned for one in before(plain)] == [0, 0, 0]
    assert pinned[1].shortest == pinned[1].tokens > plain[1].shortest
    assert pinned[2].shortest - pinned[1].shortest == plain[2].shortest - plain[1].shortest
    memory.unpin("r1.p1")
    assert told(sums_of(token_cache, memory.get_role_rounds("assistant")[0])) == told(plain)


def test_a_text_that_reads_otherwise_now_is_counted_as_it_reads() -> None:
    """In an open round, where groups are remembered by their posts: an overlay's text is told from the original, and
    from another overlay's."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for message in (user("q"), answer(words(50)), answer("and")):
        memory.append(message)
    Memory("s", store=store).create_round("asked elsewhere")  # so the first is open, and its query not the newest
    memory.append(answer("more"))
    full = compose(memory, budget=10_000).tokens
    first = reduce_first(memory, "short")
    short = compose(memory, budget=10_000).tokens
    memory.journal("assistant").withdraw(first)
    back = compose(memory, budget=10_000).tokens
    reduce_first(memory, "a longer text")
    longer = compose(memory, budget=10_000).tokens
    offloaded_query = Reduction.over(memory.conversation.rounds[0], [None], "offloaded", "Q?")
    assert memory.journal("assistant").reduce(offloaded_query, base=0) is not None

    assert back == full
    assert full - short == 50 - count_tokens("short")
    assert full - longer == 50 - count_tokens("a longer text")
    assert compose(memory, budget=10_000).tokens == longer + count_tokens("Q?") - count_tokens("q")


def reduce_first(memory: Memory, text: str) -> Reduction:
    round_ = memory.conversation.rounds[0]
    made = Reduction.over(round_, round_.post_list[:1], "offloaded", text)
    assert memory.journal("assistant").reduce(made, base=0) is not None
    return made


@pytest.mark.parametrize("reference", ["r3.p1", "r3.p0", "r6.p1", "r6.p0"])
def test_what_was_erased_costs_nothing_any_more(reference: str) -> None:
    """In closed rounds and in the open one: the prompt costs what is left, and no note is kept of what was."""
    memory = Memory()
    for number in range(6):
        memory.append(user(f"{number} {words(40)}"))
        memory.append(answer(f"{number} {words(40)}"))
    compose(memory, budget=300)
    before = compose(memory, budget=10_000)

    memory.redact(reference)
    after = compose(memory, budget=10_000)

    assert_legal(after, 10_000)
    assert after.tokens < before.tokens - 30
    assert_legal(compose(memory, budget=300), 300)


# -- who shares -------------------------------------------------------------------------------------------------------


def other(text: str) -> int:
    return len(text)


def test_all_who_read_a_session_as_one_role_share_a_ledger() -> None:
    """Compactor and compose count a round once between them; other roles, counters and sessions have their own."""
    memory, counter = Memory(), Counted()

    assert get_token_cache(memory, "a", len) is get_token_cache(memory, "a", len)
    assert get_token_cache(memory, "a", counter.__call__) is get_token_cache(memory, "a", counter.__call__)
    different = [
        get_token_cache(memory, "a", len),
        get_token_cache(memory, "b", len),
        get_token_cache(memory, "a", other),
        get_token_cache(Memory(), "a", len),
    ]
    assert len({id(token_cache) for token_cache in different}) == 4


def test_a_new_counter_for_each_prompt_does_not_fill_the_memory() -> None:
    """Only the newest counters' caches are kept; a counter that cannot be hashed is known by itself."""
    memory, refs = Memory.from_messages([user("q")]), []
    for number in range(3 * MAX_COUNTERS):

        def counter(text: str, extra: int = number) -> int:
            return len(text) + extra

        compose(memory, budget=10_000, counter=counter)
        refs.append(weakref.ref(counter))
        del counter
    gc.collect()

    assert sum(ref() is not None for ref in refs) <= MAX_COUNTERS


def test_a_session_that_is_gone_takes_its_ledgers_with_it() -> None:
    """The caches do not keep a Memory alive, nor it them."""
    memory = Memory.from_messages([user("q")])
    token_cache = weakref.ref(get_token_cache(memory, "assistant", count_tokens))
    compose(memory, budget=100)
    gone = weakref.ref(memory)
    del memory
    gc.collect()

    assert gone() is None
    assert token_cache() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_can_count_though_the_parent_was_counting(in_child: Callable[[Callable[[], bool]], bool]) -> None:
    """A lock that another thread held at the fork is a new one in the child."""
    token_cache = TokenCache("assistant", len)
    rounds, _ = chat(3).get_role_rounds("assistant")
    with token_cache._lock:
        assert in_child(lambda: told(sums_of(token_cache, rounds)) == told(fresh(rounds)))


@pytest.fixture
def in_child() -> Callable[[Callable[[], bool]], bool]:
    """Run something in a forked child, and say whether it was true there."""

    def run(check: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if check() else 1)
            finally:
                os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return run


def test_what_was_counted_while_a_round_was_open_is_not_counted_when_it_closes() -> None:
    """A megabyte of output is tokenised once in its life."""
    counter = Counted()
    memory = Memory()
    memory.append(user("q"))
    memory.append(answer(words(3_000)))
    compose(memory, budget=100_000, counter=counter)
    counter.texts.clear()
    memory.append(user("next"))
    compose(memory, budget=100_000, counter=counter)
    assert words(3_000) not in counter.texts


def test_the_compactor_counts_before_the_chat_composes() -> None:
    """Counting old rounds is the work of the background thread: the first prompt finds it done."""
    counter = Counted()
    memory = chat(50)
    ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=100), counter=counter).compact_now(20)
    counter.texts.clear()
    compose(memory, budget=100_000, counter=counter)
    said = {f"q{number}" for number in range(50)} | {words(number) for number in range(50)}
    assert said & set(counter.texts) <= {"q49", words(49)}, "at most the open round is left to count"


def test_a_token_trigger_counts_what_compose_puts_in_front() -> None:
    """Only the host that composes knows its system prompt; the compactor learns of it from the last prompt."""
    memory = chat(12)
    config = CompactorConfig(threshold=100, max_tokens=1_000, token_ratio=0.5, retain_recent=1)
    compactor = ContextCompactor.for_role(memory, "assistant", config, ScriptedSummarizer())
    with compactor:
        assert compactor.wait_idle(20)
        assert compactor.get_compaction() is None
        compose(memory, system=words(600), budget=5_000)
        memory.append(user("next"))
        assert compactor.wait_idle(20)
        assert compactor.get_compaction() is not None


def test_a_forked_child_counts_anew() -> None:
    """A fork may come between two of the lists that a round is added to: what the child got of them is not used."""
    memory, token_cache = chat(5), TokenCache("assistant", len)
    rounds, _ = memory.get_role_rounds("assistant")
    sums_of(token_cache, rounds).round_tokens.pop()  # as if the parent had added to one list and not yet to the next
    token_cache._after_fork()
    assert told(sums_of(token_cache, rounds)) == told(fresh(rounds))


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_what_is_redacted_costs_what_is_left_of_it(closed: bool) -> None:
    """Also where it was counted before."""
    memory = Memory.from_messages([user("My number is 4711 " * 20), calls("c"), result("c", words(50)), answer("ok")])
    compose(memory, budget=10_000)
    if closed:
        memory.finish_round(memory.conversation.rounds[0])
        compose(memory, budget=10_000)
    for place in range(4):
        memory.redact(f"r1.p{place}")
        prompt = compose(memory, budget=10_000)
        counted = count_prompt(prompt.messages, count_tokens)
        assert prompt.tokens == counted


def test_sums_tell_of_how_many_rounds_posts_were_dropped() -> None:
    """So a prompt finds the first of them without going through all that was ever dropped."""
    memory = chat(5)
    for place in (1, 3):
        round_ = memory.conversation.rounds[place]
        memory.journal("assistant").reduce(Reduction.over(round_, round_.post_list[:1], "dropped"), base=0)
    sums = fresh(memory.get_role_rounds("assistant")[0])
    assert [one.dropped for one in before(sums)] == [0, 0, 1, 1, 2]


def test_a_prompt_that_a_signals_handler_composes_in_the_middle_of_adding_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would wait for itself for ever; the interrupted count goes on."""
    memory, token_cache = chat(5), TokenCache("assistant", len)
    rounds, _ = memory.get_role_rounds("assistant")
    add, refused = TokenCache._add, []

    def interrupted(token_cache: TokenCache, sums: PrefixSums, counted: RoundTokens) -> None:
        if not refused:
            refused.append(counted)
            with pytest.raises(RuntimeError, match="set a flag in the handler"):
                sums_of(token_cache, rounds)
        add(token_cache, sums, counted)

    monkeypatch.setattr(TokenCache, "_add", interrupted)
    assert told(sums_of(token_cache, rounds)) == told(fresh(rounds))
    assert refused


ROLE = "assistant"


def talked(rounds: int) -> Memory:
    memory = Memory()
    for number in range(1, rounds + 1):
        memory.append({"role": "user", "content": f"question {number}"})
        memory.append({"role": "assistant", "content": f"answer {number}"})
    memory.finish_round(memory.conversation.rounds[-1])
    return memory


def view_of(memory: Memory) -> View:
    rounds, compaction = memory.get_role_rounds(ROLE)
    return View(rounds, compaction, get_token_cache(memory, ROLE, count_tokens))


def composed(memory: Memory) -> list[dict[str, object]]:
    return compose(memory, ROLE, budget=4_000).messages


def test_what_was_erased_is_not_kept() -> None:
    """From the next look on, nothing here holds it."""
    memory = talked(4)
    composed(memory)
    memory.redact("r3.p1")
    token_cache = view_of(memory).token_cache
    composed(memory)
    texts = [str(part) for counted in token_cache._kept.values() for part in counted.parts or ()]
    assert texts
    assert not any("answer 3" in text for text in texts)


def test_closed_rounds_of_the_tail_are_kept_and_covered_ones_let_go() -> None:
    """So the memory that this takes does not grow with the conversation."""
    memory = talked(8)
    composed(memory)
    view = view_of(memory)
    assert [counted.parts is not None for counted in view.prefix_sums.round_tokens] == [True] * 8
    end = memory.conversation.rounds[5]
    made = {"start_index": 1, "end_index": 6, "summary": "six", "end_round_id": end.id}
    memory.journal(ROLE).publish(CompactedMessage(**made), base=0, round_ids=[end.id])
    composed(memory)
    assert len(view_of(memory).token_cache._kept) == 2


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rounds and by tokens; the newest stays, however long it is, and the prompts are the same."""
    before = composed(talked(6))
    monkeypatch.setattr(token_caches, "MAX_ROUNDS", 3)
    memory = talked(6)
    assert composed(memory) == before
    assert len(view_of(memory).token_cache._kept) == 3
    monkeypatch.setattr(token_caches, "MAX_TOKENS", 1)
    memory = talked(6)
    assert composed(memory) == before
    assert len(view_of(memory).token_cache._kept) == 1


def test_texts_that_stand_in_every_prompt_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where there were too many of them since."""
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    count_again = TokenCache(ROLE, count).count_again
    assert [count_again("one"), count_again("one"), count_again("three")] == [3, 3, 5]
    assert counted == ["one", "three"]
    monkeypatch.setattr(token_caches, "MAX_TEXTS", 2)
    assert [count_again("seven"), count_again("one")] == [5, 3]
    assert counted == ["one", "three", "seven", "one"]
