"""The comparison's model: what its cache finds, what it answers, and when."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from typing import Any

import openai
import pytest
from comparison_parts import LONG, ask, said, setting_of

from benchmarks.comparison.door import Door, virtual_sleep
from benchmarks.comparison.facts import planted, raw_in, told, told_in
from benchmarks.comparison.fake_model import FakeModel, asks_for_changes
from benchmarks.comparison.model_server import ModelServer, Outage
from benchmarks.comparison.prefixes import Prefixes, reusable
from benchmarks.comparison.virtual_time import VirtualTime
from compactor import count_tokens
from prompts import load_contract


def test_the_cache_gives_a_thousand_tokens_and_then_steps() -> None:
    """As OpenAI's does: nothing below 1,024, then 128 more at a time."""
    assert [reusable(tokens) for tokens in (0, 1_023, 1_024, 1_151, 1_152, 5_000)] == [0, 0, 1_024, 1_024, 1_152, 4_992]


@pytest.mark.slow
def test_a_request_finds_what_it_has_in_common_with_one_before() -> None:
    """Up to the first difference, within a message too; of the same model, with the same tools, and not for ever."""
    cache = Prefixes(lifetime=300)
    beginning = [said("system", LONG), said("user", LONG)]
    assert cache.taken("a", beginning, (), 0.0) == (1_213, 0)
    longer = [*beginning, said("assistant", "yes")]
    assert cache.taken("a", longer, (), 1.0)[1] == 1_152
    assert cache.taken("a", [said("system", LONG), said("user", LONG + "and more")], (), 2.0)[1] == 1_152
    assert cache.taken("a", [said("system", LONG), said("user", "else" + LONG)], (), 2.0)[1] == 0
    assert cache.taken("b", beginning, (), 2.0)[1] == 0
    assert cache.taken("a", beginning, [{"type": "function", "function": {"name": "f"}}], 2.0)[1] == 0
    parts = [said("system", LONG), {"role": "user", "content": [{"type": "text", "text": LONG}]}]
    assert cache.taken("a", parts, (), 2.0)[1] == 1_152
    assert cache.taken("a", beginning, (), 302.5)[1] == 0


def test_a_summary_keeps_every_fact_that_its_request_shows() -> None:
    """In the user's words and in a summary's; it is as long as asked for, and counts what went through it."""
    facts = planted(8, seed=1)
    model = FakeModel(400)
    first = model.answered({"messages": [said("user", " ".join(told(*fact) for fact in facts[:5]))]})["content"]
    assert told_in(first) == dict(facts[:5])
    assert abs(count_tokens(first) - 400) < 10
    assert set(model.depths.of.values()) == {1}
    second = model.answered({"messages": [said("user", f"{first}\n{told(*facts[5])}")]})["content"]
    assert told_in(second) == dict(facts[:6])
    assert [model.depths.of[key] for key, _ in facts[:6]] == [2] * 5 + [1]
    assert raw_in(second) == {}


def test_asked_for_changes_the_model_names_what_is_new() -> None:
    """In the form and as long as was asked for; what stood before goes through no summary again."""
    facts = planted(3, seed=2)
    model = FakeModel(change_words=100)
    model.answered({"messages": [said("user", told(*facts[0]))]})
    noted = f"1. {facts[0][0]}={facts[0][1]}\n{told(*facts[1])}\n"
    body: dict[str, Any] = {"messages": [said("user", noted + load_contract("changes").content)]}
    assert asks_for_changes(body)
    matches = [re.fullmatch(r"add \[.+\]: (.+)", line) for line in model.answered(body)["content"].splitlines()]
    assert all(matches)
    changes = [match[1] for match in matches if match]
    assert sum(len(change.split()) for change in changes[1:]) == 100
    assert told_in(changes[0]) == dict(facts[1:2])
    assert model.depths.of == {facts[0][0]: 1, facts[1][0]: 1}


