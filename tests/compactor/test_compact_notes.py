"""compact_notes: a model only says what has to change; all else stays byte for byte, and is sent once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run
from scene import ROLE, ManualExecutor, add_round, memory_of, of_kind, on_command, text_of
from stored_sessions import url_of
from test_prepared import FullStore

from compactor import (
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    Failed,
    LimitReached,
    Prepared,
    Published,
    Rejected,
    Started,
    Summary,
    SummaryRequest,
    View,
    compact_notes,
    compact_rounds,
    compose,
    count_prompt,
    count_tokens,
)
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import CompactedMessage, InMemoryStore, Memory, Note, open_store
from prompts import load

pytestmark = pytest.mark.timeout(60)

CONFIG = CompactorConfig(threshold=4, retain_recent=1)
FIRST = "## Goal\n- The user asks what items cost.\n\n## Done\n- Four items were priced."
#: The same as it is shown.
SHOWN = "## Goal\n1. The user asks what items cost.\n\n## Done\n2. Four items were priced."
USAGE = {"input_tokens": 100, "output_tokens": 10}
#: What all notes take, as the model counts them: so much that changes are cheaper for long.
WRITTEN = {"input_tokens": 1_000, "output_tokens": 400}


def changing(request: SummaryRequest) -> str | Summary:
    """A model that does as it is asked: one note more each time."""
    if request.kind == "changes":
        return f"add [Done]: Item-{request.end_index} was priced."
    return Summary(FIRST, WRITTEN)


#: Makes all notes so long that changes of them are cheaper for long.
MORE = " They were looked at closely." * 60


def thorough(request: SummaryRequest) -> str | Summary:
    return changing(request) if request.kind == "changes" else FIRST + MORE


def add_long(memory: Memory) -> None:
    number = len(memory.conversation.rounds) + 1
    round_ = memory.create_round(f"Question {number}: what about item-{number}?")
    said = " ".join(f"Item-{number} costs {number * part} euros in part {part}." for part in range(30))
    memory.add_post(round_, send_from=ROLE, send_to="User", message=said)
    memory.finish_round(round_)


class Scene:
    """A session with a compactor that works when it is told to."""

    def __init__(self, answers: Iterable[Any] = (), config: CompactorConfig = CONFIG, **more: Any) -> None:
        self.memory = more.pop("memory", None) or memory_of(0)
        self.summarizer = more.pop("summarizer", None) or ScriptedSummarizer(answers, default=changing)
        more = {"strategies": (compact_notes,), "history": 10_000} | more
        self.compactor, self.executor, self.clock = on_command(self.memory, self.summarizer, config, **more)
        self.compactor.start()

    def add(self, count: int, add: Callable[[Memory], object] = add_round) -> Scene:
        for _ in range(count):
            add(self.memory)
            self.executor.run_all()
        return self

    @property
    def made(self) -> CompactedMessage:
        made = self.compactor.get_compaction()
        assert made is not None
        return made

    @property
    def kinds(self) -> list[str]:
        return [request.kind for request in self.summarizer.requests]

    @property
    def published(self) -> list[Published]:
        return of_kind(self.compactor.events, Published)


def count_quoted(request: SummaryRequest) -> int:
    """Return the tokens of the rounds that a summarizer reads."""
    return count_tokens(text_of(request).partition("<conversation>\n")[2].partition("</conversation>")[0])


def texts(notes: Iterable[Note]) -> list[str]:
    return [note.text for note in notes]


def notes_of(answer: str, span: tuple[int, int]) -> tuple[Note, ...]:
    """Return the notes of an *answer* with headings and one item a line."""
    notes, section = [], ""
    for line in filter(None, answer.split("\n")):
        if line.startswith("## "):
            section = line[3:]
        else:
            notes.append(Note(text=line[2:], section=section, first_round=span[0], last_round=span[1]))
    return tuple(notes)


# What is asked


def test_the_first_time_the_notes_are_written_in_full() -> None:
    """By the role's own prompt, and as a list."""
    scene = Scene().add(5)
    (request,) = scene.summarizer.requests
    assert (request.kind, request.previous, request.start_index, request.end_index) == ("rounds", None, 1, 4)
    assert "write short notes" in text_of(request)
    assert scene.made.summary == SHOWN
    assert scene.made.notes == notes_of(FIRST, (1, 4))
    assert [event.major for event in scene.published] == [False]


def test_then_only_changes_are_asked_for() -> None:
    """Of the numbered notes, because of the new rounds alone; the contract follows the role's prompt."""
    scene = Scene(config=CONFIG.copy_with(target_tokens=60)).add(9)
    first, request = scene.summarizer.requests
    assert (request.kind, request.previous, request.start_index, request.end_index) == (
        "changes",
        scene_made(scene, 0),
        5,
        8,
    )
    assert request.notes == notes_of(FIRST, (1, 4))
    assert request.target_tokens == 60
    (message,) = request.messages
    said = message["content"]
    assert said.startswith(
        "<previous_summary>\n## Goal\n1. The user asks what items cost.\n\n"
        "## Done\n2. Four items were priced.\n</previous_summary>\n\n<conversation>\n<round 5 User>"
    )  # fmt: skip
    assert 0 < said.index(load("default").content[-60:].strip()) < said.index("add [Heading]: a new note")
    assert said.endswith("Answer with the changes alone.")
    assert "item-4?" not in said
    assert "item-8?" in said
    assert "at most 36 tokens" in text_of(first)
    assert "at most 60 tokens" in said


