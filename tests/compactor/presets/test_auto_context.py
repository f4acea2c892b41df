"""The preset ``auto_context``: six steps in their order, at the numbers its users know, and nothing lost."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from chats import answer, assert_legal, assert_paired, calls, memory_of, result, user
from executors import ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st
from scene import of_kind
from small_auto_context import ROLE, SMALL, long_text, past, summary, tool_run
from views import view_of

from compactor import (
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    Exhausted,
    Published,
    Reduced,
    StrategyFailed,
    compose,
    count_tokens,
    presets,
)
from compactor.presets import STEPS, AutoContextMemory, NotDeleted, PromptConfig, auto_context
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory
from prompts import PromptError, PromptTemplate


def made(memory: Memory, summarizer: object = None, **options: Any) -> tuple[ContextCompactor, ManualExecutor]:
    """Return a started compactor with the preset, that works when its executor is told to."""
    executor = ManualExecutor()
    preset = auto_context(**{**SMALL, **options}, summarizer=summarizer or ScriptedSummarizer(default=summary))
    compactor = ContextCompactor.for_role(memory, ROLE, **preset, executor=executor, clock=FakeClock())
    compactor.start()
    return compactor, executor


def compressed(memory: Memory, summarizer: object = None, **options: Any) -> ContextCompactor:
    """Return a compactor that has done all there is to do."""
    compactor, executor = made(memory, summarizer, **options)
    executor.run_all()
    return compactor


def steps_of(compactor: ContextCompactor) -> list[str]:
    """The steps that reduced something, in the order in which they did."""
    found = [
        event.strategy if isinstance(event, Reduced) else STEPS[3]
        for event in compactor.events
        if isinstance(event, Reduced | Published)
    ]
    return list(dict.fromkeys(found))


def texts(memory: Memory) -> list[str]:
    return [str(message["content"]) for message in AutoContextMemory(memory).get_messages()]


# -- what its users know ----------------------------------------------------------------------------------------------


def test_names_and_defaults_are_those_its_users_know() -> None:
    """The numbers are those of AutoContextMemory."""
    defaults = {name: option.default for name, option in inspect.signature(auto_context).parameters.items()}

    assert list(defaults.items())[:9] == [
        ("msg_threshold", 100),
        ("max_token", 131_072),
        ("token_ratio", 0.75),
        ("last_keep", 50),
        ("large_payload_threshold", 5_120),
        ("offload_single_preview", 200),
        ("min_consecutive_tool_messages", 6),
        ("current_round_compression_ratio", 0.3),
        ("custom_prompt", None),
    ]


def test_the_preset_is_what_for_role_takes() -> None:
    """``for_role(memory, role, **auto_context())`` is enough; optional arguments that are None are left out."""
    preset = auto_context()
    compactor = ContextCompactor.for_role(Memory(), ROLE, **preset)

    assert set(preset) == {"config", "trigger", "strategies"}
    assert set(auto_context(summarizer=summary, plan=lambda: None)) == {*preset, "summarizer", "plan"}
    assert compactor.config.max_tokens == 131_072
    assert compactor.config.token_ratio == 0.75


def test_both_are_among_the_presets() -> None:
    """Hosts look for them there."""
    assert (presets.auto_context, presets.AutoContextMemory) == (auto_context, AutoContextMemory)


def test_there_are_six_steps_in_their_order() -> None:
    """Light to heavy, each under the name that its events say."""
    assert [strategy.__name__ for strategy in auto_context()["strategies"]] == list(STEPS)


@pytest.mark.parametrize(("messages", "is_due"), [(9, False), (10, True), (11, True)])
def test_it_is_due_at_the_message_threshold(messages: int, is_due: bool) -> None:
    """At ``msg_threshold`` messages, not one later."""
    memory = memory_of(*(user() if number % 2 else answer() for number in range(1, messages + 1)))

    assert auto_context(msg_threshold=10)["trigger"](view_of(memory)) is is_due


def test_it_is_due_over_the_share_of_the_tokens() -> None:
    """Over ``token_ratio`` of ``max_token``, however few messages that are."""
    memory = memory_of(user(long_text("word", 4_000)))
    tokens = view_of(memory).tokens

    assert auto_context(max_token=2 * tokens - 2, token_ratio=0.5)["trigger"](view_of(memory))
    assert not auto_context(max_token=2 * tokens, token_ratio=0.5)["trigger"](view_of(memory))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("msg_threshold", 0),
        ("msg_threshold", True),
        ("max_token", 1.5),
        ("last_keep", -1),
        ("large_payload_threshold", -1),
        ("offload_single_preview", "200"),
        ("min_consecutive_tool_messages", None),
        ("token_ratio", 0),
        ("token_ratio", float("nan")),
        ("current_round_compression_ratio", 1.1),
        ("current_round_compression_ratio", "0.3"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(name: str, value: Any) -> None:
    """The error names the setting as the caller wrote it."""
    with pytest.raises(ConfigError, match=name):
        auto_context(**{name: value})


def test_what_else_there_is_to_set_comes_from_the_configuration() -> None:
    """The preset's own parameters win; ``retain_recent`` yields to the configuration."""
    other = CompactorConfig(call_timeout=30, max_tokens=7, retain_recent=5)

    config = auto_context(max_token=1_000, config=other)["config"]
    assert (config.call_timeout, config.max_tokens, config.retain_recent) == (30, 1_000, 5)
    assert auto_context(config=CompactorConfig(call_timeout=30))["config"].retain_recent == 2


