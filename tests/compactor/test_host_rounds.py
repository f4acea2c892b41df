"""Other hosts' rounds: plain objects with a query and posts, whatever else they have or lack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from scene import CONFIG, PRICES, ROLE, SOON, add_round, end_of, memory_of, text_of

from compactor import CompactionFailed, CompactorConfig, ContextCompactor
from compactor.host_rounds import COVERED, HostRounds, NotARound, adapt_rounds
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, Post, Round, Rounds

pytestmark = pytest.mark.timeout(30)


class Kind(Enum):
    PLAN = "init_plan"


class State(Enum):
    CREATED = "created"
    FINISHED = "finished"


@dataclass
class HostPost:
    message: str
    send_from: str = ROLE
    send_to: str = "User"
    attachment_list: list[Any] = field(default_factory=list)


@dataclass
class HostRound:
    user_query: str
    post_list: list[HostPost] = field(default_factory=list)


class Bare:
    """The least there is."""

    def __init__(self, number: int) -> None:
        self.user_query = f"question {number} " * 10
        self.post_list = [SimpleNamespace(send_from=ROLE, send_to="User", message=f"answer {number} " * 10)]


def with_post(**fields: Any) -> dict[str, Any]:
    """Return a round with one post, which has *fields* as well."""
    return {"user_query": "q", "post_list": [{"send_from": ROLE, "send_to": "User", "message": "m", **fields}]}


def read(item: Any, role: str = "") -> Round:
    return HostRounds([item], role)[0]


# In a compactor


def test_rounds_that_have_only_a_query_and_posts_are_compacted() -> None:
    """They count as closed, and are told apart by their place."""
    rounds: list[Any] = [Bare(number) for number in range(1, 11)]
    summarizer = ScriptedSummarizer()
    with ContextCompactor(CONFIG, summarizer, lambda: rounds, role=ROLE) as compactor:
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 7
        rounds += [Bare(number) for number in range(11, 16)]
        compactor.notify_rounds_changed(len(rounds))
        assert compactor.wait_idle(SOON)
        assert end_of(compactor) == 12
    assert [request.end_index for request in summarizer.requests] == [7, 12]
    assert "answer 8" in text_of(summarizer.requests[1])
    assert "answer 7" not in text_of(summarizer.requests[1])


def test_a_list_that_the_host_goes_on_adding_to_is_read_once_a_cycle() -> None:
    """One pass works on one snapshot, even of the host's own list."""
    rounds: list[Any] = [Bare(number) for number in range(1, 11)]

    def summarizer(_request: object) -> str:
        rounds.extend(Bare(number) for number in range(11, 14))
        return PRICES

    compactor = ContextCompactor(CONFIG, summarizer, lambda: rounds, role=ROLE)
    made = compactor.compact_now(SOON)
    assert made is not None
    assert made.end_index == 7


@pytest.mark.parametrize("gone", [[7], [3], [3, 7], [5, 6, 7], [1, 2, 3], list(range(1, 8))], ids=str)
def test_of_rounds_that_the_host_hides_after_they_were_covered_none_is_told_of(gone: list[int]) -> None:
    """The next summary is made without them, and none that follows is skipped. Where the oldest are gone, the host may
    have dropped them: their summary is all that is left of them, and stays."""

    def named(number: int) -> SimpleNamespace:
        return SimpleNamespace(id=f"r{number}", user_query=f"question {number} " * 20, post_list=())

    rounds = [named(number) for number in range(1, 11)]
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor(CONFIG, summarizer, lambda: rounds, role=ROLE)
    compactor.compact_now(SOON)
    rounds = [named(number) for number in range(1, 16) if number not in gone]
    made = compactor.compact_now(SOON)
    dropped = 1 in gone
    left = [f"r{number}" for number in range(8 if dropped else 1, 13) if number not in gone]
    assert [round_.id for round_ in summarizer.requests[1].rounds] == left
    assert (summarizer.requests[1].previous is not None) is dropped
    assert made is not None
    assert [round_.id for round_ in rounds[made.end_index :]] == ["r13", "r14", "r15"]


