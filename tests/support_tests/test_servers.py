"""The servers of the tests are real, private, and gone afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import redis

from tests.support import leash
from tests.support.eventually import eventually, eventually_blocking
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import descendants
from tests.support.redis import RedisServer


async def _fetch(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_each_test_gets_an_empty_database_of_a_durable_server(postgres_url: str) -> None:
    """A test's database has no tables, and the server writes through to the disk."""
    assert await _fetch(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    assert await _fetch(postgres_url, "SHOW fsync") == "on"
    assert await _fetch(postgres_url, "SHOW synchronous_commit") == "on"
    assert int(str(await _fetch(postgres_url, "SHOW server_version_num"))) >= 140_000


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.crash], ids=["stop", "crash"])
async def test_postgres_keeps_what_was_committed(own_postgres: PostgresServer, end: object) -> None:
    """A committed row is there after a stop or a crash, under the same URL and by way of the socket."""
    assert callable(end)
    await _fetch(own_postgres.url, "CREATE TABLE kept AS SELECT 7 AS number")
    end(own_postgres)
    with pytest.raises(OSError, match="Connect call failed"):
        await _fetch(own_postgres.url, "SELECT 1")
    own_postgres.start()
    assert await _fetch(own_postgres.url, "SELECT number FROM kept") == 7
    assert await _fetch(own_postgres.socket_url, "SELECT number FROM kept") == 7


async def test_a_frozen_postgres_answers_nothing_until_it_is_thawed(own_postgres: PostgresServer) -> None:
    """A session that is open while the server is frozen times out, and works again afterwards."""
    connection = await asyncpg.connect(own_postgres.url)
    try:
        own_postgres.pause()
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT 1", timeout=0.2)
        own_postgres.resume()
        assert await connection.fetchval("SELECT 2", timeout=10) == 2
    finally:
        own_postgres.resume()
        await connection.close()


def test_redis_is_empty_for_each_test(redis_url: str) -> None:
    """A test's Redis holds nothing."""
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_redis_forgets_when_it_is_killed(own_redis: RedisServer) -> None:
    """Without an append-only file, a killed Redis starts again with nothing."""
    with redis.Redis.from_url(own_redis.url) as client:
        client.set("a", "1")
        own_redis.kill()
        assert not own_redis.answers()
        own_redis.start()
        assert client.get("a") is None


def test_redis_with_a_file_remembers_when_it_is_killed(server_workspace: Path) -> None:
    """With an append-only file, what was answered survives a kill."""
    server = RedisServer(server_workspace / "redis-append-only", append_only=True)
    try:
        server.start()
        with redis.Redis.from_url(server.url) as client:
            client.set("a", "1")
            server.kill()
            server.start()
            assert client.get("a") == b"1"
    finally:
        server.kill()


def test_a_frozen_redis_answers_nothing_until_it_is_thawed(own_redis: RedisServer) -> None:
    """A command to a frozen Redis times out, one to a thawed Redis is served."""
    own_redis.pause()
    with (
        redis.Redis.from_url(own_redis.url, socket_timeout=0.2, retry=None) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.ping()
    own_redis.resume()
    assert own_redis.answers()


def test_nothing_outlives_a_killed_test_run(tmp_path: Path) -> None:
    """A child dies with its parent, even when the parent is killed and the child lives in a session of its own."""
    pid_file = tmp_path / "pid"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time\n"
            "from tests.support.processes import spawn\n"
            "child = spawn([sys.executable, '-c', 'import time; time.sleep(600)'], output=pathlib.Path(sys.argv[1]))\n"
            "pathlib.Path(sys.argv[2]).write_text(str(child.pid))\n"
            "time.sleep(600)\n",
            str(tmp_path / "output"),
            str(pid_file),
        ],
        cwd=Path(__file__).parents[2],
    )
    eventually_blocking(lambda: pid_file.exists() and pid_file.read_text(), what="the child runs")
    child = Path("/proc") / pid_file.read_text()
    assert descendants(parent.pid) == [int(child.name)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually_blocking(lambda: not child.exists() or ") Z " in (child / "stat").read_text(), what="the child is gone")


def test_an_orphan_does_not_start(tmp_path: Path) -> None:
    """A program whose parent is another than the one that asked for it does not start."""
    started = tmp_path / "started"
    done = subprocess.run(
        [sys.executable, "-I", leash.__file__, "1", "9", "-", "/bin/sh", "-c", f"touch {started}"],
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 1
    assert b"the parent is gone" in done.stderr
    assert not started.exists()


def test_ports_are_given_once() -> None:
    """No port is given twice, and none from the range of outgoing connections."""
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < max(lowest, 32_000)


async def test_a_condition_that_never_holds_names_itself() -> None:
    """The deadline of `eventually` ends in an error that says what was waited for and what the last answer was."""
    with pytest.raises(AssertionError, match=r"not within 0.02 s: pigs fly \(last answer: 0\)"):
        await eventually(lambda: 0, 0.02, "pigs fly")
