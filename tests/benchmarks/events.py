"""What a new key costs a gateway that writes and publishes an event of it, beside one without events."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import STORES, Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import ratio, show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1.15
# `requests`: in a round of each gateway.
OPTIONS: Final = {"stores": STORES, "rounds": 25, "requests": 2_000}
_SINKS: Final = {"events": {"sinks": [{"name": "lines", "kind": "stdout"}]}}
_EVENT: Final = b'"type":"operation.completed"'


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    rows, is_within = [], True
    for kind in asked.stores:
        without = place.gateway(f"{kind}-without", place.store(kind))
        with_events = place.gateway(f"{kind}-events", place.store(kind), settings=_SINKS)
        found = [_round(without, with_events, asked.requests) for _ in range(asked.rounds + 1)]
        # In the first round caches and connections are made.
        less, more = zip(*found[1:], strict=True)
        over = ratio(more, less)
        is_within = is_within and over <= 1.2 * TARGET
        rows.append((kind, f"{median(less):.0f}", f"{median(more):.0f}", f"{over:.2f}", f"≤ {TARGET:.2f}"))
        without.stop()
        with_events.stop()
    show(("store", "CPU µs", "with events", "ratio", "target"), rows)
    return is_within


def _round(without: GatewayProgram, with_events: GatewayProgram, requests: int) -> tuple[float, float]:
    """µs of CPU for a new key without events and with them, each over the same time."""
    began = time.monotonic()
    more = _cost(with_events, requests, lambda written: written == requests)
    end = 2 * time.monotonic() - began
    return _cost(without, requests, lambda _: time.monotonic() >= end), more


def _cost(program: GatewayProgram, requests: int, is_over: Callable[[int], bool]) -> float:
    """µs of CPU for each of so many new keys; over when so many events were published."""
    before, logged_bytes = program.cpu_seconds(), program.log.stat().st_size
    load.store_new(program.port, requests)

    def published() -> int:
        with program.log.open("rb") as log:
            log.seek(logged_bytes)
            return log.read().count(_EVENT)

    eventually_blocking(lambda: is_over(published()), 60.0, "all events are published")
    return (program.cpu_seconds() - before) / requests * 1e6
