"""Names of a package that are imported when they are first used: a process pays for what it needs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

#: Held while a compactor's thread imports: a child that is forked meanwhile would wait for the module for ever.
importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def import_lazily(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of *package*.

    *names* has, by module of the package, the names that it gives, with spaces in between. The module is there by its
    own name, too.
    """
    homes = {name: module for module, given in names.items() for name in given.split()}
    namespace = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name in names:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        namespace[name] = value  # it is found there from now on
        return value

    return find, lambda: sorted({*namespace, *homes})
