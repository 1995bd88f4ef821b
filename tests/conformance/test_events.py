"""The events of changes: each is written with its change for each sink that receives it, and kept until it has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final
from uuid import uuid4

import orjson
import pytest

from gateway.core.message import StoredResponse
from gateway.core.operation import microseconds
from gateway.core.outbox import EventType, Outbox, Part, Subscription
from gateway.store.base import Store
from gateway.store.operations import EventFate, EventReport, LeasedEvent, Serving, SinkBacklog
from tests.conformance.hand import (
    DELIVER_SECONDS,
    LEASE_SECONDS,
    REMEMBER_SECONDS,
    REPLAY_SECONDS,
    SERVICE,
    Hand,
    Script,
    Speech,
    do,
    new_identity,
    started,
    state,
)
from tests.conformance.stores import Database
from tests.conformance.test_retention import sweep_all

LEASE_US: Final = microseconds(30)
ALL: Final = "all"
REFUNDS: Final = "refunds"
OUTBOX: Final = Outbox(
    SERVICE,
    "urn:test",
    (
        Subscription(ALL, frozenset(EventType), include=frozenset(Part)),
        Subscription(REFUNDS, routes=frozenset(("refund",))),
    ),
)


@pytest.fixture
async def telling(database: Database) -> AsyncIterator[Store]:
    async with started(database.open_store(outbox=OUTBOX)) as store:
        yield store


async def leased(store: Store, sink: str = ALL, number: int = 100) -> list[LeasedEvent]:
    return await store.lease_events(SERVICE, {sink: number}, LEASE_US)


def data_of(event: LeasedEvent) -> dict[str, object]:
    data: dict[str, object] = orjson.loads(event.event.data())
    return data


async def report(store: Store, event: LeasedEvent, fate: EventFate, why: str = "", *, pause_seconds: float = 0) -> None:
    """Of the publication for which it was leased."""
    tries = event.tries, event.redeliveries
    await store.report_events(
        SERVICE, [EventReport(event.sink, event.event.id, *tries, fate, why, microseconds(pause_seconds), event.line)]
    )


HISTORIES: Final[dict[str, tuple[tuple[Speech, ...], tuple[str, ...]]]] = {
    "complete": ((Hand.claim, Hand.complete), ("completed",)),
    "complete-grant": ((Hand.claim, Hand.renew, Hand.complete_grant), ("completed",)),
    "repeated": ((Hand.claim, Hand.complete_grant, Hand.complete, Hand.complete_grant), ("completed",)),
    "release": ((Hand.claim, Hand.release, Hand.retry, Hand.forget), ()),
    "abandon": ((Hand.claim, Hand.abandon, Hand.abandon), ("in_doubt",)),
    "takeover": ((Hand.claim, Hand.abandon, Hand.takeover, Hand.abandon), ("in_doubt", "in_doubt")),
    "late": ((Hand.claim, Hand.abandon, Hand.complete_grant), ("in_doubt", "completed")),
    "prove": ((Hand.claim, Hand.abandon, Hand.prove), ("in_doubt", "completed", "resolved")),
    "disprove": ((Hand.claim, Hand.abandon, Hand.disprove), ("in_doubt", "resolved")),
    "late-release": ((Hand.claim, Hand.abandon, Hand.release, Hand.release), ("in_doubt", "resolved")),
    "late-forget": ((Hand.claim, Hand.abandon, Hand.forget), ("in_doubt", "resolved")),
    "late-postpone": ((Hand.accept, Hand.dispatch, Hand.abandon, Hand.postpone), ("accepted", "in_doubt", "resolved")),
    "after-disprove": (
        (Hand.claim, Hand.abandon, Hand.disprove, Hand.complete_grant),
        ("in_doubt", "resolved", "completed"),
    ),
    "accept": ((Hand.accept, Hand.dispatch, Hand.postpone), ("accepted",)),
    "deliver": ((Hand.accept, Hand.dispatch, Hand.complete_grant), ("accepted", "completed")),
    "bury": ((Hand.accept, Hand.dispatch, Hand.bury, Hand.requeue), ("accepted", "dead_lettered", "requeued")),
    "withdraw": ((Hand.accept, Hand.withdraw, Hand.accept_again), ("accepted", "withdrawn", "accepted")),
    "reinstate": ((Hand.accept, Hand.dispatch, Hand.abandon, Hand.reinstate), ("accepted", "in_doubt", "resolved")),
    "purge": ((Hand.claim, Hand.complete, Hand.purge, Hand.erase), ("completed",)),
}


async def test_each_change_has_its_events(telling: Store, database: Database) -> None:
    """No more and no fewer, also where a command is repeated; their ids differ, and their order can be told."""
    hands = {history: Hand() for history in HISTORIES}
    for history, (speeches, _) in HISTORIES.items():
        for speech in speeches:
            await do(telling, hands[history], speech)
            await database.advance(0.001)
    found = sorted(await leased(telling), key=lambda each: (each.event.attributes()["sequence"], each.event.type))
    for history, (_, types) in HISTORIES.items():
        own = [each.event for each in found if each.event.operation_id == str(hands[history].operation_id)]
        assert [each.type for each in own] == [f"operation.{type_}" for type_ in types], history
        assert len({each.id for each in own}) == len(types)


async def test_what_did_not_happen_has_no_event(telling: Store) -> None:
    """A command that is fenced off changes nothing, and so tells nothing."""
    await do(telling, hand := Hand(), Hand.claim, Hand.complete)
    await do(telling, other := Hand(), Hand.claim)
    stale = replace(other.complete(), token=other.future_token)
    for command in (hand.abandon(), other.disprove(), stale, replace(stale, granted=other.granted)):
        await telling.apply(command)
    assert [each.event.type for each in await leased(telling)] == [EventType.COMPLETED]


async def test_what_the_clock_did_is_told_once_it_is_written(telling: Store, database: Database) -> None:
    """A lapse and an expiry by the sweep that writes them; a request that is requeued and expires again has two."""
    for number_lapsed in (1, 30):
        for _ in range(number_lapsed):
            await do(telling, Hand(), Hand.claim)
        await do(telling, expired := Hand(), Hand.accept)
        await database.advance(max(LEASE_SECONDS, DELIVER_SECONDS) + 1)
        (accepted,) = await leased(telling)
        assert accepted.event.type == EventType.ACCEPTED
        await sweep_all(telling)
        told = await leased(telling)
        types = sorted(each.event.type for each in told)
        assert types == [EventType.DEAD_LETTERED, *[EventType.IN_DOUBT] * number_lapsed]
        await state(telling, expired)
        await do(telling, expired, Hand.requeue)
        await database.advance(DELIVER_SECONDS + 1)
        await sweep_all(telling)
        again = await leased(telling)
        assert {each.event.type for each in again} >= {EventType.REQUEUED, EventType.DEAD_LETTERED}
        dead = {each.event.id for each in again if each.event.type is EventType.DEAD_LETTERED}
        assert len(dead) == 2
        for event in {each.event.id: each for each in (accepted, *told, *again)}.values():
            await report(telling, event, EventFate.PUBLISHED)


async def test_a_doubt_has_an_end_where_it_was_told(telling: Store, database: Database) -> None:
    """A holder that knows late that nothing happened ends a lapse that a sweep wrote; one that nobody wrote was never
    told."""
    told, unknown = Hand(), Hand()
    await do(telling, told, Hand.claim)
    await database.advance(LEASE_SECONDS + 1)
    await sweep_all(telling)
    await do(telling, unknown, Hand.claim)
    await database.advance(LEASE_SECONDS + 1)
    for hand in (told, unknown):
        await do(telling, hand, Hand.release)
    found = [(each.event.operation_id, each.event.type, data_of(each)["outcome"]) for each in await leased(telling)]
    assert found == [
        (str(told.operation_id), EventType.IN_DOUBT, "in_doubt"),
        (str(told.operation_id), EventType.RESOLVED, "no_effect"),
    ]


async def test_a_sink_receives_what_it_asked_for(telling: Store) -> None:
    """By route and type; with the parts that were chosen, and no others."""
    charge, refund = Hand(), Hand(Script(new_identity("refund")))
    json = StoredResponse(201, b"", ((b"content-type", b"application/json"),), b'{"a": 1.10}')
    await do(telling, charge, Hand.claim, Hand.complete)
    await do(telling, refund, Hand.claim, lambda hand: replace(hand.complete_grant(), response=json, resource="/r/1"))
    (thin,) = await leased(telling, REFUNDS)
    assert thin.event.operation_id == str(refund.operation_id)
    data = data_of(thin)
    assert (data["state"], data["status"], data["attempts"], data["token"]) == ("completed", 201, 1, refund.token)
    assert [data[part] for part in Part] == [None] * len(Part)
    full = {each.event.operation_id: each for each in await leased(telling)}[str(refund.operation_id)]
    assert b'"response":{"a": 1.10}' in full.event.data()
    whole = data_of(full)
    assert (whole["key"], whole["resource"]) == ("key", "/r/1")
    assert full.event.id == thin.event.id
    assert data["completed_at"] == thin.event.attributes()["time"]


async def test_a_sweep_tells_what_became_of_another_services_operations(telling: Store, database: Database) -> None:
    """By the subscriptions of that service, which it left in the store; of one without any, nothing."""
    others = Outbox("another", "urn:another", (Subscription("theirs"),))
    async with started(database.open_store(outbox=others)) as other:
        await other.compare_configuration(Serving(uuid4(), "another", {"charges": b"recipe"}))
        foreign, third = (Hand(Script(new_identity(service=service))) for service in ("another", "a third"))
        for hand in (foreign, third):
            await do(other, hand, Hand.claim)
        await database.advance(LEASE_SECONDS + 1)
        await sweep_all(telling)
        assert await leased(telling) == []
        assert (await telling.sinks(SERVICE), await telling.sinks("a third")) == ({}, {})
        (event,) = await other.lease_events("another", {"theirs": 10}, LEASE_US)
        assert (event.event.type, event.event.operation_id) == (EventType.IN_DOUBT, str(foreign.operation_id))
        assert event.event.attributes()["source"] == "urn:another"


async def test_an_event_outlives_its_operation(telling: Store, database: Database) -> None:
    """With the same bytes in every publication, whatever became of the record, and in any process."""
    await do(telling, hand := Hand(), Hand.claim, Hand.complete)
    (before,) = await leased(telling)
    await database.advance(REPLAY_SECONDS + REMEMBER_SECONDS + 1)
    await sweep_all(telling)
    assert (await telling.read(hand.operation_id)).record is None
    async with started(database.open_store()) as other:
        (after,) = await leased(other)
    assert after.event.cloudevent() == before.event.cloudevent()
    assert after.event.standard() == before.event.standard()
    again = Hand(Script(hand.script.identity))
    await do(telling, again, Hand.claim, Hand.complete)
    assert [each.event.id != before.event.id for each in await leased(telling)] == [True]


async def test_a_lease_keeps_an_event_from_other_relays(telling: Store, other_store: Store, database: Database) -> None:
    """Until it is over: then the next relay gets it, with the number of tries. What was published is gone for good."""
    hands = [Hand() for _ in range(3)]
    for hand in hands:
        await do(telling, hand, Hand.claim, Hand.complete)
        await database.advance(1)
    first, second = await leased(telling, number=2)
    (rest,) = await leased(other_store)
    found = [each.event.operation_id for each in (first, second, rest)]
    assert found == [str(hand.operation_id) for hand in hands]
    assert await leased(other_store) == []
    await report(telling, first, EventFate.PUBLISHED)
    await database.advance(31)
    again = await leased(other_store)
    assert {(each.event.id, each.tries) for each in again} == {(second.event.id, 2), (rest.event.id, 2)}
    # A dead relay's late report: published counts, everything else is another's.
    for _ in range(2):
        await report(telling, rest, EventFate.PUBLISHED)
    await report(telling, second, EventFate.DEAD, "gave up")
    await database.advance(31)
    (left,) = await leased(telling)
    assert (left.event.id, left.tries) == (second.event.id, 3)


async def test_a_lease_of_a_clock_that_was_set_back(telling: Store, other_store: Store, database: Database) -> None:
    """It is over when it could not be taken now; one that is a little too long lasts, because its relay is at work."""
    await do(telling, Hand(), Hand.claim, Hand.complete)
    await database.advance(7_200)
    (first,) = await leased(telling)
    database.set_back(10)
    assert await leased(other_store) == []
    database.set_back(3_600)
    assert [(each.event.id, each.tries) for each in await leased(other_store)] == [(first.event.id, 2)]


async def test_two_relays_share_what_is_due(telling: Store, other_store: Store) -> None:
    for _ in range(20):
        await do(telling, Hand(), Hand.claim, Hand.complete)
    parts = await asyncio.gather(*(leased(store, number=5) for store in (telling, other_store) * 3))
    ids = [each.event.id for part in parts for each in part]
    assert len(ids) == len(set(ids)) == 20


async def test_what_failed_waits_and_what_is_dead_is_listed(telling: Store, database: Database) -> None:
    """A dead event is published again only when an operator says so, with a count of that."""
    await do(telling, hand := Hand(), Hand.claim, Hand.complete)
    (event,) = await leased(telling)
    await report(telling, event, EventFate.PUT_OFF, "HTTP 500", pause_seconds=100)
    backlog = (await telling.sinks(SERVICE))[ALL]
    assert (backlog.pending, backlog.last_error, backlog.dead) == (1, "HTTP 500", 0)
    await database.advance(99)
    assert await leased(telling) == []
    (waiting,) = await telling.find_events(SERVICE, ALL, is_dead=False, after=None, limit=10)
    assert (waiting.event_id, waiting.why, waiting.operation_id) == (event.event.id, "HTTP 500", hand.operation_id)
    await database.advance(2)
    (event,) = await leased(telling)
    assert (event.tries, event.age_us >= microseconds(101)) == (2, True)
    await report(telling, event, EventFate.DEAD, "too old")
    await database.advance(400 * 86_400)
    await sweep_all(telling)
    assert await leased(telling) == []
    (dead,) = await telling.find_events(SERVICE, ALL, is_dead=True, after=None, limit=10)
    assert (dead.event_id, dead.type, dead.why, dead.is_dead) == (event.event.id, EventType.COMPLETED, "too old", True)
    assert await telling.find_events(SERVICE, ALL, is_dead=True, after=dead.event_id, limit=10) == []
    assert (await telling.sinks(SERVICE))[ALL].dead == 1
    for sink, number in ((REFUNDS, 0), (None, 1), (ALL, 0)):
        assert await telling.redeliver_event(SERVICE, event.event.id, sink) == number
    (again,) = await leased(telling)
    assert (again.tries, again.redeliveries) == (1, 1)
    assert again.age_us < microseconds(60)
    assert again.event.cloudevent() == event.event.cloudevent()
    await report(telling, again, EventFate.PUBLISHED)
    assert await telling.sinks(SERVICE) == {}


async def test_a_report_from_before_a_redelivery_counts_no_more(telling: Store, database: Database) -> None:
    """Not although the new lease has as many tries; that the event was published counts, whoever says it."""
    await do(telling, Hand(), Hand.claim, Hand.complete)
    (stale,) = await leased(telling)
    await report(telling, stale, EventFate.DEAD, "too old")
    assert await telling.redeliver_event(SERVICE, stale.event.id, ALL) == 1
    (fresh,) = await leased(telling)
    assert (fresh.tries, fresh.redeliveries) == (stale.tries, 1)
    await report(telling, stale, EventFate.DEAD, "too old")
    await report(telling, stale, EventFate.PUT_OFF, "HTTP 500", pause_seconds=1e-6)
    await database.advance(2)
    assert await leased(telling) == []
    backlog = (await telling.sinks(SERVICE))[ALL]
    assert (backlog.pending, backlog.dead) == (1, 0)
    await report(telling, stale, EventFate.PUBLISHED)
    assert await telling.sinks(SERVICE) == {}


async def test_a_suspended_sink_keeps_its_events(telling: Store, other_store: Store, database: Database) -> None:
    """Nothing is leased until it is resumed; then everything at once. Other sinks go on."""
    hand = Hand(Script(new_identity("refund")))
    await do(telling, hand, Hand.claim, Hand.complete)
    (event,) = await leased(telling)
    await report(telling, event, EventFate.PUT_OFF, "HTTP 410", pause_seconds=9_000)
    assert await telling.suspend_sink(SERVICE, ALL, "HTTP 410")
    assert not await other_store.suspend_sink(SERVICE, ALL, "again")
    await database.advance(10_000)
    assert await other_store.lease_events(SERVICE, {ALL: 5, REFUNDS: 0}, LEASE_US) == []
    assert len(await leased(other_store, REFUNDS)) == 1
    assert (await other_store.sinks(SERVICE))[ALL].suspended_why == "HTTP 410"
    assert await other_store.resume_sink(SERVICE, ALL)
    assert not await telling.resume_sink(SERVICE, ALL)
    assert [each.event.id for each in await leased(telling)] == [event.event.id]
    assert await telling.suspend_sink("another", ALL, "by hand")
    assert await telling.sinks("another") == {ALL: SinkBacklog(suspended_why="by hand")}
    assert (await telling.sinks(SERVICE))[ALL].suspended_why is None
