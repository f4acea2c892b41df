"""The preset ``auto_context`` and the class ``AutoContextMemory``: what its users know, and nothing lost."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from chats import answer, assert_legal, assert_paired, calls, result, user
from executors import ManualExecutor
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import CompactorConfig, ConfigError, ContextCompactor, Summary, SummaryRequest, View, compose, presets
from compactor.events import Exhausted, Published, Reduced, StrategyFailed
from compactor.ledger import Ledger
from compactor.presets.auto_context import STEPS, PromptConfig, auto_context
from compactor.presets.auto_context_memory import AutoContextMemory, NotDeleted
from compactor.testing import FakeClock, ScriptedSummarizer
from compactor.tokens import count_tokens
from memory import CompactedMessage, Event, InMemoryStore, Memory, MessageError, Reduction, UnknownReference
from prompts import PromptError, PromptTemplate

E = TypeVar("E", bound=Event)
ROLE = "assistant"
#: Reductions of five steps would have to take far more than a test wants to write.
SMALL = {"msg_threshold": 10, "max_token": 4_000, "last_keep": 4, "large_payload_threshold": 200}


def of_kind(events: Sequence[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def summary(request: SummaryRequest) -> Summary:
    """Shorter than anything that these tests have summarised, and no reply."""
    return Summary(f"Kept of {request.kind}: nothing else.", {"input_tokens": 90, "output_tokens": 9}, "tiny")


def long_text(word: str, characters: int = 600) -> str:
    """Words that are all different, as in real results: nothing that a check takes for an echo."""
    text = " ".join(f"{word}{number}" for number in range(characters // 4))
    return text[:characters]


def tool_run(first: int, count: int, characters: int = 60) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield calls(f"c{number}", arguments=json.dumps({"item": number}))
        yield result(f"c{number}", long_text(f"v{number}w", characters))


def memory_of(*messages: dict[str, Any]) -> Memory:
    return Memory.from_messages(messages, "session")


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
    """Whoever comes from there finds the numbers they had."""
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
    """``for_role(memory, role, **auto_context())`` is all there is to it; what is not given is left out."""
    preset = auto_context()
    compactor = ContextCompactor.for_role(Memory(), ROLE, **preset)

    assert set(preset) == {"config", "trigger", "strategies"}
    assert set(auto_context(summarizer=summary, plan=lambda: None)) == {*preset, "summarizer", "plan"}
    assert compactor.config.max_tokens == 131_072
    assert compactor.config.token_ratio == 0.75


def test_both_are_among_the_presets() -> None:
    """Where hosts look for them."""
    assert (presets.auto_context, presets.AutoContextMemory) == (auto_context, AutoContextMemory)


def test_there_are_six_steps_in_their_order() -> None:
    """Light to heavy, each under the name that its events say."""
    assert [strategy.__name__ for strategy in auto_context()["strategies"]] == list(STEPS)


def view_of(memory: Memory) -> View:
    rounds, compaction = memory.get_role_rounds(ROLE)
    return View(rounds, compaction, Ledger(ROLE, count_tokens))


@pytest.mark.parametrize(("messages", "holds"), [(9, False), (10, True), (11, True)])
def test_it_is_due_at_the_message_threshold(messages: int, holds: bool) -> None:
    """At ``msg_threshold`` messages, not one later."""
    memory = memory_of(*(user() if number % 2 else answer() for number in range(1, messages + 1)))

    assert auto_context(msg_threshold=10)["trigger"](view_of(memory)) is holds


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
    """What the preset has a name for is set by that; ``retain_recent`` only where nobody else has set it."""
    other = CompactorConfig(call_timeout=30, max_tokens=7, retain_recent=5)

    config = auto_context(max_token=1_000, config=other)["config"]
    assert (config.call_timeout, config.max_tokens, config.retain_recent) == (30, 1_000, 5)
    assert auto_context(config=CompactorConfig(call_timeout=30))["config"].retain_recent == 2


# -- the six steps ----------------------------------------------------------------------------------------------------


def past(*posts: dict[str, Any], question: str = "What of it?") -> list[dict[str, Any]]:
    """A round that was answered."""
    return [user(question), *posts, answer("That of it.")]


def test_runs_of_tool_calls_in_past_rounds_go_first() -> None:
    """One summary for the run, in nobody's voice; nothing else is touched when that is enough."""
    memory = memory_of(*past(*tool_run(1, 6)), *past(), user("And now?"))
    compactor = compressed(memory)

    assert steps_of(compactor) == [STEPS[0]]
    shown = AutoContextMemory(memory).get_messages()
    assert [message["role"] for message in shown] == ["user", "user", "assistant", "user", "assistant", "user"]
    assert "Kept of tool_run" in shown[1]["content"]
    assert "reload r1.p1-p12" in shown[1]["content"]
    assert_paired(shown)


