"""What a summarizer may go on from: the beginning of the agent's last prompt, exactly as it was sent, or nothing."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from chats import Message, answer, assert_paired, calls, result, user, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import on_command
from views import get_token_cache

from compactor import (
    CompactorConfig,
    ContinuedPrompt,
    Prompt,
    SummaryRequest,
    View,
    compact_view,
    compose,
    count_message,
    count_tokens,
)
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, Reduction, Round, StaleCompaction, open_store
from prompts import load

ASSISTANT = "assistant"
CONFIG = CompactorConfig(threshold=3, retain_recent=2, model="m-1")
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
WIDE = 100_000


def talk(memory: Memory, first: int, last: int) -> None:
    """Rounds of a question, a call with its result, and an answer."""
    for number in range(first, last + 1):
        memory.append(user(f"Question {number}"))
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", f"Result {number}: {words(40)}"))
        memory.append(answer(f"Answer {number}"))


def asked(memory: Memory, number: int, **more: Any) -> Prompt:
    """Have the user ask the next question; return the agent's prompt for it."""
    memory.append(user(f"Question {number}"))
    return prompted(memory, **more)


def prompted(memory: Memory, **more: Any) -> Prompt:
    settings: dict[str, Any] = {"budget": WIDE, "system": "Be brief.", "model": "m-1"} | more
    return compose(memory, **settings)


def requested(memory: Memory, config: CompactorConfig = CONFIG, **more: Any) -> SummaryRequest:
    """Return the first request of a compactor that has work."""
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory, summarizer, config, **more)
    compactor.start()
    executor.run_all()
    return summarizer.requests[0]


@pytest.fixture(autouse=True)
def role_is_the_assistant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scene.ROLE", ASSISTANT)


def test_what_the_prompt_began_with_is_continued() -> None:
    """Messages, tools and tool choice are those that were sent, up to the end of the last round that is covered; the
    instruction is the role's own, and asks for no transcript."""
    memory = Memory("s")
    talk(memory, 1, 5)
    prompt = asked(memory, 6, tools=TOOLS, tool_choice="auto")
    request = requested(memory)
    going_on = request.continued_prompt
    assert going_on is not None
    *beginning, instruction = going_on.messages
    assert beginning == prompt.messages[:17]  # the system message and four rounds of four
    assert (going_on.tools, going_on.tool_choice, going_on.model) == (tuple(TOOLS), "auto", "m-1")
    assert instruction == {
        "role": "user",
        "content": load().instruct(role=ASSISTANT, target_tokens=request.target_tokens),
    }
    assert "Question" not in repr(going_on)


@pytest.mark.parametrize("summary_as", ["system", "user", "header"])
def test_the_next_is_continued_behind_the_summary(summary_as: str) -> None:
    """Once it is shown, the compaction is part of the beginning, wherever it stands there, and the instruction says
    how it is headed."""
    memory = Memory("s")
    talk(memory, 1, 4)
    prompted(memory, summary_as=summary_as)
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory, summarizer, CONFIG)
    compactor.start()
    executor.run_all()
    talk(memory, 5, 6)
    prompt = asked(memory, 7, summary_as=summary_as)
    sent = json.dumps(prompt.messages)
    executor.run_all()
    first, second = summarizer.requests
    assert (first.end_index, second.start_index, second.end_index) == (2, 3, 5)
    assert second.continued_prompt is not None
    head = 1 if summary_as == "header" else 2
    continued = second.continued_prompt.messages[:-1]
    assert continued == prompt.messages[: head + 3 * 4]
    assert sent.startswith(json.dumps(continued).removesuffix("]"))
    assert [message["role"] for message in continued[:3]].count("system") == (2 if summary_as == "system" else 1)
    assert "Summary of rounds 1-2" in continued[head - 1]["content"]
    assert "headed [Conversation History Summary]" in second.continued_prompt.messages[-1]["content"]


def test_what_the_host_does_to_its_messages_changes_nothing() -> None:
    """They are the host's; what was composed is made again."""
    memory = Memory("s")
    talk(memory, 1, 5)
    prompt = asked(memory, 6)
    sent = copy.deepcopy(prompt.messages)
    for message in prompt.messages:
        message["content"] = "changed"
    del prompt.messages[3:]
    going_on = requested(memory).continued_prompt
    assert going_on is not None
    assert going_on.messages[:-1] == sent[:17]


