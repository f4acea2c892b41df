"""What a prompt leaves out: whole rounds on a grid, posts of long rounds and the middle of long results, each behind a
reference."""

from __future__ import annotations

import json

import pytest
from chats import (
    answer,
    assert_legal,
    calls,
    chat,
    compacted,
    contents,
    left_out_texts,
    note_of,
    result,
    user,
    words,
)

from compactor import compose, count_message, count_tokens
from memory import Attachment, Memory

# -- leaving out rounds -----------------------------------------------------------------------------------------------


def test_cuts_fall_on_a_fixed_grid() -> None:
    """Promise 2: what is left out ends at the first round behind a whole number of steps, however the tail grows."""
    memory, budget = Memory(), 1_000
    step = int(budget * 0.3)
    ends = []
    for number in range(60):
        memory.append(user(f"{number:05} {words(10 + 7 * (number % 5))}"))
        memory.append(answer(f"{number:05} {words(20)}"))
        prompt = compose(memory, budget=budget)
        ends.append(len(prompt.report.omitted_rounds))
    costs = [count_message(message, count_tokens) for message in memory.messages()]
    before = [sum(costs[: 2 * rounds]) for rounds in range(61)]

    assert len(set(ends)) > 5
    for end in set(ends) - {0}:
        crossed = before[end] // step
        assert crossed > before[end - 1] // step, "the cut is not at the first round behind a mark"


def test_a_cut_is_made_rarely_and_by_a_whole_step() -> None:
    """Between two cuts the prompt only grows, until the next is due."""
    memory, before, changes = Memory(), compose(Memory(), budget=1_000), []
    for number in range(200):
        memory.append(user(f"{number:05} {words(8)}"))
        prompt = compose(memory, budget=1_000)
        if prompt.messages[: len(before.messages)] != before.messages:
            changes.append(number)
            assert before.tokens > 1_000 - 120
            assert prompt.tokens <= 1_000 * 0.7 + 60
        before = prompt
    assert 5 < len(changes) < 15


def test_the_line_says_what_is_left_out_and_how_to_read_it() -> None:
    """Promise 4: the report and the line name the same rounds, and the reference reloads them in full."""
    memory = chat(40)

    prompt = compose(memory, budget=500)

    omitted = prompt.report.omitted_rounds
    assert omitted == tuple(range(1, omitted[-1] + 1))
    assert note_of(prompt).endswith(f"rounds 1 to {omitted[-1]} (reload r1-r{omitted[-1]}).]")
    assert prompt.messages[0]["content"] == note_of(prompt)
    for number in omitted:
        assert f"question {number:05}" in left_out_texts(memory, prompt)
    assert contents(prompt)[1].startswith(f"question {omitted[-1] + 1:05}")
    assert prompt.report.tokens_before > 500 >= prompt.report.tokens_after


def test_one_round_that_is_left_out_is_named_by_its_own_reference() -> None:
    """A range of one is no range."""
    memory = Memory.from_messages([user(words(80)), answer(), user(words(10))])

    assert "rounds 1 to 1 (reload r1)" in note_of(compose(memory, budget=100))


def test_failed_rounds_are_neither_shown_nor_reported() -> None:
    """A failed round is hidden; the others keep the numbers of the log."""
    memory = chat(12)
    rounds = memory.conversation.rounds
    memory.finish_round(rounds[1], "failed")
    memory.finish_round(rounds[9], "failed")

    prompt = compose(memory, budget=300)

    omitted = prompt.report.omitted_rounds
    assert 1 in omitted
    assert 2 not in omitted
    assert all("00002" not in str(text) and "00010" not in str(text) for text in contents(prompt))
    assert_legal(prompt, 300)


def test_a_round_that_fails_after_it_was_counted_costs_nothing_any_more() -> None:
    """What is hidden later makes room again: counts are those of the rounds that are there."""
    memory = chat(12)
    full = compose(memory, budget=10_000)
    memory.finish_round(memory.conversation.rounds[3], "failed")

    prompt = compose(memory, budget=10_000)

    assert_legal(prompt, 10_000)
    assert prompt.tokens < full.tokens


