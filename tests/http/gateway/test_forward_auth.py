"""Forward-auth through a whole gateway: an authorising service names callers, refuses them, and misbehaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.asking import metric
from tests.support import http
from tests.support.accepting import ASYNC, SECRETS
from tests.support.clocks import Clocks
from tests.support.eventually import eventually
from tests.support.house import House, neighbour, sqlite_store, status_of
from tests.support.tls import Authority
from tests.support.upstream import Answer, Ending, Framing, Received, RecordingUpstream

ALICE = ("Authorization", "Bearer alice-s3cr3t")
BOB = ("Authorization", "Bearer bob-s3cr3t")
MIB = 1 << 20


def permission(*headers: tuple[str, str], body: bytes = b"ok") -> Answer:
    return Answer(200, headers=headers, body=body)


def by_token(request: Received) -> Answer:
    """Alice and Bob may, each under her or his own name; nobody else."""
    (token,) = request.values("Authorization") or [b""]
    name = token.decode().removeprefix("Bearer ").removesuffix("-s3cr3t")
    if name not in ("alice", "bob"):
        return Answer(401, "Unauthorized", (("WWW-Authenticate", 'Bearer realm="shop"'),), b"who are you?")
    return permission(("X-User-Id", name), ("X-User-Email", f"{name}@shop.example"))


OPTIONAL_KEY = {"key": {"header": "Idempotency-Key"}}


@dataclass
class Guarded:
    """A gateway, and the service that it asks."""

    home: House
    authority: RecordingUpstream

    async def send(self, *headers: tuple[str, str], key: str | None = "k1", **options: Any) -> http.Response:
        return await self.home.send(key, tenant=None, headers=headers, **options)

    @property
    def forwarded(self) -> list[Received]:
        return self.home.upstream.requests


async def decisions(it: Guarded, decision: str) -> float:
    return await metric(it.home, "forward_auth_total", decision=decision)


@asynccontextmanager
async def guarded(
    directory: Path,
    *scripts: Answer | Callable[[Received], Answer],
    settings: dict[str, Any] | None = None,
    authorize: bool = False,
    tenant: str | None = None,
    tls: Authority | None = None,
    **changes: Any,
) -> AsyncIterator[Guarded]:
    """A gateway whose scope is the principal or, with `authorize`, a shared one whose requests are asked about."""
    context = None if tls is None else tls.issue("127.0.0.1").server_context()
    async with RecordingUpstream(tls=context) as authority, RecordingUpstream() as upstream:
        authority.on(None, *(scripts or (by_token,)))
        asked = {"url": f"{authority.url}/auth?app=shop", **(settings or {})}
        route = changes.pop("route", {})
        scope: Any = {"forward_auth": {"principal": "X-User-Id"} | asked}
        if authorize:
            route = {"scope": "shared", "authorize": {"forward_auth": asked}} | route
        else:
            route = {"scope": {"compose": [{"header": tenant, "from": "any"}, scope]} if tenant else scope} | route
        async with neighbour(sqlite_store(directory), directory, upstream, route=route, **changes) as home:
            yield Guarded(home, authority)


# -- a decision --------------------------------------------------------------------------------------------------------


async def test_the_principal_is_the_caller(tmp_path: Path) -> None:
    """Whatever token names it: its keys are its own, and it is asked about repeats, too. A scope is for keys: without
    one nobody is asked."""
    async with guarded(tmp_path, route=OPTIONAL_KEY) as it:
        for headers, verdict in (([ALICE], "stored"), ([ALICE], "replayed"), ([BOB], "stored"), ([BOB], "replayed")):
            assert status_of(await it.send(*headers)) == (200, verdict)
        assert [len(it.forwarded), len(it.authority.requests)] == [2, 4]
        assert status_of(await it.send(ALICE, key=None)) == (200, "unkeyed")
        assert [len(it.authority.requests), await decisions(it, "allowed")] == [4, 4]


async def test_the_question(tmp_path: Path) -> None:
    """A GET without body, with method, URI and origin of the request, and with the named headers alone. The origin is
    what a trusted proxy says; method and URI are still those of the request."""
    said = {"For": "10.9.8.7", "Proto": "https", "Host": "api.shop.example", "Method": "GET", "Uri": "/forged"}
    forwarded = [(f"X-Forwarded-{name}", value) for name, value in said.items()]
    async with guarded(tmp_path) as it:
        assert (
            await it.send(ALICE, ("Cookie", "a=1"), ("X-Other", "x"), *forwarded, target="/charges?x=%2f1")
        ).status == 200
        (question,) = it.authority.requests
        assert (question.method, question.target, question.body) == ("GET", b"/auth?app=shop", b"")
        expected = {
            "Authorization": "Bearer alice-s3cr3t", "Cookie": "a=1", "Host": f"127.0.0.1:{it.authority.port}",
            "Via": "1.1 idempotency-gateway", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": "gateway.test",
            "X-Forwarded-Method": "POST", "X-Forwarded-Proto": "http", "X-Forwarded-Uri": "/charges?x=%2f1",
        }  # fmt: skip
        assert sorted(question.headers) == [(name.encode(), value.encode()) for name, value in sorted(expected.items())]
    heard = said | {"For": "10.9.8.7, 127.0.0.1", "Method": "POST", "Uri": "/charges"}
    changes: dict[str, Any] = {"trusted_proxies": ["127.0.0.0/8"], "settings": {"headers": ["X-Token"]}}
    async with guarded(tmp_path / "behind-a-proxy", **changes) as it:
        it.authority.on(None, permission(("X-User-Id", "alice")))
        assert (await it.send(ALICE, ("X-Token", "t"), *forwarded)).status == 200
        (question,) = it.authority.requests
        assert {name: question.values(f"X-Forwarded-{name}") for name in said} == {
            name: [value.encode()] for name, value in heard.items()
        }
        assert [question.values("X-Token"), question.values("Authorization")] == [[b"t"], []]


async def test_over_tls(tmp_path: Path) -> None:
    """A service whose certificate is trusted is asked, and another one is not."""
    tls = Authority(tmp_path)
    async with guarded(tmp_path, tls=tls, settings={"ca": str(tls.ca_file)}) as it:
        assert status_of(await it.send(ALICE)) == (200, "stored")
    async with guarded(tmp_path / "other", tls=tls) as it:
        assert status_of(await it.send(ALICE)) == (503, "identity-unavailable")
        assert it.authority.requests == []


@pytest.mark.parametrize(
    "refusal",
    [
        Answer(302, "Found", (("Location", "https://login.example/?rd=%2Fcharges"),), b"", Framing.LENGTH),
        Answer(304, "Not Modified", (("ETag", '"1"'),), b"", Framing.NONE),
        Answer(401, "Unauthorized", (("WWW-Authenticate", "Basic"), ("Set-Cookie", "a="), ("Set-Cookie", "b="))),
        Answer(403, "Forbidden", body=b"x" * MIB),
        Answer(403, "Forbidden", body=(b"not ", b"you"), framing=Framing.CHUNKED),
        Answer(499, "Odd", body=b"until the end", framing=Framing.CLOSE),
    ],
    ids=["redirect", "not-modified", "challenge", "a-mebibyte", "chunked", "by-close"],
)
async def test_a_refusal(tmp_path: Path, refusal: Answer) -> None:
    """The client gets it as it is, nobody follows it, and nothing was claimed: permission helps at once."""
    async with guarded(tmp_path, refusal, by_token) as it:
        response = await it.send(ALICE)
        assert status_of(response) == (refusal.status, "scope-missing")
        body = refusal.body if isinstance(refusal.body, bytes) else b"".join(map(bytes, refusal.body))  # type: ignore[arg-type]
        assert (response.reason, response.body, response.complete) == (refusal.reason.encode(), body, True)
        for name, _ in refusal.headers:
            wanted = [value.encode() for each, value in refusal.headers if each == name]
            assert response.values(name) == wanted
        assert [len(it.authority.requests), len(it.forwarded)] == [1, 0]
        assert status_of(await it.send(ALICE)) == (200, "stored")
        assert [await decisions(it, "refused"), await decisions(it, "allowed")] == [1, 1]


UNDECIDED: dict[str, Answer] = {
    "500": Answer(500, "Error"),
    "no-principal": permission(("X-User-Email", "a@shop.example")),
    "empty-principal": permission(("X-User-Id", " ")),
    "two-principals": permission(("X-User-Id", "alice"), ("x-user-id", "bob")),
    "long-refusal": Answer(403, "Forbidden", body=b"x" * (MIB + 1)),
    "long-refusal-chunked": Answer(403, "Forbidden", body=(b"x" * MIB, b"x"), framing=Framing.CHUNKED),
    "cut-permission": Answer(200, headers=(("X-User-Id", "alice"),), bytes_max=60, ending=Ending.CLOSE),
    "silence": Answer(bytes_max=0, ending=Ending.SILENCE),
    "slow-permission": Answer(200, headers=(("X-User-Id", "alice"),), body=(b"a", asyncio.Event(), b"b")),
    "upgrade": Answer(echo=True),
    "no-http": Answer(raw=b"+OK ready\r\n\r\n"),
    "endless-interim": Answer(interim=((103, ()),) * 200, headers=(("X-User-Id", "alice"),)),
}


@pytest.mark.parametrize("fault", UNDECIDED)
async def test_no_decision(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is no decision says nothing about the caller: 503, nothing claimed or sent, and a repeat is served."""
    async with guarded(tmp_path, UNDECIDED[fault], by_token, settings={"timeout": "400ms"}) as it:
        with caplog.at_level(logging.DEBUG):
            response = await it.send(ALICE)
        assert status_of(response) == (503, "identity-unavailable")
        assert response.header("Retry-After") == "1"
        assert (response.json()["code"], response.json()["retryable"]) == ("identity-unavailable", True)
        assert [len(it.authority.requests), len(it.forwarded)] == [1, 0]
        said = [record for record in caplog.records if "does not decide" in record.getMessage()]
        assert [record.levelname for record in said] == ["WARNING"]
        assert not any(word in caplog.text for word in ("s3cr3t", "alice", "app=shop"))
        assert status_of(await it.send(ALICE)) == (200, "stored")
        assert [await decisions(it, "unavailable"), await decisions(it, "allowed")] == [1, 1]


