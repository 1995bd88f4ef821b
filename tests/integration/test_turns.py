"""Two gateways on one Postgres: one of them does the upkeep, and both hear what is said of the store's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.reports import accept_loss
from gateway.core.operation import Audit
from gateway.store.memory.epoch import after_loss, amnesia_of, memo_of
from gateway.store.postgres.store import PostgresStore
from gateway.upkeep.duty import LEASE_SECONDS
from tests.observe.scrape import Scrape
from tests.store.postgres_sessions import opened
from tests.support.eventually import eventually
from tests.support.fleet import gateways_on, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.upstream import RecordingUpstream

# A lease, the pause until the next one is asked for, and what a busy machine takes.
PATIENCE_SECONDS = 3 * LEASE_SECONDS
# Twice the pause between two exchanges of notes.
HEARD_SECONDS = 30.0
WINDOW_US = 3_600_000_000
DUTIES = {"sweep", "recovery", "tally"}


@pytest.fixture
async def fleet(postgres_url: str, tmp_path: Path) -> AsyncIterator[list[GatewayProcess]]:
    store = {"durable": postgres_url}
    async with RecordingUpstream() as service, gateways_on(store, tmp_path, service.url, ("one", "two")) as started:
        yield started


async def duties(gateway: GatewayProcess) -> set[str]:
    """What it does for all."""
    told = Scrape((await gateway.status("/metrics")).body.decode())
    return {duty for duty in DUTIES if told.value("idempotency_store_upkeep_owner", duty=duty)}


async def owner_of(fleet: list[GatewayProcess]) -> tuple[GatewayProcess, GatewayProcess]:
    """The one that does all, and the one that does nothing, as soon as it is so."""
    found: list[GatewayProcess] = []

    async def is_decided() -> bool:
        each = [await duties(gateway) for gateway in fleet]
        assert not each[0] & each[1]
        found[:] = fleet if each[0] == DUTIES else fleet[::-1]
        return DUTIES in each

    await eventually(is_decided, PATIENCE_SECONDS, "one gateway has all turns")
    return found[0], found[1]


async def wait_has_all(gateway: GatewayProcess) -> None:
    async def has_all() -> bool:
        return await duties(gateway) == DUTIES

    await eventually(has_all, PATIENCE_SECONDS, "it has all turns")


async def test_every_gateway_hears_of_a_lost_memory_and_that_it_is_accepted(
    fleet: list[GatewayProcess], postgres_url: str
) -> None:
    """Also one without any turn, and before any request: notes are its own. A clean stop then leaves the turns."""
    owner, other = await owner_of(fleet)
    async with opened(postgres_url) as store:
        await note_loss(store)
        for gateway in fleet:
            await wait_heard(gateway, is_lost=True)
            assert await verdict(gateway, "lost") == "store-amnesia"
        await accept_loss(store, Audit("test", "known"))
    for gateway in fleet:
        await wait_heard(gateway, is_lost=False)
        assert await verdict(gateway, "accepted") == "stored"
    owner.terminate()
    await wait_has_all(other)


async def note_loss(store: PostgresStore) -> None:
    """What a gateway writes that found one."""
    epoch = await store.check_memory()
    amnesia = after_loss("a test says so", [], epoch, amnesia_of(epoch), WINDOW_US)
    await store.begin_epoch(memo_of(amnesia), amnesia.beyond)


async def wait_heard(gateway: GatewayProcess, *, is_lost: bool) -> None:
    async def has_heard() -> bool:
        return await gateway.metric("idempotency_store_amnesia", missing=0.0) == is_lost

    await eventually(has_heard, HEARD_SECONDS, f"the memory is {'lost' if is_lost else 'whole'}")


async def verdict(gateway: GatewayProcess, key: str) -> str | None:
    """Of a new key."""
    return status_of(await send(gateway.port, f"{key}-{gateway.port}"))[1]
