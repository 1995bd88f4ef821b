"""What it costs to accept a request, beside a new key that is executed, and whether what waits slows that."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Any, Final

from tests.benchmarks import load
from tests.benchmarks.filling import fill_accepted
from tests.benchmarks.options import add_rounds, add_stores
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, GatewayProgram
from tests.benchmarks.table import show

# An accepted request beside a new key, and the same work with many requests waiting beside few.
ACCEPT_TARGET: Final = 1.25
WAITING_TARGET: Final = 1.2
_ASYNC: Final = load.Shape(PROTECTED, 200, b"accepted", more=b"Prefer: respond-async\r\n", status=202)
_ACCEPTING: Final = {
    "accept": {"identity": "unverified", "max_pending": 10_000_000, "max_pending_per_scope": 1_000_000},
    "retention": {"replay": "24h", "remember": "7d"},
}
_SETTINGS: Final = {"secrets": {"encryption": [{"id": "bench", "key": "00" * 32}]}, "delivery": {"workers": 0}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    add_stores(parser)
    parser.add_argument("--connections", type=int, default=64)
    add_rounds(parser, 5, 2.0)
    parser.add_argument("--waiting", type=int, default=0, help="how many requests wait in the fuller store (none)")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    rows: list[tuple[str, ...]] = []
    is_within = True
    for store in asked.stores:
        ratio, executed, accepted = _compare(place, store, asked)
        is_within = is_within and ratio <= ACCEPT_TARGET
        rows.append(
            (store, "accepted beside a new key", f"{executed:.0f}", f"{accepted:.0f}", f"{ratio:.2f}", "≤ 1.25")
        )
        if asked.waiting:
            for name, few, many in _with_many_waiting(place, store, asked):
                is_within = is_within and many / few <= WAITING_TARGET
                rows.append((store, name, f"{few:.0f}", f"{many:.0f}", f"{many / few:.2f}", "≤ 1.20"))
    show(("store", "what", "first µs", "second µs", "ratio", "target"), rows)
    return is_within


def _compare(place: Place, store: str, asked: argparse.Namespace) -> tuple[float, float, float]:
    """The ratio, and the CPU time of the gateway for a new key and for an acceptance, in microseconds."""
    programs = [_gateway(place, f"{store}-{name}", _settings(place, store)) for name in ("executing", "accepting")]
    found = _in_turn(list(zip(programs, (load.NEW, _ASYNC), strict=True)), asked)
    ratios = [second / first for first, second in zip(*found, strict=True)]
    for program in programs:
        program.stop()
    return median(ratios), median(found[0]), median(found[1])


def _with_many_waiting(place: Place, store: str, asked: argparse.Namespace) -> list[tuple[str, float, float]]:
    """New keys and acceptances, with few requests waiting and with many."""
    few, settings = _gateway(place, f"{store}-few", _settings(place, store)), _settings(place, store)
    many = _gateway(place, f"{store}-many", settings)
    load.say_once(many.port, _ASYNC, list(islice(load.new_keys(), 1)))
    many.stop()
    fill_accepted(settings, asked.waiting)
    many.start()
    names = {"new key": load.NEW, "acceptance": _ASYNC}
    result = []
    for name, shape in names.items():
        found = _in_turn([(few, shape), (many, shape)], asked)
        result.append((f"{name} with {asked.waiting:,} waiting", median(found[0]), median(found[1])))
    for program in (few, many):
        program.stop()
    return result


def _settings(place: Place, store: str) -> Mapping[str, Any]:
    return place.store(store)


def _gateway(place: Place, name: str, store: Mapping[str, Any]) -> GatewayProgram:
    return place.gateway(name, store, route=_ACCEPTING, settings=_SETTINGS)


def _in_turn(works: Sequence[tuple[GatewayProgram, load.Shape]], asked: argparse.Namespace) -> list[list[float]]:
    """CPU microseconds per request of each work, by round."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(asked.rounds):
        for index, (program, shape) in enumerate(works):
            measured = load.measure(
                program.port,
                shape,
                load.new_keys(),
                connections=asked.connections,
                seconds=asked.seconds,
                read=lambda program=program: (program.cpu_seconds(),),
            )
            found[index].append(measured.spent[0] / measured.requests * 1e6)
    return found
