"""Several Memories write to one session, in one process or in several, and agree on what happened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from indexed import Indexed, Plain, Unreachable, shown, with_rounds
from threads import at_once

from memory import (
    Conflict,
    Entry,
    InMemoryStore,
    Memory,
    MessageError,
    Post,
    Round,
    RoundClosed,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    open_store,
)

pytestmark = pytest.mark.slow

ROLE = "Planner"


class Provider:
    """Hears of changes."""

    def __init__(self) -> None:
        self.told: list[int | None] = []

    def get_compaction(self) -> None:
        return None

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        self.told.append(total_rounds)


def two(store: InMemoryStore | None = None) -> tuple[Memory, Memory, list[int]]:
    """Return two Memories of one session, and the list of rounds that the second one's hooks are told of."""
    store = InMemoryStore() if store is None else store
    first, second, heard = Memory("s", store=store), Memory("s", store=store), []
    second.on_round_added(heard.append)
    return first, second, heard


def say(memory: Memory, round_: object, text: str = "m") -> None:
    memory.add_post(round_, send_from=ROLE, send_to="User", message=text)  # type: ignore[arg-type]


# -- each round is announced once --------------------------------------------------------------------------------------


def test_hooks_hear_of_the_rounds_that_others_opened_when_they_are_read() -> None:
    """In the order of the log, before the own one; and never twice."""
    first, second, heard = two()
    first.create_round("a")
    first.create_round("b")
    assert heard == []
    second.create_round("c")
    assert heard == [1, 2, 3]
    first.create_round("d")
    second.refresh()
    second.refresh()
    assert heard == [1, 2, 3, 4]


def test_a_reader_follows_by_refreshing() -> None:
    """It tells whether there was anything new, and its hooks and providers are told of that."""
    first, second, heard = two(Indexed())
    provider = Provider()
    second.register_compaction_provider(ROLE, provider)
    assert not second.refresh()
    assert provider.told == []
    round_ = first.create_round("a")
    assert second.refresh()
    say(first, round_, "news")
    assert second.refresh()
    assert not second.refresh()
    assert (heard, provider.told) == ([1], [1, 1])
    assert second.open_rounds[0].post_list[0].message == "news"


def test_what_this_memory_writes_itself_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """``refresh`` tells of others' entries, also if another thread of this process appends at that moment."""
    memory = Memory("s", store=InMemoryStore())
    lock = memory._lock

    class AppendsFirst:
        def __enter__(self) -> None:
            monkeypatch.undo()
            memory.create_round("by another thread, just before")
            lock.acquire()

        def __exit__(self, *_error: object) -> None:
            lock.release()

    monkeypatch.setattr(memory, "_lock", AppendsFirst())
    assert not memory.refresh()
    assert len(memory.conversation.rounds) == 1


def test_a_refresh_that_fails_has_lost_nothing() -> None:
    """The next one reads the rest, and tells of it."""
    store = Indexed()
    first, second, heard = two(store)
    first.create_round("a")
    store.fault = Unreachable("gone")
    with pytest.raises(Unreachable):
        second.refresh()
    store.fault = None
    assert second.refresh()
    assert heard == [1]


def test_hooks_hear_of_others_rounds_even_where_the_own_write_is_refused() -> None:
    """What was read is told."""
    first, second, heard = two()
    round_ = first.create_round("a")
    first.finish_round(round_)
    with pytest.raises(RoundClosed):
        say(second, round_)
    assert heard == [1]


