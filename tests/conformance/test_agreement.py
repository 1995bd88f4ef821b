"""What a store remembers of the operations that gateways serve, and which start it refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.core.operation import State
from gateway.store.agreement import RUNNING_US
from gateway.store.base import Store
from gateway.store.operations import Agreement, Living, Neighbour, RecipeConflict, Serving
from tests.conformance.cases import one_of_every_kind
from tests.conformance.hand import (
    LEASE_SECONDS,
    REMEMBER_SECONDS,
    SERVICE,
    Hand,
    Script,
    Speech,
    do,
    new_identity,
    started,
    state,
)
from tests.conformance.stores import Database
from tests.support.serving import serving

FINE = Agreement()
OTHER = UUID(int=2)
RUNNING_SECONDS = RUNNING_US / 1_000_000

CHARGES = [("POST /charges", "charges")]
RENAMED = [("POST /charges", "create_charge")]


def recipes(accepted: frozenset[str] = frozenset(), service: str = SERVICE, **found: bytes) -> Serving:
    """A gateway whose operations no route leads to: their recipes alone count."""
    return serving(recipes=found, accepted=accepted, service=service)


def of(operation: str, service: str = SERVICE) -> Hand:
    return Hand(Script(new_identity(operation=operation, service=service)))


async def conflicts(store: Store, wanted: Serving) -> list[tuple[str, str, int, tuple[str, ...], bool]]:
    """Service, operation, living keys, heirs, and whether it is served, of all that speaks against it."""
    agreement = await store.compare_configuration(wanted)
    return [
        (found.service, found.operation, found.living.keys, found.heirs, found.is_served)
        for found in agreement.conflicts
    ]


async def shop_with_a_key(store: Store) -> None:
    assert await store.compare_configuration(serving(CHARGES)) == FINE
    await do(store, of("charges"), Hand.claim, Hand.complete)


async def test_recipes_are_agreed_on_once_and_kept(database: Database, store: Store) -> None:
    """A first recipe is remembered, the same is fine again, and another one is a conflict while keys are alive."""
    assert await store.compare_configuration(recipes(charges=b"one", refunds=b"r")) == FINE
    await do(store, of("charges"), Hand.claim, Hand.complete)
    await do(store, of("refunds"), Hand.claim)
    assert await store.compare_configuration(recipes(charges=b"one")) == FINE
    conflict = [(SERVICE, "charges", 1, (), False)]
    assert await conflicts(store, recipes(charges=b"two", new=b"n")) == conflict
    async with started(database.open_store()) as later:
        assert await conflicts(later, recipes(charges=b"two")) == conflict
    # Nothing of a refused agreement was remembered.
    assert await store.compare_configuration(recipes(new=b"another", charges=b"one")) == FINE
    assert await store.compare_configuration(recipes(frozenset(("charges",)), charges=b"two")) == FINE
    assert await conflicts(store, recipes(frozenset(("refunds",)), charges=b"one")) == conflict
    await database.advance(2 * REMEMBER_SECONDS)
    assert await store.compare_configuration(recipes(charges=b"one")) == FINE


NEVER_OVER: tuple[tuple[Speech, ...], ...] = ((Hand.claim,), (Hand.accept,), (Hand.accept, Hand.dispatch, Hand.bury))


async def test_what_has_no_end_keeps_its_recipe_alive(database: Database, store: Store) -> None:
    """Such a key is never too old to be lost by another way of making identities, and nobody knows for how long: in
    doubt, expired, or a dead letter."""
    for number, history in enumerate(NEVER_OVER):
        await store.compare_configuration(recipes(**{f"kind{number}": b"one"}))
        await do(store, of(f"kind{number}"), *history)
        await database.advance(100 * LEASE_SECONDS)
        agreement = await store.compare_configuration(recipes(**{f"kind{number}": b"two"}))
        assert agreement == Agreement((RecipeConflict(SERVICE, f"kind{number}", Living(1, None)),))


async def test_every_key_that_is_remembered_is_alive(database: Database, store: Store) -> None:
    """Of whatever kind its record is, a key counts as long as a read finds it, and not a moment longer."""
    await store.compare_configuration(recipes(charges=b"one"))
    hands = [*(await one_of_every_kind(store, database)).values(), Hand(), Hand()]
    *_, only_replayed, over = hands
    await do(store, only_replayed, Hand.claim, lambda hand: replace(hand.complete(), remember_us=0))
    await do(store, over, Hand.claim, lambda hand: replace(hand.complete(), replay_us=0, remember_us=0))
    alive = [hand for hand in hands if await state(store, hand) is not State.ABSENT]
    assert only_replayed in alive
    assert over not in alive
    assert await store.count_without_route(SERVICE, ()) == {"charges": len(alive)}


async def test_a_renamed_route(database: Database, store: Store) -> None:
    """Living keys of an operation speak against a route that has its requests under another name, until they are gone,
    somebody accepts the loss, or the route says the operation's name. After one start that accepted the loss the next
    needs no word, and going back would lose the new keys."""
    await shop_with_a_key(store)
    async with started(database.open_store()) as later:
        for each in (store, later):
            assert await conflicts(each, serving(RENAMED)) == [(SERVICE, "charges", 1, ("create_charge",), False)]
    assert await store.compare_configuration(serving(CHARGES)) == FINE
    await database.advance(2 * REMEMBER_SECONDS)
    assert await store.compare_configuration(serving(RENAMED)) == FINE
    assert await store.compare_configuration(serving(CHARGES)) == FINE
    await do(store, of("charges"), Hand.claim, Hand.complete)
    for accepted in ("create_charge",), ():
        assert await store.compare_configuration(serving(RENAMED, accepted=accepted)) == FINE
    await do(store, of("create_charge"), Hand.claim, Hand.complete)
    assert await conflicts(store, serving(CHARGES)) == [(SERVICE, "create_charge", 1, ("charges",), False)]


async def test_a_removed_route(store: Store) -> None:
    """Where nobody has its requests a route can be removed; whoever gets them later loses its keys."""
    await store.compare_configuration(serving([*CHARGES, ("POST /refunds", "refunds")]))
    await do(store, of("charges"), Hand.claim, Hand.complete)
    rest = [("POST /refunds", "refunds")]
    assert await store.compare_configuration(serving(rest)) == FINE
    assert await store.count_without_route(SERVICE, ("refunds",)) == {"charges": 1}
    assert await conflicts(store, serving([*rest, *RENAMED])) == [(SERVICE, "charges", 1, ("create_charge",), False)]
    assert await store.compare_configuration(serving([*rest, *CHARGES])) == FINE


async def test_names_that_are_exchanged(store: Store) -> None:
    """Two operations that both still have a route lose their keys all the same when the routes change names."""
    await store.compare_configuration(serving([("POST /a", "one"), ("POST /b", "two")]))
    await do(store, of("one"), Hand.claim, Hand.complete)
    swapped = serving([("POST /a", "two"), ("POST /b", "one")])
    assert await conflicts(store, swapped) == [(SERVICE, "one", 1, ("two",), False)]
    # That another route accepts a loss says nothing about this one: whoever has the requests has to.
    both = [("POST /a", "two"), ("POST /{rest:.*}", "rest")]
    assert await conflicts(store, serving(both, accepted=("rest",))) == [(SERVICE, "one", 1, ("two",), False)]
    assert await store.compare_configuration(serving(both, accepted=("rest", "two"))) == FINE


@pytest.mark.parametrize(
    "changed",
    [serving(RENAMED, gateway_id=OTHER), serving(recipes={"charges": b"two"}, gateway_id=OTHER)],
    ids=["route", "recipe"],
)
async def test_two_configurations_of_one_service_at_once(changed: Serving, store: Store, other_store: Store) -> None:
    """Of two gateways that start at once and would find each other's keys unknown one serves, also without a key."""
    first = serving(CHARGES)
    agreements = await asyncio.gather(store.compare_configuration(first), other_store.compare_configuration(changed))
    assert sorted(len(agreement.conflicts) for agreement in agreements) == [0, 1]
    refused, wanted = (store, first) if agreements[0].conflicts else (other_store, changed)
    assert [is_served for *_, is_served in await conflicts(refused, wanted)] == [True]


