"""Events on a real Redis, a real NATS and a broker of Kafka: what consumers read, what outages and refusals mean."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from redis.asyncio import Redis as Client

from gateway.core.message import StoredResponse
from gateway.core.outbox import Part, PublishedEvent
from gateway.events.brokers import KafkaSink, NatsSink
from gateway.events.redis_stream import RedisStreamSink
from gateway.events.relay import Publication, Sink, SinkUnusable, StdoutSink
from gateway.observe.facts import PublicationResult as Result
from tests.events.support import kafka_at, nats_at, new_event, opened, publish, stream_at
from tests.support.eventually import eventually
from tests.support.kafka import KafkaServer
from tests.support.nats import NatsServer
from tests.support.redis import RedisServer


def stream_on(url: str, warn: Callable[[str], None] = print, **settings: object) -> RedisStreamSink:
    return RedisStreamSink(stream_at(url, **settings), warn)


async def is_delivered(sink: Sink, event: PublishedEvent, redeliveries: int = 0) -> bool:
    return await publish(sink, event, redeliveries) == Publication(Result.DELIVERED)


async def entries(url: str) -> list[dict[str, str]]:
    async with Client.from_url(url, decode_responses=True) as client:
        found: list[dict[str, str]] = [fields for _, fields in await client.xrange("operations")]
        return found


# -- Redis -------------------------------------------------------------------------------------------------------------


async def test_an_event_is_an_entry_of_the_stream(redis_url: str) -> None:
    """Once, however often it is published; again when an operator had it delivered again."""
    event = new_event()
    async with opened(stream_on(redis_url)) as sink:
        for _ in range(2):
            assert await is_delivered(sink, event)
        (entry,) = await entries(redis_url)
        attributes = event.attributes()
        for name in ("id", "type", "source", "subject", "time"):
            assert entry[name] == attributes[name]
        assert entry["data"].encode() == event.data()
        assert await is_delivered(sink, event, 1)
        assert [each["id"] for each in await entries(redis_url)] == [event.id, event.id]


async def test_events_published_at_once_are_entries_in_their_order(redis_url: str) -> None:
    """Those that the stream has already are not added again, and keep none from it."""
    events = [new_event() for _ in range(5)]
    async with opened(stream_on(redis_url)) as sink:
        await publish(sink, events[1])
        assert await sink.publish([(event, 0) for event in events]) == [Publication(Result.DELIVERED)] * 5
    order = [events[number].id for number in (1, 0, 2, 3, 4)]
    assert [each["id"] for each in await entries(redis_url)] == order


async def test_a_stream_keeps_everything_unless_it_is_told_otherwise(redis_url: str) -> None:
    """With a length it is trimmed, and with an age."""
    async with opened(stream_on(redis_url)) as sink:
        for _ in range(300):
            await publish(sink, new_event())
    assert len(await entries(redis_url)) == 300
    async with opened(stream_on(redis_url, max_length=10)) as sink:
        await publish(sink, new_event())
    assert 10 <= len(await entries(redis_url)) < 200
    async with opened(stream_on(redis_url, max_age="1h")) as sink:
        assert await is_delivered(sink, new_event())
    assert await entries(redis_url)


async def test_an_event_that_is_refused_is_not_taken_for_a_repeat(redis_url: str) -> None:
    """A key of another type closes the sink; once it is gone, the same event is added."""
    event = new_event()
    async with Client.from_url(redis_url) as client, opened(stream_on(redis_url)) as sink:
        await client.set("operations", "something else")
        closed = await publish(sink, event)
        assert closed.result is Result.SUSPENDED
        assert "WRONGTYPE" in closed.why
        await client.delete("operations")
        assert await is_delivered(sink, event)
    assert len(await entries(redis_url)) == 1


async def test_without_its_redis_an_event_waits(own_redis: RedisServer) -> None:
    """Whether it arrived is unknown; once the server is back, it is added."""
    event = new_event()
    async with opened(stream_on(own_redis.url)) as sink:
        assert await is_delivered(sink, event)
        own_redis.kill()
        assert (await publish(sink, new_event())).result is Result.UNKNOWN
        own_redis.start()
        assert await is_delivered(sink, event)
    assert len(await entries(own_redis.url)) == 1


async def test_a_user_without_permission_closes_the_sink(own_redis: RedisServer) -> None:
    """NOPERM and a wrong password: no repeat helps."""
    async with Client.from_url(own_redis.url) as client:
        await client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+eval")
    for user in ("reader:secret", "reader:wrong"):
        url = own_redis.url.replace("redis://", f"redis://{user}@")
        async with opened(stream_on(url)) as sink:
            assert (await publish(sink, new_event())).result is Result.SUSPENDED


async def test_a_server_that_cannot_report_its_disk_is_used_with_a_warning(redis_url: str) -> None:
    """WAITAOF came with Redis 7.2; where it is known and AOF is off, the sink is closed instead."""
    async with Client.from_url(redis_url) as client:
        version = (await client.info("server"))["redis_version"]
    warnings: list[str] = []
    async with opened(stream_on(redis_url, warnings.append, fsync=True)) as sink:
        results = [await publish(sink, new_event()) for _ in range(2)]
    if tuple(map(int, version.split(".")[:2])) < (7, 2):
        assert results == [Publication(Result.DELIVERED)] * 2
        assert len(warnings) == 1
    else:
        assert all(result.result is Result.SUSPENDED for result in results)


async def test_a_repeat_is_on_the_disk_of_redis_when_it_is_acknowledged(server_workspace: Path, tmp_path: Path) -> None:
    """Also over another connection than the first, whose fsync took too long: WAITAOF waits for the writes of its own,
    so a repeat is one."""
    event, server = new_event(), RedisServer(server_workspace / tmp_path.name, append_only=True)
    await asyncio.to_thread(server.start)
    try:
        async with Client.from_url(server.url) as client:
            version = tuple(map(int, (await client.info("server"))["redis_version"].split(".")[:2]))
            # Valkey counts on from Redis 7.2. Nothing of what is written comes to the disk.
            has_waitaof = version >= (7, 2)
            await client.config_set("appendfsync", "no")
            for _ in range(2):
                async with opened(stream_on(server.url, fsync=True)) as sink:
                    result = await publish(sink, event)
                    assert result.is_failed == has_waitaof
                (seen,) = await client.keys("*:seen:*")
                # A write: the window begins anew.
                assert await client.pexpire(seen, 60_000)
            async with opened(stream_on(server.url, fsync=True)) as sink:
                assert (await publish(sink, event)).is_failed == has_waitaof
            assert await client.pttl(seen) > 60_000
            await client.config_set("appendfsync", "always")
            async with opened(stream_on(server.url, fsync=True)) as sink:
                assert await is_delivered(sink, event)
        assert len(await entries(server.url)) == 1
    finally:
        server.kill()


# -- NATS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", max_payload=4096)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


def subject_on(server: NatsServer, stream: str = "OPERATIONS", warn: Callable[[str], None] = print) -> NatsSink:
    return NatsSink(nats_at(server.url, stream, "operations.{route}.{type}"), warn)


async def test_an_event_is_a_message_of_the_stream(nats_server: NatsServer) -> None:
    """In the binary mode of CloudEvents, once, however often it is published; again on a redelivery by hand."""
    await nats_server.add_stream("OPERATIONS", "operations.>")
    event, warnings = new_event(), list[str]()
    async with opened(subject_on(nats_server, warn=warnings.append)) as sink:
        for redeliveries in (0, 0, 1):
            assert await is_delivered(sink, event, redeliveries)
    first, second = await nats_server.messages("OPERATIONS")
    subject, headers, payload = first
    assert subject == "operations.create_payment.operation.completed"
    assert {name.removeprefix("ce-"): unquote(value) for name, value in headers.items() if name.startswith("ce-")} == {
        "specversion": "1.0",
        **event.attributes(),
    }
    assert payload == event.data()
    assert orjson.loads(payload)["operation_id"] == event.operation_id
    assert [each["Nats-Msg-Id"] for each in (headers, second[1])] == [event.id, event.id + ".r1"]
    assert any("replicas" in warning for warning in warnings)


async def test_a_killed_server_gives_duplicates_and_no_loss(nats_server: NatsServer) -> None:
    """Its table of ids outlives it, so that there is not even a duplicate here."""
    await nats_server.add_stream("OPERATIONS", "operations.>")
    event, other = new_event(), new_event()
    async with opened(subject_on(nats_server)) as sink:
        assert await is_delivered(sink, event)
        nats_server.kill()
        assert (await publish(sink, other)).result is Result.UNKNOWN
        await nats_server.start()
        await eventually(lambda: is_delivered(sink, event), 20.0)
        assert await is_delivered(sink, other)
    ids = [headers["ce-id"] for _, headers, _ in await nats_server.messages("OPERATIONS")]
    assert sorted(ids) == sorted([event.id, other.id])


async def test_a_client_that_the_server_refused_once_is_replaced(nats_server: NatsServer) -> None:
    """The library closes it for good after an error of the server, here that nobody may connect without credentials."""
    await nats_server.add_stream("OPERATIONS", "operations.>")
    event = new_event()
    async with opened(subject_on(nats_server)) as sink:

        async def is_refused() -> bool:
            return not await is_delivered(sink, event)

        assert await is_delivered(sink, event)
        nats_server.reload(authorization={"user": "another", "password": "secret"})
        await eventually(is_refused, 20.0)
        nats_server.reload()
        await eventually(lambda: is_delivered(sink, event), 20.0)


async def test_without_its_stream_an_event_waits(nats_server: NatsServer) -> None:
    """It is no dead letter; one that another stream takes is none either."""
    event, warnings = new_event(), list[str]()
    async with opened(subject_on(nats_server)) as sink:
        assert (await publish(sink, event)).is_failed
        await nats_server.add_stream("OTHER", "operations.>", window_seconds=2.0)
        assert (await publish(sink, event)).is_failed
    async with opened(subject_on(nats_server, "OTHER", warnings.append)) as sink:
        assert await is_delivered(sink, event)
    assert any("duplicate_window of stream OTHER is 2 s" in warning for warning in warnings)


async def test_what_a_server_never_takes_is_refused(nats_server: NatsServer) -> None:
    """An event over its max_payload: it must not block the others."""
    await nats_server.add_stream("OPERATIONS", "operations.>")
    async with opened(subject_on(nats_server)) as sink:
        response = StoredResponse(200, b"OK", ((b"Content-Type", b"application/json"),), b'"%s"' % (b"x" * 5000))
        assert (await publish(sink, new_event(response, Part.RESPONSE))).result is Result.REFUSED
        assert await is_delivered(sink, new_event(response))


# -- Kafka -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def kafka_server(tmp_path: Path) -> AsyncIterator[KafkaServer]:
    server = KafkaServer(tmp_path / "kafka")
    await server.start()
    try:
        yield server
    finally:
        server.kill()


def topic_on(
    server: KafkaServer, topic: str = "operations.{route}", timeout_seconds: float = 20.0, **settings: object
) -> KafkaSink:
    """The broker of these tests knows no idempotent producers."""
    return KafkaSink(
        kafka_at(server.address, topic, **{"idempotence": False} | settings), timeout_seconds=timeout_seconds
    )


def ids_of(messages: list[Any]) -> list[str]:
    return [dict(message.headers)["ce_id"].decode() for message in messages]


async def test_an_event_is_a_message_of_the_topic(kafka_server: KafkaServer) -> None:
    """In the binary mode of CloudEvents, under the operation as its key, so that these are in order."""
    await kafka_server.add_topic("operations.create_payment")
    event = new_event()
    async with opened(topic_on(kafka_server)) as sink:
        assert [await is_delivered(sink, event) for _ in range(2)] == [True, True]
    first, second = await kafka_server.messages("operations.create_payment", lambda found: len(found) == 2)
    headers = {name: value.decode() for name, value in first.headers}
    assert headers.pop("content-type") == "application/json"
    attributes = {name: value for name, value in event.attributes().items() if name != "datacontenttype"}
    assert {name.removeprefix("ce_"): value for name, value in headers.items()} == {"specversion": "1.0", **attributes}
    assert (first.key, first.value) == (event.operation_id.encode(), event.data())
    assert (second.key, second.partition, second.headers) == (first.key, first.partition, first.headers)


async def test_a_broker_that_stops_answering_gets_another_producer(kafka_server: KafkaServer) -> None:
    """What was not acknowledged is unknown. Afterwards the event goes out, and nothing is left of the old producer."""
    await kafka_server.add_topic("operations.create_payment")
    async with opened(topic_on(kafka_server, timeout_seconds=1.0)) as sink:
        first = new_event()
        # A second is to be enough for a broker that answers, and may not be on a busy machine.
        await eventually(lambda: is_delivered(sink, first), 20.0)
        kafka_server.freeze()
        events = [new_event(), new_event()]
        for failed in await asyncio.gather(*(publish(sink, event) for event in events)):
            assert failed.result is Result.UNKNOWN
        kafka_server.thaw()
        await eventually(lambda: is_delivered(sink, events[0]), 20.0)
    found = await kafka_server.messages("operations.create_payment", lambda found: events[0].id in ids_of(found))
    assert set(ids_of(found)) <= {first.id, *(event.id for event in events)}


async def test_without_its_broker_an_event_waits(kafka_server: KafkaServer) -> None:
    """Why it cannot be connected to is said, and the library's log is silent about it."""
    async with opened(topic_on(kafka_server)) as sink:
        kafka_server.kill()
        failed = await publish(sink, new_event())
        assert failed.is_failed
        assert kafka_server.address in failed.why
        await kafka_server.start()
        assert await is_delivered(sink, new_event())


