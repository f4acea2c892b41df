"""The commands on stored sessions."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.table import Table

from memory import CompactedMessage, Memory, expire, list_expired, purge_tenant
from memory.arguments import ConfigError
from memory.rounds import utc_now
from memory.transfer.archive import expire_archive, purge_archived_tenant, purge_session
from memory.transfer.jsonl import export_session

from ..config import CompactorConfig
from ..difference import compare
from ..events import escape_controls
from ..inspector.page import make_offline_page
from ..presets import expire_files
from . import sessions
from .costs import make_cost_table, measure_costs
from .events import make_event_table, read_events
from .exchange import import_into, write_atomically
from .sessions import describe_size, open_named, read_name, require_session, show_name
from .terminal import CommandError, confirm, make_console, make_one_line, render_quantity

if TYPE_CHECKING:
    from memory.stores.sql import SqlStore  # it imports SQLAlchemy


def make_option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option whose default is not shown, or is told in *text*."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=False, **more)


_STORE = "The store, as sqlite:///chat.db or postgresql+psycopg://user@host/database."
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Store = Annotated[str | None, make_option("URL", _STORE, "--store", envvar="COMPACTOR_STORE")]


_SESSION = r"Session name, as listed: a tenant's is TENANT\x1fNAME. After -- if it begins with a dash."
NewName = Annotated[
    str | None,
    make_option("NAME", "Session name in this store.  [default: the one it had]", "--as", callback=read_name),
]
Session = Annotated[str, typer.Argument(metavar="SESSION", help=_SESSION, callback=read_name)]
Archive = Annotated[
    str | None, make_option("WHERE", "Also in this archive: a folder, or a URL such as s3://bucket/chats.", "--archive")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
OnlyRole = Annotated[str | None, make_option("ROLE", "Show only this role.", "--role")]
Role = Annotated[str, typer.Option(metavar="ROLE", help="The role whose summary it is.")]
BaseUrl = Annotated[
    str | None, make_option("URL", "Endpoint address, usually ending in /v1.  [default: OPENAI_BASE_URL]")
]
Prompt = Annotated[str, typer.Option(metavar="NAME|FILE", help="Prompt for summaries: a shipped one, or a YAML file.")]
LogEvents = Annotated[
    Literal["json", "console"] | None,
    typer.Option("--log-events", help="Log each event to standard error, as JSON or as text."),
]

#: Units of an age.
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}

app = typer.Typer()


def make_config(prompt: str, **fields: Any) -> CompactorConfig:
    """Return the configuration with this *prompt*, the only field that a user can get wrong."""
    try:
        return CompactorConfig(prompt_template_path=prompt, **fields)
    except ConfigError as error:
        raise CommandError("; ".join(wrong for _, wrong in error.problems)) from error  # the error itself names fields


@app.command("sessions", short_help="List the sessions of a store.")
def list_sessions(
    store: Store = None,
    tenant: Annotated[str | None, make_option("NAME", "Only this tenant's; '' for those without.", "--tenant")] = None,
    order: Annotated[
        Literal["name", "activity"], typer.Option(help="Sort by name, or the most recently used first.")
    ] = "name",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of sessions.")] = 1_000,
    after: Annotated[str | None, make_option("PLACE", 'Continue after a page: its "next".', callback=read_name)] = None,
    as_json: AsJson = False,
) -> None:
    """List the sessions of a store with their rounds, their entries and the time of the last write, to the minute.

    JSON: {"sessions": [{"session", "rounds", "entries", "last_activity", "tenant"}], "next"}. "next" is null after the
    last page.
    """
    with open_named(store) as opened:
        page = sessions.list_page(opened, tenant, after, limit, order)
    print_result(as_json, page, sessions.make_session_table(page["sessions"]))
    if page["next"] is not None and not as_json:
        make_console().print(f"there may be more; continue with --after '{show_name(page['next'])}'", markup=False)


@app.command("health", short_help="Tell which sessions fail or are behind.")
def check_health(
    store: Store = None,
    active: Annotated[str, typer.Option(metavar="AGE", help="Look at sessions written to within it.")] = "1d",
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            show_default=False,
            help="Behind: more than N rounds are not covered.  [default: twice a role's longest step, at least 10]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell which roles of a store's sessions fail, have an open circuit, or are behind, worst first. For probes.

    The exit code is 0 if there is none, and 1 if there is. Reads the logs of the sessions that were written to lately;
    a noted failure is a write. A role fails until its next answer is accepted; of a row of failures the log notes the
    1st, 2nd, 4th, 8th, so there may be more. A role that was never compacted is behind only with --rounds.

    JSON: {"healthy", "sessions", "behind", "failing", "circuits_open", "worst": [{"session", "role", "behind",
    "uncovered", "failures", "circuit_open", "error", "since"}]}. "sessions" is how many were looked at.
    """
    since = utc_now() - parse_age(active, "--active")
    with open_named(store) as opened:
        found = sessions.examine_store(opened, since, rounds)
    print_result(as_json, sessions.make_health_document(found), sessions.make_health_table(found))
    if not found.healthy:
        raise typer.Exit(1)