async def test_too_many_questions(tmp_path: Path) -> None:
    """No more requests wait for decisions than may be in flight; others hear at once that they should come again."""
    hold = asyncio.Event()
    slow = Answer(200, headers=(("X-User-Id", "alice"),), hold=hold)
    async with guarded(tmp_path, slow, limits={"max_in_flight": 2}) as it:
        waiting = [asyncio.create_task(it.send(ALICE, key=f"k{number}")) for number in range(2)]
        await it.authority.wait_for_requests(2)
        assert status_of(await it.send(ALICE, key="k3")) == (503, "identity-unavailable")
        hold.set()
        assert {status_of(await each) for each in waiting} == {(200, "stored")}


async def test_composed(tmp_path: Path) -> None:
    async with guarded(tmp_path, tenant="X-Tenant") as it:
        sent = [("t1", ALICE, "stored"), ("t1", BOB, "stored"), ("t2", ALICE, "stored"), ("t1", ALICE, "replayed")]
        for tenant, token, verdict in sent:
            assert status_of(await it.send(token, ("X-Tenant", tenant))) == (200, verdict)
        assert (await it.send(ALICE)).status == 400
        assert len(it.authority.requests) == 4


# -- what is remembered ------------------------------------------------------------------------------------------------


async def test_a_remembered_permission(tmp_path: Path) -> None:
    """It counts for the very same method, URI and headers, and for no longer than it is configured."""
    clocks = Clocks(tmp_path)
    settings = {"cache": "30s", "copy": ["X-User-Email"]}
    async with guarded(tmp_path, settings=settings, surround=clocks.surround) as it:
        for key in ("k1", "k2"):
            assert status_of(await it.send(ALICE, key=key)) == (200, "stored")
        assert [len(it.authority.requests), await decisions(it, "remembered")] == [1, 1]
        assert [each.values("X-User-Email") for each in it.forwarded] == [[b"alice@shop.example"]] * 2
        for number, (headers, target) in enumerate(
            (([BOB], "/charges"), ([ALICE, ("Cookie", "x")], "/charges"), ([ALICE], "/charges?x=1")), 2
        ):
            await it.send(*headers, key="k3", target=target)
            assert len(it.authority.requests) == number
        clocks.pass_time(29, it.home)
        assert (await it.send(ALICE)).status == 200
        assert len(it.authority.requests) == 4
        clocks.pass_time(2, it.home)
        it.authority.on(None, Answer(403, "Forbidden"))
        assert [status_of(await it.send(ALICE)) for _ in range(2)] == [(403, "scope-missing")] * 2
        it.authority.on(None, by_token)
        assert status_of(await it.send(ALICE)) == (200, "replayed")


