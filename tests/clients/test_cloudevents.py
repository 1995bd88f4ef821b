"""CloudEvents over HTTP, in binary and in structured mode: one event is executed once, and arrives as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.clients.libraries import route_for
from tests.support.house import House, house, sqlite_store
from tests.support.relay import Fault, Relay
from tests.support.upstream import Answer, Received

PATH: Final = "/events"


@dataclass(frozen=True)
class Mode:
    """How an event is put into a request. `row` names its row in docs/client-libraries.md."""

    name: str

    @property
    def row(self) -> str:
        return f"CloudEvents, {self.name} mode"

    def message(self, event: BaseCloudEvent) -> HTTPMessage:
        return to_binary_event(event) if self.name == "binary" else to_structured_event(event)


@pytest.fixture(params=["binary", "structured"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return Mode(request.param)


@asynccontextmanager
async def home_of(mode: Mode, directory: Path, **changes: Any) -> AsyncIterator[House]:
    """A gateway with the route for this mode before a service that takes every event."""
    route = route_for(mode.row, PATH, **changes)
    async with house(sqlite_store(directory), directory, routes=[route]) as home:
        home.upstream.on(PATH, Answer(202, "Accepted"))
        yield home


def event(identifier: str = "order 42/é", source: str = "//shop.example/orders") -> CloudEvent:
    """An event whose id has to be encoded in a header."""
    attributes = {
        "id": identifier,
        "source": source,
        "type": "example.order.paid",
        "specversion": "1.0",
        "time": datetime(2026, 11, 23, tzinfo=UTC),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes=attributes, data={"amount": 1000})


def send(port: int, mode: Mode, sent: CloudEvent) -> tuple[int, str | None] | None:
    """Send it once: the status and the word, None without a response."""
    message = mode.message(sent)
    headers = {**message.headers, "Authorization": "Bearer broker-1"}
    with requests.Session() as session:
        try:
            response = session.post(f"http://127.0.0.1:{port}{PATH}", message.body, headers=headers)
        except requests.ConnectionError:
            return None
        return response.status_code, response.headers.get("Idempotency-Status")


def arrived(received: Received) -> BaseCloudEvent:
    return from_http_event(
        HTTPMessage({name.decode().lower(): value.decode() for name, value in received.headers}, received.body)
    )


async def test_an_event_sent_again(mode: Mode, tmp_path: Path) -> None:
    """A broker that got no acknowledgement sends the event again and gets it; the event was taken once, and whole."""
    sent = event()
    async with home_of(mode, tmp_path) as home, Relay(home.port) as relay:
        relay.to_client.ambush(1, Fault.RESET)
        assert await asyncio.to_thread(send, relay.port, mode, sent) is None
        assert await asyncio.to_thread(send, relay.port, mode, sent) == (202, "replayed")
        (received,) = home.upstream.effects
        assert arrived(received).get_attributes() == sent.get_attributes()
        assert arrived(received).get_data() == sent.get_data()


async def test_which_events_are_one(mode: Mode, tmp_path: Path) -> None:
    """It takes source and id to tell an event: an id of another source is another event."""
    async with home_of(mode, tmp_path) as home:
        for other in (event("a"), event("b"), event("a", "//other.example")):
            assert await asyncio.to_thread(send, home.port, mode, other) == (202, "stored")
        # No part runs into the next.
        for other in (event("1/2", "//x"), event("2", "//x/1")):
            assert await asyncio.to_thread(send, home.port, mode, other) == (202, "stored")
        assert await asyncio.to_thread(send, home.port, mode, event("a")) == (202, "replayed")
        assert len(home.upstream.effects) == 5


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [("ce-id", None, "key-missing"), ("ce-id", "a,b", "key-invalid")],
    ids=["none", "comma"],
)
async def test_an_event_without_a_usable_name(tmp_path: Path, name: str, value: str | None, verdict: str) -> None:
    """It is refused, and not taken without protection. In a header a comma may part two values."""
    async with home_of(Mode("binary"), tmp_path) as home:
        message = to_binary_event(event())
        headers: dict[str, Any] = {**message.headers, "Authorization": "Bearer broker-1", name: value}
        response = await asyncio.to_thread(
            lambda: requests.post(f"http://127.0.0.1:{home.port}{PATH}", message.body, headers=headers)
        )
        assert (response.status_code, response.headers["Idempotency-Status"]) == (400, verdict)
        assert home.upstream.requests == []
