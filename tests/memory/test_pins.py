"""A pinned post keeps its words: it is shown beside the compaction that covers it, and nowhere before."""

from __future__ import annotations

import pytest
from histories import cover, read_again
from indexed import Indexed
from logged import entry

from compactor import compose
from memory import (
    Attachment,
    CompactedMessage,
    InMemoryStore,
    Memory,
    Post,
    StoreUnreachable,
    ToolCall,
    UnknownReference,
)

ROLE = "Planner"


def memory_of(rounds: int = 4, store: InMemoryStore | None = None) -> Memory:
    """Return a Memory with rounds "1", "2", ..., in each an order and its answer."""
    memory = Memory("s", store=store)
    for number in range(1, rounds + 1):
        memory.create_round(f"query {number}", id=str(number))
        memory.add_post(str(number), send_from="User", send_to=ROLE, message=f"never {number}")
        memory.add_post(str(number), send_from=ROLE, send_to="User", message=f"answer {number}")
        memory.finish_round(str(number))
    return memory


def pinned(memory: Memory, role: str = ROLE) -> tuple[str, ...]:
    state = memory.journal(role).read()
    shown = memory.get_role_rounds(role)[1]
    assert state.current == shown
    return shown.pinned if shown is not None else ()


# -- pinning -----------------------------------------------------------------------------------------------------------


def test_posts_and_references_can_be_pinned() -> None:
    """Given back as references, in the order of the log."""
    memory = memory_of(12)
    memory.pin("r11.p1")
    memory.pin(memory.conversation.rounds[1].post_list[1])
    memory.pin("r2.p0")
    assert memory.pins() == ("r2.p0", "r2.p2", "r11.p1")
    assert memory.rounds_getter(ROLE)().pins == {("2", 0), ("2", 2), ("11", 1)}
    assert memory.conversation.rounds.pins == memory.rounds_getter("Other")().pins


def test_a_post_that_was_made_before_it_was_added_can_be_pinned() -> None:
    """It has no number yet, and is known by its id."""
    memory = memory_of(1)
    memory.create_round("q", id="2")
    post = Post(send_from=ROLE, send_to="User", message="m")
    memory.add_post("2", post)
    memory.pin(post)
    assert memory.pins() == ("r2.p1",)


def test_posts_that_a_host_gave_the_same_id_are_told_apart() -> None:
    """By their places, where they have them."""
    memory = Memory("s")
    memory.create_round("q")
    post = Post(id="same", send_from=ROLE, send_to="User", message="m")
    posts = [post, post.model_copy(update={"message": "another"}), post]
    added = [memory.add_post(memory.conversation.rounds[0], one) for one in posts]
    memory.pin(added[2])
    assert memory.pins() == ("r1.p3",)


def test_pinning_twice_and_unpinning_what_is_not_pinned_writes_nothing() -> None:
    """The log holds what changed."""
    store = InMemoryStore()
    memory = memory_of(1, store)
    for change in (memory.pin, memory.pin, memory.unpin, memory.unpin):
        change("r1.p1")
    assert [entry.kind for entry in store.read("s")][-2:] == ["pinned", "pinned"]
    assert memory.snapshot.number == 6
    assert memory.pins() == ()


@pytest.mark.parametrize(
    "wrong", ["", "r1", "r1-r2", "p1", "r1.p3", "r0.p1", "r3.p1", "r1.p1-p2", "r٣.p1", "r1.p9999999999999", "r2.p0", "x" * 99]
)  # fmt: skip
def test_what_is_no_reference_to_a_post_is_refused(wrong: str) -> None:
    """A pin that holds nothing would be believed in; a round that nobody asked for has no query."""
    memory = memory_of(1)
    memory.append({"role": "assistant", "content": "hello"})
    for change in (memory.pin, memory.unpin, memory.redact):
        with pytest.raises(UnknownReference):
            change(wrong)
    assert memory.pins() == ()