@pytest.mark.parametrize("end", ["stopped", "silent"])
async def test_a_gateway_that_ended_stands_in_nobodys_way(
    end: str, database: Database, store: Store, other_store: Store
) -> None:
    """One that said that it stopped counts no more at once, one that was killed after a minute; while it notes that it
    runs it counts."""
    first, second = serving(CHARGES), serving(RENAMED, gateway_id=OTHER)
    await store.compare_configuration(first)
    for _ in range(3):
        await database.advance(RUNNING_SECONDS - 1)
        await store.note_running(first.gateway_id, is_running=True)
    assert await conflicts(other_store, second) == [(SERVICE, "charges", 0, ("create_charge",), True)]
    if end == "stopped":
        await store.note_running(first.gateway_id, is_running=False)
    else:
        await database.advance(RUNNING_SECONDS + 1)
    assert await other_store.compare_configuration(second) == FINE


async def test_a_gateway_from_before_the_clock_was_set_back(database: Database, store: Store) -> None:
    """A time that is still to come is no sign of life."""
    await store.compare_configuration(serving(CHARGES, gateway_id=OTHER))
    database.set_back(10 * RUNNING_SECONDS)
    assert await store.compare_configuration(serving(RENAMED)) == FINE


async def test_a_trial_changes_nothing(store: Store) -> None:
    """What would be said is said, and neither what is remembered nor who runs is another than before."""
    await shop_with_a_key(store)
    trials = (serving(RENAMED), 1), (serving(RENAMED, accepted=("create_charge",)), 0), (serving(CHARGES), 0)
    for wanted, number in trials:
        agreement = await store.compare_configuration(replace(wanted, gateway_id=OTHER), is_trial=True)
        assert len(agreement.conflicts) == number
    await store.note_running(serving().gateway_id, is_running=False)
    assert await conflicts(store, serving(RENAMED)) == [(SERVICE, "charges", 1, ("create_charge",), False)]


