"""A real Postgres for the tests: started in a directory that goes away, stopped, crashed, frozen."""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tests.support import programs
from tests.support.ports import free_port
from tests.support.processes import Account, run, spawn
from tests.support.server_process import ServerProcess

CLIENT_SECONDS = 30.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # In the data directory, which goes away, instead of in /dev/shm, which is small in containers.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_min_messages": "warning",
}


@asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    # What is meant for the gateway would be taken for a setting of the server.
    url = url.replace("?pgbouncer=true", "")
    connection = await asyncpg.connect(
        url, timeout=CLIENT_SECONDS, command_timeout=CLIENT_SECONDS, statement_cache_size=0
    )
    try:
        yield connection
    finally:
        await connection.close(timeout=CLIENT_SECONDS)


class Postgres:
    """A server that answers under a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def new_database(self, template: str = "template1") -> str:
        """Create a database that nobody else uses and return its URL; the caller drops it."""
        name = f"gateway_test_{secrets.token_hex(6)}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    async def drop_database(self, url: str) -> None:
        await self.execute(f"DROP DATABASE IF EXISTS {_name(url)} WITH (FORCE)")

    async def fetch(self, statement: str) -> Any:
        async with session(self.url) as connection:
            return await connection.fetchval(statement)

    async def execute(self, statement: str) -> None:
        async with session(self.url) as connection:
            await connection.execute(statement)


_SCHEMA = "idempotency_gateway"
# What is in the catalog of a database, but for what a server notes there by itself, and for partitions, which gateways
# make and drop. Of columns, functions and triggers the rows' transactions are enough: a change makes another row.
_CATALOG = """
SELECT md5(string_agg(each, chr(10) ORDER BY each)) FROM (
    SELECT (to_jsonb(c) - ARRAY['relpages', 'reltuples', 'relallvisible', 'relallfrozen', 'relfrozenxid', 'relminmxid',
                                'relhassubclass'])::text
    FROM pg_class c WHERE relnamespace >= 16384 AND relkind <> 't' AND NOT relispartition
    UNION ALL SELECT concat(count(*), '-', sum(a.xmin::text::bigint))
    FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
    WHERE relnamespace >= 16384 AND relkind <> 't' AND NOT relispartition
    UNION ALL SELECT to_jsonb(n)::text FROM pg_namespace n WHERE nspname !~ '^pg_(temp|toast)'
    UNION ALL SELECT concat(oid, '-', xmin) FROM pg_proc WHERE pronamespace >= 16384
    UNION ALL SELECT concat(t.oid, '-', t.xmin) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
    WHERE NOT relispartition
    UNION ALL SELECT to_jsonb(s)::text FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase
    WHERE datname = current_database()
    UNION ALL SELECT concat(datdba, datacl, datconnlimit) FROM pg_database WHERE datname = current_database()
) AS catalog (each)
"""
_PARTITIONS = (
    f"SELECT relname FROM pg_class WHERE relnamespace = '{_SCHEMA}'::regnamespace AND relispartition AND relkind = 'r'"
)
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


class MigratedDatabases:
    """Databases with the gateway's tables and nothing in them, each given to one test after the other.

    One whose tables a test has changed, or that somebody is still connected to, is not given again.
    """

    def __init__(self, server: Postgres, migrate: Callable[[str], Awaitable[object]]) -> None:
        self._server = server
        self._migrate = migrate
        self._template = ""
        self._catalog = ""
        self._empty = ""
        self._spare: list[str] = []

    async def take(self) -> str:
        """The URL of one that nobody else uses."""
        if not self._template:
            self._template = await self._make_template()
        return self._spare.pop() if self._spare else await self._server.new_database(_name(self._template))

    async def give_back(self, url: str) -> None:
        if await self._is_emptied(url):
            self._spare.append(url)
        else:
            await self._server.drop_database(url)

    async def drop(self) -> None:
        for url in (*self._spare, *filter(None, [self._template])):
            await self._server.drop_database(url)

    async def _make_template(self) -> str:
        url = await self._server.new_database()
        await self._migrate(url)
        async with session(url) as connection:
            tables = await connection.fetch(
                "SELECT relname::text, oid::regclass::text, relkind = 'S' FROM pg_class "
                f"WHERE relnamespace = '{_SCHEMA}'::regnamespace AND relkind IN ('r', 'p', 'S') AND NOT relispartition"
            )
            statements = ["SET session_replication_role = replica"]
            await connection.execute("CREATE SCHEMA kept")
            for name, table, is_sequence in tables:
                if is_sequence:
                    statements.append(f"SELECT setval('{table}', 1, false)")
                    continue
                statements.append(f"DELETE FROM {table}")
                if await connection.fetchval(f"SELECT count(*) FROM {table}"):
                    await connection.execute(f"CREATE TABLE kept.{name} AS TABLE {table}")
                    statements.append(f"INSERT INTO {table} TABLE kept.{name}")
            self._empty = ";".join(statements)
            self._catalog = await connection.fetchval(_CATALOG)
        # A pooler may keep connections, and a template must have none.
        await self._server.execute(
            f"ALTER DATABASE {_name(url)} ALLOW_CONNECTIONS false; "
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{_name(url)}'"
        )
        return url

    async def _is_emptied(self, url: str) -> bool:
        async with session(url) as connection:
            # The server ends a session a moment after it was closed.
            for pause in (0.002, 0.01, 0.05):
                if not await connection.fetchval(_OTHERS):
                    break
                await asyncio.sleep(pause)
            else:
                return False
            if await connection.fetchval(_CATALOG) != self._catalog:
                return False
            partitions = [f"DROP TABLE {_SCHEMA}.{name}" for (name,) in await connection.fetch(_PARTITIONS)]
            await connection.execute(";".join([*partitions, self._empty]))
        return True


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


class PostgresServer(Postgres, ServerProcess):
    """A server of our own. It keeps its data, port and URL over `stop` or `crash` and the next `start`."""

    start_seconds = 60.0
    _stop_signal = signal.SIGINT
    _end_signal = signal.SIGQUIT

    def __init__(
        self,
        installation: PostgresInstallation,
        directory: Path,
        *,
        through: Sequence[str] = (),
        port: int | None = None,
    ) -> None:
        """`directory` becomes the server's: data, socket and log. It must not exist. `port` is None for a free one.

        `through` is a command that becomes the one behind it, which starts the server.
        """
        self.port = port or free_port()
        super().__init__(f"postgresql://gateway@127.0.0.1:{self.port}/postgres")
        self.directory = directory
        self.log = directory / "server.log"
        self._data = directory / "data"
        self._installation = installation
        self._through = through
        self._settings: dict[str, str] = {}
        self._make()

    def _make(self) -> None:
        self._installation.copy_cluster(self.directory)

    def _spawned(self) -> subprocess.Popen[bytes]:
        own = {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        settings = {**_SETTINGS, **own, **self._settings}
        return self._installation.spawn("postgres", self._data, self.log, settings, self._through)

    def crash(self) -> None:
        """End at once without flushing anything: what a power cut leaves, and the next start recovers from."""
        self._end(signal.SIGQUIT)

    def await_promotion(self) -> None:
        """Let the next start be that of a standby that follows nobody, as a cluster manager restarts its primary."""
        (self._data / "standby.signal").touch()

    async def promote(self) -> None:
        assert await self.fetch("SELECT pg_promote(true, 30)")

    def _serves(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The eighth line tells the state; a file left by a crash names another process.
        pid = None if self._process is None else self._process.pid
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in ("ready", "standby")


class PostgresStandby(PostgresServer):
    """An asynchronous standby of a server that runs. It follows by way of `source_port`, which may be a relay's."""

    def __init__(
        self,
        installation: PostgresInstallation,
        directory: Path,
        primary: PostgresServer,
        source_port: int,
        *,
        port: int | None = None,
    ) -> None:
        self._primary = primary
        super().__init__(installation, directory, port=port)
        self._settings = {"primary_conninfo": f"host=127.0.0.1 port={source_port} user=gateway"}

    def _make(self) -> None:
        self._installation.copy_server(self._primary.port, self.directory)

    async def has_caught_up(self) -> bool:
        position = await self._primary.fetch("SELECT pg_current_wal_flush_lsn()::text")
        return bool(await self.fetch(f"SELECT pg_last_wal_replay_lsn() >= '{position}'"))


