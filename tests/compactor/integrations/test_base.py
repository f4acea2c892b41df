"""What all adapters promise, with a framework of a few lines: messages are objects, and one may say several things."""

from __future__ import annotations

import asyncio
import copy
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from compactor import RECALL_TOOLS, CompactorConfig, ExtractiveSummarizer, Sessions, SummaryRequest
from compactor.formats import anthropic, gemini, responses
from compactor.integrations.base import Conversations, Converted, Group, Message, join_names
from compactor.integrations.unnamed import UnnamedSessions
from memory import InMemoryStore, Memory, MessageError, StoreError
from memory.io_threads import MAX_THREADS
from memory.sync import NEWEST


@dataclass(frozen=True, eq=False)
class Turn:
    """One object of the framework; says all of *messages*."""

    messages: tuple[Message, ...]


class Compaction(Conversations[Turn]):
    def read(self, items: Sequence[Turn]) -> Iterable[Group[Turn]]:
        return [Group([item], item.messages) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[Turn]:
        return [Turn((message,)) for message in messages]


class Items(Converted[Any]):
    """Items of a provider: *convert* reads them, one list of messages for each, and *write* makes a request."""

    def __init__(self, convert: Any, write: Any, **options: Any) -> None:
        super().__init__(**options)
        self._convert, self._write = convert, write
        self.count_read = self.count_compared = 0

    def read(self, items: Sequence[Any]) -> Iterable[Group[Any]]:
        self.count_read += len(items)
        return [Group([item], messages) for item, messages in zip(items, self._convert(items), strict=True)]

    def write(self, messages: Sequence[Message]) -> Iterable[Any]:
        return next(one for one in self._write(messages).values() if isinstance(one, list))

    def print_item(self, item: Any) -> str:
        self.count_compared += 1
        return super().print_item(item)


def ask(number: int) -> list[Turn]:
    """A question; then an answer with a call, and its result, in one object."""
    call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        Turn(({"role": "user", "content": f"question {number}"},)),
        Turn(
            (
                {"role": "assistant", "content": "I look.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number} " + "word " * 60},
            )
        ),
    ]


def say(shown: list[Turn]) -> list[Any]:
    return [message["content"] for turn in shown for message in turn.messages]


def test_without_pressure_the_model_reads_the_hosts_own_objects() -> None:
    history = [turn for number in range(3) for turn in ask(number)]
    with Compaction(8_000) as compaction:
        fitted = compaction.fit("s", history, system="Be brief.")

    assert (fitted.system, fitted.added) == ("Be brief.", "")
    assert all(one is other for one, other in zip(fitted.items, history, strict=True))


def test_under_pressure_whole_objects_are_the_hosts_own_and_the_prompt_fits() -> None:
    history = [turn for number in range(40) for turn in ask(number)]
    with Compaction(1_500) as compaction:
        fitted = compaction.fit("s", history, system="Be brief.")

    shown = fitted.items
    assert fitted.system == f"Be brief.\n\n{fitted.added}"
    assert fitted.added
    assert len(shown) < len(history)
    assert shown[-1] is history[-1]
    said = {str(turn.messages): turn for turn in history}
    whole = [turn for turn in shown if str(turn.messages) in said]
    assert whole
    assert all(turn is said[str(turn.messages)] for turn in whole)


def test_the_same_history_is_not_written_twice_and_going_back_hides_what_was_undone() -> None:
    history = [turn for number in range(5) for turn in ask(number)]
    with Compaction(8_000) as compaction:
        compaction.fit("s", history)
        compaction.fit("s", [Turn(turn.messages) for turn in history])
        with compaction.sessions().open("s") as session:
            assert len(session.memory.messages()) == 15
        shown = compaction.fit("s", [*history[:4], *ask(9)]).items

    assert say(shown) == say([*history[:4], *ask(9)])


def test_sessions_are_apart() -> None:
    with Compaction(8_000) as compaction:
        compaction.fit("a", ask(1))
        shown = compaction.fit("b", ask(2)).items

    assert say(shown) == say(ask(2))


class Unwritable(InMemoryStore):
    """A store whose disk is full from now on, once it is told so."""

    is_full = False

    def append(self, *args: Any, **options: Any) -> Any:
        if self.is_full:
            raise StoreError("the disk is full")
        return super().append(*args, **options)


