"""Pages of other origins, in a browser: what they may send, and what they may read.

`fetch` does what a browser does (the Fetch standard, sections 3.3 and 4.8): it asks first whether it may send, and
shows a page no more of a response than the response allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.accepting import ASYNC, SECRETS
from tests.support.house import BODY, JSON, House, house, sqlite_store
from tests.support.http import Response
from tests.support.upstream import Answer

SHOP, OTHER = "https://shop.example", "https://other.example"
SIMPLE_RESPONSE_HEADERS = {"cache-control", "content-language", "content-length", "content-type", "expires"} | {
    "last-modified",
    "pragma",
}
ALLOWING = (("Access-Control-Allow-Origin", SHOP), ("Vary", "Origin"))
PREFLIGHT = Answer(
    204,
    headers=(
        *ALLOWING,
        ("Access-Control-Allow-Methods", "POST"),
        ("Access-Control-Allow-Headers", "content-type, idempotency-key, x-tenant"),
    ),
)
ACCEPTING: dict[str, Any] = {"route": {"accept": {"identity": "unverified"}}, "secrets": SECRETS}
CREATED = Answer(201, headers=(*ALLOWING, ("Location", "/charges/1"), ("Access-Control-Expose-Headers", "X-Nonce")))


def members(response: Response, name: str) -> set[str]:
    return {part.strip().lower() for value in response.values(name) for part in value.decode().split(",")}


def allows(response: Response, origin: str) -> bool:
    return response.values("Access-Control-Allow-Origin") in ([b"*"], [origin.encode()])


async def fetch(
    home: House, target: str = "/charges", method: str = "POST", *, key: str | None = "k1", origin: str = SHOP
) -> dict[str, str] | None:
    """Status and headers as a page sees them; None where the browser keeps the response, or the request."""
    headers = [("X-Tenant", "t1"), JSON] + ([] if key is None else [("Idempotency-Key", key)])
    names = ",".join(sorted(name.lower() for name, _ in headers))
    asked = [("Access-Control-Request-Method", method), ("Access-Control-Request-Headers", names)]
    preflight = await http.request(home.port, "OPTIONS", target, [("Origin", origin), *asked], b"")
    may_send = (
        allows(preflight, origin)
        and 200 <= preflight.status < 300
        and method.lower() in members(preflight, "Access-Control-Allow-Methods") | {"get", "head", "post"}
        and set(names.split(",")) <= members(preflight, "Access-Control-Allow-Headers")
    )
    if not may_send:
        return None
    body = BODY if method == "POST" else b""
    response = await http.request(home.port, method, target, [("Origin", origin), *headers], body)
    if not allows(response, origin):
        return None
    shown = SIMPLE_RESPONSE_HEADERS | members(response, "Access-Control-Expose-Headers")
    found = {name.decode().lower(): value.decode() for name, value in response.headers}
    return {":status": str(response.status)} | {name: value for name, value in found.items() if name in shown}


async def test_a_page_reads_first_response_and_replay(tmp_path: Path) -> None:
    """The preflight reaches the service, the request runs once, and the gateway's headers can be read."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        home.upstream.on("/charges", PREFLIGHT, CREATED, PREFLIGHT)
        first, repeat = await fetch(home), await fetch(home)
        assert [request.method for request in home.upstream.requests] == ["OPTIONS", "POST", "OPTIONS"]
        preflight = home.upstream.requests[0]
        assert preflight.values("Access-Control-Request-Headers") == [b"content-type,idempotency-key,x-tenant"]
        assert first is not None
        assert repeat is not None
        assert (first["idempotency-status"], repeat["idempotency-status"]) == ("stored", "replayed")
        assert repeat["idempotent-replayed"] == "true"
        assert first["x-nonce"] == repeat["x-nonce"]
        assert first["idempotency-expires"] == repeat["idempotency-expires"]
        # What the service keeps from the page stays so.
        assert "location" not in first | repeat


async def test_a_service_that_allows_nobody(tmp_path: Path) -> None:
    """Nothing is allowed or exposed in its place, whatever the configuration says of the gateway's own responses."""
    async with house(sqlite_store(tmp_path), tmp_path, cors={"origins": [SHOP]}) as home:
        assert await fetch(home) is None
        response = await home.send(headers=[("Origin", SHOP)])
        assert response.status == 200
        assert not [name for name, _ in response.headers if name.lower().startswith(b"access-control-")]


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [([], None), ([SHOP], None), ([OTHER], OTHER), ("any", "*")],
    ids=["none", "shop", "other", "any"],
)
async def test_a_replay_to_another_origin(tmp_path: Path, origins: object, allowed: str | None) -> None:
    """It does not say what the service said of the first one. The configuration may allow the other."""
    async with house(sqlite_store(tmp_path), tmp_path, cors={"origins": origins}) as home:
        home.upstream.on("/charges", CREATED)
        await home.send(headers=[("Origin", SHOP)])
        other = await home.send(headers=[("Origin", OTHER)])
        assert (other.status, other.header("Idempotency-Status")) == (201, "replayed")
        assert (other.header("Access-Control-Allow-Origin"), other.header("Vary")) == (allowed, "Origin")
        assert ("idempotency-status" in members(other, "Access-Control-Expose-Headers")) == (allowed is not None)
        for headers in ([("Origin", SHOP)], []):
            assert (await home.send(headers=headers)).header("Access-Control-Allow-Origin") == SHOP
        assert len(home.upstream.requests) == 1


@pytest.mark.parametrize("credentials", [False, True])
async def test_a_problem_of_the_gateway(tmp_path: Path, credentials: bool) -> None:
    """It is readable for the configured origins alone, and a cache keeps them apart."""
    cors = {"origins": [SHOP], "credentials": credentials}
    async with house(sqlite_store(tmp_path), tmp_path, cors=cors) as home:
        home.upstream.on("/charges", PREFLIGHT)
        seen = await fetch(home, key="k" * 300)
        assert seen is not None
        assert (seen[":status"], seen["idempotency-status"]) == ("400", "key-invalid")
        response = await home.send("k" * 300, headers=[("Origin", SHOP)])
        assert response.values("Access-Control-Allow-Credentials") == [b"true"] * credentials
        for headers in ([], [("Origin", OTHER)], [("Origin", "null")], [("Origin", SHOP), ("Origin", OTHER)]):
            refused = await home.send("k" * 300, headers=headers)
            assert (refused.values("Access-Control-Allow-Origin"), refused.values("Vary")) == ([], [b"Origin"])


async def test_the_status_of_an_accepted_request(tmp_path: Path) -> None:
    """A page of a configured origin follows its operation, whose preflight the gateway answers; no other page does."""
    async with house(sqlite_store(tmp_path), tmp_path, **ACCEPTING, cors={"origins": [SHOP]}) as home:
        home.upstream.on("/charges", Answer(503))
        response = await home.send(headers=[ASYNC, ("Origin", SHOP)])
        assert response.status == 202
        assert {"location", "retry-after"} <= members(response, "Access-Control-Expose-Headers")
        target = response.header("Location") or ""
        seen = await fetch(home, target, "GET", key=None)
        assert seen is not None
        assert (seen[":status"], "etag" in seen) == ("200", True)
        assert await fetch(home, target, "GET", key=None, origin=OTHER) is None