# -- the six steps ----------------------------------------------------------------------------------------------------


def test_runs_of_tool_calls_in_past_rounds_go_first() -> None:
    """One summary for the run, in nobody's voice; nothing else is touched when that is enough."""
    memory = memory_of(*past(*tool_run(1, 6)), *past(), user("And now?"))
    compactor = compressed(memory)

    assert steps_of(compactor) == [STEPS[0]]
    shown = AutoContextMemory(memory).get_messages()
    assert [message["role"] for message in shown] == ["user", "user", "assistant", "user", "assistant", "user"]
    assert "Told of tool_run" in shown[1]["content"]
    assert "reload r1.p1-p12" in shown[1]["content"]
    assert_paired(shown)


def test_a_run_of_no_more_than_so_many_tool_messages_stays() -> None:
    """More than six, as there: three calls with their results are six."""
    messages = [*past(*tool_run(1, 3, 400)), *past(), *past(), user("And now?")]

    assert STEPS[0] not in steps_of(compressed(memory_of(*messages)))
    assert STEPS[0] in steps_of(compressed(memory_of(*messages), min_consecutive_tool_messages=5))


def test_large_posts_become_previews_outside_the_newest_messages_first() -> None:
    """Step 2 spares the newest ``last_keep`` messages; if it is enough, step 3 does nothing."""
    memory = memory_of(
        *past(calls("a"), result("a", long_text("old", 9_000))), *past(calls("b"), result("b", long_text("new", 900)))
    )
    compactor = compressed(memory, msg_threshold=100, max_token=2_000)

    assert steps_of(compactor) == [STEPS[1]]
    old, new = (message for message in AutoContextMemory(memory).get_messages() if message["role"] == "tool")
    assert old["content"].startswith(long_text("old", 9_000)[:200])
    assert "reload r1.p2" in old["content"]
    assert new["content"] == long_text("new", 900)


def test_large_posts_among_the_newest_messages_follow() -> None:
    """Step 3 takes them as well if step 2 was not enough."""
    memory = memory_of(*past(calls("a"), result("a", long_text("old", 9_000))), user("And now?"))
    compactor = compressed(memory, msg_threshold=100, max_token=2_000, last_keep=50)

    assert steps_of(compactor) == [STEPS[2]]


