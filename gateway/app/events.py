"""Events as configured: what the stores write, and the sinks that receive it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, assert_never

from gateway.config import Config
from gateway.config.events import KafkaSink as KafkaConfig
from gateway.config.events import NatsSink as NatsConfig
from gateway.config.events import RedisStreamSink as RedisStreamConfig
from gateway.config.events import Sink as SinkConfig
from gateway.config.events import StdoutSink as StdoutConfig
from gateway.config.events import WebhookSink as WebhookConfig
from gateway.core.confidential import Sealing
from gateway.core.operation import microseconds
from gateway.core.outbox import BROKER_SCHEDULE_US, WEBHOOK_SCHEDULE_US, Outbox, Part, Subscription
from gateway.events.kafka import KafkaSink
from gateway.events.nats import NatsSink
from gateway.events.relay import Relay, SinkSettings
from gateway.events.sink import Sink, StdoutSink
from gateway.events.webhook import WebhookSink
from gateway.observe.facts import Events, Fact, OperationAccepted, OperationSettled, SweepDone
from gateway.store.operations import Publications

_LOG = logging.getLogger("gateway")

# Publications of one sink at a time, in this process. Those that take a connection each are fewer.
_PLACES: Final = 100
_PLACES_OF_CONNECTIONS: Final = 16


def outbox_of(config: Config, sealing: Sealing) -> Outbox:
    """Which events the durable store writes, and with what it seals them."""
    events = config.events
    return Outbox(
        config.service,
        events.source or f"urn:idempotency-gateway:{config.service}",
        tuple(
            Subscription(
                sink.name,
                events.types_for(sink),
                None if sink.routes is None else frozenset(sink.routes),
                frozenset(Part(name) for name in events.include_for(sink)),
                sink.ordered,
            )
            for sink in events.sinks
        ),
        events.max_event_bytes,
        sealing,
    )


def relay_of(config: Config, store: Publications, events: Events, clock: Callable[[], float]) -> Relay | None:
    """What publishes the events; None without sinks."""
    if not config.events.sinks:
        return None
    sinks = [(settings_of(config, sink), sink_of(config, sink)) for sink in config.events.sinks]
    return Relay(store, sinks, events, service=config.service, clock=clock)


class RelayWaker:
    """Wakes the relay of this process, which is made later, after each change that may have events."""

    relay: Relay | None = None

    def wants(self, kind: type[Fact]) -> bool:
        return self.relay is not None and kind in (OperationSettled, OperationAccepted, SweepDone)

    def __call__(self, _fact: Fact) -> None:
        if self.relay is not None:
            self.relay.wake()


def settings_of(config: Config, sink: SinkConfig) -> SinkSettings:
    """How a sink is published to."""
    schedule_us = WEBHOOK_SCHEDULE_US if isinstance(sink, WebhookConfig) else BROKER_SCHEDULE_US
    return SinkSettings(
        sink.name,
        schedule_us,
        microseconds(config.events.keep),
        _PLACES_OF_CONNECTIONS if isinstance(sink, WebhookConfig | RedisStreamConfig) else _PLACES,
        config.delivery.breaker.compiled,
    )


def sink_of(config: Config, sink: SinkConfig) -> Sink:
    """The sink, not yet open."""
    warn = partial(_LOG.warning, "sink %s: %s", sink.name)
    match sink:
        case WebhookConfig():
            return WebhookSink(sink, config.egress.policy)
        case RedisStreamConfig():
            # Its driver takes long to load.
            from gateway.events.redis_stream import RedisStreamSink

            return RedisStreamSink(sink, warn)
        case NatsConfig():
            return NatsSink(sink, warn)
        case KafkaConfig():
            return KafkaSink(sink)
        case StdoutConfig():
            return StdoutSink()
        case _:
            assert_never(sink)
