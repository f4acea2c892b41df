"""A View: how much there is, where, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from chats import answer, calls, note_of, result, user, words
from executors import ManualExecutor
from views import TokenCache

from compactor import CompactorConfig, ContextCompactor, View, compose, count_message, count_prompt, count_tokens, when
from compactor.testing import ScriptedSummarizer
from memory import RECALL_TOOLS, CompactedMessage, InMemoryStore, Memory, Reduction


def view_of(memory: Memory, end: int = 0, role: str = "assistant", model: str = "") -> View:
    rounds, _ = memory.get_role_rounds(role)
    compaction = CompactedMessage(start_index=1, end_index=end, summary="S.") if end else None
    return View(rounds, compaction, TokenCache(role, count_tokens), model=model)


def chat(rounds: int) -> Memory:
    memory = Memory()
    for number in range(rounds):
        memory.append(user(words(number + 1)))
        memory.append(answer())
    return memory


def cost(*messages: dict[str, object]) -> int:
    return sum(count_message(message, count_tokens) for message in messages)


def test_a_view_says_where_things_are() -> None:
    """Visible rounds, the closed ones before the first open one, and the tail behind the compaction."""
    view = view_of(chat(5), 2)

    assert (view.total, view.closed, view.end, view.tail_length) == (5, 4, 2, 3)
    assert [round_.number for round_ in view.tail] == [3, 4, 5]
    assert view.role == "assistant"


def test_an_empty_session_costs_what_the_format_adds() -> None:
    """There is nothing, and nothing breaks."""
    view = view_of(Memory())

    assert (view.total, view.closed, view.end, view.tail, view.messages) == (0, 0, 0, (), 0)
    assert view.tokens == count_prompt([], count_tokens)


@pytest.mark.parametrize("end", [0, 1, 4, 5])
def test_its_tokens_are_those_of_the_prompt(end: int) -> None:
    """What a trigger measures is what compose would send: compaction, closed rounds and the open one."""
    memory = chat(5)
    memory.append(calls("c1", "c2"))
    memory.append(result("c2"))
    view = view_of(memory, end)

    messages = memory.messages()[2 * end :] if end < 5 else []
    said = [{"content": view.compaction.to_prompt()}] if view.compaction else []
    assert view.tokens == count_prompt([*said, *messages], count_tokens)
    assert view.messages == len(messages)
    if not end:
        assert view.tokens == compose(memory, budget=10_000).tokens


def test_the_header_counts() -> None:
    """System messages stand in every prompt."""
    view = view_of(chat(2))

    assert replace(view, header_tokens=100).tokens == view.tokens + 100


@pytest.mark.parametrize("token_threshold", [1, 500, 10**6])
def test_a_token_threshold_retains_at_most_the_usual_and_as_few_as_it_takes(token_threshold: int) -> None:
    """The smallest end that leaves half of the threshold, at least the usual, never past what is closed."""
    view, config = replace(view_of(chat(20)), header_tokens=20), CompactorConfig(retain_recent=10, target_tokens=50)
    end = view.find_due_end(config, token_threshold)
    assert 10 <= end <= 19

    def fits(end: int) -> bool:
        return 20 + 50 + view.count_tokens_after(end) <= token_threshold // 2

    assert end == next((place for place in range(10, 20) if fits(place)), 19)
    assert view.find_due_end(config) == 10


@pytest.mark.parametrize("token_threshold", [None, 1, 10**6])
def test_what_is_covered_stays_covered(token_threshold: int | None) -> None:
    """Where more is to be retained than there is behind the compaction, its end is what is due; rounds before it are
    not even counted."""
    view = view_of(chat(20), 15)
    assert view.find_due_end(CompactorConfig(retain_recent=10, target_tokens=50), token_threshold) == (
        19 if token_threshold == 1 else 15
    )
    assert view.prefix_sums.start == 15


@pytest.mark.parametrize(("end", "calls"), [(0, 5), (3, 2), (4, 1), (5, 0)])
def test_calls_of_the_model_are_counted_in_closed_rounds_and_in_open_ones(end: int, calls: int) -> None:
    """Also behind the open one, where there are none."""
    view = view_of(chat(5))
    assert view.closed == 4
    assert view.count_calls_after(end) == calls


def test_the_summary_costs_its_text_as_the_prompt_shows_it() -> None:
    """With its framing, and nothing where there is none."""
    assert view_of(chat(3)).compaction_tokens == 0
    view = view_of(chat(3), 1)
    assert view.compaction is not None
    assert view.compaction_tokens == cost(answer(view.compaction.to_prompt()))


def test_tokens_behind_a_place_are_those_of_the_rounds_after_it() -> None:
    """So a plan knows what is left when it covers that many."""
    view = view_of(chat(5))
    costs = [cost(user(words(number + 1)), answer()) for number in range(5)]

    for end in range(5):
        assert view.count_tokens_after(end) == sum(costs[end:])


def test_closed_tokens_count_as_a_slice_does() -> None:
    """Backwards is nothing; open rounds, and what lies beyond the end, are not counted."""
    view = view_of(chat(5))
    costs = [cost(user(words(number + 1)), answer()) for number in range(4)]

    assert view.count_closed_tokens(1, 3) == sum(costs[1:3])
    assert view.count_closed_tokens(3, 1) == 0
    assert view.count_closed_tokens(2, 2) == 0
    assert view.count_closed_tokens(0, 99) == sum(costs)
    assert view.count_closed_tokens(7, 99) == 0


@pytest.mark.parametrize(("model", "window"), [("gpt-4", 8_192), ("", 128_000), ("nobody-knows", 128_000)])
def test_the_window_is_the_models(model: str, window: int) -> None:
    """Where nobody knows it, the default stands in."""
    assert view_of(Memory(), model=model).window == window


def test_several_open_rounds_are_counted_with_the_closed_ones_between() -> None:
    """Two Memories write to one session: from the first open round on nothing is closed for good."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    first.create_round("open")
    second.create_round("closed")
    second.create_round("open too")

    view = view_of(second)

    assert (view.total, view.closed) == (3, 0)
    assert view.messages == 3
    assert view.tokens == compose(second, budget=1_000).tokens


