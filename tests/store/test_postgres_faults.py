"""Postgres killed, frozen, cut off and contended for: what was acknowledged is kept, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.operation import Accept, Applied, Claim, Command, State, microseconds
from gateway.core.outbox import EventType, Outbox, Subscription
from gateway.protect.claiming import Unavailable
from gateway.store.base import EpochChanged, Indefinite, NotApplied, StoreError, Unreadable, Unstorable
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import ANSWER, SAME, SERVICE, Hand, do, state
from tests.store.postgres_pooler import Pooler
from tests.store.postgres_sessions import opened, session
from tests.support.coordination import INFO, claiming_on, request_for
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule

# What no bounded call comes near, and only an unbounded one reaches.
PATIENCE_SECONDS = 30.0
# What a command on a busy machine is done within. As long waits each test for what is lost.
COMMAND_SECONDS = 2.0


def relayed(relay: Relay) -> str:
    return f"postgresql://gateway@127.0.0.1:{relay.port}/postgres"


async def tried(store: PostgresStore, command: Command) -> Any:
    """What came of it; nothing where it has to be said again."""
    try:
        return await store.apply(command)
    except (NotApplied, Unreadable, Indefinite):
        return None


async def is_done(store: PostgresStore, command: Command) -> bool:
    return isinstance(await tried(store, command), Applied)


OVER: dict[str, Callable[[Hand], Claim | Accept]] = {
    "lapse": lambda hand: replace(hand.claim(), lease_us=1),
    "expiry": lambda hand: replace(hand.accept(), deliver_within_us=1),
}


@pytest.mark.parametrize("what", OVER)
async def test_an_event_of_a_sweep_that_was_published_outlives_a_crash(own_postgres: PostgresServer, what: str) -> None:
    """A later sweep would write it with another time, under the same id."""
    async with session(own_postgres.url) as connection:
        # What nobody waits for stays in memory until the crash.
        await connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        await connection.execute("SELECT pg_reload_conf()")
    types = frozenset((EventType.IN_DOUBT, EventType.DEAD_LETTERED))
    outbox = Outbox(SERVICE, "urn:shop", (Subscription("sink", types),))

    async def publishable(store: PostgresStore) -> list[bytes]:
        await store.sweep(100)
        return [each.event.cloudevent() for each in await store.lease_events(SERVICE, {"sink": 10}, microseconds(1))]

    async with opened(own_postgres.url, outbox=outbox) as store:
        # The first sweep makes partitions, whose commit would flush those before it.
        await store.sweep(100)
        await do(store, Hand(), OVER[what])
        published = await eventually(lambda: publishable(store), 30.0, "the event can be published")
        own_postgres.crash()
    own_postgres.start()
    async with opened(own_postgres.url, outbox=outbox) as store:
        assert await eventually(lambda: publishable(store), 30.0, "the event can be published again") == published


async def test_a_frozen_server_keeps_nobody_waiting(own_postgres: PostgresServer) -> None:
    """Every verb ends within its bound, and what was under way is indefinite; thawed, the server is used again."""
    async with opened(own_postgres.url, connect_seconds=0.5, command_seconds=COMMAND_SECONDS) as store:
        hand, other = Hand(), Hand()
        await do(store, hand, Hand.claim)
        await do(store, other, Hand.claim, Hand.complete)
        own_postgres.pause()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                with pytest.raises(Indefinite):
                    await store.apply(hand.complete_grant())
                for _ in range(3):
                    with pytest.raises(NotApplied):
                        await store.apply(hand.complete())
                for call in (store.read(hand.operation_id), store.tally(), store.sweep(10)):
                    with pytest.raises(StoreError):
                        await call
        finally:
            own_postgres.resume()
        answer = await eventually(lambda: tried(store, hand.complete()), PATIENCE_SECONDS)
        assert answer.snapshot.record.response == ANSWER


@pytest.mark.parametrize(
    ("lost", "told", "left"),
    [
        pytest.param(b"C\x00\x00\x00\x0aBEGIN", NotApplied, State.CLAIMED, id="begin"),
        pytest.param(b"C\x00\x00\x00\x0bCOMMIT", Indefinite, State.IN_DOUBT, id="commit"),
    ],
)
async def test_a_lost_answer_within_a_transaction(
    lost: bytes, told: type[StoreError], left: State, own_postgres: PostgresServer
) -> None:
    """Before its commit was sent it is known that nothing was done; a repeat of what was done finds that."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay)) as store, opened(own_postgres.url) as witness:
        await do(store, hand := Hand(), Hand.claim)
        command = hand.abandon()
        # Not swallowed: on a busy machine the time of a command could be over before its commit was sent.
        relay.to_client.rule = Rule(lost, Fault.RESET)
        (result,) = await asyncio.gather(store.apply(command), return_exceptions=True)
        relay.to_client.rule = None
        assert type(result) is told
        assert (await witness.read(hand.operation_id)).state is left
        await eventually(lambda: is_done(store, command), PATIENCE_SECONDS)
        assert await state(witness, hand) is State.IN_DOUBT


