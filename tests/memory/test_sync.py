"""sync: the log is made the same as the history that a host holds."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from chats import Message, answer, result, user
from synced_history import HISTORY, SYSTEM, TURNS, calls
from threads import at_once

from compactor import HistoryDiverged, InMemoryStore, Memory, MessageError, Synced, UnknownReference, open_store
from memory import Entry, StoreBusy, StoreUnreachable


def test_the_first_call_writes_the_history_and_the_next_ones_what_is_new() -> None:
    """A host calls it before each prompt, with all that it has."""
    memory = Memory()
    assert memory.sync(HISTORY[:2]) == Synced(appended=2, kept=0)
    assert memory.sync(HISTORY[:2]) == Synced(appended=0, kept=2)
    assert memory.sync(HISTORY) == Synced(appended=5, kept=2)
    assert memory.sync(copy.deepcopy(HISTORY)) == Synced(appended=0, kept=7)
    assert memory.messages() == HISTORY
    assert Memory().sync([]) == Synced(0, 0)


def test_a_final_answer_that_was_appended_is_known_when_the_host_gives_it() -> None:
    """An adapter hands it over as soon as it is there; the host's history has it with the next call."""
    memory = Memory()
    memory.sync(HISTORY[:5])
    memory.append(HISTORY[5])
    assert memory.sync(HISTORY) == Synced(appended=1, kept=6)
    assert memory.messages() == HISTORY


def test_ids_are_not_compared_but_pairs_are() -> None:
    """Frameworks make new ids when they replay a history; a result that answers another call is another history."""
    memory = Memory()
    memory.sync(HISTORY)
    replayed = copy.deepcopy(HISTORY)
    replayed[2]["tool_calls"][0]["id"] = replayed[3]["tool_call_id"] = "x"
    replayed[2]["tool_calls"][1]["id"] = replayed[4]["tool_call_id"] = "y"
    replayed[2]["tool_calls"][0]["function"]["arguments"] = '{"deep":true,"order":17}'
    assert memory.sync(replayed).kept == 7
    replayed[3]["tool_call_id"], replayed[4]["tool_call_id"] = "y", "x"
    with pytest.raises(HistoryDiverged) as caught:
        memory.sync(replayed, on_divergence="raise")
    assert (caught.value.index, caught.value.reference) == (3, "r1.p2")


@pytest.mark.parametrize("form", ["tool", "parts"])
def test_a_result_answers_the_call_in_the_log_though_the_replay_has_another_id(form: str) -> None:
    """A run goes on after a restart in the middle of a call; a result without its call would be refused."""

    def history(call_id: str) -> list[Message]:
        if form == "tool":
            return [
                user("q"),
                calls(("0", "look", "{}"), (call_id, "look", '{"order": 18}')),
                result(call_id, "There."),
            ]
        asked = {"type": "tool_use", "id": call_id, "name": "look", "input": {"order": 18}}
        said = {"type": "tool_result", "tool_use_id": call_id, "content": "There."}
        return [user("q"), {"role": "assistant", "content": [asked]}, {"role": "user", "content": [said]}]

    memory = Memory()
    memory.sync(history("a")[:2])
    assert memory.sync(history("b")) == Synced(1, 2)
    assert memory.messages() == history("a")
    assert memory.sync(history("c")) == Synced(0, 3)


@pytest.mark.parametrize(
    "same",
    [
        {"role": "assistant", "content": [{"type": "text", "text": "17 is on its way, 18 is there."}]},
        {"role": "assistant", "content": "17 is on its way, 18 is there.", "refusal": None, "tool_calls": None},
        {"role": "assistant", "content": "17 is on its way, 18 is there.", "id": "msg_1", "annotations": []},
        MappingProxyType(HISTORY[5]),
    ],
)
def test_other_forms_of_the_same_words_are_the_same(same: Mapping[str, Any]) -> None:
    """Empty fields, a text in a part, keys of the framework's own."""
    memory = Memory()
    memory.sync(HISTORY)
    assert memory.sync([*HISTORY[:5], same, *HISTORY[6:]]).kept == 7


