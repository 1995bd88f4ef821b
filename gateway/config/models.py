"""The whole configuration as values.

Owns the global sections and the shape of the file. Each section checks that its own keys agree; `checks` compares
several sections. Attributes have the names of the keys (`from` is `from_`); durations are seconds, sizes are bytes. A
Config from `load` or `parse` has passed every check; its repr shows no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, assert_never

from pydantic import Field, SecretBytes, SecretStr

from gateway.config import leaf
from gateway.config.delivery import (
    KEY,
    Delivery,
    EncryptionKey,
    HeaderValue,
    IdentityKey,
    ProbeRecovery,
    SigningSecret,
    Upstream,
    UpstreamTls,
    encryption_key_bytes,
)
from gateway.config.document import Path as KeyPath
from gateway.config.route import JwtScope, Route, TokenIssuer, Unprotected
from gateway.config.section import DIVIDED, Disagreement, Distinct, Forms, Section, repeated, written
from gateway.core.outbox import DEFAULT_TYPES, EventType
from gateway.core.recovery import Hold, Recovery, Resend
from gateway.core.webhook import EgressPolicy, is_loopback

ROUTES_MAX = 1000

# -- regions -----------------------------------------------------------------------------------------------------------
#
# Regions in the file: where operations are at home, if each region has a store of its own.


class Region(Section):
    """One region, and where its gateways are."""

    name: leaf.Name
    """The name of the region."""
    url: Annotated[leaf.UpstreamUrl, leaf.service_url]
    """Where gateways of other regions reach those of this one. https, unless it is loopback: credentials cross it."""
    tls: UpstreamTls | None = None
    """TLS to its gateways."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.url.scheme != "https" and not is_loopback(self.url.host):
            yield "url", "expected https: callers' credentials cross this connection"


class Regions(Section):
    """Regions with a store each. An operation is at home in one of them, and its requests are sent there from the
    others."""

    here: leaf.Name
    """The name of the region that this gateway is in."""
    homes: Annotated[tuple[Region, ...], Field(min_length=2, max_length=16), Distinct("region", "name")]
    """All regions, the same and in the same order in each of them. An operation's home follows from its id, so a change
    of this list is refused while keys are remembered."""
    key: Annotated[SecretBytes, KEY]
    """A secret that all regions share: 32 random bytes as hexadecimal or base64. It signs what one sends to another."""

    def disagreements(self) -> Iterator[Disagreement]:
        names = [home.name for home in self.homes]
        for index in repeated((str(home.url), home.tls and home.tls.server_name) for home in self.homes):
            yield ("homes", index, "url"), "another region has this url already"
        if self.here not in names:
            yield "here", f"expected one of the names under homes: {', '.join(names)}"


# -- signing in to the console -----------------------------------------------------------------------------------------
#
# There is no default: whoever is trusted to name a person is written, and so is each role.

_TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN: Final = re.compile(r"[!-~]{1,1024}\Z")


def _admin_token(text: str) -> str:
    if len(text) < _TOKEN_CHARACTERS_MIN or not _TOKEN.match(text):
        raise ValueError(f"expected a secret of at least {_TOKEN_CHARACTERS_MIN} visible ASCII characters")
    return text


AdminSecret = Annotated[SecretStr, leaf.secret(_admin_token)]

_REFUSED: Final = {"this header is the browser's own": "host origin cookie content- sec-"}
_TokenHeader = Annotated[str, leaf.header_name(refused=_REFUSED, is_trusted=True)]
_NamingHeader = Annotated[
    str, leaf.header_name(refused={"this header holds a credential": "authorization", **_REFUSED}, is_trusted=True)
]
_Listed = Annotated[tuple[Annotated[str, leaf.plain_text(256)], ...], Field(max_length=1000)]


class Roles(Section):
    """Who has which role. Who is listed nowhere is refused; of several the highest counts."""

    viewer: _Listed = ()
    """Who may read."""
    operator: _Listed = ()
    """Who may also resolve, requeue, withdraw and pause."""
    admin: _Listed = ()
    """Who may also force, purge and erase."""

    @cached_property
    def by_text(self) -> Mapping[str, str]:
        return {text: role for role in ("viewer", "operator", "admin") for text in getattr(self, role)}

    def disagreements(self) -> Iterator[Disagreement]:
        if not (self.viewer or self.operator or self.admin):
            yield (), "nobody has a role: list names or groups under viewer, operator or admin"


