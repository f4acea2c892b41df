"""On a store that can read parts of a log, old rounds are read when somebody asks, and little of them is kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from histories import cover
from indexed import Indexed, Plain, Unreachable, forgetful, shown, with_rounds

from compactor import compose
from memory import Entry, InMemoryStore, Memory, NewerVersion, Post, Reduction, StoreDamaged, StoreError
from memory.entries import PostPinned, ReductionPublished, RoundFinished
from memory.log.checkpoint import make_checkpoint
from memory.log.round_store import StoredRounds, rebuild_rounds
from memory.log.state import BATCH

ROLE = "Planner"


def reopened(store: Indexed, memory: Memory) -> Memory:
    """Return another Memory of the session, opened by a checkpoint of just now; what it reads is counted from here."""
    store.checkpoints["s"] = make_checkpoint(memory.snapshot)
    again = Memory("s", store=store)
    store.handed_out = 0
    return again


def reduce(memory: Memory, number: int, text: str) -> None:
    round_ = memory.conversation.rounds[number - 1]
    journal = memory.journal(ROLE)
    made = Reduction.over(round_, round_.post_list[:1], "offloaded", text)
    assert journal.reduce(made, base=journal.read().generation) is not None


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_neighbours_are_read_together_in_either_direction() -> None:
    """Whoever goes through a session asks the store once for several rounds."""
    store = Indexed()
    memory = with_rounds(store, 4 * BATCH)
    asked: list[tuple[int, int]] = []
    read_rounds = store.read_rounds

    def counted(session: str, first: int, last: int) -> Iterator[Entry]:
        asked.append((first, last))
        return read_rounds(session, first, last)

    for order in (iter, reversed):
        again = reopened(store, memory)
        store.read_rounds, asked[:] = counted, []  # type: ignore[method-assign]
        assert len(list(order(again.conversation.rounds))) == 4 * BATCH
        assert len(asked) == 4
        del store.read_rounds  # type: ignore[method-assign]


def test_reading_one_round_twice_asks_the_store_once() -> None:
    """It is the same object, too."""
    store = Indexed()
    again = reopened(store, with_rounds(store, 3))
    first = again.conversation.rounds[1]
    read = store.handed_out
    assert again.conversation.rounds[1] is first
    assert (first.post_list[0].message, store.handed_out) == ("answer 2", read)


def test_the_cache_holds_a_bounded_number_of_rounds_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used last; and one that is longer than all the room is still read once for its reader."""
    store = Indexed()
    memory = Memory("s", store=store)
    for number, length in enumerate([10] * 20 + [5_000] * 20 + [50_000], 1):
        memory.create_round("q", id=str(number))
        memory.add_post(str(number), send_from=ROLE, send_to="User", message="x" * length)
        memory.finish_round(str(number))
    monkeypatch.setattr("memory.log.round_store.MAX_ROUNDS", 8)
    monkeypatch.setattr("memory.log.round_store.MAX_CHARACTERS", 30_000)
    archive = StoredRounds(store, "s")
    for number in (*range(1, 42), *range(41, 0, -1)):
        assert archive.get_round(number, 41).number == number
        assert len(archive._cache) <= 8
        assert archive._characters == sum(length for _, length in archive._cache.values())
        assert archive._characters <= 30_000 or len(archive._cache) == 1


def test_a_signals_handler_may_read_in_the_middle_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for no lock of its own thread, and what it drops from the cache is read all the same."""
    store = Indexed()
    with_rounds(store, 40)
    monkeypatch.setattr("memory.log.round_store.MAX_ROUNDS", 3)
    archive = StoredRounds(store, "s")

    class Interrupted(OrderedDict[int, Any]):
        left = 1

        def get(self, number: int, *default: Any) -> Any:
            found = super().get(number, *default)
            if found is not None and self.left:
                self.left = 0
                assert [archive.get_round(other, 40).number for other in range(40, 20, -1)] == [*range(40, 20, -1)]
            return found

    archive.get_round(1, 40)
    archive._cache = Interrupted(archive._cache)
    held = next(iter(archive._cache))
    assert archive.get_round(held, 40).number == held
    assert archive._cache.left == 0
    assert archive._characters == sum(length for _, length in archive._cache.values())


def test_long_rounds_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit the cache beside the one that was asked for would be read again and again."""
    store = Indexed()
    memory = Memory("s", store=store)
    for number in range(1, 33):
        memory.create_round("q", id=str(number))
        memory.add_post(str(number), send_from=ROLE, send_to="User", message="x" * 1_000)
        memory.finish_round(str(number))
    monkeypatch.setattr("memory.log.round_store.MAX_CHARACTERS", 4_000)
    archive = StoredRounds(store, "s")
    archive.get_round(1, 32)
    store.handed_out = 0
    for number in range(17, 33):
        archive.get_round(number, 32)
    assert store.handed_out == 16 * 3