def test_previews_are_for_past_rounds_only() -> None:
    """The agent still works with the open round's results: a heavier step makes summaries of them."""
    memory = memory_of(user("Look it up."), calls("a"), result("a", long_text("now", 9_000)), calls("waiting"))
    compactor = compressed(memory, msg_threshold=100, max_token=2_000, last_keep=0)

    assert steps_of(compactor) == [STEPS[4]]
    shown = AutoContextMemory(memory).get_messages()
    assert shown[0] == user("Look it up.")
    assert "Told of large_post" in shown[2]["content"]
    assert "reload r1.p2" in shown[2]["content"]


def test_past_rounds_are_compacted_but_for_the_newest_answer() -> None:
    """Many small messages: there is nothing lighter to do."""
    memory = memory_of(*(message for number in range(6) for message in past(question=f"Question {number}?")), user("Q"))
    compactor = compressed(memory)

    assert steps_of(compactor) == [STEPS[3]]
    assert compactor.status().end_index == 5
    assert texts(memory)[1:] == ["Question 5?", "That of it.", "Q"]


def test_the_open_round_is_compressed_last_and_its_question_stays() -> None:
    """Its calls and results become one summary; the question and the call that waits are as they were."""
    memory = memory_of(user("Find the cheapest."), *tool_run(1, 20), calls("waiting"))
    compactor = compressed(memory)

    assert steps_of(compactor) == [STEPS[5]]
    shown = AutoContextMemory(memory).get_messages()
    assert shown[0] == user("Find the cheapest.")
    assert shown[-1] == calls("waiting")
    assert len(shown) == 3
    assert "Told of tool_run" in shown[1]["content"]


def test_a_long_first_question_is_never_reduced() -> None:
    """The unanswered question, however long: no step touches it, and the prompt has it whole."""
    question = long_text("ask", 6_000)
    memory = memory_of(user(question), *tool_run(1, 8), calls("waiting"))
    compressed(memory, max_token=1_000, last_keep=0)

    assert texts(memory)[0] == question
    assert user(question) in compose(memory, budget=3_000).messages


def test_steps_go_on_until_it_fits() -> None:
    """There, the first step that did anything was the last; here they go on, and no further than they must."""
    memory = memory_of(
        *past(*tool_run(1, 4)), *past(calls("big"), result("big", long_text("big", 4_000))), *past(), user("And now?")
    )
    compactor = compressed(memory, msg_threshold=100, max_token=700, last_keep=8)

    assert steps_of(compactor) == [STEPS[0], STEPS[2]]


# -- prompts of one's own ---------------------------------------------------------------------------------------------


def everything() -> Memory:
    """A conversation that needs every step that asks a model."""
    return memory_of(
        *past(*tool_run(1, 4)),
        *past(),
        *past(),
        user("And now?"),
        calls("big"),
        result("big", long_text("big", 4_000)),
        *tool_run(10, 5, 190),
    )


def asked(memory: Memory, **options: Any) -> dict[str, str]:
    """The requests of each step that asks a model, by kind and place in the conversation."""
    summarizer = ScriptedSummarizer(default=summary)
    compressed(memory, summarizer, msg_threshold=1, max_token=60, **options)
    return {
        f"{request.kind} {request.rounds[0].number}": str(request.messages[0]["content"])
        for request in summarizer.requests
    }


def test_each_step_that_asks_a_model_takes_a_prompt_of_ones_own() -> None:
    """Four prompts under the names they have there; a text is an instruction, and the conversation is put before it."""
    own = PromptConfig(
        previous_round_tool_compress_prompt="Shorten the runs of the past.",
        previous_round_summary_prompt="Sum up {role} here:\n{content}\nEnd of it. Write now.",
        current_round_large_message_prompt=PromptTemplate("own", "{content}\nShorten what is large."),
        current_round_compress_prompt="Shorten the present to {target_characters} characters.",
    )
    requests = asked(everything(), custom_prompt=own)

    assert requests["tool_run 1"].endswith("Shorten the runs of the past.")
    assert requests["rounds 1"].startswith("Sum up assistant here:\n")
    assert requests["large_post 4"].endswith("Shorten what is large.")
    assert "Shorten the present to " in requests["tool_run 4"]
    assert "{target_characters}" not in requests["tool_run 4"]


