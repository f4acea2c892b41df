"""``compactor chat --store``: a conversation that is kept, and goes on another time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, refusal, run
from model_server import Exchange, ModelServer, completion
from stored_sessions import session, summarise, url_of

from compactor import ContextCompactor
from memory import InMemoryStore, Memory, StoreBusy


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chats.db")


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "COMPACTOR_STORE", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[dict[str, Any]]]]:
    """The prompts that a model is asked; it answers each in one word."""
    prompts: list[list[dict[str, Any]]] = []

    def answer(exchange: Exchange) -> None:
        prompts.append(exchange.request.body["messages"])
        exchange.send(200, json.dumps(completion(f"Answer-{len(prompts)}.")))

    with ModelServer() as server:
        server.always(answer)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield prompts


def chat(*lines: str, options: tuple[object, ...] = (), **variables: str) -> Done:
    return run("chat", "--summarizer", "extractive", *options, said="".join(f"{line}\n" for line in lines), **variables)


def said(done: Done) -> str:
    """Return what it says of its session."""
    return done.out.splitlines()[1]


def test_a_chat_goes_on_where_it_was(url: str, asked: list[list[dict[str, Any]]]) -> None:
    """In another process the model reads all that was said in the first."""
    options = ("--store", url, "--session", "talk", "--system", "Be brief.")
    first = chat("count", options=options)
    assert (first.code, first.err, said(first)) == (0, "", "session talk is new")
    second = chat("go on", options=options)
    assert said(second) == "session talk goes on after 1 round"
    assert [(message["role"], message["content"]) for message in asked[-1]] == [
        ("system", "Be brief."),
        ("user", "count"),
        ("assistant", "Answer-1."),
        ("user", "go on"),
    ]
    assert run("show", "talk", "--store", url, "--json").document["rounds"] == 2


def test_its_summary_is_there_again(url: str, asked: list[list[dict[str, Any]]]) -> None:
    """What was compacted once is not compacted anew."""
    talk = [f"Count flock-{number} with {number * 11} sheep, and give exact figures." for number in range(5)]
    options = ("--store", url, "--session", "talk", "--threshold", 50, "--retain", 1)
    chat(*talk, "/compact", options=options)
    done = chat("and now?", "/revert", options=options)
    assert said(done) == "session talk goes on after 5 rounds, 1-4 of these as a summary"
    assert [message["content"] for message in asked[-1] if message["role"] == "user"] == [talk[4], "and now?"]
    assert "[reverted: all rounds are as they were said again]" in done.out
    told = run("events", "talk", "--store", url, "--json").document["events"]
    whats = [one["what"] for one in told if one["what"].startswith("compaction ") and "prepared" not in one["what"]]
    assert whats == ["compaction published", "compaction reverted"]


def test_a_message_without_an_answer_can_be_sent_again(url: str, asked: list[list[dict[str, Any]]]) -> None:
    """The one that the process died on."""
    with session(url, "talk", rounds=2) as memory:
        memory.append({"role": "user", "content": "hello?"})
    done = chat("/retry", options=("--store", url, "--session", "talk"))
    assert said(done).endswith("after 3 rounds; the last message has no answer, /retry asks for it")
    assert asked[-1][-1] == {"role": "user", "content": "hello?"}
    assert "Answer-1." in done.out


def test_without_a_name_it_gets_one(url: str, asked: list[list[dict[str, Any]]]) -> None:
    """Which it tells, so that it can be found again."""
    done = chat("hi", COMPACTOR_STORE=url)
    (found,) = run("sessions", "--store", url, "--json").document["sessions"]
    assert said(done) == f"session {found['session']} is new"


def test_without_a_store_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    monkeypatch.chdir(tmp_path)
    done = chat("hi")
    assert done.out.splitlines()[1] == "Answer-1."
    assert list(tmp_path.iterdir()) == []
    assert "pass --store" in refusal(chat(options=("--session", "talk")))


def test_a_session_that_has_begun_keeps_its_system_message(url: str, asked: list[Any]) -> None:
    """Another one would stand in the middle of what was said."""
    options = ("--store", url, "--session", "talk")
    chat("hi", options=(*options, "--system", "Be brief."))
    for name, more in (("talk", "Be long."), ("none", "Be brief.")):
        chat("hi", options=("--store", url, "--session", "none"))
        done = chat("hi", options=("--store", url, "--session", name, "--system", more))
        assert "leave --system out" in refusal(done)


def test_a_chat_takes_a_name_as_it_is_listed(url: str, asked: list[Any]) -> None:
    """It goes on with a tenant's session, and begins no other of that text."""
    for name in ("acme\x1ftalk", r"acme\x1ftalk"):
        with session(url, name, rounds=1):
            pass
    for listed in (r"acme\x1ftalk", r"acme\x5cx1ftalk"):
        done = chat(options=("--store", url, "--session", listed))
        assert said(done) == f"session {listed} goes on after 1 round"


