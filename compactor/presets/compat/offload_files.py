"""Payloads as files, in one folder for each chat: written once, never overwritten, read in pages and searched by two
tools.

A path is never built from an id as it came: unusual characters are replaced, and a hash of the id, or of the content,
tells apart ids that then look alike. The tools reach nothing outside of the folder, whatever path a model gives, and
answer a bad request with a remedy.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4
from weakref import WeakSet

from memory import ContextError, Event, Memory, Redacted, Rewound, StoreError
from memory.arguments import ConfigError, require
from memory.log.rewind import is_undone
from memory.recall import MAX_NUMBER, Parameters, Refused, make_schema, read_arguments, read_number, read_text
from memory.references import find_ceil_boundary, find_floor_boundary, fold_case, make_reference
from memory.rounds import utc_now
from memory.stores.retention import FILES_KEPT, remove_files

from .messages import NotAnArchive, read_archive

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionFunctionToolParam

StrPath = str | os.PathLike[str]

#: Seconds that one search may take.
SEARCH_SECONDS = 2.0
#: Maximum characters of an answer: about 1,500 tokens, so that it is not offloaded again at once.
MAX_ANSWER = 6_000
#: Maximum lines of ``read_file`` and matches of ``grep``; also their defaults.
MAX_LINES, MAX_MATCHES = 1_000, 100
#: Maximum characters of a pattern, and of the text shown on either side of a match in a long line.
MAX_PATTERN, MAX_AROUND = 200, 80
#: Maximum files of one stem and hash; they differ only if somebody has changed one.
_MAX_VARIANTS = 100

#: A chat id of this form names its own folder, also on file systems that ignore case.
_PLAIN_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_READABLE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,149}", re.ASCII)
#: Names that Windows takes for a device, with any ending.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))]
)
#: The folder without a chat id; no id has it.
_NO_CHAT = "_"
_LOOKS_LIKE_REGEX = re.compile(r"\.[*+?]|\\[a-zA-Z.]|[|^$\[\]]")
_NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
_NOT_PERMITTED = {errno.EACCES, errno.EPERM, errno.EROFS}

#: Of each tool the description and the parameters: JSON type, whether it is required, and its meaning.
_TOOLS: dict[str, tuple[str, Parameters]] = {
    "read_file": (
        "Return lines of a file to which a long text of this conversation was moved. Use it when you need the exact"
        " words, numbers or ids.",
        {
            "path": ("string", True, "The file, as the message names it that stands for the text."),
            "offset": ("integer", False, "Line to start at, counted from 0, which is the default."),
            "limit": ("integer", False, f"Most lines to return: {MAX_LINES} by default and at most."),
            "column": ("integer", False, "Characters of the first line to pass over: an answer says when to give it."),
        },
    ),
    "grep": (
        "Search the files to which long texts of this conversation were moved. Returns the lines that hold the"
        " pattern, with the names of their files and their numbers, counted from 0 as read_file takes them.",
        {
            "pattern": ("string", True, "Literal text to look for, capitals or not; no regular expression."),
            "path": ("string", False, "The one file to search. Default: all."),
            "glob": ("string", False, "Which files, by their names, such as *.json. Default: all."),
            "limit": ("integer", False, f"Most lines to return: {MAX_MATCHES} by default and at most."),
        },
    ),
}
#: Names of parameters in prompts of other systems.
_OTHER_NAMES = {"absolute_path": "path"}
#: The name of a file with the text of a post.
_NAME_OF_POST = re.compile(r"r(\d+)-p(\d+)-[0-9a-f]{16}(?:-\d+)?\.\w+", re.ASCII)
_ANSWER = re.compile(r"\[(?:file [\w.-]+: lines |grep: )")


class OffloadError(ContextError):
    """A payload could not be written as a file: no part of it exists, and the messages are unchanged."""


class FilesNotErased(Event):
    """Files still hold text that was redacted or undone; redact it again once they can be removed."""

    name: ClassVar[str] = "offload.not_erased"
    level: ClassVar[str] = "warning"
    #: ``r3.p2``, or ``r3.p0`` for the user's query.
    references: tuple[str, ...]
    #: The error of the last file, with the remedy.
    error: str


def make_folder_name(chat_id: str) -> str:
    """Return the name of a chat's folder: the id itself if it has only lower-case letters, digits, ``-`` and ``_``."""
    if not chat_id:
        return _NO_CHAT
    if _PLAIN_ID.fullmatch(chat_id) and not _is_device(chat_id):
        return chat_id
    return f"{_slugify(chat_id)}.{_hash(_encode(chat_id))}"  # no plain id has a dot


