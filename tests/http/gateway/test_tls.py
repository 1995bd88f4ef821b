"""TLS on both sides: callers are served over it, and the upstream is believed only with its certificate."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import DNSName, UniformResourceIdentifier

from gateway.app.gateway import Gateway
from gateway.app.life import StartError
from gateway.app.parts import Environment
from gateway.config import parse
from tests.support import http
from tests.support.house import BODY, JSON, House, config_text, house, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.tls import Authority
from tests.support.upstream import RecordingUpstream

KEYED = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    directory = tmp_path / "tls"
    directory.mkdir()
    return Authority(directory)


async def test_both_sides(sqlite: dict[str, Any], tmp_path: Path, authority: Authority) -> None:
    """A charge over TLS to the gateway, and over TLS to the upstream, is recorded and replayed. An upstream whose
    certificate is not trusted gets nothing, and that is known."""
    certificate = authority.issue("localhost", "127.0.0.1")
    listen = {"address": "127.0.0.1:0", "tls": {"cert": str(certificate.cert), "key": str(certificate.key)}}
    upstream_tls = {"tls": {"ca": str(authority.ca_file)}}
    async with (
        RecordingUpstream(tls=certificate.server_context()) as upstream,
        neighbour(sqlite, tmp_path, upstream, listen=listen, upstream=upstream_tls) as home,
        neighbour(sqlite, tmp_path / "distrustful", upstream) as other,
    ):
        assert status_of(await other.send("k2")) == (502, "upstream-unreachable")
        assert upstream.requests == []
        for verdict in ("stored", "replayed"):
            response = await http.request(home.port, "POST", "/charges", KEYED, BODY, tls=authority.client_context())
            assert status_of(response) == (200, verdict)
        assert len(upstream.requests) == 1
        assert upstream.requests[0].values("X-Forwarded-Proto") == [b"https"]


def lock(file: Path) -> None:
    key = load_pem_private_key(file.read_bytes(), None)
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))


CERTIFICATE, REVOCATIONS = "-----BEGIN CERTIFICATE-----\n", "-----BEGIN X509 CRL-----\n"
# Which of the files, what is wrong with it, and what is said of it.
UNUSABLE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("cert", Path.unlink, ": No such file or directory"),
    "no-certificate": ("cert", lambda file: file.write_text("nothing\n"), " holds no certificate in PEM"),
    "cut-off": ("cert", lambda file: file.write_bytes(file.read_bytes()[:100]), " with "),
    "no-key": ("key", lambda file: file.write_text(CERTIFICATE), " holds no private key in PEM"),
    "encrypted": ("key", lock, " is encrypted; a key without a passphrase is needed"),
    "no-authority": ("ca", lambda file: file.write_text("nothing\n"), ""),
    "authority-cut-off": ("ca", lambda file: file.write_text(CERTIFICATE), ""),
    "revocations": ("ca", lambda file: file.write_text(CERTIFICATE + REVOCATIONS), ""),
}


@pytest.mark.parametrize("fault", UNUSABLE)
@pytest.mark.parametrize("side", ["listen", "upstream"])
async def test_unusable_files(tmp_path: Path, authority: Authority, side: str, fault: str) -> None:
    """A file that cannot be used ends the start, on either side, and the text names the file and the fault."""
    own = authority.issue("localhost")
    files = {"cert": str(own.cert), "key": str(own.key), "ca": str(authority.ca_file)}
    name, spoil, why = UNUSABLE[fault]
    spoil(Path(files[name]))
    if (side, fault) == ("listen", "revocations"):
        why = " holds a revocation list"
    expected = re.escape(f"{files[name]}{why}")
    ca = files.pop("ca")
    sides = {
        "listen": {"address": "127.0.0.1:0", "tls": files | {"client_ca": ca}},
        "upstream": {"tls": {**files, "ca": ca}},
    }
    with pytest.raises(StartError, match=expected):
        Gateway(parse(config_text("https://127.0.0.1:9", sqlite_store(tmp_path), tmp_path, **{side: sides[side]})))


ORDERS = UniformResourceIdentifier("spiffe://shop.example/orders")
BILLING = UniformResourceIdentifier("spiffe://shop.example/billing")


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


@pytest.mark.parametrize(
    ("part", "verdicts"),
    [
        ("subject", ["stored", "replayed", "replayed", "replayed"]),
        ("san", ["stored", "replayed", "replayed", "stored"]),
        ("sha256", ["stored", "stored", "stored", "stored"]),
    ],
)
async def test_a_caller_by_its_name(tmp_path: Path, authority: Authority, part: str, verdicts: list[str]) -> None:
    """Renewed, it is the same caller, but by its digest; another name is another one, and each keeps its own keys."""
    names = ((ORDERS,), (ORDERS,), (DNSName("a.shop.example"), ORDERS), (BILLING,))
    contexts = [authority.client_context(authority.issue_to(*each, common_name="orders")) for each in names]
    async with mutual(tmp_path, authority, part) as home:
        for context, verdict in zip(contexts, verdicts, strict=True):
            assert [status_of(await send(home, context))[1] for _ in range(2)] == [verdict, "replayed"]


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
