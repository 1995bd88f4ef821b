"""What a process counts is sampled every 30 seconds, and saved once a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from gateway.observe.metrics import Counted
from gateway.store.operations import ActivityRow
from gateway.upkeep.activity import HOUR, Activity, ActivitySampler, Window, gathered
from tests.support.faulty_store import FaultyStore, refused
from tests.support.memory_store import Memory, MemoryStore

# A round hour.
BEGIN = 1_800_000_000 // 3_600 * 3_600
SERVICE = "shop"


class Process:
    """A process with a clock of its own, whose requests the test counts."""

    def __init__(self, store: FaultyStore, began: float = BEGIN) -> None:
        self.store = store
        self.now = began
        self.requests = 0.0
        self.asleep = asyncio.Event()
        self.awake = asyncio.Event()
        self.sampler = self.made()

    def made(self) -> ActivitySampler:
        return ActivitySampler(self.take, self.store.cold, SERVICE, wall_seconds=lambda: self.now, sleep=self.sleep)

    def take(self) -> Counted:
        return {"idempotency_requests_total": {("charge", "stored"): [self.requests]}}

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock is on, at which the test has set the number of requests."""
        if not seconds:
            return
        self.asleep.set()
        await self.awake.wait()
        self.awake.clear()
        self.now += seconds

    def own(self) -> Activity:
        """What it would show now by itself."""
        return gathered(HOUR, round(self.now * 1_000_000), self.sampler.remembered(), [], "away")

    async def live(self, spans: int, requests: float = 1.0) -> None:
        """Run for so many half minutes, with so many requests in each."""
        self.asleep.clear()
        task = asyncio.create_task(self.sampler.run())
        for _ in range(spans):
            await self.asleep.wait()
            self.asleep.clear()
            self.requests += requests
            self.awake.set()
            await self.asleep.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
async def store(memory: Memory) -> AsyncIterator[FaultyStore]:
    store = FaultyStore(MemoryStore(memory))
    await store.start()
    yield store
    await store.close()


async def seen(store: FaultyStore, now: float, window: Window = HOUR) -> Activity:
    """What another process would show now."""
    now_us = round(now * 1_000_000)
    rows = await store.cold.activity(SERVICE, window.row_us, now_us - 2 * window.length_us, now_us + window.row_us)
    return gathered(window, now_us, {}, [(each.writer, each.at_us, each.body) for each in rows], "")


async def test_rows_and_bytes_are_bounded(store: FaultyStore, memory: Memory) -> None:
    """A process of thousands of routes has as many rows as another, and small ones."""
    process = Process(store)
    rows: dict[tuple[str, str], list[float]] = {}
    process.sampler.take = lambda: {"idempotency_requests_total": {key: list(row) for key, row in rows.items()}}
    for route in range(3_000):
        rows[f"route-{route}", "stored"] = [float(route)]
    await process.live(2 * 60)
    assert len(memory.activity) == 60 + 6
    assert max(len(each.body) for each in memory.activity.values()) < 8_000
    found = await seen(store, process.now - 60)
    assert found.total("verdict") == {"stored": sum(range(3_000))}
    assert sum(found.total("route").values()) == sum(range(3_000))


async def test_a_store_that_is_away_gets_the_minutes_later(store: FaultyStore) -> None:
    """They are marked, and none is lost."""
    process = Process(store)
    await process.live(2)
    store.break_("save_activity", fault=refused())
    await process.live(6)
    assert (await seen(store, process.now)).total("verdict") == {"stored": 2.0}
    # It remembers them itself.
    assert process.own().total("verdict") == {"stored": 8.0}
    store.mend()
    await process.live(8)
    found = await seen(store, process.now)
    assert found.total("verdict") == {"stored": 16.0}
    assert set(found.total("mark")) == {"start", "store away"}


async def test_a_clock_that_was_set_back(store: FaultyStore, memory: Memory) -> None:
    """What was counted before stays, beside what is counted in the same time again."""
    process = Process(store)
    await process.live(10)
    process.now -= 180
    await process.live(10)
    found = await seen(store, process.now + 300)
    assert found.total("verdict") == {"stored": 20.0}
    assert "clock set back" in found.total("mark")
    assert len({each.writer for each in memory.activity.values()}) == 2


async def test_a_reload_goes_on(store: FaultyStore, memory: Memory) -> None:
    """The one that follows has the counts of the one before, which samples no more."""
    process = Process(store)
    await process.live(3)
    before, process.sampler = process.sampler, process.made()
    process.sampler.follow(before)
    await before.close()
    await process.live(3)
    found = await seen(store, process.now)
    assert found.total("verdict") == {"stored": 6.0}
    assert set(found.total("mark")) == {"start", "reload"}
    assert len({each.writer for each in memory.activity.values()}) == 1


async def test_nothing_is_written_for_another_process_too_late(store: FaultyStore) -> None:
    """One that was frozen would undo what others have written meanwhile."""
    sampler = Process(store).sampler
    row = ActivityRow(UUID(int=1), HOUR.row_us, BEGIN * 1_000_000, 2**60, b"[]")
    assert not await sampler.write(SERVICE, (row,), time.monotonic())
    assert "save_activity" not in store.said
    assert await sampler.write(SERVICE, (row,), time.monotonic() + 60)
    assert "save_activity" in store.said


async def test_what_stands_still_is_no_gap(store: FaultyStore) -> None:
    """A process without requests counts zero; a time without a process is a gap."""
    await Process(store, BEGIN).live(4, 0.0)
    await Process(store, BEGIN + 600).live(4, 0.0)
    found = (await seen(store, BEGIN + 720)).series("verdict")
    assert found[-25:-1] == [0.0] * 4 + [None] * 16 + [0.0] * 4
    assert [*found[:-25], found[-1]] == [None] * 96
