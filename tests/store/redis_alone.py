"""A gateway's guard on a Redis that keeps operations alone, with the state of its host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from gateway.observe.facts import Events, Fact
from gateway.store.files import make_directory
from gateway.store.memory.epoch import SeenFile, WitnessFiles
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import Conditions
from gateway.store.redis.durable import RedisStore
from tests.support.serving import serving

WINDOW_US: Final = 3_600_000_000
QUICK: Final = Conditions(wait_seconds=3.0, probation_seconds=2.0)


def alone(url: str, *, replicas: int | None = None, files: WitnessFiles | None = None) -> RedisStore:
    """The store at this URL."""
    return RedisStore(url, replicas=replicas, witness_files=files)


@asynccontextmanager
async def started(store: RedisStore) -> AsyncIterator[RedisStore]:
    """The store, from its start to its close."""
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def guarded(
    url: str, directory: Path, *, replicas: int | None = None, facts: list[Fact] | None = None
) -> AsyncIterator[EpochGuard]:
    """A started guard. It is a member if a replica may be promoted."""
    make_directory(directory)
    files = WitnessFiles(directory / "witness")
    store = alone(url, replicas=replicas, files=files)
    guard = EpochGuard(
        store,
        Events(*([] if facts is None else [facts.append])),
        replace(serving(recipes={"route": b"recipe"}), gateway_id=uuid4()),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
        witness_files=files,
        fleet=store if store.may_fail_over else None,
        conditions=QUICK,
    )
    await guard.start()
    try:
        yield guard
    finally:
        await guard.close()
