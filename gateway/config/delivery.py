"""The service behind the gateway, and how requests reach it, in the file: at once, or accepted and delivered later.

Recovery is here, because the service alone knows the outcome of operations in doubt. Kept requests are encrypted, so a
route that accepts needs `secrets.encryption`. `checks` compares these sections with the rest of their route.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretBytes, SecretStr

from gateway.config import leaf
from gateway.config.section import DIVIDED, Disagreement, Distinct, Forms, Section, follow, written
from gateway.core import outcome, recovery, webhook
from gateway.core.confidential import KEY_BYTES
from gateway.core.delivery import BreakerPolicy, DeliveryPolicy
from gateway.core.identity import key as keys
from gateway.core.identity.body import parse_pointer
from gateway.core.identity.fingerprint import may_be_fingerprinted
from gateway.core.message import Headers
from gateway.core.operation import microseconds
from gateway.core.routing import PathPattern

# How long sent bytes may stay unacknowledged. After that, no byte of a request is still on its way.
TCP_USER_TIMEOUT_SECONDS = 30.0


class UpstreamTls(Section):
    """TLS to the service. Used where the URL is https; all of it may be left out."""

    ca: leaf.File | None = None
    """The trusted certificates; the system's if left out."""
    cert: leaf.File | None = None
    """The gateway's own certificate, if the service asks for one."""
    key: leaf.File | None = None
    """The private key of that certificate."""
    server_name: leaf.Host | None = None
    """The name that the service's certificate must hold, if it is not the host of the URL."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.cert is None) != (self.key is None):
            yield (), "cert and key must be given together"


class _UpstreamSettings(Section):
    ORDERED = (("answer_within", "response_timeout"),)

    host: Annotated[str, leaf.host_name(may_have_port=True)] = "preserve"
    """The Host that the service receives: `preserve` the caller's, `upstream` for the host of the URL, or a name."""
    connect_timeout: Annotated[float, leaf.duration("1ms", "5m")] = written("2s")
    """How long connecting may take."""
    answer_within: Annotated[float, leaf.duration("1ms", "1h")] = written("30s")
    """How long a caller waits for the service. At most response_timeout."""
    response_timeout: Annotated[float, leaf.duration("1ms", "24h")] = written("10m")
    """How long an attempt may take before it is aborted and in doubt."""
    keepalive: Annotated[float, leaf.duration("0s", "10m")] = written("2s")
    """How long a connection may be idle and still be used. A shorter time that the service announces counts."""
    max_connections: Annotated[int, leaf.count(1, 1_000_000), DIVIDED] = 1024
    """How many connections unprotected requests may have at once, streams and WebSockets included; operations in flight
    have their own in addition. Divided evenly among the workers."""
    key: Literal["original", "operation_id", "none"] = "original"
    """The key that the service receives: the caller's, one derived from the operation, or none."""
    tls: UpstreamTls | None = None
    """TLS to the service."""


class Upstream(_UpstreamSettings):
    """The service behind the gateway."""

    url: Annotated[leaf.UpstreamUrl, leaf.service_url]
    """Where the service is, such as http://127.0.0.1:9000. Targets are forwarded as they came, so it has no path."""

    @property
    def own_host(self) -> bytes | None:
        """The Host that the service receives in place of the caller's; None preserves that."""
        if self.host == "preserve":
            return None
        return (self.url.authority if self.host == "upstream" else self.host).encode()

    @property
    def default_host(self) -> bytes:
        """The Host that the service receives if the caller sends none."""
        return self.own_host or self.url.authority.encode()

    @property
    def settle(self) -> float:
        """How long after the end of a lease a request of its attempt may still arrive, in seconds."""
        return self.response_timeout + TCP_USER_TIMEOUT_SECONDS


class RouteUpstream(_UpstreamSettings):
    """A route's overrides of the upstream. Only written keys count; `Config.upstream_for` merges both."""

    url: Annotated[leaf.UpstreamUrl, leaf.service_url] | None = None
    """Where the service of this route is."""

    def over(self, upstream: Upstream, settle: float | None = None) -> Upstream:
        """The upstream, overridden by the keys that are written here; `tls` counts as one key. `settle` is that of the
        route's probe, in seconds. No attempt may outlast it, so it bounds the default of `response_timeout`."""
        merged = upstream.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
        follow(merged, {} if settle is None else {"response_timeout": settle - TCP_USER_TIMEOUT_SECONDS})
        return merged


# -- recovery ----------------------------------------------------------------------------------------------------------

