"""Export of a session from a store to a JSONL file, and import from there. Each is complete or changes nothing."""

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
from memory.transfer.jsonl import Imported, export_session, import_session, read_session
from memory.transfer.state_dict import append_new

from .sessions import is_missing, open_named
from .terminal import CannotRun, one_line


def export(store: Store, session: str, to: str, *, force: bool) -> int:
    """Write *session* to the file *to* (``-``: standard output) and return its number of entries.

    The file appears when it is complete. Only *force* overwrites an existing one.
    """
    if to == "-":
        return export_session(store, session, sys.stdout)
    target = Path(to)
    try:
        with _replace_when_complete(target, force=force) as file:
            return export_session(store, session, file)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise CannotRun(f"{one_line(to)} cannot be written ({_describe(error)}); give another path by --to") from error


@contextmanager
def _replace_when_complete(target: Path, *, force: bool) -> Iterator[TextIO]:
    """Provide a file that is renamed to *target* at the end. Only its owner may read it."""
    _require_free(target, force=force)
    handle, name = tempfile.mkstemp(prefix=".export-", suffix=".part", dir=target.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _require_free(target, force=force)  # another process may have created it
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _require_free(target: Path, *, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise CannotRun(f"{one_line(str(target))} is there already; give another name, or --force to write over it")


def import_into(url: str | None, file: str, session: str | None) -> Imported:
    """Read the session in *file* (``-``: standard input) into the store at *url*, all or nothing.

    A missing database file is created only for a complete session. *session* gives it another name.
    """
    name = "standard input" if file == "-" else one_line(file)
    try:
        with _open_text(file) as text:
            first = text.readline()
            if not first:
                raise CannotRun(f"{name} is empty; it needs what `compactor export` writes")
            lines = chain((first,), text)
            if not is_missing(url):
                with open_named(url, create=True) as store:
                    return import_session(store, lines, session)
            with read_session(lines, session) as (own, entries), open_named(url, create=True) as store:
                append_new(store, own, entries)
                return Imported(own, len(entries))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CannotRun(
            f"{name} cannot be read ({_describe(error)}); give a file that `compactor export` wrote"
        ) from error


@contextmanager
def _open_text(file: str) -> Iterator[TextIO]:
    if file == "-":
        lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
        try:
            yield lines
        finally:
            lines.detach()  # leave standard input open
        return
    with open(file, encoding="utf-8-sig") as stream:
        yield stream


def _describe(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return getattr(error, "strerror", None) or "no such path"
