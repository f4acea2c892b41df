"""Hidden, deleted and compressed messages stay so in the next process, and nothing is paid for twice."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chats import Message, answer, user
from compressed_memory import SHORT, SYSTEM, filled, reasons, run, shortened, shown, turn, turns
from hypothesis import example, given
from hypothesis import strategies as st
from threads import at_once

from compactor.presets import MemoryCompressed, MemoryWithCompress, NotKept
from memory import Entry, Event, InMemoryStore, Memory, Store, StoreError, open_store


@pytest.fixture(params=["memory://", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kept = open_store("memory://" if request.param == "memory://" else f"sqlite:///{tmp_path}/chat.db")
    yield kept
    kept.close()


def opened(store: Store, max_token: int = 1_000_000, **options: Any) -> MemoryWithCompress:
    """The conversation as the next process finds it."""
    return MemoryWithCompress(max_token, memory=Memory("s", store=store), **options)


class Counted:
    """A compress_func that is paid for."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _messages: list[Message]) -> list[Message]:
        self.calls += 1
        return [SHORT]


def said_in(store: Store) -> str:
    return "".join(entry.body for entry in store.read("s"))


def test_what_was_deleted_stays_so(store: Store) -> None:
    """A call with its results; it stays in the log."""
    memory = opened(store)
    run(memory.add([SYSTEM, *turns(2)]))
    run(memory.delete(2))
    left = shown(memory)
    assert len(left) == 7

    again = opened(store)
    assert shown(again) == left
    assert run(again.size()) == 9
    run(again.add(turn(3)))
    assert shown(opened(store)) == [*left, *turn(3)]


def test_what_was_compressed_is_not_paid_for_again(store: Store) -> None:
    """However often the session is opened, until something new is too long."""
    paid = Counted()
    memory = opened(store, 200, compress_func=paid)
    run(memory.add(turns(3)))
    left = shown(memory)
    assert paid.calls == 1

    for _ in range(3):
        memory = opened(store, 200, compress_func=paid)
        assert shown(memory) == left
        assert memory.references(0) == ("r1-r3",)
    assert paid.calls == 1
    run(memory.add(turns(2)))
    shown(memory)
    assert paid.calls == 2
    assert opened(store, 200, compress_func=paid).references(0) == ("r1-r5",)


def test_what_was_tried_in_vain_is_not_tried_again(store: Store) -> None:
    """A model that makes nothing shorter is asked once, and not once a process."""
    asked: list[object] = []

    def verbose(request: object) -> str:
        asked.append(request)
        return "Parcels P-100, P-200 and P-300 are in depots D1, D2 and D3. " * 3

    for _ in range(3):
        memory = opened(store, 150, summarizer=verbose)
        if not asked:
            run(memory.add([user("Where is P-100?"), answer("D1."), user("And P-200?"), answer("D2.")]))
        shown(memory)
    assert 1 <= len(asked) <= 2  # with the reason, once more


def test_what_the_host_put_there_stays(store: Store) -> None:
    """A note that is not in the log, the messages beside it, and that it was a direct update."""
    memory = opened(store)
    run(memory.add(turns(2)))
    run(memory.direct_update_memory([user("a note"), *turn(2)]))
    run(memory.direct_update_memory([user("another note"), *turn(2)]))

    again = opened(store)
    assert shown(again) == [user("another note"), *turn(2)]
    assert again.direct_updates == [user("a note"), user("another note")]
    assert again.references(1) == ("r2.p0",)


def test_a_cleared_conversation_stays_so(store: Store) -> None:
    """And later messages are counted from 0."""
    memory = opened(store)
    run(memory.add(turns(2)))
    run(memory.clear())
    run(memory.add(user("anew")))

    again = opened(store)
    assert shown(again) == [user("anew")]
    assert run(again.size()) == 1


def test_a_state_that_was_loaded_stays(store: Store) -> None:
    """With its sources."""
    source = MemoryWithCompress(200, compress_func=shortened)
    run(source.add(turns(3)))
    shown(source)
    opened(store).load_state_dict(source.state_dict())

    again = opened(store)
    assert shown(again) == shown(source)
    assert again.references(0) == source.references(0)


def test_what_was_compressed_is_told_after_a_restart(store: Store) -> None:
    """With its numbers and its time, and none of the messages' text."""
    memory = opened(store, 200, compress_func=shortened)
    heard: list[Event] = []
    memory.memory.on_event(heard.append)
    run(memory.add(turns(3)))
    shown(memory)
    (told,) = [event for event in heard if isinstance(event, MemoryCompressed)]

    assert memory.compression_events == [told] == opened(store).compression_events
    assert (told.messages_before, told.messages_after) == (12, 1)
    assert (told.session, told.role) == (memory.memory.session_id, "assistant")


