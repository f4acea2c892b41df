"""The wheel holds what it should, and works in a clean environment: also beside a host's own ``memory.py``."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from fenced import ROOT
from quiet import QUIET

PACKAGES = ("compactor", "memory", "prompts")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Packages that another one has in its own interface.
BROUGHT_BY = {"anyio": "fastapi", "pydantic_core": "pydantic", "starlette": "fastapi"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built without a network: the build tool is a development dependency."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; install the dev extra")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    """A clean environment with the wheel in it."""

    python: Path
    command: Path

    def run(
        self, *words: str | Path, folder: Path, expect: int | None = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in *folder*; variables that change where Python looks are taken out."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENAI_"))}
        done = subprocess.run(
            list(map(str, words)),
            cwd=folder,
            env=environment | QUIET | {"PYTHONUTF8": "1"} | variables,
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
        assert expect is None or done.returncode == expect, done.stderr
        return done


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment with the wheel. Its dependencies are those that are installed where the tests run."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # A .pth file within a folder that another one names is not read, so an editable install stays out of the way.
    site.joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return Installed(python, scripts / ("compactor.exe" if os.name == "nt" else "compactor"))


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of somebody else's, with a ``memory.py`` of its own that must not be run."""
    (tmp_path / "memory.py").write_text("raise SystemExit('the memory.py of the host was run')\n", encoding="utf-8")
    return tmp_path


def members(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        yield from archive.namelist()


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    """Nothing of ours but the packages takes a top-level name: no tests, no examples."""
    tops = {name.split("/")[0] for name in members(wheel)}
    assert tops == {*PACKAGES, f"context_compactor-{PROJECT['version']}.dist-info"}


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """Prompts, scripts and type markers are data that a wheel easily forgets."""
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    wanted = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}
    assert wanted <= set(members(wheel))
    assert {f"{package}/py.typed" for package in PACKAGES} <= wanted
    names = ("default", "planner", "code_interpreter", "assistant")
    assert {f"prompts/{name}.yaml" for name in names} <= wanted


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    """Name, version, licence, Python and page are in the metadata, and the command is an entry point."""
    with zipfile.ZipFile(wheel) as archive:
        folder = f"context_compactor-{PROJECT['version']}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        scripts = archive.read(f"{folder}/entry_points.txt").decode()
        licence = archive.read(f"{folder}/licenses/LICENSE").decode()
    assert (metadata["Name"], metadata["License-Expression"], metadata["Requires-Python"]) == (
        "context-compactor",
        "MIT",
        ">=3.11",
    )
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert scripts.split() == ["[console_scripts]", "compactor", "=", "compactor.cli.app:main"]
    assert licence.startswith("MIT License")


@pytest.mark.slow
def test_the_installed_packages_are_those_of_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """The tests below try the wheel, not the working tree."""
    done = installed.run(
        installed.python, "-c", "import compactor, memory, prompts; print(compactor.__file__)", folder=tmp_path
    )
    assert installed.python.parent.parent in Path(done.stdout.strip()).parents


@pytest.mark.slow
def test_the_installed_library_reads_its_data(installed: Installed, tmp_path: Path) -> None:
    """Shipped prompts are found, tokens are counted and cues read, where there is nothing but the wheel."""
    code = (
        "import prompts, compactor; from compactor.summarizers.cues import is_prohibition;"
        "print(len(prompts.list_shipped()), compactor.count_tokens('hello world'), is_prohibition('Never pay.'))"
    )
    assert installed.run(installed.python, "-c", code, folder=tmp_path).stdout.split() == ["7", "2", "True"]


@pytest.mark.slow
def test_the_command_works_in_a_folder_with_a_memory_module(installed: Installed, host: Path) -> None:
    """The folder that a command is started in is not where Python looks, so a host's module does not matter."""
    done = installed.run(installed.command, "--help", folder=host)
    for command in ("demo", "replay", "chat"):
        assert command in done.stdout


@pytest.mark.slow
def test_python_m_names_the_file_in_the_way(installed: Installed, host: Path) -> None:
    """``python -m`` does look there: one line says which file hides what, and there is no traceback."""
    done = installed.run(installed.python, "-m", "compactor", "--help", folder=host, expect=None)
    assert done.returncode != 0
    assert_one_line_names(host / "memory.py", done.stderr)


@pytest.mark.slow
def test_the_command_names_the_file_in_the_way(installed: Installed, host: Path) -> None:
    """With the folder on ``PYTHONPATH`` the command cannot start either, and exits as for any wrong use."""
    done = installed.run(installed.command, "--help", folder=host, expect=2, PYTHONPATH=".")
    assert_one_line_names(host / "memory.py", done.stderr)


def test_importing_names_the_file_in_the_way(installed: Installed, host: Path) -> None:
    """A host gets an ImportError, with the same words."""
    done = installed.run(installed.python, "-c", "import compactor", folder=host, expect=1)
    assert_one_line_names(host / "memory.py", done.stderr.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["memory", "prompts"])
def test_a_folder_hides_a_package_like_a_file_does(installed: Installed, tmp_path: Path, name: str) -> None:
    """A package of the host's is named by its ``__init__.py``."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    done = installed.run(installed.command, "--help", folder=tmp_path, expect=2, PYTHONPATH=".")
    assert_one_line_names(tmp_path / name / "__init__.py", done.stderr)


@pytest.mark.slow
def test_a_folder_without_code_hides_nothing(installed: Installed, tmp_path: Path) -> None:
    """A folder of data that happens to be called ``memory`` is no module."""
    (tmp_path / "memory").mkdir()
    installed.run(installed.python, "-m", "compactor", "--help", folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("memory", ["archive", "postgresql"]),
        ("prompts", []),
        ("compactor/inspector", []),
        ("compactor/server", ["server", "mcp"]),
        ("compactor/telemetry", ["otel", "server"]),
        ("compactor/workers", ["procrastinate", "celery", "postgresql"]),
    ],
)
def test_what_is_imported_is_required(folder: str, extras: list[str]) -> None:
    """The development environment has more, so that nothing else would miss it."""
    required = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    distributions = metadata.packages_distributions()
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in required}
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for package in {one.partition(".")[0] for one in found} - {*PACKAGES, *sys.stdlib_module_names}:
                brought = BROUGHT_BY.get(package)
                known = [brought] if brought else distributions[package]
                assert names.intersection(one.lower().replace("_", "-") for one in known), f"{path}: {package}"


def assert_one_line_names(file: Path, text: str) -> None:
    assert len(text.strip().splitlines()) == 1, text
    assert str(file.resolve()) in text
    assert "rename that file" in text
