"""What stands in a prompt however much is left out: the head, the plan and the newest query."""

from __future__ import annotations

from typing import Any

import pytest
from chats import (
    answer,
    assert_legal,
    calls,
    chat,
    compacted,
    contents,
    note_of,
    user,
    words,
)

from compactor import CompactorConfig, ContextCompactor, Plan, PlanFailed, compose, count_message, count_tokens
from compactor.compose import PLAN_FRAME
from compactor.testing import ScriptedSummarizer
from memory import Memory

# -- what stands at the head ------------------------------------------------------------------------------------------


def test_the_system_text_stands_before_the_header() -> None:
    """What the host gives with the call comes first, and counts."""
    memory = Memory.from_messages([{"role": "system", "content": "header"}, user()])
    plain = compose(memory, budget=100)

    prompt = compose(memory, budget=100, system="from the host")

    assert contents(prompt) == ["from the host", "header", "q"]
    assert prompt.tokens == plain.tokens + count_message({"content": "from the host"}, count_tokens)


def test_the_system_messages_are_passed_on_as_they_are() -> None:
    """A developer message with keys of its own stays what it is."""
    system = [{"role": "developer", "content": "d", "name": "host"}, {"role": "system", "content": "s"}]

    assert compose(Memory.from_messages([user()]), budget=100, system=system).messages == [*system, user()]


def test_an_empty_system_text_is_none() -> None:
    """A setting that is left empty adds no empty message."""
    assert contents(compose(Memory.from_messages([user()]), budget=100, system="")) == ["q"]


def test_one_system_message_by_itself_is_refused() -> None:
    """A mapping is no list of messages, and the error says what to do."""
    with pytest.raises(TypeError, match="into a list"):
        compose(Memory(), budget=100, system={"role": "system", "content": "s"})  # type: ignore[arg-type]


# -- the plan ---------------------------------------------------------------------------------------------------------


PLAN = Plan("Trip", "A flight to Rome.", [("search", "done"), ("book", "in_progress"), ("pay", "pending")])


def framed(plan: object) -> dict[str, Any]:
    return {"role": "user", "content": f"{PLAN_FRAME}\n{plan}"}


@pytest.mark.parametrize("plan", [PLAN, str(PLAN), lambda: PLAN, lambda: str(PLAN)])
def test_the_plan_stands_before_the_newest_query(plan: object) -> None:
    """As text, as a Plan, or from a callable; framed, so that nobody takes it for the user's words."""
    memory = chat(3)
    memory.append(calls("c"))

    prompt = compose(memory, budget=1_000, plan=plan)

    without = compose(memory, budget=1_000)
    assert prompt.messages == [*without.messages[:4], framed(PLAN), *without.messages[4:]]
    assert prompt.tokens == without.tokens + count_message(framed(PLAN), count_tokens)


def test_of_several_words_of_the_user_the_plan_stands_before_the_last() -> None:
    """The newest thing that was said is what the agent answers."""
    prompt = compose(Memory.from_messages([user("first"), user("second")]), budget=1_000, plan="1. go")

    assert contents(prompt) == ["first", framed("1. go")["content"], "second"]


def test_without_any_words_of_the_user_the_plan_is_shown_all_the_same() -> None:
    """An agent that works by itself, or has not begun."""
    assert contents(compose(Memory(), budget=1_000, plan="1. go")) == [framed("1. go")["content"]]
    alone = Memory.from_messages([answer("Thinking.")])
    assert contents(compose(alone, budget=1_000, plan="1. go")) == [framed("1. go")["content"], "Thinking."]


@pytest.mark.parametrize(
    "plan", [None, False, "", "  ", lambda: None, Plan("done", subtasks=[("all", "done"), ("rest", "abandoned")])]
)
def test_a_plan_in_which_nothing_is_pending_is_not_shown(plan: object) -> None:
    """It is background, and no longer needed."""
    assert compose(chat(2), budget=1_000, plan=plan) == compose(chat(2), budget=1_000)


def test_the_role_s_own_plan_is_the_compactor_s() -> None:
    """``plan=True`` asks the same callable that the summaries are made by; who has none shows none."""
    memory = chat(2)
    assert compose(memory, budget=1_000, plan=True) == compose(memory, budget=1_000)
    ContextCompactor.for_role(memory, "assistant", CompactorConfig(), ScriptedSummarizer(), plan=lambda: PLAN)

    assert framed(PLAN) in compose(memory, budget=1_000, plan=True).messages


