"""``compactor demo``: two agents, a long task, and histories that are compacted while nobody waits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import TERMINAL, refusal, run
from fenced import ROOT
from rich.console import Console
from threads import wait_until

from compactor import (
    ContextCompactor,
    Event,
    ExtractiveSummarizer,
    Prices,
    Published,
    State,
    Summary,
    SummaryRequest,
    compose,
    count_tokens,
)
from compactor.cli.demo import draw_screen, play_on_screen
from compactor.cli.plot import draw_plot
from compactor.cli.savings import StatsCollector
from compactor.cli.scenario import BUDGET, SALES_FORECAST, Demo, load_script
from compactor.cli.sides import Agent, Bill
from compactor.prompt.token_cache import TokenCache
from compactor.summarizers.statements import Section
from compactor.tokens import PROMPT_TOKENS
from memory import Memory, Round

PLANNER, INTERPRETER = AGENTS = tuple(SALES_FORECAST.agents)
LENGTH, WINDOW = SALES_FORECAST.length, SALES_FORECAST.window


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def whole() -> Any:
    """The figures of the whole demo, at full speed."""
    done = run("demo", "--fast", "--json", "--latency", 0.02)
    assert (done.code, done.err) == (0, "")
    return done.document


@pytest.fixture(scope="module")
def seen() -> list[Event]:
    """The events of ``played``."""
    return []


@pytest.fixture(scope="module")
def played(seen: list[Event]) -> Demo:
    """A demo of 24 rounds, played and stopped."""
    with Demo(SALES_FORECAST, latency=0.0, hooks=[seen.append]) as demo:
        demo.play(24)
        assert demo.settle(timeout=60)
    return demo


# -- the main job -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_agents_histories_are_compacted_through_a_long_task(whole: Any) -> None:
    """At least 60 rounds; each role's first rounds are covered, several times over."""
    assert whole["rounds"] >= 60
    assert list(whole["roles"]) == [PLANNER, INTERPRETER]
    for role in whole["roles"].values():
        assert role["compactions"] >= 2
        assert role["failures"] == 0
        assert role["covered_rounds"] > whole["rounds"] / 2


@pytest.mark.slow
def test_every_prompt_fits_and_most_of_the_tokens_are_saved(whole: Any) -> None:
    for role in whole["roles"].values():
        assert role["prompts_over_budget"] == 0
        assert role["prompts"] > 100
        assert role["prompt_tokens"] <= BUDGET < role["raw_tokens"]
        assert role["tokens_of_all_prompts"] < role["raw_tokens_of_all_prompts"] / 2


def test_no_turn_waits_for_a_summarizer_that_takes_a_minute() -> None:
    """More rounds are played while both roles' first summaries are still being made."""
    with Demo(replace(SALES_FORECAST, window=10**9), latency=60) as demo:
        demo.play(16)
        wait_until(lambda: all(one.compactor.status().state is State.COMPACTING for one in demo.agents.values()))
        demo.play(4)
        states = [agent.compactor.status().state for agent in demo.agents.values()]
        ends = [agent.compactor.status().end_index for agent in demo.agents.values()]
        assert not demo.settle(timeout=0)
    assert states == [State.COMPACTING, State.COMPACTING]
    assert ends == [0, 0]
    assert len(demo.clock.turns) == 20
    assert all(agent.stats.get_figures()["prompt_tokens"] <= BUDGET for agent in demo.agents.values())


def test_stopping_does_not_wait_for_the_added_latency() -> None:
    """Leaving the demo ends the wait that stands for a model, and leaves no worker."""
    with Demo(replace(SALES_FORECAST, window=10**9), latency=60) as demo:
        demo.play(12)
    assert [agent.compactor.status().state for agent in demo.agents.values()] == [State.STOPPED, State.STOPPED]


@pytest.mark.slow
def test_the_time_that_turns_are_held_up_is_measured_turn_by_turn(played: Demo) -> None:
    assert len(played.clock.turns) == 24
    assert all(seconds > 0 for seconds in played.clock.turns)
    assert played.compute_figures()["longest_turn_ms"] == round(1000 * max(played.clock.turns), 3)
    assert played.clock.longest_call > 0


