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
from threads import at_once

from compactor import HistoryDiverged, InMemoryStore, Memory, MessageError, Synced, UnknownReference, open_store
from memory import Entry, StoreBusy, StoreUnreachable

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*calls: tuple[str, str, str]) -> Message:
    asked = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": args}} for id_, name, args in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": asked}


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


SYSTEM: Message = {"role": "system", "content": "Be brief."}
HISTORY: list[Message] = [
    SYSTEM,
    user("Where are orders 17 and 18?"),
    calls(("a", "look", '{"order": 17, "deep": true}'), ("b", "look", '{"order": 18}')),
    result("a", "On its way."),
    result("b", "Delivered."),
    says("17 is on its way, 18 is there."),
    user("Thank you."),
]


TURNS = [one for n in range(9) for one in (user(f"q{n}"), says(f"a{n}"))]


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
        memory.sync([*HISTORY[:5], says("I do not know.")], on_divergence="raise")
    assert (caught.value.index, caught.value.reference) == (5, "r1.p4")
    assert "know" not in str(caught.value)
    assert memory.messages() == HISTORY
    with pytest.raises(ValueError, match="on_divergence"):
        memory.sync(HISTORY, on_divergence="ignore")  # type: ignore[arg-type]


def test_a_history_that_goes_on_otherwise_rewinds_the_log() -> None:
    """An edit, a fork, a regenerated answer: what both have stays, and no prompt tells of the rest."""
    memory = Memory()
    memory.sync(HISTORY)
    edited = [*HISTORY[:5], says("I do not know."), user("Why?")]
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
    asked, front = calls(("a", "look", "{}"), ("b", "look", "{}")), [user("Where are they?"), says("I will look.")]
    ends = [result("a", "On its way."), result("b", "Delivered."), says("One is there.")]
    memory.sync([*front, user("Do."), asked, *ends])
    memory.sync([user("A summary."), user("Do."), asked, *ends])
    edited = asked | {"content": "I look."}
    memory.sync([user("A summary."), user("Do."), edited, *ends])
    ends[1] = result("b", "Lost.")
    memory.sync([user("A summary."), user("Do."), edited, *ends])
    assert memory.messages() == [*front, user("Do."), edited, *ends]


@pytest.mark.parametrize("system", [[], [SYSTEM]])
def test_the_oldest_messages_that_a_host_drops_stay_in_the_log(system: list[Message]) -> None:
    """Many hosts hold a window of their history, with the system message in front or without."""
    memory = Memory()
    memory.sync(HISTORY)
    window = [*system, *HISTORY[4:], says("You are welcome.")]
    synced = memory.sync(window)
    assert synced == Synced(appended=1, kept=len(window) - 1, dropped=3)
    assert memory.messages() == [*HISTORY, says("You are welcome.")]
    assert synced.references[-1] == "r2.p1"
    assert memory.sync(system) == Synced(0, len(system), dropped=7)


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


def test_a_window_may_begin_with_a_system_message_from_the_middle() -> None:
    """A reminder that the host put into its history is not taken for the system prompt."""
    reminder = {"role": "system", "content": "Remember to be brief."}
    history = [SYSTEM, user("q"), says("a"), reminder, user("r")]
    memory = Memory()
    memory.sync(history)
    assert memory.sync([reminder, user("r"), says("b")]) == Synced(1, 2, dropped=2)
    assert memory.sync([SYSTEM, *history[3:], says("b")]) == Synced(0, 4, dropped=2)
    assert memory.messages() == [*history, says("b")]


def test_a_window_may_begin_with_an_erased_message() -> None:
    """The host still holds its words there, and they are not written again."""
    memory = Memory()
    memory.sync(HISTORY)
    memory.redact("r1.p4")
    assert memory.sync([*HISTORY[5:], says("Bye.")]) == Synced(1, 2, dropped=4)
    assert "17 is" not in str(memory.messages())


def test_a_restart_writes_nothing_again(tmp_path: Path) -> None:
    """The framework's own persistence has the history, and so has the store."""
    with closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as store:
        Memory("s", store=store).sync(HISTORY)
        again = Memory("s", store=store)
        assert again.sync(copy.deepcopy(HISTORY)) == Synced(0, 7)
        assert again.sync([*HISTORY, says("Bye.")]) == Synced(1, 7)