def test_what_a_summarizer_does_to_its_messages_changes_nothing() -> None:
    """Nor are they shared by two requests."""
    memory = Memory("s")
    talk(memory, 1, 5)
    prompt = asked(memory, 6)
    for _ in range(2):
        going_on = request_of(memory, 4)
        assert going_on is not None
        assert going_on.messages[:-1] == prompt.messages[:17]
        for message in going_on.messages:
            message["content"] = "changed"


@pytest.mark.parametrize("summary_as", ["system", "user", "header"])
def test_a_line_about_drops_and_an_older_question_stand_in_the_beginning(summary_as: str) -> None:
    """Whatever compose puts between the head and the tail was sent as well."""
    memory = Memory("s")
    talk(memory, 1, 1)
    for number in range(2, 6):  # rounds in which the user is silent
        memory.finish_round(memory.conversation.rounds[-1])
        memory.append(answer(f"Answer {number}"))
    dropped = memory.conversation.rounds[4]
    publish(memory, 1)
    journal = memory.journal(ASSISTANT)
    journal.reduce(Reduction.over(dropped, dropped.post_list[:1], "dropped"), base=1)
    prompt = prompted(memory, summary_as=summary_as)
    head = 1 if summary_as == "header" else 3
    assert "Left out" in prompt.messages[head - 1]["content"]
    assert prompt.messages[head] == user("Question 1")
    going_on = request_of(memory, 2)
    assert going_on is not None
    assert going_on.messages[:-1] == prompt.messages[: head + 3]


# -- what is not continued --------------------------------------------------------------------------------------------


def request_of(memory: Memory, count: int = 2, limit: int = WIDE) -> ContinuedPrompt | None:
    """Ask for the *count* rounds behind the compaction, as a strategy would."""
    view = seen(memory)
    return going_on_with(memory, view, view.rounds[view.end : view.end + count], limit)


def going_on_with(memory: Memory, view: View, rounds: Sequence[Round], limit: int = WIDE) -> ContinuedPrompt | None:
    last = view.token_cache.prompt_limits.last_prompt
    if last is None:
        return None
    return last.go_on(view, view.compaction, rounds, "Summarise.", limit=limit)


def seen(memory: Memory) -> View:
    rounds, _ = memory.get_role_rounds(ASSISTANT)
    compaction = rounds.anchor(memory.journal(ASSISTANT).read().current)
    token_cache = get_token_cache(memory, ASSISTANT, count_tokens)
    return View(rounds, compaction, token_cache)


def publish(memory: Memory, end: int, summary: str = "All before.") -> None:
    rounds, _ = memory.get_role_rounds(ASSISTANT)
    journal = memory.journal(ASSISTANT)
    made = CompactedMessage(start_index=1, end_index=end, summary=summary, end_round_id=rounds[end - 1].id)
    journal.publish(made, base=journal.read().generation, round_ids=[rounds[end - 1].id])


def reduce(memory: Memory, place: int) -> None:
    round_ = memory.conversation.rounds[place]
    journal = memory.journal(ASSISTANT)
    made = Reduction.over(round_, round_.post_list[2:3], "offloaded", "[...]")
    assert journal.reduce(made, base=journal.read().generation) is not None


@pytest.fixture
def memory() -> Memory:
    memory = Memory("s")
    talk(memory, 1, 5)
    return memory


def test_without_a_prompt_there_is_nothing_to_continue(memory: Memory) -> None:
    """Nor from that of another role or of another Memory, nor for rounds that are none."""
    compose(memory, "Planner", budget=WIDE)
    prompted(Memory("s"))
    assert request_of(memory) is None
    prompted(memory)
    assert request_of(memory) is not None
    assert request_of(memory, 0) is None
    assert request_of(Memory("other")) is None


def test_a_publication_since_then_ends_it(memory: Memory) -> None:
    """The prompt shows another beginning then; the next one shows it, and can be continued."""
    asked(memory, 6)
    publish(memory, 2)
    assert request_of(memory) is None
    prompted(memory)
    assert request_of(memory) is not None


def test_a_summary_that_is_only_deferred_is_no_beginning(memory: Memory) -> None:
    """What was prepared and not shown stands in no prompt."""
    asked(memory, 6)
    view = seen(memory)
    held = CompactedMessage(start_index=1, end_index=1, summary="Held.")
    assert going_on_with(memory, replace(view, compaction=held), view.rounds[:2]) is None
    assert going_on_with(memory, replace(view, compaction=held), view.rounds[1:2]) is None


