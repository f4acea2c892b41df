"""Closed rounds are kept packed: equal to what was added, and nothing for the garbage collector to walk."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import InMemoryStore, Memory, Post
from memory.rounds import Attachment, Round, ToolCall

#: Enough that the first rounds are packed.
LATER = 6
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
