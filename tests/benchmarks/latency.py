"""How much later an answer comes than through a plain proxy, at half of the rate that a gateway can take."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.options import add_rounds
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import PROTECTED, GatewayProgram, Program
from tests.benchmarks.table import show

_SYNCS: Final = 100


@dataclass(frozen=True, slots=True)
class _Round:
    """One store in one round, in milliseconds."""

    p50: float
    p99: float
    plain_p50: float
    plain_p99: float
    added: float
    claim: float
    complete: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    add_rounds(parser, 5, 3.0)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; there is no target."""
    plain = place.plain()
    database, both = place.postgres(), place.postgres()
    programs = {
        "SQLite": place.gateway("sqlite", place.sqlite()),
        "Postgres": place.gateway("postgres", database),
        "Postgres and Redis": place.gateway("tiered", {**both, "fast": place.redis_url}),
    }
    rates = {name: load.saturation(program.port) / 2 for name, program in programs.items()}
    rounds: dict[str, list[_Round]] = {name: [] for name in programs}
    for _ in range(asked.rounds):
        for name, program in programs.items():
            rounds[name].append(_round(program, plain, rates[name], asked.seconds))
    rows = []
    for name, found in rounds.items():
        middle = {part: median(getattr(one, part) for one in found) for part in _Round.__dataclass_fields__}
        over = {
            percent: median(getattr(one, percent) - getattr(one, f"plain_{percent}") for one in found)
            for percent in ("p50", "p99")
        }
        rest = middle["added"] - middle["claim"] - middle["complete"]
        cells = [middle["p50"], middle["p99"], over["p50"], over["p99"]]
        cells += [middle["added"], middle["claim"], middle["complete"], rest]
        rows.append((name, f"{rates[name]:,.0f}", *(f"{cell:.2f}" for cell in cells)))
    names = "store", "requests/s", "p50 ms", "p99 ms", "p50 over plain", "p99 over plain"
    syncs = f"a sync of 8 KiB on this disk takes {_sync_ms(place.directory):.2f} ms"
    syncs += f", one of Postgres's log {_log_sync_ms(database['durable']):.2f} ms"
    show((*names, "mean added", "claim", "complete", "the rest"), rows, after=syncs)
    return True


def _round(program: GatewayProgram, plain: Program, rate: float, seconds: float) -> _Round:
    baseline = load.new_at(plain.port, rate, seconds, shape=load.Shape(PROTECTED, 200, None))
    before = program.told()
    mine = load.new_at(program.port, rate, seconds)
    after = program.told()
    return _Round(
        mine.latency_ms(50),
        mine.latency_ms(99),
        baseline.latency_ms(50),
        baseline.latency_ms(99),
        _mean_ms(before, after, "idempotency_overhead_seconds"),
        _mean_ms(before, after, "idempotency_store_duration_seconds", "claim"),
        _mean_ms(before, after, "idempotency_store_duration_seconds", "complete"),
    )


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


def _log_sync_ms(url: str) -> float:
    row = ask(url, "SELECT wal_sync_time / greatest(wal_sync, 1) FROM pg_stat_wal")
    return float(row[0])
