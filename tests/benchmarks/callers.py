"""What it costs to find a caller: by a verified token that is remembered beside a header, against a plain proxy."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from gateway.callers.tokens import KeySet, TokenVerifier, read_keys
from gateway.config.scope import JwtScope, TokenIssuer
from gateway.core.identity.key import HeaderScope, ScopeSpec
from gateway.core.identity.peer import hop_from
from gateway.core.message import Headers, IndexedHeaders, RequestHead
from gateway.protect.identification import Caller, Callers
from gateway.protect.request import Request
from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, SERVING_CORE, pinned
from tests.support.coordination import Here
from tests.support.issuer import signing_key

SHARE_MAX = 0.03
_REQUESTS = 20_000
_ISSUER = TokenIssuer(
    issuer="https://login.example.com/", audience="https://api.example.com", keys="discover", claims=("sub",)
)
_TOKENS = JwtScope(jwt=(_ISSUER,))
_HEADER, _JWT = HeaderScope(b"X-Tenant", None), _TOKENS.compiled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round of the plain proxy")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether a token costs little enough."""
    plain = place.plain()
    callers, headers = _callers()
    shares, lines = [], []
    with pinned(SERVING_CORE):
        for spec in (_HEADER, _JWT):
            _found_us(callers, spec, headers)
    for _ in range(asked.rounds):
        plain_us = load.cpu_us(plain.port, plain.cpu_seconds, load.Shape(PROTECTED, 200, None), seconds=asked.seconds)
        with pinned(SERVING_CORE):
            header_us, token_us = (_found_us(callers, spec, headers) for spec in (_HEADER, _JWT))
        shares.append((token_us - header_us) / plain_us)
        lines.append(f"| {plain_us:.0f} | {header_us:.2f} | {token_us:.2f} | {shares[-1]:.1%} |")
    share = statistics.median(shares)
    print("\n| plain proxy, µs a request | by a header, µs | by a token, µs | more |\n|---:|---:|---:|---:|")
    print("\n".join(lines))
    print(f"\nmedian {share:.1%}, at most {SHARE_MAX:.0%}", flush=True)
    return share <= SHARE_MAX


def _callers() -> tuple[Callers, Headers]:
    """The callers of a token of a usual length, and the headers of a request that SDKs send."""
    key = signing_key("k1", "RS256")
    keys = KeySet(_ISSUER.issuer, read_keys(key.pem), clock=time.monotonic)
    now = int(time.time())
    claims = {
        "iss": _ISSUER.issuer, "aud": _ISSUER.audience, "sub": "auth0|5f7c8ec7c33c6c004bbafe82", "iat": now,
        "exp": now + 86_400, "azp": "my_client_id", "scope": "openid profile email payments:write payments:read",
    }  # fmt: skip
    names = ("Host", "User-Agent", "Accept", "Content-Type", "Content-Length", "Traceparent", "X-Tenant")
    headers = [(name.encode(), b"something of a usual length") for name in names]
    headers += [(b"Idempotency-Key", b"order-1"), (b"Authorization", f"Bearer {key.sign(claims)}".encode())]
    return Callers({_JWT: TokenVerifier(_TOKENS, {_ISSUER.issuer: keys}, time.time)}), tuple(headers)


def _found_us(callers: Callers, spec: ScopeSpec, headers: Headers) -> float:
    """CPU time for each caller that is found."""
    hop = hop_from("127.0.0.1", is_secure=False)
    requests = [
        Request(RequestHead(b"POST", PROTECTED, IndexedHeaders(headers)), Here(b""), hop) for _ in range(_REQUESTS)
    ]

    async def find() -> float:
        begin = time.process_time()
        for request in requests:
            if not isinstance(await callers.find_caller(spec, request), Caller):
                raise AssertionError("nobody was found")
        return time.process_time() - begin

    return asyncio.run(find()) / _REQUESTS * 1e6
