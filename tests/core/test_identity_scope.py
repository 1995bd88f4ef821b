"""Scopes: which callers are told apart, and which are not let in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.caller import hop_from
from gateway.core.identity.key import (
    ApiKeyScope,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    HeaderScope,
    JwtScope,
    Scope,
    ScopeMissing,
    ScopeSpec,
    ScopeUnsuitable,
    SharedScope,
)
from gateway.core.message import Headers, IndexedHeaders
from tests.core.test_identity_token import Named, segment

INSIDE = ip_network("10.0.0.0/8")
TENANT = HeaderScope(b"X-Tenant", (INSIDE, ip_network("fd00::/8")))
API_KEY = ApiKeyScope()
values = st.binary(min_size=1).map(lambda value: value.strip(b" \t")).filter(bool)


def scope(spec: ScopeSpec, *headers: tuple[bytes, bytes], peer: str | None = "10.1.2.3") -> Scope:
    found = spec.find_scope(IndexedHeaders(headers).by_name, hop_from(peer, is_secure=False).peer)
    assert isinstance(found, Scope)
    return found


def compact(header: bytes, parts: int) -> bytes:
    return b".".join([segment(header), *[b"c2ln"] * (parts - 1)])


TRUSTED = ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1%eth0")


@pytest.mark.parametrize("peer", [*TRUSTED, "11.0.0.1", "fe80::1", None], ids=str)
def test_trusted_hop(peer: str | None) -> None:
    """A header names the caller only where the connection comes from a network that was named."""
    by_name, hop = {b"x-tenant": [b"acme"]}, hop_from(peer, is_secure=False).peer
    expected = scope(TENANT, (b"X-Tenant", b"acme"))
    missing = ScopeMissing("X-Tenant is not accepted from this address.", is_credential=False)
    assert TENANT.find_scope(by_name, hop) == (expected if peer in TRUSTED else missing)


@given(one=values, other=values)
def test_callers_are_told_apart(one: bytes, other: bytes) -> None:
    """Different values are different scopes, to the byte."""
    assert (scope(TENANT, (b"X-Tenant", one)) == scope(TENANT, (b"X-Tenant", other))) == (one == other)


NO_CREDENTIAL = "Authorization has a scheme without a credential, or too short a key."
TWICE = "repeated"


@pytest.mark.parametrize(
    ("spec", "headers", "text"),
    [
        (TENANT, ((b"X-Tenant", b"  "),), "X-Tenant is missing."),
        (TENANT, ((b"X-Tenant", b"a"), (b"x-tenant", b"a")), TWICE),
        (API_KEY, ((b"Authorization", b"Bearer"),), NO_CREDENTIAL),
        (API_KEY, ((b"Authorization", b"Bearer a"), (b"authorization", b"Bearer a")), TWICE),
        (ComposedScope((TENANT, API_KEY)), ((b"X-Tenant", b"acme"),), "Authorization is missing."),
    ],
    ids=lambda value: str(value)[:20],
)
def test_missing(spec: ScopeSpec, headers: Headers, text: str) -> None:
    """Without a caller there is no scope, credentials are told from other fields, and what is repeated names nobody."""
    found = spec.find_scope(IndexedHeaders(headers).by_name, ip_address("10.1.2.3"))
    missing = ScopeMissing(text, is_credential="X-Tenant" not in text)
    assert isinstance(found, ScopeUnsuitable) if text == TWICE else found == missing


def test_scheme_is_case_insensitive() -> None:
    """The scheme's case and the spaces behind it mean nothing; the credential counts to the byte, also without one."""
    key = b"3f8a6c1e-9b2d-4e70-8c55-d2a1b7e4f609"
    bearer, bare = (scope(API_KEY, (b"Authorization", value)) for value in (b"Bearer sk_live_1", key))
    assert bearer == scope(API_KEY, (b"authorization", b" BEARER   sk_live_1 "))
    assert bare == scope(API_KEY, (b"authorization", b" " + key + b" "))
    others = (b"Bearer SK_LIVE_1", b"Basic sk_live_1", key.upper(), b"Bearer " + key)
    assert len({bearer, bare, *(scope(API_KEY, (b"Authorization", other)) for other in others)}) == 6


