"""The recovery lease, which is beside the record and never in it, and what is written down when a doubt is ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from gateway.core.operation import Audit, Event, State, in_doubt_since_us, microseconds
from gateway.store.base import Store
from gateway.store.operations import AUDIT_KEEP_US, PROBE_FLOOR_US, RecoveryLease
from tests.conformance.cases import one_of_every_kind
from tests.conformance.hand import LEASE_SECONDS, LEASE_US, PENDING, RESOURCE, Hand, Speech, do, started, state
from tests.conformance.stores import Database
from tests.conformance.test_retention import sweep_all

RECOVERY_LEASE_SECONDS = 30.0
RECOVERY_LEASE_US = microseconds(RECOVERY_LEASE_SECONDS)
PAUSE_SECONDS = 600.0
PAUSE_US = microseconds(PAUSE_SECONDS)
AUDIT_KEEP_SECONDS = AUDIT_KEEP_US / 1_000_000

PROBERS = 20
FINDING = "the status is 500, which no rule matches"


async def in_doubt(store: Store) -> Hand:
    """An operation whose holder said that he does not know."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon)
    return hand


async def ask(store: Store, hand: Hand, *, is_urgent: bool = False) -> RecoveryLease | None:
    return await store.recover(hand.operation_id, hand.token, RECOVERY_LEASE_US, is_urgent=is_urgent)


async def take(store: Store, hand: Hand, *, is_urgent: bool = False) -> RecoveryLease:
    lease = await ask(store, hand, is_urgent=is_urgent)
    assert lease is not None
    return lease


async def test_since_when_it_is_in_doubt(store: Store, database: Database) -> None:
    """Since the first attempt whose effect is not known ended, reported or lapsed; later ones do not change that."""

    async def leases(pause: float, *speeches: Speech, is_swept: bool = False) -> float:
        """How long it has been in doubt, in leases, after a pause of so many and what is said then."""
        await database.advance(pause * LEASE_SECONDS)
        if is_swept:
            await sweep_all(store)
        await do(store, hand, *speeches)
        assert await state(store, hand) is State.IN_DOUBT
        found = (hand.snapshot.now_us - in_doubt_since_us(hand.record)) / LEASE_US
        oldest = (await store.tally()).oldest_in_doubt_seconds / LEASE_SECONDS
        assert round(2 * oldest) == round(2 * found)
        return round(2 * found) / 2

    await do(store, hand := Hand(), Hand.claim)
    assert await leases(0.5, Hand.abandon) == 0
    assert await leases(1, is_swept=True) == 1
    await do(store, hand, Hand.takeover)
    assert await leases(0.5, Hand.abandon) == 1.5
    await do(store, hand, Hand.takeover)
    assert await leases(1.5) == 3
    assert await leases(0, Hand.abandon, is_swept=True) == 3
    await do(store, hand, Hand.disprove, Hand.retry)
    assert await leases(1.5) == 0.5
    assert await leases(0, Hand.abandon, is_swept=True) == 0.5
    await do(store, hand, Hand.prove)


async def pass_floor(database: Database) -> None:
    await database.advance(PROBE_FLOOR_US / 1_000_000)


async def test_of_many_probers_one_gets_the_lease(store: Store, other_store: Store, database: Database) -> None:
    """Of twenty who ask at once through two gateways, some in a skip_delay. One that never comes back keeps the others
    out until its time is over by the store's clock, and one of them gets it then."""
    hand = await in_doubt(store)

    async def granted(*, some_urgent: bool) -> list[RecoveryLease]:
        askers = [((store, other_store)[n % 2], some_urgent and n % 3 == 0) for n in range(PROBERS)]
        asked = [ask(each, hand, is_urgent=is_urgent) for each, is_urgent in askers]
        return [lease for lease in await asyncio.gather(*asked) if lease is not None]

    assert await granted(some_urgent=True) == [RecoveryLease(hand.operation_id, hand.token, 0)]
    await database.advance(RECOVERY_LEASE_SECONDS / 2)
    assert await ask(other_store, hand, is_urgent=True) is None
    await database.advance(RECOVERY_LEASE_SECONDS / 2)
    (lease,) = await granted(some_urgent=False)
    assert lease == RecoveryLease(hand.operation_id, hand.token, 1, lease.background_tries)


