"""Any number of threads may write and read: log order is memory order, and nothing is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from threads import at_once

from memory import CompactedMessage, InMemoryStore, Memory, RoundClosed, StaleCompaction

THREADS = 6
TURNS = 40


@pytest.fixture(autouse=True)
def _threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def logged(store: InMemoryStore, kind: str) -> list:
    return [entry.record for entry in store.read("s") if entry.kind == kind]


def test_posts_of_many_threads_are_numbered_without_gaps_in_the_logs_order() -> None:
    """Each add_post returns its own post, and the round holds all of them in the order of the log."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    returned: list = []

    def write(name: str) -> None:
        for turn in range(TURNS):
            post = memory.add_post(round_, send_from=name, send_to="User", message=str(turn))
            assert (post.send_from, post.message) == (name, str(turn))
            returned.append(post)

    at_once(*(lambda name=f"agent {number}": write(name) for number in range(THREADS)))
    posts = memory.conversation.rounds[0].post_list
    assert [post.number for post in posts] == list(range(1, THREADS * TURNS + 1))
    assert [entry.post for entry in logged(store, "post added")] == list(posts)
    assert sorted(returned, key=lambda post: post.number) == list(posts)
    for number in range(THREADS):
        mine = [post.message for post in posts if post.send_from == f"agent {number}"]
        assert mine == [str(turn) for turn in range(TURNS)]