def test_each_role_has_its_own_prompt_and_sees_its_own_posts(played: Demo) -> None:
    """The planner never reads the interpreter's tool calls, the interpreter never the planner's answers."""
    prompts = {role: agent.compactor.config.prompt.name for role, agent in played.agents.items()}
    assert prompts == {PLANNER: "planner", INTERPRETER: "code_interpreter"}
    planner, interpreter = (json.dumps(played.memory.messages(role)) for role in AGENTS)
    assert "run_python" not in planner
    assert "execution_result" in planner
    assert "run_python" in interpreter
    assert "I will load them year by year" in planner
    assert "I will load them year by year" not in interpreter


def test_each_tool_call_has_its_result(played: Demo) -> None:
    """Real calls, as a provider takes them: every call is answered at once, by its id."""
    messages = played.memory.messages(INTERPRETER)
    asked = [(call["id"], after) for said, after in pairwise(messages) for call in said.get("tool_calls", ())]
    assert len(asked) > 20
    assert all(after["role"] == "tool" and after["tool_call_id"] == id_ for id_, after in asked)


def test_the_users_standing_rules_are_in_the_summaries(played: Demo) -> None:
    """What the user laid down in the first round is still there when that round is long covered."""
    for agent in played.agents.values():
        compaction = agent.compactor.get_compaction()
        assert compaction is not None
        assert f"{Section.INSTRUCTIONS}\n- " in compaction.summary
        assert "all amounts in EUR, never in USD" in compaction.summary


@pytest.mark.usefixtures("played")
def test_hooks_see_each_roles_events(seen: list[Event]) -> None:
    assert {event.role for event in seen if isinstance(event, Published)} == set(AGENTS)


# -- the script -------------------------------------------------------------------------------------------------------


def test_the_script_is_long_and_whole() -> None:
    """At least 60 rounds, each with an answer; whoever is asked runs something and reports."""
    _, script = load_script(SALES_FORECAST.file)
    assert len(script) == LENGTH >= 60
    for turn in script:
        assert turn["user"]
        assert turn["answer"]
        assert ("ask" in turn) == ("runs" in turn) == ("report" in turn)
        assert all(run["python"] and run["result"] for run in turn.get("runs", ()))
    assert sum("Error" in run["result"] for turn in script for run in turn.get("runs", ())) >= 8
    assert script[0]["plan"]


@pytest.mark.slow
def test_the_script_goes_on_with_another_product_when_it_is_through() -> None:
    """More rounds are the next forecast, with its own files; nothing is left to fill in."""
    demo = Demo(SALES_FORECAST, latency=0.0)
    demo.play(LENGTH + 1)
    rounds = demo.memory.conversation.rounds
    assert "filter coffee" in rounds[0].user_query
    assert "espresso" in rounds[LENGTH].user_query
    assert not any("$" in text or "<0" in text for round_ in rounds for text in texts_of(round_))


def texts_of(round_: Round) -> list[str]:
    """Return all that is said and run in a round."""
    said = [(post.message, *(one.content for one in post.attachment_list)) for post in round_.post_list]
    calls = [call.arguments for post in round_.post_list for call in post.tool_calls]
    return [round_.user_query, *(text for texts in said for text in texts), *calls]


def test_equal_seeds_give_equal_conversations() -> None:
    """To the letter, whatever the pace."""

    def texts(seed: int) -> list[str]:
        demo = Demo(SALES_FORECAST, latency=0.0, seed=seed)
        demo.play(6)
        return [text for round_ in demo.memory.conversation.rounds for text in texts_of(round_)]

    assert texts(3) == texts(3) != texts(4)


def test_the_seed_is_an_option() -> None:
    words = ("demo", "--pressure", "--fast", "--json", "--rounds", 4, "--latency", 0, "--seed")
    one, same, other = (run(*words, seed).document["roles"]["Responder"]["raw_tokens"] for seed in (3, 3, 4))
    assert one == same != other


# -- how it looks -----------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_prints_plain_lines_and_a_table() -> None:
    """What happened can be read in a log: no control characters, one line for each thing."""
    done = run("demo", "--rounds", 24, "--pace", 0.001, "--latency", 0)
    assert (done.code, done.err) == (0, "")
    assert not re.search("[\x00-\x09\x0b-\x1f]", done.out)
    for role in AGENTS:
        assert re.search(
            rf"round  {{1,2}}\d+  {role} +compacting rounds 1-\d+ in the background \([\d,]+ tokens\)", done.out
        )
        assert re.search(
            rf"round  {{1,2}}\d+  {role} +rounds 1-\d+ now read as a summary: [\d,]+ -> [\d,]+ tokens", done.out
        )
        assert re.search(rf"round  20  {role} +prompt: [\d,]+ tokens of [\d,]+", done.out)
    assert "24 rounds in one Memory, two agents" in done.out
    assert re.search(r"longest wait in a turn +[\d,]+ ms +[\d,]+ ms", done.out)
    assert re.search(r"prompts over the budget \W+0 of \d+", done.out)
    assert "compactor replay FILE" in done.out


