"""Whatever a host does to its history, the log shows exactly that after ``sync``."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import at_once

from compactor import HistoryDiverged, InMemoryStore, Memory, Synced, open_store

Message = dict[str, Any]


class Host:
    """A framework: it holds a history, and a Memory that is to follow it."""

    def __init__(self, texts: int) -> None:
        self.store = InMemoryStore()
        self.memory = Memory("s", store=self.store)
        self.system: list[Message] = []
        self.body: list[Message] = []
        #: What the host dropped: only this may be shown beside the body. And whether the last step hides nothing.
        self.gone: set[str] = set()
        #: What the log cannot know again.
        self.erased: set[str] = set()
        self.keeps = False
        self._texts, self._numbers, self._ids = texts, count(), count()

    def text(self) -> str:
        number = next(self._numbers)
        return f"text {number % self._texts if self._texts else number}"

    # -- what a host does ----------------------------------------------------------------------------------------------

    def say(self, at: int) -> None:
        """A turn: a question, calls with their results in some order, an answer that may still be missing."""
        self.body.append({"role": "user", "content": self.text()})
        ids = [f"c{next(self._ids)}" for _ in range(at % 3)]
        if ids:
            wanted = json.dumps({"of": self.text(), "a": 1})
            asked = [{"id": one, "function": {"name": "f", "arguments": wanted}} for one in ids]
            self.body.append({"role": "assistant", "content": None, "tool_calls": asked})
            for one in ids[::-1] if at % 2 else ids:
                self.body.append({"role": "tool", "tool_call_id": one, "content": self.text()})
        if at % 5:
            self.body.append({"role": "assistant", "content": self.text()})

    def edit(self, at: int) -> None:
        if self.body:
            place = at % len(self.body)
            self.body[place] = self.body[place] | {"content": self.reword(self.body[place])}

    def edit_newest_in_place(self, at: int) -> None:
        if self.body:
            message = self.body[-1 - at % min(len(self.body), 50)]
            message["content"] = self.reword(message)

    def reword(self, message: Message) -> str:
        return f"{'summary' if is_summary(message) else 'edited'} {next(self._numbers)}"

    def go_back(self, at: int) -> None:
        if self.body:
            del self.body[1 + at % len(self.body) :]

    def fork(self, at: int) -> None:
        self.go_back(at)
        self.say(at)

    def drop_oldest(self, at: int) -> None:
        place = self.skip_results(at % (len(self.body) + 1))
        if place < len(self.body):
            self.drop(0, place, [])

    def replay(self, _at: int) -> None:
        """Make every object and every id anew, and write the arguments of calls in another way."""
        self.body = copy.deepcopy(self.body)
        ids: dict[str, str] = {}
        for message in self.body:
            message["id"] = f"m{next(self._ids)}"
            for call in message.get("tool_calls") or ():
                ids[call["id"]] = call["id"] = f"c{next(self._ids)}"
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            if "tool_call_id" in message:
                message["tool_call_id"] = ids[message["tool_call_id"]]

    def restart(self, _at: int) -> None:
        self.memory = Memory("s", store=self.store)

    def answer(self, _at: int) -> None:
        """The adapter hands over the final answer at once; the history has it too."""
        self.sync()
        self.body.append({"role": "assistant", "content": self.text()})
        self.memory.append(self.body[-1])

    def note(self, _at: int) -> None:
        """The agent keeps something for itself, which the host never has."""
        self.memory.append({"role": "assistant", "content": "a note"}, kind="note")

    def redact(self, at: int) -> None:
        """The words are erased in the log, and the host still has them."""
        references = self.memory.sync([*self.system, *self.body]).references[len(self.system) :]
        places = [place for place, one in enumerate(references) if one]
        if places:
            place = places[at % len(places)]
            self.erased.add(str(self.body[place]["content"]))
            self.memory.redact(str(references[place]))

    def change_system(self, at: int) -> None:
        self.system = [{"role": "system", "content": f"It is day {at}."}] * (at % 3)

    def drop_middle(self, at: int) -> None:
        """Keep the first messages and the newest, with a summary of those between or without."""
        first = at % 3
        last = self.skip_results(first + 1 + at % 11)
        if last + 2 < len(self.body):
            self.drop(first, last, [{"role": "user", "content": f"summary {next(self._numbers)}"}] * (at % 2))

    def summarize(self, at: int) -> None:
        """Put a summary in place of the oldest messages, and of the summary before."""
        last = self.skip_results(2 + at % 9)
        if last + 2 <= len(self.body):
            self.drop(0, last, [{"role": "user", "content": f"summary {next(self._numbers)}"}])

    def move(self, at: int) -> None:
        """Put one message, or a call with its results, elsewhere in the list; every other time in new objects."""
        groups = self.split_groups()
        if len(groups) > 1:
            moved = groups.pop(at % len(groups))
            groups.insert(at * 7 % (len(groups) + 1), moved)
            self.body = [one for group in groups for one in group]
            if at % 2:
                self.body = copy.deepcopy(self.body)
                if self.body[-1:] == moved:  # or it was dropped, and said again: nobody can know
                    self.gone |= {str(one) for one in said(moved)}

    def drop_erased(self, _at: int) -> None:
        """Drop what was erased, each call with its results."""
        for group in self.split_groups():
            if any(str(one["content"]) in self.erased for one in group):
                self.gone |= {str(one) for one in said(group)}
                self.body = [one for one in self.body if not any(one is other for other in group)]

    def split_groups(self) -> list[list[Message]]:
        """Return the messages, each call together with its results."""
        groups: list[list[Message]] = []
        for message in self.body:
            if message["role"] == "tool":
                groups[-1].append(message)
            else:
                groups.append([message])
        return groups

    def regenerate(self, at: int) -> None:
        """Ask in other words; the agent does less then, and ends as it did before: no more than three messages."""
        place = at % (len(self.body) + 1)
        newest = self.skip_results(max(place + 2, len(self.body) - at % 4))
        if newest < len(self.body):
            self.body[place:newest] = [{"role": "user", "content": f"edited {next(self._numbers)}"}]

    def drop(self, first: int, last: int, own: list[Message]) -> None:
        self.gone |= {str(one) for one in said(self.body)[first:last]}
        left = self.body[last:]
        has_query = len(left) >= 4 and any(one["role"] == "user" for one in left)
        is_plain = not any(is_summary(one) for one in self.body)
        self.keeps = is_plain and (has_query and last - first > 1 if own else len(left) > 1)
        self.body[first:last] = own

    def skip_results(self, place: int) -> int:
        """No host keeps a result without its call."""
        while place < len(self.body) and self.body[place]["role"] == "tool":
            place += 1
        return place

    # -- and what is to be so then -------------------------------------------------------------------------------------

    def sync(self) -> None:
        history = [*self.system, *self.body]
        before = self.memory.messages()
        synced = None
        with suppress(HistoryDiverged):
            synced = self.memory.sync(history, on_divergence="raise")
            assert synced.undone == 0
        if synced is None:
            assert self.memory.messages() == before
            synced = self.memory.sync(history)
            assert synced.undone > 0
        shown = [one for one in self.memory.messages() if one["content"] != "a note"]
        header = len(self.memory.header)
        assert len(shown) - header == synced.dropped + len(self.body) - synced.skipped
        if self.system:
            assert shown[:header] == self.system
        assert synced.appended + synced.kept + synced.skipped == len(history)
        called = {call["id"] for one in shown for call in one.get("tool_calls", ())}
        assert called >= {one["tool_call_id"] for one in shown if one["role"] == "tool"}
        self.check_places(synced, history)
        assert all(
            ref or is_summary(one) or str(one["content"]) in self.erased
            for one, ref in zip(self.body, synced.references[len(self.system) :], strict=True)
        )
        own = [one for one, ref in zip(said(history), synced.references, strict=True) if ref]
        extra = self.take(said(shown[header:]), own)
        if not self._texts:  # no two messages are alike, so there is no doubt what was dropped
            assert {str(one) for one in extra} <= self.gone or not self.body
            assert not (self.keeps and synced.undone)
        elif not self.gone and not self.erased:
            assert not extra
        self.keeps = False
        again = self.memory.sync(history)
        assert (again.appended, again.kept, again.undone) == (0, len(history) - synced.skipped, 0)
        assert again.references == synced.references

    def check_places(self, synced: Synced, history: list[Message]) -> None:
        """What the host has is in the log once, in its order, apart from what stands in place of dropped messages."""
        references = synced.references
        places = [place_of(ref) for ref in references if ref]
        assert places == sorted(set(places))
        assert len(history) - len(places) == len(self.system) + synced.skipped
        assert not self.body or references[-1] is not None
        rounds = {round_.number: round_ for round_ in self.memory.rounds_getter("assistant")()}
        given = said(history)
        for at, reference in enumerate(references):
            if reference is not None:
                assert synced.find(reference) == at
                text = self.memory.reload(reference)
                assert place_of(reference)[0] in rounds
                assert "[Redacted]" in text or (given[at][1] or "") in text

    def take(self, shown: list[Any], own: list[Any]) -> list[Any]:
        """Return what is *shown* beside the host's *own* messages, which are all shown in their order."""
        extra = []
        for one in reversed(shown):
            if own and are_alike(one, own[-1]):
                own.pop()
            else:
                extra.append(one)
        assert not own
        return extra


