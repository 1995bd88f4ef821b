"""The command line of runs under kills that are too long for the suite: on which store, how long, when what happens."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

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


Run = Callable[..., Coroutine[Any, Any, Any]]
"""Its result is a verdict, or several that have `faults`; its text is printed."""


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
    with workspace(name) as directory, ExitStack() as stack:
        section = sqlite_store(directory)
        if kind == "postgres":
            installation = PostgresInstallation(directory / "installation")
            server = PostgresServer(installation, directory / "postgres")
            section = {"durable": stack.enter_context(server.running()).url}
        verdict = asyncio.run(run(directory, section, **asked))
    print(verdict)
    return 1 if verdict.faults else 0
