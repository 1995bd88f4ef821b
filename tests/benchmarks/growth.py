"""What a new key and a replay from the durable store cost, by how many records are in it."""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import cycle
from statistics import median
from typing import Final, NamedTuple

from tests.benchmarks import load
from tests.benchmarks.filling import fill
from tests.benchmarks.place import STORES, Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import in_turn, ratio, show

TARGET: Final = 1.2
OPTIONS: Final = {"records": (10_000, 100_000, 1_000_000), "stores": STORES, "rounds": 7, "seconds": 1.0}
_SLICES: Final = 10
_KEYS_OF_A_SLICE: Final = 400


class _Filled(NamedTuple):
    """A gateway on a store with so many records; `keys` are some of them."""

    records: int
    program: GatewayProgram
    url: str
    keys: list[bytes]

    def cost(self, place: Place, work: str, seconds: float) -> float:
        """µs of CPU of a replay, or of a new key, with those of Postgres' sessions."""

        def read() -> tuple[float]:
            sessions = 0.0 if self.url.startswith("sqlite") else place.server.session_seconds(self.url)
            return (self.program.cpu_seconds() + sessions,)

        shape, keys = (load.NEW, None) if work == "new key" else (load.REPLAY, cycle(self.keys))
        measured = load.measure(self.program.port, shape, keys, seconds=seconds, read=read)
        return measured.spent[0] / measured.requests * 1e6


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    worst = 0.0
    for kind in asked.stores:
        filled = [_filled(place, kind, records) for records in sorted(asked.records)]
        works = {
            (work, each.records): partial(each.cost, place, work, asked.seconds)
            for work in ("new key", "replay")
            for each in filled
        }
        # In the first round a session meets the pages that it will need.
        in_turn(1, works)
        rows = []
        for (work, records), found in (costs := in_turn(asked.rounds, works)).items():
            smallest = costs[work, filled[0].records]
            growth = ratio(found, smallest)
            worst = max(worst, growth)
            target = "" if found is smallest else f"≤ {TARGET:.2f}"
            rows.append((f"{work}, {records:,} records", f"{median(found):.1f}", f"{growth:.2f}", target))
        show(("work", "CPU µs", "ratio", "target"), rows, f"{kind}, {load.CONNECTIONS} connections")
        for each in filled:
            each.program.stop()
    return worst <= 1.2 * TARGET


def _filled(place: Place, kind: str, records: int) -> _Filled:
    began = time.perf_counter()
    store = place.store(kind)
    program = place.gateway(f"{kind}-{records}", {**store, "cache_max_age": "0s"})
    keys: list[bytes] = []
    for _ in range(_SLICES):
        keys += load.store_new(program.port, _KEYS_OF_A_SLICE)
        fill(store, records // _SLICES - _KEYS_OF_A_SLICE)
    print(f"filled {kind} with {records:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return _Filled(records, program, store["durable"], keys)