def test_a_run_of_no_more_than_so_many_tool_messages_stays() -> None:
    """More than six, as there: three calls with their results are six."""
    messages = [*past(*tool_run(1, 3, 400)), *past(), *past(), user("And now?")]

    assert STEPS[0] not in steps_of(compressed(memory_of(*messages)))
    assert STEPS[0] in steps_of(compressed(memory_of(*messages), min_consecutive_tool_messages=5))


def test_large_posts_become_previews_outside_the_newest_messages_first() -> None:
    """Step 2 spares the newest ``last_keep`` messages; where it is enough, step 3 does nothing."""
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
    """Step 3 takes them as well, where step 2 was not enough."""
    memory = memory_of(*past(calls("a"), result("a", long_text("old", 9_000))), user("And now?"))
    compactor = compressed(memory, msg_threshold=100, max_token=2_000, last_keep=50)

    assert steps_of(compactor) == [STEPS[2]]


def test_previews_are_for_past_rounds_only() -> None:
    """The agent still works with what the open round brought: that becomes a summary, by a heavier step."""
    memory = memory_of(user("Look it up."), calls("a"), result("a", long_text("now", 9_000)))
    compactor = compressed(memory, msg_threshold=100, max_token=2_000, last_keep=0)

    assert steps_of(compactor) == [STEPS[4]]
    shown = AutoContextMemory(memory).get_messages()
    assert shown[0] == user("Look it up.")
    assert "Kept of large_post" in shown[2]["content"]
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
    assert "Kept of tool_run" in shown[1]["content"]


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
    """What needs every step that asks a model."""
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
    """What each step that asks a model was asked for, by the kind of the request and its place in the conversation."""
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
    """What is not given stays as shipped."""
    file = tmp_path / "own prompt.yaml"
    file.write_text("version: 1\ncontent: |\n  {content}\n\n  Shorten it, says the file.\n", encoding="utf-8")
    own = {"previous_round_summary_prompt": "planner", "previous_round_tool_compress_prompt": file}
    requests = asked(everything(), custom_prompt=own)

    assert requests["tool_run 1"].endswith("Shorten it, says the file.")
    assert requests["rounds 1"] != asked(everything())["rounds 1"]
    assert requests["large_post 4"] == asked(everything())["large_post 4"]


def test_a_prompt_that_cannot_be_used_is_refused_when_it_is_made() -> None:
    """A name that is none of the four, and a prompt that is not there."""
    with pytest.raises(ConfigError, match=r"custom_prompt\.summary_prompt: unknown; there are previous_round_tool_"):
        auto_context(custom_prompt={"summary_prompt": "x"})
    with pytest.raises(PromptError, match="nowhere"):
        auto_context(custom_prompt={"current_round_compress_prompt": "nowhere"})


# -- failures ---------------------------------------------------------------------------------------------------------


def test_where_all_steps_fail_there_is_a_warning_and_the_prompt_fits() -> None:
    """The log and what was published stay as they were; compose does the rest."""
    memory = everything()
    before = memory.messages()
    summarizer = ScriptedSummarizer(default=OSError("no network"))
    compactor = compressed(memory, summarizer, msg_threshold=1, max_token=60, large_payload_threshold=100_000)

    assert {event.strategy for event in of_kind(compactor.events, StrategyFailed)} >= {STEPS[0], STEPS[3], STEPS[5]}
    assert [event.level for event in of_kind(compactor.events, Exhausted)][:1] == ["warning"]
    assert memory.messages() == before
    assert_legal(compose(memory, budget=400), 400)


