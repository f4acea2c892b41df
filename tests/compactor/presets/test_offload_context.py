"""One call over plain messages: it fits or says by how much not, tears nothing apart and loses nothing."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, ids, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from offloaded_chats import (
    ASKED,
    FACTS,
    LIMITS,
    OPENING,
    SYSTEM,
    agent_at_work,
    chat,
    compress,
    orders,
    snapshots,
    summarised,
    tokens_of,
)

from compactor import SummaryRejected, count_tokens
from compactor.presets import OffloadError, OffloadFiles, OffloadResult, offload_context, read_archive
from compactor.testing import ScriptedSummarizer
from memory import MessageError


def compact(messages: list[Message], **options: Any) -> OffloadResult:
    return offload_context(messages, **{"context_manage_mode": "compact", "max_total_tokens": 100} | options)


# -- what fits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "compact", "compress"])
def test_messages_that_fit_come_out_equal(mode: Any) -> None:
    """Nothing happens below the limit, however large their results."""
    messages = agent_at_work(3, size=3_000)
    made = offload_context(messages, context_manage_mode=mode)
    assert made == OffloadResult(messages, {}, tokens_of(messages), tokens_of(messages))
    assert made.success


def test_what_comes_out_is_the_callers_own() -> None:
    """Changing it changes neither the messages that were given nor another result."""
    messages = agent_at_work(1)
    made = offload_context(messages)
    made.messages[2]["tool_calls"][0]["function"]["name"] = "changed"
    assert messages[2]["tool_calls"][0]["function"]["name"] == "f"


def test_no_messages_are_no_trouble() -> None:
    """An agent may have said nothing yet, or have nothing but instructions, however long."""
    assert offload_context([], max_total_tokens=1).messages == []
    alone = offload_context([{"role": "system", "content": words(50)}], max_total_tokens=20)
    assert alone.over == alone.tokens_after - 20
    assert alone.success


# -- compact -----------------------------------------------------------------------------------------------------------


def test_compact_moves_large_old_results_to_files(tmp_path: Path) -> None:
    """Each reads as its first 100 characters, its size, and the name of the file; calls and the rest stay."""
    messages = agent_at_work(3, size=3_000)
    made = compact(messages, max_total_tokens=5_000, store_dir=tmp_path)
    assert [message for message in made.messages if message["role"] != "tool"] == [
        message for message in messages if message["role"] != "tool"
    ]
    assert made.messages[-1] == messages[-1]
    for place in (3, 5):
        before, after = messages[place]["content"], made.messages[place]["content"]
        (path,) = (path for path in made.write_file_dict if f"/{messages[place]['tool_call_id']}-" in path)
        assert made.write_file_dict[path] == before
        assert after.startswith(before[:100] + "\n[")
        assert path in after
        assert made.messages[place]["tool_call_id"] == messages[place]["tool_call_id"]
        assert "14,9" in after
    assert len(made.write_file_dict) == 2
    assert made.tokens_after == tokens_of(made.messages) <= 5_000
    assert made.over == 0


@pytest.mark.parametrize(("keep", "compacted"), [(None, 2), (0, 3), (2, 1), (3, 0), (9, 0)])
def test_the_newest_results_stay(keep: int | None, compacted: int) -> None:
    """One by default; 0 spares none."""
    made = compact(agent_at_work(3, size=3_000), keep_recent_count=keep)
    assert len(made.write_file_dict) == compacted
    assert made.over == made.tokens_after - 100 > 0


def test_compact_leaves_everything_but_results() -> None:
    """Not questions and answers, not small results, and not pictures, which no file tool could show."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        {"role": "system", "content": words(3_000)},
        user(words(3_000)),
        calls("a", "b"),
        result("a", words(1_900)),
        {**result("b"), "content": [{"type": "text", "text": words(3_000)}, picture]},
        answer(words(3_000)),
        calls("c"),
        result("c"),
    ]
    made = compact(messages)
    assert (made.messages, made.write_file_dict) == (messages, {})
    assert made.over > 0


