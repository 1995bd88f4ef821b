"""Events for other systems, in the file: which are published, to which sinks, and where webhooks may lead.

`checks` compares these sections with the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr

from gateway.config.address import (
    PLACEHOLDER_URL,
    AbsolutePath,
    Network,
    NetworkRange,
    RedisUrl,
    StreamUrl,
    is_host,
    split_url,
)
from gateway.config.leaf import NAME, SUBSTITUTED, Count, Duration, Flag, Leaf, Moment, SecretText, Size, Text, shaped
from gateway.config.section import Disagreement, Forms, Section, taken, written
from gateway.core.egress import EgressPolicy
from gateway.core.outbox import DEFAULT_TYPES, EventType
from gateway.core.webhook import Secret, signing_key

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


def _text(pattern: str, what: str) -> Text:
    return Text(what, pattern, {"minLength": 1})


_PROXY = Text("a URL such as http://proxy:3128", r"http://[^/?#@\s]+/?", {"pattern": "^http://[^/?#@]+/?$"})


class _WebhookUrl(Leaf):
    """Where a webhook is. A path and a query are allowed; the query may hold a secret, so the URL is never shown."""

    expected = "a URL such as https://ledger.example.com/hooks"
    schema = shaped(pattern=rf"^(https?://[^/?#@]+.*{SUBSTITUTED})$")
    stand_in = PLACEHOLDER_URL

    def read(self, text: str) -> SecretStr:
        url, host, port = split_url(self, text)
        if "@" in url.netloc:
            raise self.unexpected("credentials do not belong in this URL: events are signed", is_secret=True)
        if url.scheme not in ("http", "https") or not host or port == 0 or "#" in text:
            raise self.unexpected(is_secret=True)
        if not is_host(host) or not re.match(r"[!-~]+\Z", text):
            raise self.unexpected(is_secret=True)
        return SecretStr(text)


def _signing(text: str) -> str:
    signing_key(text)
    return text


_SIGNING = SecretText(_signing, "make one with: echo whsec_$(openssl rand -hex 32)", is_key=True)


class SigningSecret(Section):
    """A secret that the gateway signs with, by Standard Webhooks."""

    id: Annotated[str, NAME]
    """The name of this secret in metrics."""
    key: Annotated[SecretStr, _SIGNING]
    """The secret: whsec_ and 24 to 64 bytes as base64, or whsk_ and an Ed25519 private key; `${NAME}` or
    `${file:/run/secrets/name}` keeps it out of this file."""
    until: Annotated[float, Moment()] | None = None
    """When it stops signing, such as 2026-12-01T00:00:00Z, while another one takes its place. For ever if left out."""

    @property
    def compiled(self) -> Secret:
        return Secret(self.id, *signing_key(self.key.get_secret_value()), self.until)


class _SinkSettings(Section):
    name: Annotated[str, NAME]
    """The name of the sink, in metrics and for operators."""
    routes: Annotated[tuple[Annotated[str, NAME], ...], Field(min_length=1, max_length=1000)] | None = None
    """The routes whose events it receives; all of them if left out."""
    types: _Types | None = None
    """The events that it receives: events.types if left out."""
    include: _Include | None = None
    """What its events contain: events.include if left out."""
    ordered: Annotated[bool, Flag()] = False
    """Whether it receives the events of an operation, or of its lane, one after the other in the order of the changes.
    One that fails holds up those behind it; a dead one is passed. Each completion then takes several statements."""


class WebhookSink(_SinkSettings):
    """Each event is posted to a URL, signed by Standard Webhooks."""

    kind: Literal["webhook"]
    """webhook."""
    url: Annotated[SecretStr, _WebhookUrl()]
    """Where events are posted."""
    secrets: Annotated[tuple[SigningSecret, ...], Field(min_length=1, max_length=8)]
    """The secrets that sign, all of them until they end, so that consumers can change to a new one at any time."""
    format: Literal["cloudevents", "standard"] = "cloudevents"
    """What is posted: a CloudEvent (structured JSON), or the payload that Standard Webhooks recommends."""

    def disagreements(self) -> Iterator[Disagreement]:
        yield from taken("secrets", "secret", "id", self.secrets)


class RedisStreamSink(_SinkSettings):
    """Each event is added to a stream on a Redis."""

    kind: Literal["redis_stream"]
    """redis_stream."""
    url: Annotated[RedisUrl, StreamUrl()]
    """The Redis. Not the database of store.fast, unless `shares_fast` says so."""
    stream: Annotated[str, _text(_STREAM_KEY, "the key of a stream such as operations")]
    """The key of the stream."""
    shares_fast: Annotated[bool, Flag()] = False
    """Whether the stream may be in the database of store.fast, which may lose anything at any moment."""
    fsync: Annotated[bool, Flag()] = False
    """Whether an event counts as published only once it is on the disk of the server (Redis 7.2 and later)."""
    window: Annotated[float, Duration("1m", "30d")] = written("24h")
    """How long an event that is published again is not added again."""
    max_length: Annotated[int, Count(1, 1_000_000_000)] | None = None
    """After how many events the oldest are removed, read or not. Never if left out."""
    max_age: Annotated[float, Duration("1m", "3650d")] | None = None
    """After how long events are removed, read or not. Never if left out."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.max_length is not None and self.max_age is not None:
            yield "max_age", "only one of max_length and max_age can be used"