def scene_made(scene: Scene, place: int) -> CompactedMessage:
    """Return the compaction that was published at that place in the history, as requests name it."""
    made = scene.compactor.history()[place].compaction
    assert made is not None
    return made


def test_the_summary_is_the_notes_written_out() -> None:
    """What is new stands behind all that there was, and says which rounds it comes from."""
    scene = Scene(summarizer=ScriptedSummarizer(default=thorough)).add(13, add_long)
    assert scene.made.summary == f"{SHOWN}{MORE}\n3. Item-8 was priced.\n4. Item-12 was priced."
    spans = [(note.first_round, note.last_round) for note in scene.made.notes]
    assert spans == [(1, 4), (1, 4), (5, 8), (9, 12)]
    assert scene.made.end_index == 12


def test_where_nothing_is_worth_noting_the_end_moves_on() -> None:
    """And the summary stays, byte for byte."""
    scene = Scene([FIRST, "none", '{"add": [], "replace": [], "remove": []}']).add(13)
    assert (scene.made.summary, scene.made.end_index) == (SHOWN, 12)
    assert scene.kinds == ["rounds", "changes", "changes"]
    assert of_kind(scene.compactor.events, Failed) == []


def test_it_asks_a_model_and_so_runs_in_a_compactor() -> None:
    """Not where a prompt is composed."""
    view: Any = SimpleNamespace(work=None)
    with pytest.raises(RuntimeError, match="runs in a compactor"):
        list(compact_notes(view))


def test_without_new_rounds_nothing_is_asked() -> None:
    """All that may be covered is covered."""
    scene = Scene().add(5)
    scene.executor.run_all()
    assert scene.kinds == ["rounds"]
    view = View(scene.memory.rounds_getter(ROLE)(), scene.made, scene.compactor._runner._cycle.token_cache)  # type: ignore[arg-type]
    work: Any = SimpleNamespace(config=CONFIG, token_threshold=None)
    assert list(compact_notes(View(view.rounds, view.compaction, view.token_cache, work=work))) == []


def test_what_an_agent_was_asked_last_is_gone_on_from() -> None:
    """The same question behind the beginning of its prompt, where that shows what is new."""
    scene = Scene(config=CONFIG.copy_with(model="m-1")).add(5)
    assert scene.summarizer.requests[0].continued_prompt is None, "there was no prompt"
    for _ in range(4):
        add_round(scene.memory)
    prompt = compose(scene.memory, ROLE, budget=50_000, system="Be brief.", model="m-1")
    scene.executor.run_all()
    request = scene.summarizer.requests[-1]
    assert (request.kind, request.end_index) == ("changes", 8)
    assert request.continued_prompt is not None
    shown, asked = request.continued_prompt.messages[:-1], request.continued_prompt.messages[-1]["content"]
    assert shown == prompt.messages[: len(shown)]
    assert shown[1]["content"].startswith(f"[Conversation History Summary]\n{SHOWN}")
    assert "The user asks what items cost" not in asked, "nor are they sent again"
    assert "item-5 costs" not in asked
    assert asked.endswith("Answer with the changes alone.")


def test_notes_that_the_agents_prompt_does_not_number_are_sent() -> None:
    """A summary that was made otherwise: a model could not name what it has to change."""
    config = CONFIG.copy_with(model="m-1")
    plain = Scene(["The user asks for prices."], config, strategies=(compact_rounds,)).add(5)
    plain.compactor.stop()
    for _ in range(4):
        add_round(plain.memory)
    compose(plain.memory, ROLE, budget=50_000, system="Be brief.", model="m-1")
    scene = Scene(config=config, memory=plain.memory)
    scene.executor.run_all()
    (request,) = scene.summarizer.requests
    assert request.continued_prompt is not None
    asked = request.continued_prompt.messages[-1]["content"]
    assert "<previous_summary>\n1. The user asks for prices.\n</previous_summary>" in asked
    assert asked.endswith("Answer with the changes alone.")


# What stays


@pytest.mark.slow
def test_over_a_hundred_compactions_nothing_drifts_and_nothing_is_sent_twice() -> None:
    """Untouched notes stay byte for byte, prompts begin alike up to the first note that changed, and each round is sent
    exactly once, also when all notes are written anew."""
    sent: list[int] = []

    def model(request: SummaryRequest) -> str:
        sent.extend(round_.number for round_ in request.rounds)
        number, known = request.end_index, request.previous.notes if request.previous else ()
        if request.kind == "changes":
            edits = [
                f"add [Done]: Item-{number} was priced.",
                f"replace {len(request.notes)}: Item-{number + 1} is next.",
            ]
            return "\n".join([*edits, *(["remove 2"] if len(request.notes) > 30 else [])])
        if request.start_index > 1 and not known:  # an addition, so long that changes cost less
            return f"## Done\n- Item-{number} was priced, {', '.join(['and priced again'] * 20)}."
        done = [note.text for note in known if note.section == "Done"][-20:]
        return "\n".join(
            ["## Goal", "- Prices are asked for.", "## Done", *(f"- {text}" for text in done), f"- To {number}."]
        )

    scene, prompts, before = Scene([], summarizer=ScriptedSummarizer(default=model)), [], ()
    for _ in range(100):
        scene.add(4 if prompts else 5)
        after, is_major = scene.made.notes, scene.published[-1].major
        stay = [note for note in before[:-1] if note in after]
        assert is_major or len(stay) >= len(before) - 2
        prompts.append(compose(scene.memory, ROLE, budget=100_000, system="S").messages[1]["content"])
        if before and len(before) <= 30 and not is_major:
            first_changed = prompts[-2].index(before[-1].text)
            reused = next(place for place, pair in enumerate(zip(*prompts[-2:], strict=False)) if len(set(pair)) > 1)
            assert reused >= first_changed - len("\n\n## Open\n99. ")
        before = after
    assert len(scene.published) == 100
    assert 0 < sum(event.major for event in scene.published) <= 25, "at most every fourth"
    assert scene.kinds.count("changes") >= 50
    assert sent == list(range(1, scene.made.end_index + 1)), "in order, and none twice"
    tokens = sum(map(count_quoted, scene.summarizer.requests))
    assert sum(event.sent_tokens for event in scene.published) == pytest.approx(tokens, rel=0.03)


