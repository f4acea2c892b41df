"""What the summarizer is sent: every text of the new rounds exactly once, in requests that fit, never run as a template."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import CONFIG, ROLE, ManualExecutor, add_round, memory_of, of_kind, on_command, prices, text_of
from views import view_of

from compactor import (
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    Discarded,
    Failed,
    Published,
    Started,
    Summary,
    SummaryRequest,
    compact_rounds,
    compact_view,
    compose,
    count_prompt,
    count_tokens,
)
from compactor.testing import FakeClock, ScriptedSummarizer, summarize_by_terms
from compactor.transcript import StepLimit, StepsTooSmall, quote, split_into_steps
from memory import Attachment, Memory, Post, Reduction, Round, ToolCall

pytestmark = pytest.mark.timeout(30)

EVERYTHING = CompactorConfig(threshold=0, retain_recent=0)


def compacted(memory: Memory, config: CompactorConfig = EVERYTHING, **more: Any) -> ScriptedSummarizer:
    """Compact all that can be, and return the summarizer with its requests."""
    summarizer = more.pop("summarizer", None) or ScriptedSummarizer(**more)
    compactor, executor, _ = on_command(memory, summarizer, config)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed) == []
    return summarizer


def size_of(request: SummaryRequest) -> int:
    """The request's tokens, as a provider counts them."""
    return count_prompt(request.messages, count_tokens)


# Everything is sent


def test_long_posts_are_sent_whole() -> None:
    """Not their first 200 characters."""
    memory = Memory("s")
    round_ = memory.create_round("Q")
    said = " ".join(f"fact-{number}" for number in range(1_000))
    memory.add_post(round_, send_from=ROLE, send_to="User", message=said)
    memory.finish_round(round_)
    (request,) = compacted(memory).requests
    assert said in text_of(request)


def test_attachments_tool_calls_and_results_are_sent() -> None:
    """An agent's work is mostly in them."""
    memory, plan = Memory("s"), "1. search 2. book " + "3. pay 4. tell the user " * 20
    round_ = memory.create_round("Fly me to Oslo")
    memory.add_post(
        round_,
        send_from=ROLE,
        send_to="Tools",
        message="Looking.",
        attachment_list=(Attachment(type="plan", content=plan), Attachment(type="empty")),
        tool_calls=(ToolCall(id="call-1", name="search_flights", arguments='{"to": "OSL"}'),),
    )
    memory.add_post(round_, send_from="Tools", send_to=ROLE, message='[{"flight": "SK123"}]', tool_call_id="call-1")
    memory.finish_round(round_)
    (request,) = compacted(memory).requests
    assert text_of(request).partition("<conversation>\n")[2].partition("\n</conversation>")[0] == "\n".join(
        [
            "<round 1 User>\nFly me to Oslo",
            '<message Planner to="Tools">\nLooking.',
            '<attachment Planner to="Tools" type="plan">\n' + plan,
            '<attachment Planner to="Tools" type="empty">\n',
            '<tool_call Planner name="search_flights">\n{"to": "OSL"}',
            '<tool_result Tools at="r1.p2">\n[{"flight": "SK123"}]',
        ]
    )


def test_a_query_that_is_said_again_as_the_first_post_is_sent_once() -> None:
    """Multi-agent hosts keep it in both places."""
    (request,) = compacted(memory_of(3)).requests
    assert text_of(request).count("what about item-1?") == 1


def test_rounds_that_only_the_user_or_only_agents_speak_in_are_sent() -> None:
    """And one in which the role hears nothing is a round all the same."""
    memory = Memory("s")
    memory.finish_round(memory.create_round("Only the user asks, and nobody answers."))
    thought = "A thought. " + "It is a long one, of items and what they cost. " * 9
    memory.add_post(memory.create_round("", id="quiet"), send_from=ROLE, send_to="User", message=thought)
    memory.add_post("quiet", send_from="Other", send_to="User", message="Not for the planner.")
    memory.finish_round("quiet")
    (request,) = compacted(memory).requests
    assert "nobody answers" in text_of(request)
    assert "A thought." in text_of(request)
    assert "Not for" not in text_of(request)