_PROBE_REFUSED = {"a probe has the Host of the request": "host", "a probe has no body": "content-"}
_Value = Annotated[str, Field(min_length=1, max_length=256)]


def _header_value(value: object) -> object:
    # A line break ends the header, so it could never be sent; an empty variable leaves white space at an end.
    if isinstance(value, str) and (not value.isprintable() or value != value.strip()):
        raise leaf.wrong("expected one line, without white space at its ends", is_secret=True)
    return value


HeaderValue = Annotated[SecretStr, BeforeValidator(_header_value)]


def written_headers(headers: Mapping[str, SecretStr]) -> Headers:
    return tuple((name.encode(), value.get_secret_value().encode()) for name, value in headers.items())


def reference_of(text: str) -> outcome.Reference:
    """Where a response names another one, by a `PROBE_FOLLOW`."""
    return "location" if text == "location" else parse_pointer(text)


class ResponseRule(Section):
    """A response: its status and, where that is not enough, values of its JSON body."""

    status: Annotated[tuple[Annotated[int | str, leaf.status_set], ...], Field(min_length=1, max_length=64)]
    """Codes and classes, one of which the status must match."""
    where: Annotated[
        dict[leaf.JsonPointer, Annotated[tuple[_Value, ...], Field(min_length=1, max_length=64)]], Field(max_length=16)
    ] = {}  # noqa: RUF012  copied by the model
    """JSON pointers into the response's body, each with its accepted values."""

    @property
    def compiled(self) -> outcome.ResponseRule:
        selected = self.status
        statuses = frozenset(code for code in range(200, 600) if code in selected or f"{code // 100}xx" in selected)
        where = tuple((parse_pointer(pointer), frozenset(values)) for pointer, values in self.where.items())
        return outcome.ResponseRule(statuses, where)


class Probe(Section):
    """A safe request that finds out an operation's outcome."""

    path: Annotated[str, leaf.probe_path]
    """The target: a path with {operation_id}, {key} and the variables of the route's path."""
    method: Literal["GET", "HEAD"] = "GET"
    """The method."""
    headers: Annotated[
        dict[Annotated[str, leaf.header_name(refused=_PROBE_REFUSED)], HeaderValue], Field(max_length=32)
    ] = {}  # noqa: RUF012  copied by the model
    """Headers to send, such as credentials. The caller's are never sent."""
    done: Annotated[tuple[ResponseRule, ...], Field(min_length=1, max_length=16)]
    """Responses that mean that it happened; the response is recorded."""
    never_happened: Annotated[tuple[ResponseRule, ...], Field(max_length=16)] = ()
    """Responses that mean that nothing happened, once `settle` is over. Any other response is probed again."""
    settle: Annotated[float, leaf.duration("31s", "7d")] | None = None
    """How long after the last attempt a request may still arrive: response_timeout + 30s if left out, and no less.
    Where no response_timeout is written, its default becomes 30s less than this."""
    follow: Annotated[str, leaf.PROBE_FOLLOW] | None = None
    """Where a `done` response names the one to record: `location`, or a JSON pointer into its body."""

    def compiled(self, upstream: Upstream, patterns: tuple[PathPattern, ...]) -> recovery.Probe:
        """As it is sent on a route with these paths, to this upstream."""
        return recovery.Probe(
            path=self.path,
            method=self.method,
            headers=written_headers(self.headers),
            done=tuple(rule.compiled for rule in self.done),
            never_happened=tuple(rule.compiled for rule in self.never_happened),
            settle_us=microseconds(upstream.settle if self.settle is None else self.settle),
            follow=None if self.follow is None else reference_of(self.follow),
            patterns=patterns,
            host=upstream.own_host,
        )


class ProbeRecovery(Section):
    """Ask the upstream for the outcome."""

    probe: Probe
    """The request, and what its responses mean."""


RECOVERY_FORMS = "hold, resend or {probe: {path, done, ...}}"
Recovery = Annotated[Literal["hold", "resend"] | ProbeRecovery, Forms(RECOVERY_FORMS)]


_HEX_KEY = re.compile(rf"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}\Z")
_REPLACED_REFUSED = {
    "upstream.host says which Host the service receives": "host",
    "the body is delivered as it came": "content-",
}

# -- accepted, and delivered later -------------------------------------------------------------------------------------