@pytest.mark.slow
def test_a_fact_passes_through_at_most_three_summaries_on_average() -> None:
    """On average over 200 turns, majors included: those are rare, and never more than the mean allows."""
    depth: dict[str, int] = {}

    def model(request: SummaryRequest) -> str:
        raw = set(re.findall(r"KEY-\d+ is \w+", text_of(request)))
        facts = sorted({fact.replace(" is ", "=") for fact in raw})
        if request.kind == "changes":
            depth.update(dict.fromkeys(facts, 1))
            return "\n".join(
                [
                    *(f"add [Facts]: {fact}" for fact in facts),
                    f"add [Done]: To part {request.end_index} " + "more was said, " * 8,
                ]
            )
        old = re.findall(r"KEY-\d+=\w+", request.previous.summary) if request.previous else []
        depth.update({fact: depth[fact] + 1 for fact in old} | dict.fromkeys(facts, 1))
        return "\n".join(
            ["## Facts", *(f"- {fact}" for fact in sorted({*old, *facts})), "## Done", "- " + "said " * 150]
        )

    def turn(memory: Memory) -> None:
        number = len(memory.conversation.rounds) + 1
        said = f"Please remember: KEY-{number:03} is VQ{number * 37 % 1000}ZD. " if number % 4 == 0 else ""
        round_ = memory.create_round(said + f"And what about part {number}? " * 8)
        memory.add_post(round_, send_from=ROLE, send_to="User", message=f"Part {number} takes a while. " * 40)
        memory.finish_round(round_)

    config = CompactorConfig(threshold=14, retain_recent=2, target_tokens=1_500, summarizer_input_tokens=100_000)
    scene = Scene(config=config, summarizer=ScriptedSummarizer(default=model))
    for _ in range(200):
        scene.add(1, turn)
    covered = [fact for fact in depth if int(fact[4:7]) <= scene.made.end_index]
    assert len(covered) >= 45
    assert all(fact in scene.made.summary for fact in covered), "none is lost"
    assert any(event.major for event in scene.published)
    assert sum(depth[fact] for fact in covered) <= 3 * len(covered)


# What is wrong with an answer

BAD = ["The user asked for more prices.", "replace 9: Item-8 was priced.", '{"add": [}', "remove 1, 2"]


@pytest.mark.parametrize("bad", BAD)
def test_malformed_changes_become_an_addition_at_once(bad: str) -> None:
    """Of notes on the new rounds alone: nothing that is noted passes through the model once more. No major; what the
    refused answer took is told. The next request asks for changes again."""
    more = "## Done\n- Four more items were priced."
    scene = Scene([FIRST, Summary(bad, USAGE), Summary(more, USAGE), "none"]).add(13)
    assert scene.kinds == ["rounds", "changes", "rounds", "changes"]
    again = scene.summarizer.requests[2]
    assert [round_.number for round_ in again.rounds] == [5, 6, 7, 8]
    assert (again.previous, again.start_index, again.end_index) == (None, 5, 8)
    assert "previous_summary>\n" not in text_of(again)
    (rejected,) = of_kind(scene.compactor.events, Rejected)
    assert (rejected.check, rejected.attempts) == ("malformed", 1)
    published = scene.published[1]
    assert (published.major, published.requests) == (False, 2)
    assert published.usage == {"input_tokens": 200, "output_tokens": 20}
    assert published.sent_tokens == pytest.approx(sum(map(count_quoted, scene.summarizer.requests[1:3])), rel=0.03)
    assert not any(event.major for event in scene.published)
    assert scene.made.notes == (*notes_of(FIRST, (1, 4)), *notes_of(more, (5, 8)))


@pytest.mark.parametrize("changes", ["add [Done]: Item-8.", "none", '{"add":[],"replace":[],"remove":[]}'])
def test_changes_are_no_rewrite(changes: str) -> None:
    """Where notes are asked for, they would be taken for one: it is asked for again, with the reason."""
    more = "## Done\n- Four more items were priced."
    scene = Scene([FIRST, "no list", changes, more]).add(9)
    assert scene.kinds == ["rounds", "changes", "rounds", "rounds"]
    assert [event.check for event in of_kind(scene.compactor.events, Rejected)] == ["malformed", "malformed"]
    assert "not in the form that was asked for" in text_of(scene.summarizer.requests[-1])
    assert scene.made.notes == (*notes_of(FIRST, (1, 4)), *notes_of(more, (5, 8)))


