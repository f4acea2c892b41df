"""What a prompt that is too long shows, light to heavy, and only as far as needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from chats import (
    Message,
    answer,
    assert_legal,
    calls,
    compacted,
    contents,
    left_out_texts,
    note_of,
    result,
    user,
    words,
)
from long_tails import LARGE, ROLE, SMALL, agent_run, chat, step, texts

from compactor import BudgetExceeded, Prompt, compose, count_message, count_prompt, count_tokens
from memory import CompactedMessage, InMemoryStore, Memory, Post, Reduction, Round

AMPLE = 10**6
#: What names a place in the log in a prompt.
REFERENCE = re.compile(r"r\d+(?:\.p\d+(?:-p\d+)?|-r\d+)?\b")


def reduce(memory: Memory, place: int, posts: Sequence[Post | None], kind: Any, text: str = "") -> Reduction:
    """Publish a reduction of *posts* in the round at *place*, which must be taken."""
    round_ = memory.conversation.rounds[place]
    made = Reduction.over(round_, posts, kind, text)
    assert memory.journal(ROLE).reduce(made, base=memory.journal(ROLE).read().generation) is not None
    return made


def posts_of(memory: Memory, place: int) -> tuple[Post, ...]:
    return memory.conversation.rounds[place].post_list


def mixed() -> Memory:
    """Two old rounds of talk; then a round with large and small results, then some that are protected."""
    memory = chat(2)
    memory.append(user("Look at all of it."))
    for number, text in enumerate([LARGE, SMALL, LARGE, SMALL, SMALL]):
        step(memory, number, text)
    for number in range(5, 12):
        step(memory, number, words(150))
    return memory


def was_offloaded(prompt: Prompt) -> int:
    return sum("left out here and kept in full" in str(text) for text in contents(prompt))


def was_cleared(prompt: Prompt) -> int:
    return sum(bool(re.match(r"\[[\d,]+ characters left out; reload ", str(text))) for text in contents(prompt))


def was_clipped(prompt: Prompt) -> int:
    return sum("[... " in str(text) for text in contents(prompt))


# -- the levels, in order ---------------------------------------------------------------------------------------------


def test_the_levels_are_taken_in_order_and_only_as_far_as_needed() -> None:
    """As one budget gets tighter: all of it, large payloads as previews, small ones too, old results as a line, then less
    of it."""
    memory = mixed()
    full = compose(memory, budget=AMPLE).tokens
    prompts = [compose(memory, budget=budget) for budget in (full, full - 10, 2_400, 2_000, 1_080, 880)]

    shown = [(was_offloaded(prompt), was_cleared(prompt), prompt.report.omitted_rounds) for prompt in prompts]

    assert shown[:2] == [(0, 0, ()), (1, 0, ())]
    assert shown[2] == (4, 0, ()), "two large ones and two small ones read as their beginnings"
    assert shown[3][0] > 0
    assert shown[3][1] > 0, "the large ones are cleared before any small one is"
    assert shown[4][2] == (1,)
    assert shown[5][:2] == (0, 9)


@pytest.mark.parametrize("budget", range(700, 9_300, 430))
def test_nothing_much_more_goes_than_has_to(budget: int) -> None:
    """Wherever the boundary falls among large and small texts, the prompt is not left nearly empty."""
    prompt = compose(mixed(), budget=budget)

    assert_legal(prompt, budget)
    assert prompt.tokens > 0.45 * min(budget, 5_000)


def test_large_payloads_are_offloaded_first() -> None:
    """The oldest large result is shown by its beginning; the small ones, older or newer, are as they were."""
    memory = mixed()
    full = compose(memory, budget=AMPLE).tokens

    prompt = compose(memory, budget=full - 10)

    assert (was_offloaded(prompt), was_cleared(prompt), note_of(prompt)) == (1, 0, "")
    shown = next(text for text in contents(prompt) if "kept in full" in str(text))
    assert LARGE.startswith(shown.split("\n[")[0])
    assert "reload r3.p2]" in shown
    assert [reduced.ref for reduced in prompt.report.reductions] == ["r3.p2"]
    assert contents(prompt).count(SMALL) == 3


def test_old_results_are_cleared_when_offloading_is_not_enough() -> None:
    """The largest and oldest results read as one line each; calls stay, and so does everything that is new."""
    memory = mixed()
    full = compose(memory, budget=AMPLE)

    prompt = compose(memory, budget=2_000)

    assert re.fullmatch(r"\[11,999 characters left out; reload r3.p2\]", contents(prompt)[6])
    assert len(prompt.messages) == len(full.messages)
    assert contents(prompt)[:6] == contents(full)[:6]
    assert contents(prompt)[23:] == contents(full)[23:]
    originals = [memory.reload(reduced.ref) for reduced in prompt.report.reductions]
    assert originals[:5] == [LARGE, SMALL, LARGE, SMALL, SMALL]


def test_then_the_oldest_rounds_are_left_out_and_then_posts_of_the_open_one() -> None:
    """A line says which: first whole rounds, at tighter budgets steps of the open round as well."""
    memory = mixed()

    rounds, posts = compose(memory, budget=1_080), compose(memory, budget=880)

    assert note_of(rounds).endswith("rounds 1 to 1 (reload r1).]")
    assert "rounds 1 to 2 (reload r1-r2), the posts from r3.p1 to r3.p2 (" in note_of(posts)
    assert LARGE in left_out_texts(memory, posts)
    assert "question 0001" in left_out_texts(memory, posts)


def test_at_last_the_newest_payload_is_clipped_and_then_the_prompt_is_refused() -> None:
    """Head and tail of the newest result around its reference; below the query itself there is no prompt."""
    memory = Memory.from_messages([user("Read."), calls("c"), result("c", LARGE)])

    prompt = compose(memory, budget=300)
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=8)

    assert was_clipped(prompt) == 1
    assert LARGE[:40] in contents(prompt)[-1]
    assert contents(prompt)[-1].endswith(LARGE[-30:])
    assert exceeded.value.needed == count_prompt([user("Read.")], count_tokens)


def test_what_the_user_said_is_not_offloaded_but_clipped_at_last() -> None:
    """The user's words are no payload: in older rounds they are clipped where too much would go with them, or go."""
    memory = Memory.from_messages([user(LARGE), answer(), user("next"), *[answer(words(40))] * 30])
    full = compose(memory, budget=AMPLE).tokens

    clipped, gone = compose(memory, budget=full - 10), compose(memory, budget=1_700)

    assert [reduced.ref for reduced in clipped.report.reductions] == ["r1.p0"]
    assert clipped.messages[0]["role"] == "user"
    assert contents(clipped)[0].startswith(LARGE[:1_000])
    assert contents(clipped)[0].endswith(LARGE[-1_000:])
    assert gone.report.reductions == ()
    assert gone.report.omitted_rounds == (1,)


