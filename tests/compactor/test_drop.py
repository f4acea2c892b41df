"""``drop``: old posts of a kind leave the prompt, calls and results as one, and what must stay stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import views
from chats import Message, answer, assert_paired, calls, memory_of, result, user, words
from hypothesis import given
from hypothesis import strategies as st
from scene import Heard, ManualExecutor, of_kind
from views import get_token_cache, messages_of, spans

from compactor import (
    Attachment,
    CompactedMessage,
    ContextCompactor,
    ExtractiveSummarizer,
    Post,
    Reduced,
    Reduction,
    Strategy,
    ToolCall,
    Trigger,
    View,
    compose,
    count_tokens,
    drop,
    offload_large,
    over_messages,
    over_tokens,
)
from compactor.testing import FakeClock
from memory import Memory

ROLE = "assistant"
BIG = "Row 1: 17 euros.\n" * 400


def as_if_long(text: str) -> int:
    """Count each text as a long one, but for the line that tells of what was dropped."""
    return count_tokens(text) + 1_000 * (not text.startswith("[Left out here"))


def view_of(memory: Memory, *, role: str = ROLE) -> View:
    return views.view_of(memory, role=role, token_cache=get_token_cache(memory, role, as_if_long))


def reduced(memory: Memory, strategy: Callable[[View], Iterable[Reduction]], *, role: str = ROLE) -> list[Reduction]:
    return views.reduced(memory, strategy, role=role, token_cache=get_token_cache(memory, role, as_if_long))


def shown(memory: Memory, role: str = ROLE) -> list[str]:
    """Return the texts of the tail; a call as its ids."""
    return [
        message["content"] or " ".join(call["id"] for call in message.get("tool_calls", ()))
        for message in messages_of(view_of(memory, role=role))
    ]


def group(name: str, *answered: str) -> list[Message]:
    """A message that calls ``name1`` and so on, and the results."""
    ids = [f"{name}{number}" for number in range(1, len(answered) + 1)]
    return [calls(*ids), *(result(id_, text) for id_, text in zip(ids, answered, strict=True))]


# -- tool results -----------------------------------------------------------------------------------------------------


def test_calls_and_their_results_are_dropped_as_one() -> None:
    """A result without its call, or a call without its results, is refused by providers."""
    memory = memory_of(
        user("q"), *group("a", "r1", "r2"), answer("done"), user("next"), *group("b", "r3"), answer("done too")
    )
    found = reduced(memory, drop("tool_result"))

    assert [(one.kind, one.text) for one in found] == [("dropped", "")] * 2
    assert spans(found) == [(1, 3), (1, 2)]
    assert shown(memory) == ["q", "done", "next", "done too"]


def test_the_newest_blocks_stay() -> None:
    """Parallel calls are one block, however many results they have."""
    said = [user("q"), *group("a", "r1", "r2"), *group("b", "r3"), answer("x"), user("next"), *group("c", "r4", "r5")]

    memory = memory_of(*said)
    assert spans(reduced(memory, drop("tool_result", 2))) == [(1, 3)]
    assert shown(memory) == ["q", "b1", "r3", "x", "next", "c1 c2", "r4", "r5"]
    assert reduced(memory_of(*said), drop("tool_result", 3)) == []


def test_what_stands_together_is_dropped_together() -> None:
    """One overlay for each stretch of a round; what else was said ends it."""
    memory = memory_of(user("q"), *group("a", "1"), *group("b", "2"), answer("so far"), *group("c", "3"), answer("all"))

    assert spans(reduced(memory, drop("tool_result"))) == [(1, 4), (6, 7)]
    assert shown(memory) == ["q", "so far", "all"]


def test_a_call_whose_result_came_late_stays_where_something_stands_between() -> None:
    """An overlay covers all posts from its first to its last, and what was said between is not to go."""
    said = [
        user("q"),
        calls("a"),
        answer("wait"),
        *group("b", "2"),
        result("a", "late"),
        *group("c", "3"),
        calls("w"),
    ]
    memory = memory_of(*said)

    assert spans(reduced(memory, drop("tool_result"))) == [(3, 4), (6, 7)]
    assert shown(memory) == ["q", "a", "late", "wait", "w"]
    assert spans(drop([("assistant", 0), ("tool_result", 0)])(view_of(memory_of(*said)))) == [(3, 4), (6, 7)]


def test_late_results_go_with_all_that_stands_between() -> None:
    """Blocks that are wound into one another are one stretch; and what an earlier rule dropped is no hindrance."""
    wound = [calls("a"), calls("b"), result("a", "1"), result("b", "2")]

    assert spans(reduced(memory_of(user("q"), *wound, answer("x")), drop("tool_result"))) == [(1, 4)]
    assert reduced(memory_of(user("q"), *wound, answer("x")), drop("tool_result", 1)) == []
    memory = memory_of(user("q"), calls("a"), answer("wait"), result("a", "late"), answer("done"), user("x"))
    assert spans(reduced(memory, drop([("assistant", 0), ("tool_result", 0)]))) == [(2, 2), (1, 3)]
    assert shown(memory) == ["q", "done", "x"]


def test_results_without_a_call_and_calls_without_a_result_are_blocks_too() -> None:
    """So are functions' results, the form that came before tool calls."""
    function = {"role": "function", "name": "f", "content": "called"}
    memory = memory_of(
        user("q"), calls("a"), user("w"), result("zz", "orphan"), answer("calling"), function, user("x"), answer("y")
    )

    assert spans(reduced(memory, drop("tool_result"))) == [(1, 1), (1, 3)]
    assert shown(memory) == ["q", "w", "x", "y"]


