"""The tiered store: who is asked, what is kept of the answers, and that no copy outlives its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import product
from uuid import uuid4

import pytest

from gateway.core.operation import Fenced, Purge, Result, Snapshot, State, microseconds
from gateway.store.base import Indefinite, NotApplied, StoreError, boot_seconds
from gateway.store.redis.store import RedisFastTier
from gateway.store.sealed import Steadiness
from gateway.store.tiered import ProcessCache, Tiered
from tests.conformance.hand import REPLAY_SECONDS, Hand, do, started
from tests.store.copies import STORE, client, completed, id_of, key_of
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, FaultyStore, dropped, lost, refused
from tests.support.memory_store import Memory, MemoryStore
from tests.support.redis import RedisServer

AGE_SECONDS = 30.0
CACHE_BYTES = 1_000_000
LONG_SECONDS = 30.0


class PartlyAwayError(NotApplied):
    """Of a store of which a part is away."""

    is_partial = True


@dataclass
class Gateway:
    """A tiered store and its parts."""

    store: Tiered
    durable: FaultyStore
    tiers: list[tuple[str, bool, str]]
    fast: RedisFastTier | None
    clock: list[float]

    def advance(self, seconds: float) -> None:
        """Let time pass for the durable store and for the process alike."""
        self.clock[0] += seconds
        self.durable.behind.memory.clock.advance(seconds)


@asynccontextmanager
async def gateway(memory: Memory, url: str | None, cache_bytes: int = CACHE_BYTES) -> AsyncIterator[Gateway]:
    durable, tiers, clock = FaultyStore(MemoryStore(memory)), [], [0.0]

    def now() -> float:
        return boot_seconds() + clock[0]

    fast = None if url is None else RedisFastTier(url, clock=now)
    if fast is not None:
        fast.bind(STORE)
    async with started(
        Tiered(
            durable,
            fast,
            cache_bytes=cache_bytes,
            cache_max_age_seconds=AGE_SECONDS,
            clock=now,
            on_tier=lambda *told: tiers.append(told),
        )
    ) as store:
        yield Gateway(store, durable, tiers, fast, clock)


@pytest.fixture
def memory() -> Memory:
    return Memory()


async def copy_of(store: Tiered, hand: Hand) -> Snapshot | None:
    """What is known without a claim, as it is asked for before one."""
    copy = store.recall(hand.operation_id)
    if copy is None and (looked := store.look_up(hand.operation_id)) is not None:
        with suppress(StoreError):
            copy = await looked
    return copy


async def repeat(store: Tiered, hand: Hand) -> Result:
    """A claim as it comes: where there is no copy."""
    copy = await copy_of(store, hand)
    return await store.apply(hand.claim()) if copy is None else Fenced(copy)


async def claim(store: Tiered) -> Hand:
    hand = Hand()
    assert await copy_of(store, hand) is None
    await do(store, hand, Hand.claim)
    return hand


async def complete(store: Tiered) -> Hand:
    """An operation of its own, claimed and completed."""
    hand = await claim(store)
    await do(store, hand, Hand.complete)
    return hand


async def in_redis(url: str, hand: Hand) -> None:
    with client(url) as redis:
        await eventually(lambda: redis.exists(key_of(hand.operation_id)), what="the copy is in Redis")


async def test_a_copy_ends_with_its_window(memory: Memory, redis_url: str, no_haste: None) -> None:
    """Once the replay window is over the durable store is asked, and says that the answer is gone."""
    async with gateway(memory, redis_url) as here:
        hand = await complete(here.store)
        here.advance(REPLAY_SECONDS)
        with client(redis_url) as redis:
            redis.flushdb()
        result = await repeat(here.store, hand)
        assert result.snapshot.state is State.TOMBSTONE


async def test_a_purge_that_redis_was_not_told_of_reaches_others(memory: Memory, redis_url: str) -> None:
    """A gateway without Redis purges and dies: the next that asks the durable store what became of it tells Redis."""
    async with gateway(memory, redis_url) as here, gateway(memory, redis_url) as there:
        hand = await complete(here.store)
        await in_redis(redis_url, hand)
        async with gateway(memory, None) as alone:
            await alone.store.apply(Purge(hand.operation_id))
        epoch = await here.store.cold.check_memory()
        fast = here.fast
        fast.bind(STORE, epoch.generation)
        await eventually(lambda: fast.has_forgotten, what="Redis is told")
        assert (await repeat(there.store, hand)).snapshot.state is State.TOMBSTONE


@pytest.mark.parametrize(
    ("verb", "fault", "state"),
    [
        ("complete", lost(), State.COMPLETED),
        ("complete", dropped(), State.CLAIMED),
        ("purge", lost(), State.TOMBSTONE),
    ],
    ids=["recorded", "no-effect", "purged"],
)
async def test_what_was_not_answered_is_no_copy(memory: Memory, verb: str, fault: Fault, state: State) -> None:
    """Whether it was done is for the durable store to say: whoever comes next is answered by that."""
    async with gateway(memory, None) as here:
        hand = await claim(here.store)
        if verb == "purge":
            await do(here.store, hand, Hand.complete)
            assert here.store.recall(hand.operation_id) is not None
        here.durable.on(verb, fault)
        with pytest.raises(Indefinite):
            await here.store.apply(hand.complete() if verb == "complete" else hand.purge())
        here.durable.said.clear()
        result = await repeat(here.store, hand)
        assert isinstance(result, Fenced)
        assert (result.snapshot.state, here.durable.said) == (state, ["claim"])


async def test_what_waits_to_be_spread_is_bounded(memory: Memory, own_redis: RedisServer) -> None:
    """While Redis does not answer, copies beyond the bounds are shed instead of piling up."""
    async with gateway(memory, own_redis.url, cache_bytes=0) as here:
        hands = [Hand() for _ in range(1_200)]
        for hand in hands:
            await do(here.store, hand, Hand.claim)
        own_redis.pause()
        await asyncio.gather(*(do(here.store, hand, Hand.complete) for hand in hands))
        assert here.store.stats.shed == 200
        own_redis.resume()
    assert here.store.stats.shed == 200


async def test_a_waiter_moves_with_the_news(memory: Memory, own_redis: RedisServer) -> None:
    """When Redis goes, whoever waits is told to look, and hears the durable store from then on."""
    async with gateway(memory, own_redis.url) as here:
        hand = await claim(here.store)
        async with here.store.watch(hand.operation_id) as watch:
            own_redis.kill()
            assert await watch.wait_changed(LONG_SECONDS)
            # Whoever asks next finds out that Redis is away.
            await repeat(here.store, Hand())
            assert not here.fast.up
            while await watch.wait_changed(0):
                pass
            await do(here.store, hand, Hand.release)
            assert await watch.wait_changed(LONG_SECONDS)


async def test_how_long_the_durable_store_has_been_there(memory: Memory) -> None:
    """Counted anew from its last absence, of which a step of its clock ahead is one; while it is away it is not."""
    async with gateway(memory, None) as here:
        await claim(here.store)
        here.advance(100.0)
        await claim(here.store)
        assert 100.0 <= here.store.durable_reachable_seconds < 150.0
        # A lease that ended meanwhile may have an owner who could not say so.
        for verb, fault in product(("claim", "read"), (lost(), refused())):
            here.durable.on(verb, fault)
            with pytest.raises(StoreError):
                await (here.store.read(uuid4()) if verb == "read" else here.store.apply(Hand().claim()))
            assert (here.store.durable_up, here.store.durable_reachable_seconds) == (False, 0.0)
            await claim(here.store)
            assert here.store.durable_reachable_seconds < 50.0
            here.advance(100.0)
            await claim(here.store)
            assert here.store.durable_reachable_seconds >= 100.0
        memory.clock.advance(3600.0)
        await claim(here.store)
        assert here.store.durable_reachable_seconds < 50.0


async def test_a_part_that_is_missing(memory: Memory) -> None:
    """The store is there, and nobody is told otherwise; but not all of it has been there all the while."""
    async with gateway(memory, None) as here:
        await claim(here.store)
        here.advance(100.0)
        told = list(here.tiers)
        here.durable.on("claim", Fault(PartlyAwayError("away"), has_effect=False))
        with pytest.raises(NotApplied):
            await here.store.apply(Hand().claim())
        assert here.store.durable_up
        assert here.tiers == told
        assert here.store.durable_reachable_seconds < 50.0


async def test_a_slow_answer_makes_no_young_copy(memory: Memory) -> None:
    """How old a copy is counts from before the call that gave it, however late the answer came."""
    async with gateway(memory, None) as here:
        hand = await claim(here.store)
        gate = here.durable.stop_after("complete")
        completing = asyncio.create_task(do(here.store, hand, Hand.complete))
        await gate.reached.wait()
        here.clock[0] += AGE_SECONDS
        gate.opened.set()
        await completing
        here.durable.said.clear()
        await here.store.apply(hand.claim())
        assert here.durable.said == ["claim"]


ROOMY_BYTES = 1_000_000


def test_an_entry_ends_with_its_window() -> None:
    """A record is not answered from the moment on at which its replay window is over."""
    cache, snapshot = ProcessCache(ROOMY_BYTES, 10 * REPLAY_SECONDS), completed()
    cache.put(snapshot, 100.0)
    assert cache.get(id_of(snapshot), 100.0 + REPLAY_SECONDS - 0.001) is not None
    assert cache.get(id_of(snapshot), 100.0 + REPLAY_SECONDS) is None
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_drop_refuses_what_was_read_before_it() -> None:
    """A record whose store call began before the drop does not come back; one read afterwards does."""
    cache, snapshot = ProcessCache(ROOMY_BYTES, AGE_SECONDS), completed()
    cache.put(snapshot, 100.0)
    cache.drop(id_of(snapshot), 105.0)
    assert cache.get(id_of(snapshot), 105.0) is None
    cache.put(snapshot, 104.0)
    assert cache.get(id_of(snapshot), 106.0) is None
    cache.put(snapshot, 105.5)
    assert cache.get(id_of(snapshot), 106.0) is not None


def test_the_bytes_are_bounded_and_the_least_recently_used_goes_first() -> None:
    """Entries are pushed out in the order of their last use, and what they weighed is given back."""
    snapshots = [completed(b"x" * 1_000) for _ in range(40)]
    one = ProcessCache(ROOMY_BYTES, AGE_SECONDS)
    one.put(snapshots[0], 100.0)
    cache = ProcessCache(30 * one.size_bytes, AGE_SECONDS)
    for snapshot in snapshots[:30]:
        cache.put(snapshot, 100.0)
    assert cache.get(id_of(snapshots[0]), 101.0) is not None
    for snapshot in snapshots[30:]:
        cache.put(snapshot, 100.0)
    kept = [index for index, snapshot in enumerate(snapshots) if cache.get(id_of(snapshot), 101.0)]
    assert kept == [0, *range(11, 40)]
    assert cache.size_bytes == 30 * one.size_bytes


# What the store's clock shows when the boot-time clock shows nothing.
LEAD_SECONDS = 1_800_000_000.0
HOUR_SECONDS = 3600.0


def told(*calls: tuple[float, float, float]) -> Steadiness:
    """From calls: when each began, when the store looked at its clock and found it set ahead, and by how much."""
    steadiness = Steadiness()
    for began, looked, ahead in calls:
        steadiness.observe(microseconds(LEAD_SECONDS + looked + ahead), began, looked + 0.01)
    return steadiness


@pytest.mark.parametrize("ahead", [2.0, HOUR_SECONDS, -2.0, -HOUR_SECONDS])
def test_a_step_is_noticed(ahead: float) -> None:
    """With the first answer after it the clock begins anew to be steady."""
    assert told((50.0, 50.0, 0.0), (90.0, 90.0, ahead)).steady_seconds(100.01) == pytest.approx(10.0)


STEADY_SINCE_50 = {
    # Where the store looked at its clock within a slow call is not known, and is not held against it.
    "slow": [(50.0, 50.0, 0.0), (60.0, 75.0, 0.0), (80.0, 80.0, 0.0)],
    "gains": [(50.0 + at, 50.0 + at, at * 0.0005) for at in range(0, 100_000, 100)],
    "loses": [(50.0 + at, 50.0 + at, at * -0.0005) for at in range(0, 100_000, 100)],
}


@pytest.mark.parametrize("calls", STEADY_SINCE_50.values(), ids=STEADY_SINCE_50)
def test_slowness_and_drift_are_no_step(calls: list[tuple[float, float, float]]) -> None:
    """A clock that gains or loses a little all the time is steady, and what a slow call leaves open hides no step."""
    until = calls[-1][0] + 10.0
    assert told(*calls).steady_seconds(until) == pytest.approx(until - 50.01)
    for step in (3.0, -3.0):
        assert told(*calls, (until, until, calls[-1][2] + step)).steady_seconds(until + 5.01) == pytest.approx(5.0)
