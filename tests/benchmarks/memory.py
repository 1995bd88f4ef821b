"""What a gateway holds in memory after so many operations: the same as before, once its caches are full."""

from __future__ import annotations

import argparse
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.table import show

TARGET: Final = 1.05
# `cache`: `store.cache_bytes`.
OPTIONS: Final = {"operations": 100_000, "cache": "8MiB"}
_SLICES: Final = 10
# Of the slices: from then on nothing more may be kept.
_FULL_AFTER: Final = 6


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether memory stayed flat."""
    program = place.gateway("sqlite", {**place.store("sqlite"), "cache_bytes": asked.cache})
    held = []
    for _ in range(_SLICES):
        keys = load.store_new(program.port, asked.operations // _SLICES // 2)
        load.say_once(program.port, load.REPLAY, keys)
        held.append(program.rss_bytes())
    full = held[_FULL_AFTER - 1]
    rows = [
        (f"{asked.operations * (number + 1) // _SLICES:,}", f"{size / 2**20:.1f}", f"{size / full:.3f}")
        for number, size in enumerate(held)
    ]
    show(("operations", "RSS MiB", "ratio to the sixth"), rows)
    return held[-1] <= TARGET * full