class ProxySignIn(Section):
    """A proxy that authenticates people, and names them in a header of its own."""

    from_: Annotated[tuple[leaf.AnyNetwork, ...], Field(alias="from", min_length=1, max_length=64)]
    """The networks of the proxy. From any other address its headers are ignored, and noted as a sign-in that was
    refused."""
    name: _NamingHeader
    """The header that names the person, such as X-Forwarded-User. The proxy has to replace a browser's own."""
    groups: _NamingHeader | None = None
    """The header that lists the person's groups, separated by commas, such as X-Forwarded-Groups. The proxy has to
    replace a browser's own."""
    roles: Roles
    """The role of each group; without `groups`, of each name."""

    def disagreements(self) -> Iterator[Disagreement]:
        for index, network in enumerate(self.from_):
            if network.prefixlen == 0:
                yield ("from", index), "this trusts everybody: write the networks of the proxy"
        if self.groups is not None and self.groups.lower() == self.name.lower():
            yield "groups", "this header names the person already"


class JwtSignIn(TokenIssuer):
    """A signed token of an issuer, which the proxy hands on. `claims` name the person in audits, such as [email]."""

    header: _TokenHeader
    """The header that has the token, such as X-Forwarded-Access-Token; Authorization as a bearer token."""
    groups: Annotated[str, leaf.plain_text(128)]
    """The claim that lists the person's groups: texts, or one."""
    roles: Roles
    """The role of each group."""

    @cached_property
    def scope(self) -> JwtScope:
        """Whose tokens are accepted, as for callers."""
        return JwtScope.model_construct(jwt=self)


class SignIn(Section):
    """How people sign in to the console without a token. Programs that use the admin API need a token."""

    secret: AdminSecret
    """Signs their sessions; the same in each gateway that one address leads to. Another one ends them."""
    proxy: ProxySignIn | None = None
    """A proxy that names people in a header."""
    jwt: JwtSignIn | None = None
    """An issuer whose tokens name people."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.proxy is None and self.jwt is None:
            yield (), "say who names people: proxy or jwt"


# -- events ------------------------------------------------------------------------------------------------------------
#
# Which are published, to which sinks, and where webhooks may lead.

_TYPE_NAMES = Literal[
    "operation.completed",
    "operation.in_doubt",
    "operation.resolved",
    "operation.dead_lettered",
    "operation.requeued",
    "operation.withdrawn",
    "operation.accepted",
]
_PARTS = Literal["key", "scope", "location", "response"]
_Include = Annotated[tuple[_PARTS, ...], Field(max_length=4)]
_Types = Annotated[tuple[_TYPE_NAMES, ...], Field(min_length=1, max_length=len(EventType))]
_DEFAULT_TYPES: Final[tuple[_TYPE_NAMES, ...]] = tuple(type_.value for type_ in EventType if type_ in DEFAULT_TYPES)
# Without blanks and controls; a URI reference (CloudEvents 1.0, `source`).
_SOURCE = r"[!-~]{1,256}"
_STREAM_KEY = r"[!-~]{1,256}"
_STREAM_NAME = r"[A-Za-z0-9_-]{1,128}"
_SUBJECT = r"([A-Za-z0-9_-]|\{route\}|\{type\})+(\.([A-Za-z0-9_-]|\{route\}|\{type\})+)*"
_TOPIC = r"([A-Za-z0-9._-]|\{route\}|\{type\}){1,200}"
_KAFKA_SERVER = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}"
_NATS_URL = r"(nats|tls)://[^/?#@\s]+"


_PROXY = leaf.text_leaf("a URL such as http://proxy:3128", r"http://[^/?#@\s]+/?", {"pattern": "^http://[^/?#@]+/?$"})


class _SinkSettings(Section):
    name: leaf.Name
    """The name of the sink, in metrics and for operators."""
    routes: Annotated[tuple[leaf.Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """The routes whose events it receives; all of them if left out."""
    types: _Types | None = None
    """The events that it receives: events.types if left out."""
    include: _Include | None = None
    """What its events contain: events.include if left out."""
    ordered: leaf.Bool = False
    """Whether it receives the events of an operation, or of its lane, one after the other in the order of the changes.
    One that fails holds up those behind it; a dead one is passed. Each completion then takes several statements."""


class WebhookSink(_SinkSettings):
    """Each event is posted to a URL, signed by Standard Webhooks."""

    kind: Literal["webhook"]
    """webhook."""
    url: Annotated[SecretStr, leaf.webhook_url]
    """Where events are posted."""
    secrets: Annotated[tuple[SigningSecret, ...], Field(min_length=1, max_length=8), Distinct("secret", "id")]
    """The secrets that sign, all of them until they end, so that consumers can change to a new one at any time."""
    format: Literal["cloudevents", "standard"] = "cloudevents"
    """What is posted: a CloudEvent (structured JSON), or the payload that Standard Webhooks recommends."""


class RedisStreamSink(_SinkSettings):
    """Each event is added to a stream on a Redis."""

    kind: Literal["redis_stream"]
    """redis_stream."""
    url: Annotated[leaf.RedisUrl, leaf.STREAM_URL]
    """The Redis. Not the database of store.fast, unless `shares_fast` says so."""
    stream: Annotated[str, leaf.text_leaf("the key of a stream such as operations", _STREAM_KEY)]
    """The key of the stream."""
    shares_fast: leaf.Bool = False
    """Whether the stream may be in the database of store.fast, which may lose anything at any moment."""
    fsync: leaf.Bool = False
    """Whether an event counts as published only once it is on the disk of the server (Redis 7.2 and later)."""
    window: Annotated[float, leaf.duration("1m", "30d")] = written("24h")
    """How long an event that is published again is not added again."""
    max_length: Annotated[int, leaf.count(1, 1_000_000_000)] | None = None
    """After how many events the oldest are removed, read or not. Never if left out."""
    max_age: Annotated[float, leaf.duration("1m", "3650d")] | None = None
    """After how long events are removed, read or not. Never if left out."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.max_length is not None and self.max_age is not None:
            yield "max_age", "only one of max_length and max_age can be used"


