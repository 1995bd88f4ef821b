"""What it costs to accept a request, beside a new key that is executed, and whether what waits slows that."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

from tests.benchmarks import load
from tests.benchmarks.filling import fill_accepted
from tests.benchmarks.place import STORES, Place
from tests.benchmarks.subject import PROTECTED, GatewayProgram
from tests.benchmarks.table import in_turn, ratio, show

# An accepted request beside a new key, and the same work with many requests waiting beside few.
ACCEPT_TARGET: Final = 1.25
WAITING_TARGET: Final = 1.2
# `waiting`: how many requests wait in the fuller store.
OPTIONS: Final = {"stores": STORES, "connections": 64, "rounds": 5, "seconds": 2.0, "waiting": 0}
_ASYNC: Final = load.Shape(PROTECTED, 200, b"accepted", more=b"Prefer: respond-async\r\n", status=202)
_ACCEPTING: Final = {
    "accept": {"identity": "unverified", "max_pending": 10_000_000, "max_pending_per_scope": 1_000_000},
    "retention": {"replay": "24h", "remember": "7d"},
}
_SETTINGS: Final = {"secrets": {"encryption": [{"id": "bench", "key": "00" * 32}]}, "delivery": {"workers": 0}}
# By name: the CPU time of a request in each round, of the first program and of the second, and the target.
Compared = tuple[str, list[float], list[float], float]


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    rows, is_within = [], True
    for store in asked.stores:
        for name, first, second, target in _compared(place, store, asked):
            found = ratio(second, first)
            is_within = is_within and found <= target
            rows.append((store, name, f"{median(first):.0f}", f"{median(second):.0f}", f"{found:.2f}", f"≤ {target}"))
    show(("store", "what", "first µs", "second µs", "ratio", "target"), rows)
    return is_within


def _compared(place: Place, store: str, asked: argparse.Namespace) -> Iterator[Compared]:
    executing, accepting = (
        _gateway(place, f"{store}-{name}", place.store(store)) for name in ("executing", "accepting")
    )
    yield "accepted beside a new key", *_costs(executing, load.NEW, accepting, _ASYNC, asked), ACCEPT_TARGET
    executing.stop()
    accepting.stop()
    if not asked.waiting:
        return
    settings = place.store(store)
    few, many = _gateway(place, f"{store}-few", place.store(store)), _gateway(place, f"{store}-many", settings)
    load.say_once(many.port, _ASYNC, load.some_keys(1))
    many.stop()
    fill_accepted(settings, asked.waiting)
    many.start()
    for name, shape in (("new key", load.NEW), ("acceptance", _ASYNC)):
        yield f"{name} with {asked.waiting:,} waiting", *_costs(few, shape, many, shape, asked), WAITING_TARGET
    few.stop()
    many.stop()


def _gateway(place: Place, name: str, store: Mapping[str, Any]) -> GatewayProgram:
    return place.gateway(name, store, route=_ACCEPTING, settings=_SETTINGS)


def _costs(
    one: GatewayProgram, its: load.Shape, other: GatewayProgram, others: load.Shape, asked: argparse.Namespace
) -> tuple[list[float], list[float]]:
    how = {"connections": asked.connections, "seconds": asked.seconds}
    works = {
        0: lambda: load.cpu_us(one, its, **how),
        1: lambda: load.cpu_us(other, others, **how),
    }
    first, second = in_turn(asked.rounds, works).values()
    return first, second