def test_a_process_that_runs_for_weeks_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rounds that it wrote itself stay in memory, nor their ids."""
    store = Indexed()
    with_rounds(store, 40)
    monkeypatch.setattr("memory.log.round_store.MAX_ROUNDS", 5)
    monkeypatch.setattr("memory.log.round_store.MAX_NUMBERS", 7)
    archive = StoredRounds(store, "s")
    archive.add_closed(0, list(rebuild_rounds(store.read("s")).values()))
    for number in range(1, 41):
        assert archive.find_number(str(number)) == number
        assert len(archive.numbers) <= 7
    assert len(archive._cache) == 5
    assert archive.find_number("none") == 0


def test_what_settles_in_this_process_need_not_be_read() -> None:
    """The newest rounds are at hand for prompts."""
    store = Indexed()
    memory = with_rounds(store, 9)
    store.handed_out = 0
    assert [round_.post_list[0].message for round_ in memory.conversation.rounds[-3:]] == [
        "answer 7",
        "answer 8",
        "answer 9",
    ]
    assert store.handed_out == 0


def test_on_a_plain_store_nothing_is_read_again() -> None:
    """Six methods are enough: then everything is in memory, as it was read at opening."""

    class Once(Plain):
        def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
            assert after == 0, "only what is new is read"
            return super().read(session, after, limit)

    memory = Memory("s", store=Once(with_rounds(InMemoryStore(), 5)._store))
    assert not isinstance(memory.snapshot.archive, StoredRounds)
    assert len(memory.messages(ROLE)) == 10
    assert "answer 3" in memory.reload("r3")


# -- what readers see --------------------------------------------------------------------------------------------------


def test_a_snapshot_answers_as_it_did_whatever_happens_after_it() -> None:
    """The same length, the same rounds, in the same state; only what is erased is gone there too."""
    store = Indexed()
    memory = reopened(store, with_rounds(store, 40))
    before = memory.rounds_getter(ROLE)()
    everything = memory.conversation.rounds
    first, lasting = before[4], list(before)
    memory.finish_round("5", state="failed")
    memory.finish_round("30", state="failed")
    memory.create_round("new", id="new")
    assert (len(before), before[4].state, everything[29].state) == (40, "finished", "finished")
    assert list(before) == lasting
    assert before[4] == first
    now = memory.rounds_getter(ROLE)()
    assert [now[place].number for place in (3, 4, 28, -1)] == [4, 6, 31, 41]
    assert memory.conversation.rounds[4].state == "failed"
    assert shown(memory, ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


def test_a_round_that_cannot_be_read_does_not_hide_its_neighbours() -> None:
    """Whoever asks for that one is told which entry it is; the others are there."""
    store = Indexed()
    memory = with_rounds(store, 5)
    store.redact("s", 8, "{")
    again = reopened(store, memory)
    assert [again.conversation.rounds[place].id for place in (1, 3)] == ["2", "4"]
    with pytest.raises(StoreDamaged, match=r"entry 8 \(post added\)"):
        again.conversation.rounds[2]


def test_a_fault_of_the_store_is_told_to_the_reader_and_spoils_nothing() -> None:
    """The next reading asks again; writing goes on."""
    store = Indexed()
    memory = reopened(store, with_rounds(store, 30))
    store.fault = Unreachable("gone")
    with pytest.raises(Unreachable):
        memory.conversation.rounds[3]
    assert len(memory.conversation.rounds) == 30
    store.fault = None
    assert memory.conversation.rounds[3].post_list[0].message == "answer 4"


def test_nobody_waits_for_a_reader_who_waits_for_the_store() -> None:
    """No lock is held while the store is asked: neither over the log nor over the cache."""
    store = Indexed()
    memory = reopened(store, with_rounds(store, 60))
    memory.conversation.rounds[-1]
    inside, go_on = threading.Event(), threading.Event()
    read_rounds = store.read_rounds

    def slow(session: str, first: int, last: int) -> Iterator[Entry]:
        inside.set()
        assert go_on.wait(30)
        return read_rounds(session, first, last)

    store.read_rounds = slow  # type: ignore[method-assign]
    found = []
    reader = threading.Thread(target=lambda: found.append(memory.conversation.rounds[0].id))
    reader.start()
    assert inside.wait(30)
    assert memory.conversation.rounds[-1].id == "60"
    memory.create_round("written meanwhile")
    go_on.set()
    reader.join(30)
    assert found == ["1"]


def test_what_was_read_before_an_erasing_is_not_kept_after_it() -> None:
    """A reader who was under way hands nothing on to those who come later."""
    store = Indexed()
    memory = reopened(store, with_rounds(store, 3))
    read_rounds = store.read_rounds

    def overtaken(session: str, first: int, last: int) -> Iterator[Entry]:
        entries = list(read_rounds(session, first, last))
        store.read_rounds = read_rounds  # type: ignore[method-assign]
        memory.redact("r2.p1")
        return iter(entries)

    store.read_rounds = overtaken  # type: ignore[method-assign]
    assert memory.snapshot.get_round_at(1).post_list[0].message == "answer 1"
    assert memory.conversation.rounds[1].post_list[0].message == "[Redacted]"
    assert "answer 2" not in "".join(entry.body for entry in store.read("s"))


@pytest.mark.slow
def test_erasing_in_an_old_round_reads_that_round_and_the_overlays() -> None:
    """Not the whole log: a session of years can forget a word at once."""
    store = Indexed()
    written = with_rounds(store, 200)
    cover(written, 150, "SECRET")
    memory = reopened(store, written)
    memory.conversation.rounds[149]
    store.handed_out = 0
    memory.redact("r150.p1")
    assert store.handed_out < 30
    log = "".join(entry.body for entry in store.read("s"))
    assert "answer 150" not in log
    assert "SECRET" not in log
    assert "answer 149" in log
    assert shown(memory, ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


def test_a_purged_session_says_so_when_an_old_round_is_read() -> None:
    """It is not taken for an empty round."""
    store = Indexed()
    memory = reopened(store, with_rounds(store, 3))
    store.purge("s")
    with pytest.raises(StoreError, match=r"round 2 is not in the log.*purged"):
        memory.conversation.rounds[1]


def test_a_round_that_is_not_opened_in_the_log_is_damage() -> None:
    """Half of a round is never shown."""
    store = Indexed()
    memory = with_rounds(store, 1)
    store.redact("s", 1)
    with pytest.raises(StoreDamaged, match=r"entry 2 of the log is of round 1, which is not there; restore"):
        reopened(store, memory).conversation.rounds[0]


def test_closing_what_is_closed_changes_nothing_also_where_it_is_read_again() -> None:
    """Whoever wrote it: a failed round stays failed, and a finished one is finished once."""
    store = Indexed()
    memory = with_rounds(store, 2)
    memory.finish_round("1", state="failed")
    again = [RoundFinished(round_id=name) for name in ("1", "2")]
    store.append("s", [Entry.of(one, round=int(one.round_id)) for one in again], memory.snapshot.number)
    assert [one.state for one in Memory("s", store=store).conversation.rounds] == ["failed", "finished"]
    assert [live.state for live in rebuild_rounds(store.read("s")).values()] == ["failed", "finished"]


def test_what_a_forked_child_does_first_empties_the_cache_and_makes_new_locks() -> None:
    """Another thread of the parent may have been at work on either."""
    store = Indexed()
    memory = with_rounds(store, 3)
    archive = memory.snapshot.archive
    assert isinstance(archive, StoredRounds)
    with archive._lock:
        archive._after_fork()
        assert memory.conversation.rounds[0].post_list[0].message == "answer 1"
        assert memory.snapshot.find_round("2") is not None


# -- overlays of old rounds --------------------------------------------------------------------------------------------


def test_the_text_of_an_older_compaction_is_read_when_a_revert_makes_it_current() -> None:
    """Until then a session of a thousand publications holds one text a role."""
    store = Indexed()
    memory = with_rounds(store, 9)
    for end in (3, 6, 9):
        cover(memory, end, f"summary {end}")
    again = reopened(store, memory)
    assert "summary 6" not in repr(again.snapshot)
    assert again.journal(ROLE).revert().summary == "summary 6"  # type: ignore[union-attr]
    assert again.get_role_rounds(ROLE)[1].summary == "summary 6"  # type: ignore[union-attr]
    assert again.journal(ROLE).revert().summary == "summary 3"  # type: ignore[union-attr]
    assert again.journal(ROLE).revert() is None


def test_what_others_reverted_is_read_again_where_it_could_not_be_read() -> None:
    """What is in the log counts: the text that is shown instead is read once the store answers."""
    store = Indexed()
    memory = with_rounds(store, 6)
    cover(memory, 3, "first")
    cover(memory, 6, "second")
    reader = reopened(store, memory)
    memory.journal(ROLE).revert()
    read = store.read

    def but_not_one(session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        if limit == 1:
            raise Unreachable("gone")
        return read(session, after, limit)

    store.read = but_not_one  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        reader.refresh()
    assert reader.journal(ROLE).read().current.summary == "second"  # type: ignore[union-attr]
    store.read = read  # type: ignore[method-assign]
    reader.create_round("next")
    assert reader.journal(ROLE).read().current.summary == "first"  # type: ignore[union-attr]
    assert shown(reader, ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


def test_reductions_that_no_prompt_shows_are_not_held_in_memory() -> None:
    """Those of the tail are; after a revert, those that are shown again, too."""
    store = Indexed()
    memory = with_rounds(store, 8)
    memory.create_round("open", id="open")
    for number in (2, 4, 7):
        reduce(memory, number, f"preview {number}")
    assert "preview 2" in repr(memory.snapshot.reductions)
    cover(memory, 5, "summary")
    for one in (memory, reopened(store, memory)):
        held = repr(one.snapshot.reductions)
        assert [f"preview {number}" in held for number in (2, 4, 7)] == [False, False, True]
        by_round = one.rounds_getter(ROLE)().reductions.by_round
        assert [by_round[key][0].text for key in by_round] == ["preview 7"]
        assert one.snapshot.count_reductions(ROLE) == 3
    memory.journal(ROLE).revert()
    store.fault = Unreachable("gone")
    assert memory.rounds_getter(ROLE)().reductions.of("2")[0].text == "preview 2"


def test_a_reduction_whose_entry_is_gone_is_damage() -> None:
    """It is not shown as if the post had never been reduced."""
    store = Indexed()
    memory = with_rounds(store, 3)
    memory.create_round("open", id="open")
    reduce(memory, 1, "preview")
    number = memory.snapshot.number
    cover(memory, 2, "summary")
    store.redact("s", number)
    with pytest.raises(StoreDamaged, match=f"entry {number} of the log is no ReductionPublished"):
        memory.journal(ROLE).revert()
    assert memory.journal(ROLE).read().current is not None


# -- pins --------------------------------------------------------------------------------------------------------------


def with_pins(store: Indexed) -> Memory:
    """Return a Memory of sixty rounds, all but two summarised, with pins in some that are covered."""
    memory = with_rounds(store, 60)
    for number in (3, 21, 40):
        memory.pin(f"r{number}.p1")
    memory.pin("r21.p0")
    memory.pin("r59.p1")
    cover(memory, 58, "the first")
    return memory


SHOWN = ("Planner: answer 3", "User: question 21", "Planner: answer 21", "Planner: answer 40")


@pytest.mark.parametrize("opening", ["by a checkpoint", "from the whole log", "as a follower"])
def test_pins_in_old_rounds_are_shown_though_the_store_is_away(opening: str) -> None:
    """What they say is at hand: a prompt, the state of a journal and each look at the rounds ask no store."""
    store = Indexed()
    memory = with_pins(store)
    if opening == "by a checkpoint":
        memory = reopened(store, memory)
    elif opening == "from the whole log":
        memory = Memory("s", store=store)
    else:
        store = Indexed()
        source, memory = memory, Memory("s", store=store)
        store.append("s", list(source._store.read("s")), 0)
        assert memory.refresh()
    archive = memory.snapshot.archive
    assert isinstance(archive, StoredRounds)
    archive._after_fork()  # which forgets all that was read
    archive.numbers.clear()
    forgetful(memory)
    list(memory.conversation.rounds[-2:])
    store.handed_out, store.fault = 0, Unreachable("gone")
    for _ in range(2):
        rounds, compaction = memory.get_role_rounds(ROLE)
        assert compaction is not None
        assert (compaction.end_index, compaction.pinned, len(rounds)) == (58, SHOWN, 60)
        assert memory.journal(ROLE).read()[:3] == (1, compaction, None)
        assert memory.pins() == ("r3.p1", "r21.p0", "r21.p1", "r40.p1", "r59.p1")
        assert "Planner: answer 21" in str(compose(memory, ROLE, budget=10_000).messages)
    assert store.handed_out == 0


@pytest.mark.parametrize("act", [Memory.pin, Memory.redact])
def test_a_post_is_looked_for_while_others_may_write(act: Callable[[Memory, Post], None]) -> None:
    """Going back through a long session takes its time; under the lock, its round is at hand."""
    store = Indexed()
    memory = with_rounds(store, 100)
    old = memory.conversation.rounds[1].post_list[0]
    memory = reopened(store, memory)
    read_rounds, locked = store.read_rounds, []

    def watched(session: str, first: int, last: int) -> Iterator[Entry]:
        locked.append(memory._lock._is_owned())
        return read_rounds(session, first, last)

    store.read_rounds = watched  # type: ignore[method-assign]
    act(memory, old)
    assert locked[:7] == [False] * 7
    assert not any(locked)
    assert memory.snapshot.number == 301


def test_a_post_whose_reply_was_lost_can_be_pinned() -> None:
    """It is read back first."""
    store = Indexed()
    memory = with_rounds(store, 1)
    memory.create_round("q", id="2")
    store.lost_reply = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        memory.add_post("2", send_from=ROLE, send_to="User", message="m")
    memory.pin("r2.p1")
    assert memory.pins() == ("r2.p1",)


def test_what_was_published_is_returned_though_nothing_can_be_read_after_it() -> None:
    """The append is acknowledged: that the store goes away then is nobody's fault."""
    store = Indexed()
    memory = with_pins(store)
    forgetful(memory)
    append = store.append

    def then_away(session: str, entries: list, after: int) -> int:
        number = append(session, entries, after)
        store.fault = Unreachable("gone")
        return number

    store.append = then_away  # type: ignore[method-assign]
    assert cover(memory, 60, "all").pinned == (*SHOWN, "Planner: answer 59")
    assert memory.journal(ROLE).read().generation == 2