def test_an_answer_that_cannot_be_written_now_is_not_lost() -> None:
    """The framework's hook would lose it if we raised; the next call writes it."""
    store, history = Unwritable(), [*ask(1), Turn(({"role": "assistant", "content": "All is well."},))]
    with Compaction(8_000, store=store) as compaction:
        compaction.fit("s", history[:-1])
        store.is_full = True
        with capture_logs() as events:
            compaction.keep("s", history[-1:])
            asyncio.run(compaction.akeep("s", history[-1:]))
        store.is_full = False

        assert [(one["event"], one["error"]) for one in events] == [("answer.not_kept", "StoreError")] * 2
        assert "well" not in repr(events)
        assert say(compaction.fit("s", history).items) == say(history)
        with compaction.sessions().open("s") as session:
            assert [one["content"] for one in session.memory.messages()][-1] == "All is well."


def test_an_answer_after_the_end_changes_nothing() -> None:
    store = InMemoryStore()
    compaction = Compaction(8_000, store=store)
    compaction.fit("s", ask(1))
    compaction.close()
    before = Memory("s", store=store).messages()

    compaction.keep("s", [Turn(({"role": "assistant", "content": "All is well."},))])

    assert Memory("s", store=store).messages() == before


def test_a_system_prompt_in_parts_is_given_as_text() -> None:
    parts = [{"type": "text", "text": "Be brief. "}, {"type": "text", "text": "Be kind."}]
    history = [Turn(({"role": "system", "content": parts},)), *ask(1)]
    with Compaction(8_000) as compaction:
        assert compaction.fit("s", history).system == "Be brief. Be kind."


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_switches")
def test_callers_of_one_session_read_each_their_own_history() -> None:
    """Also in parallel: branches of a graph, agents that share a name."""
    histories = [ask(number) for number in range(6)]
    with Compaction(8_000) as compaction, ThreadPoolExecutor(6) as threads:

        def talk(history: list[Turn]) -> list[list[Any]]:
            return [say(compaction.fit("s", history).items) for _ in range(20)]

        for history, shown in zip(histories, threads.map(talk, histories), strict=True):
            assert shown == [say(history)] * 20


def test_two_histories_that_take_turns_are_told_of_once_without_a_word_of_them() -> None:
    one, other = ([turn for number in numbers for turn in ask(number)] for numbers in (range(3), range(5, 8)))
    with Compaction(8_000) as compaction, capture_logs() as events:
        for _ in range(10):
            compaction.fit("alone", one)
            assert say(compaction.fit("s", one).items) == say(one)
            assert say(compaction.fit("s", other).items) == say(other)

    assert [(one["event"], one["session_id"]) for one in events] == [("sessions.shared", "s")]
    assert "question" not in repr(events)


