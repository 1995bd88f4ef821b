"""What a process counts is sampled every 30 seconds, and saved once a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest

from gateway.observe.metrics import Counted
from gateway.store.base import NotApplied
from gateway.store.operations import Activities, ActivityRow
from gateway.store.sqlite.store import SqliteStore
from gateway.upkeep.activity import HOUR, WEEK, Activity, ActivitySampler, Rows, Window, gathered
from tests.support.memory_store import MemoryStore

# A round hour.
BEGIN = 1_800_000_000 // 3_600 * 3_600
SERVICE = "shop"


class Stand(Activities):
    """A store that may be away."""

    def __init__(self) -> None:
        self.behind = MemoryStore()
        self.is_away = False
        self.calls = 0

    @property
    def kept(self) -> dict[tuple[Any, ...], ActivityRow]:
        return self.behind.memory.activity

    async def save_activity(self, service: str, *rows: ActivityRow) -> None:
        self.calls += 1
        if self.is_away:
            raise NotApplied("away")
        await self.behind.save_activity(service, *rows)

    async def activity(self, service: str, span_us: int, since_us: int, until_us: int) -> list[ActivityRow]:
        return await self.behind.activity(service, span_us, since_us, until_us)


class Process:
    """A process with a clock of its own, whose requests the test counts."""

    def __init__(self, store: Activities, began: float = BEGIN) -> None:
        self.store = store
        self.now = began
        self.requests = 0.0
        self.asleep = asyncio.Event()
        self.awake = asyncio.Event()
        self.sampler = self.made()

    def made(self, ask_to_save: Callable[[str, Rows], Awaitable[bool]] | None = None) -> ActivitySampler:
        clock: Any = {"wall_seconds": lambda: self.now, "sleep": self.sleep}
        return ActivitySampler(self.take, self.store, SERVICE, ask_to_save=ask_to_save, **clock)

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
async def store() -> AsyncIterator[Stand]:
    store = Stand()
    await store.behind.start()
    yield store
    await store.behind.close()


async def seen(store: Activities, now: float, window: Window = HOUR) -> Activity:
    """What another process would show now."""
    now_us = round(now * 1_000_000)
    rows = await store.activity(SERVICE, window.row_us, now_us - 2 * window.length_us, now_us + window.row_us)
    return gathered(window, now_us, {}, [(each.writer, each.at_us, each.body) for each in rows], "")


async def test_each_bucket_has_what_was_counted_in_it(store: Stand) -> None:
    """Minute by minute, and in ten minutes as one. What no bucket has yet comes with the stop."""
    process = Process(store)
    await process.live(4)
    await process.live(4, 3.0)
    counted = [number for number in (await seen(store, process.now)).series("verdict") if number is not None]
    assert counted == [1.0] * 4 + [3.0] * 4
    process.requests += 5
    await process.sampler.close()
    await process.sampler.close()
    for window in (HOUR, WEEK):
        assert (await seen(store, process.now + 60, window)).total("verdict") == {"stored": 21.0}


async def test_one_statement_a_minute(tmp_path: Path) -> None:
    """However much happens. What only frames a transaction is left out."""
    found = list[str]()

    def trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]))

    apsw.connection_hooks.append(trace)
    try:
        store = SqliteStore(tmp_path / "durable.db")
        await store.start()
        found.clear()
        await Process(store).live(2 * 25, 100.0)
        await store.close()
    finally:
        apsw.connection_hooks.remove(trace)
    assert sum(text.startswith("INSERT INTO activity") for text in found) == 25
    assert {text.split()[0] for text in found} == {"BEGIN", "INSERT", "COMMIT", "PRAGMA"}


async def test_rows_and_bytes_are_bounded(store: Stand) -> None:
    """A process of thousands of routes has as many rows as another, and small ones."""
    process = Process(store)
    rows: dict[tuple[str, str], list[float]] = {}
    process.sampler.take = lambda: {"idempotency_requests_total": {key: list(row) for key, row in rows.items()}}
    for route in range(3_000):
        rows[f"route-{route}", "stored"] = [float(route)]
    await process.live(2 * 60)
    assert len(store.kept) == 60 + 6
    assert max(len(each.body) for each in store.kept.values()) < 8_000
    found = await seen(store, process.now - 60)
    assert found.total("verdict") == {"stored": sum(range(3_000))}
    assert sum(found.total("route").values()) == sum(range(3_000))


async def test_a_store_that_is_away_gets_the_minutes_later(store: Stand) -> None:
    """They are marked, and none is lost."""
    process = Process(store)
    await process.live(2)
    store.is_away = True
    await process.live(6)
    assert (await seen(store, process.now)).total("verdict") == {"stored": 2.0}
    # It remembers them itself.
    assert process.own().total("verdict") == {"stored": 8.0}
    store.is_away = False
    await process.live(8)
    found = await seen(store, process.now)
    assert found.total("verdict") == {"stored": 16.0}
    assert set(found.total("mark")) == {"start", "store away"}


async def test_a_clock_that_was_set_back(store: Stand) -> None:
    """What was counted before stays, beside what is counted in the same time again."""
    process = Process(store)
    await process.live(10)
    process.now -= 180
    await process.live(10)
    found = await seen(store, process.now + 300)
    assert found.total("verdict") == {"stored": 20.0}
    assert "clock set back" in found.total("mark")
    assert len({each.writer for each in store.kept.values()}) == 2


async def test_who_looks_in_between_changes_nothing(store: Stand) -> None:
    """What is counted up to now is shown at once, and counts once, also close to the end of a bucket."""
    process = Process(store)
    for seconds in (10, 29.999, 30.001):
        process.requests += 1
        process.now = BEGIN + seconds
        assert process.own().total("verdict") == {"stored": process.requests}
    await process.live(3)
    found = await seen(store, process.now)
    assert found.total("verdict") == {"stored": 6.0}
    assert set(found.total("mark")) == {"start"}


async def test_a_reload_goes_on(store: Stand) -> None:
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
    assert len({each.writer for each in store.kept.values()}) == 1


async def test_the_last_is_saved_after_the_one_before(store: Stand) -> None:
    """Another process may still write that: what is older would stand in the place of what is newer."""
    process, asked, answer = Process(store, BEGIN + 30), asyncio.Event(), asyncio.Event()

    async def save(_: str, rows: Rows) -> bool:
        asked.set()
        await answer.wait()
        await store.behind.save_activity(SERVICE, *rows)
        return True

    process.sampler = process.made(save)
    task = asyncio.create_task(process.sampler.run())
    await process.asleep.wait()
    process.requests = 1
    process.awake.set()
    await asked.wait()
    process.requests = 3
    closing = asyncio.create_task(process.sampler.close())
    await asyncio.sleep(0)
    assert store.calls == 0
    answer.set()
    await closing
    task.cancel()
    for window in (HOUR, WEEK):
        assert (await seen(store, process.now + 60, window)).total("verdict") == {"stored": 3.0}


async def test_nothing_is_written_for_another_process_too_late(store: Stand) -> None:
    """One that was frozen would undo what others have written meanwhile."""
    sampler = Process(store).sampler
    row = ActivityRow(UUID(int=1), HOUR.row_us, BEGIN * 1_000_000, 2**60, b"[]")
    assert not await sampler.write(SERVICE, (row,), time.monotonic())
    assert store.calls == 0
    assert await sampler.write(SERVICE, (row,), time.monotonic() + 60)
    assert store.calls == 1


async def test_what_stands_still_is_no_gap(store: Stand) -> None:
    """A process without requests counts zero; a time without a process is a gap."""
    await Process(store, BEGIN).live(4, 0.0)
    await Process(store, BEGIN + 600).live(4, 0.0)
    found = (await seen(store, BEGIN + 720)).series("verdict")
    assert found[-25:-1] == [0.0] * 4 + [None] * 16 + [0.0] * 4
    assert [*found[:-25], found[-1]] == [None] * 96