def make_file_name(stem: str, content: str, suffix: str = ".txt") -> str:
    """Return the file name for *content*: the readable part of *stem* and a hash, so equal content has one name."""
    return f"{_slugify(stem)}-{_hash(_encode(content))}{suffix}"


def is_file_answer(text: str) -> bool:
    """Return whether *text* looks like an answer of one of the tools."""
    return len(text) <= 2 * MAX_ANSWER and _ANSWER.match(text) is not None


def _slugify(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text[:200].lower(), flags=re.ASCII).strip("-")[:40].strip("-") or "payload"


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # lone surrogates come back as they were


def _is_device(name: str) -> bool:
    return name.partition(".")[0].rstrip(" ").lower() in _DEVICES


def _is_readable(name: str) -> bool:
    return _READABLE.fullmatch(name) is not None and not _is_device(name)


class OffloadFiles:
    """The files of one chat, in a folder of its own below *store_dir*; the constructor touches no disk.

    ``tools()`` and ``call(name, arguments)`` offer ``read_file`` and ``grep`` to a model. Both see only the regular
    files directly in the folder and follow no symbolic link.
    """

    def __init__(
        self,
        store_dir: StrPath,
        chat_id: str = "",
        *,
        search_seconds: float = SEARCH_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        require("chat_id", chat_id, str, "a text")
        given = _check_path(store_dir)
        self._store = os.path.abspath(given)  # a later change of the working directory moves nothing
        self._folder = make_folder_name(chat_id)
        self._root = os.path.join(self._store, self._folder)
        begun_in = ""
        with suppress(OSError):  # the working directory may be deleted; an absolute path works all the same
            begun_in = os.getcwd()
        #: The beginning of every path: *store_dir* as it was given, and the chat's folder.
        self.prefix = f"{given.replace(os.sep, '/').rstrip('/')}/{self._folder}"
        here = self._store.removeprefix(os.path.join(begun_in, ""))  # relative to the working directory
        stores = (self._store, self.prefix.rpartition("/")[0] or "/", here)
        folders = {*stores, *(f"{store}/{self._folder}" for store in stores), self._folder}
        #: All names of the folder. That of all chats means the same: a model knows no other chat.
        self._folders = {*map(_normalize, folders)}
        self._watched: WeakSet[Memory] = WeakSet()
        self._owners: WeakSet[Memory] = WeakSet()
        self._search_seconds = search_seconds
        self._monotonic = monotonic

    # -- writing and erasing ------------------------------------------------------------------------------------------

    def make_path(self, stem: str, content: str, suffix: str = ".txt") -> str:
        """Return the path that ``write`` would return, unless somebody has changed that file."""
        return f"{self.prefix}/{make_file_name(stem, content, suffix)}"

    def write(self, stem: str, content: str, suffix: str = ".txt") -> str:
        """Write *content* to a file named after *stem*, all or nothing, and return its path for ``read_file``.

        The same content is written once; if somebody has changed its file, that stays, and another file is written.
        Raises ``OffloadError``.
        """
        raw, first = _encode(content), make_file_name(stem, content, suffix)
        with _explain_errors(self._root):
            for folder in (self._store, self._root):  # conversations: nobody else may read them
                os.makedirs(folder, mode=0o700, exist_ok=True)
            if not self._is_own_folder():
                raise OffloadError(f"{self._root} leads to another place; remove the link, or give another chat_id")
            for variant in range(1, _MAX_VARIANTS):
                name = first if variant == 1 else f"{first.removesuffix(suffix)}-{variant}{suffix}"
                if self._create(name, raw):
                    return f"{self.prefix}/{name}"
                if self._read_bytes(name) == raw:
                    with suppress(OSError, NotImplementedError):  # still needed: its age counts from now
                        os.utime(os.path.join(self._root, name), follow_symlinks=False)
                    return f"{self.prefix}/{name}"
        raise OffloadError(f"{self._root} holds too many changed files of one name; move them away, or give another")

    def _create(self, name: str, raw: bytes) -> bool:
        """Create the file with all of its content; return False if the name is taken."""
        target = os.path.join(self._root, name)
        if os.path.lexists(target):
            return False
        draft = os.path.join(self._root, f".{name}.{uuid4().hex}.tmp")  # erase() finds it by the name
        try:
            with open(draft, "xb", opener=_open_private) as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(draft, target)  # unlike a rename, it never replaces a file
            except OSError as error:
                if isinstance(error, FileExistsError) or error.errno in _NO_SPACE:
                    raise
                # A file system without hard links: claim the name first.
                os.close(_open_private(target, os.O_CREAT | os.O_EXCL))
                os.replace(draft, target)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                os.unlink(draft)
        return True

    def erase(self, stem: str) -> int:
        """Remove the files named after *stem*, also drafts of killed processes; return their number."""
        file = rf"{re.escape(_slugify(stem))}-[0-9a-f]{{16}}(-\d+)?\.\w+"
        name_of_stem = re.compile(rf"{file}|\.{file}\.[0-9a-f]{{32}}\.tmp")
        erased = 0
        with _explain_errors(self._root), suppress(FileNotFoundError):  # no folder yet, or another process was faster
            for name in self._list_names(name_of_stem.fullmatch):
                os.unlink(os.path.join(self._root, name))
                erased += 1
        return erased

    def delete(self) -> int:
        """Remove all files of the chat and return their number. Other people's files in its folder stay.

        Raises ``OffloadError`` if one cannot be removed.
        """
        with _explain_errors(self._root):
            return remove_files(self._root)

    def expire(self, older_than: timedelta, *, now: datetime | None = None) -> int:
        """Remove the chat's files that were last written longer than *older_than* before *now*; return their number.

        Raises ``OffloadError`` if one cannot be removed.
        """
        with _explain_errors(self._root):
            return remove_files(self._root, cutoff=_subtract(older_than, now))

    def belong_to(self, memory: Memory) -> None:
        """Have the purge of *memory*'s session remove the files, by an entry in its log. ``context_offload`` calls this
        before it writes any. Raises ``StoreError``."""
        facts = {"session": memory.session_id, "folder": self._root}
        if memory in self._owners:
            return
        journal = memory.journal("")
        if all(dict(known) != facts for known in journal.notes(FILES_KEPT)):
            journal.note(FILES_KEPT, facts)
        self._owners.add(memory)

    def on_event(self, event: Event) -> None:
        """Erase the files of redacted posts: for ``memory.on_event(files.on_event)`` without the preset.

        Tries all files, then raises ``OffloadError`` if one could not be removed.
        """
        for _, error in self._erase_all(event.references if isinstance(event, Redacted) else ()):
            raise error

    def watch(self, memory: Memory) -> None:
        """Erase the files of *memory*'s posts that were redacted or undone, now and whenever any process does so.

        A file stays if a copy of its post was not undone. Emits ``FilesNotErased`` there for files that cannot be
        removed, or not found because the store fails; watching or redacting again tries again.
        """

        def emit(failed: Iterable[str], error: str) -> None:
            memory.emit(FilesNotErased(session=memory.session_id, references=tuple(failed), error=error))

        def erase(references: Iterable[str]) -> None:
            if failed := self._erase_all(references):
                emit((reference for reference, _ in failed), str(failed[-1][1]))

        def erase_undone() -> None:
            try:
                erase(self._list_undone(memory))
            except OffloadError as error:
                emit((), str(error))
            except StoreError as error:
                emit((), f"what was undone could not be read, make the compactor anew: {error}")

        def hear(event: Event) -> None:
            if isinstance(event, Redacted):
                erase(event.references)
            elif isinstance(event, Rewound):
                erase_undone()

        if memory not in self._watched:
            self._watched.add(memory)
            memory.on_event(hear)
        erase_undone()
        try:
            erase(memory.redacted())  # while nobody watched
        except StoreError as error:
            emit((), f"what was redacted before could not be read, make the compactor anew: {error}")

    def _list_undone(self, memory: Memory) -> list[str]:
        """Return the references of undone posts that have files. Raises ``OffloadError`` or ``StoreError``."""
        now = memory.snapshot
        if len(now.hidden) == len(now.failed):
            return []
        with _explain_errors(self._root), suppress(FileNotFoundError):  # no folder yet
            names = map(_NAME_OF_POST.fullmatch, self._list_names(_NAME_OF_POST.fullmatch))
            posts = sorted({(int(name[1]), int(name[2])) for name in names if name is not None})
            return [make_reference(*post) for post in posts if is_undone(now, *post)]
        return []

    def _erase_all(self, references: Iterable[str]) -> list[tuple[str, OffloadError]]:
        """Erase the files of *references*; return those that failed, with the errors."""
        failed = []
        for reference in references:
            try:
                self.erase(reference)
            except OffloadError as error:
                failed.append((reference, error))
        return failed

    # -- reading, also by a model -------------------------------------------------------------------------------------

    def read_file(self, path: StrPath, offset: int | None = 0, limit: int | None = None, column: int | None = 0) -> str:
        """Return at most *limit* lines of a file from *offset* on, counted from 0, below a line that says which.

        If more is left, that line says how to go on. *column* skips the beginning of the first line, for a line that is
        longer than an answer. Errors are answers, as in ``call``.
        """
        return self.call("read_file", {"path": _read_path(path), "offset": offset, "limit": limit, "column": column})

    def grep(
        self, pattern: str, path: StrPath | None = "", glob: str | None = "", limit: int | None = MAX_MATCHES
    ) -> str:
        """Return the lines that contain *pattern*, a literal text, ignoring case.

        *path* is one file; empty, the chat's folder or the store's: all of the chat's files. *glob* selects by name. A
        search that runs out of time says so.
        """
        return self.call("grep", {"pattern": pattern, "path": _read_path(path), "glob": glob, "limit": limit})

    def messages(self, path: StrPath) -> list[dict[str, Any]]:
        """Return the messages of an archive, unchanged. Raises ``OffloadError`` if *path* is not one."""
        try:
            return read_archive(self._find_text(_read_path(path))[1])
        except (Refused, NotAnArchive) as error:
            raise OffloadError(str(error)) from error

    def tools(self) -> list[ChatCompletionFunctionToolParam]:
        """Return the schemas of ``read_file`` and ``grep`` in OpenAI's format, fit for strict mode: optional parameters
        may be null."""
        return [make_schema(name, *tool) for name, tool in _TOOLS.items()]

    def call(self, name: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """Return the answer to a model's call, of bounded length: *arguments* as a JSON string or a mapping.

        A faulty call gets an answer that begins with ``Error:``.
        """
        if name not in _TOOLS:
            return f"Error: there is no such tool; there are {', '.join(_TOOLS)}."
        parameters = _TOOLS[name][1]
        try:
            given = read_arguments(arguments, parameters, _OTHER_NAMES)
            fields: dict[str, Any] = {
                field: read_text(given, field) if kind == "string" else read_number(given, field, None, 0, MAX_NUMBER)
                for field, (kind, required, _) in parameters.items()
                if required or given.get(field) is not None
            }
            return self._answer_read(**fields) if name == "read_file" else self._answer_grep(**fields)
        except Refused as refused:
            return f"Error: {refused}."

    def _answer_read(self, path: str, offset: int = 0, limit: int = MAX_LINES, column: int = 0) -> str:
        name, text = self._find_text(path)
        lines = text.split("\n")
        if offset >= len(lines):
            raise Refused(f"{name} has {len(lines)} lines, counted from 0; give a smaller offset")
        shown, stop, at = _cut_page(lines, offset, offset + min(max(limit, 1), MAX_LINES), column)
        more = "this is the end"
        if stop < len(lines):
            more = f"go on with offset={stop}" + (f" and column={at}" if at else "")
        last = stop if at else stop - 1
        return f"[file {name}: lines {offset} to {last} of {len(lines)}, counted from 0; {more}]\n{shown}"

    def _answer_grep(self, pattern: str, path: str = "", glob: str = "", limit: int = MAX_MATCHES) -> str:
        if not pattern or len(pattern) > MAX_PATTERN:
            raise Refused(f"pattern must be a text of 1 to {MAX_PATTERN} characters")
        names = self._select_names(path, glob)
        if not names:
            raise Refused(f"there is no such file to search; {self._list_hint()}")
        limit = min(max(limit, 1), MAX_MATCHES)
        lines: list[str] = []
        size, more = 0, ""
        try:
            for line in self._search(pattern, names):
                size += len(line) + 1
                if len(lines) == limit or size > MAX_ANSWER:
                    more = "; there are more, give a longer pattern or one file as path"
                    break
                lines.append(line)
        except TimeoutError:
            more = f"; stopped after {self._search_seconds:g} seconds, give one file as path, or a shorter pattern"
        if not lines and not more:
            named = [name for name in names if pattern.lower() in name.lower()]
            if named:
                more = f"; it stands in the names of {len(named)} files, among them {', '.join(named[:5])}"
            elif _LOOKS_LIKE_REGEX.search(pattern):
                more = "; the pattern is taken literally, give a text that stands there as it is"
        heading = f"[grep: {len(lines)} lines with the pattern, counted from 0, in {len(names)} files{more}]"
        return "\n".join([heading, *lines])

    def _search(self, pattern: str, names: Iterable[str]) -> Iterator[str]:
        """Yield the lines that contain *pattern*, ignoring case, with file and number. Raises ``TimeoutError``."""
        wanted, deadline = fold_case(pattern), self._monotonic() + self._search_seconds
        for name in names:
            text = self._read_text(name) or ""
            folded, number, counted, end = fold_case(text), 0, 0, 0
            while self._monotonic() <= deadline and (place := folded.find(wanted, end)) >= 0:
                number += text.count("\n", counted, place)
                counted, behind = place, place + len(wanted)
                begin, end = text.rfind("\n", 0, place) + 1, text.find("\n", behind)
                end = len(text) if end < 0 else end
                # The whole line, or the text around the match in a long one.
                start = max(begin, find_floor_boundary(text, place - MAX_AROUND))
                stop = min(end, find_ceil_boundary(text, behind + MAX_AROUND))
                before = f"(from column {start - begin}) ..." if start > begin else ""
                shown = text[start:stop].replace("\n", " ")
                yield f"{name}: line {number}: {before}{shown}{'...' if stop < end else ''}"
            if self._monotonic() > deadline:
                raise TimeoutError

    def _select_names(self, path: str, glob: str) -> list[str]:
        names = self._list_readable()
        if _normalize(path) not in ("", *self._folders):
            only = self._find_name(path)
            names = [name for name in names if name == only]
        # A glob becomes a regular expression; a short one over short names is always fast.
        glob = glob[:MAX_PATTERN]
        return [name for name in names if not glob or fnmatchcase(name, glob)]

    # -- the folder ---------------------------------------------------------------------------------------------------

    def _is_own_folder(self) -> bool:
        return os.path.realpath(self._root) == os.path.join(os.path.realpath(self._store), self._folder)

    def _list_names(self, is_wanted: Callable[[str], object]) -> list[str]:
        if not self._is_own_folder():
            return []
        with os.scandir(self._root) as entries:
            return sorted(one.name for one in entries if is_wanted(one.name) and one.is_file(follow_symlinks=False))

    def _list_readable(self) -> list[str]:
        """Return the names of the files; none if the folder cannot be read."""
        with suppress(OSError):
            return self._list_names(_is_readable)
        return []

    def _list_hint(self) -> str:
        names = self._list_readable()
        if not names:
            return "no file has been kept here yet"
        count = f"{len(names)} files, among them " if len(names) > 10 else ""
        return f"there are {count}{', '.join(names[:10])}"

    def _find_name(self, path: str) -> str | None:
        """Return the name of the file in the folder that *path* means; None if it means anything else."""
        folder, slash, name = _normalize(path).rpartition("/")
        return name if (not slash or folder in self._folders) and _is_readable(name) else None

    def _find_text(self, path: object) -> tuple[str, str]:
        """Return the name of the file that *path* means, and its text. Raises ``Refused``."""
        name = self._find_name(path) if isinstance(path, str) else None
        text = None if name is None else self._read_text(name)
        if name is None or text is None:
            raise Refused(f"{str(path)[:80]!a} is no file that can be read here; {self._list_hint()}")
        return name, text

    def _read_text(self, name: str) -> str | None:
        raw = None
        with suppress(OSError):
            raw = self._read_bytes(name) if self._is_own_folder() else None
        try:
            return None if raw is None else raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None if raw is None else raw.decode("utf-8", "replace")

    def _read_bytes(self, name: str) -> bytes | None:
        """Return the bytes of a regular file in the folder; None for a link, a pipe or anything else."""
        target = os.path.join(self._root, name)
        if not stat.S_ISREG(os.lstat(target).st_mode):
            return None
        # Should it have become a link or a pipe since: follow none, and wait for none.
        flags = [getattr(os, flag, 0) for flag in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")]
        with open(os.open(target, os.O_RDONLY | sum(flags)), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def expire_files(store_dir: StrPath, older_than: timedelta, *, now: datetime | None = None) -> int:
    """Remove the files of all chats below *store_dir* that were last written longer than *older_than* before *now*;
    return their number. Raises ``OffloadError`` if one cannot be removed."""
    before, store = _subtract(older_than, now), _check_path(store_dir)
    folders: list[str] = []
    with _explain_errors(store):
        with suppress(FileNotFoundError), os.scandir(store) as entries:
            folders = [os.path.abspath(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
        return sum(remove_files(folder, cutoff=before) for folder in folders)


def _check_path(store_dir: StrPath) -> str:
    """Return the path of a folder that messages can name: one line, without lone surrogates."""
    path = os.fspath(store_dir) if isinstance(store_dir, os.PathLike) else store_dir
    require("store_dir", path, str, "the path of a folder, a str or a Path")
    if not path:
        raise ConfigError(("store_dir", "is empty; give the path of a folder, or None to write no files"))
    if any(unicodedata.category(one) in ("Cc", "Cs") for one in path):
        raise ConfigError(("store_dir", f"{path[:80]!a} has characters that no message can name; give another path"))
    return path


def _subtract(older_than: timedelta, now: datetime | None) -> float:
    require("older_than", older_than, timedelta, "a time, such as timedelta(days=30)")
    return ((utc_now() if now is None else now) - older_than).timestamp()


def _cut_page(lines: list[str], start: int, stop: int, column: int) -> tuple[str, int, int]:
    """Return the text of *lines* from *start* to before *stop* that fits an answer, then the line and the column where
    the next page begins. *column* skips the beginning of the first line; a line longer than an answer is cut."""
    text = "\n".join([lines[start][column:], *lines[start + 1 : stop]])
    if len(text) <= MAX_ANSWER:
        return text, min(stop, len(lines)), 0
    end = text.rfind("\n", 0, MAX_ANSWER + 1)
    if end >= 0:
        return text[:end], start + text.count("\n", 0, end) + 1, 0
    end = find_floor_boundary(text, MAX_ANSWER)
    return text[:end], start, column + end


def _read_path(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _normalize(path: str) -> str:
    """Return *path* with forward slashes, without leading ``./`` and trailing slashes."""
    plain = path.replace("\\", "/").rstrip("/")
    while plain.startswith("./"):
        plain = plain[2:].lstrip("/")
    return "" if plain == "." else plain


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read: for ``open(opener=...)``."""
    return os.open(path, flags, 0o600)


@contextmanager
def _explain_errors(folder: str) -> Iterator[None]:
    """Raise ``OffloadError`` with the remedy for an ``OSError`` with *folder*."""
    try:
        yield
    except OSError as error:
        fault = f"files in {folder} cannot be written ({error.strerror})"
        if error.errno in _NO_SPACE:
            fault = f"no room left for files in {folder}; free some"
        elif error.errno in _NOT_PERMITTED:
            fault = f"files in {folder} may not be written; allow it"
        elif isinstance(error, NotADirectoryError | FileExistsError):
            fault = f"{folder} cannot be a folder, since a file stands in the way"
        raise OffloadError(f"{fault}; give another store_dir") from error