class NatsSink(_SinkSettings):
    """Each event is published to a JetStream stream of NATS."""

    kind: Literal["nats"]
    """nats."""
    servers: Annotated[
        tuple[Annotated[str, _text(_NATS_URL, "a URL such as nats://nats:4222")], ...],
        Field(min_length=1, max_length=16),
    ]
    """The servers of the cluster."""
    stream: Annotated[str, _text(_STREAM_NAME, "the name of a stream such as OPERATIONS")]
    """The stream that has to acknowledge events."""
    subject: Annotated[str, _text(_SUBJECT, "a subject such as operations.{route}.{type}")] = (
        "operations.{route}.{type}"
    )
    """The subject of an event, with {route} and {type}."""
    user: Annotated[str, NAME] | None = None
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
        tuple[Annotated[str, _text(_KAFKA_SERVER, "a host and port such as kafka:9092")], ...],
        Field(min_length=1, max_length=16),
    ]
    """Some brokers of the cluster."""
    topic: Annotated[str, _text(_TOPIC, "a topic such as operations or operations.{route}")]
    """The topic of an event, perhaps with {route} and {type}."""
    idempotence: Annotated[bool, Flag()] = True
    """Whether the producer is idempotent, so that its own repeats write nothing twice. Some brokers cannot."""
    tls: Annotated[bool, Flag()] = False
    """Whether the connection is encrypted."""
    ca: Annotated[Path, AbsolutePath()] | None = None
    """The trusted certificates for it; the system's if left out."""
    user: Annotated[str, NAME] | None = None
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

    source: Annotated[str, _text(_SOURCE, "a URI such as urn:idempotency-gateway:payments")] | None = None
    """The `source` of the events, part of their identity: urn:idempotency-gateway: and the service if left out."""
    types: _Types = _DEFAULT_TYPES
    """Which events there are; all but operation.accepted if left out."""
    include: _Include = ()
    """What events contain by choice: key, scope (as digests where the store has no clear ones), location (with
    resource: what the operation made, as a URL and as the reference that the route keeps), response."""
    keep: Annotated[float, Duration("1h", "90d")] = written("7d")
    """How long an event is tried before it is dead, and waits for an operator."""
    max_event_bytes: Annotated[int, Size("1KiB", "1MiB")] = written("64KiB")
    """The longest response that an event contains; of a longer one it says that it is truncated."""
    sinks: Annotated[tuple[Sink, ...], Field(max_length=32)] = ()
    """The systems that receive them."""

    def disagreements(self) -> Iterator[Disagreement]:
        yield from taken("sinks", "sink", "name", self.sinks)

    def types_for(self, sink: _SinkSettings) -> frozenset[EventType]:
        return frozenset(EventType(name) for name in (self.types if sink.types is None else sink.types))

    def include_for(self, sink: _SinkSettings) -> tuple[str, ...]:
        """What the events of a sink contain by choice."""
        return self.include if sink.include is None else sink.include


class Egress(Section):
    """Where webhooks may lead: to public addresses alone, unless they are written here. Brokers are not concerned."""

    allow: Annotated[tuple[Annotated[Network, NetworkRange()], ...], Field(max_length=256)] = ()
    """Networks that are not public and may be connected to all the same."""
    deny: Annotated[tuple[Annotated[Network, NetworkRange()], ...], Field(max_length=256)] = ()
    """Networks that may not be connected to, whatever else is written."""
    ports: Annotated[tuple[Annotated[int, Count(1, 65535)], ...], Field(min_length=1, max_length=64)] = (443, 80)
    """The ports that may be connected to."""
    proxy: Annotated[str, _PROXY] | None = None
    """A proxy for all webhooks. It then has to check the addresses: the gateway does not see them."""
    https_only: Annotated[bool, Flag()] = True
    """Whether webhooks have to use TLS."""

    @property
    def policy(self) -> EgressPolicy:
        return EgressPolicy(self.allow, self.deny, frozenset(self.ports), self.https_only, self.proxy)