def test_open_calls_stay() -> None:
    """The host is about to run them; all that is there of a group waits with it."""
    memory = memory_of(user("q"), *group("a", "1"), calls("b", "c"), result("b", "2"))

    assert spans(reduced(memory, drop("tool_result"))) == [(1, 2)]
    memory.append(result("c", "3"))
    memory.append(answer("Both."))
    assert spans(reduced(memory, drop("tool_result"))) == [(3, 5)]


def test_what_the_agent_has_not_gone_on_from_stays() -> None:
    """The newest post of an open round, by number and by its place in the prompt; or it was made for nobody."""
    memory = memory_of(user("q"), *group("a", "1"), *group("b", "2"))
    assert spans(reduced(memory, drop("tool_result"))) == [(1, 2)]

    wound = memory_of(user("q"), calls("a"), *group("b", "1"), calls("c"), answer("Wait."), result("a", "late"))
    assert shown(wound) == ["q", "a", "late", "b1", "1", "c", "[No result was recorded for this tool call.]", "Wait."]
    assert spans(reduced(wound, drop([("assistant", 0), ("tool_result", 0)]))) == [(2, 4)]

    memory.finish_round(memory.conversation.rounds[0])
    assert reduced(memory, drop("tool_result")) == []
    memory.append(answer("Read."))
    assert spans(reduced(memory, drop("tool_result"))) == [(3, 4)]


# -- other kinds ------------------------------------------------------------------------------------------------------


def test_what_the_role_said_goes_but_its_latest_answer_to_the_user() -> None:
    """Words that come with a call are the call's block's."""
    spoken = {**calls("a"), "content": "I look."}
    memory = memory_of(
        user("q"), answer("one"), user("r"), answer("two"), user("s"), spoken, result("a", "1"), user("t")
    )

    assert len(reduced(memory, drop("assistant"))) == 1
    assert shown(memory) == ["q", "r", "two", "s", "I look.", "1", "t"]


def test_the_latest_answer_counts_among_those_that_stay() -> None:
    """``keep_recent`` is the number that is left."""
    said = [message for number in range(5) for message in (user(f"q{number}"), answer(f"a{number}"))]
    memory = memory_of(*said)

    reduced(memory, drop("assistant", 2))
    assert [text for text in shown(memory) if text.startswith("a")] == ["a3", "a4"]