async def test_who_waits_gets_it_although_put_off(store: Store, other_store: Store, database: Database) -> None:
    """A pause holds up those whom nobody waits for; a lease that is held holds up everybody."""
    hand = await in_doubt(store)
    await store.put_off(await take(store, hand), PAUSE_US, FINDING)
    await pass_floor(database)
    assert await ask(other_store, hand) is None
    urgent = await take(other_store, hand, is_urgent=True)
    assert urgent.tries == 1
    assert await ask(store, hand, is_urgent=True) is None
    await store.put_off(urgent, PAUSE_US, FINDING)
    await database.advance(PAUSE_SECONDS - 60)
    assert await ask(store, hand) is None
    await database.advance(60)
    assert (await take(store, hand)).tries == 2


async def test_nobody_asks_again_at_once(store: Store, other_store: Store, database: Database) -> None:
    """However many wait, through whatever gateway: a moment after a question nobody asks the next."""
    hand = await in_doubt(store)
    for turn in range(3):
        await store.put_off(await take(store, hand, is_urgent=True), 0, FINDING)
        for urgency in (False, True):
            assert await ask(other_store, hand, is_urgent=urgency) is None
        await pass_floor(database)
        assert turn + 1 == (await store.recovery(hand.operation_id)).tries


async def test_who_waits_lengthens_no_pause(store: Store, database: Database) -> None:
    """Of those before it a lease says how many nobody waited for: they alone make the background's pause longer."""
    hand = await in_doubt(store)
    counted = []
    for is_urgent in (True, False, True, True, False, False):
        lease = await take(store, hand, is_urgent=is_urgent)
        counted.append((lease.tries, lease.background_tries))
        await store.put_off(lease, 0, FINDING)
        await pass_floor(database)
    assert counted == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 2)]


async def test_what_the_last_question_came_to(store: Store, other_store: Store, database: Database) -> None:
    """When it was asked, what was found and when it is asked again can be read; a takeover begins anew."""
    hand = await in_doubt(store)
    assert await store.recovery(hand.operation_id) is None
    lease = await take(store, hand)
    asking = await other_store.recovery(hand.operation_id)
    assert (asking.token, asking.tries, asking.asked_us, asking.finding) == (hand.token, 1, 0, "")
    assert asking.held_until_us > (await store.read(hand.operation_id)).now_us
    await store.put_off(lease, PAUSE_US, FINDING)
    asked = await other_store.recovery(hand.operation_id)
    assert (asked.tries, asked.held_until_us, asked.finding) == (1, 0, FINDING)
    assert asked.put_off_until_us - asked.asked_us == PAUSE_US
    await pass_floor(database)
    await take(store, hand, is_urgent=True)
    again = await store.recovery(hand.operation_id)
    assert (again.tries, again.asked_us, again.finding) == (2, asked.asked_us, FINDING)
    await do(store, hand, Hand.takeover, Hand.abandon)
    await take(store, hand)
    anew = await store.recovery(hand.operation_id)
    assert (anew.token, anew.tries, anew.asked_us, anew.finding) == (hand.token, 1, 0, "")


async def test_a_lease_that_is_over_takes_nothing_from_the_next(store: Store, database: Database) -> None:
    """Whoever gives back too late neither ends the lease that somebody else has by now, nor puts it off."""
    hand = await in_doubt(store)
    late = await take(store, hand)
    await database.advance(RECOVERY_LEASE_SECONDS)
    current = await take(store, hand)
    await store.put_off(late, PAUSE_US, FINDING)
    assert await ask(store, hand, is_urgent=True) is None
    await store.put_off(current, 0, FINDING)
    await store.put_off(late, PAUSE_US, FINDING)
    await pass_floor(database)
    assert (await take(store, hand)).tries == 2