def test_none_is_no_summary() -> None:
    """Where all notes are asked for, it is asked for again: only changes may be none."""
    scene = Scene(["None.", "The user asked what items cost."]).add(5)
    assert scene.kinds == ["rounds", "rounds"]
    assert [event.check for event in of_kind(scene.compactor.events, Rejected)] == ["hollow"]
    assert texts(scene.made.notes) == ["The user asked what items cost."]


def test_a_model_that_never_makes_changes_is_asked_for_them_twice() -> None:
    """And never again: from then on, each compaction takes one request."""

    def never(request: SummaryRequest) -> str:
        ends = range(4 if request.previous else request.end_index, request.end_index + 1, 4)
        return "\n".join(["## Done", *(f"- {end} items." for end in ends)])

    scene = Scene(summarizer=ScriptedSummarizer(default=never)).add(17)
    assert scene.kinds == ["rounds", "changes", "rounds", "changes", "rounds", "rounds"]
    assert texts(scene.made.notes) == ["4 items.", "8 items.", "12 items.", "16 items."]
    scene.add(100)
    assert scene.made.end_index == 116
    assert scene.kinds.count("changes") == 2
    assert [event.requests for event in scene.published] == [1, 2, 2, *[1] * 26]


def test_an_addition_that_is_refused_becomes_a_rewrite_at_once() -> None:
    """From the notes and the new rounds; no request is repeated for ever."""
    full = "## Goal\n- The user asks what items cost.\n\n## Done\n- Eight items were priced."
    scene = Scene([FIRST, "no list", "", "", full]).add(9)
    assert scene.kinds == ["rounds", "changes", "rounds", "rounds", "rounds"]
    assert [event.check for event in of_kind(scene.compactor.events, Rejected)] == ["malformed", "empty", "empty"]
    again = scene.summarizer.requests[-1]
    assert (again.previous, again.start_index, again.end_index) == (scene_made(scene, 0), 5, 8)
    assert SHOWN in text_of(again)
    assert texts(scene.made.notes) == texts(notes_of(full, (1, 8)))
    assert [event.major for event in scene.published] == [False, True]
    assert of_kind(scene.compactor.events, Failed) == []


def test_what_is_refused_in_every_form_is_a_failure() -> None:
    """As any other: it backs off, and begins again."""
    scene = Scene([FIRST, "Hello!", "", "", "", "", "add [Done]: Item-8."]).add(9)
    assert scene.kinds == ["rounds", "changes", "rounds", "rounds", "rounds", "rounds"]
    (failed,) = of_kind(scene.compactor.events, Failed)
    assert failed.error == "empty"
    scene.clock.advance(failed.retry_in)
    scene.executor.run_all()
    assert scene.kinds[6:] == ["changes"]
    assert scene.made.summary == f"{SHOWN}\n3. Item-8."


def test_where_the_limits_leave_no_room_for_the_rewrite_it_is_a_failure() -> None:
    """Which backs off: else the changes would be paid for each time that there is room for one request."""
    scene = Scene([FIRST, "no list", LimitReached(60.0)]).add(9)
    assert scene.kinds == ["rounds", "changes", "rounds"]
    assert [event.error for event in of_kind(scene.compactor.events, Failed)] == ["malformed"]


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        (7, "not_text"),
        (Summary(7), "not_text"),  # type: ignore[arg-type]
        ("", "empty"),
        (lambda request: "add [Done]: " + request.rounds[0].post_list[1].message * 20, "larger"),
        ("add [Done]: Booked HAT901, HAT902, HAT903 and HAT904.", "invented"),
    ],
)  # fmt: skip
def test_changes_pass_the_checks_that_every_summary_passes(answer: Any, check: str) -> None:
    """All notes are measured; what is new in them must come from what was said. If changes make them too long, an
    addition would as well: then all notes are written anew."""
    scene = Scene([FIRST, answer]).add(9)
    assert [event.check for event in of_kind(scene.compactor.events, Rejected)] == [check]
    assert [event.major for event in scene.published] == [False, check == "larger"]


def test_changes_that_repeat_a_long_stretch_are_refused() -> None:
    """Word for word what one post said is no note."""

    def wordy(memory: Memory) -> None:
        round_ = memory.create_round("How is it?")
        number = round_.number
        memory.add_post(
            round_, send_from=ROLE, send_to="User", message=" ".join(f"part{n * number} is fine" for n in range(300))
        )
        memory.finish_round(round_)

    config = CompactorConfig(threshold=1, retain_recent=1, target_tokens=None)
    scene = Scene(["- It is fine.", lambda request: f"add: {request.rounds[0].post_list[0].message}"], config)
    scene.add(4, wordy)
    assert [event.check for event in of_kind(scene.compactor.events, Rejected)] == ["echo"]


def test_what_notes_said_before_is_not_judged_again() -> None:
    """Their identifiers come from rounds that are not in this request."""
    known = "## Done\n- Item-1, item-2, item-3 and item-4 cost 11, 22, 33 and 44 euros."
    scene = Scene([known, "add [Done]: Item-5 costs 55 euros."]).add(9)
    assert of_kind(scene.compactor.events, Rejected) == []
    assert len(scene.made.notes) == 2


# When all is written anew


def lengthy(request: SummaryRequest) -> str | Summary:
    if request.kind == "changes":
        return f"add [Done]: Of item-{request.end_index}: " + "it was looked at closely, " * 2
    return f"## Done\n- Up to item-{request.end_index}: " + "All were looked at. " * 17


