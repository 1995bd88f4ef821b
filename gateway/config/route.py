"""A protected route of the file: its key, whose key it is and who verifies that, and all else below `routes[]`.

A default may be slow or annoying, never unsafe: a setting that can execute something twice, forget it or show it to the
wrong caller has no default. Under another scope a request is another operation, and every caller in a scope gets its
responses. `checks` compares a route's sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SecretStr, model_validator

from gateway.config import leaf
from gateway.config.delivery import (
    RECOVERY_FORMS,
    REMEMBER_SECONDS,
    Accept,
    DeadLetter,
    Inbox,
    Order,
    ProbeRecovery,
    Recovery,
    ResponseRule,
    RouteDelivery,
    RouteUpstream,
    reference_of,
)
from gateway.config.section import DIVIDED, Disagreement, Distinct, Forms, Section, repeated, written
from gateway.core import outcome as outcomes
from gateway.core.identity import key as keys
from gateway.core.identity.body import Pointer, parse_pointer
from gateway.core.identity.caller import SECRET_ALGORITHMS
from gateway.core.identity.fingerprint import BodyForm, FingerprintSpec, RepeatPolicy
from gateway.core.identity.key import ScopeSpec, SharedScope
from gateway.core.operation import microseconds
from gateway.core.outcome import BODILESS, PERSONAL, KeepPolicy, Redaction
from gateway.core.routing import PathPattern, Rule, normalise_host

# -- authorization -----------------------------------------------------------------------------------------------------
#
# Who says who a caller is, and what it may: an authorising service, or the authority that signed a certificate.

_OF_THE_GATEWAY = "the gateway writes this header itself"
_ASKED_REFUSED = {
    _OF_THE_GATEWAY: "host x-forwarded- via",
    "the service is asked without the body": "content-",
}
_NAMED_REFUSED = {
    _OF_THE_GATEWAY: "host x-forwarded- via forwarded",
    "this header describes the response of the authorising service": "content- date",
    "this header is for browsers; hand on another one": "set-cookie",
}
_AskedHeader = Annotated[str, leaf.header_name(refused=_ASKED_REFUSED)]
_NamedHeader = Annotated[str, leaf.header_name(refused=_NAMED_REFUSED, is_trusted=True)]


class ForwardAuth(Section):
    """An authorising service. It is asked by a GET without body, and sees method, URI and origin in X-Forwarded-*."""

    url: Annotated[leaf.AuthorizationUrl, leaf.forward_auth_url]
    """Where it is asked, such as http://127.0.0.1:4180/oauth2/auth."""
    headers: Annotated[tuple[_AskedHeader, ...], Field(max_length=16), Distinct()] = ("Authorization", "Cookie")
    """The caller's headers that it sees."""
    copy_: Annotated[tuple[_NamedHeader, ...], Field(alias="copy", max_length=16), Distinct()] = ()
    """Headers of its response that the service behind the gateway gets. A caller's own are dropped."""
    timeout: Annotated[float, leaf.duration("10ms", "1m")] = written("2s")
    """How long a decision may take, connecting included; then the request is refused with 503."""
    cache: Annotated[float, leaf.duration("0s", "1h")] = written("0s")
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
    def compiled(self) -> keys.ForwardAuthScope:
        return keys.ForwardAuthScope(self.forward_auth, self.forward_auth.principal.encode())


class ClientCertificateScope(Section):
    """The caller is named by its certificate; `listen.tls.client_ca` says whose certificates are accepted."""

    client_certificate: Literal["subject", "san", "sha256"]
    """What names it: the subject, the alternative name (URI, else DNS, else e-mail), or the digest of all of it."""

    @cached_property
    def compiled(self) -> keys.ClientCertificateScope:
        return keys.ClientCertificateScope(self.client_certificate)


class Authorize(Section):
    """Who decides whether a request of the route may be made."""

    forward_auth: ForwardAuth
    """The service that is asked about every request of the route, with or without a key: {url}."""


# -- scope -------------------------------------------------------------------------------------------------------------