@pytest.mark.slow
def test_on_a_terminal_it_redraws_a_screen_of_its_own_and_leaves_the_last_picture() -> None:
    """Both prompts, the summary, the plot, and what both cost."""
    out = run("demo", "--rounds", 21, "--pace", 0.01, "--latency", 0.05, terminal=True).out
    moving, _, last = out.partition("\x1b[?1049l")
    assert moving.startswith("\x1b[?1049h")
    for picture, parts in (
        (moving, ("round 1 of 21", "User: Hello. I plan purchasing")),
        (last, ("From when to when was store 17 closed?", "answers: 2023-06-05 to 2023-09-10", "tokens of")),
    ):
        plain = without_controls(picture)
        assert all(part in plain for part in parts)
    drawn = re.findall(r"round (\d+) of 21", without_controls(moving))  # a slow machine leaves rounds out
    assert len(set(drawn)) > 1
    assert sorted(drawn, key=int) == drawn
    assert re.search(r"summary 1-\d+: \d+ new, \d+ kept", without_controls(last))


@pytest.fixture(scope="module")
def shown() -> Iterator[Demo]:
    """A demo of 60 rounds beside agents that compact inside the turn, up to the question."""
    with Demo(SALES_FORECAST, latency=0.0, model="gpt-4.1-mini") as demo:
        demo.play(60)
        assert demo.settle(timeout=60)
        demo.ask()
        yield demo


def without_controls(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def picture(demo: Demo, width: int, height: int, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, **options)
    console.print(draw_screen(demo, 60, console, height))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (200, 60), (120, 20), (41, 12)])
def test_the_screen_fits_every_terminal(shown: Demo, width: int, height: int) -> None:
    """No line is wider; from 80 by 24 on nothing is left out, and larger ones are used."""
    lines = picture(shown, width, height).splitlines()
    assert max(map(len, lines)) <= width
    if height >= 24:
        assert height - 3 <= len(lines) <= height
        assert max(map(len, lines)) == width
        text = "\n".join(lines)
        for part in ("without", "with context-compactor", "cost (gpt-4.1-mini)", "in its summary", "summary 1-"):
            assert part in text


def test_a_narrow_screen_has_labels_that_fit_it(shown: Demo) -> None:
    text = picture(shown, 60, 15)
    for part in (
        " without  ██ with  longest",
        "tokens of ",
        " prompts ",
        "longest wait in a turn ",
        "what round 2 said",
    ):
        assert part in text
    assert re.search(r"cost \(gpt-4\.1-mini\) +\$[\d.]+ +\$[\d.]+ +\d+%", text)
    assert re.search(r"what round 2 said +right +right *$", text, re.MULTILINE)


def test_waits_are_compared_once_a_turn_has_waited_for_a_summary(shown: Demo) -> None:
    """Before, they differ by milliseconds of chance."""
    assert re.search("longest wait in a turn.* less", picture(shown, 80, 24))
    with Demo(SALES_FORECAST, latency=0.0) as demo:
        demo.play(3)
        demo.baseline.clock.turns.append(1.0)
        assert re.search("longest wait in a turn +1,000 ms +[0-9,]+ ms *$", picture(demo, 80, 24), re.MULTILINE)