def test_a_history_that_goes_on_otherwise_is_refused_if_asked() -> None:
    """The error says where, shows no words, and nothing is written."""
    memory = Memory()
    memory.sync(HISTORY)
    with pytest.raises(HistoryDiverged, match=r"message 6 .*r1.p4") as caught:
        memory.sync([*HISTORY[:5], answer("I do not know.")], on_divergence="raise")
    assert (caught.value.index, caught.value.reference) == (5, "r1.p4")
    assert "know" not in str(caught.value)
    assert memory.messages() == HISTORY
    with pytest.raises(ValueError, match="on_divergence"):
        memory.sync(HISTORY, on_divergence="ignore")  # type: ignore[arg-type]


def test_a_history_that_goes_on_otherwise_rewinds_the_log() -> None:
    """An edit, a fork, a regenerated answer: what both have stays, and no prompt tells of the rest."""
    memory = Memory()
    memory.sync(HISTORY)
    edited = [*HISTORY[:5], answer("I do not know."), user("Why?")]
    assert memory.sync(edited) == Synced(appended=2, kept=5, undone=2)
    assert memory.messages() == edited
    assert memory.sync(HISTORY[:2]) == Synced(appended=0, kept=2, undone=5)
    assert memory.messages() == HISTORY[:2]
    other = [SYSTEM, user("Something else.")]
    assert memory.sync(other) == Synced(appended=1, kept=1, undone=1)
    assert Memory(memory.session_id, store=memory._store).sync(other) == Synced(0, 2)
    assert memory.messages() == other


def test_no_call_is_parted_from_its_results_by_a_rewind() -> None:
    """Providers refuse a call without them: the call is written again, with the results that the host has now."""
    memory = Memory()
    memory.sync(HISTORY)
    edited = [*HISTORY[:4], result("b", "Lost."), *HISTORY[5:]]
    synced = memory.sync(edited)
    assert (synced.undone, synced.appended + synced.kept) == (5, 7)
    assert memory.messages() == edited
    assert [synced.find(ref) for ref in synced.references if ref] == [1, 2, 3, 4, 5, 6]


def test_results_of_a_call_that_was_edited_behind_a_summary_keep_a_call() -> None:
    """The log's own call is undone with its results, and the edited one stands in its place."""
    memory = Memory()
    asked, front = calls(("a", "look", "{}"), ("b", "look", "{}")), [user("Where are they?"), answer("I will look.")]
    ends = [result("a", "On its way."), result("b", "Delivered."), answer("One is there.")]
    memory.sync([*front, user("Do."), asked, *ends])
    memory.sync([user("A summary."), user("Do."), asked, *ends])
    edited = asked | {"content": "I look."}
    memory.sync([user("A summary."), user("Do."), edited, *ends])
    ends[1] = result("b", "Lost.")
    memory.sync([user("A summary."), user("Do."), edited, *ends])
    assert memory.messages() == [*front, user("Do."), edited, *ends]


def test_the_places_of_all_messages_are_known() -> None:
    """From the host's list to the log and back, in a window too."""
    memory = Memory()
    whole = memory.sync(HISTORY)
    assert whole.references == [None, "r1.p0", "r1.p1", "r1.p2", "r1.p3", "r1.p4", "r2.p0"]
    assert [whole.find(ref) for ref in whole.references if ref] == [1, 2, 3, 4, 5, 6]
    window = memory.sync(HISTORY[5:])
    assert window.references == ["r1.p4", "r2.p0"]
    assert (window.find("r2.p0"), window.find("r1.p0"), window.find("r9.p0")) == (1, None, None)
    assert [whole.find(several) for several in ("r1", "r1-r2", "r1.p0-p3")] == [None, None, None]
    with pytest.raises(UnknownReference):
        window.find("there")


def test_a_system_message_that_changes_replaces_the_old_one() -> None:
    """Frameworks make it anew for each call, with the date in it."""
    memory = Memory()
    memory.append(SYSTEM)
    for text in ("It is Monday.", "It is Tuesday."):
        history = [{"role": "system", "content": text}, *HISTORY[1:]]
        memory.sync(history)
        assert memory.messages() == history
    two = [SYSTEM, {"role": "developer", "content": "Be kind."}, *HISTORY[1:]]
    assert memory.sync(two) == Synced(appended=2, kept=6)
    assert memory.messages() == two
    memory.set_header("date", "It is Friday.")
    memory.sync(HISTORY)
    assert [post.message for post in memory.header] == ["Be brief.", "It is Friday."]
    assert memory.sync(HISTORY[1:]).kept == 6  # the host passes it elsewhere
    assert memory.messages()[0] == SYSTEM


