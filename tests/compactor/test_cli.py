"""The command line as a whole: it explains itself, refuses in one line, and ends quietly."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from command_line import TERMINAL, Stream, dialogue, refusal, run, write_lines
from rich.table import Table
from rich.text import Text

from compactor.cli import app as cli
from compactor.cli import replay as replays
from compactor.cli.savings import Watch, describe_event
from compactor.cli.terminal import CannotRun, name_options, one_line, percent, screen
from compactor.events import (
    Discarded,
    Evaluated,
    Exhausted,
    Failed,
    Published,
    Reduced,
    Reverted,
    Started,
    Stopped,
    StrategyFailed,
    visible,
)

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("demo", "replay", "chat")
ON_SESSIONS = ("sessions", "show", "events", "export", "import", "purge", "revert", "diff")


def start(*words: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start ``python -m compactor`` in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, "-m", "compactor", *map(str, words)],
        env=environment | {"PYTHONPATH": str(ROOT)} | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# -- it explains itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_it_says_what_it_can_do(words: tuple[str, ...]) -> None:
    """Without arguments too, and each command is said in a whole sentence on one line."""
    done = run(*words, COLUMNS="80")
    assert (done.code, done.err) == (0, "")
    for name in COMMANDS + ON_SESSIONS:
        assert re.search(rf"^  {name} +[A-Z].*\.$", done.out, re.MULTILINE)
    assert "..." not in done.out.partition("Commands:")[2]


@pytest.mark.parametrize("command", COMMANDS + ON_SESSIONS)
def test_each_commands_help_fits_a_narrow_terminal(command: str) -> None:
    """And names what commands of its family have in common."""
    done = run(command, "--help", COLUMNS="80")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    for option in ("--log-events",) if command in COMMANDS else ("--store", "COMPACTOR_STORE", "--json"):
        assert option in done.out


def test_it_knows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.metadata, "version", lambda name: {"context-compactor": "1.2.3"}[name])
    assert run("--version").out == "compactor 1.2.3\n"


def test_in_a_source_tree_it_says_that_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise cli.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cli.metadata, "version", missing)
    assert run("--version").out == "compactor (not installed)\n"


# -- it refuses in one line -------------------------------------------------------------------------------------------


def test_a_wrong_command_or_option_is_one_line() -> None:
    assert refusal(run("nope")).startswith("No such command 'nope'")
    assert refusal(run("--nope")).startswith("No such option")
    assert refusal(run("demo", "--log-events", "loud")).endswith("Try --help.")


def test_the_line_holds_nothing_that_a_terminal_acts_on() -> None:
    """A file's name, or an argument, cannot write to the terminal by way of an error."""
    assert "\\x1b[2J" in refusal(run("replay", "\x1b[2J\nno.json"))


def test_a_message_of_many_lines_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> Any:
        raise CannotRun("first\nsecond")

    monkeypatch.setattr(replays, "read_transcript", read)
    assert refusal(run("replay", "x")) == "first second"


def test_an_error_of_ours_has_no_traceback_and_a_bug_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expected is a line; what is not must be seen."""

    def read(path: str) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(replays, "read_transcript", read)
    with pytest.raises(ZeroDivisionError):
        run("replay", "x")


# -- it ends quietly --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["memory", "compactor.background", "rich.console", "compactor.cli.app"])
def test_an_interrupt_while_it_is_imported_is_one_line(module: str, tmp_path: Path) -> None:
    """Importing takes most of a second, in which a user may change their mind."""
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
""",
        encoding="utf-8",
    )
    with start("demo", PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT)))) as process:
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"compactor: interrupted" + os.linesep.encode())


def test_programs_that_import_the_library_keep_their_own_hook() -> None:
    assert sys.excepthook.__module__ != "compactor._interrupt"


def test_an_interrupt_ends_it_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(replays, "read_transcript", read)
    done = run("replay", "x")
    assert (done.code, done.err) == (130, "compactor: interrupted\n")