class Accept(Section):
    """Requests that are stored first and delivered later: their callers get 202 and need not wait."""

    mode: Literal["prefer", "always"] = "prefer"
    """Which requests are accepted: those that say `Prefer: respond-async`, or all that have a key."""
    identity: Literal["verified", "unverified"] = "verified"
    """Whether strangers may store requests here. `verified`: the scope must name a verified caller. `unverified`
    accepts whatever the scope takes for a caller: the service refuses a wrong credential only when it is delivered."""
    max_bytes: Annotated[int, leaf.size("0", "64MiB")] = written("1MiB")
    """The longest body of a request that is accepted. At most body.max_bytes."""
    max_pending: Annotated[int, leaf.count(1, 10_000_000)] = 100_000
    """How many requests of this operation may wait for delivery; more get 503. Counted about once a second."""
    max_pending_per_scope: Annotated[int, leaf.count(1, 1_000_000)] = 1000
    """How many of them may be of one caller."""
    max_pending_bytes: Annotated[int, leaf.size("1KiB", "1024GiB")] = written("1GiB")
    """How many bytes the requests of a route that wait for delivery may have together; more get 503."""
    withdraw: Literal["allow", "refuse"] = "allow"
    """Whether callers may call off what is not delivered yet, by DELETE of the status resource."""
    headers: Annotated[
        dict[Annotated[str, leaf.header_name(refused=_REPLACED_REFUSED)], HeaderValue], Field(max_length=32)
    ] = {}  # noqa: RUF012  copied by the model
    """Headers to deliver with, in place of the caller's, such as credentials that do not expire."""


_ORDER_REFUSED = {"a credential does not say what belongs together": "authorization cookie"}


class OrderHeader(Section):
    """The ordering value is the value of a header."""

    header: Annotated[str, leaf.header_name(refused=_ORDER_REFUSED)]
    """The header that holds the ordering value."""


class Order(Section):
    """Requests of one caller with the same value are delivered one after the other, as they were accepted: a lane."""

    by: Annotated[leaf.JsonPointer | OrderHeader, Forms("a JSON pointer such as /account_id, or {header: NAME}")]
    """Where the ordering value is: a JSON pointer into the body such as /account_id, or {header: NAME}."""
    on_stop: Literal["stop", "skip"] = "stop"
    """What a dead letter does to its lane: stops it until somebody decides, or is passed. Doubt always stops it."""
    missing: Literal["refuse", "unordered"] = "refuse"
    """What becomes of a request without the value: it is refused with 400, or delivered in no order."""

    @cached_property
    def value(self) -> keys.ComposedKey:
        """Where the ordering value is: it is read as a key is."""
        by = self.by
        part = keys.BodyPart(parse_pointer(by)) if isinstance(by, str) else keys.HeaderPart(by.header.encode())
        return keys.ComposedKey((part,))


class DeadLetter(Section):
    """What a repeat of a request gets that was accepted, and then given up."""

    on_repeat: Literal["refuse", "requeue"] = "refuse"
    """Whether a repeat is refused with 409, or delivers the request again."""
    requeue_after: Annotated[float, leaf.duration("1s", "30d")] = written("1m")
    """How long a dead letter waits until a repeat delivers it again."""


class _DeliverySettings(Section):
    schedule: Annotated[
        tuple[Annotated[float, leaf.duration("100ms", "24h")], ...], Field(min_length=1, max_length=32)
    ] = Field(("1s", "5s", "30s", "2m", "10m", "30m", "1h"), validate_default=True)
    """The pauses after the first, second, ... attempt without effect; the last one repeats. Half of each is random."""
    deliver_within: Annotated[float, leaf.duration("1s", "365d")] = written("24h")
    """How long delivery is tried before the request becomes a dead letter. At most retention.remember."""
    max_answers: Annotated[int, leaf.count(1, 1000)] = 20
    """After how many responses without effect the request becomes a dead letter. An outage does not count."""
    max_in_flight: Annotated[int, leaf.count(1, 100_000), DIVIDED] = 64
    """How many deliveries of a route may run at once, divided evenly among the workers."""
    unauthorized: Literal["bury", "retry"] = "bury"
    """What a 401 or 403 means: the request is a dead letter at once, or is tried again with headers of `accept`."""


class RouteDelivery(_DeliverySettings):
    """A route's overrides of `delivery`. Only written keys count; `Config.delivery_for` merges both."""


# -- global sections ---------------------------------------------------------------------------------------------------


