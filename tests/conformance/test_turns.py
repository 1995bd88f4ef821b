"""Every store leases each turn to one gateway at a time, by its own clock."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from gateway.store.base import Store
from tests.conformance.stores import Database

LEASE_SECONDS = 15
LEASE_US = LEASE_SECONDS * 1_000_000
ALL = frozenset(("sweep", "tally shop 1"))


async def test_a_turn_is_of_one_gateway(store: Store, other_store: Store, database: Database) -> None:
    """Whoever asks first has it, for as long as it asks again in time; each turn for itself. It ends with its lease, no
    earlier, and its former holder does not get it back while another one has it."""
    first, second = uuid4(), uuid4()
    assert await store.take_turns(first, ["sweep"], LEASE_US) == {"sweep"}
    assert await other_store.take_turns(second, ALL, LEASE_US) == ALL - {"sweep"}
    for _ in range(3):
        await database.advance(LEASE_SECONDS - 1)
        assert await store.take_turns(first, ALL, LEASE_US) == {"sweep"}
        assert await other_store.take_turns(second, ALL, LEASE_US) == ALL - {"sweep"}
    await database.advance(LEASE_SECONDS - 1)
    assert await other_store.take_turns(uuid4(), ALL, LEASE_US) == frozenset()
    await database.advance(1)
    assert await other_store.take_turns(second, ALL, LEASE_US) == ALL
    assert await store.take_turns(first, ALL, LEASE_US) == frozenset()


async def test_of_many_that_ask_at_once_one_has_the_turn(store: Store, other_store: Store) -> None:
    """Also when nobody has ever had it. One that is left is free at once, and those of others stay theirs."""
    gateways = {uuid4(): each for each in [store, other_store] * 4}
    taken = await asyncio.gather(*(each.take_turns(who, ALL, LEASE_US) for who, each in gateways.items()))
    assert sorted(name for names in taken for name in names) == sorted(ALL)
    for who in gateways:
        await store.leave_turns(who)
    first, second = uuid4(), uuid4()
    await store.take_turns(first, ["sweep"], LEASE_US)
    await store.take_turns(second, ["tally shop 1"], LEASE_US)
    for _ in range(2):
        await store.leave_turns(first)
    assert await other_store.take_turns(uuid4(), ALL, LEASE_US) == {"sweep"}


async def test_a_turn_of_a_clock_that_was_set_back(store: Store, other_store: Store, database: Database) -> None:
    """One that ends later than any that begins now is over: nobody waits for a time long ago."""
    await store.take_turns(uuid4(), ALL, LEASE_US)
    database.set_back(3_600)
    assert await other_store.take_turns(uuid4(), ALL, LEASE_US) == ALL
