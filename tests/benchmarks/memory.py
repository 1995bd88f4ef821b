"""What a gateway holds in memory after so many operations: the same as before, once its caches are full."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED
from tests.benchmarks.table import markdown

TARGET: Final = 1.05
_SLICES: Final = 10
# Of the slices: from then on nothing more may be kept.
_FULL_AFTER: Final = 6
_STORED: Final = load.Shape(PROTECTED, 200, b"stored")
_REPLAYED: Final = load.Shape(PROTECTED, 200, b"replayed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--cache", default="8MiB", help="store.cache_bytes (8MiB)")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether memory stayed flat."""
    program = place.gateway("sqlite", {**place.sqlite(), "cache_bytes": asked.cache})
    held = []
    for _ in range(_SLICES):
        keys = list(islice(load.new_keys(), asked.operations // _SLICES // 2))
        load.say_once(program.port, _STORED, keys)
        load.say_once(program.port, _REPLAYED, keys)
        held.append(program.rss_bytes())
    full = held[_FULL_AFTER - 1]
    rows = [
        (f"{asked.operations * (number + 1) // _SLICES:,}", f"{size / 2**20:.1f}", f"{size / full:.3f}")
        for number, size in enumerate(held)
    ]
    print(f"\n{markdown(('operations', 'RSS MiB', 'ratio to the sixth'), rows)}", flush=True)
    return held[-1] <= TARGET * full
