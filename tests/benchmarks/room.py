"""How many bytes of a store a remembered key takes, before its response is over and after."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Final

from gateway.store.postgres.store import PostgresStore
from tests.benchmarks import load
from tests.benchmarks.filling import RETIRED, fill
from tests.benchmarks.place import Place, ask
from tests.benchmarks.table import show

TARGET: Final = 1 / 3
OPTIONS: Final = {"records": 1_000_000}
_TIMES: Final = 5
_PASS_MAX: Final = 10_000
_SIZES: Final = """
SELECT sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind = 'r')::bigint AS rows,
    sum(pg_relation_size(c.oid)) FILTER (WHERE c.relkind = 'i')::bigint AS indexes
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'idempotency_gateway' AND c.relname ~ '^(operation|narrow|kind)'
"""


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether a key takes as little as it should."""
    store = place.store("postgres")
    program = place.gateway("postgres", store)
    load.store_new(program.port, 100)
    program.stop()
    records, sizes, seconds = asked.records // _TIMES, [], 0.0
    for number in range(_TIMES):
        fill(store, records, RETIRED)
        if not number:
            wide = [size / records for size in _bytes_of(store["durable"])]
        began = time.perf_counter()
        asyncio.run(_sweep(store["durable"]))
        seconds += time.perf_counter() - began
        sizes.append(_bytes_of(store["durable"]))
    narrow = [(last - first) / records / (_TIMES - 1) for first, last in zip(sizes[0], sizes[-1], strict=True)]
    rows = [
        (name, *(f"{each:.0f}" for each in (*parts, sum(parts))), f"{sum(parts) / sum(wide):.3f}")
        for name, parts in (("completed", wide), ("tombstone", narrow))
    ]
    names = ("state", "row, bytes", "indexes, bytes", "together", "ratio")
    show(names, rows, f"postgres, {_TIMES * records:,} keys", f"{_TIMES * records / seconds:,.0f} swept a second")
    return sum(narrow) / sum(wide) <= 1.2 * TARGET


def _bytes_of(url: str) -> tuple[int, int]:
    """Of the rows, and of the indexes."""
    ask(url, "VACUUM")
    rows, indexes = ask(url, _SIZES)
    return rows, indexes


async def _sweep(url: str) -> None:
    store = PostgresStore(url)
    await store.start()
    try:
        while (await store.sweep(_PASS_MAX)).more:
            pass
    finally:
        await store.close()