# -- headers for the service -------------------------------------------------------------------------------------------

FORGED = (("X-User-Id", "bob"), ("X_User_Email", "bob@evil.example"), ("x-user-email", "root@evil.example"))


@pytest.mark.parametrize("copy", [["X-User-Email"], ["X-User-Id", "X-User-Email"]], ids=["email", "principal-too"])
async def test_what_the_service_gets(tmp_path: Path, copy: list[str]) -> None:
    """The headers that are copied, from the authorising service alone; a caller that sends them gets nowhere."""
    async with guarded(tmp_path, settings={"copy": copy}) as it:
        connection = ("Connection", "X-User-Email, X_User_Id")
        for key, headers in (("k1", (ALICE,)), ("k2", (ALICE, *FORGED)), ("k3", (ALICE, *FORGED, connection))):
            assert status_of(await it.send(*headers, key=key)) == (200, "stored")
        for request in it.forwarded:
            named = [(name.decode(), value) for name, value in request.headers if b"user" in name.lower()]
            wanted = [("X-User-Id", b"alice"), ("X-User-Email", b"alice@shop.example")]
            assert named == [header for header in wanted if header[0] in copy]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
async def test_a_caller_that_names_itself(tmp_path: Path, method: str) -> None:
    """Nothing of that reaches the service, protected or not, on any path."""
    route = OPTIONAL_KEY | {"match": {"path": "/charges/{id}"}}
    async with guarded(tmp_path, settings={"copy": ["X-User-Email"]}, route=route) as it:
        for target in ("/charges/7", "/CHARGES/7", "/charges/7/", "/other"):
            await it.send(*FORGED, key=None, method=method, target=target)
        assert it.forwarded[-1].target == b"/other"
        assert not any(b"user" in name.lower() for each in it.forwarded for name, _ in each.headers)
        assert it.authority.requests == []


