"""What is in doubt is counted, again and again."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.operation import Audit
from gateway.observe.facts import BacklogTaken, Events, Fact, TallyTaken
from gateway.store.base import NotApplied
from gateway.store.operations import Tally
from gateway.upkeep.duty import TallyTaker
from tests.conformance.hand import SERVICE, Hand, Script, do, new_identity
from tests.upkeep.hand import Alarm, Scripted, no_pause

# A gateway without a route that accepts.
NO_ROUTE: Any = {"service": SERVICE, "accepting": {}}


async def test_an_error_states_nothing(store: Scripted, facts: list[Fact]) -> None:
    """What was counted last stands until there is a new count; an unreachable store is not one without doubt."""
    alarm = Alarm()
    store.tallies = [NotApplied("down"), Tally({"create_order": 1}, 7.0)]
    async with alarm.running(TallyTaker(store, Events(facts.append), **NO_ROUTE, sleep=alarm.sleep).run()):
        await alarm.pass_one()
        assert facts == []
        await alarm.pass_one()
        assert facts == [TallyTaken((("create_order", 1),), 7.0)]


async def test_the_backlog_is_of_one_service(store: Scripted, facts: list[Fact]) -> None:
    """What waits, what died and what is paused is counted by route, and what no route here delivers is an orphan."""
    audit = Audit("alice", "outage")
    for route in ("create_payment", "create_payment", "create_order", "gone"):
        hand = Hand(Script(new_identity(route)))
        await do(store, hand, Hand.accept, *((Hand.dispatch, Hand.bury) if route == "create_order" else ()))
    await store.cold.pause(SERVICE, "create_payment", audit)
    await store.cold.pause(SERVICE, "gone", audit)
    store.memory.clock.advance(60.0)
    accepting = {name: name for name in ("create_payment", "create_order")}
    await TallyTaker(store, Events(facts.append), service=SERVICE, accepting=accepting, sleep=no_pause).run_once()
    (_, backlog) = facts
    assert isinstance(backlog, BacklogTaken)
    found = {route: (each.accepted, each.oldest_seconds, each.dead_letters) for route, each in backlog.waiting.items()}
    assert found == {
        "create_order": (0, 0.0, {"unauthorized": 1}),
        "create_payment": (2, 60.0, {}),
        "gone": (1, 60.0, {}),
    }
    assert (backlog.paused, backlog.orphans) == (("create_payment", "gone"), 1)
    await TallyTaker(store, Events(facts.append), service="other", accepting=accepting, sleep=no_pause).run_once()
    assert facts[-1] == BacklogTaken({}, (), 0)


async def test_a_request_that_no_route_delivers_is_logged_once(
    store: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """Again for another route. A renamed route still delivers what it accepted under its old name."""
    taker = TallyTaker(store, Events(), service=SERVICE, accepting={"new": "renamed"}, sleep=no_pause)
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
