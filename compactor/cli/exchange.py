"""Files that are complete or not there, and a session's import from one, which is complete or changes nothing."""

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

from memory.transfer.jsonl import Imported, read_session
from memory.transfer.state_dict import append_session, refuse_existing

from .sessions import open_named
from .terminal import CommandError, make_one_line


@contextmanager
def write_atomically(path: str, remedy: str, *, force: bool = True) -> Iterator[TextIO]:
    """Provide a file that is renamed to *path* at the end. Only its owner may read it; only *force* overwrites another.

    Raises ``CommandError`` with the *remedy* if it cannot be written.
    """
    target = Path(path)
    with name_errors(f"{make_one_line(path)} cannot be written", remedy):
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
        raise CommandError(
            f"{make_one_line(str(target))} already exists; give another name, or --force to overwrite it"
        )


def import_into(url: str | None, file: str, session: str | None) -> Imported:
    """Read the session in *file* (``-``: standard input) into the store at *url*, all or nothing.

    A missing database file is created only for a complete session. *session* gives it another name.
    """
    name = "standard input" if file == "-" else make_one_line(file)
    with name_errors(f"{name} cannot be read", "give a file that `compactor export` wrote"), _open(file) as text:
        first = text.readline()
        if not first:
            raise CommandError(f"{name} is empty; it needs what `compactor export` writes")
        with read_session(chain((first,), text), session) as (own, entries), open_named(url, create=True) as store:
            refuse_existing(store, own)
            append_session(store, own, entries)
            return Imported(own, len(entries))


@contextmanager
def _open(file: str) -> Iterator[TextIO]:
    if file != "-":
        with open(file, encoding="utf-8-sig") as stream:
            yield stream
        return
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
    try:
        yield lines
    finally:
        lines.detach()  # leave standard input open


@contextmanager
def name_errors(what: str, remedy: str) -> Iterator[None]:
    """Raise ``CommandError`` with *what* failed, why and the *remedy* in place of an error of the file system."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise CommandError(f"{what} (it is not UTF-8 text); {remedy}") from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise CommandError(f"{what} ({getattr(error, 'strerror', None) or 'no such path'}); {remedy}") from error
