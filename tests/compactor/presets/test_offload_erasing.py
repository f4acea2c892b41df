"""Redacted text leaves the files of ``context_offload`` too, without any work of the host."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from chats import answer, calls, result, user, words

from compactor import ContextCompactor, Event
from compactor.presets import FilesNotErased, OffloadError, OffloadFiles, context_offload, expire_files
from memory import HookFailed, InMemoryStore, Memory, Redacted, StoreError, open_store

ROLE = "assistant"


def busy(rounds: int = 5) -> Memory:
    """Rounds with long results."""
    memory = Memory("session")
    for number in range(1, rounds + 1):
        found = f"item-{number} {words(600)}"
        for message in (user(f"Question {number}?"), calls(f"c{number}"), result(f"c{number}", found), answer()):
            memory.append(message)
    return memory


def compactor_of(memory: Memory, store: Path) -> ContextCompactor:
    options = context_offload(max_token=1_500, max_tool_message_tokens=200, store_dir=store, chat_id="chat")
    return ContextCompactor.for_role(memory, ROLE, **options)


def offloaded(store: Path, memory: Memory | None = None) -> Memory:
    memory = memory if memory is not None else busy()
    with compactor_of(memory, store) as compactor:
        assert compactor.wait_idle(20)
    return memory


def names(store: Path) -> list[str]:
    return sorted(path.name[:6] for path in (store / "chat").iterdir())


def denied(_path: str) -> None:
    raise PermissionError(errno.EACCES, "denied")


def test_redacting_erases_the_file_too(tmp_path: Path) -> None:
    """And nothing else; by reference, or by the post itself; when ``redact`` returns, it is done."""
    memory = offloaded(tmp_path)
    assert names(tmp_path) == [f"r{number}-p2-" for number in (1, 2, 3, 4, 5)]
    memory.redact("r3.p2")
    memory.redact(memory.conversation.rounds[4].post_list[1])
    memory.redact("r1.p1")
    assert names(tmp_path) == [f"r{number}-p2-" for number in (1, 2, 4)]
    assert not any(b"item-3 " in path.read_bytes() for path in (tmp_path / "chat").iterdir())


def test_files_of_an_earlier_run_are_erased_before_a_new_one_writes_any(tmp_path: Path) -> None:
    """To make the compactor is enough."""
    memory = Memory.from_messages(offloaded(tmp_path).messages(), "session")
    compactor_of(memory, tmp_path)
    memory.redact("r3.p2")
    assert "r3-p2-" not in names(tmp_path)


def test_what_is_undone_is_in_no_file(tmp_path: Path) -> None:
    """Neither its own nor another process's rewind leaves one, nor one while no compactor was made. A post that was
    copied keeps its file, for its preview names it, until the copy is undone as well."""
    store = open_store(f"sqlite:///{tmp_path / 's.db'}")
    memory = Memory("session", store=store)
    memory.extend(busy(7).messages())
    with compactor_of(memory, tmp_path) as compactor:
        assert compactor.wait_idle(20)
        memory.rewind("r6")
        assert names(tmp_path) == [f"r{number}-p2-" for number in range(1, 7)]
        other = Memory("session", store=store)
        other.rewind("r5.p2")
        memory.refresh()
        assert names(tmp_path) == [f"r{number}-p2-" for number in range(1, 6)]
        shown = [one["content"] for one in memory.messages() if one["role"] == "tool"]
        assert [f"item-{number} " in text for number, text in enumerate(shown, 1)] == [True] * 5
    memory.rewind("r4.p3")
    Memory("session", store=store).rewind("r3")
    files = OffloadFiles(tmp_path, "chat")
    assert "item-4" in files.grep("item-4")
    compactor_of(Memory("session", store=store), tmp_path)
    assert names(tmp_path) == [f"r{number}-p2-" for number in range(1, 4)]
    assert files.grep("item-4").startswith("[grep: 0 lines")
    store.close()


def test_what_has_failed_keeps_its_files(tmp_path: Path) -> None:
    """Neither a rewind nor a new compactor takes them, nor the file of a post with a copy in a failed round."""
    store = open_store(f"sqlite:///{tmp_path / 's.db'}")
    memory = Memory("session", store=store)
    memory.extend(busy(6).messages())
    offloaded(tmp_path, memory)
    memory.finish_round(memory.conversation.rounds[1], "failed")
    memory.rewind("r4.p2")
    memory.finish_round(memory.conversation.rounds[-1], "failed")
    kept = [f"r{number}-p2-" for number in range(1, 5)]
    offloaded(tmp_path, memory)
    assert names(tmp_path) == kept
    compactor_of(Memory("session", store=store), tmp_path)
    assert names(tmp_path) == kept
    store.close()


def test_a_round_that_fails_while_its_file_is_written_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, write = busy(), OffloadFiles.write

    def interrupted(self: OffloadFiles, stem: str, *more: Any) -> str:
        path = write(self, stem, *more)
        if stem == "r3.p2":
            memory.finish_round(memory.conversation.rounds[2], "failed")
        return path

    monkeypatch.setattr(OffloadFiles, "write", interrupted)
    offloaded(tmp_path, memory)
    assert names(tmp_path) == [f"r{number}-p2-" for number in (1, 2, 3, 4, 5)]


def test_what_is_undone_and_cannot_be_erased_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    memory = Memory("session", store=store)
    memory.extend(busy().messages())
    offloaded(tmp_path, memory)
    heard: list[Event] = []
    memory.on_event(heard.append)
    monkeypatch.setattr(os, "scandir", denied)
    memory.rewind("r2")
    monkeypatch.undo()
    monkeypatch.setattr(os, "unlink", denied)
    memory.rewind("r1")
    told = [event.references for event in heard if isinstance(event, FilesNotErased)]
    assert told == [(), tuple(f"r{number}.p2" for number in range(2, 6))]
    monkeypatch.undo()
    compactor_of(Memory("session", store=store), tmp_path)
    assert names(tmp_path) == ["r1-p2-"]


def test_what_cannot_be_erased_is_told_and_erased_by_redacting_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it no more all the same. Nothing of it is told."""
    memory = offloaded(tmp_path)
    heard: list[Event] = []
    memory.on_event(heard.append)

    monkeypatch.setattr(os, "unlink", denied)
    memory.redact("r3.p2")

    (told,) = [event for event in heard if isinstance(event, FilesNotErased)]
    assert (told.level, told.session, told.references) == ("warning", "session", ("r3.p2",))
    assert "allow it" in told.error
    assert "item-3" not in told.error
    assert "item-3" not in memory.reload("r3.p2")
    assert "r3-p2-" in names(tmp_path)

    monkeypatch.undo()
    heard.clear()
    memory.redact("r3.p2")

    assert "r3-p2-" not in names(tmp_path)
    assert [type(event) for event in heard] == [Redacted]


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody believes that there is no file because none can be seen."""
    memory = offloaded(tmp_path)
    heard: list[Event] = []
    memory.on_event(heard.append)
    monkeypatch.setattr(os, "scandir", denied)
    memory.redact("r3.p2")
    assert [event.references for event in heard if isinstance(event, FilesNotErased)] == [("r3.p2",)]


def test_the_others_are_erased_where_one_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reference is tried; failed ones are named, or raised if a host listens itself."""
    files, memory = OffloadFiles(tmp_path, "chat"), Memory("session")
    heard: list[Event] = []
    memory.on_event(heard.append)
    for _ in range(2):
        files.watch(memory)
    for reference in ("r1.p0", "r1.p1"):
        files.write(reference, "text")
    unlink = os.unlink

    def only_one(path: str) -> None:
        (denied if "r1-p0-" in path else unlink)(path)

    monkeypatch.setattr(os, "unlink", only_one)
    redacted = Redacted(session="session", references=("r1.p0", "r1.p1"))
    memory.emit(redacted)
    assert names(tmp_path) == ["r1-p0-"]
    assert [event.references for event in heard if isinstance(event, FilesNotErased)] == [("r1.p0",)]
    with pytest.raises(OffloadError, match="allow it"):
        files.on_event(redacted)


