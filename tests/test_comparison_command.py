"""What `benchmarks/run` does, and the environments that it makes."""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from comparison_parts import small

from benchmarks.comparison import command, environments, playing
from benchmarks.comparison.adapter import Setting
from benchmarks.comparison.conversations import airline
from benchmarks.comparison.door import Door
from benchmarks.comparison.driver import play
from benchmarks.comparison.environments import Unavailable, make_environment, python_for, requirements_of
from benchmarks.comparison.page import RESULTS, beside, read
from benchmarks.peers import nothing, ours

pytestmark = pytest.mark.slow


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the folder, from the requirements beside the adapter, and anew where it was not finished."""
    (tmp_path / "plain.txt").write_text("# nothing to install\n", encoding="utf-8")
    commands: list[list[str]] = []
    monkeypatch.setattr(environments, "_run", lambda command, _module: commands.append(command))
    folder = tmp_path / "made"
    python = Path(make_environment("plain", folder, tmp_path))
    place = python.parents[1]
    assert place.parent == folder
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    (place / "complete").unlink()
    (place / "half").write_text("", encoding="utf-8")
    make_environment("plain", folder, tmp_path)
    assert not (place / "half").exists()
    assert len(commands) == 4
    assert make_environment("plain", folder, tmp_path) == str(python)
    assert len(commands) == 4
    assert make_environment("ours", folder) == sys.executable
    assert requirements_of("ours") is None


def test_an_environment_that_cannot_be_made_is_said_to_be(tmp_path: Path) -> None:
    """With what the command said, and for whom."""
    with pytest.raises(Unavailable, match=r"environment of a peer .*not today"):
        environments._run([sys.executable, "-c", "raise SystemExit('not today')"], "a peer")


def test_a_python_that_fits_is_found_or_missed() -> None:
    """This one, where it does; the message says what is missing."""
    this = sys.version_info.minor
    assert python_for("a==1\n") == python_for(f"# python >= 3.{this}\n") == sys.executable
    with pytest.raises(Unavailable, match=r"Python >= 3\.99"):
        python_for("# python >= 3.99\n")


def driven(job: dict[str, Any], *_where: Any) -> dict[str, Any]:
    """Do in this process what the driver does in one of its own."""
    if job["module"] == "sliding_window":
        raise RuntimeError("it was given up")
    adapter = (nothing if job["module"] == "nothing" else ours).make(Setting(**job["setting"]))
    door = Door(job["setting"]["base_url"].removesuffix("/v1"))
    with contextlib.closing(door), contextlib.closing(adapter):
        return play(adapter, door, job)


def test_the_command_prints_tables_and_writes_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each scenario; what cannot be played is said to be left out. Here all is played in this process."""
    monkeypatch.setattr(playing, "_driven", driven)
    monkeypatch.setitem(command.SCENARIOS, "chat", lambda: small(20))
    monkeypatch.setitem(command.SCENARIOS, "airline", lambda: airline(path=tmp_path / "nowhere"))
    arguments = [
        "--only",
        "nothing",
        "ours:messages",
        "--scenarios",
        "chat",
        "airline",
        "--docs",
        str(tmp_path),
        "--repeat",
        "2",
        "--change-words",
        "20",
        "60",
    ]
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Page\n\n{RESULTS}\nold\n\n## More\n\nkept\n", encoding="utf-8")
    assert command.main(arguments) == 0
    written = page.read_text(encoding="utf-8")
    assert written.startswith(f"# Page\n\n{RESULTS}")
    assert "| ours: README.md, OpenAI messages |" in written
    assert "old" not in written
    assert written.endswith("\n\n## More\n\nkept\n")
    printed = capsys.readouterr().out
    assert "| no compaction |" in printed
    assert "| ours: README.md, OpenAI messages |" in printed
    assert "Left out: " in printed
    assert "summaries each fact went through | 20 | 60 |" in printed
    found = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert [row["label"] for row in found["scenarios"]["chat"]] == ["nothing", "ours:messages"]
    assert (tmp_path / "comparison.svg").read_text(encoding="utf-8").startswith("<svg")