def test_rounds_of_many_threads_are_numbered_without_gaps_in_the_logs_order() -> None:
    """Every one is there once, hooks hear of each, and all but the newest are finished."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    totals: list[int] = []
    memory.on_round_added(totals.append)

    def write() -> None:
        for _ in range(TURNS):
            round_ = memory.create_round("q")
            try:
                memory.add_post(round_, send_from="a", send_to="b", message=round_.id)
            except RoundClosed:
                pass  # another thread has opened the next one already

    at_once(*[write] * THREADS)
    rounds = memory.conversation.rounds
    count = THREADS * TURNS
    assert [round_.number for round_ in rounds] == list(range(1, count + 1))
    assert [entry.round_id for entry in logged(store, "round opened")] == [round_.id for round_ in rounds]
    assert sorted(totals) == list(range(1, count + 1))
    assert [round_.closed for round_ in rounds] == [True] * (count - 1) + [False]
    assert all(post.message == round_.id for round_ in rounds for post in round_.post_list)
    assert Memory("s", store=store).conversation.rounds == rounds


def test_memories_that_share_a_session_lose_nothing() -> None:
    """Each reads what the others wrote, and appends after it."""
    store = InMemoryStore()
    memories = [Memory("s", store=store) for _ in range(THREADS)]

    def write(memory: Memory, name: str) -> None:
        for turn in range(TURNS // 2):
            round_ = memory.create_round(f"{name} {turn}")
            memory.add_post(round_, send_from=name, send_to="User", message=str(turn))
            memory.finish_round(round_)

    at_once(*(lambda memory=memory, name=f"m{place}": write(memory, name) for place, memory in enumerate(memories)))
    resumed = Memory("s", store=store)
    rounds = resumed.conversation.rounds
    assert len(rounds) == rounds.closed == THREADS * (TURNS // 2)
    assert all(
        round_.user_query == f"{post.send_from} {post.message}" for round_ in rounds for post in round_.post_list
    )
    for place in range(THREADS):
        mine = [round_.user_query for round_ in rounds if round_.user_query.startswith(f"m{place} ")]
        assert mine == [f"m{place} {turn}" for turn in range(TURNS // 2)]
    for memory in memories:
        known = memory.conversation.rounds
        assert [round_.id for round_ in known] == [round_.id for round_ in rounds[: len(known)]]


def test_messages_of_many_threads_are_all_kept() -> None:
    """Each opens or joins a round, and comes out once."""
    memory = Memory()

    def write(name: str) -> None:
        for turn in range(TURNS):
            memory.append({"role": "assistant" if turn % 3 else "user", "content": f"{name} {turn}"})

    at_once(*(lambda name=str(number): write(name) for number in range(THREADS)))
    contents = [message["content"] for message in memory.messages()]
    assert len(contents) == len(set(contents)) == THREADS * TURNS
    for number in range(THREADS):
        mine = [content for content in contents if content.startswith(f"{number} ")]
        assert mine == [f"{number} {turn}" for turn in range(TURNS)]


def test_readers_see_one_moment_while_others_write_fail_and_publish() -> None:
    """Every snapshot is of one piece, and its tail is exactly what the compaction in it does not cover."""
    memory = Memory()
    journal, done = memory.journal("Planner"), threading.Event()

    def failed() -> set[int]:
        return {round_.number for round_ in memory.conversation.rounds if round_.state == "failed"}

    def write() -> None:
        for turn in range(TURNS * 3):
            round_ = memory.create_round(str(turn + 1))
            memory.add_post(round_, send_from="Planner", send_to="User", message=str(turn + 1))
            memory.finish_round(round_)
            if turn % 5 == 4:
                memory.finish_round(memory.conversation.rounds[turn - 2], state="failed")
        done.set()

    def publish() -> None:
        while not done.is_set() or journal.read().generation == 0:
            failed_before = failed()
            state, rounds = journal.read(), memory.rounds_getter("Planner")()
            start = rounds.anchor(state.current).end_index if state.current else 0
            if rounds.closed - start < 3:
                continue
            covered = rounds[start : rounds.closed - 1]
            end = covered[-1]
            compaction = CompactedMessage(
                start_index=1, end_index=start + len(covered), end_round_id=end.id, summary=end.user_query
            )
            reason = ""
            try:
                journal.publish(compaction, base=state.generation, round_ids=[round_.id for round_ in covered])
            except StaleCompaction as stale:
                reason = stale.reason
            if reason:
                # A round has failed between the reading and the publishing: one that was covered, which is a new
                # generation, or one that was to be.
                last = state.current.end_number if state.current else 0
                undone = {number for number in failed() - failed_before if number <= end.number}
                assert undone, "nothing that it covers has failed"
                assert reason == ("generation" if min(undone) <= last else "rounds_changed")

    def read() -> None:
        while not done.is_set():
            rounds, compaction = memory.get_role_rounds("Planner")
            seen = list(rounds)
            assert len(seen) == len(rounds)
            assert all(not round_.post_list or round_.post_list[0].message == round_.user_query for round_ in seen)
            assert all(round_.state != "failed" for round_ in seen)
            if compaction is not None:
                covered, tail = seen[: compaction.end_index], seen[compaction.end_index :]
                assert all(round_.number <= int(compaction.summary) for round_ in covered)
                assert all(round_.number > int(compaction.summary) for round_ in tail)

    at_once(write, publish, read, read)
    assert journal.read().generation > 0


def test_of_threads_that_publish_on_one_generation_one_wins_each_time() -> None:
    """Generations have no gaps and the end only moves forward."""
    memory = Memory()
    for number in range(1, TURNS + 1):
        memory.finish_round(memory.create_round("q", id=str(number)))
    journal, ends = memory.journal("Planner"), []

    def publish() -> None:
        for end in range(1, TURNS + 1):
            compaction = CompactedMessage(start_index=1, end_index=end, end_round_id=str(end), summary="s")
            try:
                ends.append(journal.publish(compaction, base=end - 1, round_ids=[str(end)]).end_index)
            except StaleCompaction:
                pass

    at_once(*[publish] * THREADS)
    assert sorted(ends) == list(range(1, len(ends) + 1))
    assert journal.read().generation == len(ends) > 0


def test_hooks_come_and_go_while_others_are_called() -> None:
    """Each that was there all along hears of every round."""
    memory, totals = Memory(), []
    memory.on_round_added(totals.append)

    def change() -> None:
        for _ in range(TURNS):
            memory.on_round_added(lambda total: None)()
            memory.register_compaction_provider("r", SILENT)()

    def write() -> None:
        for _ in range(TURNS):
            memory.create_round("q")

    at_once(write, change, write, change)
    assert sorted(totals) == list(range(1, 2 * TURNS + 1))


class Silent:
    def get_compaction(self) -> None:
        """Return nothing."""

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        """Do nothing."""


SILENT = Silent()
