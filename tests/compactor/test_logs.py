"""Events as log lines: none unless asked for, each with its facts, and never what was said."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import structlog
from quiet import QUIET
from structlog.testing import capture_logs

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Event,
    Failed,
    Published,
    Skip,
    Skipped,
    compose,
    log_events,
    make_logger,
)
from compactor.testing import ScriptedSummarizer
from memory import Memory

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hunter2"

PUBLISHED = Published(
    role="Planner",
    generation=3,
    strategy="compact_rounds",
    start=1,
    end=7,
    tokens_before=900,
    tokens_after=80,
    seconds=1.5,
    usage={"input_tokens": 900},
)
SKIPPED = Skipped(role="Planner", reason=Skip.BELOW_TRIGGER, rounds=3, tail=3, closed=2)
FAILED = Failed(role="Planner", error="TimeoutError", failures=2, retry_in=4.0)


def lines(*events: Event, json_lines: bool = True, level: str = "debug") -> list[str]:
    stream = io.StringIO()
    write = log_events(make_logger(stream, json=json_lines, level=level))
    for event in events:
        write(event)
    return stream.getvalue().splitlines()


def busy(memory: Memory) -> ContextCompactor:
    """Return a compactor that has been through success, a refused answer and an error, all of them with a secret."""
    for number in range(12):
        round_ = memory.create_round(f"{SECRET} is my password, question {number}")
        memory.add_post(round_, send_from="Planner", send_to="User", message=f"I shall not tell {SECRET}. " * 20)
    answers = [
        f"The user's password is {SECRET}.",
        f"Hello {SECRET}! How can I help?",
        f"Hello again, {SECRET}! How can I help?",  # the answer to the second attempt
        ValueError(f"cannot parse {SECRET}"),
    ]
    compactor = ContextCompactor.for_role(
        memory, "Planner", CompactorConfig(threshold=2, retain_recent=1), ScriptedSummarizer(answers)
    )
    compactor.compact_now()
    for _ in range(2):
        memory.create_round(f"more {SECRET}")
        with pytest.raises(Exception, match="no compaction"):
            compactor.compact_now()
    compactor.stop()
    return compactor


def test_a_json_line_holds_name_level_time_and_facts() -> None:
    """Machines read the events as they are: numbers as numbers, a reason as its word."""
    published, skipped, failed = (json.loads(line) for line in lines(PUBLISHED, SKIPPED, FAILED))

    assert datetime.fromisoformat(published.pop("timestamp")).tzinfo is not None
    assert published == {
        "event": "compaction.published",
        "level": "info",
        "session": "",
        "role": "Planner",
        "generation": 3,
        "strategy": "compact_rounds",
        "start": 1,
        "end": 7,
        "first_round_id": "",
        "last_round_id": "",
        "tokens_before": 900,
        "tokens_after": 80,
        "seconds": 1.5,
        "requests": 1,
        "usage": {"input_tokens": 900},
        "reused": False,
        "major": False,
        "offline": False,
        "sent_tokens": 0,
    }
    assert (skipped["level"], skipped["reason"]) == ("debug", "below_trigger")
    assert (failed["level"], failed["error"]) == ("warning", "TimeoutError")


def test_a_console_line_holds_them_too() -> None:
    """Without colours, so that a file of them can be read."""
    (line,) = lines(PUBLISHED, json_lines=False)

    assert "compaction.published" in line
    assert "tokens_after=80" in line
    assert "\x1b" not in line


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("WARNING", 1), ("error", 0)])
def test_only_events_of_the_level_are_written(level: str, count: int) -> None:
    """An event says how loud it is."""
    assert len(lines(PUBLISHED, SKIPPED, FAILED, level=level)) == count


def test_a_level_that_does_not_exist_is_refused() -> None:
    """When the logger is made, with those that there are."""
    with pytest.raises(ValueError, match="debug, info, warning"):
        make_logger(level="loud")


def test_lines_go_to_standard_error_where_no_stream_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the host's."""
    log_events(make_logger(json=True))(PUBLISHED)

    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["event"] == "compaction.published"


def test_without_a_logger_the_hosts_structlog_is_used() -> None:
    """One hook, however the host has set structlog up."""
    with capture_logs() as captured:
        log_events()(SKIPPED)

    assert captured[0]["event"] == "compaction.skipped"
    assert captured[0]["log_level"] == "debug"


def test_the_hosts_own_logging_is_left_alone() -> None:
    """Making a logger changes neither structlog's configuration nor logging's."""
    before = structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level
    lines(PUBLISHED)

    assert (structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level) == before


def test_the_hook_writes_what_a_compactor_does() -> None:
    """``compactor.on_event(log_events())`` is all it takes."""
    stream = io.StringIO()
    compactor = ContextCompactor.for_role(Memory(), "Planner")
    compactor.on_event(log_events(make_logger(stream, json=True, level="debug")))

    compactor.compact_now()
    compactor.stop()

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["compaction.skipped"]


def test_log_lines_never_hold_what_was_said() -> None:
    """Neither posts nor summaries nor the texts of errors, at any level."""
    compactor = busy(Memory())
    written = "\n".join(lines(*compactor.events))

    assert len(compactor.events) >= 8
    assert "compaction.published" in written
    assert "compaction.failed" in written
    assert SECRET not in written


def test_nothing_is_printed_unless_it_is_asked_for(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A library is silent: no line on either stream and none through logging, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    memory = Memory()
    busy(memory)
    compose(memory, "Planner", budget=2_000)

    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.slow
def test_importing_prints_nothing() -> None:
    """Nor does it set logging up."""
    code = "import compactor, logging; assert not logging.getLogger().handlers"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | QUIET, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_line_for_a_console_is_one_line_and_plain() -> None:
    """Nothing that comes from an endpoint can forge an event, or make a terminal do anything."""
    named = PUBLISHED.model_copy(update={"model": "m\x1b[2J\u2028\x9bx"})
    (line,) = lines(named, json_lines=False)
    assert "model=m\\x1b[2J\\u2028\\x9bx" in line
