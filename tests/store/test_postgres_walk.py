"""The walk for lapsed claims in Postgres: what it has gone past is listed, or over."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from gateway.core.lifecycle import LEASE_US_MAX
from gateway.core.operation import MICROSECONDS, Audit, State
from gateway.store.operations import Query, Swept
from tests.conformance.hand import LEASE_SECONDS, SERVICE, Hand, Speech, do
from tests.store.postgres_sessions import let_pass, let_statements_end, opened, session
from tests.support.memory_store import ManualClock


@pytest.mark.parametrize(
    "speeches", [(Hand.claim, Hand.abandon, Hand.takeover), (Hand.accept, Hand.dispatch)], ids=["takeover", "dispatch"]
)
async def test_a_claim_that_the_walk_has_passed(speeches: tuple[Speech, ...], postgres_url: str) -> None:
    """A commit may take longer than the walk for lapsed claims waits; what was taken over or dispatched is listed."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as beside:
        hand = Hand()
        await do(store, hand, *speeches)
        await beside.execute("UPDATE idempotency_gateway.upkeep SET passed_token = 1000000")
        clock.advance(LEASE_SECONDS + 1)
        (found,) = await store.find(Query(frozenset((State.IN_DOUBT,))))
        assert found.record is not None
        assert found.record.identity.operation_id == hand.operation_id
        assert (await store.tally()).in_doubt == {"create_payment": 1}
        assert (await store.sweep(100)).lapsed == 1


EXPIRED = """
INSERT INTO idempotency_gateway.operation (
    operation_id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, completed_us, due_us, attempts,
    version, status, state, last_event, holder, route, operation, scope_digest, key_digest
) VALUES (
    gen_random_uuid(), gen_random_uuid(), 1, 1, 1, 1, 1, 1, 1, 1, 200, 'completed', 'complete', 'h', 'r', 'o',
    's', 'k'
);
UPDATE idempotency_gateway.upkeep SET passed_token = 1
"""


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("operation", EXPIRED),
        (
            "tombstone",
            """
            INSERT INTO idempotency_gateway.kind (
                attempts, version, status, service, route, operation, last_event, key_id, recipe, api_version, digest
            ) VALUES (1, 1, 200, 'shop', 'r', 'o', 'complete', '', 'r', '', 'd');
            INSERT INTO idempotency_gateway.tombstone (
                token, completed_us, kept_s, kind, operation_id, scope, fingerprint
            ) SELECT 1, 1, 1, k.kind, gen_random_uuid(), gen_random_uuid(), gen_random_uuid()
            FROM idempotency_gateway.kind k
            """,
        ),
        (
            "audit",
            "INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why) "
            "VALUES (gen_random_uuid(), 1, 1, 1, 'prove', 'w', 'y')",
        ),
        ("recovery", "INSERT INTO idempotency_gateway.recovery VALUES (gen_random_uuid(), 1, 1, 0, 1, 1)"),
        ("content", "INSERT INTO idempotency_gateway.content VALUES ('d', gen_random_uuid(), 1, 1, 'f')"),
        ("witness", "INSERT INTO idempotency_gateway.witness VALUES (gen_random_uuid(), 1, 1, 1)"),
    ],
    ids=["expired", "tombstone", "audit", "recovery", "content", "witness"],
)
async def test_the_only_thing_that_is_due(table: str, row: str, postgres_url: str) -> None:
    """Whatever it is, a sweep finds it, although it only looks whether anything is due while nothing is."""
    async with opened(postgres_url) as store, session(postgres_url) as admin:
        assert await store.sweep(100) == Swept()
        await admin.execute(row)
        count = f"SELECT count(*) FROM idempotency_gateway.{table}"
        assert await admin.fetchval(count) == 1
        await store.sweep(100)
        assert await admin.fetchval(count) == 0


async def test_a_pause_when_nothing_is_due(postgres_url: str) -> None:
    """Whoever is paused gets more time, before the time is over and anything is due."""
    ends = "SELECT deliver_until_us FROM idempotency_gateway.delivery"
    async with opened(postgres_url, clock_us=ManualClock()) as store, session(postgres_url) as admin:
        hand = Hand()
        await do(store, hand, Hand.accept)
        await admin.execute("UPDATE idempotency_gateway.upkeep SET passed_token = 1000000")
        assert await store.pause(SERVICE, hand.script.identity.operation, Audit("who", "why"))
        before = await admin.fetchval(ends)
        await store.sweep(100)
        assert await admin.fetchval(ends) > before


