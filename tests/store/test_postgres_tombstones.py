"""Tombstones in Postgres: they move to narrow rows, and no claim misses one on its way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from gateway.core.confidential import Sealing
from gateway.core.identity.operation_id import is_in_scope, is_of
from gateway.core.operation import (
    NO_ATTEMPT,
    Applied,
    Audit,
    Claim,
    Content,
    Erase,
    Fenced,
    Fingerprint,
    State,
    microseconds,
)
from gateway.core.outbox import Outbox
from gateway.core.sealing import EncryptionKey, KeyRing
from gateway.core.verdict import Refuse, Verdict, judge
from gateway.store.operations import AUDIT_KEEP_US, Agreement, Query, Swept
from gateway.store.postgres.arguments import claim_arguments
from gateway.store.postgres.statements import load
from gateway.store.postgres.store import PostgresStore
from gateway.store.rekeying import Place, rekey
from gateway.store.sealed import SealedStore
from tests.conformance.hand import (
    OTHER,
    REMEMBER_SECONDS,
    REPLAY_SECONDS,
    RESOURCE,
    SAME,
    SAME_BY_RAW,
    SERVICE,
    UNCOMPARABLE,
    Hand,
    Script,
    do,
    new_identity,
    state,
)
from tests.conformance.test_agreement import recipes
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually
from tests.support.memory_store import ManualClock

OUTBOX: Final = Outbox(SERVICE)
WIDE: Final = "SELECT count(*) FROM idempotency_gateway.operation"
NARROW: Final = "SELECT count(*) FROM idempotency_gateway.tombstone"
# Longer than a sweep leaves alone what it could not move when its response was over, and at its completion.
_AGAIN_SECONDS: Final = REPLAY_SECONDS + 100
_AGAIN_SOON_SECONDS: Final = 700.0


async def retired(store: PostgresStore, clock: ManualClock, *hands: Hand) -> None:
    """Let the responses of these be over, and a sweep find that."""
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.complete)
    clock.advance(REPLAY_SECONDS + 1)
    assert (await store.cold.sweep(100)).retired == len(hands)


async def rows(beside: Any) -> tuple[int, int]:
    return await beside.fetchval(WIDE), await beside.fetchval(NARROW)


async def test_a_repeat_gets_the_same_refusal(postgres_url: str) -> None:
    """The row is gone from the table of operations, and what a repeat and its caller see is all there."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hand = Hand()
        await retired(store, clock, hand)
        assert await rows(beside) == (0, 1)
        result = await store.apply(replace(Hand(hand.script).claim(), attempt_id=uuid4()))
        assert isinstance(result, Fenced)
        snapshot, record = result.snapshot, result.snapshot.record
        assert record == (await store.read(hand.operation_id)).record
        assert record is not None
        assert (record.state, record.attempt_id, record.resource) == (State.TOMBSTONE, NO_ATTEMPT, RESOURCE)
        for ours, verdict in {
            SAME: Verdict.KEY_EXPIRED,
            SAME_BY_RAW: Verdict.KEY_EXPIRED,
            OTHER: Verdict.KEY_REUSED,
            UNCOMPARABLE: Verdict.KEY_REUSED,
        }.items():
            assert judge(snapshot, (ours,), accept_recipe_change=False) == Refuse(verdict, record)
        identity = hand.script.identity
        assert is_of(record.identity, SERVICE, "charges")
        assert not is_of(record.identity, "books", "charges")
        assert not is_of(record.identity, SERVICE, "refunds")
        assert is_in_scope(record.identity, identity.scope_digest)
        assert not is_in_scope(record.identity, b"other" + identity.scope_digest[5:])