@pytest.mark.parametrize("fault", [StoreDamaged, NewerVersion])
def test_a_pinned_post_that_cannot_be_read_stops_nobody(fault: type[StoreError]) -> None:
    """The prompt says which it is; a store that is away is asked again instead."""
    store = Indexed()
    memory = with_pins(store)
    store.checkpoints["s"] = make_checkpoint(memory.snapshot)
    read_rounds, wrong = store.read_rounds, [fault("entry 9")]

    def damaged(session: str, first: int, last: int) -> Iterator[Entry]:
        if first <= 3 <= last:
            raise wrong[0]
        return read_rounds(session, first, last)

    store.read_rounds = damaged  # type: ignore[method-assign]
    again = Memory("s", store=store)
    shown_pins = ("r3.p1: cannot be read any more", *SHOWN[1:])
    assert again.snapshot.number == memory.snapshot.number
    assert again.get_role_rounds(ROLE)[1].pinned == shown_pins  # type: ignore[union-attr]
    memory.unpin("r3.p1")
    memory.pin("r3.p1")
    assert again.refresh()
    assert again.get_role_rounds(ROLE)[1].pinned == shown_pins  # type: ignore[union-attr]
    wrong[0] = Unreachable("gone")
    with pytest.raises(Unreachable):
        Memory("s", store=store)


