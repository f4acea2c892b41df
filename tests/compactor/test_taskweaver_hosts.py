"""What hosts that are written as TaskWeaver's document shows find here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest
from executors import SOON
from scene import ROLE, add_round, memory_of, text_of, threads_of

from compactor import CompactedMessage, CompactorConfig, ContextCompactor, Settings, Skip
from compactor.testing import ScriptedSummarizer
from memory import InMemoryStore, Memory, ProviderFailed


def summarize(_messages: list[dict[str, Any]]) -> dict[str, str]:
    return {"role": "assistant", "content": "\n".join(f"Item-{n} costs {n * 11} euros." for n in range(1, 8))}


# -- records ---------------------------------------------------------------------------------------------------------


def test_records_take_their_first_fields_by_place() -> None:
    """As the dataclasses of the document do; the rest by name."""
    assert CompactedMessage(1, 7, "S") == CompactedMessage(start_index=1, end_index=7, summary="S")
    assert CompactedMessage(1, 7, "S", end_round_id="r7").end_round_id == "r7"
    assert CompactorConfig(7, 3, "") == CompactorConfig(threshold=7, retain_recent=3)
    assert CompactedMessage.model_validate({"start_index": 1, "end_index": 7, "summary": "S"}) == CompactedMessage(
        1, 7, "S"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompactedMessage(1, 7, "S", "r7"),
        lambda: CompactedMessage(1, 7, end_index=7, summary="S"),
        lambda: CompactorConfig(7, 3, "", True),
        lambda: CompactorConfig(7, threshold=7),
    ],
)
def test_too_much_by_place_is_refused(make: Callable[[], object]) -> None:
    """As by any function: a value is not guessed a place."""
    with pytest.raises(TypeError, match="by name"):
        make()


def test_rounds_can_be_copied_deeply() -> None:
    """TaskWeaver's own memory copies rounds before it hands them out."""
    memory = memory_of(3)
    rounds, _ = memory.get_role_rounds(ROLE)
    assert copy.deepcopy(rounds) == list(rounds)


# -- providers -------------------------------------------------------------------------------------------------------


@dataclass
class Summarised:
    """A host's own record, with the three fields."""

    start_index: int
    end_index: int
    summary: str


class Provider:
    def __init__(self, compaction: object) -> None:
        self.compaction = compaction

    def get_compaction(self) -> Any:
        return self.compaction

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None: ...


def test_a_provider_may_return_an_object_of_its_own_with_the_three_fields() -> None:
    memory = memory_of(10)
    memory.register_compaction_provider(ROLE, Provider(Summarised(1, 7, "All seven items.")))
    rounds, compaction = memory.get_role_rounds(ROLE)
    assert compaction == CompactedMessage(1, 7, "All seven items.")
    assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r8", "r9", "r10"]


@pytest.mark.parametrize("given", ["a text", Summarised(1, "7", "S"), object()])  # type: ignore[arg-type]
def test_a_provider_that_returns_something_else_is_told_what_is_needed(given: object) -> None:
    """The chat goes on without it, with an event."""
    memory, events = memory_of(3), []
    memory.on_event(events.append)
    memory.register_compaction_provider(ROLE, Provider(given))
    assert memory.get_role_rounds(ROLE)[1] is None
    assert [type(event) for event in events] == [ProviderFailed]


# -- registration ----------------------------------------------------------------------------------------------------


def compactor_of(memory: Memory, summarizer: object, **options: Any) -> ContextCompactor:
    """Make one as the document does: of the conversation's rounds, and with no role."""
    return ContextCompactor(CompactorConfig(7, 3, ""), summarizer, lambda: memory.conversation.rounds, **options)


def test_registration_passes_the_role_on() -> None:
    """What other roles said reaches neither its summarizer nor its summary."""
    memory, summarizer = memory_of(6), ScriptedSummarizer()
    for _ in range(4):
        add_round(memory, role="Secretary")
    compactor = compactor_of(memory, summarizer)
    memory.register_compaction_provider(ROLE, compactor)
    assert compactor.role == ROLE
    compactor.compact_now(SOON)
    asked = text_of(summarizer.requests[0])
    assert "Item-6 costs" in asked
    assert "Item-7 costs" not in asked


def test_what_a_registered_compactor_published_is_found_after_reopening() -> None:
    store = InMemoryStore()
    memory = Memory("s", store=store)
    for _ in range(10):
        add_round(memory)
    compactor = compactor_of(memory, ScriptedSummarizer())
    memory.register_compaction_provider(ROLE, compactor)
    made = compactor.compact_now(SOON)
    assert made is not None
    assert made.end_index == 7
    assert Memory("s", store=store).get_role_rounds(ROLE)[1] == made


def test_a_compactor_of_one_role_is_not_registered_for_another() -> None:
    """A conflict is an error, whichever came first, and changes nothing."""
    memory = memory_of(3)
    compactor = compactor_of(memory, ScriptedSummarizer(), role=ROLE)
    with pytest.raises(ValueError, match="Secretary"):
        memory.register_compaction_provider("Secretary", compactor)
    assert memory.provider("Secretary") is None
    assert compactor.role == ROLE


