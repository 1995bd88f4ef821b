"""Whose key it is, in the file: the forms of a route's `scope`, and who verifies them.

There is no default: under another scope a request is another operation, and every caller in a scope gets its responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, assert_never

from pydantic import Field, SecretStr

from gateway.config import leaf
from gateway.config.section import Disagreement, Forms, Section, listed_twice, repeated, written
from gateway.core.identity import key as scopes
from gateway.core.identity.token import SECRET_ALGORITHMS

# -- authorization -----------------------------------------------------------------------------------------------------
#
# Who says who a caller is, and what it may: an authorising service, or the authority that signed a certificate.

_OF_THE_GATEWAY = "the gateway writes this header itself"
_OWN = tuple((name, _OF_THE_GATEWAY) for name in ("host", "x-forwarded-", "via"))
_ASKED_REFUSED = (*_OWN, ("content-", "the service is asked without the body"))
_OF_THE_RESPONSE = "this header describes the response of the authorising service"
_NAMED_REFUSED = (
    *_OWN,
    ("forwarded", _OF_THE_GATEWAY),
    ("content-", _OF_THE_RESPONSE),
    ("date", _OF_THE_RESPONSE),
    ("set-cookie", "this header is for browsers; hand on another one"),
)
_AskedHeader = Annotated[str, leaf.HeaderName(refused=_ASKED_REFUSED)]
_NamedHeader = Annotated[str, leaf.HeaderName(refused=_NAMED_REFUSED, is_trusted=True)]


class ForwardAuth(Section):
    """An authorising service. It is asked by a GET without body, and sees method, URI and origin in X-Forwarded-*."""

    url: Annotated[leaf.AuthorizationUrl, leaf.forward_auth_url]
    """Where it is asked, such as http://127.0.0.1:4180/oauth2/auth."""
    headers: Annotated[tuple[_AskedHeader, ...], Field(max_length=16)] = ("Authorization", "Cookie")
    """The caller's headers that it sees."""
    copy_: Annotated[tuple[_NamedHeader, ...], Field(alias="copy", max_length=16)] = ()
    """Headers of its response that the service behind the gateway gets. A caller's own are dropped."""
    timeout: Annotated[float, leaf.Duration("10ms", "1m")] = written("2s")
    """How long a decision may take, connecting included; then the request is refused with 503."""
    cache: Annotated[float, leaf.Duration("0s", "1h")] = written("0s")
    """How long a permission counts for the very same method, URI and headers. While it does, it cannot be withdrawn."""
    ca: leaf.File | None = None
    """The authorities that sign its certificate, as a PEM file; the system's if left out."""

    @property
    def names(self) -> tuple[str, ...]:
        """The headers that it alone may set."""
        return self.copy_

    def disagreements(self) -> Iterator[Disagreement]:
        if self.ca is not None and self.url.scheme != "https":
            yield "ca", "ca needs an https URL"
        yield from listed_twice(("headers",), self.headers)
        yield from listed_twice(("copy",), self.copy_)
        asked = {name.lower() for name in self.headers}
        for index, name in enumerate(self.copy_):
            if name.lower() in asked:
                message = "this is listed under headers too: the caller's own cannot be both asked about and dropped"
                yield ("copy", index), message