def test_other_agents_are_not_the_assistant() -> None:
    """What they said is of their posts' own kind."""
    memory = Memory("s")
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="Planner", send_to="Coder", message="Count.", kind="order")
    memory.add_post(round_, send_from="Coder", send_to="Planner", message="Seven.", kind="report")
    memory.add_post(round_, send_from="Planner", send_to="User", message="Seven.")
    memory.finish_round(round_)

    assert spans(drop("assistant")(view_of(memory, role="Planner"))) == [(1, 1)]
    assert spans(drop("report")(view_of(memory, role="Planner"))) == [(2, 2)]
    assert spans(drop("assistant")(view_of(memory, role="Coder"))) == [(2, 2)]


def test_calls_of_another_agent_are_words() -> None:
    """A role reads them as text; its own alone are calls."""
    memory = Memory("s")
    round_ = memory.create_round("q")
    run = ToolCall(id="a", name="run")
    memory.add_post(round_, send_from="Coder", send_to="Planner", message="I run it.", tool_calls=(run,))
    memory.finish_round(round_)

    assert list(drop("tool_result")(view_of(memory, role="Planner"))) == []
    assert spans(drop("tool_result")(view_of(memory, role="Coder"))) == [(1, 1)]


def test_what_the_user_said_goes_but_the_newest_query() -> None:
    """All that he said in the round where he last spoke is the newest query."""
    memory = memory_of(user("q1"), answer("a1"), user("q2"), answer("a2"), user("q3"), answer("a3"))
    memory.append(user("q4"))
    memory.add_post(memory.conversation.rounds[-1], send_from="User", send_to=ROLE, message="and this")

    assert len(reduced(memory, drop("user", 3))) == 2
    assert shown(memory) == ["a1", "a2", "q3", "a3", "q4", "and this"]
    assert [(one.first_post_id, one.last_post_id) for one in reduced(memory, drop("user"))] == [("", "")]
    assert shown(memory) == ["a1", "a2", "a3", "q4", "and this"]


def test_what_the_user_forbade_stays() -> None:
    """An agent that no longer reads it does it."""
    memory = memory_of(user("Sum it up."), answer("x"), user("Never delete the archive."), answer("y"), user("z"))

    reduced(memory, drop([("user", 0), ("message", 0)]))
    assert shown(memory) == ["Never delete the archive.", "y", "z"]


def test_a_query_goes_with_the_post_that_hands_it_on() -> None:
    """Or it would be shown after all."""
    memory = Memory("s")
    for number in range(3):
        round_ = memory.create_round(f"q{number}")
        file = (Attachment(type="file", content="text"),) if number == 1 else ()
        memory.add_post(round_, send_from="User", send_to="Planner", message=round_.user_query, attachment_list=file)
        memory.add_post(round_, send_from="Planner", send_to="User", message=f"a{number}")
        memory.finish_round(round_)

    assert spans(reduced(memory, drop("user"), role="Planner")) == [(0, 1), (0, 1)]
    assert shown(memory, "Planner") == ["a0", "a1", "q2", "a2"]


def test_a_hosts_own_kind() -> None:
    """Posts of that kind go, whoever sent them; the newest so many stay."""
    memory = Memory("s")
    for number in range(3):
        round_ = memory.create_round(f"q{number}")
        memory.add_post(round_, send_from="system", send_to=ROLE, message=f"skill {number}", kind="skill_prompt")
        memory.add_post(round_, send_from="User", send_to=ROLE, message=f"hint {number}", kind="skill_prompt")
        memory.add_post(round_, send_from=ROLE, send_to="User", message=f"a{number}")

    assert spans(reduced(memory, drop("skill_prompt", 3))) == [(1, 2), (1, 1)]
    assert shown(memory) == ["q0", "a0", "q1", "hint 1", "a1", "q2", "skill 2", "hint 2", "a2"]
    assert spans(reduced(memory, drop("skill_prompt"))) == [(2, 2), (1, 1)]
    assert "hint 2" in shown(memory)