@pytest.mark.parametrize("closed", [False, True])
def test_what_was_erased_goes_from_every_text_that_was_made_from_it(store: Store, closed: bool) -> None:
    """From the store as well, also where it is erased before the session is opened again, and where the text was
    compressed again since; the rest is shown as it was said."""
    memory = opened(store, 200, compress_func=lambda _messages: [user("all about P-100")])
    run(memory.add(turns(2)))
    shown(memory)
    run(memory.add(turn(3)))
    shown(memory)
    assert said_in(store).count("all about P-100") == 2

    (Memory("s", store=store) if closed else memory.memory).redact("r1.p2")
    memory.max_token = 1_000_000
    for one in (opened(store), *([] if closed else [memory])):
        messages = shown(one)
        assert len(messages) == 12
        assert messages[2]["content"] == "[Redacted]"
        assert "all about P-100" not in str(messages)
    assert "all about P-100" not in said_in(store)


@pytest.mark.parametrize("closed", [False, True])
def test_a_text_gives_way_when_a_round_fails_that_it_tells_of(store: Store, closed: bool) -> None:
    """Also where it was compressed again since; the other rounds are shown as they were said, and the next text is
    made without the one that failed."""
    seen: list[list[Message]] = []

    def told(messages: list[Message]) -> list[Message]:
        seen.append(messages)
        return [user("all about P-100")]

    memory = opened(store, 200, compress_func=told)
    for number in (1, 2, 3):
        run(memory.add(turn(number)))
        shown(memory)
    rounds = Memory("s", store=store) if closed else memory.memory
    rounds.finish_round(rounds.conversation.rounds[0], state="failed")

    for one in (opened(store), *([] if closed else [memory])):
        assert one.shown() == turns(3)[4:]
    again = opened(store, 200, compress_func=told)
    assert shown(again) == [user("all about P-100")]
    assert seen[-1] == turns(3)[4:]
    assert again.references(0) == ("r2-r3",)


@pytest.mark.parametrize("closed", [False, True])
def test_a_text_about_a_round_that_was_undone_gives_way(store: Store, closed: bool) -> None:
    """Also if the conversation went on from within that round while this process did not look."""
    memory = opened(store, 200, compress_func=lambda messages: [user("all about P-200")])
    run(memory.add(turns(2)))
    assert shown(memory) == [user("all about P-200")]
    rounds = Memory("s", store=store) if closed else memory.memory
    assert rounds.rewind("r2.p0") == ("r2",)

    for one in (opened(store), *([] if closed else [memory])):
        assert one.shown() == turns(2)[:5]
    again = opened(store)
    run(again.add(answer("anew")))
    assert again.shown() == [*turns(2)[:5], answer("anew")]


@pytest.mark.parametrize("kept", [4, 8])
@pytest.mark.parametrize("fails", [False, True])
def test_a_text_gives_way_for_what_was_handed_back_beside_it(store: Store, kept: int, fails: bool) -> None:
    """A compress_func that keeps the newest messages has read them: its text may tell of them, also once it was
    compressed again. What it stands for is shown in its place."""
    memory = opened(store, 200, compress_func=lambda messages: [user("all about P-200"), *messages[-kept:]])
    run(memory.add(turns(2)))
    assert shown(memory)[1:] == turns(2)[8 - kept :]
    assert memory.references(0) == (() if kept == 8 else ("r1",))
    shown(memory, compress_func=lambda messages: [user("more about P-200"), *messages[1:]])
    if fails:
        memory.memory.finish_round(memory.memory.conversation.rounds[1], state="failed")
    else:
        memory.memory.redact("r2.p3")

    for one in (memory, opened(store)):
        left = one.shown()
        assert left == (turn(1) if fails else [*turns(2)[:7], answer("[Redacted]")])
    assert fails or "about P-200" not in said_in(store)


def test_what_was_erased_in_a_round_that_failed_is_in_no_text(store: Store) -> None:
    """In whichever order, and whether or not anybody looked between the two."""
    for order in ("failed first", "erased first"):
        for looked in (False, True):
            session = Memory(f"{order} {looked}", store=store)
            memory = MemoryWithCompress(200, memory=session, compress_func=lambda _messages: [user("all about P-100")])
            run(memory.add(turns(2)))
            assert shown(memory) == [user("all about P-100")]
            rounds = session.conversation.rounds
            steps: list[Callable[[], Any]] = [
                lambda session=session, first=rounds[0]: session.finish_round(first, state="failed"),  # type: ignore[misc]
                lambda session=session: session.redact("r1.p2"),  # type: ignore[misc]
            ]
            for step in steps if order == "failed first" else reversed(steps):
                step()
                if looked:
                    assert "all about P-100" not in str(memory.shown())
            reopened = MemoryWithCompress(memory=Memory(session.session_id, store=store))
            assert memory.shown() == turn(2) == reopened.shown()