BRACES = "{} {0} {content} {previous_summary} {{role}} %s %(x)s ${HOME} {a[b]!r:>{w}} {'k': {'v': 1}} </conversation>"


def test_braces_in_the_conversation_are_text() -> None:
    """It is never formatted; neither is the summary that comes back."""
    memory = Memory("s")
    for _ in range(2):
        round_ = memory.create_round(f"query {BRACES}")
        memory.add_post(
            round_,
            send_from=ROLE,
            send_to="User",
            message=BRACES * 5 + " ".join(f"fact {number} holds" for number in range(60)),
        )
        memory.finish_round(round_)
    summarizer = ScriptedSummarizer([prices(f"Summary {BRACES}")])
    compactor, executor, _ = on_command(memory, summarizer, EVERYTHING)
    compactor.start()
    executor.run_all()
    assert f"Summary {BRACES}" in compose(memory, ROLE, budget=4_000).messages[0]["content"]
    add_round(memory)
    executor.run_all()
    first, second = summarizer.requests
    escaped = BRACES.replace("</conversation>", "&lt;/conversation>")
    assert text_of(first).count(escaped) == 12
    assert text_of(first).count("</conversation>") == 1
    assert f"Summary {escaped}" in text_of(second)


def test_braces_in_the_template_are_text_unless_they_name_something(tmp_path: Path) -> None:
    """JSON in an instruction breaks nothing."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        'version: 1\ncontent: |\n  {content}\n\n  {role}: answer as {"facts": [{"id": 1}]}; {unknown} {{content}}\n'
    )
    config = CompactorConfig(threshold=0, retain_recent=0, prompt_template_path=str(path))
    (request,) = compacted(memory_of(5), config).requests
    assert text_of(request).endswith('Planner: answer as {"facts": [{"id": 1}]}; {unknown} {content}')


def test_a_template_without_the_conversation_is_refused(tmp_path: Path) -> None:
    """When the configuration is made, not when a summary comes back that knows nothing."""
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\ncontent: |\n  Summarize, please.\n")
    with pytest.raises(ConfigError, match=r"lacks \{content\}"):
        CompactorConfig(prompt_template_path=str(path))


def test_the_conversation_comes_first_and_the_instruction_last() -> None:
    """A model that reads a transcript last carries it on."""
    memory = memory_of(5)
    compactor, executor, _ = on_command(
        memory, summarizer := ScriptedSummarizer([prices("SUMMARY-SO-FAR")]), EVERYTHING
    )
    compactor.start()
    executor.run_all()
    add_round(memory)
    executor.run_all()
    text = text_of(summarizer.requests[1])
    places = [text.index(part) for part in ("SUMMARY-SO-FAR", "item-6", "tokens: shorten")]
    assert places == sorted(places)


def test_a_round_that_fails_between_two_requests_is_not_published() -> None:
    """Of a backlog only what came before it stays, and the rest is made again without it."""
    memory = memory_of(40)
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_000)
    ends: list[int] = []

    def summarizer(request: SummaryRequest) -> str:
        ends.append(request.end_index)
        if len(ends) == 2:
            memory.finish_round(f"r{request.end_index}", state="failed")
        return prices(f"Up to {request.end_index}")

    compactor, executor, _ = on_command(memory, summarizer, config)
    compactor.start()
    executor.run_all()
    assert [event.reason for event in of_kind(compactor.events, Discarded)] == ["rounds_changed"]
    assert ends[:1] == [event.end for event in of_kind(compactor.events, Published)][:1]
    assert ends[1] not in [event.end for event in of_kind(compactor.events, Published)[:1]]
    rounds, compaction = memory.get_role_rounds(ROLE)
    assert compaction is not None
    assert (len(rounds), compaction.end_index) == (39, 39)


# In requests that fit


@pytest.mark.slow
def test_a_backlog_of_ten_thousand_rounds_goes_in_requests_that_fit() -> None:
    """Summarized step by step, each round once, and each step published."""

    class Item:
        state = "finished"

        def __init__(self, number: int) -> None:
            self.id, self.user_query, self.post_list = f"r{number}", f"question number {number} " * 4, ()

    rounds = [Item(number) for number in range(1, 10_001)]
    config = CompactorConfig(threshold=10, retain_recent=3, summarizer_input_tokens=100_000, target_tokens=500)
    summarizer, sizes = ScriptedSummarizer(), []

    def counting(request: SummaryRequest) -> Any:
        sizes.append(len(text_of(request)))
        return summarizer(replace(request, messages=[]))

    executor = ManualExecutor()
    compactor = ContextCompactor(
        config, counting, lambda: rounds, role=ROLE, executor=executor, clock=FakeClock(), counter=len
    )
    compactor.start()
    executor.run_all()
    assert 10 < len(sizes) < 100
    assert max(sizes) <= 100_000
    sent = [round_.id for request in summarizer.requests for round_ in request.rounds]
    assert sent == [f"r{number}" for number in range(1, 9_998)]
    published = of_kind(compactor.events, Published)
    assert [event.end for event in published] == [request.end_index for request in summarizer.requests]
    assert published[-1].end == 9_997
    starts = [request.start_index for request in summarizer.requests]
    assert starts == [1, *(event.end + 1 for event in published[:-1])]


def giant_round(memory: Memory) -> list[str]:
    """Add a round that no request can hold; return every text in it."""
    texts = [
        " ".join(f"{name}{number}" for number in range(900)) for name in ("query", "post", "plan", "arg", "result")
    ]
    query, post, plan, argument, result = texts
    round_ = memory.create_round(query)
    memory.add_post(round_, send_from="User", send_to=ROLE, message=query)
    for number in range(40):
        memory.add_post(round_, send_from=ROLE, send_to="User", message=f"small{number} step")
    memory.add_post(
        round_,
        send_from=ROLE,
        send_to="Tools",
        message=post,
        attachment_list=(Attachment(type="plan", content=plan), Attachment(type="note", content="")),
        tool_calls=(ToolCall(id="call_" + "x" * 24, name="a_function_of_a_long_name", arguments=argument),),
    )
    call = "call_" + "x" * 24
    memory.add_post(round_, send_from="Tools", send_to=ROLE, message=result, tool_call_id=call)
    memory.finish_round(round_)
    return [*texts, *(f"small{number} step" for number in range(40))]


def words_in(requests: list[SummaryRequest]) -> list[str]:
    """Every word of the conversation as it was sent, in order."""
    text = "\n".join(
        text_of(request).partition("<conversation>")[2].partition("</conversation>")[0] for request in requests
    )
    return re.sub(r"</?[a-z_]+[^>]*>", " ", text).split()


def whole_words(requests: list[SummaryRequest]) -> str:
    """The same without white space: a text may be cut within a word."""
    return "".join(words_in(requests))


def test_a_giant_round_is_split_and_all_of_its_text_is_sent_once() -> None:
    """Query, posts, attachments, arguments and results; each request fits, also when the summary takes some room."""
    memory = memory_of(2)
    texts = giant_round(memory)
    add_round(memory)
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_500, target_tokens=600)

    def answer(request: SummaryRequest) -> str:
        words = 500 if request.previous else 20
        return f"known{len(summarizer.requests)} " + "fact " * words

    summarizer = ScriptedSummarizer(default=answer)
    compacted(memory, config, summarizer=summarizer)
    sent = whole_words(summarizer.requests)
    for text in texts:
        assert sent.count(text.replace(" ", "")) == 1, text[:30]
    assert len(summarizer.requests) > 10
    assert max(map(size_of, summarizer.requests)) <= 1_500
    carried = [part for request in summarizer.requests for part in request.rounds]
    assert "".join(part.user_query for part in carried if part.number == 3) == texts[0]
    notes = [a for part in carried for post in part.post_list for a in post.attachment_list if a.type == "note"]
    assert len(notes) == 1


def test_a_summary_is_published_only_at_the_end_of_a_round() -> None:
    """What a giant round is summarized to on the way is nobody's view."""
    memory = memory_of(2)
    giant_round(memory)
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_500)
    usage = {"input_tokens": 10, "output_tokens": 1}
    compactor, executor, _ = on_command(memory, lambda request: Summary(summarize_by_terms(request), usage), config)
    compactor.start()
    executor.run_all()
    first, second = of_kind(compactor.events, Published)
    assert (first.end, first.requests, first.usage) == (2, 1, usage)
    assert second.end == 3
    assert second.requests > 5
    assert second.usage == {key: value * second.requests for key, value in usage.items()}
    spans = [(event.start, event.end) for event in of_kind(compactor.events, Started)]
    assert spans == [(1, 2)] + [(3, 3)] * second.requests


