"""get_role_rounds is one consistent snapshot, and what follows the compaction in it is exactly the tail."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import CompactedMessage, InMemoryStore, Memory, StaleCompaction, StoreDamaged, open_store

ROLES = ["Planner", "CodeInterpreter", "User", "Recepta"]


def memory_of(count: int, *, posts: int = 0, **options: Any) -> Memory:
    memory = Memory(**options)
    for number in range(1, count + 1):
        round_ = memory.create_round(str(number))
        for _ in range(posts):
            memory.add_post(round_, send_from="Planner", send_to="User", message="m")
        memory.finish_round(round_)
    return memory


def compact(memory: Memory, role: str, end: int, summary: str = "s") -> CompactedMessage:
    """Publish a compaction of the first *end* visible rounds."""
    journal, rounds = memory.journal(role), memory.rounds_getter(role)()
    state = journal.read()
    start = state.current.end_index if state.current else 0
    compaction = CompactedMessage(start_index=1, end_index=end, end_round_id=rounds[end - 1].id, summary=summary)
    return journal.publish(compaction, base=state.generation, round_ids=[round_.id for round_ in rounds[start:end]])


def queries(rounds: object) -> list[str]:
    return [round_.user_query for round_ in rounds]


def tail(memory: Memory, role: str = "Planner", **options: bool) -> list[str]:
    rounds, compaction = memory.get_role_rounds(role, **options)
    return queries(rounds[compaction.end_index if compaction else 0 :])


# -- what a role sees --------------------------------------------------------------------------------------------------


def test_a_role_sees_the_posts_it_sent_or_received() -> None:
    """Other roles' posts never reach it; rounds and queries reach every role."""
    memory = Memory()
    round_ = memory.create_round("q")
    for sender, receiver in [("User", "Planner"), ("Planner", "CodeInterpreter"), ("CodeInterpreter", "CodeInterpreter"),
                             ("CodeInterpreter", "Planner"), ("Planner", "User")]:  # fmt: skip
        memory.add_post(round_, send_from=sender, send_to=receiver, message=f"{sender}>{receiver}")
    memory.create_round("nothing for anybody")

    def seen(role: str) -> list[list[int]]:
        return [[post.number for post in round_.post_list] for round_ in memory.get_role_rounds(role)[0]]

    assert seen("Planner") == [[1, 2, 4, 5], []]
    assert seen("CodeInterpreter") == [[2, 3, 4], []]
    assert seen("Stranger") == [[], []]
    assert seen("") == [[1, 2, 3, 4, 5], []]
    assert queries(memory.get_role_rounds("Stranger")[0]) == ["q", "nothing for anybody"]


def test_a_round_of_which_a_role_sees_all_is_not_copied() -> None:
    """Reading it costs nothing then."""
    memory = Memory()
    round_ = memory.create_round("q")
    post = memory.add_post(round_, send_from="Planner", send_to="User")
    whole = memory.conversation.rounds[0]
    assert memory.get_role_rounds("Planner")[0][0] is memory.get_role_rounds("")[0][0] is whole
    assert memory.get_role_rounds("Other")[0][0].post_list == ()
    assert whole.post_list == (post,)


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.sampled_from(ROLES), st.sampled_from(ROLES)), max_size=4), st.sampled_from(["finished", "failed"])),
        max_size=5,
    ),
    st.sampled_from(ROLES),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_other_roles_posts_never_reach_a_role(log: list, role: str) -> None:
    """Not in its rounds, its messages or its recall, and failed rounds not at all: over arbitrary conversations."""
    memory, hidden, shown = Memory(), [], []
    for posts, state in log:
        round_ = memory.create_round("")
        for sender, receiver in posts:
            mark = f"mark-{len(hidden) + len(shown)}-end"
            memory.add_post(round_, send_from=sender, send_to=receiver, message=mark)
            own = role in (sender, receiver)
            (shown if own and state == "finished" else hidden).append(mark)
        memory.finish_round(round_, state=state)
    rounds, _ = memory.get_role_rounds(role)
    assert all(role in ("", post.send_from, post.send_to) for round_ in rounds for post in round_.post_list)
    recalled = []
    for number, whole in enumerate(memory.conversation.rounds, 1):
        for ref in (f"r{number}", *(f"r{number}.p{place}" for place in range(len(whole.post_list) + 1))):
            try:
                recalled.append(memory.reload(ref, role=role))
            except KeyError:
                pass
    for everything in (repr(list(rounds)), repr(memory.messages(role)), repr(recalled)):
        assert [mark for mark in hidden if mark in everything] == []
        assert [mark for mark in shown if mark not in everything] == []


