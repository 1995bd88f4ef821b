"""`python -m tests.benchmarks`: the gateway beside a plain proxy, in the same run, as one table.

The proxies are pinned to one core; the load, the service, Postgres and Redis to another. All proxies are started first
and then loaded in turn, round after round, so that what else happens on the machine meets each of them alike. Of each
work the table has the median over the rounds, and as ratio the median of its CPU time per request over the baseline's
in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from tests.benchmarks import load
from tests.benchmarks.subject import (
    OTHER_CORE,
    PROTECTED,
    SERVING_CORE,
    UNPROTECTED,
    Program,
    gateway,
    pinned,
    python,
)
from tests.benchmarks.table import BASELINE, Figures, Line, line_of, written
from tests.support.ports import free_port
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace
from tests.support.redis import RedisServer

# Statements and bytes so far; None where the store does not tell.
Writes = tuple[float | None, float | None]

# Enough that a cold replay meets a key again only after all the others.
_KEYS = 512


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured: a program under requests of one shape. `store_read` gives statements and bytes so far."""

    name: str
    target: float | None
    program: Program
    path: bytes
    word: bytes | None
    is_repeated: bool = False
    store_read: Callable[[], Writes] | None = None


def main() -> int:
    """Measure, and print. Returns 1 when a ratio is worse than its target by more than a fifth."""
    asked = _arguments()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))
    os.sched_setaffinity(0, {OTHER_CORE})
    if SERVING_CORE == OTHER_CORE:
        print("one core only: load and proxies take turns on it, and only the ratios mean anything")
    is_within = True
    with ExitStack() as stack:
        works = _works(stack, asked.only)
        print(_where())
        for body_bytes in asked.body:
            for connections in asked.connections:
                lines = _measure(works, body_bytes, connections, asked.rounds, asked.seconds)
                print(f"\n{body_bytes} bytes each way, {connections} connections\n\n{written(lines)}", flush=True)
                is_within = is_within and all(line.is_within for line in lines)
    return 0 if is_within or not asked.check else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--body", type=int, nargs="+", default=[200], help="bytes of request and answer (200)")
    parser.add_argument("--connections", type=int, nargs="+", default=[64], help="at once (64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", nargs="*", default=[], help="works whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="fail when a ratio is worse than its target by a fifth")
    return parser.parse_args()


def _where() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} × {model}"


def _works(stack: ExitStack, only: list[str]) -> list[Work]:
    """Everything that is to be measured, started."""
    directory = stack.enter_context(workspace("gateway-bench"))
    service = python("service", "tests.benchmarks.upstream", [], free_port(), directory, OTHER_CORE)
    plain = python("plain", "tests.benchmarks.plain", [str(service.port)], free_port(), directory, SERVING_CORE)
    sqlite_file = directory / "sqlite" / "operations.db"
    sqlite = gateway("sqlite", {"durable": f"sqlite://{sqlite_file}"}, service.port, directory, "bench")

    works = [
        Work(BASELINE, None, plain, PROTECTED, None),
        Work("passed through, unprotected", 0.45, sqlite, UNPROTECTED, None),
        Work("replay, hot", 0.22, sqlite, PROTECTED, b"replayed", is_repeated=True),
        Work(
            "new key, SQLite",
            0.75,
            sqlite,
            PROTECTED,
            b"stored",
            store_read=lambda: (None, float(sqlite.written_bytes())),
        ),
    ]
    names = ("replay, from Redis", "new key, Postgres", "new key, Postgres and Redis")
    if not only or any(word in name for word in only for name in names):
        works += _on_servers(stack, directory, service.port)
    works = [work for work in works if work.name == BASELINE or not only or any(word in work.name for word in only)]
    for program in dict.fromkeys([service, *(work.program for work in works)]):
        stack.callback(program.stop)
        program.start()
    return works