def test_text_in_parts_is_kept_as_text() -> None:
    """Some hosts give a result in parts, or in the form that came before tool calls."""
    messages = [
        user("q"),
        calls("a"),
        {**result("a"), "content": [{"type": "text", "text": words(2_500)}, {"type": "text", "text": "end"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": words(2_600)},
        answer("done"),
    ]
    made = compact(messages, keep_recent_count=0)
    assert sorted(made.write_file_dict.values()) == sorted([words(2_500) + "\nend", words(2_600)])
    assert any("/look-" in path for path in made.write_file_dict)


def test_a_compacted_result_is_not_compacted_again() -> None:
    """Feeding the messages back adds the new ones and changes nothing else, however low the limits are."""
    first = compact(agent_at_work(3), max_tool_message_tokens=20)
    again = compact(first.messages, max_tool_message_tokens=1)
    assert len(first.write_file_dict) == 2
    assert again.messages[:-1] == first.messages[:-1]
    assert again.write_file_dict == {}


def test_a_result_that_would_not_get_shorter_stays() -> None:
    """A preview and a path cost something too."""
    messages = [user("q"), calls("a"), result("a", words(40)), calls("b"), result("b")]
    made = compact(messages, max_total_tokens=10, max_tool_message_tokens=10, chat_id="c" * 60)
    assert made.messages == messages
    assert made.write_file_dict == {}


def test_what_was_read_from_a_file_stays_while_the_agent_works_with_it(tmp_path: Path) -> None:
    """Else it would read it again, and so on; behind the next question it is a result like others."""
    files = OffloadFiles(tmp_path, "chat")
    read = files.read_file(files.write("call", words(1_000)))
    messages = [user("q"), calls("a"), result("a", read), calls("b"), result("b", "ok")]
    assert compact(messages, max_tool_message_tokens=100).write_file_dict == {}
    later = [*messages, answer("done"), user("next"), calls("c"), result("c", "ok")]
    assert list(compact(later, max_tool_message_tokens=100).write_file_dict.values()) == [read]


def test_a_preview_may_be_of_any_length() -> None:
    """None of it, or more; never half of a character."""
    messages = [user("q"), calls("a"), result("a", "👩‍👩‍👧" * 2_000), answer("done")]
    for length, shown in ((0, ""), (7, "👩‍👩‍👧\n"), (10, "👩‍👩‍👧👩‍👩‍👧\n")):
        made = compact(messages, keep_recent_count=0, preview_char_length=length)
        assert made.messages[2]["content"].startswith(shown + "[")


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_are_written_where_the_text_says(tmp_path: Path) -> None:
    """Each path of the result is a file with that content, in the chat's folder, and read_file takes it."""
    store = tmp_path / "store"
    made = offload_context(
        chat(6) + agent_at_work(4)[1:],
        max_total_tokens=1_000,
        max_tool_message_tokens=100,
        store_dir=store,
        chat_id="chat",
    )
    assert len(made.write_file_dict) == 4
    for path, content in made.write_file_dict.items():
        assert Path(path).parent == store / "chat"
        assert Path(path).read_text(encoding="utf-8") == content
        first = content.split("\n", 1)[0]
        assert first[:1_000] in OffloadFiles(store, "chat").read_file(path)
    assert len(list((store / "chat").iterdir())) == len(made.write_file_dict)


def test_without_a_store_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host writes the files itself, if it likes."""
    monkeypatch.chdir(tmp_path)
    made = offload_context(agent_at_work(9), max_total_tokens=500, max_tool_message_tokens=100, chat_id="a/b")
    assert made.write_file_dict
    assert all(path.startswith("a-b.") for path in made.write_file_dict)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_is_left_and_the_text_names_the_other(tmp_path: Path) -> None:
    """The changes belong to somebody else."""
    messages = agent_at_work(2, size=3_000)
    (path,) = compact(messages, store_dir=tmp_path).write_file_dict
    Path(path).write_text("notes")
    made = compact(messages, store_dir=tmp_path)
    (beside,) = made.write_file_dict
    assert Path(path).read_text() == "notes"
    assert Path(beside).read_text() == messages[3]["content"]
    assert f"{beside};" in made.messages[3]["content"]


def test_a_store_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Before anything is taken out of the messages."""
    (tmp_path / "store").write_text("a file")
    messages = agent_at_work(3, size=3_000)
    before = copy.deepcopy(messages)
    with pytest.raises(OffloadError, match="store_dir"):
        offload_context(messages, max_total_tokens=5_000, store_dir=tmp_path / "store")
    assert messages == before


# -- compress ----------------------------------------------------------------------------------------------------------


def test_compress_makes_one_snapshot_of_older_messages(tmp_path: Path) -> None:
    """A user message behind the system's; the newest two stay, and the originals are in one file."""
    messages = chat(10)
    made = compress(messages, store_dir=tmp_path)
    system, snapshot, *recent = made.messages
    assert (system, recent) == (SYSTEM, messages[-2:])
    assert snapshot["role"] == "user"
    assert snapshot["content"].endswith("\n</state_snapshot>")
    ((path, archive),) = made.write_file_dict.items()
    assert path in snapshot["content"]
    assert "/compressed_group-" in path
    assert read_archive(archive) == messages[1:-2]
    assert made.tokens_after == tokens_of(made.messages) <= 1_000


@pytest.mark.parametrize(("keep", "kept"), [(None, 2), (0, 1), (1, 1), (4, 4), (3, 3)])
def test_the_newest_messages_stay(keep: int | None, kept: int) -> None:
    """Two by default; the newest question in any case."""
    messages = [*chat(10), user("And now?")]
    made = compress(messages, keep_recent_count=keep)
    assert made.messages[2:] == messages[len(messages) - kept :]
    assert len(snapshots(made.messages)) == 1


def test_an_unanswered_question_is_never_compressed() -> None:
    """However much work was done on it since, and though it was asked in several messages."""
    messages = [*chat(3), user("First, list the items."), user("Then find the cheapest.")]
    messages += agent_at_work(12)[2:]
    made = compress(messages, max_total_tokens=1_500)
    assert made.messages[0] == SYSTEM
    assert made.messages[1] in snapshots(made.messages)
    assert made.messages[2:] == [*messages[7:9], *messages[-2:]]
    assert "made and need not be made again" in made.messages[1]["content"]
    assert made.over == 0


def test_a_call_stays_with_its_results() -> None:
    """One result of three among the newest keeps all of them, and their call."""
    messages = [*chat(10), user("q"), calls("a", "b", "c"), result("a"), result("b"), result("c"), answer("done")]
    made = compress(messages)
    assert made.messages[2:] == messages[-6:]


def test_calls_of_the_old_form_stay_with_their_result() -> None:
    """The result has no id, and belongs to the message before it."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    messages = [*chat(10), user("q"), asked, {"role": "function", "name": "look", "content": "found"}]
    made = compress(messages, keep_recent_count=1)
    assert made.messages[2:] == messages[-3:]


@pytest.mark.parametrize("answered", [(), ("a",), ("b",)])
def test_a_call_that_waits_stays(answered: tuple[str, ...]) -> None:
    """The host is about to add the results that it lacks; those it has stay with it."""
    messages = [*agent_at_work(10), calls("a", "b"), *(result(one, words(100)) for one in answered)]
    made = compress(messages, max_total_tokens=900, keep_recent_count=0)
    assert made.messages[3:] == messages[22:]
    assert len(snapshots(made.messages)) == 1


def test_a_call_that_nobody_answers_any_more_does_not_hold_up_the_rest() -> None:
    """Only the newest call waits; one before a later message was given up."""
    messages = [SYSTEM, user("q"), calls("lost"), *chat(10)[1:]]
    made = compress(messages)
    assert made.messages[2:] == messages[-2:]


def test_system_messages_are_never_compressed() -> None:
    """At any place, and in their order."""
    middle = {"role": "developer", "content": "From now on in French."}
    messages = [*chat(5), middle, *chat(5)[1:]]
    made = compress(messages)
    assert made.messages[:2] == [SYSTEM, middle]
    assert made.messages[2] in snapshots(made.messages)
    assert len(made.messages) == 5


def test_earlier_snapshots_are_merged_not_stacked(tmp_path: Path) -> None:
    """The next one continues them, and its file holds them: with them, the references to the originals."""
    first = compress(chat(10), store_dir=tmp_path, summarizer=lambda _request: "Ordered item-7.")
    summarizer = ScriptedSummarizer(["Ordered item-7, then item-8."])
    second = compress([*first.messages, *chat(10)[1:]], store_dir=tmp_path, summarizer=summarizer)
    (snapshot,) = snapshots(second.messages)
    assert "Ordered item-7, then item-8." in snapshot["content"]
    assert [request.previous.summary for request in summarizer.requests if request.previous] == ["Ordered item-7."]
    assert "Ordered item-7." in str(summarizer.requests[0].messages)
    ((_, archive),) = second.write_file_dict.items()
    (path,) = first.write_file_dict
    assert path in archive


def test_several_snapshots_become_one() -> None:
    """Consecutive ones, left by another system or an earlier version."""
    one, other = (
        snapshots(compress(chat(10), summarizer=lambda _request, said=said: said).messages)[0]
        for said in (f"It began. {ASKED}", f"It went on. {ASKED}")
    )
    summarizer = ScriptedSummarizer([ASKED])
    made = compress([SYSTEM, one, *chat(5)[1:], other, *chat(5)[1:]], summarizer=summarizer)
    assert len(snapshots(made.messages)) == 1
    assert summarizer.requests[0].previous is not None
    assert summarizer.requests[0].previous.summary == f"It began. {ASKED}\n\nIt went on. {ASKED}"


def test_snapshots_alone_are_not_summarised_again() -> None:
    """Without old enough new messages there is nothing to do, and no model is asked."""
    first = compress(chat(10))
    asked = ScriptedSummarizer()
    made = compress(first.messages, max_total_tokens=50, summarizer=asked)
    assert (made.messages, made.write_file_dict, asked.requests) == (first.messages, {}, [])
    assert made.over == first.tokens_after - 50


def test_a_user_who_types_a_snapshot_is_heard() -> None:
    """The last message is the question, even in a snapshot's form; a mere lookalike is a message."""
    first = compress(chat(10))
    (typed,) = snapshots(first.messages)
    made = compress([*chat(10), typed], max_total_tokens=1_200)
    assert made.messages[-1] == typed
    alike = user(f"{OPENING}I was told this.\n</state_snapshot>")
    summarizer = ScriptedSummarizer([ASKED])
    compress([alike, *chat(10)], summarizer=summarizer)
    assert summarizer.requests[0].previous is None
    assert "I was told this." in str(summarizer.requests[0].messages)


def test_a_summary_cannot_close_its_snapshot() -> None:
    """A tag in it is text."""
    made = compress(chat(10), summarizer=lambda _request: "It ends </state_snapshot> here <state_snapshot>.")
    (snapshot,) = snapshots(made.messages)
    assert snapshot["content"].count("<state_snapshot>") == snapshot["content"].count("</state_snapshot>") == 1


def test_older_messages_are_summarised_in_groups() -> None:
    """No request holds more of the conversation than a group may have; each goes on from the one before."""
    summarizer = ScriptedSummarizer(default=lambda request: f"Up to {request.end_index}: {ASKED}")
    compress(chat(20), group_token_threshold=600, summarizer=summarizer)
    assert len(summarizer.requests) > 5
    before = None
    for request in summarizer.requests:
        assert (
            sum(count_tokens(f"{round_.user_query} {round_.post_list[0].message}") for round_ in request.rounds) <= 600
        )
        assert (request.previous.summary if request.previous else None) == before
        before = f"Up to {request.end_index}: {ASKED}"
    asked = "".join(str(request.messages) for request in summarizer.requests)
    assert all(f"Question {number}?" in asked for number in range(19))


@pytest.mark.parametrize("group", [None, 0])
def test_without_a_group_size_there_is_one_request(group: int | None) -> None:
    """As long as a request holds it all."""
    summarizer = ScriptedSummarizer()
    compress(chat(20), group_token_threshold=group, summarizer=summarizer)
    assert len(summarizer.requests) == 1


def test_what_the_user_forbade_survives_every_compression() -> None:
    """Word for word, though the summarizer drops it each time."""
    state = [SYSTEM, user("Never book a seat by the window."), answer("Understood.")]
    for _ in range(4):
        state = compress([*state, *chat(8)[1:]], summarizer=lambda _request: ASKED).messages
        (snapshot,) = snapshots(state)
        assert snapshot["content"].count("Never book a seat by the window.") == 1


def test_an_llm_api_will_do() -> None:
    """As everywhere: an object with chat_completion."""

    class Api:
        def chat_completion(self, messages: list[Mapping[str, Any]]) -> Mapping[str, Any]:
            assert "Question 0?" in messages[0]["content"]
            return {"role": "assistant", "content": "They asked ten questions."}

    made = compress(chat(10), summarizer=Api())
    assert "They asked ten questions." in made.messages[1]["content"]


@pytest.mark.parametrize("mode", ["auto", "compress"])
def test_a_result_larger_than_the_limit_leaves_what_was_there(mode: Any) -> None:
    """No summary makes it fit: so no model is asked, and not one fact of the earlier rounds is lost."""
    messages = [*summarised(), user("And now?"), calls("c"), result("c", words(4_000))]
    asked = ScriptedSummarizer()
    made = offload_context(messages, context_manage_mode=mode, **LIMITS, summarizer=asked)
    assert made.messages == messages
    assert asked.requests == []
    assert made.over == tokens_of(messages) - 3_000
    assert made.success


def test_a_later_summary_is_never_aimed_below_the_earlier_one() -> None:
    """In any room beside the newest messages: the target is at least the earlier summary's length, or nobody is asked."""
    earlier = summarised()
    there, times = count_tokens(FACTS), []
    for size in range(0, 3_200, 400):
        messages = [*earlier, *chat(3)[1:], user("And now?"), calls("c"), result("c", words(size))]
        asked = ScriptedSummarizer([FACTS + "\n- All is well."])
        made = compress(messages, **LIMITS, summarizer=asked)
        assert all(request.target_tokens >= there for request in asked.requests)
        times.append(len(asked.requests))
        assert FACTS in snapshots(made.messages)[0]["content"]
    assert set(times) == {0, 1}


def test_a_first_summary_is_no_scrap_of_what_it_stands_for() -> None:
    """A newest message that leaves next to no room has nothing asked for that would say next to nothing."""
    messages = [*chat(20), user("And now?"), calls("c"), result("c", words(5_700))]
    asked = ScriptedSummarizer()
    made = compress(messages, max_total_tokens=6_000, summarizer=asked)
    assert (made.messages, asked.requests) == (messages, [])


def test_older_messages_that_are_too_many_by_themselves_are_compressed_behind_a_huge_one() -> None:
    """An agent whose every result is over the limit does not grow for ever; the summary gets what it will have room
    for later."""
    messages = [*orders(), user("And now?"), calls("c"), result("c", words(4_000))]
    asked = ScriptedSummarizer([FACTS])
    made = compress(messages, **LIMITS, summarizer=asked)
    assert [request.target_tokens for request in asked.requests] == [1_000]
    assert made.over > 0
    assert made.tokens_after < 3_000 + 4_000 + 1_500


def test_a_snapshot_counts_all_messages_it_stands_for() -> None:
    """Also those of its predecessors, however often they were summarised again."""
    state, said = [SYSTEM], 0
    for _ in range(4):
        new = chat(10)[1:]
        said += len(new)
        state = compress([*state, *new]).messages
        (snapshot,) = snapshots(state)
        assert f"[Stands for {said - 2} messages, " in snapshot["content"]


# -- where messages say that the rest is ---------------------------------------------------------------------------------


def test_without_a_store_no_file_and_no_tool_is_named() -> None:
    """There is none: the host has the texts, and what would be their names says nothing to the model. What was cut is
    not cut again for that."""
    given = [*chat(20), *agent_at_work(4, size=3_000)[1:]]
    for mode, line in (("compress", "messages, left out here"), ("compact", "tokens, left out here")):
        made = offload_context(given, max_total_tokens=4_000, context_manage_mode=mode, chat_id="c1")
        told = "\n".join(str(message["content"]) for message in made.messages)
        assert f"{line} and kept in full by the host]" in told
        assert made.write_file_dict
        for word in ("file", "read_file", "grep", ".txt", "c1/", "compressed_group", *made.write_file_dict):
            assert word not in told
    again = compact(made.messages, max_total_tokens=10, keep_recent_count=0)
    cut = [message for message in made.messages if "tokens, left out here" in str(message["content"])]
    assert cut
    assert [message for message in cut if message not in again.messages] == []


def test_what_the_messages_say_of_files_is_so(tmp_path: Path) -> None:
    """Each file that they name is there, and the tools that they name read it."""
    made = offload_context(
        [*chat(20), *agent_at_work(4, size=3_000)[1:]], max_total_tokens=4_000, store_dir=tmp_path, chat_id="c1"
    )
    files = OffloadFiles(tmp_path, "c1")
    tools = {tool["function"]["name"] for tool in files.tools()}
    shown = "\n".join(str(message["content"]) for message in made.messages)
    named = [path for path in made.write_file_dict if path in shown]
    assert named
    assert not any(files.call("read_file", {"path": path}).startswith("Error") for path in named)
    assert {"read_file", "grep"} <= tools


def test_an_archive_is_plain_text_in_which_grep_finds_what_was_said(tmp_path: Path) -> None:
    """Several lines, quotation marks, tool arguments, any script: each stands there as it was said."""
    spoken = 'He said "call me at 5".\nПривет, 世界 — C:\\temp\\new'
    arguments = '{"city": "São Paulo", "note": "say \\"hi\\""}'
    messages = [user(spoken), calls("c1", arguments=arguments), result("c1", 'line one\nline "two"'), *chat(10)]
    made = compress(messages, store_dir=tmp_path, chat_id="c1")
    ((path, text),) = made.write_file_dict.items()
    files = OffloadFiles(tmp_path, "c1")
    for said in ('said "call me', "世界", "C:\\temp\\new", '"city": "São Paulo"', '\\"hi\\"', 'line "two"'):
        assert files.grep(said).startswith("[grep: 1 lines"), said
    assert files.messages(path) == read_archive(text)
    assert files.messages(path)[:3] == messages[:3]
    with pytest.raises(OffloadError, match="no file"):
        files.messages("nothing.txt")


def test_files_of_a_conversation_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    """Under any umask: folders 0700, files 0600."""
    before = os.umask(0o022)
    try:
        made = offload_context(
            agent_at_work(4, size=3_000), max_total_tokens=4_000, store_dir=tmp_path / "store", chat_id="c1"
        )
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*")}
    assert modes.pop("c1") == 0o700 == stat.S_IMODE((tmp_path / "store").stat().st_mode)
    assert set(modes.values()) == {0o600}
    assert len(modes) == len(made.write_file_dict)


def test_the_result_is_a_response_as_its_users_know_it() -> None:
    """success, answer, messages and metadata; the answer names the files, or the reason why there are none."""
    made = offload_context(agent_at_work(4, size=3_000), max_total_tokens=4_000)
    said = made.to_dict()
    assert list(said) == ["success", "answer", "messages", "metadata"]
    assert said["metadata"]["write_file_dict"] == made.write_file_dict
    assert all(path in said["answer"] for path in made.write_file_dict)
    assert offload_context([]).answer == "Nothing was offloaded."
    failed = offload_context(chat(20), max_total_tokens=1_000, summarizer=ScriptedSummarizer([RuntimeError("down")]))
    assert failed.to_dict()["success"] is False
    assert "down" in failed.answer


# -- auto --------------------------------------------------------------------------------------------------------------


def test_auto_stops_where_compaction_is_enough() -> None:
    """It left at most three quarters, and it fits: no model is asked."""
    summarizer = ScriptedSummarizer()
    made = offload_context(agent_at_work(5, size=3_000), max_total_tokens=8_000, summarizer=summarizer)
    assert (summarizer.requests, made.over) == ([], 0)
    assert len(made.write_file_dict) == 4


@pytest.mark.parametrize(
    ("size", "limit", "options", "compressed"),
    [
        (3_500, 8_000, {}, True),  # it does not fit
        (3_500, 10_000, {}, False),
        (2_600, 10_000, {}, True),  # it fits, and is more than three quarters
        (3_500, 10_000, {"compact_ratio_threshold": 0.5}, True),
    ],
)
def test_auto_goes_on_where_compaction_is_not_enough(size: int, limit: int, options: Any, compressed: bool) -> None:
    """More than the given share is left, or it still does not fit."""
    messages = [*chat(28), *agent_at_work(2, size=size)[1:]]
    left = compact(messages, max_total_tokens=limit)
    assert (left.over == 0, left.tokens_after > 0.75 * left.tokens_before) == (limit > 8_000, size < 3_000)
    made = offload_context(messages, max_total_tokens=limit, **options)
    assert bool(snapshots(made.messages)) == compressed


def test_auto_compresses_the_compacted_messages_not_the_originals(tmp_path: Path) -> None:
    """No summarizer reads a payload that was just moved to a file; the file's name goes into the archive."""
    summarizer = ScriptedSummarizer(["Items 0 to 18 were looked up."])
    messages = agent_at_work(20, size=2_500)
    made = offload_context(messages, max_total_tokens=2_900, store_dir=tmp_path, summarizer=summarizer)
    assert len(snapshots(made.messages)) == 1
    (request,) = summarizer.requests
    assert count_tokens(str(request.messages)) < 19 * 400
    payloads = {path: text for path, text in made.write_file_dict.items() if "/compressed_group-" not in path}
    (archive,) = (text for path, text in made.write_file_dict.items() if "/compressed_group-" in path)
    assert len(payloads) == 19
    assert all(path in archive for path in payloads)
    assert {message["content"] for message in messages[3:-1:2]} == set(payloads.values())


@pytest.mark.parametrize("mode", ["compact", "compress"])
def test_the_other_modes_do_one_thing(mode: Any) -> None:
    """Compact asks no model, and compress moves no single result to a file."""
    summarizer = ScriptedSummarizer(["Items were looked up."])
    made = offload_context(
        agent_at_work(20, size=2_500), context_manage_mode=mode, max_total_tokens=2_700, summarizer=summarizer
    )
    assert bool(summarizer.requests) == bool(snapshots(made.messages)) == (mode == "compress")
    assert {"/compressed_group-" in path for path in made.write_file_dict} == {mode == "compress"}


# -- whatever is said --------------------------------------------------------------------------------------------------

said = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=()), max_size=30),
    st.integers(0, 400).map(words),
    st.sampled_from(["", "漢字" * 200, "👩‍👩‍👧" * 50, "</state_snapshot>", "Never do that.", "\x00\ud800", "[x]\n]"]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Conversations that a provider accepts: parallel calls, all answered except at the very end."""
    messages: list[Message] = [SYSTEM] if draw(st.booleans()) else []
    used = 0
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["user", "assistant", "calls", "system"]))
        if kind == "calls":
            new = [f"c{used + number}" for number in range(draw(st.integers(1, 3)))]
            used += len(new)
            messages += [calls(*new), *(result(id_, draw(said)) for id_ in draw(st.permutations(new)))]
        else:
            messages.append({"role": kind, "content": draw(said)})
    if draw(st.booleans()):
        messages += [calls("open", "done"), *([result("done", draw(said))] if draw(st.booleans()) else [])]
    return messages


@pytest.mark.slow
@given(
    conversations(),
    st.sampled_from(["auto", "compact", "compress"]),
    st.integers(1, 1_500),
    st.integers(1, 300),
    st.sampled_from([None, 0, 1, 3]),
    st.sampled_from([None, 64, 300]),
)
def test_nothing_is_torn_lost_or_made_up(
    messages: list[Message], mode: Any, limit: int, large: int, keep: int | None, group: int | None
) -> None:
    """Calls keep their results, the newest question and instructions stand as they were, what is over is exact, what is
    no longer said is in a file, the messages given are as they were, and the same again gives the same."""
    before = copy.deepcopy(messages)
    options: Any = {
        "context_manage_mode": mode,
        "max_total_tokens": limit,
        "max_tool_message_tokens": large,
        "keep_recent_count": keep,
        "group_token_threshold": group,
    }
    made = offload_context(messages, **options)
    assert messages == before
    assert_paired(made.messages)
    assert made.tokens_after == tokens_of(made.messages) <= made.tokens_before == tokens_of(messages)
    assert made.over == max(made.tokens_after - limit, 0)
    assert [one for one in made.messages if one["role"] == "system"] == [
        one for one in messages if one["role"] == "system"
    ]
    asked = [one for one in messages if one["role"] == "user"]
    assert asked[-1:] == [one for one in made.messages if one in asked][-1:]
    assert len(snapshots(made.messages)) <= 1
    archived = [
        one for path, text in made.write_file_dict.items() if "/compressed_group-" in path for one in read_archive(text)
    ]
    for message in messages:
        payload = message["content"]
        kept = message in made.messages or message in archived or payload in made.write_file_dict.values()
        assert kept, "a message was lost"
    assert offload_context(messages, **options) == made


@pytest.mark.slow
@given(st.lists(conversations(), min_size=2, max_size=4), st.integers(200, 1_000))
def test_feeding_results_back_stacks_nothing(turns: list[list[Message]], limit: int) -> None:
    """An agent that goes on from each result has one snapshot at most, and never a torn call."""
    state: list[Message] = []
    for turn in turns:
        closed = [one for one in turn if "open" not in ids(one) and one.get("tool_call_id") != "done"]
        made = offload_context([*state, *closed], max_total_tokens=limit, max_tool_message_tokens=50)
        assert made.failure is None or isinstance(made.failure, SummaryRejected)
        state = made.messages
        assert_paired(state)
        assert len(snapshots(state)) <= 1


@pytest.mark.slow
def test_real_dialogues_fit_at_every_step(data: list[dict[str, Any]]) -> None:
    """An agent that calls it before each request goes on for ever within its limit, where that holds its newest
    messages."""
    for dialogue in data[:4]:
        state: list[Message] = []
        for message in dialogue["messages"]:
            made = offload_context([*state, message], max_total_tokens=3_500, max_tool_message_tokens=300)
            assert made.success
            recent = tokens_of([*made.messages[:1], *made.messages[2:]])
            assert made.over == 0 or recent > 3_000
            assert_paired(made.messages)
            state = made.messages
    worked = [message for dialogue in data for message in dialogue["messages"] if message["role"] != "system"]
    once = offload_context([data[0]["messages"][0], *worked[:300]], max_total_tokens=8_000)
    assert once.over == 0
    assert len(once.messages) < 10


# -- nonsense ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"context_manage_mode": "fast"}, "auto, compact, compress"),
        ({"max_total_tokens": 0}, "max_total_tokens"),
        ({"max_total_tokens": "20000"}, "max_total_tokens"),
        ({"max_tool_message_tokens": 0}, "max_tool_message_tokens"),
        ({"group_token_threshold": 63}, "group_token_threshold"),
        ({"group_token_threshold": -1}, "group_token_threshold"),
        ({"keep_recent_count": -1}, "keep_recent_count"),
        ({"keep_recent_count": True}, "keep_recent_count"),
        ({"target_tokens": 0}, "target_tokens"),
        ({"prompt": "no such prompt"}, "prompt"),
        ({"store_dir": ""}, "store_dir"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], named: str) -> None:
    """Before anything is counted, by a message that names it."""
    with pytest.raises(ValueError, match=named):
        offload_context([user("q")], **options)


def test_what_is_no_message_is_refused() -> None:
    """By its place, without its text."""
    with pytest.raises(MessageError, match="message 2") as raised:
        offload_context([user("q"), {"role": "robot", "content": "secret"}])
    assert "secret" not in str(raised.value)
