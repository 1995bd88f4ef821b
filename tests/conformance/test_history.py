"""What an operation has been through is kept beside its record, in order and bounded, and goes with it."""

from __future__ import annotations

from dataclasses import replace

from gateway.core.operation import HISTORY_FIRST, HISTORY_LAST, PROBE, Entry, Event, History, unpacked_history
from gateway.store.base import Store
from tests.conformance.hand import LEASE_SECONDS, Hand, do, state
from tests.conformance.stores import Database
from tests.conformance.test_recovery import FINDING, PAUSE_US, pass_floor, take
from tests.conformance.test_retention import sweep_all


async def history(store: Store, hand: Hand) -> History:
    await state(store, hand)
    return unpacked_history(hand.record.history)


async def told(store: Store, hand: Hand) -> list[str]:
    entries = (await history(store, hand)).entries
    assert sorted(each.at_us for each in entries) == [each.at_us for each in entries]
    return [str(each.event) for each in entries]


async def test_how_an_attempt_ended(store: Store, other_store: Store) -> None:
    """When it was claimed and when it ended, by whom, under which token, how and why; the next one does not hide it."""
    await do(store, hand := Hand(), Hand.claim)
    first = hand.record
    await do(store, hand, lambda hand: replace(hand.release(), why="answered_503"))
    released_us = hand.snapshot.now_us
    await do(other_store, hand, Hand.retry, Hand.complete)
    assert await told(other_store, hand) == [Event.RELEASE]
    (ended,) = (await history(other_store, hand)).entries
    assert 0 <= released_us - ended.at_us < 1_000_000
    wanted = Entry(Event.RELEASE, ended.at_us, first.token, "answered_503", first.claimed_us, first.holder, "POST")
    assert ended == wanted


async def test_a_doubt_that_was_probed_and_taken_over(store: Store, other_store: Store, database: Database) -> None:
    """Through two gateways: each end of an attempt and each probe, in order; what has an audit is told by that."""
    await do(store, hand := Hand(), Hand.claim)
    await database.advance(LEASE_SECONDS)
    await sweep_all(other_store)
    for _ in range(2):
        await pass_floor(database)
        await other_store.put_off(await take(other_store, hand, is_urgent=True), PAUSE_US, FINDING)
    await do(store, hand, Hand.takeover, Hand.abandon)
    await pass_floor(database)
    await store.put_off(await take(store, hand), PAUSE_US, FINDING)
    await do(other_store, hand, Hand.prove)
    assert await told(store, hand) == [Event.LAPSE, PROBE, PROBE, Event.ABANDON, PROBE]
    entries = (await history(store, hand)).entries
    assert [each.token for each in entries] == [hand.tokens[0]] * 3 + [hand.tokens[1]] * 2
    assert [each.detail for each in entries] == ["", FINDING, FINDING, "reset", FINDING]
    assert [each.event for each in await store.audits(hand.operation_id)] == [Event.PROVE]


async def test_a_probe_before_the_sweep_loses_no_lapse(store: Store, database: Database) -> None:
    """A lapse that no sweep has written yet is told before the probe, and once."""
    await do(store, hand := Hand(), Hand.claim)
    await database.advance(LEASE_SECONDS + 1)
    await store.put_off(await take(store, hand), PAUSE_US, FINDING)
    await sweep_all(store)
    entries = (await history(store, hand)).entries
    assert [each.event for each in sorted(entries, key=lambda each: each.at_us)] == [Event.LAPSE, PROBE]


async def test_a_late_answer(store: Store, database: Database) -> None:
    """The response of a holder whose lease was over does not hide that it was."""
    await do(store, hand := Hand(), Hand.claim)
    await database.advance(LEASE_SECONDS)
    await do(store, hand, Hand.complete_grant)
    assert await told(store, hand) == [Event.LAPSE]


async def test_it_is_bounded(store: Store) -> None:
    """The first and the last are kept, and how many were dropped between them; long words are cut."""
    await do(store, hand := Hand(), Hand.claim)
    number = HISTORY_FIRST + HISTORY_LAST + 7
    for tries in range(number):
        release = replace(hand.release(), why=f"answered_{500 + tries}")
        await do(store, hand, lambda _, release=release: release, Hand.retry)
    found = await history(store, hand)
    assert found.dropped == 7
    kept_ones = [*range(HISTORY_FIRST), *range(number - HISTORY_LAST, number)]
    assert [each.detail for each in found.entries] == [f"answered_{500 + tries}" for tries in kept_ones]
    await do(store, wordy := Hand(), Hand.claim, lambda hand: replace(hand.release(), why="\u00e9\x00\ud800" * 10_000))
    await state(store, wordy)
    assert len(wordy.record.history) < 2_000


async def test_probes_leave_room_for_attempts(store: Store, database: Database) -> None:
    """However often it is probed, what ended the attempts stays."""
    await do(store, hand := Hand(), Hand.claim)
    for _ in range(HISTORY_FIRST):
        await do(store, hand, Hand.release, Hand.retry)
    await do(store, hand, Hand.abandon)
    for _ in range(HISTORY_LAST + 5):
        await pass_floor(database)
        await store.put_off(await take(store, hand, is_urgent=True), 0, FINDING)
    assert await told(store, hand) == [*[Event.RELEASE] * HISTORY_FIRST, Event.ABANDON, *[PROBE] * (HISTORY_LAST - 1)]
    assert (await history(store, hand)).dropped == 6
