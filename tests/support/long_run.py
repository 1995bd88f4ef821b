"""The command line of runs that are too long for the suite: on which store, how long, when what happens."""

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


def main(name: str, summary: str | None, run: Run, *, has_store: bool = True, **options: float | str) -> int:
    """`run(directory, store, seed=…, …)` on an empty store, with what the command line asks; 1 where it found a fault.

    `summary` is a module's text, of which the first line is shown. `options` have these defaults. A run that brings
    servers of its own gets an installation of Postgres in the place of the store.
    """
    parser = argparse.ArgumentParser(prog=name, description=(summary or "").partition("\n")[0])
    for option, default in options.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{option}", action="store_true")
        else:
            parser.add_argument(f"--{option}", type=type(default), default=default)
    parser.add_argument("--seed", type=int, default=1, help="decides what happens when")
    if has_store:
        parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    asked = vars(parser.parse_args())
    kind = asked.pop("store", None)
    with workspace(name) as directory, ExitStack() as stack:
        store: Any = sqlite_store(directory)
        if kind != "sqlite":
            store = PostgresInstallation(directory / "installation")
        if kind == "postgres":
            server = PostgresServer(store, directory / "postgres")
            store = {"durable": stack.enter_context(server.running()).url}
        verdict = asyncio.run(run(directory, store, **asked))
    print(verdict)
    return 1 if verdict.faults else 0
