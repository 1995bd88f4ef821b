"""The walk for lapsed claims in Postgres: what it has gone past is listed, or over."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from gateway.core.operation import State
from gateway.store.operations import Query
from tests.conformance.hand import LEASE_SECONDS, Hand, Speech, do
from tests.store.postgres_sessions import opened, session
from tests.support.memory_store import ManualClock


@pytest.mark.parametrize(
    "speeches",
    [(Hand.claim, Hand.abandon, Hand.takeover), (Hand.accept, Hand.dispatch), (Hand.claim, Hand.renew)],
    ids=["takeover", "dispatch", "renew"],
)
async def test_a_claim_that_the_walk_has_come_to(speeches: tuple[Speech, ...], migrated_url: str) -> None:
    """However an operation was claimed, it is listed when its lease is over, and written down by a sweep."""
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as store:
        await do(store, Hand(), Hand.claim, Hand.complete)
        await do(store, hand := Hand(), *speeches)
        await do(store, Hand(), Hand.claim, Hand.complete)
        for _ in range(3):
            await store.sweep(100)
        clock.advance(3 * LEASE_SECONDS)
        found = await store.find(Query(frozenset((State.IN_DOUBT,))))
        assert [each.record and each.record.identity.operation_id for each in found] == [hand.operation_id]
        assert (await store.tally()).in_doubt == {"create_payment": 1}
        assert (await store.sweep(100)).lapsed == 1


EXPIRED = """
INSERT INTO idempotency_gateway.operation (
    id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, lease_us, replay_until_us, remember_until_us,
    completed_us, due_us, attempts, version, status, state, last_event, holder, route, operation, scope_digest,
    key_digest, body_kept, request_kept, reason, headers
) VALUES (
    decode(repeat('01', 16), 'hex'), decode(repeat('02', 16), 'hex'), 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 200, 'completed',
    'complete', 'h', 'r', 'o', 's', 'k', false, false, '', ''
)
"""


@pytest.mark.parametrize("step_seconds", [-86_400.0, 3_600.0], ids=["back", "ahead"])
async def test_a_walk_waits_for_a_lower_token_however_the_clock_is_set(step_seconds: float, migrated_url: str) -> None:
    """A claim that has yet to commit is not passed along with a later one whose time is far from now, and is found when
    it lapses."""
    clock = ManualClock()
    async with (
        opened(migrated_url, clock_us=clock) as store,
        session(migrated_url) as slow,
        session(migrated_url) as beside,
    ):
        await do(store, pattern := Hand(), Hand.claim)
        columns = ", ".join(await copied_columns(beside))
        operation_id, transaction = uuid4(), slow.transaction()
        await transaction.start()
        await slow.execute(
            f"INSERT INTO idempotency_gateway.operation (id, token, {columns})"
            f" SELECT $1, nextval('idempotency_gateway.token'), {columns} FROM idempotency_gateway.operation"
            " WHERE id = $2",
            operation_id.bytes,
            pattern.operation_id.bytes,
        )
        await do(store, pattern, Hand.complete)
        await do(store, Hand(), Hand.claim, Hand.complete)
        clock.advance(step_seconds)
        await store.sweep(100)
        await transaction.commit()
        clock.advance(2 * LEASE_SECONDS + max(0.0, -step_seconds))
        assert (await store.sweep(100)).named == (("create_payment", operation_id),)


async def copied_columns(connection: Any) -> list[str]:
    """What a record of another operation has in common with one that was claimed at the same time."""
    rows = await connection.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'idempotency_gateway'"
        " AND table_name = 'operation' AND column_name NOT IN ('id', 'token') AND is_generated = 'NEVER'"
    )
    return [row["column_name"] for row in rows]
