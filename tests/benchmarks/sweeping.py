"""What a sweep of a million expired records does to the requests beside it."""

from __future__ import annotations

import argparse
import time
from itertools import islice
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.filling import ALIVE, EXPIRED, fill
from tests.benchmarks.options import add_rounds, add_stores
from tests.benchmarks.place import Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--records", type=int, default=1_000_000)
    add_stores(parser)
    add_rounds(parser, 7, 3.0)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target and nobody waited for a lock."""
    is_within = True
    for kind in asked.stores:
        is_within = _swept(place, kind, asked) and is_within
    return is_within


def _gateway(place: Place, kind: str, records: int, *, expired: bool) -> GatewayProgram:
    """On a store with that many records, and frozen: what is expired has not been swept."""
    began = time.perf_counter()
    name = f"{kind}-{'expired' if expired else 'alive'}"
    store = place.store(kind)
    program = place.gateway(name, store)
    load.store_new(program.port, 100)
    program.freeze()
    fill(store, records, EXPIRED if expired else ALIVE)
    print(f"filled {name} with {records:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return program


def _swept(place: Place, kind: str, asked: argparse.Namespace) -> bool:
    calm = _gateway(place, kind, asked.records, expired=False)
    swept = _gateway(place, kind, asked.records, expired=True)
    for program in (calm, swept):
        program.thaw()
        # A gateway that was frozen for long takes nothing until it knows that its loop runs; the first sweep begins.
        eventually_blocking(lambda program=program: _is_awake(program), 60.0)  # type: ignore[misc]
        program.freeze()
    calm.thaw()
    rate = load.saturation(calm.port) / 2
    calm.freeze()
    swept.thaw()
    # It comes when the pause of an idle sweeper is over.
    eventually_blocking(lambda: swept.told()["idempotency_swept_total"] > 0, 60.0, "a sweep has begun")
    swept.freeze()
    waits = _lock_waits(place, kind)
    before = _swept_so_far(swept)
    found: dict[GatewayProgram, list[load.Measured]] = {calm: [], swept: []}
    for _ in range(asked.rounds):
        for program, rounds in found.items():
            program.thaw()
            rounds.append(load.new_at(program.port, rate, asked.seconds))
            program.freeze()
    rows, ratio = [], 1.0
    for name, rounds in zip(("without", "with a sweep"), found.values(), strict=True):
        ratio = median(mine.latency_ms(99) / its.latency_ms(99) for mine, its in zip(rounds, found[calm], strict=True))
        target = f"< {TARGET:.2f}" if rounds is found[swept] else ""
        p50, p99 = (median(one.latency_ms(percent) for one in rounds) for percent in (50, 99))
        rows.append((name, f"{p50:.2f}", f"{p99:.2f}", f"{ratio:.2f}", target))
    moved = _swept_so_far(swept) - before
    locks = _lock_waits(place, kind)[len(waits) :]
    said = f"{moved:,.0f} records were swept meanwhile; waits for locks: {_told(locks)}"
    title = f"{kind}, {rate:,.0f} new keys a second beside {asked.records:,} expired records"
    show(("new keys", "p50 ms", "p99 ms", "ratio", "target"), rows, title, said)
    for program in found:
        program.stop()
    return ratio < 1.2 * TARGET and not locks


def _is_awake(program: GatewayProgram) -> bool:
    try:
        load.say_once(program.port, load.NEW, list(islice(load.new_keys(), 1)), connections=1)
    except AssertionError:
        return False
    return True


def _swept_so_far(program: GatewayProgram) -> float:
    program.thaw()
    told = program.told()
    program.freeze()
    return told["idempotency_swept_total"]


def _lock_waits(place: Place, kind: str) -> list[str]:
    return place.server.lock_waits() if kind == "postgres" else []


def _told(locks: list[str]) -> str:
    return f"{len(locks)}, such as {locks[0]}" if locks else "none"