class PostgresInstallation:
    """The programs of a Postgres, the user to run them as, and one pristine cluster to copy from."""

    def __init__(self, workspace: Path) -> None:
        """`workspace` is made in a directory that every user can reach; the caller removes it."""
        self._workspace = workspace
        workspace.mkdir(exist_ok=True)
        self._account = unprivileged_account()
        if self._account is not None:
            os.chown(workspace, self._account.uid, self._account.gid)
        self._programs = self._readable(programs.postgres().path.parent)
        self._pristine = workspace / "pristine"
        self._run("initdb", "-D", str(self._pristine / "data"), "-U", "gateway", "-A", "trust", "-E", "UTF8",
                  "--no-locale", "--no-sync")  # fmt: skip

    def spawn(
        self, program: str, data: Path, log: Path, settings: dict[str, str], through: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        options = [verdict for name, value in settings.items() for verdict in ("-c", f"{name}={value}")]
        return spawn(
            [*through, str(self._programs / program), "-D", str(data), *options],
            output=log,
            account=self._account,
            directory=data.parent,
            environment=_environment(),
            # Lets the server remove its shared memory and take its sessions along.
            death_signal=signal.SIGQUIT,
        )

    def copy_cluster(self, directory: Path) -> None:
        """Make `directory` a copy of the pristine cluster, owned by the server's user."""
        subprocess.run(["cp", "-a", "--reflink=auto", self._pristine, directory], check=True)

    def copy_server(self, port: int, directory: Path) -> None:
        """Make `directory` a copy of a server that runs, to be started as its standby."""
        directory.mkdir()
        if self._account is not None:
            os.chown(directory, self._account.uid, self._account.gid)
        self._run("pg_basebackup", "-D", str(directory / "data"), "-h", "127.0.0.1", "-p", str(port), "-U", "gateway",
                  "--write-recovery-conf", "--checkpoint=fast", "--no-sync")  # fmt: skip

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), *arguments]
        return run(command, account=self._account, directory=self._workspace, environment=_environment())

    def _readable(self, directory: Path) -> Path:
        """The directory of the programs where the server's user can run them: here, or a copy in the workspace."""
        try:
            run([str(directory / "postgres"), "-V"], account=self._account, directory=self._workspace)
        except RuntimeError:
            if self._account is None:
                raise
        else:
            return directory
        # A wheel's files lie under a virtual environment, with the libraries beside the package.
        installation, package = directory.parent, directory.parent.parent
        target = self._workspace / "site"
        for source in (installation, package.with_name(f"{package.name}.libs")):
            if source.exists():
                copy = target / source.relative_to(package.parent)
                shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("*.a", "include"))
        subprocess.run(["chmod", "-R", "a+rX", target], check=True)
        return target / directory.relative_to(package.parent)


@contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A new directory that every user can reach, short enough for a Unix socket in it; removed with its content."""
    parents = [Path(parent) for parent in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp")]
    parent = next(path for path in parents if len(str(path)) < 40 and _is_open(path))
    directory = parent / f"{name}-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _is_open(directory: Path) -> bool:
    everyone = all(path.stat().st_mode & 0o001 for path in (directory, *directory.parents))
    return os.access(directory, os.W_OK) and (everyone or os.geteuid() != 0)


def unprivileged_account() -> Account | None:
    """The user for the server when we are root, else None: ourselves."""
    if os.geteuid() != 0:
        return None
    accounts = {each.pw_name: Account(each.pw_uid, each.pw_gid) for each in pwd.getpwall()}
    return accounts.get("postgres") or accounts.get("nobody") or Account(65534, 65534)


def _environment() -> dict[str, str]:
    """Ours without what would configure Postgres or its language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}