def test_a_host_may_listen_with_files_of_its_own(tmp_path: Path) -> None:
    """By ``on_event``, without a compactor; other events mean nothing to it, and neither does a missing folder."""
    memory, files = busy(1), OffloadFiles(tmp_path, "chat")
    memory.on_event(files.on_event)
    assert files.erase("r1.p2") == 0
    files.write("r1.p2", "item-1")
    memory.emit(HookFailed(hook="another", error="OSError"))
    assert names(tmp_path) == ["r1-p2-"]
    memory.redact("r1.p2")
    assert names(tmp_path) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_post_that_is_redacted_while_its_file_is_written_leaves_none(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it happens before the file is there or after; nothing is offloaded then."""
    memory = busy()
    write: Callable[..., str] = OffloadFiles.write

    def interrupted(self: OffloadFiles, stem: str, *more: Any) -> str:
        if moment == "before" and stem == "r3.p2":
            memory.redact("r3.p2")
        path = write(self, stem, *more)
        if moment == "after" and stem == "r3.p2":
            memory.redact("r3.p2")
        return path

    monkeypatch.setattr(OffloadFiles, "write", interrupted)
    offloaded(tmp_path, memory)
    assert "r3-p2-" not in names(tmp_path)
    assert not any("item-3 " in str(message["content"]) for message in memory.messages())


def test_without_files_nobody_listens() -> None:
    """Nothing is kept beside the log."""
    memory = busy(1)
    preset = context_offload()
    compactor = ContextCompactor.for_role(memory, ROLE, **preset)
    heard: list[Event] = []
    memory.on_event(heard.append)
    memory.redact("r1.p2")
    assert [type(event) for event in heard] == [Redacted]
    assert compactor.status().failures == 0


def test_what_another_process_redacts_is_erased_when_it_is_read(tmp_path: Path) -> None:
    """Its files are here, and nobody redacts here."""
    store = InMemoryStore()
    elsewhere, files = Memory("s", store=store), OffloadFiles(tmp_path, "chat")
    elsewhere.append({"role": "user", "content": "item-1"})
    memory = Memory("s", store=store)
    files.watch(memory)
    files.write("r1.p0", "item-1")
    elsewhere.redact("r1.p0")
    assert names(tmp_path) == ["r1-p0-"]
    memory.append({"role": "assistant", "content": "yes"})
    assert names(tmp_path) == []


def test_what_was_redacted_while_nobody_watched_is_erased_by_whoever_does(tmp_path: Path) -> None:
    """A redaction in a process without files, and one that was finished by an opening."""
    store = InMemoryStore()
    memory, files = Memory("s", store=store), OffloadFiles(tmp_path, "chat")
    memory.append({"role": "user", "content": "item-1"})
    memory.append({"role": "assistant", "content": "item-2"})
    files.write("r1.p0", "item-1")
    files.write("r1.p1", "item-2")
    memory.redact("r1.p0")
    assert names(tmp_path) == ["r1-p0-", "r1-p1-"]
    files.watch(Memory("s", store=store))
    assert names(tmp_path) == ["r1-p1-"]


def test_files_are_watched_where_the_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event says that earlier ones may be left; later redactions erase their files."""
    memory, files = busy(1), OffloadFiles(tmp_path, "chat")
    heard: list[Event] = []
    memory.on_event(heard.append)
    memory.redact("r1.p0")
    files.write("r1.p2", "item-1")

    def away(*_: object) -> None:
        raise StoreError("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(InMemoryStore, "read", away)
        files.watch(memory)
    assert [event.error for event in heard if isinstance(event, FilesNotErased)] == [
        "what was redacted before could not be read, make the compactor anew: the server is away"
    ]
    memory.redact("r1.p2")
    assert names(tmp_path) == []


def test_what_was_undone_is_erased_when_the_store_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was away, an event says so; to watch again is enough, and nothing is told twice."""
    store = open_store(f"sqlite:///{tmp_path / 's.db'}")
    memory, files = Memory("s", store=store), OffloadFiles(tmp_path, "chat")
    memory.extend(busy(2).messages())
    memory.rewind("r2.p2")
    memory.rewind("r1")
    memory.extend([user("More?"), answer()] * 500)  # a checkpoint, which does not have the number of each round
    files.write("r2.p2", "item-2")
    memory = Memory("s", store=store)
    heard: list[Event] = []
    memory.on_event(heard.append)

    def away(*_: object) -> int:
        raise StoreError("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(type(store), "find_round_number", away)
        files.watch(memory)
    assert names(tmp_path) == ["r2-p2-"]
    files.watch(memory)
    assert names(tmp_path) == []
    files.write("r1.p1", "item-1")
    monkeypatch.setattr(os, "unlink", denied)
    memory.redact("r1.p1")
    told = [event.error for event in heard if isinstance(event, FilesNotErased)]
    assert told[0] == "what was undone could not be read, make the compactor anew: the server is away"
    assert [event.references for event in heard if isinstance(event, FilesNotErased)] == [(), ("r1.p1",)]
    store.close()


# -- all of a chat -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["memory://", "sqlite:///chat.db"])
def test_purging_the_session_removes_its_files(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, which has no compactor and knows no folder; those of other chats stay."""
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    memory = Memory("session", store=store)
    for message in busy().messages():
        memory.append(message)
    offloaded(tmp_path / "files", memory)
    OffloadFiles(tmp_path / "files", "other").write("call", "theirs")
    assert len(names(tmp_path / "files")) == 5
    store.purge("session")
    assert [one.name for one in (tmp_path / "files").iterdir()] == ["other"]
    store.close()


def test_the_files_of_a_chat_are_removed_on_request(tmp_path: Path) -> None:
    """And nothing else of its folder."""
    files, other = OffloadFiles(tmp_path, "chat"), OffloadFiles(tmp_path, "other")
    for one in (files, other):
        one.write("call_1", "text")
        one.write("call_2", "text")
    (tmp_path / "chat" / "notes.txt").write_text("theirs")
    assert files.delete() == 2
    assert [one.name for one in (tmp_path / "chat").iterdir()] == ["notes.txt"]
    assert (other.delete(), other.delete()) == (2, 0)
    assert not (tmp_path / "other").exists()


def test_files_expire_when_somebody_says_so(tmp_path: Path) -> None:
    """Of one chat or of all; one that is needed again is as new as its newest use."""
    now = datetime(2026, 5, 1, tzinfo=UTC)
    files, other = OffloadFiles(tmp_path, "chat"), OffloadFiles(tmp_path, "other")
    for one in (files, other):
        for stem in ("old", "used"):
            path = one.write(stem, "text")
            os.utime(path, (now.timestamp() - 100, now.timestamp() - 100))
    assert files.expire(timedelta(seconds=101), now=now) == 0
    files.write("used", "text")
    assert files.expire(timedelta(seconds=99), now=now) == 1
    assert expire_files(tmp_path, timedelta(seconds=99), now=now) == 2
    assert [one.name[:5] for one in tmp_path.rglob("*.txt")] == ["used-"]
    assert expire_files(tmp_path / "nowhere", timedelta(0)) == 0


def test_files_that_cannot_be_removed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the remedy: nobody believes that they are gone."""
    files = OffloadFiles(tmp_path, "chat")
    files.write("call", "text")
    monkeypatch.setattr(os, "unlink", denied)
    for remove in (files.delete, lambda: files.expire(timedelta(-1)), lambda: expire_files(tmp_path, timedelta(-1))):
        with pytest.raises(OffloadError, match="allow it"):
            remove()


def test_a_host_may_say_whose_files_they_are(tmp_path: Path) -> None:
    """For files of ``offload_context``, which knows no session; said twice, it is written once."""
    store = InMemoryStore()
    memory, files = Memory("session", store=store), OffloadFiles(tmp_path, "chat")
    files.write("call", "text")
    for one in (files, files, OffloadFiles(tmp_path, "chat")):
        one.belong_to(memory)
    assert len(list(store.read("session"))) == 1
    store.purge("session")
    assert not (tmp_path / "chat").exists()
