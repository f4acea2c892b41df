"""Memory appends what happened to one log, and never changes it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from logged import entry, record

from memory import (
    Attachment,
    CompactedMessage,
    Conflict,
    ContextError,
    Entry,
    InMemoryStore,
    Memory,
    MessageError,
    Post,
    Round,
    RoundClosed,
    StoreError,
    ToolCall,
)


class BrokenStore(InMemoryStore):
    """Raises ``fault`` at the next append: before anything is written, or after all of it is."""

    fault: BaseException | None = None
    after_writing = False

    def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
        fault, self.fault = self.fault, None
        if fault is not None and not self.after_writing:
            raise fault
        number = super().append(session, entries, after)
        if fault is not None:
            raise fault
        return number


def kinds(store: InMemoryStore, session: str = "s") -> list[str]:
    return [entry.kind for entry in store.read(session)]


def say(memory: Memory, round_: Round | str, message: str = "m") -> Post:
    return memory.add_post(round_, send_from="Planner", send_to="User", message=message)


def said(memory: Memory) -> list[list[str]]:
    return [[post.message for post in round_.post_list] for round_ in memory.conversation.rounds]


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the most memory that *work* held at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_a_round_is_opened_filled_and_finished() -> None:
    """The quick start: create_round, add_post, finish_round, read."""
    memory = Memory("session-1")
    round_ = memory.create_round("user query")
    assert (round_.user_query, round_.state, round_.number, round_.post_list) == ("user query", "created", 1, ())
    post = memory.add_post(round_, send_from="Planner", send_to="User", message="hello")
    closed = memory.finish_round(round_)
    assert (closed.id, closed.state, closed.post_list) == (round_.id, "finished", (post,))
    assert list(memory.conversation.rounds) == [closed]
    assert memory.session_id == "session-1"


def test_rounds_are_numbered_from_one_in_the_log() -> None:
    """Numbers are what references and models go by, so failed rounds keep theirs."""
    memory = Memory()
    for number in range(1, 6):
        round_ = memory.create_round("q")
        assert round_.number == number
        memory.finish_round(round_, state="failed" if number % 2 else "finished")
    assert [round_.number for round_ in memory.conversation.rounds] == [1, 2, 3, 4, 5]


def test_posts_are_numbered_from_one_in_their_round() -> None:
    """A post's number in its round is its place in a reference."""
    memory = Memory()
    for _ in range(2):
        round_ = memory.create_round("q")
        assert [say(memory, round_).number for _ in range(3)] == [1, 2, 3]


def test_opening_a_round_finishes_the_one_before() -> None:
    """A host that forgets to finish a round does not stop compaction for ever."""
    memory = Memory()
    first = memory.create_round("one")
    memory.create_round("two")
    assert [round_.state for round_ in memory.conversation.rounds] == ["finished", "created"]
    with pytest.raises(RoundClosed):
        say(memory, first)


def test_opening_a_round_leaves_a_failed_one_failed() -> None:
    """Only what is open is finished."""
    memory = Memory()
    memory.finish_round(memory.create_round("one"), state="failed")
    memory.create_round("two")
    assert [round_.state for round_ in memory.conversation.rounds] == ["failed", "created"]


def test_a_round_may_be_given_by_its_id() -> None:
    """Hosts keep ids, not records."""
    memory = Memory()
    assert memory.create_round("q", id="mine", extra={"k": [1]}).id == "mine"
    assert say(memory, "mine").number == 1
    assert memory.finish_round("mine").extra == {"k": (1,)}


