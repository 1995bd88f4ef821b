"""Events to brokers: Kafka and NATS, in the binary modes of their CloudEvents bindings, and a Redis stream.

Each sink imports its library where it uses it: two are extras, and the third takes long to load. Consumers recognise a
repeat by the id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gateway.config.events import KafkaSink as KafkaSettings
from gateway.config.events import NatsSink as NatsSettings
from gateway.config.events import RedisStreamSink as RedisStreamSettings
from gateway.core.operation import MICROSECONDS
from gateway.core.outbox import BROKER_SCHEDULE_US, PublishedEvent
from gateway.events.sink import (
    Closed,
    Delivered,
    Failed,
    OneByOne,
    Outgoing,
    Publication,
    Refused,
    SinkUnusable,
    reason,
)
from gateway.upstream.tls import PemError, client_context

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from redis.asyncio import Redis

# -- kafka -------------------------------------------------------------------------------------------------------------
# Events to a topic of Kafka (extra `kafka`), in the binary mode of the CloudEvents binding for Kafka.
#
# The acknowledgement of all in-sync replicas counts; without one within the sink's own deadline it is unknown whether
# the event arrived. An idempotent producer writes no event twice by its own repeats, but never gives one up, and it
# knows nothing of the producer before it. So a producer that failed is discarded, and the next publication begins with
# another one: consumers recognise a repeat by the header `ce_id`. Events of one operation have one key, hence one
# partition.

KAFKA_TIMEOUT_SECONDS: Final = 10.0
# One request of the library: shorter than the deadline, so that a producer that is discarded ends soon.
_REQUEST_MILLISECONDS: Final = 4000
# Longer than any event, so that the limit is the broker's.
_REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
_CLOSE_SECONDS: Final = 5.0


class KafkaSink(OneByOne):
    """Sends each event to the topic."""

    def __init__(self, settings: KafkaSettings, *, timeout_seconds: float = KAFKA_TIMEOUT_SECONDS) -> None:
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._producer: AIOKafkaProducer | None = None
        self._connecting = asyncio.Lock()
        self._discarded: set[asyncio.Task[None]] = set()
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
                return Refused(f"the header {name} would contain characters that CloudEvents do not allow")
        topic = self._settings.topic.replace("{route}", event.route).replace("{type}", event.type.value)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                producer = await self._connected()
        except TimeoutError:
            return Failed(f"no connection within {self._timeout_seconds:g} s")
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
            return Failed(f"no acknowledgement within {self._timeout_seconds:g} s", is_unknown=True)
        except Exception as error:  # noqa: BLE001  likewise
            return self._failed(producer, topic, error)
        return Delivered()

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
                return Closed("the broker refused the credentials")
            case errors.AuthenticationFailedError() | errors.ClusterAuthorizationFailedError():
                return Closed(reason(f"the broker refused the credentials: {error}"))
            case errors.BrokerResponseError() | errors.UnsupportedVersionError() if self._settings.idempotence:
                return Failed(reason(f"no idempotent producer: {error}; idempotence: false does without"))
            case _:
                return Failed(reason(self._connections.last_error or str(error)))

    def _failed(self, producer: AIOKafkaProducer, topic: str, error: Exception) -> Publication:
        from aiokafka import errors

        match error:
            case errors.MessageSizeTooLargeError() | errors.RecordListTooLargeError():
                return Refused(reason(f"larger than what topic {topic} takes"))
            case errors.UnknownTopicOrPartitionError():
                return Failed(f"there is no topic {topic}; create it")
            case errors.InvalidTopicError():
                return Closed(f"{topic} is no name of a topic")
            case errors.TopicAuthorizationFailedError() | errors.ClusterAuthorizationFailedError():
                return Closed(f"this user may not write to topic {topic}")
            case _:
                self._discard(producer)
                return Failed(reason(self._connections.last_error or str(error)), is_unknown=True)

    def _discard(self, producer: AIOKafkaProducer) -> None:
        """Use another producer from here on, and let this one end by itself."""
        if self._producer is producer:
            self._producer = None
            task = asyncio.get_running_loop().create_task(_end(producer))
            self._discarded.add(task)
            task.add_done_callback(self._discarded.discard)


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


# -- nats --------------------------------------------------------------------------------------------------------------
# Events to a JetStream stream of NATS (extra `nats`), in the binary mode of the CloudEvents binding for NATS.
#
# The acknowledgement of the expected stream counts; without one it is unknown whether the event arrived, and the same
# message id is sent again. JetStream drops repeats within the `duplicate_window` of the stream, and consumers recognise
# later ones by `ce-id`. The server acknowledges before its disk has the event, unless it is configured otherwise.

NATS_TIMEOUT_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2
_REPLICAS_MIN: Final = 3
# What a header value keeps as it is (CloudEvents HTTP binding, section 3.1.3.2): visible ASCII but `"` and `%`.
_KEPT: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class NatsSink(OneByOne):
    """Publishes each event to the stream."""

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
            async with asyncio.timeout(NATS_TIMEOUT_SECONDS):
                stream = await self._connected()
                await stream.publish(
                    subject, event.data(), timeout=NATS_TIMEOUT_SECONDS, stream=settings.stream, headers=headers
                )
        except stream_errors.NoStreamResponseError:
            return Failed(f"no stream takes {subject}; create {settings.stream} for it")
        except errors.MaxPayloadError:
            return Refused("larger than the server's max_payload")
        except errors.AuthorizationError as error:
            return Closed(reason(f"the server refused the credentials: {error}"))
        except (TimeoutError, errors.TimeoutError):
            return Failed(f"no acknowledgement within {NATS_TIMEOUT_SECONDS:g} s", is_unknown=True)
        except stream_errors.APIError as error:
            return Failed(reason(f"the stream refused it: {error.description}"))
        except (errors.Error, OSError) as error:
            # A message that waits in the client while it reconnects goes out later.
            return Failed(reason(str(error)), is_unknown=True)
        return Delivered()

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


# -- redis -------------------------------------------------------------------------------------------------------------
# Events to a Redis stream, for consumers that read it by groups.
#
# The reply to XADD is the acknowledgement. It is as durable as that Redis is: with `fsync`, the event is on the disk of
# the server when it is acknowledged, where the server can say so (WAITAOF, Redis 7.2). Within a window after the last
# attempt, the script adds no event a second time; consumers recognise later repeats by the field `id`.

REDIS_TIMEOUT_SECONDS: Final = 5.0
# XADD comes before SET: an error between the two costs a duplicate, in the other order an event. A repeat writes, too:
# WAITAOF waits for what its own connection has written, and the first attempt may have been over another one.
_SCRIPT: Final = """
if redis.call('PEXPIRE', KEYS[2], ARGV[1]) == 1 then return 0 end
local trim = {}
if ARGV[2] ~= '' then trim = {'MAXLEN', '~', ARGV[2]} end
if ARGV[3] ~= '' then
    local now = redis.call('TIME')
    trim = {'MINID', '~', string.format('%.0f', now[1] * 1000 - ARGV[3])}
