"""Events and their sinks: what the file must say, and what `check` remarks."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.app.stores import outbox_of, settings_of, sink_of
from gateway.config import notices
from gateway.core.confidential import NO_SEALING
from gateway.core.egress import EgressPolicy
from gateway.core.operation import microseconds
from gateway.core.outbox import DEFAULT_TYPES, EventType, Part
from gateway.events.broker import KafkaSink, NatsSink, RedisStreamSink
from gateway.events.webhook import WebhookSink
from tests.config.support import read, with_global

SECRET = "whsec_" + "0f" * 32
LEDGER = f'{{name: ledger, kind: webhook, url: "https://ledger.test/hooks", secrets: [{{id: a, key: "{SECRET}"}}]}}'
FEED = '{name: feed, kind: redis_stream, url: "redis://feed:6379/1", stream: operations}'

LOG = (
    '{name: log, kind: kafka, servers: ["b:9093"], topic: "o.{type}", tls: true, ca: /ca.pem, mechanism: PLAIN, '
    "idempotence: false, user: u, password: p}"
)


def with_sinks(*sinks: str, top: str = "", **changes: str) -> str:
    more = "".join(f", {name}: {value}" for name, value in changes.items())
    return with_global(f"events: {{sinks: [{', '.join(sinks)}]{more}}}", *([top] if top else []))


def test_what_a_sink_receives() -> None:
    """What the section says, unless the sink says something else; the source is the service's by default."""
    own = FEED.replace("}", ", types: [operation.accepted], include: [key], routes: [pay]}")
    outbox = outbox_of(read(with_sinks(LEDGER, own, include="[location]")), NO_SEALING)
    ledger, feed = outbox.subscriptions
    assert (ledger.types, ledger.routes, ledger.include) == (DEFAULT_TYPES, None, frozenset((Part.LOCATION,)))
    assert (feed.types, feed.routes) == (frozenset((EventType.ACCEPTED,)), frozenset(("pay",)))
    assert feed.include == frozenset((Part.KEY,))
    assert outbox.source == "urn:idempotency-gateway:default"


def test_what_check_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which library is missing, what the proxy has to do, that standard output acknowledges nothing."""
    nats = '{name: bus, kind: nats, servers: ["nats://bus:4222"], stream: OPERATIONS}'
    monkeypatch.setattr("gateway.config.checks.find_spec", lambda _: None)
    config = read(
        with_sinks(
            LEDGER,
            nats,
            "{name: lines, kind: stdout}",
            LOG,
            top='egress: {proxy: "http://proxy:3128"}\ntraces: {endpoint: "http://collector:4318/v1/traces"}',
        )
    )
    found = {notice.path: notice.message for notice in notices(config)}
    assert "idempotency-gateway[nats]" in found["events.sinks[1]"]
    assert "idempotency-gateway[kafka]" in found["events.sinks[3]"]
    assert "idempotency-gateway[otel]" in found["traces"]
    assert "not acknowledged" in found["events.sinks[2]"]
    assert "proxy has to check" in found["egress.proxy"]
    assert "events.sinks[0]" not in found


def test_each_setting_reaches_its_sink() -> None:
    """As the parts of a gateway are built from the file."""
    ledger = LEDGER.replace("}]", ", until: 2030-01-01T00:00:00Z}], format: standard").replace("https", "http")
    feed = FEED.replace(" stream:", " fsync: true, window: 2h, max_length: 9, stream:")
    old = FEED.replace("feed,", "old,").replace(" stream:", " max_age: 3h, stream:")
    nats = '{name: bus, kind: nats, servers: ["nats://b:1"], stream: S, subject: "s.{type}", user: u, password: p'
    nats += ", ordered: true}"
    egress = "egress: {allow: [10.0.0.0/8], deny: [10.1.0.0/16], ports: [80], https_only: false}"
    text = with_sinks(ledger, feed, old, nats, LOG, keep="2h", max_event_bytes="2KiB", source="'urn:me'", top=egress)
    config = read(text)
    webhook, stream, aged, bus, log = (sink_of(config, sink) for sink in config.events.sinks)
    assert isinstance(webhook, WebhookSink)
    (secret,) = webhook._secrets
    assert (secret.id, len(secret.key), secret.until) == ("a", 48, 1893456000.0)
    assert (webhook._url, webhook._format) == ("http://ledger.test/hooks", "standard")
    networks = ((ip_network("10.0.0.0/8"),), (ip_network("10.1.0.0/16"),))
    assert webhook._egress == EgressPolicy(*networks, frozenset((80,)), https_only=False)
    assert isinstance(stream, RedisStreamSink)
    assert stream._settings == config.events.sinks[1]
    assert isinstance(aged, RedisStreamSink)
    assert aged._settings.max_age == 10_800
    assert isinstance(bus, NatsSink)
    assert bus._settings == config.events.sinks[3]
    assert isinstance(log, KafkaSink)
    assert log._settings == config.events.sinks[4]
    assert settings_of(config, config.events.sinks[0]).keep_us == microseconds(7200)
    # Those that take a connection for each event take fewer at a time.
    assert [settings_of(config, sink).places for sink in config.events.sinks] == [16, 16, 16, 100, 100]
    outbox = outbox_of(config, NO_SEALING)
    assert (outbox.source, outbox.event_bytes_max) == ("urn:me", 2048)
    assert [each.is_ordered for each in outbox.subscriptions] == [False, False, False, True, False]
