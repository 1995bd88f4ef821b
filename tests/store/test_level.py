"""The level of a store: who is refused, what a running gateway does, and what a newer program wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.app.stores import bare_store, finish_upgrade, is_migrated, migrate_store
from gateway.config import Config, parse
from gateway.core.confidential import NO_SEALING
from gateway.core.operation import Applied
from gateway.store.agreement import PROGRAM_LEVEL, RUNNING_US
from gateway.store.base import NotApplied, StartRefused, Unreadable
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import Hand, do, started
from tests.store.backends import on_postgres, on_sqlite
from tests.store.guards import a_guard
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.house import config_text
from tests.support.memory_store import Memory, MemoryStore
from tests.support.serving import serving


@dataclass(frozen=True, slots=True)
class Place:
    """A configured store, and how a statement is run in it behind the program's back."""

    config: Config
    tamper: Callable[[str], Awaitable[Any]]


@pytest.fixture(params=["sqlite", "postgres", "portable"])
def section(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "sqlite":
        return {"durable": f"sqlite://{tmp_path}/state/operations.db"}
    return {"durable": request.getfixturevalue("postgres_url"), "dialect": request.param}


@pytest.fixture
async def place(section: dict[str, Any], tmp_path: Path) -> AsyncIterator[Place]:
    async with on_postgres(section["durable"]) if "dialect" in section else on_sqlite(tmp_path) as backend:
        yield Place(parse(config_text("http://127.0.0.1:9", section, tmp_path)), backend.execute)


async def test_a_store_of_a_later_level_is_refused(place: Place) -> None:
    """At the start, by a migration and by commands, before anything is changed; with what to do."""
    await migrate_store(place.config)
    await place.tamper(f"UPDATE epoch SET level = {PROGRAM_LEVEL + 1}")
    refused = f"the store has level {PROGRAM_LEVEL + 1}, and this program, .*, serves up to {PROGRAM_LEVEL}: .* newer"
    store = bare_store(place.config, NO_SEALING)
    for ask in (store.start, lambda: migrate_store(place.config), lambda: is_migrated(place.config)):
        with pytest.raises(StartRefused, match=refused):
            await ask()
    await store.close()
    await place.tamper(f"UPDATE epoch SET level = {PROGRAM_LEVEL}")
    await store.start()
    await store.close()


async def test_gateways_of_an_older_program_are_named_when_the_level_is_to_be_raised(place: Place) -> None:
    """While one runs, or was killed less than a minute ago, the level stays; one that was not seen for longer is
    nobody's concern, and neither is one of this program."""
    await migrate_store(place.config)
    async with started(bare_store(place.config, NO_SEALING)) as store:
        older, own = (replace(serving(gateway_id=UUID(int=number)), host="here") for number in (7, 8))
        await store.cold.compare_configuration(older)
        await place.tamper(f"UPDATE gateway SET level = {PROGRAM_LEVEL - 1}")
        await store.cold.compare_configuration(own)
        named = f"older program still run: {older.gateway_id} on host here .level {PROGRAM_LEVEL - 1}.\\. Upgrade"
        with pytest.raises(StartRefused, match=named):
            await finish_upgrade(place.config)
        await place.tamper(f"UPDATE gateway SET seen_us = seen_us - {RUNNING_US + 1}")
        assert not await finish_upgrade(place.config)


@pytest.mark.parametrize("change", ["version = 2", "state = 'frozen'", "last_event = 'thaw'", "request_kept = true"])
async def test_a_record_that_cannot_be_read_is_left_alone(place: Place, change: str) -> None:
    """One of another version or state, or without what it keeps, is neither guessed nor changed; its neighbours are
    served."""
    await migrate_store(place.config)
    async with started(bare_store(place.config, NO_SEALING)) as store:
        await do(store, hand := Hand(), Hand.claim)
        await place.tamper(f"UPDATE operation SET {change}")
        with pytest.raises(Unreadable):
            await store.read(hand.operation_id)
        for command in (hand.claim(), hand.retry(), hand.complete(), hand.renew(), hand.erase()):
            both = await asyncio.gather(*map(store.apply, (command, Hand().claim())), return_exceptions=True)
            assert [type(each) for each in both] == [Unreadable, Applied]
        await place.tamper(
            "UPDATE operation SET version = 1, state = 'claimed', last_event = 'claim', request_kept = false"
        )
        await do(store, hand, Hand.complete)


async def test_a_gateway_that_runs_while_the_level_is_raised_stops(tmp_path: Path) -> None:
    """It was not seen for a minute, and wakes up: with its next look it serves nothing more, and says why."""
    memory = Memory()
    async with started(a_guard(MemoryStore(memory), tmp_path)) as guard:
        await do(guard, Hand(), Hand.claim)
        memory.level = PROGRAM_LEVEL + 1
        with pytest.raises(StartRefused, match="serves up to"):
            await guard.exchange_notes()
        hand = Hand()
        with pytest.raises(NotApplied, match="serves up to"):
            await guard.apply(hand.claim())
        memory.level = PROGRAM_LEVEL

        async def is_granted() -> bool:
            (told,) = await asyncio.gather(guard.apply(hand.claim()), return_exceptions=True)
            return isinstance(told, Applied)

        await eventually(is_granted, 30.0)


async def test_a_worker_of_an_older_program_is_not_listed_any_more(postgres_url: str, tmp_path: Path) -> None:
    """Once the level was raised, it neither joins nor beats, so nothing that it grants is believed."""
    store = bare_store(parse(config_text("http://127.0.0.1:9", {"durable": postgres_url}, tmp_path)), NO_SEALING)
    assert isinstance(store, PostgresStore)
    async with started(store):
        known = serving()
        await store.cold.compare_configuration(known)
        await store.join(known.gateway_id, known.gateway_id, "here", "boot", ())
        assert (await store.beat(known.gateway_id, ()))[1]
        async with session(postgres_url) as connection:
            await connection.execute("UPDATE idempotency_gateway.epoch SET level = level + 1")
        assert not (await store.beat(known.gateway_id, ()))[1]
        with pytest.raises(NotApplied):
            await store.join(known.gateway_id, known.gateway_id, "here", "boot", ())
