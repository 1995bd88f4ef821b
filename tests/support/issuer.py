"""An issuer of tokens: a real HTTP server that serves its keys as a test says, and signs tokens with them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

from tests.support.eventually import eventually
from tests.support.receiver import Answering

AUDIENCE = "payments"
KEYS_PATH = "/keys"
DISCOVERY_PATH = "/.well-known/openid-configuration"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Answer = Callable[[], web.StreamResponse | None]


@dataclass(frozen=True)
class SigningKey:
    """A private key, and what is told of it. `key_id` None names it nowhere."""

    private: PrivateKey
    algorithm: str
    key_id: str | None

    @property
    def jwk(self) -> dict[str, Any]:
        public = get_default_algorithms()[self.algorithm].to_jwk(self.private.public_key(), as_dict=True)
        named = {} if self.key_id is None else {"kid": self.key_id}
        return {**public, "use": "sig", "alg": self.algorithm, **named}

    @property
    def pem(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        named = {} if self.key_id is None else {"kid": self.key_id}
        return jwt.encode(claims, self.private, self.algorithm, headers={**named, **header})


@cache
def signing_key(key_id: str | None = "k1", algorithm: str = "ES256") -> SigningKey:
    """A key for tests: the same for the same name, because making one takes time."""
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return SigningKey(ec.generate_private_key(curves[algorithm]), algorithm, key_id)
    if algorithm == "EdDSA":
        return SigningKey(ed25519.Ed25519PrivateKey.generate(), algorithm, key_id)
    return SigningKey(rsa.generate_private_key(public_exponent=65537, key_size=2048), algorithm, key_id)


def key_set(*keys: SigningKey) -> dict[str, Any]:
    return {"keys": [key.jwk for key in keys]}


class Issuer(Answering):
    """`async with Issuer() as issuer`: serves its keys at `/keys`, and the configuration that names them.

    `requests` are the paths that were asked for. While `answer` is set, it makes every response; one that returns None
    never comes. `hold` keeps responses back until it is set.
    """

    def __init__(self, *keys: SigningKey, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.keys = list(keys) or [signing_key()]
        self.headers: dict[str, str] = {}
        self.answer: Answer | None = None
        self.configuration: dict[str, Any] = {}
        self.requests: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def leave(self) -> None:
        self.hold.set()
        await super().leave()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def keys_url(self) -> str:
        return self.url + KEYS_PATH

    async def wait_requests(self, number: int) -> None:
        await eventually(lambda: len(self.requests) >= number, 30.0, f"{number} requests at the issuer")

    def section(self, **changes: Any) -> dict[str, Any]:
        named = {"issuer": self.url, "audience": AUDIENCE, "keys": self.keys_url, "claims": ["sub"]}
        return named | changes

    def claims(self, now: float, sub: Any = "u1", **changes: Any) -> dict[str, Any]:
        """What its tokens say; a claim that is changed to None is left out."""
        claims = {"iss": self.url, "aud": AUDIENCE, "exp": int(now) + 600, "iat": int(now), "sub": sub} | changes
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, now: float, sub: Any = "u1", *, key: SigningKey | None = None, **changes: Any) -> str:
        """A token, by the first of its keys if nothing else is said."""
        return (key or self.keys[0]).sign(self.claims(now, sub, **changes))

    async def answer_to(self, request: web.Request) -> web.StreamResponse | None:
        self.requests.append(request.path)
        await self.hold.wait()
        if self.answer is not None:
            return self.answer()
        if request.path == DISCOVERY_PATH:
            return web.json_response({"issuer": self.url, "jwks_uri": self.keys_url, **self.configuration})
        headers = {"Content-Type": "application/json", **self.headers}
        return web.Response(body=json.dumps(key_set(*self.keys)), headers=headers)


def bearer(token: str) -> tuple[str, str]:
    return "Authorization", f"Bearer {token}"
