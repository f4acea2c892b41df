"""The preset: compact by references and files, compress the rest, and lose nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chats import answer, assert_legal, calls, result, user, words
from scene import of_kind

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ContextCompactor,
    Evaluated,
    Event,
    Published,
    Reduced,
    StrategyFailed,
    SummaryRequest,
    compose,
    count_tokens,
)
from compactor.presets import OffloadError, OffloadFiles, context_offload
from compactor.testing import ScriptedSummarizer
from memory import InMemoryStore, Memory
from prompts import PromptTemplate

ROLE = "assistant"
LIMIT = 4_000


def look_up(memory: Memory, number: int, size: int = 600) -> None:
    """One call in the open round, with a result of *size* tokens."""
    memory.append(calls(f"call_{number}"))
    memory.append(result(f"call_{number}", f"item-{number} {words(size)}"))


def asked_and_answered(memory: Memory, number: int, size: int = 600) -> None:
    """A round in which something was looked up."""
    memory.append(user(f"Question {number}?"))
    look_up(memory, number, size)
    memory.append(answer(f"Answer {number}."))


def long_questions(count: int, size: int) -> Memory:
    """A memory with *count* rounds, each with a question of *size* words and an answer."""
    memory = Memory("session")
    for number in range(1, count + 1):
        memory.append(user(f"Question {number}? {words(size)}"))
        memory.append(answer(f"Answer {number}."))
    return memory


def run(memory: Memory, **options: Any) -> list[Event]:
    """Let a compactor of the preset look at *memory* once; return its events."""
    events: list[Event] = []
    options = {"max_total_tokens": LIMIT, "max_tool_message_tokens": 200} | options
    with ContextCompactor.for_role(memory, ROLE, **context_offload(**options), on_event=events.append) as compactor:
        compactor.wait_idle(20)
    return events


def shown(memory: Memory) -> str:
    """The messages of a prompt without a limit."""
    prompt = compose(memory, budget=10**6)
    assert_legal(prompt, 10**6)
    return "\n".join(str(message.get("content")) for message in prompt.messages)


def busy(rounds: int, size: int = 600) -> Memory:
    memory = Memory("session")
    for number in range(1, rounds + 1):
        asked_and_answered(memory, number, size)
    memory.append(user("And now?"))
    return memory


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "compact", "compress"])
def test_nothing_happens_below_the_limit(mode: Any) -> None:
    """However large a result is."""
    memory = busy(3)
    before = shown(memory)
    events = run(memory, context_manage_mode=mode)
    assert not of_kind(events, Reduced)
    assert not of_kind(events, Published)
    assert shown(memory) == before


def test_compact_puts_previews_in_the_place_of_results() -> None:
    """100 characters, the size, and the reference that reloads all of it; no model is asked."""
    memory = busy(9)
    summarizer = ScriptedSummarizer()
    events = run(memory, context_manage_mode="compact", summarizer=summarizer)
    assert {event.strategy for event in of_kind(events, Reduced)} == {"offload_large"}
    assert len(of_kind(events, Reduced)) == 9
    assert summarizer.requests == []
    text = shown(memory)
    for number in range(1, 10):
        original = f"item-{number} {words(600)}"
        assert original not in text
        assert f"{original[:100]}\n[" in text
        assert f"reload r{number}.p2]" in text
        assert memory.reload(f"r{number}.p2") == original


def test_compact_spares_the_newest_posts() -> None:
    """One by default: the result that the agent is about to read."""
    memory = busy(8)
    look_up(memory, 9)
    run(memory, context_manage_mode="compact")
    assert f"item-9 {words(600)}" in shown(memory)
    for kept, spared in ((5, "8 9"), (0, "9")):
        memory = busy(8)
        look_up(memory, 9)
        run(memory, context_manage_mode="compact", keep_recent_count=kept)
        text = shown(memory)
        assert [number for number in range(1, 10) if f"item-{number} {words(600)}" in text] == [
            *map(int, spared.split())
        ]


def test_compress_makes_a_summary_of_older_rounds() -> None:
    """All but the newest, from the full texts."""
    memory = busy(9)
    summarizer = ScriptedSummarizer(["Nine items were looked up."])
    events = run(memory, context_manage_mode="compress", summarizer=summarizer)
    assert len(of_kind(events, Published)) == 1
    assert not of_kind(events, Reduced)
    text = shown(memory)
    assert "Nine items were looked up." in text
    assert "Question 9?" not in text
    assert "And now?" in text
    assert all(f"item-{number} {words(600)}" in str(summarizer.requests[0].messages) for number in range(1, 10))


def test_compress_makes_a_summary_of_the_open_rounds_calls() -> None:
    """An agent that works on one question for ever: the question and the newest messages stay."""
    memory = Memory("session")
    memory.append(user("Which item is cheapest?"))
    for number in range(1, 10):
        look_up(memory, number)
    summarizer = ScriptedSummarizer(["Items 1 to 8: none is cheap."])
    run(memory, context_manage_mode="compress", summarizer=summarizer)
    text = shown(memory)
    assert "Which item is cheapest?" in text
    assert "none is cheap" in text
    assert f"item-1 {words(600)}" not in text
    assert f"item-9 {words(600)}" in text
    assert memory.reload("r1.p2") == f"item-1 {words(600)}"


def test_auto_stops_where_compaction_is_enough() -> None:
    """It left at most three quarters, and the prompt fits: no model is asked, and none is later for the same."""
    memory = busy(9)
    summarizer = ScriptedSummarizer()
    assert len(of_kind(run(memory, summarizer=summarizer), Reduced)) == 9
    assert not of_kind(run(memory, summarizer=summarizer), Reduced)
    assert summarizer.requests == []


@pytest.mark.slow
def test_auto_compresses_what_compaction_left_too_long() -> None:
    """The summary is made of the compacted messages: no model reads what was just offloaded."""
    memory = busy(50, size=250)
    summarizer = ScriptedSummarizer(["Fifty items were looked up."])
    events = run(memory, summarizer=summarizer)
    kinds = [type(event) for event in events if isinstance(event, Reduced | Published)]
    assert kinds == [Reduced] * 50 + [Published]
    (request,) = summarizer.requests
    assert words(250) not in str(request.messages)
    assert "reload r1.p2" in str(request.messages)
    assert "Fifty items were looked up." in shown(memory)


@pytest.mark.parametrize(("ratio", "compressed"), [(0.9, False), (0.5, True)])
def test_auto_compresses_where_compaction_left_more_than_a_share(ratio: float, compressed: bool) -> None:
    """Though it fits now; so it does not come to the brink again with the next message."""
    memory = long_questions(5, size=500)
    asked_and_answered(memory, 6, size=1_600)
    memory.append(user("And now?"))
    summarizer = ScriptedSummarizer(["Six questions were asked."])
    events = run(memory, summarizer=summarizer, compact_ratio_threshold=ratio)
    assert len(of_kind(events, Reduced)) == 1
    assert len(of_kind(events, Published)) == compressed


def test_what_was_saved_in_a_failed_round_counts_no_more() -> None:
    """The prompt would not be over the limit with its texts, for it shows nothing of that round."""
    memory = long_questions(6, size=480)
    asked_and_answered(memory, 7, size=1_500)
    memory.append(user("And now?"))
    assert of_kind(run(memory, compact_ratio_threshold=0.95), Reduced)
    memory.finish_round(memory.conversation.rounds[6], "failed")
    assert not any(event.is_due for event in of_kind(run(memory, compact_ratio_threshold=0.5), Evaluated))


def test_a_share_that_is_left_behind_a_compaction_counts_no_more() -> None:
    """Once compressed, the rest has its own share; nothing is due again and again."""
    memory = busy(50, size=250)
    run(memory, summarizer=ScriptedSummarizer(["Fifty items were looked up."]))
    asked_and_answered(memory, 51, size=100)
    events = run(memory, summarizer=ScriptedSummarizer([RuntimeError("not to be asked")]))
    assert not any(event.is_due for event in of_kind(events, Evaluated))


def test_a_failed_summary_leaves_the_compaction() -> None:
    """Offloaded texts stay so, nothing else changes, and it is tried again in the background."""
    memory = busy(50, size=250)
    events = run(memory, summarizer=ScriptedSummarizer(default=RuntimeError("down")))
    assert len(of_kind(events, Reduced)) == 50
    assert not of_kind(events, Published)
    assert "Question 1?" in shown(memory)


# -- options -----------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_its_users_know() -> None:
    """20,000 tokens; two messages, which are the newest round; and the keys that a compactor takes."""
    made = context_offload()
    assert set(made) == {"config", "trigger", "strategies"}
    assert set(context_offload(summarizer=ScriptedSummarizer([]))) == {*made, "summarizer"}
    assert made["config"].max_tokens == 20_000
    assert made["config"].retain_recent == 1
    assert "20000" in repr(made["trigger"])
    assert len(made["strategies"]) == 3


def test_max_token_is_the_same_as_max_total_tokens() -> None:
    """The name that all presets know."""
    assert context_offload(max_token=3_000)["config"] == context_offload(max_total_tokens=3_000)["config"]


@pytest.mark.parametrize(("keep", "rounds"), [(None, 1), (0, 1), (1, 1), (2, 1), (3, 2), (10, 5)])
def test_messages_to_keep_are_rounds_of_two(keep: int | None, rounds: int) -> None:
    """A question and its answer; the newest round always stays."""
    assert context_offload(keep_recent_count=keep)["config"].retain_recent == rounds


def test_more_rounds_stay_where_more_messages_are_kept() -> None:
    """Even if the prompt stays above its limit."""
    memory = busy(20)
    run(
        memory,
        context_manage_mode="compress",
        keep_recent_count=20,
        summarizer=ScriptedSummarizer(["Eight questions were answered, of item-1 to item-8."]),
    )
    text = shown(memory)
    assert "Question 11?" not in text
    assert all(f"Question {number}?" in text for number in range(12, 21))


def test_a_summary_is_a_part_of_the_limit() -> None:
    """A small prompt gets a small summary, as long as it can say anything."""
    assert context_offload()["config"].target_tokens == 1_000
    assert context_offload(max_total_tokens=2_000)["config"].target_tokens == 500
    assert context_offload(max_total_tokens=100)["config"].target_tokens == 64
    for wished, given in ((300, 300), (900, 500), (None, 500)):
        config = CompactorConfig(target_tokens=wished)
        assert context_offload(max_total_tokens=2_000, config=config)["config"].target_tokens == given


def test_the_rest_comes_from_a_config() -> None:
    """The preset's own parameters win; the tokenizer and the prompt come from the configuration."""
    mine = PromptTemplate("mine", "{content}\n\nSum it up.")
    given = CompactorConfig(model="gpt-4", retain_recent=4, call_timeout=7, max_tokens=5).with_prompt(mine)
    config = context_offload(config=given)["config"]
    assert (config.model, config.retain_recent, config.call_timeout, config.prompt) == ("gpt-4", 4, 7, mine)
    assert config.max_tokens == 20_000
    assert context_offload(config=given, keep_recent_count=3)["config"].retain_recent == 2