@pytest.mark.parametrize(("kinds", "dropped"), [(("page", "page"), True), (("page", "message"), False)])
def test_a_block_goes_where_all_its_results_are_of_a_kind(kinds: tuple[str, str], dropped: bool) -> None:
    """Or else another result would go with it."""
    memory = memory_of(user("q"), calls("a", "b"))
    round_ = memory.conversation.rounds[0]
    for id_, kind in zip("ab", kinds, strict=True):
        memory.add_post(round_, send_from="tool", send_to=ROLE, message="r", tool_call_id=id_, kind=kind)
    memory.append(answer("x"))

    assert spans(drop("page")(view_of(memory))) == ([(1, 3)] if dropped else [])


# -- attachments ------------------------------------------------------------------------------------------------------

PLAN = Attachment(type="plan", content="Step. " * 100)
CODE = Attachment(type="code", content="x = 1\n" * 100)


def with_attachments(rounds: int = 3, message: str = "Here.") -> Memory:
    memory = Memory("s")
    for number in range(rounds):
        round_ = memory.create_round(f"q{number}")
        carried: tuple[Attachment, ...] = (PLAN, CODE, PLAN)
        memory.add_post(round_, send_from=ROLE, send_to="Coder", message=message, attachment_list=carried)
        memory.add_post(round_, send_from=ROLE, send_to="User", message="Done.", attachment_list=(PLAN,))
        memory.finish_round(round_)
    return memory


def test_a_post_reads_without_attachments_of_a_type() -> None:
    """A line says how much it was and reloads it; other attachments and the message stay."""
    memory = with_attachments(1)
    (reduction,) = reduced(memory, drop("attachment:plan"))

    assert reduction.kind == "offloaded"
    line = "[2 × plan, 1,200 characters, left out here and kept in full; reload r1.p1]"
    assert reduction.text == f"Here.\n\n[code]\n{CODE.content}\n\n{line}"
    assert PLAN.content in memory.reload("r1.p1")
    assert shown(memory)[1] == reduction.text


def test_the_newest_attachments_stay() -> None:
    """As many posts as ``keep_recent`` says; the latest answer keeps its own in any case."""
    memory = with_attachments()

    assert spans(reduced(memory, drop("attachment:plan", 3))) == [(1, 1), (2, 2), (1, 1)]
    assert spans(reduced(memory, drop("attachment:plan", 0))) == [(2, 2), (1, 1)]
    assert "[plan]" in shown(memory)[-1]
    assert reduced(memory, drop("attachment:plan", 0)) == []


def test_attachments_of_several_types_leave_a_post_at_once() -> None:
    """A post is overlaid once; each type has a line of its own."""
    memory = with_attachments(2, message="")
    first, *others = reduced(memory, drop([("attachment:plan", 2), ("attachment:code", 0), ("user", 0)]))

    assert first.text == (
        "[2 × plan, 1,200 characters, left out here and kept in full; reload r1.p1]\n\n"
        "[code, 600 characters, left out here and kept in full; reload r1.p1]"
    )
    assert [(one.kind, one.first_number) for one in others] == [("offloaded", 2), ("offloaded", 1), ("dropped", 0)]
    assert others[1].text.startswith("[plan]\n")


def test_a_post_that_lost_its_attachments_is_not_dropped_at_once() -> None:
    """The log would ignore an overlay on just what another covers: two rules are one too many for it."""
    memory = with_attachments(2)

    found = reduced(memory, drop([("attachment:plan", 1), ("attachment:code", 0), ("user", 0), ("assistant", 0)]))
    assert [(one.kind, one.first_number, one.last_number) for one in found[-2:]] == [
        ("dropped", 0, 0),
        ("dropped", 1, 2),
    ]
    alone = Memory("s")
    round_ = alone.create_round("q")
    alone.add_post(round_, send_from=ROLE, send_to="Coder", message="Here.", attachment_list=(PLAN,))
    alone.finish_round(round_)
    assert [one.kind for one in reduced(alone, drop([("attachment:plan", 0), ("assistant", 0)]))] == ["offloaded"]