end
local command = {'XADD', KEYS[1]}
for _, word in ipairs(trim) do command[#command + 1] = word end
command[#command + 1] = '*'
for place = 4, #ARGV do command[#command + 1] = ARGV[place] end
redis.call(unpack(command))
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
return 1
"""
# Errors of a server that only a person can mend, by their first word.
_PERMANENT: Final = frozenset(("WRONGTYPE", "NOPERM", "NOAUTH", "WRONGPASS"))
# A missing permission inside a script comes without that word: up to Redis 7.0, and later.
_NOT_IN_SCRIPT: Final = ("user executing the script can't", "ACL failure in script")
_FSYNC_MILLISECONDS: Final = 2000


class RedisStreamSink:
    """Adds each event to the stream, those of a batch by one round trip."""

    # So few that large ones arrive within the deadline, too.
    batch_max = 16

    def __init__(self, settings: RedisStreamSettings, warn: Callable[[str], None]) -> None:
        self._settings = settings
        self._warn = warn
        self._client: Redis | None = None
        self._cannot_fsync = False

    async def open(self) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # The driver repeats nothing: a repeat is the relay's decision.
        self._client = Redis.from_url(
            self._settings.url.url.get_secret_value(),
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        )

    async def publish(self, batch: Sequence[Outgoing]) -> Sequence[Publication]:
        from redis import exceptions

        of_all: Publication
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_SECONDS):
                replies = await self._add(batch)
        except (TimeoutError, exceptions.TimeoutError):
            of_all = Failed(f"no reply within {REDIS_TIMEOUT_SECONDS:g} s", is_unknown=True)
        except exceptions.AuthenticationError as error:
            of_all = Closed(reason(str(error)))
        except (exceptions.RedisError, OSError) as error:
            of_all = Failed(reason(str(error)), is_unknown=True)
        else:
            added, synced = replies[: len(batch)], replies[len(batch) :]
            of_added = self._synced(synced[0] if synced else None)
            return [_refused(each) if isinstance(each, Exception) else of_added for each in added]
        return [of_all] * len(batch)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _add(self, batch: Sequence[Outgoing]) -> list[Any]:
        """The replies to the scripts and perhaps to WAITAOF, each perhaps an error."""
        if self._client is None:
            raise OSError("the sink is not open")
        # One connection for all: WAITAOF is about the writes of its own.
        pipeline = self._client.pipeline(transaction=False)
        for event, redeliveries in batch:
            pipeline.eval(*self._script(event, redeliveries))
        if self._settings.fsync and not self._cannot_fsync:
            pipeline.execute_command("WAITAOF", 1, 0, _FSYNC_MILLISECONDS)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    def _script(self, event: PublishedEvent, redeliveries: int) -> tuple[Any, ...]:
        """The script with its keys and arguments."""
        settings, attributes = self._settings, event.attributes()
        # In a cluster both keys are on one node: they have one hash tag.
        tag = settings.stream if "{" in settings.stream else f"{{{settings.stream}}}"
        seen = f"{tag}:seen:{event.id}" + (f".r{redeliveries}" if redeliveries else "")
        fields: dict[str, str | bytes] = {
            name: attributes[name] for name in ("id", "type", "source", "subject", "time")
        } | {"data": event.data()}
        return (
            _SCRIPT,
            2,
            settings.stream,
            seen,
            str(round(settings.window * 1000)),
            "" if settings.max_length is None else str(settings.max_length),
            "" if settings.max_age is None else str(round(settings.max_age * 1000)),
            *(part for field in fields.items() for part in field),
        )

    def _synced(self, reply: Any) -> Publication:
        from redis import exceptions

        match reply:
            case None | [1, *_]:
                return Delivered()
            case exceptions.ResponseError() if "unknown command" in str(reply).lower():
                self._cannot_fsync = True
                self._warn("this Redis cannot say when an event is on its disk: that needs Redis 7.2 (WAITAOF)")
                return Delivered()
            case exceptions.ResponseError():
                return Closed(reason(f"fsync: {reply}"))
            case _:
                return Failed("the event was not written to the disk of the server in time", is_unknown=True)


def _refused(error: Exception) -> Publication:
    from redis import exceptions

    why = reason(str(error))
    words = str(error).replace("-", " ").split()
    is_permanent = any(word in _PERMANENT for word in words) or any(text in str(error) for text in _NOT_IN_SCRIPT)
    if is_permanent or isinstance(error, exceptions.AuthorizationError | exceptions.AuthenticationError):
        return Closed(why)
    # A script that fails at XADD has added nothing, but the message may be about the connection.
    return Failed(why, is_unknown=not isinstance(error, exceptions.ResponseError))
