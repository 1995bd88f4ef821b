"""News through a real Redis: who is woken, what is told to other gateways, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from gateway.core.operation import Snapshot
from gateway.store.base import boot_seconds
from gateway.store.redis.store import RedisFastTier
from tests.store.copies import client, completed, fast_tier, id_of, key_of
from tests.support.eventually import eventually
from tests.support.redis import RedisServer

LONG_SECONDS = 30.0


@pytest.fixture
async def tier(redis_url: str) -> AsyncIterator[RedisFastTier]:
    async with listening_tier(redis_url) as tier:
        yield tier


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[RedisFastTier]:
    async with fast_tier(redis_url) as tier:
        yield tier


@asynccontextmanager
async def listening_tier(url: str) -> AsyncIterator[RedisFastTier]:
    async with fast_tier(url) as tier:
        await eventually(lambda: subscribers(url, "idempotency-gateway:purges"), what="the tier listens")
        yield tier


def subscribers(url: str, channel: str) -> int:
    with client(url) as redis:
        return int(redis.pubsub_numsub(channel)[0][1])


Say = Callable[[RedisFastTier, Snapshot], Awaitable[None]]


@pytest.mark.parametrize(
    "say",
    [
        pytest.param(lambda tier, snapshot: tier.put(snapshot, boot_seconds()), id="put"),
        pytest.param(lambda tier, snapshot: tier.put(snapshot, 0.0), id="refused-put"),
        pytest.param(lambda tier, snapshot: tier.announce(id_of(snapshot)), id="announce"),
        pytest.param(lambda tier, snapshot: tier.forget(id_of(snapshot)), id="purge"),
    ],
)
async def test_whoever_waits_on_another_gateway_is_woken(tier: RedisFastTier, other: RedisFastTier, say: Say) -> None:
    """Everything that is said of an operation wakes its waiters, and nobody else's."""
    snapshot = completed()
    async with tier.watch(id_of(snapshot)) as watch, tier.watch(uuid4()) as stranger:
        await say(other, snapshot)
        assert await watch.wait_changed(LONG_SECONDS)
        assert not await stranger.wait_changed(0)


async def test_nothing_stays_subscribed(tier: RedisFastTier, redis_url: str) -> None:
    """A subscription ends with its last waiter, also when that one is cancelled."""
    operation_id = uuid4()
    channel = key_of(operation_id)
    async with tier.watch(operation_id):
        async with tier.watch(operation_id):
            assert subscribers(redis_url, channel) == 1
        assert subscribers(redis_url, channel) == 1
    await eventually(lambda: subscribers(redis_url, channel) == 0)

    async def wait() -> None:
        async with tier.watch(operation_id) as watch:
            await watch.wait_changed(LONG_SECONDS)

    waiter = asyncio.create_task(wait())
    await eventually(lambda: subscribers(redis_url, channel) == 1)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await eventually(lambda: subscribers(redis_url, channel) == 0)


async def test_a_lost_link_wakes_the_waiters_and_is_restored(own_redis: RedisServer) -> None:
    """Who waits is told to look when news may have been missed, and hears again once the server is back."""
    operation_id = uuid4()
    async with listening_tier(own_redis.url) as tier, tier.watch(operation_id) as watch:
        own_redis.kill()
        assert await watch.wait_changed(LONG_SECONDS)
        own_redis.start()
        # Once more when it is heard again: what happened in between was missed.
        assert await watch.wait_changed(LONG_SECONDS)
        with client(own_redis.url) as redis:
            redis.publish(key_of(operation_id), b"")
        assert await watch.wait_changed(LONG_SECONDS)
