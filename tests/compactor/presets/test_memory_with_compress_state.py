"""The state of a memory is plain JSON, comes back with its log, and is whole or changes nothing."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from chats import answer, result, user
from compressed_memory import SYSTEM, filled, run, shortened, shown, turn, turns

from compactor.presets import MemoryWithCompress, StateError
from memory import Memory


def worked_with() -> MemoryWithCompress:
    """A memory in which everything happened that can."""
    memory = MemoryWithCompress(5_000, compress_func=shortened)
    run(memory.add([SYSTEM, *turns(4)]))
    run(memory.direct_update_memory([SYSTEM, user("a note"), *turns(3)]))
    shown(memory, compression_trigger_func=lambda messages: len(messages) > 3)
    run(memory.add([*turn(5), user("and now?")]))
    run(memory.delete(2))
    return memory


def test_a_state_is_plain_json_and_comes_back() -> None:
    """In another process, over another log: the shown messages, their sources, the history and the limit."""
    memory = worked_with()
    state = json.loads(json.dumps(memory.state_dict()))
    other = MemoryWithCompress()
    other.load_state_dict(state)

    assert list(state) == ["max_token", "chat_history_storage", "memory_storage", "sources", "beside", "direct_updates"]
    assert state["memory_storage"] == shown(memory) == shown(other)
    assert other.state_dict() == state
    assert other.max_token == 5_000
    assert run(other.size()) == run(memory.size())
    assert [other.references(at) for at in range(4)] == [memory.references(at) for at in range(4)]
    assert other.memory.messages() == memory.memory.messages()


def test_a_late_result_is_saved_as_it_was_added() -> None:
    """Only readers see it as a user message."""
    memory = filled([user("go"), result("c1", "late news")])
    state = memory.state_dict()

    assert state["memory_storage"] == state["chat_history_storage"] == memory.history()
    assert shown(memory)[1]["role"] == "user"


def test_a_state_goes_with_the_log_it_came_from() -> None:
    """A resumed log is not written to again, and its newer messages are shown."""
    memory = worked_with()
    state = memory.state_dict()
    log = Memory.from_messages(memory.memory.messages())
    log.append(answer("done"))
    other = MemoryWithCompress(memory=log)
    before = log.messages()
    other.load_state_dict(state)

    assert shown(other) == [*state["memory_storage"], answer("done")]
    assert log.messages() == before


@pytest.mark.parametrize("kept", [1, 4, 8])
@pytest.mark.parametrize("same_log", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_a_text_from_a_state_gives_way_for_all_that_its_maker_had_read(kept: int, same_log: bool, again: bool) -> None:
    """What is erased stands in no text, though the text stood beside it: also where that was compressed again, and in
    a state of a state."""
    memory = MemoryWithCompress(200, compress_func=lambda messages: [user("all about P-200"), *messages[-kept:]])
    run(memory.add(turns(2)))
    shown(memory)
    if again:
        shown(memory, compress_func=lambda messages: [user("more about P-200"), *messages[1:]])
    other = MemoryWithCompress(memory=memory.memory if same_log else None)
    other.load_state_dict(json.loads(json.dumps(memory.state_dict())))
    other.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert other.state_dict() == memory.state_dict() | {"max_token": other.max_token}
    other.memory.redact("r2.p3")

    assert "about P-200" not in str(other.shown())
    assert other.shown()[-1] == answer("[Redacted]")


def test_a_state_of_an_earlier_version_lacks_what_stood_beside() -> None:
    """It is loaded as it is."""
    state = worked_with().state_dict()
    del state["beside"]
    other = MemoryWithCompress()
    other.load_state_dict(state)
    assert shown(other) == state["memory_storage"]


def test_hooks_may_wait_for_who_reads_while_a_state_is_loaded() -> None:
    """The window is not locked while messages are appended."""
    memory = MemoryWithCompress()
    readers: list[threading.Thread] = []

    def read_elsewhere(_rounds: int) -> None:
        readers.append(threading.Thread(target=shown, args=(memory,), daemon=True))
        readers[-1].start()
        readers[-1].join(5)

    memory.memory.on_round_added(read_elsewhere)
    memory.load_state_dict(filled(turns(1), max_token=10_000).state_dict())

    assert [reader.is_alive() for reader in readers] == [False]
    assert shown(memory) == turns(1)


def test_a_state_takes_the_place_of_another_conversation() -> None:
    """Which stays in the log, and is neither shown nor counted."""
    memory = filled([user("something else")], max_token=10_000)
    memory.load_state_dict(worked_with().state_dict())

    assert shown(memory) == worked_with().state_dict()["memory_storage"]
    assert run(memory.size()) == run(worked_with().size())
    assert memory.memory.reload("r1.p0") == "something else"


def test_a_state_without_sources_is_matched_by_its_words() -> None:
    """That of the system it comes from has only the two storages and the limit."""
    old = {"max_token": 99, "chat_history_storage": turns(2), "memory_storage": [answer("In short: D1."), *turn(2)]}
    memory = MemoryWithCompress(compression_on_get=False)
    memory.load_state_dict(old)

    assert shown(memory) == old["memory_storage"]
    assert [memory.references(index) for index in (0, 1)] == [(), ("r2.p0",)]
    assert memory.max_token == 99


def test_what_is_missing_stays_where_strict_is_off() -> None:
    """And unknown parts are ignored."""
    memory = filled(turns(1), max_token=10_000)
    memory.load_state_dict({"max_token": 7_000, "novelty": 1}, strict=False)
    memory.load_state_dict({"memory_storage": turns(1)[:1]}, strict=False)
    only_some = shown(memory)
    memory.load_state_dict({"chat_history_storage": turns(1)}, strict=False)

    assert only_some == turns(1)[:1]
    assert shown(memory) == turns(1)
    assert memory.max_token == 7_000


@pytest.mark.parametrize(
    "change",
    [
        {"novelty": 1},
        {"max_token": None, "memory_storage": 3},
        {"max_token": 0},
        {"max_token": "many"},
        {"chat_history_storage": [{"role": "wizard"}]},
        {"memory_storage": "text"},
        {"direct_updates": [3]},
        {"sources": 3},
        {"sources": [0]},
        {"sources": [0, 99, 1, 2]},
        {"sources": [0, ["x"], 1, 2]},
        {"sources": [0, {"role": "user"}, 1, 2]},
        {"sources": [0, [{"role": "wizard"}], 1, 2]},
        {"sources": [0, True, 1, 2]},
        {"beside": 3},
        {"beside": [[]]},
        {"beside": [[], [99], [], []]},
        {"beside": [[], 1, [], []]},
    ],
)
def test_a_state_that_cannot_be_used_changes_nothing(change: dict[str, Any]) -> None:
    """Checked as a whole before anything is taken; a KeyError and a ValueError, as each of its users expects."""
    state = {**filled(turns(1), max_token=10_000).state_dict(), **change}
    memory = filled([user("before")], max_token=10_000)

    with pytest.raises(StateError, match="state") as raised:
        memory.load_state_dict(state)

    assert isinstance(raised.value, (KeyError, ValueError))
    assert shown(memory) == [user("before")]
    assert run(memory.size()) == 1


@pytest.mark.parametrize("state", [None, [], {}, {"max_token": 1}])
def test_a_state_that_is_none_is_refused(state: Any) -> None:
    """The error names the missing parts."""
    with pytest.raises(StateError, match=r"mapping|lacks"):
        MemoryWithCompress().load_state_dict(state)
