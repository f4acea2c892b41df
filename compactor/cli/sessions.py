"""Stored sessions: the store that a command names, the size and health of each session, and its next prompts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from memory import Memory, stores
from memory.messages import from_post
from memory.references import make_range_reference
from memory.stores import Extent, SessionRow, Store
from memory.stores.base import Order
from memory.visibility import sees

from ..events import escape_controls
from ..health import Health, examine_session, sort_worst_first
from ..inspector.views import find_roles
from ..prompt.token_cache import get_token_cache
from ..tokens import count_message, get_counter
from ..view import View
from .terminal import CommandError, make_one_line, make_table, render_quantity

_EXAMPLES = "sqlite:///chat.db or postgresql+psycopg://user@host/database"
#: Longer tails are not counted: that would read all of them.
MAX_COUNTED_ROUNDS = 10_000
_PAGE = 500
#: Matches a character that ``show_name`` has escaped, or text that looks like one.
_ESCAPED = re.compile(r"\\(x(?:[0189][0-9a-f]|20|5c|7f|a0)|u(?:1680|20[0-6][0-9a-f]|3000|d[89a-f][0-9a-f]{2}))")
#: Matches white space that a line of a list would not keep: all but single blanks between words.
_LOST_SPACE = re.compile(r"[^\S ]|\A | \Z|(?<= ) ")


def open_named(url: str | None, *, write: bool = False, create: bool = False) -> closing[Store]:
    """Return the store at *url*, open until the end of the ``with`` block.

    *write* migrates an older database; *create* also allows a new database file. Otherwise nothing is changed.
    Raises ``CommandError`` if *url* is empty or names nothing that exists, ``StoreError`` if a store cannot be opened.
    """
    url = (url or "").strip()
    if not url:
        raise CommandError(f"no store is named: pass --store URL, such as {_EXAMPLES}, or set COMPACTOR_STORE")
    path = _find_file(url)
    if url.partition(":")[0] == "memory" or path in ("", ":memory:"):
        raise CommandError(f"a session in memory ends with the process; pass --store {_EXAMPLES}")
    if path is not None and not create and not os.path.isfile(path):
        name = make_one_line(path, 200)
        raise CommandError(f"there is no database file {name}; check --store (sqlite:////... is an absolute path)")
    return closing(stores.open_store(url, migrate=write or create))


def _find_file(url: str) -> str | None:
    """Return the path of an SQLite database ("" in memory); None for other stores and wrong URLs."""
    scheme, _, rest = url.partition("://")
    rest = rest.partition("?")[0]
    if scheme.partition("+")[0].lower() != "sqlite" or (rest and not rest.startswith("/")):
        return None
    return rest.removeprefix("/")


def show_name(session: str, limit: int = 10_000) -> str:
    """Return a *session*'s name as ``read_name`` takes it: a tenant's as ``acme\\x1fchat-7``, and this text itself as
    ``acme\\x5cx1fchat-7``."""
    return make_one_line(_LOST_SPACE.sub(_escape, _ESCAPED.sub(r"\\x5c\1", session)), limit)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def read_name(text: str | None) -> str | None:
    """Return the session's name in *text*, in which control characters and some spaces are written as lists show
    them."""
    return None if text is None else _ESCAPED.sub(lambda match: chr(int(match[1][1:], 16)), text)


def require_session(store: Store, session: str) -> None:
    """Raise ``CommandError`` unless *store* has *session*."""
    if next(iter(store.read(session, 0, 1)), None) is None:
        raise _make_unknown_error(store, session)


def _make_unknown_error(store: Store, session: str) -> CommandError:
    known = "others; `compactor sessions` lists them" if store.list_sessions(limit=1) else "none at all"
    return CommandError(f"there is no session '{show_name(session, 80)}' in this store, which has {known}")


def list_page(store: Store, tenant: str | None, after: str | None, limit: int, order: Order) -> dict[str, Any]:
    """Return the JSON document of ``sessions``. No session is opened, so damaged ones are listed too."""
    rows = store.list_sessions(tenant, after=after, limit=limit, order=order)
    following = None
    if len(rows) == limit:
        following = rows[-1].name if order == "name" else rows[-1].cursor
    sizes = ((row, Extent(row.entries, row.last_activity, row.rounds)) for row in rows)
    sessions = [_measure(store, row.name, extent) | {"tenant": row.tenant} for row, extent in sizes]
    return {"sessions": sessions, "next": following}


def measure_session(store: Store, session: str) -> dict[str, Any]:
    """Return the size of *session* without reading all of it. Raises ``CommandError`` if there is none of that name."""
    extent = store.get_extent(session)
    if extent is None:
        raise _make_unknown_error(store, session)
    return _measure(store, session, extent)


def _measure(store: Store, session: str, extent: Extent) -> dict[str, Any]:
    # Old entries do not contain the number of their round: count the rounds.
    rounds = extent.rounds or sum(one.kind == "round opened" for one in store.read(session))
    last_activity = extent.created_at.isoformat()
    return {"session": session, "rounds": rounds, "entries": extent.number, "last_activity": last_activity}


def describe_size(size: Mapping[str, Any]) -> str:
    rounds, entries = render_quantity(size["rounds"], "round"), render_quantity(size["entries"], "entry", "entries")
    return f"{rounds} in {entries}, the last of {format_time(size['last_activity'])} UTC"


def make_session_table(sizes: Sequence[Mapping[str, Any]]) -> Table | str:
    rows = [
        (show_name(one["session"]), one["rounds"], one["entries"], format_time(one["last_activity"])[:-3])
        for one in sizes
    ]
    return make_table(("session", "rounds", "entries", "last activity (UTC)"), rows) if rows else "no sessions"


def format_time(moment: str) -> str:
    """Return a time stamp of the JSON document as people read it, in UTC."""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def examine_store(store: Store, since: datetime, max_uncovered: int | None) -> Health:
    """Return the health of the sessions that were written to after *since*."""
    rows = [*list_active(store, since)]
    found = (one for row in rows for one in examine_session(store, row, max_uncovered))
    return Health(sessions=len(rows), worst=sort_worst_first(found))


def list_active(store: Store, since: datetime | None) -> Iterator[SessionRow]:
    """Yield the sessions that were written to after *since*, or all."""
    after: str | None = None
    while rows := store.list_sessions(after=after, limit=_PAGE, order="activity"):
        for row in rows:
            if since is not None and row.last_activity < since.replace(second=0, microsecond=0):
                return
            yield row
        after = rows[-1].cursor


def make_health_document(health: Health) -> dict[str, Any]:
    worst = [asdict(one) | {"since": one.since and one.since.isoformat()} for one in health.worst]
    counts = {name: getattr(health, name) for name in ("sessions", "behind", "failing", "circuits_open")}
    return {"healthy": health.healthy, **counts, "worst": worst}


def make_health_table(health: Health) -> Table | str:
    if health.healthy:
        return f"healthy: {render_quantity(health.sessions, 'session')} looked at"
    rows = []
    for one in health.worst:
        state = ", ".join(word for word, is_so in (("circuit open", one.circuit_open), ("behind", one.behind)) if is_so)
        session, role, error = show_name(one.session), make_one_line(one.role), make_one_line(one.error or "", 60)
        rows.append((session, role, state, one.failures, error, one.uncovered))
    title = f"{health.failing:,} failing, {health.circuits_open:,} with an open circuit, {health.behind:,} behind"
    columns = ("session", "role", "state", "failures", "error", "uncovered rounds")
    return make_table(columns, rows, title=f"{title}, of {render_quantity(health.sessions, 'session')}")


def describe_session(
    memory: Memory, size: Mapping[str, Any], role: str | None, model: str, *, summary: bool
) -> dict[str, Any]:
    """Return the JSON document of ``show`` for *role*, or for all. It has texts only with *summary*."""
    roles, now = sorted(find_roles(memory)) if role is None else [role], memory.snapshot
    return {
        **size,
        "open_rounds": [one.number for one in memory.open_rounds],
        "failed_rounds": sorted(now.failed),
        "undone_rounds": [one for one in now.hidden if one not in now.failed],
        "system_messages": len(memory.header),
        "pins": list(memory.pins()),
        "roles": [_describe_role(memory, one, model, summary=summary) for one in roles],
    }


def read_texts(memory: Memory, first: int, last: int) -> list[dict[str, Any]]:
    """Return the texts of the rounds *first* to *last* for the JSON document of ``show``."""
    rounds = memory.conversation.rounds
    if last > len(rounds):
        raise CommandError(f"there is no round {max(first, len(rounds) + 1)}; this session has {len(rounds)}")
    texts = ((number, memory.reload(make_range_reference(number, number))) for number in range(first, last + 1))
    return [{"round": number, "state": rounds[number - 1].state, "text": text} for number, text in texts]


def _describe_role(memory: Memory, role: str, model: str, *, summary: bool) -> dict[str, Any]:
    """Return the parts of *role*'s next prompt, with tokens as *model* counts them.

    Rounds are counted as the role sees them, without failed ones; ``last_covered_round`` is a number in the log.
    """
    now = memory.snapshot
    rounds, compaction = memory.get_role_rounds(role)
    count = get_counter(model)
    header = sum(
        count_message(from_post(post, role, only_known=True), count) for post in memory.header if sees(role, post)
    )
    view = View(rounds, compaction, get_token_cache(memory, role, count), header, model)
    is_counted = view.tail_length <= MAX_COUNTED_ROUNDS
    published_at = compaction.created_at if compaction is not None else None
    facts = {
        "role": role,
        "generation": now.get_journal(role).generation,
        "summary_generation": compaction.generation if compaction is not None else None,
        "covered_rounds": view.end,
        "last_covered_round": compaction.last_round if compaction is not None else None,
        "summary_tokens": view.compaction_tokens,
        "model": compaction.model if compaction is not None else None,
        "published_at": published_at.isoformat() if published_at is not None else None,
        "tail_rounds": view.tail_length,
        "tail_tokens": view.count_tokens_after(view.end) if is_counted else None,
        "prompt_tokens": view.tokens if is_counted else None,
        "reductions": now.count_reductions(role),
        "prepared": len(now.prepared.get(role, ())),
        # None if unknown, or if overlays have changed since the provider counted.
        "last_usage": memory.usage(role).input_tokens,
    }
    return facts | ({"summary": compaction.summary if compaction is not None else None} if summary else {})


def parse_rounds(text: str) -> tuple[int, int]:
    """Return the first and last of the rounds in *text*, as in ``12``, ``3-9`` or ``r3-r9``; else ``CommandError``."""
    match = re.fullmatch(r"r?(\d{1,12})(?:-r?(\d{1,12}))?", text.strip(), re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise CommandError(
            f"--rounds takes a round or the first and the last of several, as in 12 or 3-9, not '{text}'"
        )
    return first, last


def list_session_lines(document: Mapping[str, Any]) -> Iterator[str]:
    def make_line(name: str, value: str) -> str:
        return f"{name:<17}{value}"

    open_, failed, undone = (len(document[f"{name}_rounds"]) for name in ("open", "failed", "undone"))
    states = f"{open_} open, {failed} failed" + (f", {undone} undone" if undone else "")
    yield make_line("session", show_name(document["session"]))
    yield make_line("rounds", f"{document['rounds']:,} ({states})")
    yield make_line("entries", f"{document['entries']:,}")
    yield make_line("last activity", f"{format_time(document['last_activity'])} UTC")
    yield make_line("system messages", f"{document['system_messages']}")
    yield make_line("pinned posts", " ".join(document["pins"]) or "none")
    for one in document["roles"]:
        yield ""
        yield make_line("role", make_one_line(one["role"]) or "(sees everything)")
        end, origin = one["last_covered_round"], f"generation {one['summary_generation']}"
        if one["model"]:
            origin += f", by {make_one_line(one['model'], 60)}"
        yield make_line(
            "  summarised", f"rounds 1-{end}, in {one['summary_tokens']:,} tokens ({origin})" if end else "nothing"
        )
        shorter = f", {render_quantity(one['reductions'], 'post')} read shorter" if one["reductions"] else ""
        tail = f"{render_quantity(one['tail_rounds'], 'round')}, {_render_tokens(one['tail_tokens'])}{shorter}"
        yield make_line("  behind that", tail)
        yield make_line("  whole prompt", f"{_render_tokens(one['prompt_tokens'])}, before anything is cut")
        if one["last_usage"] is not None:
            yield make_line("  last usage", f"{one['last_usage']:,} tokens, by the provider's count")
        if one["prepared"]:
            yield make_line("  prepared", f"{render_quantity(one['prepared'], 'answer')} paid for and not published")
        if one.get("summary") is not None:
            yield escape_controls(one["summary"])
    for one in document.get("texts", ()):
        yield ""
        state = f" ({one['state']})" if one["state"] in ("failed", "undone") else ""
        yield f"{escape_controls(one['text'])}{state}"


def _render_tokens(number: int | None) -> str:
    return "tokens not counted" if number is None else render_quantity(number, "token")