def test_a_compactor_that_reads_one_roles_rounds_is_not_anothers() -> None:
    """Whether the other role is given, or comes by being registered; its own is taken, and so are everybody's rounds."""
    memory = memory_of(3)
    getter = memory.rounds_getter(ROLE)
    with pytest.raises(ValueError, match=f"{ROLE}.*Secretary"):
        ContextCompactor(rounds_getter=getter, role="Secretary")
    compactor = ContextCompactor(rounds_getter=getter)
    with pytest.raises(ValueError, match=f"{ROLE}.*Secretary"):
        memory.register_compaction_provider("Secretary", compactor)
    assert (memory.provider("Secretary"), compactor.role) == (None, "")
    memory.register_compaction_provider(ROLE, compactor)
    assert compactor.role == ROLE
    memory.register_compaction_provider("Secretary", ContextCompactor(rounds_getter=memory.rounds_getter("")))


def test_a_compactor_that_works_for_no_role_cannot_be_given_one() -> None:
    """What it has seen and published is everybody's."""
    memory = memory_of(3)
    with compactor_of(memory, ScriptedSummarizer()) as compactor, pytest.raises(RuntimeError, match="before start"):
        memory.register_compaction_provider(ROLE, compactor)


def test_hooks_from_before_the_registration_hear_of_what_comes_after() -> None:
    memory, names = memory_of(10), []
    compactor = compactor_of(memory, ScriptedSummarizer(), on_event=lambda event: names.append(event.name))
    memory.register_compaction_provider(ROLE, compactor)
    compactor.compact_now(SOON)
    assert names.count("compaction.published") == 1


# -- what it is made with --------------------------------------------------------------------------------------------


def test_a_mock_as_llm_api_compacts() -> None:
    """It is asked through ``chat_completion``, and what was passed can be read again."""
    memory, api = memory_of(10), MagicMock()
    api.chat_completion.side_effect = summarize
    compactor = ContextCompactor(
        CompactorConfig(7, 3, ""), llm_api=api, rounds_getter=(getter := memory.rounds_getter(ROLE))
    )
    assert compactor.llm_api is api
    assert compactor.rounds_getter is getter
    memory.register_compaction_provider(ROLE, compactor)
    made = compactor.compact_now(SOON)
    assert made is not None
    assert made.summary.startswith("Item-1 costs 11 euros.")
    api.assert_not_called()


GETTER: Callable[[], list[Any]] = list


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ContextCompactor(Settings.from_dict({}), ScriptedSummarizer(), GETTER), "settings.for_role"),
        (lambda: ContextCompactor(ScriptedSummarizer(), CompactorConfig(), GETTER), "CompactorConfig"),
        (
            lambda: ContextCompactor(CompactorConfig(), Memory().rounds_getter(ROLE), ScriptedSummarizer()),
            "the order is",
        ),
        (lambda: ContextCompactor(CompactorConfig(), GETTER, MagicMock()), "the order is"),
        (lambda: ContextCompactor(CompactorConfig(), ScriptedSummarizer(), []), "callable that returns the rounds"),
        (lambda: ContextCompactor.for_role(ROLE, Memory()), "memory: must be a Memory, and role"),
        (lambda: ContextCompactor.for_role(Memory(), ROLE, Settings.from_dict({})), "settings.for_role"),
        (lambda: ContextCompactor.for_role(Memory(), ROLE, ScriptedSummarizer()), "CompactorConfig"),
    ],
)
def test_arguments_in_the_wrong_place_are_errors_that_say_so(make: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


def test_a_disabled_compactor_starts_no_thread() -> None:
    """It says why it does nothing, and does not need a worker to find out."""
    memory = memory_of(20)
    compactor = ContextCompactor.for_role(memory, "Disabled", CompactorConfig(enabled=False))
    with compactor:
        add_round(memory)
        assert threads_of("Disabled") == []
        assert compactor.wait_idle(SOON)
        assert compactor.status().skip_reason is Skip.DISABLED
        assert compactor.compact_now(SOON) is None


@pytest.mark.parametrize(("in_bulk", "ends"), [(True, [7, 12, 17]), (False, [5, 10, 15])])
def test_the_timeline_of_the_document_holds_where_rounds_come_in_bulk(in_bulk: bool, ends: list[int]) -> None:
    """Round by round, a compaction is due at 8, 13 and 18 rounds."""
    memory, seen = Memory(), []
    compactor = ContextCompactor.for_role(memory, ROLE, CompactorConfig(7, 3, ""), ScriptedSummarizer())

    def look() -> None:
        with compactor:
            assert compactor.wait_idle(SOON)
        compaction = compactor.get_compaction()
        seen.append(compaction.end_index if compaction else 0)

    for number in range(1, 21):
        add_round(memory)
        if not in_bulk or number in (10, 15, 20):
            look()
    assert sorted(set(seen) - {0}) == ends