_FRAMING = "this header describes the connection or the body, not the intent"
_API_KEY_REFUSED = {
    "cookies change while the caller stays the same": "cookie",
    _FRAMING: "host content-",
}
_SCOPE_REFUSED = {
    "this header holds a credential: write {api_key: Authorization}": "authorization",
    **_API_KEY_REFUSED,
}
_ScopeHeader = Annotated[str, leaf.header_name(refused=_SCOPE_REFUSED, is_trusted=True)]
_ApiKeyHeader = Annotated[str, leaf.header_name(refused=_API_KEY_REFUSED, is_trusted=True)]

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
    def compiled(self) -> keys.HeaderScope:
        return keys.HeaderScope(self.header.encode(), None if self.from_ == "any" else self.from_)


class ApiKeyScope(Section):
    """The caller is identified by a fixed credential; only its digest is stored."""

    api_key: _ApiKeyHeader
    """The header that holds the credential."""

    @property
    def compiled(self) -> keys.ApiKeyScope:
        return keys.ApiKeyScope(self.api_key.encode())


# -- tokens ------------------------------------------------------------------------------------------------------------

_Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]  # fmt: skip


# RFC 7519 section 4.1: when a token counts, and its own id.
_CLAIMS_OF_A_TOKEN = frozenset(("exp", "nbf", "iat", "jti"))


class TokenSecret(Section):
    """A secret that the issuer and this gateway share. Anyone who has it can make tokens."""

    secret: Annotated[SecretStr, leaf.secret(leaf.secret_text(min(SECRET_ALGORITHMS.values())))]
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
    ca: Annotated[Path, leaf.absolute_path("/etc/idempotency-gateway/ca.pem")] | None = None
    """The certificates to trust where its keys are fetched; the system's if left out."""
    leeway: Annotated[float, leaf.duration("0s", "5m")] = written("30s")
    """How far its clock and this one may differ."""
    stale_for: Annotated[float, leaf.duration("0s", "30d")] = written("24h")
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
    def compiled(self) -> keys.JwtScope:
        return keys.JwtScope(self.issuers)

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
    def compiled(self) -> keys.ComposedScope:
        return keys.ComposedScope(tuple(part.compiled for part in self.compose))

    def disagreements(self) -> Iterator[Disagreement]:
        for index in repeated(_source(part).lower() for part in self.compose):
            yield ("compose", index), "this is listed already"


def _source(part: ScopePart) -> str:
    """What a part of a scope is taken from. A second part from there says nothing more."""
    match part:
        case ForwardAuthScope(forward_auth=service):
            return f"{service.url} {service.principal}"
        case ClientCertificateScope():
            return "client_certificate"
        case _:
            return scope_header_names(part)[0]


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


# -- the key. It has no default: under another one a request is another operation --------------------------------------

_KEY_REFUSED = {
    "a credential is not a key: it stays the same over many requests": "authorization cookie",
    _FRAMING: "host content- user-agent",
    "this header changes with every retry": "date",
}
_KeyHeader = Annotated[str, leaf.header_name(refused=_KEY_REFUSED, is_trusted=True)]


class _KeySettings(Section):
    required: leaf.Bool = False
    """Whether a request without a key is refused; otherwise it is forwarded unprotected."""


class _HeaderKeySettings(_KeySettings):
    format: Literal["any", "structured", "uuid"] = "any"
    """How a key must be written: bare or quoted, quoted only (a Structured Field string), or laid out as a UUID."""


class HeaderKey(_HeaderKeySettings):
    """The key is the value of one header."""

    header: _KeyHeader
    """The header that holds the key."""


class HeadersKey(_HeaderKeySettings):
    """The key is the value of the first of these headers that is present."""

    headers: Annotated[tuple[_KeyHeader, ...], Field(min_length=1, max_length=16), Distinct()]
    """The headers that may hold the key; the first that is present does."""


class BodyKey(_KeySettings):
    """The key is a value of the JSON body."""

    body: leaf.JsonPointer
    """A JSON pointer to the value that is the key."""


class HeaderPart(Section):
    """A part of a composed key that is the value of a header."""

    header: _KeyHeader
    """The header that holds this part."""


class BodyPart(Section):
    """A part of a composed key that is a value of the JSON body."""

    body: leaf.JsonPointer
    """A JSON pointer to the value that is this part."""


KeyPart = Annotated[HeaderPart | BodyPart, Forms("{header: NAME} or {body: /pointer}")]


