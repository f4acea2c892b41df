"""Ends the command ``compactor`` with one line when Ctrl-C arrives while its modules are still being imported."""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from types import TracebackType


def install_hook() -> None:
    """Install an exception hook for KeyboardInterrupt if this process runs the command; change no other process."""
    if _is_command():
        sys.excepthook = _handle


def _is_command() -> bool:
    words = sys.orig_argv
    if sys.argv[:1] == ["-m"]:  # so it is while `python -m compactor` imports the package
        return "compactor" in words[words.index("-m") + 1 :][:1] if "-m" in words else "-mcompactor" in words
    return PurePath(sys.argv[0] if sys.argv else "").stem == "compactor"


def _handle(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    print("compactor: interrupted", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(130)  # else Python would end itself by the signal