def test_each_memory_tells_of_each_round_exactly_once_whoever_writes() -> None:
    """Four threads on two Memories and a third that follows; all agree on one order."""
    store = Indexed()
    memories = [Memory("s", store=store) for _ in range(3)]
    heard: list[list[int]] = [[], [], []]
    for memory, numbers in zip(memories, heard, strict=True):
        memory.on_round_added(numbers.append)

    def write(place: int) -> None:
        for number in range(25):
            memories[place % 2].create_round(f"{place} {number}")

    def follow() -> None:
        for _ in range(50):
            memories[2].refresh()

    at_once(follow, *(partial(write, place) for place in range(4)))
    for memory in memories:
        memory.refresh()
    assert [sorted(numbers) for numbers in heard] == [list(range(1, 101))] * 3
    assert shown(memories[0], ROLE) == shown(memories[1], ROLE) == shown(memories[2], ROLE)
    assert shown(memories[0], ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


# -- open rounds -------------------------------------------------------------------------------------------------------


def test_a_round_that_another_memory_has_open_is_not_closed_here() -> None:
    """Nor by opening others; both can be told."""
    first, second, _ = two()
    round_ = first.create_round("a")
    second.create_round("b")
    second.create_round("c")
    say(first, round_)
    assert [(one.user_query, one.state) for one in second.conversation.rounds] == [
        ("a", "created"),
        ("b", "finished"),
        ("c", "created"),
    ]
    assert [one.user_query for one in first.open_rounds] == ["a", "c"]
    assert first.conversation.rounds.closed == 0


def test_a_post_to_a_round_that_was_closed_elsewhere_is_refused() -> None:
    """Nothing is written."""
    store = Indexed()
    first, second, _ = two(store)
    round_ = first.create_round("a")
    second.refresh()
    first.finish_round(round_)
    end = len(list(store.read("s")))
    with pytest.raises(RoundClosed):
        say(second, round_)
    assert len(list(store.read("s"))) == end


@pytest.mark.parametrize("make", [InMemoryStore, Indexed])
def test_the_rounds_of_a_dead_process_are_finished_by_the_next_round_where_the_host_says_so(make: type) -> None:
    """Else they would hold up compaction for ever; they take posts until then."""
    store = make()
    dead = Memory("s", store=store)
    dead.create_round("a", id="a")
    other = Memory("s", store=store)
    other.create_round("b", id="b")
    resumed = Memory("s", store=store, take_over=True)
    assert [one.id for one in resumed.open_rounds] == ["a", "b"]
    say(resumed, "a", "goes on")
    resumed.create_round("c")
    assert [one.state for one in resumed.conversation.rounds] == ["finished", "finished", "created"]
    assert resumed.conversation.rounds.closed == 2
    other.create_round("d")
    resumed.create_round("e")
    assert [one.user_query for one in resumed.open_rounds] == ["d", "e"], "only what was open at opening"


def test_without_that_they_stay_open() -> None:
    """Another process may be at work on them."""
    store = InMemoryStore()
    Memory("s", store=store).create_round("a")
    resumed = Memory("s", store=store)
    resumed.create_round("b")
    assert [one.user_query for one in resumed.open_rounds] == ["a", "b"]


# -- replies that were lost --------------------------------------------------------------------------------------------


class Gone(Indexed):
    """Whose server is gone after a reply that was lost, until somebody says that it is back."""

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        try:
            return super().append(session, entries, after)
        except (StoreError, KeyboardInterrupt) as fault:
            self.fault = Unreachable("gone") if isinstance(fault, StoreError) else None
            raise


@pytest.mark.parametrize("fault", [Unreachable("reply lost"), KeyboardInterrupt()], ids=["fault", "interrupt"])
def test_a_round_whose_reply_was_lost_is_this_memorys_own(fault: BaseException) -> None:
    """It is known by its entry's id: the next round finishes it, and each is told of once."""
    store = Gone()
    memory, heard = Memory("s", store=store), []
    memory.on_round_added(heard.append)
    store.lost_reply = fault
    with pytest.raises(type(fault)):
        memory.create_round("lost")
    assert len(memory.conversation.rounds) == 0
    store.fault = None
    memory.create_round("next")
    assert [(one.user_query, one.state) for one in memory.conversation.rounds] == [
        ("lost", "finished"),
        ("next", "created"),
    ]
    assert heard == [1, 2]


def test_a_call_that_is_made_again_after_a_lost_reply_sees_what_was_written() -> None:
    """The next write catches up first, so that closing a round twice is one entry."""
    store = Gone()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    store.lost_reply = Unreachable("reply lost")
    with pytest.raises(Unreachable):
        memory.finish_round(round_)
    store.fault = None
    assert memory.finish_round(round_).state == "finished"
    assert [entry.kind for entry in store.read("s")] == ["round opened", "round closed"]


def test_a_memory_is_usable_once_its_store_is() -> None:
    """As often as it fails in between: nothing is written twice, and nothing is half there."""
    store = Gone()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    store.lost_reply = Unreachable("reply lost")
    with pytest.raises(Unreachable):
        say(memory, round_, "one")
    for _ in range(2):
        store.fault = Unreachable("gone")
        with pytest.raises(Unreachable):
            say(memory, round_, "never")
        store.fault = None
    say(memory, round_, "two")
    assert [post.message for post in memory.open_rounds[0].post_list] == ["one", "two"]
    assert shown(memory, ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


def test_a_call_whose_reply_was_lost_has_succeeded_where_the_log_can_be_read_again() -> None:
    """Nobody is asked to make it again; hooks and providers are told of it once."""
    store = Indexed()
    memory, heard, provider = Memory("s", store=store), [], Provider()
    memory.on_round_added(heard.append)
    memory.register_compaction_provider(ROLE, provider)
    store.lost_reply = Unreachable("reply lost")
    round_ = memory.create_round("q")
    store.lost_reply = Unreachable("reply lost")
    post = memory.add_post(round_, send_from=ROLE, send_to="User", message="m")
    assert (post.number, post.message) == (1, "m")
    store.lost_reply = Unreachable("reply lost")
    assert memory.finish_round(round_).post_list == (post,)
    assert [entry.kind for entry in store.read("s")] == ["round opened", "post added", "round closed"]
    assert (heard, provider.told) == ([1], [1, 1, 1])
    memory.create_round("next")
    assert (heard, provider.told) == ([1, 2], [1, 1, 1, 2])


@pytest.mark.parametrize("conflict", [False, True], ids=["fault", "conflict"])
def test_what_others_wrote_behind_a_lost_reply_is_not_taken_for_ones_own(conflict: bool) -> None:
    """A call returns what it wrote, though other rounds and posts came after it, or its round was closed."""
    store = Indexed()
    memory, other = Memory("s", store=store), Memory("s", store=store)
    append, then = store.append, []

    def lost(session: str, entries: list, after: int) -> int:
        append(session, entries, after)
        store.append = append  # type: ignore[method-assign]
        other.refresh()
        then.pop()()
        raise Conflict("others wrote behind it") if conflict else Unreachable("reply lost")

    then.append(lambda: other.create_round("another"))
    store.append = lost  # type: ignore[method-assign]
    mine = memory.create_round("mine", id="mine")
    assert (mine.user_query, mine.number) == ("mine", 1)
    then.append(lambda: (other.add_post("mine", send_from="b", send_to="c"), other.finish_round("mine")))
    store.append = lost  # type: ignore[method-assign]
    assert memory.add_post("mine", send_from="a", send_to="b", message="m").message == "m"
    assert [post.number for post in memory.conversation.rounds[0].post_list] == [1, 2]
    assert [entry.kind for entry in store.read("s")].count("post added") == 2


@pytest.mark.parametrize("refusal", [StoreBusy, StoreFull, StoreReadOnly, StoreClosed])
def test_after_a_refusal_nothing_is_looked_for(refusal: type[StoreError]) -> None:
    """Nothing was written: the caller is told at once, and the next call goes on."""
    store = Indexed()
    memory = Memory("s", store=store)
    store.fault = refusal("no")
    with pytest.raises(refusal):
        memory.create_round("q")
    store.fault, store.handed_out = None, 0
    memory.create_round("q")
    assert len(memory.conversation.rounds) == 1


def test_a_ready_post_and_a_round_with_a_given_id_are_not_written_twice() -> None:
    """So whoever was told of a fault may make the same call again."""
    store = Gone()
    memory, heard = Memory("s", store=store), []
    memory.on_round_added(heard.append)
    post = Post(id="p", send_from=ROLE, send_to="User", message="m")

    def open_it() -> Round:
        return memory.create_round("q", id="r", extra={"a": 1})

    for call in (open_it, lambda: memory.add_post("r", post)):
        store.lost_reply = Unreachable("reply lost")
        with pytest.raises(Unreachable):
            call()
        store.fault = None
        first = call()
        assert call() == first, "and again"
        assert heard == [1]
        if call is open_it:
            assert first.user_query == "q"
            with pytest.raises(MessageError, match="already"):
                memory.create_round("another query", id="r")
    assert [entry.kind for entry in store.read("s")] == ["round opened", "post added"]
    with pytest.raises(MessageError, match="already"):
        open_it()  # something was said in it: that is no call made again
    with pytest.raises(MessageError, match="already"):
        Memory("s", store=store).create_round("q", id="r")
    memory.add_post("r", post.model_copy(update={"message": "another"}))
    memory.add_post("r", post)
    assert [one.message for one in memory.open_rounds[0].post_list] == ["m", "another", "m"]


def test_an_own_round_that_is_read_back_late_is_still_known() -> None:
    """A commit may come through after the next look at the log."""
    store = Indexed()
    memory = Memory("s", store=store)
    held_back = []

    def late(session: str, entries: list, after: int) -> int:
        held_back.append((session, entries, after))
        raise Unreachable("gone")

    append, store.append = store.append, late  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        memory.create_round("late")
    assert not memory.refresh()
    store.append = append  # type: ignore[method-assign]
    store.append(*held_back[0])
    memory.create_round("next")
    assert [one.state for one in memory.conversation.rounds] == ["finished", "created"]


# -- erasing -----------------------------------------------------------------------------------------------------------


def test_who_hears_of_an_erasing_forgets_the_text_too() -> None:
    """Also rounds that it has at hand."""
    store = Indexed()
    first = with_rounds(store, 3)
    second = Memory("s", store=store)
    assert second.conversation.rounds[1].post_list[0].message == "answer 2"
    first.redact("r2.p1")
    second.refresh()
    assert second.conversation.rounds[1].post_list[0].message == "[Redacted]"


def test_a_reader_who_may_not_write_shows_no_text_that_is_still_to_be_erased() -> None:
    """Whoever may write goes on with the erasing; this one can read all the same."""
    store = Indexed()
    memory = with_rounds(store, 3)

    def refused(*_: object) -> None:
        raise StoreReadOnly("read-only")

    store.redact = refused  # type: ignore[method-assign]
    with pytest.raises(StoreReadOnly):
        memory.redact("r2.p1")
    assert Memory("s", store=store).conversation.rounds[1].post_list[0].message == "[Redacted]"


# -- what else a Memory on a store has ---------------------------------------------------------------------------------


def test_on_sqlite_it_is_all_the_same(tmp_path: Path) -> None:
    """Open, write, search, erase, fork, save and open again, two at a time."""
    store = open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    try:
        first = Memory("s", store=store)
        for number in range(1, 41):
            first.create_round(f"question {number}", id=str(number))
            say(first, str(number), f"walnut {number}")
        second = Memory("s", store=store)
        assert second.index_texts()
        assert second.search("walnut 17", role=ROLE, limit=1)[0].ref == "r17.p1"
        assert second.search(" ") == []
        first.redact("r17.p1")
        assert second.refresh()
        assert 17 not in {text.round for text in store.find_texts("s", ["walnut"], "").texts}
        fork = second.fork(20, "forked")
        copy = Memory.from_state_dict(second.state_dict(), "copied", store=store)
        assert (len(fork.conversation.rounds), len(copy.conversation.rounds)) == (20, 40)
        assert shown(copy, ROLE)[1] == shown(first, ROLE)[1] == list(Memory("s", store=store).conversation.rounds)  # type: ignore[index]
        with pytest.raises(StoreError):
            second.fork(20, "forked")
    finally:
        store.close()
