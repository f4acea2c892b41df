"""Every command and code block of the README does what a newcomer is told it does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fenced import ROOT, Block, blocks, reader
from model_server import ok

from compactor import ContextCompactor
from memory import Memory

README = "README.md"
SUMMARIZERS = "docs/summarizers.md"
INSTALL = "python3 -m venv .venv && .venv/bin/pip install"


def _commands() -> list[str]:
    return [line for block in blocks(README, "sh") for line in block.text.splitlines()]


DEMO, REPLAY, CHAT, TESTS = _commands()


def run_here(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one of the README's ``.venv/bin/compactor`` commands in *folder*, with the interpreter that runs the tests."""
    words = command.split()
    assert words[0] == ".venv/bin/compactor"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
    return subprocess.run(
        [sys.executable, "-m", "compactor", *words[1:]],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def test_each_of_the_two_ways_in_is_one_command() -> None:
    """One command installs and runs the main job, one installs and passes the tests; both on Python and pip alone."""
    assert f"{INSTALL} . && .venv/bin/compactor demo" == DEMO
    assert f'{INSTALL} -e ".[dev]" && .venv/bin/python -m pytest -n auto' == TESTS


@pytest.mark.index
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.name == "nt", reason="the command is for a POSIX shell")
def test_the_demo_command_works_in_a_fresh_copy(tmp_path: Path) -> None:
    """On a machine with Python and pip, the first command installs everything and does the main job."""
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".*cache", ".coverage*", ".hypothesis", ".venv", "__pycache__"),
    )
    # No key, no settings of the machine's, and the interpreter that runs the tests as `python3`.
    environment = {key: os.environ[key] for key in ("HOME", "TMPDIR", "LANG") if key in os.environ}
    environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["sh", "-c", DEMO], cwd=copy, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Planner" in done.stdout
    assert "Traceback" not in done.stderr


def test_ci_runs_the_readmes_test_command_step_by_step() -> None:
    """What CI passes is what a newcomer is told to run; the command itself would run itself here without end."""
    ran = [line.strip() for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()]
    make, install, test = TESTS.split(" && ")
    (installs,) = [number for number, line in enumerate(ran) if '-e ".[dev' in line]  # with uv, and the docs' tools
    assert '-e ".[dev' in install
    assert ran.index(make) < installs < ran.index(test)


@pytest.mark.slow
def test_replay_reads_a_transcript_as_the_readme_says(tmp_path: Path) -> None:
    """``compactor replay transcript.jsonl`` takes OpenAI messages as JSONL."""
    messages = [
        {"role": role, "content": f"{role} says {number}"} for number in range(20) for role in ("user", "assistant")
    ]
    (tmp_path / "transcript.jsonl").write_text("\n".join(map(json.dumps, messages)), encoding="utf-8")
    done = run_here(REPLAY, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_chat_explains_itself(tmp_path: Path) -> None:
    done = run_here(CHAT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--model" in done.stdout


@pytest.mark.parametrize("block", blocks(README, "python"), ids=str)
def test_code_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs by itself, offline, as it stands."""
    with reader(README, tmp_path, monkeypatch, said=["Hello"]):
        block.run()


def test_the_quick_start_for_agents_ends_with_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who pastes the first block sees a compaction, and both roles have one of their own."""
    with reader(README, tmp_path, monkeypatch, said=[]):
        names = blocks(README, "python")[0].run()
    assert capsys.readouterr().out.startswith("[Conversation History Summary (Rounds 1-")
    assert len(names["memory"].conversation.rounds) == 30
    assert names["coder"].role == "Coder"


def test_the_quick_start_for_messages_chats_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who pastes the second block talks to an OpenAI-compatible endpoint, and the model reads what was said before."""
    with reader(README, tmp_path, monkeypatch, said=["To Rome, please.", "On Friday."]) as server:
        server.answers(ok("When?"), ok("Booked."))
        names = blocks(README, "python")[1].run()
        sent = server.requests[-1].body["messages"]
    said = [("system", "You are a travel agent."), ("user", "To Rome, please."), ("assistant", "When?")]
    assert [(message["role"], message["content"]) for message in sent] == [*said, ("user", "On Friday.")]
    assert capsys.readouterr().out.split() == ["When?", "Booked."]
    assert isinstance(names["memory"], Memory)


@pytest.mark.parametrize("words", [30, 90])
def test_the_function_that_any_will_do_summarises_a_chat(
    words: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user asked is no echo where the answers say more, and it is published again and again."""
    with reader(SUMMARIZERS, tmp_path, monkeypatch, said=[]):
        (block,) = (block for block in blocks(SUMMARIZERS, "python") if "def summarize(request" in block.text)
        summarize = block.run()["summarize"]
    memory = Memory()
    with ContextCompactor.for_role(memory, "assistant", summarizer=summarize) as compactor:
        for number in range(1_000, 1_030):
            answer = " ".join(f"word{number % 7}{place}" for place in range(words))
            memory.append({"role": "user", "content": f"Please look up parcel number {number} and tell me where it is"})
            memory.append({"role": "assistant", "content": f"Parcel {number} is in hall {number % 9}. {answer}"})
            assert compactor.wait_idle(timeout=60)
    names = [event.name for event in compactor.events]
    assert names.count("compaction.published") >= 2
    assert "compaction.failed" not in names
    assert "compaction.rejected" not in names


def test_every_block_is_run_or_a_drawing() -> None:
    """A block of another kind than those above is one that nobody runs."""
    assert {block.language for block in blocks(README)} == {"text", "sh", "python"}
    assert [len(blocks(README, language)) for language in ("text", "python")] == [1, 3]


def test_the_readme_renders_where_only_plain_markdown_does() -> None:
    """No mermaid and no HTML: PyPI shows the page as it is, and the drawing fits a narrow screen. Pictures, which it
    lacks, have a text that says what they show."""
    text = (ROOT / README).read_text(encoding="utf-8")
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert "<" not in outside
    assert all(len(text) > 40 for text in re.findall(r"!\[([^]]*)\]", outside))
    (drawing,) = blocks(README, "text")
    assert drawing.text.isascii()
    assert max(map(len, drawing.text.splitlines())) <= 100
