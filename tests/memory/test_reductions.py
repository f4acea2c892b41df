"""Reductions in the log: which may be published, which of two stands, and what a reader sees of them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory import (
    CompactedMessage,
    InMemoryStore,
    Journal,
    Memory,
    Reduction,
    Reductions,
    StaleCompaction,
    ToolCall,
)
from memory import overlays as overlay_rule
from memory.overlays import merge_reductions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROLE = "Planner"


def memory_of(rounds: int = 1, posts: int = 8, store: InMemoryStore | None = None, *, closed: bool = True) -> Memory:
    """Return a Memory with rounds "1", "2", ... of posts "1.1", "1.2", ..."""
    memory = Memory("s", store=store, clock=lambda: NOON)
    for number in range(1, rounds + 1):
        memory.create_round(f"query {number}", id=str(number))
        for place in range(1, posts + 1):
            memory.add_post(str(number), id=f"{number}.{place}", send_from=ROLE, send_to="User", message=f"p{place}")
        if closed:
            memory.finish_round(str(number))
    return memory


def over(first: int, last: int, *, round_id: str = "1", kind: str = "dropped", text: str = "") -> Reduction:
    """Return a reduction by ids alone, as a host might make one."""
    ends = [f"{round_id}.{number}" if number else "" for number in (first, last)]
    return Reduction(round_id=round_id, first_post_id=ends[0], last_post_id=ends[1], kind=kind, text=text)


def spans(memory: Memory, round_id: str = "1", role: str = ROLE) -> list[tuple[int, int]]:
    return [(one.first_number, one.last_number) for one in memory.rounds_getter(role)().reductions.of(round_id)]


def reduce(memory: Memory, *bounds: int, role: str = ROLE, base: int = 0, **more: str) -> Reductions | None:
    return memory.journal(role).reduce(over(*bounds, **more), base=base)


def publish(memory: Memory, end: int, *, base: int) -> CompactedMessage:
    made = CompactedMessage(start_index=1, end_index=end, end_round_id=str(end), summary="s")
    return memory.journal(ROLE).publish(made, base=base, round_ids=[str(end)])


# -- publishing --------------------------------------------------------------------------------------------------------


def test_what_is_published_is_seen_and_in_the_log() -> None:
    """With its stamp and the numbers of its posts; all else is as it was made, and no generation is used up."""
    store = InMemoryStore()
    memory = memory_of(store=store)
    journal: Journal = memory.journal(ROLE)
    published = journal.reduce(over(2, 5, kind="summarised", text="{they} talked"), base=0)
    assert published is not None
    (only,) = published.of("1")
    assert (only.first_number, only.last_number, only.text, only.created_at) == (2, 5, "{they} talked", NOON)
    assert memory.rounds_getter(ROLE)().reductions is published
    assert journal.read().generation == 0
    *_, entry = store.read("s")
    assert entry.kind == "reduction published"
    assert published.version == entry.number


def test_readers_see_those_of_their_role_and_moment() -> None:
    """A snapshot that was taken before shows what was there then; the empty role sees all posts as they were."""
    memory = memory_of()
    before = memory.rounds_getter(ROLE)()
    reduce(memory, 1, 2)
    assert before.reductions == Reductions()
    assert spans(memory) == [(1, 2)]
    assert spans(memory, role="Other") == spans(memory, role="") == []
    assert memory.rounds_getter("")().for_role(ROLE).reductions.of("1")


def test_the_empty_role_has_no_reductions() -> None:
    """What sees everything sees it as it was: nothing is written."""
    memory = memory_of()
    number = memory.snapshot.number
    assert reduce(memory, 1, 2, role="") is None
    assert memory.snapshot.number == number


def test_roles_reduce_apart() -> None:
    """Each reads the same posts in its own way, and its version is its own."""
    memory = Memory("s")
    memory.create_round("q", id="1")
    for number in (1, 2, 3):
        memory.add_post("1", id=f"1.{number}", send_from=ROLE, send_to="Coder", message="m")
    first = reduce(memory, 1, 2)
    second = reduce(memory, 2, 3, role="Coder")
    assert (spans(memory), spans(memory, role="Coder")) == ([(1, 2)], [(2, 3)])
    assert first is not None
    assert second is not None
    assert memory.rounds_getter(ROLE)().reductions == first
    assert second.version > first.version


def test_reductions_of_other_rounds_stay() -> None:
    """Each round has its own; those of one are given in the order of its posts."""
    memory = memory_of(2)
    reduce(memory, 5, 6)
    reduce(memory, 1, 2, round_id="2")
    reduce(memory, 0, 1)
    assert (spans(memory), spans(memory, "2")) == ([(0, 1), (5, 6)], [(1, 2)])


@pytest.mark.parametrize("closed", [True, False], ids=["settled", "open"])
def test_the_epoch_grows_when_a_settled_round_reads_otherwise(closed: bool) -> None:
    """What was worked out from it is worked out again; open rounds are read anew in any case."""
    memory = memory_of(closed=closed)
    epochs = [memory.rounds_getter(ROLE)().epoch]
    for change in (lambda: reduce(memory, 2, 3), lambda: reduce(memory, 2, 3)):  # the second is ignored
        change()
        epochs.append(memory.rounds_getter(ROLE)().epoch)
    memory.journal(ROLE).withdraw(over(2, 3))
    epochs.append(memory.rounds_getter(ROLE)().epoch)
    assert epochs == ([0, 1, 1, 2] if closed else [0, 0, 0, 0])


@pytest.mark.parametrize("base", [-1, 1, 2])
def test_another_generation_is_refused(base: int) -> None:
    """What was made from an older compaction, or a newer one, says nothing of the present."""
    memory = memory_of()
    with pytest.raises(StaleCompaction) as raised:
        reduce(memory, 1, 2, base=base)
    assert raised.value.reason == "generation"
    assert spans(memory) == []


def test_a_reduction_does_not_make_a_compaction_stale() -> None:
    """It raises no generation; a publication and a revert do, and reductions live on through both."""
    memory = memory_of(3)
    reduce(memory, 1, 2, round_id="2")
    publish(memory, 1, base=0)
    assert reduce(memory, 1, 2, round_id="3", base=1) is not None
    memory.journal(ROLE).revert()
    assert reduce(memory, 1, 2, round_id="1", base=2) is not None
    assert [spans(memory, round_id) for round_id in "123"] == [[(1, 2)]] * 3


@pytest.mark.parametrize(
    "case", ["unknown round", "failed", "covered", "unknown post", "unknown end", "reversed", "unseen"]
)
def test_rounds_that_are_not_as_they_were_are_refused(case: str) -> None:
    """Nothing stands for what is not there, not visible, or behind the compaction already."""
    memory = memory_of(3)
    memory.create_round("q", id="4")
    memory.add_post("4", id="4.1", send_from="Coder", send_to="User", message="not the Planner's")
    if case == "failed":
        memory.finish_round("2", state="failed")
    if case == "covered":
        publish(memory, 2, base=0)
    reduction = {
        "unknown round": over(1, 2, round_id="9"),
        "unknown post": over(99, 2, round_id="2"),
        "unknown end": over(1, 99, round_id="2"),
        "reversed": over(3, 2, round_id="2"),
        "unseen": over(0, 1, round_id="4"),
    }.get(case, over(1, 2, round_id="2"))
    with pytest.raises(StaleCompaction) as raised:
        memory.journal(ROLE).reduce(reduction, base=1 if case == "covered" else 0)
    assert raised.value.reason == "rounds_changed"


def test_a_round_that_failed_elsewhere_makes_a_reduction_stale() -> None:
    """Though this Memory had not heard of it."""
    store = InMemoryStore()
    one = memory_of(store=store)
    two = Memory("s", store=store)
    one.finish_round("1", state="failed")
    with pytest.raises(StaleCompaction) as raised:
        reduce(two, 1, 2)
    assert raised.value.reason == "rounds_changed"


def test_where_ids_are_used_twice_the_number_decides() -> None:
    """A host's ids are its own affair; without a number it is the last of that id."""
    memory = Memory("s")
    memory.create_round("q", id="1")
    posts = [memory.add_post("1", id="same", send_from=ROLE, send_to="User", message="m") for _ in range(3)]
    round_ = memory.conversation.rounds[0]
    assert memory.journal(ROLE).reduce(Reduction.over(round_, posts[1:2], "dropped"), base=0) is not None
    by_id = Reduction(round_id="1", first_post_id="same", last_post_id="same", kind="dropped")
    assert memory.journal(ROLE).reduce(by_id, base=0) is not None
    assert spans(memory) == [(2, 2), (3, 3)]


