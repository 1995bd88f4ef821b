"""What these tests share: pieces of configurations, and what is asked of gateways."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import nonce_of, send, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, status_of
from tests.support.http import Response
from tests.support.receiver import Receiver
from tests.support.relay import Relay
from tests.support.signing import WHSEC
from tests.support.upstream import Answer, RecordingUpstream

_TOKEN: Final = "t" * 32
OPERATOR: Final = [("Authorization", f"Bearer {_TOKEN}"), ("Content-Type", "application/json")]
"""The headers of an operator at the admin port."""
WHY: Final = b'{"why": "a test"}'
ASYNC: Final = (("Prefer", "respond-async"),)


def operated(port: int) -> dict[str, Any]:
    """The settings of a gateway whose operators come to this port."""
    return {"admin": {"listen": f"127.0.0.1:{port}", "token": _TOKEN}}


def telling(*types: str, sinks: list[dict[str, Any]] | None = None, **receivers: Receiver) -> dict[str, Any]:
    """The settings of a gateway that tells these receivers, and other sinks, of all that happens, or of these types."""
    hooks = [webhook(name, receiver) for name, receiver in receivers.items()]
    ports = [urlsplit(hook["url"]).port for hook in hooks]
    return {
        "events": {"sinks": [*hooks, *(sinks or [])], **({"types": list(types)} if types else {})},
        "egress": {"allow": ["127.0.0.1"], "https_only": False, "ports": ports},
    }


def webhook(name: str, receiver: Receiver) -> dict[str, Any]:
    return {"name": name, "kind": "webhook", "url": receiver.url, "secrets": [{"id": "a", "key": WHSEC}]}


def by_way_of(relay: Relay, url: str) -> str:
    """The URL of a server at the relay before it."""
    return url.replace(f":{urlsplit(url).port}/", f":{relay.port}/")


def soon() -> asyncio.Event:
    """An event that is set in a moment: something is always under way."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, event.set)
    return event


async def begin(
    gateway: GatewayProcess, upstream: RecordingUpstream, key: str = "k1", sent: bytes = BODY, **answer: Any
) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """A request that the service works on until the event is set, and then answers like this, with 201.

    What the caller gets is None where its connection is lost.
    """
    hold, before = asyncio.Event(), len(upstream.requests)
    upstream.on("/charges", Answer(**{"status": 201, **answer}, hold=hold))
    task = asyncio.create_task(try_send(gateway.port, key, sent))
    await upstream.wait_for_requests(before + 1)
    return task, hold


async def decided(port: int, key: str, deadline_seconds: float = 30.0) -> tuple[int, str | None]:
    """Status and verdict of a first request or a repeat, once there is a store to decide it."""

    async def asked() -> tuple[int, str | None] | None:
        found = status_of(await send(port, key))
        return None if found[1] in ("store-unavailable", "in-flight", "overloaded") else found

    return await eventually(asked, deadline_seconds, f"{key} is decided")


async def status_at(gateway: GatewayProcess, url: str, *headers: tuple[str, str]) -> dict[str, Any]:
    """What the status URL of an accepted request says."""
    response = await http.request(gateway.port, "GET", url, [("X-Tenant", "t1"), *headers])
    assert response.status == 200, (response.status, response.body)
    status: dict[str, Any] = response.json()
    return status


async def assert_replayed(key: str, first: Response, *gateways: GatewayProcess, **how: Any) -> None:
    """Each of these gateways answers a repeat of this key as it was answered first."""
    for gateway in gateways:
        again = await send(gateway.port, key, **how)
        assert (status_of(again), nonce_of(again)) == ((first.status, "replayed"), nonce_of(first)), key
