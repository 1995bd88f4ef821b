"""What a new key costs a gateway that writes and publishes an event of it, beside one without events."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.options import add_stores
from tests.benchmarks.place import Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1.15
_SINKS: Final = {"events": {"sinks": [{"name": "lines", "kind": "stdout"}]}}
_EVENT: Final = b'"type":"operation.completed"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    add_stores(parser)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--requests", type=int, default=2_000, help="in a round of each gateway")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    rows, is_within = [], True
    for kind in asked.stores:
        without, with_events = (
            place.gateway(f"{kind}-{name}", place.store(kind), settings=settings)
            for name, settings in (("without", {}), ("events", _SINKS))
        )
        found = []
        for _ in range(asked.rounds + 1):
            more, seconds = _turn(with_events, asked.requests, lambda written: written == asked.requests)
            less, _ = _turn(without, asked.requests, partial(_has_passed, time.monotonic() + seconds))
            found.append((less, more))
        # In the first round caches and connections are made.
        costs = found[1:]
        ratio = median(more / less for less, more in costs)
        is_within = is_within and ratio <= 1.2 * TARGET
        less, more = (median(each) for each in zip(*costs, strict=True))
        rows.append((kind, f"{less:.0f}", f"{more:.0f}", f"{ratio:.2f}", f"≤ {TARGET:.2f}"))
        for program in (without, with_events):
            program.stop()
    show(("store", "CPU µs", "with events", "ratio", "target"), rows)
    return is_within


def _has_passed(end_seconds: float, _: int) -> bool:
    return time.monotonic() >= end_seconds


def _turn(program: GatewayProgram, requests: int, is_over: Callable[[int], bool]) -> tuple[float, float]:
    """µs of CPU for each of so many new keys, and how many seconds it took; over when so many events were published."""
    began, before, logged_bytes = time.monotonic(), program.cpu_seconds(), program.log.stat().st_size
    load.store_new(program.port, requests)

    def published() -> int:
        with program.log.open("rb") as log:
            log.seek(logged_bytes)
            return log.read().count(_EVENT)

    eventually_blocking(lambda: is_over(published()), 60.0, "all events are published")
    return (program.cpu_seconds() - before) / requests * 1e6, time.monotonic() - began