def test_a_short_attachment_stays() -> None:
    """The line that stands for it would be longer."""
    memory = Memory("s")
    round_ = memory.create_round("q")
    tiny = (Attachment(type="plan", content="Go."),)
    memory.add_post(round_, send_from=ROLE, send_to="Coder", message="Here.", attachment_list=tiny)
    memory.finish_round(round_)

    assert list(drop("attachment:plan")(view_of(memory))) == []


def test_the_query_loses_its_attachments_but_the_newest() -> None:
    """They hang on the post that hands the query on."""
    memory = Memory("s")
    for number in range(2):
        round_ = memory.create_round(f"q{number}")
        memory.add_post(round_, send_from="User", send_to="Planner", message=round_.user_query, attachment_list=(PLAN,))
    (reduction,) = reduced(memory, drop("attachment:plan"), role="Planner")

    assert shown(memory, "Planner")[0] == reduction.text
    assert reduction.text.startswith("q0\n\n[plan, 600 characters")
    assert PLAN.content in shown(memory, "Planner")[1]


# -- what stays whatever the rules say --------------------------------------------------------------------------------


def test_pins_and_summaries_stay() -> None:
    """A pinned block as a whole, and what stands for others already."""
    memory = memory_of(
        user("q"), *group("a", "1"), *group("b", "2"), *group("c", "3"), answer("x"), user("y"), answer("z")
    )
    memory.pin("r1.p2")
    round_ = memory.conversation.rounds[0]
    summary = Reduction.over(round_, round_.post_list[2:4], "summarised", "Two was found. Reload r1.p3-p4.")
    memory.journal(ROLE).reduce(summary, base=0)

    assert spans(reduced(memory, drop([("tool_result", 0), ("assistant", 0), ("user", 0), ("summary", 0)]))) == [
        (5, 6),
        (7, 7),
        (0, 0),
    ]
    assert shown(memory) == ["a1", "1", summary.text, "y", "z"]


def test_covered_rounds_are_not_looked_at() -> None:
    """They read as the compaction; and a header is in no round."""
    memory = memory_of(
        {"role": "system", "content": "Be kind."}, user("q"), *group("a", "1"), user("r"), *group("b", "2")
    )
    memory.append(answer("s"))
    first = memory.conversation.rounds[0]
    compaction = CompactedMessage(start_index=1, end_index=1, summary="S.", end_round_id=first.id)
    memory.journal(ROLE).publish(compaction, base=0, round_ids=[first.id])

    assert [one.round_id for one in reduced(memory, drop("tool_result"))] == [memory.conversation.rounds[1].id]
    assert [message["content"] for message in memory.messages() if message["role"] == "system"] == ["Be kind."]


def test_a_post_that_is_offloaded_alone_is_not_dropped_alone() -> None:
    """The log ignores an overlay on just what another covers; with its neighbours it goes."""
    said = [user("q"), answer(BIG), user("r"), *group("a", BIG), user("s"), answer("x")]
    memory = memory_of(*said)
    assert len(reduced(memory, offload_large())) == 2

    assert spans(reduced(memory, drop([("assistant", 0), ("tool_result", 0)]))) == [(1, 2)]
    assert list(drop("assistant")(view_of(memory))) == []
    assert len(shown(memory)) == 5


@pytest.mark.slow
def test_real_dialogues_keep_calls_with_their_results(data: list[dict[str, Any]]) -> None:
    """Forty of them as one conversation: under all rules, little but the newest is left, and it is in order."""
    memory = memory_of(*(message for one in data[:40] for message in one["messages"] if message["role"] != "system"))
    before = view_of(memory).tokens

    for strategy in (offload_large(400, preview=50), drop([("tool_result", 3), ("assistant", 5), ("user", 5)])):
        assert reduced(memory, strategy)
        assert_paired(messages_of(view_of(memory)))
    left = messages_of(view_of(memory))
    assert view_of(memory).tokens < before // 10
    assert sum(message["role"] == "tool" for message in left) >= 3
    assert left[-1]["content"] == data[39]["messages"][-1]["content"]