class Breaker(Section):
    """When deliveries to a service that cannot be reached pause."""

    ORDERED = (("open", "max_open"),)

    failures: Annotated[int, leaf.count(1, 1000)] = 5
    """After how many deliveries in a row that could not be sent."""
    open: Annotated[float, leaf.duration("100ms", "1h")] = written("10s")
    """How long the first pause is; each further one is longer."""
    max_open: Annotated[float, leaf.duration("100ms", "24h")] = written("5m")
    """How long the longest pause is."""

    @property
    def compiled(self) -> BreakerPolicy:
        return BreakerPolicy(self.failures, self.open, self.max_open)


class Delivery(_DeliverySettings):
    """How accepted requests are delivered, unless their route writes something else."""

    workers: Annotated[int, leaf.count(0, 1)] = 1
    """Whether this gateway delivers: 0 only accepts, where `idempotency-gateway deliver` runs elsewhere."""
    breaker: Breaker = Field(default_factory=Breaker)
    """When deliveries to a service that cannot be reached pause."""

    @property
    def compiled(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            schedule_us=tuple(map(microseconds, self.schedule)),
            deliver_within_us=microseconds(self.deliver_within),
            answers_max=self.max_answers,
            in_flight_max=self.max_in_flight,
            buries_unauthorized=self.unauthorized == "bury",
        )


# -- secrets -----------------------------------------------------------------------------------------------------------


def encryption_key_bytes(text: str) -> bytes | None:
    """The key that is written as hexadecimal digits or base64; None where that is not `KEY_BYTES`."""
    try:
        key = bytes.fromhex(text) if _HEX_KEY.match(text) else b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _key(text: str) -> bytes:
    key = encryption_key_bytes(text)
    if key is None:
        raise ValueError(f"expected {KEY_BYTES} bytes as {2 * KEY_BYTES} hexadecimal digits, or as base64")
    return key


KEY = leaf.secret(_key, is_key=True)


class EncryptionKey(Section):
    """A secret that what is kept is encrypted with."""

    id: leaf.Name
    """The name of this key, stored with what it encrypted. A new key needs a new name."""
    key: Annotated[SecretBytes, KEY]
    """32 random bytes as hexadecimal or base64; `${NAME}` or `${file:/run/secrets/name}` keeps it out of this file."""


class IdentityKey(EncryptionKey):
    """A secret that the digests of scopes and keys are keyed with, so that a stolen table cannot be used to guess them.

    Another secret makes every remembered key unknown, like another scope.
    """

    id: leaf.Name
    """The name of this key, for people. It is stored nowhere."""


def _signing(text: str) -> str:
    webhook.signing_key(text)
    return text


_SIGNING = leaf.secret(_signing, "make one with: echo whsec_$(openssl rand -hex 32)", is_key=True)


class SigningSecret(Section):
    """A secret that the gateway signs with, by Standard Webhooks."""

    id: leaf.Name
    """The name of this secret in metrics."""
    key: Annotated[SecretStr, _SIGNING]
    """The secret: whsec_ and 24 to 64 bytes as base64, or whsk_ and an Ed25519 private key; `${NAME}` or
    `${file:/run/secrets/name}` keeps it out of this file."""
    until: Annotated[float, leaf.moment] | None = None
    """When it stops signing, such as 2026-12-01T00:00:00Z, while another one takes its place. For ever if left out."""

    @property
    def compiled(self) -> webhook.Secret:
        return webhook.Secret(self.id, *webhook.signing_key(self.key.get_secret_value()), self.until)


# -- inboxes -----------------------------------------------------------------------------------------------------------
#
# Whose webhooks a route takes, and with which secrets. Such a route has no key of its own: its preset says which header
# or value of the body identifies an event.

REMEMBER_SECONDS = 35 * 86400.0
"""How long events are remembered by default: longer than any sender sends one again."""

# What is signed where a CloudEvent is: its id is that of the event, whatever the scheme calls an id.
_NO_ID = b"ce-id"


def _secret(text: str) -> str:
    if len(text.encode()) < webhook.SECRET_BYTES_MIN:
        raise ValueError(f"a secret has at least {webhook.SECRET_BYTES_MIN} bytes")
    return text


_PREFIX = leaf.text_leaf("at most 64 visible ASCII characters", r"[!-~]{0,64}", {"maxLength": 64})


class InboxSecret(Section):
    """A secret that the sender signs with."""

    id: leaf.Name
    """The name of this secret in metrics."""
    key: Annotated[SecretStr, leaf.secret(_secret, hint="", is_key=True)]
    """The secret as the sender shows it, at least 24 bytes; `${NAME}` or `${file:/run/secrets/name}` keeps it out of
    this file. For standard_webhooks whsec_... or, where the sender signs with a private key, whpk_..."""
    until: Annotated[float, leaf.moment] | None = None
    """When it ends, such as 2026-12-01T00:00:00Z, while another one takes its place. For ever if left out."""