def test_the_query_can_be_reduced() -> None:
    """It is the post of number 0 and has no id."""
    memory = memory_of(2)
    assert memory.journal(ROLE).reduce(
        Reduction.over(memory.conversation.rounds[0], [None], "offloaded", "q..."), base=0
    )
    assert spans(memory) == [(0, 0)]


def test_an_offloaded_reduction_of_several_posts_is_refused() -> None:
    """Each post keeps its place, so each has its own."""
    memory = memory_of()
    with pytest.raises(ValueError, match="one for each"):
        reduce(memory, 1, 2, kind="offloaded", text="t")


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "live"),
    [
        ((3, 6), [(3, 6)]),  # equal
        ((4, 5), [(3, 6)]),  # inside
        ((3, 4), [(3, 6)]),  # inside, at the edge
        ((2, 3), [(3, 6)]),  # partly overlapping
        ((6, 7), [(3, 6)]),
        ((7, 8), [(3, 6), (7, 8)]),  # beside it
        ((1, 2), [(1, 2), (3, 6)]),
        ((2, 6), [(2, 6)]),  # containing it
        ((3, 7), [(3, 7)]),
        ((0, 8), [(0, 8)]),
    ],
)
def test_of_two_reductions_one_stands(second: tuple[int, int], live: list[tuple[int, int]]) -> None:
    """A later one that contains an earlier one takes its place; one that meets it otherwise is ignored."""
    memory = memory_of(2)
    reduce(memory, 3, 6)
    number = memory.snapshot.number
    published = reduce(memory, *second)
    assert spans(memory) == live
    assert (published is None) == (live == [(3, 6)]) == (memory.snapshot.number == number)


