"""Addresses of the gateway, its callers and its upstream: IPv6 on every side, and a name that leads elsewhere."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.asking import until
from tests.support import http
from tests.support.house import BODY, JSON, neighbour, sqlite_store, status_of
from tests.support.upstream import RecordingUpstream

IPV6: dict[str, Any] = {"listen": "[::1]:0", "status": {"listen": "[::1]:0"}}


@pytest.mark.parametrize(
    ("networks", "trusted", "expected", "way"),
    [
        (["::1"], [], (200, "stored"), [b"::1"]),
        (["::/64"], ["::1"], (200, "stored"), [b"2001:db8::7, ::1"]),
        (["fd00::/8", "127.0.0.0/8"], [], (400, "scope-missing"), []),
    ],
    ids=["known", "known-by-a-network-behind-a-trusted-proxy", "not-known"],
)
async def test_ipv6_on_both_sides(
    tmp_path: Path, networks: list[str], trusted: list[str], expected: tuple[int, str], way: list[bytes]
) -> None:
    """A caller, a gateway, its status port and its upstream on IPv6. Who may name the caller is told by networks; a
    proxy that is trusted is added to those before it, and of a stranger nothing is passed on but its address."""
    changes = IPV6 | {"trusted_proxies": trusted, "route": {"scope": {"header": "X-Tenant", "from": networks}}}
    fields = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1"), ("X-Forwarded-For", "2001:db8::7")]
    async with (
        RecordingUpstream(host="::1") as upstream,
        neighbour(sqlite_store(tmp_path), tmp_path, upstream, **changes) as home,
    ):
        async with http.Connection(home.port, host="::1") as connection:
            for verdict in (expected, (200, "replayed") if way else expected):
                await connection.send(http.request_bytes("POST", "/charges", fields, BODY))
                assert status_of(await connection.read_response("POST")) == verdict
        assert [b", ".join(received.values("X-Forwarded-For")) for received in upstream.requests] == way
        async with http.Connection(home.status_port, host="::1") as status:
            await status.send(http.request_bytes("GET", "/readyz"))
            assert (await status.read_response()).status == 200


async def test_an_upstream_whose_address_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a restart, requests go where the name leads; what was recorded is replayed, nothing runs again."""
    addresses: list[str] = []
    ask = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        names = addresses if host == "payments.test" else [host]
        return [each for name in names for each in ask(name, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    async with RecordingUpstream() as old, RecordingUpstream(host="::1", port=old.port) as new:
        addresses[:] = ["127.0.0.1"]
        changes = {"upstream": {"url": f"http://payments.test:{old.port}"}}
        async with neighbour(sqlite_store(tmp_path), tmp_path, old, **changes) as home:
            assert status_of(await home.send("k1")) == (200, "stored")
            # The old one leaves, as after a failover or a deployment, and its name leads to the new one.
            await old.__aexit__()
            assert status_of(await home.send("k2")) == (502, "upstream-unreachable")
            addresses[:] = ["::1"]
            await until((200, "stored"), home.send, "k2")
            assert status_of(await home.send("k1")) == (200, "replayed")
            assert (len(old.requests), len(new.requests)) == (1, 1)
            # An address that refuses is no reason to give up the next.
            addresses[:] = ["127.0.0.1", "::1"]
            for key in ("k3", "k4"):
                assert status_of(await home.send(key)) == (200, "stored")
            assert len(new.requests) == 3
