"""What is in doubt is counted, again and again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from gateway.core.operation import Audit, Claim
from gateway.observe.facts import BacklogTaken, Events, TallyTaken
from gateway.store.base import NotApplied
from gateway.store.operations import Tally
from gateway.upkeep.duty import TallyTaker
from tests.conformance.hand import LEASE_SECONDS, LEASE_US, SAME, SERVICE, Hand, Script, do, new_identity
from tests.upkeep.hand import Alarm, Ear, Scripted, no_pause

# A gateway without a route that accepts.
NO_ROUTE: Any = {"service": SERVICE, "accepting": {}}


@pytest.fixture
async def store() -> Scripted:
    store = Scripted()
    await store.start()
    return store


async def test_the_tally_counts_what_no_sweep_wrote_down_yet(store: Scripted) -> None:
    """A holder that died is in doubt as soon as its lease is over."""
    ear = Ear()
    for route in ("create_payment", "create_payment", "create_order"):
        await store.apply(Claim(new_identity(route), uuid4(), "holder", SAME, LEASE_US))
    tally_taker = TallyTaker(store, Events(ear), **NO_ROUTE, sleep=no_pause)
    await tally_taker.run_once()
    store.memory.clock.advance(LEASE_SECONDS + 30.0)
    await tally_taker.run_once()
    assert ear.facts == [TallyTaken((), 0.0), TallyTaken((("create_order", 1), ("create_payment", 2)), 30.0)]


async def test_an_error_states_nothing(store: Scripted) -> None:
    """What was counted last stands until there is a new count; an unreachable store is not one without doubt."""
    ear, alarm = Ear(), Alarm()
    store.tallies = [NotApplied("down"), Tally({"create_order": 1}, 7.0)]
    async with alarm.running(TallyTaker(store, Events(ear), **NO_ROUTE, sleep=alarm.sleep).run()):
        await alarm.pass_one()
        assert ear.facts == []
        await alarm.pass_one()
        assert ear.facts == [TallyTaken((("create_order", 1),), 7.0)]


async def test_the_backlog_is_of_one_service(store: Scripted) -> None:
    """What waits, what died and what is paused is counted by route, and what no route here delivers is an orphan."""
    ear, audit = Ear(), Audit("alice", "outage")
    for route in ("create_payment", "create_payment", "create_order", "gone"):
        hand = Hand(Script(new_identity(route)))
        await do(store, hand, Hand.accept, *((Hand.dispatch, Hand.bury) if route == "create_order" else ()))
    await store.cold.pause(SERVICE, "create_payment", audit)
    await store.cold.pause(SERVICE, "gone", audit)
    store.memory.clock.advance(60.0)
    accepting = {name: name for name in ("create_payment", "create_order")}
    await TallyTaker(store, Events(ear), service=SERVICE, accepting=accepting, sleep=no_pause).run_once()
    (_, backlog) = ear.facts
    assert isinstance(backlog, BacklogTaken)
    found = {route: (each.accepted, each.oldest_seconds, each.dead_letters) for route, each in backlog.waiting.items()}
    assert found == {
        "create_order": (0, 0.0, {"unauthorized": 1}),
        "create_payment": (2, 60.0, {}),
        "gone": (1, 60.0, {}),
    }
    assert (backlog.paused, backlog.orphans) == (("create_payment", "gone"), 1)
    await TallyTaker(store, Events(ear), service="other", accepting=accepting, sleep=no_pause).run_once()
    assert ear.facts[-1] == BacklogTaken({}, (), 0)


async def test_a_request_that_no_route_delivers_is_logged_once(
    store: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """Again for another route. A renamed route still delivers what it accepted under its old name."""
    taker = TallyTaker(store, Events(Ear()), service=SERVICE, accepting={"new": "renamed"}, sleep=no_pause)
    logged = []
    for route in ("renamed", "gone", "gone", "away"):
        hand = Hand(Script(new_identity(route)))
        await store.apply(hand.accept())
        await taker.run_once()
        logged.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert [len(messages) for messages in logged] == [0, 1, 0, 1]
    assert "1 accepted requests are not delivered" in logged[1][0]
    assert "3 accepted requests are not delivered" in logged[3][0]
    assert "away, gone" in logged[3][0]


async def test_soon_after_an_outage_it_is_counted_again(store: Scripted) -> None:
    """However long that was: an operator looks at the count then."""
    alarm = Alarm()
    store.tallies = [NotApplied("down")] * 6
    async with alarm.running(TallyTaker(store, Events(Ear()), **NO_ROUTE, sleep=alarm.sleep).run()):
        for _ in range(6):
            await alarm.pass_one()
    assert max(alarm.asked) <= 36.0
