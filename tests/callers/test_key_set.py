"""The keys of an issuer: what counts as one, when they are fetched, and how long they are used."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway import callers as fetching
from gateway.callers import FETCH_PAUSE_SECONDS, KeySet, KeySetInvalid, discovered_source, read_keys, url_source
from gateway.core.identity.caller import Token, read_token
from gateway.upstream.connect import client_context
from tests.support.issuer import Issuer, SigningKey, key_set, signing_key

EC, RSA, ED = signing_key("ec"), signing_key("rsa", "RS256"), signing_key("ed", "EdDSA")


def signed(key: SigningKey, algorithm: str | None = None) -> Token:
    header = {} if key.key_id is None else {"kid": key.key_id}
    token = jwt.encode({"iss": "https://a.example"}, key.private, algorithm or key.algorithm, headers=header)
    found = read_token(token.encode())
    assert isinstance(found, Token)
    return found


def document(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"])
def test_a_key_verifies_what_it_signed(algorithm: str) -> None:
    """By its own algorithms, and not what another key signed."""
    key, other = signing_key("one", algorithm), signing_key("two", algorithm)
    (read,) = read_keys(document(key.jwk))
    assert read.verifies(signed(key))
    assert not read.verifies(signed(other))
    (pem,) = read_keys(key.pem)
    assert pem.verifies(signed(key))


def test_an_algorithm_is_bound_to_a_key() -> None:
    """A set that says which algorithm a key is for means no other; one that says nothing means those of its type."""
    (bound,) = read_keys(document(RSA.jwk))
    (free,) = read_keys(document({name: value for name, value in RSA.jwk.items() if name != "alg"}))
    assert bound.algorithms == {"RS256"}
    assert free.algorithms == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert free.verifies(signed(RSA, "PS512"))
    assert not bound.verifies(signed(RSA, "PS512"))


IGNORED: dict[str, dict[str, Any]] = {
    "unknown-type": {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA"},
    "symmetric": {"kty": "oct", "k": "c2VjcmV0" * 8, "alg": "HS256"},
    "for-encryption": EC.jwk | {"use": "enc"},
    "for-signing": EC.jwk | {"key_ops": ["sign"]},
    "unknown-curve": EC.jwk | {"crv": "secp256k1", "alg": "ES256K"},
    "not-on-the-curve": EC.jwk | {"x": EC.jwk["y"]},
    "broken": EC.jwk | {"x": "!"},
    "weak": SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=1024), "RS256", "weak").jwk,
    "key-id-number": EC.jwk | {"kid": 1},
}


@pytest.mark.parametrize("entry", IGNORED.values(), ids=IGNORED)
def test_what_is_no_usable_key_is_ignored(entry: dict[str, Any]) -> None:
    """Beside good ones it does no harm; alone it makes no set."""
    assert [key.key_id for key in read_keys(document(entry, ED.jwk, "?"))] == ["ed"]
    with pytest.raises(KeySetInvalid):
        read_keys(document(entry))


NO_SETS: dict[str, bytes] = {
    "html": b"<html><body>Welcome to our portal",
    "empty-set": document(),
    "list": b"[]",
    "depth-bomb": b"[" * 100_000,
    "too-many": document(*[EC.jwk] * 65),
    "too-long": document(EC.jwk) + b" " * (1 << 20),
    "private-pem": EC.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    "beginnings": b"-----BEGIN PUBLIC KEY-----" * 40_000,
    "too-many-pem": EC.pem * 65,
}


@pytest.mark.parametrize("content", NO_SETS.values(), ids=NO_SETS)
def test_no_key_set(content: bytes) -> None:
    """It is refused with a reason that repeats nothing of it."""
    with pytest.raises(KeySetInvalid) as error:
        read_keys(content)
    assert len(str(error.value)) < 80


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def fetched(
    issuer: Issuer, *, discovers: bool = False, started: bool = True
) -> AsyncIterator[tuple[KeySet, Clock]]:
    """The key set of a running issuer, after its first fetch."""
    clock = Clock()
    source = (discovered_source if discovers else url_source)(
        issuer.url if discovers else issuer.keys_url, client_context(None)
    )
    keys = KeySet("https://a.example", source=source, stale_seconds=3600.0, clock=clock)
    try:
        if started:
            keys.start()
            await keys.refresh()
        yield keys, clock
    finally:
        await keys.close()


def respond(content: bytes = b"", status: int = 200, **headers: str) -> Callable[[], web.Response]:
    return lambda: web.Response(body=content, status=status, headers=headers)


GOOD = json.dumps(key_set(EC)).encode()
MISBEHAVES: dict[str, Callable[[], web.StreamResponse | None]] = {
    "html": respond(b"<html>log in, please</html>", **{"Content-Type": "text/html"}),
    "unknown-type": respond(document(IGNORED["unknown-type"])),
    "ten-megabytes": respond(GOOD + b" " * (10 << 20)),
    "error": respond(GOOD, 500),
    "redirect": respond(b"", 302, Location="/keys"),
    "coded": respond(GOOD, **{"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("answer", MISBEHAVES.values(), ids=MISBEHAVES)
async def test_an_issuer_that_misbehaves(
    answer: Callable[[], web.StreamResponse | None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its document counts as no answer: there is no set, and one that is known stays. The log says so once."""
    async with Issuer(EC) as issuer, fetched(issuer, started=False) as (keys, clock):
        issuer.answer = answer
        await keys.refresh()
        assert not keys.is_known
        assert len(issuer.requests) == 1
        issuer.answer = None
        clock.seconds += FETCH_PAUSE_SECONDS
        await keys.refresh()
        assert keys.is_known
        issuer.answer = answer
        for _ in range(3):
            clock.seconds += FETCH_PAUSE_SECONDS
            await keys.refresh()
        assert keys.is_known
        assert len(issuer.requests) == 5
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert ["none are known" in text for text in warnings] == [True, False]
        assert not any("log in" in text for text in warnings)


