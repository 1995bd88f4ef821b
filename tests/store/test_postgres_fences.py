"""What a command on Postgres decides about: the version of the record that it locked, not the one of its snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import pytest

from gateway.core.operation import EVENT_OF, Applied, Command, Content, Snapshot, State
from gateway.core.outbox import Outbox
from gateway.store.base import NotApplied
from gateway.store.memory.epoch import TOKENS_SKIPPED
from gateway.store.operations import Query, Swept
from gateway.store.postgres.connection import READ_COMMITTED, SERIALIZABLE, transaction
from gateway.store.postgres.statements import EPOCH_LOCK
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import LEASE_SECONDS, REMEMBER_SECONDS, REPLAY_SECONDS, SERVICE, Hand, Speech, do, state
from tests.store.postgres_fuzz import fuzz
from tests.store.postgres_fuzz_judge import judge
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually
from tests.support.memory_store import ManualClock

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
    "takeover": Crossing((Hand.claim,), Hand.abandon, Hand.takeover),
    "erase": Crossing((Hand.claim,), Hand.release, Hand.erase),
    "dispatch": Crossing((Hand.accept, Hand.dispatch), _postpone_at_once, Hand.dispatch),
    "complete-accepted": Crossing((Hand.accept,), Hand.dispatch, Hand.complete),
    "withdraw-accepted-again": Crossing((Hand.claim, Hand.release), Hand.accept_again, Hand.withdraw),
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

        async def are_waiting(number: int) -> bool:
            return int(await observer.fetchval(_WAITING)) == number

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
            await eventually(lambda: are_waiting(1))
            both = asyncio.gather(other.apply(second), other.apply(crossing.second(neighbour)), return_exceptions=True)
            await eventually(lambda: are_waiting(2))
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
    for column, table, own, kept in (
        ("token", "response", "token", "body_kept"),
        ("row", "request", "id", "request_kept"),
        ("row", "delivery", "id", "request_kept"),
    ):
        one = f"SELECT array_agg({column} ORDER BY {column}) FROM idempotency_gateway.{table}"
        other = f"SELECT array_agg({own} ORDER BY {own}) FROM idempotency_gateway.operation WHERE {kept}"
        if not await observer.fetchval(f"SELECT ({one}) IS NOT DISTINCT FROM ({other})"):
            return False
    return True


# Draws, and how many of them were given what this session was given before, or less.
_DRAW = """
    SELECT count(*) FILTER (WHERE token <= before) FROM (
        SELECT token, lag(token) OVER (ORDER BY number) AS before FROM (
            SELECT number, nextval('idempotency_gateway.token') AS token FROM generate_series(1, 400000) AS number
        ) drawn
    ) compared
