"""What the tests of the fast tier and of the tiered store share: completed records, and tiers opened and closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from uuid import UUID

import redis

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.message import Headers
from gateway.core.operation import Snapshot, microseconds
from gateway.store.redis.store import RedisFastTier
from tests.conformance.hand import ANSWER, Hand, started
from tests.support.eventually import eventually
from tests.support.memory_store import MemoryStore
from tests.support.relay import Relay

STORE = "the-store"


def completed(body: bytes = b"one", fields: Headers = ANSWER.headers) -> Snapshot:
    store, hand = MemoryStore(), Hand()
    for say in (hand.claim, lambda: hand.complete(replace(ANSWER, headers=fields, body=body))):
        command = say()
        hand.see(command, store.apply_now(command))
    return hand.snapshot


def id_of(snapshot: Snapshot) -> UUID:
    return snapshot.record.identity.operation_id


def with_time_left(snapshot: Snapshot, seconds: float) -> Snapshot:
    return replace(snapshot, now_us=snapshot.record.replay_until_us - microseconds(seconds))


def time_left_us(snapshot: Snapshot | None) -> int:
    return snapshot.record.replay_until_us - snapshot.now_us


def key_of(operation_id: UUID, store: str = STORE) -> str:
    return f"{prefix_of(store)}{{{operation_id.hex}}}"


def prefix_of(store: str = STORE) -> str:
    return f"idempotency-gateway:{sha256(store.encode()).hexdigest()[:16]}:"


@asynccontextmanager
async def fast_tier(url: str, store: str = STORE, sealing: Sealing = NO_SEALING) -> AsyncIterator[RedisFastTier]:
    """A started tier, bound to a durable store of this identity."""
    tier = RedisFastTier(url, sealing=sealing)
    tier.bind(store)
    async with started(tier):
        yield tier


async def why_down(url: str) -> str:
    """What a tier that is down from its start tells of the cause, once."""
    told: list[tuple[bool, str]] = []
    tier = RedisFastTier(url)
    tier.on_change(lambda up, why: told.append((up, why)))
    async with started(tier):
        pass
    assert len(told) == 1
    assert not told[0][0]
    return told[0][1]


def through(relay: Relay) -> str:
    return f"redis://127.0.0.1:{relay.port}/0"


async def until_up(tier: RedisFastTier) -> None:
    await eventually(lambda: tier.up, what="the tier is up")


def client(url: str) -> redis.Redis:
    """A connection of the test's own, to be used as a context."""
    return redis.Redis.from_url(url)
