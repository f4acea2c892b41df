"""Old posts leave by kind, rule by rule, until the prompt is below its share of the window; then rounds are summarised."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from chats import Message, answer, calls, memory_of, note_of, result, user, words
from executors import ManualExecutor
from scene import of_kind, text_of
from views import view_of

from compactor import (
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    Exhausted,
    Failed,
    ModelUnknown,
    Published,
    Reduced,
    State,
    StrategyFailed,
    SummarizerError,
    compose,
    drop,
    offload_large,
)
from compactor.presets import SELECTIVE_RULES, selective
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory

ROLE = "assistant"
SYSTEM = {"role": "system", "content": "You are terse."}


def turn(number: int, size: int = 100) -> list[Message]:
    """A question of a few words, a call with a result of *size* tokens, and an answer."""
    return [
        user(f"Question {number}?"),
        calls(f"c{number}"),
        result(f"c{number}", words(size)),
        answer(f"Answer {number}."),
    ]


def conversation(count: int, size: int = 100) -> Memory:
    return Memory.from_messages(
        [SYSTEM, *(message for number in range(1, count + 1) for message in turn(number, size))]
    )


def on_command(memory: Memory, **options: Any) -> tuple[ContextCompactor, ManualExecutor, FakeClock]:
    """A started compactor with the preset that works only when told to."""
    executor, clock = ManualExecutor(), FakeClock()
    compactor = ContextCompactor.for_role(
        memory, ROLE, **selective(**options), executor=executor, clock=clock, rng=lambda: 1.0
    )
    compactor.start()
    return compactor, executor, clock


def shown(memory: Memory) -> list[str]:
    """What the prompt says, in short: questions, answers, results by their calls. Without the line that tells where
    posts were dropped."""
    prompt = compose(memory, ROLE, budget=100_000)
    messages = [message for message in prompt.messages if not note_of(prompt) or message["content"] != note_of(prompt)]
    return [message.get("tool_call_id") or message["content"] or "call" for message in messages]


def turns(first: int, last: int, *, results_from: int = 1) -> list[str]:
    said: list[str] = []
    for number in range(first, last + 1):
        work = ["call", f"c{number}"] if number >= results_from else []
        said += [f"Question {number}?", *work, f"Answer {number}."]
    return said


# -- when --------------------------------------------------------------------------------------------------------------


def test_it_is_due_at_a_share_of_the_window_by_the_providers_own_count() -> None:
    """80% of 2,000 tokens: not at 1,599, but at 1,600, without regard to our own count."""
    memory = conversation(5)
    compactor, executor, _ = on_command(memory, max_token=2_000)

    memory.record_usage(ROLE, 1_599, counted=1_599)
    memory.append(user("go on"))
    executor.run_all()
    before = of_kind(compactor.events, Reduced)
    memory.record_usage(ROLE, 1_600, counted=1_600)
    memory.append(user("please"))
    executor.run_all()

    assert not before
    assert of_kind(compactor.events, Reduced)


def test_our_own_count_stands_in_where_the_provider_said_nothing() -> None:
    """As long as nobody records a usage, and after the prompt has changed."""
    compactor, executor, _ = on_command(conversation(9), max_token=1_000)
    executor.run_all()

    assert of_kind(compactor.events, Reduced)

    compactor, executor, _ = on_command(conversation(5), max_token=2_000)
    executor.run_all()

    assert not of_kind(compactor.events, Reduced)


def test_what_the_provider_counted_is_forgotten_within_a_pass() -> None:
    """One rule was enough by our count, so the next is not applied on the word of an older prompt."""
    memory = conversation(9)
    memory.record_usage(ROLE, 90_000, counted=90_000)
    compactor, executor, _ = on_command(memory, max_token=2_000)
    executor.run_all()

    assert shown(memory) == ["You are terse.", *turns(1, 9, results_from=7)]
    assert {event.strategy for event in of_kind(compactor.events, Reduced)} == {"drop(tool_result)"}
    assert not of_kind(compactor.events, Published)


def test_the_providers_word_holds_until_something_is_published() -> None:
    """Its count includes more, such as tools: a failure is one by that count, and after a success it is over."""
    memory = conversation(2)
    memory.append(user("And now?"))
    memory.record_usage(ROLE, 90_000)
    summarizer = ScriptedSummarizer([SummarizerError("down"), SummarizerError("down"), "Two questions were answered."])
    compactor, executor, clock = on_command(memory, max_token=10_000, summarizer=summarizer)
    executor.run_all()
    clock.advance(1.0)
    executor.run_all()
    memory.append(calls("a"))
    executor.run_all()
    failures = [event.circuit_open for event in of_kind(compactor.events, Failed)]
    asked = len(summarizer.requests)
    exhausted = len(of_kind(compactor.events, Exhausted))
    clock.advance(8.0)
    executor.run_all()

    assert failures == [False, True]
    assert (asked, exhausted) == (2, 2)
    assert compactor.get_compaction() is not None
    assert len(of_kind(compactor.events, Exhausted)) == exhausted


# -- what --------------------------------------------------------------------------------------------------------------


def test_rules_are_applied_in_order_as_far_as_needed() -> None:
    """Tool results first, except the newest 3; then the role's messages, except the newest 5; then the user's."""
    memory = conversation(9)
    compactor, executor, _ = on_command(memory, max_token=100, fallback_to_full_summary=False)
    executor.run_all()

    assert shown(memory) == ["You are terse.", *turns(5, 6, results_from=7), *turns(7, 9)]
    strategies = [event.strategy for event in of_kind(compactor.events, Reduced)]
    assert list(dict.fromkeys(strategies)) == ["drop(tool_result)", "drop(assistant)", "drop(user)"]
    assert memory.reload("r1.p2") == words(100)


def test_texts_of_skills_leave_whatever_their_age() -> None:
    """A host marks them by Post.kind."""
    memory = conversation(4)
    round_ = memory.create_round("Load the skill")
    for kind in ("skill_prompt", "skill_metadata"):
        memory.add_post(round_, send_from="User", send_to=ROLE, message=f"[{kind}] {words(200)}", kind=kind)
    memory.add_post(round_, send_from=ROLE, send_to="User", message="Loaded.")
    memory.finish_round(round_)
    memory.create_round("And now?")
    _, executor, _ = on_command(memory, max_token=300, fallback_to_full_summary=False)
    executor.run_all()

    assert not [text for text in shown(memory) if "skill_" in text]
    assert "Loaded." in shown(memory)


@pytest.mark.parametrize(
    "rules",
    [{"tool_result": 1, "assistant_message": None, "user": None}, [("tool_result", 1)]],
    ids=["changed", "replaced"],
)
def test_rules_can_be_changed_or_replaced(rules: Any) -> None:
    """By kind, under either name; or all of them, in the order given."""
    memory = conversation(5)
    _, executor, _ = on_command(memory, max_token=100, rules=rules, fallback_to_full_summary=False)
    executor.run_all()

    assert shown(memory) == ["You are terse.", *turns(1, 5, results_from=5)]


def test_the_full_summary_is_the_last_resort() -> None:
    """All closed rounds, beside the header, in full from the log: the summary leaves nothing out."""
    memory = conversation(9)
    memory.append(user("And now?"))
    summarizer = ScriptedSummarizer(["Nine questions were answered."])
    compactor, executor, _ = on_command(memory, max_token=100, summarizer=summarizer)
    executor.run_all()

    system, summary, question = shown(memory)

    assert (system, question) == ("You are terse.", "And now?")
    assert "Nine questions were answered." in summary
    asked = text_of(summarizer.requests[0])
    assert words(100) in asked
    assert SYSTEM["content"] not in asked
    assert [event.end for event in of_kind(compactor.events, Published)] == [9]


def test_calls_that_wait_for_results_do_not_reach_the_summarizer() -> None:
    """Nor does anything else of the open round: the agent still works on it."""
    memory = conversation(9)
    for message in (user("And now?"), calls("waiting", arguments='{"secret": 1}')):
        memory.append(message)
    summarizer = ScriptedSummarizer(["Nine questions were answered."])
    _, executor, _ = on_command(memory, max_token=100, summarizer=summarizer)
    executor.run_all()

    assert summarizer.requests
    assert not any("waiting" in text_of(request) or "secret" in text_of(request) for request in summarizer.requests)
    prompt = compose(memory, ROLE, budget=1_000)
    assert prompt.messages[-2:] == [user("And now?"), calls("waiting", arguments='{"secret": 1}')]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_failed_summary_leaves_everything_as_it_was_and_cools_down() -> None:
    """No compaction after the first; after two failures in a row no model is asked for eight seconds, and what is due is
    extracted offline; then the model's text takes its place."""
    memory = conversation(9)
    memory.append(user("And now?"))
    down = SummarizerError("the endpoint is down; start it")
    summarizer = ScriptedSummarizer([down, down, "Nine questions were answered."])
    compactor, executor, clock = on_command(memory, max_token=100, summarizer=summarizer)
    executor.run_all()
    after_one = shown(memory)
    assert compactor.get_compaction() is None
    assert after_one[-1] == "And now?"
    clock.advance(1.0)
    executor.run_all()

    assert [event.strategy for event in of_kind(compactor.events, StrategyFailed)] == ["compact_rounds"] * 2
    assert [event.circuit_open for event in of_kind(compactor.events, Failed)] == [False, True]
    offline = compactor.get_compaction()
    assert offline is not None
    assert "offline" in offline.extra
    assert shown(memory)[-1] == "And now?"

    clock.advance(7.9)
    executor.run_all()
    assert (compactor.status().state, len(summarizer.requests)) == (State.BACKING_OFF, 2)

    clock.advance(0.1)
    executor.run_all()
    by_model = compactor.get_compaction()
    assert by_model is not None
    assert "offline" not in by_model.extra