@app.command("costs", short_help="Tell what compaction has spent and saved.")
def show_costs(
    store: Store = None,
    by: Annotated[Literal["day", "role", "model"], typer.Option(help="What a line is for; days are UTC.")] = "day",
    since: Annotated[str | None, make_option("DATE", "Only from this day on, as 2026-01-31 (UTC).", "--since")] = None,
    model: Annotated[
        str,
        make_option("NAME", "Model whose prompts were shortened, for its price.  [default: the one that summarised]"),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Tell what compaction has spent and saved, by the logs of a store's sessions.

    Spent: accepted and rejected answers, at list prices of today. Saved: for each prompt whose usage the log records,
    the tokens by which the compactions in force shortened it. Without such records, each publication counts as one
    prompt. Negative: the summary was longer. The price is that of input, and of cached input for the share of the
    prompt that was cached. Answers of models without a known price are counted as unpriced.

    JSON: {"by", "rows": [{"day" | "role" | "model", "answers", "input_tokens", "cached_tokens", "output_tokens",
    "unpriced_answers", "spent", "prompts", "saved_tokens", "unpriced_saved_tokens", "saved"}], "total", "sessions",
    "unread"}. "spent" and "saved" are dollars; "unread" counts damaged sessions.
    """
    start = _parse_day(since) if since is not None else None
    with open_named(store) as opened:
        document = measure_costs(opened, by, start, model)
    print_result(as_json, document, make_cost_table(document))


def _parse_day(text: str) -> datetime:
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    raise CommandError(f"--since takes a day, as in 2026-01-31, not '{make_one_line(text, 40)}'")


@app.command("show", short_help="Show the present state of a stored session.")
def show_session(
    session: Session,
    store: Store = None,
    role: OnlyRole = None,
    model: Annotated[str, make_option("NAME", "Count tokens as this model does.")] = "",
    summary: Annotated[bool, typer.Option("--summary", help="Also print the summaries.")] = False,
    rounds: Annotated[str | None, make_option("FROM-TO", "Also print the messages of these rounds.")] = None,
    html: Annotated[
        str | None, make_option("FILE", "Write the session as one page instead, with all texts.", "--html")
    ] = None,
    budget: Annotated[int | None, make_option("TOKENS", "With --html: cut the prompt to this.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the present state of a stored session: its rounds, and for each role its summary and its next prompt's cost.

    Tokens are those of the summary, of the rounds after it, and of the whole prompt before it is cut to a budget.
    Prints no text of the conversation without --summary or --rounds. --html writes one page that needs no server and no
    network: all rounds, what prompts show of each and why, the summaries, and tokens and cost over rounds.

    JSON: {"session", "rounds", "entries", "last_activity", "open_rounds", "failed_rounds", "undone_rounds",
    "system_messages", "pins", "roles": [{"role", "generation", "summary_generation", "covered_rounds",
    "last_covered_round", "summary_tokens", "model", "published_at", "tail_rounds", "tail_tokens", "prompt_tokens",
    "reductions", "prepared", "last_usage"}]}.
    --summary adds "summary" to each role, --rounds adds "texts": [{"round", "state", "text"}]. Unknown values are null.
    A role's generation counts its publications and reverts; "diff" takes the summary's generation.
    """
    span = None if rounds is None else sessions.parse_rounds(rounds)
    with open_named(store) as opened:
        size = sessions.measure_session(opened, session)
        memory = Memory(session, store=opened)
        if html is not None:
            with write_atomically(html, "give another path by --html") as file:
                file.write(make_offline_page(memory, budget=budget, model=model))
            print_result(
                as_json, {"session": session, "file": html}, make_one_line(f"written to {html}; open it in a browser")
            )
            return
        document = sessions.describe_session(memory, size, role, model, summary=summary)
        if span is not None:
            document["texts"] = sessions.read_texts(memory, *span)
    print_result(as_json, document, "\n".join(sessions.list_session_lines(document)))


@app.command("events", short_help="List the events in a session's history.")
def list_events(
    session: Session,
    store: Store = None,
    role: OnlyRole = None,
    after: Annotated[int, typer.Option(min=0, metavar="ENTRY", help="Start after this entry.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of events.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the events in a session's history in order: rounds summarised, posts reduced, pinned or erased, reverts.

    Includes models, tokens, checks and recorded failures, but no text of the conversation.

    JSON: {"session", "events": [{"number", "at", "what", "role", "generation", "rounds", "strategy", "tokens_before",
    "tokens_after", "model", "usage", "checks", "facts"}]}. The number is that of the log entry. Rounds are written as
    r3-r9, posts as r12.p3.
    """
    with open_named(store) as opened:
        require_session(opened, session)
        rows = list(read_events(opened, session, role=role, after=after, limit=limit))
    print_result(as_json, {"session": session, "events": rows}, make_event_table(rows))


@app.command("export", short_help="Write a session to a JSONL file.")
def export(
    session: Session,
    store: Store = None,
    to: Annotated[str, typer.Option(metavar="FILE", help="The file; - is standard output.")] = "-",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --to: print the result as JSON.")] = False,
) -> None:
    """Write a whole session as JSONL: messages, summaries, and events. "import" reads it.

    The file appears only when it is complete.

    JSON: {"session", "entries", "file"}.
    """
    if as_json and to == "-":
        raise CommandError("--json would mix with the session's lines; pass --to FILE, or leave --json out")
    with open_named(store) as opened:
        require_session(opened, session)
        if to == "-":
            export_session(opened, session, sys.stdout)
            return
        with write_atomically(to, "give another path by --to", force=force) as written:
            entries = export_session(opened, session, written)
    shown = make_one_line(f"{render_quantity(entries, 'entry', 'entries')} written to {to}")
    print_result(as_json, {"session": session, "entries": entries, "file": to}, shown)


@app.command("import", short_help="Read a session from a JSONL file.")
def import_session(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that export wrote; - is standard input.")],
    store: Store = None,
    name: NewName = None,
    as_json: AsJson = False,
) -> None:
    """Read a session into a store from a file that "export" wrote: all of it, or nothing if anything is wrong.

    Does not change an existing session. Creates a missing database file.

    JSON: {"session", "entries"}.
    """
    session, entries = import_into(store, file, name)
    shown = f"{render_quantity(entries, 'entry', 'entries')} read; session {show_name(session)}"
    print_result(as_json, {"session": session, "entries": entries}, shown)


@app.command("purge", short_help="Erase a session.")
def purge(
    session: Session, store: Store = None, archive: Archive = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Erase a session for good: its messages, all that was made from them, its events, and its offloaded files.

    Asks for confirmation. Without --archive, an archived copy stays.

    JSON: {"purged": {"session", "rounds", "entries", "last_activity"}}; with --archive also {"archived": true if the
    archive had it}, and "purged" is null if the store had none.
    """
    name = show_name(session, 80)
    where = "" if archive is None else f", and its copy in {make_one_line(archive, 80)}"
    with open_named(store, write=True) as opened:
        has_it = archive is None or opened.get_extent(session) is not None
        size = sessions.measure_session(opened, session) if has_it else None
        described = "not in the store" if size is None else describe_size(size)
        confirm(f"session '{name}': {described}{where}. Erase all of it, for good?", "nothing was erased", yes=yes)
        document: dict[str, Any] = {"purged": size}
        if archive is None:
            opened.purge(session)
        else:
            document["purged"] = None

            def erase(session: str) -> None:
                document["purged"] = sessions.measure_session(opened, session)
                opened.purge(session)

            result = purge_session(opened, archive, session, purge=erase)
            if not any(result):
                raise CommandError(f"there is no session '{name}', neither in this store nor in the archive")
            document["archived"] = result.archived
            described = describe_size(document["purged"]) if result.stored else "not in the store"
            described += ", and in the archive" if result.archived else ", and not in the archive"
    print_result(as_json, document, f"session {show_name(session)} is erased: {described}")


@app.command("purge-tenant", short_help="Erase a tenant.")
def erase_tenant(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Its name.")],
    store: Store = None,
    archive: Archive = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase for good all sessions of a tenant, with their files. Asks for confirmation.

    Stop what writes, archives and restores for the tenant before. Without --archive, its archived sessions stay.

    JSON: {"tenant", "purged": number}; with --archive also {"archived": number}.
    """
    with open_named(store, write=True) as opened:
        where = "" if archive is None else f" and in {make_one_line(archive, 80)}"
        question = f"Erase all sessions of the tenant {make_one_line(tenant, 80)}{where}, for good?"
        confirm(question, "nothing was erased", yes=yes)
        document: dict[str, Any] = {"tenant": tenant, "purged": purge_tenant(opened, tenant)}
        if archive is not None:
            document["archived"] = purge_archived_tenant(archive, tenant)
            document["purged"] += purge_tenant(opened, tenant)  # a session may have been restored meanwhile
    archived = f", and {document['archived']:,} in the archive" if archive is not None else ""
    print_result(as_json, document, f"{render_quantity(document['purged'], 'session')} erased{archived}")


@app.command("expire", short_help="Erase old sessions or files.")
def erase_expired(
    older_than: Annotated[str, make_option("AGE", "Minimum time since the last write: 30d, 12h or 45m.")],
    store: Store = None,
    files: Annotated[
        str | None, make_option("DIR", "Instead of sessions, erase old files in this store_dir, of all chats.")
    ] = None,
    archive: Annotated[
        str | None, make_option("WHERE", "Instead, erase old sessions of this archive: a folder or a URL.", "--archive")
    ] = None,
    tenant: Annotated[str | None, make_option("NAME", "Only sessions of this tenant.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase for good the sessions that nobody has written to for a time, with their files. Asks for confirmation.

    Nothing expires by itself: run this once a day, with --yes.

    JSON: {"expired": [session, ...]}; with --files {"files": number}.
    """
    age = parse_age(older_than)
    if files is not None and archive is not None:
        raise CommandError("--files and --archive are two places; run this once for each")
    if archive is not None:
        where = f"{make_one_line(archive, 80)}: erase sessions that nobody has written to for {older_than}, for good?"
        confirm(where, "nothing was erased", yes=yes)
        gone = expire_archive(archive, age, tenant=tenant)
        print_result(as_json, {"expired": gone}, f"{render_quantity(len(gone), 'session')} erased")
        return
    if files is not None:
        folder = make_one_line(files, 80)
        if not os.path.isdir(files):
            raise CommandError(f"there is no folder {folder}; give the store_dir that chats write to")
        confirm(f"{folder}: erase files older than {older_than}?", "nothing was erased", yes=yes)
        removed = expire_files(files, age)
        print_result(as_json, {"files": removed}, f"{render_quantity(removed, 'file')} erased")
        return
    with open_named(store, write=True) as opened:
        old = list_expired(opened, age, tenant=tenant)
        if old:
            names = ", ".join(show_name(session, 80) for session in old[:10]) + (", ..." if len(old) > 10 else "")
            question = f"{render_quantity(len(old), 'session')}: {names}. Erase all of this, for good?"
            confirm(question, "nothing was erased", yes=yes)
        gone = expire(opened, age, sessions=old, tenant=tenant)
    print_result(as_json, {"expired": gone}, f"{render_quantity(len(gone), 'session')} erased")


@app.command("migrate", short_help="Bring a store's tables up to date, and partition them.")
def migrate(store: Store = None, as_json: AsJson = False) -> None:
    """Bring a store's tables up to date. On PostgreSQL, also split the tables of an older store into partitions.

    Hosts and workers may use the store meanwhile, also those of the older version, which cannot open it anew. Needs as
    much free disk space as the tables take. If interrupted, run it again: it continues where it stopped.

    JSON: {"partitioned": whether this run partitioned the tables}.
    """
    partitioned, shown = False, -1
    with open_named(store, write=True) as opened:
        for done in cast("SqlStore", opened).partition():
            partitioned = True
            if int(done * 100) > shown and not as_json:
                shown = int(done * 100)
                make_console(sys.stderr).print(f"{shown} % copied")
    told = "the tables are up to date" + (", and have partitions now" if partitioned else "")
    print_result(as_json, {"partitioned": partitioned}, told)


@app.command("revert", short_help="Go back to a role's previous summary.")
def revert(
    session: Session, role: Role = "assistant", store: Store = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Make a role's previous summary current again, or none if there was no previous one. Asks for confirmation.

    Nothing is lost: the rounds are unchanged, and the reverted summary stays in the log.

    JSON: {"session", "role", "generation", "summary_generation", "last_covered_round"}. The last two are
    those of the summary that is current now, or null.
    """
    with open_named(store, write=True) as opened:
        require_session(opened, session)
        journal = Memory(session, store=opened).journal(role)
        shown = journal.read()
        of = _name_summary(session, role)
        if shown.current is None:
            raise CommandError(
                f"there is no summary {of} to go back from; `compactor show` lists the roles that have one"
            )
        covered = f"the summary {of} covers rounds 1-{shown.current.last_round}"
        confirm(f"{covered}. Go back to the one before, or to none?", "nothing was reverted", yes=yes)
        current = journal.revert(base=shown.generation)  # revert the confirmed one, or nothing
        generation = journal.read().generation
    summary_generation, end = (current.generation, current.last_round) if current is not None else (None, None)
    document = {"session": session, "role": role, "generation": generation, "summary_generation": summary_generation}
    result = f"the summary covers rounds 1-{end} again" if end else "all rounds are as they were said again"
    print_result(as_json, document | {"last_covered_round": end}, f"reverted: {result}")


@app.command("diff", short_help="Compare a role's summary with the previous one.")
def diff(
    session: Session,
    role: Role = "assistant",
    start: Annotated[
        int | None, make_option("GENERATION", "The earlier one.  [default: the previous one]", "--from")
    ] = None,
    end: Annotated[int | None, make_option("GENERATION", "The later one.  [default: the current one]", "--to")] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Compare a role's summary with the previous one, sentence by sentence: those it dropped, and those that came in.

    "events" lists the generations. This prints texts of the summaries.

    JSON: {"session", "role", "from": {"generation", "last_covered_round"}, "to": likewise, "rounds": [first, last],
    "dropped": [], "came_in": [], "stayed": [], "gone": []}. "rounds" are covered by the later summary only,
    "gone" the names and numbers that it no longer has.
    """
    with open_named(store) as opened:
        require_session(opened, session)
        before, after = _find_summaries(Memory(session, store=opened), role, start, end)
    difference = compare(before, after)
    document = {
        "session": session,
        "role": role,
        "from": None if before is None else _make_summary_figures(before),
        "to": _make_summary_figures(after),
        "rounds": difference.rounds,
        **{name: getattr(difference, name) for name in ("dropped", "came_in", "stayed", "gone")},
    }
    print_result(as_json, document, escape_controls(str(difference)))


def _find_summaries(
    memory: Memory, role: str, start: int | None, end: int | None
) -> tuple[CompactedMessage | None, CompactedMessage]:
    """Return *role*'s summaries of the generations *start* and *end*; by default the previous and the current one."""
    records = memory.journal(role).history()
    published = {
        one.compaction.generation: one.compaction for one in records if one.happened == "published" and one.compaction
    }
    current = next((one.compaction for one in records if one.current), None)
    of = _name_summary(memory.session_id, role)

    def find(generation: int) -> CompactedMessage:
        if generation not in published:
            known = ", ".join(map(str, published))
            raise CommandError(f"there is no summary {of} of generation {generation}; there are {known}")
        return published[generation]

    if not published:
        raise CommandError(f"there is no summary {of}; `compactor show` lists the roles that have one")
    after = find(end) if end is not None else current or published[max(published)]
    earlier = [generation for generation in published if generation < after.generation]
    return find(start) if start is not None else published[max(earlier)] if earlier else None, after


def _make_summary_figures(compaction: CompactedMessage) -> dict[str, int]:
    return {"generation": compaction.generation, "last_covered_round": compaction.last_round}


def _name_summary(session: str, role: str) -> str:
    return f"of '{make_one_line(role, 80)}' in session '{show_name(session, 80)}'"


def parse_age(text: str, option_name: str = "--older-than") -> timedelta:
    match = re.fullmatch(r"([0-9]{1,6})([dhm])", text)
    if match is None:
        raise CommandError(f"{option_name} is a whole number and a unit: 30d for days, 12h for hours, 45m for minutes")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def print_result(as_json: bool, document: Mapping[str, Any], shown: str | Table) -> None:
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        make_console().print(shown, soft_wrap=isinstance(shown, str))