def test_drawing_leaves_time_for_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame on a slow terminal lasts longer than a pause: the demo takes twice its time at most, not for minutes."""
    now = drawn = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def draw_slowly(*_arguments: Any) -> str:
        nonlocal drawn
        wait(0.5)
        drawn += 0.5
        return "a frame"

    monkeypatch.setattr("compactor.cli.demo.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("compactor.cli.demo.draw_screen", draw_slowly)
    interrupts: Any = SimpleNamespace(check=lambda: None, sleep=wait)
    console = Console(file=io.StringIO(), force_terminal=True)
    with Demo(SALES_FORECAST, latency=0.0) as demo:
        play_on_screen(demo, 10, 0.3, console, interrupts)
    assert 0 < drawn <= now / 2 + 0.5


def test_the_summary_is_shown_as_it_grows(shown: Demo) -> None:
    """New sentences have a sign, those that stayed have none; together they are what the prompt holds."""
    agent = shown.agents[PLANNER]
    assert agent.compaction is not None
    fates = {fate for fate, _ in agent.sentences}
    assert {"came in", "stayed"} <= fates
    kept = [text for fate, text in agent.sentences if fate != "dropped"]
    letters = "".join(filter(str.isalnum, agent.compaction.summary))
    assert all("".join(filter(str.isalnum, text)) in letters for text in kept)
    wide = picture(shown, 200, 60)
    new = next(text for fate, text in agent.sentences if fate == "came in")
    assert f"+ {new[:40]}" in wide


def test_the_other_side_fills_its_window_and_then_holds_the_turn_up(shown: Demo) -> None:
    """It hears the same, and its figures are measured alike."""
    baseline = shown.baseline
    assert [one.user_query for one in baseline.memory.conversation.rounds] == [
        one.user_query for one in shown.memory.conversation.rounds
    ]
    for role, agent in baseline.agents.items():
        assert WINDOW - 2_000 < max(agent.longest) <= WINDOW
        assert agent.longest[:5] == shown.agents[role].longest[:5]  # the same until something is compacted
        assert agent.stats.get_figures()["compactions"] == 1
    assert baseline.bill.dollars > shown.bill.dollars > 0


def test_a_turn_on_the_other_side_waits_for_the_summary() -> None:
    """As long as the summary takes; on this side no turn waits."""
    with Demo(replace(SALES_FORECAST, window=1_500), latency=0.3) as demo:
        demo.play(9)
    assert demo.baseline.clock.longest_turn >= 0.3
    waited = [seconds >= 0.3 for seconds in demo.baseline.clock.turns]
    assert any(waited)
    assert len(waited) == len(demo.clock.turns) == 9


def test_both_sides_answer_a_question_about_the_second_round(shown: Demo) -> None:
    """Long after the round itself has left both prompts."""
    assert list(shown.answers) == ["without", "with"]
    for answer in shown.answers.values():
        assert answer == {"answer": "2023-06-05 to 2023-09-10", "source": "in its summary", "right": True}
    assert "store 17" in shown.memory.conversation.rounds[1].user_query


@pytest.mark.slow
def test_what_no_prompt_holds_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has it, and the agent's tools find it; without them there is no answer."""
    summarize = ExtractiveSummarizer.__call__

    def forget(self: ExtractiveSummarizer, request: SummaryRequest) -> Summary:
        return Summary(summarize(self, request).text.replace("1204113", "[number]"), extracted=True)

    monkeypatch.setattr(ExtractiveSummarizer, "__call__", forget)
    question = {"ask": "How long is sales23?", "answer": "1204113", "search": "sales23 shape", "pattern": "has shape ("}
    monkeypatch.setitem(load_script(SALES_FORECAST.file)[0], "question", question | {"find": r"\d{4,}"})  # type: ignore[index]
    with Demo(replace(SALES_FORECAST, window=1_500), latency=0.0) as demo:
        demo.play(24)
        assert demo.settle(timeout=60)
        demo.ask()
    assert re.fullmatch(r"reloads r3\.p\d", demo.answers["with"].pop("source"))
    assert demo.answers["with"] == {"answer": "1204113", "right": True}
    assert demo.answers["without"]["answer"] == ""


@pytest.mark.parametrize(
    ("without", "lines"), [(100, ["██", "██"]), (90, ["██", "██"]), (40, ["██", "░░"]), (0, ["██", "██"])]
)
def test_the_second_series_is_hidden_by_a_clearly_smaller_one_only(without: int, lines: list[str]) -> None:
    """Before the first compaction both sides send the same, and both must be seen to send something."""
    both = ("without", "red", [without] * 2), ("with", "green", [100] * 2)
    legend, *drawn = draw_plot("tokens", both, 2, 13, 2, ascii_only=False)
    assert legend.plain == "░░ without  ██ with  tokens"
    assert [line.plain[-2:] for line in drawn] == lines


def test_prices_are_those_of_the_model_that_is_named() -> None:
    """Twice the price per token, twice the cost; a model without a price is refused."""
    words = ("demo", "--fast", "--rounds", 3, "--latency", 0, "--json", "--price")
    cheap, dear = (run(*words, model).document["without"]["dollars"] for model in ("gpt-4.1-mini", "gpt-4.1"))
    assert dear == pytest.approx(5 * cheap, rel=0.01)
    assert refusal(run(*words, "no-such-model")).startswith("--price: ")