def test_one_that_contains_one_and_cuts_another_is_ignored() -> None:
    """Half a replacement would tear the other."""
    memory = memory_of(2)
    for bounds in ((1, 2), (4, 6)):
        reduce(memory, *bounds)
    assert reduce(memory, 0, 5) is None
    assert reduce(memory, 0, 7) is not None
    assert spans(memory) == [(0, 7)]


bounds = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)


@given(st.lists(bounds, max_size=12))
def test_live_reductions_never_overlap_whatever_comes(many: list[list[int]]) -> None:
    """Each that is laid is live then, in its place; each that is ignored changes nothing and hides nothing."""
    live: tuple[Reduction, ...] = ()
    for first, last in many:
        new = Reduction(
            round_id="r", first_post_id="", last_post_id="", kind="dropped", first_number=first, last_number=last
        )
        after = merge_reductions(live, new)
        span, covered = set(range(first, last + 1)), [set(range(o.first_number, o.last_number + 1)) for o in live]
        if after is None:
            assert any(span & other and not other < span for other in covered)
            continue
        assert new in after
        assert set(after) - {new} == {one for one, other in zip(live, covered, strict=True) if not span & other}
        live = after
        assert all(one.last_number < other.first_number for one, other in pairwise(live))


# -- calls and their results -------------------------------------------------------------------------------------------


