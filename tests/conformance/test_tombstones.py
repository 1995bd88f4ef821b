"""Tombstones: a store may give up most of such a record, and whoever asks for the key notices nothing."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from gateway.core.identity.key import is_in_scope, is_of
from gateway.core.operation import Applied, Fenced, Fingerprint, State, microseconds
from gateway.core.verdict import Refuse, Verdict, judge
from gateway.store.base import Store
from gateway.store.operations import Agreement, Swept
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
from tests.conformance.stores import Database
from tests.conformance.test_agreement import recipes
from tests.conformance.test_retention import sweep_all


async def retired(store: Store, database: Database, *hands: Hand) -> None:
    """Let the responses of these be over, and a sweep find that."""
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.complete)
    await database.advance(REPLAY_SECONDS + 60)
    assert (await sweep_all(store)).retired == len(hands)


async def test_a_repeat_gets_the_same_refusal(store: Store, database: Database) -> None:
    """What a repeat and its caller see is all there."""
    hand = Hand()
    await retired(store, database, hand)
    result = await store.apply(replace(Hand(hand.script).claim(), attempt_id=uuid4()))
    assert isinstance(result, Fenced)
    snapshot, record = result.snapshot, result.snapshot.record
    assert record == (await store.read(hand.operation_id)).record
    assert (record.state, record.resource) == (State.TOMBSTONE, RESOURCE)
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


async def test_a_key_is_free_again_at_the_moment_it_is_due(store: Store, database: Database) -> None:
    """Not before, and a sweep in the minute before leaves the record; a sweep after it leaves the new one alone."""
    hand = Hand()
    await retired(store, database, hand)
    claim = hand.claim()
    margin_seconds = 1.0 if database.exact else 60.0
    await database.advance(REMEMBER_SECONDS - REPLAY_SECONDS - 60 - margin_seconds)
    assert isinstance(await store.apply(claim), Fenced)
    assert await store.cold.sweep(100) == Swept()
    assert isinstance(await store.apply(claim), Fenced)
    await database.advance(margin_seconds)
    result = await store.apply(claim)
    assert isinstance(result, Applied)
    assert (await store.cold.sweep(100)).retired == 0
    assert (await store.read(hand.operation_id)).record == result.snapshot.record


async def test_tombstones_are_living_keys(store: Store, database: Database) -> None:
    """They speak against a configuration that would lose them, for as long as they are remembered."""
    assert await store.cold.compare_configuration(recipes(charges=b"one")) == Agreement()
    completed, hand, others = Hand(), Hand(), Hand(Script(new_identity(service="books")))
    await retired(store, database, hand, others)
    await do(store, completed, Hand.claim, Hand.complete)
    (conflict,) = (await store.cold.compare_configuration(recipes(charges=b"two"))).conflicts
    record = (await store.read(completed.operation_id)).record
    assert (conflict.living.keys, conflict.living.until_us) == (2, record.remember_until_us)
    await database.advance(REMEMBER_SECONDS - REPLAY_SECONDS)
    assert await store.cold.count_without_route(SERVICE, ()) == {"charges": 1}


async def test_whatever_a_key_is_made_of_it_is_remembered(store: Store, database: Database) -> None:
    """Of another service, with short digests, or until a part of a second: until then, and no longer."""
    remember_us = microseconds(REMEMBER_SECONDS)
    short = Hand()
    short.script.identity = replace(short.script.identity, scope_digest=b"short")
    for hand, fingerprint, until_us in (
        (Hand(Script(new_identity(service="books"))), SAME, remember_us),
        (Hand(), Fingerprint(b"recipe", b"short", b"short"), remember_us),
        (short, SAME, remember_us),
        (Hand(), SAME, remember_us - 1),
    ):
        claim = replace(hand.claim(), fingerprint=fingerprint)
        hand.see(claim, await store.apply(claim))
        complete = replace(hand.complete(), remember_us=until_us)
        hand.see(complete, await store.apply(complete))
        await database.advance(REPLAY_SECONDS + 60)
        assert (await sweep_all(store)).retired == 1
        found = (await store.apply(replace(claim, attempt_id=uuid4()))).snapshot
        assert judge(found, (fingerprint,), accept_recipe_change=False) == Refuse(Verdict.KEY_EXPIRED, found.record)
        await database.advance(REMEMBER_SECONDS)
        assert (await sweep_all(store)).collected == 1
        assert await state(store, hand) is State.ABSENT