def test_an_empty_summary_takes_nobodys_place() -> None:
    """It is refused, and what it was to stand for stays."""
    memory = memory_of(*past(*tool_run(1, 6)), *past(), user("And now?"))
    compressed(memory, ScriptedSummarizer(default="  "))

    assert [message["role"] for message in AutoContextMemory(memory).get_messages()].count("tool") == 6


# -- AutoContextMemory: messages --------------------------------------------------------------------------------------


def context_of(*messages: dict[str, Any], **options: Any) -> AutoContextMemory:
    return AutoContextMemory(memory_of(*messages), **options)


def worked(context: AutoContextMemory) -> AutoContextMemory:
    """Have the compactor of *context* do all there is to do."""
    with context:
        assert context.compactor.wait_idle(20)
    return context


def small(memory: Memory, summarizer: object = None, **options: Any) -> AutoContextMemory:
    preset = {**SMALL, "summarizer": summarizer or ScriptedSummarizer(default=summary), **options}
    return AutoContextMemory(memory, **preset)


def test_without_pressure_messages_come_out_as_they_came() -> None:
    """Header included."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 3)), user("And now?")]
    context = context_of()
    for message in messages:
        context.add_message(message)

    assert context.get_messages() == context.get_original_memory_msgs() == messages


def test_messages_are_what_the_role_sees_and_originals_what_came() -> None:
    """Compressed there, complete here."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 6)), *past(), *past(), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=2))

    shown = context.get_messages()
    assert shown[0] == messages[0]
    assert shown[1]["content"].startswith("[Conversation History Summary]")
    assert shown[-1] == messages[-1]
    assert len(shown) < len(messages)
    assert context.get_original_memory_msgs() == messages


def test_interaction_messages_are_what_the_user_said_and_was_answered() -> None:
    """As they came, whatever was compressed; no tool calls, no results, no header."""
    messages = [{"role": "system", "content": "You help."}, *past(*tool_run(1, 6)), *past(), user("A"), user("B")]
    context = worked(small(memory_of(*messages), msg_threshold=2))

    plain = past()
    assert context.get_interaction_msgs() == [*plain, *plain, user("A"), user("B")]
    assert context_of(answer("Hello."), user("Q")).get_interaction_msgs() == [answer("Hello."), user("Q")]


def test_between_agents_only_what_the_user_hears_is_interaction() -> None:
    """The user's query stands once though a post hands it on; what goes to another agent is not the answer."""
    memory = Memory()
    round_ = memory.create_round("How many?")
    memory.add_post(round_, send_from="User", send_to="Planner", message="How many?")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="Count them.")
    memory.add_post(round_, send_from="Coder", send_to="Planner", message="Nine.")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Nine of them.")
    context = AutoContextMemory(memory, "Planner")

    assert context.get_interaction_msgs() == [user("How many?"), answer("Nine of them.")]
    with pytest.raises(ValueError, match="'Planner'"):
        context.add_message(user("More?"))


def test_it_starts_and_stops_its_compactor() -> None:
    """Making one starts nothing; ``with`` does."""
    context = context_of()

    assert context.compactor.status().state == "new"
    with context:
        assert context.compactor.status().state != "new"
    assert context.compactor.status().state == "stopped"


def test_a_compactor_made_already_is_taken_as_it_is() -> None:
    """With options beside it there would be two that know them."""
    memory = Memory()
    compactor = ContextCompactor.for_role(memory, ROLE)

    assert AutoContextMemory(memory, compactor=compactor).compactor is compactor
    with pytest.raises(TypeError, match="last_keep to auto_context"):
        AutoContextMemory(memory, compactor=compactor, last_keep=3)
    with pytest.raises(ValueError, match="'Planner'"):
        AutoContextMemory(memory, "Planner", compactor=compactor)


# -- AutoContextMemory: deleting --------------------------------------------------------------------------------------


def test_a_deleted_message_is_hidden_and_stays_in_the_log() -> None:
    """No prompt shows it, the log and its reference do."""
    messages = [*past(), user("And now?"), answer("Now this.")]
    context = context_of(*messages)
    context.delete_message(1)

    assert context.get_messages() == [messages[0], *messages[2:]]
    assert compose(context.memory, budget=1_000).messages == [messages[0], *messages[2:]]
    assert context.get_original_memory_msgs() == messages
    assert context.memory.reload("r1.p1") == "That of it."