def test_a_refused_summary_is_asked_for_again() -> None:
    """Twice, with the reason of the refusal."""
    memory = conversation(9)
    summarizer = ScriptedSummarizer(["", "Hello! How can I help you?", "Nine questions were answered."])
    compactor, executor, _ = on_command(memory, max_token=100, summarizer=summarizer)
    executor.run_all()

    assert compactor.get_compaction() is not None
    assert len(summarizer.requests) == 3
    assert "instead of summarising" in text_of(summarizer.requests[2])


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4o", 128_000),
        ("anthropic/claude-sonnet-4", 200_000),
        ("my-model", 50_000),
        ("My-Model-Large-2", 70_000),
        ("local/my-model-small", 50_000),
        ("local/other", 9_000),
        ("gpt-4o-mini", 64_000),
        ("nobody-knows", 128_000),
        ("", 128_000),
    ],
)
def test_windows_go_by_the_beginning_of_a_name(model: str, window: int) -> None:
    """The host's own come first, the longest that fits; then the known ones; then 128,000."""
    own = {"my-model": 50_000, "my-model-large": 70_000, "gpt-4o-mini": 64_000, "Local/other": 9_000, "": 1}

    made = selective(model=model, windows=own)

    assert made["config"].max_tokens == window
    assert repr(made["trigger"]) == f"over_usage({int(window * 0.8)})"


