"""How much later an answer comes than through a plain proxy, at half of the rate that a gateway can take."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import PROTECTED, GatewayProgram, Program
from tests.benchmarks.table import in_turn, show

OPTIONS: Final = {"rounds": 5, "seconds": 3.0}
_SYNCS: Final = 100


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; there is no target."""
    plain = place.proxy("plain", "middleware")
    database, both = place.store("postgres"), place.store("postgres")
    programs = {
        "SQLite": place.gateway("sqlite", place.store("sqlite")),
        "Postgres": place.gateway("postgres", database),
        "Postgres and Redis": place.gateway("tiered", {**both, "fast": place.redis_url}),
    }
    rates = {name: load.saturation(program.port) / 2 for name, program in programs.items()}
    works = {name: partial(_round, each, plain, rates[name], asked.seconds) for name, each in programs.items()}
    rows = []
    for name, rounds in in_turn(asked.rounds, works).items():
        middle = {figure: median(one[figure] for one in rounds) for figure in rounds[0]}
        middle["the rest"] = middle["mean added"] - middle["claim"] - middle["complete"]
        rows.append((name, f"{rates[name]:,.0f}", *(f"{figure:.2f}" for figure in middle.values())))
    syncs = f"a sync of 8 KiB on this disk takes {_sync_ms(place.directory):.2f} ms"
    (log_sync_ms,) = ask(database["durable"], "SELECT wal_sync_time / greatest(wal_sync, 1) FROM pg_stat_wal")
    syncs += f", one of Postgres's log {log_sync_ms:.2f} ms"
    show(("store", "requests/s", *middle), rows, after=syncs)
    return True


def _round(program: GatewayProgram, plain: Program, rate: float, seconds: float) -> dict[str, float]:
    """Figures of one store, in milliseconds, as columns of the table."""
    baseline = load.measure(plain.port, load.Shape(PROTECTED, 200, None), rate=rate, seconds=seconds)
    before = program.told()
    mine = load.measure(program.port, load.NEW, rate=rate, seconds=seconds)
    after = program.told()
    return {
        "p50 ms": mine.latency_ms(50),
        "p99 ms": mine.latency_ms(99),
        "p50 over plain": mine.latency_ms(50) - baseline.latency_ms(50),
        "p99 over plain": mine.latency_ms(99) - baseline.latency_ms(99),
        "mean added": _mean_ms(before, after, "idempotency_overhead_seconds"),
        "claim": _mean_ms(before, after, "idempotency_store_duration_seconds", "claim"),
        "complete": _mean_ms(before, after, "idempotency_store_duration_seconds", "complete"),
    }


def _mean_ms(before: Mapping[str, float], after: Mapping[str, float], name: str, verb: str = "") -> float:
    total, count = (
        after.get(key, 0.0) - before.get(key, 0.0)
        for key in (f"{name}_{part} {verb}".rstrip() for part in ("sum", "count"))
    )
    return total / count * 1e3


def _sync_ms(directory: Path) -> float:
    """The median over a file that grows, as a log does."""
    spent = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(8192))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - began)
    return median(spent) * 1e3