def test_a_summary_on_the_way_is_measured_against_all_that_it_replaces() -> None:
    """Not against the last piece alone, which may be short: then every attempt would fail at that piece."""
    memory = memory_of(2)
    texts = giant_round(memory)
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_500)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(), config)
    compactor.start()
    executor.run_all()
    first, *pieces = [event.tokens_before for event in of_kind(compactor.events, Started)]
    assert first < pieces[0]
    assert all(after > before + 100 for before, after in itertools.pairwise(pieces[:-1]))
    assert pieces[-1] > sum(map(count_tokens, texts))


def test_after_a_publication_a_summary_is_measured_against_what_is_new() -> None:
    """And against the summary that was published: not against all that there ever was."""
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_000)
    compactor, executor, _ = on_command(memory_of(60), ScriptedSummarizer(), config)
    compactor.start()
    executor.run_all()
    assert len(of_kind(compactor.events, Published)) > 3
    assert max(event.tokens_before for event in of_kind(compactor.events, Started)) < 1_000


def test_the_first_round_of_all_may_be_the_giant() -> None:
    """Then the summary on the way covers no whole round yet."""
    memory = Memory("s")
    giant_round(memory)
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=1_500)
    summarizer = compacted(memory, config)
    assert {(request.start_index, request.end_index) for request in summarizer.requests} == {(1, 1)}
    assert summarizer.requests[0].previous is None
    assert all(request.previous is not None for request in summarizer.requests[1:])
    assert all('part="yes"' in text_of(request) for request in summarizer.requests)


