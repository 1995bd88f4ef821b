"""Scopes: which callers are told apart, and which are not let in."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.identity.peer import hop_from
from gateway.core.identity.scope import (
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
    Unverified,
    VerifiedSpec,
)
from gateway.core.message import Headers, IndexedHeaders
from tests.core.test_identity_token import Named

INSIDE = ip_network("10.0.0.0/8")
TENANT = HeaderScope(b"X-Tenant", (INSIDE, ip_network("fd00::/8")))
API_KEY = ApiKeyScope()
values = st.binary(min_size=1).map(lambda value: value.strip(b" \t")).filter(bool)


def scope(spec: ScopeSpec, *headers: tuple[bytes, bytes], peer: str | None = "10.1.2.3") -> Scope:
    found = spec.find_scope(IndexedHeaders(headers).by_name, hop_from(peer, is_secure=False).peer)
    assert isinstance(found, Scope)
    return found


def compact(header: bytes, parts: int) -> bytes:
    return b".".join([urlsafe_b64encode(header).rstrip(b"="), *[b"c2ln"] * (parts - 1)])


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        pytest.param("10.1.2.3", True, id="inside"),
        pytest.param("::ffff:10.1.2.3", True, id="mapped"),
        pytest.param("fd00::1%eth0", True, id="zone"),
        pytest.param("11.0.0.1", False, id="outside"),
        pytest.param("fe80::1", False, id="outside-v6"),
        pytest.param(None, False, id="unix-socket"),
    ],
)
def test_trusted_hop(peer: str | None, is_trusted: bool) -> None:
    """A header names the caller only where the connection comes from a network that was named."""
    found = TENANT.find_scope(IndexedHeaders(((b"x-tenant", b"acme"),)).by_name, hop_from(peer, is_secure=False).peer)
    if is_trusted:
        assert found == scope(TENANT, (b"X-Tenant", b"acme"))
    else:
        assert found == ScopeMissing("X-Tenant is not accepted from this address.", is_credential=False)


def test_from_any() -> None:
    """With `from: any` the header is believed from everywhere, also over a Unix socket."""
    found = HeaderScope(b"X-Tenant", None).find_scope(IndexedHeaders(((b"X-Tenant", b"acme"),)).by_name, None)
    assert found == scope(TENANT, (b"X-Tenant", b"acme"))


@given(one=values, other=values)
def test_callers_are_told_apart(one: bytes, other: bytes) -> None:
    """Different values are different scopes, to the byte."""
    assert (scope(TENANT, (b"X-Tenant", one)) == scope(TENANT, (b"X-Tenant", other))) == (one == other)


@pytest.mark.parametrize(
    ("spec", "headers", "expected"),
    [
        pytest.param(TENANT, (), ScopeMissing("X-Tenant is missing.", is_credential=False), id="header"),
        pytest.param(
            TENANT,
            ((b"X-Tenant", b"  "),),
            ScopeMissing("X-Tenant is missing.", is_credential=False),
            id="header-empty",
        ),
        pytest.param(API_KEY, (), ScopeMissing("Authorization is missing.", is_credential=True), id="api-key"),
        pytest.param(
            API_KEY,
            ((b"Authorization", b"Bearer"),),
            ScopeMissing("Authorization has a scheme without a credential, or too short a key.", is_credential=True),
            id="scheme-alone",
        ),
        pytest.param(
            API_KEY,
            ((b"Authorization", b"AWS4-HMAC-SHA256 "),),
            ScopeMissing("Authorization has a scheme without a credential, or too short a key.", is_credential=True),
            id="long-scheme-alone",
        ),
        pytest.param(
            ApiKeyScope(b"X-Api-Key"), (), ScopeMissing("X-Api-Key is missing.", is_credential=True), id="other-field"
        ),
        pytest.param(
            ComposedScope((TENANT, API_KEY)),
            ((b"X-Tenant", b"acme"),),
            ScopeMissing("Authorization is missing.", is_credential=True),
            id="composed",
        ),
    ],
)
def test_missing(spec: ScopeSpec, headers: Headers, expected: ScopeMissing) -> None:
    """Without a caller there is no scope, and a missing credential is told from another missing field."""
    assert spec.find_scope(IndexedHeaders(headers).by_name, ip_address("10.1.2.3")) == expected


@pytest.mark.parametrize(
    ("spec", "headers"),
    [
        pytest.param(TENANT, ((b"X-Tenant", b"a"), (b"x-tenant", b"a")), id="header"),
        pytest.param(API_KEY, ((b"Authorization", b"Bearer a"), (b"authorization", b"Bearer a")), id="api-key"),
    ],
)
def test_repeated(spec: ScopeSpec, headers: Headers) -> None:
    """A field that is repeated names nobody, even where the edge let it through."""
    assert isinstance(spec.find_scope(IndexedHeaders(headers).by_name, ip_address("10.1.2.3")), ScopeUnsuitable)


def test_scheme_is_case_insensitive() -> None:
    """The scheme's case and the spaces behind it mean nothing; the credential's case does."""
    bearer = scope(API_KEY, (b"Authorization", b"Bearer sk_live_1"))
    assert bearer == scope(API_KEY, (b"authorization", b" BEARER   sk_live_1 "))
    assert bearer != scope(API_KEY, (b"Authorization", b"Bearer SK_LIVE_1"))
    assert bearer != scope(API_KEY, (b"Authorization", b"Basic sk_live_1"))


def test_key_without_scheme() -> None:
    """A key that stands alone in Authorization is a credential, to the byte, and another than behind a scheme."""
    key = b"3f8a6c1e-9b2d-4e70-8c55-d2a1b7e4f609"
    bare = scope(API_KEY, (b"Authorization", key))
    assert bare == scope(API_KEY, (b"authorization", b" " + key + b" "))
    assert bare != scope(API_KEY, (b"Authorization", key.upper()))
    assert bare != scope(API_KEY, (b"Authorization", b"Bearer " + key))


@pytest.mark.parametrize(
    ("credential", "is_suitable"),
    [
        pytest.param(b"Bearer " + compact(b'{"alg":"RS256","typ":"JWT"}', 3), False, id="jwt"),
        pytest.param(b"Bearer " + compact(b' { "alg": "none" }', 3), False, id="jwt-spaced"),
        pytest.param(compact(b'{"alg":"RS256","typ":"JWT"}', 3), False, id="jwt-alone"),
        pytest.param(b"Token " + compact(b'{"alg":"dir","enc":"A256GCM"}', 5), False, id="jwe"),
        pytest.param(b"Negotiate YIIB", False, id="negotiate"),
        pytest.param(b'dIGEST username="u", nonce="n"', False, id="digest"),
        pytest.param(b"AWS4-HMAC-SHA256 Credential=a, Signature=b", False, id="aws"),
        pytest.param(b"Bearer sk_live_1", True, id="api-key"),
        pytest.param(b"Basic c2tfbGl2ZV8xOg==", True, id="basic"),
        pytest.param(b"Bearer key.with.dots", True, id="dots"),
        pytest.param(b"Bearer SG.abcdefgh.ijklmnop", True, id="dots-base64"),
        pytest.param(b"Bearer " + compact(b"[" * 100_000, 3), True, id="depth-bomb"),
        pytest.param(b"Bearer ...", True, id="dots-alone"),
    ],
)
def test_expiring_token(credential: bytes, is_suitable: bool) -> None:
    """A credential that will be another one on the retry is not a scope."""
    found = API_KEY.find_scope(IndexedHeaders(((b"Authorization", credential),)).by_name, None)
    assert isinstance(found, Scope if is_suitable else ScopeUnsuitable)


def test_token_in_another_field() -> None:
    """An expiring token is one in any field."""
    token = compact(b'{"alg":"RS256"}', 3)
    assert isinstance(ApiKeyScope(b"X-Api-Key").find_scope({b"x-api-key": [token]}, None), ScopeUnsuitable)


def test_composed() -> None:
    """Composed scopes are equal when all parts are; no byte moves between them."""
    spec = ComposedScope((HeaderScope(b"A", None), HeaderScope(b"B", None)))
    assert scope(spec, (b"A", b"xy"), (b"B", b"z")) == scope(spec, (b"b", b"z"), (b"a", b"xy"))
    assert scope(spec, (b"A", b"xy"), (b"B", b"z")) != scope(spec, (b"A", b"x"), (b"B", b"yz"))
    assert scope(spec, (b"A", b"x"), (b"B", b"z")) != scope(spec, (b"A", b"z"), (b"B", b"x"))


def test_kinds_never_meet() -> None:
    """The same value is another scope in another field or of another kind."""
    specs: list[ScopeSpec] = [
        HeaderScope(b"X-A", None),
        HeaderScope(b"X-B", None),
        ApiKeyScope(b"X-A"),
        SharedScope(),
        ComposedScope((HeaderScope(b"X-A", None),)),
    ]
    assert len({scope(spec, (b"X-A", b"v"), (b"X-B", b"v")).digest for spec in specs}) == len(specs)


def test_shared() -> None:
    """All callers of a shared scope are one."""
    assert scope(SharedScope(), (b"Authorization", b"Bearer a")) == scope(SharedScope(), peer=None)


def test_nothing_in_clear() -> None:
    """No result of a scope holds what it was made from."""
    for header in (b"Bearer s3cret", b"Negotiate s3cret", b"Bearer " + compact(b'{"s3cret":1}', 3)):
        assert "s3cret" not in repr(API_KEY.find_scope(IndexedHeaders(((b"Authorization", header),)).by_name, None))


def test_recipe() -> None:
    """The recipe changes with what decides the scope, and not with whom it trusts or how a name is spelled."""
    assert TENANT.recipe == HeaderScope(b"x-tenant", None).recipe
    others = [API_KEY, SharedScope(), ApiKeyScope(b"X-Tenant"), ComposedScope((TENANT,)), HeaderScope(b"X-T", None)]
    assert len({spec.recipe for spec in [TENANT, *others]}) == 6


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


@pytest.mark.parametrize("spec", [JWT, PRINCIPAL, CERTIFICATE], ids=["jwt", "forward-auth", "certificate"])
def test_verified(spec: VerifiedSpec) -> None:
    """What has to be verified is asked for, and its value makes the scope."""
    assert spec.find_scope({}, None) == Unverified(spec)
    one, other = (spec.find_scope({}, None, {spec: value}) for value in (b"a", b"b"))
    assert isinstance(one, Scope)
    assert one != other


def test_verified_parts_come_last() -> None:
    """What can be refused without verifying is refused first; then each part is asked for, in order."""
    spec = ComposedScope((JWT, PRINCIPAL, TENANT))
    by_name, peer = {b"x-tenant": [b"acme"]}, ip_address("10.1.2.3")
    assert isinstance(spec.find_scope({}, peer), ScopeMissing)
    assert spec.find_scope(by_name, peer) == Unverified(JWT)
    assert spec.find_scope(by_name, peer, {JWT: b"a"}) == Unverified(PRINCIPAL)
    found = [spec.find_scope(by_name, peer, {JWT: one, PRINCIPAL: two}) for one, two in ((b"a", b"b"), (b"b", b"a"))]
    assert isinstance(found[0], Scope)
    assert found[0] != found[1]


def test_recipe_of_verified_parts() -> None:
    """The recipe changes with the issuer, its claims, the principal's name and the certificate's part, and not with
    what only refuses."""
    same = replace(ISSUER, audience="other", leeway=0.0)
    assert JWT.recipe == JwtScope((same,)).recipe
    elsewhere = Asked("http://other/auth", ())
    assert PRINCIPAL.recipe == ForwardAuthScope(elsewhere, b"x-user-id").recipe
    others = [
        JwtScope((replace(ISSUER, issuer="https://b.example"),)),
        JwtScope((replace(ISSUER, claims=("tenant", "sub")),)),
        JwtScope((ISSUER, replace(ISSUER, issuer="https://b.example"))),
        ForwardAuthScope(SERVICE, b"X-Other"),
        ClientCertificateScope("subject"),
    ]
    assert len({spec.recipe for spec in [JWT, PRINCIPAL, CERTIFICATE, *others]}) == 8
    claims = replace(ISSUER, claims=("sub", "tenant")), replace(ISSUER, claims=("tenant", "sub"))
    assert JwtScope(claims[:1]).recipe == JwtScope(claims[1:]).recipe