# -- rules ------------------------------------------------------------------------------------------------------------


def test_rules_apply_in_their_order() -> None:
    """Each to what the ones before it have left; each with its own number to keep."""
    memory = memory_of(user("q"), *group("a", "1"), answer("x"), user("r"), *group("b", "2"), answer("y"), user("s"))
    rules = [("assistant", 0), ("tool_result", 1), ("user", 2)]
    found = reduced(memory, drop(rules))

    assert spans(found) == [(3, 3), (1, 2), (0, 0)]
    assert shown(memory) == ["r", "b1", "2", "y", "s"]


def test_one_strategy_for_each_rule_comes_to_the_same() -> None:
    """Which lets the trigger be asked in between."""
    said = [user("q"), *group("a", "1"), answer("x"), user("r"), *group("b", "2"), answer("y"), user("s")]
    rules = [("assistant", 0), ("tool_result", 1), ("user", 2)]
    at_once, one_by_one = memory_of(*said), memory_of(*said)

    reduced(at_once, drop(rules))
    for rule in rules:
        reduced(one_by_one, drop(*rule))
    assert shown(at_once) == shown(one_by_one)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "a kind is a name"),
        (("attachment:",), "a kind is a name"),
        (([(7, 1)],), "a kind is a name"),
        (("user", -1), "keep_recent: must be a whole number"),
        (([("user", 1.5)],), "keep_recent: must be a whole number"),
        (([("user", 1)], 3), "each has its own keep_recent"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(arguments: tuple[Any, ...], said: str) -> None:
    """Not in the middle of a cycle."""
    with pytest.raises(ValueError, match=said):
        drop(*arguments)


def test_a_strategy_is_named_after_its_rules() -> None:
    """Reports and events tell them apart by it."""
    assert drop("user", 3).__name__ == "drop(user)"
    assert drop([("tool_result", 3), ("attachment:plan", 0)]).__name__ == "drop(tool_result, attachment:plan)"


def in_background(memory: Memory, due: int | Trigger, *strategies: Strategy) -> list[str]:
    """Return the names of the *strategies* that reduced posts until none was *due*, or at most so many tokens left."""
    heard = Heard()
    executor = ManualExecutor()
    compactor = ContextCompactor.for_role(
        memory,
        ROLE,
        summarizer=ExtractiveSummarizer(),
        strategies=strategies,
        trigger=over_tokens(due) if isinstance(due, int) else due,
        executor=executor,
        clock=FakeClock(),
        on_event=heard,
    )
    with compactor:
        executor.run_all()
    return [event.strategy for event in of_kind(heard.events, Reduced)]


def test_a_compactor_stops_between_rules_when_the_trigger_no_longer_holds() -> None:
    """Light to heavy: large payloads, then old tool results, and only then what was said."""
    said = [user("q"), *group("a", BIG), answer(words(300)), user("r"), answer(words(300)), user("s"), answer("x")]
    strategies = (offload_large(), drop("tool_result"), drop("assistant"))

    assert in_background(memory_of(*said), 1_000, *strategies) == ["offload_large"]
    assert in_background(memory_of(*said), 640, *strategies) == ["offload_large", "drop(tool_result)"]
    assert in_background(memory_of(*said), 500, *strategies)[2:] == ["drop(assistant)"] * 2


# -- the line that tells of what was dropped --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["assistant", "user", "tool_result"])
def test_what_is_shorter_than_the_line_that_tells_of_it_stays(kind: str) -> None:
    """No compaction makes a prompt longer."""
    memory = memory_of(user("q"), *group("a", "1"), answer("so"), user("r"), answer("done"), user("s"))
    before = compose(memory, budget=10**6)

    assert in_background(memory, 1, drop(kind)) == []
    assert compose(memory, budget=10**6).messages == before.messages


def test_what_is_short_goes_where_prompts_have_the_line_already() -> None:
    """One line tells of all that was dropped, whichever strategy dropped it."""
    memory = memory_of(user("q"), *group("a", BIG), answer("so"), user("r"), answer("done"), user("s"))
    before = compose(memory, budget=10**6).tokens

    assert in_background(memory, 1, drop("assistant"), drop("tool_result"), drop("assistant")) == [
        "drop(tool_result)",
        "drop(assistant)",
    ]
    assert compose(memory, budget=10**6).tokens < before


def test_short_posts_go_together_where_they_are_longer_than_the_line() -> None:
    """All that one strategy drops counts, whichever of its rules it is dropped by."""
    said = [message for number in range(30) for message in (user(f"q{number}"), answer(f"a{number}"))]
    memory = memory_of(*said)
    before = compose(memory, budget=10**6).tokens

    assert len(in_background(memory, 1, drop([("user", 0), ("assistant", 0)]))) == 58
    assert compose(memory, budget=10**6).tokens < before


def test_attachments_leave_though_nothing_else_is_dropped() -> None:
    """A line in their own post tells of them."""
    memory = Memory("s")
    for number in range(2):
        round_ = memory.create_round(f"q{number}")
        memory.add_post(round_, send_from="User", send_to=ROLE, message=f"q{number}")
        memory.add_post(
            round_,
            send_from=ROLE,
            send_to="User",
            message="so",
            attachment_list=(Attachment(id="a", type="plan", content=words(300)),),
        )
        memory.finish_round(round_)

    rules = [("user", 0), ("attachment:plan", 1)]
    assert [one.kind for one in views.reduced(memory, drop(rules))] == ["offloaded"]


def test_short_posts_go_where_only_messages_are_too_many() -> None:
    """Fewer messages is what the trigger asks for."""
    memory = memory_of(user("q"), *group("a", "1"), answer("so"), user("r"), answer("done"), user("s"))

    assert in_background(memory, over_messages(4), drop("tool_result")) == ["drop(tool_result)"]


# -- whatever is said -------------------------------------------------------------------------------------------------

KINDS = ("tool_result", "assistant", "user", "attachment:plan", "note")


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """Parallel calls, results late and missing, attachments, a host's kinds, a query handed on, pins, a summary."""
    memory = Memory("s")
    for _ in range(draw(st.integers(1, 9))):
        here = memory.conversation.rounds[-1] if memory.conversation.rounds else None
        match draw(st.integers(0, 5)):
            case 0:
                memory.append(user(words(draw(st.integers(0, 30)))))
            case 1:
                memory.append(answer(draw(st.sampled_from(["", "so", BIG]))))
            case 2 if here is not None and not here.closed:
                carried = draw(st.lists(st.sampled_from([PLAN, CODE]), max_size=2))
                sender = draw(st.sampled_from([ROLE, "Coder", "User"]))
                kind = draw(st.sampled_from(["message", "note", "approval_request"]))
                message = here.user_query if not here.post_list and draw(st.booleans()) else "Look."
                memory.add_post(
                    here, send_from=sender, send_to=ROLE, message=message, kind=kind, attachment_list=tuple(carried)
                )
            case _:
                asked = [f"c{draw(st.integers(0, 10**6))}" for _ in range(draw(st.integers(1, 3)))]
                memory.append(calls(*asked))
                for id_ in draw(st.permutations(asked))[draw(st.integers(0, 1)) :]:
                    if draw(st.integers(0, 5)) == 0:
                        memory.append(answer("between"))
                    memory.append(result(id_, words(draw(st.integers(1, 80)))))
    places = [(round_, post) for round_ in memory.conversation.rounds for post in round_.post_list]
    if places and draw(st.booleans()):
        round_, post = draw(st.sampled_from(places))
        memory.pin(f"r{round_.number}.p{post.number}")
    return memory


rules = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=4)