def test_prompts_may_be_given_by_name_or_path_and_in_a_mapping(tmp_path: Path) -> None:
    """A prompt that is None is the shipped one."""
    file = tmp_path / "own prompt.yaml"
    file.write_text("version: 1\ncontent: |\n  {content}\n\n  Shorten it, says the file.\n", encoding="utf-8")
    own = {"previous_round_summary_prompt": "planner", "previous_round_tool_compress_prompt": file}
    requests = asked(everything(), custom_prompt=own)

    assert requests["tool_run 1"].endswith("Shorten it, says the file.")
    assert requests["rounds 1"] != asked(everything())["rounds 1"]
    assert requests["large_post 4"] == asked(everything())["large_post 4"]


@pytest.mark.parametrize(
    "text",
    [
        "请用一句话总结上面的工具调用,保留所有编号。",
        "要点を1.から3.まで箇条書きで",
        "สรุปสั้นๆ",
        "{content}总结",
        "Shorten it.yaml or not, it is text:\nyes",
    ],
)
def test_a_prompt_of_one_line_without_a_space_is_a_text(text: str) -> None:
    """Many languages write a whole instruction without one: it is no file that cannot be found."""
    made = PromptConfig(current_round_compress_prompt=text).get_template("current_round_compress_prompt")
    assert made is not None
    assert text in made.content


def test_what_ends_in_yaml_is_a_path_also_with_spaces_in_it(tmp_path: Path) -> None:
    """A folder may have a name of two words, in any script."""
    file = tmp_path / "我的 prompts" / "own prompt.yaml"
    file.parent.mkdir()
    file.write_text("content: '{content} Go.'", encoding="utf-8")
    made = PromptConfig(current_round_compress_prompt=str(file)).get_template("current_round_compress_prompt")
    assert made is not None
    assert made.content == "{content} Go."


def test_a_prompt_that_cannot_be_used_is_refused_when_it_is_made() -> None:
    """A name that is none of the four, and a prompt that is not there."""
    with pytest.raises(ConfigError, match=r"custom_prompt\.summary_prompt: unknown; there are previous_round_tool_"):
        auto_context(custom_prompt={"summary_prompt": "x"})
    with pytest.raises(PromptError, match="nowhere"):
        auto_context(custom_prompt={"current_round_compress_prompt": "nowhere"})


# -- failures ---------------------------------------------------------------------------------------------------------


def test_where_all_steps_fail_there_is_a_warning_and_the_prompt_fits() -> None:
    """The log and the published compaction stay as they were; compose does the rest."""
    memory = everything()
    before = memory.messages()
    summarizer = ScriptedSummarizer(default=OSError("no network"))
    compactor = compressed(memory, summarizer, msg_threshold=1, max_token=60, large_payload_threshold=100_000)

    assert {event.strategy for event in of_kind(compactor.events, StrategyFailed)} >= {STEPS[0], STEPS[3], STEPS[5]}
    assert [event.level for event in of_kind(compactor.events, Exhausted)][:1] == ["warning"]
    assert memory.messages() == before
    assert_legal(compose(memory, budget=400), 400)


def test_an_empty_summary_takes_nobodys_place() -> None:
    """It is refused, and the messages stay."""
    memory = memory_of(*past(*tool_run(1, 6)), *past(), user("And now?"))
    compressed(memory, ScriptedSummarizer(default="  "))

    assert [message["role"] for message in AutoContextMemory(memory).get_messages()].count("tool") == 6


# -- any conversation -------------------------------------------------------------------------------------------------