class ComposedKey(_KeySettings):
    """The key is made of several parts, all of which must be present."""

    compose: Annotated[tuple[KeyPart, ...], Field(min_length=2, max_length=16)]
    """The parts of the key, in order."""


KEY_FORMS = "{header: NAME}, {headers: [A, B]}, {body: /pointer} or {compose: [...]}"
Key = Annotated[HeaderKey | HeadersKey | BodyKey | ComposedKey, Forms(KEY_FORMS)]


def key_header_names(key: Key | None) -> tuple[str, ...]:
    """The headers that a key, or a part of it, is read from, in order, in the spelling of the file."""
    match key:
        case HeaderKey(header=name):
            return (name,)
        case HeadersKey(headers=names):
            return names
        case ComposedKey(compose=parts):
            return tuple(part.header for part in parts if isinstance(part, HeaderPart))
        case _:
            return ()


def _part(part: KeyPart | BodyKey) -> keys.HeaderPart | keys.BodyPart:
    """Where a part of the key is, as requests are searched for it."""
    if isinstance(part, HeaderPart):
        return keys.HeaderPart(part.header.encode())
    return keys.BodyPart(parse_pointer(part.body))


# -- the rest ----------------------------------------------------------------------------------------------------------


_Methods = Annotated[tuple[Annotated[str, leaf.method], ...], Field(min_length=1, max_length=16), Distinct()]


class Match(Section):
    """Which requests the route protects. The first route of the file that matches decides."""

    methods: _Methods = ("POST", "PATCH")
    """Methods, in upper case."""
    path: Annotated[PathPattern, leaf.route_path]
    """The path: exact, with {name} for a segment, {name:.*} for the rest. What a service may read as this path in
    another spelling is refused, unless it is listed under `also` or `unprotected`."""
    also: Annotated[tuple[Annotated[PathPattern, leaf.route_path], ...], Field(max_length=16)] = ()
    """Other spellings that the route protects as well, such as /v1/payments.json."""
    host: leaf.Host | None = None
    """The request's host, or the one that it is forwarded with if it has none; without a port. Any host if left out."""

    def disagreements(self) -> Iterator[Disagreement]:
        for index, pattern in enumerate(self.also):
            if pattern.text in [each.text for each in self.paths[: index + 1]]:
                yield ("also", index), "this is listed already"
            if set(pattern.names) != set(self.path.names):
                yield ("also", index), f"this has other names in braces than {self.path.text}"

    @property
    def paths(self) -> tuple[PathPattern, ...]:
        return (self.path, *self.also)

    def rules(self, *more: str) -> tuple[Rule, ...]:
        """The rules for `routing.RouteTable`, with further methods."""
        return _rules(self.host, (*self.methods, *more), self.paths)