def test_what_is_left_out_is_counted_from_the_end_of_the_compaction() -> None:
    """Covered rounds are not left out: they read as the summary."""
    memory = chat(40)
    compacted(memory, 10, "Ten questions were answered.")

    prompt = compose(memory, budget=600)

    assert prompt.report.omitted_rounds[0] == 11
    assert prompt.tokens > 600 * 0.4
    assert "Ten questions" in prompt.messages[0]["content"]
    assert prompt.messages[1]["content"] == note_of(prompt)
    assert_legal(prompt, 600)


def test_the_compaction_keeps_what_changes_for_its_last_line() -> None:
    """A provider's cache keeps all of a prompt whose summary begins as it did before."""
    memory = chat(6)
    compacted(memory, 2, "One.")
    first = compose(memory, budget=5_000).messages[0]["content"].splitlines()
    compacted(memory, 4, "One.")
    second = compose(memory, budget=5_000).messages[0]["content"].splitlines()

    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]


# -- long rounds ------------------------------------------------------------------------------------------------------


def agent_run(steps: int, tokens: int = 20) -> Memory:
    """Return a session with one query and *steps* calls after it."""
    memory = Memory.from_messages([user("Find the fault.")])
    for number in range(steps):
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", f"{number:05} {words(tokens)}"))
    return memory


def test_the_oldest_posts_of_a_long_round_are_left_out() -> None:
    """Hundreds of small posts after one query: the query and the newest stay, the line says what is gone."""
    memory = agent_run(300)

    prompt = compose(memory, budget=1_000)

    assert contents(prompt)[1] == "Find the fault."
    assert contents(prompt)[-1].startswith("00299")
    assert prompt.tokens > 1_000 * 0.7 - 80
    assert prompt.report.omitted_rounds == (1,)
    assert "00000 word" in left_out_texts(memory, prompt)
    assert_legal(prompt, 1_000)


@pytest.mark.slow
def test_a_long_round_is_cut_as_rarely_as_a_long_conversation() -> None:
    """Within a round, too, the beginning stays until a whole step is due."""
    memory, before, changed = agent_run(1), [], 0
    for number in range(1, 120):
        for message in (calls(f"c{number}"), result(f"c{number}", words(20))):
            memory.append(message)
            prompt = compose(memory, budget=1_500)
            changed += prompt.messages[: len(before)] != before
            before = prompt.messages
    assert 4 < changed < 20


@pytest.mark.parametrize("budget", range(60, 400, 20))
def test_a_cut_never_parts_a_call_from_its_results(budget: int) -> None:
    """Wherever the cut falls, a call goes with all its results."""
    memory = Memory.from_messages([user()])
    for number in range(12):
        memory.append(calls(f"c{number}", f"d{number}"))
        memory.append(result(f"d{number}", words(number)))
        memory.append(result(f"c{number}", words(9)))

    assert_legal(compose(memory, budget=budget), budget)


def test_a_large_result_is_clipped_around_a_reference() -> None:
    """The newest payload is shown with head and tail; the reference between them reloads the original."""
    memory = Memory.from_messages([user(), calls("c")])
    text = "first line\n" + words(5_000) + "\nlast line"
    memory.append(result("c", text))

    prompt = compose(memory, budget=1_000)

    shown = contents(prompt)[-1]
    assert shown.startswith("first line")
    assert shown.endswith("last line")
    (reduced,) = prompt.report.reductions
    assert f"reload {reduced.ref} " in shown
    assert memory.reload(reduced.ref) == text
    assert reduced.tokens_before > 5_000
    assert 450 < reduced.tokens_after == count_message(prompt.messages[-1], count_tokens) <= 520
    assert note_of(prompt) == ""
    assert_legal(prompt, 1_000)


def test_a_clipped_result_stays_while_there_is_room() -> None:
    """What the agent just read does not vanish with its next step."""
    memory = Memory.from_messages([user(), calls("c"), result("c", words(5_000))])
    first = compose(memory, budget=2_000)
    for message in (answer("I see."), calls("d"), result("d", words(100))):
        memory.append(message)
        prompt = compose(memory, budget=2_000)
        assert prompt.messages[: len(first.messages)] == first.messages
    assert_legal(prompt, 2_000)


