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
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import PROTECTED, GatewayProgram, Program
from tests.benchmarks.table import markdown

_CONNECTIONS: Final = 64
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; there is no target."""
    plain = place.plain()
    database, both = place.postgres(), place.postgres()
    programs = {
        "SQLite": place.gateway("sqlite", place.sqlite()),
        "Postgres": place.gateway("postgres", database),
        "Postgres and Redis": place.gateway("tiered", {**both, "fast": place.redis_url}),
    }
    rates = {name: _saturation(program) / 2 for name, program in programs.items()}
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
    print(f"\n{markdown((*names, 'mean added', 'claim', 'complete', 'the rest'), rows)}")
    print(
        f"\na sync of 8 KiB on this disk takes {_sync_ms(place.directory):.2f} ms, one of Postgres's log"
        f" {_log_sync_ms(database['durable']):.2f} ms",
        flush=True,
    )
    return True


def _saturation(program: Program) -> float:
    shape = load.Shape(PROTECTED, 200, b"stored")
    measured = load.measure(program.port, shape, load.new_keys(), connections=_CONNECTIONS, seconds=2.0)
    return measured.requests / measured.seconds


def _round(program: GatewayProgram, plain: Program, rate: float, seconds: float) -> _Round:
    baseline = _paced(plain, None, rate, seconds)
    before = program.told()
    mine = _paced(program, b"stored", rate, seconds)
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


def _paced(program: Program, verdict: bytes | None, rate: float, seconds: float) -> load.Measured:
    shape = load.Shape(PROTECTED, 200, verdict)
    return load.undisturbed(
        lambda: load.paced(program.port, shape, load.new_keys(), rate=rate, connections=_CONNECTIONS, seconds=seconds)
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
