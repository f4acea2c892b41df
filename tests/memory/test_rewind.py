"""Going on from an earlier place: what is undone is told nowhere, and the log keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run

from memory import (
    CompactedMessage,
    Event,
    InMemoryStore,
    Memory,
    Recall,
    Reduction,
    Rewound,
    RoundClosed,
    StaleCompaction,
    Store,
    UnknownReference,
    open_store,
)

ROLE = "assistant"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield InMemoryStore()
        return
    opened = open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    yield opened
    opened.close()


def say(memory: Memory, *words: str) -> None:
    """Add a round a word: the user says it, and the assistant answers with it."""
    for word in words:
        memory.append({"role": "user", "content": f"What of {word}?"})
        memory.append({"role": "assistant", "content": f"This of {word}."})


def call(memory: Memory, *results: str) -> None:
    """Add a call of a tool for each result, all in one message, and the results."""
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": json.dumps({"for": name})}}
        for name in results
    ]
    memory.append({"role": "assistant", "content": None, "tool_calls": calls})
    for name in results:
        memory.append({"role": "tool", "tool_call_id": name, "content": f"found {name}"})


def shown(memory: Memory) -> str:
    """Return all that a role reads of *memory*, and all that it can look up."""
    rounds, compaction = memory.get_role_rounds(ROLE)
    parts = [str(memory.messages()), str(list(rounds)), str(compaction), str(memory.pins())]
    recall = Recall(memory, ROLE)
    for number in range(1, len(memory.conversation.rounds) + 1):
        parts += [recall.call("read_rounds", {"start": number}), recall.call("context_reload", {"ref": f"r{number}"})]
    parts += [str(memory.search(word, role=role)) for word in ("apple", "birch", "cedar") for role in ("", ROLE)]
    return "\n".join(parts)


def publish(memory: Memory, end: int, summary: str) -> CompactedMessage:
    """Publish a compaction of all rounds up to number *end*."""
    journal = memory.journal(ROLE)
    rounds = [one for one in memory.conversation.rounds if one.number <= end and one.state == "finished"]
    made = CompactedMessage(start_index=1, end_index=len(rounds), summary=summary, end_round_id=rounds[-1].id)
    return journal.publish(made, base=journal.read().generation, round_ids=[one.id for one in rounds])


def test_history_goes_on_from_a_round(store: Store) -> None:
    """The rounds behind it are hidden, and the next message comes after it."""
    memory = Memory("s", store=store)
    say(memory, "apple", "birch", "cedar")
    before = memory.messages()[:2]
    assert memory.rewind("r1") == ("r2", "r3")
    assert memory.messages() == before
    assert [one.state for one in memory.conversation.rounds] == ["finished", "undone", "undone"]
    assert "birch" in memory.reload("r2"), "the host reads it, by no role's name"
    say(memory, "dogwood")
    assert [one.user_query for one in memory.get_role_rounds(ROLE)[0]] == ["What of apple?", "What of dogwood?"]
    assert "birch" not in shown(memory)
    assert "cedar" not in shown(memory)
    assert memory.messages() == Memory("s", store=store).messages()


def test_history_goes_on_from_a_post(store: Store) -> None:
    """Its round is undone as a whole, and an open one begins with copies of the posts up to there."""
    memory = Memory("s", store=store)
    say(memory, "apple")
    call(memory, "birch")
    memory.append({"role": "assistant", "content": "cedar"})
    memory.pin("r1.p1")
    before, posts = memory.messages(), memory.conversation.rounds[0].post_list
    assert memory.rewind("r1.p3") == ("r1",)
    assert memory.messages() == before[:-1]
    assert [(one.state, len(one.post_list)) for one in memory.conversation.rounds] == [("undone", 4), ("created", 3)]
    assert memory.conversation.rounds[1].post_list == posts[:3]
    assert memory.pins() == ("r2.p1",)
    memory.append({"role": "assistant", "content": "dogwood"})
    assert memory.messages() == [*before[:-1], {"role": "assistant", "content": "dogwood"}]
    assert "cedar" not in shown(memory)
    assert memory.rewind("r2.p0") == ("r2",)
    assert memory.messages() == before[:1]
    assert memory.rewind("r3.p0") == (), "that is where it ends"


def test_the_end_of_an_open_round_is_no_copy() -> None:
    """Only the rounds behind it are undone, and it takes the next message."""
    memory = Memory()
    first = memory.create_round("apple", id="1")
    memory.add_post(first, send_from=ROLE, send_to="User", message="birch")
    other = Memory("other", store=InMemoryStore())
    assert other.rewind("r0") == ()
    store = memory._store
    second = Memory(memory.session_id, store=store)
    late = second.create_round("cedar")
    memory.refresh()
    assert memory.rewind("r1.p1") == ("r2",)
    memory.append({"role": "assistant", "content": "dogwood"})
    assert [one.message for one in memory.conversation.rounds[0].post_list] == ["birch", "dogwood"]
    with pytest.raises(RoundClosed, match="round 2 is closed"):
        second.add_post(late, send_from=ROLE, send_to="User", message="late")
    with pytest.raises(RoundClosed, match="stays undone"):
        second.finish_round(late)
    assert second.finish_round(late, state="failed").state == "undone", "it is hidden already"


def test_history_begins_anew() -> None:
    """``r0`` undoes every round. The header stays."""
    memory = Memory()
    memory.append({"role": "system", "content": "Be brief."})
    say(memory, "apple", "birch")
    assert memory.rewind("r0") == ("r1", "r2")
    assert memory.messages() == [{"role": "system", "content": "Be brief."}]
    assert memory.rewind("r0") == ()


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        ("r9", "there is no r9: this session has 5 rounds"),
        ("r5.p9", "there is no r5.p9"),
        ("r0.p0", "there is no r0.p0"),
        ("r1-r2", "several posts or rounds"),
        ("r5.p1-p2", "several posts or rounds"),
        ("here", "not a reference"),
        ("r2", "round 2 has failed"),
        ("r3", "round 3 was undone: nothing goes on from r3; give a reference"),
        ("r3.p1", "round 3 was undone"),
        ("r5.p2", r"r5.p2 stands between a call and its results; give r5.p1, before the call"),
        ("r5.p3", r"give r5.p1, before the call"),
    ],
)
def test_a_place_that_is_none_is_refused(ref: str, why: str) -> None:
    """With the reason and the remedy, and nothing is written."""
    memory = Memory()
    say(memory, "apple", "birch", "cedar")
    memory.rewind("r2")
    memory.finish_round(memory.conversation.rounds[1], state="failed")
    say(memory, "dogwood", "elm")
    call(memory, "one", "two")
    number = memory.snapshot.number
    with pytest.raises(UnknownReference, match=why):
        memory.rewind(ref)
    assert memory.snapshot.number == number
    assert memory.rewind("r5.p4") == ()


def test_the_newest_compaction_that_tells_of_nothing_undone_is_shown_again(store: Store) -> None:
    """Also after a resume; one that ends before the place stays."""
    memory = Memory("s", store=store)
    say(memory, "apple", "birch", "cedar", "dogwood", "elm")
    for end, summary in ((1, "of apple"), (2, "of birch"), (4, "of cedar")):
        publish(memory, end, summary)
    assert memory.rewind("r4") == ("r5",)
    assert "of cedar" in str(memory.get_role_rounds(ROLE)[1])
    memory.rewind("r3")
    for one in (memory, Memory("s", store=store)):
        rounds, compaction = one.get_role_rounds(ROLE)
        assert compaction is not None
        assert (compaction.summary, compaction.end_index, len(rounds)) == ("of birch", 2, 3)
    memory.rewind("r2.p1")
    assert "birch" not in str(memory.get_role_rounds(ROLE)[1])
    assert [one.happened for one in memory.journal(ROLE).history()] == [*["published"] * 3, *["withdrawn"] * 2]
    say(memory, "fir")
    assert publish(memory, 6, "anew").end_index == 2


def test_what_was_made_from_undone_rounds_cannot_be_published() -> None:
    """A compaction of them that comes later is refused, and so is a reduction."""
    memory = Memory()
    say(memory, "apple", "birch", "cedar")
    journal, rounds = memory.journal(ROLE), list(memory.conversation.rounds)
    memory.rewind("r1")
    late = CompactedMessage(start_index=1, end_index=2, summary="of birch", end_round_id=rounds[1].id)
    with pytest.raises(StaleCompaction, match="rounds_changed"):
        journal.publish(late, base=0, round_ids=[one.id for one in rounds[:2]])
    answer = rounds[1].post_list[0]
    with pytest.raises(StaleCompaction, match="rounds_changed"):
        journal.reduce(Reduction.over(rounds[1], (answer, answer), "dropped", ""), base=0)


def test_a_reduced_query_that_is_the_newest_again_is_shown() -> None:
    """The user's newest words stand in every prompt."""
    memory = Memory()
    say(memory, "apple", "birch", "cedar")
    first = memory.conversation.rounds[0]
    hidden = Reduction.over(first, (None, first.post_list[-1]), "summarised", "short")
    assert memory.journal(ROLE).reduce(hidden, base=0) is not None
    memory.rewind("r1")
    assert not memory.get_role_rounds(ROLE)[0].reductions.by_round