async def test_the_holder_is_told_again(postgres_url: str) -> None:
    """An outcome whose result was lost is known to be recorded, and one of another attempt is not taken for it."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store:
        hand = Hand()
        await do(store, hand, Hand.claim)
        outcome = hand.complete()
        await do(store, hand, lambda _: outcome)
        clock.advance(REPLAY_SECONDS + 1)
        await store.cold.sweep(100)
        assert isinstance(await store.apply(outcome), Applied)
        for other in (
            replace(outcome, token=outcome.token + 1),
            Hand.release(hand),
            Hand.abandon(hand),
            Hand.renew(hand),
        ):
            assert isinstance(await store.apply(other), Fenced)
        assert await state(store, hand) is State.TOMBSTONE


async def test_a_claim_that_began_before_the_key_was_used(postgres_url: str) -> None:
    """It waits behind another key until the record of its own could have moved, and is not granted."""
    clock = ManualClock()
    async with (
        opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store,
        session(postgres_url) as slow,
        session(postgres_url) as holder,
        session(postgres_url) as beside,
    ):
        hand, first = Hand(), Hand()
        first.script.identity = replace(new_identity(), operation_id=UUID(int=1))
        claims = [first.claim(), replace(hand.claim(), attempt_id=uuid4())]
        arguments = claim_arguments(claims, lambda _: microseconds(REPLAY_SECONDS))
        blocked = holder.transaction()
        await blocked.start()
        await holder.fetch(load("claim"), clock(), *claim_arguments(claims[:1], lambda _: 1), uuid4())
        late = asyncio.ensure_future(slow.fetch(load("claim"), clock(), *arguments, uuid4()))
        waits = (
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await eventually(lambda: beside.fetchval(waits), 10)
        await do(store, hand, Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        await store.cold.sweep(100)
        clock.advance(_AGAIN_SECONDS)
        await store.cold.sweep(100)
        await blocked.rollback()
        assert [row["granted_id"] for row in await late if row["granted_id"]] == [first.operation_id]
        clock.advance(2 * _AGAIN_SECONDS)
        await store.cold.sweep(100)
        assert await state(store, hand) is State.TOMBSTONE
        assert await beside.fetchval(NARROW) == 1


async def test_a_record_waits_for_what_is_under_way(postgres_url: str) -> None:
    """While a transaction writes that began before, the tombstone stays where it is; then it moves."""
    clock = ManualClock()
    async with (
        opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store,
        session(postgres_url) as slow,
        session(postgres_url) as beside,
    ):
        hand = Hand()
        async with slow.transaction():
            await slow.execute("SELECT FROM idempotency_gateway.operation FOR UPDATE")
            await retired(store, clock, hand)
            assert await rows(beside) == (1, 0)
            assert await state(store, hand) is State.TOMBSTONE
            assert await store.cold.sweep(100) == Swept()
        clock.advance(_AGAIN_SECONDS)
        assert await store.cold.sweep(100) == Swept()
        assert await rows(beside) == (0, 1)
        assert await state(store, hand) is State.TOMBSTONE


async def test_a_purged_record_moves_later(postgres_url: str) -> None:
    """The purge drops the response at once; the row is narrow after a while. A repeated purge has its result."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.complete, Hand.purge)
        clock.advance(_AGAIN_SOON_SECONDS)
        await store.cold.sweep(100)
        assert await rows(beside) == (0, 1)
        assert isinstance(await store.apply(hand.purge()), Applied)
        assert len(await store.cold.audits(hand.operation_id)) == 1


async def test_an_erased_key_runs_again(postgres_url: str) -> None:
    """Also one that is narrow: under a higher token, and with an audit that says who did it."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hand = Hand()
        await retired(store, clock, hand)
        assert isinstance(await store.apply(Erase(hand.operation_id, Audit("ann", "by request"))), Applied)
        assert await rows(beside) == (0, 0)
        assert isinstance(await store.apply(hand.erase()), Fenced)
        await do(store, hand, Hand.claim)
        assert hand.tokens == sorted(set(hand.tokens))
        assert len(hand.tokens) == 2
        assert [entry.who for entry in await store.cold.audits(hand.operation_id)] == ["ann"]


@pytest.mark.parametrize("with_content", [False, True], ids=["plain", "content"])
@pytest.mark.parametrize("verb", ["claim", "accept"])
async def test_a_key_is_free_again_at_the_moment_it_is_due(verb: str, with_content: bool, postgres_url: str) -> None:
    """Before the sweep that deletes the narrow row; and that sweep leaves the new record alone."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hand = Hand()
        await retired(store, clock, hand)
        content = Content(sha256(b"content").digest(), 1) if with_content else None
        command = replace(getattr(hand, verb)(), content=content)
        clock.advance(REMEMBER_SECONDS - REPLAY_SECONDS - 2)
        assert isinstance(await store.apply(command), Fenced)
        assert await store.cold.sweep(100) == Swept()
        assert isinstance(await store.apply(command), Fenced)
        clock.advance(1)
        result = await store.apply(command)
        assert isinstance(result, Applied)
        assert await rows(beside) == (1, 1)
        assert await store.cold.sweep(100) == Swept(collected=1)
        assert (await store.read(hand.operation_id)).record == result.snapshot.record
        # Set back, the clock finds nothing of the former record.
        clock.advance(-2)
        assert await state(store, hand) is not State.TOMBSTONE