@pytest.mark.parametrize("role", ["", ROLE])
def test_a_plain_list_of_our_own_rounds_will_do(role: str) -> None:
    """Whatever sequence the getter gives."""
    memory = memory_of(10)
    with ContextCompactor(CONFIG, ScriptedSummarizer(), lambda: list(memory.conversation.rounds), role=role) as it:
        assert it.wait_idle(SOON)
        assert it.get_compaction().end_round_id == "r7"  # type: ignore[union-attr]


def test_a_memorys_rounds_are_taken_as_they_are() -> None:
    """Without a copy, as the compactor's role sees them, failed ones left out."""
    memory = memory_of(4)
    memory.add_post(memory.create_round("q"), send_from="Other", send_to="User", message="not for the planner")
    memory.finish_round("r2", state="failed")
    rounds = adapt_rounds(memory.conversation.rounds, ROLE)
    assert isinstance(rounds, Rounds)
    assert [round_.id for round_ in rounds[:3]] == ["r1", "r3", "r4"]
    assert rounds[3].post_list == ()
    assert rounds.closed == 3


def test_a_compactor_without_a_memory_serves_one_by_being_registered() -> None:
    """Its compactions are kept by itself; Memory gives them its own indices."""
    memory = memory_of(10)
    summarizer = ScriptedSummarizer()
    with ContextCompactor(CONFIG, summarizer, memory.rounds_getter(ROLE), role=ROLE) as compactor:
        memory.register_compaction_provider(ROLE, compactor)
        assert compactor.wait_idle(SOON)
        memory.finish_round("r7", state="failed")
        assert compactor.wait_idle(SOON)
        rounds, compaction = memory.get_role_rounds(ROLE)
        assert compaction is not None
        assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r8", "r9", "r10"]
        assert summarizer.requests[1].previous is None
        assert [round_.id for round_ in summarizer.requests[1].rounds] == [f"r{number}" for number in range(1, 7)]
        for _ in range(5):
            add_round(memory)
        assert compactor.wait_idle(SOON)
        rounds, compaction = memory.get_role_rounds(ROLE)
        assert compaction is not None
        assert [round_.id for round_ in rounds[compaction.end_index :]] == ["r13", "r14", "r15"]


def test_what_failed_is_hidden_at_once_though_nobody_looks() -> None:
    """Of a compactor that is not even started, and keeps its compactions by itself."""
    memory = memory_of(10)
    compactor = ContextCompactor(CONFIG, ScriptedSummarizer(), memory.rounds_getter(ROLE), role=ROLE)
    memory.register_compaction_provider(ROLE, compactor)
    assert compactor.compact_now(SOON) is not None
    memory.finish_round("r3", state="failed")
    assert compactor.get_compaction() is memory.get_role_rounds(ROLE)[1] is None


def test_the_open_round_of_another_host_is_not_compacted() -> None:
    """Where it says which one that is, by word or by enum."""
    rounds = [SimpleNamespace(user_query="q " * 30, post_list=(), state=State.FINISHED) for _ in range(3)]
    rounds.append(SimpleNamespace(user_query="q " * 30, post_list=(), state=State.CREATED))
    config = CompactorConfig(threshold=0, retain_recent=0)
    compactor = ContextCompactor(config, ScriptedSummarizer(), lambda: rounds)
    assert compactor.compact_now(SOON).end_index == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("state", ["in_progress", "Created", "", 0, SimpleNamespace(value="open")])
