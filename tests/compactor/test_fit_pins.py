"""Pinned posts, and calls that wait, stay in a prompt that is too long."""

from __future__ import annotations

import pytest
from chats import answer, assert_legal, calls, compacted, contents, note_of, result, user, words
from long_tails import LARGE, ROLE, SMALL, agent_run, chat, step, texts

from compactor import BudgetExceeded, compose, count_prompt, count_tokens
from memory import Memory


def test_a_pinned_post_stays_whole_while_its_round_is_left_out() -> None:
    """In its place among what is left, counted, and named by no line as gone."""
    memory = chat(40)
    memory.pin("r3.p1")

    prompt = compose(memory, budget=600)

    assert {1, 2, 3, 4} <= set(prompt.report.omitted_rounds)
    assert contents(prompt)[:2] == [note_of(prompt), f"answer 0003 {words(30)}"]
    assert_legal(prompt, 600)


def test_a_pinned_result_keeps_its_call_and_is_neither_offloaded_nor_clipped() -> None:
    """Large, old or both: what is pinned reads word for word."""
    memory = Memory.from_messages([user("Read."), calls("a"), result("a", LARGE), calls("b"), result("b", SMALL)])
    memory.pin("r1.p2")
    for number in range(30):
        step(memory, number, words(40))

    prompt = compose(memory, budget=4_500)

    assert contents(prompt)[:4] == [note_of(prompt), "Read.", None, LARGE]
    assert SMALL not in contents(prompt)
    assert_legal(prompt, 4_500)


def test_a_pinned_query_stays_after_its_round_has_gone() -> None:
    """What the user forbade in the beginning is still there at the end."""
    memory = chat(40)
    memory.pin("r1.p0")

    prompt = compose(memory, budget=600)

    assert contents(prompt)[1] == f"question 0001 {words(30)}"
    assert contents(prompt)[-2] == f"question 0040 {words(30)}"


def test_pins_of_a_round_that_failed_or_was_covered_are_not_in_the_tail() -> None:
    """A failed round is hidden with its pins; a compaction shows those that it covers in a block of its own."""
    memory = chat(40)
    memory.pin("r2.p1")
    memory.pin("r9.p1")
    memory.finish_round(memory.conversation.rounds[8], "failed")
    compacted(memory, 4)

    prompt = compose(memory, budget=700)

    assert contents(prompt)[0].startswith(f"[Pinned: word for word]\nassistant: answer 0002 {words(30)}\n")
    assert texts(prompt).count("answer 0002") == 1
    assert "answer 0009" not in texts(prompt)
    assert_legal(prompt, 700)


def test_pins_that_do_not_fit_are_refused_with_what_they_need() -> None:
    """The error counts them, and says that unpinning helps; with exactly that much there is a prompt."""
    memory = chat(40)
    memory.pin("r3.p1")
    memory.pin("r5.p0")
    pinned = [answer(f"answer 0003 {words(30)}"), user(f"question 0005 {words(30)}")]
    asked = user(f"question 0040 {words(30)}")
    needed = count_prompt((*pinned, asked), count_tokens)

    with pytest.raises(BudgetExceeded, match="unpin posts") as exceeded:
        compose(memory, budget=needed - 1)

    assert exceeded.value.needed == needed
    assert compose(memory, budget=needed).messages == [*pinned, asked]


def test_pins_in_many_rounds_are_each_shown_once() -> None:
    """Pinning what stands in the newest round, or twice in one, shows nothing twice."""
    memory = chat(30)
    for reference in ("r2.p0", "r2.p1", "r29.p1", "r30.p0", "r30.p1"):
        memory.pin(reference)

    prompt = compose(memory, budget=700)

    shown = [str(text) for text in contents(prompt)]
    assert len(shown) == len(set(shown))
    for number in (2, 29, 30):
        assert f"answer {number:04} {words(30)}" in shown
    assert shown[1:3] == [f"question 0002 {words(30)}", f"answer 0002 {words(30)}"]
    assert_legal(prompt, 700)


def test_a_call_that_waits_is_not_left_out_though_other_posts_follow() -> None:
    """The host is about to run it: what is left out are the steps before."""
    memory = agent_run(60)
    memory.append(calls("now", arguments='{"path": "main.py"}'))

    for budget in (200, 400, 1_000):
        prompt = compose(memory, budget=budget)
        assert prompt.messages[-1] == calls("now", arguments='{"path": "main.py"}')
        assert_legal(prompt, budget)


def test_a_call_that_waits_is_clipped_and_then_left_out_before_the_prompt_is_refused() -> None:
    """Its arguments are an object that names the reference; where not even that fits, the line says that it is gone."""
    memory = agent_run(3)
    memory.append(calls("now", arguments=f'{{"text": "{words(2_000)}"}}'))

    clipped, tiny = compose(memory, budget=300), compose(memory, budget=60)

    assert "reload r1.p7" in clipped.messages[-1]["tool_calls"][0]["function"]["arguments"]
    assert contents(tiny)[-1] == "Find the fault."
    assert "to r1.p7" in note_of(tiny)
    for prompt, budget in ((clipped, 300), (tiny, 60)):
        assert_legal(prompt, budget)


def asking_for_approval(*, answered: bool) -> Memory:
    memory = Memory.from_messages([user("Delete it.")])
    round_ = memory.conversation.rounds[0]
    asked = {"send_from": ROLE, "send_to": "User", "message": f"May I delete it? {words(60)}"}
    memory.add_post(round_, **asked, kind="approval_request")
    if answered:
        memory.add_post(round_, send_from="User", send_to=ROLE, message="Yes.", kind="approval_response")
    for number in range(40):
        step(memory, number, words(40))
    return memory


def test_an_approval_that_nobody_gave_yet_stays() -> None:
    """The question is still open, however long ago it was asked; once it is answered, it may go like anything else."""
    waiting = compose(asking_for_approval(answered=False), budget=700)
    done = compose(asking_for_approval(answered=True), budget=700)

    assert f"May I delete it? {words(60)}" in contents(waiting)
    assert f"May I delete it? {words(60)}" not in contents(done)
    for prompt in (waiting, done):
        assert_legal(prompt, 700)


@pytest.mark.parametrize("budget", range(110, 700, 35))
def test_what_is_pinned_stays_though_the_summary_is_clipped(budget: int) -> None:
    """A pin is word for word in every prompt: the summary gives way, and then goes, before a pin does."""
    memory = chat(6)
    memory.pin("r2.p1")
    compacted(memory, 4, words(3_000))

    prompt = compose(memory, budget=budget)

    assert contents(prompt)[0].startswith(f"[Pinned: word for word]\nassistant: answer 0002 {words(30)}")
    assert_legal(prompt, budget)


def test_pins_behind_a_compaction_that_do_not_fit_are_refused_with_what_they_need() -> None:
    """The pin block and the query are the least; with exactly that much there is a prompt."""
    memory = chat(6)
    memory.pin("r2.p1")
    compacted(memory, 4, words(3_000))
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=20)

    needed = exceeded.value.needed
    prompt = compose(memory, budget=needed)

    assert contents(prompt) == [
        f"[Pinned: word for word]\nassistant: answer 0002 {words(30)}",
        f"question 0006 {words(30)}",
    ]
    assert prompt.tokens == needed
    with pytest.raises(BudgetExceeded):
        compose(memory, budget=needed - 1)
