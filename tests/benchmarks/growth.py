"""What a new key and a replay from the durable store cost, by how many records are in it."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.filling import fill
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, GatewayProgram
from tests.benchmarks.table import markdown

TARGET: Final = 1.2
_CONNECTIONS: Final = 64
_SLICES: Final = 10
_KEYS_OF_A_SLICE: Final = 400
_STORED: Final = load.Shape(PROTECTED, 200, b"stored")
_REPLAYED: Final = load.Shape(PROTECTED, 200, b"replayed")
_WORKS: Final = ("new key", "replay")


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of one request, in one round: µs of CPU, those of them that were sessions' of Postgres, and ms of time."""

    cpu_us: float
    sessions_us: float
    p50_ms: float


@dataclass
class _Filled:
    """A gateway on a store with so many records."""

    records: int
    program: GatewayProgram
    store: dict[str, str]
    keys: list[bytes] = field(default_factory=list)
    costs: dict[str, list[_Cost]] = field(default_factory=lambda: {work: [] for work in _WORKS})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stores", nargs="+", default=["postgres", "sqlite"], choices=["postgres", "sqlite"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    is_within = True
    for kind in asked.stores:
        filled = [_filled(place, kind, records) for records in sorted(asked.records)]
        for number in range(asked.rounds + 1):
            for each in filled:
                for work in _WORKS:
                    cost = _cost(place, each, work, asked.seconds)
                    # In the first round a session meets the pages that it will need.
                    if number:
                        each.costs[work].append(cost)
        text, worst = _written(filled)
        print(f"\n{kind}, {_CONNECTIONS} connections\n\n{text}", flush=True)
        is_within = is_within and worst <= 1.2 * TARGET
        for each in filled:
            each.program.stop()
    return is_within


def _filled(place: Place, kind: str, records: int) -> _Filled:
    began = time.perf_counter()
    store = place.postgres() if kind == "postgres" else place.sqlite()
    program = place.gateway(f"{kind}-{records}", {**store, "cache_max_age": "0s"})
    filled = _Filled(records, program, store)
    for _ in range(_SLICES):
        keys = list(islice(load.new_keys(), _KEYS_OF_A_SLICE))
        load.say_once(program.port, _STORED, keys)
        filled.keys += keys
        fill(store, records // _SLICES - _KEYS_OF_A_SLICE)
    print(f"filled {kind} with {records:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return filled


def _cost(place: Place, filled: _Filled, work: str, seconds: float) -> _Cost:
    program, url = filled.program, filled.store["durable"]

    def read() -> tuple[float, float]:
        return program.cpu_seconds(), 0.0 if url.startswith("sqlite") else place.server.session_seconds(url)

    shape, keys = (_STORED, load.new_keys()) if work == "new key" else (_REPLAYED, load.again(filled.keys))
    measured = load.measure(program.port, shape, keys, connections=_CONNECTIONS, seconds=seconds, read=read)
    ours, theirs = (each / measured.requests * 1e6 for each in measured.spent)
    return _Cost(ours + theirs, theirs, measured.latency_ms(50))


def _written(filled: list[_Filled]) -> tuple[str, float]:
    rows, worst = [], 0.0
    smallest = filled[0]
    for work in _WORKS:
        for each in filled:
            costs, least = each.costs[work], smallest.costs[work]
            ratio = median(mine.cpu_us / its.cpu_us for mine, its in zip(costs, least, strict=True))
            worst = max(worst, ratio)
            rows.append(
                (
                    f"{work}, {each.records:,} records",
                    f"{median(cost.cpu_us for cost in costs):.1f}",
                    f"{median(cost.sessions_us for cost in costs):.1f}",
                    f"{ratio:.2f}",
                    "" if each is smallest else f"≤ {TARGET:.2f}",
                    f"{median(cost.p50_ms for cost in costs):.2f}",
                )
            )
    return markdown(("work", "CPU µs", "of it Postgres", "ratio", "target", "p50 ms"), rows), worst
