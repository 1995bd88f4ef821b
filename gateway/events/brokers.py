"""Events to brokers: Kafka (extra `kafka`) and NATS (extra `nats`), whose libraries are imported when they are used.

*Kafka.* To a topic, in the binary mode of the CloudEvents binding for Kafka.

The acknowledgement of all in-sync replicas counts; without one within the sink's own deadline it is unknown whether the
event arrived. An idempotent producer writes no event twice by its own repeats, but never gives one up, and it knows
nothing of the producer before it. So a producer that failed is discarded, and the next publication begins with another
one: consumers recognise a repeat by the header `ce_id`. Events of one operation have one key, hence one partition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gateway.config.models import KafkaSink as KafkaSettings
from gateway.config.models import NatsSink as NatsSettings
from gateway.core.operation import MICROSECONDS
from gateway.core.outbox import BROKER_SCHEDULE_US, PublishedEvent
from gateway.events.relay import Publication, Sink, SinkUnusable, reason
from gateway.observe.facts import PublicationResult as Result
from gateway.observe.logs import Tasks
from gateway.upstream.connect import PemError, client_context

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from nats.aio.client import Client
    from nats.js import JetStreamContext

TIMEOUT_SECONDS: Final = 10.0
# One request of the library: shorter than the deadline, so that a producer that is discarded ends soon.
_REQUEST_MILLISECONDS: Final = 4000
# Longer than any event, so that the limit is the broker's.
_REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
_CLOSE_SECONDS: Final = 5.0


class KafkaSink(Sink):
    def __init__(self, settings: KafkaSettings, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        self._discarded = Tasks("a producer could not be closed")
        self._connections = _Connections(settings.servers)

    async def open(self) -> None:
        if find_spec("aiokafka") is None:
            raise SinkUnusable("install the extra: pip install 'idempotency-gateway[kafka]'")
        if self._settings.ca is not None:
            try:
                client_context(self._settings.ca)
            except PemError as error:
                raise SinkUnusable(str(error)) from None
        self._connections.attach()

    async def publish_one(self, event: PublishedEvent, redeliveries: int) -> Publication:
        attributes = event.attributes()
        headers = [(f"ce_{name}", value) for name, value in attributes.items() if name != "datacontenttype"]
        headers += [("ce_specversion", "1.0"), ("content-type", attributes["datacontenttype"])]
        for name, value in headers:
            if not value.isprintable():
                return Publication(
                    Result.REFUSED, f"the header {name} would contain characters that CloudEvents do not allow"
                )
        topic = self._settings.topic.replace("{route}", event.route).replace("{type}", event.type.value)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                producer = await self._connected()
        except TimeoutError:
            return Publication(Result.FAILED, f"no connection within {self._timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001  the library raises whatever a broker's response leads to
            return self._not_connected(error)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await producer.send_and_wait(
                    topic,
                    event.data(),
                    key=attributes["partitionkey"].encode(),
                    headers=[(name, value.encode()) for name, value in headers],
                )
        except TimeoutError:
            self._discard(producer)
            return Publication(Result.UNKNOWN, f"no acknowledgement within {self._timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001  likewise
            return self._failed(producer, topic, error)
        return Publication(Result.DELIVERED)

    async def close(self) -> None:
        if self._producer is not None:
            self._discard(self._producer)
        if self._discarded:
            await asyncio.wait(self._discarded, timeout=_CLOSE_SECONDS)
        self._connections.detach()

    async def _connected(self) -> AIOKafkaProducer:
        async with self._connecting:
            if self._producer is None:
                self._producer = await self._connect()
                self._connections.last_error = None
            return self._producer

    async def _connect(self) -> AIOKafkaProducer:
        from aiokafka import AIOKafkaProducer

        settings = self._settings
        security = ("SASL_" if settings.user is not None else "") + ("SSL" if settings.tls else "PLAINTEXT")
        producer = AIOKafkaProducer(
            bootstrap_servers=list(settings.servers),
            client_id="idempotency-gateway",
            acks="all",
            enable_idempotence=settings.idempotence,
            request_timeout_ms=_REQUEST_MILLISECONDS,
            max_request_size=_REQUEST_BYTES_MAX,
            security_protocol=security,
            ssl_context=client_context(settings.ca) if settings.tls else None,
            sasl_mechanism=settings.mechanism,
            sasl_plain_username=settings.user,
            sasl_plain_password=None if settings.password is None else settings.password.get_secret_value(),
        )
        try:
            await producer.start()
        except BaseException:
            # Nothing was sent: this closes its connections, and waits for nothing.
            await producer.stop()
            raise
        return producer

    def _not_connected(self, error: Exception) -> Publication:
        from aiokafka import errors

        match error:
            case KeyError():
                # How the library reports that a broker did not accept the proof of SCRAM (RFC 5802, section 7).
                return Publication(Result.SUSPENDED, "the broker refused the credentials")
            case errors.AuthenticationFailedError() | errors.ClusterAuthorizationFailedError():
                return Publication(Result.SUSPENDED, reason(f"the broker refused the credentials: {error}"))
            case errors.BrokerResponseError() | errors.UnsupportedVersionError() if self._settings.idempotence:
                return Publication(
                    Result.FAILED, reason(f"no idempotent producer: {error}; idempotence: false does without")
                )
            case _:
                return Publication(Result.FAILED, reason(self._connections.last_error or str(error)))

    def _failed(self, producer: AIOKafkaProducer, topic: str, error: Exception) -> Publication:
        from aiokafka import errors

        match error:
            case errors.MessageSizeTooLargeError() | errors.RecordListTooLargeError():
                return Publication(Result.REFUSED, reason(f"larger than what topic {topic} takes"))
            case errors.UnknownTopicOrPartitionError():
                return Publication(Result.FAILED, f"there is no topic {topic}; create it")
            case errors.InvalidTopicError():
                return Publication(Result.SUSPENDED, f"{topic} is no name of a topic")
            case errors.TopicAuthorizationFailedError() | errors.ClusterAuthorizationFailedError():
                return Publication(Result.SUSPENDED, f"this user may not write to topic {topic}")
            case _:
                self._discard(producer)
                return Publication(Result.UNKNOWN, reason(self._connections.last_error or str(error)))

    def _discard(self, producer: AIOKafkaProducer) -> None:
        """Use another producer from here on, and let this one end by itself."""
        if self._producer is producer:
            self._producer = None
            self._discarded.spawn(_end(producer))


async def _end(producer: AIOKafkaProducer) -> None:
    """Close a producer. `stop` alone waits for its messages, and idempotent ones are repeated for ever."""
    from aiokafka.errors import ProducerClosed

    producer._message_accumulator.fail_all(ProducerClosed())  # noqa: SLF001  there is no other way
    await producer.stop()


class _Connections(logging.Handler):
    """Why the servers of a sink could not be connected to: the library says that in its log alone, many times."""

    def __init__(self, servers: tuple[str, ...]) -> None:
        super().__init__(logging.WARNING)
        self._servers = tuple(f'"{server}"' for server in servers)
        self._logger = logging.getLogger("aiokafka")
        self.last_error: str | None = None

    def attach(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def detach(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = not self._logger.handlers

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if any(server in message for server in self._servers):
            self.last_error = message


# -- NATS --------------------------------------------------------------------------------------------------------------
#
# Events to a JetStream stream of NATS (extra `nats`), in the binary mode of the CloudEvents binding for NATS.
#
# The acknowledgement of the expected stream counts; without one it is unknown whether the event arrived, and the same
# message id is sent again. JetStream drops repeats within the `duplicate_window` of the stream, and consumers recognise
# later ones by `ce-id`. The server acknowledges before its disk has the event, unless it is configured otherwise.

_NATS_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2
_REPLICAS_MIN: Final = 3
# What a header value keeps as it is (CloudEvents HTTP binding, section 3.1.3.2): visible ASCII but `"` and `%`.
_KEPT: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class NatsSink(Sink):
    def __init__(self, settings: NatsSettings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._connecting = asyncio.Lock()

    async def open(self) -> None:
        if find_spec("nats") is None:
            raise SinkUnusable("install the extra: pip install 'idempotency-gateway[nats]'")

    async def publish_one(self, event: PublishedEvent, redeliveries: int) -> Publication:
        from nats import errors
        from nats.js import errors as stream_errors

        attributes = event.attributes()
        headers = {f"ce-{name}": quote(value, safe=_KEPT) for name, value in attributes.items()}
        headers["ce-specversion"] = "1.0"
        headers["Nats-Msg-Id"] = event.id + (f".r{redeliveries}" if redeliveries else "")
        settings = self._settings
        subject = settings.subject.replace("{route}", event.route).replace("{type}", event.type.value)
        try:
            async with asyncio.timeout(_NATS_SECONDS):
                stream = await self._connected()
                await stream.publish(
                    subject, event.data(), timeout=_NATS_SECONDS, stream=settings.stream, headers=headers
                )
        except stream_errors.NoStreamResponseError:
            return Publication(Result.FAILED, f"no stream takes {subject}; create {settings.stream} for it")
        except errors.MaxPayloadError:
            return Publication(Result.REFUSED, "larger than the server's max_payload")
        except errors.AuthorizationError as error:
            return Publication(Result.SUSPENDED, reason(f"the server refused the credentials: {error}"))
        except (TimeoutError, errors.TimeoutError):
            return Publication(Result.UNKNOWN, f"no acknowledgement within {_NATS_SECONDS:g} s")
        except stream_errors.APIError as error:
            return Publication(Result.FAILED, reason(f"the stream refused it: {error.description}"))
        except (errors.Error, OSError) as error:
            # A message that waits in the client while it reconnects goes out later.
            return Publication(Result.UNKNOWN, reason(str(error)))
        return Publication(Result.DELIVERED)

    async def close(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            await client.close()

    async def _connected(self) -> JetStreamContext:
        async with self._connecting:
            # The library reconnects by itself, but closes a client for good after most errors that the server reports.
            if self._stream is None or self._client is None or self._client.is_closed:
                await self.close()
                self._stream = await self._connect()
            return self._stream

    async def _connect(self) -> JetStreamContext:
        from nats.aio.client import Client

        settings, client = self._settings, Client()
        try:
            # Without a callback the library writes a traceback for each attempt to reconnect.
            await client.connect(
                servers=list(settings.servers),
                error_cb=_ignore,
                connect_timeout=_CONNECT_SECONDS,
                max_reconnect_attempts=-1,
                user=settings.user,
                password=None if settings.password is None else settings.password.get_secret_value(),
            )
        except BaseException:
            await client.close()
            raise
        self._client, stream = client, client.jetstream()
        await self._check(stream)
        return stream

    async def _check(self, stream: JetStreamContext) -> None:
        """Warn about a stream that forgets what it has seen too soon, or that may lose what it has acknowledged."""
        from nats import errors

        name = self._settings.stream
        try:
            info = (await stream.stream_info(name)).config
        except (errors.Error, TimeoutError):
            self._warn(f"stream {name} cannot be looked at; events wait until it exists")
            return
        window_seconds = info.duplicate_window or 0
        if window_seconds < 2 * BROKER_SCHEDULE_US[-1] / MICROSECONDS:
            self._warn(
                f"duplicate_window of stream {name} is {window_seconds:g} s: repeats after a pause are stored twice"
            )
        if (info.num_replicas or 1) < _REPLICAS_MIN:
            self._warn(
                f"stream {name} has fewer than {_REPLICAS_MIN} replicas: unless its server has sync_interval: always, "
                "a power cut loses events that it acknowledged"
            )


async def _ignore(_: Exception) -> None:
    pass
