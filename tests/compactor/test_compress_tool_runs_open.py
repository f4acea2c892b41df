"""Tool calls of the open round: summarised once they were read, a new summary in the place of the old one."""

from __future__ import annotations

import pytest
from chats import Message, answer, calls, result, user, words
from scene import text_of
from tool_runs import CURRENT, LONG, ON, ROLE, apply, memory_of, pairs, quoted, references, shown
from views import spans

from compactor import InMemoryStore, compress_tool_runs, count_message, count_tokens
from compactor.testing import ScriptedSummarizer
from memory import Memory, Reduction


def test_the_open_rounds_calls_become_one_summary() -> None:
    """The query, the call that waits and what the role said before and after stay as they are."""
    memory = memory_of(user("Find it."), answer("Looking."), *pairs(5), answer("Nearly."), calls("w"), closed=False)
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(2, 11)]
    assert request.kind == "tool_run"
    messages = shown(memory)
    assert [message["content"] for message in messages[:2]] == ["Find it.", "Looking."]
    assert str(messages[2]["content"]).startswith("[Summary of tool calls that were made already")
    assert messages[3:] == [answer("Nearly."), calls("w")]


def test_what_the_role_said_between_its_calls_goes_with_them() -> None:
    """To the next call it is but a thought; the model reads it."""
    memory = memory_of(user(), *pairs(2), answer("That was Oslo."), *pairs(2, 2), ON, closed=False)
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 9)]
    assert "That was Oslo." in quoted(request)


@pytest.mark.parametrize("speaker", ["User", "system", "Critic"])
def test_what_anybody_else_said_ends_a_run(speaker: str) -> None:
    """It stays word for word, between two summaries."""
    memory = memory_of(user(), *pairs(3), closed=False)
    memory.add_post(memory.conversation.rounds[0], send_from=speaker, send_to=ROLE, message="Only with stops.")
    for message in (*pairs(3, 3), ON):
        memory.append(message)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6), (8, 13)]
    (kept,) = [message for message in shown(memory) if "Only with stops." in str(message["content"])]
    assert "Summary" not in kept["content"]


def test_a_new_summary_contains_the_old_one_and_takes_its_place() -> None:
    """Made from the old text and the new calls alone: nothing is paid for twice."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    apply(memory, CURRENT, lambda _request: "First: {f} was called.")
    for message in (*pairs(3, 4), ON):
        memory.append(message)
    (second,), (request,) = apply(memory, CURRENT, lambda _request: "Second: f was called on.")
    assert spans([second]) == [(1, 15)]
    assert request.previous is not None
    assert request.previous.summary == "First: {f} was called."
    assert [post.number for part in request.rounds for post in part.post_list] == list(range(9, 16))
    assert "<previous_summary>\nFirst: {f} was called.\n</previous_summary>" in text_of(request)
    assert [message["content"].splitlines()[-1] for message in shown(memory)] == [
        "q",
        "Second: f was called on.",
        "On.",
    ]
    assert references(shown(memory)) == ["r1.p1-p15"]


def test_each_run_has_its_own_earlier_summary() -> None:
    """Also where what is new stands before it: the pin that kept a call was taken away."""
    memory = memory_of(user(), *pairs(9), closed=False)
    memory.pin("r1.p2")
    memory.add_post(memory.conversation.rounds[0], send_from="User", send_to=ROLE, message="And?")
    for message in (*pairs(4, 9), ON):
        memory.append(message)
    made, _ = apply(memory, CURRENT, ScriptedSummarizer(["f was called first.", "f was called again."]))
    assert spans(made) == [(3, 18), (20, 27)]
    memory.unpin("r1.p2")
    for message in (*pairs(4, 13), ON):
        memory.append(message)
    made, requests = apply(memory, CURRENT)
    assert spans(made) == [(1, 18), (20, 36)]
    assert [request.previous.summary for request in requests if request.previous] == [
        "f was called first.",
        "f was called again.",
    ]


def test_a_summary_alone_is_not_made_shorter() -> None:
    """However full the prompt is: it would lose a little each time."""
    memory = memory_of(user(), *pairs(8), ON, closed=False)
    apply(memory, CURRENT, lambda _request: words(300))
    assert apply(memory, CURRENT, token_threshold=150) == ([], [])


def test_a_hosts_own_summary_is_taken_in_whole() -> None:
    """It has no line above it that says what it is."""
    memory = memory_of(user(), *pairs(6), ON, closed=False)
    round_ = memory.conversation.rounds[0]
    own = Reduction.over(round_, round_.post_list[:4], "summarised", "One line of the host's: ok.")
    assert memory.journal(ROLE).reduce(own, base=0) is not None
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 12)]
    assert request.previous is not None
    assert request.previous.summary == "One line of the host's: ok."


def test_nothing_is_asked_where_there_is_nothing_new() -> None:
    """No call but those that are summarised; words alone are none."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]
    for more in ([], [answer("Thinking.")], [calls("w")]):
        for message in more:
            memory.append(message)
        assert apply(memory, CURRENT) == ([], [])


def test_a_summary_of_a_summary_is_not_made_shorter_each_time() -> None:
    """Its target is as long as the one before, and a share of what is new."""
    memory = memory_of(user(), closed=False)
    for step in range(4):
        for message in (*pairs(4, 4 * step), ON):
            memory.append(message)
        read = [*pairs(4, 4 * step), *([ON] if step else [])]  # what it said before these calls
        new = int(0.3 * sum(count_message(message, count_tokens) for message in read))
        _, (request,) = apply(memory, CURRENT, ScriptedSummarizer([words(100 * step + 90)]))
        assert request.target_tokens == (100 * (step - 1) + 90 if step else 0) + new