async def test_a_claim_under_way_is_not_granted_by_another_memory(own_postgres: PostgresServer) -> None:
    """What waits for its connection while the store is closed compares the memory that it meets, as always."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay)) as store, session(own_postgres.url) as beside:
        relay.to_target.hold()
        claiming = asyncio.create_task(store.apply(Hand().claim()))
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        await beside.execute("UPDATE idempotency_gateway.epoch SET identity = gen_random_uuid()")
        relay.to_target.release()
        with pytest.raises(EpochChanged):
            await claiming
        await closing


async def test_a_server_that_is_away_is_not_stormed(own_postgres: PostgresServer) -> None:
    """While connections are refused many callers cause few attempts, and each caller is told at once."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay), connect_seconds=1.0) as store:
        await do(store, Hand(), Hand.claim)
        relay.black_hole = True
        relay.cut()
        before = relay.connections
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(5):
                told = await asyncio.gather(*(store.apply(Hand().claim()) for _ in range(200)), return_exceptions=True)
                assert all(isinstance(each, NotApplied | Indefinite) for each in told)
        assert relay.connections - before < 30
        relay.black_hole = False
        relay.cut()
        await eventually(lambda: tried(store, Hand().claim()), PATIENCE_SECONDS)


async def test_a_value_that_cannot_be_stored_hurts_no_neighbour(migrated_url: str) -> None:
    """Of a batch with poison in it, the poison is rejected and everything else is done."""
    async with opened(migrated_url) as store:

        async def rejected(commands: list[Command]) -> list[int]:
            told = await asyncio.gather(*map(store.apply, commands), return_exceptions=True)
            assert {type(each) for each in told} == {Applied, Unstorable}
            assert "a\x00b" not in str(told)
            return [index for index, each in enumerate(told) if isinstance(each, Unstorable)]

        claims = [Hand().claim() for _ in range(60)]
        claims[7] = replace(claims[7], holder="a\x00b")
        claims[40] = replace(claims[40], lease_us=2**80)
        claims[41] = replace(claims[41], lease_us=2**63 - 1)
        assert await rejected([*claims]) == [7, 40, 41]
        accepted = [Hand().accept() for _ in range(20)]
        accepted[5] = replace(accepted[5], service="a\x00b")
        assert await rejected([*accepted]) == [5]
        hands = [Hand() for _ in range(20)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in hands))
        answers = [hand.complete(replace(ANSWER, status=2**80 if hand is hands[3] else 200)) for hand in hands]
        assert await rejected([*answers]) == [3]
        assert await state(store, hands[3]) is State.CLAIMED


async def test_news_survives_a_lost_connection(own_postgres: PostgresServer) -> None:
    """After the listening connection was lost everybody is woken to look again, and later news arrives."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay)) as store, opened(own_postgres.url) as other:
        await do(other, hand := Hand(), Hand.claim)
        await asyncio.gather(store.wait_listening(), other.wait_listening())
        async with store.watch(hand.operation_id) as watch:
            relay.cut()
            assert await watch.wait_changed(PATIENCE_SECONDS) is True
            await do(other, hand, Hand.complete)
            assert await watch.wait_changed(PATIENCE_SECONDS) is True


async def test_a_known_key_is_not_free_for_want_of_its_answer(own_postgres: PostgresServer) -> None:
    """Where a claim has found a completed record and nothing comes over the connection that its answer is read over, a
    route that does without a store that is away does not execute the request, however long the store is silent."""
    async with Relay(own_postgres.port) as relay, opened(relayed(relay), connect_seconds=2.0) as store:
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        assert hand.snapshot.state is State.COMPLETED
        # In the statement that reads records, which is sent with the first of them.
        relay.to_target.rule = Rule(b"AS is_left", Fault.SWALLOW)
        claiming = claiming_on(store)
        request = request_for(hand.script.identity, SAME, is_executed_anyway=True, patience_seconds=1.0)
        admission = await claiming.claim(request, INFO)
        assert isinstance(admission, Unavailable)
        assert admission.is_refused
        await claiming.close()


# Longer than anything that a store waits for.
VANISHED_SECONDS = 15.0


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

            async def is_neighbour_served() -> bool:
                """In one batch with another claim of this operation."""
                told = await asyncio.gather(
                    store.apply(hand.claim()), store.apply(Hand().claim()), return_exceptions=True
                )
                return isinstance(told[1], Applied)

            await eventually(is_neighbour_served, VANISHED_SECONDS, "a neighbour is served")
            await eventually(lambda: is_done(store, hand.claim()), VANISHED_SECONDS, "the key is free")


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
            await eventually(lambda: is_done(store, completion), VANISHED_SECONDS, "the response is recorded")


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