def test_two_processes_write_a_message_once() -> None:
    """Both are given the same history, and neither has read what the other wrote."""
    store = InMemoryStore()
    one, two = Memory("s", store=store), Memory("s", store=store)
    one.sync(HISTORY)
    assert two.sync(HISTORY) == Synced(0, 7)
    assert two.sync([*HISTORY, says("Bye.")]) == Synced(1, 7)
    assert one.sync([*HISTORY, says("Bye."), user("Bye.")]) == Synced(1, 8)
    assert one.messages() == [*HISTORY, says("Bye."), user("Bye.")]


def test_what_the_agent_appends_with_a_kind_is_not_missed_in_the_hosts_history() -> None:
    """A note of its own stays in the log where it was; the host may have it or not."""
    memory = Memory()
    memory.sync(HISTORY[:6])
    memory.append(says("They like to be thanked."), kind="note")
    assert memory.sync(HISTORY) == Synced(1, 6)
    assert memory.messages()[6] == says("They like to be thanked.")
    assert memory.sync(HISTORY).references[-1] == "r2.p0"
    assert memory.sync([*HISTORY[:6], says("They like to be thanked."), HISTORY[6]]).kept == 8


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
    history = [user("q"), *[says(f"{number}") for number in range(100)]]
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
        says("r"),
    ],
    "a repeated id later": [user("q"), *[calls(("a", "f", "{}")), result("a", "dry")] * 2, says("r")],
    "a result first": [result("a", "dry"), says("r"), user("q"), result("b", "wet"), result("a", "dry")],
    "a result behind the user's word": [
        user("q"),
        calls(("a", "f", "{}")),
        user("Well?"),
        result("a", "dry"),
        says("r"),
    ],
    "nothing said": [
        user(""),
        says(""),
        user(""),
        {"role": "assistant", "content": None},
        {"role": "user", "content": []},
    ],
    "a call of no known form": [user("q"), {"role": "assistant", "content": None, "function_call": [{}]}],
    "a mark of erased words": [user("[Redacted]"), says("[Redacted]"), user("q")],
    "a megabyte": [user("q" * 1_000_000), says("a" * 1_000_000)],
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
    edited = [*TURNS[:7], user("no"), says("Why?")]
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


def test_a_list_with_a_gap_is_known_though_words_were_erased_in_it() -> None:
    """Nothing is undone, and the erased words are not written again."""
    memory = Memory()
    memory.sync(TURNS)
    memory.redact("r5.p1")
    for front in ([], TURNS[:1], [user("a summary")]):
        for begin in range(6, 14, 2):
            for one in (memory, Memory(memory.session_id, store=memory._store)):
                synced = one.sync(copy.deepcopy([*front, *TURNS[begin:]]), on_divergence="raise")
                assert (synced.appended, synced.undone) == (0, 0)


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


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("own", [[], [user("a summary")], [user("Sum up!"), says("a summary")]])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_host_that_keeps_its_first_messages_or_a_summary_drops_the_others(
    own: list[Message], first: int, restarts: bool
) -> None:
    """What it dropped stays in the log, the summary does not get there, and the host's list grows and slides on."""
    memory = Memory()
    memory.sync([SYSTEM, *TURNS[:13]])
    for end in range(13, 18):
        if restarts:
            memory = Memory(memory.session_id, store=memory._store)
        history = [SYSTEM, *TURNS[:first], *own, *TURNS[9:end]]
        synced = memory.sync(copy.deepcopy(history), on_divergence="raise")
        assert (synced.appended, synced.skipped, synced.dropped) == (end > 13, len(own), 9 - first)
        assert synced.appended + synced.kept + synced.skipped == len(history)
        assert synced.references[1 + first : 1 + first + len(own)] == [None] * len(own)
        assert [synced.find(ref) for ref in synced.references if ref] == [
            place for place, ref in enumerate(synced.references) if ref
        ]
        assert memory.messages() == [SYSTEM, *TURNS[:end]]


def test_a_summary_that_changes_rewinds_nothing() -> None:
    """The framework sums up again, some turns later, and by other words for the same messages."""
    memory = Memory()
    for end in range(1, len(TURNS) + 1):
        begin = max(end - 5, 0) // 3 * 3
        summary = [user(f"summary of {begin}, told at {end}")] if begin else []
        memory.sync([*summary, *TURNS[begin:end]], on_divergence="raise")
    assert memory.messages() == TURNS
    assert Memory(memory.session_id, store=memory._store).sync([user("in short"), *TURNS[12:]]).kept == 6


