"""No URL and no DNS answer leads a webhook into the gateway's own network."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientError, ClientSession
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.core.webhook import EgressPolicy, Forbidden, check_address
from gateway.events.webhook import WebhookSink, guarded_connector
from gateway.observe.facts import PublicationResult as Result
from tests.events.support import new_event, opened, publish, webhook_at
from tests.support.eventually import eventually
from tests.support.names import silent_name_server
from tests.support.receiver import Receiver
from tests.support.signing import SECRET

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::1"]
FORBIDDEN = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.8", "192.0.0.170", "192.0.2.1", "192.88.99.1", "198.18.0.1",
    "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe",
    "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a9fe:a9fe::1", "2002:808:808::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "not-an-address", "",
]  # fmt: skip


class FixedResolver(AbstractResolver):
    """Answers every name with these addresses, and with others the next time."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        shared: Any = {"hostname": host, "port": port, "proto": 0, "flags": socket.AI_NUMERICHOST}
        return [ResolveResult(host=a, family=f, **shared) for a, f in zip(addresses, families, strict=True)]

    async def close(self) -> None:
        pass


def webhook(
    url: str, policy: EgressPolicy, resolver: AbstractResolver | None = None
) -> AbstractAsyncContextManager[WebhookSink]:
    return opened(WebhookSink(webhook_at(url, SECRET), policy, resolver=resolver))


ALLOWED = EgressPolicy(allow=(ip_network("127.0.0.1"),), https_only=False)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_that_is_not_public_is_forbidden(address: str) -> None:
    """In every form, whatever IPv4 address it embeds."""
    with pytest.raises(Forbidden):
        check_address(EgressPolicy(), address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed_unless_it_is_denied(address: str) -> None:
    """Of an exception and a prohibition, the prohibition counts."""
    check_address(EgressPolicy(), address)
    denied = EgressPolicy(allow=(ip_network(address),), deny=(ip_network(address),))
    with pytest.raises(Forbidden):
        check_address(denied, address)


def test_an_exception_is_for_its_network_alone() -> None:
    """A translated form of an address in it is still forbidden."""
    policy = EgressPolicy(allow=(ip_network("10.20.0.0/16"),))
    check_address(policy, "10.20.30.40")
    for address in ("10.21.0.1", "::ffff:10.20.30.40", "64:ff9b::a14:1e28", "127.0.0.1"):
        with pytest.raises(Forbidden):
            check_address(policy, address)


LITERALS = [
    "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "１２７.0.0.1", "127.1", "0177.0.0.1", "2130706433", "127.0.0.1.",
    "0x7f.1", "localhost", "[::]", "0.0.0.0",
]  # fmt: skip


@pytest.mark.parametrize("host", LITERALS)
async def test_no_spelling_of_a_loopback_address_is_reached(host: str) -> None:
    """Literals never meet the resolver; the address that is connected to is what is checked."""
    async with Receiver() as receiver, ClientSession(connector=guarded_connector(EgressPolicy())) as session:
        with pytest.raises((ClientError, ValueError, OSError)):
            await session.post(f"http://{host}:{receiver.port}/")
        assert receiver.received == []


async def test_one_forbidden_address_of_a_name_is_enough() -> None:
    """Also where it stands beside public ones."""
    resolver = FixedResolver(("8.8.8.8", "10.0.0.1"))
    async with ClientSession(connector=guarded_connector(EgressPolicy(), resolver)) as session:
        with pytest.raises(ClientConnectorError) as caught:
            await session.post("http://consumer.test/")
    assert "10.0.0.1 is not a public address" in str(caught.value.os_error)
    assert resolver.asked == 1


async def test_a_name_is_resolved_once_for_a_connection() -> None:
    """An answer that changes between check and connection (DNS rebinding) changes nothing; the name stays in Host."""
    resolver = FixedResolver(("127.0.0.1",), ("127.0.0.2",))
    async with Receiver() as receiver:
        host = f"consumer.test:{receiver.port}"
        async with webhook(f"http://{host}/hooks", ALLOWED, resolver) as sink:
            assert (await publish(sink, new_event())).result is Result.DELIVERED
        assert resolver.asked == 1
        assert receiver.received[0].headers["host"] == host
        async with webhook(f"http://{host}/hooks", ALLOWED, resolver) as sink:
            refused = await publish(sink, new_event())
        assert refused.is_failed
        assert "127.0.0.2 is not a public address" in refused.why
        assert len(receiver.received) == 1


@pytest.mark.parametrize("proxy", [None, "http://proxy.hangs:3128"], ids=["direct", "proxy"])
async def test_a_name_server_that_hangs_delays_this_sink_alone(
    monkeypatch: pytest.MonkeyPatch, proxy: str | None
) -> None:
    """What callers and other sinks need threads for is done meanwhile."""
    async with (
        silent_name_server(monkeypatch) as names,
        Receiver() as receiver,
        webhook("http://sink.hangs/hooks", replace(ALLOWED, proxy=proxy)) as stuck,
        webhook(f"http://localhost:{receiver.port}/hooks", ALLOWED) as other,
    ):
        waiting = [asyncio.create_task(publish(stuck, new_event())) for _ in range(16)]
        await eventually(lambda: names.running == 2)
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)
            assert (await publish(other, new_event())).result is Result.DELIVERED
        names.over.set()
        for each in await asyncio.gather(*waiting):
            assert each.is_failed
            assert "Temporary failure in name resolution" in each.why


async def test_the_environment_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in an environment variable is not used."""
    async with Receiver() as receiver, Receiver() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        async with webhook(receiver.url, ALLOWED) as sink:
            assert (await publish(sink, new_event())).result is Result.DELIVERED
        assert (len(receiver.received), len(proxy.received)) == (1, 0)


async def test_a_proxy_is_connected_to_and_not_checked() -> None:
    """It sees the addresses, and gets the whole URL."""
    async with Receiver() as proxy:
        policy = EgressPolicy(https_only=False, proxy=f"http://127.0.0.1:{proxy.port}")
        async with webhook("http://consumer.test/hooks", policy) as sink:
            assert (await publish(sink, new_event())).result is Result.DELIVERED
        assert proxy.received[0].headers["host"] == "consumer.test"