def test_a_round_with_a_large_result_is_not_left_out_as_a_whole() -> None:
    """The next question finds the answer to the one before: of a round over the budget, its newest posts stay."""
    memory = chat(10)
    for message in (user("Read it."), calls("c"), result("c", words(5_000)), answer("It says 42."), user("And why?")):
        memory.append(message)

    prompt = compose(memory, budget=1_000)

    assert prompt.report.omitted_rounds == tuple(range(1, 11))
    assert contents(prompt)[-5:][:2] == ["Read it.", None]
    assert contents(prompt)[-2:] == ["It says 42.", "And why?"]
    assert [reduced.ref for reduced in prompt.report.reductions] == ["r11.p2"]
    assert_legal(prompt, 1_000)


def test_many_parallel_calls_are_clipped_together() -> None:
    """Results of one step share the room; all of them are shown, each with its reference."""
    ids = [f"c{number}" for number in range(8)]
    memory = Memory.from_messages([user(), calls(*ids)])
    for number, id_ in enumerate(ids):
        memory.append(result(id_, f"{number} {words(800)}"))

    prompt = compose(memory, budget=2_000)

    assert len(prompt.messages) == 10
    assert len(prompt.report.reductions) == 8
    assert prompt.tokens > 1_000
    assert_legal(prompt, 2_000)


def test_results_are_clipped_to_a_line_before_they_are_left_out() -> None:
    """At a tight budget each still says what is there to reload."""
    ids = [f"c{number}" for number in range(8)]
    memory = Memory.from_messages([user(), calls(*ids), *(result(id_, words(800)) for id_ in ids)])

    prompt = compose(memory, budget=700)

    assert [reduced.ref for reduced in prompt.report.reductions] == [f"r1.p{number}" for number in range(2, 10)]
    assert_legal(prompt, 700)


def test_the_newest_step_stays_though_the_mark_lies_behind_it() -> None:
    """Cuts go by whole steps, but never to the point where nothing is left."""
    memory = Memory.from_messages([user(), answer(words(140)), calls("c", "d")])
    memory.append(result("c", words(420)))
    memory.append(result("d", words(420)))

    prompt = compose(memory, budget=1_000)

    assert contents(prompt)[1:] == ["q", None, words(420), words(420)]
    assert "from r1.p1 to r1.p1" in note_of(prompt)
    assert_legal(prompt, 1_000)


def test_calls_without_number_are_left_out_rather_than_refused() -> None:
    """Where not even the shortest form of the newest step fits, it goes too, and the line says so."""
    ids = [f"c{number}" for number in range(200)]
    memory = Memory.from_messages([user(), calls(*ids), *(result(id_, words(10)) for id_ in ids)])

    prompt = compose(memory, budget=300)

    assert contents(prompt)[1:] == ["q"]
    assert note_of(prompt).endswith("the posts from r1.p1 to r1.p201 (reload each by that name).]")
    assert_legal(prompt, 300)


def test_clipped_arguments_are_valid_json() -> None:
    """Providers parse a call's arguments: they are replaced by an object that names the reference."""
    arguments = json.dumps({"rows": list(range(3_000))})
    memory = Memory.from_messages([user(), calls("c", "d", arguments=arguments), result("c"), result("d")])

    prompt = compose(memory, budget=400)

    shown = [json.loads(call["function"]["arguments"]) for call in prompt.messages[1]["tool_calls"]]
    assert [list(one) for one in shown] == [["left_out"], ["left_out"]]
    assert "reload r1.p1" in shown[0]["left_out"]
    assert arguments in memory.reload("r1.p1")
    assert_legal(prompt, 400)


def test_what_a_user_message_carries_is_behind_its_reference() -> None:
    """A query with attachments that is clipped in an older round can be reloaded with them."""
    memory = Memory()
    round_ = memory.create_round("Look at this.")
    file = Attachment(type="file", content=words(900))
    memory.add_post(round_, send_from="User", send_to="assistant", message="Look at this.", attachment_list=(file,))
    memory.add_post(round_, send_from="assistant", send_to="User", message="Seen.")
    memory.create_round("And now?")

    prompt = compose(memory, budget=500)

    (reduced,) = prompt.report.reductions
    assert words(900) in memory.reload(reduced.ref)
    assert contents(prompt)[-2:] == ["Seen.", "And now?"]