def test_a_text_that_is_no_longer_than_its_reference_stays() -> None:
    """Nothing is replaced by something longer: short results are left alone."""
    memory = agent_run(40, tokens=10)

    prompt = compose(memory, budget=600)

    assert prompt.report.reductions == ()
    assert_legal(prompt, 600)


def test_a_cut_leaves_at_least_a_third_of_the_room() -> None:
    """Where the system prompt takes most of the budget, steps shrink with what it leaves: something is still shown."""
    memory = chat(60)
    for taken in range(0, 7_500, 500):
        for prompt in (
            compose(memory, budget=8_000, system=words(taken) if taken else None),
            compose(memory, budget=8_000, reserve=taken),
        ):
            reserved = prompt.report.tokens_before - compose(memory, budget=AMPLE).tokens
            room = 8_000 - taken
            shown = prompt.tokens - max(reserved, 0)
            assert shown >= min(room / 3 - 120, compose(memory, budget=AMPLE).tokens), (taken, shown)


@pytest.mark.parametrize("end", range(1, 8))
@pytest.mark.parametrize("budget", [40, 150, 300])
def test_a_compaction_that_reaches_into_open_rounds_is_no_fault(end: int, budget: int) -> None:
    """A host's provider may say that it covers all there is: the prompt is the query and what fits, or refused."""

    class Provider:
        def get_compaction(self) -> CompactedMessage:
            return CompactedMessage(start_index=1, end_index=end, summary=words(60))

        def notify_rounds_changed(self, total_rounds: int | None = None) -> None: ...

    memory = chat(6)
    memory.register_compaction_provider(ROLE, Provider())
    needed = count_prompt([user(f"question 0006 {words(30)}")], count_tokens)
    if budget < needed:
        with pytest.raises(BudgetExceeded):
            compose(memory, budget=budget)
    else:
        prompt = compose(memory, budget=budget)
        assert_legal(prompt, budget)
        assert f"question 0006 {words(30)}" in contents(prompt)


