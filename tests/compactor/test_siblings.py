"""Where a host's own ``memory`` or ``prompts`` hides ours, importing fails at once and names the file in the way."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from quiet import QUIET

import compactor
from compactor import ShadowedModule

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = "the host's module was run"


def host(folder: Path, name: str, *, package: bool) -> Path:
    """Put a module of that name into *folder*, which says so when it is run, and return its file."""
    file = folder / name / "__init__.py" if package else folder / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"print({EXECUTED!r})\n", encoding="utf-8")
    return file.resolve()


def run(*command: str, cwd: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, cwd=cwd, env=environment | QUIET | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def in_order(*folders: Path) -> str:
    return os.pathsep.join(map(str, folders))


@pytest.mark.parametrize(("name", "package"), [("memory", False), ("memory", True), ("prompts", False)])
def test_a_module_on_the_path_is_named_and_not_run(tmp_path: Path, name: str, package: bool) -> None:
    """A file or a folder before ours on ``PYTHONPATH``: an ImportError with the file and the remedy."""
    file = host(tmp_path, name, package=package)

    done = run(sys.executable, "-c", "import compactor", cwd=ROOT.parent, path=in_order(tmp_path, ROOT))

    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert str(file) in last
    assert repr(name) in last
    assert "rename that file" in last
    assert EXECUTED not in done.stdout


def test_a_module_in_the_working_directory_is_named_and_not_run(tmp_path: Path) -> None:
    """``python -c`` looks there first."""
    file = host(tmp_path, "memory", package=False)

    done = run(sys.executable, "-c", "import compactor", cwd=tmp_path, path=str(ROOT))

    assert done.returncode == 1
    assert str(file) in done.stderr
    assert EXECUTED not in done.stdout


def test_python_m_says_it_in_one_line(tmp_path: Path) -> None:
    """No traceback, for there is nothing to trace."""
    file = host(tmp_path, "memory", package=False)

    done = run(sys.executable, "-m", "compactor", "--help", cwd=tmp_path, path=str(ROOT))

    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1
    assert str(file) in done.stderr
    assert EXECUTED not in done.stdout


def test_the_command_says_it_in_one_line_and_exits_as_for_wrong_use(tmp_path: Path) -> None:
    """A console script cannot catch what its own import raises: so it ends there, with 2."""
    file = host(tmp_path, "prompts", package=True)
    code = "import sys; sys.argv[0] = '/usr/bin/compactor'; import compactor"

    done = run(sys.executable, "-c", code, cwd=ROOT.parent, path=in_order(tmp_path, ROOT))

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("compactor: ")
    assert str(file) in done.stderr


def test_a_module_that_the_host_has_imported_already_is_named(tmp_path: Path) -> None:
    """Its own import was right for the host; ours comes too late to be found."""
    file = host(tmp_path, "memory", package=False)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import memory; sys.path.pop(0); import compactor"

    done = run(sys.executable, "-c", code, cwd=ROOT.parent, path=str(ROOT))

    assert done.returncode == 1
    assert str(file) in done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_behind_ours_on_the_path_nothing_is_hidden(tmp_path: Path) -> None:
    """A module that Python does not find first is no trouble; nor is a folder without code, wherever it is."""
    host(tmp_path, "memory", package=False)
    (tmp_path / "data" / "prompts").mkdir(parents=True)

    done = run(
        sys.executable, "-P", "-c", "import compactor", cwd=tmp_path, path=in_order(tmp_path / "data", ROOT, tmp_path)
    )

    assert (done.returncode, done.stderr) == (0, "")


# -- without another process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [ModuleType("memory"), None])
def test_what_has_no_file_is_in_the_way_too(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    """A module made in memory, or nothing at all, is not our package."""
    monkeypatch.setitem(sys.modules, "memory", module)  # type: ignore[arg-type]

    with pytest.raises(ShadowedModule, match="without a file") as shadowed:
        importlib.reload(compactor)
    assert isinstance(shadowed.value, ImportError)


def test_the_error_carries_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As ImportErrors do."""
    monkeypatch.setitem(sys.modules, "memory", SimpleNamespace(__file__=str(tmp_path / "memory.py")))  # type: ignore[arg-type]

    with pytest.raises(ShadowedModule) as shadowed:
        importlib.reload(compactor)
    assert shadowed.value.path == str((tmp_path / "memory.py").resolve())


def test_run_as_the_command_it_exits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the script's ending: ``compactor``, ``compactor.exe``."""
    spec = importlib.machinery.ModuleSpec("memory", None)
    monkeypatch.setitem(sys.modules, "memory", SimpleNamespace(__spec__=spec))  # type: ignore[arg-type]
    for script in ("/usr/local/bin/compactor", "compactor.exe"):
        monkeypatch.setattr(sys, "argv", [script])
        with pytest.raises(SystemExit) as left:
            importlib.reload(compactor)
        assert left.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
