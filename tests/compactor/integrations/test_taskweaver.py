"""TaskWeaver's loop with the adapter. TaskWeaver is on no package index: what stands for it here has its classes' shapes."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fenced import blocks
from structlog.testing import capture_logs

from compactor import CompactorConfig, ContextCompactor
from compactor.integrations.taskweaver import CompactionMemory, RoleCompactor

TIMEOUT = 20.0
PLANNER = "Planner"


# -- what stands for TaskWeaver ----------------------------------------------------------------------------------------


@dataclass
class Post:
    id: str
    send_from: str
    send_to: str
    message: str
    attachment_list: list[Any] = field(default_factory=list)


@dataclass
class Round:
    id: str
    user_query: str
    state: str = "created"
    post_list: list[Post] = field(default_factory=list)


class Memory:
    """As in the released package: it knows no compaction, and its rounds for a role are copies."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.conversation = SimpleNamespace(rounds=[])
        self._ids = map("round-{}".format, itertools.count())

    def create_round(self, user_query: str) -> Round:
        self.conversation.rounds.append(Round(next(self._ids), user_query))
        return self.conversation.rounds[-1]

    def get_role_rounds(self, role: str, include_failure_rounds: bool = False) -> list[Round]:
        shown = [
            Round(
                one.id,
                one.user_query,
                one.state,
                [copy.deepcopy(p) for p in one.post_list if role in (p.send_from, p.send_to)],
            )
            for one in self.conversation.rounds
            if include_failure_rounds or one.state != "failed"
        ]
        shown[-1].post_list[-1:] = shown[-1].post_list[-1:]  # as there, no round is an IndexError
        return shown


class Llm:
    """``LLMApi``: says which items it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.options: list[dict[str, Any]] = []

    def chat_completion(self, messages: list[Any], **options: Any) -> dict[str, str]:
        text = str(messages)
        self.asked.append(text)
        self.options.append(options)
        said = [f"Item {n} costs {n * 11} euros." for n in range(100) if f"Item {n} costs" in text]
        return {"role": "assistant", "content": " ".join(said)}


class Role:
    """Registers its compactor in each reply, as the newest roles do."""

    def __init__(self, compactor: Any = None) -> None:
        self.alias, self.compactor = PLANNER, compactor
        self.llm_api: Any = None

    def read(self, memory: Any) -> tuple[str | None, list[str]]:
        """Return the summary, and the queries of the rounds behind it."""
        memory.register_compaction_provider(
            self.alias, self.compactor, rounds_getter=lambda: memory.get_role_rounds(role=self.alias)
        )
        self.compactor.start()
        rounds, compaction = memory.get_role_rounds_with_compaction(role=self.alias, include_failure_rounds=False)
        if compaction:
            rounds = rounds[compaction.end_index :]
        return compaction and compaction.summary, [one.user_query for one in rounds]


def add_round(memory: Any, number: int, state: str = "finished") -> Round:
    made: Round = memory.create_round(f"What does item {number} cost?")
    answer = f"Item {number} costs {number * 11} euros. " + "It is in stock, and can be sent today. " * 9
    made.post_list += [
        Post(f"{made.id}-1", "User", PLANNER, made.user_query),
        Post(f"{made.id}-2", "CodeInterpreter", "CodeInterpreter", f"secret {number}"),
        Post(f"{made.id}-3", PLANNER, "User", answer),
    ]
    made.state = state
    return made


@pytest.fixture
def llm() -> Llm:
    return Llm()


def settle(compactor: RoleCompactor) -> None:
    compactor.notify_rounds_changed()
    assert compactor.wait_idle(TIMEOUT)


# -- promises ------------------------------------------------------------------------------------------------------------


def test_a_role_reads_the_summary_and_the_rounds_behind_it(llm: Llm) -> None:
    """The rounds in TaskWeaver's memory stay whole, and no post of another role reaches the model."""
    memory = CompactionMemory(Memory("s"))
    role = Role(RoleCompactor(CompactorConfig(threshold=7, retain_recent=3), llm))
    for number in range(1, 21):
        add_round(memory, number)
        summary, tail = role.read(memory)
        settle(role.compactor)
        assert len(tail) == number or summary
    role.compactor.stop()

    summary, tail = role.read(memory)
    covered = 20 - len(tail)
    assert 3 <= len(tail) <= 8
    assert summary is not None
    assert all(f"Item {n} costs {n * 11} euros." in summary for n in range(1, covered + 1))
    assert tail == [one.user_query for one in memory.conversation.rounds[covered:]]
    assert [len(one.post_list) for one in memory.conversation.rounds] == [3] * 20
    assert not any("secret" in asked for asked in llm.asked)


