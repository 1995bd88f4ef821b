"""What a fence keeps out, written out case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from gateway.core.operation import Applied, Command, Fenced, State
from gateway.store.base import Store, StoreError
from tests.conformance.hand import OTHER, Hand, Speech, do, state

HOLDERS: Final[tuple[Speech, ...]] = (Hand.renew, Hand.complete, Hand.release, Hand.forget, Hand.abandon)


async def is_kept_out(store: Store, hand: Hand, command: Command) -> None:
    """The command is fenced, and the record is the same before and after."""
    before = (await store.read(hand.operation_id)).record
    try:
        result = await store.apply(command)
    except StoreError as error:
        pytest.fail(f"fenced off is an answer, and no error: {error}")
    assert isinstance(result, Fenced), command
    assert result.snapshot.record is not None
    assert (await store.read(hand.operation_id)).record == before, command


async def test_a_superseded_holder_changes_nothing(store: Store) -> None:
    for say in HOLDERS:
        await do(store, hand := Hand(), Hand.claim)
        former = say(hand)
        await do(store, hand, Hand.release, Hand.retry)
        await is_kept_out(store, hand, former)
        await do(store, hand, Hand.complete)


@pytest.mark.parametrize("wrong", ["token", "attempt"])
async def test_both_halves_of_the_fence_count(store: Store, wrong: str) -> None:
    """The right token under another attempt, or the right attempt under another token, is not the holder's."""
    for say in HOLDERS:
        await do(store, hand := Hand(), Hand.claim)
        if wrong == "token":
            await is_kept_out(store, hand, replace(say(hand), token=hand.future_token))
            await is_kept_out(store, hand, replace(say(hand), token=hand.stale_token))
        else:
            await is_kept_out(store, hand, replace(say(hand), attempt_id=hand.next_id))
        await do(store, hand, Hand.complete)


@pytest.mark.parametrize("verb", ["takeover", "prove", "disprove"])
async def test_what_was_read_of_an_earlier_doubt_does_not_count(store: Store, verb: str) -> None:
    """After a takeover that came into doubt too, whoever read the first doubt neither takes over nor resolves."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon)
    command = getattr(hand, verb)()
    await do(store, hand, Hand.takeover, Hand.abandon)
    own_id = "attempt_id" if verb == "takeover" else "resolution_id"
    await is_kept_out(store, hand, replace(command, **{own_id: hand.next_id}))
    assert await state(store, hand) is State.IN_DOUBT


async def test_a_released_key_is_for_the_same_request(store: Store) -> None:
    """A different request cannot claim it, also when it read the right token; the same request can."""
    await do(store, hand := Hand(), Hand.claim, Hand.release)
    await is_kept_out(store, hand, replace(hand.retry(), fingerprint=OTHER, attempt_id=hand.script.id(7)))
    assert isinstance(await store.apply(hand.retry()), Applied)


@pytest.mark.parametrize("verb", ["release", "forget"])
async def test_a_takeover_cannot_free_the_key(store: Store, verb: str) -> None:
    """That one attempt had no effect says nothing of the attempt before, whose doubt it carries."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon, Hand.takeover)
    await is_kept_out(store, hand, getattr(hand, verb)())
    assert hand.record.carries_doubt
    await do(store, hand, Hand.abandon)
    await is_kept_out(store, hand, getattr(hand, verb)())
    assert await state(store, hand) is State.IN_DOUBT


async def test_a_claim_that_is_held_is_nobody_elses(store: Store) -> None:
    """While the lease lasts neither a first statement nor a takeover on the right token gets the operation."""
    await do(store, hand := Hand(), Hand.claim)
    for say in (Hand.claim, Hand.takeover):
        await is_kept_out(store, hand, say(hand))


async def test_an_answer_whose_claim_is_over_is_not_written(store: Store) -> None:
    """Having the record of a claim gives no right: what came after the claim refuses the answer, and stays."""
    await do(store, hand := Hand(), Hand.claim)
    late = hand.complete_grant()
    for what_came in (Hand.release, Hand.retry, Hand.complete_grant):
        await do(store, hand, what_came)
        assert isinstance(await store.apply(late), Fenced)
        assert (await store.read(hand.operation_id)).record == hand.record
