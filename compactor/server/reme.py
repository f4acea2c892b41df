"""ReMe's endpoints: move a chat's long texts to files, search these files, and read them.

Each tenant has its own folder below the configured one, and every path in a request is resolved inside it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import stat
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any

import regex
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from memory import ContextError
from memory.stores.retention import remove_files

from ..presets.compat.offload_context import ARCHIVE, Mode, OffloadResult, offload_context
from ..presets.compat.offload_files import OffloadError, OffloadFiles, make_folder_name
from ..summarizers.configured import find_summarizer
from ..transcript import MIN_ROOM
from .access import Tenant
from .problems import PROBLEM_CONTENT
from .rest import JsonNumber, Messages
from .state import ServerState
from .tenant_threads import RETRY_AFTER, Busy, TenantThreads

#: Files of a chat that was not written to for this long are deleted; seconds between two such cleanups.
EXPIRE_AFTER, EXPIRE_EVERY = timedelta(days=30), 3_600.0
#: Maximum seconds of one search.
SEARCH_SECONDS = 2.0
#: Maximum bytes of a file that is read at once, and of all files that one search reads.
MAX_READ, MAX_SEARCHED = 8 * 2**20, 64 * 2**20
#: Maximum files and matches of a search, characters of its answer, and characters of a line that it searches.
MAX_FILES, MAX_MATCHES, MAX_ANSWER, MAX_LINE = 10_000, 1_000, 200_000, 100_000
#: Characters shown on either side of a match in a long line.
MAX_AROUND = 250
#: Maximum characters of a pattern, and product of its repeat counts: regex expands counted repeats in memory.
MAX_PATTERN, MAX_REPEATS = 1_000, 10_000
MAX_PATH, MAX_NAME = 1_000, 150
#: Threads of searches and other work on files, and threads that may wait for a summarizer, for all tenants together.
SEARCH_THREADS, COMPRESSION_THREADS = 2, 8
#: Seconds that a request waits for one of its tenant's threads.
WAIT_SECONDS = 10.0

_BRACES = re.compile(r"\{[^{}]*\}")
#: A pattern that calls itself or a group: regex keeps neither its time limit nor any limit of memory then.
_CALL = re.compile(r"(?<!\\)(?:\\\\)*\(\?(?:R|&|P(?![<=])|\d|[+-](?![a-zA-Z]))")
#: Our marker after a preview, to be replaced by ReMe's wording. A snapshot's marker stays: it is parsed again.
_MARK = r"\[(?!Stands for )[^\n]*, left out here and kept in full in the file {}; read_file gives it, [^\n]*\]"

_NO_MEMORY = "pattern needs too much memory; give a simpler one"

_log = logging.getLogger(__name__)

Path = Annotated[str, Field(max_length=MAX_PATH)]
Count = Annotated[int, Field(ge=0, le=10**9), JsonNumber]
Positive = Annotated[int, Field(ge=1, le=10**9), JsonNumber]


class OffloadRequest(BaseModel):
    """Messages to shorten, in OpenAI's form or with flat tool calls (``id``, ``name``, ``arguments``)."""

    messages: Messages
    context_manage_mode: Mode = "auto"
    max_total_tokens: Positive = 20_000
    max_tool_message_tokens: Positive = 2_000
    #: Tokens of conversation in one request to the summarizer; 0: as many as it holds.
    group_token_threshold: Count | None = 0
    #: Newest messages to leave alone; null: one tool result, two messages.
    keep_recent_count: Count | None = None
    #: A folder below the server's.
    store_dir: Path = Field(min_length=1)
    chat_id: str = Field("", max_length=MAX_PATH)


class GrepRequest(BaseModel):
    pattern: str = Field(min_length=1, max_length=MAX_PATTERN, description="A regular expression, for each line.")
    path: Path | None = Field(None, description="The folder or file to search; by default all of the tenant's.")
    glob: str | None = Field(None, max_length=200, description="Which files, by their names.")
    limit: Positive | None = Field(None, description="Maximum matches.")


class ReadRequest(BaseModel):
    absolute_path: Path = Field(min_length=1, description="The file, as a message or a search names it.")
    offset: Count | None = Field(None, description="The first line, counted from 0.")
    limit: Positive | None = Field(None, description="Maximum lines.")


class ReMeResponse(BaseModel):
    """ReMe's response, also to a refused request."""

    success: bool
    answer: str
    messages: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}


class ReMeError(Exception):
    """A request cannot be answered; the message names the remedy.

    The status is 200 for a mistake by a model that calls a tool, because it reads the answer.
    """

    def __init__(self, text: str, status: int = 200) -> None:
        super().__init__(text)
        self.status = status


