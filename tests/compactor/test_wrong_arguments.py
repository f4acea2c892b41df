"""What a host passes in the wrong place or of the wrong kind is an error that says so, when it is passed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from executors import SOON
from scene import ROLE, memory_of

from compactor import (
    CompactionFailed,
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    OpenAISummarizer,
    Plan,
    Prices,
    Settings,
    after_rounds,
    budget_status,
    compact_rounds,
    compose,
    find_model,
    get_counter,
    offload_large,
    window_of,
)
from compactor.presets import selective
from compactor.testing import ScriptedSummarizer
from memory import Memory
from prompts import PromptTemplate, load


class Api:
    def chat_completion(self, messages: object) -> str:
        return "Nothing."


class Asks:
    def __call__(self, request: object) -> str:
        return "Nothing."


def compactor_of(*given: Any, **options: Any) -> ContextCompactor:
    return ContextCompactor(*(given or (None, None, list)), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"role": None}, "role: must be the name of an agent"),
        ({"trigger": after_rounds}, r"after_rounds\(\.\.\.\)"),
        ({"trigger": 5}, "trigger"),
        ({"strategies": compact_rounds}, "strategies: must be a list"),
        ({"strategies": "compact_rounds"}, "strategies: must be a list"),
        ({"strategies": [5]}, "strategies.*not int"),
        ({"strategies": [offload_large]}, r"offload_large\(\.\.\.\)"),
        ({"plan": "1. load"}, "plan: must be a function"),
        ({"prices": {"cached": 1}}, "prices"),
        ({"executor": 5}, "executor.*no submit"),
        ({"journal": 5}, "journal"),
        ({"clock": time.time}, "clock.*no now"),
        ({"rng": 5}, "rng"),
        ({"counter": "gpt-4"}, "counter: must be a function .*not str"),
        ({"header_tokens": 5}, "header_tokens"),
        ({"on_event": [print]}, "callback: must be a function"),
        ({"limits": {"concurrent": 1}}, "limits: must be what Limits"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(options: dict[str, Any], says: str) -> None:
    """When the compactor is made: in the background, nobody would see the error."""
    with pytest.raises(TypeError, match=says):
        compactor_of(**options)
    if "role" not in options:
        with pytest.raises(TypeError, match=says):
            ContextCompactor.for_role(Memory(), ROLE, **options)


@pytest.mark.parametrize("history", [-1, "many", None])
def test_a_history_is_a_number(history: Any) -> None:
    with pytest.raises(ConfigError, match="history"):
        compactor_of(history=history)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: compactor_of(None, Asks, list), r"Asks is a class; .*Asks\(\.\.\.\)"),
        (lambda: compactor_of(None, OpenAISummarizer, list), r"OpenAISummarizer is a class"),
        (lambda: compactor_of(None, None, list, llm_api=Api), r"Api is a class; .*Api\(\.\.\.\)"),
        (lambda: compactor_of(Asks, None, list), r"the class Asks; .*summarizer=Asks\(\.\.\.\)"),
        (lambda: ContextCompactor.for_role(Memory(), ROLE, Asks), r"summarizer=Asks\(\.\.\.\)"),
        (lambda: ContextCompactor.for_role(Memory(), ROLE, None, Asks), r"Asks is a class"),
        (lambda: compactor_of(None, list, Asks), "the order is.*"),
        (lambda: compactor_of(None, list, Api), "the order is.*"),
        (lambda: compactor_of(CompactorConfig, Api(), list), r"CompactorConfig\(\.\.\.\)"),
        (lambda: compactor_of({"threshold": 7}, Api(), list), r"CompactorConfig\(\*\*"),
        (lambda: ContextCompactor.for_role(Memory(), ROLE, selective()), r"for_role\(memory, role, \*\*preset\)"),
        (lambda: compactor_of(Settings, Api(), list), "settings.for_role"),
        (lambda: compactor_of(None, Api(), Memory()), "memory.rounds_getter"),
        (lambda: compactor_of(None, Api(), Memory().conversation), "callable that returns the rounds"),
        (lambda: compactor_of(None, Api(), lambda role: []), "without arguments"),
        (lambda: compactor_of(None, list, MagicMock()), "the order is"),
        (lambda: compactor_of(None, lambda: "Nothing.", list), "SummaryRequest"),
        (lambda: compactor_of(None, lambda content, previous: "Nothing.", list), "SummaryRequest"),
    ],
)
def test_a_class_or_an_argument_in_the_wrong_place_gets_the_remedy_that_helps(
    make: Callable[[], object], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "rounds_getter gave a NoneType"),
        (5, "rounds_getter gave a int"),
        ("rounds", "rounds_getter gave a str"),
        ({"rounds": []}, "rounds_getter gave a dict"),
        (Memory(), "rounds_getter gave a Memory"),
        (Memory().conversation, "rounds_getter gave a Conversation"),
        (memory_of(20).get_role_rounds(ROLE), r"get_role_rounds.*\[0\]"),
        ([None] * 20, "round 1, a NoneType"),
        ([SimpleNamespace(user_query="q", post_list=5)] * 20, "post_list"),
    ],
)
def test_what_is_no_list_of_rounds_is_told_in_words(given: object, says: str) -> None:
    """The published compaction stands, and whoever looks finds the reason and not the name of a class."""
    compactor = compactor_of(CompactorConfig(7, 3), ScriptedSummarizer(), lambda: given)
    with pytest.raises(CompactionFailed, match=says):
        compactor.compact_now(SOON)
    assert says.split(".*", maxsplit=1)[0] in str(compactor.status().last_error)


def test_an_iterator_of_rounds_will_do() -> None:
    """It is read once, and kept."""

    def rounds() -> Iterator[object]:
        yield from memory_of(10).conversation.rounds

    compacted = compactor_of(CompactorConfig(7, 3), ScriptedSummarizer(), rounds).compact_now(SOON)
    assert compacted is not None
    assert compacted.end_index == 7


@pytest.mark.parametrize("wait", ["stop", "compact_now", "wait_idle"])
def test_a_timeout_is_a_number_of_seconds(wait: str) -> None:
    compactor = compactor_of()
    with pytest.raises(TypeError, match="timeout: must be a number of seconds"):
        getattr(compactor, wait)("5")


@pytest.mark.parametrize("field", ["threshold", "prompt", "treshold"])
def test_a_configuration_that_is_written_to_says_how_to_make_another(field: str) -> None:
    """It may be shared, and a compactor has read it."""
    config = CompactorConfig(7, 3)
    with pytest.raises(AttributeError, match=r"copy_with\("):
        setattr(config, field, 5)
    assert (config.threshold, config.prompt.name) == (7, "default")
    assert config.copy_with(threshold=5).threshold == 5


@pytest.mark.parametrize("names", [[5], 5, ["load", None], "load,dump"])
def test_exempt_tools_are_names(names: Any) -> None:
    if isinstance(names, str):
        assert CompactorConfig(exempt_tools=names).exempt_tools == ("load", "dump")
        return
    with pytest.raises(ConfigError, match=r"^exempt_tools"):
        CompactorConfig(exempt_tools=names)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda memory: compose("Planner", memory, budget=8_000), "memory: must be a Memory, not str"),
        (lambda memory: compose(memory.conversation.rounds, budget=8_000), "memory: must be a Memory, not Rounds"),
        (lambda memory: compose([{"role": "user", "content": "q"}], budget=8_000), r"Memory\.from_messages"),
        (lambda memory: compose(Memory, budget=8_000), "memory: must be a Memory, not the class Memory"),
        (lambda memory: compose(memory, None, budget=8_000), "role: must be the name of an agent"),
        (lambda memory: compose(memory, 8_000, budget=8_000), "role: must be the name of an agent"),
        (lambda memory: compose(memory, budget=8_000, system=5), "system: must be a text or a list of messages"),
        (
            lambda memory: compose(memory, budget=8_000, system=["You plan."]),
            "system: must be a text or a list of messages",
        ),
        (lambda memory: compose(memory, budget=8_000, model=5), "model"),
        (lambda memory: compose(memory, budget=8_000, counter="gpt-4"), "counter: must be a function"),
        (lambda memory: compose(memory, budget=8_000, tools=None), "tools: must be a list"),
        (lambda memory: compose(memory, budget=8_000, tools=[len]), "tools.*schema"),
        (lambda memory: compose(memory, budget=8_000, tools={"name": "x"}), "tools: must be a list"),
        (lambda memory: budget_status(5), "memory: must be a Memory, not int"),
        (lambda memory: budget_status(memory, 8_000), "role: must be the name of an agent"),
        (lambda memory: budget_status(memory, tools=["x"]), "tools.*schema"),
    ],
)
def test_what_no_prompt_can_be_made_of_is_named(call: Callable[[Any], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call(memory_of(3))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Settings({"compaction.threshold": 7}), r"Settings\.from_dict"),  # type: ignore[arg-type]
        (lambda: Settings().for_role(None), "role: must be the name of an agent"),  # type: ignore[arg-type]
        (lambda: Settings.from_dict({}, ignore=5), "ignore"),  # type: ignore[arg-type]
        (lambda: Settings.from_file(5.5), "path"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_the_wrong_kind_are_named(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


def test_a_compactor_of_one_memory_is_not_registered_in_another() -> None:
    """It would say of one conversation what the other's rounds read as."""
    memory, other = memory_of(3), Memory("other")
    for compactor in (ContextCompactor.for_role(memory, ROLE), compactor_of(None, None, memory.rounds_getter(ROLE))):
        with pytest.raises(ValueError, match="other"):
            other.register_compaction_provider(ROLE, compactor)
    late = compactor_of(None, None, lambda: memory.conversation.rounds)
    memory.register_compaction_provider(ROLE, late)
    with pytest.raises(ValueError, match="other"):
        other.register_compaction_provider(ROLE, late)
    assert (memory.provider(ROLE), other.provider(ROLE)) == (late, None)