def test_the_cut_follows_rounds_that_fail(llm: Llm) -> None:
    """A failed round before the cut shifts no index; a summary that speaks of one is not shown."""
    memory = CompactionMemory(Memory("s"))
    with_failed = [add_round(memory, number, "failed" if number == 2 else "finished") for number in range(1, 12)]
    role = Role(RoleCompactor(CompactorConfig(threshold=4, retain_recent=3), llm))
    role.read(memory)
    settle(role.compactor)

    rounds, compaction = memory.get_role_rounds_with_compaction(PLANNER)
    assert compaction is not None
    assert "Item 2 costs" not in compaction.summary
    assert [one.user_query for one in rounds[compaction.end_index :]] == [one.user_query for one in with_failed[-3:]]
    rounds, compaction = memory.get_role_rounds_with_compaction(PLANNER, include_failure_rounds=True)
    assert compaction is not None
    assert [one.user_query for one in rounds[compaction.end_index :]] == [one.user_query for one in with_failed[-3:]]

    with_failed[4].state = "failed"
    rounds, compaction = memory.get_role_rounds_with_compaction(PLANNER)
    assert compaction is None
    assert len(rounds) == 9
    settle(role.compactor)
    _, compaction = memory.get_role_rounds_with_compaction(PLANNER)
    assert compaction is None or "Item 5 costs" not in compaction.summary
    role.compactor.stop()


def test_without_a_getter_the_compactor_reads_what_the_role_sees(llm: Llm) -> None:
    """Also where nothing is there yet, or all has failed."""
    memory = CompactionMemory(Memory("s"))
    compactor = RoleCompactor(CompactorConfig(threshold=4, retain_recent=3), llm)
    memory.register_compaction_provider(PLANNER, compactor)
    with compactor:
        settle(compactor)
        add_round(memory, 1, "failed")
        settle(compactor)
        assert compactor.status().last_error is None
        for number in range(2, 9):
            add_round(memory, number)
        settle(compactor)
    assert compactor.get_compaction().end_index == 4
    assert not any("secret" in asked or "Item 1 costs" in asked for asked in llm.asked)


def test_a_getter_that_the_compactor_was_made_with_stays(llm: Llm) -> None:
    memory = CompactionMemory(Memory("s"))
    getter = partial(list, ())
    compactor = RoleCompactor(CompactorConfig(), llm, rounds_getter=getter)
    memory.register_compaction_provider(PLANNER, compactor)
    assert compactor.rounds_getter is getter


def test_a_compactor_of_ours_can_be_registered_as_it_is(llm: Llm) -> None:
    """Its getter is its own; another one is refused, with the remedy."""
    memory = CompactionMemory(Memory("s"))
    compactor = ContextCompactor(
        CompactorConfig(threshold=4, retain_recent=3), llm, lambda: memory.conversation.rounds, role=PLANNER
    )
    with pytest.raises(TypeError, match="RoleCompactor"):
        memory.register_compaction_provider(PLANNER, compactor, rounds_getter=list)
    memory.register_compaction_provider(PLANNER, compactor)
    with compactor:
        for number in range(1, 9):
            add_round(memory, number)
        compactor.notify_rounds_changed()
        assert compactor.wait_idle(TIMEOUT)
    rounds, compaction = memory.get_role_rounds_with_compaction(PLANNER)
    assert (len(rounds), compaction.end_index) == (8, 5)


