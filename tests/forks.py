"""Scripts that fork, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[1]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")

#: The scripts begin with this. A child that hangs is ended with a traceback, and its exit code tells.
FORKING = """
    import faulthandler, os

    def in_child(work):
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            try:
                work()
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        return pid

    def exit_code(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(prelude: str, script: str, *arguments: str) -> None:
    """Run *script* behind *prelude*. Fails with what it wrote unless it ends well, and says so."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(FORKING) + dedent(prelude) + dedent(script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["well"]