def make_items(kind: str, turns: int, length: int = 10) -> list[Any]:
    """Return *turns* of a question, a call, its result and an answer, in the format of that *kind*."""
    chat: list[Message] = []
    for number in range(turns):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        chat += [
            {"role": "user", "content": f"question {number % 7}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"row {number} " + "word " * length},
            {"role": "assistant", "content": f"answer {number % 5}"},
        ]
    return list(next(one for one in FORMATS[kind].from_chat(chat).values() if isinstance(one, list)))


FORMATS: dict[str, Any] = {"responses": responses, "gemini": gemini, "anthropic": anthropic}


def open_items(kind: str, **options: Any) -> Items:
    return Items(FORMATS[kind].read_each, FORMATS[kind].from_chat, **options)


@pytest.mark.parametrize("kind", FORMATS)
def test_items_that_are_shown_whole_are_the_hosts_own(kind: str) -> None:
    """Also among many that say the same; and only as many are compared as the prompt has."""
    items = make_items(kind, 100, length=100)
    with open_items(kind, budget=3_000) as compaction:
        shown = compaction.fit("s", items).items

    own = {id(item): place for place, item in enumerate(items)}
    places = [own[id(item)] for item in shown if id(item) in own]
    assert 0 < len(places) == sum(item in items for item in shown) < len(shown) < len(items)
    assert places == sorted({*places})
    assert compaction.count_compared <= 2 * len(shown)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_newest_items_are_not_made_anew_where_all_of_them_are_shown_whole(kind: str) -> None:
    items = make_items(kind, 100)
    with open_items(kind, budget=2_000) as compaction:
        fitted = compaction.fit("s", items)

    assert 0 < len(fitted.items) < len(items)
    assert all(shown is own for shown, own in zip(fitted.items, items[-len(fitted.items) :], strict=True))
    assert fitted.added
    assert compaction.count_compared == 0


@pytest.mark.parametrize("copy_items", [list, copy.deepcopy])
def test_what_did_not_change_is_not_read_again(copy_items: Any) -> None:
    items = make_items("responses", 100)
    with open_items("responses", budget=8_000) as compaction:
        compaction.fit("s", items[:-1])
        compaction.count_read = 0
        compaction.fit("s", copy_items(items))

    assert compaction.count_read < 10


def test_an_item_that_another_release_cannot_read_is_named_by_its_place() -> None:
    items = make_items("responses", 100)
    with open_items("responses", budget=8_000) as compaction:
        compaction.fit("s", items)
        with pytest.raises(MessageError, match="item 401 "):
            compaction.fit("s", [*items, {"role": "nobody"}])


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(FORMATS)))
def test_whatever_history_a_host_gives_it_reads_what_a_host_reads_that_is_new(data: Any, kind: str) -> None:
    """Appended, edited in place among the newest messages, cut, forked, given as copies or as the same objects: a
    session of one adapter shows and keeps what a session does whose adapter is made anew for each call."""
    turns = make_items(kind, 60)
    items = turns[: data.draw(st.integers(100, 160), label="length")]
    idle = Sessions(budget=2_000, trigger=lambda _view: False)  # a summary would come sooner or later
    with idle as sessions, open_items(kind, budget=2_000, sessions=sessions) as known:
        for step in range(data.draw(st.integers(2, 6), label="steps")):
            acts = ["append", "edit", "copy", "drop_newest", "drop_oldest", "fork", "replace_old"]
            match data.draw(st.sampled_from(acts), label="act"):
                case "append":
                    items = [*items, *turns[len(items) : len(items) + data.draw(st.integers(1, 60), label="more")]]
                case "edit":
                    asked = [one for one in items[-NEWEST // 2 :] if "question" in str(one)]
                    if asked:  # else all was dropped
                        edited = data.draw(st.sampled_from(asked), label="edited")
                        edited.update(make_said(kind, f"question, edited {step}"))
                case "copy":
                    items = copy.deepcopy(items)
                case "drop_newest":
                    items = items[: -data.draw(st.integers(1, 60), label="less")]
                case "drop_oldest":
                    items = items[4 * data.draw(st.integers(1, 5), label="less") :]
                case "fork":
                    items = [*items[:-20], *make_items(kind, 1)]
                case "replace_old":
                    items = [make_items(kind, 1)[0] | make_said(kind, f"replaced {step}"), *items[1:]]
            shown = known.fit("known", items)
            with open_items(kind, budget=2_000, sessions=sessions) as anew:
                assert replace(shown, last_entry="") == replace(anew.fit("anew", items), last_entry="")
        with sessions.open("known") as one, sessions.open("anew") as other:
            assert one.memory.messages() == other.memory.messages()


def test_a_result_that_comes_late_answers_its_call() -> None:
    """Gemini's calls need no ids: which one a result answers is in the items before."""
    call, result = {"function_call": {"name": "look", "args": {}}}, {"name": "look", "response": {"result": "found"}}
    answered = {"role": "user", "parts": [{"function_response": result}]}
    talk = [{"role": role, "parts": [{"text": "Well."}]} for _ in range(60) for role in ("user", "model")]
    items = [talk[0], {"role": "model", "parts": [call, call]}, answered, talk[1], *talk]
    with open_items("gemini", budget=8_000) as compaction:
        compaction.fit("s", items)
        compaction.fit("s", [*items, answered])
        with compaction.sessions().open("s") as session:
            log = session.memory.messages()

    assert [one["tool_call_id"] for one in log if one["role"] == "tool"] == ["look", "look-2"]


def test_what_the_user_says_in_a_row_stays_apart() -> None:
    items = [{"role": "user", "parts": [{"text": f"word {number}"}]} for number in range(3 * NEWEST)]
    with open_items("gemini", budget=8_000) as compaction:
        compaction.fit("s", items[:-1])
        assert compaction.fit("s", items).items == items


def test_an_edit_in_place_is_found_after_going_back() -> None:
    items = make_items("responses", 60)
    with open_items("responses", budget=50_000) as compaction:
        compaction.fit("s", items)
        items[160]["content"] = "edited"
        compaction.fit("s", items[:200])
        with compaction.sessions().open("s") as session:
            assert session.memory.messages()[160]["content"] == "edited"


def make_said(kind: str, text: str) -> dict[str, Any]:
    return {"parts": [{"text": text}]} if kind == "gemini" else {"content": text}


def test_no_call_loses_its_result_where_a_replay_has_new_ids() -> None:
    """The log has the old ids, the framework's own objects the new ones; a prompt holds some of both."""

    def history(tag: str) -> list[Turn]:
        turns: list[Turn] = []
        for number in range(8):
            call = {"id": f"{tag}{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            result = {"role": "tool", "tool_call_id": call["id"], "content": f"row {number} " + "word " * 300}
            turns += [
                Turn(({"role": "user", "content": f"question {number}"},)),
                Turn(({"role": "assistant", "content": None, "tool_calls": [call]},)),
                Turn((result,)),
                Turn(({"role": "assistant", "content": f"answer {number}"},)),
            ]
        return [*turns, Turn(({"role": "user", "content": "And now?"},))]

    with Compaction(1_500) as compaction:
        for tag in "ab":
            given = history(tag)
            shown = compaction.fit("s", given).items
            assert 0 < sum(one not in given for one in shown) < len(shown)
            messages = [message for turn in shown for message in turn.messages]
            calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
            assert calls == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            assert {call[0] for call in calls} == {tag}


@pytest.mark.parametrize(
    ("session_id", "own", "name"),
    [
        (None, "thread", "thread"),
        (None, None, ""),
        ("mine", "thread", "mine"),
        (str.upper, "thread", "CONTEXT"),
        (lambda _context: None, "thread", "thread"),
    ],
)
def test_a_session_has_the_name_that_is_given_else_the_frameworks_own(session_id: Any, own: Any, name: str) -> None:
    assert Compaction(8_000, session_id=session_id).name_session("context", own) == name


NAMES = st.lists(st.text(st.sampled_from("a/%2F5"), max_size=4), min_size=1, max_size=3)


@given(one=NAMES, other=NAMES)
def test_two_lists_of_names_never_make_one_session(one: list[str], other: list[str]) -> None:
    assert (join_names(*one) == join_names(*other)) is (one == other)
    assert join_names("app", "user", 17) == "app/user/17"


def test_tools_answer_from_the_session_of_the_call() -> None:
    with Compaction(8_000) as compaction:
        compaction.fit("a", ask(1))
        compaction.fit("b", ask(2))

        assert "row 2" in compaction.call_tool("b", "read_rounds", {"start": 1})
        assert "row 1" not in compaction.call_tool("b", "read_rounds", '{"start": 1}')
        assert compaction.call_tool("b", "unknown", {}).startswith("Error:")
        assert [name for name, _, _ in compaction.describe_tools()] == list(RECALL_TOOLS)


TALKS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=2, max_size=4)


@given(TALKS, st.data())
def test_no_conversation_without_a_name_shows_a_word_of_another(talks: list[list[str]], data: st.DataObject) -> None:
    """Whatever they have in common, and in whichever order they speak; a turn may be asked for again."""
    said: list[list[Turn]] = [[] for _ in talks]
    with Compaction(8_000) as compaction:
        for at in data.draw(st.permutations([at for at, talk in enumerate(talks) for _ in talk])):
            number = len(said[at])
            said[at].append(Turn(({"role": "user", "content": talks[at][number]},)))
            for _ in range(data.draw(st.integers(1, 2))):
                assert compaction.fit("", said[at]).items == said[at]
            compaction.keep("", [Turn(({"role": "assistant", "content": f"to {at}"},))])


def test_conversations_without_a_name_keep_each_its_summary() -> None:
    """One session each, though they begin alike and take turns."""
    histories = [[*ask(0), *ask(number)] for number in (1, 2)]
    with Compaction(8_000) as compaction:
        for number in range(100, 120):
            for history in histories:
                history.extend(ask(number))
                compaction.fit("", history)
        assert len(list_unnamed(compaction)) == 2


def list_unnamed(compaction: Compaction) -> Sequence[str]:
    return compaction.sessions().store.sessions()


def talk(numbers: Iterable[int], tag: str = "") -> list[Turn]:
    """Questions with an answer each."""
    said = [(("user", f"question {one} {tag}"), ("assistant", f"answer {one} {tag}")) for one in numbers]
    return [Turn(({"role": role, "content": text},)) for pair in said for role, text in pair]


def serve(compaction: Compaction, history: list[Turn], numbers: Iterable[int], **options: Any) -> None:
    """Ask these questions without a name; the host's *history* may have a *limit*."""
    limit = options.get("limit", 0)
    for number in numbers:
        question, answer = talk([number], options.get("tag", ""))
        history.append(question)
        given = history[-limit:]
        assert compaction.fit("", given).items[-1] is question
        history.append(answer)


def test_a_conversation_without_a_name_that_drops_its_oldest_messages_stays_one_session() -> None:
    """Also in one go, and behind its first message."""
    history: list[Turn] = []
    with Compaction(8_000) as compaction:
        serve(compaction, history, range(20), limit=9)
        assert len(list_unnamed(compaction)) == 1
        with compaction.sessions().open(list_unnamed(compaction)[0]) as session:
            assert len(session.memory.messages()) == 39
        del history[:26]
        serve(compaction, history, range(20, 24))
        del history[1:7]
        serve(compaction, history, range(24, 26))
        assert len(list_unnamed(compaction)) == 1


def test_a_conversation_without_a_name_whose_newest_messages_were_edited_stays_one_session() -> None:
    """Taken back, said otherwise, or both where the oldest are dropped; nothing of that is shown."""
    history: list[Turn] = []
    with Compaction(8_000) as compaction:
        for number in range(4, 40, 4):
            serve(compaction, history, range(number, number + 4), limit=15 if number > 20 else 0)
            del history[-3:]
            history += talk([number + 2], "otherwise")[1:]
        shown = say(compaction.fit("", [*history[-14:], *talk([99])[:1]]).items)
        assert "answer 38 " not in shown
        assert "answer 38 otherwise" in shown
        assert len(list_unnamed(compaction)) == 1


@pytest.mark.parametrize("limit", [0, 9])
def test_a_conversation_without_a_name_is_found_in_the_store_after_a_restart(tmp_path: Path, limit: int) -> None:
    """Also by its newest messages, and where the last answer was taken back and the question said otherwise."""
    url, history = f"sqlite:///{(tmp_path / 's.db').as_posix()}", list[Turn]()
    for life in range(4):
        with Compaction(8_000, store=url) as compaction:
            serve(compaction, history, range(life * 6, life * 6 + 6), limit=limit)
            for number in range(3):  # others begin as it did
                serve(compaction, talk([0]), [1], tag=f"{life} {number}")
            if not limit:
                del history[-2:]
            names = list_unnamed(compaction)
    sizes = []
    with Compaction(8_000, store=url) as compaction:
        for name in names:
            with compaction.sessions().open(name) as session:
                sizes.append(len(session.memory.messages()))
    assert [size for size in sizes if size > 3] == ([47] if limit else [41])


def test_what_many_say_finds_no_session_of_another(tmp_path: Path) -> None:
    """Openings that are the same word for word, in turn and at once; the others are neither shown nor undone."""
    url = f"sqlite:///{(tmp_path / 's.db').as_posix()}"
    histories: list[list[Turn]] = [[] for _ in range(6)]
    for _life in range(2):
        with Compaction(8_000, store=url) as compaction:
            for history in histories[:3]:
                serve(compaction, history, [] if history else range(3))
            for number in [] if histories[3] else range(3):
                for history in histories[3:]:
                    serve(compaction, history, [number])
            for number in (3, 4):
                for place, history in enumerate(histories):
                    serve(compaction, history, [number], tag=f"from guest{place}")
            names = list_unnamed(compaction)
            for name in names:
                with compaction.sessions().open(name) as session:
                    assert len(set(re.findall(r"guest\d", str(session.memory.conversation.rounds)))) <= 1
    assert len(names) == len(histories)


def test_two_that_go_on_from_one_place_have_a_session_each() -> None:
    """A branch takes the session once, as an edit would; then the other one says that it was none."""
    history: list[Turn] = []
    with Compaction(8_000) as compaction:
        serve(compaction, history, range(6))
        branch = history[:8]
        for number in range(10, 16):
            serve(compaction, branch, [number])
            serve(compaction, history, [number + 10])
        assert len(list_unnamed(compaction)) == 2


def test_the_newest_messages_as_a_task_for_another_agent_take_the_session_once_at_most() -> None:
    """They look as if the host had dropped the others; when these come again, they are two."""
    history: list[Turn] = []
    with Compaction(8_000) as compaction:
        serve(compaction, history, range(6))
        for number in range(6, 12):
            serve(compaction, history[-6:], [0], tag=f"task {number}")
            serve(compaction, history, [number])
        for name in list_unnamed(compaction):
            with compaction.sessions().open(name) as session:
                said = [message["content"] for message in session.memory.messages()]
            assert "question 0 " not in said or not [one for one in said if "task" in one and "task 6" not in one]


def test_sessions_without_a_name_take_limited_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used least recently is erased; its conversation goes on in a new one."""
    monkeypatch.setattr("compactor.integrations.unnamed.MAX_UNNAMED", 2)
    histories = [ask(number) for number in range(5)]
    with Compaction(8_000) as compaction:
        for history in [*histories, histories[0]]:
            assert compaction.fit("", history).items == history
        assert len(list(compaction.sessions().store.sessions())) == 2


def test_callers_without_a_name_who_say_the_same_at_once_have_a_session_each() -> None:
    purged: list[str] = []
    unnamed = UnnamedSessions(InMemoryStore(), purged.append)
    with unnamed.find(ask(1)[0].messages) as one, unnamed.find(ask(1)[0].messages) as other:
        assert one != other
    with unnamed.find(ask(1)[0].messages) as again:
        assert {again, *purged} == {one, other}
        assert [again] != purged


def test_a_request_without_a_name_that_is_sent_again_keeps_its_conversation() -> None:
    """While the first is still running: the conversation's own session stays, whichever ends first."""
    for first_ends_first in (True, False):
        purged: list[str] = []
        unnamed = UnnamedSessions(InMemoryStore(), purged.append)
        history = [message for turn in range(3) for message in ask(turn)[0].messages]
        with unnamed.find(history) as session:
            pass
        history += ask(3)[0].messages
        with ExitStack() as first, ExitStack() as again:
            assert first.enter_context(unnamed.find(history)) == session
            other = again.enter_context(unnamed.find(history))
            (first if first_ends_first else again).close()
        assert purged == [other]
        with unnamed.find([*history, *ask(4)[0].messages]) as found:
            assert found == session


@pytest.mark.parametrize("broken", [0, 1])
def test_a_damaged_log_hides_no_other_conversation_without_a_name(broken: int) -> None:
    """After a restart each is found by what is stored; one that cannot be read is passed over."""
    store = InMemoryStore()
    sessions: dict[str, list[Turn]] = {}
    for number in range(2):
        turns = [turn for step in range(6) for turn in ask(step and 10 * number + step)]  # all begin alike
        with Compaction(8_000, store=store) as compaction:
            for end in range(2, len(turns) + 1, 2):
                compaction.fit("", turns[:end])
        (name,) = {*store.sessions()} - {*sessions}
        sessions[name] = turns
    damaged, sound = [*sessions][broken], [*sessions][1 - broken]
    store.redact(damaged, len([*store.read(damaged)]), "{")
    messages = [message for turn in sessions[sound] for message in turn.messages]
    with UnnamedSessions(store, store.purge).find(messages) as found:
        assert found == sound


def test_recall_without_a_name_is_refused() -> None:
    with Compaction(8_000) as compaction:
        compaction.fit("", ask(1))
        with pytest.raises(ValueError, match="session_id="):
            compaction.call_tool("", "read_rounds", {"start": 1})
        with pytest.raises(ValueError, match="session_id="):
            asyncio.run(compaction.acall_tool("", "read_rounds", {"start": 1}))


def test_a_redactor_also_sees_the_answer_that_is_kept_at_once() -> None:
    history, answer = ask(0), Turn(({"role": "assistant", "content": "The number is 555-0199."},))
    with Compaction(8_000) as compaction:
        compaction.redactor = lambda text: text.replace("555-0199", "[number]")
        compaction.fit("s", history)
        compaction.keep("s", [answer])
        asyncio.run(compaction.akeep("other", [answer]))
        logs = {}
        for name in ("s", "other"):
            with compaction.sessions().open(name) as session:
                logs[name] = session.memory.messages()
        fitted = compaction.fit("s", [*history, answer])

    assert [log[-1]["content"] for log in logs.values()] == ["The number is [number]."] * 2
    assert fitted.items == [*history, answer]


def test_no_work_is_done_on_the_event_loop() -> None:
    """Also with a store in memory, where nothing waits for a database: a long history takes long."""
    threads: set[int] = set()

    class Watched(Compaction):
        def read(self, items: Sequence[Turn]) -> Iterable[Group[Turn]]:
            threads.add(threading.get_ident())
            return super().read(items)

    class Store(InMemoryStore):
        def read(self, *args: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return super().read(*args, **options)

    async def run(work: Callable[[Watched], Awaitable[object]]) -> None:
        threads.clear()
        with Watched(8_000, store=Store()) as compaction:
            await work(compaction)
        assert threads
        assert threading.get_ident() not in threads

    history = [turn for number in range(3) for turn in ask(number)]
    for name in ("s", ""):
        asyncio.run(run(lambda compaction, name=name: compaction.afit(name, history)))  # type: ignore[misc]
    asyncio.run(run(lambda compaction: compaction.akeep("s", [Turn(({"role": "assistant", "content": "Well."},))])))
    asyncio.run(run(lambda compaction: compaction.acall_tool("s", "read_rounds", {"start": 1})))


def test_an_answer_is_kept_in_memory_at_once_but_behind_a_prompt_that_is_being_made() -> None:
    """To change threads would take longer. An answer that calls a tool is not kept, so it needs no thread."""
    begun, go = threading.Event(), threading.Event()
    threads: list[int] = []

    @dataclass(frozen=True, eq=False)
    class Call(Turn):
        type: str = "function_call"

    class Slow(Compaction):
        def read(self, items: Sequence[Turn]) -> Iterable[Group[Turn]]:
            threads.append(threading.get_ident())
            if len(items) > 1:
                begun.set()
                assert go.wait(30)
            return super().read(items)

    async def run() -> None:
        own, answer = threading.get_ident(), Turn(({"role": "assistant", "content": "Well."},))
        with Slow(8_000) as compaction:
            await compaction.akeep("s", [answer])
            assert threads == [own]
            await compaction.akeep("s", [Call(ask(0)[1].messages[:1])])
            assert threads == [own]
            fitting = asyncio.ensure_future(compaction.afit("s", [answer, *ask(1)]))
            assert await asyncio.to_thread(begun.wait, 30)
            keeping = asyncio.ensure_future(compaction.akeep("s", [Turn(({"role": "assistant", "content": "Done."},))]))
            await asyncio.sleep(0)
            assert not keeping.done()
            go.set()
            fitted = await fitting
            await keeping
            assert own not in threads[1:]
            with compaction.sessions().open("s") as session:
                said = [message["content"] for message in session.memory.messages()]
        assert said == [*say(fitted.items), "Done."]

    asyncio.run(run())


def test_callers_that_wait_for_one_session_hold_up_no_other() -> None:
    """Few threads serve all sessions: each caller that waits for its turn on one of them would take it from others."""
    begun, go = threading.Event(), threading.Event()

    class Slow(Compaction):
        def read(self, items: Sequence[Turn]) -> Iterable[Group[Turn]]:
            if not begun.is_set():
                begun.set()
                assert go.wait(30)
            return super().read(items)

    async def run() -> None:
        with Slow(8_000) as compaction:
            waiting = [asyncio.ensure_future(compaction.afit("slow", ask(1))) for _ in range(MAX_THREADS)]
            try:
                assert await asyncio.to_thread(begun.wait, 30)
                await asyncio.wait_for(compaction.afit("other", ask(2)), 10)
                assert not any(one.done() for one in waiting)
            finally:
                go.set()
                fitted = await asyncio.gather(*waiting)
            assert [len(one.items) for one in fitted] == [2] * MAX_THREADS

    asyncio.run(run())


def test_an_async_summarizer_runs_on_the_event_loop_of_the_host() -> None:
    """Its client may be used there alone."""
    loops: list[object] = []

    async def summarize(request: SummaryRequest) -> str:
        loops.append(asyncio.get_running_loop())
        return "; ".join(round_.user_query for round_ in request.rounds)

    async def run() -> None:
        with Compaction(1_500, summarizer=summarize) as compaction:
            await compaction.afit("s", [turn for number in range(40) for turn in ask(number)])
            with compaction.sessions().open("s") as session:
                await asyncio.to_thread(session.compactor.wait_idle, 30)
        assert set(loops) == {asyncio.get_running_loop()}

    asyncio.run(run())


class Model:
    """An agent's model, which summarizes too."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __call__(self, request: SummaryRequest) -> Any:
        self.asked |= {round_.user_query for round_ in request.rounds}
        return ExtractiveSummarizer()(request)


def settle(compaction: Compaction, session_id: str) -> None:
    with compaction.sessions().open(session_id) as session:
        assert session.compactor.wait_idle(30)


@pytest.mark.parametrize("before", ["nothing", "sessions", "call_tool", "keep", "fit", "fit with a name"])
def test_each_session_is_summarized_by_the_model_of_its_own_agent(before: str) -> None:
    """Whatever was called before a model was named, and whoever came first."""
    one, other = Model(), Model()
    with Compaction(1_500) as compaction:
        for name in ("a", "b"):
            if before == "sessions":
                settle(compaction, name)
            elif before == "call_tool":
                compaction.call_tool(name, "read_rounds", {"start": 1})
            elif before == "keep":
                compaction.keep(name, [Turn(({"role": "assistant", "content": "Hello."},))])
            elif before.startswith("fit"):
                compaction.fit(name, ask(1), model="gpt-5-mini" if "name" in before else None)
        for name, model, first in (("a", one, 0), ("b", other, 100)):
            compaction.fit(name, [turn for number in range(first, first + 40) for turn in ask(number)], model=model)
            settle(compaction, name)

    assert one.asked
    assert other.asked
    assert {len(query) for query in one.asked} <= {10, 11}
    assert {len(query) for query in other.asked} == {12}


@pytest.mark.parametrize("max_open", [100, 1])
def test_the_first_model_of_a_session_summarizes_it(max_open: int) -> None:
    """Though others answer later, and though it was closed meanwhile."""
    first, other, history = Model(), Model(), list[Turn]()
    with Compaction(1_500, max_open=max_open) as compaction:
        for number in range(40):
            history += ask(number)
            compaction.fit("s", history, model=other if number % 2 else first)
            settle(compaction, "s")
            settle(compaction, "t")

    assert first.asked
    assert not other.asked


@pytest.mark.slow
def test_what_the_user_chose_summarizes() -> None:
    """A summarizer by any of its names, one of the configuration, or that of sessions that are open."""
    chosen, model = Model(), Model()
    history = [turn for number in range(40) for turn in ask(number)]
    offline = CompactorConfig(summarizer_provider="extractive")
    with Sessions(budget=1_500) as sessions:
        for options in ({"summarizer": chosen}, {"llm_api": chosen}, {"config": offline}, {"sessions": sessions}):
            given: Any = options
            with Compaction(1_500, **given) as compaction:
                compaction.fit("s", history, model=model)
                settle(compaction, "s")

    assert len(chosen.asked) > 1
    assert not model.asked


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 0}, "budget: "),
        ({"budget": "8k"}, "budget: "),
        ({"max_open": 0}, "max_open: "),
        ({"sumarizer": 1}, "Compaction has no parameter 'sumarizer'; did you mean 'summarizer'?"),
        ({"summarizer": 17}, "int is no summarizer"),
        ({"store": "chat://db"}, "there is no store for 'chat://'"),
        ({"session_id": 17}, "session_id: "),
        ({"sessions": 1}, "sessions: "),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(options: Any, said: str) -> None:
    """And not in the first model call."""
    with pytest.raises((TypeError, ValueError, StoreError), match=re.escape(said)):
        Compaction(**{"budget": 8_000, **options})


def test_sessions_that_were_given_stay_open() -> None:
    with Sessions(budget=8_000) as sessions:
        with Compaction(8_000, sessions=sessions) as compaction:
            compaction.fit("s", ask(1))
        with sessions.open("s") as session:
            assert len(session.memory.messages()) == 3


def test_a_history_that_was_cleared_is_forgotten() -> None:
    with Compaction(8_000) as compaction:
        compaction.fit("s", ask(1))
        assert compaction.fit("s", []).items == []
        assert say(compaction.fit("s", ask(2)).items) == say(ask(2))
