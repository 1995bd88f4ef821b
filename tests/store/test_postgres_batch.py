"""What is told of a statement on Postgres that did something else than the table of the lifecycle says."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.operation import State
from gateway.store.base import Indefinite, NotApplied, StoreError
from tests.conformance.hand import Hand, Speech, do, state
from tests.store.postgres_sessions import opened, session


def on_update(body: str, table: str = "operation") -> str:
    """SQL for a trigger of somebody else on every change of a record or of its delivery."""
    return (
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {body} END $$;"
        f"CREATE TRIGGER meddle BEFORE UPDATE ON idempotency_gateway.{table} FOR EACH ROW EXECUTE FUNCTION meddle()"
    )


@pytest.mark.parametrize(
    ("speech", "told"),
    [
        (Hand.complete, Indefinite),
        (Hand.complete_grant, Indefinite),
        # Not committed, so it is known.
        (Hand.renew, NotApplied),
        (Hand.takeover, NotApplied),
    ],
)
async def test_a_change_that_was_swallowed_is_not_told_as_made(
    speech: Speech, told: type[StoreError], postgres_url: str
) -> None:
    """Where a trigger undoes what a statement did, nobody in the batch hears that it was done."""
    async with opened(postgres_url) as store, session(postgres_url) as connection:
        hands = [Hand(), Hand()]
        for hand in hands:
            await do(store, hand, Hand.claim)
            if speech is Hand.takeover:
                await do(store, hand, Hand.abandon)
        await connection.execute(on_update("RETURN NULL;"))
        results = await asyncio.gather(*(store.apply(speech(hand)) for hand in hands), return_exceptions=True)
        assert [type(each) for each in results] == [told] * 2
        expected = State.IN_DOUBT if speech is Hand.takeover else State.CLAIMED
        assert [await state(store, hand) for hand in hands] == [expected] * 2


@pytest.mark.parametrize("table", ["operation", "delivery"])
async def test_a_dispatch_that_was_swallowed_is_not_told_as_made(table: str, postgres_url: str) -> None:
    """Where a trigger undoes what it wrote to either table, nothing of it stays."""
    async with opened(postgres_url) as store, session(postgres_url) as connection:
        hand = Hand()
        await do(store, hand, Hand.accept)
        await connection.execute(on_update("RETURN NULL;", table))
        with pytest.raises(NotApplied, match="other records"):
            await store.apply(hand.dispatch())
        assert await state(store, hand) is State.ACCEPTED


async def test_a_grant_on_another_record_than_was_seen_is_not_told(postgres_url: str) -> None:
    """A claim whose number of attempts does not follow from the record before it is no grant that anybody acts on."""
    async with opened(postgres_url) as store, session(postgres_url) as connection:
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.release)
        await connection.execute(on_update("NEW.attempts := NEW.attempts + 1; RETURN NEW;"))
        with pytest.raises(Indefinite, match="did not return"):
            await store.apply(hand.retry())
