"""What workers and operators ask about kept requests: what is due and kept, how much waits, and what is paused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final
from uuid import UUID

import pytest

from gateway.core.delivery import Delivering, delivering_of
from gateway.core.operation import Audit, State, microseconds
from gateway.store.base import Store
from gateway.store.operations import AUDIT_KEEP_US, PauseAudit, Query
from tests.conformance.hand import (
    DELIVER_SECONDS,
    LEASE_SECONDS,
    POSTPONE_SECONDS,
    SERVICE,
    Hand,
    Script,
    Speech,
    all_of,
    do,
    new_identity,
    state,
)
from tests.conformance.stores import Database
from tests.conformance.test_find import ids
from tests.conformance.test_retention import sweep_all

AUDIT: Final = Audit("operator", "the service is being repaired")
CHARGES: Final = all_of("charges")


def hand_of(route: str = "create_payment", operation: str = "charges", scope_digest: bytes | None = None) -> Hand:
    identity = new_identity(route, operation)
    return Hand(Script(identity if scope_digest is None else replace(identity, scope_digest=scope_digest)))


def accepted_for(seconds: float) -> Speech:
    return lambda hand: replace(hand.accept(), deliver_within_us=microseconds(seconds))


async def test_what_is_due_is_found_longest_due_first(store: Store, other_store: Store, database: Database) -> None:
    """Only what is accepted, of this service and these names, and at its time; never more than was asked for."""
    postponed, first, second, foreign = (hand_of() for _ in range(4))
    refund = hand_of(operation="refunds")

    async def due(names: Delivering = CHARGES, limit: int = 10, service: str = SERVICE) -> list[UUID]:
        return ids((await other_store.find_due(service, names, limit)).found)

    await do(store, postponed, Hand.accept, Hand.dispatch, Hand.postpone)
    for hand in (first, refund, second):
        await do(store, hand, Hand.accept)
        await database.advance(1)
    await do(store, foreign, lambda hand: replace(hand.accept(), service="another"))
    await do(store, hand_of(), Hand.accept, Hand.dispatch)
    await do(store, hand_of(), Hand.accept, Hand.dispatch, Hand.bury)
    assert await due() == [first.operation_id, second.operation_id]
    both = all_of("refunds", "charges", "unknown")
    in_order = [hand.operation_id for hand in (first, refund, second)]
    assert (await due(both), await due(both, 2), await due(all_of())) == (in_order, in_order[:2], [])
    assert await due(service="another") == [foreign.operation_id]
    (found, *_) = (await other_store.find_due(SERVICE, CHARGES, 1)).found
    assert found.record == first.record
    await database.advance(POSTPONE_SECONDS)
    assert postponed.operation_id in await due()
    await database.advance(DELIVER_SECONDS)
    assert await due(both) == []


CONFIGURATIONS: Final = {
    "one": delivering_of({"pay": "pay"}, ["pay"]),
    "renamed twice": delivering_of({"third": "pay"}, ["third"]),
    "beside another one": delivering_of({"third": "pay", "pay": "refund"}, ["third", "pay"]),
    "two that share": delivering_of({"pay": "pay", "third": "pay"}, ["pay", "third"]),
    "of two, one accepts": delivering_of({"pay": "pay", "third": "pay"}, ["third"]),
    "of two, one is busy": delivering_of({"pay": "pay", "third": "refund"}, ["pay", "third"]).only({"third"}),
    "nothing": delivering_of({"pay": "pay"}, []),
}


async def test_what_nobody_delivers_hides_nothing(store: Store, other_store: Store, database: Database) -> None:
    """Of all routes and names that ever were, what a configuration delivers is found, and as if nothing else waited."""
    hands = [hand_of(*each) for each in [*product(("pay", "second", "third"), ("refund", "pay"))] * 3]
    for hand in hands:
        await do(store, hand, Hand.accept)
        await database.advance(0.1)
    for name, delivering in CONFIGURATIONS.items():
        wanted = [hand.operation_id for hand in hands if delivering.includes(hand.script.identity)]
        assert ids((await other_store.find_due(SERVICE, delivering, 100)).found) == wanted, name
        assert ids((await other_store.find_due(SERVICE, delivering, 2)).found) == wanted[:2], name


ENDS: Final[dict[str, tuple[Speech, ...]]] = {
    "complete": (Hand.dispatch, Hand.complete),
    "complete-grant": (Hand.dispatch, Hand.complete_grant),
    "late-complete": (Hand.dispatch, Hand.abandon, Hand.complete_grant),
    "complete-after-reinstate": (Hand.dispatch, Hand.abandon, Hand.reinstate, Hand.complete_grant),
    "prove": (Hand.dispatch, Hand.abandon, Hand.prove),
    "disprove": (Hand.dispatch, Hand.abandon, Hand.disprove),
    "withdraw": (Hand.withdraw,),
    "withdraw-dead-letter": (Hand.dispatch, Hand.bury, Hand.withdraw),
}


async def test_a_request_is_kept_until_the_end(store: Store, other_store: Store) -> None:
    """As it came, through every other state, and not longer; accepted again, it is the new one."""
    for end, speeches in ENDS.items():
        hand = hand_of()
        accept = hand.accept()
        for speech in (Hand.accept, *speeches):
            await do(store, hand, speech)
            kept = None if hand.record.delivery is None else accept.kept
            assert await other_store.read_kept(hand.operation_id) == kept, end
        assert hand.record.delivery is None, end
        if hand.snapshot.state is State.RELEASED:
            again = hand.accept_again()
            await do(store, hand, Hand.accept_again)
            assert await other_store.read_kept(hand.operation_id) == again.kept != accept.kept
    assert await other_store.read_kept(hand_of().operation_id) is None


async def test_time_takes_no_kept_request(store: Store, database: Database) -> None:
    """What lapsed and what expired keep theirs, before and after a sweep, for as long as it takes."""
    lapsed, expired = hands = [hand_of() for _ in range(2)]
    accepted = {hand.operation_id: hand.accept().kept for hand in hands}
    await do(store, lapsed, Hand.accept, Hand.dispatch)
    await do(store, expired, Hand.accept)
    await database.advance(2 * LEASE_SECONDS + DELIVER_SECONDS)
    for wanted in ((), (1, 1, 0, 0), (0, 0, 0, 0)):
        if wanted:
            swept = await store.sweep(100)
            assert (swept.lapsed, swept.expired, swept.retired, swept.collected) == wanted
            await database.advance(400 * 86_400)
        assert [await state(store, hand) for hand in hands] == [State.IN_DOUBT, State.DEAD_LETTER]
        assert {each: await store.read_kept(each) for each in accepted} == accepted


async def test_what_waits_is_counted_by_scope(store: Store, other_store: Store, database: Database) -> None:
    """Only what is accepted counts, of its own route and service, and no further than up to the limit."""
    scope = b"a scope"

    async def pending(limit: int = 100) -> int:
        return await other_store.count_pending(SERVICE, "create_payment", scope, limit)

    hands = [hand_of(scope_digest=scope) for _ in range(4)]
    for hand in (*hands, hand_of(), hand_of("create_refund", scope_digest=scope)):
        await do(store, hand, Hand.accept)
    await do(store, hand_of(scope_digest=scope), lambda hand: replace(hand.accept(), service="another"))
    await do(store, hands[0], Hand.dispatch)
    assert (await pending(), await pending(2)) == (3, 2)
    await do(store, hands[0], Hand.postpone)
    assert await pending() == 4
    await database.advance(POSTPONE_SECONDS + DELIVER_SECONDS)
    assert await pending() == 0


async def test_the_backlog_by_route(store: Store, other_store: Store, database: Database) -> None:
    """What waits, how large and how old it is, and the dead letters by reason, of one service."""
    old, new, running, buried, expired, withdrawn = (hand_of("one") for _ in range(6))
    other_route = hand_of("two")
    await do(store, expired, accepted_for(1))
    await do(store, old, Hand.accept)
    await database.advance(90)
    await do(store, new, Hand.accept, Hand.dispatch, Hand.postpone)
    await do(store, running, Hand.accept, Hand.dispatch)
    await do(store, buried, Hand.accept, Hand.dispatch, Hand.bury)
    await do(store, withdrawn, Hand.accept, Hand.withdraw)
    await do(store, other_route, Hand.accept, Hand.dispatch, Hand.bury, Hand.requeue)
    await do(store, hand_of("one"), lambda hand: replace(hand.accept(), service="another"))
    await sweep_all(store)
    backlog = await other_store.backlog(SERVICE)
    assert backlog.waiting.keys() == {"one", "two"}
    assert backlog.paused == {}
    one = backlog.waiting["one"]
    sizes = sum(hand.record.delivery.request_bytes for hand in (old, new))
    assert (one.accepted, one.request_bytes, round(one.oldest_seconds)) == (2, sizes, 90)
    assert one.dead_letters == {"unauthorized": 1, "deadline": 1}
    assert (backlog.waiting["two"].accepted, dict(backlog.waiting["two"].dead_letters)) == (1, {})


async def test_dead_letters_are_found_by_reason(store: Store, database: Database) -> None:
    """Also those that expired since the last sweep, and page by page."""
    buried, expired = [hand_of() for _ in range(3)], [hand_of() for _ in range(3)]
    for hand in buried:
        await do(store, hand, Hand.accept, Hand.dispatch, Hand.bury)
    for hand in expired:
        await do(store, hand, Hand.accept)
    assert await store.find(Query(frozenset((State.DEAD_LETTER,)), reason="deadline")) == []
    await database.advance(DELIVER_SECONDS)
    for _ in range(2):
        for reason, hands in (("unauthorized", buried), ("deadline", expired)):
            wanted = sorted(hand.operation_id for hand in hands)
            first = await store.find(Query(frozenset(State), reason=reason, limit=2))
            rest = await store.find(Query(frozenset(State), reason=reason, after=wanted[1], limit=2))
            assert ids(first) + ids(rest) == wanted
        assert len(await store.find(Query(frozenset((State.DEAD_LETTER,))))) == 6
        assert await store.find(Query(frozenset((State.ACCEPTED,)))) == []
        assert (await store.sweep(100)).expired in (3, 0)


async def test_a_pause_when_nothing_is_due(store: Store, database: Database) -> None:
    """What is paused gets more time, before its time is over and anything is due."""
    await do(store, hand := hand_of(), Hand.accept)
    assert await store.pause(SERVICE, "charges", AUDIT)
    await store.cold.sweep(100)
    await database.advance(2 * DELIVER_SECONDS)
    assert await state(store, hand) is State.ACCEPTED


async def test_a_pause_holds_everything_of_its_name(store: Store, other_store: Store, database: Database) -> None:
    """Nothing of it is due for any gateway, and the time does not count; other names and services go on."""
    held, refund, foreign = hands = hand_of(), hand_of(operation="refunds"), hand_of()

    async def due(service: str = SERVICE) -> tuple[list[UUID], frozenset[str]]:
        found = await other_store.find_due(service, all_of("charges", "refunds"), 10)
        return ids(found.found), frozenset(found.paused)

    for hand in (held, refund):
        await do(store, hand, Hand.accept)
    await do(store, foreign, lambda hand: replace(hand.accept(), service="another"))
    await database.advance(DELIVER_SECONDS / 2)
    assert await store.pause(SERVICE, "charges", AUDIT) is True
    assert await other_store.pause(SERVICE, "charges", AUDIT) is False
    (pause,) = (await other_store.backlog(SERVICE)).paused.values()
    assert (pause.who, pause.why) == (AUDIT.who, AUDIT.why)
    assert (await other_store.backlog("another")).paused == {}
    assert await due() == ([refund.operation_id], {"charges"})
    assert await due("another") == ([foreign.operation_id], set())
    await sweep_all(store)
    await database.advance(DELIVER_SECONDS)
    states = [await state(other_store, hand) for hand in hands]
    assert states == [State.ACCEPTED, State.DEAD_LETTER, State.DEAD_LETTER]
    assert await due() == ([], {"charges"})
    assert await other_store.resume(SERVICE, "charges", AUDIT) is True
    assert await store.resume(SERVICE, "charges", AUDIT) is False
    assert await due() == ([held.operation_id], set())
    assert (await store.backlog(SERVICE)).paused == {}


async def test_pauses_and_their_ends_are_audited(store: Store, other_store: Store, database: Database) -> None:
    """By whom, when and why, and for as long as audits are kept; what changed nothing is not."""
    end = Audit("other", "it is back")
    for step in (store.pause, store.pause):
        await step(SERVICE, "charges", AUDIT)
    paused_us = (await store.backlog(SERVICE)).paused["charges"].since_us
    await database.advance(60)
    for _ in range(2):
        await other_store.resume(SERVICE, "charges", end)
    began, ended = await store.pause_audits(SERVICE)
    assert began == PauseAudit(paused_us, "charges", False, AUDIT.who, AUDIT.why)
    assert ended == PauseAudit(paused_us + 60_000_000, "charges", True, end.who, end.why)
    assert await store.pause_audits("another") == []
    await database.advance(AUDIT_KEEP_US / 1_000_000)
    await store.pause(SERVICE, "refunds", AUDIT)
    assert [each.operation for each in await other_store.pause_audits(SERVICE)] == ["charges", "refunds"]


@pytest.mark.parametrize(
    ("within_seconds", "before_seconds", "after_seconds"),
    [(1_800, 10, 50), (1_800, 1_700, 2_600), (1_800, 0, 60), (86_400, 10, 50)],
)
async def test_a_pause_moves_the_end_by_its_length(
    within_seconds: float, before_seconds: float, after_seconds: float, store: Store, database: Database
) -> None:
    """Whether a sweep kept it from expiring or not, and also after a second pause; what came later gets its part."""
    early, late = hands = hand_of(), hand_of()

    async def ends_us() -> list[int]:
        return [(await store.read(hand.operation_id)).record.delivery.deliver_until_us for hand in hands]

    await do(store, early, accepted_for(within_seconds))
    await store.pause(SERVICE, "charges", AUDIT)
    await database.advance(before_seconds)
    await do(store, late, accepted_for(within_seconds))
    moved = [end + microseconds(after_seconds) for end in await ends_us()]
    moved[0] += microseconds(before_seconds)
    await store.sweep(100)
    await database.advance(after_seconds)
    await store.resume(SERVICE, "charges", AUDIT)
    assert await ends_us() == moved
    await store.pause(SERVICE, "charges", AUDIT)
    await store.sweep(100)
    await database.advance(7)
    await store.resume(SERVICE, "charges", AUDIT)
    assert await ends_us() == [end + microseconds(7) for end in moved]
    assert (await store.sweep(100)).expired == 0
