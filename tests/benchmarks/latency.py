"""How much later an answer comes than through a plain proxy, at half of the rate that a gateway can take."""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, GatewayProgram, Program
from tests.benchmarks.table import in_turn, show

OPTIONS: Final = {"rounds": 5, "seconds": 3.0}


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; there is no target."""
    plain = place.proxy("plain", "middleware")
    programs = {
        "SQLite": place.gateway("sqlite", place.store("sqlite")),
        "Postgres": place.gateway("postgres", place.store("postgres")),
        "Postgres and Redis": place.gateway("tiered", {**place.store("postgres"), "fast": place.redis_url}),
    }
    rates = {name: load.saturation(program.port) / 2 for name, program in programs.items()}
    works = {name: partial(_round, each, plain, rates[name], asked.seconds) for name, each in programs.items()}
    rows = []
    for name, rounds in in_turn(asked.rounds, works).items():
        middle = {figure: median(one[figure] for one in rounds) for figure in rounds[0]}
        rows.append((name, f"{rates[name]:,.0f}", *(f"{figure:.2f}" for figure in middle.values())))
    show(("store", "requests/s", *middle), rows)
    return True


def _round(program: GatewayProgram, plain: Program, rate: float, seconds: float) -> dict[str, float]:
    """Figures of one store, in milliseconds, as columns of the table."""
    baseline = load.measure(plain.port, load.Shape(PROTECTED, 200, None), rate=rate, seconds=seconds)
    mine = load.measure(program.port, load.NEW, rate=rate, seconds=seconds)
    return {
        "p50 ms": mine.latency_ms(50),
        "p99 ms": mine.latency_ms(99),
        "p50 over plain": mine.latency_ms(50) - baseline.latency_ms(50),
        "p99 over plain": mine.latency_ms(99) - baseline.latency_ms(99),
    }