def test_a_model_that_nobody_knows_is_told() -> None:
    """The default window and tokenizer stand in, with an event that names the model."""
    unknown, first, _ = on_command(conversation(1), model="nobody-knows")
    known, second, _ = on_command(conversation(1), model="gpt-4o")
    first.run_all()
    second.run_all()

    assert [event.model for event in of_kind(unknown.events, ModelUnknown)] == ["nobody-knows"]
    assert not of_kind(known.events, ModelUnknown)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_defaults_are_those_its_users_know() -> None:
    """80%, three results, five messages of each author, two failures, eight seconds; all of them can be changed."""
    made = selective()
    config = made["config"]

    assert set(made) == {"config", "trigger", "strategies"}
    assert set(selective(summarizer=ScriptedSummarizer([]))) == {*made, "summarizer"}
    assert isinstance(config, CompactorConfig)
    assert dict(SELECTIVE_RULES) == {
        "tool_result": 3,
        "skill_prompt": 0,
        "assistant": 5,
        "skill_metadata": 0,
        "user": 5,
    }
    assert (config.max_tokens, config.token_ratio, config.retain_recent) == (128_000, 0.8, 0)
    assert (config.summary_attempts, config.circuit_breaker_failures, config.circuit_breaker_reset) == (3, 2, 8.0)
    assert [strategy.__name__ for strategy in made["strategies"]] == [
        *(f"drop({kind})" for kind, _ in SELECTIVE_RULES),
        "pin_system",
        "compact_rounds",
    ]

    other = selective(max_token=1_000, threshold_ratio=1, summary_retry_attempts=0, cooldown_failures=3)

    assert repr(other["trigger"]) == "over_usage(1000)"
    assert (other["config"].summary_attempts, other["config"].circuit_breaker_failures) == (1, 3)