def place_of(reference: str) -> tuple[int, int]:
    round_, post = re.fullmatch(r"r(\d+)\.p(\d+)", reference).groups()  # type: ignore[union-attr]
    return int(round_), int(post)


def is_summary(message: Message) -> bool:
    return str(message["content"]).startswith("summary")


def said(messages: list[Message]) -> list[Any]:
    """Return what *messages* say, without ids but with the pairs of calls and results."""
    places: dict[str, int] = {}
    out: list[Any] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        places |= {call["id"]: place for place, call in enumerate(calls)}
        asked = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
        answers = places.get(message.get("tool_call_id", ""))
        out.append((message["role"], message["content"], asked, answers))
    return out


def are_alike(shown: Any, given: Any) -> bool:
    """Return whether *shown* says what *given* says, or its words were erased."""
    return bool(shown == given) or (shown[0], shown[1]) == (given[0], "[Redacted]")


ACTIONS: list[Callable[[Host, int], None]] = [
    Host.say,
    Host.say,
    Host.edit,
    Host.edit_newest_in_place,
    Host.go_back,
    Host.fork,
    Host.regenerate,
    Host.replay,
    Host.restart,
    Host.answer,
    Host.change_system,
    Host.note,
]
DROPPING = [*ACTIONS, Host.move, Host.drop_oldest, Host.drop_middle, Host.summarize]
#: Whether an erased message equals an edited one nobody can know, so these steps have a test of their own.
WITH_ERASING = [*DROPPING, Host.redact, Host.drop_erased]


