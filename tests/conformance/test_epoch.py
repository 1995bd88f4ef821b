"""Every store says which memory it is, keeps a memo beside it, and never gives a token that it was moved beyond."""

from __future__ import annotations

from gateway.core.operation import Fenced
from gateway.store.base import Store
from tests.conformance.hand import Hand, do, started
from tests.conformance.stores import Database


async def test_a_memory_stays_the_same_over_restarts(database: Database) -> None:
    """Two gateways, and one after the other, see one memory; the last token grows with every grant."""
    async with started(database.open_store()) as one:
        before = await one.check_memory()
        await do(one, hand := Hand(), Hand.claim)
        after = await one.check_memory()
    assert before.memo == after.memo == b""
    assert after.token >= hand.token >= before.token
    async with started(database.open_store()) as two:
        again = await two.check_memory()
    assert (again.identity, again.memo) == (before.identity, b"")
    assert again.token >= after.token


async def test_a_memo_is_kept_and_tokens_jump(store: Store, other_store: Store) -> None:
    """What one gateway writes down the other reads; no token up to the one named is given to anybody, and naming a
    lower one takes nothing back."""
    await do(store, hand := Hand(), Hand.claim)
    beyond = hand.token + 1_000_000_000
    await store.begin_epoch(b"\x00lost\xff", beyond)
    seen = await other_store.check_memory()
    assert seen.memo == b"\x00lost\xff"
    assert seen.token >= beyond
    await do(other_store, other := Hand(), Hand.claim)
    await other_store.begin_epoch(b"again", 10)
    await do(other_store, third := Hand(), Hand.claim)
    assert min(third.token, other.token) > beyond


async def test_only_purges_and_erasures_make_another_generation(store: Store, other_store: Store) -> None:
    """Each does, for every gateway, as soon as it is done; nothing else does, a refused one neither."""
    await do(store, hand := Hand(), Hand.claim)
    before = await store.check_memory()
    assert isinstance(await store.apply(hand.purge()), Fenced)
    await do(store, hand, Hand.complete)
    assert (await other_store.check_memory()).generation == before.generation
    seen = {before.generation}
    for verb in (Hand.purge, Hand.erase):
        await do(store, hand, verb)
        seen.add((await other_store.check_memory()).generation)
    assert len(seen) == 3