@pytest.mark.parametrize("is_swept", [False, True], ids=["unswept", "swept"])
async def test_doubt_alone_is_recovered(is_swept: bool, store: Store, database: Database) -> None:
    """Of every kind of record, a lapse too, whether or not a sweep has written that down; in every other state nobody
    gets the lease, however urgent."""
    hands = await one_of_every_kind(store, database)
    if is_swept:
        await sweep_all(store)
    for name, hand in hands.items():
        is_doubt = await state(store, hand) is State.IN_DOUBT
        assert (await ask(store, hand, is_urgent=True) is not None) is is_doubt, name
    await sweep_all(store)
    for name, hand in hands.items():
        assert await ask(store, hand, is_urgent=True) is None, name


async def test_only_the_doubt_that_was_read_is_recovered(store: Store, database: Database) -> None:
    """Nobody gets the lease with another token than the record's; a doubt after a takeover is another one."""
    hand = await in_doubt(store)
    for token in (hand.stale_token, hand.future_token):
        assert await store.recover(hand.operation_id, token, RECOVERY_LEASE_US, is_urgent=True) is None
    first = await take(store, hand)
    await do(store, hand, Hand.takeover, Hand.abandon)
    assert await store.recover(hand.operation_id, first.token, RECOVERY_LEASE_US, is_urgent=True) is None
    second = await take(store, hand)
    assert (second.token, second.tries) == (hand.token, 0)
    # The first one's is over, and it cannot touch the second's.
    await store.put_off(first, PAUSE_US, FINDING)
    assert await ask(store, hand, is_urgent=True) is None


async def test_recovering_leaves_the_record_as_it_is(store: Store, database: Database) -> None:
    """State, token and everything else of the record are the same before, during and after; nobody is fenced by it."""
    hand = await in_doubt(store)
    before = (await store.read(hand.operation_id)).record
    for _ in range(3):
        lease = await take(store, hand, is_urgent=True)
        assert (await store.read(hand.operation_id)).record == before
        await store.put_off(lease, PAUSE_US, FINDING)
        assert (await store.read(hand.operation_id)).record == before
        await pass_floor(database)
    await database.advance(PAUSE_SECONDS)
    await sweep_all(store)
    await take(store, hand)
    assert (await store.read(hand.operation_id)).record == before


async def test_leases_of_doubts_that_are_over_are_cleared_away(store: Store, database: Database) -> None:
    """Whether proved, taken over or erased: once a sweep has seen it, no later one has anything to look after."""
    ways: list[tuple[Speech, ...]] = [
        (lambda hand: replace(hand.prove(), remember_us=microseconds(7 * 86_400)),),
        (Hand.takeover, Hand.abandon),
        (Hand.disprove, Hand.erase),
    ]
    for way in ways:
        for _ in range(3):
            hand = await in_doubt(store)
            await take(store, hand)
            await do(store, hand, *way)
    await database.advance(86_400)
    await sweep_all(store)
    await database.advance(86_400)
    assert not (await store.sweep(3)).more


