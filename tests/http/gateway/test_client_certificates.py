"""Client certificates through a whole gateway: whose is accepted, and whom it names."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import DNSName, UniformResourceIdentifier

from gateway.app.gateway import Gateway
from gateway.app.life import StartError
from gateway.app.parts import Environment
from gateway.config import parse
from tests.support import http
from tests.support.house import BODY, JSON, House, config_text, house, sqlite_store, status_of
from tests.support.http import Response
from tests.support.tls import Authority

ORDERS = UniformResourceIdentifier("spiffe://shop.example/orders")
BILLING = UniformResourceIdentifier("spiffe://shop.example/billing")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs everybody's certificates."""
    directory = tmp_path / "tls"
    directory.mkdir()
    return Authority(directory)


def listen(authority: Authority, **tls: str) -> dict[str, Any]:
    """A listener that asks for certificates of this authority."""
    own = authority.issue("localhost", "127.0.0.1")
    files = {"cert": str(own.cert), "key": str(own.key), "client_ca": str(authority.ca_file)}
    return {"address": "127.0.0.1:0", "tls": files | tls}


@asynccontextmanager
async def mutual(directory: Path, authority: Authority, part: str = "san", **changes: Any) -> AsyncIterator[House]:
    """A gateway whose scope is this part of the client's certificate."""
    tls = changes.pop("tls", {})
    route = {"scope": {"client_certificate": part}} | changes.pop("route", {})
    async with house(
        sqlite_store(directory), directory, route=route, listen=listen(authority, **tls), **changes
    ) as home:
        yield home


async def send(home: House, context: ssl.SSLContext, key: str = "k1", **options: Any) -> Response:
    headers = [JSON, ("Idempotency-Key", key)]
    return await http.request(home.port, "POST", "/charges", headers, BODY, tls=context, **options)


async def never_served(home: House, context: ssl.SSLContext) -> None:
    """With TLS 1.3 a client hears of it only after its own side of the handshake."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await send(home, context)


async def test_a_caller_by_its_name(tmp_path: Path, authority: Authority) -> None:
    """Renewed, it is the same caller; another name is another one, and nobody else's name is taken from a header."""
    contexts = [
        authority.client_context(authority.issue_to(*names))
        for names in ((ORDERS,), (DNSName("a.shop.example"), ORDERS), (BILLING,))
    ]
    async with mutual(tmp_path, authority) as home:
        assert [status_of(await send(home, context)) for context in contexts] == [
            (200, "stored"),
            (200, "replayed"),
            (200, "stored"),
        ]


@pytest.mark.parametrize("part", ["subject", "san", "sha256"])
async def test_parts(tmp_path: Path, authority: Authority, part: str) -> None:
    """Two certificates of one name are one caller by subject and name, and two by their digests."""
    contexts = [authority.client_context(authority.issue_to(ORDERS, common_name="orders")) for _ in range(2)]
    async with mutual(tmp_path, authority, part) as home:
        assert status_of(await send(home, contexts[0])) == (200, "stored")
        assert status_of(await send(home, contexts[0])) == (200, "replayed")
        assert status_of(await send(home, contexts[1])) == (200, "stored" if part == "sha256" else "replayed")


async def test_without_a_certificate(tmp_path: Path, authority: Authority) -> None:
    """A client without one can connect: it gets 401 where the scope needs one, and nothing is claimed."""
    route = {"key": {"header": "Idempotency-Key"}}
    async with mutual(tmp_path, authority, route=route) as home:
        response = await send(home, authority.client_context())
        assert status_of(response) == (401, "scope-missing")
        assert response.header("WWW-Authenticate")
        assert "certificate is missing" in response.json()["detail"]
        unkeyed = await http.request(home.port, "POST", "/charges", [JSON], BODY, tls=authority.client_context())
        assert status_of(unkeyed) == (200, "unkeyed")
        assert len(home.upstream.requests) == 1


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_certificates_that_are_not_accepted(tmp_path: Path, authority: Authority, mode: str) -> None:
    """Of another authority, expired, or issued to prove a server: there is no connection, whether one is required."""
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger").issue_to(ORDERS)
    refused = [stranger, authority.issue_to(ORDERS, days=-0.5), authority.issue_to(ORDERS, usage="server")]
    async with mutual(tmp_path, authority, tls={"client_certificate": mode}) as home:
        for certificate in refused:
            await never_served(home, authority.client_context(certificate))
        assert status_of(await send(home, authority.client_context(authority.issue_to(ORDERS)))) == (200, "stored")
        if mode == "required":
            await never_served(home, authority.client_context())
        assert len(home.upstream.requests) == 1


async def test_one_that_expires_on_its_connection(tmp_path: Path, authority: Authority) -> None:
    """The connection stays, and its requests are nobody's."""
    context = authority.client_context(authority.issue_to(ORDERS, days=1))
    data = http.request_bytes("POST", "/charges", [JSON, ("Idempotency-Key", "k1")], BODY)
    days = 0.0

    def surround(environment: Environment) -> Environment:
        return replace(environment, wall_seconds=lambda: time.time() + days * 86_400)

    async with (
        mutual(tmp_path, authority, surround=surround) as home,
        http.Connection(home.port, tls=context) as connection,
    ):
        await connection.send(data)
        assert status_of(await connection.read_response("POST")) == (200, "stored")
        days = 2.0
        await connection.send(data)
        response = await connection.read_response("POST")
        assert status_of(response) == (401, "scope-missing")
        assert "expired" in response.json()["detail"]


async def test_through_a_proxy(tmp_path: Path, authority: Authority) -> None:
    """A trusted proxy's certificate is not its clients'."""
    context = authority.client_context(authority.issue_to(ORDERS))
    async with mutual(tmp_path, authority, trusted_proxies=["127.0.0.0/8"]) as home:
        response = await send(home, context)
        assert status_of(response) == (401, "scope-missing")
        assert "proxy" in response.json()["detail"]


@pytest.mark.parametrize(
    "content",
    [None, "nothing\n", "-----BEGIN CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\n-----BEGIN X509 CRL-----\n"],
    ids=["missing", "none", "cut", "revocations"],
)
async def test_unusable_authorities(tmp_path: Path, authority: Authority, content: str | None) -> None:
    """They end the start, which names the file."""
    ca = tmp_path / "clients.pem"
    if content is not None:
        ca.write_text(content)
    text = config_text(
        "http://127.0.0.1:9", sqlite_store(tmp_path), tmp_path, listen=listen(authority, client_ca=str(ca))
    )
    reason = " holds a revocation list" if content and "CRL" in content else ""
    with pytest.raises(StartError, match=f"listen.tls cannot be used: {ca}{reason}"):
        Gateway(parse(text))