def test_an_id_is_taken_once() -> None:
    """Two rounds of one id could not be told apart; nothing is written."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.create_round("q", id="mine")
    with pytest.raises(MessageError, match="give another id"):
        memory.create_round("another", id="mine")
    assert kinds(store) == ["round opened"]


def test_unknown_rounds_are_key_errors_with_the_remedy() -> None:
    """A round of another session is not silently written to."""
    memory, other = Memory(), Memory().create_round("q")
    for write in (lambda: say(memory, other), lambda: memory.finish_round(other), lambda: say(memory, "nonsense")):
        with pytest.raises(KeyError, match="create_round"):
            write()
    assert len(memory.conversation.rounds) == 0


# -- closing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["finished", "failed"])
@pytest.mark.parametrize("behind_an_open_one", [False, True])
def test_a_closed_rounds_posts_never_change(state: str, behind_an_open_one: bool) -> None:
    """Adding to one raises and writes nothing, wherever it stands."""
    store = InMemoryStore()
    if behind_an_open_one:
        Memory("s", store=store).create_round("still open elsewhere")
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    say(memory, round_)
    memory.finish_round(round_, state=state)
    before = kinds(store)
    with pytest.raises(RoundClosed, match=r"round \d is closed.*nothing was written"):
        say(memory, round_)
    assert kinds(store) == before
    assert len(memory.conversation.rounds[-1].post_list) == 1


def test_finishing_twice_changes_nothing() -> None:
    """A retried call is harmless."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    assert memory.finish_round(round_) == memory.finish_round(round_)
    assert memory.finish_round(round_, state="failed") == memory.finish_round(round_, state="failed")
    assert kinds(store) == ["round opened", "round closed", "round failed"]


def test_a_finished_round_may_still_fail_and_a_failed_one_stays_failed() -> None:
    """Failing hides a round; nothing brings it back."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.finish_round(round_)
    assert memory.finish_round(round_, state="failed").state == "failed"
    with pytest.raises(RoundClosed, match="stays failed"):
        memory.finish_round(round_)
    assert memory.conversation.rounds[0].state == "failed"


@pytest.mark.parametrize("state", ["created", "done", "", None])
def test_a_round_ends_finished_or_failed(state: str) -> None:
    """It cannot be opened again."""
    memory = Memory()
    round_ = memory.create_round("q")
    with pytest.raises(ValueError, match="'finished' or 'failed'"):
        memory.finish_round(round_, state=state)
    assert memory.conversation.rounds[0].state == "created"


# -- posts -------------------------------------------------------------------------------------------------------------


def test_a_post_carries_everything_a_message_may_have() -> None:
    """Tool calls, results, attachments, kind and extra values are fields of a post."""
    memory = Memory()
    round_ = memory.create_round("q")
    post = memory.add_post(
        round_,
        send_from="Planner",
        send_to="tool",
        attachment_list=[Attachment(type="plan", content="1.")],
        tool_calls=[ToolCall(id="c", name="f", arguments="{}")],
        tool_call_id="c0",
        kind="tool_result",
        extra={"k": {"v": [1]}},
    )
    assert memory.conversation.rounds[0].post_list == (post,)
    assert (post.attachment_list[0].type, post.tool_calls[0].name, post.tool_call_id) == ("plan", "f", "c0")
    assert (post.kind, post.extra) == ("tool_result", {"k": {"v": (1,)}})


def test_a_ready_post_is_added_as_it_is_with_its_number() -> None:
    """A host that makes its own records keeps their ids and stamps."""
    memory = Memory()
    round_ = memory.create_round("q")
    post = Post(send_from="a", send_to="b", message="m", number=99)
    say(memory, round_)
    assert memory.add_post(round_, post) == post.model_copy(update={"number": 2})
    assert post.number == 99


def test_a_ready_post_and_fields_together_are_refused() -> None:
    """One of the two would be dropped silently."""
    memory = Memory()
    round_ = memory.create_round("q")
    with pytest.raises(TypeError, match="not both"):
        memory.add_post(round_, Post(send_from="a", send_to="b"), message="more")
    with pytest.raises(TypeError, match="by name"):
        memory.add_post(round_, "hello")
    assert said(memory) == [[]]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"send_from": "a", "message": "swordfish"}, "send_to: is missing"),
        ({"send_to": "b"}, "send_from: is missing"),
        ({"send_from": "a", "send_to": "b", "message": b"swordfish"}, "message: "),
        ({"send_from": "a", "send_to": "b", "mesage": "swordfish"}, "mesage: unknown; did you mean 'message'"),
        ({"send_from": "a", "send_to": "b", "extra": {"swordfish": object()}}, "extra: .*object cannot be stored"),
        ({"send_from": "a", "send_to": "b", "tool_calls": [{"id": "c"}]}, r"tool_calls.0.name: is missing"),
        ({"send_from": "a", "send_to": "b", "created_at": "yesterday"}, "created_at: "),
    ],
)
def test_what_is_no_post_is_refused_and_nothing_is_written(fields: dict[str, object], wrong: str) -> None:
    """The error names the field, is one of ours, and shows nothing of what it held."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    with pytest.raises(MessageError, match=wrong) as raised:
        memory.add_post(round_, **fields)
    assert isinstance(raised.value, ContextError)
    assert "swordfish" not in str(raised.value)
    assert kinds(store) == ["round opened"]


