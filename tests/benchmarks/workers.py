"""How much more two workers can take than one."""

from __future__ import annotations

import argparse
from itertools import islice
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.options import add_rounds
from tests.benchmarks.place import Place
from tests.benchmarks.subject import OTHER_CORE, SERVING_CORE, UNPROTECTED, GatewayProgram
from tests.benchmarks.table import show

TARGET: Final = 1.7
_WORKS: Final = (
    ("passed through, unprotected", load.Shape(UNPROTECTED, 200, None), False),
    ("replay, same worker", load.REPLAY, True),
    ("new key, Postgres", load.NEW, False),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--connections", type=int, default=256)
    add_rounds(parser, 5, 2.0)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio reaches its target."""
    cores = {SERVING_CORE, OTHER_CORE}
    one, two = (
        place.gateway(f"workers-{count}", place.postgres(), settings={"workers": count}, cores=cores)
        for count in (1, 2)
    )
    keys = list(islice(load.new_keys(), 512))
    for program in (one, two):
        load.say_once(program.port, load.NEW, keys)
    found: dict[tuple[str, GatewayProgram], list[tuple[float, float]]] = {}
    for _ in range(asked.rounds):
        for name, shape, is_repeated in _WORKS:
            for program in (one, two):
                stream = load.again(keys) if is_repeated else load.new_keys()
                measured = _capacity(program, shape, stream, asked)
                found.setdefault((name, program), []).append(measured)
    rows, is_within = [], True
    for name, _, _ in _WORKS:
        pairs = list(zip(found[name, two], found[name, one], strict=True))
        ratio, rate_ratio = (median(two_[part] / one_[part] for two_, one_ in pairs) for part in (0, 1))
        is_within = is_within and ratio >= TARGET / 1.2
        capacities = (f"{median(each[0] for each in found[name, program]):,.0f}" for program in (one, two))
        rows.append((name, *capacities, f"{ratio:.2f}", f"≥ {TARGET:.2f}", f"{rate_ratio:.2f}"))
    names = "work", "one worker", "two workers", "ratio", "target", "ratio of requests/s, load on the same cores"
    show(names, rows)
    return is_within


def _capacity(
    program: GatewayProgram, shape: load.Shape, keys: load.Keys, asked: argparse.Namespace
) -> tuple[float, float]:
    """Requests per CPU second of the busiest process, and requests per second."""
    pids = sorted(program.cpu_seconds_of_each())

    def read() -> tuple[float, ...]:
        spent = program.cpu_seconds_of_each()
        return tuple(spent[pid] for pid in pids)

    measured = load.measure(program.port, shape, keys, connections=asked.connections, seconds=asked.seconds, read=read)
    return measured.requests / max(measured.spent), measured.requests / measured.seconds