class Unprotected(Section):
    """A path that is not protected although it can be read as one that is."""

    methods: _Methods = ("POST", "PATCH")
    """Methods, in upper case."""
    path: Annotated[PathPattern, leaf.route_path]
    """The path, with {name} for a segment. It counts in this very spelling alone."""
    host: leaf.Host | None = None
    """The request's host, as in the match of a route. Any host if left out."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.path.takes_rest:
            yield "path", "name each path: {name:.*} would take in spellings of routes, too"

    @property
    def rule(self) -> Rule:
        return _rules(self.host, self.methods, (self.path,))[0]


def _rules(host: str | None, methods: Iterable[str], paths: Iterable[PathPattern]) -> tuple[Rule, ...]:
    name = None if host is None else normalise_host(host.encode())
    return tuple(Rule(frozenset(leaf.encoded(methods)), path, name) for path in paths)


_ComparedHeader = Annotated[str, leaf.header_name(is_compared=True)]


class Fingerprint(Section):
    """What makes two requests the same request."""

    body: Literal["json", "form", "multipart", "raw", "none"] | None = None
    """The form in which bodies are compared; by media type if left out."""
    ignore: Annotated[tuple[leaf.JsonPointer, ...], Field(max_length=64)] = ()
    """JSON pointers to values that a retry may change."""
    only: Annotated[tuple[leaf.JsonPointer, ...], Field(max_length=64)] = ()
    """JSON pointers to the values that are compared; everything if left out."""
    headers: Annotated[tuple[_ComparedHeader, ...], Field(max_length=64), Distinct()] = ()
    """Headers that are compared too. Those that override method or target always are."""
    explain: leaf.Bool = False
    """Whether the refusal of a repeat names the members of a JSON body that differ, never a value; for at most 64
    members, four levels deep. Needs secrets.fingerprint_key."""
    defaults: Annotated[dict[leaf.JsonPointer, Annotated[str, leaf.json_scalar]], Field(max_length=64)] = {}  # noqa: RUF012  copied by the model
    """JSON pointers to members, each with the value that the service takes for it where it is absent."""
    on_recipe_change: Literal["refuse", "accept"] = "refuse"
    """Whether a record made under other settings may be replayed to a request that cannot be compared with it."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.ignore and self.only:
            yield "ignore", "ignore and only cannot be used together"
        for key in ("ignore", "only", "defaults"):
            if getattr(self, key) and self.body not in (None, "json"):
                yield key, f"{key} is for JSON bodies, but body is {self.body}"
        if self.explain and self.body not in (None, "json"):
            yield "explain", f"explain is about JSON bodies, but body is {self.body}"
        yield from self._useless_defaults()

    def compiled(self, ignored: tuple[Pointer, ...]) -> FingerprintSpec:
        """As requests are compared. `ignored` is what no sender of an inbox keeps the same."""
        is_whole = self.body not in (None, "json") or bool(self.only)
        return FingerprintSpec(
            body=BodyForm.AUTO if self.body is None else BodyForm(self.body),
            ignore=tuple(map(parse_pointer, self.ignore)) + (() if is_whole else ignored),
            only=tuple(map(parse_pointer, self.only)),
            headers=leaf.encoded(self.headers),
            explains=self.explain,
            defaults=tuple((parse_pointer(pointer), value) for pointer, value in self.defaults.items()),
        )

    def _useless_defaults(self) -> Iterator[Disagreement]:
        for pointer in self.defaults:
            if any(_is_within(pointer, ignored) for ignored in self.ignore):
                yield ("defaults", pointer), f"{pointer} is not compared: it is listed under ignore"
            elif self.only and not any(_is_within(pointer, compared) for compared in self.only):
                yield ("defaults", pointer), f"{pointer} is not compared: it is not listed under only"
            elif any(_is_within(pointer, other) for other in self.defaults if other != pointer):
                yield ("defaults", pointer), f"{pointer} is within another value that has a default"


def _is_within(pointer: str, other: str) -> bool:
    """Whether a JSON pointer is another one, or names something within that."""
    return pointer == other or pointer.startswith(f"{other}/")


RepeatsBy = Annotated[
    Literal["fingerprint"] | Annotated[tuple[leaf.JsonPointer, ...], Field(min_length=1, max_length=16)],
    Forms("fingerprint, or a list of JSON pointers such as [/account, /reference]"),
]


class Repeats(Section):
    """What happens to a request that a caller has sent before under another key."""

    by: Annotated[RepeatsBy, Distinct()] = "fingerprint"
    """What makes it the same: all that the fingerprint compares, or the values at these places of the JSON body. A
    request that lacks one of them is never taken for a repeat."""
    within: Annotated[float, leaf.duration("1s", "3650d")] = written("10m")
    """For how long, counted from the first request. Refused repeats are also those of a request in doubt."""
    action: Literal["count", "refuse"] = "count"
    """Whether repeats are only counted and logged, or refused with 409 unless they say `Idempotency-Distinct: true`."""

    @property
    def compiled(self) -> RepeatPolicy:
        by = None if self.by == "fingerprint" else tuple(map(parse_pointer, self.by))
        return RepeatPolicy(microseconds(self.within), self.action == "refuse", by)


class InFlight(Section):
    """What a duplicate gets while the first request is still running."""

    ORDERED = (("wait", "max_wait"),)

    wait: Annotated[float, leaf.duration("0s", "10m")] = written("5s")
    """How long a duplicate waits for the first request, unless it asks for another time. At most max_wait."""
    max_wait: Annotated[float, leaf.duration("0s", "10m")] = written("30s")
    """The longest wait that a caller may ask for with `Prefer: wait`."""
    status: Annotated[Literal[409, 429], leaf.choice(409, 429)] = 409
    """The status of the reply when the wait is over."""
    max_waiters: Annotated[int, leaf.count(0, 100_000), DIVIDED] = 1000
    """How many duplicates may wait at once on this route, divided evenly among the workers."""


