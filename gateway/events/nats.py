"""Events to a JetStream stream of NATS (extra `nats`), in the binary mode of the CloudEvents binding for NATS.

The acknowledgement of the expected stream counts; without one it is unknown whether the event arrived, and the same
message id is sent again. JetStream drops repeats within the `duplicate_window` of the stream, and consumers recognise
later ones by `ce-id`. The server acknowledges before its disk has the event, unless it is configured otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gateway.config.models import NatsSink as NatsSettings
from gateway.core.operation import MICROSECONDS
from gateway.core.outbox import BROKER_SCHEDULE_US, PublishedEvent
from gateway.events.relay import Publication, Sink, SinkUnusable, reason
from gateway.observe.facts import PublicationResult as Result

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

TIMEOUT_SECONDS: Final = 5.0
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
            async with asyncio.timeout(TIMEOUT_SECONDS):
                stream = await self._connected()
                await stream.publish(
                    subject, event.data(), timeout=TIMEOUT_SECONDS, stream=settings.stream, headers=headers
                )
        except stream_errors.NoStreamResponseError:
            return Publication(Result.FAILED, f"no stream takes {subject}; create {settings.stream} for it")
        except errors.MaxPayloadError:
            return Publication(Result.REFUSED, "larger than the server's max_payload")
        except errors.AuthorizationError as error:
            return Publication(Result.SUSPENDED, reason(f"the server refused the credentials: {error}"))
        except (TimeoutError, errors.TimeoutError):
            return Publication(Result.UNKNOWN, f"no acknowledgement within {TIMEOUT_SECONDS:g} s")
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
