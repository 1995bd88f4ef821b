"""Callers that are named by a verified token, through a whole gateway and a real issuer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from aiohttp import web

from gateway.app.parts import Environment
from gateway.callers import FETCH_PAUSE_SECONDS
from tests.http.gateway.asking import metric
from tests.support.accepting import desk
from tests.support.clocks import Clocks
from tests.support.eventually import eventually
from tests.support.house import ROUTE, House, house, sqlite_store, status_of
from tests.support.http import Response, exchange
from tests.support.issuer import AUDIENCE, DISCOVERY_PATH, KEYS_PATH, Issuer, bearer, key_set, signing_key
from tests.support.sentinel import Sentinel
from tests.support.tls import Authority

UNKNOWN = "/_operations/11111111-2222-8333-8444-555555555555"
CHALLENGE = 'Bearer error="invalid_token", error_description="{}"'


@dataclass
class Times:
    """The clocks of a gateway: both go on only when a test says so."""

    clocks: Clocks
    wall: float = 1_900_000_000.0

    def surround(self, environment: Environment) -> Environment:
        return replace(self.clocks.surround(environment), wall_seconds=lambda: self.wall)

    def pass_time(self, seconds: float, home: House) -> None:
        self.clocks.pass_time(seconds, home)
        self.wall += seconds


@dataclass
class Setting:
    """A gateway whose route takes tokens of an issuer."""

    home: House
    issuer: Issuer
    times: Times

    def token(self, sub: Any = "u1", **changes: Any) -> str:
        return self.issuer.token(self.times.wall, sub, **changes)

    async def send(self, key: str = "k1", token: str | None = None, **options: Any) -> Response:
        """A request with this token, or a fresh one; "" for none."""
        token = self.token() if token is None else token
        headers = [bearer(token)] if token else []
        return await self.home.send(key, tenant=None, headers=headers, **options)

    @property
    def executed(self) -> int:
        return len(self.home.upstream.requests)


@asynccontextmanager
async def setting(
    tmp_path: Path, issuer: Issuer | None = None, *, scope: Any = None, **issuer_settings: Any
) -> AsyncIterator[Setting]:
    """A gateway for an issuer, which listens already if it is given."""
    times = Times(Clocks(tmp_path))
    async with AsyncExitStack() as stack:
        serving = issuer or await stack.enter_async_context(Issuer())
        scope = scope or {"jwt": serving.section(**issuer_settings)}
        home = await stack.enter_async_context(
            house(sqlite_store(tmp_path), tmp_path, surround=times.surround, route={"scope": scope})
        )
        yield Setting(home, serving, times)


def refused(response: Response, description: str) -> None:
    """Whether it is a 401 that says so, to people and to libraries."""
    assert status_of(response) == (401, "scope-missing")
    assert response.header("WWW-Authenticate") == CHALLENGE.format(description)
    assert response.json()["detail"].startswith(description)


async def test_a_refreshed_token_is_the_same_caller(tmp_path: Path) -> None:
    """The attempt and its retry carry other tokens, and the retry gets its replay, by clocks that differ by no more
    than the route says."""
    async with setting(tmp_path) as it:
        first = it.token()
        assert status_of(await it.send("k1", first)) == (200, "stored")
        it.times.pass_time(3600, it.home)
        refused(await it.send("k1", first), EXPIRED)
        second = it.token(exp=int(it.times.wall) + 30, aud=["other", AUDIENCE], jti="2")
        # At first, then within the leeway, and behind it.
        for seconds in (0, 59):
            it.times.pass_time(seconds, it.home)
            assert status_of(await it.send("k1", second)) == (200, "replayed")
        it.times.pass_time(1, it.home)
        refused(await it.send("k1", second), EXPIRED)
        assert it.executed == 1
    async with setting(tmp_path / "longer", leeway="2m") as it:
        for changes in ({"exp": it.times.wall - 119}, {"nbf": it.times.wall + 120}):
            assert (await it.send("k1", it.token(**changes))).status == 200
        refused(await it.send("k1", it.token(exp=it.times.wall - 120)), EXPIRED)


async def test_callers_are_told_apart(tmp_path: Path) -> None:
    """Another subject, the same one as a number, and the same one of another issuer: each has keys of its own."""
    async with Issuer(signing_key("other")) as other, Issuer() as issuer:
        scope = {"jwt": [issuer.section(), other.section(claims=["sub", "tenant"])]}
        async with setting(tmp_path, issuer, scope=scope) as it:
            tokens = [it.token("42"), it.token(42), it.token("43")]
            tokens += [other.token(it.times.wall, "42", tenant=tenant) for tenant in ("a", "b", 7)]
            for token in tokens:
                assert [status_of(await it.send("k1", token))[1] for _ in range(2)] == ["stored", "replayed"]
            assert status_of(await it.send("k1", it.token(42.0))) == (200, "replayed")
            refused(await it.send("k1", other.token(it.times.wall, "42")), NOBODY)
            # Each issuer signs its own tokens alone.
            forged = issuer.keys[0].sign(other.claims(it.times.wall, "42", tenant="a"))
            refused(await it.send("k1", forged), NOT_SIGNED)
            assert it.executed == len(tokens)


KID = {"kid": "k1"}
NOT_SIGNED = "The token is not signed by a key of its issuer."
NOT_ITS_ISSUERS, NOBODY = "The signature of the token is not its issuer's.", "The token does not name its caller."
NOT_ACCEPTED, EXPIRED = "The token is signed by an algorithm that is not accepted.", "The token has expired."
MISSING = "A bearer token is missing."
FORGED: dict[str, tuple[Any, str]] = {
    "tampered": (
        lambda it: ".".join([*it.token().split(".")[:1], it.token("u2").split(".")[1], *it.token().split(".")[2:]]),
        NOT_ITS_ISSUERS,
    ),
    "another-key": (lambda it: it.token(key=replace(signing_key("x"), key_id="k1")), NOT_ITS_ISSUERS),
    "unknown-key": (lambda it: it.token(key=signing_key("x")), NOT_SIGNED),
    "unsigned": (lambda it: jwt.encode(it.issuer.claims(it.times.wall), None, "none", headers=KID), NOT_ACCEPTED),
    # An HMAC with the public key for its secret.
    "hmac-with-public-key": (
        lambda it: jwt.encode(
            it.issuer.claims(it.times.wall), it.issuer.keys[0].jwk["x"].encode(), "HS256", headers=KID
        ),
        NOT_ACCEPTED,
    ),
    "not-allowed": (lambda it: it.token(key=signing_key("k1", "ES384")), NOT_ACCEPTED),
    "expired": (lambda it: it.token(exp=it.times.wall - 31), EXPIRED),
    "expired-before-1970": (lambda it: it.token(exp=-1), EXPIRED),
    "without-end": (lambda it: it.token(exp=None), "The token says not when it expires."),
    "endless": (lambda it: it.token(exp=10**400), "The token is malformed."),
    "not-yet": (lambda it: it.token(nbf=it.times.wall + 31), "The token is not valid yet."),
    "for-others": (lambda it: it.token(aud=["a", "b"]), "The token is for another audience."),
    "of-others": (lambda it: it.token(iss="https://other.example"), "The token is from another issuer."),
    "of-nobody": (lambda it: it.token(iss=None), "The token names no issuer."),
    "without-subject": (lambda it: it.token(None), NOBODY),
    "critical": (
        lambda it: it.issuer.keys[0].sign(it.issuer.claims(it.times.wall), crit=["exp"]),
        "The token needs an extension that is not supported.",
    ),
    "long": (lambda it: it.token(pad="x" * 20_000), "The token is longer than 16384 bytes."),
    "no-token": (lambda it: "opaque", "The token is malformed."),
    "missing": (lambda it: "", MISSING),
}


async def test_what_is_no_token_of_ours_gets_nothing(tmp_path: Path) -> None:
    """Neither an execution nor a replay; the response says why, and repeats nothing of the token."""
    async with setting(tmp_path) as it:
        assert status_of(await it.send()) == (200, "stored")
        it.times.pass_time(FETCH_PAUSE_SECONDS, it.home)
        for make, description in FORGED.values():
            token = make(it)
            response = await it.send("k1", token)
            refused(response, description)
            assert not any(part and part.encode() in response.body for part in token.split("."))
        basic = await it.home.send("k1", tenant=None, headers=[("Authorization", "Basic dTpw")])
        refused(basic, MISSING)
        assert it.executed == 1


async def test_without_keys_nothing_is_decided(tmp_path: Path) -> None:
    """While the issuer was never reached, nobody is let in or turned away; the gateway serves all the same."""
    async with Issuer() as issuer:
        await issuer.leave()
        async with setting(tmp_path, issuer) as it:
            response = await it.send()
            assert status_of(response) == (503, "identity-unavailable")
            assert 1 <= int(response.header("Retry-After") or "") <= FETCH_PAUSE_SECONDS
            assert response.json()["retryable"] is True
            # What is wrong with a token for itself is said all the same, and other traffic passes.
            refused(await it.send(token=it.token(exp=-1)), EXPIRED)
            assert status_of(await it.send(target="/other")) == (200, None)
            await issuer.open()
            assert status_of(await it.send()) == (503, "identity-unavailable")
            assert await metric(it.home, "key_set_fetches_total", result="failed") == 1
            it.times.pass_time(FETCH_PAUSE_SECONDS, it.home)
            assert status_of(await it.send()) == (200, "stored")
            assert it.executed == 2


async def test_no_more_wait_for_keys_than_may(tmp_path: Path) -> None:
    """Those that find no place are refused at once; the others get what their keys say."""
    async with Issuer() as issuer:
        issuer.hold.clear()
        route = {"scope": {"jwt": issuer.section()}}
        async with house(sqlite_store(tmp_path), tmp_path, route=route, limits={"max_in_flight": 2}) as home:
            fields = [bearer(issuer.token(time.time()))]
            tasks = [asyncio.create_task(home.send(f"k{n}", tenant=None, headers=fields)) for n in range(5)]
            await eventually(lambda: sum(task.done() for task in tasks) == 3)
            issuer.hold.set()
            assert sorted(status_of(response) for response in await asyncio.gather(*tasks)) == [
                *[(200, "stored")] * 2,
                *[(503, "identity-unavailable")] * 3,
            ]


async def test_keys_rotate_under_load(tmp_path: Path) -> None:
    """Nobody is refused: a key that is not known yet is fetched while its first requests wait, once for all."""
    keys = [signing_key(f"r{number}", "EdDSA") for number in range(4)]
    async with Issuer(keys[0]) as issuer, setting(tmp_path, issuer) as it:
        for number, key in enumerate(keys):
            it.times.pass_time(FETCH_PAUSE_SECONDS, it.home)
            issuer.keys = keys[max(0, number - 1) : number + 1]
            older = [it.token(f"u{each}", key=keys[max(0, number - 1)]) for each in range(10)]
            newer = [it.token(f"u{each}", key=key) for each in range(10)]
            verdicts = await asyncio.gather(*(it.send("k1", token) for token in newer + older))
            assert {response.status for response in verdicts} == {200}
        assert it.executed == 10
        assert len(issuer.requests) <= len(keys) + 1


async def test_an_issuer_that_is_away(tmp_path: Path) -> None:
    """Known keys go on for as long as the route says; fifty tokens of unknown ones cause one fetch in 30 seconds."""
    async with Issuer() as issuer, setting(tmp_path, issuer, stale_for="2h") as it:
        assert status_of(await it.send()) == (200, "stored")
        issuer.answer = lambda: web.Response(status=503)
        it.times.pass_time(3600, it.home)
        assert status_of(await it.send()) == (200, "replayed")
        await issuer.wait_requests(2)
        for _ in range(2):
            it.times.pass_time(FETCH_PAUSE_SECONDS, it.home)
            before = len(issuer.requests)
            strangers = [it.token(f"u{number}", key=signing_key("x")) for number in range(50)]
            for response in await asyncio.gather(*(it.send(token=token) for token in strangers)):
                refused(response, NOT_SIGNED)
            assert status_of(await it.send()) == (200, "replayed")
            assert len(issuer.requests) == before + 1
        # Five minutes of a cache, and two hours.
        it.times.pass_time(3600 + 300, it.home)
        assert status_of(await it.send()) == (503, "identity-unavailable")
        assert it.executed == 1


async def test_a_key_that_was_withdrawn(tmp_path: Path) -> None:
    """Its tokens are accepted no longer, not even those that were verified before."""
    old, new = signing_key("old"), signing_key("new")
    async with Issuer(old, new) as issuer, setting(tmp_path, issuer) as it:
        token = it.token(key=old)
        assert status_of(await it.send("k1", token)) == (200, "stored")
        assert status_of(await it.send("k1", token)) == (200, "replayed")
        issuer.keys = [new]
        it.times.pass_time(300, it.home)
        assert status_of(await it.send("k1", it.token(key=signing_key("x"))))[0] == 401
        refused(await it.send("k1", token), NOT_SIGNED)
        assert status_of(await it.send("k1", it.token(key=new))) == (200, "replayed")


async def test_no_body_of_a_stranger_is_read(tmp_path: Path) -> None:
    """The head decides, also where the key is in the body and every request needs one; its length is no matter."""
    head = b"POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 1000\r\n\r\n"
    async with Issuer() as issuer:
        for name, key in (("header", ROUTE["key"]), ("body", {"body": "/id", "required": True})):
            directory, route = tmp_path / name, {"scope": {"jwt": issuer.section()}, "key": key}
            async with house(sqlite_store(directory), directory, route=route) as home:
                refused(await exchange(home.port, head), MISSING)


@pytest.mark.parametrize("where", ["discover", "keys.json", "keys.pem", "secret"])
async def test_keys_from_elsewhere(tmp_path: Path, where: str) -> None:
    """The issuer's configuration, a file with a set or with PEM, or a secret that both know."""
    async with Issuer(signing_key("k1", "RS256"), signing_key("k2")) as issuer:
        changes: dict[str, Any] = {"keys": where}
        key = issuer.keys[1]
        secret = "s3cret" * 8
        if where == "secret":
            changes = {"keys": {"secret": secret}, "algorithms": ["HS256"]}
        elif where != "discover":
            file = tmp_path / where
            pem = b"".join(each.pem for each in issuer.keys)
            file.write_bytes(pem if file.suffix == ".pem" else orjson.dumps(key_set(*issuer.keys)))
            changes = {"keys": str(file)}
        async with setting(tmp_path, issuer, **changes) as it:
            claims = issuer.claims(it.times.wall)
            token = jwt.encode(claims, secret, "HS256") if where == "secret" else key.sign(claims)
            assert status_of(await it.send("k1", token)) == (200, "stored")
            assert status_of(await it.send("k1", f"{token[:-5]}AAAAA"))[0] == 401
            assert issuer.requests == ([DISCOVERY_PATH, KEYS_PATH] if where == "discover" else [])


