"""Closed rounds are kept packed: equal to what was added, held once, and nothing for the garbage collector to walk."""

from __future__ import annotations

import gc
import random
import tracemalloc
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import InMemoryStore, Memory, Post, SessionPurged, StoreError
from memory import Attachment, Round, ToolCall

#: Enough that the first rounds are packed.
LATER = 24
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)  # lone surrogates, too
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
extras = st.one_of(st.just({}), st.just({"openai": {}}), st.dictionaries(texts, values, max_size=3))
posts = st.builds(
    Post,
    send_from=texts,
    send_to=texts,
    message=texts,
    attachment_list=st.lists(st.builds(Attachment, type=texts, content=texts, extra=extras), max_size=2).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, id=texts, name=texts, arguments=texts), max_size=2).map(tuple),
    tool_call_id=st.one_of(st.none(), texts),
    extra=extras,
)


class Note(Post):
    """A host's own kind of post."""

    weight: float = 0.0


@settings(deadline=None)
@given(st.lists(posts, max_size=4), texts, extras)
def test_a_round_reads_as_it_was_added_however_old_it_is(said: list[Post], query: str, extra: dict[str, Any]) -> None:
    """In this Memory, and in another one of the same session; as JSON, too, which tells 1 from True."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    added = memory.create_round(query, extra=extra)
    for post in said:
        memory.add_post(added, post)
    finished = memory.finish_round(added)
    for number in range(LATER):
        memory.create_round(f"q{number}")

    for found in (memory.conversation.rounds[0], Memory("s", store=store).conversation.rounds[0]):
        assert found == finished
        assert [post.message for post in found.post_list] == [post.message for post in said]
        assert repr(found) == repr(finished)


def test_a_hosts_own_class_of_posts_stays_what_it_is() -> None:
    """What it holds beside a post's fields is not lost when the round grows old."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, Note(send_from="a", send_to="b", weight=0.5))
    for number in range(LATER):
        memory.create_round(f"q{number}")

    (post,) = memory.conversation.rounds[0].post_list

    assert isinstance(post, Note)
    assert post.weight == 0.5


class ArrayText(str):
    """A text as array libraries have them: it is a buffer, too, since Python 3.12 lets a class say so."""

    __slots__ = ()

    def __buffer__(self, _flags: int) -> memoryview:
        return memoryview(self.encode("utf-32-le"))


def test_a_hosts_own_class_of_texts_stays_what_it_is() -> None:
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(LATER):
        round_ = memory.create_round(ArrayText(f"question {number}"))
        memory.add_post(round_, send_from="Planner", send_to="User", message=ArrayText(f"answer {number}"))
        memory.finish_round(round_)

    for one in (memory, Memory("s", store=store)):
        (first, *_) = one.conversation.rounds
        assert (first.user_query, first.post_list[0].message) == ("question 0", "answer 0")
        assert isinstance(first.user_query, ArrayText)


@pytest.mark.slow
def test_closed_rounds_leave_nothing_for_the_garbage_collector() -> None:
    """A full collection takes as long in a session of any length."""

    def objects_after(rounds: int) -> int:
        memory = Memory()
        for number in range(rounds):
            memory.append({"role": "user", "content": f"q{number}"})
            memory.append({"role": "assistant", "content": f"a{number}"})
        gc.collect()
        gc.collect()  # tuples in tuples are let go one layer after the other
        gc.collect()
        found = len(gc.get_objects())
        assert isinstance(memory.conversation.rounds[0], Round)
        return found

    objects_after(50)
    few = objects_after(50)

    assert objects_after(550) - few < 250


def test_a_time_stays_in_its_zone() -> None:
    """A round reads the same when it has grown old, the offset of the host's clock included."""
    stamp = datetime(2024, 5, 1, 12, 30, 15, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    memory = Memory(clock=lambda: stamp)
    finished = memory.finish_round(memory.create_round("q"))
    for number in range(LATER):
        memory.create_round(f"q{number}")

    assert repr(memory.conversation.rounds[0]) == repr(finished)


def test_rounds_of_several_writers_are_told_apart() -> None:
    """Their posts stand between one another's in the log."""
    store = InMemoryStore()
    writers = [Memory("s", store=store) for _ in range(3)]
    for turn in range(LATER):
        opened = [writer.create_round(f"{turn} of {place}") for place, writer in enumerate(writers)]
        for number in range(3):
            for writer, round_ in zip(writers, opened, strict=True):
                post = f"{round_.user_query}: {number}"
                writer.add_post(round_, send_from="Planner", send_to="User", message=post)
        for writer, round_ in zip(writers, reversed(opened), strict=True):
            writer.refresh()
            writer.finish_round(round_)

    for writer in writers:
        writer.refresh()
        rounds = writer.conversation.rounds
        assert len(rounds) == 3 * LATER
        for round_ in rounds:
            assert [post.message for post in round_.post_list] == [f"{round_.user_query}: {n}" for n in range(3)]


def test_an_old_round_reads_as_it_was_changed() -> None:
    """Erased or failed after it was packed, in this Memory and in one that is opened later; its neighbours stay."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(LATER):
        memory.append({"role": "user", "content": f"question {number}"})
        memory.append({"role": "assistant", "content": f"answer {number}"})
    memory.redact("r3.p1")
    memory.finish_round(memory.conversation.rounds[4], state="failed")

    for one in (memory, Memory("s", store=store)):
        rounds = one.conversation.rounds
        assert rounds[4].state == "failed"
        answers = [round_.post_list[0].message for round_ in rounds]
        assert answers == [f"answer {number}" if number != 2 else "[Redacted]" for number in range(LATER)]


@pytest.mark.parametrize("anew", [0, 1, 2 * LATER])
def test_a_round_that_was_purged_is_gone(anew: int) -> None:
    """Nothing of the session that was begun anew is shown in its place."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for number in range(LATER):
        memory.create_round(f"old {number}")
    store.purge("s")
    other = Memory("s", store=store)
    for number in range(anew):
        other.create_round(f"new {number}")

    with pytest.raises(SessionPurged) as raised:
        memory.conversation.rounds[0]
    assert isinstance(raised.value, StoreError)


def test_a_store_may_say_that_it_is_not_in_this_process() -> None:
    """A subclass that sends its entries elsewhere is not asked for old rounds one by one."""

    class Remote(InMemoryStore):
        is_resident = False

        def read_round(self, session: str, number: int, first: int, last: int) -> Round | None:
            raise AssertionError(number)

    memory = Memory(store=Remote())
    for number in range(LATER):
        memory.create_round(f"q{number}")

    assert [round_.user_query for round_ in memory.conversation.rounds] == [f"q{number}" for number in range(LATER)]


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["abcdefghij", "äöüéèçñøåß", "漢字仮名交文章語句"])
def test_a_text_is_held_once(letters: str) -> None:
    """Whatever its alphabet: a session takes little more memory than its messages have bytes."""
    rng = random.Random(letters)

    def text() -> str:
        return "".join(rng.choices(letters, k=600))

    def talk(memory: Memory, rounds: int) -> int:
        said = 0
        for _ in range(rounds):
            for role in ("user", "assistant"):
                content = text()
                memory.append({"role": role, "content": content})
                said += len(content.encode())
        return said

    memory = Memory()
    talk(memory, 100)
    tracemalloc.start()
    try:
        said = talk(memory, 400)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(memory.conversation.rounds) == 500
    assert held < 1.5 * said