def test_a_provider_that_fails_hides_no_round_from_its_maker() -> None:
    """Those behind it are told of the round all the same, and one that registers meanwhile disturbs nothing."""
    memory = CompactionMemory(Memory("s"))
    told: list[str] = []

    def fail() -> None:
        memory.register_compaction_provider("Late", SimpleNamespace(notify_rounds_changed=list))
        raise RuntimeError("secret words")

    memory.register_compaction_provider(PLANNER, SimpleNamespace(notify_rounds_changed=fail))
    other = SimpleNamespace(notify_rounds_changed=lambda: told.append("CodeInterpreter"))
    memory.register_compaction_provider("CodeInterpreter", other)
    with capture_logs() as logs:
        made = memory.create_round("What does item 1 cost?")

    assert memory.conversation.rounds == [made]
    assert told == ["CodeInterpreter"]
    (line,) = [one for one in logs if one["event"] == "provider.not_notified"]
    assert (line["role"], line["error"]) == (PLANNER, "RuntimeError")
    assert "secret" not in str(logs)


def test_a_round_compressor_waits_for_no_model(llm: Llm) -> None:
    """For the roles of the released package, which call it while they compose their prompt."""
    memory = Memory("s")
    compactor = RoleCompactor(CompactorConfig(threshold=4, retain_recent=3), llm)
    sizes = []
    for number in range(1, 11):
        add_round(memory, number)
        rounds = memory.get_role_rounds(PLANNER)
        summary, tail = compactor.compress_rounds(
            rounds, rounds_formatter=str, use_back_up_engine=True, prompt_template="{PREVIOUS_SUMMARY}"
        )
        sizes.append(len(tail))
        assert (summary is None) == (len(tail) == number)
        assert tail == rounds[-len(tail) :]
        settle(compactor)
    compactor.stop()
    assert sizes[:5] == [1, 2, 3, 4, 5]
    assert max(sizes[5:]) <= 5


def test_the_model_and_the_log_are_those_that_the_role_names(llm: Llm) -> None:
    """The log gets names of events, and nothing that was said."""
    lines: list[str] = []
    memory = CompactionMemory(Memory("s"))
    compactor = RoleCompactor(
        CompactorConfig(threshold=4, retain_recent=3),
        llm,
        llm_alias="small",
        on_event=lambda event: lines.append(event.name),
    )
    memory.register_compaction_provider(PLANNER, compactor)
    for number in range(1, 9):
        add_round(memory, number)
    compactor.start()
    compactor.start()  # roles start it in each reply
    settle(compactor)
    compactor.stop()
    assert {one["llm_alias"] for one in llm.options} == {"small"}
    assert "compaction.published" in lines
    assert "euros" not in "".join(lines)


@dataclass
class TheirConfig:
    threshold: int = 10
    retain_recent: int = 3
    prompt_template_path: str = ""
    enabled: bool = True


def test_it_takes_what_roles_give_their_own_compactor(llm: Llm) -> None:
    """As the newest roles do: their configuration, a logger, no rounds yet, and then all of the conversation's."""
    lines: list[str] = []
    memory = CompactionMemory(Memory("s"))
    compactor = RoleCompactor(
        config=TheirConfig(threshold=4), llm_api=llm, rounds_getter=list, logger=lines.append, llm_alias="small"
    )
    for number in range(1, 9):
        if PLANNER not in memory._compaction_providers:
            compactor.rounds_getter = lambda: memory.conversation.rounds
            memory.register_compaction_provider(PLANNER, compactor)
            compactor.start()
        add_round(memory, number)
    settle(compactor)
    compactor.stop()
    _, compaction = memory.get_role_rounds_with_compaction(role=PLANNER, include_failure_rounds=False)
    assert compaction.end_index >= 5
    assert any(line.startswith("compaction.published ") for line in lines)
    assert "euros" not in "".join(lines)


def test_the_code_of_the_page_connects_a_session(llm: Llm) -> None:
    block = next(
        one for one in blocks("docs/frameworks/taskweaver.md", "python") if "integrations.taskweaver" in one.text
    )
    session = SimpleNamespace(memory=Memory("s"), planner=Role())
    session.planner.llm_api = llm
    block.run()["connect"](session)
    for number in range(1, 15):
        add_round(session.memory, number)
        session.planner.read(session.memory)
        settle(session.planner.compactor)
    session.planner.compactor.stop()
    summary, tail = session.planner.read(session.memory)
    assert summary is not None
    assert len(tail) < 14