def test_what_was_erased_stays_so_where_a_change_is_refused() -> None:
    """The change is undone, and messages erased meanwhile are not shown again."""
    store = Full()
    memory = opened(store, 200, compress_func=lambda _messages: [user("all about P-100")])
    run(memory.add(turns(2)))
    assert shown(memory) == [user("all about P-100")]
    memory.memory.redact("r1.p2")
    store.full = True
    with pytest.raises(StoreError):
        run(memory.delete(0))
    assert len(memory.shown()) == 8
    assert "all about P-100" not in str(memory.shown())
    store.full = False


def test_a_text_that_is_made_while_something_is_erased_is_not_written(store: Store) -> None:
    """Between the moment when it takes its place and the moment when it is written."""
    memory = opened(store, 200, compress_func=lambda _messages: [user("all about P-100")])
    run(memory.add(turns(2)))
    window = memory._window
    write = window.write

    def late(event: Event | None = None) -> None:
        memory.memory.redact("r1.p2")
        write(event)

    window.write = late  # type: ignore[method-assign]
    run(memory.get_memory(compression_trigger_func=lambda _messages: False))
    assert "all about P-100" not in said_in(store)


class Full(InMemoryStore):
    """A store that takes nothing for a while."""

    full = False

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        if self.full:
            raise StoreError("no room")
        return super().append(session, entries, after)


def test_what_was_paid_for_is_shown_though_the_store_fails() -> None:
    """An event tells of it, and the next change writes it."""
    store, paid = Full(), Counted()
    memory = opened(store, 200, compress_func=paid)
    heard: list[Event] = []
    memory.memory.on_event(heard.append)
    run(memory.add(turns(3)))
    store.full = True
    assert shown(memory) == [SHORT]
    assert any(isinstance(event, NotKept) for event in heard)
    store.full = False
    run(memory.delete(0))
    assert shown(memory) == []
    run(memory.add(turn(4)))
    run(memory.delete(0))
    assert shown(opened(store)) == turn(4)[1:]
    assert (paid.calls, reasons(heard)) == (1, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda memory: memory.delete(0),
        lambda memory: memory.clear(),
        lambda memory: memory.direct_update_memory(user("a note")),
        lambda memory: memory.memory_storage.replace(user("a note")),
    ],
)
def test_a_change_that_the_store_refuses_is_none(
    change: Callable[[MemoryWithCompress], Coroutine[Any, Any, None]],
) -> None:
    """A retry deletes the same message, and not the one behind it; messages added meanwhile are shown."""
    store = Full()
    memory = opened(store)
    run(memory.add(turns(2)))
    store.full = True
    for _ in range(2):
        with pytest.raises(StoreError):
            run(change(memory))
        assert (memory.shown(), run(memory.size()), memory.direct_updates) == (turns(2), 8, [])
    store.full = False
    run(memory.add(turn(3)))
    assert memory.shown() == turns(3) == shown(opened(store))
    run(change(memory))
    assert memory.shown() == shown(opened(store)) != turns(3)


@pytest.mark.parametrize("missing", [(), ("chat_history_storage",), ("memory_storage",)])
def test_a_state_that_the_store_refuses_is_not_loaded(missing: tuple[str, ...]) -> None:
    """Neither its messages nor its limit; a retry loads all of it."""
    store = Full()
    memory = opened(store, 5_000)
    run(memory.add(turns(2)))
    state = memory.state_dict() | {"max_token": 777, "memory_storage": turns(1), "direct_updates": [user("a note")]}
    state |= {"sources": state["sources"][:4], "beside": state["beside"][:4]}
    state = {name: value for name, value in state.items() if name not in missing}
    if "memory_storage" in missing:
        run(memory.delete(0))
        del state["sources"]
    before = memory.shown()
    store.full = True
    for _ in range(2):
        with pytest.raises(StoreError):
            memory.load_state_dict(state, strict=False)
        assert (memory.shown(), memory.max_token, memory.direct_updates) == (before, 5_000, [])
    store.full = False
    memory.load_state_dict(state, strict=False)
    assert (memory.max_token, memory.direct_updates) == (777, [user("a note")])
    assert memory.shown() == shown(opened(store)) == state.get("memory_storage", turns(2)) != before


