"""How many bytes of a store a remembered key takes, before its response is over and after."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Final

import asyncpg

from gateway.store.postgres.store import PostgresStore
from tests.benchmarks import load
from tests.benchmarks.filling import RETIRED, fill
from tests.benchmarks.place import Place
from tests.benchmarks.table import show

TARGET: Final = 1 / 3
_TIMES: Final = 5
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
    load.store_new(program.port, 100)
    program.stop()
    return _measured(store, asked.records // _TIMES) <= 1.2 * TARGET


def _measured(store: dict[str, str], records: int) -> float:
    sizes, seconds = [], 0.0
    for number in range(_TIMES):
        fill(store, records, RETIRED)
        if not number:
            completed = asyncio.run(_bytes_of(store["durable"]))
        began = time.perf_counter()
        asyncio.run(_sweep(store["durable"]))
        seconds += time.perf_counter() - began
        sizes.append(asyncio.run(_bytes_of(store["durable"])))
    wide = [size / records for size in completed]
    narrow = [(last - first) / records / (_TIMES - 1) for first, last in zip(sizes[0], sizes[-1], strict=True)]
    rows = [
        (name, *(f"{each:.0f}" for each in (*parts, sum(parts))), f"{sum(parts) / sum(wide):.3f}")
        for name, parts in (("completed", wide), ("tombstone", narrow))
    ]
    names = ("state", "row, bytes", "indexes, bytes", "together", "ratio")
    show(names, rows, f"postgres, {_TIMES * records:,} keys", f"{_TIMES * records / seconds:,.0f} swept a second")
    return sum(narrow) / sum(wide)


async def _bytes_of(url: str) -> tuple[int, int]:
    """Of the rows, and of the indexes."""
    connection = await asyncpg.connect(url, timeout=60.0, command_timeout=3_600.0)
    try:
        await connection.execute("VACUUM")
        (sizes,) = await connection.fetch(_SIZES, "^(operation|narrow|kind)")
    finally:
        await connection.close()
    return sizes["rows"], sizes["indexes"]


async def _sweep(url: str) -> None:
    store = PostgresStore(url)
    await store.start()
    try:
        while (await store.sweep(_PASS_MAX)).more:
            pass
    finally:
        await store.close()