@pytest.mark.parametrize("query", [None, 7, b"bytes", ["q"]])
def test_a_query_is_text(query: object) -> None:
    """Parts and the like come in through append()."""
    memory = Memory()
    with pytest.raises(MessageError, match="user_query"):
        memory.create_round(query)
    assert len(memory.conversation.rounds) == 0


def test_a_value_nested_a_hundred_thousand_deep_is_refused() -> None:
    """A clear error now, rather than a crash when the session is saved."""
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"in": deep}
    memory = Memory()
    round_ = memory.create_round("q")
    with pytest.raises(MessageError, match="nested more than"):
        memory.add_post(round_, send_from="a", send_to="b", extra=deep)
    with pytest.raises(MessageError, match="nested more than"):
        memory.create_round("q", extra=deep)
    with pytest.raises(MessageError, match="nested more than"):
        memory.append({"role": "user", "content": "q", "extra_body": deep})
    assert said(memory) == [[]]


def test_a_huge_message_is_kept_whole() -> None:
    """There is no length at which text is cut."""
    memory = Memory()
    text = "x" * 20_000_000 + "end"
    say(memory, memory.create_round(text), text)
    assert memory.conversation.rounds[0].user_query == text
    assert memory.reload("r1.p1") == text


# -- snapshots ---------------------------------------------------------------------------------------------------------


def test_a_snapshot_never_changes() -> None:
    """Whoever holds rounds may read them while others write, fail and close."""
    memory = Memory()
    memory.finish_round(memory.create_round("one"))
    two = memory.create_round("two")
    say(memory, two, "first")
    rounds, seen = memory.conversation.rounds, list(memory.conversation.rounds)
    visible, _ = memory.get_role_rounds("Planner")
    seen_visible = list(visible)

    say(memory, two, "second")
    memory.finish_round(rounds[0], state="failed")
    memory.finish_round(two, state="failed")
    say(memory, memory.create_round("three"))

    assert list(rounds) == seen
    assert list(visible) == seen_visible
    assert [round_.state for round_ in rounds] == ["finished", "created"]
    assert len(memory.conversation.rounds) == 3


def test_rounds_are_a_read_only_sequence() -> None:
    """They behave as a sequence does: indices, slices, membership, comparison; and cannot be assigned to."""
    memory = Memory()
    made = [memory.finish_round(memory.create_round(str(number))) for number in range(5)]
    rounds = memory.conversation.rounds
    assert rounds == made
    assert rounds != made[:4]
    assert rounds != "rounds"
    assert rounds != 5
    assert (rounds[0], rounds[-1], rounds[1:3], rounds[::-2]) == (made[0], made[4], tuple(made[1:3]), tuple(made[::-2]))
    assert rounds.index(made[2]) == 2
    assert made[3] in rounds
    assert list(reversed(rounds)) == made[::-1]
    for index in (5, -6):
        with pytest.raises(IndexError, match="there are 5"):
            rounds[index]
    with pytest.raises(TypeError):
        rounds[0] = made[0]
    with pytest.raises(TypeError):
        hash(rounds)
    assert repr(rounds) == "<Rounds role='' length=5>"


def test_the_2500th_post_costs_what_the_first_did() -> None:
    """Nothing is copied that grows with the round: counted in bytes, so it is the same on any machine."""
    memory = Memory()
    round_ = memory.create_round("q")

    def least_of_ten() -> int:  # the list of posts itself grows now and then
        return min(peak_bytes(lambda: say(memory, round_)) for _ in range(10))

    say(memory, round_)
    first = least_of_ten()
    for _ in range(2_500):
        say(memory, round_)
    assert least_of_ten() < first + 2_000
    assert len(memory.conversation.rounds[0].post_list) == 2_521


def test_appending_the_2500th_message_costs_what_the_first_did() -> None:
    """Also where the user alone speaks, and nobody answers."""
    memory = Memory()

    def least_of_ten() -> int:
        return min(peak_bytes(lambda: memory.append({"role": "user", "content": "x"})) for _ in range(10))

    memory.append({"role": "user", "content": "x"})
    first = least_of_ten()
    for _ in range(2_500):
        memory.append({"role": "user", "content": "x"})
    assert least_of_ten() < first + 2_000
    assert len(memory.messages()) == 2_521