def books(**options: object) -> Serving:
    """A service whose requests are those of the shop."""
    return replace(serving(CHARGES, service="books", gateway_id=OTHER), **options)


CONFLICT = (SERVICE, "charges", 1, ("charges",))


async def test_a_second_service(store: Store) -> None:
    """A service with the same requests starts beside one that runs, and both start again."""
    await shop_with_a_key(store)
    told = Agreement(neighbours=(Neighbour(SERVICE, "charges", ("charges",)),))
    assert await store.compare_configuration(books()) == told
    await do(store, of("charges", "books"), Hand.claim, Hand.complete)
    # Neither is a stranger any more, whoever runs.
    for wanted in (serving(CHARGES), books()):
        await store.note_running(serving().gateway_id, is_running=False)
        await store.note_running(OTHER, is_running=False)
        assert await store.compare_configuration(wanted) == FINE


@pytest.mark.parametrize("end", ["stopped", "silent"])
async def test_a_renamed_service(end: str, database: Database, store: Store) -> None:
    """Living keys of a service that does not run speak against another one that has its requests."""
    await shop_with_a_key(store)
    if end == "stopped":
        await store.note_running(serving().gateway_id, is_running=False)
    else:
        await database.advance(RUNNING_SECONDS + 1)
    assert await conflicts(store, books()) == [(*CONFLICT, False)]
    assert await store.compare_configuration(books(accepted=frozenset(("charges",)))) == FINE
    assert await store.compare_configuration(books()) == FINE
    # Who took the requests of a service that did not run loses its keys when that one comes back.
    await do(store, of("charges", "books"), Hand.claim, Hand.complete)
    await store.note_running(OTHER, is_running=False)
    assert await conflicts(store, serving(CHARGES)) == [("books", "charges", 1, ("charges",), False)]
