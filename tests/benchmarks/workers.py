"""How much more two workers can take than one."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import cycle
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import OTHER_CORE, SERVING_CORE, UNPROTECTED, GatewayProgram
from tests.benchmarks.table import in_turn, ratio, show

TARGET: Final = 1.7
OPTIONS: Final = {"connections": 256, "rounds": 5, "seconds": 2.0}
_WORKS: Final = {
    "passed through, unprotected": load.Shape(UNPROTECTED, 200, None),
    "replay, same worker": load.REPLAY,
    "new key, Postgres": load.NEW,
}


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio reaches its target."""
    cores = (SERVING_CORE, OTHER_CORE)
    one, two = (
        place.gateway(f"workers-{count}", place.store("postgres"), settings={"workers": count}, cores=cores)
        for count in (1, 2)
    )
    keys = load.some_keys(512)
    for program in (one, two):
        load.say_once(program.port, load.NEW, keys)
    works = {
        (name, program): partial(_capacity, program, shape, keys if shape is load.REPLAY else None, asked)
        for name, shape in _WORKS.items()
        for program in (one, two)
    }
    found, rows, is_within = in_turn(asked.rounds, works), [], True
    for name in _WORKS:
        (ones, one_rates), (twos, two_rates) = (zip(*found[name, program], strict=True) for program in (one, two))
        more = ratio(twos, ones)
        is_within = is_within and more >= TARGET / 1.2
        capacities = (f"{median(each):,.0f}" for each in (ones, twos))
        rows.append((name, *capacities, f"{more:.2f}", f"≥ {TARGET:.2f}", f"{ratio(two_rates, one_rates):.2f}"))
    names = "work", "one worker", "two workers", "ratio", "target", "ratio of requests/s, load on the same cores"
    show(names, rows)
    return is_within


def _capacity(
    program: GatewayProgram, shape: load.Shape, keys: list[bytes] | None, asked: argparse.Namespace
) -> tuple[float, float]:
    """Requests per CPU second of the busiest process, and requests per second."""
    pids = sorted(program.cpu_seconds_of_each())

    def read() -> tuple[float, ...]:
        spent = program.cpu_seconds_of_each()
        return tuple(spent[pid] for pid in pids)

    how = {"connections": asked.connections, "seconds": asked.seconds, "read": read}
    measured = load.measure(program.port, shape, None if keys is None else cycle(keys), **how)
    return measured.requests / max(measured.spent), measured.requests / measured.seconds