class Unspeakable:
    def __str__(self) -> str:
        raise OSError("the disk is gone")


def broken() -> object:
    raise OSError("the disk is gone")


@pytest.mark.parametrize("plan", [broken, Unspeakable(), Unspeakable])
def test_a_plan_that_nobody_can_tell_is_an_event_and_the_chat_goes_on(plan: object) -> None:
    """The event names the error's class, and nothing of what was said."""
    memory, heard = chat(2), []
    memory.on_event(heard.append)

    assert compose(memory, budget=1_000, plan=plan) == compose(memory, budget=1_000)

    (event,) = heard
    assert isinstance(event, PlanFailed)
    assert (event.role, event.error) == ("assistant", "OSError")


def test_a_plan_that_leaves_no_room_is_dropped_before_the_prompt_is_refused() -> None:
    """What the user asked is worth more; with room for it the plan counts in the budget."""
    memory = chat(40)
    needed = compose(memory, budget=60).tokens

    tight = compose(memory, budget=needed, plan="1. " + words(100))
    enough = compose(memory, budget=600, plan="1. " + words(100))

    assert PLAN_FRAME not in "".join(map(str, contents(tight)))
    assert framed("1. " + words(100)) in enough.messages
    assert_legal(enough, 600)


# -- the newest query -------------------------------------------------------------------------------------------------


def test_the_newest_query_is_kept_when_everything_is_compacted() -> None:
    """With nothing retained, the prompt is the summary and what the user asked last."""
    memory = chat(3)
    memory.finish_round(memory.conversation.rounds[-1])
    compacted(memory, 3, "All of it.")

    prompt = compose(memory, budget=1_000)

    assert len(prompt.messages) == 2
    assert contents(prompt)[1].startswith("question 00003")
    assert_legal(prompt, 1_000)


def test_the_newest_query_is_kept_when_it_stands_in_an_older_round() -> None:
    """Rounds that the agent opens by itself do not push out what the user asked."""
    memory = chat(4)
    for number in range(30):
        round_ = memory.create_round("")
        memory.add_post(round_, send_from="assistant", send_to="User", message=f"{number} {words(30)}")

    prompt = compose(memory, budget=400)

    assert 4 in prompt.report.omitted_rounds
    assert contents(prompt)[0] == note_of(prompt)
    assert contents(prompt)[1].startswith("question 00004")
    assert sum("question" in str(text) for text in contents(prompt)) == 1
    assert_legal(prompt, 400)


@pytest.mark.parametrize("budget", range(300, 900, 45))
def test_a_long_query_from_an_older_round_has_its_room(budget: int) -> None:
    """What is shown once more is counted once more, wherever the cut falls."""
    memory = Memory()
    memory.create_round(words(150))
    for _ in range(40):
        round_ = memory.create_round("")
        memory.add_post(round_, send_from="assistant", send_to="User", message=words(12))

    prompt = compose(memory, budget=budget)

    assert words(150) in contents(prompt)
    assert len(prompt.messages) > 2
    assert_legal(prompt, budget)


def test_a_session_in_which_the_user_never_speaks_is_cut_like_any_other() -> None:
    """An agent that talks to itself has no query to keep."""
    memory = Memory()
    for number in range(30):
        memory.append(answer(f"{number} {words(30)}"))

    prompt = compose(memory, budget=300)

    assert contents(prompt)[-1].startswith("29")
    assert_legal(prompt, 300)


def test_of_several_user_messages_in_a_row_the_first_and_the_last_stay() -> None:
    """The query of the newest round and the newest words of the user stay whole; what is between may go."""
    memory = Memory.from_messages([user(f"{number} {words(40)}") for number in range(12)])

    prompt = compose(memory, budget=300)

    assert contents(prompt)[1] == f"0 {words(40)}"
    assert contents(prompt)[-1] == f"11 {words(40)}"
    assert prompt.report.omitted_rounds == (1,)
    assert "the posts from r1.p1 to" in note_of(prompt)
    assert_legal(prompt, 300)
