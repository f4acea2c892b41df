"""Payloads as files below one folder for each chat: written once, never overwritten, read back in pages, searched.

Ids are data. No path is built from one as it came: what it holds beside letters, digits and dashes is replaced, and a
hash of what was replaced, or of the content, keeps apart what then looks alike. The tools for the model reach nothing
outside of the folder, whatever path they are given, and answer a bad request with what to do instead.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4
from weakref import WeakSet

from memory import Memory
from memory.errors import ContextError, StoreError
from memory.events import Event, Redacted
from memory.recall import Refused
from memory.rounds import once, utc_now
from memory.stores.retention import FILES_KEPT, remove_files

from ..options import given_path, given_text
from .archives import NotAnArchive, messages_in
from .offload_tools import (
    LONGEST_ANSWER,
    LONGEST_PATTERN,
    MAX_LINES,
    MAX_MATCHES,
    OFFLOAD_TOOLS,
    TimeOver,
    given_fields,
    lines_with,
    page,
    schemas,
)

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

#: Seconds that one search may take.
SEARCH_SECONDS = 2.0
#: Files of one stem and hash that may differ, which takes someone to have changed one.
_MAX_VARIANTS = 100

#: Folders that every chat id of this form has to itself, on file systems that take ``A`` for ``a`` too.
_PLAIN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_READABLE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,149}", re.ASCII)
_HASH = r"[0-9a-f]{16}"
#: What Windows takes for a device, with any ending.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))]
)
#: What stands for no chat id; no id of a chat gives this folder.
_NO_CHAT = "_"
_LOOKS_LIKE_REGEX = re.compile(r"\.[*+?]|\\[a-zA-Z.]|[|^$\[\]]")

_NO_ROOM = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
_NO_LEAVE = {errno.EACCES, errno.EPERM, errno.EROFS}


class OffloadError(ContextError):
    """A payload could not be written as a file: nothing of it is there, and the messages are as they were."""


class FilesNotErased(Event):
    """Files still hold what was redacted; redact it again once they can be removed."""

    name: ClassVar[str] = "offload.not_erased"
    level: ClassVar[str] = "warning"
    session: str = ""
    #: ``r3.p2``, or ``r3.p0`` for the user's query.
    references: tuple[str, ...]
    #: What went wrong with the last of them, and the remedy.
    error: str


def chat_folder(chat_id: str) -> str:
    """Return the name of a chat's folder: the id where it is of plain lower-case letters, digits, ``-`` and ``_``."""
    if not chat_id:
        return _NO_CHAT
    if _PLAIN_ID.fullmatch(chat_id) and not _is_device(chat_id):
        return chat_id
    return f"{_slug(chat_id)}.{_digest(_encoded(chat_id))}"  # no plain id has a dot


def file_name(stem: str, content: str, suffix: str = ".txt") -> str:
    """Return the name under which *content* is kept: equal for equal content, made from *stem* for whoever reads it."""
    return f"{_slug(stem)}-{_digest(_encoded(content))}{suffix}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text[:200].lower(), flags=re.ASCII).strip("-")[:40].strip("-") or "payload"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # lone surrogates come back as they were


def _is_device(name: str) -> bool:
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


