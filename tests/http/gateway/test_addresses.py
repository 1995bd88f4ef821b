"""Addresses of the gateway, its callers and its upstream: IPv6 on every side, and a name that leads elsewhere."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import BODY, house, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.upstream import RecordingUpstream

IPV6: dict[str, Any] = {"listen": "[::1]:0", "status": {"listen": "[::1]:0"}}
Fields = tuple[tuple[str, str], ...]


def on(networks: list[str]) -> dict[str, Any]:
    """A route that takes the caller's header from these networks."""
    return {"route": {"scope": {"header": "X-Tenant", "from": networks}}}


async def send(port: int, *headers: tuple[str, str], host: str = "::1") -> Response:
    """A charge by way of this address of the gateway's host."""
    fields = [("Content-Type", "application/json"), ("Idempotency-Key", "k1"), ("X-Tenant", "t1"), *headers]
    async with http.Connection(port, host=host) as connection:
        await connection.send(http.request_bytes("POST", "/charges", fields, BODY))
        return await connection.read_response("POST")


async def test_ipv6_on_both_sides(tmp_path: Path) -> None:
    """A caller, a gateway, its status port and its upstream on IPv6: one execution, and a replay."""
    async with (
        RecordingUpstream(host="::1") as upstream,
        neighbour(sqlite_store(tmp_path), tmp_path, upstream, **IPV6, **on(["::1"])) as home,
    ):
        assert [status_of(await send(home.port)) for _ in range(2)] == [(200, "stored"), (200, "replayed")]
        (received,) = upstream.requests
        assert received.values("X-Forwarded-For") == [b"::1"]
        async with http.Connection(home.status_port, host="::1") as status:
            await status.send(http.request_bytes("GET", "/readyz"))
            assert (await status.read_response()).status == 200


@pytest.mark.parametrize(
    ("networks", "expected"),
    [(["::/64"], (200, "stored")), (["fd00::/8", "127.0.0.0/8"], (400, "scope-missing"))],
    ids=["trusted", "not-trusted"],
)
async def test_a_caller_of_ipv6_is_judged_by_its_address(
    tmp_path: Path, networks: list[str], expected: tuple[int, str]
) -> None:
    """Who may name the caller is told by networks of IPv6 as by those of IPv4."""
    async with house(sqlite_store(tmp_path), tmp_path, **IPV6, **on(networks)) as home:
        assert status_of(await send(home.port)) == expected


@pytest.mark.parametrize(
    ("trusted", "said"), [([], [b"::1"]), (["::1"], [b"2001:db8::7, ::1"])], ids=["stranger", "trusted-proxy"]
)
async def test_the_way_over_ipv6_is_told(tmp_path: Path, trusted: list[str], said: list[bytes]) -> None:
    """A proxy that is trusted is added to those before it; of a stranger nothing is passed on but its address."""
    changes = {**IPV6, **on(["::1"]), "trusted_proxies": trusted}
    async with house(sqlite_store(tmp_path), tmp_path, **changes) as home:
        await send(home.port, ("X-Forwarded-For", "2001:db8::7"))
        lines = home.upstream.requests[0].values("X-Forwarded-For")
        assert [b", ".join(lines)] == said


class Names:
    """The resolver's answers for one name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.addresses: list[str] = []
        ask = socket.getaddrinfo

        def answer(host: Any, *arguments: Any, **options: Any) -> Any:
            if host != name:
                return ask(host, *arguments, **options)
            return [each for address in self.addresses for each in ask(address, *arguments, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", answer)


async def test_an_upstream_whose_address_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a restart, requests go where the name leads; what was recorded is replayed, nothing runs again."""
    names = Names(monkeypatch, "payments.test")
    async with RecordingUpstream() as old, RecordingUpstream(host="::1", port=old.port) as new:
        names.addresses = ["127.0.0.1"]
        changes = {"upstream": {"url": f"http://payments.test:{old.port}"}}
        async with neighbour(sqlite_store(tmp_path), tmp_path, old, **changes) as home:
            assert status_of(await home.send("k1")) == (200, "stored")
            # The old one leaves, as after a failover or a deployment, and its name leads to the new one.
            await old.__aexit__()
            assert status_of(await home.send("k2")) == (502, "upstream-unreachable")
            names.addresses = ["::1"]

            async def is_moved() -> bool:
                return status_of(await home.send("k2")) == (200, "stored")

            await eventually(is_moved, what="the new address is used")
            assert status_of(await home.send("k1")) == (200, "replayed")
            assert (len(old.requests), len(new.requests)) == (1, 1)
            # An address that refuses is no reason to give up the next.
            names.addresses = ["127.0.0.1", "::1"]
            for key in ("k3", "k4"):
                assert status_of(await home.send(key)) == (200, "stored")
            assert len(new.requests) == 3
