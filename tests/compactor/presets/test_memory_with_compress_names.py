"""The smaller methods of MemoryWithCompress: storages, checks, sizes, and refused calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
from chats import Message, answer, user
from compressed_memory import SHORT, filled, run, shortened, shown, turn, turns

from compactor import count_tokens
from compactor.presets import (
    DEFAULT_COMPRESSION_PROMPT_TEMPLATE,
    MemoryWithCompress,
    MessageStorage,
    NotAMessage,
    count_words,
    format_msgs,
)
from memory import Entry, InMemoryStore, Memory, StoreError


class Broken(InMemoryStore):
    """A store that cannot be read for a while."""

    broken = False

    def read(self, session: str, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        if self.broken:
            raise StoreError("away")
        return super().read(session, after, limit)


def test_storages_are_what_was_said_and_what_is_shown() -> None:
    """Reading either compresses nothing; the history never changes with the shown messages."""
    memory = filled(turns(2), max_token=10)
    history, storage = memory.chat_history_storage, memory.memory_storage
    assert run(history.get()) == run(storage.get()) == turns(2)
    shown(memory)
    assert (run(storage.get()), run(history.get())) == ([SHORT], turns(2))
    run(storage.add(user("a note")))
    run(storage.delete(0))
    assert run(storage.get()) == [user("a note")]
    run(storage.replace(turn(2)))
    assert run(storage.get()) == turn(2)
    run(storage.clear())
    assert run(storage.get()) == []
    run(history.add(turn(3)))
    assert run(storage.get()) == turn(3)
    assert run(history.get()) == [*turns(2), *turn(3)]
    run(history.clear())
    assert run(history.get()) == run(storage.get()) == []


def test_the_history_cannot_be_rewritten() -> None:
    """The error names the right method."""
    history = filled(turns(1)).chat_history_storage
    for call in (history.delete(0), history.replace([])):
        with pytest.raises(NotImplementedError, match=r"redact|direct_update_memory"):
            run(call)


def test_a_storage_says_whether_its_store_can_be_read() -> None:
    """It is used with ``async with`` or without, and reads other processes' entries when it starts."""
    store = Broken()
    memory = MemoryWithCompress(memory=Memory("s", store=store))
    storage = memory.memory_storage
    Memory("s", store=store).append(user("from elsewhere"))

    async def inside() -> list[Message]:
        async with storage as one:
            assert isinstance(one, MessageStorage)
            return await one.get()

    assert run(inside()) == [user("from elsewhere")]
    assert run(storage.health()) is True
    store.broken = True
    assert run(storage.health()) is False
    with pytest.raises(StoreError):
        run(storage.start())


def test_all_that_is_async_there_is_async_here() -> None:
    """And the synchronous ones are synchronous."""
    methods = ["add", "direct_update_memory", "get_memory", "delete", "size", "clear", "retrieve", "check_and_compress"]
    assert all(inspect.iscoroutinefunction(getattr(MemoryWithCompress, name)) for name in methods)
    storage = ["start", "stop", "health", "add", "delete", "clear", "get", "replace", "__aenter__", "__aexit__"]
    assert all(inspect.iscoroutinefunction(getattr(MessageStorage, name)) for name in storage)
    assert inspect.iscoroutinefunction(count_words)
    assert not any(
        inspect.iscoroutinefunction(one) for one in (MemoryWithCompress.state_dict, MemoryWithCompress.load_state_dict)
    )


def test_retrieve_names_what_is_there_instead() -> None:
    """It is not implemented there, either."""
    with pytest.raises(NotImplementedError, match="get_memory"):
        run(MemoryWithCompress().retrieve("query"))


def test_checking_compresses_what_is_due_and_says_so() -> None:
    """Also without compression_on_get; a given list leaves the memory alone."""
    memory = filled(turns(2), max_token=10, compression_on_get=False)
    assert shown(memory) == turns(2)
    assert run(memory.check_and_compress()) == (True, [SHORT])
    assert run(memory.check_and_compress()) == (False, [SHORT])
    assert run(memory.check_and_compress(memory=turns(3))) == (True, [SHORT])
    assert shown(memory) == [SHORT]
    calm = filled(turns(1), max_token=100_000)
    assert run(calm.check_and_compress(None, lambda messages: len(messages) > 3)) == (True, [SHORT])
    assert run(calm.check_and_compress(shortened, memory=[user("hi"), answer("hello")])) == (
        False,
        [user("hi"), answer("hello")],
    )


def test_sizes_are_counted_as_the_memory_counts_them() -> None:
    """Of a text or of messages; without a counter, by characters of their JSON."""

    class Counter:
        async def count(self, messages: list[Message]) -> int:
            return 7 * len(messages)

    messages = [user("héllo"), answer("world")]
    assert run(count_words(None, messages)) == len(json.dumps(messages, ensure_ascii=False))
    assert run(count_words(None, "héllo")) == 5
    assert run(count_words(count_tokens, "one two")) == count_tokens("one two")
    assert run(count_words(Counter(), messages)) == 14
    assert run(count_words(None, [])) == 0


def test_messages_are_formatted_as_plain_mappings() -> None:
    """One or several; anything else is refused."""
    assert format_msgs(user("hi")) == format_msgs([user("hi")]) == [user("hi")]
    with pytest.raises(NotAMessage):
        format_msgs("hi")


def test_the_default_prompt_has_the_placeholders() -> None:
    """So it can be handed in, changed, as one's own."""
    assert all(f"{{{name}}}" in DEFAULT_COMPRESSION_PROMPT_TEMPLATE for name in ("max_token", "messages_list_json"))
    assert "{schema_json}" in DEFAULT_COMPRESSION_PROMPT_TEMPLATE
    MemoryWithCompress(
        customized_compression_prompt=DEFAULT_COMPRESSION_PROMPT_TEMPLATE, summarizer=lambda _request: ""
    )


def test_model_is_another_name_of_the_summarizer() -> None:
    """Both are a mistake."""
    asked: list[Any] = []

    class Model:
        def chat_completion(self, messages: list[Message]) -> Message:
            asked.append(messages)
            return answer(json.dumps({"compressed_text": "Parcels P-100 and P-200 are in depots D1 and D2."}))

    memory = MemoryWithCompress(900, model=Model())
    run(memory.add(turns(2)))
    assert "depots D1 and D2" in str(shown(memory)[0]["content"])
    assert len(asked) == 1
    with pytest.raises(TypeError, match="another name"):
        MemoryWithCompress(model=Model(), summarizer=Model())