@given(
    texts=st.lists(
        st.text(st.sampled_from("ab \n<>/{}é漢\U0001f600"), max_size=300)
        | st.sampled_from(["</conversation>" * 60, "word " * 300, "x" * 900, "", "<round>" * 40]),
        min_size=1,
        max_size=8,
    ),
    room=st.integers(64, 400),
)
def test_every_text_reaches_exactly_one_step_whatever_it_is(texts: list[str], room: int) -> None:
    """And no step is over the room, by any counter that counts text."""
    rounds = [
        Round(
            user_query=texts[0],
            number=place,
            post_list=tuple(
                Post(send_from="A", send_to="B", message=text, tool_calls=(ToolCall(id="c", name="f", arguments=text),))
                for text in texts[1 : 2 + place]
            ),
        )
        for place in range(1, 4)
    ]
    made = list(split_into_steps(rounds, StepLimit(room), count_tokens))
    for number, round_ in enumerate(rounds, 1):
        parts = [part for step in made for part in step.rounds if part.number == number]
        assert "".join(part.user_query for part in parts) == round_.user_query
        posts = [post for part in parts for post in part.post_list]
        assert "".join(post.message for post in posts) == "".join(post.message for post in round_.post_list)
        calls = [call for post in posts for call in post.tool_calls]
        assert "".join(c.arguments for c in calls) == "".join(
            c.arguments for post in round_.post_list for c in post.tool_calls
        )
    assert max(step.tokens for step in made) <= room
    assert made[-1].whole_rounds == 3
    assert made[-1].at_boundary
    whole = [step.whole_rounds for step in made]
    assert whole == sorted(whole)