# -- the same again, and the same for long ----------------------------------------------------------------------------


def everything(store: InMemoryStore) -> Memory:
    """A session with all that changes what a prompt shows."""
    memory = chat(8, store=store)
    memory.append(user("Work."))
    for number in range(30):
        step(memory, number, f"{number} {LARGE if number % 3 == 0 else SMALL}")
    memory.append(user("And this?"))
    round_ = memory.conversation.rounds[-1]
    memory.add_post(round_, send_from="tool", send_to=ROLE, message=words(30), kind="ephemeral:screen")
    step(memory, 99, LARGE)
    compacted(memory, 3)
    memory.pin("r2.p1")
    memory.pin("r5.p1")
    memory.pin("r9.p4")
    run = posts_of(memory, 8)
    reduce(memory, 8, run[6:12], "summarised", "Three tables were read.")
    reduce(memory, 8, run[12:14], "dropped")
    reduce(memory, 8, [run[19]], "offloaded", "[A table; reload r9.p20]")
    memory.record_usage(ROLE, 1_100, counted=1_000)
    return memory


@pytest.mark.parametrize("budget", [1_000, 1_500, 3_000, 8_000, 40_000])
def test_a_resumed_session_gives_the_same_prompt(budget: int) -> None:
    """A pure function of the log: pins, overlays, usage and what has left by itself are all in it."""
    store = InMemoryStore()
    memory = everything(store)
    for other in (900, 5_000):
        compose(memory, budget=other, system="Be brief.")

    first = compose(memory, budget=budget, system="Be brief.")

    assert compose(memory, budget=budget, system="Be brief.") == first
    assert compose(Memory("s", store=store), budget=budget, system="Be brief.") == first
    assert_legal(first, budget)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "steps"), [(3_000, 500), (8_000, 250)])
def test_within_one_long_round_at_most_one_prompt_in_ten_changes_its_beginning(budget: int, steps: int) -> None:
    """Hundreds of calls after one query, some with large results: the cuts are as rare as between rounds."""
    memory, changed, composed = Memory.from_messages([user("Find the fault.")]), -1, 0
    before = [user("nothing yet")]
    for number in range(steps):
        step(memory, number, f"{number:05} {words(10 + 8 * (number % 4))}" + (LARGE if number % 50 == 30 else ""))
        if number < steps * 3 // 4:  # the last quarter shows as much as all
            continue
        prompt = compose(memory, budget=budget)
        composed += 1
        changed += prompt.messages[: len(before)] != before
        before = prompt.messages
        assert prompt.tokens <= budget
    assert 0 < changed <= composed / 10
    assert_legal(prompt, budget)
    assert prompt.tokens >= budget * 0.4


# -- references -------------------------------------------------------------------------------------------------------


