"""Shards behind a guard each: one that cannot be used at the start is tried on, beside the others."""

from __future__ import annotations

from itertools import repeat
from pathlib import Path

import pytest

from gateway.core.operation import Applied
from gateway.observe.facts import Events
from gateway.store.base import NotApplied, StartRefused
from gateway.store.memory import guard
from gateway.store.memory.epoch import SeenFile
from gateway.store.memory.guard import EpochGuard
from gateway.store.sharded import GuardedShards
from tests.conformance.hand import Hand
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, FaultyStore, refused
from tests.support.memory_store import Memory, MemoryStore
from tests.support.serving import serving


async def test_a_shard_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for each reason, however often it is tried; at last it is used."""
    monkeypatch.setattr(guard, "_PAUSE_SECONDS_MIN", 0.001)
    monkeypatch.setattr(guard, "_PAUSE_SECONDS_MAX", 0.001)
    stores = [FaultyStore(MemoryStore(Memory())) for _ in range(2)]
    shards = GuardedShards([_guard(store, tmp_path / str(place)) for place, store in enumerate(stores)])
    reasons = ("it is of another", "it is newer")
    stores[1].on("compare_configuration", refused(), *(_must_not(why) for why in reasons for _ in range(5)))
    hand = next(hand for hand in (Hand() for _ in repeat(None)) if hand.operation_id.bytes[0] >= 128)
    await shards.start()
    try:
        await eventually(lambda: _grants(shards, hand), what="it is used")
        assert shards.is_amnesic is False
    finally:
        await shards.close()
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == [f"shard 1 of the durable store must not be used: {why}" for why in reasons]


def _guard(store: FaultyStore, directory: Path) -> EpochGuard:
    directory.mkdir()
    return EpochGuard(store, Events(), serving(), seen_file=SeenFile(directory / "seen.json"), amnesia_window_us=1)


def _must_not(why: str) -> Fault:
    return Fault(StartRefused(why), has_effect=False)


async def _grants(shards: GuardedShards, hand: Hand) -> bool:
    try:
        return isinstance(await shards.apply(hand.claim()), Applied)
    except NotApplied:
        return False
