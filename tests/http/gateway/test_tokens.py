"""Callers that are named by a verified token, through a whole gateway and a real issuer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt

from gateway.app.parts import Environment
from gateway.protect.key_set import FETCH_PAUSE_SECONDS
from tests.support.clocks import Clocks
from tests.support.house import House, house, sqlite_store, status_of
from tests.support.http import Response
from tests.support.issuer import AUDIENCE, Issuer, bearer, signing_key

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
    """The attempt and its retry carry other tokens, and the retry gets its replay."""
    async with setting(tmp_path) as it:
        first = it.token()
        assert status_of(await it.send("k1", first)) == (200, "stored")
        it.times.pass_time(3600, it.home)
        refused(await it.send("k1", first), "The token has expired.")
        second = it.token(exp=int(it.times.wall) + 30, aud=["other", AUDIENCE], jti="2")
        for _ in range(2):
            assert status_of(await it.send("k1", second)) == (200, "replayed")
        # Within the leeway, and behind it.
        it.times.pass_time(59, it.home)
        assert status_of(await it.send("k1", second)) == (200, "replayed")
        it.times.pass_time(1, it.home)
        refused(await it.send("k1", second), "The token has expired.")
        assert it.executed == 1


async def test_callers_are_told_apart(tmp_path: Path) -> None:
    """Another subject, the same one as a number, and the same one of another issuer: each has keys of its own."""
    async with Issuer(signing_key("other")) as other, Issuer() as issuer:
        scope = {"jwt": [issuer.section(), other.section(claims=["sub", "tenant"])]}
        async with setting(tmp_path, issuer, scope=scope) as it:
            tokens = [it.token("42"), it.token(42), it.token("43")]
            tokens += [other.token(it.times.wall, "42", tenant=tenant) for tenant in ("a", "b", 7)]
            for token in tokens:
                assert status_of(await it.send("k1", token)) == (200, "stored")
                assert status_of(await it.send("k1", token)) == (200, "replayed")
            assert status_of(await it.send("k1", it.token(42.0))) == (200, "replayed")
            assert it.executed == len(tokens)
            refused(await it.send("k1", other.token(it.times.wall, "42")), "The token does not name its caller.")
            # Each issuer signs its own tokens alone.
            forged = issuer.keys[0].sign(other.claims(it.times.wall, "42", tenant="a"))
            refused(await it.send("k1", forged), "The token is not signed by a key of its issuer.")
            assert it.executed == len(tokens)


def _tampered(it: Setting) -> str:
    head, _, signature = it.token().split(".")
    return f"{head}.{it.token('u2').split('.')[1]}.{signature}"


def _unsigned(it: Setting) -> str:
    return jwt.encode(it.issuer.claims(it.times.wall), None, "none", headers={"kid": "k1"})


def _by_public_key(it: Setting) -> str:
    """An HMAC with the public key for its secret."""
    key = it.issuer.keys[0].jwk["x"].encode()
    return jwt.encode(it.issuer.claims(it.times.wall), key, "HS256", headers={"kid": "k1"})


FORGED: dict[str, tuple[Any, str]] = {
    "tampered": (_tampered, "The signature of the token is not its issuer's."),
    "another-key": (
        lambda it: it.token(key=replace(signing_key("x"), key_id="k1")),
        "The signature of the token is not its issuer's.",
    ),
    "unknown-key": (lambda it: it.token(key=signing_key("x")), "The token is not signed by a key of its issuer."),
    "unsigned": (_unsigned, "The token is signed by an algorithm that is not accepted."),
    "hmac-with-public-key": (_by_public_key, "The token is signed by an algorithm that is not accepted."),
    "not-allowed": (
        lambda it: it.token(key=signing_key("k1", "ES384")),
        "The token is signed by an algorithm that is not accepted.",
    ),
    "expired": (lambda it: it.token(exp=it.times.wall - 31), "The token has expired."),
    "expired-before-1970": (lambda it: it.token(exp=-1), "The token has expired."),
    "without-end": (lambda it: it.token(exp=None), "The token says not when it expires."),
    "not-yet": (lambda it: it.token(nbf=it.times.wall + 31), "The token is not valid yet."),
    "for-others": (lambda it: it.token(aud=["a", "b"]), "The token is for another audience."),
    "for-nobody": (lambda it: it.token(aud=None), "The token is for another audience."),
    "of-others": (lambda it: it.token(iss="https://other.example"), "The token is from another issuer."),
    "of-nobody": (lambda it: it.token(iss=None), "The token names no issuer."),
    "without-subject": (lambda it: it.token(None), "The token does not name its caller."),
    "subject-empty": (lambda it: it.token(""), "The token does not name its caller."),
    "subject-list": (lambda it: it.token(["u1"]), "The token does not name its caller."),
    "subject-flag": (lambda it: it.token(True), "The token does not name its caller."),
    "critical": (
        lambda it: it.issuer.keys[0].sign(it.issuer.claims(it.times.wall), crit=["exp"]),
        "The token needs an extension that is not supported.",
    ),
    "long": (lambda it: it.token(pad="x" * 20_000), "The token is longer than 16384 bytes."),
    "nested": (lambda it: it.token(it.token()).replace(".", "..", 1), "The token is malformed."),
    "no-token": (lambda it: "opaque", "The token is malformed."),
    "missing": (lambda it: "", "A bearer token is missing."),
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
        refused(basic, "A bearer token is missing.")
        assert it.executed == 1