def make_reme_router(
    state: ServerState, *, summarizer: object | None = None, clock: Callable[[], float] = time.monotonic
) -> APIRouter:
    """Return the routes ``/context_offload``, ``/grep`` and ``/read_file`` over the folder ``settings.store_dir``.

    Older messages are summarized by *summarizer*, by default the one that the server's configuration names.
    """
    schema = {"$ref": f"#/components/schemas/{ReMeResponse.__name__}"}
    failed = {"content": {"application/json": {"schema": schema}, **PROBLEM_CONTENT["content"]}}
    router = APIRouter(tags=["reme"], responses=dict.fromkeys((403, 404, 413, 422, 503, 507), failed))
    searches, compressions = (
        TenantThreads(state.settings, SEARCH_THREADS),
        TenantThreads(state.settings, COMPRESSION_THREADS),
    )
    root = os.path.abspath(state.settings.store_dir)
    expired_at = -math.inf

    async def respond(tenant: str, work: Callable[[], ReMeResponse], threads: TenantThreads = searches) -> Response:
        """Return *work*'s answer. Runs it on one of the tenant's *threads*."""
        status, headers = 200, dict[str, str]()
        try:
            response = await threads.run(tenant, lambda _seconds: work(), WAIT_SECONDS)
        except Busy as busy:
            response, status, headers = (
                ReMeResponse(success=False, answer=str(busy)),
                503,
                {"retry-after": str(RETRY_AFTER)},
            )
        except ReMeError as error:
            response, status = ReMeResponse(success=False, answer=str(error)), error.status
        # Escaped: a lone surrogate in a message cannot be encoded.
        return Response(json.dumps(response.model_dump()), status, headers, media_type="application/json")

    def expire() -> None:
        nonlocal expired_at
        if clock() - expired_at >= EXPIRE_EVERY:
            expired_at = clock()
            expire_chats(root, EXPIRE_AFTER)

    @router.post("/context_offload", response_model=ReMeResponse)
    async def context_offload(request: OffloadRequest, tenant: Tenant) -> Response:
        """Shorten a chat's messages: long tool results go to files, then older messages to a summary."""

        def work() -> ReMeResponse:
            expire()
            return offload(Folder(root, tenant), request, summarizer or find_summarizer(state.settings.config))

        return await respond(tenant, work, compressions)

    @router.delete("/context_offload", response_model=ReMeResponse)
    async def delete_chat(
        tenant: Tenant,
        store_dir: Annotated[str, Query(min_length=1, max_length=MAX_PATH)],
        chat_id: Annotated[str, Query(max_length=MAX_PATH)] = "",
    ) -> Response:
        """Delete the files of one chat."""
        return await respond(tenant, lambda: delete(Folder(root, tenant), store_dir, chat_id))

    @router.post("/grep", response_model=ReMeResponse)
    async def grep_files(request: GrepRequest, tenant: Tenant) -> Response:
        """Search the files with a regular expression."""
        return await respond(tenant, lambda: grep(Folder(root, tenant), request))

    @router.post("/read_file", response_model=ReMeResponse)
    async def read_file(request: ReadRequest, tenant: Tenant) -> Response:
        """Return lines of a file."""
        return await respond(tenant, lambda: read(Folder(root, tenant), request))

    return router


@dataclass(frozen=True, slots=True)
class Folder:
    """A tenant's folder below *root*, an absolute path."""

    root: str
    tenant: str

    @property
    def base(self) -> str:
        return os.path.join(self.root, make_folder_name(self.tenant))

    def find(self, given: str) -> tuple[str, str]:
        """Return the path *given*, relative to the tenant's folder and as a real path.

        An absolute path must be below the configured folder. Raises ``ReMeError`` for any other, and for links.
        """
        plain = given.replace("\\", "/")
        if any(unicodedata.category(one) in ("Cc", "Cs") for one in plain):
            raise ReMeError("a path has characters that no path may have; give another", 403)
        if plain.startswith("/") or os.path.isabs(given):
            above = self.root.replace(os.sep, "/").rstrip("/")
            if plain.rstrip("/") != above and not plain.startswith(f"{above}/"):
                raise ReMeError("the path is outside of the server's folder for files; give a relative one", 403)
            plain = plain[len(above) :]
        names = [name for name in plain.split("/") if name not in ("", ".")]
        if any(name == ".." or ":" in name or len(name.encode()) > MAX_NAME for name in names):
            raise ReMeError(f"a path has no '..', no ':', and no name of more than {MAX_NAME} bytes; give another", 403)
        path = os.path.join(self.base, *names)
        if os.path.realpath(path) != os.path.join(os.path.realpath(self.base), *names) or os.path.islink(self.base):
            raise ReMeError("the path leads through a link; give another", 403)
        return "/".join(names), path