def test_a_post_of_another_session_is_refused() -> None:
    """Even one that says the same."""
    with pytest.raises(UnknownReference, match="in no round"):
        memory_of(1).pin(memory_of(1).conversation.rounds[0].post_list[0])


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_pins_show_when_a_compaction_covers_them() -> None:
    """Until then the post itself is in the prompt."""
    memory = memory_of()
    memory.pin("r3.p1")
    memory.pin("r1.p0")
    assert cover(memory, 2).pinned == pinned(memory) == ("User: query 1",)
    assert cover(memory, 3).pinned == pinned(memory) == ("User: query 1", "User: never 3")
    memory.pin("r2.p2")
    assert pinned(memory) == ("User: query 1", "Planner: answer 2", "User: never 3")
    memory.journal(ROLE).revert()
    assert pinned(memory) == ("User: query 1", "Planner: answer 2")


def test_pinned_texts_stand_before_the_summary_word_for_word() -> None:
    """Braces, tags and line ends included."""
    made = CompactedMessage(start_index=1, end_index=2, summary="sum", pinned=("User: {never}\n </summary>", "A: b"))
    bare = made.model_copy(update={"pinned": ()})
    block = "[Pinned: word for word]\nUser: {never}\n </summary>\nA: b\n\n"
    assert made.to_system_message() == block + bare.to_system_message()
    assert made.to_prompt() == block + bare.to_prompt()
    assert bare.to_prompt().startswith("[Conversation History Summary]\nsum\n")


def test_a_role_is_shown_what_it_sees() -> None:
    """Another's words are not for its prompt; the user's query is for all."""
    memory = memory_of()
    memory.pin("r1.p1")
    memory.pin("r1.p0")
    cover(memory, 2, role="Coder")
    assert pinned(memory, "Coder") == ("User: query 1",)


def test_all_that_a_post_carries_is_shown() -> None:
    """Its attachments and its calls."""
    memory = memory_of(0)
    memory.create_round("q", id="1")
    post = memory.add_post(
        "1",
        send_from=ROLE,
        send_to="User",
        message="m",
        attachment_list=(Attachment(type="plan", content="steps"),),
        tool_calls=(ToolCall(id="c", name="f", arguments="{}"),),
    )
    memory.finish_round("1")
    memory.pin(post)
    cover(memory, 1)
    assert pinned(memory) == ("Planner: m\n\n[plan]\nsteps\nPlanner calls f({}) as c",)


def test_what_is_said_twice_is_shown_once() -> None:
    """A round's first post often repeats the query."""
    memory = memory_of(0)
    memory.create_round("never", id="1")
    memory.add_post("1", send_from="User", send_to=ROLE, message="never")
    memory.finish_round("1")
    memory.pin("r1.p0")
    memory.pin("r1.p1")
    cover(memory, 1)
    assert pinned(memory) == ("User: never",)


def test_what_failed_is_not_shown() -> None:
    """Nor is it in the prompt of any round."""
    memory = memory_of()
    memory.pin("r1.p1")
    memory.pin("r2.p1")
    memory.finish_round("1", state="failed")
    made = CompactedMessage(start_index=1, end_index=1, end_round_id="2", summary="the summary")
    memory.journal(ROLE).publish(made, base=0, round_ids=["2"])
    assert pinned(memory) == ("User: never 2",)
    shown = memory.get_role_rounds(ROLE, include_failure_rounds=True)[1]
    assert shown is not None
    assert shown.pinned == ("User: never 2",)


def test_unpinned_and_redacted_posts_are_not_shown() -> None:
    """At once, though they were when it was published."""
    memory = memory_of()
    for ref in ("r1.p1", "r2.p1", "r2.p2"):
        memory.pin(ref)
    cover(memory, 2)
    memory.unpin("r1.p1")
    assert pinned(memory) == ("User: never 2", "Planner: answer 2")
    memory.redact("r2.p1")
    assert memory.pins() == ("r2.p2",)
    cover(memory, 3)
    assert pinned(memory) == ("Planner: answer 2",)