def assert_references_hold(memory: Memory, prompt: Prompt) -> None:
    """Each reference in the prompt reloads, and those of shortened texts the exact original."""
    for found in REFERENCE.findall("\n".join(re.findall(r"reload ([^\])]*)", texts(prompt)))):
        assert memory.reload(found)
    for reduced in prompt.report.reductions:
        # What was published says what its strategy has it say; a dropped post has no text at all.
        assert f"reload {reduced.ref}" in texts(prompt) or reduced.by in ("dropped", "summarised")
        original = memory.reload(reduced.ref)
        if "-" not in reduced.ref and ".p" in reduced.ref:
            number, place = map(int, re.findall(r"\d+", reduced.ref))
            round_ = memory.conversation.rounds[number - 1]
            said = next((post.message for post in round_.post_list if post.number == place), round_.user_query)
            assert said in original


@pytest.mark.parametrize("budget", [200, 400, 700, 1_200, 2_500, 4_000, 6_000])
def test_every_reference_in_a_prompt_reloads_the_original(budget: int) -> None:
    """Previews, cleared results, clipped texts and the line of what is left out all lead back to the log."""
    for memory in (mixed(), everything(InMemoryStore())):
        try:
            prompt = compose(memory, budget=budget)
        except BudgetExceeded:
            assert memory.pins()
            continue
        assert_references_hold(memory, prompt)


def test_what_was_reloaded_is_not_shortened_again_in_the_same_round() -> None:
    """The agent asked for it: it reads it whole while it works, and in the next round it is old like all else."""
    memory = Memory.from_messages([user("What did it say?")])
    reload = calls("r")
    reload["tool_calls"][0]["function"]["name"] = "context_reload"
    memory.append(reload)
    memory.append(result("r", LARGE))
    for number in range(40):
        step(memory, number, SMALL)
    full = compose(memory, budget=AMPLE).tokens

    now = compose(memory, budget=full - 1_000)
    memory.append(answer("So it was."))
    memory.append(user("And then?"))
    later = compose(memory, budget=full - 1_000)

    assert LARGE in contents(now)
    assert was_cleared(now)
    assert LARGE not in contents(later)
    assert "r1.p2" in [reduced.ref for reduced in later.report.reductions]


# -- what leaves by itself --------------------------------------------------------------------------------------------


def seen_once(memory: Memory, name: str, text: str, **more: Any) -> Post:
    round_ = memory.conversation.rounds[-1]
    fields = {"send_from": "tool", "send_to": ROLE, "message": text, "kind": f"ephemeral:{name}"} | more
    return memory.add_post(round_, **fields)


def test_an_ephemeral_post_is_shown_until_the_agent_has_spoken() -> None:
    """The next model call sees it, the one after does not, and the log has it for ever."""
    memory = Memory.from_messages([user("Click.")])
    post = seen_once(memory, "screen", "a screenshot")
    first = compose(memory, budget=AMPLE)
    memory.append(answer("Clicked."))
    second = compose(memory, budget=AMPLE)

    assert "a screenshot" in texts(first)
    assert contents(second) == ["Click.", "Clicked."]
    assert second.report.tokens_before == second.tokens
    assert memory.reload(f"r1.p{post.number}") == "a screenshot"


def test_the_newest_of_a_name_stay_while_their_round_is_open() -> None:
    """``keep`` says how many, each name by itself; with the round's end all of them go."""
    memory = Memory.from_messages([user("Click.")])
    for number in range(5):
        seen_once(memory, "screen", f"screen {number}", extra={"keep": 2})
        seen_once(memory, "page", f"page {number}", extra={"keep": 1})
        memory.append(answer(f"Step {number}."))
    shown = texts(compose(memory, budget=AMPLE))
    memory.append(user("Done?"))
    after = texts(compose(memory, budget=AMPLE))

    assert [number for number in range(5) if f"screen {number}" in shown] == [3, 4]
    assert [number for number in range(5) if f"page {number}" in shown] == [4]
    assert "screen" not in after
    assert "page" not in after
    assert "Step 0." in after