def test_a_group_bounds_the_requests() -> None:
    """Each holds about as much of the conversation, and goes on from the summary before."""
    summarizer = ScriptedSummarizer(default=lambda request: f"Rounds up to {request.end_index}.")
    run(busy(20), context_manage_mode="compress", group_token_threshold=1_500, summarizer=summarizer)

    def conversation(request: SummaryRequest) -> int:
        text = str(request.messages[0]["content"])
        return count_tokens(text.partition("<conversation>")[2].partition("</conversation>")[0])

    assert len(summarizer.requests) > 5
    assert 1_000 < max(map(conversation, summarizer.requests)) < 3_000


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"context_manage_mode": "fast"}, ValueError, "auto, compact, compress"),
        ({"max_total_tokens": 0}, ValueError, "max_total_tokens"),
        ({"max_token": -1}, ValueError, "max_token:"),
        ({"group_token_threshold": 3}, ValueError, "group_token_threshold"),
        ({"keep_recent_count": -1}, ValueError, "keep_recent_count"),
        ({"store_dir": "store"}, ValueError, "chat_id"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], error: type[Exception], named: str) -> None:
    """When it is given; a store without a chat is, since sessions would read each other's files."""
    with pytest.raises(error, match=named):
        context_offload(**options)


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_hold_what_the_references_reload(tmp_path: Path) -> None:
    """Each text names both, and both give the original."""
    memory = busy(9)
    run(memory, store_dir=tmp_path, chat_id="chat")
    found = re.findall(r"in the file (\S+); reload (r\d+\.p\d+)\]", shown(memory))
    assert [ref for _, ref in found] == [f"r{number}.p2" for number in range(1, 10)]
    files = OffloadFiles(tmp_path, "chat")
    for path, ref in found:
        assert Path(path).read_text() == memory.reload(ref)
        assert memory.reload(ref) in files.read_file(path)
    assert len(list((tmp_path / "chat").iterdir())) == 9
    assert "r7-p2-" in files.grep("item-7")


