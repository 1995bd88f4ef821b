"""An event for the tests of sinks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import SecretStr

from gateway.config.models import KafkaSink, NatsSink, RedisStreamSink, WebhookSink
from gateway.core.lifecycle import step
from gateway.core.message import StoredResponse
from gateway.core.operation import Record, RequestInfo
from gateway.core.outbox import EventType, Outbox, Part, PublishedEvent, Subscription
from gateway.core.webhook import Secret
from gateway.events.relay import Publication, Sink
from tests.conformance.hand import ANSWER, SERVICE, Hand, Speech
from tests.support.memory_store import EPOCH_US

SINK = "ledger"
S = TypeVar("S", bound=Sink)


def record_after(hand: Hand, *speeches: Speech) -> tuple[Record | None, Record]:
    """The record before the last of these commands, and after it."""
    before, record = None, hand.record
    for speech in speeches:
        before = record
        result, record = step(record, speech(hand), EPOCH_US, lambda: 1041 + len(hand.tokens))
        hand.see(speech(hand), result)
    assert record is not None
    return before, record


@asynccontextmanager
async def opened(sink: S) -> AsyncIterator[S]:
    await sink.open()
    try:
        yield sink
    finally:
        await sink.close()


async def publish(sink: Sink, event: PublishedEvent, redeliveries: int = 0) -> Publication:
    """Publish an event by itself."""
    (result,) = await sink.publish([(event, redeliveries)])
    return result


def outbox(*include: Part, event_bytes_max: int = 64 * 1024) -> Outbox:
    subscription = Subscription(SINK, frozenset(EventType), include=frozenset(include))
    return Outbox(SERVICE, "urn:test", (subscription,), event_bytes_max)


def new_event(response: StoredResponse = ANSWER, *include: Part) -> PublishedEvent:
    """A completed operation's."""
    before, after = record_after(Hand(), Hand.claim, lambda hand: hand.complete(response))
    after = replace(after, request=RequestInfo("POST", "", "/", trace_id="0af7651916cd43dd8448eb211c80319c"))
    (row,) = outbox(*include).rows(before, after)
    return PublishedEvent(row.event_id, row.type, EPOCH_US, row.content, row.response)


def webhook_at(url: str, *secrets: Secret, **settings: Any) -> WebhookSink:
    """The settings of a webhook that these secrets sign; the URL needs no public host."""
    signing = tuple(SimpleNamespace(compiled=secret) for secret in secrets)
    return WebhookSink.model_construct(name="webhook", url=SecretStr(url), secrets=signing, **settings)


def stream_at(url: str, **settings: Any) -> RedisStreamSink:
    """The settings of a stream called operations."""
    return RedisStreamSink(kind="redis_stream", name="stream", url=url, stream="operations", **settings)


def nats_at(url: str, stream: str = "OPERATIONS", subject: str = "operations") -> NatsSink:
    """The settings of a NATS with one server."""
    return NatsSink(kind="nats", name="nats", servers=(url,), stream=stream, subject=subject)


def kafka_at(server: str, topic: str = "operations", **settings: Any) -> KafkaSink:
    """The settings of a Kafka with one broker."""
    return KafkaSink(kind="kafka", name="kafka", servers=(server,), topic=topic, **settings)