def test_an_ephemeral_tool_result_leaves_a_line_that_answers_its_call() -> None:
    """A call without its answer would be refused by the provider; the line names the reference."""
    memory = Memory.from_messages([user("Look."), calls("c")])
    seen_once(memory, "screen", LARGE, tool_call_id="c")
    memory.append(answer("Seen."))

    prompt = compose(memory, budget=AMPLE)

    assert contents(prompt)[2] == "[Was to be seen once, and is left out now; reload r1.p2]"
    assert memory.reload("r1.p2") == LARGE
    assert prompt.tokens < 100
    assert_legal(prompt, AMPLE)


# -- overlays that were published -------------------------------------------------------------------------------------


def test_published_reductions_of_all_kinds_are_shown_and_counted_once() -> None:
    """An offloaded text in its message, one message of nobody's voice for a summary; of what was dropped a line at the
    head tells where to look for it."""
    memory = agent_run(8)
    memory.append(user("And?"))
    run = posts_of(memory, 0)
    reduce(memory, 0, [run[1]], "offloaded", "[Rows; reload r1.p2]")
    reduce(memory, 0, run[2:6], "dropped")
    reduce(memory, 0, run[6:12], "summarised", "[Summary; reload r1.p7-p12]\nThree reads found nothing.")

    prompt = compose(memory, budget=AMPLE)

    summary = user("[Summary; reload r1.p7-p12]\nThree reads found nothing.")
    note, *messages = prompt.messages
    assert "single posts from round 1 on (reload r1 " in note["content"]
    assert messages[:4] == [user("Find the fault."), calls("c0"), result("c0", "[Rows; reload r1.p2]"), summary]
    assert messages[4] == calls("c6")
    assert len(messages) == 9
    assert_legal(prompt, AMPLE)
    assert prompt.report.tokens_before == prompt.tokens


def test_no_reduction_of_a_failed_round_is_reported() -> None:
    """Its text is not shown: neither as what it was, nor with the reference of the round before it."""
    memory = agent_run(2)
    memory.append(user("And?"))
    memory.append({"role": "assistant", "content": LARGE})
    reduce(memory, 1, posts_of(memory, 1)[:1], "offloaded", "[Rows; reload r2.p1]")
    assert [one.ref for one in compose(memory, budget=AMPLE).report.reductions] == ["r2.p1"]

    memory.finish_round(memory.conversation.rounds[1], "failed")

    assert compose(memory, budget=AMPLE).report.reductions == ()
    assert compose(Memory.from_state_dict(memory.state_dict()), budget=AMPLE).report.reductions == ()


def test_what_was_published_makes_room_before_the_prompt_is_shortened() -> None:
    """A prompt that fits by its overlays is not cut as well."""
    memory = agent_run(20, tokens=100)
    full = compose(memory, budget=AMPLE).tokens
    assert compose(memory, budget=full - 200).report.reductions

    reduce(memory, 0, posts_of(memory, 0)[:8], "summarised", "Four reads found nothing.")
    prompt = compose(memory, budget=full - 200)

    assert [reduced.by for reduced in prompt.report.reductions] == ["summarised"]
    assert prompt.report.omitted_rounds == ()


def test_what_was_offloaded_already_is_cleared_before_any_small_result() -> None:
    """Its text stays as it is while others are offloaded; but of no small result less is shown than of a large one."""
    memory = agent_run(20, tokens=100)
    preview = f"{words(80)} reload r1.p2"
    reduce(memory, 0, [posts_of(memory, 0)[1]], "offloaded", preview)
    full = compose(memory, budget=AMPLE).tokens

    for budget in range(600, full, 100):
        shown = contents(compose(memory, budget=budget))
        assert preview not in shown or not was_cleared(compose(memory, budget=budget))
        assert_legal(compose(memory, budget=budget), budget)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("budget", range(300, 6_000, 150))
