"""A store as a thing that starts, shares, wakes, agrees, stops and starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gateway.core.operation import Fenced, State
from gateway.store.base import NotApplied, Query, RecipeConflict, RecoveryLease, Store
from gateway.store.postgres import PostgresStore
from tests.conformance.hand import (
    ANSWER,
    LEASE_SECONDS,
    REMEMBER_SECONDS,
    SERVICE,
    Hand,
    Script,
    do,
    increasing,
    new_identity,
    state,
)
from tests.conformance.stores import Database
from tests.conformance.test_find import one_of_every_kind

# Long enough that only a missed wake-up reaches it.
PATIENCE_SECONDS = 20.0

VERBS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "apply": lambda store: store.apply(Hand().claim()),
    "read": lambda store: store.read(Hand().operation_id),
    "sweep": lambda store: store.sweep(10),
    "tally": lambda store: store.tally(),
    "agree_recipes": lambda store: store.agree_recipes(SERVICE, {}, frozenset()),
    "strays": lambda store: store.strays(SERVICE, ()),
    "find": lambda store: store.find(Query(frozenset(State))),
    "recover": lambda store: store.recover(Hand().operation_id, 1, 1, is_urgent=True),
    "put_off": lambda store: store.put_off(RecoveryLease(Hand().operation_id, 1, 0), 1),
    "audits": lambda store: store.audits(Hand().operation_id),
    "look_epoch": lambda store: store.look_epoch(),
    "begin_epoch": lambda store: store.begin_epoch(b"", 1),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_store_that_was_not_started_changes_nothing(verb: str, database: Database) -> None:
    """Before `start` every verb says that it was not applied."""
    with pytest.raises(NotApplied):
        await VERBS[verb](database.open_store())


async def test_a_store_that_never_started_can_be_closed(database: Database) -> None:
    """Closing what was not opened is no error, nor is closing twice."""
    store = database.open_store()
    await store.close()
    await store.start()
    await store.close()
    await store.close()


async def test_two_stores_on_the_same_data_see_one_another(store: Store, other_store: Store) -> None:
    """What one gateway was told is what the other reads, at once."""
    hand = Hand()
    await do(store, hand, Hand.claim)
    assert await state(other_store, hand) is State.CLAIMED
    assert isinstance(await other_store.apply(hand.claim()), Fenced)
    await do(other_store, hand, Hand.complete)
    assert await state(store, hand) is State.COMPLETED
    assert hand.record is not None
    assert hand.record.response == ANSWER


async def test_a_restart_forgets_nothing(database: Database) -> None:
    """Every kind of record, and the order of tokens, outlives the store object that wrote it."""
    claimed, completed, released, doubted, tombstone, gone = hands = [Hand() for _ in range(6)]
    store = database.open_store()
    await store.start()
    for hand in hands:
        await do(store, hand, Hand.claim)
    await do(store, completed, Hand.complete)
    await do(store, released, Hand.release)
    await do(store, doubted, Hand.abandon)
    await do(store, tombstone, Hand.complete, Hand.purge)
    await do(store, gone, Hand.release, Hand.erase)
    before = [hand.record for hand in hands]
    await store.close()

    store = database.open_store()
    await store.start()
    try:
        assert [await state(store, hand) for hand in hands] == [
            State.CLAIMED, State.COMPLETED, State.RELEASED, State.IN_DOUBT, State.TOMBSTONE, State.ABSENT,
        ]  # fmt: skip
        assert [hand.record for hand in hands] == before
        await do(store, claimed, Hand.renew, Hand.release)
        await do(store, gone, Hand.claim)
        assert increasing(gone.tokens)
        assert gone.token > max(token for hand in hands for token in hand.tokens if hand is not gone)
    finally:
        await store.close()


async def test_a_store_object_can_be_started_again(database: Database) -> None:
    """Close and start on one object is a restart."""
    hand = Hand()
    store = database.open_store()
    for speech in (Hand.claim, Hand.renew, Hand.complete):
        await store.start()
        await do(store, hand, speech)
        await store.close()
        with pytest.raises(NotApplied):
            await store.read(hand.operation_id)


async def test_a_change_wakes_who_waits(store: Store) -> None:
    """A completion through the same store ends the wait with news."""
    hand, bystander = Hand(), Hand()
    await do(store, hand, Hand.claim)
    await do(store, bystander, Hand.claim)
    if isinstance(store, PostgresStore):
        # Everybody is woken when it begins to listen.
        await store.wait_listening()
    async with store.watch(hand.operation_id) as watch, store.watch(bystander.operation_id) as quiet:
        waiting = asyncio.create_task(watch.wait_changed(PATIENCE_SECONDS))
        await do(store, hand, Hand.complete)
        assert await waiting is True
        assert await quiet.wait_changed(0.05) is False


async def test_a_change_between_opening_and_waiting_is_not_missed(store: Store) -> None:
    """Whoever opens a watch, reads, and then waits, hears of what happened in between."""
    hand = Hand()
    await do(store, hand, Hand.claim)
    async with store.watch(hand.operation_id) as watch:
        await do(store, hand, Hand.complete)
        assert await watch.wait_changed(PATIENCE_SECONDS) is True


async def test_without_news_a_wait_ends_at_its_timeout(store: Store) -> None:
    """No change, no news: the wait says so, and can be repeated."""
    hand = Hand()
    await do(store, hand, Hand.claim)
    async with store.watch(hand.operation_id) as watch:
        # News of the claim itself may still be on its way from a server.
        while await watch.wait_changed(0.2):
            pass
        assert await watch.wait_changed(0.01) is False
        assert await watch.wait_changed(0.0) is False


async def test_many_wait_for_one(store: Store) -> None:
    """Every waiter of an operation is woken, and one that gave up disturbs none."""
    hand = Hand()
    await do(store, hand, Hand.claim)

    async def wait() -> bool:
        async with store.watch(hand.operation_id) as watch:
            ready.release()
            return await watch.wait_changed(PATIENCE_SECONDS)

    ready = asyncio.Semaphore(0)
    waiters = [asyncio.create_task(wait()) for _ in range(20)]
    for _ in waiters:
        await ready.acquire()
    waiters[3].cancel()
    await do(store, hand, Hand.release)
    woken = await asyncio.gather(*waiters, return_exceptions=True)
    assert [answer for index, answer in enumerate(woken) if index != 3] == [True] * 19
    assert isinstance(woken[3], asyncio.CancelledError)


async def test_recipes_are_agreed_on_once_and_kept(database: Database, store: Store) -> None:
    """A first recipe is remembered, the same is fine again, and another one is a conflict while keys are alive."""
    operation = "charges"
    hand, neighbour = Hand(), Hand(Script(new_identity(operation="refunds")))
    assert await store.agree_recipes(SERVICE, {operation: b"one", "refunds": b"r"}, frozenset()) == []
    await do(store, hand, Hand.claim, Hand.complete)
    await do(store, neighbour, Hand.claim)
    assert await store.agree_recipes(SERVICE, {operation: b"one"}, frozenset()) == []
    conflict = [RecipeConflict(operation, 1)]
    assert await store.agree_recipes(SERVICE, {operation: b"two", "new": b"n"}, frozenset()) == conflict
    # Nothing of a refused agreement was remembered.
    assert await store.agree_recipes(SERVICE, {"new": b"another", operation: b"one"}, frozenset()) == []
    assert await store.agree_recipes(SERVICE, {operation: b"two"}, frozenset((operation,))) == []
    assert await store.agree_recipes(SERVICE, {operation: b"one"}, frozenset(("refunds",))) == conflict
    await database.advance(2 * REMEMBER_SECONDS)
    assert await store.agree_recipes(SERVICE, {operation: b"one"}, frozenset()) == []


async def test_what_is_in_doubt_keeps_its_recipe_alive(database: Database, store: Store) -> None:
    """A key in doubt is never too old to be lost by another way of making identities."""
    hand = Hand()
    await store.agree_recipes(SERVICE, {"charges": b"one"}, frozenset())
    await do(store, hand, Hand.claim)
    await database.advance(100 * LEASE_SECONDS)
    assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset()) == [RecipeConflict("charges", 1)]


async def test_every_key_that_is_remembered_is_alive(database: Database, store: Store) -> None:
    """Of whatever kind its record is, a key counts as long as a read finds it, and not a moment longer."""
    await store.agree_recipes(SERVICE, {"charges": b"one"}, frozenset())
    hands = [*(await one_of_every_kind(store, database)).values(), Hand(), Hand()]
    *_, only_replayed, over = hands
    await do(store, only_replayed, Hand.claim, lambda hand: replace(hand.complete(), remember_us=0))
    await do(store, over, Hand.claim, lambda hand: replace(hand.complete(), replay_us=0, remember_us=0))
    alive = [hand for hand in hands if await state(store, hand) is not State.ABSENT]
    assert only_replayed in alive
    assert over not in alive
    assert await store.strays(SERVICE, ()) == {"charges": len(alive)}


async def test_recipes_outlive_a_restart(database: Database) -> None:
    """The next start is held to what the last one agreed on."""
    store = database.open_store()
    await store.start()
    await store.agree_recipes(SERVICE, {"charges": b"one"}, frozenset())
    await do(store, Hand(), Hand.claim)
    await store.close()
    await store.start()
    try:
        assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset()) == [RecipeConflict("charges", 1)]
    finally:
        await store.close()


async def test_services_agree_each_for_itself(database: Database, store: Store) -> None:
    """Services with an operation of one name have a recipe each, and of living keys only their own speak against it."""
    books = Hand(Script(new_identity(service="books")))
    for service in (SERVICE, "books"):
        assert await store.agree_recipes(service, {"charges": service.encode()}, frozenset()) == []
    await do(store, books, Hand.claim)
    for service in (SERVICE, "books"):
        assert await store.agree_recipes(service, {"charges": service.encode()}, frozenset()) == []
    assert await store.agree_recipes(SERVICE, {"charges": b"two"}, frozenset()) == []
    assert await store.agree_recipes("books", {"charges": b"two"}, frozenset()) == [RecipeConflict("charges", 1)]


async def test_a_service_that_may_be_another_under_a_new_name(store: Store) -> None:
    """Living keys of an operation speak against a service that nobody knows, until somebody accepts it."""
    await store.agree_recipes(SERVICE, {"charges": b"one", "refunds": b"one"}, frozenset())
    await do(store, Hand(), Hand.claim)
    recipes = {"charges": b"two", "refunds": b"two"}
    conflict = [RecipeConflict("charges", 1, (SERVICE,))]
    assert await store.agree_recipes("store", recipes, frozenset()) == conflict
    assert await store.agree_recipes("store", recipes, frozenset(("charges",))) == []
    assert await store.agree_recipes("store", recipes, frozenset()) == []


async def test_an_operation_that_came_from_another_service(store: Store) -> None:
    """Living keys of an operation speak against one of its name that is new to a service which is known."""
    await store.agree_recipes("store", {"refunds": b"two"}, frozenset())
    await store.agree_recipes(SERVICE, {"charges": b"one"}, frozenset())
    await do(store, Hand(), Hand.claim)
    recipes = {"charges": b"two", "refunds": b"two"}
    conflict = [RecipeConflict("charges", 1, (SERVICE,))]
    assert await store.agree_recipes("store", recipes, frozenset()) == conflict
    assert await store.agree_recipes("store", recipes, frozenset(("charges",))) == []
    assert await store.agree_recipes("store", recipes, frozenset()) == []


async def test_strays_are_living_keys_that_nobody_would_find(database: Database, store: Store) -> None:
    """Of operation names that are gone the service's own living keys are counted, and of no others."""
    await store.agree_recipes(SERVICE, {"charges": b"one", "refunds": b"one", "payouts": b"one"}, frozenset())
    await store.agree_recipes("books", {"charges": b"two"}, frozenset())
    await do(store, Hand(), Hand.claim, Hand.complete)
    await do(store, Hand(), Hand.claim, Hand.complete)
    await do(store, Hand(Script(new_identity(service="books"))), Hand.claim)
    await do(store, Hand(Script(new_identity(operation="refunds"))), Hand.claim, Hand.complete)
    assert await store.strays(SERVICE, ("refunds",)) == {"charges": 2}
    assert await store.strays(SERVICE, ("refunds", "charges")) == {}
    assert await store.strays("books", ()) == {"charges": 1}
    await database.advance(2 * REMEMBER_SECONDS)
    assert await store.strays(SERVICE, ("refunds",)) == {}