@pytest.mark.parametrize("reread", [True, False])
def test_what_was_offloaded_is_read_in_full_again_unless_it_is_not_to_be(reread: bool) -> None:
    """Whoever offloads on purpose need not pay for the whole text after all."""
    memory = memory_of(user(), *pairs(4), ON, closed=False)
    round_ = memory.conversation.rounds[0]
    offloaded = Reduction.over(round_, [round_.post_list[1]], "offloaded", "[200 characters; reload r1.p2]")
    assert memory.journal(ROLE).reduce(offloaded, base=0) is not None
    (reduction,), (request,) = apply(memory, compress_tool_runs(scope="current", reread=reread))
    assert spans([reduction]) == [(1, 8)]
    assert (f"c0: {LONG}" in quoted(request)) is reread
    assert ("reload r1.p2" in quoted(request)) is not reread


def test_a_few_new_calls_beside_a_long_summary_wait_for_more() -> None:
    """All would be read and written anew, to save next to nothing."""
    memory = memory_of(user(), *pairs(8), ON, closed=False)
    apply(memory, CURRENT, lambda _request: words(390))
    for message in (*pairs(1, 8, text=words(20)), ON):
        memory.append(message)
    assert apply(memory, CURRENT) == ([], [])
    for message in (*pairs(1, 9), ON):
        memory.append(message)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 22)]


def test_results_that_the_role_has_yet_to_read_stay_with_their_call() -> None:
    """Until it has said something after them, be it another call."""
    memory = memory_of(user(), *pairs(4), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    assert shown(memory)[2:] == pairs(1, 3)
    memory.append(calls("w"))
    (reduction,), (request,) = apply(memory, CURRENT)
    assert spans([reduction]) == [(1, 8)]
    assert f"c3: {LONG}" in quoted(request)


def test_parallel_results_stay_until_all_are_there_and_read() -> None:
    """Also where the others are answered, and where what came between is another's."""
    memory = memory_of(user(), *pairs(3), calls("a", "b", "c"), result("b", LONG), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    for more in (result("a", LONG), result("c", LONG)):
        memory.append(more)
        assert apply(memory, CURRENT) == ([], [])
    memory.add_post(memory.conversation.rounds[0], send_from="Critic", send_to=ROLE, message="Hurry.")
    assert apply(memory, CURRENT) == ([], [])
    assert shown(memory)[2:6] == [calls("a", "b", "c"), result("b", LONG), result("a", LONG), result("c", LONG)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 10)]


def test_a_partly_answered_call_that_was_passed_over_goes_when_it_was_read() -> None:
    """The role went on without the rest; so it has read what there is."""
    memory = memory_of(user(), *pairs(3), calls("a", "b"), result("a", LONG), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]


def test_a_late_result_of_an_earlier_call_is_unread_too() -> None:
    """It came behind what the role said last: it stays, with its call and what stands between."""
    memory = memory_of(user(), *pairs(3), calls("late"), *pairs(1, 3), ON, result("late", LONG), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 11)]


def test_results_that_answer_no_call_are_unread_too() -> None:
    """Two of them are a run, once the role has gone on."""
    late = [result("x", LONG), result("y", LONG)]
    memory = memory_of(user(), *pairs(3), ON, *late, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 6)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 9)]


def test_the_newest_posts_of_the_open_round_may_be_kept() -> None:
    """The agent may still work with them though it has read them."""
    memory = memory_of(user(), *pairs(6), ON, closed=False)
    assert spans(apply(memory, compress_tool_runs(keep_last=2, scope="current"))[0]) == [(1, 10)]


def test_what_was_reloaded_stays_while_the_round_is_open() -> None:
    """Or the agent would reload it again, without end."""
    reload = {"id": "x", "type": "function", "function": {"name": "context_reload", "arguments": '{"ref": "r1.p2"}'}}
    asked: Message = {"role": "assistant", "content": None, "tool_calls": [reload]}
    memory = memory_of(user(), *pairs(4), asked, result("x", LONG), *pairs(4, 4), ON, closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8), (11, 18)]
    assert result("x", LONG) in shown(memory)


def test_only_the_round_that_is_open_has_a_current_scope() -> None:
    """Nothing in a closed one, and nothing where there is none."""
    assert apply(memory_of(user(), *pairs(9)), CURRENT) == ([], [])
    assert apply(Memory("s"), CURRENT) == ([], [])
    assert apply(memory_of(user(), closed=False), CURRENT) == ([], [])
    store = InMemoryStore()
    elsewhere, here = Memory("s", store=store), Memory("s", store=store)
    elsewhere.create_round("still open")
    memory_round = here.create_round("and this one is done")
    for message in pairs(4):
        here.append(message)
    here.finish_round(memory_round)
    assert apply(here, CURRENT) == ([], [])


def test_calls_in_the_form_before_tool_calls_are_calls() -> None:
    """A result of that form has no id; it stands behind what asked for it."""
    asked = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}}
    given = {"role": "function", "name": "g", "content": LONG}
    memory = memory_of(user(), *([asked, given] * 5), closed=False)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 8)]
    memory.append(ON)
    assert spans(apply(memory, CURRENT)[0]) == [(1, 10)]


def test_a_late_result_alone_is_left_as_it_is() -> None:
    """There is no run of one."""
    memory = memory_of(user(), result("nobody", words(500)), closed=False)
    assert apply(memory, CURRENT) == ([], [])