def offload(folder: Folder, request: OffloadRequest, summarizer: object | None = None) -> ReMeResponse:
    """Return *request*'s messages, shortened, and the texts written to files. Raises ``ReMeError``."""
    relative, path = folder.find(request.store_dir)
    messages = [message.model_dump(exclude_unset=True) for message in request.messages]
    options = request.model_dump(exclude={"messages", "store_dir"})
    if request.group_token_threshold:
        options["group_token_threshold"] = max(request.group_token_threshold, MIN_ROOM)
    try:
        result = offload_context(messages, store_dir=path, summarizer=summarizer, **options)
    except OffloadError as error:
        _log.warning("offload.not_written", exc_info=error)
        raise ReMeError("the files could not be written; the server's log says why", 507) from error
    except (ContextError, ValueError, TypeError, RecursionError) as error:
        text = "messages are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ReMeError(text, 422) from error
    return _make_response(result, path, request.store_dir.rstrip("/\\"), relative)


def _make_response(result: OffloadResult, path: str, given: str, relative: str) -> ReMeResponse:
    """Return *result* in ReMe's wording, with each file named below the request's ``store_dir``."""
    real = path.replace(os.sep, "/").rstrip("/")
    names = [file.removeprefix(f"{real}/") for file in result.write_file_dict]
    marks = [(f"{real}/{name}", f"{given}/{name}") for name in names]
    answer = result.answer
    if result.failure is not None and not result.offline:
        answer = f"Nothing was compressed: the summarizer failed ({type(result.failure).__name__})."
    elif marks:
        answer = "\n".join(f"Successfully created and wrote to new file: {shown}" for _, shown in marks)
    keys = [f"{relative}/{name}".lstrip("/") for name in names]
    return ReMeResponse(
        success=result.success,
        answer=answer,
        messages=[_rename_files(message, marks) for message in result.to_dict()["messages"]],
        metadata=result.metadata | {"write_file_dict": dict(zip(keys, result.write_file_dict.values(), strict=True))},
    )


def _rename_files(value: Any, marks: list[tuple[str, str]]) -> Any:
    """Return a message, or a part of it, with the file names that its reader knows."""
    if isinstance(value, dict):
        return {key: _rename_files(one, marks) for key, one in value.items()}
    if isinstance(value, list):
        return [_rename_files(one, marks) for one in value]
    for real, shown in marks if isinstance(value, str) else ():
        if real in value:
            shown_as = f"(detailed result is stored in {shown})".replace("\\", r"\\")
            value = re.sub(_MARK.format(re.escape(real)), shown_as, value).replace(real, shown)
    return value


def delete(folder: Folder, store_dir: str, chat_id: str) -> ReMeResponse:
    """Delete the files of a chat. Raises ``ReMeError``."""
    try:
        count = OffloadFiles(folder.find(store_dir)[1], chat_id).delete()
    except OffloadError as error:
        _log.warning("offload.not_deleted", exc_info=error)
        raise ReMeError("the files could not be deleted; the server's log says why", 507) from error
    return ReMeResponse(success=True, answer=f"Deleted {count} files of chat {json.dumps(chat_id)}.")


def expire_chats(root: str, older_than: timedelta, *, now: Callable[[], float] = time.time) -> int:
    """Delete the files below *root* that were last written more than *older_than* ago; return their number."""
    before, count = now() - older_than.total_seconds(), 0
    for folder, _, _ in os.walk(root, topdown=False):
        try:
            count += remove_files(folder, cutoff=before) if folder != root else 0
        except OSError as error:
            _log.warning("offload.not_expired", exc_info=error)
    return count


def grep(folder: Folder, request: GrepRequest, *, clock: Callable[[], float] = time.monotonic) -> ReMeResponse:
    """Return the matching lines, by file. Raises ``ReMeError``."""
    pattern, deadline = _compile(request.pattern), clock() + SEARCH_SECONDS
    path = folder.find(request.path or ".")[1]
    limit = min(request.limit or MAX_MATCHES, MAX_MATCHES)
    parts: list[str] = []
    found, size, read, stopped = 0, 0, 0, ""
    try:
        for name, file in _list_files(path, request.glob or ""):
            try:
                raw = _read_bytes(file)
            except OSError:  # a link, or gone since
                continue
            read += len(raw)
            heading = f"File: {name}"
            for number, line in enumerate(_decode(raw).split("\n"), 1):
                match = pattern.search(line[:MAX_LINE], timeout=max(deadline - clock(), 1e-3))
                if match is None:
                    continue
                if found == limit or size > MAX_ANSWER:
                    raise _SearchStopped("" if found == request.limit else "there are more matches")
                part = f"L{number}: {_cut_line(line, *match.span())}"
                if heading:
                    part, heading = f"{heading}\n{part}", ""
                    parts.append("---")
                parts.append(part)
                found += 1
                size += len(part)
            if clock() > deadline:
                raise TimeoutError
            if read > MAX_SEARCHED:
                raise _SearchStopped("there are too many files")
    except TimeoutError:
        stopped = f"it took more than {SEARCH_SECONDS:g} seconds"
    except _SearchStopped as reason:
        stopped = str(reason)
    except MemoryError as error:
        raise ReMeError(_NO_MEMORY) from error
    filtered = f' (filter: "{request.glob}")' if request.glob else ""
    where = f'for pattern "{request.pattern}" in path "{request.path or "."}"{filtered}'
    lines = [f"Found {found} matches {where}:", *parts, "---"] if found else [f"Found 0 matches {where}."]
    if stopped:
        lines.append(f"[The search was stopped: {stopped}. Give one file as path, or a longer pattern.]")
    return ReMeResponse(success=True, answer="\n".join(lines))