def test_reductions_of_posts_that_stay_stay(store: Store) -> None:
    """They were paid for. The reference in their text names the copy; results that nobody has read yet are whole."""
    memory = Memory("s", store=store)
    say(memory, "apple")
    for name in ("birch", "cedar", "dogwood"):
        call(memory, name)
    memory.append({"role": "assistant", "content": "elm"})
    round_ = memory.conversation.rounds[0]
    for number in (3, 5, 7):
        ends, text = (round_.post_list[number - 1],) * 2, f"short of r1.p{number}, as r1.p31 and bar1.p3"
        assert memory.journal(ROLE).reduce(Reduction.over(round_, ends, "offloaded", text), base=0) is not None
    memory.rewind("r1.p5")
    for one in (memory, Memory("s", store=store)):
        (copied,) = one.get_role_rounds(ROLE)[0]
        live = one.get_role_rounds(ROLE)[0].reductions.of(copied.id)
        assert [(a.last_number, a.text) for a in live] == [(3, "short of r2.p3, as r1.p31 and bar1.p3")]
    assert memory.reload("r2.p3", role=ROLE) == "found birch"
    memory.redact("r1.p3")
    left = "".join(entry.body for entry in store.read("s"))
    assert ("of r1.p3," in left, "of r2.p3," in left, "of r1.p5," in left) == (False, False, True)


