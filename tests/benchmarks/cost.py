"""What a request costs: CPU time of the gateway per request beside a plain proxy's, in the same run.

The proxies are pinned to one core; the load, the service, Postgres and Redis to another, so that the time of the
servers is in no figure. All proxies are started first and then loaded in turn, round after round, so that what else
happens on the machine meets each of them alike. Of each work the table has the median over the rounds, and as ratio the
median of its CPU time per request (user and system, all processes and threads) over the baseline's in the same round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tests.benchmarks import load
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import PROTECTED, UNPROTECTED, Program
from tests.benchmarks.table import BASELINE, Figures, Goal, Line, line_of, written

# Statements and bytes so far; None where the store does not tell.
Writes = tuple[float | None, float | None]

_KEYS = 512
# Enough that a cold replay meets a key again only when no part of the gateway remembers the request any more.
_COLD_KEYS = 2048

_SHORT_ROUNDS = 5
_SHORT_SECONDS = 0.3
_SHORT_WARM_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured: a program under requests of one shape.

    With `repeated_keys`, under so many keys again and again. `store_read` gives statements and bytes so far.
    """

    name: str
    goal: Goal | None
    program: Program
    path: bytes
    verdict: bytes | None
    repeated_keys: int = 0
    store_read: Callable[[], Writes] | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--body", type=int, nargs="+", default=[200], help="bytes of request and answer (200)")
    parser.add_argument("--connections", type=int, nargs="+", default=[64], help="at once (64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", nargs="*", default=[], help="works whose name contains one of these")
    parser.add_argument("--short", action="store_true", help="CPU time alone, in short rounds: some 20 seconds")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within what it is held to."""
    rounds, seconds = (_SHORT_ROUNDS, _SHORT_SECONDS) if asked.short else (asked.rounds, asked.seconds)
    works = _works(place, asked.only, is_short=asked.short)
    if asked.short:
        # What one of them stores in Postgres the other stores there too; and asking a store for its figures takes time.
        works = [replace(work, store_read=None) for work in works if work.name != "new key, Postgres"]
    warm_seconds = _SHORT_WARM_SECONDS if asked.short else load.WARM_SECONDS
    is_within = True
    for body_bytes in asked.body:
        for connections in asked.connections:
            lines = _measure(works, body_bytes, connections, rounds, (warm_seconds, seconds))
            if asked.short and not all(line.is_within for line in lines):
                # Short rounds meet what else a machine does. What is worse is worse twice.
                lines = _measure(works, body_bytes, connections, 2 * rounds, (warm_seconds, seconds))
            print(f"\n{body_bytes} bytes each way, {connections} connections\n\n{written(lines)}", flush=True)
            is_within = is_within and all(line.is_within for line in lines)
    return is_within


def _works(place: Place, only: list[str], *, is_short: bool) -> list[Work]:
    """Everything that is to be measured, started."""

    def is_asked(name: str) -> bool:
        return not only or any(verdict in name for verdict in only)

    works = [Work(BASELINE, None, place.plain(), PROTECTED, None)]
    if is_asked("passed through, unprotected replay, same worker new key, SQLite"):
        sqlite = place.gateway("sqlite", place.sqlite())
        works += [
            Work("passed through, unprotected", Goal(0.60, 0.80), sqlite, UNPROTECTED, None),
            Work("replay, same worker", Goal(0.60, 0.75), sqlite, PROTECTED, b"replayed", repeated_keys=_KEYS),
            Work(
                "new key, SQLite", Goal(1.30, 2.60), sqlite, PROTECTED, b"stored",
                store_read=lambda: (None, float(sqlite.written_bytes())),
            ),
        ]  # fmt: skip
    if is_asked("observed, not enforced") and not is_short:
        observed = place.gateway("observed", place.sqlite(), route={"mode": "observe"})
        works.append(Work("observed, not enforced", None, observed, PROTECTED, None))
    if is_asked("new key, Postgres"):
        store = place.postgres()
        alone = place.gateway("postgres", store)
        works.append(_on_postgres("new key, Postgres", Goal(1.35, 2.10), alone, store["durable"]))
    if is_asked("replay, from Redis new key, Postgres and Redis"):
        store = {**place.postgres(), "fast": place.redis_url}
        # Nothing stays in the memory of this one, so each of its replays comes from Redis.
        cold = place.gateway("cold", {**store, "cache_max_age": "0s"})
        tiered = place.gateway("tiered", store)
        goal = Goal(0.75, 0.95)
        works.append(Work("replay, from Redis", goal, cold, PROTECTED, b"replayed", repeated_keys=_COLD_KEYS))
        works.append(_on_postgres("new key, Postgres and Redis", Goal(1.45, 2.75), tiered, store["durable"]))
    return [work for work in works if work.name == BASELINE or is_asked(work.name)]


def _on_postgres(name: str, goal: Goal, program: Program, url: str) -> Work:
    return Work(name, goal, program, PROTECTED, b"stored", store_read=lambda: _postgres_writes(url))


def _postgres_writes(url: str) -> Writes:
    """Transactions of this database, and bytes of WAL of the server, so far."""
    row = ask(
        url,
        "SELECT xact_commit, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_database"
        " WHERE datname = current_database()",
    )
    return float(row[0]), float(row[1])


def _measure(
    works: list[Work], body_bytes: int, connections: int, rounds: int, seconds: tuple[float, float]
) -> list[Line]:
    keys = {work.name: _remembered(work, body_bytes) for work in works if work.repeated_keys}
    found: dict[str, list[Figures]] = {work.name: [] for work in works}
    # The first of each opens connections and fills caches, which can take longer than a short round.
    for work in works:
        load.say_once(work.program.port, load.Shape(work.path, body_bytes, None), list(islice(load.new_keys(), _KEYS)))
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
    return [line_of(work.name, work.goal, found[work.name], baselines) for work in works]


def _remembered(work: Work, body_bytes: int) -> list[bytes]:
    """Keys that are completed, so that each further request under one of them is a replay."""
    keys = list(islice(load.new_keys(), work.repeated_keys))
    load.say_once(work.program.port, load.Shape(work.path, body_bytes, b"stored"), keys)
    return keys


def _figures(
    work: Work, keys: Iterator[bytes], body_bytes: int, connections: int, seconds: tuple[float, float]
) -> Figures:
    program, (warm_seconds, measured_seconds) = work.program, seconds
    before = work.store_read() if work.store_read is not None else None
    measured = load.measure(
        program.port,
        load.Shape(work.path, body_bytes, work.verdict),
        keys,
        connections=connections,
        seconds=measured_seconds,
        warm_seconds=warm_seconds,
        read=lambda: (program.cpu_seconds(),),
    )
    (cpu_seconds,) = measured.spent
    requests = measured.requests
    if not requests:
        raise AssertionError(f"{work.name}: nothing was answered in {measured_seconds:g} s; give it more --seconds")
    writes: Writes = (None, None)
    if before is not None and work.store_read is not None:
        writes = _per(measured.requests_in_all, before, work.store_read())
    return Figures(
        cpu_us=cpu_seconds / requests * 1e6,
        requests_per_second=requests / measured.seconds,
        p50_ms=measured.latency_ms(50),
        p99_ms=measured.latency_ms(99),
        rss_mib=program.rss_bytes() / 2**20,
        writes=writes,
    )


def _per(operations: int, before: Writes, after: Writes) -> Writes:
    first, second = (
        None if early is None or late is None else (late - early) / operations
        for early, late in zip(before, after, strict=True)
    )
    return first, second