TEXTS = st.one_of(
    st.just(""),
    st.sampled_from(["Ok.", "好的。" * 40, "🙂 {content} </summary> \ud800\x00"]),
    st.integers(100, 1_500).map(lambda size: long_text("w", size)),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rounds of calls, parallel ones too, with results in any order; the last call may wait."""
    messages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 6))):
        messages.append(user(f"Question {number}: {draw(TEXTS)}"))
        for step in range(draw(st.integers(0, 6))):
            ids = [f"{number}-{step}-{part}" for part in range(draw(st.integers(1, 3)))]
            messages.append(calls(*ids))
            messages += [result(one, draw(TEXTS)) for one in draw(st.permutations(ids))]
        if draw(st.booleans()):
            messages.append(answer(draw(TEXTS)))
    return messages[: max(1, len(messages) - draw(st.integers(0, 1)))]


@pytest.mark.slow
@given(
    conversation=conversations(),
    answers=st.lists(st.sampled_from([None, "", "I will look that up for you.", OSError("down")]), max_size=8),
    max_token=st.sampled_from([200, 1_000, 4_000]),
    last_keep=st.integers(0, 12),
    data=st.data(),
)
@settings(max_examples=20)
def test_whatever_happens_nothing_is_lost_or_torn(
    conversation: list[dict[str, Any]], answers: list[Any], max_token: int, last_keep: int, data: st.DataObject
) -> None:
    """Compression while the conversation goes on, failing summaries, deletions: calls keep their results, the question
    stays, references reload, and the log has it all."""
    summarizer = ScriptedSummarizer([summary if one is None else one for one in answers], default=summary)
    memory = Memory("session")
    options = {**SMALL, "max_token": max_token, "last_keep": last_keep, "min_consecutive_tool_messages": 2}
    executor = ManualExecutor()
    compactor = ContextCompactor.for_role(
        memory, ROLE, **auto_context(**options, summarizer=summarizer), executor=executor, clock=FakeClock()
    )
    context = AutoContextMemory(memory, compactor=compactor)
    compactor.start()
    for message in conversation:
        context.add_message(message)
        if data.draw(st.booleans()):
            executor.run_all()
    executor.run_all()
    asked = [message for message in conversation if message["role"] == "user"]
    newest = asked[-1]
    asked_last = conversation[-1]["role"] != "assistant" or conversation[-1].get("tool_calls")

    shown = context.get_messages()
    assert_paired(shown)
    assert newest in shown
    try:
        context.delete_message(data.draw(st.integers(0, len(shown) - 1)))
    except NotDeleted:
        assert context.get_messages() == shown
    shown = context.get_messages()
    assert_paired(shown)
    assert newest in shown or not asked_last
    assert context.get_original_memory_msgs() == conversation
    assert all(message in conversation for kept in context.get_offload_context().values() for message in kept)
    assert all(
        message["role"] != "assistant" or message in conversation for message in shown if not _offloaded(message)
    )
    needed = 200 + sum(count_tokens(str(message)) for message in asked)
    assert_legal(compose(memory, budget=needed), needed)


def _offloaded(message: dict[str, Any]) -> bool:
    return "left out here and kept in full; reload r" in str(message["content"])


@pytest.mark.slow
def test_real_dialogues_fit_and_reload(data: list[dict[str, Any]]) -> None:
    """Through a small window, step by step: every prompt is legal, and every offload reloads the original."""
    memory = Memory("session")
    options = {"msg_threshold": 30, "max_token": 3_000, "large_payload_threshold": 1_000}
    compactor, executor = made(memory, ScriptedSummarizer(), **options)
    context = AutoContextMemory(memory, compactor=compactor)
    said: list[dict[str, Any]] = []
    for dialogue in data[:6]:
        for message in dialogue["messages"]:
            if message["role"] == "system" and said:
                continue
            said.append(message)
            memory.append(message)
            executor.run_all()
            assert_paired(context.get_messages())
    assert_legal(compose(memory, budget=8_000), 8_000)
    assert context.get_original_memory_msgs() == said
    assert all(message in said for kept in context.get_offload_context().values() for message in kept)
    assert {event.event_type for event in context.compression_events} >= {STEPS[3].upper()}