def test_a_file_is_there_before_the_text_that_names_it(tmp_path: Path) -> None:
    """A reader of the text can read the file."""
    memory = busy(9)
    missing: list[str] = []

    def look(event: Event) -> None:
        if isinstance(event, Reduced):
            paths = re.findall(r"in the file (\S+);", shown(memory))
            missing.extend(path for path in paths if not Path(path).exists())

    preset = context_offload(max_total_tokens=LIMIT, max_tool_message_tokens=200, store_dir=tmp_path, chat_id="chat")
    with ContextCompactor.for_role(memory, ROLE, **preset, on_event=look) as compactor:
        compactor.wait_idle(20)
    assert "in the file" in shown(memory)
    assert missing == []


def test_what_was_just_read_from_a_file_stays(tmp_path: Path) -> None:
    """Else the agent would read it again, and so on; behind the next question it is a result like others."""
    memory = busy(9)
    run(memory, store_dir=tmp_path, chat_id="chat")
    read = OffloadFiles(tmp_path, "chat").grep("word")
    memory.append(calls("read"))
    memory.append(result("read", read))
    look_up(memory, 10)
    limits: Any = {"store_dir": tmp_path, "chat_id": "chat", "context_manage_mode": "compact", "max_total_tokens": 500}
    run(memory, **limits)
    assert read in shown(memory)
    memory.append(answer("done"))
    memory.append(user("Next?"))
    run(memory, **limits)
    assert read not in shown(memory)
    assert memory.reload("r10.p2") == read