def test_notes_that_grew_past_the_target_are_written_anew_from_the_notes() -> None:
    """And the new rounds, as a part of the compaction that is due next: no round is read twice. Asked for in less, so
    that there is room for changes again. No request is longer than it may be."""
    config = CONFIG.copy_with(target_tokens=120, summarizer_input_tokens=900)
    scene = Scene(config=config, summarizer=ScriptedSummarizer(default=lengthy)).add(25)
    published = [scene_made(scene, place) for place in range(6)]
    grown = [False, *(count_tokens(one.summary) > 120 for one in published[:-1])]
    assert [event.major for event in scene.published] == grown == [False, False, False, True, False, False]
    major = scene.summarizer.requests[3]
    assert [round_.number for round_ in major.rounds] == [13, 14, 15, 16]
    assert major.previous is not None
    assert "\n2. Of item-8: it was looked at" in text_of(major)
    assert "at most 72 tokens" in text_of(major)
    note = scene_made(scene, 3).notes[-1]
    assert (note.first_round, note.last_round) == (1, 16)
    assert scene_made(scene, 3).extra["written_tokens"] == count_tokens(scene_made(scene, 3).summary)
    for request in scene.summarizer.requests:
        assert count_prompt(request.messages, count_tokens) <= 900


def test_notes_that_were_written_anew_often_may_be_longer_before_the_next_time() -> None:
    """Each time their facts pass through the model once more, which loses some; a little room more makes that rarer."""
    config = CONFIG.copy_with(target_tokens=120)
    scene = Scene(config=config, summarizer=ScriptedSummarizer(default=lengthy)).add(90)
    made = [scene_made(scene, place) for place in range(len(scene.published))]
    often = [one.extra["passes"] + 1 > 3 for one in made]
    assert sorted({*often}) == [False, True]
    for before, is_often, event in zip(made, often, scene.published[1:], strict=False):
        assert not event.major or count_tokens(before.summary) > (180 if is_often else 120)
    assert max(count_tokens(one.summary) for one in made) > 180


def test_where_older_notes_passed_through_many_summaries_only_the_newest_are_written_anew() -> None:
    """Another summary of all would lose more. The older ones stay byte for byte, and are not sent."""

    def keeping(request: SummaryRequest) -> str:
        if request.kind == "changes":
            return lengthy(request)
        known = re.findall(r"item-\d+", request.previous.summary) if request.previous is not None else []
        return f"## Done\n- Priced: {', '.join([*known, f'item-{request.end_index}'])}.\n- {'All is well. ' * 8}"

    scene = Scene(config=CONFIG.copy_with(target_tokens=160), summarizer=ScriptedSummarizer(default=keeping)).add(80)
    made = [scene_made(scene, place) for place in range(len(scene.published))]
    assert of_kind(scene.compactor.events, Rejected) == []
    assert all(one.extra["passes"] <= 3 for one in made)
    asked = zip(scene.summarizer.requests[1:], made, made[1:], scene.published[1:], strict=False)
    newest = 0
    for request, before, after, event in asked:
        if request.kind != "rounds" or request.previous is None or request.previous.summary == before.summary:
            continue
        newest += 1
        assert not event.major
        stay = before.notes[: -len(request.previous.notes)]
        assert (*stay, *request.previous.notes) == before.notes
        assert after.notes[: len(stay)] == stay
        assert not any(note.text in text_of(request) for note in stay)
        assert after.notes[-1].first_round == request.previous.notes[0].first_round > 1
        assert count_tokens(after.summary) < count_tokens(before.summary)
    assert newest
    assert all(f"item-{number}" in scene.made.summary for number in range(4, scene.made.end_index + 1, 4))


def test_a_note_that_a_rewriting_leaves_out_stays_until_the_next_one_leaves_it_out_too() -> None:
    """A name is said nowhere else, and no newer value takes its place. Two rewritings that agree are believed."""

    def forgetful(request: SummaryRequest) -> str:
        if request.kind == "changes":
            return lengthy(request)
        end, said = request.end_index, request.previous.summary if request.previous is not None else ""
        invoice = "- The invoice is RX-4471.\n" if end == 4 else ""
        items = " ".join(dict.fromkeys([*re.findall(r"item-\d+", said), f"item-{end}"]))
        return f"## Facts\n{invoice}- The newest of all items costs {end * 11} euros.\n- These were priced: {items}."

    scene = Scene(config=CONFIG.copy_with(target_tokens=120), summarizer=ScriptedSummarizer(default=forgetful)).add(45)
    made = [scene_made(scene, place) for place in range(len(scene.published))]
    first, second, third = [one for one, event in zip(made, scene.published, strict=True) if event.major][:3]
    assert "## From an earlier summary\n1. The invoice is RX-4471.\n" in first.summary
    assert (first.notes[0].first_round, first.notes[0].last_round) == (1, 4)
    assert "44 euros" not in first.summary
    assert "RX-4471" not in second.summary + third.summary
    between = made[made.index(first) : made.index(second)]
    assert len(between) > 1
    assert all("RX-4471" in one.summary for one in between)
    assert all(count_tokens(one.summary) <= 120 for one in (first, second, third))


def test_a_note_that_was_corrected_does_not_come_back() -> None:
    """Its id stands in the new notes with a newer value, so the old value is not carried over."""

    def corrected(request: SummaryRequest) -> str:
        if request.kind == "changes":
            return lengthy(request)
        end, said = request.end_index, request.previous.summary if request.previous is not None else ""
        items = " ".join(dict.fromkeys([*re.findall(r"item-\d+", said), f"item-{end}"]))
        return f"## Facts\n- RX-4471: {7912 if end == 4 else f'item-{end}'}\n- These were priced: {items}."

    scene = Scene(config=CONFIG.copy_with(target_tokens=120), summarizer=ScriptedSummarizer(default=corrected)).add(45)
    first, second = [scene_made(scene, place) for place, event in enumerate(scene.published) if event.major][:2]
    assert "RX-4471: item-" in first.summary
    assert "7912" not in first.summary + second.summary