def test_a_call_in_an_open_round_that_others_follow_is_counted_with_its_note() -> None:
    """The count is of the messages that compose would send."""
    store = InMemoryStore()
    first, second = Memory("s", store=store), Memory("s", store=store)
    first.append(calls("c"))
    second.create_round("next")

    assert view_of(second).messages == 3
    assert view_of(second).tokens == compose(second, budget=1_000).tokens


def test_posts_of_another_host_may_change_while_their_round_is_open() -> None:
    """A host that streams into a message gets it counted as it is now."""
    post = SimpleNamespace(send_from="A", send_to="User", message="so far")
    host = [SimpleNamespace(user_query="q", post_list=[post], state="created")]
    seen: list[int] = []
    trigger = when(lambda view: bool(seen.append(view.tokens)))
    executor = ManualExecutor()
    compactor = ContextCompactor(
        CompactorConfig(), ScriptedSummarizer(), lambda: host, role="A", trigger=trigger, executor=executor
    )
    compactor.start()
    executor.run_all()
    post.message += words(100)
    compactor.notify_rounds_changed(1)
    executor.run_all()

    assert len(seen) == 2
    assert seen[1] >= seen[0] + 100


def test_a_role_sees_and_pays_for_its_own() -> None:
    """Posts between others are neither messages nor tokens of its view."""
    memory = Memory()
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="A", send_to="B", message=words(50))
    memory.add_post(round_, send_from="B", send_to="User", message="done")

    assert view_of(memory, role="A").messages == 2
    assert view_of(memory, role="B").messages == 3
    assert view_of(memory, role="C").messages == 1
    assert view_of(memory, role="C").tokens == count_prompt([user("q")], count_tokens)


# -- rounds as they read now ------------------------------------------------------------------------------------------


def worked(*names: str) -> Memory:
    """Return a session of one round in which tools of those names were called, then one in which they were again."""
    memory = Memory()
    for query in ("first", "second"):
        memory.append(user(query))
        for number, name in enumerate(names):
            called = calls(f"{query}{number}")
            called["tool_calls"][0]["function"]["name"] = name
            memory.append(called)
            memory.append(result(f"{query}{number}", words(20)))
    return memory


def reduced(memory: Memory, first: int, last: int, kind: str, text: str = "") -> Reduction:
    """Publish a reduction of posts of the first round, by their numbers."""
    round_ = memory.conversation.rounds[0]
    posts = [post for post in round_.post_list if first <= post.number <= last]
    made = Reduction.over(round_, posts, kind, text)  # type: ignore[arg-type]
    assert memory.journal("assistant").reduce(made, base=0) is not None
    return made


def test_the_places_of_the_tail_are_those_behind_the_compaction() -> None:
    """As ``view.rounds`` counts them; none where a compaction covers more than there is."""
    assert view_of(chat(5), 2).places == range(2, 5)
    assert view_of(chat(5)).places == range(5)
    assert not view_of(chat(2), 9).places