def conversation(*posts: tuple[str, ...], closed: bool = True) -> Memory:
    """Return a Memory of one round: ("call", "a", "b") calls a and b, ("a",) is a result, () something said."""
    memory = Memory("s", clock=lambda: NOON)
    memory.create_round("q", id="1")
    for number, post in enumerate(posts, 1):
        fields: dict[str, object] = {"send_from": ROLE, "send_to": "User"}
        if post and post[0] == "call":
            fields |= {"tool_calls": tuple(ToolCall(id=name, name="f") for name in post[1:])}
        elif post:
            fields = {"send_from": "tool", "send_to": ROLE, "tool_call_id": post[0]}
        memory.add_post("1", id=f"1.{number}", message="m", **fields)
    if closed:
        memory.finish_round("1")
    return memory


@pytest.mark.parametrize(
    ("first", "last", "torn"),
    [(1, 1, True), (2, 2, True), (1, 2, True), (1, 3, False), (0, 3, False), (2, 3, True), (4, 4, False), (3, 5, True), (0, 5, False)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["dropped", "summarised"])
def test_a_call_is_not_torn_from_its_results(first: int, last: int, torn: bool, kind: str) -> None:
    """Providers refuse one without the other; parallel calls have several."""
    memory = conversation(("call", "a", "b"), ("b",), ("a",), (), ("call", "c"))
    memory.create_round("a newer query")
    if not torn:
        assert reduce(memory, first, last, kind=kind) is not None
        return
    with pytest.raises(StaleCompaction) as raised:
        reduce(memory, first, last, kind=kind)
    assert raised.value.reason == "torn"
    assert spans(memory) == []


@pytest.mark.parametrize("number", [1, 2])
def test_offloading_tears_nothing(number: int) -> None:
    """The message stays, with its calls or the id of the call it answers."""
    assert reduce(conversation(("call", "a"), ("a",)), number, number, kind="offloaded", text="t") is not None


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "open"])
def test_a_call_that_waits_for_its_results_stays(closed: bool) -> None:
    """It is the newest of an open round; in a closed one nothing is waited for any more."""
    memory = conversation((), ("call", "a", "b"), ("a",), closed=closed)
    if closed:
        assert reduce(memory, 1, 3) is not None
        return
    with pytest.raises(StaleCompaction, match="torn"):
        reduce(memory, 1, 3)
    assert reduce(memory, 1, 1) is not None


def test_a_call_that_was_passed_over_waits_no_more() -> None:
    """Something else was said after it."""
    assert reduce(conversation(("call", "a"), (), closed=False), 1, 1) is not None


def test_what_another_role_called_is_not_torn() -> None:
    """Its calls are text to this role."""
    memory = Memory("s")
    memory.create_round("q", id="1")
    called = (ToolCall(id="a", name="f"),)
    memory.add_post("1", id="1.1", send_from="Other", send_to=ROLE, tool_calls=called)
    memory.add_post("1", id="1.2", send_from=ROLE, send_to="Other", tool_call_id="a")
    memory.finish_round("1")
    with pytest.raises(StaleCompaction, match="torn"):
        reduce(memory, 1, 1, role="Other")
    assert reduce(memory, 1, 1) is not None


said = st.one_of(
    st.just(()),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda names: ("call", *names)),
    st.sampled_from("abc").map(lambda name: (name,)),
)


@given(st.lists(said, min_size=1, max_size=10), bounds, st.booleans())
def test_a_span_is_torn_that_holds_a_part_of_what_belongs_together(
    posts: list[tuple[str, ...]], ends: list[int], closed: bool
) -> None:
    """Whatever was called in which order, and however often an id was used: all of a call and its results, or none."""
    first, last = (min(end, len(posts)) for end in ends)
    memory = conversation(*posts, closed=closed)
    groups, waiting = {}, {}  # by a call's number: the numbers of it and its results; by id: the calls without one
    for number, post in enumerate(posts, 1):
        if post and post[0] == "call":
            groups[number] = [number]
            waiting |= {name: [number] * post[1:].count(name) for name in post[1:]}
        elif post and waiting.get(post[0]):
            groups[waiting[post[0]].pop()].append(number)
    together = [set(group) for group in groups.values()]
    results = {number for group in groups.values() for number in group[1:]}
    newest = max(set(range(1, len(posts) + 1)) - results)
    if not closed and newest in groups and len(groups[newest]) < len(posts[newest - 1]):
        together.append({newest, 99})  # what it waits for is outside
    span = set(range(first, last + 1))
    torn = any(span & group and not group <= span for group in together)
    try:
        reduce(memory, first, last)
        reason = ""
    except StaleCompaction as error:
        reason = error.reason
    assert (reason == "torn") is torn


