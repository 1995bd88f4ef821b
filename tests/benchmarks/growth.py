"""What a new key and a replay from the durable store cost, by how many records are in it."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.filling import fill
from tests.benchmarks.options import add_rounds, add_stores
from tests.benchmarks.place import Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import show

TARGET: Final = 1.2
_CONNECTIONS: Final = 64
_SLICES: Final = 10
_KEYS_OF_A_SLICE: Final = 400
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
    add_stores(parser)
    add_rounds(parser, 7, 1.0)


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
        worst = _shown(kind, filled)
        is_within = is_within and worst <= 1.2 * TARGET
        for each in filled:
            each.program.stop()
    return is_within


def _filled(place: Place, kind: str, records: int) -> _Filled:
    began = time.perf_counter()
    store = place.store(kind)
    program = place.gateway(f"{kind}-{records}", {**store, "cache_max_age": "0s"})
    filled = _Filled(records, program, store)
    for _ in range(_SLICES):
        keys = load.store_new(program.port, _KEYS_OF_A_SLICE)
        filled.keys += keys
        fill(store, records // _SLICES - _KEYS_OF_A_SLICE)
    print(f"filled {kind} with {records:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return filled


def _cost(place: Place, filled: _Filled, work: str, seconds: float) -> _Cost:
    program, url = filled.program, filled.store["durable"]

    def read() -> tuple[float, float]:
        return program.cpu_seconds(), 0.0 if url.startswith("sqlite") else place.server.session_seconds(url)

    shape, keys = (load.NEW, load.new_keys()) if work == "new key" else (load.REPLAY, load.again(filled.keys))
    measured = load.measure(program.port, shape, keys, connections=_CONNECTIONS, seconds=seconds, read=read)
    ours, theirs = (each / measured.requests * 1e6 for each in measured.spent)
    return _Cost(ours + theirs, theirs, measured.latency_ms(50))


def _shown(kind: str, filled: list[_Filled]) -> float:
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
    names = ("work", "CPU µs", "of it Postgres", "ratio", "target", "p50 ms")
    show(names, rows, f"{kind}, {_CONNECTIONS} connections")
    return worst
