"""The contract of adapters holds for a framework of a few lines, and fails where an adapter breaks a promise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.integrations import contract
from compactor.integrations.base import Conversations, Fitted, Group, Message
from compactor.integrations.contract import Host, Reply
from compactor.testing import AdapterContract


class Compaction(Conversations[Message]):
    """Of a framework whose messages are chat messages."""

    def read(self, items: Sequence[Message]) -> Iterable[Group[Message]]:
        return [Group([item], [item]) for item in items]

    def write(self, messages: Sequence[Message]) -> Iterable[Message]:
        return messages


class Loop:
    """The framework: lists of messages by session, and a loop over the model's calls."""

    def __init__(self, compaction: Compaction | None, kept: dict[str, list[Message]]) -> None:
        self.seen: list[Sequence[Message]] = []
        self.systems: list[str] = []
        self.kept = kept
        self._compaction = compaction

    async def say(self, session: str, text: str) -> str:
        history = self.kept.setdefault(session, [])
        history.append({"role": "user", "content": text})
        for _step in range(contract.STEPS + 1):
            reply = await self._ask(session, history)
            calls = [
                {
                    "id": f"{len(self.seen)}-{place}",
                    "type": "function",
                    "function": {"name": name, "arguments": f'{{"row": {row}}}'},
                }
                for place, (name, row) in enumerate(reply.calls)
            ]
            history.append({"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})})
            if not calls:
                if self._compaction is not None:
                    await self._compaction.akeep(session, history[-1:])
                return reply.text
            for call, (name, row) in zip(calls, reply.calls, strict=True):
                result = contract.look(row) if name == "look" else "there is no such row"
                history.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        raise RuntimeError("no answer after so many steps")

    async def _ask(self, session: str, history: list[Message]) -> Reply:
        fitted = Fitted("Be brief.", "", list(history))
        if self._compaction is not None:
            fitted = await self._compaction.afit(session, history, system=fitted.system)
        shown = fitted.items
        self.seen.append(shown)
        self.systems.append(fitted.system)
        at = max(place for place, message in enumerate(shown) if message["role"] == "user")
        return contract.answer(shown[at]["content"], len(shown) - at - 1)

    async def stream(self, session: str, text: str) -> str:
        return await self.say(session, text)

    async def list_history(self, session: str) -> Sequence[Message]:
        return self.kept[session]

    async def go_back(self, session: str, turns: int) -> None:
        asked = [place for place, message in enumerate(self.kept[session]) if message["role"] == "user"]
        del self.kept[session][asked[-turns] :]

    def read_text(self, message: Message) -> str:
        return " ".join([message["content"], *(str(call["function"]) for call in message.get("tool_calls", ()))])

    def list_call_ids(self, message: Message) -> tuple[list[str], list[str]]:
        answers = [message["tool_call_id"]] if message["role"] == "tool" else []
        return [call["id"] for call in message.get("tool_calls", ())], answers


class TestLoop(AdapterContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path

    def make_host(self, compaction: Any, previous: Any = None) -> Host:
        return Loop(compaction, previous.kept if previous is not None else {})

    def make_compaction(self, **options: Any) -> Conversations[Any]:
        return Compaction(**options)


class Changing(Compaction):
    """Changes the framework's own history: what it is given is the list that the framework keeps."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        items[:] = fitted.items
        return fitted


class Idle(Compaction):
    """Shows everything."""

    async def afit(self, _session_id: str, items: Any, **_options: Any) -> Fitted[Message]:
        return Fitted("", "", list(items))


class Copying(Compaction):
    """Gives copies of the framework's messages."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        return replace(fitted, items=[dict(message) for message in fitted.items])


class Rewriting(Compaction):
    """Gives copies of all messages, in a framework that gives copies itself."""

    gives_own_objects = False

    def _build_items(self, _items: Any, _own: Any, messages: Sequence[Message], _originals: Any) -> list[Message]:
        return [dict(message) for message in messages]


class Late(Compaction):
    """Adds an answer to the log with the next call."""

    async def akeep(self, _session_id: str, _answer: Any) -> None:
        pass


class Mixing(Compaction):
    """Writes all conversations to one session."""

    async def afit(self, _session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        return await super().afit("all", items, **options)

    async def akeep(self, _session_id: str, answer: Any) -> None:
        await super().akeep("all", answer)


class Forgetting(Compaction):
    """Does not use the store."""

    def __init__(self, *, store: object = None, **options: Any) -> None:
        super().__init__(**options)


class Remembering(Compaction):
    """Does not see that the framework went back."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        self.seen = [*getattr(self, "seen", ()), *items[len(getattr(self, "seen", ())) :]]
        return await super().afit(session_id, self.seen, **options)


class Appending(Compaction):
    """Tells by the ids of calls whether a message is new."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        calls = [call["id"] for item in items for call in item.get("tool_calls", ())]
        known, self.calls = getattr(self, "calls", ()), calls
        fitted = await super().afit(session_id, items, **options)
        if known and calls[:1] != known[:1]:
            with self.sessions().open(session_id) as session:
                session.memory.extend(items)
        return fitted


class Piling(Compaction):
    """Keeps summaries of what was undone in the system prompt."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        self.added = f"{getattr(self, 'added', '')} {fitted.added}"
        return replace(fitted, system=self.added)


class Silent(Compaction):
    """Gives the model no summary."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        return replace(await super().afit(session_id, items, **options), system="Be brief.")


class Waiting(Compaction):
    """Holds up each call until there is a summary."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        with self.sessions().open(session_id) as session:
            await asyncio.to_thread(session.compactor.wait_idle, contract.TIMEOUT)
        return fitted


class Stumbling(Compaction):
    """Shows results without their calls once a summary has failed."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        with self.sessions().open(session_id) as session:
            failed = session.compactor.status().failures
        return replace(fitted, items=[one for one in fitted.items if not (failed and "tool_calls" in one)])


class Telling(Compaction):
    """Logs what was said, beside the message of the record."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        logging.getLogger(__name__).info("fits", extra={"said": items[-1]["content"]})
        return await super().afit(session_id, items, **options)


class Whispering(Compaction):
    """Logs what was said at level debug."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        logging.getLogger(__name__).debug("fits %s", items[-1]["content"])
        return await super().afit(session_id, items, **options)


class Gossiping(Compaction):
    """Tells a session in its system prompt what the user of another asked."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        told = self.__dict__.setdefault("told", {})
        told[session_id] = str(items[-1]["content"])
        return replace(fitted, system=" ".join([fitted.system, *told.values()]))


class Confusing(Compaction):
    """Shows a session the summary of another."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        added = self.__dict__.setdefault("added", {})
        added[session_id] = fitted.added
        return replace(fitted, system=" ".join([fitted.system, *added.values()]))


class Lazy(Compaction):
    """Shows everything until the last question."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        return fitted if contract.ask(contract.TURNS - 1) in str(items) else replace(fitted, items=list(items))


class Marking(Compaction):
    """Adds a key to the framework's own objects."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        for item in items[:-4]:
            item["cached"] = True
        return await super().afit(session_id, items, **options)


class Dropping(Compaction):
    """Shows the newest question alone once a summary has failed."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        with self.sessions().open(session_id) as session:
            failed = session.compactor.status().failures
        at = max(place for place, one in enumerate(fitted.items) if one["role"] == "user")
        return replace(fitted, items=fitted.items[at if failed else 0 :])


class Recalling(Compaction):
    """Lets the model read what was undone."""

    def call_tool(self, session_id: str, _name: str, _arguments: object) -> str:
        with self.sessions().open(session_id) as session:
            return str([*session.memory.conversation.rounds])


class Stopping(Compaction):
    """Shows all calls of the newest turn."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        fitted = await super().afit(session_id, items, **options)
        at = max(place for place, one in enumerate(items) if one["role"] == "user")
        return replace(fitted, items=items[at:])


class Tracing(Compaction):
    """Logs what was said, in a traceback."""

    async def afit(self, session_id: str, items: Any, **options: Any) -> Fitted[Message]:
        try:
            raise ValueError(items[-1]["content"])
        except ValueError:
            logging.getLogger(__name__).exception("fails")
        return await super().afit(session_id, items, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "broken"),
    [
        (Changing, "test_the_agent_says_the_same_and_reads_less"),
        (Idle, "test_a_stream_says_the_same"),
        (Copying, "test_what_is_shown_whole_is_the_frameworks_own"),
        (Rewriting, "test_what_is_shown_whole_is_the_frameworks_own"),
        (Lazy, "test_the_agent_says_the_same_and_reads_less"),
        (Marking, "test_the_agent_says_the_same_and_reads_less"),
        (Stopping, "test_many_calls_in_one_turn_stay_within_the_budget"),
        (Late, "test_the_log_has_the_answer_when_the_turn_ends"),
        (Mixing, "test_sessions_are_apart"),
        (Gossiping, "test_sessions_are_apart"),
        (Confusing, "test_sessions_are_apart"),
        (Forgetting, "test_a_restart_duplicates_nothing"),
        (Appending, "test_a_replay_with_other_ids_adds_nothing"),
        (Remembering, "test_going_back_shows_no_word_of_what_was_undone"),
        (Piling, "test_going_back_shows_no_word_of_what_was_undone"),
        (Recalling, "test_going_back_shows_no_word_of_what_was_undone"),
        (Silent, "test_the_model_reads_a_summary_that_no_turn_waits_for"),
        (Waiting, "test_the_model_reads_a_summary_that_no_turn_waits_for"),
        (Stumbling, "test_a_summarizer_that_fails_changes_nothing_for_the_agent"),
        (Dropping, "test_a_summarizer_that_fails_changes_nothing_for_the_agent"),
        (Whispering, "test_no_log_holds_what_was_said"),
        (Telling, "test_no_log_holds_what_was_said"),
        (Tracing, "test_no_log_holds_what_was_said"),
    ],
)
def test_an_adapter_that_breaks_a_promise_fails(
    adapter: type[Compaction], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "PATIENCE", 0.0 if adapter is Waiting else contract.PATIENCE)

    class Broken(TestLoop):
        gives_own_objects = getattr(adapter, "gives_own_objects", True)

        def make_compaction(self, **options: Any) -> Conversations[Any]:
            return adapter(**options)

    case = Broken()
    case._path = tmp_path

    with pytest.raises(AssertionError):
        getattr(case, broken)()