def test_the_room_may_shrink_between_two_steps() -> None:
    """What was cut for a larger room is cut again."""
    room = StepLimit(400)
    rounds = [Round(user_query="word " * 1_500, number=1)]
    sizes = []
    for step in split_into_steps(rounds, room, count_tokens):
        assert step.tokens <= room.tokens
        sizes.append(step.tokens)
        room.tokens = 100
    assert len(sizes) > 10


def test_a_name_that_is_longer_than_any_room_does_not_go_on_for_ever() -> None:
    """It is sent over the budget rather than never."""
    post = Post(send_from="A" * 3_000, send_to="B", message="the message " * 100)
    made = list(split_into_steps([Round(user_query="q", post_list=(post,))], StepLimit(64), count_tokens))
    assert "".join(p.message for step in made for part in step.rounds for p in part.post_list) == post.message


def test_a_prompt_that_leaves_no_room_is_an_error_with_the_remedy() -> None:
    """Shown in the status, not swallowed."""
    config = CompactorConfig(threshold=0, retain_recent=0, summarizer_input_tokens=256)
    compactor, executor, _ = on_command(memory_of(3), ScriptedSummarizer(), config)
    compactor.start()
    executor.run_all()
    assert of_kind(compactor.events, Failed)[0].error == StepsTooSmall.__name__
    assert "raise summarizer_input_tokens or lower target_tokens" in str(compactor.status().last_error)


def test_a_giant_round_of_many_posts_is_split_in_linear_time() -> None:
    """What is counted grows with the text, not with its square."""
    posts = tuple(Post(send_from="A", send_to="B", message=f"message {number}") for number in range(3_000))
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text)

    rounds = [Round(user_query="q", number=1, post_list=posts)]
    made = list(split_into_steps(rounds, StepLimit(50_000), count))
    assert len(made) > 1
    assert counted < 10 * len(quote(rounds[0]))


# What is planned


def test_it_asks_a_model_so_it_does_not_run_where_a_prompt_is_composed() -> None:
    """A strategy without work to use says so."""
    for strategy in (compact_rounds, compact_view):
        with pytest.raises(RuntimeError, match=f"{strategy.__name__} asks a model, so it runs in a compactor"):
            list(strategy(view_of(memory_of(3), role=ROLE)))


class Wanted:
    """What of the work of a cycle a strategy looks at before it asks."""

    plan = token_threshold = None

    def __init__(self, config: CompactorConfig) -> None:
        self.config = config

    def summarize(self, *_: object, **__: object) -> Summary:
        raise NotImplementedError


@pytest.mark.parametrize("strategy", [compact_rounds, compact_view])
def test_where_no_round_is_due_nobody_is_asked(strategy: Any) -> None:
    """Retaining the recent ones leaves nothing to cover."""
    assert list(strategy(view_of(memory_of(3), role=ROLE, work=Wanted(CompactorConfig(retain_recent=3))))) == []


def test_without_a_target_the_prompt_names_none() -> None:
    """And any length that saves something is accepted."""
    config = CompactorConfig(threshold=0, retain_recent=0, target_tokens=None)
    summarizer = compacted(memory_of(8), config, default="fact " * 100)
    (request,) = summarizer.requests
    assert request.target_tokens is None
    assert "None" not in text_of(request)


