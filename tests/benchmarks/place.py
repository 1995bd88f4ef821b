"""Where a measurement happens: a directory, the service, the servers of the stores, and the programs under load."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg

from tests.benchmarks.subject import OTHER_CORE, SERVING_CORE, GatewayProgram, Program, nginx, pinned
from tests.support.ports import free_port
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace
from tests.support.processes import descendants
from tests.support.redis import RedisServer

P = TypeVar("P", bound=Program)
STORES: Final = ("sqlite", "postgres")
# What anybody gives a server that stores something for many, and what makes it tell where time goes.
_SETTINGS: Final = {
    "shared_buffers": "4GB",
    # None in a measurement: the first change of a page after one writes all of it, which minutes of traffic share.
    "checkpoint_timeout": "1h",
    "max_wal_size": "32GB",
    "wal_buffers": "16MB",
    "track_wal_io_timing": "on",
    "log_lock_waits": "on",
    # Whoever waits for a lock for longer than this is in the log.
    "deadlock_timeout": "10ms",
}


class _Server(PostgresServer):
    def __init__(self, installation: PostgresInstallation, directory: Path) -> None:
        super().__init__(installation, directory)
        self._settings = dict(_SETTINGS)

    def session_seconds(self, url: str) -> float:
        """CPU time of the sessions that a database has now, so far."""
        assert self._process is not None
        name = urlsplit(url).path.removeprefix("/")
        total = 0
        for pid in descendants(self._process.pid):
            title = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if f" {name} " in title:
                # What the scheduler counts is in nanoseconds; the ticks of `stat` are too coarse for a session.
                total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        return total / 1e9

    def lock_waits(self) -> list[str]:
        """Which locks were waited for so far, as the log says it."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.partition("still waiting for ")[2] for line in lines if "still waiting for" in line]


class Place(ExitStack):
    """A context: what was started in it is ended with it."""

    def __enter__(self) -> Self:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))
        os.sched_setaffinity(0, {OTHER_CORE})
        if SERVING_CORE == OTHER_CORE:
            print("one core only: load and proxies take turns on it, and only the ratios mean anything")
        self.directory = self.enter_context(workspace("gateway-bench"))
        self._names = 0
        self.service = self._python("service", "upstream", core=OTHER_CORE)
        return self

    def started(self, program: P) -> P:
        """Start it; it ends with this place."""
        self.callback(program.stop)
        program.start()
        return program

    def _python(self, name: str, module: str, *arguments: str, core: int = SERVING_CORE) -> Program:
        """A module of `tests.benchmarks` that takes its port, started."""
        port = free_port()
        command = [sys.executable, "-m", f"tests.benchmarks.{module}", str(port), *arguments]
        return self.started(Program(name, command, port, self.directory, (core,)))

    def proxy(self, name: str, module: str, *arguments: str) -> Program:
        """A module of `tests.benchmarks` that takes its port and the service's, started where gateways are."""
        return self._python(name, module, str(self.service.port), *arguments)

    def nginx(self) -> Program | None:
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        return None if program is None else self.started(nginx(program, self.service.port, self.directory))

    def gateway(self, name: str, store: Mapping[str, Any], **details: Any) -> GatewayProgram:
        """A gateway with that store, started; `details` as `GatewayProgram` takes them."""
        return self.started(GatewayProgram(name, store, self.service.port, self.directory, **details))

    def store(self, kind: str) -> dict[str, str]:
        """The settings of a new one, which is `sqlite` or `postgres`."""
        if kind == "postgres":
            return {"durable": asyncio.run(self.server.new_database())}
        assert kind == "sqlite", f"one of {', '.join(STORES)}"
        self._names += 1
        return {"durable": f"sqlite://{self.directory}/sqlite-{self._names}/operations.db"}

    @cached_property
    def server(self) -> _Server:
        """Postgres, started when it is first asked for."""
        with pinned(OTHER_CORE):
            server = _Server(PostgresInstallation(self.directory / "programs"), self.directory / "pg")
            # Nothing of it is wanted any more, and so no last checkpoint.
            self.callback(server.crash)
            server.start()
        return server

    @cached_property
    def redis_url(self) -> str:
        """A Redis, started when it is first asked for."""
        with pinned(OTHER_CORE):
            server = RedisServer(self.directory / "redis")
            self.callback(server.stop)
            server.start()
        return server.url


def ask(url: str, query: str) -> Any:
    """The only row of the answer of a database, in a session of its own."""

    async def asked() -> Any:
        connection = await asyncpg.connect(url, timeout=60.0)
        try:
            return await connection.fetchrow(query)
        finally:
            await connection.close()

    return asyncio.run(asked())


def where() -> str:
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpus if "model name" in line), platform.machine())
    command = " ".join(["python -m tests.benchmarks", *sys.argv[1:]])
    return f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} × {model}, `{command}`"