@pytest.mark.slow
def test_a_system_message_that_changes_with_each_call_does_not_pile_up(tmp_path: Path) -> None:
    """Prompts read the newest one alone, also from a checkpoint, and in its old place."""
    store = open_store(f"sqlite:///{tmp_path / 's.db'}")
    memory = Memory("s", store=store)
    memory.sync([SYSTEM, {"role": "system", "content": "Be kind."}, user("q")])
    for minute in range(1_100):
        memory.sync(
            [{"role": "system", "content": f"It is minute {minute}."}, {"role": "system", "content": "Be kind."}]
        )
    for one in (memory, Memory("s", store=store)):
        assert [post.message for post in one.header] == ["It is minute 1099.", "Be kind."]
        assert len(one.snapshot.header) == 2
    store.close()


def test_a_restart_writes_nothing_again(tmp_path: Path) -> None:
    """The framework's own persistence has the history, and so has the store."""
    with closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as store:
        Memory("s", store=store).sync(HISTORY)
        again = Memory("s", store=store)
        assert again.sync(copy.deepcopy(HISTORY)) == Synced(0, 7)
        assert again.sync([*HISTORY, answer("Bye.")]) == Synced(1, 7)


def test_two_processes_write_a_message_once() -> None:
    """Both are given the same history, and neither has read what the other wrote."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    one.sync(HISTORY)
    assert two.sync(HISTORY) == Synced(0, 7)
    assert two.sync([*HISTORY, answer("Bye.")]) == Synced(1, 7)
    assert one.sync([*HISTORY, answer("Bye."), user("Bye.")]) == Synced(1, 8)
    assert one.messages() == [*HISTORY, answer("Bye."), user("Bye.")]


def test_a_window_that_begins_with_a_system_message_from_the_middle_is_aligned_again_after_a_conflict() -> None:
    """Another process writes the host's newest message in the meantime: it is written once."""
    reminder = {"role": "system", "content": "Remember to be brief."}
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    history = [user("q"), answer(), reminder, user("r"), answer("b"), user("s"), answer("c")]
    one.sync(history[:5])
    two.sync(history[2:6])
    assert one.sync(history[2:]) == Synced(1, 4, dropped=2)
    assert one.messages() == history


def test_what_the_agent_appends_with_a_kind_is_not_missed_in_the_hosts_history() -> None:
    """A note of its own stays in the log where it was; the host may have it or not."""
    memory = Memory()
    memory.sync(HISTORY[:6])
    memory.append(answer("They like to be thanked."), kind="note")
    assert memory.sync(HISTORY) == Synced(1, 6)
    assert memory.messages()[6] == answer("They like to be thanked.")
    assert memory.sync(HISTORY).references[-1] == "r2.p0"
    assert memory.sync([*HISTORY[:6], answer("They like to be thanked."), HISTORY[6]]).kept == 8


def test_an_erased_message_is_not_written_again() -> None:
    """The host still holds its words; the log matches whatever stands there."""
    memory = Memory()
    memory.sync(HISTORY)
    memory.redact("r1.p4")
    memory.redact("r1.p0")
    for again in (memory, Memory(memory.session_id, store=memory._store)):
        assert again.sync(HISTORY) == Synced(0, 7)
    assert "17" not in str(memory.messages()[-2])


