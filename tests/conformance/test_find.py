"""What an operator or a background worker finds: by state, route and age, page by page, settled as of now."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest

from gateway.core.operation import Record, Snapshot, State, microseconds
from gateway.store.base import Store
from gateway.store.operations import Query
from tests.conformance.cases import one_of_every_kind
from tests.conformance.hand import LEASE_SECONDS, LEASE_US, Hand, Script, do, new_identity
from tests.conformance.stores import Database
from tests.conformance.test_retention import sweep_all

EVERY_STATE = frozenset(State)
IN_DOUBT = frozenset((State.IN_DOUBT,))


def ids(found: list[Snapshot]) -> list[UUID]:
    return [snapshot.record.identity.operation_id for snapshot in found if snapshot.record is not None]


def ids_of(*hands: Hand) -> list[UUID]:
    """In the order in which a store finds them."""
    return sorted(hand.operation_id for hand in hands)


@pytest.mark.parametrize("is_swept", [False, True], ids=["unswept", "swept"])
async def test_a_record_is_found_as_it_is_read(
    is_swept: bool, store: Store, other_store: Store, database: Database
) -> None:
    """Of every kind of record that can come to be, what is found is what a read says, but for the body: in the state
    that it has now, whether or not a sweep has written that down."""
    hands = await one_of_every_kind(store, database)
    if is_swept:
        await sweep_all(store)
    wanted: dict[State, list[Record]] = {state: [] for state in State}
    for hand in hands.values():
        snapshot = await store.read(hand.operation_id)
        if (record := snapshot.record) is not None:
            bare = record if record.response is None else replace(record, response=replace(record.response, body=None))
            wanted[snapshot.state].append(bare)
    assert [state for state, records in wanted.items() if not records] == [State.ABSENT]

    async def records_in(*states: State) -> list[Record]:
        found = await other_store.find(Query(frozenset(states), limit=1_000))
        assert {snapshot.state for snapshot in found} <= set(states)
        return [snapshot.record for snapshot in found]

    for states in (*((state,) for state in State), (State.IN_DOUBT, State.TOMBSTONE), tuple(State), ()):
        records = [record for state in states for record in wanted[state]]
        assert await records_in(*states) == sorted(records, key=lambda record: record.identity.operation_id), states


async def test_pages_follow_one_another(store: Store, database: Database) -> None:
    """Each page begins after the last id of the one before, only the last is shorter, and all are found once."""
    hands = [Hand() for _ in range(12)]
    # Some in doubt by their holder's word, some by a lapse that nobody wrote down, all mixed in the order of ids.
    await asyncio.gather(*(do(store, hand, Hand.claim) for hand in hands))
    await asyncio.gather(*(do(store, hand, Hand.abandon) for hand in hands[::2]))
    await database.advance(2 * LEASE_SECONDS)
    for states, limit in product((IN_DOUBT, EVERY_STATE), (1, 3, 4, 100)):
        pages = [ids(await store.find(Query(states, limit=limit)))]
        while len(pages[-1]) == limit:
            pages.append(ids(await store.find(Query(states, after=pages[-1][-1], limit=limit))))
        assert [each for page in pages for each in page] == ids_of(*hands), limit


async def test_routes_and_ages_narrow_what_is_found(store: Store, database: Database) -> None:
    """Only the routes that were named, and only what was claimed first so long ago."""
    old, retried, young = Hand(), Hand(), Hand()
    refund = Hand(Script(new_identity(route="refund é")))
    await do(store, old, Hand.claim, Hand.abandon)
    await do(store, retried, Hand.claim, Hand.release)
    await database.advance(LEASE_SECONDS / 2)
    await do(store, retried, Hand.retry, Hand.abandon)
    await database.advance(LEASE_SECONDS / 2)
    await do(store, young, Hand.claim, Hand.abandon)
    await do(store, refund, Hand.claim, Hand.abandon)
    for routes, age_us, wanted in (
        (("refund é",), 0, (refund,)),
        (("refund é", "create_payment"), 0, (old, retried, young, refund)),
        (("refund",), 0, ()),
        ((), 0, ()),
        # Counted from the first claim, not from the last.
        (None, microseconds(LEASE_SECONDS * 0.9), (old, retried)),
        (None, microseconds(LEASE_SECONDS * 3), ()),
        (("refund é",), LEASE_US // 2, ()),
    ):
        for states in (IN_DOUBT, EVERY_STATE):
            query = Query(states, routes=None if routes is None else frozenset(routes), age_us=age_us)
            assert ids(await store.find(query)) == ids_of(*wanted), query


async def test_what_may_be_recovered_now_is_found(store: Store, other_store: Store, database: Database) -> None:
    """In doubt, nobody holds the recovery lease of this doubt, no pause is left; and these two end by themselves."""
    free, held, paused, lapsed, claimed = (Hand() for _ in range(5))
    for hand in (lapsed, free, held, paused):
        await do(store, hand, Hand.claim)
    await database.advance(2 * LEASE_SECONDS)
    for hand in (free, held, paused):
        await do(store, hand, Hand.abandon)
    await do(store, claimed, Hand.claim)
    assert await store.recover(held.operation_id, held.token, microseconds(100), is_urgent=False)
    lease = await store.recover(paused.operation_id, paused.token, microseconds(100), is_urgent=False)
    await store.put_off(lease, microseconds(200), "unknown")

    async def recoverable(states: frozenset[State] = IN_DOUBT) -> list[UUID]:
        return ids(await other_store.find(Query(states, recoverable=True)))

    assert await recoverable() == await recoverable(EVERY_STATE) == ids_of(free, lapsed)
    assert await recoverable(EVERY_STATE - IN_DOUBT) == []
    assert ids(await store.find(Query(IN_DOUBT))) == ids_of(free, lapsed, held, paused)
    await database.advance(100)
    await do(store, claimed, Hand.complete)
    assert await recoverable() == ids_of(free, lapsed, held)
    await database.advance(100)
    assert await recoverable() == ids_of(free, lapsed, held, paused)
    await do(store, free, Hand.takeover)
    await do(store, held, Hand.disprove)
    assert await recoverable() == ids_of(lapsed, paused)
    assert await store.recover(lapsed.operation_id, lapsed.token, microseconds(100), is_urgent=False)
    assert await recoverable() == ids_of(paused)
    await do(store, lapsed, Hand.takeover, Hand.abandon)
    assert await recoverable() == ids_of(lapsed, paused)
