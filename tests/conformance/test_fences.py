"""What a fence keeps out, written out case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from gateway.core.operation import (
    Abandon,
    Applied,
    Claim,
    Command,
    Complete,
    Disprove,
    Fenced,
    Forget,
    Prove,
    Release,
    Renew,
    State,
    Takeover,
)
from gateway.store.base import Store, StoreError
from tests.conformance.hand import OTHER, Hand, Speech, do, state

HOLDERS: Final[dict[str, Speech]] = {
    "renew": Hand.renew,
    "complete": Hand.complete,
    "release": Hand.release,
    "forget": Hand.forget,
    "abandon": Hand.abandon,
}
READERS: Final[dict[str, Speech]] = {"takeover": Hand.takeover, "prove": Hand.prove, "disprove": Hand.disprove}


async def is_kept_out(store: Store, hand: Hand, command: Command) -> None:
    """The command is fenced, and the record is the same before and after."""
    before = (await store.read(hand.operation_id)).record
    try:
        result = await store.apply(command)
    except StoreError as error:
        pytest.fail(f"fenced off is an answer, and no error: {error}")
    assert isinstance(result, Fenced)
    assert result.snapshot.record is not None
    assert (await store.read(hand.operation_id)).record == before


def by_holder(command: Command, **changes: object) -> Command:
    """The holder's command with another token or attempt."""
    assert isinstance(command, Renew | Complete | Release | Forget | Abandon)
    return replace(command, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", HOLDERS)
async def test_a_superseded_holder_changes_nothing(store: Store, verb: str) -> None:
    """Once the key has another holder, nothing that the former one says has an effect."""
    await do(store, hand := Hand(), Hand.claim)
    token, attempt_id = hand.record.token, hand.record.attempt_id
    await do(store, hand, Hand.release, Hand.retry)
    await is_kept_out(store, hand, by_holder(HOLDERS[verb](hand), token=token, attempt_id=attempt_id))
    await do(store, hand, Hand.complete)


@pytest.mark.parametrize("wrong", ["token", "attempt"])
@pytest.mark.parametrize("verb", HOLDERS)
async def test_both_halves_of_the_fence_count(store: Store, wrong: str, verb: str) -> None:
    """The right token under another attempt, or the right attempt under another token, is not the holder's."""
    await do(store, hand := Hand(), Hand.claim)
    say = HOLDERS[verb](hand)
    if wrong == "token":
        await is_kept_out(store, hand, by_holder(say, token=hand.future_token))
        await is_kept_out(store, hand, by_holder(say, token=hand.stale_token))
    else:
        await is_kept_out(store, hand, by_holder(say, attempt_id=hand.next_id))
    await do(store, hand, Hand.complete)


@pytest.mark.parametrize("verb", READERS)
async def test_what_was_read_of_an_earlier_doubt_does_not_count(store: Store, verb: str) -> None:
    """After a takeover that came into doubt too, whoever read the first doubt neither takes over nor resolves."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon)
    command = READERS[verb](hand)
    assert isinstance(command, Takeover | Prove | Disprove)
    await do(store, hand, Hand.takeover, Hand.abandon)
    ids = {"attempt_id": hand.next_id} if isinstance(command, Takeover) else {"resolution_id": hand.next_id}
    await is_kept_out(store, hand, replace(command, **ids))  # type: ignore[arg-type]
    assert await state(store, hand) is State.IN_DOUBT


async def test_a_released_key_is_for_the_same_request(store: Store) -> None:
    """A different request cannot claim it, also when it read the right token; the same request can."""
    await do(store, hand := Hand(), Hand.claim, Hand.release)
    other = hand.retry()
    assert isinstance(other, Claim)
    await is_kept_out(store, hand, replace(other, fingerprint=OTHER, attempt_id=hand.script.id(7)))
    assert isinstance(await store.apply(hand.retry()), Applied)


@pytest.mark.parametrize("verb", ["release", "forget"])
async def test_a_takeover_cannot_free_the_key(store: Store, verb: str) -> None:
    """That one attempt had no effect says nothing of the attempt before, whose doubt it carries."""
    await do(store, hand := Hand(), Hand.claim, Hand.abandon, Hand.takeover)
    await is_kept_out(store, hand, HOLDERS[verb](hand))
    assert hand.record.carries_doubt
    await do(store, hand, Hand.abandon)
    await is_kept_out(store, hand, HOLDERS[verb](hand))
    assert await state(store, hand) is State.IN_DOUBT


@pytest.mark.parametrize("verb", ["claim", "takeover"])
async def test_a_claim_that_is_held_is_nobody_elses(store: Store, verb: str) -> None:
    """While the lease lasts neither a first statement nor a takeover on the right token gets the operation."""
    await do(store, hand := Hand(), Hand.claim)
    await is_kept_out(store, hand, hand.claim() if verb == "claim" else hand.takeover())


async def test_an_answer_whose_claim_is_over_is_not_written(store: Store) -> None:
    """Having the record of a claim gives no right: what came after the claim refuses the answer, and stays."""
    await do(store, hand := Hand(), Hand.claim)
    late = hand.complete_grant()
    for what_came in (Hand.release, Hand.retry, Hand.complete_grant):
        await do(store, hand, what_came)
        assert isinstance(await store.apply(late), Fenced)
        assert (await store.read(hand.operation_id)).record == hand.record
