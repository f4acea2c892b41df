"""``compactor demo``: two agents, a long task, and histories that are compacted while nobody waits."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from command_line import refusal, run

from compactor import State
from compactor.cli.scenario import BUDGET, SALES_FORECAST, Demo, load_script
from compactor.events import Published
from compactor.summarizers.statements import Section
from memory import Round
from memory.events import Event

PLANNER, INTERPRETER = AGENTS = tuple(SALES_FORECAST.agents)
LENGTH = SALES_FORECAST.length


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
def played() -> Demo:
    """A demo of 24 rounds, played and stopped."""
    with Demo(SALES_FORECAST, latency=0.0) as demo:
        demo.play(24)
        assert demo.settle(timeout=20)
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


def test_every_prompt_fits_and_most_of_the_tokens_are_saved(whole: Any) -> None:
    for role in whole["roles"].values():
        assert role["prompts_over_budget"] == 0
        assert role["prompts"] > 100
        assert role["prompt_tokens"] <= BUDGET < role["raw_tokens"]
        assert role["tokens_of_all_prompts"] < role["raw_tokens_of_all_prompts"] / 2


def test_no_turn_waits_for_a_summarizer_that_takes_a_minute() -> None:
    """All rounds are played while both roles' first summaries are still being made."""
    with Demo(SALES_FORECAST, latency=60) as demo:
        demo.play(20)
        states = [agent.compactor.status().state for agent in demo.agents.values()]
        ends = [agent.compactor.status().end_index for agent in demo.agents.values()]
        assert not demo.settle(timeout=0)
    assert states == [State.COMPACTING, State.COMPACTING]
    assert ends == [0, 0]
    assert len(demo.turn_seconds) == 20
    assert all(agent.watch.figures()["prompt_tokens"] <= BUDGET for agent in demo.agents.values())


def test_stopping_does_not_wait_for_the_added_latency() -> None:
    """Leaving the demo ends the wait that stands for a model, and leaves no worker."""
    with Demo(SALES_FORECAST, latency=60) as demo:
        demo.play(12)
    assert [agent.compactor.status().state for agent in demo.agents.values()] == [State.STOPPED, State.STOPPED]


def test_the_time_a_turn_is_turn_seconds_is_measured_turn_by_turn(played: Demo) -> None:
    assert len(played.turn_seconds) == 24
    assert all(seconds > 0 for seconds in played.turn_seconds)
    assert played.figures()["longest_turn_ms"] == round(1000 * max(played.turn_seconds), 3)
    assert played.longest_call > 0


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


def test_hooks_see_each_roles_events() -> None:
    seen: list[Event] = []
    with Demo(SALES_FORECAST, latency=0.0, hooks=[seen.append]) as demo:
        demo.play(12)
        demo.settle(timeout=20)
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
        demo.play(14)
        return [text for round_ in demo.memory.conversation.rounds for text in texts_of(round_)]

    assert texts(3) == texts(3) != texts(4)


def test_the_seed_is_an_option() -> None:
    words = ("demo", "--pressure", "--fast", "--json", "--rounds", 4, "--latency", 0, "--seed")
    one, same, other = (run(*words, seed).document["roles"]["Responder"]["raw_tokens"] for seed in (3, 3, 4))
    assert one == same != other


# -- how it looks -----------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_prints_plain_lines_and_a_table() -> None:
    """What happened can be read in a log: no control characters, one line for each thing."""
    done = run("demo", "--rounds", 12, "--pace", 0.001, "--latency", 0)
    assert (done.code, done.err) == (0, "")
    assert not re.search("[\x00-\x09\x0b-\x1f]", done.out)
    for role in AGENTS:
        assert re.search(
            rf"round  {{1,2}}\d+  {role} +compacting rounds 1-\d+ in the background \([\d,]+ tokens\)", done.out
        )
        assert re.search(
            rf"round  {{1,2}}\d+  {role} +rounds 1-\d+ now read as a summary: [\d,]+ -> [\d,]+ tokens", done.out
        )
        assert re.search(rf"round  10  {role} +prompt: [\d,]+ tokens of [\d,]+", done.out)
    assert "12 rounds in one Memory, two agents" in done.out
    assert re.search(
        r"All calls of one turn together took [\d.]+ ms at most, the longest single call [\d.]+ ms\.", done.out
    )
    assert re.search(r"prompts over the budget \W+0 of \d+", done.out)
    assert "compactor replay FILE --show" in done.out


@pytest.mark.slow
def test_on_a_terminal_it_redraws_a_live_display() -> None:
    """Rounds, each role's covered range, prompt tokens against raw tokens, and the longest turn."""
    out = run("demo", "--rounds", 11, "--pace", 0.1, "--latency", 0.05, terminal=True).out
    assert "\x1b[1A" in out  # the cursor goes up, and the next picture over the last one
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    for part in (
        "compactor demo - round 1 of 11",
        "compactor demo - round 11 of 11",
        "User: Hello. I plan purchasing",
        "Planner to CodeInterpreter: List the files",
        "longest time that a turn was held up",
        "summarised",
        "11 rounds in one Memory, two agents",
    ):
        assert part in plain
    assert re.search(r"tokens  █+▒*  [\d,]+ of [\d,]+", plain)
    assert re.search(r"rounds  █+▒+  1-\d+ summarised, \d+ as they are", plain)


def test_no_colour_where_none_is_wanted() -> None:
    """NO_COLOR is respected: the display is redrawn, and nothing in it is coloured."""
    out = run("demo", "--rounds", 2, "--pace", 0, terminal=True, NO_COLOR="1").out
    assert "\x1b[1A" in out
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9|10)[0-7]m", out)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", run("demo", "--rounds", 2, "--pace", 0, terminal=True).out)


def test_a_terminal_without_our_signs_gets_others() -> None:
    """No crash and no boxes of question marks where only ASCII can be shown."""
    out = run("demo", "--rounds", 10, "--fast", "--latency", 0, terminal=True, encoding="ascii").out
    assert re.search(r"rounds  [#=]+\.* ", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out))
    assert "?" not in re.sub(r"User: .*|.* to .*", "", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out))


def test_logs_and_a_live_display_do_not_share_a_terminal() -> None:
    """With --log-events on a terminal, lines follow lines."""
    done = run("demo", "--rounds", 10, "--fast", "--latency", 0, "--log-events", "console", terminal=True)
    assert "\x1b[1A" not in done.out
    assert "compaction.started" in done.err


def test_events_as_json_hold_numbers_and_no_text() -> None:
    done = run("demo", "--rounds", 10, "--fast", "--latency", 0, "--json", "--log-events", "json")
    events = [json.loads(line) for line in done.err.splitlines()]
    assert {event["role"] for event in events} == set(AGENTS)
    assert "roasteries" not in done.err
    assert done.document["rounds"] == 10


@pytest.mark.parametrize("words", [("--rounds", 0), ("--pace", -1), ("--pace", "soon"), ("--latency", 61), ("more",)])
def test_nonsense_is_refused_in_one_line(words: tuple[object, ...]) -> None:
    assert refusal(run("demo", *words))
