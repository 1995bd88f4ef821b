"""Webhooks by Standard Webhooks and by Svix: what a sender delivers again is executed once and acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from standardwebhooks import Webhook, WebhookVerificationError

from tests.clients.libraries import route_for
from tests.support.eventually import eventually
from tests.support.house import House, house, sqlite_store
from tests.support.relay import Fault, Relay
from tests.support.upstream import Answer, Ending, Received

PATH = "/webhooks/payments"
SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
PAID = '{"type":"invoice.paid","data":{"id":"in_1","amount":1000}}'


@dataclass
class Sender:
    """Signs every delivery anew, as of a later moment, like a sender that delivers on a schedule."""

    prefix: str
    secret: str = SECRET
    _tries: itertools.count[int] = field(default_factory=itertools.count)

    def deliver(self, port: int, message: str = "msg_1", payload: str = PAID) -> int | None:
        """Deliver once; the status that acknowledges or refuses it, None without a response."""
        moment = datetime.now(UTC) + timedelta(seconds=next(self._tries))
        headers = {
            "Content-Type": "application/json",
            f"{self.prefix}-id": message,
            f"{self.prefix}-timestamp": str(int(moment.timestamp())),
            f"{self.prefix}-signature": Webhook(self.secret).sign(message, moment, payload),
        }
        with requests.Session() as session:
            try:
                return session.post(f"http://127.0.0.1:{port}{PATH}", payload.encode(), headers=headers).status_code
            except requests.ConnectionError:
                return None


@pytest.fixture(params=["webhook", "svix"])
def sender(request: pytest.FixtureRequest) -> Sender:
    return Sender(request.param)


@asynccontextmanager
async def home_of(directory: Path, **changes: Any) -> AsyncIterator[House]:
    """A gateway with the route for webhooks before a service that verifies them."""
    route = route_for("Standard Webhooks", PATH, **changes)
    async with house(sqlite_store(directory), directory, routes=[route]) as home:
        home.upstream.on(PATH, receive)
        yield home


def receive(received: Received) -> Answer:
    fields = {name.decode().lower().replace("svix-", "webhook-"): value.decode() for name, value in received.headers}
    try:
        Webhook(SECRET).verify(received.body, fields)
    except WebhookVerificationError:
        return Answer(401, "Unauthorized", effect=False)
    return Answer(200)


async def test_an_acknowledgement_lost_on_its_way_back(sender: Sender, tmp_path: Path) -> None:
    """The next delivery of the message is acknowledged and not executed."""
    async with home_of(tmp_path) as home, Relay(home.port) as relay:
        relay.to_client.ambush(1, Fault.RESET)
        assert await asyncio.to_thread(sender.deliver, relay.port) is None
        assert [await asyncio.to_thread(sender.deliver, relay.port) for _ in range(2)] == [200, 200]
        assert len(home.upstream.requests) == len(home.upstream.effects) == 1
        (received,) = home.upstream.requests
        assert json.loads(received.body) == json.loads(PAID)


async def test_other_messages(sender: Sender, tmp_path: Path) -> None:
    """An equal payload in another message is another event."""
    async with home_of(tmp_path) as home:
        assert [await asyncio.to_thread(sender.deliver, home.port, name) for name in ("msg_1", "msg_2")] == [200, 200]
        assert len(home.upstream.effects) == 2


@pytest.mark.parametrize("status", [404, 503])
async def test_a_receiver_that_fails_first(sender: Sender, tmp_path: Path, status: int) -> None:
    """What it did not take is delivered again and executed then: a deployment that lacked the route costs nothing."""
    async with home_of(tmp_path) as home:
        home.upstream.on(PATH, Answer(status, effect=False), receive)
        assert [await asyncio.to_thread(sender.deliver, home.port) for _ in range(3)] == [status, 200, 200]
        assert len(home.upstream.effects) == 1


async def test_a_receiver_that_dies_at_work(sender: Sender, tmp_path: Path) -> None:
    """The event may have been processed: the sender is refused from then on, and nothing is executed again."""
    async with home_of(tmp_path) as home:
        home.upstream.on(PATH, Answer(bytes_max=0, ending=Ending.CLOSE), receive)
        assert [await asyncio.to_thread(sender.deliver, home.port) for _ in range(3)] == [502, 409, 409]
        assert len(home.upstream.requests) == 1


async def test_a_forgery_that_comes_first(sender: Sender, tmp_path: Path) -> None:
    """Whoever cannot sign spoils nothing for the message that has the same id."""
    forger = Sender(sender.prefix, secret="whsec_" + "Zm9yZ2VyLWZvcmdlci1mb3JnZXItZm9yZ2Vy")
    async with home_of(tmp_path) as home:
        assert await asyncio.to_thread(forger.deliver, home.port, "msg_1", '{"type":"refund"}') == 401
        assert await asyncio.to_thread(sender.deliver, home.port) == 200
        assert len(home.upstream.effects) == 1


async def test_a_delivery_after_the_window(sender: Sender, tmp_path: Path) -> None:
    """It is acknowledged without a body, so that the sender does not switch its endpoint off, and not executed."""
    retention = {**route_for("Standard Webhooks", PATH)["retention"], "replay": "1s", "remember": "1h"}
    async with home_of(tmp_path, retention=retention) as home:
        assert await asyncio.to_thread(sender.deliver, home.port) == 200
        statuses: list[int | None] = []

        async def is_expired() -> bool:
            statuses.append(await asyncio.to_thread(sender.deliver, home.port))
            return statuses[-1] == 204

        await eventually(is_expired, what="the window is over")
        assert set(statuses) == {200, 204}
        assert len(home.upstream.requests) == 1
