"""A real Postgres for the tests: started in a directory that goes away, stopped, crashed, frozen.

The server's own programs are run directly. As root they are run as another user, because Postgres refuses root; its
files are copied to where that user can read them when it cannot read them where they are.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tests.support import programs
from tests.support.eventually import eventually_blocking
from tests.support.ports import free_port
from tests.support.processes import Account, run, spawn
from tests.support.server_process import ServerProcess

START_SECONDS = 60.0
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


class Postgres:
    """A server that answers under a URL, whoever runs it."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def new_database(self, template: str = "template1") -> str:
        """Create a database that nobody else uses and return its URL; the caller drops it."""
        name = f"gateway_test_{secrets.token_hex(6)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    async def drop_database(self, url: str) -> None:
        """Drop a database of `new_database`, together with whoever is still connected to it."""
        await self._execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path.removeprefix('/')} WITH (FORCE)")

    async def fetch(self, statement: str) -> Any:
        """The only value of a query's answer."""
        connection = await asyncpg.connect(self.url, timeout=CLIENT_SECONDS, command_timeout=CLIENT_SECONDS)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close(timeout=CLIENT_SECONDS)

    async def _execute(self, statement: str) -> None:
        # What is meant for the gateway would be taken for a setting of the server.
        url = self.url.replace("?pgbouncer=true", "")
        connection = await asyncpg.connect(url, timeout=CLIENT_SECONDS, command_timeout=CLIENT_SECONDS)
        try:
            await connection.execute(statement)
        finally:
            await connection.close(timeout=CLIENT_SECONDS)


class PostgresServer(Postgres, ServerProcess):
    """A server of our own. It keeps its data, port and URL over `stop` or `crash` and the next `start`."""

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

    @property
    def socket_url(self) -> str:
        """The same server by way of its Unix socket."""
        return f"postgresql://gateway@/postgres?host={self.directory}&port={self.port}"

    def start(self) -> None:
        """Start, recovering from a crash when there was one, and return when connections are accepted."""
        self.launch()
        try:
            eventually_blocking(self.is_ready, START_SECONDS, f"Postgres on port {self.port} is ready")
        except BaseException:
            self._end(signal.SIGQUIT)
            raise

    def launch(self) -> None:
        """`start` without waiting; see `is_ready`."""
        if self._process is not None:
            raise AssertionError("the server was started already")
        own = {"port": str(self.port), "unix_socket_directories": str(self.directory)}
        settings = {**_SETTINGS, **own, **self._settings}
        self._process = self._installation.spawn("postgres", self._data, self.log, settings, self._through)

    def stop(self) -> None:
        """End in order: connections are closed, everything is flushed. Nothing happens to one that is not running."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End at once without flushing anything: what a power cut leaves, and the next start recovers from."""
        self._end(signal.SIGQUIT)

    def await_promotion(self) -> None:
        """Let the next start be that of a standby that follows nobody, as a cluster manager restarts its primary."""
        (self._data / "standby.signal").touch()

    async def promote(self) -> None:
        """Stop following, and accept writes."""
        assert await self.fetch("SELECT pg_promote(true, 30)")

    def is_ready(self) -> bool:
        """Whether it accepts connections now; an AssertionError when it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"Postgres did not start:\n{self.log.read_text()}")
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The eighth line tells the state; a file left by a crash names another process.
        return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby")


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
        """Whether it has everything that the primary has acknowledged."""
        position = await self._primary.fetch("SELECT pg_current_wal_flush_lsn()::text")
        return bool(await self.fetch(f"SELECT pg_last_wal_replay_lsn() >= '{position}'"))


class PostgresInstallation:
    """The programs of a Postgres, the user to run them as, and one pristine cluster to copy from."""

    def __init__(self, workspace: Path) -> None:
        """`workspace` is an empty directory that every user can reach; the caller removes it."""
        self._workspace = workspace
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
        """Start the server `program` on `data`."""
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
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_uid, found.pw_gid)
    return Account(65534, 65534)


def _environment() -> dict[str, str]:
    """Ours without what would configure Postgres or its language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}