class _SearchStopped(Exception):
    """A search has reached one of its limits."""


def _compile(pattern: str) -> Any:
    """Return the compiled *pattern*. Raises ``ReMeError``."""
    repeats = [max(map(int, re.findall(r"\d+", braces)[:9]), default=1) for braces in _BRACES.findall(pattern)]
    if math.prod(filter(None, repeats)) > MAX_REPEATS:
        raise ReMeError(f"pattern repeats too much: the product of its counts is at most {MAX_REPEATS}")
    if _CALL.search(pattern):
        raise ReMeError("pattern calls itself or a group, as (?R), (?1) and (?&name) do; write it without recursion")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, ValueError, OverflowError) as error:
        raise ReMeError(f"pattern is no regular expression: {error}") from error
    except MemoryError as error:
        raise ReMeError(_NO_MEMORY) from error


def _list_files(path: str, glob: str) -> Iterator[tuple[str, str]]:
    """Yield name, relative to the folder *path*, and path of each regular file in order; or of the one file."""
    if os.path.isfile(path):
        yield os.path.basename(path), path
        return
    seen = 0
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            name = os.path.relpath(os.path.join(folder, file), path).replace(os.sep, "/")
            if file.startswith(".") or not (not glob or any(fnmatchcase(one, glob) for one in _list_names(name, file))):
                continue  # hidden files are drafts
            seen += 1
            if seen > MAX_FILES:
                raise _SearchStopped("there are too many files")
            yield name, os.path.join(folder, file)


def _list_names(name: str, file: str) -> Iterator[str]:
    """Yield the names of a *file* that a glob may mean: its own, with its folders or without, and ReMe's."""
    yield from (file, name)
    if file.startswith(f"{ARCHIVE}-"):
        yield f"{file.removesuffix('.txt')}.json"  # compressed_group_{chat_id}_{idx}.json
    else:
        yield from (f"tool_{file}", f"tool_call_{file}")  # tool_call_{id}.txt


def _cut_line(line: str, start: int, stop: int) -> str:
    """Return *line*, or the text around a match if it is long."""
    if len(line) <= 2 * MAX_AROUND:
        return line
    first, last = max(start - MAX_AROUND, 0), min(stop, start + MAX_AROUND) + MAX_AROUND
    return f"{'...' * (first > 0)}{line[first:last]}{'...' * (last < len(line))}"


def read(folder: Folder, request: ReadRequest) -> ReMeResponse:
    """Return lines of a file, and nothing else. Raises ``ReMeError``."""
    path = folder.find(request.absolute_path)[1]
    try:
        raw = _read_bytes(path, max_bytes=MAX_READ + 1)
    except OSError as error:
        raise ReMeError("there is no such file; grep lists those that have a text", 404) from error
    if len(raw) > MAX_READ:
        raise ReMeError(f"the file has more than {MAX_READ} bytes, which are not read at once; use grep", 413)
    text = _decode(raw)
    if request.offset is None and request.limit is None:
        return ReMeResponse(success=True, answer=text)
    lines, first = text.split("\n"), request.offset or 0
    if first >= len(lines):
        raise ReMeError(f"the file has {len(lines)} lines, counted from 0; give a smaller offset")
    stop = len(lines) if request.limit is None else first + request.limit
    return ReMeResponse(success=True, answer="\n".join(lines[first:stop]))


def _read_bytes(path: str, max_bytes: int = MAX_READ) -> bytes:
    """Return the beginning of a regular file.

    Raises ``OSError`` for anything else. Follows no link, and never blocks on a pipe.
    """
    flags = sum(getattr(os, flag, 0) for flag in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
    with open(os.open(path, os.O_RDONLY | flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{os.path.basename(path)} is no file")
        return file.read(max_bytes)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
