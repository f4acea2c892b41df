"""What the provider counted corrects our own count: upwards only, in steps of 5%, the same after a resume."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory import CompactedMessage, InMemoryStore, Memory, MessageError, Reduction, Usage

ROLE = "Planner"


def memory_of(rounds: int = 3, store: InMemoryStore | None = None) -> Memory:
    memory = Memory("s", store=store)
    for number in range(1, rounds + 1):
        memory.create_round("q", id=str(number))
        memory.add_post(str(number), id=f"{number}.1", send_from=ROLE, send_to="User", message="m")
        memory.finish_round(str(number))
    return memory


def publish(memory: Memory, end: int = 1, role: str = ROLE) -> None:
    journal = memory.journal(role)
    made = CompactedMessage(start_index=1, end_index=end, end_round_id=str(end), summary="s")
    journal.publish(made, base=journal.read().generation, round_ids=[str(end)])


def reduction(round_id: str) -> Reduction:
    return Reduction(round_id=round_id, first_post_id=f"{round_id}.1", last_post_id=f"{round_id}.1", kind="dropped")


def test_nothing_is_known_at_first() -> None:
    """So our own count stands as it is."""
    usage = Memory("s").usage(ROLE)
    assert usage == Usage(input_tokens=None, steps=0)
    assert usage.correction == 1


@pytest.mark.parametrize(
    ("counted", "told", "steps"),
    [(100, 100, 0), (100, 1, 0), (100, 101, 1), (100, 105, 1), (100, 106, 2), (100, 200, 20), (100, 10_000, 40), (1, 0, 0), (0, 50, 0)],
)  # fmt: skip
def test_the_correction_is_the_least_step_that_suffices(counted: int, told: int, steps: int) -> None:
    """At most 40 of them; a count of nothing says nothing."""
    memory = Memory("s")
    memory.record_usage(ROLE, told, counted=counted)
    assert memory.usage(ROLE) == Usage(told, steps)
    assert memory.usage(ROLE).correction == pytest.approx(1 + 0.05 * steps)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**10)), max_size=8))
def test_the_correction_only_grows_and_suffices(prompts: list[tuple[int, int]]) -> None:
    """In whole numbers: no rounding leaves a prompt just above what its provider counts."""
    memory, before = Memory("s"), 0
    for counted, told in prompts:
        memory.record_usage(ROLE, told, counted=counted)
        steps = memory.usage(ROLE).steps
        assert before <= steps <= 40
        assert steps == 40 or counted * (100 + 5 * steps) >= 100 * told
        assert steps == before or counted * (100 + 5 * (steps - 1)) < 100 * told
        before = steps


def test_without_a_count_it_is_that_of_the_newest_prompt() -> None:
    """Which ``compose`` has noted; one that was given counts for more."""
    memory = Memory("s")
    memory.note_prompt(ROLE, 500)
    memory.note_prompt(ROLE, 1_000)
    memory.record_usage(ROLE, 1_060)
    assert memory.usage(ROLE) == Usage(1_060, 2)
    memory.record_usage(ROLE, 1_060, counted=900)
    assert memory.usage(ROLE) == Usage(1_060, 4)


def test_a_usage_of_a_prompt_that_nobody_counted_is_a_length() -> None:
    """It says how long the prompt is, and nothing of our count."""
    memory = Memory("s")
    memory.record_usage(ROLE, 900)
    assert memory.usage(ROLE) == Usage(900, 0)


def test_noting_a_prompt_writes_nothing() -> None:
    """Composing is reading."""
    memory = memory_of()
    number = memory.snapshot.number
    memory.note_prompt(ROLE, 500)
    assert memory.snapshot.number == number


def test_roles_are_counted_apart() -> None:
    """Each has prompts and perhaps a provider of its own."""
    memory = memory_of()
    memory.record_usage(ROLE, 120, counted=100)
    memory.record_usage("Coder", 100, counted=100)
    assert (memory.usage(ROLE), memory.usage("Coder")) == (Usage(120, 4), Usage(100, 0))
    publish(memory, role="Coder")
    assert (memory.usage(ROLE), memory.usage("Coder")) == (Usage(120, 4), Usage(None, 0))


@pytest.mark.parametrize("change", ["publish", "revert", "reduce", "withdraw", "redact"])
def test_a_prompt_that_is_no_more_has_no_length(change: str) -> None:
    """After a change of overlays the next prompt is another; the correction stays."""
    memory = memory_of()
    publish(memory)
    memory.journal(ROLE).reduce(reduction("3"), base=1)
    memory.record_usage(ROLE, 120, counted=100)
    {
        "publish": lambda: publish(memory, 2),
        "revert": memory.journal(ROLE).revert,
        "reduce": lambda: memory.journal(ROLE).reduce(reduction("2"), base=1),
        "withdraw": lambda: memory.journal(ROLE).withdraw(reduction("3")),
        "redact": lambda: memory.redact("r3.p1"),
    }[change]()
    assert memory.usage(ROLE) == Usage(None, 4)
    memory.record_usage(ROLE, 90)
    assert memory.usage(ROLE).input_tokens == 90


@pytest.mark.parametrize("change", ["publish", "reduce"])
def test_an_answer_that_arrives_after_a_publication_tells_of_the_prompt_before(change: str) -> None:
    """It would make a trigger hold that has just been seen to: its length is not kept, what it corrects is."""
    memory = memory_of()
    memory.note_prompt(ROLE, 100)
    publish(memory) if change == "publish" else memory.journal(ROLE).reduce(reduction("2"), base=0)
    memory.record_usage(ROLE, 120)
    assert memory.usage(ROLE) == Usage(None, 4)
    memory.note_prompt(ROLE, 60)
    memory.record_usage(ROLE, 60)
    assert memory.usage(ROLE) == Usage(60, 4)


def told(memory: Memory, *prompts: tuple[int, int | None]) -> float:
    """Tell of prompts by their length and how much of it was cached; return the share that was cold."""
    for tokens, cached in prompts:
        memory.record_usage(ROLE, tokens, counted=tokens, cached_tokens=cached)
    return memory.usage(ROLE).cold


def test_what_providers_find_in_their_caches_tells_how_often_those_are_cold() -> None:
    """The newest prompts count for more; of the prompt before, its whole steps of 128 tokens could be there."""
    assert told(Memory(), (2_000, 0)) == 0, "the first prompt of all: nobody had read it"
    assert told(Memory(), (2_000, 0), (2_500, 1_920), (3_000, 2_432)) == 0
    assert told(Memory(), (2_000, 0), (2_500, 0)) == pytest.approx(1 / 16)
    assert told(Memory(), (2_000, 0), (2_500, 960)) == pytest.approx(1 / 32)
    assert told(Memory(), (2_000, 0), (2_500, 0), (3_000, 2_432)) == pytest.approx(15 / 256)
    assert told(Memory(), (2_000, 0), *[(2_500, 0)] * 200) == pytest.approx(1, abs=1e-3)
    assert told(Memory(), (500, 0), (900, 0)) == 0, "too short to be kept"
    assert told(Memory(), (2_000, None), (2_500, None)) == 0, "nobody told"


def test_a_prompt_with_another_beginning_was_not_to_be_cached() -> None:
    """After a publication the provider finds nothing, whatever it has kept."""
    memory = memory_of()
    memory.record_usage(ROLE, 2_000, cached_tokens=0)
    publish(memory)
    assert told(memory, (1_500, 0)) == 0
    assert told(memory, (1_600, 0)) > 0
    memory.note_prompt(ROLE, 1_700)
    publish(memory, 2)
    before = memory.usage(ROLE).cold
    memory.record_usage(ROLE, 1_700, cached_tokens=0)
    assert memory.usage(ROLE).cold == before, "its answer came after a publication"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 20_000)), max_size=8))
def test_the_share_that_was_cold_is_a_share(prompts: list[tuple[int, int]]) -> None:
    """Whatever a provider says."""
    assert 0 <= told(Memory(), *prompts) <= 1


def test_usage_survives_a_resume() -> None:
    """Prompts are composed by it, and are to be the same."""
    store = InMemoryStore()
    memory = memory_of(store=store)
    memory.record_usage(ROLE, 120, counted=100)
    memory.record_usage("Coder", 7)
    publish(memory, role="Coder")
    memory.note_prompt("Late", 50)
    publish(memory, role="Late")
    memory.record_usage("Late", 60)
    memory.record_usage("Cold", 2_000, cached_tokens=0)
    memory.record_usage("Cold", 2_100, cached_tokens=700)
    assert memory.usage("Cold").cold > 0
    resumed = Memory("s", store=store)
    for role in (ROLE, "Coder", "Late", "Cold", "Stranger"):
        assert resumed.usage(role) == memory.usage(role)


@pytest.mark.parametrize("wrong", [{"input_tokens": -1}, {"input_tokens": "many"}, {"input_tokens": 1, "counted": -1}])
def test_what_is_no_number_of_tokens_is_refused(wrong: dict[str, object]) -> None:
    """Nothing is written."""
    memory = Memory("s")
    with pytest.raises(MessageError):
        memory.record_usage(ROLE, **wrong)
    assert memory.snapshot.number == 0


@pytest.mark.parametrize(
    "wrong", [{"input_tokens": True}, {"input_tokens": 5, "counted": False}, {"input_tokens": 5, "cached_tokens": True}]
)
def test_a_truth_value_is_no_count(wrong: dict[str, bool | int]) -> None:
    """It would be taken for 1, and correct every later count by that."""
    memory = Memory()
    with pytest.raises(MessageError, match="are numbers of tokens"):
        memory.record_usage("assistant", **wrong)
    assert memory.usage("assistant").steps == 0
