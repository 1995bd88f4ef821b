"""`make test-servers`: the tests of the stores on every version of Postgres, Redis and Valkey that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.run import ROOT, temporary_files
from tests.support import programs
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace

_POSTGRES_TESTS: Final = tuple(str(path) for path in sorted(Path("tests/store").glob("test_postgres*.py")))
_REDIS_TESTS: Final = tuple(str(path) for path in sorted(Path("tests/store").glob("test_redis*.py")))
_TIERED_TESTS: Final = ("tests/store/test_tiered.py",)
_WHOLE: Final = ("tests/http/gateway/test_shared_redis.py", "tests/events/test_brokers.py")
_SUITE: Final = "tests/conformance"


@dataclass(frozen=True)
class Run:
    """One call of pytest; `only` is an expression for its `-k`."""

    name: str
    tests: tuple[str, ...]
    only: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def runs() -> Iterator[Run]:
    """Those that need nothing to be started before."""
    for program in programs.every_postgres():
        environment = {"GATEWAY_TEST_POSTGRES_BIN": str(program.path.parent)}
        yield Run(str(program), (*_POSTGRES_TESTS, _SUITE), "test_postgres or [postgres", environment)
    for program in programs.every_redis():
        environment = {"GATEWAY_TEST_REDIS_SERVER": str(program.path)}
        yield Run(
            str(program),
            (*_REDIS_TESTS, *_TIERED_TESTS, *_WHOLE, _SUITE),
            "redis or test_tiered or [tiered-memory",
            environment,
        )


def main(arguments: list[str]) -> int:
    """Returns 0 if everything passed and nothing was missing."""
    with temporary_files():
        results = [(each.name, _carry_out(each, arguments)) for each in runs()]
        results.append(_behind_pgbouncer(arguments))
    print("\n== every version that is there ==")
    for name, code in results:
        print(f"{'passed' if code == 0 else 'FAILED'}  {name}")
    return max(code for _, code in results)


def _carry_out(run: Run, arguments: list[str]) -> int:
    print(f"\n== {run.name} ==", flush=True)
    only = ["-k", run.only] if run.only else []
    command = [sys.executable, "-m", "pytest", "--full", *run.tests, *only, *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **run.environment}, check=False).returncode


def _behind_pgbouncer(arguments: list[str]) -> tuple[str, int]:
    try:
        name = str(programs.pgbouncer())
    except AssertionError as error:
        return str(error), 1
    with workspace("pgbouncer") as directory:
        server = PostgresServer(PostgresInstallation(directory / "postgres"), directory / "pg")
        with server.running(), PgBouncer(server.url, directory / "pgbouncer").running() as pooler:
            codes = [
                _carry_out(Run(name, ("tests/servers",)), arguments),
                _carry_out(Run(name, (_SUITE,), "[postgres", {"GATEWAY_TEST_POSTGRES": pooler.url}), arguments),
            ]
    return name, max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