def test_the_rest_comes_from_a_config() -> None:
    """The preset's own parameters win; the model is the configuration's if none is given."""
    given = CompactorConfig(model="gpt-4", retain_recent=1, call_timeout=7, circuit_breaker_failures=9, max_tokens=5)
    config, other = selective(config=given)["config"], selective(config=given, model="gpt-4o")["config"]

    assert (config.model, config.max_tokens) == ("gpt-4", 8_192)
    assert (config.retain_recent, config.call_timeout, config.circuit_breaker_failures) == (1, 7, 2)
    assert (other.model, other.max_tokens) == ("gpt-4o", 128_000)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold_ratio": 0}, "threshold_ratio"),
        ({"threshold_ratio": 1.1}, "threshold_ratio"),
        ({"threshold_ratio": True}, "threshold_ratio"),
        ({"max_token": 0}, "max_token"),
        ({"windows": {"m": "many"}}, r"windows\.m"),
        ({"windows": {"m": True}}, r"windows\.m"),
        ({"summary_retry_attempts": -1}, "summary_retry_attempts"),
        ({"summary_retry_attempts": True}, "summary_retry_attempts"),
        ({"cooldown_failures": 0}, "cooldown_failures"),
        ({"cooldown_seconds": 0.0}, "cooldown_seconds"),
        ({"rules": {"tool_result": -1}}, "keep_recent"),
        ({"rules": [("", 1)]}, "kind"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(options: dict[str, Any], named: str) -> None:
    """With the name of the setting."""
    make: Callable[..., dict[str, Any]] = selective

    with pytest.raises(ValueError, match=named) as raised:
        make(**options)
    assert isinstance(raised.value, ConfigError) or "rules" in options


def test_once_it_is_due_more_leaves_than_it_takes() -> None:
    """So that the next time is some way off: each time changes the prompt, and costs the provider's prefix cache."""
    memory = conversation(9)
    whole = compose(memory, ROLE, budget=100_000).tokens
    compactor, executor, _ = on_command(memory, max_token=int(whole / 0.8) - 10, fallback_to_full_summary=False)
    executor.run_all()
    left = compose(memory, ROLE, budget=100_000).tokens
    assert left < 0.75 * whole
    published = len(of_kind(compactor.events, Reduced))
    memory.append(user("And now?"))
    executor.run_all()
    assert len(of_kind(compactor.events, Reduced)) == published


# -- how types are spelled --------------------------------------------------------------------------------------------


class ItemType(Enum):
    """As hosts of other libraries have them."""

    TOOL_RESULT = "tool_result"
    ASSISTANT_MESSAGE = "assistant_message"


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        ("TOOL_RESULT", "tool_result"),
        ("ToolResult", "tool_result"),
        ("tool-results", "tool_result"),
        ("Tool Result", "tool_result"),
        (ItemType.TOOL_RESULT, "tool_result"),
        (ItemType.ASSISTANT_MESSAGE, "assistant"),
        ("USER_MESSAGE", "user"),
        ("AssistantMessage", "assistant"),
        ("SKILL_PROMPT", "skill_prompt"),
        ("SKILL_METADATA", "skill_metadata"),
        ("my_note", "my_note"),
        ("ATTACHMENT:Plan", "attachment:Plan"),
    ],
)
def test_any_spelling_of_a_type_is_understood(spelled: Any, kind: str) -> None:
    """In rules that change some, in rules that are all there are, and in ``drop`` and ``offload_large``."""
    changed = [strategy.__name__ for strategy in selective(rules={spelled: 8})["strategies"]]
    assert changed == [strategy.__name__ for strategy in selective(rules={kind: 8})["strategies"]]
    (only,) = selective(rules=[(spelled, 8)], fallback_to_full_summary=False)["strategies"]
    assert only.__name__ == drop(spelled).__name__ == f"drop({kind})"
    offload_large(kinds=[spelled])