def test_no_round_is_read_twice_however_much_a_request_may_take() -> None:
    """Reading all of them again would be the dearest of all: a request that is nowhere in a cache."""
    config = CONFIG.copy_with(target_tokens=120, summarizer_input_tokens=100_000)
    scene = Scene(config=config, summarizer=ScriptedSummarizer(default=lengthy)).add(49)
    assert sum(event.major for event in scene.published) >= 2
    sent = [round_.number for request in scene.summarizer.requests for round_ in request.rounds]
    assert sent == list(range(1, scene.made.end_index + 1))


def test_additions_that_would_be_too_long_become_a_rewrite() -> None:
    """A model that writes at length whatever it is asked for: no failure, and no notes over twice their target."""

    class Writer(ScriptedSummarizer):
        takes_changes = False

    def writes(request: SummaryRequest) -> str:
        said = f"## Done\n- Up to item-{request.end_index}: " + "all of them were looked at closely. " * 9
        return said if request.previous is not None else said * 2

    config = CONFIG.copy_with(target_tokens=120)
    scene = Scene(config=config, summarizer=Writer(default=writes)).add(41, add_long)
    assert of_kind(scene.compactor.events, Failed) == []
    assert scene.made.end_index == 40
    assert any(event.check == "oversized" for event in of_kind(scene.compactor.events, Rejected))
    for record in scene.compactor.history():
        assert record.compaction is None or count_tokens(record.compaction.summary) <= 240


def test_a_model_that_cannot_write_less_is_not_asked_to_each_time() -> None:
    """Notes that are as long as when they were written may grow by a quarter first."""
    answers = ScriptedSummarizer(
        default=lambda request: "none" if request.kind == "changes" else "## Done\n- " + "All were looked at. " * 14
    )
    scene = Scene(config=CONFIG.copy_with(target_tokens=60), summarizer=answers).add(25)
    assert scene.made.extra["written_tokens"] > 60
    assert [event.major for event in scene.published] == [False] * 6


def test_where_no_length_is_wished_for_notes_take_a_share_of_a_request() -> None:
    """Else they would push the conversation out of it, sooner or later."""

    def keeping(request: SummaryRequest) -> str:
        if request.kind == "changes":
            return lengthy(request)
        return "## Done\n- Looked at: " + ", ".join(f"item-{number}" for number in range(4, request.end_index + 1, 4))

    config = CONFIG.copy_with(target_tokens=None, summarizer_input_tokens=1_500)
    scene = Scene(config=config, summarizer=ScriptedSummarizer(default=keeping)).add(61)
    assert [event.major for event in scene.published].count(True) >= 1
    assert scene.summarizer.requests[0].target_tokens is None
    assert count_tokens(scene.made.summary) < 600


def test_whoever_takes_no_changes_adds_notes_on_the_new_rounds() -> None:
    """Each request holds them alone, and leaves room for the next; the notes that there are stay byte for byte."""

    class Writer(ScriptedSummarizer):
        takes_changes = False

    writer = Writer(default=lambda request: f"## Done\n- {request.end_index} items were priced.")
    scene = Scene(config=CONFIG.copy_with(target_tokens=100), summarizer=writer).add(9)
    assert scene.kinds == ["rounds"] * 2
    assert not any(event.major for event in scene.published)
    assert [request.start_index for request in writer.requests] == [1, 5]
    assert [request.previous for request in writer.requests] == [None] * 2
    for request, share in zip(writer.requests, (0.6, 0.15), strict=True):
        assert request.target_tokens is not None
        assert f"at most {int(share * request.target_tokens)} tokens" in text_of(request)
    assert scene.made.notes == tuple(
        note for end in (4, 8) for note in notes_of(f"## Done\n- {end} items were priced.", (end - 3, end))
    )


def test_what_is_pinned_is_not_noted_as_well() -> None:
    """It stands beside the summary word for word, also where notes are added behind the others."""

    class Writer(ScriptedSummarizer):
        takes_changes = False

    def forbids(memory: Memory) -> None:
        round_ = memory.create_round("Never delete the invoices of 2024.")
        memory.add_post(round_, send_from=ROLE, send_to="User", message="None of them will be deleted. " * 9)
        memory.finish_round(round_)
        memory.pin("r1.p0")

    writer = Writer(default=lambda request: f"## Done\n- {request.end_index} items were priced.")
    scene = Scene(summarizer=writer).add(1, forbids).add(8)
    assert texts(scene.made.notes) == [f"{end} items were priced." for end in (4, 8)]
    prompt = compose(scene.memory, ROLE, budget=50_000).messages
    assert sum("Never delete the invoices of 2024." in str(message["content"]) for message in prompt) == 1


def test_it_works_offline() -> None:
    """The extractive summarizer takes no changes; its summaries are notes all the same."""
    scene = Scene(summarizer=ExtractiveSummarizer()).add(13)
    assert scene.made.end_index == 12
    assert all(f"{number}. {note.text}" in scene.made.summary for number, note in enumerate(scene.made.notes, 1))
    assert any("Item-9 costs 99 euros" in text for text in texts(scene.made.notes))
    assert of_kind(scene.compactor.events, Failed) == []