class HmacSignature(Section):
    """How a sender without a preset signs: an HMAC in a header."""

    header: leaf.AnyHeader
    """The header that holds the signature."""
    prefix: Annotated[str, _PREFIX] = ""
    """What stands before the signature in its header, such as `sha256=`."""
    signed: Annotated[str, leaf.signature_template] = "{body}"
    """What is signed: text with {body} and perhaps {timestamp} and {id}, such as `{timestamp}.{body}`."""
    digest: Literal["sha256", "sha512"] = "sha256"
    """The digest of the HMAC."""
    encoding: Literal["hex", "base64"] = "hex"
    """How the signature is written; hex in lower case."""
    id: Annotated[str, leaf.event_id] | None = None
    """Where the id of an event is: the name of a header, or a JSON pointer into the body."""
    timestamp: leaf.AnyHeader | None = None
    """The header that holds the time of signing, in seconds since 1970, if {timestamp} is signed."""
    about: Annotated[tuple[leaf.AnyHeader, ...], Field(max_length=8)] = ()
    """The headers that say what an event is, or whose, such as X-Topic: with another value it is another event,
    although its id, or the body that it is known by, is the same."""


Origins = Annotated[
    Literal["any"] | Annotated[tuple[leaf.Host, ...], Field(max_length=64)],
    Forms("a list of names such as [eventgrid.azure.net], or any"),
]


class CloudEvents(Section):
    """How CloudEvents are signed, and who may deliver them."""

    signature: Literal["bearer", "standard_webhooks", "stripe", "slack", "github", "shopify", "hmac"] = "bearer"
    """How events are signed: by the scheme of another preset, or not at all: bearer takes the secret for a token."""
    origins: Origins = ()
    """The origins that may deliver here, by the names that they give in their handshake (an OPTIONS request)."""


