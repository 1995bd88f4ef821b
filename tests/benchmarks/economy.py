"""What new keys cost Postgres, by how many connections ask for them: round trips, heap-only updates, bytes of log."""

from __future__ import annotations

import argparse
from typing import Any, Final

from tests.benchmarks import load
from tests.benchmarks.place import Place, ask
from tests.benchmarks.table import show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1 / 8
# From here on the batches have to be large enough.
_SATURATED: Final = 64
_ALONE: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
_COUNTS: Final = """
SELECT d.xact_commit, t.n_tup_upd, t.n_tup_hot_upd, pg_current_wal_insert_lsn() - '0/0' AS log_bytes
FROM pg_stat_database d, pg_stat_user_tables t
WHERE d.datname = current_database() AND t.relname = 'operation'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether the round trips are within their target."""
    rows, is_within = [], True
    for connections in asked.connections:
        requests, spent = _spent(place, connections, asked.seconds)
        trips, is_saturated = spent["xact_commit"] / (2 * requests), connections >= _SATURATED
        is_within = is_within and (not is_saturated or trips <= 1.2 * TARGET)
        rows.append(
            (
                f"{connections:,}",
                f"{trips:.3f}",
                f"≤ {TARGET:.3f}" if is_saturated else "",
                f"{spent['n_tup_hot_upd'] / max(spent['n_tup_upd'], 1):.3f}",
                f"{spent['log_bytes'] / requests:,.0f}",
            )
        )
    names = "connections", "round trips per operation", "target", "heap-only updates", "bytes of log per request"
    show(names, rows)
    return is_within


def _spent(place: Place, connections: int, seconds: float) -> tuple[int, dict[str, float]]:
    store = place.postgres()
    url = store["durable"]
    # The first gateway makes the schema and finds out how long answers are kept.
    first = place.gateway(f"first-{connections}", store)
    load.store_new(first.port, 64)
    first.stop()
    before = _counts(url)
    program = place.gateway(f"economy-{connections}", store)
    load.store_new(program.port, 64)
    measured = load.measure(program.port, load.NEW, load.new_keys(), connections=connections, seconds=seconds)
    program.stop()
    after = _counts(url)
    return measured.requests_in_all + 64, {name: float(after[name] - before[name]) for name in before.keys()}  # noqa: SIM118


def _counts(url: str) -> Any:
    eventually_blocking(lambda: ask(url, _ALONE)[0] == 1, 30.0, "the gateway's sessions are gone")
    return ask(url, _COUNTS)