# -- what is passed in -------------------------------------------------------------------------------------------------


def test_time_and_ids_can_be_passed_in() -> None:
    """So tests of hosts need no patching. What one call writes bears one time."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    minutes, ids, store = count(), count(1), InMemoryStore()
    memory = Memory(store=store, clock=lambda: noon + timedelta(minutes=next(minutes)), new_id=lambda: f"id{next(ids)}")
    round_ = memory.create_round("q")
    post = say(memory, round_)
    assert (memory.session_id, round_.id, post.id) == ("id1", "id2", "id3")
    stamps = [round_.created_at, post.created_at, *(entry.created_at for entry in store.read("id1"))]
    assert {(stamp - noon) // timedelta(minutes=1) for stamp in stamps} == {0, 1}


@pytest.mark.parametrize(("drawn", "named"), [(["post 2", 2], "round_id"), ([2, "round 2"], "Post.*id")])
def test_an_id_that_is_no_text_is_refused_whatever_it_was_drawn_for(drawn: list[Any], named: str) -> None:
    """Also with a message that opens no round; nothing is written then."""
    ids: list[Any] = ["post 1", "round 1", *drawn]
    memory = Memory("s", new_id=lambda: ids.pop(0))
    memory.append({"role": "user", "content": "What is there?"})
    with pytest.raises(MessageError, match=named):
        memory.append({"role": "assistant", "content": "Nothing."})
    assert memory.messages() == [{"role": "user", "content": "What is there?"}]


@pytest.mark.parametrize("clock", [lambda: "noon", lambda: None])
def test_a_stamp_that_is_none_is_refused(clock: Any) -> None:
    """By whatever writes first; nothing is written then."""
    memory = Memory("s", clock=clock)
    with pytest.raises(MessageError, match="created_at"):
        memory.append({"role": "user", "content": "q"})
    with pytest.raises(MessageError, match="created_at"):
        memory.create_round("q")
    assert memory.messages() == []


def test_sessions_without_a_name_are_apart() -> None:
    """Two Memories over one store share nothing unless they are told to."""
    store = InMemoryStore()
    one, two = Memory(store=store), Memory(store=store)
    one.create_round("q")
    assert one.session_id != two.session_id
    assert len(Memory(two.session_id, store=store).conversation.rounds) == 0


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_session_that_exists_is_resumed() -> None:
    """Rounds, posts, states, header and compactions are those that were written, ids included."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.append({"role": "system", "content": "be brief"})
    for state in ("finished", "failed", "finished"):
        round_ = memory.create_round("q")
        say(memory, round_)
        memory.finish_round(round_, state=state)
    end = memory.conversation.rounds[2]
    memory.journal("Planner").publish(
        CompactedMessage(start_index=1, end_index=2, end_round_id=end.id, summary="s"), base=0, round_ids=[end.id]
    )
    say(memory, memory.create_round("open"))

    resumed = Memory("s", store=store)
    assert resumed.conversation.rounds == memory.conversation.rounds
    assert resumed.header == memory.header
    assert resumed.get_role_rounds("Planner") == memory.get_role_rounds("Planner")
    assert resumed.journal("Planner").read() == memory.journal("Planner").read()
    assert resumed.messages() == memory.messages()


def test_an_open_round_of_the_process_before_can_be_continued() -> None:
    """A host that was restarted in the middle of a round goes on in it."""
    store = InMemoryStore()
    left = Memory("s", store=store).create_round("q")
    memory = Memory("s", store=store)
    assert say(memory, left).number == 1
    assert memory.finish_round(left).state == "finished"


def test_a_round_that_another_memory_opened_is_not_closed() -> None:
    """Another process may be at work in it; compaction goes up to it until somebody finishes it."""
    store = InMemoryStore()
    theirs = Memory("s", store=store).create_round("theirs")
    memory = Memory("s", store=store)
    for _ in range(3):
        memory.create_round("mine")
    rounds = memory.conversation.rounds
    assert [round_.state for round_ in rounds] == ["created", "finished", "finished", "created"]
    assert rounds.closed == 0
    memory.finish_round(theirs)
    assert memory.conversation.rounds.closed == 3


