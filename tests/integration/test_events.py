"""Real gateways that tell real consumers what was done: killed at the worst moments, with sinks that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.events.relay import LEASE_SECONDS
from tests.support.eventually import eventually
from tests.support.fleet import process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, stores
from tests.support.receiver import Receiver, hang, status
from tests.support.signing import WHSEC
from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import wall_clock

EGRESS = {"allow": ["127.0.0.1"], "https_only": False}


store = stores("postgres-redis", full=["sqlite"])


def webhook(name: str, receiver: Receiver, **settings: Any) -> dict[str, Any]:
    secrets = [{"id": "a", "key": WHSEC}]
    return {"name": name, "kind": "webhook", "url": receiver.url, "secrets": secrets, **settings}


def telling(*sinks: dict[str, Any]) -> dict[str, Any]:
    """The settings of a gateway with these sinks."""
    ports = [urlsplit(sink["url"]).port for sink in sinks]
    return {"events": {"sinks": list(sinks)}, "egress": {**EGRESS, "ports": ports}}


async def metric(gateway: GatewayProcess, name: str) -> list[str]:
    """The lines of a metric."""
    return [line for line in (await gateway.metrics()).splitlines() if line.startswith(name)]


async def test_a_consumer_hears_of_what_was_done_and_of_nothing_else(store: dict[str, Any], tmp_path: Path) -> None:
    """One event for each completed operation; none for a replay, a refusal, or an attempt without effect."""
    async with (
        RecordingUpstream() as upstream,
        Receiver(status(500)) as ledger,
        process(store, tmp_path, upstream, **telling(webhook("ledger", ledger, include=["location"]))) as gateway,
    ):
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
            value.decode() for request in upstream.requests for value in request.values("Idempotency-Operation")
        }
        assert {event["subject"] for event in by_id.values()} < operations

        async def is_counted() -> bool:
            return any(line.endswith(" 2.0") for line in await metric(gateway, "idempotency_events_published_total"))

        await eventually(is_counted, 20.0)
        used = await metric(gateway, 'idempotency_secret_used_total{id="a",place="ledger"}')
        assert used


async def test_killed_between_publication_and_report(tmp_path: Path) -> None:
    """The consumer gets the event again: the same id, the same bytes, signed anew."""
    with wall_clock(tmp_path / "clock") as clock:
        async with RecordingUpstream() as upstream, Receiver(hang) as ledger:
            settings = {"environment": clock.environment, **telling(webhook("ledger", ledger))}
            async with process(sqlite_store(tmp_path), tmp_path, upstream, **settings) as gateway:
                upstream.on("/charges", Answer(201))
                await send(gateway.port, "k1")
                await ledger.wait_received(1)
                gateway.kill()
                clock.move(round(LEASE_SECONDS) + 5)
                await gateway.start()
                first, second = await ledger.wait_received(2)
                assert (first.id, first.body) == (second.id, second.body)
                assert first.headers["webhook-timestamp"] < second.headers["webhook-timestamp"]

                async def is_reported() -> bool:
                    lines = await metric(gateway, "idempotency_events_published_total")
                    return any('result="delivered"' in line and line.endswith(" 1.0") for line in lines)

                await eventually(is_reported, 30.0)
                assert (await send(gateway.port, "k1")).status == 201
                assert len(ledger.received) == 2


async def test_a_consumer_that_hangs_delays_nobody(store: dict[str, Any], tmp_path: Path) -> None:
    """Neither callers nor another consumer; what it did not get is there when it comes back."""
    async with RecordingUpstream() as upstream, Receiver(*[hang] * 1000) as slow, Receiver() as quick:
        sinks = webhook("slow", slow), webhook("quick", quick)
        async with process(store, tmp_path, upstream, **telling(*sinks)) as gateway:
            upstream.on("/charges", Answer(201))
            answers = await asyncio.gather(*(send(gateway.port, f"k{number}") for number in range(40)))
            assert {answer.status for answer in answers} == {201}
            await quick.wait_received(40)
            assert len(slow.received) <= 16


async def test_an_outcome_that_waited_in_the_journal_is_told_when_it_is_recorded(
    tmp_path: Path, own_postgres: Any
) -> None:
    """The store was away at the end of the attempt; its event appears with the record."""
    store = {"durable": own_postgres.url}
    async with (
        RecordingUpstream() as upstream,
        Receiver() as ledger,
        process(store, tmp_path, upstream, **telling(webhook("ledger", ledger))) as gateway,
    ):
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        request = asyncio.create_task(send(gateway.port, "k1"))
        await upstream.wait_for_requests(1)
        own_postgres.crash()
        hold.set()
        assert (await request).status == 201
        own_postgres.start()
        (event,) = await ledger.wait_received(1, 60.0)
        assert event.document["type"] == "operation.completed"
