"""The recipes for callers: each configuration passes `check`, starts, and does what its page says."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from cryptography.x509 import UniformResourceIdentifier

from gateway.app.gateway import Gateway
from gateway.cli import main
from gateway.config import parse
from tests.support import http
from tests.support.house import BODY, JSON, status_of
from tests.support.issuer import Issuer, bearer, signing_key
from tests.support.tls import Authority
from tests.support.upstream import Answer, Received, RecordingUpstream

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "config" / "examples").glob("*.yaml"))}
PAGE = (ROOT / "docs" / "configure" / "scopes.md").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Caller:
    """How somebody calls, and is refused where nobody can be made out."""

    headers: tuple[tuple[str, str], ...] = ()
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A gateway behind or beside the neighbours of a recipe. Two callers, and one that is nobody."""

    port: int
    upstream: RecordingUpstream
    callers: tuple[Caller, ...]
    nobody: Caller
    refusal: int | None

    async def send(self, caller: Caller, key: str = "k1") -> http.Response:
        headers = [JSON, ("Idempotency-Key", key), *caller.headers]
        return await http.request(self.port, "POST", "/v1/payments", headers, BODY, tls=caller.tls)


def oauth2_proxy(request: Received) -> Answer:
    """As it responds to `/oauth2/auth` with `--set-xauthrequest`."""
    assert request.target == b"/oauth2/auth"
    cookies = {b"_oauth2_proxy=a": "alice", b"_oauth2_proxy=b": "bob"}
    name = next((name for cookie in request.values("Cookie") if (name := cookies.get(cookie))), None)
    if name is None:
        return Answer(401, "Unauthorized", (("Content-Type", "text/plain; charset=utf-8"),), b"Unauthorized\n")
    named = (("X-Auth-Request-User", name), ("X-Auth-Request-Email", f"{name}@shop.example"))
    return Answer(202, "Accepted", named, b"")


@asynccontextmanager
async def running(name: str, tmp_path: Path) -> AsyncIterator[Recipe]:
    """The gateway of a recipe, with addresses and files of this machine."""
    text = EXAMPLES[name]
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        replaced = {"http://127.0.0.1:9000": upstream.url, "/var/lib/idempotency-gateway": f"{tmp_path}/state"}
        nobody, refusal = Caller(), 401
        match name:
            case "oauth2-proxy":
                authority = await stack.enter_async_context(RecordingUpstream())
                authority.on(None, oauth2_proxy)
                replaced["http://127.0.0.1:4180"] = authority.url
                callers = [Caller((("Cookie", f"_oauth2_proxy={cookie}"),)) for cookie in "ab"]
                nobody = Caller((("X-Auth-Request-User", "alice"),))
            case "envoy":
                replaced["10.1.0.0/16"] = "127.0.0.0/8"
                callers = [Caller((("X-User-Id", user),)) for user in ("alice", "bob")]
                refusal = 400
            case "keycloak" | "auth0":
                issuer = await stack.enter_async_context(Issuer(signing_key("k1", "RS256")))
                jwt = yaml.safe_load(text)["routes"][0]["scope"]["jwt"]
                named = {"aud": jwt["audience"]}
                if name == "auth0":
                    replaced[jwt["keys"]] = issuer.keys_url
                    named["iss"] = jwt["issuer"]
                else:
                    replaced[jwt["issuer"]] = issuer.url
                *callers, nobody = (
                    Caller((bearer(issuer.token(time.time(), subject, **named | other)),))
                    for subject, other in (("a", {}), ("b", {}), ("a", {"aud": "another-api"}))
                )
            case _:
                tls = Authority(tmp_path)
                own = tls.issue("localhost", "127.0.0.1")
                files = {"tls.crt": own.cert, "tls.key": own.key, "bundle.pem": tls.ca_file}
                replaced |= {f"/run/mesh/{old}": str(new) for old, new in files.items()}
                names = [UniformResourceIdentifier(f"spiffe://shop/{each}") for each in ("orders", "billing")]
                callers = [Caller(tls=tls.client_context(tls.issue_to(each))) for each in names]
                nobody, refusal = Caller(tls=tls.client_context()), None
        for old, new in replaced.items():
            assert old in text, old
            text = text.replace(old, new)
        text = re.sub(r"0\.0\.0\.0:[0-9]+", "127.0.0.1:0", text)
        text += f"state_dir: {tmp_path}/state\nstatus: {{listen: 127.0.0.1:0}}\nshutdown: {{delay: 0s}}\n"
        gateway = Gateway(parse(text))
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        yield Recipe(gateway.address[1], upstream, tuple(callers), nobody, refusal)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_it_tells_callers_apart(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is written, but for files of another machine, `check` has no remark. Each caller has its own keys, and
    whoever is none is refused before anything is claimed."""
    path = tmp_path / "written.yaml"
    path.write_text(EXAMPLES[name])
    assert main(["check", "--strict", "--without-files", "--config", str(path)]) == 0, capsys.readouterr().out
    async with running(name, tmp_path) as it:
        alice, bob = it.callers
        for caller, verdict in ((alice, "stored"), (alice, "replayed"), (bob, "stored")):
            assert status_of(await it.send(caller)) == (200, verdict)
        if it.refusal is None:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await it.send(it.nobody)
        else:
            assert status_of(await it.send(it.nobody)) == (it.refusal, "scope-missing")
        assert len(it.upstream.requests) == 2
        if name == "oauth2-proxy":
            assert it.upstream.requests[0].values("X-Auth-Request-Email") == [b"alice@shop.example"]


def test_the_page_names_every_recipe() -> None:
    linked = re.findall(r"\(\.\./\.\./config/examples/([a-z0-9-]+)\.yaml\)", PAGE)
    assert sorted(linked) == sorted(EXAMPLES)