class NatsSink(_SinkSettings):
    """Each event is published to a JetStream stream of NATS."""

    kind: Literal["nats"]
    """nats."""
    servers: Annotated[
        tuple[Annotated[str, leaf.text_leaf("a URL such as nats://nats:4222", _NATS_URL)], ...],
        Field(min_length=1, max_length=16),
    ]
    """The servers of the cluster."""
    stream: Annotated[str, leaf.text_leaf("the name of a stream such as OPERATIONS", _STREAM_NAME)]
    """The stream that has to acknowledge events."""
    subject: Annotated[str, leaf.text_leaf("a subject such as operations.{route}.{type}", _SUBJECT)] = (
        "operations.{route}.{type}"
    )
    """The subject of an event, with {route} and {type}."""
    user: leaf.Name | None = None
    """The user, if the servers ask for one."""
    password: SecretStr | None = None
    """Its password."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.user is None) is not (self.password is None):
            yield ("user",) if self.password is None else ("password",), "user and password go together"


class KafkaSink(_SinkSettings):
    """Each event is sent to a topic of Kafka, under the operation as its key."""

    kind: Literal["kafka"]
    """kafka."""
    servers: Annotated[
        tuple[Annotated[str, leaf.text_leaf("a host and port such as kafka:9092", _KAFKA_SERVER)], ...],
        Field(min_length=1, max_length=16),
    ]
    """Some brokers of the cluster."""
    topic: Annotated[str, leaf.text_leaf("a topic such as operations or operations.{route}", _TOPIC)]
    """The topic of an event, perhaps with {route} and {type}."""
    idempotence: leaf.Bool = True
    """Whether the producer is idempotent, so that its own repeats write nothing twice. Some brokers cannot."""
    tls: leaf.Bool = False
    """Whether the connection is encrypted."""
    ca: leaf.File | None = None
    """The trusted certificates for it; the system's if left out."""
    user: leaf.Name | None = None
    """The user, if the brokers ask for one (SASL)."""
    password: SecretStr | None = None
    """Its password."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """How the password is shown. PLAIN needs tls."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.user is None) is not (self.password is None):
            yield ("user",) if self.password is None else ("password",), "user and password go together"
        if self.ca is not None and not self.tls:
            yield "ca", "needs tls: true"
        if self.user is not None and self.mechanism == "PLAIN" and not self.tls:
            yield "mechanism", "PLAIN shows the password to the network; it needs tls: true"


class StdoutSink(_SinkSettings):
    """Each event is a line on standard output. For trying: nobody acknowledges a line."""

    kind: Literal["stdout"]
    """stdout."""


Sink = Annotated[
    WebhookSink | RedisStreamSink | NatsSink | KafkaSink | StdoutSink,
    Forms("a mapping with kind: webhook, redis_stream, nats, kafka or stdout"),
]


