"""The differential run over presets: what it finds wrong with prompts, and that it tells two versions apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.preset_differences import WAYS, compare, find_faults, play, record

FOUND = '{"id": "HAT103", "from": "Oslo", "seats": 12, "notes": "' + "blue carpet, " * 200 + '"}'


def call(number: int, name: str = "find_flight") -> dict[str, Any]:
    asked = {"name": name, "arguments": f'{{"number": {number}}}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{number}", "function": asked}]}


def conversation(rounds: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "system", "content": "You book flights."}]
    for number in range(rounds):
        said += [
            {"role": "user", "content": f"Never book seat {number} on flight HAT10{number}, but look for another."},
            call(number),
            {"role": "tool", "tool_call_id": f"c{number}", "content": FOUND.replace("103", f"10{number}")},
            {"role": "assistant", "content": f"Flight HAT10{number} has seat {number + 20} for {number * 7} euros."},
        ]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("summarizer", ["offline", "outline"])
@pytest.mark.parametrize("way", WAYS)
def test_every_preset_shortens_and_shows_no_fault(way: str, summarizer: str) -> None:
    """At a budget in which the last round fits, and not all of them."""
    said = conversation(5)
    budget = 1_400
    shown = list(play(said, way, budget, summarizer))
    assert len(shown) == len(said) - 1
    assert [one["faults"] for one in shown if one["faults"]] == []
    assert FOUND.replace("103", "100") in str(shown[2]["shown"].messages)
    assert FOUND.replace("103", "100") not in str(shown[-1]["shown"].messages)


def test_each_fault_is_found() -> None:
    """Of a prompt that keeps nothing of what it promises."""
    said = [*conversation(2)[:-1], {"role": "system", "content": "x"}][:-1]
    shown = [
        {"role": "system", "content": "Instructions from the user:\n- Never book seat 1 on flight HAT101\n- Be blue."},
        {"role": "assistant", "content": "I booked seat 9."},
        {"role": "user", "content": "Thanks.\n\u200d!"},
        {"role": "tool", "tool_call_id": "c1", "content": "[... 9 of 99 characters left out ...]"},
    ]
    faults = [fault.partition(":")[0] for fault in find_faults(said, shown)]
    assert faults == ["torn", "no question", "instruction", "voice", "grapheme", "unread shortened"]
    assert list(find_faults(said, said)) == []
    assert [fault.partition(":")[0] for fault in find_faults(said, said[:-2])] == ["unread gone"]


@pytest.mark.slow
def test_two_recordings_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same twice: no difference. Another budget under the same name: groups of them, with an example."""
    files = [tmp_path / name for name in ("old.jsonl", "same.jsonl", "other.jsonl")]
    for file in files:
        with file.open("w", encoding="utf-8") as out:
            assert not record({"talk": conversation(5)}, ["none", "rounds"], [1_400], out)
    lines = files[2].read_text(encoding="utf-8").splitlines()
    changed = json.loads(lines[-1])
    changed["messages"] = changed["messages"][:-1]
    files[2].write_text("\n".join([*lines[:-1], json.dumps(changed)]), encoding="utf-8")

    compare(files[0], files[1], 1)
    same = capsys.readouterr().out
    compare(files[0], files[2], 1)
    other = capsys.readouterr().out

    assert "60 prompts of 3 runs in both; 60 prompts are the same, and 3 runs" in same
    assert "60 prompts of 3 runs in both; 59 prompts are the same, and 2 runs" in other
    assert "1 prompts, 1 runs: - assistant as it was said" in other
    assert "e.g. talk rounds outline 1400 at 20" in other
