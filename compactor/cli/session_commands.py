"""The commands on stored sessions and their options; a part of the application in ``compactor.cli``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from memory import Memory

from ..events import visible
from ..presets import expire_files
from . import events as happened
from . import exchange, sessions, show
from .diff import compare
from .revert import revert
from .stores import opened, require
from .terminal import CannotRun, counted, one_line, screen

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="COMPACTOR_STORE",
        metavar="URL",
        help="Where sessions are kept, as sqlite:///chat.db or postgresql+psycopg://user@host/database.",
    ),
]
Session = Annotated[str, typer.Argument(metavar="SESSION", help="Its name; behind -- if it begins with a dash.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Role = Annotated[str | None, typer.Option(metavar="ROLE", help="Only this role.")]

#: What an age may be counted in.
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}

app = typer.Typer()


@app.command("sessions", short_help="List the sessions of a store.")
def sessions_(store: Store = None, as_json: AsJson = False) -> None:
    """List the sessions of a store: how many rounds and entries each has, and when it was last written to.

    JSON: {"sessions": [{"session", "rounds", "entries", "last_activity"}]}.
    """
    with opened(store) as there:
        found = sessions.overview(there)
    if as_json:
        _print({"sessions": [one.figures() for one in found]})
    else:
        sessions.table(found, screen())


@app.command("show", short_help="Show what a stored session is now.")
def show_(
    session: Session,
    store: Store = None,
    role: Role = None,
    model: Annotated[str, typer.Option(metavar="NAME", help="Whose tokens are counted.", show_default=False)] = "",
    summary: Annotated[bool, typer.Option("--summary", help="Print the summaries, too.")] = False,
    rounds: Annotated[
        str | None, typer.Option(metavar="FROM-TO", help="Print what was said in these rounds, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a stored session is now: rounds, and of each role what is summarised and what its next prompt costs.

    Tokens are those of the summary, of the rounds behind it and of the whole prompt, before anything is cut to a
    budget. No text is printed unless --summary or --rounds ask for it.

    JSON: {"session", "rounds", "entries", "last_activity", "open_rounds", "failed_rounds", "system_messages", "pins",
    "roles": [{"role", "generation", "summary_generation", "covered_rounds", "last_covered_round", "summary_tokens",
    "model", "published_at", "tail_rounds", "tail_tokens", "prompt_tokens", "reductions", "prepared", "last_usage"}]},
    with "summary" in each role and "texts": [{"round", "state", "text"}] where they were asked for. What is not known
    is null. A role's generation counts its publications and reverts; the summary's is the one that "diff" takes.
    """
    asked = None if rounds is None else show.span(rounds)
    with opened(store) as there:
        facts = sessions.facts_of(there, session)
        memory = Memory(session, store=there)
        shown = show.document(memory, facts, role=role, model=model, summary=summary, rounds=asked)
    if as_json:
        _print(shown)
    else:
        show.report(shown, facts, screen())