def test_a_getter_gives_what_get_role_rounds_gives() -> None:
    """It is what a compactor is made with."""
    memory = memory_of(3, posts=2)
    getter = memory.rounds_getter("User")
    memory.finish_round(memory.conversation.rounds[1], state="failed")
    assert getter() == memory.get_role_rounds("User")[0]
    assert getter().role == "User"
    assert len(getter()) == 2


def test_rounds_of_one_role_can_be_seen_as_another_at_the_same_moment() -> None:
    """A compactor that is handed every round looks at them as its own role."""
    memory = memory_of(2, posts=1)
    rounds = memory.conversation.rounds
    memory.create_round("later")
    assert [len(round_.post_list) for round_ in rounds.for_role("Stranger")] == [0, 0]
    assert rounds.for_role("Planner") == memory.get_role_rounds("Planner")[0][:2]
    assert memory.get_role_rounds("Stranger")[0].for_role("").role == "Stranger"


# -- failed rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_it_was_finished", [False, True])
def test_failed_rounds_are_hidden_unless_asked_for(after_it_was_finished: bool) -> None:
    """Whether a round failed at once or later."""
    memory = Memory()
    for number in range(1, 6):
        round_ = memory.create_round(str(number))
        if after_it_was_finished:
            memory.finish_round(round_)
        if number in (2, 5):
            memory.finish_round(round_, state="failed")
    assert tail(memory) == ["1", "3", "4"]
    assert tail(memory, include_failure_rounds=True) == ["1", "2", "3", "4", "5"]
    assert queries(memory.conversation.rounds) == ["1", "2", "3", "4", "5"]


def test_a_round_that_failed_behind_an_open_one_is_hidden_too() -> None:
    """Where several rounds are open, each is closed for itself."""
    store = InMemoryStore()
    Memory("s", store=store).create_round("open elsewhere")
    memory = Memory("s", store=store)
    for name in ("a", "b", "c"):
        memory.create_round(name, id=name)
    memory.finish_round("b", state="failed")
    rounds, _ = memory.get_role_rounds("Planner")
    assert queries(rounds) == ["open elsewhere", "a", "c"]
    assert [rounds.find_end(name) for name in ("a", "b", "c", "none")] == [2, 2, 3, None]
    memory.finish_round("a", state="failed")
    rounds = memory.get_role_rounds("Planner")[0]
    assert queries(rounds) == ["open elsewhere", "c"]
    assert [rounds.find_place(name) for name in ("a", "b", "c", "none")] == [None, None, 1, None]


def test_settled_counts_the_closed_rounds_before_the_first_open_one() -> None:
    """A compaction goes up to there; an equal epoch says that those rounds are still what they were."""
    memory = memory_of(3)
    rounds = memory.rounds_getter("Planner")()
    assert (rounds.closed, len(rounds)) == (3, 3)
    memory.create_round("open")
    later = memory.rounds_getter("Planner")()
    assert (later.closed, len(later), later.epoch) == (3, 4, rounds.epoch)
    memory.finish_round(memory.create_round("fails while open"), state="failed")
    assert memory.rounds_getter("Planner")().epoch == rounds.epoch
    memory.finish_round(rounds[0], state="failed")
    after = memory.rounds_getter("Planner")()
    assert (after.closed, len(after)) == (3, 3)
    assert after.epoch != rounds.epoch


# -- the compaction's place --------------------------------------------------------------------------------------------


def test_the_tail_begins_right_after_the_compaction() -> None:
    """rounds[compaction.end_index:] is every round that the summary does not cover, and no other."""
    memory = memory_of(10)
    compact(memory, "Planner", 7)
    assert tail(memory) == ["8", "9", "10"]
    assert tail(memory, "CodeInterpreter") == queries(memory.conversation.rounds)
    memory.create_round("11")
    assert tail(memory) == ["8", "9", "10", "11"]


@pytest.mark.parametrize("include", [False, True])
def test_a_failed_round_never_shifts_the_cut(include: bool) -> None:
    """Whether it failed before it could be compacted or after the cut: the tail is what was not covered."""
    memory = memory_of(10)
    memory.finish_round(memory.conversation.rounds[1], state="failed")  # 2, before the compaction
    compact(memory, "Planner", 6)  # covers 1 3 4 5 6 7
    memory.finish_round(memory.conversation.rounds[8], state="failed")  # 9, in the tail
    rounds, compaction = memory.get_role_rounds("Planner", include_failure_rounds=include)
    assert compaction is not None
    assert compaction.end_index == (7 if include else 6)
    assert queries(rounds[compaction.end_index :]) == (["8", "9", "10"] if include else ["8", "10"])