class Inbox(Section):
    """Webhooks: acknowledged as soon as they are stored, and delivered until the service has them."""

    preset: Literal["standard_webhooks", "stripe", "slack", "github", "shopify", "cloudevents", "hmac"]
    """Whose webhooks they are: how they are signed, what identifies an event, how one is acknowledged."""
    secrets: Annotated[tuple[InboxSecret, ...], Field(min_length=1, max_length=8), Distinct("secret", "id")]
    """The secrets of the sender; a message is genuine if one of them signed it."""
    tolerance: Annotated[float, leaf.duration("1s", "24h")] = written("5m")
    """How old a signature may be, and how far in the future, where the sender signs the time."""
    sign_again: Literal["late", "always", "never"] = "late"
    """When a delivery is signed anew, with the same secret and a new time: when half of the tolerance has passed."""
    replay_guard: Literal["content", "none"] | None = None
    """What identifies an event: content compares bodies, none relies on the id. If left out: content where the
    signature does not cover the id."""
    on_change: Literal["acknowledge", "refuse"] = "acknowledge"
    """What the sender gets for an id that came before with another content: it is not delivered either way."""
    as_: Annotated[Literal["sender", "standard_webhooks"], Field(alias="as")] = "sender"
    """Whose signature the service gets: the sender's, which sign_again renews where that can be done, or the gateway's
    own with signing_secrets, by Standard Webhooks."""
    signing_secrets: Annotated[tuple[SigningSecret, ...], Field(max_length=8), Distinct("secret", "id")] = ()
    """The secrets for `as: standard_webhooks`, all of which sign until they end."""
    hmac: HmacSignature | None = None
    """How the sender signs, for the presets hmac and cloudevents."""
    cloudevents: CloudEvents = Field(default_factory=CloudEvents)
    """Settings of the preset cloudevents."""

    @property
    def known(self) -> webhook.Preset:
        return webhook.PRESETS[self.preset]

    @property
    def is_bearer(self) -> bool:
        return self.preset == "cloudevents" and self.cloudevents.signature == "bearer"

    @property
    def signature(self) -> str:
        return self.cloudevents.signature if self.preset == "cloudevents" and not self.is_bearer else self.preset

    @property
    def schemes(self) -> tuple[webhook.Scheme, ...]:
        """The schemes that messages are verified by. Raises ValueError where `hmac` proves nothing."""
        schemes = webhook.PRESETS[self.signature].schemes
        if self.signature == "hmac" and self.hmac is not None:
            schemes = (self._custom(self.hmac),)
        if self.preset == "cloudevents":
            schemes = tuple(
                replace(scheme, key=keys.CloudEventKey(), about=(*webhook.CLOUD_EVENT_ABOUT, *scheme.about))
                for scheme in schemes
            )
        return schemes

    @property
    def guards_content(self) -> bool:
        """Whether bodies identify events, and not their ids."""
        if self.replay_guard is not None:
            return self.replay_guard == "content"
        return not self.is_bearer and not all(scheme.is_id_signed for scheme in self.schemes)

    @property
    def has_time(self) -> bool:
        return any(scheme.time is not None for scheme in self.schemes)

    @cached_property
    def compiled(self) -> webhook.Inbox:
        origins = self.cloudevents.origins
        return webhook.Inbox(
            schemes=self.schemes,
            secrets=tuple(webhook.Secret(secret.id, *self._key(secret), secret.until) for secret in self.secrets),
            tolerance_seconds=self.tolerance,
            acknowledgement=self.known.acknowledgement,
            guards_content=self.guards_content,
            sign_again=webhook.SignAgain(self.sign_again),
            refuses_changed=self.on_change == "refuse",
            answers_challenge=self.known.has_challenge,
            own_secrets=tuple(secret.compiled for secret in self.signing_secrets),
            origins=(b"*",) if origins == "any" else tuple(origin.lower().encode() for origin in origins),
        )

    def disagreements(self) -> Iterator[Disagreement]:
        for index, secret in enumerate(self.secrets):
            try:
                self._key(secret)
            except ValueError as error:
                yield ("secrets", index, "key"), str(error)
        yield from self._scheme_disagreements()
        yield from self._signing_disagreements()

    def _signing_disagreements(self) -> Iterator[Disagreement]:
        if self.as_ == "sender":
            if self.signing_secrets:
                yield "signing_secrets", "these secrets are for as: standard_webhooks"
            return
        if not self.signing_secrets:
            yield (), "as: standard_webhooks needs signing_secrets: [{id: NAME, key: whsec_...}]"
        if "sign_again" in self.model_fields_set:
            yield "sign_again", "the gateway signs every delivery; leave this out"

    def _scheme_disagreements(self) -> Iterator[Disagreement]:
        if "cloudevents" in self.model_fields_set and self.preset != "cloudevents":
            yield "cloudevents", f"these settings are for the preset cloudevents, not {self.preset}"
        if self.signature != "hmac":
            if self.hmac is not None:
                yield "hmac", "the preset knows how its sender signs; leave this out"
        elif self.hmac is None:
            yield (), "hmac is required: {header: NAME, id: NAME} and how the sender signs"
            return
        elif self.preset == "hmac" and self.hmac.id is None:
            yield "hmac", "id is required: the header or the value in the body that names an event"
            return
        try:
            has_time = self.has_time
            verified = frozenset[bytes]().union(*[scheme.headers for scheme in self.schemes])
        except ValueError as error:
            yield ("hmac", "signed"), str(error)
            return
        for index, name in enumerate(() if self.hmac is None else self.hmac.about):
            if name.lower().encode() in verified or not may_be_fingerprinted(name.encode()):
                yield ("hmac", "about", index), "this header differs when the sender sends the event again"
        for name in ("tolerance", "sign_again"):
            if name in self.model_fields_set and not has_time:
                yield name, "this sender signs no time, so its signatures do not grow old"

    def _custom(self, hmac: HmacSignature) -> webhook.Scheme:
        place = hmac.id or ""
        event_id = parse_pointer(place) if place.startswith("/") else place.encode() or _NO_ID
        return webhook.custom_scheme(
            signature=webhook.Place(hmac.header.lower().encode(), hmac.prefix.encode()),
            signed=webhook.parse_template(hmac.signed),
            digest=webhook.Digest(hmac.digest),
            encoding=webhook.Encoding(hmac.encoding),
            event_id=event_id,
            time_header=None if hmac.timestamp is None else hmac.timestamp.encode(),
            about=[name.encode() for name in hmac.about],
        )

    def _key(self, secret: InboxSecret) -> tuple[bytes, webhook.Algorithm]:
        key, algorithm = webhook.secret_key(
            secret.key.get_secret_value(), is_base64=webhook.PRESETS[self.signature].is_secret_base64
        )
        return key, webhook.Algorithm.BEARER if self.is_bearer else algorithm
