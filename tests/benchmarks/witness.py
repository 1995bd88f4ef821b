"""What it costs a new key that a lost memory is noticed: with witnesses beside without, against a plain proxy."""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw

from gateway.core.outbox import Outbox
from gateway.store.base import Store
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.postgres.store import PostgresStore
from gateway.store.sqlite.store import SqliteStore
from tests.benchmarks import load
from tests.benchmarks.options import add_stores
from tests.benchmarks.place import Place, ask
from tests.benchmarks.subject import PROTECTED, SERVING_CORE, pinned
from tests.benchmarks.table import markdown
from tests.conformance.hand import SERVICE, Hand

SHARE_MAX: Final = 0.02
_OPERATIONS: Final = 1_024
_BATCHES: Final = "SELECT coalesce(sum(number), 0) FROM "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    add_stores(parser)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load on the plain proxy, and on the gateway")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether a witness costs little enough."""
    rows: list[tuple[str, ...]] = []
    shares = []
    plain = place.plain()
    plain_us = load.cpu_us(plain.port, plain.cpu_seconds, load.Shape(PROTECTED, 200, None), seconds=asked.seconds)
    for kind in asked.stores:
        batch = _batch(place, kind, asked)
        without, more = asyncio.run(_compared(place, kind, batch, asked.rounds))
        shares.append(more / plain_us)
        rows.append((kind, f"{batch}", f"{plain_us:.0f}", f"{without:.1f}", f"{more:+.1f}", f"{shares[-1]:.1%}"))
    names = "store", "in a commit", "plain proxy, µs", "a new key without, µs", "more with, µs", "of the plain proxy"
    print(f"\n{markdown(names, rows)}\n\nat most {SHARE_MAX:.0%}", flush=True)
    return max(shares) <= SHARE_MAX


def _batch(place: Place, kind: str, asked: argparse.Namespace) -> int:
    """How many claims or completions share a commit under load."""
    settings = place.store(kind)
    program = place.gateway(f"{kind}-batches", settings)
    measured = load.measure(
        program.port, load.NEW, load.new_keys(), connections=asked.connections, seconds=asked.seconds
    )
    program.stop()
    url = settings["durable"]
    if kind == "sqlite":
        with closing(apsw.Connection(url.removeprefix("sqlite://"))) as connection:
            ((batches,),) = connection.execute(f"{_BATCHES} witness").fetchall()
    else:
        (batches,) = ask(url, f"{_BATCHES} idempotency_gateway.witness")
    return max(1, round(2 * measured.requests_in_all / int(batches)))


async def _compared(place: Place, kind: str, batch: int, rounds: int) -> tuple[float, float]:
    """CPU microseconds of a new key without a witness, and how many more it takes with one."""
    files = WitnessFiles(place.directory / f"witness-{kind}")
    files.open()
    urls = [(place.sqlite() if kind == "sqlite" else await _postgres(place))["durable"] for _ in range(2)]
    stores = [_store(url, noted) for url, noted in zip(urls, (None, files), strict=True)]
    try:
        with pinned(SERVING_CORE):
            for store in stores:
                await store.start()
            found = [[await _new_key_us(store, batch) for store in stores] for _ in range(rounds + 2)][2:]
    finally:
        for store in stores:
            await store.close()
        files.close()
    return statistics.median(first for first, _ in found), statistics.median(second - first for first, second in found)


async def _postgres(place: Place) -> Mapping[str, str]:
    return {"durable": await place.server.new_database()}


def _store(url: str, files: WitnessFiles | None) -> Store:
    if url.startswith("sqlite"):
        return SqliteStore(Path(url.removeprefix("sqlite://")), witness_files=files, outbox=Outbox(SERVICE))
    return PostgresStore(url, witness_files=files, outbox=Outbox(SERVICE))


async def _new_key_us(store: Store, batch: int) -> float:
    """Claim and complete new operations, so many at once."""
    waves: Sequence[Sequence[Hand]] = [[Hand() for _ in range(batch)] for _ in range(max(1, _OPERATIONS // batch))]
    gc.collect()
    begin = time.process_time()
    for hands in waves:
        claimed = await asyncio.gather(*(store.apply(hand.claim()) for hand in hands))
        for hand, result in zip(hands, claimed, strict=True):
            hand.look(result.snapshot)
        await asyncio.gather(*(store.apply(hand.complete()) for hand in hands))
    return (time.process_time() - begin) / (len(waves) * batch) * 1e6
