"""What a command on Postgres decides about: the version of the record that it locked, not the one of its snapshot."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from gateway.core.operation import MICROSECONDS, Applied, Audit, Command, Snapshot, State
from gateway.core.outbox import EventType, Outbox, Subscription
from gateway.store.operations import EventFate, EventReport
from tests.conformance.hand import SERVICE, Hand, Speech, do
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually

# How many tokens each of these draws.
_DRAWS: Final = {Hand.retry: 1, Hand.accept_again: 1, Hand.dispatch: 1}
# What nothing here takes.
COMMAND_SECONDS = 60.0
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
_LAST = "SELECT id FROM idempotency_gateway.operation ORDER BY id DESC LIMIT 1"
_ENDS = """SELECT (d.deliver_until_us - d.since_us) / 1000000 AS seconds, d.deliver_until_us = o.due_us AS is_same
FROM idempotency_gateway.delivery d JOIN idempotency_gateway.operation o ON o.id = d.row"""
_LOCK = "SELECT FROM idempotency_gateway.operation WHERE id = $1 FOR UPDATE"


@dataclass(frozen=True, slots=True)
class Crossing:
    """A command that fits only once the one before it, which waits for the same record, is done."""

    before: tuple[Speech, ...]
    first: Speech
    second: Speech


def _postpone_at_once(hand: Hand) -> Command:
    return replace(hand.postpone(), pause_us=0)


_RETRIED = (Hand.claim, Hand.release)
CROSSINGS = {
    "renew": Crossing(_RETRIED, Hand.retry, Hand.renew),
    "complete": Crossing(_RETRIED, Hand.retry, Hand.complete),
    "release": Crossing(_RETRIED, Hand.retry, Hand.release),
    "forget": Crossing(_RETRIED, Hand.retry, Hand.forget),
    "abandon": Crossing(_RETRIED, Hand.retry, Hand.abandon),
    "takeover": Crossing((Hand.claim,), Hand.abandon, Hand.takeover),
    "prove": Crossing((Hand.claim,), Hand.abandon, Hand.prove),
    "disprove": Crossing((Hand.claim,), Hand.abandon, Hand.disprove),
    "purge": Crossing((Hand.claim,), Hand.complete, Hand.purge),
    "erase": Crossing((Hand.claim,), Hand.release, Hand.erase),
    "dispatch": Crossing((Hand.accept, Hand.dispatch), _postpone_at_once, Hand.dispatch),
    "complete-accepted": Crossing((Hand.accept,), Hand.dispatch, Hand.complete),
    "postpone": Crossing((Hand.accept,), Hand.dispatch, Hand.postpone),
    "bury": Crossing((Hand.accept,), Hand.dispatch, Hand.bury),
    "requeue": Crossing((Hand.accept, Hand.dispatch), Hand.bury, Hand.requeue),
    "withdraw": Crossing((Hand.accept, Hand.dispatch), Hand.bury, Hand.withdraw),
    "withdraw-accepted-again": Crossing((Hand.claim, Hand.release), Hand.accept_again, Hand.withdraw),
    "reinstate": Crossing((Hand.accept, Hand.dispatch), Hand.abandon, Hand.reinstate),
}


@pytest.mark.parametrize("name", CROSSINGS)
async def test_what_a_command_waited_for_counts(name: str, migrated_url: str) -> None:
    """A command that waits for another one is applied to what that leaves, and its neighbours in the batch are too."""
    crossing = CROSSINGS[name]
    async with AsyncExitStack() as stack:
        store, other = [
            await stack.enter_async_context(opened(migrated_url, command_seconds=COMMAND_SECONDS)) for _ in range(2)
        ]
        holder, observer = [await stack.enter_async_context(session(migrated_url)) for _ in range(2)]

        async def wait_waiting(number: int) -> None:
            async def is_waiting() -> bool:
                return int(await observer.fetchval(_WAITING)) == number

            await eventually(is_waiting)

        # From here on there is a partition, without which a statement would be repeated.
        await do(store, Hand(), Hand.claim, Hand.complete)
        hand, neighbour = Hand(), Hand()
        await do(store, hand, *crossing.before)
        await do(store, neighbour, *crossing.before, crossing.first)
        first = crossing.first(hand)
        second = await _foretold(crossing, hand, first, observer)
        async with holder.transaction():
            await holder.fetch(_LOCK, hand.operation_id.bytes)
            doing = asyncio.create_task(store.apply(first))
            await wait_waiting(1)
            both = asyncio.gather(other.apply(second), other.apply(crossing.second(neighbour)), return_exceptions=True)
            await wait_waiting(2)
        assert isinstance(await doing, Applied)
        assert [type(result) for result in await both] == [Applied, Applied]
        assert await _is_consistent(observer)


async def _foretold(crossing: Crossing, hand: Hand, first: Command, observer: Any) -> Command:
    """The second command, by whoever knows how the first will end."""
    foretold = replace(hand, tokens=[*hand.tokens])
    if crossing.first in _DRAWS:
        drawn = await observer.fetchval("SELECT last_value FROM idempotency_gateway.token")
        assert hand.record is not None
        claimed = replace(
            hand.record, state=State.CLAIMED, token=drawn + _DRAWS[crossing.first], attempt_id=hand.next_id
        )
        foretold.look(Snapshot(claimed, hand.snapshot.now_us))
    foretold.attempts += 1
    return crossing.second(foretold)


async def _is_consistent(observer: Any) -> bool:
    """Whether there are responses of completed records, kept requests of those that keep one, and no others."""
    kept, known = "SELECT array_agg(row ORDER BY row) FROM idempotency_gateway", "idempotency_gateway.operation"
    operations = f"SELECT array_agg(id ORDER BY id) FROM {known} WHERE request_kept"
    pairs = (
        (
            "SELECT array_agg(token ORDER BY token) FROM idempotency_gateway.response",
            f"SELECT array_agg(token ORDER BY token) FROM {known} WHERE body_kept",
        ),
        (f"{kept}.request", operations),
        (f"{kept}.delivery", operations),
    )
    alike = [await observer.fetchval(f"SELECT ({one}) IS NOT DISTINCT FROM ({other})") for one, other in pairs]
    return all(alike)


async def test_an_event_that_is_encrypted_anew_at_this_moment_gets_its_turn(migrated_url: str) -> None:
    """Its row is another one then."""
    outbox = Outbox("shop", "urn:shop", (Subscription("ledger", is_ordered=True),))
    async with (
        opened(migrated_url, outbox=outbox, command_seconds=COMMAND_SECONDS) as store,
        session(migrated_url) as rekeying,
        session(migrated_url) as observer,
    ):
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.abandon, Hand.prove)
        (head,) = await store.lease_events("shop", {"ledger": 5}, 30_000_000)
        report = EventReport("ledger", head.event.id, head.tries, 0, EventFate.PUBLISHED, line=head.line)
        async with rekeying.transaction():
            await rekeying.execute("UPDATE idempotency_gateway.event SET content = content WHERE is_behind")
            reporting = asyncio.create_task(store.report_events("shop", [report]))

            async def waits_or_is_done() -> bool:
                return reporting.done() or int(await observer.fetchval(_WAITING)) == 1

            await eventually(waits_or_is_done)
        await reporting
        leased = await store.lease_events("shop", {"ledger": 5}, 30_000_000)
        assert [each.event.type for each in leased] == [EventType.COMPLETED]


async def test_a_sweep_beside_the_end_of_a_pause_adds_nothing(migrated_url: str) -> None:
    """What the end has come to keeps the time that it has then, although the name is paused until all is done."""
    within_seconds, number = 1_800, 1_200
    audit = Audit("operator", "repair")
    async with opened(migrated_url) as store, opened(migrated_url) as other, session(migrated_url) as locker:

        def accept(hand: Hand) -> Command:
            return replace(hand.accept(), deliver_within_us=within_seconds * MICROSECONDS)

        async def is_waiting() -> bool:
            return int(await locker.fetchval(_WAITING)) == 1

        await asyncio.gather(*(do(store, Hand(), accept) for _ in range(number)))
        await store.pause(SERVICE, "charges", audit)
        assert await store.pause(SERVICE, "charges", audit) is False
        while (await other.sweep(1_000)).more:
            pass
        async with locker.transaction():
            # The end of the pause comes to this in its last piece.
            await locker.fetch(_LOCK, await locker.fetchval(_LAST))
            resuming = asyncio.create_task(store.resume(SERVICE, "charges", audit))
            await eventually(is_waiting)
            await other.sweep(1_000)
        assert await resuming is True
        ends = await locker.fetch(_ENDS)
        assert len(ends) == number
        assert all(each["is_same"] for each in ends)
        assert max(each["seconds"] for each in ends) < 2 * within_seconds
        assert [each.is_resumed for each in await store.pause_audits(SERVICE)] == [False, True]
