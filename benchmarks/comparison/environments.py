"""An environment for each library that is compared: made once, from `benchmarks/peers/NAME.txt`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Unavailable", "default_folder", "make_environment", "python_for", "requirements_of"]

PEERS = Path(__file__).parents[1] / "peers"
_NEEDS = re.compile(r"^#\s*python\s*(>=|==)\s*3\.(\d+)", re.MULTILINE | re.IGNORECASE)


class Unavailable(Exception):
    """A library cannot be compared here; the message says why."""


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "context-compactor-benchmarks"


def requirements_of(module: str, peers: Path = PEERS) -> Path | None:
    """Return what *module* needs installed; None where it runs in this very environment, as ours and the controls."""
    file = peers / f"{module}.txt"
    return file if file.is_file() else None


def make_environment(module: str, folder: Path, peers: Path = PEERS) -> str:
    """Return the Python of *module*'s environment, made below *folder* where it is not there yet."""
    requirements = requirements_of(module, peers)
    if requirements is None:
        return sys.executable
    wanted = requirements.read_bytes()
    place = folder / f"{module}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    python, done = place / _BIN / ("python.exe" if os.name == "nt" else "python"), place / "complete"
    if not done.is_file():
        if place.exists():  # begun, and not finished
            shutil.rmtree(place)
        base = python_for(requirements.read_text(encoding="utf-8"))
        print(f"making {place} with {base}", file=sys.stderr, flush=True)
        _run([base, "-m", "venv", str(place)], module)
        _run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)], module)
        place.mkdir(parents=True, exist_ok=True)
        done.write_text("", encoding="utf-8")
    return str(python)


_BIN = "Scripts" if os.name == "nt" else "bin"


def _run(command: list[str], module: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (Python and pip)
    if done.returncode != 0:
        raise Unavailable(f"the environment of {module} could not be made: {(done.stderr or done.stdout)[-800:]}")


def python_for(requirements: str) -> str:
    """Return a Python that fits a line such as ``# python >= 3.12`` in *requirements*; this one where none is there."""
    found = _NEEDS.search(requirements)
    if found is None:
        return sys.executable
    exactly, minor = found[1] == "==", int(found[2])
    this = sys.version_info.minor
    if this == minor or (this > minor and not exactly):
        return sys.executable
    for wanted in [minor] if exactly else range(minor, minor + 4):
        for python in _pythons(wanted):
            if _is(python, wanted):
                return python
    raise Unavailable(f"no Python {found[1]} 3.{minor} was found: install one, or put it on the PATH")


def _pythons(minor: int) -> Iterator[str]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (str(one) for one in sorted(root.glob(f"3.{minor}.*/bin/python")))
    if (named := shutil.which(f"python3.{minor}")) is not None:
        yield named


def _is(python: str, minor: int) -> bool:
    """Return whether *python* runs and is the version that its name says: what stands on the PATH may be a stub."""
    asked = [python, "-c", "import sys; print(sys.version_info.minor)"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == str(minor)