@pytest.mark.parametrize(
    ("known", "expected"), [(True, ("User: never 1",)), (False, ("User: never 1", "User: never 2"))]
)
def test_a_providers_compaction_is_shown_with_pins_too(known: bool, expected: tuple[str, ...]) -> None:
    """By its last round's id; by its place where that is unknown, and then no further than there are rounds."""
    memory = memory_of(2)
    memory.pin("r1.p1")
    memory.pin("r2.p1")
    made = CompactedMessage(start_index=1, end_index=9, end_round_id="1" if known else "elsewhere", summary="s")
    shown = memory.rounds_getter(ROLE)().anchor(made)
    assert shown is not None
    assert shown.pinned == expected


def test_a_compaction_of_nothing_shows_no_pins() -> None:
    """Neither does a sequence of no rounds."""
    memory = memory_of(1)
    memory.pin("r1.p1")
    shown = memory.rounds_getter(ROLE)().anchor(CompactedMessage(start_index=1, end_index=0, summary="s"))
    assert shown is not None
    assert shown.pinned == ()


# -- in the log --------------------------------------------------------------------------------------------------------


def test_pinned_texts_are_not_stored_with_a_compaction() -> None:
    """They are in the log once, where they were said; so a new compaction starts without those of the one before."""
    store = InMemoryStore()
    memory = memory_of(store=store)
    memory.pin("r1.p1")
    first = cover(memory, 1)
    assert first.pinned
    cover(memory, 2, pinned=first.pinned)
    assert sum("never 1" in entry.body for entry in store.read("s")) == 1
    assert read_again(store).snapshot == memory.snapshot
    memory.unpin("r1.p1")
    assert pinned(memory) == ()


def test_a_log_that_pins_twice_or_what_is_not_there_shows_what_is() -> None:
    """Another writer may have left such entries: they stop nobody."""
    store = InMemoryStore()
    memory = memory_of(2, store)
    for number in (1, 1, 9):
        more = entry("pinned", round_id="1", number=number, pinned=True)
        store.append("s", [more], after=len(list(store.read("s"))))
    assert memory.refresh()
    cover(memory, 2)
    assert pinned(memory) == ("User: never 1",)
    assert memory.pins() == ("r1.p1", "r1.p9")
    memory.unpin("r1.p1")
    assert pinned(memory) == ()


def test_pins_survive_a_resume() -> None:
    """From the text of the log."""
    store = InMemoryStore()
    memory = memory_of(store=store)
    memory.pin("r1.p1")
    memory.pin("r2.p0")
    cover(memory, 3)
    memory.unpin("r1.p1")
    resumed = read_again(store)
    assert resumed.pins() == memory.pins() == ("r2.p0",)
    assert pinned(resumed) == pinned(memory) == ("User: query 2",)
    assert resumed.journal(ROLE).read() == memory.journal(ROLE).read()


def test_a_snapshot_keeps_the_pins_of_its_moment() -> None:
    """Readers see one consistent state."""
    memory = memory_of()
    before = memory.rounds_getter(ROLE)()
    memory.pin("r1.p1")
    assert (before.pins, memory.rounds_getter(ROLE)().pins) == (frozenset(), {("1", 1)})


def test_a_post_that_only_repeats_the_query_means_the_query() -> None:
    """Prompts show the query in its place; what it carries besides is its own."""
    memory = memory_of(0)
    for number, attachments in enumerate(((), (Attachment(type="plan", content="steps"),)), 1):
        memory.create_round("never", id=str(number))
        memory.add_post(str(number), send_from="User", send_to=ROLE, message="never", attachment_list=attachments)
        memory.pin(f"r{number}.p1")
    assert memory.pins() == ("r1.p0", "r2.p1")
    memory.unpin("r1.p1")
    assert memory.pins() == ("r2.p1",)


def test_a_prompt_asks_no_store_for_rounds_with_pinned_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt looks them up, and goes on while the store is away, however long ago they were."""

    def fail(*_place: object) -> int | None:
        raise StoreUnreachable("away")

    store = Indexed()
    memory = memory_of(4, store)
    memory.pin("r1.p1")
    memory.snapshot.archive.numbers.clear()  # as after thousands of rounds
    monkeypatch.setattr(store, "find_round_number", fail)
    assert any("never 1" in str(message["content"]) for message in compose(memory, ROLE, budget=8_000).messages)