@pytest.mark.parametrize("first", [0, 1])
def test_an_edit_behind_a_summary_rewinds_no_further_than_to_it(first: int) -> None:
    """Also in the first message behind it, in the same process."""
    front = [*TURNS[:first], user("a summary")]
    for edited in range(9, 13):
        memory = Memory()
        memory.sync(TURNS[:13])
        memory.sync([*front, *TURNS[9:13]])
        memory.sync([*front, *TURNS[9:edited], user("no")])
        assert memory.messages()[-1] == user("no")
        if edited > 9:
            assert memory.messages() == [*TURNS[:edited], user("no")]


@pytest.mark.parametrize("length", [4, 6, 9, 18])
@pytest.mark.parametrize("edited", [0, 1, 3])
def test_as_many_other_messages_as_are_missing_are_an_edit(length: int, edited: int) -> None:
    """Though all that follows is as it was; it is written again behind the edit."""
    memory = Memory()
    memory.sync(TURNS[:length])
    history = [*TURNS[:edited], user("other"), *TURNS[edited + 1 : length]]
    with pytest.raises(HistoryDiverged) as caught:
        memory.sync(history, on_divergence="raise")
    assert caught.value.index == edited
    assert memory.sync(history).undone == length - edited
    assert memory.messages() == history


def test_a_window_of_messages_alike_loses_nothing() -> None:
    """Users say "go on", and agents ask a tool again and again; the host keeps the newest, and the first message."""
    for turn in ([user("go on")], [user("go on"), says("ok")], [calls(("a", "look", "{}")), result("a", "Not yet.")]):
        for first in ([], [user("Look until it is there.")]):
            memory = Memory()
            memory.sync([*first, *turn * 10])
            for _ in range(3):
                synced = memory.sync(copy.deepcopy([*first, *turn * 4]), on_divergence="raise")
                assert (synced.appended, synced.dropped) == (0, 6 * len(turn))
            assert memory.sync([*first, *turn * 4, says("Done.")], on_divergence="raise").appended == 1
            assert memory.messages() == [*first, *turn * 10, says("Done.")]


def test_an_edit_between_words_that_repeat_is_an_edit() -> None:
    """What was asked before and after says the same; what was asked otherwise is not to be shown any more."""
    turn = [calls(("a", "look", "{}")), result("a", "Not yet."), says("Please wait.")]
    memory = Memory()
    memory.sync([user("Is it there?"), *turn, user("And in town?"), *turn])
    history = [user("Is it there?"), *turn, user("And at the port?")]
    assert memory.sync(history).undone == 4
    assert memory.messages() == history


def test_a_call_that_is_asked_for_again_is_a_fork() -> None:
    """The whole log stands at the end of the list, behind what came before: messages of the log stand for no others."""
    turn = [user("q"), calls(("a", "look", "{}")), result("a", "Not yet."), says("Wait.")]
    memory = Memory()
    memory.sync(turn)
    history = [*turn[:2], *turn]
    for _ in range(2):
        synced = memory.sync(history)
        assert (synced.skipped, synced.dropped) == (0, 0)
        assert memory.messages() == history


def test_a_branch_that_ends_as_the_history_began_is_left_again() -> None:
    """The newest messages of the log are the host's oldest: that is no list with a gap."""
    memory, branch = Memory(), [*TURNS[:-4], *TURNS[:4]]
    memory.sync(TURNS)
    assert (memory.sync(branch).undone, memory.sync(TURNS).undone) == (4, 4)
    assert memory.messages() == TURNS


def test_who_goes_back_to_words_that_were_said_again_later_goes_back() -> None:
    """One message alone behind a hole says too little: an answer is to be made anew here."""
    history = [user("Write!"), says("One."), user("go on"), says("Two."), user("go on")]
    memory = Memory()
    memory.sync(history)
    assert memory.sync(history[:3]).undone == 2
    assert memory.messages() == history[:3]


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