class PrincipalAuth(ForwardAuth):
    """An authorising service that names the caller."""

    principal: _NamedHeader
    """The header of its response that names the caller, such as X-User-Id. Write it under copy, too, to hand it on."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*dict.fromkeys((self.principal, *self.copy_)),)

    def disagreements(self) -> Iterator[Disagreement]:
        yield from super().disagreements()
        if self.principal.lower() in {name.lower() for name in self.headers}:
            yield "principal", "this is listed under headers too: a caller would name itself"


class ForwardAuthScope(Section):
    """The caller is the principal that an authorising service names; it is asked about repeats, too."""

    forward_auth: PrincipalAuth
    """The service: {url, principal}."""

    @cached_property
    def compiled(self) -> scopes.ForwardAuthScope:
        return scopes.ForwardAuthScope(self.forward_auth, self.forward_auth.principal.encode())


class ClientCertificateScope(Section):
    """The caller is named by its certificate; `listen.tls.client_ca` says whose certificates are accepted."""

    client_certificate: Literal["subject", "san", "sha256"]
    """What names it: the subject, the alternative name (URI, else DNS, else e-mail), or the digest of all of it."""

    @cached_property
    def compiled(self) -> scopes.ClientCertificateScope:
        return scopes.ClientCertificateScope(self.client_certificate)


class Authorize(Section):
    """Who decides whether a request of the route may be made."""

    forward_auth: ForwardAuth
    """The service that is asked about every request of the route, with or without a key: {url}."""


# -- scope -------------------------------------------------------------------------------------------------------------

FRAMING = "this header describes the connection or the body, not the intent"
_API_KEY_REFUSED = (
    ("cookie", "cookies change while the caller stays the same"),
    ("host", FRAMING),
    ("content-", FRAMING),
)
_SCOPE_REFUSED = (
    ("authorization", "this header holds a credential: write {api_key: Authorization}"),
    *_API_KEY_REFUSED,
)
_ScopeHeader = Annotated[str, leaf.HeaderName(refused=_SCOPE_REFUSED, is_trusted=True)]
_ApiKeyHeader = Annotated[str, leaf.HeaderName(refused=_API_KEY_REFUSED, is_trusted=True)]

# -- headers -----------------------------------------------------------------------------------------------------------

Sources = Annotated[
    Literal["any"] | Annotated[tuple[leaf.AnyNetwork, ...], Field(min_length=1, max_length=256)],
    Forms("a list of networks such as [10.0.0.0/8], or any"),
]


class HeaderScope(Section):
    """The caller is named by a header that a trusted hop sets."""

    header: _ScopeHeader
    """The header that names the caller."""
    from_: Annotated[Sources, Field(alias="from")]
    """The networks of the hops that may set it, or `any` if only such hops can reach the gateway."""

    @property
    def compiled(self) -> scopes.HeaderScope:
        return scopes.HeaderScope(self.header.encode(), None if self.from_ == "any" else self.from_)


class ApiKeyScope(Section):
    """The caller is identified by a fixed credential; only its digest is stored."""

    api_key: _ApiKeyHeader
    """The header that holds the credential."""

    @property
    def compiled(self) -> scopes.ApiKeyScope:
        return scopes.ApiKeyScope(self.api_key.encode())


# -- tokens ------------------------------------------------------------------------------------------------------------

_Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]  # fmt: skip


# RFC 7519 section 4.1: when a token counts, and its own id.
_CLAIMS_OF_A_TOKEN = frozenset(("exp", "nbf", "iat", "jti"))


class TokenSecret(Section):
    """A secret that the issuer and this gateway share. Anyone who has it can make tokens."""

    secret: Annotated[SecretStr, leaf.SecretText(leaf.secret_text(min(SECRET_ALGORITHMS.values())))]
    """The secret, as long as the digest of its algorithm; `${NAME}` or `${file:/run/secrets/name}` keeps it out of this
    file."""


class TokenIssuer(Section):
    """Whose tokens are accepted, and which of their claims name the caller."""

    issuer: Annotated[str, leaf.ISSUER]
    """The `iss` of its tokens, to the letter."""
    audience: Annotated[str, leaf.plain_text(512)]
    """The `aud` of its tokens, or one in their list: the name of this API, so that no token for another is accepted."""
    keys: Annotated[Annotated[str, leaf.key_place] | TokenSecret, Forms(leaf.KEY_PLACES)]
    """Where its keys are: `discover` (in its openid-configuration), the https URL of a key set, the path of a key set
    or of public keys as PEM, or {secret: ...}."""
    claims: Annotated[tuple[Annotated[str, leaf.plain_text(128)], ...], Field(min_length=1, max_length=8)]
    """The claims that name the caller, such as [sub]: the same in each of its tokens, and no other caller's."""
    algorithms: Annotated[tuple[_Algorithm, ...], Field(min_length=1, max_length=16)] = (
        "RS256",
        "PS256",
        "ES256",
        "EdDSA",
    )
    """The algorithms that a token may be signed by. With a secret, HS256, HS384 or HS512 has to be written."""
    ca: Annotated[Path, leaf.AbsolutePath("/etc/idempotency-gateway/ca.pem")] | None = None
    """The certificates to trust where its keys are fetched; the system's if left out."""
    leeway: Annotated[float, leaf.Duration("0s", "5m")] = written("30s")
    """How far its clock and this one may differ."""
    stale_for: Annotated[float, leaf.Duration("0s", "30d")] = written("24h")
    """How long its keys are used after they should have been fetched anew, while they cannot be."""

    @property
    def is_fetched(self) -> bool:
        """Whether its keys come over the network."""
        return isinstance(self.keys, str) and not self.keys.startswith("/")

    def disagreements(self) -> Iterator[Disagreement]:
        for key in ("claims", "algorithms"):
            for index in repeated(getattr(self, key)):
                yield (key, index), "this is listed already"
        for index, name in enumerate(self.claims):
            if name in _CLAIMS_OF_A_TOKEN:
                message = f"{name} differs from token to token: a retry with a new one would be another caller's"
                yield ("claims", index), f"{message}; name the caller, as sub does"
        if isinstance(self.keys, TokenSecret):
            yield from self._secret_disagreements(self.keys)
            return
        for index, name in enumerate(self.algorithms):
            if name in SECRET_ALGORITHMS:
                message = f"{name} is for a shared secret: with a public key, everybody could make tokens"
                yield ("algorithms", index), message
        if self.keys == "discover" and not leaf.has_tls(self.issuer):
            yield "issuer", "discover needs an issuer with an https URL; plain http is for this machine alone"
        if self.ca is not None and not self.is_fetched:
            yield "ca", "has no effect: these keys are not fetched"

    def _secret_disagreements(self, keys: TokenSecret) -> Iterator[Disagreement]:
        if "algorithms" not in self.model_fields_set:
            yield "algorithms", "required with a secret: write [HS256]"
            return
        length = len(keys.secret.get_secret_value().encode())
        for index, name in enumerate(self.algorithms):
            least = SECRET_ALGORITHMS.get(name)
            if least is None:
                yield ("algorithms", index), f"{name} needs public keys; a secret is for HS256"
            elif length < least:
                yield ("algorithms", index), f"{name} needs a secret of at least {least} bytes"
        for key in {"ca", "stale_for"} & self.model_fields_set:
            yield key, "has no effect: these keys are not fetched"


