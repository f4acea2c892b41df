"""New locks for a forked child: one that another thread of the parent held would stay locked in the child for ever."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["renewed_after_fork"]


class _Renewable(Protocol):
    def _after_fork(self) -> None: ...


_renewables: WeakSet[_Renewable] = WeakSet()


def renewed_after_fork(what: _Renewable) -> None:
    """Have ``what._after_fork()`` called in every child that is forked while *what* lives."""
    _renewables.add(what)


def _renew_all() -> None:
    for what in tuple(_renewables):
        what._after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_all)