def test_the_same_history_twice_changes_nothing_where_it_could_begin_in_two_places() -> None:
    """All messages are alike, one of the log's was erased, and the host has dropped its oldest."""
    memory = Memory("session")
    turns = [[user("yes"), says("go on")], [user("yes"), calls(("a", "f", "{}")), result("a", "yes"), says("go on")]]
    history = turns[0] + turns[1] + turns[0]
    memory.sync(history)
    history = history[2:]
    memory.sync(history)
    memory.redact("r1.p0")
    for _ in range(3):
        history += turns[0]
        memory.sync(history)
        again = memory.sync(copy.deepcopy(history))
        assert (again.appended, again.kept, again.undone) == (0, len(history), 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            [user("Create."), calls(("a", "create", "1")), result("a", "No."), calls(("b", "create", "2"))],
            [user("Delete."), calls(("c", "delete", "1"))],
        ),
        ([calls(("a", "write", "1")), result("a", "No."), calls(("b", "write", "2"))], [calls(("c", "write", "3"))]),
        ([user("Book."), says("When?"), user("Monday.")], [user("Cancel.")]),
    ],
    ids=["a branch", "an answer made again", "no calls"],
)
def test_a_branch_that_ends_as_the_old_one_did_is_no_summary(old: list[Message], new: list[Message]) -> None:
    """Its words and calls are the newest that the host says: prompts show them, and nothing of the old branch."""
    end = [result(new[-1]["tool_calls"][0]["id"], "ok")] if new[-1]["role"] == "assistant" else [says("Shall I?")]
    old_end = [result("b", "ok")] if old[-1]["role"] == "assistant" else end
    memory = Memory()
    memory.sync([*TURNS[:2], *old, *old_end, says("Done.")])
    history = [*TURNS[:2], *new, *end, says("Done.")]
    with pytest.raises(HistoryDiverged):
        memory.sync(history, on_divergence="raise")
    assert memory.sync(history).skipped == 0
    assert memory.messages() == history


@pytest.mark.parametrize("edited", [0, 1])
def test_an_edit_where_a_window_begins_is_an_edit(edited: int) -> None:
    """The last call knows that the window began there, so one message stands for one."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync(TURNS[6:])
    window = [*TURNS[6 : 6 + edited], {**TURNS[6 + edited], "content": "edited"}, *TURNS[7 + edited :]]
    with pytest.raises(HistoryDiverged):
        memory.sync(window, on_divergence="raise")
    memory.sync(window)
    assert memory.messages() == [*TURNS[:6], *window]


@pytest.mark.parametrize("place", [4, 17])
def test_one_word_of_the_log_does_not_make_a_new_history_a_window(place: int) -> None:
    """All that follows is another history, and nothing of the old one is shown."""
    memory = Memory()
    memory.sync(TURNS)
    history = [{**TURNS[place]}, says("Something"), user("else.")]
    memory.sync(history)
    assert memory.messages() == history


def test_an_edit_in_front_of_a_summary_is_an_edit() -> None:
    """The summary alone is the host's own: the last call knows that the log has the other message."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync([TURNS[0], user("A summary."), *TURNS[4:]])
    history = [user("edited"), user("A summary."), *TURNS[4:]]
    memory.sync(history)
    assert memory.messages() == history


def test_calls_and_results_that_are_alike_make_no_window_of_another_history() -> None:
    """Two histories in one log each ask for the same row twice, and each query is shown with its own history."""
    memory, histories = Memory(), [[user("A")], [user("B")]]
    for turn in range(3):
        for history in histories:
            for step in range(2):
                history += [calls((f"{turn}{step}", "look", "{}")), result(f"{turn}{step}", "row 1")]
                memory.sync(history)
                assert memory.messages() == history
            history += [says("ok"), user(f"{history[0]['content']} {turn}")]
            memory.sync(history)
            assert memory.messages() == history


def talk(*texts: str) -> list[Message]:
    return [(user, says)[place % 2](text) for place, text in enumerate(texts)]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("old", "kept", "new"),
    [
        (["next", "PIN 4711", "next", "done"], 1, ["done"]),
        (["next", "PIN 4711", "next", "done"], 1, ["done", "next", "done"]),
        (["next", "PIN 4711", "next", "done"], 1, ["done", "thanks", "bye"]),
        (["Hi", "Hello", "ok", "ok", "PIN", "4711", "ok", "ok"], 2, ["ok", "ok"]),
        (["ok", "yes", "ok", "4711", "ok", "yes"], 2, ["ok", "no", "ok", "4711", "ok", "yes"]),
        (["ok", "ok", "ok", "ok"], 2, []),
        (["ok", "yes", "PIN", "4711", "ok", "yes"], 2, ["no", "4711", "ok", "yes"]),
    ],
)
def test_short_words_that_repeat_keep_no_word_that_the_host_no_longer_has(
    old: list[str], kept: int, new: list[str], copies: bool
) -> None:
    """An answer made again, a fork or an insertion that says what was said at the end is no window."""
    memory, history = Memory(), talk(*old)
    memory.sync(history)
    history = [*history[:kept], *talk(*[""] * kept, *new)[kept:]]
    memory.sync(copy.deepcopy(history) if copies else history)
    if copies and not new:  # nobody can know
        assert {one["content"] for one in memory.messages()} <= {*old[:kept]}
    else:
        assert memory.messages() == history


