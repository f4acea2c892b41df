"""A forked child works on, whatever other threads of the parent held at that moment."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
from forks import needs_fork, run

from memory import Memory

PRELUDE = """
    import threading
    from memory import InMemoryStore, Memory
"""

in_process = partial(run, PRELUDE)


@needs_fork
def test_a_child_writes_and_reads_though_another_thread_held_every_lock() -> None:
    """That thread does not exist in the child, and would never release them."""
    in_process("""
        class Slow(InMemoryStore):
            def append(self, session, entries, after):
                if threading.current_thread().name == "slow":
                    with self._lock, memory._round_hooks._lock, memory._event_hooks._lock:
                        held.set()
                        release.wait()
                return super().append(session, entries, after)

        held, release = threading.Event(), threading.Event()
        memory = Memory("s", store=Slow())
        round_ = memory.create_round("before")
        slow = threading.Thread(target=lambda: memory.create_round("slow"), name="slow")
        slow.start()
        held.wait()

        def work():
            totals = []
            memory.on_round_added(totals.append)
            memory.on_event(print)
            memory.add_post(round_, send_from="a", send_to="b", message="in the child")
            memory.create_round("in the child")
            assert totals == [2]
            assert [r.user_query for r in memory.get_role_rounds("a")[0]] == ["before", "in the child"]
            assert memory.conversation.rounds == Memory("s", store=memory._store).conversation.rounds

        code = exit_code(in_child(work))
        release.set()
        slow.join()
        assert code == 0, code
        assert [r.user_query for r in memory.conversation.rounds] == ["before", "slow"]
        print("well")
    """)


@needs_fork
def test_a_child_does_not_finish_what_its_parent_has_open() -> None:
    """Neither the round that the parent opened, nor one that it was to take over, nor one that it is just opening."""
    in_process("""
        def open_rounds(memory):
            memory.refresh()
            return [r.user_query for r in memory.open_rounds]

        store = InMemoryStore()
        Memory("s", store=store).create_round("of a dead process")
        taking = Memory("s", store=store, take_over=True)
        memory = Memory("t", store=store)
        memory.create_round("the parent's")

        class Lost(Exception):
            pass

        class Losing(InMemoryStore):
            def append(self, *args):
                super().append(*args)
                raise Lost

        losing = Losing()
        late = Memory("u", store=losing)
        try:
            late.create_round("being opened")
        except Lost:
            pass
        del Losing.append

        def work():
            for one in (taking, memory, late):
                one.create_round("the child's")
                one.create_round("and its next")
            assert open_rounds(taking) == ["of a dead process", "and its next"]
            assert open_rounds(memory) == ["the parent's", "and its next"]
            assert open_rounds(late) == ["being opened", "and its next"]

        code = exit_code(in_child(work))
        assert code == 0, code
        memory.create_round("the parent's next")
        assert open_rounds(memory) == ["the parent's next"]
        print("well")
    """)


@pytest.mark.slow
@needs_fork
def test_a_child_reads_old_rounds_though_another_thread_held_the_cache() -> None:
    """Rounds that are read from a store are in a cache, which has a lock of its own."""
    in_process("""
        import sys, tempfile
        from memory import open_store

        folder = tempfile.mkdtemp()
        store = open_store(f"sqlite:///{folder}/chat.db")
        memory = Memory("s", store=store)
        for number in range(3):
            memory.create_round(f"question {number}", id=str(number))
        memory.finish_round("2")
        archive = memory.snapshot.archive
        held, release = threading.Event(), threading.Event()

        def hold():
            with archive._lock:
                held.set()
                release.wait()

        holding = threading.Thread(target=hold)
        holding.start()
        held.wait()

        def work():
            assert memory.conversation.rounds[0].user_query == "question 0"
            assert memory.snapshot.find_round("1").user_query == "question 1"
            assert memory.create_round("in the child").number == 4

        code = exit_code(in_child(work))
        release.set()
        holding.join()
        store.close()
        assert code == 0, code
        print("well")
    """)


@needs_fork
def test_a_child_that_a_hook_forks_notifies_at_once() -> None:
    """The notification in progress is the parent's; the child's own need not wait for it."""
    in_process("""
        memory, heard, codes = Memory(), [], []

        def work():
            memory.create_round("in the child")
            assert heard == [1, 2], heard

        def hook(total):
            heard.append(total)
            if total == 1:
                codes.append(exit_code(in_child(work)))

        memory.on_round_added(hook)
        memory.create_round("q")
        assert codes == [0], codes
        assert heard == [1], heard
        print("well")
    """)


@pytest.mark.slow
def test_what_is_renewed_after_a_fork_is_not_kept_alive() -> None:
    """A Memory is registered for children to come, and is gone with its last reference."""
    memory = Memory()
    memory.on_round_added(print)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None


@pytest.mark.slow
@needs_fork
def test_a_child_makes_other_ids_than_its_parent() -> None:
    """Ids are drawn ahead; those that the parent has drawn are the parent's."""
    in_process("""
        from memory.rounds import make_id

        make_id()
        reading, writing = os.pipe()
        assert exit_code(in_child(lambda: os.write(writing, "".join(make_id() for _ in range(300)).encode()))) == 0
        told = os.read(reading, 20_000).decode()
        childs = {told[at : at + 32] for at in range(0, len(told), 32)}
        assert len(childs) == 300
        assert childs.isdisjoint(make_id() for _ in range(300))
        print("well")
    """)


@pytest.mark.slow
@needs_fork
def test_a_child_uses_events_though_another_thread_was_at_its_first_one() -> None:
    """The library has pydantic build a class on its first use, under locks that nobody would release in the child."""
    in_process("""
        from memory import Event, HookFailed, Post

        HookFailed(hook="", error="")

        class Slow:
            @classmethod
            def __get_pydantic_core_schema__(cls, source, handler):
                building.set()
                release.wait()
                return handler.generate_schema(int)

        class Custom(Event):
            number: Slow

        building, release = threading.Event(), threading.Event()
        os.register_at_fork(before=release.set)
        slow = threading.Thread(target=lambda: Custom(number=1))
        slow.start()
        building.wait()

        def work():
            assert Post(send_from="a", send_to="b").message == ""
            assert Custom(number=2).facts()["number"] == 2

        assert exit_code(in_child(work)) == 0
        slow.join()
        print("well")
    """)
