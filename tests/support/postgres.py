"""A real PostgreSQL for the tests: one server for the run, a database in it for each process, and schemas in that."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.shared_servers import shared_server

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import PostgresDatabase

USER = "openclaw"


def needs_postgres() -> Path:
    """The folder of the programs. Skips the test where there are none; with ``OPENCLAW_TEST_REQUIRE_ALL`` it fails."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    if found and int(found[-1].parent.parent.name) >= 15:
        return found[-1].parent
    if (on_path := shutil.which("initdb")) is not None:
        return Path(on_path).resolve().parent
    why = "PostgreSQL 15 or newer is not installed (Debian package postgresql)"
    if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
        pytest.fail(why)
    pytest.skip(why)


class PostgresServer:
    """A server on a unix socket in a folder of its own. Whoever makes it removes it.

    Without ``durable`` it does not wait for the disk, which a killed server survives and a power cut would not.
    """

    def __init__(self, programs: Path, *, durable: bool = False, follows: PostgresServer | None = None) -> None:
        self._programs = programs
        # The server refuses to run as root.
        self._as = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.folder = self._new_folder()
        self._data = self.folder / "data"
        if follows is not None:
            self.follow(follows)
            return
        # Copying what initdb made once takes a twentieth of its time.
        made = shared_server("postgres-data", self._initdb)
        subprocess.run(["cp", "-a", made["folder"], str(self._data)], check=True)
        settings = [
            "listen_addresses = ''",
            f"unix_socket_directories = '{self.folder}'",
            "max_connections = 200",
            "wal_keep_size = 512MB",
        ]
        settings += ["shared_buffers = 256MB"] if durable else ["fsync = off", "shared_buffers = 32MB"]
        settings += [] if durable else ["full_page_writes = off"]
        self._set(*settings)
        self.start()

    def _set(self, *settings: str) -> None:
        """Adds lines to the configuration. The last line about a setting holds."""
        with (self._data / "postgresql.auto.conf").open("a") as file:
            file.write("\n".join([*settings, ""]))

    def _new_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="openclaw-pg-"))
        folder.chmod(0o755)
        if self._as is not None:
            os.chown(folder, self._as.pw_uid, self._as.pw_gid)
        return folder

    def _initdb(self) -> dict[str, str]:
        folder = str(self._new_folder())
        self._run("initdb", "-D", folder, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        return {"folder": folder}

    @property
    def url(self) -> str:
        return database_url(self.folder)

    @property
    def pid(self) -> int:
        """The process that starts all others of the server."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self.folder / "log"), "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def restart(self) -> None:
        """As after a crash of the server: every connection breaks, and it recovers from its log."""
        self.stop("immediate")
        self.start()

    def follow(self, primary: PostgresServer) -> None:
        """Becomes a standby of another server, whose commits wait for it from now on."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._run("pg_basebackup", "-D", str(self._data), "-h", str(primary.folder), "-U", USER, "-R", "-c", "fast")
        self._set(f"unix_socket_directories = '{self.folder}'", "synchronous_standby_names = ''")
        self.start()
        primary._set("synchronous_standby_names = '*'")
        primary._run("pg_ctl", "-D", str(primary._data), "reload")

    def promote(self) -> None:
        """Makes a standby take writes."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "promote")

    def remove(self) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = self.pid
            os.kill(pid, signal.SIGQUIT)
            for _ in range(200):
                os.kill(pid, 0)  # It raises when the server is gone, and has written its last file.
                time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *args: str) -> None:
        command = [str(self._programs / program), *args]
        user, group = (self._as.pw_uid, self._as.pw_gid) if self._as is not None else (None, None)
        done = subprocess.run(
            command,
            user=user,
            group=group,
            cwd=self.folder,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if program == "initdb" else subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout}\n{self._log()}"

    def _log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-2000:] if path.exists() else ""


class OwnDatabase(NamedTuple):
    """A database that only this process uses. Locks and notices of PostgreSQL do not leave it."""

    url: str


@cache
def postgres_server() -> OwnDatabase:
    """A database of this test process in the server of the run, which the first test that needs one starts."""
    programs = needs_postgres()

    def start() -> dict[str, Any]:
        server = PostgresServer(programs)
        return {"folder": str(server.folder), "pid": server.pid}

    folder = shared_server("postgres", start)["folder"]
    name = f"tests_{os.getpid()}"
    subprocess.run([str(programs / "createdb"), "-h", folder, "-U", USER, name], check=True, timeout=60)
    return OwnDatabase(database_url(folder, name))


class ServerPair:
    """A server and its standby, under an address that names both."""

    def __init__(self, programs: Path) -> None:
        self.primary = PostgresServer(programs)
        self.standby = PostgresServer(programs, follows=self.primary)
        self.folders = (self.primary.folder, self.standby.folder)

    @property
    def url(self) -> str:
        hosts = ",".join(map(str, self.folders))
        return f"postgresql://{USER}@/postgres?host={hosts}&target_session_attrs=read-write"

    def fail_over(self, read_only_s: float) -> None:
        """The server dies, and its standby takes writes after a while."""
        self.die()
        self.take_over(read_only_s)

    def die(self) -> None:
        self.primary.stop("immediate")

    def take_over(self, read_only_s: float) -> None:
        """The standby of a server that died takes writes after a while. The one that died then follows it."""
        time.sleep(read_only_s)
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)

    def restart(self) -> None:
        self.primary.restart()

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()


def database_url(folder: Path | str, name: str = "postgres") -> str:
    return f"postgresql://{USER}@/{name}?host={folder}"


def new_schema() -> str:
    return f"test_{secrets.token_hex(6)}"


@cache
def shared_schema() -> str:
    """A schema for tests that empty it first. Making the tables takes longer than most tests."""
    return new_schema()


def storage_for(state_dir: Path) -> dict[str, str]:
    """The ``storage`` section of a Gateway with this state folder. The same folder gets the same schema."""
    return {"url": postgres_server().url, "schema": f"test_{hashlib.sha256(str(state_dir).encode()).hexdigest()[:16]}"}


def stored_lines(storage: dict[str, str], agent: str, name: str) -> list[str]:
    """The lines of a transcript in the database, for tests that would look at its file."""
    select = (
        "SELECT body FROM entries JOIN transcripts ON transcripts.id = transcript_id"
        " WHERE agent_id = $1 AND name = $2 ORDER BY seq"
    )
    return [row["body"].decode() for row in stored_rows(storage, select, agent, name)]


def stored_rows(storage: dict[str, str], statement: str, *values: str) -> list[dict[str, Any]]:
    """What a statement finds in the database of a Gateway."""

    # Imported here, so that tests which need no database are collected without its driver.
    import asyncpg

    async def read() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(storage["url"], server_settings={"search_path": storage["schema"]})
        rows = await connection.fetch(statement, *values)
        await connection.close()
        return [dict(row) for row in rows]

    # The caller's event loop is running, and it does not wait.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, read()).result(60)


async def empty(database: PostgresDatabase) -> None:
    """Removes all rows, and lets the numbers begin anew."""
    tables = await database.rows(
        "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = $1 AND tablename <> 'schema_version'",
        database.schema,
    )
    await database.write(f"TRUNCATE {', '.join(name for (name,) in tables)} RESTART IDENTITY")