@pytest.mark.parametrize("index", [1, 2, 3])
def test_a_call_goes_with_its_results_and_a_result_with_its_call(index: int) -> None:
    """Parallel ones too: what providers refuse is not left behind."""
    messages = past(calls("a", "b"), result("a"), result("b"))
    context = context_of(*messages)
    context.delete_message(index)

    assert context.get_messages() == [messages[0], messages[-1]]


def test_the_index_counts_the_list_that_was_given() -> None:
    """What is published in the background meanwhile, or is said, does not make it mean another message."""
    memory = memory_of(*(message for number in range(4) for message in past(question=f"Question {number}?")))
    context = small(memory, msg_threshold=2)
    shown = context.get_messages()
    memory.append(user("And now?"))
    worked(context)
    assert context.compactor.status().end_index == 3

    context.delete_message(shown.index(user("Question 3?")))
    assert context.get_messages()[1:] == [answer("That of it."), user("And now?")]


def test_the_index_goes_on_in_what_is_left_of_the_list() -> None:
    """As in a list from which items are deleted."""
    context = context_of(*past(calls("a"), result("a")), *past(question="Next?"))
    context.get_messages()
    context.delete_message(1)
    context.delete_message(1)

    assert context.get_messages() == [user("What of it?"), *past(question="Next?")]


def test_what_was_covered_since_the_list_was_given_is_not_deleted() -> None:
    """The summary tells of it already; whoever wants to delete that sees it first."""
    memory = memory_of(*(message for number in range(4) for message in past(question=f"Question {number}?")))
    context = small(memory, msg_threshold=2)
    shown = context.get_messages()
    worked(context)

    with pytest.raises(NotDeleted, match=r"get_messages\(\) again"):
        context.delete_message(shown.index(user("Question 0?")))


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_the_list_is_an_error(index: int) -> None:
    """It names how many there are."""
    with pytest.raises(IndexError, match="gave 2, from 0 on"):
        context_of(*past()).delete_message(index)


def test_header_and_summary_are_not_deleted() -> None:
    """Nobody said them in the conversation."""
    header = {"role": "system", "content": "You help."}
    memory = memory_of(header, *(message for _ in range(4) for message in past()))
    context = worked(small(memory, msg_threshold=2))

    for index in (0, 1):
        assert context.get_messages()[index]["role"] == "system"
        with pytest.raises(NotDeleted, match="system message or the summary"):
            context.delete_message(index)


def test_the_newest_question_is_not_deleted_before_there_is_a_newer_one() -> None:
    """Without it a prompt would ask for nothing."""
    context = context_of(*past(), user("And now?"), calls("a"), result("a"))

    for message in (answer("Now this."), user("And then?")):
        with pytest.raises(NotDeleted, match="newest question"):
            context.delete_message(2)
        context.add_message(message)
        context.get_messages()
    context.delete_message(2)
    context.delete_message(0)
    assert user("And now?") not in context.get_messages()


def test_a_call_that_waits_for_its_results_is_not_deleted() -> None:
    """They are about to come, and would answer nothing."""
    context = context_of(user("Q"), calls("a", "b"), result("a"))

    for index in (1, 2):
        with pytest.raises(NotDeleted, match="waits for a result"):
            context.delete_message(index)


def test_a_pinned_message_is_not_deleted() -> None:
    """Whoever pinned it wants it word for word."""
    context = context_of(*past())
    context.memory.pin("r1.p1")

    with pytest.raises(NotDeleted, match="pinned"):
        context.delete_message(1)
    context.memory.unpin("r1.p1")
    context.delete_message(1)
    assert context.get_messages() == [user("What of it?")]


def test_a_call_is_not_deleted_where_others_would_go_with_it() -> None:
    """Between it and its late result stands something else, which a span would hide as well."""
    context = context_of(user("Q"), calls("a"), answer("While we wait:"), result("a"), answer("Done."))
    before = context.get_messages()

    with pytest.raises(NotDeleted, match="other messages among them"):
        context.delete_message(1)
    assert context.get_messages() == before