class OffloadFiles:
    """The files of one chat, in a folder of its own below *store_dir*; making one touches no disk.

    ``tools()`` and ``call(name, arguments)`` offer ``read_file`` and ``grep`` to a model. Both see only the regular
    files directly in the folder; what a symbolic link leads to is refused.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str],
        chat_id: str = "",
        *,
        search_seconds: float = SEARCH_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        given = given_path("store_dir", store_dir)
        self._store = os.path.abspath(given)  # so that a later change of the working directory moves nothing
        self._folder = chat_folder(given_text("chat_id", chat_id))
        self._root = os.path.join(self._store, self._folder)
        self._begun_in = ""
        with suppress(OSError):  # it may be gone, which an absolute path does not mind
            self._begun_in = os.getcwd()
        #: What every path begins with: *store_dir* as it was given, and the chat's folder.
        self.prefix = f"{given.replace(os.sep, '/').rstrip('/')}/{self._folder}"
        self._watched: WeakSet[Memory] = WeakSet()
        self._owners: WeakSet[Memory] = WeakSet()
        self._search_seconds = search_seconds
        self._monotonic = monotonic

    def path_of(self, stem: str, content: str, suffix: str = ".txt") -> str:
        """Return the path that ``write`` would return, unless somebody has changed that file."""
        return f"{self.prefix}/{file_name(stem, content, suffix)}"

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, stem: str, content: str, suffix: str = ".txt") -> str:
        """Keep *content* in a file named after *stem*, and return its path, which ``read_file`` takes.

        All of it is there, or none. The same content is written once; a file that was changed since is left as it is,
        and the content goes beside it. Raises ``OffloadError`` where that cannot be done.
        """
        raw = _encoded(content)
        first = file_name(stem, content, suffix)
        try:
            for folder in (self._store, self._root):  # conversations: nobody else may read them
                os.makedirs(folder, mode=0o700, exist_ok=True)
            self._require_own_folder()
            for variant in range(1, _MAX_VARIANTS):
                name = first if variant == 1 else f"{first.removesuffix(suffix)}-{variant}{suffix}"
                if self._create(name, raw):
                    return f"{self.prefix}/{name}"
                if self._content(name) == raw:
                    with suppress(OSError, NotImplementedError):  # it is needed still: its age counts from now
                        os.utime(os.path.join(self._root, name), follow_symlinks=False)
                    return f"{self.prefix}/{name}"
        except OSError as error:
            raise OffloadError(_said(error, self._root)) from error
        raise OffloadError(f"{self._root} holds too many changed files of one name; move them away, or give another")

    def erase(self, stem: str) -> int:
        """Remove the files named after *stem*, and return how many there were: for what may no longer be kept.

        A draft that a process left when it was killed goes too.
        """
        file = rf"{re.escape(_slug(stem))}-{_HASH}(-\d+)?\.\w+"
        name_of_stem = re.compile(rf"{file}|\.{file}\.[0-9a-f]{{32}}\.tmp")
        erased = 0
        try:
            for name in self._listed(name_of_stem.fullmatch):
                os.unlink(os.path.join(self._root, name))
                erased += 1
        except FileNotFoundError:  # no folder yet, or somebody else was faster
            return erased
        except OSError as error:
            raise OffloadError(_said(error, self._root)) from error
        return erased

    def delete(self) -> int:
        """Remove all files of the chat and return how many there were. Files that somebody else put into its folder
        stay. Raises ``OffloadError`` where one cannot be removed."""
        return _removed(self._root, None)

    def expire(self, older_than: timedelta, *, now: datetime | None = None) -> int:
        """Remove the chat's files that nobody has written, or written again, for longer than *older_than*; return how
        many there were. *now*: by default, now. Raises ``OffloadError`` where one cannot be removed."""
        return _removed(self._root, _before(older_than, now))

    def belong_to(self, memory: Memory) -> None:
        """Have the files removed when *memory*'s session is purged: its log says so from now on. A preset for a
        compactor does it before it writes any. Raises ``StoreError``."""
        facts = {"session": memory.session_id, "folder": self._root}
        if memory in self._owners:
            return
        journal = memory.journal("")
        if all(dict(known) != facts for known in journal.notes(FILES_KEPT)):
            journal.note(FILES_KEPT, facts)
        self._owners.add(memory)

    def on_event(self, event: Event) -> None:
        """Erase the files of what was redacted: for ``memory.on_event(files.on_event)``, where no preset does it.

        Raises ``OffloadError`` where a file cannot be removed, after it has tried all of them.
        """
        if isinstance(event, Redacted):
            for error in self._erased(event.references).values():
                raise error

    def watch(self, memory: Memory) -> None:
        """Erase the files of what was redacted in *memory*, and from now on of what will be, by whichever process; a
        memory that is watched already is not twice.

        Tells ``FilesNotErased`` there of files that cannot be removed; to redact again is to try again.
        """
        if memory in self._watched:
            return
        self._watched.add(memory)

        def erase(references: Iterable[str]) -> None:
            if failed := self._erased(references):
                (*_, error) = failed.values()
                memory.emit(FilesNotErased(session=memory.session_id, references=tuple(failed), error=str(error)))

        def on_event(event: Event) -> None:
            if isinstance(event, Redacted):
                erase(event.references)

        memory.on_event(on_event)
        try:
            erase(memory.redacted())  # while nobody watched
        except StoreError as error:
            told = f"what was redacted before could not be read, make the compactor anew: {error}"
            memory.emit(FilesNotErased(session=memory.session_id, references=(), error=told))

    def _erased(self, references: Iterable[str]) -> dict[str, OffloadError]:
        """Erase the files of *references*, and return those that failed."""
        failed = {}
        for reference in references:
            try:
                self.erase(reference)
            except OffloadError as error:
                failed[reference] = error
        return failed

    def _create(self, name: str, raw: bytes) -> bool:
        """Make the file with all of its content; False where there is one of that name."""
        target = os.path.join(self._root, name)
        if os.path.lexists(target):
            return False
        draft = os.path.join(self._root, f".{name}.{uuid4().hex}.tmp")  # by its name, to be erased with the file
        try:
            with open(draft, "xb", opener=_private) as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            return _moved(draft, target)
        finally:
            with suppress(OSError):
                os.unlink(draft)

    # -- reading, also by a model -------------------------------------------------------------------------------------

    def read_file(
        self, path: str | os.PathLike[str], offset: int | None = 0, limit: int | None = None, column: int | None = 0
    ) -> str:
        """Return lines of a file from *offset* on, counted from 0, at most *limit*, under a line that says which.

        Bounded: where more is left, the first line says how to go on. *column* passes over the beginning of the first
        of the lines, for one that is longer than an answer. What cannot be done is said in the answer, as by ``call``.
        """
        return self.call("read_file", {"path": _text_of_path(path), "offset": offset, "limit": limit, "column": column})

    def _read_file(self, path: str, offset: int = 0, limit: int | None = None, column: int = 0) -> str:
        name = self._name_in(path)
        text = None if name is None else self._text(name)
        if text is None:
            return f"Error: {_shown(path)} is no file that can be read here; {self._hint()}."
        lines = text.split("\n")
        offset, column = max(offset, 0), max(column, 0)
        if offset >= len(lines):
            return f"Error: {name} has {len(lines)} lines, counted from 0; give a smaller offset."
        most = MAX_LINES if limit is None else min(max(limit, 1), MAX_LINES)
        shown, stop, at = page(lines, offset, offset + most, column)
        more = "this is the end"
        if stop < len(lines):
            more = f"go on with offset={stop}" + (f" and column={at}" if at else "")
        last = stop if at else stop - 1
        return f"[file {name}: lines {offset} to {last} of {len(lines)}, counted from 0; {more}]\n{shown}"

    def messages(self, path: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Return the messages of an archive, as they were. Raises ``OffloadError`` where *path* is none."""
        given = _text_of_path(path)
        name = self._name_in(given) if isinstance(given, str) else None
        text = None if name is None else self._text(name)
        if text is None:
            raise OffloadError(f"{_shown(str(given))} is no file that can be read here; {self._hint()}")
        try:
            return messages_in(text)
        except NotAnArchive as error:
            raise OffloadError(f"{name}: {error}") from error

    def grep(
        self,
        pattern: str,
        path: str | os.PathLike[str] | None = "",
        glob: str | None = "",
        limit: int | None = MAX_MATCHES,
    ) -> str:
        """Return the lines that hold *pattern*, a literal text, in any case of letters.

        *path* is one file; or empty, the chat's folder or the store's, for all of the chat. *glob* chooses among their
        names. Takes no longer than the time of one search, and says so where that was not enough.
        """
        return self.call("grep", {"pattern": pattern, "path": _text_of_path(path), "glob": glob, "limit": limit})

    def _grep(self, pattern: str, path: str = "", glob: str = "", limit: int = MAX_MATCHES) -> str:
        if not pattern or len(pattern) > LONGEST_PATTERN:
            return f"Error: pattern must be a text of 1 to {LONGEST_PATTERN} characters."
        names = self._searched(path, glob)
        if not names:
            return f"Error: there is no such file to search; {self._hint()}."
        limit = min(max(limit, 1), MAX_MATCHES)
        found: list[str] = []
        size, more = 0, ""
        try:
            for line in self._lines_with(pattern, names):
                size += len(line) + 1
                if len(found) == limit or size > LONGEST_ANSWER:
                    more = "; there are more, give a longer pattern or one file as path"
                    break
                found.append(line)
        except TimeOver:
            more = f"; stopped after {self._search_seconds:g} seconds, give one file as path, or a shorter pattern"
        named = [name for name in names if pattern.lower() in name.lower()]
        if not found and not more and named:
            more = f"; it stands in the names of {len(named)} files, among them {', '.join(named[:5])}"
        elif not found and not more and _LOOKS_LIKE_REGEX.search(pattern):
            more = "; the pattern is taken literally, give a text that stands there as it is"
        heading = f"[grep: {len(found)} lines with the pattern, counted from 0, in {len(names)} files{more}]"
        return "\n".join([heading, *found])

    def _lines_with(self, pattern: str, names: list[str]) -> Iterator[str]:
        until = self._monotonic() + self._search_seconds
        for name in names:
            for number, line in lines_with(pattern, self._text(name) or "", lambda: self._monotonic() > until):
                yield f"{name}: line {number}: {line}"

    def _searched(self, path: str, glob: str) -> list[str]:
        """Return the names of the files meant, in order."""
        names = self._names()
        if not self._is_folder(path):
            only = self._name_in(path)
            names = [name for name in names if name == only]
        # A pattern of file names becomes a regular expression; a short one over short names is quick whatever it is.
        glob = glob[:LONGEST_PATTERN]
        return [name for name in names if not glob or fnmatchcase(name, glob)]

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the schemas of ``read_file`` and ``grep`` in OpenAI's format."""
        return schemas()

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call: *arguments* as it wrote them, JSON in a string, or read already.

        Of bounded length. What is wrong with a call is said in the answer, which begins with ``Error:``.
        """
        if name not in OFFLOAD_TOOLS:
            return f"Error: there is no such tool; there are {', '.join(OFFLOAD_TOOLS)}."
        try:
            given = given_fields(name, arguments)
        except Refused as refused:
            return f"Error: {refused}."
        return self._read_file(**given) if name == "read_file" else self._grep(**given)

    # -- the folder ---------------------------------------------------------------------------------------------------

    def _require_own_folder(self) -> None:
        if not self._is_own_folder():
            raise OffloadError(
                f"{self._root} leads to another place, and nothing was written there;"
                " remove the link, or give another chat_id"
            )

    def _is_own_folder(self) -> bool:
        return os.path.realpath(self._root) == os.path.join(os.path.realpath(self._store), self._folder)

    def _names(self) -> list[str]:
        """Return the names of the files there are; none where the folder cannot be read."""
        try:
            return self._listed(_is_readable)
        except OSError:
            return []

    def _listed(self, is_meant: Callable[[str], object]) -> list[str]:
        if not self._is_own_folder():
            return []
        with os.scandir(self._root) as entries:
            return sorted(
                entry.name for entry in entries if is_meant(entry.name) and entry.is_file(follow_symlinks=False)
            )

    @once
    def _folders(self) -> tuple[str, ...]:
        """How the chat's folder may be named, longest first: as the messages name it, or as the host knows it. The
        folder of all chats means the same: to a model there is no other chat."""
        given = self.prefix.rpartition("/")[0] or "/"
        here = self._store.removeprefix(os.path.join(self._begun_in, ""))  # as from the working directory
        stores = (self._store, given, here)
        folders = (*stores, *(f"{store}/{self._folder}" for store in stores), self._folder)
        return tuple(sorted({_plain(folder) for folder in folders}, key=len, reverse=True))

    def _is_folder(self, path: str) -> bool:
        return _plain(path) in ("", *self._folders)

    def _name_in(self, path: str) -> str | None:
        """Return the name of the file in the folder that *path* means; None where it means anything else."""
        given = _plain(path)
        for folder in self._folders:
            if given.startswith(f"{folder}/"):
                given = given.removeprefix(f"{folder}/")
                break
        return given if _is_readable(given) else None

    def _text(self, name: str) -> str | None:
        """Return what a file holds; None where it cannot be read."""
        try:
            raw = self._content(name) if self._is_own_folder() else None
        except OSError:
            return None
        if raw is None:
            return None
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return raw.decode("utf-8", "replace")

    def _content(self, name: str) -> bytes | None:
        """Return the bytes of a regular file in the folder; None for a link, a pipe or anything else."""
        target = os.path.join(self._root, name)
        if not stat.S_ISREG(os.lstat(target).st_mode):
            return None
        # Should it have become something else since: a link is not followed, and a pipe is not waited for.
        flags = os.O_RDONLY
        for flag in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
            flags |= getattr(os, flag, 0)
        with open(os.open(target, flags), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None

    def _hint(self) -> str:
        names = self._names()
        if not names:
            return "no file has been kept here yet"
        shown = ", ".join(names[:10])
        return f"there are {len(names)} files, among them {shown}" if len(names) > 10 else f"there are {shown}"


def expire_files(store_dir: str | os.PathLike[str], older_than: timedelta, *, now: datetime | None = None) -> int:
    """Remove the files of all chats below *store_dir* that nobody has written, or written again, for longer than
    *older_than*; return how many there were. Raises ``OffloadError`` where one cannot be removed."""
    before, removed = _before(older_than, now), 0
    try:
        with suppress(FileNotFoundError), os.scandir(given_path("store_dir", store_dir)) as entries:
            folders = [one.path for one in entries if one.is_dir(follow_symlinks=False)]
            removed = sum(_removed(os.path.abspath(folder), before) for folder in folders)
    except OSError as error:
        raise OffloadError(_said(error, os.fspath(store_dir))) from error
    return removed


def _before(older_than: timedelta, now: datetime | None) -> float:
    if not isinstance(older_than, timedelta):
        raise TypeError(f"older_than is a time, such as timedelta(days=30), not {type(older_than).__name__}")
    return ((utc_now() if now is None else now) - older_than).timestamp()


def _removed(folder: str, before: float | None) -> int:
    try:
        return remove_files(folder, before=before)
    except OSError as error:
        raise OffloadError(_said(error, folder)) from error


def _shown(text: str) -> str:
    """Return *text*, which somebody sent, for a message: short, and on one line."""
    return ascii(text if len(text) <= 80 else f"{text[:80]}...")


def _text_of_path(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _plain(path: str) -> str:
    """Return *path* with strokes one way and without what says nothing: ``./`` before it, a stroke behind it."""
    plain = path.replace("\\", "/").rstrip("/")
    while plain.startswith("./"):
        plain = plain[2:].lstrip("/")
    return "" if plain == "." else plain


def _is_readable(name: str) -> bool:
    return _READABLE.fullmatch(name) is not None and not _is_device(name)


def _private(path: str, flags: int) -> int:
    """Open a file that is readable by its owner alone: for ``open(opener=...)``."""
    return os.open(path, flags, 0o600)


def _moved(draft: str, target: str) -> bool:
    """Give *draft* the name *target* in one step; False where that is taken."""
    try:
        os.link(draft, target)  # unlike a renaming, never takes the place of what is there
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
    else:
        return True
    # A file system without hard links: claim the name first.
    try:
        with open(target, "xb", opener=_private):
            pass
    except FileExistsError:
        return False
    os.replace(draft, target)
    return True


def _said(error: OSError, folder: str) -> str:
    """Return what went wrong, with the remedy."""
    if error.errno in _NO_ROOM:
        return f"no room left for files in {folder}; free some, or give another store_dir"
    if error.errno in _NO_LEAVE:
        return f"files in {folder} may not be written; allow it, or give another store_dir"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return f"{folder} cannot be a folder, since a file stands in the way; give another store_dir"
    return f"files in {folder} cannot be written ({error.strerror}); give another store_dir"
