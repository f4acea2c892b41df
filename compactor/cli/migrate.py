"""The command ``migrate``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import typer

from .session_commands import AsJson, Store, print_result
from .sessions import open_named
from .terminal import make_console

if TYPE_CHECKING:
    from memory.stores.sql import SqlStore  # it imports SQLAlchemy

app = typer.Typer()


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