# -- several writers ---------------------------------------------------------------------------------------------------


def test_two_memories_of_one_session_write_one_log() -> None:
    """The one that was behind reads what is new, and appends after it."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    mine, theirs = one.create_round("one"), two.create_round("two")
    assert (mine.number, theirs.number) == (1, 2)
    for turn in range(4):
        say(one, mine, f"one {turn}")
        say(two, theirs, f"two {turn}")
    one.finish_round(mine)
    two.finish_round(theirs)
    one.create_round("three")
    assert said(one) == [[f"one {turn}" for turn in range(4)], [f"two {turn}" for turn in range(4)], []]
    assert [entry.number for entry in store.read("s")] == list(range(1, 14))
    two.create_round("four")
    assert list(two.conversation.rounds[:2]) == list(one.conversation.rounds[:2])


def test_both_may_write_to_one_round() -> None:
    """Its posts are numbered in the log's order, without gaps."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    round_ = one.create_round("q")
    assert [say(memory, round_).number for memory in (two, one, one, two)] == [1, 2, 3, 4]
    assert Memory("s", store=store).conversation.rounds[0].post_list == two.conversation.rounds[0].post_list


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_post_to_a_round_that_was_closed_elsewhere_is_refused(state: str) -> None:
    """Also where this Memory has not heard of it yet; nothing is written."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    round_ = one.create_round("q")
    say(two, round_)
    one.finish_round(round_, state=state)
    before = kinds(store)
    with pytest.raises(RoundClosed):
        say(two, round_)
    assert kinds(store) == before
    assert two.conversation.rounds[0].state == state


def test_a_round_is_closed_once_by_two_memories() -> None:
    """The second sees that it is done, or that it has failed meanwhile."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    first, second = one.create_round("q"), one.create_round("q")
    say(two, second)
    one.finish_round(first, state="failed")
    one.finish_round(second)
    assert two.finish_round(second).state == "finished"
    with pytest.raises(RoundClosed, match="stays failed"):
        two.finish_round(first)
    assert kinds(store) == [
        "round opened",
        "round closed",
        "round opened",
        "post added",
        "round failed",
        "round closed",
    ]


def test_a_round_id_that_was_taken_elsewhere_is_refused() -> None:
    """Ids are unique in the session, not only in the process."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    one.create_round("q", id="mine")
    with pytest.raises(MessageError, match="already"):
        two.create_round("q", id="mine")
    assert kinds(store) == ["round opened"]


# -- when the store fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [StoreError("disk full"), KeyboardInterrupt(), OSError()], ids=lambda one: type(one).__name__
)
def test_a_failed_append_leaves_memory_as_it_was(fault: BaseException) -> None:
    """The error reaches the caller, and the next call works."""
    store = BrokenStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    before = memory.conversation.rounds
    store.fault = fault
    with pytest.raises(type(fault)):
        say(memory, round_, "lost")
    assert memory.conversation.rounds == before
    say(memory, round_, "kept")
    assert said(memory) == said(Memory("s", store=store)) == [["kept"]]


@pytest.mark.parametrize("fault", [OSError("connection lost"), KeyboardInterrupt()], ids=lambda one: type(one).__name__)
def test_an_append_whose_reply_was_lost_is_read_back(fault: BaseException) -> None:
    """What the log has, memory has, from the next write on; and nothing is there twice."""
    store = BrokenStore()
    store.after_writing = True
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    store.fault = fault
    with pytest.raises(type(fault)):
        say(memory, round_, "written")
    say(memory, round_, "next")
    assert said(memory) == said(Memory("s", store=store)) == [["written", "next"]]


def test_a_writer_that_was_interrupted_leaves_nothing_behind() -> None:
    """A post that is in the shared list, but in no snapshot yet, is not shown twice once it is read back."""
    store = BrokenStore()
    store.after_writing = True
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    half_done = Post(send_from="a", send_to="b", message="half done")
    memory.snapshot.open_rounds[1].apply_record(record("post added", round_id=round_.id, post=half_done))
    say(memory, round_, "one")
    say(memory, round_, "two")
    assert said(memory) == [["one", "two"]]


def test_a_purged_session_is_an_error_rather_than_an_endless_loop() -> None:
    """A Memory whose log is gone says so."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    store.purge("s")
    with pytest.raises(StoreError, match=r"purged; go on with a new Memory") as raised:
        say(memory, round_)
    assert isinstance(raised.value.__cause__, Conflict)


