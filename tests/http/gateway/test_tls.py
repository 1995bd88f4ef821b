"""TLS on both sides: callers are served over it, and the upstream is believed only with its certificate."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.app.gateway import Gateway
from gateway.app.life import StartError
from gateway.config import parse
from tests.support import http
from tests.support.house import BODY, JSON, config_text, neighbour, sqlite_store, status_of
from tests.support.tls import Authority
from tests.support.upstream import RecordingUpstream

KEYED = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    """The embedded store."""
    return sqlite_store(tmp_path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Whom the callers and the gateway trust."""
    directory = tmp_path / "tls"
    directory.mkdir()
    return Authority(directory)


async def test_both_sides(store: dict[str, Any], tmp_path: Path, authority: Authority) -> None:
    """A charge over TLS to the gateway, and over TLS to the upstream, is recorded and replayed."""
    certificate = authority.issue("localhost", "127.0.0.1")
    listen = {"address": "127.0.0.1:0", "tls": {"cert": str(certificate.cert), "key": str(certificate.key)}}
    upstream_tls = {"tls": {"ca": str(authority.ca_file)}}
    async with (
        RecordingUpstream(tls=certificate.server_context()) as upstream,
        neighbour(store, tmp_path, upstream, listen=listen, upstream=upstream_tls) as home,
    ):
        for verdict in ("stored", "replayed"):
            response = await http.request(home.port, "POST", "/charges", KEYED, BODY, tls=authority.client_context())
            assert status_of(response) == (200, verdict)
        assert len(upstream.requests) == 1
        assert upstream.requests[0].values("X-Forwarded-Proto") == [b"https"]


async def test_upstream_with_a_strange_certificate(store: dict[str, Any], tmp_path: Path, authority: Authority) -> None:
    """An upstream whose certificate is not trusted gets nothing, and that is known."""
    certificate = authority.issue("localhost", "127.0.0.1")
    async with RecordingUpstream(tls=certificate.server_context()) as upstream:
        async with neighbour(store, tmp_path, upstream) as home:
            response = await home.send("k1")
            assert status_of(response) == (502, "upstream-unreachable")
        assert upstream.requests == []


UNUSABLE: dict[str, str] = {
    "missing": "localhost.pem: No such file or directory",
    "not-a-certificate": "localhost.pem holds no certificate in PEM",
    "swapped": "localhost.key holds no private key in PEM",
    "other-key": "localhost.key is the key of another certificate than ",
    "encrypted": "localhost.key is encrypted; a key without a passphrase is needed",
    "cut-off": "localhost.pem with ",
}


@pytest.mark.parametrize("fault", UNUSABLE)
@pytest.mark.parametrize("side", ["listen", "upstream"])
async def test_unusable_certificate(
    store: dict[str, Any], tmp_path: Path, authority: Authority, side: str, fault: str
) -> None:
    """A certificate that cannot be used ends the start, on either side, and the text names the file and the fault."""
    certificate = authority.issue("localhost")
    match fault:
        case "missing":
            certificate.cert.unlink()
        case "not-a-certificate":
            certificate.cert.write_text("no certificate\n")
        case "swapped":
            shutil.copy(certificate.cert, certificate.key)
        case "other-key":
            shutil.copy(authority.issue("other").key, certificate.key)
        case "cut-off":
            certificate.cert.write_bytes(certificate.cert.read_bytes()[:100])
        case _:
            key = load_pem_private_key(certificate.key.read_bytes(), None)
            locked = BestAvailableEncryption(b"secret")
            certificate.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    files = {"cert": str(certificate.cert), "key": str(certificate.key)}
    sides = {"listen": {"listen": {"address": "127.0.0.1:0", "tls": files}}, "upstream": {"upstream": {"tls": files}}}
    with pytest.raises(StartError, match=re.escape(UNUSABLE[fault])):
        Gateway(parse(config_text("https://127.0.0.1:9", store, tmp_path, **sides[side])))


@pytest.mark.parametrize("content", [None, "no certificate\n"], ids=["missing", "not-a-certificate"])
async def test_unusable_authority(store: dict[str, Any], tmp_path: Path, content: str | None) -> None:
    """Authorities that cannot be used end the start, and the text names their file."""
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)
    text = config_text("https://127.0.0.1:9", store, tmp_path, upstream={"tls": {"ca": str(ca)}})
    with pytest.raises(StartError, match=re.escape(f"https://127.0.0.1:9 cannot be used: {ca}")):
        Gateway(parse(text))
