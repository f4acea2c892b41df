"""``compactor demo --pressure``: far more than a prompt can hold, and nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import pytest
from command_line import refusal, run

from compactor import Event, Prompt, Report, count_tokens
from compactor.cli import scenario
from compactor.cli.savings import NO_SAVING
from compactor.cli.scenario import BUDGET, INCIDENT, Demo, load_script
from compactor.cli.sides import Stopwatch
from memory import Memory

(ROLE,) = INCIDENT.agents
LENGTH = INCIDENT.length
STRATEGIES = ["offload_large", "drop(heartbeat)", "compress_tool_runs", "compact_rounds", "compress_tool_runs(current)"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class Waited(Demo):
    """The task with its compactor waited for after each of the host's calls: so it is the same every time."""

    def __enter__(self) -> Self:
        self.clock = Waiting(self)
        return super().__enter__()


class Waiting(Stopwatch):
    """After each call, waits for the compactors."""

    def __init__(self, demo: Demo) -> None:
        super().__init__()
        self._demo = demo

    @contextmanager
    def measure_call(self) -> Iterator[None]:
        with super().measure_call():
            yield
        assert all(agent.compactor.wait_idle(20) for agent in self._demo.agents.values())


def played(rounds: int, *, seed: int = 0) -> Demo:
    """Return a task played and stopped."""
    with Waited(INCIDENT, latency=0.0, seed=seed) as playing:
        playing.play(rounds)
        assert playing.settle(timeout=20)
        playing.ask()
    return playing


def playing(script: Callable[[Demo], object]) -> Demo:
    """Return a demo whose rounds are played by *script* instead."""
    return Waited(replace(INCIDENT, play_round=lambda demo, _: script(demo)), latency=0.0)


@pytest.fixture(scope="module")
def whole() -> Demo:
    """The whole task, the same at every run."""
    return played(LENGTH)


# -- the main job -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_prompt_fits_and_nothing_in_it_is_torn(whole: Demo) -> None:
    """4,000 tokens, tools and all, with results of thousands and sixty calls in one round."""
    figures = whole.compute_figures()
    one = figures["roles"][ROLE]
    assert (figures["budget"], BUDGET) == (4_000, 4_000)
    assert one["prompts"] > 100
    assert one["raw_tokens"] > 8 * BUDGET
    assert (one["prompts_over_budget"], one["orphaned_calls"], one["queries_not_verbatim"]) == (0, 0, 0)
    assert (figures["pins_lost"], figures["plans_lost"]) == (0, 0)


@pytest.mark.slow
def test_the_pressure_is_real(whole: Demo) -> None:
    """Single results are longer than a whole prompt may be, and single rounds have dozens of calls."""
    posts = [post for round_ in whole.memory.conversation.rounds for post in round_.post_list]
    assert sum(count_tokens(post.message) > BUDGET for post in posts) >= 2
    calls = [sum(len(post.tool_calls) for post in round_.post_list) for round_ in whole.memory.conversation.rounds]
    assert sorted(calls)[-3:] == [36, 40, 60]
    assert any(len(post.tool_calls) == 3 for post in posts)


def test_every_strategy_saves_something(whole: Demo) -> None:
    """All five have their part in it, those that ask a model as well as those that need none."""
    figures = whole.agents[ROLE].stats.get_figures()
    savings = figures["strategies"]
    assert list(savings) == STRATEGIES
    assert all(saving["overlays"] > 0 and saving["tokens_saved"] > 0 for saving in savings.values())
    asked = [name for name, saving in savings.items() if saving["requests"]]
    assert asked == STRATEGIES[2:]
    assert sum(saving["overlays"] for saving in savings.values()) == figures["compactions"] + figures["reductions"]


def test_every_reference_gives_back_exactly_what_was_said(whole: Demo) -> None:
    assert len(whole.references) > 20
    assert whole.wrong_references == 0


def test_ids_that_are_needed_again_are_read_back(whole: Demo) -> None:
    """Two of them had left the prompt; the agent finds them by its tools, in what a tool once gave."""
    assert [(one["what"], one["right"]) for one in whole.lookups] == [
        ("deployment", True),
        ("trace", True),
        ("deployment", True),
    ]
    assert sum(not one["in_prompt"] for one in whole.lookups) >= 1
    posts = [post for round_ in whole.memory.conversation.rounds for post in round_.post_list]
    called = {call.name: call.arguments for post in posts for call in post.tool_calls}
    assert json.loads(called["roll_back"])["deployment"] in whole.memory.reload(whole.lookups[0]["ref"])
    assert "context_reload" in called


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures() -> None:
    """Where the compactor is waited for, to the token."""

    def figures(seed: int) -> Any:
        document = played(4, seed=seed).compute_figures()
        return json.loads(re.sub(r'"\w+_(ms|seconds)": [\d.]+', '"": 0', json.dumps(document)))

    assert figures(3) == figures(3) != figures(4)


