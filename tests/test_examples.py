"""The examples run as they stand, offline, and show what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fenced import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user does, warnings being errors, with no key and no way to the network."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "COMPACTOR_"))}
    nowhere = "http://127.0.0.1:9"  # the discard port: nobody answers
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        env=environment | {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere},
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_every_example_is_tried() -> None:
    """A new example needs a test below."""
    assert [path.name for path in EXAMPLES] == [
        "events.py",
        "multi_agent.py",
        "openai_messages.py",
        "own_summarizer.py",
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short(path: os.PathLike[str]) -> None:
    """An example is read in a minute or two."""
    with open(path, encoding="utf-8") as file:
        assert len(file.readlines()) <= 80


@pytest.mark.slow
def test_multi_agent_shows_two_roles_with_a_summary_each() -> None:
    shown = run("multi_agent.py").stdout
    planner, coder = shown.split("\n\nCodeInterpreter now reads ")
    assert "\nPlanner now reads " in planner
    for part in (planner, coder):
        assert "[Conversation History Summary]" in part
        assert "Never change anything below raw/" in part


@pytest.mark.slow
def test_openai_messages_makes_a_shorter_prompt_that_begins_with_system_and_summary() -> None:
    shown = run("openai_messages.py").stdout
    *answers, figures, header, summary, _ = shown.splitlines()
    assert answers[:2] == ["Order 1001 is on its way.", "Order 1002 is on its way."]
    whole, composed = (int(word) for word in figures.split() if word.isdecimal())
    assert composed < whole / 2
    assert header == "  system: 'You help customers with their orders.'"
    assert summary.startswith("  system: '[Conversation History Summary]")


@pytest.mark.slow
def test_own_summarizer_shows_a_function_and_an_llm_api() -> None:
    by_function, by_api = run("own_summarizer.py").stdout.split("\n\n[Conversation History Summary]\n")
    assert "- Chapter 1\n- Chapter 2\n" in by_function
    assert by_api.startswith("The user had chapters read aloud")


@pytest.mark.slow
def test_events_are_json_lines_with_the_failure_and_the_retry() -> None:
    done = run("events.py")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"].removeprefix("compaction.") for line in lines[:4]] == [
        "started",
        "failed",
        "started",
        "published",
    ]
    assert lines[1]["error"] == "ConnectionError"
    assert "Book a table" not in done.stdout
    assert "covers rounds 1-" in done.stderr
