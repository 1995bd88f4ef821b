"""Sinks that receive events in order, on every store: one of each line at a time, whatever becomes of the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import uuid4

import pytest

from gateway.core.outbox import EventType, Outbox, Subscription
from gateway.store.base import Store
from gateway.store.operations import EventFate, LeasedEvent
from tests.conformance.hand import SERVICE, Hand, do, started
from tests.conformance.stores import Database
from tests.conformance.test_events import leased as in_any_order
from tests.conformance.test_events import report
from tests.conformance.test_lanes import accepted, in_lane

ORDERED: Final = "ordered"
ANY_ORDER: Final = "any-order"
OUTBOX: Final = Outbox(
    SERVICE,
    "urn:test",
    (Subscription(ORDERED, frozenset(EventType), is_ordered=True), Subscription(ANY_ORDER, frozenset(EventType))),
)


@pytest.fixture
async def telling(database: Database) -> AsyncIterator[Sequence[Store]]:
    """Two started stores of one database, with an ordered sink."""
    one, other = (database.open_store(outbox=OUTBOX) for _ in range(2))
    async with started(one), started(other):
        yield one, other


async def leased(store: Store, sink: str = ORDERED) -> list[LeasedEvent]:
    return await in_any_order(store, sink)


def subjects(events: list[LeasedEvent]) -> list[tuple[str, str]]:
    return sorted((each.event.operation_id, each.event.type.removeprefix("operation.")) for each in events)


def of(hand: Hand, *types: str) -> list[tuple[str, str]]:
    return sorted((str(hand.operation_id), type_) for type_ in types)


async def test_events_of_one_operation_come_one_after_the_other(telling: Sequence[Store], database: Database) -> None:
    """Also those of one change; one that failed holds up those behind it, and none of another operation."""
    store, other = telling
    hand, neighbour = Hand(), Hand()
    await do(store, hand, Hand.claim, Hand.abandon, Hand.prove)
    await do(store, neighbour, Hand.claim, Hand.complete)
    assert len(await leased(store, ANY_ORDER)) == 4
    first = await leased(store)
    assert subjects(first) == sorted(of(hand, "in_doubt") + of(neighbour, "completed"))
    assert await leased(other) == []
    mine = [each for each in first if each.event.operation_id == str(hand.operation_id)]
    await report(store, *mine, EventFate.PUT_OFF, pause_seconds=100)
    await database.advance(99)
    assert subjects(await leased(other)) == of(neighbour, "completed")
    await database.advance(2)
    (again,) = await leased(store)
    assert (again.event.type, again.tries) == (EventType.IN_DOUBT, 2)
    await report(store, again, EventFate.PUBLISHED)
    for type_ in ("completed", "resolved"):
        (event,) = await leased(other)
        assert subjects([event]) == of(hand, type_)
        assert await leased(store) == []
        await report(other, event, EventFate.PUBLISHED)
    assert await leased(store) == []


async def test_a_dead_event_is_passed_and_comes_last_when_it_is_delivered_again(telling: Sequence[Store]) -> None:
    store, other = telling
    await do(store, hand := Hand(), Hand.claim, Hand.abandon, Hand.prove)
    (dead,) = await leased(store)
    await report(store, dead, EventFate.DEAD)
    (second,) = await leased(other)
    assert subjects([second]) == of(hand, "completed")
    assert await store.redeliver_event(SERVICE, dead.event.id, ORDERED) == 1
    assert await leased(store) == []
    found = [second]
    for _ in range(2):
        await report(store, found[-1], EventFate.PUBLISHED)
        found += await leased(other)
    assert [each.event.type for each in found] == [EventType.COMPLETED, EventType.RESOLVED, EventType.IN_DOUBT]
    await report(store, found[-1], EventFate.PUBLISHED)
    # Alone in its line, it goes at once.
    await do(store, lone := Hand(), Hand.claim, Hand.complete)
    (event,) = await leased(store)
    await report(store, event, EventFate.DEAD)
    assert await store.redeliver_event(SERVICE, event.event.id, None) == 1
    assert subjects(await leased(store)) == of(lone, "completed")


async def test_the_operations_of_a_lane_share_one_line(telling: Sequence[Store], database: Database) -> None:
    """Their events come in the order of the changes, under one partition key, at every sink."""
    store, other = telling
    hands = await accepted(store, 2)
    for hand in hands:
        await database.advance(1)
        await do(other, hand, Hand.dispatch, Hand.complete_grant)
    expected = [
        *(of(hands[0], "accepted") + of(hands[1], "accepted")),
        *(of(hands[0], "completed") + of(hands[1], "completed")),
    ]
    keys = {each.event.attributes()["partitionkey"] for each in await leased(store, ANY_ORDER)}
    found: list[tuple[str, str]] = []
    while events := await leased(store):
        (event,) = events
        keys.add(event.event.attributes()["partitionkey"])
        found += subjects([event])
        await report(other, event, EventFate.PUBLISHED)
    assert found == expected
    assert len(keys) == 1


async def test_what_is_written_while_the_one_before_it_is_reported_gets_its_turn(telling: Sequence[Store]) -> None:
    """Whichever comes first: the line never gets stuck, and nothing passes."""
    store, other = telling
    lane = uuid4().bytes
    await do(store, Hand(), in_lane(lane))
    for _ in range(40):
        (head,) = await leased(other)
        await asyncio.gather(do(store, hand := Hand(), in_lane(lane)), report(other, head, EventFate.PUBLISHED))
        (event,) = await leased(store)
        assert subjects([event]) == of(hand, "accepted")
        await report(store, event, EventFate.PUT_OFF)
