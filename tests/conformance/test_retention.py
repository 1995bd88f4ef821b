"""What ends with time, and what never does: windows, tombstones, the sweep, and tokens that outlive their record."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.core.operation import Claim, Lapsed, State
from gateway.store.base import NotApplied, Store
from gateway.store.operations import LAPSES_NAMED_MAX, Swept
from tests.conformance.cases import one_of_every_kind
from tests.conformance.hand import (
    LEASE_SECONDS,
    LEASE_US,
    OTHER,
    REMEMBER_SECONDS,
    REPLAY_SECONDS,
    SAME,
    Hand,
    Script,
    as_kept_in,
    do,
    increasing,
    new_identity,
    state,
)
from tests.conformance.stores import Database


async def sweep_all(store: Store, limit: int = 100) -> Swept:
    """Passes until nothing is left to write down; their sum."""
    total = Swept(more=True)
    while total.more:
        swept = await store.sweep(limit)
        assert swept.lapsed + swept.retired + swept.collected <= 2 * limit
        total += swept
    return total


async def test_a_token_is_never_used_again_after_the_record_is_gone(store: Store, database: Database) -> None:
    """Collected or erased, swept or not: the next claim has a higher token than all before."""
    await do(store, hand := Hand(), Hand.claim, Hand.complete)
    await database.advance(2 * REMEMBER_SECONDS)
    await do(store, hand, Hand.claim, Hand.release, Hand.erase, Hand.claim, Hand.complete, Hand.purge, Hand.erase)
    await do(store, hand, Hand.claim, Hand.release)
    await database.advance(2 * REMEMBER_SECONDS)
    await sweep_all(store)
    await do(store, hand, Hand.claim)
    assert len(hand.tokens) == 5
    assert increasing(hand.tokens)
    assert hand.record.attempts == 1


async def test_the_successor_of_a_forgotten_operation_is_a_new_one(store: Store, database: Database) -> None:
    """A claim on a key whose time is over, swept or not, has its own identity and history; a retry has not."""
    kept, swept, unswept = Hand(), Hand(), Hand()

    def renamed(hand: Hand) -> Claim:
        claim = hand.claim()
        return replace(claim, identity=replace(claim.identity, route="renamed", key=None), fingerprint=OTHER)

    await do(store, swept, Hand.claim, Hand.complete)
    await database.advance(2 * REMEMBER_SECONDS)
    await sweep_all(store)
    await do(store, unswept, Hand.claim, Hand.complete)
    await database.advance(2 * REMEMBER_SECONDS)
    await do(store, kept, Hand.claim, Hand.release)
    for hand in (swept, unswept):
        await do(store, hand, renamed)
        assert await state(store, hand) is State.CLAIMED
        assert hand.record.identity == renamed(hand).identity
        assert (hand.record.fingerprint, hand.record.attempts) == (OTHER, 1)
        assert hand.record.first_claimed_us == hand.record.claimed_us
        assert (hand.record.response, hand.record.completed_us) == (None, None)
    await do(store, kept, lambda hand: replace(renamed(hand), read_token=hand.token, fingerprint=SAME))
    assert kept.record.identity == kept.script.identity


async def test_a_sweep_writes_down_what_everybody_already_sees(store: Store, database: Database) -> None:
    """Every kind of record reads the same before and after it was swept, and a second sweep finds nothing. A claim
    within its lease and a doubt of any age stay what they are."""
    hands = list((await one_of_every_kind(store, database)).values())
    states = [await state(store, hand) for hand in hands]
    before = [hand.record for hand in hands]
    swept = await sweep_all(store)
    assert min(swept.lapsed, swept.retired, swept.collected) > 0
    assert [await state(store, hand) for hand in hands] == states
    after = [hand.record for hand in hands]
    assert after == list(map(as_kept_in, after, before))
    assert await store.sweep(100) == Swept()
    open_hands = [hand for hand in hands if hand.snapshot.state in (State.CLAIMED, State.IN_DOUBT)]
    for hand in open_hands:
        if hand.snapshot.state is State.CLAIMED:
            await do(store, hand, Hand.renew, Hand.abandon)
    await database.advance(100 * REMEMBER_SECONDS)
    assert (await sweep_all(store)).lapsed == 0
    for hand in open_hands:
        assert await state(store, hand) is State.IN_DOUBT
        await do(store, hand, Hand.takeover)


async def test_a_swept_lapse_is_still_its_holders(store: Store, database: Database) -> None:
    """After the sweep wrote the lapse down a renewal is lapsed, a repeated claim too, and the late answer counts."""
    await do(store, hand := Hand(), Hand.claim)
    await database.advance(2 * LEASE_SECONDS)
    assert await sweep_all(store) == Swept(lapsed=1)
    for late in (hand.renew(), hand.last):
        assert isinstance(await store.apply(late), Lapsed)
    await do(store, hand, Hand.complete)


async def test_a_sweep_names_what_lapsed(store: Store, database: Database) -> None:
    """Route and id of each claim that it found over, up to a bound, and of nothing else."""
    few, many = [Hand() for _ in range(3)], [Hand() for _ in range(LAPSES_NAMED_MAX + 17)]
    await do(store, Hand(), Hand.claim, Hand.complete)
    for hands, pause_seconds in ((few, REPLAY_SECONDS + 60), (many, 2 * LEASE_SECONDS)):
        for hand in hands:
            await do(store, hand, Hand.claim)
        await database.advance(pause_seconds)
        swept = await sweep_all(store, 500)
        assert (swept.lapsed, len(swept.named)) == (len(hands), min(len(hands), LAPSES_NAMED_MAX))
        assert set(swept.named) <= {("create_payment", hand.operation_id) for hand in hands}


async def test_two_sweepers_do_not_do_the_same_twice(store: Store, other_store: Store, database: Database) -> None:
    """However two gateways sweep at the same time, every record is written down once. A pass writes down no more than
    its limit, says that there is more, and passes add up to all."""
    for said, counted in (((Hand.claim,), "lapsed"), ((Hand.claim, Hand.release), "collected")):
        await asyncio.gather(*(do(store, Hand(), *said) for _ in range(95)))
        await database.advance(2 * LEASE_SECONDS if counted == "lapsed" else 2 * REMEMBER_SECONDS)
        first = await store.sweep(10)
        assert first == Swept(**{counted: 10}, more=True)
        turns = [(store, other_store)[turn % 2].sweep(10) for turn in range(8)]
        # Who loses against the others each time it tries has written nothing.
        swept = [
            each for each in await asyncio.gather(*turns, return_exceptions=True) if not isinstance(each, NotApplied)
        ]
        passes = [first, *swept, await sweep_all(store, 10)]
        assert sum(getattr(each, counted) for each in passes) == 95


async def test_a_claim_and_a_sweep_at_once(store: Store, other_store: Store, database: Database) -> None:
    """A sweep that collects beside claims on the same keys loses no claim and no token order."""
    hands = [Hand() for _ in range(20)]
    await asyncio.gather(*(do(store, hand, Hand.claim, Hand.complete) for hand in hands))
    await database.advance(2 * REMEMBER_SECONDS)
    await asyncio.gather(sweep_all(other_store, 5), *(do(store, hand, Hand.claim) for hand in hands))
    for hand in hands:
        assert await state(store, hand) is State.CLAIMED
        assert increasing(hand.tokens)
        assert len(hand.tokens) == 2


async def test_the_tally_counts_what_is_in_doubt(store: Store, database: Database) -> None:
    """In doubt by abandon, by a swept lapse and by one nobody swept: counted by route, with the oldest's age."""

    async def tally() -> tuple[dict[str, int], int]:
        """How many by route, and the age of the oldest in leases."""
        taken = await store.tally()
        return dict(taken.in_doubt), round(taken.oldest_in_doubt_seconds / LEASE_SECONDS)

    assert await tally() == ({}, 0)
    abandoned, lapsed, done = (Hand() for _ in range(3))
    refund = Hand(Script(new_identity(route="refund")))
    for hand in (abandoned, refund):
        await do(store, hand, Hand.claim, Hand.abandon)
    await do(store, lapsed, Hand.claim)
    await do(store, done, Hand.claim, lambda hand: replace(hand.complete(), replay_us=3 * LEASE_US))
    await database.advance(2 * LEASE_SECONDS)
    await sweep_all(store)
    # Two that lapse later, which nobody sweeps.
    await do(store, Hand(), Hand.claim)
    await database.advance(LEASE_SECONDS / 2)
    await do(store, Hand(), Hand.claim)
    await do(store, Hand(), Hand.claim, Hand.abandon)
    await database.advance(1.5 * LEASE_SECONDS)
    await do(store, Hand(), Hand.claim)
    assert await tally() == ({"create_payment": 5, "refund": 1}, 4)
    await do(store, refund, Hand.disprove)
    assert await tally() == ({"create_payment": 5}, 4)
    await do(store, abandoned, Hand.disprove)
    await do(store, lapsed, Hand.disprove)
    assert await tally() == ({"create_payment": 3}, 2)