def test_a_prompt_that_was_cut_is_not_continued(memory: Memory) -> None:
    """Neither what is left out nor what is shortened can be summarised from it; nor can an older prompt be."""
    asked(memory, 6)
    assert prompted(memory, budget=250).report.omitted_rounds
    assert request_of(memory) is None


def test_a_reduced_round_is_not_continued_where_the_log_is_read(memory: Memory) -> None:
    """The log's text is to be summarised, and the prompt shows a preview; beside it, the others can be."""
    reduce(memory, 1)
    asked(memory, 6)
    assert request_of(memory, 1) is not None
    assert request_of(memory, 2) is None


def test_a_reduction_since_then_changes_nothing_for_who_reads_the_log(memory: Memory) -> None:
    """The prompt that was sent shows the text itself, which is what is to be summarised."""
    prompt = asked(memory, 6)
    reduce(memory, 1)
    going_on = request_of(memory, 2)
    assert going_on is not None
    assert going_on.messages[:-1] == prompt.messages[:9]


def test_who_summarises_what_the_view_shows_continues_with_reductions(memory: Memory) -> None:
    """``compact_view`` reads nothing in full again that was reduced before: just what the prompt shows."""
    reduce(memory, 1)
    prompt = asked(memory, 6)
    going_on = requested(memory, strategies=(compact_view,)).continued_prompt
    assert going_on is not None
    assert going_on.messages[:-1] == prompt.messages[:17]


def test_a_round_that_failed_since_then_is_in_no_summary(memory: Memory) -> None:
    """The prompt shows it still."""
    asked(memory, 6)
    memory.finish_round(memory.conversation.rounds[1], state="failed")
    assert request_of(memory, 1) is not None
    assert request_of(memory, 2) is None


def test_what_is_erased_is_not_sent_again(memory: Memory) -> None:
    """Not even from memory: the prompt is forgotten, with all that it knew."""
    asked(memory, 6)
    memory.redact("r5.p1")
    assert request_of(memory, 1) is None
    assert seen(memory).tokens
    assert seen(memory).token_cache.prompt_limits.last_prompt is None
    prompted(memory)
    assert request_of(memory, 1) is not None


def test_what_was_said_since_in_the_last_round_is_added(memory: Memory) -> None:
    """A compaction may be due as soon as the user speaks again: the agent's answer before that is in no prompt yet."""
    prompt = asked(memory, 6)
    memory.append(answer("Answer 6"))
    memory.append(user("Question 7"))
    going_on = request_of(memory, 6)
    assert going_on is not None
    assert going_on.messages == [*prompt.messages, answer("Answer 6"), user("Summarise.")]
    prompted(memory)
    memory.append(answer("Answer 7"))
    memory.append(user("Question 8"))
    memory.finish_round(memory.conversation.rounds[-1])
    assert request_of(memory, 7) is not None
    assert request_of(memory, 8) is None


def test_a_call_that_waited_for_its_result_is_never_left_open(memory: Memory) -> None:
    """Providers refuse a call without its result: also where the host never gave it one, or gives some later."""
    memory.append(user("Question 6"))
    memory.append(calls("c6", "c7"))
    prompt = prompted(memory)
    memory.append(result("c7", "late"))
    memory.append(user("Question 7"))
    going_on = request_of(memory, 6)
    assert going_on is not None
    assert going_on.messages[: len(prompt.messages)] == prompt.messages
    assert_paired(going_on.messages)


def test_a_round_that_another_one_followed_is_shown_to_its_end_or_not_at_all() -> None:
    """In the middle of the beginning nothing may be added: all behind it would be another prompt."""
    store = InMemoryStore()
    memory, elsewhere = Memory("s", store=store), Memory("s", store=store)
    first = memory.create_round("Question 1")
    second = elsewhere.create_round("Question 2")
    memory.refresh()
    prompted(memory)
    memory.add_post(first, send_from=ASSISTANT, send_to="User", message="Answer 1")
    memory.finish_round(first)
    memory.finish_round(second)
    assert request_of(memory, 1) is not None
    assert request_of(memory, 2) is None


def test_the_plan_stands_where_the_provider_has_it(memory: Memory) -> None:
    """Before the newest question: where that is summarised as well, what the provider was sent has the plan in it."""
    prompt = prompted(memory, plan="1. [ ] book")
    assert "[The plan" in prompt.messages[17]["content"]
    for count, sent in ((4, 17), (5, 22)):
        going_on = request_of(memory, count)
        assert going_on is not None
        assert going_on.messages[:-1] == prompt.messages[:sent]
    assert "book" not in repr(seen(memory).token_cache.prompt_limits.last_prompt)