async def test_a_private_authority(tmp_path: Path) -> None:
    """An issuer's certificate is verified, by the authority that the route names."""
    authority = Authority(tmp_path)
    async with Issuer(tls=authority.issue("127.0.0.1").server_context()) as issuer:
        for changes, expected in (
            ({"ca": str(authority.ca_file)}, (200, "stored")),
            ({}, (503, "identity-unavailable")),
        ):
            async with setting(tmp_path / expected[1], issuer, **changes) as it:
                assert status_of(await it.send()) == expected


async def test_an_accepted_operation_is_shown_to_its_caller(tmp_path: Path) -> None:
    """By a token of the same subject, and to nobody else; a verified caller may store requests. While nobody can be
    verified it is not said whether there is such an operation: neither yes, nor no."""
    async with Issuer() as issuer:
        now = time.time()
        changes: dict[str, Any] = {"route": {"scope": {"jwt": issuer.section()}}, "accept": {"identity": "verified"}}
        async with desk(tmp_path, **changes) as it:
            accepted = await it.accept("k1", bearer(issuer.token(now)), tenant=None)
            assert status_of(accepted) == (202, "accepted")
            url = accepted.header("Location") or ""
            for target in (url, UNKNOWN):
                assert (await it.see(target, bearer(issuer.token(now, "u2")))).status == 404
                refused(await it.see(target), MISSING)
                refused(await it.see(target, bearer(issuer.token(now, exp=5))), EXPIRED)
            seen = await it.see(url, bearer(issuer.token(now, jti="another")))
            assert (seen.status, seen.json()["state"]) == (200, "accepted")
        await issuer.leave()
        async with desk(tmp_path / "alone", **changes) as it:
            for target in (UNKNOWN, "/_operations/x"):
                response = await it.see(target, bearer(issuer.token(now)))
                assert (response.status, response.json()["code"]) == (503, "identity-unavailable")


@pytest.mark.parametrize("store", ["sqlite", "postgres-redis"], indirect=True)
async def test_nothing_of_a_token_is_kept(
    store: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of one that is accepted nor of others: in no file, table, Redis key, log or metric."""
    caplog.set_level(logging.DEBUG)
    postgres = store["durable"] if "fast" in store else None
    async with Issuer() as issuer:
        now = time.time()
        sub = "sentinel-subject"
        tokens = [issuer.token(now, sub), issuer.token(now, sub, exp=1), issuer.token(now, sub, key=signing_key("x"))]
        async with house(store, tmp_path, route={"scope": {"jwt": issuer.section()}}) as home:
            for token in (*tokens, tokens[0]):
                await home.send("k1", tenant=None, headers=[bearer(token)])
            traces = [caplog.text.encode(), (await home.status("/metrics")).body]
            for text in {sub, *(part for token in tokens for part in token.split(".")[1:])}:
                secret = Sentinel(text)
                assert not any(secret.is_in(trace) for trace in traces), text
                assert await secret.found(tmp_path, postgres, store.get("fast")) == [], text