async def test_whoever_ends_a_doubt_is_written_down(store: Store, other_store: Store, database: Database) -> None:
    """Each change says when it was made, by whom, why and on which token; the oldest comes first."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon)
    doubted = hand.token
    await do(store, hand, lambda hand: replace(hand.disprove(), audit=Audit("ana", "not in the ledger")))
    first_us = hand.snapshot.now_us
    await database.advance(60)
    await do(store, hand, Hand.retry, Hand.abandon)
    await do(other_store, hand, lambda hand: replace(hand.prove(), audit=Audit("probe", "GET /charges/1: 200")))
    second_us = hand.snapshot.now_us
    await do(store, hand, lambda hand: replace(hand.purge(), audit=Audit("bo é", "")))
    await do(store, hand, lambda hand: replace(hand.erase(), audit=Audit("", "line\nbreak 'quoted' {x,y}")))
    audits = await store.audits(hand.operation_id)
    assert [(each.event, each.who, each.why, each.token) for each in audits] == [
        (Event.DISPROVE, "ana", "not in the ledger", doubted),
        (Event.PROVE, "probe", "GET /charges/1: 200", hand.token),
        (Event.PURGE, "bo é", "", hand.token),
        (Event.ERASE, "", "line\nbreak 'quoted' {x,y}", hand.token),
    ]
    times = [entry.at_us for entry in audits]
    assert times == sorted(times)
    assert times[:2] == [first_us, second_us]
    assert await other_store.audits(hand.operation_id) == audits
    assert await store.audits(uuid4()) == []
    # Those of all operations are found page by page, the latest first.
    await do(store, other := await in_doubt(store), Hand.prove)
    (first,) = await other_store.latest_audits(None, 1)
    assert (first.operation_id, [first.entry]) == (other.operation_id, await store.audits(other.operation_id))
    second, third = await other_store.latest_audits(first.number, 2)
    assert [(each.operation_id, each.entry) for each in (second, third)] == [
        (hand.operation_id, entry) for entry in reversed(audits[2:])
    ]
    assert len(await other_store.latest_audits(third.number, 10)) == 2


async def test_audits_outlive_their_record_and_not_for_ever(database: Database) -> None:
    """What was done to an erased or collected operation is known for ninety days, to a kept one as long as it is."""
    async with started(database.open_store()) as store:
        erased, collected, kept = await in_doubt(store), await in_doubt(store), await in_doubt(store)
        await do(store, erased, Hand.disprove, Hand.erase)
        await do(store, collected, Hand.disprove)
        await do(store, kept, Hand.disprove, Hand.retry, Hand.abandon)
        await database.advance(AUDIT_KEEP_SECONDS - 3_600)
        await sweep_all(store)
        assert await state(store, collected) is State.ABSENT
        assert [len(await store.audits(hand.operation_id)) for hand in (erased, collected, kept)] == [2, 1, 1]
        await store.close()
        await store.start()
        await database.advance(2 * 3_600)
        await sweep_all(store)
        assert [len(await store.audits(hand.operation_id)) for hand in (erased, collected, kept)] == [0, 0, 1]
        await do(store, kept, Hand.complete)
        await database.advance(2 * AUDIT_KEEP_SECONDS)
        await sweep_all(store)
        assert await store.audits(kept.operation_id) == []


async def test_what_was_made_is_known_until_nothing_was(store: Store) -> None:
    """The resource of a doubt is kept by a takeover, by a completion and by whoever proves it without naming another;
    a later name takes its place, and it is forgotten when it is known that nothing was made."""

    async def made(*speeches: Speech) -> str | None:
        await do(store, hand := Hand(), *speeches)
        assert await state(store, hand) is not State.ABSENT
        return hand.record.resource

    doubted, kept = (Hand.claim, Hand.abandon), (Hand.accept, Hand.dispatch, Hand.abandon)
    assert await made(Hand.claim) is None
    for *then, wanted in (
        (PENDING,),
        (Hand.takeover, PENDING),
        (Hand.takeover, lambda hand: replace(hand.abandon(), resource=None), PENDING),
        (Hand.complete, RESOURCE),
        (lambda hand: replace(hand.complete(), resource=None), PENDING),
        (Hand.takeover, lambda hand: replace(hand.complete_grant(), resource=None), PENDING),
        (Hand.prove, PENDING),
        (lambda hand: replace(hand.prove(), resource=RESOURCE), Hand.purge, RESOURCE),
    ):
        assert await made(*doubted, *then) == wanted
    for ended in (Hand.release, Hand.forget, Hand.disprove):
        assert await made(*doubted, ended) is None
        assert await made(*doubted, ended, Hand.retry) is None
    assert await made(*kept) == PENDING
    for ended in (Hand.postpone, Hand.bury, Hand.reinstate):
        assert await made(*kept, ended) is None
    assert await made(*kept, Hand.complete) == RESOURCE
