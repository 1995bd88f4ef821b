"""What a sweep of a million expired records does to the requests beside it."""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.filling import ALIVE, EXPIRED, fill
from tests.benchmarks.place import STORES, Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import in_turn, ratio, show
from tests.support.eventually import eventually_blocking

TARGET: Final = 1.5
OPTIONS: Final = {"records": 1_000_000, "stores": STORES, "rounds": 7, "seconds": 3.0}


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target and nobody waited for a lock."""
    is_within = [_swept(place, kind, asked) for kind in asked.stores]
    return all(is_within)


def _gateway(place: Place, kind: str, records: int, *, expired: bool) -> GatewayProgram:
    """On a store with that many records, and frozen: what is expired has not been swept."""
    began = time.perf_counter()
    name = f"{kind}-{'expired' if expired else 'alive'}"
    store = place.store(kind)
    program = place.gateway(name, store)
    load.store_new(program.port, 100)
    program.pause()
    fill(store, records, EXPIRED if expired else ALIVE)
    print(f"filled {name} with {records:,} records in {time.perf_counter() - began:.0f} s", flush=True)
    return program


def _swept(place: Place, kind: str, asked: argparse.Namespace) -> bool:
    calm = _gateway(place, kind, asked.records, expired=False)
    swept = _gateway(place, kind, asked.records, expired=True)
    for program in (calm, swept):
        program.resume()
        # A gateway that was frozen for long takes nothing until it knows that its loop runs; the first sweep begins.
        eventually_blocking(partial(_is_awake, program), 60.0)
        program.pause()
    calm.resume()
    rate = load.saturation(calm.port) / 2
    calm.pause()
    swept.resume()
    # It comes when the pause of an idle sweeper is over.
    eventually_blocking(lambda: swept.told()["idempotency_swept_total"] > 0, 60.0, "a sweep has begun")
    swept.pause()

    def measured(program: GatewayProgram) -> load.Measured:
        program.resume()
        found = load.measure(program.port, load.NEW, rate=rate, seconds=asked.seconds)
        program.pause()
        return found

    waits, before = _lock_waits(place, kind), _swept_so_far(swept)
    names = {"without": calm, "with a sweep": swept}
    found = in_turn(asked.rounds, {name: partial(measured, program) for name, program in names.items()})
    p99s = {name: [one.latency_ms(99) for one in rounds] for name, rounds in found.items()}
    ratios = {name: ratio(mine, p99s["without"]) for name, mine in p99s.items()}
    rows = []
    for name, rounds in found.items():
        p50, target = median(one.latency_ms(50) for one in rounds), f"< {TARGET:.2f}" if name != "without" else ""
        rows.append((name, f"{p50:.2f}", f"{median(p99s[name]):.2f}", f"{ratios[name]:.2f}", target))
    moved = _swept_so_far(swept) - before
    locks = _lock_waits(place, kind)[len(waits) :]
    said = f"{moved:,.0f} records were swept meanwhile; waits for locks: "
    said += f"{len(locks)}, such as {locks[0]}" if locks else "none"
    title = f"{kind}, {rate:,.0f} new keys a second beside {asked.records:,} expired records"
    show(("new keys", "p50 ms", "p99 ms", "ratio", "target"), rows, title, said)
    calm.stop()
    swept.stop()
    return ratios["with a sweep"] < 1.2 * TARGET and not locks


def _is_awake(program: GatewayProgram) -> bool:
    try:
        load.say_once(program.port, load.NEW, load.some_keys(1), connections=1)
    except AssertionError:
        return False
    return True


def _swept_so_far(program: GatewayProgram) -> float:
    program.resume()
    told = program.told()
    program.pause()
    return told["idempotency_swept_total"]


def _lock_waits(place: Place, kind: str) -> list[str]:
    return place.server.lock_waits() if kind == "postgres" else []
