"""How many bytes of a store a remembered key takes, before its response is over and after.

The records are those of a gateway, with ids and digests of their own. They are counted after a vacuum, with all
indexes, and without the responses. Then a sweep finds that all the responses are over.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import islice
from typing import Any, Final

import asyncpg

from gateway.core.outbox import Outbox
from gateway.store.postgres.store import PostgresStore
from tests.benchmarks import load
from tests.benchmarks.filling import RETIRED, fill
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED
from tests.benchmarks.table import markdown

TARGET: Final = 1 / 6
_STORED: Final = load.Shape(PROTECTED, 200, b"stored")
_PASS_MAX: Final = 10_000

_SIZES: Final = """
SELECT sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind = 'r')::bigint AS rows,
    sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind = 'i')::bigint AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'idempotency_gateway' AND c.relname ~ $1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--records", type=int, default=1_000_000)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether a key takes as little as it should."""
    store = place.postgres()
    program = place.gateway("postgres", store)
    load.say_once(program.port, _STORED, list(islice(load.new_keys(), 100)))
    program.stop()
    fill(store, asked.records, RETIRED)
    text, ratio = asyncio.run(_measured(store["durable"], asked.records))
    print(f"\npostgres, {asked.records:,} keys\n\n{text}", flush=True)
    return ratio <= 1.2 * TARGET


async def _measured(url: str, records: int) -> tuple[str, float]:
    connection = await asyncpg.connect(url, timeout=60.0, command_timeout=3_600.0)
    try:
        wide = await _bytes_of(connection, "^operation", records)
        began = time.perf_counter()
        await _sweep(url, await connection.fetchval("SELECT service FROM idempotency_gateway.recipe LIMIT 1"))
        seconds = time.perf_counter() - began
        await connection.execute("VACUUM")
        moved = await connection.fetchval("SELECT count(*) FROM idempotency_gateway.tombstone")
        narrow = await _bytes_of(connection, "^(tombstone|kind)", moved)
    finally:
        await connection.close()
    rows = [
        (name, f"{number:,}", *(f"{each:.0f}" for each in (*parts, sum(parts))), f"{sum(parts) / sum(wide):.3f}")
        for name, number, parts in (("completed", records, wide), ("tombstone", moved, narrow))
    ]
    head = ("state", "keys", "row, bytes", "indexes, bytes", "together", "ratio")
    return f"{markdown(head, rows)}\n\nswept in {seconds:.0f} s", sum(narrow) / sum(wide)


async def _bytes_of(connection: Any, names: str, records: int) -> tuple[float, float]:
    """Of one key: of the rows, and of the indexes."""
    (sizes,) = await connection.fetch(_SIZES, names)
    return sizes["rows"] / records, sizes["indexes"] / records


async def _sweep(url: str, service: str) -> None:
    store = PostgresStore(url, outbox=Outbox(service))
    await store.start()
    try:
        while (await store.sweep(_PASS_MAX)).more:
            pass
    finally:
        await store.close()
