"""A PostgreSQL server of the tests' own: in a temporary folder, on loopback alone, gone when they end."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Where Debian and Homebrew put what is not on PATH.
PLACES = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")
#: Nothing here outlives the test, so nothing waits for the disk. Whoever tests durability says otherwise.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SUPERUSER = "postgres"
_EMPTY = """DO $$ DECLARE name text; BEGIN
    PERFORM set_config('session_replication_role', 'replica', true); -- in any order: no foreign keys are checked
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'compactor_schema' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
END $$"""


def binaries() -> Path | None:
    """Return the folder of ``initdb`` and ``pg_ctl``, the newest that is installed; None where there is none."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    for place in PLACES:
        root, _, pattern = place[1:].partition("/")
        found += sorted(Path("/", root).glob(pattern), key=_version, reverse=True)
    return next(
        (folder for folder in found if all(shutil.which(name, path=folder) for name in ("initdb", "pg_ctl"))), None
    )


def _version(folder: Path) -> int:
    return int("".join(filter(str.isdigit, folder.parent.name)) or 0)


class Postgres:
    """A server with a data folder of its own. ``start`` it; ``remove`` leaves nothing behind, also when forgotten."""

    def __init__(self, folder_of_binaries: Path, settings: Mapping[str, str] = FAST) -> None:
        self._binaries = folder_of_binaries
        self._settings = settings
        self._pid = os.getpid()
        self._databases = 0
        self._folder: Path | None = None
        self.port = 0

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """The process that began all its others."""
        return int((self._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])

    def start(self) -> None:
        """Return when the server answers; at the port that it had before, if it ran before."""
        if self._folder is None:
            self._create()
        self._run("pg_ctl", "start", "-w")

    def stop(self) -> None:
        """Shut down in order; connections are cut off."""
        self._run("pg_ctl", "stop", "-w", "-m", "fast")

    def crash(self) -> None:
        """Let all its processes die at once, as in a power cut; the next start recovers from its log."""
        self._run("pg_ctl", "stop", "-w", "-m", "immediate")

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Let all its processes die by ``kill -9``, none of which does anything more."""
        first = self.pid
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        family = [int(pid) for pid, parent in map(str.split, listed.splitlines()) if int(parent) == first]
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (first, *family):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sign)
        (self._data / "postmaster.pid").unlink()  # where nobody reaps the dead, it would keep the next from starting

    def move_log(self, place: Path) -> None:
        """Have the write-ahead log of a server that is stopped in another folder, which is made."""
        log = self._data / "pg_wal"
        own(shutil.copytree(log, place))
        shutil.rmtree(log)
        log.symlink_to(place)

    def standby(self) -> Postgres:
        """Return a server that follows this one by streaming replication. It runs, and is another's to remove."""
        made = Postgres(self._binaries, self._settings)
        made._create_folder()
        source = f"host=127.0.0.1 port={self.port} user={SUPERUSER} application_name=standby"
        made._run("pg_basebackup", "-d", source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        made._configure()
        made.start()
        return made

    def promote(self) -> None:
        """Make a standby writable; return when it is."""
        self._run("pg_ctl", "promote", "-w")

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Give the URL of a new and empty database, which is dropped afterwards, whoever is still connected."""
        self._databases += 1
        name = f"test{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def empty(self, url: str) -> None:
        """Delete all sessions of the store in a database, which keeps its tables: making them takes longer."""
        self.execute(_EMPTY, url.rpartition("/")[2])

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run one statement as the superuser, outside of any transaction."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=SUPERUSER, dbname=database, autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    def remove(self) -> None:
        # A forked child that exits must leave its parent's server alone.
        if self._folder is None or os.getpid() != self._pid:
            return
        if (self._folder / "data" / "postmaster.pid").exists():
            with contextlib.suppress(RuntimeError):
                self.crash()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        atexit.unregister(self.remove)

    def _create_folder(self) -> None:
        # Not in pytest's folder: that one belongs to root alone where root runs the tests.
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        atexit.register(self.remove)
        own(self._folder)

    def _create(self) -> None:
        self._create_folder()
        cluster = _clusters.get(self._binaries)
        if cluster is None:
            self._init()
            folder = tempfile.mkdtemp(prefix="postgres-")
            atexit.register(_remove_in, os.getpid(), folder)
            cluster = _clusters[self._binaries] = Path(folder, "data")
            _copy(self._data, cluster)
        else:
            _copy(cluster, self._data)
        self._configure()

    def _init(self) -> None:
        options = ["--auth=trust", f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        try:
            # Sorted as in a dictionary, and not by code: what relies on the order of bytes shows it here.
            self._run("initdb", *options, "--locale-provider=icu", "--icu-locale=en-US")
        except RuntimeError:  # before version 15, or built without ICU
            self._run("initdb", *options)

    def _configure(self) -> None:
        self.port = find_free_port()
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            **self._settings,
        }
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        (self._data / "postgresql.conf").write_text("".join(lines), encoding="utf-8")

    @property
    def _data(self) -> Path:
        assert self._folder is not None, "start the server first"
        return self._folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        said, log = self._data.with_name("said.txt"), self._data.with_name("server.txt")
        server_log = ["-l", str(log)] if "start" in arguments else []
        # Into a file: the server would keep a pipe open, and whoever reads from it waiting.
        with said.open("wb") as output:
            done = subprocess.run(
                [self._binaries / program, "-D", self._data, *server_log, *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                **ordinary_user(),
            )
        if done.returncode:
            told = "".join(file.read_text(encoding="utf-8", errors="replace") for file in (said, log) if file.exists())
            raise RuntimeError(f"{program} {' '.join(arguments)}: {told}")


#: A cluster that never ran, for each folder of programs: copying it takes a tenth of making another.
_clusters: dict[Path, Path] = {}


def _copy(cluster: Path, place: Path) -> None:
    """Copy with owners and rights."""
    subprocess.run(["cp", "-a", cluster, place], check=True)


def _remove_in(pid: int, folder: str) -> None:
    if os.getpid() == pid:  # a forked child leaves its parent's alone
        shutil.rmtree(folder, ignore_errors=True)


def ordinary_user() -> dict[str, Any]:
    """Whom to run the server as, where we are root: it refuses to be."""
    if getattr(os, "geteuid", lambda: 1)():
        return {}
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("root may not run PostgreSQL, and there is neither a user postgres nor nobody")


def own(folder: Path) -> None:
    """Give a folder, with all that is in it, to whom the server runs as."""
    user = ordinary_user()
    for path in (folder, *folder.rglob("*")) if user else ():
        shutil.chown(path, user["user"], user["group"])


def find_free_port() -> int:
    while True:
        # Below the ports that systems give to outgoing connections, which would take ours before we listen, or while we
        # restart.
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