def test_the_same_first_object_begins_the_list_where_it_did() -> None:
    """Though the newest messages of the log say what those behind it say, too: the host dropped nothing."""
    for begin in ([], ["Where?", "Here."]):
        history = talk(*begin, *["continue", "ok"] * 2, "4711", "noted", *["go on", "yes"] * 10)
        memory = Memory()
        memory.sync(history)
        edited = [*history[:2], *talk(*["go on", "yes"] * 10)]
        memory.sync(edited)
        assert memory.messages() == edited


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["q0", "a0", "q1", "a1", *["next", "done"] * 4], ["q0", "a0", "ok", "done", *["next", "done"] * 3]),
        (["ok", "a0", *"qrstuvwx"], ["ok", "a0", "ok", "r", *"uvwx"]),
        (["ok", "a0", *"qrstuvwx"], ["ok", "a0", "ok", *"vwx"]),
    ],
)
def test_a_word_that_the_user_says_again_is_no_summary(old: list[str], new: list[str], copies: bool) -> None:
    """Nor is a new one before words that repeat: it is the user's, and prompts show it."""
    memory, history = Memory(), talk(*old)
    memory.sync(history)
    edited = [*history[:2], *talk(*new)[2:]]
    assert memory.sync(copy.deepcopy(edited) if copies else edited).skipped == 0
    assert memory.messages() == edited


@pytest.mark.parametrize("kept", [["ok", "yes"], ["ok", "yes", "ok"], ["ok"], []])
@pytest.mark.parametrize("appended", [0, 1, 2])
def test_objects_of_the_last_call_are_known_behind_a_hole_though_their_words_repeat(
    kept: list[str], appended: int
) -> None:
    """The host dropped what was between them: nothing later is undone."""
    memory = Memory()
    history = talk("Hi", "Hello", "ok", "yes", "PIN", "4711", *(kept or ["bye"]))
    memory.sync(history)
    new = talk(*[""] * len(history), "new", "newer")[len(history) : len(history) + appended]
    synced = memory.sync([*history[:2], *history[6:], *new], on_divergence="raise")
    assert (synced.appended, synced.dropped, synced.undone) == (appended, 4, 0)
    assert memory.messages() == [*history, *new]


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("words", ["abcdef", "abacde"])
def test_a_message_that_moved_in_the_list_is_not_taken_for_dropped(words: str, first: int, made_anew: bool) -> None:
    """It would be shown twice."""
    memory, history = Memory(), talk(*words)
    memory.sync(history)
    history = [*history[:first], *history[first + 2 :], *history[first : first + 2]]
    memory.sync(copy.deepcopy(history) if made_anew else history)
    assert memory.messages() == history


@pytest.mark.parametrize("is_erased", [False, True])
def test_a_message_that_moved_beside_a_dropped_or_an_erased_one_is_not_taken_for_dropped(is_erased: bool) -> None:
    memory, history = Memory(), talk(*"abcdef")
    references = memory.sync(history).references
    if is_erased:
        memory.redact(str(references[2]))
        history = [*history[:1], *history[3:], *history[1:3]]
    else:
        memory.sync(history[1:])
        history = [*history[2:4], history[1], *history[4:]]
    memory.sync(copy.deepcopy(history))
    assert memory.messages()[-len(history) :] == history
    assert [one["content"] for one in memory.messages()].count("b") == 1


@pytest.mark.parametrize("words", ["abcdefagh", "abcdefghijelm"])
def test_a_host_that_keeps_its_newest_messages_may_say_again_what_it_drops(words: str) -> None:
    """Each call drops one message and adds one: the same words are new, not moved, and nothing is undone."""
    memory, history = Memory(), talk(*words)
    for end in range(1, len(history) + 1):
        memory.sync(copy.deepcopy(history[max(0, end - 6) : end]))
        assert memory.messages() == history[:end]