def test_hooks_hear_of_it_in_every_process(store: Store) -> None:
    """One event, with references and no words; where others wrote, when their entries are read."""
    memory, other = Memory("s", store=store), Memory("s", store=store)
    heard: list[tuple[str, Event]] = []
    memory.on_event(lambda event: heard.append(("own", event)))
    other.on_event(lambda event: heard.append(("other", event)))
    say(memory, *["apple"] * 300)
    other.refresh()
    gone = memory.rewind("r10")
    assert gone == tuple(f"r{number}" for number in range(11, 301))
    assert memory.rewind("r10") == ()
    assert other.refresh()
    assert [(who, type(event), event.facts()["references"]) for who, event in heard] == [
        ("own", Rewound, gone),
        ("other", Rewound, gone),
    ]
    assert other.messages() == memory.messages()
    assert len(other.messages()) == 20


def test_an_erased_post_is_erased_in_copies_and_originals(store: Store) -> None:
    """Whichever of them is named."""
    for named in ("r1.p1", "r2.p1", "r3.p1"):
        memory = Memory(named, store=store)
        say(memory, "apple")
        memory.append({"role": "assistant", "content": "birch"})
        memory.rewind("r1.p1")
        memory.append({"role": "assistant", "content": "cedar"})
        memory.append({"role": "assistant", "content": "dogwood"})
        memory.rewind("r2.p2")
        memory.redact(named)
        assert memory.redacted() == ("r1.p1", "r2.p1", "r3.p1")
        left = "".join(entry.body for entry in store.read(named))
        assert ("of apple." in left, "birch" in left, "cedar" in left) == (False, True, True)
        memory.redact("r3.p0")
        assert "apple" not in "".join(entry.body for entry in store.read(named))


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_copies_of_a_session_say_the_same(store: Store, tmp_path: Path) -> None:
    """As plain values, through a file and as a fork, with the states of all rounds."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    memory = Memory("s", store=store)
    say(memory, "apple", "birch", "cedar")
    publish(memory, 2, "of birch")
    memory.rewind("r2.p0")
    say(memory, "dogwood")
    run("export", "s", "--store", url, "--to", tmp_path / "s.jsonl")
    assert run("import", tmp_path / "s.jsonl", "--as", "t", "--store", url).code == 0
    copies = [
        Memory.from_state_dict(json.loads(json.dumps(memory.state_dict()))),
        Memory("t", store=store),
        memory.fork(4),
    ]
    for one in copies:
        assert one.messages() == memory.messages()
        assert [(a.id, a.state) for a in one.conversation.rounds] == [
            (a.id, a.state) for a in memory.conversation.rounds
        ]
        assert one.get_role_rounds(ROLE)[1] is None
        assert "of birch." not in shown(one)
    assert copies[0].conversation.rounds[1].state == "undone"
    early = memory.fork(2)
    assert [one.state for one in early.conversation.rounds] == ["finished", "undone"]
    early.redact("r2.p0")
    assert early.redacted() == ("r2.p0",), "the copy is not in this session"


def test_a_checkpoint_knows_what_was_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is opened from one shows the same, and erases copies too."""
    monkeypatch.setattr("memory.log.session_log.CHECKPOINT_EVERY", 1)
    with closing(open_store(f"sqlite:///{tmp_path / 'chat.db'}")) as store:
        memory = Memory("s", store=store)
        say(memory, "apple", "birch", "cedar")
        memory.finish_round(memory.conversation.rounds[1], state="failed")
        left_open = Memory("s", store=store)  # so that undone rounds stand behind an open one
        memory.rewind("r3.p0")
        late = left_open.create_round("dogwood")
        memory.refresh()
        memory.rewind("r4.p0")
        again = Memory("s", store=store)
        assert store.get_checkpoint("s") is not None
        states = ["finished", "failed", "undone", "created", "undone"]
        assert [one.state for one in again.conversation.rounds] == states
        assert [one.state for one in memory.conversation.rounds] == states
        assert again.messages() == memory.messages()
        assert again.conversation.rounds[4].id == late.id
        again.redact("r4.p0")
        assert again.redacted() == ("r3.p0", "r4.p0")


def test_older_versions_refuse_a_session_with_undone_rounds(store: Store) -> None:
    """The entry has a version that they do not know; a session without one stays readable."""
    memory = Memory("s", store=store)
    say(memory, "apple", "birch")
    assert {entry.version for entry in store.read("s")} == {1}
    memory.rewind("r1")
    assert [entry.version for entry in store.read("s") if entry.kind == "round undone"] == [2]
