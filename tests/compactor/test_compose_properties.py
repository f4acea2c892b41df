"""Whatever is said, and whatever the budget: the prompt fits, is legal, keeps the newest question and loses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import pytest
from chats import Message, assert_legal, left_out_texts, note_of, words
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from views import OVERLAY, TokenCache

from compactor import (
    BudgetExceeded,
    Prompt,
    Report,
    TokenCounter,
    View,
    compose,
    count_message,
    count_prompt,
    count_tokens,
)
from compactor.compose import show_all
from compactor.prompt.fit import fit
from memory import (
    CompactedMessage,
    InMemoryStore,
    Memory,
    Post,
    Reduction,
    RoundClosed,
    StaleCompaction,
    UnknownReference,
)
from memory.overlays import PINNED

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)  # control characters, lone surrogates
long_text = st.builds(
    lambda piece, times: (piece * times)[:6_000],
    st.sampled_from(
        [
            "word ",
            "漢字",
            "🎉👩‍👩‍👧",
            "\x00\x1b[0m",
            "\ud800x",
            "a",
            " ",
            "{}</summary>",
            "\n\n",
            "0123456789",
            '{"k": [1]},',
        ]
    ),
    st.integers(1, 3_000),
)
texts = st.one_of(
    st.sampled_from(["", "hi", "Where is my order?"]), any_text, st.integers(0, 400).map(words), long_text
)
call_ids = st.sampled_from(["c0", "c1", "c2", "c3"])
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
    st.just({"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}),
)
contents = st.one_of(texts, st.lists(parts, min_size=1, max_size=3))


def _call(id_: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """What an agent does in one go: says something, or calls tools, of which some answer, in any order."""
    if draw(st.booleans()):
        return [{"role": "assistant", "content": draw(contents)}]
    asked = draw(st.lists(call_ids, min_size=1, max_size=4))
    call = {
        "role": "assistant",
        "content": draw(st.one_of(st.none(), texts)),
        "tool_calls": [_call(id_, draw(texts)) for id_ in asked],
    }
    answered = draw(st.permutations([*asked, *draw(st.lists(call_ids, max_size=1))]))
    missing = draw(st.integers(0, 2)) if draw(st.integers(0, 3)) == 0 else 0
    return [
        call,
        *(
            {"role": "tool", "tool_call_id": id_, "content": draw(contents)}
            for id_ in answered[: len(answered) - missing]
        ),
    ]


asking = st.lists(st.builds(lambda content: {"role": "user", "content": content}, contents), min_size=1, max_size=2)
conversations = st.lists(st.one_of(asking, exchanges(), exchanges()), max_size=14).map(
    lambda said: [message for some in said for message in some]
)


class Recorded(Memory):
    """A Memory that knows what was appended, by reference."""

    def append(self, message: Mapping[str, Any]) -> None:
        super().append(message)
        if rounds := self.conversation.rounds:
            posts = rounds[-1].post_list
            self.__dict__.setdefault("appended", {})[f"r{len(rounds)}.p{posts[-1].number if posts else 0}"] = message


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    """A session, some of whose rounds may have failed, and whose beginning may be compacted."""
    memory = Recorded("s", store=InMemoryStore())
    if draw(st.booleans()):
        memory.append({"role": "system", "content": draw(texts)})
    for message in draw(conversations):
        memory.append(message)
        if draw(st.integers(0, 30)) == 0:
            memory.finish_round(memory.conversation.rounds[-1], "failed")
    rounds, _ = memory.get_role_rounds("assistant")
    closed = [round_ for round_ in rounds[:-1] if round_.closed]
    if closed and draw(st.booleans()):
        covered = closed[: draw(st.integers(1, len(closed)))]
        memory.journal("assistant").publish(
            CompactedMessage(start_index=1, end_index=len(covered), summary=draw(texts), end_round_id=covered[-1].id),
            base=0,
            round_ids=[round_.id for round_ in covered],
        )
    return memory


@st.composite
def apply_overlays(draw: st.DrawFn) -> Memory:
    """A session with whatever may be published, pinned, asked for and shown once, most of it refused or stale."""
    memory = draw(memories())
    journal = memory.journal("assistant")
    rounds = memory.conversation.rounds
    for _ in range(draw(st.integers(0, 6)) if len(rounds) else 0):
        round_ = rounds[draw(st.integers(0, len(rounds) - 1))]
        numbers = st.integers(0, len(round_.post_list))
        first = draw(numbers)
        what = draw(st.sampled_from(["offloaded", "dropped", "summarised", "pin", "ephemeral", "approval", "erased"]))
        if what == "pin":
            with suppress(UnknownReference):  # a round that nobody asked for has no query
                memory.pin(f"r{round_.number}.p{first}")
        elif what == "erased":
            with suppress(UnknownReference):
                memory.redact(f"r{round_.number}.p{first}")
            rounds = memory.conversation.rounds
        elif what in ("ephemeral", "approval"):
            _say(memory, draw(texts), what, draw(st.integers(0, 2)))
        else:
            last = first if what == "offloaded" else draw(st.integers(first, len(round_.post_list)))
            posts = [None, *round_.post_list][first : last + 1]
            text = "" if what == "dropped" else draw(texts)
            with suppress(StaleCompaction):
                journal.reduce(Reduction.over(round_, posts, what, text), base=journal.read().generation)
    return memory


def _say(memory: Memory, text: str, what: str, keep: int) -> None:
    """Add a post that leaves by itself, or one that asks for approval, to the newest round if that is open."""
    sender, to, kind = {
        "ephemeral": ("screen", "assistant", "ephemeral:screen"),
        "approval": ("assistant", "User", "approval_request"),
    }[what]
    post = Post(send_from=sender, send_to=to, message=text, kind=kind, extra={"keep": keep})
    with suppress(RoundClosed):
        memory.add_post(memory.conversation.rounds[-1], post)


budgets = st.one_of(st.integers(1, 300), st.integers(300, 3_000), st.integers(3_000, 40_000))


def view_of(memory: Memory, counter: TokenCounter = count_tokens) -> View:
    rounds, compaction = memory.get_role_rounds("assistant")
    header = [{"content": message["content"]} for message in memory.messages()[: len(memory.header)]]
    tokens = sum(count_message(message, counter) for message in header)
    return View(rounds, compaction, TokenCache("assistant", counter), header_tokens=tokens)


def must_stay(view: View, *, first: bool = True) -> list[Message]:
    """What the user said last, in that round *first* as well, and what is pinned in the tail: as it reads now."""
    groups = {place: [unit for _, unit in view.list_groups(place)] for place in range(view.total)}
    asked = max((place for place in groups if any(unit.from_user for unit in groups[place])), default=-1)
    found = []
    for place, in_round in groups.items():
        said = [unit for unit in in_round if unit.from_user] if place == asked else []
        pinned = [unit for unit in in_round if place >= view.end and view.is_pinned(view.get_round(place), unit)]
        found += [unit for unit in in_round if unit in said[: int(first)] + said[-1:] or unit in pinned]
    return [message for unit in found for message in unit.messages]


def head_of(memory: Memory) -> list[Message]:
    """System messages, and the block of pins that a compaction covers."""
    _, compaction = memory.get_role_rounds("assistant")
    head = [message for message in memory.messages() if message["role"] == "system"][: len(memory.header)]
    if compaction is not None and compaction.pinned:
        head.append({"role": "system", "content": "\n".join((PINNED, *compaction.pinned))})
    return head


def composed(memory: Memory, budget: int, counter: TokenCounter = count_tokens) -> Prompt | None:
    """Return the prompt; None where it rightly does not fit: system messages, pins and question alone are too long."""
    needed = count_prompt(head_of(memory) + must_stay(view_of(memory, counter), first=False), counter)
    if needed <= budget:
        return compose(memory, budget=budget, counter=counter)
    with pytest.raises(BudgetExceeded) as exceeded:
        compose(memory, budget=budget, counter=counter)
    assert (exceeded.value.needed, exceeded.value.budget) == (needed, budget)
    return None


SLOW = [HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large]


@given(apply_overlays(), budgets, st.sampled_from([count_tokens, len]))
@settings(suppress_health_check=SLOW)
def test_every_prompt_fits_is_legal_keeps_the_question_and_loses_nothing(
    memory: Memory, budget: int, counter: TokenCounter
) -> None:
    """Promises 1 and 4, and that a prompt is refused only where what must stay does not fit by itself."""
    prompt = composed(memory, budget, counter)
    if prompt is None:
        return

    assert_legal(prompt, budget, counter)
    assert prompt.messages[: len(memory.header)] == memory.messages()[: len(memory.header)]
    view = view_of(memory, counter)
    has_room = count_prompt(head_of(memory) + must_stay(view), counter) <= budget  # else its first words are shortened
    for message in must_stay(view, first=has_room):
        assert message in prompt.messages
    for pinned in (memory.get_role_rounds("assistant")[1] or _NONE).pinned:
        assert pinned in prompt.messages[len(memory.header)]["content"]
    assert_nothing_lost(memory, prompt)


_NONE = CompactedMessage(start_index=1, end_index=0, summary="")


def assert_nothing_lost(memory: Memory, prompt: Prompt) -> None:
    """All text of the tail, as it reads now, is in the prompt or behind one of its references; what an overlay stands
    for is in the log."""
    view = view_of(memory)
    shown = [text for message in prompt.messages for text in _texts_in(message)]
    reloaded = [memory.reload(reduced.ref) for reduced in prompt.report.reductions]
    there = [*shown, *reloaded, left_out_texts(memory, prompt)]
    for place in view.places:
        round_ = view.get_round(place)
        if round_.number in prompt.report.omitted_rounds and not note_of(prompt):
            continue  # where not even the line fits, the report alone says so
        arguments = [call.arguments for post in round_.post_list for call in post.tool_calls]
        said = [] if OVERLAY in round_.extra else [round_.user_query]
        said += [post.message for post in round_.post_list if OVERLAY not in post.extra]
        for text in (*said, *arguments):
            assert any(text in other for other in there)


def _texts_in(message: Message) -> Sequence[str]:
    content = message.get("content")
    if isinstance(content, list):
        return ["\n".join(part.get("text", f"[{part['type']}]") for part in content)]
    return [content or "", *(call["function"]["arguments"] for call in message.get("tool_calls") or ())]


@given(apply_overlays())
@settings(suppress_health_check=SLOW)
def test_without_pressure_the_view_counts_what_compose_sends(memory: Memory) -> None:
    """Tokens and messages of a view are those of the prompt: what a trigger measures is what the provider gets."""
    view, prompt = view_of(memory), compose(memory, budget=10**9)

    told = [message for message in prompt.messages if note_of(prompt) and message["content"] == note_of(prompt)]
    messages = [message for message in prompt.messages if message not in told]
    covered = [message for message in must_stay(view) if message not in _tail_of(view)]
    extra = sum(count_message(message, count_tokens) for message in (*covered, *told))
    assert view.tokens + extra == prompt.tokens == prompt.report.tokens_before
    assert view.messages + len(covered) == len(messages) - len(memory.header) - (view.compaction is not None)


@given(apply_overlays(), st.sampled_from([0, 70]))
@settings(suppress_health_check=SLOW)
def test_a_tail_that_fits_is_shown_as_the_long_way_would_show_it(memory: Memory, tools: int) -> None:
    """The short way and the long one give the same prompt, of which the host may change every message: none that is
    made later shows it. Those made before may share some."""
    view = replace(view_of(memory), header_tokens=view_of(memory).header_tokens + tools)
    system = tuple(message for message in memory.messages() if message["role"] == "system")[: len(memory.header)]
    said = view.compaction.to_prompt() if view.compaction is not None else None
    summary = {"role": "system", "content": said} if said is not None else None
    head = [*system, *([summary] if summary is not None else [])]

    found = _show_all(view, system, 10**9)
    messages, report, _ = fit(view, system, None, 10**9, 3 * 10**8)

    assert report.tokens_over == 0
    assert found in (None, (messages, report))
    speaks = any(unit.from_user for place in view.places for _, unit in view.list_groups(place))
    assert found is not None or not speaks or messages != [*head, *_tail_of(view)]
    if found is not None:
        assert _show_all(view, system, report.tokens_after) == (messages, report)
        assert _show_all(view, system, report.tokens_after - 1) is None
        messages = deepcopy(messages)
        for message in found[0][len(head) :]:
            message.clear()
        assert _show_all(view, system, 10**9) == (messages, report)


def _show_all(view: View, system: Sequence[Message], limit: int) -> tuple[list[Message], Report] | None:
    shown = show_all(view, system, limit)
    return shown[:2] if shown is not None else None


def _tail_of(view: View) -> list[Message]:
    return [message for place in view.places for _, unit in view.list_groups(place) for message in unit.messages]


@st.composite
def long_rounds(draw: st.DrawFn) -> Memory:
    """An open round of many calls, which is read in blocks, and reductions of posts in it as it grows."""
    memory = Recorded("s", store=InMemoryStore())
    memory.append({"role": "user", "content": "Look everything up."})
    for number in range(draw(st.integers(20, 40))):
        memory.append({"role": "assistant", "content": None, "tool_calls": [_call(f"c{number}", "{}")]})
        memory.append({"role": "tool", "tool_call_id": f"c{number}", "content": draw(texts)})
        if number % 8 == 7:
            compose(memory, budget=10**9)
            round_ = memory.conversation.rounds[0]
            first = draw(st.integers(0, len(round_.post_list) - 8))
            what = draw(st.sampled_from(["offloaded", "dropped", "summarised"]))
            posts = round_.post_list[first : first + (1 if what == "offloaded" else draw(st.integers(1, 8)))]
            made = Reduction.over(round_, posts, what, "" if what == "dropped" else "Short.")
            with suppress(StaleCompaction):
                memory.journal("assistant").reduce(made, base=0)
    return memory


@given(
    st.one_of(apply_overlays(), long_rounds()),
    budgets,
    st.sampled_from([count_tokens, len]),
    st.sampled_from([None, "Plan: pack."]),
)
@settings(suppress_health_check=SLOW)
def test_each_message_says_where_it_comes_from(
    memory: Memory, budget: int, counter: TokenCounter, plan: str | None
) -> None:
    """A message whose source is original is what was appended under that reference; any other is not, or stands there
    by an overlay. What is ours stands for places that can be read."""
    try:
        prompt = compose(memory, budget=budget, counter=counter, plan=plan)
    except BudgetExceeded:
        return
    appended = memory.__dict__.get("appended", {})
    for number, (message, source) in enumerate(zip(prompt.messages, prompt.sources, strict=True)):
        if source.ref is None:
            is_plan = plan is not None and str(message["content"]).endswith(plan)
            assert source.kind == ("ours" if is_plan else "original")
            assert is_plan == (number >= len(memory.header))
            continue
        memory.reload(source.ref, role="assistant")  # raises nothing
        if source.kind == "original" and source.ref in appended:
            assert message == appended[source.ref]
        elif source.kind == "original":  # an approval
            assert message == {"role": "assistant", "content": memory.reload(source.ref)}
        elif source.kind == "shortened":
            is_overlaid = any(source.ref == reduced.ref for reduced in prompt.report.reductions)
            assert message != appended.get(source.ref) or is_overlaid


@given(apply_overlays(), budgets, st.sampled_from([count_tokens, len]), st.sampled_from(["user", "header"]))
@settings(suppress_health_check=SLOW)
def test_wherever_the_summary_stands_the_prompt_fits_and_says_the_same(
    memory: Memory, budget: int, counter: TokenCounter, summary_as: Literal["user", "header"]
) -> None:
    """Its tokens are exact, no system message is added to those of the host, and the tail is as it always is."""
    try:
        prompt = compose(memory, budget=budget, counter=counter, summary_as=summary_as)
    except BudgetExceeded:
        return
    assert prompt.tokens == count_prompt(prompt.messages, counter) <= budget
    assert len(prompt.sources) == len(prompt.messages)
    roomy = compose(memory, budget=10**9, counter=counter, summary_as=summary_as)
    usual = compose(memory, budget=10**9, counter=counter)
    assert prompt.report.tokens_before == roomy.tokens == count_prompt(roomy.messages, counter)
    pairs = zip(usual.messages, usual.sources, strict=True)
    added = [message for message, source in pairs if source.kind == "ours" and message["role"] == "system"]
    head = len(memory.header) or int(bool(added))
    if summary_as == "user":
        assert [{**one, "role": ""} for one in roomy.messages] == [{**one, "role": ""} for one in usual.messages]
    else:
        shown = len(roomy.messages) - head
        assert roomy.messages[head:] == (usual.messages[-shown:] if shown else [])
    for one_prompt in prompt, roomy:
        said = [one for one in one_prompt.messages if one["role"] == "system"]
        assert len(said) <= max(len(memory.header), int(summary_as == "header"))


@st.composite
def dialogues(draw: st.DrawFn) -> list[Message]:
    """Conversations in which every call is answered, if in any order: what came in may come out as it is."""
    said: list[Message] = []
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.integers(0, 2)) == 0:
            said.append({"role": "user", "content": draw(contents)})
        elif draw(st.booleans()):
            said.append({"role": "assistant", "content": draw(contents)})
        else:
            asked = [f"call_{len(said)}_{number}" for number in range(draw(st.integers(1, 3)))]
            said.append(
                {"role": "assistant", "content": None, "tool_calls": [_call(id_, draw(texts)) for id_ in asked]}
            )
            said += [
                {"role": "tool", "tool_call_id": id_, "content": draw(texts)} for id_ in draw(st.permutations(asked))
            ]
    return said


@given(dialogues())
def test_without_pressure_the_prompt_is_what_came_in(said: list[Message]) -> None:
    """Messages that came in through append come out equal, tool calls and ids included."""
    prompt = compose(Memory.from_messages(said), budget=10**9)

    assert prompt.messages == said
    assert prompt.report == Report(prompt.tokens, prompt.tokens)


def cuts(prompt: Prompt, said: int) -> object:
    """What was left out of *said* messages and what was shortened: where a tiny budget has no room for the line that
    says so, the number of messages tells."""
    note = note_of(prompt)
    shown = len(prompt.messages) - (note is not None)
    return note, said - shown, prompt.report.omitted_rounds, prompt.report.reductions


#: Its results are clipped as far as it takes, and what the user adds takes a few tokens more.
CLIPPED = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [_call(id_, "") for id_ in ("call_0_0", "call_0_1", "call_0_2")],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": ""},
    {"role": "tool", "tool_call_id": "call_0_1", "content": "00:0000Ʊ0Ʊ0000000Ʊ0Ʊ0Ʊ0Ʊ0Ʊ0Ʊ0Ʊ0Ʊ0Ʊ"},
    {"role": "tool", "tool_call_id": "call_0_2", "content": "\ud800x" * 52},
    {"role": "user", "content": ""},
    {"role": "user", "content": ""},
]


#: A call that waits for its second result: the first one is clipped twice, to the largest share and to the room.
CLIPPED_TWICE = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [_call("call_0_0", "Where is my order?"), _call("call_0_1", words(18))],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": words(148)},
    {"role": "tool", "tool_call_id": "call_0_1", "content": "0\x810\x81\x95"},
]


@given(dialogues(), st.integers(200, 4_000))
@example(CLIPPED, 200)
@example(CLIPPED_TWICE, 200)
def test_appending_leaves_the_beginning_as_it_was_unless_something_is_cut(said: list[Message], budget: int) -> None:
    """Promise 2: without a new cut, a longer prompt begins with the shorter one."""
    memory, before = Memory(), None
    for number, message in enumerate(said, 1):
        memory.append(message)
        prompt = composed(memory, budget)
        if before and prompt and cuts(before, number - 1) == cuts(prompt, number):
            assert prompt.messages[: len(before.messages)] == before.messages
        before = prompt


@pytest.mark.slow
@given(apply_overlays(), budgets)
@settings(suppress_health_check=SLOW)
def test_the_prompt_is_a_pure_function_of_the_log(memory: Memory, budget: int) -> None:
    """The same prompt from a Memory that resumes the session, whatever was composed and counted before."""
    first = composed(memory, budget)
    for other in (400, 4_000):
        composed(memory, other)

    assert composed(memory, budget) == first
    assert composed(Memory("s", store=memory._store), budget) == first