def test_of_a_small_result_no_less_is_shown_than_of_a_large_one(budget: int, published: bool) -> None:
    """Among those that are as old: where one has but a line left, a larger one before it has no more."""
    sizes = [684, 6_000, 684, 12_000, 3_000, 684, 20_000, 200, 684]
    memory = Memory()
    memory.append(user("Look."))
    for number, size in enumerate(sizes):
        step(memory, number, words(size)[:size])
    memory.append(answer("So far."))
    if published:
        for number in (1, 3, 6):
            text = f"{memory.reload(f'r1.p{2 * number + 2}')[:200]}\n[left out; reload r1.p{2 * number + 2}]"
            reduce(memory, 0, [posts_of(memory, 0)[2 * number + 1]], "offloaded", text)
    results = [
        str(message["content"]) for message in compose(memory, budget=budget).messages if message["role"] == "tool"
    ]
    shown = list(zip(sizes[len(sizes) - len(results) :], results, strict=True))
    bare = [place for place, (_, text) in enumerate(shown) if text.startswith("[")]
    for place in bare:
        before = [text for size, text in shown[:place] if size > shown[place][0]]
        assert all(text.startswith("[") for text in before)


# -- the compaction itself --------------------------------------------------------------------------------------------


def test_a_compaction_longer_than_the_budget_is_clipped_with_its_reference() -> None:
    """Beginning and end of the summary around the reference of the rounds that it covers; the query stays whole."""
    memory = chat(6)
    compacted(memory, 4, f"It began so. {words(3_000)} It ended so.")

    prompt = compose(memory, budget=600)

    shown = contents(prompt)[0]
    assert shown.startswith("[Conversation History Summary]\nIt began so.")
    assert "It ended so.\n" in shown
    assert "reload r1-r4 " in shown
    assert shown.endswith("Covers rounds 1-4, kept in full: reload r1-r4.")
    assert prompt.report.reductions[0].ref == "r1-r4"
    assert prompt.report.reductions[0].tokens_after == count_message(prompt.messages[0], count_tokens)
    assert contents(prompt)[-2:] == [f"question 0006 {words(30)}", f"answer 0006 {words(30)}"]
    assert_legal(prompt, 600)


def test_a_compaction_that_cannot_even_be_clipped_is_left_out_and_its_rounds_are_named() -> None:
    """The line and the report say so; nothing is lost, for the log has the rounds."""
    memory = chat(6)
    compacted(memory, 4, words(3_000))

    prompt = compose(memory, budget=100)

    assert "Summary" not in texts(prompt)
    assert prompt.report.omitted_rounds[:4] == (1, 2, 3, 4)
    assert "(reload r1-r" in note_of(prompt)
    assert "question 0001" in left_out_texts(memory, prompt)
    assert_legal(prompt, 100)


# -- attacks ----------------------------------------------------------------------------------------------------------


ATTACKS: dict[str, Callable[[], list[Message]]] = {
    "header": lambda: [{"role": "system", "content": words(150)}, user("q"), *[answer(words(9))] * 20],
    "parallel": lambda: [
        user("q"),
        calls(*(f"c{number}" for number in range(40))),
        *(result(f"c{number}", words(20)) for number in range(40)),
    ],
    "huge": lambda: [user("q"), calls("c"), result("c", "🎉漢字\x00" * 20_000), answer("a"), user("q2")],
    "arguments": lambda: [user("q"), *[calls("c", arguments="[" + "1," * 4_000 + "1]"), result("c")] * 3],
    "queries": lambda: [user(words(30)) for _ in range(20)],
    "nothing": list,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_at_every_budget_there_is_a_prompt_or_the_right_refusal(name: str) -> None:
    """From 1 token on: refused below the least, with the least; legal and within the budget from there on."""
    memory = Memory.from_messages(ATTACKS[name]())
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=1)
    needed = exceeded.value.needed
    for budget in range(1, 301, 3):
        if budget < needed:
            with pytest.raises(BudgetExceeded) as exceeded:
                compose(memory, budget=budget)
            assert exceeded.value.needed == needed
        else:
            assert_legal(compose(memory, budget=budget), budget)
    assert compose(memory, budget=needed).tokens == needed


