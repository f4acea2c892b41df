"""The command line as a whole: it explains itself, refuses in one line, and ends quietly."""

from __future__ import annotations

import errno
import os
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from command_line import dialogue, refusal, run, write_lines
from quiet import QUIET

from compactor import ContextError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("demo", "replay", "chat", "evaluate")
ON_SESSIONS = ("sessions", "show", "events", "export", "import", "purge", "revert", "diff", "archive", "restore")


def start(*words: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start ``python -m compactor`` in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, "-m", "compactor", *map(str, words)],
        env=environment | QUIET | {"PYTHONPATH": str(ROOT)} | more,
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
    monkeypatch.setattr(metadata, "version", lambda name: {"context-compactor": "1.2.3"}[name])
    assert run("--version").out == "compactor 1.2.3\n"


def test_in_a_source_tree_it_says_that_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
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
        raise ContextError("first\nsecond")

    monkeypatch.setattr("compactor.cli.replay.read_transcript", read)
    assert refusal(run("replay", "x")) == "first second"


def test_an_error_of_ours_has_no_traceback_and_a_bug_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expected is a line; what is not must be seen."""

    def read(path: str) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("compactor.cli.replay.read_transcript", read)
    with pytest.raises(ZeroDivisionError):
        run("replay", "x")


# -- it ends quietly --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["compactor._siblings", "memory", "compactor.background", "rich.console", "compactor.cli.app"]
)
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

    monkeypatch.setattr("compactor.cli.replay.read_transcript", read)
    done = run("replay", "x")
    assert (done.code, done.err) == (130, "compactor: interrupted\n")


def test_an_abort_ends_it_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> Any:
        raise EOFError

    monkeypatch.setattr("compactor.cli.replay.read_transcript", read)
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

    monkeypatch.setattr("compactor.cli.replay.read_transcript", read)
    done = run("replay", "x")
    assert (done.code, done.err) == (1, says)


def test_standard_output_may_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a service's is: the command still does its work."""
    path, page = write_lines(tmp_path / "one.jsonl", dialogue(3)), tmp_path / "page.html"
    monkeypatch.setattr(sys, "argv", ["compactor", "replay", str(path), "--html", str(page)])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("compactor", run_name="__main__")
    assert ended.value.code == 0
    assert page.exists()


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
