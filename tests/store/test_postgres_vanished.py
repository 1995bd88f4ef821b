"""A gateway that vanishes in the middle: what it was about to lock, and whoever waits for that or shares its batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from gateway.core.operation import Applied
from gateway.store.base import Indefinite, NotApplied, Unreadable, Unstorable
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import SERVICE, Hand, do
from tests.store.postgres_pooler import Pooler
from tests.store.postgres_sessions import EXECUTE, opened, session
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule
from tests.support.serving import serving

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


async def test_a_batch_that_cannot_begin_leaves_no_transaction_open(own_postgres: PostgresServer) -> None:
    """Behind a pooler a session is given back also where the server refuses to begin with a batch."""
    async with Pooler(own_postgres.port, "gateway", "postgres") as pooler, session(own_postgres.url) as witness:
        url = f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres?pgbouncer=true"
        # More milliseconds than the server has a number for.
        async with opened(url, command_seconds=1e7) as store:
            with pytest.raises(Unstorable):
                await store.apply(Hand().claim())
            assert await witness.fetch("SELECT FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == []


async def record_an_answer(store: PostgresStore) -> None:
    await do(store, Hand(), Hand.claim, Hand.complete)


UPKEEP: dict[str, tuple[bytes, Callable[[PostgresStore], Awaitable[object]]]] = {
    "partition": (b"idempotency_gateway.add_partition", record_an_answer),
    "recipes": (b"FROM idempotency_gateway.recipe", lambda store: store.compare_configuration(serving())),
    "memory": (b"UPDATE idempotency_gateway.epoch", lambda store: store.begin_epoch(b"", 1)),
}


@pytest.mark.parametrize("name", UPKEEP)
async def test_behind_a_pooler_nothing_waits_for_whoever_vanished(name: str, own_postgres: PostgresServer) -> None:
    """What a gateway does for all of them under a lock, the next one gets to do when it vanished in the middle."""
    pattern, work = UPKEEP[name]
    async with Pooler(own_postgres.port, "gateway", "postgres", sessions=8) as pooler, Relay(pooler.port) as relay:
        own = f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres?pgbouncer=true"
        cut = f"postgresql://gateway@127.0.0.1:{relay.port}/postgres?pgbouncer=true"
        async with opened(own) as store, opened(cut) as gone:
            relay.to_target.rule = Rule(pattern, Fault.SWALLOW)
            vanished = asyncio.create_task(asyncio.wait_for(work(gone), 1.0))

            async def is_done() -> bool:
                try:
                    await work(store)
                except (NotApplied, Indefinite):
                    return False
                return True

            with pytest.raises((TimeoutError, NotApplied, Indefinite)):
                await vanished
            await eventually(is_done, PATIENCE_SECONDS, "somebody else gets to it")


async def test_within_a_message_nobody_is_held_up(own_postgres: PostgresServer) -> None:
    """Whoever shares a batch with a repeat of what it was about to claim is served in time."""
    async with Relay(own_postgres.port) as relay:
        cut = f"postgresql://gateway@127.0.0.1:{relay.port}/postgres"
        async with (
            opened(own_postgres.url, command_seconds=COMMAND_SECONDS) as store,
            opened(cut, command_seconds=COMMAND_SECONDS) as gone,
        ):
            await do(gone, Hand(), Hand.claim)
            relay.to_target.rule = Rule(EXECUTE, Fault.SWALLOW)
            hand = Hand()
            with pytest.raises((NotApplied, Indefinite)):
                await gone.apply(hand.claim())
            await eventually(partial(is_neighbour_served, store, hand), PATIENCE_SECONDS, "a neighbour is served")


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


async def test_a_batch_waits_for_few_locks_only(migrated_url: str) -> None:
    """Where many are locked the rest of a batch is refused too, so that those who wait behind it have their turn."""
    async with opened(migrated_url, command_seconds=2.0) as store, session(migrated_url) as holder:
        hands = [Hand() for _ in range(50)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in hands))
        async with holder.transaction():
            await holder.fetch("SELECT FROM idempotency_gateway.operation FOR UPDATE")
            async with asyncio.timeout(PATIENCE_SECONDS):
                told = await asyncio.gather(*(store.apply(hand.complete()) for hand in hands), return_exceptions=True)
        assert {type(each) for each in told} == {NotApplied}


async def test_a_claim_that_was_given_up_for_others_is_not_free(migrated_url: str) -> None:
    """Where many are locked, the claims that were not tried are withheld too: each key may be another's by then."""
    async with opened(migrated_url, command_seconds=2.0) as store, session(migrated_url) as holder:
        hands = [Hand() for _ in range(12)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.release) for hand in hands))
        async with holder.transaction():
            await holder.fetch("SELECT FROM idempotency_gateway.operation FOR UPDATE")
            told = await asyncio.gather(*(store.apply(hand.retry()) for hand in hands), return_exceptions=True)
        assert {type(each) for each in told} == {Unreadable}


async def test_a_count_behind_a_pooler_is_ended_by_the_server(own_postgres: PostgresServer) -> None:
    """A count of keys that takes too long is refused, and does not go on at the server for nobody."""
    async with (
        Pooler(own_postgres.port, "gateway", "postgres") as pooler,
        session(own_postgres.url) as admin,
        opened(
            f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres?pgbouncer=true", command_seconds=COMMAND_SECONDS
        ) as store,
    ):
        await store.compare_configuration(serving(recipes={"charges": b"one"}))
        await do(store, Hand(), Hand.claim)
        await admin.execute(
            "ALTER TABLE idempotency_gateway.operation RENAME TO kept;"
            "CREATE VIEW idempotency_gateway.operation AS"
            f" SELECT kept.* FROM pg_sleep({PATIENCE_SECONDS}) LEFT JOIN idempotency_gateway.kept ON true"
        )
        with pytest.raises(NotApplied, match="57014"):
            await store.count_without_route(SERVICE, ())


async def test_a_session_of_its_own_notices_that_its_client_is_gone(migrated_url: str) -> None:
    """The server is told to look whether the client is still there, and finds out within a quarter of a minute."""
    link = Dialer(migrated_url).link()
    try:
        (row,) = await link.fetch(
            "SELECT current_setting('tcp_keepalives_idle')::int AS idle,"
            " current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int AS asking"
        )
    finally:
        await link.close()
    assert row["idle"] > 0
    assert row["asking"] > 0
    assert row["idle"] + row["asking"] <= 15