def test_ten_megabytes_are_counted_once_and_then_only_looked_at() -> None:
    """One result of 10 MB, while its round is open, when it closes, and after: each text of it is counted once."""
    counted: list[int] = []

    def counter(text: str) -> int:
        counted.append(len(text))
        return len(text) // 4

    huge = "0123456789 " * 950_000
    memory = Memory.from_messages([user(), calls("c"), result("c", huge)])
    for _ in range(3):
        assert_legal(compose(memory, budget=8_000, counter=counter), 8_000, lambda text: len(text) // 4)
        memory.append(answer("So."))
        memory.append(user("And?"))

    assert sum(length == len(huge) for length in counted) == 1 * sum(length == len(huge) for length in counted[:1_000])
    assert sum(length > 10**6 for length in counted) <= 2


def test_what_a_prompt_costs_does_not_grow_with_results_that_are_left_out() -> None:
    """In a round of hundreds of calls, only what is shown is counted and made again."""
    counted: list[str] = []

    def counter(text: str) -> int:
        counted.append(text)
        return count_tokens(text)

    asked = []
    for steps in (60, 240):
        memory = agent_run(steps, tokens=150)
        compose(memory, budget=2_000, counter=counter)
        counted.clear()
        compose(memory, budget=2_000, counter=counter)
        asked.append(len(counted))

    assert asked[1] <= asked[0] + 30


def test_a_round_of_hundreds_of_calls_closes_and_is_still_cut_well() -> None:
    """When the next question comes, the prompt is as full as before."""
    memory = agent_run(200)
    before = compose(memory, budget=2_000)
    memory.append(answer("Found it."))
    memory.append(user("Where?"))

    prompt = compose(memory, budget=2_000)

    assert contents(prompt)[-2:] == ["Found it.", "Where?"]
    assert prompt.tokens > 2_000 * 0.4
    assert before.tokens > 2_000 * 0.4
    assert_legal(prompt, 2_000)


def test_rounds_that_other_hosts_left_open_are_left_out_post_by_post() -> None:
    """From the first open round on there are no sums: their posts are taken one by one, and named."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    first.create_round("open")
    for number in range(30):
        round_: Round = second.create_round(f"question {number}")
        second.add_post(round_, send_from=ROLE, send_to="User", message=f"{number} {words(30)}")

    prompt = compose(second, budget=500)

    assert contents(prompt)[-2] == "question 29"
    assert "the posts from r1.p0 to" in note_of(prompt)
    assert "open" in left_out_texts(second, prompt)
    assert_legal(prompt, 500)


def test_what_was_just_read_back_is_not_clipped_while_it_fits() -> None:
    """Though it is more than half of what there is room for, which any other text may not be: else the agent would
    read it back again. Nor is a result that the agent has yet to read."""

    def shown(tool: str, budget: int, *more: Message) -> str:
        call = calls("c")
        call["tool_calls"][0]["function"]["name"] = tool
        memory = Memory.from_messages([user("What was it?"), answer(words(500)), call, result("c", words(600)), *more])
        prompt = compose(memory, budget=budget)
        assert_legal(prompt, budget)
        return next(str(message["content"]) for message in prompt.messages if message["role"] == "tool")

    read = answer("I see.")
    assert shown("context_reload", 1_000) == shown("context_reload", 1_000, read) == words(600)
    assert shown("look_up", 1_000) == words(600)
    assert "reload r1.p3" in shown("look_up", 1_000, read)
    assert "reload r1.p3" in shown("context_reload", 400)
    assert "reload r1.p3" in shown("look_up", 400)


@pytest.mark.parametrize("budget", range(150, 420, 15))
@pytest.mark.parametrize("text", ["", "42", words(300)])
def test_a_summary_makes_room_for_a_result_that_nobody_has_read(budget: int, text: str) -> None:
    """An agent that never sees what its tools give calls them again and again, until it is stopped."""
    memory = chat(6)
    memory.append(user("And now?"))
    compacted(memory, 6, f"It began so. {words(200)} It ended so.")
    memory.append(calls("c"))
    memory.append(result("c", text))

    prompt = compose(memory, budget=budget)

    shown = prompt.messages[-1]
    assert shown["role"] == "tool"
    assert shown["content"] == text or "reload r7.p2" in shown["content"]
    assert_legal(prompt, budget)


def test_where_posts_were_dropped_is_told_in_one_line_that_stays_as_it_is() -> None:
    """However many follow; with the rounds that are left out in the same line; not of what a summary covers."""
    memory = Memory.from_messages([message for n in range(6) for message in (user(f"q{n}"), answer(words(60)))])
    ends = []
    reduce(memory, 5, posts_of(memory, 5)[:1], "dropped")  # the open round
    assert "from round 6 on" in note_of(compose(memory, budget=AMPLE))
    for place in (1, 3, 4):
        reduce(memory, place, posts_of(memory, place)[:1], "dropped")
        ends.append(compose(memory, budget=AMPLE).messages[0])
    assert ends[0] == ends[1] == ends[2]
    assert "single posts from round 2 on (reload r2 or any other round by its number)" in ends[0]["content"]

    cut = note_of(compose(memory, budget=180))
    assert "rounds 1 to " in cut
    assert "single posts from round 2 on" in cut

    memory.journal(ROLE).publish(
        CompactedMessage(start_index=1, end_index=5, summary="S.", end_round_id=memory.conversation.rounds[4].id),
        base=0,
        round_ids=[round_.id for round_ in memory.conversation.rounds[:5]],
    )
    assert "from round 6 on" in note_of(compose(memory, budget=AMPLE))


def test_what_the_user_forbade_stays_when_a_summary_is_clipped() -> None:
    """It is short, and what a summary is for; the rest of the summary is shortened."""
    memory = Memory.from_messages([user("old"), answer("done"), user("new")])
    prohibitions = tuple(f"Never touch the server in rack {n}." for n in range(6))
    summary = f"{words(600)}\n\nInstructions from the user:\n" + "\n".join(f"- {sentence}" for sentence in prohibitions)
    memory.journal(ROLE).publish(
        CompactedMessage(
            start_index=1,
            end_index=1,
            summary=summary,
            end_round_id=memory.conversation.rounds[0].id,
            extra={"standing": prohibitions},
        ),
        base=0,
        round_ids=[memory.conversation.rounds[0].id],
    )
    for budget in (300, 500):
        prompt = compose(memory, budget=budget)
        assert_legal(prompt, budget)
        assert all(sentence in prompt.messages[0]["content"] for sentence in prohibitions)
        assert "reload r1" in prompt.messages[0]["content"]


def test_a_tool_message_that_names_no_call_is_one_that_providers_accept() -> None:
    """Nor is an empty list of calls handed on: both make a provider refuse the session for ever."""
    memory = Memory.from_messages(
        [
            user("q"),
            {"role": "assistant", "content": "a", "tool_calls": []},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "rows"},
        ]
    )
    messages = compose(memory, budget=AMPLE).messages
    assert messages == [user("q"), answer("a"), answer(""), user("[Late result of a tool call]\nrows")]


def test_a_hosts_own_kind_of_post_is_its_own() -> None:
    """Whatever it is called, the answer stays the assistant's."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from=ROLE, send_to="User", message="my answer", kind="summary")
    assert compose(memory, budget=AMPLE).messages == [user("q"), answer("my answer")]


def test_what_a_host_has_deleted_is_not_told_of() -> None:
    """A reduction may say that prompts should not mention it."""
    memory = Memory.from_messages([user("q"), answer("a"), user("And?")])
    round_ = memory.conversation.rounds[0]
    gone = Reduction.over(round_, round_.post_list, "dropped", extra={"told": False})
    assert memory.journal(ROLE).reduce(gone, base=0) is not None
    assert compose(memory, budget=AMPLE).messages == [user("q"), user("And?")]