def test_what_a_prompt_shares_with_the_last_one_is_cached() -> None:
    """A prompt that only grows pays the full price for what is new."""
    prices = Prices(cached_input=0.5, per_token=1.0)
    bill = Bill(prices)
    memory = Memory()
    agent = Agent(
        ContextCompactor.for_role(memory, "a"), StatsCollector(), TokenCache("a", count_tokens), bill, longest=[0]
    )
    memory.append({"role": "user", "content": "One, two, three."})
    first = agent.record_prompt(compose(memory, "a", budget=1_000))
    assert bill.dollars == first
    memory.append({"role": "assistant", "content": "Four."})
    second = agent.record_prompt(compose(memory, "a", budget=1_000))
    shared = first - PROMPT_TOKENS
    assert bill.dollars == first + second - shared * 0.5
    assert agent.longest == [second]


def test_a_page_holds_the_last_picture_and_all_figures(tmp_path: Path) -> None:
    path = tmp_path / "demo.html"
    done = run("demo", "--rounds", 8, "--fast", "--latency", 0, "--html", path)
    assert (done.code, done.err) == (0, "")
    page = path.read_text(encoding="utf-8")
    for part in ("<title>compactor demo</title>", "compactor demo: round 8 of 8", "8 rounds in one Memory", "░"):
        assert part in page
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", page)


def test_a_page_that_cannot_be_written_is_said_before_anything_is_played(tmp_path: Path) -> None:
    said = refusal(run("demo", "--html", tmp_path / "none" / "demo.html"))
    assert said.endswith("give another path by --html")


@pytest.mark.slow
def test_no_colour_where_none_is_wanted() -> None:
    """NO_COLOR is respected: the display is redrawn, and nothing in it is coloured."""
    out = run("demo", "--rounds", 2, "--pace", 0, terminal=True, NO_COLOR="1").out
    assert "\x1b[?1049h" in out
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9|10)[0-7]m", out)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", run("demo", "--rounds", 2, "--pace", 0, terminal=True).out)


@pytest.mark.slow
def test_a_terminal_without_our_signs_gets_others() -> None:
    """No crash and no boxes of question marks where only ASCII can be shown."""
    done = run("demo", "--rounds", 4, "--fast", "--latency", 0, terminal=True, encoding="ascii")
    last = without_controls(done.out.partition("\x1b[?1049l")[2])
    assert re.search(r"0 \|#+", last)
    assert ".. without  ## with context-compactor" in last
    assert "?" not in last.partition("longest prompt")[2].partition("without: sends")[0]
    assert "+- without: sends ---" in last


def test_logs_and_a_live_display_do_not_share_a_terminal() -> None:
    """With --log-events on a terminal, lines follow lines."""
    done = run("demo", "--rounds", 14, "--fast", "--latency", 0, "--log-events", "console", terminal=True)
    assert "\x1b[?1049h" not in done.out
    assert "compaction.started" in done.err


@pytest.mark.slow
def test_events_as_json_hold_numbers_and_no_text() -> None:
    done = run("demo", "--rounds", 20, "--fast", "--latency", 0, "--json", "--log-events", "json")
    events = [json.loads(line) for line in done.err.splitlines()]
    assert {event["role"] for event in events} == set(AGENTS)
    assert "roasteries" not in done.err
    assert done.document["rounds"] == 20


@pytest.mark.parametrize("words", [("--rounds", 0), ("--pace", -1), ("--pace", "soon"), ("--latency", 61), ("more",)])
def test_nonsense_is_refused_in_one_line(words: tuple[object, ...]) -> None:
    assert refusal(run("demo", *words))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("sign", [b"\x1b[?1049h", b"STOPPED"])
def test_an_interrupt_restores_the_screen_and_ends_with_one_line(sign: bytes) -> None:
    """Whatever is being drawn or waited for, and however often the key is pressed."""
    import pty  # not on Windows

    terminal, theirs = pty.openpty()
    words = ("demo", "--pace", "0.01", "--latency", "0.5")
    environment = os.environ | TERMINAL | {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "LINES": "24"}
    command = [sys.executable, "-m", "compactor", *words]
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        out, pressed = b"", False
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while more := os.read(terminal, 1 << 16):
                out += more
                if sign in out and process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    pressed = True
    os.close(terminal)
    shown, _, left = out.partition(b"\x1b[?1049l")
    assert (process.returncode, pressed, left) == (130, True, b"compactor: interrupted\r\n")
    assert shown.endswith(b"\x1b[?25h")  # the cursor is back
