"""The check that ``import memory`` gives our package and not a module that a host happens to call the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


class ShadowedModule(ImportError):
    """Another module hides one of the packages that were installed with this one."""


def require_siblings(*names: str) -> None:
    """Raise ``ShadowedModule``, naming the file in the way, unless each of *names* is the package beside this one.

    Nothing is imported to find out, so a host's module is not run by it. Run as a command, exit with that message
    instead: a console script cannot catch what its own import raises.
    """
    home = Path(__file__).resolve().parent.parent
    for name in names:
        found = _find_file(name)
        if found is not None and found.parent == home / name:
            continue
        where = found or "something without a file"
        message = (
            f"{where} hides the package {name!r} of context-compactor, which lies in {home / name}; rename that file,"
            " or start Python where it is not on the module search path (python -P)"
        )
        if Path(sys.argv[0] if sys.argv else "").stem == "compactor":
            print(f"compactor: {message}", file=sys.stderr)  # noqa: T201  (the command's own error)
            raise SystemExit(2)
        # By this name, `python -m compactor` prints the message on one line instead of a traceback.
        raise ShadowedModule(message, name="compactor", path=str(found))


def _find_file(name: str) -> Path | None:
    module = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if module is None else None
    file = getattr(module, "__file__", None) if spec is None else spec.origin
    return Path(file).resolve() if file else None