def steps_of(actions: list[Callable[[Host, int], None]]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.tuples(st.sampled_from(actions), st.integers(0, 60)), max_size=25)


@settings(max_examples=100, deadline=None)
@given(steps_of(DROPPING))
def test_the_log_shows_the_hosts_history_behind_what_it_dropped(steps: list[tuple[Callable[..., None], int]]) -> None:
    """After edits, forks, truncations, replays with new ids and restarts, in any order: nothing more, nothing less."""
    host = Host(texts=0)
    for act, at in steps:
        act(host, at)
        host.sync()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(steps_of(ACTIONS) | steps_of(WITH_ERASING), st.integers(1, 4))
def test_messages_that_repeat_do_not_confuse_it(steps: list[tuple[Callable[..., None], int]], texts: int) -> None:
    """Users say "yes" and "go on" all the time: the log ends with exactly the host's history, but for erased words."""
    host = Host(texts)
    for act, at in steps:
        act(host, at)
        host.sync()


def test_processes_that_sync_the_same_history_at_once_write_each_message_once(tmp_path: Path) -> None:
    """A request that was sent twice, or two workers of one server."""
    history = [{"role": ("user", "assistant")[place % 2], "content": f"text {place}"} for place in range(20)]
    with closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as store:
        barrier = threading.Barrier(2)

        def work() -> None:
            memory = Memory("s", store=store)
            try:
                for end in range(1, len(history) + 1):
                    barrier.wait()
                    memory.sync(history[:end])
                barrier.wait()
                for end in (15, 10, 20):  # both go back, and on again
                    memory.sync(history[:end])
                    barrier.wait()
            except BaseException:
                barrier.abort()
                raise

        at_once(work, work)
        assert Memory("s", store=store).messages() == history