async def test_narrow_tombstones_are_living_keys(postgres_url: str) -> None:
    """They speak against a configuration that would lose them, for as long as they are remembered."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store:
        assert await store.cold.compare_configuration(recipes(charges=b"one")) == Agreement()
        wide, hand, others = Hand(), Hand(), Hand(Script(new_identity(service="books")))
        await retired(store, clock, hand, others)
        await do(store, wide, Hand.claim, Hand.complete)
        (conflict,) = (await store.cold.compare_configuration(recipes(charges=b"two"))).conflicts
        record = (await store.read(wide.operation_id)).record
        assert record is not None
        assert (conflict.living.keys, conflict.living.until_us) == (2, record.remember_until_us)
        clock.advance(REMEMBER_SECONDS - REPLAY_SECONDS)
        assert await store.cold.count_without_route(SERVICE, ()) == {"charges": 1}


async def test_tombstones_of_two_gateways(postgres_url: str) -> None:
    """Two that sweep at once retire, move and collect each key once. What one cannot move beside the other moves
    later."""
    clock = ManualClock()
    async with (
        opened(postgres_url, clock_us=clock, outbox=OUTBOX) as one,
        opened(postgres_url, clock_us=clock, outbox=OUTBOX) as other,
        session(postgres_url) as beside,
    ):
        hands = [Hand() for _ in range(250)]
        await asyncio.gather(*(do(one, hand, Hand.claim, Hand.complete) for hand in hands))
        clock.advance(REPLAY_SECONDS + 1)
        swept = Swept()
        while swept.retired < len(hands):
            for each in await asyncio.gather(*(store.cold.sweep(40) for store in (one, other))):
                swept += each
        assert swept.retired == len(hands)
        clock.advance(_AGAIN_SECONDS)
        assert not (await one.cold.sweep(len(hands))).retired
        assert await rows(beside) == (0, len(hands))
        # What they have in common is there once.
        assert await beside.fetchval("SELECT count(*) FROM idempotency_gateway.kind") == 1
        clock.advance(REMEMBER_SECONDS)
        swept = Swept()
        while swept.collected < len(hands):
            for each in await asyncio.gather(*(store.cold.sweep(40) for store in (one, other))):
                swept += each
        assert swept.collected == len(hands)
        assert await rows(beside) == (0, 0)


async def test_tombstones_of_both_tables_are_found_in_order(postgres_url: str) -> None:
    """An operator who lists them page by page sees each once, wherever it is."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hands = [Hand() for _ in range(20)]
        await retired(store, clock, *hands[:10])
        for hand in hands[10:]:
            await do(store, hand, Hand.claim, Hand.complete, Hand.purge)
        assert await rows(beside) == (10, 10)
        query, found = Query(frozenset((State.TOMBSTONE,)), limit=3), []
        while page := await store.cold.find(query):
            found += [each.record.identity.operation_id for each in page if each.record is not None]
            query = replace(query, after=found[-1])
        assert found == sorted(hand.operation_id for hand in hands)
        assert await store.cold.find(replace(query, after=None, routes=frozenset({"another"}))) == []
        assert await store.cold.find(replace(query, after=None, states=frozenset((State.COMPLETED,)))) == []