def test_a_state_that_nobody_knows_is_refused(state: object) -> None:
    """An open round by a host's own word would be summarised as if it were closed."""
    closed = {"user_query": "q " * 30, "post_list": []}
    rounds = [closed, {**closed, "state": None}, {**closed, "state": state}]
    compactor = ContextCompactor(CompactorConfig(threshold=0, retain_recent=0), ScriptedSummarizer(), lambda: rounds)
    with pytest.raises(
        CompactionFailed, match=r"state of round 3 is .*; give created, finished, failed or undone"
    ) as failed:
        compactor.compact_now(SOON)
    assert isinstance(failed.value.__cause__, NotARound)
    with pytest.raises(NotARound, match="state of round 1 is "):
        read(rounds[-1])


# Reading them


def test_posts_attachments_and_enums_are_read() -> None:
    """As plain text, an enum by its value."""
    attachment = SimpleNamespace(type=Kind.PLAN, content="1. load")
    round_ = read(HostRound("q", [HostPost("hello", attachment_list=[attachment])]))
    (post,) = round_.post_list
    assert (round_.user_query, round_.state, round_.number, round_.id) == ("q", "finished", 1, "#1")
    assert (post.send_from, post.send_to, post.message, post.number) == (ROLE, "User", "hello", 1)
    assert [(a.type, a.content) for a in post.attachment_list] == [("init_plan", "1. load")]


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c1", "function": {"name": "search", "arguments": '{"q": 1}'}},
        SimpleNamespace(id="c1", function=SimpleNamespace(name="search", arguments='{"q": 1}')),
        SimpleNamespace(id="c1", name="search", arguments='{"q": 1}'),
        {"id": "c1", "name": "search", "arguments": {"q": 1}},
        {"type": "tool_use", "id": "c1", "name": "search", "input": {"q": 1}},
    ],
    ids=["OpenAI's mapping", "OpenAI's object", "an object", "arguments as a mapping", "AgentScope's block"],
)
def test_tool_calls_and_results_are_read_whatever_their_form(call: Any) -> None:
    """All text reaches the summarizer, a host's tool calls included."""
    posts = [
        SimpleNamespace(send_from=ROLE, send_to="Tools", message=None, tool_calls=[call]),
        SimpleNamespace(send_from="Tools", send_to=ROLE, message="found", tool_call_id="c1"),
    ]
    asked, answered = read(SimpleNamespace(user_query="q", post_list=posts)).post_list
    assert [(c.id, c.name, c.arguments) for c in asked.tool_calls] == [("c1", "search", '{"q": 1}')]
    assert (answered.tool_call_id, answered.message) == ("c1", "found")


def test_what_is_none_is_empty() -> None:
    """A host may set to None whatever it likes."""
    round_ = read(SimpleNamespace(user_query=None, post_list=None))
    assert (round_.user_query, round_.post_list) == ("", ())
    (post,) = read(SimpleNamespace(user_query="q", post_list=[HostPost(None, None, None, None)])).post_list  # type: ignore[arg-type]
    assert (post.send_from, post.send_to, post.message, post.id) == ("", "", "", "p1")


def test_rounds_may_be_mappings() -> None:
    """With all that objects may have: nothing of theirs is lost."""
    call = {"id": "c1", "function": {"name": "search", "arguments": {"q": "Ghent"}}}
    asked = {"send_from": ROLE, "send_to": "tool", "message": "", "tool_calls": [call]}
    given = {"send_from": "tool", "send_to": ROLE, "message": "3 hotels", "tool_call_id": "c1"}
    plan = {"send_from": ROLE, "send_to": "User", "message": "", "attachment_list": [{"type": "plan", "content": "1."}]}
    round_ = read({"id": "r-7", "user_query": "q", "state": "created", "post_list": [asked, given, plan]}, ROLE)
    assert (round_.id, round_.state) == ("r-7", "created")
    first, second, third = round_.post_list
    assert [(one.id, one.name, one.arguments) for one in first.tool_calls] == [("c1", "search", '{"q": "Ghent"}')]
    assert (second.message, second.tool_call_id) == ("3 hotels", "c1")
    assert [(one.type, one.content) for one in third.attachment_list] == [("plan", "1.")]