# -- what a log may hold -----------------------------------------------------------------------------------------------


def test_entries_of_a_newer_version_are_passed_over() -> None:
    """The session stays readable and writable."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    round_ = memory.create_round("q")
    store.append("s", [Entry("pinned by a newer version", body="{}")], after=1)
    say(memory, round_)
    assert said(memory) == said(Memory("s", store=store)) == [["m"]]


def test_closing_what_is_closed_changes_nothing_also_in_a_log() -> None:
    """Whoever wrote it: each round has one state, and hidden ones are counted once."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for name in ("one", "two"):
        memory.finish_round(memory.create_round(name, id=name), state="failed" if name == "one" else "finished")
    again = [entry("round failed", round_id="one"), *(entry("round closed", round_id=name) for name in ("one", "two"))]
    store.append("s", again, after=4)
    resumed = Memory("s", store=store)
    assert resumed.conversation.rounds == memory.conversation.rounds
    rounds, _ = resumed.get_role_rounds("Planner")
    assert [rounds.find_end(name) for name in ("one", "two")] == [0, 1]


@pytest.mark.parametrize(
    "entries",
    [
        [entry("post added", round_id="none", post=Post(send_from="a", send_to="b"))],
        [
            entry("round closed", round_id="one"),
            entry("post added", round_id="one", post=Post(send_from="a", send_to="b")),
        ],
        [entry("round closed", round_id="none")],
        [entry("round failed", round_id="none")],
    ],
    ids=["post to no round", "post to a closed round", "end of no round", "failure of no round"],
)
def test_a_log_that_makes_no_sense_is_an_error_with_the_remedy(entries: list) -> None:
    """A session is not resumed half."""
    store = InMemoryStore()
    Memory("s", store=store).create_round("q", id="one")
    store.append("s", entries, after=1)
    with pytest.raises(StoreError, match=r"entry \d of the log.*restore the session"):
        Memory("s", store=store)


def test_an_entry_that_cannot_be_read_is_an_error_with_the_remedy() -> None:
    """It names the entry."""
    store = InMemoryStore()
    store.append("s", [Entry("round opened", body="{")], after=0)
    with pytest.raises(StoreError, match=r"entry 1 \(round opened\)"):
        Memory("s", store=store)


def test_a_post_needs_an_id() -> None:
    """An empty one would stand for the round's query wherever posts are named by their ids."""
    memory = Memory()
    round_ = memory.create_round("q")
    with pytest.raises(MessageError, match="needs an id"):
        memory.add_post(round_, id="", send_from="Planner", send_to="User", message="m")
    assert memory.conversation.rounds[0].post_list == ()


def test_what_a_signals_handler_writes_in_the_middle_of_a_write_is_refused() -> None:
    """It would wait for itself for ever; the error says what to do, and the interrupted write goes on."""

    class Interrupted(InMemoryStore):
        handler: Callable[[], object] = staticmethod(lambda: None)

        def append(self, session: str, entries: Sequence[Entry], after: int) -> int:
            self.handler()
            return super().append(session, entries, after)

    store = Interrupted()
    memory = Memory("s", store=store)
    refused: list[str] = []

    def handler() -> None:
        for write in (lambda: memory.append({"role": "user", "content": "from the handler"}), memory.refresh):
            with pytest.raises(RuntimeError, match="set a flag in the handler") as caught:
                write()
            refused.append(str(caught.value))
        assert memory.get_role_rounds("assistant")[1] is None  # readers take no lock

    store.handler = handler  # type: ignore[method-assign]
    memory.append({"role": "user", "content": "before"})
    store.handler = lambda: None  # type: ignore[method-assign]
    memory.append({"role": "assistant", "content": "after"})
    assert len(refused) == 2
    assert [message["content"] for message in memory.messages()] == ["before", "after"]


def test_a_session_is_the_same_on_the_same_store_alone() -> None:
    """Whoever keeps something beside a conversation asks, so as not to write into the conversation itself."""
    store = InMemoryStore()
    memory = Memory("s", store=store)

    assert memory.is_same_session(memory)
    assert memory.is_same_session(Memory("s", store=store))
    assert not memory.is_same_session(Memory("t", store=store))
    assert not memory.is_same_session(Memory("s"))