@pytest.mark.parametrize("include", [False, True])
def test_a_summary_of_what_failed_gives_way_to_the_newest_that_does_not_cover_it(include: bool) -> None:
    """Or to none: what failed is told nowhere, and the tail begins behind what is shown instead."""
    memory = memory_of(10)
    for end, summary in ((3, "to 3"), (5, "to 5"), (7, "to 7")):
        compact(memory, "Planner", end, summary)
    compact(memory, "Coder", 4)
    shown = []
    for number in (9, 6, 4, 8, 1):
        memory.finish_round(memory.conversation.rounds[number - 1], state="failed")
        _, compaction = memory.get_role_rounds("Planner", include_failure_rounds=include)
        shown.append(compaction.summary if compaction else "")
        end = {"to 7": 7, "to 5": 5, "to 3": 3, "": 0}[shown[-1]]
        visible = [
            one for one in range(end + 1, 11) if include or memory.conversation.rounds[one - 1].state != "failed"
        ]
        assert tail(memory, include_failure_rounds=include) == [str(number) for number in visible]
    assert shown == ["to 7", "to 5", "to 3", "to 3", ""]
    assert memory.get_role_rounds("Coder")[1] is None
    assert [one.happened for one in memory.journal("Planner").history()] == ["published"] * 3 + ["withdrawn"] * 3
    assert [one.generation for one in memory.journal("Planner").history()] == [1, 2, 3, 4, 5, 6]


def test_what_was_made_from_a_summary_of_what_failed_is_stale() -> None:
    """A withdrawal is a new generation, of the roles that lose a summary and of no other."""
    memory = memory_of(10)
    compact(memory, "Planner", 3)
    compact(memory, "Coder", 1)
    memory.finish_round(memory.conversation.rounds[1], state="failed")
    late = CompactedMessage(start_index=1, end_index=5, end_round_id=memory.conversation.rounds[5].id, summary="late")
    with pytest.raises(StaleCompaction):
        memory.journal("Planner").publish(late, base=1, round_ids=[])
    assert [memory.journal(role).read().generation for role in ("Planner", "Coder", "Nobody")] == [2, 1, 0]


