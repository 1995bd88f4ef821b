"""Real gateways that tell real consumers what was done: killed at the worst moments, with sinks that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.events.relay import LEASE_SECONDS
from tests.integration.hand import begin, telling
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.fleet import process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, stores
from tests.support.postgres import PostgresServer
from tests.support.receiver import Receiver, hang, status
from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import wall_clock

store = stores("postgres-redis", full=["sqlite"])


async def published(gateway: GatewayProcess, count: int) -> bool:
    """Whether so many events are counted as delivered."""
    name = "idempotency_events_published_total"
    found = [each for each in Scrape(await gateway.metrics()).series if each.name == name]
    return sum(each.value for each in found if each.labels["result"] == "delivered") == count


async def test_a_consumer_hears_of_what_was_done_and_of_nothing_else(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """One event for each completed operation; none for a replay, a refusal, or an attempt without effect."""
    async with Receiver(status(500)) as ledger:
        settings = telling(ledger=ledger)
        settings["events"]["sinks"][0]["include"] = ["location"]
        async with process(store, tmp_path, upstream, **settings) as gateway:
            upstream.on("/charges", Answer(201, headers=(("Location", "/charges/9"),)))
            for key in ("k1", "k1", "k2"):
                assert (await send(gateway.port, key)).status == 201
            assert (await send(gateway.port, "k1", b'{"another": 1}')).status == 422
            upstream.on("/charges", Answer(503))
            await send(gateway.port, "k3")
            await ledger.wait_received(3)
            by_id = {got.id: got.document for got in ledger.received}
            assert len(by_id) == 2
            assert {event["type"] for event in by_id.values()} == {"operation.completed"}
            assert {event["data"]["location"] for event in by_id.values()} == {"/charges/9"}
            operations = {
                value.decode() for each in upstream.requests for value in each.values("Idempotency-Operation")
            }
            assert {event["subject"] for event in by_id.values()} < operations
            await eventually(lambda: published(gateway, 2), 20.0)
            assert 'idempotency_secret_used_total{id="a",place="ledger"}' in await gateway.metrics()


async def test_killed_between_publication_and_report(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """The consumer gets the event again: the same id, the same bytes, signed anew."""
    with wall_clock(tmp_path / "clock") as clock:
        async with Receiver(hang) as ledger:
            settings = {"environment": clock.environment, **telling(ledger=ledger)}
            async with process(sqlite_store(tmp_path), tmp_path, upstream, **settings) as gateway:
                await send(gateway.port, "k1")
                await ledger.wait_received(1)
                gateway.kill()
                clock.move(round(LEASE_SECONDS) + 5)
                await gateway.start()
                first, second = await ledger.wait_received(2)
                assert (first.id, first.body) == (second.id, second.body)
                assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]
                await eventually(lambda: published(gateway, 1), 30.0)
                assert (await send(gateway.port, "k1")).status == 201
                assert len(ledger.received) == 2


async def test_a_consumer_that_hangs_delays_nobody(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """Neither callers nor another consumer; what it did not get is there when it comes back."""
    async with (
        Receiver(*[hang] * 1000) as slow,
        Receiver() as quick,
        process(store, tmp_path, upstream, **telling(slow=slow, quick=quick)) as gateway,
    ):
        answers = await asyncio.gather(*(send(gateway.port, f"k{number}") for number in range(40)))
        assert {answer.status for answer in answers} == {201}
        await quick.wait_received(40)
        assert len(slow.received) <= 16


async def test_an_outcome_that_waited_in_the_journal_is_told_when_it_is_recorded(
    tmp_path: Path, own_postgres: PostgresServer, upstream: RecordingUpstream
) -> None:
    """The store was away at the end of the attempt; its event appears with the record."""
    store = {"durable": own_postgres.url}
    async with Receiver() as ledger, process(store, tmp_path, upstream, **telling(ledger=ledger)) as gateway:
        request, hold = await begin(gateway, upstream)
        own_postgres.crash()
        hold.set()
        assert (await request).status == 201
        own_postgres.start()
        (event,) = await ledger.wait_received(1, 60.0)
        assert event.document["type"] == "operation.completed"