@given(memories(), rules, st.booleans())
def test_whatever_is_said_what_must_stay_stays(memory: Memory, rules: list[tuple[str, int]], offload: bool) -> None:
    """No overlay is ignored or torn, calls keep their results, query, pins and latest answer stay whole, references
    reload the original; and it comes to an end: what a rule drops may let an earlier one drop more, once."""
    before = view_of(memory)
    kept = must_stay(memory, before)
    if offload:
        reduced(memory, offload_large(keep_last=2, threshold=300))
    found = reduced(memory, drop(rules))
    after = view_of(memory)

    assert_paired(messages_of(after))
    assert after.tokens <= before.tokens
    for message in kept:
        assert message in messages_of(after)
    assert all(one.kind == "dropped" or one.text for one in found)
    for text in shown(memory):
        for ref in re.findall(r"reload (r\d+\.p\d+)", text):
            assert memory.reload(ref)
    for _ in rules:
        reduced(memory, drop(rules))
    assert reduced(memory, drop(rules)) == []


def must_stay(memory: Memory, view: View) -> list[Message]:
    """Return the messages of the newest query and of the latest answer to the user, and what is pinned or waits."""
    groups = [(place, unit) for place in view.places for _, unit in view.list_groups(place)]
    stays = [unit for place, unit in groups if not view.is_reducible(view.get_round(place), unit)]
    asked = max((place for place, unit in groups if unit.from_user), default=-1)
    kept = stays + [unit for place, unit in groups if unit.from_user and place == asked]
    said = [unit for _, unit in groups if len(unit.posts) == 1 and unit.posts[0] and _is_answer(unit.posts[0])]
    return [message for unit in (*kept, *said[-1:]) for message in unit.messages]