@pytest.mark.parametrize("way", ["log", "checkpoint", "state", "fork"])
def test_what_failed_stays_untold_in_every_copy(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened again, by a checkpoint too, from its state, and in a fork whose end lies behind the failed round."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1 if way == "checkpoint" else 1_000)
    with closing(open_store(f"sqlite:///{tmp_path}/chat.db") if way == "checkpoint" else InMemoryStore()) as store:
        memory = memory_of(10, store=store)
        compact(memory, "Planner", 3, "to 3")
        compact(memory, "Planner", 6, "to 6")
        memory.finish_round(memory.conversation.rounds[4], state="failed")
        copies = {
            "log": lambda: Memory(memory.session_id, store=store),
            "checkpoint": lambda: Memory(memory.session_id, store=store),
            "state": lambda: Memory.from_state_dict(memory.state_dict()),
            "fork": lambda: memory.fork(8),
        }
        again = copies[way]()
        _, compaction = again.get_role_rounds("Planner")
        assert compaction is not None
        assert compaction.summary == "to 3"
        assert tail(again) == [str(number) for number in range(4, 9 if way == "fork" else 11) if number != 5]
        assert again.journal("Planner").revert() is None
        assert again.get_role_rounds("Planner")[1] is None


def test_a_failure_that_leads_back_to_what_cannot_be_read_is_not_written() -> None:
    """Nobody could read on behind it; the error says what is damaged, and the round stays as it was."""
    memory = memory_of(6)
    first = compact(memory, "Planner", 2)
    compact(memory, "Planner", 4)
    before = memory.snapshot

    def unreadable(*_: object) -> Any:
        raise StoreDamaged("entry cannot be read")

    memory.snapshot.archive.read_records = unreadable  # type: ignore[method-assign]
    with pytest.raises(StoreDamaged):
        memory.finish_round(memory.conversation.rounds[3], state="failed")
    assert memory.snapshot is before
    assert first.summary


class Provider:
    """Gives one compaction, and may do something just before it does."""

    def __init__(self, compaction: CompactedMessage | None, before: Callable[[], object] = lambda: None) -> None:
        self.compaction, self.before = compaction, before

    def get_compaction(self) -> CompactedMessage | None:
        self.before()
        return self.compaction

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Nothing to do."""


def test_a_provider_is_asked_before_the_rounds_are_read() -> None:
    """A round that fails, or is added, while it answers, does not tear the two apart."""
    memory = memory_of(6)
    anchor = memory.conversation.rounds[3]
    given_out = CompactedMessage(start_index=1, end_index=4, end_round_id=anchor.id, summary="s")

    def meanwhile() -> None:
        if memory.conversation.rounds[0].state != "failed":
            memory.finish_round(memory.conversation.rounds[0], state="failed")
            memory.create_round("7")

    memory.register_compaction_provider("Planner", Provider(given_out, meanwhile))
    rounds, compaction = memory.get_role_rounds("Planner")
    assert compaction.end_index == 3
    assert queries(rounds[compaction.end_index :]) == ["5", "6", "7"]
    assert given_out.end_index == 4


@pytest.mark.parametrize("anchor", [None, "of another session"])
@pytest.mark.parametrize(("end", "given_end"), [(3, 3), (99, 5)])
def test_a_compaction_without_a_known_anchor_goes_by_its_index(anchor: str | None, end: int, given_end: int) -> None:
    """Providers of other hosts know no ids; an index past the end is cut to the length."""
    memory = memory_of(5)
    provider = Provider(CompactedMessage(start_index=1, end_index=end, end_round_id=anchor, summary="s"))
    memory.register_compaction_provider("Planner", provider)
    assert memory.get_role_rounds("Planner")[1].end_index == given_end


def test_a_provider_that_has_none_means_none() -> None:
    """A role's provider speaks for the role, not the log."""
    memory = memory_of(5)
    compact(memory, "Planner", 3)
    memory.register_compaction_provider("Planner", Provider(None))
    assert memory.get_role_rounds("Planner")[1] is None


def test_an_older_snapshot_does_not_know_newer_rounds() -> None:
    """It places nothing by a round that it does not hold."""
    memory = memory_of(2)
    rounds = memory.rounds_getter("Planner")()
    newer = memory.create_round("3")
    assert rounds.find_end(newer.id) is None
    assert memory.rounds_getter("Planner")().find_end(newer.id) == 3
    late = CompactedMessage(start_index=1, end_index=3, end_round_id=newer.id, summary="s")
    assert rounds.anchor(late).end_index == 2
    assert rounds.anchor(None) is None


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_the_tail_is_what_no_compaction_covered_and_no_failure_hid(data: st.DataObject) -> None:
    """For any order of rounds, failures and compactions, by the log's own numbers."""
    memory, failed, ends = Memory(), set(), []
    for _ in range(data.draw(st.integers(1, 14))):
        total = len(memory.conversation.rounds)
        act = data.draw(st.sampled_from(["add", "add", "fail", "compact"]))
        if act == "add" or total == 0:
            memory.finish_round(memory.create_round(str(total + 1)))
        elif act == "fail":
            number = data.draw(st.integers(1, total))
            memory.finish_round(memory.conversation.rounds[number - 1], state="failed")
            ends = ends if number in failed else [end for end in ends if end < number]
            failed.add(number)
        else:
            visible = [number for number in range(1, total + 1) if number not in failed]
            fresh = [number for number in visible if not ends or number > ends[-1]]
            if fresh:
                ends = [*ends, data.draw(st.sampled_from(fresh))]
                compact(memory, "Planner", visible.index(ends[-1]) + 1)
        expected = range((ends[-1] if ends else 0) + 1, len(memory.conversation.rounds) + 1)
        assert tail(memory) == [str(number) for number in expected if number not in failed]
        assert tail(memory, include_failure_rounds=True) == [str(number) for number in expected]


# -- what it costs -----------------------------------------------------------------------------------------------------


def measured(memory: Memory) -> tuple[int, float]:
    """Return the bytes that a snapshot and its tail take, and the seconds, the least of many."""

    def read() -> None:
        rounds, compaction = memory.get_role_rounds("Planner")
        assert len(rounds[compaction.end_index :]) == 3

    read()
    peaks, seconds = [], []
    for _ in range(5):
        tracemalloc.start()
        read()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    for _ in range(100):
        began = time.thread_time()
        for _ in range(10):
            read()
        seconds.append(time.thread_time() - began)
    return min(peaks), min(seconds)


@pytest.mark.slow
def test_10000_rounds_cost_what_100_do() -> None:
    """get_role_rounds and the tail are O(1) in the length of the history, failed rounds and all."""
    costs = []
    for count in (100, 10_000):
        memory = memory_of(count + 2)
        for place in (1, -1):
            memory.finish_round(memory.conversation.rounds[place], state="failed")
        compact(memory, "Planner", count - 3)
        costs.append(measured(memory))
    (bytes_short, seconds_short), (bytes_long, seconds_long) = costs
    assert bytes_long < bytes_short + 8_000  # a byte a round would be more; the tail may be packed or not
    assert seconds_long < 3 * seconds_short