async def test_a_walk_among_claims_of_a_clock_that_was_set_back(postgres_url: str) -> None:
    """What was claimed later than now does not hold up the walk, whatever came of it."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as beside:
        await do(store, Hand(), Hand.claim)
        await do(store, done := Hand(), Hand.claim, Hand.complete)
        clock.advance(-86_400.0)
        await store.sweep(100)
        let_statements_end(store)
        await store.sweep(100)
        assert await beside.fetchval("SELECT passed_token FROM idempotency_gateway.upkeep") == done.token


async def test_a_walk_waits_for_as_long_as_a_commit_may_take(postgres_url: str) -> None:
    """It passes what was drawn at one look, and a look is not put off by how often there is a sweep."""
    async with opened(postgres_url) as store, session(postgres_url) as beside:
        await do(store, done := Hand(), Hand.claim, Hand.complete)
        passed = []
        for seconds in (0.0, 2.0, 4.0):
            let_pass(store, seconds)
            await store.sweep(100)
            passed.append(await beside.fetchval("SELECT passed_token FROM idempotency_gateway.upkeep"))
        assert passed == [0, 0, done.token]


NEWER = "UPDATE idempotency_gateway.operation SET version = version + 1 WHERE operation_id = $1"
PASSED = "SELECT passed_token FROM idempotency_gateway.upkeep"


async def test_a_walk_does_not_wait_for_ever_for_a_newer_program(postgres_url: str) -> None:
    """A claim that a newer program wrote is left to its sweeps for a while, and then what is behind it is passed."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as beside:
        await do(store, newer := Hand(), Hand.claim)
        await do(store, done := Hand(), Hand.claim, Hand.complete)
        await beside.execute(NEWER, newer.operation_id)
        await store.sweep(100)
        let_statements_end(store)
        clock.advance(LEASE_SECONDS + LEASE_US_MAX / MICROSECONDS - 1)
        await store.sweep(100)
        assert await beside.fetchval(PASSED) == 0
        clock.advance(2)
        await store.sweep(100)
        assert await beside.fetchval(PASSED) == done.token
        assert await beside.fetchval("SELECT count(*) FROM idempotency_gateway.operation WHERE state = 'claimed'") == 1


@pytest.mark.parametrize("speeches", [(Hand.claim,), (Hand.claim, Hand.renew)], ids=["young", "renewed"])
async def test_claims_of_a_newer_program_hold_up_no_lapse(speeches: tuple[Speech, ...], postgres_url: str) -> None:
    """However many lapsed claims a newer program wrote, those of this one are written down."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as beside:
        await asyncio.gather(*(do(store, Hand(), *speeches) for _ in range(30)))
        await beside.execute("UPDATE idempotency_gateway.operation SET version = version + 1")
        await do(store, Hand(), *speeches)
        clock.advance(3 * LEASE_SECONDS)
        assert (await store.sweep(1)).lapsed == 1


@pytest.mark.parametrize("step_seconds", [-86_400.0, 3_600.0], ids=["back", "ahead"])
async def test_a_walk_waits_for_a_lower_token_however_the_clock_is_set(step_seconds: float, postgres_url: str) -> None:
    """A claim that has yet to commit is not passed along with a later one whose time is far from now, and is found when
    it lapses."""
    clock = ManualClock()
    async with (
        opened(postgres_url, clock_us=clock) as store,
        session(postgres_url) as slow,
        session(postgres_url) as beside,
    ):
        await do(store, pattern := Hand(), Hand.claim)
        columns = ", ".join(await copied_columns(beside))
        operation_id, transaction = uuid4(), slow.transaction()
        await transaction.start()
        await slow.execute(
            f"INSERT INTO idempotency_gateway.operation (operation_id, token, {columns})"
            f" SELECT $1, nextval('idempotency_gateway.token'), {columns} FROM idempotency_gateway.operation"
            " WHERE operation_id = $2",
            operation_id,
            pattern.operation_id,
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
        " AND table_name = 'operation' AND column_name NOT IN ('operation_id', 'token')"
    )
    return [row["column_name"] for row in rows]