@pytest.mark.parametrize(("size", "named", "offloaded"), [(15, False, False), (60, False, True), (200, True, True)])
def test_no_text_is_offloaded_to_one_that_is_longer(size: int, named: bool, offloaded: bool, tmp_path: Path) -> None:
    """If the file's name would cost more than the text, the reference alone is used, if that is shorter."""
    memory = busy(9, size=size)
    run(
        memory,
        context_manage_mode="compact",
        max_total_tokens=100,
        max_tool_message_tokens=10,
        preview_char_length=0,
        store_dir=tmp_path,
        chat_id="long-" * 12,
    )
    text = shown(memory)
    assert ("in the file" in text) == named == bool(list(tmp_path.rglob("*.txt")))
    assert ("reload r1.p2]" in text) == offloaded


def test_sessions_have_files_of_their_own(tmp_path: Path) -> None:
    """The same reference in two sessions is two files in two folders."""
    for chat_id in ("one", "two"):
        run(busy(9), store_dir=tmp_path, chat_id=chat_id)
    assert len(list((tmp_path / "one").iterdir())) == len(list((tmp_path / "two").iterdir())) == 9


def test_a_store_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    """It is told, the next strategy is tried, and no text names a file that is not there."""
    (tmp_path / "store").write_text("a file")
    memory = busy(9)
    events = run(memory, store_dir=tmp_path / "store", chat_id="chat", summarizer=ScriptedSummarizer(["Nine items."]))
    assert [event.error for event in of_kind(events, StrategyFailed)] == ["OffloadError"]
    assert len(of_kind(events, Published)) == 1
    assert "in the file" not in shown(memory)
    memory = busy(9)
    preset = context_offload(
        context_manage_mode="compact",
        max_total_tokens=LIMIT,
        max_tool_message_tokens=200,
        store_dir=tmp_path / "store",
        chat_id="chat",
    )
    compactor = ContextCompactor.for_role(memory, ROLE, **preset)
    with pytest.raises(CompactionFailed) as raised:
        compactor.compact_now(20)
    assert isinstance(raised.value.__cause__, OffloadError)
    assert all(f"item-{number} {words(600)}" in shown(memory) for number in range(1, 10))


def test_a_preview_may_be_left_out() -> None:
    """Then the line with the reference stands alone."""
    memory = busy(9)
    run(memory, preview_char_length=0)
    text = shown(memory)
    assert "item-1 " not in text
    assert "reload r1.p2]" in text


def test_the_prompt_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """The texts that name the files are in the log."""
    store = InMemoryStore()
    memory = Memory("session", store=store)
    for number in range(1, 10):
        asked_and_answered(memory, number)
    run(memory, store_dir=tmp_path, chat_id="chat")
    assert "in the file" in shown(memory)
    assert shown(Memory("session", store=store)) == shown(memory)


# -- real dialogues ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "compact", "compress"])
def test_real_dialogues_fit_their_budget_at_every_step(mode: Any, data: list[dict[str, Any]], tmp_path: Path) -> None:
    """Legal prompts, and references and files that give the original."""
    memory = Memory("session")
    preset = context_offload(
        context_manage_mode=mode,
        max_total_tokens=2_200,
        max_tool_message_tokens=100,
        store_dir=tmp_path,
        chat_id="chat",
    )
    with ContextCompactor.for_role(memory, ROLE, **preset) as compactor:
        for dialogue in data[:3]:
            for message in dialogue["messages"]:
                if message["role"] == "system" and memory.conversation.rounds:
                    continue
                memory.append(message)
                compactor.wait_idle(20)
                for budget in (1_700, 3_000):
                    assert_legal(compose(memory, budget=budget), budget)
    for path, ref in re.findall(r"in the file (\S+); reload (r\d+\.p\d+)\]", shown(memory)):
        assert Path(path).read_text() == memory.reload(ref)
