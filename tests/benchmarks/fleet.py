"""What many gateways on one Postgres cost it while they have little to do: connections, transactions, rows read."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Final

from gateway.store.postgres.store import PostgresStore
from tests.benchmarks import load
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import OTHER_CORE, SERVING_CORE, GatewayProgram
from tests.benchmarks.table import show
from tests.conformance.hand import Hand, do

# `settle`: seconds after the last start.
OPTIONS: Final = {"gateways": 16, "settle": 60.0, "seconds": 60.0}
# Of each gateway, and of the one whose turn it is.
CONNECTIONS_EACH: Final = 3
_KEYS: Final = 2_000
_IN_DOUBT: Final = 500
_COUNTS: Final = """
SELECT
    (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS transactions,
    sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FILTER (WHERE relname <> 'gateway') AS rows,
    sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FILTER (WHERE relname = 'gateway') AS members
FROM pg_stat_user_tables
"""
_SESSIONS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'idempotency-gateway'
"""


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether there are as few connections as there may be."""
    store, cores = place.store("postgres"), (SERVING_CORE, OTHER_CORE)
    programs = [place.gateway(f"fleet-{number}", store, cores=cores) for number in range(asked.gateways)]
    load.store_new(programs[0].port, _KEYS)
    asyncio.run(_leave_in_doubt(store["durable"]))
    time.sleep(asked.settle)
    rows, connections_max = [], 0
    for name, senders in (("idle", []), ("a new key each second for each", programs)):
        connections, rates = _measured(store["durable"], senders, asked.seconds)
        rows.append((name, f"{connections}", *(f"{rate:,.0f}" for rate in rates)))
        connections_max = max(connections_max, connections)
    names = f"{asked.gateways} gateways", "connections", "transactions/s", "rows read/s", "rows of members/s"
    show(names, rows)
    return connections_max <= CONNECTIONS_EACH * asked.gateways + 1


async def _leave_in_doubt(url: str) -> None:
    store = PostgresStore(url)
    await store.start()
    try:
        await asyncio.gather(*(do(store, Hand(), Hand.claim, Hand.abandon) for _ in range(_IN_DOUBT)))
    finally:
        await store.close()


def _measured(url: str, programs: Sequence[GatewayProgram], seconds: float) -> tuple[int, list[float]]:
    """Connections at the end, and the counts for each second."""
    before, began = ask(url, _COUNTS), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        second = time.monotonic()
        for program in programs:
            load.store_new(program.port, 1)
        time.sleep(min(left, max(0.0, second + 1.0 - time.monotonic())))
    (sessions,) = ask(url, _SESSIONS)
    after, spent = ask(url, _COUNTS), time.monotonic() - began
    return sessions, [float(late - early) / spent for early, late in zip(before, after, strict=True)]