StatusSelector = Annotated[int | str, leaf.status_set]
Meaning = Literal["final", "retryable", "in_doubt"]


class OutcomeRule(ResponseRule):
    """What responses with these values in their JSON body mean."""

    is_: Annotated[Meaning, Field(alias="is")]
    """What they mean for the effect: final, retryable or in_doubt."""

    def disagreements(self) -> Iterator[Disagreement]:
        if not self.where:
            yield "where", f"required, but missing; for whole statuses, write {self.is_}: [...]"
        if self.compiled.statuses <= BODILESS:
            yield "status", "responses with this status have no body"


class Outcome(Section):
    """What the responses of the service mean for its effects. A rule of `when` beats a code, a code beats a class, and
    all of them beat the preset."""

    preset: Literal["standard", "payments", "success_only"]
    """What each status means; there is no default, because this is a decision about money."""
    final: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that are recorded and replayed."""
    retryable: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that mean that nothing happened, so that a retry executes."""
    in_doubt: Annotated[tuple[StatusSelector, ...], Field(max_length=64)] = ()
    """Codes and classes that leave the effect unknown, so that no retry executes."""

    when: Annotated[tuple[OutcomeRule, ...], Field(max_length=16)] = ()
    """What responses mean by their JSON body; the first rule that matches decides. An unreadable body matches none."""

    def compiled(self, *, resends: bool) -> outcomes.StatusPolicy:
        listed = ((self.final, "final"), (self.retryable, "retryable"), (self.in_doubt, "in_doubt"))
        selected = [(status, outcomes.Meaning(meaning)) for statuses, meaning in listed for status in statuses]
        return outcomes.StatusPolicy(
            outcomes.Preset(self.preset),
            {status: meaning for status, meaning in selected if isinstance(status, int)},
            {int(status[0]): meaning for status, meaning in selected if isinstance(status, str)},
            resends=resends,
            when=tuple((rule.compiled, outcomes.Meaning(rule.is_)) for rule in self.when),
        )

    def disagreements(self) -> Iterator[Disagreement]:
        first: dict[int | str, str] = {}
        for name in ("final", "retryable", "in_doubt"):
            for index, status in enumerate(getattr(self, name)):
                if status in first:
                    yield (name, index), f"{status} is listed already, under {first[status]}"
                first.setdefault(status, name)
        for index, rule in enumerate(self.when):
            for number, earlier in enumerate(self.when[:index]):
                if earlier.compiled.covers(rule.compiled):
                    yield ("when", index), f"when[{number}] matches every response that this does"
                    break


_VERSIONS = "a version such as v3, or {header: NAME}"


class VersionHeader(Section):
    """A header of the request names the version of its response."""

    header: Annotated[str, leaf.header_name(refused=_KEY_REFUSED)]
    """The header that names the version."""

    @property
    def compiled(self) -> outcomes.VersionHeader:
        return outcomes.VersionHeader(self.header.lower().encode())


Version = Annotated[Annotated[str, leaf.VERSION_NAME] | VersionHeader, Forms(_VERSIONS)]


