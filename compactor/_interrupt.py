"""Ends the command ``compactor`` with one line when Ctrl-C arrives while its modules are still being imported."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # nothing is imported before the hook is there: `typing` takes a while
if TYPE_CHECKING:
    from types import FrameType, TracebackType


def install_hook() -> None:
    """End this process in one line on Ctrl-C if it runs the command; change no other process."""
    if not _IS_COMMAND:
        return
    sys.excepthook = _handle
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # At once: an exception inside of an import's callback would be printed and forgotten.
        signal.signal(signal.SIGINT, _end)


def remove_hook() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, now that there is somebody to catch it."""
    import signal

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_interrupted() -> None:
    """End this process in one line if it runs the command, at once: what was open is closed."""
    if _IS_COMMAND:
        _end()


def _is_command() -> bool:
    words = sys.orig_argv
    if sys.argv[:1] == ["-m"]:  # so it is while `python -m compactor` imports the package
        return "compactor" in words[words.index("-m") + 1 :][:1] if "-m" in words else "-mcompactor" in words
    return os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0] == "compactor"


def _handle(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _end()
    sys.__excepthook__(kind, error, traceback)


def _end(_signal: int = 0, _frame: FrameType | None = None) -> None:
    os.write(2, f"compactor: interrupted{os.linesep}".encode())
    os._exit(130)  # else Python would end itself by the signal


#: Found out while the package is imported: later, `python -m` has put another word in its place.
_IS_COMMAND = _is_command()
