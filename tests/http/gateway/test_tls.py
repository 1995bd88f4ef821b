"""TLS on both sides: callers are served over it, and the upstream is believed only with its certificate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway.app.gateway import Gateway
from gateway.app.life import StartError
from gateway.config import parse
from tests.support import http
from tests.support.house import BODY, JSON, config_text, neighbour, status_of
from tests.support.tls import Authority
from tests.support.upstream import RecordingUpstream

KEYED = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, Any]:
    """The embedded store."""
    return {"durable": f"sqlite://{tmp_path}/store/operations.db"}


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
        for word in ("stored", "replayed"):
            response = await http.request(home.port, "POST", "/charges", KEYED, BODY, tls=authority.client_context())
            assert status_of(response) == (200, word)
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


@pytest.mark.parametrize("fault", ["missing", "not-a-certificate", "other-key"])
async def test_unusable_certificate(store: dict[str, Any], tmp_path: Path, authority: Authority, fault: str) -> None:
    """A certificate that cannot be used ends the start, and the text names the files."""
    certificate = authority.issue("localhost")
    match fault:
        case "missing":
            certificate.cert.unlink()
        case "not-a-certificate":
            certificate.cert.write_text("no certificate\n")
        case _:
            shutil.copy(authority.issue("other").key, certificate.key)
    listen = {"address": "127.0.0.1:0", "tls": {"cert": str(certificate.cert), "key": str(certificate.key)}}
    with pytest.raises(StartError, match=r"localhost\.pem"):
        Gateway(parse(config_text("http://127.0.0.1:9", store, tmp_path, listen=listen)))