"""


@pytest.mark.parametrize("beyond", [None, 100, TOKENS_SKIPPED], ids=["nowhere", "a little further", "far away"])
async def test_what_is_noted_takes_no_token_back(migrated_url: str, beyond: int | None) -> None:
    """However many gateways note something of the memory, and draw tokens in that moment, each token is a new one."""
    async with (
        opened(migrated_url) as store,
        opened(migrated_url) as other,
        session(migrated_url) as one,
        session(migrated_url) as two,
    ):
        drawing = asyncio.gather(one.fetchval(_DRAW), two.fetchval(_DRAW))
        while not drawing.done():
            token = 0 if beyond is None else (await store.check_memory()).token + beyond
            await asyncio.gather(*(each.begin_epoch(b"accepted", token) for each in (store, other)))
            assert (await store.check_memory()).token >= token
        assert await drawing == [0, 0]


async def test_the_sequence_is_moved_by_one_at_a_time(migrated_url: str) -> None:
    """While one gateway notes something of the memory no other moves the sequence: it changes nothing and says so."""
    last_token = "SELECT last_value FROM idempotency_gateway.token"
    async with opened(migrated_url) as store, session(migrated_url) as other, session(migrated_url) as beside:
        before = await beside.fetchval(last_token)
        beyond = before + TOKENS_SKIPPED
        async with other.transaction():
            await other.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
            with pytest.raises(NotApplied):
                await store.begin_epoch(b"accepted", beyond)
            assert await beside.fetchval(last_token) == before
        await store.begin_epoch(b"accepted", beyond)
        assert await beside.fetchval(last_token) == beyond


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


WIDE: Final = "SELECT count(*) FROM ONLY idempotency_gateway.operation"
NARROW: Final = "SELECT count(*) FROM idempotency_gateway.narrow"


_MOVE: Final = (
    "WITH gone AS (DELETE FROM ONLY idempotency_gateway.operation RETURNING *)"
    " INSERT INTO idempotency_gateway.narrow (id, version, token, remember_until_us, scope_digest, kind)"
    " SELECT id, version, token, remember_until_us, scope_digest, 'kind'::bytea FROM gone"
)


@asynccontextmanager
async def place(url: str) -> AsyncIterator[tuple[PostgresStore, ManualClock, Any, Any]]:
    """A store and its clock, and two sessions beside it."""
    clock = ManualClock()
    async with opened(url, clock_us=clock, outbox=Outbox(SERVICE)) as store, session(url) as one, session(url) as two:
        yield store, clock, one, two


async def retired(store: PostgresStore, clock: ManualClock, *hands: Hand) -> None:
    """Let the responses of these be over, and a sweep find that."""
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.complete)
    clock.advance(REPLAY_SECONDS + 1)
    assert (await store.cold.sweep(100)).retired == len(hands)


async def rows(beside: Any) -> tuple[int, int]:
    return await beside.fetchval(WIDE), await beside.fetchval(NARROW)


@pytest.mark.parametrize(
    ("mode", "first"),
    [
        (READ_COMMITTED, "SELECT FROM idempotency_gateway.operation FOR UPDATE"),
        (SERIALIZABLE, "SAVEPOINT before_it_looks"),
    ],
    ids=["a statement", "a snapshot"],
)
async def test_a_record_stays_while_something_is_under_way(mode: str, first: str, migrated_url: str) -> None:
    """A transaction that writes may have begun before the key was used; one with a snapshot, before it looked."""
    async with place(migrated_url) as (store, clock, slow, beside):
        hand, other = Hand(), Hand()
        async with transaction(slow, {}, mode):
            await slow.execute(first)
            await retired(store, clock, hand)
            assert await rows(beside) == (1, 0)
            assert await state(store, hand) is State.TOMBSTONE
        await retired(store, clock, other)
        assert await rows(beside) == (1, 1)
        clock.advance(REMEMBER_SECONDS)
        assert await store.cold.sweep(100) == Swept(collected=2)


def _claim_with_content(hand: Hand) -> Command:
    return replace(hand.claim(), attempt_id=uuid4(), content=Content(sha256(b"content").digest(), 1))


@pytest.mark.parametrize("speech", [_claim_with_content, Hand.erase], ids=["claim", "erase"])
async def test_a_command_that_waits_for_a_record_on_its_way(speech: Speech, migrated_url: str) -> None:
    """It waits for the row that a sweep moves, and finds it where it is then: the key is not free."""
    async with place(migrated_url) as (store, clock, mover, beside):
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        async with mover.transaction():
            await mover.execute("SELECT FROM idempotency_gateway.operation FOR UPDATE")
            late = asyncio.ensure_future(store.apply(speech(hand)))
            await eventually(lambda: beside.fetchval(_WAITING), 10)
            await mover.execute(_MOVE)
        await asyncio.gather(late, return_exceptions=True)
        assert late.exception() is not None or late.result().snapshot.record is not None
        assert await rows(beside) == (0, 1)


async def test_a_claim_while_a_record_is_on_its_way(migrated_url: str) -> None:
    """It sees the row where it was, and not yet where it will be: the key is not free, whenever that is committed."""
    async with place(migrated_url) as (store, clock, mover, beside):
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        async with mover.transaction():
            await mover.execute(_MOVE)
            late = asyncio.ensure_future(store.apply(replace(hand.claim(), attempt_id=uuid4())))

            async def has_looked() -> bool:
                return late.done() or bool(await beside.fetchval(_WAITING))

            await eventually(has_looked, 10)
        result = await late
        assert result.snapshot.state is State.TOMBSTONE
        assert await rows(beside) == (0, 1)


SECONDS = 2.5
SEED = 7


async def test_concurrent_verbs_do_what_the_model_does(migrated_url: str) -> None:
    """Whatever is applied at once, each result and each change is one that the model has in some order."""
    history = await fuzz(migrated_url, SEED, SECONDS)
    assert judge(history) == []
    assert history.applied == EVENT_OF.keys()