def test_a_state_of_which_the_store_takes_a_part_leaves_what_is_shown() -> None:
    """Another conversation's: messages that the log has by then stand behind what is shown, and the limit is as it
    was."""
    store = Full()
    memory = opened(store, 5_000)
    run(memory.add(turns(1)))
    state = filled([user("first"), answer("second"), user("third")], max_token=777).state_dict()
    memory.memory.on_round_added(lambda _rounds: setattr(store, "full", True))
    with pytest.raises(StoreError):
        memory.load_state_dict(state)
    assert (memory.shown(), memory.max_token) == ([*turns(1), user("first")], 5_000)
    store.full = False


def test_a_fork_and_a_copy_show_the_same() -> None:
    """They share the log, and so its window."""
    memory = opened(InMemoryStore(), 200, compress_func=shortened)
    run(memory.add(turns(3)))
    left = shown(memory)
    for copy in (memory.memory.fork(3), Memory.from_state_dict(memory.memory.state_dict(), "copy")):
        assert shown(MemoryWithCompress(memory=copy)) == left


Step = Callable[[MemoryWithCompress], Any]


def added(memory: MemoryWithCompress) -> None:
    run(memory.add(turn(run(memory.size()) + 1)))


def compressed(memory: MemoryWithCompress) -> None:
    shown(memory, compress_func=shortened, compression_trigger_func=lambda messages: len(messages) > 3)


def deleted(memory: MemoryWithCompress) -> None:
    if messages := shown(memory):
        run(memory.delete(len(messages) // 2))


def put(memory: MemoryWithCompress) -> None:
    run(memory.direct_update_memory([*shown(memory)[:2], user("a note"), *shown(memory)[3:]]))


def failed(memory: MemoryWithCompress) -> None:
    rounds = memory.memory.conversation.rounds
    if rounds:
        memory.memory.finish_round(rounds[len(rounds) // 2], state="failed")


def erased(memory: MemoryWithCompress) -> None:
    if len(memory.memory.snapshot.get_rounds(include_hidden=True)) > 1:
        memory.memory.redact("r2.p0")


def erased_last(memory: MemoryWithCompress) -> None:
    if total := len(memory.memory.snapshot.get_rounds(include_hidden=True)):
        memory.memory.redact(f"r{total}.p2")


def cleared(memory: MemoryWithCompress) -> None:
    run(memory.clear())


STEPS = [added, added, compressed, deleted, put, failed, erased, erased_last, cleared]


@pytest.mark.slow
@given(st.lists(st.sampled_from(STEPS), max_size=12))
@example([added, added, compressed, failed, erased])
@example([added, added, erased, compressed, erased_last])
def test_whatever_was_done_the_next_process_finds_it(steps: list[Step]) -> None:
    """After each step: the shown messages, their sources, the size of the history, and the direct updates."""
    store = InMemoryStore()
    memory = opened(store)
    run(memory.add(SYSTEM))
    for step in steps:
        step(memory)
        again = opened(store)
        assert shown(again) == shown(memory)
        assert again.direct_updates == memory.direct_updates
        assert run(again.size()) == run(memory.size())
        places = range(len(shown(memory)))
        assert [again.references(at) for at in places] == [memory.references(at) for at in places]


@given(st.lists(st.sampled_from([added, added, compressed, deleted, put, cleared]), max_size=12))
def test_nothing_that_was_said_is_lost_from_the_log(steps: list[Step]) -> None:
    """Hidden, deleted, replaced or compressed: each message is read by its reference, also in the next process."""
    store = InMemoryStore()
    memory = opened(store)
    count = 0
    for step in [added, *steps]:
        before = len(memory.memory.messages())
        step(memory)
        count += len(memory.memory.messages()) > before
    again = opened(store)
    assert len(again.memory.messages()) == 4 * count == len(memory.memory.messages())
    for number, round_ in enumerate(again.memory.conversation.rounds, 1):
        assert round_.user_query in again.memory.reload(f"r{number}")
        assert all(again.memory.reload(f"r{number}.p{post.number}") for post in round_.post_list)


def test_threads_that_change_what_is_shown_leave_it_in_the_log_as_it_is() -> None:
    """Adding, deleting and compressing at once: at the end the log has the shown messages."""
    store = InMemoryStore()
    memory = opened(store)
    run(memory.add(turns(4)))

    def work(step: Step) -> None:
        for _ in range(8):
            with suppress(IndexError):  # somebody else has hidden it meanwhile
                step(memory)

    steps = [added, compressed, deleted, lambda one: run(one.delete(0))]
    at_once(*(partial(work, step) for step in steps))
    assert shown(opened(store)) == shown(memory)
