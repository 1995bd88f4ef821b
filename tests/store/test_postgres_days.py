"""Room for responses in Postgres: partitions that are made in time, and what comes of a completion without one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from gateway.core.operation import Applied, Command, State, microseconds
from gateway.observe.facts import Events
from gateway.store.base import NotApplied
from gateway.store.memory.epoch import SeenFile
from gateway.store.memory.guard import EpochGuard
from gateway.store.operations import Agreement
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import ANSWER, REPLAY_US, Hand, Speech, do, started, state
from tests.store.postgres_sessions import opened, session
from tests.support.memory_store import EPOCH_US, ManualClock
from tests.support.serving import GATEWAY, serving

DAY_SECONDS = 86_400.0
TODAY = EPOCH_US // microseconds(DAY_SECONDS)
# Long enough for what was made long ago, and for its day to be another one than that of the short ones.
LONG_US = microseconds(300 * DAY_SECONDS)
# What is far less than a statement may take, and more than any wait that is bounded as it should be.
SOON_SECONDS = 3.0
# As ANALYZE and CREATE INDEX CONCURRENTLY hold it, for as long as they take.
_ANALYZE = "LOCK TABLE idempotency_gateway.response IN SHARE UPDATE EXCLUSIVE MODE"


async def days(connection: Any) -> list[int]:
    """The days that responses can be written to."""
    rows = await connection.fetch(
        "SELECT replace(inhrelid::regclass::text, 'idempotency_gateway.response_', '')::int AS day FROM pg_inherits"
        " WHERE inhparent = 'idempotency_gateway.response'::regclass AND NOT inhdetachpending ORDER BY 1"
    )
    return [row["day"] for row in rows]


def begin_a_day(store: PostgresStore, clock: ManualClock) -> None:
    """Let a day pass, and with it the pauses of upkeep."""
    clock.advance(DAY_SECONDS)
    store._days._next_make_at = 0.0


async def serve(store: PostgresStore, replay_us: int, gateway_id: UUID = GATEWAY) -> None:
    """Begin to serve routes whose longest window is this."""
    assert (
        await store.cold.compare_configuration(replace(serving(gateway_id=gateway_id), replay_us=replay_us))
        == Agreement()
    )


def kept_for(replay_us: int) -> Speech:
    return lambda hand: replace(hand.complete(), replay_us=replay_us, remember_us=replay_us)


async def told(store: PostgresStore, command: Command) -> type[object]:
    """What sort of result or error it comes to."""
    (result,) = await asyncio.gather(store.apply(command), return_exceptions=True)
    return type(result)


async def test_there_is_room_from_the_start(migrated_url: str) -> None:
    """For today and for two days more, for every window that is no longer than the longest one."""
    async with opened(migrated_url, clock_us=ManualClock()) as store, session(migrated_url) as admin:
        await serve(store, REPLAY_US)
        assert await days(admin) == [TODAY + 1, TODAY + 2, TODAY + 3]
        await serve(store, LONG_US)
        found = await days(admin)
        assert found[-1] == (TODAY + 300 + 28) // 28 * 28
        assert set(range(TODAY + 1, TODAY + 13)) < set(found)
        windows = [microseconds(hours * 3_600) for hours in range(0, 300 * 24, 5)]
        await asyncio.gather(*(do(store, Hand(), Hand.claim, kept_for(window_us)) for window_us in windows))
        assert store.partitions_late == 0


async def test_no_completion_makes_room(migrated_url: str) -> None:
    """Day after day a sweep makes it, also for a window that only a response declared, and beside a table that is
    analysed."""
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as store, session(migrated_url) as beside:
        await serve(store, 0)
        await do(store, Hand(), Hand.claim, kept_for(LONG_US))
        assert store.partitions_late == 1
        await store.cold.note_running(GATEWAY, is_running=True)
        for _ in range(4):
            begin_a_day(store, clock)
            await store.cold.sweep(100)
            clock.advance(1.9 * DAY_SECONDS)
            async with beside.transaction():
                await beside.execute(_ANALYZE)
                await do(store, hand := Hand(), Hand.claim)
                assert await told(store, kept_for(LONG_US)(hand)) is Applied
            assert await state(store, hand) is State.COMPLETED
        assert store.partitions_late == 1


async def test_no_partition_is_late_at_midnight(migrated_url: str) -> None:
    """Whoever sweeps makes the partitions of all: also for a window that another gateway has changed since."""
    to_midnight = DAY_SECONDS - EPOCH_US / 1_000_000 % DAY_SECONDS
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as owner, opened(migrated_url, clock_us=clock) as other:
        await serve(owner, REPLAY_US)
        await serve(other, REPLAY_US, UUID(int=2))
        clock.advance(to_midnight - 60)
        await owner.sweep(100)
        await serve(other, LONG_US, UUID(int=2))
        for _ in range(40):
            clock.advance(120)
            await do(other, Hand(), Hand.claim, kept_for(LONG_US))
            clock.advance(-120)
            begin_a_day(owner, clock)
            await owner.sweep(100)
        assert (owner.partitions_late, other.partitions_late) == (0, 0)


async def test_a_start_makes_room_for_its_window(migrated_url: str, tmp_path: Path) -> None:
    """At once, also if nothing else changes: whoever sweeps may look for it later."""
    store, served = PostgresStore(migrated_url, clock_us=ManualClock()), replace(serving(), replay_us=REPLAY_US)
    window_us = microseconds(60)
    seen_file = SeenFile(tmp_path / "seen.json")
    async with started(EpochGuard(store, Events(), served, seen_file=seen_file, amnesia_window_us=window_us)):
        changed = replace(served, replay_us=LONG_US, gateway_id=uuid4())
        beside = PostgresStore(migrated_url, clock_us=ManualClock())
        async with started(
            EpochGuard(beside, Events(), changed, seen_file=seen_file, amnesia_window_us=window_us)
        ) as follower:
            await do(follower, Hand(), Hand.claim, kept_for(LONG_US))
            assert beside.partitions_late == 0


async def test_a_start_waits_for_nobody(migrated_url: str) -> None:
    """Where room cannot be made at the start, the gateway starts, and a sweep makes it when it can."""
    async with opened(migrated_url), session(migrated_url) as beside:
        async with beside.transaction():
            await beside.execute(_ANALYZE)
            async with asyncio.timeout(SOON_SECONDS):
                store = PostgresStore(migrated_url, clock_us=ManualClock())
                await store.start()
                await serve(store, REPLAY_US)
        try:
            assert await days(beside) == []
            store._days._next_make_at = 0.0
            await store.cold.sweep(100)
            assert await days(beside) == [TODAY + 1, TODAY + 2, TODAY + 3]
        finally:
            await store.close()


async def test_without_room_a_response_is_not_refused(migrated_url: str) -> None:
    """While room cannot be made it is soon known not to be recorded; its neighbours are, and later it is too."""
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as store, session(migrated_url) as beside:
        await do(store, Hand(), Hand.claim, kept_for(LONG_US))
        hands = [Hand() for _ in range(12)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in hands))
        said = [kept_for(LONG_US)(hand) if place % 3 else hand.complete() for place, hand in enumerate(hands)]
        async with beside.transaction():
            await beside.execute(_ANALYZE)
            async with asyncio.timeout(SOON_SECONDS):
                told = await asyncio.gather(*(store.apply(each) for each in said), return_exceptions=True)
        assert [type(each) for each in told] == [Applied if place % 3 else NotApplied for place in range(len(hands))]
        again = await asyncio.gather(*(store.apply(each) for each in said))
        assert [type(each) for each in again] == [Applied] * len(hands)


async def test_a_day_that_was_detached_is_used_again(migrated_url: str) -> None:
    """Where the clock was set back, what a past day's responses were detached as is where they are recorded again."""
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as store, session(migrated_url) as beside:
        await do(store, before := Hand(), Hand.claim, Hand.complete)
        for day in await days(beside):
            await beside.execute(
                f"ALTER TABLE idempotency_gateway.response DETACH PARTITION idempotency_gateway.response_{day}"
            )
        await do(store, hand := Hand(), Hand.claim)
        assert await told(store, hand.complete()) is Applied
        for each in (before, hand):
            assert await state(store, each) is State.COMPLETED
            assert each.record.response == ANSWER