@pytest.mark.parametrize(
    ("item", "lacks"),
    [
        ({"user_query": "q", "posts": []}, "round 1, a dict, has no post_list"),
        ({"role": "user", "content": "q"}, "round 1, a dict, has no user_query"),
        (SimpleNamespace(query="q"), "round 1, a SimpleNamespace, has no user_query"),
        ("q", "round 1, a str, has no user_query"),
        (
            {"user_query": "q", "post_list": [{"role": "user", "content": "x"}]},
            "post 1 of round 1, a dict, has no send_from",
        ),
        (
            SimpleNamespace(user_query="q", post_list=[SimpleNamespace(send_from="A", send_to="B", text="x")]),
            "no message",
        ),
        (with_post(attachment_list=["a long text"]), "attachment 1 of post 1 of round 1, a str, has no content"),
        (
            with_post(attachment_list=[("plan", "1. load")]),
            "attachment 1 of post 1 of round 1, a tuple, has no content",
        ),
        (with_post(attachment_list=[{"kind": "plan", "text": "1."}]), "a dict, has no content"),
        (with_post(tool_calls=["search"]), "tool call 1 of post 1 of round 1, a str, has no name"),
        (with_post(tool_calls=[{"id": "c1", "tool": "search"}]), "a dict, has no name"),
    ],
)
def test_a_round_of_another_form_is_refused(item: Any, lacks: str) -> None:
    """Its text would not reach the summarizer, so nothing is compacted over it; the error says what is missing."""
    with pytest.raises(TypeError, match=lacks):
        read(item)
    rounds = [item] * 10
    compactor = ContextCompactor(CONFIG, ScriptedSummarizer(), lambda: rounds, role=ROLE)
    with pytest.raises(CompactionFailed) as failed:
        compactor.compact_now(SOON)
    assert isinstance(failed.value.__cause__, TypeError)
    assert lacks in str(failed.value)
    assert lacks in str(compactor.status().last_error)
    assert compactor.get_compaction() is None


@pytest.mark.parametrize("make", [iter, lambda posts: (post for post in posts), lambda posts: map(vars, posts)])
def test_posts_that_can_be_read_only_once_are_refused(make: Callable[[list[Any]], Any]) -> None:
    """Read again they would be none, and the end would move over text that no summarizer saw."""
    rounds = [SimpleNamespace(user_query="q", post_list=make([HostPost("said in secret")])) for _ in range(10)]
    summarizer = ScriptedSummarizer()
    compactor = ContextCompactor(CONFIG, summarizer, lambda: rounds, role=ROLE)
    for _ in range(2):
        with pytest.raises(CompactionFailed, match=r"post_list of round 1 is no list but a .* give a list") as failed:
            compactor.compact_now(SOON)
        assert "secret" not in str(failed.value)
    assert (summarizer.requests, compactor.get_compaction()) == ([], None)


@pytest.mark.parametrize("field", ["attachment_list", "tool_calls"])
@pytest.mark.parametrize(
    "given", [iter([{"id": "c1"}]), {"id": "c1"}, "text", 7], ids=["iterator", "mapping", "text", "number"]
)
def test_attachments_and_tool_calls_that_are_no_list_are_refused(field: str, given: Any) -> None:
    """Nothing of theirs is dropped without a word."""
    post = {"send_from": ROLE, "send_to": "User", "message": "m", field: given}
    with pytest.raises(NotARound, match=f"{field} of post 1 of round 1 is no list but a {type(given).__name__}"):
        read({"user_query": "q", "post_list": [post]})


def test_what_is_no_text_is_turned_into_text() -> None:
    """Parts and mappings as JSON, all else as it prints."""
    content = [{"type": "text", "text": "é"}]
    posts = [SimpleNamespace(send_from=7, send_to=Kind.PLAN, message=content), HostPost(3.5)]  # type: ignore[arg-type]
    first, second = read(SimpleNamespace(user_query=12, post_list=posts)).post_list
    assert (first.send_from, first.send_to, first.message) == ("7", "init_plan", '[{"type": "text", "text": "é"}]')
    assert second.message == "3.5"


