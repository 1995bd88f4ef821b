"""Many at once: one grant, no lost update, no order that the table does not have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from gateway.core.operation import Applied, Claim, Command, Fenced, Result, State
from gateway.store.base import Store
from tests.conformance.hand import ANSWER, LEASE_US, OTHER_ANSWER, SAME, Hand, do, increasing, new_identity
from tests.conformance.stores import OF_OWN_TOKENS, Database

CLAIMS = 100


def rivals(hand: Hand, number: int = CLAIMS) -> list[Claim]:
    """First statements of as many attempts on one operation."""
    return [replace(hand.claim(), attempt_id=uuid4(), holder=f"holder-{index}") for index in range(number)]


async def apply_all(stores: list[Store], commands: Sequence[Command]) -> list[Result]:
    """All at the same time, the stores taking turns."""
    return await asyncio.gather(*(stores[index % len(stores)].apply(command) for index, command in enumerate(commands)))


async def test_of_many_claims_on_one_operation_one_is_granted(store: Store, other_store: Store) -> None:
    """A hundred first statements through two gateways get one grant, and everybody else sees the holder's record."""
    hand = Hand()
    claims = rivals(hand)
    results = await apply_all([store, other_store], claims)
    winners = [claim for claim, result in zip(claims, results, strict=True) if isinstance(result, Applied)]
    assert len(winners) == 1
    for result in results:
        assert result.snapshot.record.attempt_id == winners[0].attempt_id
        assert result.snapshot.record.holder == winners[0].holder
        assert result.snapshot.state is State.CLAIMED


async def test_claims_on_many_operations_do_not_disturb_one_another(
    store: Store, other_store: Store, request: pytest.FixtureRequest
) -> None:
    """A hundred operations claimed twice at once have a hundred grants, each with a token of its own, but
    where tokens grow within an operation alone: in the portable dialect, and on Redis."""
    identities = [new_identity() for _ in range(CLAIMS)]
    claims = [Claim(identity, uuid4(), "holder", SAME, LEASE_US) for identity in identities for _ in range(2)]
    random.Random(7).shuffle(claims)
    results = await apply_all([store, other_store], claims)
    assert [result.snapshot.record.identity for result in results] == [claim.identity for claim in claims]
    granted = [result.snapshot.record for result in results if isinstance(result, Applied)]
    assert len(granted) == CLAIMS
    assert {record.identity.operation_id for record in granted} == {each.operation_id for each in identities}
    if request.node.callspec.params["database"] not in OF_OWN_TOKENS:
        assert len({record.token for record in granted}) == CLAIMS


async def test_a_completion_and_claims_at_once_leave_the_answer(store: Store, other_store: Store) -> None:
    """Claims that race with the holder's completion see claimed or completed, and never get a grant."""
    await do(store, hand := Hand(), Hand.claim)
    completion, *results = await asyncio.gather(
        store.apply(hand.complete()), *(other_store.apply(claim) for claim in rivals(hand, 20))
    )
    assert isinstance(completion, Applied)
    assert all(isinstance(result, Fenced) for result in results)
    assert {result.snapshot.state for result in results} <= {State.CLAIMED, State.COMPLETED}
    snapshot = await store.read(hand.operation_id)
    assert snapshot.record.response == ANSWER


async def test_of_two_resolutions_one_counts(store: Store, other_store: Store) -> None:
    """A prove, a disprove and the late answer exclude one another; the record is what the applied one says, and
    each that was applied is written down."""
    for _ in range(20):
        await do(store, hand := Hand(), Hand.claim, Hand.abandon)
        proof, denial, late = await asyncio.gather(
            store.apply(hand.prove()),
            other_store.apply(replace(hand.disprove(), resolution_id=uuid4())),
            store.apply(hand.complete()),
        )
        record = (await store.read(hand.operation_id)).record
        applied = [name for name, it in (("p", proof), ("d", denial), ("c", late)) if isinstance(it, Applied)]
        # A late answer may still come after a disprove.
        assert applied in (["p"], ["d"], ["c"], ["d", "c"])
        assert record.state is (State.RELEASED if applied == ["d"] else State.COMPLETED)
        assert record.response == {"p": OTHER_ANSWER, "d": None, "c": ANSWER}[applied[-1]]
        events = [entry.event.value for entry in await store.audits(hand.operation_id)]
        assert events == [{"p": "prove", "d": "disprove"}[each] for each in applied if each != "c"]


async def test_tokens_increase_whoever_draws_them(store: Store, other_store: Store) -> None:
    """An operation that is claimed and released again and again, through either gateway, never sees a token twice."""
    await do(store, hand := Hand(), Hand.claim)
    for index in range(10):
        elsewhere, here = (store, other_store) if index % 2 else (other_store, store)
        await do(here, hand, Hand.release)
        await do(elsewhere, hand, Hand.retry)
        assert hand.record.state is State.CLAIMED
    assert len(hand.tokens) == 11
    assert increasing(hand.tokens)


async def test_a_statement_whose_answer_was_lost_is_recognised(store: Store, database: Database) -> None:
    """A verb cancelled at any moment and then said again is applied once, and disturbs nobody else."""
    source = random.Random(11)
    for number in range(30):
        hand, neighbour = Hand(), Hand()
        for speech in (Hand.claim, Hand.complete):
            command = speech(hand)
            task = asyncio.ensure_future(store.apply(command))
            beside = asyncio.ensure_future(store.apply(speech(neighbour)))
            for _ in range(source.randrange(number + 1)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            neighbour.see(speech(neighbour), await beside)
            again = await store.apply(command)
            assert isinstance(again, Applied)
            hand.see(command, again)
            assert hand.record.attempts == 1
            assert neighbour.record.state is hand.record.state
        assert len(hand.tokens) == 1
