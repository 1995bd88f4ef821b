"""A kept request, a webhook and events in one gateway, which is killed between the one and the other."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.accepting import ACCEPTING, ASYNC, LEASE_SECONDS, SECRETS
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import process, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of, store_section
from tests.support.receiver import Receiver
from tests.support.senders import PAID, TEXT, signed
from tests.support.signing import WHSEC
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

INBOX: dict[str, Any] = {
    "name": "payment_events",
    "match": {"methods": ["POST"], "path": "/webhooks"},
    "inbox": {"preset": "stripe", "secrets": [{"id": "a", "key": TEXT}]},
    "scope": "shared",
    "outcome": {"preset": "success_only"},
    # On most machines longer than it takes to kill the gateway meanwhile.
    "delivery": {"schedule": ["5s"]},
}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return store_section(request, tmp_path) | {"lease": f"{LEASE_SECONDS:g}s"}


async def deliver(port: int) -> http.Response:
    """The webhook, as its sender delivers it, and delivers it again."""
    fields = [("Content-Type", "application/json"), *signed("stripe", moment=int(time.time())).items()]
    return await http.request(port, "POST", "/webhooks", fields, PAID)


def operation_of(received: Received) -> str:
    (operation,) = received.values("Idempotency-Operation")
    return operation.decode()


async def test_what_was_completed_is_published_and_nothing_else(store: dict[str, Any], tmp_path: Path) -> None:
    """One id for each operation that completed, before or after a kill; none for one that is in doubt."""
    async with RecordingUpstream() as upstream, Receiver() as consumer:
        sink = {"name": "consumer", "kind": "webhook", "url": consumer.url, "secrets": [{"id": "a", "key": WHSEC}]}
        settings: dict[str, Any] = {
            "routes": [ACCEPTING, INBOX],
            "secrets": SECRETS,
            "events": {"sinks": [sink]},
            "egress": {"allow": ["127.0.0.1"], "ports": [consumer.port], "https_only": False},
        }
        upstream.on("/charges", Answer(201))
        upstream.on("/webhooks", Answer(503))
        async with process(store, tmp_path, upstream.url, **settings) as gateway:
            assert (await send(gateway.port, "paid", headers=ASYNC)).status == 202
            await consumer.wait_received(1)
            assert status_of(await deliver(gateway.port)) == (200, "accepted")
            await eventually(lambda: is_postponed(gateway), what="the first delivery had no effect")
            upstream.on("/charges", Answer(ending=Ending.RESET, bytes_max=0))
            assert (await send(gateway.port, "cut", b"{}", headers=ASYNC)).status == 202
            await consumer.wait_received(2)
            upstream.on("/charges", Answer(ending=Ending.SILENCE, bytes_max=0))
            assert (await send(gateway.port, "running", b"[]", headers=ASYNC)).status == 202
            await eventually(lambda: len(sent_to(upstream, b"/charges")) == 3, what="the third charge arrived")
            gateway.kill()

            refused = len(sent_to(upstream, b"/webhooks"))
            upstream.on("/webhooks", Answer(200))
            await gateway.start()
            paid, cut, running = map(operation_of, sent_to(upstream, b"/charges"))
            await eventually(
                lambda: len(sent_to(upstream, b"/webhooks")) == refused + 1, 30.0, "the webhook is delivered"
            )
            (delivered,) = set(map(operation_of, sent_to(upstream, b"/webhooks")))
            await eventually(lambda: delivered in published(consumer), 30.0, "its delivery is published")
            # Known by the lease alone: nobody knows whether this charge was made.
            await wait_answered(gateway.port, "running", b"[]", verdicts=frozenset(("in-doubt",)))
            # Everybody asks again, and nothing is done again.
            assert status_of(await send(gateway.port, "paid")) == (201, "replayed")
            assert status_of(await deliver(gateway.port)) == (200, "event-duplicate")
            assert len(sent_to(upstream, b"/charges")) == 3
            assert len(sent_to(upstream, b"/webhooks")) == refused + 1
            events = published(consumer)
            # That nobody knows is published once somebody writes it down.
            assert events.pop(running, ["operation.in_doubt"]) == ["operation.in_doubt"]
            assert events == {
                paid: ["operation.completed"],
                delivered: ["operation.completed"],
                cut: ["operation.in_doubt"],
            }


async def is_postponed(gateway: GatewayProcess) -> bool:
    """Whether the webhook was sent, and waits in the store."""
    lines = (await gateway.status("/metrics")).body.decode().splitlines()
    counted = [line for line in lines if line.startswith("idempotency_deliveries_total{") and INBOX["name"] in line]
    return any('result="postponed"' in line and not line.endswith(" 0.0") for line in counted)


def sent_to(upstream: RecordingUpstream, target: bytes) -> list[Received]:
    return [request for request in upstream.requests if request.target == target]


def published(consumer: Receiver) -> dict[str, list[str]]:
    """The types of each operation's events; copies of an event are equal, and count once."""
    events = {(got.document["subject"], got.document["type"], got.id, got.body) for got in consumer.received}
    types = defaultdict(list)
    for operation, type_, _, _ in events:
        types[operation].append(type_)
    return dict(types)