def test_our_own_records_are_taken_as_they_are() -> None:
    """Also one of our posts in another host's round."""
    mine = Round(id="mine", user_query="q", state="finished")
    assert read(mine) is mine
    post = Post(send_from=ROLE, send_to="User", message="m")
    assert read(SimpleNamespace(user_query="q", post_list=[post])).post_list == (post,)


def test_only_posts_of_the_role_are_seen() -> None:
    """Filtering is not left to the host."""
    posts = [HostPost("mine"), HostPost("to me", "Other", ROLE), HostPost("not mine", "Other", "Third")]
    assert [post.message for post in read(HostRound("q", posts), ROLE).post_list] == ["mine", "to me"]
    assert len(read(HostRound("q", posts)).post_list) == 3


# As a sequence


def test_it_is_a_sequence() -> None:
    """Lengths, places from either end, slices; what is outside is an error."""
    rounds = HostRounds([HostRound(str(number)) for number in range(5)], "")
    assert (len(rounds), rounds[0].user_query, rounds[-1].user_query) == (5, "0", "4")
    assert [round_.user_query for round_ in rounds[1:3]] == ["1", "2"]
    assert [round_.number for round_ in rounds] == [1, 2, 3, 4, 5]
    for outside in (5, -6):
        with pytest.raises(IndexError):
            rounds[outside]


def test_it_is_as_the_host_had_it_when_it_was_made() -> None:
    """A list that grows, shrinks or is cleared meanwhile changes nothing."""
    items = [HostRound(str(number)) for number in range(3)]
    rounds = HostRounds(items, "")
    items.clear()
    assert (len(rounds), rounds.closed, rounds[2].user_query) == (3, 3, "2")


def test_any_iterable_will_do() -> None:
    """A generator, say."""
    assert len(HostRounds((HostRound("q") for _ in range(3)), "")) == 3


def named(*ids: str) -> HostRounds:
    return HostRounds([SimpleNamespace(id=name, user_query="", post_list=()) for name in ids], "")


def compaction_to(end: int, name: str | None) -> CompactedMessage:
    return CompactedMessage(start_index=1, end_index=end, end_round_id=name, summary="s")


def test_a_round_is_found_by_its_id() -> None:
    """The number of rounds up to it."""
    rounds = named("a", "b", "c")
    assert [rounds.find_end(name) for name in ("a", "c", "gone")] == [1, 3, None]
    assert HostRounds([HostRound("q")] * 2, "").find_end("#2") == 2
    assert named("a", "b", "a").find_end("a") == 3, "the last of several of one id"


@pytest.mark.parametrize(
    ("ids", "end", "expected"),
    [
        ("abcd", (2, "b"), 2),
        ("bcd", (2, "b"), 1),
        ("cd", (2, "b"), 0),
        ("abcd", (3, None), 3),
        ("ab", (3, None), 2),
        ("", (3, "c"), 0),
    ],
)
def test_a_compaction_is_anchored_to_the_id_of_its_last_round(
    ids: str, end: tuple[int, str | None], expected: int
) -> None:
    """Where that is gone, nothing is covered as far as anybody knows; without an id, its number counts."""
    anchor = named(*ids).anchor(compaction_to(*end))
    assert anchor is not None
    assert anchor.end_index == expected


@pytest.mark.parametrize(("ids", "expected"), [("abcd", 3), ("abd", 2), ("ad", 1), ("d", 0)])
def test_or_to_the_last_it_covers_of_those_that_are_left(ids: str, expected: int) -> None:
    """Which its journal noted."""
    compaction = compaction_to(3, "c").model_copy(update={"extra": {COVERED: ("c", "b", "a")}})
    anchor = named(*ids).anchor(compaction)
    assert anchor is not None
    assert anchor.end_index == expected


def test_nothing_is_anchored_to_nothing() -> None:
    """No compaction, none."""
    assert named("a").anchor(None) is None