def test_an_offloaded_message_and_a_summary_of_calls_are_deleted_like_others() -> None:
    """The overlay that stands for them gives way to the deletion."""
    messages = [*past(*tool_run(1, 6)), *past(answer(long_text("big", 3_000)), question="Next?"), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=100, max_token=300))
    shown = context.get_messages()
    assert [("reload" in str(message["content"])) for message in shown] == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]

    context.delete_message(4)
    context.delete_message(1)
    assert context.get_messages() == [*past(), *past(question="Next?"), user("And now?")]
    assert context.get_original_memory_msgs() == messages


def test_a_call_goes_with_its_result_though_that_is_offloaded() -> None:
    """The deletion takes the place of the smaller overlay."""
    messages = [*past(calls("a"), result("a", long_text("big", 3_000))), user("And now?")]
    context = worked(small(memory_of(*messages), msg_threshold=100, max_token=300))
    assert "reload r1.p2" in str(context.get_messages()[2]["content"])

    context.delete_message(1)
    assert context.get_messages() == [*past(), user("And now?")]


def test_a_query_goes_with_the_post_that_hands_it_on() -> None:
    """The user said it once, and it is hidden once."""
    memory = Memory()
    round_ = memory.create_round("How many?")
    memory.add_post(round_, send_from="User", send_to="Planner", message="How many?")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Nine of them.")
    memory.create_round("And now?")
    context = AutoContextMemory(memory, "Planner")
    context.delete_message(0)

    assert context.get_messages() == [answer("Nine of them."), user("And now?")]
    assert context.get_original_memory_msgs() == [user("How many?"), answer("Nine of them."), user("And now?")]


class Racing(Memory):
    """A Memory to which somebody writes just before its journal is asked for."""

    race: Callable[[], object] | None = None

    def journal(self, role: str) -> Any:
        race, self.race = self.race, None
        if race is not None:
            race()
        return super().journal(role)


def test_what_is_compacted_or_reduced_at_that_moment_is_not_deleted() -> None:
    """Whoever was faster wins; nothing is hidden that was not meant."""
    memory = Racing.from_messages([*past(answer("One."), answer("Two.")), *past()], "session")
    assert isinstance(memory, Racing)
    context, journal = AutoContextMemory(memory), memory.journal(ROLE)
    first = memory.conversation.rounds[0]

    wider = Reduction.over(first, first.post_list[:2], "summarised", "One and two.")
    memory.race = lambda: journal.reduce(wider, base=0)
    with pytest.raises(NotDeleted, match=r"1 is covered by now; call"):
        context.delete_message(1)
    context.get_messages()
    compaction = CompactedMessage(start_index=1, end_index=1, end_round_id=first.id, summary="S.")
    memory.race = lambda: journal.publish(compaction, base=0, round_ids=[first.id])
    with pytest.raises(NotDeleted, match=r"0 is covered by now \(rounds_changed\)"):
        context.delete_message(0)
    assert [message["content"] for message in context.get_messages()[1:]] == ["What of it?", "That of it."]


def test_a_deleted_message_is_in_no_summary() -> None:
    """The compaction is made from what is shown."""
    summarizer = ScriptedSummarizer(default=summary)
    context = small(memory_of(*past(answer("The secret is 4711.")), *past(), *past()), summarizer, msg_threshold=2)
    context.get_messages()
    context.delete_message(1)
    worked(context)

    assert context.compactor.status().end_index >= 1
    assert "4711" not in str([request.messages for request in summarizer.requests])


# -- AutoContextMemory: offloads --------------------------------------------------------------------------------------

KEPT = [user("Monday?"), calls("a", arguments='{"day": "é\\ud83d"}'), result("a", "{braces} </summary> \x00 \ud800")]


def test_what_is_offloaded_reloads_as_it_was() -> None:
    """Under any id that is a text; the messages are data, whatever is in them."""
    context = context_of()
    for ref_id in ("one", "../../etc/passwd", "é{}\ud800\x00", "r1x", "[1]"):
        context.offload(ref_id, KEPT)
        assert context.reload(ref_id) == KEPT

    context.reload("one")[0]["content"] = "changed"
    assert context.reload("one") == KEPT
    assert context.memory.conversation.rounds == ()