def _is_answer(post: Post) -> bool:
    return post.send_from == ROLE and post.send_to == "User" and not post.tool_calls


# -- what failed, and the newest rounds -------------------------------------------------------------------------------


def test_failed_calls_go_with_their_errors() -> None:
    """What came of the others stays, and the newest failures where that is asked for."""
    memory = memory_of(
        user("Book it."),
        calls("a"),
        result("a", "Error: payment method gift_card_1 not found"),
        calls("b"),
        result("b", '{"error": "no seats left"}'),
        calls("c"),
        result("c", '{"booked": "K1NW8N"}'),
        calls("d"),
        result("d", "Traceback (most recent call last):\nKeyError: 'x'"),
        answer("Booked."),
        user("Thanks."),
    )
    reduced(memory, drop("failed_call", 1))
    results = [m["content"] for m in compose(memory, budget=100_000).messages if m["role"] == "tool"]
    assert results == ['{"booked": "K1NW8N"}', "Traceback (most recent call last):\nKeyError: 'x'"]


def test_a_call_goes_only_where_all_its_results_failed() -> None:
    memory = memory_of(
        user("q"), calls("a", "b"), result("a", "Error: no such file"), result("b", "ok"), answer("a"), user("n")
    )
    assert reduced(memory, drop("FAILED_CALL")) == []


def test_what_was_said_in_the_newest_rounds_is_protected() -> None:
    """Calls and results leave from there, too: they are no dialogue."""
    memory = memory_of(
        *(message for n in range(6) for message in (user(f"q{n}"), *group(f"g{n}", "x"), answer(f"a{n}")))
    )
    reduced(memory, drop([("user", 0), ("assistant", 0), ("tool_result", 0)], keep_rounds=3))
    said = [m["content"] for m in compose(memory, budget=100_000).messages if m["role"] in ("user", "assistant")]
    assert [text for text in said if text in {f"{who}{n}" for who in "qa" for n in range(6)}] == [
        "q3",
        "a3",
        "q4",
        "a4",
        "q5",
        "a5",
    ]