def test_a_plan_between_the_rounds_is_sent_as_it_was(memory: Memory) -> None:
    """Behind it, too, the provider has the same conversation in its cache; also where all that the user said is
    covered, so that the plan stands before the tail."""
    for number in (6, 7):  # rounds in which the user is silent
        memory.finish_round(memory.conversation.rounds[-1])
        memory.append(answer(f"Answer {number}"))
    for end, count in ((0, 6), (5, 1)):
        if end:
            publish(memory, end)
        prompt = prompted(memory, plan="1. [ ] book")
        going_on = request_of(memory, count)
        assert going_on is not None
        assert going_on.messages[:-1] == prompt.messages[:-1]
        assert "[The plan" in texts_of(going_on.messages)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
def test_a_model_that_must_call_a_tool_is_not_asked(memory: Memory, choice: Any) -> None:
    """It could not answer with a summary, and another choice would be another request."""
    prompted(memory, tools=TOOLS, tool_choice=choice)
    assert request_of(memory) is None


def test_the_longer_request_keeps_to_the_summarizers_limit(memory: Memory) -> None:
    """``summarizer_input_tokens`` bounds it, tools and instruction included."""
    prompt = prompted(memory, tools=TOOLS)
    tokens = prompt.tokens + count_message(user("Summarise."), count_tokens)
    assert request_of(memory, 5, tokens) is not None
    assert request_of(memory, 5, tokens - 1) is None


def test_what_does_not_fit_is_folded_in_steps() -> None:
    """Only the first step starts from what the prompt shows; the others start from a summary that nobody has seen."""
    memory = Memory("s")
    talk(memory, 1, 12)
    asked(memory, 13)
    summarizer = ScriptedSummarizer()
    config = CompactorConfig(threshold=3, retain_recent=2, summarizer_input_tokens=1_000, target_tokens=200)
    compactor, executor, _ = on_command(memory, summarizer, config)
    compactor.start()
    executor.run_all()
    first, *others = summarizer.requests
    assert others
    assert first.continued_prompt is not None
    assert [request.continued_prompt for request in others] == [None] * len(others)
    current = compactor.get_compaction()
    assert current is not None
    assert current.end_index == 11


def test_a_round_in_pieces_is_asked_for_separately() -> None:
    """A piece of a round is no beginning of a prompt."""
    memory = Memory("s")
    memory.append(user("Read this"))
    memory.append(answer(" ".join(map(str, range(1_000)))))
    talk(memory, 2, 5)
    asked(memory, 6)
    config = CompactorConfig(threshold=3, retain_recent=4, summarizer_input_tokens=1_500, target_tokens=200)
    assert requested(memory, config).continued_prompt is None


def test_rounds_that_are_read_from_a_store_are_continued(tmp_path: Any) -> None:
    """A prompt is not kept in memory, and is made again from the store all the same."""
    with closing(open_store(f"sqlite:///{tmp_path / 'chat.db'}")) as store:
        talk(Memory("s", store=store), 1, 5)
        memory = Memory("s", store=store)
        prompt = asked(memory, 6)
        going_on = request_of(memory, 4)
        assert going_on is not None
        assert going_on.messages[:-1] == prompt.messages[:17]


@pytest.mark.slow
def test_a_memory_that_is_let_go_of_is_let_go_of() -> None:
    """What is known of its prompts keeps neither it nor its rounds alive."""
    memory = Memory("s")
    talk(memory, 1, 2)
    prompted(memory)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None


# -- whatever happens -------------------------------------------------------------------------------------------------

said = st.sampled_from(["", "yes", "Where is my order?", "漢字 🎉", "{}</summary>", words(60)])
questions = st.lists(st.builds(user, said), min_size=1, max_size=2)


@st.composite
def work(draw: st.DrawFn) -> list[Message]:
    """What an agent does: answers, or calls tools, of which some answer, in any order."""
    if draw(st.booleans()):
        return [answer(draw(said))]
    ids = draw(st.lists(st.sampled_from(["c0", "c1", "c2"]), min_size=1, max_size=3))
    answered = draw(st.permutations(ids))[: draw(st.integers(0, 3))]
    return [calls(*ids), *(result(id_, draw(said)) for id_ in answered)]