def test_an_edit_in_place_is_found_in_the_newest_messages_and_in_all_if_asked() -> None:
    """The same objects are not read again each time, but the newest are."""
    history = [user("q"), *[answer(f"{number}") for number in range(100)]]
    memory = Memory()
    memory.sync(history)
    history[-50]["content"] = "edited"
    with pytest.raises(HistoryDiverged):
        memory.sync(history, on_divergence="raise")
    history[-50]["content"] = "50"
    history[10]["content"] = "edited"
    assert memory.sync(history, on_divergence="raise").kept == 101
    with pytest.raises(HistoryDiverged) as caught:
        memory.sync(history, on_divergence="raise", verify=True)
    assert caught.value.index == 10


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        {"role": "nobody"},
        {"content": "q"},
        {"role": "user", "content": 5},
        {"role": "user", "parts": [{"text": "in another format"}]},
    ],
)
def test_a_wrong_message_is_refused_by_its_place(wrong: Any) -> None:
    """And nothing is written."""
    memory = Memory()
    with pytest.raises(MessageError, match="message 3: "):
        memory.sync([SYSTEM, user("q"), wrong])
    assert memory.messages() == []
    for no_list in (user("q"), "q", 5):
        with pytest.raises(TypeError, match="list of all chat messages"):
            memory.sync(no_list)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="list of all chat messages"):
            asyncio.run(memory.async_sync(no_list))  # type: ignore[arg-type]


def test_what_is_no_text_is_no_reference_to_find() -> None:
    """As in ``rewind``; a system message in front has none, for instance."""
    with pytest.raises(TypeError, match="reference: must be a text such as r5"):
        Memory().sync([SYSTEM]).find(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, [5], [object()], {1: 2}])
@pytest.mark.parametrize("role", ["system", "user"])
def test_a_wrong_message_of_a_history_that_diverges_undoes_nothing(wrong: Any, role: str) -> None:
    memory = Memory.from_messages(HISTORY)
    message = {"role": role, "content": wrong}
    history = [message, user("Another question")] if role == "system" else [SYSTEM, user("Another question"), message]
    with pytest.raises(MessageError, match=f"message {history.index(message) + 1}"):
        memory.sync(history)
    assert memory.messages() == HISTORY


@pytest.mark.parametrize("odd", [["a"], 5, None])
def test_results_with_odd_ids_are_stored_once(odd: Any) -> None:
    """As ``append`` takes them, so does ``sync``."""
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": odd, "name": "f", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": odd, "content": "dry"}]}
    memory = Memory()
    assert memory.sync([user("q"), call, result]).appended == 3
    assert memory.sync([user("q"), dict(call), dict(result)]).appended == 0


DEEP = "[" * 500 + "]" * 500
ODD: dict[str, list[Message]] = {
    "half characters": [user("\ud800"), calls(("a", "look\udfff", '{"a": "\ud800"}')), result("a", "\udfff")],
    "huge, infinite and deep": [
        user("q") | {"n": 10**400},
        calls(("a", "f", f'{{"n": {"9" * 5000}, "x": NaN}}'), ("b", "f", DEEP), ("c", "f", "[1E400, 1.0]")),
        *(result(one, DEEP) for one in "abc"),
    ],
    "a repeated id": [
        user("q"),
        calls(("a", "f", "{}"), ("a", "g", "{}")),
        result("a", "1"),
        result("a", "2"),
        answer("r"),
    ],
    "a repeated id later": [user("q"), *[calls(("a", "f", "{}")), result("a", "dry")] * 2, answer("r")],
    "a result first": [result("a", "dry"), answer("r"), user("q"), result("b", "wet"), result("a", "dry")],
    "a result behind the user's word": [
        user("q"),
        calls(("a", "f", "{}")),
        user("Well?"),
        result("a", "dry"),
        answer("r"),
    ],
    "nothing said": [
        user(""),
        answer(""),
        user(""),
        {"role": "assistant", "content": None},
        {"role": "user", "content": []},
    ],
    "a call of no known form": [user("q"), {"role": "assistant", "content": None, "function_call": [{}]}],
    "a mark of erased words": [user("[Redacted]"), answer("[Redacted]"), user("q")],
    "a megabyte": [user("q" * 1_000_000), answer("a" * 1_000_000)],
}


@pytest.mark.parametrize("history", ODD.values(), ids=ODD)
def test_an_odd_history_is_written_once(history: list[Message], url: str) -> None:
    """Frameworks and models give what they like; it is known again, also by another process."""
    with closing(open_store(url)) as store:
        memory = Memory("s", store=store)
        assert memory.sync(history).appended == len(history)
        for one in (memory, Memory("s", store=store)):
            assert one.sync(copy.deepcopy(history), on_divergence="raise") == Synced(0, len(history))
        assert Memory("s", store=store).sync([*history, user("next")]) == Synced(1, len(history))