@pytest.mark.slow
def test_without_a_summary_in_time_prompts_fit_all_the_same() -> None:
    """A summarizer that takes a minute: what cannot wait is done by compose, and nobody waits for the rest."""
    with Demo(replace(INCIDENT, window=10**9), latency=60) as playing:
        playing.play(9)
        assert not playing.settle(timeout=0)
        figures = playing.agents[ROLE].stats.get_figures()
    assert figures["compactions"] == 0
    assert (figures["prompts_over_budget"], figures["orphaned_calls"], figures["queries_not_verbatim"]) == (0, 0, 0)
    assert (playing.pins_lost, playing.wrong_references) == (0, 0)
    assert figures["levels"]["left_out"]["prompts"] > 10


def test_hooks_see_the_events() -> None:
    seen: list[Event] = []
    with Demo(INCIDENT, latency=0.0, hooks=[seen.append]) as playing:
        playing.play(3)
        playing.settle(timeout=20)
    assert "compaction.reduced" in {event.name for event in seen}


# -- what is found when a promise is broken ---------------------------------------------------------------------------


def test_lost_pins_plans_and_queries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from compose's word: one that loses everything is found out."""

    def empty(memory: Memory, role: str, **options: Any) -> Prompt:
        said = "[No such place; reload r9.p9.] " + "word " * 5_000
        return Prompt([{"role": "system", "content": said}, {"role": "tool", "content": ""}], 5, Report(5, 5))

    monkeypatch.setattr(scenario, "compose", empty)
    with Demo(INCIDENT, latency=0.0) as playing:
        playing.play(1)
    figures = playing.agents[ROLE].stats.get_figures()
    number = figures["prompts"]
    assert number == 2
    assert [figures[name] for name in ("prompts_over_budget", "orphaned_calls", "queries_not_verbatim")] == [number] * 3
    assert (playing.pins_lost, playing.plans_lost) == (number, number)
    assert (playing.references, playing.wrong_references) == ({"r9.p9": False}, 1)


