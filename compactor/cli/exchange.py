"""A session out of a store into a file of JSON lines, and from there into a store."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TextIO

from memory.stores import Store
from memory.transfer.jsonl import Imported, export_session, import_session, whole_session
from memory.transfer.state_dict import append_new

from .stores import missing, opened
from .terminal import CannotRun, one_line


def export(store: Store, session: str, to: str, *, force: bool) -> int:
    """Write *session* to the file *to*, or to standard output for ``-``, and return how many entries it has.

    The file is there when it is complete; one that is there already is kept, but for *force*.
    """
    if to == "-":
        return export_session(store, session, sys.stdout)
    target = Path(to)
    try:
        with _complete(target, force=force) as file:
            return export_session(store, session, file)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise CannotRun(f"{one_line(to)} cannot be written ({_reason(error)}); give another path by --to") from error


@contextmanager
def _complete(target: Path, *, force: bool) -> Iterator[TextIO]:
    """Give a file that takes *target*'s name once all is written. It is its owner's alone to read."""
    _require_free(target, force=force)
    handle, name = tempfile.mkstemp(prefix=".export-", suffix=".part", dir=target.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _require_free(target, force=force)  # somebody may have made one meanwhile
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _require_free(target: Path, *, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise CannotRun(f"{one_line(str(target))} is there already; give another name, or --force to write over it")


def import_into(url: str | None, file: str, session: str | None) -> Imported:
    """Read the session in *file*, or on standard input for ``-``, into the store at *url*, all or nothing.

    A database file that is not there is made for one that is whole. *session*: its name there, if not its own.
    """
    name = "standard input" if file == "-" else one_line(file)
    try:
        with _reading(file) as text:
            first = text.readline()
            if not first:
                raise CannotRun(f"{name} is empty; it needs what `compactor export` writes")
            lines = chain((first,), text)
            if not missing(url):
                with opened(url, create=True) as store:
                    return import_session(store, lines, session)
            with whole_session(lines, session) as (own, entries), opened(url, create=True) as store:
                append_new(store, own, entries)
                return Imported(own, len(entries))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CannotRun(
            f"{name} cannot be read ({_reason(error)}); give a file that `compactor export` wrote"
        ) from error


@contextmanager
def _reading(file: str) -> Iterator[TextIO]:
    if file == "-":
        lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
        try:
            yield lines
        finally:
            lines.detach()  # which is not ours to close
        return
    with open(file, encoding="utf-8-sig") as stream:
        yield stream


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return getattr(error, "strerror", None) or "no such path"