def test_a_rule_by_another_spelling_keeps_as_many() -> None:
    """``TOOL_RESULT`` was passed over in silence."""
    memory = worked_of(12)
    kept = [shown_results(memory, rules) for rules in ({"TOOL_RESULT": 8}, {"tool_result": 8}, {"TOOL_RESULT": 2})]
    assert kept == [8, 8, 2]


def worked_of(count: int) -> Memory:
    messages = [message for number in range(count) for message in (calls(f"c{number}"), result(f"c{number}"))]
    return memory_of(user(), *messages, answer())


def shown_results(memory: Memory, rules: Any) -> int:
    first = selective(rules=rules)["strategies"][0]
    gone = sum(
        one.first_number <= post.number <= one.last_number and post.tool_call_id is not None
        for one in first(view_of(memory))
        for post in memory.conversation.rounds[0].post_list
    )
    return 12 - gone


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"TOOL_RESLT": 8}, "did you mean 'tool_result'"),
        ({"asistant": 8}, "did you mean 'assistant'"),
        ({"NOTHING_LIKE_IT": 8}, "there are tool_result, assistant, user, failed_call, skill_prompt, skill_metadata"),
        ({"SYSTEM_PROMPT": 8}, "stays whatever a rule says"),
        ([("COMPACTION_SUMMARY", 0)], "stays whatever a rule says"),
        ({"TOOL_RESULT": 8, "tool_result": 3}, "keep one"),
        ({"": 8}, "a kind is a name"),
        ({7: 8}, "a kind is a name"),
    ],
)
def test_a_type_that_nobody_knows_is_an_error_that_says_which_there_are(rules: Any, said: str) -> None:
    """When the preset is made, not never."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        selective(rules=rules)


def test_what_never_leaves_may_be_named_with_no_number() -> None:
    """As the rules of other libraries do."""
    names = [strategy.__name__ for strategy in selective(rules={"SYSTEM_PROMPT": None})["strategies"]]
    assert names == [strategy.__name__ for strategy in selective()["strategies"]]


# What stays


def a_long_talk(rounds: int, *, system_at: int = 0) -> Memory:
    messages: list[Message] = []
    for number in range(1, rounds + 1):
        messages += [user(f"Question {number}? {words(40)}"), answer(f"Answer {number}. {words(40)}")]
        messages += [{"role": "system", "content": "From now on the user is a VIP."}] if number == system_at else []
    return Memory.from_messages(messages)


def test_system_messages_within_the_conversation_stay_word_for_word() -> None:
    """Nothing compresses them there; here they are pinned before their rounds are summarised."""
    memory = a_long_talk(30, system_at=4)
    compactor, executor, _ = on_command(memory, max_token=1_000, rules=[])
    executor.run_all()
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert compaction.end_index > 10
    assert "From now on the user is a VIP." in shown(memory)[0]


def test_a_minimum_of_dialogue_rounds_is_protected() -> None:
    """Neither a rule nor the full summary takes a message of theirs."""
    memory = a_long_talk(20)
    compactor, executor, _ = on_command(memory, max_token=400, keep_rounds=4)
    executor.run_all()
    assert compactor.get_compaction() is not None
    texts = [text.partition(" word")[0] for text in shown(memory)]
    assert texts[-8:] == [
        f"{what} {n}{end}" for n in range(17, 21) for what, end in (("Question", "?"), ("Answer", "."))
    ]


# -- rules as the agent SDK writes them, and arguments of the wrong kind ----------------------------------------------


class Strategy(Enum):
    DROP = "drop"
    TRUNCATE = "truncate"
    NONE = "none"


class Rule:
    def __init__(self, strategy: object, keep_recent: object = None) -> None:
        self.strategy = strategy
        if keep_recent is not None:
            self.keep_recent = keep_recent


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (Rule(Strategy.DROP), 0),
        (Rule(Strategy.DROP, 5), 0),
        (Rule(Strategy.TRUNCATE, 2), 2),
        (Rule("TRUNCATE", 2), 2),
        (Rule(Strategy.NONE, 2), None),
        ({"strategy": "truncate", "keep_recent": 2}, 2),
        (Strategy.DROP, 0),
        ("DROP", 0),
        ("none", None),
        (2, 2),
        (None, None),
    ],
)
def test_a_rule_may_be_one_of_the_agent_sdk(rule: object, kept: int | None) -> None:
    """A strategy and how many stay, as an object, a mapping or its name, or the number alone."""
    memory = memory_of(*(message for number in range(6) for message in turn(number)))
    rules: Any = {kind: None for kind, _ in SELECTIVE_RULES} | {"tool_result": rule}
    preset = selective(max_token=300, rules=rules, fallback_to_full_summary=False)
    ContextCompactor.for_role(memory, ROLE, **preset).compact_now()
    shown = [message for message in compose(memory, budget=100_000).messages if message["role"] == "tool"]
    assert len(shown) == (6 if kept is None else kept)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rules": 5}, "rules: "),
        ({"rules": "tool_result"}, "rules: "),
        ({"rules": ["tool_result"]}, "rules: .*pairs"),
        ({"rules": [("tool_result",)]}, "rules: .*pairs"),
        ({"rules": [("tool_result", 3, 4)]}, "rules: .*pairs"),
        ({"rules": {"tool_result": -1}}, "rules.tool_result.*not -1"),
        ({"rules": {"tool_result": True}}, "rules.tool_result.*not True"),
        ({"rules": {"TOOL_RESULT": "keep"}}, "rules.TOOL_RESULT: .*drop, truncate, none"),
        ({"rules": {"tool_result": Rule(Strategy.TRUNCATE)}}, "rules.tool_result.keep_recent"),
        ({"rules": [("tool_result", "truncate")]}, "rules.tool_result.keep_recent"),
        ({"model": 5}, "model: "),
        ({"windows": 5}, "windows: "),
        ({"windows": [("m", 5)]}, "windows: "),
        ({"keep_rounds": -1}, "keep_rounds: "),
        ({"keep_rounds": "2"}, "keep_rounds: "),
        ({"cooldown_failures": "x"}, "cooldown_failures: "),
        ({"cooldown_failures": 0}, "cooldown_failures: "),
        ({"cooldown_seconds": "8"}, "cooldown_seconds: "),
        ({"cooldown_seconds": 0}, "cooldown_seconds: "),
        ({"config": {"threshold": 3}}, "config: "),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_by_its_name(options: dict[str, Any], says: str) -> None:
    """By the name that was written, and not by that of the setting that it becomes."""
    with pytest.raises(ConfigError, match=says):
        selective(**options)


@pytest.mark.parametrize("kind", [5, ["tool_result"], [("tool_result",)], None])
def test_drop_says_what_it_takes(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"kind is .*pairs"):
        drop(kind)


def test_offload_large_says_what_kinds_are() -> None:
    with pytest.raises(TypeError, match="kinds"):
        offload_large(kinds=5)  # type: ignore[arg-type]