class JwtScope(Section):
    """The caller is named by claims of a verified token: it is the same after every refresh of the token."""

    jwt: Annotated[
        TokenIssuer | Annotated[tuple[TokenIssuer, ...], Field(min_length=1, max_length=16)],
        Forms("{issuer, audience, keys, claims}, or a list of them"),
    ]
    """Whose bearer tokens are accepted: {issuer, audience, keys, claims}, or a list of them."""

    @property
    def issuers(self) -> tuple[TokenIssuer, ...]:
        return (self.jwt,) if isinstance(self.jwt, TokenIssuer) else self.jwt

    @cached_property
    def compiled(self) -> scopes.JwtScope:
        return scopes.JwtScope(self.issuers)

    def disagreements(self) -> Iterator[Disagreement]:
        for index in repeated(each.issuer for each in self.issuers):
            yield ("jwt", index, "issuer"), "this issuer is listed already"


# -- several of them ---------------------------------------------------------------------------------------------------

_CALLER_FORMS = "{header: NAME, from: [...]}, {api_key: HEADER}, {jwt: {...}}, {forward_auth: {url, principal}}"
ScopePart = Annotated[
    HeaderScope | ApiKeyScope | JwtScope | ForwardAuthScope | ClientCertificateScope,
    Forms(f"{_CALLER_FORMS} or {{client_certificate: san}}"),
]


class ComposedScope(Section):
    """The caller is identified by several parts together, all of which must be present."""

    compose: Annotated[tuple[ScopePart, ...], Field(min_length=2, max_length=8)]
    """The parts of the scope, in order."""

    @property
    def compiled(self) -> scopes.ComposedScope:
        return scopes.ComposedScope(tuple(part.compiled for part in self.compose))

    def disagreements(self) -> Iterator[Disagreement]:
        yield from listed_twice(("compose",), map(_source, self.compose))


def _source(part: ScopePart) -> str:
    """What a part of a scope is taken from. A second part from there says nothing more."""
    match part:
        case HeaderScope(header=name) | ApiKeyScope(api_key=name):
            return name
        case JwtScope():
            return "Authorization"
        case ForwardAuthScope(forward_auth=service):
            return f"{service.url} {service.principal}"
        case ClientCertificateScope():
            return "client_certificate"
        case _:
            assert_never(part)


SCOPE_FORMS = f"{_CALLER_FORMS}, {{client_certificate: san}}, {{compose: [...]}} or shared"
Scope = Annotated[
    Literal["shared"]
    | HeaderScope
    | ApiKeyScope
    | JwtScope
    | ForwardAuthScope
    | ClientCertificateScope
    | ComposedScope,
    Forms(SCOPE_FORMS),
]


def parts_of(scope: Scope | None) -> tuple[ScopePart, ...]:
    """What a caller is named by; nothing where that is invalid."""
    if scope is None or scope == "shared":
        return ()
    return scope.compose if isinstance(scope, ComposedScope) else (scope,)


def token_issuers(scope: Scope) -> tuple[TokenIssuer, ...]:
    return tuple(issuer for part in parts_of(scope) if isinstance(part, JwtScope) for issuer in part.issuers)


def scope_header_names(scope: object) -> tuple[str, ...]:
    """The headers that a scope, or a part of one, is taken from; none where it is invalid."""
    match scope:
        case HeaderScope(header=name) | ApiKeyScope(api_key=name):
            return (name,)
        case JwtScope():
            return ("Authorization",)
        case ComposedScope(compose=parts):
            return tuple(name for part in parts for name in scope_header_names(part))
        case _:
            return ()