async def test_an_issuer_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch ends after a time, and counts as any other."""
    monkeypatch.setattr(fetching, "FETCH_SECONDS", 0.2)
    async with Issuer(EC) as issuer, fetched(issuer, started=False) as (keys, _):
        issuer.answer = lambda: None
        await keys.refresh()
        assert not keys.is_known
        assert not keys.may_refresh


async def test_one_fetch_for_all() -> None:
    """However many ask, one fetch is under way, and the next one begins no sooner than 30 seconds after it."""
    async with Issuer(EC) as issuer, fetched(issuer, started=False) as (keys, clock):
        issuer.hold.clear()
        asking = [asyncio.create_task(keys.refresh()) for _ in range(50)]
        await issuer.wait_requests(1)
        asking.pop().cancel()
        clock.seconds += 2 * FETCH_PAUSE_SECONDS
        late = asyncio.create_task(keys.refresh())
        await asyncio.sleep(0)
        issuer.hold.set()
        await asyncio.gather(*asking, late)
        assert keys.is_known
        await keys.refresh()
        await issuer.wait_requests(2)
        clock.seconds += FETCH_PAUSE_SECONDS - 1
        await keys.refresh()
        assert len(issuer.requests) == 2
        assert keys.retry_after_seconds == 1


@pytest.mark.parametrize(
    ("cache_control", "seconds"),
    [
        pytest.param(None, 300, id="nothing"),
        pytest.param("max-age=10", 300, id="short"),
        pytest.param("public, MAX-AGE=3600, must-revalidate", 3600, id="an-hour"),
        pytest.param("max-age=99999999", 86400, id="long"),
        pytest.param("max-age=-1", 300, id="negative"),
    ],
)
async def test_how_long_a_set_is_fresh(cache_control: str | None, seconds: float) -> None:
    """As its response says, within 5 minutes and 24 hours; then it is fetched when it is used, and used meanwhile."""
    async with Issuer(EC) as issuer:
        issuer.headers = {} if cache_control is None else {"Cache-Control": cache_control}
        async with fetched(issuer) as (keys, clock):
            clock.seconds += seconds - 1
            assert keys.keys_for(signed(EC))[1]
            await asyncio.sleep(0)
            assert len(issuer.requests) == 1
            clock.seconds += 1
            assert keys.keys_for(signed(EC))[1]
            await issuer.wait_requests(2)


async def test_which_key_a_token_means() -> None:
    """The one that it names, and nothing else. One that names none may be of any, and a nameless key of any token."""
    nameless = signing_key(None)
    async with Issuer(EC, ED, nameless) as issuer, fetched(issuer) as (keys, _):
        assert [key.key_id for key in keys.keys_for(signed(EC))[0]] == ["ec"]
        assert [key.key_id for key in keys.keys_for(signed(nameless))[0]] == ["ec", "ed", None]
        assert [key.key_id for key in keys.keys_for(signed(signing_key("unknown")))[0]] == [None]


@pytest.mark.parametrize(
    ("configuration", "is_known"),
    [
        pytest.param({}, True, id="good"),
        pytest.param({"issuer": "https://b.example"}, False, id="of-another-issuer"),
        pytest.param({"jwks_uri": 7}, False, id="no-uri"),
        pytest.param({"jwks_uri": "http://192.0.2.1/keys"}, False, id="without-tls"),
        pytest.param({"jwks_uri": "//["}, False, id="no-url"),
        pytest.param({"jwks_uri": "https://a.example/\n2026 forged"}, False, id="two-lines"),
        pytest.param({"jwks_uri": "https://a.example/forged" + "x" * 5000}, False, id="long"),
        pytest.param({"jwks_uri": "https://forged:secret@a.example/"}, False, id="with-a-password"),
    ],
)
async def test_discovery(configuration: dict[str, Any], is_known: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The configuration is the issuer's own, and leads to a set by https, or on this machine."""
    async with Issuer(EC) as issuer:
        issuer.configuration = configuration
        async with fetched(issuer, discovers=True) as (keys, _):
            assert keys.is_known == is_known
    assert "forged" not in caplog.text