def test_a_round_reads_through_its_reductions() -> None:
    """Rounds, units, tokens and messages are of what the prompt shows; the tail is as the log has it."""
    memory = worked("f", "g")
    before = view_of(memory)
    reduced(memory, 1, 2, "dropped")
    view = view_of(memory)

    assert len(view.get_round(0).post_list) == 2
    assert len(view.tail[0].post_list) == 4
    assert view.get_round(1) is view.rounds[1]
    assert view.messages == before.messages - 2
    assert view.tokens == before.tokens - cost(calls("first0"), result("first0", words(20)))
    prompt = compose(memory, budget=10_000)
    told = count_message({"role": "system", "content": note_of(prompt)}, count_tokens)  # where posts were dropped
    assert view.tokens == prompt.tokens - told
    assert view.reductions.of(memory.conversation.rounds[0].id)


def test_a_view_may_be_told_what_has_just_been_published() -> None:
    """A cycle measures again after each overlay, on the same snapshot of the log."""
    memory = worked("f", "g")
    before = view_of(memory)
    reduced(memory, 1, 2, "dropped")

    after = replace(before, given_reductions=memory.rounds_getter("assistant")().reductions)

    assert before.tokens > after.tokens == view_of(memory).tokens


def test_a_call_and_its_results_are_one_group() -> None:
    """How many messages each group has: between two groups, no call is parted from its results."""
    memory = Memory.from_messages([user(), calls("a", "b"), result("b"), result("a"), answer(), calls("c")])

    assert [len(group.posts) for _, group in view_of(memory).list_groups(0)] == [1, 3, 1, 1]
    assert [len(group.posts) for _, group in view_of(worked("f")).list_groups(0)] == [1, 2]


def test_costs_are_of_each_message() -> None:
    """By the view's own counter, in the order of the unit's messages."""
    view = view_of(worked("f"))
    ((round_, query), (_, called)) = view.list_groups(0)

    assert view.list_costs(round_, query) == (cost(user("first")),)
    assert view.list_costs(round_, called) == (cost(calls("first0")), cost(result("first0", words(20))))


def test_pinned_posts_are_known_by_their_round_and_number() -> None:
    """The query is 0; a unit is pinned by any of its posts."""
    memory = worked("f", "g")
    for reference in ("r1.p0", "r1.p4", "r2.p1"):
        memory.pin(reference)
    view = view_of(memory)

    assert view.pinned == {view.rounds[0].id: {0, 4}, view.rounds[1].id: {1}}
    assert [view.is_pinned(round_, unit) for round_, unit in view.list_groups(0)] == [True, False, True]
    assert [view.is_reducible(round_, unit) for round_, unit in view.list_groups(0)] == [False, True, False]
    assert [view.is_pinned(round_, unit) for round_, unit in view.list_groups(1)] == [False, True, False]


def test_what_waits_is_not_reducible() -> None:
    """Calls that the host is about to run, and results that no model has read yet."""
    memory = Memory.from_messages([user(), calls("a"), result("a"), calls("b")])
    assert [view_of(memory).is_reducible(*unit) for unit in view_of(memory).list_groups(0)] == [True, True, False]

    memory.append(result("b"))
    assert not view_of(memory).is_reducible(*view_of(memory).list_groups(0)[2])
    memory.append(answer("Read."))
    assert view_of(memory).is_reducible(*view_of(memory).list_groups(0)[2])


@pytest.mark.parametrize("tool", sorted(RECALL_TOOLS))
def test_what_was_recalled_is_not_reducible_in_the_newest_round(tool: str) -> None:
    """Or the agent would reload it for ever; in older rounds it is a result like any other."""
    memory = worked(tool, "f")
    memory.append(answer("Read."))
    view = view_of(memory)

    assert [view.is_reducible(*unit) for unit in view.list_groups(0)] == [True, True, True]
    assert [view.is_reducible(*unit) for unit in view.list_groups(1)][:3] == [True, False, True]


def test_the_correction_makes_the_prompt_as_long_as_the_provider_says() -> None:
    """Our own count times what the provider's count taught; nothing known, nothing corrected."""
    memory = chat(5)
    assert view_of(memory).corrected_tokens == view_of(memory).tokens

    memory.record_usage("assistant", 1_090, counted=1_000)
    view = view_of(memory)

    assert view.usage.steps == 2
    assert view.tokens * 1.1 <= view.corrected_tokens < view.tokens * 1.1 + 1