def test_a_round_that_is_too_long_for_a_request_becomes_several_changes() -> None:
    """Each of what is new; only what ends with a round is published."""

    def long_round(memory: Memory) -> None:
        round_ = memory.create_round("A long one.")
        said = " ".join(f"fact{number} holds" for number in range(720))
        memory.add_post(round_, send_from=ROLE, send_to="User", message=said)
        memory.finish_round(round_)

    config = CONFIG.copy_with(summarizer_input_tokens=2_000)
    scene = (
        Scene(
            [
                FIRST + MORE,
                "add [Done]: Item-5 costs 55 euros.",
                "add [Done]: One fact holds.",
                "add [Done]: Two facts hold.",
                "add [Done]: Three facts hold.",
            ],
            config,
        )
        .add(4, add_long)
        .add(1)
    )
    scene.add(1, long_round).add(3)
    assert set(scene.kinds[1:]) == {"changes"}
    assert len(scene.kinds) >= 4
    assert [note.text for note in scene.made.notes][3:6] == ["One fact holds.", "Two facts hold.", "Three facts hold."]
    assert scene.made.end_index == 8
    posts = [post for request in scene.summarizer.requests[1:] for one in request.rounds for post in one.post_list]
    sent = "".join(post.message for post in posts)
    assert all(sent.count(f"fact{number} holds") == 1 for number in range(720))
    assert not any(event.major for event in scene.published)


# What was there before


def test_a_summary_that_was_made_otherwise_is_read_as_notes() -> None:
    """A session may change to notes, and back."""
    scene = Scene(["The user asks for prices.\n\nFour were found.", "add: Four more."], strategies=(compact_rounds,))
    scene.add(5)
    assert scene.made.notes == ()
    scene.compactor.stop()
    later = Scene(["replace 2: Eight were found."], memory=scene.memory).add(4)
    assert later.kinds == ["changes"]
    assert later.made.summary == "1. The user asks for prices.\n2. Eight were found."
    assert [(note.first_round, note.last_round) for note in later.made.notes] == [(1, 4), (1, 8)]
    later.compactor.stop()
    before = later.made
    back = Scene(["The user asks what items cost."], memory=scene.memory, strategies=(compact_rounds,)).add(4)
    assert back.kinds == ["rounds"]
    previous = back.summarizer.requests[0].previous
    assert previous is not None
    assert (previous.notes, previous.summary) == (before.notes, before.summary)
    assert (back.made.summary, back.made.notes) == ("The user asks what items cost.", ())


@pytest.mark.parametrize("gone", [0, 2])
def test_another_hosts_rounds_are_noted_from_what_is_there(gone: int) -> None:
    """Whether or not it has dropped the old ones since: only new rounds are read."""
    rounds: list[Any] = []

    def more(count: int) -> None:
        for number in range(len(rounds) + 1, len(rounds) + count + 1):
            rounds.append(SimpleNamespace(id=f"h{number}", user_query=f"Question {number}? " * 20, post_list=()))

    summarizer = ScriptedSummarizer([FIRST, "no list", "## Done\n- More items were priced."], default="none")
    executor = ManualExecutor()
    compactor = ContextCompactor(
        CONFIG, summarizer, lambda: rounds[gone:] if len(rounds) > 5 else rounds, role=ROLE,
        strategies=(compact_notes,), executor=executor, clock=FakeClock(),
    )  # fmt: skip
    more(5)
    compactor.start()
    executor.run_all()
    more(6)
    compactor.notify_rounds_changed()
    executor.run_all()
    again = summarizer.requests[2]
    assert (again.kind, again.previous) == ("rounds", None)
    assert [round_.id for round_ in again.rounds] == ["h5", "h6", "h7", "h8", "h9", "h10"]
    assert compactor.get_compaction().summary == f"{SHOWN}\n3. More items were priced."  # type: ignore[union-attr]


# What the user forbade


def test_what_the_user_forbade_becomes_a_note_where_it_was_lost() -> None:
    """And again where a model removes it: behind the notes that stay, which are in the provider's cache."""

    def forbidding(memory: Memory) -> None:
        round_ = memory.create_round("Never delete the invoices. What does it cost?")
        memory.add_post(round_, send_from=ROLE, send_to="User", message="It costs 11 euros. " * 9)
        memory.finish_round(round_)

    scene = Scene([FIRST, "remove 1", "none"]).add(1, forbidding).add(4)
    forbidden = Note(
        text="Never delete the invoices.", section="Instructions from the user", first_round=1, last_round=4
    )
    assert scene.made.notes[0] == forbidden
    assert scene.made.summary.startswith("## Instructions from the user\n1. Never delete the invoices.\n\n## Goal\n")
    assert texts(scene.made.notes)[1:] == texts(notes_of(FIRST, (1, 4)))
    (prepared,) = of_kind(scene.compactor.events, Prepared)
    assert prepared.restored == 1
    scene.add(4)
    assert scene.made.notes[-1] == forbidden.model_copy(update={"first_round": 5, "last_round": 8})
    assert texts(scene.made.notes)[:-1] == texts(notes_of(FIRST, (1, 4)))
    scene.add(4)
    assert scene.made.notes[-1].last_round == 8, "it was not lost"


# What is kept