class EventSettings(Section):
    """Events about operations, for other systems. Without sinks there are none."""

    source: Annotated[str, leaf.text_leaf("a URI such as urn:idempotency-gateway:payments", _SOURCE)] | None = None
    """The `source` of the events, part of their identity: urn:idempotency-gateway: and the service if left out."""
    types: _Types = _DEFAULT_TYPES
    """Which events there are; all but operation.accepted if left out."""
    include: _Include = ()
    """What events contain by choice: key, scope (as digests where the store has no clear ones), location (with
    resource: what the operation made, as a URL and as the reference that the route keeps), response."""
    keep: Annotated[float, leaf.duration("1h", "90d")] = written("7d")
    """How long an event is tried before it is dead, and waits for an operator."""
    max_event_bytes: Annotated[int, leaf.size("1KiB", "1MiB")] = written("64KiB")
    """The longest response that an event contains; of a longer one it says that it is truncated."""
    sinks: Annotated[tuple[Sink, ...], Field(max_length=32), Distinct("sink", "name")] = ()
    """The systems that receive them."""

    def types_for(self, sink: _SinkSettings) -> frozenset[EventType]:
        return frozenset(EventType(name) for name in (self.types if sink.types is None else sink.types))

    def include_for(self, sink: _SinkSettings) -> tuple[str, ...]:
        return self.include if sink.include is None else sink.include


class Egress(Section):
    """Where webhooks may lead: to public addresses alone, unless they are written here. Brokers are not concerned."""

    allow: Annotated[tuple[leaf.AnyNetwork, ...], Field(max_length=256)] = ()
    """Networks that are not public and may be connected to all the same."""
    deny: Annotated[tuple[leaf.AnyNetwork, ...], Field(max_length=256)] = ()
    """Networks that may not be connected to, whatever else is written."""
    ports: Annotated[tuple[Annotated[int, leaf.count(1, 65535)], ...], Field(min_length=1, max_length=64)] = (443, 80)
    """The ports that may be connected to."""
    proxy: Annotated[str, _PROXY] | None = None
    """A proxy for all webhooks. It then has to check the addresses: the gateway does not see them."""
    https_only: leaf.Bool = True
    """Whether webhooks have to use TLS."""

    @property
    def policy(self) -> EgressPolicy:
        return EgressPolicy(self.allow, self.deny, frozenset(self.ports), self.https_only, self.proxy)


# -- the gateway itself ------------------------------------------------------------------------------------------------

_FINGERPRINT_KEY_BYTES_MIN = 32
WORKERS_MAX = 64