@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("first", [0, 2, 4])
def test_a_host_may_drop_what_was_erased(first: int, made_anew: bool) -> None:
    """The messages after it are not taken for it."""
    memory, history = Memory(), talk(*"abcdef")
    for reference in memory.sync(history).references[first : first + 2]:
        memory.redact(str(reference))
    del history[first : first + 2]
    for text in ("", "g"):
        history = [*history, *talk(*[""] * len(history), text)[len(history) :]] if text else history
        synced = memory.sync(copy.deepcopy(history) if made_anew else history, on_divergence="raise")
        assert (synced.appended, synced.dropped) == (len(text), 2)
    assert [one for one in memory.messages() if one["content"] != "[Redacted]"] == history


def test_a_host_may_drop_what_was_erased_and_edit_what_follows() -> None:
    memory, history = Memory(), talk(*"abcdefgh")
    for reference in memory.sync(history).references[2:4]:
        memory.redact(str(reference))
    history = [*history[:2], *history[4:6], user("edited")]
    memory.sync(history)
    assert [one for one in memory.messages() if one["content"] != "[Redacted]"] == history


def test_a_host_that_removes_all_calls_of_its_older_turns_undoes_nothing() -> None:
    """Many holes at once, each with little behind it."""
    turns = [
        [user(f"q{n}"), calls((f"c{n}", "look", f'{{"n": {n}}}')), result(f"c{n}", f"r{n}"), says(f"a{n}")]
        for n in range(6)
    ]
    history = [one for turn in turns for one in turn]
    for other in (None, 5):
        memory = Memory()
        memory.sync(history)
        if other:
            memory = Memory(memory.session_id, store=memory._store)
        plain = [one for turn in turns[:-1] for one in (turn[0], turn[-1])]
        synced = memory.sync([*copy.deepcopy([*plain, *turns[-1]]), user("new")], on_divergence="raise")
        assert (synced.appended, synced.dropped) == (1, 10)
        assert memory.messages() == [*history, user("new")]


def test_a_window_that_begins_with_a_call_that_repeats_keeps_the_call_with_its_results() -> None:
    """The log's first message is the same call, with another result."""
    turns = [
        [calls((f"c{n}", "look", "{}")), result(f"c{n}", f"{n} left"), says(f"a{n}"), user(f"q{n}")] for n in range(4)
    ]
    memory = Memory()
    memory.sync([one for turn in turns for one in turn])
    window = copy.deepcopy([one for turn in turns[2:] for one in turn])
    assert memory.sync(window, on_divergence="raise") == Synced(0, 8, dropped=8)


def test_the_last_message_is_in_the_log_even_if_it_is_the_hosts_summary() -> None:
    """The host went back to it, and a prompt ends with it; what it stands for stays."""
    memory = Memory()
    memory.sync(TURNS)
    memory.sync([user("A summary."), *TURNS[8:]])
    synced = memory.sync([user("A summary.")])
    assert (synced.appended, synced.skipped) == (1, 0)
    assert synced.references[-1] is not None
    assert memory.messages() == [*TURNS[:8], user("A summary.")]
    assert memory.sync([user("A summary."), says("Go on.")]) == Synced(1, 1, dropped=8)


def test_a_turn_that_the_agent_does_again_after_a_fork_does_not_keep_what_the_host_left_out() -> None:
    """The host gives its objects again, and new ones with the words of the turn that follows in the log."""
    memory = Memory()
    first, left_out = user("Which rows?"), user("Only those of May.")
    turn = [user("Show them."), calls(("c1", "look", "{}")), result("c1", "row 1"), says("One row.")]
    memory.sync([first, left_out, *turn])
    history = [first, *copy.deepcopy(turn)]
    assert memory.sync(history) == Synced(4, 1, undone=5)
    assert memory.messages() == history


def test_what_the_agent_keeps_for_itself_does_not_hide_what_the_host_dropped() -> None:
    """A note stands in the log between the host's messages."""
    memory = Memory()
    memory.sync(TURNS[:2])
    memory.append(says("a note"), kind="note")
    memory.sync(TURNS[:6])
    memory.sync(TURNS[1:6])
    assert memory.sync(TURNS[2:6], on_divergence="raise") == Synced(0, 4, dropped=2)