class ResponsePolicy(Section):
    """What is stored of a response, and what a repeat gets."""

    max_stored_bytes: Annotated[int, leaf.size("0", "64MiB")] = written("1MiB")
    """The longest body that is stored; 0 stores none."""
    strip: Annotated[tuple[leaf.AnyHeader, ...], Field(max_length=64), Distinct()] = ()
    """Headers that are not stored."""
    keep: Annotated[tuple[leaf.AnyHeader, ...], Field(max_length=2)] = ()
    """Set-Cookie or WWW-Authenticate, which are not stored otherwise."""
    redact: Annotated[tuple[Annotated[str, leaf.redacted], ...], Field(max_length=64)] = ()
    """Values that are replaced before a response is stored: JSON pointers into the body, and header:NAME. A body in
    which this cannot be done (no JSON, encoded, longer than 1MiB) is not stored."""
    reference: Annotated[str, leaf.PROBE_FOLLOW] = "location"
    """Where a response names what it made: `location`, or a JSON pointer into its body. Kept as long as the key."""
    replay: Literal["stored", "fetch"] = "stored"
    """What a repeat gets: the stored response, or one that is fetched from the service with the caller's own headers.
    With fetch, nothing of a response is stored but its status and what it made."""
    fetch: Annotated[str, leaf.fetch_path] = "location"
    """Where a repeat is fetched: at the `location` that the first response named, or at a path with {reference}."""
    version: Annotated[
        Version | None, Field(description=f"The version of the API that responses are in: {_VERSIONS}.")
    ] = None
    on_version_change: Literal["replay", "gone"] = "replay"
    """What a repeat gets that expects another version than that of the stored response: that response, or 410."""

    def disagreements(self) -> Iterator[Disagreement]:
        stripped = {header.lower() for header in self.strip}
        for index, header in enumerate(self.keep):
            if header.lower().encode() not in PERSONAL:
                yield ("keep", index), "expected Set-Cookie or WWW-Authenticate; others are always stored"
            if header.lower() in stripped:
                yield ("keep", index), "this header is listed under strip too"
        for index in repeated(part.lower() if part.startswith("header:") else part for part in self.redact):
            yield ("redact", index), "this is listed already"
        for index, part in enumerate(self.redact):
            if part.startswith("header:") and leaf.redacted_header(part).lower() in stripped:
                yield ("redact", index), "this header is listed under strip, so it is not stored at all"
        if self.redact and self.max_stored_bytes == 0 and all(part.startswith("/") for part in self.redact):
            yield "redact", "no body is stored, because max_stored_bytes is 0"
        if self.on_version_change == "gone" and self.version is None:
            yield "on_version_change", "gone needs version: which version a response is in"
        if "reference" in self.model_fields_set and not self.keeps_reference:
            yield "reference", "it is not kept: it is listed under strip or redact"
        if self.replay == "fetch":
            yield from self._useless_to_fetch()
        elif "fetch" in self.model_fields_set:
            yield "fetch", "this needs replay: fetch"

    @property
    def keeps_reference(self) -> bool:
        """Whether what a response made is kept: not where the value that names it is stripped or redacted."""
        if self.reference != "location":
            pointers = [part for part in self.redact if part.startswith("/")]
            return not any(_is_within(self.reference, part) or _is_within(part, self.reference) for part in pointers)
        redacted = {leaf.redacted_header(part).lower() for part in self.redact if part.startswith("header:")}
        return "location" not in {*redacted, *(header.lower() for header in self.strip)}

    def compiled(self, *, reads_bodies: bool) -> KeepPolicy:
        """What is kept of responses. `reads_bodies`: they mean something by their bodies."""
        is_fetched, version = self.replay == "fetch", self.version
        headers = [leaf.redacted_header(part) for part in self.redact if not part.startswith("/")]
        pointers = tuple(parse_pointer(part) for part in self.redact if part.startswith("/"))
        return KeepPolicy(
            body_bytes_max=0 if is_fetched else self.max_stored_bytes,
            strip=leaf.lowered(self.strip),
            keep=leaf.lowered(self.keep),
            redaction=Redaction(pointers, leaf.lowered(headers)) if self.redact else None,
            reference=reference_of(self.reference) if self.keeps_reference else None,
            version=version.encode() if isinstance(version, str) else None if version is None else version.compiled,
            is_version_strict=self.on_version_change == "gone",
            reads_bodies=self.reference != "location" or reads_bodies,
            is_fetched=is_fetched,
            fetch_path=None if self.fetch == "location" else self.fetch,
        )

    def _useless_to_fetch(self) -> Iterator[Disagreement]:
        for name in ("max_stored_bytes", "strip", "keep", "redact"):
            if name in self.model_fields_set and getattr(self, name):
                yield name, "nothing is stored with replay: fetch; leave this out"
        if self.version is not None:
            yield "version", "a fetched response is in the version that its own request asks for"
        if self.fetch == "location" and self.reference != "location":
            message = "fetch: location needs reference: location; or write a path such as /v1/payments/{reference}"
            yield ("fetch",) if "fetch" in self.model_fields_set else ("replay",), message
        if self.fetch != "location" and self.reference == "location":
            yield "fetch", "a path with {reference} needs reference: a JSON pointer such as /id"