def _on_servers(stack: ExitStack, directory: Path, upstream_port: int) -> list[Work]:
    """The works that need Postgres and Redis, which are started here."""
    place = directory / "programs"
    place.mkdir()
    with pinned(OTHER_CORE):
        postgres = PostgresServer(PostgresInstallation(place), directory / "pg")
        redis = RedisServer(directory / "redis")
        stack.callback(postgres.stop)
        postgres.start()
        stack.callback(redis.stop)
        redis.start()
    url, other_url = asyncio.run(postgres.new_database()), asyncio.run(postgres.new_database())

    def made(name: str, store: dict[str, Any], service: str) -> Program:
        return gateway(name, store, upstream_port, directory, service)

    alone = made("postgres", {"durable": url}, "alone")
    both = {"durable": other_url, "fast": redis.url}
    tiered = made("tiered", both, "both")
    # Nothing stays in the memory of this one, so each of its replays comes from Redis.
    cold = made("cold", {**both, "cache_max_age": "0s"}, "both")
    return [
        Work("replay, from Redis", 0.40, cold, PROTECTED, b"replayed", is_repeated=True),
        Work("new key, Postgres", 0.75, alone, PROTECTED, b"stored", store_read=lambda: _postgres_writes(url)),
        Work(
            "new key, Postgres and Redis", 0.75, tiered, PROTECTED, b"stored",
            store_read=lambda: _postgres_writes(other_url),
        ),
    ]  # fmt: skip


def _postgres_writes(url: str) -> Writes:
    """Transactions of this database, and bytes of WAL of the server, so far."""

    async def ask() -> Writes:
        connection = await asyncpg.connect(url)
        try:
            row = await connection.fetchrow(
                "SELECT xact_commit, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_database"
                " WHERE datname = current_database()"
            )
            return float(row[0]), float(row[1])
        finally:
            await connection.close()

    return asyncio.run(ask())


def _measure(works: list[Work], body_bytes: int, connections: int, rounds: int, seconds: float) -> list[Line]:
    keys = {work.name: _remembered(work, body_bytes) for work in works if work.is_repeated}
    found: dict[str, list[Figures]] = {work.name: [] for work in works}
    for number in range(rounds):
        for work in works:
            repeated = keys.get(work.name)
            stream = load.new_keys() if repeated is None else load.again(repeated)
            figures = _figures(work, stream, body_bytes, connections, seconds)
            found[work.name].append(figures)
            if sys.stderr.isatty():
                print(f"\r{number + 1}/{rounds} {work.name}: {figures.cpu_us:.1f} µs\033[K", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    baselines = found[BASELINE]
    return [line_of(work.name, work.target, found[work.name], baselines) for work in works]


def _remembered(work: Work, body_bytes: int) -> list[bytes]:
    """Keys that are completed, so that each further request under one of them is a replay."""
    keys = list(islice(load.new_keys(), _KEYS))
    load.say_once(work.program.port, load.Shape(work.path, body_bytes, b"stored"), keys)
    return keys


def _figures(work: Work, keys: Iterator[bytes], body_bytes: int, connections: int, seconds: float) -> Figures:
    program = work.program
    before = work.store_read() if work.store_read is not None else None
    measured = load.measure(
        program.port,
        load.Shape(work.path, body_bytes, work.word),
        keys,
        connections=connections,
        seconds=seconds,
        read=lambda: (program.cpu_seconds(),),
    )
    (cpu_seconds,) = measured.spent
    requests, latencies = measured.requests, measured.latencies
    writes: Writes = (None, None)
    if before is not None and work.store_read is not None:
        writes = _per(measured.requests_in_all, before, work.store_read())
    return Figures(
        cpu_us=cpu_seconds / requests * 1e6,
        requests_per_second=requests / measured.seconds,
        p50_ms=latencies[len(latencies) // 2] * 1e3,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1e3,
        rss_mib=program.rss_bytes() / 2**20,
        writes=writes,
    )


def _per(operations: int, before: Writes, after: Writes) -> Writes:
    first, second = (
        None if early is None or late is None else (late - early) / operations
        for early, late in zip(before, after, strict=True)
    )
    return first, second


if __name__ == "__main__":
    sys.exit(main())
