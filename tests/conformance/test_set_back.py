"""A store's clock that is set back by a day, or by a little: nothing waits longer for that, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from gateway.core.operation import Applied, Audit, Fenced, State, microseconds
from gateway.store.base import Store
from gateway.store.operations import EventFate, Query, Swept
from tests.conformance.hand import DELIVER_SECONDS, LEASE_SECONDS, POSTPONE_SECONDS, SERVICE, Hand, do, state
from tests.conformance.stores import Database
from tests.conformance.test_events import leased, report, telling
from tests.conformance.test_kept_requests import CHARGES, ids
from tests.conformance.test_retention import sweep_all

__all__ = ["telling"]

DAY_SECONDS: Final = 86_400.0
IN_DOUBT: Final = Query(frozenset((State.IN_DOUBT,)))
RECOVERABLE: Final = Query(frozenset((State.IN_DOUBT,)), recoverable=True)
AUDIT: Final = Audit("operator", "the service is being repaired")

# By how much the clock is set back, and for how long something has waited by then.
by = pytest.mark.parametrize("back_seconds", [3.0, 900.0, DAY_SECONDS], ids=["3 s", "15 min", "a day"])


@by
async def test_the_key_of_a_dead_holder(store: Store, database: Database, back_seconds: float) -> None:
    """Once it was swept, it is in doubt when a lease of its own length is over: found, counted and resolved."""
    first, renewed, over = hands = [Hand() for _ in range(3)]
    for hand in hands:
        await do(store, hand, Hand.claim)
    await do(store, renewed, lambda hand: replace(hand.renew(), lease_us=microseconds(LEASE_SECONDS)))
    await do(store, over, Hand.abandon, Hand.takeover)
    database.set_back(back_seconds)
    assert await sweep_all(store) == Swept()
    for pause_seconds, wanted in ((LEASE_SECONDS - 1, State.CLAIMED), (1, State.IN_DOUBT)):
        await database.advance(pause_seconds)
        assert [await state(store, hand) for hand in hands] == [wanted] * 3
    assert len(await store.find(IN_DOUBT)) == 3
    assert dict((await store.tally()).in_doubt) == {"create_payment": 3}
    assert await sweep_all(store) == Swept(lapsed=3)
    await do(store, first, Hand.disprove, Hand.retry)
    await do(store, over, Hand.takeover)


@by
async def test_a_live_holder(store: Store, database: Database, back_seconds: float) -> None:
    """Nobody takes its claim from it, swept or not: it renews, and its answer counts."""
    swept, unswept = Hand(), Hand()
    await do(store, swept, Hand.claim)
    await do(store, unswept, Hand.claim)
    database.set_back(back_seconds)
    await do(store, unswept, Hand.renew)
    await sweep_all(store)
    for hand in (swept, unswept):
        assert not isinstance(await store.apply(hand.takeover()), Applied)
        assert not isinstance(await store.apply(hand.disprove()), Applied)
        await do(store, hand, Hand.renew)
        assert hand.record.lease_until_us == hand.snapshot.now_us + hand.renew().lease_us
        await do(store, hand, Hand.complete)


async def test_what_was_in_doubt_is_found_and_counts_from_now(store: Store, database: Database) -> None:
    """Recovery finds what came into doubt before, and the end of its lease lies no further ahead than a lease."""
    abandoned, lapsed = Hand(), Hand()
    for hand in (abandoned, lapsed):
        await do(store, hand, Hand.claim)
    await do(store, abandoned, Hand.abandon)
    await database.advance(LEASE_SECONDS)
    assert await sweep_all(store) == Swept(lapsed=1)
    database.set_back(DAY_SECONDS)
    for query in (IN_DOUBT, RECOVERABLE):
        assert set(ids(await store.find(query))) == {abandoned.operation_id, lapsed.operation_id}
    assert await sweep_all(store) == Swept()
    for hand in (abandoned, lapsed):
        assert await state(store, hand) is State.IN_DOUBT
        assert hand.record.lease_until_us - hand.snapshot.now_us <= microseconds(LEASE_SECONDS)
        assert hand.record.claimed_us <= hand.snapshot.now_us
    assert (await store.tally()).oldest_in_doubt_seconds >= 0


@by
async def test_a_probe_that_was_put_off(store: Store, database: Database, back_seconds: float) -> None:
    """Its pause is over, and so is the lease of a prober that died."""
    put_off, *_ = hands = [Hand() for _ in range(2)]
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.abandon)
        lease = await store.recover(hand.operation_id, hand.token, microseconds(90), is_urgent=False)
        if hand is put_off:
            await store.put_off(lease, microseconds(600), "404")
    database.set_back(back_seconds)
    for hand in hands[:1] if back_seconds < 90 else hands:
        assert hand.operation_id in ids(await store.find(RECOVERABLE))
        assert await store.recover(hand.operation_id, hand.token, microseconds(90), is_urgent=False) is not None


@pytest.mark.parametrize("back_seconds", [900.0, DAY_SECONDS], ids=["15 min", "a day"])
async def test_what_waits_for_its_delivery(store: Store, database: Database, back_seconds: float) -> None:
    """What was accepted, postponed or requeued before is due, and is delivered within the time that it had left."""
    accepted, postponed, old, requeued, fresh = (Hand() for _ in range(5))
    await do(store, old, Hand.accept)
    await database.advance(DELIVER_SECONDS / 2)
    await do(store, old, Hand.dispatch, Hand.postpone)
    await do(store, accepted, Hand.accept)
    await do(store, postponed, Hand.accept, Hand.dispatch, Hand.postpone)
    await do(store, requeued, Hand.accept, Hand.dispatch, Hand.bury, Hand.requeue)
    database.set_back(back_seconds)
    await do(store, fresh, Hand.accept, Hand.dispatch, Hand.postpone)
    before = (accepted, postponed, old, requeued)
    found = (await store.find_due(SERVICE, CHARGES, 10)).found
    assert set(ids(found)) == {hand.operation_id for hand in before}
    assert isinstance(await store.apply(fresh.dispatch()), Fenced)
    for hand in before:
        await do(store, hand, Hand.dispatch, Hand.postpone)
        record, now_us = hand.record, hand.snapshot.now_us
        if hand is not old:
            assert record.delivery.deliver_until_us - now_us <= microseconds(DELIVER_SECONDS)
    assert (await store.find_due(SERVICE, CHARGES, 10)).found == []
    await database.advance(POSTPONE_SECONDS)
    assert len((await store.find_due(SERVICE, CHARGES, 10)).found) == 5


@pytest.mark.parametrize("back_seconds", [900.0, DAY_SECONDS], ids=["15 min", "a day"])
async def test_events_from_before(telling: Store, database: Database, back_seconds: float) -> None:
    """What was written, leased or put off before is published, once at a time; what is put off since waits."""
    hands = [Hand() for _ in range(3)]
    await do(telling, hands[0], Hand.claim, Hand.complete)
    (put_off,) = await leased(telling)
    await report(telling, put_off, EventFate.PUT_OFF, "503", pause_seconds=3_600)
    await do(telling, hands[1], Hand.claim, Hand.complete)
    assert len(await leased(telling)) == 1
    await do(telling, hands[2], Hand.claim, Hand.complete)
    database.set_back(back_seconds)
    assert len(await leased(telling, number=2)) == 2
    (last,) = await leased(telling)
    assert await leased(telling) == []
    await report(telling, last, EventFate.PUT_OFF, "503", pause_seconds=20)
    assert await leased(telling) == []
    await database.advance(20)
    assert len(await leased(telling)) == 1


@pytest.mark.parametrize("is_swept", [True, False], ids=["swept", "unswept"])
async def test_a_pause_from_before(store: Store, database: Database, *, is_swept: bool) -> None:
    """Its end takes no time from what was accepted since, and what was accepted before is delivered."""
    old, new = Hand(), Hand()
    await do(store, old, Hand.accept)
    assert await store.pause(SERVICE, "charges", AUDIT)
    database.set_back(DAY_SECONDS)
    await do(store, new, Hand.accept)
    if is_swept:
        await sweep_all(store)
    await database.advance(DELIVER_SECONDS / 2)
    if is_swept:
        await sweep_all(store)
    assert await store.resume(SERVICE, "charges", AUDIT)
    await sweep_all(store)
    # A pause counts from when it was seen that it begins in the future.
    await database.advance(DELIVER_SECONDS / 2 + (100 if is_swept else -1))
    assert set(ids((await store.find_due(SERVICE, CHARGES, 10)).found)) == {old.operation_id, new.operation_id}
    for hand in (old, new):
        await do(store, hand, Hand.dispatch, Hand.complete)