class Failing(InMemoryStore):
    """Refuses one append, or stores it and loses its reply."""

    countdown, is_reply_lost = 0, False

    def append(self, session_id: str, entries: Sequence[Entry], after: int) -> int:
        self.countdown -= 1
        if self.countdown == 0 and not self.is_reply_lost:
            raise StoreBusy("somebody else writes")
        last = super().append(session_id, entries, after)
        if self.countdown == 0:
            raise StoreUnreachable("the server does not answer")
        return last


@pytest.mark.parametrize("is_reply_lost", [False, True])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_store_that_fails_between_rewinding_and_appending_loses_nothing(fails_at: int, is_reply_lost: bool) -> None:
    """The next call goes on where this one was stopped, and writes no message twice."""
    store = Failing()
    memory = Memory("s", store=store)
    memory.sync(TURNS)
    store.countdown, store.is_reply_lost = fails_at, is_reply_lost
    edited = [*TURNS[:7], user("no"), answer("Why?")]
    with nullcontext() if is_reply_lost else pytest.raises(StoreBusy):
        memory.sync(edited)
    assert memory.messages() in (TURNS, TURNS[:7], edited)
    memory.sync(edited)
    assert memory.messages() == Memory("s", store=store).messages() == edited


def test_what_another_process_appends_is_undone_or_refused() -> None:
    """The host's history does not have it; who wants to know is told before anything is hidden."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.sync(TURNS[:4])
    Memory("s", store=store).append(user("from elsewhere"))
    memory.refresh()
    with pytest.raises(HistoryDiverged):
        memory.sync(TURNS[:5], on_divergence="raise")
    assert memory.sync(TURNS[:5]) == Synced(1, 4, undone=1)
    assert memory.messages() == TURNS[:5]


def test_threads_that_sync_one_session_write_each_message_once() -> None:
    """Requests for one user that come at the same time, each with the same history."""
    memory = Memory()

    def work() -> None:
        for end in range(1, len(TURNS) + 1):
            memory.sync(copy.deepcopy(TURNS[:end]))
        memory.sync(copy.deepcopy(TURNS))

    at_once(*[work] * 20)
    memory.sync(TURNS)
    assert memory.messages() == TURNS


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ({"role": "user"}, "content"),
        ({"role": "assistant", "id": "m1"}, "content"),
        ({"role": "user", "name": "Ada"}, "content"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": None}, "tool_call_id"),
    ],
    ids=repr,
)
def test_a_message_that_says_nothing_undoes_nothing(message: Message, remedy: str) -> None:
    """No provider takes it. Known from ``append``, it is known to ``sync``."""
    memory = Memory()
    memory.sync(TURNS)
    for history in ([message], [*TURNS[:3], message], [*TURNS, message]):
        with pytest.raises(MessageError, match=rf"^message {len(history)}: .*{remedy}"):
            memory.sync(history)
        assert memory.messages() == TURNS
    memory.append(message)
    assert memory.sync([*TURNS, message]).appended == 0


def test_system_messages_alone_undo_nothing() -> None:
    """A host that begins anew with its system prompt has not said yet how its history goes on."""
    memory = Memory()
    memory.sync([SYSTEM, user("q")])
    assert memory.sync([SYSTEM]).undone == 0
    assert memory.messages() == [SYSTEM, user("q")]


@pytest.mark.parametrize("key", ["tool_calls", "function_call"])
@pytest.mark.parametrize("value", [5, "x", [None], [5], {"a": 1}], ids=repr)
@pytest.mark.parametrize("role", ["system", "user"])
def test_calls_of_whoever_calls_nothing_are_the_hosts_own_keys(role: str, key: str, value: object) -> None:
    """As for ``append``: whatever they hold, the next ``sync`` knows the message again."""
    memory, history = Memory("session"), [{"role": role, "content": "Be brief.", key: value}]
    memory.sync(history)
    history.append({"role": "assistant", "content": "Yes."})
    assert memory.sync(history).appended == 1
    assert memory.sync([dict(message) for message in history]).appended == 0