@pytest.mark.parametrize("connection", ["Upgrade", "Upgrade, X-User-Id"])
async def test_a_tunnel(tmp_path: Path, connection: str) -> None:
    """Nor does a handshake carry a name of the caller's own, whether or not it says that the name is for one hop."""
    upgrade = [("Connection", connection), ("Upgrade", "websocket")]
    async with guarded(tmp_path) as it:
        it.home.upstream.on("/charges", Answer(echo=True))
        data = http.request_bytes("GET", "/charges", [*upgrade, *FORGED])
        async with http.Connection(it.home.port) as client:
            await client.send(data)
            assert (await client.read_response()).status == 101
        (request,) = it.forwarded
        assert [request.values("Upgrade"), request.values("X-User-Id")] == [[b"websocket"], []]


async def test_an_accepted_request(tmp_path: Path) -> None:
    """It is delivered with what was handed on when it was accepted; its status is guarded as it was itself."""
    route = OPTIONAL_KEY | {"accept": {}, "delivery": {"schedule": ["1s", "1s", "1s"]}}
    async with guarded(tmp_path, settings={"copy": ["X-User-Email"]}, route=route, secrets=SECRETS) as it:
        it.home.upstream.on("/charges", Answer(503, "Busy"), Answer(201, "Created"))
        accepted = await it.send(ALICE, ASYNC, *FORGED)
        assert status_of(accepted) == (202, "accepted")
        url = accepted.header("Location") or ""
        await it.home.upstream.wait_for_requests(2, 30)
        assert [each.values("X-User-Email") for each in it.forwarded] == [[b"alice@shop.example"]] * 2
        assert len(it.authority.requests) == 1

        async def seen(*headers: tuple[str, str]) -> http.Response:
            return await it.send(*headers, key=None, method="GET", target=url)

        async def is_done() -> bool:
            return bool((await seen(ALICE)).json()["done"])

        await eventually(is_done, 10, "the delivery")
        asked = [it.authority.requests[-1].values(f"X-Forwarded-{name}") for name in ("Uri", "Method")]
        assert asked == [[url.encode()], [b"GET"]]
        assert (await seen(BOB)).status == 404
        nobody = await seen()
        assert (status_of(nobody), nobody.body) == ((401, "scope-missing"), b"who are you?")
        it.authority.on(None, Answer(500, "Error"))
        assert status_of(await seen(ALICE)) == (503, "identity-unavailable")