JWS, JWE = compact(b'{"alg":"RS256","typ":"JWT"}', 3), compact(b'{"alg":"dir","enc":"A256GCM"}', 5)
CREDENTIALS = {
    "jwt": (b"Bearer " + JWS, False),
    "jwt-spaced": (b"Bearer " + compact(b' { "alg": "none" }', 3), False),
    "jwt-alone": (JWS, False),
    "jwe": (b"Token " + JWE, False),
    "negotiate": (b"Negotiate YIIB", False),
    "aws": (b"AWS4-HMAC-SHA256 Credential=a, Signature=b", False),
    "api-key": (b"Bearer sk_live_1", True),
    "basic": (b"Basic c2tfbGl2ZV8xOg==", True),
    "dots-base64": (b"Bearer SG.abcdefgh.ijklmnop", True),
    "depth-bomb": (b"Bearer " + compact(b"[" * 100_000, 3), True),
}


@pytest.mark.parametrize(("credential", "is_suitable"), CREDENTIALS.values(), ids=CREDENTIALS)
def test_expiring_token(credential: bytes, is_suitable: bool) -> None:
    """A credential that will be another one on the retry is not a scope, and a token is one in any field."""
    found = API_KEY.find_scope({b"authorization": [credential]}, None)
    assert isinstance(found, Scope if is_suitable else ScopeUnsuitable)
    assert isinstance(ApiKeyScope(b"X-Api-Key").find_scope({b"x-api-key": [JWS]}, None), ScopeUnsuitable)


def test_composed() -> None:
    """Composed scopes are equal when all parts are; no byte moves between them. All callers of a shared one are one."""
    spec = ComposedScope((HeaderScope(b"A", None), HeaderScope(b"B", None)))
    pairs = ((b"xy", b"z"), (b"x", b"yz"), (b"z", b"x"), (b"x", b"z"))
    assert len({scope(spec, (b"A", one), (b"B", other)) for one, other in pairs}) == len(pairs)
    assert scope(spec, (b"A", b"xy"), (b"B", b"z")) == scope(spec, (b"b", b"z"), (b"a", b"xy"))
    assert scope(SharedScope(), (b"Authorization", b"Bearer a")) == scope(SharedScope(), peer=None)


def test_kinds_never_meet() -> None:
    """The same value is another scope in another field or of another kind."""
    specs: list[ScopeSpec] = [
        HeaderScope(b"X-A", None), HeaderScope(b"X-B", None), ApiKeyScope(b"X-A"), SharedScope(),
        ComposedScope((HeaderScope(b"X-A", None),)),
    ]  # fmt: skip
    assert len({scope(spec, (b"X-A", b"v"), (b"X-B", b"v")).digest for spec in specs}) == len(specs)


def test_nothing_in_clear() -> None:
    """No result of a scope holds what it was made from."""
    for header in (b"Bearer s3cret", b"Negotiate s3cret", b"Bearer " + compact(b'{"s3cret":1}', 3)):
        assert "s3cret" not in repr(API_KEY.find_scope(IndexedHeaders(((b"Authorization", header),)).by_name, None))


@dataclass(frozen=True)
class Asked:
    """An authorising service, as far as the core looks at it."""

    url: str = "http://127.0.0.1/"
    headers: tuple[str, ...] = ("Authorization", "Cookie")


ISSUER = Named()
JWT = JwtScope((ISSUER,))
SERVICE = Asked()
PRINCIPAL = ForwardAuthScope(SERVICE, b"X-User-Id")
CERTIFICATE = ClientCertificateScope("san")


def test_recipe_of_verified_parts() -> None:
    """The recipe changes with the issuer, its claims, the principal's name and the certificate's part, and not with
    what only refuses."""
    assert JWT.recipe == JwtScope((replace(ISSUER, audience="other", leeway=0.0),)).recipe
    assert PRINCIPAL.recipe == ForwardAuthScope(Asked("http://other/auth", ()), b"x-user-id").recipe
    elsewhere = replace(ISSUER, issuer="https://b.example")
    one, other = (JwtScope((replace(ISSUER, claims=claims),)) for claims in (("sub", "tenant"), ("tenant", "sub")))
    others = [JwtScope((elsewhere,)), other, JwtScope((ISSUER, elsewhere)), ForwardAuthScope(SERVICE, b"X-Other")]
    specs = [JWT, PRINCIPAL, CERTIFICATE, *others, ClientCertificateScope("subject")]
    assert len({spec.recipe for spec in specs}) == 8
    assert one.recipe == other.recipe