class ServerTls(Section):
    """TLS for callers."""

    cert: leaf.File
    """The certificate chain, as a PEM file."""
    key: leaf.File
    """The private key, as a PEM file."""
    client_ca: leaf.File | None = None
    """The authorities that sign callers' certificates, as a PEM file; callers are asked for one if it is written."""
    client_certificate: Literal["optional", "required"] = "optional"
    """Whether a caller without a certificate can connect. One whose certificate is not valid never can."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.client_ca is None and "client_certificate" in self.model_fields_set:
            yield "client_certificate", "certificates of callers need client_ca, the authorities that sign them"


class Listen(Section):
    """Where callers reach the gateway."""

    address: Annotated[leaf.Address, leaf.listen_address]
    """The address to listen on, such as 0.0.0.0:8080 or [::]:8080."""
    tls: ServerTls | None = None
    """TLS for callers; plain HTTP if left out."""


@leaf.scalar(leaf.listen_address.expected, leaf.listen_address.schema, stand_in=leaf.listen_address.stand_in)
def _listen(text: str) -> Listen:
    """The short form of `listen`: an address alone."""
    return Listen.model_construct(address=leaf.listen_address.read(text), tls=None)


class Status(Section):
    """The port for probes and metrics. It is read-only."""

    listen: Annotated[leaf.Address, leaf.listen_address] = written("127.0.0.1:8081")
    """The address of /livez, /readyz and /metrics."""


class AdminToken(Section):
    """The token of one person or program."""

    name: leaf.Name
    """Who it is; audits show it."""
    token: AdminSecret
    """The secret, at least 16 characters; `${NAME}` or `${file:/run/secrets/name}` keeps it out of this file."""
    role: Literal["viewer", "operator", "admin"]
    """viewer reads; operator also resolves, requeues, withdraws and pauses; admin also forces, purges and erases."""


class Admin(Section):
    """The port for operators: inspecting operations, resolving doubt, purging. Nothing listens without a token, or
    `sign_in`."""

    listen: Annotated[leaf.Address, leaf.listen_address] = written("127.0.0.1:8082")
    """The address of the admin API. It speaks plain HTTP: keep it on loopback, or behind a TLS proxy."""
    token: AdminSecret | None = None
    """A secret that is sent as `Authorization: Bearer TOKEN`, of an admin named `token`; at least 16 characters."""
    tokens: Annotated[tuple[AdminToken, ...], Field(max_length=100)] = ()
    """Tokens of several people and programs, each with its role: a list of {name, token, role}."""
    hosts: Annotated[tuple[leaf.Host, ...], Field(max_length=100)] = ()
    """Host names under which browsers reach the console, besides the host of `listen`, localhost and addresses."""
    sign_in: SignIn | None = None
    """How people sign in to the console besides tokens; with tokens alone if left out."""

    @property
    def is_on(self) -> bool:
        return self.token is not None or bool(self.tokens) or self.sign_in is not None

    def disagreements(self) -> Iterator[Disagreement]:
        own = () if self.token is None else (("token", self.token),)
        entries = [*own, *((each.name, each.token) for each in self.tokens)]
        for index in repeated(name for name, _ in entries):
            yield ("tokens", index - len(own), "name"), "another token has this name already"
        for index in repeated(token.get_secret_value() for _, token in entries):
            yield ("tokens", index - len(own), "token"), "another entry has this secret; make one for each"


class Store(Section):
    """Where operations are stored."""

    durable: Annotated[leaf.SqliteUrl | leaf.PostgresUrl | leaf.RedisUrl, leaf.durable_url]
    """The durable store: sqlite:///PATH for one host, postgresql://USER@HOST/DATABASE for many gateways, or a Redis
    that keeps all of it in memory and on its disk, for what is one record: no accept, events or repeats: refuse."""
    replicas: Annotated[int | None, leaf.count(0, 16)] = None
    """Of a durable Redis: how many replicas of a master may be promoted. All of them have a change before it is
    acknowledged. Required for sentinels; a server without replicas needs none."""
    dialect: Literal["postgres", "portable"] = "postgres"
    """The SQL that a postgresql:// store is spoken to in. `portable` is what CockroachDB, YugabyteDB, Citus and
    Postgres have in common. A start on one of the first three says that it needs it."""
    fast: Annotated[leaf.RedisUrl, leaf.FAST_URL] | None = None
    """A Redis, alone, behind sentinels or as a cluster, that serves replays and wakes waiters; its data may be lost at
    any moment."""
    lease: Annotated[float, leaf.duration("3s", "10m")] = written("30s")
    """How long the claim of a gateway that died or was cut off blocks its operation."""
    amnesia_window: Annotated[float, leaf.duration("0s", "3650d")] | None = None
    """How long absent keys are refused after the store lost data: the longest `remember` if left out."""
    journal_grace: Annotated[float, leaf.duration("0s", "1h")] = written("30s")
    """How long recovery leaves a lapsed claim alone, because its holder may still have the outcome in its journal."""
    connections: Annotated[int, leaf.count(2, 4)] = 3
    """How many connections each worker keeps open to Postgres. With 4, renewals of leases do not wait for responses
    that are written; with 2, claims do."""
    durability: Literal["server", "external"] = "server"
    """Who keeps what Postgres acknowledged. external: the storage below it, as on Neon and Aurora; whether fsync and
    full_page_writes are on is not looked at. Where that is not so, a crash loses acknowledged responses, and their keys
    execute again."""
    promotion: Literal["refuse", "proven", "trusted"] = "proven"
    """Which promotions of a standby are believed to have lost nothing. refuse: none; proven: those for which every
    gateway vouches that what was acknowledged to it is there; trusted: all of the same system, for storage that
    replicates below Postgres."""
    promotion_wait: Annotated[float, leaf.duration("1s", "1h")] = written("30s")
    """How long gateways that have not vouched are waited for; then it is a lost memory."""
    probation: Annotated[float, leaf.duration("3s", "5m")] = written("5s")
    """How long a gateway grants keys after its last successful beat in Postgres, and how long a new one waits for its
    standbys."""
    synchronous: Literal["require", "prefer"] = "prefer"
    """require: grant keys only while Postgres has a synchronous standby; prefer: also without one."""
    clear_keys: leaf.Bool = False
    """Whether keys are stored in clear for operators, besides their digests."""
    cache_max_age: Annotated[float, leaf.duration("0s", "1h")] = written("30s")
    """How old a response in the memory of the process may be; 0s caches none."""
    cache_bytes: Annotated[int, leaf.size("0", "64GiB"), DIVIDED] = written("64MiB")
    """How much memory cached responses may take, divided evenly among the workers."""

    def disagreements(self) -> Iterator[Disagreement]:
        for name, what in (("durability", "a server"), ("connections", "connections")):
            if name in self.model_fields_set and not isinstance(self.durable, leaf.PostgresUrl):
                yield name, f"only a postgresql:// store has {what}"
        if "connections" in self.model_fields_set and self.dialect == "portable":
            yield "connections", "a worker with a portable store has five"
        for name in ("promotion", "promotion_wait", "probation", "synchronous"):
            may = leaf.PostgresUrl if name == "synchronous" else (leaf.PostgresUrl, leaf.RedisUrl)
            if name in self.model_fields_set and not isinstance(self.durable, may):
                yield name, "only a postgresql:// store has standbys that can be promoted"
        yield from self._of_redis()
        if "dialect" in self.model_fields_set and not isinstance(self.durable, leaf.PostgresUrl):
            yield "dialect", "only a postgresql:// store has a dialect"
        if self.dialect == "portable" and isinstance(self.durable, leaf.PostgresUrl) and self.durable.is_pooled:
            yield "dialect", "portable needs sessions of its own: give the server's address without ?pgbouncer=true"
        if self.dialect == "portable":
            for name in ("promotion", "promotion_wait", "probation", "synchronous"):
                if name in self.model_fields_set:
                    yield name, "the engine itself keeps a portable store through a promotion"

    def _of_redis(self) -> Iterator[Disagreement]:
        """What a durable Redis needs, and what only such a one has."""
        if not isinstance(self.durable, leaf.RedisUrl):
            if self.replicas:
                yield "replicas", "only a durable redis:// store has replicas to be waited for"
            return
        if self.replicas is None and self.durable.kind:
            message = "required, but missing: how many replicas of a master may be promoted, so that all are waited for"
            yield "replicas", message
        if self.fast is not None:
            yield "fast", "a durable Redis needs no fast one before it: leave this out"


class Limits(Section):
    """Limits of concurrent requests and of heads."""

    max_in_flight: Annotated[int, leaf.count(1, 1_000_000), DIVIDED] = 1000
    """How many requests may be in flight at once, and how many may be sending their body; more are refused with 503.
    Divided evenly among the workers."""
    max_header_bytes: Annotated[int, leaf.size("1KiB", "1MiB")] = written("64KiB")
    """The longest head of a request or response."""


class Shutdown(Section):
    """How the gateway stops after SIGTERM."""

    delay: Annotated[float, leaf.duration("0s", "10m")] = written("5s")
    """How long it keeps serving while it reports that it is not ready, so that load balancers notice."""
    drain_timeout: Annotated[float, leaf.duration("0s", "1h")] = written("30s")
    """How long operations in flight may take to finish."""


class FingerprintKey(Section):
    """A secret that fingerprints are keyed with, so that a stolen table cannot be used to guess bodies."""

    id: leaf.Name
    """The name of this key, stored with its fingerprints. A new key needs a new name."""
    key: Annotated[SecretBytes, leaf.secret(lambda text: leaf.secret_text(_FINGERPRINT_KEY_BYTES_MIN)(text).encode())]
    """The secret, at least 32 bytes; `${NAME}` or `${file:/run/secrets/name}` keeps it out of this file."""


_FingerprintKeys = Annotated[
    FingerprintKey | Annotated[tuple[FingerprintKey, ...], Field(min_length=1, max_length=16)],
    Forms("{id: NAME, key: SECRET}, or a list of them with the current one first"),
]


class Secrets(Section):
    """Secrets of the gateway itself."""

    fingerprint_key: Annotated[_FingerprintKeys | None, Distinct("key", "id")] = None
    """{id, key}, or a list of them: the first is used, the others only compare with older records."""
    identity_key: IdentityKey | None = None
    """{id, key} that the digests of scopes and keys are keyed with. A part of the identity: it must not change while
    keys are remembered."""
    encryption: Annotated[tuple[EncryptionKey, ...], Field(min_length=1, max_length=16), Distinct("key", "id")] = ()
    """Keys that what is kept is encrypted with: the first encrypts, all of them read. Required by `accept` and by
    `inbox`. To turn encryption on or off needs a restart; to change keys does not."""
    unreadable: Literal["refuse", "accept"] = "refuse"
    """Whether to start on a store whose records are encrypted with a key that is not listed, or is another one under
    its id. `accept`: their responses are lost, repeats get response-not-stored, and their kept requests become dead
    letters."""

    @property
    def fingerprint_keys(self) -> tuple[FingerprintKey, ...]:
        """All keys, the current one first; empty if fingerprints are not keyed."""
        keys = self.fingerprint_key
        return (keys,) if isinstance(keys, FingerprintKey) else keys or ()

    @property
    def identity_secret(self) -> bytes | None:
        """What keys the digests of scopes and keys; None where they are not keyed."""
        return None if self.identity_key is None else self.identity_key.key.get_secret_value()

    def disagreements(self) -> Iterator[Disagreement]:
        ids = [key.id for key in self.encryption]
        for index in repeated(key.key.get_secret_value() for key in self.encryption):
            if index not in repeated(ids):
                message = "another key of this list has this secret already; make one for each id"
                yield ("encryption", index, "key"), message
        yield from self._shared_secrets()

    def _shared_secrets(self) -> Iterator[Disagreement]:
        """Secrets with two uses: one who got an output of the one could use it against the other."""
        is_one = isinstance(self.fingerprint_key, FingerprintKey)
        found: list[tuple[KeyPath, bytes]] = []
        for index, key in enumerate(self.fingerprint_keys):
            secret = key.key.get_secret_value()
            # The text of a fingerprint key is its secret; the others are what their text encodes.
            path: KeyPath = ("fingerprint_key", "key") if is_one else ("fingerprint_key", index, "key")
            found.append((path, encryption_key_bytes(secret.decode()) or secret))
        if self.identity_key is not None:
            found.append((("identity_key", "key"), self.identity_key.key.get_secret_value()))
        found += [
            (("encryption", index, "key"), key.key.get_secret_value()) for index, key in enumerate(self.encryption)
        ]
        uses: dict[bytes, object] = {}
        for path, secret in found:
            if uses.setdefault(secret, path[0]) != path[0]:
                yield path, f"{uses[secret]} has this secret already; make one for each use"


class Log(Section):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""
    format: Literal["json", "text"] = "json"
    """One JSON object per line, or text for people."""
    requests: Literal["protected", "all", "none"] = "protected"
    """Which requests get a line."""


class Traces(Section):
    """Spans of requests on protected routes, for an OpenTelemetry collector. Needs the extra `otel`."""

    endpoint: Annotated[leaf.AuthorizationUrl, leaf.forward_auth_url]
    """Where the collector takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces."""
    headers: Annotated[dict[leaf.AnyHeader, HeaderValue], Field(max_length=16)] = {}  # noqa: RUF012
    """Headers for the collector, such as its credential."""
    sample: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """The share of requests that are traced, from 0 to 1, where no caller decides it."""
    accept: Literal["trusted", "all", "none"] = "trusted"
    """Whose traceparent is the parent, and decides whether a request is traced: trusted_proxies, anybody, or nobody."""
    detail: Literal["requests", "store"] = "requests"
    """What has spans: requests and what follows them, or each call of the durable store for a request, too."""


class Operations(Section):
    """The resource that shows callers what became of a request that was accepted."""

    path: Annotated[str, leaf.RESERVED_PATH] = "/_operations"
    """Its path on the public listener; below it are the ids of operations. No route may match it."""


class Errors(Section):
    """The gateway's own errors."""

    type_base: Annotated[str, leaf.type_base] | None = None
    """What stands before the name in the `type` of a problem: a URL of your own documentation that ends with / or #.
    If left out, the type is a URN."""