# -- authorize ---------------------------------------------------------------------------------------------------------


async def test_authorize_asks_about_every_request(tmp_path: Path) -> None:
    """With a key or without: it may be made, with what is handed on, or it is refused and goes nowhere."""
    async with guarded(tmp_path, authorize=True, settings={"copy": ["X-User-Email"]}, route=OPTIONAL_KEY) as it:
        assert status_of(await it.send(ALICE, *FORGED)) == (200, "stored")
        assert status_of(await it.send(BOB)) == (200, "replayed")
        assert status_of(await it.send(ALICE, *FORGED, key=None)) == (200, "unkeyed")
        assert [each.values("X-User-Email") for each in it.forwarded] == [[b"alice@shop.example"]] * 2
        for key in (None, "k1", "k2"):
            refused = await it.send(key=key)
            assert (status_of(refused), refused.body) == ((401, "scope-missing"), b"who are you?")
        it.authority.on(None, Answer(500, "Error"))
        for key in (None, "k1"):
            assert status_of(await it.send(ALICE, key=key)) == (503, "identity-unavailable")
        assert [len(it.forwarded), len(it.authority.requests)] == [2, 8]
        assert (await it.send(key=None, method="GET")).status == 200
        assert len(it.authority.requests) == 8


@pytest.mark.parametrize("authorize", [False, True], ids=["scope", "authorize"])
async def test_a_method_that_nobody_was_asked_about(tmp_path: Path, authorize: bool) -> None:
    """A header that the service may take for method or path is refused, before anybody is asked; the same method is
    none."""
    async with guarded(tmp_path, authorize=authorize) as it:
        for name, value in (
            ("X-HTTP-Method-Override", "DELETE"),
            ("X-HTTP-Method", "PUT, POST"),
            ("X-Method-Override", ""),
            ("X-Original-URL", "/admin"),
            ("X-Rewrite-Url", "https://shop.example/admin"),
        ):
            assert status_of(await it.send(ALICE, (name, value))) == (400, "scope-unsuitable"), name
        assert [it.authority.requests, it.forwarded] == [[], []]
        assert status_of(await it.send(ALICE, ("X-HTTP-Method-Override", "POST"))) == (200, "stored")


async def test_authorize_guards_the_status(tmp_path: Path) -> None:
    """Whoever may not make a request is not shown what became of it."""
    route = {"accept": {}, "delivery": {"schedule": ["1s"]}}
    async with guarded(tmp_path, authorize=True, route=route, secrets=SECRETS) as it:
        url = (await it.send(ALICE, ASYNC)).header("Location") or ""
        assert (await it.send(BOB, key=None, method="GET", target=url)).status == 200
        for target in (url, f"{url}/result"):
            refused = await it.send(key=None, method="GET", target=target)
            assert (status_of(refused), refused.body) == ((401, "scope-missing"), b"who are you?")
        assert (await it.send(key=None, method="DELETE", target=url)).status == 401


# -- settings ----------------------------------------------------------------------------------------------------------


async def test_a_fetch_is_by_the_caller_that_was_named(tmp_path: Path) -> None:
    """What the authorising service says of a caller goes along with the fetch, and never what the client says."""
    response = {"reference": "/id", "replay": "fetch", "fetch": "/v1/payments/{reference}"}
    async with guarded(tmp_path, settings={"copy": ["X-User-Email"]}, route={"response": response}) as it:
        it.home.upstream.on("/charges", Answer(201, body=b'{"id":"pay_7"}'))
        forged = [("X-User-Id", "root"), ("X-User-Email", "root@shop.example")]
        assert (await it.send(ALICE, *forged)).status == 201
        assert status_of(await it.send(ALICE, *forged)) == (200, "fetched")
        fetch = it.forwarded[-1]
        assert (fetch.method, fetch.target) == ("GET", b"/v1/payments/pay_7")
        assert fetch.values("X-User-Email") == [b"alice@shop.example"]
        assert b"root" not in fetch.values("X-User-Id")