def test_an_answer_that_was_paid_for_is_read_again_after_a_crash() -> None:
    """The raw answer is in the log, and the notes that it makes."""
    store = FullStore()
    scene = Scene([FIRST, "add [Done]: Item-8 was priced."], memory=Memory("session", store=store)).add(5)
    store.refused = frozenset({"compaction published"})
    scene.add(4)
    (kept,) = scene.memory.snapshot.prepared[ROLE].values()
    assert (kept.kind, kept.text) == ("changes", "add [Done]: Item-8 was priced.")
    assert kept.compaction is not None
    assert texts(kept.compaction.notes)[-1] == "Item-8 was priced."
    assert scene.compactor.history()[-1].happened == "prepared"
    store.refused = frozenset()
    nobody = ScriptedSummarizer(default=AssertionError("nobody is to be asked"))
    later = Scene(summarizer=nobody, memory=Memory("session", store=store))
    later.executor.run_all()
    assert later.made.summary == f"{SHOWN}\n3. Item-8 was priced."
    assert (later.published[0].reused, later.published[0].sent_tokens) == (True, 0)
    assert texts(later.made.notes)[-1] == "Item-8 was priced."


def test_changes_go_on_from_notes_that_are_deferred() -> None:
    """Nobody sees those yet; when they are shown, all that was asked for is in them."""
    memory = Memory("session", clock=FakeClock().now)
    config, asked = CONFIG.copy_with(max_tokens=100_000), ScriptedSummarizer(default=thorough)
    scene = Scene(publish="deferred", config=config, memory=memory, summarizer=asked).add(13, add_long)
    assert scene.kinds == ["rounds", "changes", "changes"]
    assert len(scene.published) < len(scene.kinds)
    assert texts(scene.summarizer.requests[2].notes)[-1] == "Item-8 was priced."
    scene.clock.advance(3_600)
    scene.executor.run_all()
    assert scene.made.summary == f"{SHOWN}{MORE}\n3. Item-8 was priced.\n4. Item-12 was priced."
    assert scene.made.notes[-1].first_round == 9
    sent = sum(event.sent_tokens for event in of_kind(scene.compactor.events, Prepared))
    assert sent == pytest.approx(sum(map(count_quoted, scene.summarizer.requests)), rel=0.02)


def test_the_same_question_is_answered_by_what_was_answered_before() -> None:
    """A step on the way, which is not published, is read by the same reading."""
    store = FullStore()
    config = CONFIG.copy_with(summarizer_input_tokens=2_000)
    said = " ".join(f"fact{number} holds" for number in range(720))

    def long_round(memory: Memory) -> None:
        round_ = memory.create_round("A long one.")
        memory.add_post(round_, send_from=ROLE, send_to="User", message=said)
        memory.finish_round(round_)

    answers = [FIRST, "add [Done]: One fact holds.", "add [Done]: Two facts hold.", RuntimeError("gone")]
    scene = Scene(answers, config, memory=Memory("session", store=store)).add(5).add(1, long_round).add(3)
    assert of_kind(scene.compactor.events, Failed) != []
    scene.compactor.stop()
    later = Scene(config=config, memory=Memory("session", store=store)).add(1)
    assert [event.reused for event in of_kind(later.compactor.events, Prepared)][:2] == [True, False]
    assert {"One fact holds.", "Two facts hold."} <= {*texts(later.made.notes)}


def test_notes_survive_a_resume_a_fork_and_an_export(tmp_path: Any) -> None:
    """Wherever the log goes, with the text."""
    store = open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    scene = Scene(memory=Memory("session", store=store)).add(9)
    notes = scene.made.notes
    assert len(notes) == 3

    def of(memory: Memory) -> Any:
        compaction = memory.get_role_rounds(ROLE)[1]
        return compaction.notes if compaction is not None else None

    again = Memory("session", store=store)
    again.register_compaction_provider(ROLE, ContextCompactor.for_role(again, ROLE, CONFIG, scene.summarizer))
    assert of(again) == notes
    for copy in (scene.memory.fork(at_round=9), Memory.from_state_dict(scene.memory.state_dict())):
        ContextCompactor.for_role(copy, ROLE, CONFIG, scene.summarizer)
        assert of(copy) == notes
    store.close()
    lines, other = tmp_path / "session.jsonl", url_of(tmp_path / "other.db")
    assert run("export", "session", "--store", url_of(tmp_path / "chat.db"), "--to", lines).code == 0
    assert run("import", lines, "--store", other).code == 0
    store = open_store(other)
    copy = Memory("session", store=store)
    ContextCompactor.for_role(copy, ROLE, CONFIG, scene.summarizer)
    assert of(copy) == notes
    store.close()


def test_what_is_redacted_is_gone_from_the_notes(tmp_path: Any) -> None:
    """They hold what was said: nothing of it stays in the log."""
    store = InMemoryStore()
    secret = "item-6 costs hunter2 euros"
    scene = Scene([FIRST, f"add [Done]: {secret}"], memory=Memory("session", store=store)).add(9)
    assert any(secret in entry.body for entry in store.read("session"))
    scene.memory.redact("r6.p2")
    assert not any(secret in entry.body for entry in store.read("session"))
    assert texts(scene.made.notes) == texts(notes_of(FIRST, (1, 4))), "made of the rounds before"


def test_every_decision_tells_the_strategy() -> None:
    """As with all that ask a model."""
    scene = Scene().add(9)
    for kind in (Started, Prepared, Published):
        assert {event.strategy for event in of_kind(scene.compactor.events, kind)} == {"compact_notes"}
