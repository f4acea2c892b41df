"""The conversations that are compared are the same each time, and valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparison_parts import CHAT, TOOLS, said, texts_of

from benchmarks.comparison.adapter import Message
from benchmarks.comparison.conversations import Absent, airline, chat, outage, weeks
from benchmarks.comparison.dialogues import answered, tools_of
from benchmarks.comparison.facts import raw_in, told
from benchmarks.comparison.model_server import Outage
from compactor import count_tokens


@pytest.mark.slow
def test_conversations_are_the_same_each_time_and_as_long_as_they_say() -> None:
    """Every fact is told once, by the user; a tool's results are as long as is said, and answer its calls."""
    plain = CHAT()
    assert chat(20).turns == chat(20).turns
    assert (len(plain.turns), len(plain.facts)) == (200, 50)
    assert 65_000 < plain.tokens < 67_000
    assert raw_in(texts_of(plain)) == dict(plain.facts)
    called = TOOLS()
    assert 430_000 < called.tokens < 450_000
    assert raw_in(texts_of(called)) == dict(called.facts)
    sizes = [count_tokens(turn[1]["new"][0]["content"]) for turn in called.turns]
    assert 1_900 < min(sizes) < 2_300
    assert 7_500 < max(sizes) < 8_300
    for first, second in called.turns:
        assert first["answer"]["tool_calls"][0]["id"] == second["new"][0]["tool_call_id"]
    asked = [turn[0]["new"][0]["content"] for turn in plain.turns]
    telling = [(text, told(*fact)) for fact in plain.facts for text in asked if told(*fact) in text]
    assert len(telling) == 50
    assert {text.endswith(fact) for text, fact in telling} == {text.startswith(fact) for text, fact in telling}
    chatting = weeks(60, 20)
    assert [chatting.pause_before(place) for place in (0, 19, 20)] == [0.0, 30.0, 86_400.0]
    failing = outage("hangs", 20)
    assert (failing.outage, failing.turns) == (Outage(8, 27, "hangs"), chat(20).turns)


def test_real_dialogues_are_one_conversation() -> None:
    """Each turn begins with the user, each result of a tool follows its call, and each tool that is called is there."""
    try:
        scenario = airline(3)
    except Absent as absent:
        pytest.skip(str(absent))
    asked: set[str] = set()
    defined = {tool["function"]["name"] for tool in scenario.tools}
    for turn in scenario.turns:
        assert turn[0]["new"][-1]["role"] == "user"
        for step in turn:
            for message in step["new"]:
                assert message["role"] != "tool" or message["tool_call_id"] in asked
            calls = step["answer"].get("tool_calls") or ()
            assert {call["function"]["name"] for call in calls} <= defined
            asked |= {call["id"] for call in calls}
    assert asked


def test_the_agent_has_the_last_word_after_a_tool() -> None:
    """So the next dialogue begins after an answer, and not after a result that nobody has read."""
    plain, result = [said("user", "Hi."), said("assistant", "Good day.")], {"role": "tool", "content": "Transferred."}
    assert answered(plain) == plain
    assert answered([*plain, result]) == [*plain, result, said("assistant", "Done.")]


def test_the_tools_of_dialogues_are_told_by_their_calls() -> None:
    """Every argument that any call has, with its type where that is a plain one."""

    def called(tool: str, **arguments: Any) -> Message:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}

    book, find = tools_of(
        [said("user", "Hi."), called("find", name="a"), called("book", seats=2), called("find", at=[])]
    )
    assert (book["function"]["name"], find["function"]["name"]) == ("book", "find")
    assert find["function"]["parameters"]["properties"] == {"name": {"type": "string"}, "at": {}}
    assert book["function"]["parameters"]["properties"] == {"seats": {"type": "integer"}}


def test_dialogues_that_are_not_there_are_said_to_be(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(Absent, match=r"nowhere\.jsonl"):
        airline(path=tmp_path / "nowhere.jsonl")
