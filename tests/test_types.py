"""A user's program passes mypy and pyright as they come: no plug-in of pydantic's, no setting of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from coming_from import PAGES as COMING_FROM
from fenced import ROOT, blocks

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
#: Shows classes of other libraries, whose types are theirs.
UNTYPED = set(COMING_FROM)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, and each code block of the pages as a program. Lines are those of the page."""
    folder = tmp_path_factory.mktemp("programs")
    for path in (ROOT / "examples").glob("*.py"):
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    for page in PAGES:
        for block in blocks(page, "python"):
            is_ours = block.framework in ("", "fastapi")  # the others are not installed here
            if block.info != 'title="before"' and page not in UNTYPED and is_ours:
                name = f"{page.removesuffix('.md').replace('/', '_').replace('-', '_')}_{block.line}.py"
                (folder / name).write_text("\n" * block.line + block.text, encoding="utf-8")
    return folder


def test_programs_pass_mypy_strict(programs: Path) -> None:
    """``mypy --strict`` with an empty configuration accepts every block and example."""
    pytest.importorskip("mypy", reason="mypy is not installed; install the dev extra")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={programs / 'cache'}", "."]
    done = subprocess.run(command, cwd=programs, env=_environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_pass_pyright(programs: Path) -> None:
    """pyright accepts them with its own defaults."""
    pytest.importorskip("pyright", reason="pyright is not installed; install the dev extra")
    (programs / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "."]
    done = subprocess.run(command, cwd=programs, env=_environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return os.environ | {"MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
