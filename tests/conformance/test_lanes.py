"""Lanes on every store: one operation at a time, in the order of acceptance, whatever becomes of the head."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Applied, Fenced, State, microseconds
from gateway.store.base import Store
from tests.conformance.hand import DELIVER_SECONDS, LEASE_SECONDS, POSTPONE_SECONDS, SERVICE, Hand, Speech, do, state
from tests.conformance.stores import Database
from tests.conformance.test_kept_requests import CHARGES, ENDS, hand_of, ids
from tests.conformance.test_retention import sweep_all


def in_lane(lane: bytes, *, stops: bool = True) -> Speech:
    return lambda hand: replace(hand.accept(), lane=lane, stops_lane=stops)


async def accepted(store: Store, number: int, *, stops: bool = True, lane: bytes | None = None) -> list[Hand]:
    """So many operations of one lane, in their order."""
    lane = uuid4().bytes if lane is None else lane
    hands = [hand_of() for _ in range(number)]
    for hand in hands:
        await do(store, hand, in_lane(lane, stops=stops))
    return hands


async def due(store: Store) -> set[UUID]:
    return set(ids((await store.find_due(SERVICE, CHARGES, 100)).found))


async def turns(store: Store, hands: list[Hand]) -> list[bool]:
    """Which of these may be dispatched, by what the store says of each."""
    states = [await state(store, hand) for hand in hands]
    return [
        found is State.ACCEPTED and not hand.record.delivery.is_behind
        for found, hand in zip(states, hands, strict=True)
    ]


async def stopped(store: Store) -> int:
    return (await store.backlog(SERVICE)).waiting["create_payment"].lanes_stopped


async def refused(store: Store, hand: Hand) -> bool:
    await state(store, hand)
    return isinstance(await store.apply(hand.dispatch()), Fenced)


async def test_one_after_the_other(store: Store, other_store: Store, database: Database) -> None:
    """Only the head is due, and only it can be dispatched; its end lets the next one go, and no other lane waits."""
    first, second, third = hands = await accepted(store, 3)
    (elsewhere,) = await accepted(store, 1)
    assert [hand.record.delivery.is_behind for hand in hands] == [False, True, True]
    await database.advance(1)
    assert await due(other_store) == {first.operation_id, elsewhere.operation_id}
    assert await refused(other_store, second)
    await do(store, first, Hand.dispatch)
    assert await refused(other_store, second)
    assert await due(other_store) == {elsewhere.operation_id}
    await do(store, first, Hand.postpone)
    assert await due(other_store) == {elsewhere.operation_id}
    assert await refused(other_store, second)
    await database.advance(POSTPONE_SECONDS)
    await do(store, first, Hand.dispatch, Hand.complete)
    assert await due(other_store) == {second.operation_id, elsewhere.operation_id}
    assert await refused(other_store, third)
    await do(other_store, second, Hand.dispatch, Hand.complete_grant)
    assert await turns(store, hands) == [False, False, True]


GOING_ON = ENDS | {
    "takeover": (Hand.dispatch, Hand.abandon, Hand.takeover, Hand.complete),
    "requeue": (Hand.dispatch, Hand.bury, Hand.requeue, Hand.dispatch, Hand.complete),
}


async def test_every_end_of_the_head_lets_the_next_one_go(store: Store, other_store: Store) -> None:
    """And nothing before the end does."""
    for end, speeches in GOING_ON.items():
        first, second, _ = hands = await accepted(store, 3)
        for speech in speeches:
            assert await refused(other_store, second), end
            await do(store, first, speech)
        assert await turns(other_store, hands) == [False, True, False], end
        await do(other_store, second, Hand.dispatch)


async def test_a_lane_in_doubt_waits_for_ever(store: Store, other_store: Store, database: Database) -> None:
    """Doubt is never passed, also where dead letters are; the store counts the lane as stopped, and since when."""
    first, second = await accepted(store, 2, stops=False)
    await do(store, first, Hand.dispatch)
    await database.advance(2 * LEASE_SECONDS)
    await sweep_all(store)
    await database.advance(10)
    assert await due(other_store) == set()
    assert await refused(other_store, second)
    counted = (await other_store.backlog(SERVICE)).waiting["create_payment"]
    assert (counted.lanes_stopped, round(counted.oldest_stopped_seconds)) == (1, LEASE_SECONDS + 10)
    await state(store, first)
    await do(store, first, Hand.takeover)
    assert await stopped(other_store) == 0
    assert await refused(other_store, second)


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "skip"])
async def test_a_dead_letter(stops: bool, store: Store, other_store: Store, database: Database) -> None:
    """It stops its lane, or is passed; requeued, it is next, but never beside one that is under way. What expires is
    one like any other, once a sweep has written that."""
    first, second, _ = hands = await accepted(store, 3, stops=stops)
    await do(store, first, Hand.dispatch, Hand.bury)
    assert await turns(other_store, hands) == [False, not stops, False]
    assert await stopped(other_store) == stops
    if not stops:
        await do(other_store, second, Hand.dispatch)
    await do(store, first, Hand.requeue)
    assert await turns(other_store, hands) == [stops, False, False]
    if not stops:
        assert await refused(other_store, first)
        await do(other_store, second, Hand.postpone)
        assert await turns(other_store, hands) == [True, False, False]
    await do(store, first, Hand.dispatch, Hand.complete)
    assert await turns(other_store, hands) == [False, True, False]
    lane = uuid4().bytes
    expiring, behind = pair = [hand_of(), hand_of()]
    await do(store, expiring, in_lane(lane, stops=stops))
    long = replace(behind.accept(), lane=lane, deliver_within_us=microseconds(10 * DELIVER_SECONDS))
    await do(store, behind, lambda _: long)
    await database.advance(DELIVER_SECONDS)
    await sweep_all(store)
    assert await turns(store, pair) == [False, not stops]
    assert (behind.operation_id in await due(store)) is not stops
    # The first lane is one of dead letters by now, too.
    assert await stopped(store) == 2 * stops


async def test_many_at_once(store: Store, other_store: Store) -> None:
    """Acceptances and dispatches in several lanes from two gateways: one turn in each lane, always the lowest."""
    lanes = [uuid4().bytes for _ in range(3)]
    hands = [(lane, hand_of()) for lane in lanes for _ in range(8)]
    random.Random(1).shuffle(hands)
    stores = (store, other_store)
    await asyncio.gather(*(do(stores[n % 2], hand, in_lane(lane)) for n, (lane, hand) in enumerate(hands)))
    left = list(hands)
    while left:
        for _, hand in left:
            await state(store, hand)
        commands = [hand.dispatch() for _, hand in left]
        results = await asyncio.gather(*(stores[n % 2].apply(each) for n, each in enumerate(commands)))
        gone = [pair for pair, result in zip(left, results, strict=True) if isinstance(result, Applied)]
        assert sorted(lane for lane, _ in gone) == sorted({lane for lane, _ in left})
        for lane, hand in gone:
            number = hand.record.delivery.lane_number
            assert number == min(each.record.delivery.lane_number for other, each in left if other == lane)
        for command, result, (_, hand) in zip(commands, results, left, strict=True):
            hand.see(command, result)
        await asyncio.gather(*(do(stores[n % 2], hand, Hand.complete_grant) for n, (_, hand) in enumerate(gone)))
        left = [pair for pair in left if pair not in gone]
