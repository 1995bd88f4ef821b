"""The command line of runs under kills that are too long for the suite: on which store, how long, when what happens."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from tests.support.house import sqlite_store
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace


class Verdict(Protocol):
    """What a run came to; its text is printed."""

    faults: list[str]


Run = Callable[[Path, dict[str, Any], argparse.Namespace], Coroutine[Any, Any, Verdict]]


def main(name: str, summary: str | None, run: Run, **options: float) -> int:
    """Run it on an empty store as the command line asks; the exit code says whether it found a fault.

    `summary` is a module's text, of which the first line is shown. `options` have these defaults.
    """
    parser = argparse.ArgumentParser(prog=f"tests.integration.{name}", description=(summary or "").partition("\n")[0])
    for option, default in options.items():
        parser.add_argument(f"--{option}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=1, help="decides what happens when")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    asked = parser.parse_args()
    with workspace(name) as directory:
        if asked.store == "sqlite":
            return _report(run(directory, sqlite_store(directory), asked))
        (directory / "installation").mkdir()
        server = PostgresServer(PostgresInstallation(directory / "installation"), directory / "postgres")
        server.start()
        try:
            return _report(run(directory, {"durable": server.url}, asked))
        finally:
            server.crash()


def _report(running: Coroutine[Any, Any, Verdict]) -> int:
    verdict = asyncio.run(running)
    print(verdict)
    return 1 if verdict.faults else 0