def test_a_summary_comes_in_the_form_that_a_request_insists_on() -> None:
    """As JSON of a schema, references followed, or as the call of a tool."""
    schema = {
        "$defs": {"part": {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}},
        "type": "object",
        "properties": {
            "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
            "kind": {"enum": ["a", "b"]},
            "sure": {"type": "boolean"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    }
    model = FakeModel(60)
    asked: dict[str, Any] = {"messages": [said("user", "Summarise.")]}
    formed = model.answered({**asked, "response_format": {"json_schema": {"schema": schema}}})["content"]
    found = json.loads(formed)
    assert found["parts"][0]["text"].startswith("## ")
    assert {**found, "parts": []} == {"parts": [], "kind": "a", "sure": False, "note": ""}
    tool = {"type": "function", "function": {"name": "save", "parameters": schema}}
    for choice in ("required", {"type": "function", "function": {"name": "save"}}):
        (call,) = model.answered({**asked, "tools": [tool], "tool_choice": choice})["tool_calls"]
        assert call["function"]["name"] == "save"
    assert "tool_calls" not in model.answered({**asked, "tools": [tool], "tool_choice": "auto"})


def test_a_blocking_adapters_request_is_answered_at_once_and_charged() -> None:
    """0.3 seconds, 0.02 ms for a token of input, 15 ms for one of output; what goes by is on the clock as well."""
    with ModelServer(summary_tokens=100) as server:
        door = Door(server.url)
        door.ask("/begin", {"turn": 3})
        answer = ask(server, [said("user", LONG)])
        charge = door.ask("/end", {})
        door.close()
        (one,) = server.log
    assert (one.by, one.turn, one.input, one.cached) == ("summarizer", 3, 608, 0)
    assert answer.usage.prompt_tokens == 608
    assert (
        answer.usage.completion_tokens == one.output == count_tokens(f"assistant\n{answer.choices[0].message.content}")
    )
    assert charge["waited"] == pytest.approx(0.3 + 608 * 0.000_02 + one.output * 0.015)
    assert server.time.now == pytest.approx(charge["waited"])
    assert charge["served"] > 0


def test_a_library_that_pauses_between_its_attempts_is_charged_and_nobody_waits() -> None:
    """Two minutes of virtual time, by the server's clock."""
    with ModelServer() as server, contextlib.closing(Door(server.url)) as door:
        door.ask("/begin", {"turn": 1})
        virtual_sleep(setting_of(server))(120.0)
        assert door.ask("/end", {})["waited"] == 120.0
        assert server.time.now == 120.0


def test_a_streamed_answer_is_the_same() -> None:
    """Piece by piece, with what it took where that is asked for."""
    with ModelServer() as server:
        whole = list(ask(server, [said("user", LONG)], stream=True, stream_options={"include_usage": True}))
        plain = list(ask(server, [said("user", LONG)], stream=True))
    assert whole[0].choices[0].delta.content.startswith("## ")
    assert whole[1].choices[0].finish_reason == "stop"
    assert whole[2].usage.prompt_tokens == 608
    assert len(plain) == 2


def test_a_background_adapters_request_waits_for_the_conversation() -> None:
    """It is held until as much virtual time has gone by as it takes, and nothing is charged."""
    with ModelServer(summary_tokens=100) as server:
        server.time.serves(background=True)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(ask(server, [said("user", LONG)])))
        asking.start()
        door = Door(server.url)
        assert server.time.until_held(20)
        prompt = {"messages": [said("user", LONG)], "answer": said("assistant", "Yes.")}
        first = door.ask("/agent", prompt)
        assert (first["until"], first["cached"]) == (pytest.approx(first["now"] + first["seconds"]), 0)
        assert door.ask("/pass", {"until": first["until"]}) == {"now": first["until"], "due": False}
        assert door.ask("/held") == {"held": 1, "now": first["until"]}
        passed = door.ask("/pass", {"until": 60.0})
        assert passed == {"now": pytest.approx(server.log[0].seconds), "due": True}
        assert door.ask("/held") == {"held": 1, "now": passed["now"]}
        door.ask("/answer", {})
        asking.join(20)
        assert door.ask("/held") == {"held": 0, "now": passed["now"]}
        door.close()
    assert found
    assert server.time.end().waited == 0.0


def test_a_background_adapter_that_waits_all_the_same_is_charged() -> None:
    """The server notices after a moment, answers, and adds what was left; the moment itself is not the adapter's."""
    clock = VirtualTime(grace=0.01)
    clock.serves(background=True)
    clock.begin()
    clock.wait(7.0)
    charge = clock.end()
    assert (charge.waited, clock.now, clock.held) == (7.0, 7.0, 0)
    assert charge.served >= 0.01


def test_a_request_that_takes_no_time_is_never_held() -> None:
    """There would be no moment at which it is answered."""
    clock = VirtualTime()
    clock.serves(background=True)
    clock.wait(0.0)
    assert clock.held == 0
    assert clock.passed(3.0) == (3.0, False)


def test_requests_held_at_the_end_are_let_go() -> None:
    """Nobody waits for a clock that has stopped."""
    clock = VirtualTime()
    clock.serves(background=True)
    waiting_one = threading.Thread(target=clock.wait, args=(5.0,))
    waiting_one.start()
    assert clock.until_held(30)
    clock.close()
    waiting_one.join(30)
    assert not waiting_one.is_alive()


@pytest.mark.parametrize(("how", "status", "seconds"), [("fails", 500, 0.3), ("hangs", 504, 60.0)])
def test_an_outage_is_over_after_its_turns(how: Any, status: int, seconds: float) -> None:
    """It fails at once, or keeps who asks waiting for a minute; a client that says so waits for less."""
    with ModelServer(outage=Outage(2, 3, how)) as server:
        for turn in (1, 2, 3, 4):
            server.begin(turn)
            with contextlib.suppress(openai.InternalServerError):
                ask(server, [said("user", "Summarise.")])
        if how == "hangs":
            server.begin(2)
            with pytest.raises(openai.InternalServerError):
                ask(server, [said("user", "Summarise.")], timeout=5)
        found = [(one.status, one.seconds) for one in server.log]
    assert [found[place][0] for place in range(4)] == [200, status, status, 200]
    assert found[1] == (status, pytest.approx(seconds))
    assert found[4:] == ([] if how == "fails" else [(504, 5.0)])