def test_an_earlier_offload_is_never_overwritten() -> None:
    """The same again changes nothing; other messages under the same id are refused, and the first stay."""
    context = context_of()
    context.offload("one", KEPT)
    context.offload("one", iter(KEPT))

    with pytest.raises(MessageError, match=r"clear\(\) it first, or use another id"):
        context.offload("one", KEPT[:1])
    assert context.reload("one") == KEPT


def test_a_cleared_id_may_be_used_again() -> None:
    """Twice, too; clearing what is not there does nothing."""
    context = context_of()
    for messages in (KEPT, KEPT[:1], KEPT[1:]):
        context.offload("one", messages)
        assert context.reload("one") == messages
        context.clear("one")
        context.clear("one")
        with pytest.raises(UnknownReference):
            context.reload("one")
    assert context.get_offload_context() == {}


@pytest.mark.parametrize("ref_id", ["", None, 7, "r12", "r3-r9", "r12.p3", "r12.p3-p17"])
def test_ids_that_look_like_places_in_the_log_are_refused(ref_id: Any) -> None:
    """A reference in a prompt reloads the original, whatever anybody offloads."""
    with pytest.raises(MessageError, match=r"like r12\.p3"):
        context_of().offload(ref_id, KEPT)


def test_what_is_no_chat_message_is_not_offloaded() -> None:
    """Nothing is kept then, of the messages before it neither."""
    context = context_of()

    deep: Any = "x"
    for _ in range(199):  # as deep as a value may be, but not where it is to be kept
        deep = [deep]
    for wrong in ("text", {"role": "nobody"}, {**user(), "at": object()}, {**user(), "at": deep}):
        with pytest.raises(MessageError):
            context.offload("one", [user(), wrong])  # type: ignore[list-item]
    assert context.get_offload_context() == {}


def test_offloads_outlive_the_process_where_their_memory_does() -> None:
    """And two processes with one store do not overwrite each other's."""
    store = InMemoryStore()
    first, second = (context_of(offloads=Memory("session/offloads", store=store)) for _ in range(2))
    first.offload("one", KEPT)

    with pytest.raises(MessageError, match="use another id"):
        second.offload("one", KEPT[:1])
    second.offload("two", KEPT[:1])
    later = context_of(offloads=Memory("session/offloads", store=store))
    assert later.get_offload_context() == {"one": KEPT, "two": KEPT[:1]}


def test_what_the_steps_offloaded_reloads_by_its_reference() -> None:
    """Each reference in what the role sees gives back the messages as they came."""
    messages = [
        *past(question="First?"),
        *past(*tool_run(1, 6)),
        *past(calls("big"), result("big", long_text("big", 3_000))),
        user("And now?"),
    ]
    context = worked(small(memory_of(*messages), msg_threshold=2))
    context.offload("mine", KEPT)

    kept = context.get_offload_context()
    assert list(kept) == ["mine", "r1-r2", "r3.p2"]
    assert kept["r1-r2"] == messages[:16]
    assert kept["r3.p2"] == [messages[18]] == context.reload("r3.p2")
    assert context.reload("r3") == messages[16:20]
    assert context.reload("r3.p0") == [messages[16]]
    assert context.reload("r3.p0-p1") == messages[16:18]
    assert context.reload("r3.p1-r3.p2") == messages[17:19]


def test_nothing_reloads_that_the_role_may_not_see() -> None:
    """Other roles' posts, what failed, and what there is not."""
    memory = Memory()
    round_ = memory.create_round("Q")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="Between us.")
    memory.finish_round(memory.create_round("Gone"), "failed")
    context = AutoContextMemory(memory, "Reviewer")

    assert context.reload("r1") == [user("Q")]
    for ref in ("r1.p1", "r2", "r3", "r0", "unknown"):
        with pytest.raises(UnknownReference):
            context.reload(ref)


# -- AutoContextMemory: events ----------------------------------------------------------------------------------------