def test_a_round_that_is_reduced_many_times_is_paired_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of reductions in one long round do not each read it from end to end."""
    memory = conversation(
        *itertools.chain.from_iterable((("call", f"{n}"), (f"{n}",)) for n in range(20)), closed=False
    )
    journal, asked = memory.journal(ROLE), []
    pair_results = overlay_rule.pair_results
    monkeypatch.setattr(overlay_rule, "pair_results", lambda *given: asked.append(given) or pair_results(*given))
    for first in range(1, 39, 2):
        assert journal.reduce(over(first, first + 1), base=0) is not None
    with pytest.raises(StaleCompaction, match="torn"):
        journal.reduce(over(38, 39), base=0)
    assert len(asked) == 1


def test_what_joined_a_round_meanwhile_ties_too() -> None:
    """A journal that knows the round from before looks again when it has grown."""
    memory = conversation((), ("call", "a"), (), ("call", "b"), closed=False)
    journal = memory.journal(ROLE)
    with pytest.raises(StaleCompaction, match="torn"):
        journal.reduce(over(4, 4), base=0)
    assert journal.reduce(over(1, 1), base=0) is not None
    memory.add_post("1", id="1.5", send_from="tool", send_to=ROLE, tool_call_id="a")
    with pytest.raises(StaleCompaction, match="torn"):
        journal.reduce(over(2, 3), base=0)
    memory.finish_round("1")
    assert journal.reduce(over(4, 4), base=0) is not None


def test_a_journal_tells_rounds_apart() -> None:
    """What ties the posts of one says nothing of another's."""
    memory = memory_of(2)
    journal = memory.journal(ROLE)
    for round_id in ("1", "2", "1"):
        first = len(spans(memory, round_id)) + 1
        assert journal.reduce(over(first, first, round_id=round_id), base=0) is not None
    assert (spans(memory), spans(memory, "2")) == ([(1, 1), (2, 2)], [(1, 1)])
    with pytest.raises(StaleCompaction, match="rounds_changed"):
        journal.reduce(over(1, 9), base=0)


def test_an_id_that_is_used_again_means_the_newest_call() -> None:
    """Results go to calls in the order of the log; one that answers nothing goes nowhere."""
    posts = (("x",), ("call", "a"), ("a",), ("call", "a", "a"), ("a",), ("a",), ("a",))
    for first, last in ((1, 1), (2, 3), (4, 6), (7, 7)):
        assert reduce(conversation(*posts), first, last) is not None
    for first, last in ((2, 2), (3, 3), (4, 4), (4, 5), (5, 6), (6, 7)):
        with pytest.raises(StaleCompaction, match="torn"):
            reduce(conversation(*posts), first, last)


# -- withdrawing, resuming ---------------------------------------------------------------------------------------------


def test_a_withdrawn_reduction_is_gone() -> None:
    """Once; what it had taken the place of does not come back."""
    memory = memory_of()
    reduce(memory, 3, 4)
    reduce(memory, 2, 5)
    reduce(memory, 7, 8)
    journal = memory.journal(ROLE)
    assert not journal.withdraw(over(3, 4))
    assert journal.withdraw(over(2, 5))
    assert not journal.withdraw(over(2, 5))
    assert not journal.withdraw(over(2, 5, round_id="9"))
    assert spans(memory) == [(7, 8)]
    assert journal.withdraw(over(7, 8))
    assert memory.rounds_getter(ROLE)().reductions.by_round == {}


