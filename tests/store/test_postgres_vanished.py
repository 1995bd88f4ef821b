"""A gateway that vanishes in the middle: what it was about to lock, and whoever waits for that or shares its batch."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.core.operation import Applied
from gateway.store.base import Indefinite, NotApplied, Unreadable
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import Hand, do
from tests.store.postgres_pooler import Pooler
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule

# Longer than anything that a store waits for.
PATIENCE_SECONDS = 15.0
COMMAND_SECONDS = 0.5


async def is_neighbour_served(store: PostgresStore, hand: Hand) -> bool:
    """Whether a claim is granted that goes in one batch with another one of this operation."""
    _, told = await asyncio.gather(store.apply(hand.claim()), store.apply(Hand().claim()), return_exceptions=True)
    return isinstance(told, Applied)


async def test_behind_a_pooler_nobody_is_held_up(own_postgres: PostgresServer) -> None:
    """What was about to be claimed is free again in time, and whoever shares a batch with a repeat is served."""
    async with Pooler(own_postgres.port, "gateway", "postgres", sessions=8) as pooler, Relay(pooler.port) as relay:
        own = f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres?pgbouncer=true"
        cut = f"postgresql://gateway@127.0.0.1:{relay.port}/postgres?pgbouncer=true"
        async with (
            opened(own, command_seconds=COMMAND_SECONDS) as store,
            opened(cut, command_seconds=COMMAND_SECONDS) as gone,
        ):
            await do(gone, Hand(), Hand.claim)
            # From here on nothing of a commit arrives: the host is off the net, and its peer does not hear so.
            relay.to_target.rule = Rule(b"COMMIT", Fault.SWALLOW)
            hand = Hand()
            with pytest.raises((NotApplied, Indefinite)):
                await gone.apply(hand.claim())
            await eventually(partial(is_neighbour_served, store, hand), PATIENCE_SECONDS, "a neighbour is served")

            async def is_free() -> bool:
                try:
                    return isinstance(await store.apply(hand.claim()), Applied)
                except (NotApplied, Unreadable, Indefinite):
                    return False

            await eventually(is_free, PATIENCE_SECONDS, "the key is free")


async def test_between_lock_and_change_nobody_is_held_up(own_postgres: PostgresServer) -> None:
    """What a gateway locked and never changed is free again in time, and nothing was done to it."""
    async with Relay(own_postgres.port) as relay:
        cut = f"postgresql://gateway@127.0.0.1:{relay.port}/postgres"
        async with (
            opened(own_postgres.url, command_seconds=COMMAND_SECONDS) as store,
            opened(cut, command_seconds=COMMAND_SECONDS) as gone,
        ):
            await do(gone, hand := Hand(), Hand.claim)
            relay.to_target.rule = Rule(b"UPDATE idempotency_gateway.operation", Fault.SWALLOW)
            with pytest.raises(NotApplied):
                await gone.apply(hand.abandon())
            completion = hand.complete()

            async def is_recorded() -> bool:
                try:
                    return isinstance(await store.apply(completion), Applied)
                except (NotApplied, Indefinite):
                    return False

            await eventually(is_recorded, PATIENCE_SECONDS, "the response is recorded")


@pytest.mark.parametrize("locked", [1, 2])
async def test_of_a_batch_only_the_locked_are_refused(migrated_url: str, locked: int) -> None:
    """Operations that somebody has locked are given up, knowing that nothing was done; all others are done."""
    async with opened(migrated_url, command_seconds=2.0) as store, session(migrated_url) as holder:
        hands = [Hand() for _ in range(12)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in hands))
        async with holder.transaction():
            lock = "SELECT FROM idempotency_gateway.operation WHERE id = ANY($1) FOR UPDATE"
            await holder.fetch(lock, [hand.operation_id.bytes for hand in hands[2 : 2 + locked]])
            told = await asyncio.gather(*(store.apply(hand.complete()) for hand in hands), return_exceptions=True)
        assert [index for index, each in enumerate(told) if isinstance(each, NotApplied)] == [*range(2, 2 + locked)]
        assert sum(isinstance(each, Applied) for each in told) == len(hands) - locked
