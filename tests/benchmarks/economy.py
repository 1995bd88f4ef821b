"""What new keys cost Postgres, by how many connections ask for them: round trips, heap-only updates, bytes of log."""

from __future__ import annotations

import argparse
from typing import Any, Final

from tests.benchmarks import load
from tests.benchmarks.place import Place, ask
from tests.benchmarks.table import show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1 / 8
OPTIONS: Final = {"connections": (1, 16, 64, 256), "seconds": 4.0}
# From here on the batches have to be large enough.
_SATURATED: Final = 64
_ALONE: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
_COUNTS: Final = """
SELECT d.xact_commit, t.n_tup_upd, t.n_tup_hot_upd, pg_current_wal_insert_lsn() - '0/0' AS log_bytes
FROM pg_stat_database d, pg_stat_user_tables t
WHERE d.datname = current_database() AND t.relname = 'operation'
"""


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether the round trips are within their target."""
    rows, is_within = [], True
    for connections in asked.connections:
        requests, (commits, updates, heap_only, log_bytes) = _spent(place, connections, asked.seconds)
        trips, target = commits / (2 * requests), f"≤ {TARGET:.3f}" if connections >= _SATURATED else ""
        is_within = is_within and (not target or trips <= 1.2 * TARGET)
        rest = f"{heap_only / max(updates, 1):.3f}", f"{log_bytes / requests:,.0f}"
        rows.append((f"{connections:,}", f"{trips:.3f}", target, *rest))
    names = "connections", "round trips per operation", "target", "heap-only updates", "bytes of log per request"
    show(names, rows)
    return is_within


def _spent(place: Place, connections: int, seconds: float) -> tuple[int, list[float]]:
    store = place.store("postgres")
    # The first gateway makes the schema and finds out how long answers are kept.
    first = place.gateway(f"first-{connections}", store)
    load.store_new(first.port, 64)
    first.stop()
    before = _counts(store["durable"])
    program = place.gateway(f"economy-{connections}", store)
    load.store_new(program.port, 64)
    measured = load.measure(program.port, load.NEW, connections=connections, seconds=seconds)
    program.stop()
    after = _counts(store["durable"])
    return measured.requests_in_all + 64, [float(late - early) for early, late in zip(before, after, strict=True)]


def _counts(url: str) -> Any:
    eventually_blocking(lambda: ask(url, _ALONE)[0] == 1, 30.0, "the gateway's sessions are gone")
    return ask(url, _COUNTS)