def test_events_say_what_became_shorter_and_at_what_price() -> None:
    """Counts, ids of the neighbours, tokens before and after, usage and time, and the way back."""
    memory = memory_of(*past(), *past(answer("Let me see."), *tool_run(1, 6)), *past(), user("And now?"))
    context = worked(small(memory))
    (event,) = context.compression_events

    posts = memory.conversation.rounds[1].post_list
    assert event.event_type == "TOOL_INVOCATION_COMPRESS"
    assert event.compressed_message_count == 12
    assert (event.previous_message_id, event.next_message_id) == (posts[0].id, posts[13].id)
    assert event.ref == "r2.p2-p13"
    assert context.reload(event.ref) == memory.messages()[4:16]
    assert event.token_reduction == event.token_before - event.token_after > 0
    assert (event.compress_input_token, event.compress_output_token, event.model) == (90, 9, "tiny")
    assert event.time >= 0
    assert event.timestamp.tzinfo is not None


def test_events_tell_of_compactions_likewise() -> None:
    """Each of the rounds that it was the first to cover; also after a revert, from the beginning then."""
    memory = memory_of(*(message for number in range(4) for message in past(question=f"Question {number}?")))
    context = worked(small(memory, msg_threshold=2))
    for message in past(question="More?"):
        memory.append(message)
    worked(context)
    assert context.compactor.revert() is not None
    memory.append(user("And now?"))
    worked(context)

    events = context.compression_events
    rounds = memory.conversation.rounds
    assert {event.event_type for event in events} == {"PREVIOUS_ROUND_CONVERSATION_SUMMARY"}
    assert [event.ref for event in events] == ["r1-r2", "r3", "r3-r4"]
    assert [event.compressed_message_count for event in events] == [4, 2, 4]
    assert [event.previous_message_id for event in events] == [None, *[rounds[1].post_list[0].id] * 2]
    assert [event.next_message_id for event in events] == [rounds[number].post_list[0].id for number in (2, 3, 4)]


def test_no_neighbour_is_none() -> None:
    """Before the first post of a round stands nothing, and behind the last neither."""
    memory = memory_of(user("Q"), *tool_run(1, 7))
    context = worked(small(memory))
    (event,) = context.compression_events
    posts = memory.conversation.rounds[0].post_list

    assert event.event_type == "CURRENT_ROUND_MESSAGE_COMPRESS"
    # The newest call and its result stay: the agent has yet to read them.
    assert (event.previous_message_id, event.next_message_id) == (None, posts[-2].id)

    memory = memory_of(user("Q"), *tool_run(1, 7), answer("Done."), user("And?"))
    (event, *_) = worked(small(memory, last_keep=0)).compression_events

    assert event.event_type == "TOOL_INVOCATION_COMPRESS"
    assert (event.previous_message_id, event.next_message_id) == (None, memory.conversation.rounds[0].post_list[-1].id)


# -- any conversation -------------------------------------------------------------------------------------------------

TEXTS = st.one_of(
    st.just(""),
    st.sampled_from(["Ok.", "好的。" * 40, "🙂 {content} </summary> \ud800\x00"]),
    st.integers(100, 1_500).map(lambda size: long_text("w", size)),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rounds of calls, parallel ones too, whose results come in any order; the last call may wait."""
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


def test_real_dialogues_fit_and_reload(data: list[dict[str, Any]]) -> None:
    """Through a small window, a step at a time: every prompt is legal, and every offload reloads what was said."""
    memory = Memory("session")
    compactor, executor = made(memory, msg_threshold=30, max_token=3_000, large_payload_threshold=1_000)
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


def test_events_after_a_redaction_count_from_what_is_covered_then() -> None:
    """It withdraws the compaction, so the next one begins at the first round again; what was listed is forgotten."""
    context = context_of(*past(), *past(), *past(), user("And now?"))
    assert context.get_messages()
    assert context.compactor.compact_now(20) is not None
    before = context.compression_events[-1]
    context.memory.redact("r1.p1")
    assert context.compactor.compact_now(20) is not None
    after = context.compression_events[-1]
    assert (after.ref, after.compressed_message_count) == (before.ref, before.compressed_message_count)
    assert "r1" in after.ref


@pytest.mark.parametrize("index", [True, "0", None, 1.0])
def test_an_index_is_a_whole_number(index: object) -> None:
    """Anything else is a mistake, and deletes nothing."""
    context = context_of(*past(), user("And now?"))
    before = context.get_messages()
    with pytest.raises(TypeError, match="whole number"):
        context.delete_message(index)  # type: ignore[arg-type]
    assert context.get_messages() == before
