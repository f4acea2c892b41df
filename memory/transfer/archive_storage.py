"""Storage for archives: a local folder, or any file system that fsspec supports. Keys are ``folder/name``."""

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

#: Keys of finished and unfinished objects. All other files in the archive's folder are ignored.
_OURS = compile_later(r"[0-9a-f]{64}/[0-9a-f]{64}\.jsonl\.gz(\.part)?", re.ASCII)
_SCHEME = compile_later(r"[A-Za-z][A-Za-z0-9+.-]+(::|://)", re.ASCII)
#: Bytes to read ahead. Small, because many readers need only the first line.
_BLOCK = 1 << 18


class Storage(Protocol):
    """The operations that an archive needs. Each may raise ``OSError``."""

    def check(self) -> None:
        """Raise ``StoreError`` if it is a folder that does not exist. Object storage has no folders."""

    def write(self, key: str) -> Any:
        """Return a context manager with a binary file that replaces *key*: durable on exit, deleted on failure."""

    def open(self, key: str) -> IO[bytes]:
        """Return the object for reading. Raises ``FileNotFoundError``."""

    def rename(self, key: str, new: str) -> None:
        """Rename an object durably, replacing *new*."""

    def delete(self, key: str) -> bool:
        """Delete an object, and return whether it existed."""

    def list_keys(self, folder: str | None = None) -> list[str]:
        """Return the sorted keys of finished and unfinished objects in *folder*, or in all folders, without caching."""


def open_storage(where: str | os.PathLike[str]) -> Storage:
    """Return the storage at *where*, a path or a URL. Raises ``StoreError`` if it is invalid or lacks a driver."""
    url = os.fspath(where)
    if not isinstance(url, str) or not url or "\0" in url:
        raise StoreError("name the archive by a path or a URL, such as /srv/archive or s3://bucket/chats")
    if not _SCHEME.match(url):
        return LocalStorage(url)
    if url.startswith("file://"):
        return LocalStorage(url2pathname(urlsplit(url).path))
    return FsspecStorage(url)


@contextmanager
def convert_errors(where: str | os.PathLike[str]) -> Iterator[None]:
    """Convert ``OSError`` and a driver's own errors to ``StoreError``, with place and remedy. Hides passwords in a
    URL."""
    try:
        yield
    except ContextError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _SCHEME.match(os.fspath(where)):
            raise
        shown = re.sub(r"//[^/]*@", "//", os.fspath(where)).partition("?")[0]
        kinds = {errno.ENOSPC: StoreFull, errno.EACCES: StoreReadOnly, errno.EROFS: StoreReadOnly}
        kind, what = kinds.get(getattr(error, "errno", None) or 0, StoreError), getattr(error, "strerror", None)
        raise kind(
            f"the archive {shown[:200]!r} failed ({what or type(error).__name__}); no session was lost: check that it"
            " exists and that you may write to it, and run this again"
        ) from error


class LocalStorage:
    """A folder. Only the owner can read the folders (0700) and files (0600) made in it."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    def check(self) -> None:
        if not os.path.isdir(self._root):
            raise StoreError(f"there is no archive at {self._root!r}: correct the path, or make that folder")

    def _make_path(self, key: str) -> str:
        return os.path.join(self._root, *key.split("/"))

    @contextmanager
    def write(self, key: str) -> Iterator[IO[bytes]]:
        path = self._make_path(key)
        os.makedirs(self._root, 0o700, exist_ok=True)
        if not os.path.isdir(folder := os.path.dirname(path)):
            os.makedirs(folder, 0o700, exist_ok=True)
            _sync_folder(self._root)
        self.delete(key)  # a new inode: a slow process still writes to its own
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
        return open(self._make_path(key), "rb")

    def rename(self, key: str, new: str) -> None:
        os.replace(self._make_path(key), self._make_path(new))
        _sync_folder(os.path.dirname(self._make_path(new)))

    def delete(self, key: str) -> bool:
        with suppress(FileNotFoundError):
            os.unlink(self._make_path(key))
            _sync_folder(os.path.dirname(self._make_path(key)))
            return True
        return False

    def list_keys(self, folder: str | None = None) -> list[str]:
        found: list[str] = []
        with suppress(FileNotFoundError):
            for one in os.listdir(self._root) if folder is None else [folder]:
                with suppress(FileNotFoundError, NotADirectoryError):
                    found += [f"{one}/{name}" for name in os.listdir(os.path.join(self._root, one))]
        return sorted(key for key in found if _OURS.fullmatch(key))


def _sync_folder(path: str) -> None:
    """Make renames and deletions in a folder survive a power cut. POSIX only: elsewhere folders cannot be opened."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FsspecStorage:
    """A file system that fsspec reaches: S3, GCS, Azure, SFTP. Credentials and options are in its configuration."""

    def __init__(self, url: str) -> None:
        scheme = url.partition(":")[0]
        try:
            from fsspec.core import url_to_fs

            self._files, root = url_to_fs(url)
        except ImportError as error:
            raise StoreError(
                f"an archive at {scheme}: needs fsspec and a driver ({error.name or error}); install"
                " context-compactor[archive] and the driver, such as s3fs, or give a local path"
            ) from error
        except ValueError as error:  # its text may contain the whole URL
            raise StoreError(f"fsspec does not support {scheme}:, or the URL is invalid; correct it") from error
        self._root = root.rstrip("/")

    def check(self) -> None:
        pass

    def _make_path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def write(self, key: str) -> Iterator[IO[bytes]]:
        path = self._make_path(key)
        try:
            file = self._files.open(path, "wb")
        except FileNotFoundError:  # only then: S3's driver would create a bucket from a mistyped name
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self._files.open(path, "wb")
        try:
            with file:
                yield file
        except BaseException:
            with suppress(Exception):  # drivers raise errors of their own
                self._files.rm_file(path)
            raise

    def open(self, key: str) -> IO[bytes]:
        file: IO[bytes] = self._files.open(self._make_path(key), "rb", block_size=_BLOCK)
        return file

    def rename(self, key: str, new: str) -> None:
        self.delete(new)  # not every file system replaces on a move
        self._files.mv(self._make_path(key), self._make_path(new))

    def delete(self, key: str) -> bool:
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):
            self._files.info(self._make_path(key))  # exists() hides errors, and S3 "deletes" missing keys
            self._files.rm_file(self._make_path(key))
            return True
        return False

    def list_keys(self, folder: str | None = None) -> list[str]:
        self._files.invalidate_cache()
        folders = self._list_names(self._root) if folder is None else [folder]
        keys = (f"{one}/{name}" for one in folders for name in self._list_names(self._make_path(one)))
        return sorted(key for key in keys if _OURS.fullmatch(key))

    def _list_names(self, path: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            # Not find(): it silently omits folders that it fails to list.
            return [one.rstrip("/").rpartition("/")[2] for one in self._files.ls(path, detail=False)]
        return []