def test_what_was_played_before_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adapter's newest run is shown, wherever it was played, relative to the control's; who was given up is named,
    until it is played to the end."""
    monkeypatch.setattr(playing, "_driven", driven)
    monkeypatch.setitem(command.SCENARIOS, "chat", lambda: small(12))
    (tmp_path / "elsewhere").mkdir()
    there, here = str(tmp_path / "elsewhere"), str(tmp_path)
    only = ["--only", "ours:messages", "sliding_window", "--scenarios", "chat", "--change-words", "20"]
    command.main([*only, "--docs", there])
    assert read(Path(there) / "comparison.json")["given_up"] == {"chat": ["sliding_window"]}
    (tmp_path / "benchmarks.md").write_text(f"{RESULTS}\n## More\n", encoding="utf-8")
    command.main(["--only", "nothing", "--scenarios", "chat", "--docs", here])
    command.main(["--scenarios", "--docs", here, "--beside", f"{there}/comparison.json"])
    found = read(tmp_path / "comparison.json")
    assert [(row["label"], bool(row["relative"])) for row in found["scenarios"]["chat"]] == [
        ("nothing", True),
        ("ours:messages", True),
    ]
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| ours: README.md, OpenAI messages |" in page
    assert "Given up: sliding_window." in page
    ended = {"scenarios": {"chat": [found["scenarios"]["chat"][1] | {"label": "sliding_window"}]}, "given_up": {}}
    assert beside(found, ended, ["nothing", "sliding_window"])["given_up"] == {"chat": []}


def test_a_conversation_whose_data_is_elsewhere_stays_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone without the real dialogues writes the other tables, and keeps theirs as it is."""
    monkeypatch.setitem(command.SCENARIOS, "chat", lambda: small(12))
    monkeypatch.setitem(command.SCENARIOS, "airline", partial(airline, path=tmp_path / "nowhere.jsonl"))
    monkeypatch.setattr(playing, "_driven", driven)
    (tmp_path / "comparison.json").write_text('{"scenarios": {"airline": [{"label": "nothing"}]}}', encoding="utf-8")
    before = f"{RESULTS}\n### chat\n\nold\n\n### airline\n\n| as it was |\n\n## More\n"
    (tmp_path / "benchmarks.md").write_text(before, encoding="utf-8")
    command.main(["--only", "nothing", "--scenarios", "chat", "--docs", str(tmp_path)])
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| no compaction |" in page
    assert "old" not in page
    assert page.endswith("\n\n### airline\n\n| as it was |\n\n## More\n")


def test_own_cpu_is_beside_what_was_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be measured last and alone: the other tables stay."""
    row = {"name": "no compaction", "cpu": {"10": 0.001}, "seconds": 2.0, "reached": 50}
    results = {"scenarios": {"cpu": [row | {"label": "nothing"}]}, "given_up": {"cpu": ["ours:messages"]}}
    (tmp_path / "comparison.json").write_text(json.dumps(results), encoding="utf-8")
    (tmp_path / "benchmarks.md").write_text(f"{RESULTS}\n## More\n", encoding="utf-8")
    monkeypatch.setattr(command, "alone", lambda *_what: row | {"name": "another", "cpu": {"20": 0.002}})
    command.main(["--only", "sliding_window", "--scenarios", "cpu", "--docs", str(tmp_path)])
    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| no compaction | 1.00 ms | – | 2.0 s for 50 |" in page
    assert "| another | – | 2.00 ms | 2.0 s for 50 |" in page
    assert "Given up: ours:messages." in page


def test_every_adapter_is_known_by_its_file() -> None:
    """The controls and ours first; a name that is none is refused."""
    labels = [":".join(filter(None, one)) for one in command.contenders()]
    assert labels[:3] == ["nothing", "sliding_window", "ours:messages"]
    assert command.contenders(["ours:offline"]) == [("ours", "offline")]
    with pytest.raises(SystemExit, match="no such adapter: nobody"):
        command.contenders(["nobody"])