@app.command("events", short_help="Tell what happened to a session's history.")
def events_(
    session: Session,
    store: Store = None,
    role: Role = None,
    after: Annotated[int, typer.Option(min=0, metavar="ENTRY", help="Only what stands behind this entry.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell in order what happened to a session's history: what was summarised, reduced, reverted, pinned or erased.

    With models, tokens and checks, and without any text of the conversation.

    JSON: {"session", "events": [{"number", "at", "what", "role", "generation", "rounds", "strategy", "tokens_before",
    "tokens_after", "model", "usage", "checks", "facts"}]}. The number is the entry's; rounds are named as r3-r9, posts
    as r12.p3.
    """
    with opened(store) as there:
        require(there, session)
        found = list(happened.happenings(there, session, role=role, after=after, limit=limit))
    if as_json:
        _print({"session": session, "events": [one.figures() for one in found]})
    else:
        happened.table(found, screen())


@app.command("export", short_help="Write a session out as JSONL.")
def export_(
    session: Session,
    store: Store = None,
    to: Annotated[str, typer.Option(metavar="FILE", help="Where to; - is standard output.")] = "-",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --to: print what was written as JSON.")] = False,
) -> None:
    """Write a session out as JSONL, whole: what was said, all summaries, and what happened. "import" reads it.

    A file is there when it is complete, and not before.

    JSON: {"session", "entries", "file"}.
    """
    if as_json and to == "-":
        raise CannotRun("--json would stand among the session's lines; give a file by --to, or leave it out")
    with opened(store) as there:
        require(there, session)
        entries = exchange.export(there, session, to, force=force)
    if to != "-":
        _emit(
            as_json,
            {"session": session, "entries": entries, "file": to},
            f"{counted(entries, 'entry', 'entries')} written to {to}",
        )


@app.command("import", short_help="Read a session back from JSONL.")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    store: Store = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Its name here; else the one it had.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a session from a file that "export" wrote into a store: all of it, or nothing where something is wrong.

    A session that is there already is not changed. A database file that is not there yet is made.

    JSON: {"session", "entries"}.
    """
    session, entries = exchange.import_into(store, file, name)
    _emit(
        as_json,
        {"session": session, "entries": entries},
        f"{counted(entries, 'entry', 'entries')} read; session {session}",
    )


@app.command("purge", short_help="Erase a session.")
def purge_(session: Session, store: Store = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Erase a session for good: what was said, all that was made from it, what happened, and files that long texts
    were offloaded to. Asks first.

    JSON: {"purged": {"session", "rounds", "entries", "last_activity"}}.
    """
    with opened(store, write=True) as there:
        facts = sessions.purge(there, session, yes=yes)
    _emit(as_json, {"purged": facts.figures()}, f"session {facts.session} is erased: {facts}")


@app.command("expire", short_help="Erase what is old.")
def expire_(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Not written to for that long: 30d, 12h or 45m.")
    ],
    store: Store = None,
    files: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Erase old files of all chats in this store_dir instead, and no session."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase sessions for good that nobody has written to for a time, with their files. Asks first.

    Nothing expires by itself: have it run once a day, with --yes.

    JSON: {"expired": [session, ...]}; with --files {"files": number}.
    """
    age = _age(older_than)
    if files is not None:
        if not os.path.isdir(files):
            raise CannotRun(f"there is no folder {one_line(files, 80)}; give the store_dir that chats write to")
        sessions.confirm(f"{one_line(files, 80)}: erase files older than {older_than}?", "nothing was erased", yes=yes)
        removed = expire_files(files, age)
        _emit(as_json, {"files": removed}, f"{counted(removed, 'file')} erased")
        return
    with opened(store, write=True) as there:
        gone = sessions.expire(there, age, yes=yes)
    _emit(as_json, {"expired": gone}, f"{counted(len(gone), 'session')} erased")


@app.command("revert", short_help="Go back to a role's summary before.")
def revert_(
    session: Session,
    role: Annotated[str, typer.Option(metavar="ROLE", help="Whose summary.")] = "assistant",
    store: Store = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a role's summary before the present one current again, or have none where it was the first. Asks first.

    Nothing is lost: rounds are as they were, and the summary that is given up stays in the log.

    JSON: {"session", "role", "generation", "summary_generation", "last_covered_round"}, of what is current then; the
    summary's generation is null where there is none.
    """
    with opened(store, write=True) as there:
        require(there, session)
        reverted = revert(Memory(session, store=there), role, yes=yes)
    end = reverted["last_covered_round"]
    said = f"the summary covers rounds 1-{end} again" if end else "all rounds are as they were said again"
    _emit(as_json, {"session": session, "role": role} | reverted, f"reverted: {said}")


@app.command("diff", short_help="Compare a role's summary with the one before.")
def diff_(
    session: Session,
    role: Annotated[str, typer.Option(metavar="ROLE", help="Whose summaries.")] = "assistant",
    start: Annotated[
        int | None, typer.Option("--from", metavar="GENERATION", help="The earlier one.  [default: the one before]")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", metavar="GENERATION", help="The later one.  [default: the current one]")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Compare a role's summary with the one before it, sentence by sentence: what it dropped, and what came in.

    "events" tells which generations there are. This prints what the summaries say.

    JSON: {"session", "role", "from": {"generation", "last_covered_round"}, "to": likewise, "rounds": [first, last],
    "dropped": [], "came_in": [], "stayed": [], "gone": []}. The rounds are those that only the later one covers; gone
    are names and numbers that it no longer has.
    """
    with opened(store) as there:
        require(there, session)
        found = compare(Memory(session, store=there), role, start, end)
    if as_json:
        _print({"session": session, "role": role} | found.figures())
    else:
        screen().print(visible(str(found.difference)), soft_wrap=True)


def _print(document: Mapping[str, Any] | Sequence[Any]) -> None:
    typer.echo(json.dumps(document, indent=2))


def _age(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 7 and unit in _UNITS):
        raise CannotRun("--older-than is a whole number and a unit: 30d for days, 12h for hours, 45m for minutes")
    return timedelta(**{_UNITS[unit]: int(number)})


def _emit(as_json: bool, document: Mapping[str, Any], said: str) -> None:
    if as_json:
        _print(document)
    else:
        screen().print(one_line(said), soft_wrap=True)
