"""What append and extend return, and that extend writes all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import InMemoryStore, Memory, MessageError, open_store
from memory import Appended, Conflict, Entry

Message = dict[str, Any]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TURN: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is order 17?"},
    {"role": "user", "content": "And order 18?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "On its way."},
    {"role": "assistant", "content": "Both are on their way."},
    {"role": "user", "content": "Thank you."},
]
REFERENCES = [None, "r1.p0", "r1.p1", "r1.p2", "r1.p3", "r1.p4", "r2.p0"]


class Counting(InMemoryStore):
    """Counts the writes, and lets a host's function come in before each."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.before: Any = lambda: None

    def append(self, session: str, entries: Iterable[Entry], after: int) -> int:
        self.writes += 1
        self.before()
        return super().append(session, list(entries), after)


def test_append_says_where_the_message_stands() -> None:
    """A host can pin it, refer to it and read it without looking for it."""
    memory = Memory()
    places = [memory.append(message) for message in TURN]
    assert [one.reference for one in places] == REFERENCES
    header, query, *_, answer, newest = places
    assert (header.round, header.post) == (None, memory.header[0])
    assert (query.round, query.post) == (memory.conversation.rounds[0], None)
    assert answer.post == memory.conversation.rounds[0].post_list[3]
    assert newest.round == memory.conversation.rounds[1]
    assert answer.reference is not None
    memory.pin(answer.reference)
    assert memory.pins() == ("r1.p4",)


def test_a_place_reads_what_is_there_now() -> None:
    """Whoever holds it holds no words: they are erased in the log alone."""
    memory = Memory()
    _, answer = memory.extend([{"role": "user", "content": "My PIN?"}, {"role": "assistant", "content": "swordfish"}])
    assert answer.reference is not None
    memory.redact(answer.reference)
    assert answer.post is not None
    assert "swordfish" not in f"{answer.post.message} {answer!r}"


@given(st.lists(st.sampled_from(TURN), max_size=12), st.integers(0, 12))
def test_extend_adds_what_append_adds(messages: list[Message], cut: int) -> None:
    """The same rounds and the same places, wherever a batch begins."""
    ids, more = count(), count()
    one = Memory("s", new_id=lambda: f"{next(ids)}")
    both = Memory("s", new_id=lambda: f"{next(more)}")
    singly = [one.append(message).reference for message in messages]
    at_once = [place.reference for part in (messages[:cut], messages[cut:]) for place in both.extend(part)]
    assert at_once == singly
    assert both.messages() == one.messages()

    def shape(memory: Memory) -> list[Any]:
        return [
            (round_.id, round_.state, round_.user_query, [(post.id, post.number) for post in round_.post_list])
            for round_ in memory.conversation.rounds
        ]

    assert shape(both) == shape(one)


def test_extend_is_one_write() -> None:
    """Who reads the log meanwhile sees all of it or nothing."""
    store = Counting()
    places = Memory("s", store=store).extend(TURN)
    assert (store.writes, len(places)) == (1, len(TURN))
    assert Memory("s", store=store).messages() == TURN


def test_of_messages_with_a_wrong_one_nothing_is_written() -> None:
    """And the error says which it was."""
    memory = Memory()
    with pytest.raises(MessageError, match=r"message 2: .*role"):
        memory.extend([{"role": "user", "content": "q"}, {"role": "nobody"}])
    assert memory.extend([]) == []
    assert memory.messages() == []


def test_places_are_those_behind_what_others_wrote_first(tmp_path: Path) -> None:
    """The log is read again where another process was faster, and so are the places."""
    with closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as store:
        slow, fast = Memory("s", store=store), Memory("s", store=store)
        fast.extend(TURN)
        assert [one.reference for one in slow.extend(TURN[1:3])] == ["r2.p1", "r2.p2"]


def test_a_store_that_refuses_leaves_nothing_behind() -> None:
    """No message of the batch is there, and the same call may come again."""
    store = Counting()
    memory = Memory("s", store=store)

    def refuse() -> None:
        raise Conflict("always")

    store.before = refuse
    with pytest.raises(Exception, match=r"purged|always"):
        memory.extend(TURN)
    store.before = lambda: None
    assert Memory("s", store=store).messages() == []


def test_a_kind_is_the_hosts_own_word_for_a_message() -> None:
    """It is found again on the post, and a message of the user's with one is no query."""
    memory = Memory()
    memory.append({"role": "user", "content": "Plan my day."})
    note = memory.append({"role": "assistant", "content": "He likes mornings."}, kind="note")
    said = memory.append({"role": "user", "content": "Reminder: be brief."}, kind="reminder")
    assert note.post is not None
    assert said.post is not None
    assert (note.post.kind, said.post.kind, said.reference) == ("note", "reminder", "r1.p2")
    assert memory.append({"role": "user", "content": "And tomorrow?"}).reference == "r2.p0"


@pytest.mark.parametrize("kind", [None, 5, b"note"])
def test_a_kind_that_is_no_text_is_refused(kind: Any) -> None:
    """By name, and nothing is written."""
    memory = Memory()
    with pytest.raises(MessageError, match="kind"):
        memory.append({"role": "user", "content": "q"}, kind=kind)
    assert memory.messages() == []


def test_ids_that_repeat_in_a_batch_are_refused() -> None:
    """Two rounds of one id could not be told apart."""
    memory = Memory("s", new_id=lambda: "the same")
    with pytest.raises(MessageError, match="already"):
        memory.extend(TURN)
    assert memory.messages() == []


def test_any_mapping_and_iterable_will_do() -> None:
    """As elsewhere: a generator of read-only mappings."""
    memory = Memory()
    message: Mapping[str, Any] = {"role": "user", "content": "q"}
    (place,) = memory.extend(iter([message]))
    assert isinstance(place, Appended)