def test_a_bare_mock_is_told_what_its_answer_lacks() -> None:
    """It has every attribute, those of an error included."""
    compactor = compactor_of(CompactorConfig(7, 3), MagicMock(), lambda: memory_of(10).conversation.rounds)
    with pytest.raises(CompactionFailed, match="MagicMock as content: it must return text"):
        compactor.compact_now(SOON)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: load(5), "prompt: must be the name of a shipped one, or the path"),  # type: ignore[arg-type]
        (lambda: PromptTemplate("mine", None), "content: must be a text"),  # type: ignore[arg-type]
        (lambda: PromptTemplate(5, "{content}"), "name: must be a text"),  # type: ignore[arg-type]
        (lambda: Plan(5), "name: must be a text"),  # type: ignore[arg-type]
        (lambda: Plan("n", "d", 5), "subtasks: must be a list"),  # type: ignore[arg-type]
        (lambda: Prices.of_model(5), "model: must be the name of a model"),  # type: ignore[arg-type]
        (lambda: OpenAISummarizer("m", base_url=5), "base_url"),  # type: ignore[arg-type]
        (lambda: OpenAISummarizer("m", api_key=5), "api_key"),  # type: ignore[arg-type]
        (lambda: OpenAISummarizer("m", timeout="60"), "timeout"),  # type: ignore[arg-type]
    ],
)
def test_what_a_compactor_is_made_of_names_what_is_wrong(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize("call", [window_of, find_model, get_counter])
@pytest.mark.parametrize("model", [None, 5, b"gpt-5"])
def test_the_name_of_a_model_is_a_text(call: Callable[[Any], object], model: Any) -> None:
    with pytest.raises(ConfigError, match="model: must be the name of a model"):
        call(model)
