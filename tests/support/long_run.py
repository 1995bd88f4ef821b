"""The command line of runs under kills that are too long for the suite: on which store, how long, when what happens."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.support.house import sqlite_store
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace


@dataclass
class Verdict:
    """What a run came to. It holds where there are no `faults`, of which the first are printed."""

    faults: list[str] = field(default_factory=list, kw_only=True)

    def summary(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n  ".join((self.summary(), *self.faults[:20]))


class Judged(Protocol):
    """A verdict, or several; its text is printed."""

    @property
    def faults(self) -> list[str]: ...


Run = Callable[..., Coroutine[Any, Any, Judged]]


def main(name: str, summary: str | None, run: Run, **options: float) -> int:
    """`run(directory, store, seed=…, …)` on an empty store, with what the command line asks; 1 where it found a fault.

    `summary` is a module's text, of which the first line is shown. `options` have these defaults.
    """
    parser = argparse.ArgumentParser(prog=f"tests.integration.{name}", description=(summary or "").partition("\n")[0])
    for option, default in options.items():
        parser.add_argument(f"--{option}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=1, help="decides what happens when")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    asked = vars(parser.parse_args())
    kind = asked.pop("store")
    with workspace(name) as directory:
        if kind == "sqlite":
            return _report(run(directory, sqlite_store(directory), **asked))
        installation = PostgresInstallation(directory / "installation")
        with PostgresServer(installation, directory / "postgres").running() as server:
            return _report(run(directory, {"durable": server.url}, **asked))


def _report(running: Coroutine[Any, Any, Judged]) -> int:
    verdict = asyncio.run(running)
    print(verdict)
    return 1 if verdict.faults else 0
