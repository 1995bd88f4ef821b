"""A store as a thing that starts, shares, wakes, agrees, stops and starts again."""

from __future__ import annotations

import asyncio

import pytest

from gateway.store.base import NotApplied, Store
from gateway.store.postgres.store import PostgresStore
from tests.conformance.cases import one_of_every_kind
from tests.conformance.hand import Hand, do, increasing, started, state
from tests.conformance.stores import Database

# Long enough that only a missed wake-up reaches it.
PATIENCE_SECONDS = 20.0


async def test_a_store_that_was_not_started_changes_nothing(database: Database) -> None:
    for verb, said in (("apply", Hand().claim()), ("sweep", 10)):
        with pytest.raises(NotApplied):
            await getattr(database.open_store(), verb)(said)


async def test_a_restart_forgets_nothing(database: Database) -> None:
    """Every kind of record, and the order of tokens, outlives the store object that wrote it."""
    async with started(database.open_store()) as store:
        hands = list((await one_of_every_kind(store, database)).values())
        await do(store, gone := Hand(), Hand.claim, Hand.release, Hand.erase)
        before = [(await state(store, hand), hand.record) for hand in hands]
    async with started(database.open_store()) as store:
        assert [(await state(store, hand), hand.record) for hand in hands] == before
        await do(store, gone, Hand.claim)
        assert increasing(gone.tokens)
        assert gone.token > max(token for hand in hands for token in hand.tokens)


async def test_a_change_wakes_who_waits(store: Store) -> None:
    """A completion through the same store ends the wait with news, and so does one between opening and waiting."""
    hand, early, bystander = (Hand() for _ in range(3))
    for each in (hand, early, bystander):
        await do(store, each, Hand.claim)
    if isinstance(store, PostgresStore) and store._dialer.can_listen:
        # Everybody is woken when it begins to listen. Behind pgbouncer, and in the portable dialect, it never does.
        await store.wait_listening()
    async with store.watch(hand.operation_id) as watch, store.watch(bystander.operation_id) as quiet:
        waiting = asyncio.create_task(watch.wait_changed(PATIENCE_SECONDS))
        await do(store, hand, Hand.complete)
        assert await waiting is True
        assert await quiet.wait_changed(0.05) is False
    async with store.watch(early.operation_id) as watch:
        await do(store, early, Hand.complete)
        assert await watch.wait_changed(PATIENCE_SECONDS) is True