def test_requests_are_plain_chat_messages() -> None:
    """JSON, for any endpoint."""
    (request,) = compacted(memory_of(3), EVERYTHING.copy_with(target_tokens=20)).requests
    (message,) = json.loads(json.dumps(request.messages))
    assert message == {"role": "user", "content": text_of(request)}
    assert request.target_tokens == 20
    assert CONFIG.target_tokens == 1_000


def test_the_old_summary_may_stand_again_where_new_rounds_hold_nothing_worth_keeping() -> None:
    """Only the conversation may not be repeated: an unchanged summary of small talk is no failure."""
    memory = memory_of(10)
    same = "- The user wants item-1 to item-7; nothing since then changes that. " * 4
    compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, ScriptedSummarizer(default=same))
    assert compactor.compact_now(20) is not None
    for _ in range(5):
        add_round(memory)
    compaction = compactor.compact_now(20)
    assert compaction is not None
    assert (compaction.end_index, compaction.summary) == (12, same.strip())
    assert not of_kind(compactor.events, Failed)


# From what the view shows


def reduced_memory() -> Memory:
    """Four closed rounds: a post of the first is offloaded, one of the second dropped, the third's are summarised."""
    memory = memory_of(4)
    first, second, third, _ = memory.conversation.rounds
    for reduction in (
        Reduction.over(first, first.post_list[1:], "offloaded", "It begins so [reload r1.p2]"),
        Reduction.over(second, second.post_list[1:], "dropped"),
        Reduction.over(third, third.post_list[1:], "summarised", "[Summary; reload r3.p2]\nIt was dear."),
    ):
        assert memory.journal(ROLE).reduce(reduction, base=0) is not None
    return memory


def view_compacted(memory: Memory, strategy: Any) -> SummaryRequest:
    """Compact all rounds in one request, and return it."""
    summarizer = ScriptedSummarizer()
    compactor, executor, _ = on_command(memory, summarizer, EVERYTHING, strategies=(strategy,))
    compactor.start()
    executor.run_all()
    (request,) = summarizer.requests
    (published,) = of_kind(compactor.events, Published)
    assert published.end == request.end_index
    return request


def test_a_compaction_is_made_from_the_log() -> None:
    """What was reduced is read in full: a summary of a preview would know less than there is."""
    text = text_of(view_compacted(reduced_memory(), compact_rounds))
    assert all(f"Item-{number} costs {number * 11} euros." in text for number in range(1, 5))
    assert "reload" not in text


def test_a_compaction_may_be_made_from_what_the_view_shows() -> None:
    """Previews, summaries and gaps as the agent sees them: no payload is sent twice."""
    memory = reduced_memory()
    text = text_of(view_compacted(memory, compact_view))
    assert [number for number in range(1, 5) if f"Item-{number} costs" in text] == [4]
    assert "It begins so [reload r1.p2]" in text
    assert "It was dear." in text
    assert (compaction := memory.get_role_rounds(ROLE)[1]) is not None
    assert compaction.extra == {}, "nothing was forbidden"
    assert all(f"Question {number}" in text for number in range(1, 5))


def test_what_the_user_forbade_is_carried_on_though_the_view_shows_it_no_more() -> None:
    """A rule that drops old messages does not lift a ban."""
    memory = Memory("s")
    round_ = memory.create_round("Never book without asking me.")
    memory.add_post(round_, send_from=ROLE, send_to="User", message="There are three flights. " * 30)
    memory.finish_round(round_)
    add_round(memory)
    assert memory.journal(ROLE).reduce(Reduction.over(round_, [None], "dropped"), base=0) is not None
    assert "Never book" not in text_of(view_compacted(memory, compact_view))
    compaction = memory.get_role_rounds(ROLE)[1]
    assert compaction is not None
    assert compaction.extra["standing"] == ("Never book without asking me.",)
    assert compaction.summary.endswith("\n- Never book without asking me.")
    assert compaction.summary.count("Never book") == 1