def test_an_abort_ends_it_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> Any:
        raise EOFError

    monkeypatch.setattr(replays, "read_transcript", read)
    done = run("replay", "x")
    assert (done.code, done.err.strip()) == (130, "compactor: interrupted")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
        (OSError(errno.EINVAL, "Invalid argument"), ""),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "compactor: the output cannot be written (No space left on device)\n",
        ),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(
    error: OSError, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quiet where the reader has gone, one line where the disk is full."""

    def read(path: str) -> Any:
        raise error

    monkeypatch.setattr(replays, "read_transcript", read)
    done = run("replay", "x")
    assert (done.code, done.err) == (1, says)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_complained_of(tmp_path: Path) -> None:
    """``compactor replay ... --json | head -1`` prints a line and nothing else."""
    # More than a pipe holds: so it still writes when the reader goes.
    path = write_lines(tmp_path / "many.jsonl", [{"messages": []}] * 300)
    with start("replay", path, "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""


def test_a_terminal_that_lacks_a_sign_gets_another(tmp_path: Path) -> None:
    """A code page of Windows, or plain ASCII: what cannot be shown is replaced, and nothing fails."""
    path = write_lines(tmp_path / "chat.jsonl", [{"role": "user", "content": "für 5 € \U0001f600"}])
    for encoding in ("ascii", "cp1252"):
        done = run("replay", path, "--show", encoding=encoding)
        assert done.code == 0
        assert "5 " in done.out
    assert "f?r 5 ? ?" in run("replay", path, "--show", encoding="ascii").out


@pytest.mark.slow
def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m compactor`` works from any folder."""
    path = write_lines(tmp_path / "chat.jsonl", dialogue(2))
    with start("replay", path, "--json", PYTHONIOENCODING="utf-8") as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert b'"rounds": 2' in out


# -- text and numbers -------------------------------------------------------------------------------------------------


def test_all_that_a_terminal_acts_on_is_made_visible() -> None:
    assert (
        visible("a\x1b[1m\x07\x9b\r\n\tb\x7f\ud800\u202e\u2028c")
        == "a\\x1b[1m\\x07\\x9b\\x0d\n\tb\\x7f\\ud800\\u202e\\u2028c"
    )
    assert visible("für 5 € [bold]") == "für 5 € [bold]"


def test_a_line_is_cut_to_its_limit() -> None:
    assert one_line("a\n b\tc") == "a b c"
    assert one_line("x" * 50, 10) == "x" * 7 + "..."


def test_errors_name_options_instead_of_parameters() -> None:
    assert name_options("check base_url= and model=, or api_key=") == "check --base-url and --model, or OPENAI_API_KEY"


def test_what_is_saved_of_nothing_is_nothing() -> None:
    assert (percent(25, 100), percent(0, 0)) == ("75%", "-")


# -- events -----------------------------------------------------------------------------------------------------------


def reduced(strategy: str, kind: str, posts: int) -> Reduced:
    return Reduced(
        strategy=strategy,
        kind=kind,
        round_id="r",
        first_post_id="a",
        last_post_id="b",
        posts=posts,
        tokens_before=4000,
        tokens_after=80,
    )


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (Started(start=3, end=9, tokens_before=1234), "compacting rounds 3-9 in the background (1,234 tokens)"),
        (
            Published(start=1, end=9, tokens_before=1234, tokens_after=99, seconds=0.25),
            "rounds 1-9 now read as a summary: 1,234 -> 99 tokens, 0.2 s",
        ),
        (Failed(error="echo", failures=1, retry_in=2.0), "no summary this time (echo); next try in 2 s"),
        (Reverted(end=0), "reverted: all rounds are as they were said again"),
        (Reverted(end=4), "reverted: the summary covers rounds 1-4 again"),
        (Discarded(reason="late"), "a summary came too late and was discarded (late)"),
        (Stopped(reason="executor_shut_down"), "stopped (executor_shut_down)"),
        (Discarded(reason="overlaid"), ""),
        (reduced("offload_large", "offloaded", 1), "offload_large: a post reads shorter, 4,000 -> 80 tokens"),
        (reduced("drop(status)", "dropped", 7), "drop(status): 7 posts dropped, 4,000 -> 80 tokens"),
        (
            StrategyFailed(strategy="drop", error="KeyError"),
            "drop made nothing this time (KeyError); the next strategy is tried",
        ),
        (Exhausted(strategies=3, tokens=4321), "all 3 strategies together were not enough (4,321 tokens)"),
        (Evaluated(is_due=False, rounds=3, tail=3), ""),
    ],
)
def test_events_read_as_sentences(event: Any, says: str) -> None:
    assert describe_event(event) == says


def test_a_watch_adds_up_and_tells_each_thing_once() -> None:
    """From whatever thread events come, none is counted twice or lost."""
    watch = Watch()
    watch(Started(start=1, end=2, tokens_before=10))
    watch(Published(start=1, end=2, tokens_before=10, tokens_after=5, seconds=0.5))
    watch(Failed(error="echo", failures=1, retry_in=1.0))
    watch(Evaluated(is_due=False, rounds=3, tail=3))
    figures = watch.figures()
    assert [figures[name] for name in ("compactions", "failures", "background_seconds")] == [1, 1, 0.5]
    assert [said.split()[0] for said in watch.take_news()] == ["compacting", "rounds", "no"]
    assert watch.take_news() == []
    assert watch.last.startswith("no summary")


def test_whatever_is_printed_on_a_screen_is_printed_as_text() -> None:
    """In tables and panels, too, and styles are still there: no command has to think of it."""
    out = Stream(terminal=True)
    with patch.dict("os.environ", TERMINAL):
        console = screen(out)
    table = Table("name")
    table.add_row("a\x1b]0;b\x9bc\u202ed")
    console.print("e\x1b[2Jf", table, Text("g\x90h"), style="bold")
    assert "\x1b[1m" in out.text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.text)
    assert not re.search("[\x1b\x90\x9b\u202e]", plain)
    assert "e\\x1b[2Jf" in plain