async def test_what_a_topic_never_takes_is_refused(kafka_server: KafkaServer) -> None:
    """An event that is too large must not block the others."""
    await kafka_server.add_topic("operations.create_payment")
    async with opened(topic_on(kafka_server)) as sink:
        large = replace(new_event(), response=b'"%s"' % (b"x" * 3_000_000))
        assert (await publish(sink, large)).result is Result.REFUSED
        assert await is_delivered(sink, new_event())


async def test_a_broker_without_idempotence_is_named(kafka_server: KafkaServer) -> None:
    """With the setting that does without, as it would never work."""
    async with opened(topic_on(kafka_server, idempotence=True)) as sink:
        failed = await publish(sink, new_event())
    assert failed.is_failed
    assert "idempotence: false" in failed.why


async def test_a_broker_that_refuses_the_credentials_closes_the_sink(tmp_path: Path) -> None:
    """No repeat helps."""
    server = KafkaServer(tmp_path / "kafka", is_authenticating=True)
    await server.start()
    try:
        async with opened(topic_on(server, user="gateway", password="wrong")) as sink:
            refused = await publish(sink, new_event())
        assert refused == Publication(Result.SUSPENDED, "the broker refused the credentials")
    finally:
        server.kill()


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "sink"),
    [
        ("nats", lambda: NatsSink(nats_at("nats://127.0.0.1:1"), print)),
        ("kafka", lambda: KafkaSink(kafka_at("127.0.0.1:1"))),
    ],
)
async def test_a_library_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, extra: str, sink: Callable[[], Sink]
) -> None:
    """With what to install."""
    monkeypatch.setattr("gateway.events.brokers.find_spec", lambda _: None)
    with pytest.raises(SinkUnusable, match=rf"idempotency-gateway\[{extra}\]"):
        await sink().open()


async def test_standard_output_gets_a_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """For trying."""
    event = new_event()
    sys.stdout.flush()
    async with opened(StdoutSink()) as sink:
        await publish(sink, event)
    assert capfdbinary.readouterr().out == event.cloudevent() + b"\n"