class Retention(Section):
    """How long an operation is remembered."""

    ORDERED = (("replay", "remember"),)

    replay: Annotated[float, leaf.duration("1s", "3650d")] = written("24h")
    """How long the response is kept. At most as long as the key."""
    remember: Annotated[float, leaf.duration("1s", "3650d")] = written("7d")
    """How long the key is kept; after that, a request with it executes again."""
    expired_status: Annotated[Literal[410, 409, 204], leaf.choice(410, 409, 204)] = 410
    """The status of the reply when the key is remembered but the response has expired."""

    @cached_property
    def replay_us(self) -> int:
        return microseconds(self.replay)

    @cached_property
    def remember_us(self) -> int:
        return microseconds(self.remember)


class Body(Section):
    """Limits of request bodies."""

    max_bytes: Annotated[int, leaf.size("0", "16GiB")] = written("10MiB")
    """The longest body of a request."""
    spool_over: Annotated[int, leaf.size("0", "16GiB")] = written("256KiB")
    """Longer bodies are held in a file while they are compared."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.spool_over > self.max_bytes and {"spool_over", "max_bytes"} <= self.model_fields_set:
            limits = f"{leaf.size_text(self.spool_over)} is more than {leaf.size_text(self.max_bytes)}"
            yield "spool_over", f"spool_over must be at most max_bytes; {limits}"


def _key_or_inbox(schema: dict[str, Any]) -> None:
    """A route has a key or an inbox, for editors."""
    schema["required"].remove("key")
    schema["anyOf"] = [{"required": ["key"]}, {"required": ["inbox"]}]


class Route(Section):
    """One kind of operation that is protected."""

    model_config = ConfigDict(json_schema_extra=_key_or_inbox)

    name: leaf.Name
    """The name of the route in logs and metrics."""
    operation: leaf.Name = Field(default_factory=lambda known: known.get("name", ""))
    """The name in the identity of its operations: the route's name if left out. Routes may share one."""
    match: Match
    """Which requests the route protects: {path}, and optionally methods and host."""
    key: Annotated[Key | None, Field(description=f"Where the key is: {KEY_FORMS}. An inbox has none.")]
    scope: Annotated[Scope, Field(description=f"Whose key it is: {SCOPE_FORMS}.")]
    authorize: Authorize | None = None
    """Who is asked whether a request may be made: {forward_auth: {url}}. It is no scope; nobody if left out."""
    fingerprint: Fingerprint = Field(default_factory=Fingerprint)
    """What makes two requests the same request."""
    repeats: Repeats | None = None
    """What happens to a request that a caller has sent before under another key: {} counts such requests."""
    in_flight: InFlight = Field(default_factory=InFlight)
    """What a duplicate gets while the first request is still running."""
    outcome: Outcome
    """What the statuses of the service mean: {preset: standard}, payments or success_only."""
    recovery: Annotated[Recovery, Field(description=f"How an operation in doubt is resolved: {RECOVERY_FORMS}.")] = (
        "hold"
    )
    response: ResponsePolicy = Field(default_factory=ResponsePolicy)
    """What is stored of a response for replay."""
    retention: Retention = Field(default_factory=Retention)
    """How long an operation is remembered."""
    body: Body = Field(default_factory=Body)
    """Limits of request bodies."""
    accept: Accept | None = None
    """Which requests are stored first and delivered later, if any: {} for those that say `Prefer: respond-async`."""
    inbox: Inbox | None = None
    """Webhooks that are acknowledged at once and delivered later, if this route takes any: {preset, secrets}."""
    order: Order | None = None
    """Which requests are delivered in order, if any: {by: /account_id} or {by: {header: NAME}}."""
    dead_letter: DeadLetter = Field(default_factory=DeadLetter)
    """What a repeat of a request gets that was accepted, and then given up."""
    delivery: RouteDelivery = Field(default_factory=RouteDelivery)
    """Where this route differs from the global delivery."""
    upstream: RouteUpstream = Field(default_factory=RouteUpstream)
    """Where this route differs from the global upstream."""
    errors: Literal["problem", "stripe"] = "problem"
    """The form of the gateway's own errors: RFC 9457 problem documents, or errors as Stripe's SDKs expect them."""
    mismatch_status: Annotated[Literal[422, 409, 400], leaf.choice(422, 409, 400)] = 422
    """The status of the reply to a different request with a used key."""
    status_header: leaf.Bool = True
    """Whether replies carry `Idempotency-Status`."""
    store_unavailable: Literal["refuse", "forward"] = "refuse"
    """What happens to a request while the durable store is down: refused, or forwarded unprotected."""
    mode: Literal["enforce", "observe"] | None = None
    """Whether its requests are protected, or only observed; as the top-level `mode` says if left out. An observed
    request is forwarded as if no route matched, and what enforcement would have done is counted."""
    enforce_share: Annotated[float, leaf.percentage] = written("0%")
    """Of an observed route, for which share of the keys it is enforced all the same. All repeats of a key are on one
    side. Requests without a key are observed."""
    mode_change: Literal["refuse", "accept"] = "refuse"
    """Whether the gateway starts if keys that are still remembered would no longer be looked up, because the route is
    now observed, or enforced for a smaller share."""
    identity_change: Literal["refuse", "accept"] = "refuse"
    """Whether the gateway starts if a change of the file would make it forget keys that are still remembered."""

    @model_validator(mode="before")
    @classmethod
    def _key_of_inbox(cls, given: object) -> object:
        """The key may be left out where an inbox takes its place."""
        if isinstance(given, Mapping) and given.get("inbox") is not None and "key" not in given:
            return {**given, "key": None}
        return given

    @model_validator(mode="after")
    def _remember_events(self) -> Self:
        """Events are remembered for longer than other requests, unless the file says how long."""
        if self.inbox is not None and "remember" not in self.retention.model_fields_set:
            values = self.retention.__dict__
            values["remember"] = max(REMEMBER_SECONDS, values["remember"])
        return self

    def disagreements(self) -> Iterator[Disagreement]:
        if self.inbox is not None and self.key is not None:
            yield "key", "the preset of an inbox says where the key is; leave this out"
        if self.inbox is not None and self.authorize is not None:
            yield "authorize", "the sender of an event is known by its signature; leave this out"

    @property
    def authorities(self) -> tuple[ForwardAuth, ...]:
        """The authorising services that are asked about requests of this route."""
        found = [part.forward_auth for part in parts_of(self.scope) if isinstance(part, ForwardAuthScope)]
        return (*found, *(() if self.authorize is None else (self.authorize.forward_auth,)))

    @cached_property
    def key_spec(self) -> keys.KeySpec:
        """Where its keys are: an inbox knows it of its sender."""
        if self.inbox is not None:
            return self.inbox.compiled.key
        match self.key:
            case HeaderKey(format=form) | HeadersKey(format=form):
                return keys.HeaderKey(leaf.encoded(key_header_names(self.key)), keys.KeyFormat(form))
            case ComposedKey(compose=parts):
                return keys.ComposedKey(tuple(map(_part, parts)))
            case BodyKey() as part:
                return keys.ComposedKey((_part(part),))
            case None:
                raise AssertionError("a route has a key or an inbox")

    @cached_property
    def scope_spec(self) -> ScopeSpec:
        return SharedScope() if self.scope == "shared" else self.scope.compiled

    @cached_property
    def status_policy(self) -> outcomes.StatusPolicy:
        return self.outcome.compiled(resends=self.recovery == "resend")

    @cached_property
    def keep_policy(self) -> KeepPolicy:
        return self.response.compiled(reads_bodies=bool(self.outcome.when))

    @property
    def is_accepting(self) -> bool:
        """Whether some requests are stored first and delivered later."""
        return self.accept is not None or self.inbox is not None

    @property
    def settle(self) -> float | None:
        """The `settle` of the route's probe, in seconds, if written."""
        return self.recovery.probe.settle if isinstance(self.recovery, ProbeRecovery) else None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for `routing.RouteTable`. An inbox with origins answers their handshake, too."""
        has_handshake = self.inbox is not None and bool(self.inbox.cloudevents.origins)
        return self.match.rules(*(["OPTIONS"] if has_handshake else []))