def test_references_are_held_against_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A post's reference must give exactly that post; those of several, all of them."""
    refs = ("r1-r2", "r1.p0", "r1.p3", "r1.p3-p4", "r2.p4")

    def references() -> dict[str, bool]:
        """Return how the references are judged when a prompt shows them."""

        def tell(demo: Demo) -> None:
            for number in range(1, 5):
                demo.say("Monitor", ROLE, f"This is post {number}")
            if demo.round.number == 3:
                demo.say("Monitor", ROLE, f"Read {', '.join(refs)} and r7.p1.")
                demo.think(ROLE)

        with playing(tell) as demo:
            demo.play(3)
        return {ref: demo.references[ref] for ref in (*refs, "r7.p1")}

    assert references() == dict.fromkeys(refs, True) | {"r7.p1": False}
    reload = Memory.reload

    def reload_half(*args: Any, **more: Any) -> str:
        text = reload(*args, **more)
        return text[: len(text) // 2]

    monkeypatch.setattr(Memory, "reload", reload_half)
    assert not any(references().values())


def test_an_id_that_is_not_found_is_told() -> None:
    """A search that leads nowhere is no reason to stop, and no success."""
    needed = {"look_up": "deployment", "search": "zebra", "pattern": "zebra", "find": "dep-[0-9a-f]+"}

    def look_up(demo: Demo) -> None:
        demo.look_up(ROLE, needed)
        demo.use(ROLE, ("look", "{}", "zebra crossing"))
        demo.look_up(ROLE, needed)
        demo.use(ROLE, ("look", "{}", demo.fill("zebra $deployment")))
        demo.look_up(ROLE, needed)
        demo.say(ROLE, "User", demo.fill("$found is $deployment"))

    with playing(look_up) as demo:
        demo.play(1)
    missed = {"what": "deployment", "in_prompt": False, "ref": "", "right": False}
    assert demo.lookups[:2] == [missed, missed]
    assert demo.lookups[2]["right"]
    assert re.fullmatch(r"(dep-\w+) is \1", demo.memory.conversation.rounds[0].post_list[-1].message)


# -- the script -------------------------------------------------------------------------------------------------------


def test_the_script_is_whole(whole: Demo) -> None:
    """Everything is filled in, and ids that are looked up were in a tool's result before."""
    _, script = load_script(INCIDENT.file)
    assert len(script) == LENGTH >= 20
    assert script[0]["pin"]
    posts = [post for round_ in whole.memory.conversation.rounds for post in round_.post_list]
    calls = [call for post in posts for call in post.tool_calls]
    texts = [post.message for post in posts if not post.tool_calls]
    texts += [round_.user_query for round_ in whole.memory.conversation.rounds]
    assert all(texts)
    assert not any(re.search(r"\$|<\w+[.|]|<hex>", text) for text in [*texts, *(call.arguments for call in calls)])
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    assert any(state == "pending" for _, state in script[0]["plan"])
    assert all(state == "done" for _, state in script[-1]["plan"])


@pytest.mark.slow
def test_the_script_goes_on_with_another_service() -> None:
    demo = Demo(INCIDENT, latency=0.0)
    demo.play(LENGTH + 1)
    rounds = demo.memory.conversation.rounds
    assert "payments-api" in rounds[0].user_query
    assert "checkout-web" in rounds[LENGTH].user_query


# -- how it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_what_each_strategy_saved() -> None:
    done = run("demo", "--pressure", "--fast", "--latency", 0.01)
    assert (done.code, done.err) == (0, "")
    assert not re.search("[\x00-\x09\x0b-\x1f]", done.out)
    for part in (
        f"{LENGTH} rounds in one Memory, one agent",
        "saved by strategies in the background",
        "shortened anew in each prompt",
        "what must not be lost",
        "Strategies ran, from light to heavy, while a prompt was over 2,600 tokens",
        "with: no prompt",
    ):
        assert part in done.out
    assert re.search(r"prompts over the budget\W+0 of \d+", done.out)
    assert re.search(r"tool calls parted from their results\W+0 ", done.out)
    assert re.search(r"that do not give back the original\W+0 ", done.out)
    assert re.search(r"ids needed again, and read back\W+3 of 3 ", done.out)
    assert re.search(
        r"round  {1,2}\d+  Responder +offload_large: a post reads shorter, [\d,]+ -> [\d,]+ tokens", done.out
    )
    assert max(map(len, done.out.splitlines()[-60:])) <= 90


def test_figures_as_json() -> None:
    document = run("demo", "--pressure", "--fast", "--latency", 0, "--rounds", 4, "--seed", 5, "--json").document
    assert (document["rounds"], document["mark"], document["looked_up"]) == (4, 2600, [])
    one = document["roles"][ROLE]
    assert list(one["strategies"]) == STRATEGIES
    assert one["strategies"]["offload_large"]["overlays"] >= 1
    assert set(one["levels"]) == {"offloaded", "cleared", "left_out", "clipped"}
    assert one["prompts_over_budget"] == 0


def test_the_savings_of_each_strategy_stand_above_the_last_picture() -> None:
    out = run("demo", "--pressure", "--rounds", 2, "--pace", 0.01, "--latency", 0, terminal=True).out
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert "compactor demo --pressure: round 2 of 2" in plain
    assert re.search(r"│offload_large +│ +[1-9]", plain)
    assert "compact_rounds" not in re.sub(
        r"\x1b\[[0-9;?]*[A-Za-z]", "", run("demo", "--rounds", 1, "--fast", terminal=True).out
    )


def test_the_question_at_the_end_is_answered_by_the_exact_id(whole: Demo) -> None:
    """From a prompt that holds it, or by the tools; the result that named it was longer than a prompt may be."""
    answer = whole.answers["with"]
    assert answer["right"]
    assert answer["answer"] == whole.fill("$deployment")


def test_events_go_to_standard_error_and_hold_no_text() -> None:
    done = run("demo", "--pressure", "--fast", "--latency", 0, "--rounds", 3, "--json", "--log-events", "json")
    events = [json.loads(line)["event"] for line in done.err.splitlines()]
    assert "compaction.reduced" in events
    assert "payments-api" not in done.err


def test_options_are_checked_as_without_pressure() -> None:
    assert refusal(run("demo", "--pressure", "--rounds", 0))


def test_savings_without_overlays_are_shown_as_nothing() -> None:
    """Before anything was published there is a line for each strategy, with zeros."""
    with Demo(INCIDENT, latency=0.0) as playing:
        assert playing.agents[ROLE].stats.get_figures()["strategies"] == dict.fromkeys(STRATEGIES, NO_SAVING)
