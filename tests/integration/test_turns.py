"""Two gateways on one Postgres, of which one does the upkeep: both hear what is said of the store's memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.reports import accept_loss
from gateway.core.operation import Audit
from gateway.store.memory.epoch import after_loss, amnesia_of, memo_of
from tests.store.postgres_sessions import opened
from tests.support.eventually import eventually
from tests.support.fleet import gateways_on, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.upstream import RecordingUpstream

# Twice the pause between two exchanges of notes.
HEARD_SECONDS = 30.0
WINDOW_US = 3_600_000_000


@pytest.fixture
async def fleet(postgres_url: str, tmp_path: Path) -> AsyncIterator[list[GatewayProcess]]:
    store = {"durable": postgres_url}
    async with RecordingUpstream() as service, gateways_on(store, tmp_path, service.url, ("one", "two")) as started:
        yield started


async def test_every_gateway_hears_of_a_lost_memory_and_that_it_is_accepted(
    fleet: list[GatewayProcess], postgres_url: str
) -> None:
    """Also one without any turn, and before any request: notes are its own."""
    async with opened(postgres_url) as store:
        # What a gateway writes that found one.
        epoch = await store.check_memory()
        amnesia = after_loss("a test says so", [], epoch, amnesia_of(epoch), WINDOW_US)
        await store.begin_epoch(memo_of(amnesia), amnesia.beyond)
        for gateway in fleet:
            await wait_heard(gateway, is_lost=True)
            assert await verdict(gateway, "lost") == "store-amnesia"
        await accept_loss(store, Audit("test", "known"))
    for gateway in fleet:
        await wait_heard(gateway, is_lost=False)
        assert await verdict(gateway, "accepted") == "stored"


async def wait_heard(gateway: GatewayProcess, *, is_lost: bool) -> None:
    async def has_heard() -> bool:
        return await gateway.metric("idempotency_store_amnesia", missing=0.0) == is_lost

    await eventually(has_heard, HEARD_SECONDS, f"the memory is {'lost' if is_lost else 'whole'}")


async def verdict(gateway: GatewayProcess, key: str) -> str | None:
    """Of a new key."""
    return status_of(await send(gateway.port, f"{key}-{gateway.port}"))[1]