class Cors(Section):
    """What pages of other origins may read of the gateway's own responses, in a browser."""

    origins: Annotated[
        Literal["any"] | Annotated[tuple[Annotated[str, leaf.web_origin], ...], Field(max_length=64)],
        Forms("a list of origins such as [https://app.example.com], or any"),
        Distinct(),
    ] = ()
    """The origins that the service allows on every protected route. Its own responses stay as they are."""
    credentials: leaf.Bool = False
    """Whether the service allows them to send cookies (`Access-Control-Allow-Credentials`)."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.credentials and not self.origins:
            yield "credentials", "this needs origins: those that may send cookies"
        if self.credentials and self.origins == "any":
            yield "credentials", "no browser takes this with origins: any; list the origins"


class Observe(Section):
    """How requests on observed routes are observed."""

    header: leaf.Bool = False
    """Whether responses carry `Idempotency-Status: observed;would=VERDICT`, as far as the gateway knows by then."""


class Config(Section):
    """Configuration of the idempotency gateway."""

    service: leaf.Name = "default"
    """The name of the service, part of every key's identity. Required when the store can be shared."""
    listen: Annotated[
        Annotated[Listen, _listen] | Listen, Forms("an address such as 0.0.0.0:8080, or {address, tls}")
    ] = written("127.0.0.1:8080")
    """Where callers reach the gateway: an address such as 0.0.0.0:8080, or {address, tls: {cert, key}}."""
    public_url: Annotated[str, leaf.public_url] | None = None
    """What callers write before a path of this gateway, for absolute links to operations; relative if left out."""
    status: Status = Field(default_factory=Status)
    """The port for probes and metrics."""
    admin: Admin = Field(default_factory=Admin)
    """The port for operators; off without a token."""
    state_dir: Annotated[Path, leaf.absolute_path("/var/lib/idempotency-gateway")] = written(
        "/var/lib/idempotency-gateway"
    )
    """The only directory that the gateway writes to: on a disk of its host, because locks in it are not seen over every
    network."""
    upstream: Upstream
    """The service behind the gateway: {url: http://127.0.0.1:9000}."""
    store: Store
    """Where operations are stored: {durable: sqlite:///PATH} or {durable: postgresql://...}."""
    limits: Limits = Field(default_factory=Limits)
    """Limits of concurrent requests and of heads."""
    shutdown: Shutdown = Field(default_factory=Shutdown)
    """How the gateway stops after SIGTERM."""
    secrets: Secrets = Field(default_factory=Secrets)
    """Secrets of the gateway itself."""
    delivery: Delivery = Field(default_factory=Delivery)
    """How accepted requests are delivered, unless their route writes something else."""
    operations: Operations = Field(default_factory=Operations)
    """The resource that shows callers what became of a request that was accepted."""
    errors: Errors = Field(default_factory=Errors)
    """The gateway's own errors."""
    cors: Cors = Field(default_factory=Cors)
    """What pages of other origins may read of the gateway's own responses, in a browser."""
    events: EventSettings = Field(default_factory=EventSettings)
    """Events about operations, for other systems. Without sinks there are none."""
    egress: Egress = Field(default_factory=Egress)
    """Where webhooks may lead."""
    log: Log = Field(default_factory=Log)
    """What is logged."""
    traces: Traces | None = None
    """Where spans of requests are sent; without it there are none, and traceparent passes unchanged."""
    workers: Annotated[int | Literal["auto"], leaf.count(1, WORKERS_MAX, may_be_auto=True)] = 1
    """How many processes serve, one per core; auto: as many as there are cores, or the CPU quota allows."""
    trusted_proxies: Annotated[tuple[leaf.AnyNetwork, ...], Field(max_length=256)] = ()
    """Networks whose X-Forwarded-* headers are trusted and extended, and whose Forwarded and X-Real-IP pass. From
    other peers all of them are dropped, and X-Forwarded-For, -Proto and -Host written anew."""
    regions: Regions | None = None
    """Regions with a store each: {here, homes: [{name, url}, ...], key}. Without it, all gateways share one store."""
    mode: Literal["enforce", "observe"] = "enforce"
    """Whether requests of routes are protected, or only observed, unless their route says so itself."""
    observe: Observe = Field(default_factory=Observe)
    """How requests are observed."""
    routes: Annotated[tuple[Route, ...], Field(min_length=1, max_length=ROUTES_MAX)]
    """The protected routes, in order: the first that matches decides. All else passes through untouched, but for what a
    service may read as the path of a route."""
    unprotected: Annotated[tuple[Unprotected, ...], Field(max_length=1000)] = ()
    """Paths that pass although they can be read as the path of a route: [{path}]. No request that a route matches."""

    def mode_of(self, route: Route) -> Literal["enforce", "observe"]:
        """Whether a route is enforced or observed. With a share of its keys enforced, it is observed."""
        return route.mode or self.mode

    def share_of(self, route: Route) -> float:
        """For which share of its keys a route is enforced."""
        return 1.0 if self.mode_of(route) == "enforce" else route.enforce_share

    def upstream_for(self, route: Route) -> Upstream:
        """The upstream of a route: the global one, overridden by the route's keys."""
        return route.upstream.over(self.upstream, route.settle)

    def settle_for(self, route: Route) -> float:
        """How long after the end of a lease a request of its attempt may still arrive upstream, in seconds."""
        return self.upstream_for(route).settle if route.settle is None else route.settle

    def recovery_for(self, route: Route) -> Recovery:
        """How an operation in doubt on a route is resolved."""
        match route.recovery:
            case "hold":
                return Hold()
            case "resend":
                return Resend()
            case ProbeRecovery(probe=probe):
                return probe.compiled(self.upstream_for(route), route.match.paths)
            case _:
                assert_never(route.recovery)

    @property
    def status_prefix(self) -> bytes:
        """What stands before the id of an operation in the URL of its status."""
        return f"{self.public_url or ''}{self.operations.path}/".encode()

    def delivery_for(self, route: Route) -> Delivery:
        """How accepted requests of a route are delivered: the global settings, overridden by the route's keys."""
        changed = route.delivery
        return self.delivery.model_copy(update={name: getattr(changed, name) for name in changed.model_fields_set})