@pytest.mark.parametrize("what", ["service", "digest", "scope", "part of a second"])
async def test_what_does_not_fit_stays_as_it_is(what: str, postgres_url: str) -> None:
    """A tombstone of a service that nobody has told of, with less of a digest than is kept, or until a part of a
    second, keeps its row."""
    clock = ManualClock()
    outbox = Outbox("another") if what == "service" else OUTBOX
    async with opened(postgres_url, clock_us=clock, outbox=outbox) as store, session(postgres_url) as beside:
        hand = Hand()
        if what == "scope":
            hand.script.identity = replace(hand.script.identity, scope_digest=b"short")
        if what == "digest":
            short = Fingerprint(b"recipe", b"short", b"short")
            await do(store, hand, lambda hand: replace(hand.claim(), fingerprint=short), Hand.complete)
        else:
            part_us = 1 if what == "part of a second" else 0
            until_us = microseconds(REMEMBER_SECONDS) - part_us
            await do(store, hand, Hand.claim, lambda hand: replace(hand.complete(), remember_us=until_us))
        clock.advance(REPLAY_SECONDS + 1)
        assert await store.cold.sweep(100) == Swept(retired=1)
        assert await rows(beside) == (1, 0)
        clock.advance(REMEMBER_SECONDS)
        assert await store.cold.sweep(100) == Swept(collected=1)


async def test_kinds_have_a_limit(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is not added, and its tombstones stay wide."""
    few = load("add_kinds").replace("100000", "1")
    monkeypatch.setattr("gateway.store.postgres.tombstone._ADD_KINDS", few)
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        await retired(store, clock, Hand())
        await retired(store, clock, Hand(), Hand(Script(new_identity(route="another"))))
        assert await rows(beside) == (1, 2)


async def test_a_content_is_held_by_a_narrow_tombstone(postgres_url: str) -> None:
    """Whose operation completed is still found to be a repeat, for as long as the route says."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store:
        content = Content(sha256(b"content").digest(), microseconds(2 * REPLAY_SECONDS))

        def claim(hand: Hand) -> Claim:
            return replace(hand.claim(), content=content)

        hand, repeat = Hand(), Hand()
        await do(store, hand, claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        assert (await store.cold.sweep(100)).retired == 1
        refused = await store.apply(claim(repeat))
        assert isinstance(refused, Fenced)
        assert refused.content_holder == hand.operation_id
        clock.advance(REPLAY_SECONDS)
        await store.cold.sweep(100)
        assert isinstance(await store.apply(claim(repeat)), Applied)


async def test_audits_outlive_the_move(postgres_url: str) -> None:
    """They are kept for as long as the key is remembered, wherever its row is."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hand = Hand()
        prove = {"remember_us": 3 * AUDIT_KEEP_US}
        await do(store, hand, Hand.claim, Hand.abandon, lambda hand: replace(hand.prove(), **prove))
        clock.advance(REPLAY_SECONDS + 1)
        await store.cold.sweep(100)
        assert await rows(beside) == (0, 1)
        for _ in range(2):
            clock.advance(AUDIT_KEEP_US / 1e6)
            await store.cold.sweep(100)
            assert len(await store.cold.audits(hand.operation_id)) == 1


async def test_references_are_encrypted_again(postgres_url: str) -> None:
    """Of what is sealed a narrow tombstone has the reference alone: it is counted, and sealed with the new key."""
    old, new = EncryptionKey("eldest", bytes(32)), EncryptionKey("newest", bytes(range(32)))
    clock = ManualClock()

    def sealing(*keys: EncryptionKey) -> Sealing:
        return Sealing(KeyRing(keys, bytes))

    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store, session(postgres_url) as beside:
        hands = [Hand(), Hand()]
        for keys, hand in zip(([old], []), hands, strict=True):
            clear = SealedStore(store, sealing(*keys) if keys else Sealing(None))
            await do(clear, hand, Hand.claim, Hand.complete)
        clock.advance(REPLAY_SECONDS + 1)
        await store.cold.sweep(100)
        assert await rows(beside) == (0, 2)
        assert (await store.cold.tally()).sealed == {old.id: 1}
        done = await rekey(store, Place.RECORDS, sealing(new, old))
        assert (done.changed, done.left) == (2, 0)
        assert (await store.cold.tally()).sealed == {new.id: 2}
        for hand in hands:
            record = (await SealedStore(store, sealing(new)).read(hand.operation_id)).record
            assert record is not None
            assert (record.resource, record.state) == (RESOURCE, State.TOMBSTONE)
