"""What a command on Postgres decides about: the version of the record that it locked, not the one of its snapshot."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from gateway.core.operation import Applied, Command, Snapshot, State
from tests.conformance.hand import Hand, Speech, do
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually

# How many tokens each of these draws.
_DRAWS: Final = {Hand.retry: 1, Hand.accept_again: 1, Hand.dispatch: 1}
# What nothing here takes.
COMMAND_SECONDS = 60.0
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
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