def test_pins_that_are_not_of_the_log_are_found_out() -> None:
    """A checkpoint of another log is passed over, and a log that says such a thing is at fault."""
    store = Indexed()
    memory = with_rounds(store, 3)
    memory.pin("r2.p1")
    made = make_checkpoint(memory.snapshot)
    store.checkpoints["s"] = made._replace(body=made.body.replace('["2",1,2]', '["2",1,9]'))
    assert store.checkpoints["s"] != made
    assert Memory("s", store=store).pins() == ("r2.p1",)
    store.append("s", [Entry.of(PostPinned(round_id="9", number=1, pinned=True))], memory.snapshot.number)
    with pytest.raises(StoreError, match="pins in a round that is not there"):
        memory.refresh()


# -- many overlays -----------------------------------------------------------------------------------------------------


class Counted(Indexed):
    """Counts the times that it is asked, and whether the Memory is locked then."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []
        self.memory: Memory | None = None

    def _out(self, entries: list[Entry]) -> Iterator[Entry]:
        self.asked.append(self.memory is not None and self.memory._lock._is_owned())
        return super()._out(entries)


def reduced(store: Counted, *, spread: bool) -> Memory:
    """Return a Memory of forty rounds, each with a reduction; two compactions cover thirty of them."""
    memory = Memory("s", store=store)
    for number in range(1, 41):
        memory.create_round(f"question {number}", id=str(number))
        for _ in range(BATCH + 1 if spread else 1):
            memory.add_post(str(number), send_from=ROLE, send_to="User", message=f"answer {number}")
        memory.finish_round(str(number))
        if spread:
            reduce(memory, number, f"shorter {number}")
    if not spread:
        for number in range(1, 41):
            reduce(memory, number, f"shorter {number}")
    cover(memory, 10, "the first ten")
    cover(memory, 30, "the first thirty")
    return memory


def taken_back(memory: Memory) -> None:
    assert memory.journal(ROLE).revert(base=2) is not None


@pytest.mark.slow
@pytest.mark.parametrize("spread", [False, True], ids=["side by side", "far apart"])
@pytest.mark.parametrize("act", [taken_back, lambda memory: memory.redact("r20.p1")], ids=["revert", "redact"])
def test_covered_reductions_are_read_in_one_go_while_others_may_write(
    act: Callable[[Memory], None], spread: bool
) -> None:
    """What a revert or an erasing shows again costs a few questions, however much it is, and none under the lock."""
    store = Counted()
    memory = reopened(store, reduced(store, spread=spread))
    store.asked, store.memory = [], memory
    act(memory)
    assert len(store.asked) < 10
    assert not any(store.asked)
    live = memory.rounds_getter(ROLE)().reductions
    erased = {"20"} if memory.snapshot.redactions else set()
    assert live.by_round.keys() == {str(number) for number in range(11, 41)} - erased
    assert memory.snapshot.count_reductions(ROLE) == 40 - len(erased)
    store.asked = []
    assert [live.of(str(number))[0].text for number in (11, 19, 30, 40)] == [f"shorter {n}" for n in (11, 19, 30, 40)]
    assert store.asked == []
    assert shown(memory, ROLE) == shown(Memory("s", store=Plain(store)), ROLE)


@pytest.mark.parametrize("spread", [False, True], ids=["side by side", "far apart"])
def test_opening_reads_the_reductions_of_the_tail_in_one_go(spread: bool) -> None:
    """And how many there are in all is known without reading any."""
    store = Counted()
    memory = reduced(store, spread=spread)
    store.checkpoints["s"] = make_checkpoint(memory.snapshot)
    store.asked = []
    again = Memory("s", store=store)
    assert len(store.asked) < 6
    store.fault = Unreachable("gone")
    assert again.snapshot.count_reductions(ROLE) == 40
    assert again.snapshot.count_reductions("Other") == 0


def test_what_a_log_says_of_old_rounds_is_followed_without_looking_for_their_numbers() -> None:
    """Each entry says which round it is about: a long tail of reductions is one reading."""
    store = Counted()
    memory = with_rounds(store, 40)
    store.checkpoints["s"] = make_checkpoint(memory.snapshot)
    for number in range(1, 31):
        reduce(memory, number, f"shorter {number}")
    memory.pin("r35.p1")
    looked_for: list[str] = []
    original = store.find_round_number

    def watched(session: str, round_id: str) -> int:
        looked_for.append(round_id)
        return original(session, round_id)

    store.find_round_number = watched  # type: ignore[method-assign]
    again = Memory("s", store=store)
    assert looked_for == []
    assert again.snapshot.count_reductions(ROLE) == 30
    assert again.pins() == ("r35.p1",)


def test_a_revert_is_through_though_the_store_goes_away_after_it() -> None:
    """All that it shows was read before it was written."""
    store = Counted()
    memory = reopened(store, reduced(store, spread=True))
    append = store.append

    def then_away(session: str, entries: list, after: int) -> int:
        number = append(session, entries, after)
        store.fault = Unreachable("gone")
        return number

    store.append = then_away  # type: ignore[method-assign]
    taken_back(memory)
    assert memory.journal(ROLE).read().current.summary == "the first ten"  # type: ignore[union-attr]


def test_a_damaged_neighbour_does_not_hide_a_reduction() -> None:
    """They are read one by one then, and the damaged one is named."""
    store = Indexed()
    memory = with_rounds(store, 3)
    for number in (1, 2, 3):
        reduce(memory, number, f"shorter {number}")
    first = memory.snapshot.number - 2
    store.redact("s", first + 1, "{")
    archive = StoredRounds(store, "s")
    assert [one.reduction.text for one in archive.read_records([first + 2, first], ReductionPublished).values()] == [
        "shorter 1",
        "shorter 3",
    ]
    with pytest.raises(StoreDamaged, match=f"entry {first + 1} "):
        archive.read_records([first, first + 1], ReductionPublished)