def told_apart(goes: list[list[Message]]) -> list[Message]:
    """Return all messages, no two of which say the same."""
    messages = [message for go in goes for message in go]
    return [message | {"content": f"{message['content']} #{number}"} for number, message in enumerate(messages)]


histories = st.lists(st.one_of(questions, work(), work()), min_size=2, max_size=10).map(told_apart)


def shorten(memory: Memory, place: int) -> None:
    """Publish a reduction of a round's last post, if that may be."""
    round_, journal = memory.get_role_rounds(ASSISTANT)[0][place], memory.journal(ASSISTANT)
    with suppress(StaleCompaction):
        made = Reduction.over(round_, round_.post_list[-1:] or [None], "offloaded", "...")
        journal.reduce(made, base=journal.read().generation)


def happen(memory: Memory, data: st.DataObject) -> bool:
    """Let something happen after a prompt; return whether rounds and compaction read as before."""
    rounds = memory.get_role_rounds(ASSISTANT)[0]
    what = data.draw(st.sampled_from(["nothing", "goes on", "failed", "erased", "reduced", "published"]))
    place = data.draw(st.integers(0, len(rounds) - 1))
    if what == "goes on":
        for message in data.draw(histories):
            memory.append(message | {"content": f"later {message['content']}"})
    elif what == "failed":
        memory.finish_round(rounds[place], state="failed")
    elif what == "erased" and rounds[place].post_list:
        memory.redact(rounds[place].post_list[0])
    elif what == "reduced":
        shorten(memory, place)
    elif what == "published" and seen(memory).end <= place < rounds.closed:
        publish(memory, place + 1, "Newer.")
    return what in ("nothing", "goes on")


def texts_of(messages: Sequence[Message]) -> str:
    return "\n".join(str(message.get("content")) for message in messages)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, data=st.data())
def test_what_is_continued_is_a_beginning_of_the_last_prompt(history: list[Message], data: st.DataObject) -> None:
    """Whatever was said before and happens after: it is what was sent, word for word, and ends where the last covered
    round does, with what was said there since; it holds all that is to be summarised, and no call without its result.
    Where nothing happens and nothing was cut, every closed round can be continued."""
    memory = Memory("s")
    for message in history:
        memory.append(message)
    settled = memory.get_role_rounds(ASSISTANT)[0].closed
    if settled and data.draw(st.booleans()):
        publish(memory, data.draw(st.integers(1, settled)))
    reduced = data.draw(st.booleans())
    if reduced:
        shorten(memory, data.draw(st.integers(0, len(memory.get_role_rounds(ASSISTANT)[0]) - 1)))
    budget = data.draw(st.sampled_from([WIDE, WIDE, 300]))
    prompt = compose(memory, budget=budget, system="Be brief.", plan=data.draw(st.sampled_from([None, "1. [ ] go"])))
    sent, before, cut = copy.deepcopy(prompt.messages), seen(memory), prompt.report.tokens_before > budget
    same = happen(memory, data)
    view, plain = seen(memory), seen(Memory.from_messages([*memory.messages(), user("later")]))
    plan_at = next((n for n, message in enumerate(sent) if "[The plan" in str(message["content"])), len(sent))
    for count in range(1, view.closed - view.end + 1):
        covered = view.rounds[view.end : view.end + count]
        going_on = going_on_with(memory, view, covered)
        if going_on is None:
            assert cut or reduced or not same or view.end + count > settled
            continue
        *beginning, instruction = going_on.messages
        assert instruction == user("Summarise.")
        shared = next((n for n, pair in enumerate(zip(beginning, sent, strict=False)) if pair[0] != pair[1]), len(sent))
        behind = sum(len(unit.messages) for place in before.places[count:] for _, unit in before.list_groups(place))
        end = (
            len(sent) - behind - (plan_at >= len(sent) - behind - 1)
        )  # the plan is sent where something stands behind it
        assert shared >= end
        assert beginning[:end] == sent[:end]
        assert_paired([*beginning, instruction])
        for post in (post for round_ in covered for post in round_.post_list):
            assert post.message in texts_of(beginning)
        read = [
            message
            for place in plain.places[view.end : view.end + count]
            for _, unit in plain.list_groups(place)
            for message in unit.messages
        ]
        said = [message for message in beginning if "[The plan" not in str(message["content"])]
        assert said[len(said) - len(read) :] == read