def test_a_withdrawal_changes_the_version() -> None:
    """Whoever cached something by it looks again."""
    memory = memory_of()
    published = reduce(memory, 3, 4)
    memory.journal(ROLE).withdraw(over(3, 4))
    assert published is not None
    assert memory.rounds_getter(ROLE)().reductions.version > published.version


def test_reductions_survive_a_resume() -> None:
    """The same, version and all, from the text of the log."""
    store = InMemoryStore()
    memory = memory_of(2, store=store)
    reduce(memory, 3, 4)
    reduce(memory, 2, 5, kind="summarised", text="\ud83d and {braces}")
    reduce(memory, 1, 2, round_id="2")
    memory.journal(ROLE).withdraw(over(1, 2, round_id="2"))
    assert Memory("s", store=store).rounds_getter(ROLE)().reductions == memory.rounds_getter(ROLE)().reductions


def test_of_two_memories_that_reduce_the_same_posts_one_wins() -> None:
    """The other learns of it by the conflict, and is ignored."""
    store = InMemoryStore()
    one = memory_of(store=store)
    two = Memory("s", store=store)
    assert reduce(one, 2, 5) is not None
    assert reduce(two, 3, 4) is None
    assert spans(two) == [(2, 5)]


# the newest query, and what is pinned


def asked(*queries: str) -> Memory:
    """Return a Memory with a round of one answer for each query."""
    memory = Memory("s", clock=lambda: NOON)
    for number, query in enumerate(queries, 1):
        memory.create_round(query, id=str(number))
        memory.add_post(str(number), id=f"{number}.1", send_from="User", send_to=ROLE, message=query)
        memory.add_post(str(number), id=f"{number}.2", send_from=ROLE, send_to="User", message="answer")
        memory.finish_round(str(number))
    return memory


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1), (0, 2), (1, 2)])
def test_the_newest_query_is_never_reduced(first: int, last: int) -> None:
    """Nor what the user says in it, whoever asks for that."""
    memory = asked("first", "second")
    with pytest.raises(StaleCompaction) as raised:
        reduce(memory, first, last, round_id="2")
    assert raised.value.reason == "newest_query"
    assert reduce(memory, 2, 2, round_id="2") is not None
    assert reduce(memory, first, last, round_id="1") is not None


def test_a_query_that_becomes_the_newest_again_is_shown_again() -> None:
    """The round behind it failed: what the user waits for now must not read as something else."""
    memory = asked("first", "second", "third")
    assert reduce(memory, 0, 1, round_id="2") is not None
    assert reduce(memory, 2, 2, round_id="2") is not None
    assert reduce(memory, 0, 1, round_id="1") is not None
    memory.finish_round("3", "failed")
    assert (spans(memory, "2"), spans(memory, "1")) == ([(2, 2)], [(0, 1)])
    memory.finish_round("2", "failed")
    assert spans(memory, "1") == []


def test_a_pinned_post_is_not_reduced() -> None:
    """Also where the pin comes while the reduction is being made: pins are looked at when it is published."""
    memory = asked("first", "second")
    memory.pin("r1.p2")
    for first, last in ((2, 2), (0, 2)):
        with pytest.raises(StaleCompaction) as raised:
            reduce(memory, first, last, round_id="1")
        assert raised.value.reason == "pinned"
    memory.unpin("r1.p2")
    assert reduce(memory, 2, 2, round_id="1") is not None


@pytest.mark.parametrize("pinned", ["r1.p0", "r1.p1", "r1.p2"])
def test_pinning_takes_out_what_was_reduced(pinned: str) -> None:
    """What a pinned post says is shown again at once; other reductions stay."""
    memory = asked("first", "second", "third")
    assert reduce(memory, 0, 2, round_id="1") is not None
    assert reduce(memory, 0, 2, round_id="2") is not None
    memory.pin(pinned)
    assert (spans(memory, "1"), spans(memory, "2")) == ([], [(0, 2)])