class Locked(InMemoryStore):
    """Takes no entries while it is *busy*: a list of the kinds that it refuses once each."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: list[str] = []

    def append(self, session: str, entries: Any, after: int) -> int:
        kinds = [entry.kind for entry in entries]
        if self.busy and self.busy[0] in kinds:
            self.busy.pop(0)
            raise StoreBusy("another process kept it locked;\nnothing was written")
        return super().append(session, entries, after)


def test_a_store_that_is_busy_does_not_end_the_chat(monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> None:
    """What was not kept is said in one line, and can be said or asked for again."""
    store = Locked()
    store.busy = ["round opened", "post added"]
    monkeypatch.setattr("memory.stores.open_store", lambda _url, **_: store)
    done = chat("one", "one", "/retry", options=("--store", "postgresql://x", "--session", "talk"))
    assert done.code == 0
    locked = "another process kept it locked; nothing was written; the message is not kept, "
    assert done.err.splitlines() == [f"{locked}say it again", f"{locked}/retry asks for the answer again"]
    assert [message["content"] for message in asked[-1]] == ["one"]
    memory = Memory("talk", store=store)
    assert len(memory.conversation.rounds) == 1
    assert memory.messages()[-1]["role"] == "assistant"


def test_a_command_that_the_store_fails_does_not_end_it_either(
    monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    store = Locked()
    monkeypatch.setattr("memory.stores.open_store", lambda _url, **_: store)
    options = ("--store", "postgresql://x", "--session", "talk", "--threshold", 50, "--retain", 1)
    talk = [f"Count flock-{number} with {number * 11} sheep, and give exact figures." for number in range(5)]
    chat(*talk, "/compact", options=options)
    store.busy = ["compaction reverted"]
    done = chat("/revert", "/revert", options=options)
    assert done.err == "another process kept it locked; nothing was written\n"
    assert "[reverted: all rounds are as they were said again]" in done.out


def test_what_another_process_published_is_not_reverted_unseen(
    monkeypatch: pytest.MonkeyPatch, asked: list[Any]
) -> None:
    """It is said that another stands there now; who means that says so again."""
    store = InMemoryStore()
    monkeypatch.setattr("memory.stores.open_store", lambda _url, **_: store)
    options = ("--store", "postgresql://x", "--session", "talk", "--threshold", 50, "--retain", 2)
    talk = [f"Count flock-{number} with {number * 11} sheep, and give exact figures." for number in range(6)]
    chat(*talk, "/compact", options=options)
    revert, meanwhile = ContextCompactor.revert, [lambda: summarise(Memory("talk", store=store), 5)]

    def overtaken(compactor: ContextCompactor, generation: int | None = None) -> Any:
        if meanwhile:
            meanwhile.pop()()
        return revert(compactor, generation)

    monkeypatch.setattr(ContextCompactor, "revert", overtaken)
    done = chat("/revert", "/revert", options=options)
    assert (done.code, len(done.err.splitlines())) == (0, 1)
    assert "another compaction or revert was published" in done.err
    assert "[reverted: the summary covers rounds 1-4 again]" in done.out
