"""How many statements a second an idle gateway makes that accepts requests and has a worker and a sink for events."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import apsw

from tests.benchmarks.place import STORES, Place
from tests.benchmarks.table import show
from tests.support.house import house

TARGET: Final = 2.0
# `settle`: seconds after the start.
OPTIONS: Final = {"stores": STORES, "settle": 15.0, "seconds": 60.0}
# What begins, ends or sets up a transaction.
AROUND: Final = ("BEGIN", "COMMIT", "PRAGMA")
# The beginning of a statement, with and without a name that the driver gave it.
LOGGED: Final = re.compile(r" LOG:  (?:statement|execute [^:]*): (.*)")
_SETTINGS: Final[Mapping[str, Any]] = {
    "route": {"accept": {"identity": "unverified"}},
    "secrets": {"encryption": [{"id": "bench", "key": "00" * 32}]},
    "events": {"sinks": [{"name": "lines", "kind": "stdout"}]},
    "log": {"requests": "none"},
}


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Count, and print; whether there are as few as there may be."""
    rows, is_within = [], True
    for kind in asked.stores:
        statements = asyncio.run((_sqlite if kind == "sqlite" else _postgres)(place, asked))
        around = sum(text.startswith(AROUND) for text in statements) / asked.seconds
        rate = len(statements) / asked.seconds - around
        is_within = is_within and rate <= 1.2 * TARGET
        rows.append((kind, f"{rate:.1f}", f"≤ {TARGET:.1f}", f"{around:.1f}"))
    show(("store", "statements/s", "target", "of transactions/s"), rows)
    return is_within


async def _sqlite(place: Place, asked: argparse.Namespace) -> list[str]:
    store = place.store("sqlite")
    path = store["durable"].removeprefix("sqlite://")
    found: list[str] = []

    def trace(connection: apsw.Connection) -> None:
        if connection.filename == path:
            connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]))

    apsw.connection_hooks.append(trace)
    try:
        async with house(store, place.directory / "idle-sqlite", **_SETTINGS):
            await asyncio.sleep(asked.settle)
            found.clear()
            await asyncio.sleep(asked.seconds)
            return list(found)
    finally:
        apsw.connection_hooks.remove(trace)


async def _postgres(place: Place, asked: argparse.Namespace) -> list[str]:
    store = {"durable": await place.server.new_database()}
    name = urlsplit(store["durable"]).path.removeprefix("/")
    await place.server.fetch(f"ALTER DATABASE {name} SET log_statement = 'all'")
    async with house(store, place.directory / "idle-postgres", **_SETTINGS):
        await asyncio.sleep(asked.settle)
        logged_bytes = place.server.log.stat().st_size
        await asyncio.sleep(asked.seconds)
        logged = place.server.log.read_bytes()[logged_bytes:].decode(errors="replace")
    return LOGGED.findall(logged)
