"""Where an archive lies: a folder of this machine, or any file system that fsspec knows. Keys are ``folder/name``."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import ContextError, StoreError, StoreFull, StoreReadOnly
from ..patterns import compile_later

#: The keys of our objects and of unfinished ones; everything else in the place is not ours.
_OURS = compile_later(r"[0-9a-f]{64}/[0-9a-f]{64}\.jsonl\.gz(\.part)?", re.ASCII)
_SCHEME = compile_later(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)", re.ASCII)
#: Bytes that are fetched ahead of a reader, who often wants the first line alone.
_BLOCK = 1 << 18


class Storage(Protocol):
    """The few things that an archive asks of a place. Each may raise ``OSError``."""

    def write(self, key: str) -> Any:
        """Provide, in a ``with`` block, a binary file that replaces *key*; durable at its end, deleted if it fails."""

    def open(self, key: str) -> IO[bytes]:
        """Return the object for reading. Raises ``FileNotFoundError``."""

    def rename(self, key: str, new: str) -> None:
        """Move an object, replacing *new*; durably."""

    def delete(self, key: str) -> bool:
        """Delete an object, and return whether there was one."""

    def keys(self, folder: str | None = None) -> list[str]:
        """Return the keys of our objects and unfinished ones in *folder*, or in all, sorted, as they are now."""


def open_storage(where: str | os.PathLike[str]) -> Storage:
    """Return the place at *where*, a path or a URL. Raises ``StoreError`` if nothing here can reach it."""
    url = os.fspath(where)
    if not isinstance(url, str) or not url or "\0" in url:
        raise StoreError("an archive is at a path or a URL, such as /srv/archive or s3://bucket/chats")
    if not _SCHEME.match(url):
        return LocalStorage(url)
    if url.startswith("file://"):
        return LocalStorage(url2pathname(urlsplit(url).path))
    return FsspecStorage(url)


@contextmanager
def name_faults(where: str | os.PathLike[str]) -> Iterator[None]:
    """Raise ``StoreError`` with the place and the remedy instead of ``OSError``, or of any error of a driver's own. No
    password in a URL is shown."""
    try:
        yield
    except ContextError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _SCHEME.match(os.fspath(where)):
            raise
        place = re.sub(r"//[^/]*@", "//", os.fspath(where)).partition("?")[0]
        kinds = {errno.ENOSPC: StoreFull, errno.EACCES: StoreReadOnly, errno.EROFS: StoreReadOnly}
        kind, what = kinds.get(getattr(error, "errno", None) or 0, StoreError), getattr(error, "strerror", None)
        raise kind(
            f"the archive {place[:200]!r} failed ({what or type(error).__name__}); no session was lost: check the place"
            " and who may write there, and run this again"
        ) from error


class LocalStorage:
    """A folder. Only the owner can read what is made in it: folders 0700, files 0600."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, *key.split("/"))

    @contextmanager
    def write(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        os.makedirs(self._root, 0o700, exist_ok=True)
        if not os.path.isdir(folder := os.path.dirname(path)):
            os.makedirs(folder, 0o700, exist_ok=True)
            _sync_folder(self._root)
        self.delete(key)  # another inode: a process that is late writes into none of ours
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise

    def open(self, key: str) -> IO[bytes]:
        return open(self._path(key), "rb")

    def rename(self, key: str, new: str) -> None:
        os.replace(self._path(key), self._path(new))
        _sync_folder(os.path.dirname(self._path(new)))

    def delete(self, key: str) -> bool:
        with suppress(FileNotFoundError):
            os.unlink(self._path(key))
            _sync_folder(os.path.dirname(self._path(key)))
            return True
        return False

    def keys(self, folder: str | None = None) -> list[str]:
        found: list[str] = []
        with suppress(FileNotFoundError):
            for one in os.listdir(self._root) if folder is None else [folder]:
                with suppress(FileNotFoundError, NotADirectoryError):
                    found += [f"{one}/{name}" for name in os.listdir(os.path.join(self._root, one))]
        return sorted(key for key in found if _OURS.fullmatch(key))


def _sync_folder(path: str) -> None:
    """Make renames and deletions in a folder survive a power cut, where folders can be opened."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FsspecStorage:
    """Anything that fsspec reaches by a URL: S3, GCS, Azure, SFTP. Keys and options are those of its configuration."""

    def __init__(self, url: str) -> None:
        scheme = url.partition(":")[0]
        try:
            from fsspec.core import url_to_fs

            self._files, root = url_to_fs(url)
        except ImportError as error:
            raise StoreError(
                f"an archive at {scheme}: needs fsspec and its driver for it ({error.name or error}); install"
                " context-compactor[archive] and the driver, such as s3fs, or give a path of this machine"
            ) from error
        except ValueError as error:  # its text may hold the whole URL
            raise StoreError(f"fsspec has no file system for {scheme}:, or not by this URL; correct it") from error
        self._root = root.rstrip("/")

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def write(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        try:
            file = self._files.open(path, "wb")
        except FileNotFoundError:  # not before: S3's driver would make a bucket of a mistyped name
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self._files.open(path, "wb")
        try:
            with file:
                yield file
        except BaseException:
            with suppress(Exception):  # a driver's own
                self._files.rm_file(path)
            raise

    def open(self, key: str) -> IO[bytes]:
        file: IO[bytes] = self._files.open(self._path(key), "rb", block_size=_BLOCK)
        return file

    def rename(self, key: str, new: str) -> None:
        self.delete(new)  # not every file system replaces
        self._files.mv(self._path(key), self._path(new))

    def delete(self, key: str) -> bool:
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):
            self._files.info(self._path(key))  # exists() says no for every error, and S3 deletes what is not there
            self._files.rm_file(self._path(key))
            return True
        return False

    def keys(self, folder: str | None = None) -> list[str]:
        self._files.invalidate_cache()
        folders = self._names(self._root) if folder is None else [folder]
        keys = (f"{one}/{name}" for one in folders for name in self._names(self._path(one)))
        return sorted(key for key in keys if _OURS.fullmatch(key))

    def _names(self, path: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            # Not find(): it leaves out what it fails to list.
            return [one.rstrip("/").rpartition("/")[2] for one in self._files.ls(path, detail=False)]
        return []
